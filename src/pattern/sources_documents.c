/*
 * The source of build.h that puts documents side by side: each lists its own keys for its own
 * queries. A document may end within a tile, and many may share one; such tiles are put together
 * from their documents' bits.
 */
#include "pattern/build.h"

/* Extent of document `i` in the block row at hand. */
struct extent {
    int64_t r0, r1;              /* its queries: rows of the block row */
    int64_t k0, k1;              /* its keys */
    int64_t first_col, last_col; /* block columns with some of its keys */
};

static struct extent extent_of(const struct build_row *b, const struct source *s, int64_t i) {
    int64_t begin = b->document.begin, block = b->m->block_kv;
    int64_t q0 = i ? s->u.documents.q_end[i - 1] : s->u.documents.q_begin;
    int64_t k0 = i ? s->u.documents.kv_end[i - 1] : 0;
    struct extent p = {.r0 = max_i64(begin + q0 - b->position, 0),
                       .r1 = min_i64(begin + s->u.documents.q_end[i] - b->position, b->rows),
                       .k0 = begin + k0,
                       .k1 = begin + s->u.documents.kv_end[i]};
    p.first_col = p.k0 / block;
    p.last_col = (p.k1 - 1) / block;
    return p;
}

/* The root of what document `i` lists. */
static int64_t child_of(const struct source *s, int64_t i) {
    return s->u.documents.apart ? s->u.documents.first + i : s->child;
}

/* A child that is laid out in each document anew sees that document and nothing else. */
static struct build_document document_of(const struct build_row *b, const struct source *s,
                                         int64_t i) {
    if (s->u.documents.apart)
        return b->document;
    struct extent p = extent_of(b, s, i);
    uint64_t number = b->document.number * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)i;
    return (struct build_document){p.k0, p.k1, number};
}

/* Begins the first document from number cursor.at on that has queries in this block row and keys;
 * cursor.at is then its number, or n. */
static int documents_enter(struct build_row *b, int64_t source) {
    const struct source *s = &b->sources[source];
    struct cursor *c = &b->cursors[source];
    for (; c->at < c->n; c->at++) {
        struct extent p = extent_of(b, s, c->at);
        if (p.r0 >= b->rows)
            c->at = c->n - 1; /* this and all that follow begin below */
        else if (p.r0 < p.r1 && p.k0 < p.k1)
            break;
    }
    if (c->at == c->n)
        return 0;
    int64_t child = child_of(s, c->at);
    struct build_document outer = b->document;
    b->document = document_of(b, s, c->at);
    int status = build_begin(b, s->u.documents.apart ? child : s->u.documents.first, child + 1);
    b->document = outer;
    return status;
}

static int documents_begin(struct build_row *b, int64_t source) {
    const struct source *s = &b->sources[source];
    struct cursor *c = &b->cursors[source];
    int64_t first = 0, last = s->u.documents.n, position = b->position - b->document.begin;
    while (first < last) { /* the first document that ends after the block row's first query */
        int64_t middle = first + (last - first) / 2;
        if (s->u.documents.q_end[middle] <= position)
            first = middle + 1;
        else
            last = middle;
    }
    c->at = first;
    c->n = s->u.documents.n;
    return documents_enter(b, source);
}

/* Moves the document at hand to its first tile at or after column j. */
static int document_seek(struct build_row *b, int64_t source, int64_t j) {
    const struct source *s = &b->sources[source];
    int64_t i = b->cursors[source].at;
    struct build_document outer = b->document;
    b->document = document_of(b, s, i);
    int status = build_seek(b, child_of(s, i), j);
    b->document = outer;
    return status;
}

/* Copies what tile t lists within a document to the mask of the same tile. */
static void document_copy(const struct build_row *b, const struct build_tile *t,
                          const struct extent *p, uint64_t *bits) {
    struct bcsr of_t = *b->m;
    int64_t begin = t->tile.col * b->m->block_kv;
    int64_t c0 = max_i64(p->k0 - begin, 0);
    int64_t c1 = min_i64(p->k1 - begin, bcsr_col_width(b->m, t->tile.col));
    of_t.bits = t->bits;
    for (int64_t r = p->r0; r < p->r1; r++) {
        for (int64_t c = c0; c < c1; c += 64) {
            int n = (int)min_i64(64, c1 - c);
            bits_put(bits, r * b->m->block_kv + c, tile_row_bits(&of_t, &t->tile, r, c, n), n);
        }
    }
}

static int document_covers(const struct build_row *b, const struct extent *p, int64_t col) {
    int64_t begin = col * b->m->block_kv;
    return p->r0 == 0 && p->r1 == b->rows && p->k0 <= begin &&
           p->k1 >= begin + bcsr_col_width(b->m, col);
}

/* Answers with the first column at or after j of which some document has a tile, and with what all
 * documents list in it, which may be nothing; -1: no memory. */
static int64_t documents_gather(struct build_row *b, int64_t source, int64_t j) {
    struct cursor *c = &b->cursors[source];
    int64_t found = b->m->cols;
    build_answer_none(b, source);
    while (c->at < c->n) {
        struct extent p = extent_of(b, &b->sources[source], c->at);
        if (p.first_col > found)
            break;
        if (document_seek(b, source, max_i64(j, p.first_col)))
            return -1;
        const struct build_tile *t = &b->cursors[child_of(&b->sources[source], c->at)].answer;
        if (t->tile.col <= p.last_col) {
            if (t->tile.col > found)
                break;
            if (found == b->m->cols && document_covers(b, &p, t->tile.col)) {
                c->answer = *t;
                return t->tile.col;
            }
            if (found == b->m->cols && !build_answer_bits(b, source, t->tile.col))
                return -1;
            found = t->tile.col;
            document_copy(b, t, &p, c->answer.bits);
            if (p.last_col > found)
                break; /* later documents have no key in this column */
        }
        c->at++;
        if (documents_enter(b, source))
            return -1;
    }
    return found;
}

static int documents_seek(struct build_row *b, int64_t source, int64_t j) {
    struct build_tile *t = &b->cursors[source].answer;
    for (int64_t col; (col = documents_gather(b, source, j)) < b->m->cols; j = col + 1) {
        if (col < 0)
            return -1;
        if (t->tile.kind != TILE_BITMASK || tile_set_bits(b, t))
            return 0;
    }
    return build_answer_none(b, source);
}

const struct source_kind source_documents = {documents_begin, documents_seek};

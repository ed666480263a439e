/*
 * THE CONTRACT between the core and the backends.
 *
 * Glossary, used everywhere:
 *   b batch   h query head   i query or query block   j key or key block   e list entry   d dim
 *   T query tile over all lists   M rows of a query tile   r row in a tile   c column in a tile
 *   S scores   P weights   O output   m running maximum   l running sum (both in base 2)
 *
 * A kernel is a row of its backend's table: name, stage, family (which says what it refuses and costs),
 * workspace and function. The plan picks from the table; tests and `tessera verify` find new kernels by walking
 * it. To add one: write it, add its row.
 */
#ifndef TESSERA_KERNELS_H
#define TESSERA_KERNELS_H

#include "base/carve.h"
#include "lists/fill.h"
#include "lists/fill_rules.h"
#include "lists/lists.h"
#include "lists/select_rules.h"
#include "pattern/pattern.h"
#include "plan/schedule.h"
#include "plan/strips.h"
#include "tessera.h"

/* Score modifiers, and where this problem lies in the whole one. 0: none. */
struct modifiers {
    double softcap;
    int32_t alibi, sink, seed, key_positions; /* a run is given them */
    int32_t dropped;                          /* draws that drop, of 65536 */
    int64_t first_head;                       /* batch_offset * heads + head_offset, of the whole */
    int64_t heads; /* query heads of the whole: from a batch to the next */
    int64_t first_query, first_key;
    int64_t first_position; /* p_0 */
};

static inline int modifiers_any(const struct modifiers *m) {
    return m->softcap != 0 || m->alibi || m->sink || m->dropped;
}

/* The shape of the pattern's block rows, over all heads. */
struct block_rows {
    int64_t count; /* 0: not known */
    int64_t block_q, block_kv;
    int64_t columns;         /* keys that they list, whole blocks */
    int64_t widest;          /* columns of one at most */
    int64_t bands, bitmasks; /* tiles with masks, of all lists */
};

/* Keys and values as a cache holds them. */
struct caches {
    tess_type k_type, v_type, k_rope_type;
    int32_t v_in_k;
    int32_t page_shift; /* log2 of a page's rows; CACHE_WHOLE: not paged */
    tess_scaling k_scale, v_scale;
    int64_t k_group, v_group; /* dims of a scale */
};
#define CACHE_WHOLE 31 /* all keys are rows of one page */

/* A tess_problem with every default resolved and every rule checked. */
struct problem {
    tess_operation operation;
    int64_t gradients;  /* backward: which of TESS_GRADIENT_..., at least one; else 0 */
    int64_t spill_size; /* backward: bytes at most, 0: the plan chooses */
    int32_t o_rest;     /* a run is given it */
    tess_pipeline pipeline;
    tess_type type, o_type;
    int64_t batch, heads_q, heads_kv;
    int64_t n_q, n_kv, d_qk, d_v;
    int64_t rope_dims; /* last dims of d_qk, which q_rope and k_rope hold; 0: q and k hold all */
    double scale;
    int64_t alignment;
    int32_t threads;
    int32_t tile_rows; /* 0: the plan chooses */
    int64_t part_keys;
    int32_t parts_asked; /* the caller has named part_keys */
    int32_t strict;      /* reserved: a fill refuses lists with a fault */
    int32_t sum_rows;    /* queries of a group of column sums; 0: a run writes none */
    tess_type sum_type;
    struct modifiers modifiers;
    tess_activation activation; /* MLP */
    struct caches caches;
    struct block_rows block_rows; /* planning's, for kernels of the stages */
};

static inline int type_is_8bit(tess_type type) {
    return type == TESS_E4M3 || type == TESS_E5M2;
}

static inline int caches_paged(const struct caches *c) {
    return c->page_shift != CACHE_WHOLE;
}

/* Dims of K's view. */
static inline int64_t problem_d_k(const struct problem *p) {
    return p->d_qk - p->rope_dims;
}

/* Whether kernels that know keys and values of the problem's type alone, row behind row, compute it. */
static inline int caches_plain(const struct problem *p) {
    return p->caches.k_type == p->type && p->caches.v_type == p->type && !caches_paged(&p->caches);
}

/* Keys that a kernel on a device copies by one instruction at most: costs depend on how blocks fit. */
#define KERNEL_TILE_KEYS 64

/* Parts that CPU work is cut for, whatever the number of threads, so that results do not depend on
 * it. */
#define PLAN_CPU_WORKERS 64

struct kernel;

/* Lists of a plan as its backend's kernels walk them: known to the backend alone. */
struct prepared;

/* A tensor whose sizes the problem knows: element (b, h, n, d) is at
 * b * stride[0] + h * stride[1] + n * stride[2] + d, in elements. data NULL = not wanted. */
struct view {
    void *data;
    int64_t stride[3];
    tess_type type;
};

/*
 * A part of a reserved plan's image, which a fill has written (docs/design/device_lists.md). Pointers are of
 * the target's memory; on a device the host may not follow them. While a workspace is sized they are
 * NULL, `lists` has sizes alone, and `schedule` has n_slots = most_slots.
 *
 * A kernel of a device walks this. `lists` and `lengths` of its work lie there too, but for tile_row, which is
 * NULL (fill_tile_query says the same); `schedule` is NULL in a run. Counts stand in the header, which the
 * kernel reads when it begins; its grid is sized by the capacity. Where the header is not of this plan
 * (fill_is_of), the kernel makes o and lse NaN.
 */
struct filled_image {
    const struct fill_header *header; /* fill_rules.h: items, combines and slots of today */
    const struct work_item *items;
    const struct combine_item *combines;
    uint64_t layout;                               /* the header's, of this plan */
    int64_t most_items, most_combines, most_slots; /* capacities */
    int64_t units;              /* query tiles of all heads, heads packed in one once */
    int64_t block_q, row_tiles; /* queries of a block row, and query tiles that it has */
    int64_t block_kv;           /* keys of a block */
    int64_t heads;              /* lists of a batch: head h has list b heads + h heads / heads_q */
    /* A mask's: masked runs are bits, of lists.words_of_rows; which of their keys some row lists (fill.h). */
    int mask;
    const uint64_t *listed;
    int64_t tile_words; /* words of a tile */
};

/*
 * Work that a kernel walks. A fused kernel finds lists, and what its backend prepared of them; a schedule's
 * tiles are query tiles. A staged kernel finds bcsr and scores; a schedule's tiles are block rows. A staged
 * kernel decides which keys to read for at most 256 rows at a time (docs/semantics.md, "Unlisted keys").
 *
 * Passes over keys (GRADIENT_KEYS, SPMM_TRANSPOSED) walk the transposed pattern. Their tiles are key tiles, or
 * block columns; lists name queries. `batch_head` of an item is b * heads_kv + h_kv. Its list concatenates
 * those of the group's query heads, ascending, each found by list_of. Every key tile has an item.
 */
struct kernel_work {
    const struct bcsr *bcsr;
    const struct bcsr *transposed; /* staged backward: bcsr with rows and columns exchanged */
    const int64_t *entries; /* staged backward: for each tile of transposed, its place in bcsr */
    const struct lists *lists;
    const struct prepared *prepared; /* fused, of families that prepare their lists */
    const struct schedule *schedule;
    const struct strips *strips; /* GRADIENT_KEYS: dQ as well, by these, and no schedule; or NULL */
    int64_t
        tile_heads; /* query heads packed in a tile; `batch_head`s of the schedule count these */
    const int64_t *list_of;            /* [batch * heads_q]: the list that each head reads */
    const int64_t *scores_offset;      /* [batch * heads_q]: staged, first score of each head */
    const struct filled_image *filled; /* a reserved plan's; else NULL */
    const int32_t *lengths; /* [batch]: keys there are today, of filled lists; NULL: n_kv */
    /* Lists that the kernel reads itself (struct family, direct): `filled` and `lists` have sizes alone, and items are
     * the CTAs of all tiles. */
    const tess_device_pattern *given;
    double seconds; /* predicted of the whole run; CPU: of one thread */
};

/*
 * Arguments of a kernel. Operands are a struct of the operation (attention.h), or of the stages, which
 * operations share. A pass binds what it reads and writes to the stage's q, k, v, o and scores. Dims, scale and
 * modifiers of `problem` are the pass's (pass.c).
 */
struct kernel_args {
    const char *function; /* the caller's, for errors */
    const struct kernel *kernel;
    const struct problem *problem;
    const tess_target *target;
    struct kernel_work work;
    const void *operands; /* NULL until a run: workspaces and images are sized without */
    void *workspace;      /* 64-byte aligned, of the size that workspace() answered */
    const void *image;    /* CUDA: the pass's part, which a plan's upload or fill has written */
    tess_stream stream;
};

/* Seconds of one CPU thread, or of a whole device: numbers of the formulas in cost.h.
 * src/cuda/host/costs.h and src/cpu/table.c have them; step_cost stands for them in CUDA's forward. Passes over
 * keys read query for key, and key for row. An item of DELTA is a query, key_dim a dim of its o; dims of
 * COLUMN_SUMS are d_qk. */
struct kernel_cost {
    double item; /* any work item */
    /* One row times one key times one dim, computed: of d_qk + d_v. The backward's products have 2 d_qk +
     * d_v for dQ, and for dK and dV as many as each takes (struct family, dims). */
    double key_row_dim;
    double key_dim;     /* one key times one dim: fetching it */
    double convert_dim; /* one key times one dim of 16 bits: what fetching it takes more */
    double far_dim;     /* more where a head's keys and values take over near_size bytes */
    double near_size;
    double masked_key; /* one row mask applied, per row */
    double score;      /* staged: one score between the stages, written or read */
    /* Tiles of which fewer than half of the pairs are listed, and only these computed: one dim of a listed
     * pair. listed_key_dim: one dim of a key for a set of rows (1, 2 or 4) that list the same keys. */
    double listed_row_dim, listed_key_dim;
    double launch; /* from the call until all workers are at work, once */
};

/* Nanoseconds of a kernel by tiles of `rows` rows, measured: a launch; and of one multiprocessor that is kept
 * busy, an item and steps of KERNEL_TILE_KEYS keys (docs/design/lists.md, "Measured costs"). Keys of a step
 * stand together, in runs of STEP_RUN, or single, gathered; and all rows list them, or some (masked). */
#define STEP_RUN 8
struct step_cost {
    int32_t rows;
    double launch, item, plain, masked, runs, masked_runs, gathered, gathered_masked;
};

/* Lists that a kernel walks. */
enum { LISTS_PACKED = 1 /* with the plan */, LISTS_FILLED = 2 /* kernel_work.filled */ };

/* Packing of tiles of fewer than packed_rows rows: rows of query heads that share their list, keys and
 * values (GQA packing). */
enum packing {
    PACK_POWERS, /* 2, 4 ... heads, as many as fit */
    PACK_FULL,   /* likewise; and none is weighed that stays short, where its block has more rows */
    PACK_ANY,    /* any number of heads */
    PACK_EXACT   /* to exactly packed_rows, or the kernel does not take that height */
};

/* Turning lists and schedule of a fused pass into what its kernel walks. make allocates *out, which free
 * releases; NULL when it fails. */
struct prepare_services {
    tess_status (*make)(struct prepared **out, const struct kernel_args *args, tess_error *error);
    void (*free)(struct prepared *prepared);
    size_t (*memory)(const struct prepared *prepared);
    /* The largest load of a worker over the mean load, 1 at least. */
    double (*unevenness)(const struct prepared *prepared);
};

struct trial; /* cost.h */

/* Facts and answers of the kernels of a family. Functions that are NULL answer what stands beside them. */
struct family {
    /* NULL if a kernel computes this problem on this target, else why not, in words. Shared memory is
     * not looked at: see select_refuses. */
    const char *(*refuses)(const struct kernel *kernel, const struct problem *problem,
                           const tess_target *target);
    /* Refuses filled lists of a shape likewise. NULL: it takes all. */
    const char *(*refuses_filled)(const struct fill_shape *shape);
    /* CTAs of a tile by which a kernel reads lists of a shape, `units` tiles of all heads, from indices itself, faster
     * than by an image. NULL: 0, never. */
    int64_t (*direct)(const struct kernel *kernel, const tess_target *target,
                      const struct fill_shape *shape, int64_t units);
    /* Seconds that a pass takes, but for its launch: what heights and kernels are weighed by. */
    double (*seconds)(const struct trial *trial);
    /* Dims of a key that are multiplied by a row's, over all products. NULL: d_qk + d_v. */
    double (*dims)(const struct trial *trial);
    int products; /* steps are of a kernel of two products, and this one has so many; 0: two */
    /* Nanoseconds of a multiprocessor that a problem's modifiers take for a score, beside step_cost. NULL: 0. */
    double (*modified)(const struct problem *problem);
    /* Whether it can compute listed pairs alone for this problem. NULL: never. */
    int (*listed)(const struct problem *problem);
    /* CTAs among which items are assigned, for tiles of `rows` rows; 1: whoever is free takes the next.
     * NULL: 1. */
    int32_t (*workers)(const struct kernel *kernel, const tess_target *target, int32_t rows);
    /* Whether parts of filled lists are whole shares of a worker (struct fill_splits). NULL: no. */
    int (*whole_shares)(const struct kernel *kernel);
    const struct prepare_services *prepare; /* NULL: its kernels walk the lists themselves */
    int lists;                              /* LISTS_... that it walks */
    enum packing packing;
    int32_t packed_rows; /* 0: tiles have rows of one head */
    int32_t joint_rows;  /* rows of a key tile from which it writes dQ as well; 0: never */
    int sums; /* ATTENTION: it writes column sums as well, and problems need no pass for them */
    int whole_groups;  /* column sums: 1: a tile is a whole group; 0: any part of one */
    int64_t part_keys; /* keys of a part at least, where the caller names none; 0: the problem's */
    double parts_rate; /* bytes of partial results, written or read in a second; 0: not known */
    double
        combine; /* seconds of combining parts, once; 0: known to pay for long tiles alone (schedule.h) */
    /* 1: computes rows in whole groups of LISTS_GROUP, but not those groups that do not list a masked key. */
    int skips;
    /* 1: the plan weighs a kernel against those after it, up to and including the first unmarked one that
     * does not refuse. 0: the plan takes it. */
    int weighed;
};

struct kernel {
    const char *name; /* stem and level, e.g. "cpu_attention_portable" */
    tess_stage stage;
    const struct family *family;
    struct kernel_cost cost;
    const struct step_cost *steps; /* by rows, ended by 0; NULL: `cost` tells all */
    /* Heights of its tiles, ascending, ended by 0; NULL: it is of the stages, or reads rows alone, or where its
     * family walks lists, it walks tiles and image of the pass before it, which tells the seconds of both. */
    const int32_t *rows;
    const int64_t *shared; /* bytes of shared memory of a CTA, for each height; NULL: none */
    const void *own;       /* facts for the backend alone */
    /* NULL if this machine can run it, else why not. Planning does not ask: a plan may be for
     * another machine. */
    const char *(*unusable)(void);
    /* Bytes of workspace: exact; SIZE_MAX when they do not fit. scores are not part of it. Only
     * what the plan knows is set in the arguments. */
    size_t (*workspace)(const struct kernel_args *args);
    /* NULL if a run takes these tensors, else why not, in words: strides that it cannot address, say. All
     * passes are asked before the first is launched, so that a refused run has written nothing. NULL: it
     * takes all. */
    const char *(*refuses_run)(const struct kernel_args *args);
    tess_status (*run)(const struct kernel_args *args, tess_error *error);
};

/* Whether it walks tiles and image of the pass before it. */
static inline int kernel_follows(const struct kernel *kernel) {
    return !kernel->rows && kernel->family->lists;
}

/* Index of a height among the kernel's; -1: none. */
static inline int kernel_height(const struct kernel *kernel, int32_t rows) {
    for (int i = 0; kernel->rows[i]; i++)
        if (kernel->rows[i] == rows)
            return i;
    return -1;
}

/* Arguments of a fill, checked: what it reads, and the places of what it writes. The image and the pattern's
 * arrays lie in the target's memory. Items are in the order of their units, unit u being query tile u %
 * tiles of packed heads u / tiles. */
struct fill_job {
    const char *function; /* the caller's, for errors */
    const tess_target *target;
    const struct fill_shape *shape;
    const struct fill_splits *splits;
    const tess_device_pattern *pattern;
    struct fill_header *header; /* TESS_REPORT_SIZE bytes */
    struct fill_header *report; /* a copy of the header, written with it; NULL: none */
    struct fill_arrays arrays;
    struct work_item *items;
    struct combine_item *combines;
    void *scratch; /* bytes: fill_services.scratch */
    uint64_t layout;
    int64_t units;
    int64_t list_heads; /* query heads that read a list */
    int64_t list_packs; /* packed heads that read a list: pack p reads list p / list_packs */
    int strict;         /* 1: what is wrong is an error. The CPU's fill alone */
    tess_stream stream;
};

/* Arguments of tess_merge, checked; of tess_unmerge, whose parts are the whole and the kept. */
struct merge_args {
    int64_t parts;
    const tess_tensor *const *o, *const *lse; /* [parts] */
    const tess_tensor *o_out, *lse_out;       /* lse_out NULL = not wanted */
    tess_stream stream;
};

/* Arguments of tess_select, checked, with every default resolved. */
struct select_args {
    struct select_shape shape; /* lists/select_rules.h */
    const void *scores;
    tess_type type;
    int64_t stride[3];      /* batches, heads and rows, in elements */
    const int32_t *row_k;   /* [rows of all lists]; NULL: the shape's k */
    const int32_t *lengths; /* [batch]; NULL: all columns */
    const uint64_t *keep;   /* [keep_rows][words] bits of columns that are kept; NULL: none */
    tess_selected to;
    tess_stream stream;
};

/* Arguments of tess_pool, checked. Blocks are of [batch][heads][blocks]. */
struct pool_args {
    tess_pool_mode mode;
    int64_t block;
    const int32_t *lengths, *begins; /* [batch], or NULL */
    int64_t batch, heads, n, d, blocks;
    struct view x, pooled;
    tess_stream stream;
};

/* Arguments of tess_pool_score, checked. */
struct score_args {
    double scale;
    int32_t bounds, causal;
    int64_t block_q, block_kv, n_q, n_kv;
    const int32_t *lengths; /* [batch], or NULL */
    int64_t batch, heads_q, heads_kv, heads, rows, columns, d;
    struct view q, k, scores;
    tess_stream stream;
};

/* Arguments of tess_columns_convert, checked. */
struct columns_args {
    tess_columns from, to;
    int64_t words; /* 64-bit words of a row */
    tess_stream stream;
};

#define IMAGE_HEADER_MOST 512 /* bytes */

/* Devices, their memory and streams. allocate answers 64-byte aligned memory that kernels can use, or NULL: for
 * the calls that do it all. */
struct device_services {
    int32_t (*count)(void);
    tess_status (*describe)(int32_t device, tess_device_info *info, tess_error *error);
    tess_status (*target)(int32_t device, tess_target *target, tess_error *error);
    /* Bytes a second that bound predictions where a target tells none; NULL: none. */
    int64_t (*memory_rate)(int32_t architecture);
    void *(*allocate)(size_t size);
    void (*release)(void *memory);
    tess_status (*synchronize)(tess_stream stream, tess_error *error);
};

/* A part of the plan's image on the device (plan.h): its size, a multiple of CARVE_ALIGNMENT, and filling it
 * from what the plan knows. The header, up to IMAGE_HEADER_MOST bytes, is made once, with the plan: a copy
 * to the device may outlast its call. All NULL: kernels read the plan itself. */
struct image_services {
    size_t (*size)(const struct kernel_args *args);
    void (*header)(const struct kernel_args *args, void *header);
    tess_status (*upload)(const struct kernel_args *args, const void *header, void *image,
                          tess_error *error);
};

/* Parts of images of reserved plans. */
struct fill_services {
    size_t (*scratch)(
        const struct fill_shape *shape); /* bytes that the fill alone uses; NULL: none */
    /* Fills a part, in the order of the stream: without waiting or allocating. */
    tess_status (*run)(const struct fill_job *job, tess_error *error);
};

/* Calls that no plan stands behind; arguments are checked. */
struct call_services {
    tess_status (*merge)(const struct merge_args *args, tess_error *error);
    tess_status (*unmerge)(const struct merge_args *args, tess_error *error);
    tess_status (*select)(const struct select_args *args, tess_error *error);
    tess_status (*pool)(const struct pool_args *args, tess_error *error);
    tess_status (*score)(const struct score_args *args, tess_error *error);
    tess_status (*columns)(const struct columns_args *args, tess_error *error);
};

struct backend {
    const char *name;
    const struct kernel
        *kernels; /* best first: the first that does not refuse, unless it is weighed */
    int64_t n_kernels;
    int on_host; /* 1: threads of the host run kernels, and read headers and schedules of images */
    int64_t (*workers)(const tess_target *target); /* workers that splits are made for */
    struct device_services device;
    struct image_services image;
    struct fill_services fill;
    /* Words of tess_plan_print beside a pass's kernel, as snprintf writes them: what else is launched, and
     * how. 0: nothing. NULL: nothing ever. */
    int (*detail)(const struct kernel_args *args, char *room, size_t size);
    struct call_services call;
};

/* The tables. cuda_kernels() exists only in builds with CUDA; backend_get (backend.c) is the one
 * place that knows, and answers NULL for a backend that was not built. */
const struct backend *cpu_kernels(void);
const struct backend *cuda_kernels(void);
const struct backend *backend_get(tess_backend backend);

/* The CPU level in use (src/cpu). */
const char *cpu_isa(void);

#endif

/*
 * Tessera: attention over a sparse set of tiles, fused into one kernel.
 *
 * For batch b, query head h and query i, a pattern lists a set S(i) of keys. With
 * s_ij = scale * dot(q_i, k_j):
 *
 *     lse_i = log sum_{j in S(i)} exp(s_ij)               natural logarithm, fp32
 *     o_i   = sum_{j in S(i)} exp(s_ij - lse_i) * v_j
 *
 * An empty S(i), or one whose scores are all -Inf, gives o_i = 0 and lse_i = -Inf. With n_q != n_kv
 * query i stands at key position i + n_kv - n_q. Query head h reads key/value head
 * h / (heads_q / heads_kv).
 *
 * The header is ordered from simple to explicit:
 *
 *   1. the answer in one call        tess_attention, tess_attention_backward
 *   2. patterns                      tess_pattern_*
 *   3. plan once, run many times     tess_plan_*, tess_run, tess_delta; lists that change:
 *                                    tess_plan_reserve, tess_plan_fill, tess_plan_fill_run
 *   4. the three stages one by one   tess_sddmm, tess_softmax, tess_spmm
 *   5. joining partial results       tess_merge, tess_unmerge
 *   6. choosing what is listed       tess_pool, tess_pool_score, tess_select, tess_columns_convert
 *   7. queries                       version, names, devices, kernels
 *
 * Conventions, true of every function unless it says otherwise:
 *
 *   - Errors. A call returns a tess_status. A call that fails fills its `error` argument
 *     (optional: may be NULL), which names the function, the argument and, for block lists, the
 *     place; a constructor that fails sets its handle to NULL; nothing else is written. A call
 *     that succeeds leaves `error` as it was.
 *   - Threads. Functions keep no state: any number of threads may call them at once. Patterns and
 *     plans never change once made, so threads and streams may share them.
 *   - OpenMP. Work of less than 0.1 ms stays on the caller's thread; more of it goes to a team of
 *     OpenMP's threads, which `threads` of tess_pattern_shape and tess_problem limits (1: none).
 *     Where other programs or thread pools keep the processors busy, set OMP_WAIT_POLICY=passive
 *     before the process starts: threads that spin for each other cost milliseconds there. After
 *     fork() OpenMP's threads are gone: a child of a process that used a team may call with
 *     threads = 1 only, or must exec. OpenMP ends the process where the system refuses a thread.
 *   - Memory. Constructors allocate the object they return, which its _free function releases.
 *     tess_run, the stages, tess_merge, tess_unmerge and tess_select allocate, synchronise and print nothing.
 *   - Sizes and strides are 64-bit and count elements; sizes named *_size of memory count bytes.
 *     n_q and n_kv go from 1 to 2^31 - 1: of nothing leave the call out.
 *   - Every struct begins with struct_size, which its tess_*_init function sets, so that later
 *     versions can append fields: zero always means "the default". Sizes below those of version
 *     0.1 are refused. (tess_error alone may be shorter, and a struct_size of 0 will do for it: it
 *     means the size in version 0.1.)
 */
#ifndef TESSERA_H
#define TESSERA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The version of this header; tess_version tells the library's. */
#define TESS_VERSION_MAJOR 0
#define TESS_VERSION_MINOR 1
#define TESS_VERSION_PATCH 0

#if defined(__GNUC__)
#define TESS_API __attribute__((visibility("default")))
#else
#define TESS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------
 * Words shared by all sections
 * ------------------------------------------------------------------------------------------- */

/* Answers of calls. tess_status_name and tess_status_text put them in words. */
typedef enum tess_status {
    TESS_OK = 0,
    TESS_INVALID_ARGUMENT = 1,    /* a null, a size, a stride, an alignment, a string */
    TESS_INVALID_LIST = 2,        /* block lists or indices break a rule: error.fault says which */
    TESS_UNSUPPORTED = 3,         /* right, but no kernel does it: error.message says why */
    TESS_OUT_OF_MEMORY = 4,       /* an allocation failed; nothing was changed, try again */
    TESS_WORKSPACE_TOO_SMALL = 5, /* error.message tells the size needed */
    TESS_NO_CUDA = 6,             /* built without CUDA, or no driver or device on this machine */
    TESS_CUDA_ERROR = 7           /* the CUDA runtime refused; error.message carries its words */
} tess_status;

/* The seven ways in which block lists can be wrong. */
typedef enum tess_list_fault {
    TESS_FAULT_NONE = 0,
    TESS_FAULT_NULL = 1,         /* an array is missing */
    TESS_FAULT_NOT_MONOTONE = 2, /* row_ptr falls */
    TESS_FAULT_NEGATIVE = 3,     /* a count or index is below 0 (below -1 where -1 is padding) */
    TESS_FAULT_OUT_OF_RANGE = 4, /* an index is past the last block, key or tile */
    TESS_FAULT_UNSORTED = 5,     /* a row's indices fall */
    TESS_FAULT_DUPLICATE = 6,    /* a row names a block twice */
    TESS_FAULT_OVERFLOW = 7      /* row_ptr or a count goes past the end, or a size past 64 bits */
} tess_list_fault;

/*
 * The details of a failed call, owned by the caller. `function` and `argument` are literals.
 * batch, head, row and position locate a fault in a pattern, and are -1 where they do not apply:
 * `row` is a block row (a query for top-k indices), `position` the place within that row, or the
 * byte offset in a SPEC string. The message repeats that offset, and no other place.
 */
typedef struct tess_error {
    size_t struct_size;
    tess_status status;
    tess_list_fault fault;
    const char *function;
    const char *argument;
    int64_t batch, head, row, position;
    char message[256]; /* one line without a newline: what is wrong and what to change */
} tess_error;

/* Storage types. Sums are always f32 or better. The 8-bit ones (OCP 8-bit floating point) are for keys
 * and values alone: E4M3 has no Inf, its largest number is 448. */
typedef enum tess_type {
    TESS_F32 = 0,
    TESS_F16 = 1,
    TESS_BF16 = 2,
    TESS_E4M3 = 3,
    TESS_E5M2 = 4
} tess_type;

/* Backends: memory of tensors, and kernels. */
typedef enum tess_backend { TESS_CPU = 0, TESS_CUDA = 1 } tess_backend;

/* A CUDA stream (cudaStream_t): NULL is the default stream; ignored by the CPU backend. */
typedef struct CUstream_st *tess_stream;

/*
 * A view of a tensor that the caller owns: [batch, head, sequence, dim] with strides in elements.
 * The last stride is 1; the others are not negative (0 broadcasts an input), so [B,H,N,D] and
 * [B,N,H,D] both work without a copy; strides of dimensions of size 1 do not matter. Inputs may
 * overlap one another; outputs must overlap nothing, which only plain cases are checked for.
 * `data` is only read where the tensor is an input.
 */
typedef struct tess_tensor {
    size_t struct_size;
    void *data;
    tess_type type;
    int64_t size[4];
    int64_t stride[4];
} tess_tensor;

/* A contiguous [batch, heads, n, dim] view of data. */
static inline tess_tensor tess_tensor_bhnd(const void *data, tess_type type, int64_t batch,
                                           int64_t heads, int64_t n, int64_t dim) {
    tess_tensor t;
    memset(&t, 0, sizeof t);
    t.struct_size = sizeof t;
    memcpy(&t.data, &data, sizeof data); /* drops const without a cast, which C++ may warn of */
    t.type = type;
    t.size[0] = batch, t.size[1] = heads, t.size[2] = n, t.size[3] = dim;
    t.stride[0] = heads * n * dim, t.stride[1] = n * dim, t.stride[2] = dim, t.stride[3] = 1;
    return t;
}

/* A view of data stored as contiguous [batch, n, heads, dim]. */
static inline tess_tensor tess_tensor_bnhd(const void *data, tess_type type, int64_t batch,
                                           int64_t n, int64_t heads, int64_t dim) {
    tess_tensor t = tess_tensor_bhnd(data, type, batch, heads, n, dim);
    t.stride[0] = n * heads * dim, t.stride[1] = dim, t.stride[2] = heads * dim;
    return t;
}

/* tess_NAME_init() is a NAME with its struct_size set and everything else at its default. */
#define TESS_DEFINE_INIT(name)                                                                     \
    static inline name name##_init(void) {                                                         \
        name s;                                                                                    \
        memset(&s, 0, sizeof s);                                                                   \
        s.struct_size = sizeof s;                                                                  \
        return s;                                                                                  \
    }
TESS_DEFINE_INIT(tess_error)
TESS_DEFINE_INIT(tess_tensor)

/* Stages: what a kernel computes: fused attention, one stage of three, or a pass of the backward. */
typedef enum tess_stage {
    TESS_STAGE_ATTENTION = 0,
    TESS_STAGE_SDDMM = 1,
    TESS_STAGE_SOFTMAX = 2,
    TESS_STAGE_SPMM = 3,
    TESS_STAGE_DELTA = 4,            /* backward: delta_i of each query */
    TESS_STAGE_GRADIENT_KEYS = 5,    /* fused backward: dK and dV, over lists of queries */
    TESS_STAGE_GRADIENT_ROWS = 6,    /* fused backward: dQ, over lists of keys */
    TESS_STAGE_SOFTMAX_BACKWARD = 7, /* staged backward: weights and gradients of scores */
    TESS_STAGE_SPMM_TRANSPOSED = 8,  /* staged backward: dK and dV from stored tiles */
    TESS_STAGE_COLUMN_SUMS = 9,      /* fused attention: column sums, where a problem has them */
    TESS_STAGE_MLP_UP = 10,          /* MLP: activations of listed columns, less cached ones */
    TESS_STAGE_MLP_DOWN = 11         /* MLP: their products with rows of W2 */
} tess_stage;

/* Which keys each query sees: made in section 2, never changed, released by tess_pattern_free. */
typedef struct tess_pattern tess_pattern;
/* How a problem over a pattern is computed: made in section 3, never changed, released by
 * tess_plan_free. */
typedef struct tess_plan tess_plan;

/* ---------------------------------------------------------------------------------------------
 * 1. The answer in one call
 * ------------------------------------------------------------------------------------------- */

/*
 * Sparse attention, start to finish: plans, allocates, runs, waits and frees. The only run function
 * that allocates and synchronises; to run one pattern many times, make a plan (section 3).
 *
 *   backend   where the tensors' memory is (CUDA: on the current device)
 *   q         [B, heads_q, n_q, d_qk]
 *   k         [B, heads_kv, n_kv, d_qk], heads_kv divides heads_q
 *   v         [B, heads_kv, n_kv, d_v]
 *   pattern   made for n_q x n_kv, with lists for 1 or B batches and 1, heads_kv or heads_q heads
 *   o         [B, heads_q, n_q, d_v], written; q, k, v and o have one type, but o may be f32: it is
 *             not rounded then (CPU; on CUDA o of f32 takes a reserved plan)
 *   lse       [B, heads_q, n_q, 1] f32, written; NULL when not wanted
 *
 * The scale is 1/sqrt(d_qk). The pipeline (section 3) is the one of lower predicted cost, among those
 * that have kernels for the problem and find memory: the staged one allocates 4 bytes for each element
 * of the listed tiles of every query head, and without room for them the fused one runs.
 * Errors: INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, NO_CUDA, CUDA_ERROR. Online softmax: Milakov
 * and Gimelshein, arXiv:1805.02867; fused attention: Dao et al., FlashAttention, arXiv:2205.14135.
 */
TESS_API tess_status tess_attention(tess_backend backend, const tess_tensor *q,
                                    const tess_tensor *k, const tess_tensor *v,
                                    const tess_pattern *pattern, const tess_tensor *o,
                                    const tess_tensor *lse, tess_error *error);

/*
 * Gradients of sparse attention, start to finish, as tess_attention computes it: plans, allocates,
 * runs, waits and frees.
 *
 *   q, k, v, pattern   as in tess_attention
 *   o, lse             as tess_attention wrote them; o may be f32
 *   d_o                [B, heads_q, n_q, d_v], the gradient of o, of the type of q
 *   d_q                [B, heads_q, n_q, d_qk], written; NULL when not wanted
 *   d_k, d_v           as k and v, written, summed over the query heads that read a K/V head; NULL
 *                      when not wanted. Each of the three has q's type or f32; one at least is wanted
 *
 * A query that sees no key gets dQ = 0, a key that no query sees dK = dV = 0, both written. Bitwise
 * repeatable. Errors: as tess_attention's. Source: Dao et al., FlashAttention, arXiv:2205.14135,
 * appendix B; no two threads add to one sum, so passes go over queries and over keys.
 */
TESS_API tess_status tess_attention_backward(tess_backend backend, const tess_tensor *q,
                                             const tess_tensor *k, const tess_tensor *v,
                                             const tess_pattern *pattern, const tess_tensor *o,
                                             const tess_tensor *lse, const tess_tensor *d_o,
                                             const tess_tensor *d_q, const tess_tensor *d_k,
                                             const tess_tensor *d_v, tess_error *error);

/* ---------------------------------------------------------------------------------------------
 * 2. Patterns
 *
 * A pattern is, for each (batch, head), a block matrix in BCSR form: block rows of block_q queries,
 * each with the ascending list of its tiles, a tile being block_q queries by block_kv keys. The
 * last block of either side may be short. Every element of a tile is listed, or those of a diagonal
 * band, or those of a bitmask. Columns are blocks of M x 1; token lists are blocks of 1 x 1.
 * ------------------------------------------------------------------------------------------- */

/*
 * Sizes of a pattern. Zero means: n_kv as n_q; blocks of 64; one batch and one head, shared by all.
 * batch is 1 or the problem's; heads is 1, heads_kv or heads_q.
 *
 * threads limits the CPU threads that build the pattern, as tess_problem's does a plan's; 0 means
 * as many as OpenMP offers. The result does not depend on it. Set operations and transposition keep
 * the limit of the patterns that they read, the lower of two.
 */
typedef struct tess_pattern_shape {
    size_t struct_size;
    int64_t n_q, n_kv;
    int64_t block_q, block_kv;
    int64_t batch, heads;
    int64_t threads;
} tess_pattern_shape;
TESS_DEFINE_INIT(tess_pattern_shape)

/*
 * A pattern from words: terms joined by '+' (union) and '&' (intersection, which binds tighter),
 * with parentheses. Widths and counts are in tokens; p is a query's position, i + n_kv - n_q of query i.
 *
 *   dense                        every key
 *   causal                       keys up to p
 *   window(left,right)           keys p-left ... p+right; n_kv where a side has no limit
 *   blockdiag(w)                 the keys of p's own block of w tokens
 *   dilated(w,step)              keys p + t*step for |t| <= w
 *   global(n)                    the first n tokens see and are seen by all
 *   global_grid(n)               the same for n tokens, the k-th at floor(k*n_kv/n)
 *   strided(local,stride)        causal: the last `local` keys, and keys p - t*stride; with equal
 *                                arguments the strided pattern of Sparse Transformers
 *                                (Child et al., arXiv:1904.10509)
 *   fixed(l,c)                   causal: the keys of p's own block of l tokens, and the last c keys
 *                                of each block (the same paper)
 *   summary(local,stride)        causal: the last `local` keys, and keys = stride-1 mod stride
 *   segments(n1,n2,...)          documents of n1, n2, ... tokens; tokens past the last see nothing
 *   each(n1,n2,...; SPEC)        SPEC laid out anew within each document of n1, n2, ... tokens
 *   longformer(w,g)              window(w/2,w/2)+global(g)
 *                                (Beltagy et al., arXiv:2004.05150)
 *   bigbird(w,g,r,seed)          longformer(w,g) and r random blocks in each block row
 *                                (Zaheer et al., arXiv:2007.14062)
 *   random(keep,seed)            each block with probability keep
 *   random_row(keep,seed)        round(keep * block columns) blocks in each block row
 *   shared_random(keep,share,seed)  as random_row; two neighbouring block rows (2i, 2i+1) have
 *                                `share` of their blocks in common
 *
 * Draws depend on the seed, the list and the block row only, not on the number of threads. Each
 * (batch, head) of the shape draws anew; a pattern without random terms gets one list for all,
 * whatever the shape's batch and heads. Element patterns that cut a block are honoured exactly, by
 * partial tiles. Time and memory grow with the tiles listed, not with n_q * n_kv.
 *
 * each(n1,n2,...; SPEC) packs documents, as segments does: a document sees itself alone, and is to
 * SPEC the whole sequence. Positions, keys and n_kv count from its first token, so global tokens
 * and grids are its own. Random terms draw among the blocks of the pattern that it touches, for
 * each document anew; what a drawn block lists ends where the document does.
 *
 * Halves round down; the last `local` keys of strided and summary are p-local+1 ... p. window(255,0)
 * is what others call a window of 256; where n_q > n_kv and p is negative, blocks of tokens go on
 * below 0. Documents that sum to more than n_kv are refused, and within each, segments that sum to
 * more than the shortest document.
 * Errors: INVALID_ARGUMENT (position = offset in spec), OUT_OF_MEMORY.
 */
TESS_API tess_status tess_pattern_from_spec(tess_pattern **pattern, const char *spec,
                                            const tess_pattern_shape *shape, tess_error *error);

/*
 * A pattern from a boolean mask, bytes [batch, heads, n_q, n_kv] of the shape, nonzero = listed; a row
 * for all queries is to be repeated. The mask is read once and not kept. Tiles become full, band or
 * bitmask tiles, whichever is exact: a bitmask costs one bit per element, the others none.
 */
TESS_API tess_status tess_pattern_from_mask(tess_pattern **pattern, const uint8_t *mask,
                                            const tess_pattern_shape *shape, tess_error *error);

/*
 * A pattern of whole blocks from a byte for each, uint8 [batch, heads, rows, columns], nonzero =
 * listed. rows = ceil(n_q / block_q) and columns = ceil(n_kv / block_kv) of the shape. Nothing of
 * the array is kept. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY.
 */
TESS_API tess_status tess_pattern_from_blocks(tess_pattern **pattern, const uint8_t *blocks,
                                              const tess_pattern_shape *shape, tess_error *error);

/*
 * A pattern of whole blocks from a bit for each, words uint64 [batch, heads, rows,
 * ceil(columns / 64)]. Block column c is bit c % 64 of word c / 64 of its row, bit 0 being the
 * lowest; bits past the last column are ignored. Errors as those of tess_pattern_from_blocks.
 */
TESS_API tess_status tess_pattern_from_bits(tess_pattern **pattern, const uint64_t *bits,
                                            const tess_pattern_shape *shape, tess_error *error);

/*
 * A pattern of whole blocks from padded lists: the block columns of each block row, in any order.
 *
 *   indices   int32 [batch, heads, rows, capacity]; -1 is padding anywhere; a column named twice
 *             counts once
 *   counts    int32 [batch, heads, rows]: so many of a row's entries are looked at, 0 ... capacity;
 *             those after them are never read. NULL: all of them are looked at
 *   capacity  entries of each row, at least 1
 *
 * rows and columns are those of tess_pattern_from_blocks. Counts below 0 or past capacity, indices
 * below -1 or past the last column are refused. Time grows with the entries that are looked at.
 * Errors: INVALID_LIST, its fault and place (a count has no position); INVALID_ARGUMENT,
 * OUT_OF_MEMORY.
 */
TESS_API tess_status tess_pattern_from_counts(tess_pattern **pattern, const int32_t *indices,
                                              const int32_t *counts, int64_t capacity,
                                              const tess_pattern_shape *shape, tess_error *error);

/*
 * A pattern of 1 x 1 blocks from top-k indices, int32 [batch, heads, n_q, k]: the keys of each
 * query in any order; -1 is padding anywhere; a key named twice counts once. Indices below -1 or
 * past n_kv are refused. The shape's blocks are 1 or 0. It is tess_pattern_from_counts without
 * counts.
 */
TESS_API tess_status tess_pattern_from_topk(tess_pattern **pattern, const int32_t *indices,
                                            int64_t k, const tess_pattern_shape *shape,
                                            tess_error *error);

/*
 * Block lists as plain arrays, in to tess_pattern_from_lists and out of tess_pattern_lists.
 * rows = ceil(n_q / block_q), lists = batch * heads, list l = batch_index * heads + head_index.
 *
 *   row_ptr        [lists][rows + 1]  first tile of each block row in col_idx; row_ptr[0] = 0, and
 *                                     each list begins where the one before it ends
 *   col_idx        [n_tiles]          block column, strictly ascending within a row
 *   band_entry     [n_bands]          tiles (places in col_idx, ascending) that are bands
 *   band           [n_bands][2]       lo, hi: element (r, c) of the tile is listed when
 *                                     lo <= c - r <= hi
 *   bitmask_entry  [n_bitmasks]       tiles (ascending, none a band) that have a bitmask
 *   bits                              mask t is bits [t, t + 1) * block_q * block_kv, element
 *                                     (r, c) at r * block_kv + c within it; bit i of the array is
 *                                     bit i % 64 of word i / 64, of which there are
 *                                     ceil(n_bitmasks * block_q * block_kv / 64)
 *
 * All other tiles are full. Elements past n_q or n_kv do not exist, whatever a mask says. A pattern
 * keeps lists in their plainest form: tiles whose mask lists nothing are dropped, partial tiles
 * that list everything become full, bitmasks that are bands become bands. tess_pattern_lists shows
 * the result.
 */
typedef struct tess_lists {
    size_t struct_size;
    int64_t n_q, n_kv;
    int64_t block_q, block_kv;
    int64_t batch, heads;
    int64_t n_tiles, n_bands, n_bitmasks;
    const int64_t *row_ptr;
    const int32_t *col_idx;
    const int64_t *band_entry;
    const int32_t *band;
    const int64_t *bitmask_entry;
    const uint64_t *bits;
    int64_t threads; /* see tess_pattern_shape */
} tess_lists;
TESS_DEFINE_INIT(tess_lists)

/* A pattern from the caller's lists, which are checked whole and copied. n_kv and the block sizes
 * must be given; batch and heads of zero mean one. Errors: INVALID_LIST, its fault and place. */
TESS_API tess_status tess_pattern_from_lists(tess_pattern **pattern, const tess_lists *lists,
                                             tess_error *error);

/* Keys that either lists, or both list; one list combines with many as if repeated. The sizes and
 * blocks of a and b must agree. */
TESS_API tess_status tess_pattern_union(tess_pattern **pattern, const tess_pattern *a,
                                        const tess_pattern *b, tess_error *error);
TESS_API tess_status tess_pattern_intersection(tess_pattern **pattern, const tess_pattern *a,
                                               const tess_pattern *b, tess_error *error);

/*
 * Patterns of documents packed in one sequence, in their order: the queries of parts[i] follow those
 * of parts[i - 1], its keys that part's keys, and it sees its own keys alone. n_q and n_kv are the
 * sums of the parts'. Blocks are those of parts[0]; parts may have others and end within a block:
 * tiles that are cut are cut exactly. Each part has a query and a key; one with one batch or head serves
 * all. `parts` is an array of `count` patterns, of which nothing is kept. Errors: INVALID_ARGUMENT,
 * OUT_OF_MEMORY.
 */
TESS_API tess_status tess_pattern_concat(tess_pattern **pattern, const tess_pattern *const *parts,
                                         int64_t count, tess_error *error);

/*
 * A slice: what the queries query_begin ... query_end - 1 of `a` list of the keys key_begin ... key_end - 1,
 * both numbered from 0 on. Listed pairs stay as they are: a chunk of queries sees what it saw in
 * the whole, though as a pattern of its own size a spec would put it elsewhere. Blocks are those of
 * `a`; ranges may begin and end within one. Errors: INVALID_ARGUMENT (a range that is empty or not
 * within the pattern), OUT_OF_MEMORY.
 */
TESS_API tess_status tess_pattern_select(tess_pattern **pattern, const tess_pattern *a,
                                         int64_t query_begin, int64_t query_end, int64_t key_begin,
                                         int64_t key_end, tess_error *error);

/* Queries and keys exchanged: block_kv x block_q tiles of an n_kv x n_q pattern. */
TESS_API tess_status tess_pattern_transpose(tess_pattern **pattern, const tess_pattern *a,
                                            tess_error *error);

/* The arrays of a pattern, borrowed: valid until the pattern is freed. */
TESS_API tess_status tess_pattern_lists(const tess_pattern *pattern, tess_lists *lists,
                                        tess_error *error);

/*
 * The keys that query `query` of list (batch, head) sees, ascending, written to keys as far as
 * capacity goes; *count is how many there are. keys may be NULL when capacity is 0. batch and head
 * index the pattern's own lists; where the pattern has one for all, any index from 0 on will do.
 */
TESS_API tess_status tess_pattern_row(const tess_pattern *pattern, int64_t batch, int64_t head,
                                      int64_t query, int64_t *keys, int64_t capacity,
                                      int64_t *count, tess_error *error);

/* Parts of a pattern, over all its lists. */
typedef struct tess_pattern_info {
    size_t struct_size;
    int64_t n_q, n_kv;
    int64_t block_q, block_kv;
    int64_t batch, heads;
    int64_t full_tiles, band_tiles, bitmask_tiles;
    int64_t pairs;       /* listed query-key pairs */
    int64_t empty_rows;  /* queries that see no key */
    int64_t memory_size; /* bytes that the pattern occupies */
} tess_pattern_info;
TESS_DEFINE_INIT(tess_pattern_info)

/* Fills *info. Errors: INVALID_ARGUMENT. */
TESS_API tess_status tess_pattern_describe(const tess_pattern *pattern, tess_pattern_info *info,
                                           tess_error *error);

/* Frees a pattern; NULL is allowed. Plans made from it live on. */
TESS_API void tess_pattern_free(tess_pattern *pattern);

/* ---------------------------------------------------------------------------------------------
 * 3. Plan once, run many times
 * ------------------------------------------------------------------------------------------- */

/* FUSED: one kernel, nothing between the stages in memory. STAGED: SDDMM, softmax and SpMM, with
 * the scores in memory between them. */
typedef enum tess_pipeline { TESS_FUSED = 0, TESS_STAGED = 1 } tess_pipeline;

/* Operations that the runs of a plan compute. */
typedef enum tess_operation {
    TESS_ATTENTION = 0,
    TESS_ATTENTION_BACKWARD = 1,
    TESS_MLP = 2
} tess_operation;

/* Activations of an MLP. GELU: x Phi(x); by tanh: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
 * (Hendrycks and Gimpel, arXiv:1606.08415); SiLU: x / (1 + exp(-x)). */
typedef enum tess_activation {
    TESS_GELU = 0,
    TESS_GELU_TANH = 1,
    TESS_SILU = 2,
    TESS_RELU = 3,
    TESS_IDENTITY = 4
} tess_activation;

/* Scalings: what shares a scale of keys or values; an element is its stored value times its scale. */
typedef enum tess_scaling {
    TESS_SCALE_NONE = 0,
    TESS_SCALE_TENSOR = 1,
    TESS_SCALE_HEAD = 2,  /* the keys of a K/V head, of all batches */
    TESS_SCALE_TOKEN = 3, /* a row */
    TESS_SCALE_GROUP = 4  /* scale_group dims of a row */
} tess_scaling;

/* Gradients that a backward can be asked for. */
enum {
    TESS_GRADIENT_Q = 1,
    TESS_GRADIENT_K = 2,
    TESS_GRADIENT_V = 4,
    TESS_GRADIENT_ALIBI = 8, /* slopes */
    TESS_GRADIENT_SINK = 16  /* sinks */
};

/*
 * A problem: what is to be computed. tess_problem_from_tensors fills it in.
 *
 *   sizes      1 or more; d_qk and d_v up to 65536, batch * heads_q up to 2^31 - 1
 *   scale      within the range of f32; 0 means 1/sqrt(d_qk)
 *   alignment  bytes, a power of two up to 4096, 0 means 16: for q, k, v, o and their gradients, data
 *              pointers, and all strides but the last times the element size, are multiples of it; a
 *              run refuses views that are not. lse needs no more than its type's; scores too, but on CUDA
 *              as much as this, 16 at most
 *   threads    the most CPU threads that planning and a run use, 0 ... 65536; 0 means as many as
 *              OpenMP offers while planning. Never more than the machine's processors (or 16, if
 *              those are fewer), which also bounds the workspace. Results do not depend on it
 *   kernel     name of the kernel to use for its stage (tess_kernel_describe), refused where the
 *              pipeline has no such stage; NULL lets the plan choose. The string is not kept
 *   tile_rows  fused: rows of a query tile, and keys of a key tile of the backward, refused where the
 *              kernel does not have them; 0 lets the plan choose
 *   part_keys  fused: the fewest keys (of a key tile, queries) of a part of a split tile, rounded
 *              up to 128; 0 means the default, with which long tiles are split where that
 *              saves more than combining costs; INT64_MAX never splits
 *
 * Score modifiers, in the order in which they apply; 0 is none, and costs nothing:
 *
 *   softcap    c from 2^-64 to 2^64: a score s becomes c tanh(s / c) (Gemma 2, arXiv:2408.00118)
 *   alibi      1: slope_h (j - p_i) is added, for query position p_i and key position j, with the
 *              slopes that a run is given (Press et al., ALiBi, arXiv:2108.12409)
 *   sink       1: a logit per head, that a run is given, joins the denominator and carries no value:
 *              o is multiplied by e^lse / (e^lse + e^sink). lse is told without it, and an empty row
 *              stays 0 (gpt-oss, arXiv:2508.10925)
 *   dropout    p in 0 ... 65535/65536, rounded to units of 1/65536: a weight becomes 0 with
 *              probability p, else 1/(1 - p) of itself; lse does not know. What is dropped depends
 *              on the seed that a run is given, on batch, head, query and key, and on nothing else
 *              (Philox4x32-7: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011)
 *
 * Positions (ALiBi) and draws (dropout) are numbered over the whole problem, of which this problem may
 * be a slice. Sizes of 0 mean this problem's own:
 *
 *   batch_offset, head_offset, query_offset, key_offset
 *              whole-problem numbers of the first batch, query head, query and key
 *   whole_heads_q, whole_n_q, whole_n_kv
 *              sizes of the whole problem; query i stands at position
 *              p_i = i + query_offset + whole_n_kv - whole_n_q
 *   key_positions
 *              1: a run is given the position of each key, any number; dropout counts modulo 2^32
 *
 * The backward (docs/semantics.md, "Backward"). With P_ij = exp(s_ij - lse_i), dP_ij = dO_i . v_j and
 * delta_i = dO_i . o_i - dlse_i:
 *
 *     dS_ij = P_ij (dP_ij - delta_i)      dQ_i = scale sum_j dS_ij k_j
 *     dV_j  = sum_i P_ij dO_i             dK_j = scale sum_i dS_ij q_i
 *
 *   operation  what runs compute; 0 is attention
 *   gradients  backward: which of TESS_GRADIENT_... runs write; 0 means Q, K and V. ALIBI and SINK need
 *              a problem with alibi and sink
 *   spill_size backward: the most bytes of workspace in which gradients of scores, or sums of dQ, may
 *              stand between two passes; 0 means the plan's choice, up to 1.2 GB. Results hold for any value.
 *              The staged pipeline needs its scores, and does not look at it
 *   o_rest     1: runs are given o_rest, what rounding took from o: attention writes it, the
 *              backward adds it to o
 *
 * CUDA's fused attention has up to 1024 dims, reserved plans there d_qk up to 576 and d_v up to 512, its
 * fused backward up to 256; the staged pipeline any number.
 *
 * Keys and values as caches hold them (docs/semantics.md, "Caches"): fused attention alone.
 *
 *   k_type, v_type
 *              types of K and V, 0 as `type`: TESS_F16 and TESS_BF16 beside q of f32 and of the same
 *              type, TESS_E4M3 and TESS_E5M2 beside any
 *   v_in_k     1: V is the first d_v dims of K, type and scales included, and a run is given none
 *   page_size  rows of a page, a power of two up to 4096; 0: not paged. K and V are [pages, heads_kv,
 *              page_size, dims], and a run is given the page table. Key j of batch b is row
 *              j % page_size of page page_table[b][j / page_size]; of a page that there is not (below
 *              0, or at or past the last) no key is listed, and nothing is read
 *   k_scale, v_scale
 *              what scales are shared by; for 8-bit types alone
 *   scale_group
 *              dims of a scale, 0: 128. Divides the dims of K's view where k_scale is TESS_SCALE_GROUP,
 *              and d_v where v_scale is, or v_in_k
 *   rope_dims  how many of the last dims of q and k a run is given as second views, q_rope and k_rope;
 *              0: none. K then has d_qk - rope_dims dims, scales of K are of these alone, and V in K is
 *              the first d_v of them
 *   k_rope_type
 *              type of k_rope, 0: that of K, or `type` where K has 8 bits. TESS_F16 and TESS_BF16 beside
 *              q of f32 and of the same type
 *   o_f32      1: o is f32 beside q of any type, and is not rounded. The backward takes o of either
 *              type, and does not look at it
 *
 * The page table is [batch][ceil(n_kv / page_size)], aligned to 4 bytes, and is read when a run runs; its rows
 * may be parts of longer ones (page_table_stride of a run). pages * page_size is at most 2^31 - 1. CUDA has
 * all of this for reserved plans. Beside q of f32 it has K and V of 16 bits, of one type with k_rope, and of
 * 8 bits. Rows are whole pieces of 16 bytes: 8 dims of 16 bits, 16 of 8 bits. Groups have 128 dims, and divide
 * d_qk - rope_dims where K has scales and a second view. Scales of values by token or group go with products
 * in bf16 alone: q of f32 or bf16, and no f16 beside it.
 *
 * Column sums, by which columns are chosen for later steps (docs/semantics.md, "Column sums"): fused attention
 * alone. Of batch b, query head h, group g of sum_rows queries and key j, with a reference r of an earlier step,
 *
 *     sums[b][h][g][j] = sum over queries i of the group that list j of exp(s_ij - r_i)
 *
 *   sum_rows   queries of a group, the last may have fewer; 0: no sums. On CUDA 8, 16, 32, 64, 128, 192 or 256.
 *              A multiple of the pattern's block_q, or a divisor; of filled lists on CUDA a divisor
 *   sum_type   TESS_F32 or TESS_BF16, of the sums that a run writes
 *
 * The MLP on lists (docs/semantics.md, "MLP"): the columns of its hidden layer that a group of rows computes
 * are listed, and no others. With M = n_q, K = d_qk, F = n_kv and N = d_v:
 *
 *     h_if = activation(sum over k of x_ik W1_fk + bias_f)   rounded to `type`, of each listed column f
 *     o_i  = sum over listed f of h_if W2_f + bias_out
 *
 * x [B, 1, M, K] stands as q, W1 [B, 1, F, K] as k, W2 [B, 1, F, N] as v and o [B, 1, M, N]; a batch stride of 0
 * shares weights. torch.nn.Linear stores W1 so, and W2 transposed, [N, F]: hand over a contiguous transpose. Groups
 * of rows are the pattern's block rows, of which every block is whole; on CUDA groups have 64 rows or more. heads_q
 * and heads_kv are 1, scale is 0 or 1, and nothing else of attention alone is given. Runs that are given cached
 * activations compute deltas: see tess_arguments.
 *
 *   activation   TESS_MLP: which; 0 is TESS_GELU
 *
 * Lists that live on the device (tess_plan_reserve) on the CPU:
 *
 *   strict     1: a fill whose lists have a fault or an overflow answers INVALID_LIST, with its place. 0: it
 *              is counted in the report alone
 */
typedef struct tess_problem {
    size_t struct_size;
    tess_pipeline pipeline;
    tess_type type;
    int64_t batch, heads_q, heads_kv;
    int64_t n_q, n_kv;
    int64_t d_qk, d_v;
    double scale;
    int64_t alignment;
    int64_t threads;
    const char *kernel;
    int64_t tile_rows;
    int64_t part_keys;
    double softcap;
    int64_t alibi;
    int64_t sink;
    double dropout;
    int64_t batch_offset, head_offset, query_offset, key_offset;
    int64_t whole_heads_q, whole_n_q, whole_n_kv;
    int64_t key_positions;
    tess_operation operation;
    int64_t gradients;
    int64_t spill_size;
    int64_t o_rest;
    tess_type k_type, v_type;
    int64_t v_in_k;
    int64_t page_size;
    tess_scaling k_scale, v_scale;
    int64_t scale_group;
    int64_t rope_dims;
    tess_type k_rope_type;
    int64_t o_f32;
    int64_t strict;
    int64_t sum_rows;
    tess_type sum_type;
    tess_activation activation;
} tess_problem;
TESS_DEFINE_INIT(tess_problem)

/* Fills sizes, types and the largest alignment up to 16 that the tensors have (o may be NULL: then
 * make sure that it has the same); the other fields get their defaults. Of keys in pages the rows of a
 * page are taken for n_kv: set page_size to it, and n_kv to the capacity. Where the last dims have
 * views of their own, set rope_dims and k_rope_type, and add rope_dims to d_qk if q lacks them. */
TESS_API tess_status tess_problem_from_tensors(tess_problem *problem, const tess_tensor *q,
                                               const tess_tensor *k, const tess_tensor *v,
                                               const tess_tensor *o, tess_error *error);

/*
 * The machine to plan for. tess_target_query reads one off; or fill it in by hand, to plan for and
 * look at a machine that is not here. Plans depend on these numbers, never on what else runs.
 * Device -1 is the current one.
 */
typedef struct tess_target {
    size_t struct_size;
    tess_backend backend;
    int32_t device;                  /* ordinal, CUDA */
    int32_t architecture;            /* CUDA: 10 * major + minor, e.g. 90 */
    int32_t multiprocessors;         /* CUDA */
    int64_t shared_memory_per_block; /* CUDA: bytes that a block can ask for, 0 = unknown */
    int64_t cache_size;              /* bytes of last-level cache, 0 = unknown */
    int64_t memory_rate; /* CUDA: bytes a second, 0 = that of the architecture's fastest memory */
} tess_target;
TESS_DEFINE_INIT(tess_target)

/* Fills *target from a device of this machine; -1 is the current device. Errors: INVALID_ARGUMENT
 * (no such device), NO_CUDA, CUDA_ERROR. */
TESS_API tess_status tess_target_query(tess_target *target, tess_backend backend, int32_t device,
                                       tess_error *error);

/*
 * A plan: the chosen kernels, the pattern packed into per-query-tile lists, and the schedule.
 * It copies what it needs: pattern and problem may be freed. For an MLP a pattern of NULL lists all columns.
 * target NULL means this machine's CPU;
 * tensors, scores and workspace of a run live in the target's memory. TESSERA_ISA (section 6) is
 * read here. Time and memory grow with the tiles listed and the query tiles, of up to 256 queries,
 * that they are packed into. Errors: INVALID_ARGUMENT, UNSUPPORTED (a kernel
 * named that does not exist or cannot do this; nothing falls back silently), OUT_OF_MEMORY,
 * NO_CUDA.
 */
TESS_API tess_status tess_plan_create(tess_plan **plan, const tess_problem *problem,
                                      const tess_pattern *pattern, const tess_target *target,
                                      tess_error *error);
TESS_API void tess_plan_free(tess_plan *plan); /* NULL is allowed */

/* Bytes of workspace that tess_run needs: exact. The memory is the caller's, aligned to 64 bytes,
 * needs no initialisation, and serves one run at a time. 0 for a NULL plan. */
TESS_API size_t tess_plan_workspace_size(const tess_plan *plan);

/*
 * CUDA plans have an image: their lists and schedule in device memory. The caller allocates
 * tess_plan_image_size bytes on the target's device (exact; 256-byte aligned, as cudaMalloc gives;
 * 0 for NULL, and for CPU plans that are not reserved: tess_plan_reserve) and fills them once by
 * tess_plan_upload; after that the image is only read, and runs on any number of streams may share
 * it. The upload is ordered by the stream and may read the plan until the stream has passed it: do
 * not free the plan before. It can be captured in a graph; the plan then outlives the last replay.
 * Errors: INVALID_ARGUMENT (also where the current device is not the target's), WORKSPACE_TOO_SMALL,
 * CUDA_ERROR.
 */
TESS_API size_t tess_plan_image_size(const tess_plan *plan);
TESS_API tess_status tess_plan_upload(const tess_plan *plan, void *image, size_t image_size,
                                      tess_error *error, tess_stream stream);

/*
 * A base: outputs that a run of attention starts from, those of a cached step, a second cache, a shared
 * prefix, the ranks before in a ring. With A and L the run's own o and lse, A without the sink:
 *
 *   MERGE   lse = log(exp(base_lse) + exp(L))                                natural logarithm
 *           o   = exp(base_lse - lse) * base_o + exp(L - lse) * A            the base is one more part
 *   ADD     o   = base_o + beta * A, one rounding                            lse = L
 *
 * The sink enters once: with MERGE after joining, so base_o has none in it; with ADD into A. Dropout is A's
 * alone. An empty row adds nothing: o is base_o, with MERGE where there is no sink. With MERGE a base_lse of
 * -Inf says that the base is empty there and its o is not read; NaN or +Inf makes the row NaN.
 */
typedef enum tess_base { TESS_BASE_NONE = 0, TESS_BASE_MERGE = 1, TESS_BASE_ADD = 2 } tess_base;

/*
 * Tensors and arrays that a run reads and writes. Shapes as in tess_attention, sizes as in the problem.
 * Each call says which of them it uses; the others may be NULL.
 */
typedef struct tess_arguments {
    size_t struct_size;
    const tess_tensor *q, *k, *v;
    const tess_tensor *o;
    const tess_tensor *lse; /* NULL when not wanted */
    float *scores;          /* BCSR scores, section 4 */
    void *workspace;
    size_t workspace_size;
    const void *image; /* CUDA and reserved plans: the plan's image, filled; others: NULL */
    size_t image_size;
    /* Arrays that the problem's modifiers need, in the target's memory, read when the run runs; NULL where
     * the problem has no such modifier. */
    const float *alibi;           /* [heads_q] slopes */
    const float *sink;            /* [heads_q] logits, natural logarithm, -Inf: none */
    const uint64_t *seed;         /* one word, aligned to 8 bytes, for dropout */
    const int32_t *key_positions; /* [n_kv] */
    const tess_tensor *o_rest;    /* like o, in the problem's type: see tess_problem */
    /* Backward. q, k, v, o and lse are read there, and o may be f32. */
    const tess_tensor *d_o;   /* like o, in the problem's type; read */
    const tess_tensor *d_lse; /* like lse, read; NULL: zeros */
    const tess_tensor *delta; /* like lse: tess_delta writes it; a run given it reads no o */
    /* Written, in the problem's type or f32; NULL where the problem does not ask for it. */
    const tess_tensor *d_q; /* like q */
    const tess_tensor *d_k; /* like k */
    const tess_tensor *d_v; /* like v */
    float *d_alibi;         /* [heads_q], written, summed over the batch; NULL likewise */
    float *d_sink;          /* [heads_q], likewise */
    /* Caches' arrays, where the problem says so; NULL where it does not. Scales are f32, and lie as K and
     * V do: TENSOR [1, 1, 1, 1], HEAD [1, heads_kv, 1, 1], TOKEN [.., .., .., 1] with the batch, heads
     * and rows of K or V, or their pages, GROUP [.., .., .., dims / scale_group]. */
    const int32_t *page_table; /* [batch][ceil(n_kv / page_size)] */
    const tess_tensor *k_scale, *v_scale;
    /* The last rope_dims dims of q, else as q, which then has the first d_qk - rope_dims. NULL: q has all. */
    const tess_tensor *q_rope;
    const tess_tensor *k_rope; /* the last rope_dims dims of k, in k_rope_type, else as k */
    /* From a batch's row of page_table to the next, in entries: ceil(n_kv / page_size) or more; 0: as many. */
    int64_t page_table_stride;
    /* A base: tess_run of fused attention, or ADD of an MLP, chosen for each run. Any plan takes one. */
    tess_base base;
    const tess_tensor *base_o; /* like o, of its type; may be o itself, with its data and strides */
    const tess_tensor
        *base_lse; /* MERGE: like lse, in memory of its own, as all of a row's CTAs read it */
    double beta;   /* ADD: 0 means 1 */
    /* Tensors of column sums; NULL unless the problem has sum_rows. */
    const tess_tensor *lse_reference; /* like lse, read: -Inf leaves a query out */
    const tess_tensor
        *column_sums; /* [B, heads_q, ceil(n_q / sum_rows), n_kv], all of it written */
    /*
     * MLP. Biases are of the problem's type or f32, NULL: none. `activations` is a cache of h, [B, 1, n_kv, n_q] of
     * the problem's type, rows of a column side by side; NULL: none. Listed columns of it are written, others neither
     * read nor written:
     *
     *     base         activations   computes
     *     NONE         NULL          o = h W2 + bias_out
     *     NONE         given         the same, and activations = h: the step of caching
     *     ADD          given         o = base_o + beta (h - activations) W2, then activations = h: a delta
     *     ADD          NULL          o = base_o + beta (h W2 + bias_out)
     *
     * base_o may be o itself, the cache of outputs: a group that lists nothing then leaves it as it is. h of a column
     * does not depend on what else is listed, so a delta at the step of caching is exactly 0.
     */
    const tess_tensor *bias;        /* [1, 1, 1, n_kv] */
    const tess_tensor *bias_out;    /* [1, 1, 1, d_v]; a delta has no use for it */
    const tess_tensor *activations; /* read with a base, and written */
} tess_arguments;
TESS_DEFINE_INIT(tess_arguments)

/*
 * Runs the plan's operation: attention, q, k, v and a base if given to o and lse; its backward, q, k, v, lse,
 * d_o, d_lse if given, and delta or else o to the gradients that the problem names. The lse may be
 * that of a larger set of keys; an MLP, x, W1, W2, biases, a base and cached activations if given to o and
 * activations. Arguments of other operations are refused. Uses the workspace;
 * scores stay NULL, a staged plan keeps them in the workspace. Bitwise repeatable for one plan on one
 * device and the same outputs wanted; on the CPU the bits are the same for any number of threads. On
 * CUDA the call returns before the work is done, is ordered by the stream, and can be captured in a
 * graph.
 * Errors: INVALID_ARGUMENT (tensors that differ from the plan, misaligned data or workspace, a current
 * device other than the target's), WORKSPACE_TOO_SMALL, CUDA_ERROR, UNSUPPORTED (views that TMA cannot
 * address, in kernels of Hopper that copy by nothing else, those reserved for blocks of 128 queries or more of 65
 * to 128 dims: a stride of 2^40 bytes or more, or of 0 where the driver refuses it; or a driver without
 * cuTensorMapEncodeTiled. Nothing is written then, and the problem can name another kernel).
 */
TESS_API tess_status tess_run(const tess_plan *plan, const tess_arguments *arguments,
                              tess_error *error, tess_stream stream);

/*
 * delta_i = sum_d dO_id o_id - dlse_i of every query, by a plan whose operation is
 * TESS_ATTENTION_BACKWARD. Uses d_o, o, o_rest where the problem has it, d_lse if given, and the
 * workspace that tess_plan_stage_workspace_size tells of TESS_STAGE_DELTA; writes delta. A run that
 * is given delta needs no o, but the same d_lse: the backward of a merge runs each part with the lse
 * of the whole and the delta of the whole. Errors are those of tess_run.
 */
TESS_API tess_status tess_delta(const tess_plan *plan, const tess_arguments *arguments,
                                tess_error *error, tess_stream stream);

/* A plan in numbers. */
typedef struct tess_plan_info {
    size_t struct_size;
    int64_t tile_rows;        /* rows of a query tile */
    int64_t query_tiles;      /* over all lists */
    int64_t packed_keys;      /* keys listed by the tiles, each once a tile */
    int64_t pairs;            /* attended pairs over all batches and query heads */
    int64_t tile_heads;       /* fused: query heads packed in a tile (GQA packing) */
    int64_t work_items;       /* over all batches and heads, these once, splits counted */
    int64_t split_tiles;      /* query tiles that are split and merged */
    int64_t memory_size;      /* bytes that the plan occupies */
    double predicted_seconds; /* tess_plan_predict, of reserved plans at capacity */
    /* Key tiles of the backward, where dK or dV is wanted; else 0. Items and splits above are those of query
     * tiles and of key tiles; fused, without dQ and slopes wanted, there are no query tiles. */
    int64_t tile_keys;       /* keys of a key tile */
    int64_t packed_queries;  /* listed by the key tiles, each once a tile */
    int64_t bytes;           /* q, k, v and o that a run moves at least: those listed, once */
    int64_t fill_run_exact;  /* 1: reserved; tess_plan_fill_run has the bits of fill and run */
    int64_t fill_run_direct; /* 1: tess_plan_fill_run reads the lists without an image */
} tess_plan_info;
TESS_DEFINE_INIT(tess_plan_info)

/* Fills *info. Errors: INVALID_ARGUMENT. */
TESS_API tess_status tess_plan_describe(const tess_plan *plan, tess_plan_info *info,
                                        tess_error *error);

/* Seconds that a run is predicted to take: one thread on the CPU, the device on CUDA, there never less than
 * the device's memory takes for the bytes. keys: those that a fill lists, as tess_fill_report counts them, -1
 * for all that the capacity holds; plans that are not reserved know theirs. 0 for a NULL plan. */
TESS_API double tess_plan_predict(const tess_plan *plan, int64_t keys);

/*
 * A plan in words: kernels chosen and why others were not, lists, schedule, cost. Writes at most
 * size bytes to text, always ending in NUL when size > 0, and returns the length of the whole text
 * without the NUL, as snprintf does.
 */
TESS_API size_t tess_plan_print(const tess_plan *plan, char *text, size_t size);

/*
 * Lists that live on the device. Where lists change from run to run (a top-k, a mask, a cache that
 * grows), a plan is reserved once for a capacity; each step then fills the plan's image and runs:
 *
 *     tess_plan_reserve    kernels and exact sizes, no list
 *     tess_plan_fill       a device pattern into the image, on the stream; waits for nothing
 *     tess_run             reads lists, counts and splits from the image
 *     tess_plan_fill_run   both, in one call
 *
 * What a list says is not refused: what cannot be is not listed, and counted in the report, which also
 * tells the place of the first. Read it (tess_plan_report), or on the CPU set `strict` of the problem.
 */

/* How a device pattern says what its block rows list. A block column is block_kv keys. */
typedef enum tess_form {
    TESS_INDICES = 0,    /* padded block columns of each block row */
    TESS_BLOCK_ROWS = 1, /* row_ptr and block columns */
    TESS_BLOCK_BITS = 2, /* one bit for each block */
    TESS_RANGES = 3,     /* up to four ranges of keys for each block row */
    TESS_MASK = 4        /* one byte for each query and key */
} tess_form;

/* Promises of the caller about indices; a sum of these. Of promises that do not hold, which keys are listed
 * is not defined; memory outside of keys and lists is never touched. */
typedef enum tess_promise {
    TESS_DISTINCT = 1,   /* no row names a block twice */
    TESS_ASCENDING = 2,  /* indices of a row ascend */
    TESS_PADDED_LAST = 4 /* after a row's first -1 all are */
} tess_promise;

/*
 * A view of lists that the caller owns, in the memory of the plan's target. rows = ceil(n_q / block_q),
 * columns = ceil(n_kv / block_kv), lists = batch * heads. block_q and block_kv have no default, but that
 * block_kv of RANGES may be 0 for 1. n_kv, batch and heads of zero mean what they mean in
 * tess_pattern_shape. An array holds what its form needs, the others are NULL:
 *
 *   indices    INDICES: int32 [lists][rows][capacity], block columns, -1 is padding anywhere.
 *              BLOCK_ROWS: int32 [capacity], block columns, -1 is padding.
 *              RANGES: int32 [lists][rows][capacity][2], keys begin ... end - 1. A number x >= 0
 *              counts from key 0; x < 0 counts -1 - x keys back from today's length: {0, -1} is
 *              all keys, {-257, -1} the last 256. Ends are cut to 0 ... length; keys that several
 *              ranges name count once
 *   counts     INDICES, RANGES: int32 [lists][rows], entries of a row to look at; NULL: capacity
 *   row_ptr    BLOCK_ROWS: int64 [lists][rows + 1], first entry of each row in indices
 *   bits       BLOCK_BITS: uint64 [lists][rows][ceil(columns / 64)]; block column c is bit c % 64 of
 *              word c / 64. Bits past the last column are ignored; those past
 *              today's length list nothing, and count toward the capacity
 *   mask       MASK: bytes [lists][n_q][n_kv], any alignment, nonzero = listed. Blocks whose elements are all
 *              listed become full tiles, others bitmask tiles, element for element. Fills are fastest
 *              where rows begin at multiples of 4 bytes
 *   lengths    int32 [batch of the problem], keys there are today, 0 ... n_kv; NULL: n_kv
 *   capacity   INDICES, RANGES, MASK: entries of a row, up to columns, and 4 ranges; of MASK, blocks with a
 *              listed element. BLOCK_ROWS, BLOCK_BITS: entries over all lists, of BLOCK_BITS up to all
 *              blocks; BLOCK_ROWS may be padded beyond. 0: columns, 4 ranges, all blocks
 *   cut_lo, cut_hi
 *              an element of a listed block counts only where cut_lo <= j - p_i <= cut_hi: INT64_MIN
 *              and 0 are causal, with exact diagonal tiles. Both 0: no cut
 *   promises   sum of tess_promise
 *
 * Keys from a batch's length on are not listed, and are not read. With lengths query i of batch b
 * stands at p_i = i + lengths[b] - n_q; ALiBi counts from there too, in the place of n_kv.
 */
typedef struct tess_device_pattern {
    size_t struct_size;
    tess_form form;
    int64_t n_q, n_kv;
    int64_t block_q, block_kv;
    int64_t batch, heads;
    int64_t capacity;
    int64_t cut_lo, cut_hi;
    int64_t promises;
    const int32_t *indices;
    const int32_t *counts;
    const int64_t *row_ptr;
    const uint64_t *bits;
    const int32_t *lengths;
    const uint8_t *mask;
} tess_device_pattern;
TESS_DEFINE_INIT(tess_device_pattern)

/*
 * Token lists, TESS_INDICES of blocks of 1 x 1: the keys of each query in any order, -1 is padding.
 *
 *   indices   int32 [batch, heads, n_q, k]; NULL will do for tess_plan_reserve
 *   counts    int32 [batch, heads, n_q]: so many of a query's keys are looked at; NULL: k
 *   k         keys of a query at most, 1 ... n_kv
 *
 * batch and heads are those of the lists: 1, or as in tess_pattern_shape.
 */
static inline tess_device_pattern tess_device_pattern_topk(const int32_t *indices,
                                                           const int32_t *counts, int64_t batch,
                                                           int64_t heads, int64_t n_q, int64_t n_kv,
                                                           int64_t k) {
    tess_device_pattern p = tess_device_pattern_init();
    p.form = TESS_INDICES;
    p.n_q = n_q, p.n_kv = n_kv, p.block_q = 1, p.block_kv = 1;
    p.batch = batch, p.heads = heads, p.capacity = k > 0 ? k : -1; /* 0 would be all columns */
    p.indices = indices, p.counts = counts;
    return p;
}

/* Block lists, likewise: the block columns of each block row, indices int32 [batch, heads,
 * ceil(n_q / block_q), capacity], counts int32 [batch, heads, ceil(n_q / block_q)] or NULL. capacity is
 * at most ceil(n_kv / block_kv). */
static inline tess_device_pattern tess_device_pattern_blocks(const int32_t *indices,
                                                             const int32_t *counts, int64_t batch,
                                                             int64_t heads, int64_t n_q,
                                                             int64_t n_kv, int64_t block_q,
                                                             int64_t block_kv, int64_t capacity) {
    tess_device_pattern p =
        tess_device_pattern_topk(indices, counts, batch, heads, n_q, n_kv, capacity);
    p.block_q = block_q, p.block_kv = block_kv;
    return p;
}

/*
 * A plan without lists, for every pattern of the form, sizes, capacity and cut of `pattern`, whose
 * arrays and promises are not looked at. n_kv is the capacity of the cache. tess_plan_free frees it;
 * tess_plan_workspace_size and tess_plan_image_size are exact for the capacity, on the CPU too.
 *
 * Blocks that can be filled: block_q a power of two up to 64 or a multiple of 64; block_kv a power of
 * two up to 128, and 1 for RANGES. A query tile stays within a block row.
 * Errors: as those of tess_plan_create, INVALID_ARGUMENT also for block_q or block_kv that is not given and
 * for a capacity past the columns; UNSUPPORTED also for the staged pipeline, the backward, slices
 * of a longer problem (query_offset, key_offset, whole_n_q, whole_n_kv, key_positions), blocks that
 * cannot be filled and, on CUDA, strict and what no kernel that walks filled lists computes.
 */
TESS_API tess_status tess_plan_reserve(tess_plan **plan, const tess_problem *problem,
                                       const tess_device_pattern *pattern,
                                       const tess_target *target, tess_error *error);

/*
 * Fills a reserved plan's image (tess_plan_image_size bytes, 256-byte aligned, of the target's memory)
 * from lists as they are when the stream reaches it. Form, sizes, capacity and cut are those that the
 * plan was reserved for; arrays and promises may change from fill to fill. Allocates nothing and waits
 * for nothing; the image is the same for any number of threads. It serves one stream at a time.
 *
 *   index below -1, at or past the last block or today's length: not listed, a fault
 *   index twice: counts once, but where DISTINCT is promised
 *   count below 0, row_ptr that falls or is negative: the row is empty, a fault
 *   count or blocks past the capacity: the row is empty, an overflow
 *   length below 0 or past n_kv: the batch has no keys, a fault
 *
 * Errors: INVALID_ARGUMENT (a pattern of other sizes, a missing or needless array, a plan that was not
 * reserved, an image that is NULL or misaligned), WORKSPACE_TOO_SMALL, CUDA_ERROR; where the problem is
 * strict INVALID_LIST, with the fault and its place as the report tells them: runs refuse the image then.
 */
TESS_API tess_status tess_plan_fill(const tess_plan *plan, const tess_device_pattern *pattern,
                                    void *image, size_t image_size, tess_error *error,
                                    tess_stream stream);

/*
 * Findings of a fill, over all batches. first_fault is the lowest fault or overflow, by its kind in the order
 * of tess_list_fault, then by batch, head, row and position. -1 stands for what does not apply, and comes
 * before all others:
 *
 *   NOT_MONOTONE   row_ptr falls: batch, head, row
 *   NEGATIVE       an index below -1: batch, head, row, position; a count or row_ptr: no position; a
 *                  length: batch alone
 *   OUT_OF_RANGE   an index at or past the last block or today's length; a length past n_kv: batch alone
 *   OVERFLOW       a count or blocks past the capacity: batch, head, row
 *
 * batch is the problem's, head that of the lists, row the block row, position the entry within the row.
 */
typedef struct tess_fill_report {
    size_t struct_size;
    int64_t faults;              /* entries, rows and lengths that were not to be */
    int64_t overflows;           /* block rows that are empty because they did not fit */
    int64_t keys;                /* keys that query tiles list, each once a tile */
    int64_t items;               /* work items, splits counted */
    int64_t pairs;               /* attended pairs over all query heads */
    tess_list_fault first_fault; /* TESS_FAULT_NONE: no faults and no overflows */
    int64_t batch, head, row, position;
} tess_fill_report;
TESS_DEFINE_INIT(tess_fill_report)

/* Bytes at the beginning of an image that hold the report. */
#define TESS_REPORT_SIZE 256

/*
 * tess_plan_fill, then tess_run over the image, in the order of the stream: a step of lists that change. Both are
 * checked before either writes. The image is as tess_plan_fill has it and serves later runs too; the bits of o
 * and lse are those of the two calls (tess_plan_info).
 *
 *   pattern    lists as they are when the stream reaches them
 *   image      tess_plan_image_size bytes, 256-byte aligned, of the target's memory; or NULL, see below
 *   report     NULL, or TESS_REPORT_SIZE bytes of the target's memory, 8-byte aligned, written with the
 *              image: what tess_plan_report reads, on CUDA by a copy on the host
 *   arguments  those of a run; their image is NULL
 *
 * Without an image, where tess_plan_info says fill_run_direct: the kernel reads the lists itself.
 * DISTINCT is promised of indices then, and there is no report. Keys, o and lse are those of fill and run to rounding: sums
 * have another order, which the plan and the device fix.
 *
 * Allocates nothing and waits for nothing; on CUDA it can be captured in a graph. Image and report serve one
 * stream at a time, threads may share the plan. Errors: those of tess_plan_fill and tess_run, INVALID_ARGUMENT
 * also where arguments have an image, and for an image of NULL where the plan, the promises or a report do not
 * allow it. Where the problem is strict and a list has a fault, nothing runs.
 */
TESS_API tess_status tess_plan_fill_run(const tess_plan *plan, const tess_device_pattern *pattern,
                                        void *image, size_t image_size, void *report,
                                        const tess_arguments *arguments, tess_error *error,
                                        tess_stream stream);

/* Reads the report of the last fill. `image` is host memory, 8-byte aligned: a CPU plan's image, a
 * copy of the first TESS_REPORT_SIZE bytes of a CUDA plan's, made after the fill, or a report. Errors:
 * INVALID_ARGUMENT (also where the plan has not filled it). */
TESS_API tess_status tess_plan_report(const tess_plan *plan, const void *image,
                                      tess_fill_report *report, tess_error *error);

/* ---------------------------------------------------------------------------------------------
 * 4. The three stages of attention one by one, by a plan whose pipeline is TESS_STAGED
 *
 * Between the stages stand the BCSR scores: one float per element of every listed tile, whatever
 * the storage type, masked elements included. The scores of one scalar row of a block row are
 * contiguous ("row-interleaved"; blocked dynamic sparse attention, Goel and Agrawal), so that
 * softmax streams. With list entries e from r0 = row_ptr[i] to r1 = row_ptr[i + 1] of block row i,
 * the element in row r, column c of tile e stands, for (batch b, query head h), at
 *
 *     scores_offset(b, h) + block_kv * (r0 * block_q + r * (r1 - r0) + (e - r0)) + c
 *
 * where row_ptr is the one that tess_pattern_lists answers, taken relative to the list's own first
 * tile, and scores_offset(b, h) is the number of scores of all (batch, query head) pairs before it,
 * batch-major. Rows past n_q are never touched. Columns past n_kv and masked elements hold -Inf as
 * scores and 0 as weights. Errors are those of tess_run.
 * ------------------------------------------------------------------------------------------- */

/* How many floats the BCSR scores are, over all batches and query heads; 0 for a fused plan. Runs of
 * the backward keep up to twice as many in the workspace. */
TESS_API int64_t tess_plan_scores_count(const tess_plan *plan);

/* Bytes of workspace that one stage needs when called by itself: exact. Of the backward's stages
 * TESS_STAGE_DELTA alone is (tess_delta). */
TESS_API size_t tess_plan_stage_workspace_size(const tess_plan *plan, tess_stage stage);

/* scores = scale * q k^T, softcap and ALiBi applied, on the listed tiles, -Inf on their masked
 * elements. Uses q, k, scores, workspace, and alibi and key_positions where the problem has them. */
TESS_API tess_status tess_sddmm(const tess_plan *plan, const tess_arguments *arguments,
                                tess_error *error, tess_stream stream);

/* Softmax of every row of scores, in place, sinks and dropout applied. Uses scores, lse if wanted,
 * workspace, and sink, seed and key_positions where the problem has them. */
TESS_API tess_status tess_softmax(const tess_plan *plan, const tess_arguments *arguments,
                                  tess_error *error, tess_stream stream);

/* o = scores v, for weights as tess_softmax leaves them: 0 ... 1, with dropout p 0 ... 1 / (1 - p), and
 * a row of zeros is empty. Uses scores, v, o, workspace, and o_rest where the problem has it. Keys that
 * a query tile does not list are not read. */
TESS_API tess_status tess_spmm(const tess_plan *plan, const tess_arguments *arguments,
                               tess_error *error, tess_stream stream);

/* ---------------------------------------------------------------------------------------------
 * 5. Joining partial results
 * ------------------------------------------------------------------------------------------- */

/*
 * Attention over a set of keys from attention over disjoint parts of it: from o_r and lse_r of the
 * parts, row by row and in the order given,
 *
 *     lse = log sum_r exp(lse_r)                          natural logarithm
 *     o   = sum_r exp(lse_r - lse) * o_r
 *
 * as caches in pieces, shared prefixes and rings of devices need it.
 *
 *   backend   where the memory is (CUDA: on the current device)
 *   parts     1 ... 65536; on CUDA at most 60: of more, merge groups into f32, then the groups
 *   o         [parts] views [B, heads, n, d_v], all of one type; d_v up to 65536
 *   lse       [parts] views [B, heads, n, 1], f32
 *   o_out     [B, heads, n, d_v], written; of any type, as sums are f32 or better
 *   lse_out   [B, heads, n, 1] f32, written; NULL when not wanted
 *   stream    as in tess_run; the arrays and their tensors are read before the call returns
 *
 * Tensors live in the backend's memory, have any strides, and are aligned to their elements. o_out
 * may be the o of a part, with its data, strides and type, and lse_out the lse of a part; else
 * outputs overlap nothing.
 *
 * A part whose lse is -Inf in a row is empty there: its o is not read. Where all are empty, o is 0
 * and lse -Inf. An lse of NaN or +Inf makes its row NaN. Bitwise repeatable on one device; on the
 * CPU, which uses as many threads as OpenMP offers, the bits are the same for any number of them.
 * Errors: INVALID_ARGUMENT (of a part, the message begins with its number), UNSUPPORTED (too many
 * parts for CUDA), NO_CUDA, CUDA_ERROR. Merging by sums of exponentials: Dao et al., Flash-Decoding;
 * Liu et al., Ring Attention, arXiv:2310.01889.
 */
TESS_API tess_status tess_merge(tess_backend backend, int64_t parts, const tess_tensor *const *o,
                                const tess_tensor *const *lse, const tess_tensor *o_out,
                                const tess_tensor *lse_out, tess_error *error, tess_stream stream);

/*
 * The inverse: attention over the keys that are not kept, from attention over all of them and over those
 * that are, row by row in f32,
 *
 *     w        = exp(lse_kept - lse_whole)
 *     lse_rest = lse_whole + log(1 - w)                   natural logarithm
 *     o_rest   = (o_whole - w * o_kept) / (1 - w)
 *
 * A run over the kept keys with (o_rest, lse_rest) as its base of TESS_BASE_MERGE gives the whole again, and
 * costs what is kept. Where 1 - w < 2^-12 nothing that f32 can tell is left: o_rest is 0 and lse_rest -Inf.
 * The error of o_rest is that of its inputs over 1 - w; merging multiplies by 1 - w again.
 *
 *   backend              where the memory is (CUDA: on the current device)
 *   o_whole, o_kept      [B, heads, n, d_v], of one type; d_v up to 65536
 *   lse_whole, lse_kept  [B, heads, n, 1], f32
 *   o_rest               [B, heads, n, d_v], written; of any type
 *   lse_rest             [B, heads, n, 1] f32, written; NULL when not wanted
 *   stream               as in tess_run
 *
 * Tensors are as in tess_merge; o_rest may be o_whole or o_kept, and lse_rest lse_whole or lse_kept. Where
 * lse_kept is -Inf the rest is the whole, and o_kept is not read; where lse_whole is -Inf there is nothing,
 * and neither o is read. An lse of NaN or +Inf makes its row NaN. Bitwise repeatable, on the CPU for any
 * number of threads. Errors: INVALID_ARGUMENT, NO_CUDA, CUDA_ERROR.
 */
TESS_API tess_status tess_unmerge(tess_backend backend, const tess_tensor *o_whole,
                                  const tess_tensor *lse_whole, const tess_tensor *o_kept,
                                  const tess_tensor *lse_kept, const tess_tensor *o_rest,
                                  const tess_tensor *lse_rest, tess_error *error,
                                  tess_stream stream);

/* ---------------------------------------------------------------------------------------------
 * 6. Choosing what is listed: pooled blocks, their scores, columns
 * ------------------------------------------------------------------------------------------- */

/* Pooling of the rows of a block, for each dim by itself. */
typedef enum tess_pool_mode {
    TESS_POOL_MEAN = 0, /* their mean */
    TESS_POOL_MIN_MAX =
        1,            /* their least, and behind all of these their largest: twice as many dims */
    TESS_POOL_LSE = 2 /* log of the sum of their exponentials */
} tess_pool_mode;

/*
 *   mode      what a block becomes
 *   block     rows of a block, 1 ... 2^20; the last one may have fewer
 *   lengths   int32 [batch], rows there are today, cut to 0 ... n; NULL: n
 *   begins    int32 [batch], rows that earlier calls have pooled: blocks that have later rows are pooled, from
 *             all of their rows, and those before are left as they are; NULL: 0
 *
 * lengths and begins lie in the memory of the backend: a captured graph pools what a cache grows by.
 */
typedef struct tess_pooling {
    size_t struct_size;
    tess_pool_mode mode;
    int64_t block;
    const int32_t *lengths;
    const int32_t *begins;
} tess_pooling;
TESS_DEFINE_INIT(tess_pooling)

/*
 * Pools queries or keys by blocks (mean: MoBA, arXiv:2502.13189; bounds: Quest, arXiv:2406.10774).
 *
 *   x        [B, heads, n, d], f32, f16 or bf16, of any strides; d up to 65536
 *   pooled   [B, heads, ceil(n / block), d], of MIN_MAX 2 d; f32, f16 or bf16. Blocks without rows today are
 *            not written
 *
 * Sums are f32 or better, rounded once; NaN and Inf do what arithmetic makes of them, but that MIN_MAX passes
 * over NaN where another number is. Rows from a batch's length on are not read. Allocates nothing, waits for
 * nothing; bitwise repeatable on one device, on the CPU for any number of threads. Several threads may call at
 * once. Errors: INVALID_ARGUMENT, NO_CUDA, CUDA_ERROR.
 */
TESS_API tess_status tess_pool(tess_backend backend, const tess_pooling *pooling,
                               const tess_tensor *x, const tess_tensor *pooled, tess_error *error,
                               tess_stream stream);

/*
 *   scale              factor of scores; 0: 1 / sqrt(d)
 *   bounds             1: k has least and largest of each dim, as MIN_MAX pools them: a score is the largest
 *                      that a key within them has, sum over d of max(q least, q largest)
 *   causal             1: blocks of keys behind the last query of a block have -Inf
 *   block_q, block_kv  queries and keys of a block; 0: 1
 *   n_q, n_kv          queries and keys, where the last blocks are not whole; 0: all
 *   lengths            int32 [batch] in the backend's memory, keys there are today, cut to 0 ... n_kv; NULL: n_kv.
 *                      Query i stands at i + length - n_q; blocks that begin at or past the length have -Inf
 */
typedef struct tess_scoring {
    size_t struct_size;
    double scale;
    int64_t bounds;
    int64_t causal;
    int64_t block_q, block_kv;
    int64_t n_q, n_kv;
    const int32_t *lengths;
} tess_scoring;
TESS_DEFINE_INIT(tess_scoring)

/*
 * Scores of pairs of blocks, which tess_select takes as they are.
 *
 *   q        pooled queries [B, heads_q, rows, d], or queries themselves; d up to 65536
 *   k        pooled keys [B, heads_kv, columns, d], with bounds 2 d, of q's type
 *   scores   f32 [B, heads, rows, columns], all of it written; heads divides heads_q and is a multiple of
 *            heads_kv: scores of neighbouring query heads are added up
 *
 * Products of 16 bits are exact, sums f32. Blocks that are cut are not read. Otherwise as tess_pool. Errors:
 * INVALID_ARGUMENT, NO_CUDA, CUDA_ERROR.
 */
TESS_API tess_status tess_pool_score(tess_backend backend, const tess_scoring *scoring,
                                     const tess_tensor *q, const tess_tensor *k,
                                     const tess_tensor *scores, tess_error *error,
                                     tess_stream stream);

/*
 * Columns of rows in three forms, of the caller's arrays in the backend's memory:
 *
 *   bytes     uint8 [rows][columns], nonzero = listed; written ones are 0 and 1
 *   bits      uint64 [rows][ceil(columns / 64)], column c is bit c % 64 of word c / 64, as in TESS_BLOCK_BITS;
 *             bits past the last column are ignored, and written as 0
 *   indices   int32 [rows][capacity], -1 is padding; written ones ascend, padding last
 *   counts    int32 [rows]: indices of a row that are looked at, or NULL for all. Written: columns of the row,
 *             of which indices hold the lowest `capacity`; a count past the capacity is an overflow to a fill
 *   capacity  indices of a row, 0: columns
 *
 * A block row of a device pattern is a row. A list of [192, 1] groups as bits has a row for each group.
 */
typedef struct tess_columns {
    size_t struct_size;
    int64_t rows, columns, capacity;
    uint8_t *bytes;
    uint64_t *bits;
    int32_t *indices, *counts;
} tess_columns;
TESS_DEFINE_INIT(tess_columns)

/*
 * Writes columns in every form whose array `to` has, from the one form that `from` has: packing bytes to bits,
 * unpacking them, lists of either. Sizes are those of `from`; `to` has the same rows and columns and a capacity
 * of its own. An index that is below 0 or past the last column lists nothing, one that is there twice lists its
 * column once, and a count is cut to 0 ... capacity. Arrays of from and to overlap nothing. Otherwise as
 * tess_pool. Errors: INVALID_ARGUMENT, NO_CUDA, CUDA_ERROR.
 */
TESS_API tess_status tess_columns_convert(tess_backend backend, const tess_columns *from,
                                          const tess_columns *to, tess_error *error,
                                          tess_stream stream);

/* Which columns of a row of scores tess_select chooses, beside those that are kept anyway. */
typedef enum tess_select_mode {
    TESS_SELECT_EXACT = 0,     /* the k with the highest scores */
    TESS_SELECT_THRESHOLD = 1, /* all with scores of at least a threshold */
    TESS_SELECT_TOP_P = 2      /* the fewest that hold a share p of the row's softmax */
} tess_select_mode;

/*
 * A choice among the columns of scores. A column is block_kv keys, a row block_q queries, as in a device
 * pattern; columns are chosen in the order of their score, highest first, and of equal scores the lowest
 * column first. -0 equals +0. NaN and -Inf are never chosen by their score.
 *
 *   mode        how many columns a row chooses
 *   k           EXACT: columns of a row, those that are kept included, 1 ... n. A row that has fewer
 *               chooses them all
 *   threshold   THRESHOLD: the lowest score that is chosen; not NaN
 *   p           TOP_P: share of the sum of exp(score), above 0 and up to 1. Weights below 2^-40 of the
 *               row's largest count as 0
 *   keep_first, keep_last
 *               so many of the first and of the last columns that a row has today come before all
 *               others, whatever their scores; of these the lowest first
 *   block_q, block_kv
 *               queries of a row and keys of a column, for lengths and causal; 0: 1
 *   causal      1: a row has columns up to that of its last query alone, which stands at key position
 *               i + length - n_q
 *   n_q         queries, for causal; 0: rows * block_q
 *   row_k       EXACT: int32 [batch][heads][rows], k of each row, in the place of k; NULL: k
 *   lengths     int32 [batch], keys there are today: a row has ceil(length / block_kv) columns; NULL: n_kv
 *   n_kv        keys, where the last column has fewer; 0: n * block_kv
 *   keep        uint64 [keep_rows][ceil(n / 64)], a bit for each column as in TESS_BLOCK_BITS: columns of today
 *               that come before all others likewise. tess_columns_convert makes bits of a list. NULL: none
 *   keep_rows   1, rows, or rows of all batches and heads: row r of them all has row r % keep_rows of keep
 *
 * row_k, lengths and keep lie in the memory of the backend.
 */
typedef struct tess_selection {
    size_t struct_size;
    tess_select_mode mode;
    float threshold, p;
    int64_t k;
    int64_t keep_first, keep_last;
    int64_t block_q, block_kv;
    int64_t causal;
    int64_t n_q;
    const int32_t *row_k;
    const int32_t *lengths;
    int64_t n_kv;
    const uint64_t *keep;
    int64_t keep_rows;
} tess_selection;
TESS_DEFINE_INIT(tess_selection)

/*
 * Arrays of the caller that tess_select writes, every element of them; one of indices and bits at least, the
 * others may be NULL. A device pattern takes indices with counts (TESS_INDICES, of the same capacity; all of
 * tess_promise hold) or bits (TESS_BLOCK_BITS) as they are.
 *
 *   capacity    columns of a row at most, up to n; 0: n. Where a row chooses more, its lowest ones are
 *               kept. EXACT: k at least
 *   indices     int32 [batch][heads][rows][capacity], ascending and distinct; -1 behind the last
 *   counts      int32 [batch][heads][rows], columns of each row
 *   bits        uint64 [batch][heads][rows][ceil(n / 64)]; column c is bit c % 64 of word c / 64, those past
 *               the last column are 0
 *   overflows   int64 [batch][heads][rows], columns that were chosen and not kept; -1: the row's length or
 *               k is bad, below 0 or a length past block_kv * n, and it chooses nothing
 */
typedef struct tess_selected {
    size_t struct_size;
    int64_t capacity;
    int32_t *indices;
    int32_t *counts;
    uint64_t *bits;
    int64_t *overflows;
} tess_selected;
TESS_DEFINE_INIT(tess_selected)

/*
 * The columns of each row of scores that attention is to read: lists for tess_plan_fill, on the device.
 *
 *   backend     where all memory is (CUDA: on the current device)
 *   selection   what to choose
 *   scores      [batch, heads, rows, n], f32, f16 or bf16, of any strides; n up to 1048576, rows of all
 *               batches and heads up to 2^31 - 1
 *   selected    written, in the order of the stream; overlaps nothing
 *   stream      as in tess_run
 *
 * The columns are a function of the scores alone: the same on every backend and GPU, in each replay, and for
 * any number of threads. Weights of TOP_P are one polynomial of f32 operations, summed as integers. No buffer's
 * size decides what is chosen. May be called at once from any number of threads, for other results.
 * Errors: INVALID_ARGUMENT, NO_CUDA, CUDA_ERROR. Selection by digits: Alabi et al., Fast k-selection
 * algorithms for graphics processing units, ACM JEA 17 (2012).
 */
TESS_API tess_status tess_select(tess_backend backend, const tess_selection *selection,
                                 const tess_tensor *scores, const tess_selected *selected,
                                 tess_error *error, tess_stream stream);

/* ---------------------------------------------------------------------------------------------
 * 7. Queries. Names are literals; NULL answers a number that does not exist.
 * ------------------------------------------------------------------------------------------- */

TESS_API const char *tess_version(void);                          /* "0.1.0" */
TESS_API const char *tess_status_name(tess_status status);        /* "TESS_OK" */
TESS_API const char *tess_status_text(tess_status status);        /* "success" */
TESS_API const char *tess_list_fault_name(tess_list_fault fault); /* "unsorted" */
TESS_API const char *tess_type_name(tess_type type);              /* "f32", "f16", "e4m3", ... */
TESS_API size_t tess_type_size(tess_type type);                   /* bytes; 0 if there is none */
TESS_API const char *tess_backend_name(tess_backend backend);     /* "cpu", "cuda" */

TESS_API const char *tess_stage_name(tess_stage stage); /* "attention", "sddmm", ... */

/* The kernel that a plan uses for a stage, the first where it has several; NULL when the plan has no
 * such stage. */
TESS_API const char *tess_plan_kernel(const tess_plan *plan, tess_stage stage);

/*
 * For other languages, which cannot call the inline tess_NAME_init of this header. The size in
 * bytes of the struct called `name` ("tess_problem", ...) as this library knows it, 0 when it knows
 * none: a binding whose own layout differs from it was written for another version, or is wrong.
 */
TESS_API size_t tess_struct_size(const char *name);

/* Does what tess_NAME_init does, for the struct called `name` and a layout of `size` bytes: everything
 * at its default, struct_size set to `size`. An earlier version's layout, which is shorter, will do.
 * Errors: INVALID_ARGUMENT (no such struct, a size larger than the library's or without room for
 * struct_size). */
TESS_API tess_status tess_struct_init(const char *name, void *object, size_t size,
                                      tess_error *error);

/* The best instruction-set level that this machine's CPU kernels use: "amx" or "avx512bf16" (bf16
 * attention and its backward; all else then uses the next), "avx512", "avx2", "neon" or "portable". The
 * environment variable TESSERA_ISA forces a level by name (amx, avx512bf16: with avx512 for all else;
 * the latter is chosen on AMD's processors only, Intel's are faster without); for a name that does
 * not exist, that the build leaves out or that the machine lacks this is "none", and planning for the
 * CPU answers TESS_UNSUPPORTED. */
TESS_API const char *tess_cpu_isa(void);

/* The kernels compiled in, numbered from 0. `unusable` says why this machine (on CUDA: the
 * current device) cannot run it, or is NULL. */
typedef struct tess_kernel_info {
    size_t struct_size;
    const char *name;
    tess_backend backend;
    tess_stage stage;
    const char *unusable;
} tess_kernel_info;
TESS_DEFINE_INIT(tess_kernel_info)

/* How many there are, and number `number` of them. Errors: INVALID_ARGUMENT (no such kernel). */
TESS_API int64_t tess_kernel_count(void);
TESS_API tess_status tess_kernel_describe(int64_t number, tess_kernel_info *info,
                                          tess_error *error);

/* The devices of a backend, numbered from 0: the CPU is one device; CUDA has as many as the driver
 * shows, and none without a driver. */
typedef struct tess_device_info {
    size_t struct_size;
    char name[128];
    int32_t architecture;    /* CUDA: 10 * major + minor */
    int32_t multiprocessors; /* CUDA: multiprocessors; CPU: threads */
    int64_t memory_size;     /* bytes */
    int64_t cache_size;      /* bytes of last-level cache, 0 = unknown */
} tess_device_info;
TESS_DEFINE_INIT(tess_device_info)

/* How many there are, and number `device` of them; -1 is none of them. Errors: INVALID_ARGUMENT (no
 * such device), NO_CUDA, CUDA_ERROR. */
TESS_API int32_t tess_device_count(tess_backend backend);
TESS_API tess_status tess_device_describe(tess_backend backend, int32_t device,
                                          tess_device_info *info, tess_error *error);

#ifdef __cplusplus
}
#endif

#endif

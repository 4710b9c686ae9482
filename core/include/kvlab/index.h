/* index.h - the lightning indexer: which entries a query reads (DeepSeek-V3.2 report 2.1; V4.1
 * report 2.3 for the candidate pool).
 *
 *     I[t,s] = sum over index heads j of  w[t,j] * max(0, q[t,j,:] . key[s,:])
 *
 * over the entries s that t can see, s < (position of t + 1) / ratio, in a candidate pool or not.
 * Selection: larger score first, equal scores by the lower index, -inf and NaN never; the result is
 * ascending by index and filled up with -1. Scores of single heads exist only for a tile of keys.
 */
#ifndef kvlab_index_h
#define kvlab_index_h

#include "kvlab/rows.h"

typedef struct kvl_index_args {
    const float *q; /* [B, T, heads, width] */
    int64_t q_step_b, q_step_t, q_step_h;
    const float *w; /* [B, T, heads]; all constant factors are in here */
    int64_t w_step_b, w_step_t;
    kvl_rows key;       /* [B, rows, width], or */
    kvl_read_rows read; /* a reader of rows [width]; each is asked for once per group of queries */
    void *read_ctx;
    int64_t rows;
    int64_t q_pos0, ratio;
    const int32_t *pool; /* [B, T, pool_size] entries that may be chosen, -1 for none; NULL: all */
    int64_t pool_size;   /* only keys of the pool are read */
    int64_t batch, queries, heads, width;
} kvl_index_args;

/* What is wanted of the scores; anything may be left out. */
typedef struct kvl_index_out {
    float *scores; /* [B, T, rows], -inf where not visible or not in the pool; or NULL */
    int32_t *top;  /* [B, T, k] the best k, or NULL */
    int64_t k;
    /* The pool for later layers: entries in blocks of `block` consecutive ones, a block is as good
     * as its best entry, the block of the newest visible entry always in, `blocks` of them at most.
     */
    int32_t *pool; /* [B, T, blocks * block] entries, or NULL */
    int64_t block, blocks;
} kvl_index_out;

KVL_API kvl_status kvl_index(const kvl_index_out *out, const kvl_index_args *args, kvl_error *err);

/* The scores in double: out [B, T, rows], contiguous. */
KVL_API kvl_status kvl_index_ref(double *out, const kvl_index_args *args, kvl_error *err);

/* The rule of selection by itself: out [n_rows, k] from scores [n_rows,
 * n] that are `step` apart. */
KVL_API kvl_status kvl_topk(int32_t *out, const float *scores, int64_t step, int64_t n_rows,
                            int64_t n, int64_t k, kvl_error *err);

/* out [n_rows, blocks * block]: the candidate pool, where visible[i] entries of row i count. */
KVL_API kvl_status kvl_block_pool(int32_t *out, const float *scores, int64_t step,
                                  const int64_t *visible, int64_t n_rows, int64_t block,
                                  int64_t blocks, kvl_error *err);

/* The definitions, by sorting: one row each. */
KVL_API void kvl_topk_ref(int32_t *out, const double *scores, int64_t n, int64_t k);
KVL_API void kvl_block_pool_ref(int32_t *out, const double *scores, int64_t visible, int64_t block,
                                int64_t blocks);

#endif

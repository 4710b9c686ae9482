/* attend.h - THE attention primitive: one softmax over the union of several sources.
 *
 *   out[b,t,h,:] = sum over the rows s that t sees, of all sources:  p[s] * value[s]
 *   p[s]         = e^(scale * q[b,t,h,:] . key[s] - lse[b,t,h])
 *   lse[b,t,h]   = log(sum over the same rows of e^(scale * q . key[s]) + e^sink[h])
 *
 * The sink (DeepSeek-V4 report 2.3.3) has no value and no position; without one its term is
 * missing. A query that sees nothing gives zeros, and lse = sink[h], or -inf without a sink.
 *
 * A source is rows [batch, rows, kv_heads, ...] of which some columns are the key and some the
 * value; both may be the same (K = V entries) or overlap (MLA: key = 576 columns, value = the first
 * 512). Head h reads kv head h / (heads / kv_heads). A source knows which rows query t sees.
 *
 * Rows come in tiles, from a tensor or from a reader that decodes them (a cache pool). [T, T] is
 * never stored: the softmax is computed online, a tile at a time. All heads that share a row share
 * one reading of it and multiply it as one matrix.
 */
#ifndef kvlab_attend_h
#define kvlab_attend_h

#include "kvlab/rows.h"

/* Which rows a query sees. The position of query t is q_pos0 + t; row s is position (or entry)
 * pos0 + s, or, in a ring, slot s holds the newest position p <= position of the last query with
 * p mod ring = s. Positions without a row are not seen. */
typedef enum kvl_see {
    KVL_SEE_ALL,    /* every row */
    KVL_SEE_CAUSAL, /* positions <= that of the query */
    KVL_SEE_WINDOW, /* the last `window` positions, its own included */
    KVL_SEE_BLOCKS, /* entry b of `ratio` tokens iff b < (position + 1) / ratio */
    KVL_SEE_LIST    /* the rows that a list names for each query; -1 names none */
} kvl_see;

typedef struct kvl_source {
    int64_t rows, kv_heads;
    /* Either two parts of tensors: key [B, rows, kv_heads, key_width], value [.., value_width], */
    kvl_rows key, value;
    /* or a reader of rows [kv_heads, width], with the first key and the first value column. Every
     * row that a group of queries sees is asked for exactly once for that group, and no other row;
     * one decode step is one group. */
    kvl_read_rows read;
    void *read_ctx;
    int64_t width, key0, value0;

    kvl_see see;
    int64_t pos0;        /* position of row 0 */
    int64_t ring;        /* 0, or the number of slots (<= rows), then pos0 is not used */
    int64_t window;      /* KVL_SEE_WINDOW: >= 1 */
    int64_t ratio;       /* KVL_SEE_BLOCKS: >= 1 */
    const int32_t *list; /* KVL_SEE_LIST: [B, T, k]; a row named twice counts twice */
    int64_t k;
} kvl_source;

enum { KVL_MAX_SOURCES = 8 };

typedef struct kvl_attend_args {
    float *out; /* [B, T, H, value_width] */
    int64_t out_step_b, out_step_t, out_step_h;
    float *lse;     /* [B, T, H], or NULL */
    const float *q; /* [B, T, H, key_width] */
    int64_t q_step_b, q_step_t, q_step_h;
    const float *sink; /* [H], or NULL */
    float scale;
    int64_t q_pos0;
    const kvl_source *sources;
    int64_t n_sources;
    int64_t batch, queries, heads, key_width, value_width;
} kvl_attend_args;

KVL_API kvl_status kvl_attend(const kvl_attend_args *args, kvl_error *err);

/* The definition in double, row by row: out [B, T, H, value_width] and lse [B, T, H] (or NULL) are
 * contiguous; args->out and args->lse are not used. */
KVL_API kvl_status kvl_attend_ref(double *out, double *lse, const kvl_attend_args *args,
                                  kvl_error *err);

#endif

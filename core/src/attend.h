/* attend.h - private to the files of attention: arguments checked, visibility as intervals, loops
 * over logits.
 *
 * All rules but the list are intervals: query t sees the positions [lo, hi) of a source, and both
 * ends grow with t. So a tile of queries sees the interval from the first lo to the last hi, and
 * each query a part of it.
 */
#ifndef kvl_src_attend_h
#define kvl_src_attend_h

#include "kvlab/attend.h"
#include "sizes.h"

enum { KVL_MOST_QUERIES = 64 };

typedef struct interval {
    int64_t lo, hi;
} interval;

kvl_status kvl_attend_check(const kvl_attend_args *a, kvl_error *err);

/* Positions of `s` that the query at position `pos` sees;
 * newest is the position of the last query. */
interval kvl_attend_sees(const kvl_source *s, int64_t pos, int64_t newest);

/* The row where a position lies. */
static inline int64_t kvl_attend_row(const kvl_source *s, int64_t position) {
    int64_t row = position - s->pos0;
    return s->ring ? row % s->ring : row;
}

/* The logits of a tile, s [n, m], in attend_softmax.c.
 * hide: what column j has outside the rows lo[j] .. hi[j] becomes `value`.
 * raise_max: max [m] becomes the largest of max and the columns; a NaN is passed over.
 * weigh: s = e^(s - shift), which is added to sum [m].
 * weigh_grad: s = e^(s - lse), the weights, and d = s * (d - delta), the gradients of the logits.
 */
void kvl_attend_hide(float *s, const int32_t *lo, const int32_t *hi, float value, int64_t n,
                     int64_t m);
void kvl_attend_raise_max(float *max, const float *s, int64_t n, int64_t m);
void kvl_attend_weigh(float *s, float *sum, const float *shift, int64_t n, int64_t m);
void kvl_attend_weigh_grad(float *s, float *d, const float *lse, const float *delta, int64_t n,
                           int64_t m);

/* Queries of a tile with `per_kv` heads each: 64 logit rows suit the products of one kv head, but
 * the more queries, the larger the corner of a causal triangle that is computed in vain. */
static inline int64_t kvl_attend_queries(int64_t per_kv, int64_t queries) {
    int64_t most = min(max(queries / 8, 32), KVL_MOST_QUERIES);
    return min(max(64 / per_kv, 16), most);
}

/* Fails when a list names a row that is not there. */
kvl_status kvl_attend_bad_row(const kvl_source *s, int64_t row, kvl_error *err);

#endif

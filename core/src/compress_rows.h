/* compress_rows.h - what pooling does to rows of w channels, forward and backward. */
#ifndef kvlab_compress_rows_h
#define kvlab_compress_rows_h

#include "kvlab/vmath.h"

/* p = z + bias, where either may be missing. */
KVL_CLONES
static void row_scores(float *p, const float *z, const float *bias, int64_t w) {
    for (int64_t i = 0; i < w; i++)
        p[i] = (z ? z[i] : 0.0f) + (bias ? bias[i] : 0.0f);
}

KVL_CLONES
static void take_max(float *top, const float *p, int64_t w) {
    for (int64_t i = 0; i < w; i++)
        top[i] = p[i] > top[i] ? p[i] : top[i];
}

KVL_CLONES
static void subtract(float *x, const float *y, int64_t w) {
    for (int64_t i = 0; i < w; i++)
        x[i] -= y[i];
}

/* sum += p, u += p * c */
KVL_CLONES
static void add_weighted(float *u, float *sum, const float *p, const float *c, int64_t w) {
    for (int64_t i = 0; i < w; i++) {
        sum[i] += p[i];
        u[i] += p[i] * c[i];
    }
}

KVL_CLONES
static void divide(float *x, const float *y, int64_t w) {
    for (int64_t i = 0; i < w; i++)
        x[i] /= y[i];
}

#endif

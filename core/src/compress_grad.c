/* compress_grad.c - gradients of softmax pooling, a tile of entries per thread. See
 * kvlab/compress_grad.h. The weights of an entry are computed again, all its rows at a time.
 */
#include "kvlab/compress_grad.h"

#include "kvlab/vmath.h"
#include "compress_rows.h"
#include "parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_FLOATS = 64 * 1024 }; /* pooled floats per tile of entries */

typedef struct job {
    const kvl_compressor *comp;
    kvl_rows_grad d_c, d_z;
    kvl_rows c, z;
    const float *d_out;
    double *d_bias; /* [parts, m, row], or NULL */
    int64_t row, batch, entries, per_tile;
} job;

/* Columns [col, col + w) of one token. */
typedef struct pooled {
    int64_t token, col;
} pooled;

/* p becomes p / sum * d_out, the gradient of c. */
KVL_CLONES
static void value_grad(float *p, const float *sum, const float *d_out, int64_t w) {
    for (int64_t i = 0; i < w; i++)
        p[i] = p[i] / sum[i] * d_out[i];
}

/* ... and then that of z. */
KVL_CLONES
static void score_grad(float *p, const float *c, const float *u, int64_t w) {
    for (int64_t i = 0; i < w; i++)
        p[i] *= c[i] - u[i];
}

KVL_CLONES
static void add_double(double *sum, const float *x, int64_t w) {
    for (int64_t i = 0; i < w; i++)
        sum[i] += (double)x[i];
}

/* One entry; scratch: [n, w] weights, then [w] each of largest score, sum, value. */
static void entry_grad(const job *j, int64_t b, const pooled *rows, int64_t n, const float *d_out,
                       double *d_bias, float *p) {
    int64_t w = j->comp->width, m = j->comp->ratio;
    float *top = p + n * w, *sum = top + w, *u = sum + w;
    for (int64_t i = 0; i < n; i++) {
        const float *z = j->z.p, *bias = j->comp->bias;
        if (z) z += b * j->z.step_b + rows[i].token * j->z.step_s + rows[i].col;
        if (bias) bias += rows[i].token % m * j->row + rows[i].col;
        row_scores(p + i * w, z, bias, w);
        if (i == 0)
            memcpy(top, p, (size_t)w * sizeof *top);
        else
            take_max(top, p + i * w, w);
    }
    memset(sum, 0, 2 * (size_t)w * sizeof *sum);
    for (int64_t i = 0; i < n; i++) {
        subtract(p + i * w, top, w);
        kvl_exp(p + i * w, p + i * w, w);
        add_weighted(u, sum, p + i * w,
                     j->c.p + b * j->c.step_b + rows[i].token * j->c.step_s + rows[i].col, w);
    }
    divide(u, sum, w);
    for (int64_t i = 0; i < n; i++) {
        int64_t token = rows[i].token, col = rows[i].col;
        value_grad(p + i * w, sum, d_out, w);
        if (j->d_c.p)
            kvl_axpy(j->d_c.p + b * j->d_c.step_b + token * j->d_c.step_s + col, 1.0f, p + i * w,
                     w);
        if (!j->d_z.p && !d_bias) continue;
        score_grad(p + i * w, j->c.p + b * j->c.step_b + token * j->c.step_s + col, u, w);
        if (j->d_z.p)
            kvl_axpy(j->d_z.p + b * j->d_z.step_b + token * j->d_z.step_s + col, 1.0f, p + i * w,
                     w);
        if (d_bias) add_double(d_bias + token % m * j->row + col, p + i * w, w);
    }
}

static kvl_status grad_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)err;
    const job *j = ctx;
    int64_t m = j->comp->ratio, w = j->comp->width, last = (tile + 1) * j->per_tile;
    float *work = scratch;
    pooled *rows = (pooled *)(void *)(work + ((2 * m + 3) * w + 15) / 16 * 16);
    if (last > j->batch * j->entries) last = j->batch * j->entries;
    for (int64_t e = tile * j->per_tile; e < last; e++) {
        int64_t block = e % j->entries, n = 0;
        for (int64_t i = 0; j->comp->overlap && block > 0 && i < m; i++)
            rows[n++] = (pooled){(block - 1) * m + i, 0};
        for (int64_t i = 0; i < m; i++)
            rows[n++] = (pooled){block * m + i, j->comp->overlap ? w : 0};
        entry_grad(j, e / j->entries, rows, n, j->d_out + e * w,
                   j->d_bias ? j->d_bias + tile * m * j->row : NULL, work);
    }
    return KVL_OK;
}

static bool apart(const kvl_rows_grad *d, int64_t row, int64_t batch, int64_t tokens) {
    return !d->p ||
           ((tokens < 2 || llabs(d->step_s) >= row) && (batch < 2 || llabs(d->step_b) >= row));
}

kvl_status kvl_compress_grad(kvl_rows_grad d_c, kvl_rows_grad d_z, float *d_bias,
                             const kvl_compressor *comp, const float *d_out, kvl_rows c, kvl_rows z,
                             int64_t batch, int64_t tokens, kvl_error *err) {
    job j = {.comp = comp, .d_c = d_c, .d_z = d_z, .c = c, .z = z, .d_out = d_out};
    int64_t m = comp->ratio, w = comp->width, rows, floats;
    if (m < 1 || w < 1 || m > INT32_MAX || w > INT32_MAX / 2 || !kvl_mul(&floats, m, 32 * w))
        return kvl_fail(err, KVL_EINVAL, "compress_grad: ratio %lld and width %lld must be >= 1",
                        (long long)m, (long long)w);
    j.row = comp->overlap ? 2 * w : w;
    if (batch < 0 || tokens < 0 || !kvl_mul(&rows, batch, tokens) || !kvl_mul(&rows, rows, 8 * w))
        return kvl_fail(err, KVL_EINVAL, "compress_grad: %lld sequences of %lld tokens",
                        (long long)batch, (long long)tokens);
    if (!apart(&d_c, j.row, batch, tokens) || !apart(&d_z, j.row, batch, tokens))
        return kvl_fail(err, KVL_EINVAL,
                        "compress_grad: rows of %lld columns are %lld (d_c) and %lld (d_z) apart: "
                        "gradients must not share places",
                        (long long)j.row, (long long)d_c.step_s, (long long)d_z.step_s);
    j.batch = batch, j.entries = tokens / m;
    int64_t entries = batch * j.entries;
    if (entries == 0) return KVL_OK;
    j.per_tile = TILE_FLOATS / (m * w) + 1;
    if (d_bias) j.per_tile = kvl_part_rows(entries, j.per_tile);
    int64_t tiles = kvl_tiles(entries, j.per_tile);
    if (d_bias) {
        j.d_bias = kvl_alloc((size_t)(tiles * m * j.row) * sizeof(double));
        if (!j.d_bias)
            return kvl_fail(err, KVL_ENOMEM, "compress_grad: no memory for %lld parts of the bias",
                            (long long)tiles);
    }
    size_t bytes = (size_t)((2 * m + 3) * w + 16) * sizeof(float) + 2 * (size_t)m * sizeof(pooled);
    kvl_status status = kvl_parallel_for(tiles, bytes, grad_tile, &j, err);
    if (!status && d_bias) kvl_add_parts(d_bias, j.d_bias, tiles, m * j.row, 0, m * j.row);
    kvl_free(j.d_bias);
    return status;
}

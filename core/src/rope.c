/* rope.c - rotations by tables of one token's angles, shared by its heads. See rope.h. */
#include "kvlab/rope.h"

#include "kvlab/parallel.h"
#include "kvlab/vmath.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

enum { TILE_FLOATS = 16 * 1024 };

kvl_status kvl_rope_freqs(double *freq, double theta, const kvl_yarn *yarn, int64_t n,
                          kvl_error *err) {
    if (n < 2 || n % 2 != 0 || !(theta > 1.0))
        return kvl_fail(err, KVL_EINVAL, "rope: %lld channels must be even, theta %g above 1",
                        (long long)n, theta);
    for (int64_t i = 0; i < n / 2; i++)
        freq[i] = pow(theta, -2.0 * (double)i / (double)n);
    if (!yarn) return KVL_OK;
    if (!(yarn->factor > 0.0) || !(yarn->context > 0.0) || !(yarn->beta_fast > 0.0) ||
        !(yarn->beta_slow > 0.0))
        return kvl_fail(err, KVL_EINVAL,
                        "rope: YaRN factor %g, context %g, betas %g and %g must be > 0",
                        yarn->factor, yarn->context, yarn->beta_fast, yarn->beta_slow);
    /* The pair that turns r times within the context (YaRN, arXiv 2309.00071, section 3.2). */
    double scale = (double)n / (2.0 * log(theta));
    double low = floor(scale * log(yarn->context / (2.0 * PI * yarn->beta_fast)));
    double high = ceil(scale * log(yarn->context / (2.0 * PI * yarn->beta_slow)));
    low = low > 0.0 ? low : 0.0;
    high = high < (double)(n - 1) ? high : (double)(n - 1);
    double span = high - low > 1e-3 ? high - low : 1e-3;
    for (int64_t i = 0; i < n / 2; i++) {
        double ramp = ((double)i - low) / span;
        ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
        freq[i] = freq[i] / yarn->factor * ramp + freq[i] * (1.0 - ramp);
    }
    return KVL_OK;
}

typedef struct job {
    const kvl_rope *rope;
    const kvl_rope_args *a;
    int64_t per_tile; /* tokens */
    float *table;     /* [tokens, n]: cosines and sines of positions that all batch items share */
} job;

/* Cosines [n / 2] and sines [n / 2] of the angles at a position, to angles [n]. */
static void turn_by(float *angles, const kvl_rope *r, int64_t pos) {
    for (int64_t i = 0; i < r->n / 2; i++) {
        double angle = (double)pos * r->freq[i];
        angles[i] = (float)cos(angle);
        angles[r->n / 2 + i] = (float)(r->inverse ? -sin(angle) : sin(angle));
    }
}

static kvl_status table_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const job *j = ctx;
    int64_t from = tile * j->per_tile, to = from + j->per_tile;
    for (int64_t t = from; t < to && t < j->a->tokens; t++)
        turn_by(j->table + t * j->rope->n, j->rope, j->a->pos0 + t * j->a->stride);
    return KVL_OK;
}

KVL_CLONES
static void turn_halves(float *out, const float *x, const float *cosine, const float *sine,
                        int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i];
        out[i] = a * cosine[i] - b * sine[i];
        out[half + i] = a * sine[i] + b * cosine[i];
    }
}

KVL_CLONES
static void turn_pairs(float *out, const float *x, const float *cosine, const float *sine,
                       int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        out[2 * i] = a * cosine[i] - b * sine[i];
        out[2 * i + 1] = a * sine[i] + b * cosine[i];
    }
}

static kvl_status rope_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)err;
    const job *j = ctx;
    const kvl_rope *r = j->rope;
    const kvl_rope_args *a = j->a;
    int64_t half = r->n / 2, at = r->first ? 0 : a->width - r->n;
    int64_t tiles = kvl_tiles(a->tokens, j->per_tile), b = tile / tiles;
    int64_t from = tile % tiles * j->per_tile;
    int64_t to = a->tokens - from < j->per_tile ? a->tokens : from + j->per_tile;
    for (int64_t t = from; t < to; t++) {
        float *angles = j->table ? j->table + t * r->n : scratch;
        const float *cosine = angles, *sine = angles + half;
        if (!j->table)
            turn_by(angles, r, a->pos ? a->pos[b * a->pos_step + t] : a->pos0 + t * a->stride);
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t offset = b * a->step_b + t * a->step_t + h * a->step_h;
            const float *x = a->x + offset;
            float *out = a->out + offset;
            if (out != x) memcpy(out, x, (size_t)a->width * sizeof *out);
            (r->half_split ? turn_halves : turn_pairs)(out + at, out + at, cosine, sine, half);
        }
    }
    return KVL_OK;
}

kvl_status kvl_rope_apply(const kvl_rope *rope, const kvl_rope_args *a, kvl_error *err) {
    if (rope->n < 0 || rope->n % 2 != 0 || rope->n > a->width)
        return kvl_fail(err, KVL_EINVAL,
                        "rope: %lld rotated channels, must be even and <= width %lld",
                        (long long)rope->n, (long long)a->width);
    int64_t floats, tiles, last;
    if (!a->pos && (a->pos0 < 0 || a->stride < 0 || !kvl_mul(&last, a->tokens, a->stride) ||
                    last > INT64_MAX - a->pos0))
        return kvl_fail(err, KVL_EINVAL, "rope: %lld tokens from position %lld, %lld apart",
                        (long long)a->tokens, (long long)a->pos0, (long long)a->stride);
    if (a->batch < 0 || a->tokens < 0 || a->heads < 0 || !kvl_mul(&floats, a->heads, a->width) ||
        floats > INT64_MAX / 2)
        return kvl_fail(err, KVL_EINVAL, "rope: x [%lld, %lld, %lld, %lld]", (long long)a->batch,
                        (long long)a->tokens, (long long)a->heads, (long long)a->width);
    job j = {rope, a, TILE_FLOATS / (floats + 1) + 1, NULL};
    if (!kvl_mul(&tiles, kvl_tiles(a->tokens, j.per_tile), a->batch))
        return kvl_fail(err, KVL_EINVAL, "rope: batch of %lld overflows", (long long)a->batch);
    kvl_status status = KVL_OK;
    if (a->batch > 1 && a->heads > 0 && !a->pos) {
        j.table = kvl_alloc_raw((size_t)(a->tokens * rope->n) * sizeof(float));
        if (!j.table)
            return kvl_fail(err, KVL_ENOMEM, "rope: no memory for the angles of %lld tokens",
                            (long long)a->tokens);
        status = kvl_parallel_for(kvl_tiles(a->tokens, j.per_tile), 0, table_tile, &j, err);
    }
    if (!status)
        status = kvl_parallel_for(tiles, (size_t)rope->n * sizeof(float), rope_tile, &j, err);
    kvl_free(j.table);
    return status;
}

void kvl_rope_ref(double *out, const double *x, const kvl_rope *r, double position, int64_t width) {
    int64_t half = r->n / 2, at = r->first ? 0 : width - r->n;
    for (int64_t i = 0; i < width; i++)
        out[i] = x[i];
    for (int64_t i = 0; i < half; i++) {
        int64_t p = at + (r->half_split ? i : 2 * i), q = r->half_split ? p + half : p + 1;
        double angle = position * r->freq[i] * (r->inverse ? -1.0 : 1.0);
        double a = x[p], b = x[q];
        out[p] = a * cos(angle) - b * sin(angle);
        out[q] = a * sin(angle) + b * cos(angle);
    }
}

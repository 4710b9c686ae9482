/* optim.c - one fused pass over a parameter and its state; sums in order. See kvlab/optim.h. */
#include "kvlab/optim.h"

#include "kvlab/parallel.h"
#include "kvlab/vmath.h"

#include <math.h>

enum { TILE = 16 * 1024, LANES = 8 };

/* --- AdamW ------------------------------------------------------------------------------------ */

/* The constants of a step: keep = 1 - lr decay, rate = lr / (1 - beta1^t), root = 1 / sqrt(1 -
 * beta2^t). */
typedef struct step {
    float *p, *m, *v;
    const float *g;
    int64_t n;
    float scale, beta1, beta2, rest1, rest2, keep, rate, root, eps;
} step;

KVL_CLONES
static void update(float *p, float *m, float *v, const float *grad, const step *s, int64_t n) {
    float scale = s->scale, beta1 = s->beta1, beta2 = s->beta2, rest1 = s->rest1, rest2 = s->rest2;
    float keep = s->keep, rate = s->rate, root = s->root, eps = s->eps;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * scale;
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        p[i] = p[i] * keep - rate * m[i] / (sqrtf(v[i]) * root + eps);
    }
}

static kvl_status step_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const step *s = ctx;
    int64_t at = tile * TILE, n = s->n - at < TILE ? s->n - at : TILE;
    update(s->p + at, s->m + at, s->v + at, s->g + at, s, n);
    return KVL_OK;
}

static step constants(const kvl_adamw *a) {
    double t = (double)a->step;
    return (step){.scale = (float)a->grad_scale,
                  .beta1 = (float)a->beta1,
                  .beta2 = (float)a->beta2,
                  .rest1 = (float)(1.0 - a->beta1),
                  .rest2 = (float)(1.0 - a->beta2),
                  .keep = (float)(1.0 - a->lr * a->decay),
                  .rate = (float)(a->lr / (1.0 - pow(a->beta1, t))),
                  .root = (float)(1.0 / sqrt(1.0 - pow(a->beta2, t))),
                  .eps = (float)a->eps};
}

kvl_status kvl_adamw_step(float *p, float *m, float *v, const float *grad, const kvl_adamw *adamw,
                          int64_t n, kvl_error *err) {
    if (n < 0 || adamw->step < 1 || !(adamw->beta1 >= 0 && adamw->beta1 < 1) ||
        !(adamw->beta2 >= 0 && adamw->beta2 < 1) || !(adamw->eps >= 0))
        return kvl_fail(
            err, KVL_EINVAL,
            "adamw: step %lld must be >= 1, beta1 %g and beta2 %g in [0, 1), eps %g >= 0",
            (long long)adamw->step, adamw->beta1, adamw->beta2, adamw->eps);
    step s = constants(adamw);
    s.p = p, s.m = m, s.v = v, s.g = grad, s.n = n;
    return kvl_parallel_for(kvl_tiles(n, TILE), 0, step_tile, &s, err);
}

void kvl_adamw_step_ref(double *p, double *m, double *v, const double *grad, const kvl_adamw *a,
                        int64_t n) {
    double t = (double)a->step;
    for (int64_t i = 0; i < n; i++) {
        double g = a->grad_scale * grad[i];
        p[i] -= a->lr * a->decay * p[i];
        m[i] = a->beta1 * m[i] + (1 - a->beta1) * g;
        v[i] = a->beta2 * v[i] + (1 - a->beta2) * g * g;
        p[i] -= a->lr * (m[i] / (1 - pow(a->beta1, t))) /
                (sqrt(v[i] / (1 - pow(a->beta2, t))) + a->eps);
    }
}

/* --- norm and scale --------------------------------------------------------------------------- */

typedef struct tensor {
    kvl_floats x;
    double *part; /* sum of squares of each tile */
    float factor;
} tensor;

KVL_CLONES
static double sum_squares(const float *x, int64_t n) {
    double lane[LANES] = {0.0}, sum = 0.0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)x[i + l] * (double)x[i + l];
    for (; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

static kvl_status square_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const tensor *t = ctx;
    int64_t at = tile * TILE, n = t->x.n - at < TILE ? t->x.n - at : TILE;
    t->part[tile] = sum_squares(t->x.p + at, n);
    return KVL_OK;
}

static kvl_status scale_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const tensor *t = ctx;
    int64_t at = tile * TILE, n = t->x.n - at < TILE ? t->x.n - at : TILE;
    kvl_scale_by(t->x.p + at, t->factor, n);
    return KVL_OK;
}

kvl_status kvl_global_norm(double *norm, const kvl_floats *list, int64_t count, kvl_error *err) {
    int64_t most = 1;
    double sum = 0.0;
    kvl_status status = KVL_OK;
    for (int64_t i = 0; i < count; i++)
        if (kvl_tiles(list[i].n, TILE) > most) most = kvl_tiles(list[i].n, TILE);
    tensor t = {.part = kvl_alloc((size_t)most * sizeof(double))};
    if (!t.part)
        return kvl_fail(err, KVL_ENOMEM, "global_norm: no memory for %lld sums", (long long)most);
    for (int64_t i = 0; i < count && !status; i++) {
        int64_t tiles = kvl_tiles(list[i].n, TILE);
        t.x = list[i];
        status = kvl_parallel_for(tiles, 0, square_tile, &t, err);
        for (int64_t k = 0; k < tiles && !status; k++)
            sum += t.part[k];
    }
    kvl_free(t.part);
    *norm = sqrt(sum);
    return status;
}

double kvl_clip_scale(double norm, double max) {
    return max > 0.0 && norm > max ? max / norm : 1.0;
}

kvl_status kvl_scale_all(const kvl_floats *list, int64_t count, float factor, kvl_error *err) {
    kvl_status status = KVL_OK;
    for (int64_t i = 0; i < count && !status; i++) {
        tensor t = {.x = list[i], .factor = factor};
        status = kvl_parallel_for(kvl_tiles(list[i].n, TILE), 0, scale_tile, &t, err);
    }
    return status;
}

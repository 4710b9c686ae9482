/* rows.c - softmax, log-sum-exp, cumulative sums, top-k: one row of a dimension at a time; see
 * ops.h.
 *
 * The dimension is brought last and made contiguous first, so a kernel sees (rows, n). A row
 * belongs to one task; short rows share one. Inside, a row is taken in blocks of BLOCK elements
 * whose sums are added in double precision, in order.
 */
#include "kvlab/index.h"
#include "kvlab/ops.h"
#include "kvlab/vmath.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "walk.h"

enum { BLOCK = 1024 };

typedef kvl_status rows_fn(void *out, const void *x, int64_t n, kvl_error *err);

typedef struct rows_job {
    rows_fn *fn;
    const char *x, *out;
    int64_t rows, n, n_out, group;
} rows_job;

static kvl_status rows_task(void *ctx, int64_t task, void *scratch, kvl_error *err) {
    (void)scratch;
    const rows_job *job = ctx;
    kvl_status status = KVL_OK;
    int64_t end = (task + 1) * job->group;
    if (end > job->rows) end = job->rows;
    for (int64_t i = task * job->group; status == KVL_OK && i < end; i++)
        status = job->fn((char *)job->out + i * job->n_out * 4, job->x + i * job->n * 4, job->n,
                         err);
    return status;
}

static int64_t rows_per_task(int64_t n) {
    return n >= KVL_TILE || n == 0 ? 1 : KVL_TILE / n;
}

static kvl_status check_dim(const kvl_tensor *a, int dim, const char *what, kvl_error *err) {
    char text[KVL_SHAPE_TEXT];
    if (dim >= 0 && dim < a->ndim) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "%s: there is no dimension %d in shape %s", what, dim + 1,
                    kvl_shape_text(text, a->ndim, a->shape));
}

/* Applies fn to every row of dimension dim. `drop`: fn makes one element of a row, and the
 * dimension disappears. */
static kvl_status each_row(kvl_tensor **out, const char *what, rows_fn *fn, const kvl_tensor *a,
                           kvl_dtype dtype, int dim, bool drop, kvl_error *err) {
    kvl_tensor *turned = NULL, *typed = NULL, *x = NULL, *made = NULL;
    *out = NULL;
    kvl_status status = check_dim(a, dim, what, err);
    if (status != KVL_OK) return status;
    int last = a->ndim - 1;
    status = kvl_tensor_transpose(&turned, a, dim, last, err);
    if (status == KVL_OK) status = kvl_tensor_cast(&typed, turned, dtype, err);
    if (status == KVL_OK) status = kvl_tensor_contiguous(&x, typed, err);
    if (status == KVL_OK) {
        int64_t shape[KVL_MAX_DIMS];
        memcpy(shape, x->shape, sizeof shape);
        if (drop) shape[last] = 1;
        status = kvl_tensor_new(&made, dtype, a->ndim, shape, err);
    }
    if (status == KVL_OK) {
        int64_t n = x->shape[last], n_out = made->shape[last];
        rows_job job = {fn,    kvl_tensor_data(x), kvl_tensor_data(made), 0, n,
                        n_out, rows_per_task(n)};
        job.rows = n_out ? kvl_tensor_numel(made) / n_out : 0;
        status = kvl_parallel_for(kvl_tiles(job.rows, job.group), 0, rows_task, &job, err);
    }
    kvl_tensor *back = NULL; /* the dimension goes back to its place */
    if (status == KVL_OK) status = kvl_tensor_transpose(&back, made, dim, last, err);
    if (status == KVL_OK && drop)
        status = kvl_tensor_select(out, back, dim, 0, err);
    else if (status == KVL_OK)
        *out = back;
    if (drop || status != KVL_OK) kvl_tensor_free(back);
    kvl_tensor_free(turned);
    kvl_tensor_free(typed);
    kvl_tensor_free(x);
    kvl_tensor_free(made);
    return status;
}

/* --- softmax and its relatives --------------------------------------------------------------- */

static bool has_nan(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (x[i] != x[i]) return true;
    return false;
}

/* sum of e^(x - max), the powers themselves into e (n) unless it is NULL. */
static double exp_sum(float *e, const float *x, float max, int64_t n) {
    float block[BLOCK];
    double sum = 0;
    for (int64_t i = 0; i < n && !kvl_cancelled(); i += BLOCK)
        sum += (double)kvl_exp_sum(e ? e + i : block, x + i, 1, max, n - i < BLOCK ? n - i : BLOCK);
    return sum;
}

static kvl_status softmax_row(void *out, const void *in, int64_t n, kvl_error *err) {
    const float *x = in; /* (n) */
    float *y = out;      /* (n) */
    float max = kvl_max(x, n);
    if (max == -INFINITY) {
        float value = has_nan(x, n) ? NAN : 0;
        for (int64_t i = 0; i < n; i++)
            y[i] = value;
        return KVL_OK;
    }
    double sum = exp_sum(y, x, max, n);
    kvl_scale_by(y, (float)(1 / sum), n);
    return kvl_cancelled() ? kvl_fail(err, KVL_ECANCEL, "interrupted") : KVL_OK;
}

static double logsumexp(const float *x, int64_t n) {
    float max = kvl_max(x, n);
    if (max == -INFINITY) return has_nan(x, n) ? NAN : -INFINITY;
    if (max == INFINITY) return has_nan(x, n) ? NAN : INFINITY;
    return (double)max + log(exp_sum(NULL, x, max, n));
}

static kvl_status logsumexp_row(void *out, const void *in, int64_t n, kvl_error *err) {
    *(float *)out = (float)logsumexp(in, n);
    return kvl_cancelled() ? kvl_fail(err, KVL_ECANCEL, "interrupted") : KVL_OK;
}

static kvl_status log_softmax_row(void *out, const void *in, int64_t n, kvl_error *err) {
    const float *x = in; /* (n) */
    float *y = out;      /* (n) */
    double lse = logsumexp(x, n);
    for (int64_t i = 0; i < n; i++)
        y[i] = lse == -INFINITY ? -INFINITY : (float)(x[i] - lse);
    return kvl_cancelled() ? kvl_fail(err, KVL_ECANCEL, "interrupted") : KVL_OK;
}

kvl_status kvl_softmax(kvl_tensor **out, const kvl_tensor *a, int dim, kvl_error *err) {
    return each_row(out, "softmax", softmax_row, a, KVL_FLOAT32, dim, false, err);
}

kvl_status kvl_logsumexp(kvl_tensor **out, const kvl_tensor *a, int dim, kvl_error *err) {
    return each_row(out, "logsumexp", logsumexp_row, a, KVL_FLOAT32, dim, true, err);
}

kvl_status kvl_log_softmax(kvl_tensor **out, const kvl_tensor *a, int dim, kvl_error *err) {
    return each_row(out, "log_softmax", log_softmax_row, a, KVL_FLOAT32, dim, false, err);
}

void kvl_logsumexp_ref(double *out, const float *x, int64_t rows, int64_t n) {
    for (int64_t i = 0; i < rows; i++) {
        double max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++)
            if (x[i * n + j] > max) max = x[i * n + j];
        for (int64_t j = 0; j < n; j++)
            sum += exp(x[i * n + j] - max);
        out[i] = max == -INFINITY ? -INFINITY : max + log(sum);
    }
}

void kvl_softmax_ref(double *out, const float *x, int64_t rows, int64_t n) {
    for (int64_t i = 0; i < rows; i++) {
        double lse;
        kvl_logsumexp_ref(&lse, x + i * n, 1, n);
        for (int64_t j = 0; j < n; j++)
            out[i * n + j] = lse == -INFINITY ? 0 : exp(x[i * n + j] - lse);
    }
}

/* --- cumulative sums ------------------------------------------------------------------------- */

static kvl_status cumsum_row(void *out, const void *in, int64_t n, kvl_error *err) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)((const float *)in)[i];
        ((float *)out)[i] = (float)sum;
        if ((i & 0xfffff) == 0 && kvl_cancelled()) return kvl_fail(err, KVL_ECANCEL, "interrupted");
    }
    return KVL_OK;
}

static kvl_status cumsum_int_row(void *out, const void *in, int64_t n, kvl_error *err) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += ((const int32_t *)in)[i];
        if (sum != (int32_t)sum)
            return kvl_fail(err, KVL_EINVAL, "cumsum: %lld is more than int32 holds",
                            (long long)sum);
        ((int32_t *)out)[i] = (int32_t)sum;
    }
    return KVL_OK;
}

kvl_status kvl_cumsum(kvl_tensor **out, const kvl_tensor *a, int dim, kvl_error *err) {
    return each_row(out, "cumsum", a->dtype == KVL_INT32 ? cumsum_int_row : cumsum_row, a, a->dtype,
                    dim, false, err);
}

/* --- top-k ----------------------------------------------------------------------------------- */

typedef struct place {
    float score;
    int32_t id;
} place;

static int by_score(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

typedef struct topk_job {
    const float *x; /* (rows, n) */
    int32_t *ids;   /* (rows, k), ascending, -1 at the end */
    float *scores;  /* (rows, k) or NULL */
    int64_t rows, n, k, group;
    kvl_topk_order order;
} topk_job;

/* Looks up the scores of the ids that were selected, and sorts a row by them when asked. */
static kvl_status topk_task(void *ctx, int64_t task, void *scratch, kvl_error *err) {
    (void)err;
    const topk_job *job = ctx;
    place *places = scratch; /* (k) */
    int64_t end = (task + 1) * job->group;
    if (end > job->rows) end = job->rows;
    for (int64_t row = task * job->group; row < end; row++) {
        int32_t *ids = job->ids + row * job->k;
        int64_t count = 0;
        for (; count < job->k && ids[count] >= 0; count++)
            places[count] = (place){job->x[row * job->n + ids[count]], ids[count]};
        if (job->order == KVL_BY_SCORE) qsort(places, (size_t)count, sizeof *places, by_score);
        for (int64_t i = 0; i < job->k; i++) {
            if (i < count) ids[i] = places[i].id;
            if (job->scores)
                job->scores[row * job->k + i] = i < count ? places[i].score : -INFINITY;
        }
    }
    return KVL_OK;
}

kvl_status kvl_tensor_topk(kvl_tensor **ids, kvl_tensor **scores, const kvl_tensor *a, int64_t k,
                           kvl_topk_order order, kvl_error *err) {
    kvl_tensor *typed = NULL, *x = NULL;
    *ids = NULL;
    if (scores) *scores = NULL;
    if (a->ndim < 1) return kvl_fail(err, KVL_EINVAL, "topk: a single number has no dimension");
    int64_t n = a->shape[a->ndim - 1], shape[KVL_MAX_DIMS];
    if (k < 0) return kvl_fail(err, KVL_EINVAL, "topk: k = %lld, it is 0 or more", (long long)k);
    if (n > INT32_MAX) return kvl_fail(err, KVL_EINVAL, "topk: more ids than int32 holds");
    memcpy(shape, a->shape, sizeof shape);
    shape[a->ndim - 1] = k;
    kvl_status status = kvl_tensor_cast(&typed, a, KVL_FLOAT32, err);
    if (status == KVL_OK) status = kvl_tensor_contiguous(&x, typed, err);
    if (status == KVL_OK) status = kvl_tensor_new(ids, KVL_INT32, a->ndim, shape, err);
    if (status == KVL_OK && scores)
        status = kvl_tensor_new(scores, KVL_FLOAT32, a->ndim, shape, err);
    int64_t rows = status == KVL_OK && k > 0 ? kvl_tensor_numel(*ids) / k : 0;
    if (rows > 0) status = kvl_topk(kvl_tensor_i32(*ids), kvl_tensor_f32(x), n, rows, n, k, err);
    if (status == KVL_OK && rows > 0 && (scores || order == KVL_BY_SCORE)) {
        topk_job job = {kvl_tensor_f32(x),
                        kvl_tensor_i32(*ids),
                        scores ? kvl_tensor_f32(*scores) : NULL,
                        rows,
                        n,
                        k,
                        rows_per_task(k),
                        order};
        status = kvl_parallel_for(kvl_tiles(rows, job.group), (size_t)k * sizeof(place), topk_task,
                                  &job, err);
    }
    kvl_tensor_free(typed);
    kvl_tensor_free(x);
    if (status != KVL_OK) {
        kvl_tensor_free(*ids);
        *ids = NULL;
        if (scores) {
            kvl_tensor_free(*scores);
            *scores = NULL;
        }
    }
    return status;
}

/* reduce.c - sums, means, extremes, any / all over one dimension or all; see ops.h.
 *
 * The input is seen as (outer, n, inner), row-major, and n is reduced. Long rows are cut into
 * pieces of CHUNK elements, wide ones into tiles of COLUMNS columns; every piece leaves a partial
 * result in an array (outer, chunks, inner), and the partials are joined in order. So the order of
 * additions depends on sizes only.
 */
#include "kvlab/ops.h"
#include "kvlab/vmath.h"

#include <math.h>
#include <string.h>

#include "walk.h"

enum { CHUNK = 16384, COLUMNS = 256, LANES = 16 };

static const char *const reduce_names[KVL_REDUCE_OPS] = {
    [KVL_SUM] = "sum",       [KVL_MEAN] = "mean", [KVL_VAR] = "var",
    [KVL_AMAX] = "max",      [KVL_AMIN] = "min",  [KVL_ARGMAX] = "argmax",
    [KVL_ARGMIN] = "argmin", [KVL_ANY] = "any",   [KVL_ALL] = "all",
};

const char *kvl_reduce_name(kvl_reduce_op op) {
    return reduce_names[op];
}

/* What a partial result is: a sum in double (float32, and squares), or an integer: the exact sum of
 * int32, a count, or the index of an extreme in x. */
typedef union partial {
    double sum;
    int64_t integer;
} partial;

typedef struct reduce_job {
    kvl_reduce_op op;
    const void *x;      /* (outer, n, inner) */
    bool integer;       /* x is int32, else float32 */
    const double *mean; /* (outer, inner), second pass of var; else NULL */
    partial *part;      /* (outer, chunks, inner) */
    int64_t outer, n, inner, chunks;
    int64_t tiles, group; /* column tiles; chunks that one task takes when inner is 1 */
} reduce_job;

static bool better_f32(kvl_reduce_op op, float a, float b) {
    if (b != b) return false; /* the first NaN stays */
    if (a != a) return true;
    return op == KVL_AMAX || op == KVL_ARGMAX ? a > b : a < b;
}

static bool better(const reduce_job *job, int64_t a, int64_t b) {
    if (!job->integer)
        return better_f32(job->op, ((const float *)job->x)[a], ((const float *)job->x)[b]);
    int32_t x = ((const int32_t *)job->x)[a], y = ((const int32_t *)job->x)[b];
    return job->op == KVL_AMAX || job->op == KVL_ARGMAX ? x > y : x < y;
}

/* Sum of (x - shift), or of its square, over n neighbours; 16 lanes joined in order. */
KVL_CLONES static double sum_f32(const float *x, int64_t n, double shift, bool square) {
    double lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    if (square) {
        for (; i + LANES <= n; i += LANES)
            for (int k = 0; k < LANES; k++) {
                double d = (double)x[i + k] - shift;
                lane[k] += d * d;
            }
    } else {
        for (; i + LANES <= n; i += LANES)
            for (int k = 0; k < LANES; k++)
                lane[k] += (double)x[i + k];
    }
    for (int k = 0; i < n; i++, k++) {
        double d = square ? (double)x[i] - shift : (double)x[i];
        lane[k] += square ? d * d : d;
    }
    for (int k = 0; k < LANES; k++)
        sum += lane[k];
    return sum;
}

static bool nonzero(const reduce_job *job, int64_t at) {
    return job->integer ? ((const int32_t *)job->x)[at] != 0 : ((const float *)job->x)[at] != 0;
}

/* Elements at .. at + n-1 of x, neighbours: one partial. */
static partial reduce_run(const reduce_job *job, int64_t at, int64_t n, double mean) {
    partial r = {.integer = 0};
    switch (job->op) {
    case KVL_SUM:
    case KVL_MEAN:
    case KVL_VAR:
        if (!job->integer) {
            r.sum = sum_f32((const float *)job->x + at, n, mean, job->mean != NULL);
        } else if (job->mean) {
            r.sum = 0;
            for (int64_t i = 0; i < n; i++) {
                double d = ((const int32_t *)job->x)[at + i] - mean;
                r.sum += d * d;
            }
        } else {
            for (int64_t i = 0; i < n; i++)
                r.integer += ((const int32_t *)job->x)[at + i];
        }
        break;
    case KVL_ANY:
    case KVL_ALL: /* the number of elements that are not 0 */
        for (int64_t i = 0; i < n; i++)
            r.integer += nonzero(job, at + i);
        break;
    default:
        r.integer = at;
        for (int64_t i = 1; i < n; i++)
            if (better(job, at + i, r.integer)) r.integer = at + i;
    }
    return r;
}

static partial join(const reduce_job *job, partial a, partial b) {
    switch (job->op) {
    case KVL_SUM:
    case KVL_MEAN:
    case KVL_VAR:
        if (job->integer && !job->mean)
            a.integer += b.integer;
        else
            a.sum += b.sum;
        return a;
    case KVL_ANY:
    case KVL_ALL: a.integer += b.integer; return a;
    default: return better(job, b.integer, a.integer) ? b : a;
    }
}

/* inner = 1: a task takes `group` pieces of CHUNK elements. */
static kvl_status rows_task(void *ctx, int64_t task, void *scratch, kvl_error *err) {
    (void)scratch, (void)err;
    const reduce_job *job = ctx;
    int64_t end = (task + 1) * job->group, all = job->outer * job->chunks;
    for (int64_t piece = task * job->group; piece < end && piece < all; piece++) {
        int64_t row = piece / job->chunks, from = piece % job->chunks * CHUNK;
        int64_t n = job->n - from < CHUNK ? job->n - from : CHUNK;
        double mean = job->mean ? job->mean[row] : 0;
        job->part[piece] = reduce_run(job, row * job->n + from, n, mean);
    }
    return KVL_OK;
}

/* inner > 1: a task takes one tile of columns of one piece of CHUNK / COLUMNS rows. */
static kvl_status columns_task(void *ctx, int64_t task, void *scratch, kvl_error *err) {
    (void)scratch, (void)err;
    const reduce_job *job = ctx;
    int64_t tile = task % job->tiles, chunk = task / job->tiles % job->chunks;
    int64_t outer = task / job->tiles / job->chunks, first = tile * COLUMNS;
    int64_t width = job->inner - first < COLUMNS ? job->inner - first : COLUMNS;
    int64_t from = chunk * (CHUNK / 16),
            to = from + CHUNK / 16 < job->n ? from + CHUNK / 16 : job->n;
    partial *part = job->part + (outer * job->chunks + chunk) * job->inner + first; /* (width) */
    const double *mean = job->mean ? job->mean + outer * job->inner + first : NULL;
    for (int64_t i = from; i < to; i++) {
        int64_t at = (outer * job->n + i) * job->inner + first;
        if (!job->integer && job->op <= KVL_VAR) { /* the common case, without calls */
            const float *x = (const float *)job->x + at;
            for (int64_t c = 0; c < width && i == from; c++)
                part[c].sum = 0;
            for (int64_t c = 0; c < width; c++) {
                double d = mean ? x[c] - mean[c] : x[c];
                part[c].sum += mean ? d * d : d;
            }
        } else if (i == from) {
            for (int64_t c = 0; c < width; c++)
                part[c] = reduce_run(job, at + c, 1, mean ? mean[c] : 0);
        } else {
            for (int64_t c = 0; c < width; c++)
                part[c] = join(job, part[c], reduce_run(job, at + c, 1, mean ? mean[c] : 0));
        }
    }
    return KVL_OK;
}

/* Fills job->part and joins it into part[0 .. outer * inner). n is at least 1. */
static kvl_status reduce_pass(reduce_job *job, kvl_error *err) {
    kvl_status status;
    if (job->inner == 1) {
        job->group = job->n >= CHUNK ? 1 : CHUNK / job->n;
        int64_t pieces = job->outer * job->chunks;
        status = kvl_parallel_for(kvl_tiles(pieces, job->group), 0, rows_task, job, err);
    } else {
        status = kvl_parallel_for(job->outer * job->chunks * job->tiles, 0, columns_task, job, err);
    }
    if (status != KVL_OK) return status;
    for (int64_t o = 0; o < job->outer; o++)
        for (int64_t c = 0; c < job->inner; c++) {
            partial r = job->part[o * job->chunks * job->inner + c];
            for (int64_t k = 1; k < job->chunks; k++)
                r = join(job, r, job->part[(o * job->chunks + k) * job->inner + c]);
            job->part[o * job->inner + c] = r; /* never beyond what was read */
        }
    return KVL_OK;
}

/* The result of n elements of which r is left; `index` is that of the first of them in x. */
static kvl_status finish(const reduce_job *job, kvl_tensor *out, int64_t to, partial r,
                         int64_t index, kvl_error *err) {
    float *f = kvl_tensor_f32(out);
    int32_t *i32 = kvl_tensor_i32(out);
    double sum = job->integer && !job->mean ? (double)r.integer : r.sum;
    switch (job->op) {
    case KVL_SUM: /* of integers */
        if (r.integer == (int32_t)r.integer)
            i32[to] = (int32_t)r.integer;
        else
            return kvl_fail(err, KVL_EINVAL, "sum: %lld is more than int32 holds",
                            (long long)r.integer);
        break;
    case KVL_MEAN:
    case KVL_VAR: f[to] = (float)(sum / (double)job->n); break;
    case KVL_ANY: i32[to] = r.integer > 0; break;
    case KVL_ALL: i32[to] = r.integer == job->n; break;
    case KVL_AMAX:
    case KVL_AMIN: i32[to] = ((const int32_t *)job->x)[r.integer]; break; /* 4 bytes either way */
    default: i32[to] = (int32_t)((r.integer - index) / job->inner);
    }
    return KVL_OK;
}

/* x is contiguous and out is (outer, inner). */
static kvl_status reduce(kvl_tensor *out, reduce_job *job, kvl_error *err) {
    double *mean = NULL;
    kvl_status status = KVL_OK;
    int64_t count = job->outer * job->inner, cells;
    if (count == 0) return KVL_OK;
    job->chunks = kvl_tiles(job->n, job->inner == 1 ? CHUNK : CHUNK / 16);
    job->tiles = kvl_tiles(job->inner, COLUMNS);
    if (job->chunks == 0) job->chunks = 1;
    if (!kvl_mul(&cells, count, job->chunks) || cells > INT64_MAX / 64)
        return kvl_fail(err, KVL_EINVAL, "%s: too many elements", kvl_reduce_name(job->op));
    job->part = kvl_alloc((size_t)cells * sizeof *job->part);
    if (job->op == KVL_VAR) mean = kvl_alloc((size_t)count * sizeof *mean);
    if (!job->part || (job->op == KVL_VAR && !mean))
        status = kvl_fail(err, KVL_ENOMEM, "%s: no memory for %lld partial results",
                          kvl_reduce_name(job->op), (long long)cells);
    if (status == KVL_OK && job->n > 0) status = reduce_pass(job, err);
    if (status == KVL_OK && job->op == KVL_VAR && job->n > 0) {
        for (int64_t i = 0; i < count; i++)
            mean[i] = (job->integer ? (double)job->part[i].integer : job->part[i].sum) /
                      (double)job->n;
        job->mean = mean;
        status = reduce_pass(job, err);
    }
    bool plain = job->op == KVL_SUM && !job->integer;
    for (int64_t i = 0; plain && status == KVL_OK && i < count; i++)
        kvl_tensor_f32(out)[i] = (float)job->part[i].sum;
    for (int64_t i = 0; !plain && status == KVL_OK && i < count; i++)
        status = finish(job, out, i, job->part[i],
                        i / job->inner * job->n * job->inner + i % job->inner, err);
    kvl_free(job->part);
    kvl_free(mean);
    return status;
}

kvl_status kvl_reduce(kvl_tensor **out, kvl_reduce_op op, const kvl_tensor *a, int dim, bool keep,
                      kvl_error *err) {
    char text[KVL_SHAPE_TEXT];
    int64_t shape[KVL_MAX_DIMS];
    int ndim = 0;
    reduce_job job = {.op = op, .integer = a->dtype == KVL_INT32, .outer = 1, .n = 1, .inner = 1};
    *out = NULL;
    if (dim < KVL_EVERY_DIM || dim >= a->ndim)
        return kvl_fail(err, KVL_EINVAL, "%s: there is no dimension %d in shape %s",
                        kvl_reduce_name(op), dim + 1, kvl_shape_text(text, a->ndim, a->shape));
    for (int i = 0; i < a->ndim; i++) {
        bool reduced = dim == KVL_EVERY_DIM || i == dim;
        int64_t *part = reduced ? &job.n : i < dim ? &job.outer : &job.inner;
        *part *= a->shape[i];
        if (!reduced || keep) shape[ndim++] = reduced ? 1 : a->shape[i];
    }
    if (job.n == 0 && op >= KVL_AMAX && op <= KVL_ARGMIN && job.outer * job.inner > 0)
        return kvl_fail(err, KVL_EINVAL, "%s: shape %s has no elements to compare",
                        kvl_reduce_name(op), kvl_shape_text(text, a->ndim, a->shape));
    if ((op == KVL_ARGMAX || op == KVL_ARGMIN) && job.n > INT32_MAX)
        return kvl_fail(err, KVL_EINVAL, "%s: %lld elements have more ids than int32 holds",
                        kvl_reduce_name(op), (long long)job.n);
    kvl_dtype type = op == KVL_MEAN || op == KVL_VAR ? KVL_FLOAT32
                     : op >= KVL_ARGMAX              ? KVL_INT32
                                                     : a->dtype;
    kvl_tensor *x;
    kvl_status status = kvl_tensor_contiguous(&x, a, err);
    if (status != KVL_OK) return status;
    status = kvl_tensor_new(out, type, ndim, shape, err);
    if (status == KVL_OK) {
        job.x = kvl_tensor_data(x);
        status = reduce(*out, &job, err);
    }
    kvl_tensor_free(x);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

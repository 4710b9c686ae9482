/* gather.c - reading and writing by ids; see ops.h.
 * Every id is checked before anything is moved. */
#include "kvlab/ops.h"

#include <string.h>

#include "walk.h"

/* ids must be int32 with every value in 0 .. size-1. */
static kvl_status check_ids(const kvl_tensor *ids, int64_t size, const char *what, kvl_error *err) {
    if (ids->dtype != KVL_INT32)
        return kvl_fail(err, KVL_EINVAL, "%s: ids must be int32, not %s", what,
                        kvl_dtype_name(ids->dtype));
    kvl_tensor *flat;
    kvl_status status = kvl_tensor_contiguous(&flat, ids, err);
    if (status != KVL_OK) return status;
    const int32_t *id = kvl_tensor_i32(flat); /* (n) */
    int64_t n = kvl_tensor_numel(flat);
    for (int64_t i = 0; status == KVL_OK && i < n; i++) {
        if (id[i] < 0 || id[i] >= size)
            status = kvl_fail(err, KVL_EINVAL, "%s: id %d is outside 0 .. %lld", what, (int)id[i],
                              (long long)size - 1);
        else if ((i & 0xfffff) == 0 && kvl_cancelled())
            status = kvl_fail(err, KVL_ECANCEL, "interrupted");
    }
    kvl_tensor_free(flat);
    return status;
}

/* gather and scatter: ids has the dimensions of a, and its sizes but for dimension dim. */
static kvl_status check_shapes(const kvl_tensor *a, int dim, const kvl_tensor *ids,
                               const char *what, kvl_error *err) {
    char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
    if (dim < 0 || dim >= a->ndim)
        return kvl_fail(err, KVL_EINVAL, "%s: there is no dimension %d in shape %s", what, dim + 1,
                        kvl_shape_text(ta, a->ndim, a->shape));
    bool same = a->ndim == ids->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = i == dim || a->shape[i] == ids->shape[i];
    if (!same)
        return kvl_fail(err, KVL_EINVAL,
                        "%s: ids of shape %s for shape %s: all sizes but that of dimension %d must "
                        "be equal",
                        what, kvl_shape_text(tb, ids->ndim, ids->shape),
                        kvl_shape_text(ta, a->ndim, a->shape), dim + 1);
    return check_ids(ids, a->shape[dim], what, err);
}

/* Starts a walk over the rows of ids along dim; operands are added with add_rows. */
static void rows_init(kvl_walk *w, const kvl_tensor *ids, int dim) {
    int64_t shape[KVL_MAX_DIMS];
    memcpy(shape, ids->shape, sizeof shape);
    shape[dim] = ids->shape[ids->ndim - 1];
    shape[ids->ndim - 1] = ids->shape[dim];
    kvl_walk_init(w, ids->ndim, shape);
    w->whole_rows = true;
}

/* `start`: the operand is addressed by id, so the row function gets the start of its row. */
static void add_rows(kvl_walk *w, const kvl_tensor *t, int dim, bool start) {
    kvl_tensor turned = *t; /* borrows: never freed */
    int last = t->ndim - 1;
    turned.shape[dim] = t->shape[last];
    turned.stride[dim] = t->stride[last];
    turned.shape[last] = start ? 1 : t->shape[dim];
    turned.stride[last] = t->stride[dim];
    kvl_walk_add(w, &turned);
}

typedef struct by_id_job {
    int64_t stride; /* of the operand that is addressed by id */
    bool add;
    kvl_dtype dtype;
} by_id_job;

static kvl_status gather_row(void *ctx, int64_t n, char *const *p, const int64_t *s,
                             kvl_error *err) {
    (void)err;
    int64_t stride = ((const by_id_job *)ctx)->stride;
    uint32_t *out = (uint32_t *)p[0];
    const int32_t *id = (const int32_t *)p[1];
    const uint32_t *a = (const uint32_t *)p[2];
    for (int64_t i = 0; i < n; i++)
        out[i * s[0]] = a[id[i * s[1]] * stride];
    return KVL_OK;
}

static kvl_status scatter_row(void *ctx, int64_t n, char *const *p, const int64_t *s,
                              kvl_error *err) {
    const by_id_job *job = ctx;
    const int32_t *id = (const int32_t *)p[1];
    for (int64_t i = 0; i < n; i++) {
        char *to = p[0] + id[i * s[1]] * job->stride * 4;
        const char *from = p[2] + i * s[2] * 4;
        if (!job->add) {
            memcpy(to, from, 4);
        } else if (job->dtype == KVL_FLOAT32) {
            *(float *)to += *(const float *)from;
        } else {
            int64_t sum = (int64_t) * (int32_t *)to + *(const int32_t *)from;
            if (sum != (int32_t)sum)
                return kvl_fail(err, KVL_EINVAL, "scatter_add: %lld is more than int32 holds",
                                (long long)sum);
            *(int32_t *)to = (int32_t)sum;
        }
    }
    return KVL_OK;
}

kvl_status kvl_gather(kvl_tensor **out, const kvl_tensor *a, int dim, const kvl_tensor *ids,
                      kvl_error *err) {
    *out = NULL;
    kvl_status status = check_shapes(a, dim, ids, "gather", err);
    if (status == KVL_OK) status = kvl_tensor_new(out, a->dtype, ids->ndim, ids->shape, err);
    if (status != KVL_OK) return status;
    kvl_walk w;
    by_id_job job = {.stride = a->stride[dim]};
    rows_init(&w, ids, dim);
    add_rows(&w, *out, dim, false);
    add_rows(&w, ids, dim, false);
    add_rows(&w, a, dim, true);
    status = kvl_walk_run(&w, gather_row, &job, err);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

kvl_status kvl_scatter(kvl_tensor **out, const kvl_tensor *a, int dim, const kvl_tensor *ids,
                       const kvl_tensor *src, bool add, kvl_error *err) {
    const char *what = add ? "scatter_add" : "scatter";
    char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
    *out = NULL;
    kvl_status status = check_shapes(a, dim, ids, what, err);
    if (status != KVL_OK) return status;
    bool same = src->ndim == ids->ndim;
    for (int i = 0; same && i < src->ndim; i++)
        same = src->shape[i] == ids->shape[i];
    if (!same)
        return kvl_fail(err, KVL_EINVAL, "%s: ids have shape %s, the source %s: they must be equal",
                        what, kvl_shape_text(ta, ids->ndim, ids->shape),
                        kvl_shape_text(tb, src->ndim, src->shape));
    if (src->dtype != a->dtype)
        return kvl_fail(err, KVL_EINVAL, "%s: the source is %s, the target %s", what,
                        kvl_dtype_name(src->dtype), kvl_dtype_name(a->dtype));
    status = kvl_tensor_clone(out, a, err);
    if (status != KVL_OK) return status;
    kvl_walk w;
    by_id_job job = {(*out)->stride[dim], add, a->dtype};
    rows_init(&w, ids, dim);
    add_rows(&w, *out, dim, true);
    add_rows(&w, ids, dim, false);
    add_rows(&w, src, dim, false);
    status = kvl_walk_run(&w, scatter_row, &job, err);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

/* --- whole slices ---------------------------------------------------------------------------- */

typedef struct select_job {
    const char *a;     /* (outer, size, inner) */
    char *out;         /* (outer, n, inner) */
    const int32_t *id; /* (n) */
    int64_t outer, size, n, group;
    size_t bytes; /* of one slice */
} select_job;

static kvl_status select_task(void *ctx, int64_t task, void *scratch, kvl_error *err) {
    (void)scratch, (void)err;
    const select_job *job = ctx;
    int64_t end = (task + 1) * job->group;
    if (end > job->outer * job->n) end = job->outer * job->n;
    for (int64_t at = task * job->group; at < end; at++) {
        int64_t from = at / job->n * job->size + job->id[at % job->n];
        memcpy(job->out + (size_t)at * job->bytes, job->a + (size_t)from * job->bytes, job->bytes);
    }
    return KVL_OK;
}

kvl_status kvl_index_select(kvl_tensor **out, const kvl_tensor *a, int dim, const kvl_tensor *ids,
                            kvl_error *err) {
    char text[KVL_SHAPE_TEXT];
    kvl_tensor *x = NULL, *id = NULL;
    *out = NULL;
    if (dim < 0 || dim >= a->ndim)
        return kvl_fail(err, KVL_EINVAL, "index_select: there is no dimension %d in shape %s",
                        dim + 1, kvl_shape_text(text, a->ndim, a->shape));
    if (ids->ndim != 1)
        return kvl_fail(err, KVL_EINVAL, "index_select: ids of shape %s must have one dimension",
                        kvl_shape_text(text, ids->ndim, ids->shape));
    kvl_status status = check_ids(ids, a->shape[dim], "index_select", err);
    if (status == KVL_OK) status = kvl_tensor_contiguous(&x, a, err);
    if (status == KVL_OK) status = kvl_tensor_contiguous(&id, ids, err);
    if (status == KVL_OK) {
        int64_t shape[KVL_MAX_DIMS];
        memcpy(shape, a->shape, sizeof shape);
        shape[dim] = ids->shape[0];
        status = kvl_tensor_new(out, a->dtype, a->ndim, shape, err);
    }
    if (status == KVL_OK && kvl_tensor_numel(*out) > 0) {
        int64_t inner = 1;
        select_job job = {kvl_tensor_data(x),
                          kvl_tensor_data(*out),
                          kvl_tensor_i32(id),
                          1,
                          a->shape[dim],
                          ids->shape[0],
                          1,
                          0};
        for (int i = 0; i < a->ndim; i++) {
            if (i < dim) job.outer *= a->shape[i];
            if (i > dim) inner *= a->shape[i];
        }
        job.bytes = (size_t)inner * 4;
        if (inner < KVL_TILE) job.group = KVL_TILE / inner;
        status = kvl_parallel_for(kvl_tiles(job.outer * job.n, job.group), 0, select_task, &job,
                                  err);
    }
    kvl_tensor_free(x);
    kvl_tensor_free(id);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

kvl_status kvl_embedding(kvl_tensor **out, const kvl_tensor *weight, const kvl_tensor *ids,
                         kvl_error *err) {
    char text[KVL_SHAPE_TEXT];
    *out = NULL;
    if (weight->ndim != 2 || ids->ndim >= KVL_MAX_DIMS)
        return kvl_fail(err, KVL_EINVAL,
                        "embedding: the weight has shape %s, it must be {vocabulary, width}",
                        kvl_shape_text(text, weight->ndim, weight->shape));
    kvl_status status = check_ids(ids, weight->shape[0], "embedding", err);
    if (status != KVL_OK) return status;
    int64_t flat = kvl_tensor_numel(ids), shape[KVL_MAX_DIMS];
    kvl_tensor *row = NULL, *picked = NULL;
    memcpy(shape, ids->shape, sizeof shape);
    shape[ids->ndim] = weight->shape[1];
    status = kvl_tensor_reshape(&row, ids, 1, &flat, err);
    if (status == KVL_OK) status = kvl_index_select(&picked, weight, 0, row, err);
    if (status == KVL_OK) status = kvl_tensor_reshape(out, picked, ids->ndim + 1, shape, err);
    kvl_tensor_free(row);
    kvl_tensor_free(picked);
    return status;
}

/* tensor.c - storages, headers and views; see tensor.h.
 * Copies between shapes are in tensor_copy.c. */
#include "kvlab/tensor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "walk.h"

/* The elements follow the struct, which takes one alignment unit of kvl_alloc. */
struct kvl_storage {
    atomic_llong references;
    size_t bytes;
};
enum { STORAGE_HEAD = 64, ELEMENT = 4, CLEAR_BYTES = 1 << 16, CLEAR_MOST = 1 << 25 };

const char *kvl_dtype_name(kvl_dtype dtype) {
    return dtype == KVL_INT32 ? "int32" : "float32";
}

const char *kvl_shape_text(char text[KVL_SHAPE_TEXT], int ndim, const int64_t *shape) {
    int at = snprintf(text, KVL_SHAPE_TEXT, "{");
    for (int i = 0; i < ndim; i++)
        at += snprintf(text + at, (size_t)(KVL_SHAPE_TEXT - at), i ? ", %lld" : "%lld",
                       (long long)shape[i]);
    snprintf(text + at, (size_t)(KVL_SHAPE_TEXT - at), "}");
    return text;
}

/* t: the header of what did not fit, or NULL when the header itself did not. */
static kvl_status fail_memory(kvl_error *err, const kvl_tensor *t, int64_t bytes) {
    char text[KVL_SHAPE_TEXT];
    const double GIB = 1 << 30;
    if (!t) return kvl_fail(err, KVL_ENOMEM, "no memory for a tensor");
    return kvl_fail(
        err, KVL_ENOMEM,
        "a tensor of shape %s takes %.4g GiB: %.4g GiB are in use, the limit is %.4g GiB",
        kvl_shape_text(text, t->ndim, t->shape), (double)bytes / GIB,
        (double)kvl_live_bytes() / GIB, (double)kvl_memory_limit() / GIB);
}

/* Fills the header of a fresh tensor with row-major strides; *bytes is what its elements take. */
static kvl_status layout_init(kvl_tensor *t, int64_t *bytes, kvl_dtype dtype, int ndim,
                              const int64_t *shape, kvl_error *err) {
    memset(t, 0, sizeof *t);
    if (ndim < 0 || ndim > KVL_MAX_DIMS)
        return kvl_fail(err, KVL_EINVAL, "%d dimensions: a tensor has at most %d", ndim,
                        KVL_MAX_DIMS);
    t->ndim = ndim;
    t->dtype = dtype;
    int64_t stride = 1,
            count = 1; /* stride takes empty dimensions as 1, so that it is checked too */
    for (int i = ndim - 1; i >= 0; i--) {
        char text[KVL_SHAPE_TEXT];
        if (shape[i] < 0)
            return kvl_fail(err, KVL_EINVAL, "shape %s: a size is 0 or more",
                            kvl_shape_text(text, ndim, shape));
        t->shape[i] = shape[i];
        t->stride[i] = stride;
        count *= shape[i] ? 1 : 0;
        if (shape[i] > 0 && (!kvl_mul(&stride, stride, shape[i]) || stride > INT64_MAX / 64))
            return kvl_fail(err, KVL_EINVAL, "shape %s has too many elements",
                            kvl_shape_text(text, ndim, shape));
    }
    *bytes = (count ? stride : 0) * ELEMENT;
    return KVL_OK;
}

static kvl_status make(kvl_tensor **out, kvl_dtype dtype, int ndim, const int64_t *shape,
                       void *(*alloc)(size_t), kvl_error *err) {
    kvl_tensor head;
    int64_t bytes;
    *out = NULL;
    kvl_status status = layout_init(&head, &bytes, dtype, ndim, shape, err);
    if (status != KVL_OK) return status;
    kvl_storage *storage = alloc(STORAGE_HEAD + (size_t)bytes);
    kvl_tensor *t = storage ? kvl_alloc(sizeof *t) : NULL;
    if (!t) {
        kvl_free(storage);
        return fail_memory(err, &head, bytes);
    }
    atomic_init(&storage->references, 1);
    storage->bytes = (size_t)bytes;
    *t = head;
    t->storage = storage;
    *out = t;
    return KVL_OK;
}

static kvl_status clear_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const kvl_tensor *t = ctx;
    size_t at = (size_t)tile * CLEAR_BYTES, left = t->storage->bytes - at;
    memset((char *)kvl_tensor_data(t) + at, 0, left < CLEAR_BYTES ? left : CLEAR_BYTES);
    return KVL_OK;
}

/* Gradients are cleared again and again, by all threads. Larger blocks come from the system, which
 * gives zeros that cost nothing before they are touched. */
kvl_status kvl_tensor_new(kvl_tensor **out, kvl_dtype dtype, int ndim, const int64_t *shape,
                          kvl_error *err) {
    int64_t bytes;
    kvl_tensor head;
    kvl_status status = layout_init(&head, &bytes, dtype, ndim, shape, err);
    bool together = status == KVL_OK && kvl_loop_threads() > 1 && bytes > 4 * CLEAR_BYTES &&
                    bytes <= CLEAR_MOST;
    if (!together) return make(out, dtype, ndim, shape, kvl_alloc, err);
    status = make(out, dtype, ndim, shape, kvl_alloc_raw, err);
    if (status == KVL_OK)
        status = kvl_parallel_for(kvl_tiles(bytes, CLEAR_BYTES), 0, clear_tile, *out, err);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

kvl_status kvl_tensor_new_raw(kvl_tensor **out, kvl_dtype dtype, int ndim, const int64_t *shape,
                              kvl_error *err) {
    return make(out, dtype, ndim, shape, kvl_alloc_raw, err);
}

kvl_status kvl_tensor_from(kvl_tensor **out, kvl_dtype dtype, int ndim, const int64_t *shape,
                           const void *data, kvl_error *err) {
    kvl_status status = kvl_tensor_new(out, dtype, ndim, shape, err);
    if (status == KVL_OK && (*out)->storage->bytes)
        memcpy(kvl_tensor_data(*out), data, (*out)->storage->bytes);
    return status;
}

void kvl_tensor_free(kvl_tensor *t) {
    if (!t) return;
    if (atomic_fetch_sub(&t->storage->references, 1) == 1) kvl_free(t->storage);
    kvl_free(t);
}

/* --- reading the header ---------------------------------------------------------------------- */

int64_t kvl_tensor_numel(const kvl_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0) return 0; /* first, as the other sizes may be anything */
    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
}

bool kvl_tensor_is_contiguous(const kvl_tensor *t) {
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != stride) return kvl_tensor_numel(t) == 0;
        stride *= t->shape[i];
    }
    return true;
}

size_t kvl_tensor_bytes(const kvl_tensor *t) {
    return t->storage->bytes;
}

bool kvl_tensor_shares(const kvl_tensor *a, const kvl_tensor *b) {
    return a->storage == b->storage;
}

void *kvl_tensor_data(const kvl_tensor *t) {
    return (char *)t->storage + STORAGE_HEAD + t->offset * ELEMENT;
}

/* --- views ----------------------------------------------------------------------------------- */

kvl_status kvl_tensor_view(kvl_tensor **out, const kvl_tensor *t, kvl_error *err) {
    kvl_tensor *view = *out = kvl_alloc(sizeof *view);
    if (!view) return fail_memory(err, NULL, 0);
    *view = *t;
    atomic_fetch_add(&t->storage->references, 1);
    return KVL_OK;
}

static kvl_status check_dim(const kvl_tensor *t, int dim, const char *what, kvl_error *err) {
    char text[KVL_SHAPE_TEXT];
    if (dim >= 0 && dim < t->ndim) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "%s: there is no dimension %d in shape %s", what, dim + 1,
                    kvl_shape_text(text, t->ndim, t->shape));
}

kvl_status kvl_tensor_slice(kvl_tensor **out, const kvl_tensor *t, int dim, int64_t first,
                            int64_t count, int64_t step, kvl_error *err) {
    *out = NULL;
    kvl_status status = check_dim(t, dim, "slice", err);
    if (status != KVL_OK) return status;
    int64_t size = t->shape[dim];
    if (step < 1) return kvl_fail(err, KVL_EINVAL, "slice: the step is 1 or more");
    if (first < 0 || first > size || count < 0 ||
        (count > 0 && (first >= size || (count - 1) > (size - 1 - first) / step)))
        return kvl_fail(err, KVL_EINVAL,
                        "slice: %lld elements from index %lld by %lld leave a dimension of size "
                        "%lld",
                        (long long)count, (long long)first, (long long)step, (long long)size);
    status = kvl_tensor_view(out, t, err);
    if (status != KVL_OK) return status;
    (*out)->shape[dim] = count;
    if (count > 0) (*out)->offset += first * t->stride[dim];
    if (count > 1) (*out)->stride[dim] *= step;
    return KVL_OK;
}

kvl_status kvl_tensor_select(kvl_tensor **out, const kvl_tensor *t, int dim, int64_t index,
                             kvl_error *err) {
    *out = NULL;
    kvl_status status = check_dim(t, dim, "select", err);
    if (status != KVL_OK) return status;
    if (index < 0 || index >= t->shape[dim])
        return kvl_fail(err, KVL_EINVAL,
                        "select: there is no index %lld in a dimension of size %lld",
                        (long long)index, (long long)t->shape[dim]);
    status = kvl_tensor_view(out, t, err);
    if (status != KVL_OK) return status;
    kvl_tensor *view = *out;
    view->offset += index * t->stride[dim];
    view->ndim--;
    for (int i = dim; i < view->ndim; i++) {
        view->shape[i] = t->shape[i + 1];
        view->stride[i] = t->stride[i + 1];
    }
    return KVL_OK;
}

kvl_status kvl_tensor_permute(kvl_tensor **out, const kvl_tensor *t, const int *dims,
                              kvl_error *err) {
    bool seen[KVL_MAX_DIMS] = {false};
    *out = NULL;
    for (int i = 0; i < t->ndim; i++) {
        kvl_status status = check_dim(t, dims[i], "permute", err);
        if (status != KVL_OK) return status;
        if (seen[dims[i]])
            return kvl_fail(err, KVL_EINVAL, "permute: dimension %d is named twice", dims[i] + 1);
        seen[dims[i]] = true;
    }
    kvl_status status = kvl_tensor_view(out, t, err);
    if (status != KVL_OK) return status;
    for (int i = 0; i < t->ndim; i++) {
        (*out)->shape[i] = t->shape[dims[i]];
        (*out)->stride[i] = t->stride[dims[i]];
    }
    return KVL_OK;
}

kvl_status kvl_tensor_transpose(kvl_tensor **out, const kvl_tensor *t, int dim_a, int dim_b,
                                kvl_error *err) {
    int dims[KVL_MAX_DIMS];
    *out = NULL;
    kvl_status status = check_dim(t, dim_a, "transpose", err);
    if (status == KVL_OK) status = check_dim(t, dim_b, "transpose", err);
    if (status != KVL_OK) return status;
    for (int i = 0; i < t->ndim; i++)
        dims[i] = i == dim_a ? dim_b : i == dim_b ? dim_a : i;
    return kvl_tensor_permute(out, t, dims, err);
}

kvl_status kvl_tensor_expand(kvl_tensor **out, const kvl_tensor *t, int ndim, const int64_t *shape,
                             kvl_error *err) {
    kvl_tensor head;
    int64_t bytes, sizes[KVL_MAX_DIMS];
    char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
    *out = NULL;
    if (ndim < t->ndim || ndim > KVL_MAX_DIMS)
        return kvl_fail(err, KVL_EINVAL,
                        "expand: %d dimensions for a tensor of shape %s: from %d "
                        "to %d fit",
                        ndim, kvl_shape_text(ta, t->ndim, t->shape), t->ndim, KVL_MAX_DIMS);
    for (int i = 0; i < ndim; i++) {
        int it = i - (ndim - t->ndim);
        sizes[i] = shape[i] == -1 && it >= 0 ? t->shape[it] : shape[i];
        if (it >= 0 && t->shape[it] != 1 && t->shape[it] != sizes[i])
            return kvl_fail(err, KVL_EINVAL,
                            "expand: shape %s does not expand to %s: only sizes of 1 are repeated",
                            kvl_shape_text(ta, t->ndim, t->shape), kvl_shape_text(tb, ndim, shape));
    }
    kvl_status status = layout_init(&head, &bytes, t->dtype, ndim, sizes, err);
    if (status != KVL_OK) return status;
    status = kvl_tensor_view(out, t, err);
    if (status != KVL_OK) return status;
    kvl_tensor *view = *out;
    view->ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        int it = i - (ndim - t->ndim);
        view->shape[i] = sizes[i];
        view->stride[i] = it < 0 || (t->shape[it] == 1 && sizes[i] != 1) ? 0 : t->stride[it];
    }
    return KVL_OK;
}

/* Strides under which the elements of t, in order, have `shape`; false when no strides do.
 * Runs of dimensions of t that are contiguous with each other are matched to runs of `shape` with
 * the same product. t has elements. */
static bool reshape_strides(int64_t *stride, const kvl_tensor *t, int ndim, const int64_t *shape) {
    int64_t old_shape[KVL_MAX_DIMS], old_stride[KVL_MAX_DIMS];
    int n = 0;
    for (int i = 0; i < t->ndim; i++) { /* merge: sizes of 1 go, neighbours in order join */
        if (t->shape[i] == 1) continue;
        if (n > 0 && old_stride[n - 1] == t->stride[i] * t->shape[i]) {
            old_shape[n - 1] *= t->shape[i];
            old_stride[n - 1] = t->stride[i];
        } else {
            old_shape[n] = t->shape[i];
            old_stride[n++] = t->stride[i];
        }
    }
    int at = n - 1;
    int64_t left = n ? old_shape[at] : 1, next = n ? old_stride[at] : 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] == 1) {
            stride[i] = next;
            continue;
        }
        if (left == 1 && at > 0) {
            left = old_shape[--at];
            next = old_stride[at];
        }
        if (left % shape[i] != 0) return false;
        stride[i] = next;
        left /= shape[i];
        next *= shape[i];
    }
    return true;
}

kvl_status kvl_tensor_reshape(kvl_tensor **out, const kvl_tensor *t, int ndim, const int64_t *shape,
                              kvl_error *err) {
    char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
    int64_t sizes[KVL_MAX_DIMS], known = 1, numel = kvl_tensor_numel(t), bytes;
    int open = -1;
    *out = NULL;
    if (ndim < 0 || ndim > KVL_MAX_DIMS)
        return kvl_fail(err, KVL_EINVAL, "reshape: %d dimensions: a tensor has at most %d", ndim,
                        KVL_MAX_DIMS);
    for (int i = 0; i < ndim; i++) {
        sizes[i] = shape[i];
        if (shape[i] == -1 && open < 0)
            open = i;
        else if (!kvl_mul(&known, known, shape[i]))
            return kvl_fail(err, KVL_EINVAL,
                            "reshape: %s is no shape: sizes are 0 or more, and one may be -1",
                            kvl_shape_text(tb, ndim, shape));
    }
    if (open >= 0 && known > 0 && numel % known == 0) {
        sizes[open] = numel / known;
        known = numel;
    } else if (open >= 0) {
        known = -1;
    }
    if (known != numel)
        return kvl_fail(err, KVL_EINVAL, "reshape: %lld elements of shape %s do not make %s",
                        (long long)numel, kvl_shape_text(ta, t->ndim, t->shape),
                        kvl_shape_text(tb, ndim, shape));
    kvl_tensor head; /* row-major strides: right for a copy, and when there are no elements */
    int64_t stride[KVL_MAX_DIMS];
    kvl_status status = layout_init(&head, &bytes, t->dtype, ndim, sizes, err);
    if (status != KVL_OK) return status;
    bool as_view = numel == 0 || reshape_strides(stride, t, ndim, sizes);
    status = as_view ? kvl_tensor_view(out, t, err) : kvl_tensor_clone(out, t, err);
    if (status != KVL_OK) return status;
    kvl_tensor *result = *out;
    result->ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        result->shape[i] = sizes[i];
        result->stride[i] = as_view && numel > 0 ? stride[i] : head.stride[i];
    }
    return KVL_OK;
}

/* tensor_copy.c - what moves elements from shape to shape: copies, casts, fills, cat, and the
 * constructors that compute their values. */
#include "kvlab/tensor.h"

#include <math.h>
#include <string.h>

#include "walk.h"

/* --- rows: operand 0 is the output ----------------------------------------------------------- */

static kvl_status copy_row(void *ctx, int64_t n, char *const *p, const int64_t *s, kvl_error *err) {
    (void)ctx, (void)err;
    uint32_t *out = (uint32_t *)p[0];
    const uint32_t *in = (const uint32_t *)p[1];
    if (s[0] == 1 && s[1] == 1) {
        memcpy(out, in, (size_t)n * sizeof *out);
    } else {
        for (int64_t i = 0; i < n; i++)
            out[i * s[0]] = in[i * s[1]];
    }
    return KVL_OK;
}

static kvl_status to_float_row(void *ctx, int64_t n, char *const *p, const int64_t *s,
                               kvl_error *err) {
    (void)ctx, (void)err;
    float *out = (float *)p[0];
    const int32_t *in = (const int32_t *)p[1];
    for (int64_t i = 0; i < n; i++)
        out[i * s[0]] = (float)in[i * s[1]];
    return KVL_OK;
}

static kvl_status to_int_row(void *ctx, int64_t n, char *const *p, const int64_t *s,
                             kvl_error *err) {
    (void)ctx;
    int32_t *out = (int32_t *)p[0];
    const float *in = (const float *)p[1];
    for (int64_t i = 0; i < n; i++) {
        float x = in[i * s[1]];
        /* 2^31 is a float, 2^31 - 1 is not; NaN fails both comparisons */
        if (!(x >= -2147483648.0f && x < 2147483648.0f))
            return kvl_fail(err, KVL_EINVAL, "int32 cannot hold %.9g", (double)x);
        out[i * s[0]] = (int32_t)x;
    }
    return KVL_OK;
}

static kvl_status fill_row(void *ctx, int64_t n, char *const *p, const int64_t *s, kvl_error *err) {
    (void)err;
    uint32_t bits, *out = (uint32_t *)p[0];
    memcpy(&bits, ctx, sizeof bits);
    for (int64_t i = 0; i < n; i++)
        out[i * s[0]] = bits;
    return KVL_OK;
}

/* --- copies ---------------------------------------------------------------------------------- */

/* out and in have one shape and do not overlap. */
static kvl_status move(kvl_tensor *out, const kvl_tensor *in, kvl_error *err) {
    kvl_walk w;
    kvl_walk_init(&w, out->ndim, out->shape);
    kvl_walk_add(&w, out);
    kvl_walk_add(&w, in);
    kvl_row_fn *row = out->dtype == in->dtype     ? copy_row
                      : out->dtype == KVL_FLOAT32 ? to_float_row
                                                  : to_int_row;
    return kvl_walk_run(&w, row, NULL, err);
}

static kvl_status copy_as(kvl_tensor **out, const kvl_tensor *t, kvl_dtype dtype, kvl_error *err) {
    kvl_status status = kvl_tensor_new_raw(out, dtype, t->ndim, t->shape, err);
    if (status == KVL_OK) status = move(*out, t, err);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

kvl_status kvl_tensor_clone(kvl_tensor **out, const kvl_tensor *t, kvl_error *err) {
    return copy_as(out, t, t->dtype, err);
}

kvl_status kvl_tensor_contiguous(kvl_tensor **out, const kvl_tensor *t, kvl_error *err) {
    return kvl_tensor_is_contiguous(t) ? kvl_tensor_view(out, t, err)
                                       : kvl_tensor_clone(out, t, err);
}

kvl_status kvl_tensor_cast(kvl_tensor **out, const kvl_tensor *t, kvl_dtype dtype, kvl_error *err) {
    return t->dtype == dtype ? kvl_tensor_view(out, t, err) : copy_as(out, t, dtype, err);
}

kvl_status kvl_check_writable(const kvl_tensor *dst, const char *what, kvl_error *err) {
    for (int i = 0; i < dst->ndim; i++)
        if (dst->stride[i] == 0 && dst->shape[i] > 1)
            return kvl_fail(err, KVL_EINVAL,
                            "%s: the target repeats elements (expand): clone it before writing",
                            what);
    return KVL_OK;
}

kvl_status kvl_tensor_copy(kvl_tensor *dst, const kvl_tensor *src, kvl_error *err) {
    char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
    kvl_tensor *wide, *apart = NULL;
    kvl_status status = kvl_check_writable(dst, "copy", err);
    if (status != KVL_OK) return status;
    status = kvl_tensor_expand(&wide, src, dst->ndim, dst->shape, err);
    if (status == KVL_EINVAL)
        return kvl_fail(err, KVL_EINVAL, "copy: shape %s does not fit into shape %s",
                        kvl_shape_text(ta, src->ndim, src->shape),
                        kvl_shape_text(tb, dst->ndim, dst->shape));
    if (status != KVL_OK) return status;
    if (kvl_tensor_shares(dst, src)) status = kvl_tensor_clone(&apart, wide, err);
    if (status == KVL_OK) status = move(dst, apart ? apart : wide, err);
    kvl_tensor_free(apart);
    kvl_tensor_free(wide);
    return status;
}

/* The bits of `value` as an element of the type. */
static kvl_status element_bits(uint32_t *bits, kvl_dtype dtype, double value, kvl_error *err) {
    float f = (float)value;
    if (dtype == KVL_FLOAT32) {
        memcpy(bits, &f, sizeof *bits);
        return KVL_OK;
    }
    if (!(value >= INT32_MIN && value <= INT32_MAX) || value != floor(value))
        return kvl_fail(err, KVL_EINVAL, "int32 cannot hold %.17g", value);
    int32_t i = (int32_t)value;
    memcpy(bits, &i, sizeof *bits);
    return KVL_OK;
}

kvl_status kvl_tensor_fill(kvl_tensor *dst, double value, kvl_error *err) {
    uint32_t bits;
    kvl_walk w;
    kvl_status status = kvl_check_writable(dst, "fill", err);
    if (status == KVL_OK) status = element_bits(&bits, dst->dtype, value, err);
    if (status != KVL_OK) return status;
    kvl_walk_init(&w, dst->ndim, dst->shape);
    kvl_walk_add(&w, dst);
    return kvl_walk_run(&w, fill_row, &bits, err);
}

kvl_status kvl_tensor_cat(kvl_tensor **out, const kvl_tensor *const *list, int64_t count, int dim,
                          kvl_error *err) {
    char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
    *out = NULL;
    if (count < 1) return kvl_fail(err, KVL_EINVAL, "cat: there is nothing to join");
    const kvl_tensor *first = list[0];
    if (dim < 0 || dim >= first->ndim)
        return kvl_fail(err, KVL_EINVAL, "cat: there is no dimension %d in shape %s", dim + 1,
                        kvl_shape_text(ta, first->ndim, first->shape));
    int64_t shape[KVL_MAX_DIMS];
    memcpy(shape, first->shape, sizeof shape);
    for (int64_t k = 1; k < count; k++) {
        const kvl_tensor *t = list[k];
        bool same = t->ndim == first->ndim;
        for (int i = 0; same && i < t->ndim; i++)
            if (i != dim && t->shape[i] != first->shape[i]) same = false;
        if (!same)
            return kvl_fail(err, KVL_EINVAL,
                            "cat: shape %s (number %lld) does not continue %s along dimension %d: "
                            "the other sizes must be equal",
                            kvl_shape_text(ta, t->ndim, t->shape), (long long)k + 1,
                            kvl_shape_text(tb, first->ndim, first->shape), dim + 1);
        if (t->dtype != first->dtype)
            return kvl_fail(err, KVL_EINVAL, "cat: number %lld is %s, the first is %s",
                            (long long)k + 1, kvl_dtype_name(t->dtype),
                            kvl_dtype_name(first->dtype));
        if (__builtin_add_overflow(shape[dim], t->shape[dim], &shape[dim]))
            return kvl_fail(err, KVL_EINVAL, "cat: too many elements");
    }
    kvl_status status = kvl_tensor_new_raw(out, first->dtype, first->ndim, shape, err);
    kvl_tensor *all = *out;
    int64_t at = 0;
    for (int64_t k = 0; status == KVL_OK && k < count; k++) {
        kvl_tensor part = *all; /* borrows: never freed */
        part.shape[dim] = list[k]->shape[dim];
        part.offset += at * part.stride[dim];
        at += part.shape[dim];
        status = move(&part, list[k], err);
    }
    if (status != KVL_OK) {
        kvl_tensor_free(all);
        *out = NULL;
    }
    return status;
}

/* Long serial loops look at the cancel flag once in so many elements. */
static bool stop_at(int64_t i) {
    return (i & 0xfffff) == 0 && kvl_cancelled();
}

kvl_status kvl_tensor_equal(bool *equal, const kvl_tensor *a, const kvl_tensor *b, kvl_error *err) {
    *equal = false;
    if (a->dtype != b->dtype || a->ndim != b->ndim) return KVL_OK;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return KVL_OK;
    int64_t index[KVL_MAX_DIMS] = {0}, count = kvl_tensor_numel(a);
    const char *pa = kvl_tensor_data(a), *pb = kvl_tensor_data(b);
    int last = a->ndim - 1;
    int64_t n = last >= 0 ? a->shape[last] : 1;
    int64_t sa = last >= 0 ? a->stride[last] : 0, sb = last >= 0 ? b->stride[last] : 0;
    for (int64_t done = 0; done < count; done += n) {
        for (int64_t i = 0; i < n; i++) {
            const char *ea = pa + i * sa * 4, *eb = pb + i * sb * 4;
            bool same = a->dtype == KVL_FLOAT32 ? *(const float *)ea == *(const float *)eb
                                                : *(const int32_t *)ea == *(const int32_t *)eb;
            if (!same) return KVL_OK;
            if (stop_at(done + i)) return kvl_fail(err, KVL_ECANCEL, "interrupted");
        }
        for (int i = last - 1; i >= 0; i--) {
            pa += a->stride[i] * 4;
            pb += b->stride[i] * 4;
            if (++index[i] < a->shape[i]) break;
            pa -= a->stride[i] * a->shape[i] * 4;
            pb -= b->stride[i] * b->shape[i] * 4;
            index[i] = 0;
        }
    }
    *equal = true;
    return KVL_OK;
}

/* --- constructors that compute --------------------------------------------------------------- */

kvl_status kvl_tensor_full(kvl_tensor **out, kvl_dtype dtype, int ndim, const int64_t *shape,
                           double value, kvl_error *err) {
    kvl_status status = kvl_tensor_new(out, dtype, ndim, shape, err);
    if (status == KVL_OK && value != 0) status = kvl_tensor_fill(*out, value, err);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

kvl_status kvl_tensor_arange(kvl_tensor **out, kvl_dtype dtype, double first, double step,
                             int64_t count, kvl_error *err) {
    double last = first + (count > 0 ? (double)(count - 1) * step : 0);
    uint32_t bits;
    *out = NULL;
    if (dtype == KVL_INT32 && (element_bits(&bits, dtype, first, err) != KVL_OK ||
                               element_bits(&bits, dtype, last, err) != KVL_OK ||
                               element_bits(&bits, dtype, step, err) != KVL_OK))
        return KVL_EINVAL;
    kvl_status status = kvl_tensor_new(out, dtype, 1, &count, err);
    if (status != KVL_OK) return status;
    for (int64_t i = 0; i < count; i++) {
        if (stop_at(i)) {
            kvl_tensor_free(*out);
            *out = NULL;
            return kvl_fail(err, KVL_ECANCEL, "interrupted");
        }
        double x = first + (double)i * step;
        if (dtype == KVL_INT32)
            kvl_tensor_i32(*out)[i] = (int32_t)x;
        else
            kvl_tensor_f32(*out)[i] = (float)x;
    }
    return KVL_OK;
}

kvl_status kvl_tensor_eye(kvl_tensor **out, int64_t n, kvl_error *err) {
    int64_t shape[2] = {n, n};
    kvl_status status = kvl_tensor_new(out, KVL_FLOAT32, 2, shape, err);
    for (int64_t i = 0; status == KVL_OK && i < n; i++)
        kvl_tensor_f32(*out)[i * n + i] = 1;
    return status;
}

kvl_status kvl_tensor_tril_mask(kvl_tensor **out, int64_t rows, int64_t cols, int64_t diagonal,
                                kvl_error *err) {
    int64_t shape[2] = {rows, cols};
    kvl_status status = kvl_tensor_new(out, KVL_INT32, 2, shape, err);
    for (int64_t i = 0; status == KVL_OK && cols > 0 && i < rows; i++) {
        if (kvl_cancelled()) {
            kvl_tensor_free(*out);
            *out = NULL;
            return kvl_fail(err, KVL_ECANCEL, "interrupted");
        }
        /* entries 0 .. i + diagonal are 1; the comparison is arranged not to overflow */
        int64_t ones = diagonal >= cols ? cols : diagonal < -i ? 0 : i + diagonal + 1;
        if (ones > cols) ones = cols;
        int32_t *row = kvl_tensor_i32(*out) + i * cols; /* (cols) */
        for (int64_t j = 0; j < ones; j++)
            row[j] = 1;
    }
    return status;
}

/* matmul.c - products of tensors on top of kvl_gemm_batched; see ops.h. */
#include "kvlab/blas.h"
#include "kvlab/ops.h"

#include <string.h>

#include "walk.h"

/* Long inner dimensions are added up in pieces,
 * so that one tile never takes long (cancellation). */
enum { PIECE_K = 2048 };

/* The last two dimensions of t (..., rows, cols) as a matrix for BLAS; false when they must be
 * copied first. */
static bool as_matrix(kvl_mat *m, const kvl_tensor *t) {
    int64_t rows = t->shape[t->ndim - 2], cols = t->shape[t->ndim - 1];
    int64_t row_stride = t->stride[t->ndim - 2], col_stride = t->stride[t->ndim - 1];
    m->p = kvl_tensor_f32(t);
    m->step = 0;
    if (rows <= 1) row_stride = cols > 1 ? cols : 1;
    if (cols <= 1) col_stride = 1;
    m->trans = col_stride != 1;
    m->ld = m->trans ? col_stride : row_stride;
    if (rows <= 1 && m->trans) row_stride = 1; /* one row: a column of something wider */
    int64_t least = m->trans ? rows : cols;
    return (m->trans ? row_stride == 1 : true) && m->ld >= (least > 1 ? least : 1) &&
           m->ld <= INT32_MAX;
}

static kvl_status fail_shapes(const kvl_tensor *a, const kvl_tensor *b, const char *why,
                              kvl_error *err) {
    char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
    return kvl_fail(err, KVL_EINVAL, "matmul: %s: %s x %s", why,
                    kvl_shape_text(ta, a->ndim, a->shape), kvl_shape_text(tb, b->ndim, b->shape));
}

/* float32 with a usable last matrix, at least two dimensions. */
static kvl_status prepare(kvl_tensor **out, const kvl_tensor *t, bool column, kvl_error *err) {
    kvl_tensor *typed, *wide = NULL;
    kvl_mat ignored;
    kvl_status status = kvl_tensor_cast(&typed, t, KVL_FLOAT32, err);
    if (status != KVL_OK) return status;
    if (t->ndim == 1) {
        int64_t shape[2] = {column ? t->shape[0] : 1, column ? 1 : t->shape[0]};
        status = kvl_tensor_reshape(&wide, typed, 2, shape, err);
    } else {
        status = kvl_tensor_view(&wide, typed, err);
    }
    if (status == KVL_OK)
        status = as_matrix(&ignored, wide) ? kvl_tensor_view(out, wide, err)
                                           : kvl_tensor_clone(out, wide, err);
    kvl_tensor_free(typed);
    kvl_tensor_free(wide);
    return status;
}

/* c (..., m, n), contiguous; batch is the broadcast of the leading dimensions,
 * batch_ndim of them. */
static kvl_status product(kvl_tensor *c, const kvl_tensor *a, const kvl_tensor *b, int batch_ndim,
                          kvl_error *err) {
    kvl_mat ma, mb;
    int64_t m = a->shape[a->ndim - 2], k = a->shape[a->ndim - 1], n = b->shape[b->ndim - 1];
    int64_t step_a[KVL_MAX_DIMS], step_b[KVL_MAX_DIMS], size[KVL_MAX_DIMS], outer = 1;
    as_matrix(&ma, a);
    as_matrix(&mb, b);
    int dims = 0; /* batch dimensions after merging those that both operands pass in order */
    for (int i = 0; i < batch_ndim; i++) {
        int ia = i - (batch_ndim + 2 - a->ndim), ib = i - (batch_ndim + 2 - b->ndim);
        int64_t sa = ia < 0 || a->shape[ia] == 1 ? 0 : a->stride[ia];
        int64_t sb = ib < 0 || b->shape[ib] == 1 ? 0 : b->stride[ib];
        if (c->shape[i] == 1) continue;
        if (dims > 0 && step_a[dims - 1] == sa * c->shape[i] &&
            step_b[dims - 1] == sb * c->shape[i]) {
            dims--;
            size[dims] *= c->shape[i];
        } else {
            size[dims] = c->shape[i];
        }
        step_a[dims] = sa;
        step_b[dims++] = sb;
    }
    if (dims == 0) {
        step_a[0] = step_b[0] = 0;
        size[dims++] = 1;
    }
    int last = dims - 1;
    ma.step = step_a[last];
    mb.step = step_b[last];
    for (int i = 0; i < last; i++)
        outer *= size[i];
    float *out = kvl_tensor_f32(c);
    for (int64_t o = 0; o < outer; o++) {
        kvl_mat x = ma, y = mb;
        int64_t rest = o;
        for (int i = last - 1; i >= 0; i--) {
            x.p += rest % size[i] * step_a[i];
            y.p += rest % size[i] * step_b[i];
            rest /= size[i];
        }
        for (int64_t from = 0; from == 0 || from < k; from += PIECE_K) {
            kvl_mat xs = x, ys = y;
            xs.p += from * (x.trans ? x.ld : 1);
            ys.p += from * (y.trans ? 1 : y.ld);
            kvl_status status = kvl_gemm_batched(out, n > 0 ? n : 1, m * n, xs, ys, 1,
                                                 from == 0 ? 0 : 1, size[last], m, n,
                                                 k - from < PIECE_K ? k - from : PIECE_K, err);
            if (status != KVL_OK) return status;
        }
        out += size[last] * m * n;
    }
    return KVL_OK;
}

kvl_status kvl_matmul(kvl_tensor **out, const kvl_tensor *a, const kvl_tensor *b, kvl_error *err) {
    kvl_tensor *x = NULL, *y = NULL, *flat = NULL, *c = NULL;
    int64_t shape[KVL_MAX_DIMS];
    int ndim = 0;
    *out = NULL;
    if (a->ndim < 1 || b->ndim < 1)
        return fail_shapes(a, b, "both sides need a dimension, multiply numbers with *", err);
    if (a->shape[a->ndim - 1] != b->shape[b->ndim < 2 ? 0 : b->ndim - 2])
        return fail_shapes(a, b, "inner sizes differ", err);
    kvl_status status = prepare(&x, a, false, err);
    if (status == KVL_OK) status = prepare(&y, b, true, err);
    if (status == KVL_OK) {
        kvl_tensor lead_a = *x, lead_b = *y; /* borrow: only their leading dimensions count */
        lead_a.ndim -= 2;
        lead_b.ndim -= 2;
        status = kvl_broadcast(&ndim, shape, "matmul", &lead_a, &lead_b, NULL);
        if (status != KVL_OK)
            status = fail_shapes(a, b, "leading dimensions do not broadcast", err);
    }
    if (status == KVL_OK) {
        shape[ndim] = x->shape[x->ndim - 2];
        shape[ndim + 1] = y->shape[y->ndim - 1];
        status = kvl_tensor_new_raw(&c, KVL_FLOAT32, ndim + 2, shape, err);
    }
    if (status == KVL_OK && kvl_tensor_numel(c) > 0) {
        bool shared = x->ndim > 2 && shape[ndim + 1] > 0; /* one b for all: one tall product */
        for (int i = 0; i < y->ndim - 2; i++)
            shared = shared && y->shape[i] == 1;
        int64_t tall[2] = {kvl_tensor_numel(c) / shape[ndim + 1], x->shape[x->ndim - 1]};
        kvl_mat ignored;
        if (shared && x->ndim - 2 == ndim && tall[1] > 0) {
            status = kvl_tensor_reshape(&flat, x, 2, tall, err);
            if (status == KVL_OK && as_matrix(&ignored, flat)) {
                kvl_tensor b2 = *y, c2 = *c; /* borrow */
                b2.ndim = c2.ndim = 2;
                b2.shape[0] = y->shape[y->ndim - 2];
                b2.shape[1] = y->shape[y->ndim - 1];
                b2.stride[0] = y->stride[y->ndim - 2];
                b2.stride[1] = y->stride[y->ndim - 1];
                c2.shape[0] = tall[0];
                c2.shape[1] = shape[ndim + 1];
                status = product(&c2, flat, &b2, 0, err);
            } else if (status == KVL_OK) {
                status = product(c, x, y, ndim, err);
            }
        } else {
            status = product(c, x, y, ndim, err);
        }
    }
    if (status == KVL_OK) { /* the dimension that stood for a vector goes */
        int kept = ndim;
        if (a->ndim > 1) shape[kept++] = x->shape[x->ndim - 2];
        if (b->ndim > 1) shape[kept++] = y->shape[y->ndim - 1];
        status = kvl_tensor_reshape(out, c, kept, shape, err);
    }
    kvl_tensor_free(x);
    kvl_tensor_free(y);
    kvl_tensor_free(flat);
    kvl_tensor_free(c);
    return status;
}

/* tensor.h - dense n-dimensional arrays of float32 (to compute with) or int32 (ids and masks).
 *
 *     kvl_tensor {shape, stride, offset} ---+
 *     kvl_tensor {shape, stride, offset} ---+--> kvl_storage {references, bytes, elements}
 *
 * A tensor is a small header that looks at a storage; views are further headers of the same
 * storage, which goes when its last header goes. Strides count elements, are never negative, and
 * are 0 where an element is repeated (expand). Invariant: every index inside the shape lands inside
 * the storage, so kernels need no bounds checks of their own.
 *
 * The struct is public so that kernels can read it; only the functions below write it. Both types
 * have 4-byte elements. A size may be 0 (no elements); ndim may be 0 (one element).
 */
#ifndef kvlab_tensor_h
#define kvlab_tensor_h

#include "kvlab/base.h"

enum { KVL_MAX_DIMS = 8, KVL_SHAPE_TEXT = 192 };

typedef enum kvl_dtype { KVL_FLOAT32 = 0, KVL_INT32 = 1 } kvl_dtype;

typedef struct kvl_storage kvl_storage;

typedef struct kvl_tensor {
    kvl_storage *storage;
    int64_t offset; /* elements of the storage before the first one of this tensor */
    int64_t shape[KVL_MAX_DIMS];
    int64_t stride[KVL_MAX_DIMS];
    int ndim;
    kvl_dtype dtype;
} kvl_tensor;

/* --- making and dropping: every `kvl_tensor **out` is owned by the caller, who calls _free --- */

/* Zeros. Sizes are checked: a negative one or too many elements fail, as does refused memory. */
KVL_API kvl_status kvl_tensor_new(kvl_tensor **out, kvl_dtype dtype, int ndim, const int64_t *shape,
                                  kvl_error *err);
/* The elements are undefined, for whoever writes all of them: clearing memory takes as long as
 * writing it. */
KVL_API kvl_status kvl_tensor_new_raw(kvl_tensor **out, kvl_dtype dtype, int ndim,
                                      const int64_t *shape, kvl_error *err);
/* Copies `data` (numel elements of the type, row-major). */
KVL_API kvl_status kvl_tensor_from(kvl_tensor **out, kvl_dtype dtype, int ndim,
                                   const int64_t *shape, const void *data, kvl_error *err);
KVL_API kvl_status kvl_tensor_full(kvl_tensor **out, kvl_dtype dtype, int ndim,
                                   const int64_t *shape, double value, kvl_error *err);
/* count values first, first + step, ...: int32 ones must fit. */
KVL_API kvl_status kvl_tensor_arange(kvl_tensor **out, kvl_dtype dtype, double first, double step,
                                     int64_t count, kvl_error *err);
KVL_API kvl_status kvl_tensor_eye(kvl_tensor **out, int64_t n, kvl_error *err);
/* int32 (rows, cols): 1 where col <= row + diagonal, else 0. */
KVL_API kvl_status kvl_tensor_tril_mask(kvl_tensor **out, int64_t rows, int64_t cols,
                                        int64_t diagonal, kvl_error *err);
/* Drops this header, and the storage with the last one. NULL is fine. */
KVL_API void kvl_tensor_free(kvl_tensor *t);

/* --- reading the header ---------------------------------------------------------------------- */

KVL_API int64_t kvl_tensor_numel(const kvl_tensor *t);
/* Row-major without gaps: data(t)[0 .. numel) are the elements in order. */
KVL_API bool kvl_tensor_is_contiguous(const kvl_tensor *t);
/* Bytes of the storage (shared by all views of it). */
KVL_API size_t kvl_tensor_bytes(const kvl_tensor *t);
KVL_API bool kvl_tensor_shares(const kvl_tensor *a, const kvl_tensor *b);
/* The first element; the pointer lives as long as any header of the storage. */
KVL_API void *kvl_tensor_data(const kvl_tensor *t);
static inline float *kvl_tensor_f32(const kvl_tensor *t) {
    return (float *)kvl_tensor_data(t);
}
static inline int32_t *kvl_tensor_i32(const kvl_tensor *t) {
    return (int32_t *)kvl_tensor_data(t);
}
/* *equal: same type, shape and values; NaN equals nothing. */
KVL_API kvl_status kvl_tensor_equal(bool *equal, const kvl_tensor *a, const kvl_tensor *b,
                                    kvl_error *err);
/* Writes "{3, 4}" into text and returns it. */
KVL_API const char *kvl_shape_text(char text[KVL_SHAPE_TEXT], int ndim, const int64_t *shape);
KVL_API const char *kvl_dtype_name(kvl_dtype dtype);

/* --- views: share the storage of t, never copy ----------------------------------------------- */

KVL_API kvl_status kvl_tensor_view(kvl_tensor **out, const kvl_tensor *t, kvl_error *err);
/* count indices first, first + step, ... of one dimension; step >= 1. */
KVL_API kvl_status kvl_tensor_slice(kvl_tensor **out, const kvl_tensor *t, int dim, int64_t first,
                                    int64_t count, int64_t step, kvl_error *err);
/* One index of one dimension; that dimension disappears. */
KVL_API kvl_status kvl_tensor_select(kvl_tensor **out, const kvl_tensor *t, int dim, int64_t index,
                                     kvl_error *err);
KVL_API kvl_status kvl_tensor_transpose(kvl_tensor **out, const kvl_tensor *t, int dim_a, int dim_b,
                                        kvl_error *err);
/* Dimension i of the result is dimension dims[i] of t. */
KVL_API kvl_status kvl_tensor_permute(kvl_tensor **out, const kvl_tensor *t, const int *dims,
                                      kvl_error *err);
/* Repeats dimensions of size 1 (stride 0) and adds dimensions in front. -1 keeps a size. */
KVL_API kvl_status kvl_tensor_expand(kvl_tensor **out, const kvl_tensor *t, int ndim,
                                     const int64_t *shape, kvl_error *err);

/* --- views when the strides allow it, copies otherwise --------------------------------------- */

/* One size may be -1: it is worked out from the others. */
KVL_API kvl_status kvl_tensor_reshape(kvl_tensor **out, const kvl_tensor *t, int ndim,
                                      const int64_t *shape, kvl_error *err);
KVL_API kvl_status kvl_tensor_contiguous(kvl_tensor **out, const kvl_tensor *t, kvl_error *err);
/* The other type: float32 -> int32 cuts the fraction and fails on what int32 cannot hold. */
KVL_API kvl_status kvl_tensor_cast(kvl_tensor **out, const kvl_tensor *t, kvl_dtype dtype,
                                   kvl_error *err);

/* --- copies ---------------------------------------------------------------------------------- */

KVL_API kvl_status kvl_tensor_clone(kvl_tensor **out, const kvl_tensor *t, kvl_error *err);
/* count >= 1 tensors of one type that differ in dimension dim only. */
KVL_API kvl_status kvl_tensor_cat(kvl_tensor **out, const kvl_tensor *const *list, int64_t count,
                                  int dim, kvl_error *err);
/* dst[...] = src, broadcast to the shape of dst and cast to its type. dst may be any view without
 * repeated elements; src may overlap it. */
KVL_API kvl_status kvl_tensor_copy(kvl_tensor *dst, const kvl_tensor *src, kvl_error *err);
KVL_API kvl_status kvl_tensor_fill(kvl_tensor *dst, double value, kvl_error *err);

#endif

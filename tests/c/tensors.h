/* tensors.h - tensors for the C tests. Everything is freed by the caller with kvl_tensor_free. */
#ifndef tensors_h
#define tensors_h

#include "kvlab/kvlab.h"
#include "rand.h"

static kvl_error err;

static inline kvl_tensor *randn(int ndim, const int64_t *shape) {
    kvl_tensor *t;
    if (kvl_tensor_new(&t, KVL_FLOAT32, ndim, shape, &err) != KVL_OK) return NULL;
    for (int64_t i = 0; i < kvl_tensor_numel(t); i++)
        kvl_tensor_f32(t)[i] = rand_normal();
    return t;
}

static inline kvl_tensor *ints(int ndim, const int64_t *shape, const int32_t *values) {
    kvl_tensor *t;
    return kvl_tensor_from(&t, KVL_INT32, ndim, shape, values, &err) == KVL_OK ? t : NULL;
}

static inline kvl_tensor *floats(int ndim, const int64_t *shape, const float *values) {
    kvl_tensor *t;
    return kvl_tensor_from(&t, KVL_FLOAT32, ndim, shape, values, &err) == KVL_OK ? t : NULL;
}

static inline int64_t offset_of(const kvl_tensor *t, const int64_t *index) {
    int64_t at = 0;
    for (int i = 0; i < t->ndim; i++)
        at += index[i] * t->stride[i];
    return at;
}

static inline double element(const kvl_tensor *t, const int64_t *index) {
    int64_t at = offset_of(t, index);
    return t->dtype == KVL_INT32 ? kvl_tensor_i32(t)[at] : (double)kvl_tensor_f32(t)[at];
}

#endif

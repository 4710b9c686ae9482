/* safetensors_load.c - reading: data of a file whose header has been checked. See safetensors.h. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "safetensors_types.h"

enum { BLOCK = 4096 }; /* elements converted between two looks at the cancel flag */

/* Touching a page that the file no longer has would end the process, so its size is looked at
 * again. */
static kvl_status still_there(const kvl_safetensors *f, kvl_error *err) {
    struct stat st;
    if (fstat(f->fd, &st) != 0 || (size_t)st.st_size < f->map_bytes)
        return kvl_fail(err, KVL_EIO, "%s: the file has been cut since it was opened", f->path);
    return KVL_OK;
}

static int64_t entry_count(const kvl_st_entry *e) {
    return (e->end - e->begin) / kvl_st_types[e->dtype].bytes;
}

bool kvl_st_number(kvl_number *out, kvl_st_dtype dtype) {
    switch (dtype) {
    case KVL_ST_F32: *out = KVL_F32; return true;
    case KVL_ST_F16: *out = KVL_FP16; return true;
    case KVL_ST_BF16: *out = KVL_BF16; return true;
    case KVL_ST_F8_E4M3: *out = KVL_E4M3; return true;
    case KVL_ST_F8_E5M2: *out = KVL_E5M2; return true;
    case KVL_ST_F8_E8M0: *out = KVL_UE8M0; return true;
    default: return false;
    }
}

static bool is_float(kvl_st_dtype dtype) {
    return dtype < KVL_ST_I64;
}

/* Element i of an integer type; data may lie at any alignment. */
static int64_t integer_at(const kvl_st_entry *e, const unsigned char *data, int64_t i) {
    int64_t wide;
    int32_t narrow;
    switch (e->dtype) {
    case KVL_ST_I64: memcpy(&wide, data + i * 8, 8); return wide;
    case KVL_ST_I32: memcpy(&narrow, data + i * 4, 4); return narrow;
    default: return data[i];
    }
}

kvl_status kvl_safetensors_load(kvl_tensor **out, const kvl_safetensors *f, const kvl_st_entry *e,
                                kvl_error *err) {
    kvl_number number;
    *out = NULL;
    kvl_status status = still_there(f, err);
    if (status == KVL_OK)
        status = kvl_tensor_new(out, is_float(e->dtype) ? KVL_FLOAT32 : KVL_INT32, e->ndim,
                                e->shape, err);
    if (status != KVL_OK) return status;
    const unsigned char *data = f->data + e->begin;
    int64_t n = entry_count(e), bytes = kvl_st_types[e->dtype].bytes;
    float *x = kvl_tensor_f32(*out);
    for (int64_t from = 0; status == KVL_OK && from < n; from += BLOCK) {
        int64_t to = from + BLOCK < n ? from + BLOCK : n;
        if (kvl_cancelled()) {
            status = kvl_fail(err, KVL_ECANCEL, "interrupted");
        } else if (kvl_st_number(&number, e->dtype)) {
            kvl_number_decode_row(number, x + from, data + from * bytes, to - from);
        } else if (e->dtype == KVL_ST_F64) {
            for (int64_t i = from; i < to; i++) {
                double d;
                memcpy(&d, data + i * 8, 8);
                x[i] = (float)d;
            }
        } else {
            for (int64_t i = from; status == KVL_OK && i < to; i++) {
                int64_t v = integer_at(e, data, i);
                if (v != (int32_t)v || (e->dtype == KVL_ST_BOOL && v > 1))
                    status = kvl_fail(err, KVL_EIO, "%s: tensor '%.100s': element %lld is %lld, %s",
                                      f->path, e->name, (long long)i, (long long)v,
                                      e->dtype == KVL_ST_BOOL ? "a BOOL is 0 or 1"
                                                              : "more than int32 holds");
                kvl_tensor_i32(*out)[i] = (int32_t)v;
            }
        }
    }
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

kvl_status kvl_safetensors_f64(double *out, const kvl_safetensors *f, const kvl_st_entry *e,
                               int64_t first, int64_t count, kvl_error *err) {
    kvl_number number;
    float part[256];
    if (first < 0 || count < 0 || first > entry_count(e) || count > entry_count(e) - first)
        return kvl_fail(err, KVL_EINVAL, "%s: tensor '%.100s' has %lld elements", f->path, e->name,
                        (long long)entry_count(e));
    kvl_status status = still_there(f, err);
    if (status != KVL_OK) return status;
    int64_t bytes = kvl_st_types[e->dtype].bytes;
    const unsigned char *data = f->data + e->begin + first * bytes;
    if (e->dtype == KVL_ST_F64) {
        memcpy(out, data, (size_t)count * 8);
    } else if (kvl_st_number(&number, e->dtype)) {
        for (int64_t i = 0; i < count; i += 256) {
            int64_t n = count - i < 256 ? count - i : 256;
            kvl_number_decode_row(number, part, data + i * bytes, n);
            for (int64_t k = 0; k < n; k++)
                out[i + k] = (double)part[k];
        }
    } else {
        for (int64_t i = 0; i < count; i++)
            out[i] = (double)integer_at(e, data, i);
    }
    return KVL_OK;
}

kvl_status kvl_safetensors_compare(double *relative, double *largest, const kvl_safetensors *f,
                                   const kvl_st_entry *e, const kvl_tensor *t, kvl_error *err) {
    char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
    double want[256], off = 0, size = 0;
    bool same = t->ndim == e->ndim;
    for (int i = 0; same && i < t->ndim; i++)
        same = t->shape[i] == e->shape[i];
    if (!same)
        return kvl_fail(err, KVL_EINVAL, "compare: '%.100s' has shape %s in %s, the tensor %s",
                        e->name, kvl_shape_text(ta, e->ndim, e->shape), f->path,
                        kvl_shape_text(tb, t->ndim, t->shape));
    kvl_tensor *x;
    kvl_status status = kvl_tensor_contiguous(&x, t, err);
    if (status != KVL_OK) return status;
    *largest = 0;
    int64_t n = kvl_tensor_numel(x);
    for (int64_t from = 0; status == KVL_OK && from < n; from += 256) {
        int64_t count = n - from < 256 ? n - from : 256;
        status = kvl_cancelled() ? kvl_fail(err, KVL_ECANCEL, "interrupted")
                                 : kvl_safetensors_f64(want, f, e, from, count, err);
        for (int64_t i = 0; status == KVL_OK && i < count; i++) {
            double got = x->dtype == KVL_INT32 ? kvl_tensor_i32(x)[from + i]
                                               : (double)kvl_tensor_f32(x)[from + i];
            double d = got == want[i] ? 0 : fabs(got - want[i]);
            if (!(d <= *largest)) *largest = isnan(*largest) ? *largest : d;
            off += d * d;
            if (isfinite(want[i])) size += want[i] * want[i];
        }
    }
    *relative = size > 0 ? sqrt(off / size) : sqrt(off);
    kvl_tensor_free(x);
    return status;
}

/* safetensors.h - named tensors in one file, read through a memory map.
 *
 *     8 bytes  length N of the header, little-endian
 *     N bytes  JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]},
 * ...}, optionally "__metadata__": {"key": "text"}; padded with spaces rest     the data; offsets
 * count from its start
 *
 * The format is that of the safetensors library (github.com/huggingface/safetensors, README
 * "Format"). Everything a file says is checked when it is opened: lengths, types, shapes against
 * offsets, names that occur twice, ranges that overlap or leave holes, bytes after the last tensor.
 * Data is checked when it is loaded (an I64 that int32 cannot hold, a BOOL that is not 0 or 1).
 *
 * Loaded, F64 F32 F16 BF16 F8_E4M3 F8_E5M2 F8_E8M0 become float32 and I64 I32 U8 BOOL int32. The
 * float64 values themselves are read by kvl_safetensors_f64 and compared by
 * kvl_safetensors_compare.
 */
#ifndef kvlab_safetensors_h
#define kvlab_safetensors_h

#include "kvlab/tensor.h"

typedef enum kvl_st_dtype {
    KVL_ST_F64,
    KVL_ST_F32,
    KVL_ST_F16,
    KVL_ST_BF16,
    KVL_ST_F8_E4M3,
    KVL_ST_F8_E5M2,
    KVL_ST_F8_E8M0,
    KVL_ST_I64,
    KVL_ST_I32,
    KVL_ST_U8,
    KVL_ST_BOOL,
    KVL_ST_DTYPES
} kvl_st_dtype;

KVL_API const char *kvl_st_dtype_name(kvl_st_dtype dtype);
KVL_API int kvl_st_dtype_bytes(kvl_st_dtype dtype);
/* Finds a type by name ("BF16"); false when there is none. */
KVL_API bool kvl_st_dtype_named(kvl_st_dtype *out, const char *name);

/* One tensor of a file, owned by the file. */
typedef struct kvl_st_entry {
    const char *name;
    kvl_st_dtype dtype;
    int ndim;
    int64_t shape[KVL_MAX_DIMS];
    int64_t begin, end; /* bytes from the start of the data */
} kvl_st_entry;

typedef struct kvl_safetensors kvl_safetensors;

KVL_API kvl_status kvl_safetensors_open(kvl_safetensors **out, const char *path, kvl_error *err);
KVL_API void kvl_safetensors_free(kvl_safetensors *file);

/* Tensors in the order of their data, 0 .. count-1. */
KVL_API int64_t kvl_safetensors_count(const kvl_safetensors *file);
KVL_API const kvl_st_entry *kvl_safetensors_at(const kvl_safetensors *file, int64_t i);
/* NULL when there is none of that name. */
KVL_API const kvl_st_entry *kvl_safetensors_find(const kvl_safetensors *file, const char *name);
/* Pair i of the metadata, 0 .. count-1; false past the end. The texts belong to the file. */
KVL_API bool kvl_safetensors_metadata(const kvl_safetensors *file, int64_t i, const char **key,
                                      const char **value);

KVL_API kvl_status kvl_safetensors_load(kvl_tensor **out, const kvl_safetensors *file,
                                        const kvl_st_entry *entry, kvl_error *err);
/* Elements first .. first + count - 1 in row-major order, as doubles, without rounding (I64 beyond
 * 2^53 excepted). */
KVL_API kvl_status kvl_safetensors_f64(double *out, const kvl_safetensors *file,
                                       const kvl_st_entry *entry, int64_t first, int64_t count,
                                       kvl_error *err);
/* *relative = ||t - file|| / ||file|| in double (||t - file|| when the file has only zeros),
 * *largest = the largest |t - file|. Shapes must be equal. NaN on either side gives NaN, except
 * that equal infinities count as equal. */
KVL_API kvl_status kvl_safetensors_compare(double *relative, double *largest,
                                           const kvl_safetensors *file, const kvl_st_entry *entry,
                                           const kvl_tensor *t, kvl_error *err);

/* What is written under a name: the tensor's values in `dtype`. Integers stay integers and must
 * fit. */
typedef struct kvl_st_item {
    const char *name;
    const kvl_tensor *tensor;
    kvl_st_dtype dtype;
} kvl_st_item;

/* Writes a temporary file beside `path` and renames it, so a reader sees the old file or the new
 * one. Wide types first, then by name: every tensor is aligned to its elements. `metadata` holds
 * key, value, key, value, ... (2 * pairs texts). */
KVL_API kvl_status kvl_safetensors_write(const char *path, const kvl_st_item *items, int64_t count,
                                         const char *const *metadata, int64_t pairs,
                                         kvl_error *err);

#endif

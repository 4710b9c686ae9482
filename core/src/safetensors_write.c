/* safetensors_write.c - writing: the header, then the data, into a temporary file that takes the
 * place of the old one only when everything is on disk. See safetensors.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "safetensors_types.h"

enum { BLOCK = 4096 };

typedef struct writer {
    FILE *file;
    const char *path;
    int64_t bytes; /* written, or counted when file is NULL */
} writer;

static void put(writer *w, const void *data, size_t n) {
    if (w->file) fwrite(data, 1, n, w->file); /* failures are kept by the stream: see finish */
    w->bytes += (int64_t)n;
}

static void put_text(writer *w, const char *text) {
    put(w, text, strlen(text));
}

static void put_string(writer *w, const char *text) {
    put_text(w, "\"");
    for (; *text; text++) {
        char escape[8];
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            snprintf(escape, sizeof escape, "\\%c", c);
        else if (c < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", c);
        else
            snprintf(escape, sizeof escape, "%c", c);
        put_text(w, escape);
    }
    put_text(w, "\"");
}

static int64_t item_bytes(const kvl_st_item *item) {
    return kvl_tensor_numel(item->tensor) * kvl_st_types[item->dtype].bytes;
}

static void put_header(writer *w, const kvl_st_item *items, int64_t count,
                       const char *const *metadata, int64_t pairs) {
    char text[64];
    int64_t at = 0;
    put_text(w, "{");
    if (pairs > 0) {
        put_text(w, "\"__metadata__\":{");
        for (int64_t i = 0; i < pairs; i++) {
            if (i > 0) put_text(w, ",");
            put_string(w, metadata[2 * i]);
            put_text(w, ":");
            put_string(w, metadata[2 * i + 1]);
        }
        put_text(w, count > 0 ? "}," : "}");
    }
    for (int64_t i = 0; i < count; i++) {
        const kvl_tensor *t = items[i].tensor;
        if (i > 0) put_text(w, ",");
        put_string(w, items[i].name);
        put_text(w, ":{\"dtype\":\"");
        put_text(w, kvl_st_types[items[i].dtype].name);
        put_text(w, "\",\"shape\":[");
        for (int d = 0; d < t->ndim; d++) {
            snprintf(text, sizeof text, d ? ",%lld" : "%lld", (long long)t->shape[d]);
            put_text(w, text);
        }
        snprintf(text, sizeof text, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
                 (long long)(at + item_bytes(&items[i])));
        put_text(w, text);
        at += item_bytes(&items[i]);
    }
    put_text(w, "}");
    while (w->bytes % 8 != 0)
        put_text(w, " ");
}

/* Integer v of an item as its type; false when it does not fit. */
static bool put_integer(unsigned char *to, kvl_st_dtype dtype, int32_t v) {
    int64_t wide = v;
    double real = v;
    switch (dtype) {
    case KVL_ST_I64: memcpy(to, &wide, 8); return true;
    case KVL_ST_I32: memcpy(to, &v, 4); return true;
    case KVL_ST_F64: memcpy(to, &real, 8); return true;
    default: *to = (unsigned char)v; return v >= 0 && v <= (dtype == KVL_ST_BOOL ? 1 : 255);
    }
}

/* Elements from .. from + n - 1 of a contiguous tensor into buffer (n * bytes of the type). */
static kvl_status convert(unsigned char *buffer, const kvl_st_item *item, const kvl_tensor *x,
                          int64_t from, int64_t n, kvl_error *err) {
    kvl_number number;
    int bytes = kvl_st_types[item->dtype].bytes;
    if (x->dtype == KVL_FLOAT32) {
        const float *f = kvl_tensor_f32(x) + from;
        if (kvl_st_number(&number, item->dtype)) {
            kvl_number_encode_row(number, buffer, f, n, KVL_TIES_EVEN);
            return KVL_OK;
        }
        for (int64_t i = 0; i < n; i++) { /* F64: the other types are refused in check_items */
            double d = (double)f[i];
            memcpy(buffer + i * 8, &d, 8);
        }
        return KVL_OK;
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t v = kvl_tensor_i32(x)[from + i];
        if (!put_integer(buffer + i * bytes, item->dtype, v))
            return kvl_fail(err, KVL_EINVAL,
                            "tensor '%.100s': element %lld is %d, which %s cannot hold", item->name,
                            (long long)(from + i), (int)v, kvl_st_types[item->dtype].name);
    }
    return KVL_OK;
}

static kvl_status put_item(writer *w, const kvl_st_item *item, kvl_error *err) {
    unsigned char buffer[BLOCK * 8];
    kvl_tensor *x;
    kvl_status status = kvl_tensor_contiguous(&x, item->tensor, err);
    if (status != KVL_OK) return status;
    int64_t n = kvl_tensor_numel(x);
    for (int64_t from = 0; status == KVL_OK && from < n; from += BLOCK) {
        int64_t count = n - from < BLOCK ? n - from : BLOCK;
        status = kvl_cancelled() ? kvl_fail(err, KVL_ECANCEL, "interrupted")
                                 : convert(buffer, item, x, from, count, err);
        if (status == KVL_OK) put(w, buffer, (size_t)(count * kvl_st_types[item->dtype].bytes));
    }
    kvl_tensor_free(x);
    return status;
}

static int wide_first(const void *a, const void *b) {
    const kvl_st_item *x = a, *y = b;
    int wx = kvl_st_types[x->dtype].bytes, wy = kvl_st_types[y->dtype].bytes;
    return wx != wy ? wy - wx : strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const kvl_st_item *)a)->name, ((const kvl_st_item *)b)->name);
}

/* Checks the items; sorts them as they will lie in the file. */
static kvl_status check_items(kvl_st_item *items, int64_t count, const char *const *metadata,
                              int64_t pairs, kvl_error *err) {
    int64_t total = 0;
    if (count) qsort(items, (size_t)count, sizeof *items, by_name);
    for (int64_t i = 0; i < count; i++) {
        const kvl_st_item *item = &items[i];
        bool integer = item->tensor->dtype == KVL_INT32;
        int64_t bytes;
        if (!kvl_utf8_valid(item->name, strlen(item->name)))
            return kvl_fail(err, KVL_EINVAL, "a name of a tensor is not UTF-8");
        if (strcmp(item->name, "__metadata__") == 0)
            return kvl_fail(err, KVL_EINVAL, "no tensor can have the name '__metadata__'");
        if (i > 0 && strcmp(items[i - 1].name, item->name) == 0)
            return kvl_fail(err, KVL_EINVAL, "the name '%.100s' occurs twice", item->name);
        if (integer ? item->dtype < KVL_ST_I64 && item->dtype != KVL_ST_F64
                    : item->dtype >= KVL_ST_I64)
            return kvl_fail(err, KVL_EINVAL, "tensor '%.100s': %s is not written as %s", item->name,
                            kvl_dtype_name(item->tensor->dtype), kvl_st_types[item->dtype].name);
        if (!kvl_mul(&bytes, kvl_tensor_numel(item->tensor), kvl_st_types[item->dtype].bytes) ||
            __builtin_add_overflow(total, bytes, &total))
            return kvl_fail(err, KVL_EINVAL, "tensor '%.100s' is too large for a file", item->name);
    }
    for (int64_t i = 0; i < 2 * pairs; i++)
        if (!kvl_utf8_valid(metadata[i], strlen(metadata[i])))
            return kvl_fail(err, KVL_EINVAL, "a text of the metadata is not UTF-8");
    if (count) qsort(items, (size_t)count, sizeof *items, wide_first);
    return KVL_OK;
}

/* Writes everything to w->file. */
static kvl_status put_all(writer *w, const kvl_st_item *items, int64_t count,
                          const char *const *metadata, int64_t pairs, kvl_error *err) {
    unsigned char length[8];
    writer counter = {NULL, w->path, 0};
    put_header(&counter, items, count, metadata, pairs);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)counter.bytes >> (8 * i));
    put(w, length, 8);
    put_header(w, items, count, metadata, pairs); /* 8 bytes do not change its padding */
    for (int64_t i = 0; i < count; i++) {
        kvl_status status = put_item(w, &items[i], err);
        if (status != KVL_OK) return status;
    }
    if (ferror(w->file) || fflush(w->file) != 0 || fsync(fileno(w->file)) != 0)
        return kvl_fail(err, KVL_EIO, "%s: %s", w->path, strerror(errno));
    return KVL_OK;
}

kvl_status kvl_safetensors_write(const char *path, const kvl_st_item *items, int64_t count,
                                 const char *const *metadata, int64_t pairs, kvl_error *err) {
    size_t length = strlen(path) + 32;
    char *temporary = kvl_alloc(length);
    kvl_st_item *sorted = kvl_alloc((size_t)(count > 0 ? count : 1) * sizeof *sorted);
    kvl_status status = KVL_OK;
    if (!temporary || !sorted) status = kvl_fail(err, KVL_ENOMEM, "%s: no memory", path);
    if (status == KVL_OK) {
        if (count > 0) memcpy(sorted, items, (size_t)count * sizeof *sorted);
        status = check_items(sorted, count, metadata, pairs, err);
    }
    if (status == KVL_OK) {
        int fd = -1;
        for (int attempt = 0; fd < 0 && attempt < 100; attempt++) { /* a name nobody has */
            snprintf(temporary, length, "%s.%ld.%d.tmp", path, (long)getpid(), attempt);
            fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            if (fd < 0 && errno != EEXIST) break;
        }
        writer w = {fd < 0 ? NULL : fdopen(fd, "wb"), path, 0};
        if (!w.file) {
            status = kvl_fail(err, KVL_EIO, "%s: %s", fd < 0 ? temporary : path, strerror(errno));
            if (fd >= 0) close(fd);
        } else {
            status = put_all(&w, sorted, count, metadata, pairs, err);
            if (fclose(w.file) != 0 && status == KVL_OK)
                status = kvl_fail(err, KVL_EIO, "%s: %s", path, strerror(errno));
            if (status == KVL_OK && rename(temporary, path) != 0)
                status = kvl_fail(err, KVL_EIO, "%s: %s", path, strerror(errno));
        }
        if (status != KVL_OK && fd >= 0) unlink(temporary);
    }
    kvl_free(temporary);
    kvl_free(sorted);
    return status;
}

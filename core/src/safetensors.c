/* safetensors.c - reading: the header (a small strict JSON parser for exactly its grammar), its
 * checks. See safetensors.h; data is read in safetensors_load.c, writing is in safetensors_write.c.
 *
 * The header is copied once and its strings are decoded in place: an escape is never shorter than
 * what it stands for. Nothing in the file is trusted: every length is compared with what is there
 * before it is used.
 */
#include "kvlab/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "safetensors_types.h"

enum { MAX_HEADER = 100 << 20 }; /* the limit of the safetensors library */

const kvl_st_type kvl_st_types[KVL_ST_DTYPES] = {
    [KVL_ST_F64] = {"F64", 8},         [KVL_ST_F32] = {"F32", 4},
    [KVL_ST_F16] = {"F16", 2},         [KVL_ST_BF16] = {"BF16", 2},
    [KVL_ST_F8_E4M3] = {"F8_E4M3", 1}, [KVL_ST_F8_E5M2] = {"F8_E5M2", 1},
    [KVL_ST_F8_E8M0] = {"F8_E8M0", 1}, [KVL_ST_I64] = {"I64", 8},
    [KVL_ST_I32] = {"I32", 4},         [KVL_ST_U8] = {"U8", 1},
    [KVL_ST_BOOL] = {"BOOL", 1},
};

const char *kvl_st_dtype_name(kvl_st_dtype dtype) {
    return kvl_st_types[dtype].name;
}

int kvl_st_dtype_bytes(kvl_st_dtype dtype) {
    return kvl_st_types[dtype].bytes;
}

bool kvl_st_dtype_named(kvl_st_dtype *out, const char *name) {
    for (int i = 0; i < KVL_ST_DTYPES; i++)
        if (strcmp(kvl_st_types[i].name, name) == 0) {
            *out = (kvl_st_dtype)i;
            return true;
        }
    return false;
}

bool kvl_utf8_valid(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        unsigned char c = s[i];
        size_t more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : 3;
        if (c >= 0x80 && (c < 0xC2 || c > 0xF4)) return false;
        if (more > n - i - 1) return false;
        uint32_t code = more == 0 ? c : c & (0x3Fu >> more);
        for (size_t k = 1; k <= more; k++) {
            if ((s[i + k] & 0xC0) != 0x80) return false;
            code = code << 6 | (s[i + k] & 0x3F);
        }
        if ((more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10FFFF)))
            return false; /* longer than needed, or beyond Unicode */
        if (code >= 0xD800 && code < 0xE000) return false; /* half of a pair */
        i += more + 1;
    }
    return true;
}

/* --- JSON ------------------------------------------------------------------------------------ */

typedef struct parser {
    kvl_safetensors *file;
    char *start, *at, *end;
    kvl_error *err;
} parser;

static bool fail_at(parser *p, const char *what) {
    kvl_fail(p->err, KVL_EIO, "%s: header byte %lld: %s", p->file->path,
             (long long)(p->at - p->start), what);
    return false;
}

static void skip_space(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

static bool next_is(parser *p, char c) {
    skip_space(p);
    if (p->at >= p->end || *p->at != c) return false;
    p->at++;
    return true;
}

static bool expect(parser *p, char c) {
    char what[] = "expected '?'";
    what[10] = c;
    return next_is(p, c) || fail_at(p, what);
}

static bool hex4(parser *p, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        char c = p->at < p->end ? *p->at : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return fail_at(p, "\\u needs four hexadecimal digits");
        *code = *code * 16 + (uint32_t)digit;
    }
    return true;
}

static char *put_utf8(char *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (char)(0xE0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    } else {
        *to++ = (char)(0xF0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3F));
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    }
    return to;
}

/* What follows a backslash; writes to *to and advances it. */
static bool escape(parser *p, char **to) {
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    uint32_t code, low;
    char c = p->at < p->end ? *p->at++ : 0;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *(*to)++ = into[simple - from];
        return true;
    }
    if (c != 'u') return fail_at(p, "unknown escape");
    if (!hex4(p, &code)) return false;
    if (code == 0) return fail_at(p, "a name must not contain the character 0");
    if (code >= 0xDC00 && code < 0xE000) return fail_at(p, "second half of a pair without a first");
    if (code >= 0xD800 && code < 0xDC00) {
        if (p->end - p->at < 2 || p->at[0] != '\\' || p->at[1] != 'u')
            return fail_at(p, "first half of a pair without a second");
        p->at += 2;
        if (!hex4(p, &low)) return false;
        if (low < 0xDC00 || low >= 0xE000) return fail_at(p, "bad second half of a pair");
        code = 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00);
    }
    *to = put_utf8(*to, code);
    return true;
}

/* A string, decoded in place and ended by a 0 (at the latest where its closing quote was). */
static bool string(parser *p, char **out) {
    if (!next_is(p, '"')) return fail_at(p, "expected a string");
    char *to = *out = p->at;
    for (;;) {
        if (p->at >= p->end) return fail_at(p, "a string does not end");
        unsigned char c = (unsigned char)*p->at++;
        if (c == '"') break;
        if (c < 0x20) return fail_at(p, "control character in a string");
        if (c != '\\')
            *to++ = (char)c;
        else if (!escape(p, &to))
            return false;
    }
    if (!kvl_utf8_valid(*out, (size_t)(to - *out))) return fail_at(p, "a string is not UTF-8");
    *to = 0;
    return true;
}

static bool whole(parser *p, int64_t *out) {
    skip_space(p);
    char *first = p->at;
    *out = 0;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') {
        int digit = *p->at - '0';
        if (*out > (INT64_MAX - digit) / 10) return fail_at(p, "a number is too large");
        *out = *out * 10 + digit;
        p->at++;
    }
    if (p->at == first) return fail_at(p, "expected a whole number, 0 or more");
    if (*first == '0' && p->at - first > 1) return fail_at(p, "a number starts with 0");
    if (p->at < p->end && (*p->at == '.' || *p->at == 'e' || *p->at == 'E'))
        return fail_at(p, "expected a whole number");
    return true;
}

/* [a, b, ...] with at most `most` numbers. */
static bool whole_list(parser *p, int64_t *list, int most, int *count, const char *too_many) {
    *count = 0;
    if (!expect(p, '[')) return false;
    if (next_is(p, ']')) return true;
    do {
        if (*count == most) return fail_at(p, too_many);
        if (!whole(p, &list[(*count)++])) return false;
    } while (next_is(p, ','));
    return expect(p, ']');
}

/* Room for one more element of `size` bytes. */
static bool grow(parser *p, void **list, int64_t count, int64_t *capacity, size_t size) {
    if (count < *capacity) return true;
    int64_t wanted = *capacity ? *capacity * 2 : 64;
    void *more = kvl_alloc((size_t)wanted * size);
    if (!more) {
        kvl_fail(p->err, KVL_ENOMEM, "%s: no memory for the names of its tensors", p->file->path);
        return false;
    }
    if (count) memcpy(more, *list, (size_t)count * size);
    kvl_free(*list);
    *list = more;
    *capacity = wanted;
    return true;
}

static bool parse_metadata(parser *p) {
    kvl_safetensors *f = p->file;
    if (f->has_metadata) return fail_at(p, "'__metadata__' occurs twice");
    f->has_metadata = true;
    if (!expect(p, '{')) return false;
    if (next_is(p, '}')) return true;
    do {
        char *key, *value;
        if (!string(p, &key) || !expect(p, ':') || !string(p, &value)) return false;
        if (!grow(p, (void **)&f->metadata, 2 * f->pairs, &f->pair_capacity, sizeof *f->metadata))
            return false;
        f->metadata[2 * f->pairs] = key;
        f->metadata[2 * f->pairs++ + 1] = value;
    } while (next_is(p, ','));
    return expect(p, '}');
}

/* {"dtype": .., "shape": .., "data_offsets": ..} in any order. */
static bool parse_entry(parser *p, char *name) {
    kvl_safetensors *f = p->file;
    kvl_st_entry e = {.name = name};
    bool dtype = false, shape = false, offsets = false;
    if (!expect(p, '{')) return false;
    do {
        char *key, *text;
        if (!string(p, &key) || !expect(p, ':')) return false;
        if (strcmp(key, "dtype") == 0 && !dtype) {
            dtype = true;
            if (!string(p, &text)) return false;
            if (!kvl_st_dtype_named(&e.dtype, text)) {
                kvl_fail(p->err, KVL_EIO,
                         "%s: tensor '%.100s' has the type '%.40s', which is not read", f->path,
                         name, text);
                return false;
            }
        } else if (strcmp(key, "shape") == 0 && !shape) {
            shape = true;
            if (!whole_list(p, e.shape, KVL_MAX_DIMS, &e.ndim, "more than 8 dimensions"))
                return false;
        } else if (strcmp(key, "data_offsets") == 0 && !offsets) {
            int64_t pair[2];
            int count;
            offsets = true;
            if (!whole_list(p, pair, 2, &count, "data_offsets has more than two numbers"))
                return false;
            if (count != 2) return fail_at(p, "data_offsets needs two numbers");
            e.begin = pair[0];
            e.end = pair[1];
        } else {
            kvl_fail(p->err, KVL_EIO,
                     "%s: tensor '%.100s' has an unknown or repeated field '%.40s'", f->path, name,
                     key);
            return false;
        }
    } while (next_is(p, ','));
    if (!expect(p, '}')) return false;
    if (!dtype || !shape || !offsets) {
        kvl_fail(p->err, KVL_EIO, "%s: tensor '%.100s' has no %s", f->path, name,
                 !dtype   ? "dtype"
                 : !shape ? "shape"
                          : "data_offsets");
        return false;
    }
    if (!grow(p, (void **)&f->entries, f->count, &f->capacity, sizeof *f->entries)) return false;
    f->entries[f->count++] = e;
    return true;
}

static bool parse_header(parser *p) {
    if (p->at >= p->end || *p->at != '{') return fail_at(p, "the header must start with '{'");
    p->at++;
    if (!next_is(p, '}')) {
        do {
            char *name;
            if (!string(p, &name) || !expect(p, ':')) return false;
            if (strcmp(name, "__metadata__") == 0) {
                if (!parse_metadata(p)) return false;
            } else if (!parse_entry(p, name)) {
                return false;
            }
        } while (next_is(p, ','));
        if (!expect(p, '}')) return false;
    }
    skip_space(p);
    return p->at == p->end || fail_at(p, "something follows the header");
}

/* --- checks of what the header says ---------------------------------------------------------- */

static int by_begin(const void *a, const void *b) {
    const kvl_st_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end ? 1 : strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(kvl_st_entry *const *)a)->name, (*(kvl_st_entry *const *)b)->name);
}

static kvl_status check_entry(const kvl_safetensors *f, const kvl_st_entry *e, kvl_error *err) {
    char text[KVL_SHAPE_TEXT];
    int64_t bytes = kvl_st_types[e->dtype].bytes;
    bool empty = false, fits = true;
    for (int i = 0; i < e->ndim; i++) {
        if (e->shape[i] == 0) empty = true;
        /* sizes beside an empty one are limited too: strides are made of them */
        fits = fits && kvl_mul(&bytes, bytes, e->shape[i] ? e->shape[i] : 1);
    }
    if (empty && fits) bytes = 0;
    kvl_shape_text(text, e->ndim, e->shape);
    if (!fits)
        return kvl_fail(err, KVL_EIO, "%s: tensor '%.100s': shape %s is too large", f->path,
                        e->name, text);
    if (e->begin > e->end || e->end > f->data_bytes)
        return kvl_fail(
            err, KVL_EIO,
            "%s: tensor '%.100s': data_offsets [%lld, %lld] are outside the %lld bytes of data",
            f->path, e->name, (long long)e->begin, (long long)e->end, (long long)f->data_bytes);
    if (e->end - e->begin != bytes)
        return kvl_fail(
            err, KVL_EIO,
            "%s: tensor '%.100s': %s of shape %s takes %lld bytes, data_offsets span %lld", f->path,
            e->name, kvl_st_types[e->dtype].name, text, (long long)bytes,
            (long long)(e->end - e->begin));
    return KVL_OK;
}

static kvl_status check_all(kvl_safetensors *f, kvl_error *err) {
    for (int64_t i = 0; i < f->count; i++) {
        kvl_status status = check_entry(f, &f->entries[i], err);
        if (status != KVL_OK) return status;
    }
    if (f->count > 0) {
        f->by_name = kvl_alloc((size_t)f->count * sizeof *f->by_name);
        if (!f->by_name) return kvl_fail(err, KVL_ENOMEM, "%s: no memory", f->path);
        qsort(f->entries, (size_t)f->count, sizeof *f->entries, by_begin);
    }
    for (int64_t i = 0; i < f->count; i++)
        f->by_name[i] = &f->entries[i];
    if (f->count > 0) qsort(f->by_name, (size_t)f->count, sizeof *f->by_name, by_name);
    for (int64_t i = 1; i < f->count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return kvl_fail(err, KVL_EIO, "%s: the name '%.100s' occurs twice", f->path,
                            f->by_name[i]->name);
    int64_t at = 0;
    for (int64_t i = 0; i < f->count; i++) {
        const kvl_st_entry *e = &f->entries[i];
        if (e->begin < at)
            return kvl_fail(err, KVL_EIO, "%s: tensors '%.100s' and '%.100s' overlap", f->path,
                            f->entries[i - 1].name, e->name);
        if (e->begin > at)
            return kvl_fail(err, KVL_EIO, "%s: data bytes %lld .. %lld belong to no tensor",
                            f->path, (long long)at, (long long)e->begin - 1);
        at = e->end;
    }
    if (at != f->data_bytes)
        return kvl_fail(err, KVL_EIO, "%s: %lld bytes follow the last tensor", f->path,
                        (long long)(f->data_bytes - at));
    return KVL_OK;
}

/* --- open and close -------------------------------------------------------------------------- */

static kvl_status open_map(kvl_safetensors *f, kvl_error *err) {
    struct stat st;
    f->fd = open(f->path,
                 O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block: it is refused */
    if (f->fd < 0) return kvl_fail(err, KVL_EIO, "%s: %s", f->path, strerror(errno));
    if (fstat(f->fd, &st) != 0) return kvl_fail(err, KVL_EIO, "%s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return kvl_fail(err, KVL_EIO, "%s: not a file", f->path);
    if (st.st_size < 8)
        return kvl_fail(err, KVL_EIO, "%s: %lld bytes are too few for the length of a header",
                        f->path, (long long)st.st_size);
    f->map_bytes = (size_t)st.st_size;
    void *map = mmap(NULL, f->map_bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (map == MAP_FAILED) return kvl_fail(err, KVL_EIO, "%s: %s", f->path, strerror(errno));
    f->map = map;
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | f->map[i];
    if (length > f->map_bytes - 8)
        return kvl_fail(err, KVL_EIO,
                        "%s: the header should have %llu bytes, the file has %llu after its length",
                        f->path, (unsigned long long)length, (unsigned long long)f->map_bytes - 8);
    if (length > MAX_HEADER)
        return kvl_fail(err, KVL_EIO, "%s: a header of %llu bytes is too long", f->path,
                        (unsigned long long)length);
    f->data = f->map + 8 + length;
    f->data_bytes = (int64_t)(f->map_bytes - 8 - length);
    f->text = kvl_alloc((size_t)length + 1);
    if (!f->text) return kvl_fail(err, KVL_ENOMEM, "%s: no memory for its header", f->path);
    memcpy(f->text, f->map + 8, (size_t)length);
    parser p = {f, f->text, f->text, f->text + length, err};
    kvl_error none;
    if (!err) p.err = &none;
    p.err->status = KVL_EIO;
    if (!parse_header(&p)) return p.err->status;
    return check_all(f, err);
}

kvl_status kvl_safetensors_open(kvl_safetensors **out, const char *path, kvl_error *err) {
    *out = NULL;
    kvl_safetensors *f = kvl_alloc(sizeof *f);
    if (f) f->fd = -1;
    if (f) f->path = kvl_alloc(strlen(path) + 1);
    if (!f || !f->path) {
        kvl_safetensors_free(f);
        return kvl_fail(err, KVL_ENOMEM, "%s: no memory", path);
    }
    strcpy(f->path, path);
    kvl_status status = open_map(f, err);
    if (status != KVL_OK) {
        kvl_safetensors_free(f);
        return status;
    }
    *out = f;
    return KVL_OK;
}

void kvl_safetensors_free(kvl_safetensors *f) {
    if (!f) return;
    if (f->map) munmap(f->map, f->map_bytes);
    if (f->fd >= 0) close(f->fd);
    kvl_free(f->path);
    kvl_free(f->text);
    kvl_free(f->entries);
    kvl_free(f->by_name);
    kvl_free(f->metadata);
    kvl_free(f);
}

int64_t kvl_safetensors_count(const kvl_safetensors *f) {
    return f->count;
}

const kvl_st_entry *kvl_safetensors_at(const kvl_safetensors *f, int64_t i) {
    return i >= 0 && i < f->count ? &f->entries[i] : NULL;
}

const kvl_st_entry *kvl_safetensors_find(const kvl_safetensors *f, const char *name) {
    int64_t low = 0, high = f->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, f->by_name[middle]->name);
        if (order == 0) return f->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

bool kvl_safetensors_metadata(const kvl_safetensors *f, int64_t i, const char **key,
                              const char **value) {
    if (i < 0 || i >= f->pairs) return false;
    *key = f->metadata[2 * i];
    *value = f->metadata[2 * i + 1];
    return true;
}

/* test_safetensors.c - files written byte by byte here: values of every type, headers that lie,
 * every truncation, random damage; then what is written is read back. */
#include "kvlab/kvlab.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "rand.h"

static kvl_error err;
static char path[64];

static void put_file(const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f) return;
    fwrite(bytes, 1, n, f);
    fclose(f);
}

/* A file with this header and `data_bytes` bytes of data; returns its size. */
static size_t put(const char *header, const void *data, size_t data_bytes) {
    static unsigned char file[8192];
    size_t length = strlen(header);
    memset(file, 0, sizeof file);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)(length >> (8 * i));
    memcpy(file + 8, header, length);
    if (data) memcpy(file + 8 + length, data, data_bytes);
    put_file(file, 8 + length + data_bytes);
    return 8 + length + data_bytes;
}

static void check_fails(const char *header, size_t data_bytes, const char *why) {
    kvl_safetensors *f;
    put(header, NULL, data_bytes);
    kvl_status status = kvl_safetensors_open(&f, path, &err);
    CHECK(status == KVL_EIO && !f, "%s was accepted", header);
    CHECK(status == KVL_OK || strstr(err.msg, why), "%s: '%s' does not say '%s'", header, err.msg,
          why);
    CHECK(status == KVL_OK || strstr(err.msg, path), "'%s' does not name the file", err.msg);
    CHECK(kvl_safetensors_open(&f, path, NULL) == KVL_EIO, "without an error to fill");
}

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(a, b)                                                                                  \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" a "},"                             \
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" b "}}"

static void test_bad_headers(void) {
    static const struct {
        const char *header;
        size_t data;
        const char *why;
    } bad[] = {
        {"", 0, "must start with '{'"},
        {" {}", 0, "must start with '{'"},
        {"[]", 0, "must start with '{'"},
        {"{", 0, "expected a string"},
        {"{}x", 0, "something follows"},
        {"{}", 1, "1 bytes follow the last tensor"},
        {"{\"a\"}", 0, "expected ':'"},
        {"{\"a\":1}", 0, "expected '{'"},
        {"{\"a\":{}}", 0, "expected a string"},
        {"{\"a", 0, "a string does not end"},
        {"{\"a\\", 0, "unknown escape"},
        {"{\"\\u12", 0, "hexadecimal"},
        {"{\"\\ud800\":1}", 0, "first half"},
        {"{\"\\ud800\\u0041\":1}", 0, "second half"},
        {"{\"\\udc00\":1}", 0, "second half"},
        {"{\"\\u0000\":1}", 0, "character 0"},
        {"{\"\\x\":1}", 0, "unknown escape"},
        {"{\"a\tb\":1}", 0, "control character"},
        {"{\"\xff\":1}", 0, "UTF-8"},
        {"{\"\xc0\x80\":1}", 0, "UTF-8"},
        {"{\"\xed\xa0\x80\":1}", 0, "UTF-8"},
        {"{\"\xf0\x9f\":1}", 0, "UTF-8"},
        {ONE("F32", "[2]", "[0,8]") ",", 8, "something follows"},
        {ONE("F33", "[2]", "[0,8]"), 8, "type 'F33'"},
        {ONE("f32", "[2]", "[0,8]"), 8, "type 'f32'"},
        {ONE("F32", "[2]", "[0,7]"), 7, "takes 8 bytes, data_offsets span 7"},
        {ONE("F32", "[3]", "[0,8]"), 8, "takes 12 bytes"},
        {ONE("F32", "[]", "[0,8]"), 8, "takes 4 bytes"},
        {ONE("F32", "[2]", "[8,0]"), 8, "outside"},
        {ONE("F32", "[2]", "[0,16]"), 8, "outside the 8 bytes"},
        {ONE("F32", "[2]", "[9223372036854775799,9223372036854775807]"), 8, "outside"},
        {ONE("F32", "[2]", "[0,9223372036854775808]"), 8, "too large"},
        {ONE("F32", "[9223372036854775807]", "[0,8]"), 8, "too large"},
        {ONE("F32", "[4294967296,4294967296]", "[0,0]"), 0, "too large"},
        {ONE("F32", "[0,4294967296,4294967296,4294967296]", "[0,0]"), 0, "too large"},
        {ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "more than 8 dimensions"},
        {ONE("F32", "[-2]", "[0,8]"), 8, "0 or more"},
        {ONE("F32", "[2.0]", "[0,8]"), 8, "whole number"},
        {ONE("F32", "[2e0]", "[0,8]"), 8, "whole number"},
        {ONE("F32", "[02]", "[0,8]"), 8, "starts with 0"},
        {ONE("F32", "[2,]", "[0,8]"), 8, "whole number"},
        {ONE("F32", "[2", "[0,8]"), 8, "expected"},
        {ONE("F32", "\"2\"", "[0,8]"), 8, "expected '['"},
        {ONE("F32", "[2]", "[0]"), 8, "two numbers"},
        {ONE("F32", "[2]", "[0,8,8]"), 8, "more than two"},
        {ONE("F32", "[2]", "[4,12]"), 12, "bytes 0 .. 3 belong to no tensor"},
        {TWO("[0,8]", "[0,8]"), 8, "overlap"},
        {TWO("[0,8]", "[4,12]"), 12, "overlap"},
        {TWO("[0,8]", "[12,20]"), 20, "belong to no tensor"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "no data_offsets"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "repeated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
         "field 'x'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0, "'a' occurs twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0, "'a' occurs twice"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "expected a string"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "occurs twice"},
        {"{\"__metadata__\":[]}", 0, "expected '{'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_fails(bad[i].header, bad[i].data, bad[i].why);

    kvl_safetensors *f;
    static const unsigned char long_header[16] = {9,   0,   0,   0,   0,   0,   0,   0,
                                                  '{', '}', ' ', ' ', ' ', ' ', ' ', ' '};
    static const unsigned char endless[16] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
    put_file(long_header, 16);
    CHECK(kvl_safetensors_open(&f, path, &err) == KVL_EIO &&
              strstr(err.msg, "9 bytes, the file has 8"),
          "%s", err.msg);
    put_file(endless, 16);
    CHECK(kvl_safetensors_open(&f, path, &err) == KVL_EIO, "2^64 - 1");
    put_file("", 0);
    CHECK(kvl_safetensors_open(&f, path, &err) == KVL_EIO && strstr(err.msg, "0 bytes"), "%s",
          err.msg);
    CHECK(kvl_safetensors_open(&f, "/nowhere/x", &err) == KVL_EIO && strstr(err.msg, "No such"),
          "%s", err.msg);
    CHECK(kvl_safetensors_open(&f, "/tmp", &err) == KVL_EIO && strstr(err.msg, "not a file"), "%s",
          err.msg);
    unlink(path);
    if (mkfifo(path, 0600) == 0)
        CHECK(kvl_safetensors_open(&f, path, &err) == KVL_EIO, "a pipe does not block");
    unlink(path);
}

/* Every type: code bytes and what they stand for, worked out by hand. */
static const struct {
    const char *dtype;
    unsigned char bytes[16];
    int size;
    double value[2];
} known[] = {
    {"F64", {0, 0, 0, 0, 0, 0, 0xF8, 0x3F, 0, 0, 0, 0, 0, 0, 0xF0, 0xFF}, 8, {1.5, -INFINITY}},
    {"F32", {0, 0, 0x20, 0x41, 0, 0, 0, 0x80}, 4, {10, 0}},
    {"F16", {0x00, 0x3E, 0xFF, 0x7B}, 2, {1.5, 65504}},
    {"BF16", {0xC0, 0x3F, 0x80, 0xC0}, 2, {1.5, -4}},
    {"F8_E4M3", {0x7E, 0xB8}, 1, {448, -1}},
    {"F8_E5M2", {0x7B, 0x3C}, 1, {57344, 1}},
    {"F8_E8M0", {127, 130}, 1, {1, 8}},
    {"I64",
     {0xFF, 0xFF, 0xFF, 0x7F, 0, 0, 0, 0, 0xFE, 255, 255, 255, 255, 255, 255, 255},
     8,
     {2147483647, -2}},
    {"I32", {0, 0, 0, 0x80, 5}, 4, {-2147483648.0, 5}},
    {"U8", {255, 0}, 1, {255, 0}},
    {"BOOL", {1, 0}, 1, {1, 0}},
};

static void test_types(void) {
    CHECK(sizeof known / sizeof *known == KVL_ST_DTYPES, "a row for each type");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char header[200];
        kvl_safetensors *f;
        kvl_tensor *t;
        double f64[2], relative, largest;
        /* one byte in front, so that the data of wide types is not aligned */
        snprintf(header, sizeof header,
                 "{\"pad\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
                 "\"x\":{\"dtype\":\"%s\",\"shape\":[2],\"data_offsets\":[1,%d]}}",
                 known[i].dtype, 1 + 2 * known[i].size);
        unsigned char data[17] = {7};
        memcpy(data + 1, known[i].bytes, 16);
        put(header, data, 1 + 2 * (size_t)known[i].size);
        CHECK(kvl_safetensors_open(&f, path, &err) == KVL_OK, "%s: %s", known[i].dtype, err.msg);
        if (!f) continue;
        const kvl_st_entry *e = kvl_safetensors_find(f, "x");
        CHECK(e && strcmp(kvl_st_dtype_name(e->dtype), known[i].dtype) == 0, "%s", known[i].dtype);
        CHECK(kvl_safetensors_count(f) == 2 && !kvl_safetensors_find(f, "y"), "names");
        CHECK(kvl_safetensors_load(&t, f, e, &err) == KVL_OK, "%s", err.msg);
        CHECK(kvl_safetensors_f64(f64, f, e, 0, 2, &err) == KVL_OK, "%s", err.msg);
        for (int k = 0; k < 2; k++) {
            double got = t->dtype == KVL_INT32 ? kvl_tensor_i32(t)[k]
                                               : (double)kvl_tensor_f32(t)[k];
            CHECK(got == known[i].value[k] && f64[k] == got, "%s %d: %g", known[i].dtype, k, got);
        }
        CHECK(kvl_safetensors_compare(&relative, &largest, f, e, t, &err) == KVL_OK &&
                  relative == 0 && largest == 0,
              "compare: %g %g", relative, largest);
        CHECK(kvl_safetensors_f64(f64, f, e, 1, 2, &err) == KVL_EINVAL, "past the end");
        CHECK(kvl_safetensors_f64(f64, f, e, -1, 1, &err) == KVL_EINVAL, "before the start");
        kvl_tensor_free(t);
        kvl_safetensors_free(f);
    }
    /* values that do not fit */
    kvl_safetensors *f;
    kvl_tensor *t;
    static const unsigned char wide[8] = {0, 0, 0, 0x80, 0, 0, 0, 0}, two[1] = {2};
    put(ONE("I64", "[1]", "[0,8]"), wide, 8);
    kvl_safetensors_open(&f, path, &err);
    CHECK(kvl_safetensors_load(&t, f, kvl_safetensors_at(f, 0), &err) == KVL_EIO && !t &&
              strstr(err.msg, "2147483648"),
          "%s", err.msg);
    kvl_safetensors_free(f);
    put(ONE("BOOL", "[1]", "[0,1]"), two, 1);
    kvl_safetensors_open(&f, path, &err);
    CHECK(kvl_safetensors_load(&t, f, kvl_safetensors_at(f, 0), &err) == KVL_EIO && !t, "BOOL 2");
    kvl_safetensors_free(f);
}

static void test_compare(void) {
    static const double file_values[4] = {3, 4, 0, 0};
    static const float values[4] = {3, 4, 0.5f, 0};
    int64_t four[1] = {4}, other[2] = {2, 2};
    kvl_safetensors *f;
    kvl_tensor *t, *u;
    double relative, largest;
    put(ONE("F64", "[4]", "[0,32]"), file_values, 32);
    CHECK(kvl_safetensors_open(&f, path, &err) == KVL_OK, "%s", err.msg);
    const kvl_st_entry *e = kvl_safetensors_at(f, 0);
    kvl_tensor_from(&t, KVL_FLOAT32, 1, four, values, &err);
    CHECK(kvl_safetensors_compare(&relative, &largest, f, e, t, &err) == KVL_OK, "%s", err.msg);
    CHECK(relative == 0.1 && largest == 0.5, "0.5 / 5: %g %g", relative, largest);
    kvl_tensor_f32(t)[0] = NAN;
    kvl_safetensors_compare(&relative, &largest, f, e, t, &err);
    CHECK(isnan(relative) && isnan(largest), "NaN is no agreement");
    kvl_tensor_reshape(&u, t, 2, other, &err);
    CHECK(kvl_safetensors_compare(&relative, &largest, f, e, u, &err) == KVL_EINVAL &&
              strstr(err.msg, "{2, 2}"),
          "%s", err.msg);
    truncate(path, 50);
    kvl_tensor *gone;
    CHECK(kvl_safetensors_load(&gone, f, e, &err) == KVL_EIO && !gone && strstr(err.msg, "cut"),
          "%s", err.msg);
    kvl_tensor_free(t);
    kvl_tensor_free(u);
    kvl_safetensors_free(f);
}

/* Everything that can be written, with a name that needs escapes. */
static kvl_status write_all(void) {
    static const float x[6] = {1, -2, 0.5f, 448, 0, 3};
    static const int32_t n[6] = {0, 1, 1, 0, 1, 0};
    int64_t shape[2] = {2, 3};
    kvl_tensor *t = NULL, *turned = NULL, *i = NULL;
    kvl_status status = kvl_tensor_from(&t, KVL_FLOAT32, 2, shape, x, &err);
    if (!status) status = kvl_tensor_transpose(&turned, t, 0, 1, &err);
    if (!status) status = kvl_tensor_from(&i, KVL_INT32, 2, shape, n, &err);
    if (!status) {
        const kvl_st_item items[] = {
            {"u8", i, KVL_ST_U8},
            {"bool", i, KVL_ST_BOOL},
            {"f32 \"\\\n\xC3\xA9", t, KVL_ST_F32},
            {"f64", turned, KVL_ST_F64},
            {"f16", t, KVL_ST_F16},
            {"bf16", turned, KVL_ST_BF16},
            {"e4m3", t, KVL_ST_F8_E4M3},
            {"e5m2", t, KVL_ST_F8_E5M2},
            {"i64", i, KVL_ST_I64},
            {"i32", i, KVL_ST_I32},
        };
        const char *metadata[] = {"format", "kvlab", "quote", "\"\x01"};
        status = kvl_safetensors_write(path, items, 10, metadata, 2, &err);
    }
    kvl_tensor_free(t);
    kvl_tensor_free(turned);
    kvl_tensor_free(i);
    return status;
}

static void test_write(void) {
    kvl_safetensors *f;
    const char *key, *value;
    CHECK(write_all() == KVL_OK, "%s", err.msg);
    CHECK(kvl_safetensors_open(&f, path, &err) == KVL_OK, "%s", err.msg);
    CHECK(kvl_safetensors_count(f) == 10, "count");
    CHECK(kvl_safetensors_metadata(f, 1, &key, &value) && strcmp(value, "\"\x01") == 0, "metadata");
    CHECK(!kvl_safetensors_metadata(f, 2, &key, &value), "two pairs");
    CHECK(kvl_safetensors_find(f, "f32 \"\\\n\xC3\xA9") != NULL, "escapes");
    for (int64_t i = 0; i < 10; i++) {
        const kvl_st_entry *e = kvl_safetensors_at(f, i);
        kvl_tensor *t;
        double last;
        CHECK(e->begin % kvl_st_dtype_bytes(e->dtype) == 0, "%s is aligned", e->name);
        CHECK(kvl_safetensors_load(&t, f, e, &err) == KVL_OK, "%s: %s", e->name, err.msg);
        bool turned = e->dtype == KVL_ST_F64 || e->dtype == KVL_ST_BF16;
        CHECK(t->shape[0] == (turned ? 3 : 2), "%s: shape", e->name);
        kvl_safetensors_f64(&last, f, e, 3, 1, &err);
        double want = t->dtype == KVL_INT32 ? 0
                      : turned              ? 0
                                            : 448; /* 448 is a value of all types */
        CHECK(last == want, "%s: %g", e->name, last);
        kvl_tensor_free(t);
    }
    kvl_safetensors_free(f);

    /* refusals leave the old file alone and no temporary file behind */
    int64_t shape[1] = {2};
    static const int32_t big[2] = {256, 0};
    kvl_tensor *i, *x;
    kvl_tensor_from(&i, KVL_INT32, 1, shape, big, &err);
    kvl_tensor_new(&x, KVL_FLOAT32, 1, shape, &err);
    const struct {
        kvl_st_item item[2];
        const char *why;
    } bad[] = {
        {{{"a", i, KVL_ST_U8}, {"b", x, KVL_ST_F32}}, "256, which U8 cannot hold"},
        {{{"a", i, KVL_ST_BOOL}, {"b", x, KVL_ST_F32}}, "BOOL cannot hold"},
        {{{"a", i, KVL_ST_I32}, {"a", x, KVL_ST_F32}}, "occurs twice"},
        {{{"a", i, KVL_ST_F16}, {"b", x, KVL_ST_F32}}, "int32 is not written as F16"},
        {{{"a", i, KVL_ST_I32}, {"b", x, KVL_ST_I64}}, "float32 is not written as I64"},
        {{{"__metadata__", i, KVL_ST_I32}, {"b", x, KVL_ST_F32}}, "__metadata__"},
        {{{"\xff", i, KVL_ST_I32}, {"b", x, KVL_ST_F32}}, "UTF-8"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        CHECK(kvl_safetensors_write(path, bad[k].item, 2, NULL, 0, &err) == KVL_EINVAL &&
                  strstr(err.msg, bad[k].why),
              "%zu: %s", k, err.msg);
        char temporary[96];
        snprintf(temporary, sizeof temporary, "%s.%ld.0.tmp", path, (long)getpid());
        CHECK(access(temporary, F_OK) != 0, "a temporary file is left");
        CHECK(kvl_safetensors_open(&f, path, &err) == KVL_OK && kvl_safetensors_count(f) == 10,
              "the old file is there");
        kvl_safetensors_free(f);
    }
    CHECK(kvl_safetensors_write("/nowhere/x", NULL, 0, NULL, 0, &err) == KVL_EIO, "no such place");
    CHECK(kvl_safetensors_write(path, NULL, 0, NULL, 0, &err) == KVL_OK, "%s", err.msg);
    CHECK(kvl_safetensors_open(&f, path, &err) == KVL_OK && kvl_safetensors_count(f) == 0,
          "an empty file");
    kvl_safetensors_free(f);
    kvl_tensor_free(i);
    kvl_tensor_free(x);
}

/* No prefix of a file is a file; a damaged file is refused or read, and nothing worse. */
static void test_damage(void) {
    unsigned char file[4096], copy[4096];
    write_all();
    FILE *in = fopen(path, "rb");
    size_t n = in ? fread(file, 1, sizeof file, in) : 0;
    if (in) fclose(in);
    CHECK(n > 500 && n < sizeof file, "%zu bytes", n);
    kvl_safetensors *f;
    for (size_t cut = 0; cut < n; cut++) {
        put_file(file, cut);
        CHECK(kvl_safetensors_open(&f, path, &err) == KVL_EIO && !f, "the first %zu bytes", cut);
    }
    int opened = 0;
    for (int round = 0; round < 3000; round++) {
        memcpy(copy, file, n);
        for (int k = (int)rand_int(3); k >= 0; k--)
            copy[rand_int(k ? 8 : (int64_t)n)] = (unsigned char)rand_int(256);
        if (round % 2) memcpy(copy, file, 8); /* the length stays, so that the JSON is reached */
        put_file(copy, n);
        if (kvl_safetensors_open(&f, path, &err) != KVL_OK) continue;
        opened++;
        for (int64_t i = 0; i < kvl_safetensors_count(f); i++) {
            kvl_tensor *t;
            kvl_safetensors_load(&t, f, kvl_safetensors_at(f, i), &err);
            kvl_tensor_free(t);
        }
        kvl_safetensors_free(f);
    }
    CHECK(opened > 50 && opened < 2900, "%d of 3000 damaged files opened", opened);
}

static void test_out_of_memory(void) {
    size_t before = kvl_live_bytes();
    kvl_status status = KVL_ENOMEM;
    for (int n = 0; status != KVL_OK && n < 100; n++) {
        kvl_safetensors *f = NULL;
        kvl_tensor *t = NULL;
        kvl_alloc_fail_after(n);
        status = write_all();
        if (!status) status = kvl_safetensors_open(&f, path, &err);
        if (!status) status = kvl_safetensors_load(&t, f, kvl_safetensors_at(f, 0), &err);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || status == KVL_ENOMEM, "%d: %s", n, err.msg);
        kvl_tensor_free(t);
        kvl_safetensors_free(f);
        CHECK(kvl_live_bytes() == before, "leak after %d allocations", n);
    }
    CHECK(status == KVL_OK, "the sweep ended");
}

int main(void) {
    snprintf(path, sizeof path, "/tmp/kvlab-test-%ld.safetensors", (long)getpid());
    test_bad_headers();
    test_types();
    test_compare();
    test_write();
    test_damage();
    test_out_of_memory();
    unlink(path);
    CHECK(kvl_live_bytes() == 0, "%zu bytes leaked", kvl_live_bytes());
    return check_done();
}

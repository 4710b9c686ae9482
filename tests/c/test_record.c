/* test_record.c - plans against their plain twins on random rows and random fields, pages, bad
 * fields. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "kvlab/record.h"

static uint64_t state = 2024;

static uint32_t random_bits(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static int64_t pick(int64_t n) {
    return (int64_t)(random_bits() % (uint32_t)n);
}

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Rows of several kinds: ordinary values, all zero, tiny, huge, with NaN, inf,
 * -0 and subnormals. */
static void random_row(float *x, int64_t n, int kind) {
    static const float specials[] = {NAN, INFINITY, -INFINITY, -0.0f, 1e-42f, 3e38f, -3e38f, 0};
    for (int64_t i = 0; i < n; i++) {
        float u = (float)(int32_t)random_bits() / 2147483648.0f;
        x[i] = u * 3.0f;
        if (kind == 1) x[i] = pick(2) ? 0.0f : -0.0f;
        if (kind == 2) x[i] = u * 1e-41f;
        if (kind == 3) x[i] = u * 3.4e38f;
        if (kind == 4 && pick(5) == 0) x[i] = specials[pick(8)];
        if (kind == 5) x[i] = from_bits(random_bits());
        if (kind == 6) x[i] = (float)(pick(33) - 16) * 0.25f; /* ties */
    }
}

static bool same_float(float a, double ref, double bound) {
    if (isnan(ref)) return isnan(a);
    if (isinf((float)ref)) return a == (float)ref || fabs((double)a) > 3.4e38;
    return fabs((double)a - ref) <= bound * fabs(ref) + 1.5e-45;
}

/* Encodes and decodes rows with both twins. The bytes are the same; decoded values too, but for the
 * rule 'range', whose product is rounded before the sum: `bound` is relative to the largest part of
 * that sum. */
static void compare(const char *what, const kvl_field *fields, int64_t n_fields) {
    kvl_error err = {KVL_OK, ""};
    kvl_record *rec;
    kvl_status status = kvl_record_compile(&rec, fields, n_fields, 64, 1, &err);
    CHECK(status == KVL_OK, "%s: %s", what, err.msg);
    if (status) return;
    const kvl_record_info *info = kvl_record_about(rec);
    int64_t channels = info->channels, data = info->data_bytes, scale = info->scale_bytes;
    float *x = malloc((size_t)channels * sizeof *x), *y = malloc((size_t)channels * sizeof *y);
    double *z = malloc((size_t)channels * sizeof *z);
    uint8_t *a = malloc((size_t)(data + scale + 2)), *b = malloc((size_t)(data + scale + 2));
    for (int kind = 0; kind < 7; kind++) {
        random_row(x, channels, kind);
        memset(a, 0xa5, (size_t)(data + scale + 2));
        memset(b, 0x5a, (size_t)(data + scale + 2));
        kvl_record_encode(rec, a + 1, a + 1 + data, x); /* + 1: no alignment is assumed */
        kvl_record_encode_ref(rec, b + 1, b + 1 + data, x);
        int64_t bad = -1;
        for (int64_t i = data + scale; i-- > 0;)
            if (a[1 + i] != b[1 + i]) bad = i;
        CHECK(bad < 0, "%s, rows of kind %d: byte %lld is %02x, expected %02x", what, kind,
              (long long)bad, a[1 + bad], b[1 + bad]);
        CHECK(a[0] == 0xa5 && a[1 + data + scale] == 0xa5, "%s writes outside", what);

        kvl_record_decode(rec, y, a + 1, a + 1 + data);
        kvl_record_decode_ref(rec, z, a + 1, a + 1 + data);
        double largest = 0;
        bool range = fields[0].scaled && fields[0].scale.rule == KVL_RULE_RANGE;
        for (int64_t i = 0; i < channels && range; i++)
            if (isfinite(x[i])) largest = fmax(largest, fabs((double)x[i]));
        for (int64_t i = 0; i < channels; i++) {
            bool same = range ? fabs((double)y[i] - z[i]) <= 1e-6 * largest ||
                                    same_float(y[i], z[i], 1e-6)
                              : same_float(y[i], z[i], 0x1p-24);
            if (!same) {
                CHECK(same, "%s, rows of kind %d: channel %lld is %g, expected %g", what, kind,
                      (long long)i, (double)y[i], z[i]);
                break;
            }
        }
        /* without NaN in the row there is none in what is read back */
        for (int64_t i = 0; i < channels && kind < 4; i++)
            if (isnan(y[i])) {
                CHECK(!isnan(y[i]), "%s, rows of kind %d: NaN at %lld", what, kind, (long long)i);
                break;
            }
    }
    free(x), free(y), free(z), free(a), free(b);
    kvl_record_free(rec);
}

static kvl_field plain(int64_t channels, kvl_number number) {
    kvl_field f;
    memset(&f, 0, sizeof f);
    f.channels = channels;
    f.number = number;
    return f;
}

static kvl_field scaled(int64_t channels, kvl_number number, kvl_number scale, kvl_rule rule,
                        int64_t group) {
    kvl_field f = plain(channels, number);
    f.scaled = true;
    f.scale.number = scale;
    f.scale.rule = rule;
    f.scale.group = group;
    return f;
}

/* Every number with every scale number and rule that go together, in every place and order. */
static void test_combinations(void) {
    static const kvl_number elements[] = {KVL_F32,  KVL_BF16, KVL_FP16, KVL_E4M3, KVL_E5M2,
                                          KVL_E2M1, KVL_INT8, KVL_INT4, KVL_UINT4};
    static const kvl_number scales[] = {KVL_F32,  KVL_BF16,  KVL_FP16, KVL_E4M3,
                                        KVL_E5M2, KVL_UE8M0, KVL_UE4M3};
    int tried = 0;
    for (int e = 0; e < 9; e++) {
        kvl_field f = plain(38 * 16, elements[e]);
        char what[96];
        snprintf(what, sizeof what, "plain %s", kvl_number_about(f.number)->name);
        for (int t = 0; t < 4; t++) {
            f.ties = (kvl_ties)t;
            compare(what, &f, 1);
        }
        for (int s = 0; s < 7; s++)
            for (int r = 0; r < KVL_RULES; r++)
                for (int round = 0; round < 6; round++) {
                    static const int64_t groups[] = {16, 2, 38 * 16, 38, 152, 32};
                    kvl_field g = scaled(38 * 16, elements[e], scales[s], (kvl_rule)r,
                                         groups[round]);
                    int bits = kvl_number_about(g.number)->bits;
                    g.place = (kvl_place)(round % 3);
                    g.block = round % 2 ? 0 : g.scale.group;
                    g.ties = (kvl_ties)pick(4);
                    g.scale.ties = (kvl_ties)pick(4);
                    g.scale.reciprocal = pick(2);
                    g.pad = pick(4);
                    g.scale_pad = g.place == KVL_PLACE_SPLIT ? pick(3) : 0;
                    if (bits == 4) g.order = (kvl_order)pick(2);
                    if (bits == 4) g.high_first = pick(2);
                    if (r <= KVL_RULE_NEAREST && pick(2))
                        *(pick(2) ? &g.scale.floor_amax : &g.scale.floor_scale) = 1e-4f;
                    kvl_record *rec;
                    if (kvl_record_compile(&rec, &g, 1, 64, 1, NULL)) continue; /* do not fit */
                    kvl_record_free(rec);
                    snprintf(what, sizeof what, "%s, scale %s, rule %d, group %lld, variant %d",
                             kvl_number_about(g.number)->name, kvl_number_about(scales[s])->name, r,
                             (long long)g.scale.group, round);
                    kvl_field two[2] = {g, plain(5, KVL_BF16)};
                    compare(what, two, 2);
                    tried++;
                }
    }
    CHECK(tried > 1000, "only %d combinations fit", tried);
}

/* Groups larger than a tile, and 4-bit halves of the largest group allowed. */
static void test_large_groups(void) {
    kvl_field f = scaled(3 * 1030, KVL_E4M3, KVL_F32, KVL_RULE_RAW, 1030);
    compare("groups of 1030", &f, 1);
    f = scaled(3 * 1030, KVL_E2M1, KVL_UE8M0, KVL_RULE_POW2_UP, 1030);
    compare("4-bit groups of 1030", &f, 1);
    f.channels = 2 * 4096;
    f.scale.group = 4096;
    f.order = KVL_ORDER_HALVES;
    compare("4-bit halves of 4096", &f, 1);
    f = scaled(200 * 2, KVL_UINT4, KVL_FP16, KVL_RULE_RANGE, 2);
    compare("200 groups of 2", &f, 1);
}

/* The sizes of formats that are in use, with their page rules. */
static void test_pages(void) {
    static const struct {
        const char *name;
        int64_t elements, tail, group, pad;
        kvl_number number, scale;
        int64_t entries, align, data, scales, page, padding;
    } rows[] = {
        {"v4-main", 448, 64, 64, 1, KVL_E4M3, KVL_UE8M0, 64, 576, 576, 8, 37440, 64},
        {"v4-main", 448, 64, 64, 1, KVL_E4M3, KVL_UE8M0, 2, 576, 576, 8, 1728, 560},
        {"v4-main", 448, 64, 64, 1, KVL_E4M3, KVL_UE8M0, 256, 576, 576, 8, 149760, 256},
        {"v4-main, no alignment", 448, 64, 64, 1, KVL_E4M3, KVL_UE8M0, 64, 1, 576, 8, 37376, 0},
        {"v4.1-local", 512, 0, 32, 0, KVL_E4M3, KVL_UE8M0, 32, 512, 512, 16, 16896, 0},
        {"v4.1-local", 512, 0, 32, 0, KVL_E4M3, KVL_UE8M0, 256, 512, 512, 16, 135168, 0},
        {"v4.1-main", 512, 0, 16, 0, KVL_E2M1, KVL_E4M3, 64, 256, 256, 32, 18432, 0},
        {"v4.1-main", 512, 0, 16, 0, KVL_E2M1, KVL_E4M3, 256, 256, 256, 32, 73728, 0},
        {"index-fp4", 128, 0, 32, 0, KVL_E2M1, KVL_UE8M0, 64, 1, 64, 4, 4352, 0},
        {"index-fp8", 128, 0, 128, 0, KVL_E4M3, KVL_F32, 64, 1, 128, 4, 8448, 0},
        {"index-fp8, vLLM", 128, 0, 128, 0, KVL_E4M3, KVL_F32, 64, 576, 128, 4, 8640, 192},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvl_field fields[2] = {
            scaled(rows[i].elements, rows[i].number, rows[i].scale, KVL_RULE_RAW, rows[i].group),
            plain(rows[i].tail, KVL_BF16)};
        fields[0].scale_pad = rows[i].pad;
        kvl_record *rec;
        kvl_error err = {KVL_OK, ""};
        CHECK(kvl_record_compile(&rec, fields, rows[i].tail ? 2 : 1, rows[i].entries, rows[i].align,
                                 &err) == KVL_OK,
              "%s: %s", rows[i].name, err.msg);
        const kvl_record_info *info = kvl_record_about(rec);
        CHECK(info->data_bytes == rows[i].data && info->scale_bytes == rows[i].scales,
              "%s: %lld + %lld", rows[i].name, (long long)info->data_bytes,
              (long long)info->scale_bytes);
        CHECK(info->page_bytes == rows[i].page && info->page_padding == rows[i].padding,
              "%s: page %lld, padding %lld", rows[i].name, (long long)info->page_bytes,
              (long long)info->page_padding);
        CHECK(kvl_record_data_offset(rec, 1) == rows[i].data &&
                  kvl_record_scale_offset(rec, 0) == rows[i].entries * rows[i].data &&
                  kvl_record_scale_offset(rec, 1) ==
                      rows[i].entries * rows[i].data + rows[i].scales,
              "%s: offsets", rows[i].name);
        kvl_record_free(rec);
    }
}

/* Several slots at once, rows apart, are the single entries. */
static void test_slots(void) {
    enum { W = 40, P = 8, STRIDE = 45, N = 3, FIRST = 4 };
    kvl_field f = scaled(W, KVL_E5M2, KVL_FP16, KVL_RULE_NEAREST, 8);
    kvl_record *rec;
    CHECK(kvl_record_compile(&rec, &f, 1, P, 64, NULL) == KVL_OK, "compiles");
    const kvl_record_info *info = kvl_record_about(rec);
    CHECK(info->page_bytes == 448 && info->data_bytes == 40 && info->scale_bytes == 10, "sizes");
    float x[N * STRIDE], y[N * STRIDE], one[W];
    uint8_t page[448] = {0}, data[40], scale[10];
    random_row(x, N * STRIDE, 0);
    for (int64_t i = 0; i < N * STRIDE; i++)
        y[i] = 77;
    kvl_record_encode_slots(rec, page, FIRST, x, STRIDE, N);
    kvl_record_decode_slots(rec, y, STRIDE, page, FIRST, N);
    for (int64_t i = 0; i < N; i++) {
        kvl_record_encode(rec, data, scale, x + i * STRIDE);
        CHECK(!memcmp(page + (FIRST + i) * 40, data, 40) &&
                  !memcmp(page + P * 40 + (FIRST + i) * 10, scale, 10),
              "slot %lld", (long long)i);
        kvl_record_decode(rec, one, data, scale);
        CHECK(!memcmp(one, y + i * STRIDE, sizeof one), "row %lld", (long long)i);
        CHECK(y[i * STRIDE + W] == 77, "row %lld ends", (long long)i);
    }
    int64_t used = 0;
    for (int64_t i = 0; i < info->page_bytes; i++)
        used += page[i] != 0;
    CHECK(used <= N * 50 && used > N * 40, "%lld bytes of other slots", (long long)used);
    kvl_record_free(rec);
}

static void expect_error(const kvl_field *f, int64_t entries, int64_t align, const char *text) {
    kvl_record *rec = (kvl_record *)1;
    kvl_error err = {KVL_OK, ""};
    kvl_status status = kvl_record_compile(&rec, f, 1, entries, align, &err);
    CHECK(status == KVL_EINVAL && err.status == KVL_EINVAL && rec == NULL, "accepted: %s", text);
    CHECK(strstr(err.msg, text), "message '%s' lacks '%s'", err.msg, text);
}

static void test_errors(void) {
    kvl_field good = scaled(40, KVL_E5M2, KVL_FP16, KVL_RULE_NEAREST, 8), f;
#define BAD(change, text) (f = good, (change), expect_error(&f, 64, 1, text))
    BAD(f.scale.group = 7, "field 1: group 7 does not divide 40 channels; 5 and 8 do");
    BAD(f.scale.group = 64, "field 1: group 64 does not divide 40 channels; 40 does");
    BAD(f.scale.group = -1, "group -1 must be at least 1");
    BAD(f.block = 12, "block 12 does not divide 40 channels; 10 and 20 do");
    BAD((f.block = 20, f.scale.group = 8), "group 8 does not divide the block of 20 channels");
    BAD(f.channels = 0, "0 channels, expected 1 to");
    BAD(f.channels = (int64_t)1 << 40, "1099511627776 channels, expected 1 to");
    BAD(f.number = KVL_UE8M0, "ue8m0 holds scales, not elements");
    BAD(f.number = KVL_NUMBERS, "no such number");
    BAD(f.scale.number = KVL_INT8, "int8 cannot be the number of a scale");
    BAD(f.scale.rule = KVL_RULE_SIGNED,
        "rule 'signed' is for int4 and int8 elements, not for e5m2");
    BAD(f.scale.rule = KVL_RULE_RANGE, "rule 'range' is for uint4 elements, not for e5m2");
    BAD(f.number = KVL_UINT4, "their rule is 'range', not 'nearest'");
    BAD((f.number = KVL_INT8, f.scale.rule = KVL_RULE_SIGNED, f.scale.number = KVL_UE8M0),
        "rule 'signed' stores negative scales, which ue8m0 has not");
    BAD((f.number = KVL_INT8, f.scale.rule = KVL_RULE_SIGNED, f.scale.floor_amax = 1),
        "rule 'signed' takes no floor");
    BAD(f.scale.floor_amax = -1, "floor amax -1 must be");
    BAD(f.scale.floor_scale = NAN, "floor scale nan must be");
    BAD(f.scale.floor_scale = INFINITY, "floor scale inf must be");
    BAD((f.number = KVL_E2M1, f.scale.group = 5),
        "group 5 is odd, but two e2m1 channels share a byte");
    BAD((f.number = KVL_E2M1, f.scaled = false, f.channels = 41), "block 41 is odd");
    BAD(f.order = KVL_ORDER_HALVES,
        "element order and nibbles are for 4-bit numbers, not for e5m2");
    BAD((f.number = KVL_E2M1, f.order = KVL_ORDER_HALVES, f.channels = 8192, f.scale.group = 0),
        "order 'halves' takes groups of up to 4096 channels, not 8192");
    BAD(f.pad = -1, "pad -1, expected 0 to");
    BAD(f.scale_pad = 1 << 30, "scale_pad 1073741824, expected 0 to");
    BAD((f.place = KVL_PLACE_AFTER, f.scale_pad = 1),
        "scale_pad 1 needs scales with place 'split'");
#undef BAD
    expect_error(&good, 0, 1, "page: 0 entries");
    expect_error(&good, 64, 0, "page: align 0");
    expect_error(&good, INT64_MAX, 1, "page: 9223372036854775807 entries");
    kvl_record *rec;
    kvl_error err;
    CHECK(kvl_record_compile(&rec, &good, 0, 64, 1, &err) == KVL_EINVAL, "no fields");
    kvl_alloc_fail_after(0);
    CHECK(kvl_record_compile(&rec, &good, 1, 64, 1, &err) == KVL_ENOMEM && !rec, "no memory");
    kvl_alloc_fail_after(-1);
}

/* Scales that underflow, overflow, saturate: what is read back is finite and documented. */
static void test_extremes(void) {
    kvl_field f = scaled(4, KVL_E4M3, KVL_FP16, KVL_RULE_NEAREST, 4);
    kvl_record *rec;
    uint8_t data[4], scale[2];
    float x[4] = {3e38f, -1, 0, NAN}, y[4];
    CHECK(kvl_record_compile(&rec, &f, 1, 64, 1, NULL) == KVL_OK, "compiles");
    kvl_record_encode(rec, data, scale, x);
    CHECK(scale[0] == 0xff && scale[1] == 0x7b, "the scale saturates at 65504");
    CHECK(data[0] == 0x7e && data[1] == 0x80 && data[2] == 0 && data[3] == 0x7f, "elements");
    kvl_record_decode(rec, y, data, scale);
    CHECK(y[0] == 448.0f * 65504.0f && y[1] == 0 && y[2] == 0 && isnan(y[3]), "read back");
    float tiny[4] = {1e-12f, -1e-12f, INFINITY, 0};
    kvl_record_encode(rec, data, scale, tiny);
    CHECK(scale[0] == 0 && scale[1] == 0 && data[0] == 0 && data[1] == 0 && data[2] == 0x7e,
          "a scale of 0 stores zeroes, inf as its number says");
    kvl_record_free(rec);

    /* OCP: the scale is 2^(floor(log2 7) - 2) = 1, so 7 saturates at 6; rounding up gives 2 */
    f = scaled(4, KVL_E2M1, KVL_UE8M0, KVL_RULE_OCP_FLOOR, 4);
    float sevens[4] = {7, -7, 1, 0};
    CHECK(kvl_record_compile(&rec, &f, 1, 64, 1, NULL) == KVL_OK, "compiles");
    kvl_record_encode(rec, data, scale, sevens);
    kvl_record_decode(rec, y, data, scale);
    CHECK(scale[0] == 127 && y[0] == 6 && y[1] == -6 && y[2] == 1, "OCP floor");
    kvl_record_free(rec);
    f.scale.rule = KVL_RULE_POW2_UP;
    CHECK(kvl_record_compile(&rec, &f, 1, 64, 1, NULL) == KVL_OK, "compiles");
    kvl_record_encode(rec, data, scale, sevens);
    kvl_record_decode(rec, y, data, scale);
    CHECK(scale[0] == 128 && y[0] == 8 && y[1] == -8 && y[2] == 1, "power of two up: %g",
          (double)y[0]);
    kvl_record_free(rec);
}

int main(void) {
    test_combinations();
    test_large_groups();
    test_pages();
    test_slots();
    test_errors();
    test_extremes();
    CHECK(kvl_live_bytes() == 0, "%zu bytes are still held", kvl_live_bytes());
    return check_done();
}

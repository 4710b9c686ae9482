/* test_number.c - every code and every midpoint of every number, against values built here in
 * double arithmetic from the definition; and every fast row against its plain twin on random bit
 * patterns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "kvlab/number.h"

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static const kvl_ties all_ties[] = {KVL_TIES_EVEN, KVL_TIES_DOWN, KVL_TIES_AWAY, KVL_TIES_UP};

/* One row for each small float: fields of the code, its largest finite code,
 * what overflow becomes. */
static const struct small {
    kvl_number number;
    int e, m, bias;
    uint32_t top, over, nan;
    double max, min_normal, min_subnormal;
} smalls[] = {
    {KVL_BF16, 8, 7, 127, 0x7f7f, 0x7f80, 0x7fc0, 0x1.fep127, 0x1p-126, 0x1p-133},
    {KVL_FP16, 5, 10, 15, 0x7bff, 0x7c00, 0x7e00, 65504, 0x1p-14, 0x1p-24},
    {KVL_E4M3, 4, 3, 7, 0x7e, 0x7e, 0x7f, 448, 0.015625, 0x1p-9},
    {KVL_E5M2, 5, 2, 15, 0x7b, 0x7b, 0x7f, 57344, 0x1p-14, 0x1p-16},
    {KVL_E2M1, 2, 1, 1, 7, 7, 7, 6, 1, 0.5},
};

/* The value of a positive code by the definition. */
static double value_of(const struct small *s, uint32_t code) {
    uint32_t exponent = code >> s->m, mantissa = code & ((1u << s->m) - 1u);
    double unit = pow(2, -s->m);
    if (exponent == 0) return mantissa * unit * pow(2, 1 - s->bias);
    return (1 + mantissa * unit) * pow(2, (int)exponent - s->bias);
}

/* Millions of comparisons: only the failures are counted one by one. */
#define EXPECT(cond, ...)                                                                          \
    do {                                                                                           \
        if (!(cond)) CHECK(cond, __VA_ARGS__);                                                     \
    } while (0)

static void check_encode(kvl_number number, float x, kvl_ties ties, uint32_t expected) {
    const char *name = kvl_number_about(number)->name;
    uint32_t code = kvl_number_encode(number, x, ties);
    EXPECT(code == expected, "%s of %a, ties %d: 0x%x, expected 0x%x", name, (double)x, ties, code,
           expected);
    code = kvl_number_encode_ref(number, (double)x, ties);
    EXPECT(code == expected, "%s_ref of %a, ties %d: 0x%x, expected 0x%x", name, (double)x, ties,
           code, expected);
    uint8_t row[4] = {0};
    kvl_number_encode_row(number, row, &x, 1, ties);
    code = 0;
    memcpy(&code, row, (size_t)kvl_number_about(number)->code_bytes);
    EXPECT(code == expected, "%s row of %a, ties %d: 0x%x, expected 0x%x", name, (double)x, ties,
           code, expected);
}

/* lo and lo + 1 are neighbouring positive codes with the values a and b;
 * negative ones get `sign`. */
static void check_midpoint(kvl_number number, uint32_t lo, double a, double b, uint32_t sign) {
    float middle = (float)((a + b) / 2);
    EXPECT((double)middle == (a + b) / 2, "the midpoint is no float");
    for (int negative = 0; negative <= (sign ? 1 : 0); negative++) {
        uint32_t s = negative ? sign : 0;
        float x = negative ? -middle : middle;
        float inner = nextafterf(x, 0), outer = nextafterf(x, negative ? -INFINITY : INFINITY);
        for (int t = 0; t < 4; t++) {
            kvl_ties ties = all_ties[t];
            uint32_t zero_sign = ties == KVL_TIES_DOWN && lo == 0 ? 0 : s; /* -0 is dropped */
            bool away = ties == KVL_TIES_EVEN   ? lo % 2 == 1
                        : ties == KVL_TIES_AWAY ? true
                        : ties == KVL_TIES_UP   ? !negative
                                                : false;
            check_encode(number, x, ties, away ? (lo + 1) | s : lo | zero_sign);
            check_encode(number, inner, ties, lo | zero_sign);
            check_encode(number, outer, ties, (lo + 1) | s);
        }
    }
}

static void test_small(const struct small *s) {
    const kvl_number_info *info = kvl_number_about(s->number);
    uint32_t sign = 1u << (s->e + s->m);
    CHECK(info->max == s->max && info->min == -s->max && info->min_normal == s->min_normal &&
              info->min_subnormal == s->min_subnormal && info->bias == s->bias,
          "facts of %s", info->name);
    CHECK(value_of(s, s->top) == s->max && value_of(s, 1) == s->min_subnormal, "%s", info->name);
    for (uint32_t code = 0; code <= s->top; code++)
        for (int negative = 0; negative < 2; negative++) {
            uint32_t signed_code = negative ? code | sign : code;
            double value = negative ? -value_of(s, code) : value_of(s, code);
            float x = kvl_number_decode(s->number, signed_code);
            EXPECT((double)x == value && !signbit(x) == !negative, "%s 0x%x decodes to %a",
                   info->name, signed_code, (double)x);
            double ref = kvl_number_decode_ref(s->number, signed_code);
            EXPECT(ref == value && !signbit(ref) == !negative, "%s_ref 0x%x", info->name,
                   signed_code);
            check_encode(s->number, x, KVL_TIES_EVEN, signed_code);
            check_encode(s->number, x, KVL_TIES_AWAY, signed_code);
        }
    for (uint32_t code = 0; code < s->top; code++)
        check_midpoint(s->number, code, value_of(s, code), value_of(s, code + 1), sign);
    /* overflow, inf and NaN */
    double beyond = 2 * s->max > 0x1.fffffep127 ? 0x1.fffffep127 : 2 * s->max;
    check_encode(s->number, (float)beyond, KVL_TIES_EVEN, s->over);
    check_encode(s->number, -(float)beyond, KVL_TIES_EVEN, s->over | sign);
    check_encode(s->number, INFINITY, KVL_TIES_EVEN, s->over);
    check_encode(s->number, -INFINITY, KVL_TIES_EVEN, s->over | sign);
    check_encode(s->number, NAN, KVL_TIES_EVEN, s->nan);
    check_encode(s->number, -NAN, KVL_TIES_EVEN, s->number == KVL_E2M1 ? 7 : s->nan | sign);
    /* the codes above the largest finite one */
    for (uint32_t code = s->top + 1; code < sign; code++) {
        float x = kvl_number_decode(s->number, code), y = kvl_number_decode(s->number, code | sign);
        bool is_inf = info->has_inf && code == s->top + 1;
        EXPECT(is_inf ? x == INFINITY && y == -INFINITY : isnan(x) && isnan(y), "%s 0x%x is %g",
               info->name, code, (double)x);
        double ref = kvl_number_decode_ref(s->number, code);
        EXPECT(is_inf ? ref == INFINITY : isnan(ref), "%s_ref 0x%x", info->name, code);
    }
}

static void test_ue8m0(void) {
    for (uint32_t code = 0; code < 255; code++) {
        float x = kvl_number_decode(KVL_UE8M0, code);
        CHECK((double)x == pow(2, (int)code - 127), "ue8m0 0x%x decodes to %a", code, (double)x);
        check_encode(KVL_UE8M0, x, KVL_TIES_EVEN, code);
        float above = nextafterf(x, INFINITY), below = nextafterf(x, 0);
        CHECK(kvl_ue8m0_up(x) == code && kvl_ue8m0_floor(x) == code, "up, floor of 0x%x", code);
        uint32_t next = code < 254 ? code + 1 : 254, last = code ? code - 1 : 0;
        CHECK(kvl_ue8m0_up(above) == next && kvl_ue8m0_floor(above) == code, "above 0x%x", code);
        CHECK(kvl_ue8m0_up(below) == code && kvl_ue8m0_floor(below) == last, "below 0x%x", code);
        if (code < 254) check_midpoint(KVL_UE8M0, code, (double)x, 2 * (double)x, 0);
    }
    CHECK(isnan(kvl_number_decode(KVL_UE8M0, 255)), "0xFF is NaN");
    check_encode(KVL_UE8M0, NAN, KVL_TIES_EVEN, 255);
    check_encode(KVL_UE8M0, INFINITY, KVL_TIES_EVEN, 254);
    check_encode(KVL_UE8M0, 0, KVL_TIES_EVEN, 0);
    check_encode(KVL_UE8M0, -8, KVL_TIES_EVEN, 0);
    CHECK(kvl_ue8m0_up(INFINITY) == 254 && kvl_ue8m0_up(NAN) == 255 && kvl_ue8m0_up(-1) == 0 &&
              kvl_ue8m0_floor(0) == 0,
          "ue8m0 up and floor of what it has not");
}

/* ggml's scale: the magnitudes of e4m3, half up, 256 and more become 448, 0x7F decodes to 0. */
static void test_ue4m3(void) {
    const struct small *s = &smalls[2];
    for (uint32_t code = 0; code < 0x7f; code++) {
        float x = kvl_number_decode(KVL_UE4M3, code);
        CHECK((double)x == value_of(s, code), "ue4m3 0x%x decodes to %a", code, (double)x);
        check_encode(KVL_UE4M3, x, KVL_TIES_EVEN, code < 0x78 ? code : 0x7e);
    }
    CHECK(kvl_number_decode(KVL_UE4M3, 0x7f) == 0, "0x7F decodes to 0");
    for (uint32_t lo = 0; lo < 0x77; lo++) {
        float middle = (float)((value_of(s, lo) + value_of(s, lo + 1)) / 2);
        uint32_t up = lo == 7 ? 7 : lo + 1; /* subnormals end at 7 */
        check_encode(KVL_UE4M3, middle, KVL_TIES_EVEN, up);
        check_encode(KVL_UE4M3, nextafterf(middle, INFINITY), KVL_TIES_EVEN, up);
        /* below half a quantum ggml's float sum already rounds up to 1 */
        check_encode(KVL_UE4M3, nextafterf(middle, 0), KVL_TIES_EVEN, lo == 0 ? 1 : lo);
    }
    check_encode(KVL_UE4M3, 247.9f, KVL_TIES_EVEN, 0x77);
    check_encode(KVL_UE4M3, 248, KVL_TIES_EVEN, 0x7e);
    check_encode(KVL_UE4M3, INFINITY, KVL_TIES_EVEN, 0x7e);
    check_encode(KVL_UE4M3, NAN, KVL_TIES_EVEN, 0);
    check_encode(KVL_UE4M3, -1, KVL_TIES_EVEN, 0);
    check_encode(KVL_UE4M3, -0.0f, KVL_TIES_EVEN, 0);
}

static void test_integers(void) {
    static const struct {
        kvl_number number;
        int lo, hi, excess;
    } rows[] = {{KVL_INT8, -128, 127, 0}, {KVL_INT4, -8, 7, 8}, {KVL_UINT4, 0, 15, 0}};
    for (int r = 0; r < 3; r++) {
        kvl_number number = rows[r].number;
        int lo = rows[r].lo, hi = rows[r].hi, excess = rows[r].excess;
        for (int v = lo; v <= hi; v++) {
            uint32_t code = (uint32_t)(v + excess) & 0xffu;
            CHECK(kvl_number_decode(number, code) == (float)v, "%d decodes", v);
            CHECK(kvl_number_decode_ref(number, code) == v, "%d decodes in the twin", v);
            for (int t = 0; t < 4; t++)
                check_encode(number, (float)v, all_ties[t], code);
            if (v == hi) break;
            uint32_t next = (uint32_t)(v + 1 + excess) & 0xffu;
            float middle = (float)v + 0.5f;
            check_encode(number, middle, KVL_TIES_EVEN, v % 2 ? next : code);
            check_encode(number, middle, KVL_TIES_AWAY, v >= 0 ? next : code);
            check_encode(number, middle, KVL_TIES_DOWN, v >= 0 ? code : next);
            check_encode(number, middle, KVL_TIES_UP, next);
            for (int t = 0; t < 3; t++) {
                check_encode(number, nextafterf(middle, -1e9f), all_ties[t], code);
                check_encode(number, nextafterf(middle, 1e9f), all_ties[t], next);
            }
            check_encode(number, (float)v + 0.4375f, KVL_TIES_UP, code);
            check_encode(number, (float)v + 0.5625f, KVL_TIES_UP, next);
        }
        uint32_t low = (uint32_t)(lo + excess) & 0xffu, high = (uint32_t)(hi + excess) & 0xffu;
        for (int t = 0; t < 4; t++) {
            check_encode(number, (float)hi + 0.5f, all_ties[t], high);
            check_encode(number, (float)lo - 0.5f, all_ties[t], low);
            check_encode(number, 1e30f, all_ties[t], high);
            check_encode(number, -1e30f, all_ties[t], low);
            check_encode(number, INFINITY, all_ties[t], high);
            check_encode(number, -INFINITY, all_ties[t], low);
            check_encode(number, NAN, all_ties[t], (uint32_t)excess);
        }
    }
    /* ggml's (int)(x + 8.5f): the float sum reaches 9 a little early */
    check_encode(KVL_INT4, nextafterf(0.5f, 0), KVL_TIES_UP, 9);
}

static void test_spot_values(void) {
    check_encode(KVL_E4M3, 448, KVL_TIES_EVEN, 0x7e);
    check_encode(KVL_E4M3, 464, KVL_TIES_EVEN, 0x7e);
    check_encode(KVL_E4M3, 465, KVL_TIES_EVEN, 0x7e);
    check_encode(KVL_E4M3, 0.0009765625f, KVL_TIES_EVEN, 0x00);
    check_encode(KVL_E4M3, 0.00146484375f, KVL_TIES_EVEN, 0x01);
    check_encode(KVL_E4M3, 17, KVL_TIES_EVEN, 0x58);
    check_encode(KVL_E4M3, 19, KVL_TIES_EVEN, 0x5a);
    check_encode(KVL_E4M3, -0.0f, KVL_TIES_EVEN, 0x80);
    check_encode(KVL_E2M1, -0.1f, KVL_TIES_EVEN, 8);
    check_encode(KVL_E2M1, -0.1f, KVL_TIES_DOWN, 0);
    static const struct {
        float x;
        uint32_t even, down;
    } halves[] = {{0.25f, 0, 0}, {0.75f, 2, 1}, {1.25f, 2, 2}, {1.75f, 4, 3},
                  {2.5f, 4, 4},  {3.5f, 6, 5},  {5, 6, 6}};
    for (int i = 0; i < 7; i++) {
        check_encode(KVL_E2M1, halves[i].x, KVL_TIES_EVEN, halves[i].even);
        check_encode(KVL_E2M1, halves[i].x, KVL_TIES_DOWN, halves[i].down);
    }
    static const struct {
        kvl_number number;
        float x;
        uint32_t code;
    } strict[] = {
        {KVL_E4M3, 464, 0x7e},         {KVL_E4M3, 465, 0x7f},        {KVL_E4M3, -465, 0xff},
        {KVL_E4M3, INFINITY, 0x7f},    {KVL_E5M2, 61440, 0x7c},      {KVL_E5M2, 61439, 0x7b},
        {KVL_E5M2, -INFINITY, 0xfc},   {KVL_E5M2, NAN, 0x7f},        {KVL_UE8M0, INFINITY, 0xff},
        {KVL_UE8M0, 0x1p127f, 0xfe},   {KVL_E2M1, 100, 7},           {KVL_E4M3, 1, 0x38},
        {KVL_UE8M0, 0x1.9p127f, 0xff}, {KVL_UE8M0, 0x1.7p127f, 0xfe}};
    for (size_t i = 0; i < sizeof strict / sizeof strict[0]; i++) {
        uint32_t code = kvl_number_encode_strict(strict[i].number, strict[i].x, KVL_TIES_EVEN);
        CHECK(code == strict[i].code, "strict %s of %g: 0x%x",
              kvl_number_about(strict[i].number)->name, (double)strict[i].x, code);
    }
}

/* Bound 0: rows are exact. Lengths around the vector width, unaligned codes, random bits of a
 * float. */
static void test_rows(void) {
    enum { N = 20011 };
    static float x[N], y[N];
    static uint8_t codes[4 * N + 1];
    uint64_t state = 12345;
    for (int64_t i = 0; i < N; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t u = (uint32_t)(state >> 32);
        /* a third anything at all, the rest with exponents near 1 */
        x[i] = from_bits(i % 3 == 0 ? u : (u & 0x80ffffffu) + 0x38000000u + (u >> 3 & 0x07000000u));
    }
    for (int number = 0; number < KVL_NUMBERS; number++) {
        const kvl_number_info *info = kvl_number_about((kvl_number)number);
        for (int t = 0; t < 4; t++) {
            kvl_number_encode_row((kvl_number)number, codes + 1, x, N, all_ties[t]);
            int64_t bad = 0;
            for (int64_t i = 0; i < N; i++) {
                uint32_t code = 0, ref;
                memcpy(&code, codes + 1 + i * info->code_bytes, (size_t)info->code_bytes);
                ref = number == KVL_F32
                          ? bits_of(x[i])
                          : kvl_number_encode_ref((kvl_number)number, (double)x[i], all_ties[t]);
                bad += code != ref;
                bad += code != kvl_number_encode((kvl_number)number, x[i], all_ties[t]);
            }
            CHECK(bad == 0, "%s rows, ties %d: %lld of %d codes differ", info->name, t,
                  (long long)bad, N);
        }
        int64_t n = info->bits == 32 ? N : info->bits == 16 ? N : 256;
        for (int64_t i = 0; i < 4 * n; i++)
            codes[1 + i] = (uint8_t)(info->code_bytes == 1 ? i & ((1 << info->bits) - 1) : i * 7);
        kvl_number_decode_row((kvl_number)number, y, codes + 1, n);
        int64_t bad = 0;
        for (int64_t i = 0; i < n; i++) {
            uint32_t code = 0;
            memcpy(&code, codes + 1 + i * info->code_bytes, (size_t)info->code_bytes);
            float ref = (float)kvl_number_decode_ref((kvl_number)number, code);
            float one = kvl_number_decode((kvl_number)number, code);
            bad += isnan(ref) ? !isnan(y[i]) || !isnan(one)
                              : bits_of(y[i]) != bits_of(ref) || bits_of(one) != bits_of(ref);
        }
        CHECK(bad == 0, "%s rows: %lld of %lld values differ", info->name, (long long)bad,
              (long long)n);
        for (int64_t m = 0; m < 40; m++) { /* nothing beyond the end is written */
            memset(codes, 0xa5, 4 * 40 + 1);
            kvl_number_encode_row((kvl_number)number, codes, x, m, KVL_TIES_EVEN);
            CHECK(codes[m * info->code_bytes] == 0xa5, "%s writes past %lld", info->name,
                  (long long)m);
        }
    }
}

/* All 2^16 codes of the 16-bit numbers survive a round trip; NaN stays NaN. */
static void test_round_trips(void) {
    for (int number = 0; number < KVL_NUMBERS; number++) {
        const kvl_number_info *info = kvl_number_about((kvl_number)number);
        if (info->bits == 32 || number == KVL_UE4M3) continue; /* its top codes are never written */
        int64_t bad = 0;
        for (uint32_t code = 0; code < 1u << info->bits; code++) {
            float x = kvl_number_decode((kvl_number)number, code);
            uint32_t again = kvl_number_encode_strict((kvl_number)number, x, KVL_TIES_EVEN);
            bad += isnan(x) ? !isnan(kvl_number_decode((kvl_number)number, again)) : again != code;
        }
        CHECK(bad == 0, "%s: %lld codes change", info->name, (long long)bad);
    }
}

int main(void) {
    for (size_t i = 0; i < sizeof smalls / sizeof smalls[0]; i++) {
        int failed = checks_failed;
        test_small(&smalls[i]);
        CHECK(checks_failed == failed, "%s, all codes", kvl_number_about(smalls[i].number)->name);
    }
    test_ue8m0();
    test_ue4m3();
    test_integers();
    test_spot_values();
    test_rows();
    test_round_trips();
    kvl_number number;
    CHECK(kvl_number_named(&number, "e4m3") && number == KVL_E4M3, "by name");
    CHECK(!kvl_number_named(&number, "e4m4"), "no such name");
    CHECK(kvl_number_about(KVL_NUMBERS) == NULL, "no such number");
    return check_done();
}

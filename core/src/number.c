/* number.c - encode and decode of every number format, one value or a row at a time.
 *
 * One inline function for each direction describes all small floats (fp16, e4m3, e5m2, e2m1): the
 * row loops call it with constants, so the compiler folds it into a branch-free vector loop.
 * Subnormals take the other side of a select: encoded by adding 2^23, whose unit is one quantum,
 * decoded as an integer times the quantum; float subnormals are never an operand, because many CPUs
 * are slow on them. The plain twins are in number_ref.c.
 */
#include "kvlab/number.h"
#include "simd.h"

static const kvl_number_info about[KVL_NUMBERS] = {
    [KVL_F32] = {"f32", "FP32", 32, 4, 8, 23, 127, 0x1.fffffep127, -0x1.fffffep127, 0x1p-126,
                 0x1p-149, true, true},
    [KVL_BF16] = {"bf16", "BF16", 16, 2, 8, 7, 127, 0x1.fep127, -0x1.fep127, 0x1p-126, 0x1p-133,
                  true, true},
    [KVL_FP16] = {"fp16", "FP16", 16, 2, 5, 10, 15, 65504, -65504, 0x1p-14, 0x1p-24, true, true},
    [KVL_E4M3] = {"e4m3", "E4M3", 8, 1, 4, 3, 7, 448, -448, 0x1p-6, 0x1p-9, false, true},
    [KVL_E5M2] = {"e5m2", "E5M2", 8, 1, 5, 2, 15, 57344, -57344, 0x1p-14, 0x1p-16, true, true},
    [KVL_E2M1] = {"e2m1", "E2M1", 4, 1, 2, 1, 1, 6, -6, 1, 0.5, false, false},
    [KVL_UE8M0] = {"ue8m0", "UE8M0", 8, 1, 8, 0, 127, 0x1p127, 0x1p-127, 0x1p-127, 0, false, true},
    [KVL_UE4M3] = {"ue4m3", "UE4M3", 8, 1, 4, 3, 7, 448, 0, 0x1p-6, 0x1p-9, false, false},
    [KVL_INT8] = {"int8", "INT8", 8, 1, 0, 0, 0, 127, -128, 1, 0, false, false},
    [KVL_INT4] = {"int4", "INT4", 4, 1, 0, 0, 0, 7, -8, 1, 0, false, false},
    [KVL_UINT4] = {"uint4", "UINT4", 4, 1, 0, 0, 0, 15, 0, 1, 0, false, false},
};

const kvl_number_info *kvl_number_about(kvl_number number) {
    return (unsigned)number < KVL_NUMBERS ? &about[number] : NULL;
}

bool kvl_number_named(kvl_number *out, const char *name) {
    for (int i = 0; i < KVL_NUMBERS; i++) {
        if (strcmp(about[i].name, name)) continue;
        *out = (kvl_number)i;
        return true;
    }
    return false;
}

#define INF_BITS   0x7f800000u
#define QUIET_BITS 0x7fc00000u

/* --- small floats ----------------------------------------------------------------------------- */

/* What a tie adds to the code below it: 1 moves it away from zero, 0 leaves it there. */
static inline uint32_t tie_bump(kvl_ties ties, uint32_t odd, uint32_t sign) {
    return ties == KVL_TIES_EVEN   ? odd
           : ties == KVL_TIES_AWAY ? 1u
           : ties == KVL_TIES_UP   ? sign ^ 1u
                                   : 0u;
}

/* All ones when a < b, else 0; both are below 2^31. Masks of the width of the data keep the
 * vectorised loops free of shuffles: a compiler packs a vector of bool into bytes and unpacks it
 * again. */
static inline uint32_t below(uint32_t a, uint32_t b) {
    return 0u - ((a - b) >> 31);
}

static inline uint32_t pick(uint32_t mask, uint32_t yes, uint32_t no) {
    return (yes & mask) | (no & ~mask);
}

/* Magnitude code of |x| for a float with m mantissa bits and a bias below 127, before overflow. */
static inline uint32_t small_magnitude(uint32_t a, uint32_t sign, int m, int bias, kvl_ties ties) {
    int shift = 23 - m;
    uint32_t half = 1u << (shift - 1);
    uint32_t bump = tie_bump(ties, a >> shift & 1u, sign);
    uint32_t normal = ((a + half - 1u + bump) >> shift) - ((uint32_t)(127 - bias) << m);
    /* Quanta of 2^(1-bias-m): adding 2^23 rounds to an integer, to even.
     * Other ties are put right. */
    float quanta = kvl_from_bits(a) * kvl_from_bits((uint32_t)(126 + bias + m) << 23);
    float rounded = quanta + 0x1p23f;
    uint32_t n = kvl_bits(rounded) & 0x7fffffu;
    if (ties != KVL_TIES_EVEN) {
        uint32_t rest = kvl_bits(quanta - (rounded - 0x1p23f));
        uint32_t away = tie_bump(ties, 0, sign);
        n += (rest == kvl_bits(0.5f) ? 1u : 0u) & away;
        n -= (rest == kvl_bits(-0.5f) ? 1u : 0u) & (away ^ 1u);
    }
    return pick(below(a, (uint32_t)(128 - bias) << 23), n, normal);
}

/* over: the code of all that is beyond the largest finite one, which is `over` itself or the one
 * below it. nan: the code of NaN, nan_sign: the signs it has. */
static inline uint32_t small_encode(float x, int e, int m, int bias, uint32_t over, uint32_t nan,
                                    uint32_t nan_sign, kvl_ties ties) {
    uint32_t u = kvl_bits(x), sign = u >> 31, a = u & 0x7fffffffu;
    uint32_t mag = small_magnitude(a, sign, m, bias, ties);
    mag = pick(below(over, mag), over, mag);
    if (ties == KVL_TIES_DOWN) sign &= below(0, mag);
    uint32_t is_nan = below(INF_BITS, a);
    mag = pick(is_nan, nan, mag);
    sign &= nan_sign | ~is_nan;
    return sign << (e + m) | mag;
}

/* Finite values; with `top` not 0, codes from there on are inf and NaN. */
static inline float small_decode(uint32_t code, int e, int m, int bias, uint32_t top) {
    uint32_t mag = code & ((1u << (e + m)) - 1u);
    uint32_t sign = code << (31 - e - m) & 0x80000000u;
    uint32_t normal = (mag << (23 - m)) + ((uint32_t)(127 - bias) << 23);
    float quantum = kvl_from_bits((uint32_t)(128 - bias - m) << 23);
    uint32_t subnormal = kvl_bits((float)(int32_t)mag * quantum);
    uint32_t u = pick(below(mag, 1u << m), subnormal, normal);
    if (top) u |= INF_BITS & ~below(mag, top);
    return kvl_from_bits(u | sign);
}

static inline uint32_t e4m3_encode(float x, kvl_ties ties) {
    return small_encode(x, 4, 3, 7, 0x7e, 0x7f, 1, ties);
}

static inline float e4m3_decode(uint32_t code) {
    return small_decode(code, 4, 3, 7, 0x7f);
}

static inline uint32_t e5m2_encode(float x, kvl_ties ties) {
    return small_encode(x, 5, 2, 15, 0x7b, 0x7f, 1, ties);
}

static inline float e5m2_decode(uint32_t code) {
    return small_decode(code, 5, 2, 15, 0x7c);
}

static inline uint32_t e2m1_encode(float x, kvl_ties ties) {
    return small_encode(x, 2, 1, 1, 7, 7, 0, ties);
}

static inline float e2m1_decode(uint32_t code) {
    return small_decode(code, 2, 1, 1, 0);
}

static inline uint32_t fp16_encode(float x, kvl_ties ties) {
    return small_encode(x, 5, 10, 15, 0x7c00, 0x7e00, 1, ties);
}

static inline float fp16_decode(uint32_t code) {
    return small_decode(code, 5, 10, 15, 0x7c00);
}

/* ggml's scale: no sign; half up on the mantissa bits that are kept; the top binade (256 and more)
 * collapses into its largest code. Subnormals are (int)(512 x + 0.5), at most 7: just below 2^-6 it
 * goes down. */
static inline uint32_t ue4m3_encode(float x, kvl_ties ties) {
    (void)ties;
    uint32_t u = kvl_bits(x);
    uint32_t normal = ((u + 0x80000u) >> 20) - (120u << 3);
    float quanta = x * 512.0f;
    quanta = quanta < 8.0f ? quanta : 8.0f;
    uint32_t subnormal = (uint32_t)(int32_t)(quanta > 0 ? quanta + 0.5f : 0.0f);
    subnormal = subnormal > 7u ? 7u : subnormal;
    uint32_t mag = u < 121u << 23 ? subnormal : normal;
    mag = mag >= 0x78u ? 0x7eu : mag;
    return u > INF_BITS ? 0 : mag; /* NaN, or the sign bit is set */
}

static inline float ue4m3_decode(uint32_t code) {
    uint32_t mag = code & 0x7fu;
    return small_decode(mag == 0x7fu ? 0u : mag, 4, 3, 7, 0);
}

/* --- wide floats ------------------------------------------------------------------------------ */

static inline uint32_t bf16_encode(float x, kvl_ties ties) {
    uint32_t u = kvl_bits(x), sign = u >> 31, a = u & 0x7fffffffu;
    uint32_t mag = (a + 0x7fffu + tie_bump(ties, a >> 16 & 1u, sign)) >> 16;
    sign = ties == KVL_TIES_DOWN && mag == 0 ? 0 : sign;
    return sign << 15 | pick(below(INF_BITS, a), 0x7fc0u, mag);
}

static inline float bf16_decode(uint32_t code) {
    return kvl_from_bits(code << 16);
}

static inline uint32_t f32_encode(float x, kvl_ties ties) {
    (void)ties;
    return kvl_bits(x);
}

static inline float f32_decode(uint32_t code) {
    return kvl_from_bits(code);
}

/* --- powers of two ---------------------------------------------------------------------------- */

static inline float ue8m0_decode(uint32_t code) {
    uint32_t u = (code & 0xffu) << 23;
    u = u == 0 ? 0x400000u : u;
    return kvl_from_bits(u == INF_BITS ? QUIET_BITS : u);
}

/* `up`: the mantissa above which the exponent goes up, for a normal x and for a float subnormal,
 * whose neighbours are 2^-127 = 0x400000 and 2^-126 = 0x800000. */
static inline uint32_t ue8m0_round(float x, uint32_t up_normal, uint32_t up_subnormal) {
    uint32_t u = kvl_bits(x), exponent = u >> 23 & 0xffu, mantissa = u & 0x7fffffu;
    uint32_t code = exponent + (mantissa > (exponent ? up_normal : up_subnormal));
    code = code > 0xfeu ? 0xfeu : code;
    code = u >> 31 ? 0 : code;
    return (u & 0x7fffffffu) > INF_BITS ? 0xffu : code;
}

static inline uint32_t ue8m0_encode(float x, kvl_ties ties) {
    uint32_t odd = kvl_bits(x) >> 23 & 1u;
    uint32_t bump = tie_bump(ties, odd, 0);
    return ue8m0_round(x, 0x400000u - bump, 0x600000u - bump);
}

uint32_t kvl_ue8m0_up(float x) {
    return ue8m0_round(x, 0, 0x400000u);
}

uint32_t kvl_ue8m0_floor(float x) {
    return ue8m0_round(x, 0x7fffffu, 0x7fffffu);
}

/* --- integers --------------------------------------------------------------------------------- */

/* The code is the value plus `excess`. Adding 1.5 * 2^23 rounds to an integer, to even. */
static inline uint32_t int_encode(float x, float lo, float hi, float excess, kvl_ties ties) {
    const float magic = 0x1.8p23f;
    x = x == x ? x : 0.0f;
    if (ties == KVL_TIES_UP && lo + excess == 0.0f) { /* codes from 0: floor is what a cast does */
        float y = x + (excess + 0.5f), top = hi + excess;
        y = y > 0.0f ? y : 0.0f;
        return (uint32_t)(int32_t)(y < top ? y : top);
    }
    x = x < lo - 2.0f ? lo - 2.0f : x;
    x = x > hi + 2.0f ? hi + 2.0f : x;
    float n;
    if (ties == KVL_TIES_UP) {
        float y = x + (excess + 0.5f); /* rounded, as ggml's sum is */
        n = (y + magic) - magic;
        n -= n > y ? 1.0f : 0.0f;
        n -= excess;
    } else {
        n = (x + magic) - magic;
        float rest = x - n;
        float toward = x > 0 ? 1.0f : -1.0f; /* the direction away from zero */
        if (ties == KVL_TIES_AWAY) n += rest == 0.5f * toward ? toward : 0.0f;
        if (ties == KVL_TIES_DOWN) n -= rest == -0.5f * toward ? toward : 0.0f;
    }
    n = n < lo ? lo : n;
    n = n > hi ? hi : n;
    return kvl_bits(n + excess + magic) & 0xffu;
}

static inline uint32_t int8_encode(float x, kvl_ties ties) {
    return int_encode(x, -128, 127, 0, ties);
}

static inline float int8_decode(uint32_t code) {
    return (float)((int32_t)((code & 0xffu) ^ 0x80u) - 128);
}

static inline uint32_t int4_encode(float x, kvl_ties ties) {
    return int_encode(x, -8, 7, 8, ties);
}

static inline float int4_decode(uint32_t code) {
    return (float)((int32_t)(code & 15u) - 8);
}

static inline uint32_t uint4_encode(float x, kvl_ties ties) {
    return int_encode(x, 0, 15, 0, ties);
}

static inline float uint4_decode(uint32_t code) {
    return (float)(int32_t)(code & 15u);
}

/* --- one value -------------------------------------------------------------------------------- */

#define EACH_NUMBER(ROW)                                                                           \
    ROW(f32, KVL_F32, uint32_t)                                                                    \
    ROW(bf16, KVL_BF16, uint16_t)                                                                  \
    ROW(fp16, KVL_FP16, uint16_t)                                                                  \
    ROW(e4m3, KVL_E4M3, uint8_t)                                                                   \
    ROW(e5m2, KVL_E5M2, uint8_t)                                                                   \
    ROW(e2m1, KVL_E2M1, uint8_t)                                                                   \
    ROW(ue8m0, KVL_UE8M0, uint8_t)                                                                 \
    ROW(ue4m3, KVL_UE4M3, uint8_t)                                                                 \
    ROW(int8, KVL_INT8, uint8_t)                                                                   \
    ROW(int4, KVL_INT4, uint8_t)                                                                   \
    ROW(uint4, KVL_UINT4, uint8_t)

uint32_t kvl_number_encode(kvl_number number, float x, kvl_ties ties) {
    switch (number) {
#define ROW(name, id, type)                                                                        \
    case id: return name##_encode(x, ties);
        EACH_NUMBER(ROW)
#undef ROW
    case KVL_NUMBERS: break;
    }
    return 0;
}

float kvl_number_decode(kvl_number number, uint32_t code) {
    switch (number) {
#define ROW(name, id, type)                                                                        \
    case id: return name##_decode(code);
        EACH_NUMBER(ROW)
#undef ROW
    case KVL_NUMBERS: break;
    }
    return 0;
}

uint32_t kvl_number_encode_strict(kvl_number number, float x, kvl_ties ties) {
    if (number == KVL_E4M3) return small_encode(x, 4, 3, 7, 0x7f, 0x7f, 1, ties);
    if (number == KVL_E5M2) return small_encode(x, 5, 2, 15, 0x7c, 0x7f, 1, ties);
    if (number == KVL_UE8M0 && x > 0x1p127f) {
        uint32_t odd_neighbour = tie_bump(ties, 0, 0); /* 0xFE is even, 0xFF is NaN */
        return x > 0x1.8p127f || (x == 0x1.8p127f && odd_neighbour) ? 0xffu : 0xfeu;
    }
    return kvl_number_encode(number, x, ties);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Codes are 32 bits wide in the arithmetic and narrow in memory. The two are separate loops over a
 * tile, since a compiler that sees both in one narrows some of the arithmetic too, and then
 * shuffles more than it computes. memcpy because codes lie at any address. The ties are constants
 * in their loops, so that the compiler drops what the others need. */
enum { WIDE = 256 };

#define ENCODE_LOOP(name, ties)                                                                    \
    for (int64_t i = 0; i < m; i++)                                                                \
        wide[i] = name##_encode(x[at + i], ties);

#define ROW(name, id, type)                                                                        \
    KVL_CLONES_AVX2 static void name##_encode_row(                                                 \
        uint8_t *restrict codes, const float *restrict x, int64_t n, kvl_ties ties) {              \
        uint32_t wide[WIDE];                                                                       \
        for (int64_t at = 0; at < n; at += WIDE) {                                                 \
            int64_t m = n - at < WIDE ? n - at : WIDE;                                             \
            if (ties == KVL_TIES_EVEN)                                                             \
                ENCODE_LOOP(name, KVL_TIES_EVEN)                                                   \
            else if (ties == KVL_TIES_DOWN)                                                        \
                ENCODE_LOOP(name, KVL_TIES_DOWN)                                                   \
            else if (ties == KVL_TIES_AWAY)                                                        \
                ENCODE_LOOP(name, KVL_TIES_AWAY)                                                   \
            else                                                                                   \
                ENCODE_LOOP(name, KVL_TIES_UP)                                                     \
            for (int64_t i = 0; i < m; i++) {                                                      \
                type code = (type)wide[i];                                                         \
                memcpy(codes + (at + i) * (int64_t)sizeof code, &code, sizeof code);               \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    KVL_CLONES_AVX2 static void name##_decode_row(float *restrict x,                               \
                                                  const uint8_t *restrict codes, int64_t n) {      \
        uint32_t wide[WIDE];                                                                       \
        for (int64_t at = 0; at < n; at += WIDE) {                                                 \
            int64_t m = n - at < WIDE ? n - at : WIDE;                                             \
            for (int64_t i = 0; i < m; i++) {                                                      \
                type code;                                                                         \
                memcpy(&code, codes + (at + i) * (int64_t)sizeof code, sizeof code);               \
                wide[i] = code;                                                                    \
            }                                                                                      \
            for (int64_t i = 0; i < m; i++)                                                        \
                x[at + i] = name##_decode(wide[i]);                                                \
        }                                                                                          \
    }
EACH_NUMBER(ROW)
#undef ROW

void kvl_number_encode_row(kvl_number number, void *codes, const float *x, int64_t n,
                           kvl_ties ties) {
    if (number == KVL_F32) { /* nothing to compute */
        if (n > 0) memcpy(codes, x, (size_t)n * sizeof *x);
        return;
    }
    switch (number) {
#define ROW(name, id, type)                                                                        \
    case id: name##_encode_row(codes, x, n, ties); break;
        EACH_NUMBER(ROW)
#undef ROW
    case KVL_NUMBERS: break;
    }
}

void kvl_number_decode_row(kvl_number number, float *x, const void *codes, int64_t n) {
    if (number == KVL_F32) {
        if (n > 0) memcpy(x, codes, (size_t)n * sizeof *x);
        return;
    }
    switch (number) {
#define ROW(name, id, type)                                                                        \
    case id: name##_decode_row(x, codes, n); break;
        EACH_NUMBER(ROW)
#undef ROW
    case KVL_NUMBERS: break;
    }
}

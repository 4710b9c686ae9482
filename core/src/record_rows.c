/* record_rows.c - encodes and decodes entries by running through a record's plan.
 *
 * Decoding a block: codes -> floats (one row kernel of number.c), then one pass that multiplies
 * every group by its scale. Encoding: the scale of each group from its largest finite magnitude,
 * quotients into a tile on the stack, then one row kernel. Codes of 4 bits pass through a tile of
 * one code a byte. No step allocates, and none depends on the alignment of the rows.
 */
#include <float.h>

#include "record_plan.h"
#include "simd.h"
#include "sizes.h"

#define INF_BITS 0x7f800000u

/* --- loops over channels ---------------------------------------------------------------------- */

/* Runs loop(size) with the usual sizes as constants: short inner loops without a remainder.
 * NOT_UNROLLED: gcc would unroll the short ones before it looks for vectors, and then vectorise
 * across groups with more shuffles than work. */
#define NOT_UNROLLED _Pragma("GCC unroll 1")
#define WITH_CONSTANT(loop, size)                                                                  \
    do {                                                                                           \
        if ((size) == 8)                                                                           \
            loop(8);                                                                               \
        else if ((size) == 16)                                                                     \
            loop(16);                                                                              \
        else if ((size) == 32)                                                                     \
            loop(32);                                                                              \
        else if ((size) == 64)                                                                     \
            loop(64);                                                                              \
        else if ((size) == 128)                                                                    \
            loop(128);                                                                             \
        else                                                                                       \
            loop(size);                                                                            \
    } while (0)

/* bytes (n) from codes (2 * n); first and second are the shifts of the two codes of a byte. */
KVL_CLONES_AVX2 static void pack_pairs(uint8_t *restrict bytes, const uint8_t *restrict codes,
                                       int64_t n, int first, int second) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t pair;
        memcpy(&pair, codes + 2 * i, sizeof pair);
        bytes[i] = (uint8_t)(pair << first | pair >> 8 << second);
    }
}

/* The same with the second codes in a half of their own; groups of 2 * half codes. Codes have 4
 * bits, so that eight of them are shifted at once. */
static void pack_halves(uint8_t *restrict bytes, const uint8_t *restrict codes, int64_t groups,
                        int64_t half, int first, int second) {
    for (int64_t g = 0; g < groups; g++, bytes += half, codes += 2 * half) {
        int64_t i = 0;
        for (uint64_t a, b; i + 8 <= half; i += 8) {
            memcpy(&a, codes + i, sizeof a);
            memcpy(&b, codes + half + i, sizeof b);
            a = a << first | b << second;
            memcpy(bytes + i, &a, sizeof a);
        }
        for (; i < half; i++)
            bytes[i] = (uint8_t)(codes[i] << first | codes[half + i] << second);
    }
}

/* x (2 * n) from bytes (n) by the table of a step: both values of a byte at once. */
static void decode_pairs(float *restrict x, const uint8_t *restrict bytes, int64_t n,
                         const float (*restrict pairs)[2]) {
    for (int64_t i = 0; i < n; i++)
        memcpy(x + 2 * i, pairs[bytes[i]], sizeof pairs[0]);
}

/* Four bytes at a time: their pairs are two vectors of 4 floats, which two shuffles take apart. */
typedef float float4 __attribute__((vector_size(16)));

static inline float4 two_pairs(const float first[2], const float second[2]) {
    return (float4){first[0], first[1], second[0], second[1]};
}

static void decode_halves(float *restrict x, const uint8_t *restrict bytes, int64_t groups,
                          int64_t half, const float (*restrict pairs)[2]) {
    for (int64_t g = 0; g < groups; g++, bytes += half, x += 2 * half) {
        int64_t i = 0;
#ifdef KVL_SHUFFLE
        for (; i + 4 <= half; i += 4) {
            const uint8_t *b = bytes + i;
            float4 low = two_pairs(pairs[b[0]], pairs[b[1]]);
            float4 high = two_pairs(pairs[b[2]], pairs[b[3]]);
            float4 first = KVL_SHUFFLE(low, high, 0, 2, 4, 6);
            float4 second = KVL_SHUFFLE(low, high, 1, 3, 5, 7);
            memcpy(x + i, &first, sizeof first);
            memcpy(x + half + i, &second, sizeof second);
        }
#endif
        for (; i < half; i++) {
            x[i] = pairs[bytes[i]][0];
            x[half + i] = pairs[bytes[i]][1];
        }
    }
}

/* x (groups, group) *= scales (groups) */
KVL_CLONES_AVX2 static void scale_groups(float *restrict x, const float *restrict scales,
                                         int64_t groups, int64_t group) {
#define LOOP(size)                                                                                 \
    for (int64_t g = 0; g < groups; g++)                                                           \
    NOT_UNROLLED for (int64_t i = 0; i < (size); i++) x[g * (size) + i] *= scales[g]
    WITH_CONSTANT(LOOP, group);
#undef LOOP
}

/* x (groups, group) = x * scales (groups, 0) + scales (groups, 1) */
KVL_CLONES_AVX2 static void scale_shift_groups(float *restrict x, const float *restrict scales,
                                               int64_t groups, int64_t group) {
#define LOOP(size)                                                                                 \
    for (int64_t g = 0; g < groups; g++)                                                           \
    NOT_UNROLLED for (int64_t i = 0; i < (size); i++)                                              \
        x[g * (size) + i] = x[g * (size) + i] * scales[2 * g] + scales[2 * g + 1]
    WITH_CONSTANT(LOOP, group);
#undef LOOP
}

/* |x| by the order of the bits, 0 when it is not finite. */
static inline int32_t finite_magnitude(float x) {
    int32_t a = (int32_t)(kvl_bits(x) & 0x7fffffffu);
    return a < (int32_t)INF_BITS ? a : 0;
}

static inline float finite_max(const float *x, int64_t n) {
    int32_t best = 0;
    NOT_UNROLLED
    for (int64_t i = 0; i < n; i++) {
        int32_t a = finite_magnitude(x[i]);
        best = a > best ? a : best;
    }
    return kvl_from_bits((uint32_t)best);
}

/* amax (groups): the largest finite |x| of each group; 0 when there is none. */
KVL_CLONES_AVX2 static void finite_amax(float *restrict amax, const float *restrict x,
                                        int64_t groups, int64_t group) {
#define LOOP(size)                                                                                 \
    for (int64_t g = 0; g < groups; g++)                                                           \
    amax[g] = finite_max(x + g * (size), (size))
    WITH_CONSTANT(LOOP, group);
#undef LOOP
}

/* The first place of a finite |x| that is amax; n when there is none. */
static inline int32_t first_of(const float *x, int64_t n, float amax) {
    int32_t want = (int32_t)kvl_bits(amax), first = (int32_t)n;
    NOT_UNROLLED
    for (int32_t i = 0; i < (int32_t)n; i++) {
        int32_t place = finite_magnitude(x[i]) == want ? i : (int32_t)n;
        first = place < first ? place : first;
    }
    return first;
}

/* extreme (groups): the finite value of largest magnitude with its sign, the first of several (ggml
 * q4_0); 0 when there is none. */
KVL_CLONES_AVX2 static void finite_extreme(float *restrict extreme, const float *restrict x,
                                           int64_t groups, int64_t group) {
    finite_amax(extreme, x, groups, group);
#define LOOP(size)                                                                                 \
    for (int64_t g = 0; g < groups; g++)                                                           \
    extreme[g] = extreme[g] > 0 ? x[g * (size) + first_of(x + g * (size), (size), extreme[g])] : 0
    WITH_CONSTANT(LOOP, group);
#undef LOOP
}

/* Bits of floats in the order of the numbers, -0 before 0; the same function goes back. */
static inline int32_t ordered(int32_t bits) {
    return bits ^ (bits >> 31 & 0x7fffffff);
}

static inline void range_of(float *lo, float *hi, const float *x, int64_t n) {
    int32_t low = INT32_MAX, high = INT32_MIN;
    NOT_UNROLLED
    for (int64_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)kvl_bits(x[i]), key = ordered(bits), a = bits & 0x7fffffff;
        int32_t finite = (a - (int32_t)INF_BITS) >> 31; /* a mask: a condition becomes a jump */
        int32_t l = (key & finite) | (INT32_MAX & ~finite);
        int32_t h = (key & finite) | (INT32_MIN & ~finite);
        low = l < low ? l : low;
        high = h > high ? h : high;
    }
    *lo = low <= high ? kvl_from_bits((uint32_t)ordered(low)) : 0;
    *hi = low <= high ? kvl_from_bits((uint32_t)ordered(high)) : 0;
    for (int64_t i = 0; i < n && *lo == 0; i++) /* of +0 and -0 the first one */
        if (x[i] == 0) {
            *lo = x[i];
            break;
        }
}

/* lo, hi (groups): the smallest and largest finite value of each group;
 * 0 and 0 when there is none. */
KVL_CLONES_AVX2 static void finite_ranges(float *restrict lo, float *restrict hi,
                                          const float *restrict x, int64_t groups, int64_t group) {
#define LOOP(size)                                                                                 \
    for (int64_t g = 0; g < groups; g++)                                                           \
    range_of(&lo[g], &hi[g], x + g * (size), (size))
    WITH_CONSTANT(LOOP, group);
#undef LOOP
}

/* How the elements of the groups of a tile become quotients:
 * (x - minus) * by or (x - minus) / by. */
typedef struct quotients {
    float scale[KVL_TILE_AIM], by[KVL_TILE_AIM], minus[KVL_TILE_AIM]; /* (groups) */
    bool multiply;
} quotients;

KVL_CLONES_AVX2 static void multiply_groups(float *restrict q, const float *restrict x,
                                            const float *restrict by, const float *restrict minus,
                                            int64_t groups, int64_t group) {
#define LOOP(size)                                                                                 \
    for (int64_t g = 0; g < groups; g++)                                                           \
    NOT_UNROLLED for (int64_t i = 0; i < (size); i++)                                              \
        q[g * (size) + i] = (x[g * (size) + i] - minus[g]) * by[g]
    WITH_CONSTANT(LOOP, group);
#undef LOOP
}

KVL_CLONES_AVX2 static void divide_groups(float *restrict q, const float *restrict x,
                                          const float *restrict by, const float *restrict minus,
                                          int64_t groups, int64_t group) {
#define LOOP(size)                                                                                 \
    for (int64_t g = 0; g < groups; g++)                                                           \
    NOT_UNROLLED for (int64_t i = 0; i < (size); i++)                                              \
        q[g * (size) + i] = (x[g * (size) + i] - minus[g]) / by[g]
    WITH_CONSTANT(LOOP, group);
#undef LOOP
}

/* A scale of 0: zeroes, while NaN and inf still follow the rule of their number. */
static void keep_specials(float *q, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        q[i] = (kvl_bits(x[i]) & 0x7fffffffu) < INF_BITS ? 0.0f : x[i];
}

/* Keeps the quotients of finite elements inside the range of a number that would overflow to inf: a
 * scale that was rounded down can make them a little too large. */
static void saturate(float *q, const float *x, int64_t n, float max) {
    for (int64_t i = 0; i < n; i++) {
        if ((kvl_bits(x[i]) & 0x7fffffffu) >= INF_BITS) continue;
        q[i] = q[i] > max ? max : q[i] < -max ? -max : q[i];
    }
}

/* --- scales ----------------------------------------------------------------------------------- */

/* floor(log2 a) of a positive float from its bits. */
static int32_t floor_log2(float a) {
    uint32_t u = kvl_bits(a);
    if (u >= 0x800000u) return (int32_t)(u >> 23) - 127;
    return 31 - __builtin_clz(u) - 149;
}

/* ceil(log2 a) of a float that is not negative, -127 when it is less: kvl_ue8m0_up, inline. */
static inline int32_t ceil_log2(float a) {
    uint32_t u = kvl_bits(a), exponent = u >> 23, mantissa = u & 0x7fffffu;
    return (int32_t)(exponent + (mantissa > (exponent ? 0u : 0x400000u))) - 127;
}

/* 2^k, k >= -127. */
static inline float power_of_two(int32_t k) {
    uint32_t u = (uint32_t)(k + 127) << 23;
    return kvl_from_bits(u ? u : 0x400000u);
}

/* Writes n scales. One never overflows to inf: 0 * inf would turn small elements into NaN. */
static void put_scales(const kvl_step *s, uint8_t *codes, const float *scale, int64_t n) {
    float kept[2 * KVL_TILE_AIM], max = s->scale_max;
    for (int64_t i = 0; i < n; i++) {
        float value = scale[i] < max ? scale[i] : max;
        kept[i] = value > -max ? value : -max;
    }
    kvl_number_encode_row(s->field.scale.number, codes, kept, n, s->field.scale.ties);
}

/* Scale and minimum lie side by side, group by group. */
static void encode_ranges(const kvl_step *s, quotients *q, uint8_t *codes, const float *x,
                          int64_t groups) {
    float high[KVL_TILE_AIM], pairs[2 * KVL_TILE_AIM];
    finite_ranges(q->minus, high, x, groups, s->field.scale.group);
    for (int64_t g = 0; g < groups; g++) {
        q->scale[g] = pairs[2 * g] = (high[g] - q->minus[g]) / s->max;
        pairs[2 * g + 1] = q->minus[g];
    }
    put_scales(s, codes, pairs, 2 * groups);
}

/* scale (groups) = by the rules that start from amax, before storing. */
static void scales_from_amax(const kvl_step *s, float *scale, const float *x, int64_t groups) {
    const kvl_scale *rule = &s->field.scale;
    float floor_amax = rule->floor_amax, floor_scale = rule->floor_scale, max = s->max;
    int32_t highest = s->scale_exponent, lowest = floor_scale > 0 ? ceil_log2(floor_scale) : -127;
    finite_amax(scale, x, groups, rule->group);
    for (int64_t g = 0; g < groups; g++)
        scale[g] = scale[g] > floor_amax ? scale[g] : floor_amax;
    if (rule->rule == KVL_RULE_OCP_FLOOR) {
        for (int64_t g = 0; g < groups; g++) {
            int32_t k = scale[g] > 0 ? floor_log2(scale[g]) - s->max_exponent : -127;
            k = k > lowest ? k : lowest;
            scale[g] = power_of_two(k < highest ? k : highest);
        }
        return;
    }
    for (int64_t g = 0; g < groups; g++) {
        float ratio = scale[g] / max;
        scale[g] = ratio > floor_scale ? ratio : floor_scale;
    }
    if (rule->rule == KVL_RULE_POW2_UP)
        for (int64_t g = 0; g < groups; g++) {
            int32_t k = ceil_log2(scale[g]);
            scale[g] = power_of_two(k < highest ? k : highest);
        }
}

/* Stores the scales of x (groups, group) and prepares its quotients. */
static void encode_scales(const kvl_step *s, quotients *q, uint8_t *codes, const float *x,
                          int64_t groups) {
    const kvl_scale *rule = &s->field.scale;
    bool powers = rule->rule == KVL_RULE_POW2_UP || rule->rule == KVL_RULE_OCP_FLOOR;
    memset(q->minus, 0, (size_t)groups * sizeof q->minus[0]);
    if (rule->rule == KVL_RULE_RANGE) {
        encode_ranges(s, q, codes, x, groups);
    } else {
        if (rule->rule == KVL_RULE_SIGNED) {
            finite_extreme(q->scale, x, groups, rule->group);
            for (int64_t g = 0; g < groups; g++)
                q->scale[g] /= s->max;
        } else {
            scales_from_amax(s, q->scale, x, groups);
        }
        put_scales(s, codes, q->scale, groups);
        if (powers || rule->rule == KVL_RULE_NEAREST)
            kvl_number_decode_row(rule->number, q->scale, codes, groups);
    }
    q->multiply = powers || rule->reciprocal; /* x / 2^k == x * 2^-k, and multiplying is faster */
    for (int64_t g = 0; g < groups; g++) {
        q->by[g] = q->multiply ? 1.0f / q->scale[g] : q->scale[g];
        if (q->multiply && !(q->by[g] <= FLT_MAX && q->by[g] >= -FLT_MAX)) q->scale[g] = 0;
    }
}

static void form_quotients(const kvl_step *s, float *tile, const quotients *q, const float *x,
                           int64_t groups, int64_t group) {
    (q->multiply ? multiply_groups : divide_groups)(tile, x, q->by, q->minus, groups, group);
    for (int64_t g = 0; g < groups; g++)
        if (q->scale[g] == 0) keep_specials(tile + g * group, x + g * group, group);
    if (kvl_number_about(s->field.number)->bits >= 16) saturate(tile, x, groups * group, s->max);
}

/* --- runs: channels whose elements are contiguous, and so are their scales -------------------- */

static void pack(const kvl_field *f, uint8_t *bytes, const uint8_t *codes, int64_t n) {
    int first = f->high_first ? 4 : 0, second = 4 - first;
    int64_t group = f->scaled ? f->scale.group : f->block;
    if (f->order == KVL_ORDER_HALVES)
        pack_halves(bytes, codes, n / group, group / 2, first, second);
    else
        pack_pairs(bytes, codes, n / 2, first, second);
}

static void encode_run(const kvl_step *s, uint8_t *elements, uint8_t *scales, const float *x,
                       int64_t channels) {
    const kvl_field *f = &s->field;
    bool packed = kvl_number_about(f->number)->bits == 4;
    float tile[KVL_TILE];
    uint8_t codes[KVL_TILE];
    quotients q;
    for (int64_t at = 0, n; at < channels; at += n) {
        n = min(s->tile, channels - at);
        const float *values = x + at;
        if (f->scaled) {
            int64_t group = f->scale.group, in_group = at % group, groups = 1;
            if (group > s->tile) n = min(n, group - in_group); /* a part of one group */
            if (group <= s->tile) groups = n / group;
            if (in_group == 0)
                encode_scales(s, &q, scales + at / group * s->scales_per_group * s->scale_bytes,
                              x + at, groups);
            form_quotients(s, tile, &q, values, groups, min(n, group));
            values = tile;
        }
        uint8_t *bytes = elements + kvl_packed_bytes(f->number, at);
        kvl_number_encode_row(f->number, packed ? codes : bytes, values, n, f->ties);
        if (packed) pack(f, bytes, codes, n);
    }
}

/* x (channels) = the values of elements, before scaling. */
static void decode_elements(const kvl_step *s, float *x, const uint8_t *elements,
                            int64_t channels) {
    const kvl_field *f = &s->field;
    int64_t group = f->scaled ? f->scale.group : f->block;
    if (kvl_number_about(f->number)->bits != 4)
        kvl_number_decode_row(f->number, x, elements, channels);
    else if (f->order == KVL_ORDER_HALVES)
        decode_halves(x, elements, channels / group, group / 2, s->pairs);
    else
        decode_pairs(x, elements, channels / 2, s->pairs);
}

static void apply_scales(const kvl_step *s, float *x, const uint8_t *scales, int64_t channels) {
    const kvl_field *f = &s->field;
    enum { GROUPS = 64 };
    float values[2 * GROUPS];
    int64_t group = f->scale.group, groups = channels / group;
    for (int64_t g = 0; g < groups; g += GROUPS) {
        int64_t n = min(GROUPS, groups - g);
        kvl_number_decode_row(f->scale.number, values,
                              scales + g * s->scales_per_group * s->scale_bytes,
                              n * s->scales_per_group);
        if (f->scale.rule == KVL_RULE_RANGE)
            scale_shift_groups(x + g * group, values, n, group);
        else
            scale_groups(x + g * group, values, n, group);
    }
}

static void decode_run(const kvl_step *s, float *x, const uint8_t *elements, const uint8_t *scales,
                       int64_t channels) {
    decode_elements(s, x, elements, channels);
    if (s->field.scaled) apply_scales(s, x, scales, channels);
}

/* --- fields ----------------------------------------------------------------------------------- */

/* Small blocks with their scales inside are taken apart (or put together) here, several at a time,
 * so that a run is long enough to be worth its set-up. */
typedef struct staging {
    uint8_t elements[KVL_TILE_AIM * 4], scales[KVL_TILE_AIM * 8];
} staging;

/* memcpy of a few bytes; with a constant size it needs no call. */
static inline void copy_few(uint8_t *to, const uint8_t *from, int64_t n) {
    switch (n) {
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    case 16: memcpy(to, from, 16); break;
    case 32: memcpy(to, from, 32); break;
    default: memcpy(to, from, (size_t)n);
    }
}

/* The field in `rows` entries whose rows touch: more than one only where one run can hold them. */
static void encode_field(const kvl_step *s, uint8_t *data, uint8_t *scale, const float *x,
                         int64_t rows) {
    const kvl_field *f = &s->field;
    int64_t element_bytes = kvl_packed_bytes(f->number, f->block), blocks = s->blocks * rows;
    data += s->data_at;
    if (s->split || !f->scaled) { /* blocks touch, so they are one run */
        encode_run(s, data, f->scaled ? scale + s->scales_at : NULL, x, f->channels * rows);
        return;
    }
    if (f->block > KVL_TILE_AIM) {
        for (int64_t b = 0; b < blocks; b++, data += s->block_bytes)
            encode_run(s, data + s->elements_at, data + s->scales_at, x + b * f->block, f->block);
        return;
    }
    staging stage;
    int64_t at_once = KVL_TILE_AIM / f->block;
    for (int64_t b = 0; b < blocks; b += at_once) {
        int64_t n = min(at_once, blocks - b);
        encode_run(s, stage.elements, stage.scales, x + b * f->block, n * f->block);
        for (int64_t i = 0; i < n; i++, data += s->block_bytes) {
            copy_few(data + s->elements_at, stage.elements + i * element_bytes, element_bytes);
            copy_few(data + s->scales_at, stage.scales + i * s->scales_bytes, s->scales_bytes);
        }
    }
}

static void decode_field(const kvl_step *s, float *x, const uint8_t *data, const uint8_t *scale,
                         int64_t rows) {
    const kvl_field *f = &s->field;
    int64_t element_bytes = kvl_packed_bytes(f->number, f->block), blocks = s->blocks * rows;
    data += s->data_at;
    if (s->split || !f->scaled) {
        decode_run(s, x, data, f->scaled ? scale + s->scales_at : NULL, f->channels * rows);
        return;
    }
    if (f->block > KVL_TILE_AIM) {
        for (int64_t b = 0; b < blocks; b++, data += s->block_bytes)
            decode_run(s, x + b * f->block, data + s->elements_at, data + s->scales_at, f->block);
        return;
    }
    staging stage;
    int64_t at_once = KVL_TILE_AIM / f->block;
    for (int64_t b = 0; b < blocks; b += at_once) {
        int64_t n = min(at_once, blocks - b);
        for (int64_t i = 0; i < n; i++, data += s->block_bytes) {
            copy_few(stage.elements + i * element_bytes, data + s->elements_at, element_bytes);
            copy_few(stage.scales + i * s->scales_bytes, data + s->scales_at, s->scales_bytes);
        }
        decode_run(s, x + b * f->block, stage.elements, stage.scales, n * f->block);
    }
}

/* --- entries and pages ------------------------------------------------------------------------ */

void kvl_record_encode(const kvl_record *rec, uint8_t *data, uint8_t *scale, const float *x) {
    for (int64_t i = 0; i < rec->n_steps; i++) {
        const kvl_step *s = &rec->steps[i];
        encode_field(s, data, scale, x + s->first, 1);
        if (s->field.pad) memset(data + s->pad_at, 0, (size_t)s->field.pad);
        if (s->field.scale_pad) memset(scale + s->scale_pad_at, 0, (size_t)s->field.scale_pad);
    }
}

void kvl_record_decode(const kvl_record *rec, float *x, const uint8_t *data, const uint8_t *scale) {
    for (int64_t i = 0; i < rec->n_steps; i++) {
        const kvl_step *s = &rec->steps[i];
        decode_field(s, x + s->first, data, scale, 1);
    }
}

/* How many entries one run may hold: of a record with one field and nothing between its rows, what
 * fills a tile of ROWS_AIM floats. */
enum { ROWS_AIM = 2048 };

static int64_t rows_at_once(const kvl_record *rec, int64_t x_stride) {
    const kvl_field *f = &rec->steps[0].field;
    bool touch = rec->n_steps == 1 && !f->pad && !f->scale_pad && x_stride == f->channels;
    return touch && f->channels < ROWS_AIM ? ROWS_AIM / f->channels : 1;
}

void kvl_record_encode_slots(const kvl_record *rec, uint8_t *page, int64_t first_slot,
                             const float *x, int64_t x_stride, int64_t n) {
    uint8_t *data = page + kvl_record_data_offset(rec, first_slot);
    uint8_t *scale = page + kvl_record_scale_offset(rec, first_slot);
    for (int64_t i = 0, rows, at_once = rows_at_once(rec, x_stride); i < n; i += rows) {
        rows = min(at_once, n - i);
        if (rows == 1)
            kvl_record_encode(rec, data, scale, x);
        else
            encode_field(&rec->steps[0], data, scale, x, rows);
        data += rows * rec->info.data_bytes;
        scale += rows * rec->info.scale_bytes;
        x += rows * x_stride;
    }
}

void kvl_record_decode_slots(const kvl_record *rec, float *x, int64_t x_stride, const uint8_t *page,
                             int64_t first_slot, int64_t n) {
    const uint8_t *data = page + kvl_record_data_offset(rec, first_slot);
    const uint8_t *scale = page + kvl_record_scale_offset(rec, first_slot);
    for (int64_t i = 0, rows, at_once = rows_at_once(rec, x_stride); i < n; i += rows) {
        rows = min(at_once, n - i);
        if (rows == 1)
            kvl_record_decode(rec, x, data, scale);
        else
            decode_field(&rec->steps[0], x, data, scale, rows);
        data += rows * rec->info.data_bytes;
        scale += rows * rec->info.scale_bytes;
        x += rows * x_stride;
    }
}

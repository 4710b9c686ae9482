/* record_rows.c - encodes and decodes entries by running through a record's plan.
 *
 * Decoding a block: codes -> floats (one row kernel of number.c), then one pass that multiplies every group by
 * its scale. Encoding: the scale of each group from its largest finite magnitude, quotients into a tile on the
 * stack, then one row kernel. Codes of 4 bits pass through a tile of one code a byte.
 * No step allocates, and none depends on the alignment of the rows.
 */
#include <float.h>

#include "record_plan.h"
#include "simd.h"

#define INF_BITS 0x7f800000u

static inline int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* --- loops over channels -------------------------------------------------------------------------- */

/* codes (2 * n) from bytes (n): first and second are the shifts of the two codes of a byte. */
KVL_CLONES static void unpack_pairs(uint8_t *restrict codes, const uint8_t *restrict bytes,
                                    int64_t n, int first, int second) {
    for (int64_t i = 0; i < n; i++) {
        codes[2 * i] = bytes[i] >> first & 15;
        codes[2 * i + 1] = bytes[i] >> second & 15;
    }
}

KVL_CLONES static void pack_pairs(uint8_t *restrict bytes, const uint8_t *restrict codes, int64_t n,
                                  int first, int second) {
    for (int64_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(codes[2 * i] << first | codes[2 * i + 1] << second);
}

/* The same with the second codes in a half of their own; groups of 2 * half codes. */
KVL_CLONES static void unpack_halves(uint8_t *restrict codes, const uint8_t *restrict bytes,
                                     int64_t groups, int64_t half, int first, int second) {
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < half; i++) {
            codes[2 * g * half + i] = bytes[g * half + i] >> first & 15;
            codes[(2 * g + 1) * half + i] = bytes[g * half + i] >> second & 15;
        }
}

KVL_CLONES static void pack_halves(uint8_t *restrict bytes, const uint8_t *restrict codes,
                                   int64_t groups, int64_t half, int first, int second) {
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < half; i++)
            bytes[g * half + i] = (uint8_t)(codes[2 * g * half + i] << first |
                                            codes[(2 * g + 1) * half + i] << second);
}

/* x (groups, group) *= scales (groups) */
KVL_CLONES static void scale_groups(float *restrict x, const float *restrict scales, int64_t groups,
                                    int64_t group) {
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < group; i++)
            x[g * group + i] *= scales[g];
}

/* x (groups, group) = x * scales (groups, 0) + scales (groups, 1) */
KVL_CLONES static void scale_shift_groups(float *restrict x, const float *restrict scales,
                                          int64_t groups, int64_t group) {
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < group; i++)
            x[g * group + i] = x[g * group + i] * scales[2 * g] + scales[2 * g + 1];
}

/* The largest finite |x|, by the order of the bits: 0 when there is none. */
KVL_CLONES static float finite_amax(const float *x, int64_t n) {
    int32_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t a = (int32_t)(kvl_bits(x[i]) & 0x7fffffffu);
        a = a < (int32_t)INF_BITS ? a : 0;
        best = a > best ? a : best;
    }
    return kvl_from_bits((uint32_t)best);
}

/* The finite value of largest magnitude with its sign, the first of several (ggml q4_0). */
static float finite_extreme(const float *x, int64_t n) {
    float amax = finite_amax(x, n);
    for (int64_t i = 0; i < n; i++)
        if (x[i] == amax || x[i] == -amax) return x[i];
    return 0;
}

/* The smallest and largest finite value; 0 and 0 when there is none. */
KVL_CLONES static void finite_range(float *lo, float *hi, const float *x, int64_t n) {
    float low = FLT_MAX, high = -FLT_MAX;
    for (int64_t i = 0; i < n; i++) {
        bool finite = (kvl_bits(x[i]) & 0x7fffffffu) < INF_BITS;
        float l = finite ? x[i] : FLT_MAX, h = finite ? x[i] : -FLT_MAX;
        low = l < low ? l : low;
        high = h > high ? h : high;
    }
    *lo = low <= high ? low : 0;
    *hi = low <= high ? high : 0;
}

/* How the elements of a group become quotients. */
typedef struct quotient {
    enum { MULTIPLY, DIVIDE, ZERO } how;
    float minus; /* subtracted first */
    float by;
} quotient;

KVL_CLONES static void quotients(float *restrict q, const float *restrict x, int64_t n,
                                 quotient to) {
    if (to.how == MULTIPLY)
        for (int64_t i = 0; i < n; i++)
            q[i] = (x[i] - to.minus) * to.by;
    else if (to.how == DIVIDE)
        for (int64_t i = 0; i < n; i++)
            q[i] = (x[i] - to.minus) / to.by;
    else /* a scale of 0: NaN and inf still follow the rule of their number */
        for (int64_t i = 0; i < n; i++)
            q[i] = (kvl_bits(x[i]) & 0x7fffffffu) < INF_BITS ? 0.0f : x[i];
}

/* --- scales --------------------------------------------------------------------------------------- */

/* floor(log2 a) of a positive float from its bits. */
static int32_t floor_log2(float a) {
    uint32_t u = kvl_bits(a);
    if (u >= 0x800000u) return (int32_t)(u >> 23) - 127;
    return 31 - __builtin_clz(u) - 149;
}

static void put_scale(const kvl_step *s, uint8_t *at, uint32_t code) {
    memcpy(at, &code, (size_t)s->scale_bytes); /* little-endian: the low bytes come first */
}

/* A scale never overflows to inf: 0 * inf would turn small elements into NaN. */
static uint32_t scale_code(const kvl_step *s, float scale) {
    scale = scale > s->scale_max ? s->scale_max : scale;
    scale = scale < -s->scale_max ? -s->scale_max : scale;
    return kvl_number_encode(s->field.scale.number, scale, s->field.scale.ties);
}

/* 2^k with k kept inside the scale number's and UE8M0's range, as a float. */
static float power_of_two(const kvl_step *s, int32_t k) {
    if (k > s->scale_exponent) k = s->scale_exponent;
    return kvl_number_decode(KVL_UE8M0, k < -127 ? 0 : (uint32_t)(k + 127));
}

static quotient by_scale(float scale, bool reciprocal) {
    quotient to = {DIVIDE, 0, scale};
    uint32_t exponent = kvl_bits(scale) >> 23 & 0xffu;
    bool exact = (kvl_bits(scale) & 0x7fffffu) == 0 && exponent >= 1 && exponent <= 253;
    if (scale == 0) {
        to.how = ZERO;
    } else if (reciprocal || exact) { /* x / 2^k == x * 2^-k, and multiplying is faster */
        to.how = MULTIPLY;
        to.by = 1.0f / scale;
        if (to.by > FLT_MAX || to.by < -FLT_MAX) to.how = ZERO;
    }
    return to;
}

/* Stores the scale of the group x (group) and says how its quotients are formed. */
static quotient encode_scale(const kvl_step *s, uint8_t *at, const float *x) {
    const kvl_scale *rule = &s->field.scale;
    if (rule->rule == KVL_RULE_RANGE) {
        float lo, hi;
        finite_range(&lo, &hi, x, rule->group);
        float scale = (hi - lo) / s->max;
        put_scale(s, at, scale_code(s, scale));
        put_scale(s, at + s->scale_bytes, scale_code(s, lo));
        quotient to = by_scale(scale, rule->reciprocal);
        to.minus = lo;
        return to;
    }
    if (rule->rule == KVL_RULE_SIGNED) {
        float scale = finite_extreme(x, rule->group) / s->max;
        put_scale(s, at, scale_code(s, scale));
        return by_scale(scale, rule->reciprocal);
    }

    float amax = finite_amax(x, rule->group);
    amax = amax > rule->floor_amax ? amax : rule->floor_amax;
    float scale = amax / s->max;
    scale = scale > rule->floor_scale ? scale : rule->floor_scale;
    if (rule->rule == KVL_RULE_POW2_UP) {
        scale = power_of_two(s, (int32_t)kvl_ue8m0_up(scale) - 127);
    } else if (rule->rule == KVL_RULE_OCP_FLOOR) {
        int32_t k = amax > 0 ? floor_log2(amax) - s->max_exponent : -127;
        int32_t floor_k = rule->floor_scale > 0 ? (int32_t)kvl_ue8m0_up(rule->floor_scale) - 127 : k;
        scale = power_of_two(s, k > floor_k ? k : floor_k);
    }
    uint32_t code = scale_code(s, scale);
    put_scale(s, at, code);
    if (rule->rule != KVL_RULE_RAW) scale = kvl_number_decode(rule->number, code);
    return by_scale(scale, rule->reciprocal);
}

/* --- blocks --------------------------------------------------------------------------------------- */

static void pack(const kvl_field *f, uint8_t *bytes, const uint8_t *codes, int64_t n) {
    int first = f->high_first ? 4 : 0, second = 4 - first;
    int64_t group = f->scaled ? f->scale.group : f->block;
    if (f->order == KVL_ORDER_HALVES)
        pack_halves(bytes, codes, n / group, group / 2, first, second);
    else
        pack_pairs(bytes, codes, n / 2, first, second);
}

static void unpack(const kvl_field *f, uint8_t *codes, const uint8_t *bytes, int64_t n) {
    int first = f->high_first ? 4 : 0, second = 4 - first;
    int64_t group = f->scaled ? f->scale.group : f->block;
    if (f->order == KVL_ORDER_HALVES)
        unpack_halves(codes, bytes, n / group, group / 2, first, second);
    else
        unpack_pairs(codes, bytes, n / 2, first, second);
}

static void encode_block(const kvl_step *s, uint8_t *elements, uint8_t *scales, const float *x) {
    const kvl_field *f = &s->field;
    bool packed = kvl_number_about(f->number)->bits == 4;
    float tile[KVL_TILE];
    uint8_t codes[KVL_TILE];
    quotient to = {ZERO, 0, 0};
    for (int64_t at = 0; at < f->block; at += s->tile) {
        int64_t n = min64(s->tile, f->block - at);
        const float *values = x + at;
        if (f->scaled) {
            /* pieces: a whole group, or the part of a larger one that is in this tile */
            for (int64_t i = 0, piece; i < n; i += piece) {
                int64_t in_group = (at + i) % f->scale.group;
                piece = min64(n - i, f->scale.group - in_group);
                if (in_group == 0) {
                    int64_t g = (at + i) / f->scale.group;
                    to = encode_scale(s, scales + g * s->scales_per_group * s->scale_bytes,
                                      x + at + i);
                }
                quotients(tile + i, x + at + i, piece, to);
            }
            values = tile;
        }
        uint8_t *bytes = elements + kvl_packed_bytes(f->number, at);
        kvl_number_encode_row(f->number, packed ? codes : bytes, values, n, f->ties);
        if (packed) pack(f, bytes, codes, n);
    }
}

static void decode_block(const kvl_step *s, float *x, const uint8_t *elements,
                         const uint8_t *scales) {
    const kvl_field *f = &s->field;
    if (kvl_number_about(f->number)->bits == 4) {
        uint8_t codes[KVL_TILE];
        for (int64_t at = 0; at < f->block; at += s->tile) {
            int64_t n = min64(s->tile, f->block - at);
            unpack(f, codes, elements + at / 2, n);
            kvl_number_decode_row(f->number, x + at, codes, n);
        }
    } else {
        kvl_number_decode_row(f->number, x, elements, f->block);
    }
    if (!f->scaled) return;

    enum { GROUPS = 64 };
    float values[2 * GROUPS];
    for (int64_t g = 0; g < s->groups; g += GROUPS) {
        int64_t n = min64(GROUPS, s->groups - g);
        kvl_number_decode_row(f->scale.number, values,
                              scales + g * s->scales_per_group * s->scale_bytes,
                              n * s->scales_per_group);
        if (f->scale.rule == KVL_RULE_RANGE)
            scale_shift_groups(x + g * f->scale.group, values, n, f->scale.group);
        else
            scale_groups(x + g * f->scale.group, values, n, f->scale.group);
    }
}

/* --- entries and pages ---------------------------------------------------------------------------- */

void kvl_record_encode(const kvl_record *rec, uint8_t *data, uint8_t *scale, const float *x) {
    for (int64_t i = 0; i < rec->n_steps; i++) {
        const kvl_step *s = &rec->steps[i];
        const kvl_field *f = &s->field;
        bool split = f->scaled && f->place == KVL_PLACE_SPLIT;
        for (int64_t b = 0; b < s->blocks; b++) {
            uint8_t *block = data + s->data_at + b * s->block_bytes;
            uint8_t *scales = split ? scale + s->scales_at + b * s->scales_bytes
                                    : block + s->scales_at;
            encode_block(s, block + s->elements_at, scales, x + s->first + b * f->block);
        }
        if (f->pad) memset(data + s->pad_at, 0, (size_t)f->pad);
        if (f->scale_pad) memset(scale + s->scale_pad_at, 0, (size_t)f->scale_pad);
    }
}

void kvl_record_decode(const kvl_record *rec, float *x, const uint8_t *data, const uint8_t *scale) {
    for (int64_t i = 0; i < rec->n_steps; i++) {
        const kvl_step *s = &rec->steps[i];
        const kvl_field *f = &s->field;
        bool split = f->scaled && f->place == KVL_PLACE_SPLIT;
        for (int64_t b = 0; b < s->blocks; b++) {
            const uint8_t *block = data + s->data_at + b * s->block_bytes;
            const uint8_t *scales = split ? scale + s->scales_at + b * s->scales_bytes
                                          : block + s->scales_at;
            decode_block(s, x + s->first + b * f->block, block + s->elements_at, scales);
        }
    }
}

void kvl_record_encode_slots(const kvl_record *rec, uint8_t *page, int64_t first_slot,
                             const float *x, int64_t x_stride, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        kvl_record_encode(rec, page + kvl_record_data_offset(rec, first_slot + i),
                          page + kvl_record_scale_offset(rec, first_slot + i), x + i * x_stride);
}

void kvl_record_decode_slots(const kvl_record *rec, float *x, int64_t x_stride, const uint8_t *page,
                             int64_t first_slot, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        kvl_record_decode(rec, x + i * x_stride, page + kvl_record_data_offset(rec, first_slot + i),
                          page + kvl_record_scale_offset(rec, first_slot + i));
}

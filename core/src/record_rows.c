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

#define INF_BITS 0x7f800000u

static inline int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* --- loops over channels
 * -------------------------------------------------------------------------- */

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

/* amax (groups): the largest finite |x| of each group, by the order of the bits; 0 when there is
 * none. */
KVL_CLONES static void finite_amax(float *restrict amax, const float *restrict x, int64_t groups,
                                   int64_t group) {
    for (int64_t g = 0; g < groups; g++) {
        int32_t best = 0;
        for (int64_t i = 0; i < group; i++) {
            int32_t a = (int32_t)(kvl_bits(x[g * group + i]) & 0x7fffffffu);
            a = a < (int32_t)INF_BITS ? a : 0;
            best = a > best ? a : best;
        }
        amax[g] = kvl_from_bits((uint32_t)best);
    }
}

/* The finite value of largest magnitude with its sign, the first of several (ggml q4_0). */
static float finite_extreme(const float *x, int64_t n) {
    float amax;
    finite_amax(&amax, x, 1, n);
    for (int64_t i = 0; i < n && amax > 0; i++)
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
    /* Of +0 and -0 the first one, whatever the order in which lanes were compared. */
    for (int64_t i = 0; i < n && *lo == 0; i++)
        if (x[i] == 0) {
            *lo = x[i];
            break;
        }
}

/* How the elements of the groups of a tile become quotients: (x - minus) * by or (x - minus) / by.
 */
typedef struct quotients {
    float scale[KVL_TILE_AIM], by[KVL_TILE_AIM], minus[KVL_TILE_AIM]; /* (groups) */
    bool multiply;
} quotients;

KVL_CLONES static void multiply_groups(float *restrict q, const float *restrict x,
                                       const float *restrict by, const float *restrict minus,
                                       int64_t groups, int64_t group) {
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < group; i++)
            q[g * group + i] = (x[g * group + i] - minus[g]) * by[g];
}

KVL_CLONES static void divide_groups(float *restrict q, const float *restrict x,
                                     const float *restrict by, const float *restrict minus,
                                     int64_t groups, int64_t group) {
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < group; i++)
            q[g * group + i] = (x[g * group + i] - minus[g]) / by[g];
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

/* --- scales
 * --------------------------------------------------------------------------------------- */

/* floor(log2 a) of a positive float from its bits. */
static int32_t floor_log2(float a) {
    uint32_t u = kvl_bits(a);
    if (u >= 0x800000u) return (int32_t)(u >> 23) - 127;
    return 31 - __builtin_clz(u) - 149;
}

/* 2^k with k kept inside the scale number's and UE8M0's range. */
static float power_of_two(const kvl_step *s, int32_t k) {
    if (k > s->scale_exponent) k = s->scale_exponent;
    return kvl_number_decode(KVL_UE8M0, k < -127 ? 0 : (uint32_t)(k + 127));
}

/* Writes n scales. One never overflows to inf: 0 * inf would turn small elements into NaN. */
static void put_scales(const kvl_step *s, uint8_t *codes, const float *scale, int64_t n) {
    float kept[KVL_TILE_AIM];
    for (int64_t i = 0; i < n; i++) {
        float value = scale[i] < s->scale_max ? scale[i] : s->scale_max;
        kept[i] = value > -s->scale_max ? value : -s->scale_max;
    }
    kvl_number_encode_row(s->field.scale.number, codes, kept, n, s->field.scale.ties);
}

/* Scale and minimum lie side by side, group by group. */
static void encode_ranges(const kvl_step *s, quotients *q, uint8_t *codes, const float *x,
                          int64_t groups) {
    int64_t group = s->field.scale.group;
    for (int64_t g = 0; g < groups; g++) {
        float high, pair[2];
        finite_range(&q->minus[g], &high, x + g * group, group);
        q->scale[g] = pair[0] = (high - q->minus[g]) / s->max;
        pair[1] = q->minus[g];
        put_scales(s, codes + g * 2 * s->scale_bytes, pair, 2);
    }
}

/* scale (groups) = by the rules that start from amax, before storing. */
static void scales_from_amax(const kvl_step *s, float *scale, const float *x, int64_t groups) {
    const kvl_scale *rule = &s->field.scale;
    finite_amax(scale, x, groups, rule->group);
    int32_t lowest = -127; /* of the exponents */
    if (rule->floor_scale > 0) lowest = (int32_t)kvl_ue8m0_up(rule->floor_scale) - 127;
    for (int64_t g = 0; g < groups; g++) {
        float amax = scale[g] > rule->floor_amax ? scale[g] : rule->floor_amax;
        float ratio = amax / s->max;
        scale[g] = ratio > rule->floor_scale ? ratio : rule->floor_scale;
        if (rule->rule == KVL_RULE_POW2_UP) {
            scale[g] = power_of_two(s, (int32_t)kvl_ue8m0_up(scale[g]) - 127);
        } else if (rule->rule == KVL_RULE_OCP_FLOOR) {
            int32_t k = amax > 0 ? floor_log2(amax) - s->max_exponent : -127;
            scale[g] = power_of_two(s, k > lowest ? k : lowest);
        }
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
        if (rule->rule == KVL_RULE_SIGNED)
            for (int64_t g = 0; g < groups; g++)
                q->scale[g] = finite_extreme(x + g * rule->group, rule->group) / s->max;
        else
            scales_from_amax(s, q->scale, x, groups);
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

/* --- runs: channels whose elements are contiguous, and so are their scales
 * ------------------------ */

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

static void encode_run(const kvl_step *s, uint8_t *elements, uint8_t *scales, const float *x,
                       int64_t channels) {
    const kvl_field *f = &s->field;
    bool packed = kvl_number_about(f->number)->bits == 4;
    float tile[KVL_TILE];
    uint8_t codes[KVL_TILE];
    quotients q;
    for (int64_t at = 0, n; at < channels; at += n) {
        n = min64(s->tile, channels - at);
        const float *values = x + at;
        if (f->scaled) {
            int64_t group = f->scale.group, in_group = at % group, groups = 1;
            if (group > s->tile) n = min64(n, group - in_group); /* a part of one group */
            if (group <= s->tile) groups = n / group;
            if (in_group == 0)
                encode_scales(s, &q, scales + at / group * s->scales_per_group * s->scale_bytes,
                              x + at, groups);
            form_quotients(s, tile, &q, values, groups, min64(n, group));
            values = tile;
        }
        uint8_t *bytes = elements + kvl_packed_bytes(f->number, at);
        kvl_number_encode_row(f->number, packed ? codes : bytes, values, n, f->ties);
        if (packed) pack(f, bytes, codes, n);
    }
}

static void decode_run(const kvl_step *s, float *x, const uint8_t *elements, const uint8_t *scales,
                       int64_t channels) {
    const kvl_field *f = &s->field;
    if (kvl_number_about(f->number)->bits == 4) {
        uint8_t codes[KVL_TILE];
        for (int64_t at = 0; at < channels; at += s->tile) {
            int64_t n = min64(s->tile, channels - at);
            unpack(f, codes, elements + at / 2, n);
            kvl_number_decode_row(f->number, x + at, codes, n);
        }
    } else {
        kvl_number_decode_row(f->number, x, elements, channels);
    }
    if (!f->scaled) return;

    enum { GROUPS = 64 };
    float values[2 * GROUPS];
    int64_t group = f->scale.group, groups = channels / group;
    for (int64_t g = 0; g < groups; g += GROUPS) {
        int64_t n = min64(GROUPS, groups - g);
        kvl_number_decode_row(f->scale.number, values,
                              scales + g * s->scales_per_group * s->scale_bytes,
                              n * s->scales_per_group);
        if (f->scale.rule == KVL_RULE_RANGE)
            scale_shift_groups(x + g * group, values, n, group);
        else
            scale_groups(x + g * group, values, n, group);
    }
}

/* --- fields
 * --------------------------------------------------------------------------------------- */

/* Small blocks with their scales inside are taken apart (or put together) here, several at a time,
 * so that a run is long enough to be worth its set-up. */
typedef struct staging {
    uint8_t elements[KVL_TILE_AIM * 4], scales[KVL_TILE_AIM * 8];
} staging;

static void encode_field(const kvl_step *s, uint8_t *data, uint8_t *scale, const float *x) {
    const kvl_field *f = &s->field;
    int64_t element_bytes = kvl_packed_bytes(f->number, f->block);
    data += s->data_at;
    if (s->split || !f->scaled) { /* blocks touch, so they are one run */
        encode_run(s, data, f->scaled ? scale + s->scales_at : NULL, x, f->channels);
        return;
    }
    if (f->block > KVL_TILE_AIM) {
        for (int64_t b = 0; b < s->blocks; b++, data += s->block_bytes)
            encode_run(s, data + s->elements_at, data + s->scales_at, x + b * f->block, f->block);
        return;
    }
    staging stage;
    int64_t at_once = KVL_TILE_AIM / f->block;
    for (int64_t b = 0; b < s->blocks; b += at_once) {
        int64_t n = min64(at_once, s->blocks - b);
        encode_run(s, stage.elements, stage.scales, x + b * f->block, n * f->block);
        for (int64_t i = 0; i < n; i++, data += s->block_bytes) {
            memcpy(data + s->elements_at, stage.elements + i * element_bytes,
                   (size_t)element_bytes);
            memcpy(data + s->scales_at, stage.scales + i * s->scales_bytes,
                   (size_t)s->scales_bytes);
        }
    }
}

static void decode_field(const kvl_step *s, float *x, const uint8_t *data, const uint8_t *scale) {
    const kvl_field *f = &s->field;
    int64_t element_bytes = kvl_packed_bytes(f->number, f->block);
    data += s->data_at;
    if (s->split || !f->scaled) {
        decode_run(s, x, data, f->scaled ? scale + s->scales_at : NULL, f->channels);
        return;
    }
    if (f->block > KVL_TILE_AIM) {
        for (int64_t b = 0; b < s->blocks; b++, data += s->block_bytes)
            decode_run(s, x + b * f->block, data + s->elements_at, data + s->scales_at, f->block);
        return;
    }
    staging stage;
    int64_t at_once = KVL_TILE_AIM / f->block;
    for (int64_t b = 0; b < s->blocks; b += at_once) {
        int64_t n = min64(at_once, s->blocks - b);
        for (int64_t i = 0; i < n; i++, data += s->block_bytes) {
            memcpy(stage.elements + i * element_bytes, data + s->elements_at,
                   (size_t)element_bytes);
            memcpy(stage.scales + i * s->scales_bytes, data + s->scales_at,
                   (size_t)s->scales_bytes);
        }
        decode_run(s, x + b * f->block, stage.elements, stage.scales, n * f->block);
    }
}

/* --- entries and pages
 * ---------------------------------------------------------------------------- */

void kvl_record_encode(const kvl_record *rec, uint8_t *data, uint8_t *scale, const float *x) {
    for (int64_t i = 0; i < rec->n_steps; i++) {
        const kvl_step *s = &rec->steps[i];
        encode_field(s, data, scale, x + s->first);
        if (s->field.pad) memset(data + s->pad_at, 0, (size_t)s->field.pad);
        if (s->field.scale_pad) memset(scale + s->scale_pad_at, 0, (size_t)s->field.scale_pad);
    }
}

void kvl_record_decode(const kvl_record *rec, float *x, const uint8_t *data, const uint8_t *scale) {
    for (int64_t i = 0; i < rec->n_steps; i++) {
        const kvl_step *s = &rec->steps[i];
        decode_field(s, x + s->first, data, scale);
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

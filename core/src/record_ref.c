/* record_ref.c - the plain twins of record_rows.c: one channel after the other, in double,
 * addressing every code by the definition in record.h. float32 appears where the format prescribes
 * it: scales and quotients.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "record_plan.h"

/* The channel's block, its place in the block, its group in the block. */
typedef struct place {
    int64_t block, at, group, in_group;
} place;

static int64_t group_of(const kvl_field *f) {
    return f->scaled ? f->scale.group : f->block;
}

static place find(const kvl_field *f, int64_t channel) {
    place p;
    p.block = channel / f->block;
    p.at = channel % f->block;
    p.group = p.at / group_of(f);
    p.in_group = p.at % group_of(f);
    return p;
}

/* Offset of the k-th scale of a group, in the data row or (split) in the scale row. */
static int64_t scale_offset(const kvl_step *s, int64_t block, int64_t group, int k) {
    int64_t code = (group * s->scales_per_group + k) * s->scale_bytes;
    if (s->field.place == KVL_PLACE_SPLIT) return s->scales_at + block * s->scales_bytes + code;
    return s->data_at + block * s->block_bytes + s->scales_at + code;
}

/* Byte offset of an element in the data row; *shift is where a 4-bit code starts in it. */
static int64_t element_offset(const kvl_step *s, place p, int *shift) {
    const kvl_field *f = &s->field;
    int64_t base = s->data_at + p.block * s->block_bytes + s->elements_at;
    *shift = 0;
    if (kvl_number_about(f->number)->bits != 4)
        return base + p.at * kvl_number_about(f->number)->code_bytes;
    int64_t group = group_of(f);
    bool second = f->order == KVL_ORDER_HALVES ? p.in_group >= group / 2 : p.in_group % 2 == 1;
    int64_t byte = f->order == KVL_ORDER_HALVES ? p.in_group % (group / 2) : p.in_group / 2;
    *shift = second != f->high_first ? 4 : 0;
    return base + p.group * group / 2 + byte;
}

static void put(uint8_t *at, uint32_t code, int bytes) {
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(code >> (8 * i));
}

static uint32_t get(const uint8_t *at, int bytes) {
    uint32_t code = 0;
    for (int i = 0; i < bytes; i++)
        code |= (uint32_t)at[i] << (8 * i);
    return code;
}

static double put_scale(const kvl_step *s, uint8_t *at, double scale) {
    const kvl_scale *rule = &s->field.scale;
    double max = kvl_number_about(rule->number)->max;
    scale = fmin(fmax(scale, -max), max);
    uint32_t code = kvl_number_encode_ref(rule->number, scale, rule->ties);
    put(at, code, s->scale_bytes);
    return kvl_number_decode_ref(rule->number, code);
}

/* Smallest k with 2^k >= x > 0. */
static int ceil_log2(double x) {
    int k = ilogb(x);
    return ldexp(1, k) < x ? k + 1 : k;
}

/* Stores the scale of a group and returns what its elements are divided by; *minus is subtracted
 * first. */
static double encode_scale(const kvl_step *s, uint8_t *at, const float *x, double *minus) {
    const kvl_scale *rule = &s->field.scale;
    const kvl_number_info *element = kvl_number_about(s->field.number);
    double amax = 0, extreme = 0, low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < rule->group; i++) {
        if (!isfinite(x[i])) continue;
        if (fabs(x[i]) > amax) {
            amax = fabs(x[i]);
            extreme = x[i];
        }
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    *minus = 0;
    if (rule->rule == KVL_RULE_RANGE) {
        if (low > high) low = high = 0;
        double scale = (float)((float)(high - low) / element->max);
        put_scale(s, at, scale);
        put_scale(s, at + s->scale_bytes, low);
        *minus = low;
        return scale;
    }
    if (rule->rule == KVL_RULE_SIGNED) {
        double scale = (float)(extreme / element->min);
        put_scale(s, at, scale);
        return scale;
    }

    amax = fmax(amax, rule->floor_amax);
    double scale = fmax((float)(amax / element->max), rule->floor_scale);
    int k = 0;
    switch (rule->rule) {
    case KVL_RULE_RAW: put_scale(s, at, scale); return scale;
    case KVL_RULE_NEAREST: return put_scale(s, at, scale);
    case KVL_RULE_POW2_UP: k = scale > 0 ? ceil_log2(scale) : -127; break;
    default:
        k = amax > 0 ? ilogb(amax) - ilogb(element->max) : -127;
        if (rule->floor_scale > 0 && ceil_log2(rule->floor_scale) > k)
            k = ceil_log2(rule->floor_scale);
        break;
    }
    int top = ilogb(kvl_number_about(rule->number)->max);
    return put_scale(s, at, ldexp(1, k > top ? top : k < -127 ? -127 : k));
}

void kvl_record_encode_ref(const kvl_record *rec, uint8_t *data, uint8_t *scale, const float *x) {
    memset(data, 0, (size_t)rec->info.data_bytes);
    if (rec->info.scale_bytes) memset(scale, 0, (size_t)rec->info.scale_bytes);
    for (int64_t i = 0; i < rec->n_steps; i++) {
        const kvl_step *s = &rec->steps[i];
        const kvl_field *f = &s->field;
        uint8_t *scales = f->place == KVL_PLACE_SPLIT ? scale : data;
        double by = 1, minus = 0;
        for (int64_t c = 0; c < f->channels; c++) {
            place p = find(f, c);
            float value = x[s->first + c];
            if (f->scaled && p.in_group == 0)
                by = encode_scale(s, scales + scale_offset(s, p.block, p.group, 0),
                                  x + s->first + c, &minus);
            double inverse = (float)(1 / by);
            if (f->scaled && (by == 0 || (f->scale.reciprocal && isinf(inverse))))
                value = isfinite(value) ? 0 : value;
            else if (f->scaled && f->scale.reciprocal)
                value = (float)((double)(float)(value - minus) * inverse);
            else if (f->scaled)
                value = (float)((double)(float)(value - minus) / by);
            double max = kvl_number_about(f->number)->max;
            bool wide = kvl_number_about(f->number)->bits >= 16; /* overflow would be inf */
            if (f->scaled && wide && isfinite(x[s->first + c]) && fabs(value) > max)
                value = (float)copysign(max, value);
            int shift;
            uint8_t *at = data + element_offset(s, p, &shift);
            uint32_t code = kvl_number_encode_ref(f->number, value, f->ties);
            if (f->number == KVL_F32) memcpy(&code, &value, sizeof code);
            if (kvl_number_about(f->number)->bits == 4)
                *at = (uint8_t)(*at | code << shift);
            else
                put(at, code, kvl_number_about(f->number)->code_bytes);
        }
    }
}

void kvl_record_decode_ref(const kvl_record *rec, double *x, const uint8_t *data,
                           const uint8_t *scale) {
    for (int64_t i = 0; i < rec->n_steps; i++) {
        const kvl_step *s = &rec->steps[i];
        const kvl_field *f = &s->field;
        const uint8_t *scales = f->place == KVL_PLACE_SPLIT ? scale : data;
        for (int64_t c = 0; c < f->channels; c++) {
            place p = find(f, c);
            int shift;
            const uint8_t *at = data + element_offset(s, p, &shift);
            uint32_t code = get(at, kvl_number_about(f->number)->code_bytes);
            if (kvl_number_about(f->number)->bits == 4) code = code >> shift & 15u;
            double value = kvl_number_decode_ref(f->number, code);
            for (int k = 0; f->scaled && k < s->scales_per_group; k++) {
                const uint8_t *stored = scales + scale_offset(s, p.block, p.group, k);
                double number = kvl_number_decode_ref(f->scale.number, get(stored, s->scale_bytes));
                value = k == 0 ? value * number : value + number;
            }
            x[s->first + c] = value;
        }
    }
}

/* record.c - checks a list of fields and lays it out: the plan that record_rows.c runs through. */
#include "kvlab/record.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "record_plan.h"

/* Limits that no cache comes near and that keep every product below in an int64_t. */
enum { MAX_FIELDS = 64, MAX_CHANNELS = 1 << 24, MAX_PAD = 1 << 20, MAX_PAGE = 1 << 24 };

/* The divisors of n next to d, as text: "5 and 8", or "48" alone. */
static const char *divisors_near(char *text, size_t size, int64_t n, int64_t d) {
    int64_t below = 0, above = 0;
    for (int64_t i = 1; i <= n; i++) {
        if (n % i) continue;
        if (i < d) below = i;
        if (i > d && !above) above = i;
    }
    if (below && above)
        snprintf(text, size, "%lld and %lld do", (long long)below, (long long)above);
    else
        snprintf(text, size, "%lld does", (long long)(below ? below : above));
    return text;
}

static kvl_status check_divides(int64_t i, const char *what, int64_t d, const char *of, int64_t n,
                                kvl_error *err) {
    char text[64];
    if (d >= 1 && n % d == 0) return KVL_OK;
    if (d < 1)
        return kvl_fail(err, KVL_EINVAL, "field %lld: %s %lld must be at least 1", (long long)i,
                        what, (long long)d);
    return kvl_fail(err, KVL_EINVAL, "field %lld: %s %lld does not divide %s%lld channels; %s",
                    (long long)i, what, (long long)d, of, (long long)n,
                    divisors_near(text, sizeof text, n, d));
}

static bool is_scale_number(kvl_number number) {
    return number == KVL_UE8M0 || number == KVL_UE4M3;
}

static bool is_integer(kvl_number number) {
    return number == KVL_INT8 || number == KVL_INT4 || number == KVL_UINT4;
}

static const char *const rule_names[KVL_RULES] = {"raw",     "pow2_up", "ocp_floor",
                                                  "nearest", "signed",  "range"};

static kvl_status check_scale(int64_t at, const kvl_field *f, kvl_error *err) {
    const kvl_scale *s = &f->scale;
    long long i = (long long)at;
    if ((unsigned)s->number >= KVL_NUMBERS || (unsigned)s->rule >= KVL_RULES ||
        (unsigned)s->ties >= KVL_TIES)
        return kvl_fail(err, KVL_EINVAL, "field %lld: no such scale number, rule or ties", i);
    const char *name = kvl_number_about(s->number)->name, *rule = rule_names[s->rule];
    const char *element = kvl_number_about(f->number)->name;
    if (is_integer(s->number) || s->number == KVL_E2M1)
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: %s cannot be the number of a scale; f32, bf16, fp16, e4m3, "
                        "e5m2, ue4m3 and ue8m0 can",
                        i, name);
    if (s->rule == KVL_RULE_SIGNED && f->number != KVL_INT4 && f->number != KVL_INT8)
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: rule 'signed' is for int4 and int8 elements, not for %s", i,
                        element);
    if (s->rule == KVL_RULE_RANGE && f->number != KVL_UINT4)
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: rule 'range' is for uint4 elements, not for %s", i, element);
    if (f->number == KVL_UINT4 && s->rule != KVL_RULE_RANGE)
        return kvl_fail(
            err, KVL_EINVAL,
            "field %lld: uint4 elements have no sign, so their rule is 'range', not '%s'", i, rule);
    bool needs_sign = s->rule == KVL_RULE_SIGNED || s->rule == KVL_RULE_RANGE;
    if (needs_sign && is_scale_number(s->number))
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: rule '%s' stores negative scales, which %s has not; fp16 has",
                        i, rule, name);
    if (needs_sign && (s->floor_amax != 0 || s->floor_scale != 0))
        return kvl_fail(err, KVL_EINVAL, "field %lld: rule '%s' takes no floor", i, rule);
    /* !(x >= 0) is also true of NaN */
    if (!(s->floor_amax >= 0 && s->floor_amax <= FLT_MAX))
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: floor amax %g must be a finite number that is not negative", i,
                        (double)s->floor_amax);
    if (!(s->floor_scale >= 0 && s->floor_scale <= FLT_MAX))
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: floor scale %g must be a finite number that is not negative",
                        i, (double)s->floor_scale);
    return KVL_OK;
}

static kvl_status check_field(int64_t at, const kvl_field *f, kvl_error *err) {
    long long i = (long long)at;
    kvl_status status;
    if ((unsigned)f->number >= KVL_NUMBERS || (unsigned)f->ties >= KVL_TIES ||
        (unsigned)f->order >= KVL_ORDERS || (unsigned)f->place >= KVL_PLACES)
        return kvl_fail(err, KVL_EINVAL, "field %lld: no such number, ties, order or place", i);
    const kvl_number_info *number = kvl_number_about(f->number);
    if (f->channels < 1 || f->channels > MAX_CHANNELS)
        return kvl_fail(err, KVL_EINVAL, "field %lld: %lld channels, expected 1 to %d", i,
                        (long long)f->channels, MAX_CHANNELS);
    if (is_scale_number(f->number))
        return kvl_fail(err, KVL_EINVAL, "field %lld: %s holds scales, not elements", i,
                        number->name);
    if ((status = check_divides(at, "block", f->block, "", f->channels, err))) return status;
    if (f->scaled) {
        if ((status = check_scale(at, f, err))) return status;
        int64_t group = f->scale.group;
        if ((status = check_divides(at, "group", group, "", f->channels, err))) return status;
        if ((status = check_divides(at, "group", group, "the block of ", f->block, err)))
            return status;
    }
    int64_t group = f->scaled ? f->scale.group : f->block;
    if (number->bits == 4 && group % 2)
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: %s %lld is odd, but two %s channels share a byte", i,
                        f->scaled ? "group" : "block", (long long)group, number->name);
    if (number->bits != 4 && (f->order != KVL_ORDER_ADJACENT || f->high_first))
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: element order and nibbles are for 4-bit numbers, not for %s",
                        i, number->name);
    if (f->order == KVL_ORDER_HALVES && group > KVL_TILE)
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: order 'halves' takes groups of up to %d channels, not %lld", i,
                        (int)KVL_TILE, (long long)group);
    if (f->pad < 0 || f->pad > MAX_PAD)
        return kvl_fail(err, KVL_EINVAL, "field %lld: pad %lld, expected 0 to %d bytes", i,
                        (long long)f->pad, MAX_PAD);
    if (f->scale_pad < 0 || f->scale_pad > MAX_PAD)
        return kvl_fail(err, KVL_EINVAL, "field %lld: scale_pad %lld, expected 0 to %d bytes", i,
                        (long long)f->scale_pad, MAX_PAD);
    if (f->scale_pad && !(f->scaled && f->place == KVL_PLACE_SPLIT))
        return kvl_fail(err, KVL_EINVAL,
                        "field %lld: scale_pad %lld needs scales with place 'split'; use pad", i,
                        (long long)f->scale_pad);
    return KVL_OK;
}

/* Places the field at the end of the rows laid out so far (info) and moves their ends on. */
static void lay_out(kvl_step *s, const kvl_field *field, kvl_record_info *info) {
    s->field = *field;
    const kvl_field *f = &s->field;
    int64_t group = f->scaled ? f->scale.group : f->block;
    s->first = info->channels;
    s->blocks = f->channels / f->block;
    if (group <= KVL_TILE_AIM)
        s->tile = KVL_TILE_AIM / group * group;
    else
        s->tile = f->order == KVL_ORDER_HALVES ? group : KVL_TILE_AIM;

    int64_t elements = kvl_packed_bytes(f->number, f->block);
    bool split = f->scaled && f->place == KVL_PLACE_SPLIT;
    if (f->scaled) {
        const kvl_number_info *element = kvl_number_about(f->number);
        const kvl_number_info *scale = kvl_number_about(f->scale.number);
        s->groups = f->block / f->scale.group;
        s->scale_bytes = scale->code_bytes;
        s->scales_per_group = f->scale.rule == KVL_RULE_RANGE ? 2 : 1;
        s->scales_bytes = s->groups * s->scales_per_group * s->scale_bytes;
        s->max = (float)(f->scale.rule == KVL_RULE_SIGNED ? element->min : element->max);
        s->max_exponent = ilogb(element->max);
        s->scale_max = (float)scale->max;
        s->scale_exponent = ilogb(scale->max);
    }
    s->split = split;
    s->block_bytes = elements + (split ? 0 : s->scales_bytes);
    s->data_at = info->data_bytes;
    s->elements_at = f->scaled && f->place == KVL_PLACE_BEFORE ? s->scales_bytes : 0;
    s->scales_at = split                                      ? info->scale_bytes
                   : f->scaled && f->place == KVL_PLACE_AFTER ? elements
                                                              : 0;
    s->pad_at = s->data_at + s->blocks * s->block_bytes;
    s->scale_pad_at = split ? s->scales_at + s->blocks * s->scales_bytes : 0;

    if (kvl_number_about(f->number)->bits == 4)
        for (uint32_t byte = 0; byte < 256; byte++) {
            s->pairs[byte][f->high_first] = kvl_number_decode(f->number, byte & 15);
            s->pairs[byte][!f->high_first] = kvl_number_decode(f->number, byte >> 4);
        }

    info->channels += f->channels;
    info->data_bytes = s->pad_at + f->pad;
    if (split) info->scale_bytes = s->scale_pad_at + f->scale_pad;
}

kvl_status kvl_record_compile(kvl_record **out, const kvl_field *fields, int64_t n_fields,
                              int64_t page_entries, int64_t page_align, kvl_error *err) {
    *out = NULL;
    if (n_fields < 1 || n_fields > MAX_FIELDS)
        return kvl_fail(err, KVL_EINVAL, "%lld fields, expected 1 to %d", (long long)n_fields,
                        MAX_FIELDS);
    if (page_entries < 1 || page_entries > MAX_PAGE)
        return kvl_fail(err, KVL_EINVAL, "page: %lld entries, expected 1 to %d",
                        (long long)page_entries, MAX_PAGE);
    if (page_align < 1 || page_align > MAX_PAGE)
        return kvl_fail(err, KVL_EINVAL, "page: align %lld, expected 1 to %d",
                        (long long)page_align, MAX_PAGE);

    kvl_record *rec = kvl_alloc(offsetof(kvl_record, steps) +
                                (size_t)n_fields * sizeof rec->steps[0]);
    if (!rec) return kvl_fail(err, KVL_ENOMEM, "no memory for a record");
    rec->n_steps = n_fields;
    kvl_record_info *info = &rec->info;
    for (int64_t i = 0; i < n_fields; i++) {
        kvl_field f = fields[i];
        if (f.block == 0) f.block = f.channels;
        if (f.scaled && f.scale.group == 0) f.scale.group = f.block;
        kvl_status status = check_field(i + 1, &f, err);
        if (status) {
            kvl_record_free(rec);
            return status;
        }
        lay_out(&rec->steps[i], &f, info);
    }
    /* At most 2^6 fields of 2^24 channels of 8 bytes in 2^24 entries: 2^57. */
    int64_t used = page_entries * (info->data_bytes + info->scale_bytes);
    info->page_entries = page_entries;
    info->page_bytes = (used + page_align - 1) / page_align * page_align;
    info->page_padding = info->page_bytes - used;
    *out = rec;
    return KVL_OK;
}

void kvl_record_free(kvl_record *rec) {
    kvl_free(rec);
}

kvl_record *kvl_record_clone(const kvl_record *rec) {
    size_t bytes = offsetof(kvl_record, steps) + (size_t)rec->n_steps * sizeof rec->steps[0];
    kvl_record *copy = kvl_alloc(bytes);
    if (copy) memcpy(copy, rec, bytes);
    return copy;
}

const kvl_record_info *kvl_record_about(const kvl_record *rec) {
    return &rec->info;
}

int64_t kvl_record_data_offset(const kvl_record *rec, int64_t slot) {
    return slot * rec->info.data_bytes;
}

int64_t kvl_record_scale_offset(const kvl_record *rec, int64_t slot) {
    return rec->info.page_entries * rec->info.data_bytes + slot * rec->info.scale_bytes;
}

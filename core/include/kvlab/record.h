/* record.h - how one cache entry (a row of float channels) lies in bytes, as data.
 *
 * A record is a list of fields, each a run of channels in one number format, with or without
 * scales; sizes are derived from it and written down nowhere. kvl_record_compile turns the list
 * into a plan of plain loops.
 *
 *     data row    field after field: blocks of elements (with their scales before or after them),
 * padding scale row   field after field: the scales that are split off, padding page        P data
 * rows, P scale rows, zeroes up to a multiple of `align`; entry e is slot e % P of page e / P
 *
 * All codes are little-endian. A group is the channels that share a scale, a block is what is
 * stored in one piece: group divides block, block divides channels. docs/records.md explains every
 * choice and lists the records of real engines.
 */
#ifndef kvlab_record_h
#define kvlab_record_h

#include "kvlab/number.h"

/* How the scale s of a group comes from its elements. amax is the largest |x| that is finite, max
 * the largest value of the element's number; s and x / s are float32. */
typedef enum kvl_rule {
    KVL_RULE_RAW,       /* s = amax / max; the quotients use s, its rounding is stored */
    KVL_RULE_POW2_UP,   /* s = 2^ceil(log2(amax / max)): no element saturates */
    KVL_RULE_OCP_FLOOR, /* s = 2^(floor(log2 amax) - floor(log2 max)) (OCP MX): the largest may
                           saturate */
    KVL_RULE_NEAREST, /* s = amax / max rounded to the scale's number; the quotients use the rounded
                         one */
    KVL_RULE_SIGNED,  /* s = (the value of largest magnitude) / (the lowest integer) (ggml q4_0) */
    KVL_RULE_RANGE, /* s = (largest - smallest) / max and the smallest is stored too (ggml q4_1) */
    KVL_RULES
} kvl_rule;

typedef enum kvl_place {
    KVL_PLACE_SPLIT,  /* the scales go to the scale row */
    KVL_PLACE_BEFORE, /* in every block, the scales of its groups and then its elements */
    KVL_PLACE_AFTER,  /* the elements first */
    KVL_PLACES
} kvl_place;

/* How 4-bit codes share bytes. */
typedef enum kvl_order {
    KVL_ORDER_ADJACENT, /* byte i holds elements 2i and 2i + 1 */
    KVL_ORDER_HALVES,   /* byte j of a group of g holds elements j and j + g/2 */
    KVL_ORDERS
} kvl_order;

typedef struct kvl_scale {
    kvl_number number; /* a float or UE8M0 */
    kvl_rule rule;
    int64_t group;     /* channels per scale; 0: the block */
    float floor_amax;  /* amax is at least this; 0: no floor */
    float floor_scale; /* s is at least this; 0: no floor */
    bool reciprocal;   /* quotients are x * (1 / s) instead of x / s */
    kvl_ties ties;     /* of the rounding to the scale's number */
} kvl_scale;

typedef struct kvl_field {
    int64_t channels;
    kvl_number number;
    kvl_ties ties; /* of the elements */
    bool scaled;   /* has scales; otherwise a plain cast */
    kvl_scale scale;
    kvl_place place; /* of the scales */
    int64_t block;   /* channels per block; 0: the whole field */
    kvl_order order;
    bool high_first;   /* the first of two 4-bit codes takes the high half of the byte */
    int64_t pad;       /* zero bytes after the field's data */
    int64_t scale_pad; /* zero bytes after the field's split scales */
} kvl_field;

typedef struct kvl_record kvl_record;

/* Everything derived, in bytes where not said otherwise. */
typedef struct kvl_record_info {
    int64_t channels;                /* floats of one entry */
    int64_t data_bytes, scale_bytes; /* of one entry; their sum is what an entry takes */
    int64_t page_entries;            /* P */
    int64_t page_bytes;              /* with padding: the distance between two pages */
    int64_t page_padding;
} kvl_record_info;

/* Checks the fields and builds the plan; copies what it needs. Messages start with "field N: "
 * (from 1) or "page: ". The caller frees *out with kvl_record_free. */
KVL_API kvl_status kvl_record_compile(kvl_record **out, const kvl_field *fields, int64_t n_fields,
                                      int64_t page_entries, int64_t page_align, kvl_error *err);
KVL_API void kvl_record_free(kvl_record *rec);
/* A copy, owned by the caller; NULL when memory is refused. */
KVL_API kvl_record *kvl_record_clone(const kvl_record *rec);
KVL_API const kvl_record_info *kvl_record_about(const kvl_record *rec);

/* One entry. x has `channels` floats, data `data_bytes` and scale `scale_bytes` (NULL when that is
 * 0). NaN and inf are left out of amax and then stored by the rule of the element's number. A group
 * whose scale is 0 (all zero, no floor) stores zeroes: never NaN. */
KVL_API void kvl_record_encode(const kvl_record *rec, uint8_t *data, uint8_t *scale,
                               const float *x);
KVL_API void kvl_record_decode(const kvl_record *rec, float *x, const uint8_t *data,
                               const uint8_t *scale);

/* The plain twins: channel by channel, in double (scales and quotients rounded to float32 by
 * definition). */
KVL_API void kvl_record_encode_ref(const kvl_record *rec, uint8_t *data, uint8_t *scale,
                                   const float *x);
KVL_API void kvl_record_decode_ref(const kvl_record *rec, double *x, const uint8_t *data,
                                   const uint8_t *scale);

/* Where the rows of a slot (0 <= slot < page_entries) start in its page. */
KVL_API int64_t kvl_record_data_offset(const kvl_record *rec, int64_t slot);
KVL_API int64_t kvl_record_scale_offset(const kvl_record *rec, int64_t slot);

/* n consecutive slots of one page; rows of x are x_stride floats apart. */
KVL_API void kvl_record_encode_slots(const kvl_record *rec, uint8_t *page, int64_t first_slot,
                                     const float *x, int64_t x_stride, int64_t n);
KVL_API void kvl_record_decode_slots(const kvl_record *rec, float *x, int64_t x_stride,
                                     const uint8_t *page, int64_t first_slot, int64_t n);

/* n rows encoded and decoded again, what a cache of such entries gives back: y [n, channels] and
 * x [n, channels], rows y_stride and x_stride floats apart. x may be y. */
KVL_API kvl_status kvl_record_roundtrip(const kvl_record *rec, float *y, int64_t y_stride,
                                        const float *x, int64_t x_stride, int64_t n,
                                        kvl_error *err);

#endif

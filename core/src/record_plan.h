/* record_plan.h - a compiled record, shared by its fast loops and their plain twins. */
#ifndef kvlab_record_plan_h
#define kvlab_record_plan_h

#include "kvlab/record.h"

/* Codes are unpacked and quotients formed in tiles of at most this many channels, on the stack. */
enum { KVL_TILE = 4096, KVL_TILE_AIM = 512 };

typedef struct kvl_step {
    kvl_field field;      /* group and block filled in */
    int64_t first;        /* its first channel in the row */
    int64_t blocks;       /* per field */
    int64_t groups;       /* per block; 0 without scales */
    bool split;           /* has scales that go to the scale row */
    int64_t tile;         /* channels per tile: whole groups, or an even part of one */
    int64_t data_at;      /* of the field, in the data row */
    int64_t block_bytes;  /* from one block to the next, in the data row */
    int64_t elements_at;  /* of the elements, in the block */
    int64_t scales_at;    /* of the scales, in the block or (split) in the scale row */
    int64_t scales_bytes; /* of the scales of one block */
    int64_t pad_at;       /* of `field.pad` zero bytes in the data row */
    int64_t scale_pad_at; /* of `field.scale_pad` zero bytes in the scale row */
    int scale_bytes;      /* of one scale code */
    int scales_per_group; /* 2 for the rule 'range', otherwise 1 */
    float max;       /* divides amax: the largest element, or the lowest for the rule 'signed' */
    float scale_max; /* scales saturate here, so that they are never inf */
    int32_t max_exponent;   /* floor(log2 max) */
    int32_t scale_exponent; /* floor(log2 scale_max) */
    float pairs[256][2];    /* 4-bit numbers: the values of the first and second code of a byte */
} kvl_step;

struct kvl_record {
    kvl_record_info info;
    int64_t n_steps;
    kvl_step steps[];
};

/* Bytes of n packed elements. */
static inline int64_t kvl_packed_bytes(kvl_number number, int64_t n) {
    return n * kvl_number_about(number)->bits / 8;
}

#endif

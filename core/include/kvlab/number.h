/* number.h - the number formats that cache entries are made of, exact to the bit.
 *
 * A number has a code (an unsigned integer) for each of its values. Encoding rounds a float to the
 * nearest value; ties go to the even code unless told otherwise. Overflow: f32, bf16 and fp16
 * become inf as in IEEE 754, every other number saturates. The definitions are those of the OCP
 * 8-bit and MX formats and, for UE4M3, INT4 and UINT4, of ggml's cache blocks; docs/records.md has
 * the table.
 *
 * NaN and inf, encoded:
 *     f32 bf16 fp16   as in IEEE 754 (NaN quiet, sign kept)
 *     e4m3            NaN -> 0x7F or 0xFF (sign kept), inf -> +-448
 *     e5m2            NaN -> 0x7F or 0xFF (sign kept), inf -> +-57344
 *     e2m1            has neither: NaN -> +6, inf -> +-6
 *     ue8m0           NaN -> 0xFF, inf -> 0xFE (2^127); zero and negative -> 0x00 (2^-127), it has
 * no such values ue4m3           NaN, zero and negative -> 0x00, inf -> 0x7E int8 int4 uint4 NaN ->
 * 0, inf -> the end of the range
 */
#ifndef kvlab_number_h
#define kvlab_number_h

#include "kvlab/base.h"

typedef enum kvl_number {
    KVL_F32,
    KVL_BF16,
    KVL_FP16,
    KVL_E4M3,  /* "fn": no inf, one NaN for each sign, max 448 */
    KVL_E5M2,  /* IEEE-like: inf and NaN */
    KVL_E2M1,  /* 0 0.5 1 1.5 2 3 4 6 and their negatives */
    KVL_UE8M0, /* powers of two, no sign, no zero: a scale */
    KVL_UE4M3, /* ggml's unsigned scale: half up, 256 and more -> 448, code 0x7F is 0 */
    KVL_INT8,  /* two's complement, -128..127 */
    KVL_INT4,  /* excess 8: code 0..15 is -8..7 */
    KVL_UINT4, /* 0..15 */
    KVL_NUMBERS
} kvl_number;

/* Where a value exactly between two codes goes. */
typedef enum kvl_ties {
    KVL_TIES_EVEN, /* the even code (IEEE 754, CUDA converts) */
    KVL_TIES_DOWN, /* the smaller magnitude; a negative that becomes zero is +0 */
    KVL_TIES_AWAY, /* the larger magnitude (C roundf) */
    KVL_TIES_UP,   /* the larger value; integers: floor(x + 0.5), INT4 floor(x + 8.5) - 8, with the
                    * sum   rounded to float32, which is what ggml's (int)(x + 8.5f) does */
    KVL_TIES
} kvl_ties;

/* What is known of a number; constants of the library, never freed. */
typedef struct kvl_number_info {
    const char *name;  /* "e4m3" */
    const char *label; /* "E4M3", as papers write it */
    int bits;          /* of a code; 4-bit codes lie two in a byte */
    int code_bytes; /* of a code in a row of codes: 4, 2 or 1 (a 4-bit code takes a byte there) */
    int exponent_bits, mantissa_bits, bias; /* 0 for integers */
    double max, min;                        /* largest and smallest finite value */
    double min_normal, min_subnormal;       /* smallest positive ones; 0 where there is none */
    bool has_inf, has_nan;
} kvl_number_info;

/* NULL when `number` is none. */
KVL_API const kvl_number_info *kvl_number_about(kvl_number number);

/* Finds a number by name; false when there is none. */
KVL_API bool kvl_number_named(kvl_number *out, const char *name);

/* One value. `number` and `ties` must be valid. */
KVL_API uint32_t kvl_number_encode(kvl_number number, float x, kvl_ties ties);
KVL_API float kvl_number_decode(kvl_number number, uint32_t code);

/* As kvl_number_encode, but overflow is not saturated where the number can say so (OCP
 * non-saturating mode, torch casts): e4m3 beyond 464 -> NaN, e5m2 from 61440 -> inf, ue8m0 beyond
 * 2^127 -> NaN. */
KVL_API uint32_t kvl_number_encode_strict(kvl_number number, float x, kvl_ties ties);

/* The two other roundings of a scale to UE8M0: to the next power of two that is not below / not
 * above x. */
KVL_API uint32_t kvl_ue8m0_up(float x);
KVL_API uint32_t kvl_ue8m0_floor(float x);

/* Rows of n values. `codes` is n * code_bytes bytes at any alignment, little-endian. */
KVL_API void kvl_number_encode_row(kvl_number number, void *codes, const float *x, int64_t n,
                                   kvl_ties ties);
KVL_API void kvl_number_decode_row(kvl_number number, float *x, const void *codes, int64_t n);

/* The plain twins: double arithmetic, straight from the definition. */
KVL_API uint32_t kvl_number_encode_ref(kvl_number number, double x, kvl_ties ties);
KVL_API double kvl_number_decode_ref(kvl_number number, uint32_t code);

#endif

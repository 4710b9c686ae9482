/* number_ref.c - the plain twins of number.c: double arithmetic from the definition of a small
 * float, E = 0: M * 2^(1-bias-m)      E > 0: (1 + M * 2^-m) * 2^(E-bias) and rounding as "scale by
 * the quantum, round to an integer, look the integer's code up". A float and its product with a
 * power of two are exact in a double, so every step but the rounding itself is exact.
 */
#include <math.h>

#include "kvlab/number.h"

/* Rounds q >= 0 to an integer. A tie goes to the even one, down, or up. */
static double round_quanta(double q, kvl_ties ties, bool negative) {
    double low = floor(q), rest = q - low;
    if (rest != 0.5) return rest < 0.5 ? low : low + 1;
    switch (ties) {
    case KVL_TIES_DOWN: return low;
    case KVL_TIES_AWAY: return low + 1;
    case KVL_TIES_UP: return negative ? low : low + 1;
    default: return fmod(low, 2) == 0 ? low : low + 1;
    }
}

/* Code of a magnitude with m mantissa bits, as if the exponent field had no end. */
static uint32_t magnitude_ref(double a, int m, int bias, kvl_ties ties, bool negative) {
    if (a == 0) return 0;
    int e = ilogb(a);
    if (e < 1 - bias) e = 1 - bias;
    double n = round_quanta(ldexp(a, m - e), ties, negative);
    if (n == ldexp(1, m + 1)) {
        n /= 2;
        e++;
    }
    if (n < ldexp(1, m)) return (uint32_t)n;
    return (uint32_t)(e + bias) << m | (uint32_t)(n - ldexp(1, m));
}

static uint32_t integer_ref(double x, double lo, double hi, double excess, kvl_ties ties) {
    if (isnan(x)) x = 0;
    double n;
    if (ties == KVL_TIES_UP)
        n = floor((float)((float)x + (float)(excess + 0.5))) - excess;
    else
        n = copysign(round_quanta(fabs(x), ties, x < 0), x);
    n = n < lo ? lo : n > hi ? hi : n;
    return (uint32_t)(int64_t)(n + excess) & 0xffu;
}

uint32_t kvl_number_encode_ref(kvl_number number, double x, kvl_ties ties) {
    const kvl_number_info *info = kvl_number_about(number);
    int e = info->exponent_bits, m = info->mantissa_bits;
    bool negative = signbit(x);
    switch (number) {
    case KVL_INT8: return integer_ref(x, -128, 127, 0, ties);
    case KVL_INT4: return integer_ref(x, -8, 7, 8, ties);
    case KVL_UINT4: return integer_ref(x, 0, 15, 0, ties);
    case KVL_UE8M0: {
        if (isnan(x)) return 0xff;
        if (x <= 0x1p-127) return 0;
        if (x >= 0x1p127) return 0xfe;
        int k = ilogb(x) + 127;
        double middle = ldexp(1.5, k - 127);
        bool up = ties == KVL_TIES_EVEN ? k % 2 == 1 : ties != KVL_TIES_DOWN;
        return (uint32_t)(x > middle || (x == middle && up) ? k + 1 : k);
    }
    case KVL_UE4M3: {
        if (!(x > 0)) return 0;
        if (x < 0x1p-6) { /* ggml: the sum is a float's, and never reaches 8 quanta */
            float n = floorf((float)x * 512.0f + 0.5f);
            return n > 7 ? 7 : (uint32_t)n;
        }
        uint32_t code = isinf(x) ? 0x7e : magnitude_ref(x, m, 7, KVL_TIES_AWAY, false);
        return code >= 0x78 ? 0x7e : code;
    }
    default: break;
    }
    uint32_t sign = (uint32_t)negative << (e + m);
    uint32_t inf = ((1u << e) - 1u) << m;
    if (isnan(x)) {
        if (number == KVL_E2M1) return 7;
        if (number == KVL_E4M3 || number == KVL_E5M2) return sign | 0x7f;
        return sign | inf | 1u << (m - 1);
    }
    uint32_t max = number == KVL_E4M3 ? 0x7e : number == KVL_E2M1 ? 7 : inf - 1;
    uint32_t over = info->bits >= 16 ? inf : max;
    uint32_t code = isinf(x) ? over : magnitude_ref(fabs(x), m, info->bias, ties, negative);
    if (code > max) code = over;
    if (ties == KVL_TIES_DOWN && code == 0 && number != KVL_F32) sign = 0; /* f32 never rounds */
    return sign | code;
}

double kvl_number_decode_ref(kvl_number number, uint32_t code) {
    const kvl_number_info *info = kvl_number_about(number);
    int e = info->exponent_bits, m = info->mantissa_bits;
    switch (number) {
    case KVL_INT8: return code & 0x80u ? (double)(code & 0xffu) - 256 : (double)(code & 0xffu);
    case KVL_INT4: return (double)(code & 15u) - 8;
    case KVL_UINT4: return (double)(code & 15u);
    case KVL_UE8M0: return (code & 0xffu) == 0xffu ? NAN : ldexp(1, (int)(code & 0xffu) - 127);
    default: break;
    }
    uint32_t top = (1u << e) - 1u;
    uint32_t mantissa = code & ((1u << m) - 1u), exponent = code >> m & top;
    double value = exponent == 0 ? ldexp(mantissa, 1 - info->bias - m)
                                 : ldexp(1 + ldexp(mantissa, -m), (int)exponent - info->bias);
    if (number == KVL_UE4M3) return (code & 0x7fu) == 0x7fu ? 0 : value;
    if (number == KVL_E4M3 && (code & 0x7fu) == 0x7fu) value = NAN;
    if (info->has_inf && exponent == top) value = mantissa ? NAN : INFINITY;
    return code >> (e + m) & 1u ? -value : value;
}

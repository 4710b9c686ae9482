/* vexp.h - private: e^x as a piece of a loop, for the elementwise functions of vmath.c and their
 * gradients. Plain arithmetic that the compiler turns into vector code inside a KVL_CLONES
 * function.
 */
#ifndef kvl_src_vexp_h
#define kvl_src_vexp_h

#include "kvlab/vmath.h"

#include <math.h>
#include <string.h>

#define KVL_INLINE static inline __attribute__((always_inline))

/* e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2, times 2^-lower.
 * - Adding 1.5 * 2^23 + 127 rounds to an integer and leaves the exponent n + 127 in the low bits of
 *   the sum; shifting these bits into the exponent field drops all others and makes 2^(n - lower).
 * - ln 2 is taken off in two parts; the first has 9 bits, so n * LN2_HI is exact.
 * - The polynomial of degree 6 was fitted to the smallest relative error (2e-9) with p(0) = 1. It
 * is evaluated in pairs: one long chain of operations would leave the vector unit waiting. */
KVL_INLINE float kvl_exp_core(float x, uint32_t lower) {
    const float MAGIC = 12582912.0f + 127.0f, LN2_HI = 0.693359375f, LN2_LO = -2.12194440e-4f;
    float t = x * 1.44269504f + MAGIC;
    float n = t - MAGIC;
    float r = x - n * LN2_HI - n * LN2_LO;
    float r2 = r * r;
    float low = 4.99999942e-1f + 1.66664308e-1f * r;
    float high = 4.16680047e-2f + 8.37419568e-3f * r + 1.38436068e-3f * r2;
    float p = 1.0f + (r + r2 * (low + high * r2));
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits - lower) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* x <= 0 or NaN, the case of a softmax. e^-87 is still a normal number. */
KVL_INLINE float kvl_exp_neg(float x) {
    const float LO = -87.0f;
    float e = kvl_exp_core(x < LO ? LO : x, 0);
    return x < LO ? 0.0f : e;
}

/* Any x. 2^128 is not a float although e^88.7 is, so the last factor 2 comes by itself; the
 * smallest results keep theirs, or they would pass through denormal numbers. */
KVL_INLINE float kvl_exp_any(float x) {
    const float LO = -87.33654f, HI = 88.72283f;
    float y = x < LO ? LO : x;
    y = y > HI ? HI : y;
    uint32_t lower = y > 0.0f ? 1 : 0;
    float e = kvl_exp_core(y, lower) * (float)(1 + (int32_t)lower);
    e = x < LO ? 0.0f : e;
    return x > HI ? INFINITY : e;
}

/* Phi(x), the normal distribution, and *density = e^(-x^2 / 2), from which its density follows.
 * With a = |x| and t = 1 / (1 + 0.27 a), e^(a^2 / 2) (1 - Phi(a)) / t is smooth: a polynomial of
 * degree 8 in t was fitted to it on 0 .. 13.5 (relative error 3e-8). */
KVL_INLINE float kvl_normal(float *density, float x) {
    float a = x < 0.0f ? -x : x, t = 1.0f / (1.0f + 0.27f * a), t2 = t * t, t4 = t2 * t2;
    float e = kvl_exp_neg(-0.5f * x * x);
    float p0 = 0.107721191f + 0.107533847f * t, p1 = 0.101872476f + 0.0718243965f * t;
    float p2 = 0.108303254f - 0.0698160843f * t, p3 = 0.170233534f - 0.126661245f * t;
    float p = p0 + t2 * p1 + t4 * (p2 + t2 * p3) + t4 * t4 * 0.0289886414f;
    float tail = e * t * p;
    *density = e;
    return x < 0.0f ? tail : 1.0f - tail;
}

#endif

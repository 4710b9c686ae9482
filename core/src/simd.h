/* simd.h - one portable loop, compiled for several CPUs.
 *
 * KVL_CLONES_AVX2 before a function makes the compiler emit it for AVX2 and for the base machine;
 * the dynamic linker picks one when the program starts. The loops are plain C that the compiler
 * vectorises: no intrinsics, the same bits on every CPU (the build never contracts a * b + c).
 * Where there is no run-time dispatch (other CPUs, other C libraries) the macro is empty and the
 * loop still vectorises for the base machine. KVL_SHUFFLE, where there is one, rearranges vectors
 * of 16 bytes, which every machine has.
 */
#ifndef kvlab_simd_h
#define kvlab_simd_h

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define KVL_CLONES_AVX2 __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef KVL_CLONES_AVX2
#define KVL_CLONES_AVX2
#endif

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define KVL_SHUFFLE __builtin_shufflevector
#endif
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvlab stores multi-byte codes little-endian and copies them as they are"
#endif

static inline uint32_t kvl_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float kvl_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#endif

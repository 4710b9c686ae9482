/* rand.h - reproducible random inputs for the C tests: a 64-bit linear congruential generator. */
#ifndef rand_h
#define rand_h

#include <stdint.h>
#include <stdlib.h>

static uint64_t rand_state = 20240607;

/* Uniform in [0, 1). */
static inline double rand_unit(void) {
    rand_state = rand_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(rand_state >> 11) * 0x1p-53;
}

/* Integer in [0, n). */
static inline int64_t rand_int(int64_t n) {
    return (int64_t)(rand_unit() * (double)n);
}

/* Near enough to a standard normal number. */
static inline float rand_normal(void) {
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += rand_unit();
    return (float)(sum - 6);
}

/* n of them, freed by the caller with free(). */
static inline float *rand_floats(int64_t n) {
    float *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = rand_normal();
    return x;
}

#endif

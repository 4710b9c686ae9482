/* slope.h - derivatives from central differences of a double-precision definition, for the tests of
 * gradients. The inputs are float32, so the step is what the float really moved by. Two step sizes
 * are combined so that the error falls with the fourth power of the step (Richardson).
 */
#ifndef slope_h
#define slope_h

#include <math.h>

static inline double slope_once(double (*f)(void *), void *ctx, float *x, float step) {
    float at = *x, up = at + step, down = at - step;
    *x = up;
    double high = f(ctx);
    *x = down;
    double low = f(ctx);
    *x = at;
    return (high - low) / ((double)up - (double)down);
}

/* d f / d *x */
static inline double slope(double (*f)(void *), void *ctx, float *x) {
    const float STEP = 0x1p-7f;
    return (4.0 * slope_once(f, ctx, x, STEP / 2) - slope_once(f, ctx, x, STEP)) / 3.0;
}

/* The larger of e and the error of `got`, relative to the scale of the gradients. NaN counts. */
static inline double worse(double e, double got, double want, double scale) {
    double d = fabs(got - want) / scale;
    return d <= e ? e : d;
}

#endif

/* test_rope.c - frequencies against the published values, rotations against the definition. */
#include "check.h"
#include "rand.h"

#include "kvlab/parallel.h"
#include "kvlab/rope.h"

#include <math.h>
#include <string.h>

static void test_freqs(void) {
    static const struct {
        const char *name;
        double theta, factor, context, f16, f31;
    } table[] = {
        {"V2, V3, V3.2", 1e4, 40, 4096, 5.5e-3, 3.3338035804e-06},
        {"V4, V4.1 with entries", 1.6e5, 16, 65536, 2.265625e-03, 5.6805290369e-07},
        {"V4, V4.1 without", 1e4, 0, 0, 1e-2, 1.3335214322e-04},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double freq[32];
        kvl_yarn yarn = {table[i].factor, table[i].context, 32, 1};
        CHECK(!kvl_rope_freqs(freq, table[i].theta, table[i].factor > 0 ? &yarn : NULL, 64, NULL),
              "failed");
        CHECK(freq[0] == 1, "%s: first frequency %g", table[i].name, freq[0]);
        CHECK(fabs(freq[16] / table[i].f16 - 1) < 1e-10, "%s: f_16 = %.12g", table[i].name,
              freq[16]);
        CHECK(fabs(freq[31] / table[i].f31 - 1) < 1e-10, "%s: f_31 = %.12g", table[i].name,
              freq[31]);
    }
    double freq[32];
    kvl_yarn bad = {0, 4096, 32, 1};
    CHECK(kvl_rope_freqs(freq, 1e4, NULL, 63, NULL) == KVL_EINVAL, "odd");
    CHECK(kvl_rope_freqs(freq, 1e4, NULL, 0, NULL) == KVL_EINVAL, "none");
    CHECK(kvl_rope_freqs(freq, 0.5, NULL, 64, NULL) == KVL_EINVAL, "theta");
    CHECK(kvl_rope_freqs(freq, NAN, NULL, 64, NULL) == KVL_EINVAL, "theta NaN");
    CHECK(kvl_rope_freqs(freq, 1e4, &bad, 64, NULL) == KVL_EINVAL, "factor 0");
}

enum { B = 2, T = 50, H = 3, W = 24 };

static kvl_rope_args args_of(float *out, const float *x, int64_t pos0) {
    return (kvl_rope_args){.out = out,
                           .x = x,
                           .step_b = T * H * W,
                           .step_t = H * W,
                           .step_h = W,
                           .pos0 = pos0,
                           .stride = 1,
                           .batch = B,
                           .tokens = T,
                           .heads = H,
                           .width = W};
}

static void test_rotation(void) {
    double freq[8], in[W], want[W];
    kvl_rope_freqs(freq, 1e4, NULL, 16, NULL);
    float *x = rand_floats(B * T * H * W), out[B * T * H * W], back[B * T * H * W];
    int64_t pos[B * T];
    for (int i = 0; i < B * T; i++)
        pos[i] = rand_int(200000);
    for (int form = 0; form < 16; form++) {
        kvl_rope r = {freq, 16, form & 1, form & 2, form & 4};
        kvl_rope_args a = args_of(out, x, 131000);
        a.stride = 3;
        if (form & 8) a.pos = pos, a.pos_step = T;
        CHECK(!kvl_rope_apply(&r, &a, NULL), "failed");
        double e = 0;
        for (int b = 0; b < B; b++)
            for (int t = 0; t < T; t++)
                for (int h = 0; h < H; h++) {
                    int64_t at = ((b * T + t) * H + h) * W;
                    for (int i = 0; i < W; i++)
                        in[i] = x[at + i];
                    kvl_rope_ref(want, in, &r, form & 8 ? (double)pos[b * T + t] : 131000 + 3.0 * t,
                                 W);
                    for (int i = 0; i < W; i++)
                        e = fmax(e, fabs(out[at + i] - want[i]));
                    int64_t passed = r.first ? at + 16 : at;
                    CHECK(!memcmp(out + passed, x + passed, 8 * sizeof *x),
                          "channels that must pass");
                }
        CHECK(e < 1e-6, "form %d: error %g", form, e);
        /* The inverse turns back, here in place. */
        memcpy(back, out, sizeof out);
        r.inverse = !r.inverse;
        a.out = back, a.x = back;
        kvl_rope_apply(&r, &a, NULL);
        for (int i = 0; i < B * T * H * W; i++)
            e = fmax(e, fabs(back[i] - x[i]));
        CHECK(e < 2e-6, "form %d: inverse leaves %g", form, e);
    }
    /* Layouts differ only in where the channels of a pair lie. */
    float vec[4] = {1, 2, 3, 4}, mixed[4] = {1, 3, 2, 4}, o1[4], o2[4];
    double two[2] = {1, 0.5};
    kvl_rope adjacent = {two, 4, false, false, false}, halves = {two, 4, false, true, false};
    kvl_rope_args one = {
        .out = o1, .x = vec, .pos0 = 7, .batch = 1, .tokens = 1, .heads = 1, .width = 4};
    kvl_rope_apply(&adjacent, &one, NULL);
    one.out = o2, one.x = mixed;
    kvl_rope_apply(&halves, &one, NULL);
    CHECK(o1[0] == o2[0] && o1[1] == o2[2] && o1[2] == o2[1] && o1[3] == o2[3], "layouts differ");
    free(x);
}

/* q . k depends on the distance only: moving all positions changes nothing. */
static void test_shift(void) {
    double freq[12];
    kvl_rope_freqs(freq, 1e4, NULL, W, NULL);
    kvl_rope r = {freq, W, false, false, false};
    float *x = rand_floats(B * T * H * W), a[B * T * H * W], b[B * T * H * W];
    kvl_rope_args near = args_of(a, x, 0), far = args_of(b, x, 100000);
    kvl_rope_apply(&r, &near, NULL);
    kvl_rope_apply(&r, &far, NULL);
    double e = 0;
    for (int t = 0; t < T; t++) {
        double one = 0, two = 0;
        for (int i = 0; i < W; i++) {
            one += (double)a[t * H * W + i] * a[(T - 1 - t) * H * W + i];
            two += (double)b[t * H * W + i] * b[(T - 1 - t) * H * W + i];
        }
        e = fmax(e, fabs(one - two));
    }
    CHECK(e < 2e-5, "shifted by 100000: products differ by %g", e);
    kvl_set_threads(1, NULL);
    far.out = a;
    kvl_rope_apply(&r, &far, NULL);
    kvl_set_threads(2, NULL);
    CHECK(!memcmp(a, b, sizeof a), "threads change bits");
    kvl_error err;
    kvl_rope bad = {freq, W + 2, false, false, false};
    CHECK(kvl_rope_apply(&bad, &far, &err) == KVL_EINVAL, "more channels than there are");
    bad.n = 3;
    CHECK(kvl_rope_apply(&bad, &far, &err) == KVL_EINVAL, "odd");
    free(x);
}

int main(void) {
    test_freqs();
    test_rotation();
    test_shift();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}

/* test_norm.c - normalisations and the Hadamard rotation against their definitions in double. */
#include "check.h"
#include "rand.h"

#include "kvlab/norm.h"
#include "kvlab/parallel.h"

#include <math.h>
#include <string.h>

enum { RMS, RMS_WEIGHT, LAYER, LAYER_PLAIN, HADAMARD };

static kvl_status apply(int op, float *out, const float *x, const float *w, const float *b,
                        float eps, int64_t rows, int64_t n, int64_t step, kvl_error *err) {
    switch (op) {
    case RMS: return kvl_rms_norm(out, step, x, step, NULL, eps, rows, n, err);
    case RMS_WEIGHT: return kvl_rms_norm(out, step, x, step, w, eps, rows, n, err);
    case LAYER: return kvl_layer_norm(out, step, x, step, w, b, eps, rows, n, err);
    case LAYER_PLAIN: return kvl_layer_norm(out, step, x, step, NULL, NULL, eps, rows, n, err);
    default: return kvl_hadamard(out, step, x, step, rows, n, err);
    }
}

static void test_table(void) {
    static const struct {
        const char *name;
        int op, rows, n;
        float scale, eps;
        double bound; /* absolute, outputs near 1 */
    } table[] = {
        {"rms", RMS, 70, 33, 1, 1e-6f, 2e-6},
        {"rms weight", RMS_WEIGHT, 300, 512, 1, 1e-6f, 2e-6},
        {"rms V4.1 eps", RMS, 5, 64, 1e-6f, 1e-20f, 2e-6},
        {"rms large", RMS, 5, 64, 1e15f, 1e-6f, 2e-6},
        {"rms of one", RMS_WEIGHT, 3, 1, 1, 1e-6f, 2e-6},
        {"layer", LAYER, 70, 128, 1, 1e-6f, 3e-6},
        {"layer plain", LAYER_PLAIN, 70, 37, 1, 1e-6f, 3e-6},
        {"hadamard", HADAMARD, 40, 128, 1, 0, 2e-6},
        {"hadamard 1", HADAMARD, 4, 1, 1, 0, 0},
        {"hadamard 2", HADAMARD, 4, 2, 1, 0, 1e-6},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int64_t rows = table[i].rows, n = table[i].n, step = n + 3;
        float *x = rand_floats(rows * step), *w = rand_floats(n), *b = rand_floats(n);
        float *out = rand_floats(rows * step), *two = rand_floats(rows * step);
        double *in = malloc((size_t)n * sizeof *in), *dw = malloc((size_t)n * sizeof *dw);
        double *db = malloc((size_t)n * sizeof *db), *want = malloc((size_t)n * sizeof *want),
               e = 0;
        for (int64_t j = 0; j < rows * step; j++)
            x[j] *= table[i].scale;
        memcpy(two, x, (size_t)(rows * step) * sizeof *two);
        kvl_set_threads(1, NULL);
        CHECK(!apply(table[i].op, out, x, w, b, table[i].eps, rows, n, step, NULL), "failed");
        kvl_set_threads(2, NULL);
        CHECK(!apply(table[i].op, two, two, w, b, table[i].eps, rows, n, step, NULL), "failed");
        for (int64_t r = 0; r < rows; r++) {
            CHECK(!memcmp(out + r * step, two + r * step, (size_t)n * sizeof *out),
                  "%s: in place, on two threads, differs", table[i].name);
            for (int64_t j = 0; j < n; j++)
                in[j] = x[r * step + j], dw[j] = w[j], db[j] = b[j];
            switch (table[i].op) {
            case RMS: kvl_rms_norm_ref(want, in, NULL, (double)table[i].eps, n); break;
            case RMS_WEIGHT: kvl_rms_norm_ref(want, in, dw, (double)table[i].eps, n); break;
            case LAYER: kvl_layer_norm_ref(want, in, dw, db, (double)table[i].eps, n); break;
            case LAYER_PLAIN:
                kvl_layer_norm_ref(want, in, NULL, NULL, (double)table[i].eps, n);
                break;
            default: kvl_hadamard_ref(want, in, n);
            }
            for (int64_t j = 0; j < n; j++)
                if (!(fabs(out[r * step + j] - want[j]) <= e))
                    e = fabs(out[r * step + j] - want[j]);
        }
        CHECK(e <= table[i].bound, "%s: error %g", table[i].name, e);
        free(x), free(w), free(b), free(out), free(two), free(in), free(dw), free(db), free(want);
    }
}

static void test_properties(void) {
    float *x = rand_floats(128), *y = rand_floats(128), hx[128], hy[128], twice[128];
    kvl_hadamard(hx, 128, x, 128, 1, 128, NULL);
    kvl_hadamard(hy, 128, y, 128, 1, 128, NULL);
    kvl_hadamard(twice, 128, hx, 128, 1, 128, NULL);
    double before = 0, after = 0, e = 0;
    for (int i = 0; i < 128; i++) {
        before += (double)x[i] * y[i], after += (double)hx[i] * hy[i];
        e = fmax(e, fabs(twice[i] - x[i]));
    }
    CHECK(fabs(before - after) < 1e-4, "products change from %g to %g", before, after);
    CHECK(e < 2e-6, "twice is not once back: %g", e);
    float h4[4] = {1, 2, 3, 4}; /* Sylvester order, by hand */
    kvl_hadamard(h4, 4, h4, 4, 1, 4, NULL);
    CHECK(h4[0] == 5 && h4[1] == -1 && h4[2] == -2 && h4[3] == 0, "%g %g %g %g", h4[0], h4[1],
          h4[2], h4[3]);
    float r[2] = {3, 4}; /* rms = sqrt(12.5) */
    kvl_rms_norm(r, 2, r, 2, NULL, 0, 1, 2, NULL);
    CHECK(fabs(r[0] - 3 / sqrt(12.5)) < 1e-6 && fabs(r[1] - 4 / sqrt(12.5)) < 1e-6, "%g %g", r[0],
          r[1]);
    x[5] = NAN;
    kvl_rms_norm(hx, 128, x, 128, NULL, 1e-6f, 1, 128, NULL);
    CHECK(isnan(hx[0]) && isnan(hx[127]), "NaN must reach the whole row");
    kvl_error err;
    CHECK(kvl_hadamard(hx, 12, x, 12, 1, 12, &err) == KVL_EINVAL, "12 is no power of two");
    CHECK(kvl_rms_norm(hx, 0, x, 0, NULL, 0, 1, 0, &err) == KVL_EINVAL, "no channels");
    CHECK(kvl_rms_norm(hx, 4, x, 4, NULL, 0, -1, 4, &err) == KVL_EINVAL, "-1 rows");
    CHECK(kvl_rms_norm(hx, 4, x, 4, NULL, 0, 0, 4, &err) == KVL_OK, "no rows");
    free(x), free(y);
}

int main(void) {
    test_table();
    test_properties();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}

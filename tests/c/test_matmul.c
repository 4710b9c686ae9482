/* test_matmul.c - products and random numbers of tensors; then what holds for all operations: the
 * same bits on any number of threads, no leak when memory is refused, an end soon after kvl_cancel.
 */
#include "kvlab/kvlab.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "tensors.h"

/* --- matmul: bound relative to sum |a| |b| --------------------------------------------------- */

static void check_matmul(const kvl_tensor *a, const kvl_tensor *b, const char *what) {
    kvl_tensor *c;
    CHECK(kvl_matmul(&c, a, b, &err) == KVL_OK, "%s: %s", what, err.msg);
    if (!c) return;
    int64_t m = a->shape[a->ndim - 2], k = a->shape[a->ndim - 1], n = b->shape[b->ndim - 1];
    double worst = 0;
    for (int64_t i = 0; i < kvl_tensor_numel(c); i++) {
        int64_t index[KVL_MAX_DIMS], rest = i, ia[KVL_MAX_DIMS], ib[KVL_MAX_DIMS];
        for (int d = c->ndim - 1; d >= 0; d--) {
            index[d] = rest % c->shape[d];
            rest /= c->shape[d];
        }
        for (int d = 0; d < c->ndim; d++) {
            int da = d - (c->ndim - a->ndim), db = d - (c->ndim - b->ndim);
            if (da >= 0) ia[da] = a->shape[da] == 1 ? 0 : index[d];
            if (db >= 0) ib[db] = b->shape[db] == 1 ? 0 : index[d];
        }
        double sum = 0, size = 1e-30;
        for (int64_t l = 0; l < k; l++) {
            ia[a->ndim - 2] = index[c->ndim - 2];
            ia[a->ndim - 1] = l;
            ib[b->ndim - 2] = l;
            ib[b->ndim - 1] = index[c->ndim - 1];
            double term = element(a, ia) * element(b, ib);
            sum += term;
            size += fabs(term);
        }
        double off = fabs(element(c, index) - sum) / size;
        if (!(off <= worst)) worst = off;
    }
    CHECK(worst < 1e-6 && c->shape[c->ndim - 2] == m && c->shape[c->ndim - 1] == n, "%s: %g", what,
          worst);
    kvl_tensor_free(c);
}

static void test_matmul(void) {
    for (int round = 0; round < 400; round++) {
        int batch = (int)rand_int(3);
        int64_t shape[2][4], m = 1 + rand_int(12), k = 1 + rand_int(12), n = 1 + rand_int(12);
        kvl_tensor *in[2];
        int64_t lead[2];
        for (int i = 0; i < batch; i++)
            lead[i] = 1 + rand_int(3);
        for (int o = 0; o < 2; o++) {
            int ndim = batch + 2;
            for (int i = 0; i < batch; i++)
                shape[o][i] = rand_unit() < 0.3 ? 1 : lead[i];
            shape[o][batch] = o ? k : m;
            shape[o][batch + 1] = o ? n : k;
            int kind = (int)rand_int(4);
            kvl_tensor *t, *v;
            if (kind == 1 || (kind == 2 && batch == 0)) { /* the matrix transposed */
                int64_t kept = shape[o][batch];
                shape[o][batch] = shape[o][batch + 1];
                shape[o][batch + 1] = kept;
                t = randn(ndim, shape[o]);
                kvl_tensor_transpose(&v, t, batch, batch + 1, &err);
            } else if (kind == 2) { /* heads behind tokens: (m, batch, k) seen as (batch, m, k) */
                int64_t kept = shape[o][batch];
                shape[o][batch] = shape[o][batch - 1];
                shape[o][batch - 1] = kept;
                t = randn(ndim, shape[o]);
                kvl_tensor_transpose(&v, t, batch - 1, batch, &err);
            } else { /* every second column of something wider */
                shape[o][batch + 1] *= kind == 3 ? 2 : 1;
                t = randn(ndim, shape[o]);
                kvl_tensor_slice(&v, t, batch + 1, 0, shape[o][batch + 1] / (kind == 3 ? 2 : 1),
                                 kind == 3 ? 2 : 1, &err);
            }
            kvl_tensor_free(t);
            in[o] = v;
        }
        check_matmul(in[0], in[1], "random");
        kvl_tensor_free(in[0]);
        kvl_tensor_free(in[1]);
    }
    int64_t tall[2] = {3, 9000}, wide[2] = {9000, 2}, s32[2] = {3, 2}, s45[2] = {4, 5};
    int64_t none[2] = {3, 0}, none_b[2] = {0, 2}, two[1] = {2}, three[1] = {3}, five[1] = {5};
    kvl_tensor *a = randn(2, tall), *b = randn(2, wide), *c;
    check_matmul(a, b, "long inner dimension, added in pieces");
    kvl_tensor_free(a);
    kvl_tensor_free(b);
    a = randn(2, none);
    b = randn(2, none_b);
    CHECK(kvl_matmul(&c, a, b, &err) == KVL_OK && kvl_tensor_f32(c)[5] == 0, "inner size 0");
    kvl_tensor_free(a);
    kvl_tensor_free(b);
    kvl_tensor_free(c);
    a = randn(2, s32);
    b = randn(2, s45);
    CHECK(kvl_matmul(&c, a, b, &err) == KVL_EINVAL && !c &&
              strcmp(err.msg, "matmul: inner sizes differ: {3, 2} x {4, 5}") == 0,
          "%s", err.msg);
    kvl_tensor *v2 = randn(1, two), *v3 = randn(1, three), *v5 = randn(1, five);
    CHECK(kvl_matmul(&c, a, v2, &err) == KVL_OK && c->ndim == 1 && c->shape[0] == 3,
          "matrix, vector");
    float want = kvl_tensor_f32(a)[0] * kvl_tensor_f32(v2)[0] +
                 kvl_tensor_f32(a)[1] * kvl_tensor_f32(v2)[1];
    CHECK(fabsf(kvl_tensor_f32(c)[0] - want) < 1e-6f, "matrix, vector");
    kvl_tensor_free(c);
    CHECK(kvl_matmul(&c, v3, a, &err) == KVL_OK && c->ndim == 1 && c->shape[0] == 2,
          "vector, matrix");
    kvl_tensor_free(c);
    CHECK(kvl_matmul(&c, v3, v3, &err) == KVL_OK && c->ndim == 0, "vector, vector");
    kvl_tensor_free(c);
    CHECK(kvl_matmul(&c, v3, v5, &err) == KVL_EINVAL && !c, "%s", err.msg);
    kvl_tensor *all[] = {a, b, v2, v3, v5};
    for (int i = 0; i < 5; i++)
        kvl_tensor_free(all[i]);
}

/* --- random numbers -------------------------------------------------------------------------- */

static void test_random(void) {
    /* known answers published with the Random123 library */
    static const struct {
        uint64_t low, high, key;
        uint32_t out[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88,
         0x0370734413198a2e,
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        kvl_philox(out, known[i].key, known[i].low, known[i].high);
        CHECK(memcmp(out, known[i].out, sizeof out) == 0, "philox %d: %08x", i, out[0]);
    }
    enum { N = 200000 };
    int64_t shape[1] = {N}, shorter[1] = {1001};
    kvl_tensor *u, *n, *k, *p, *s;
    kvl_random_uniform(&u, 1, shape, 7, -2, 4, &err);
    kvl_random_normal(&n, 1, shape, 7, 1, 3, &err);
    kvl_random_integer(&k, 1, shape, 7, -3, 6, &err);
    kvl_random_normal(&s, 1, shorter, 7, 1, 3, &err);
    CHECK(memcmp(kvl_tensor_data(s), kvl_tensor_data(n), 1001 * 4) == 0,
          "an element depends on its index");
    double mean_u = 0, mean_n = 0, var_n = 0, next = 0;
    int64_t seen[10] = {0};
    bool inside = true;
    for (int64_t i = 0; i < N; i++) {
        double x = kvl_tensor_f32(n)[i] - 1.0;
        inside = inside && kvl_tensor_f32(u)[i] >= -2 && kvl_tensor_f32(u)[i] < 4;
        mean_u += kvl_tensor_f32(u)[i];
        mean_n += x;
        var_n += x * x;
        if (i > 0) next += x * (kvl_tensor_f32(n)[i - 1] - 1.0);
        int32_t v = kvl_tensor_i32(k)[i];
        CHECK(v >= -3 && v <= 6, "integer %d", v);
        if (v >= -3 && v <= 6) seen[v + 3]++;
    }
    /* five standard errors */
    CHECK(inside && fabs(mean_u / N - 1) < 5 * 1.7321 / sqrt(N), "uniform mean %g", mean_u / N);
    CHECK(fabs(mean_n / N) < 5 * 3 / sqrt(N), "normal mean %g", mean_n / N);
    CHECK(fabs(var_n / N - 9) < 5 * 9 * sqrt(2.0 / N), "normal variance %g", var_n / N);
    CHECK(fabs(next / N) < 5 * 9 / sqrt(N), "neighbours %g", next / N);
    for (int i = 0; i < 10; i++)
        CHECK(fabs((double)seen[i] - N / 10.0) < 5 * sqrt(N * 0.09), "%d: %lld", i,
              (long long)seen[i]);
    kvl_random_permutation(&p, 1000, 3, &err);
    bool once[1000] = {false};
    int fixed = 0;
    for (int i = 0; i < 1000; i++) {
        int32_t v = kvl_tensor_i32(p)[i];
        CHECK(v >= 0 && v < 1000 && !once[v], "a permutation");
        if (v >= 0 && v < 1000) once[v] = true;
        fixed += v == i;
    }
    CHECK(fixed < 10, "%d stayed in place", fixed);
    kvl_tensor *all[] = {u, n, k, p, s}, *bad;
    for (int i = 0; i < 5; i++)
        kvl_tensor_free(all[i]);
    CHECK(kvl_random_uniform(&bad, 1, shape, 1, 2, 1, &err) == KVL_EINVAL && !bad,
          "low above high");
    CHECK(kvl_random_uniform(&bad, 1, shape, 1, 0, NAN, &err) == KVL_EINVAL && !bad, "NaN");
    CHECK(kvl_random_normal(&bad, 1, shape, 1, 0, -1, &err) == KVL_EINVAL && !bad, "deviation -1");
    CHECK(kvl_random_integer(&bad, 1, shape, 1, 5, 4, &err) == KVL_EINVAL && !bad,
          "low above high");
    CHECK(kvl_random_permutation(&bad, -1, 1, &err) == KVL_EINVAL && !bad, "-1 elements");
}

/* --- threads, cancellation, memory ----------------------------------------------------------- */

static uint64_t hash(uint64_t h, const kvl_tensor *t) {
    kvl_tensor *c;
    kvl_tensor_contiguous(&c, t, &err);
    const uint32_t *bits = kvl_tensor_data(c);
    for (int64_t i = 0; i < kvl_tensor_numel(c); i++)
        h = (h ^ bits[i]) * 1099511628211u;
    kvl_tensor_free(c);
    return h;
}

/* Every kind of loop once, on operands of several tasks. */
static uint64_t everything(kvl_status *status) {
    int64_t shape[2] = {300, 700}, row[2] = {1, 700}, ids_shape[2] = {300, 40};
    uint64_t h = 14695981039346656037u;
    kvl_tensor *t[16] = {NULL};
    kvl_status s = kvl_random_normal(&t[0], 2, shape, 11, 0, 1, &err);
    if (!s) s = kvl_random_uniform(&t[1], 2, row, 12, -1, 1, &err);
    if (!s) s = kvl_binary(&t[2], KVL_MUL, t[0], t[1], &err);
    if (!s) s = kvl_reduce(&t[3], KVL_SUM, t[0], -1, false, &err);
    if (!s) s = kvl_reduce(&t[4], KVL_VAR, t[0], 0, false, &err);
    if (!s) s = kvl_reduce(&t[5], KVL_MEAN, t[0], 1, false, &err);
    if (!s) s = kvl_softmax(&t[6], t[0], 0, &err);
    if (!s) s = kvl_logsumexp(&t[7], t[0], 1, &err);
    if (!s) s = kvl_tensor_topk(&t[8], &t[9], t[0], 50, KVL_BY_SCORE, &err);
    if (!s) s = kvl_tensor_transpose(&t[10], t[0], 0, 1, &err);
    if (!s) s = kvl_matmul(&t[11], t[10], t[0], &err);
    if (!s) s = kvl_random_integer(&t[12], 2, ids_shape, 13, 0, 699, &err);
    if (!s) s = kvl_gather(&t[13], t[0], 1, t[12], &err);
    if (!s) s = kvl_scatter(&t[14], t[0], 1, t[12], t[13], true, &err);
    if (!s) s = kvl_where(&t[15], t[1], t[0], t[2], &err);
    kvl_alloc_fail_after(-1); /* what follows is the test's own */
    for (int i = 0; i < 16; i++) {
        if (!s) h = hash(h, t[i]);
        kvl_tensor_free(t[i]);
    }
    *status = s;
    return h;
}

static void test_threads(void) {
    kvl_status status;
    uint64_t first = 0;
    for (int threads = 1; threads <= 7; threads += 2) {
        kvl_set_threads(threads, &err);
        uint64_t h = everything(&status);
        CHECK(status == KVL_OK, "%s", err.msg);
        if (threads == 1) first = h;
        CHECK(h == first, "%d threads change the result", threads);
    }
    kvl_set_threads(0, &err);
}

static void test_out_of_memory(void) {
    size_t before = kvl_live_bytes();
    kvl_status status = KVL_ENOMEM;
    int n = 0;
    for (; status != KVL_OK && n < 300; n++) {
        kvl_alloc_fail_after(n);
        everything(&status);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || status == KVL_ENOMEM, "%d: %s", n, err.msg);
        CHECK(kvl_live_bytes() == before, "leak after %d allocations", n);
    }
    CHECK(status == KVL_OK && n > 30, "the sweep ended after %d", n);
}

static moment asked;

static void on_alarm(int signo) {
    (void)signo;
    asked = now();
    kvl_cancel();
}

static kvl_status long_work(kvl_tensor **out, int kind, const kvl_tensor *m, const kvl_tensor *d) {
    switch (kind) {
    case 0: return kvl_matmul(out, d, d, &err);
    case 1: return kvl_softmax(out, m, 0, &err);
    case 2: return kvl_unary(out, KVL_TANH, m, &err);
    case 3: return kvl_tensor_topk(out, NULL, m, 700, KVL_BY_INDEX, &err);
    default: return kvl_random_permutation(out, 30000000, 1, &err);
    }
}

/* Work goes on until the request comes after 0.1 s; it has to end within 0.2 s of it.
 * The best of a few attempts counts, as the machine may be busy. */
static void test_cancel(void) {
    signal(SIGALRM, on_alarm);
    int64_t big[2] = {3000, 3000}, deep[2] = {6000, 6000};
    kvl_tensor *m, *d, *out;
    kvl_random_normal(&m, 2, big, 1, 0, 1, &err);
    kvl_random_normal(&d, 2, deep, 1, 0, 1, &err);
    for (int kind = 0; kind < 5; kind++) {
        double best = 1e9;
        for (int attempt = 0; attempt < 5 && best >= 0.2; attempt++) {
            kvl_status status = KVL_OK;
            moment start = now();
            ualarm(100000, 0);
            while (status == KVL_OK && seconds_since(start) < 20) {
                status = long_work(&out, kind, m, d);
                kvl_tensor_free(out);
            }
            double late = seconds_since(asked);
            CHECK(status == KVL_ECANCEL && out == NULL, "%d: not cancelled", kind);
            if (late < best) best = late;
            kvl_cancel_clear();
        }
        CHECK(best < 0.2 * CHECK_SLOWER, "%d: stopped %.3f s after the request", kind, best);
    }
    CHECK(kvl_unary(&out, KVL_NEG, m, &err) == KVL_OK, "works again");
    kvl_tensor_free(out);
    kvl_tensor_free(m);
    kvl_tensor_free(d);
}

int main(void) {
    kvl_blas_single_thread();
    test_matmul();
    test_random();
    test_threads();
    test_out_of_memory();
    test_cancel();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leaked", kvl_live_bytes());
    return check_done();
}

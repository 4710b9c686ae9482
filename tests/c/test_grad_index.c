/* test_grad_index.c - the KL loss of the indexer: the definition against central differences of its
 * own loss, whose scores are those of kvl_index_ref; the kernel against the definition. */
#include "check.h"
#include "rand.h"
#include "slope.h"

#include "kvlab/index_grad.h"
#include "kvlab/parallel.h"

#include <string.h>

typedef struct row {
    const char *name;
    int batch, queries, heads, width, rows, pos0, ratio, pool; /* pool: names per query, or 0 */
    double bound;
} row;

static const row table[] = {
    {"all, ratio 4", 2, 70, 4, 16, 17, 0, 4, 0, 3e-6},
    {"all, ratio 1", 1, 90, 8, 32, 90, 0, 1, 0, 3e-6},
    {"several tiles of keys", 1, 300, 3, 8, 300, 0, 1, 0, 3e-6},
    {"strips", 2, 300, 2, 16, 150, 0, 2, 0, 3e-6},
    {"later positions", 1, 20, 4, 16, 30, 41, 2, 0, 3e-6},
    {"many heads", 1, 12, 64, 24, 12, 0, 1, 0, 3e-6},
    {"list", 2, 60, 4, 16, 15, 0, 4, 5, 3e-6},
    {"long pool, strips", 1, 200, 8, 16, 400, 300, 1, 150, 3e-6},
    {"one head, one channel", 2, 9, 1, 1, 9, 0, 1, 0, 3e-6},
    {"one entry", 1, 9, 2, 8, 1, 0, 4, 0, 3e-6},
    {"no entries", 1, 9, 2, 8, 0, 0, 4, 0, 3e-6},
    {"no queries", 1, 0, 2, 8, 4, 0, 4, 0, 3e-6},
};

typedef struct problem {
    kvl_index_args a;
    kvl_index_grad_args g;
    float *q, *w, *key, *target, *factor, *loss, *d_q, *d_w, *d_key;
    int32_t *pool;
    int64_t n_q, n_w, n_key, queries, n;
} problem;

static float *zeros(int64_t n) {
    return calloc((size_t)(n + 1), sizeof(float));
}

static void make(problem *p, const row *r) {
    int64_t queries = p->queries = (int64_t)r->batch * r->queries, width = r->width;
    p->n = r->pool > 0 ? r->pool : r->rows;
    p->n_w = queries * r->heads, p->n_q = p->n_w * width, p->n_key = r->batch * r->rows * width;
    p->q = rand_floats(p->n_q), p->w = rand_floats(p->n_w), p->key = rand_floats(p->n_key);
    p->target = rand_floats(queries * p->n), p->factor = rand_floats(queries);
    p->loss = zeros(queries), p->d_q = zeros(p->n_q), p->d_w = zeros(p->n_w);
    p->d_key = zeros(p->n_key);
    p->pool = malloc((size_t)(queries * p->n + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < queries; i++) {
        double sum = 0;
        for (int64_t j = 0; j < p->n; j++) {
            float *t = &p->target[i * p->n + j];
            *t = i % 7 == 3 || *t < 0 ? 0 : *t; /* some queries have nothing to learn from */
            sum += (double)*t;
            p->pool[i * p->n + j] = (int32_t)rand_int(r->rows + 1) - 1;
        }
        for (int64_t j = 0; j < p->n && sum > 0; j++)
            p->target[i * p->n + j] /= (float)sum;
    }
    p->a = (kvl_index_args){.q = p->q, .w = p->w, .rows = r->rows, .q_pos0 = r->pos0};
    p->a.key = (kvl_rows){p->key, r->rows * width, width, 0}, p->a.ratio = r->ratio;
    p->a.q_step_b = r->queries * r->heads * width, p->a.q_step_t = r->heads * width;
    p->a.q_step_h = width, p->a.w_step_b = r->queries * r->heads, p->a.w_step_t = r->heads;
    p->a.batch = r->batch, p->a.queries = r->queries, p->a.heads = r->heads, p->a.width = width;
    p->a.pool = r->pool > 0 ? p->pool : NULL, p->a.pool_size = r->pool;
    p->g = (kvl_index_grad_args){.index = &p->a, .target = p->target, .factor = p->factor};
    p->g.loss = p->loss, p->g.d_q = p->d_q, p->g.d_w = p->d_w;
    p->g.d_q_step_b = p->a.q_step_b, p->g.d_q_step_t = p->a.q_step_t, p->g.d_q_step_h = width;
    p->g.d_w_step_b = p->a.w_step_b, p->g.d_w_step_t = p->a.w_step_t;
    p->g.d_key = (kvl_rows_grad){p->d_key, r->rows * width, width, 0};
}

static void drop(problem *p) {
    free(p->q), free(p->w), free(p->key), free(p->target), free(p->factor), free(p->loss);
    free(p->d_q), free(p->d_w), free(p->d_key), free(p->pool);
}

static double error_of(const float *got, const double *want, int64_t n) {
    double e = 0, largest = 0.1;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        e = worse(e, (double)got[i], want[i], largest);
    return e;
}

static void run(problem *p, int threads, float start) {
    kvl_error err = {0, ""};
    for (int64_t i = 0; i < p->n_q; i++)
        p->d_q[i] = start;
    for (int64_t i = 0; i < p->n_w; i++)
        p->d_w[i] = start;
    for (int64_t i = 0; i < p->n_key; i++)
        p->d_key[i] = start;
    kvl_set_threads(threads, NULL);
    CHECK(!kvl_index_grad(&p->g, &err), "%s", err.msg);
    for (int64_t i = 0; i < p->n_q; i++)
        p->d_q[i] -= start;
    for (int64_t i = 0; i < p->n_w; i++)
        p->d_w[i] -= start;
    for (int64_t i = 0; i < p->n_key; i++)
        p->d_key[i] -= start;
}

static void test_table(void) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const row *r = &table[i];
        problem p;
        make(&p, r);
        double *loss = calloc((size_t)p.queries + 1, 8), *d_q = calloc((size_t)p.n_q + 1, 8);
        double *d_w = calloc((size_t)p.n_w + 1, 8), *d_key = calloc((size_t)p.n_key + 1, 8);
        float *copy = malloc((size_t)(p.n_key + p.n_q + 1) * sizeof *copy);
        kvl_error err = {0, ""};
        CHECK(!kvl_index_grad_ref(loss, d_q, d_w, d_key, &p.g, &err), "%s", err.msg);
        run(&p, 2, 0.0f);
        double e[4] = {error_of(p.loss, loss, p.queries), error_of(p.d_q, d_q, p.n_q),
                       error_of(p.d_w, d_w, p.n_w), error_of(p.d_key, d_key, p.n_key)};
        for (int k = 0; k < 4; k++)
            CHECK(e[k] <= r->bound, "%s: %s: error %g", r->name,
                  (const char *[]){"loss", "d_q", "d_w", "d_key"}[k], e[k]);
        memcpy(copy, p.d_q, (size_t)p.n_q * sizeof *copy);
        memcpy(copy + p.n_q, p.d_key, (size_t)p.n_key * sizeof *copy);
        run(&p, 1, 0.0f);
        CHECK(!memcmp(copy, p.d_q, (size_t)p.n_q * sizeof *copy) &&
                  !memcmp(copy + p.n_q, p.d_key, (size_t)p.n_key * sizeof *copy),
              "%s: threads", r->name);
        run(&p, 2, 64.0f);
        double added = fmax(error_of(p.d_q, d_q, p.n_q), error_of(p.d_key, d_key, p.n_key));
        CHECK(fmax(added, error_of(p.d_w, d_w, p.n_w)) < 2e-2, "%s: not added", r->name);
        free(loss), free(d_q), free(d_w), free(d_key), free(copy);
        drop(&p);
    }
}

/* --- the definition --------------------------------------------------------------------------- */

/* Sum of factor * loss, from the scores of the forward definition. */
static double objective(void *ctx) {
    problem *p = ctx;
    double *scores = malloc((size_t)(p->queries * p->a.rows + 1) * sizeof *scores), all = 0;
    kvl_index_ref(scores, &p->a, NULL);
    for (int64_t i = 0; i < p->queries; i++) {
        double sum = 0, total = 0, loss = 0;
        for (int64_t k = 0; k < p->n; k++) {
            int64_t s = p->a.pool ? p->a.pool[i * p->n + k] : k;
            if (s >= 0) sum += exp(scores[i * p->a.rows + s]);
        }
        for (int64_t k = 0; k < p->n; k++) {
            int64_t s = p->a.pool ? p->a.pool[i * p->n + k] : k;
            double t = (double)p->target[i * p->n + k];
            if (s < 0 || scores[i * p->a.rows + s] == -INFINITY || t == 0) continue;
            total += t;
            loss += t * (log(t) - (scores[i * p->a.rows + s] - log(sum)));
        }
        all += (double)p->factor[i] * (total > 0 ? loss : 0);
    }
    free(scores);
    return all;
}

static void test_differences(void) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        problem p;
        const row *r = &table[i];
        if (r->queries > 100) continue;
        make(&p, r);
        double *d_q = calloc((size_t)p.n_q + 1, 8), *d_w = calloc((size_t)p.n_w + 1, 8);
        double *d_key = calloc((size_t)p.n_key + 1, 8), *loss = calloc((size_t)p.queries + 1, 8);
        double sum = 0;
        CHECK(!kvl_index_grad_ref(loss, d_q, d_w, d_key, &p.g, NULL), "failed");
        for (int64_t k = 0; k < p.queries; k++)
            sum += loss[k] * (double)p.factor[k];
        CHECK(fabs(sum - objective(&p)) < 1e-9, "%s: loss %g, not %g", r->name, sum, objective(&p));
        /* Where a product changes its sign within the step there is no derivative: a short step
         * makes that rare, and a few of the points may be such. */
        int points = 0, wrong = 0;
        struct {
            float *x;
            double *d;
            int64_t n;
        } parts[] = {{p.q, d_q, p.n_q}, {p.w, d_w, p.n_w}, {p.key, d_key, p.n_key}};
        for (int part = 0; part < 3; part++)
            for (int k = 0; k < 30 && parts[part].n > 0; k++, points++) {
                int64_t at = rand_int(parts[part].n);
                double want = slope_once(objective, &p, parts[part].x + at, 0x1p-13f);
                wrong += !(fabs(parts[part].d[at] - want) <= 1e-5);
            }
        CHECK(wrong <= 2, "%s: definition and differences differ at %d of %d points", r->name,
              wrong, points);
        free(d_q), free(d_w), free(d_key), free(loss);
        drop(&p);
    }
}

/* --- by hand, and bad input ------------------------------------------------------------------- */

static void test_by_hand(void) {
    /* Two entries, one head of one channel: I = (1 * 1, 1 * 0) -> dI = softmax - p. */
    float q = 1, w = 1, key[2] = {1, 0}, target[2] = {0.25f, 0.75f}, loss, d_w = 0, d_q = 0;
    float d_key[2] = {0, 0};
    kvl_index_args a = {.q = &q, .w = &w, .key = {key, 2, 1, 0}, .rows = 2, .q_pos0 = 1};
    a.ratio = 1, a.batch = a.queries = a.heads = a.width = 1;
    kvl_index_grad_args g = {.index = &a, .target = target, .loss = &loss, .d_q = &d_q};
    g.d_w = &d_w, g.d_key = (kvl_rows_grad){d_key, 2, 1, 0};
    CHECK(!kvl_index_grad(&g, NULL), "failed");
    double s = exp(1) / (exp(1) + 1);
    CHECK(fabs(loss - (0.25 * log(0.25 / s) + 0.75 * log(0.75 / (1 - s)))) < 1e-6, "%g", loss);
    CHECK(fabs(d_w - (s - 0.25)) < 1e-6 && fabs(d_q - (s - 0.25)) < 1e-6, "%g %g", d_w, d_q);
    CHECK(fabs(d_key[0] - (s - 0.25)) < 1e-6 && d_key[1] == 0, "%g %g: 0 is not above 0", d_key[0],
          d_key[1]);
    target[0] = (float)s, target[1] = (float)(1 - s);
    d_w = 0;
    kvl_index_grad(&g, NULL);
    CHECK(fabs(loss) < 1e-6 && fabs(d_w) < 1e-6, "a perfect indexer: loss %g, d_w %g", loss, d_w);
    target[0] = NAN;
    kvl_index_grad(&g, NULL);
    CHECK(isnan(loss), "a NaN in the target must be seen, loss %g", loss);
}

static void test_bad_input(void) {
    problem p;
    kvl_error err;
    make(&p, &table[6]);
    p.pool[7] = 15;
    CHECK(kvl_index_grad(&p.g, &err) == KVL_EINVAL && strstr(err.msg, "entry 15"), "%s", err.msg);
    p.pool[7] = 0;
    p.g.target = NULL;
    CHECK(kvl_index_grad(&p.g, &err) == KVL_EINVAL && strstr(err.msg, "target"), "%s", err.msg);
    p.g.target = p.target, p.g.d_key.step_s = 3;
    CHECK(kvl_index_grad(&p.g, &err) == KVL_EINVAL && strstr(err.msg, "share"), "%s", err.msg);
    p.g.d_key.step_s = 16, p.a.ratio = 0;
    CHECK(kvl_index_grad(&p.g, &err) == KVL_EINVAL, "ratio 0");
    p.a.ratio = 4;
    kvl_cancel();
    CHECK(kvl_index_grad(&p.g, &err) == KVL_ECANCEL, "cancel");
    kvl_cancel_clear();
    for (int n = 0; n < 4; n++) {
        kvl_alloc_fail_after(n);
        kvl_status status = kvl_index_grad(&p.g, &err);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || status == KVL_ENOMEM, "%d allocations: %d", n, status);
    }
    p.g.d_q = p.g.d_w = p.g.loss = p.g.d_key.p = NULL;
    CHECK(!kvl_index_grad(&p.g, &err), "%s", err.msg);
    drop(&p);
}

int main(void) {
    test_table();
    test_differences();
    test_by_hand();
    test_bad_input();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}

/* test_grad_attend.c - gradients of attention: the definition against central differences of
 * kvl_attend_ref, the kernel against the definition; attention mass against its definition. */
#include "check.h"
#include "rand.h"
#include "slope.h"

#include "kvlab/attend_grad.h"
#include "kvlab/parallel.h"

#include <string.h>

enum { SOURCES = 3 };

/* One source of a problem: rows [B, rows, kv_heads, width], key at column 0, value at `value0`. */
typedef struct spec {
    kvl_see see;
    int rows, kv_heads, width, value0, window, ratio, k, pos0;
} spec;

typedef struct row {
    const char *name;
    int batch, queries, heads, kw, vw, pos0, sink;
    spec s[SOURCES];
    int twice; /* source 1 uses the rows and the gradients of source 0 */
    double bound;
} row;

typedef struct problem {
    kvl_attend_args a;
    kvl_attend_grads g;
    kvl_source s[SOURCES];
    float *q, *out, *lse, *sink, *d_out, *d_q, *d_sink, *rows[SOURCES], *d_rows[SOURCES];
    int32_t *list[SOURCES];
    int64_t n_q, n_out, n_rows[SOURCES];
} problem;

static float *filled(int64_t n, float x) {
    float *p = malloc((size_t)(n + 1) * sizeof *p);
    for (int64_t i = 0; i < n; i++)
        p[i] = x;
    return p;
}

static void add_source(problem *p, const row *r, int i) {
    const spec *t = &r->s[i];
    kvl_source *s = &p->s[i];
    int from = r->twice && i == 1 ? 0 : i;
    int64_t step = t->kv_heads * t->width;
    p->n_rows[i] = r->batch * t->rows * step;
    if (from == i) {
        p->rows[i] = rand_floats(p->n_rows[i]);
        p->d_rows[i] = filled(p->n_rows[i], 0.0f);
    }
    *s = (kvl_source){.rows = t->rows, .kv_heads = t->kv_heads, .see = t->see, .pos0 = t->pos0};
    s->window = t->window, s->ratio = t->ratio;
    s->key = (kvl_rows){p->rows[from], t->rows * step, step, t->width};
    s->value = (kvl_rows){p->rows[from] + t->value0, t->rows * step, step, t->width};
    p->g.d_key[i] = (kvl_rows_grad){p->d_rows[from], t->rows * step, step, t->width};
    p->g.d_value[i] = (kvl_rows_grad){p->d_rows[from] + t->value0, t->rows * step, step, t->width};
    if (t->see == KVL_SEE_LIST) {
        int64_t n = (int64_t)r->batch * r->queries * t->k;
        p->list[i] = malloc((size_t)(n + 1) * sizeof(int32_t));
        for (int64_t j = 0; j < n; j++)
            p->list[i][j] = t->rows > 0 && rand_unit() < 0.8 ? (int32_t)rand_int(t->rows) : -1;
        s->list = p->list[i], s->k = t->k;
    }
    p->a.n_sources++;
}

static void make(problem *p, const row *r) {
    int64_t B = r->batch, T = r->queries, H = r->heads;
    memset(p, 0, sizeof *p);
    p->n_q = B * T * H * r->kw, p->n_out = B * T * H * r->vw;
    p->q = rand_floats(p->n_q), p->d_out = rand_floats(p->n_out), p->sink = rand_floats(H);
    p->out = filled(p->n_out, 0), p->lse = filled(B * T * H, 0);
    p->d_q = filled(p->n_q, 0), p->d_sink = filled(H, 0);
    p->a = (kvl_attend_args){.out = p->out, .lse = p->lse, .q = p->q, .sources = p->s};
    p->a.sink = r->sink ? p->sink : NULL;
    p->a.out_step_b = T * H * r->vw, p->a.out_step_t = H * r->vw, p->a.out_step_h = r->vw;
    p->a.q_step_b = T * H * r->kw, p->a.q_step_t = H * r->kw, p->a.q_step_h = r->kw;
    p->a.scale = 1.0f / sqrtf((float)r->kw), p->a.q_pos0 = r->pos0;
    p->a.batch = B, p->a.queries = T, p->a.heads = H;
    p->a.key_width = r->kw, p->a.value_width = r->vw;
    p->g = (kvl_attend_grads){.d_out = p->d_out, .d_q = p->d_q, .d_sink = p->d_sink};
    p->g.d_out_step_b = T * H * r->vw, p->g.d_out_step_t = H * r->vw, p->g.d_out_step_h = r->vw;
    p->g.d_q_step_b = T * H * r->kw, p->g.d_q_step_t = H * r->kw, p->g.d_q_step_h = r->kw;
    for (int i = 0; i < SOURCES && r->s[i].kv_heads > 0; i++)
        add_source(p, r, i);
}

static void drop(problem *p) {
    free(p->q), free(p->out), free(p->lse), free(p->sink), free(p->d_out), free(p->d_q);
    free(p->d_sink);
    for (int i = 0; i < SOURCES; i++)
        free(p->rows[i]), free(p->d_rows[i]), free(p->list[i]);
}

/* The gradients of the definition, with key and value added into rows like those of the problem. */
typedef struct wanted {
    double *d_q, *d_sink, *d_rows[SOURCES];
} wanted;

static void want(wanted *w, const problem *p) {
    double *d_key[KVL_MAX_SOURCES] = {NULL}, *d_value[KVL_MAX_SOURCES] = {NULL};
    int64_t kw = p->a.key_width, vw = p->a.value_width;
    kvl_error err = {0, ""};
    w->d_q = calloc((size_t)p->n_q + 1, sizeof(double));
    w->d_sink = calloc((size_t)p->a.heads, sizeof(double));
    for (int i = 0; i < p->a.n_sources; i++) {
        int64_t n = p->a.batch * p->s[i].rows * p->s[i].kv_heads;
        d_key[i] = calloc((size_t)(n * kw) + 1, sizeof(double));
        d_value[i] = calloc((size_t)(n * vw) + 1, sizeof(double));
    }
    CHECK(!kvl_attend_grad_ref(w->d_q, w->d_sink, d_key, d_value, &p->g, &p->a, &err), "%s",
          err.msg);
    for (int i = 0; i < SOURCES; i++)
        w->d_rows[i] = p->d_rows[i] ? calloc((size_t)p->n_rows[i] + 1, sizeof(double)) : NULL;
    for (int i = 0; i < p->a.n_sources; i++) {
        int64_t n = p->a.batch * p->s[i].rows * p->s[i].kv_heads, width = p->s[i].key.step_h;
        int64_t value0 = p->s[i].value.p - p->s[i].key.p;
        double *to = w->d_rows[p->d_rows[i] ? i : 0];
        for (int64_t j = 0; j < n; j++) {
            for (int64_t c = 0; c < kw; c++)
                to[j * width + c] += d_key[i][j * kw + c];
            for (int64_t c = 0; c < vw; c++)
                to[j * width + value0 + c] += d_value[i][j * vw + c];
        }
        free(d_key[i]), free(d_value[i]);
    }
}

static void drop_wanted(wanted *w) {
    free(w->d_q), free(w->d_sink);
    for (int i = 0; i < SOURCES; i++)
        free(w->d_rows[i]);
}

static const row table[] = {
    {"MHA causal", 2, 70, 3, 16, 16, 0, 0, {{KVL_SEE_CAUSAL, 70, 3, 32, 16, 0, 0, 0, 0}}, 0, 4e-6},
    {"MHA long, strips",
     1,
     520,
     2,
     24,
     8,
     0,
     1,
     {{KVL_SEE_CAUSAL, 520, 2, 32, 24, 0, 0, 0, 0}},
     0,
     4e-6},
    {"GQA", 2, 37, 6, 12, 20, 0, 0, {{KVL_SEE_CAUSAL, 37, 2, 32, 12, 0, 0, 0, 0}}, 0, 4e-6},
    {"MQA K = V, strips",
     1,
     300,
     8,
     32,
     32,
     0,
     1,
     {{KVL_SEE_CAUSAL, 300, 1, 32, 0, 0, 0, 0, 0}},
     0,
     8e-6},
    {"MLA absorbed", 1, 45, 4, 24, 16, 0, 0, {{KVL_SEE_CAUSAL, 45, 1, 24, 0, 0, 0, 0, 0}}, 0, 4e-6},
    {"window", 2, 150, 2, 16, 16, 0, 1, {{KVL_SEE_WINDOW, 150, 2, 32, 16, 7, 0, 0, 0}}, 0, 4e-6},
    {"window of one", 1, 20, 2, 5, 3, 0, 1, {{KVL_SEE_WINDOW, 20, 2, 8, 5, 1, 0, 0, 0}}, 0, 4e-6},
    {"wide window, later positions",
     1,
     40,
     3,
     8,
     8,
     30,
     0,
     {{KVL_SEE_WINDOW, 70, 1, 8, 0, 50, 0, 0, 0}},
     0,
     4e-6},
    {"all", 2, 9, 2, 16, 8, 0, 0, {{KVL_SEE_ALL, 140, 2, 24, 16, 0, 0, 0, 0}}, 0, 4e-6},
    {"HCA",
     2,
     75,
     4,
     16,
     16,
     0,
     1,
     {{KVL_SEE_WINDOW, 75, 1, 16, 0, 10, 0, 0, 0}, {KVL_SEE_BLOCKS, 9, 1, 16, 0, 0, 8, 0, 0}},
     0,
     4e-6},
    {"CSA",
     2,
     60,
     4,
     16,
     16,
     0,
     1,
     {{KVL_SEE_WINDOW, 60, 1, 16, 0, 8, 0, 0, 0}, {KVL_SEE_LIST, 15, 1, 16, 0, 0, 0, 6, 0}},
     0,
     4e-6},
    {"CSA of many heads, strips",
     1,
     290,
     16,
     16,
     16,
     0,
     1,
     {{KVL_SEE_WINDOW, 290, 1, 16, 0, 8, 0, 0, 0}, {KVL_SEE_LIST, 70, 1, 16, 0, 0, 0, 150, 0}},
     0,
     8e-6},
    {"list per kv head",
     1,
     30,
     6,
     8,
     12,
     0,
     0,
     {{KVL_SEE_LIST, 50, 3, 20, 8, 0, 0, 9, 0}},
     0,
     4e-6},
    {"list without names",
     1,
     10,
     8,
     8,
     8,
     0,
     1,
     {{KVL_SEE_LIST, 0, 1, 8, 0, 0, 0, 3, 0}, {KVL_SEE_CAUSAL, 10, 1, 8, 0, 0, 0, 0, 0}},
     0,
     4e-6},
    {"one row buffer twice",
     1,
     40,
     4,
     8,
     8,
     0,
     0,
     {{KVL_SEE_WINDOW, 40, 1, 8, 0, 5, 0, 0, 0}, {KVL_SEE_LIST, 40, 1, 8, 0, 0, 0, 7, 0}},
     1,
     4e-6},
    {"kv heads of two kinds",
     1,
     33,
     12,
     8,
     8,
     0,
     1,
     {{KVL_SEE_CAUSAL, 33, 3, 16, 8, 0, 0, 0, 0}, {KVL_SEE_ALL, 5, 2, 8, 0, 0, 0, 0, 0}},
     0,
     4e-6},
    {"nothing visible, no sink",
     1,
     12,
     2,
     8,
     8,
     0,
     0,
     {{KVL_SEE_BLOCKS, 3, 1, 8, 0, 0, 8, 0, 0}},
     0,
     1e-5},
    {"one query", 1, 1, 2, 8, 8, 20, 1, {{KVL_SEE_CAUSAL, 21, 2, 16, 8, 0, 0, 0, 0}}, 0, 4e-6},
    {"widths of one", 2, 11, 2, 1, 1, 0, 1, {{KVL_SEE_CAUSAL, 11, 2, 2, 1, 0, 0, 0, 0}}, 0, 4e-6},
    {"no rows", 1, 5, 2, 8, 8, 0, 1, {{KVL_SEE_CAUSAL, 0, 1, 8, 0, 0, 0, 0, 0}}, 0, 4e-6},
    {"no sources", 1, 5, 2, 8, 8, 0, 1, {{0}}, 0, 4e-6},
    {"no queries", 1, 0, 2, 8, 8, 0, 1, {{KVL_SEE_CAUSAL, 9, 1, 8, 0, 0, 0, 0, 0}}, 0, 4e-6},
};

static double error_of(const float *got, const double *want_, int64_t n) {
    double e = 0, largest = 0.1;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want_[i]));
    for (int64_t i = 0; i < n; i++)
        e = worse(e, (double)got[i], want_[i], largest);
    return e;
}

/* Runs the kernel on gradients that start at `start`; leaves what was added. */
static void run(problem *p, int threads, float start) {
    kvl_error err = {0, ""};
    for (int64_t i = 0; i < p->n_q; i++)
        p->d_q[i] = start;
    for (int64_t i = 0; i < p->a.heads; i++)
        p->d_sink[i] = start;
    for (int s = 0; s < SOURCES; s++)
        for (int64_t i = 0; p->d_rows[s] && i < p->n_rows[s]; i++)
            p->d_rows[s][i] = start;
    kvl_set_threads(threads, NULL);
    CHECK(!kvl_attend(&p->a, &err), "%s", err.msg);
    CHECK(!kvl_attend_grad(&p->g, &p->a, &err), "%s", err.msg);
    for (int64_t i = 0; i < p->n_q; i++)
        p->d_q[i] -= start;
    for (int64_t i = 0; i < p->a.heads; i++)
        p->d_sink[i] -= start;
    for (int s = 0; s < SOURCES; s++)
        for (int64_t i = 0; p->d_rows[s] && i < p->n_rows[s]; i++)
            p->d_rows[s][i] -= start;
}

static void test_table(void) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const row *r = &table[i];
        problem p;
        wanted w;
        make(&p, r);
        want(&w, &p);
        run(&p, 2, 0.0f);
        double e = error_of(p.d_q, w.d_q, p.n_q);
        CHECK(e <= r->bound, "%s: d_q: error %g", r->name, e);
        e = error_of(p.d_sink, w.d_sink, p.a.heads);
        CHECK(e <= r->bound, "%s: d_sink: error %g", r->name, e);
        for (int s = 0; s < SOURCES; s++)
            if (p.d_rows[s]) {
                e = error_of(p.d_rows[s], w.d_rows[s], p.n_rows[s]);
                CHECK(e <= r->bound, "%s: rows of source %d: error %g", r->name, s, e);
            }
        /* The same bits on one thread. */
        float *d_q = malloc((size_t)(p.n_q + 1) * sizeof *d_q), *d_rows[SOURCES];
        memcpy(d_q, p.d_q, (size_t)p.n_q * sizeof *d_q);
        for (int s = 0; s < SOURCES; s++) {
            d_rows[s] = malloc((size_t)(p.n_rows[s] + 1) * sizeof(float));
            if (p.d_rows[s]) memcpy(d_rows[s], p.d_rows[s], (size_t)p.n_rows[s] * sizeof(float));
        }
        run(&p, 1, 0.0f);
        CHECK(!memcmp(d_q, p.d_q, (size_t)p.n_q * sizeof *d_q), "%s: threads", r->name);
        for (int s = 0; s < SOURCES; s++)
            CHECK(!p.d_rows[s] ||
                      !memcmp(d_rows[s], p.d_rows[s], (size_t)p.n_rows[s] * sizeof(float)),
                  "%s: threads, source %d", r->name, s);
        /* Gradients are added to what is there. */
        run(&p, 2, 64.0f);
        e = error_of(p.d_q, w.d_q, p.n_q);
        for (int s = 0; s < SOURCES; s++)
            if (p.d_rows[s]) e = fmax(e, error_of(p.d_rows[s], w.d_rows[s], p.n_rows[s]));
        CHECK(e <= 2e-2, "%s: not added: error %g", r->name, e);
        for (int s = 0; s < SOURCES; s++)
            free(d_rows[s]);
        free(d_q);
        drop_wanted(&w);
        drop(&p);
    }
}

/* --- the definition against differences ------------------------------------------------------- */

/* sum of d_out * out */
static double objective(void *ctx) {
    problem *p = ctx;
    double *out = calloc((size_t)p->n_out + 1, sizeof *out), sum = 0;
    kvl_attend_ref(out, NULL, &p->a, NULL);
    for (int64_t i = 0; i < p->n_out; i++)
        sum += out[i] * (double)p->d_out[i];
    free(out);
    return sum;
}

static void test_differences(void) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        problem p;
        wanted w;
        row r = table[i];
        if (r.queries > 80) continue; /* each difference costs two whole forwards */
        make(&p, &r);
        want(&w, &p);
        double e = 0;
        for (int k = 0; k < 12 && p.n_q > 0; k++) {
            int64_t at = rand_int(p.n_q);
            e = worse(e, w.d_q[at], slope(objective, &p, p.q + at), 1);
        }
        for (int64_t h = 0; h < r.heads && r.sink && r.queries > 0; h++)
            e = worse(e, w.d_sink[h], slope(objective, &p, p.sink + h), 1);
        for (int s = 0; s < SOURCES; s++)
            for (int k = 0; k < 12 && p.d_rows[s] && p.n_rows[s] > 0 && r.queries > 0; k++) {
                int64_t at = rand_int(p.n_rows[s]);
                e = worse(e, w.d_rows[s][at], slope(objective, &p, p.rows[s] + at), 1);
            }
        CHECK(e <= 1e-6, "%s: definition and differences differ by %g", r.name, e);
        drop_wanted(&w);
        drop(&p);
    }
}

/* --- mass ------------------------------------------------------------------------------------- */

static void test_mass(void) {
    static const struct {
        const char *name;
        int row, source, set, normalise; /* set: names per query, 0: none given */
    } masses[] = {
        {"all of HCA", 9, 1, 0, 1},       {"window of HCA", 9, 0, 0, 0},
        {"set of HCA", 9, 1, 5, 1},       {"list of CSA", 10, 1, 0, 1},
        {"pool of CSA", 11, 1, 200, 1},   {"MHA", 0, 0, 0, 0},
        {"set of kv heads", 2, 0, 11, 1}, {"nothing visible", 16, 0, 0, 1},
        {"later positions", 7, 0, 60, 0}, {"empty list", 13, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof masses / sizeof *masses; i++) {
        const row *r = &table[masses[i].row];
        problem p;
        make(&p, r);
        const kvl_source *s = &p.s[masses[i].source];
        int64_t queries = r->batch * r->queries, k = masses[i].set;
        int64_t n = k > 0 ? k : s->see == KVL_SEE_LIST ? s->k : s->rows;
        int32_t *set = malloc((size_t)(queries * n + 1) * sizeof *set);
        for (int64_t j = 0; j < queries * n; j++)
            set[j] = (int32_t)rand_int(s->rows + 1) - 1;
        float *out = filled(queries * n, NAN), *two = filled(queries * n, NAN);
        float *total = filled(queries, NAN);
        double *ref = calloc((size_t)(queries * n) + 1, sizeof *ref), e = 0;
        kvl_mass_args m = {
            out, total, &p.a, masses[i].source, k > 0 ? set : NULL, n, masses[i].normalise};
        kvl_error err = {0, ""};
        kvl_attend(&p.a, NULL);
        kvl_set_threads(2, NULL);
        CHECK(!kvl_attend_mass(&m, &err), "%s: %s", masses[i].name, err.msg);
        m.out = two;
        kvl_set_threads(1, NULL);
        CHECK(!kvl_attend_mass(&m, &err), "%s: %s", masses[i].name, err.msg);
        CHECK(!memcmp(out, two, (size_t)(queries * n) * sizeof *out), "%s: threads",
              masses[i].name);
        CHECK(!kvl_attend_mass_ref(ref, &m, &err), "%s: %s", masses[i].name, err.msg);
        for (int64_t q = 0; q < queries; q++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++) {
                e = worse(e, out[q * n + j], ref[q * n + j], 1);
                sum += ref[q * n + j];
            }
            bool ok = masses[i].normalise ? total[q] == 0 || fabs(sum - 1) < 1e-9
                                          : fabs(sum - total[q]) < 1e-5;
            CHECK(ok, "%s: mass %g, total %g", masses[i].name, sum, total[q]);
        }
        CHECK(e <= 3e-6 * r->heads, "%s: error %g", masses[i].name, e);
        free(set), free(out), free(two), free(total), free(ref);
        drop(&p);
    }
    /* By hand: all heads attend to everything; without a sink a head's mass is 1 in all. */
    problem p;
    make(&p, &table[0]);
    float *out = filled(2 * 70 * 70, 0);
    float total[140];
    kvl_mass_args m = {out, total, &p.a, 0, NULL, 70, false};
    kvl_attend(&p.a, NULL);
    kvl_attend_mass(&m, NULL);
    for (int i = 0; i < 140; i++)
        CHECK(fabs(total[i] - 3) < 1e-5, "3 heads have mass %g", total[i]);
    CHECK(out[1] == 0 && fabs(out[0] - 3) < 1e-5, "query 0 sees row 0: %g %g", out[0], out[1]);
    free(out);
    drop(&p);
}

/* --- bad input -------------------------------------------------------------------------------- */

static kvl_status no_rows(void *ctx, int64_t batch, const int32_t *list, int64_t first,
                          int64_t count, float *dst, kvl_error *err) {
    (void)ctx, (void)batch, (void)list, (void)first, (void)count, (void)dst, (void)err;
    return KVL_OK;
}

static void test_bad_input(void) {
    problem p;
    kvl_error err;
    make(&p, &table[0]);
#define BAD(change, undo, text)                                                                    \
    change;                                                                                        \
    CHECK(kvl_attend_grad(&p.g, &p.a, &err) == KVL_EINVAL && strstr(err.msg, text), "%s: %s",      \
          #change, err.msg);                                                                       \
    undo
    BAD(p.a.lse = NULL, p.a.lse = p.lse, "lse");
    BAD(p.a.out = NULL, p.a.out = p.out, "out");
    BAD(p.g.d_out = NULL, p.g.d_out = p.d_out, "d_out");
    BAD(p.g.d_key[0].step_h = 0, p.g.d_key[0].step_h = 32, "share");
    BAD(p.g.d_value[0].step_b = 3, p.g.d_value[0].step_b = 70 * 96, "share");
    BAD(p.g.d_q_step_h = 3, p.g.d_q_step_h = 16, "share");
    BAD((p.s[0].read = no_rows, p.s[0].width = 96), (p.s[0].read = NULL), "reader");
#undef BAD
    kvl_cancel();
    CHECK(kvl_attend_grad(&p.g, &p.a, &err) == KVL_ECANCEL, "cancel");
    kvl_cancel_clear();
    for (int n = 0; n < 8; n++) {
        kvl_alloc_fail_after(n);
        kvl_status status = kvl_attend_grad(&p.g, &p.a, &err);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || status == KVL_ENOMEM, "%d allocations: %d", n, status);
    }
    float out[4];
    kvl_mass_args m = {out, NULL, &p.a, 1, NULL, 4, true};
    CHECK(kvl_attend_mass(&m, &err) == KVL_EINVAL && strstr(err.msg, "source 1"), "%s", err.msg);
    m.source = 0;
    CHECK(kvl_attend_mass(&m, &err) == KVL_EINVAL && strstr(err.msg, "not 70"), "%s", err.msg);
    drop(&p);
    make(&p, &table[12]);
    p.list[0][77] = 50;
    CHECK(kvl_attend_grad(&p.g, &p.a, &err) == KVL_EINVAL && strstr(err.msg, "row 50"), "%s",
          err.msg);
    m = (kvl_mass_args){p.out, NULL, &p.a, 0, NULL, 9, true};
    CHECK(kvl_attend_mass(&m, &err) == KVL_EINVAL && strstr(err.msg, "row 50"), "%s", err.msg);
    drop(&p);
    /* Gradients that nobody wants. */
    make(&p, &table[1]);
    kvl_attend(&p.a, NULL);
    p.g.d_q = p.g.d_sink = p.g.d_key[0].p = p.g.d_value[0].p = NULL;
    CHECK(!kvl_attend_grad(&p.g, &p.a, &err), "%s", err.msg);
    drop(&p);
}

int main(void) {
    test_table();
    test_differences();
    test_mass();
    test_bad_input();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}

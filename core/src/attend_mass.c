/* attend_mass.c - attention mass of entries, summed over heads. See kvlab/attend_grad.h.
 *
 * A tile is some queries of one batch item. All of its heads are multiplied with a tile of rows at
 * a time; their weights are added into out at once, so [T, rows] per head never exists.
 */
#include "kvlab/attend_grad.h"

#include "attend.h"

#include "kvlab/blas.h"
#include "kvlab/parallel.h"
#include "kvlab/vmath.h"
#include "sizes.h"

#include <math.h>
#include <string.h>

enum { QUERY_ROWS = 128, MAX_QUERIES = 128, TILE_ROWS = 128 };

typedef struct job {
    const kvl_mass_args *args;
    const kvl_attend_args *a;
    const kvl_source *s;
    const int32_t *set; /* NULL: all rows */
    int64_t nt, heads;  /* queries of a tile; heads per kv head */
} job;

KVL_CLONES
static void subtract(float *s, float x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        s[i] -= x;
}

/* Adds the weights of logits s [n] to out. A query that saw nothing has none. */
static void add_weights(float *out, float *s, float lse, int64_t n) {
    if (lse == -INFINITY) return;
    subtract(s, lse, n);
    kvl_exp(s, s, n);
    kvl_axpy(out, 1.0f, s, n);
}

/* q [heads * nt, key_width], scaled, of kv head g; row (h - h0) * nt + t - t0. */
static void pack(const job *j, float *q, int64_t b, int64_t g, int64_t t0, int64_t nt) {
    const kvl_attend_args *a = j->a;
    for (int64_t h = g * j->heads; h < (g + 1) * j->heads; h++)
        for (int64_t t = t0; t < t0 + nt; t++)
            for (int64_t c = 0; c < a->key_width; c++)
                *q++ = a->scale * a->q[b * a->q_step_b + t * a->q_step_t + h * a->q_step_h + c];
}

static float lse_of(const job *j, int64_t b, int64_t g, int64_t h, int64_t t) {
    return j->a->lse[(b * j->a->queries + t) * j->a->heads + g * j->heads + h];
}

/* All rows that the queries see, in place. */
static void mass_of_rows(const job *j, int64_t b, int64_t g, int64_t t0, int64_t nt, const float *q,
                         float *s) {
    const kvl_attend_args *a = j->a;
    int64_t kw = a->key_width, newest = a->q_pos0 + a->queries - 1, pos = a->q_pos0 + t0;
    int64_t lo = kvl_attend_sees(j->s, pos, newest).lo;
    int64_t hi = kvl_attend_sees(j->s, pos + nt - 1, newest).hi;
    for (int64_t at = lo; at < hi; at += TILE_ROWS) {
        int64_t n = min(TILE_ROWS, hi - at), first = at - j->s->pos0;
        const float *key = j->s->key.p + b * j->s->key.step_b + first * j->s->key.step_s +
                           g * j->s->key.step_h;
        kvl_gemm_tile(s, n, (kvl_mat){q, kw, false, 0},
                      (kvl_mat){key, max(j->s->key.step_s, kw), true, 0}, 1.0f, 0.0f, j->heads * nt,
                      n, kw);
        for (int64_t h = 0; h < j->heads; h++)
            for (int64_t t = 0; t < nt; t++) {
                interval see = kvl_attend_sees(j->s, pos + t, newest);
                int64_t from = max(see.lo - at, 0), to = min(see.hi - at, n);
                float *out = j->args->out + (b * a->queries + t0 + t) * j->args->n + first;
                if (from < to)
                    add_weights(out + from, s + (h * nt + t) * n + from, lse_of(j, b, g, h, t0 + t),
                                to - from);
            }
    }
}

/* The entries of the set of query t; q [heads, key_width] with rows `step` apart. */
static kvl_status mass_of_set(const job *j, int64_t b, int64_t g, int64_t t, const float *q,
                              int64_t step, float *s, kvl_error *err) {
    const kvl_attend_args *a = j->a;
    int64_t kw = a->key_width, all = j->args->n, row = b * a->queries + t;
    float *keys = s + j->heads * TILE_ROWS, *mass = keys + TILE_ROWS * kw;
    int32_t *place = (int32_t *)(void *)(mass + TILE_ROWS);
    interval see = {0, j->s->rows};
    if (j->s->see != KVL_SEE_LIST) {
        see = kvl_attend_sees(j->s, a->q_pos0 + t, a->q_pos0 + a->queries - 1);
        see.lo -= j->s->pos0, see.hi -= j->s->pos0;
    }
    for (int64_t at = 0; at < all;) {
        int64_t n = 0;
        for (; at < all && n < TILE_ROWS; at++) {
            int32_t name = j->set[row * all + at];
            if (name < -1 || name >= j->s->rows)
                return kvl_fail(err, KVL_EINVAL,
                                "attend_mass: the set names row %d, there are 0 .. %lld (-1 for "
                                "none)",
                                (int)name, (long long)j->s->rows - 1);
            if (name < see.lo || name >= see.hi) continue;
            memcpy(keys + n * kw,
                   j->s->key.p + b * j->s->key.step_b + name * j->s->key.step_s +
                       g * j->s->key.step_h,
                   (size_t)kw * sizeof *keys);
            place[n++] = (int32_t)at;
        }
        kvl_gemm_tile(s, n, (kvl_mat){q, step, false, 0}, (kvl_mat){keys, kw, true, 0}, 1.0f, 0.0f,
                      j->heads, n, kw);
        memset(mass, 0, sizeof *mass * (size_t)n);
        for (int64_t h = 0; h < j->heads; h++)
            add_weights(mass, s + h * n, lse_of(j, b, g, h, t), n);
        for (int64_t i = 0; i < n; i++)
            j->args->out[row * all + place[i]] += mass[i];
    }
    return KVL_OK;
}

static kvl_status run_tile(void *ctx, int64_t number, void *scratch, kvl_error *err) {
    const job *j = ctx;
    const kvl_attend_args *a = j->a;
    int64_t tiles = kvl_tiles(a->queries, j->nt), b = number / tiles, n = j->args->n;
    int64_t t0 = number % tiles * j->nt, nt = min(j->nt, a->queries - t0);
    float *q = scratch, *s = q + (j->heads * j->nt * a->key_width + 15) / 16 * 16;
    float *out = j->args->out + (b * a->queries + t0) * n;
    memset(out, 0, (size_t)(nt * n) * sizeof *out);
    for (int64_t g = 0; g < j->s->kv_heads; g++) {
        if (kvl_cancelled()) return kvl_fail(err, KVL_ECANCEL, "cancelled");
        pack(j, q, b, g, t0, nt);
        if (!j->set) mass_of_rows(j, b, g, t0, nt, q, s);
        for (int64_t t = 0; t < nt && j->set; t++) {
            kvl_status status = mass_of_set(j, b, g, t0 + t, q + t * a->key_width,
                                            nt * a->key_width, s, err);
            if (status) return status;
        }
    }
    for (int64_t t = 0; t < nt; t++, out += n) {
        float total = kvl_sum(out, n);
        if (j->args->total) j->args->total[b * a->queries + t0 + t] = total;
        if (j->args->normalise && total > 0.0f) kvl_scale_by(out, 1.0f / total, n);
    }
    return KVL_OK;
}

/* Chooses the set; *set stays NULL for all rows. */
static kvl_status check(const int32_t **set, const kvl_mass_args *m, kvl_error *err) {
    kvl_status status = kvl_attend_check(m->attend, err);
    int64_t size;
    if (status) return status;
    if (m->source < 0 || m->source >= m->attend->n_sources)
        return kvl_fail(err, KVL_EINVAL, "attend_mass: source %lld of %lld", (long long)m->source,
                        (long long)m->attend->n_sources);
    const kvl_source *s = &m->attend->sources[m->source];
    if (s->read || s->ring)
        return kvl_fail(err, KVL_EINVAL,
                        "attend_mass: source %lld %s; the mass needs the rows of a "
                        "tensor",
                        (long long)m->source, s->read ? "has a reader" : "is a ring");
    *set = m->set;
    int64_t n = m->n;
    if (!m->set && s->see == KVL_SEE_LIST)
        *set = s->list, n = s->k;
    else if (!m->set)
        n = s->rows;
    if (m->n != n || n < 0 || n > INT32_MAX || !kvl_mul(&size, m->attend->batch, n) ||
        !kvl_mul(&size, size, 4 * m->attend->queries))
        return kvl_fail(err, KVL_EINVAL, "attend_mass: out has %lld entries per query, not %lld",
                        (long long)m->n, (long long)n);
    if (!m->attend->lse && m->attend->batch > 0 && m->attend->queries > 0)
        return kvl_fail(err, KVL_EINVAL, "attend_mass: lse is missing");
    return KVL_OK;
}

kvl_status kvl_attend_mass(const kvl_mass_args *m, kvl_error *err) {
    job j = {.args = m, .a = m->attend};
    kvl_status status = check(&j.set, m, err);
    if (status || m->attend->batch == 0 || m->attend->queries == 0) return status;
    j.s = &m->attend->sources[m->source];
    j.heads = j.a->heads / j.s->kv_heads;
    j.nt = min(max(QUERY_ROWS / j.heads, 1), MAX_QUERIES);
    int64_t kw = j.a->key_width, q = (j.heads * j.nt * kw + 15) / 16 * 16;
    int64_t rows = j.heads * j.nt * TILE_ROWS, entries = TILE_ROWS * (j.heads + kw + 2);
    return kvl_parallel_for(j.a->batch * kvl_tiles(j.a->queries, j.nt),
                            (size_t)(q + (j.set ? entries : rows)) * sizeof(float), run_tile, &j,
                            err);
}

/* --- the definition --------------------------------------------------------------------------- */

kvl_status kvl_attend_mass_ref(double *out, const kvl_mass_args *m, kvl_error *err) {
    const int32_t *set = NULL;
    kvl_status status = check(&set, m, err);
    if (status) return status;
    const kvl_attend_args *a = m->attend;
    const kvl_source *s = &a->sources[m->source];
    for (int64_t i = 0; i < a->batch * a->queries; i++) {
        int64_t b = i / a->queries, t = i % a->queries;
        interval see = {s->pos0, s->pos0 + s->rows};
        if (s->see != KVL_SEE_LIST)
            see = kvl_attend_sees(s, a->q_pos0 + t, a->q_pos0 + a->queries - 1);
        double total = 0.0;
        for (int64_t k = 0; k < m->n; k++) {
            int64_t row = set ? set[i * m->n + k] : k;
            double mass = 0.0;
            for (int64_t h = 0; h < a->heads; h++) {
                double logit = 0.0, lse = (double)a->lse[i * a->heads + h];
                if (row < see.lo - s->pos0 || row >= see.hi - s->pos0 || lse == -INFINITY) continue;
                const float *q = a->q + b * a->q_step_b + t * a->q_step_t + h * a->q_step_h;
                const float *key = s->key.p + b * s->key.step_b + row * s->key.step_s +
                                   h / (a->heads / s->kv_heads) * s->key.step_h;
                for (int64_t c = 0; c < a->key_width; c++)
                    logit += (double)a->scale * (double)q[c] * (double)key[c];
                mass += exp(logit - lse);
            }
            out[i * m->n + k] = mass;
            total += mass;
        }
        for (int64_t k = 0; k < m->n && m->normalise && total > 0.0; k++)
            out[i * m->n + k] /= total;
    }
    return KVL_OK;
}

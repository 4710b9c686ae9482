/* walk.c - visits the elements of several tensors in step; see walk.h. */
#include "walk.h"

#include <string.h>

kvl_status kvl_broadcast(int *ndim, int64_t *shape, const char *what, const kvl_tensor *a,
                         const kvl_tensor *b, kvl_error *err) {
    int n = a->ndim > b->ndim ? a->ndim : b->ndim;
    int64_t total = 1;
    for (int i = 0; i < n; i++) {
        int ia = i - (n - a->ndim), ib = i - (n - b->ndim);
        int64_t sa = ia < 0 ? 1 : a->shape[ia], sb = ib < 0 ? 1 : b->shape[ib];
        if (sa != sb && sa != 1 && sb != 1) {
            char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
            return kvl_fail(err, KVL_EINVAL,
                            "%s: shapes %s and %s do not broadcast: sizes, counted from the last, "
                            "must be equal or 1",
                            what, kvl_shape_text(ta, a->ndim, a->shape),
                            kvl_shape_text(tb, b->ndim, b->shape));
        }
        shape[i] = sa == 1 ? sb : sa;
        if (shape[i] > 0 && !kvl_mul(&total, total, shape[i])) {
            char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
            return kvl_fail(err, KVL_EINVAL, "%s: shapes %s and %s broadcast to too many elements",
                            what, kvl_shape_text(ta, a->ndim, a->shape),
                            kvl_shape_text(tb, b->ndim, b->shape));
        }
    }
    *ndim = n;
    return KVL_OK;
}

void kvl_walk_init(kvl_walk *w, int ndim, const int64_t *shape) {
    memset(w, 0, sizeof *w);
    w->ndim = ndim;
    if (ndim) memcpy(w->shape, shape, (size_t)ndim * sizeof *shape);
}

void kvl_walk_add(kvl_walk *w, const kvl_tensor *t) {
    int64_t *stride = w->stride[w->count];
    for (int i = 0; i < w->ndim; i++) {
        int it = i - (w->ndim - t->ndim);
        stride[i] = it < 0 || t->shape[it] == 1 ? 0 : t->stride[it];
    }
    w->base[w->count++] = kvl_tensor_data(t);
}

static bool merges(const kvl_walk *w, int outer, int inner) {
    for (int k = 0; k < w->count; k++)
        if (w->stride[k][outer] != w->stride[k][inner] * w->shape[inner]) return false;
    return true;
}

/* Drops dimensions of size 1 and merges neighbours; the last one stays alone for whole rows. */
static void merge(kvl_walk *w) {
    int last = w->ndim - 1, kept = 0;
    for (int i = 0; i < w->ndim; i++) {
        bool row = w->whole_rows && i == last;
        if (w->shape[i] == 1 && !row) continue;
        if (kept > 0 && !row) {
            if (merges(w, kept - 1, i)) {
                w->shape[kept - 1] *= w->shape[i];
                for (int k = 0; k < w->count; k++)
                    w->stride[k][kept - 1] = w->stride[k][i];
                continue;
            }
        }
        w->shape[kept] = w->shape[i];
        for (int k = 0; k < w->count; k++)
            w->stride[k][kept] = w->stride[k][i];
        kept++;
    }
    w->ndim = kept;
    if (kept == 0) { /* one element */
        w->ndim = 1;
        w->shape[0] = 1;
    }
}

typedef struct walk_job {
    const kvl_walk *w;
    kvl_row_fn *row;
    void *ctx;
    int64_t n, rows;           /* the walk is (rows, n) */
    int64_t pieces, per_piece; /* long rows are cut into pieces ... */
    int64_t group;             /* ... short ones are taken in groups */
} walk_job;

static kvl_status walk_task(void *ctx, int64_t task, void *scratch, kvl_error *err) {
    (void)scratch;
    const walk_job *job = ctx;
    const kvl_walk *w = job->w;
    int outer = w->ndim - 1;
    int64_t piece = task % job->pieces, row = task / job->pieces * job->group;
    int64_t end = row + job->group < job->rows ? row + job->group : job->rows;
    int64_t from = piece * job->per_piece;
    int64_t n = from + job->per_piece < job->n ? job->per_piece : job->n - from;

    int64_t index[KVL_MAX_DIMS], stride[KVL_WALK_MAX], rest = row;
    char *p[KVL_WALK_MAX];
    for (int i = outer - 1; i >= 0; i--) {
        index[i] = rest % w->shape[i];
        rest /= w->shape[i];
    }
    for (int k = 0; k < w->count; k++) {
        stride[k] = w->stride[k][outer];
        int64_t at = from * stride[k];
        for (int i = 0; i < outer; i++)
            at += index[i] * w->stride[k][i];
        p[k] = w->base[k] + at * 4;
    }
    for (;;) {
        kvl_status status = job->row(job->ctx, n, p, stride, err);
        if (status != KVL_OK || ++row >= end) return status;
        for (int i = outer - 1; i >= 0; i--) { /* the next row: an odometer */
            for (int k = 0; k < w->count; k++)
                p[k] += w->stride[k][i] * 4;
            if (++index[i] < w->shape[i]) break;
            for (int k = 0; k < w->count; k++)
                p[k] -= w->stride[k][i] * w->shape[i] * 4;
            index[i] = 0;
        }
    }
}

kvl_status kvl_walk_run(kvl_walk *w, kvl_row_fn *row, void *ctx, kvl_error *err) {
    for (int i = 0; i < w->ndim; i++)
        if (w->shape[i] == 0) return KVL_OK;
    merge(w);
    walk_job job = {.w = w, .row = row, .ctx = ctx, .n = w->shape[w->ndim - 1], .rows = 1};
    for (int i = 0; i < w->ndim - 1; i++)
        job.rows *= w->shape[i];
    job.pieces = w->whole_rows ? 1 : (job.n + KVL_TILE - 1) / KVL_TILE;
    job.per_piece = w->whole_rows ? job.n : KVL_TILE;
    job.group = job.n >= KVL_TILE ? 1 : KVL_TILE / job.n;
    int64_t groups = (job.rows + job.group - 1) / job.group;
    return kvl_parallel_for(groups * job.pieces, 0, walk_task, &job, err);
}

/* test_tensor.c - storages, views, reshape and copies against plain index arithmetic. */
#include "kvlab/kvlab.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "rand.h"

static kvl_error err;

static kvl_tensor *arange(int ndim, const int64_t *shape) {
    kvl_tensor *flat, *t;
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    if (kvl_tensor_arange(&flat, KVL_INT32, 0, 1, n, &err) != KVL_OK) return NULL;
    kvl_status status = kvl_tensor_reshape(&t, flat, ndim, shape, &err);
    kvl_tensor_free(flat);
    return status == KVL_OK ? t : NULL;
}

/* The element at a flat row-major position, found through shape and strides only. */
static int32_t at(const kvl_tensor *t, int64_t flat) {
    int64_t offset = 0;
    for (int i = t->ndim - 1; i >= 0; i--) {
        offset += flat % t->shape[i] * t->stride[i];
        flat /= t->shape[i];
    }
    return kvl_tensor_i32(t)[offset];
}

static void test_new(void) {
    kvl_tensor *t;
    int64_t shape[2] = {3, 4}, huge[3] = {10000, 10000, 10000}, wrap[3] = {1LL << 31, 1LL << 31, 4};
    int64_t negative[1] = {-1}, empty[3] = {0, 1LL << 40, 3}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    CHECK(kvl_tensor_new(&t, KVL_FLOAT32, 2, shape, &err) == KVL_OK, "%s", err.msg);
    CHECK(kvl_tensor_numel(t) == 12 && kvl_tensor_bytes(t) == 48, "sizes");
    CHECK((uintptr_t)kvl_tensor_data(t) % 64 == 0, "alignment");
    CHECK(kvl_tensor_f32(t)[11] == 0, "zeros");
    kvl_tensor_free(t);
    CHECK(kvl_tensor_new(&t, KVL_FLOAT32, 3, huge, &err) == KVL_ENOMEM && !t, "10^12 elements");
    CHECK(strstr(err.msg, "{10000, 10000, 10000} takes 3725 GiB"), "%s", err.msg);
    CHECK(kvl_tensor_new(&t, KVL_FLOAT32, 3, wrap, &err) == KVL_EINVAL && !t, "overflow");
    CHECK(kvl_tensor_new(&t, KVL_FLOAT32, 1, negative, &err) == KVL_EINVAL && !t, "negative");
    CHECK(kvl_tensor_new(&t, KVL_FLOAT32, 9, nine, &err) == KVL_EINVAL && !t, "9 dimensions");
    CHECK(kvl_tensor_new(&t, KVL_FLOAT32, 3, empty, NULL) == KVL_OK, "empty");
    CHECK(kvl_tensor_numel(t) == 0 && kvl_tensor_is_contiguous(t), "empty is contiguous");
    kvl_tensor_free(t);
    CHECK(kvl_tensor_new(&t, KVL_FLOAT32, 0, NULL, NULL) == KVL_OK && kvl_tensor_numel(t) == 1,
          "a single number");
    kvl_tensor_free(t);
    kvl_tensor_free(NULL);
}

static void test_views(void) {
    int64_t shape[3] = {3, 4, 5};
    kvl_tensor *t = arange(3, shape), *v, *w;
    CHECK(kvl_tensor_slice(&v, t, 1, 1, 2, 2, &err) == KVL_OK, "%s", err.msg);
    CHECK(v->shape[1] == 2 && kvl_tensor_shares(v, t) && !kvl_tensor_is_contiguous(v), "slice");
    CHECK(at(v, 0) == 5 && at(v, 5) == 15 && at(v, 10) == 25, "slice elements");
    kvl_tensor_free(t); /* the view keeps the storage */
    CHECK(kvl_tensor_select(&w, v, 0, 2, &err) == KVL_OK && w->ndim == 2 && at(w, 0) == 45,
          "select");
    kvl_tensor_free(w);
    CHECK(kvl_tensor_transpose(&w, v, 0, 2, &err) == KVL_OK, "%s", err.msg);
    CHECK(w->shape[0] == 5 && w->shape[2] == 3 && at(w, 1) == 25, "transpose");
    kvl_tensor_free(w);
    CHECK(kvl_tensor_slice(&w, v, 0, 3, 0, 1, &err) == KVL_OK && kvl_tensor_numel(w) == 0,
          "empty slice at the end");
    kvl_tensor_free(w);
    static const struct {
        int dim;
        int64_t first, count, step;
    } bad[] = {{3, 0, 1, 1},         {-1, 0, 1, 1},       {0, 0, 4, 1}, {0, 3, 1, 1},
               {0, -1, 1, 1},        {0, 0, -1, 1},       {0, 0, 1, 0}, {0, 0, 2, INT64_MAX},
               {0, 0, INT64_MAX, 1}, {0, 4, 0, 1},        {0, 1, 2, 2}, {0, 0, 1, -1},
               {0, INT64_MAX, 1, 1}, {0, INT64_MIN, 1, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(kvl_tensor_slice(&w, v, bad[i].dim, bad[i].first, bad[i].count, bad[i].step, &err) ==
                      KVL_EINVAL &&
                  !w,
              "bad slice %zu", i);
    CHECK(kvl_tensor_select(&w, v, 0, 3, &err) == KVL_EINVAL && !w, "select past the end");
    CHECK(kvl_tensor_select(&w, v, 0, -1, &err) == KVL_EINVAL && !w, "select before");
    int twice[3] = {0, 0, 1};
    CHECK(kvl_tensor_permute(&w, v, twice, &err) == KVL_EINVAL && !w, "dimension twice");
    kvl_tensor_free(v);

    int64_t one[2] = {3, 1}, wide[3] = {2, 3, 4}, keep[2] = {-1, 7}, wrong[2] = {4, 4};
    int64_t much[2] = {3, INT64_MAX / 2};
    t = arange(2, one);
    CHECK(kvl_tensor_expand(&v, t, 3, wide, &err) == KVL_OK && v->stride[2] == 0 &&
              at(v, 11) == 2 && at(v, 12) == 0,
          "expand");
    CHECK(kvl_tensor_fill(v, 1, &err) == KVL_EINVAL, "no writing into repeated elements");
    kvl_tensor_free(v);
    CHECK(kvl_tensor_expand(&v, t, 2, keep, &err) == KVL_OK && v->shape[0] == 3, "expand keeps -1");
    kvl_tensor_free(v);
    CHECK(kvl_tensor_expand(&v, t, 2, wrong, &err) == KVL_EINVAL && !v, "expand 3 to 4");
    CHECK(kvl_tensor_expand(&v, t, 2, much, &err) == KVL_EINVAL && !v, "expand overflow");
    CHECK(kvl_tensor_expand(&v, t, 1, wide, &err) == KVL_EINVAL && !v, "expand to fewer");
    kvl_tensor_free(t);
}

/* Random permuted, sliced tensors: whatever reshape does, the elements stay in order. */
static void test_reshape(void) {
    int viewed = 0, copied = 0;
    for (int round = 0; round < 2000; round++) {
        int64_t shape[4], to[4];
        int ndim = 1 + (int)rand_int(4), dims[4];
        for (int i = 0; i < ndim; i++) {
            shape[i] = 1 + rand_int(4);
            dims[i] = i;
        }
        for (int i = ndim - 1; i > 0; i--) {
            int j = rand_unit() < 0.5 ? i : (int)rand_int(i + 1), kept = dims[i];
            dims[i] = dims[j];
            dims[j] = kept;
        }
        kvl_tensor *t = arange(ndim, shape), *p, *s, *r;
        kvl_tensor_permute(&p, t, dims, &err);
        int dim = (int)rand_int(ndim);
        int64_t count = 1 + rand_int(p->shape[dim]);
        kvl_tensor_slice(&s, p, dim, 0, count, 1, &err);
        int64_t n = kvl_tensor_numel(s), rest = n;
        int out = 1 + (int)rand_int(4);
        for (int i = 0; i < out - 1; i++) { /* a random factor each */
            int64_t f = 1 + rand_int(rest);
            while (rest % f)
                f--;
            to[i] = f;
            rest /= f;
        }
        to[out - 1] = rand_unit() < 0.5 ? rest : -1;
        CHECK(kvl_tensor_reshape(&r, s, out, to, &err) == KVL_OK, "%s", err.msg);
        bool same = kvl_tensor_numel(r) == n;
        for (int64_t i = 0; same && i < n; i++)
            same = at(r, i) == at(s, i);
        CHECK(same, "round %d", round);
        if (kvl_tensor_shares(r, s))
            viewed++;
        else
            copied++;
        CHECK(!kvl_tensor_is_contiguous(s) || kvl_tensor_shares(r, s), "contiguous is viewed");
        kvl_tensor *c, *k;
        kvl_tensor_contiguous(&c, s, &err);
        kvl_tensor_clone(&k, s, &err);
        bool equal, cloned;
        CHECK(kvl_tensor_equal(&equal, c, s, &err) == KVL_OK && equal, "contiguous equals");
        CHECK(kvl_tensor_equal(&cloned, k, s, &err) == KVL_OK && cloned, "clone equals");
        CHECK(kvl_tensor_is_contiguous(c) && kvl_tensor_is_contiguous(k), "contiguous");
        kvl_tensor_fill(k, 7, &err);
        CHECK(at(s, 0) == 0, "a clone is apart");
        kvl_tensor *all[] = {t, p, s, r, c, k};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            kvl_tensor_free(all[i]);
    }
    CHECK(viewed > 100 && copied > 100, "%d viewed, %d copied", viewed, copied);
    int64_t shape[2] = {3, 4}, bad[][2] = {{5, -1}, {-1, -1}, {-2, 6}, {12, 2}, {0, -1}};
    kvl_tensor *t = arange(2, shape), *r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(kvl_tensor_reshape(&r, t, 2, bad[i], &err) == KVL_EINVAL && !r, "bad reshape %zu", i);
    int64_t big[2] = {1LL << 40, 1LL << 40};
    CHECK(kvl_tensor_reshape(&r, t, 2, big, &err) == KVL_EINVAL && !r, "overflow");
    kvl_tensor_free(t);
}

static void test_copies(void) {
    int64_t a_shape[2] = {2, 3}, b_shape[2] = {2, 2}, row[1] = {3};
    kvl_tensor *a = arange(2, a_shape), *b = arange(2, b_shape), *c, *t;
    const kvl_tensor *list[2] = {a, b};
    CHECK(kvl_tensor_cat(&c, list, 2, 1, &err) == KVL_OK, "%s", err.msg);
    static const int32_t expected[] = {0, 1, 2, 0, 1, 3, 4, 5, 2, 3};
    CHECK(memcmp(kvl_tensor_data(c), expected, sizeof expected) == 0, "cat");
    kvl_tensor_free(c);
    CHECK(kvl_tensor_cat(&c, list, 2, 0, &err) == KVL_EINVAL && strstr(err.msg, "{2, 2}"), "%s",
          err.msg);
    CHECK(kvl_tensor_cat(&c, list, 0, 0, &err) == KVL_EINVAL, "cat of nothing");
    kvl_tensor_transpose(&t, a, 0, 1, &err);
    /* overlapping: the first column over the first row, as wide as it is */
    kvl_tensor *dst, *src, *cut;
    kvl_tensor_select(&dst, a, 0, 0, &err);
    kvl_tensor_slice(&cut, dst, 0, 0, 2, 1, &err);
    kvl_tensor_select(&src, t, 0, 0, &err);
    CHECK(kvl_tensor_copy(cut, src, &err) == KVL_OK && at(a, 0) == 0 && at(a, 1) == 3, "overlap");
    CHECK(kvl_tensor_copy(dst, src, &err) == KVL_EINVAL, "2 into 3");
    kvl_tensor *f, *g;
    kvl_tensor_full(&f, KVL_FLOAT32, 1, row, 2.75, &err);
    CHECK(kvl_tensor_cast(&g, f, KVL_INT32, &err) == KVL_OK && at(g, 2) == 2, "cast cuts");
    kvl_tensor_free(g);
    static const float no_int[] = {NAN, INFINITY, 2147483648.0f, -2147483904.0f};
    for (int i = 0; i < 4; i++) {
        kvl_tensor_f32(f)[1] = no_int[i];
        CHECK(kvl_tensor_cast(&g, f, KVL_INT32, &err) == KVL_EINVAL && !g, "cast %d", i);
    }
    kvl_tensor *arr[] = {a, b, t, dst, src, cut, f};
    for (size_t i = 0; i < sizeof arr / sizeof *arr; i++)
        kvl_tensor_free(arr[i]);
    CHECK(kvl_tensor_full(&t, KVL_INT32, 1, row, 0.5, &err) == KVL_EINVAL && !t, "0.5 as int32");
    CHECK(kvl_tensor_full(&t, KVL_INT32, 1, row, NAN, &err) == KVL_EINVAL && !t, "NaN as int32");
    CHECK(kvl_tensor_tril_mask(&t, 3, 4, 1, &err) == KVL_OK, "%s", err.msg);
    for (int i = 0; i < 12; i++)
        CHECK(at(t, i) == (i % 4 <= i / 4 + 1), "tril %d", i);
    kvl_tensor_free(t);
    CHECK(kvl_tensor_tril_mask(&t, 3, 4, INT64_MAX, &err) == KVL_OK && at(t, 3) == 1, "all ones");
    kvl_tensor_free(t);
    CHECK(kvl_tensor_tril_mask(&t, 3, 4, INT64_MIN, &err) == KVL_OK && at(t, 8) == 0, "no ones");
    kvl_tensor_free(t);
    CHECK(kvl_tensor_arange(&t, KVL_INT32, 2147483640, 5, 3, &err) == KVL_EINVAL && !t, "arange");
    CHECK(kvl_tensor_eye(&t, 3, &err) == KVL_OK && kvl_tensor_f32(t)[4] == 1, "eye");
    kvl_tensor_free(t);
}

/* Lets the n-th allocation fail, for growing n, until everything succeeds: never a leak. */
static void test_out_of_memory(void) {
    int64_t shape[3] = {4, 3, 2}, flat[1] = {-1}, wide[3] = {4, 3, 2};
    size_t before = kvl_live_bytes();
    kvl_status status = KVL_ENOMEM;
    for (int n = 0; status != KVL_OK && n < 100; n++) {
        kvl_tensor *t[8] = {NULL};
        kvl_alloc_fail_after(n);
        status = kvl_tensor_full(&t[0], KVL_FLOAT32, 3, shape, 1.5, &err);
        if (!status) status = kvl_tensor_transpose(&t[1], t[0], 0, 2, &err);
        if (!status) status = kvl_tensor_reshape(&t[2], t[1], 1, flat, &err);
        if (!status) status = kvl_tensor_cast(&t[3], t[2], KVL_INT32, &err);
        if (!status) status = kvl_tensor_cat(&t[4], (const kvl_tensor *[]){t[0], t[0]}, 2, 1, &err);
        if (!status) status = kvl_tensor_slice(&t[5], t[4], 1, 0, 3, 1, &err);
        if (!status) status = kvl_tensor_expand(&t[6], t[5], 3, wide, &err);
        if (!status) status = kvl_tensor_copy(t[5], t[0], &err);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || status == KVL_ENOMEM, "%d: %s", n, err.msg);
        for (int i = 0; i < 8; i++)
            kvl_tensor_free(t[i]);
        CHECK(kvl_live_bytes() == before, "leak after %d allocations", n);
    }
    CHECK(status == KVL_OK, "the sweep ended");
}

int main(void) {
    test_new();
    test_views();
    test_reshape();
    test_copies();
    test_out_of_memory();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leaked", kvl_live_bytes());
    return check_done();
}

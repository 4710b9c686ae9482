/* parallel.c - loops over tiles with OpenMP when the compiler has it, serially otherwise.
 *
 * The number of threads is the second piece of mutable global state of the core (the first is in
 * base.c): it belongs to the machine, not to a computation, and no result depends on it.
 */
#include "kvlab/parallel.h"

#include "kvlab/blas.h"

#include <stdatomic.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum { MAX_THREADS = 256 };

static atomic_int threads_wanted; /* 0: one per processor */

int kvl_threads(void) {
#ifdef _OPENMP
    int n = atomic_load(&threads_wanted);
    if (n == 0) n = omp_get_num_procs();
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
#else
    return 1;
#endif
}

kvl_status kvl_set_threads(int n, kvl_error *err) {
    if (n < 0 || n > MAX_THREADS)
        return kvl_fail(err, KVL_EINVAL, "threads must be 0 (one per processor) .. %d, not %d",
                        MAX_THREADS, n);
    atomic_store(&threads_wanted, n);
    return KVL_OK;
}

/* One loop. A tile that fails raises `stop`; the failure of the lowest tile is kept. */
typedef struct loop {
    kvl_tile_fn fn;
    void *ctx;
    atomic_bool stop;
    int64_t failed_tile;
    kvl_error failure;
} loop;

static void run_tile(loop *l, int64_t tile, void *scratch) {
    if (atomic_load_explicit(&l->stop, memory_order_relaxed)) return;
    kvl_error err = {KVL_OK, ""};
    kvl_status status = kvl_cancelled() ? kvl_fail(&err, KVL_ECANCEL, "cancelled")
                                        : l->fn(l->ctx, tile, scratch, &err);
    if (status == KVL_OK) return;
    err.status = status;
    atomic_store(&l->stop, true);
#ifdef _OPENMP
#pragma omp critical(kvl_loop_failure)
#endif
    if (l->failed_tile < 0 || tile < l->failed_tile) {
        l->failed_tile = tile;
        l->failure = err;
    }
}

static int loop_threads(int64_t n_tiles) {
    int n = kvl_threads();
#ifdef _OPENMP
    if (omp_in_parallel() || kvl_blas_threads() > 1) n = 1;
#endif
    return n_tiles < n ? (int)n_tiles : n;
}

kvl_status kvl_parallel_for(int64_t n_tiles, size_t scratch_bytes, kvl_tile_fn fn, void *ctx,
                            kvl_error *err) {
    if (n_tiles <= 0) return KVL_OK;
    int threads = loop_threads(n_tiles);
    /* Whole cache lines per thread, so that two threads never write one. */
    if (scratch_bytes > SIZE_MAX / MAX_THREADS - 64)
        return kvl_fail(err, KVL_ENOMEM, "scratch of %zu bytes per thread", scratch_bytes);
    size_t step = (scratch_bytes + 63) / 64 * 64;
    char *scratch = NULL;
    if (step > 0) {
        scratch = kvl_alloc_raw(step * (size_t)threads);
        if (!scratch)
            return kvl_fail(err, KVL_ENOMEM, "no memory for %d scratch blocks of %zu bytes",
                            threads, step);
    }
    loop l = {.fn = fn, .ctx = ctx, .failed_tile = -1};
    if (threads == 1) {
        for (int64_t tile = 0; tile < n_tiles; tile++)
            run_tile(&l, tile, scratch);
    } else {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
        {
            char *own = scratch ? scratch + step * (size_t)omp_get_thread_num() : NULL;
#pragma omp for schedule(dynamic, 1)
            for (int64_t tile = 0; tile < n_tiles; tile++)
                run_tile(&l, tile, own);
        }
#endif
    }
    kvl_free(scratch);
    if (l.failed_tile < 0) return KVL_OK;
    if (err) *err = l.failure;
    return l.failure.status;
}

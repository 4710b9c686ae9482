/* parallel.c - loops over tiles on threads of our own.
 *
 * The caller of a loop works on it from the first moment, and helpers join when they can. Each
 * begins with a part of the tiles of its own, so that from loop to loop it finds the same rows in
 * its cache, and then takes what the others have not begun. At the end the caller waits only for
 * helpers that have a tile in hand. So on a busy machine, where a helper may get no processor for
 * milliseconds, a loop costs what one thread needs, while a team that has to meet at a barrier
 * (OpenMP) waits for its slowest member even if nothing is left to do (measured with two busy
 * processors: a loop of 1 ms took 16).
 *
 * The helpers, their number and the loop they work on are the second piece of mutable global state
 * of the core (the first is in base.c): it belongs to the machine, not to a computation, and no
 * result depends on it. Helpers are started when they are first needed and then wait for good; a
 * forked child starts its own.
 *
 * On Linux helpers keep off the processor of the caller: a system that wakes one up may queue it
 * right there, behind the caller, which works on alone for many short loops while another processor
 * is idle (measured: loops of 0.4 ms on one of two processors for tens of milliseconds).
 */
#ifdef __linux__
#define _GNU_SOURCE /* sched_getaffinity, pthread_setaffinity_np */
#endif
#include "kvlab/parallel.h"

#include "kvlab/blas.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum {
    MAX_THREADS = 256,
    SPINS = 2000 /* looks at a variable before sleeping: some 20 us, what waking up takes */
};

/* The tiles that a thread begins with, on a cache line of its own. */
typedef struct part {
    _Alignas(64) _Atomic int64_t next; /* the first one that nobody took */
    int64_t end;
} part;

/* One loop, on the stack of its caller. */
typedef struct loop {
    kvl_tile_fn fn;
    void *ctx;
    char *scratch; /* [threads, step] */
    size_t step;
    int threads;
    part *parts;           /* [threads] */
    _Atomic int64_t limit; /* the lowest tile that failed, or beyond all: those below it run */
    kvl_error failure;     /* of that tile, KVL_OK when none; written under `lock` */
} loop;

static atomic_int threads_wanted; /* 0: one per processor */

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER; /* held by the caller of the loop */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  /* of everything below */
static pthread_cond_t work_to_do = PTHREAD_COND_INITIALIZER, all_left = PTHREAD_COND_INITIALIZER;
static loop *current;
static atomic_int seats;   /* helpers that may still join `current` */
static atomic_int working; /* helpers that have joined and not left */
static pthread_t helper[MAX_THREADS];
static int helpers;
static int avoided = -1; /* the processor that helpers keep off */

/* This thread is in a tile. One byte of what the system keeps for such variables of modules that
 * are loaded late; without this model the leak checker stumbles over the helpers of such a module.
 */
static _Thread_local bool inside __attribute__((tls_model("initial-exec")));

static int processors(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
#endif
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
}

int kvl_threads(void) {
    static atomic_int known; /* asking the system takes longer than a short loop */
    int n = atomic_load(&threads_wanted);
    if (n == 0) n = atomic_load(&known);
    if (n == 0) atomic_store(&known, n = processors());
    return n;
}

kvl_status kvl_set_threads(int n, kvl_error *err) {
    if (n < 0 || n > MAX_THREADS)
        return kvl_fail(err, KVL_EINVAL, "threads must be 0 (one per processor) .. %d, not %d",
                        MAX_THREADS, n);
    atomic_store(&threads_wanted, n);
    return KVL_OK;
}

/* The failure of the lowest tile is kept, whichever thread is first. */
static void run_tile(loop *l, int64_t tile, void *scratch) {
    kvl_error err = {KVL_OK, ""};
    kvl_status status = kvl_cancelled() ? kvl_fail(&err, KVL_ECANCEL, "cancelled")
                                        : l->fn(l->ctx, tile, scratch, &err);
    if (status == KVL_OK) return;
    err.status = status;
    pthread_mutex_lock(&lock);
    if (tile < atomic_load(&l->limit)) {
        atomic_store(&l->limit, tile);
        l->failure = err;
    }
    pthread_mutex_unlock(&lock);
}

/* What every thread of a loop does; `place` counts them from 0. It takes tiles of its own part and
 * then what is left of the others': from loop to loop a thread finds the same rows in its cache. */
static void run_tiles(loop *l, int place) {
    char *scratch = l->scratch ? l->scratch + l->step * (size_t)place : NULL;
    for (int i = 0; i < l->threads; i++) {
        part *p = &l->parts[(place + i) % l->threads];
        for (;;) {
            int64_t tile = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
            if (tile >= p->end || tile >= atomic_load_explicit(&l->limit, memory_order_relaxed))
                break;
            run_tile(l, tile, scratch);
        }
    }
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void *help(void *unused) {
    (void)unused;
    inside = true;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load(&seats) == 0; i++)
            pause_briefly();
        pthread_mutex_lock(&lock);
        while (atomic_load(&seats) == 0)
            pthread_cond_wait(&work_to_do, &lock);
        loop *l = current;
        int place = atomic_fetch_sub(&seats, 1);
        atomic_fetch_add(&working, 1);
        pthread_mutex_unlock(&lock);
        run_tiles(l, place);
        pthread_mutex_lock(&lock);
        if (atomic_fetch_sub(&working, 1) == 1) pthread_cond_signal(&all_left);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* The helpers of the parent are not here, and one of them may have held the lock. */
static void forget_helpers(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&work_to_do, NULL);
    pthread_cond_init(&all_left, NULL);
    helpers = 0;
    avoided = -1;
}

/* Starts helpers until there are `n`, or the system has no more. Signals go to the threads of the
 * host. */
static void start_helpers(int n) {
    static bool watching;
    sigset_t all, before;
    if (!watching) watching = pthread_atfork(NULL, NULL, forget_helpers) == 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; helpers < n; helpers++)
        if (pthread_create(&helper[helpers], NULL, help, NULL)) break;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    avoided = -1;
}

/* Lets helpers run wherever the caller may, but not where it is now. */
static void keep_helpers_away(void) {
#ifdef __linux__
    int here = sched_getcpu();
    cpu_set_t set;
    if (here == avoided || here < 0 || here >= CPU_SETSIZE) return;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < 2) return;
    CPU_CLR((size_t)here, &set);
    for (int i = 0; i < helpers; i++)
        pthread_setaffinity_np(helper[i], sizeof set, &set);
    avoided = here;
#endif
}

static void run_together(loop *l, int threads) {
    pthread_mutex_lock(&lock);
    if (helpers < threads - 1) start_helpers(threads - 1);
    keep_helpers_away();
    current = l;
    atomic_store(&seats, threads - 1);
    pthread_cond_broadcast(&work_to_do);
    pthread_mutex_unlock(&lock);
    inside = true;
    run_tiles(l, 0);
    inside = false;
    pthread_mutex_lock(&lock);
    atomic_store(&seats, 0);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < SPINS && atomic_load(&working) > 0; i++)
        pause_briefly();
    pthread_mutex_lock(&lock);
    while (atomic_load(&working) > 0)
        pthread_cond_wait(&all_left, &lock);
    current = NULL;
    pthread_mutex_unlock(&lock);
}

int kvl_loop_threads(void) {
    int threads = inside ? 1 : kvl_threads();
    return threads > 1 && kvl_blas_threads() > 1 ? 1 : threads;
}

kvl_status kvl_parallel_for(int64_t n_tiles, size_t scratch_bytes, kvl_tile_fn fn, void *ctx,
                            kvl_error *err) {
    if (n_tiles <= 0) return KVL_OK;
    int threads = kvl_loop_threads();
    if (n_tiles < threads) threads = (int)n_tiles;
    /* Two threads of the host with a loop each: the second one does its own alone. */
    bool together = threads > 1 && pthread_mutex_trylock(&owner) == 0;
    if (!together) threads = 1;

    kvl_status status = KVL_OK;
    part parts[MAX_THREADS];
    for (int64_t i = 0, at = 0; i < threads; i++) {
        atomic_init(&parts[i].next, at);
        parts[i].end = at += n_tiles / threads + (i < n_tiles % threads);
    }
    loop l = {.fn = fn, .ctx = ctx, .threads = threads, .parts = parts, .limit = n_tiles};
    /* Whole cache lines per thread, so that two threads never write one. */
    if (scratch_bytes > SIZE_MAX / MAX_THREADS - 64) {
        status = kvl_fail(err, KVL_ENOMEM, "scratch of %zu bytes per thread", scratch_bytes);
    } else if (scratch_bytes > 0) {
        l.step = (scratch_bytes + 63) / 64 * 64;
        l.scratch = kvl_alloc_raw(l.step * (size_t)threads);
        if (!l.scratch)
            status = kvl_fail(err, KVL_ENOMEM, "no memory for %d scratch blocks of %zu bytes",
                              threads, l.step);
    }
    if (status == KVL_OK && together) {
        run_together(&l, threads);
    } else if (status == KVL_OK) {
        run_tiles(&l, 0);
    }
    if (together) pthread_mutex_unlock(&owner);
    kvl_free(l.scratch);
    if (status != KVL_OK || l.failure.status == KVL_OK) return status;
    if (err) *err = l.failure;
    return l.failure.status;
}

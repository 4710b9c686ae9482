/* base.h - what every other part of the core stands on: errors, memory, cancellation.
 *
 * Rules of the core (docs/architecture.md):
 *   - it never prints, exits, aborts or longjmps; a function that can fail returns a kvl_status and
 *     describes the failure in a kvl_error that the caller owns (NULL when it does not care);
 *   - outputs come first, inputs are const, sizes last; _new/_free own, everything else borrows;
 *   - memory comes from kvl_alloc, which counts it, so that a test can see a leak and a host can
 *     tell its garbage collector.
 */
#ifndef kvlab_base_h
#define kvlab_base_h

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVL_API             __attribute__((visibility("default")))
#define KVL_PRINTF(fmt, at) __attribute__((format(printf, fmt, at)))
#else
#define KVL_API
#define KVL_PRINTF(fmt, at)
#endif

#define KVL_VERSION "0.1.0"

typedef enum kvl_status {
    KVL_OK = 0,
    KVL_EINVAL = -1,  /* an argument is out of range or contradicts another */
    KVL_ENOMEM = -2,  /* memory was refused */
    KVL_ECANCEL = -3, /* kvl_cancel() was called while the computation ran */
    KVL_EIO = -4,     /* a file could not be read or written, or lies about its contents */
    KVL_EFULL = -5    /* a pool has no free page left */
} kvl_status;

typedef struct kvl_error {
    kvl_status status;
    char msg[512]; /* one readable line without a newline */
} kvl_error;

/* Describes a failure in *err (if not NULL) and returns `status`, so that a function ends with
 * `return kvl_fail(err, KVL_EINVAL, "group %d does not divide %d channels", g, n);` */
KVL_API kvl_status kvl_fail(kvl_error *err, kvl_status status, const char *fmt, ...)
    KVL_PRINTF(3, 4);

/* Zeroed memory, 64-byte aligned so that any vector load may be aligned; NULL when refused or when
 * bytes is 0. Requests beyond the memory that the machine or its control group has are refused
 * instead of being promised and killed later. Freed with kvl_free (NULL is fine). */
KVL_API void *kvl_alloc(size_t bytes);
/* The same with undefined contents, for what is written before it is read: zeroing a megabyte costs
 * as much as a short product. */
KVL_API void *kvl_alloc_raw(size_t bytes);
KVL_API void kvl_free(void *p);

/* Asks the C library to keep freed memory for this process instead of giving it back to the system:
 * a training step takes and frees the same blocks again and again, and fresh pages cost as much as
 * the products. On Linux that memory comes in large pages, when the system has them. For whoever
 * owns the process, once; the library never calls it. Where the C library has no such setting,
 * nothing happens. */
KVL_API void kvl_keep_memory(void);

/* Bytes handed out by kvl_alloc and not yet freed: 0 when nothing leaks. */
KVL_API size_t kvl_live_bytes(void);

/* The memory this process may use, in bytes:
 * the smallest of the machine's, the control group's and kvl_limit_memory's. */
KVL_API size_t kvl_memory_limit(void);

/* A limit of this process's own, for all that kvl_alloc hands out; 0: none. For whoever owns the
 * process. */
KVL_API void kvl_limit_memory(size_t bytes);

/* Tests only: let n more allocations succeed, then refuse all; a negative n turns this off. */
KVL_API void kvl_alloc_fail_after(int64_t n);

/* *out = a * b; false on overflow or when a factor is negative. */
static inline bool kvl_mul(int64_t *out, int64_t a, int64_t b) {
    if (a < 0 || b < 0) return false;
    return !__builtin_mul_overflow(a, b, out);
}

/* Asks every running computation to stop with KVL_ECANCEL: kernels look once per tile.
 * Safe from a signal handler and from any thread. The request stands until cleared. */
KVL_API void kvl_cancel(void);
KVL_API void kvl_cancel_clear(void);
KVL_API bool kvl_cancelled(void);

/* While held, nothing looks cancelled: for what must not stay half done. A request stands and is
 * seen afterwards. Returns what was set before. */
KVL_API bool kvl_cancel_hold(bool held);

#endif

/* base.c - errors, counted memory, the cancel flag. The only mutable globals of the core are here,
 * apart from the thread count in parallel.c. */
#ifdef __linux__
#define _GNU_SOURCE /* madvise, sbrk */
#endif
#include "kvlab/base.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__GLIBC__) && defined(__linux__)
#include <sys/mman.h>
#define LARGE_PAGES
#endif

static atomic_size_t live_bytes;
static atomic_llong allocs_left = -1; /* negative: no limit */
static atomic_size_t own_limit;       /* 0: none */
static atomic_bool cancel_flag, cancel_held;

kvl_status kvl_fail(kvl_error *err, kvl_status status, const char *fmt, ...) {
    if (err) {
        va_list args;
        va_start(args, fmt);
        err->status = status;
        vsnprintf(err->msg, sizeof err->msg, fmt, args);
        va_end(args);
    }
    return status;
}

/* A block is [.. up to 64 bytes ..][header, 64 bytes][payload]. The memory comes from calloc, not
 * from aligned_alloc and memset: large blocks are then zero pages of the system, which cost nothing
 * before they are touched, so a request of gigabytes returns at once and can be cancelled. */
enum { HEADER = 64 };
typedef struct block_head {
    size_t bytes; /* of the payload, for the live count */
    void *memory; /* what calloc returned */
} block_head;

static size_t read_limit(const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) return SIZE_MAX;
    char text[64];
    size_t limit = SIZE_MAX;
    if (fgets(text, sizeof text, f) && text[0] >= '0' && text[0] <= '9')
        limit = strtoull(text, NULL, 10);
    fclose(f);
    return limit;
}

size_t kvl_memory_limit(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    size_t limit = pages > 0 && size > 0 ? (size_t)pages * (size_t)size : SIZE_MAX;
    size_t v2 = read_limit("/sys/fs/cgroup/memory.max");
    size_t v1 = read_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    if (v2 < limit) limit = v2;
    if (v1 < limit) limit = v1;
    size_t own = atomic_load(&own_limit);
    return own > 0 && own < limit ? own : limit;
}

void kvl_limit_memory(size_t bytes) {
    atomic_store(&own_limit, bytes);
}

/* A process that keeps its memory has it in large pages, also where Linux gives them only when it
 * is asked: fewer faults, and addresses are found faster (6 % of a training step whose tensors are
 * in no cache). The heap grows by HEAP_STEP at a time, and what is new of it is asked for before
 * anybody has touched it. */
enum { HEAP_STEP = 64 << 20 };
static _Atomic(char *) heap_end; /* NULL: nothing is asked */

static void ask_for_large_pages(void) {
#ifdef LARGE_PAGES
    char *before = atomic_load(&heap_end), *end = before ? sbrk(0) : NULL;
    if (end == before) return;
    const uintptr_t LARGE = (uintptr_t)2 << 20;
    if (end > before) {
        char *from = before - (uintptr_t)before % LARGE;
        madvise(from, (size_t)(end - from), MADV_HUGEPAGE);
    }
    atomic_store(&heap_end, end);
#endif
}

static void *allocate(size_t bytes, bool zeroed) {
    if (bytes == 0 || bytes > SIZE_MAX - 2 * HEADER) return NULL;
    if (atomic_load(&allocs_left) >= 0 && atomic_fetch_sub(&allocs_left, 1) <= 0) {
        atomic_store(&allocs_left, 0);
        return NULL;
    }
    /* Asking for the limit costs a few file reads, so only blocks that could matter pay for it. */
    size_t own = atomic_load(&own_limit);
    if (own > 0 || bytes >= ((size_t)64 << 20)) {
        size_t live = atomic_load(&live_bytes);
        size_t limit = bytes < ((size_t)64 << 20) ? own : kvl_memory_limit();
        if (live > limit || bytes > limit - live) return NULL;
    }
    char *memory = zeroed ? calloc(1, bytes + 2 * HEADER) : malloc(bytes + 2 * HEADER);
    if (!memory) return NULL;
    ask_for_large_pages();
    char *payload = memory + 2 * HEADER - (uintptr_t)memory % HEADER;
    block_head *head = (block_head *)(payload - HEADER);
    head->bytes = bytes;
    head->memory = memory;
    atomic_fetch_add(&live_bytes, bytes);
    return payload;
}

void *kvl_alloc(size_t bytes) {
    return allocate(bytes, true);
}

void *kvl_alloc_raw(size_t bytes) {
    return allocate(bytes, false);
}

void kvl_free(void *p) {
    if (!p) return;
    block_head *head = (block_head *)((char *)p - HEADER);
    atomic_fetch_sub(&live_bytes, head->bytes);
    free(head->memory);
}

size_t kvl_live_bytes(void) {
    return atomic_load(&live_bytes);
}

void kvl_keep_memory(void) {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the largest that glibc takes */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, HEAP_STEP);
#endif
#ifdef LARGE_PAGES
    atomic_store(&heap_end, (char *)sbrk(0));
#endif
}

void kvl_alloc_fail_after(int64_t n) {
    atomic_store(&allocs_left, n);
}

void kvl_cancel(void) {
    atomic_store(&cancel_flag, true);
}

void kvl_cancel_clear(void) {
    atomic_store(&cancel_flag, false);
}

bool kvl_cancelled(void) {
    return atomic_load(&cancel_flag) && !atomic_load(&cancel_held);
}

bool kvl_cancel_hold(bool held) {
    return atomic_exchange(&cancel_held, held);
}

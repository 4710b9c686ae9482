/* pool.c - pages: making them, the free list, references; see pool.h. Tables are in pool_table.c.
 *
 * The free list is a stack, so that a page that was just given back, and is still in the
 * processor's caches, goes out next; fresh pages come in ascending order. Pages are never given
 * back to the system one by one: a pool keeps what it made until it goes.
 */
#include "kvlab/pool.h"

#include <string.h>

#include "pool_pages.h"
#include "sizes.h"

/* The header takes one alignment unit of kvl_alloc. */
struct kvl_chunk {
    kvl_chunk *next;
};
enum { CHUNK_HEAD = 64, CHUNK_BYTES = 1 << 20 };

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

kvl_status kvl_pool_new(kvl_pool **out, const kvl_record *rec, int64_t max_pages, kvl_error *err) {
    *out = NULL;
    if (max_pages < 0 || max_pages > INT32_MAX)
        return kvl_fail(err, KVL_EINVAL, "%lld pages, expected 1 to %d, or 0 for no limit",
                        (long long)max_pages, INT32_MAX);
    kvl_pool *pool = kvl_alloc(sizeof *pool);
    kvl_record *copy = pool ? kvl_record_clone(rec) : NULL;
    if (!copy) {
        kvl_free(pool);
        return kvl_fail(err, KVL_ENOMEM, "no memory for a pool");
    }
    pool->references = 1;
    pool->rec = copy;
    pool->info = *kvl_record_about(copy);
    pool->limited = max_pages > 0;
    pool->max_pages = max_pages ? max_pages : INT32_MAX;
    pool->first_free = -1;
    *out = pool;
    return KVL_OK;
}

void kvl_pool_free(kvl_pool *pool) {
    if (!pool || --pool->references > 0) return;
    for (kvl_chunk *chunk = pool->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        kvl_free(chunk);
    }
    kvl_free(pool->pages);
    kvl_record_free(pool->rec);
    kvl_free(pool);
}

const kvl_record *kvl_pool_record(const kvl_pool *pool) {
    return pool->rec;
}

kvl_pool_stats kvl_pool_about(const kvl_pool *pool) {
    kvl_pool_stats s = {.max_pages = pool->limited ? pool->max_pages : 0,
                        .made = pool->made,
                        .used = pool->made - pool->n_free,
                        .free = pool->n_free,
                        .shared = pool->n_shared,
                        .page_bytes = pool->info.page_bytes};
    s.allocated_bytes = s.used * s.page_bytes;
    return s;
}

int64_t kvl_pool_references(const kvl_pool *pool, int64_t page) {
    return page >= 0 && page < pool->made ? pool->pages[page].holders : 0;
}

/* --- making pages ----------------------------------------------------------------------------- */

bool kvl_pool_room(void **array, int64_t *room, int64_t used, int64_t need, int64_t size) {
    if (need <= *room) return true;
    int64_t wanted = max64(need, 2 * *room), bytes;
    if (!kvl_mul(&bytes, wanted, size)) return false;
    void *grown = kvl_alloc((size_t)bytes);
    if (!grown) return false;
    if (used) memcpy(grown, *array, (size_t)(used * size));
    kvl_free(*array);
    *array = grown;
    *room = wanted;
    return true;
}

/* Makes `n` pages and puts them on the free list, the lowest number first; false when refused. */
static bool make_pages(kvl_pool *pool, int64_t n) {
    int64_t bytes;
    if (!kvl_mul(&bytes, n, pool->info.page_bytes) || bytes > INT64_MAX - CHUNK_HEAD) return false;
    kvl_chunk *chunk = kvl_alloc(CHUNK_HEAD + (size_t)bytes);
    if (!chunk) return false;
    if (!kvl_pool_room((void **)&pool->pages, &pool->page_room, pool->made, pool->made + n,
                       sizeof pool->pages[0])) {
        kvl_free(chunk);
        return false;
    }
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    for (int64_t i = n - 1; i >= 0; i--) {
        int32_t number = (int32_t)(pool->made + i);
        pool->pages[number] = (kvl_page){(uint8_t *)chunk + CHUNK_HEAD + i * pool->info.page_bytes,
                                         0, pool->first_free};
        pool->first_free = number;
    }
    pool->made += n;
    pool->n_free += n;
    return true;
}

kvl_status kvl_pool_want(kvl_pool *pool, int64_t pages, kvl_error *err) {
    if (pages <= pool->n_free) return KVL_OK;
    int64_t used = pool->made - pool->n_free, left = pool->max_pages - used;
    if (pages > left)
        return kvl_fail(err, KVL_EFULL,
                        "out of pages: %lld more are needed, %lld of %lld are free (pages of %lld "
                        "entries, %lld bytes)",
                        (long long)pages, (long long)left, (long long)pool->max_pages,
                        (long long)pool->info.page_entries, (long long)pool->info.page_bytes);
    /* As many again as there are, so that single appends are cheap,
     * but not much beyond the need. */
    int64_t needed = pages - pool->n_free;
    int64_t ahead = min(pool->made, CHUNK_BYTES / pool->info.page_bytes);
    int64_t n = min(max64(needed, ahead), pool->max_pages - pool->made);
    if (make_pages(pool, n) || (n > needed && make_pages(pool, needed))) return KVL_OK;
    return kvl_fail(
        err, KVL_ENOMEM,
        "%lld pages of %lld bytes do not fit: %.4g MiB are in use, the limit is %.4g MiB",
        (long long)needed, (long long)pool->info.page_bytes, (double)kvl_live_bytes() / 1048576,
        (double)kvl_memory_limit() / 1048576);
}

/* --- holding pages ---------------------------------------------------------------------------- */

int32_t kvl_pool_take(kvl_pool *pool) {
    int32_t number = pool->first_free;
    kvl_page *page = &pool->pages[number];
    pool->first_free = page->next_free;
    pool->n_free--;
    page->holders = 1;
    return number;
}

void kvl_pool_hold(kvl_pool *pool, int32_t page) {
    pool->n_shared += ++pool->pages[page].holders == 2;
}

void kvl_pool_drop(kvl_pool *pool, int32_t number) {
    kvl_page *page = &pool->pages[number];
    pool->n_shared -= --page->holders == 1;
    if (page->holders > 0) return;
    page->next_free = pool->first_free;
    pool->first_free = number;
    pool->n_free++;
}

/* pool_table.c - tables: entries of one sequence on pages of a pool, and the reader that counts;
 * see pool.h.
 *
 * Writing is in two steps. `prepare` takes every page that will be needed, fresh ones and copies of
 * shared ones, or fails and has changed nothing; then encoding cannot fail.
 *
 * Entries of a ring: held are first .. n-1. `first` only ever grows, because what an append
 * overwrote does not come back when the table is truncated.
 */
#include <string.h>

#include "kvlab/parallel.h"
#include "kvlab/pool.h"
#include "pool_pages.h"
#include "sizes.h"

struct kvl_table {
    kvl_pool *pool;
    int32_t *pages; /* [room], of which n_pages are held */
    int64_t n_pages, room;
    int64_t n, first;
    int64_t ring, window; /* 0: a list */
};

/* Entries that one thread encodes at a time. */
enum { ENCODE_TILE = 64 };

static int64_t entry_bytes(const kvl_table *t) {
    return t->pool->info.data_bytes + t->pool->info.scale_bytes;
}

static int64_t page_entries(const kvl_table *t) {
    return t->pool->info.page_entries;
}

static bool page_shared(const kvl_table *t, int64_t i) {
    return t->pool->pages[t->pages[i]].holders > 1;
}

/* Pages that a table of n entries needs. A ring that has overwritten something
 * needs all of them. */
static int64_t pages_of(const kvl_table *t, int64_t n) {
    int64_t slots = !t->ring ? n : t->first > 0 ? t->ring : min(n, t->ring);
    return kvl_tiles(slots, page_entries(t));
}

/* --- new, free -------------------------------------------------------------------------------- */

kvl_status kvl_table_new(kvl_table **out, kvl_pool *pool, int64_t ring, int64_t window,
                         kvl_error *err) {
    *out = NULL;
    if (ring < 0 || ring > INT32_MAX)
        return kvl_fail(err, KVL_EINVAL, "a ring of %lld slots, expected 1 to %d, or 0 for a list",
                        (long long)ring, INT32_MAX);
    if (window < 0 || window > ring)
        return kvl_fail(err, KVL_EINVAL, "a window of %lld in a ring of %lld slots, expected %s",
                        (long long)window, (long long)ring,
                        ring ? "at most the slots" : "none in a list");
    kvl_table *t = kvl_alloc(sizeof *t);
    if (!t) return kvl_fail(err, KVL_ENOMEM, "no memory for a table");
    t->pool = pool;
    t->ring = ring;
    t->window = window ? window : ring;
    pool->references++;
    *out = t;
    return KVL_OK;
}

static void drop_from(kvl_table *t, int64_t n_pages) {
    while (t->n_pages > n_pages)
        kvl_pool_drop(t->pool, t->pages[--t->n_pages]);
}

void kvl_table_free(kvl_table *t) {
    if (!t) return;
    drop_from(t, 0);
    kvl_pool_free(t->pool);
    kvl_free(t->pages);
    kvl_free(t);
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Do the next `count` entries (> 0) write to page i? */
static bool writes_page(const kvl_table *t, int64_t i, int64_t count) {
    int64_t begin = i * page_entries(t), end = begin + page_entries(t);
    if (!t->ring) return t->n < end && begin < t->n + count;
    end = min(end, t->ring);
    int64_t at = t->n % t->ring;
    int64_t away = begin >= at ? begin - at : begin - at + t->ring; /* from `at`, going round */
    return away < count || (at >= begin && at < end);
}

/* Pages for the next `count` entries (> 0), all held by this table alone. */
static kvl_status prepare(kvl_table *t, int64_t count, kvl_error *err) {
    int64_t n_pages = pages_of(t, t->n + count);
    int64_t fresh = n_pages > t->n_pages ? n_pages - t->n_pages : 0, copies = 0;
    int64_t low = t->ring ? 0 : t->n / page_entries(t);
    for (int64_t i = low; i < t->n_pages; i++)
        copies += writes_page(t, i, count) && page_shared(t, i);
    if (fresh + copies == 0) return KVL_OK;

    /* The pages first: when too much is asked for, it is they that are refused. */
    kvl_status status = kvl_pool_want(t->pool, fresh + copies, err);
    if (status) return status;
    if (!kvl_pool_room((void **)&t->pages, &t->room, t->n_pages, n_pages, sizeof t->pages[0]))
        return kvl_fail(err, KVL_ENOMEM, "no memory for a block table of %lld pages",
                        (long long)n_pages);

    for (int64_t i = low; i < t->n_pages; i++) {
        if (!writes_page(t, i, count) || !page_shared(t, i)) continue;
        int32_t copy = kvl_pool_take(t->pool);
        memcpy(t->pool->pages[copy].bytes, t->pool->pages[t->pages[i]].bytes,
               (size_t)t->pool->info.page_bytes);
        kvl_pool_drop(t->pool, t->pages[i]);
        t->pages[i] = copy;
    }
    for (int64_t i = 0; i < fresh; i++)
        t->pages[t->n_pages++] = kvl_pool_take(t->pool);
    return KVL_OK;
}

/* count >= 0 more entries are few enough to be numbered. */
static kvl_status check_more(const kvl_table *t, int64_t count, kvl_error *err) {
    /* Rows of lists are named by int32 lists; entries of rings are only counted. */
    int64_t limit = t->ring ? INT64_MAX / 2 : INT32_MAX;
    if (count < 0 || count > limit - t->n)
        return kvl_fail(err, KVL_EINVAL,
                        "%lld more entries in a table of %lld: expected 0 or more, %lld at most",
                        (long long)count, (long long)t->n, (long long)(limit - t->n));
    return KVL_OK;
}

kvl_status kvl_table_reserve(kvl_table *t, int64_t more, kvl_error *err) {
    kvl_status status = check_more(t, more, err);
    return status || more == 0 ? status : prepare(t, more, err);
}

/* Entries first .. first + count - 1 from rows [count, channels]. */
static void encode(kvl_table *t, int64_t first, const float *rows, int64_t stride, int64_t count) {
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t slot = t->ring ? (first + done) % t->ring : first + done;
        int64_t in_page = slot % page_entries(t);
        run = min(count - done, page_entries(t) - in_page);
        if (t->ring) run = min(run, t->ring - slot);
        kvl_record_encode_slots(t->pool->rec,
                                t->pool->pages[t->pages[slot / page_entries(t)]].bytes, in_page,
                                rows + done * stride, stride, run);
    }
}

typedef struct encode_job {
    kvl_table *table;
    const float *rows;
    int64_t stride, count;
} encode_job;

static kvl_status encode_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    const encode_job *job = ctx;
    int64_t at = tile * ENCODE_TILE;
    (void)scratch, (void)err;
    encode(job->table, job->table->n + at, job->rows + at * job->stride, job->stride,
           min(ENCODE_TILE, job->count - at));
    return KVL_OK;
}

kvl_status kvl_table_append(kvl_table *t, const float *rows, int64_t stride, int64_t count,
                            kvl_error *err) {
    kvl_status status = kvl_table_reserve(t, count, err);
    if (status || count == 0) return status;
    if (t->ring) {
        /* Serially, because a cancelled ring would have lost what it overwrote. */
        int64_t skip = count > t->ring ? count - t->ring : 0;
        encode(t, t->n + skip, rows + skip * stride, stride, count - skip);
    } else if (count <= ENCODE_TILE) {
        encode(t, t->n, rows, stride, count);
    } else {
        encode_job job = {t, rows, stride, count};
        status = kvl_parallel_for(kvl_tiles(count, ENCODE_TILE), 0, encode_tile, &job, err);
        if (status) return status;
    }
    t->n += count;
    if (t->ring && t->n - t->ring > t->first) t->first = t->n - t->ring;
    return KVL_OK;
}

/* --- sharing and going back ------------------------------------------------------------------- */

/* May the table be cut to its first `entries` entries? */
static kvl_status check_cut(const kvl_table *t, int64_t entries, kvl_error *err) {
    int64_t lowest = t->first > 0 ? t->first + t->window : 0;
    if (entries == 0 || (entries >= lowest && entries <= t->n)) return KVL_OK;
    if (!t->ring)
        return kvl_fail(err, KVL_EINVAL, "%lld entries of a table of %lld, expected 0 to %lld",
                        (long long)entries, (long long)t->n, (long long)t->n);
    return kvl_fail(
        err, KVL_EINVAL,
        "%lld entries of a ring at %lld, expected 0 or %lld to %lld: of its %lld slots, the "
        "window of %lld entries before the new end must be held",
        (long long)entries, (long long)t->n, (long long)lowest, (long long)t->n, (long long)t->ring,
        (long long)t->window);
}

/* A table with the first `entries` entries of t, on the same pages. */
static kvl_status fork_first(kvl_table **out, const kvl_table *t, int64_t entries, kvl_error *err) {
    kvl_table *copy;
    kvl_status status = kvl_table_new(&copy, t->pool, t->ring, t->window, err);
    *out = NULL;
    if (status) return status;
    copy->first = entries ? t->first : 0;
    int64_t n_pages = pages_of(copy, entries);
    if (!kvl_pool_room((void **)&copy->pages, &copy->room, 0, n_pages, sizeof copy->pages[0])) {
        kvl_table_free(copy);
        return kvl_fail(err, KVL_ENOMEM, "no memory for a block table of %lld pages",
                        (long long)n_pages);
    }
    for (int64_t i = 0; i < n_pages; i++)
        kvl_pool_hold(t->pool, copy->pages[i] = t->pages[i]);
    copy->n_pages = n_pages;
    copy->n = entries;
    *out = copy;
    return KVL_OK;
}

kvl_status kvl_table_fork(kvl_table **out, const kvl_table *t, kvl_error *err) {
    return fork_first(out, t, t->n, err);
}

kvl_status kvl_table_share(kvl_table **out, const kvl_table *t, int64_t entries, kvl_error *err) {
    *out = NULL;
    kvl_status status = check_cut(t, entries, err);
    if (!status) status = fork_first(out, t, entries, err);
    if (status || t->ring || entries % page_entries(t) == 0) return status;
    status = prepare(*out, 1, err); /* the next entry would go to the partial page */
    if (status) {
        kvl_table_free(*out);
        *out = NULL;
    }
    return status;
}

kvl_status kvl_table_truncate(kvl_table *t, int64_t entries, kvl_error *err) {
    kvl_status status = check_cut(t, entries, err);
    if (status) return status;
    t->n = entries;
    if (entries == 0) t->first = 0;
    drop_from(t, pages_of(t, entries));
    return KVL_OK;
}

/* --- facts ------------------------------------------------------------------------------------ */

int64_t kvl_table_channels(const kvl_table *t) {
    return t->pool->info.channels;
}

kvl_pool *kvl_table_pool(const kvl_table *t) {
    return t->pool;
}

int64_t kvl_table_count(const kvl_table *t) {
    return t->n;
}

int64_t kvl_table_first(const kvl_table *t) {
    return t->first;
}

int64_t kvl_table_ring(const kvl_table *t) {
    return t->ring;
}

int64_t kvl_table_window(const kvl_table *t) {
    return t->window;
}

int64_t kvl_table_row(const kvl_table *t, int64_t entry) {
    if (entry < t->first || entry >= t->n) return -1;
    return t->ring ? entry % t->ring : entry;
}

const int32_t *kvl_table_pages(const kvl_table *t, int64_t *count) {
    *count = t->n_pages;
    return t->pages;
}

kvl_table_stats kvl_table_about(const kvl_table *t) {
    int64_t held = t->n - t->first, bytes = entry_bytes(t);
    int64_t stored = t->ring ? min(held, t->window) : held;
    return (kvl_table_stats){.entries = held,
                             .stored = stored * bytes,
                             .rollback = (held - stored) * bytes,
                             .unused = (t->n_pages * page_entries(t) - held) * bytes,
                             .alignment = t->n_pages * t->pool->info.page_padding,
                             .allocated = t->n_pages * t->pool->info.page_bytes};
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Does row (an entry, in a ring a slot) hold something? */
static bool row_held(const kvl_table *t, int64_t row) {
    if (!t->ring) return row >= 0 && row < t->n;
    if (row < 0 || row >= t->ring || t->n == 0) return false;
    int64_t back = (t->n - 1) % t->ring - row; /* from the newest entry to the one in this slot */
    if (back < 0) back += t->ring;
    return t->n - 1 - back >= t->first;
}

static uint8_t *row_page(const kvl_table *t, int64_t row) {
    return t->pool->pages[t->pages[row / page_entries(t)]].bytes;
}

static kvl_status fail_row(const kvl_table *t, int64_t row, kvl_error *err) {
    if (!t->ring)
        return kvl_fail(err, KVL_EINVAL, "row %lld is not one of the %lld entries", (long long)row,
                        (long long)t->n);
    return kvl_fail(err, KVL_EINVAL, "slot %lld of %lld holds none of the entries %lld to %lld",
                    (long long)row, (long long)t->ring, (long long)t->first, (long long)t->n - 1);
}

/* Asks for the bytes of a row that is decoded soon: rows of a list lie anywhere, and nothing else
 * tells the processor where the next one is. */
static void prefetch_row(const kvl_table *t, int64_t row) {
    enum { LINE = 64, MOST = 1024 };
    if (!row_held(t, row)) return;
    const kvl_record *rec = t->pool->rec;
    const uint8_t *page = row_page(t, row);
    const uint8_t *data = page + kvl_record_data_offset(rec, row % page_entries(t));
    for (int64_t at = 0; at < t->pool->info.data_bytes && at < MOST; at += LINE)
        __builtin_prefetch(data + at);
    if (t->pool->info.scale_bytes)
        __builtin_prefetch(page + kvl_record_scale_offset(rec, row % page_entries(t)));
}

kvl_status kvl_table_read(void *ctx, int64_t batch, const int32_t *list, int64_t first,
                          int64_t count, float *dst, kvl_error *err) {
    const kvl_reader *reader = ctx;
    if (batch < 0 || batch >= reader->batch)
        return kvl_fail(err, KVL_EINVAL, "batch %lld: the reader has %lld tables", (long long)batch,
                        (long long)reader->batch);
    const kvl_table *t = reader->tables[batch];
    enum { AHEAD = 6 }; /* rows */
    int64_t channels = t->pool->info.channels, done = 0, asked = 0;
    kvl_status status = KVL_OK;
    while (done < count) {
        int64_t row = list ? list[done] : first + done;
        for (; list && asked < count && asked < done + AHEAD; asked++)
            prefetch_row(t, list[asked]);
        if (!row_held(t, row)) {
            status = fail_row(t, row, err);
            break;
        }
        /* Neighbours in a page are decoded together. */
        int64_t in_page = row % page_entries(t), run = 1;
        while (done + run < count && in_page + run < page_entries(t) &&
               (list ? list[done + run] == row + run : true) && row_held(t, row + run))
            run++;
        kvl_record_decode_slots(t->pool->rec, dst + done * channels, channels, row_page(t, row),
                                in_page, run);
        done += run;
    }
    __atomic_fetch_add(&reader->counters->rows[reader->kind], done, __ATOMIC_RELAXED);
    __atomic_fetch_add(&reader->counters->bytes[reader->kind], done * entry_bytes(t),
                       __ATOMIC_RELAXED);
    return status;
}

/* --- looking and damaging --------------------------------------------------------------------- */

static kvl_status check_entry(const kvl_table *t, int64_t entry, kvl_error *err) {
    if (kvl_table_row(t, entry) >= 0) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "entry %lld is not held: the table has entries %lld to %lld",
                    (long long)entry, (long long)t->first, (long long)t->n - 1);
}

kvl_status kvl_table_peek(const kvl_table *t, float *dst, int64_t stride, int64_t first,
                          int64_t count, kvl_error *err) {
    for (int64_t i = 0; i < count; i++) {
        kvl_status status = check_entry(t, first + i, err);
        if (status) return status;
        int64_t row = kvl_table_row(t, first + i);
        kvl_record_decode_slots(t->pool->rec, dst + i * stride, stride, row_page(t, row),
                                row % page_entries(t), 1);
    }
    return KVL_OK;
}

kvl_status kvl_table_bytes(const kvl_table *t, uint8_t *dst, int64_t entry, kvl_error *err) {
    kvl_status status = check_entry(t, entry, err);
    if (status) return status;
    const kvl_record_info *info = &t->pool->info;
    int64_t row = kvl_table_row(t, entry), slot = row % page_entries(t);
    const uint8_t *page = row_page(t, row);
    memcpy(dst, page + kvl_record_data_offset(t->pool->rec, slot), (size_t)info->data_bytes);
    if (info->scale_bytes)
        memcpy(dst + info->data_bytes, page + kvl_record_scale_offset(t->pool->rec, slot),
               (size_t)info->scale_bytes);
    return KVL_OK;
}

kvl_status kvl_table_poke(kvl_table *t, int64_t entry, int64_t byte, uint8_t flip, kvl_error *err) {
    kvl_status status = check_entry(t, entry, err);
    if (status) return status;
    if (byte < 0 || byte >= entry_bytes(t))
        return kvl_fail(err, KVL_EINVAL, "byte %lld of an entry of %lld bytes", (long long)byte,
                        (long long)entry_bytes(t));
    int64_t row = kvl_table_row(t, entry), slot = row % page_entries(t);
    int64_t scale_byte = byte - t->pool->info.data_bytes;
    int64_t at = scale_byte < 0 ? kvl_record_data_offset(t->pool->rec, slot) + byte
                                : kvl_record_scale_offset(t->pool->rec, slot) + scale_byte;
    row_page(t, row)[at] ^= flip;
    return KVL_OK;
}

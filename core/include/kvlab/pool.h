/* pool.h - cache entries in pages: who holds which page, and what was read of it.
 *
 *     kvl_pool    pages of one record     [page 0][page 1][page 2] ...   references, free list
 *     kvl_table   one cache of one sequence: entries 0 .. n-1, block table {2, 0, 5}, any order
 *     kvl_reader  decodes rows of tables for kvl_attend and the index scores, and counts them
 *
 * A list grows: entry e is slot e % P of page pages[e / P]. A ring of R slots keeps the newest R
 * entries: entry (position) p is in slot p % R, and slots lie in pages as the entries of a list do.
 * A ring of a window of W has R = W + r slots, so that it can be rolled back by r.
 *
 * Tables share pages: a fork takes a reference to every page, and whoever writes first to a page
 * that others hold writes to a copy of his own. So complete pages of lists stay shared for good,
 * partial pages and those of rings until the next append.
 *
 * Invariant: the references of a page are the tables that hold it, and a page without any is on the
 * free list. An operation that fails leaves tables and pages as they were.
 *
 * Reading is safe from several threads; everything else is not, for all tables of one pool.
 */
#ifndef kvlab_pool_h
#define kvlab_pool_h

#include "kvlab/record.h"

typedef struct kvl_pool kvl_pool;
typedef struct kvl_table kvl_table;

/* --- pools ------------------------------------------------------------------------------------ */

/* `max_pages` 0: as many as memory allows. Pages are made when they are needed. The record is
 * copied. */
KVL_API kvl_status kvl_pool_new(kvl_pool **out, const kvl_record *rec, int64_t max_pages,
                                kvl_error *err);
/* Gives the caller's hold up; the pages go with the last table of the pool. NULL is fine. */
KVL_API void kvl_pool_free(kvl_pool *pool);
KVL_API const kvl_record *kvl_pool_record(const kvl_pool *pool);

typedef struct kvl_pool_stats {
    int64_t max_pages; /* 0: no limit */
    int64_t made;      /* pages that have memory: used + free */
    int64_t used;      /* held by a table */
    int64_t free;
    int64_t shared;          /* held by more than one */
    int64_t page_bytes;      /* of one page, with padding */
    int64_t allocated_bytes; /* used pages x page bytes: a shared page once */
} kvl_pool_stats;

KVL_API kvl_pool_stats kvl_pool_about(const kvl_pool *pool);

/* The tables that hold a page; 0 for a free page and for a number that is none. */
KVL_API int64_t kvl_pool_references(const kvl_pool *pool, int64_t page);

/* --- tables ----------------------------------------------------------------------------------- */

/* ring 0: a list. Otherwise the slots of a ring, and the window (1 .. ring) that a rollback must
 * leave readable; window 0 is taken as the whole ring. The table keeps its pool alive. */
KVL_API kvl_status kvl_table_new(kvl_table **out, kvl_pool *pool, int64_t ring, int64_t window,
                                 kvl_error *err);
/* Gives its pages back. NULL is fine. */
KVL_API void kvl_table_free(kvl_table *table);

/* Takes what the next `more` entries need, copies of shared pages included: until the next fork or
 * truncate, appending them cannot fail. KVL_EFULL when the pool has not that many pages. */
KVL_API kvl_status kvl_table_reserve(kvl_table *table, int64_t more, kvl_error *err);

/* Encodes `count` rows [count, channels], `stride` floats apart. A ring keeps the last ones. */
KVL_API kvl_status kvl_table_append(kvl_table *table, const float *rows, int64_t stride,
                                    int64_t count, kvl_error *err);

/* A table with the same entries, on the same pages. */
KVL_API kvl_status kvl_table_fork(kvl_table **out, const kvl_table *table, kvl_error *err);

/* A table with the first `entries` entries: shares the complete pages, copies a partial one. */
KVL_API kvl_status kvl_table_share(kvl_table **out, const kvl_table *table, int64_t entries,
                                   kvl_error *err);

/* Forgets all but the first `entries` entries and gives back the pages behind them, reserved ones
 * included. A ring goes back only as far as all rows of the window before the new end are held; to
 * 0 always. */
KVL_API kvl_status kvl_table_truncate(kvl_table *table, int64_t entries, kvl_error *err);

KVL_API int64_t kvl_table_channels(const kvl_table *table); /* floats of an entry */
KVL_API kvl_pool *kvl_table_pool(const kvl_table *table);
KVL_API int64_t kvl_table_count(const kvl_table *table); /* entries appended and not truncated */
KVL_API int64_t
kvl_table_first(const kvl_table *table);                /* the oldest entry held; count when none */
KVL_API int64_t kvl_table_ring(const kvl_table *table); /* slots, or 0 */
KVL_API int64_t kvl_table_window(const kvl_table *table);
/* The row that the reader knows an entry by (itself, in a ring its slot);
 * -1 when it is not held. */
KVL_API int64_t kvl_table_row(const kvl_table *table, int64_t entry);
/* The block table; it may be longer than the entries need (kvl_table_reserve). */
KVL_API const int32_t *kvl_table_pages(const kvl_table *table, int64_t *count);

/* In bytes. allocated = stored + rollback + unused + alignment. */
typedef struct kvl_table_stats {
    int64_t entries;   /* held */
    int64_t stored;    /* entries x entry bytes; of a ring, those of the window */
    int64_t rollback;  /* the entries that a ring holds beyond its window */
    int64_t unused;    /* slots without an entry */
    int64_t alignment; /* zeroes at the ends of pages */
    int64_t allocated; /* pages x page bytes: a shared page for every table that holds it */
} kvl_table_stats;

KVL_API kvl_table_stats kvl_table_about(const kvl_table *table);

/* --- counted reading -------------------------------------------------------------------------- */

typedef enum kvl_read_kind {
    KVL_READ_SELECTED, /* entries of the global cache */
    KVL_READ_WINDOW,   /* entries of the local window */
    KVL_READ_INDEX,    /* index keys that were scored */
    KVL_READ_KINDS
} kvl_read_kind;

/* Rows decoded and their bytes (rows x entry bytes). A row that is read twice counts twice. Readers
 * add atomically; read and reset it while no reader runs. Starts as all zero. */
typedef struct kvl_counters {
    int64_t rows[KVL_READ_KINDS];
    int64_t bytes[KVL_READ_KINDS];
} kvl_counters;

/* The context of kvl_table_read. Batch element b reads tables[b]; tables of one record. */
typedef struct kvl_reader {
    const kvl_table *const *tables; /* [batch] */
    int64_t batch;
    kvl_read_kind kind;
    kvl_counters *counters; /* never NULL: there is no reading that is not counted */
} kvl_reader;

/* A kvl_read_rows (attend.h): rows list[0..count), or first, first + 1, ... as floats [count,
 * channels]. This is the only function that counts, and it decodes exactly the bytes it counts.
 * Rows of a ring are its slots. A row that is not held is an error. */
KVL_API kvl_status kvl_table_read(void *reader, int64_t batch, const int32_t *list, int64_t first,
                                  int64_t count, float *dst, kvl_error *err);

/* --- looking and damaging, for tests and lessons: nothing is counted -------------------------- */

/* Entries first .. first + count - 1 as floats [count, channels], rows `stride` floats apart. */
KVL_API kvl_status kvl_table_peek(const kvl_table *table, float *dst, int64_t stride, int64_t first,
                                  int64_t count, kvl_error *err);

/* The stored bytes of one entry: data row, then scale row. */
KVL_API kvl_status kvl_table_bytes(const kvl_table *table, uint8_t *dst, int64_t entry,
                                   kvl_error *err);

/* Flips bits of one stored byte, numbered as in kvl_table_bytes: for every table that holds the
 * page. */
KVL_API kvl_status kvl_table_poke(kvl_table *table, int64_t entry, int64_t byte, uint8_t flip,
                                  kvl_error *err);

#endif

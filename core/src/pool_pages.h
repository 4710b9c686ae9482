/* pool_pages.h - what tables need to know of a pool. Pages are known by number; their memory stays
 * where it is until the pool goes. */
#ifndef kvlab_pool_pages_h
#define kvlab_pool_pages_h

#include "kvlab/pool.h"

typedef struct kvl_page {
    uint8_t *bytes;    /* [page_bytes] */
    int32_t holders;   /* tables; 0: free */
    int32_t next_free; /* a page number or -1 */
} kvl_page;

/* Pages are made in chunks: a header and pages behind it. */
typedef struct kvl_chunk kvl_chunk;

struct kvl_pool {
    int64_t references; /* the owner and the tables */
    kvl_record *rec;
    kvl_record_info info;
    int64_t max_pages; /* INT32_MAX when there is no limit */
    bool limited;
    kvl_page *pages; /* [page_room], of which `made` are in use */
    int64_t made, page_room;
    int64_t n_free, n_shared; /* without a holder, with more than one */
    int32_t first_free;       /* a page number or -1 */
    kvl_chunk *chunks;
};

/* Makes sure that `pages` pages are free; they are not taken yet. */
kvl_status kvl_pool_want(kvl_pool *pool, int64_t pages, kvl_error *err);
/* Takes a free page, of which there must be one; its contents are undefined. */
int32_t kvl_pool_take(kvl_pool *pool);
void kvl_pool_hold(kvl_pool *pool, int32_t page);
void kvl_pool_drop(kvl_pool *pool, int32_t page);

/* Grows an array of `size`-byte elements to at least `need`; false and unchanged when refused. */
bool kvl_pool_room(void **array, int64_t *room, int64_t used, int64_t need, int64_t size);

#endif

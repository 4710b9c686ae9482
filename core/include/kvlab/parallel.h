/* parallel.h - the one thread pool of the core: loops over tiles.
 *
 * The caller cuts its work into tiles by size, never by the number of threads; each tile writes its
 * own part of the output. So a result does not depend on how many threads ran, nor on which of them
 * took which tile. A loop inside a tile of another loop runs serially, and so does everything while
 * the BLAS library has threads of its own: two pools fight (see blas.h).
 */
#ifndef kvlab_parallel_h
#define kvlab_parallel_h

#include "kvlab/base.h"

/* Threads that a loop may use: what kvl_set_threads said, else the processors of this process. */
KVL_API int kvl_threads(void);

/* 0 goes back to one thread per processor. */
KVL_API kvl_status kvl_set_threads(int n, kvl_error *err);

/* Threads that a loop started here would get: 1 inside a loop and while BLAS has threads of its
 * own. */
KVL_API int kvl_loop_threads(void);

/* Does tile number `tile`. `scratch` is this thread's own block: 64-byte aligned, contents
 * undefined (what an earlier tile left). A failure is returned, described in *err (never NULL). */
typedef kvl_status (*kvl_tile_fn)(void *ctx, int64_t tile, void *scratch, kvl_error *err);

/* Runs fn for every tile 0 .. n_tiles-1, each exactly once unless something fails. Looks at the
 * cancel flag before each tile. The first failure stops the loop and is returned; when several
 * tiles failed, that of the lowest. scratch_bytes may be 0; it is allocated once per thread, before
 * work starts. */
KVL_API kvl_status kvl_parallel_for(int64_t n_tiles, size_t scratch_bytes, kvl_tile_fn fn,
                                    void *ctx, kvl_error *err);

/* Tiles of `size` items that cover n items. */
static inline int64_t kvl_tiles(int64_t n, int64_t size) {
    return n / size + (n % size != 0);
}

#endif

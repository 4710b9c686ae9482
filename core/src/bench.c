/* bench.c - the limits that kernels are held against. See bench.h; kvl_bench_sgemm is in blas.c. */
#include "kvlab/bench.h"

#include "kvlab/parallel.h"
#include "kvlab/vmath.h"

#include <string.h>

enum { TILE_FLOATS = 64 * 1024 };

typedef struct stream {
    double *sums; /* [tiles], or NULL */
    float *dst;
    const float *src;
    int64_t n;
} stream;

static int64_t tile_size(int64_t n, int64_t tile, int64_t size) {
    int64_t left = n - tile * size;
    return left < size ? left : size;
}

static kvl_status stream_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    const stream *s = ctx;
    int64_t at = tile * TILE_FLOATS, n = tile_size(s->n, tile, TILE_FLOATS);
    (void)scratch, (void)err;
    if (s->sums)
        s->sums[tile] = (double)kvl_sum(s->src + at, n);
    else
        memcpy(s->dst + at, s->src + at, (size_t)n * sizeof(float));
    return KVL_OK;
}

kvl_status kvl_bench_read(double *sum, const float *x, int64_t n, kvl_error *err) {
    int64_t tiles = kvl_tiles(n, TILE_FLOATS);
    *sum = 0.0;
    if (n <= 0) return KVL_OK;
    stream s = {.sums = kvl_alloc((size_t)tiles * sizeof(double)), .src = x, .n = n};
    if (!s.sums) return kvl_fail(err, KVL_ENOMEM, "no memory for %lld sums", (long long)tiles);
    kvl_status status = kvl_parallel_for(tiles, 0, stream_tile, &s, err);
    for (int64_t i = 0; i < tiles; i++)
        *sum += s.sums[i];
    kvl_free(s.sums);
    return status;
}

kvl_status kvl_bench_copy(float *dst, const float *src, int64_t n, kvl_error *err) {
    stream s = {.dst = dst, .src = src, .n = n};
    return kvl_parallel_for(kvl_tiles(n, TILE_FLOATS), 0, stream_tile, &s, err);
}

typedef struct decode_job {
    kvl_reader *reader;
    float *dst;
    int64_t channels, rows, count; /* rows of a tile */
} decode_job;

static kvl_status decode_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    const decode_job *job = ctx;
    int64_t first = tile * job->rows;
    (void)scratch;
    return kvl_table_read(job->reader, 0, NULL, first, tile_size(job->count, tile, job->rows),
                          job->dst + first * job->channels, err);
}

kvl_status kvl_bench_decode(float *dst, kvl_reader *reader, int64_t count, kvl_error *err) {
    decode_job job = {.reader = reader, .dst = dst, .count = count};
    job.channels = kvl_table_channels(reader->tables[0]);
    job.rows = job.channels < TILE_FLOATS ? TILE_FLOATS / job.channels : 1;
    return kvl_parallel_for(kvl_tiles(count, job.rows), 0, decode_tile, &job, err);
}

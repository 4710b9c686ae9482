/* record_roundtrip.c - rows through a record and back, several threads at a time: prefill computes
 * with what decode will find in the cache. */
#include "kvlab/parallel.h"
#include "kvlab/record.h"

enum { TILE = 64 }; /* rows */

typedef struct trip {
    const kvl_record *rec;
    float *y;
    const float *x;
    int64_t y_stride, x_stride, n;
} trip;

/* scratch: one entry, data row and then scale row */
static kvl_status trip_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    const trip *t = ctx;
    uint8_t *data = scratch, *scale = data + kvl_record_about(t->rec)->data_bytes;
    int64_t last = (tile + 1) * TILE < t->n ? (tile + 1) * TILE : t->n;
    (void)err;
    for (int64_t i = tile * TILE; i < last; i++) {
        kvl_record_encode(t->rec, data, scale, t->x + i * t->x_stride);
        kvl_record_decode(t->rec, t->y + i * t->y_stride, data, scale);
    }
    return KVL_OK;
}

kvl_status kvl_record_roundtrip(const kvl_record *rec, float *y, int64_t y_stride, const float *x,
                                int64_t x_stride, int64_t n, kvl_error *err) {
    const kvl_record_info *info = kvl_record_about(rec);
    trip t = {rec, y, x, y_stride, x_stride, n};
    return kvl_parallel_for(kvl_tiles(n, TILE), (size_t)(info->data_bytes + info->scale_bytes),
                            trip_tile, &t, err);
}

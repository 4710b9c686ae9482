/* walk.h - private: visits the elements of several tensors in step.
 *
 * The operands (output first) are broadcast to one shape, dimensions that every operand passes in
 * order are merged, and what remains is cut into tasks of about KVL_TILE elements. Tasks depend on
 * sizes only, never on the number of threads. A row function gets a run of n elements: one pointer
 * and one stride (in elements; all types have 4 bytes) for each operand.
 */
#ifndef walk_h
#define walk_h

#include "kvlab/parallel.h"
#include "kvlab/tensor.h"

enum { KVL_WALK_MAX = 4, KVL_TILE = 16384 };

typedef struct kvl_walk {
    int count, ndim;
    bool whole_rows; /* the last dimension is passed in one piece and is not merged */
    int64_t shape[KVL_MAX_DIMS];
    int64_t stride[KVL_WALK_MAX][KVL_MAX_DIMS];
    char *base[KVL_WALK_MAX];
} kvl_walk;

typedef kvl_status kvl_row_fn(void *ctx, int64_t n, char *const *p, const int64_t *stride,
                              kvl_error *err);

/* The shape that a and b broadcast to; `what` names the operation in the error. */
kvl_status kvl_broadcast(int *ndim, int64_t *shape, const char *what, const kvl_tensor *a,
                         const kvl_tensor *b, kvl_error *err);

/* Starts a walk over `shape`; then kvl_walk_add for each operand, the output first. An operand must
 * broadcast to the shape. */
void kvl_walk_init(kvl_walk *w, int ndim, const int64_t *shape);
void kvl_walk_add(kvl_walk *w, const kvl_tensor *t);
kvl_status kvl_walk_run(kvl_walk *w, kvl_row_fn *row, void *ctx, kvl_error *err);

/* Fails when the view repeats elements, so that it cannot be written. */
kvl_status kvl_check_writable(const kvl_tensor *dst, const char *what, kvl_error *err);

#endif

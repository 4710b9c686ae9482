/* lprint.c - tostring of a tensor: type, shape, and the elements at its edges.
 *
 *     float32 {2, 3}
 *     {{1, 2, 3},
 *      {4, 5, 6}}
 *
 * At most SHOWN elements are printed, whatever the size: of a long dimension the first and last
 * few, with "..." between. Whole numbers are printed without a point when all shown elements are
 * whole.
 */
#include "lkvl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN = 256, CELL = 16 };

typedef struct print_job {
    kvl_tensor head; /* shape and strides */
    int edge;        /* elements shown at either end of a dimension */
    int count, width;
    char cell[SHOWN][CELL];
} print_job;

static int64_t shown_of(int64_t size, int edge) {
    return size <= 2 * edge ? size : 2 * edge;
}

/* The index of the i-th shown element of a dimension. */
static int64_t shown_at(int64_t size, int edge, int64_t i) {
    return size <= 2 * edge || i < edge ? i : size - 2 * edge + i;
}

/* Collects the shown elements in order, before anything is allocated: see lkvl.h. */
static void collect(print_job *job, double *value, int depth, int64_t at) {
    const kvl_tensor *t = &job->head;
    if (depth == t->ndim) {
        value[job->count++] = t->dtype == KVL_INT32 ? kvl_tensor_i32(t)[at]
                                                    : (double)kvl_tensor_f32(t)[at];
        return;
    }
    int64_t n = shown_of(t->shape[depth], job->edge);
    for (int64_t i = 0; i < n; i++)
        collect(job, value, depth + 1,
                at + shown_at(t->shape[depth], job->edge, i) * t->stride[depth]);
}

static void format_cells(print_job *job, const double *value) {
    bool whole = true;
    for (int i = 0; i < job->count; i++)
        if (isfinite(value[i]) && (value[i] != floor(value[i]) || fabs(value[i]) >= 1e10))
            whole = false;
    for (int i = 0; i < job->count; i++) {
        const char *format = whole ? "%.0f" : "%.5g";
        int n = isnan(value[i]) ? snprintf(job->cell[i], CELL, "nan")
                                : snprintf(job->cell[i], CELL, format, value[i]);
        if (n > job->width) job->width = n;
    }
}

static void add_dimension(luaL_Buffer *b, const print_job *job, int depth, int *next) {
    const kvl_tensor *t = &job->head;
    if (depth == t->ndim) {
        const char *cell = job->cell[(*next)++];
        for (int i = (int)strlen(cell); t->ndim > 1 && i < job->width; i++)
            luaL_addchar(b, ' ');
        luaL_addstring(b, cell);
        return;
    }
    int64_t size = t->shape[depth], n = shown_of(size, job->edge);
    bool last = depth == t->ndim - 1;
    luaL_addchar(b, '{');
    for (int64_t i = 0; i < n; i++) {
        if (i > 0) {
            luaL_addstring(b, last ? ", " : ",\n");
            for (int k = 0; !last && k <= depth; k++)
                luaL_addchar(b, ' ');
        }
        if (i == job->edge && n < size) {
            luaL_addstring(b, last ? "..., " : "...\n");
            for (int k = 0; !last && k <= depth; k++)
                luaL_addchar(b, ' ');
        }
        add_dimension(b, job, depth + 1, next);
    }
    luaL_addchar(b, '}');
}

static int t_tostring(lua_State *L) {
    char text[KVL_SHAPE_TEXT];
    double value[SHOWN];
    print_job job = {.edge = 3};
    kvl_tensor **slot = luaL_checkudata(L, 1, KVL_TENSOR);
    if (!*slot) {
        lua_pushliteral(L, "Tensor (freed)");
        return 1;
    }
    job.head = **slot;
    for (;; job.edge--) { /* 2 ^ 8 dimensions fit with an edge of 1 */
        int64_t count = 1;
        for (int i = 0; i < job.head.ndim; i++)
            count *= shown_of(job.head.shape[i], job.edge);
        if (count <= SHOWN) break;
    }
    collect(&job, value, 0, 0);
    format_cells(&job, value);

    luaL_Buffer b;
    int next = 0;
    luaL_buffinit(L, &b);
    luaL_addstring(&b, kvl_dtype_name(job.head.dtype));
    luaL_addchar(&b, ' ');
    luaL_addstring(&b, kvl_shape_text(text, job.head.ndim, job.head.shape));
    luaL_addchar(&b, job.head.ndim > 1 ? '\n' : ' ');
    if (job.count > 0)
        add_dimension(&b, &job, 0, &next);
    else
        luaL_addstring(&b, "(no elements)");
    luaL_pushresult(&b);
    return 1;
}

void kvl_open_print(lua_State *L) {
    luaL_getmetatable(L, KVL_TENSOR);
    lua_pushcfunction(L, t_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pop(L, 1);
}

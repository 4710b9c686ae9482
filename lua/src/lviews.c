/* lviews.c - methods of Tensor that give views, or copies where there can be none. */
#include "lkvl.h"

#include <string.h>

/* Reshape and contiguous may copy: `of` is what they were made of. */
static int done_maybe(lua_State *L, kvl_status status, const kvl_error *err, kvl_tensor **made,
                      kvl_tensor *of) {
    if (status == KVL_OK && kvl_tensor_shares(*made, of)) return 1;
    return kvl_done(L, status, err, 1);
}

/* t:slice(dim [, first [, last [, step]]]): 1-based, both ends included, negative from the end. */
static int t_slice(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_check_dim(L, 2, t->ndim);
    int64_t size = t->shape[dim];
    lua_Integer first = luaL_optinteger(L, 3, 1), last = luaL_optinteger(L, 4, size);
    lua_Integer step = luaL_optinteger(L, 5, 1);
    if (first < 0 && first >= -size) first += size + 1;
    if (last < 0 && last >= -size - 1) last += size + 1;
    luaL_argcheck(L, step >= 1, 5, "the step is 1 or more");
    if (first < 1 || first > size + 1)
        return luaL_argerror(L, 3,
                             lua_pushfstring(L,
                                             "first %I: there are 1 .. %I, or -1 for the last one",
                                             (LUAI_UACINT)first, (LUAI_UACINT)size));
    if (last < first - 1 || last > size)
        return luaL_argerror(
            L, 4,
            lua_pushfstring(L, "last %I: expected %I (nothing) .. %I, or -1 for the end",
                            (LUAI_UACINT)last, (LUAI_UACINT)(first - 1), (LUAI_UACINT)size));
    int64_t count = last < first ? 0 : (last - first) / step + 1;
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_slice(slot, t, dim, first - 1, count, step, &err), &err);
}

/* t:select(dim, index) */
static int t_select(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_check_dim(L, 2, t->ndim);
    int64_t index = kvl_check_index(L, 3, t->shape[dim]);
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_select(slot, t, dim, index, &err), &err);
}

/* t:transpose([a, b]): without arguments the last two dimensions. */
static int t_transpose(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (t->ndim < 2) return luaL_argerror(L, 1, "a transpose needs two dimensions");
    int a = kvl_opt_dim(L, 2, t->ndim, t->ndim - 2), b = kvl_opt_dim(L, 3, t->ndim, t->ndim - 1);
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_transpose(slot, t, a, b, &err), &err);
}

/* t:permute(dims...): dimension i of the result is dimension dims[i] of t. */
static int t_permute(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int64_t list[KVL_MAX_DIMS];
    int ndim, dims[KVL_MAX_DIMS];
    kvl_check_shape(L, 2, &ndim, list);
    if (ndim != t->ndim)
        return luaL_argerror(L, 2,
                             lua_pushfstring(L, "%d dimensions for a tensor of %d", ndim, t->ndim));
    for (int i = 0; i < ndim; i++) {
        if (list[i] == 0 || list[i] < -ndim || list[i] > ndim)
            return luaL_argerror(
                L, 2,
                lua_pushfstring(L, "dimension %I: there are 1 .. %d, or -1 for the last one",
                                (LUAI_UACINT)list[i], ndim));
        dims[i] = (int)(list[i] > 0 ? list[i] - 1 : ndim + list[i]);
    }
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    if (t->ndim != ndim) return luaL_argerror(L, 1, "the tensor changed");
    return kvl_done_view(L, kvl_tensor_permute(slot, t, dims, &err), &err);
}

/* t:expand(sizes...): -1 keeps a size. */
static int t_expand(lua_State *L) {
    kvl_error err;
    int64_t shape[KVL_MAX_DIMS];
    int ndim;
    kvl_check_tensor(L, 1);
    kvl_check_shape(L, 2, &ndim, shape);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_expand(slot, t, ndim, shape, &err), &err);
}

/* t:reshape(sizes...): one may be -1. */
static int t_reshape(lua_State *L) {
    kvl_error err;
    int64_t shape[KVL_MAX_DIMS];
    int ndim;
    kvl_check_tensor(L, 1);
    kvl_check_shape(L, 2, &ndim, shape);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return done_maybe(L, kvl_tensor_reshape(slot, t, ndim, shape, &err), &err, slot, t);
}

static int t_flatten(lua_State *L) {
    kvl_error err;
    int64_t all = -1;
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (kvl_tensor_numel(t) == 0) all = 0;
    return done_maybe(L, kvl_tensor_reshape(slot, t, 1, &all, &err), &err, slot, t);
}

/* t:squeeze(dim): drops a dimension of size 1. */
static int t_squeeze(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_check_dim(L, 2, t->ndim);
    if (t->shape[dim] != 1)
        return luaL_argerror(L, 2,
                             lua_pushfstring(L, "dimension %d has size %I, only 1 can be dropped",
                                             dim + 1, (LUAI_UACINT)t->shape[dim]));
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_select(slot, t, dim, 0, &err), &err);
}

/* t:unsqueeze(dim): a new dimension of size 1 at that place. */
static int t_unsqueeze(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (t->ndim == KVL_MAX_DIMS) return luaL_argerror(L, 1, "the tensor has 8 dimensions already");
    int dim = kvl_check_dim(L, 2, t->ndim + 1);
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    kvl_tensor *wide = NULL;
    int64_t shape[KVL_MAX_DIMS] = {1};
    int order[KVL_MAX_DIMS];
    memcpy(shape + 1, t->shape, (size_t)t->ndim * sizeof *shape);
    for (int i = 0; i <= t->ndim; i++)
        order[i] = i < dim ? i + 1 : i == dim ? 0 : i;
    kvl_status status = kvl_tensor_expand(&wide, t, t->ndim + 1, shape, &err);
    if (status == KVL_OK) status = kvl_tensor_permute(slot, wide, order, &err);
    kvl_tensor_free(wide);
    return kvl_done_view(L, status, &err);
}

static int t_contiguous(lua_State *L) {
    kvl_error err;
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return done_maybe(L, kvl_tensor_contiguous(slot, t, &err), &err, slot, t);
}

static int t_clone(lua_State *L) {
    kvl_error err;
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return kvl_done(L, kvl_tensor_clone(slot, t, &err), &err, 1);
}

/* t:to(dtype) */
static int t_to(lua_State *L) {
    kvl_error err;
    kvl_check_tensor(L, 1);
    luaL_checkstring(L, 2);
    kvl_dtype dtype = kvl_opt_dtype(L, 2, KVL_FLOAT32);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return done_maybe(L, kvl_tensor_cast(slot, t, dtype, &err), &err, slot, t);
}

static const luaL_Reg methods[] = {
    {"slice", t_slice},
    {"select", t_select},
    {"transpose", t_transpose},
    {"permute", t_permute},
    {"expand", t_expand},
    {"reshape", t_reshape},
    {"flatten", t_flatten},
    {"squeeze", t_squeeze},
    {"unsqueeze", t_unsqueeze},
    {"contiguous", t_contiguous},
    {"clone", t_clone},
    {"to", t_to},
    {NULL, NULL},
};

void kvl_open_views(lua_State *L) {
    luaL_getmetatable(L, KVL_TENSOR);
    lua_getfield(L, -1, "methods");
    luaL_setfuncs(L, methods, 0);
    lua_pop(L, 2);
}

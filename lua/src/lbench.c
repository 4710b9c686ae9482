/* lbench.c - core.bench: the limits that kvlab bench holds kernels against. */
#include "lkvl.h"

/* The float32 tensor at `arg`, without gaps. */
static kvl_tensor *check_buffer(lua_State *L, int arg) {
    kvl_tensor *t = kvl_check_tensor(L, arg);
    if (t->dtype != KVL_FLOAT32 || !kvl_tensor_is_contiguous(t))
        kvl_shape_error(L, arg, "a contiguous float32 tensor");
    return t;
}

/* sgemm(c, a, b): three tensors {n, n} */
static int bench_sgemm(lua_State *L) {
    kvl_error err;
    kvl_tensor *m[3];
    for (int i = 0; i < 3; i++) {
        m[i] = check_buffer(L, i + 1);
        if (m[i]->ndim != 2 || m[i]->shape[0] != m[i]->shape[1] || m[i]->shape[0] != m[0]->shape[0])
            kvl_shape_error(L, i + 1, "square matrices of one size");
    }
    if (kvl_bench_sgemm(kvl_tensor_f32(m[0]), kvl_tensor_f32(m[1]), kvl_tensor_f32(m[2]),
                        m[0]->shape[0], &err))
        return kvl_raise(L, &err);
    return 0;
}

/* read(x) -> sum */
static int bench_read(lua_State *L) {
    kvl_error err;
    double sum;
    kvl_tensor *x = check_buffer(L, 1);
    if (kvl_bench_read(&sum, kvl_tensor_f32(x), kvl_tensor_numel(x), &err))
        return kvl_raise(L, &err);
    lua_pushnumber(L, sum);
    return 1;
}

/* copy(dst, src): tensors of as many elements */
static int bench_copy(lua_State *L) {
    kvl_error err;
    kvl_tensor *dst = check_buffer(L, 1), *src = check_buffer(L, 2);
    luaL_argcheck(L, kvl_tensor_numel(dst) == kvl_tensor_numel(src), 2,
                  "expected as many elements");
    luaL_argcheck(L, kvl_tensor_f32(dst) != kvl_tensor_f32(src), 2, "expected another tensor");
    if (kvl_bench_copy(kvl_tensor_f32(dst), kvl_tensor_f32(src), kvl_tensor_numel(dst), &err))
        return kvl_raise(L, &err);
    return 0;
}

/* decode(dst {n, channels}, source): the first n rows of the source's table */
static int bench_decode(lua_State *L) {
    kvl_error err;
    luaL_checktype(L, 2, LUA_TTABLE);
    kvl_push_reader(L, 2);
    int block = lua_gettop(L);
    kvl_tensor *dst = check_buffer(L, 1);
    kvl_reader *reader = kvl_fill_reader(L, block);
    if (dst->ndim != 2 || dst->shape[1] != kvl_table_channels(reader->tables[0]))
        kvl_shape_error(L, 1, "rows {n, channels} of the table");
    if (kvl_bench_decode(kvl_tensor_f32(dst), reader, dst->shape[0], &err))
        return kvl_raise(L, &err);
    return 0;
}

void kvl_open_bench(lua_State *L) {
    static const luaL_Reg functions[] = {{"sgemm", bench_sgemm},
                                         {"read", bench_read},
                                         {"copy", bench_copy},
                                         {"decode", bench_decode},
                                         {NULL, NULL}};
    kvl_open_part(L, "bench", functions);
}

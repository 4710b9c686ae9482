/* module.c - luaopen_kvlab_core: the C half of `require 'kvlab'`, one subtable for each part. */
#include "lkvl.h"

KVL_API int luaopen_kvlab_core(lua_State *L);

int luaopen_kvlab_core(lua_State *L) {
    luaL_checkversion(L);
    lua_newtable(L);
    lua_pushliteral(L, KVL_VERSION);
    lua_setfield(L, -2, "version");
    kvl_open_base(L);
    kvl_open_readline(L);
    kvl_open_number(L);
    kvl_open_record(L);
    kvl_open_tensor(L);
    kvl_open_make(L);
    kvl_open_views(L);
    kvl_open_print(L);
    kvl_open_ops(L);
    kvl_open_pool(L);
    kvl_open_safetensors(L);
    kvl_open_norm(L);
    kvl_open_attend(L);
    kvl_open_compress(L);
    kvl_open_bench(L);
    kvl_open_system(L);
    kvl_open_grad(L);
    kvl_open_attend_grad(L);
    kvl_open_loss(L);
    return 1;
}

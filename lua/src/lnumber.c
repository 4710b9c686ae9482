/* lnumber.c - core.number: names, facts, and one value at a time. lua/kvlab/number.lua is its
 * public face. */
#include "lkvl.h"

static const char *const ties_names[] = {"even", "down", "away", "up", NULL};

static kvl_number check_number(lua_State *L, int arg) {
    const char *name = luaL_checkstring(L, arg);
    kvl_number number = KVL_F32;
    if (!kvl_number_named(&number, name)) luaL_error(L, "no number named '%s'", name);
    return number;
}

/* names() -> list of the names of all numbers, in the order of the core. */
static int number_names(lua_State *L) {
    lua_createtable(L, KVL_NUMBERS, 0);
    for (int i = 0; i < KVL_NUMBERS; i++) {
        lua_pushstring(L, kvl_number_about((kvl_number)i)->name);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static void set_number(lua_State *L, const char *key, double value) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void set_integer(lua_State *L, const char *key, int value) {
    lua_pushinteger(L, value);
    lua_setfield(L, -2, key);
}

static void set_boolean(lua_State *L, const char *key, bool value) {
    lua_pushboolean(L, value);
    lua_setfield(L, -2, key);
}

/* info(name) -> table */
static int number_info(lua_State *L) {
    const kvl_number_info *info = kvl_number_about(check_number(L, 1));
    lua_newtable(L);
    lua_pushstring(L, info->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, info->label);
    lua_setfield(L, -2, "label");
    set_integer(L, "bits", info->bits);
    set_number(L, "bytes", info->bits / 8.0);
    set_integer(L, "exponent_bits", info->exponent_bits);
    set_integer(L, "mantissa_bits", info->mantissa_bits);
    set_integer(L, "bias", info->bias);
    set_number(L, "max", info->max);
    set_number(L, "min", info->min);
    set_number(L, "min_normal", info->min_normal);
    set_number(L, "min_subnormal", info->min_subnormal);
    set_boolean(L, "has_inf", info->has_inf);
    set_boolean(L, "has_nan", info->has_nan);
    return 1;
}

/* encode(name, x, ties, saturate) -> code */
static int number_encode(lua_State *L) {
    kvl_number number = check_number(L, 1);
    float x = (float)luaL_checknumber(L, 2);
    kvl_ties ties = (kvl_ties)luaL_checkoption(L, 3, "even", ties_names);
    bool saturate = lua_isnoneornil(L, 4) || lua_toboolean(L, 4);
    uint32_t code = saturate ? kvl_number_encode(number, x, ties)
                             : kvl_number_encode_strict(number, x, ties);
    lua_pushinteger(L, (lua_Integer)code);
    return 1;
}

/* decode(name, code) -> x */
static int number_decode(lua_State *L) {
    kvl_number number = check_number(L, 1);
    lua_Integer code = luaL_checkinteger(L, 2);
    lua_Integer last = ((lua_Integer)1 << kvl_number_about(number)->bits) - 1;
    if (code < 0 || code > last)
        return luaL_error(L, "code %I is not one of %s's, which are 0 to %I", (LUAI_UACINT)code,
                          kvl_number_about(number)->name, (LUAI_UACINT)last);
    lua_pushnumber(L, (lua_Number)kvl_number_decode(number, (uint32_t)code));
    return 1;
}

static int number_ue8m0_up(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)kvl_ue8m0_up((float)luaL_checknumber(L, 1)));
    return 1;
}

static int number_ue8m0_floor(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)kvl_ue8m0_floor((float)luaL_checknumber(L, 1)));
    return 1;
}

static const luaL_Reg number_funcs[] = {{"names", number_names},
                                        {"info", number_info},
                                        {"encode", number_encode},
                                        {"decode", number_decode},
                                        {"ue8m0_up", number_ue8m0_up},
                                        {"ue8m0_floor", number_ue8m0_floor},
                                        {NULL, NULL}};

void kvl_open_number(lua_State *L) {
    kvl_open_part(L, "number", number_funcs);
}

/* lrecord.c - core.record: compiled records as userdata kvlab.Plan.
 *
 * A plan is a few hundred bytes, immutable, and shared by everybody who asks a record for the same
 * widths, so it has no :free(): the collector frees it with its last user. lua/kvlab/record.lua is
 * its public face.
 */
#include "lkvl.h"

#include <string.h>

#define PLAN "kvlab.Plan"

static const char *const ties_names[] = {"even", "down", "away", "up", NULL};
static const char *const rule_names[] = {"raw",    "pow2_up", "ocp_floor", "nearest",
                                         "signed", "range",   NULL};
static const char *const place_names[] = {"split", "before", "after", NULL};
static const char *const order_names[] = {"adjacent", "halves", NULL};
static const char *const nibble_names[] = {"low", "high", NULL};
static const char *const quotient_names[] = {"divide", "reciprocal", NULL};

/* Pages of this size and more are for a pool, not for a Lua string. */
enum { MAX_PAGE_STRING = 1 << 30 };

typedef struct plan {
    kvl_record *rec;
} plan;

static plan *check_plan(lua_State *L, int arg) {
    plan *p = luaL_checkudata(L, arg, PLAN);
    luaL_argcheck(L, p->rec, arg, "this plan was not completed");
    return p;
}

const kvl_record *kvl_check_plan(lua_State *L, int arg) {
    return check_plan(L, arg)->rec;
}

/* --- fields of the table on top of the stack -------------------------------------------------- */

static int64_t integer_field(lua_State *L, const char *key, int64_t absent) {
    int64_t value = absent;
    if (lua_getfield(L, -1, key) != LUA_TNIL) {
        int is_integer;
        value = lua_tointegerx(L, -1, &is_integer);
        if (!is_integer) luaL_error(L, "%s must be a whole number", key);
    }
    lua_pop(L, 1);
    return value;
}

static float number_field(lua_State *L, const char *key) {
    lua_Number value = 0;
    if (lua_getfield(L, -1, key) != LUA_TNIL) {
        int is_number;
        value = lua_tonumberx(L, -1, &is_number);
        if (!is_number) luaL_error(L, "%s must be a number", key);
    }
    lua_pop(L, 1);
    return (float)value;
}

static int word_field(lua_State *L, const char *key, const char *const *words) {
    int found = 0;
    if (lua_getfield(L, -1, key) != LUA_TNIL) {
        const char *word = lua_tostring(L, -1);
        for (found = 0; words[found]; found++)
            if (word && !strcmp(word, words[found])) break;
        if (!words[found]) luaL_error(L, "%s: no such choice", key);
    }
    lua_pop(L, 1);
    return found;
}

static kvl_number number_name_field(lua_State *L, const char *key) {
    kvl_number number = KVL_F32;
    lua_getfield(L, -1, key);
    const char *name = lua_tostring(L, -1);
    if (!name || !kvl_number_named(&number, name))
        luaL_error(L, "%s: no number named '%s'", key, name ? name : "?");
    lua_pop(L, 1);
    return number;
}

/* The field table is on top of the stack. */
static void read_field(lua_State *L, kvl_field *f) {
    f->channels = integer_field(L, "channels", 0);
    f->number = number_name_field(L, "number");
    f->ties = (kvl_ties)word_field(L, "ties", ties_names);
    f->place = (kvl_place)word_field(L, "place", place_names);
    f->block = integer_field(L, "block", 0);
    f->order = (kvl_order)word_field(L, "order", order_names);
    f->high_first = word_field(L, "nibbles", nibble_names) == 1;
    f->pad = integer_field(L, "pad", 0);
    f->scale_pad = integer_field(L, "scale_pad", 0);
    int type = lua_getfield(L, -1, "scale");
    f->scaled = type == LUA_TTABLE;
    if (f->scaled) {
        f->scale.number = number_name_field(L, "number");
        f->scale.rule = (kvl_rule)word_field(L, "rule", rule_names);
        f->scale.group = integer_field(L, "group", 0);
        f->scale.reciprocal = word_field(L, "quotient", quotient_names) == 1;
        f->scale.ties = (kvl_ties)word_field(L, "ties", ties_names);
        type = lua_getfield(L, -1, "floor");
        if (type == LUA_TTABLE) {
            f->scale.floor_amax = number_field(L, "amax");
            f->scale.floor_scale = number_field(L, "scale");
        } else if (type != LUA_TNIL) {
            luaL_error(L, "floor must be a table");
        }
        lua_pop(L, 1);
    } else if (type != LUA_TNIL) {
        luaL_error(L, "scale must be a table");
    }
    lua_pop(L, 1);
}

/* compile(fields, entries, align, name) -> Plan.
 * The fields have every word resolved to a number. */
static int record_compile(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    int64_t entries = luaL_checkinteger(L, 2), align = luaL_checkinteger(L, 3);
    luaL_checkstring(L, 4);
    int64_t n = (int64_t)lua_rawlen(L, 1);
    luaL_argcheck(L, n >= 1 && n <= 64, 1, "expected 1 to 64 fields");
    plan *p = lua_newuserdatauv(L, sizeof *p, 1);
    p->rec = NULL;
    luaL_setmetatable(L, PLAN);
    lua_pushvalue(L, 4);
    lua_setiuservalue(L, -2, 1);

    kvl_field fields[64];
    memset(fields, 0, sizeof fields);
    for (int64_t i = 0; i < n; i++) {
        if (lua_rawgeti(L, 1, i + 1) != LUA_TTABLE)
            return luaL_error(L, "field %d must be a table", (int)i + 1);
        read_field(L, &fields[i]);
        lua_pop(L, 1);
    }
    kvl_error err;
    if (kvl_record_compile(&p->rec, fields, n, entries, align, &err)) return kvl_raise(L, &err);
    return 1;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* The row table at stack index `arg` as floats, in a new userdata that is left on the stack. */
static float *read_row(lua_State *L, int arg, const char *what, int64_t channels) {
    if (lua_type(L, arg) != LUA_TTABLE)
        luaL_error(L, "%s must be a table of %I numbers, not a %s", what, (LUAI_UACINT)channels,
                   luaL_typename(L, arg));
    int64_t n = luaL_len(L, arg);
    if (n != channels)
        luaL_error(L, "%s has %I numbers, expected %I", what, (LUAI_UACINT)n,
                   (LUAI_UACINT)channels);
    float *x = lua_newuserdatauv(L, (size_t)channels * sizeof *x, 0);
    for (int64_t i = 0; i < channels; i++) {
        int is_number;
        lua_geti(L, arg, i + 1);
        x[i] = (float)lua_tonumberx(L, -1, &is_number);
        if (!is_number)
            luaL_error(L, "%s[%I] is a %s, expected a number", what, (LUAI_UACINT)(i + 1),
                       luaL_typename(L, -1));
        lua_pop(L, 1);
    }
    return x;
}

static void push_row(lua_State *L, const float *x, int64_t channels) {
    lua_createtable(L, (int)channels, 0);
    for (int64_t i = 0; i < channels; i++) {
        lua_pushnumber(L, (lua_Number)x[i]);
        lua_rawseti(L, -2, i + 1);
    }
}

static const uint8_t *check_bytes(lua_State *L, int arg, const char *what, int64_t expected) {
    size_t n;
    const char *bytes = expected || !lua_isnoneornil(L, arg) ? luaL_checklstring(L, arg, &n) : NULL;
    if (!bytes) return NULL;
    if ((int64_t)n != expected)
        luaL_error(L, "%s has %I bytes, expected %I", what, (LUAI_UACINT)n, (LUAI_UACINT)expected);
    return (const uint8_t *)bytes;
}

/* plan:encode(row) -> data, scale */
static int plan_encode(lua_State *L) {
    const kvl_record *rec = kvl_check_plan(L, 1);
    const kvl_record_info *info = kvl_record_about(rec);
    const float *x = read_row(L, 2, "row", info->channels);
    uint8_t *bytes = lua_newuserdatauv(L, (size_t)(info->data_bytes + info->scale_bytes), 0);
    kvl_record_encode(rec, bytes, bytes + info->data_bytes, x);
    lua_pushlstring(L, (const char *)bytes, (size_t)info->data_bytes);
    lua_pushlstring(L, (const char *)bytes + info->data_bytes, (size_t)info->scale_bytes);
    return 2;
}

/* plan:decode(data, scale) -> row */
static int plan_decode(lua_State *L) {
    const kvl_record *rec = kvl_check_plan(L, 1);
    const kvl_record_info *info = kvl_record_about(rec);
    const uint8_t *data = check_bytes(L, 2, "data", info->data_bytes);
    const uint8_t *scale = check_bytes(L, 3, "scale", info->scale_bytes);
    float *x = lua_newuserdatauv(L, (size_t)info->channels * sizeof *x, 0);
    kvl_record_decode(rec, x, data, scale);
    push_row(L, x, info->channels);
    return 1;
}

static int64_t check_slot(lua_State *L, int arg, const kvl_record_info *info) {
    int is_integer;
    lua_Integer slot = lua_tointegerx(L, arg, &is_integer);
    if (!is_integer || slot < 1 || slot > info->page_entries)
        luaL_error(L, "slot %s is not one of the page's, which are 1 to %I",
                   luaL_tolstring(L, arg, NULL), (LUAI_UACINT)info->page_entries);
    return slot - 1;
}

static void check_page_size(lua_State *L, const kvl_record_info *info) {
    if (info->page_bytes > MAX_PAGE_STRING)
        luaL_error(L, "a page of %I bytes is too large for a string; the limit is %d",
                   (LUAI_UACINT)info->page_bytes, MAX_PAGE_STRING);
}

/* plan:encode_page{[slot] = row} -> page */
static int plan_encode_page(lua_State *L) {
    const kvl_record *rec = kvl_check_plan(L, 1);
    const kvl_record_info *info = kvl_record_about(rec);
    luaL_checktype(L, 2, LUA_TTABLE);
    check_page_size(L, info);
    uint8_t *page = lua_newuserdatauv(L, (size_t)info->page_bytes, 0);
    memset(page, 0, (size_t)info->page_bytes);
    lua_pushnil(L);
    while (lua_next(L, 2)) { /* page, key, row */
        int64_t slot = check_slot(L, -2, info);
        char what[32];
        lua_Integer shown = (lua_Integer)slot + 1;
        lua_pushfstring(L, "row %I", (LUAI_UACINT)shown);
        strncpy(what, lua_tostring(L, -1), sizeof what - 1);
        what[sizeof what - 1] = 0;
        lua_pop(L, 1);
        const float *x = read_row(L, lua_gettop(L), what, info->channels);
        kvl_record_encode_slots(rec, page, slot, x, info->channels, 1);
        lua_pop(L, 2);
    }
    lua_pushlstring(L, (const char *)page, (size_t)info->page_bytes);
    return 1;
}

/* plan:decode_page(page, slot) -> row */
static int plan_decode_page(lua_State *L) {
    const kvl_record *rec = kvl_check_plan(L, 1);
    const kvl_record_info *info = kvl_record_about(rec);
    const uint8_t *page = check_bytes(L, 2, "page", info->page_bytes);
    int64_t slot = check_slot(L, 3, info);
    float *x = lua_newuserdatauv(L, (size_t)info->channels * sizeof *x, 0);
    kvl_record_decode_slots(rec, x, info->channels, page, slot, 1);
    push_row(L, x, info->channels);
    return 1;
}

/* plan:roundtrip(rows [..., channels]) -> tensor of the same shape */
static int plan_roundtrip(lua_State *L) {
    lua_settop(L, 2);
    kvl_error err;
    char shape[KVL_SHAPE_TEXT];
    kvl_tensor **out = kvl_push_tensor(L), *rows;
    const kvl_record *rec = kvl_check_plan(L, 1);
    const kvl_tensor *x = kvl_check_tensor(L, 2);
    int64_t channels = kvl_record_about(rec)->channels;
    if (x->dtype != KVL_FLOAT32 || x->ndim == 0 || x->shape[x->ndim - 1] != channels)
        return luaL_error(L, "roundtrip: rows are %s %s, expected float32 {..., %I}",
                          kvl_dtype_name(x->dtype), kvl_shape_text(shape, x->ndim, x->shape),
                          (LUAI_UACINT)channels);
    kvl_status status = kvl_tensor_new(out, KVL_FLOAT32, x->ndim, x->shape, &err);
    if (!status) status = kvl_tensor_contiguous(&rows, x, &err);
    if (!status) {
        status = kvl_record_roundtrip(rec, kvl_tensor_f32(*out), channels, kvl_tensor_f32(rows),
                                      channels, kvl_tensor_numel(x) / channels, &err);
        kvl_tensor_free(rows);
    }
    return kvl_done(L, status, &err, 1);
}

/* --- the userdata ----------------------------------------------------------------------------- */

static int plan_gc(lua_State *L) {
    plan *p = luaL_checkudata(L, 1, PLAN);
    kvl_record_free(p->rec);
    p->rec = NULL;
    return 0;
}

static int plan_tostring(lua_State *L) {
    const kvl_record_info *info = kvl_record_about(kvl_check_plan(L, 1));
    lua_getiuservalue(L, 1, 1);
    lua_pushfstring(L, "kvlab.Plan %s: %I channels in %I bytes", lua_tostring(L, -1),
                    (LUAI_UACINT)info->channels,
                    (LUAI_UACINT)(info->data_bytes + info->scale_bytes));
    return 1;
}

/* The methods are upvalue 1. */
static int plan_index(lua_State *L) {
    const kvl_record_info *info = kvl_record_about(kvl_check_plan(L, 1));
    const char *key = luaL_checkstring(L, 2);
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {{"bytes", info->data_bytes + info->scale_bytes},
                   {"data_bytes", info->data_bytes},
                   {"scale_bytes", info->scale_bytes},
                   {"channels", info->channels},
                   {"page_entries", info->page_entries},
                   {"page_bytes", info->page_bytes},
                   {"page_padding", info->page_padding}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!strcmp(key, numbers[i].key)) {
            lua_pushinteger(L, numbers[i].value);
            return 1;
        }
    if (!strcmp(key, "name")) {
        lua_getiuservalue(L, 1, 1);
        return 1;
    }
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) == LUA_TNIL)
        return luaL_error(L, "a plan has no field '%s'", key);
    return 1;
}

static const luaL_Reg plan_methods[] = {
    {"encode", plan_encode},           {"decode", plan_decode},
    {"encode_page", plan_encode_page}, {"decode_page", plan_decode_page},
    {"roundtrip", plan_roundtrip},     {NULL, NULL}};

static const luaL_Reg plan_meta[] = {
    {"__gc", plan_gc}, {"__tostring", plan_tostring}, {NULL, NULL}};

static const luaL_Reg record_funcs[] = {{"compile", record_compile}, {NULL, NULL}};

void kvl_open_record(lua_State *L) {
    luaL_newmetatable(L, PLAN); /* sets __name */
    luaL_setfuncs(L, plan_meta, 0);
    luaL_newlib(L, plan_methods);
    lua_pushcclosure(L, plan_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
    kvl_open_part(L, "record", record_funcs);
    lua_getfield(L, -1, "record"); /* a copy of the methods, for kv.classes */
    luaL_newlib(L, plan_methods);
    lua_setfield(L, -2, "plan_methods");
    lua_pop(L, 1);
}

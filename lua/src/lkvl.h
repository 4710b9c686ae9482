/* lkvl.h - helpers of the binding. The binding checks arguments, calls the core and pushes results:
 * no mathematics here. Every open function adds its subtable to the module table on top of the stack. */
#ifndef lkvl_h
#define lkvl_h

#include <lauxlib.h>
#include <lua.h>

#include "kvlab/kvlab.h"

/* Raises a Lua error with the message of a failed core call; never returns. */
int kvl_raise(lua_State *L, const kvl_error *err);

/* Opens one part of the module: creates a table of `funcs`, stores it as field `name` of the table on
 * top of the stack. */
void kvl_open_part(lua_State *L, const char *name, const luaL_Reg *funcs);

/* The record of the kvlab.Plan at stack index `arg`; an argument error when it is something else. */
const kvl_record *kvl_check_plan(lua_State *L, int arg);

void kvl_open_base(lua_State *L);
void kvl_open_readline(lua_State *L);
void kvl_open_number(lua_State *L);
void kvl_open_record(lua_State *L);

#endif

/* lbase.c - core.base: version, memory, clock, terminal, interrupts. */
#include "lkvl.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static lua_State *interrupt_state; /* set once a front end catches Ctrl-C */

int kvl_raise(lua_State *L, const kvl_error *err) {
    if (err->status != KVL_ECANCEL) return luaL_error(L, "%s", err->msg);
    if (interrupt_state) { /* one Ctrl-C is one error: the hook that waits for it goes */
        lua_sethook(interrupt_state, NULL, 0, 0);
        kvl_cancel_clear();
    }
    return luaL_error(L, "interrupted");
}

void kvl_open_part(lua_State *L, const char *name, const luaL_Reg *funcs) {
    lua_newtable(L);
    luaL_setfuncs(L, funcs, 0);
    lua_setfield(L, -2, name);
}

static int base_live_bytes(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)kvl_live_bytes());
    return 1;
}

static int base_memory_limit(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)kvl_memory_limit());
    return 1;
}

static int base_now(lua_State *L) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    lua_pushnumber(L, (lua_Number)t.tv_sec + (lua_Number)t.tv_nsec * 1e-9);
    return 1;
}

static int base_isatty(lua_State *L) {
    lua_Integer fd = luaL_checkinteger(L, 1);
    luaL_argcheck(L, fd >= 0 && fd <= 2, 1, "expected 0 (stdin), 1 (stdout) or 2 (stderr)");
    lua_pushboolean(L, isatty((int)fd));
    return 1;
}

/* Ctrl-C. The handler may only set flags; Lua notices through a hook, the core through kvl_cancel.
 * While a prompt waits for a line nothing runs, and the hook fires at the first instruction after. */
static void interrupt_hook(lua_State *L, lua_Debug *ar) {
    (void)ar;
    lua_sethook(L, NULL, 0, 0);
    kvl_cancel_clear();
    luaL_error(L, "interrupted");
}

static void on_interrupt(int signo) {
    (void)signo;
    kvl_cancel();
    if (interrupt_state)
        lua_sethook(interrupt_state, interrupt_hook,
                    LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

/* catch_interrupts(): from now on Ctrl-C raises the Lua error "interrupted" in the running code
 * instead of ending the process. Called once by a front end, never by the library. */
static int base_catch_interrupts(lua_State *L) {
    struct sigaction act;
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
    interrupt_state = lua_tothread(L, -1);
    memset(&act, 0, sizeof act);
    act.sa_handler = on_interrupt; /* no SA_RESTART: a waiting read returns */
    sigemptyset(&act.sa_mask);
    sigaction(SIGINT, &act, NULL);
    return 0;
}

/* clear_interrupt() -> boolean: forgets a pending Ctrl-C; true when there was one. */
static int base_clear_interrupt(lua_State *L) {
    lua_pushboolean(L, kvl_cancelled());
    if (interrupt_state) lua_sethook(interrupt_state, NULL, 0, 0);
    kvl_cancel_clear();
    return 1;
}

static const luaL_Reg base_funcs[] = {{"live_bytes", base_live_bytes},
                                      {"memory_limit", base_memory_limit},
                                      {"now", base_now},
                                      {"isatty", base_isatty},
                                      {"catch_interrupts", base_catch_interrupts},
                                      {"clear_interrupt", base_clear_interrupt},
                                      {NULL, NULL}};

void kvl_open_base(lua_State *L) {
    kvl_open_part(L, "base", base_funcs);
    lua_pushliteral(L, KVL_VERSION);
    lua_setfield(L, -2, "version");
}

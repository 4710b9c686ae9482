/* lbase.c - core.base: version, memory, clock, terminal, interrupts, directories. */
#include "lkvl.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

/* limit_memory(bytes): what tensors and caches of this process may take together; 0: no limit */
static int base_limit_memory(lua_State *L) {
    lua_Integer bytes = luaL_checkinteger(L, 1);
    luaL_argcheck(L, bytes >= 0, 1, "expected bytes, or 0 for no limit");
    kvl_limit_memory((size_t)bytes);
    return 0;
}

/* fail_after(n): for tests: n more allocations of the core succeed, then none; negative:
 * no limit */
static int base_fail_after(lua_State *L) {
    kvl_alloc_fail_after(luaL_checkinteger(L, 1));
    return 0;
}

static int base_now(lua_State *L) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    lua_pushnumber(L, (lua_Number)t.tv_sec + (lua_Number)t.tv_nsec * 1e-9);
    return 1;
}

/* threads([n]) -> threads of the core's loops, after setting them to n (0: one per processor) */
static int base_threads(lua_State *L) {
    kvl_error err;
    if (!lua_isnoneornil(L, 1)) {
        lua_Integer n = luaL_checkinteger(L, 1);
        if (n < 0 || n > INT32_MAX)
            return luaL_error(L, "threads: expected 0 (one per processor) or a number of threads");
        if (kvl_set_threads((int)n, &err)) return kvl_raise(L, &err);
    }
    lua_pushinteger(L, kvl_threads());
    return 1;
}

/* blas_single_thread(): for a front end that owns the process, never called by the library. */
static int base_blas_single_thread(lua_State *L) {
    (void)L;
    kvl_blas_single_thread();
    return 0;
}

/* keep_memory(): likewise. */
static int base_keep_memory(lua_State *L) {
    (void)L;
    kvl_keep_memory();
    return 0;
}

static int base_isatty(lua_State *L) {
    lua_Integer fd = luaL_checkinteger(L, 1);
    luaL_argcheck(L, fd >= 0 && fd <= 2, 1, "expected 0 (stdin), 1 (stdout) or 2 (stderr)");
    lua_pushboolean(L, isatty((int)fd));
    return 1;
}

/* screen() -> columns, lines of the terminal that is the standard output; nothing when it is none,
 * false for what it does not say */
static int base_screen(lua_State *L) {
    struct winsize size = {0};
    if (ioctl(1, TIOCGWINSZ, &size) != 0) return 0;
    const unsigned short said[2] = {size.ws_col, size.ws_row};
    for (int i = 0; i < 2; i++) {
        if (said[i])
            lua_pushinteger(L, said[i]);
        else
            lua_pushboolean(L, false);
    }
    return 2;
}

/* --- Ctrl-C ----------------------------------------------------------------------------------- */

/* The handler may only set flags; Lua notices through a hook, the core through kvl_cancel. The hook
 * raises once and is gone, so that <close> variables can clean up; code that catches errors for
 * somebody else asks interrupted() and raises again. */
static lua_State *interrupt_state;
static volatile sig_atomic_t interrupt_armed;      /* may the handler set the hook? */
static volatile sig_atomic_t interrupt_seen;       /* since the last clear_interrupt */
static volatile sig_atomic_t interrupt_unanswered; /* signals since anybody noticed one */
static struct timespec interrupt_first;            /* the time of the first of these */

static volatile sig_atomic_t resumed; /* SIGCONT: a stopped session goes on */

static void interrupt_forget(void) {
    if (interrupt_state) lua_sethook(interrupt_state, NULL, 0, 0);
    interrupt_seen = interrupt_unanswered = 0;
    kvl_cancel_clear();
}

static int raise_interrupt(lua_State *L) {
    interrupt_unanswered = 0;
    kvl_cancel_clear();
    lua_pushliteral(L, "interrupted");
    return lua_error(L);
}

/* A cancelled computation in the main thread is the answer to Ctrl-C: one request, one error. */
int kvl_raise(lua_State *L, const kvl_error *err) {
    if (err->status != KVL_ECANCEL) return luaL_error(L, "%s", err->msg);
    if (L == interrupt_state) lua_sethook(L, NULL, 0, 0);
    return interrupt_state ? raise_interrupt(L) : luaL_error(L, "interrupted");
}

static void interrupt_hook(lua_State *L, lua_Debug *ar) {
    (void)ar;
    lua_sethook(L, NULL, 0, 0);
    raise_interrupt(L);
}

/* The hook of a coroutine: the signal handler reaches the main thread only, so others look now and
 * then. When the error has left the coroutine, interrupt_hook raises it again in the main thread.
 */
static void watch_hook(lua_State *L, lua_Debug *ar) {
    (void)ar;
    if (interrupt_seen) raise_interrupt(L);
}

static void set_interrupt_hook(void) {
    lua_sethook(interrupt_state, interrupt_hook,
                LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

/* A single call into C that does not poll (a pattern match can take years) hears nothing. Whoever
 * still presses Ctrl-C three seconds later is told how to end the process, and may. */
static void on_interrupt(int signo) {
    static const char note[] =
        "\nkvlab: this operation cannot be interrupted; Ctrl-C once more ends the process\n";
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (interrupt_unanswered == 0) interrupt_first = now;
    if (now.tv_sec - interrupt_first.tv_sec >= 3) {
        if (interrupt_unanswered < 0) {
            signal(signo, SIG_DFL);
            raise(signo);
            return;
        }
        if (interrupt_unanswered > 0) {
            ssize_t written = write(2, note, sizeof note - 1);
            (void)written;
            interrupt_unanswered = -1;
        }
    } else if (interrupt_unanswered >= 0) {
        interrupt_unanswered = 1;
    }
    interrupt_seen = 1;
    kvl_cancel();
    if (interrupt_armed) set_interrupt_hook();
}

static void on_resume(int signo) {
    (void)signo;
    resumed = 1;
}

/* The Lua state is closing: from here on the handler would write into freed memory. */
static int release_interrupts(lua_State *L) {
    (void)L;
    signal(SIGINT, SIG_DFL);
    signal(SIGCONT, SIG_DFL);
    interrupt_state = NULL;
    interrupt_armed = 0;
    return 0;
}

/* catch_interrupts([everywhere = true]): from now on Ctrl-C raises the Lua error "interrupted" in
 * the running code instead of ending the process; with false only in code that interruptible()
 * runs. Called once by a front end, never by the library. */
static int base_catch_interrupts(lua_State *L) {
    struct sigaction act;
    if (!interrupt_state) {
        lua_newuserdatauv(L, 0, 0); /* its finalizer runs when the state closes */
        lua_createtable(L, 0, 1);
        lua_pushcfunction(L, release_interrupts);
        lua_setfield(L, -2, "__gc");
        lua_setmetatable(L, -2);
        lua_rawsetp(L, LUA_REGISTRYINDEX, (const void *)&interrupt_state);
        lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
        interrupt_state = lua_tothread(L, -1);
        lua_pop(L, 1);
    }
    interrupt_armed = lua_isnoneornil(L, 1) || lua_toboolean(L, 1);
    memset(&act, 0, sizeof act);
    act.sa_handler = on_interrupt; /* no SA_RESTART: a waiting read returns */
    sigemptyset(&act.sa_mask);
    sigaction(SIGINT, &act, NULL);
    act.sa_handler = on_resume;
    act.sa_flags = SA_RESTART;
    sigaction(SIGCONT, &act, NULL);
    return 0;
}

/* interruptible(f, ...): pcall(f, ...) that Ctrl-C can stop after catch_interrupts(false). A front
 * end needs it so that its own code between two inputs is never hit; clear_interrupt() tells it of
 * one. */
static int base_interruptible(lua_State *L) {
    luaL_checkany(L, 1);
    sig_atomic_t before = interrupt_armed;
    if (interrupt_state) {
        interrupt_armed = 1;
        if (interrupt_seen) set_interrupt_hook();
    }
    int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
    interrupt_armed = before;
    if (interrupt_state && !before) lua_sethook(interrupt_state, NULL, 0, 0);
    lua_pushboolean(L, status == LUA_OK);
    lua_insert(L, 1);
    return lua_gettop(L);
}

/* hold_interrupts(held) -> a value to be closed: until then Ctrl-C reaches nothing (true), or again
 * what runs meanwhile (false). What came in between is noticed afterwards. Nests. */
#define INTERRUPT_HOLD "kvlab.InterruptHold"
typedef struct interrupt_hold {
    sig_atomic_t armed;
    bool held, open; /* what was before; still to be closed */
} interrupt_hold;

static void set_interrupt_hold(sig_atomic_t armed, bool held) {
    interrupt_armed = armed;
    kvl_cancel_hold(held);
    if (!interrupt_state) return;
    if (armed && interrupt_unanswered)
        set_interrupt_hook();
    else
        lua_sethook(interrupt_state, NULL, 0, 0);
}

static int interrupt_hold_close(lua_State *L) {
    interrupt_hold *hold = luaL_checkudata(L, 1, INTERRUPT_HOLD);
    if (hold->open) set_interrupt_hold(hold->armed, hold->held);
    hold->open = false;
    return 0;
}

static int base_hold_interrupts(lua_State *L) {
    bool held = lua_toboolean(L, 1);
    /* The hook would raise on the way out, before there is a variable to be closed. */
    if (!held && interrupt_state && interrupt_unanswered) return raise_interrupt(L);
    interrupt_hold *hold = lua_newuserdatauv(L, sizeof *hold, 0);
    hold->open = false;
    luaL_setmetatable(L, INTERRUPT_HOLD);
    hold->armed = interrupt_armed;
    hold->held = kvl_cancel_hold(held);
    hold->open = true;
    set_interrupt_hold(!held, held);
    return 1;
}

/* watch(thread): lets Ctrl-C reach a coroutine; those it creates inherit this. */
static int base_watch(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTHREAD);
    lua_sethook(lua_tothread(L, 1), watch_hook, LUA_MASKCOUNT, 1000);
    return 0;
}

/* interrupted() -> boolean: did Ctrl-C come since the last clear_interrupt()? */
static int base_interrupted(lua_State *L) {
    lua_pushboolean(L, interrupt_seen);
    return 1;
}

/* clear_interrupt() -> boolean: forgets a Ctrl-C; true when there was one. */
static int base_clear_interrupt(lua_State *L) {
    lua_pushboolean(L, interrupt_seen || kvl_cancelled());
    interrupt_forget();
    return 1;
}

/* wait_input() -> "ready" | "interrupted" | "resumed": waits for something to read from stdin, or
 * its end. A Ctrl-C ends the waiting and is forgotten; blocked until the wait begins, it cannot
 * slip in between. After Ctrl-Z and fg the terminal may have other settings, which an editor has to
 * renew. */
static int base_wait_input(lua_State *L) {
    sigset_t block, old;
    fd_set input;
    int ready = 0;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigaddset(&block, SIGCONT);
    sigprocmask(SIG_BLOCK, &block, &old);
    resumed = 0;
    while (!interrupt_seen && !resumed && ready <= 0) {
        FD_ZERO(&input);
        FD_SET(0, &input);
        ready = pselect(1, &input, NULL, NULL, NULL, &old);
        if (ready < 0 && errno != EINTR) ready = 1; /* the read will say what is wrong */
    }
    bool interrupted = interrupt_seen;
    if (interrupted) interrupt_forget();
    sigprocmask(SIG_SETMASK, &old, NULL);
    lua_pushstring(L, interrupted ? "interrupted" : ready > 0 ? "ready" : "resumed");
    return 1;
}

/* --- a memory limit for code from strangers --------------------------------------------------- */
typedef struct alloc_limit {
    lua_Alloc alloc; /* the allocator under this one */
    void *ud;
    int64_t left; /* bytes that may still be added; grows when something is freed */
} alloc_limit;

static void *limited_alloc(void *ud, void *ptr, size_t osize, size_t nsize) {
    alloc_limit *limit = ud;
    int64_t more = (int64_t)nsize - (int64_t)(ptr ? osize : 0); /* without ptr, osize is a tag */
    if (more > 0 && more > limit->left) return NULL;
    void *p = limit->alloc(limit->ud, ptr, osize, nsize);
    if (p || nsize == 0) limit->left -= more;
    return p;
}

/* with_memory_limit(bytes, f, ...): pcall(f, ...) during which the Lua heap may grow by that much;
 * beyond it the error is Lua's own "not enough memory". The limit is gone when the call returns. */
static int base_with_memory_limit(lua_State *L) {
    alloc_limit limit;
    lua_Integer bytes = luaL_checkinteger(L, 1);
    luaL_argcheck(L, bytes > 0, 1, "expected a positive number of bytes");
    luaL_checkany(L, 2);
    lua_gc(L, LUA_GCCOLLECT); /* garbage from before must not count as room when it goes */
    limit.alloc = lua_getallocf(L, &limit.ud);
    limit.left = bytes;
    lua_setallocf(L, limited_alloc, &limit);
    int status = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 0);
    lua_setallocf(L, limit.alloc, limit.ud);
    lua_pushboolean(L, status == LUA_OK);
    lua_replace(L, 1);
    return lua_gettop(L);
}

/* --- directories ------------------------------------------------------------------------------ */
static int dir_gc(lua_State *L) {
    DIR **dir = lua_touserdata(L, 1);
    if (*dir) closedir(*dir);
    *dir = NULL;
    return 0;
}

/* list_dir(path) -> names without "." and "..", in no order; nil and a message when it cannot. */
static int base_list_dir(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    DIR **dir = lua_newuserdatauv(L, sizeof *dir, 0); /* owned by Lua: pushing a name can fail */
    *dir = NULL;
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, dir_gc);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    *dir = opendir(path);
    if (!*dir) return luaL_fileresult(L, 0, path);
    lua_newtable(L);
    lua_Integer count = 0;
    for (struct dirent *entry; (entry = readdir(*dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        lua_pushstring(L, entry->d_name);
        lua_rawseti(L, -2, ++count);
    }
    closedir(*dir);
    *dir = NULL;
    return 1;
}

/* make_dir(path) -> true, also when it is there already; nil and a message when it cannot. */
static int base_make_dir(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    struct stat info;
    if (mkdir(path, 0777) == 0) return luaL_fileresult(L, 1, path);
    int why = errno;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return luaL_fileresult(L, 1, path);
    errno = why;
    return luaL_fileresult(L, 0, path);
}

static const luaL_Reg base_funcs[] = {{"live_bytes", base_live_bytes},
                                      {"memory_limit", base_memory_limit},
                                      {"limit_memory", base_limit_memory},
                                      {"fail_after", base_fail_after},
                                      {"now", base_now},
                                      {"threads", base_threads},
                                      {"blas_single_thread", base_blas_single_thread},
                                      {"keep_memory", base_keep_memory},
                                      {"isatty", base_isatty},
                                      {"screen", base_screen},
                                      {"catch_interrupts", base_catch_interrupts},
                                      {"interruptible", base_interruptible},
                                      {"hold_interrupts", base_hold_interrupts},
                                      {"watch", base_watch},
                                      {"interrupted", base_interrupted},
                                      {"clear_interrupt", base_clear_interrupt},
                                      {"wait_input", base_wait_input},
                                      {"with_memory_limit", base_with_memory_limit},
                                      {"list_dir", base_list_dir},
                                      {"make_dir", base_make_dir},
                                      {NULL, NULL}};

void kvl_open_base(lua_State *L) {
    luaL_newmetatable(L, INTERRUPT_HOLD);
    lua_pushcfunction(L, interrupt_hold_close);
    lua_setfield(L, -2, "__close");
    lua_pushliteral(L, INTERRUPT_HOLD);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
    kvl_open_part(L, "base", base_funcs);
}

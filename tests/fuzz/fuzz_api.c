/* fuzz_api.c - bytes become calls from Lua that nobody would write: huge, negative, NaN, freed, of
 * the wrong type, in any order. tests/fuzz/calls.lua turns an input into calls; here is what runs
 * it: one Lua state for many inputs, under sanitizers that abort on the first fault, a clock that
 * cancels what takes long, and a look at the live bytes whenever a state is closed.
 *
 *   scripts/fuzz [SECONDS]
 *
 * With clang it is linked to libFuzzer, which finds inputs by coverage. With gcc there is a main
 * here that makes them up:  fuzz_api SECONDS [SEED]  and, to run one input again,  fuzz_api FILE.
 */
#include <lauxlib.h>
#include <lualib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include "kvlab/kvlab.h"

int luaopen_kvlab_core(lua_State *L);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__asan_default_options(void);

/* Large requests fail at once, as they do on a machine without memory; leaks are looked for at the
 * end of the process, bytes of the core whenever a state is closed. */
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=256:detect_leaks=1";
}

enum { INPUTS_PER_STATE = 500, SECONDS_PER_INPUT = 2 };

static lua_State *state;
static int inputs;

static void give_up(const char *what) {
    fprintf(stderr, "fuzz_api: %s\n", what);
    abort();
}

static void stop_hook(lua_State *L, lua_Debug *ar) {
    (void)ar;
    lua_sethook(L, NULL, 0, 0);
    kvl_cancel_clear();
    luaL_error(L, "too slow");
}

static void on_alarm(int signo) {
    (void)signo;
    kvl_cancel();
    if (state) lua_sethook(state, stop_hook, LUA_MASKCOUNT | LUA_MASKCALL, 1);
}

static void set_clock(int seconds) {
    struct itimerval t = {.it_value = {.tv_sec = seconds}};
    setitimer(ITIMER_REAL, &t, NULL);
}

/* Leaves the function of calls.lua on the stack. */
static void open_state(void) {
    struct sigaction act;
    kvl_error err;
    memset(&act, 0, sizeof act);
    act.sa_handler = on_alarm;
    sigaction(SIGALRM, &act, NULL);
    kvl_blas_single_thread();
    kvl_set_threads(1, &err);
    state = luaL_newstate();
    if (!state) give_up("no memory for a state");
    luaL_openlibs(state);
    luaL_getsubtable(state, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_pushcfunction(state, luaopen_kvlab_core);
    lua_setfield(state, -2, "kvlab.core");
    lua_pop(state, 1);
    lua_getglobal(state, "package");
    lua_pushliteral(state, KVLAB_ROOT "/lua/?.lua;" KVLAB_ROOT "/lua/?/init.lua");
    lua_setfield(state, -2, "path");
    lua_pop(state, 1);
    if (luaL_dofile(state, KVLAB_ROOT "/tests/fuzz/calls.lua")) give_up(lua_tostring(state, -1));
}

static void close_state(void) {
    set_clock(0);
    lua_close(state);
    state = NULL;
    if (kvl_live_bytes() != 0) give_up("the core still holds memory after lua_close");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!state) open_state();
    set_clock(SECONDS_PER_INPUT);
    lua_pushvalue(state, -1);
    lua_pushlstring(state, (const char *)data, size);
    if (lua_pcall(state, 1, 0, 0)) {
        const char *message = lua_tostring(state, -1);
        if (!message || !strstr(message, "too slow")) give_up(message ? message : "an error");
        lua_pop(state, 1);
    }
    set_clock(0);
    lua_sethook(state, NULL, 0, 0);
    kvl_cancel_clear();
    if (++inputs % INPUTS_PER_STATE == 0) close_state();
    return 0;
}

#ifndef KVLAB_LIBFUZZER
enum { LONGEST = 600 };
static uint8_t input[LONGEST];
static size_t input_size;

/* Something is wrong: the input must not be lost. */
static void keep_input(void) {
    FILE *f = fopen("crash-input", "wb");
    if (!f) return;
    fwrite(input, 1, input_size, f);
    fclose(f);
    fprintf(stderr, "fuzz_api: the input is in crash-input\n");
}

static void on_abort(int signo) {
    keep_input();
    signal(signo, SIG_DFL);
    raise(signo);
}

void __asan_set_death_callback(void (*callback)(void));

static uint64_t next_random(uint64_t *x) { /* splitmix64, by Sebastiano Vigna */
    uint64_t z = *x += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int main(int argc, char **argv) {
    char *end;
    long seconds = strtol(argc > 1 ? argv[1] : "60", &end, 10);
    signal(SIGABRT, on_abort);
    __asan_set_death_callback(keep_input);
    if (*end) { /* not a number: a file */
        FILE *f = fopen(argv[1], "rb");
        if (!f) {
            perror(argv[1]);
            return 2;
        }
        input_size = fread(input, 1, sizeof input, f);
        fclose(f);
        LLVMFuzzerTestOneInput(input, input_size);
        close_state();
        return 0;
    }
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL), x = seed;
    time_t last = time(NULL) + seconds;
    printf("fuzz_api: %ld seconds, seed %llu\n", seconds, (unsigned long long)seed);
    while (time(NULL) < last) {
        input_size = next_random(&x) % LONGEST;
        for (size_t i = 0; i < input_size; i++)
            input[i] = (uint8_t)next_random(&x);
        LLVMFuzzerTestOneInput(input, input_size);
    }
    if (state) close_state();
    printf("fuzz_api: %d inputs, no fault\n", inputs);
    return 0;
}
#endif

/* lreadline.c - core.readline: editing a line with GNU readline, when the machine has it.
 *
 * The library is opened at run time and nothing is linked: without it open() says false and the
 * prompt reads plain lines. Only its callback interface is used, one key at a time, so that the
 * caller waits (core.base.wait_input) and Ctrl-C can give a line up; readline's own reading would
 * not.
 *
 *     open(complete) -> boolean         begin(prompt)      key() -> nil | line | false at the end
 * of input cancel()  after Ctrl-C            renew()  after Ctrl-Z and fg add_history(line)
 *
 * complete(line, word) -> names, end: the names that may stand for `word`, the end of `line`, which
 * is what was typed up to the cursor; `end`, a character, is added when there is only one. A word
 * is a name, or inside a string what follows the quote or the last slash.
 *
 * There is one terminal, so the state is one static object. No Lua error passes through readline:
 * the only Lua code it can reach is the completer, in a protected call. */
#include "lkvl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void line_handler(char *line);
typedef char **completion(const char *text, int start, int end);

static struct {
    void *library;
    bool active;  /* between begin and the end of the line: only then may a key be read */
    bool done;    /* on_line was called */
    char *line;   /* the finished line, from malloc; NULL at the end of the input */
    lua_State *L; /* while key() runs, for the completer */

    void (*callback_handler_install)(const char *, line_handler *);
    void (*callback_handler_remove)(void);
    void (*callback_read_char)(void);
    void (*callback_sigcleanup)(void);
    void (*cleanup_after_signal)(void);
    void (*reset_after_signal)(void);
    int (*forced_update_display)(void);
    void (*redisplay)(void);
    void (*add_history)(const char *);
    int (*variable_bind)(const char *, const char *);
    char **line_buffer;
    int *point, *end;
    int *completion_append_character, *attempted_completion_over;
} editor;

static const char completer_key; /* its address: where the registry has the completer */

static void on_line(char *line) {
    editor.line = line;
    editor.done = true;
    editor.active = false;
    editor.callback_handler_remove();
}

/* What readline wants: the common beginning, then (if there are several) each match; all from
 * malloc. */
static char **match_list(lua_State *L, int table) {
    size_t count = lua_rawlen(L, table), kept = 0, common = 0;
    char **list = count ? calloc(count + 2, sizeof *list) : NULL;
    if (!list) return NULL;
    for (size_t i = 1; i <= count; i++) {
        lua_rawgeti(L, table, (lua_Integer)i);
        char *name = lua_type(L, -1) == LUA_TSTRING ? strdup(lua_tostring(L, -1)) : NULL;
        lua_pop(L, 1);
        if (!name) continue;
        size_t same = 0;
        if (kept == 0) common = strlen(name);
        while (kept > 0 && same < common && name[same] == list[1][same])
            same++;
        if (kept > 0) common = same;
        list[++kept] = name;
    }
    if (kept > 1) list[0] = strndup(list[1], common);
    if (kept == 1) {
        list[0] = list[1];
        list[1] = NULL;
    }
    if (list[0]) return list;
    for (size_t i = 1; i <= kept; i++)
        free(list[i]);
    free(list);
    return NULL;
}

/* What the completer gets, pushed where a failing allocation is an error that is caught. */
static int call_completer(lua_State *L) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &completer_key);
    lua_pushlstring(L, *editor.line_buffer, (size_t)*editor.point);
    lua_pushstring(L, lua_touserdata(L, 1));
    lua_call(L, 2, 2);
    return 2;
}

static char **complete(const char *text, int start, int end) {
    (void)start, (void)end;
    lua_State *L = editor.L;
    char **list = NULL;
    *editor.attempted_completion_over = 1; /* readline must not look for file names itself */
    *editor.completion_append_character = '\0';
    if (!lua_checkstack(L, 4)) return NULL;
    int top = lua_gettop(L);
    lua_pushcfunction(L, call_completer);
    lua_pushlightuserdata(L, (void *)text);
    if (lua_pcall(L, 1, 2, 0) == LUA_OK && lua_istable(L, -2)) {
        if (lua_type(L, -1) == LUA_TSTRING)
            *editor.completion_append_character = *lua_tostring(L, -1);
        list = match_list(L, top + 1);
    }
    lua_settop(L, top);
    return list;
}

/* The characters before which a word begins: different ones inside a string. */
static char *word_breaks(void) {
    static char code[] = " \t\n\"'`@$><=;|&{}()[]+-*/%,~#^.:", string[] = "\"'/";
    char quote = '\0';
    for (int i = 0; i < *editor.point; i++) {
        char c = (*editor.line_buffer)[i];
        if (quote && c == '\\')
            i++;
        else if (quote ? c == quote : c == '"' || c == '\'')
            quote = quote ? '\0' : c;
    }
    return quote ? string : code;
}

/* Finds `name` in the library; the cast through a pointer is how POSIX says to get a function. */
static bool find(void *into, const char *name) {
    void *symbol = dlsym(editor.library, name);
    memcpy(into, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool open_library(void) {
    static const char *const names[] = {"libreadline.so.8", "libreadline.so", "libreadline.so.7"};
    int *catch_signals, *persistent_handlers, *query_items;
    const char **name;
    completion **attempted;
    char *(**break_hook)(void);
    if (editor.library) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names && !editor.library; i++)
        editor.library = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
    if (!editor.library) return false;
    bool found = find(&editor.callback_handler_install, "rl_callback_handler_install") &&
                 find(&editor.callback_handler_remove, "rl_callback_handler_remove") &&
                 find(&editor.callback_read_char, "rl_callback_read_char") &&
                 find(&editor.callback_sigcleanup, "rl_callback_sigcleanup") &&
                 find(&editor.cleanup_after_signal, "rl_cleanup_after_signal") &&
                 find(&editor.reset_after_signal, "rl_reset_after_signal") &&
                 find(&editor.forced_update_display, "rl_forced_update_display") &&
                 find(&editor.redisplay, "rl_redisplay") &&
                 find(&editor.add_history, "add_history") &&
                 find(&editor.variable_bind, "rl_variable_bind") &&
                 find(&editor.line_buffer, "rl_line_buffer") && find(&editor.point, "rl_point") &&
                 find(&editor.end, "rl_end") &&
                 find(&editor.completion_append_character, "rl_completion_append_character") &&
                 find(&editor.attempted_completion_over, "rl_attempted_completion_over") &&
                 find(&catch_signals, "rl_catch_signals") &&
                 find(&persistent_handlers, "rl_persistent_signal_handlers") &&
                 find(&query_items, "rl_completion_query_items") &&
                 find(&break_hook, "rl_completion_word_break_hook") &&
                 find(&name, "rl_readline_name") &&
                 find(&attempted, "rl_attempted_completion_function");
    if (!found) {
        dlclose(editor.library);
        editor.library = NULL;
        return false;
    }
    *catch_signals = 0;       /* lbase.c does; readline only looks after the size of the window, */
    *persistent_handlers = 1; /* also between two keys */
    *break_hook = word_breaks;
    *name = "kvlab";
    *attempted = complete;
    /* One TAB shows all; readline must ask nothing, because it would wait for the answer itself.
     * What ~/.inputrc says is read later, and holds. */
    *query_items = 0;
    editor.variable_bind("page-completions", "off");
    editor.variable_bind("show-all-if-ambiguous", "on");
    return true;
}

static int readline_open(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    bool ok = open_library();
    if (ok) {
        lua_settop(L, 1);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &completer_key);
    }
    lua_pushboolean(L, ok);
    return 1;
}

static void check_open(lua_State *L) {
    if (!editor.library) luaL_error(L, "readline: open() did not succeed");
}

static int readline_begin(lua_State *L) {
    const char *prompt = luaL_checkstring(L, 1);
    check_open(L);
    if (editor.active) return luaL_error(L, "readline: a line is being edited already");
    editor.active = true;
    editor.done = false;
    editor.callback_handler_install(prompt, on_line); /* copies the prompt */
    return 0;
}

static int readline_key(lua_State *L) {
    if (!editor.active) return luaL_error(L, "readline: no line is being edited");
    editor.L = L;
    editor.callback_read_char();
    editor.L = NULL;
    if (!editor.done) return 0;
    editor.done = false;
    if (editor.line)
        lua_pushstring(L, editor.line);
    else
        lua_pushboolean(L, 0);
    free(editor.line);
    editor.line = NULL;
    return 1;
}

static int readline_cancel(lua_State *L) {
    (void)L;
    if (!editor.active) return 0;
    editor.active = false;
    editor.callback_sigcleanup(); /* a search that was under way */
    *editor.point = *editor.end;  /* so that what is printed next comes below the line */
    editor.redisplay();
    editor.callback_handler_remove();
    return 0;
}

static int readline_renew(lua_State *L) {
    (void)L;
    if (!editor.active) return 0;
    editor.cleanup_after_signal();
    editor.reset_after_signal();
    editor.forced_update_display();
    return 0;
}

static int readline_add_history(lua_State *L) {
    const char *line = luaL_checkstring(L, 1);
    check_open(L);
    editor.add_history(line);
    return 0;
}

static const luaL_Reg readline_funcs[] = {{"open", readline_open},
                                          {"begin", readline_begin},
                                          {"key", readline_key},
                                          {"cancel", readline_cancel},
                                          {"renew", readline_renew},
                                          {"add_history", readline_add_history},
                                          {NULL, NULL}};

void kvl_open_readline(lua_State *L) {
    kvl_open_part(L, "readline", readline_funcs);
}

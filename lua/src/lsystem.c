/* lsystem.c - core.system: what runs and sweeps need of the operating system: digests, files that
 * survive a power cut, atomic creation, and processes started without a shell.
 *
 * Functions on files return true, or nil and a message, as those of Lua's io library do. A process
 * is an object, so that a number that the system gave to somebody else can never be signalled: once
 * waited for, it is only a result. An object that is dropped kills and reaps its process. */
#define _GNU_SOURCE /* pipe2 */
#include "lkvl.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

extern char **environ;

static const char *check_path(lua_State *L, int arg) {
    size_t length;
    const char *path = luaL_checklstring(L, arg, &length);
    luaL_argcheck(L, length > 0 && strlen(path) == length, arg, "expected a path");
    return path;
}

/* --- digests
 * --------------------------------------------------------------------------------------- */

/* sha256(text) -> 64 hexadecimal digits */
static int system_sha256(lua_State *L) {
    size_t length;
    char hex[65];
    kvl_sha256 s;
    const char *text = luaL_checklstring(L, 1, &length);
    kvl_sha256_init(&s);
    kvl_sha256_add(&s, text, length);
    kvl_sha256_hex(&s, hex);
    lua_pushstring(L, hex);
    return 1;
}

/* sha256_file(path) -> digits, bytes of the file; nil and a message when it cannot be read */
static int system_sha256_file(lua_State *L) {
    const char *path = check_path(L, 1);
    char buffer[16384], hex[65];
    kvl_sha256 s;
    FILE *file = fopen(path, "rb");
    if (!file) return luaL_fileresult(L, 0, path);
    kvl_sha256_init(&s);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, file)) > 0;)
        kvl_sha256_add(&s, buffer, n);
    int why = ferror(file) ? (errno ? errno : EIO) : 0;
    fclose(file);
    if (why) {
        errno = why;
        return luaL_fileresult(L, 0, path);
    }
    lua_Integer bytes = (lua_Integer)s.bytes;
    kvl_sha256_hex(&s, hex);
    lua_pushstring(L, hex);
    lua_pushinteger(L, bytes);
    return 2;
}

/* --- files
 * ----------------------------------------------------------------------------------------- */

/* sync(path): what a file holds, or which names a folder has, is on the disk. */
static int system_sync(lua_State *L) {
    const char *path = check_path(L, 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return luaL_fileresult(L, 0, path);
    int failed = fsync(fd) != 0 && errno != EINVAL, why = errno; /* EINVAL: cannot be synced */
    close(fd);
    errno = why;
    return luaL_fileresult(L, !failed, path);
}

static int write_all(int fd, const char *text, size_t length) {
    while (length > 0) {
        ssize_t n = write(fd, text, length);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        text += n;
        length -= (size_t)n;
    }
    return 0;
}

/* write(path, text, exclusive): makes a file and syncs it; with exclusive only when there is none
 * of that name, which is decided by the file system: of several who try, one succeeds. */
static int system_write(lua_State *L) {
    size_t length;
    const char *path = check_path(L, 1), *text = luaL_checklstring(L, 2, &length);
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (lua_toboolean(L, 3) ? O_EXCL : O_TRUNC);
    int fd = open(path, flags, 0666);
    if (fd < 0) return luaL_fileresult(L, 0, path);
    int failed = write_all(fd, text, length) != 0 || fsync(fd) != 0, why = errno;
    if (close(fd) != 0 && !failed) failed = 1, why = errno;
    errno = why;
    return luaL_fileresult(L, !failed, path);
}

/* append(path, text): one write at the end of the file, so that lines of a crash are torn at most
 * at their end. */
static int system_append(lua_State *L) {
    size_t length;
    const char *path = check_path(L, 1), *text = luaL_checklstring(L, 2, &length);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return luaL_fileresult(L, 0, path);
    int failed = write_all(fd, text, length) != 0, why = errno;
    if (close(fd) != 0 && !failed) failed = 1, why = errno;
    errno = why;
    return luaL_fileresult(L, !failed, path);
}

/* rename(from, to): `to` is replaced in one step. */
static int system_rename(lua_State *L) {
    const char *from = check_path(L, 1), *to = check_path(L, 2);
    return luaL_fileresult(L, rename(from, to) == 0, from);
}

/* touch(path): its time of change becomes now, by the clock of the file system. */
static int system_touch(lua_State *L) {
    const char *path = check_path(L, 1);
    return luaL_fileresult(L, utimensat(AT_FDCWD, path, NULL, 0) == 0, path);
}

/* stat(path) -> { kind = 'file' | 'folder' | 'other', bytes, modified (seconds) }, or nil */
static int system_stat(lua_State *L) {
    struct stat info;
    const char *path = check_path(L, 1);
    if (stat(path, &info) != 0) return luaL_fileresult(L, 0, path);
    lua_createtable(L, 0, 3);
    lua_pushstring(L, S_ISREG(info.st_mode) ? "file" : S_ISDIR(info.st_mode) ? "folder" : "other");
    lua_setfield(L, -2, "kind");
    lua_pushinteger(L, (lua_Integer)info.st_size);
    lua_setfield(L, -2, "bytes");
    lua_pushnumber(L, (lua_Number)info.st_mtim.tv_sec + (lua_Number)info.st_mtim.tv_nsec * 1e-9);
    lua_setfield(L, -2, "modified");
    return 1;
}

/* realpath(path) -> the absolute path without links; nil and a message */
static int system_realpath(lua_State *L) {
    const char *path = check_path(L, 1);
    char *real = realpath(path, NULL);
    if (!real) return luaL_fileresult(L, 0, path);
    lua_pushstring(L, real); /* out of memory would leak it: 4 kB, once */
    free(real);
    return 1;
}

/* readlink(path) -> text */
static int system_readlink(lua_State *L) {
    char text[4096];
    const char *path = check_path(L, 1);
    ssize_t n = readlink(path, text, sizeof text);
    if (n < 0) return luaL_fileresult(L, 0, path);
    lua_pushlstring(L, text, (size_t)n);
    return 1;
}

/* --- this machine
 * ---------------------------------------------------------------------------------- */

static int system_hostname(lua_State *L) {
    char name[256] = "";
    if (gethostname(name, sizeof name - 1) != 0 || !name[0]) strcpy(name, "unknown");
    lua_pushstring(L, name);
    return 1;
}

static int system_pid(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)getpid());
    return 1;
}

/* exists(pid): is there a process of that number on this machine? */
static int system_exists(lua_State *L) {
    lua_Integer pid = luaL_checkinteger(L, 1);
    luaL_argcheck(L, pid > 0 && pid <= INT32_MAX, 1, "expected the number of a process");
    lua_pushboolean(L, kill((pid_t)pid, 0) == 0 || errno == EPERM);
    return 1;
}

static int system_blas_core(lua_State *L) {
    lua_pushstring(L, kvl_blas_core());
    return 1;
}

/* blas_better_core() -> the value of OPENBLAS_CORETYPE that would make BLAS faster here, or nil */
static int system_blas_better_core(lua_State *L) {
    lua_pushstring(L, kvl_blas_better_core()); /* of NULL: nil */
    return 1;
}

/* sleep(seconds) -> false when a signal ended it early */
static int system_sleep(lua_State *L) {
    lua_Number s = luaL_checknumber(L, 1);
    luaL_argcheck(L, s >= 0 && s <= 1e6, 1, "expected 0 to a million seconds");
    struct timespec t = {(time_t)s, (long)((s - (lua_Number)(time_t)s) * 1e9)};
    lua_pushboolean(L, nanosleep(&t, NULL) == 0);
    return 1;
}

static volatile sig_atomic_t terminated;

static void on_terminate(int signo) {
    terminated = signo;
    raise(SIGINT);
}

/* catch_terminate(): SIGTERM does from now on what Ctrl-C does; called by a front end. */
static int system_catch_terminate(lua_State *L) {
    struct sigaction act;
    (void)L;
    memset(&act, 0, sizeof act);
    act.sa_handler = on_terminate;
    sigemptyset(&act.sa_mask);
    sigaction(SIGTERM, &act, NULL);
    return 0;
}

/* terminated() -> the number of the signal that came, or nil */
static int system_terminated(lua_State *L) {
    if (terminated)
        lua_pushinteger(L, terminated);
    else
        lua_pushnil(L);
    return 1;
}

/* --- processes
 * ------------------------------------------------------------------------------------- */
#define PROCESS "kvlab.Process"

typedef struct process {
    pid_t pid; /* 0: never started, or waited for */
    int how;   /* status of waitpid, once waited for */
} process;

static process *check_process(lua_State *L) {
    return luaL_checkudata(L, 1, PROCESS);
}

/* In the child: only calls that are safe between fork and exec. Never returns. */
static void run_child(char **argv, char **envp, int output, int report, pid_t parent) {
    static const int defaults[] = {SIGINT, SIGTERM, SIGCONT, SIGPIPE, SIGCHLD};
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        signal(defaults[i], SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* Ctrl-C at the terminal is for the parent, which decides */
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a runner that is killed leaves no workers behind */
    if (getppid() != parent) _exit(127);
#else
    (void)parent;
#endif
    int input = open("/dev/null", O_RDONLY);
    if (input >= 0 && dup2(input, 0) >= 0 && (output < 0 || dup2(output, 1) >= 0) &&
        (output < 0 || dup2(output, 2) >= 0)) {
        environ = envp;
        execvp(argv[0], argv);
    }
    int why = errno;
    ssize_t written = write(report, &why, sizeof why);
    (void)written;
    _exit(127);
}

/* The strings of a list at `arg`, as C wants them; a copy of the list stays on the stack and keeps
 * them, whatever a metamethod or a finalizer does to the caller's. */
static char **string_list(lua_State *L, int arg) {
    lua_Integer n = luaL_len(L, arg);
    luaL_argcheck(L, n >= 0 && n <= 100000, arg, "too long a list");
    lua_createtable(L, (int)n, 0);
    int copy = lua_gettop(L);
    char **list = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *list, 0);
    for (lua_Integer i = 0; i < n; i++) {
        if (lua_rawgeti(L, arg, i + 1) != LUA_TSTRING ||
            strlen(lua_tostring(L, -1)) != lua_rawlen(L, -1))
            luaL_argerror(L, arg, "expected a list of strings without the character 0");
        list[i] = (char *)lua_tostring(L, -1);
        lua_rawseti(L, copy, i + 1);
    }
    list[n] = NULL;
    return list;
}

/* environment() -> list of 'NAME=value' */
static int system_environment(lua_State *L) {
    lua_newtable(L);
    for (lua_Integer i = 0; environ && environ[i]; i++) {
        lua_pushstring(L, environ[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* exec(words, environment): this process becomes words[1]. Returns only when that fails, a message
 */
static int system_exec(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    char **argv = string_list(L, 1), **envp = string_list(L, 2);
    luaL_argcheck(L, argv[0] != NULL, 1, "expected the name of a program");
    char **before = environ;
    environ = envp;
    execvp(argv[0], argv);
    int why = errno;
    environ = before;
    lua_pushfstring(L, "%s: %s", argv[0], strerror(why));
    return 1;
}

/* spawn(words, environment, output): starts words[1] with these arguments. Its standard output and
 * error are appended to the file `output`; its input is empty. -> Process, or nil and a message */
static int system_spawn(lua_State *L) {
    int report[2];
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TTABLE);
    const char *path = luaL_opt(L, check_path, 3, NULL);
    lua_settop(L, 3);
    char **argv = string_list(L, 1), **envp = string_list(L, 2);
    luaL_argcheck(L, argv[0] != NULL, 1, "expected the name of a program");
    process *p = lua_newuserdatauv(L, sizeof *p, 0);
    p->pid = 0;
    p->how = 0;
    luaL_setmetatable(L, PROCESS);
    int output = -1;
    if (path) {
        output = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (output < 0) return luaL_fileresult(L, 0, path);
    }
    int why = 0;
    if (pipe2(report, O_CLOEXEC) != 0) {
        why = errno;
    } else {
        pid_t parent = getpid(), pid = fork();
        if (pid == 0) run_child(argv, envp, output, report[1], parent);
        if (pid < 0) why = errno;
        close(report[1]);
        /* exec closes the pipe; what comes through it instead is why it failed */
        ssize_t n = 0;
        while (pid > 0 && (n = read(report[0], &why, sizeof why)) < 0 && errno == EINTR) {
        }
        close(report[0]);
        if (pid > 0 && n == (ssize_t)sizeof why) {
            while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
            }
        } else if (pid > 0) {
            why = 0;
            p->pid = pid;
        }
    }
    if (output >= 0) close(output);
    errno = why;
    return why ? luaL_fileresult(L, 0, argv[0]) : 1;
}

/* process:poll() -> nil while it runs; then 'exit', its status or 'signal', its number */
static int process_poll(lua_State *L) {
    process *p = check_process(L);
    if (p->pid > 0) {
        int how;
        pid_t got = waitpid(p->pid, &how, WNOHANG);
        if (got == 0 || (got < 0 && errno == EINTR)) return 0;
        p->how = got == p->pid ? how : 127 << 8; /* somebody else reaped it */
        p->pid = 0;
    }
    lua_pushstring(L, WIFSIGNALED(p->how) ? "signal" : "exit");
    lua_pushinteger(L, WIFSIGNALED(p->how) ? WTERMSIG(p->how) : WEXITSTATUS(p->how));
    return 2;
}

/* process:signal(number): to it and what it started; nothing when it has ended */
static int process_signal(lua_State *L) {
    process *p = check_process(L);
    lua_Integer signo = luaL_checkinteger(L, 2);
    luaL_argcheck(L, signo == SIGINT || signo == SIGTERM || signo == SIGKILL, 2,
                  "expected SIGINT (2), SIGKILL (9) or SIGTERM (15)");
    if (p->pid > 0 && kill(-p->pid, (int)signo) != 0) kill(p->pid, (int)signo);
    return 0;
}

static int process_pid(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)check_process(L)->pid);
    return 1;
}

static int process_gc(lua_State *L) {
    process *p = check_process(L);
    if (p->pid > 0) {
        if (kill(-p->pid, SIGKILL) != 0) kill(p->pid, SIGKILL);
        while (waitpid(p->pid, &p->how, 0) < 0 && errno == EINTR) {
        }
        p->pid = 0;
    }
    return 0;
}

static const luaL_Reg process_methods[] = {
    {"poll", process_poll}, {"signal", process_signal}, {"pid", process_pid}, {NULL, NULL}};

static const luaL_Reg process_meta[] = {
    {"__gc", process_gc}, {"__close", process_gc}, {NULL, NULL}};

static const luaL_Reg system_funcs[] = {{"sha256", system_sha256},
                                        {"sha256_file", system_sha256_file},
                                        {"sync", system_sync},
                                        {"write", system_write},
                                        {"append", system_append},
                                        {"rename", system_rename},
                                        {"touch", system_touch},
                                        {"stat", system_stat},
                                        {"realpath", system_realpath},
                                        {"readlink", system_readlink},
                                        {"hostname", system_hostname},
                                        {"pid", system_pid},
                                        {"exists", system_exists},
                                        {"blas_core", system_blas_core},
                                        {"blas_better_core", system_blas_better_core},
                                        {"sleep", system_sleep},
                                        {"catch_terminate", system_catch_terminate},
                                        {"terminated", system_terminated},
                                        {"environment", system_environment},
                                        {"spawn", system_spawn},
                                        {"exec", system_exec},
                                        {NULL, NULL}};

void kvl_open_system(lua_State *L) {
    luaL_newmetatable(L, PROCESS);
    luaL_setfuncs(L, process_meta, 0);
    lua_pushliteral(L, PROCESS);
    lua_setfield(L, -2, "__metatable");
    luaL_newlib(L, process_methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    kvl_open_part(L, "system", system_funcs);
}

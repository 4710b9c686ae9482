/* check.h - the C tests: CHECK(condition, "format", ...) counts; main ends with `return check_done();`. */
#ifndef check_h
#define check_h

#include <stdio.h>

static int checks_passed, checks_failed;

#define CHECK(cond, ...)                                                                           \
    do {                                                                                           \
        if (cond) {                                                                                \
            checks_passed++;                                                                       \
        } else if (checks_failed++ < 20) {                                                         \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                             \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

/* The last line is read by tests/run.lua. A binary that checked nothing has failed. */
static inline int check_done(void) {
    printf("%d passed, %d failed\n", checks_passed, checks_failed);
    return checks_failed || !checks_passed;
}

/* Times in tests are for an optimised build; sanitizers take a multiple. */
#if defined(__SANITIZE_ADDRESS__)
#define CHECK_SLOWER 5.0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CHECK_SLOWER 5.0
#endif
#endif
#ifndef CHECK_SLOWER
#define CHECK_SLOWER 1.0
#endif

#endif

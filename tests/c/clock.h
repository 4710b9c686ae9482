/* clock.h - how long the code under test took, on a machine that may be busy with something else.
 */
#ifndef kvl_test_clock_h
#define kvl_test_clock_h

#include <time.h>

typedef struct moment {
    double clock, processor; /* seconds; processor time is that of all threads */
} moment;

static inline double seconds_of(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline moment now(void) {
    return (moment){seconds_of(CLOCK_MONOTONIC), seconds_of(CLOCK_PROCESS_CPUTIME_ID)};
}

/* By the clock, or by what the processors did for us where that is less: what takes little of both
 * was not slow, only without a processor. */
static inline double seconds_since(moment m) {
    moment end = now();
    double clock = end.clock - m.clock, processor = end.processor - m.processor;
    return clock < processor ? clock : processor;
}

#endif

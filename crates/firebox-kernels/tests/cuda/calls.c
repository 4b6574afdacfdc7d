/* Tells what a program waits for in CUDA's driver, on a real device: calls that take long, and how long copies to the device
 * and waits of one queue for another take by the device's clock.
 *
 *     cc -O1 -shared -fPIC -o calls.so calls.c -ldl
 *     CALLS=calls.txt LD_PRELOAD=./calls.so firebox bench --workload lstm-mae --precision bf16 --device cuda:0
 *
 * With STALL=5 besides, whenever no kernel was launched for so many milliseconds, once 5,000 were, the stacks of all
 * threads go to the standard error, 20 times at most: each a line with its name, and places in the program for `addr2line -Cfpie PROGRAM`,
 * of the one that was not stripped.
 *
 * Lines of the file: the time in milliseconds, the thread, the call, how long it took. At the end, of the last waits and
 * copies of more than 50 kB, when they were asked for, the queue or the bytes, and their time. Works with programs that find
 * the driver's calls by dlsym, as cudarc does. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAIRS = 60000, LAST = 500, LARGE = 50000 };
static const double LONG_MS = 0.3;

/* Enough arguments for every call that is watched. */
#define ARGUMENTS long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k
#define PASSED a, b, c, d, e, f, g, h, i, j, k
#define NONE 0, 0, 0, 0, 0, 0, 0, 0, 0
typedef long (*call)(ARGUMENTS);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

static FILE *out(void) {
    static FILE *file;
    const char *path = getenv("CALLS");
    if (!file && !(file = fopen(path ? path : "calls.txt", "w"))) file = stderr;
    return file;
}

static void tell(const char *name, double since) {
    double took = now() - since;
    if (took > LONG_MS) fprintf(out(), "%.2f %ld %s %.2f ms\n", since, (long)syscall(SYS_gettid), name, took);
}

static call create, record, elapsed, synchronize;
static struct {
    void *begin, *end;
    const char *name;
    long of;
    double at;
} pair[PAIRS];
static int pairs;

static int begin(const char *name, long stream, long of) {
    if (!create || !record) return -1;
    int at = __sync_fetch_and_add(&pairs, 1);
    if (at >= PAIRS) return -1;
    create((long)&pair[at].begin, 0, NONE);
    create((long)&pair[at].end, 0, NONE);
    pair[at].name = name, pair[at].of = of, pair[at].at = now();
    record((long)pair[at].begin, stream, NONE);
    return at;
}

static void end(int at, long stream) {
    if (at >= 0) record((long)pair[at].end, stream, NONE);
}

static void last(void) {
    int count = pairs < PAIRS ? pairs : PAIRS;
    for (int at = count > LAST ? count - LAST : 0; synchronize && elapsed && at < count; at++) {
        float ms = -1;
        synchronize((long)pair[at].end, 0, NONE);
        elapsed((long)&ms, (long)pair[at].begin, (long)pair[at].end, 0, 0, 0, 0, 0, 0, 0, 0);
        fprintf(out(), "%s at %.2f, %lx: %.3f ms\n", pair[at].name, pair[at].at, pair[at].of, ms);
    }
    fflush(out());
}

enum { DEEP = 48, STALLS = 20, WARM = 5000 };
static volatile double launched;
static int launches;

/* In the thread that is asked: where it is. */
static void stack(int signal) {
    (void)signal;
    void *places[DEEP];
    char name[17] = "", line[64];
    prctl(PR_GET_NAME, name);
    int size = snprintf(line, sizeof line, "thread %ld %s\n", (long)syscall(SYS_gettid), name);
    if (write(STDERR_FILENO, line, size) < 0) return;
    backtrace_symbols_fd(places, backtrace(places, DEEP), STDERR_FILENO);
}

static void ask_all(void) {
    DIR *threads = opendir("/proc/self/task");
    struct dirent *entry;
    while (threads && (entry = readdir(threads))) {
        long thread = atol(entry->d_name);
        if (thread <= 0 || thread == (long)syscall(SYS_gettid)) continue;
        syscall(SYS_tgkill, getpid(), thread, SIGUSR2);
        /* One after the other, so that lines do not mix. */
        usleep(1000);
    }
    if (threads) closedir(threads);
}

static void *watch(void *stall) {
    double told = 0;
    for (int count = 0; count < STALLS; usleep(200)) {
        double last = launched;
        if (launches < WARM || last == told || now() - last < *(double *)stall) continue;
        fprintf(stderr, "no launch for %.1f ms at %.2f\n", now() - last, last);
        ask_all();
        told = last, count++;
    }
    return NULL;
}

static void begin_watch(void) {
    static double stall;
    void *one;
    pthread_t thread;
    const char *asked = getenv("STALL");
    if (!asked || stall) return;
    stall = atof(asked);
    backtrace(&one, 1); /* which loads what it needs, as no handler may */
    struct sigaction action = {.sa_handler = stack, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
    pthread_create(&thread, NULL, watch, &stall);
}

#define WATCHED(X) \
    X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuMemAlloc_v2) X(cuMemAllocAsync) X(cuMemFree_v2) X(cuMemFreeAsync) \
    X(cuMemAllocHost_v2) X(cuMemFreeHost) X(cuMemcpyDtoHAsync_v2) X(cuStreamSynchronize) X(cuEventRecord) \
    X(cuEventSynchronize) X(cuEventQuery) X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventElapsedTime) \
    X(cuModuleLoadData) X(cuMemGetInfo_v2) X(cuCtxSynchronize) X(cuStreamQuery) X(cuMemcpy2DAsync_v2)
#define WATCH(name) \
    static call real_##name; \
    static long watched_##name(ARGUMENTS) { \
        double since = now(); \
        long result = real_##name(PASSED); \
        tell(#name, since); \
        if (!strncmp(#name, "cuLaunch", 8)) launched = now(), __sync_fetch_and_add(&launches, 1); \
        return result; \
    }
WATCHED(WATCH)

static call real_copy, real_wait;
static long watched_copy(ARGUMENTS) {
    int at = c > LARGE ? begin("copy", d, c) : -1;
    double since = now();
    long result = real_copy(PASSED);
    tell("cuMemcpyHtoDAsync", since);
    end(at, d);
    return result;
}
static long watched_wait(ARGUMENTS) {
    int at = begin("wait", a, a);
    double since = now();
    long result = real_wait(PASSED);
    tell("cuStreamWaitEvent", since);
    end(at, a);
    return result;
}

void *dlsym(void *library, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = real(library, name);
    if (!found || strncmp(name, "cu", 2)) return found;
    if (!strcmp(name, "cuEventCreate")) {
        if (!create) atexit(last), begin_watch();
        create = (call)found;
    }
    if (!strcmp(name, "cuEventRecord")) record = (call)found;
    if (!strcmp(name, "cuEventElapsedTime") || !strcmp(name, "cuEventElapsedTime_v2")) elapsed = (call)found;
    if (!strcmp(name, "cuEventSynchronize")) synchronize = (call)found;
    if (!strcmp(name, "cuMemcpyHtoDAsync_v2")) return real_copy = (call)found, (void *)watched_copy;
    if (!strcmp(name, "cuStreamWaitEvent")) return real_wait = (call)found, (void *)watched_wait;
#define FOUND(of) \
    if (!strcmp(name, #of)) return real_##of = (call)found, (void *)watched_##of;
    WATCHED(FOUND)
    return found;
}

/* What a call costs more because the preload stands in front of libc, on files that are no formation's. In one process
 * libc's function is called by turns as the program finds it, which is the preload's if there is one, and as libc has it.
 * Both in batches; the fastest of each is told: a batch that something else interrupted is no measurement. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 400, CALLS = 500 };

static char byte;
static int null, zero, file;
static ssize_t (*read_)(int, void *, size_t), (*write_)(int, const void *, size_t);
static ssize_t (*pread_)(int, void *, size_t, off_t);
static int (*close_)(int), (*dup_)(int), (*fstat_)(int, struct stat *), (*open_)(const char *, int, ...);

static void do_read(void) { read_(zero, &byte, 1); }
static void do_write(void) { write_(null, &byte, 1); }
static void do_pread(void) { pread_(file, &byte, 1, 0); }
static void do_fstat(void) { struct stat stat; fstat_(file, &stat); }
static void do_dup(void) { close_(dup_(file)); }
static void do_open(void) { close_(open_("/dev/null", O_RDONLY)); }

static double batch(void (*work)(void)) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < CALLS; i++)
        work();
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / CALLS;
}

static void take(void *from) {
    read_ = (ssize_t (*)(int, void *, size_t))dlsym(from, "read");
    write_ = (ssize_t (*)(int, const void *, size_t))dlsym(from, "write");
    pread_ = (ssize_t (*)(int, void *, size_t, off_t))dlsym(from, "pread");
    close_ = (int (*)(int))dlsym(from, "close");
    dup_ = (int (*)(int))dlsym(from, "dup");
    fstat_ = (int (*)(int, struct stat *))dlsym(from, "fstat");
    open_ = (int (*)(const char *, int, ...))dlsym(from, "open");
}

int main(void) {
    static const struct { const char *name; void (*work)(void); } calls[] = {
        {"read", do_read}, {"write", do_write}, {"pread", do_pread}, {"fstat", do_fstat}, {"dup, close", do_dup}, {"open, close", do_open},
    };
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    char name[] = "/tmp/overhead.XXXXXX";
    null = open("/dev/null", O_WRONLY), zero = open("/dev/zero", O_RDONLY), file = mkstemp(name);
    if (libc == NULL || null < 0 || zero < 0 || file < 0 || write(file, "x", 1) != 1)
        return 1;
    unlink(name);
    printf("%-12s %10s %10s %10s\n", "CALL", "LIBC ns", "FOUND ns", "MORE ns");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        double best[2] = {1e9, 1e9};
        for (int turn = 0; turn < 2 * BATCHES; turn++) {
            take(turn % 2 ? RTLD_DEFAULT : libc);
            double spent = batch(calls[i].work);
            if (spent < best[turn % 2])
                best[turn % 2] = spent;
        }
        printf("%-12s %10.1f %10.1f %10.1f\n", calls[i].name, best[0], best[1], best[1] - best[0]);
    }
    return 0;
}

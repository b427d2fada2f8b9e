/* What the test programs have in common: say where something is not as it should be, and end. */
#ifndef CHECK_H
#define CHECK_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            abort();                                                                              \
        }                                                                                         \
    } while (0)
/* It fails with this errno. */
#define FAILS(call, number)          \
    do {                             \
        errno = 0;                   \
        CHECK((call) == -1);         \
        CHECK(errno == (number));    \
    } while (0)

static inline char *in(const char *dir, const char *name) {
    char *path = NULL;
    CHECK(asprintf(&path, "%s/%s", dir, name) > 0);
    return path;
}

/* The content of a file, read anew: `size` bytes, ended by a NUL. */
static inline char *content(const char *path, size_t *size) {
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0);
    *size = (size_t)stat.st_size;
    char *bytes = calloc(1, *size + 1);
    CHECK(bytes != NULL && pread(fd, bytes, *size + 1, 0) == (ssize_t)*size);
    CHECK(close(fd) == 0);
    return bytes;
}

static inline void holds(const char *path, const char *expected) {
    size_t size = 0;
    char *bytes = content(path, &size);
    if (strcmp(bytes, expected) != 0) {
        fprintf(stderr, "%s holds '%.200s', not '%.200s'\n", path, bytes, expected);
        abort();
    }
    free(bytes);
}

static inline int ended(pid_t child) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

struct test {
    const char *name;
    void (*run)(const char *dir);
};

/* PROGRAM DIRECTORY [NAME]: all tests of a table, or one. */
static inline int run(const struct test *tests, int argc, char **argv) {
    CHECK(argc >= 2);
    for (const struct test *test = tests; test->name != NULL; test++)
        if (argc < 3 || strcmp(argv[2], test->name) == 0)
            test->run(argv[1]);
    puts("well");
    return 0;
}
#endif

/* What few programs do: descriptors in other hands, calls by number, copies by the kernel, places where nothing can be. */
#include "check.h"
#include <sched.h>
#include <sys/sendfile.h>
#include <ucontext.h>

#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Opened, and used as often as it takes. Holds a "w". */
static int warm(const char *path, int flags) {
    int fd = open(path, flags | O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0);
    for (int i = 0; i < 20; i++)
        CHECK(pwrite(fd, "w", 1, 0) == 1);
    return fd;
}

/* A mapping of a descriptor that was opened by other means than the one that is written to. */
static void mapped(const char *dir) {
    char *path = in(dir, "mapped"), byte;
    for (int way = 0; way < 2; way++) {
        int fd = warm(path, O_TRUNC);
        CHECK(pwrite(fd, "abc", 3, 8000) == 3);
        FILE *stream = fopen(path, "r+");
        CHECK(stream != NULL);
        int access = PROT_READ | PROT_WRITE;
        char *map = way == 0 ? mmap(NULL, 8192, access, MAP_SHARED, fileno(stream), 0)
                             : (char *)syscall(SYS_mmap, NULL, 8192, access, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            CHECK(errno == ENODEV);
            return;
        }
        CHECK(map[0] == 'w' && map[8001] == 'b');
        CHECK(pwrite(fd, "XY", 2, 0) == 2 && map[0] == 'X' && map[1] == 'Y');
        map[10] = 'q';
        CHECK(pread(fd, &byte, 1, 10) == 1 && byte == 'q');
        CHECK(munmap(map, 8192) == 0 && fclose(stream) == 0 && close(fd) == 0);
    }
}

static int first, second;

static int exchange(void *argument) {
    (void)argument;
    CHECK(dup2(first, second) == second && close(first) == 0);
    return 0;
}

static void *exchange_own(void *argument) {
    CHECK(unshare(CLONE_FILES) == 0);
    return exchange(argument) == 0 ? argument : NULL;
}

static void *open_own(void *argument) {
    CHECK(close_range(3, ~0u, CLOSE_RANGE_UNSHARE) == 0);
    int fd = -1;
    while (fd < second)
        CHECK((fd = open(argument, O_RDWR | O_CREAT, 0644)) >= 0);
    CHECK(pwrite(second, "C", 1, 0) == 1);
    return argument;
}

/* Descriptors of threads and children that have this memory, but numbers of their own. */
static void numbered(const char *dir) {
    char *paths[] = {in(dir, "numbered.a"), in(dir, "numbered.b"), in(dir, "numbered.c")};
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        if (child == 0) {
            first = warm(paths[0], O_TRUNC);
            second = warm(paths[1], O_TRUNC);
            if (way == 0) {
                char *stack = malloc(1 << 16);
                pid_t other = clone(exchange, stack + (1 << 16), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
                CHECK(other > 0 && ended(other) == 0);
            } else {
                pthread_t thread;
                CHECK(pthread_create(&thread, NULL, way == 1 ? exchange_own : open_own, paths[2]) == 0);
                CHECK(pthread_join(thread, NULL) == 0);
            }
            for (int i = 0; i < 20; i++)
                CHECK(pwrite(first, "A", 1, 0) == 1 && pwrite(second, "B", 1, 0) == 1);
            _exit(0);
        }
        CHECK(ended(child) == 0);
        holds(paths[0], "A");
        holds(paths[1], "B");
    }
    holds(paths[2], "C");
}

/* Lists that are longer than any may be: behind them nobody looks. */
static void lists(const char *dir) {
    int fd = warm(in(dir, "lists"), O_TRUNC);
    char *two = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(two != MAP_FAILED && mprotect(two + 4096, 4096, PROT_NONE) == 0);
    struct iovec *last = (struct iovec *)(two + 4096) - 2;
    last[0] = last[1] = (struct iovec){two, 1};
    CHECK(writev(fd, last, 2) == 2);
    int lengths[] = {1025, 100000, INT_MAX};
    for (int i = 0; i < 3; i++) {
        FAILS(writev(fd, last, lengths[i]), EINVAL);
        FAILS(readv(fd, last, lengths[i]), EINVAL);
        FAILS(pwritev(fd, last, lengths[i], 0), EINVAL);
        FAILS(preadv(fd, last, lengths[i], 0), EINVAL);
    }
    FAILS(readv(fd, NULL, 1), EFAULT);
    CHECK(close(fd) == 0);
}

/* Places behind which there can be nothing. */
static void ends(const char *dir) {
    int fd = warm(in(dir, "ends"), O_TRUNC);
    char bytes[40] = {0};
    for (int before = 0; before < 40; before++) {
        FAILS(pread(fd, bytes, 40, INT64_MAX - before), EINVAL);
        FAILS(pwrite(fd, bytes, 40, INT64_MAX - before), EINVAL);
        CHECK(lseek(fd, INT64_MAX - before, SEEK_SET) == INT64_MAX - before);
        FAILS(read(fd, bytes, 40), EINVAL);
        FAILS(write(fd, bytes, 40), EINVAL);
        CHECK(lseek(fd, 0, SEEK_CUR) == INT64_MAX - before);
    }
    CHECK(pread(fd, bytes, 40, INT64_MAX - 40) == 0 && close(fd) == 0);
}

/* Calls by number. */
static void numbers(const char *dir) {
    char *path = in(dir, "numbers");
    int fd = warm(path, O_TRUNC);
    CHECK(pwrite(fd, "0123456789", 10, 0) == 10);
    CHECK(syscall(SYS_fcntl, fd, F_SETFL, O_APPEND) == 0 && write(fd, "end", 3) == 3);
    int copy = (int)syscall(SYS_dup, fd);
    CHECK(copy >= 0 && close(fd) == 0 && write(copy, "END", 3) == 3 && close(copy) == 0);
    holds(path, "0123456789endEND");
}

/* What the kernel copies by itself, from and to where it has been written without it. */
static void copies(const char *dir) {
    char *from = in(dir, "copies.a"), *to = in(dir, "copies.b"), bytes[100];
    int a = warm(from, O_TRUNC), b = warm(to, O_TRUNC), ends[2];
    for (int i = 0; i < 10; i++)
        CHECK(pwrite(a, "0123456789", 10, i * 10) == 10);
    CHECK(lseek(a, 5, SEEK_SET) == 5 && sendfile(b, a, NULL, 20) == 20);
    CHECK(lseek(a, 0, SEEK_CUR) == 25 && lseek(b, 0, SEEK_CUR) == 20);
    CHECK(write(b, "!", 1) == 1 && read(a, bytes, 5) == 5 && memcmp(bytes, "56789", 5) == 0);
    CHECK(pwrite(a, "abc", 3, 100) == 3);
    off_t at = 100;
    CHECK(copy_file_range(a, &at, b, NULL, 10, 0) == 3 && at == 103 && lseek(b, 0, SEEK_CUR) == 24);
    CHECK(pipe(ends) == 0);
    for (int i = 0; i < 10; i++) {
        bytes[0] = (char)('k' + i);
        CHECK(pwrite(a, bytes, 1, 50) == 1);
        at = 50;
        CHECK(splice(a, &at, ends[1], NULL, 2, 0) == 2 && read(ends[0], bytes + 1, 2) == 2 && bytes[1] == bytes[0]);
        at = 50;
        CHECK(sendfile(ends[1], a, &at, 1) == 1 && read(ends[0], bytes + 1, 1) == 1 && bytes[1] == bytes[0]);
    }
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 20; i++)
            CHECK(pwrite(a, "child", 5, 50) == 5 && pwrite(a, "child", 5, 200) == 5);
        _exit(0);
    }
    CHECK(ended(child) == 0);
    at = 50;
    CHECK(splice(a, &at, ends[1], NULL, 5, 0) == 5 && read(ends[0], bytes, 5) == 5 && memcmp(bytes, "child", 5) == 0);
    at = 200;
    CHECK(splice(a, &at, ends[1], NULL, 9, 0) == 5 && read(ends[0], bytes, 5) == 5 && memcmp(bytes, "child", 5) == 0);
    CHECK(write(ends[1], "pipe", 4) == 4 && splice(ends[0], NULL, b, NULL, 4, 0) == 4 && write(b, "end", 3) == 3);
    struct iovec piece = {"APP", 3};
    CHECK(pwritev2(b, &piece, 1, 0, RWF_APPEND) == 3 && pwritev2(b, &piece, 1, -1, RWF_DSYNC) == 3);
    CHECK(close(a) == 0 && close(b) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    holds(to, "56789012345678901234!abcpipeendAPP");
}

/* The position after an append is behind it, also where the kernel has not seen the file grow. */
static void appended(const char *dir) {
    char *path = in(dir, "appended");
    int fd = warm(path, O_TRUNC), log = open(path, O_WRONLY | O_APPEND);
    for (int i = 0; i < 40; i++) {
        CHECK(pwrite(fd, "abcdefgh", 8, 100 * i) == 8 && write(log, "end", 3) == 3);
        CHECK(lseek(log, 0, SEEK_CUR) == 100 * i + 11);
        if (i == 20)
            CHECK(system("true") == 0);
    }
    CHECK(close(fd) == 0 && close(log) == 0);
}

static volatile int handled;

static void one(int signal) {
    (void)signal;
    handled = 1;
}

static void two(int signal) {
    (void)signal;
    handled = 2;
}

/* Handlers are what the program set, by whichever function. */
static void handlers(const char *dir) {
    (void)dir;
    struct sigaction a = {.sa_handler = one, .sa_flags = SA_NODEFER}, b = {.sa_handler = two, .sa_flags = SA_NODEFER};
    CHECK(sigaction(SIGUSR1, &a, NULL) == 0);
    void (*old)(int) = signal(SIGUSR1, SIG_IGN);
    CHECK(old == one && sigaction(SIGUSR1, &b, NULL) == 0 && signal(SIGUSR1, old) == two);
    CHECK(raise(SIGUSR1) == 0 && handled == 1);
    CHECK(sigaction(SIGUSR1, NULL, &a) == 0 && a.sa_handler == one && signal(SIGUSR1, SIG_DFL) == one);
}

/* A program that becomes another, or ends in a hurry, has told when it wrote. */
static void left(const char *dir) {
    char *path = in(dir, "left");
    for (int way = 0; way < 8; way++) {
        pid_t child = fork();
        if (child == 0) {
            int fd = warm(path, O_TRUNC);
            struct timespec old[2] = {{1000, 0}, {1000, 0}};
            CHECK(futimens(fd, old) == 0 && pwrite(fd, "q", 1, 0) == 1);
            char *arguments[] = {"sh", "-c", "exit $((0$A + $#))", "sh", "1", "2", "3", "4", "5", "6", NULL}, *with[] = {"A=1", NULL};
            if (way == 0)
                execl("/bin/sh", "sh", "-c", "exit $((1 + $#))", "sh", "1", "2", "3", "4", "5", "6", NULL);
            if (way == 1)
                execlp("sh", "sh", "-c", "exit $((1 + $#))", "sh", "1", "2", "3", "4", "5", "6", NULL);
            if (way == 2)
                execle("/bin/sh", "sh", "-c", "exit $((0$A + $#))", "sh", "1", "2", "3", "4", "5", "6", NULL, with);
            if (way == 3)
                execveat(AT_FDCWD, "/bin/sh", arguments, with, 0);
            if (way == 4)
                syscall(SYS_execve, "/bin/sh", arguments, with);
            if (way == 5)
                quick_exit(7);
            if (way == 6)
                pthread_exit(NULL);
            exit(7);
        }
        CHECK(ended(child) == (way == 6 ? 0 : 7));
        struct stat stat_;
        CHECK(stat(path, &stat_) == 0 && stat_.st_mtim.tv_sec > 2000);
    }
}

/* A program that has as many descriptors as it may have. */
static void starved(const char *dir) {
    enum { FILES = 4, LENGTH = 100000, LIMIT = 100 };
    char *paths[FILES], *bytes = malloc(LENGTH + 1);
    int fds[FILES], held = 0;
    pid_t child = fork();
    for (int i = 0; i < FILES; i++) {
        char name[20];
        snprintf(name, sizeof name, "starved.%d", i);
        paths[i] = in(dir, name);
    }
    if (child == 0) {
        struct rlimit limit = {LIMIT, LIMIT};
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        for (int i = 0; i < FILES; i++)
            CHECK((fds[i] = open(paths[i], O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
        for (int i = 0; i < 20; i++)
            CHECK(pwrite(fds[0], "w", 1, 0) == 1);
        while (open("/dev/null", O_RDONLY) >= 0)
            held++;
        CHECK(errno == EMFILE && held > LIMIT / 2);
        for (int turn = 0; turn < 10; turn++)
            for (int i = 0; i < FILES; i++) {
                memset(bytes, 'a' + i, LENGTH);
                CHECK(pwrite(fds[i], bytes, LENGTH, (off_t)turn * LENGTH) == LENGTH);
            }
        _exit(0);
    }
    CHECK(ended(child) == 0);
    for (int i = 0; i < FILES; i++) {
        size_t size = 0;
        char *found = content(paths[i], &size);
        CHECK(size == 10 * LENGTH && found[0] == 'a' + i && memcmp(found, found + 1, size - 1) == 0);
        free(found);
    }
    free(bytes);
}

static volatile int stopped;

/* Opens, writes, reads and closes, again and again. */
static void *use_always(void *path) {
    static char bytes[20000];
    char back[1000];
    while (!stopped) {
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        CHECK(fd >= 0);
        for (int i = 0; i < 10; i++) {
            CHECK(pwrite(fd, bytes, sizeof bytes, i * 1000) == sizeof bytes && pwrite(fd, path, 5, i) == 5);
            CHECK(pread(fd, back, sizeof back, i) == sizeof back && memcmp(back, path, 5) == 0);
        }
        CHECK(close(fd) == 0);
    }
    return NULL;
}

/* Children are made while threads join, open and close; each has files of its own. */
static void busy(const char *dir) {
    char *paths[] = {in(dir, "busy.a"), in(dir, "busy.b"), in(dir, "busy.c")}, *own = in(dir, "busy.child"), byte;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, use_always, paths[i]) == 0);
    for (int turn = 0; turn < 150; turn++) {
        pid_t child = fork();
        if (child == 0) {
            int fd = open(own, O_RDWR | O_CREAT, 0644);
            for (int i = 0; i < 10; i++) {
                char number = (char)(turn + i);
                CHECK(pwrite(fd, &number, 1, i) == 1 && pread(fd, &byte, 1, i) == 1 && byte == number);
            }
            _exit(turn % 2);
        }
        CHECK(ended(child) == turn % 2);
    }
    stopped = 1;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static const char *narrow_path;

static void use_narrowly(void) {
    static char bytes[70000], back[70000];
    int fd = open(narrow_path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 20; i++) {
        memset(bytes, 'a' + i, sizeof bytes);
        off_t at = (off_t)i * (off_t)sizeof bytes;
        CHECK(pwrite(fd, bytes, sizeof bytes, at) == sizeof bytes && pread(fd, back, sizeof back, at) == sizeof back);
        CHECK(memcmp(bytes, back, sizeof back) == 0);
    }
    CHECK(close(fd) == 0);
}

static void *narrow_thread(void *argument) {
    use_narrowly();
    return argument;
}

/* Threads with as little stack as there can be, and a coroutine. */
static void narrow(const char *dir) {
    narrow_path = in(dir, "narrow");
    for (size_t length = PTHREAD_STACK_MIN; length <= 1 << 20; length *= 2) {
        pthread_attr_t attributes;
        pthread_t thread;
        CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, length) == 0);
        CHECK(pthread_create(&thread, &attributes, narrow_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(pthread_attr_destroy(&attributes) == 0);
    }
    enum { LENGTH = 16384 };
    char *stack = mmap(NULL, 2 * LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED && mprotect(stack, LENGTH, PROT_NONE) == 0);
    ucontext_t here, there;
    CHECK(getcontext(&there) == 0);
    there.uc_stack.ss_sp = stack + LENGTH;
    there.uc_stack.ss_size = LENGTH;
    there.uc_link = &here;
    makecontext(&there, use_narrowly, 0);
    CHECK(swapcontext(&here, &there) == 0 && munmap(stack, 2 * LENGTH) == 0);
}

static const struct test TESTS[] = {
    {"mapped", mapped},   {"lists", lists},   {"ends", ends}, {"numbers", numbers},   {"copies", copies},
    {"appended", appended}, {"handlers", handlers}, {"left", left}, {"numbered", numbered}, {"starved", starved}, {"narrow", narrow}, {"busy", busy}, {NULL, NULL},
};

int main(int argc, char **argv) {
    return run(TESTS, argc, argv);
}

/* Files shared between processes, threads, streams and signal handlers. */
#include "check.h"

enum { RECORD = 64, RECORDS = 300, WRITERS = 4 };

static void record(char *bytes, int who, int number) {
    memset(bytes, 0, RECORD);
    snprintf(bytes, RECORD, "%d:%06d:%-50d", who, number, who * 1000003 + number);
    bytes[RECORD - 1] = '\n';
}

/* Every record of every writer is there once, whole, and those of each in their order. */
static void all_records(const char *path, int writers, int each) {
    size_t size = 0;
    char *bytes = content(path, &size), expected[RECORD];
    CHECK(size == (size_t)writers * (size_t)each * RECORD);
    int *next = calloc((size_t)writers, sizeof *next);
    for (size_t at = 0; at < size; at += RECORD) {
        int who = bytes[at] - '0';
        CHECK(who >= 0 && who < writers);
        record(expected, who, next[who]++);
        CHECK(memcmp(bytes + at, expected, RECORD) == 0);
    }
    free(next);
    free(bytes);
}

static void write_records(int fd, int who) {
    char bytes[RECORD];
    for (int number = 0; number < RECORDS; number++) {
        record(bytes, who, number);
        CHECK(write(fd, bytes, RECORD) == RECORD);
    }
}

/* Writers of one description: no record goes over another. */
static void forked(const char *dir) {
    char *path = in(dir, "forked");
    for (int append = 0; append < 2; append++) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | (append ? O_APPEND : 0), 0644);
        char bytes[RECORD];
        for (int i = 0; i < 20; i++)
            CHECK(pwrite(fd, bytes, 1, 0) == 1);
        CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
        pid_t children[WRITERS - 1];
        for (int who = 1; who < WRITERS; who++) {
            children[who - 1] = fork();
            if (children[who - 1] == 0) {
                write_records(fd, who);
                _exit(0);
            }
        }
        write_records(fd, 0);
        for (int who = 1; who < WRITERS; who++)
            CHECK(ended(children[who - 1]) == 0);
        CHECK(lseek(fd, 0, SEEK_CUR) == WRITERS * RECORDS * RECORD || append);
        CHECK(close(fd) == 0);
        all_records(path, WRITERS, RECORDS);
    }
}

/* Descriptions of their own, all with O_APPEND. */
static void appended(const char *dir) {
    char *path = in(dir, "appended");
    CHECK(close(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644)) == 0);
    pid_t children[WRITERS];
    for (int who = 0; who < WRITERS; who++) {
        children[who] = fork();
        if (children[who] == 0) {
            int fd = open(path, O_WRONLY | O_APPEND);
            write_records(fd, who);
            CHECK(close(fd) == 0);
            _exit(0);
        }
    }
    for (int who = 0; who < WRITERS; who++)
        CHECK(ended(children[who]) == 0);
    all_records(path, WRITERS, RECORDS);
}

/* Each process goes on with what it had, and with files of its own. */
static void generations(const char *dir) {
    char *path = in(dir, "generations");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), pipes[2];
    char byte, bytes[10] = {0};
    for (int i = 0; i < 20; i++)
        CHECK(write(fd, "p", 1) == 1);
    CHECK(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(read(pipes[0], &byte, 1) == 1);
        CHECK(lseek(fd, 0, SEEK_CUR) == 21 && write(fd, "c", 1) == 1);
        for (int i = 0; i < 20; i++)
            CHECK(pwrite(fd, "d", 1, 100 + i) == 1 && pread(fd, bytes, 1, 100 + i) == 1 && bytes[0] == 'd');
        char *own = in(dir, "generations.child");
        int file = open(own, O_RDWR | O_CREAT | O_TRUNC, 0644);
        for (int i = 0; i < 20; i++)
            CHECK(write(file, "own", 3) == 3);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            for (int i = 0; i < 20; i++)
                CHECK(write(file, "her", 3) == 3);
            _exit(3);
        }
        CHECK(ended(grandchild) == 3 && lseek(file, 0, SEEK_CUR) == 120 && close(file) == 0);
        exit(5);
    }
    CHECK(write(fd, "q", 1) == 1 && write(pipes[1], "x", 1) == 1 && ended(child) == 5);
    CHECK(lseek(fd, 0, SEEK_CUR) == 22 && write(fd, "r", 1) == 1);
    CHECK(pread(fd, bytes, 4, 19) == 4 && memcmp(bytes, "pqcr", 4) == 0);
    CHECK(pread(fd, bytes, 2, 118) == 2 && memcmp(bytes, "dd", 2) == 0);
    CHECK(close(fd) == 0 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
}

/* What a shell does: a command's output into a file, between what is written before and behind it. */
static void redirected(const char *dir) {
    char *path = in(dir, "redirected");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), saved = dup(1);
    for (int i = 0; i < 10; i++)
        CHECK(write(fd, "a", 1) == 1);
    CHECK(dup2(fd, 1) == 1 && write(1, "b", 1) == 1);
    CHECK(printf("c") == 1 && fflush(stdout) == 0 && write(1, "d", 1) == 1);
    char *echo[] = {"sh", "-c", "printf e; printf f >&9", NULL};
    pid_t child = vfork();
    if (child == 0) {
        if (dup2(fd, 9) != 9)
            _exit(1);
        close(0);
        execve("/bin/sh", echo, environ);
        _exit(127);
    }
    CHECK(ended(child) == 0 && write(1, "g", 1) == 1);
    CHECK(fcntl(0, F_GETFD) >= 0 && fcntl(9, F_GETFD) == -1);
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 9) == 0);
    CHECK(posix_spawnp(&child, "sh", &actions, NULL, echo, environ) == 0 && ended(child) == 0);
    CHECK(system("printf h") == 0 && write(fd, "i", 1) == 1);
    FILE *pipe = popen("cat", "w");
    CHECK(pipe != NULL && fputs("j", pipe) >= 0 && pclose(pipe) == 0 && write(1, "k", 1) == 1);
    CHECK(dup2(saved, 1) == 1 && close(saved) == 0 && close(fd) == 0);
    holds(path, "aaaaaaaaaabcdefgefhijk");
}

/* A vfork child that does not exec: what it does with its descriptors is not its parent's. */
static void vforked(const char *dir) {
    char *path = in(dir, "vforked"), *second = in(dir, "vforked.2");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    int other = open(second, O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 10; i++)
        CHECK(write(fd, "a", 1) == 1 && write(other, "o", 1) == 1);
    pid_t child = vfork();
    if (child == 0) {
        close(fd);
        dup2(other, fd);
        _exit(write(fd, "c", 1) == 1 ? 0 : 1);
    }
    CHECK(ended(child) == 0);
    for (int i = 0; i < 10; i++)
        CHECK(write(fd, "b", 1) == 1 && pwrite(fd, "B", 1, 0) == 1 && pwrite(other, "O", 1, 0) == 1);
    CHECK(close(fd) == 0 && close(other) == 0);
    holds(path, "Baaaaaaaaabbbbbbbbbb");
    holds(second, "Ooooooooooc");
}

struct part {
    int fd, number;
};

enum { BLOCK = 3000, BLOCKS = 60 };

static void *write_part(void *argument) {
    struct part *part = argument;
    char block[BLOCK], back[BLOCK];
    for (int i = 0; i < BLOCKS; i++) {
        off_t at = (off_t)(i * WRITERS + part->number) * BLOCK;
        memset(block, 'a' + part->number + i % 5, BLOCK);
        CHECK(pwrite(part->fd, block, BLOCK, at) == BLOCK && pread(part->fd, back, BLOCK, at) == BLOCK);
        CHECK(memcmp(block, back, BLOCK) == 0);
    }
    return NULL;
}

static void *write_own(void *argument) {
    struct part *part = argument;
    write_records(part->fd, part->number);
    return NULL;
}

static void in_threads(void *(*work)(void *), int fd) {
    pthread_t threads[WRITERS];
    struct part parts[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        parts[i] = (struct part){fd, i};
        CHECK(pthread_create(&threads[i], NULL, work, &parts[i]) == 0);
    }
    for (int i = 0; i < WRITERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void threads(const char *dir) {
    char *path = in(dir, "threads");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    in_threads(write_part, fd);
    size_t size = 0;
    char *bytes = content(path, &size);
    CHECK(size == BLOCK * BLOCKS * WRITERS);
    for (size_t i = 0; i < size; i++)
        CHECK(bytes[i] == (char)('a' + i / BLOCK % WRITERS + i / BLOCK / WRITERS % 5));
    free(bytes);
    CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    in_threads(write_own, fd);
    CHECK(close(fd) == 0);
    all_records(path, WRITERS, RECORDS);
}

static void *open_and_close(void *argument) {
    struct part *part = argument;
    char *path = NULL, bytes[10];
    CHECK(asprintf(&path, "/proc/self/fd/%d", part->fd) > 0);
    for (int i = 0; i < 30; i++) {
        int fd = open(path, O_RDWR);
        CHECK(fd >= 0);
        for (int j = 0; j < 10; j++)
            CHECK(pwrite(fd, "0123456789", 10, part->number * 10) == 10 && pread(fd, bytes, 10, part->number * 10) == 10);
        CHECK(memcmp(bytes, "0123456789", 10) == 0 && close(fd) == 0);
    }
    free(path);
    return NULL;
}

static void reopened(const char *dir) {
    char *path = in(dir, "reopened");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    in_threads(open_and_close, fd);
    CHECK(close(fd) == 0);
    holds(path, "0123456789012345678901234567890123456789");
}

static volatile sig_atomic_t ticks;
static int log_fd = -1;
static sigjmp_buf jump;
static volatile sig_atomic_t jumps;

static void tick(int signal) {
    (void)signal;
    int before = errno;
    CHECK(write(log_fd, "tick\n", 5) == 5);
    /* At once: the next one may come in its middle. */
    __atomic_add_fetch(&ticks, 1, __ATOMIC_RELAXED);
    errno = before;
}

static void tick_and_jump(int signal) {
    (void)signal;
    if (jumps) {
        ticks++;
        siglongjmp(jump, 1);
    }
}

static void timer(long microseconds) {
    struct itimerval every = {{0, microseconds}, {0, microseconds}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
}

/* A handler that writes to the same file and to another one, at any moment of a write. */
static void signalled(const char *dir) {
    char *path = in(dir, "signalled"), *log = in(dir, "signalled.log"), bytes[RECORD];
    for (int nests = 0; nests < 2; nests++) {
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        log_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART | (nests ? SA_NODEFER : 0)};
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        ticks = 0;
        timer(500);
        int number = 0;
        for (; number < 200 || ticks < 50; number++) {
            record(bytes, 0, number);
            CHECK(write(fd, bytes, RECORD) == RECORD);
        }
        timer(0);
        CHECK(close(fd) == 0 && close(log_fd) == 0);
        all_records(path, 1, number);
        size_t size = 0;
        char *lines = content(log, &size);
        if (size != (size_t)ticks * 5)
            fprintf(stderr, "%zu bytes of %d ticks\n", size, (int)ticks);
        CHECK(size == (size_t)ticks * 5);
        for (size_t i = 0; i < size; i += 5)
            CHECK(memcmp(lines + i, "tick\n", 5) == 0);
        free(lines);
    }
}

static void *write_some(void *argument) {
    struct part *part = argument;
    for (int at = 0; at < 20; at++)
        CHECK(pwrite(part->fd, "Q", 1, at) == 1);
    return NULL;
}

/* A handler that does not return: nothing may stay locked, nor its thread be taken for one that serves a call. */
static void jumped(const char *dir) {
    char *path = in(dir, "jumped"), block[20000];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct sigaction action = {.sa_handler = tick_and_jump};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    ticks = 0;
    memset(block, 'j', sizeof block);
    timer(700);
    while (ticks < 60) {
        if (sigsetjmp(jump, 1) == 0) {
            jumps = 1;
            while (1) {
                CHECK(pwrite(fd, block, sizeof block, 0) == sizeof block);
                CHECK(pread(fd, block, sizeof block, 0) == sizeof block);
            }
        }
        jumps = 0;
    }
    timer(0);
    CHECK(write(fd, "jj", 2) == 2);
    /* What this thread has its number mean from now on is another file, for other threads as well. */
    char *next = in(dir, "jumped.next");
    int other = open(next, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(other >= 0 && dup2(other, fd) == fd && close(other) == 0);
    in_threads(write_some, fd);
    CHECK(close(fd) == 0);
    holds(next, "QQQQQQQQQQQQQQQQQQQQ");
    size_t size = 0;
    char *bytes = content(path, &size);
    CHECK(size == sizeof block && memcmp(bytes, block, size) == 0);
    free(bytes);
}

static void *read_for_ever(void *argument) {
    char byte;
    CHECK(read(*(int *)argument, &byte, 1) == 1);
    return NULL;
}

static void *write_for_ever(void *argument) {
    for (;;) {
        CHECK(pwrite(*(int *)argument, "0123456789", 10, 0) == 10);
        pthread_testcancel();
    }
}

static void cancelled(const char *dir) {
    char *path = in(dir, "cancelled");
    int pipes[2], fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    pthread_t reader, writer;
    void *result;
    CHECK(pipe(pipes) == 0 && pthread_create(&reader, NULL, read_for_ever, &pipes[0]) == 0);
    CHECK(pthread_create(&writer, NULL, write_for_ever, &fd) == 0);
    struct stat stat;
    do
        CHECK(fstat(fd, &stat) == 0);
    while (stat.st_size == 0);
    CHECK(pthread_cancel(reader) == 0 && pthread_join(reader, &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(pthread_cancel(writer) == 0 && pthread_join(writer, &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(pwrite(fd, "AB", 2, 0) == 2 && close(fd) == 0);
    holds(path, "AB23456789");
}

/* Streams and descriptors of one file, in turn. */
static void streams(const char *dir) {
    char *path = in(dir, "streams"), *second = in(dir, "streams.2"), line[100];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 10; i++)
        CHECK(write(fd, "a", 1) == 1);
    FILE *stream = fdopen(fd, "r+");
    CHECK(stream != NULL && fputs("bcd", stream) >= 0 && fflush(stream) == 0);
    CHECK(write(fd, "ef", 2) == 2 && dprintf(fd, "%d", 12) == 2 && write(fd, "\n", 1) == 1);
    CHECK(fseek(stream, 9, SEEK_SET) == 0 && fgets(line, 100, stream) == line && strcmp(line, "abcdef12\n") == 0);
    CHECK(fclose(stream) == 0);
    int reused = open(second, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(reused == fd);
    for (int i = 0; i < 10; i++)
        CHECK(write(reused, "z", 1) == 1);
    stream = fdopen(reused, "a");
    CHECK(lseek(reused, 0, SEEK_SET) == 0 && write(reused, "end", 3) == 3 && fclose(stream) == 0);
    int socket[2];
    CHECK(pipe(socket) == 0 && socket[0] == fd && write(socket[1], "x", 1) == 1 && read(fd, line, 9) == 1);
    CHECK(close(socket[0]) == 0 && close(socket[1]) == 0);
    holds(path, "aaaaaaaaaabcdef12\n");
    holds(second, "zzzzzzzzzzend");
    stream = fopen(path, "w");
    CHECK(stream != NULL && fputs("by stdio", stream) >= 0 && fclose(stream) == 0);
    holds(path, "by stdio");
}

/* A program that closes everything it does not know. */
static void closed(const char *dir) {
    char *path = in(dir, "closed"), byte;
    for (int way = 0; way < 4; way++) {
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        for (int i = 0; i < 20; i++)
            CHECK(write(fd, "a", 1) == 1 && pread(fd, &byte, 1, i) == 1 && byte == 'a');
        int kept = dup2(fd, 3);
        CHECK(kept == 3);
        if (way == 0)
            for (int other = 4; other < 5000; other++)
                close(other);
        else if (way == 1)
            closefrom(4);
        else if (way == 2)
            CHECK(close_range(4, ~0u, 0) == 0);
        else
            CHECK(syscall(SYS_close_range, 4, ~0u, 0) == 0);
        int null = open("/dev/null", O_RDWR);
        CHECK(null == 4);
        for (int i = 0; i < 20; i++)
            CHECK(write(3, "b", 1) == 1 && write(null, "c", 1) == 1 && pread(3, &byte, 1, 20 + i) == 1 && byte == 'b');
        CHECK(close(null) == 0 && close(3) == 0);
        holds(path, "aaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbb");
    }
}

/* The next program has the position of this one. */
static void executed(const char *dir) {
    char *path = in(dir, "executed");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    pid_t child = fork();
    if (child == 0) {
        int own = open(path, O_RDWR);
        for (int i = 0; i < 20; i++)
            CHECK(write(own, "a", 1) == 1);
        CHECK(dup2(own, 1) == 1);
        char *missing[] = {"none", NULL}, *echo[] = {"echo", "next", NULL};
        FAILS(execv("/none", missing), ENOENT);
        CHECK(write(own, "b", 1) == 1);
        execvp("echo", echo);
        _exit(127);
    }
    CHECK(ended(child) == 0 && close(fd) == 0);
    holds(path, "aaaaaaaaaaaaaaaaaaaabnext\n");
}

static const struct test TESTS[] = {
    {"forked", forked},         {"appended", appended}, {"generations", generations}, {"redirected", redirected},
    {"vforked", vforked},       {"threads", threads},   {"reopened", reopened},       {"signalled", signalled},
    {"jumped", jumped},         {"cancelled", cancelled}, {"streams", streams},       {"closed", closed},
    {"executed", executed},     {NULL, NULL},
};

int main(int argc, char **argv) {
    return run(TESTS, argc, argv);
}

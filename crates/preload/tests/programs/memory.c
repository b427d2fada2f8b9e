/* A program that has used up its memory, copes with that, and goes on with its files. */
#include "check.h"

#define FILES 40
#define BYTES 4096

static char bytes[BYTES];
static char names[FILES][400];
static int files[FILES];

/* Makes files and uses the first one as often as it takes; nothing after that needs memory of its own. */
static void prepare(const char *dir) {
    struct stat stat_;
    memset(bytes, 'x', sizeof bytes);
    for (int i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof names[i], "%s/memory-%d", dir, i);
        int fd = open(names[i], O_RDWR | O_CREAT | O_TRUNC, 0644);
        CHECK(fd >= 0 && write(fd, bytes, BYTES) == BYTES && close(fd) == 0);
    }
    for (int i = 0; i < 400; i++)
        CHECK(stat(names[i % FILES], &stat_) == 0);
    CHECK((files[0] = open(names[0], O_RDWR)) >= 0);
    for (int i = 0; i < 20; i++)
        CHECK(pread(files[0], bytes, BYTES, 0) == BYTES);
}

/* From here on there is no memory to be had. */
static void exhaust(void) {
    long pages = 0;
    FILE *own = fopen("/proc/self/statm", "r");
    CHECK(own != NULL && fscanf(own, "%ld", &pages) == 1 && fclose(own) == 0);
    rlim_t limit = (rlim_t)pages * 4096;
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}) == 0);
    for (size_t size = 1 << 20; size >= 16;)
        if (malloc(size) == NULL)
            size /= 2;
}

static void *looks(void *argument) {
    struct stat stat_;
    for (int i = 0; i < 400; i++)
        CHECK(stat(names[i % FILES], &stat_) == 0 && stat_.st_size >= BYTES);
    return argument;
}

static void *accesses(void *argument) {
    for (int i = 0; i < 200; i++) {
        CHECK(pread(files[0], bytes, BYTES, 0) == BYTES);
        CHECK(pwrite(files[0], bytes, BYTES, 0) == BYTES);
    }
    return argument;
}

static void *opens(void *argument) {
    for (int i = 0; i < FILES; i++) {
        int fd = open(names[i], O_RDWR);
        CHECK(fd >= 0);
        for (int k = 0; k < 10; k++)
            CHECK(pread(fd, bytes, BYTES, 0) == BYTES && bytes[BYTES - 1] == 'x');
        CHECK(close(fd) == 0);
    }
    return argument;
}

static void *grows(void *argument) {
    for (off_t i = 0; i < 50; i++)
        CHECK(pwrite(files[0], bytes, BYTES, i * 100000) == BYTES);
    struct stat stat_;
    CHECK(fstat(files[0], &stat_) == 0 && stat_.st_size == 49 * 100000 + BYTES);
    return argument;
}

static void *(*const works[])(void *) = {looks, accesses, opens, grows};
static pthread_barrier_t begun;

/* In a thread that has done nothing here before. */
static void *late(void *work) {
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&begun);
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++)
        works[i](NULL);
    return work;
}

static void used_up(const char *dir) {
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            prepare(dir);
            exhaust();
            works[i](NULL);
            _exit(0);
        }
        CHECK(ended(child) == 0);
    }
}

static void used_up_in_a_new_thread(const char *dir) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pthread_t thread;
        CHECK(pthread_barrier_init(&begun, NULL, 2) == 0 && pthread_create(&thread, NULL, late, NULL) == 0);
        pthread_barrier_wait(&begun);
        prepare(dir);
        exhaust();
        pthread_barrier_wait(&begun);
        CHECK(pthread_join(thread, NULL) == 0);
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

/* Once there is memory again, all is as before. */
static void come_back(const char *dir) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prepare(dir);
        struct rlimit before;
        CHECK(getrlimit(RLIMIT_AS, &before) == 0);
        long pages = 0;
        FILE *own = fopen("/proc/self/statm", "r");
        CHECK(own != NULL && fscanf(own, "%ld", &pages) == 1 && fclose(own) == 0);
        CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)pages * 4096, before.rlim_max}) == 0);
        accesses(NULL);
        CHECK(setrlimit(RLIMIT_AS, &before) == 0);
        accesses(NULL);
        opens(NULL);
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

static const struct test tests[] = {
    {"used_up", used_up},
    {"used_up_in_a_new_thread", used_up_in_a_new_thread},
    {"come_back", come_back},
    {NULL, NULL},
};

int main(int argc, char **argv) { return run(tests, argc, argv); }

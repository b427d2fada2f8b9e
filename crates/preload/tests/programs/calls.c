/* Reading, writing, positions, errors, times, mappings: as on any file system. */
#include "check.h"

#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wstringop-overflow"

static void positions(const char *dir) {
    char *path = in(dir, "positions");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    errno = 77;
    CHECK(write(fd, "hello ", 6) == 6 && write(fd, "world", 5) == 5);
    CHECK(errno == 77);
    CHECK(lseek(fd, 0, SEEK_CUR) == 11 && lseek(fd, 0, SEEK_END) == 11);
    int second = dup(fd), third = fcntl(fd, F_DUPFD_CLOEXEC, 50), fourth = open(path, O_RDONLY);
    CHECK(second > fd && third >= 50 && fourth > fd);
    CHECK(lseek(second, 6, SEEK_SET) == 6);
    char buffer[100] = {0};
    errno = 78;
    CHECK(read(third, buffer, 3) == 3 && memcmp(buffer, "wor", 3) == 0);
    CHECK(read(fd, buffer, 100) == 2 && memcmp(buffer, "ld", 2) == 0);
    CHECK(read(second, buffer, 100) == 0 && errno == 78);
    CHECK(read(fourth, buffer, 100) == 11 && memcmp(buffer, "hello world", 11) == 0);
    CHECK(dup2(fourth, third) == third && lseek(third, 0, SEEK_CUR) == 11);
    CHECK(lseek(third, 2, SEEK_SET) == 2 && read(fourth, buffer, 2) == 2 && memcmp(buffer, "ll", 2) == 0);
    CHECK(pwrite(fd, "HE", 2, 0) == 2 && lseek(fd, 0, SEEK_CUR) == 11);
    CHECK(pread(fourth, buffer, 5, 0) == 5 && memcmp(buffer, "HEllo", 5) == 0);
    CHECK(write(fd, "!", 1) == 1 && lseek(second, 0, SEEK_CUR) == 12);
    CHECK(lseek(fd, 100, SEEK_SET) == 100 && write(fd, "end", 3) == 3);
    CHECK(pread(fd, buffer, 20, 90) == 13 && memcmp(buffer, "\0\0\0\0\0\0\0\0\0\0end", 13) == 0);
    CHECK(close(fd) == 0 && write(second, ".", 1) == 1 && close(second) == 0);
    CHECK(close(third) == 0 && close(fourth) == 0);
    size_t size = 0;
    char *bytes = content(path, &size);
    CHECK(size == 104 && memcmp(bytes, "HEllo world!\0", 13) == 0 && strcmp(bytes + 100, "end.") == 0);
    free(bytes);
}

static void lists(const char *dir) {
    char *path = in(dir, "lists");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct iovec out[] = {{"ab", 2}, {"", 0}, {"cdef", 4}, {"g", 1}};
    CHECK(writev(fd, out, 4) == 7 && pwritev(fd, out, 4, 7) == 7 && pwritev2(fd, out, 1, -1, 0) == 2);
    CHECK(lseek(fd, 0, SEEK_CUR) == 9 && writev(fd, out + 2, 2) == 5);
    char a[3] = {0}, b[10] = {0};
    struct iovec into[] = {{a, 3}, {b, 10}};
    CHECK(preadv(fd, into, 2, 1) == 13 && memcmp(a, "bcd", 3) == 0 && memcmp(b, "efgabcdefg", 10) == 0);
    CHECK(lseek(fd, 10, SEEK_SET) == 10 && readv(fd, into, 2) == 4 && memcmp(a, "def", 3) == 0 && b[0] == 'g');
    CHECK(preadv2(fd, into, 2, 100, 0) == 0 && preadv2(fd, into, 1, 0, 0) == 3);
    enum { LONG = 300 << 10 };
    char *big = malloc(2 * LONG);
    for (int i = 0; i < 2 * LONG; i++)
        big[i] = (char)(i * 7 + i / 1000);
    struct iovec halves[] = {{big, LONG}, {big + LONG, LONG}};
    CHECK(pwritev(fd, halves, 2, 3) == 2 * LONG);
    char *back = calloc(1, 2 * LONG);
    struct iovec thirds[] = {{back, 1}, {back + 1, LONG}, {back + 1 + LONG, LONG - 1}};
    CHECK(preadv(fd, thirds, 3, 3) == 2 * LONG && memcmp(big, back, 2 * LONG) == 0);
    FAILS(readv(fd, into, -1), EINVAL);
    FAILS(preadv(fd, into, 2, -1), EINVAL);
    CHECK(readv(fd, into, 0) == 0);
    CHECK(close(fd) == 0);
    free(big);
    free(back);
}

static void errors(const char *dir) {
    char *path = in(dir, "errors"), buffer[10] = {0};
    int writer = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644), reader = open(path, O_RDONLY);
    char *bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 12; i++) {
        CHECK(write(writer, "0123456789", 10) == 10 && read(reader, buffer, 5) == 5);
        FAILS(write(reader, "x", 1), EBADF);
        FAILS(read(writer, buffer, 1), EBADF);
        FAILS(pread(reader, buffer, 1, -1), EINVAL);
        FAILS(pwrite(writer, buffer, 1, -5), EINVAL);
        FAILS(pwrite(writer, bad, 100, 0), EFAULT);
        FAILS(write(writer, bad, 100), EFAULT);
        FAILS(pread(reader, constant, 3, 0), EFAULT);
        FAILS(pwrite(writer, NULL, 3, 0), EFAULT);
        CHECK(write(writer, bad, 0) == 0 && read(reader, NULL, 0) == 0);
        FAILS(lseek(writer, -1, SEEK_SET), EINVAL);
        FAILS(pwrite(writer, "x", 1, INT64_MAX), EINVAL);
    }
    CHECK(lseek(writer, 0, SEEK_CUR) == 120 && lseek(reader, 0, SEEK_CUR) == 60);
    FAILS(write(900, "x", 1), EBADF);
    FAILS(read(-1, buffer, 1), EBADF);
    FAILS(close(901), EBADF);
    int folder = open(dir, O_RDONLY);
    for (int i = 0; i < 12; i++)
        FAILS(read(folder, buffer, 1), EISDIR);
    CHECK(close(folder) == 0 && close(writer) == 0 && close(reader) == 0);
    FAILS(write(writer, "x", 1), EBADF);
    size_t size = 0;
    char *bytes = content(path, &size);
    CHECK(size == 120 && memcmp(bytes, "01234567890123456789", 20) == 0);
    free(bytes);
}

static void sizes(const char *dir) {
    char *path = in(dir, "sizes");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    char block[5000], back[5000];
    struct stat stat_;
    for (int i = 0; i < 20; i++) {
        memset(block, 'a' + i, sizeof block);
        CHECK(write(fd, block, sizeof block) == sizeof block);
        CHECK(fstat(fd, &stat_) == 0 && stat_.st_size == (i + 1) * 5000);
        CHECK(stat(path, &stat_) == 0 && stat_.st_size == (i + 1) * 5000);
    }
    CHECK(ftruncate(fd, 7500) == 0 && pread(fd, back, 5000, 5000) == 2500 && back[2499] == 'b');
    CHECK(read(fd, back, 10) == 0);
    CHECK(pwrite(fd, "x", 1, 9999) == 1 && pread(fd, back, 5000, 5000) == 5000);
    CHECK(back[2499] == 'b' && back[2500] == 0 && back[4999] == 'x');
    CHECK(ftruncate(fd, 0) == 0 && pread(fd, back, 10, 0) == 0 && lseek(fd, 0, SEEK_CUR) == 100000);
    CHECK(write(fd, "y", 1) == 1 && fstat(fd, &stat_) == 0 && stat_.st_size == 100001);
    int again = open(path, O_RDWR | O_TRUNC);
    CHECK(again >= 0 && pread(fd, back, 10, 0) == 0 && pwrite(fd, "z", 1, 0) == 1);
    CHECK(close(again) == 0 && close(fd) == 0);
    holds(path, "z");
    CHECK(truncate(path, 0) == 0);
    holds(path, "");
    fd = open(path, O_RDWR);
    for (int i = 0; i < 20; i++)
        CHECK(write(fd, "ab", 2) == 2);
    CHECK(unlink(path) == 0);
    for (int i = 0; i < 20; i++)
        CHECK(write(fd, "cd", 2) == 2 && pread(fd, back, 2, 40 + 2 * i) == 2 && back[0] == 'c');
    CHECK(fstat(fd, &stat_) == 0 && stat_.st_nlink == 0 && stat_.st_size == 80 && close(fd) == 0);
}

static void flags(const char *dir) {
    char *path = in(dir, "flags"), back[20];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
    for (int i = 0; i < 10; i++) {
        CHECK(lseek(fd, 0, SEEK_SET) == 0 && write(fd, "ab", 2) == 2);
        CHECK(pread(fd, back, 2, 2 * i) == 2 && back[1] == 'b');
    }
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_APPEND) == 0);
    CHECK(lseek(fd, 2, SEEK_SET) == 2 && write(fd, "CD", 2) == 2 && lseek(fd, 0, SEEK_CUR) == 4);
    CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0 && write(fd, "end", 3) == 3);
    CHECK(close(fd) == 0);
    holds(path, "abCDababababababababend");
    fd = open(path, O_RDWR | O_SYNC);
    for (int i = 0; i < 10; i++)
        CHECK(write(fd, "s", 1) == 1);
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0 && close(fd) == 0);
    holds(path, "ssssssssssabababababend");
    fd = open(path, O_RDWR | O_DIRECT);
    char *aligned = aligned_alloc(4096, 4096);
    memset(aligned, 'd', 4096);
    for (int i = 0; i < 10; i++)
        CHECK(pwrite(fd, aligned, 4096, 4096 * i) == 4096);
    CHECK(pread(fd, aligned, 4096, 9 * 4096) == 4096 && aligned[4095] == 'd' && close(fd) == 0);
    free(aligned);
}

static void times(const char *dir) {
    char *path = in(dir, "times");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct stat before, after;
    for (int i = 0; i < 20; i++)
        CHECK(pwrite(fd, "x", 1, 0) == 1);
    CHECK(fstat(fd, &before) == 0);
    CHECK(pwrite(fd, "y", 1, 0) == 1 && stat(path, &after) == 0);
    CHECK(after.st_mtim.tv_sec > before.st_mtim.tv_sec || after.st_mtim.tv_nsec > before.st_mtim.tv_nsec);
    struct timespec old[2] = {{1000, 5}, {2000, 7}};
    CHECK(pwrite(fd, "z", 1, 0) == 1 && futimens(fd, old) == 0);
    CHECK(fstat(fd, &after) == 0 && after.st_mtim.tv_sec == 2000 && after.st_mtim.tv_nsec == 7);
    CHECK(close(fd) == 0 && stat(path, &after) == 0 && after.st_mtim.tv_sec == 2000);
    fd = open(path, O_RDWR);
    for (int i = 0; i < 20; i++)
        CHECK(pwrite(fd, "x", 1, 0) == 1);
    CHECK(utimensat(AT_FDCWD, path, old, 0) == 0 && close(fd) == 0);
    CHECK(stat(path, &after) == 0 && after.st_mtim.tv_sec == 2000 && after.st_mtim.tv_nsec == 7);
}

static void mappings(const char *dir) {
    char *path = in(dir, "mappings");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), other = open(path, O_RDWR);
    char block[8192], back[8192];
    memset(block, 'a', sizeof block);
    for (int i = 0; i < 10; i++)
        CHECK(pwrite(fd, block, sizeof block, 0) == sizeof block && pread(other, back, 1, 0) == 1);
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        CHECK(errno == ENODEV);
        return;
    }
    CHECK(map[0] == 'a' && map[8191] == 'a');
    for (int i = 0; i < 10; i++) {
        block[0] = (char)('b' + i);
        CHECK(pwrite(other, block, 1, 0) == 1 && map[0] == 'b' + i);
        CHECK(pwrite(fd, block, 1, 5000) == 1 && map[5000] == 'b' + i);
        map[100] = (char)('B' + i);
        CHECK(pread(other, back, 1, 100) == 1 && back[0] == 'B' + i);
        int late = open(path, O_RDWR);
        CHECK(pwrite(late, block, 1, 7) == 1 && map[7] == 'b' + i && close(late) == 0);
    }
    CHECK(munmap(map, 8192) == 0 && close(fd) == 0 && close(other) == 0);
}

static void limits(const char *dir) {
    char *path = in(dir, "limits");
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    char block[1000] = {0};
    for (int i = 0; i < 10; i++)
        CHECK(write(fd, block, 1000) == 1000);
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit = before;
    limit.rlim_cur = 20000;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(pwrite(fd, block, 1000, 19000) == 1000 && pwrite(fd, block, 1000, 19500) == 500);
    FAILS(pwrite(fd, block, 1000, 20000), EFBIG);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0 && pwrite(fd, block, 1000, 20000) == 1000 && close(fd) == 0);
}

static const struct test TESTS[] = {
    {"positions", positions}, {"lists", lists}, {"errors", errors},     {"sizes", sizes},
    {"flags", flags},         {"times", times}, {"mappings", mappings}, {"limits", limits},
    {NULL, NULL},
};

int main(int argc, char **argv) {
    return run(TESTS, argc, argv);
}

/* One file, changed and read at random through calls that the preload may serve and calls that it does not see, below one
 * or several mounts, and compared with memory after each step: mix STEPS SEED FILE... (names of one file). */
#include "check.h"

enum { SIZE = 400000, LONGEST = 40000, DESCRIPTORS = 8 };

static unsigned char model[SIZE], buffer[LONGEST], back[LONGEST];
static off_t size;
static int fds[DESCRIPTORS];
static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void failed(long step, const char *what, off_t at, long length) {
    fprintf(stderr, "step %ld: %s of %ld at %ld, size %ld (errno %d)\n", step, what, length, (long)at, (long)size, errno);
    abort();
}

/* Writes around libc: the mount serves it. */
static ssize_t raw_pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return syscall(SYS_pwrite64, fd, bytes, count, at);
}

static ssize_t raw_pread(int fd, void *bytes, size_t count, off_t at) {
    return syscall(SYS_pread64, fd, bytes, count, at);
}

static void write_some(long step, int fd, int way) {
    long length = 1 + (long)draw(way % 2 ? 300 : LONGEST);
    off_t at = (off_t)draw(SIZE - (uint64_t)length);
    for (long i = 0; i < length; i++)
        buffer[i] = (unsigned char)draw(256);
    ssize_t written = -1;
    struct iovec pieces[2] = {{buffer, (size_t)length / 3}, {buffer + length / 3, (size_t)(length - length / 3)}};
    if (way < 2)
        written = pwrite(fd, buffer, (size_t)length, at);
    else if (way < 4)
        written = lseek(fd, at, SEEK_SET) == at ? write(fd, buffer, (size_t)length) : -1;
    else if (way == 4)
        written = raw_pwrite(fd, buffer, (size_t)length, at);
    else if (way == 5)
        written = pwritev(fd, pieces, 2, at);
    else
        written = lseek(fd, at, SEEK_SET) == at ? syscall(SYS_write, fd, buffer, length) : -1;
    if (written != length || (way != 4 && way > 1 && way != 5 && lseek(fd, 0, SEEK_CUR) != at + length))
        failed(step, "write", at, length);
    if (at > size)
        memset(model + size, 0, (size_t)(at - size));
    memcpy(model + at, buffer, (size_t)length);
    size = at + length > size ? at + length : size;
}

static void read_some(long step, int fd, int way) {
    long length = 1 + (long)draw(way % 2 ? 300 : LONGEST);
    off_t at = (off_t)draw(SIZE);
    long expected = at >= size ? 0 : size - at < length ? (long)(size - at) : length;
    struct iovec pieces[2] = {{back, (size_t)length / 3}, {back + length / 3, (size_t)(length - length / 3)}};
    ssize_t got = -1;
    if (way < 2)
        got = pread(fd, back, (size_t)length, at);
    else if (way < 4)
        got = lseek(fd, at, SEEK_SET) == at ? read(fd, back, (size_t)length) : -1;
    else if (way == 4)
        got = raw_pread(fd, back, (size_t)length, at);
    else if (way == 5)
        got = preadv(fd, pieces, 2, at);
    else
        got = lseek(fd, at, SEEK_SET) == at ? syscall(SYS_read, fd, back, length) : -1;
    if (got != expected || memcmp(back, model + at, (size_t)expected) != 0)
        failed(step, "read", at, length);
}

static void resize(long step, int fd) {
    off_t length = (off_t)draw(SIZE);
    if (ftruncate(fd, length) != 0)
        failed(step, "truncation", length, 0);
    if (length > size)
        memset(model + size, 0, (size_t)(length - size));
    size = length;
}

static void look(long step, int fd) {
    struct stat stat;
    if (fstat(fd, &stat) != 0 || stat.st_size != size || lseek(fd, 0, SEEK_END) != size)
        failed(step, "size", stat.st_size, 0);
}

static void append(long step, const char *path) {
    int fd = open(path, O_WRONLY | O_APPEND);
    for (int turn = 0; turn < 3 && size < SIZE - 100; turn++) {
        long length = 1 + (long)draw(100);
        for (long i = 0; i < length; i++)
            model[size + i] = buffer[i] = (unsigned char)draw(256);
        if (write(fd, buffer, (size_t)length) != length)
            failed(step, "append", size, length);
        size += length;
    }
    CHECK(close(fd) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 4);
    long steps = atol(argv[1]);
    state = strtoull(argv[2], NULL, 10) * 2654435761u + 88172645463325252u;
    char **paths = argv + 3;
    uint64_t count = (uint64_t)argc - 3;
    CHECK(close(open(paths[0], O_RDWR | O_CREAT | O_TRUNC, 0644)) == 0);
    for (int i = 0; i < DESCRIPTORS; i++)
        CHECK((fds[i] = open(paths[(uint64_t)i % count], O_RDWR)) >= 0);
    for (long step = 0; step < steps; step++) {
        uint64_t which = draw(DESCRIPTORS), what = draw(100);
        int fd = fds[which], way = (int)draw(7);
        if (what < 45)
            write_some(step, fd, way);
        else if (what < 85)
            read_some(step, fd, way);
        else if (what < 90)
            resize(step, fd);
        else if (what < 94)
            look(step, fd);
        else if (what < 96)
            append(step, paths[which % count]);
        else if (what < 97)
            CHECK(fsync(fd) == 0);
        else {
            CHECK(close(fd) == 0);
            CHECK((fds[which] = open(paths[draw(count)], O_RDWR)) >= 0);
        }
    }
    for (uint64_t i = 0; i < count; i++) {
        size_t length = 0;
        char *bytes = content(paths[i], &length);
        CHECK(length == (size_t)size && memcmp(bytes, model, length) == 0);
        free(bytes);
    }
    puts("well");
    return 0;
}

/* Every function of the header, with what it is to do and what it is to refuse. The test of the library runs it. */
#define _GNU_SOURCE
#include <bivouac.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Path of the directory that the calls are made in, with a slash at its end; of the formation's root if it is empty. */
#ifndef TOP
#define TOP ""
#endif

#define CHECK(condition)                                                                                      \
    do {                                                                                                      \
        if (!(condition)) {                                                                                   \
            fprintf(stderr, "line %d: %s (errno %d: %s)\n", __LINE__, #condition, errno, bivouac_error());    \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

#define REFUSED(call, number)                                                                                 \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        CHECK((call) == -1 && errno == (number) && *bivouac_error());                                         \
    } while (0)

#define NOT_OPENED(call, number)                                                                              \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        CHECK((call) == NULL && errno == (number) && *bivouac_error());                                       \
    } while (0)

static void files(bivouac *fs)
{
    char buffer[64] = { 0 };
    struct stat st;
    errno = 77;
    bivouac_file *file = bivouac_open(fs, "/" TOP "d/a", O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(file && errno == 77);
    NOT_OPENED(bivouac_open(fs, TOP "d/a", O_RDWR | O_CREAT | O_EXCL, 0640), EEXIST);
    CHECK(bivouac_pwrite(file, "hello, world", 12, 3) == 12);
    CHECK(bivouac_pread(file, buffer, sizeof buffer, 0) == 15 && memcmp(buffer, "\0\0\0hello, world", 15) == 0);
    CHECK(bivouac_pread(file, buffer, 4, 15) == 0 && bivouac_pread(file, NULL, 0, 0) == 0);
    REFUSED(bivouac_pread(file, buffer, 4, -1), EINVAL);
    REFUSED(bivouac_pread(file, NULL, 4, 0), EINVAL);
    REFUSED(bivouac_pread(NULL, buffer, 4, 0), EINVAL);
    REFUSED(bivouac_pwrite(file, "x", 1, INT64_MAX), EFBIG);
    CHECK(bivouac_fstat(file, &st) == 0 && st.st_size == 15 && st.st_mode == (S_IFREG | 0640) && st.st_nlink == 1);
    CHECK(st.st_uid == geteuid() && st.st_mtim.tv_sec > 1000000000);
    CHECK(bivouac_ftruncate(file, 5) == 0 && bivouac_fstat(file, &st) == 0 && st.st_size == 5);
    CHECK(bivouac_truncate(fs, TOP "d/a", 8) == 0);
    CHECK(bivouac_pread(file, buffer, sizeof buffer, 0) == 8 && memcmp(buffer, "\0\0\0he\0\0\0", 8) == 0);
    CHECK(bivouac_fsync(file) == 0);
    bivouac_close(file);

    file = bivouac_open(fs, TOP "d/a", O_WRONLY | O_APPEND, 0);
    CHECK(file && bivouac_pwrite(file, "end", 3, 0) == 3);
    REFUSED(bivouac_pread(file, buffer, 1, 0), EBADF);
    bivouac_piece piece = { 0, buffer, 1, 0 };
    REFUSED(bivouac_write_list(file, &piece, 1), EINVAL);
    bivouac_close(file);
    file = bivouac_open(fs, TOP "d/a", O_RDONLY, 0);
    CHECK(file && bivouac_pread(file, buffer, sizeof buffer, 8) == 3 && memcmp(buffer, "end", 3) == 0);
    REFUSED(bivouac_pwrite(file, "x", 1, 0), EBADF);
    REFUSED(bivouac_ftruncate(file, 0), EBADF);
    bivouac_close(file);
    file = bivouac_open(fs, TOP "d/a", O_RDWR | O_TRUNC, 0);
    CHECK(file && bivouac_fstat(file, &st) == 0 && st.st_size == 0);
    bivouac_close(file);
    bivouac_close(NULL);
    NOT_OPENED(bivouac_open(fs, TOP "d", O_RDONLY, 0), EISDIR);
    NOT_OPENED(bivouac_open(fs, TOP "d/", O_RDWR | O_CREAT, 0644), EISDIR);
    NOT_OPENED(bivouac_open(fs, TOP "d/none", O_RDONLY, 0), ENOENT);
    NOT_OPENED(bivouac_open(fs, TOP "d/a/b", O_RDONLY, 0), ENOTDIR);
    NOT_OPENED(bivouac_open(fs, TOP "d/a", O_PATH, 0), EINVAL);
    NOT_OPENED(bivouac_open(fs, TOP "d/a", 3, 0), EINVAL);
    NOT_OPENED(bivouac_open(fs, NULL, O_RDONLY, 0), EINVAL);
}

static void lists(bivouac *fs)
{
    char in[3][4], out[3][4] = { "abc", "def", "ghi" };
    bivouac_file *file = bivouac_open(fs, TOP "list", O_RDWR | O_CREAT, 0600);
    bivouac_piece pieces[3];
    for (int i = 0; i < 3; i++)
        pieces[i] = (bivouac_piece){ 100000 * (2 - i), out[i], 3, 99 };
    CHECK(file && bivouac_write_list(file, pieces, 3) == 9 && pieces[0].done == 99);
    for (int i = 0; i < 3; i++)
        pieces[i] = (bivouac_piece){ 100000 * (2 - i) + 1, in[i], 4, 99 };
    CHECK(bivouac_read_list(file, pieces, 3) == 10);
    CHECK(pieces[0].done == 2 && memcmp(in[0], "bc", 2) == 0);
    CHECK(pieces[1].done == 4 && memcmp(in[1], "ef\0\0", 4) == 0);
    CHECK(pieces[2].done == 4 && memcmp(in[2], "hi\0\0", 4) == 0);
    CHECK(bivouac_read_list(file, NULL, 0) == 0);
    REFUSED(bivouac_read_list(file, NULL, 1), EINVAL);
    pieces[1].offset = -1;
    REFUSED(bivouac_write_list(file, pieces, 3), EINVAL);
    bivouac_close(file);
}

/* Takes bytes from, or puts them to, what is shown, each at its place. */
struct shown {
    int is_write;
    char *bytes;
    off_t start, next;
};

static size_t move(void *context, off_t offset, void *bytes, size_t count)
{
    struct shown *shown = context;
    CHECK(offset == shown->next && count > 0);
    shown->next = offset + (off_t)count;
    if (shown->is_write)
        memcpy(bytes, shown->bytes + (offset - shown->start), count);
    else
        memcpy(shown->bytes + (offset - shown->start), bytes, count);
    return count;
}

static ssize_t show(bivouac_file *file, int is_write, off_t offset, size_t count, char *bytes)
{
    struct shown shown = { is_write, bytes, offset, offset };
    ssize_t moved = bivouac_show(file, is_write, offset, count, move, &shown);
    CHECK(moved <= 0 || (moved == (ssize_t)count && shown.next == offset + moved));
    return moved;
}

/* Stripes are shorter than what is shown. The first access to each target is a message, and shows nothing. */
static void shown(bivouac *fs)
{
    enum { SIZE = 200000 };
    static char out[SIZE], in[SIZE];
    bivouac_file *file = bivouac_open(fs, "shown", O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < SIZE; i++)
        out[i] = (char)(i * 7 % 251);
    for (int i = 0; i < 2; i++)
        CHECK(file && bivouac_pwrite(file, out, SIZE, 0) == SIZE);
    CHECK(show(file, 0, 0, SIZE, in) == SIZE && memcmp(in, out, SIZE) == 0);
    memset(out + 5000, 9, 100000);
    CHECK(show(file, 1, 5000, 100000, out + 5000) == 100000);
    CHECK(bivouac_pread(file, in, SIZE, 0) == SIZE && memcmp(in, out, SIZE) == 0);
    CHECK(show(file, 0, 4999, 1, in) == 1 && in[0] == out[4999]);
    CHECK(show(file, 0, 1, SIZE, in) == 0 && show(file, 1, SIZE - 1, 2, out) == 0);
    CHECK(bivouac_ftruncate(file, 1000) == 0 && bivouac_ftruncate(file, SIZE) == 0);
    CHECK(show(file, 0, 0, SIZE, in) == 0);
    CHECK(bivouac_pread(file, in, SIZE, 0) == SIZE && memcmp(in, out, 1000) == 0 && in[1000] == 0 && in[SIZE - 1] == 0);
    REFUSED(show(file, 0, -1, 1, in), EINVAL);
    REFUSED(bivouac_show(file, 0, 0, 1, NULL, NULL), EINVAL);
    bivouac_close(file);
    file = bivouac_open(fs, "shown", O_RDONLY, 0);
    REFUSED(show(file, 1, 0, 1, out), EBADF);
    CHECK(bivouac_show(NULL, 0, 0, 1, move, NULL) == -1 && errno == EINVAL);
    bivouac_close(file);
    CHECK(bivouac_unlink(fs, "shown") == 0);
}

static void names(bivouac *fs)
{
    struct stat st;
    REFUSED(bivouac_mkdir(fs, TOP "d", 0755), EEXIST);
    REFUSED(bivouac_mkdir(fs, "/", 0755), EEXIST);
    REFUSED(bivouac_mkdir(fs, "none/d", 0755), ENOENT);
    CHECK(bivouac_mkdir(fs, TOP "d/sub/", 0700) == 0);
    CHECK(bivouac_stat(fs, TOP "d/sub", &st) == 0 && st.st_mode == (S_IFDIR | 0700));
    CHECK(bivouac_stat(fs, "/", &st) == 0 && bivouac_stat(fs, TOP "d/sub/..", &st) == 0 && st.st_nlink == 3);
    REFUSED(bivouac_stat(fs, "", &st), ENOENT);
    REFUSED(bivouac_stat(fs, TOP "d/a/", &st), ENOTDIR);
    REFUSED(bivouac_stat(fs, TOP "d", NULL), EINVAL);
    CHECK(bivouac_rename(fs, TOP "d/a", TOP "d/sub/b") == 0);
    REFUSED(bivouac_rename(fs, TOP "d/a", TOP "d/c"), ENOENT);
    REFUSED(bivouac_rename(fs, TOP "d/sub/b", TOP "d/c/"), ENOTDIR);
    REFUSED(bivouac_rename(fs, TOP "d/sub/b/", TOP "d/c"), ENOTDIR);
    /* A directory that the other side of a link has keeps its name. */
    if (!*TOP) {
        CHECK(bivouac_mkdir(fs, "d/e/", 0700) == 0 && bivouac_rename(fs, "d/e/", "d/f/") == 0 && bivouac_rmdir(fs, "d/f/") == 0);
        REFUSED(bivouac_rename(fs, "d", "d/sub/d"), EINVAL);
    } else {
        REFUSED(bivouac_rename(fs, TOP "d/sub", TOP "d/f"), EXDEV);
    }
    REFUSED(bivouac_rename(fs, TOP "d/sub/..", "x"), EINVAL);
    REFUSED(bivouac_rmdir(fs, TOP "d/sub"), ENOTEMPTY);
    REFUSED(bivouac_rmdir(fs, "/"), EBUSY);
    REFUSED(bivouac_unlink(fs, TOP "d/sub"), EISDIR);
    REFUSED(bivouac_unlink(fs, TOP "d/sub/b/"), ENOTDIR);
    CHECK(bivouac_unlink(fs, TOP "d/sub/b") == 0 && bivouac_rmdir(fs, TOP "d/sub") == 0);
    /* Links that the test made through the mount: d/link to ../list, d/loop to itself, d/out to /etc. */
    CHECK(bivouac_lstat(fs, TOP "d/link", &st) == 0 && S_ISLNK(st.st_mode));
    CHECK(bivouac_stat(fs, TOP "d/link", &st) == 0 && S_ISREG(st.st_mode));
    REFUSED(bivouac_stat(fs, TOP "d/loop", &st), ELOOP);
    REFUSED(bivouac_stat(fs, TOP "d/out/passwd", &st), EXDEV);
    NOT_OPENED(bivouac_open(fs, TOP "d/link", O_RDONLY | O_NOFOLLOW, 0), ELOOP);
    bivouac_file *file = bivouac_open(fs, TOP "d/link", O_RDONLY, 0);
    CHECK(file);
    bivouac_close(file);
}

static void directories(bivouac *fs)
{
    char path[32];
    int seen[300] = { 0 }, count = 0;
    bivouac_entry entry;
    CHECK(bivouac_mkdir(fs, TOP "many", 0755) == 0);
    for (int i = 0; i < 300; i++) {
        snprintf(path, sizeof path, TOP "many/%d", i);
        bivouac_close(bivouac_open(fs, path, O_WRONLY | O_CREAT, 0644));
    }
    bivouac_dir *directory = bivouac_opendir(fs, TOP "many");
    CHECK(directory);
    while (bivouac_readdir(directory, &entry) == 1) {
        CHECK(entry.type == S_IFREG && entry.ino != 0);
        seen[atoi(entry.name)]++;
        count++;
    }
    CHECK(count == 300 && bivouac_readdir(directory, &entry) == 0);
    for (int i = 0; i < 300; i++)
        CHECK(seen[i] == 1);
    bivouac_closedir(directory);
    bivouac_closedir(NULL);
    NOT_OPENED(bivouac_opendir(fs, TOP "list"), ENOTDIR);
}

/* What processes need of each other: bytes that one gets, locks, files by number and by a mount's descriptor. */
static void sharing(bivouac *fs, const char *mount)
{
    char path[4096], value[256];
    struct stat st;
    bivouac_file *file = bivouac_open(fs, TOP "shared", O_RDWR | O_CREAT, 0600), *again, *unnamed;
    CHECK(file && bivouac_claim(file, 100) == 0 && bivouac_claim(file, 11) == 100 && bivouac_claim(file, 0) == 111);
    REFUSED(bivouac_claim(file, -1), EINVAL);
    REFUSED(bivouac_claim(file, INT64_MAX), EFBIG);
    CHECK(bivouac_fstat(file, &st) == 0 && st.st_size == 111);
    again = bivouac_open_number(fs, st.st_ino, O_RDONLY);
    CHECK(again && bivouac_pread(again, value, 4, 109) == 2 && value[0] == 0);
    REFUSED(bivouac_claim(again, 1), EBADF);
    bivouac_close(again);
    NOT_OPENED(bivouac_open_number(fs, st.st_ino, O_RDWR | O_TRUNC), EINVAL);
    NOT_OPENED(bivouac_open_number(fs, 1, O_RDONLY), EISDIR);

    CHECK(bivouac_lock(file, F_WRLCK, 0, 50, 1, 0) == 0 && bivouac_lock(file, F_WRLCK, 10, 50, 1, 0) == 0);
    REFUSED(bivouac_lock(file, F_RDLCK, 40, 0, 2, 0), EAGAIN);
    CHECK(bivouac_lock(file, F_UNLCK, 0, 0, 1, 0) == 0 && bivouac_lock(file, F_RDLCK, 40, 0, 2, 1) == 0);
    CHECK(bivouac_lock(file, F_RDLCK, 40, 1, 3, 0) == 0);
    REFUSED(bivouac_lock(file, F_WRLCK, 40, 1, 3, 0), EAGAIN);
    REFUSED(bivouac_lock(file, 99, 0, 0, 1, 0), EINVAL);
    REFUSED(bivouac_lock(file, F_RDLCK, INT64_MAX, 2, 1, 0), EOVERFLOW);

    REFUSED(bivouac_allocate(file, 0, -1), EINVAL);
    CHECK(bivouac_allocate(file, 0, 70000) == 0 && bivouac_fstat(file, &st) == 0 && st.st_size == 70000);
    REFUSED(bivouac_fsetxattr(file, "user.bivouac.layout", "stripe=8192", 11, 0), EBUSY);
    CHECK(bivouac_fsetxattr(file, "user.a", "value", 5, 0) == 0);
    CHECK(bivouac_fgetxattr(file, "user.a", value, sizeof value) == 5 && memcmp(value, "value", 5) == 0);
    CHECK(bivouac_fgetxattr(file, "user.a", NULL, 0) == 5);
    REFUSED(bivouac_fgetxattr(file, "user.a", value, 3), ERANGE);
    REFUSED(bivouac_fgetxattr(file, "user.b", value, sizeof value), ENODATA);

    /* S792: a contract per open. */
    NOT_OPENED(bivouac_open_as(fs, "/" TOP "as", O_CREAT | O_RDWR, 0644, "loose"), EINVAL);
    CHECK(strstr(bivouac_error(), "is none of coherent"));
    NOT_OPENED(bivouac_open_as(fs, "/" TOP "as", O_RDWR, 0644, "strict"), ENOENT);
    bivouac_file *as = bivouac_open_as(fs, "/" TOP "as", O_CREAT | O_EXCL | O_RDWR, 0444, "session");
    CHECK(as && bivouac_fgetxattr(as, "user.bivouac.contract", value, sizeof value) == 7 && memcmp(value, "session", 7) == 0);
    CHECK(bivouac_pwrite(as, "kept", 4, 0) == 4 && bivouac_fsync(as) == 0);
    NOT_OPENED(bivouac_open_as(fs, "/" TOP "as", O_CREAT | O_EXCL | O_RDWR, 0644, "session"), EEXIST);
    CHECK(bivouac_close(as) == 0);
    as = bivouac_open_as(fs, "/" TOP "as", O_CREAT | O_RDONLY, 0644, "strict");
    CHECK(as && bivouac_fgetxattr(as, "user.bivouac.contract", value, sizeof value) == 6 && memcmp(value, "strict", 6) == 0);
    NOT_OPENED(bivouac_open_as(fs, "/" TOP "as", O_RDONLY, 0, "session"), EBUSY);
    CHECK(bivouac_pread(as, value, sizeof value, 0) == 4 && memcmp(value, "kept", 4) == 0 && bivouac_close(as) == 0);
    as = bivouac_open_as(fs, "/" TOP "as", O_RDONLY, 0, "partition");
    CHECK(as && bivouac_fgetxattr(as, "user.bivouac.contract", value, sizeof value) == 18);
    CHECK(bivouac_pread(as, value, sizeof value, 0) == 4 && bivouac_close(as) == 0);
    /* S752, S754: it is open for what was asked for. */
    as = bivouac_open_as(fs, "/" TOP "as", O_RDWR, 0, "coherent");
    CHECK(as && bivouac_pwrite(as, "K", 1, 0) == 1);
    REFUSED(bivouac_fsetxattr(as, "user.bivouac.contract", "laminated", 9, 0), EBUSY);
    CHECK(bivouac_close(as) == 0);
    as = bivouac_open_as(fs, "/" TOP "as", O_RDONLY, 0, "laminated");
    CHECK(as && bivouac_pread(as, value, sizeof value, 0) == 4 && memcmp(value, "Kept", 4) == 0);
    NOT_OPENED(bivouac_open_as(fs, "/" TOP "as", O_RDWR, 0, "laminated"), EROFS);
    CHECK(bivouac_close(as) == 0);
    CHECK(bivouac_unlink(fs, "/" TOP "as") == 0);

    uint32_t targets[64] = { 99 };
    ssize_t here = bivouac_targets_here(file, targets, 64);
    CHECK(here > 0 && bivouac_targets_here(file, NULL, 0) == here && targets[0] == 0);
    for (ssize_t i = 1; i < here; i++)
        CHECK(targets[i] > targets[i - 1]);
    REFUSED(bivouac_targets_here(file, NULL, 1), EINVAL);
    bivouac_traffic before, after;
    CHECK(bivouac_traffic_so_far(&before, sizeof before) == 0 && bivouac_pread(file, value, 200, 0) == 200);
    CHECK(bivouac_traffic_so_far(&after, sizeof after) == 0 && after.bytes_local == before.bytes_local + 200);
    CHECK(after.bytes_remote == before.bytes_remote && after.messages >= before.messages);
    REFUSED(bivouac_traffic_so_far(NULL, sizeof after), EINVAL);
    REFUSED(bivouac_traffic_so_far(&after, 8), EINVAL);

    CHECK(bivouac_stat(fs, "/" TOP, &st) == 0);
    unnamed = bivouac_open_unnamed(fs, st.st_ino, 0600);
    CHECK(unnamed && bivouac_fstat(unnamed, &st) == 0 && st.st_nlink == 0 && bivouac_claim(unnamed, 1LL << 50) == 0);
    again = bivouac_open_number(fs, st.st_ino, O_RDWR);
    bivouac_close(unnamed);
    CHECK(again && bivouac_claim(again, 1) == 1LL << 50);
    bivouac_close(again);
    NOT_OPENED(bivouac_open_number(fs, st.st_ino, O_RDWR), ENOENT);

    snprintf(path, sizeof path, "%s/" TOP "shared", mount);
    int fd = open(path, O_RDONLY), alien = open("/etc/hostname", O_RDONLY);
    NOT_OPENED(bivouac_connect_descriptor(alien), ENOTTY);
    NOT_OPENED(bivouac_open_descriptor(fs, alien), ENOTTY);
    NOT_OPENED(bivouac_open_descriptor(fs, -1), EBADF);
    bivouac *found = bivouac_connect_descriptor(fd);
    CHECK(found);
    again = bivouac_open_descriptor(found, fd);
    close(fd);
    /* Locks are between connections, too, and go with the file that they were taken through. */
    REFUSED(bivouac_lock(again, F_WRLCK, 40, 1, 2, 0), EAGAIN);
    bivouac_close(file);
    CHECK(bivouac_lock(again, F_WRLCK, 40, 1, 2, 1) == 0);
    CHECK(bivouac_fstat(again, &st) == 0 && st.st_size == 70000);
    REFUSED(bivouac_pwrite(again, "x", 1, 0), EBADF);
    bivouac_close(again);
    bivouac_disconnect(found);
    close(alien);
}

/* The child must not disturb its parent's connection. */
static void children(bivouac *fs, const char *where)
{
    char buffer[8];
    int status;
    bivouac_file *file = bivouac_open(fs, TOP "list", O_RDWR, 0);
    CHECK(file && bivouac_pread(file, buffer, 3, 0) == 3);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        REFUSED(bivouac_pread(file, buffer, 3, 0), EBADF);
        bivouac_close(file);
        bivouac *own = bivouac_connect(where, 0);
        CHECK(own);
        file = bivouac_open(own, TOP "list", O_RDWR, 0);
        CHECK(file && bivouac_pwrite(file, "child", 5, 0) == 5);
        bivouac_close(file);
        bivouac_disconnect(own);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(bivouac_pread(file, buffer, 5, 0) == 5 && memcmp(buffer, "child", 5) == 0);
    bivouac_close(file);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    NOT_OPENED(bivouac_connect("/nonexistent", 0), ENOENT);
    NOT_OPENED(bivouac_connect("/etc/hostname", 0), ENOTDIR);
    NOT_OPENED(bivouac_connect(NULL, 0), EINVAL);
    bivouac *fs = bivouac_connect(argv[1], 60000);
    CHECK(fs);
    files(fs);
    lists(fs);
    shown(fs);
    names(fs);
    directories(fs);
    sharing(fs, argv[2]);
    children(fs, argv[1]);
    bivouac_disconnect(fs);
    bivouac_disconnect(NULL);
    puts("all as the header says");
    return 0;
}

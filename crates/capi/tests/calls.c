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
    bivouac_file *file = bivouac_open(fs, "/d/a", O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(file && errno == 77);
    NOT_OPENED(bivouac_open(fs, "d/a", O_RDWR | O_CREAT | O_EXCL, 0640), EEXIST);
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
    CHECK(bivouac_truncate(fs, "d/a", 8) == 0);
    CHECK(bivouac_pread(file, buffer, sizeof buffer, 0) == 8 && memcmp(buffer, "\0\0\0he\0\0\0", 8) == 0);
    CHECK(bivouac_fsync(file) == 0);
    bivouac_close(file);

    file = bivouac_open(fs, "d/a", O_WRONLY | O_APPEND, 0);
    CHECK(file && bivouac_pwrite(file, "end", 3, 0) == 3);
    REFUSED(bivouac_pread(file, buffer, 1, 0), EBADF);
    bivouac_piece piece = { 0, buffer, 1, 0 };
    REFUSED(bivouac_write_list(file, &piece, 1), EINVAL);
    bivouac_close(file);
    file = bivouac_open(fs, "d/a", O_RDONLY, 0);
    CHECK(file && bivouac_pread(file, buffer, sizeof buffer, 8) == 3 && memcmp(buffer, "end", 3) == 0);
    REFUSED(bivouac_pwrite(file, "x", 1, 0), EBADF);
    REFUSED(bivouac_ftruncate(file, 0), EBADF);
    bivouac_close(file);
    file = bivouac_open(fs, "d/a", O_RDWR | O_TRUNC, 0);
    CHECK(file && bivouac_fstat(file, &st) == 0 && st.st_size == 0);
    bivouac_close(file);
    bivouac_close(NULL);
    NOT_OPENED(bivouac_open(fs, "d", O_RDONLY, 0), EISDIR);
    NOT_OPENED(bivouac_open(fs, "d/", O_RDWR | O_CREAT, 0644), EISDIR);
    NOT_OPENED(bivouac_open(fs, "d/none", O_RDONLY, 0), ENOENT);
    NOT_OPENED(bivouac_open(fs, "d/a/b", O_RDONLY, 0), ENOTDIR);
    NOT_OPENED(bivouac_open(fs, "d/a", O_PATH, 0), EINVAL);
    NOT_OPENED(bivouac_open(fs, "d/a", 3, 0), EINVAL);
    NOT_OPENED(bivouac_open(fs, NULL, O_RDONLY, 0), EINVAL);
}

static void lists(bivouac *fs)
{
    char in[3][4], out[3][4] = { "abc", "def", "ghi" };
    bivouac_file *file = bivouac_open(fs, "list", O_RDWR | O_CREAT, 0600);
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

static void names(bivouac *fs)
{
    struct stat st;
    REFUSED(bivouac_mkdir(fs, "d", 0755), EEXIST);
    REFUSED(bivouac_mkdir(fs, "/", 0755), EEXIST);
    REFUSED(bivouac_mkdir(fs, "none/d", 0755), ENOENT);
    CHECK(bivouac_mkdir(fs, "d/sub/", 0700) == 0);
    CHECK(bivouac_stat(fs, "d/sub", &st) == 0 && st.st_mode == (S_IFDIR | 0700));
    CHECK(bivouac_stat(fs, "/", &st) == 0 && bivouac_stat(fs, "d/sub/..", &st) == 0 && st.st_nlink == 3);
    REFUSED(bivouac_stat(fs, "", &st), ENOENT);
    REFUSED(bivouac_stat(fs, "d/a/", &st), ENOTDIR);
    REFUSED(bivouac_stat(fs, "d", NULL), EINVAL);
    CHECK(bivouac_rename(fs, "d/a", "d/sub/b") == 0);
    REFUSED(bivouac_rename(fs, "d/a", "d/c"), ENOENT);
    REFUSED(bivouac_rename(fs, "d/sub/b", "d/c/"), ENOTDIR);
    REFUSED(bivouac_rename(fs, "d/sub/b/", "d/c"), ENOTDIR);
    CHECK(bivouac_mkdir(fs, "d/e/", 0700) == 0 && bivouac_rename(fs, "d/e/", "d/f/") == 0 && bivouac_rmdir(fs, "d/f/") == 0);
    REFUSED(bivouac_rename(fs, "d", "d/sub/d"), EINVAL);
    REFUSED(bivouac_rename(fs, "d/sub/..", "x"), EINVAL);
    REFUSED(bivouac_rmdir(fs, "d/sub"), ENOTEMPTY);
    REFUSED(bivouac_rmdir(fs, "/"), EBUSY);
    REFUSED(bivouac_unlink(fs, "d/sub"), EISDIR);
    REFUSED(bivouac_unlink(fs, "d/sub/b/"), ENOTDIR);
    CHECK(bivouac_unlink(fs, "d/sub/b") == 0 && bivouac_rmdir(fs, "d/sub") == 0);
    /* Links that the test made through the mount: d/link to ../list, d/loop to itself, d/out to /etc. */
    CHECK(bivouac_lstat(fs, "d/link", &st) == 0 && S_ISLNK(st.st_mode));
    CHECK(bivouac_stat(fs, "d/link", &st) == 0 && S_ISREG(st.st_mode));
    REFUSED(bivouac_stat(fs, "d/loop", &st), ELOOP);
    REFUSED(bivouac_stat(fs, "d/out/passwd", &st), EXDEV);
    NOT_OPENED(bivouac_open(fs, "d/link", O_RDONLY | O_NOFOLLOW, 0), ELOOP);
    bivouac_file *file = bivouac_open(fs, "d/link", O_RDONLY, 0);
    CHECK(file);
    bivouac_close(file);
}

static void directories(bivouac *fs)
{
    char path[32];
    int seen[300] = { 0 }, count = 0;
    bivouac_entry entry;
    CHECK(bivouac_mkdir(fs, "many", 0755) == 0);
    for (int i = 0; i < 300; i++) {
        snprintf(path, sizeof path, "many/%d", i);
        bivouac_close(bivouac_open(fs, path, O_WRONLY | O_CREAT, 0644));
    }
    bivouac_dir *directory = bivouac_opendir(fs, "many");
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
    NOT_OPENED(bivouac_opendir(fs, "list"), ENOTDIR);
}

/* The child must not disturb its parent's connection. */
static void children(bivouac *fs, const char *where)
{
    char buffer[8];
    int status;
    bivouac_file *file = bivouac_open(fs, "list", O_RDWR, 0);
    CHECK(file && bivouac_pread(file, buffer, 3, 0) == 3);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        REFUSED(bivouac_pread(file, buffer, 3, 0), EBADF);
        bivouac_close(file);
        bivouac *own = bivouac_connect(where, 0);
        CHECK(own);
        file = bivouac_open(own, "list", O_RDWR, 0);
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
    CHECK(argc == 2);
    NOT_OPENED(bivouac_connect("/nonexistent", 0), ENOENT);
    NOT_OPENED(bivouac_connect("/etc/hostname", 0), ENOTDIR);
    NOT_OPENED(bivouac_connect(NULL, 0), EINVAL);
    bivouac *fs = bivouac_connect(argv[1], 60000);
    CHECK(fs);
    files(fs);
    lists(fs);
    names(fs);
    directories(fs);
    children(fs, argv[1]);
    bivouac_disconnect(fs);
    bivouac_disconnect(NULL);
    puts("all as the header says");
    return 0;
}

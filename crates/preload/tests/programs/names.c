/* What is at a name, in all ways to ask libc, beside what the kernel says, behind changes of all kinds; by SEED. */
#include "check.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>

#pragma GCC diagnostic ignored "-Wnonnull"

enum { NAMES = 24, STEPS = 40, ROUNDS = 4 };

static unsigned long seed;

static unsigned below(unsigned count) {
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)(seed >> 33) % count;
}

static char *name_in(const char *dir, unsigned number) {
    char name[16];
    snprintf(name, sizeof name, "%u", number);
    return in(dir, name);
}

/* What the kernel says, whatever stands in front of libc. */
static int plain(int dir, const char *path, struct stat *into, int flags) {
    return (int)syscall(SYS_newfstatat, dir, path, into, flags);
}

/* Blocks are counted when a file is closed, by whoever wrote it: they may be other ones by the second look. */
static void same(const struct stat *a, const struct stat *b, const char *path) {
    if (a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_mode == b->st_mode && a->st_nlink == b->st_nlink &&
        a->st_uid == b->st_uid && a->st_gid == b->st_gid && a->st_rdev == b->st_rdev && a->st_size == b->st_size &&
        a->st_blksize == b->st_blksize && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
        a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
        a->st_ctim.tv_nsec == b->st_ctim.tv_nsec && a->st_atim.tv_sec == b->st_atim.tv_sec &&
        a->st_atim.tv_nsec == b->st_atim.tv_nsec)
        return;
    fprintf(stderr, "%s: mode %o/%o links %d/%d size %ld/%ld blocks %ld/%ld rdev %lx/%lx block %ld/%ld mtime %ld.%09ld/%ld.%09ld "
            "ctime %ld.%09ld/%ld.%09ld atime %ld.%09ld/%ld.%09ld\n", path, a->st_mode, b->st_mode, (int)a->st_nlink,
            (int)b->st_nlink, a->st_size, b->st_size, a->st_blocks, b->st_blocks, a->st_rdev, b->st_rdev,
            (long)a->st_blksize, (long)b->st_blksize, a->st_mtim.tv_sec, a->st_mtim.tv_nsec, b->st_mtim.tv_sec,
            b->st_mtim.tv_nsec, a->st_ctim.tv_sec, a->st_ctim.tv_nsec, b->st_ctim.tv_sec, b->st_ctim.tv_nsec,
            a->st_atim.tv_sec, a->st_atim.tv_nsec, b->st_atim.tv_sec, b->st_atim.tv_nsec);
    CHECK(!"attributes differ");
}

static void compare(int dir, const char *name, const char *path) {
    struct stat seen, said;
    memset(&seen, 0xff, sizeof seen);
    int outcome = lstat(path, &seen), error = errno;
    int truth = plain(AT_FDCWD, path, &said, AT_SYMLINK_NOFOLLOW);
    CHECK(outcome == truth && (outcome == 0 || error == errno));
    if (truth == 0)
        same(&seen, &said, path);
    outcome = fstatat(dir, name, &seen, 0), error = errno;
    truth = plain(dir, name, &said, 0);
    CHECK(outcome == truth && (outcome == 0 || error == errno));
    if (truth == 0)
        same(&seen, &said, path);
    outcome = access(path, F_OK), error = errno;
    CHECK(outcome == truth && (outcome == 0 || error == errno));
    outcome = faccessat(dir, name, R_OK, 0), error = errno;
    CHECK(outcome == (int)syscall(SYS_faccessat, dir, name, R_OK) && (outcome == 0 || error == errno));
    struct statx more;
    outcome = statx(dir, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &more), error = errno;
    truth = plain(dir, name, &said, AT_SYMLINK_NOFOLLOW);
    CHECK(outcome == truth && (outcome == 0 || error == errno));
    if (truth == 0)
        CHECK((more.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS && more.stx_ino == said.st_ino &&
              more.stx_mode == said.st_mode && more.stx_size == (unsigned long)said.st_size &&
              more.stx_nlink == said.st_nlink &&
              more.stx_uid == said.st_uid && more.stx_blksize == (unsigned)said.st_blksize &&
              makedev(more.stx_dev_major, more.stx_dev_minor) == said.st_dev &&
              makedev(more.stx_rdev_major, more.stx_rdev_minor) == said.st_rdev &&
              more.stx_mtime.tv_sec == said.st_mtim.tv_sec && more.stx_mtime.tv_nsec == said.st_mtim.tv_nsec);
}

static void change(const char *top) {
    char *a = name_in(top, below(NAMES)), *b = name_in(top, below(NAMES)), bytes[5000];
    memset(bytes, 'x', sizeof bytes);
    int fd;
    switch (below(15)) {
    case 0:
    case 1:
        if ((fd = open(a, O_WRONLY | O_CREAT | O_NONBLOCK, 0644)) >= 0) {
            /* Once, and again within the size, which is told later. */
            ssize_t len = below(5000);
            CHECK(write(fd, bytes, len) == len);
            if (len > 10)
                CHECK(pwrite(fd, bytes, 10, 0) == 10 && pwrite(fd, bytes, 10, 0) == 10);
            CHECK(close(fd) == 0);
        }
        break;
    case 2:
        rename(a, b);
        break;
    case 3:
        unlink(a);
        break;
    case 4:
        chmod(a, 0600 + below(64));
        break;
    case 5:
        truncate(a, below(9000));
        break;
    case 6:
        link(a, b);
        break;
    case 7:
        symlink(below(2) ? "0" : "nothing", a);
        break;
    case 8:
        mkdir(a, 0755);
        break;
    case 9:
        rmdir(a);
        break;
    case 10:
        mkfifo(a, 0640);
        break;
    case 11: {
        struct timespec times[2] = {{below(1000), 5}, {below(1000), 7}};
        utimensat(AT_FDCWD, a, times, AT_SYMLINK_NOFOLLOW);
        break;
    }
    case 12:
        mknod(a, S_IFCHR | 0600, makedev(300 + below(9), 70000 + below(9)));
        break;
    case 13:
        lchown(a, below(9), below(9));
        break;
    default: {
        struct stat kind;
        FILE *stream = plain(AT_FDCWD, a, &kind, 0) == 0 && S_ISREG(kind.st_mode) ? fopen(a, "r+") : NULL;
        if (stream != NULL) {
            CHECK(fwrite(bytes, 1, 3, stream) == 3 && fflush(stream) == 0 && fseek(stream, 0, SEEK_SET) == 0);
            CHECK(fwrite(bytes, 1, 2, stream) == 2 && fflush(stream) == 0);
            struct stat seen, said;
            CHECK(lstat(a, &seen) == 0 || errno == ENOENT);
            if (plain(AT_FDCWD, a, &said, AT_SYMLINK_NOFOLLOW) == 0)
                same(&seen, &said, a);
            CHECK(fclose(stream) == 0);
        }
    }
    }
    free(a);
    free(b);
}

/* Memory that is not there, and names that nothing can have. */
static void odd(const char *top) {
    struct stat seen;
    int dir = open(top, O_RDONLY | O_DIRECTORY);
    char *nowhere = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), longest[3000];
    char *path = name_in(top, 0);
    CHECK(nowhere != MAP_FAILED && mprotect(nowhere, 4096, PROT_READ | PROT_WRITE) == 0);
    CHECK(mkdir(path, 0700) == 0);
    for (int turn = 0; turn < 40; turn++) {
        CHECK(lstat(path, &seen) == 0 && S_ISDIR(seen.st_mode));
        CHECK(lstat(nowhere + 4096, &seen) == -1 && errno == EFAULT);
        CHECK(lstat(NULL, &seen) == -1 && errno == EFAULT);
        CHECK(lstat(path, (struct stat *)(void *)(nowhere + 4096)) == -1 && errno == EFAULT);
        /* A path up to the end of memory, with its end and without. */
        memset(nowhere, 'n', 4096);
        CHECK(fstatat(dir, nowhere + 4090, &seen, 0) == -1 && errno == EFAULT);
        nowhere[4095] = 0;
        CHECK(fstatat(dir, nowhere + 4090, &seen, 0) == -1 && errno == ENOENT);
        CHECK(fstatat(dir, nowhere + 3000, &seen, 0) == -1 && errno == ENAMETOOLONG);
        strcpy(nowhere + 4094, "0");
        CHECK(fstatat(dir, nowhere + 4094, &seen, 0) == 0 && S_ISDIR(seen.st_mode));
        CHECK(fstatat(dir, "0/.", &seen, 0) == 0 && fstatat(dir, "0/../0", &seen, 0) == 0);
        CHECK(fstatat(dir, "0//", &seen, 0) == 0 && fstatat(dir, "./0", &seen, 0) == 0);
        CHECK(fstatat(dir, "", &seen, 0) == -1 && errno == ENOENT);
        CHECK(fstatat(dir, "", &seen, AT_EMPTY_PATH) == 0 && fstatat(-1, "0", &seen, 0) == -1 && errno == EBADF);
        CHECK(fstatat(dir, "0", &seen, 0x40000000) == -1 && errno == EINVAL);
        memset(longest, 'l', sizeof longest);
        longest[300] = 0;
        CHECK(fstatat(dir, longest, &seen, 0) == -1 && errno == ENAMETOOLONG);
        longest[255] = 0;
        CHECK(fstatat(dir, longest, &seen, 0) == -1 && errno == ENOENT);
        memset(longest, '/', sizeof longest);
        longest[sizeof longest - 2] = '0', longest[sizeof longest - 1] = 0;
        CHECK(fstatat(dir, longest + 2000, &seen, 0) == -1 && errno == ENOENT);
        CHECK(lstat("/", &seen) == 0 && lstat("/proc/self/fd", &seen) == 0);
        CHECK(access(path, W_OK) == 0 && access(path, X_OK) == 0 && access(path, -1) == -1 && errno == EINVAL);
    }
    CHECK(rmdir(path) == 0 && close(dir) == 0);
    free(path);
}

/* Who may not search a directory does not see what is in it; a child of a process is somebody else. */
static void strangers(const char *top) {
    char *dir = in(top, "private"), *path = in(dir, "file");
    struct stat seen;
    CHECK(mkdir(dir, 0700) == 0 && close(open(path, O_CREAT | O_WRONLY, 0600)) == 0 && chmod(top, 0755) == 0);
    for (int turn = 0; turn < 20; turn++)
        CHECK(lstat(path, &seen) == 0);
    pid_t child = fork();
    if (child == 0) {
        for (int turn = 0; turn < 20; turn++)
            CHECK(lstat(path, &seen) == 0 && seen.st_nlink == 1);
        if (geteuid() == 0) {
            CHECK(setegid(12345) == 0 && seteuid(12345) == 0);
            for (int turn = 0; turn < 20; turn++)
                CHECK(lstat(path, &seen) == -1 && (errno == EACCES));
        }
        CHECK(chmod(dir, 0) == 0 || geteuid() == 12345);
        _exit(0);
    }
    CHECK(ended(child) == 0);
    CHECK(unlink(path) == 0 && rmdir(dir) == 0);
    free(path);
    free(dir);
}

static void changes(const char *dir) {
    char *top = in(dir, "names");
    CHECK(mkdir(top, 0755) == 0);
    int held = open(top, O_RDONLY | O_DIRECTORY);
    CHECK(held >= 0);
    for (int round = 0; round < ROUNDS; round++) {
        /* Behind changes nothing is leased for a while, and so nothing is cached that a change could overtake. */
        usleep(500000);
        for (int step = 0; step < STEPS; step++) {
            for (unsigned name = 0; name < NAMES; name++) {
                char *path = name_in(top, name);
                compare(held, strrchr(path, '/') + 1, path);
                free(path);
            }
            change(top);
        }
    }
    for (unsigned name = 0; name < NAMES; name++) {
        char *path = name_in(top, name);
        CHECK(remove(path) == 0 || errno == ENOENT);
        free(path);
    }
    /* Opened for writing, a link that leads nowhere makes what it leads to. */
    char *nothing = in(top, "nothing");
    CHECK(remove(nothing) == 0 || errno == ENOENT);
    free(nothing);
    CHECK(close(held) == 0 && rmdir(top) == 0);
    free(top);
}

/* What is mounted below the formation is what is there: in the namespace of all, and in one's own. */
static void namespaces(const char *dir) {
    char *top = in(dir, "below"), *path = in(top, "file");
    struct stat seen, said;
    CHECK(mkdir(top, 0755) == 0 && close(open(path, O_CREAT | O_WRONLY, 0644)) == 0);
    for (int way = 0; way < 2; way++) {
        pid_t child = fork();
        if (child == 0) {
            if (way == 1 && unshare(CLONE_NEWNS) != 0)
                _exit(0);
            usleep(500000);
            for (int turn = 0; turn < 40; turn++)
                CHECK(lstat(path, &seen) == 0);
            if (way == 0 && unshare(CLONE_NEWNS) != 0)
                _exit(0);
            if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("x", top, "tmpfs", 0, NULL) != 0)
                _exit(0);
            for (int turn = 0; turn < 40; turn++) {
                CHECK(lstat(path, &seen) == -1 && errno == ENOENT);
                CHECK(lstat(top, &seen) == 0 && plain(AT_FDCWD, top, &said, 0) == 0);
                same(&seen, &said, top);
            }
            CHECK(umount(top) == 0 && lstat(path, &seen) == 0);
            if (unshare(CLONE_NEWUSER) == 0) {
                CHECK(lstat(path, &seen) == 0 && plain(AT_FDCWD, path, &said, 0) == 0);
                same(&seen, &said, path);
            }
            _exit(0);
        }
        CHECK(ended(child) == 0);
    }
    CHECK(unlink(path) == 0 && rmdir(top) == 0);
    free(path);
    free(top);
}

static const struct test TESTS[] = {{"odd", odd}, {"strangers", strangers}, {"namespaces", namespaces}, {"changes", changes}, {NULL, NULL}};

int main(int argc, char **argv) {
    const char *given = getenv("SEED");
    seed = given != NULL ? strtoul(given, NULL, 0) : 1;
    return run(TESTS, argc, argv);
}

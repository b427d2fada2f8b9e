/*
 * libbivouac: files of a formation, without a mount and without the kernel on the way.
 *
 * Bytes that are on this machine are read and written directly, others by messages. What programs may rely on is
 * the same as through a mount (docs/semantics/library.md): what a finished write wrote, every later read sees, on
 * whichever node and in whichever way.
 *
 * Conventions, for all functions:
 * - They return 0 or a count, or a pointer; on failure -1, or NULL, and then errno says why and bivouac_error() says it
 *   in words. On success errno is left alone.
 * - They may be called from any number of threads at once, also on the same connection and the same file. Only what
 *   ends an object (bivouac_close, bivouac_closedir, bivouac_disconnect) must not meet other calls on it.
 * - A connection keeps descriptors open, at most a quarter of what the process may have. A program must not close
 *   descriptors that are not its own. If it has left none to reach a node with, a call fails at once (EMFILE).
 * - They take up to 48 KiB of the calling thread's stack.
 * - They start no threads, catch no signals and never end the process. A call that a signal interrupts goes on.
 * - A node that does not answer is waited for as long as was said at the connection; then EIO. If the formation has been
 *   taken down, ENOTCONN at once.
 * - Paths begin at the root of the formation, with or without a slash in front. Symbolic links are followed as the
 *   kernel does; one with an absolute target leads out of the formation (EXDEV).
 * - After a fork the child must not use the parent's objects (EBADF), except to let them be; it connects anew.
 *   After exec nothing is left of them.
 * - Permission bits are checked when a file is opened; those of the directories on the way are not: whoever can
 *   read the formation's secret may do what its owner may. New files get the mode as given: there is no umask.
 */
#ifndef BIVOUAC_H
#define BIVOUAC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header. Functions and fields are only added within a major version. */
#define BIVOUAC_VERSION_MAJOR 0
#define BIVOUAC_VERSION_MINOR 3

/* A connection to a formation. */
typedef struct bivouac bivouac;
/* An open file. */
typedef struct bivouac_file bivouac_file;
/* An open directory. */
typedef struct bivouac_dir bivouac_dir;

/*
 * Connects to the formation whose directory this is: the one with the files `map` and `secret`, as `bivouac status`
 * and the variable BIVOUAC_DIR of `bivouac run` name it. Nodes are reached when they are needed. wait_ms is how
 * long to wait for a node that does not answer; 0 is 30 seconds.
 * ENOENT, EACCES: the directory cannot be read; EINVAL: it is not a formation's.
 */
bivouac *bivouac_connect(const char *directory, unsigned wait_ms);

/*
 * Connects to the formation that the file of this descriptor is of, which was opened through a mount, and waits for
 * nodes as the mount does. ENOTTY: it is no such file, or the mount has written parts of it that it has yet to send.
 */
bivouac *bivouac_connect_descriptor(int fd);

/* Ends a connection. All its files and directories must have been closed. NULL is allowed. */
void bivouac_disconnect(bivouac *formation);

/*
 * Why the last call of this thread that failed did so, as a sentence; never NULL. It stays valid until the thread's
 * next call that fails.
 */
const char *bivouac_error(void);

/*
 * Opens a regular file. Of the flags of open(2), O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND and
 * O_NOFOLLOW mean what they do there; O_DIRECTORY, O_PATH and O_TMPFILE are refused (EINVAL), all others make no
 * difference. mode is that of a file which O_CREAT makes.
 */
bivouac_file *bivouac_open(bivouac *formation, const char *path, int flags, mode_t mode);

/*
 * As bivouac_open, and the file is under this contract when it returns: coherent, session or strict; "partition" leaves it to
 * the file's partition. A file that O_CREAT makes has it before anything is written; one that is there is changed as by
 * bivouac_fsetxattr of user.bivouac.contract, unless that contract holds for it already. The contract is the file's, not this
 * open's: it holds for all who use the file, and goes on when it is closed.
 * EINVAL: there is no such contract; EPERM: another one holds, and only the owner of the file and root choose; EBUSY: a
 * change to or from session, and the file is open.
 */
bivouac_file *bivouac_open_as(bivouac *formation, const char *path, int flags, mode_t mode, const char *contract);

/*
 * Opens the file that a descriptor was opened of through a mount, to read or write as the descriptor may. The two have
 * nothing more to do with each other. EXDEV: the file is of another formation; ENOTTY as above.
 */
bivouac_file *bivouac_open_descriptor(bivouac *formation, int fd);

/*
 * Opens a regular file by its number (st_ino), as another process told it; flags are O_RDONLY, O_WRONLY or O_RDWR, and
 * O_APPEND. Permission bits are not checked.
 */
bivouac_file *bivouac_open_number(bivouac *formation, uint64_t ino, int flags);

/*
 * Makes a file that has no name and never gets one, beside those of the directory with this number, and opens it to
 * read and write. It is there as long as anybody has it open.
 */
bivouac_file *bivouac_open_unnamed(bivouac *formation, uint64_t directory, mode_t mode);

/*
 * Closes a file; in any case it must not be used afterwards. NULL is allowed. What was written is there already, so this
 * does not fail; but in a partition with --contract session what was written may only be sent now: then -1 says that
 * some of it could not be written and is lost. Who wants to try again calls bivouac_fsync before.
 */
int bivouac_close(bivouac_file *file);

/* Reads at an offset; the number of bytes, less than count only at the end of the file. */
ssize_t bivouac_pread(bivouac_file *file, void *buffer, size_t count, off_t offset);

/*
 * Writes at an offset, or, to a file opened with O_APPEND, at its end. All of it, or it failed: then parts may have
 * been written, but the file is not longer than before; after a failed call of more than 256 MiB by a multiple of that.
 */
ssize_t bivouac_pwrite(bivouac_file *file, const void *buffer, size_t count, off_t offset);

/* One place of a list. */
typedef struct bivouac_piece {
    off_t offset;  /* in the file */
    void *buffer;  /* where the bytes are, or are to be put; not changed by writing */
    size_t count;  /* how many */
    size_t done;   /* after reading: how many there were, less than count only at the end of the file */
} bivouac_piece;

/*
 * Reads, or writes, any number of places: one message to each target that has a part of them, not one for each
 * place. Each place is read or written for itself, in no particular order. Both return the sum of bytes. A list is
 * not written to a file opened with O_APPEND (EINVAL).
 */
ssize_t bivouac_read_list(bivouac_file *file, bivouac_piece *pieces, size_t count);
ssize_t bivouac_write_list(bivouac_file *file, const bivouac_piece *pieces, size_t count);

/*
 * Shows bytes of a file where they lie, so that many small places of them are read or written with no call and no list:
 * show is called with one stretch of at most 256 KiB after the other, in order, and with context. It returns how many
 * bytes it read or wrote, and it writes only if is_write is not 0. While it runs nobody else's access that does not go
 * together with it does: it must not call this library, touch a mapping of the file, wait, or leave but by returning, and
 * nor must a handler of a signal that comes meanwhile. Holes that it writes nothing to are none any more. Where others
 * write to the same bytes at the same time, each byte is one's or the other's.
 *
 * Returns the sum. It is 0 if not all can be shown now: the range is not wholly within the file, has holes that would be
 * read, or others access it; so it is for the first access to each target, for writes to a file opened with O_APPEND, and
 * with --contract session. EOPNOTSUPP: some of it is not in memory of this machine. Whenever it is 0, or fails, some may
 * have been shown, and all is to be read or written by another function.
 */
typedef size_t (*bivouac_shown)(void *context, off_t offset, void *bytes, size_t count);
ssize_t bivouac_show(bivouac_file *file, int is_write, off_t offset, size_t count, bivouac_shown show, void *context);

/*
 * Makes the file count bytes longer, by a hole, and returns the offset at which they begin. Whoever claims, from
 * whichever node, gets bytes that nobody else gets, exactly once, also where a daemon is killed meanwhile. A count of 0
 * returns the size. EFBIG: the file would get too long.
 */
off_t bivouac_claim(bivouac_file *file, off_t count);

/*
 * Locks a range (kind F_RDLCK or F_WRLCK) or unlocks it (F_UNLCK); a count of 0 is to the end of the file, however long it
 * gets. They are the locks that fcntl(2) takes through mounts. Locks of one owner, a number of the process's own choice,
 * do not exclude each other. If others have the range, it is waited for, or, without wait, the call fails with EAGAIN.
 * What was locked through a file is unlocked when that is closed, or when the process ends.
 */
int bivouac_lock(bivouac_file *file, int kind, off_t start, off_t count, uint64_t owner, int wait);

/*
 * The storage targets of this machine that a file may be on: their positions in its partition, as base and width of
 * its layout count them, in rising order. At most room of them are stored; returns how many there are.
 */
ssize_t bivouac_targets_here(bivouac_file *file, uint32_t *targets, size_t room);

/* What the calls of one thread have cost so far. Fields are only added. */
typedef struct bivouac_traffic {
    uint64_t messages;     /* to nodes */
    uint64_t bytes_local;  /* of content, to or from targets of this machine */
    uint64_t bytes_remote; /* the same, of other machines */
} bivouac_traffic;

/* Stores what the calling thread's calls have cost so far, on all connections; size is sizeof(bivouac_traffic). */
int bivouac_traffic_so_far(bivouac_traffic *traffic, size_t size);

/* Makes content and size durable, as far as the volumes are; with --contract session, also visible to others. */
int bivouac_fsync(bivouac_file *file);

/* Cuts or extends (by a hole) an open file, or one by its name. */
int bivouac_ftruncate(bivouac_file *file, off_t size);
int bivouac_truncate(bivouac *formation, const char *path, off_t size);

/* Takes space for a range, so that writes to it do not fail for want of it; the file gets at least as long. */
int bivouac_allocate(bivouac_file *file, off_t offset, off_t count);

/*
 * Extended attributes, as fgetxattr(2) and fsetxattr(2) have them; user.bivouac.layout shows, and of an empty file sets,
 * its stripes ("stripe=65536 width=4"); user.bivouac.contract its contract: coherent, session or strict.
 */
ssize_t bivouac_fgetxattr(bivouac_file *file, const char *name, void *value, size_t size);
int bivouac_fsetxattr(bivouac_file *file, const char *name, const void *value, size_t size, int flags);

/* Attributes, as by fstat(2), stat(2) and lstat(2). st_dev is 0. */
int bivouac_fstat(bivouac_file *file, struct stat *attributes);
int bivouac_stat(bivouac *formation, const char *path, struct stat *attributes);
int bivouac_lstat(bivouac *formation, const char *path, struct stat *attributes);

/* As the functions of the same names. */
int bivouac_mkdir(bivouac *formation, const char *path, mode_t mode);
int bivouac_rmdir(bivouac *formation, const char *path);
int bivouac_unlink(bivouac *formation, const char *path);
int bivouac_rename(bivouac *formation, const char *from, const char *to);

/* An entry of a directory. */
typedef struct bivouac_entry {
    uint64_t ino;
    unsigned type;     /* type bits, as in st_mode */
    const char *name;  /* valid until the next call on the directory */
} bivouac_entry;

/*
 * Lists a directory, without "." and "..". bivouac_readdir returns 1 and an entry, or 0 at the end. A directory is
 * one thread's at a time.
 */
bivouac_dir *bivouac_opendir(bivouac *formation, const char *path);
int bivouac_readdir(bivouac_dir *directory, bivouac_entry *entry);
void bivouac_closedir(bivouac_dir *directory);

#ifdef __cplusplus
}
#endif

#endif

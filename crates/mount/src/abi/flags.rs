//! Bits of the interface, by topic, with the kernel's names.

/// Capabilities in `fuse_init_in` and `fuse_init_out`; bits above 31 travel in `flags2`.
pub mod init {
    #![allow(missing_docs, reason = "the names are the kernel's")]
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// `valid` of `fuse_setattr_in`.
pub mod setattr {
    #![allow(missing_docs, reason = "the names are the kernel's")]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `open_flags` of `fuse_open_out`.
pub mod opened {
    #![allow(missing_docs, reason = "the names are the kernel's")]
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `open_flags` of `fuse_open_in`: the opener may not keep set-id bits of a file that it cuts.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `read_flags`: a process reads by itself; without it the kernel reads for its page cache.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `write_flags`: written back from the page cache, so not at the offset of an append.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `write_flags`: the writer may not keep set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fsync_flags`: content only.
pub const FSYNC_DATA_ONLY: u32 = 1 << 0;
/// `mask` of `fuse_access_in`: may it be executed, as `X_OK`.
pub const ACCESS_EXECUTE: u32 = 1 << 0;
/// `lk_flags`: `flock`, not `fcntl`.
pub const LOCK_WHOLE: u32 = 1 << 0;
/// `type` of `fuse_file_lock`, as `F_RDLCK`.
pub const LOCK_READ: u32 = 0;
/// `type` of `fuse_file_lock`, as `F_WRLCK`.
pub const LOCK_WRITE: u32 = 1;
/// `type` of `fuse_file_lock`, as `F_UNLCK`.
pub const LOCK_NONE: u32 = 2;
/// `whence` of `fuse_lseek_in`.
pub const SEEK_DATA: u32 = 3;
/// `whence` of `fuse_lseek_in`.
pub const SEEK_HOLE: u32 = 4;

/// Flag of `fuse_ioctl_in`: the number of the ioctl does not encode its sizes.
pub const IOCTL_UNRESTRICTED: u32 = 1 << 1;
/// Flag of `fuse_ioctl_in`: the ioctl is of a directory.
pub const IOCTL_DIR: u32 = 1 << 4;

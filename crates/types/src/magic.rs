//! Numbers of Linux (linux/magic.h).

/// `f_type` of tmpfs, a file system in memory.
pub const TMPFS_MAGIC: u64 = 0x0102_1994;

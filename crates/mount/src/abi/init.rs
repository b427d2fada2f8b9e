//! The first exchange: what the kernel can do, what we want of it, what is agreed.

use super::flags::init as flag;
use super::{Malformed, Reader, Reply};

const MAJOR: u32 = 7;
/// Oldest minor version that is spoken: Linux 5.4.
const MINOR_MIN: u32 = 31;
/// Newest minor version whose struct layouts are known here.
const MINOR_MAX: u32 = 45;
const PAGE: u32 = 4096;
/// Asynchronous requests that the kernel keeps in flight; its default of 12 starves deep queues.
const BACKGROUND_MAX: u16 = 64;
const BACKGROUND_CONGESTED: u16 = 48;
/// Length of a `fuse_init_out`, in bytes.
const INIT_LEN: usize = 64;

/// Smallest and largest payload of one write, in bytes. `max_pages` of the reply has 16 bits.
pub const MAX_WRITE_RANGE: std::ops::RangeInclusive<u32> = PAGE..=(1 << 24);
const _: () = assert!(*MAX_WRITE_RANGE.end() / PAGE <= u16::MAX as u32);

/// Asked for whenever the kernel has it.
const WANTED: u64 = flag::ASYNC_READ
    | flag::ATOMIC_O_TRUNC
    | flag::BIG_WRITES
    | flag::AUTO_INVAL_DATA
    | flag::ASYNC_DIO
    | flag::PARALLEL_DIROPS
    | flag::MAX_PAGES
    // Version 2, because it asks for set-id bits to be dropped only where the kernel itself would
    // drop them, and spares one getxattr("security.capability") per write.
    | flag::HANDLE_KILLPRIV_V2
    | flag::SETXATTR_EXT
    | flag::INIT_EXT
    // Files are opened for direct I/O; shared mappings (sqlite's WAL index) must work all the same.
    | flag::DIRECT_IO_ALLOW_MMAP
    // Locks are ours, so that they hold across mounts.
    | flag::POSIX_LOCKS
    // Handles of files (`open_by_handle_at`) outlive what the kernel knows of inodes: it looks them up by number.
    | flag::EXPORT_SUPPORT
    | flag::FLOCK_LOCKS
    | flag::HAS_RESEND;

// Permissions are checked by the kernel, nothing is written back late.
const _: () = assert!(WANTED & (flag::POSIX_ACL | flag::WRITEBACK_CACHE | flag::CACHE_SYMLINKS) == 0);

/// `fuse_init_in`, both halves of the flags joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitRequest {
    /// Major version of the kernel's interface.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    max_readahead: u32,
    flags: u64,
}

impl InitRequest {
    /// Takes the request apart; what an unknown major version has behind its number is left alone.
    ///
    /// # Errors
    /// `Malformed` when it is too short.
    pub fn decode(input: &mut Reader<'_>) -> Result<InitRequest, Malformed> {
        let (major, minor) = (input.u32()?, input.u32()?);
        if major != MAJOR {
            return Ok(InitRequest { major, minor, max_readahead: 0, flags: 0 });
        }
        let max_readahead = input.u32()?;
        let low = u64::from(input.u32()?);
        // Kernels before 5.17 send a shorter structure, without the upper half.
        let high = if low & flag::INIT_EXT != 0 { u64::from(input.u32()?) } else { 0 };
        Ok(InitRequest { major, minor, max_readahead, flags: low | high << 32 })
    }

    /// Returns whether the kernel is ahead of us by a major version: it is answered with ours and asks again.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.major > MAJOR
    }

    /// Returns whether the kernel is too old to talk to.
    #[must_use]
    pub fn is_too_old(&self) -> bool {
        self.major < MAJOR || (self.major == MAJOR && self.minor < MINOR_MIN)
    }
}

/// Preferences of a mount.
#[derive(Clone, Copy, Debug)]
pub struct MountPreferences {
    /// Largest payload of one write, in bytes.
    pub max_write: u32,
    /// Attributes with directory entries. Only worth its price where entries may be cached.
    pub readdirplus: bool,
}

/// Result of the negotiation with the kernel, valid as long as the mount, over restarts of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version in use.
    pub minor: u32,
    /// Capabilities that both have.
    pub flags: u64,
    /// Largest payload of one write, in bytes.
    pub max_write: u32,
    /// Bytes that the kernel reads ahead for mappings.
    pub max_readahead: u32,
}

impl Negotiated {
    /// Returns what `request` and `preferences` have in common.
    #[must_use]
    pub fn new(request: &InitRequest, preferences: MountPreferences) -> Negotiated {
        let plus = if preferences.readdirplus { flag::DO_READDIRPLUS | flag::READDIRPLUS_AUTO } else { 0 };
        let max_write = preferences.max_write.clamp(*MAX_WRITE_RANGE.start(), *MAX_WRITE_RANGE.end());
        Negotiated {
            minor: request.minor.min(MINOR_MAX),
            // What the kernel does not offer it does not do, and `has` must not say that it does.
            flags: request.flags & (WANTED | plus),
            max_write: max_write / PAGE * PAGE,
            max_readahead: request.max_readahead,
        }
    }

    /// Returns whether a capability was agreed on.
    #[must_use]
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// Appends `fuse_init_out`.
    pub fn encode(&self, out: &mut Reply) {
        let begin = out.as_bytes().len();
        out.u32(MAJOR);
        out.u32(self.minor);
        out.u32(self.max_readahead);
        out.u32(self.flags as u32);
        out.u16(BACKGROUND_MAX);
        out.u16(BACKGROUND_CONGESTED);
        out.u32(self.max_write);
        out.u32(1); // time_gran, in nanoseconds
        out.u16((self.max_write / PAGE) as u16);
        out.u16(0);
        out.u32((self.flags >> 32) as u32);
        out.zeros(28);
        assert_eq!(out.as_bytes().len() - begin, INIT_LEN, "a fuse_init_out has the kernel's length");
    }

    /// Appends the answer to a kernel with a newer major version, which asks again with ours.
    pub fn encode_version_only(out: &mut Reply) {
        let begin = out.as_bytes().len();
        out.u32(MAJOR);
        out.u32(MINOR_MAX);
        out.zeros(56);
        assert_eq!(out.as_bytes().len() - begin, INIT_LEN, "a fuse_init_out has the kernel's length");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFERENCES: MountPreferences = MountPreferences { max_write: 1 << 20, readdirplus: false };

    fn request(minor: u32, flags: u64) -> InitRequest {
        let mut bytes = Vec::new();
        for word in [7, minor, 131_072, flags as u32, (flags >> 32) as u32] {
            bytes.extend(u32::to_ne_bytes(word));
        }
        InitRequest::decode(&mut Reader::new(&bytes)).unwrap()
    }

    #[test]
    fn only_common_capabilities_are_agreed() {
        let all = Negotiated::new(&request(45, u64::MAX), PREFERENCES);
        assert!(
            all.has(flag::HAS_RESEND)
                && all.has(flag::DIRECT_IO_ALLOW_MMAP)
                && all.has(flag::PARALLEL_DIROPS)
        );
        assert!(
            !all.has(flag::WRITEBACK_CACHE)
                && all.has(flag::POSIX_LOCKS | flag::FLOCK_LOCKS)
                && !all.has(flag::DO_READDIRPLUS)
        );
        let plus =
            Negotiated::new(&request(45, u64::MAX), MountPreferences { readdirplus: true, ..PREFERENCES });
        assert!(plus.has(flag::DO_READDIRPLUS) && plus.has(flag::READDIRPLUS_AUTO));
        let old = Negotiated::new(&request(34, flag::ASYNC_READ | flag::MAX_PAGES), PREFERENCES);
        assert_eq!((old.minor, old.flags), (34, flag::ASYNC_READ | flag::MAX_PAGES));
    }

    #[test]
    fn the_upper_flags_are_read_only_where_they_exist() {
        let without = request(35, flag::HAS_RESEND | flag::ASYNC_READ);
        assert_eq!(without.flags, flag::ASYNC_READ);
        assert_eq!(request(38, flag::HAS_RESEND | flag::INIT_EXT).flags, flag::HAS_RESEND | flag::INIT_EXT);
    }

    #[test]
    fn versions_are_told_apart() {
        let version = |major, minor| InitRequest { major, minor, max_readahead: 0, flags: 0 };
        assert!(version(8, 0).is_ahead() && !version(8, 0).is_too_old());
        assert!(version(7, 30).is_too_old() && version(6, 40).is_too_old() && !version(7, 31).is_too_old());
    }

    #[test]
    fn the_answer_has_the_kernels_layout() {
        let mut reply = Reply::default();
        Negotiated { minor: 45, flags: flag::HAS_RESEND | 1, max_write: 1 << 20, max_readahead: 5 }
            .encode(&mut reply);
        let bytes = reply.as_bytes();
        assert_eq!(bytes.len(), 64);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([word(0), word(4), word(8), word(12)], [7, 45, 5, 1]);
        assert_eq!((word(20), word(24), bytes[28..30].to_vec()), (1 << 20, 1, 256u16.to_ne_bytes().to_vec()));
        assert_eq!(word(32), 1 << 7);
    }

    #[test]
    fn absurd_write_sizes_are_brought_into_range() {
        let granted = |max_write| {
            Negotiated::new(&request(45, 0), MountPreferences { max_write, ..PREFERENCES }).max_write
        };
        assert_eq!((granted(0), granted(5000), granted(u32::MAX)), (4096, 4096, 1 << 24));
    }
}

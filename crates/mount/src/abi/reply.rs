//! Encoders of replies: the kernel's `fuse_*_out` structs.

use bivouac_types::{Attr, Ino, StatFs, Timestamp, limits};

/// Length of a directory entry in front of its name, in bytes (`fuse_dirent`).
const DIRENT_LEN: usize = 24;
/// Length of `fuse_entry_out`, in bytes.
const ENTRY_LEN: usize = 128;
/// `st_blksize`, in bytes: the buffer of stdio. Each read is a request, so a page would be too little;
/// much more would be waste for programs that jump about.
const ADVISED_BLOCK: u32 = 1 << 16;

/// Length of a `fuse_attr`, in bytes.
const ATTR_LEN: usize = 88;
/// Length of a `fuse_statfs_out`, in bytes.
const STATFS_LEN: usize = 80;

/// Inodes that are shown as free: as many as one node can number.
const INODES_FREE: u64 = 1 << limits::INO_COUNTER_BITS;

/// Times for which the kernel may cache a reply, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validity {
    /// For the entry.
    pub entry_ms: u64,
    /// For the attributes.
    pub attr_ms: u64,
}

/// The body of one reply; its memory is used again for the next.
#[derive(Debug, Default)]
pub struct Reply {
    bytes: Vec<u8>,
}

impl Reply {
    /// Forgets the content, not the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Returns the body.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends 16 bits.
    pub fn u16(&mut self, value: u16) {
        self.raw(&value.to_ne_bytes());
    }

    /// Appends 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_ne_bytes());
    }

    /// Appends 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_ne_bytes());
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends zeros.
    pub fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len().saturating_add(count), 0);
    }

    /// Appends `fuse_attr`.
    fn attr(&mut self, attr: &Attr) {
        let (times, begin) = ([attr.atime, attr.mtime, attr.ctime], self.bytes.len());
        self.u64(attr.ino.0);
        self.u64(attr.size);
        self.u64(attr.blocks());
        times.iter().for_each(|time| self.u64(time.secs.cast_unsigned()));
        times.iter().for_each(|time: &Timestamp| self.u32(time.nanos));
        for word in [attr.mode, attr.nlink, attr.uid, attr.gid, attr.rdev, ADVISED_BLOCK, 0] {
            self.u32(word);
        }
        assert_eq!(self.bytes.len() - begin, ATTR_LEN, "a fuse_attr has the kernel's length");
    }

    /// Appends `fuse_attr_out`.
    pub fn attr_out(&mut self, attr: &Attr, validity: Validity) {
        self.u64(validity.attr_ms / 1000);
        self.u32(nanos(validity.attr_ms));
        self.u32(0);
        self.attr(attr);
    }

    /// Appends `fuse_entry_out`. The node id is the inode number, generation 0: numbers are never
    /// used twice.
    pub fn entry_out(&mut self, attr: &Attr, validity: Validity) {
        let begin = self.bytes.len();
        self.u64(attr.ino.0);
        self.u64(0);
        self.u64(validity.entry_ms / 1000);
        self.u64(validity.attr_ms / 1000);
        self.u32(nanos(validity.entry_ms));
        self.u32(nanos(validity.attr_ms));
        self.attr(attr);
        assert_eq!(self.bytes.len() - begin, ENTRY_LEN, "a fuse_entry_out has the kernel's length");
    }

    /// Appends a `fuse_entry_out` that says that there is no such entry.
    pub fn no_entry_out(&mut self, validity: Validity) {
        self.u64(0);
        self.u64(0);
        self.u64(validity.entry_ms / 1000);
        self.u64(0);
        self.u32(nanos(validity.entry_ms));
        self.u32(0);
        self.zeros(ATTR_LEN);
    }

    /// Appends `fuse_open_out`.
    pub fn open_out(&mut self, fh: u64, open_flags: u32) {
        self.u64(fh);
        self.u32(open_flags);
        self.u32(0);
    }

    /// Appends `fuse_statfs_out`.
    pub fn statfs_out(&mut self, fs: &StatFs) {
        let begin = self.bytes.len();
        let files_free = fs.files_free.min(INODES_FREE);
        let files = fs.files.saturating_add(files_free);
        for count in [fs.blocks, fs.blocks_free, fs.blocks_free, files, files_free] {
            self.u64(count);
        }
        for word in [fs.block_size, limits::NAME_LEN_MAX as u32, fs.block_size] {
            self.u32(word);
        }
        self.zeros(28);
        assert_eq!(self.bytes.len() - begin, STATFS_LEN, "a fuse_statfs_out has the kernel's length");
    }

    /// Appends `fuse_ioctl_out` with its data.
    pub fn ioctl_out(&mut self, data: &[u8]) {
        for word in [0, 0, 0, 0] {
            self.u32(word);
        }
        self.raw(data);
    }

    /// Appends `fuse_lk_out`.
    pub fn lock_out(&mut self, start: u64, end: u64, kind: u32, pid: u32) {
        self.u64(start);
        self.u64(end);
        self.u32(kind);
        self.u32(pid);
    }

    /// Appends a `fuse_dirent` if it fits into `limit` bytes in all; says whether it did.
    pub fn dirent(&mut self, entry: &Entry<'_>, limit: usize) -> bool {
        let fits = self.bytes.len().saturating_add(padded(DIRENT_LEN + entry.name.len())) <= limit;
        if fits {
            self.dirent_unchecked(entry);
        }
        fits
    }

    /// Appends a `fuse_direntplus` if it fits into `limit` bytes in all; says whether it did. Without
    /// attributes the kernel takes the name only and looks it up when it needs more.
    pub fn direntplus(
        &mut self,
        entry: &Entry<'_>,
        attr: Option<&Attr>,
        validity: Validity,
        limit: usize,
    ) -> bool {
        let len = ENTRY_LEN + padded(DIRENT_LEN + entry.name.len());
        let fits = self.bytes.len().saturating_add(len) <= limit;
        if fits {
            match attr {
                Some(attr) => self.entry_out(attr, validity),
                // Node id 0: the kernel makes no dentry, and counts no look-up that it would FORGET.
                None => self.zeros(ENTRY_LEN),
            }
            self.dirent_unchecked(entry);
        }
        fits
    }

    fn dirent_unchecked(&mut self, entry: &Entry<'_>) {
        let (len, begin) = (DIRENT_LEN + entry.name.len(), self.bytes.len());
        self.u64(entry.ino.0);
        self.u64(entry.next);
        self.u32(entry.name.len() as u32);
        self.u32((entry.kind >> 12) & 0o17);
        self.raw(entry.name);
        self.zeros(padded(len) - len);
        // `dirent` and `direntplus` have compared this length with the room that is left.
        assert_eq!(self.bytes.len() - begin, padded(len), "a directory entry is as long as was reckoned");
    }
}

/// A directory entry on its way to the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its inode.
    pub ino: Ino,
    /// Offset of the next entry.
    pub next: u64,
    /// Type bits of its mode.
    pub kind: u32,
    /// Its name.
    pub name: &'a [u8],
}

fn nanos(ms: u64) -> u32 {
    (ms % 1000) as u32 * 1_000_000
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Layout, TargetIndex};

    fn attr() -> Attr {
        let time = |secs| Timestamp { secs, nanos: 5 };
        Attr {
            ino: Ino(0x1234),
            mode: 0o100_644,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 5,
            size: 1025,
            atime: time(-1),
            mtime: time(2),
            ctime: time(3),
            epoch: 0,
            layout: Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 },
            holes: 0,
            data_version: 0,
            contract: None,
        }
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn long(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn an_entry_has_the_kernels_layout() {
        let mut reply = Reply::default();
        reply.entry_out(&attr(), Validity { entry_ms: 1500, attr_ms: 2 });
        let bytes = reply.as_bytes();
        assert_eq!(bytes.len(), ENTRY_LEN);
        assert_eq!([long(bytes, 0), long(bytes, 8), long(bytes, 16), long(bytes, 24)], [0x1234, 0, 1, 0]);
        assert_eq!([word(bytes, 32), word(bytes, 36)], [500_000_000, 2_000_000]);
        assert_eq!([long(bytes, 40), long(bytes, 48), long(bytes, 56)], [0x1234, 1025, 3]);
        assert_eq!([long(bytes, 64), long(bytes, 72)], [u64::MAX, 2]);
        assert_eq!([word(bytes, 88), word(bytes, 100), word(bytes, 104)], [5, 0o100_644, 2]);
    }

    #[test]
    fn attributes_opens_and_statfs_have_the_kernels_lengths() {
        let mut reply = Reply::default();
        reply.attr_out(&attr(), Validity::default());
        assert_eq!((reply.as_bytes().len(), long(reply.as_bytes(), 16)), (104, 0x1234));
        reply.clear();
        reply.open_out(9, 0x41);
        assert_eq!((reply.as_bytes().len(), word(reply.as_bytes(), 8)), (16, 0x41));
        reply.clear();
        reply.statfs_out(&StatFs { block_size: 4096, blocks: 10, blocks_free: 4, files: 7, files_free: 3 });
        let bytes = reply.as_bytes();
        assert_eq!((bytes.len(), long(bytes, 0), long(bytes, 16), long(bytes, 24)), (80, 10, 4, 10));
        assert_eq!(
            (long(bytes, 32), word(bytes, 40), word(bytes, 44), word(bytes, 48)),
            (3, 4096, 255, 4096)
        );
    }

    #[test]
    fn entries_are_padded_and_never_pass_the_limit() {
        let mut reply = Reply::default();
        let entry = Entry { ino: Ino(7), next: 99, kind: 0o040_000, name: b"abc" };
        assert!(!reply.dirent(&entry, 31) && reply.as_bytes().is_empty());
        assert!(reply.dirent(&entry, 32) && !reply.dirent(&entry, 63));
        let bytes = reply.as_bytes();
        assert_eq!((long(bytes, 0), long(bytes, 8), word(bytes, 16), word(bytes, 20)), (7, 99, 3, 4));
        assert_eq!(&bytes[24..], b"abc\0\0\0\0\0");
    }

    #[test]
    fn an_entry_without_attributes_has_no_node() {
        let mut reply = Reply::default();
        let entry = Entry { ino: Ino(7), next: 99, kind: 0o100_000, name: b"12345678" };
        assert!(reply.direntplus(&entry, None, Validity::default(), 160));
        assert_eq!(
            (reply.as_bytes().len(), long(reply.as_bytes(), 0), long(reply.as_bytes(), 128)),
            (160, 0, 7)
        );
        assert!(reply.direntplus(&entry, Some(&attr()), Validity::default(), 320));
        assert_eq!(long(reply.as_bytes(), 160), 0x1234);
        assert!(!reply.direntplus(&entry, None, Validity::default(), 479));
    }
}

//! The kernel's structs, as far as the file systems of measurements need them.

use rustix::io::Errno;

/// Bytes of the largest read or write.
pub const BLOCK: usize = 1 << 20;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The inode of the root.
pub const ROOT: u64 = 1;
/// Files bypass the page cache, and writers do not wait for each other (`FOPEN_…`).
pub const OPENED: u32 = 1 | 1 << 6;
/// Requests of a page's many, several reads of a file at once, and large writes (`FUSE_INIT`).
const WISHES: u32 = 1 | 1 << 5 | 1 << 15 | 1 << 22;
/// Length of a request's header, in bytes.
const IN_HEADER: usize = 40;

/// One request.
pub struct Request<'a> {
    /// Its operation.
    pub op: u32,
    /// Its number.
    pub unique: u64,
    /// The inode that it is about.
    pub ino: u64,
    /// The first of its arguments.
    head: &'a [u8],
    /// The rest of them, or a write's data.
    rest: &'a [u8],
}

impl<'a> Request<'a> {
    /// A request of `len` bytes, part of which is behind the head.
    pub fn of(head: &'a [u8], block: &'a [u8], len: usize) -> Option<Request<'a>> {
        let rest = block.get(..len.saturating_sub(head.len()))?;
        let (op, unique, ino) = (u32_at(head, 4)?, u64_at(head, 8)?, u64_at(head, 16)?);
        Some(Request { op, unique, ino, head: head.get(IN_HEADER..len.min(head.len()))?, rest })
    }

    /// A request that came as one message.
    pub fn whole(message: &'a [u8]) -> Option<Request<'a>> {
        Request::of(message, &[], message.len())
    }

    /// Returns whether the kernel waits.
    pub fn expects_reply(&self) -> bool {
        !matches!(self.op, op::FORGET | op::BATCH_FORGET | op::INTERRUPT)
    }

    /// A number among its first 40 bytes of arguments.
    pub fn word(&self, at: usize) -> Result<u32, Errno> {
        u32_at(self.head, at).ok_or(Errno::INVAL)
    }

    /// A long one.
    pub fn long(&self, at: usize) -> Result<u64, Errno> {
        u64_at(self.head, at).ok_or(Errno::INVAL)
    }

    /// A name behind arguments of `at` bytes.
    pub fn name(&self, at: usize) -> Vec<u8> {
        let all = self.head.iter().chain(self.rest).skip(at);
        all.copied().take_while(|byte| *byte != 0).collect()
    }

    /// The names behind arguments of `at` bytes, each with a zero behind it.
    pub fn names(&self, at: usize) -> impl Iterator<Item = Vec<u8>> + 'a {
        let all = self.head.iter().chain(self.rest).skip(at).copied().collect::<Vec<u8>>();
        all.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
    }

    /// The bytes behind arguments of `at` bytes, of a request that came as one message.
    pub fn behind(&self, at: usize) -> &'a [u8] {
        self.head.get(at..).unwrap_or_default()
    }

    /// A write's data.
    pub fn payload(&self) -> &'a [u8] {
        self.rest
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// Header of a reply with so many bytes behind it.
pub fn header(unique: u64, error: Option<Errno>, len: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&(16 + len as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&(-error.map_or(0, Errno::raw_os_error)).to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

/// Numbers of operations.
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BATCH_FORGET: u32 = 42;
    pub const RENAME2: u32 = 45;
}

/// Appends the answer to the first request. Protocol 7.31: all that is needed is in it.
pub fn init(out: &mut Vec<u8>) {
    put(out, &[], &[7, 31, 1 << 17, WISHES, 0, BLOCK as u32, 1]);
    out.extend(((BLOCK / PAGE) as u16).to_ne_bytes());
    out.resize(64, 0);
}

/// Appends that there is room for everything.
pub fn statfs(out: &mut Vec<u8>) {
    put(
        out,
        &[1 << 40, 1 << 40, 1 << 40, 1 << 30, 1 << 30],
        &[PAGE as u32, 255, PAGE as u32, 0, 0, 0, 0, 0, 0, 0],
    );
}

/// Appends numbers.
pub fn put(out: &mut Vec<u8>, longs: &[u64], words: &[u32]) {
    longs.iter().for_each(|long| out.extend(long.to_ne_bytes()));
    words.iter().for_each(|word| out.extend(word.to_ne_bytes()));
}

//! Request to a mount to make a whole small file at once: an ioctl of the directory, with these bytes.
//!
//! ```text
//! to the mount
//! offset 0   magic      8  "BVKput01"
//!        8   mtime      8  seconds, signed, little-endian as all numbers
//!       16   mtime      4  nanoseconds
//!       20   mode       4  permission bits
//!       24   length     4  of the content, at most 15360
//!       28   length     4  of the name, 1 to 255
//!       32   name, then the content
//! back
//! offset 0   magic      8  "BVKput01"
//!        8   inode      8
//!       16   ctime      8  seconds, signed
//!       24   ctime      4  nanoseconds
//!       28   zeros      4
//! ```
//! The number of the ioctl is `_IOC(_IOC_READ | _IOC_WRITE, 0xb1, 0x77, SIZE)` of Linux, where `SIZE` is how many bytes
//! go to the mount.

use crate::limits::{NAME_LEN_MAX, PUT_LEN_MAX};
use crate::{Ino, Timestamp};

const MAGIC: [u8; 8] = *b"BVKput01";
const HEADER_LEN: usize = 32;
/// Bytes that come back.
pub const MADE_LEN: usize = 32;
const NUMBER: u32 = 3 << 30 | 0xb1 << 8 | 0x77;
const SIZE_AT: u32 = 16;
const SIZE_END: u32 = 1 << 14;

/// A file to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFile<'a> {
    /// Its name in the directory.
    pub name: &'a [u8],
    /// Permission bits.
    pub mode: u32,
    /// Its time of modification.
    pub mtime: Timestamp,
    /// All its bytes.
    pub content: &'a [u8],
}

/// The file that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeFile {
    /// Its inode.
    pub ino: Ino,
    /// Its last change.
    pub ctime: Timestamp,
}

/// Returns the number of the ioctl that takes so many bytes; `None` if there are too many.
#[must_use]
pub fn number(size: usize) -> Option<u32> {
    let size = u32::try_from(size).ok().filter(|size| *size < SIZE_END)?;
    Some(NUMBER | size << SIZE_AT)
}

/// Returns true for the number of such an ioctl.
#[must_use]
pub fn is_number(number: u32) -> bool {
    number & !((SIZE_END - 1) << SIZE_AT) == NUMBER
}

impl<'a> NewFile<'a> {
    /// Puts the bytes for the mount into an empty buffer; whether they can be said.
    #[must_use]
    pub fn encode(&self, into: &mut Vec<u8>) -> bool {
        let NewFile { name, mode, mtime, content } = *self;
        if name.is_empty() || name.len() > NAME_LEN_MAX || content.len() > PUT_LEN_MAX {
            return false;
        }
        into.clear();
        into.extend(MAGIC);
        into.extend(mtime.secs.to_le_bytes());
        for number in [mtime.nanos, mode, content.len() as u32, name.len() as u32] {
            into.extend(number.to_le_bytes());
        }
        // The decoder finds name and content by the length of the header alone.
        assert_eq!(
            into.len(),
            HEADER_LEN,
            "the header of a new file has another length than its decoder takes"
        );
        into.extend(name);
        into.extend(content);
        true
    }

    /// Decodes it; `None` if the bytes are not valid.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<NewFile<'a>> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let (magic, header) = header.split_first_chunk::<8>()?;
        let (secs, header) = header.split_first_chunk::<8>()?;
        let number = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let mtime = Timestamp { secs: i64::from_le_bytes(*secs), nanos: number(0)? };
        let (mode, content_len, name_len) = (number(4)?, number(8)? as usize, number(12)? as usize);
        let (name, content) = rest.split_at_checked(name_len)?;
        let sound = *magic == MAGIC
            && mtime.nanos < 1_000_000_000
            && (1..=NAME_LEN_MAX).contains(&name_len)
            && content.len() == content_len
            && content_len <= PUT_LEN_MAX;
        sound.then_some(NewFile { name, mode, mtime, content })
    }
}

impl MadeFile {
    /// Returns the bytes that come back.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MADE_LEN] {
        let mut bytes = [0; MADE_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.ino.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ctime.secs.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.ctime.nanos.to_le_bytes());
        bytes
    }

    /// Decodes the reply; `None` if no mount of a formation wrote it.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<MadeFile> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (ino, rest) = rest.split_first_chunk::<8>()?;
        let (secs, rest) = rest.split_first_chunk::<8>()?;
        let (nanos, rest) = rest.split_first_chunk::<4>()?;
        let sound = *magic == MAGIC && rest.first_chunk() == Some(&[0u8; 4]);
        let ctime = Timestamp { secs: i64::from_le_bytes(*secs), nanos: u32::from_le_bytes(*nanos) };
        sound.then_some(MadeFile { ino: Ino(u64::from_le_bytes(*ino)), ctime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: NewFile<'_> =
        NewFile { name: b"name", mode: 0o640, mtime: Timestamp { secs: -2, nanos: 7 }, content: b"content" };

    fn encoded(file: &NewFile<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(file.encode(&mut bytes));
        bytes
    }

    #[test]
    fn a_file_is_what_its_bytes_say() {
        let bytes = encoded(&FILE);
        assert_eq!((&bytes[..8], &bytes[32..]), (&b"BVKput01"[..], &b"namecontent"[..]));
        assert_eq!(&bytes[16..32], [7, 0, 0, 0, 0xa0, 1, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(NewFile::decode(&bytes), Some(FILE));
        let made = MadeFile { ino: Ino(9), ctime: Timestamp { secs: 5, nanos: 6 } };
        assert_eq!(MadeFile::from_bytes(&made.to_bytes()), Some(made));
        assert_eq!(MadeFile::from_bytes(&bytes), None, "what was sent is no answer");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let good = encoded(&FILE);
        for (at, byte) in [(0, b'b'), (19, 255), (24, 8), (24, 6), (27, 1), (28, 0), (28, 5), (31, 1)] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert_eq!(NewFile::decode(&bytes), None, "byte {at}");
        }
        for len in 0..good.len() {
            assert_eq!(NewFile::decode(&good[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn what_cannot_be_said_is_not() {
        let (name, content) = ([b'x'; NAME_LEN_MAX], vec![1; PUT_LEN_MAX]);
        let longest = NewFile { name: &name, content: &content, ..FILE };
        let bytes = encoded(&longest);
        assert_eq!(NewFile::decode(&bytes), Some(longest));
        assert!(number(bytes.len()).is_some_and(is_number) && number(1 << 14).is_none());
        assert_eq!(number(0x123), Some(0xc123_b177));
        assert!(!is_number(0xc123_b176) && !is_number(0x8123_b177));
        let mut bytes = Vec::new();
        assert!(!NewFile { name: b"", ..FILE }.encode(&mut bytes));
        assert!(!NewFile { name: &[b'x'; NAME_LEN_MAX + 1], ..FILE }.encode(&mut bytes));
        assert!(!NewFile { content: &vec![1; PUT_LEN_MAX + 1], ..FILE }.encode(&mut bytes));
    }
}

//! The bytes of logs and snapshots: file header, entries, operations. See docs/format.md.

use bivouac_types::{FormationId, NodeId};

use crate::crc::crc32c;

pub(super) const VERSION: u16 = 3;
/// The oldest version that this release reads. Inodes of version 1 had no data version.
pub(super) const OLDEST: u16 = 3;
/// Length of a file's header, in bytes; the first entry follows.
pub(super) const HEADER_LEN: usize = 64;
/// Length of an entry's head, in bytes; the body follows.
pub(super) const HEAD_LEN: usize = 20;
/// Longest body of an entry, in bytes.
pub(super) const BODY_LEN_MAX: usize = 1 << 26;
/// Longest key, in bytes: what its length field can say.
pub(super) const KEY_LEN_MAX: usize = u16::MAX as usize;
/// Longest value, in bytes.
pub(super) const VALUE_LEN_MAX: usize = 1 << 24;
/// Bytes of a snapshot's entry after which no more records are added.
pub(super) const CHUNK_LEN: usize = 1 << 18;

const CRC_AT: usize = HEADER_LEN - 4;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const END: u8 = 3;

const _: () = assert!(bivouac_types::limits::XATTR_LIST_LEN_MAX + 1024 <= VALUE_LEN_MAX);
// The longest record is an entry in a log, and fits into one of a snapshot that is nearly full.
const _: () = assert!(CHUNK_LEN + KEY_LEN_MAX + VALUE_LEN_MAX + 16 <= BODY_LEN_MAX);

/// Kind of a file of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Log,
    Snapshot,
}

impl FileKind {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            FileKind::Log => b"BVKRLOG1",
            FileKind::Snapshot => b"BVKRSNP1",
        }
    }
}

/// Node and formation of the records, and their number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) formation: FormationId,
    pub(super) node: NodeId,
    pub(super) slots: u16,
}

/// The first bytes of a log or snapshot: 64, little-endian.
///
/// ```text
///  0        8       10      12      14          16             32           40     48         60     64
/// ┌────────┬───────┬───────┬───────┬───────────┬──────────────┬────────────┬──────┬──────────┬──────┐
/// │ magic  │version│ node  │ slots │ 0         │ formation    │ generation │ base │ 0        │ crc  │
/// │ 8      │ 2     │ 2     │ 2     │ 2         │ 16           │ 8          │ 8    │ 12       │ 4    │
/// └────────┴───────┴───────┴───────┴───────────┴──────────────┴────────────┴──────┴──────────┴──────┘
/// ```
///
/// The crc is of all bytes before it. Entries follow without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) kind: FileKind,
    pub(super) origin: Origin,
    pub(super) generation: u64,
    /// Of a snapshot: sequence of the last commit before the log of the same generation.
    pub(super) base: u64,
}

/// Reason why a header cannot be used by this release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    Damaged(&'static str),
    Newer(u16),
    Older(u16),
}

impl FileHeader {
    pub(super) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut out = [0u8; HEADER_LEN];
        out[..8].copy_from_slice(self.kind.magic());
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10..12].copy_from_slice(&self.origin.node.0.to_le_bytes());
        out[12..14].copy_from_slice(&self.origin.slots.to_le_bytes());
        out[16..32].copy_from_slice(&self.origin.formation.0);
        out[32..40].copy_from_slice(&self.generation.to_le_bytes());
        out[40..48].copy_from_slice(&self.base.to_le_bytes());
        let crc = crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(super) fn from_bytes(bytes: &[u8], kind: FileKind) -> Result<FileHeader, HeaderError> {
        let short = HeaderError::Damaged("file is shorter than its header");
        let (bytes, _) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(short)?;
        if !bytes.starts_with(kind.magic()) {
            return Err(HeaderError::Damaged("wrong first bytes"));
        }
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if half(8) > VERSION {
            return Err(HeaderError::Newer(half(8)));
        }
        if bytes[CRC_AT..] != crc32c(&bytes[..CRC_AT]).to_le_bytes() {
            return Err(HeaderError::Damaged("wrong checksum of the header"));
        }
        if half(8) < OLDEST {
            return Err(HeaderError::Older(half(8)));
        }
        let mut formation = [0u8; 16];
        formation.copy_from_slice(&bytes[16..32]);
        let long = |at: usize| (0..4).map(|i| u64::from(half(at + 2 * i)) << (16 * i)).sum();
        let origin = Origin { formation: FormationId(formation), node: NodeId(half(10)), slots: half(12) };
        Ok(FileHeader { kind, origin, generation: long(32), base: long(40) })
    }
}

/// Head of an entry, in front of its body.
///
/// ```text
///  0         4          8            16         20
/// ┌─────────┬──────────┬────────────┬──────────┬──────────────────────────┐
/// │ length  │ crc of   │ sequence   │ crc of   │ body: operations         │
/// │ of body │ the body │            │ the head │                          │
/// │ 4       │ 4        │ 8          │ 4        │ length                   │
/// └─────────┴──────────┴────────────┴──────────┴──────────────────────────┘
/// ```
///
/// The crc of the head is of the generation (8 bytes) and bytes 0 to 15: an entry of another log is none of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) len: u32,
    pub(super) body_crc: u32,
    pub(super) sequence: u64,
}

impl Head {
    pub(super) fn to_bytes(self, generation: u64) -> [u8; HEAD_LEN] {
        // A reader takes any other length for damage, and the commit for lost.
        assert!(
            (1..=BODY_LEN_MAX).contains(&(self.len as usize)),
            "an entry with a body of {} bytes",
            self.len
        );
        let mut out = [0u8; HEAD_LEN];
        out[..4].copy_from_slice(&self.len.to_le_bytes());
        out[4..8].copy_from_slice(&self.body_crc.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        let crc = head_crc(&out, generation);
        out[16..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if the head is damaged, or not of this generation.
    pub(super) fn from_bytes(bytes: &[u8; HEAD_LEN], generation: u64) -> Option<Head> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let sequence = u64::from(word(8)) | u64::from(word(12)) << 32;
        let head = Head { len: word(0), body_crc: word(4), sequence };
        let sound =
            word(16) == head_crc(bytes, generation) && (1..=BODY_LEN_MAX).contains(&(head.len as usize));
        sound.then_some(head)
    }
}

fn head_crc(bytes: &[u8; HEAD_LEN], generation: u64) -> u32 {
    let mut salted = [0u8; 24];
    salted[..8].copy_from_slice(&generation.to_le_bytes());
    salted[8..].copy_from_slice(&bytes[..16]);
    crc32c(&salted)
}

/// One operation of an entry's body.
///
/// ```text
/// put      01 │ slot 2 │ key length 2 │ value length 4 │ key │ value
/// delete   02 │ slot 2 │ key length 2 │ key
/// end      03 │ number of records 8                        last of a snapshot
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op<'a> {
    Put { slot: u16, key: &'a [u8], value: &'a [u8] },
    Delete { slot: u16, key: &'a [u8] },
    End { records: u64 },
}

impl Op<'_> {
    /// Appends the operation. Keys are at most [`KEY_LEN_MAX`] long, values shorter than a body.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Op::Put { slot, key, value } => {
                // The length fields would be cut off, and all that follows in the entry misread.
                assert!(key.len() <= KEY_LEN_MAX && value.len() <= BODY_LEN_MAX, "a record that is too long");
                let mut fixed = [PUT, 0, 0, 0, 0, 0, 0, 0, 0];
                fixed[1..3].copy_from_slice(&slot.to_le_bytes());
                fixed[3..5].copy_from_slice(&(key.len() as u16).to_le_bytes());
                fixed[5..9].copy_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(&fixed);
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
            Op::Delete { slot, key } => {
                assert!(key.len() <= KEY_LEN_MAX, "a key of {} bytes", key.len());
                let mut fixed = [DELETE, 0, 0, 0, 0];
                fixed[1..3].copy_from_slice(&slot.to_le_bytes());
                fixed[3..5].copy_from_slice(&(key.len() as u16).to_le_bytes());
                out.extend_from_slice(&fixed);
                out.extend_from_slice(key);
            }
            Op::End { records } => {
                out.push(END);
                out.extend_from_slice(&records.to_le_bytes());
            }
        }
    }
}

/// The operations of a body, in order; after an error nothing more comes.
pub(super) struct Ops<'a>(pub(super) &'a [u8]);

impl<'a> Ops<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn op(&mut self) -> Option<Op<'a>> {
        let [kind] = self.array()?;
        if kind == END {
            return Some(Op::End { records: u64::from_le_bytes(self.array()?) });
        }
        let slot = u16::from_le_bytes(self.array()?);
        let key_len = usize::from(u16::from_le_bytes(self.array()?));
        match kind {
            PUT => {
                let value_len = u32::from_le_bytes(self.array()?) as usize;
                Some(Op::Put { slot, key: self.take(key_len)?, value: self.take(value_len)? })
            }
            DELETE => Some(Op::Delete { slot, key: self.take(key_len)? }),
            _ => None,
        }
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let op = self.op();
        if op.is_none() {
            self.0 = &[];
        }
        Some(op.ok_or("entry holds an operation that is none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> FileHeader {
        let origin =
            Origin { formation: FormationId(std::array::from_fn(|i| i as u8)), node: NodeId(2), slots: 1024 };
        FileHeader { kind: FileKind::Snapshot, origin, generation: 3, base: 0x0102_0304_0506_0708 }
    }

    #[test]
    fn golden_header() {
        let bytes = header().to_bytes();
        assert_eq!(&bytes[..16], b"BVKRSNP1\x03\x00\x02\x00\x00\x04\x00\x00");
        assert_eq!(bytes[32..48], [3, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(FileHeader::from_bytes(&bytes, FileKind::Snapshot), Ok(header()));
        assert!(FileHeader::from_bytes(&bytes, FileKind::Log).is_err());
        for at in 0..HEADER_LEN {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert!(FileHeader::from_bytes(&damaged, FileKind::Snapshot).is_err(), "byte {at}");
        }
        let mut newer = bytes;
        newer[8] = 7;
        assert_eq!(FileHeader::from_bytes(&newer, FileKind::Snapshot), Err(HeaderError::Newer(7)));
        let mut older = bytes;
        older[8] = 1;
        let crc = crc32c(&older[..CRC_AT]);
        older[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(FileHeader::from_bytes(&older, FileKind::Snapshot), Err(HeaderError::Older(1)));
    }

    #[test]
    fn the_worked_example_of_the_format_document() {
        let mut body = Vec::new();
        Op::Put { slot: 5, key: b"ab", value: b"xyz" }.encode(&mut body);
        Op::Delete { slot: 5, key: b"c" }.encode(&mut body);
        assert_eq!(body, b"\x01\x05\x00\x02\x00\x03\x00\x00\x00abxyz\x02\x05\x00\x01\x00c");
        let head = Head { len: body.len() as u32, body_crc: crc32c(&body), sequence: 1 };
        let bytes = head.to_bytes(1);
        assert_eq!(bytes[..4], [0x14, 0, 0, 0]);
        assert_eq!(bytes[8..16], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Head::from_bytes(&bytes, 1), Some(head));
        assert_eq!(Head::from_bytes(&bytes, 2), None, "an entry of another log");
        let ops: Result<Vec<_>, _> = Ops(&body).collect();
        assert_eq!(
            ops,
            Ok(vec![Op::Put { slot: 5, key: b"ab", value: b"xyz" }, Op::Delete { slot: 5, key: b"c" }])
        );
    }

    #[test]
    fn an_end_comes_back() {
        let mut body = Vec::new();
        Op::End { records: 77 }.encode(&mut body);
        assert_eq!(body, [3, 77, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Ops(&body).next(), Some(Ok(Op::End { records: 77 })));
    }

    #[test]
    #[should_panic(expected = "an entry with a body of 0 bytes")]
    fn a_head_that_no_reader_takes_is_not_made() {
        let _ = Head { len: 0, body_crc: 0, sequence: 1 }.to_bytes(1);
    }

    #[test]
    #[should_panic(expected = "a key of 65536 bytes")]
    fn a_key_whose_length_does_not_fit_is_not_encoded() {
        Op::Delete { slot: 0, key: &[0; 1 << 16] }.encode(&mut Vec::new());
    }

    proptest! {
        #[test]
        fn any_bytes_are_operations_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut copy = Vec::new();
            let mut sound = true;
            for op in Ops(&bytes) {
                match op {
                    Ok(op) => op.encode(&mut copy),
                    Err(_) => sound = false,
                }
            }
            prop_assert!(bytes.starts_with(&copy));
            prop_assert!(!sound || copy == bytes);
        }

        #[test]
        fn any_damaged_head_is_noticed(at in 0..HEAD_LEN, bit in 0u8..8, sequence in any::<u64>()) {
            let mut bytes = Head { len: 9, body_crc: 5, sequence }.to_bytes(4);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Head::from_bytes(&bytes, 4), None);
        }
    }
}

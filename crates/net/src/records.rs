//! Records, which an encrypted connection carries: each authenticated, in their order.
//!
//! ```text
//! length u32 | the same inverted u32 | ciphertext | tag [16]      length: of ciphertext and tag
//! ```
//! AES-256-GCM, with what is before the ciphertext as additional data. A damaged length must not make anybody wait for
//! what does not come, so it is there twice. Each direction has keys of its own; the nonce is the record's number under
//! its key, so a record that is repeated, left out, out of its order or of another connection does not open, and
//! neither does any after it.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use bivouac_types::limits::RECORD_LEN_MAX;
use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use sha2::Sha256;

/// Length of the secrets that keys are made from, in bytes.
pub(crate) const CHAIN_LEN: usize = 32;
/// Bytes of a record's length, which is there twice.
const LEN_LEN: usize = 8;
/// Bytes of a tag.
const TAG_LEN: usize = 16;
/// See [`Opening::first_read_len`]: a small record in one call.
const FIRST_READ_LEN: usize = 4096;
/// Records under one key: some 2³⁸ bytes, as much as TLS 1.3 allows (RFC 8446, 5.5).
const RECORDS_PER_KEY: u64 = 1 << 22;

/// A record does not open, or is none: it is not what the other side sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forged;

/// Reason why nothing was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RecordReadError<E> {
    /// The bytes are not those that the other side sent next.
    Forged,
    /// An error of the connection.
    Link(E),
}

/// Both directions of a connection, seen from one side.
pub(crate) struct Channel {
    pub sealing: Sealing,
    pub opening: Opening,
}

impl Channel {
    /// Creates the channel from the secrets of both directions. `None` cannot happen: all keys have the required
    /// length.
    pub fn new(ours: [u8; CHAIN_LEN], theirs: [u8; CHAIN_LEN]) -> Option<Channel> {
        Some(Channel { sealing: Sealing::new(ours)?, opening: Opening::new(theirs)? })
    }
}

/// Keys and numbers of the records that go one way.
struct Direction {
    chain: [u8; CHAIN_LEN],
    key: LessSafeKey,
    next: u64,
    records_per_key: u64,
}

impl Direction {
    fn new(chain: [u8; CHAIN_LEN]) -> Option<Direction> {
        Some(Direction { chain, key: key_of(&chain)?, next: 0, records_per_key: RECORDS_PER_KEY })
    }

    /// Returns the number of the next record, with another key than before if the former one has served long enough.
    fn advance(&mut self) -> Option<Nonce> {
        if self.next >= self.records_per_key {
            // Whoever learns a later one cannot open what was before.
            self.chain = derived(&self.chain, b"bivouac-chain-1")?;
            (self.key, self.next) = (key_of(&self.chain)?, 0);
        }
        // Two records with one key and number would show what both say, and let anybody make others (RFC 5116, 5.1.1).
        assert!(self.next < self.records_per_key, "a key for more than {} records", self.records_per_key);
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        Some(Nonce::assume_unique_for_key(nonce))
    }
}

fn key_of(chain: &[u8; CHAIN_LEN]) -> Option<LessSafeKey> {
    let key = derived(chain, b"bivouac-key-1")?;
    UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
}

/// Returns HKDF-Expand of one block (RFC 5869).
fn derived(chain: &[u8; CHAIN_LEN], info: &[u8]) -> Option<[u8; CHAIN_LEN]> {
    let mac = Hmac::<Sha256>::new_from_slice(chain).ok()?;
    Some(mac.chain_update(info).chain_update([1]).finalize().into_bytes().into())
}

/// Returns the header of a record whose ciphertext and tag have `len` bytes.
fn header_of(len: usize) -> [u8; LEN_LEN] {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    (u64::from(!len) << 32 | u64::from(len)).to_le_bytes()
}

/// The sending end of a direction, with what is sealed and not sent.
pub(crate) struct Sealing {
    direction: Direction,
    pending: Vec<u8>,
    done: usize,
}

impl Sealing {
    fn new(chain: [u8; CHAIN_LEN]) -> Option<Sealing> {
        Some(Sealing { direction: Direction::new(chain)?, pending: Vec::new(), done: 0 })
    }

    /// Appends the front of `parts` as one record to `out`; how many bytes those are.
    pub fn seal(&mut self, parts: &[IoSlice<'_>], out: &mut Vec<u8>) -> Result<usize, Forged> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let len = total.min(RECORD_LEN_MAX);
        if len == 0 {
            return Ok(0);
        }
        let header = header_of(len + TAG_LEN);
        out.reserve(LEN_LEN + len + TAG_LEN);
        out.extend_from_slice(&header);
        let (from, mut left) = (out.len(), len);
        for part in parts {
            let now = part.get(..left.min(part.len())).unwrap_or_default();
            out.extend_from_slice(now);
            left -= now.len();
        }
        assert!(left == 0, "a record lacks {left} of {len} bytes");
        let nonce = self.direction.advance().ok_or(Forged)?;
        let plain = out.get_mut(from..).unwrap_or_default();
        let tag = self.direction.key.seal_in_place_separate_tag(nonce, Aad::from(header), plain);
        out.extend_from_slice(tag.map_err(|_| Forged)?.as_ref());
        Ok(len)
    }

    /// Seals the front of `parts` to be sent, once all that was sealed before is gone; how many bytes those are.
    pub fn take(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Forged> {
        // The other side counts records: without this one it would open none of those that follow.
        assert!(self.pending().is_empty(), "{} bytes of a record are not sent", self.pending().len());
        let mut record = std::mem::take(&mut self.pending);
        record.clear();
        let taken = self.seal(parts, &mut record);
        (self.pending, self.done) = (record, 0);
        taken
    }

    /// Returns the sealed bytes to be sent next.
    pub fn pending(&self) -> &[u8] {
        self.pending.get(self.done..).unwrap_or_default()
    }

    /// Records that so many bytes of it were sent.
    pub fn sent(&mut self, len: usize) {
        self.done += len;
        assert!(self.done <= self.pending.len(), "{} of {} sealed bytes", self.done, self.pending.len());
        if self.done == self.pending.len() {
            // An idle connection holds no buffer.
            (self.pending, self.done) = (Vec::new(), 0);
        }
    }
}

/// The receiving end of a direction, with what came and was not asked for yet.
pub(crate) struct Opening {
    direction: Direction,
    buffer: Vec<u8>,
    /// Opened bytes that were not taken.
    plain: Range<usize>,
    /// Received bytes behind those.
    raw: Range<usize>,
    /// Bytes that are read when it is not known yet how long the next record is.
    first_read_len: usize,
}

impl Opening {
    fn new(chain: [u8; CHAIN_LEN]) -> Option<Opening> {
        let (direction, first_read_len) = (Direction::new(chain)?, FIRST_READ_LEN);
        Some(Opening { direction, buffer: Vec::new(), plain: 0..0, raw: 0..0, first_read_len })
    }

    /// Sets whether nothing is received but what belongs to the record that is read, so that the rest is still the
    /// socket's.
    pub fn read_nothing_ahead(&mut self, nothing: bool) {
        self.first_read_len = if nothing { LEN_LEN } else { FIRST_READ_LEN };
    }

    /// Returns whether there is something to be read without receiving.
    pub fn is_ready(&self) -> bool {
        !self.plain.is_empty() || self.len().is_ok_and(|len| len.is_some_and(|len| len <= self.raw.len()))
    }

    /// Returns the number of bytes of memory that it holds.
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Puts what comes next to the front of `parts`; at least one byte. `receive` gets bytes from the connection.
    pub fn read<E>(
        &mut self,
        parts: &mut [IoSliceMut<'_>],
        mut receive: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, RecordReadError<E>> {
        while self.plain.is_empty() {
            match self.len().map_err(|Forged| RecordReadError::Forged)? {
                Some(len) if len <= self.raw.len() => {
                    self.open(len).map_err(|Forged| RecordReadError::Forged)?
                }
                len => {
                    let room = self.room(len.unwrap_or(self.first_read_len));
                    let room_len = room.len();
                    match receive(room) {
                        Ok(came) => {
                            assert!(came <= room_len, "{came} bytes were received into {room_len}");
                            self.raw.end += came;
                        }
                        Err(error) => {
                            self.rest();
                            return Err(RecordReadError::Link(error));
                        }
                    }
                }
            }
        }
        Ok(self.give(parts))
    }

    /// Returns the length of the next record with all that belongs to it; `None` if it is not known yet.
    fn len(&self) -> Result<Option<usize>, Forged> {
        let Some(header) = self.raw().first_chunk::<LEN_LEN>() else { return Ok(None) };
        let len = u64::from_le_bytes(*header) as u32 as usize;
        // Checked before any room is made: the header is not authenticated before the whole record is there.
        let is_possible = len > TAG_LEN && len <= RECORD_LEN_MAX + TAG_LEN;
        if is_possible && *header == header_of(len) { Ok(Some(LEN_LEN + len)) } else { Err(Forged) }
    }

    fn raw(&self) -> &[u8] {
        self.buffer.get(self.raw.clone()).unwrap_or_default()
    }

    /// Opens the record at the front, of `len` bytes.
    fn open(&mut self, len: usize) -> Result<(), Forged> {
        assert!(len <= self.raw.len(), "a record of {len} bytes, of which {} are there", self.raw.len());
        let nonce = self.direction.advance().ok_or(Forged)?;
        let record = self.buffer.get_mut(self.raw.start..self.raw.start + len).ok_or(Forged)?;
        let (header, rest) = record.split_first_chunk_mut::<LEN_LEN>().ok_or(Forged)?;
        let (sealed, tag) = rest.split_last_chunk_mut::<TAG_LEN>().ok_or(Forged)?;
        let (aad, tag) = (Aad::from(*header), Tag::from(*tag));
        let opened = self.direction.key.open_in_place_separate_tag(nonce, aad, tag, sealed, 0..);
        opened.map_err(|_| Forged)?;
        let from = self.raw.start + LEN_LEN;
        self.plain = from..from + sealed.len();
        self.raw.start += len;
        Ok(())
    }

    /// Returns the room for what is missing of `len` bytes, behind what is there.
    fn room(&mut self, len: usize) -> &mut [u8] {
        assert!(self.plain.is_empty(), "{} opened bytes would be overwritten", self.plain.len());
        if self.raw.start > 0 {
            self.buffer.copy_within(self.raw.clone(), 0);
            self.raw = 0..self.raw.len();
        }
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        self.buffer.get_mut(self.raw.end..len).unwrap_or_default()
    }

    fn give(&mut self, parts: &mut [IoSliceMut<'_>]) -> usize {
        let mut given = 0;
        for part in parts {
            let plain = self.buffer.get(self.plain.clone()).unwrap_or_default();
            let len = plain.len().min(part.len());
            part[..len].copy_from_slice(&plain[..len]);
            self.plain.start += len;
            given += len;
        }
        given
    }

    /// Releases the buffers once nothing is left in them: an idle connection holds none.
    fn rest(&mut self) {
        if self.raw.is_empty() && self.plain.is_empty() {
            (self.buffer, self.raw, self.plain) = (Vec::new(), 0..0, 0..0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair() -> (Channel, Channel) {
        (Channel::new([1; 32], [2; 32]).unwrap(), Channel::new([2; 32], [1; 32]).unwrap())
    }

    fn sealed(sealing: &mut Sealing, bytes: &[u8]) -> Vec<u8> {
        let (mut out, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let taken = sealing.seal(&[IoSlice::new(rest)], &mut out).unwrap();
            rest = &rest[taken..];
        }
        out
    }

    /// Reads all of `bytes`, which come in pieces of at most `piece`.
    fn read(opening: &mut Opening, mut bytes: &[u8], piece: usize) -> Result<Vec<u8>, RecordReadError<()>> {
        let mut plain = Vec::new();
        loop {
            let mut part = [0; 1000];
            let (front, back) = part.split_at_mut(7);
            let mut parts = [IoSliceMut::new(front), IoSliceMut::new(back)];
            let outcome = opening.read(&mut parts, |into| {
                let len = into.len().min(bytes.len()).min(piece);
                let (now, later) = bytes.split_at(len);
                into[..len].copy_from_slice(now);
                bytes = later;
                if len == 0 { Err(()) } else { Ok(len) }
            });
            match outcome {
                Ok(len) => plain.extend_from_slice(&part[..len]),
                Err(RecordReadError::Link(())) => return Ok(plain),
                Err(error) => return Err(error),
            }
        }
    }

    #[test]
    fn what_is_sealed_is_opened_once_and_in_order() {
        let (mut here, mut there) = pair();
        let records = ["one", "two", "three"].map(|text| sealed(&mut here.sealing, text.as_bytes()));
        assert_eq!(read(&mut there.opening, &records[0], 9).unwrap(), b"one");
        assert_eq!(read(&mut there.opening, &records[0], 99), Err(RecordReadError::Forged), "again");
        let (mut here, mut there) = pair();
        let records = ["one", "two", "three"].map(|text| sealed(&mut here.sealing, text.as_bytes()));
        assert_eq!(read(&mut there.opening, &records[1], 99), Err(RecordReadError::Forged), "out of order");
        // The way back has other keys.
        assert_eq!(read(&mut pair().0.opening, &records[0], 99), Err(RecordReadError::Forged));
        let mut other = Channel::new([1; 32], [3; 32]).unwrap();
        assert_eq!(
            read(&mut other.opening, &records[0], 99),
            Err(RecordReadError::Forged),
            "another connection's"
        );
    }

    /// Computed with Python's `cryptography` module.
    #[test]
    fn golden_vector() {
        let mut sealing = Sealing::new([7; 32]).unwrap();
        let first = sealed(&mut sealing, b"bivouac");
        let second = sealed(&mut sealing, b"bivouac");
        sealing.direction.records_per_key = 2;
        let third = sealed(&mut sealing, b"bivouac");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!([first, second, third].map(|record| hex(&record)), GOLDEN);
        assert!(include_str!("../../../docs/protocol.md").contains(GOLDEN[0]));
    }

    const GOLDEN: [&str; 3] = [
        "17000000e8ffffff09e6495ef09f605b722568b1c82d17f98fdda3ab33f699",
        "17000000e8ffffffb088f5c0be5e6cf41fe12765c9c3230ea5653113d9aaae",
        "17000000e8ffffff49d57a420a2ea07f1e1aef45e6b4fc52ca1d65b49cbf2b",
    ];

    #[test]
    #[should_panic(expected = "bytes of a record are not sent")]
    fn a_record_that_is_not_sent_is_not_replaced() {
        let (mut here, _) = pair();
        let taken = (0..2).map(|_| here.sealing.take(&[IoSlice::new(b"bivouac")]).unwrap());
        assert_eq!(taken.sum::<usize>(), 14);
    }

    #[test]
    fn absurd_lengths_are_refused() {
        for len in [0, 1, 16, 65_536 + 17, u32::MAX] {
            let mut bytes = header_of(len as usize).to_vec();
            bytes.resize(100, 0);
            assert_eq!(read(&mut pair().0.opening, &bytes, 100), Err(RecordReadError::Forged), "{len}");
        }
    }

    #[test]
    fn who_rests_holds_nothing() {
        let (mut here, mut there) = pair();
        here.sealing.take(&[IoSlice::new(&[1; 1000])]).unwrap();
        let record = here.sealing.pending().to_vec();
        here.sealing.sent(500);
        assert_eq!(here.sealing.pending(), &record[500..]);
        here.sealing.sent(record.len() - 500);
        assert!(here.sealing.pending().is_empty() && here.sealing.pending.capacity() == 0);
        read(&mut there.opening, &record, 600).unwrap();
        assert_eq!(there.opening.held_bytes(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn however_it_comes_it_is_what_was_sealed(
            lens in proptest::collection::vec(prop_oneof![1usize..200, 60_000usize..140_000], 1..4), piece in 1usize..50_000,
        ) {
            let (mut here, mut there) = pair();
            (here.sealing.direction.records_per_key, there.opening.direction.records_per_key) = (3, 3);
            let (mut plain, mut wire) = (Vec::new(), Vec::new());
            for len in lens {
                let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
                wire.extend(sealed(&mut here.sealing, &bytes));
                plain.extend(bytes);
            }
            prop_assert!(read(&mut there.opening, &wire, piece.max(wire.len() / 500)).unwrap() == plain);
        }

        #[test]
        fn a_flipped_bit_does_not_open(len in 1usize..3000, at: usize, bit in 0u8..8) {
            let (mut here, mut there) = pair();
            let mut wire = sealed(&mut here.sealing, &vec![5; len]);
            let at = at % wire.len();
            wire[at] ^= 1 << bit;
            prop_assert_eq!(read(&mut there.opening, &wire, wire.len()), Err(RecordReadError::Forged));
        }

        #[test]
        fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let outcome = read(&mut pair().0.opening, &bytes, 100);
            prop_assert!(outcome == Err(RecordReadError::Forged) || outcome == Ok(Vec::new()));
        }
    }
}

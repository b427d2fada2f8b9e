//! The fixed header in front of every message.
//!
//! ```text
//!  0 magic u32        4 version u16     6 operation u16    8 request id u64
//! 16 body length u32 20 payload length u32                24 status i32
//! 28 channel u16     30 kind u4 seal u4 31 flags u8       32 client id u64
//! 40 wait ms u32     44 sum u32        48 origin u64      56 fence u32     60 crc32c u32
//! ```
//! The checksum (CRC-32C, Castagnoli, as in RFC 3720 B.4) covers bytes 0 to 59. What follows the header is covered as
//! the seal says.

use bivouac_types::limits::{FRAME_BODY_MAX, FRAME_HEADER_LEN, FRAME_PAYLOAD_MAX};
use bivouac_types::{ClientId, OpId};

use crate::seal::{FrameProtection, Seal};

/// First four bytes of every frame: `BVK1`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"BVK1");
/// Version of the protocol. Peers of another version are refused in the handshake.
pub const VERSION: u16 = 12;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request.
    Request,
    /// A reply.
    Reply,
    /// Sent instead of a reply: the request was damaged on the way, and not looked at.
    Damaged,
}

/// Marks on a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The request may have been carried out before: its answer was lost.
    pub const RETRY: Flags = Flags(1);
    /// The client keeps nothing of what it is told: it needs no lease.
    pub const NO_LEASE: Flags = Flags(2);
    /// Set in a request that is sent again because the last reply was damaged on the way.
    pub const ANSWER_DAMAGED: Flags = Flags(4);

    /// Returns whether the request may have been carried out before.
    #[must_use]
    pub fn is_retry(self) -> bool {
        self.0 & Flags::RETRY.0 != 0
    }

    /// Returns whether the last answer to it was damaged on the way.
    #[must_use]
    pub fn is_answer_damaged(self) -> bool {
        self.0 & Flags::ANSWER_DAMAGED.0 != 0
    }

    /// Returns whether who asks keeps what it is told, as long as it may.
    #[must_use]
    pub fn wants_lease(self) -> bool {
        self.0 & Flags::NO_LEASE.0 == 0
    }

    /// Returns these without others.
    #[must_use]
    pub fn without(self, others: Flags) -> Flags {
        Flags(self.0 & !others.0)
    }

    /// Returns these and others.
    #[must_use]
    pub fn with(self, others: Flags) -> Flags {
        Flags(self.0 | others.0)
    }
}

/// The header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the operation; see [`crate::Op`].
    pub op: u16,
    /// Tells requests of one (client, channel) apart; a retry keeps it.
    pub id: OpId,
    /// Bytes of encoded body that follow the header.
    pub body_len: u32,
    /// Bytes of raw payload that follow the body. In a read's request: none, see its body.
    pub payload_len: u32,
    /// 0 or an errno; always 0 in requests.
    pub status: i32,
    /// Session channel of the client; one mutating request at a time.
    pub channel: u16,
    /// Request or reply.
    pub kind: Kind,
    /// Marks.
    pub flags: Flags,
    /// The sender.
    pub client: ClientId,
    /// Time that the sender will go on waiting, in milliseconds.
    pub wait_ms: u32,
    /// On the peer lane the client whose request makes a peer ask; 0 when nobody's does.
    pub origin: ClientId,
    /// On the client lane, of what is done under locks: the incarnation, and 1, that the client's node had when it
    /// began. 0 otherwise.
    pub fence: u32,
    /// Seal of body and payload: it shows whether they are what was sent.
    pub seal: Seal,
}

/// Reason why a header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Not a frame of this protocol.
    Magic,
    /// A frame of another protocol version.
    Version(u16),
    /// The checksum does not fit.
    Checksum,
    /// A length above the limit.
    TooLong,
    /// A kind that does not exist.
    Kind,
    /// A seal that does not exist.
    Seal,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::Magic => f.write_str("bytes are not a bivouac frame"),
            FrameError::Version(v) => {
                write!(f, "peer speaks protocol version {v}, this is {VERSION}: use one release everywhere")
            }
            FrameError::Checksum => f.write_str("frame header is damaged (checksum)"),
            FrameError::TooLong => f.write_str("frame is longer than the limit"),
            FrameError::Kind => f.write_str("frame is neither request nor reply"),
            FrameError::Seal => f.write_str("frame is sealed in a way that is not known"),
        }
    }
}

impl std::error::Error for FrameError {}

impl Frame {
    /// Returns a request's header without lengths.
    #[must_use]
    pub fn request(op: u16, id: OpId, client: ClientId, channel: u16) -> Frame {
        Frame {
            op,
            id,
            body_len: 0,
            payload_len: 0,
            status: 0,
            channel,
            kind: Kind::Request,
            flags: Flags::default(),
            client,
            wait_ms: 0,
            origin: ClientId(0),
            fence: 0,
            seal: Seal::None,
        }
    }

    /// Returns the header of the answer to this request, not sealed.
    #[must_use]
    pub fn reply(&self, status: i32, body_len: u32, payload_len: u32) -> Frame {
        // Number and operation stay: by them the asker tells a late answer from the one that it waits for.
        Frame { status, body_len, payload_len, kind: Kind::Reply, seal: Seal::None, ..*self }
    }

    /// Returns what is sent instead of a reply if this request was damaged on the way.
    #[must_use]
    pub fn damaged(&self) -> Frame {
        Frame { kind: Kind::Damaged, ..self.reply(0, 0, 0) }
    }

    /// Returns the header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FRAME_HEADER_LEN] {
        let mut out = [0u8; FRAME_HEADER_LEN];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(4, &VERSION.to_le_bytes());
        put(6, &self.op.to_le_bytes());
        put(8, &self.id.0.to_le_bytes());
        put(16, &self.body_len.to_le_bytes());
        put(20, &self.payload_len.to_le_bytes());
        put(24, &self.status.to_le_bytes());
        put(28, &self.channel.to_le_bytes());
        // A sum of its own: where body or payload are damaged, it is still known whose request it was.
        let (seal, sum) = self.seal.to_parts();
        put(30, &[self.kind as u8 | seal << SEAL_SHIFT, self.flags.0]);
        put(32, &self.client.0.to_le_bytes());
        put(40, &self.wait_ms.to_le_bytes());
        put(44, &sum.to_le_bytes());
        put(48, &self.origin.0.to_le_bytes());
        put(56, &self.fence.to_le_bytes());
        // Last: it covers all that is in front of it.
        let crc = checksum(&out);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header.
    ///
    /// # Errors
    /// See [`FrameError`]. The lengths of an accepted header are within the limits.
    pub fn from_bytes(bytes: &[u8; FRAME_HEADER_LEN]) -> Result<Frame, FrameError> {
        // The checksum first: what a damaged header says of its version is not what the other side speaks.
        if word(bytes, 60) != checksum(bytes) {
            return Err(if is_ours_but_for_the_magic(bytes) {
                FrameError::Checksum
            } else {
                FrameError::Magic
            });
        }
        if word(bytes, 0) != MAGIC {
            return Err(FrameError::Magic);
        }
        let version = half(bytes, 4);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = match bytes[30] & KIND_MASK {
            0 => Kind::Request,
            1 => Kind::Reply,
            2 => Kind::Damaged,
            _ => return Err(FrameError::Kind),
        };
        let seal = Seal::from_parts(bytes[30] >> SEAL_SHIFT, word(bytes, 44)).ok_or(FrameError::Seal)?;
        let (body_len, payload_len) = (word(bytes, 16), word(bytes, 20));
        // Whoever receives the frame makes room for so many bytes before the first of them has come.
        if body_len as usize > FRAME_BODY_MAX || payload_len as usize > FRAME_PAYLOAD_MAX {
            return Err(FrameError::TooLong);
        }
        Ok(Frame {
            op: half(bytes, 6),
            id: OpId(long(bytes, 8)),
            body_len,
            payload_len,
            status: word(bytes, 24) as i32,
            channel: half(bytes, 28),
            kind,
            flags: Flags(bytes[31]),
            client: ClientId(long(bytes, 32)),
            wait_ms: word(bytes, 40),
            origin: ClientId(long(bytes, 48)),
            fence: word(bytes, 56),
            seal,
        })
    }
}

/// The kind's part of its byte.
const KIND_MASK: u8 = 0x0f;
/// Position of the seal's bits in that byte.
const SEAL_SHIFT: u32 = 4;

// Half a byte is left to each of the two, and the checksum ends the header.
const _: () = assert!(Kind::Damaged as u8 <= KIND_MASK && FrameProtection::Record as u8 <= KIND_MASK);
const _: () = assert!(FRAME_HEADER_LEN == 60 + 4);

fn checksum(bytes: &[u8; FRAME_HEADER_LEN]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..60]) as u32
}

/// Returns whether a header that does not fit its checksum is a damaged one of ours, and not something else altogether:
/// it has the magic, or the rest fits with it.
fn is_ours_but_for_the_magic(bytes: &[u8; FRAME_HEADER_LEN]) -> bool {
    let mut ours = *bytes;
    ours[..4].copy_from_slice(&MAGIC.to_le_bytes());
    ours[..4] == bytes[..4] || word(&ours, 60) == checksum(&ours)
}

fn half(bytes: &[u8; FRAME_HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8; FRAME_HEADER_LEN], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

fn long(bytes: &[u8; FRAME_HEADER_LEN], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Frame {
        let mut frame = Frame::request(3, OpId(0x0102_0304_0506_0708), ClientId(9), 5);
        frame.body_len = 10;
        frame.payload_len = 4096;
        frame.flags = Flags::RETRY;
        frame.wait_ms = 30_000;
        frame.origin = ClientId(2);
        frame.fence = 6;
        frame.seal = Seal::Sum(0x0403_0201);
        frame
    }

    #[test]
    fn golden_vector() {
        let bytes = sample().to_bytes();
        assert_eq!(&bytes[..16], b"BVK1\x0c\x00\x03\x00\x08\x07\x06\x05\x04\x03\x02\x01");
        assert_eq!(&bytes[16..32], &[10, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 5, 0, 0x10, 1]);
        assert_eq!(&bytes[40..48], &[0x30, 0x75, 0, 0, 1, 2, 3, 4]);
        assert_eq!(Frame::from_bytes(&bytes), Ok(sample()));
    }

    #[test]
    fn a_reply_keeps_the_identity() {
        let reply = sample().reply(28, 1, 2);
        assert_eq!(
            (reply.id, reply.client, reply.kind, reply.status),
            (OpId(0x0102_0304_0506_0708), ClientId(9), Kind::Reply, 28)
        );
        assert_eq!(
            (reply.body_len, reply.payload_len, reply.seal),
            (1, 2, Seal::None),
            "the question's seal is not its own"
        );
        let damaged = Frame::from_bytes(&sample().damaged().to_bytes()).unwrap();
        assert_eq!(
            (damaged.kind, damaged.id, damaged.body_len, damaged.payload_len),
            (Kind::Damaged, reply.id, 0, 0)
        );
    }

    /// With its checksum made right again.
    fn with_byte(at: usize, value: u8) -> [u8; FRAME_HEADER_LEN] {
        let mut bytes = sample().to_bytes();
        bytes[at] = value;
        let crc = checksum(&bytes);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn kinds_and_seals_that_do_not_exist_are_refused() {
        assert_eq!(Frame::from_bytes(&with_byte(30, 0x10)), Ok(sample()));
        for kind in 3..16 {
            assert_eq!(Frame::from_bytes(&with_byte(30, kind)), Err(FrameError::Kind));
        }
        for seal in 3..16 {
            assert_eq!(Frame::from_bytes(&with_byte(30, seal << 4)), Err(FrameError::Seal));
        }
        assert_eq!(Frame::from_bytes(&with_byte(30, 0)).map(|frame| frame.seal), Ok(Seal::None));
        assert_eq!(Frame::from_bytes(&with_byte(30, 0x20)).map(|frame| frame.seal), Ok(Seal::Record));
    }

    #[test]
    fn another_version_is_named() {
        assert_eq!(Frame::from_bytes(&with_byte(4, 77)), Err(FrameError::Version(77)));
        assert!(FrameError::Version(77).to_string().contains("version 77"));
    }

    #[test]
    fn what_was_damaged_is_told_from_what_is_not_ours() {
        for at in 0..FRAME_HEADER_LEN {
            for bit in 0..8 {
                let mut bytes = sample().to_bytes();
                bytes[at] ^= 1 << bit;
                assert_eq!(Frame::from_bytes(&bytes), Err(FrameError::Checksum), "byte {at}, bit {bit}");
            }
        }
        assert_eq!(Frame::from_bytes(&[b'x'; FRAME_HEADER_LEN]), Err(FrameError::Magic));
        assert_eq!(Frame::from_bytes(&with_byte(0, b'x')), Err(FrameError::Magic));
    }

    #[test]
    fn flags_are_independent() {
        let damaged = Flags::ANSWER_DAMAGED;
        assert!(damaged.is_answer_damaged() && !damaged.is_retry() && damaged.wants_lease());
        assert_eq!(Flags::RETRY.with(damaged).without(damaged), Flags::RETRY);
        let both = Flags::RETRY.with(Flags::NO_LEASE);
        assert_eq!((both.is_retry(), both.wants_lease(), both.0), (true, false, 3));
        assert!(!Flags::NO_LEASE.is_retry() && Flags::RETRY.wants_lease() && Flags::default().wants_lease());
    }

    #[test]
    fn absurd_lengths_are_refused() {
        let mut frame = sample();
        frame.payload_len = u32::MAX;
        assert_eq!(Frame::from_bytes(&frame.to_bytes()), Err(FrameError::TooLong));
    }

    proptest! {
        #[test]
        fn any_damage_is_noticed(at in 0usize..64, bit in 0u8..8) {
            let mut bytes = sample().to_bytes();
            bytes[at] ^= 1 << bit;
            prop_assert!(Frame::from_bytes(&bytes).is_err());
        }

        #[test]
        fn garbage_is_refused(bytes in any::<[u8; 32]>()) {
            let mut header = [0u8; 64];
            header[..32].copy_from_slice(&bytes);
            prop_assert!(Frame::from_bytes(&header).is_err());
        }
    }
}

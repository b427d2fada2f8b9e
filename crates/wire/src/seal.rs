//! What tells a receiver whether the bytes behind a header are those that were sent.

use crc_fast::{CrcAlgorithm, Digest};

/// Protection of the frames of a connection, the same for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameProtection {
    /// None: over sockets of one machine, whose kernel copies memory.
    None = 0,
    /// Their CRC-32C, which finds accidental damage.
    Sum = 1,
    /// The records that they come in, which are encrypted and authenticated.
    Record = 2,
}

impl FrameProtection {
    /// Returns the seal of a body and its payload under this protection.
    #[must_use]
    pub fn seal<'a>(self, body: &[u8], payload: impl IntoIterator<Item = &'a [u8]>) -> Seal {
        match self {
            FrameProtection::None => Seal::None,
            FrameProtection::Sum => seal_of(body, payload),
            FrameProtection::Record => Seal::Record,
        }
    }
}

/// Protection of the body and payload of one frame. A number in the header says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// Not at all.
    None,
    /// By their CRC-32C, body first.
    Sum(u32),
    /// By the records of their connection.
    Record,
}

impl Seal {
    /// Returns the protection that it belongs to.
    #[must_use]
    pub fn protection(self) -> FrameProtection {
        match self {
            Seal::None => FrameProtection::None,
            Seal::Sum(_) => FrameProtection::Sum,
            Seal::Record => FrameProtection::Record,
        }
    }

    /// Returns the number of the protection, and the value in the header.
    pub(crate) fn to_parts(self) -> (u8, u32) {
        let value = if let Seal::Sum(sum) = self { sum } else { 0 };
        (self.protection() as u8, value)
    }

    pub(crate) fn from_parts(way: u8, value: u32) -> Option<Seal> {
        match way {
            0 => Some(Seal::None),
            1 => Some(Seal::Sum(value)),
            2 => Some(Seal::Record),
            _ => None,
        }
    }
}

/// Running CRC-32C of the bytes behind a header.
#[derive(Clone)]
pub struct FrameChecksum(Digest);

impl Default for FrameChecksum {
    fn default() -> FrameChecksum {
        FrameChecksum(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl FrameChecksum {
    /// Takes the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        // What is empty may be empty often, and each call costs a little.
        if !bytes.is_empty() {
            self.0.update(bytes);
        }
    }

    /// Returns the seal of all that was added.
    #[must_use]
    pub fn seal(&self) -> Seal {
        Seal::Sum(self.0.finalize() as u32)
    }

    /// Returns whether a seal fits what was added; those that have no sum fit everything.
    #[must_use]
    pub fn fits(&self, seal: Seal) -> bool {
        seal.protection() != FrameProtection::Sum || seal == self.seal()
    }
}

/// Returns the seal of a body and the parts of a payload.
#[must_use]
pub fn seal_of<'a>(body: &[u8], payload: impl IntoIterator<Item = &'a [u8]>) -> Seal {
    let mut summing = FrameChecksum::default();
    summing.add(body);
    payload.into_iter().for_each(|part| summing.add(part));
    summing.seal()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_the_sum_that_others_know() {
        assert_eq!(seal_of(b"1234", [&b"56"[..], b"", b"789"]), Seal::Sum(0xe306_9283), "RFC 3720, B.4");
        assert_eq!(seal_of(b"", []), Seal::Sum(0));
        assert!(FrameChecksum::default().fits(Seal::None) && FrameChecksum::default().fits(Seal::Sum(0)));
    }

    proptest! {
        #[test]
        fn wherever_it_is_cut_the_sum_is_one(bytes: Vec<u8>, cuts in proptest::collection::vec(0usize..100, 0..5)) {
            let (mut summing, mut rest) = (FrameChecksum::default(), bytes.as_slice());
            for cut in cuts {
                let (front, back) = rest.split_at(cut.min(rest.len()));
                summing.add(front);
                rest = back;
            }
            summing.add(rest);
            prop_assert!(summing.fits(seal_of(&bytes, [])) && summing.seal() == seal_of(b"", [&bytes[..]]));
        }

        #[test]
        fn a_flipped_bit_does_not_fit(mut bytes in proptest::collection::vec(any::<u8>(), 1..500), at: usize, bit in 0u8..8) {
            let seal = seal_of(&bytes, []);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let mut summing = FrameChecksum::default();
            summing.add(&bytes);
            prop_assert!(!summing.fits(seal));
        }
    }
}

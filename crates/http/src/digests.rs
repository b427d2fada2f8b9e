//! Digests of files, computed once for each state of a file, and as the headers of RFC 9530 write them.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bivouac_types::Ino;
use bivouac_types::hex::{from_hex, to_hex};

use crate::conditions::ContentState;

/// Upper limit of cached digests.
const KEPT_MAX: usize = 4096;

/// A SHA-256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest(Vec<u8>);

impl From<ring::digest::Digest> for Digest {
    fn from(digest: ring::digest::Digest) -> Digest {
        // What is said of a digest names SHA-256 everywhere.
        assert_eq!(digest.as_ref().len(), 32, "a digest of another algorithm than SHA-256");
        Digest(digest.as_ref().to_vec())
    }
}

impl Digest {
    /// Returns the value of `Repr-Digest` and `Content-Digest`.
    #[must_use]
    pub fn header(&self) -> String {
        format!("sha-256=:{}:", STANDARD.encode(&self.0))
    }

    /// Reads 64 hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &[u8]) -> Option<Digest> {
        let bytes = from_hex(&std::str::from_utf8(text).ok()?.to_ascii_lowercase())?;
        (bytes.len() == 32).then_some(Digest(bytes))
    }

    /// Returns the digest in hexadecimal.
    #[must_use]
    pub fn hex(&self) -> String {
        to_hex(&self.0)
    }
}

/// Parses the SHA-256 of a `Repr-Digest` or `Content-Digest`; `Ok(None)` if it has none.
///
/// # Errors
/// That it is no such header.
pub fn said(header: &str) -> Result<Option<Digest>, &'static str> {
    for entry in header.split(',').map(str::trim) {
        let (algorithm, value) = entry.split_once('=').ok_or("a digest is written sha-256=:BASE64:")?;
        if algorithm != "sha-256" {
            continue;
        }
        let value = value.split(';').next().unwrap_or_default().trim();
        let text = value.strip_prefix(':').and_then(|text| text.strip_suffix(':'));
        let bytes = text.and_then(|text| STANDARD.decode(text).ok()).filter(|bytes| bytes.len() == 32);
        return bytes.map(|bytes| Some(Digest(bytes))).ok_or("the SHA-256 is not 32 bytes in base64");
    }
    Ok(None)
}

/// Returns whether a `Want-Repr-Digest` or `Want-Content-Digest` requests a SHA-256.
#[must_use]
pub fn is_wanted(header: &str) -> bool {
    let mut entries = header.split(',').map(str::trim);
    entries.any(|entry| {
        let (algorithm, weight) = entry.split_once('=').unwrap_or((entry, "1"));
        algorithm.eq_ignore_ascii_case("sha-256") && weight.trim() != "0"
    })
}

/// Digests of files as they were when they were read.
#[derive(Default)]
pub struct Digests(HashMap<Ino, (ContentState, Digest)>);

impl Digests {
    /// Returns the cached digest of a file in this state.
    #[must_use]
    pub fn get(&self, ino: Ino, state: &ContentState) -> Option<Digest> {
        self.0.get(&ino).filter(|(known, _)| known == state).map(|(_, digest)| digest.clone())
    }

    /// Keeps one. When there are too many, all others are forgotten: they are computed again.
    pub fn put(&mut self, ino: Ino, state: ContentState, digest: Digest) {
        if self.0.len() >= KEPT_MAX {
            // All of them: which ones are asked for next is not known, and each can be computed again.
            self.0.clear();
        }
        self.0.insert(ino, (state, digest));
        assert!(self.0.len() <= KEPT_MAX, "{} digests are kept", self.0.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_and_read_as_the_rfc_has_them() {
        let digest = Digest::from(ring::digest::digest(&ring::digest::SHA256, b"abc"));
        assert_eq!(digest.header(), "sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:");
        assert_eq!(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::from_hex(digest.hex().as_bytes()), Some(digest.clone()));
        for text in ["", "ba78", &"x".repeat(64), &digest.hex()[1..]] {
            assert_eq!(Digest::from_hex(text.as_bytes()), None);
        }
        assert_eq!(said(&digest.header()), Ok(Some(digest.clone())));
        assert_eq!(said(&format!("md5=:AA==:, {}", digest.header())), Ok(Some(digest)));
        assert_eq!(said("md5=:AA==:"), Ok(None));
        for wrong in ["sha-256=:AA==:", "sha-256", "sha-256=abc", "sha-256=::", ""] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
        assert!(is_wanted("sha-512=3, sha-256=10") && is_wanted("SHA-256") && !is_wanted("sha-256=0"));
        assert!(!is_wanted("sha-512=3"));
    }
}

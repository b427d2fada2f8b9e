//! Keys of links.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bivouac_types::{FormationId, KEY_ID_CHARS, KEY_ID_LEN, KEY_ID_START};
use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::Sha256;

/// Id of the key by which a formation asks its own gateway for figures; it opens nothing else.
pub const OWN_KEY_ID: &str = "BVKAAAAAAAAAAAAAAAAA";
/// Length of a key's secret, in bytes.
const SECRET_LEN: usize = 32;
/// Prefix of a key's text, which tells it from a key of HTTP.
const TEXT_START: &str = "link.";
/// Context of the derivation of keys, which separates it from other uses of a formation's secret.
const KEY_PURPOSE: &[u8] = b"bivouac key of links 1\0";
/// Context of the encryption of a foreign key in a formation's own records.
const SEAL_PURPOSE: &[u8] = b"bivouac sealed key of a link 1\0";

/// A key of a link: an id, which is no secret, and a secret. It prints as its id.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkKey {
    id: String,
    secret: [u8; SECRET_LEN],
}

impl LinkKey {
    /// Returns the key with this id of the formation with this secret. Nothing of it is kept: it is derived when it is
    /// needed.
    #[must_use]
    pub fn derive(formation_secret: &[u8; SECRET_LEN], id: &str) -> LinkKey {
        LinkKey { id: id.to_owned(), secret: derived(formation_secret, KEY_PURPOSE, id.as_bytes()) }
    }

    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns its secret, for handshakes.
    #[must_use]
    pub fn secret(&self) -> &[u8; SECRET_LEN] {
        &self.secret
    }

    /// Returns the content of a key file.
    #[must_use]
    pub fn expose(&self) -> String {
        format!("{TEXT_START}{}.{}", self.id, URL_SAFE_NO_PAD.encode(self.secret))
    }

    /// Returns the key as a formation may keep it in its records: readable only with that formation's own secret.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn seal(&self, formation_secret: &[u8; SECRET_LEN]) -> Result<String, String> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|error| format!("draw random bytes: {error}"))?;
        let cipher = cipher_of(formation_secret).ok_or("no key to encrypt with")?;
        let mut bytes = self.secret.to_vec();
        let sealed = cipher.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(self.id.as_bytes()),
            &mut bytes,
        );
        sealed.map_err(|_| "the key cannot be encrypted".to_owned())?;
        Ok(format!("{}.{}", self.id, URL_SAFE_NO_PAD.encode([&nonce[..], &bytes].concat())))
    }

    /// Opens what [`LinkKey::seal`] made; `None` if it is of another formation, or damaged.
    #[must_use]
    pub fn open(formation_secret: &[u8; SECRET_LEN], sealed: &str) -> Option<LinkKey> {
        let (id, sealed) = sealed.split_once('.').filter(|(id, _)| key_number(id).is_some())?;
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, rest) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut rest = rest.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = cipher_of(formation_secret)?.open_in_place(nonce, Aad::from(id.as_bytes()), &mut rest);
        let secret = opened.ok()?.first_chunk::<SECRET_LEN>().copied()?;
        Some(LinkKey { id: id.to_owned(), secret })
    }
}

impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkKey({})", self.id)
    }
}

impl FromStr for LinkKey {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkKey, String> {
        let not_one = "is no key of a link; make one there with: bivouac key create --link --key-file FILE";
        let rest = text.trim().strip_prefix(TEXT_START).ok_or(not_one)?;
        let (id, secret) = rest.split_once('.').filter(|(id, _)| key_number(id).is_some()).ok_or(not_one)?;
        let secret = URL_SAFE_NO_PAD.decode(secret).ok().and_then(|bytes| bytes.try_into().ok());
        Ok(LinkKey { id: id.to_owned(), secret: secret.ok_or(not_one)? })
    }
}

fn derived(secret: &[u8; SECRET_LEN], purpose: &[u8], what: &[u8]) -> [u8; SECRET_LEN] {
    // HMAC takes keys of any length.
    let mac = Hmac::<Sha256>::new_from_slice(secret).map(|mac| mac.chain_update(purpose).chain_update(what));
    mac.map(|mac| mac.finalize().into_bytes().into()).unwrap_or_default()
}

fn cipher_of(formation_secret: &[u8; SECRET_LEN]) -> Option<LessSafeKey> {
    let key = derived(formation_secret, SEAL_PURPOSE, b"");
    UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
}

/// Returns the number that an id is in a handshake; `None` for what is no id.
#[must_use]
pub fn key_number(id: &str) -> Option<FormationId> {
    let letters = id.strip_prefix(KEY_ID_START).filter(|letters| letters.len() == KEY_ID_LEN)?;
    let number = letters.bytes().try_fold(0_u128, |number, letter| {
        let bits = KEY_ID_CHARS.iter().position(|known| *known == letter)?;
        Some(number << 5 | bits as u128)
    });
    number.map(|number| FormationId(number.to_le_bytes()))
}

/// Returns the id that a number in a handshake stands for; `None` for one that stands for none.
#[must_use]
pub fn key_id_of(number: FormationId) -> Option<String> {
    let number = u128::from_le_bytes(number.0);
    if number >> (5 * KEY_ID_LEN) != 0 {
        return None;
    }
    let letter = |at: usize| {
        let bits = (number >> (5 * (KEY_ID_LEN - 1 - at))) as usize % KEY_ID_CHARS.len();
        KEY_ID_CHARS.get(bits).map(|letter| char::from(*letter))
    };
    let letters: Option<String> = (0..KEY_ID_LEN).map(letter).collect();
    letters.map(|letters| format!("{KEY_ID_START}{letters}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "BVKABCDEFGHIJKLM2345";

    #[test]
    fn ids_are_numbers_and_back() {
        let number = key_number(ID).unwrap();
        assert_eq!(key_id_of(number).as_deref(), Some(ID));
        for wrong in ["", "BVK", "BVKABCDEFGHIJKLM234", "BVKABCDEFGHIJKLM2341", "XXXABCDEFGHIJKLM2345"] {
            assert_eq!(key_number(wrong), None, "{wrong}");
        }
        assert_eq!(key_id_of(FormationId([0xff; 16])), None);
    }

    #[test]
    fn a_key_is_read_as_it_was_written_and_does_not_print_itself() {
        let key = LinkKey::derive(&[1; 32], ID);
        assert_eq!(key.expose().parse::<LinkKey>().unwrap(), key);
        assert_ne!(LinkKey::derive(&[2; 32], ID), key);
        assert_eq!(format!("{key:?}"), format!("LinkKey({ID})"));
        for wrong in ["", ID, "link.", &format!("link.{ID}.short"), &key.expose()[5..]] {
            assert!(wrong.parse::<LinkKey>().unwrap_err().contains("key create --link"), "{wrong}");
        }
    }

    #[test]
    fn only_its_formation_opens_a_sealed_key() {
        let key = LinkKey::derive(&[1; 32], ID);
        let sealed = key.seal(&[9; 32]).unwrap();
        assert_eq!(LinkKey::open(&[9; 32], &sealed), Some(key.clone()));
        assert_ne!(key.seal(&[9; 32]).unwrap(), sealed);
        assert_eq!(LinkKey::open(&[8; 32], &sealed), None);
        assert_eq!(LinkKey::open(&[9; 32], &sealed.replace("BVKA", "BVKB")), None);
        for wrong in ["", ".", ID, &sealed[..30]] {
            assert_eq!(LinkKey::open(&[9; 32], wrong), None, "{wrong}");
        }
    }
}

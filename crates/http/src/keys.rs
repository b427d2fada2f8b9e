//! Access keys of the server, and those of links, of which `bivouac_link` has the derivation.
//!
//! A key is derived from the formation's secret and the key's id, so that nothing of it is kept anywhere: not by the
//! server, not in the formation. What is kept is what it allows, as an extended attribute of the root directory, which
//! every server of the formation sees at once, and which outlives kills as all names do.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bivouac_client::{Client, OpCtx};
use bivouac_types::{Errno, FsError, FsResult, Ino, KEY_ID_CHARS, KEY_ID_LEN, KEY_ID_START};
use parking_lot::Mutex;
use ring::hmac;
use serde::{Deserialize, Serialize};

/// Length of a formation's secret, in bytes.
pub const SECRET_LEN: usize = 32;
/// Prefix of the attribute of a key, followed by its id. Only a privileged user sees such attributes in a mount.
const ATTRIBUTE: &str = "trusted.bivouac.key.";
/// Context of the key derivation, which separates it from other uses of the secret.
const PURPOSE: &[u8] = b"bivouac key of HTTP 1\0";
/// Validity of a cached key.
pub const CACHED: Duration = Duration::from_millis(100);
/// Upper limit of cached keys.
const CACHED_MAX: usize = 1024;
/// `XATTR_CREATE` of the kernel.
const CREATE: u32 = 1;

/// An access key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Its id, which is no secret.
    #[serde(skip)]
    pub id: String,
    /// The file or directory that it is for, from the root of the formation on.
    pub path: String,
    /// True if it permits no changes.
    pub read_only: bool,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Expiry, in seconds since 1970.
    pub expires: Option<u64>,
    /// True if it is for links of other formations, and not for the server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub link: bool,
    /// The id of the key with which this one was made on the page; `None` for one that a command made. It ends with
    /// that key, and reaches nothing that the other does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
}

impl Key {
    /// Returns whether it has expired.
    #[must_use]
    pub fn has_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }
}

/// Derivation of keys.
pub struct Deriver(hmac::Key);

impl Deriver {
    /// Creates the derivation of the formation with this secret.
    #[must_use]
    pub fn new(secret: &[u8; SECRET_LEN]) -> Deriver {
        Deriver(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Returns the key with this id: the id, a dot, and what is derived from it.
    #[must_use]
    pub fn key(&self, id: &str) -> String {
        format!("{id}.{}", URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, &text_of(id))))
    }

    /// Returns the id of a presented key, if it belongs to this formation.
    #[must_use]
    pub fn id_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        let (id, secret) = key.split_once('.').filter(|(id, _)| is_id(id))?;
        let secret = URL_SAFE_NO_PAD.decode(secret).ok()?;
        // Takes as long for any wrong key, so that none can be guessed byte by byte.
        hmac::verify(&self.0, &text_of(id), &secret).ok().map(|()| id)
    }
}

fn text_of(id: &str) -> Vec<u8> {
    [PURPOSE, id.as_bytes()].concat()
}

/// Returns whether a text can be the id of a key.
fn is_id(text: &str) -> bool {
    let random = text.strip_prefix(KEY_ID_START);
    random.is_some_and(|random| {
        random.len() == KEY_ID_LEN && random.bytes().all(|byte| KEY_ID_CHARS.contains(&byte))
    })
}

/// Returns the seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn attribute(id: &str) -> Vec<u8> {
    format!("{ATTRIBUTE}{id}").into_bytes()
}

/// Makes a key. `key` has everything but the id.
///
/// # Errors
/// Errors of the formation; `EIO` without random numbers.
pub fn create(client: &Client, ctx: &OpCtx, key: &Key) -> FsResult<Key> {
    let mut random = [0; KEY_ID_LEN];
    getrandom::fill(&mut random)
        .map_err(|error| FsError::with(Errno::EIO, format!("draw random bytes: {error}")))?;
    // 32 divides 256, so that each letter is as likely.
    let letter = |byte: &u8| char::from(*KEY_ID_CHARS.get(usize::from(*byte % 32)).unwrap_or(&b'A'));
    let id = KEY_ID_START.chars().chain(random.iter().map(letter)).collect::<String>();
    assert!(is_id(&id), "a new key would not be found: {id}");
    let value = serde_json::to_vec(key).map_err(|error| FsError::with(Errno::EINVAL, error.to_string()))?;
    // A key of the same id would get the rights of this one.
    client.setxattr(ctx, Ino::ROOT, &attribute(&id), &value, CREATE)?;
    Ok(Key { id, ..key.clone() })
}

/// Returns the key with an id; `None` if there is none any more, or it has expired.
pub fn find(client: &Client, id: &str, now: u64) -> FsResult<Option<Key>> {
    if !is_id(id) {
        return Ok(None);
    }
    match client.getxattr(Ino::ROOT, &attribute(id)) {
        Ok(value) => Ok(parse(id, &value).filter(|key| !key.has_expired(now))),
        Err(error) if error.errno() == Errno::ENODATA => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keys that were looked up a moment ago.
#[derive(Default)]
pub struct CachedKeys(Mutex<HashMap<String, (Key, Instant)>>);

impl CachedKeys {
    /// Returns the key that [`find`] found [`CACHED`] ago at most, if it has not expired.
    pub fn cached(&self, id: &str, now: u64) -> Option<Key> {
        let known = self.0.lock();
        let (key, _) = known.get(id).filter(|(_, seen)| seen.elapsed() < CACHED)?;
        Some(key.clone()).filter(|key| !key.has_expired(now))
    }

    /// Like [`find`], with a [cache](CachedKeys::cached).
    pub fn find(&self, client: &Client, id: &str, now: u64) -> FsResult<Option<Key>> {
        // The time of the question: an answer that took long must not count as fresh for longer.
        let asked = Instant::now();
        let found = find(client, id, now)?;
        let mut known = self.0.lock();
        match &found {
            Some(key) => {
                if known.len() >= CACHED_MAX {
                    // Keys are cached for 100 ms only, so few of these would have been used again.
                    known.clear();
                }
                known.insert(id.to_owned(), (key.clone(), asked));
                assert!(known.len() <= CACHED_MAX, "{} keys are cached", known.len());
            }
            None => drop(known.remove(id)),
        }
        Ok(found)
    }
}

/// Parses a key; `None` if it is damaged.
fn parse(id: &str, value: &[u8]) -> Option<Key> {
    let key: Key = serde_json::from_slice(value).ok()?;
    Some(Key { id: id.to_owned(), ..key })
}

/// Returns all keys, also those that have expired, by id.
pub fn list(client: &Client) -> FsResult<Vec<Key>> {
    let names = client.listxattr(Ino::ROOT)?;
    let ids = names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    let mut keys = Vec::new();
    for id in ids.filter_map(|name| name.strip_prefix(ATTRIBUTE)) {
        match client.getxattr(Ino::ROOT, &attribute(id)) {
            Ok(value) => keys.extend(parse(id, &value)),
            // Revoked since the listing.
            Err(error) if error.errno() == Errno::ENODATA => {}
            Err(error) => return Err(error),
        }
    }
    keys.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(keys)
}

/// Ends a key, for every request that begins [`CACHED`] later. Keys that were made with it count no more, either.
///
/// # Errors
/// `ENODATA` if there is none with this id; otherwise what the formation says.
pub fn revoke(client: &Client, ctx: &OpCtx, id: &str) -> FsResult<()> {
    if !is_id(id) {
        return Err(Errno::ENODATA.into());
    }
    client.removexattr(ctx, Ino::ROOT, &attribute(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_of_its_formation_and_of_nobody_else() {
        let (ours, theirs) = (Deriver::new(&[1; 32]), Deriver::new(&[2; 32]));
        let id = "BVKABCDEFGHIJKLMNOPQ";
        let key = ours.key(id);
        assert_eq!(ours.id_of(&key), Some(id));
        assert_eq!(theirs.id_of(&key), None);
        let mut other = key.clone();
        other.pop();
        for wrong in [other.as_str(), "", ".", "BVK.", id, "x.y", &key.replace('.', ""), &format!("{key}x")] {
            assert_eq!(ours.id_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ids_name_no_other_attribute() {
        for wrong in [
            "",
            "BVK",
            "BVKABCDEFGHIJKLMNOP",
            "bvkabcdefghijklmnopq",
            "BVKABCDEFGHIJKLMNO/Q",
            "BVKABCDEFGHIJKLMNO\0Q",
        ] {
            assert!(!is_id(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_kept_says_nothing_of_the_key() {
        let key = Key {
            id: "x".into(),
            path: "/a".into(),
            read_only: true,
            created: 5,
            expires: Some(9),
            link: false,
            made_by: None,
        };
        let text = serde_json::to_string(&key).unwrap();
        assert_eq!(text, r#"{"path":"/a","read_only":true,"created":5,"expires":9}"#);
        assert_eq!(parse("x", text.as_bytes()), Some(key.clone()));
        assert_eq!((key.has_expired(8), key.has_expired(9)), (false, true));
        let shared = Key { made_by: Some("y".into()), ..key.clone() };
        assert_eq!(parse("x", &serde_json::to_vec(&shared).unwrap()), Some(shared));
        assert_eq!(parse("x", b"{"), None);
    }
}

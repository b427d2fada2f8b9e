//! A catalogue entry as text, for caches of other hosts. The input is untrusted.

use serde_json::{Value, json};

use crate::digest::Digest;
use crate::manifest::{DataSetFile, Manifest};
use crate::{metalink, ro_crate};

/// Upper limit of a cached entry, in bytes: about 10,000 files.
pub const KNOWN_MAX: usize = 8 << 20;
/// Validity of a cached entry, in seconds. An entry may be served that long after its removal.
pub const FRESH_S: u64 = 3600;

/// An entry of a catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedEntry {
    /// Its description.
    pub manifest: Manifest,
    /// Its files.
    pub items: Vec<DataSetFile>,
}

/// Identity of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The catalogue's name, see [`Catalogue::name`](crate::Catalogue::name).
    pub catalogue: &'a str,
    /// The entry's.
    pub id: &'a str,
}

impl CachedEntry {
    /// Encodes the entry; `None` if it is too large to be cached.
    #[must_use]
    pub fn encode(&self, catalogue: &str) -> Option<String> {
        let metalink = metalink::encode(&self.items);
        let described = ro_crate::encode(&self.manifest, &self.items, &metalink);
        let text = json!({"catalogue": catalogue, "described": described, "metalink": metalink}).to_string();
        (text.len() <= KNOWN_MAX).then_some(text)
    }

    /// Reads one. It counts if it is the one that was asked for, its files are those that it promises, and it has not
    /// expired.
    pub fn decode(text: &str, which: EntryRef<'_>, now: u64) -> Result<CachedEntry, String> {
        let (catalogue, known) = CachedEntry::decode_any(text, now)?;
        if catalogue != which.catalogue {
            return Err("is of another catalogue".to_owned());
        }
        // What a stranger keeps may be any entry: the name in it is compared, not the one it came under.
        if known.manifest.id == which.id { Ok(known) } else { Err("has the name of another".to_owned()) }
    }

    /// Decodes an entry and its catalogue without checking which entry it is.
    pub fn decode_any(text: &str, now: u64) -> Result<(String, CachedEntry), String> {
        if text.len() > KNOWN_MAX {
            return Err(format!("is larger than {} MiB", KNOWN_MAX >> 20));
        }
        let document: Value = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
        let part =
            |name: &str| document.get(name).and_then(Value::as_str).ok_or_else(|| format!("has no {name}"));
        let catalogue = part("catalogue")?.to_owned();
        let known = CachedEntry::of(part("described")?, part("metalink")?)?;
        if known.manifest.has_expired(now) { Err("has expired".to_owned()) } else { Ok((catalogue, known)) }
    }

    /// Creates it from the two files of an entry.
    pub(crate) fn of(described: &str, metalink: &str) -> Result<CachedEntry, String> {
        let (manifest, digest) = ro_crate::decode(described)?;
        if Digest::of(metalink.as_bytes()) != digest {
            return Err("its metalink is not the one that was published".to_owned());
        }
        Ok(CachedEntry { manifest, items: metalink::decode(metalink)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{sample, site};
    use proptest::prelude::*;

    const NOW: u64 = 1_700_000_000;

    fn known() -> CachedEntry {
        let (manifest, items) = sample(vec![site()]);
        let manifest = Manifest { created: NOW - 10, expires: Some(NOW + 10), ..manifest };
        CachedEntry { manifest, items }
    }

    const WHICH: EntryRef<'_> = EntryRef { catalogue: "/catalogue", id: "wing-0011" };

    #[test]
    fn what_is_told_is_what_was_asked_for() {
        let text = known().encode("/catalogue").unwrap();
        assert_eq!(CachedEntry::decode(&text, WHICH, NOW), Ok(known()));
        for (which, now, says) in [
            (EntryRef { catalogue: "/other", ..WHICH }, NOW, "another catalogue"),
            (EntryRef { id: "wing-0012", ..WHICH }, NOW, "name of another"),
            (WHICH, NOW + 10, "expired"),
        ] {
            let refusal = CachedEntry::decode(&text, which, now).unwrap_err();
            assert!(refusal.contains(says), "{refusal}");
        }
    }

    #[test]
    fn hostile_ones_are_refused() {
        let good: Value = serde_json::from_str(&known().encode("/catalogue").unwrap()).unwrap();
        let changed = |name: &str, from: &str, to: &str| {
            let mut bad = good.clone();
            let text = bad[name].as_str().unwrap();
            assert!(text.contains(from), "{from}");
            bad[name] = text.replace(from, to).into();
            CachedEntry::decode(&bad.to_string(), WHICH, NOW).unwrap_err()
        };
        // Other digests, other places, and other files than were published.
        assert!(changed("metalink", "file:///site/a/b", "file:///etc/passwd").contains("not the one"));
        assert!(
            changed("metalink", &Digest::of(b"abc").hex(), &Digest::of(b"x").hex()).contains("not the one")
        );
        assert!(changed("described", "\"wing-0011\"", "\"../x\"").contains("identifier"));
        assert!(changed("described", "\"sha256\"", "\"sha\"").contains("SHA-256"));
        for missing in ["catalogue", "described", "metalink"] {
            let mut bad = good.clone();
            bad.as_object_mut().unwrap().remove(missing);
            let refusal = CachedEntry::decode(&bad.to_string(), WHICH, NOW).unwrap_err();
            assert!(refusal.contains(missing), "{refusal}");
            bad[missing] = 5.into();
            assert!(CachedEntry::decode(&bad.to_string(), WHICH, NOW).is_err());
        }
        assert!(CachedEntry::decode(&" ".repeat(KNOWN_MAX + 1), WHICH, NOW).unwrap_err().contains("larger"));
        let many = known().items.into_iter().cycle().take(60_000);
        let items = many.enumerate().map(|(at, item)| DataSetFile { name: at.to_string(), ..item }).collect();
        assert_eq!(CachedEntry { items, ..known() }.encode("/catalogue"), None, "too much to be told on");
    }

    proptest! {
        #[test]
        fn bytes_of_strangers_never_panic(
            text in "\\PC{0,200}", described in "\\PC{0,100}", metalink in "\\PC{0,100}",
        ) {
            let _ = CachedEntry::decode(&text, WHICH, NOW);
            let wrapped = json!({"catalogue": "/catalogue", "described": described, "metalink": metalink});
            prop_assert!(CachedEntry::decode(&wrapped.to_string(), WHICH, NOW).is_err());
        }

        #[test]
        fn a_cut_or_changed_text_is_refused_or_the_same(at in 0usize..2000, byte in 0x20u8..0x7f) {
            let good = known().encode("/catalogue").unwrap();
            let mut bad = good.clone().into_bytes();
            let at = at % bad.len();
            bad[at] = byte;
            if let Ok(read) = CachedEntry::decode(std::str::from_utf8(&bad).unwrap(), WHICH, NOW) {
                // What no digest is of is what people read.
                prop_assert_eq!(read.items, known().items);
            }
            prop_assert!(CachedEntry::decode(good.get(..at).unwrap(), WHICH, NOW).is_err());
        }
    }
}

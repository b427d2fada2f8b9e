//! Tags in the temporary names of a copy.

use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::ffi::OsStrExt;

use bivouac_types::is_temporary_copy;

/// Separator between name and tag.
const MARK: &str = ".bivouac-";
/// Hexadecimal digits of a tag.
const DIGITS: usize = 12;

/// A random word, unique per copy, that marks its temporary names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tag(String);

impl Tag {
    /// Returns a random tag.
    pub(crate) fn random() -> Tag {
        // `RandomState` is seeded from the system's random numbers.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        let mut word = format!("{:016x}", hasher.finish());
        word.truncate(DIGITS);
        Tag(word)
    }

    /// Parses a recorded tag.
    pub(crate) fn parse(word: &str) -> Option<Tag> {
        is_word(word.as_bytes()).then(|| Tag(word.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the suffix of temporary names.
    pub(crate) fn suffix(&self) -> String {
        format!("{MARK}{}", self.0)
    }

    /// Returns whether a name is a temporary one of this copy.
    pub(crate) fn matches(&self, name: &OsStr) -> bool {
        name.as_bytes().starts_with(b".") && name.as_bytes().ends_with(self.suffix().as_bytes())
    }
}

/// Returns whether a name is a temporary one of any copy.
pub(crate) fn is_temporary(name: &OsStr) -> bool {
    is_temporary_copy(name.as_bytes())
}

fn is_word(word: &[u8]) -> bool {
    word.len() == DIGITS && word.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_differ_and_mark_only_their_own() {
        let (one, other) = (Tag::random(), Tag::random());
        assert_ne!(one, other);
        assert_eq!(Tag::parse(one.as_str()), Some(one.clone()));
        let name = format!(".file{}", one.suffix());
        assert!(one.matches(OsStr::new(&name)) && !other.matches(OsStr::new(&name)));
        assert!(is_temporary(OsStr::new(&name)) && !is_temporary(OsStr::new(&name[1..])));
        for name in ["", ".", ".x.bivouac-", ".x.bivouac-12345", "x.bivouac-0123456789ab", ".bashrc"] {
            assert!(!is_temporary(OsStr::new(name)), "{name}");
        }
        assert_eq!((Tag::parse("../../x"), Tag::parse("zzzzzzzzzzzz")), (None, None));
    }
}

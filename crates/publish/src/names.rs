//! Names of files in a data set: what they may be, wherever they come from.

use std::collections::HashSet;

/// Longest name of a file with its directories, in bytes.
const NAME_LEN_MAX: usize = 4095;
/// Longest part between two slashes, in bytes.
const PART_LEN_MAX: usize = 255;
/// Upper limit of path components.
const PARTS_MAX: usize = 64;
/// Marker in the name of an incomplete file.
pub(crate) const UNFINISHED: &str = ".bivouac-";

/// Checks that a name leads to one path below a directory.
pub fn check(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("is empty");
    }
    if name.len() > NAME_LEN_MAX {
        return Err("is too long");
    }
    if name.starts_with('/') {
        return Err("is absolute");
    }
    // What a terminal would take for a command has no business in a name; NUL ends one.
    if name.chars().any(char::is_control) {
        return Err("has a control character");
    }
    if name.split('/').count() > PARTS_MAX {
        return Err("has too many directories");
    }
    name.split('/').try_for_each(|part| match part {
        "" => Err("has an empty part"),
        "." | ".." => Err("has . or .. in it"),
        part if part.len() > PART_LEN_MAX => Err("has a part that is too long"),
        part if part.contains(UNFINISHED) => Err("has .bivouac- in it, which marks unfinished files"),
        _ => Ok(()),
    })
}

/// Returns the first name that is there twice, or is also the directory of another.
pub(crate) fn clash<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let mut seen = HashSet::new();
    if let Some(twice) = names.clone().find(|name| !seen.insert(*name)) {
        return Some(twice);
    }
    names.flat_map(parents).find(|dir| seen.contains(dir))
}

/// Returns the directories that a name is in.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('/').filter_map(|(at, _)| name.get(..at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for good in ["a", "a/b/ä ö", "...", "a/..b", "-rf", "C:\\x"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let (long, part) = ("a/".repeat(2048), "x".repeat(256));
        for bad in ["", "/a", "/", "..", "a/../b", "a/..", ".", "a//b", "a/", "a\0b", "a\nb", "\u{1b}[2J"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        for bad in [long.as_str(), part.as_str(), ".a.bivouac-0011", ".bivouac-uploads/x"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn no_two_files_are_at_one_place() {
        assert_eq!(clash(["a", "b/c", "b/d"].into_iter()), None);
        assert_eq!(clash(["a", "b", "a"].into_iter()), Some("a"));
        assert_eq!(clash(["a/b/c", "a/b"].into_iter()), Some("a/b"));
        assert_eq!(clash(["a", "a/b"].into_iter()), Some("a"));
    }
}

//! Patterns of names and paths.

use std::fmt;
use std::str::FromStr;

use crate::limits::NAME_LEN_MAX;

/// A pattern: `*` and `?` within a name, `**` across directories, `[a-z]`, `{a,b}`. Without a slash it is about
/// a file's name, wherever below the partition it is; with one, about its path from the partition's directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob(String);

impl Glob {
    /// Returns true if it matches paths, not only names.
    #[must_use]
    pub fn is_of_paths(&self) -> bool {
        self.0.contains('/')
    }

    /// Returns true if a file matches. `path` is relative to the partition's root, without a leading slash.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        // A leading slash says that it is a pattern of paths, which have none.
        let pattern = self.0.trim_start_matches('/');
        fast_glob::glob_match(pattern, if self.is_of_paths() { path } else { name })
    }

    /// Returns the pattern of the directory's name of `DIR/**`: all below a directory right below the partition's.
    #[must_use]
    pub fn top_directory(&self) -> Option<&str> {
        let name = self.0.trim_start_matches('/').strip_suffix("/**")?;
        let is_name = !name.is_empty() && !name.contains('/') && !name.contains("**");
        is_name.then_some(name)
    }

    /// Returns whether all below a directory right below the partition's is meant, if that has this name.
    #[must_use]
    pub fn matches_below(&self, name: &[u8]) -> bool {
        self.top_directory().is_some_and(|pattern| fast_glob::glob_match(pattern, name))
    }

    /// Returns the pattern.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Glob {
    type Err = String;

    fn from_str(text: &str) -> Result<Glob, String> {
        let bad = |why: &str| Err(format!("pattern '{text}' {why}"));
        match () {
            () if text.trim_start_matches('/').is_empty() => bad("says nothing: write for instance *.h5"),
            () if text.len() > NAME_LEN_MAX => bad("is longer than 255 bytes"),
            () if text.contains(char::is_control) => bad("has a control character"),
            () if !is_closed(text) => bad("has a bracket or brace that is not closed, or is closed twice"),
            () => Ok(Glob(text.to_owned())),
        }
    }
}

/// Returns true if every bracket and brace is closed, apart from those escaped by a backslash.
fn is_closed(text: &str) -> bool {
    let (mut depth, mut within_set, mut is_plain) = (0u32, false, false);
    for letter in text.chars() {
        match letter {
            _ if is_plain => is_plain = false,
            '\\' => is_plain = true,
            ']' => within_set = false,
            // Before the rest: in a set, braces and further brackets stand for themselves.
            _ if within_set => {}
            '[' => within_set = true,
            '{' => depth += 1,
            '}' if depth == 0 => return false,
            '}' => depth -= 1,
            _ => {}
        }
    }
    depth == 0 && !within_set && !is_plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, path: &str) -> bool {
        glob.parse::<Glob>().unwrap().matches(path.as_bytes())
    }

    #[test]
    fn names_match_wherever_they_are_and_paths_where_they_are() {
        assert!(matches("*.h5", "a.h5") && matches("*.h5", "run/7/a.h5"));
        assert!(!matches("*.h5", "a.h5.tmp") && !matches("run", "run/a"));
        assert!(matches("run/*.h5", "run/a.h5") && !matches("run/*.h5", "run/7/a.h5"));
        assert!(matches("run/**/*.h5", "run/7/8/a.h5") && matches("/a", "a") && !matches("/a", "b/a"));
        assert!(
            matches("plt_{cnt,crn}_[0-9]*", "plt_cnt_0001") && !matches("plt_{cnt,crn}_[0-9]*", "plt_x_1")
        );
    }

    #[test]
    fn patterns_that_mean_nothing_are_refused() {
        for bad in ["", "/", "a[b", "{a,b", "a}", "a\\", "a\nb"] {
            assert!(bad.parse::<Glob>().unwrap_err().contains("pattern"), "{bad:?}");
        }
        assert!("a\\[b".parse::<Glob>().is_ok());
    }
}

//! Selection of objects by patterns.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bivouac_types::Glob;

/// Include and exclude patterns of names or of paths below the source. An excluded directory excludes everything below
/// it. With include patterns, only matching objects are copied, and the directories above them.
#[derive(Clone, Debug, Default)]
pub struct PathFilter {
    include: Vec<Glob>,
    exclude: Vec<Glob>,
    /// Excluded paths below the source.
    without: Vec<PathBuf>,
}

impl PathFilter {
    /// Parses patterns; no include pattern means all.
    ///
    /// # Errors
    /// A sentence that names the pattern and what is wrong with it.
    pub fn new(include: &[String], exclude: &[String]) -> Result<PathFilter, String> {
        Ok(PathFilter { include: globs(include)?, exclude: globs(exclude)?, without: Vec::new() })
    }

    /// Also excludes these paths below the source, with everything below them.
    pub(crate) fn without(self, without: Vec<PathBuf>) -> PathFilter {
        PathFilter { without, ..self }
    }

    /// Returns whether an object, with everything below it, is excluded.
    pub(crate) fn excludes(&self, path: &Path) -> bool {
        let is_named = self.without.iter().any(|without| path.starts_with(without));
        // Never the source itself: nothing would be left to copy.
        !path.as_os_str().is_empty() && (is_named || any(&self.exclude, path))
    }

    /// Returns whether there are include patterns.
    pub(crate) fn is_partial(&self) -> bool {
        !self.include.is_empty()
    }

    /// Returns whether an object other than a directory is included, by its own path or that of a directory above it.
    pub(crate) fn includes(&self, path: &Path) -> bool {
        !self.is_partial()
            || path.as_os_str().is_empty()
            || path.ancestors().any(|part| any(&self.include, part))
    }
}

fn globs(texts: &[String]) -> Result<Vec<Glob>, String> {
    texts.iter().map(|text| text.parse()).collect()
}

fn any(globs: &[Glob], path: &Path) -> bool {
    globs.iter().any(|glob| glob.matches(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn select(include: &[&str], exclude: &[&str]) -> PathFilter {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        PathFilter::new(&owned(include), &owned(exclude)).unwrap()
    }

    #[test]
    fn names_match_anywhere_and_paths_from_the_source_on() {
        let select = select(&["*.h5", "logs/**"], &["*.tmp", "/run1/scratch"]);
        for (path, included) in [
            ("a.h5", true),
            ("deep/b.h5", true),
            ("logs/x/y", true),
            ("c.txt", false),
            ("a/logs/x", false),
            ("", true),
        ] {
            assert_eq!(select.includes(Path::new(path)), included, "{path}");
        }
        for (path, excluded) in
            [("x.tmp", true), ("d/x.tmp", true), ("run1/scratch", true), ("scratch", false), ("", false)]
        {
            assert_eq!(select.excludes(Path::new(path)), excluded, "{path}");
        }
        assert!(select.is_partial() && !PathFilter::default().is_partial());
    }

    #[test]
    fn what_is_in_an_included_directory_is_included() {
        let select = select(&["results"], &[]);
        assert!(select.includes(Path::new("a/results/deep/file")) && !select.includes(Path::new("a/other")));
    }

    #[test]
    fn names_need_not_be_text() {
        let select = select(&["*.dat"], &[]);
        assert!(select.includes(Path::new(OsStr::from_bytes(b"\xff\xfe.dat"))));
    }

    #[test]
    fn a_broken_pattern_is_named() {
        let refusal = PathFilter::new(&["a[".into()], &[]).unwrap_err();
        assert!(refusal.contains("'a['") && refusal.contains("not closed"), "{refusal}");
    }
}

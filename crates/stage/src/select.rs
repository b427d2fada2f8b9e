//! Which objects of a tree are wanted.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bivouac_types::Glob;

/// Patterns for what is copied, of names or of paths below the source. What is excluded takes with it what is in it. With
/// inclusions, only what matches one of them is copied, and the directories that lead to it.
#[derive(Clone, Debug, Default)]
pub struct Select {
    include: Vec<Glob>,
    exclude: Vec<Glob>,
}

impl Select {
    /// From the patterns' texts; no inclusions include everything.
    ///
    /// # Errors
    /// A sentence that names the pattern and what is wrong with it.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Select, String> {
        Ok(Select { include: globs(include)?, exclude: globs(exclude)? })
    }

    /// Whether an object, and what is in it, is left out.
    pub(crate) fn excludes(&self, path: &Path) -> bool {
        !path.as_os_str().is_empty() && any(&self.exclude, path)
    }

    /// Whether only some objects are wanted.
    pub(crate) fn is_partial(&self) -> bool {
        !self.include.is_empty()
    }

    /// Whether something that is no directory is wanted, by its own name or one of a directory above it.
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

    fn select(include: &[&str], exclude: &[&str]) -> Select {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Select::new(&owned(include), &owned(exclude)).unwrap()
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
        assert!(select.is_partial() && !Select::default().is_partial());
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
        let refusal = Select::new(&["a[".into()], &[]).unwrap_err();
        assert!(refusal.contains("'a['") && refusal.contains("not closed"), "{refusal}");
    }
}

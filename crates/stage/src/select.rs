//! Which objects of a tree are wanted.

use std::path::Path;

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

/// Patterns for what is copied. One without a slash is compared with an object's own name, one with a slash
/// with its path below the source; `**` goes over slashes. What is excluded takes with it what is in it. With
/// inclusions, only what matches one of them is copied, and the directories that lead to it.
#[derive(Clone, Debug, Default)]
pub struct Select {
    include: Option<Patterns>,
    exclude: Patterns,
}

#[derive(Clone, Debug, Default)]
struct Patterns {
    names: GlobSet,
    paths: GlobSet,
}

impl Select {
    /// From the patterns' texts; no inclusions include everything.
    ///
    /// # Errors
    /// A sentence that names the pattern and what is wrong with it.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Select, String> {
        let include = if include.is_empty() { None } else { Some(Patterns::new(include)?) };
        Ok(Select { include, exclude: Patterns::new(exclude)? })
    }

    /// Whether an object, and what is in it, is left out.
    pub(crate) fn excludes(&self, path: &Path) -> bool {
        !path.as_os_str().is_empty() && self.exclude.matches(path)
    }

    /// Whether only some objects are wanted.
    pub(crate) fn is_partial(&self) -> bool {
        self.include.is_some()
    }

    /// Whether something that is no directory is wanted, by its own name or one of a directory above it.
    pub(crate) fn includes(&self, path: &Path) -> bool {
        let Some(include) = &self.include else { return true };
        path.as_os_str().is_empty() || path.ancestors().any(|part| include.matches(part))
    }
}

impl Patterns {
    fn new(texts: &[String]) -> Result<Patterns, String> {
        let (paths, names): (Vec<_>, Vec<_>) = texts.iter().partition(|text| text.contains('/'));
        Ok(Patterns { names: set(&names)?, paths: set(&paths)? })
    }

    fn matches(&self, path: &Path) -> bool {
        let name = path.file_name().is_some_and(|name| self.names.is_match(Path::new(name)));
        name || self.paths.is_match(path)
    }
}

fn set(texts: &[&String]) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for text in texts {
        set.add(glob(text.trim_start_matches('/')).map_err(|error| wrong(text, &error))?);
    }
    set.build().map_err(|error| format!("the patterns are too large: {error}"))
}

fn glob(text: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(text).literal_separator(true).backslash_escape(true).build()
}

fn wrong(text: &str, error: &globset::Error) -> String {
    format!("'{text}' is not a pattern: {}; quote special characters with \\", error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

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
        assert!(refusal.contains("'a['") && refusal.contains("is not a pattern"), "{refusal}");
    }
}

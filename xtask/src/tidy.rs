//! The house rules, checked on the text of the repository. They are simple on purpose: what a rule cannot
//! see in a line of text, it does not forbid.

mod calls;
mod dead;
mod layers;
mod modules;
mod paths;
mod prose;
mod rows;
mod source;
mod words;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use source::Source;

/// Longest file, in lines.
const LINES_MAX: usize = 1000;

/// A broken rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    text: String,
}

impl Violation {
    fn new(path: &str, line: usize, rule: &'static str, text: impl Into<String>) -> Violation {
        Violation { path: path.to_owned(), line, rule, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.text)
    }
}

/// Checks the repository at `root`.
///
/// # Errors
/// A sentence, if the repository cannot be read.
pub fn check(root: &Path) -> Result<Vec<Violation>, String> {
    let files = texts(root).map_err(|error| format!("{}: {error}", root.display()))?;
    let mut violations = layers::check(&layers::metadata(root)?)?;
    let mut sources = Vec::new();
    for (path, text) in &files {
        words::check(path, text, &mut violations);
        prose::check(path, text, &mut violations);
        if path.ends_with(".rs") {
            length(path, text, &mut violations);
            sources.push(Source::new(path, text));
        }
    }
    sources.iter().for_each(|source| calls::check(source, &mut violations));
    dead::check(&sources, &mut violations);
    modules::check(&sources, &mut violations);
    rows::check(&files, &sources, &mut violations);
    violations.sort();
    Ok(violations)
}

fn length(path: &str, text: &str, violations: &mut Vec<Violation>) {
    let lines = text.lines().count();
    if lines > LINES_MAX {
        let text = format!("{lines} lines; split it, {LINES_MAX} is the limit");
        violations.push(Violation::new(path, lines, "file length", text));
    }
}

/// All text files of the repository: path relative to the root, and contents.
fn texts(root: &Path) -> io::Result<Vec<(String, String)>> {
    const LEFT_OUT: [&str; 5] = ["target", ".git", "corpus", "artifacts", "__pycache__"];
    let mut found = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            // `.git` is a file in a further worktree.
            if LEFT_OUT.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found.into_iter().filter_map(|path| text(root, path)).collect())
}

/// A file's contents; `None` for one that is not text or has just gone.
fn text(root: &Path, path: PathBuf) -> Option<(String, String)> {
    let relative = path.strip_prefix(root).ok()?.to_str()?.to_owned();
    Some((relative, fs::read_to_string(path).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_are_shown_where_an_editor_finds_them() {
        let violation = Violation::new("crates/a/src/lib.rs", 7, "rule", "text");
        assert_eq!(violation.to_string(), "crates/a/src/lib.rs:7: rule: text");
    }

    #[test]
    fn long_files_are_named() {
        let mut violations = Vec::new();
        length("a.rs", &"\n".repeat(LINES_MAX), &mut violations);
        assert_eq!(violations, []);
        length("a.rs", &"\n".repeat(LINES_MAX + 1), &mut violations);
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].line, 1001);
    }

    /// A repository of two crates with these contents, checked.
    fn checked(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let manifest = |name: &str, rest: &str| {
            format!("[package]\nname = \"bivouac-{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{rest}")
        };
        let types = manifest("types", "[dependencies]\nbivouac-wire = { path = \"../wire\" }\n");
        let wire = manifest("wire", "");
        let fixed = [
            ("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n"),
            ("crates/types/Cargo.toml", types.as_str()),
            ("crates/wire/Cargo.toml", wire.as_str()),
        ];
        for (path, text) in fixed.iter().chain(files) {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        check(dir.path()).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_repository_is_checked_as_a_whole_and_in_order() {
        let word = concat!("# TO", "DO\n");
        let found = checked(&[
            ("crates/types/src/lib.rs", "mod a;\n"),
            ("crates/types/src/a.rs", "fn f() {\n    dbg!(1);\n}\n"),
            ("crates/wire/src/lib.rs", "use std::fs;\n"),
            ("crates/wire/src/dead.rs", ""),
            ("docs/page.md", word),
            ("target/debug/page.md", word),
            (".git/page", word),
            (".ci/run", word),
        ]);
        let rules: Vec<_> =
            found.iter().map(|line| line.splitn(4, ':').take(3).collect::<String>()).collect();
        assert_eq!(
            rules,
            [
                ".ci/run1 word",
                "crates/types/Cargo.toml1 crate edge",
                "crates/types/src/a.rs2 unfinished",
                "crates/wire/src/dead.rs1 dead file",
                "crates/wire/src/lib.rs1 pure crate",
                "docs/page.md1 word",
            ]
        );
    }

    #[test]
    fn what_is_no_repository_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(dir.path()).unwrap_err().contains("cargo metadata"));
    }
}

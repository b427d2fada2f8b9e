//! Files that nothing compiles: every `.rs` file must be a root or be declared by a `mod`.

use std::collections::{HashMap, HashSet};

use super::Violation;
use super::source::Source;

/// Looks for files that no root reaches.
pub fn check(sources: &[Source], violations: &mut Vec<Violation>) {
    let files: HashMap<&str, &Source> = sources.iter().map(|source| (source.path.as_str(), source)).collect();
    let mut reached: HashSet<String> = HashSet::new();
    let mut next: Vec<String> =
        files.keys().filter(|path| is_root(path)).map(|path| (*path).to_owned()).collect();
    while let Some(path) = next.pop() {
        if let Some(source) = files.get(path.as_str())
            && reached.insert(path)
        {
            next.extend(declared(source));
        }
    }
    let dead = sources.iter().filter(|source| !reached.contains(&source.path));
    violations.extend(dead.map(|source| {
        Violation::new(&source.path, 1, "dead file", "no `mod` declares it; declare it or delete it")
    }));
}

/// Whether cargo compiles a file by itself.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(
        parts.as_slice(),
        [.., "src", "lib.rs" | "main.rs"]
            | [.., "build.rs"]
            | [.., "tests" | "benches" | "examples" | "bin" | "fuzz_targets", _]
            | [.., "tests" | "benches" | "examples" | "bin", _, "main.rs"]
    )
}

/// The files that a file's `mod` lines may mean.
fn declared(source: &Source) -> Vec<String> {
    let (dir, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let own = if stem == "mod" || is_root(&source.path) { dir.to_owned() } else { format!("{dir}/{stem}") };
    let mut files = Vec::new();
    for (line, raw) in source.code.lines().zip(source.text.lines()) {
        if let Some(path) = raw.trim().strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            files.push(without_dots(&format!("{dir}/{path}")));
        }
        if let Some(name) = declaration(line) {
            files.extend([format!("{own}/{name}.rs"), format!("{own}/{name}/mod.rs")]);
        }
    }
    files
}

/// A path without its `..`.
fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The name in `mod name;`, with any visibility and after any attribute.
pub fn declaration(line: &str) -> Option<&str> {
    let (before, name) = line.trim().strip_suffix(';')?.rsplit_once("mod ")?;
    let before = before.trim();
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_item = before.is_empty() || before.starts_with("pub") || before.ends_with(']');
    (is_name && is_item).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let mut violations = Vec::new();
        check(&sources, &mut violations);
        violations.into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn declared_files_live() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "mod b;\npub(crate) mod c;\n#[cfg(test)] mod e;\n#[path = \"odd.rs\"]\nmod f;",
            ),
            ("crates/a/src/b.rs", "pub mod d;"),
            ("crates/a/src/b/d.rs", ""),
            ("crates/a/src/c/mod.rs", "mod g;"),
            ("crates/a/src/c/g.rs", ""),
            ("crates/a/src/e.rs", ""),
            ("crates/a/src/odd.rs", ""),
            ("crates/a/src/main.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/tests/one.rs", "mod two;"),
            ("crates/a/tests/two/mod.rs", ""),
            ("crates/a/tests/three/main.rs", "mod four;"),
            ("crates/a/tests/three/four.rs", "#[path = \"../../../../shared/five.rs\"]\nmod five;"),
            ("shared/five.rs", ""),
            ("crates/a/build.rs", ""),
        ];
        assert_eq!(dead(&files), [""; 0]);
    }

    #[test]
    fn others_are_named() {
        let files = [
            ("crates/a/src/lib.rs", "// mod b;\nmod inline {}\nlet text = \"mod c;\";"),
            ("crates/a/src/b.rs", "mod d;"),
            ("crates/a/src/c.rs", ""),
            ("crates/a/src/b/d.rs", ""),
        ];
        assert_eq!(dead(&files), ["crates/a/src/b.rs", "crates/a/src/c.rs", "crates/a/src/b/d.rs"]);
    }
}

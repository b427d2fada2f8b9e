//! The paths that code names: `std::thread::sleep`, also where a `use` groups them.

/// All paths of a line or statement of blanked code, groups written out: `a::{b, c::d}` is `a::b` and
/// `a::c::d`. Single words are left out, unless they are members of a group.
pub fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find(|c: char| c.is_alphanumeric() || c == '_') {
        let (_, from) = rest.split_at(start);
        let len = tree(from, "", &mut found);
        rest = from.get(len.max(1)..).unwrap_or_default();
    }
    found.retain(|path| path.contains("::"));
    found
}

/// Reads one path or group at the start of `code` and returns its length.
fn tree(code: &str, prefix: &str, found: &mut Vec<String>) -> usize {
    let word = code.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(code.len());
    let (name, rest) = code.split_at(word);
    let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
    if let Some(inner) = rest.strip_prefix("::{") {
        return word + 3 + group(inner, &path, found);
    }
    if let Some(next) = rest.strip_prefix("::")
        && next.starts_with(|c: char| c.is_alphanumeric() || c == '_')
    {
        return word + 2 + tree(next, &path, found);
    }
    found.push(path);
    word
}

/// Reads the members of a group up to its closing brace and returns the length.
fn group(code: &str, prefix: &str, found: &mut Vec<String>) -> usize {
    let mut at = 0;
    while let Some(c) = code.get(at..).and_then(|rest| rest.chars().next()) {
        if c == '}' {
            return at + 1;
        }
        let is_word = c.is_alphanumeric() || c == '_';
        at += if is_word { tree(code.split_at(at).1, prefix, found).max(1) } else { c.len_utf8() };
    }
    at
}

/// Joins the lines of each `use` declaration, so that a group is in one piece. Pairs of line number and code.
pub fn statements<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
    let mut statements: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (number, line) in lines {
        let trimmed = line.trim_start();
        match statements.last_mut() {
            Some((_, statement)) if open => statement.push_str(trimmed),
            _ => statements.push((number, line.to_owned())),
        }
        let starts_use = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "];
        open = (open || starts_use.iter().any(|start| trimmed.starts_with(start))) && !line.contains(';');
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_written_out() {
        assert_eq!(
            paths("use std::{fs, time::{Duration, Instant}, io as sys};"),
            ["std::fs", "std::time::Duration", "std::time::Instant", "std::io", "std::as", "std::sys",]
        );
        assert_eq!(
            paths("let a = thread::sleep(x); b.c::<u8>(std::env::var(y)) + f(z)"),
            ["thread::sleep", "std::env::var",]
        );
        assert_eq!(paths("use std::fs::*; use ü::x;"), ["std::fs", "ü::x"]);
    }

    #[test]
    fn unfinished_groups_end_with_the_code() {
        assert_eq!(paths("use a::{b, c::{d"), ["a::b", "a::c::d"]);
        assert_eq!(paths("a::"), Vec::<String>::new());
    }

    #[test]
    fn declarations_over_several_lines_are_joined() {
        let code = ["use std::{", "    fs,", "    env,", "};", "fn a() {"];
        let joined = statements(code.into_iter().enumerate());
        assert_eq!(joined, [(0, "use std::{fs,env,};".to_owned()), (4, "fn a() {".to_owned())]);
    }
}

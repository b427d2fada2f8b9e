//! A Rust file as the rules see it: code without comments and literals, and which lines are tests.

/// One Rust file.
pub struct Source {
    /// Relative to the repository.
    pub path: String,
    /// The file as it is.
    pub text: String,
    /// The file with comments and the contents of literals blanked; same lines, same columns.
    pub code: String,
    /// Whether each line (from 0) is part of an item that only tests compile.
    tests: Vec<bool>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let code = blank(text);
        let all = is_test_file(path);
        let mut tests = vec![all; code.lines().count()];
        if !all {
            mark_tests(&code, &mut tests);
        }
        Source { path: path.to_owned(), text: text.to_owned(), code, tests }
    }

    /// The lines of code that are not tests, with their numbers from 1.
    pub fn production(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.code.lines().enumerate();
        lines.filter(|(number, _)| !self.is_test(number + 1)).map(|(number, line)| (number + 1, line))
    }

    /// Whether a line, counted from 1, is part of a test.
    pub fn is_test(&self, line: usize) -> bool {
        line.checked_sub(1).and_then(|index| self.tests.get(index)).copied().unwrap_or(false)
    }

    /// The crate's directory name: `client` for `crates/client/src/lib.rs`, `xtask` for its own files.
    pub fn krate(&self) -> &str {
        let path = self.path.strip_prefix("tests/").unwrap_or(&self.path);
        let path = path.strip_prefix("crates/").unwrap_or(path);
        path.split('/').next().unwrap_or(path)
    }
}

fn is_test_file(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.any(|part| matches!(part, "tests" | "benches" | "examples" | "fuzz" | "tests.rs" | "build.rs"))
}

/// Replaces comments and the contents of literals by spaces.
pub fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(c) = chars.get(at) {
        let end = token_end(&chars, at);
        let keep = end == at + 1;
        for skipped in chars.iter().take(end).skip(at) {
            out.push(if keep {
                *c
            } else if *skipped == '\n' {
                '\n'
            } else {
                ' '
            });
        }
        at = end;
    }
    out
}

/// The end of the comment or literal that starts at `at`; `at + 1` if none does.
fn token_end(chars: &[char], at: usize) -> usize {
    let is = |offset: usize, c: char| chars.get(at + offset) == Some(&c);
    match chars.get(at) {
        Some('/') if is(1, '/') => find(chars, at, |rest| rest.first() == Some(&'\n')),
        Some('/') if is(1, '*') => block_comment_end(chars, at),
        Some('"') => string_end(chars, at),
        Some('r') if !continues_word(chars, at) => raw_string_end(chars, at).unwrap_or(at + 1),
        Some('\'') if is(1, '\\') => find(chars, at + 3, |rest| rest.first() == Some(&'\'')) + 1,
        Some('\'') if is(2, '\'') => at + 3,
        _ => at + 1,
    }
    .min(chars.len())
}

fn find(chars: &[char], from: usize, wanted: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|at| chars.get(*at..).is_some_and(&wanted)).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut at) = (0usize, at);
    while at < chars.len() {
        match (chars.get(at), chars.get(at + 1)) {
            (Some('/'), Some('*')) => (depth, at) = (depth + 1, at + 2),
            (Some('*'), Some('/')) if depth == 1 => return at + 2,
            (Some('*'), Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut at = at + 1;
    loop {
        match chars.get(at) {
            Some('\\') => at += 2,
            Some('"') | None => return at + 1,
            Some(_) => at += 1,
        }
    }
}

/// The end of `r"…"`, `r#"…"#` and so on; `None` if something else starts here.
fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars.get(at + 1..)?.iter().take_while(|c| **c == '#').count();
    if chars.get(at + 1 + hashes) != Some(&'"') {
        return None;
    }
    let closes = |rest: &[char]| {
        rest.first() == Some(&'"')
            && rest.iter().skip(1).take(hashes).filter(|c| **c == '#').count() == hashes
    };
    Some(find(chars, at + 2 + hashes, closes) + 1 + hashes)
}

/// Whether the character before is part of the same word; the `b` and `c` of `br""` and `cr""` are not.
fn continues_word(chars: &[char], at: usize) -> bool {
    let word = |back: usize| {
        let before = at.checked_sub(back).and_then(|at| chars.get(at));
        before.is_some_and(|c| c.is_alphanumeric() || *c == '_')
    };
    let prefix = matches!(at.checked_sub(1).and_then(|at| chars.get(at)), Some('b' | 'c'));
    word(1) && (!prefix || word(2))
}

/// Marks the lines of items behind an attribute that says that only tests have them.
fn mark_tests(code: &str, tests: &mut [bool]) {
    const ATTRIBUTES: [&str; 4] = ["#[cfg(test)]", "#[cfg(all(test", "#[test]", "#![cfg(test)]"];
    let mut from = 0;
    while let Some(start) = ATTRIBUTES.iter().filter_map(|a| Some(from + code.get(from..)?.find(a)?)).min() {
        let inner = code.get(start..).is_some_and(|rest| rest.starts_with("#!"));
        let end = if inner { code.len() } else { item_end(code, start) };
        let first = code.get(..start).map_or(0, |before| before.matches('\n').count());
        let lines = code.get(start..end).map_or(0, |item| item.matches('\n').count()) + 1;
        tests.iter_mut().skip(first).take(lines).for_each(|line| *line = true);
        from = end.max(start + 1);
    }
}

/// The end of an item: its closing brace, or a semicolon outside of all brackets.
fn item_end(code: &str, start: usize) -> usize {
    let (mut depth, mut braces) = (0i32, 0i32);
    for (offset, c) in code.get(start..).unwrap_or_default().char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' => braces += 1,
            '}' => braces -= 1,
            _ => {}
        }
        if matches!(c, '}' | ';') && depth == 0 && braces <= 0 {
            return start + offset + 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_in_place() {
        for (text, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x // \" y", z)"#, "f(           , z)"),
            (r##"f(r#"a " b"#, z)"##, "f(          , z)"),
            (r#"br"x" b"y""#, "b     b   "),
            ("g('\"', '\\'', 'a')", "g(   ,     ,    )"),
            ("fn h<'a>(x: &'a str)", "fn h<'a>(x: &'a str)"),
            ("for r in var { }", "for r in var { }"),
            ("\"line\nline\" x", "     \n      x"),
            ("\"no end", "       "),
        ] {
            assert_eq!(blank(text), code, "{text}");
        }
    }

    fn production(text: &str) -> Vec<usize> {
        let source = Source::new("crates/a/src/b.rs", text);
        source.production().map(|(number, _)| number).collect()
    }

    #[test]
    fn test_items_are_known_by_their_attributes() {
        let file = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { {} }\n}\nfn c() {}\n";
        assert_eq!(production(file), [1, 6]);
        assert_eq!(production("#[cfg(test)]\nmod tests;\nfn c() {}\n"), [3]);
        assert_eq!(production("#[test]\nfn a(x: [u8; 3]) {\n}\nfn c() {}\n"), [4]);
        assert_eq!(production("#[cfg(any(test, unix))]\nfn a() {}\n"), [1, 2]);
        assert_eq!(production("//! header\n#![cfg(test)]\nfn a() {}\n"), [1]);
    }

    #[test]
    fn test_files_are_known_by_their_places() {
        for path in ["crates/a/tests/x.rs", "crates/a/benches/x.rs", "crates/a/src/b/tests.rs"] {
            assert_eq!(Source::new(path, "fn a() {}").production().count(), 0, "{path}");
        }
        assert_eq!(Source::new("crates/net/src/tests_of.rs", "fn a() {}").production().count(), 1);
        assert_eq!(Source::new("crates/net/src/a.rs", "").krate(), "net");
        let dev = Source::new("tests/crates/posix/src/a.rs", "fn a() {}");
        assert_eq!((dev.krate(), dev.production().count()), ("posix", 0));
        assert_eq!(Source::new("xtask/src/main.rs", "").krate(), "xtask");
    }
}

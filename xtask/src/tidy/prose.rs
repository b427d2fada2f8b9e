//! Prose that is read in editors and in changes line by line: no line of a page is longer than a reader's screen.

use super::Violation;

/// Longest line of prose, in characters.
const LINE_MAX: usize = 120;

/// Checks one page of Markdown. Tables and what is shown as it is typed are as long as they are, and so is a word that cannot
/// be broken, such as an address.
pub fn check(path: &str, text: &str, violations: &mut Vec<Violation>) {
    if !path.ends_with(".md") {
        return;
    }
    let mut is_shown_as_typed = false;
    for (index, line) in text.lines().enumerate() {
        let begin = line.trim_start();
        if begin.starts_with("```") {
            is_shown_as_typed = !is_shown_as_typed;
        }
        let length = line.chars().count();
        let can_be_broken = begin.split_whitespace().nth(1).is_some();
        if !is_shown_as_typed && !begin.starts_with('|') && length > LINE_MAX && can_be_broken {
            let text = format!("{length} characters; break the line, {LINE_MAX} is the limit");
            violations.push(Violation::new(path, index + 1, "prose", text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let mut violations = Vec::new();
        check(path, text, &mut violations);
        violations.iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn long_lines_of_prose_are_named() {
        let long = "word ".repeat(25);
        assert_eq!(lines("a.md", &format!("short\n{long}\n- {long}\n")), [2, 3]);
        assert!(lines("a.rs", &long).is_empty());
        assert!(lines("a.md", &"ä ".repeat(60)).is_empty(), "characters are counted, not bytes");
    }

    #[test]
    fn tables_and_what_is_typed_are_as_long_as_they_are() {
        let long = "word ".repeat(25);
        assert_eq!(lines("a.md", &format!("| {long} |\n```\n{long}\n```\n{long}\n")), [5]);
        assert!(lines("a.md", &"x".repeat(200)).is_empty());
    }
}

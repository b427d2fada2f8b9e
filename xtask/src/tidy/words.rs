//! Words that no committed file has: they point outside of the repository, or at work that is not done.

use super::Violation;

// Written in two halves, so that this file passes.
const WORDS: [(&str, &str); 6] = [
    (concat!("TO", "DO"), "do it, or describe the limit"),
    (concat!("FIX", "ME"), "fix it, or describe the limit"),
    (concat!("XX", "X"), "say what is the matter"),
    (concat!("for ", "now"), "say what holds, and under which condition"),
    (concat!("issue ", "#"), "say what the matter was; trackers go away"),
    (concat!("/work", "/"), "a path of one machine"),
];

/// Words of this project's own for what the field has a term for. Records of decisions, and the list of changes, say
/// them where they were said.
const GONE: [(&str, &str); 12] = [
    (concat!("dis", "believe"), "invalidate"),
    (concat!("belie", "vers"), "cache holders"),
    (concat!("abs", "ences"), "negative entries"),
    (concat!("open", "ers"), "sessions"),
    (concat!("unset", "tled"), "say what is not there yet"),
    (concat!("err", "and"), "task"),
    (concat!("ha", "ste"), "busy polling, priority"),
    (concat!("linger", "ing"), "delayed"),
    (concat!("he", "ir"), "successor"),
    (concat!("fel", "lows"), "peers"),
    (concat!("mus", "ter"), "inventory"),
    (concat!("surround", "ings"), "environment"),
];

/// The system's way to say an error's number; people read its name.
const NUMBER: &str = concat!("os ", "error");
/// Where that is turned into the name, and where it is looked for in what was said.
const NUMBERED: [&str; 2] = ["crates/types/src/named.rs", "crates/cli/tests/it/harness/mod.rs"];

/// Checks one text file.
pub fn check(path: &str, text: &str, violations: &mut Vec<Violation>) {
    let is_history = path.starts_with("docs/decisions/") || path == "CHANGELOG.md";
    let gone = if is_history { &[][..] } else { &GONE[..] };
    for (index, line) in text.lines().enumerate() {
        if has(line, NUMBER) && !NUMBERED.contains(&path) {
            let text = format!("`{NUMBER}`; errors are said by `types::named`, with the errno's name");
            violations.push(Violation::new(path, index + 1, "word", text));
        }
        for (word, remedy) in WORDS.iter().chain(gone) {
            if has(line, word) {
                let text = format!("`{word}`; {remedy}");
                violations.push(Violation::new(path, index + 1, "word", text));
            }
        }
    }
}

/// Whether a line has a word by itself; those in small letters also in other cases.
fn has(line: &str, word: &str) -> bool {
    let small = word.chars().all(|c| !c.is_uppercase());
    let line = if small { line.to_lowercase() } else { line.to_owned() };
    let bounded = |c: Option<char>, edge: Option<char>| {
        !(edge.is_some_and(char::is_alphanumeric) && c.is_some_and(char::is_alphanumeric))
    };
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = line.split_at(at);
        let after = after.strip_prefix(word).and_then(|rest| rest.chars().next());
        bounded(before.chars().next_back(), word.chars().next()) && bounded(after, word.chars().next_back())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let mut violations = Vec::new();
        check("a.md", text, &mut violations);
        violations.len()
    }

    #[test]
    fn words_are_found_by_themselves() {
        for (word, _) in WORDS.iter().chain(&GONE) {
            assert_eq!(count(&format!("a {word} b")), 1, "{word}");
            assert_eq!(count(&format!("// {word}: x")), 1, "{word}");
        }
        assert_eq!(count(&format!("{}r here", concat!("For ", "Now").to_uppercase())), 0);
        assert_eq!(count(&format!("{}.", concat!("For ", "now"))), 1);
        assert_eq!(count(concat!("see Issue ", "#12")), 1);
        assert_eq!(count(&format!("no such file ({NUMBER} 2)")), 1);
    }

    #[test]
    fn records_of_decisions_say_what_was_said() {
        let mut violations = Vec::new();
        check("docs/decisions/0001-a.md", GONE[0].0, &mut violations);
        assert_eq!(violations, []);
        check("docs/decisions/0001-a.md", WORDS[0].0, &mut violations);
        assert_eq!(violations.len(), 1);
    }

    #[test]
    fn parts_of_longer_words_are_not() {
        for text in ["mktemp x.XXXXXX", "for nowhere", "todo list", "issue 12", "the work/life"] {
            assert_eq!(count(text), 0, "{text}");
        }
    }
}

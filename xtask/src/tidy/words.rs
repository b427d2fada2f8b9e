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

/// Words of this project's own for what the field has a term for, also as parts of identifiers and with an ending
/// (`s`, `d`); those with capitals just as they are. The list of changes keeps them. What is ordinary English as well is not here: deadlines are `met`, hosts have meetings,
/// reports are believed.
const GONE: [(&str, &str); 17] = [
    (concat!("dis", "believe"), "invalidate"),
    (concat!("dis", "believing"), "invalidating"),
    (concat!("belie", "ver"), "cache holder"),
    (concat!("abs", "ences"), "negative entries"),
    (concat!("open", "ers"), "sessions"),
    (concat!("un", "heard"), "awaits reclaim; not reachable"),
    (concat!("unset", "tled"), "say what is not there yet"),
    (concat!("err", "and"), "task"),
    (concat!("ha", "ste"), "busy polling, priority"),
    (concat!("hast", "ily"), "by busy polling"),
    (concat!("linger", "ing"), "delayed"),
    (concat!("he", "ir"), "successor"),
    (concat!("fel", "lows"), "peers"),
    (concat!("mus", "ter"), "inventory"),
    (concat!("surround", "ings"), "environment"),
    (concat!("Act", "ing"), "say what is under way"),
    (concat!("NO", "BODY"), "say whom there is none of"),
];
/// Endings that a word may have.
const ENDINGS: [&str; 3] = ["", "s", "d"];

/// The system's way to say an error's number; people read its name.
const NUMBER: &str = concat!("os ", "error");
/// Where that is turned into the name, and where it is looked for in what was said.
const NUMBERED: [&str; 2] = ["crates/types/src/named.rs", "crates/cli/tests/it/harness/mod.rs"];

/// Checks one text file.
pub fn check(path: &str, text: &str, violations: &mut Vec<Violation>) {
    let is_history = path == "CHANGELOG.md";
    for (index, line) in text.lines().enumerate() {
        if has(line, NUMBER) && !NUMBERED.contains(&path) {
            let text = format!("`{NUMBER}`; errors are said by `types::named`, with the errno's name");
            violations.push(Violation::new(path, index + 1, "word", text));
        }
        let named = WORDS.iter().filter(|(word, _)| has(line, word));
        let gone = GONE.iter().filter(|(word, _)| !is_history && says(line, word));
        for (word, remedy) in named.chain(gone) {
            let text = format!("`{word}`; {remedy}");
            violations.push(Violation::new(path, index + 1, "word", text));
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

/// Whether a line says a word, in prose or within a name. It is asked of all lines of the repository: most of them do not
/// even have its letters.
fn says(line: &str, word: &str) -> bool {
    let is_small = word.chars().all(char::is_lowercase);
    let has_letters = if is_small { has_in_any_case(line, word) } else { line.contains(word) };
    let is_it = |part: &str| {
        let part = if is_small { part.to_lowercase() } else { part.to_owned() };
        part.strip_prefix(word).is_some_and(|ending| ENDINGS.contains(&ending))
    };
    has_letters
        && line.split(|c: char| !c.is_alphanumeric()).any(|name| is_it(name) || humps(name).any(is_it))
}

fn has_in_any_case(line: &str, word: &str) -> bool {
    line.as_bytes().windows(word.len()).any(|bytes| bytes.eq_ignore_ascii_case(word.as_bytes()))
}

/// The words of a name like `NamesOfThings`.
fn humps(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let next = rest.char_indices().zip(rest.chars().skip(1));
        let mut ends = next.filter(|((_, c), next)| c.is_lowercase() && next.is_uppercase());
        let end = ends.next().map_or(rest.len(), |((at, c), _)| at + c.len_utf8());
        let (word, behind) = rest.split_at(end);
        rest = behind;
        (!word.is_empty()).then_some(word)
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
    fn words_that_are_gone_are_found_in_names_and_with_endings() {
        let gone = |first: &str, rest: &str| format!("{first}{rest}");
        let capital = gone("He", "ir");
        for text in [
            format!("struct {capital};"),
            format!("let Lease{capital}s {{ .. }} = x;"),
            format!("fn count_of_{}s(x: u8)", gone("err", "and")),
            format!("It was {}d, then.", gone("dis", "believe")),
            format!("const {}: u8 = 1;", gone("NO", "BODY")),
            format!("struct {}(u8);", gone("Act", "ing")),
        ] {
            assert_eq!(count(&text), 1, "{text}");
        }
        for text in ["their share", "the heirloom", "nobody is acting", "an opener, an absence", "chaste"] {
            assert_eq!(count(text), 0, "{text}");
        }
        assert_eq!(humps("NamesOfThings").collect::<Vec<_>>(), ["Names", "Of", "Things"]);
        assert_eq!(humps("x1Y").count() + humps("").count() + humps("ABC").count(), 2);
    }

    #[test]
    fn the_list_of_changes_says_what_was_said() {
        let mut violations = Vec::new();
        check("CHANGELOG.md", GONE[0].0, &mut violations);
        assert_eq!(violations, []);
        check("CHANGELOG.md", WORDS[0].0, &mut violations);
        check("docs/decisions/0001-a.md", GONE[0].0, &mut violations);
        assert_eq!(violations.len(), 2);
    }

    #[test]
    fn parts_of_longer_words_are_not() {
        for text in ["mktemp x.XXXXXX", "for nowhere", "todo list", "issue 12", "the work/life"] {
            assert_eq!(count(text), 0, "{text}");
        }
    }
}

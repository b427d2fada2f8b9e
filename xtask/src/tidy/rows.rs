//! The rows of the contract, docs/semantics.md, and the tests that quote them (`S20`): every row is quoted by a test, or
//! stands here with the reason why none can show it; and what is quoted exists.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::source::Source;

const CONTRACT: &str = "docs/semantics.md";

/// Rows that no test quotes, and why.
const UNTESTED: [(&str, &str); 2] = [
    ("S16", "says what mappings on several nodes may not rely on"),
    ("S75", "takes a host that dies; daemons that die with all they have are the same to the others"),
];

/// Compares the rows with what tests quote.
pub fn check(files: &[(String, String)], sources: &[Source], violations: &mut Vec<Violation>) {
    let Some((_, contract)) = files.iter().find(|(path, _)| path == CONTRACT) else { return };
    let rows = rows(contract);
    let mut quotes = BTreeMap::new();
    for source in sources {
        quoted_by(source, &mut quotes);
    }
    for (path, text) in files.iter().filter(|(path, _)| is_list(path)) {
        text.lines().enumerate().for_each(|(index, line)| collect(path, index + 1, line, &mut quotes));
    }
    for (row, line) in &rows {
        let untested = UNTESTED.iter().any(|(name, _)| name == row);
        let text = match (quotes.contains_key(row), untested) {
            (false, false) => format!("no test quotes {row}; write `{row}` beside the test that shows it"),
            (true, true) => format!("{row} is quoted by a test; take it from the list of untested rows"),
            _ => continue,
        };
        violations.push(Violation::new(CONTRACT, *line, "row", text));
    }
    for (row, (path, line)) in quotes.iter().filter(|(row, _)| !rows.contains_key(*row)) {
        violations.push(Violation::new(path, *line, "row", format!("{CONTRACT} has no row {row}")));
    }
    let known: BTreeSet<&str> = rows.keys().map(String::as_str).collect();
    for (row, _) in UNTESTED.iter().filter(|(row, _)| !known.contains(row)) {
        violations.push(Violation::new(CONTRACT, 1, "row", format!("untested row {row} is not there")));
    }
}

/// Rows `| S1 | ...`, with their lines.
fn rows(contract: &str) -> BTreeMap<String, usize> {
    let lines = contract.lines().enumerate();
    let row = |line: &str| Some(line.strip_prefix("| ")?.split_once(" |")?.0.to_owned());
    lines.filter_map(|(index, line)| Some((row(line).filter(|name| is_row(name))?, index + 1))).collect()
}

fn is_row(word: &str) -> bool {
    let digits = word.strip_prefix('S').unwrap_or_default();
    (1..=3).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit())
}

/// Where a row was quoted first.
type Quotes = BTreeMap<String, (String, usize)>;

/// Tests; not what tests these rules.
fn quoted_by(source: &Source, quotes: &mut Quotes) {
    if source.krate() == "xtask" {
        return;
    }
    for (index, line) in source.text.lines().enumerate() {
        // The comment in front of a test is outside of what only tests compile.
        if source.is_test(index + 1) {
            collect(&source.path, index + 1, line, quotes);
        }
    }
}

/// Lists of excluded cases, and scripts that are tests.
fn is_list(path: &str) -> bool {
    !path.ends_with(".rs") && path.starts_with("tests/")
}

fn collect(path: &str, number: usize, line: &str, quotes: &mut Quotes) {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    for word in words.filter(|word| is_row(word)) {
        quotes.entry(word.to_owned()).or_insert_with(|| (path.to_owned(), number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(contract: &str, test: &str) -> Vec<String> {
        let files = [(CONTRACT.to_owned(), contract.to_owned())];
        let mut violations = Vec::new();
        check(&files, &[Source::new("crates/a/tests/a.rs", test)], &mut violations);
        let untested = |text: &str| UNTESTED.iter().any(|(row, _)| text.contains(row));
        violations.iter().map(ToString::to_string).filter(|text| !untested(text)).collect()
    }

    #[test]
    fn rows_without_a_test_are_named() {
        let contract = "| row | what |\n|---|---|\n| S1 | a |\n| S22 | b |\n| S100 | c |\n| G3 | d |\n";
        assert_eq!(checked(contract, "/// S1, S22 and S100.\nfn a() {}"), [""; 0]);
        for row in ["S22", "S100"] {
            let quotes = if row == "S22" { "// S1, S100" } else { "// S1, S22" };
            let missing = checked(contract, quotes);
            assert!(
                missing.len() == 1 && missing[0].contains(&format!("no test quotes {row}")),
                "{missing:?}"
            );
        }
    }

    #[test]
    fn quotes_of_rows_that_are_not_there_are_named() {
        let stale = checked("| S1 | a |\n", "// S1, S7; HAS8, S1234 and S1x are no rows");
        assert_eq!(stale, ["crates/a/tests/a.rs:1: row: docs/semantics.md has no row S7"]);
    }

    #[test]
    fn production_code_does_not_quote() {
        let files = [(CONTRACT.to_owned(), "| S1 | a |\n".to_owned())];
        let mut violations = Vec::new();
        check(&files, &[Source::new("crates/a/src/a.rs", "// S1\nfn a() {}")], &mut violations);
        assert!(violations.iter().any(|violation| violation.to_string().contains("no test quotes S1")));
    }
}

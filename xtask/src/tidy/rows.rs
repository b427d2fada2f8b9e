//! The rows of the contract, the pages of docs/semantics, and the tests that quote them (`S20`). Every row is on one
//! page and quoted by a test, or stands here with the reason why none can show it; what is quoted exists; a cell is a
//! phrase.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::source::Source;

const CONTRACT: &str = "docs/semantics/";
/// Longest cell of a table, in characters, without the targets of links.
const CELL_MAX: usize = 120;

/// Rows that no test quotes, and why.
const UNTESTED: [(&str, &str); 2] = [
    ("S16", "says what mappings on several nodes may not rely on"),
    ("S75", "takes a host that dies; daemons that die with all they have are the same to the others"),
];

/// Compares the rows with what tests quote.
pub fn check(files: &[(String, String)], sources: &[Source], violations: &mut Vec<Violation>) {
    let pages = || files.iter().filter(|(path, _)| path.starts_with(CONTRACT) && path.ends_with(".md"));
    if pages().next().is_none() {
        return;
    }
    let mut rows: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for (path, text) in pages() {
        for (index, length) in
            text.lines().map(longest_cell).enumerate().filter(|(_, length)| *length > CELL_MAX)
        {
            let text = format!(
                "a cell of {length} characters; say it in a phrase, and its conditions below the table"
            );
            violations.push(Violation::new(path, index + 1, "row", text));
        }
        for (row, line) in rows_of(text) {
            if let Some((first, at)) = rows.get(&row) {
                let text = format!("{row} is in {first}:{at} already");
                violations.push(Violation::new(path, line, "row", text));
                continue;
            }
            rows.insert(row, (path.as_str(), line));
        }
    }
    let mut quotes = BTreeMap::new();
    for source in sources {
        quoted_by(source, &mut quotes);
    }
    for (path, text) in files.iter().filter(|(path, _)| is_list(path)) {
        text.lines().enumerate().for_each(|(index, line)| collect(path, index + 1, line, &mut quotes));
    }
    for (row, (path, line)) in &rows {
        let untested = UNTESTED.iter().any(|(name, _)| name == row);
        let text = match (quotes.contains_key(row), untested) {
            (false, false) => format!("no test quotes {row}; write `{row}` beside the test that shows it"),
            (true, true) => format!("{row} is quoted by a test; take it from the list of untested rows"),
            _ => continue,
        };
        violations.push(Violation::new(path, *line, "row", text));
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
fn rows_of(page: &str) -> Vec<(String, usize)> {
    let lines = page.lines().enumerate();
    let row = |line: &str| Some(line.strip_prefix("| ")?.split_once(" |")?.0.to_owned());
    lines.filter_map(|(index, line)| Some((row(line).filter(|name| is_row(name))?, index + 1))).collect()
}

/// Characters of the longest cell of a line; 0 where it is not of a table.
fn longest_cell(line: &str) -> usize {
    let cells = line.starts_with('|').then(|| line.split('|'));
    cells.into_iter().flatten().map(shown_length).max().unwrap_or(0)
}

/// Characters that a reader sees: links without their targets.
fn shown_length(cell: &str) -> usize {
    let mut parts = cell.trim().split("](");
    let first = parts.next().map_or(0, |text| text.chars().count());
    let after = parts.map(|part| part.split_once(')').map_or(part, |(_, text)| text).chars().count());
    first + after.sum::<usize>()
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
        checked_pages(&[contract], test)
    }

    fn checked_pages(pages: &[&str], test: &str) -> Vec<String> {
        let page = |(index, text): (usize, &&str)| (format!("{CONTRACT}{index}.md"), (*text).to_owned());
        let files: Vec<_> = pages.iter().enumerate().map(page).collect();
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
        assert_eq!(stale, ["crates/a/tests/a.rs:1: row: docs/semantics/ has no row S7"]);
    }

    #[test]
    fn cells_are_phrases() {
        let long = "word ".repeat(25);
        let said = checked(&format!("prose {long}\n| S1 | {long} |\n"), "// S1");
        assert!(
            said.len() == 1 && said[0].starts_with("docs/semantics/0.md:2: row: a cell of 124"),
            "{said:?}"
        );
        let target = "a".repeat(120);
        assert_eq!(checked(&format!("| S1 | [why]({target}) [how]({target}) |\n"), "// S1"), [""; 0]);
    }

    #[test]
    fn rows_are_on_one_page() {
        let pages = ["| S1 | a |\n", "| S2 | b |\n\n| S1 | c |\n"];
        let twice = checked_pages(&pages, "// S1, S2");
        assert_eq!(twice, ["docs/semantics/1.md:3: row: S1 is in docs/semantics/0.md:1 already"]);
    }

    #[test]
    fn production_code_does_not_quote() {
        let files = [(format!("{CONTRACT}data.md"), "| S1 | a |\n".to_owned())];
        let mut violations = Vec::new();
        check(&files, &[Source::new("crates/a/src/a.rs", "// S1\nfn a() {}")], &mut violations);
        assert!(violations.iter().any(|violation| violation.to_string().contains("no test quotes S1")));
    }
}

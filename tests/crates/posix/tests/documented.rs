//! The page on conformance says what the table and the lists of excludes say, and these what the contract says.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;

use bivouac_posix::cases::{self, GROUPS};
use bivouac_posix::excludes::{Excludes, parse};

const PAGE: &str = include_str!("../../../../docs/conformance.md");
/// The pages of the contract.
const CONTRACT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/semantics");

fn contract() -> String {
    let pages = fs::read_dir(CONTRACT).unwrap().map(|page| page.unwrap().path());
    pages.map(|page| fs::read_to_string(page).unwrap()).collect::<Vec<_>>().join("\n")
}

fn own() -> Excludes {
    parse(include_str!("../excludes")).unwrap()
}

fn pjdfstest() -> Excludes {
    parse(include_str!("../../../pjdfstest/excludes")).unwrap()
}

fn table() -> String {
    let mut text = "| subject | cases | of these with several users |\n|---|---|---|\n".to_owned();
    let (mut all, mut all_root) = (0, 0);
    for group in &GROUPS {
        let cases = (group.cases)();
        let root = cases.iter().filter(|case| case.needs_root).count();
        text += &format!("| {} | {} | {root} |\n", group.subject, cases.len());
        (all, all_root) = (all + cases.len(), all_root + root);
    }
    text + &format!("| all | {all} | {all_root} |\n")
}

fn list() -> String {
    let mut text = "| case | row | reason |\n|---|---|---|\n".to_owned();
    for (suite, excludes) in [("", own()), ("pjdfstest ", pjdfstest())] {
        for (name, exclude) in excludes {
            text += &format!("| {suite}`{name}` | {} | {} |\n", exclude.row, exclude.reason);
        }
    }
    text
}

#[test]
fn the_page_has_the_numbers_of_the_table() {
    assert!(PAGE.contains(&table()), "docs/conformance.md should have:\n{}", table());
}

#[test]
fn the_page_has_every_exclude_with_its_reason() {
    assert!(PAGE.contains(&list()), "docs/conformance.md should have:\n{}", list());
}

#[test]
fn every_exclude_quotes_a_row_that_is_there_and_a_case_that_is_there() {
    let names: BTreeSet<String> = cases::all().into_iter().map(|case| case.name).collect();
    let contract = contract();
    for (name, exclude) in own().iter().chain(&pjdfstest()) {
        let rows = contract.lines().filter(|line| line.starts_with(&format!("| {} |", exclude.row)));
        assert_eq!(rows.count(), 1, "{name}: {}", exclude.row);
    }
    for name in own().keys() {
        assert!(names.contains(name), "{name}");
    }
}

#[test]
fn no_two_cases_have_one_name() {
    let cases = cases::all();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len());
}

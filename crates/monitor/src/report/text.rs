//! A report for a terminal of 80 columns.

use bivouac_record::{Bin, Timeline};
use bivouac_types::table::layout;
use bivouac_types::units::{format_duration, format_size};

use super::tables::{self, Table};
use super::{Comparison, JobReport};

const COLUMNS: usize = 80;
/// Files and processes that are shown.
const SHOWN: usize = 10;
/// Most letters of a name in a table.
const NAME_MAX: usize = 22;

pub fn text(report: &JobReport, comparison: Option<&Comparison>, has_utf8: bool) -> String {
    let mut text = tables::headline(report) + "\n";
    text.push_str(&wrap(&tables::summary(report), ""));
    tables::spared(report).iter().for_each(|spared| text.push_str(&wrap(spared, "")));
    report.notes.iter().for_each(|note| text.push_str(&wrap(&format!("note: {note}"), "")));
    text.push_str(&advice(report));
    if let Some(comparison) = comparison {
        text.push_str("\nCompared\n");
        comparison.lines().iter().for_each(|line| text.push_str(&wrap(line, "  ")));
    }
    if report.total.both().ops > 0 {
        text.push_str(&timeline(&report.timeline, has_utf8));
        tables::uses(report, SHOWN).into_iter().for_each(|table| text.push_str(&one(table)));
    }
    text.push_str(&one(tables::operations(report, SHOWN)));
    text
}

/// Returns the advised changes.
fn advice(report: &JobReport) -> String {
    let Some(first) = report.findings.first() else {
        return "\nNo rule found a setting to change.\n".into();
    };
    let mut text = format!("\nChange one setting\n{}", wrap(&first.setting, "  "));
    let gain = tables::gain(first.gain);
    for (what, line) in [
        ("why:  ", &first.evidence),
        ("gain: ", &format!("{gain} for the programs that use {}, expected", first.place)),
        ("if:   ", &first.condition),
        ("from: ", &first.source),
    ] {
        let wrapped = wrap(line, "        ");
        text.push_str(&format!("  {what}{}", wrapped.trim_start()));
    }
    let others = report.findings.len() - 1;
    if others > 0 {
        text.push_str(&format!("  {others} more of less gain: bivouac report --json -\n"));
    }
    text
}

fn one(table: Table) -> String {
    let Table { caption, head, right, mut rows } = table;
    if rows.is_empty() {
        return String::new();
    }
    rows.iter_mut().filter_map(|row| row.first_mut()).for_each(|name| *name = shortened(name));
    format!("\n{caption}\n{}", layout(Some(COLUMNS), head, right, &rows))
}

/// Returns the name shortened at its beginning: the end of a name says more.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= NAME_MAX {
        return name.to_owned();
    }
    format!("...{}", name.chars().skip(count - (NAME_MAX - 3)).collect::<String>())
}

/// Returns the times of reads and writes: a letter for each interval.
fn timeline(timeline: &Timeline, has_blocks: bool) -> String {
    let last = timeline.bins.iter().rposition(|bin| *bin != Bin::default()).map_or(0, |last| last + 1);
    let bins = timeline.bins.get(..last).unwrap_or_default();
    let width_ms = timeline.width_ms;
    let mut text = format!("\nTimeline, {} for each letter\n", format_duration(width_ms));
    for (what, of) in [("read   ", (|bin| bin.read) as fn(&Bin) -> u64), ("written", |bin| bin.written)] {
        let most = bins.iter().map(of).max().unwrap_or(0);
        let letters: String = bins.iter().map(|bin| letter(of(bin), most, has_blocks)).collect();
        let peak = format_size((most as f64 * 1000.0 / width_ms.max(1) as f64) as u64);
        text.push_str(&format!("{what} |{letters}| {peak}/s\n"));
    }
    text
}

fn letter(value: u64, most: u64, has_blocks: bool) -> char {
    assert!(value <= most, "{value} is more than the most, {most}");
    let levels: [char; 9] = match has_blocks {
        true => [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
        false => [' ', '_', '.', '-', '-', '=', '+', '*', '#'],
    };
    if value == 0 {
        return levels[0];
    }
    // What is there at all is seen.
    let level = (value as f64 / most.max(1) as f64 * 8.0).round() as usize;
    levels[level.clamp(1, 8)]
}

/// Returns the lines of at most 80 columns; the words of a longer one go on below.
fn wrap(line: &str, indent: &str) -> String {
    // Full, so that the first word begins a line with its indent.
    let (mut text, mut column) = (String::new(), COLUMNS);
    // Paths of partitions stand in advice as they are, and may have what moves a cursor.
    for word in line.split_whitespace().map(|word| tables::shown(word.as_ref())) {
        let wide = word.chars().count();
        if column + 1 + wide > COLUMNS {
            text.push_str(if text.is_empty() { "" } else { "\n" });
            text.push_str(indent);
            column = indent.len();
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(&word);
        column += wide;
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::html::tests::sample;
    use super::*;

    #[test]
    fn all_is_in_80_columns() {
        let report = sample();
        let text = text(&report, None, true);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        for said in
            ["Change one setting", "--contract session on /out", "3.1 to 6.4 times", "Timeline", "Sizes"]
        {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        let empty = super::text(&JobReport::default(), None, true);
        assert!(empty.contains("No file was read or written.") && empty.contains("No rule found"), "{empty}");
    }

    #[test]
    fn long_lines_go_on_below() {
        let wrapped = wrap(&"word ".repeat(40), "  ");
        assert!(wrapped.lines().count() == 3 && wrapped.lines().all(|line| line.starts_with("  word")));
        let name = shortened("/a/long/way/t/a/file/with/a/name");
        assert_eq!((name.as_str(), name.len()), (".../a/file/with/a/name", NAME_MAX));
    }

    #[test]
    fn what_was_little_is_seen() {
        let letters: String = [0, 1, 50, 100].map(|value| letter(value, 100, false)).iter().collect();
        assert_eq!(letters, " _-#");
    }
}

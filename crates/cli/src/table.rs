//! Columns for people.

use std::ops::Range;

use crate::output;

/// Lays out rows under a head: columns as wide as their widest entry, those named in `right` aligned right. What is wider than
/// the terminal goes on below, each part beginning with the first column.
pub fn layout(head: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    layout_within(output::columns(), head, right, rows)
}

/// As [`layout`], in so many columns.
pub fn layout_in(columns: usize, head: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    layout_within(Some(columns), head, right, rows)
}

fn layout_within(columns: Option<usize>, head: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let wide = |text: &str| text.chars().count();
    let width = |column: usize| {
        let entries = rows.iter().filter_map(|row| row.get(column)).map(|entry| wide(entry));
        entries.chain(head.get(column).map(|name| wide(name))).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[&str], part: &Range<usize>| {
        let shown = (0..widths.len().min(1)).chain(part.clone());
        let cells = shown.filter_map(|column| {
            let (entry, width) = (row.get(column)?, widths.get(column)?);
            let is_right = right.contains(&column);
            Some(if is_right { format!("{entry:>width$}") } else { format!("{entry:<width$}") })
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = String::new();
    for part in parts(&widths, columns.unwrap_or(usize::MAX)) {
        text.push_str(&line(head, &part));
        for row in rows {
            let row: Vec<&str> = row.iter().map(String::as_str).collect();
            // A row that has nothing here goes on in another part.
            if part.start <= 1
                || row.get(part.clone()).is_some_and(|cells| cells.iter().any(|c| !c.is_empty()))
            {
                text.push_str(&line(&row, &part));
            }
        }
    }
    text
}

/// Which columns besides the first are shown beside it, part after part: as many as there is room for, and at least one.
fn parts(widths: &[usize], columns: usize) -> Vec<Range<usize>> {
    let (mut parts, mut start) = (Vec::new(), 1);
    let first = widths.first().copied().unwrap_or(0);
    let mut used = first;
    for (column, width) in widths.iter().enumerate().skip(1) {
        if column > start && used + 2 + width > columns {
            parts.push(start..column);
            (start, used) = (column, first);
        }
        used += 2 + width;
    }
    parts.push(start..widths.len().max(start));
    parts
}

/// Milliseconds as people say them: `1.5 s`, `3 min`, `2 h 5 min`, `4 d 1 h`.
pub fn duration(ms: u64) -> String {
    let secs = ms / 1000;
    match secs {
        0..60 => format!("{:.1} s", ms as f64 / 1000.0),
        60..3600 => format!("{} min", secs / 60),
        3600..86_400 => format!("{} h {} min", secs / 3600, secs % 3600 / 60),
        _ => format!("{} d {} h", secs / 86_400, secs % 86_400 / 3600),
    }
}

/// Microseconds in few letters: `8 µs`, `1.0 ms`, `33 s`.
pub fn short_time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..10_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ => format!("{} s", us / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows =
            [vec!["0".into(), "ready".into(), "1 GiB".into()], vec!["10".into(), "gone".into(), "-".into()]];
        let lines = layout(&["NODE", "STATE", "SIZE"], &[0, 2], &rows);
        assert_eq!(
            lines.lines().collect::<Vec<_>>(),
            ["NODE  STATE   SIZE", "   0  ready  1 GiB", "  10  gone       -"]
        );
    }

    #[test]
    fn what_is_too_wide_goes_on_below() {
        let rows = [["0", "ready", "/a/b", "1 GiB"], ["", "", "/c", "2 GiB"]]
            .map(|row| row.map(String::from).to_vec());
        let within = |columns| layout_within(columns, &["NODE", "STATE", "PATH", "SIZE"], &[0, 3], &rows);
        assert_eq!(within(Some(24)).lines().count(), 3);
        assert_eq!(within(Some(24)), within(None));
        let narrow = within(Some(17));
        let lines: Vec<&str> = narrow.lines().collect();
        assert_eq!(
            lines,
            [
                "NODE  STATE  PATH",
                "   0  ready  /a/b",
                "             /c",
                "NODE   SIZE",
                "   0  1 GiB",
                "      2 GiB"
            ]
        );
        assert_eq!(within(Some(1)).lines().count(), 9, "each column for itself");
    }

    #[test]
    fn durations_are_said() {
        for (ms, text) in
            [(1500, "1.5 s"), (61_000, "1 min"), (7_500_000, "2 h 5 min"), (349_200_000, "4 d 1 h")]
        {
            assert_eq!(duration(ms), text);
        }
    }
}

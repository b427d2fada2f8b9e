//! Tables of text.

use std::ops::Range;

/// Lays out rows under a head: columns as wide as their widest entry, those named in `right` aligned right. A table
/// that is wider than so many columns is continued below, each part beginning with the first column.
#[must_use]
pub fn layout(columns: Option<usize>, head: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    assert!(
        right.iter().all(|column| *column < head.len()),
        "a column is aligned that the table does not have"
    );
    assert!(rows.iter().all(|row| row.len() <= head.len()), "a row has more entries than the table columns");
    // As `format!` counts when it pads, so that columns line up whatever letters need.
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

/// Returns which columns besides the first are shown beside it, part after part: as many as fit, and at least one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows =
            [vec!["0".into(), "ready".into(), "1 GiB".into()], vec!["10".into(), "gone".into(), "-".into()]];
        let lines = layout(None, &["NODE", "STATE", "SIZE"], &[0, 2], &rows);
        assert_eq!(
            lines.lines().collect::<Vec<_>>(),
            ["NODE  STATE   SIZE", "   0  ready  1 GiB", "  10  gone       -"]
        );
    }

    #[test]
    fn what_is_too_wide_goes_on_below() {
        let rows = [["0", "ready", "/a/b", "1 GiB"], ["", "", "/c", "2 GiB"]]
            .map(|row| row.map(String::from).to_vec());
        let within = |columns| layout(columns, &["NODE", "STATE", "PATH", "SIZE"], &[0, 3], &rows);
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
}

//! Columns for people.

/// Lays out rows under a head: columns as wide as their widest entry, those named in `right` aligned right.
pub fn layout(head: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let wide = |text: &str| text.chars().count();
    let width = |column: usize| {
        let entries = rows.iter().filter_map(|row| row.get(column)).map(|entry| wide(entry));
        entries.chain(head.get(column).map(|name| wide(name))).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: Vec<&str>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (entry, width))| {
            if right.contains(&column) { format!("{entry:>width$}") } else { format!("{entry:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(head.to_vec());
    rows.iter().for_each(|row| text.push_str(&line(row.iter().map(String::as_str).collect())));
    text
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
    fn durations_are_said() {
        for (ms, text) in
            [(1500, "1.5 s"), (61_000, "1 min"), (7_500_000, "2 h 5 min"), (349_200_000, "4 d 1 h")]
        {
            assert_eq!(duration(ms), text);
        }
    }
}

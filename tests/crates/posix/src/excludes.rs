//! Cases that a file system does not pass, each with the reason: lines of `NAME ROW REASON`.

use std::collections::BTreeMap;

/// Why a case is excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exclude {
    /// The row of the contract that says so.
    pub row: String,
    /// In a few words.
    pub reason: String,
}

/// Excluded cases by name.
pub type Excludes = BTreeMap<String, Exclude>;

/// Reads a list; empty lines and those with `#` in front do not count.
///
/// # Errors
/// The line that is not of the form.
pub fn parse(text: &str) -> Result<Excludes, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| parse_line(line).ok_or_else(|| format!("not NAME ROW REASON: {line}"))).collect()
}

fn parse_line(line: &str) -> Option<(String, Exclude)> {
    let (name, rest) = line.split_once(char::is_whitespace)?;
    let (row, reason) = rest.trim_start().split_once(char::is_whitespace)?;
    let is_row = row.starts_with(['S', 'G']) && row[1..].parse::<u32>().is_ok();
    let exclude = Exclude { row: row.into(), reason: reason.trim().into() };
    (is_row && !exclude.reason.is_empty()).then(|| (name.into(), exclude))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_or_refused() {
        let read = parse("# why\n\nread/atime  S31 reading changes no time\n").unwrap();
        let exclude = Exclude { row: "S31".into(), reason: "reading changes no time".into() };
        assert_eq!(read, [("read/atime".into(), exclude)].into());
        for line in ["read/atime", "read/atime S31", "read/atime because", "read/atime Sx so"] {
            assert!(parse(line).unwrap_err().contains(line), "{line}");
        }
    }
}

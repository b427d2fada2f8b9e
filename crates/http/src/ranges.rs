//! Ranges of bytes, as RFC 9110 has them.

/// Upper limit of ranges; a request with more gets the whole file.
const RANGES_MAX: usize = 32;

/// Selected ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectedRanges {
    /// The whole file.
    All,
    /// These ranges, in order: first byte, and the one behind the last.
    Parts(Vec<(u64, u64)>),
    /// No byte of the requested ranges exists.
    Nothing,
}

/// Parses a `Range` header for a file of this size. A malformed one is ignored, as RFC 9110 requires; so is one with
/// many or overlapping ranges, which would only cost work.
#[must_use]
pub fn wanted(header: &str, size: u64) -> SelectedRanges {
    let Some(specs) = header.trim().strip_prefix("bytes=") else { return SelectedRanges::All };
    let mut parts = Vec::new();
    for (count, spec) in specs.split(',').map(str::trim).filter(|spec| !spec.is_empty()).enumerate() {
        if count >= RANGES_MAX {
            return SelectedRanges::All;
        }
        match part(spec, size) {
            Some(Some(part)) => parts.push(part),
            Some(None) => {}
            None => return SelectedRanges::All,
        }
    }
    if specs.trim().is_empty() {
        return SelectedRanges::All;
    }
    if parts.is_empty() {
        return SelectedRanges::Nothing;
    }
    assert!(parts.iter().all(|(start, end)| start < end && *end <= size), "{parts:?} of {size} bytes");
    let total = parts.iter().fold(0u64, |sum, (start, end)| sum.saturating_add(end - start));
    if parts.len() > 1 && total > size { SelectedRanges::All } else { SelectedRanges::Parts(parts) }
}

/// Parses one range: `None` if it is malformed, `Some(None)` if it is empty.
fn part(spec: &str, size: u64) -> Option<Option<(u64, u64)>> {
    let (first, last) = spec.split_once('-')?;
    if first.is_empty() {
        let len = number(last)?;
        return Some((len > 0 && size > 0).then(|| (size.saturating_sub(len), size)));
    }
    let first = number(first)?;
    let end = if last.is_empty() { size } else { number(last)?.saturating_add(1) };
    if !last.is_empty() && end <= first {
        return None;
    }
    Some((first < size).then(|| (first, end.min(size))))
}

/// Digits only: `parse` also takes a sign.
fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // More digits than that are behind the end of any file.
    Some(text.parse().unwrap_or(u64::MAX))
}

/// Range of an upload in parts: first byte, the one behind the last, and the total size, as far as they are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The bytes; `None` if only the size is asked about.
    pub part: Option<(u64, u64)>,
    /// Size of the whole.
    pub total: u64,
}

/// Parses the `Content-Range` of an upload; `None` if it is invalid.
#[must_use]
pub fn content_range(header: &str) -> Option<ContentRange> {
    let (part, total) = header.trim().strip_prefix("bytes ")?.trim().split_once('/')?;
    let total = number(total)?;
    if part == "*" {
        return Some(ContentRange { part: None, total });
    }
    let (first, last) = part.split_once('-')?;
    let (first, end) = (number(first)?, number(last)?.checked_add(1)?);
    (first < end && end <= total).then_some(ContentRange { part: Some((first, end)), total })
}

#[cfg(test)]
mod tests {
    use super::*;
    use SelectedRanges::{All, Nothing, Parts};

    #[test]
    fn ranges_are_what_the_rfc_says() {
        for (header, size, expected) in [
            ("bytes=0-0", 10, Parts(vec![(0, 1)])),
            ("bytes=2-", 10, Parts(vec![(2, 10)])),
            ("bytes=-3", 10, Parts(vec![(7, 10)])),
            ("bytes=-30", 10, Parts(vec![(0, 10)])),
            ("bytes=5-99", 10, Parts(vec![(5, 10)])),
            ("bytes=0-1, 4-5,-1", 10, Parts(vec![(0, 2), (4, 6), (9, 10)])),
            ("bytes=10-", 10, Nothing),
            ("bytes=10-,20-30", 10, Nothing),
            ("bytes=10-,1-1", 10, Parts(vec![(1, 2)])),
            ("bytes=-0", 10, Nothing),
            ("bytes=0-", 0, Nothing),
            ("bytes=99999999999999999999-", 10, Nothing),
            ("bytes=0-99999999999999999999", 10, Parts(vec![(0, 10)])),
            ("bytes=", 10, All),
            ("bytes=a-b", 10, All),
            ("bytes=+1-2", 10, All),
            ("bytes=5-2", 10, All),
            ("bytes=-", 10, All),
            ("lines=1-2", 10, All),
            ("bytes=0-9,0-9", 10, All),
        ] {
            assert_eq!(wanted(header, size), expected, "{header} of {size}");
        }
        let many = (0..=RANGES_MAX).map(|at| format!("{at}-{at}")).collect::<Vec<_>>().join(",");
        assert_eq!(wanted(&format!("bytes={many}"), 1 << 20), All);
    }

    #[test]
    fn parts_of_uploads_are_understood() {
        let of = |part, total| Some(ContentRange { part, total });
        assert_eq!(content_range("bytes 0-4/10"), of(Some((0, 5)), 10));
        assert_eq!(content_range("bytes */10"), of(None, 10));
        for wrong in [
            "bytes 4-0/10",
            "bytes 0-10/10",
            "bytes 0-4/*",
            "0-4/10",
            "bytes 0-18446744073709551615/7",
            "bytes",
        ] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }
}

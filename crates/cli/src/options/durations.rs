//! Durations as people write them.

use bivouac_types::units::parse_duration_ms;

/// A time, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration(pub u64);

impl std::fmt::Display for Duration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Duration(ms) = self;
        if ms.is_multiple_of(1000) { write!(f, "{}s", ms / 1000) } else { write!(f, "{ms}ms") }
    }
}

/// Shortest time between two looks at a formation.
const INTERVAL_MIN_MS: u64 = 50;

/// A time between two looks: one that leaves the nodes time for others.
pub fn interval(text: &str) -> Result<Duration, String> {
    let short = || format!("'{text}' is too short; write {INTERVAL_MIN_MS}ms or more");
    duration(text).and_then(|all| if all.0 < INTERVAL_MIN_MS { Err(short()) } else { Ok(all) })
}

/// Shortest bounded time, and shortest time for a start: what is shorter ends before the first answer.
const WAIT_MIN_MS: u64 = 100;

/// A time that something is waited for.
pub fn wait(text: &str) -> Result<Duration, String> {
    let short =
        || format!("'{text}' is too short for any answer; write {WAIT_MIN_MS}ms or more, for instance 5s");
    duration(text).and_then(|all| if all.0 < WAIT_MIN_MS { Err(short()) } else { Ok(all) })
}

/// Shortest time between two rounds of copies.
const ROUND_MIN_MS: u64 = 1000;

/// Returns a time between two rounds of copies.
pub fn round(text: &str) -> Result<Duration, String> {
    let short = || format!("'{text}' is too short; write {ROUND_MIN_MS}ms or more, for instance 10m");
    duration(text).and_then(|all| if all.0 < ROUND_MIN_MS { Err(short()) } else { Ok(all) })
}

/// Returns a duration with its unit: a bare number is seconds to one reader and, as in Slurm, minutes to another. Only
/// nothing is the same in every unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let all = parse_duration_ms(text).map(Duration)?;
    let bare = text.trim();
    if all.0 > 0 && bare.bytes().all(|letter| letter.is_ascii_digit()) {
        return Err(format!(
            "'{bare}' has no unit; write {bare}s for seconds, {bare}m for minutes or {bare}h for hours"
        ));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_not_too_close() {
        assert_eq!(round("10m"), Ok(Duration(600_000)));
        for short in ["0", "0s", "999ms"] {
            assert!(round(short).unwrap_err().contains("is too short; write 1000ms"), "{short}");
        }
    }

    #[test]
    fn a_wait_is_long_enough_for_an_answer() {
        assert_eq!((wait("100ms"), wait("5s")), (Ok(Duration(100)), Ok(Duration(5000))));
        for short in ["0", "0s", "99ms"] {
            assert!(wait(short).unwrap_err().contains("is too short for any answer; write 100ms"), "{short}");
        }
    }

    #[test]
    fn a_duration_has_a_unit() {
        assert_eq!(duration("5s"), Ok(Duration(5000)));
        assert_eq!((duration("0"), duration("0s")), (Ok(Duration(0)), Ok(Duration(0))));
        for bare in ["5", " 30 ", "1000"] {
            let refusal = duration(bare).unwrap_err();
            assert!(
                refusal.contains("has no unit; write ") && refusal.contains("m for minutes"),
                "{refusal}"
            );
        }
    }
}

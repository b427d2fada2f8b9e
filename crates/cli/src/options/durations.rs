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

pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration_ms(text).map(Duration)
}

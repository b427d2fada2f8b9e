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

pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration_ms(text).map(Duration)
}

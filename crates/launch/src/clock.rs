//! Points in time as the state file has them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the milliseconds since 1970.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the milliseconds until a moment; at most a thousand years, which every clock here can add.
#[must_use]
pub fn left_ms(ends_unix_ms: u64) -> u64 {
    const LONGEST: u64 = 1000 * 366 * 24 * 3600 * 1000;
    ends_unix_ms.saturating_sub(unix_ms()).min(LONGEST)
}

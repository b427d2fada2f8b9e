//! The clock that times of files come from.

use std::time::{SystemTime, UNIX_EPOCH};

use bivouac_types::Timestamp;

/// A source of the time.
pub trait Clock: Send + Sync {
    /// Returns the time now.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // A clock before 1970 reads as 1970: file times are then useless, but nothing breaks.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
    }
}

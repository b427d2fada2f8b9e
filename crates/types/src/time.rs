//! Points in time, as file systems keep them.

/// Seconds and nanoseconds since 1970-01-01 UTC; negative seconds are before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since the epoch.
    pub secs: i64,
    /// Nanoseconds within the second, below 10^9.
    pub nanos: u32,
}

impl Timestamp {
    /// Returns the later of two.
    #[must_use]
    pub fn latest(self, other: Timestamp) -> Timestamp {
        self.max(other)
    }

    /// Returns the milliseconds since the epoch, saturating.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        self.secs.saturating_mul(1000).saturating_add(i64::from(self.nanos / 1_000_000))
    }
}

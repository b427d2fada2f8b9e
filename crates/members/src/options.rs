//! Time limits of failure detection.

/// Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time between two probes; 0 for none.
    pub period_ms: u64,
    /// Time a node may take to answer before others are asked to probe it.
    pub direct_ms: u64,
    /// Time a suspected node has to say that it lives.
    pub suspect_ms: u64,
    /// Time nodes that were never heard of may take to start, counted from the own start.
    pub start_ms: u64,
    /// Number of others that are asked.
    pub helpers: usize,
    /// Number of others that are told at once of a death or a return.
    pub fanout: usize,
    /// Most news in one message.
    pub news_max: usize,
    /// Every so many periods a node is probed that is taken for dead.
    pub dead_every: u64,
}

impl Options {
    /// Options without failure detection; reports of others are still kept.
    #[must_use]
    pub fn never() -> Options {
        Options { period_ms: 0, ..Options::dead_after(0) }
    }

    /// Options with which a dead node is usually detected after so long: one period until a node probes it, one for the
    /// probe, two of suspicion; the fifth is for unlucky draws.
    #[must_use]
    pub fn dead_after(ms: u64) -> Options {
        let period_ms = (ms / 5).max(1);
        Options {
            period_ms,
            direct_ms: (period_ms / 2).max(1),
            suspect_ms: 2 * period_ms,
            start_ms: 3 * ms,
            helpers: 3,
            fanout: 3,
            news_max: 16,
            dead_every: 2,
        }
    }
}

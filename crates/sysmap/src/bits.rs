//! A bandwidth that is known by its bounds.

use serde::{Deserialize, Serialize};

/// Lower and upper bound of a bandwidth in one direction, in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthRange {
    /// Lower bound.
    pub low: u64,
    /// Upper bound; `None` if none is known.
    pub high: Option<u64>,
}

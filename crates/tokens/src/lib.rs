//! Range tokens: the right of a client to read or write bytes of a file, kept between its calls until somebody else
//! wants one that conflicts. They make calls atomic under the strict contract, and cost a lone client one message per
//! file.
//!
//! Two machines without clocks, locks or messages of their own: [`Manager`] at the home of a file grants tokens and has
//! them recalled, [`KeptTokens`] at a client has calls begin when they are covered, and gives back what is recalled.
//! Schmuck and Haskin, "GPFS: A Shared-Disk File System for Large Computing Clusters", FAST 2002, section 3.2; see
//! docs/decisions/0136-range-tokens.md.
//!
//! # How messages that cross are told apart
//! Each grant has a *serial*, and a recall names the last serial that was given when it was decided. What is granted
//! later is not concerned by it, however late the recall or its answer arrives. A recall also names the requests of its
//! client that are still queued: any other request that the client has under way may have been granted already, by an
//! answer that the recall has overtaken, so the client gives back what that answer brings once the call that asked has
//! had it.

mod holder;
mod manager;
mod ranges;
mod streams;

pub use holder::{CallId, GiveBack, KeptTokens, Poll};
pub use manager::{Fence, Listed, Manager, Recall, RequestOutcome};

use std::time::Duration;

use bivouac_types::{ByteRange, TokenMode};

/// Most ranges that one grant has.
pub const RANGES_MAX: usize = 64;

/// Time for which a client goes on first with calls that it began in an earlier process, or under an earlier daemon of
/// the home.
pub const RESUME: Duration = Duration::from_secs(1);

/// Tokens that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    /// The use that is to be made of them.
    pub mode: TokenMode,
    /// The bytes that the call needs.
    pub required: ByteRange,
    /// The bytes that the client expects to need next, as far as nobody else needs it; at most [`RANGES_MAX`].
    pub desired: Vec<ByteRange>,
}

/// Tokens that a client is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Number of the grant; later ones have higher numbers.
    pub serial: u64,
    /// The bytes.
    pub ranges: Vec<ByteRange>,
}

/// Answer of a client to a recall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Yielded {
    /// Recalled bytes that it still has: they may be in use.
    pub kept: Vec<ByteRange>,
    /// True if it gives back the rest of what is required by itself, as soon as that is not in use.
    pub gives_back: bool,
}

impl Yielded {
    /// Returns what the client has no more of what was recalled.
    #[must_use]
    pub fn given(&self, wanted: &TokenRequest) -> Vec<ByteRange> {
        ranges::without(&[vec![wanted.required], wanted.desired.clone()].concat(), &self.kept)
    }
}

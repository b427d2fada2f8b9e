//! The bandwidth of a network, as a map has it.

use serde::{Deserialize, Serialize};

use crate::bisection::Bisection;
use crate::bits::BandwidthRange;

/// Two hosts and what flows between them while nobody else sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// One of them.
    pub from: String,
    /// The other one.
    pub to: String,
    /// Bandwidth from one to the other.
    pub bits: BandwidthRange,
}

/// Bandwidth of a network between hosts of the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Hosts that it joins.
    pub hosts: usize,
    /// Links whose speed is not known.
    pub unknown_links: usize,
    /// The pair with the least between them.
    pub weakest: Pair,
    /// All pairs, of few hosts.
    pub pairs: Vec<Pair>,
    /// Between two halves of the hosts, for the worst way to halve them.
    pub bisection: Bisection,
}

impl Bandwidth {
    /// Returns all names of hosts in it.
    pub(crate) fn hosts_named(&mut self) -> impl Iterator<Item = &mut String> {
        std::iter::once(&mut self.weakest)
            .chain(&mut self.pairs)
            .flat_map(|pair| [&mut pair.from, &mut pair.to])
    }
}

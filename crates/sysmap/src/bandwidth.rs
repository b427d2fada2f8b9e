//! What a network carries, from what its links carry.
//!
//! A link whose speed is not known carries something between nothing and any amount, so results are ranges: the low end takes such
//! links for missing, the high end for unbounded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bisection::{Bisection, bisection};
use crate::flow::{Graph, UNBOUNDED};
use crate::network::{End, Network};

/// Up to so many hosts every pair is looked at.
const ALL_PAIRS_MAX: usize = 24;

/// Bits per second in one direction, at least and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bits {
    /// At least this much.
    pub low: u64,
    /// At most this much; `None` if nothing bounds it that is known.
    pub high: Option<u64>,
}

/// Two hosts and what flows between them while nobody else sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// One of them.
    pub from: String,
    /// The other one.
    pub to: String,
    /// What flows from one to the other.
    pub bits: Bits,
}

/// What a network carries between hosts of the map.
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

/// A network as two graphs: with links of unknown speed missing, and with them unbounded. Hosts come first.
pub(crate) struct Graphs<'a> {
    pub hosts: Vec<&'a str>,
    pub low: Graph,
    pub high: Graph,
    pub unknown: usize,
}

/// What a network carries between its hosts; nothing if it joins fewer than two.
#[must_use]
pub fn bandwidth(network: &Network) -> Option<Bandwidth> {
    let graphs = graphs(network);
    let count = graphs.hosts.len();
    if count < 2 {
        return None;
    }
    let pair = |from: usize, to: usize| {
        let name = |host: usize| graphs.hosts.get(host).map_or_else(String::new, |name| (*name).to_owned());
        Pair { from: name(from), to: name(to), bits: between(&graphs, &[from], &[to]) }
    };
    // The least of all pairs is the least of those with any one host: what separates a pair separates one of both from that host.
    let pairs: Vec<Pair> = if count <= ALL_PAIRS_MAX {
        (0..count)
            .flat_map(|from| (from + 1..count).map(move |to| (from, to)))
            .map(|(a, b)| pair(a, b))
            .collect()
    } else {
        (1..count).map(|to| pair(0, to)).collect()
    };
    let weakest =
        pairs.iter().min_by_key(|pair| (pair.bits.low, pair.bits.high.unwrap_or(u64::MAX)))?.clone();
    Some(Bandwidth {
        hosts: count,
        unknown_links: graphs.unknown,
        weakest,
        bisection: bisection(&graphs),
        pairs: if count <= ALL_PAIRS_MAX { pairs } else { Vec::new() },
    })
}

/// What flows from these hosts to those at the same time; unbounded if the network does not join all of them.
#[must_use]
pub fn between_halves(network: &Network, from: &[String], to: &[String]) -> Bits {
    let graphs = graphs(network);
    let vertices = |names: &[String]| -> Option<Vec<usize>> {
        names.iter().map(|name| graphs.hosts.iter().position(|host| host == name)).collect()
    };
    match (vertices(from), vertices(to)) {
        (Some(from), Some(to)) => between(&graphs, &from, &to),
        _ => Bits::default(),
    }
}

fn between(graphs: &Graphs<'_>, from: &[usize], to: &[usize]) -> Bits {
    Bits { low: graphs.low.flow(from, to), high: bounded(graphs.high.flow(from, to)) }
}

/// A result that unbounded links are in is not bounded.
pub(crate) fn bounded(bits: u64) -> Option<u64> {
    (bits < UNBOUNDED).then_some(bits)
}

fn graphs(network: &Network) -> Graphs<'_> {
    let mut hosts: Vec<&str> = Vec::new();
    for link in &network.links {
        hosts.extend([&link.from, &link.to].iter().filter_map(|end| end.host()));
    }
    hosts.sort_unstable();
    hosts.dedup();
    let mut numbers: BTreeMap<End, usize> =
        hosts.iter().enumerate().map(|(number, name)| (End::Host((*name).into()), number)).collect();
    for link in &network.links {
        for end in [&link.from, &link.to] {
            let next = numbers.len();
            numbers.entry(end.clone()).or_insert(next);
        }
    }
    let (mut low, mut high) = (Graph::new(numbers.len()), Graph::new(numbers.len()));
    let mut unknown = 0;
    for link in &network.links {
        let (Some(from), Some(to)) = (numbers.get(&link.from), numbers.get(&link.to)) else { continue };
        match link.speed_bits {
            Some(bits) => {
                low.join(*from, *to, bits);
                high.join(*from, *to, bits);
            }
            None => {
                high.join(*from, *to, UNBOUNDED);
                unknown += 1;
            }
        }
    }
    Graphs { hosts, low, high, unknown }
}

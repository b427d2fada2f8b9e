//! Computes the bandwidth of a network from the speeds of its links.
//!
//! A link of unknown speed may carry any amount, so results are bounds: the lower one takes such links for missing, the
//! upper one for unbounded.

use std::collections::BTreeMap;

use crate::bandwidth::{Bandwidth, Pair};
use crate::bisection::bisection;
use crate::bits::BandwidthRange;
use crate::flow::{Graph, UNBOUNDED, bounded};
use crate::network::{LinkEnd, Network};

/// Most hosts whose pairs are all computed.
const ALL_PAIRS_MAX: usize = 24;

/// A network as two graphs: with links of unknown speed missing, and with them unbounded. Hosts come first.
struct Graphs<'a> {
    hosts: Vec<&'a str>,
    low: Graph,
    high: Graph,
    unknown: usize,
}

/// Returns the bandwidth between the hosts of a network; `None` for fewer than two hosts.
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
    // The least of all pairs is the least of those with any one host: what separates a pair separates one of both from
    // that host.
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
        bisection: bisection(count, &graphs.low, &graphs.high),
        // Of many hosts only those with the first one were computed, which would look like all pairs.
        pairs: if count <= ALL_PAIRS_MAX { pairs } else { Vec::new() },
    })
}

/// Returns the joint bandwidth from the hosts `from` to the hosts `to`; unbounded if the network does not join all of
/// them.
#[must_use]
pub fn between_halves(network: &Network, from: &[String], to: &[String]) -> BandwidthRange {
    let graphs = graphs(network);
    let vertices = |names: &[String]| -> Option<Vec<usize>> {
        names.iter().map(|name| graphs.hosts.iter().position(|host| host == name)).collect()
    };
    match (vertices(from), vertices(to)) {
        (Some(from), Some(to)) => between(&graphs, &from, &to),
        _ => BandwidthRange::default(),
    }
}

fn between(graphs: &Graphs<'_>, from: &[usize], to: &[usize]) -> BandwidthRange {
    BandwidthRange { low: graphs.low.flow(from, to), high: bounded(graphs.high.flow(from, to)) }
}

fn graphs(network: &Network) -> Graphs<'_> {
    let mut hosts: Vec<&str> = Vec::new();
    for link in &network.links {
        hosts.extend([&link.from, &link.to].iter().filter_map(|end| end.host()));
    }
    hosts.sort_unstable();
    hosts.dedup();
    // Hosts get the first numbers: `bisection` takes the first vertices for the hosts.
    let mut numbers: BTreeMap<LinkEnd, usize> =
        hosts.iter().enumerate().map(|(number, name)| (LinkEnd::Host((*name).into()), number)).collect();
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

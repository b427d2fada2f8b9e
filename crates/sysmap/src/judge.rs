//! Judgement of links by transfers between hosts.
//!
//! A host's link is as good as the best that the host sends to anybody, or receives from anybody. It is slow if that is
//! far less than what its peers have. A pair is slow if it carries far less than what both ends carry with others; what
//! many slow pairs have in common are links of switches. Only what was seen while nobody else sent counts against a
//! link.

use std::collections::{BTreeMap, BTreeSet};

use crate::measured::{Direction, MeasuredHost, SlowLink, SlowLinkLocation};
use crate::network::{LinkEnd, Network};
use crate::paths::crossings;

/// A link below this part of what its peers carry is slow.
pub const SLOW_BELOW: f64 = 0.75;

/// Bits per second by sender and receiver, and whether nobody else sent meanwhile.
pub type MeasuredFlows = BTreeMap<(usize, usize), (u64, bool)>;

/// Pairs of hosts, by index.
type Pairs = Vec<(usize, usize)>;
/// A link, by the switches at its ends.
type SwitchPair = (String, String);

/// Inputs by which flows are judged.
#[derive(Clone, Copy, Debug)]
pub struct LinkJudgement<'a> {
    /// The hosts.
    pub hosts: &'a [MeasuredHost],
    /// The network that joins them, if the map has it.
    pub network: Option<&'a Network>,
}

impl LinkJudgement<'_> {
    /// Transfers to make again while nobody else sends, the most doubtful first: the best one of each host whose link
    /// seems slow, and pairs that seem slow.
    #[must_use]
    pub fn doubtful(&self, flows: &MeasuredFlows) -> Vec<(usize, usize)> {
        let mut doubtful = Vec::new();
        for (host, direction, _) in self.slow_hosts(flows) {
            let of_host = flows.iter().filter(|(pair, _)| end(**pair, direction) == host);
            doubtful.extend(of_host.max_by_key(|(_, (bits, _))| *bits).map(|(pair, _)| *pair));
        }
        let mut pairs = self.slow_pairs(flows);
        pairs.sort_by(|(_, a, b), (_, c, d)| part(*a, *b).total_cmp(&part(*c, *d)));
        doubtful.extend(pairs.into_iter().map(|(pair, ..)| pair));
        // What was measured alone already gets no better by being repeated.
        doubtful.retain(|pair| flows.get(pair).is_some_and(|(_, alone)| !alone));
        let mut seen = BTreeSet::new();
        doubtful.retain(|pair| seen.insert(*pair));
        doubtful
    }

    /// Returns the links that are slow, as far as that was seen while nobody else sent.
    #[must_use]
    pub fn slow(&self, flows: &MeasuredFlows) -> Vec<SlowLink> {
        let is_seen_alone = |host: usize, direction| {
            flows.iter().any(|(pair, (_, alone))| *alone && end(*pair, direction) == host)
        };
        let mut slow = Vec::new();
        for (host, direction, peers) in self.slow_hosts(flows) {
            let Some(bits) = best(flows, host, direction).filter(|_| is_seen_alone(host, direction)) else {
                continue;
            };
            let Some(known) = self.hosts.get(host) else { continue };
            let (name, interface) = (known.name.clone(), known.interface.clone());
            let link = SlowLinkLocation::Host { host: name, interface, direction };
            slow.push(slow_link(link, known.expected_bits, bits, peers));
        }
        let mut pairs = self.slow_pairs(flows);
        pairs.retain(|(pair, ..)| flows.get(pair).is_some_and(|(_, alone)| *alone));
        slow.extend(self.of_switches(flows, &mut pairs));
        slow.extend(pairs.into_iter().map(|((from, to), bits, ends)| {
            let link = SlowLinkLocation::Pair { from: self.name(from), to: self.name(to) };
            slow_link(link, None, bits, ends)
        }));
        slow
    }

    fn name(&self, host: usize) -> String {
        self.hosts.get(host).map_or_else(String::new, |host| host.name.clone())
    }

    /// Returns the hosts whose best is far below that of their peers, with what peers would have on that interface. Of
    /// two hosts nobody can say whose link it is.
    fn slow_hosts(&self, flows: &MeasuredFlows) -> Vec<(usize, Direction, u64)> {
        let speeds: Option<Vec<u64>> =
            self.hosts.iter().map(|host| host.expected_bits.filter(|bits| *bits > 0)).collect();
        // Where speeds differ, a host is to reach the part of its own that others reach of theirs.
        let whole = |host: usize| {
            speeds.as_ref().and_then(|speeds| speeds.get(host)).map_or(1.0, |bits| *bits as f64)
        };
        let mut slow = Vec::new();
        for direction in [Direction::Sends, Direction::Receives] {
            let parts: Vec<(usize, f64)> = (0..self.hosts.len())
                .filter(|host| partners(flows, *host, direction) > 1)
                .filter_map(|host| Some((host, best(flows, host, direction)? as f64 / whole(host))))
                .collect();
            for (host, part) in &parts {
                let mut others: Vec<f64> =
                    parts.iter().filter(|(other, _)| other != host).map(|(_, part)| *part).collect();
                others.sort_by(f64::total_cmp);
                let Some(peers) = others.get(others.len() / 2).copied() else { continue };
                if *part < peers * SLOW_BELOW {
                    slow.push((*host, direction, (peers * whole(*host)) as u64));
                }
            }
        }
        slow
    }

    /// Pairs that carry far less than both ends do with others, each with what those carry. Of two hosts both
    /// directions are compared. What a host that is slow itself does with one or another says nothing.
    fn slow_pairs(&self, flows: &MeasuredFlows) -> Vec<((usize, usize), u64, u64)> {
        let ends = |(from, to): (usize, usize)| {
            if self.hosts.len() == 2 {
                return flows.get(&(to, from)).map_or(0, |(bits, _)| *bits);
            }
            let of = |host, direction| best(flows, host, direction).unwrap_or(0);
            of(from, Direction::Sends).min(of(to, Direction::Receives))
        };
        let slow = self.slow_hosts(flows);
        let is_slow =
            |host, way| slow.iter().any(|(known, direction, _)| (*known, *direction) == (host, way));
        let all = flows.iter().filter(|((from, to), _)| {
            !is_slow(*from, Direction::Sends) && !is_slow(*to, Direction::Receives)
        });
        let all = all.map(|(pair, (bits, _))| (*pair, *bits, ends(*pair)));
        all.filter(|(_, bits, ends)| (*bits as f64) < *ends as f64 * SLOW_BELOW).collect()
    }

    /// Returns the links between switches that all pairs over them are slow by, as far as those were seen alone. What
    /// they explain is taken out of the pairs.
    fn of_switches(
        &self,
        flows: &MeasuredFlows,
        slow: &mut Vec<((usize, usize), u64, u64)>,
    ) -> Vec<SlowLink> {
        let Some(network) = self.network else { return Vec::new() };
        let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        let alone: Vec<(usize, usize)> =
            flows.iter().filter(|(_, (_, alone))| *alone).map(|(pair, _)| *pair).collect();
        let mut over: BTreeMap<Pairs, Vec<SwitchPair>> = BTreeMap::new();
        for (link, pairs) in crossings(network, &names, &alone) {
            over.entry(pairs).or_default().push(link);
        }
        let is_slow = |pair: &(usize, usize)| slow.iter().any(|(known, ..)| known == pair);
        let mut guilty: Vec<_> =
            // A single pair can be slow by itself: a switch is blamed for two or more.
            over.into_iter().filter(|(pairs, _)| pairs.len() > 1 && pairs.iter().all(is_slow)).collect();
        // The link that explains most comes first, as one cause is likelier than several.
        guilty.sort_by_key(|(pairs, _)| std::cmp::Reverse(pairs.len()));
        let mut found = Vec::new();
        for (pairs, links) in guilty {
            let explained: Vec<_> = slow.iter().filter(|(pair, ..)| pairs.contains(pair)).copied().collect();
            // What an earlier link explained is no longer in `slow`, and one pair alone says nothing of a link.
            if explained.len() < 2 {
                continue;
            }
            slow.retain(|(pair, ..)| !pairs.contains(pair));
            let bits = explained.iter().map(|(_, bits, _)| *bits).max().unwrap_or(0);
            let ends = explained.iter().map(|(.., ends)| *ends).max().unwrap_or(0);
            let expected = links.iter().map(|link| speed(network, link)).collect::<Option<Vec<u64>>>();
            let expected = expected.and_then(|all| all.into_iter().min());
            found.push(slow_link(SlowLinkLocation::Switches { links }, expected, bits, ends));
        }
        found
    }
}

/// Returns the speed of all wires between two switches together.
fn speed(network: &Network, (from, to): &(String, String)) -> Option<u64> {
    let ends = (LinkEnd::Switch(from.clone()), LinkEnd::Switch(to.clone()));
    let joins = |a: &LinkEnd, b: &LinkEnd| (a, b) == (&ends.0, &ends.1) || (b, a) == (&ends.0, &ends.1);
    let wires = network.links.iter().filter(|link| joins(&link.from, &link.to));
    wires.map(|link| link.speed_bits).try_fold(0, |sum: u64, bits| Some(sum.saturating_add(bits?)))
}

fn slow_link(
    link: SlowLinkLocation,
    expected_bits: Option<u64>,
    measured_bits: u64,
    peers_bits: u64,
) -> SlowLink {
    let below_percent = (100.0 * (1.0 - part(measured_bits, peers_bits))).round().max(0.0) as u64;
    SlowLink { link, expected_bits, measured_bits, peers_bits, below_percent }
}

fn part(bits: u64, whole: u64) -> f64 {
    bits as f64 / whole.max(1) as f64
}

/// Returns the end of a pair whose link bits in this direction go over first.
fn end((from, to): (usize, usize), direction: Direction) -> usize {
    if direction == Direction::Sends { from } else { to }
}

/// Returns the best that a host did with anybody.
#[must_use]
pub fn best(flows: &MeasuredFlows, host: usize, direction: Direction) -> Option<u64> {
    let own = flows.iter().filter(|(pair, _)| end(**pair, direction) == host);
    own.map(|(_, (bits, _))| *bits).max()
}

fn partners(flows: &MeasuredFlows, host: usize, direction: Direction) -> usize {
    flows.keys().filter(|pair| end(**pair, direction) == host).count()
}

//! Bisection bandwidth: the flow between two halves of the hosts, for the worst way to halve them.
//!
//! The least over all halvings of what the narrowest cut between both halves carries. That is easy in a tree, and hard
//! in general (NP-hard, Garey, Johnson and Stockmeyer, 1976), so: exact in trees, by trying all halvings of few hosts,
//! and otherwise two bounds that are true. From below, the least flow between any two hosts, and what a fixed way to
//! share all links between all pairs carries (a concurrent flow; every halving cuts that many pairs). From above,
//! halvings that were tried.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::bits::BandwidthRange;
use crate::flow::{Graph, UNBOUNDED, bounded};

/// Up to so many hosts all halvings are tried.
pub const EXACT_HOSTS_MAX: usize = 12;
/// Up to so many hosts trees are solved exactly.
const TREE_HOSTS_MAX: usize = 4096;
/// Halvings that are tried where not all can be.
const TRIED_MAX: usize = 64;

/// Flow from one half of the hosts to the other, at the same time, for the worst halves. Of an odd number one half has
/// one more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bisection {
    /// Bits per second in one direction.
    pub bits: BandwidthRange,
    /// True if it is exact: not only bounds, and no link of unknown speed matters.
    pub exact: bool,
    /// Method by which it was found: `tree`, `all halvings` or `bounds`.
    pub method: String,
}

/// Returns the bisection of two graphs of one network: `low` without its links of unknown speed, `high` with them
/// unbounded. The first `hosts` vertices of both are the hosts.
pub(crate) fn bisection(hosts: usize, low: &Graph, high: &Graph) -> Bisection {
    assert!(hosts <= low.vertices() && low.vertices() == high.vertices(), "graphs of two networks");
    let (low, _, method) = halves(low, hosts);
    let (_, high, _) = halves(high, hosts);
    let high = bounded(high);
    // Links of unknown speed only add to what flows.
    assert!(high.is_none_or(|high| low <= high), "a bisection of {low} to {high:?} bits");
    Bisection { bits: BandwidthRange { low, high }, exact: high == Some(low), method: method.into() }
}

/// Returns lower and upper bound, and their derivation. The first `hosts` vertices are hosts.
fn halves(graph: &Graph, hosts: usize) -> (u64, u64, &'static str) {
    if hosts <= TREE_HOSTS_MAX
        && let Some(adjacent) = forest(graph)
    {
        let bits = of_tree(&adjacent, hosts);
        return (bits, bits, "tree");
    }
    if hosts <= EXACT_HOSTS_MAX {
        let bits = all_halvings(graph, hosts);
        return (bits, bits, "all halvings");
    }
    // Any halving is a bound from above, so it matters that some of those tried are bad ones, and not which.
    let high = some_halvings(graph, hosts);
    (from_below(graph, hosts).min(high), high, "bounds")
}

/// Neighbours with what joins them, each pair of vertices once.
type AdjacencyList = Vec<Vec<(usize, u64)>>;

fn adjacent(graph: &Graph) -> AdjacencyList {
    let mut joined: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for (from, to, capacity) in graph.edges() {
        let sum = joined.entry((*from.min(to), *from.max(to))).or_default();
        // What is unbounded stays the same number, so that `bounded` recognises it however many there are.
        *sum = sum.saturating_add(*capacity).min(UNBOUNDED);
    }
    let mut adjacent: AdjacencyList = vec![Vec::new(); graph.vertices()];
    for ((a, b), capacity) in joined {
        for (here, there) in [(a, b), (b, a)] {
            adjacent.get_mut(here).into_iter().for_each(|list| list.push((there, capacity)));
        }
    }
    adjacent
}

/// Returns the neighbours, if there is no circle.
fn forest(graph: &Graph) -> Option<AdjacencyList> {
    let adjacent = adjacent(graph);
    let edges: usize = adjacent.iter().map(Vec::len).sum::<usize>() / 2;
    let components = roots(&adjacent).len();
    // Exactly forests have as many edges as vertices less one for each tree.
    (edges + components == adjacent.len()).then_some(adjacent)
}

/// Returns one vertex of each connected component.
fn roots(adjacent: &AdjacencyList) -> Vec<usize> {
    let mut seen = vec![false; adjacent.len()];
    let mut roots = Vec::new();
    for root in 0..adjacent.len() {
        if seen.get(root).copied().unwrap_or(true) {
            continue;
        }
        roots.push(root);
        for (vertex, _, _) in walk(adjacent, root) {
            seen.get_mut(vertex).into_iter().for_each(|seen| *seen = true);
        }
    }
    roots
}

/// Returns the vertices of a connected part from a root on: each with the one before it and what joins them.
fn walk(adjacent: &AdjacencyList, root: usize) -> Vec<(usize, Option<usize>, u64)> {
    let mut seen = vec![false; adjacent.len()];
    let mut order = Vec::new();
    let mut queue = VecDeque::from([(root, None, 0)]);
    seen.get_mut(root).into_iter().for_each(|seen| *seen = true);
    while let Some((vertex, before, capacity)) = queue.pop_front() {
        order.push((vertex, before, capacity));
        for (next, capacity) in adjacent.get(vertex).into_iter().flatten() {
            if let Some(seen) = seen.get_mut(*next).filter(|seen| !**seen) {
                *seen = true;
                queue.push_back((*next, Some(vertex), *capacity));
            }
        }
    }
    order
}

/// The least that is cut with k hosts on the first side, for each k; by the side of the vertex at the top.
type MinCuts = [Vec<u64>; 2];

/// Returns the exact cut of a tree, from the leaves upwards.
fn of_tree(adjacent: &AdjacencyList, hosts: usize) -> u64 {
    let mut whole = vec![0];
    for root in roots(adjacent) {
        let order = walk(adjacent, root);
        let mut cuts: BTreeMap<usize, MinCuts> = BTreeMap::new();
        for (vertex, before, capacity) in order.into_iter().rev() {
            // Whoever is below has been added already.
            let mine = cuts.remove(&vertex);
            let mine = own(mine, vertex < hosts);
            let Some(before) = before else {
                whole = join(&whole, &least(&mine));
                continue;
            };
            let above = cuts.remove(&before).unwrap_or_else(|| [vec![0], vec![0]]);
            let [first, second] = &mine;
            let to_first = cheaper(first, second, capacity);
            let to_second = cheaper(second, first, capacity);
            cuts.insert(before, [join(&above[0], &to_first), join(&above[1], &to_second)]);
        }
    }
    assert_eq!(whole.len(), hosts + 1, "a host is on neither side of the tree's cuts");
    // With an odd number, k hosts against the rest is the same cut as the rest against k: one entry is both.
    whole.get(hosts / 2).copied().unwrap_or(0).min(UNBOUNDED)
}

/// Returns the cuts with the vertex itself, which counts if it is a host.
fn own(below: Option<MinCuts>, is_host: bool) -> MinCuts {
    let [mut first, mut second] = below.unwrap_or_else(|| [vec![0], vec![0]]);
    // With the host on the first side no cut has 0 hosts there; with it on the second one, none has all of them.
    if is_host {
        first.insert(0, UNBOUNDED);
        second.push(UNBOUNDED);
    }
    [first, second]
}

/// Returns the cheaper cuts: on the same side for nothing, on the other one for the link.
fn cheaper(same: &[u64], other: &[u64], capacity: u64) -> Vec<u64> {
    assert_eq!(same.len(), other.len(), "both sides count the same hosts");
    same.iter().zip(other).map(|(same, other)| *same.min(&other.saturating_add(capacity))).collect()
}

fn least(cuts: &MinCuts) -> Vec<u64> {
    cheaper(&cuts[0], &cuts[1], 0)
}

/// Returns two parts side by side.
fn join(a: &[u64], b: &[u64]) -> Vec<u64> {
    assert!(!a.is_empty() && !b.is_empty(), "a part of a tree has no way to be cut");
    let mut sum = vec![u64::MAX; a.len() + b.len() - 1];
    for (i, a) in a.iter().enumerate() {
        for (j, b) in b.iter().enumerate() {
            sum.get_mut(i + j).into_iter().for_each(|sum| *sum = (*sum).min(a.saturating_add(*b)));
        }
    }
    sum
}

fn cut(graph: &Graph, hosts: usize, is_first: impl Fn(usize) -> bool) -> u64 {
    let (first, second): (Vec<usize>, Vec<usize>) = (0..hosts).partition(|host| is_first(*host));
    graph.flow(&first, &second)
}

fn all_halvings(graph: &Graph, hosts: usize) -> u64 {
    assert!(hosts <= EXACT_HOSTS_MAX, "all halvings of {hosts} hosts");
    let half = hosts / 2;
    let all = 1_u32 << hosts;
    let halving = |set: &u32| {
        // Of two halves of one size, only the one with the first host.
        set.count_ones() as usize == half && (hosts % 2 == 1 || set & 1 == 1)
    };
    let cuts = (0..all).filter(halving).map(|set| cut(graph, hosts, |host| set >> host & 1 == 1));
    cuts.min().unwrap_or(0)
}

/// Returns the hosts that are near to each other on one side: runs of the order in which a walk through the network
/// meets them.
fn some_halvings(graph: &Graph, hosts: usize) -> u64 {
    let adjacent = adjacent(graph);
    let mut order = Vec::new();
    for root in roots(&adjacent) {
        // Down first, so that the hosts of one switch follow each other.
        let (mut stack, mut seen) = (vec![root], vec![false; adjacent.len()]);
        while let Some(vertex) = stack.pop() {
            if seen.get(vertex).copied().unwrap_or(true) {
                continue;
            }
            seen.get_mut(vertex).into_iter().for_each(|seen| *seen = true);
            order.extend((vertex < hosts).then_some(vertex));
            stack.extend(adjacent.get(vertex).into_iter().flatten().map(|(next, _)| *next));
            // Hosts last onto the stack, so first from it.
            let top = stack.len() - adjacent.get(vertex).map_or(0, Vec::len);
            stack.get_mut(top..).into_iter().for_each(|top| top.sort_by(|a, b| b.cmp(a)));
        }
    }
    let places: BTreeMap<usize, usize> = order.into_iter().enumerate().map(|(at, host)| (host, at)).collect();
    let half = hosts / 2;
    let step = hosts.div_ceil(TRIED_MAX).max(1);
    let from = |start: usize| {
        cut(graph, hosts, |host| places.get(&host).is_some_and(|at| (at + hosts - start) % hosts < half))
    };
    (0..hosts).step_by(step).map(from).min().unwrap_or(UNBOUNDED)
}

/// Returns two bounds that hold for every halving.
fn from_below(graph: &Graph, hosts: usize) -> u64 {
    let pairs = (1..hosts).map(|host| graph.flow(&[0], &[host])).min().unwrap_or(0);
    let shared = concurrent(graph, hosts);
    // So many pairs are on different sides of any halving, and each sends its share over the cut.
    let cut_pairs = (hosts / 2) as f64 * hosts.div_ceil(2) as f64;
    // Rounded down, and a little more for what sums of fractions lose.
    let shared = (shared * cut_pairs * (1.0 - 1e-9)).floor();
    pairs.max(shared as u64).min(UNBOUNDED)
}

/// Returns the share of each pair of hosts if all send to each other over all shortest ways, each vertex sharing alike
/// among them.
fn concurrent(graph: &Graph, hosts: usize) -> f64 {
    let adjacent = adjacent(graph);
    let mut loads: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for target in 0..hosts {
        let order = walk(&adjacent, target);
        let mut far = vec![usize::MAX; adjacent.len()];
        for (vertex, before, _) in &order {
            let one_more = before.and_then(|before| far.get(before)).map_or(0, |far| far + 1);
            far.get_mut(*vertex).into_iter().for_each(|far| *far = one_more);
        }
        let distance = |vertex: usize| far.get(vertex).copied().unwrap_or(usize::MAX);
        // A host is out of reach: nothing flows between some halves.
        if order.iter().filter(|(vertex, ..)| *vertex < hosts).count() < hosts {
            return 0.0;
        }
        let mut carried = vec![0.0; adjacent.len()];
        // From the farthest inwards. Each pair is counted from one of its ends only.
        for (vertex, ..) in order.iter().rev() {
            let own = if *vertex < hosts && *vertex > target { 1.0 } else { 0.0 };
            let load = carried.get(*vertex).copied().unwrap_or(0.0) + own;
            let nearer: Vec<usize> = adjacent
                .get(*vertex)
                .into_iter()
                .flatten()
                .map(|(next, _)| *next)
                .filter(|next| distance(*next) < distance(*vertex))
                .collect();
            for next in &nearer {
                let share = load / nearer.len() as f64;
                carried.get_mut(*next).into_iter().for_each(|carried| *carried += share);
                *loads.entry((*vertex.min(next), *vertex.max(next))).or_default() += share;
            }
        }
    }
    let mut least = f64::INFINITY;
    for (vertex, list) in adjacent.iter().enumerate() {
        for (next, capacity) in list.iter().filter(|(next, _)| vertex < *next) {
            let load = loads.get(&(vertex, *next)).copied().unwrap_or(0.0);
            if load > 0.0 {
                least = least.min(*capacity as f64 / load);
            }
        }
    }
    if least.is_finite() { least } else { 0.0 }
}

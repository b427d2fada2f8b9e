//! Flows and halvings beside brute force.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use bivouac_sysmap::{Graph, Link, LinkEnd, Network, bandwidth};
use proptest::prelude::*;

/// The narrowest cut between two sets of vertices, by trying all.
fn narrowest(vertices: usize, edges: &[(usize, usize, u64)], from: &[usize], to: &[usize]) -> u64 {
    let cuts = (0..1_u32 << vertices).filter(|set| {
        from.iter().all(|vertex| set >> vertex & 1 == 1) && to.iter().all(|vertex| set >> vertex & 1 == 0)
    });
    let carried = |set: u32| {
        let crosses = edges.iter().filter(|(a, b, _)| (set >> a & 1) != (set >> b & 1));
        crosses.map(|(_, _, capacity)| capacity).sum()
    };
    cuts.map(carried).min().unwrap()
}

fn graph(vertices: usize, edges: &[(usize, usize, u64)]) -> Graph {
    let mut graph = Graph::new(vertices);
    edges.iter().for_each(|(a, b, capacity)| graph.join(*a, *b, *capacity));
    graph
}

fn edges(vertices: usize, most: usize) -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
    proptest::collection::vec((0..vertices, 0..vertices, 0_u64..20), 0..most)
        .prop_map(|edges| edges.into_iter().filter(|(a, b, _)| a != b).collect())
}

/// Hosts are the first vertices; the others are switches.
fn network(hosts: usize, edges: &[(usize, usize, u64)]) -> Network {
    let end = |vertex: usize| {
        if vertex < hosts {
            LinkEnd::Host(format!("h{vertex:02}"))
        } else {
            LinkEnd::Switch(format!("s{vertex}"))
        }
    };
    let link = |(at, (a, b, bits)): (usize, &(usize, usize, u64))| Link {
        from: end(*a),
        from_port: Some(at.to_string()),
        to: end(*b),
        to_port: None,
        speed_bits: Some(*bits),
    };
    Network { name: "test".into(), links: edges.iter().enumerate().map(link).collect(), ..Network::default() }
}

/// All halvings, each by its narrowest cut; only of hosts that have links, which are all that the network knows of.
fn worst_halving(vertices: usize, hosts: &[usize], edges: &[(usize, usize, u64)]) -> u64 {
    let half = hosts.len() / 2;
    let halvings = (0..1_u32 << hosts.len()).filter(|set| set.count_ones() as usize == half);
    halvings
        .map(|set| {
            let (first, second): (Vec<usize>, Vec<usize>) =
                hosts.iter().enumerate().partition::<Vec<_>, _>(|(at, _)| set >> at & 1 == 1).into_plain();
            narrowest(vertices, edges, &first, &second)
        })
        .min()
        .unwrap()
}

trait Plain {
    fn into_plain(self) -> (Vec<usize>, Vec<usize>);
}

impl Plain for (Vec<(usize, &usize)>, Vec<(usize, &usize)>) {
    fn into_plain(self) -> (Vec<usize>, Vec<usize>) {
        let plain = |list: Vec<(usize, &usize)>| list.into_iter().map(|(_, host)| *host).collect();
        (plain(self.0), plain(self.1))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// S525.
    #[test]
    fn the_most_that_flows_is_what_the_narrowest_cut_carries(edges in edges(7, 14), sources in 1_usize..3) {
        let from: Vec<usize> = (0..sources).collect();
        let graph = graph(7, &edges);
        prop_assert_eq!(graph.flow(&from, &[5, 6]), narrowest(7, &edges, &from, &[5, 6]));
        prop_assert_eq!(graph.flow(&[5, 6], &from), graph.flow(&from, &[5, 6]));
        prop_assert_eq!(graph.flow(&[0], &[0]), 0);
    }

    /// S525.
    #[test]
    fn halves_are_exact_for_few_hosts_with_and_without_circles(edges in edges(8, 12), hosts in 2_usize..6) {
        let mut known: Vec<usize> =
            edges.iter().flat_map(|(a, b, _)| [*a, *b]).filter(|vertex| *vertex < hosts).collect();
        known.sort_unstable();
        known.dedup();
        let found = bandwidth(&network(hosts, &edges));
        if known.len() < 2 {
            prop_assert!(found.is_none());
            return Ok(());
        }
        let found = found.unwrap();
        prop_assert_eq!(found.bisection.bits.low, worst_halving(8, &known, &edges), "{:?}", found);
        prop_assert!(found.bisection.exact);
        for pair in &found.pairs {
            let vertex = |name: &str| name[1..].parse::<usize>().unwrap();
            let (from, to) = (vertex(&pair.from), vertex(&pair.to));
            prop_assert_eq!(pair.bits.low, narrowest(8, &edges, &[from], &[to]));
            prop_assert!(found.weakest.bits.low <= pair.bits.low);
        }
    }

    /// S525: trees of any shape, with hosts at the leaves or in the middle.
    #[test]
    fn halves_of_trees_are_exact(parents in proptest::collection::vec((0_usize..100, 1_u64..20), 9), hosts in 2_usize..7) {
        let edges: Vec<_> = parents.iter().enumerate().map(|(at, (up, bits))| (at + 1, up % (at + 1), *bits)).collect();
        let found = bandwidth(&network(hosts, &edges)).unwrap();
        prop_assert_eq!(found.bisection.method.as_str(), "tree");
        let all: Vec<usize> = (0..hosts).collect();
        prop_assert_eq!(found.bisection.bits.low, worst_halving(10, &all, &edges));
    }

    /// S525: what is only bounded is really bounded: more hosts than are tried, few enough for the oracle.
    #[test]
    fn bounds_hold(uplinks in proptest::collection::vec(1_u64..12, 8), down in 1_u64..6) {
        // 14 hosts on four leaves, each with two spines.
        let hosts = 14;
        let mut edges: Vec<(usize, usize, u64)> = (0..hosts).map(|host| (host, hosts + host % 4, down)).collect();
        edges.extend(uplinks.iter().enumerate().map(|(at, bits)| (hosts + at % 4, hosts + 4 + at / 4, *bits)));
        let found = bandwidth(&network(hosts, &edges)).unwrap();
        prop_assert_eq!(found.bisection.method.as_str(), "bounds");
        let (low, high) = (found.bisection.bits.low, found.bisection.bits.high.unwrap());
        prop_assert!(low <= high && low > 0);
        let exact = graph(hosts + 6, &edges);
        let truth = (0..1_u32 << hosts)
            .filter(|set| set.count_ones() == 7 && set & 1 == 1)
            .step_by(7)
            .map(|set| {
                let (a, b): (Vec<usize>, Vec<usize>) = (0..hosts).partition(|host| set >> host & 1 == 1);
                exact.flow(&a, &b)
            })
            .min()
            .unwrap();
        prop_assert!(low <= truth, "{low} {truth}");
    }
}

/// S525.
#[test]
fn a_link_of_unknown_speed_makes_a_range() {
    let mut network = network(2, &[(0, 2, 10), (1, 2, 4)]);
    let found = bandwidth(&network).unwrap();
    assert_eq!((found.weakest.bits.low, found.weakest.bits.high, found.unknown_links), (4, Some(4), 0));
    network.links[1].speed_bits = None;
    let found = bandwidth(&network).unwrap();
    assert_eq!((found.weakest.bits.low, found.weakest.bits.high, found.unknown_links), (0, Some(10), 1));
    assert!(!found.bisection.exact);
    network.links[0].speed_bits = None;
    let found = bandwidth(&network).unwrap();
    assert_eq!((found.weakest.bits.high, found.bisection.bits.high), (None, None));
}

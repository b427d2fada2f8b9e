//! Failure domains of a map, and orders that spread over them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use bivouac_sysmap::{Link, LinkEnd, Map, Network, NetworkSwitch, domains, spread_over};
use proptest::prelude::*;

fn network(name: &str, hosts: &[(&str, &str)]) -> Network {
    let link = |(host, switch): &(&str, &str)| Link {
        from: LinkEnd::Host((*host).into()),
        from_port: None,
        to: LinkEnd::Switch((*switch).into()),
        to_port: None,
        speed_bits: None,
    };
    Network { name: name.into(), links: hosts.iter().map(link).collect(), ..Network::default() }
}

proptest! {
    /// S539: each domain has about its share of any targets that follow each other, also over the end.
    #[test]
    fn neighbours_are_of_as_many_domains_as_can_be(domains in proptest::collection::vec(0_u8..6, 1..60), width in 1_usize..60) {
        let order = spread_over(&domains);
        prop_assert_eq!(order.iter().copied().collect::<BTreeSet<_>>().len(), domains.len());
        let mut sizes: BTreeMap<u8, usize> = BTreeMap::new();
        domains.iter().for_each(|domain| *sizes.entry(*domain).or_default() += 1);
        let width = width.min(domains.len());
        for start in 0..domains.len() {
            let mut seen: BTreeMap<u8, usize> = BTreeMap::new();
            for step in 0..width {
                *seen.entry(domains[order[(start + step) % domains.len()]]).or_default() += 1;
            }
            for (domain, count) in seen {
                // Its share, and one or two by how shares are rounded at both ends.
                let share = (width * sizes[&domain]).div_ceil(domains.len());
                prop_assert!(count <= share + 2, "{} of {} in {:?}", count, width, order);
            }
        }
        for domain in sizes.keys() {
            let items: Vec<usize> = order.iter().copied().filter(|item| domains[*item] == *domain).collect();
            prop_assert!(items.is_sorted(), "within a domain the order stays");
        }
    }

    #[test]
    fn domains_of_one_size_take_turns(count in 1_usize..6, size in 1_usize..8, seed in any::<u64>()) {
        let mut domains: Vec<usize> = (0..count * size).map(|item| item % count).collect();
        domains.sort_by_key(|domain| seed.wrapping_mul(*domain as u64 + 1));
        let order = spread_over(&domains);
        for start in 0..domains.len() {
            let seen: BTreeSet<usize> = (0..count).map(|step| domains[order[(start + step) % domains.len()]]).collect();
            prop_assert_eq!(seen.len(), count);
        }
    }

    #[test]
    fn where_nothing_is_known_the_order_stays(count in 0_usize..50) {
        prop_assert_eq!(spread_over(&vec![None::<String>; count]), (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn hosts_are_behind_the_switches_of_the_network_that_knows_most_of_them() {
    let mut fabric = network("infiniband", &[("n1.site", "0xa"), ("n2", "0xa"), ("n3", "0xb")]);
    fabric.switches = vec![NetworkSwitch { id: "0xa".into(), name: Some("leaf1".into()) }];
    let map = Map { networks: vec![network("lldp", &[("n1", "x")]), fabric], ..Map::default() };
    let of = |hosts: &[&str]| -> Vec<String> {
        domains(&map, hosts).into_iter().map(|domain| domain.unwrap_or_else(|| "?".into())).collect()
    };
    assert_eq!(of(&["n1", "n2", "n3"]), ["leaf1", "leaf1", "0xb"]);
    assert_eq!(of(&["n3", "n9"]), ["0xb", "?"]);
    assert_eq!(of(&["n1", "n2"]), ["?", "?"], "one switch tells nobody apart");
    assert_eq!(of(&["n8", "n9"]), ["?", "?"]);
    assert_eq!(domains(&Map::default(), &["n1"]), [None]);
}

//! Failure domains: hosts of one switch. And an order in which neighbours are of different ones.

use std::collections::BTreeMap;

use crate::merge::is_same_host;
use crate::network::{LinkEnd, Map};
use crate::paths::switch_of;

/// Returns the switch of each of these hosts, as far as the map knows it, by the network that knows most of them; named
/// as people call it. Nothing of any if all of them are behind one: that tells nobody apart.
#[must_use]
pub fn domains(map: &Map, hosts: &[&str]) -> Vec<Option<String>> {
    let of = |network: &crate::network::Network| -> Vec<Option<String>> {
        let known = |host: &str| {
            let ends = network.links.iter().flat_map(|link| [&link.from, &link.to]);
            ends.filter_map(LinkEnd::host).find(|name| is_same_host(name, host)).map(str::to_owned)
        };
        let switch = |host: &&str| {
            let id = switch_of(network, &known(host)?)?;
            let named = network.switches.iter().find(|switch| switch.id == id);
            Some(named.and_then(|switch| switch.name.clone()).unwrap_or_else(|| id.to_owned()))
        };
        hosts.iter().map(switch).collect()
    };
    let count = |domains: &Vec<Option<String>>| domains.iter().flatten().count();
    // Of those that know as many, the first one.
    let best = map.networks.iter().map(of).rev().max_by_key(count).unwrap_or_default();
    let first = best.first().cloned().flatten();
    if best.len() < hosts.len() || best.iter().all(|domain| *domain == first) {
        return vec![None; hosts.len()];
    }
    best
}

/// Returns an order of items in which those of one domain are as far from each other as can be: each domain's are
/// spread evenly over all. Those of which nothing is known count as a domain. Within a domain the order stays, and so
/// does all of it if there is only one.
#[must_use]
pub fn spread_over<K: Ord>(domains: &[K]) -> Vec<usize> {
    let mut members: BTreeMap<&K, Vec<usize>> = BTreeMap::new();
    for (item, domain) in domains.iter().enumerate() {
        members.entry(domain).or_default().push(item);
    }
    let mut groups: Vec<Vec<usize>> = members.into_values().collect();
    // Who comes first is known by the items, not by names of domains.
    groups.sort();
    let mut placed: Vec<(u128, usize, usize)> = Vec::with_capacity(domains.len());
    for (group, items) in groups.iter().enumerate() {
        for (at, item) in items.iter().enumerate() {
            // The middle of its share of the whole, in fixed point.
            let place = ((2 * at as u128 + 1) << 64) / (2 * items.len().max(1) as u128);
            placed.push((place, group, *item));
        }
    }
    assert_eq!(placed.len(), domains.len(), "an item is in no domain, or in two");
    placed.sort_unstable();
    placed.into_iter().map(|(.., item)| item).collect()
}

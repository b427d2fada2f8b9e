//! Links between switches that are on the ways between hosts.

use std::collections::{BTreeMap, VecDeque};

use crate::network::{LinkEnd, Network};

/// Pairs of hosts, by index.
type Pairs = Vec<(usize, usize)>;

/// Returns for each link between two switches, in each direction, the pairs whose path crosses it. Of several shortest
/// paths one is chosen.
pub(crate) fn crossings(
    network: &Network,
    hosts: &[&str],
    pairs: &[(usize, usize)],
) -> BTreeMap<(String, String), Pairs> {
    let mut neighbours: BTreeMap<&LinkEnd, Vec<&LinkEnd>> = BTreeMap::new();
    for link in &network.links {
        neighbours.entry(&link.from).or_default().push(&link.to);
        neighbours.entry(&link.to).or_default().push(&link.from);
    }
    let mut over: BTreeMap<(String, String), Pairs> = BTreeMap::new();
    for (from, to) in pairs {
        let (Some(first), Some(last)) = (hosts.get(*from), hosts.get(*to)) else { continue };
        for link in way(&neighbours, first, last) {
            over.entry(link).or_default().push((*from, *to));
        }
    }
    over
}

/// Returns the switches that hosts are joined to: of each host the first one, by id.
#[must_use]
pub fn switch_of<'a>(network: &'a Network, host: &str) -> Option<&'a str> {
    let other = |link: &'a crate::network::Link| match (&link.from, &link.to) {
        (LinkEnd::Host(name), LinkEnd::Switch(id)) | (LinkEnd::Switch(id), LinkEnd::Host(name))
            if name == host =>
        {
            Some(id.as_str())
        }
        _ => None,
    };
    network.links.iter().filter_map(other).min()
}

/// Returns the links between switches of a shortest way, through no other host.
fn way(neighbours: &BTreeMap<&LinkEnd, Vec<&LinkEnd>>, from: &str, to: &str) -> Vec<(String, String)> {
    let (first, last) = (LinkEnd::Host(from.into()), LinkEnd::Host(to.into()));
    let mut before: BTreeMap<&LinkEnd, &LinkEnd> = BTreeMap::new();
    let mut queue = VecDeque::from([&first]);
    while let Some(vertex) = queue.pop_front() {
        if *vertex == last {
            break;
        }
        // Hosts forward nothing.
        if vertex.host().is_some() && *vertex != first {
            continue;
        }
        for next in neighbours.get(vertex).into_iter().flatten() {
            if **next != first && !before.contains_key(*next) {
                before.insert(*next, vertex);
                queue.push_back(*next);
            }
        }
    }
    let mut links = Vec::new();
    let mut vertex = &last;
    while let Some(previous) = before.get(vertex) {
        if let (LinkEnd::Switch(from), LinkEnd::Switch(to)) = (*previous, vertex) {
            links.push((from.clone(), to.clone()));
        }
        vertex = *previous;
    }
    links
}

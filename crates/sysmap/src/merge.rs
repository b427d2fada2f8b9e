//! Merges maps of single hosts into one map.

use std::collections::BTreeSet;

use crate::capacity::bandwidth;
use crate::host::Host;
use crate::network::{Link, LinkEnd, Map, Network, NetworkSwitch};

/// Returns whether two names are one host's: one may be with its domain, and the other without.
#[must_use]
pub fn is_same_host(one: &str, other: &str) -> bool {
    let short = |name: &str| name.split_once('.').map_or(name, |(short, _)| short).to_ascii_lowercase();
    let has_domain = |name: &str| name.contains('.');
    if has_domain(one) && has_domain(other) {
        return one.eq_ignore_ascii_case(other);
    }
    short(one) == short(other)
}

/// Merges maps: each host once, each network of the same name and source once, with those of its links that are between
/// members of the map. Of two hosts of one name the later one counts.
#[must_use]
pub fn merge(maps: Vec<Map>) -> Map {
    let mut whole = Map::default();
    for map in maps {
        for host in map.hosts {
            match place_of(&whole.hosts, &host.name).and_then(|index| whole.hosts.get_mut(index)) {
                Some(known) => *known = host,
                None => whole.hosts.push(host),
            }
        }
        for network in map.networks {
            add_network(&mut whole.networks, network);
        }
        whole.notes.extend(map.notes);
        whole.measured = map.measured.or(whole.measured);
    }
    whole.hosts.sort_by_cached_key(|host| natural(&host.name));
    whole.networks.sort_by(|a, b| (&a.name, &a.source).cmp(&(&b.name, &b.source)));
    whole.notes.sort();
    whole.notes.dedup();
    for network in &mut whole.networks {
        settle(network, &whole.hosts);
    }
    for host in &mut whole.hosts {
        host.available = host.compute_available();
    }
    whole
}

/// Returns the position of a host in a list, by its name with its domain or without. A short name that several hosts
/// may have is none of them.
fn place_of(hosts: &[Host], name: &str) -> Option<usize> {
    let exact = hosts.iter().position(|known| known.name == name);
    let mut same = hosts.iter().enumerate().filter(|(_, known)| is_same_host(&known.name, name));
    let only = same.next().filter(|_| same.next().is_none());
    exact.or(only.map(|(index, _)| index))
}

/// Numbers in names count as numbers: n2 comes before n10.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts: Vec<(String, u64)> = vec![(String::new(), 0)];
    let mut in_number = false;
    for c in name.chars() {
        if !c.is_ascii_digit() && in_number {
            parts.push((String::new(), 0));
        }
        in_number = c.is_ascii_digit();
        if let Some((text, number)) = parts.last_mut() {
            match c.to_digit(10) {
                Some(digit) => *number = number.saturating_mul(10).saturating_add(u64::from(digit)),
                None => text.push(c),
            }
        }
    }
    parts
}

fn add_network(networks: &mut Vec<Network>, network: Network) {
    let same = |known: &&mut Network| known.name == network.name && known.source == network.source;
    match networks.iter_mut().find(same) {
        Some(known) => {
            known.switches.extend(network.switches);
            known.links.extend(network.links);
            // Not the sum: several maps of one fabric count the same hosts.
            known.other_hosts = known.other_hosts.max(network.other_hosts);
        }
        None => networks.push(network),
    }
}

/// Names hosts as the map does, drops links of others, and counts each wire once.
fn settle(network: &mut Network, hosts: &[Host]) {
    let mut others = BTreeSet::new();
    let mut named = |end: LinkEnd| match end {
        LinkEnd::Host(name) => match hosts.iter().find(|host| is_same_host(&host.name, &name)) {
            Some(host) => Some(LinkEnd::Host(host.name.clone())),
            None => {
                others.insert(name);
                None
            }
        },
        switch => Some(switch),
    };
    let mut links = Vec::with_capacity(network.links.len());
    for link in std::mem::take(&mut network.links) {
        if let (Some(from), Some(to)) = (named(link.from), named(link.to)) {
            links.push(Link { from, to, ..link }.in_order());
        }
    }
    links.sort();
    links.dedup_by(|next, first| {
        let same = (&next.from, &next.from_port, &next.to, &next.to_port)
            == (&first.from, &first.from_port, &first.to, &first.to_port);
        if same {
            // Seen from two ends: the slower word counts, and one is better than none.
            first.speed_bits = first.speed_bits.into_iter().chain(next.speed_bits).min();
        }
        same
    });
    network.links = links;
    network.other_hosts = network.other_hosts.max(others.len());
    let mut switches: Vec<NetworkSwitch> = std::mem::take(&mut network.switches);
    // Those with a name come first of their id, as the first one is kept.
    switches.sort_by(|a, b| (&a.id, b.name.is_some()).cmp(&(&b.id, a.name.is_some())));
    switches.dedup_by(|next, first| next.id == first.id);
    network.switches = switches;
    network.bandwidth = bandwidth(network);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
        Host { name: name.into(), ..Host::default() }
    }

    fn link(from: LinkEnd, to: LinkEnd, speed: Option<u64>) -> Link {
        Link { from, from_port: Some("1".into()), to, to_port: Some("2".into()), speed_bits: speed }
    }

    #[test]
    fn a_host_with_its_domain_and_without_is_one() {
        let map =
            |names: &[&str]| Map { hosts: names.iter().map(|name| host(name)).collect(), ..Map::default() };
        let names = |maps: &[&[&str]]| {
            let merged = merge(maps.iter().map(|names| map(names)).collect());
            merged.hosts.into_iter().map(|host| host.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[&["n1.site"], &["n1"]]), ["n1"]);
        assert_eq!(names(&[&["n1.a"], &["n1.b"], &["n1"]]), ["n1", "n1.a", "n1.b"], "it may be either");
    }

    /// S524.
    #[test]
    fn hosts_and_wires_are_counted_once_however_often_they_are_seen() {
        let (a, s) = (LinkEnd::Host("n2.site.example".into()), LinkEnd::Switch("s".into()));
        let back = Link {
            from: s.clone(),
            from_port: Some("2".into()),
            to: LinkEnd::Host("n2".into()),
            to_port: Some("1".into()),
            speed_bits: Some(5),
        };
        let network = |links| Network {
            name: "lldp".into(),
            source: "lldpcli".into(),
            switches: vec![NetworkSwitch { id: "s".into(), name: None }],
            links,
            ..Network::default()
        };
        let stranger = link(LinkEnd::Host("other".into()), s.clone(), Some(1));
        let maps = vec![
            Map { hosts: vec![host("n10")], networks: vec![network(vec![back])], ..Map::default() },
            Map {
                hosts: vec![host("n2"), host("n10")],
                networks: vec![network(vec![link(a, s, None), stranger])],
                notes: vec!["x".into(), "x".into()],
                ..Map::default()
            },
        ];
        let whole = merge(maps);
        let names: Vec<&str> = whole.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["n2", "n10"]);
        let network = &whole.networks[0];
        assert_eq!((network.links.len(), network.other_hosts, network.switches.len()), (1, 1, 1));
        assert_eq!(network.links[0].from, LinkEnd::Host("n2".into()));
        assert_eq!(network.links[0].speed_bits, Some(5));
        assert_eq!(whole.notes, ["x"]);
        assert_eq!(merge(vec![whole.clone()]), whole, "merging again changes nothing");
    }

    #[test]
    fn domains_do_not_make_another_host() {
        assert!(is_same_host("n1", "N1.site.example"));
        assert!(!is_same_host("n1.a", "n1.b"));
        assert!(!is_same_host("n1", "n11"));
    }
}

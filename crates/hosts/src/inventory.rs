//! Hosts that have reported, and reasons why others have not: no sockets, no clock.

use bivouac_launch::RELEASE;
use bivouac_wire::rendezvous::Join;

use crate::list::{HostArg, same_host};

/// Maximum by which a host's clock may be off, in milliseconds: times of files would be nonsense beyond.
const CLOCK_OFF_MS_MAX: u64 = 30_000;

/// The hosts that were called, each with its presence.
#[derive(Debug)]
pub(crate) struct Inventory {
    hosts: Vec<(HostArg, Presence)>,
    /// Fewest nodes to start with.
    min_nodes: usize,
}

/// Presence of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Called, not heard of.
    Called,
    /// It has reported.
    Here(Box<Join>),
    /// It will not report, for this reason.
    Missing(String),
}

/// Decision about the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Wait for the others.
    Wait,
    /// Start with those who are there.
    Go,
    /// Too few will come.
    TooFew,
}

impl Inventory {
    pub fn new(hosts: Vec<HostArg>, min_nodes: Option<u16>) -> Inventory {
        let all: usize = hosts.iter().map(|host| usize::from(host.nodes)).sum();
        let min_nodes = min_nodes.map_or(all, usize::from).clamp(1, all.max(1));
        Inventory { hosts: hosts.into_iter().map(|host| (host, Presence::Called)).collect(), min_nodes }
    }

    /// Adds a host behind the others, which joins a formation that runs.
    pub fn add(&mut self, host: HostArg) {
        self.hosts.push((host, Presence::Called));
    }

    /// Forgets hosts that were added, so that `count` are left.
    pub fn truncate(&mut self, count: usize) {
        self.hosts.truncate(count);
    }

    pub fn host(&self, index: usize) -> &str {
        self.hosts.get(index).map_or("?", |(host, _)| host.name.as_str())
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    pub fn presence(&self, index: usize) -> Option<&Presence> {
        self.hosts.get(index).map(|(_, presence)| presence)
    }

    /// Takes in the report of a host. Returns which one it is, if it may take part.
    ///
    /// # Errors
    /// Why it is not let in.
    pub fn came(&mut self, join: Join, now_unix_ms: u64) -> Result<usize, String> {
        let Some(index) = self.find(&join) else {
            return Err(format!("host {} ({}) was not called", join.host, join.machine));
        };
        if let Some((_, Presence::Here(other))) = self.hosts.get(index) {
            return Err(format!("host {} reported already, from {}", join.host, other.machine));
        }
        if let Some((_, Presence::Missing(reason))) = self.hosts.get(index) {
            return Err(reason.clone());
        }
        if let Some(trouble) = trouble(&join, now_unix_ms) {
            self.miss(index, trouble.clone());
            return Err(trouble);
        }
        // Two parts on one machine would use the same directory and count its memory twice.
        if let Some(other) = self.same_machine(&join) {
            let text =
                format!("is the same machine as {other}; name it once, with a number of nodes: {other}:2");
            self.miss(index, text.clone());
            return Err(text);
        }
        if let Some((_, presence)) = self.hosts.get_mut(index) {
            // Its nodes would be in the map twice, or be those of a host that was given up.
            assert!(*presence == Presence::Called, "host {} is {presence:?} and reports", join.host);
            *presence = Presence::Here(Box::new(join));
        }
        Ok(index)
    }

    /// Notes that a host will not come. The first reason counts: the others follow from it.
    pub fn miss(&mut self, index: usize, reason: String) {
        if let Some((_, presence)) = self.hosts.get_mut(index)
            && !matches!(presence, Presence::Missing(_))
        {
            *presence = Presence::Missing(reason);
        }
    }

    /// Gives up all hosts that have not reported.
    pub fn time_is_up(&mut self, waited_s: u64) {
        for (_, presence) in self.hosts.iter_mut().filter(|(_, presence)| *presence == Presence::Called) {
            let text = format!("did not report within {waited_s} s; see --start-timeout");
            *presence = Presence::Missing(text);
        }
    }

    pub fn verdict(&self) -> Verdict {
        let nodes = |wanted: fn(&Presence) -> bool| -> usize {
            self.hosts.iter().filter(|(_, p)| wanted(p)).map(|(host, _)| usize::from(host.nodes)).sum()
        };
        let here = nodes(|presence| matches!(presence, Presence::Here(_)));
        let open = nodes(|presence| *presence == Presence::Called);
        if open > 0 {
            // Also when it is too late: the reasons of all are worth more than an early end.
            return Verdict::Wait;
        }
        if here >= self.min_nodes { Verdict::Go } else { Verdict::TooFew }
    }

    /// Returns the hosts that have reported, in the order in which they were named.
    pub fn here(&self) -> impl Iterator<Item = (usize, &HostArg, &Join)> {
        self.hosts.iter().enumerate().filter_map(|(index, (host, presence))| match presence {
            Presence::Here(join) => Some((index, host, join.as_ref())),
            _ => None,
        })
    }

    /// Returns the others, with the reasons.
    pub fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        self.hosts.iter().filter_map(|(host, presence)| match presence {
            Presence::Missing(reason) => Some((host.name.as_str(), reason.as_str())),
            _ => None,
        })
    }

    /// Returns the reason why the formation does not start.
    pub fn too_few(&self) -> String {
        let here: usize = self.here().map(|(_, host, _)| usize::from(host.nodes)).sum();
        let all: usize = self.hosts.iter().map(|(host, _)| usize::from(host.nodes)).sum();
        let mut text = format!("only {here} of {all} nodes are there, {} are wanted:", self.min_nodes);
        for (host, reason) in self.missing() {
            text.push_str(&format!("\n  host {host}: {reason}"));
        }
        text + "\nset that right, or start with less: --min-nodes"
    }

    /// Returns the host with the name that the launcher uses; else the one whose own name it is.
    fn find(&self, join: &Join) -> Option<usize> {
        let position = |name: &str| self.hosts.iter().position(|(host, _)| same_host(bare(&host.name), name));
        self.hosts
            .iter()
            .position(|(host, _)| host.name == join.host)
            .or_else(|| position(&join.host))
            .or_else(
                // The only one that is called cannot be another.
                || position(&join.machine),
            )
    }

    fn same_machine(&self, join: &Join) -> Option<String> {
        let mut here = self.here();
        let place = |join: &Join| {
            let address = join.nodes.first().map(|node| node.client_address.clone());
            (join.directory.clone(), address.unwrap_or_default())
        };
        let own = place(join);
        let is_same = |other: &Join| {
            let there = place(other);
            other.machine == join.machine && shares_directory((&there.0, &there.1), (&own.0, &own.1))
        };
        here.find(|(_, _, other)| is_same(other)).map(|(_, host, _)| host.name.clone())
    }
}

/// Returns true if two hosts, each with a directory and the address of a node, share the directory. Two machines may
/// have one name by mistake; addresses decide.
pub(crate) fn shares_directory(a: (&str, &str), b: (&str, &str)) -> bool {
    let ip = |address: &str| address.rsplit_once(':').map(|(ip, _)| ip.to_owned());
    a.0 == b.0 && ip(a.1) == ip(b.1)
}

/// Returns the reason why a host cannot take part, if there is one.
pub(crate) fn trouble(join: &Join, now_unix_ms: u64) -> Option<String> {
    if let Some(trouble) = &join.trouble {
        return Some(trouble.clone());
    }
    // Messages, volumes and maps of two releases may differ in ways that neither of them notices.
    if join.release != RELEASE {
        let theirs = &join.release;
        return Some(format!(
            "version: it has bivouac {theirs}, this is {RELEASE}; use one release, or --send"
        ));
    }
    if join.nodes.is_empty() {
        return Some("brings no node".into());
    }
    let off = join.now_unix_ms.abs_diff(now_unix_ms);
    (off > CLOCK_OFF_MS_MAX).then(|| {
        let (off, most) = (off / 1000, CLOCK_OFF_MS_MAX / 1000);
        format!("clock: it is {off} s off, {most} s at most are allowed; set it (chrony, ntpd)")
    })
}

/// Returns the host's name without the user in front.
fn bare(name: &str) -> &str {
    name.rsplit_once('@').map_or(name, |(_, host)| host)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::list::parse_hosts;
    use bivouac_wire::rendezvous::JoinNode;

    const NOW: u64 = 1_000_000;

    pub(crate) fn join(host: &str) -> Join {
        let node = JoinNode {
            client_address: format!("10.0.0.{}:1", host.len()),
            peer_address: "10.0.0.1:2".into(),
            volumes: vec![],
        };
        Join {
            release: RELEASE.into(),
            host: host.into(),
            machine: host.into(),
            now_unix_ms: NOW,
            directory: "/run/x".into(),
            trouble: None,
            nodes: vec![node],
        }
    }

    fn inventory(hosts: &str, min: Option<u16>) -> Inventory {
        Inventory::new(parse_hosts(hosts, 1).unwrap(), min)
    }

    #[test]
    fn all_must_come_unless_less_are_enough() {
        let mut all = inventory("a,bb,ccc", None);
        assert_eq!(all.came(join("a"), NOW), Ok(0));
        assert_eq!(all.came(join("ccc"), NOW), Ok(2));
        assert_eq!(all.verdict(), Verdict::Wait);
        all.miss(1, "ssh: no route to host".into());
        all.miss(1, "something later".into());
        assert_eq!(all.verdict(), Verdict::TooFew);
        let text = all.too_few();
        assert!(
            text.starts_with(
                "only 2 of 3 nodes are there, 3 are wanted:\n  host bb: ssh: no route to host\n"
            ),
            "{text}"
        );
        let mut two = inventory("a,bb,ccc", Some(2));
        two.came(join("a"), NOW).unwrap();
        two.came(join("ccc"), NOW).unwrap();
        two.time_is_up(60);
        assert_eq!(two.verdict(), Verdict::Go);
        assert_eq!(
            two.missing().collect::<Vec<_>>(),
            [("bb", "did not report within 60 s; see --start-timeout")]
        );
        let here: Vec<usize> = two.here().map(|(index, ..)| index).collect();
        assert_eq!(here, [0, 2]);
    }

    #[test]
    fn hosts_are_known_by_any_of_their_names() {
        let mut some = inventory("u@n1,n2.example", None);
        assert_eq!(some.came(join("n1"), NOW), Ok(0));
        assert_eq!(some.came(Join { machine: "n2".into(), ..join("other") }, NOW), Ok(1));
        let refusal = some.came(join("n3"), NOW).unwrap_err();
        assert_eq!(refusal, "host n3 (n3) was not called");
        assert!(some.came(join("n1"), NOW).unwrap_err().contains("reported already"));
    }

    #[test]
    fn who_does_not_fit_is_told_why() {
        let mut some = inventory("a,bb,ccc,dddd,eeeee", None);
        let cases = [
            (Join { trouble: Some("no space".into()), ..join("a") }, "no space"),
            (Join { release: "9.9".into(), ..join("bb") }, "version: it has bivouac 9.9"),
            (Join { now_unix_ms: NOW + 31_000, ..join("ccc") }, "clock: it is 31 s off"),
            (Join { nodes: vec![], ..join("dddd") }, "brings no node"),
        ];
        for (join, says) in cases {
            let refusal = some.came(join, NOW).unwrap_err();
            assert!(refusal.contains(says), "{refusal}");
        }
        assert_eq!(some.came(join("eeeee"), NOW + 29_000), Ok(4));
        assert_eq!((some.verdict(), some.missing().count()), (Verdict::TooFew, 4));
    }

    #[test]
    fn one_machine_under_two_names_is_found() {
        let mut some = inventory("a,b", None);
        some.came(Join { machine: "m".into(), ..join("a") }, NOW).unwrap();
        let refusal = some.came(Join { machine: "m".into(), ..join("b") }, NOW).unwrap_err();
        assert!(refusal.contains("is the same machine as a"), "{refusal}");
    }
}

//! Networks between machines, and the map as a whole.

use serde::{Deserialize, Serialize};

use crate::bandwidth::Bandwidth;
use crate::host::{Host, SCHEMA};
use crate::measured::Measured;

/// Machines and what joins them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// [`SCHEMA`].
    pub schema: String,
    /// The hosts, by name.
    pub hosts: Vec<Host>,
    /// The networks, by name.
    pub networks: Vec<Network>,
    /// Parts that could not be looked at, with the reasons.
    pub notes: Vec<String>,
    /// Bandwidth of transfers between the hosts, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// A network, as one source describes it. Several sources that describe the same wires are several networks: a map does
/// not guess that two names are one switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// `infiniband`, `slurm` or `lldp`.
    pub name: String,
    /// Source of the network.
    pub source: String,
    /// Its switches.
    pub switches: Vec<NetworkSwitch>,
    /// Its links, between hosts and switches of this map.
    pub links: Vec<Link>,
    /// Number of hosts that it joins that are not in this map; their links are left out.
    pub other_hosts: usize,
    /// Its bandwidth; none if it joins fewer than two hosts of the map.
    pub bandwidth: Option<Bandwidth>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSwitch {
    /// Its identity within its network.
    pub id: String,
    /// Its name for people.
    pub name: Option<String>,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkEnd {
    /// A host, by name.
    Host(String),
    /// A switch, by id.
    Switch(String),
}

/// A link; it carries as much in both directions at the same time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Link {
    /// One end.
    pub from: LinkEnd,
    /// Its port there.
    pub from_port: Option<String>,
    /// The other end.
    pub to: LinkEnd,
    /// Its port there.
    pub to_port: Option<String>,
    /// Bits per second in each direction.
    pub speed_bits: Option<u64>,
}

impl Default for Map {
    fn default() -> Map {
        Map {
            schema: SCHEMA.into(),
            hosts: Vec::new(),
            networks: Vec::new(),
            notes: Vec::new(),
            measured: None,
        }
    }
}

impl Map {
    /// Calls a host by another name, wherever it is named.
    pub fn rename(&mut self, old: &str, new: &str) {
        for host in self.hosts.iter_mut().filter(|host| host.name == old) {
            host.name = new.to_owned();
        }
        let links = self.networks.iter_mut().flat_map(|network| &mut network.links);
        for end in links.flat_map(|link| [&mut link.from, &mut link.to]) {
            if end.host() == Some(old) {
                *end = LinkEnd::Host(new.to_owned());
            }
        }
        let bandwidths = self.networks.iter_mut().filter_map(|network| network.bandwidth.as_mut());
        let named = bandwidths
            .flat_map(Bandwidth::hosts_named)
            .chain(self.measured.iter_mut().flat_map(Measured::hosts_named));
        named.filter(|name| *name == old).for_each(|name| *name = new.to_owned());
    }
}

impl Link {
    /// Returns the same link, with its lesser end first: links that are seen from both ends are then equal.
    #[must_use]
    pub fn in_order(self) -> Link {
        if (&self.from, &self.from_port) <= (&self.to, &self.to_port) {
            return self;
        }
        let Link { from, from_port, to, to_port, speed_bits } = self;
        Link { from: to, from_port: to_port, to: from, to_port: from_port, speed_bits }
    }
}

impl LinkEnd {
    /// Returns the host, if it is one.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match self {
            LinkEnd::Host(name) => Some(name),
            LinkEnd::Switch(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::Transfer;

    #[test]
    fn a_host_is_renamed_wherever_it_is_named() {
        let transfer = |from: &str, to: &str| Transfer {
            from: from.into(),
            to: to.into(),
            bits: 1,
            expected_bits: None,
            alone: true,
        };
        let measured =
            Measured { transfers: vec![transfer("a", "b"), transfer("b", "a")], ..Measured::default() };
        let mut map = Map { measured: Some(measured), ..Map::default() };
        map.rename("a", "new");
        let renamed = map.measured.unwrap().transfers;
        assert_eq!(renamed, [transfer("new", "b"), transfer("b", "new")]);
    }
}

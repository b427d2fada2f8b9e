//! Neighbours on Ethernet by LLDP, as lldpd has heard them.

use std::collections::BTreeMap;

use bivouac_sysmap::{Host, Link, LinkEnd, Network, NetworkSwitch};

use crate::machine::Machine;

/// Returns the network that joins a host to its switches.
pub fn look(machine: &dyn Machine, host: &Host) -> Option<Network> {
    let text = machine.output(&["lldpcli", "-f", "keyvalue", "show", "neighbors"])?;
    // lldp.eth0.chassis.name=leaf1
    let mut neighbours: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=')
            && let Some((interface, what)) = interface(host, key)
        {
            // The first one counts: several neighbours of one interface have the same keys.
            neighbours.entry(interface).or_default().entry(what).or_insert(value.trim());
        }
    }
    let mut network = Network { name: "lldp".into(), source: "lldpcli".into(), ..Network::default() };
    for (name, neighbour) in neighbours {
        let is_off = |what| neighbour.get(what).is_some_and(|value| *value == "off");
        // Addresses first, as names need not be unique.
        let chassis = neighbour.get("chassis.mac").or_else(|| neighbour.get("chassis.local"));
        let Some(id) = chassis.or_else(|| neighbour.get("chassis.name")) else { continue };
        if is_off("chassis.Bridge.enabled")
            && neighbour.get("chassis.Router.enabled").is_none_or(|on| *on != "on")
        {
            // Another host.
            continue;
        }
        let port = neighbour.get("port.ifname").or_else(|| neighbour.get("port.local"));
        let speed = host.interfaces.iter().find(|one| one.name == name).and_then(|one| one.speed_bits);
        network.switches.push(NetworkSwitch {
            id: (*id).to_owned(),
            name: neighbour.get("chassis.name").map(|name| (*name).to_owned()),
        });
        let link = Link {
            from: LinkEnd::Host(host.name.clone()),
            from_port: Some(name.to_owned()),
            to: LinkEnd::Switch((*id).to_owned()),
            to_port: port.or_else(|| neighbour.get("port.mac")).map(|port| (*port).to_owned()),
            speed_bits: speed,
        };
        network.links.push(link.in_order());
    }
    (!network.links.is_empty()).then_some(network)
}

/// Returns the interface of a key, and the rest. Names of interfaces may have dots in them, so those that are known
/// come first.
fn interface<'a>(host: &'a Host, key: &'a str) -> Option<(&'a str, &'a str)> {
    let rest = key.strip_prefix("lldp.")?;
    let known = host
        .interfaces
        .iter()
        .find_map(|one| Some((one.name.as_str(), rest.strip_prefix(one.name.as_str())?.strip_prefix('.')?)));
    known.or_else(|| rest.split_once('.'))
}

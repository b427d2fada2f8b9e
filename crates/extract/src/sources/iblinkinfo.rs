//! The InfiniBand fabric by `iblinkinfo`.

use std::collections::BTreeMap;

use bivouac_sysmap::{Link, LinkEnd, Network, NetworkSwitch};

use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Network> = Source { name: "iblinkinfo", look };

/// A port that has a link, as a line has it.
struct Port<'a> {
    /// The number of its node in the subnet.
    lid: &'a str,
    port: &'a str,
    speed_bits: Option<u64>,
    peer_lid: &'a str,
    peer_port: &'a str,
    peer_name: &'a str,
}

fn look(machine: &dyn Machine) -> Option<Network> {
    let text = machine.output(&["iblinkinfo"])?;
    let mut network = Network { name: "infiniband".into(), source: SOURCE.name.into(), ..Network::default() };
    // Lines name their peers by number only, so the switches come first.
    let mut switches: BTreeMap<&str, &str> = BTreeMap::new();
    let mut current: Option<(&str, &str)> = None;
    for line in text.lines() {
        if let Some((kind, rest)) = header(line) {
            current = (kind == "Switch").then(|| rest.split_once(' ').unwrap_or((rest, "")));
        } else if let (Some((guid, name)), Some(port)) = (current, port(line))
            // Each port of a switch says its number again.
            && switches.insert(port.lid, guid).is_none()
        {
            let name = Some(name.trim().to_owned()).filter(|name| !name.is_empty());
            network.switches.push(NetworkSwitch { id: guid.to_owned(), name });
        }
    }
    let mut is_switch = false;
    for line in text.lines() {
        if let Some((kind, _)) = header(line) {
            // The switches' lines have all links: those of hosts would be the same ones again.
            is_switch = kind == "Switch";
        } else if let Some(port) = port(line).filter(|_| is_switch)
            && let Some(from) = switches.get(port.lid)
        {
            let to = match switches.get(port.peer_lid) {
                Some(peer) => LinkEnd::Switch((*peer).to_owned()),
                // A host's description begins with the name that its operating system set.
                None => match port.peer_name.split_whitespace().next() {
                    Some(host) => LinkEnd::Host(host.to_owned()),
                    None => continue,
                },
            };
            let link = Link {
                from: LinkEnd::Switch((*from).to_owned()),
                from_port: Some(port.port.to_owned()),
                to,
                to_port: Some(port.peer_port.to_owned()),
                speed_bits: port.speed_bits,
            };
            network.links.push(link.in_order());
        }
    }
    (!network.links.is_empty()).then_some(network)
}

/// Parses `Switch: 0x0002c902004885b0 MF0;leaf1:SX6036/U1:`, `CA: n001 HCA-1:`.
fn header(line: &str) -> Option<(&str, &str)> {
    let (kind, rest) = line.split_once(": ")?;
    let is_known = matches!(kind, "Switch" | "CA" | "Router");
    is_known.then(|| (kind, rest.trim_end().trim_end_matches(':')))
}

/// `           4    1[  ] ==( 4X  25.78125 Gbps Active/  LinkUp)==>       1    1[  ] "n001 HCA-1" ( )`.
fn port(line: &str) -> Option<Port<'_>> {
    let (near, rest) = line.split_once("==(")?;
    let (state, far) = rest.split_once(")==>")?;
    if !state.contains("LinkUp") {
        return None;
    }
    let mut near = near.split_once('[')?.0.split_whitespace().rev();
    let (port, lid) = (near.next()?, near.next()?);
    let (numbers, name) = far.split_once('[')?;
    let mut numbers = numbers.split_whitespace();
    let (peer_lid, peer_port) = (numbers.next()?, numbers.next()?);
    let peer_name = name.split_once('"')?.1.split_once('"')?.0;
    Some(Port { lid, port, speed_bits: speed(state), peer_lid, peer_port, peer_name })
}

/// Returns the speed of `4X  25.78125 Gbps`: lanes, and what is on the wire of each; of that, what is data.
fn speed(state: &str) -> Option<u64> {
    let mut words = state.split_whitespace();
    let lanes: u64 = words.next()?.strip_suffix('X')?.parse().ok()?;
    let lane = match words.next()? {
        "2.5" => 2_000_000_000,
        "5.0" => 4_000_000_000,
        "10.0" => 8_000_000_000,
        "14.0625" => 13_636_363_636,
        "25.78125" => 25_000_000_000,
        "53.125" => 50_000_000_000,
        "106.25" => 100_000_000_000,
        "212.5" => 200_000_000_000,
        _ => return None,
    };
    lanes.checked_mul(lane)
}

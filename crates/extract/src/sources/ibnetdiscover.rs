//! The InfiniBand fabric by `ibnetdiscover`.

use bivouac_sysmap::{Link, LinkEnd, Network, NetworkSwitch};

use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Network> = Source { name: "ibnetdiscover", look };

fn look(machine: &dyn Machine) -> Option<Network> {
    let text = machine.output(&["ibnetdiscover"])?;
    let mut network = Network { name: "infiniband".into(), source: SOURCE.name.into(), ..Network::default() };
    let mut current: Option<LinkEnd> = None;
    for line in text.lines() {
        if let Some(node) = node(line) {
            let (end, switch) = node;
            network.switches.extend(switch);
            current = Some(end);
        } else if line.starts_with('[') {
            let switch = current.as_ref().filter(|end| end.host().is_none());
            network.links.extend(switch.and_then(|switch| link(switch, line)));
        }
    }
    (!network.links.is_empty()).then_some(network)
}

/// `Switch  36 "S-7cfe900300a1b2c0"  # "MF0;leaf1:MSB7700/U1" enhanced port 0 lid 1 lmc 0`, `Ca  1 "H-7cfe9003009a1b2c"
/// # "n001 HCA-1"`.
fn node(line: &str) -> Option<(LinkEnd, Option<NetworkSwitch>)> {
    let is_switch = line.starts_with("Switch");
    if !is_switch && !line.starts_with("Ca") && !line.starts_with("Rt") {
        return None;
    }
    let (node, comment) = line.split_once('#').unwrap_or((line, ""));
    let id = quoted(node)?;
    let name = quoted(comment).map(str::trim).filter(|name| !name.is_empty());
    let switch = is_switch.then(|| NetworkSwitch { id: id.to_owned(), name: name.map(str::to_owned) });
    Some((end(id, name), switch))
}

/// Returns a switch by its id; a host by the first word of its description, which is what its operating system sets
/// there.
fn end(id: &str, name: Option<&str>) -> LinkEnd {
    match name.and_then(|name| name.split_whitespace().next()) {
        Some(host) if id.starts_with("H-") => LinkEnd::Host(host.to_owned()),
        _ => LinkEnd::Switch(id.to_owned()),
    }
}

/// `[17]  "H-7cfe9003009a1b2c"[1](7cfe9003009a1b2c)  # "n001 HCA-1" lid 5 4xEDR`; those of switches name all links.
fn link(switch: &LinkEnd, line: &str) -> Option<Link> {
    let (wire, comment) = line.split_once('#')?;
    let port = wire.strip_prefix('[')?.split_once(']')?.0;
    let id = quoted(wire)?;
    let peer_port = wire.rsplit_once('"')?.1.split_once('[')?.1.split_once(']')?.0;
    let name = quoted(comment).map(str::trim);
    let link = Link {
        from: switch.clone(),
        from_port: Some(port.to_owned()),
        to: end(id, name),
        to_port: Some(peer_port.to_owned()),
        speed_bits: comment.split_whitespace().next_back().and_then(speed),
    };
    Some(link.in_order())
}

fn quoted(text: &str) -> Option<&str> {
    Some(text.split_once('"')?.1.split_once('"')?.0)
}

/// Returns the speed of `4xEDR`: bits of data per second, without what coding adds on the wire.
fn speed(word: &str) -> Option<u64> {
    let (width, name) = word.split_once('x')?;
    width.parse::<u64>().ok()?.checked_mul(lane(name)?)
}

/// Returns the speed of one lane, by the InfiniBand specification: those up to QDR carry 8 bits in 10, later ones 64 in
/// 66 or as good as all.
fn lane(name: &str) -> Option<u64> {
    Some(match name {
        "SDR" => 2_000_000_000,
        "DDR" => 4_000_000_000,
        "QDR" => 8_000_000_000,
        "FDR10" => 10_000_000_000,
        "FDR" => 13_636_363_636,
        "EDR" => 25_000_000_000,
        "HDR" => 50_000_000_000,
        "NDR" => 100_000_000_000,
        "XDR" => 200_000_000_000,
        _ => return None,
    })
}

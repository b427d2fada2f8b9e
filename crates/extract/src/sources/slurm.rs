//! The network as Slurm was told: `scontrol show topology`, or the file. Its speeds have no unit, so they say nothing
//! here.

use bivouac_sysmap::{Link, LinkEnd, Network, NetworkSwitch};

use crate::machine::Machine;
use crate::names::hosts_of_list;
use crate::sources::Source;

pub const SHOWN: Source<Network> = Source { name: "scontrol", look: shown };
pub const WRITTEN: Source<Network> = Source { name: "topology.conf", look: written };

/// Possible paths of the file.
const PATHS: [&str; 3] =
    ["/etc/slurm/topology.conf", "/etc/slurm-llnl/topology.conf", "/usr/local/etc/topology.conf"];

fn shown(machine: &dyn Machine) -> Option<Network> {
    network(SHOWN.name, &machine.output(&["scontrol", "show", "topology"])?)
}

fn written(machine: &dyn Machine) -> Option<Network> {
    PATHS.iter().find_map(|path| network(WRITTEN.name, &machine.text(path)?))
}

fn network(source: &str, text: &str) -> Option<Network> {
    let mut network = Network { name: "slurm".into(), source: source.into(), ..Network::default() };
    for line in lines(text) {
        let field = |key: &str| {
            let mut fields = line.split_whitespace().filter_map(|field| field.split_once('='));
            fields.find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
        };
        let Some(name) = field("SwitchName") else { continue };
        // Of a switch that has others below it, it names all hosts that can be reached through it.
        // Better no network than one without some of its hosts, so one list that makes no sense ends it.
        let below: Vec<LinkEnd> = match (field("Switches"), field("Nodes")) {
            (Some(list), _) => hosts_of_list(list)?.into_iter().map(LinkEnd::Switch).collect(),
            (None, Some(list)) => hosts_of_list(list)?.into_iter().map(LinkEnd::Host).collect(),
            (None, None) => Vec::new(),
        };
        network.switches.push(NetworkSwitch { id: name.to_owned(), name: None });
        network.links.extend(below.into_iter().map(|end| {
            let up = LinkEnd::Switch(name.to_owned());
            Link { from: up, from_port: None, to: end, to_port: None, speed_bits: None }.in_order()
        }));
    }
    (!network.links.is_empty()).then_some(network)
}

/// Returns the lines without comments, and with those put together that go on behind a backslash.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for line in text.lines() {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim_end();
        let goes_on = line.ends_with('\\');
        if let Some(last) = lines.last_mut() {
            last.push_str(line.trim_end_matches('\\'));
            last.push(' ');
        }
        if !goes_on {
            lines.push(String::new());
        }
    }
    lines
}

//! Parts with memory of their own, by sysfs.

use bivouac_sysmap::NumaNode;

use super::{meminfo, word};
use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Vec<NumaNode>> = Source { name: "sysfs", look };

const NODES: &str = "/sys/devices/system/node";

fn look(machine: &dyn Machine) -> Option<Vec<NumaNode>> {
    let mut nodes: Vec<NumaNode> = machine
        .names(NODES)
        .iter()
        .filter_map(|name| {
            let dir = format!("{NODES}/{name}");
            let distances = word(machine, &format!("{dir}/distance")).unwrap_or_default();
            Some(NumaNode {
                id: name.strip_prefix("node")?.parse().ok()?,
                // Not `word`: the list of a part without processors is empty.
                processors: machine.text(&format!("{dir}/cpulist"))?.trim().to_owned(),
                memory_bytes: machine
                    .text(&format!("{dir}/meminfo"))
                    .and_then(|text| meminfo::bytes(&text, "MemTotal")),
                distances: distances.split_whitespace().filter_map(|word| word.parse().ok()).collect(),
            })
        })
        .collect();
    // The names are in order as text, with node10 before node2.
    nodes.sort_by_key(|node| node.id);
    (!nodes.is_empty()).then_some(nodes)
}

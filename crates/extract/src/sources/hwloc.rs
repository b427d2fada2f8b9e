//! Processors and memory by hwloc, as `lstopo` writes them: what this process may use.

use std::collections::BTreeMap;

use bivouac_sysmap::{Cache, Memory, NumaNode, Processors, Socket};
use roxmltree::{Document, Node, ParsingOptions};

use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Processors> = Source { name: "hwloc", look: processors };
pub const MEMORY: Source<Memory> = Source { name: "hwloc", look: memory };
pub const NUMA: Source<Vec<NumaNode>> = Source { name: "hwloc", look: numa };

fn text(machine: &dyn Machine) -> Option<String> {
    machine.output(&["lstopo-no-graphics", "--of", "xml"])
}

fn parsed(text: &str) -> Option<Document<'_>> {
    // It names the description of its form, which nobody reads.
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).ok()
}

fn objects<'a, 'b: 'a>(root: Node<'a, 'b>, kind: &'a str) -> impl Iterator<Item = Node<'a, 'b>> {
    root.descendants()
        .filter(move |node| node.tag_name().name() == "object" && node.attribute("type") == Some(kind))
}

fn number<T: std::str::FromStr>(node: Node<'_, '_>, key: &str) -> Option<T> {
    node.attribute(key)?.parse().ok()
}

fn count(root: Node<'_, '_>, kind: &str) -> u32 {
    u32::try_from(objects(root, kind).count()).unwrap_or(u32::MAX)
}

fn processors(machine: &dyn Machine) -> Option<Processors> {
    let text = text(machine)?;
    let document = parsed(&text)?;
    let root = document.root();
    let threads = Some(count(root, "PU")).filter(|threads| *threads > 0)?;
    let mut caches: BTreeMap<(u32, String, u64), u32> = BTreeMap::new();
    // `L1Cache`, `L1iCache` and so on; hwloc 1 calls them all `Cache`.
    for node in
        root.descendants().filter(|node| node.attribute("type").is_some_and(|kind| kind.ends_with("Cache")))
    {
        let (Some(level), Some(size)) = (number(node, "depth"), number(node, "cache_size")) else { continue };
        let kind = match node.attribute("cache_type") {
            Some("1") => "data",
            Some("2") => "instruction",
            _ => "unified",
        };
        *caches.entry((level, kind.to_owned(), size)).or_default() += 1;
    }
    let model = objects(root, "Package").find_map(|package| {
        let infos = package.children().filter(|child| child.tag_name().name() == "info");
        let named = |info: &Node<'_, '_>| info.attribute("name") == Some("CPUModel");
        Some(infos.filter(named).find_map(|info| info.attribute("value"))?.to_owned())
    });
    let sockets = objects(root, "Package").map(|package| Socket {
        id: number(package, "os_index").unwrap_or(0),
        cores: count(package, "Core"),
        threads: count(package, "PU"),
    });
    Some(Processors {
        model,
        sockets: sockets.collect(),
        cores: Some(count(root, "Core")).filter(|cores| *cores > 0),
        threads: Some(threads),
        caches: caches
            .into_iter()
            .map(|((level, kind, size_bytes), count)| Cache { level, kind, size_bytes, count })
            .collect(),
    })
}

fn memory(machine: &dyn Machine) -> Option<Memory> {
    let nodes = numa(machine)?;
    let total = nodes.iter().filter_map(|node| node.memory_bytes).sum();
    (total > 0).then_some(Memory { total_bytes: total, swap_bytes: None })
}

fn numa(machine: &dyn Machine) -> Option<Vec<NumaNode>> {
    let text = text(machine)?;
    let document = parsed(&text)?;
    let nodes = objects(document.root(), "NUMANode").map(|node| NumaNode {
        id: number(node, "os_index").unwrap_or(0),
        // Its bits are written as a mask, which is not the kernel's list.
        processors: String::new(),
        memory_bytes: number(node, "local_memory"),
        distances: Vec::new(),
    });
    let nodes: Vec<NumaNode> = nodes.collect();
    (!nodes.is_empty()).then_some(nodes)
}

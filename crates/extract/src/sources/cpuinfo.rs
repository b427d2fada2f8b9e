//! Processors by /proc/cpuinfo, where there is no sysfs.

use std::collections::{BTreeMap, BTreeSet};

use bivouac_sysmap::{Processors, Socket};

use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Processors> = Source { name: "procfs", look };

const PATH: &str = "/proc/cpuinfo";
/// Keys of the model's name, by architecture.
const MODELS: [&str; 3] = ["model name", "cpu model", "cpu"];

/// Returns the maker's name for the processors.
pub fn model(machine: &dyn Machine) -> Option<String> {
    let text = machine.text(PATH)?;
    MODELS.iter().find_map(|model| field(text.lines(), model).map(str::to_owned))
}

fn field<'a>(lines: impl Iterator<Item = &'a str>, key: &str) -> Option<&'a str> {
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    fields
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
        .filter(|value| !value.is_empty())
}

/// Sockets by id, from the set of their cores and the number of their threads.
pub(super) fn listed_sockets<C>(sockets: BTreeMap<u32, (BTreeSet<C>, u32)>) -> Vec<Socket> {
    let socket = |(id, (cores, threads)): (u32, (BTreeSet<C>, u32))| {
        let cores = u32::try_from(cores.len()).unwrap_or(u32::MAX);
        assert!(cores <= threads, "socket {id} has {cores} cores with {threads} threads");
        Socket { id, cores, threads }
    };
    sockets.into_iter().map(socket).collect()
}

fn look(machine: &dyn Machine) -> Option<Processors> {
    let text = machine.text(PATH)?;
    // Some architectures end with a block that is of no processor.
    let blocks = text.split("\n\n").filter(|block| field(block.lines(), "processor").is_some());
    let mut sockets: BTreeMap<u32, (BTreeSet<u32>, u32)> = BTreeMap::new();
    let mut threads = 0;
    for block in blocks {
        threads += 1;
        let number = |key| field(block.lines(), key).and_then(|value| value.parse().ok());
        if let (Some(socket), Some(core)) = (number("physical id"), number("core id")) {
            let (cores, threads) = sockets.entry(socket).or_default();
            cores.insert(core);
            *threads += 1;
        }
    }
    let sockets = listed_sockets(sockets);
    (threads > 0).then(|| Processors {
        model: model(machine),
        // Some architectures name no sockets.
        cores: (!sockets.is_empty()).then(|| sockets.iter().map(|socket| socket.cores).sum()),
        threads: Some(threads),
        sockets,
        caches: Vec::new(),
    })
}

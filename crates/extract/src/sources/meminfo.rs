//! Memory by /proc/meminfo.

use bivouac_sysmap::Memory;

use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Memory> = Source { name: "procfs", look };

fn look(machine: &dyn Machine) -> Option<Memory> {
    let text = machine.text("/proc/meminfo")?;
    Some(Memory { total_bytes: bytes(&text, "MemTotal")?, swap_bytes: bytes(&text, "SwapTotal") })
}

/// Returns the value of a line of such a text: `MemTotal:  24656932 kB`, also behind `Node 0`.
pub fn bytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.split_whitespace().next_back() == Some(key)).then_some(value)
    })?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

//! The machine that figures come from.

use std::fmt;

use bivouac_types::units::format_size;
use serde::Serialize;

use crate::scratch::kib_of;

/// Properties of the machine that a reader must know to place its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    kernel: String,
    processor: String,
    processors: usize,
    memory_bytes: u64,
    release: &'static str,
}

impl Machine {
    /// Looks at this one.
    #[must_use]
    pub fn look() -> Machine {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Machine {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processor: model(&text("/proc/cpuinfo")),
            processors: std::thread::available_parallelism().map_or(1, Into::into),
            memory_bytes: kib_of(&text("/proc/meminfo"), "MemTotal:").unwrap_or(0),
            release: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { kernel, processor, processors, memory_bytes, release } = self;
        let memory = format_size(*memory_bytes);
        write!(f, "bivouac {release}, {processors} x {processor}, {memory}, Linux {kernel}")
    }
}

fn model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    line.map_or_else(|| "unknown processor".to_owned(), |(_, model)| model.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::look();
        assert!(machine.processors >= 1 && machine.memory_bytes > 1 << 20);
        assert!(machine.to_string().starts_with("bivouac ") && machine.to_string().contains(", Linux "));
        assert_eq!(model("a: b\nmodel name\t: Fast 7\nmodel name\t: Slow\n"), "Fast 7");
        assert_eq!(model(""), "unknown processor");
    }
}

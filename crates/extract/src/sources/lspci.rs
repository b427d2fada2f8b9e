//! Devices by `lspci`.

use bivouac_sysmap::Device;

use super::syspci::kind;
use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Vec<Device>> = Source { name: "lspci", look };

fn look(machine: &dyn Machine) -> Option<Vec<Device>> {
    // With domains, and numbers instead of names, as sysfs has them.
    let text = machine.output(&["lspci", "-D", "-n", "-k", "-vmm"])?;
    let device = |block: &str| {
        let field = |key: &str| {
            let mut fields = block.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(name, _)| *name == key).map(|(_, value)| value.trim().to_owned())
        };
        let class = field("Class")?;
        Some(Device {
            address: field("Slot")?,
            kind: kind(&class)?,
            vendor: field("Vendor").map(|number| format!("0x{number}")),
            device: field("Device").map(|number| format!("0x{number}")),
            driver: field("Driver"),
            numa: field("NUMANode").and_then(|number| number.parse().ok()),
            // Without the programming interface, which it does not say here.
            class: format!("0x{class}"),
        })
    };
    Some(text.split("\n\n").filter_map(device).collect())
}

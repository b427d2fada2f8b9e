//! Devices by sysfs.

use bivouac_sysmap::{Device, DeviceKind};

use super::{last, numa, word};
use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Vec<Device>> = Source { name: "sysfs", look };

const DEVICES: &str = "/sys/bus/pci/devices";

fn look(machine: &dyn Machine) -> Option<Vec<Device>> {
    let names = machine.names(DEVICES);
    let devices = names.iter().filter_map(|address| {
        let dir = format!("{DEVICES}/{address}");
        let class = word(machine, &format!("{dir}/class"))?;
        Some(Device {
            address: address.clone(),
            kind: kind(&class)?,
            vendor: word(machine, &format!("{dir}/vendor")),
            device: word(machine, &format!("{dir}/device")),
            driver: machine.real(&format!("{dir}/driver")).map(|driver| last(&driver).to_owned()),
            numa: numa(machine, &dir),
            class,
        })
    });
    let devices: Vec<Device> = devices.collect();
    // No known device is an answer, too: where there is a bus, `lspci` knows no more.
    (!names.is_empty()).then_some(devices)
}

/// Returns the kind by the classes that PCI-SIG assigns; nothing for bridges and the like.
pub fn kind(class: &str) -> Option<DeviceKind> {
    let class = class.trim_start_matches("0x");
    match (class.get(..2)?, class.get(2..4)?) {
        ("03", _) => Some(DeviceKind::Gpu),
        ("02", "07") => Some(DeviceKind::InfiniBand),
        ("02", _) => Some(DeviceKind::Network),
        ("01", _) => Some(DeviceKind::Storage),
        ("12", _) => Some(DeviceKind::Accelerator),
        _ => None,
    }
}

//! Network interfaces by sysfs, and ports of InfiniBand, also those without an interface of their own.

use bivouac_sysmap::{Interface, InterfaceKind};

use super::{last, numa, number, pci_address, word};
use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Vec<Interface>> = Source { name: "sysfs", look };

const NET: &str = "/sys/class/net";
const INFINIBAND: &str = "/sys/class/infiniband";

fn look(machine: &dyn Machine) -> Option<Vec<Interface>> {
    let names = machine.names(NET);
    let mut interfaces: Vec<Interface> = Vec::new();
    // The directory has files, too.
    for name in names.iter().filter(|name| machine.text(&format!("{NET}/{name}/type")).is_some()) {
        interfaces.push(interface(machine, name));
    }
    for device in machine.names(INFINIBAND) {
        for port in machine.names(&format!("{INFINIBAND}/{device}/ports")) {
            add_port(machine, &device, &port, &mut interfaces);
        }
    }
    (!interfaces.is_empty()).then_some(interfaces)
}

fn interface(machine: &dyn Machine, name: &str) -> Interface {
    let dir = format!("{NET}/{name}");
    let device = machine.real(&format!("{dir}/device"));
    // ARPHRD_ETHER, ARPHRD_INFINIBAND, ARPHRD_LOOPBACK.
    let kind = match (number::<u32>(machine, &format!("{dir}/type")), &device) {
        (Some(772), _) => Some(InterfaceKind::Loopback),
        (Some(32), _) => Some(InterfaceKind::InfiniBand),
        // A card of a virtual machine has a device as well, but no wire of its own.
        (Some(1), Some(path)) if !path.contains("/virtio") => Some(InterfaceKind::Ethernet),
        (Some(_), _) => Some(InterfaceKind::Virtual),
        (None, _) => None,
    };
    Interface {
        name: name.to_owned(),
        kind,
        up: match word(machine, &format!("{dir}/operstate")).as_deref() {
            Some("up") => Some(true),
            Some("down" | "lowerlayerdown" | "notpresent") => Some(false),
            _ => None,
        },
        // -1 where there is no link, and no file at all where speed means nothing.
        speed_bits: number::<i64>(machine, &format!("{dir}/speed"))
            // Some drivers write their -1 without a sign.
            .and_then(|mbits| u64::try_from(mbits).ok())
            .filter(|mbits| *mbits > 0 && *mbits != u64::from(u32::MAX))
            .and_then(|mbits| mbits.checked_mul(1_000_000)),
        mtu: number(machine, &format!("{dir}/mtu")),
        hardware_address: word(machine, &format!("{dir}/address")),
        driver: machine.real(&format!("{dir}/device/driver")).map(|path| last(&path).to_owned()),
        address: device.as_deref().and_then(pci_address),
        numa: numa(machine, &format!("{dir}/device")),
    }
}

/// Adds the speed of a port, `100 Gb/sec (4X EDR)`, to the interface on the same device, or as one that is only for
/// InfiniBand.
fn add_port(machine: &dyn Machine, device: &str, port: &str, interfaces: &mut Vec<Interface>) {
    let dir = format!("{INFINIBAND}/{device}/ports/{port}");
    // RoCE: the interface on that port has said its speed.
    if word(machine, &format!("{dir}/link_layer")).is_some_and(|layer| layer == "Ethernet") {
        return;
    }
    let rate = word(machine, &format!("{dir}/rate"));
    let gbits = rate.and_then(|rate| rate.split_whitespace().next()?.parse::<f64>().ok());
    let speed_bits = gbits.map(|gbits| (gbits * 1e9) as u64).filter(|bits| *bits > 0);
    let address = machine.real(&format!("{INFINIBAND}/{device}/device")).and_then(|path| pci_address(&path));
    let mut ours = interfaces.iter_mut().filter(|one| {
        one.kind == Some(InterfaceKind::InfiniBand) && address.is_some() && one.address == address
    });
    if let Some(interface) = ours.next() {
        interface.speed_bits = interface.speed_bits.or(speed_bits);
        return;
    }
    interfaces.push(Interface {
        name: format!("{device}/{port}"),
        kind: Some(InterfaceKind::InfiniBand),
        // `4: ACTIVE`
        up: word(machine, &format!("{dir}/state")).map(|state| state.contains("ACTIVE")),
        speed_bits,
        mtu: None,
        hardware_address: word(machine, &format!("{INFINIBAND}/{device}/node_guid")),
        driver: None,
        numa: numa(machine, &format!("{INFINIBAND}/{device}/device")),
        address,
    });
}

//! Network interfaces by `ip`; it knows neither speeds nor places.

use bivouac_sysmap::{Interface, InterfaceKind};
use serde_json::Value;

use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Vec<Interface>> = Source { name: "ip", look };

fn look(machine: &dyn Machine) -> Option<Vec<Interface>> {
    let said: Value = serde_json::from_str(&machine.output(&["ip", "-json", "link", "show"])?).ok()?;
    let interface = |one: &Value| {
        let text = |key: &str| Some(one.get(key)?.as_str()?.to_owned());
        Some(Interface {
            name: text("ifname")?,
            // Whether there is a device behind an Ethernet interface it does not say.
            kind: match text("link_type").as_deref() {
                Some("loopback") => Some(InterfaceKind::Loopback),
                Some("infiniband") => Some(InterfaceKind::InfiniBand),
                _ => None,
            },
            up: match text("operstate").as_deref() {
                Some("UP") => Some(true),
                Some("DOWN" | "LOWERLAYERDOWN") => Some(false),
                _ => None,
            },
            speed_bits: None,
            mtu: one.get("mtu").and_then(Value::as_u64).and_then(|mtu| mtu.try_into().ok()),
            hardware_address: text("address"),
            driver: None,
            address: None,
            numa: None,
        })
    };
    Some(said.as_array()?.iter().filter_map(interface).collect())
}

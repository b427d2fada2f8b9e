//! A map as columns.

use bivouac_sysmap::{
    BandwidthRange, Change, Device, DeviceKind, Disk, Host, Interface, InterfaceKind, Map, Mount, MountKind,
    Network,
};
use bivouac_types::units::format_size;

use super::measured_text::measured_text;
use crate::table::layout;

/// Up to so many hosts their parts are listed, too.
const DETAILED_MAX: usize = 4;
/// Stands for an unknown value.
const UNKNOWN: &str = "?";

/// Returns the map for people: hosts, their parts if they are few, site storage, networks.
pub fn text(map: &Map) -> String {
    let mut text = hosts(map);
    if map.hosts.len() <= DETAILED_MAX {
        for part in
            [disks(map), mounts(map), interfaces(map), devices(map)].iter().filter(|part| !part.is_empty())
        {
            text.push('\n');
            text.push_str(part);
        }
    } else {
        text.push_str(&shared(map));
    }
    for network in &map.networks {
        text.push('\n');
        text.push_str(&of_network(network));
    }
    if let Some(measured) = &map.measured {
        text.push('\n');
        text.push_str(&measured_text(measured));
    }
    for note in &map.notes {
        text.push_str(&format!("not known: {note}\n"));
    }
    text
}

pub(super) fn known<T>(value: Option<T>, say: impl Fn(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.into(), say)
}

fn hosts(map: &Map) -> String {
    let head = [
        "HOST",
        "SOCKETS",
        "CORES",
        "THREADS",
        "FREE",
        "MEMORY",
        "AVAILABLE",
        "NUMA",
        "GPUS",
        "DISKS",
        "LINK",
    ];
    let row = |host: &Host| {
        let processors = host.processors.as_ref();
        let left = host.available.as_ref();
        let gpus = host.devices.iter().filter(|device| device.kind == DeviceKind::Gpu).count();
        // None found is not the same as none looked for.
        let knows_devices = host.sources.contains_key("devices");
        vec![
            host.name.clone(),
            known(processors.filter(|p| !p.sockets.is_empty()), |p| p.sockets.len().to_string()),
            known(processors.and_then(|p| p.cores), |cores| cores.to_string()),
            known(processors.and_then(|p| p.threads), |threads| threads.to_string()),
            known(left.and_then(|left| left.processors), |free| format!("{free:.1}")),
            known(host.memory.as_ref(), |memory| format_size(memory.total_bytes)),
            known(left.and_then(|left| left.memory_bytes), format_size),
            known(Some(host.numa.len()).filter(|count| *count > 0), |count| count.to_string()),
            known(knows_devices.then_some(gpus), |count| count.to_string()),
            known(host.sources.contains_key("disks").then_some(host.disks.len()), |count| count.to_string()),
            known(fastest(host).and_then(|one| one.speed_bits), |bits| speed(bits as f64)),
        ]
    };
    let rows: Vec<Vec<String>> = map.hosts.iter().map(row).collect();
    layout(&head, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], &rows)
}

fn fastest(host: &Host) -> Option<&Interface> {
    let real = |one: &&Interface| !matches!(one.kind, Some(InterfaceKind::Loopback));
    host.interfaces.iter().filter(real).max_by_key(|one| one.speed_bits)
}

/// Returns the rows of all hosts; the host is named where there are several.
fn of_all<T>(
    map: &Map,
    head: &[&str],
    right: &[usize],
    parts: impl Fn(&Host) -> Vec<T>,
    row: impl Fn(&Host, &T) -> Vec<String>,
) -> String {
    let several = map.hosts.len() > 1;
    let mut rows = Vec::new();
    for host in &map.hosts {
        for part in parts(host) {
            let front = several.then(|| host.name.clone());
            rows.push(front.into_iter().chain(row(host, &part)).collect::<Vec<String>>());
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let head: Vec<&str> = several.then_some("HOST").into_iter().chain(head.iter().copied()).collect();
    let right: Vec<usize> = right.iter().map(|column| column + usize::from(several)).collect();
    layout(&head, &right, &rows)
}

fn disks(map: &Map) -> String {
    let head = ["DISK", "KIND", "SIZE", "IDLE", "QUEUE", "NUMA", "PARTITIONS", "MODEL"];
    of_all(
        map,
        &head,
        &[2, 3, 4, 5, 6],
        |host| host.disks.clone(),
        |host, disk: &Disk| {
            let idle =
                host.available.as_ref().and_then(|left| left.disks.iter().find(|one| one.name == disk.name));
            vec![
                disk.name.clone(),
                known(disk.kind, |kind| format!("{kind:?}").to_lowercase()),
                known(disk.size_bytes, format_size),
                known(idle, |disk| format!("{:.0}%", disk.idle * 100.0)),
                known(disk.queue_depth, |depth| depth.to_string()),
                known(disk.numa, |numa| numa.to_string()),
                disk.partitions.len().to_string(),
                known(disk.model.clone(), |model| model),
            ]
        },
    )
}

fn mounts(map: &Map) -> String {
    // What single files are mounted over, as containers do, is no place to put anything.
    let shown = |host: &Host| -> Vec<Mount> {
        let storage = host.mounts.iter().filter(|mount| mount.size_bytes != Some(0));
        storage.cloned().collect()
    };
    of_all(map, &["MOUNT", "TYPE", "KIND", "SIZE", "AVAILABLE", "SOURCE"], &[3, 4], shown, |host, mount| {
        let left =
            host.available.as_ref().and_then(|left| left.mounts.iter().find(|one| one.path == mount.path));
        let kind = known(mount.kind, |kind| format!("{kind:?}").to_lowercase());
        vec![
            mount.path.clone(),
            mount.fs_type.clone(),
            mount.product.as_ref().map_or(kind.clone(), |product| format!("{kind}: {product}")),
            known(mount.size_bytes, format_size),
            known(left, |left| format_size(left.bytes)),
            mount.source.clone(),
        ]
    })
}

fn interfaces(map: &Map) -> String {
    let head = ["INTERFACE", "KIND", "LINK", "SPEED", "RECEIVES", "SENDS", "NUMA", "DRIVER"];
    of_all(
        map,
        &head,
        &[3, 4, 5, 6],
        |host| host.interfaces.clone(),
        |host, one: &Interface| {
            let load =
                host.load.as_ref().and_then(|load| load.interfaces.iter().find(|load| load.name == one.name));
            vec![
                one.name.clone(),
                known(one.kind, |kind| format!("{kind:?}").to_lowercase()),
                known(one.up, |up| if up { "up" } else { "down" }.into()),
                known(one.speed_bits, |bits| speed(bits as f64)),
                known(load, |load| speed(load.received_bits)),
                known(load, |load| speed(load.sent_bits)),
                known(one.numa, |numa| numa.to_string()),
                known(one.driver.clone(), |driver| driver),
            ]
        },
    )
}

fn devices(map: &Map) -> String {
    let head = ["DEVICE", "KIND", "VENDOR", "MODEL", "DRIVER", "NUMA"];
    of_all(
        map,
        &head,
        &[5],
        |host| host.devices.clone(),
        |_, device: &Device| {
            vec![
                device.address.clone(),
                format!("{:?}", device.kind).to_lowercase(),
                known(device.vendor.clone(), |vendor| vendor),
                known(device.device.clone(), |model| model),
                known(device.driver.clone(), |driver| driver),
                known(device.numa, |numa| numa.to_string()),
            ]
        },
    )
}

/// Returns the site storage of many hosts, each once.
fn shared(map: &Map) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let all = map.hosts.iter().flat_map(|host| &host.mounts);
    for mount in all.filter(|mount| mount.kind == Some(MountKind::Site)) {
        let has = |host: &&Host| host.mounts.iter().any(|m| m.path == mount.path && m.source == mount.source);
        let row = vec![
            mount.path.clone(),
            mount.product.clone().unwrap_or_default(),
            known(mount.size_bytes, format_size),
            map.hosts.iter().filter(has).count().to_string(),
            mount.source.clone(),
        ];
        if !rows.iter().any(|known| known.first() == row.first() && known.last() == row.last()) {
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}", layout(&["SITE STORAGE", "KIND", "SIZE", "HOSTS", "SOURCE"], &[2, 3], &rows))
}

fn of_network(network: &Network) -> String {
    let Network { name, source, switches, links, other_hosts, bandwidth } = network;
    let mut text = format!(
        "network {name} ({source}): {}, {}",
        counted(switches.len(), "switch"),
        counted(links.len(), "link")
    );
    if *other_hosts > 0 {
        text.push_str(&format!(", {} not in this map", counted(*other_hosts, "host")));
    }
    text.push('\n');
    let Some(found) = bandwidth else { return text };
    let bisection = &found.bisection;
    let how = if bisection.exact { "exact" } else { "bounds" };
    text.push_str(&format!(
        "  between two halves of {} hosts: {} ({how}, {})\n  weakest pair: {} and {}, {}\n",
        found.hosts,
        bits(bisection.bits),
        bisection.method,
        found.weakest.from,
        found.weakest.to,
        bits(found.weakest.bits),
    ));
    if found.unknown_links > 0 {
        text.push_str(&format!("  the speed of {} is not known\n", counted(found.unknown_links, "link")));
    }
    text
}

/// Returns a number with its thing: `1 switch`, `2 switches`.
fn counted(number: usize, thing: &str) -> String {
    let ending = if thing.ends_with('h') { "es" } else { "s" };
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}{ending}") }
}

/// Returns a bandwidth as text: `100 Gbit/s`, `50 Gbit/s to 100 Gbit/s`.
pub(super) fn bits(bits: BandwidthRange) -> String {
    match bits.high {
        Some(high) if high == bits.low => speed(high as f64),
        Some(high) => format!("{} to {}", speed(bits.low as f64), speed(high as f64)),
        None if bits.low == 0 => "not known".into(),
        None => format!("at least {}", speed(bits.low as f64)),
    }
}

/// Networks count in powers of ten.
pub fn speed(bits: f64) -> String {
    for (unit, name) in [(1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")] {
        if bits >= unit {
            let number = format!("{:.1}", bits / unit);
            return format!("{} {name}", number.trim_end_matches(".0"));
        }
    }
    format!("{bits:.0} bit/s")
}

/// Returns changes, a line for each.
pub fn changes(changes: &[Change]) -> String {
    let line = |change: &Change| match (&change.before, &change.after) {
        (None, Some(after)) => format!("+ {}: {after}\n", change.path),
        (Some(before), None) => format!("- {}: {before}\n", change.path),
        (before, after) => {
            let text = |value: &Option<serde_json::Value>| {
                value
                    .as_ref()
                    .filter(|value| !value.is_null())
                    .map_or_else(|| UNKNOWN.into(), ToString::to_string)
            };
            format!("~ {}: {} -> {}\n", change.path, text(before), text(after))
        }
    };
    if changes.is_empty() { "nothing has changed\n".into() } else { changes.iter().map(line).collect() }
}

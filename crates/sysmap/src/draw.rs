//! Pictures of a map: the language of Graphviz, and SVG.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use crate::host::{DeviceKind, Host, InterfaceKind, MountKind};
use crate::network::{LinkEnd, Map, Network};

/// Width and height of a box, and the room around it.
const BOX: (usize, usize) = (150, 76);
const GAP: (usize, usize) = (20, 60);
/// Boxes beside each other.
const ROW: usize = 12;

/// Returns a map in the language of Graphviz: `dot -Tpng`.
#[must_use]
pub fn dot(map: &Map) -> String {
    let mut text =
        String::from("graph system {\n  rankdir=BT;\n  node [shape=box, fontname=\"sans-serif\"];\n");
    for host in &map.hosts {
        let label = std::iter::once(host.name.clone())
            .chain(caption(host))
            .map(|line| dot_escaped(&line))
            .collect::<Vec<_>>()
            .join("\\n");
        // Switches may be called like hosts: the first word keeps their identifiers apart.
        let _ = writeln!(text, "  {} [label=\"{label}\"];", quoted(&format!("host {}", host.name)));
    }
    for (number, network) in map.networks.iter().enumerate() {
        for switch in &network.switches {
            let name = switch.name.as_deref().unwrap_or(&switch.id);
            let id = quoted(&format!("{number} {}", switch.id));
            let _ = writeln!(text, "  {id} [label={}, shape=ellipse];", quoted(name));
        }
        for ((from, to), (count, bits)) in bundles(network) {
            let id = |end: &LinkEnd| match end {
                LinkEnd::Host(name) => quoted(&format!("host {name}")),
                LinkEnd::Switch(id) => quoted(&format!("{number} {id}")),
            };
            let _ = writeln!(text, "  {} -- {} [label={}];", id(from), id(to), quoted(&speed(count, bits)));
        }
    }
    text + "}\n"
}

/// Returns the text inside of a host.
fn caption(host: &Host) -> Vec<String> {
    let mut lines = Vec::new();
    let cores = host.processors.as_ref().and_then(|processors| processors.cores.or(processors.threads));
    let memory = host.memory.as_ref().map(|memory| size(memory.total_bytes));
    let count = |kind: DeviceKind| host.devices.iter().filter(|device| device.kind == kind).count();
    let both = [cores.map(|cores| format!("{cores} cores")), memory];
    let both: Vec<String> = both.into_iter().flatten().collect();
    lines.extend((!both.is_empty()).then(|| both.join(", ")));
    let gpus = count(DeviceKind::Gpu) + count(DeviceKind::Accelerator);
    let parts = [(gpus, "GPU"), (host.disks.len(), "disk")];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| many(*count, what)).collect();
    lines.extend((!parts.is_empty()).then(|| parts.join(", ")));
    let site: Vec<&str> = host
        .mounts
        .iter()
        .filter(|mount| mount.kind == Some(MountKind::Site))
        .map(|mount| mount.path.as_str())
        .collect();
    lines.extend((!site.is_empty()).then(|| site.join(" ")));
    lines
}

fn many(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes >= GIB { format!("{} GiB", bytes / GIB) } else { format!("{} MiB", bytes >> 20) }
}

/// Returns links with the same ends as one: how many, and their speed if all of it is known.
fn bundles(network: &Network) -> BTreeMap<(&LinkEnd, &LinkEnd), (usize, Option<u64>)> {
    let mut bundles: BTreeMap<(&LinkEnd, &LinkEnd), (usize, Option<u64>)> = BTreeMap::new();
    for link in &network.links {
        let (count, bits) = bundles.entry((&link.from, &link.to)).or_insert((0, Some(0)));
        *count += 1;
        *bits = bits.zip(link.speed_bits).map(|(sum, bits)| sum.saturating_add(bits));
    }
    bundles
}

fn speed(count: usize, bits: Option<u64>) -> String {
    let text = match bits {
        Some(bits) if bits >= 1_000_000_000 => format!("{} Gbit/s", bits as f64 / 1e9),
        Some(bits) => format!("{} Mbit/s", bits as f64 / 1e6),
        None => "?".into(),
    };
    if count > 1 { format!("{text} ({count} links)") } else { text }
}

/// Returns text for a quoted string, in which neither a quote nor a backslash means anything.
fn dot_escaped(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", dot_escaped(text))
}

/// Returns a picture: hosts below, what joins them above, networks beside each other.
#[must_use]
pub fn svg(map: &Map) -> String {
    let (places, size) = places(map);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        size.0, size.1
    );
    for (number, network) in map.networks.iter().enumerate() {
        for ((from, to), (count, bits)) in bundles(network) {
            // A map that was read from a file may have links of what it does not list.
            let place = |end: &LinkEnd| places.get(&key(number, end)).copied();
            let (Some(from), Some(to)) = (place(from), place(to)) else { continue };
            let center = |(x, y): (usize, usize)| (x + BOX.0 / 2, y + BOX.1 / 2);
            let ((x1, y1), (x2, y2)) = (center(from), center(to));
            let _ = writeln!(
                text,
                "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"#7a8899\" stroke-width=\"{}\"><title>{}</title></line>",
                count.min(6) + 1,
                escaped(&speed(count, bits)),
            );
        }
        for switch in &network.switches {
            let Some(place) = places.get(&key(number, &LinkEnd::Switch(switch.id.clone()))) else { continue };
            let name = switch.name.clone().unwrap_or_else(|| switch.id.clone());
            draw_box(&mut text, *place, "#e8eef6", &[name, network.name.clone()]);
        }
    }
    for host in &map.hosts {
        let Some(place) = places.get(&key(0, &LinkEnd::Host(host.name.clone()))) else { continue };
        let mut lines = vec![host.name.clone()];
        lines.extend(caption(host));
        lines.extend(fastest(host));
        draw_box(&mut text, *place, "#eef6e8", &lines);
    }
    text + "</svg>\n"
}

fn fastest(host: &Host) -> Option<String> {
    let real = |kind| kind != Some(InterfaceKind::Loopback) && kind != Some(InterfaceKind::Virtual);
    let speeds = host.interfaces.iter().filter(|one| real(one.kind)).filter_map(|one| one.speed_bits);
    speeds.max().map(|bits| speed(1, Some(bits)))
}

fn draw_box(text: &mut String, (x, y): (usize, usize), color: &str, lines: &[String]) {
    let (width, height) = BOX;
    let _ = writeln!(
        text,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"{color}\" stroke=\"#445\"/>"
    );
    // As much as fits into a box at this size of type, here and below.
    for (number, line) in lines.iter().take(5).enumerate() {
        let weight = if number == 0 { " font-weight=\"bold\"" } else { "" };
        let shown: String = line.chars().take(24).collect();
        let (x, y) = (x + 8, y + 15 + 14 * number);
        let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\"{weight}>{}</text>", escaped(&shown));
    }
}

fn escaped(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns the key of a shape: of a host, or of a switch of a network.
fn key(network: usize, end: &LinkEnd) -> (Option<usize>, LinkEnd) {
    (matches!(end, LinkEnd::Switch(_)).then_some(network), end.clone())
}

type Places = BTreeMap<(Option<usize>, LinkEnd), (usize, usize)>;

/// Returns the positions of all shapes, and the size of the picture.
fn places(map: &Map) -> (Places, (usize, usize)) {
    let mut rows: Vec<Vec<(Option<usize>, LinkEnd)>> = Vec::new();
    for (number, network) in map.networks.iter().enumerate() {
        let levels = levels(network);
        let highest = levels.values().copied().max().unwrap_or(0);
        // Rows are drawn downwards, and the hosts are the lowest one.
        for level in (1..=highest).rev() {
            let here = levels.iter().filter(|(_, at)| **at == level);
            rows.push(here.map(|(id, _)| key(number, &LinkEnd::Switch((*id).to_owned()))).collect());
        }
    }
    rows.push(map.hosts.iter().map(|host| key(0, &LinkEnd::Host(host.name.clone()))).collect());
    let rows: Vec<&[(Option<usize>, LinkEnd)]> = rows.iter().flat_map(|row| row.chunks(ROW)).collect();
    let widest = rows.iter().map(|row| row.len()).max().unwrap_or(1).max(1);
    let (step_x, step_y) = (BOX.0 + GAP.0, BOX.1 + GAP.1);
    let mut places = Places::new();
    for (number, row) in rows.iter().enumerate() {
        let indent = (widest - row.len()) * step_x / 2;
        for (column, what) in row.iter().enumerate() {
            places.insert(what.clone(), (GAP.0 + indent + column * step_x, GAP.0 + number * step_y));
        }
    }
    (places, (GAP.0 + widest * step_x, GAP.0 + rows.len().max(1) * step_y))
}

/// Returns the distance of each switch from the nearest host; those without any are as near as their neighbours make
/// them, or 1.
fn levels(network: &Network) -> BTreeMap<&str, usize> {
    let mut levels: BTreeMap<&str, usize> = BTreeMap::new();
    let mut queue: VecDeque<(&LinkEnd, usize)> = network
        .links
        .iter()
        .flat_map(|link| [&link.from, &link.to])
        .filter(|end| end.host().is_some())
        .map(|host| (host, 0))
        .collect();
    while let Some((end, level)) = queue.pop_front() {
        for link in &network.links {
            let other = if link.from == *end { &link.to } else { &link.from };
            if (link.from == *end || link.to == *end)
                && let LinkEnd::Switch(id) = other
                && !levels.contains_key(id.as_str())
            {
                levels.insert(id, level + 1);
                queue.push_back((other, level + 1));
            }
        }
    }
    for switch in &network.switches {
        levels.entry(&switch.id).or_insert(1);
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_backslash_are_one_text() {
        let host = Host { name: "a\\".into(), ..Host::default() };
        let text = dot(&Map { hosts: vec![host], ..Map::default() });
        assert!(text.contains("\"host a\\\\\" [label=\"a\\\\\"];"), "{text}");
    }
}

//! Disks by `lsblk`.

use bivouac_sysmap::{Disk, Part};
use serde_json::Value;

use super::sysblock::{is_disk, kind};
use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Vec<Disk>> = Source { name: "lsblk", look };

fn look(machine: &dyn Machine) -> Option<Vec<Disk>> {
    let columns = "NAME,TYPE,SIZE,ROTA,MODEL,RQ-SIZE,SCHED";
    let text = machine.output(&["lsblk", "--json", "--bytes", "--output", columns])?;
    let said: Value = serde_json::from_str(&text).ok()?;
    let all = said.get("blockdevices")?.as_array()?;
    Some(all.iter().filter_map(disk).collect())
}

fn disk(said: &Value) -> Option<Disk> {
    let name = text(said, "name").filter(|name| is_disk(name))?;
    if text(said, "type").is_some_and(|kind| kind == "rom" || kind == "loop") {
        return None;
    }
    // Older ones write all values as text.
    let rotational = said.get("rota").and_then(|rota| rota.as_bool().or_else(|| Some(rota.as_str()? == "1")));
    let parts = said.get("children").and_then(Value::as_array).into_iter().flatten();
    let parts = parts.filter(|part| text(part, "type").as_deref() == Some("part"));
    Some(Disk {
        kind: kind(&name, rotational),
        size_bytes: number(said, "size"),
        model: text(said, "model"),
        queue_depth: number(said, "rq-size").and_then(|depth| depth.try_into().ok()),
        scheduler: text(said, "sched"),
        address: None,
        numa: None,
        partitions: parts
            .filter_map(|part| Some(Part { name: text(part, "name")?, size_bytes: number(part, "size") }))
            .collect(),
        name,
    })
}

fn text(said: &Value, key: &str) -> Option<String> {
    Some(said.get(key)?.as_str()?.trim().to_owned()).filter(|text| !text.is_empty())
}

fn number(said: &Value, key: &str) -> Option<u64> {
    let value = said.get(key)?;
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

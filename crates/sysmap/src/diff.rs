//! Differences between two maps: in what they have, not in how busy they are.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::network::Map;

/// Members that differ every time.
const LEFT_OUT: [&str; 4] = ["load", "available", "sources", "measured"];
/// Members by which those of a list are identified, by the first that they have.
const NAMES: [&str; 6] = ["name", "path", "address", "id", "level", "from"];

/// Something that is not as it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Path of the member: `hosts.n1.memory.total_bytes`.
    pub path: String,
    /// Former value; nothing if it is new.
    pub before: Option<Value>,
    /// Present value; nothing if it is gone.
    pub after: Option<Value>,
}

/// Returns all differences, in the order of the map. Members of lists are matched by name, so their order does not
/// matter.
#[must_use]
pub fn diff(before: &Map, after: &Map) -> Vec<Change> {
    let value = |map: &Map| serde_json::to_value(map).unwrap_or(Value::Null);
    let mut changes = Vec::new();
    compare("", Some(&value(before)), Some(&value(after)), &mut changes);
    changes
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<Change>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match (before, after) {
        (a, b) if a == b => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys.into_iter().filter(|key| !LEFT_OUT.contains(&key.as_str())) {
                compare(&below(key), a.get(key), b.get(key), changes);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if are_named(a) && are_named(b) => {
            let named = |list: &'_ [Value]| list.iter().map(name).collect::<Vec<String>>();
            let (before_names, after_names) = (named(a), named(b));
            let names: BTreeSet<&String> = before_names.iter().chain(&after_names).collect();
            for name in names {
                let find = |names: &[String], list: &'_ [Value]| {
                    list.get(names.iter().position(|known| known == name)?).cloned()
                };
                let (old, new) = (find(&before_names, a), find(&after_names, b));
                compare(&below(name), old.as_ref(), new.as_ref(), changes);
            }
        }
        (a, b) => changes.push(Change { path: path.to_owned(), before: a.cloned(), after: b.cloned() }),
    }
}

/// Returns whether all members of a list have names, each its own.
fn are_named(list: &[Value]) -> bool {
    let names: BTreeSet<String> = list.iter().map(name).collect();
    // Members of one name cannot be matched: such a list is compared as a whole.
    names.len() == list.len() && list.iter().all(Value::is_object)
}

/// Returns the identity of a member. A link is identified by both its ends and ports, a cache by its level and kind.
fn name(member: &Value) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Object(end) => end.values().filter_map(Value::as_str).collect::<Vec<_>>().join("."),
        other => other.to_string(),
    };
    let Some(key) = NAMES.iter().find(|key| member.get(key).is_some()) else { return member.to_string() };
    let more: &[&str] = match *key {
        "from" => &["from_port", "to", "to_port"],
        "level" => &["kind"],
        _ => &[],
    };
    let keys = std::iter::once(key).chain(more);
    let parts = keys.filter_map(|key| member.get(key)).filter(|value| !value.is_null());
    parts.map(text).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Host, Memory};
    use crate::load::Load;

    /// S526.
    #[test]
    fn what_is_new_gone_and_other_is_named_and_load_is_not() {
        let host = |name: &str, bytes: u64, busy: f64| Host {
            name: name.into(),
            memory: Some(Memory { total_bytes: bytes, swap_bytes: None }),
            load: Some(Load { processors: Some(busy), ..Load::default() }),
            ..Host::default()
        };
        let map = |hosts| Map { hosts, ..Map::default() };
        let before = map(vec![host("n1", 1, 0.5), host("n2", 1, 0.5)]);
        let after = map(vec![host("n3", 1, 0.5), host("n1", 2, 0.7)]);
        let found = diff(&before, &after);
        let paths: Vec<&str> = found.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths, ["hosts.n1.memory.total_bytes", "hosts.n2", "hosts.n3"]);
        assert_eq!((&found[0].before, &found[0].after), (&Some(Value::from(1)), &Some(Value::from(2))));
        assert!(found[1].after.is_none() && found[2].before.is_none());
        assert_eq!(diff(&before, &map(vec![host("n2", 1, 0.9), host("n1", 1, 0.1)])), []);
    }
}

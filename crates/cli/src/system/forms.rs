//! The same map in other languages than JSON.

use bivouac_sysmap::Map;
use bivouac_types::escape_markup;
use serde_json::Value;

use crate::failure::Failure;

/// Returns a map as YAML.
pub fn to_yaml(map: &Map) -> Result<String, Failure> {
    yaml_serde::to_string(map).map_err(|error| Failure::new(1, error))
}

/// Returns a map as XML: an element for each field, `item` for each member of a list; unknown values have no element.
pub fn to_xml(map: &Map) -> Result<String, Failure> {
    let value = serde_json::to_value(map).map_err(|error| Failure::new(1, error))?;
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    element(&mut text, 0, "system", &value);
    Ok(text)
}

fn element(text: &mut String, depth: usize, name: &str, value: &Value) {
    let indent = "  ".repeat(depth);
    let inner = |text: &mut String, children: &mut dyn Iterator<Item = (&str, &Value)>| {
        text.push_str(&format!("{indent}<{name}>\n"));
        for (child, value) in children {
            if is_name(child) {
                element(text, depth + 1, child, value);
            } else {
                let indent = "  ".repeat(depth + 1);
                let (child, value) = (escape_markup(child), escape_markup(&plain(value)));
                text.push_str(&format!("{indent}<item name=\"{child}\">{value}</item>\n"));
            }
        }
        text.push_str(&format!("{indent}</{name}>\n"));
    };
    match value {
        Value::Null => {}
        Value::Object(fields) => inner(text, &mut fields.iter().map(|(name, value)| (name.as_str(), value))),
        Value::Array(all) => inner(text, &mut all.iter().map(|value| ("item", value))),
        other => text.push_str(&format!("{indent}<{name}>{}</{name}>\n", escape_markup(&plain(other)))),
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_sysmap::Host;

    #[test]
    fn odd_names_are_written_as_they_are() {
        let host = Host { name: "a<&\"b\u{1}".into(), kernel: Some("é: #".into()), ..Host::default() };
        let map = Map { hosts: vec![host], notes: vec!["- x".into()], ..Map::default() };
        let xml = to_xml(&map).unwrap();
        assert!(xml.contains("<name>a&lt;&amp;&quot;b\u{fffd}</name>") && !xml.contains("<memory>"), "{xml}");
        let back: Map = yaml_serde::from_str(&to_yaml(&map).unwrap()).unwrap();
        assert_eq!(back, map);
    }
}

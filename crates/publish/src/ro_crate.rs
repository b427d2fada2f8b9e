//! RO-Crate 1.1: description of a data set. The input is untrusted.
//!
//! The files themselves, their pieces and places are in the metalink beside it, whose digest is here: an entry is
//! whole if both are there and fit.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::digest::Digest;
use crate::manifest::{DataSetFile, DatasetLocation, Kind, Manifest};

/// Name of the file.
pub const FILE: &str = "ro-crate-metadata.json";
/// Largest one that is read, in bytes.
pub const TEXT_MAX: usize = 32 << 20;
/// Upper limit of files that are listed individually; the metalink has all of them.
const LISTED_MAX: usize = 10_000;
/// Longest text of one property that is taken, in bytes.
const PROPERTY_MAX: usize = 16 << 10;
/// Upper limit of holders.
const HOLDERS_MAX: usize = 256;
const CONTEXT: &str = "https://w3id.org/ro/crate/1.1/context";
const CONFORMS_TO: &str = "https://w3id.org/ro/crate/1.1";

/// Returns the name of the metalink beside it.
#[must_use]
pub fn metalink_name(id: &str) -> String {
    format!("{id}.meta4")
}

/// Encodes the description of a data set.
#[must_use]
pub fn encode(manifest: &Manifest, items: &[DataSetFile], metalink: &str) -> String {
    let listed = items.get(..items.len().min(LISTED_MAX)).unwrap_or_default();
    let metalink_id = metalink_name(&manifest.id);
    let mut graph = vec![
        json!({
            "@id": FILE, "@type": "CreativeWork",
            "about": {"@id": "./"}, "conformsTo": {"@id": CONFORMS_TO},
        }),
        root(manifest, listed, &metalink_id),
        json!({"@id": "#publisher", "@type": "Person", "name": manifest.who}),
        json!({
            "@id": metalink_id, "@type": "File", "name": "all files, their pieces and places",
            "encodingFormat": "application/metalink4+xml",
            "contentSize": metalink.len().to_string(), "sha256": Digest::of(metalink.as_bytes()).hex(),
        }),
    ];
    graph.extend(
        manifest
            .licence
            .as_ref()
            .map(|licence| json!({"@id": licence_id(licence), "@type": "CreativeWork", "name": licence})),
    );
    graph.extend(manifest.holders.iter().enumerate().map(|(number, holder)| holder_entity(number, holder)));
    graph.extend(listed.iter().map(file));
    let text = serde_json::to_string_pretty(&json!({"@context": CONTEXT, "@graph": graph}));
    text.unwrap_or_default() + "\n"
}

fn root(manifest: &Manifest, listed: &[DataSetFile], metalink_id: &str) -> Value {
    let number = |name: &str, value: String| json!({"@type": "PropertyValue", "name": name, "value": value});
    let parts = [metalink_id]
        .into_iter()
        .chain(listed.iter().filter_map(|item| item.urls.first().map(String::as_str)));
    let mut root = json!({
        "@id": "./", "@type": "Dataset",
        "identifier": manifest.id,
        "name": manifest.title,
        "description": format!("{}: {} files, {} bytes", manifest.title, manifest.files, manifest.bytes),
        "keywords": manifest.words,
        "alternateName": manifest.name,
        "author": {"@id": "#publisher"},
        "datePublished": date(manifest.created),
        "additionalProperty": [
            number("files", manifest.files.to_string()),
            number("bytes", manifest.bytes.to_string()),
            number("is file", manifest.is_file.to_string()),
        ],
        "distribution": (0..manifest.holders.len()).map(|number| json!({"@id": format!("#holder-{number}")})).collect::<Vec<_>>(),
        "hasPart": parts.map(|id| json!({"@id": id})).collect::<Vec<_>>(),
    });
    if let Some(root) = root.as_object_mut() {
        add(root, "license", manifest.licence.as_ref().map(|licence| json!({"@id": licence_id(licence)})));
        add(root, "expires", manifest.expires.map(|end| Value::from(date(end))));
    }
    root
}

fn add(to: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        to.insert(name.to_owned(), value);
    }
}

fn licence_id(licence: &str) -> String {
    let is_spdx = licence.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '+'));
    match (licence.contains("://"), is_spdx) {
        (true, _) => licence.to_owned(),
        (false, true) => format!("https://spdx.org/licenses/{licence}"),
        (false, false) => "#licence".to_owned(),
    }
}

fn holder_entity(number: usize, holder: &DatasetLocation) -> Value {
    let mut entity =
        json!({"@id": format!("#holder-{number}"), "@type": "DataDownload", "contentUrl": holder.base});
    if let Some(entity) = entity.as_object_mut() {
        if let Kind::Formation { name, id } = &holder.kind {
            entity.insert("name".to_owned(), format!("formation {name}").into());
            entity.insert("identifier".to_owned(), id.as_str().into());
        } else {
            entity.insert("name".to_owned(), "site storage".into());
        }
        let fingerprint = holder.fingerprint.as_ref();
        add(entity, "sha256", fingerprint.map(|fingerprint| fingerprint.as_str().into()));
    }
    entity
}

fn file(item: &DataSetFile) -> Value {
    let more: Vec<&String> = item.urls.iter().skip(1).collect();
    let mut entity = json!({
        "@id": item.urls.first(), "@type": "File", "name": item.name, "contentSize": item.size.to_string(),
    });
    if let Some(entity) = entity.as_object_mut() {
        add(entity, "sha256", item.digest.map(|digest| digest.hex().into()));
        add(entity, "contentUrl", (!more.is_empty()).then(|| json!(more)));
    }
    entity
}

fn date(secs: u64) -> String {
    let secs = i64::try_from(secs).unwrap_or(i64::MAX);
    Timestamp::from_second(secs).unwrap_or(Timestamp::MAX).to_string()
}

/// Decodes the description of a data set, and the expected digest of its metalink.
pub fn decode(text: &str) -> Result<(Manifest, Digest), String> {
    if text.len() > TEXT_MAX {
        return Err(format!("is larger than {} MiB", TEXT_MAX >> 20));
    }
    let document: Value = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
    let graph = Graph(document.get("@graph").and_then(Value::as_array).ok_or("has no @graph")?);
    let root = graph.find("./").ok_or("has no root data entity './'")?;
    let said = |name: &str| text_of(root.get(name)).ok_or_else(|| format!("has no {name}"));
    let id = said("identifier")?;
    if !is_id(&id) {
        return Err(format!("its identifier {id:?} is none that a catalogue gives"));
    }
    let metalink = graph.find(&metalink_name(&id)).and_then(|file| file.get("sha256")?.as_str());
    let metalink = metalink.and_then(Digest::parse).ok_or("has no SHA-256 of its metalink")?;
    let name = said("alternateName")?;
    if crate::names::check(&name).is_err() || name.contains('/') {
        return Err(format!("its name {name:?} is none of a file"));
    }
    let licence = graph.follow(root.get("license")).and_then(|licence| text_of(licence.get("name")));
    let manifest = Manifest {
        title: said("name")?,
        words: text_of(root.get("keywords")).unwrap_or_default(),
        licence,
        who: graph.follow(root.get("author")).and_then(|who| text_of(who.get("name"))).unwrap_or_default(),
        is_file: property(root, "is file").as_deref() == Some("true"),
        created: seconds(root.get("datePublished")).ok_or("has no datePublished")?,
        expires: match root.get("expires") {
            Some(end) => Some(seconds(Some(end)).ok_or("its expires is no date")?),
            None => None,
        },
        holders: holders(&graph, root),
        files: property(root, "files").and_then(|number| number.parse().ok()).unwrap_or(0),
        bytes: property(root, "bytes").and_then(|number| number.parse().ok()).unwrap_or(0),
        id,
        name,
    };
    Ok((manifest, metalink))
}

/// Returns whether a text is a valid entry id, which catalogues use as a directory name.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=128).contains(&text.len()) && text.chars().all(is_plain) && !text.starts_with('-')
}

struct Graph<'a>(&'a [Value]);

impl<'a> Graph<'a> {
    fn find(&self, id: &str) -> Option<&'a Value> {
        self.0.iter().find(|entity| entity.get("@id").and_then(Value::as_str) == Some(id))
    }

    fn follow(&self, reference: Option<&Value>) -> Option<&'a Value> {
        self.find(reference?.get("@id")?.as_str()?)
    }
}

fn holders(graph: &Graph<'_>, root: &Value) -> Vec<DatasetLocation> {
    let all = root.get("distribution").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let all = all.iter().take(HOLDERS_MAX).filter_map(|reference| graph.follow(Some(reference)));
    all.filter_map(|entity| {
        let name = text_of(entity.get("name")).unwrap_or_default();
        let kind = match (name.strip_prefix("formation "), text_of(entity.get("identifier"))) {
            (Some(name), Some(id)) => Kind::Formation { name: name.to_owned(), id },
            _ => Kind::Site,
        };
        let base = text_of(entity.get("contentUrl")).filter(|url| crate::Location::of_url(url).is_some())?;
        Some(DatasetLocation { kind, base, fingerprint: text_of(entity.get("sha256")) })
    })
    .collect()
}

/// Returns a text without what a terminal would take for a command, if it is not too long.
fn text_of(value: Option<&Value>) -> Option<String> {
    let text = value?.as_str().filter(|text| text.len() <= PROPERTY_MAX)?;
    Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

fn property(root: &Value, name: &str) -> Option<String> {
    let all = root.get("additionalProperty")?.as_array()?;
    let found = all.iter().find(|property| property.get("name").and_then(Value::as_str) == Some(name))?;
    text_of(found.get("value"))
}

fn seconds(value: Option<&Value>) -> Option<u64> {
    let time: Timestamp = value?.as_str()?.parse().ok()?;
    u64::try_from(time.as_second()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::site;
    use proptest::prelude::*;

    fn sample() -> (Manifest, Vec<DataSetFile>) {
        let formation = DatasetLocation {
            kind: Kind::Formation { name: "camp".into(), id: "00ff".into() },
            base: "https://h:1/a".into(),
            fingerprint: Some("AA:BB".into()),
        };
        crate::manifest::sample(vec![formation, site()])
    }

    #[test]
    fn what_is_written_is_read() {
        let (manifest, items) = sample();
        for licence in [Some("CC-BY-4.0"), Some("https://x/y"), Some("ask Ada"), None] {
            let manifest = Manifest { licence: licence.map(str::to_owned), ..manifest.clone() };
            assert_eq!(decode(&encode(&manifest, &items, "m")), Ok((manifest, Digest::of(b"m"))));
        }
    }

    #[test]
    fn it_is_what_others_take_for_a_crate() {
        let (manifest, items) = sample();
        let document: Value = serde_json::from_str(&encode(&manifest, &items, "m")).unwrap();
        assert_eq!(document["@context"], CONTEXT);
        let graph = Graph(document["@graph"].as_array().unwrap());
        let descriptor = graph.find(FILE).unwrap();
        assert_eq!(
            (&descriptor["about"]["@id"], &descriptor["conformsTo"]["@id"]),
            (&json!("./"), &json!(CONFORMS_TO))
        );
        let root = graph.find("./").unwrap();
        assert_eq!(root["datePublished"], "2023-11-14T22:13:20Z");
        for part in root["hasPart"].as_array().unwrap() {
            assert_eq!(graph.follow(Some(part)).unwrap()["@type"], "File");
        }
        assert_eq!(graph.follow(root.get("license")).unwrap()["name"], "CC-BY-4.0");
    }

    #[test]
    fn hostile_ones_are_refused() {
        let (manifest, items) = sample();
        let good = encode(&manifest, &items, "m");
        for (from, to, says) in [
            ("\"wing-0011\"", "\"../x\"", "identifier"),
            ("\"alternateName\": \"a\"", "\"alternateName\": \"..\"", "name"),
            ("\"alternateName\": \"a\"", "\"alternateName\": \"a/b\"", "name"),
            ("\"sha256\"", "\"sha\"", "SHA-256"),
            ("\"@graph\"", "\"graph\"", "@graph"),
            ("\"2027-01-15T08:00:00Z\"", "\"never\"", "expires"),
        ] {
            assert!(good.contains(from), "{from}");
            let refusal = decode(&good.replace(from, to)).unwrap_err();
            assert!(refusal.contains(says), "{refusal}");
        }
        let deep = "[".repeat(1 << 20);
        assert!(decode(&deep).unwrap_err().contains("no JSON"));
        let shown = decode(&good.replace("ada@host", "\\u001b[2J")).unwrap().0.who;
        assert_eq!(shown, " [2J");
    }

    proptest! {
        #[test]
        fn bytes_of_strangers_never_panic(text in "\\PC{0,200}", at in 0usize..3000, cut in 0usize..30) {
            let (manifest, items) = sample();
            let mut good = encode(&manifest, &items, "m");
            let _ = decode(&text);
            let at = at.min(good.len());
            if good.is_char_boundary(at) && good.is_char_boundary((at + cut).min(good.len())) {
                good.replace_range(at..(at + cut).min(good.len()), &text);
            }
            let _ = decode(&good);
        }
    }
}

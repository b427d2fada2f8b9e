//! The tables `[[partition]]`.

use bivouac_types::units::parse_size;
use bivouac_types::{PARTITION_KEYS, PartitionSettings};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Problem, unknown, values};
use crate::partitioning::{ClientSharing, Plan, Sizing, parse_fraction};

/// Default share of a node's volumes that a computed number of nodes may count on.
const KEEP: f64 = 0.8;
/// Keys besides the settings.
const KEYS: [&str; 6] = ["path", "nodes", "for", "keep", "sharing", "clients"];

/// Fields of a table read so far, each with its position.
#[derive(Default)]
struct PartitionTable {
    path: Option<(usize, String)>,
    nodes: Option<(usize, crate::partitioning::Nodes)>,
    size: Option<u64>,
    keep: Option<(usize, f64)>,
    sharing: Option<(usize, u16)>,
    clients: Option<(usize, u16)>,
    says_stripe: bool,
}

/// Reads one table; `None` with problems if it makes no partition.
pub fn read(table: &Spanned<DeValue<'_>>, problems: &mut Vec<Problem>) -> Option<Plan> {
    let (start, before) = (table.span().start, problems.len());
    let Some(table) = table.get_ref().as_table() else {
        problems.push(Problem::new(start, "a partition is a table: write [[partition]]"));
        return None;
    };
    let mut said = PartitionTable::default();
    let mut settings = PartitionSettings::default();
    for (key, value) in table {
        let at = key.span().start;
        let outcome = match key.get_ref().as_ref() {
            "rule" => rules(value, &mut settings, problems),
            name if PARTITION_KEYS.iter().any(|(known, _)| *known == name) => {
                said.says_stripe |= name == "stripe";
                let text = values::scalar(name, value, problems);
                text.map_or(Ok(()), |text| settings.assign(name, &text).map_err(|error| error.to_string()))
            }
            name if KEYS.contains(&name) => {
                values::scalar(name, value, problems).map_or(Ok(()), |text| said.assign(name, at, &text))
            }
            name => {
                let all: Vec<&str> =
                    KEYS.into_iter().chain(PARTITION_KEYS.iter().map(|(key, _)| *key)).collect();
                problems.push(unknown(at, name, &all));
                Ok(())
            }
        };
        problems.extend(outcome.err().map(|cause| Problem::new(at, cause)));
    }
    problems.extend(said.contradictions());
    let Some((_, path)) = said.path.clone() else {
        problems.push(Problem::new(start, "a partition needs a path: write path = \"/NAME\""));
        return None;
    };
    (problems.len() == before).then(|| said.into_plan(path.into_bytes(), settings))
}

fn rules(
    value: &Spanned<DeValue<'_>>,
    settings: &mut PartitionSettings,
    problems: &mut Vec<Problem>,
) -> Result<(), String> {
    for (at, rule) in values::list("rule", value, problems) {
        if let Err(error) = settings.assign("rule", &rule) {
            problems.push(Problem::new(at, error.to_string()));
        }
    }
    Ok(())
}

impl PartitionTable {
    fn assign(&mut self, key: &str, at: usize, text: &str) -> Result<(), String> {
        match key {
            "path" => self.path = Some((at, check_path(text)?)),
            "nodes" => self.nodes = Some((at, text.parse()?)),
            "for" => self.size = Some(parse_size(text)?),
            "keep" => self.keep = Some((at, parse_fraction(text)?)),
            "sharing" => {
                let way = ClientSharing::named(text);
                let way = way.ok_or_else(|| {
                    format!("sharing '{text}' is none of dedicated, semi-dedicated, shared")
                })?;
                self.sharing = Some((at, way));
            }
            _ => {
                let clients = text.parse().ok().filter(|clients| *clients > 0);
                let clients = clients.ok_or_else(|| format!("clients '{text}' is not a number from 1 on"))?;
                self.clients = Some((at, clients));
            }
        }
        Ok(())
    }

    fn contradictions(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        match (&self.nodes, self.size, self.keep) {
            (Some((at, _)), Some(_), _) => {
                found.push(Problem::new(*at, "nodes and for both say how many nodes: leave one out"));
            }
            (_, None, Some((at, _))) => {
                found.push(Problem::new(at, "keep goes with for: write for = \"SIZE\""))
            }
            _ => {}
        }
        match (self.sharing, self.clients) {
            (Some((at, _)), None) => {
                found.push(Problem::new(at, "sharing goes with clients: write clients = N"));
            }
            (None, Some((at, _))) => {
                found.push(Problem::new(at, "clients goes with sharing: write sharing = \"dedicated\""));
            }
            _ => {}
        }
        found
    }

    fn into_plan(self, path: Vec<u8>, settings: PartitionSettings) -> Plan {
        let keep = self.keep.map_or(KEEP, |(_, keep)| keep);
        let sharing = self.sharing.zip(self.clients);
        Plan {
            path,
            nodes: self.nodes.map(|(_, nodes)| nodes),
            sizing: self.size.map(|bytes| Sizing { bytes, keep }),
            sharing: sharing.map(|((_, clients_per), (_, clients))| ClientSharing { clients_per, clients }),
            settings,
            says_stripe: self.says_stripe,
        }
    }
}

fn check_path(text: &str) -> Result<String, String> {
    let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(format!("path '{text}' has '..': write it from the formation's own directory on"));
    }
    match names.is_empty() {
        true => Err(format!("path '{text}' is the formation's own directory: name one below it")),
        false => Ok(format!("/{}", names.join("/"))),
    }
}

/// Reports directories that are roots of several partitions.
pub fn check_paths(file: &DeTable<'_>, problems: &mut Vec<Problem>) {
    let Some(all) = file.get("partition").and_then(|value| value.get_ref().as_array()) else { return };
    let place = |table: &Spanned<DeValue<'_>>| {
        let (key, value) = table.get_ref().as_table()?.get_key_value("path")?;
        Some((key.span().start, check_path(value.get_ref().as_str()?).ok()?))
    };
    let places: Vec<(usize, String)> = all.iter().filter_map(place).collect();
    for (index, (at, path)) in places.iter().enumerate() {
        if places.iter().take(index).any(|(_, earlier)| earlier == path) {
            problems.push(Problem::new(*at, format!("a partition at {path} is there already")));
        }
    }
}

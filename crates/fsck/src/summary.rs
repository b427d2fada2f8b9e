//! Totals, and notes on unusual but consistent state.

use bivouac_layout::{subfile_len, targets_of};

use crate::facts::{DIR, FILE, FormationFacts};
use crate::finding::Totals;
use crate::paths::Paths;
use crate::source::{Source, nodes};

/// Returns the totals.
pub fn totals(source: &dyn Source, facts: &FormationFacts) -> Totals {
    let sum = |what: fn(&(u64, u64)) -> u64| facts.volumes.values().map(what).sum();
    Totals {
        nodes: nodes(source.map()).filter(|node| source.has_records(*node)).count() as u64,
        inodes: facts.inodes.len() as u64,
        directories: facts.inodes.iter().filter(|row| row.kind == DIR).count() as u64,
        entries: facts.entries.len() as u64,
        subfiles: sum(|(subfiles, _)| *subfiles),
        allocated_bytes: sum(|(_, bytes)| *bytes),
    }
}

/// Returns notes on unusual but consistent state.
pub fn explained(source: &dyn Source, facts: &FormationFacts) -> Vec<String> {
    let mut notes = changes(source, facts);
    let nameless = facts.orphans.len();
    if nameless > 0 {
        notes.push(format!("{nameless} inodes without names stay until they are closed"));
    }
    if !facts.garbage.is_empty() {
        notes.push(format!("subfiles of {} removed files are about to be removed", facts.garbage.len()));
    }
    notes.extend(unpublished(source, facts));
    notes
}

/// Describes unfinished changes and the nodes that they wait for.
fn changes(source: &dyn Source, facts: &FormationFacts) -> Vec<String> {
    let paths = Paths { source, facts, named: true };
    let change = |intent: &crate::facts::IntentRow| {
        let concerns = &intent.concerns;
        let homes = concerns.inos.iter().filter_map(|ino| source.map().home(*ino));
        let targets = concerns
            .targets
            .iter()
            .filter_map(|target| facts.place_of(source.map(), *target))
            .map(|place| place.node);
        let mut waits: Vec<String> =
            homes.chain(targets).filter(|node| *node != intent.node).map(|node| node.to_string()).collect();
        waits.sort_unstable();
        waits.dedup();
        let what = match concerns.name.as_slice() {
            [] => concerns.inos.first().map_or_else(String::new, |ino| paths.path(*ino)),
            name => format!("'{}'", String::from_utf8_lossy(name)),
        };
        let on = if waits.is_empty() { "no other node".into() } else { waits.join(", ") };
        format!(
            "change {} of {}: {} of {what} is unfinished and waits for {on}",
            intent.tx, intent.node, concerns.what
        )
    };
    facts.intents.iter().map(change).collect()
}

/// Describes data behind the ends of files, from writes that did not finish.
fn unpublished(source: &dyn Source, facts: &FormationFacts) -> Option<String> {
    let paths = Paths { source, facts, named: true };
    let mut files = Vec::new();
    for row in facts.inodes.iter().filter(|row| row.kind == FILE) {
        let layout = facts.layouts.get(row.layout);
        let end_of = |target| {
            let column = targets_of(&layout).position(|used| used == target);
            // A target that the layout does not use is covered by the subfile checks.
            column.map_or(u64::MAX, |column| subfile_len(&layout, column as u16, row.size))
        };
        let longer = |subfile: &&crate::facts::SubfileRow| subfile.len > end_of(subfile.target);
        if facts.subfiles_of(row.ino).iter().any(|subfile| longer(&subfile)) {
            files.push(row.ino);
        }
    }
    let first = files.first()?;
    let (count, path) = (files.len(), paths.path(*first));
    Some(format!(
        "{count} files have bytes behind their end, of writes that did not finish: {path} is the first"
    ))
}

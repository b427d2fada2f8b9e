//! Salvage of records that cannot be opened: valid parts are kept, losses are reported.

use std::collections::BTreeMap;
use std::sync::Arc;

use bivouac_node::record::{Dentry, dentry_of_key};
use bivouac_store::{Damage, Records, Salvage, StoreError, Volume};
use bivouac_types::{FormationId, Ino, Name, NodeId};
use bivouac_wire::{Decode, FormationMap};

use crate::facts::LostName;
use crate::finding::{Finding, Kind, Outcome};
use crate::volumes::{OpenVolume, open_records_on};

/// Names listed in a finding.
const NAMES_MAX: usize = 100;

/// Returns the number of slots of the formation, which is the same on all nodes.
pub(crate) fn slots_of(opened: &[OpenVolume], map: Option<&FormationMap>) -> Option<u16> {
    let of_map = map.and_then(|map| u16::try_from(map.slots.len()).ok());
    let stored = |one: &OpenVolume| Records::salvageable_slots(&*one.volume).ok().flatten();
    of_map.or_else(|| opened.iter().find_map(stored))
}

/// Salvaged records.
pub(crate) struct SalvagedRecords {
    pub records: Records,
    pub finding: Finding,
    /// Names of inodes in lost records.
    pub names: BTreeMap<Ino, LostName>,
}

/// Salvages damaged records; `None` if that is not permitted (no slots) or not possible.
pub(crate) fn salvage(
    volume: &Arc<dyn Volume>,
    node: NodeId,
    error: &StoreError,
    slots: Option<u16>,
    formation: FormationId,
) -> Option<SalvagedRecords> {
    let salvage = match Records::salvage(volume, formation, node, slots?) {
        Ok(salvage) => salvage,
        Err(error) => {
            log::error!(why:% = error; "records of {node}: cannot be salvaged");
            return None;
        }
    };
    // Opened from the salvaged files, which proves that they are valid.
    let records = open_records_on(volume, formation, node).ok().flatten()?;
    let mut finding = Finding::new(Kind::Records, format!("records of {node}"), cause_of(error));
    finding.outcome = Outcome::Repaired;
    let finding = finding.remedy(describe(&salvage));
    Some(SalvagedRecords { records, finding, names: lost_names(&salvage.damage) })
}

/// Returns the finding of records that are not salvaged.
pub(crate) fn unreadable(node: NodeId, error: &StoreError) -> Finding {
    let remedy =
        "--repair keeps what is sound and says what is lost; --from-subfiles rebuilds files without records";
    let mut finding =
        Finding::new(Kind::Records, format!("records of {node}"), cause_of(error)).remedy(remedy);
    if matches!(error, StoreError::Corrupt { .. }) {
        finding.outcome = Outcome::Repairable;
    }
    finding
}

fn cause_of(error: &StoreError) -> String {
    match error {
        StoreError::Corrupt { path, offset, cause } => {
            format!("{} is damaged at byte {offset}: {cause}", path.display())
        }
        other => other.to_string(),
    }
}

/// Describes what was kept and lost.
fn describe(salvage: &Salvage) -> String {
    let mut text = format!("{} records are kept", salvage.records);
    if salvage.corrected > 0 {
        text.push_str(&format!(", {} flipped bits corrected", salvage.corrected));
    }
    if salvage.has_loss() {
        text.push_str(&format!(
            "; lost are {} commits at least and {} records of a snapshot; what these changed is as it was before them",
            salvage.lost_commits, salvage.lost_records
        ));
        salvage.damage.iter().for_each(|damage| text.push_str(&place(damage)));
        let names = names(&salvage.damage);
        if !names.is_empty() {
            text.push_str(&format!("; names in what is lost: {}", names.join(", ")));
        }
    } else {
        text.push_str(", nothing is lost");
    }
    if let Some(kept) = salvage.kept.first().and_then(|path| path.parent()) {
        text.push_str(&format!("; the files as they were are {}/damaged-*", kept.display()));
    }
    text
}

fn place(damage: &Damage) -> String {
    format!("; {} bytes {} to {}", damage.path.display(), damage.bytes.start, damage.bytes.end)
}

/// Returns the last name of each inode in lost commits, as far as their bytes can be read. They are not verified.
fn lost_names(damage: &[Damage]) -> BTreeMap<Ino, LostName> {
    let records = damage.iter().flat_map(|damage| &damage.records);
    let entries = records.filter(|record| record.key.first() == Some(&b'D'));
    let named = entries.filter_map(|record| {
        let (_, name) = dentry_of_key(&record.key)?;
        let parent = Ino(u64::from_be_bytes(record.key.get(1..9)?.try_into().ok()?));
        let dentry = Dentry::from_bytes(record.value.as_deref()?).ok()?;
        // These bytes are covered by no checksum that fits, so they may be anything.
        let name = Name::new(name).ok()?.as_bytes().to_vec();
        Some((dentry.ino, LostName { parent, name }))
    });
    named.collect()
}

/// Returns the names of entries in lost commits, as far as their bytes can be read.
fn names(damage: &[Damage]) -> Vec<String> {
    let records = damage.iter().flat_map(|damage| &damage.records);
    let entries = records.filter(|record| record.key.first() == Some(&b'D'));
    let named = entries.filter_map(|record| dentry_of_key(&record.key));
    let mut names: Vec<String> = named.map(|(_, name)| name.escape_ascii().to_string()).collect();
    names.sort();
    names.dedup();
    names.truncate(NAMES_MAX);
    names
}

//! Records that cannot be opened: what is sound in them is made into records that can, and what is lost is said.

use std::sync::Arc;

use bivouac_store::{Damage, Records, Salvage, StoreError, Volume};
use bivouac_types::{FormationId, NodeId};

use crate::finding::{Finding, Kind, Outcome};
use crate::offline::{OfflineArgs, Opened, open_one};

/// Most names that a finding lists.
const NAMES_MAX: usize = 100;

/// Number of slots of the formation, which is the same on all nodes.
pub(crate) fn slots_of(opened: &[Opened], args: &OfflineArgs) -> Option<u16> {
    let of_map = args.map.as_ref().and_then(|map| u16::try_from(map.slots.len()).ok());
    let stored = |one: &Opened| Records::salvageable_slots(&*one.volume).ok().flatten();
    of_map.or_else(|| opened.iter().find_map(stored))
}

/// Salvages damaged records; `None` if that is not wished (no slots) or cannot be done.
pub(crate) fn salvage(
    volume: &Arc<dyn Volume>,
    node: NodeId,
    error: &StoreError,
    slots: Option<u16>,
    formation: FormationId,
) -> Option<(Records, Finding)> {
    let salvage = match Records::salvage(volume, formation, node, slots?) {
        Ok(salvage) => salvage,
        Err(error) => {
            log::error!("records of {node}: cannot be salvaged: {error}");
            return None;
        }
    };
    let records = open_one(volume, formation, node).ok().flatten()?;
    let mut finding = Finding::new(Kind::Records, format!("records of {node}"), cause_of(error));
    finding.outcome = Outcome::Repaired;
    Some((records, finding.remedy(told(&salvage))))
}

/// The finding of records that stay as they are.
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

/// What was done, and what is lost.
fn told(salvage: &Salvage) -> String {
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

/// Names of entries that lost commits made or removed, as far as their bytes can be read.
fn names(damage: &[Damage]) -> Vec<String> {
    let keys = damage.iter().flat_map(|damage| &damage.keys);
    let named = keys.filter_map(|(_, key)| (key.first() == Some(&b'D')).then(|| key.get(17..)).flatten());
    let mut names: Vec<String> = named.map(|name| name.escape_ascii().to_string()).collect();
    names.sort();
    names.dedup();
    names.truncate(NAMES_MAX);
    names
}

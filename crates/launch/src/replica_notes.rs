//! Replicas of nodes of other hosts on the volumes of a host's part, by their notes.

use std::path::Path;

use bivouac_store::{MirrorRole, read_mirror_note, replica_dir_name};
use bivouac_types::NodeId;

use crate::state::FormationState;

/// The nodes of which a host's part has replicas with all that was acknowledged, each with the mirror epoch of these. A
/// daemon seals no others.
#[must_use]
pub fn complete_replicas(state: &FormationState) -> Vec<(u16, u32)> {
    // The map here may be older than the replicas.
    let count = state.map().map_or(0, |map| map.mirrors.len() as u16);
    let volumes = state.nodes.iter().filter_map(|node| Some(&node.volumes.first()?.path));
    let all = volumes.flat_map(|volume| (0..count).map(move |node| (node, volume)));
    all.filter_map(|(node, volume)| Some((node, complete_epoch(node, volume)?))).collect()
}

/// The mirror epoch of the replica of a node below a volume, if it could be sealed.
fn complete_epoch(node: u16, volume: &Path) -> Option<u32> {
    match read_mirror_note(&volume.join(replica_dir_name(NodeId(node), 0)))
        .map(|note| note.map(|note| note.role))
    {
        Ok(Some(MirrorRole::Replica { epoch, .. })) => {
            (epoch.is_complete && !epoch.is_sealed).then_some(epoch.epoch)
        }
        Ok(_) => None,
        Err(error) => {
            log::warn!(why:% = error; "the replica of node {node}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_mirror::ReplicaEpoch;
    use bivouac_store::{MirrorNote, write_mirror_note};
    use bivouac_types::{FormationId, Slot};
    use bivouac_wire::{Encode, FormationMap, MirrorEntry, NodeEntry, TargetEntry};

    use crate::hex::to_hex;

    #[test]
    fn only_replicas_that_could_be_sealed_are_complete() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = crate::state::tests::sample();
        state.nodes.truncate(1);
        state.nodes[0].volumes.truncate(1);
        state.nodes[0].volumes[0].path = dir.path().to_owned();
        let node = |id: u16| NodeEntry {
            host: format!("h{id}"),
            client_address: format!("10.0.0.{id}:1"),
            peer_address: format!("10.0.0.{id}:2"),
            unix_path: String::new(),
            epoch: 0,
        };
        let map = FormationMap {
            version: 1,
            formation: FormationId([7; 16]),
            name: "x".into(),
            slots: (0..4).map(|slot| NodeId(Slot(slot).0 % 4)).collect(),
            nodes: (0..4).map(node).collect(),
            targets: (0..4).map(|id| TargetEntry { node: NodeId(id), volume: 0 }).collect(),
            stripe: 4096,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: vec![MirrorEntry { backup: None, epoch: 3 }; 4],
        };
        state.map = to_hex(&map.to_bytes());
        let note = |node: u16, is_complete, is_sealed| {
            let epoch = ReplicaEpoch { epoch: 3, session: 1, is_complete, is_sealed };
            let role = MirrorRole::Replica { epoch, volumes: 1, lease_ms: 100 };
            let replica = dir.path().join(replica_dir_name(NodeId(node), 0));
            std::fs::create_dir(&replica).unwrap();
            write_mirror_note(&replica, &MirrorNote::new(role)).unwrap();
        };
        note(1, true, false);
        note(2, false, false);
        note(3, true, true);
        assert_eq!(complete_replicas(&state), [(1, 3)]);
    }
}

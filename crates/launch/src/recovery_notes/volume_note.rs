//! Notes of a formation on its volumes, for the time when nothing else is left of it: its state, less what ends with
//! its processes. It names no credentials, and not the secret: who recovers it draws a new one.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bivouac_store::{VolumeIdentity, identity_of, read_note, write_note};
use serde::{Deserialize, Serialize};

use crate::clock::unix_ms;
use crate::hex::to_hex;
use crate::state::{
    FormationState, GatewayState, HttpState, NodeLife, NodeState, PartState, Stage, VolumeState,
};
use crate::{LaunchError, LaunchResult};

/// Version of the note; raised by every change that an older release would misunderstand.
const NOTE_VERSION: u32 = 1;
/// Nodes of a host whose volumes have it: the state of a thousand is large, and without any one of them nothing of that
/// host is recovered. Each host of several has its own.
const NODES_MAX: usize = 8;

#[derive(Serialize, Deserialize)]
struct VolumeNote<S> {
    version: u32,
    written_unix_ms: u64,
    state: S,
}

/// Writes the notes of a formation that serves. What fails is said, and does not stop it.
pub(crate) fn write_all(state: &FormationState) {
    let note = VolumeNote { version: NOTE_VERSION, written_unix_ms: unix_ms(), state: lasting(state) };
    let text = match serde_json::to_vec(&note) {
        Ok(text) => text,
        Err(error) => return log::error!(why:% = error; "the volumes do not say whose they are"),
    };
    for volume in state.nodes.iter().take(NODES_MAX).flat_map(|node| &node.volumes) {
        if let Err(error) = write_note(&volume.path, &text) {
            log::warn!(why:% = error; "volume {} does not say what it is part of", volume.path.display());
        }
    }
}

/// Returns the part of a state that outlives all processes.
pub(crate) fn lasting(state: &FormationState) -> FormationState {
    let node = |node: &NodeState| NodeState {
        process: None,
        life: NodeLife::Stopped,
        message: None,
        deaths: 0,
        client_address: String::new(),
        peer_address: String::new(),
        ..node.clone()
    };
    let part = state.part.clone().map(|part| PartState { leaves_volumes: false, ..part });
    FormationState {
        part,
        stage: Stage::Running,
        supervisor: None,
        message: None,
        owner: None,
        ends_unix_ms: None,
        mounts: Vec::new(),
        lost_elsewhere: Vec::new(),
        nodes: state.nodes.iter().map(node).collect(),
        http: state.http.clone().map(|http| HttpState { process: None, message: None, deaths: 0, ..http }),
        gateway: state.gateway.clone().map(|gateway| GatewayState {
            process: None,
            message: None,
            deaths: 0,
            ..gateway
        }),
        ..state.clone()
    }
}

/// Returns the newest state that any of these volumes has a note of, if it is of this formation. What cannot be used is
/// left out: another volume may have a better one.
pub(crate) fn newest(volumes: &[(PathBuf, VolumeIdentity)]) -> Option<FormationState> {
    let notes = volumes.iter().filter_map(|(path, identity)| {
        let text = read_note(path).ok()??;
        let note = parse(&text, path)
            .inspect_err(|error| log::warn!(error:%; "{error}"))
            .ok()
            .filter(|note| note.state.formation == to_hex(&identity.formation.0))?;
        // A note that lies about whose volume it is on is none.
        position(&note.state, *identity).is_some().then_some(note)
    });
    notes.max_by_key(|note| note.written_unix_ms).map(|note| note.state)
}

fn parse(text: &[u8], path: &Path) -> LaunchResult<VolumeNote<FormationState>> {
    let damaged = |cause: String| {
        let remedy = "name the other volumes of the formation as well";
        LaunchError::new(
            crate::Kind::Refused,
            format_args!("note of volume {}", path.display()),
            cause,
            remedy,
        )
    };
    // The version first: the state of another one need not be readable.
    let note: VolumeNote<serde_json::Value> =
        serde_json::from_slice(text).map_err(|error| damaged(format!("is damaged: {error}")))?;
    if note.version != NOTE_VERSION {
        return Err(damaged(format!("has version {}, this release reads {NOTE_VERSION}", note.version)));
    }
    let text = serde_json::to_vec(&note.state).map_err(|error| damaged(error.to_string()))?;
    Ok(VolumeNote {
        version: note.version,
        written_unix_ms: note.written_unix_ms,
        state: FormationState::parse(&text, path)?,
    })
}

/// Returns the reason why what is on these volumes is to be kept, as far as they say.
pub(crate) fn why_volumes_are_kept(volumes: &[(PathBuf, VolumeIdentity)]) -> Option<String> {
    newest(volumes)?.why_kept()
}

/// Returns the volume of a state that has this identity.
pub(crate) fn position(state: &FormationState, identity: VolumeIdentity) -> Option<&VolumeState> {
    let node = state.nodes.iter().find(|node| node.id == identity.node.0)?;
    node.volumes.get(usize::from(identity.index))
}

/// Returns those of these directories that are volumes of this user, with their identities. What cannot be read is
/// passed to `doubt`.
pub(crate) fn volumes_at(
    dirs: impl IntoIterator<Item = PathBuf>,
    doubt: &mut dyn FnMut(String),
) -> Vec<(PathBuf, VolumeIdentity)> {
    let mut found = Vec::new();
    for dir in dirs {
        match identity_of(&dir) {
            // A state on it would be taken for the user's own.
            Ok(Some(_)) if !is_ours(&dir) => {
                doubt(format!("volume {}: belongs to another user", dir.display()))
            }
            Ok(Some(identity)) => found.push((dir, identity)),
            Ok(None) => {}
            Err(error) => doubt(error.to_string()),
        }
    }
    found
}

fn is_ours(dir: &Path) -> bool {
    std::fs::metadata(dir).is_ok_and(|seen| seen.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::state::tests::sample;
    use bivouac_store::{DirVolume, NOTE_NAME};
    use bivouac_types::{FormationId, NodeId};

    pub(crate) fn volume(dir: &Path, node: u16) -> (PathBuf, VolumeIdentity) {
        let identity = VolumeIdentity { formation: FormationId([7; 16]), node: NodeId(node), index: 0 };
        let path = dir.join(format!("n{node}"));
        drop(DirVolume::open(&path, identity, true).unwrap());
        (path, identity)
    }

    /// Returns the state of two nodes on volumes below a directory.
    pub(crate) fn of_two(dir: &Path) -> (FormationState, Vec<(PathBuf, VolumeIdentity)>) {
        let volumes = vec![volume(dir, 0), volume(dir, 1)];
        let mut state = sample();
        state.nodes.push(NodeState { id: 1, ..state.nodes[0].clone() });
        for (node, (path, _)) in state.nodes.iter_mut().zip(&volumes) {
            node.volumes[0].path = path.clone();
        }
        (state, volumes)
    }

    #[test]
    fn a_note_says_what_outlives_the_processes() {
        let dir = tempfile::tempdir().unwrap();
        let (state, volumes) = of_two(dir.path());
        write_all(&state);
        let read = newest(&volumes).unwrap();
        assert_eq!((read.supervisor, read.nodes[0].process, read.name.as_str()), (None, None, "sample"));
        assert_eq!((&read.nodes[1].volumes, read.stripe), (&state.nodes[1].volumes, state.stripe));
    }

    #[test]
    fn a_volume_of_another_user_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, identity) = volume(dir.path(), 0);
        let look = || {
            let mut said = String::new();
            let found = volumes_at([path.clone(), dir.path().to_owned()], &mut |doubt| said.push_str(&doubt));
            (found, said)
        };
        assert_eq!(look(), (vec![(path.clone(), identity)], String::new()));
        // Only root can give it away.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            let (found, said) = look();
            assert!(found.is_empty() && said.contains("belongs to another user"), "{said}");
        }
    }

    #[test]
    fn a_note_that_is_damaged_is_made_up_for_by_another() {
        let dir = tempfile::tempdir().unwrap();
        let (state, volumes) = of_two(dir.path());
        write_all(&state);
        let first = volumes[0].0.join(NOTE_NAME);
        let good = std::fs::read_to_string(&first).unwrap();
        let foreign = good.replace(&"07".repeat(16), &"08".repeat(16));
        let newer = good.replacen("\"version\":1", "\"version\":9", 1);
        for bad in ["", "garbage", "{\"version\":1}", &good[..good.len() / 2], &foreign, &newer] {
            std::fs::write(&first, bad).unwrap();
            assert_eq!(newest(&volumes).unwrap().name.as_str(), "sample", "{bad}");
            assert_eq!(newest(&volumes[..1]), None, "{bad}");
        }
    }
}

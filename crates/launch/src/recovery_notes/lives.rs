//! Lives of a formation that a volume took part in. A recovery begins a life, and volumes that were not in the same
//! ones are of different times: files over both would be mixtures. See docs/format.md.
//!
//! A life is *begun* on all volumes before it is *served* on any, and nothing is served to programs before that. So
//! whatever kills a recovery, every volume has at least begun the newest life that another one says was served. One
//! that has not is older.

use std::collections::BTreeSet;
use std::path::Path;

use bivouac_store::{read_lives, write_lives};
use bivouac_wire::rendezvous::PreviousPart;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::state::FormationState;
use crate::state_dir::SECRET_LEN;
use crate::{Kind, LaunchError, LaunchResult};

/// Version of the text; raised by every change that an older release would misunderstand.
const VERSION: u32 = 1;
/// Most lives recorded on a volume.
const REMEMBERED_MAX: usize = 256;
/// Before the secret, so that what is written down is of no use for anything else.
const DOMAIN: &[u8] = b"bivouac: a life of a formation";

/// Lives noted on a volume, the newest last. None before the first recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeLives {
    version: u32,
    lives: Vec<RecordedLife>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedLife {
    /// Alike on all hosts, and of no other life.
    id: u64,
    /// True if programs may have changed something in it.
    served: bool,
}

/// Returns the id of the life whose processes have this secret, which is drawn anew by each recovery.
fn id_of(secret: &[u8; SECRET_LEN]) -> u64 {
    let digest = Sha256::new().chain_update(DOMAIN).chain_update(secret).finalize();
    digest.iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte))
}

impl VolumeLives {
    fn read(volume: &Path) -> Result<VolumeLives, String> {
        let Some(text) = read_lives(volume).map_err(|error| error.to_string())? else {
            return Ok(VolumeLives { version: VERSION, lives: Vec::new() });
        };
        let read: VolumeLives = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        match read.version {
            VERSION => Ok(read),
            other => Err(format!("version {other}, this release reads {VERSION}")),
        }
    }

    fn write(&self, volume: &Path) -> Result<(), String> {
        let text = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        write_lives(volume, &text).map_err(|error| error.to_string())
    }

    /// Notes a life, whose last word is what is served.
    fn add(&mut self, id: u64, served: bool) {
        self.version = VERSION;
        match self.lives.iter_mut().find(|life| life.id == id) {
            Some(life) => life.served |= served,
            None => self.lives.push(RecordedLife { id, served }),
        }
        let too_many = self.lives.len().saturating_sub(REMEMBERED_MAX);
        self.lives.drain(..too_many);
    }

    fn ids(&self) -> Vec<u64> {
        self.lives.iter().map(|life| life.id).collect()
    }

    fn last_served(&self) -> Option<u64> {
        self.lives.iter().rev().find(|life| life.served).map(|life| life.id)
    }

    /// Returns the number of lives that this one has seen that were served, and another one has not.
    fn ahead_of(&self, other: &VolumeLives) -> usize {
        let known: BTreeSet<u64> = other.lives.iter().map(|life| life.id).collect();
        self.lives.iter().filter(|life| life.served && !known.contains(&life.id)).count()
    }
}

/// Notes on all volumes here that the life of this secret begins; then, unless others decide that, that it is served.
/// What fails is said: volumes of this life are not told from older ones then.
pub(crate) fn begin(state: &FormationState, secret: &[u8; SECRET_LEN]) {
    let id = id_of(secret);
    if add_to_all(state, id, false) && state.part.is_none() {
        add_to_all(state, id, true);
    }
}

/// Notes that the life of this secret is served, of one over several hosts.
pub(crate) fn serve(state: &FormationState, secret: &[u8; SECRET_LEN]) {
    add_to_all(state, id_of(secret), true);
}

fn add_to_all(state: &FormationState, id: u64, served: bool) -> bool {
    for volume in state.nodes.iter().flat_map(|node| &node.volumes) {
        // One that was damaged was taken as it is.
        let mut lives = VolumeLives::read(&volume.path).unwrap_or_default();
        lives.add(id, served);
        if let Err(error) = lives.write(&volume.path) {
            let path = volume.path.display();
            log::warn!(
                why:% = error; "volume {path} does not say that it was recovered; an older copy would not be told"
            );
            // So that it is served nowhere: a volume that has not begun a served life would be taken for an older
            // copy.
            return false;
        }
    }
    true
}

/// Returns the lives noted on all volumes here, for the other hosts: those that all of them have seen, and the newest
/// that was served.
///
/// # Errors
/// The volume that is older than another one, unless it is to be taken as it is.
pub(crate) fn check(state: &FormationState, with_older: bool) -> LaunchResult<CommonLives> {
    let mut seen: Vec<(String, VolumeLives)> = Vec::new();
    for node in &state.nodes {
        for (index, volume) in node.volumes.iter().enumerate() {
            let name = format!("volume {index} of node {} ({})", node.id, volume.path.display());
            match VolumeLives::read(&volume.path) {
                Ok(lives) => seen.push((name, lives)),
                Err(error) if with_older => log::warn!(why:% = error; "{name}"),
                Err(error) => {
                    let cause = format!(
                        "{name} does not say in which lives of the formation it was there: its file \
                         bivouac-lives cannot be used ({error})"
                    );
                    return Err(refused(state, &cause, REMEDY));
                }
            }
        }
    }
    if !with_older && let Some(cause) = first_older(&seen) {
        return Err(refused(state, &cause, REMEDY));
    }
    Ok(CommonLives::of(seen.iter().map(|(_, lives)| lives)))
}

const REMEDY: &str = "bring back volumes of one moment; or take them as they are (--with-older): files over both are then \
                      mixtures of old and new, which checksums do not tell; nothing was changed";

fn refused(state: &FormationState, cause: &str, remedy: &str) -> LaunchError {
    LaunchError::new(Kind::Refused, format_args!("formation {}", state.name), cause, remedy)
}

/// Returns the first that has not seen what another one has, in words.
fn first_older(all: &[(String, VolumeLives)]) -> Option<String> {
    let newest = |of: &VolumeLives| all.iter().find(|(_, other)| lacks(&of.ids(), other.last_served()));
    let (name, lives, (other, newer)) =
        all.iter().find_map(|(name, lives)| newest(lives).map(|other| (name, lives, other)))?;
    let ahead = newer.ahead_of(lives);
    let times = if ahead == 1 { "once".into() } else { format!("{ahead} times") };
    Some(match lives.ahead_of(newer) {
        0 => {
            format!("{name} is from an older copy: {other} was recovered {times} since, and it was not there")
        }
        _ => {
            format!("{name} and {other} are of different copies: each was recovered since without the other")
        }
    })
}

fn lacks(ids: &[u64], served: Option<u64>) -> bool {
    served.is_some_and(|served| !ids.contains(&served))
}

/// Lives common to several volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommonLives {
    pub lives: Vec<u64>,
    pub served: Option<u64>,
}

impl CommonLives {
    fn of<'a>(all: impl Iterator<Item = &'a VolumeLives> + Clone) -> CommonLives {
        let first = all.clone().next().map(VolumeLives::ids).unwrap_or_default();
        let is_known = |id: &u64| all.clone().all(|lives| lives.ids().contains(id));
        let lives: Vec<u64> = first.into_iter().filter(is_known).collect();
        let age = |id: &u64| lives.iter().position(|known| known == id);
        // A life that not all of them have seen comes to this only with `--with-older`, and counts as the oldest.
        let served = all.filter_map(VolumeLives::last_served).max_by_key(age);
        CommonLives { lives, served }
    }
}

/// Returns the first host whose volumes have not seen what those of another one have, in words.
pub fn older_host(hosts: &[(&str, &PreviousPart)]) -> Option<String> {
    let newer = |of: &PreviousPart| hosts.iter().find(|(_, other)| lacks(&of.lives, other.served));
    let (host, (other, _)) = hosts.iter().find_map(|(host, past)| newer(past).map(|other| (host, other)))?;
    Some(format!(
        "the volumes of host {host} are older than those of {other}: the formation was recovered since without them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery_notes::volume_note::tests::of_two;

    fn told(state: &FormationState) -> String {
        check(state, false).map_or_else(|error| error.to_string(), |common| format!("{common:?}"))
    }

    /// S593.
    #[test]
    fn a_recovery_that_was_killed_at_any_write_is_no_reason_to_refuse() {
        let dir = tempfile::tempdir().unwrap();
        let (state, volumes) = of_two(dir.path());
        let paths: Vec<&Path> = volumes.iter().map(|(path, _)| path.as_path()).collect();
        let add = |path: &Path, id, served| {
            let mut lives = VolumeLives::read(path).unwrap();
            lives.add(id, served);
            lives.write(path).unwrap();
            assert!(check(&state, false).is_ok(), "{}", told(&state));
        };
        assert_eq!(check(&state, false).unwrap(), CommonLives::default());
        for id in 1..5 {
            add(paths[0], id, false);
            // Some of them come no further than this, in either order.
            if id == 2 {
                continue;
            }
            add(paths[1], id, false);
            add(paths[usize::from(id == 3)], id, true);
            if id != 3 {
                add(paths[1], id, true);
            }
        }
        assert_eq!(check(&state, false).unwrap().served, Some(4));
    }

    /// S593.
    #[test]
    fn an_older_volume_is_told_and_taken_only_if_that_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let (state, volumes) = of_two(dir.path());
        let file = |node: usize| volumes[node].0.join(bivouac_store::LIVES_NAME);
        begin(&state, &[1; SECRET_LEN]);
        let old = [0, 1].map(|node| std::fs::read(file(node)).unwrap());
        begin(&state, &[2; SECRET_LEN]);
        begin(&state, &[3; SECRET_LEN]);
        assert_eq!(check(&state, false).unwrap().served, Some(id_of(&[3; SECRET_LEN])));
        for node in [0, 1] {
            let now = std::fs::read(file(node)).unwrap();
            std::fs::write(file(node), &old[node]).unwrap();
            let text = told(&state);
            let says =
                format!("volume 0 of node {node} ({}) is from an older copy", volumes[node].0.display());
            assert!(text.contains(&says) && text.contains("recovered 2 times since"), "{text}");
            std::fs::remove_file(file(node)).unwrap();
            assert!(told(&state).contains("recovered 3 times since"), "{}", told(&state));
            std::fs::write(file(node), "{").unwrap();
            assert!(told(&state).contains("cannot be used"), "{}", told(&state));
            assert!(check(&state, true).is_ok());
            std::fs::write(file(node), now).unwrap();
        }
        // Both were recovered from copies of one moment, apart.
        (0..2).for_each(|node| std::fs::write(file(node), &old[node]).unwrap());
        assert!(check(&state, false).is_ok(), "all of one moment");
        begin(&state, &[4; SECRET_LEN]);
        let one = std::fs::read(file(0)).unwrap();
        (0..2).for_each(|node| std::fs::write(file(node), &old[node]).unwrap());
        begin(&state, &[5; SECRET_LEN]);
        std::fs::write(file(0), one).unwrap();
        assert!(told(&state).contains("are of different copies"), "{}", told(&state));
        // Taken as they are, they are of one life again.
        begin(&state, &[6; SECRET_LEN]);
        assert!(check(&state, false).is_ok(), "{}", told(&state));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut lives = VolumeLives::default();
        (0..1000).for_each(|id| lives.add(id, true));
        assert_eq!((lives.lives.len(), lives.last_served()), (REMEMBERED_MAX, Some(999)));
    }
}

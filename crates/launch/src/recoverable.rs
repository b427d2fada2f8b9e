//! The formations of this user that can be recovered on this host: those whose state is here and whose processes are
//! all dead, those whose disks are noted, and those in memory whose state is gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bivouac_store::{DirVolume, Records, StoreError, VolumeIdentity, claim_existing};
use bivouac_types::FormationId;

use crate::amount::Amount;
use crate::environment::Environment;
use crate::hex::to_hex;
use crate::memory_root;
use crate::name::FormationName;
use crate::recovery_notes::index;
use crate::recovery_notes::volume_note::{newest, volumes_at};
use crate::runtime_dirs::gone_on;
use crate::state::FormationState;
use crate::state_dir::StateDir;

/// A formation of which no process lives, and something is left.
#[derive(Clone, Debug)]
pub struct Recoverable {
    /// Its name.
    pub name: FormationName,
    /// Its id, hexadecimal.
    pub formation: String,
    /// Time when it was made, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Location of its state, unless that is gone.
    pub dir: Option<StateDir>,
    /// Its former state, for one over several hosts this host's part; `None` if no volume here has it.
    pub state: Option<FormationState>,
    /// The whole of one over several hosts, if it was started here.
    pub whole: Option<FormationState>,
    /// Noted paths of its volumes, if nothing says more.
    pub(crate) noted: Vec<PathBuf>,
}

impl Recoverable {
    /// Reads its content.
    #[must_use]
    pub fn amount(&self) -> Amount {
        self.state.as_ref().map(Amount::of).unwrap_or_default()
    }

    /// Volumes that are not where they are said to be, in words.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        match &self.state {
            Some(state) => missing(state).iter().map(MissingVolume::to_string).collect(),
            None if self.whole.is_some() => Vec::new(),
            None => self.noted.iter().map(|path| format!("volume {}", path.display())).collect(),
        }
    }

    /// Returns whether it is one over several hosts.
    #[must_use]
    pub fn is_over_hosts(&self) -> bool {
        self.whole.is_some() || self.state.as_ref().is_some_and(|state| state.part.is_some())
    }
}

/// A volume that is not there.
pub(crate) struct MissingVolume {
    pub node: u16,
    pub index: usize,
    pub path: PathBuf,
    /// The thing that is there instead, if not nothing.
    pub instead: Option<String>,
}

impl std::fmt::Display for MissingVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume {} of node {} ({}", self.index, self.node, self.path.display())?;
        match &self.instead {
            Some(what) => write!(f, ": {what})"),
            None => write!(f, ")"),
        }
    }
}

/// Returns the volumes of a state that are not where it says.
pub(crate) fn missing(state: &FormationState) -> Vec<MissingVolume> {
    let mut found = Vec::new();
    let formation = state.formation_id();
    for node in &state.nodes {
        for (index, volume) in node.volumes.iter().enumerate() {
            let wanted = |seen: &VolumeIdentity| {
                Some(seen.formation) == formation
                    && (seen.node.0, usize::from(seen.index)) == (node.id, index)
            };
            let instead = match bivouac_store::identity_of(&volume.path) {
                Ok(Some(seen)) if wanted(&seen) && index == 0 && !has_names(&volume.path) => {
                    Some("its records are gone, which nodes that served have".into())
                }
                Ok(Some(seen)) if wanted(&seen) && has_table(&volume.path) => continue,
                Ok(Some(seen)) if wanted(&seen) => {
                    let remedy = "fsck --offline --repair has it do with those that it has";
                    Some(format!(
                        "it does not say which subfiles it had, so it was not copied whole; {remedy}"
                    ))
                }
                Ok(Some(seen)) => Some(format!(
                    "there is volume {} of {} of formation {}",
                    seen.index, seen.node, seen.formation
                )),
                Ok(None) if volume.path.exists() => Some("that directory is no volume".into()),
                Ok(None) => None,
                Err(error) => Some(error.to_string()),
            };
            found.push(MissingVolume { node: node.id, index, path: volume.path.clone(), instead });
        }
    }
    found
}

/// Returns whether a node's first volume has its records, in whatever state: a copy of it that was interrupted may have
/// none.
fn has_names(path: &Path) -> bool {
    let stored = DirVolume::open_existing(path).and_then(|(volume, _)| Records::stored(&volume));
    stored.map_or(true, |stored| stored.is_some())
}

/// Returns whether a volume says which subfiles it has to have. What says so and is damaged is told by its daemon.
fn has_table(path: &Path) -> bool {
    let checked = DirVolume::open_existing(path).and_then(|(volume, _)| volume.check_table());
    !matches!(checked, Err(StoreError::NoTable { .. }))
}

/// Returns all of them that have no state in another place of this user, by name. Entries of formations whose volumes
/// are gone for good are forgotten.
#[must_use]
pub fn recoverable(here: &Environment) -> Vec<Recoverable> {
    // States first: they know more of a formation than its notes and volumes do.
    let mut found: Vec<Recoverable> = StateDir::list(here).into_iter().filter_map(dead).collect();
    let living: Vec<String> = StateDir::list(here)
        .into_iter()
        .filter(|(_, dir)| dir.is_held())
        .filter_map(|(_, dir)| Some(dir.read().ok()??.formation))
        .collect();
    for other in noted(here).into_iter().chain(in_memory(here)) {
        let is_known = found.iter().any(|known| known.formation == other.formation);
        if !is_known && !living.contains(&other.formation) {
            found.push(other);
        }
    }
    for whole in wholes(here).into_iter().filter(|whole| !living.contains(&whole.formation)) {
        match found.iter_mut().find(|known| known.formation == whole.formation) {
            Some(part) => part.whole = Some(whole),
            None => found.push(Recoverable {
                name: whole.name.clone(),
                formation: whole.formation.clone(),
                created_unix_ms: whole.created_unix_ms,
                dir: None,
                state: None,
                whole: Some(whole),
                noted: Vec::new(),
            }),
        }
    }
    found.sort_by(|a, b| (&a.name, a.created_unix_ms).cmp(&(&b.name, b.created_unix_ms)));
    found
}

/// Returns formations over several hosts that were started here and have no keeper any more: only a look at their hosts
/// shows what those have.
fn wholes(here: &Environment) -> Vec<FormationState> {
    let dirs = StateDir::wholes(here);
    let (held, dead): (Vec<_>, Vec<_>) = dirs.into_iter().partition(|(_, dir)| dir.is_held());
    let states = |dirs: Vec<(FormationName, StateDir)>| {
        dirs.into_iter().filter_map(|(_, dir)| dir.read().ok()?).collect::<Vec<FormationState>>()
    };
    let (held, dead) = (states(held), states(dead));
    // A recovery that was killed is replaced by the state before it; a start that was killed before it had nodes left
    // nothing anywhere.
    let what_it_was = |mut whole: FormationState| {
        let was = whole.before.take().map_or(whole, |before| *before);
        Some(was).filter(|whole| !whole.nodes.is_empty())
    };
    let mut dead: Vec<FormationState> = dead.into_iter().filter_map(what_it_was).collect();
    let noted = index::entries_of_wholes(here).into_iter().filter_map(|entry| what_it_was(entry.whole?));
    for whole in noted.filter(|whole| held.iter().all(|other| other.formation != whole.formation)) {
        if dead.iter().all(|known| known.formation != whole.formation) {
            dead.push(whole);
        }
    }
    dead
}

/// Returns those with this name of the formations that [`recoverable`] finds without their state.
pub(crate) fn without_state(here: &Environment, name: &FormationName) -> Vec<Recoverable> {
    recoverable(here).into_iter().filter(|found| found.name == *name && found.dir.is_none()).collect()
}

/// Returns a formation that has a state and no living process.
fn dead((name, dir): (FormationName, StateDir)) -> Option<Recoverable> {
    if dir.is_held() {
        return None;
    }
    let state = dir.read().ok()??;
    if gone_on(&state).is_some() {
        return None;
    }
    Some(Recoverable {
        name,
        formation: state.formation.clone(),
        created_unix_ms: state.created_unix_ms,
        dir: Some(dir),
        state: Some(state),
        whole: None,
        noted: Vec::new(),
    })
}

fn noted(here: &Environment) -> Vec<Recoverable> {
    let entries = index::entries(here).into_iter();
    entries
        .filter_map(|entry| {
            // What runs is not touched: its daemons may be about to lock their volumes.
            let dir = StateDir::at(entry.directory.clone());
            let state = dir.read().ok().flatten();
            if let Some(state) = state.filter(|state| state.formation == entry.formation)
                && (dir.is_held() || state.part.is_none() && is_elsewhere(here, &dir))
            {
                return None;
            }
            let volumes = of_formation(volumes_of(&entry.volumes), &entry.formation);
            if volumes.is_empty()
                && entry.volumes.iter().all(|path| is_used_otherwise(path, &entry.formation))
            {
                index::forget(here, &entry.formation);
                return None;
            }
            if is_in_use(&volumes) {
                return None;
            }
            Some(Recoverable {
                state: newest(&volumes),
                name: entry.name,
                formation: entry.formation,
                created_unix_ms: entry.created_unix_ms,
                dir: None,
                whole: None,
                noted: entry.volumes,
            })
        })
        .collect()
}

/// Returns whether a directory is that of a formation of another place.
fn is_elsewhere(here: &Environment, dir: &StateDir) -> bool {
    let real = |base: &Path| base.canonicalize().ok();
    let own = here.existing_base().and_then(|base| real(&base));
    own.is_none() || own != dir.path().parent().and_then(real)
}

/// Returns whether a volume's place has certainly been used for something else since. What cannot be read may be the
/// volume all the same, and an empty directory the place where its disk is mounted.
fn is_used_otherwise(path: &Path, formation: &str) -> bool {
    match bivouac_store::identity_of(path) {
        Ok(Some(seen)) => to_hex(&seen.formation.0) != formation,
        Ok(None) => std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()),
        Err(_) => false,
    }
}

/// Returns formations in memory whose own state is gone.
fn in_memory(here: &Environment) -> Vec<Recoverable> {
    let mut by_formation: BTreeMap<String, Vec<(PathBuf, VolumeIdentity)>> = BTreeMap::new();
    // Formations with a state somewhere are found by that, and may be running.
    for root in memory_root::all(here).into_iter().filter(|root| !memory_root::has_state(root)) {
        for (path, identity) in volumes_of(&below(&root)) {
            by_formation.entry(to_hex(&identity.formation.0)).or_default().push((path, identity));
        }
    }
    let unused = by_formation.into_iter().filter(|(_, volumes)| !is_in_use(volumes));
    unused
        .filter_map(|(formation, volumes)| {
            let state = newest(&volumes)?;
            let noted = volumes.into_iter().map(|(path, _)| path).collect();
            let (name, created_unix_ms) = (state.name.clone(), state.created_unix_ms);
            Some(Recoverable {
                name,
                formation,
                created_unix_ms,
                dir: None,
                state: Some(state),
                whole: None,
                noted,
            })
        })
        .collect()
}

/// Returns the entries of a directory.
pub(crate) fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

fn volumes_of(paths: &[PathBuf]) -> Vec<(PathBuf, VolumeIdentity)> {
    volumes_at(paths.iter().cloned(), &mut |doubt| log::debug!(error:% = doubt; "{doubt}"))
}

pub(crate) fn of_formation(
    mut volumes: Vec<(PathBuf, VolumeIdentity)>,
    formation: &str,
) -> Vec<(PathBuf, VolumeIdentity)> {
    let wanted: Option<FormationId> = crate::hex::formation_from_hex(formation);
    volumes.retain(|(_, identity)| Some(identity.formation) == wanted);
    volumes
}

/// Returns whether a daemon has any of them: of a formation that runs in another runtime directory.
fn is_in_use(volumes: &[(PathBuf, VolumeIdentity)]) -> bool {
    let in_use = |path: &Path| matches!(claim_existing(path), Err(StoreError::InUse { .. }));
    volumes.iter().any(|(path, _)| in_use(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;
    use crate::recovery_notes::volume_note::tests::volume;
    use crate::state::tests::sample;

    /// S291.
    #[test]
    fn a_formation_is_not_forgotten_while_its_disk_is_away_or_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let (path, identity) = volume(dir.path(), 0);
        let formation = to_hex(&identity.formation.0);
        assert!(!is_used_otherwise(&path, &formation));
        let away = dir.path().join("away");
        std::fs::rename(&path, &away).unwrap();
        assert!(!is_used_otherwise(&path, &formation), "nothing is there");
        std::fs::create_dir(&path).unwrap();
        assert!(!is_used_otherwise(&path, &formation), "the place where it is mounted");
        std::fs::write(path.join("mine"), "x").unwrap();
        assert!(is_used_otherwise(&path, &formation));
        assert!(is_used_otherwise(&away, &"00".repeat(16)), "a volume of another formation");
        for entry in std::fs::read_dir(&away).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_file() {
                std::fs::write(entry, "x").unwrap();
            }
        }
        assert!(!is_used_otherwise(&away, &formation), "damaged");
    }

    /// S339.
    #[test]
    fn a_recovery_that_was_killed_leaves_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        let was = sample();
        let names = |here: &Environment| {
            wholes(here)
                .into_iter()
                .map(|whole| (whole.created_unix_ms, whole.nodes.len()))
                .collect::<Vec<_>>()
        };
        let claim = StateDir::claim_whole(&here, &was.name).unwrap();
        let before = Some(Box::new(was.clone()));
        let again = FormationState { nodes: Vec::new(), created_unix_ms: 9, before, ..was.clone() };
        claim.dir.write(&again).unwrap();
        assert_eq!(names(&here), [], "it is under way");
        let left = claim.dir.clone();
        drop(claim);
        // What another test starts just then has a copy of the lock for a moment.
        assert!(left.wait_released(10_000));
        assert_eq!(names(&here), [(was.created_unix_ms, 1)], "it was killed");
        left.write(&FormationState { before: None, ..again }).unwrap();
        assert_eq!(names(&here), [], "a start that came no further has nothing anywhere");
    }
}

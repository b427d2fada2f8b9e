//! Which formations of this user could be recovered on this host: those whose state is here and whose processes are all dead,
//! those whose disks are noted, and those in memory whose state is gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bivouac_store::{StoreError, VolumeIdentity, claim_existing};
use bivouac_types::FormationId;

use super::amount::Amount;
use super::index;
use super::note::{newest, volumes_at};
use crate::hex::to_hex;
use crate::memory_root;
use crate::name::FormationName;
use crate::state::State;
use crate::state_dir::StateDir;
use crate::surroundings::Surroundings;

/// A formation of which no process lives, and something is left.
#[derive(Clone, Debug)]
pub struct Recoverable {
    /// Its name.
    pub name: FormationName,
    /// Its id, hexadecimal.
    pub formation: String,
    /// When it was made, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Where its state is, unless that is gone.
    pub dir: Option<StateDir>,
    /// What it was; `None` if no volume is here that says it.
    pub state: Option<State>,
    /// Where its volumes are said to be, if nothing says more.
    pub(crate) noted: Vec<PathBuf>,
}

impl Recoverable {
    /// How much it holds.
    #[must_use]
    pub fn amount(&self) -> Amount {
        self.state.as_ref().map(Amount::of).unwrap_or_default()
    }

    /// Volumes that are not where they are said to be, in words.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        match &self.state {
            Some(state) => missing(state).iter().map(Missing::to_string).collect(),
            None => self.noted.iter().map(|path| format!("volume {}", path.display())).collect(),
        }
    }

    /// Why it cannot be recovered whatever is brought back, if so.
    #[must_use]
    pub fn obstacle(&self) -> Option<&'static str> {
        let state = self.state.as_ref()?;
        let is_part = state.part.is_some() || state.is_over_hosts();
        is_part.then_some("it is over several hosts, which `recover` does not bring back")
    }
}

/// A volume that is not there.
pub(crate) struct Missing {
    pub node: u16,
    pub index: usize,
    pub path: PathBuf,
    /// What is there instead, if not nothing.
    pub instead: Option<String>,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume {} of node {} ({}", self.index, self.node, self.path.display())?;
        match &self.instead {
            Some(what) => write!(f, ": {what})"),
            None => write!(f, ")"),
        }
    }
}

/// The volumes of a state that are not where it says.
pub(crate) fn missing(state: &State) -> Vec<Missing> {
    let mut found = Vec::new();
    let formation = state.formation_id();
    for node in &state.nodes {
        for (index, volume) in node.volumes.iter().enumerate() {
            let wanted = |seen: &VolumeIdentity| {
                Some(seen.formation) == formation
                    && (seen.node.0, usize::from(seen.index)) == (node.id, index)
            };
            let instead = match bivouac_store::identity_of(&volume.path) {
                Ok(Some(seen)) if wanted(&seen) => continue,
                Ok(Some(seen)) => Some(format!(
                    "there is volume {} of {} of formation {}",
                    seen.index, seen.node, seen.formation
                )),
                Ok(None) if volume.path.exists() => Some("that directory is no volume".into()),
                Ok(None) => None,
                Err(error) => Some(error.to_string()),
            };
            found.push(Missing { node: node.id, index, path: volume.path.clone(), instead });
        }
    }
    found
}

/// All of them, by name. Entries of formations whose volumes are gone for good are forgotten.
#[must_use]
pub fn recoverable(here: &Surroundings) -> Vec<Recoverable> {
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
    found.sort_by(|a, b| (&a.name, a.created_unix_ms).cmp(&(&b.name, b.created_unix_ms)));
    found
}

/// Of the formations that [`recoverable`] finds without their state those with this name.
pub(crate) fn without_state(here: &Surroundings, name: &FormationName) -> Vec<Recoverable> {
    recoverable(here).into_iter().filter(|found| found.name == *name && found.dir.is_none()).collect()
}

/// One with a state of which no process lives.
fn dead((name, dir): (FormationName, StateDir)) -> Option<Recoverable> {
    if dir.is_held() {
        return None;
    }
    let state = dir.read().ok()??;
    Some(Recoverable {
        name,
        formation: state.formation.clone(),
        created_unix_ms: state.created_unix_ms,
        dir: Some(dir),
        state: Some(state),
        noted: Vec::new(),
    })
}

fn noted(here: &Surroundings) -> Vec<Recoverable> {
    let entries = index::entries(here).into_iter();
    entries
        .filter_map(|entry| {
            // What runs is not touched: its daemons may be about to lock their volumes.
            let dir = StateDir::at(entry.directory.clone());
            let state = dir.read().ok().flatten();
            if state.is_some_and(|state| state.formation == entry.formation) && dir.is_held() {
                return None;
            }
            let volumes = of_formation(volumes_of(&entry.volumes), &entry.formation);
            if volumes.is_empty() && entry.volumes.iter().all(|path| path.exists()) {
                // They were used for something else since.
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
                noted: entry.volumes,
            })
        })
        .collect()
}

/// Those in memory whose own state is gone.
fn in_memory(here: &Surroundings) -> Vec<Recoverable> {
    let mut by_formation: BTreeMap<String, Vec<(PathBuf, VolumeIdentity)>> = BTreeMap::new();
    // What has a state somewhere is found by that, and may run.
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
            Some(Recoverable { name, formation, created_unix_ms, dir: None, state: Some(state), noted })
        })
        .collect()
}

/// What is in a directory.
pub(crate) fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

fn volumes_of(paths: &[PathBuf]) -> Vec<(PathBuf, VolumeIdentity)> {
    volumes_at(paths.iter().cloned(), &mut |doubt| log::debug!("{doubt}"))
}

pub(crate) fn of_formation(
    mut volumes: Vec<(PathBuf, VolumeIdentity)>,
    formation: &str,
) -> Vec<(PathBuf, VolumeIdentity)> {
    let wanted: Option<FormationId> = crate::hex::formation_from_hex(formation);
    volumes.retain(|(_, identity)| Some(identity.formation) == wanted);
    volumes
}

/// Whether a daemon has any of them: of a formation that runs in another runtime directory.
fn is_in_use(volumes: &[(PathBuf, VolumeIdentity)]) -> bool {
    let in_use = |path: &Path| matches!(claim_existing(path), Err(StoreError::InUse { .. }));
    volumes.iter().any(|(path, _)| in_use(path))
}

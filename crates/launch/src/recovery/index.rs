//! Where the volumes of this user's formations are, for the time after a reboot, when the directories of their states are
//! gone: an entry for each formation of this host that has a disk, in the user's state directory. It only helps to find them; whose a
//! volume is, and of what, it says itself.
//!
//! ```text
//! $XDG_STATE_HOME/bivouac/HOST-FORMATION.json      0600; else below ~/.local/state
//! ```

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::name::FormationName;
use crate::state::State;
use crate::surroundings::Surroundings;

/// Version of an entry.
const INDEX_VERSION: u32 = 1;
/// Most bytes of an entry.
const ENTRY_LEN_MAX: u64 = 4 << 20;
const DISK: &str = "disk";

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    version: u32,
    /// The formation's name.
    pub name: FormationName,
    /// Its id, hexadecimal.
    pub formation: String,
    /// The host that its volumes are on.
    pub host: String,
    /// When it was made, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Where its state is, or was.
    pub directory: PathBuf,
    /// Where its volumes are.
    pub volumes: Vec<PathBuf>,
}

/// Notes where the volumes of a formation are. A user without a place for that has none; then volumes have to be named.
pub(crate) fn remember(here: &Surroundings, directory: &Path, state: &State) {
    let volumes = || state.nodes.iter().flat_map(|node| &node.volumes);
    if !volumes().any(|volume| volume.kind == DISK) {
        return;
    }
    let entry = Entry {
        version: INDEX_VERSION,
        name: state.name.clone(),
        formation: state.formation.clone(),
        host: here.host.clone(),
        created_unix_ms: state.created_unix_ms,
        directory: directory.to_owned(),
        volumes: volumes().map(|volume| volume.path.clone()).collect(),
    };
    let Some(dir) = dir_of(here) else { return };
    let written = make_dir(&dir).and_then(|()| write(&dir, &file_of(here, &state.formation), &entry));
    if let Err(error) = written {
        log::warn!("{}: where the volumes are is not noted: {error}", dir.display());
    }
}

/// Forgets a formation, and the directory with the last of them.
pub(crate) fn forget(here: &Surroundings, formation: &str) {
    let Some(dir) = dir_of(here) else { return };
    if std::fs::remove_file(dir.join(file_of(here, formation))).is_ok() {
        let _others_are_there = std::fs::remove_dir(&dir);
    }
}

/// What is noted for this host.
pub(crate) fn entries(here: &Surroundings) -> Vec<Entry> {
    let Some(dir) = dir_of(here) else { return Vec::new() };
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<Entry> = files.filter_map(|file| read(&file.path())).collect();
    found.retain(|entry| entry.host == here.host && entry.version == INDEX_VERSION);
    found.sort_by(|a, b| (&a.name, &a.formation).cmp(&(&b.name, &b.formation)));
    found
}

fn read(path: &Path) -> Option<Entry> {
    let seen = std::fs::symlink_metadata(path).ok()?;
    let usable = seen.is_file() && seen.len() <= ENTRY_LEN_MAX && path.extension()? == "json";
    usable.then(|| serde_json::from_slice(&std::fs::read(path).ok()?).ok())?
}

fn write(dir: &Path, name: &str, entry: &Entry) -> std::io::Result<()> {
    let unfinished = dir.join(format!("{name}.tmp"));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(&serde_json::to_vec_pretty(entry)?)?;
    file.sync_all()?;
    std::fs::rename(&unfinished, dir.join(name))?;
    std::fs::File::open(dir)?.sync_all()
}

/// Below the user's state directory, if that is the user's.
fn dir_of(here: &Surroundings) -> Option<PathBuf> {
    let home = here.state_home.as_ref().filter(|home| home.is_absolute())?;
    let nearest = home.ancestors().find_map(|dir| std::fs::metadata(dir).ok())?;
    (nearest.is_dir() && nearest.uid() == here.uid).then(|| home.join("bivouac"))
}

fn make_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn file_of(here: &Surroundings, formation: &str) -> String {
    let host: String = here.host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("{host}-{formation}.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::sample;
    use crate::surroundings::tests::surroundings;

    #[test]
    fn what_is_noted_is_found_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let mut here = surroundings(None);
        remember(&here, dir.path(), &sample());
        assert_eq!(entries(&here), []);
        here.state_home = Some(dir.path().join("a/b"));
        let mut state = sample();
        remember(&here, dir.path(), &state);
        assert_eq!(entries(&here), [], "memory does not outlive a reboot");
        state.nodes[0].volumes[0].kind = DISK.into();
        remember(&here, dir.path(), &state);
        let found = entries(&here);
        assert_eq!((found.len(), found[0].volumes.len(), found[0].name.as_str()), (1, 1, "sample"));
        std::fs::write(dir.path().join("a/b/bivouac/garbage.json"), "{").unwrap();
        std::fs::create_dir(dir.path().join("a/b/bivouac/dir.json")).unwrap();
        assert_eq!(entries(&here), found);
        let elsewhere = Surroundings { host: "other".into(), ..here.clone() };
        assert_eq!(entries(&elsewhere), []);
        forget(&elsewhere, &state.formation);
        assert_eq!(entries(&here), found);
        forget(&here, &state.formation);
        assert_eq!(entries(&here), []);
    }
}

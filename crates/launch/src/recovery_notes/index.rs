//! Index of the volumes of this user's formations, for the time after a reboot, when the directories of their states
//! are gone: an entry for each formation of this host that has a disk, in the user's state directory. It only helps to
//! find them; whose a volume is, and of what, it says itself.
//!
//! ```text
//! $XDG_STATE_HOME/bivouac/HOST-FORMATION.json      0600; else below ~/.local/state
//! ```

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::volume_note::lasting;
use crate::environment::Environment;
use crate::name::FormationName;
use crate::state::{FormationState, HostLife};

/// Version of an entry.
const INDEX_VERSION: u32 = 1;
/// Largest entry, in bytes.
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
    /// Time when it was made, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Present or former location of its state.
    pub directory: PathBuf,
    /// Location of its volumes.
    pub volumes: Vec<PathBuf>,
    /// Of one over several hosts that was started here, what the whole is; its hosts note their volumes themselves.
    #[serde(default)]
    pub whole: Option<FormationState>,
}

/// Notes where the volumes of a formation are. A user without a place for that has none; then volumes have to be named.
pub fn remember(here: &Environment, directory: &Path, state: &FormationState) {
    let volumes = || state.nodes.iter().flat_map(|node| &node.volumes);
    if !volumes().any(|volume| volume.kind == DISK) {
        return;
    }
    let paths = volumes().map(|volume| volume.path.clone()).collect();
    let entry = Entry { volumes: paths, ..entry_of(here, directory, state) };
    note(here, &file_of(here, &state.formation), &entry);
}

/// Notes what a formation over several hosts is that was started here, if any of its volumes outlives a reboot.
pub fn remember_whole(here: &Environment, directory: &Path, state: &FormationState) {
    if state.nodes.iter().flat_map(|node| &node.volumes).any(|volume| volume.kind == DISK) {
        let entry = Entry { whole: Some(lasting(state)), ..entry_of(here, directory, state) };
        note(here, &file_of_whole(here, &state.formation), &entry);
    }
}

fn entry_of(here: &Environment, directory: &Path, state: &FormationState) -> Entry {
    Entry {
        version: INDEX_VERSION,
        name: state.name.clone(),
        formation: state.formation.clone(),
        host: here.host.clone(),
        created_unix_ms: state.created_unix_ms,
        directory: directory.to_owned(),
        volumes: Vec::new(),
        whole: None,
    }
}

fn note(here: &Environment, file: &str, entry: &Entry) {
    let Some(dir) = dir_of(here) else { return };
    if let Err(error) = make_dir(&dir).and_then(|()| write(&dir, file, entry)) {
        log::warn!(why:% = error; "{}: where the volumes are is not noted", dir.display());
    }
}

/// Forgets a formation, and the directory with the last of them.
pub(crate) fn forget(here: &Environment, formation: &str) {
    remove(here, &file_of(here, formation));
}

/// Forgets the whole of one over several hosts.
pub fn forget_whole(here: &Environment, formation: &str) {
    remove(here, &file_of_whole(here, formation));
}

/// Forgets formations over several hosts of this name that were there before, where all their hosts are of the new one:
/// they have nothing of them any more.
pub fn forget_former(here: &Environment, now: &FormationState) {
    let is_of_now = |name: &str| now.hosts.iter().any(|host| host.name == name && host.life == HostLife::Up);
    for entry in entries_of_wholes(here) {
        let hosts = entry.whole.iter().flat_map(|whole| &whole.hosts);
        let is_over = hosts.filter(|host| !host.nodes.is_empty()).all(|host| is_of_now(&host.name));
        if entry.name == now.name && entry.formation != now.formation && is_over {
            forget_whole(here, &entry.formation);
        }
    }
}

fn remove(here: &Environment, file: &str) {
    let Some(dir) = dir_of(here) else { return };
    if std::fs::remove_file(dir.join(file)).is_ok() {
        let _others_are_there = std::fs::remove_dir(&dir);
    }
}

/// Returns the noted paths of volumes of this host.
pub(crate) fn entries(here: &Environment) -> Vec<Entry> {
    all(here).into_iter().filter(|entry| entry.whole.is_none()).collect()
}

/// Returns the present and former locations of the states of formations that have a disk on this host.
pub(crate) fn noted_directories(here: &Environment) -> Vec<PathBuf> {
    all(here).into_iter().map(|entry| entry.directory).collect()
}

/// Formations over several hosts that were started here.
pub(crate) fn entries_of_wholes(here: &Environment) -> Vec<Entry> {
    all(here).into_iter().filter(|entry| entry.whole.is_some()).collect()
}

fn all(here: &Environment) -> Vec<Entry> {
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
    // Before the rename: after a power failure the name must not lead to an empty file.
    file.sync_all()?;
    std::fs::rename(&unfinished, dir.join(name))?;
    std::fs::File::open(dir)?.sync_all()
}

/// Returns the directory below the user's state directory, if that is the user's.
fn dir_of(here: &Environment) -> Option<PathBuf> {
    // The specification of XDG has relative paths ignored.
    let home = here.state_home.as_ref().filter(|home| home.is_absolute())?;
    // It may have to be made yet, in the nearest that is there.
    let nearest = home.ancestors().find_map(|dir| std::fs::metadata(dir).ok())?;
    (nearest.is_dir() && nearest.uid() == here.uid).then(|| home.join("bivouac"))
}

fn make_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn file_of(here: &Environment, formation: &str) -> String {
    // Hosts may share the user's home.
    let host: String = here.host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("{host}-{formation}.json")
}

fn file_of_whole(here: &Environment, formation: &str) -> String {
    file_of(here, formation).replace(".json", "+hosts.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;
    use crate::state::HostState;
    use crate::state::tests::sample;

    #[test]
    fn what_is_noted_is_found_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let mut here = environment(None);
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
        let elsewhere = Environment { host: "other".into(), ..here.clone() };
        assert_eq!(entries(&elsewhere), []);
        forget(&elsewhere, &state.formation);
        assert_eq!(entries(&here), found);
        forget(&here, &state.formation);
        assert_eq!(entries(&here), []);
    }

    /// S349.
    #[test]
    fn the_whole_of_several_hosts_is_noted_until_its_hosts_have_another() {
        let dir = tempfile::tempdir().unwrap();
        let here = Environment { state_home: Some(dir.path().into()), ..environment(None) };
        let host =
            HostState { name: "n1".into(), life: HostLife::Up, message: None, nodes: vec![0], mount: None };
        let mut whole = FormationState { hosts: vec![host.clone()], ..sample() };
        remember_whole(&here, dir.path(), &whole);
        assert_eq!(entries_of_wholes(&here), [], "memory does not outlive a reboot");
        whole.nodes[0].volumes[0].kind = DISK.into();
        remember_whole(&here, dir.path(), &whole);
        remember(&here, dir.path(), &whole);
        assert_eq!((entries(&here).len(), entries_of_wholes(&here).len()), (1, 1), "part and whole are two");
        let noted = entries_of_wholes(&here).remove(0).whole.unwrap();
        assert_eq!((&noted.hosts, noted.supervisor), (&whole.hosts, None));
        forget_former(&here, &whole);
        let elsewhere = FormationState {
            hosts: vec![HostState { name: "n2".into(), ..host }],
            formation: "08".repeat(16),
            ..whole.clone()
        };
        forget_former(&here, &elsewhere);
        assert_eq!(entries_of_wholes(&here).len(), 1);
        forget_former(&here, &FormationState { formation: "08".repeat(16), ..whole.clone() });
        assert_eq!((entries(&here).len(), entries_of_wholes(&here).len()), (1, 0));
    }
}

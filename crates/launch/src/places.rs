//! Formations of this user on this host have their states in more places than one: a login has another runtime directory
//! than a batch job. What is outside of those directories, in memory, therefore has a note of whose it is, and nobody who
//! looks from another place takes it for nobody's. The note is where a symbolic link leads: made at once, whole, and
//! without a page of memory.
//!
//! ```text
//! DEVICE:INODE:/BASE/NAME         of the runtime directory, hexadecimal: one path is another directory in a private /tmp
//! ```

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::environment::Environment;
use crate::name::FormationName;
use crate::recovery::noted_directories;
use crate::state::State;
use crate::state_dir::StateDir;
use crate::{grant_tables, memory_root};

/// Whose something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Where the state of its formation is, or was.
    pub home: PathBuf,
    /// Device and inode of the runtime directory that whoever wrote this saw.
    view: Option<(u64, u64)>,
}

impl Owner {
    /// The formation whose state is there.
    pub(crate) fn at(home: &Path) -> Owner {
        Owner { home: home.to_owned(), view: runtime_dir(home).and_then(identity) }
    }

    /// The same, of who did not note what it saw.
    pub(crate) fn unseen(home: PathBuf) -> Owner {
        Owner { home, view: None }
    }

    /// Writes it down, in place of what is noted there.
    ///
    /// # Errors
    /// What the system refused.
    pub(crate) fn note(&self, link: &Path) -> io::Result<()> {
        if Owner::noted(link).as_ref() == Some(self) {
            return Ok(());
        }
        let mut unfinished = link.as_os_str().to_owned();
        unfinished.push(".tmp");
        let _of_one_that_was_killed = std::fs::remove_file(&unfinished);
        symlink(OsString::from_vec(self.to_bytes()), &unfinished)?;
        std::fs::rename(&unfinished, link)
    }

    /// What is noted there by this user.
    pub(crate) fn noted(link: &Path) -> Option<Owner> {
        let seen = std::fs::symlink_metadata(link).ok()?;
        let ours = seen.is_symlink() && seen.uid() == rustix::process::geteuid().as_raw();
        ours.then(|| Owner::parse(std::fs::read_link(link).ok()?.as_os_str().as_bytes()))?
    }

    /// Whether this process sees the place as who wrote this did, so that what is not there is gone.
    pub(crate) fn is_seen(&self) -> bool {
        let now = runtime_dir(&self.home).and_then(identity);
        now.is_some() && (self.view.is_none() || self.view == now)
    }

    /// Whether the state of this formation is there.
    pub(crate) fn has_state_of(&self, formation: &str) -> bool {
        let read = StateDir::at(self.home.clone()).read();
        // What cannot be read may be its state.
        read.map_or(true, |state| state.is_some_and(|state| state.formation == formation))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let (device, inode) = self.view.unwrap_or_default();
        [format!("{device:x}:{inode:x}:").as_bytes(), self.home.as_os_str().as_bytes()].concat()
    }

    fn parse(bytes: &[u8]) -> Option<Owner> {
        let mut parts = bytes.splitn(3, |byte| *byte == b':');
        let mut number = || u64::from_str_radix(std::str::from_utf8(parts.next()?).ok()?, 16).ok();
        let view = (number()?, number()?);
        let home = PathBuf::from(OsStr::from_bytes(parts.next()?));
        home.is_absolute().then(|| Owner { home, view: Some(view).filter(|view| *view != (0, 0)) })
    }
}

/// What holds the directory of all formations of a place.
fn runtime_dir(home: &Path) -> Option<&Path> {
    home.ancestors().nth(2)
}

fn identity(dir: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(dir).ok().map(|seen| (seen.dev(), seen.ino()))
}

/// The directories of this user's formations on this host but that of `here`, as far as anything leads to them.
#[must_use]
pub fn other_bases(here: &Environment) -> Vec<PathBuf> {
    let homes = memory_root::homes(here).into_iter().chain(grant_tables::homes(here.uid));
    let homes = homes.chain(noted_directories(here));
    let bases = homes.filter_map(|home| Some(home.parent()?.to_owned())).chain(here.usual_bases());
    let real = |base: PathBuf| base.canonicalize().ok();
    let own = here.existing_base().and_then(real);
    let found: BTreeSet<PathBuf> = bases.filter(|base| here.is_base(base)).filter_map(real).collect();
    found.into_iter().filter(|base| Some(base) != own.as_ref()).collect()
}

/// Formations with a state in another place than `here`: of those over several hosts both what this host has and, where it
/// was started here, the whole.
pub(crate) fn elsewhere(here: &Environment) -> Vec<(FormationName, StateDir)> {
    let bases = other_bases(here).into_iter();
    bases.flat_map(|base| StateDir::list_in(&base).into_iter().chain(StateDir::wholes_in(&base))).collect()
}

/// The same, with what is written there.
pub(crate) fn states_elsewhere(here: &Environment) -> Vec<(StateDir, State)> {
    elsewhere(here).into_iter().filter_map(|(_, dir)| Some((dir.clone(), dir.read().ok()??))).collect()
}

/// Where a formation has gone on whose state here is an old one: what is outside of its directory is another place's now,
/// and the state there has come further.
pub(crate) fn gone_on(state: &State) -> Option<StateDir> {
    let nodes = |state: &State| state.nodes.iter().map(|node| node.id).collect::<Vec<_>>();
    let is_later = |other: &State| {
        other.formation == state.formation
            && other.recoveries > state.recoveries
            && other.is_over_hosts() == state.is_over_hosts()
            && nodes(other) == nodes(state)
    };
    let tables = state.nodes.iter().filter_map(|node| grant_tables::home_of(&state.formation, node.id));
    let homes = tables.chain(state.own_dirs.iter().filter_map(|root| memory_root::home_of(root)));
    let dirs = homes.collect::<BTreeSet<_>>().into_iter().map(StateDir::at);
    dirs.into_iter().find(|dir| dir.read().is_ok_and(|other| other.as_ref().is_some_and(is_later)))
}

/// How a formation of that directory is reached from any place, in words.
pub(crate) fn way_to(here: &Environment, dir: &StateDir, command: &str) -> String {
    let base = dir.path().parent().unwrap_or(dir.path());
    format!("BIVOUAC_RUNTIME_DIR={} bivouac {command}", here.runtime_dir_of(base).display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;
    use crate::state::tests::sample;

    #[test]
    fn a_note_says_whose_something_is_and_whether_its_place_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (home, link) = (dir.path().join("run/bivouac/x"), dir.path().join("link"));
        std::fs::create_dir_all(&home).unwrap();
        assert_eq!(Owner::noted(&link), None);
        let owner = Owner::at(&home);
        owner.note(&link).unwrap();
        owner.note(&link).unwrap();
        assert_eq!(Owner::noted(&link), Some(owner.clone()));
        std::fs::remove_dir_all(dir.path().join("run/bivouac")).unwrap();
        assert!(owner.is_seen(), "the state is gone, its place is not");
        std::fs::rename(dir.path().join("run"), dir.path().join("private")).unwrap();
        assert!(!owner.is_seen());
        std::fs::create_dir(dir.path().join("run")).unwrap();
        assert!(!owner.is_seen(), "another directory with that path");
        let elsewhere = Owner::at(Path::new("/nonexistent/bivouac/x"));
        elsewhere.note(&link).unwrap();
        assert_eq!(Owner::noted(&link), Some(elsewhere.clone()));
        assert!(!elsewhere.is_seen());
    }

    #[test]
    fn what_is_no_note_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for (number, text) in ["x", "1:2", "1:2:relative", "g:2:/x", ":::", "1:2:"].iter().enumerate() {
            let link = dir.path().join(number.to_string());
            symlink(text, &link).unwrap();
            assert_eq!(Owner::noted(&link), None, "{text}");
        }
        std::fs::write(dir.path().join("file"), "1:2:/x").unwrap();
        assert_eq!(Owner::noted(&dir.path().join("file")), None);
    }

    #[test]
    fn an_old_state_of_what_has_gone_on_elsewhere_is_told() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (here, there) = (environment(Some(a.path())), environment(Some(b.path())));
        let mut state = State { formation: "0b".repeat(16), ..sample() };
        let claims = [&here, &there].map(|place| StateDir::claim(place, &state.name).unwrap());
        claims[0].dir.write(&state).unwrap();
        let table = grant_tables::open(&state.formation, 0, claims[1].dir.path()).unwrap();
        assert_eq!(gone_on(&state), None);
        claims[1].dir.write(&state).unwrap();
        assert_eq!(gone_on(&state), None, "neither has come further");
        state.recoveries += 1;
        claims[1].dir.write(&state).unwrap();
        let old = claims[0].dir.read().unwrap().unwrap();
        let dir = gone_on(&old).unwrap();
        assert_eq!(dir.path().canonicalize().unwrap(), claims[1].dir.path().canonicalize().unwrap());
        assert_eq!(gone_on(&state), None);
        assert!(other_bases(&here).iter().any(|base| dir.path().starts_with(base)));
        let way = way_to(&here, &dir, "list");
        assert!(way.ends_with(" bivouac list") && way.contains(b.path().to_str().unwrap()), "{way}");
        drop(table);
        grant_tables::remove_all(&state);
    }
}

//! A note of which formation something in memory belongs to. Formations of a user on a host have their states in
//! several runtime directories: a login has another one than a batch job. What is outside of those directories has such
//! a note, so that nobody who looks from another runtime directory takes it for abandoned. The note is the target of a
//! symbolic link: made at once, whole, and without a page of memory.
//!
//! ```text
//! DEVICE:INODE:/BASE/NAME         of the runtime directory, hexadecimal: one path is another directory in a private
//! /tmp
//! ```

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::state_dir::StateDir;

/// The formation that something in memory belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerNote {
    /// Present or former location of the state of its formation.
    pub home: PathBuf,
    /// Device and inode of the runtime directory that whoever wrote this saw.
    view: Option<(u64, u64)>,
}

impl OwnerNote {
    /// Returns the formation whose state is there.
    pub(crate) fn at(home: &Path) -> OwnerNote {
        OwnerNote { home: home.to_owned(), view: runtime_dir(home).and_then(identity) }
    }

    /// Creates the note of an owner who did not note what it saw.
    pub(crate) fn unseen(home: PathBuf) -> OwnerNote {
        OwnerNote { home, view: None }
    }

    /// Writes it down, in place of what is noted there.
    ///
    /// # Errors
    /// What the system refused.
    pub(crate) fn note(&self, link: &Path) -> io::Result<()> {
        if OwnerNote::noted(link).as_ref() == Some(self) {
            return Ok(());
        }
        let mut unfinished = link.as_os_str().to_owned();
        unfinished.push(".tmp");
        let _of_one_that_was_killed = std::fs::remove_file(&unfinished);
        symlink(OsString::from_vec(self.to_bytes()), &unfinished)?;
        std::fs::rename(&unfinished, link)
    }

    /// Returns the note of this user at a place.
    pub(crate) fn noted(link: &Path) -> Option<OwnerNote> {
        let seen = std::fs::symlink_metadata(link).ok()?;
        let ours = seen.is_symlink() && seen.uid() == rustix::process::geteuid().as_raw();
        ours.then(|| OwnerNote::parse(std::fs::read_link(link).ok()?.as_os_str().as_bytes()))?
    }

    /// Returns whether this process sees the place as who wrote this did, so that what is not there is gone.
    pub(crate) fn is_seen(&self) -> bool {
        let now = runtime_dir(&self.home).and_then(identity);
        now.is_some() && (self.view.is_none() || self.view == now)
    }

    /// Returns whether the state of this formation is there.
    pub(crate) fn has_state_of(&self, formation: &str) -> bool {
        let read = StateDir::at(self.home.clone()).read();
        // What cannot be read may be its state.
        read.map_or(true, |state| state.is_some_and(|state| state.formation == formation))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let (device, inode) = self.view.unwrap_or_default();
        [format!("{device:x}:{inode:x}:").as_bytes(), self.home.as_os_str().as_bytes()].concat()
    }

    fn parse(bytes: &[u8]) -> Option<OwnerNote> {
        let mut parts = bytes.splitn(3, |byte| *byte == b':');
        let mut number = || u64::from_str_radix(std::str::from_utf8(parts.next()?).ok()?, 16).ok();
        let view = (number()?, number()?);
        let home = PathBuf::from(OsStr::from_bytes(parts.next()?));
        home.is_absolute().then(|| OwnerNote { home, view: Some(view).filter(|view| *view != (0, 0)) })
    }
}

/// Returns the directory that holds the directory of all formations of a place.
fn runtime_dir(home: &Path) -> Option<&Path> {
    home.ancestors().nth(2)
}

fn identity(dir: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(dir).ok().map(|seen| (seen.dev(), seen.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_whose_something_is_and_whether_its_place_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (home, link) = (dir.path().join("run/bivouac/x"), dir.path().join("link"));
        std::fs::create_dir_all(&home).unwrap();
        assert_eq!(OwnerNote::noted(&link), None);
        let owner = OwnerNote::at(&home);
        owner.note(&link).unwrap();
        owner.note(&link).unwrap();
        assert_eq!(OwnerNote::noted(&link), Some(owner.clone()));
        std::fs::remove_dir_all(dir.path().join("run/bivouac")).unwrap();
        assert!(owner.is_seen(), "the state is gone, its place is not");
        std::fs::rename(dir.path().join("run"), dir.path().join("private")).unwrap();
        assert!(!owner.is_seen());
        std::fs::create_dir(dir.path().join("run")).unwrap();
        assert!(!owner.is_seen(), "another directory with that path");
        let elsewhere = OwnerNote::at(Path::new("/nonexistent/bivouac/x"));
        elsewhere.note(&link).unwrap();
        assert_eq!(OwnerNote::noted(&link), Some(elsewhere.clone()));
        assert!(!elsewhere.is_seen());
    }

    #[test]
    fn what_is_no_note_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for (number, text) in ["x", "1:2", "1:2:relative", "g:2:/x", ":::", "1:2:"].iter().enumerate() {
            let link = dir.path().join(number.to_string());
            symlink(text, &link).unwrap();
            assert_eq!(OwnerNote::noted(&link), None, "{text}");
        }
        std::fs::write(dir.path().join("file"), "1:2:/x").unwrap();
        assert_eq!(OwnerNote::noted(&dir.path().join("file")), None);
    }
}

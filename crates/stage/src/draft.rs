//! A new object at the target that is not yet in place.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bivouac_types::limits::NAME_LEN_MAX;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

/// A file, link or pipe that is being made. Dropped before it is in place, it is removed.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    /// Name to get when complete; `None` where the object is in a temporary directory already.
    place: Option<PathBuf>,
    kept: bool,
}

impl Draft {
    /// Makes an object under its own name, which must be free.
    pub(crate) fn in_place<T>(
        path: PathBuf,
        make: impl FnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<(Draft, T)> {
        let made = make(&path)?;
        Ok((Draft { path, place: None, kept: false }, made))
    }

    /// Makes an object beside the name that it will have.
    pub(crate) fn beside<T>(place: PathBuf, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(Draft, T)> {
        let (path, made) = make_beside(&place, make)?;
        Ok((Draft { path, place: Some(place), kept: false }, made))
    }

    /// Where the object is now.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the object in place, over what is there if `overwrite`.
    pub(crate) fn commit(mut self, overwrite: bool) -> io::Result<()> {
        if let Some(place) = &self.place {
            if overwrite {
                std::fs::rename(&self.path, place)?;
            } else {
                rename_to_free(&self.path, place)?;
            }
            // A rename over another name of the same file leaves both.
            let _ = std::fs::remove_file(&self.path);
        }
        self.kept = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes an object under a temporary name in the directory of `place`.
pub(crate) fn make_beside<T>(
    place: &Path,
    make: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    loop {
        let path = place.with_file_name(temporary_name(place.file_name().unwrap_or_default()));
        match make(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|made| (path, made)),
        }
    }
}

/// Renames to a name that must be free.
pub(crate) fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system has this kind of rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        other => return Ok(other?),
    }
    if to.symlink_metadata().is_ok() {
        return Err(Errno::EXIST.into());
    }
    std::fs::rename(from, to)
}

/// `.NAME.bivouac-PROCESS-NUMBER`, the name cut where that would be too long.
///
/// Two hosts may come to the same name; that is why it is only a candidate.
fn temporary_name(name: &OsStr) -> OsString {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let suffix = format!(".bivouac-{:x}-{number:x}", std::process::id());
    let kept = name.as_bytes().iter().take(NAME_LEN_MAX.saturating_sub(suffix.len() + 1));
    OsString::from_vec(b".".iter().chain(kept).chain(suffix.as_bytes()).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(text: &'static str) -> impl Fn(&Path) -> io::Result<()> {
        move |path| fs::write(path, text)
    }

    #[test]
    fn nothing_is_visible_until_the_commit_and_nothing_stays_without_it() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("name");
        let (draft, ()) = Draft::beside(place.clone(), write("new")).unwrap();
        assert!(!place.exists() && draft.path().exists());
        draft.commit(true).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "new");
        drop(Draft::beside(place.clone(), write("other")).unwrap());
        drop(Draft::in_place(dir.path().join("direct"), write("x")).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(&place).unwrap(), "new");
    }

    #[test]
    fn without_overwriting_what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("name");
        fs::write(&place, "old").unwrap();
        let (draft, ()) = Draft::beside(place.clone(), write("new")).unwrap();
        let refusal = draft.commit(false).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&place).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_over_the_same_file_leaves_no_second_name() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&first, "x").unwrap();
        fs::hard_link(&first, &second).unwrap();
        let (draft, ()) = Draft::beside(second, |path| fs::hard_link(&first, path)).unwrap();
        draft.commit(true).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn temporary_names_fit_and_differ() {
        let long = OsString::from_vec(vec![0xff; NAME_LEN_MAX]);
        let (first, second) = (temporary_name(&long), temporary_name(&long));
        assert!(first.len() == NAME_LEN_MAX && first != second);
        assert!(temporary_name(OsStr::new("a.dat")).to_string_lossy().starts_with(".a.dat.bivouac-"));
    }
}

//! Temporary objects at the target.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bivouac_types::limits::NAME_LEN_MAX;
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::nofollow;
use crate::temporary_tag::Tag;

/// A file, link or pipe under a temporary name. Dropped before its commit, it is removed.
#[derive(Debug)]
pub(crate) struct TemporaryObject {
    path: PathBuf,
    /// Final path; `None` if the object is in a staged tree and has its final name there.
    place: Option<PathBuf>,
    kept: bool,
}

impl TemporaryObject {
    /// Creates an object under its final name, in a staged tree.
    pub(crate) fn in_place<T>(
        path: PathBuf,
        make: impl FnMut(&Path) -> io::Result<T>,
    ) -> io::Result<(TemporaryObject, T)> {
        let made = make_anew(&path, make)?;
        Ok((TemporaryObject { path, place: None, kept: false }, made))
    }

    /// Creates an object under a temporary name beside its final one.
    pub(crate) fn beside<T>(
        place: PathBuf,
        tag: &Tag,
        make: impl FnMut(&Path) -> io::Result<T>,
    ) -> io::Result<(TemporaryObject, T)> {
        let path = temporary_path(&place, tag);
        let made = make_anew(&path, make)?;
        Ok((TemporaryObject { path, place: Some(place), kept: false }, made))
    }

    /// Returns the present path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a rename is due.
    pub(crate) fn is_beside(&self) -> bool {
        self.place.is_some()
    }

    /// Leaves the object in place for a resumed copy.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }

    /// Renames the object to its final name, over an existing one if `overwrite`. Returns its path.
    pub(crate) fn commit(mut self, overwrite: bool) -> io::Result<PathBuf> {
        if let Some(place) = &self.place {
            if overwrite {
                nofollow::rename(&self.path, place, RenameFlags::empty())?;
            } else {
                rename_to_free(&self.path, place)?;
            }
            // A rename over another name of the same file leaves both.
            if overwrite && nofollow::lstat(&self.path).is_ok() {
                let _ = nofollow::remove_file(&self.path);
            }
        }
        self.kept = true;
        Ok(self.place.take().unwrap_or_else(|| std::mem::take(&mut self.path)))
    }
}

impl Drop for TemporaryObject {
    fn drop(&mut self) {
        if !self.kept {
            let _ = nofollow::remove_file(&self.path);
        }
    }
}

/// Creates an object, and removes what an interrupted copy left under the name first. It is never written into, because
/// it may be a hard link to a complete file.
fn make_anew<T>(path: &Path, mut make: impl FnMut(&Path) -> io::Result<T>) -> io::Result<T> {
    match make(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            nofollow::remove_file(path)?;
            make(path)
        }
        made => made,
    }
}

/// Renames to a name that must not exist.
pub(crate) fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    let renamed = nofollow::rename(from, to, RenameFlags::NOREPLACE);
    let unknown = [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP].map(Errno::raw_os_error);
    match renamed {
        // Not every file system has this kind of rename.
        Err(error) if error.raw_os_error().is_some_and(|errno| unknown.contains(&errno)) => {}
        renamed => return renamed,
    }
    if nofollow::lstat(to).is_ok() {
        return Err(Errno::EXIST.into());
    }
    nofollow::rename(from, to, RenameFlags::empty())
}

/// Returns the temporary path of `place`: `.NAME.bivouac-TAG` in the same directory.
pub(crate) fn temporary_path(place: &Path, tag: &Tag) -> PathBuf {
    place.with_file_name(temporary_name(place.file_name().unwrap_or_default(), tag))
}

/// Returns the temporary name. A name that would be too long is cut, and made unique by its digest.
fn temporary_name(name: &OsStr, tag: &Tag) -> OsString {
    let suffix = tag.suffix();
    let whole = [b".", name.as_bytes(), suffix.as_bytes()].concat();
    if whole.len() <= NAME_LEN_MAX {
        return OsString::from_vec(whole);
    }
    // Names with a common beginning must not collide after the cut.
    let digest = blake3::hash(name.as_bytes()).to_hex();
    let suffix = format!(".{}{suffix}", digest.as_str().split_at(16).0);
    let kept = name.as_bytes().iter().take(NAME_LEN_MAX.saturating_sub(suffix.len() + 1));
    let name: Vec<u8> = b".".iter().chain(kept).chain(suffix.as_bytes()).copied().collect();
    assert!(name.len() <= NAME_LEN_MAX, "a temporary name is longer than file systems allow");
    OsString::from_vec(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(text: &'static str) -> impl Fn(&Path) -> io::Result<()> {
        move |path| {
            fs::File::create_new(path).and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
        }
    }

    #[test]
    fn nothing_is_visible_until_the_commit_and_nothing_stays_without_it() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("name");
        let (draft, ()) = TemporaryObject::beside(place.clone(), &Tag::random(), write("new")).unwrap();
        assert!(!place.exists() && draft.path().exists());
        draft.commit(true).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "new");
        drop(TemporaryObject::beside(place.clone(), &Tag::random(), write("other")).unwrap());
        drop(TemporaryObject::in_place(dir.path().join("direct"), write("x")).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(&place).unwrap(), "new");
    }

    #[test]
    fn without_overwriting_what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("name");
        fs::write(&place, "old").unwrap();
        let (draft, ()) = TemporaryObject::beside(place.clone(), &Tag::random(), write("new")).unwrap();
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
        let (draft, ()) =
            TemporaryObject::beside(second, &Tag::random(), |path| fs::hard_link(&first, path)).unwrap();
        draft.commit(true).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_an_interrupted_copy_left_is_replaced_and_not_written_into() {
        let dir = tempfile::tempdir().unwrap();
        let (place, done, tag) = (dir.path().join("name"), dir.path().join("done"), Tag::random());
        let (draft, ()) = TemporaryObject::beside(place.clone(), &tag, write("half")).unwrap();
        fs::hard_link(draft.path(), &done).unwrap();
        draft.keep();
        TemporaryObject::beside(place.clone(), &tag, write("new")).unwrap().0.commit(true).unwrap();
        assert_eq!(
            (fs::read(&place).unwrap(), fs::read(&done).unwrap()),
            (b"new".to_vec(), b"half".to_vec())
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn temporary_names_fit_and_differ() {
        let tag = Tag::random();
        let long = |last: u8| {
            let mut name = vec![0xff; NAME_LEN_MAX];
            name[NAME_LEN_MAX - 1] = last;
            temporary_name(OsStr::from_bytes(&name), &tag)
        };
        assert!(long(1).len() == NAME_LEN_MAX && long(1) != long(2) && long(1) == long(1));
        let short = temporary_name(OsStr::new("a.dat"), &tag);
        assert!(short.to_string_lossy().starts_with(".a.dat.bivouac-"));
        for name in [short, long(1)] {
            assert!(tag.matches(&name) && crate::temporary_tag::is_temporary(&name));
        }
    }
}

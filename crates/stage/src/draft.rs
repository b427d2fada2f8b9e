//! A new object at the target that is not yet in place.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bivouac_types::limits::NAME_LEN_MAX;
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::straight;
use crate::tag::Tag;

/// A file, link or pipe that is being made. Dropped before it is in place, it is removed.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    /// Name to get when complete; `None` where the object is in a temporary directory already.
    place: Option<PathBuf>,
    kept: bool,
}

impl Draft {
    /// Makes an object under its own name, in a directory that is all ours.
    pub(crate) fn in_place<T>(
        path: PathBuf,
        make: impl FnMut(&Path) -> io::Result<T>,
    ) -> io::Result<(Draft, T)> {
        let made = make_anew(&path, make)?;
        Ok((Draft { path, place: None, kept: false }, made))
    }

    /// Makes an object beside the name that it will have.
    pub(crate) fn beside<T>(
        place: PathBuf,
        tag: &Tag,
        make: impl FnMut(&Path) -> io::Result<T>,
    ) -> io::Result<(Draft, T)> {
        let path = temporary(&place, tag);
        let made = make_anew(&path, make)?;
        Ok((Draft { path, place: Some(place), kept: false }, made))
    }

    /// Where the object is now.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is still to get its name.
    pub(crate) fn is_beside(&self) -> bool {
        self.place.is_some()
    }

    /// Leaves the object as it is, for a copy that goes on later.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }

    /// Puts the object in place, over what is there if `overwrite`. Answers where it is.
    pub(crate) fn commit(mut self, overwrite: bool) -> io::Result<PathBuf> {
        if let Some(place) = &self.place {
            if overwrite {
                straight::rename(&self.path, place, RenameFlags::empty())?;
            } else {
                rename_to_free(&self.path, place)?;
            }
            // A rename over another name of the same file leaves both.
            if overwrite && straight::look(&self.path).is_ok() {
                let _ = straight::remove_file(&self.path);
            }
        }
        self.kept = true;
        Ok(self.place.take().unwrap_or_else(|| std::mem::take(&mut self.path)))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            let _ = straight::remove_file(&self.path);
        }
    }
}

/// Makes an object; what an interrupted copy left under the name, which is ours, goes first. It is never written
/// into, because it may be another name of something complete.
fn make_anew<T>(path: &Path, mut make: impl FnMut(&Path) -> io::Result<T>) -> io::Result<T> {
    match make(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            straight::remove_file(path)?;
            make(path)
        }
        made => made,
    }
}

/// Renames to a name that must be free.
pub(crate) fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    let renamed = straight::rename(from, to, RenameFlags::NOREPLACE);
    let unknown = [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP].map(Errno::raw_os_error);
    match renamed {
        // Not every file system has this kind of rename.
        Err(error) if error.raw_os_error().is_some_and(|errno| unknown.contains(&errno)) => {}
        renamed => return renamed,
    }
    if straight::look(to).is_ok() {
        return Err(Errno::EXIST.into());
    }
    straight::rename(from, to, RenameFlags::empty())
}

/// The temporary path of what will be at `place`: beside it, `.NAME.bivouac-TAG`.
pub(crate) fn temporary(place: &Path, tag: &Tag) -> PathBuf {
    place.with_file_name(temporary_name(place.file_name().unwrap_or_default(), tag))
}

/// A name that would be too long is cut, and told from others with the same beginning by its digest.
fn temporary_name(name: &OsStr, tag: &Tag) -> OsString {
    let suffix = tag.suffix();
    let whole = [b".", name.as_bytes(), suffix.as_bytes()].concat();
    if whole.len() <= NAME_LEN_MAX {
        return OsString::from_vec(whole);
    }
    let digest = blake3::hash(name.as_bytes()).to_hex();
    let suffix = format!(".{}{suffix}", digest.as_str().split_at(16).0);
    let kept = name.as_bytes().iter().take(NAME_LEN_MAX.saturating_sub(suffix.len() + 1));
    OsString::from_vec(b".".iter().chain(kept).chain(suffix.as_bytes()).copied().collect())
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
        let (draft, ()) = Draft::beside(place.clone(), &Tag::draw(), write("new")).unwrap();
        assert!(!place.exists() && draft.path().exists());
        draft.commit(true).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "new");
        drop(Draft::beside(place.clone(), &Tag::draw(), write("other")).unwrap());
        drop(Draft::in_place(dir.path().join("direct"), write("x")).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(&place).unwrap(), "new");
    }

    #[test]
    fn without_overwriting_what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("name");
        fs::write(&place, "old").unwrap();
        let (draft, ()) = Draft::beside(place.clone(), &Tag::draw(), write("new")).unwrap();
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
        let (draft, ()) = Draft::beside(second, &Tag::draw(), |path| fs::hard_link(&first, path)).unwrap();
        draft.commit(true).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_an_interrupted_copy_left_is_replaced_and_not_written_into() {
        let dir = tempfile::tempdir().unwrap();
        let (place, done, tag) = (dir.path().join("name"), dir.path().join("done"), Tag::draw());
        let (draft, ()) = Draft::beside(place.clone(), &tag, write("half")).unwrap();
        fs::hard_link(draft.path(), &done).unwrap();
        draft.keep();
        Draft::beside(place.clone(), &tag, write("new")).unwrap().0.commit(true).unwrap();
        assert_eq!(
            (fs::read(&place).unwrap(), fs::read(&done).unwrap()),
            (b"new".to_vec(), b"half".to_vec())
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn temporary_names_fit_and_differ() {
        let tag = Tag::draw();
        let long = |last: u8| {
            let mut name = vec![0xff; NAME_LEN_MAX];
            name[NAME_LEN_MAX - 1] = last;
            temporary_name(OsStr::from_bytes(&name), &tag)
        };
        assert!(long(1).len() == NAME_LEN_MAX && long(1) != long(2) && long(1) == long(1));
        let short = temporary_name(OsStr::new("a.dat"), &tag);
        assert!(short.to_string_lossy().starts_with(".a.dat.bivouac-"));
        for name in [short, long(1)] {
            assert!(tag.marks(&name) && crate::tag::is_temporary(&name));
        }
    }
}

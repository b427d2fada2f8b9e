//! The target: where new objects are made and how they get in place.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::draft::{Draft, rename_to_free, temporary};
use crate::meta::{Attrs, Mark};
use crate::put::Putter;
use crate::scan::below;
use crate::straight;
use crate::tag::Tag;
use crate::views::Views;
use crate::{Cause, Failure};

/// The target of a copy. Dropped before [`Target::commit`], everything temporary is removed, and the
/// directories that were made above the target, as far as they are empty; unless the copy can be resumed.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) spot: Spot,
    /// Directories above the target that were made, topmost first.
    pub(crate) parents: Vec<PathBuf>,
    /// Whether what is temporary stays when the copy is interrupted.
    is_resumable: bool,
    /// The directory that everything is put into, and what it was at the beginning.
    anchor: (PathBuf, Identity),
}

/// Device and number.
type Identity = (u64, u64);

/// How a copy may leave its target.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    pub(crate) overwrite: bool,
    pub(crate) is_resumable: bool,
    pub(crate) tag: Tag,
}

/// Where a worker makes what it makes.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// The path that the copy shall have.
    place: PathBuf,
    /// Where a new tree is made before it is in place.
    staged: Option<PathBuf>,
    overwrite: bool,
    tag: Tag,
}

impl Target {
    /// Prepares a target: a directory beside it if a directory is to be copied and nothing is there.
    pub(crate) fn open(place: &Path, for_dir: bool, manner: &Manner) -> Result<Target, Failure> {
        let exists = check(place, for_dir)?;
        let parents = make_parents(place)?;
        let anchor = if exists && for_dir { place } else { containing(place).unwrap_or(place) };
        let identity = identity(anchor).map_err(|error| Failure::io("look at it", anchor, error))?;
        let Manner { overwrite, is_resumable, ref tag } = *manner;
        let spot = Spot { place: place.to_owned(), staged: None, overwrite, tag: tag.clone() };
        let mut target = Target { spot, parents, is_resumable, anchor: (anchor.to_owned(), identity) };
        if for_dir && !exists {
            let staged = temporary(place, tag);
            make_own_dir(&staged).map_err(|error| Failure::io("make it", place, error))?;
            target.spot.staged = Some(staged);
        }
        Ok(target)
    }

    /// That objects still get where they should: an unmounted target shows what is below it.
    pub(crate) fn still_there(&self) -> Result<(), Failure> {
        let (anchor, before) = &self.anchor;
        match identity(anchor) {
            Ok(now) if now == *before => Ok(()),
            Ok(_) => Err(Failure::new(anchor, Cause::Vanished)),
            Err(error) => Err(Failure::io("find it again", anchor, error)),
        }
    }

    /// The directory that everything is put into.
    pub(crate) fn anchor(&self) -> &Path {
        &self.anchor.0
    }

    /// Puts a new tree in place, and makes sure that its name survives.
    pub(crate) fn commit(mut self) -> Result<(), Failure> {
        if let Err(failure) = self.still_there() {
            // What is there now is not ours.
            self.is_resumable = true;
            return Err(failure);
        }
        let place = self.spot.place.clone();
        if let Some(staged) = &self.spot.staged {
            rename_to_free(staged, &place).map_err(|error| Failure::io("make it", &place, error))?;
            self.spot.staged = None;
        }
        let parents = std::mem::take(&mut self.parents);
        let named = parents.iter().map(PathBuf::as_path).chain([place.as_path()]);
        for dir in named.filter_map(containing) {
            sync_dir(dir).map_err(|error| Failure::io("write to stable storage", dir, error))?;
        }
        Ok(())
    }
}

impl Spot {
    /// As a worker goes to it.
    pub(crate) fn seen(&self, views: &Views, worker: usize) -> Spot {
        Spot {
            place: views.path(worker, &self.place),
            staged: self.staged.as_ref().map(|staged| views.path(worker, staged)),
            ..self.clone()
        }
    }

    /// Whether the target is a new tree, which nobody sees yet.
    pub(crate) fn is_staged(&self) -> bool {
        self.staged.is_some()
    }

    /// Where the object at a relative path is made or looked for while copying.
    pub(crate) fn path(&self, relative: &Path) -> PathBuf {
        below(self.staged.as_deref().unwrap_or(&self.place), relative)
    }

    /// The name that the object at a relative path has in the end: for messages.
    pub(crate) fn place(&self, relative: &Path) -> PathBuf {
        below(&self.place, relative)
    }

    /// Makes a directory. Returns whether it is new.
    pub(crate) fn dir(&self, relative: &Path) -> io::Result<bool> {
        let path = self.path(relative);
        if self.is_staged() {
            return make_own_dir(&path).map(|()| true);
        }
        match make_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| true),
        }
        if straight::look(&path)?.is_dir() { Ok(false) } else { Err(Errno::NOTDIR.into()) }
    }

    /// Makes an empty file, and opens it for writing; if `reads`, for reading too, which costs a formation's mount a request
    /// when it is closed. In a tree that nobody sees yet it has the permissions at once.
    pub(crate) fn file(&self, relative: &Path, mode: u32, reads: bool) -> io::Result<(Draft, File)> {
        // Attributes are set by who may write.
        let mode = if self.is_staged() && mode & 0o200 != 0 { mode & 0o777 } else { 0o600 };
        self.draft(relative, |path| {
            let access = if reads { OFlags::RDWR } else { OFlags::WRONLY };
            straight::open(path, access | OFlags::CREATE | OFlags::EXCL, mode)
        })
    }

    /// Makes a whole file at once; `None` if it has to be made in steps. In a tree that nobody sees yet: elsewhere names are
    /// looked for first, and what the kernel caches of them is in the way.
    pub(crate) fn put_file(
        &self,
        relative: &Path,
        putter: &mut Putter,
        attrs: &Attrs,
        content: &[u8],
    ) -> io::Result<Option<(Draft, Mark)>> {
        if !self.is_staged() {
            return Ok(None);
        }
        let (draft, made) = self.draft(relative, |path| {
            let made = putter.put(path, attrs, content);
            if made.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
                // It may be there, and empty.
                let _ = straight::remove_file(path);
            }
            made
        })?;
        match made {
            Some(mark) => Ok(Some((draft, mark))),
            None => {
                // Nothing was made.
                draft.keep();
                Ok(None)
            }
        }
    }

    /// The file that an interrupted copy began; `None` if there is none that is only ours.
    pub(crate) fn begun(&self, relative: &Path) -> Option<(Draft, File)> {
        let place = self.path(relative);
        let path = if self.is_staged() { place.clone() } else { temporary(&place, &self.tag) };
        let is_ours = |meta: &Metadata| meta.is_file() && meta.nlink() == 1;
        straight::look(&path).ok().filter(is_ours)?;
        let open = |path: &Path| straight::open(path, OFlags::RDWR, 0);
        if self.is_staged() {
            Draft::in_place(place, open).ok()
        } else {
            Draft::beside(place, &self.tag, open).ok()
        }
    }

    pub(crate) fn symlink(&self, relative: &Path, to: &Path) -> io::Result<Draft> {
        Ok(self.draft(relative, |path| straight::symlink(to, path))?.0)
    }

    pub(crate) fn fifo(&self, relative: &Path) -> io::Result<Draft> {
        Ok(self.draft(relative, straight::fifo)?.0)
    }

    /// Makes another name of a file that is in place.
    pub(crate) fn hard_link(&self, relative: &Path, of: &Path) -> io::Result<Draft> {
        let of = self.path(of);
        Ok(self.draft(relative, |path| straight::hard_link(&of, path))?.0)
    }

    /// Puts an object in place. Answers where it is.
    pub(crate) fn put(&self, draft: Draft) -> io::Result<PathBuf> {
        draft.commit(self.overwrite)
    }

    fn draft<T>(&self, relative: &Path, make: impl FnMut(&Path) -> io::Result<T>) -> io::Result<(Draft, T)> {
        let path = self.path(relative);
        if self.is_staged() {
            return Draft::in_place(path, make);
        }
        // Also finds out about a name that is too long although its temporary one is not.
        match straight::look(&path) {
            Ok(there) if there.is_dir() => return Err(Errno::ISDIR.into()),
            Ok(_) if !self.overwrite => return Err(Errno::EXIST.into()),
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return Err(error),
            _ => {}
        }
        Draft::beside(path, &self.tag, make)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_resumable {
            return;
        }
        if let Some(staged) = &self.spot.staged {
            // What is left of it is named by whoever looks; nobody is there to be told.
            let _ = straight::remove_tree(staged);
        }
        for parent in self.parents.iter().rev() {
            let _ = straight::remove_dir(parent);
        }
    }
}

fn identity(dir: &Path) -> io::Result<Identity> {
    straight::look(dir).map(|meta| (meta.dev(), meta.ino()))
}

/// The directory that holds a path's last name.
pub(crate) fn containing(path: &Path) -> Option<&Path> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

/// Writes a directory's entries to stable storage, where the file system has such a thing.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    sync(&straight::open_dir(dir)?)
}

/// As [`sync_dir`], for one that is open.
pub(crate) fn sync(dir: &File) -> io::Result<()> {
    match rustix::fs::fsync(dir) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::ROFS) => Ok(()),
        result => Ok(result?),
    }
}

/// Whether the target exists. An error if it cannot be what is to be copied.
fn check(place: &Path, for_dir: bool) -> Result<bool, Failure> {
    let conflict = |what| Err(Failure::new(place, Cause::Conflict(what)));
    match fs::metadata(place) {
        Ok(there) if there.is_dir() && !for_dir => conflict("is a directory; name the file to make in it"),
        Ok(there) if !there.is_dir() && for_dir => conflict("is not a directory; name another target"),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound && place.file_name().is_some() => Ok(false),
        Err(error) => Err(Failure::io("look at it", place, error)),
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    straight::make_dir(path, 0o700)
}

/// Makes a directory in a place that is all ours, where an interrupted copy may have made it, and closed it, before.
fn make_own_dir(path: &Path) -> io::Result<()> {
    match make_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && straight::look(path)?.is_dir() => {
            straight::set_mode(path, 0o700)
        }
        made => made,
    }
}

/// The directories above `place` that are not there, topmost first.
pub(crate) fn missing_parents(place: &Path) -> Vec<PathBuf> {
    let missing = |dir: &&Path| matches!(fs::metadata(dir), Err(e) if e.kind() == io::ErrorKind::NotFound);
    let above = place.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
    let mut missing: Vec<_> = above.take_while(missing).map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// Makes the directories above `place`. Returns those that are new; if it fails, none are left.
fn make_parents(place: &Path) -> Result<Vec<PathBuf>, Failure> {
    let wanted = missing_parents(place);
    for (made, dir) in wanted.iter().enumerate() {
        if let Err(error) = straight::make_dir(dir, 0o777) {
            wanted.iter().take(made).rev().for_each(|dir| drop(straight::remove_dir(dir)));
            return Err(Failure::io("make it", dir, error));
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn open(place: &Path, for_dir: bool) -> Result<Target, Failure> {
        Target::open(place, for_dir, &Manner { overwrite: true, is_resumable: false, tag: Tag::draw() })
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_tree_has_its_name_only_once_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("above/tree");
        let target = open(&place, true).unwrap();
        assert!(target.spot.dir(Path::new("")).unwrap() && target.spot.dir(Path::new("sub")).unwrap());
        let (draft, _file) = target.spot.file(Path::new("sub/file"), 0o644, true).unwrap();
        target.spot.put(draft).unwrap();
        assert!(!place.exists());
        assert_eq!(target.spot.place(Path::new("sub/file")), place.join("sub/file"));
        target.commit().unwrap();
        assert_eq!(names(&place.join("sub")), ["file"]);
        assert_eq!(names(&dir.path().join("above")), ["tree"]);
    }

    #[test]
    fn what_is_not_committed_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = open(&dir.path().join("a/b/tree"), true).unwrap();
        target.spot.dir(Path::new("sealed")).unwrap();
        let (draft, _file) = target.spot.file(Path::new("sealed/file"), 0o644, true).unwrap();
        target.spot.put(draft).unwrap();
        let sealed = target.spot.path(Path::new("sealed"));
        fs::set_permissions(&sealed, fs::Permissions::from_mode(0o500)).unwrap();
        drop(target);
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn parents_that_others_use_stay() {
        let dir = tempfile::tempdir().unwrap();
        let target = open(&dir.path().join("a/b/file"), false).unwrap();
        fs::write(dir.path().join("a/other"), "x").unwrap();
        drop(target);
        assert_eq!(names(&dir.path().join("a")), ["other"]);
    }

    #[test]
    fn a_tree_that_appears_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("tree");
        let target = open(&place, true).unwrap();
        fs::create_dir(&place).unwrap();
        let failure = target.commit().unwrap_err();
        assert_eq!(failure.errno(), Some(bivouac_types::Errno::EEXIST));
        assert_eq!(names(dir.path()), ["tree"]);
    }

    #[test]
    fn a_long_name_is_refused_although_its_temporary_name_would_fit() {
        let dir = tempfile::tempdir().unwrap();
        let target = open(dir.path(), true).unwrap();
        let refusal = target.spot.file(Path::new(&"n".repeat(256)), 0o644, true).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::InvalidFilename);
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn a_copy_that_can_be_resumed_stays_and_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("tree");
        let manner = Manner { overwrite: true, is_resumable: true, tag: Tag::draw() };
        let target = Target::open(&place, true, &manner).unwrap();
        target.spot.dir(Path::new("sub")).unwrap();
        fs::set_permissions(target.spot.path(Path::new("sub")), fs::Permissions::from_mode(0o500)).unwrap();
        target.spot.file(Path::new("begun"), 0o600, true).unwrap().0.keep();
        drop(target);
        let again = Target::open(&place, true, &manner).unwrap();
        assert!(again.spot.dir(Path::new("sub")).unwrap());
        let (draft, _file) = again.spot.begun(Path::new("begun")).unwrap();
        again.spot.put(draft).unwrap();
        assert!(again.spot.begun(Path::new("sub")).is_none());
        again.commit().unwrap();
        assert_eq!(
            (names(dir.path()), names(&place)),
            (vec!["tree".into()], vec!["begun".into(), "sub".into()])
        );
    }

    #[test]
    fn a_target_that_is_replaced_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("tree");
        fs::create_dir(&place).unwrap();
        let target = open(&place, true).unwrap();
        target.still_there().unwrap();
        fs::rename(&place, dir.path().join("away")).unwrap();
        assert_eq!(target.still_there().unwrap_err().errno(), Some(bivouac_types::Errno::ENOENT));
        fs::create_dir(&place).unwrap();
        assert!(matches!(target.commit().unwrap_err().cause, Cause::Vanished));
    }
}

//! The target: where new objects are made and how they get in place.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use crate::draft::{Draft, make_beside, rename_to_free};
use crate::scan::below;
use crate::{Cause, Failure};

/// The target of a copy. Dropped before [`Target::commit`], everything temporary is removed, and the
/// directories that were made above the target, as far as they are empty.
#[derive(Debug)]
pub(crate) struct Target {
    /// The path that the copy shall have.
    place: PathBuf,
    /// Where a new tree is made before it is in place.
    staged: Option<PathBuf>,
    /// Directories above `place` that were made, topmost first.
    parents: Vec<PathBuf>,
    overwrite: bool,
}

impl Target {
    /// Prepares a target: a directory beside it if a directory is to be copied and nothing is there.
    pub(crate) fn open(place: &Path, for_dir: bool, overwrite: bool) -> Result<Target, Failure> {
        let exists = check(place, for_dir)?;
        let parents = make_parents(place)?;
        let mut target = Target { place: place.to_owned(), staged: None, parents, overwrite };
        if for_dir && !exists {
            let (staged, ()) =
                make_beside(place, make_dir).map_err(|error| Failure::io("make it", place, error))?;
            target.staged = Some(staged);
        }
        Ok(target)
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
        if self.staged.is_some() && relative.as_os_str().is_empty() {
            return Ok(true);
        }
        let path = self.path(relative);
        match make_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| true),
        }
        if path.symlink_metadata()?.is_dir() { Ok(false) } else { Err(Errno::NOTDIR.into()) }
    }

    /// Makes an empty file.
    pub(crate) fn file(&self, relative: &Path) -> io::Result<(Draft, File)> {
        self.draft(relative, |path| {
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
        })
    }

    pub(crate) fn symlink(&self, relative: &Path, to: &Path) -> io::Result<Draft> {
        Ok(self.draft(relative, |path| std::os::unix::fs::symlink(to, path))?.0)
    }

    pub(crate) fn fifo(&self, relative: &Path) -> io::Result<Draft> {
        let make =
            |path: &Path| Ok(rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?);
        Ok(self.draft(relative, make)?.0)
    }

    /// Makes another name of a file that is in place.
    pub(crate) fn hard_link(&self, relative: &Path, of: &Path) -> io::Result<Draft> {
        let of = self.path(of);
        Ok(self.draft(relative, |path| fs::hard_link(&of, path))?.0)
    }

    /// Puts an object in place.
    pub(crate) fn put(&self, draft: Draft) -> io::Result<()> {
        draft.commit(self.overwrite)
    }

    /// Puts a new tree in place, and makes sure that its name survives.
    pub(crate) fn commit(mut self) -> Result<(), Failure> {
        if let Some(staged) = &self.staged {
            rename_to_free(staged, &self.place)
                .map_err(|error| Failure::io("make it", &self.place, error))?;
            self.staged = None;
        }
        let parents = std::mem::take(&mut self.parents);
        let named = parents.iter().map(PathBuf::as_path).chain([self.place.as_path()]);
        for dir in named.filter_map(containing) {
            sync_dir(dir).map_err(|error| Failure::io("write to stable storage", dir, error))?;
        }
        Ok(())
    }

    fn draft<T>(&self, relative: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(Draft, T)> {
        let path = self.path(relative);
        if self.staged.is_some() {
            return Draft::in_place(path, make);
        }
        if let Ok(there) = path.symlink_metadata() {
            if there.is_dir() {
                return Err(Errno::ISDIR.into());
            }
            if !self.overwrite {
                return Err(Errno::EXIST.into());
            }
        }
        name_fits(&path)?;
        Draft::beside(path, make)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(staged) = &self.staged {
            remove_tree(staged);
        }
        for parent in self.parents.iter().rev() {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// The directory that holds a path's last name.
fn containing(path: &Path) -> Option<&Path> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

/// Writes a directory's entries to stable storage, where the file system has such a thing.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    sync(&File::open(dir)?)
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

/// A temporary name is cut to fit, so a name that is too long must be found out before.
fn name_fits(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::InvalidFilename => Err(error),
        _ => Ok(()),
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Makes the directories above `place`. Returns those that are new; if it fails, none are left.
fn make_parents(place: &Path) -> Result<Vec<PathBuf>, Failure> {
    let missing = |dir: &&Path| matches!(fs::metadata(dir), Err(e) if e.kind() == io::ErrorKind::NotFound);
    let above = place.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
    let mut wanted: Vec<_> = above.take_while(missing).map(Path::to_owned).collect();
    wanted.reverse();
    for (made, dir) in wanted.iter().enumerate() {
        if let Err(error) = fs::create_dir(dir) {
            wanted.iter().take(made).rev().for_each(|dir| drop(fs::remove_dir(dir)));
            return Err(Failure::io("make it", dir, error));
        }
    }
    Ok(wanted)
}

/// Removes a temporary tree, also the parts of it that were made read-only already.
fn remove_tree(root: &Path) {
    if fs::remove_dir_all(root).is_ok() {
        return;
    }
    for entry in walkdir::WalkDir::new(root).into_iter().flatten() {
        if entry.file_type().is_dir() {
            let _ = rustix::fs::chmod(entry.path(), Mode::RWXU);
        }
    }
    let _ = fs::remove_dir_all(root);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
        let target = Target::open(&place, true, true).unwrap();
        assert!(target.dir(Path::new("")).unwrap() && target.dir(Path::new("sub")).unwrap());
        let (draft, _file) = target.file(Path::new("sub/file")).unwrap();
        target.put(draft).unwrap();
        assert!(!place.exists());
        assert_eq!(target.place(Path::new("sub/file")), place.join("sub/file"));
        target.commit().unwrap();
        assert_eq!(names(&place.join("sub")), ["file"]);
        assert_eq!(names(&dir.path().join("above")), ["tree"]);
    }

    #[test]
    fn what_is_not_committed_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::open(&dir.path().join("a/b/tree"), true, true).unwrap();
        target.dir(Path::new("sealed")).unwrap();
        let (draft, _file) = target.file(Path::new("sealed/file")).unwrap();
        target.put(draft).unwrap();
        let sealed = target.path(Path::new("sealed"));
        fs::set_permissions(&sealed, fs::Permissions::from_mode(0o500)).unwrap();
        drop(target);
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn parents_that_others_use_stay() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::open(&dir.path().join("a/b/file"), false, true).unwrap();
        fs::write(dir.path().join("a/other"), "x").unwrap();
        drop(target);
        assert_eq!(names(&dir.path().join("a")), ["other"]);
    }

    #[test]
    fn a_tree_that_appears_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("tree");
        let target = Target::open(&place, true, true).unwrap();
        fs::create_dir(&place).unwrap();
        let failure = target.commit().unwrap_err();
        assert_eq!(failure.errno(), Some(bivouac_types::Errno::EEXIST));
        assert_eq!(names(dir.path()), ["tree"]);
    }

    #[test]
    fn a_long_name_is_refused_although_its_temporary_name_would_fit() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::open(dir.path(), true, true).unwrap();
        let refusal = target.file(Path::new(&"n".repeat(256))).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::InvalidFilename);
        assert_eq!(names(dir.path()), [""; 0]);
    }
}

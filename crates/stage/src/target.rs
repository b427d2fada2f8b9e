//! The target: creation of temporary objects, and their renames to final names.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use crate::error::{Cause, Failure};
use crate::meta::{Attrs, InodeVersion};
use crate::mount_views::MountViews;
use crate::nofollow;
use crate::paths::{below, containing};
use crate::put_ioctl::PutIoctl;
use crate::temporary::{TemporaryObject, rename_to_free, temporary_path};
use crate::temporary_tag::Tag;

/// The target of a copy. Dropped before [`CopyTarget::commit`], it removes temporary objects and the directories
/// created above the target, as far as they are empty; unless the copy is resumable.
#[derive(Debug)]
pub(crate) struct CopyTarget {
    pub(crate) writer: TargetWriter,
    /// Directories created above the target, topmost first.
    pub(crate) parents: Vec<PathBuf>,
    /// True if temporary objects remain when the copy is interrupted.
    is_resumable: bool,
    /// True if a new tree replaces the one at the target.
    replaces: bool,
    /// The directory that receives all names, and its identity at the beginning.
    anchor: (PathBuf, Identity),
}

/// Device and inode number.
type Identity = (u64, u64);

/// Options of a target.
#[derive(Clone, Debug)]
pub(crate) struct TargetOptions {
    pub(crate) overwrite: bool,
    pub(crate) is_resumable: bool,
    /// True if an existing directory is replaced as a whole instead of merged.
    pub(crate) replaces: bool,
    pub(crate) tag: Tag,
}

/// A worker's access to the target.
#[derive(Clone, Debug)]
pub(crate) struct TargetWriter {
    /// Final path of the copy.
    place: PathBuf,
    /// Path of a new tree, or of the file of a set, before its rename.
    staged: Option<PathBuf>,
    /// True if the staged path is a directory that only its owner can enter.
    is_private: bool,
    overwrite: bool,
    tag: Tag,
}

impl CopyTarget {
    /// Prepares a target: a staged directory if a directory is copied and the target does not exist or is replaced. The
    /// file of a set is staged, too.
    pub(crate) fn open(place: &Path, for_dir: bool, options: &TargetOptions) -> Result<CopyTarget, Failure> {
        let TargetOptions { overwrite, is_resumable, replaces: is_set, ref tag } = *options;
        if is_set {
            // An earlier run may have been killed in the middle of a replacement.
            give_back_replaced(place, tag)
                .map_err(|error| Failure::io("give it its name again", place, error))?;
        }
        let there = if is_set { check_itself(place, for_dir)? } else { check(place, for_dir)? };
        let replaces = is_set && there && for_dir;
        // A directory to be replaced is treated as absent until the new one is complete.
        let exists = there && !replaces;
        let parents = make_parents(place)?;
        // The directory in which names will appear: that of a new tree or a file is the one above.
        let anchor = if exists && for_dir { place } else { containing(place).unwrap_or(place) };
        let identity = identity(anchor).map_err(|error| Failure::io("look at it", anchor, error))?;
        let (place_of, tag_of) = (place.to_owned(), tag.clone());
        let writer =
            TargetWriter { place: place_of, staged: None, is_private: false, overwrite, tag: tag_of };
        let anchor = (anchor.to_owned(), identity);
        let mut target = CopyTarget { writer, parents, is_resumable, replaces, anchor };
        if for_dir && exists && is_resumable {
            remove_draft(&temporary_path(place, tag))
                .map_err(|error| Failure::io("remove it", place, error))?;
        }
        if for_dir && !exists || is_set {
            let staged = temporary_path(place, tag);
            if for_dir {
                make_own_dir(&staged).map_err(|error| Failure::io("make it", place, error))?;
            }
            (target.writer.staged, target.writer.is_private) = (Some(staged), for_dir);
        }
        Ok(target)
    }

    /// Checks that the target directory is still the same: after an unmount, the path leads to the directory below.
    pub(crate) fn check_anchor(&self) -> Result<(), Failure> {
        let (anchor, before) = &self.anchor;
        match identity(anchor) {
            Ok(now) if now == *before => Ok(()),
            Ok(_) => Err(Failure::new(anchor, Cause::Vanished)),
            Err(error) => Err(Failure::io("find it again", anchor, error)),
        }
    }

    /// Returns the directory that the new tree replaces, if it exists.
    pub(crate) fn replaced(&self) -> Option<&Path> {
        self.replaces.then_some(&self.writer.place)
    }

    /// Returns the directory that receives all names.
    pub(crate) fn anchor(&self) -> &Path {
        &self.anchor.0
    }

    /// Renames a new tree to its final name and syncs the name.
    pub(crate) fn commit(self) -> Result<(), Failure> {
        self.commit_over(&|_| Ok(()))
    }

    /// Like [`CopyTarget::commit`]; a replaced tree is removed only if `check_removal` accepts its present path.
    /// Otherwise it gets its name back.
    pub(crate) fn commit_over(mut self, check_removal: &RemovalCheck<'_>) -> Result<(), Failure> {
        if let Err(failure) = self.check_anchor() {
            // The path leads to another file system now, where nothing must be removed.
            self.is_resumable = true;
            return Err(failure);
        }
        assert!(!self.replaces || self.writer.is_staged(), "a tree is replaced without a staged one");
        let place = self.writer.place.clone();
        if let Some(staged) = &self.writer.staged {
            let made = |error| Failure::io("make it", &place, error);
            match (self.replaces, self.writer.is_private) {
                (true, _) => replace(staged, &place, &self.writer.tag, check_removal)?,
                (false, true) => rename_to_free(staged, &place).map_err(made)?,
                (false, false) => nofollow::rename(staged, &place, RenameFlags::empty()).map_err(made)?,
            }
            // Nothing is left for the drop to remove.
            self.writer.staged = None;
        }
        let parents = std::mem::take(&mut self.parents);
        let named = parents.iter().map(PathBuf::as_path).chain([place.as_path()]);
        for dir in named.filter_map(containing) {
            // The directories above the new name must survive a crash, too.
            sync_dir(dir).map_err(|error| Failure::io("write to stable storage", dir, error))?;
        }
        Ok(())
    }
}

impl TargetWriter {
    /// Returns the access through the mount of a worker.
    pub(crate) fn for_worker(&self, views: &MountViews, worker: usize) -> TargetWriter {
        TargetWriter {
            place: views.path(worker, &self.place),
            staged: self.staged.as_ref().map(|staged| views.path(worker, staged)),
            ..self.clone()
        }
    }

    /// Returns whether the copy is made under a temporary name and renamed in the end.
    pub(crate) fn is_staged(&self) -> bool {
        self.staged.is_some()
    }

    /// Returns the path of an object during the copy.
    pub(crate) fn path(&self, relative: &Path) -> PathBuf {
        below(self.staged.as_deref().unwrap_or(&self.place), relative)
    }

    /// Returns the final path of an object, for messages.
    pub(crate) fn place(&self, relative: &Path) -> PathBuf {
        below(&self.place, relative)
    }

    /// Creates a directory. Returns whether it is new.
    pub(crate) fn dir(&self, relative: &Path) -> io::Result<bool> {
        let path = self.path(relative);
        if self.is_staged() {
            return make_own_dir(&path).map(|()| true);
        }
        match make_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| true),
        }
        if nofollow::lstat(&path)?.is_dir() { Ok(false) } else { Err(Errno::NOTDIR.into()) }
    }

    /// Creates an empty file and opens it for writing; with `reads` also for reading, which costs a formation's mount a
    /// request at the close. In a private tree it gets its permissions at once.
    pub(crate) fn file(
        &self,
        relative: &Path,
        mode: u32,
        reads: bool,
    ) -> io::Result<(TemporaryObject, File)> {
        // The owner needs write permission until the attributes are set.
        let mode = if self.is_private && mode & 0o200 != 0 { mode & 0o777 } else { 0o600 };
        self.draft(relative, |path| {
            let access = if reads { OFlags::RDWR } else { OFlags::WRONLY };
            nofollow::open(path, access | OFlags::CREATE | OFlags::EXCL, mode)
        })
    }

    /// Creates a complete file by one ioctl; `None` if it must be created in steps. Only in a private tree: elsewhere
    /// existing names must be looked up first, and the kernel's negative dentries would hide the new file.
    pub(crate) fn put_file(
        &self,
        relative: &Path,
        putter: &mut PutIoctl,
        attrs: &Attrs,
        content: &[u8],
    ) -> io::Result<Option<(TemporaryObject, InodeVersion)>> {
        if !self.is_private {
            return Ok(None);
        }
        assert!(self.is_staged(), "a private target without a staged tree");
        let (draft, made) = self.draft(relative, |path| {
            let made = putter.put(path, attrs, content);
            if made.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
                // The failed creation may have left an empty file.
                let _ = nofollow::remove_file(path);
            }
            made
        })?;
        match made {
            Some(version) => Ok(Some((draft, version))),
            None => {
                // No file was created, so the drop must not remove one.
                draft.keep();
                Ok(None)
            }
        }
    }

    /// Returns the temporary file of an interrupted copy; `None` if there is none, or it has other names.
    pub(crate) fn begun(&self, relative: &Path) -> Option<(TemporaryObject, File)> {
        let place = self.path(relative);
        let path = if self.is_staged() { place.clone() } else { temporary_path(&place, &self.tag) };
        // A second name means that the file is complete somewhere: it must not be written to.
        let is_ours = |meta: &Metadata| meta.is_file() && meta.nlink() == 1;
        nofollow::lstat(&path).ok().filter(is_ours)?;
        let open = |path: &Path| nofollow::open(path, OFlags::RDWR, 0);
        if self.is_staged() {
            TemporaryObject::in_place(place, open).ok()
        } else {
            TemporaryObject::beside(place, &self.tag, open).ok()
        }
    }

    pub(crate) fn symlink(&self, relative: &Path, to: &Path) -> io::Result<TemporaryObject> {
        Ok(self.draft(relative, |path| nofollow::symlink(to, path))?.0)
    }

    pub(crate) fn fifo(&self, relative: &Path) -> io::Result<TemporaryObject> {
        Ok(self.draft(relative, nofollow::fifo)?.0)
    }

    /// Creates a hard link to a complete file.
    pub(crate) fn hard_link(&self, relative: &Path, of: &Path) -> io::Result<TemporaryObject> {
        let of = self.path(of);
        Ok(self.draft(relative, |path| nofollow::hard_link(&of, path))?.0)
    }

    /// Renames an object to its final name. Returns its path.
    pub(crate) fn put(&self, draft: TemporaryObject) -> io::Result<PathBuf> {
        draft.commit(self.overwrite)
    }

    fn draft<T>(
        &self,
        relative: &Path,
        make: impl FnMut(&Path) -> io::Result<T>,
    ) -> io::Result<(TemporaryObject, T)> {
        let path = self.path(relative);
        if self.is_staged() {
            return TemporaryObject::in_place(path, make);
        }
        // Fails early for a name that is too long, whose temporary name is cut and would be accepted.
        match nofollow::lstat(&path) {
            Ok(there) if there.is_dir() => return Err(Errno::ISDIR.into()),
            Ok(_) if !self.overwrite => return Err(Errno::EXIST.into()),
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return Err(error),
            _ => {}
        }
        TemporaryObject::beside(path, &self.tag, make)
    }
}

impl Drop for CopyTarget {
    fn drop(&mut self) {
        if self.is_resumable {
            return;
        }
        if let Some(staged) = &self.writer.staged {
            // A drop cannot report an error; what remains has a temporary name, which the next scan lists.
            let _ = nofollow::remove_tree(staged);
        }
        // Only as far as they are empty: others may have put something there since.
        for parent in self.parents.iter().rev() {
            let _ = nofollow::remove_dir(parent);
        }
    }
}

/// Decides whether a replaced tree may be removed, given its present path.
pub(crate) type RemovalCheck<'a> = dyn Fn(&Path) -> Result<(), Failure> + 'a;

/// Replaces a tree by another one and removes the old tree if `check_removal` accepts; otherwise both are where they
/// were. The names are exchanged atomically; where the file system cannot do that, the name is missing for a moment.
fn replace(staged: &Path, place: &Path, tag: &Tag, check_removal: &RemovalCheck<'_>) -> Result<(), Failure> {
    let made = |error| Failure::io("make it", place, error);
    let removed = |error| Failure::io("remove what it replaces", place, error);
    let aside = set_aside(place, tag);
    // The new tree gets the name of replaced trees first: whichever tree a crash leaves under it, it is not taken for a
    // staged tree to resume.
    assert_ne!(staged, aside, "a new tree and the one it replaces have the same temporary name");
    rename_to_free(staged, &aside).map_err(made)?;
    let exchange = || nofollow::rename(&aside, place, RenameFlags::EXCHANGE);
    let error = match exchange() {
        Ok(()) => {
            if let Err(refusal) = check_removal(&aside) {
                exchange().map_err(made)?;
                rename_to_free(&aside, staged).map_err(made)?;
                return Err(refusal);
            }
            return nofollow::remove_tree(&aside).map_err(removed);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return rename_to_free(&aside, place).map_err(made);
        }
        Err(error) => error,
    };
    rename_to_free(&aside, staged).map_err(made)?;
    let unknown = [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP].map(Errno::raw_os_error);
    if !error.raw_os_error().is_some_and(|errno| unknown.contains(&errno)) {
        return Err(made(error));
    }
    replace_by_steps(staged, place, &aside, check_removal)
}

/// Like [`replace`], for file systems that cannot exchange names.
fn replace_by_steps(
    staged: &Path,
    place: &Path,
    aside: &Path,
    check_removal: &RemovalCheck<'_>,
) -> Result<(), Failure> {
    let made = |error| Failure::io("make it", place, error);
    nofollow::rename(place, aside, RenameFlags::empty()).map_err(made)?;
    let named = check_removal(aside).and_then(|()| rename_to_free(staged, place).map_err(made));
    if let Err(failure) = named {
        rename_to_free(aside, place).map_err(made)?;
        return Err(failure);
    }
    nofollow::remove_tree(aside).map_err(|error| Failure::io("remove what it replaces", place, error))
}

/// Returns the temporary path of a tree that is being replaced.
fn set_aside(place: &Path, tag: &Tag) -> PathBuf {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(".old");
    temporary_path(&place.with_file_name(name), tag)
}

/// Renames a replaced tree back after a crash, unless the new tree has the name.
pub(crate) fn give_back_replaced(place: &Path, tag: &Tag) -> io::Result<()> {
    let aside = set_aside(place, tag);
    match nofollow::lstat(&aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // A component of the path is missing or not a directory.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(()),
        seen => seen?,
    };
    match nofollow::lstat(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => rename_to_free(&aside, place),
        // Both exist: the exchange took place, and only the removal of the old tree is missing.
        Ok(_) => nofollow::remove_tree(&aside),
        Err(error) => Err(error),
    }
}

fn identity(dir: &Path) -> io::Result<Identity> {
    nofollow::lstat(dir).map(|meta| (meta.dev(), meta.ino()))
}

/// Syncs a directory, where the file system supports it.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    sync(&nofollow::open_dir(dir)?)
}

/// Like [`sync_dir`], for an open directory.
pub(crate) fn sync(dir: &File) -> io::Result<()> {
    match rustix::fs::fsync(dir) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::ROFS) => Ok(()),
        result => Ok(result?),
    }
}

/// Returns whether the target exists. Fails if it has another type than the source.
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

/// Like [`check`], without following a link: a link itself is replaced.
fn check_itself(place: &Path, for_dir: bool) -> Result<bool, Failure> {
    let conflict = |what| Err(Failure::new(place, Cause::Conflict(what)));
    match nofollow::lstat(place) {
        Ok(there) if there.is_dir() && !for_dir => conflict("is a directory; move it away"),
        Ok(there) if !there.is_dir() && for_dir => conflict("is not a directory; move it away"),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound && place.file_name().is_some() => Ok(false),
        Err(error) => Err(Failure::io("look at it", place, error)),
    }
}

/// Removes the staged tree of an earlier run: the target has appeared since, so the copy merges into it.
fn remove_draft(path: &Path) -> io::Result<()> {
    match nofollow::remove_tree(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    nofollow::make_dir(path, 0o700)
}

/// Creates a directory in a private tree, where an interrupted copy may have created it.
fn make_own_dir(path: &Path) -> io::Result<()> {
    match make_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && nofollow::lstat(path)?.is_dir() => {
            nofollow::set_mode(path, 0o700)
        }
        made => made,
    }
}

/// Returns the missing directories above `place`, topmost first.
pub(crate) fn missing_parents(place: &Path) -> Vec<PathBuf> {
    let missing = |dir: &&Path| matches!(fs::metadata(dir), Err(e) if e.kind() == io::ErrorKind::NotFound);
    let above = place.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
    let mut missing: Vec<_> = above.take_while(missing).map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// Creates the directories above `place`. Returns the new ones; removes them again on failure.
fn make_parents(place: &Path) -> Result<Vec<PathBuf>, Failure> {
    let wanted = missing_parents(place);
    for (made, dir) in wanted.iter().enumerate() {
        if let Err(error) = nofollow::make_dir(dir, 0o777) {
            wanted.iter().take(made).rev().for_each(|dir| drop(nofollow::remove_dir(dir)));
            return Err(Failure::io("make it", dir, error));
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn open(place: &Path, for_dir: bool) -> Result<CopyTarget, Failure> {
        CopyTarget::open(
            place,
            for_dir,
            &TargetOptions { overwrite: true, is_resumable: false, replaces: false, tag: Tag::random() },
        )
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
        assert!(target.writer.dir(Path::new("")).unwrap() && target.writer.dir(Path::new("sub")).unwrap());
        let (draft, _file) = target.writer.file(Path::new("sub/file"), 0o644, true).unwrap();
        target.writer.put(draft).unwrap();
        assert!(!place.exists());
        assert_eq!(target.writer.place(Path::new("sub/file")), place.join("sub/file"));
        target.commit().unwrap();
        assert_eq!(names(&place.join("sub")), ["file"]);
        assert_eq!(names(&dir.path().join("above")), ["tree"]);
    }

    #[test]
    fn what_is_not_committed_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = open(&dir.path().join("a/b/tree"), true).unwrap();
        target.writer.dir(Path::new("sealed")).unwrap();
        let (draft, _file) = target.writer.file(Path::new("sealed/file"), 0o644, true).unwrap();
        target.writer.put(draft).unwrap();
        let sealed = target.writer.path(Path::new("sealed"));
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
        let refusal = target.writer.file(Path::new(&"n".repeat(256)), 0o644, true).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::InvalidFilename);
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn a_copy_that_can_be_resumed_stays_and_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("tree");
        let options =
            TargetOptions { overwrite: true, is_resumable: true, replaces: false, tag: Tag::random() };
        let target = CopyTarget::open(&place, true, &options).unwrap();
        target.writer.dir(Path::new("sub")).unwrap();
        fs::set_permissions(target.writer.path(Path::new("sub")), fs::Permissions::from_mode(0o500)).unwrap();
        target.writer.file(Path::new("begun"), 0o600, true).unwrap().0.keep();
        drop(target);
        let again = CopyTarget::open(&place, true, &options).unwrap();
        assert!(again.writer.dir(Path::new("sub")).unwrap());
        let (draft, _file) = again.writer.begun(Path::new("begun")).unwrap();
        again.writer.put(draft).unwrap();
        assert!(again.writer.begun(Path::new("sub")).is_none());
        again.commit().unwrap();
        assert_eq!(
            (names(dir.path()), names(&place)),
            (vec!["tree".into()], vec!["begun".into(), "sub".into()])
        );
    }

    /// A tree `old` in place, and a copy of one that replaces it.
    fn replacing(place: &Path, tag: &Tag) -> CopyTarget {
        fs::create_dir_all(place).unwrap();
        let options = TargetOptions { overwrite: true, is_resumable: true, replaces: true, tag: tag.clone() };
        CopyTarget::open(place, true, &options).unwrap()
    }

    fn content(dir: &Path) -> Vec<String> {
        names(dir)
            .iter()
            .map(|name| name.clone() + "=" + &fs::read_to_string(dir.join(name)).unwrap())
            .collect()
    }

    #[test]
    fn a_kill_after_the_exchange_mixes_no_old_files_into_the_draft() {
        let dir = tempfile::tempdir().unwrap();
        let (place, tag) = (nofollow::canonical(dir.path()).join("set"), Tag::random());
        let target = replacing(&place, &tag);
        fs::write(place.join("only-old"), "old").unwrap();
        fs::write(target.writer.path(Path::new("a")), "new").unwrap();
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            target.commit_over(&|tree| panic!("killed when {} lost its name", tree.display()))
        }));
        assert!(killed.is_err());
        assert_eq!(content(&place), ["a=new"]);
        let again = replacing(&place, &tag);
        assert_eq!(names(&again.writer.path(Path::new(""))), [""; 0]);
        fs::write(again.writer.path(Path::new("a")), "new").unwrap();
        again.commit().unwrap();
        assert_eq!((content(&place), names(dir.path())), (vec!["a=new".into()], vec!["set".into()]));
    }

    #[test]
    fn a_tree_that_may_not_go_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let (place, tag) = (nofollow::canonical(dir.path()).join("set"), Tag::random());
        let staged = temporary_path(&place, &tag);
        let refuse = |tree: &Path| {
            assert_eq!(content(tree), ["a=old", "notes=mine"]);
            Err(Failure::new(tree, Cause::Conflict("is in the way")))
        };
        for exchanges in [true, false] {
            let target = replacing(&place, &tag);
            fs::write(place.join("a"), "old").unwrap();
            fs::write(place.join("notes"), "mine").unwrap();
            fs::write(staged.join("a"), "new").unwrap();
            let refusal = match exchanges {
                true => target.commit_over(&refuse),
                false => replace_by_steps(&staged, &place, &set_aside(&place, &tag), &refuse),
            };
            assert!(matches!(refusal.unwrap_err().cause, Cause::Conflict("is in the way")));
            assert_eq!(
                (content(&place), content(&staged)),
                (vec!["a=old".into(), "notes=mine".into()], vec!["a=new".into()])
            );
            assert_eq!(names(dir.path()).len(), 2);
        }
        replace_by_steps(&staged, &place, &set_aside(&place, &tag), &|_| Ok(())).unwrap();
        assert_eq!((content(&place), names(dir.path())), (vec!["a=new".into()], vec!["set".into()]));
    }

    #[test]
    fn a_target_that_is_replaced_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("tree");
        fs::create_dir(&place).unwrap();
        let target = open(&place, true).unwrap();
        target.check_anchor().unwrap();
        fs::rename(&place, dir.path().join("away")).unwrap();
        assert_eq!(target.check_anchor().unwrap_err().errno(), Some(bivouac_types::Errno::ENOENT));
        fs::create_dir(&place).unwrap();
        assert!(matches!(target.commit().unwrap_err().cause, Cause::Vanished));
    }
}

//! File operations that follow no symbolic link. The paths of a copy are resolved when it begins; if a directory on the
//! way is replaced by a link later, operations through it fail with ELOOP or ENOTDIR instead of leading elsewhere. Each
//! call opens the parent directory without following links and works relative to it.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use crate::paths::containing;

const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// Resolves the links of a path as far as it exists.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| match (containing(path), path.file_name()) {
        // Of "." the directory is itself.
        (Some(above), Some(name)) if above != path => canonical(above).join(name),
        _ => path.to_owned(),
    })
}

/// Opens a file or directory that is not a link.
pub(crate) fn open(path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    Ok(reach(path, flags, Mode::from_raw_mode(mode))?.into())
}

/// Opens a file for reading; never blocks on a pipe that has replaced it.
pub(crate) fn open_for_reading(path: &Path) -> io::Result<File> {
    open(path, OFlags::RDONLY | OFlags::NONBLOCK, 0)
}

pub(crate) fn open_dir(path: &Path) -> io::Result<File> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0)
}

/// Returns the metadata of a path, as `lstat`.
pub(crate) fn lstat(path: &Path) -> io::Result<Metadata> {
    open(path, OFlags::PATH, 0)?.metadata()
}

/// Returns the sorted names in a directory.
pub(crate) fn read_dir(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(open_dir(path)?)? {
        let name = entry?.file_name().to_bytes().to_owned();
        if !matches!(name.as_slice(), b"." | b"..") {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

pub(crate) fn read_link(path: &Path) -> io::Result<PathBuf> {
    let (dir, name) = enter(path)?;
    Ok(OsString::from_vec(rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes()).into())
}

pub(crate) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    let (dir, name) = enter(path)?;
    Ok(rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode))?)
}

pub(crate) fn symlink(to: &Path, path: &Path) -> io::Result<()> {
    let (dir, name) = enter(path)?;
    Ok(rustix::fs::symlinkat(to, dir, name)?)
}

pub(crate) fn fifo(path: &Path) -> io::Result<()> {
    let (dir, name) = enter(path)?;
    Ok(rustix::fs::mknodat(dir, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
}

pub(crate) fn hard_link(of: &Path, path: &Path) -> io::Result<()> {
    let ((from, old), (to, new)) = (enter(of)?, enter(path)?);
    Ok(rustix::fs::linkat(from, old, to, new, AtFlags::empty())?)
}

pub(crate) fn rename(from: &Path, to: &Path, how: RenameFlags) -> io::Result<()> {
    let ((from, old), (to, new)) = (enter(from)?, enter(to)?);
    if how.is_empty() {
        return Ok(rustix::fs::renameat(from, old, to, new)?);
    }
    Ok(rustix::fs::renameat_with(from, old, to, new, how)?)
}

pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    let (dir, name) = enter(path)?;
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
}

pub(crate) fn remove_dir(path: &Path) -> io::Result<()> {
    let (dir, name) = enter(path)?;
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

/// Changes the mode of a file or directory, which need not be readable.
pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let there = open(path, OFlags::PATH, 0)?;
    if there.metadata()?.is_symlink() {
        return Err(Errno::LOOP.into());
    }
    // Through /proc, because an O_PATH descriptor does not support fchmod.
    let itself = format!("/proc/self/fd/{}", there.as_raw_fd());
    std::fs::set_permissions(itself, std::fs::Permissions::from_mode(mode))
}

/// Removes a tree, including read-only directories.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    if !lstat(path)?.is_dir() {
        return remove_file(path);
    }
    // Ignored: if the directory stays inaccessible, the following calls fail.
    let _ = set_mode(path, 0o700);
    for name in read_dir(path)? {
        remove_tree(&path.join(name))?;
    }
    remove_dir(path)
}

/// Opens the parent directory of a path, and returns the last name.
pub(crate) fn enter(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let (Some(above), Some(name)) = (containing(path), path.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    Ok((reach(above, DIR, Mode::empty())?, name))
}

fn reach(path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat2(CWD, path, flags, mode, ResolveFlags::NO_SYMLINKS) {
        // A kernel before 5.6, or a seccomp filter that refuses the call.
        Err(Errno::NOSYS | Errno::PERM) => by_steps(path, flags, mode),
        reached => reached,
    }
}

/// Opens a path name by name, for kernels without `openat2`.
fn by_steps(path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let begin = if path.is_absolute() { "/" } else { "." };
    let mut dir = rustix::fs::open(begin, DIR | OFlags::CLOEXEC, Mode::empty())?;
    let mut names =
        path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir)).peekable();
    while let Some(name) = names.next() {
        let is_last = names.peek().is_none();
        let (flags, mode) =
            if is_last { (flags, mode) } else { (DIR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) };
        let next = rustix::fs::openat(&dir, name.as_os_str(), flags, mode)?;
        if is_last {
            return Ok(next);
        }
        // Each step is relative to an open directory, so a rename of an earlier component changes nothing.
        dir = next;
    }
    rustix::fs::openat(&dir, ".", flags, mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// S594.
    #[test]
    fn nothing_goes_through_a_link() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| canonical(root.path()).join(path);
        fs::create_dir_all(at("dir/deep")).unwrap();
        fs::create_dir(at("other")).unwrap();
        fs::write(at("other/file"), "theirs").unwrap();
        fs::write(at("dir/mine"), "mine").unwrap();
        fs::remove_dir(at("dir/deep")).unwrap();
        std::os::unix::fs::symlink("../other", at("dir/deep")).unwrap();
        let file = at("dir/deep/file");
        let refused = |outcome: io::Result<()>| {
            let errno = outcome.unwrap_err().raw_os_error();
            assert!([Errno::LOOP, Errno::NOTDIR].map(|errno| Some(errno.raw_os_error())).contains(&errno));
        };
        let new = at("dir/deep/new");
        refused(open(&file, OFlags::RDWR, 0).map(drop));
        refused(open(&new, OFlags::RDWR | OFlags::CREATE, 0o600).map(drop));
        refused(lstat(&file).map(drop));
        refused(read_dir(&at("dir/deep")).map(drop));
        refused(read_link(&file).map(drop));
        refused(make_dir(&new, 0o700));
        refused(symlink(Path::new("x"), &new));
        refused(fifo(&new));
        refused(hard_link(&file, &at("dir/new")));
        refused(hard_link(&at("dir/mine"), &new));
        refused(rename(&at("dir/mine"), &file, RenameFlags::empty()));
        refused(rename(&file, &at("dir/new"), RenameFlags::NOREPLACE));
        refused(remove_file(&file));
        refused(remove_dir(&at("dir/deep/x")));
        refused(set_mode(&file, 0o600));
        refused(set_mode(&at("dir/deep"), 0o600));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        refused(by_steps(&file, flags, Mode::empty()).map(drop).map_err(io::Error::from));
        by_steps(&at("other/file"), flags, Mode::empty()).unwrap();
        by_steps(Path::new("/"), flags, Mode::empty()).unwrap();
        assert!(lstat(&at("dir/deep")).unwrap().is_symlink());
        // The link goes, and not what is behind it.
        remove_tree(&at("dir")).unwrap();
        assert_eq!(fs::read(at("other/file")).unwrap(), b"theirs");
        assert_eq!(read_dir(&at("")).unwrap(), ["other"]);
    }

    #[test]
    fn what_is_named_is_meant_as_far_as_it_exists() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(".", real.join("link")).unwrap();
        assert_eq!(canonical(&real.join("link/link/new/er")), real.join("new/er"));
        assert_eq!(canonical(Path::new("none/x")), std::env::current_dir().unwrap().join("none/x"));
    }
}

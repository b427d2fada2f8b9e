//! Paths that nobody else can put something else at.
//!
//! A path is gone through from the root down, name by name, and none is followed by the kernel: each directory is
//! opened without following links (`O_PATH | O_NOFOLLOW`, which is what `openat2` with `RESOLVE_NO_SYMLINKS` does for
//! one name, on every kernel and under every filter of system calls), then judged, and links are read and judged here.
//! What comes out is a descriptor of the directory, so that what was judged is what is used.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::{Kind, LaunchError, LaunchResult};

/// Most symbolic links in one path, as in the kernel.
const LINKS_MAX: usize = 40;
/// Owner that stands for all that a user namespace does not have.
const OVERFLOW: u32 = 65534;

/// A directory that only this user, or root, can replace.
#[derive(Debug)]
pub struct Guarded {
    /// Its path without links.
    pub path: PathBuf,
    /// The directory itself, for its path only.
    pub dir: OwnedFd,
}

/// Goes to a directory, and makes sure that nobody but this user and root can put anything else at its path.
///
/// # Errors
/// What is missing, or who could replace what; `remedy` is said with the latter.
pub fn guarded(path: &Path, remedy: &str) -> LaunchResult<Guarded> {
    PathWalk::new(path, PathTrust::here(), remedy).go()
}

/// Like [`guarded`], for the parent directory of a new entry.
///
/// # Errors
/// As [`guarded`].
pub fn guarded_parent(path: &Path, remedy: &str) -> LaunchResult<Guarded> {
    let absolute = std::path::absolute(path).map_err(|e| LaunchError::path(path, "look at it", e))?;
    guarded(absolute.parent().unwrap_or(Path::new("/")), remedy)
}

/// The users and groups that may own or write a directory on the way to a guarded path.
#[derive(Clone, Debug)]
struct PathTrust {
    uid: u32,
    groups: Vec<u32>,
    /// True if an owner may be anybody, root included: this process is in a user namespace, which does not know all
    /// users.
    is_blind: bool,
}

impl PathTrust {
    fn here() -> PathTrust {
        let mut groups: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect();
        // `getgroups` need not have it.
        groups.push(rustix::process::getegid().as_raw());
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        PathTrust { uid: rustix::process::geteuid().as_raw(), groups, is_blind: !is_whole(&map) }
    }

    /// Fails with the reason why the entry of a directory could be replaced by others, or what is in it.
    fn judge(&self, entry: &Stat, in_shared: bool) -> Result<(), String> {
        let (uid, gid, mode) = (entry.st_uid, entry.st_gid, entry.st_mode);
        // Below a directory that all may write to, an owner that cannot be told may be anybody.
        let is_unknown = self.is_blind && uid == OVERFLOW && !in_shared;
        if uid != self.uid && uid != 0 && !is_unknown {
            return Err(format!("belongs to user {uid}, who could replace it"));
        }
        // In a sticky directory nobody can rename or remove what is another's.
        if FileType::from_raw_mode(mode) != FileType::Directory || mode & 0o1000 != 0 {
            return Ok(());
        }
        if mode & 0o002 != 0 {
            return Err("may be written by all users".into());
        }
        if mode & 0o020 != 0 && !(self.groups.contains(&gid) || self.is_blind) {
            return Err(format!("may be written by group {gid}, which is not yours"));
        }
        Ok(())
    }
}

/// Returns whether a map of users is that of the machine itself, in which every owner is told.
fn is_whole(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Resolution of a path, directory by directory.
struct PathWalk<'a> {
    given: &'a Path,
    judge: PathTrust,
    remedy: &'a str,
    /// The names that are left of it, the next one last.
    rest: Vec<OsString>,
    /// The directories that lead to where it is, and whether others may make entries there.
    dirs: Vec<(OwnedFd, bool)>,
    path: PathBuf,
    links: usize,
}

impl<'a> PathWalk<'a> {
    fn new(given: &'a Path, judge: PathTrust, remedy: &'a str) -> PathWalk<'a> {
        PathWalk { given, judge, remedy, rest: Vec::new(), dirs: Vec::new(), path: "/".into(), links: 0 }
    }

    fn go(mut self) -> LaunchResult<Guarded> {
        let absolute =
            std::path::absolute(self.given).map_err(|e| LaunchError::path(self.given, "look at it", e))?;
        self.push(&absolute)?;
        while let Some(name) = self.rest.pop() {
            self.step(&name)?;
        }
        let (dir, _) = self.dirs.pop().ok_or_else(|| self.failed(Errno::NOENT))?;
        Ok(Guarded { path: self.path, dir })
    }

    /// Puts a path in front of what is left.
    fn push(&mut self, path: &Path) -> LaunchResult<()> {
        if path.is_absolute() {
            let root = open_at(CWD, OsStr::new("/")).map_err(|e| self.failed(e))?;
            self.dirs = vec![(root, false)];
            self.path = "/".into();
        }
        let names = path.components().rev().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        self.rest.extend(names);
        Ok(())
    }

    fn step(&mut self, name: &OsStr) -> LaunchResult<()> {
        if name == ".." {
            if self.dirs.len() > 1 {
                self.dirs.pop();
                self.path.pop();
            }
            return Ok(());
        }
        let Some((dir, in_shared)) = self.dirs.last() else { return Err(self.failed(Errno::NOENT)) };
        let in_shared = *in_shared;
        self.path.push(name);
        // Opened before it is judged: a name could lead elsewhere a moment later.
        let entry = open_at(dir, name).map_err(|e| self.failed(e))?;
        let seen = statat(&entry, "", AtFlags::EMPTY_PATH).map_err(|e| self.failed(e))?;
        if let Err(cause) = self.judge.judge(&seen, in_shared) {
            let cause = format!("leads through {}, which {cause}", self.path.display());
            return Err(LaunchError::new(Kind::Refused, self.given.display(), cause, self.remedy));
        }
        match FileType::from_raw_mode(seen.st_mode) {
            FileType::Symlink => {
                self.links += 1;
                if self.links > LINKS_MAX {
                    return Err(self.failed(Errno::LOOP));
                }
                let target = readlinkat(&entry, "", Vec::new()).map_err(|e| self.failed(e))?;
                // The target is relative to the directory that the link is in.
                self.path.pop();
                self.push(Path::new(&OsString::from_vec(target.into_bytes())))
            }
            FileType::Directory => {
                self.dirs.push((entry, seen.st_mode & 0o002 != 0));
                Ok(())
            }
            _ => Err(self.failed(Errno::NOTDIR)),
        }
    }

    fn failed(&self, error: Errno) -> LaunchError {
        LaunchError::path(self.given, "go there", std::io::Error::from(error))
    }
}

fn open_at(dir: impl std::os::fd::AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, create_dir_all, set_permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn refusal(path: &Path) -> String {
        guarded(path, "choose another").unwrap_err().to_string()
    }

    fn open_to_all(dir: &Path, mode: u32) {
        set_permissions(dir, Permissions::from_mode(mode)).unwrap();
    }

    /// S320.
    #[test]
    fn what_others_could_replace_is_refused_on_the_whole_way() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        create_dir_all(top.join("a/b/c")).unwrap();
        let found = guarded(&top.join("a/b/../b/c"), "x").unwrap();
        assert_eq!(found.path, top.join("a/b/c"));
        let seen = statat(&found.dir, "", AtFlags::EMPTY_PATH).unwrap();
        assert_eq!(seen.st_ino, top.join("a/b/c").metadata().unwrap().ino());
        open_to_all(&top.join("a/b"), 0o777);
        let text = refusal(&top.join("a/b/c"));
        assert!(text.contains("a/b, which may be written by all users; choose another"), "{text}");
        open_to_all(&top.join("a/b"), 0o1777);
        guarded(&top.join("a/b/c"), "x").unwrap();
        open_to_all(&top.join("a/b/c"), 0o777);
        assert!(refusal(&top.join("a/b/c")).contains("a/b/c, which may be written by all"));
    }

    #[test]
    fn links_are_followed_where_they_are_safe() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        create_dir_all(top.join("real/x")).unwrap();
        symlink(top.join("real"), top.join("absolute")).unwrap();
        symlink("real/../real", top.join("relative")).unwrap();
        symlink("loop", top.join("loop")).unwrap();
        for name in ["absolute", "relative"] {
            assert_eq!(guarded(&top.join(name).join("x"), "x").unwrap().path, top.join("real/x"));
        }
        assert!(refusal(&top.join("loop")).contains("symbolic links"));
        std::fs::write(top.join("file"), "").unwrap();
        assert!(refusal(&top.join("file")).contains("not a directory (ENOTDIR)"));
        assert!(refusal(&top.join("none/x")).contains("(ENOENT)"));
        create_dir(top.join("shared")).unwrap();
        open_to_all(&top.join("shared"), 0o777);
        symlink(top.join("shared"), top.join("to-shared")).unwrap();
        assert!(refusal(&top.join("to-shared")).contains("/shared, which may be written"));
    }

    #[test]
    fn owners_and_groups_are_judged() {
        let dir = tempfile::tempdir().unwrap();
        let own = statat(CWD, dir.path(), AtFlags::empty()).unwrap();
        let judge = PathTrust { uid: own.st_uid, groups: vec![7], is_blind: false };
        let entry = |uid, gid, mode: u32| {
            let mut entry = own;
            (entry.st_uid, entry.st_gid, entry.st_mode) = (uid, gid, 0o40000 | mode);
            entry
        };
        let (us, other) = (own.st_uid, own.st_uid + 4000);
        assert_eq!(judge.judge(&entry(us, 8, 0o755), true), Ok(()));
        assert_eq!(judge.judge(&entry(0, 8, 0o755), true), Ok(()));
        assert!(judge.judge(&entry(other, 8, 0o700), false).unwrap_err().contains("could replace it"));
        assert_eq!(judge.judge(&entry(us, 7, 0o770), true), Ok(()), "members of your groups are trusted");
        assert!(judge.judge(&entry(us, 8, 0o770), true).unwrap_err().contains("group 8"));
        assert_eq!(judge.judge(&entry(us, 8, 0o1777), true), Ok(()), "nobody may remove others' entries");
        let mut link = entry(other, 8, 0);
        link.st_mode = 0o120_777;
        assert!(judge.judge(&link, true).is_err());
        let blind = PathTrust { is_blind: true, ..judge };
        assert_eq!(blind.judge(&entry(OVERFLOW, 8, 0o755), false), Ok(()), "root, for all that can be told");
        assert!(blind.judge(&entry(OVERFLOW, 8, 0o755), true).is_err(), "whoever made it in /tmp");
    }

    #[test]
    fn a_user_namespace_is_told_from_the_machine() {
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(!is_whole("0 1000 1\n") && !is_whole("0 1000 1\n1 100000 65536\n") && !is_whole(""));
    }
}

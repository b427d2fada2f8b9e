//! What a file is besides its contents: mode, owner, times, attributes.

use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use crate::line::{parse_time, time};
use crate::straight;

/// Seconds since 1970 and nanoseconds, as in `struct timespec`.
pub type Time = (i64, i64);

/// What is carried over to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attrs {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
}

impl Attrs {
    pub(crate) fn of(meta: &Metadata) -> Attrs {
        Attrs {
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
        }
    }

    /// Gives an open file or directory these attributes.
    pub(crate) fn apply(&self, file: &File) -> io::Result<()> {
        self.apply_over(file, file.metadata()?)
    }

    /// The same for one that was made like `made`: asks for no change of what is right already.
    pub(crate) fn apply_over(&self, file: &File, mut made: Metadata) -> io::Result<()> {
        if rustix::process::geteuid().is_root() && (made.uid(), made.gid()) != (self.uid, self.gid) {
            tolerate(rustix::fs::fchown(file, Some(self.owner()), Some(self.group())))?;
            made = file.metadata()?;
        }
        let mode = self.mode_for(&made);
        if made.mode() & 0o7777 != mode {
            rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
        }
        rustix::fs::futimens(file, &self.times())?;
        Ok(())
    }

    /// Gives a link or pipe these attributes, without following or opening it.
    pub(crate) fn apply_at(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = straight::enter(path)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Some(self.owner()), Some(self.group()));
            tolerate(rustix::fs::chownat(&dir, name, uid, gid, flags))?;
        }
        let made = straight::look(path)?;
        if !made.is_symlink() {
            straight::set_mode(path, self.mode_for(&made))?;
        }
        rustix::fs::utimensat(&dir, name, &self.times(), flags)?;
        Ok(())
    }

    /// The mode for a copy. Running as the owner or group is carried over only to a file of the same.
    fn mode_for(&self, copy: &Metadata) -> u32 {
        let suid = if copy.uid() == self.uid { 0 } else { 0o4000 };
        let sgid = if copy.is_dir() || copy.gid() == self.gid { 0 } else { 0o2000 };
        self.mode & !(suid | sgid)
    }

    fn owner(&self) -> Uid {
        Uid::from_raw(self.uid)
    }

    fn group(&self) -> Gid {
        Gid::from_raw(self.gid)
    }

    fn times(&self) -> Timestamps {
        Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: self.mtime.0, tv_nsec: self.mtime.1 },
        }
    }
}

/// Accepts that the target cannot keep owners: it is a user namespace, or a file system without them.
fn tolerate(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::OVERFLOW) => Ok(()),
        other => other,
    }
}

/// Which object, and its last change. A change of anything but the time of access changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Inode number.
    pub ino: u64,
    /// Time of the last change.
    pub ctime: Time,
}

impl Mark {
    pub(crate) fn of(meta: &Metadata) -> Mark {
        Mark { ino: meta.ino(), ctime: (meta.ctime(), meta.ctime_nsec()) }
    }

    pub(crate) fn parse(text: &str) -> Option<Mark> {
        let (ino, ctime) = text.split_once('@')?;
        Some(Mark { ino: ino.parse().ok()?, ctime: parse_time(ctime)? })
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.ino, time(self.ctime))
    }
}

/// What tells whether a file changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    dev: u64,
    pub(crate) mark: Mark,
    pub(crate) size: u64,
    pub(crate) attrs: Attrs,
}

impl Stamp {
    pub(crate) fn of(meta: &Metadata) -> Stamp {
        Stamp { dev: meta.dev(), mark: Mark::of(meta), size: meta.size(), attrs: Attrs::of(meta) }
    }
}

/// Attributes that the formation makes itself; they describe a place, not a file.
const OWN_ATTRIBUTES: &[u8] = b"user.bivouac.";

/// Access lists, which are kept in attributes of these names.
const ACCESS_LISTS: &[u8] = b"system.posix_acl_";

/// An attribute: its name and its value.
pub(crate) type Xattr = (CString, Vec<u8>);

/// Copies `user.` attributes and access lists. Returns the names of those that the target does not take.
pub(crate) fn copy_xattrs(from: &File, to: &File) -> io::Result<Vec<String>> {
    set_xattrs(to, &xattrs_of(from)?)
}

/// `user.` attributes and access lists.
pub(crate) fn xattrs_of(from: &File) -> io::Result<Vec<Xattr>> {
    let mut found = Vec::new();
    for name in kept_xattrs(from)? {
        let value = xattr(from, &name)?;
        found.extend(value.map(|value| (name, value)));
    }
    Ok(found)
}

/// Sets attributes. Returns the names of those that the target does not take.
pub(crate) fn set_xattrs(to: &File, xattrs: &[Xattr]) -> io::Result<Vec<String>> {
    let mut refused = Vec::new();
    for (name, value) in xattrs {
        match rustix::fs::fsetxattr(to, name.as_c_str(), value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {
                refused.push(name.to_string_lossy().into_owned());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(refused)
}

/// Whether a file has attributes that are copied.
pub(crate) fn has_xattrs(file: &File) -> io::Result<bool> {
    kept_xattrs(file).map(|names| !names.is_empty())
}

/// Whether attributes of this name are copied.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    (name.starts_with(b"user.") || name.starts_with(ACCESS_LISTS)) && !name.starts_with(OWN_ATTRIBUTES)
}

fn kept_xattrs(file: &File) -> io::Result<Vec<CString>> {
    let Some(len) = supported(rustix::fs::flistxattr_query(file))?.filter(|len| *len > 0) else {
        return Ok(Vec::new());
    };
    let mut list = vec![0; len];
    let len = rustix::fs::flistxattr(file, &mut list[..])?;
    list.truncate(len);
    let names =
        list.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    Ok(names.filter(|name| is_kept(name.to_bytes())).map(CStr::to_owned).collect())
}

fn xattr(file: &File, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let Some(len) = supported(rustix::fs::fgetxattr_query(file, name))? else { return Ok(None) };
    let mut value = vec![0; len];
    let len = rustix::fs::fgetxattr(file, name, &mut value[..])?;
    value.truncate(len);
    Ok(Some(value))
}

/// `None` for a file system without attributes, or an attribute that went away.
fn supported(len: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    match len {
        Ok(len) => Ok(Some(len)),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn attributes_come_over_to_the_nanosecond() {
        let file = tempfile::tempfile().unwrap();
        let attrs = Attrs { mode: 0o2640, mtime: (-7, 999_999_999), ..Attrs::of(&file.metadata().unwrap()) };
        attrs.apply(&file).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec()), (0o2640, -7, 999_999_999));
    }

    #[test]
    fn running_as_somebody_else_is_not_carried_over() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let meta = file.path().metadata().unwrap();
        let other = Attrs { mode: 0o6755, uid: meta.uid() + 1, gid: meta.gid() + 1, mtime: (0, 0) };
        assert_eq!(other.mode_for(&meta), 0o755);
        let same_group = Attrs { gid: meta.gid(), ..other };
        assert_eq!(same_group.mode_for(&meta), 0o2755);
        let same = Attrs { uid: meta.uid(), ..same_group };
        assert_eq!(same.mode_for(&meta), 0o6755);
    }

    #[test]
    fn a_link_gets_times_and_what_it_names_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let before = Attrs::of(&file.metadata().unwrap());
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let attrs = Attrs { mode: 0o777, mtime: (12, 34), ..before };
        attrs.apply_at(&link).unwrap();
        assert_eq!(link.symlink_metadata().map(|meta| (meta.mtime(), meta.mtime_nsec())).unwrap(), (12, 34));
        let after = Attrs::of(&file.metadata().unwrap());
        assert_eq!((after.mode, after.mtime), (before.mode, before.mtime));
    }

    #[test]
    fn stamps_tell_contents_size_and_name_apart() {
        let dir = tempfile::tempdir().unwrap();
        let stamp = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).unwrap();
            Stamp::of(&dir.path().join(name).metadata().unwrap())
        };
        let first = stamp("a", "x");
        assert_ne!(stamp("b", "x"), first);
        assert_ne!(stamp("a", "xy"), first);
        assert_eq!(Stamp::of(&dir.path().join("b").metadata().unwrap()).size, 1);
    }
}

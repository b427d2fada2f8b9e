//! File metadata: mode, owner, times, extended attributes.

use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use crate::nofollow;

/// Seconds since 1970 and nanoseconds, as in `struct timespec`.
pub type UnixTime = (i64, i64);

/// Formats seconds with nine decimals. The decimals count upwards from the second, also before 1970.
pub(crate) fn format_time((secs, nanos): UnixTime) -> String {
    format!("{secs}.{nanos:09}")
}

/// Parses what [`format_time`] wrote.
pub(crate) fn parse_time(text: &str) -> Option<UnixTime> {
    let (secs, nanos) = text.split_once('.')?;
    let nanos =
        (nanos.len() == 9).then(|| nanos.parse().ok())?.filter(|nanos| (0..1_000_000_000).contains(nanos))?;
    Some((secs.parse().ok()?, nanos))
}

/// Attributes that a copy preserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attrs {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: UnixTime,
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

    /// Sets these attributes on an open file or directory.
    pub(crate) fn apply(&self, file: &File) -> io::Result<()> {
        self.apply_over(file, file.metadata()?)
    }

    /// Like [`Attrs::apply`] with known metadata `made`; skips changes that are not needed.
    pub(crate) fn apply_over(&self, file: &File, mut made: Metadata) -> io::Result<()> {
        // Nobody else can give files away, and would ask for it in vain with each.
        if rustix::process::geteuid().is_root() && (made.uid(), made.gid()) != (self.uid, self.gid) {
            // Before the mode: a change of owner clears set-id bits.
            tolerate(rustix::fs::fchown(file, Some(self.owner()), Some(self.group())))?;
            // The change has cleared bits of the mode.
            made = file.metadata()?;
        }
        let mode = self.mode_for(&made);
        if made.mode() & 0o7777 != mode {
            rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
        }
        rustix::fs::futimens(file, &self.times())?;
        Ok(())
    }

    /// Sets these attributes on a link or pipe, without following or opening it.
    pub(crate) fn apply_at(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = nofollow::enter(path)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Some(self.owner()), Some(self.group()));
            tolerate(rustix::fs::chownat(&dir, name, uid, gid, flags))?;
        }
        // Not earlier: the change of owner clears set-id bits.
        let made = nofollow::lstat(path)?;
        // Links have no mode of their own.
        if !made.is_symlink() {
            nofollow::set_mode(path, self.mode_for(&made))?;
        }
        rustix::fs::utimensat(&dir, name, &self.times(), flags)?;
        Ok(())
    }

    /// Sets the modification time of an existing directory, which the copy has changed. Ignores a directory of another
    /// owner.
    pub(crate) fn set_mtime_at(&self, path: &Path) -> io::Result<()> {
        let there = Attrs::of(&nofollow::lstat(path)?);
        if there.mtime == self.mtime {
            return Ok(());
        }
        let (dir, name) = nofollow::enter(path)?;
        match rustix::fs::utimensat(&dir, name, &self.times(), AtFlags::SYMLINK_NOFOLLOW) {
            // It may be written to by its group, but only its owner may set times: no reason to fail the whole copy.
            Err(Errno::PERM | Errno::ACCESS | Errno::ROFS) => Ok(()),
            dated => Ok(dated?),
        }
    }

    /// Returns the mode of the copy. Set-id bits are kept only if owner and group are the same.
    fn mode_for(&self, copy: &Metadata) -> u32 {
        let suid = if copy.uid() == self.uid { 0 } else { 0o4000 };
        // On a directory the bit gives no rights: it hands the group down to what is made there.
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

/// Ignores that the target cannot store owners: a user namespace, or a file system without them.
fn tolerate(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::OVERFLOW) => Ok(()),
        other => other,
    }
}

/// Identity and last change of an inode. Every change except of the access time changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeVersion {
    /// Inode number.
    pub ino: u64,
    /// Time of the last change.
    pub ctime: UnixTime,
}

impl InodeVersion {
    pub(crate) fn of(meta: &Metadata) -> InodeVersion {
        InodeVersion { ino: meta.ino(), ctime: (meta.ctime(), meta.ctime_nsec()) }
    }

    pub(crate) fn parse(text: &str) -> Option<InodeVersion> {
        let (ino, ctime) = text.split_once('@')?;
        Some(InodeVersion { ino: ino.parse().ok()?, ctime: parse_time(ctime)? })
    }
}

impl std::fmt::Display for InodeVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.ino, format_time(self.ctime))
    }
}

/// Metadata that shows whether a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetadataStamp {
    dev: u64,
    pub(crate) version: InodeVersion,
    pub(crate) size: u64,
    pub(crate) attrs: Attrs,
}

impl MetadataStamp {
    pub(crate) fn of(meta: &Metadata) -> MetadataStamp {
        MetadataStamp {
            dev: meta.dev(),
            version: InodeVersion::of(meta),
            size: meta.size(),
            attrs: Attrs::of(meta),
        }
    }
}

/// Prefix of attributes that the formation generates; they describe placement, not content.
const OWN_ATTRIBUTES: &[u8] = b"user.bivouac.";

/// Prefix of attributes with access control lists.
const ACCESS_LISTS: &[u8] = b"system.posix_acl_";

/// An extended attribute: name and value.
pub(crate) type Xattr = (CString, Vec<u8>);

/// Copies `user.` attributes and access control lists. Returns the names that the target does not support.
pub(crate) fn copy_xattrs(from: &File, to: &File) -> io::Result<Vec<String>> {
    set_xattrs(to, &xattrs_of(from)?)
}

/// Returns `user.` attributes and access lists.
pub(crate) fn xattrs_of(from: &File) -> io::Result<Vec<Xattr>> {
    let mut found = Vec::new();
    for name in kept_xattrs(from)? {
        let value = xattr(from, &name)?;
        found.extend(value.map(|value| (name, value)));
    }
    Ok(found)
}

/// Sets extended attributes. Returns the names that the target does not support.
pub(crate) fn set_xattrs(to: &File, xattrs: &[Xattr]) -> io::Result<Vec<String>> {
    let mut refused = Vec::new();
    for (name, value) in xattrs {
        match rustix::fs::fsetxattr(to, name.as_c_str(), value, XattrFlags::empty()) {
            Ok(()) => {}
            // Reported as skipped attributes; the content is copied all the same.
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {
                refused.push(name.to_string_lossy().into_owned());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(refused)
}

/// Returns whether a file has attributes that are copied.
pub(crate) fn has_xattrs(file: &File) -> io::Result<bool> {
    kept_xattrs(file).map(|names| !names.is_empty())
}

/// Returns whether attributes of this name are copied.
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
            MetadataStamp::of(&dir.path().join(name).metadata().unwrap())
        };
        let first = stamp("a", "x");
        assert_ne!(stamp("b", "x"), first);
        assert_ne!(stamp("a", "xy"), first);
        assert_eq!(MetadataStamp::of(&dir.path().join("b").metadata().unwrap()).size, 1);
    }
}

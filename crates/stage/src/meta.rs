//! What a file is besides its contents: mode, owner, times, attributes.

use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

/// What is carried over to a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attrs {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: (i64, i64),
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
        if rustix::process::geteuid().is_root() {
            tolerate(rustix::fs::fchown(file, Some(self.owner()), Some(self.group())))?;
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(self.mode_for(&file.metadata()?)))?;
        rustix::fs::futimens(file, &self.times())?;
        Ok(())
    }

    /// Gives a link or pipe these attributes, without following or opening it.
    pub(crate) fn apply_at(&self, path: &Path) -> io::Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Some(self.owner()), Some(self.group()));
            tolerate(rustix::fs::chownat(CWD, path, uid, gid, flags))?;
        }
        let made = path.symlink_metadata()?;
        if !made.is_symlink() {
            rustix::fs::chmod(path, Mode::from_raw_mode(self.mode_for(&made)))?;
        }
        rustix::fs::utimensat(CWD, path, &self.times(), flags)?;
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

/// What tells whether a file changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    dev: u64,
    ino: u64,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(meta: &Metadata) -> Stamp {
        Stamp {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// Attributes that the formation makes itself; they describe a place, not a file.
const OWN_ATTRIBUTES: &[u8] = b"user.bivouac.";

/// Copies `user.` attributes. Returns the names of those that the target does not take.
pub(crate) fn copy_xattrs(from: &File, to: &File) -> io::Result<Vec<String>> {
    let mut refused = Vec::new();
    for name in user_xattrs(from)? {
        let Some(value) = xattr(from, &name)? else { continue };
        match rustix::fs::fsetxattr(to, name.as_c_str(), &value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {
                refused.push(name.to_string_lossy().into_owned());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(refused)
}

fn user_xattrs(file: &File) -> io::Result<Vec<CString>> {
    let mut list = Vec::new();
    let Some(len) = supported(rustix::fs::flistxattr(file, &mut list[..]))? else { return Ok(Vec::new()) };
    list.resize(len, 0);
    let len = rustix::fs::flistxattr(file, &mut list[..])?;
    list.truncate(len);
    let names = list.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    let ours = |name: &&CStr| name.to_bytes().starts_with(OWN_ATTRIBUTES);
    let users = names.filter(|name| name.to_bytes().starts_with(b"user.") && !ours(name));
    Ok(users.map(CStr::to_owned).collect())
}

fn xattr(file: &File, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = Vec::new();
    let Some(len) = supported(rustix::fs::fgetxattr(file, name, &mut value[..]))? else { return Ok(None) };
    value.resize(len, 0);
    let len = rustix::fs::fgetxattr(file, name, &mut value[..])?;
    value.truncate(len);
    Ok(Some(value))
}

/// `None` for a file system without attributes, or an attribute that went away.
fn supported(len: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    match len {
        Ok(0) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODATA) => Ok(len.ok()),
        Ok(len) => Ok(Some(len)),
        Err(error) => Err(error.into()),
    }
}

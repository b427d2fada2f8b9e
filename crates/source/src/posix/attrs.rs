//! Attributes of files of a tree.

use std::os::fd::{AsFd, OwnedFd};

use bivouac_types::{Timestamp, mode};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Stat, Statx, StatxFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::{Errno, Result};

use crate::{Attrs, Meta, Version};

/// Room for a list of names of extended attributes as most files have them, in bytes.
const XATTR_LIST_FIRST: usize = 256;
/// Longest list of names of extended attributes that the kernel gives.
const XATTR_LIST_MAX: usize = 1 << 16;
/// Longest value of an extended attribute.
const XATTR_VALUE_MAX: usize = 1 << 16;
/// Extended attributes that belong to users; all others are the file system's own.
const USER: &[u8] = b"user.";

/// What an entry of a directory is.
pub fn meta_of(dir: &OwnedFd, name: &[u8]) -> Result<Meta> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = stat.st_mode & mode::TYPE;
    let target = match kind {
        mode::LINK => rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes(),
        _ => Vec::new(),
    };
    let attrs = Attrs {
        perm: stat.st_mode & mode::PERM,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
        atime: Timestamp { secs: stat.st_atime, nanos: stat.st_atime_nsec as u32 },
        xattrs: xattrs_of(dir, name, kind),
    };
    let version = version_of(&stat);
    Ok(Meta { kind, attrs, version, links: stat.st_nlink, target, rdev: stat.st_rdev })
}

/// How an entry of a directory looks, if it is there. Of a file that is all, and it need not be opened for it.
pub fn version_at(dir: &OwnedFd, name: &[u8]) -> Result<Option<Version>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        stat => Ok(Some(version_of(&stat?))),
    }
}

/// How a file looks.
pub fn version_of(stat: &Stat) -> Version {
    Version {
        size: if stat.st_mode & mode::TYPE == mode::DIR { 0 } else { stat.st_size.unsigned_abs() },
        mtime: Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
        tag: format!("{:x}", stat.st_ino),
    }
}

/// Extended attributes of users; none where they cannot be read.
fn xattrs_of(dir: &OwnedFd, name: &[u8], kind: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
    if !matches!(kind, mode::FILE | mode::DIR) {
        return Vec::new();
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).and_then(|file| xattrs(&file)).unwrap_or_default()
}

fn xattrs(file: &OwnedFd) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; XATTR_LIST_FIRST];
    let len = match rustix::fs::flistxattr(file, &mut names[..]) {
        Err(Errno::RANGE) => {
            names.resize(XATTR_LIST_MAX, 0);
            rustix::fs::flistxattr(file, &mut names[..])?
        }
        len => len?,
    };
    names.truncate(len);
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(USER)) {
        let mut value = vec![0; XATTR_VALUE_MAX];
        let len = rustix::fs::fgetxattr(file, name, &mut value[..])?;
        value.truncate(len);
        found.push((name.to_vec(), value));
    }
    found.sort();
    Ok(found)
}

/// Gives an open file attributes; sentences for those that it does not take. The times come last, since everything
/// else changes them.
pub fn give(file: &OwnedFd, attrs: &Attrs, object: &str) -> Result<Vec<String>> {
    let mut lost = Vec::new();
    let stat = rustix::fs::fstat(file)?;
    let is_owned = (stat.st_uid, stat.st_gid) == (attrs.uid, attrs.gid);
    if !is_owned {
        let owner = (Some(Uid::from_raw(attrs.uid)), Some(Gid::from_raw(attrs.gid)));
        match rustix::fs::fchown(file, owner.0, owner.1) {
            Err(Errno::PERM) => {
                lost.push(format!("{object}: owner {}:{} needs privileges", attrs.uid, attrs.gid))
            }
            outcome => outcome?,
        }
    }
    // A new owner may have taken bits away.
    if !is_owned || stat.st_mode & mode::PERM != attrs.perm {
        rustix::fs::fchmod(file, Mode::from_raw_mode(attrs.perm))?;
    }
    give_xattrs(file, attrs, object, &mut lost)?;
    rustix::fs::futimens(file, &times(attrs))?;
    Ok(lost)
}

/// The same for a file that nobody else has given anything, and how it looks then. It is not asked for how it looks before
/// the times are given, because the answer to those says it; until then what was known when it was made has to do.
pub fn give_new(file: &OwnedFd, attrs: &Attrs, object: &str) -> Result<(Vec<String>, Version)> {
    let (as_known, wanted) = (AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS);
    let known = rustix::fs::statx(file, "", as_known, wanted);
    let is_owned = |stat: &Statx| (stat.stx_uid, stat.stx_gid) == (attrs.uid, attrs.gid);
    if known.is_ok_and(|stat| is_owned(&stat) && u32::from(stat.stx_mode) & mode::PERM != attrs.perm) {
        rustix::fs::fchmod(file, Mode::from_raw_mode(attrs.perm))?;
    }
    rustix::fs::futimens(file, &times(attrs))?;
    let stat = rustix::fs::fstat(file)?;
    if is_given(&stat, attrs) && attrs.xattrs.is_empty() {
        return Ok((Vec::new(), version_of(&stat)));
    }
    let lost = give(file, attrs, object)?;
    Ok((lost, version_of(&rustix::fs::fstat(file)?)))
}

/// Whether owner and permissions are as they are to be.
pub fn is_given(stat: &Stat, attrs: &Attrs) -> bool {
    (stat.st_uid, stat.st_gid, stat.st_mode & mode::PERM) == (attrs.uid, attrs.gid, attrs.perm)
}

/// Gives a directory times, known by a descriptor that it need not be listed for.
pub fn give_times(place: &OwnedFd, attrs: &Attrs) -> Result<()> {
    match rustix::fs::utimensat(place, "", &times(attrs), AtFlags::EMPTY_PATH) {
        // Before Linux 5.8.
        Err(Errno::INVAL) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(place, ".", flags, Mode::empty())?;
            rustix::fs::futimens(dir, &times(attrs))
        }
        given => given,
    }
}

fn give_xattrs(file: &OwnedFd, attrs: &Attrs, object: &str, lost: &mut Vec<String>) -> Result<()> {
    let old = xattrs(file).unwrap_or_default();
    for (name, value) in attrs.xattrs.iter().filter(|new| !old.contains(new)) {
        if let Err(error) = rustix::fs::fsetxattr(file.as_fd(), &name[..], value, XattrFlags::empty()) {
            let name = String::from_utf8_lossy(name);
            lost.push(format!("{object}: extended attribute {name}: {error}"));
        }
    }
    for (name, _) in old.iter().filter(|(name, _)| !attrs.xattrs.iter().any(|new| new.0 == *name)) {
        rustix::fs::fremovexattr(file, &name[..])?;
    }
    Ok(())
}

/// The times of attributes.
pub fn times(attrs: &Attrs) -> Timestamps {
    let spec = |time: Timestamp| Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() };
    Timestamps { last_access: spec(attrs.atime), last_modification: spec(attrs.mtime) }
}

//! Attributes of files in a directory tree.

use std::os::fd::{AsFd, OwnedFd};

use bivouac_types::{Timestamp, mode};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Stat, Statx, StatxFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::{Errno, Result};

use crate::{Attrs, Meta, Version};

/// Initial size of the buffer for names of extended attributes, in bytes; it suffices for most files.
const XATTR_LIST_FIRST: usize = 256;
/// Upper limit of the kernel for the list of names of extended attributes.
const XATTR_LIST_MAX: usize = 1 << 16;
/// Upper limit of the kernel for the value of an extended attribute.
const XATTR_VALUE_MAX: usize = 1 << 16;
/// Prefix of users' extended attributes; all others belong to the file system.
const USER: &[u8] = b"user.";

/// Returns the metadata of a directory entry.
pub fn meta_of(dir: &OwnedFd, name: &[u8]) -> Result<Meta> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = stat.st_mode & mode::TYPE;
    let target = match kind {
        mode::LINK => rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes(),
        _ => Vec::new(),
    };
    let xattrs = xattrs_of(dir, name, kind);
    let hides_xattrs = xattrs.is_err();
    let attrs = Attrs {
        perm: stat.st_mode & mode::PERM,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
        atime: Timestamp { secs: stat.st_atime, nanos: stat.st_atime_nsec as u32 },
        xattrs: xattrs.unwrap_or_default(),
    };
    let version = version_of(&stat);
    Ok(Meta { kind, attrs, version, links: stat.st_nlink, target, rdev: stat.st_rdev, hides_xattrs })
}

/// Returns the version of a directory entry, `None` if it does not exist. One `fstatat`, without an open.
pub fn version_at(dir: &OwnedFd, name: &[u8]) -> Result<Option<Version>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        stat => Ok(Some(version_of(&stat?))),
    }
}

/// Returns the version that a `stat` result stands for.
pub fn version_of(stat: &Stat) -> Version {
    Version {
        // The size of a directory depends on its file system, and changes with its entries.
        size: if stat.st_mode & mode::TYPE == mode::DIR { 0 } else { stat.st_size.unsigned_abs() },
        mtime: Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
        tag: format!("{:x}", stat.st_ino),
    }
}

/// Returns the extended attributes of users.
fn xattrs_of(dir: &OwnedFd, name: &[u8], kind: u32) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    if !matches!(kind, mode::FILE | mode::DIR) {
        return Ok(Vec::new());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).and_then(|file| xattrs(&file))
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
        // One buffer of the maximum size instead of a size query, which could be outdated when the value is read.
        let mut value = vec![0; XATTR_VALUE_MAX];
        match rustix::fs::fgetxattr(file, name, &mut value[..]) {
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            len => {
                value.truncate(len?);
                found.push((name.to_vec(), value));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Sets the attributes of an open file, and returns messages for those that are not supported. The times are set last,
/// because every other change modifies them.
pub fn apply(file: &OwnedFd, attrs: &Attrs, object: &str) -> Result<Vec<String>> {
    let mut lost = Vec::new();
    let stat = rustix::fs::fstat(file)?;
    let is_owned = (stat.st_uid, stat.st_gid) == (attrs.uid, attrs.gid);
    let mut perm = attrs.perm;
    if !is_owned {
        let owner = (Some(Uid::from_raw(attrs.uid)), Some(Gid::from_raw(attrs.gid)));
        match rustix::fs::fchown(file, owner.0, owner.1) {
            // Only root can give files away, and only to owners of its user namespace (`EINVAL` otherwise). All else is
            // flushed, and this is reported.
            Err(Errno::PERM | Errno::INVAL) => {
                lost.push(format!("{object}: owner {}:{} needs privileges", attrs.uid, attrs.gid));
                // With these bits, whoever runs the file would act as this process's user or group.
                perm &= !set_id_of_others(&stat, attrs);
                if perm != attrs.perm {
                    lost.push(format!("{object}: set-id bits are not kept without the owner"));
                }
            }
            outcome => outcome?,
        }
    }
    // The kernel clears set-id bits when the owner changes.
    if !is_owned || stat.st_mode & mode::PERM != perm {
        rustix::fs::fchmod(file, Mode::from_raw_mode(perm))?;
    }
    apply_xattrs(file, attrs, object, &mut lost)?;
    rustix::fs::futimens(file, &times(attrs))?;
    Ok(lost)
}

/// Returns the set-id bits that would give rights of another owner or group than `attrs` name.
fn set_id_of_others(stat: &Stat, attrs: &Attrs) -> u32 {
    let suid = if stat.st_uid == attrs.uid { 0 } else { mode::SETUID };
    // On a directory the bit gives no rights: it hands the group down to what is made there.
    let is_dir = stat.st_mode & mode::TYPE == mode::DIR;
    let sgid = if is_dir || stat.st_gid == attrs.gid { 0 } else { mode::SETGID };
    suid | sgid
}

/// Like [`apply`], for a file that no other process has changed since it was created; returns its version, too. A
/// synchronous `stat` before the times are set would cost a round trip, so cached attributes are used until then.
pub fn apply_new(file: &OwnedFd, attrs: &Attrs, object: &str) -> Result<(Vec<String>, Version)> {
    let (as_known, wanted) = (AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS);
    let known = rustix::fs::statx(file, "", as_known, wanted);
    let is_owned = |stat: &Statx| (stat.stx_uid, stat.stx_gid) == (attrs.uid, attrs.gid);
    if known.is_ok_and(|stat| is_owned(&stat) && u32::from(stat.stx_mode) & mode::PERM != attrs.perm) {
        rustix::fs::fchmod(file, Mode::from_raw_mode(attrs.perm))?;
    }
    rustix::fs::futimens(file, &times(attrs))?;
    let stat = rustix::fs::fstat(file)?;
    if has_owner_and_mode(&stat, attrs) && attrs.xattrs.is_empty() {
        return Ok((Vec::new(), version_of(&stat)));
    }
    let lost = apply(file, attrs, object)?;
    Ok((lost, version_of(&rustix::fs::fstat(file)?)))
}

/// Returns whether owner and permissions equal those of `attrs`.
pub fn has_owner_and_mode(stat: &Stat, attrs: &Attrs) -> bool {
    (stat.st_uid, stat.st_gid, stat.st_mode & mode::PERM) == (attrs.uid, attrs.gid, attrs.perm)
}

/// Sets the times of a directory through an `O_PATH` descriptor, which needs no permission to list it.
pub fn set_dir_times(place: &OwnedFd, attrs: &Attrs) -> Result<()> {
    match rustix::fs::utimensat(place, "", &times(attrs), AtFlags::EMPTY_PATH) {
        // Linux before 5.8 refuses EMPTY_PATH here.
        Err(Errno::INVAL) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(place, ".", flags, Mode::empty())?;
            rustix::fs::futimens(dir, &times(attrs))
        }
        given => given,
    }
}

fn apply_xattrs(file: &OwnedFd, attrs: &Attrs, object: &str, lost: &mut Vec<String>) -> Result<()> {
    // Unsupported extended attributes are an empty set: those to be set are reported one by one below.
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

/// Converts the times of `attrs`.
pub fn times(attrs: &Attrs) -> Timestamps {
    let spec = |time: Timestamp| Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() };
    Timestamps { last_access: spec(attrs.atime), last_modification: spec(attrs.mtime) }
}

//! What is done by name.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use std::ffi::{c_char, c_int};

use bivouac_client::{Attr, NewInode, ParentAndName, SetAttr};
use bivouac_types::{Errno, FsError, FsResult, Timestamp, mode};

use crate::connection::Formation;
use crate::failure::answer;
use crate::flags::OpenFlags;
use crate::pointers;

/// Unit of `st_blocks`, in bytes.
const BLOCK: u64 = 512;
/// The block size that `stat` reports, in bytes; the same as a mount reports.
const BLOCK_SIZE: libc::blksize_t = 65_536;

/// Returns the attributes as `stat` shows them.
pub fn stat_of(attr: &Attr) -> libc::stat {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_ino = attr.ino.0;
    stat.st_mode = attr.mode;
    stat.st_nlink = attr.nlink.into();
    (stat.st_uid, stat.st_gid) = (attr.uid, attr.gid);
    stat.st_rdev = attr.rdev.into();
    stat.st_size = attr.size.try_into().unwrap_or(i64::MAX);
    stat.st_blksize = BLOCK_SIZE;
    stat.st_blocks = attr.size.div_ceil(BLOCK).try_into().unwrap_or(i64::MAX);
    let time = |time: Timestamp| (time.secs, i64::from(time.nanos));
    (stat.st_atime, stat.st_atime_nsec) = time(attr.atime);
    (stat.st_mtime, stat.st_mtime_nsec) = time(attr.mtime);
    (stat.st_ctime, stat.st_ctime_nsec) = time(attr.ctime);
    stat
}

unsafe fn stat(
    formation: *mut Formation,
    path: *const c_char,
    attributes: *mut libc::stat,
    follow: bool,
) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object and a text.
        let (formation, path) =
            unsafe { (pointers::object(formation, "formation")?, pointers::text(path, "path")?) };
        let stat = stat_of(&formation.0.client()?.find(path, follow)?);
        // SAFETY: the header asks for room for one.
        unsafe { pointers::place(attributes, "attributes", stat)? };
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_stat(
    formation: *mut Formation,
    path: *const c_char,
    attributes: *mut libc::stat,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { stat(formation, path, attributes, true) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_lstat(
    formation: *mut Formation,
    path: *const c_char,
    attributes: *mut libc::stat,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { stat(formation, path, attributes, false) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_truncate(
    formation: *mut Formation,
    path: *const c_char,
    size: libc::off_t,
) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object and a text.
        let (formation, path) =
            unsafe { (pointers::object(formation, "formation")?, pointers::text(path, "path")?) };
        let size = u64::try_from(size).map_err(|_| FsError::with(Errno::EINVAL, "size is negative"))?;
        let client = formation.0.client()?;
        let (attr, change) = (client.find(path, true)?, formation.0.change()?);
        if !attr.is_file() {
            return Err(if attr.is_dir() { Errno::EISDIR } else { Errno::EINVAL }.into());
        }
        OpenFlags::from_bits(libc::O_WRONLY)?.check_for(&attr, &change.ctx)?;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        client.setattr(&change.ctx, attr.ino, &set).map(|_| 0)
    })
}

/// Returns the place of a name that is to be made, removed or moved: not the root, not what `..` leads to.
fn named(formation: &Formation, path: &[u8]) -> FsResult<ParentAndName> {
    let ends_in_dots = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
    if matches!(ends_in_dots, Some(b"." | b"..")) {
        return Err(FsError::with(Errno::EINVAL, "the path ends in dots"));
    }
    // A directory may be named with a slash at its end; the place of a name has none.
    let path = path.strip_suffix(b"/").filter(|rest| !rest.is_empty()).unwrap_or(path);
    let place = formation.0.client()?.place(path, false)?;
    if place.name.is_empty() { Err(FsError::with(Errno::EBUSY, "it is the root")) } else { Ok(place) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_mkdir(
    formation: *mut Formation,
    path: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object and a text.
        let (formation, path) =
            unsafe { (pointers::object(formation, "formation")?, pointers::text(path, "path")?) };
        // mkdir(2) of what is there is EEXIST, also of the root.
        let place = named(formation, path).map_err(|error| match error.errno() {
            Errno::EBUSY => Errno::EEXIST.into(),
            _ => error,
        })?;
        let new = NewInode { mode: mode::DIR | mode & mode::PERM, rdev: 0, target: &[] };
        let change = formation.0.change()?;
        formation.0.client()?.mknod(&change.ctx, place.parent, &place.name, &new).map(|_| 0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_rmdir(formation: *mut Formation, path: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object and a text.
        let (formation, path) =
            unsafe { (pointers::object(formation, "formation")?, pointers::text(path, "path")?) };
        let (place, change) = (named(formation, path)?, formation.0.change()?);
        formation.0.client()?.rmdir(&change.ctx, place.parent, &place.name).map(|()| 0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_unlink(formation: *mut Formation, path: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object and a text.
        let (formation, path) =
            unsafe { (pointers::object(formation, "formation")?, pointers::text(path, "path")?) };
        if path.ends_with(b"/") {
            return Err(Errno::ENOTDIR.into());
        }
        let (place, change) = (named(formation, path)?, formation.0.change()?);
        formation.0.client()?.unlink(&change.ctx, place.parent, &place.name).map(|()| 0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_rename(
    formation: *mut Formation,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object and texts.
        let (formation, from, to) = unsafe {
            (
                pointers::object(formation, "formation")?,
                pointers::text(from, "from")?,
                pointers::text(to, "to")?,
            )
        };
        let client = formation.0.client()?;
        let is_dirs = [from, to].into_iter().any(|path| path.ends_with(b"/"));
        let (from, to) = (named(formation, from)?, named(formation, to)?);
        // A path with a slash at its end is a directory's, which the names in the request do not say.
        if is_dirs && !client.lookup(from.parent, &from.name)?.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let change = formation.0.change()?;
        client.rename(&change.ctx, from.parent, &from.name, to.parent, &to.name, 0).map(|()| 0)
    })
}

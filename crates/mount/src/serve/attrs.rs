//! Attributes of inodes and of the file system.

use std::time::Instant;

use bivouac_types::{Errno, FsError, FsResult, Ino, SetAttr, SetTime, Timestamp, mode};

use super::{Answer, Call};
use crate::abi::flags::{ACCESS_EXECUTE, setattr as valid};
use crate::abi::{AccessIn, SetAttrIn, Validity};
use crate::caller;
use crate::fs::FileSystem;
use crate::opens::Handle;

/// Serves GETATTR.
pub fn getattr<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    let (attr, validity) = match call.session.fs.getattr_cached(call.ino()) {
        Ok(attr) => (attr, call.attr_validity(&attr)),
        Err(error) if error.errno() == Errno::ENOENT => {
            // Its name may have been overtaken twice: see `looked_up`.
            let found = call.session.looked_up.gone(call.header.pid, call.ino(), Instant::now());
            (found.ok_or(error)?, Validity::default())
        }
        Err(error) => return Err(error),
    };
    call.out.attr_out(&attr, validity);
    Ok(Answer::Reply)
}

/// Serves ACCESS, from mounts of a root that may do everything, where only programs must be marked as such. Other
/// kernels check permissions themselves.
pub fn access<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let wants_to_execute = AccessIn::decode(&mut call.input)?.mask & ACCESS_EXECUTE != 0;
    if wants_to_execute {
        let attr = call.session.fs.getattr_cached(call.ino())?;
        if attr.is_file() && attr.mode & mode::EXECUTE == 0 {
            return Err(Errno::EACCES.into());
        }
    }
    Ok(Answer::Reply)
}

/// Serves SETATTR.
pub fn setattr<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = SetAttrIn::decode(&mut call.input)?;
    let mut set = changes(&request);
    let failed = call.session.failed_writes.take(call.header.pid, call.ino());
    // Only with a handle: the kernel's own cut has one, `truncate` of a path has none.
    if let (Some(size), Some(known), true) = (set.size, failed, request.valid & valid::FH != 0) {
        match known {
            Some(known) if size >= known => return resize_uncut(call, size, known),
            Some(_) => {}
            None => {
                let ino = call.ino();
                let text =
                    format!("{ino} is not cut: its size is not known after a write that failed; try again");
                return Err(FsError::with(Errno::EIO, text));
            }
        }
    }
    let request_kills = set.kill_suid && set.mode.is_none();
    // To ask for the mode costs a request: not where a handle shows that the file has no such bits.
    let may_have_set_id = request.valid & valid::FH == 0
        || set.size.is_none()
        || call.session.opens.may_have_set_id(Handle(request.fh)).is_some();
    // The home knows no groups of the caller, on which it depends whether set-group-id stays.
    if request_kills && may_have_set_id {
        set.mode = mode_of_a_stranger(&call, call.ino())?;
    }
    let attr = call.session.fs.setattr(&call.ctx(), call.ino(), &set)?;
    if set.mode.is_some_and(|mode| mode & (mode::SETUID | mode::SETGID) != 0) {
        // For all files: which handles are of this one is not looked for, as bits are set seldom.
        call.session.opens.may_have_gained_set_id();
    }
    let validity = call.attr_validity(&attr);
    call.out.attr_out(&attr, validity);
    Ok(Answer::Reply)
}

/// Answers a change of size that may be the kernel's cut after a write that failed: it cuts nothing, see
/// [`crate::failed_writes`]. A program may want the file longer.
fn resize_uncut<F: FileSystem>(call: Call<'_, F>, size: u64, known: u64) -> FsResult<Answer> {
    if size > known && call.session.fs.getattr_cached(call.ino())?.size < size {
        // Others may make the file longer at the same time, which a change of the size would cut again.
        call.session.fs.fallocate(&call.ctx(), call.ino(), 0, size - 1, 1)?;
    }
    getattr(call)
}

/// Returns the mode that a change of owner, group or content leaves where it depends on the caller: set-group-id
/// without execution by the group stays for members of that group, and for root.
pub fn mode_of_a_stranger<F: FileSystem>(call: &Call<'_, F>, ino: Ino) -> FsResult<Option<u32>> {
    if call.header.uid == 0 {
        return Ok(None);
    }
    let attr = call.session.fs.getattr_cached(ino)?;
    let is_marked = attr.mode & (mode::SETGID | mode::XGRP) == mode::SETGID && !attr.is_dir();
    if !is_marked || attr.gid == call.header.gid || caller::groups(call.header.pid).contains(&attr.gid) {
        return Ok(None);
    }
    Ok(Some(attr.mode & mode::PERM & !(mode::SETUID | mode::SETGID)))
}

/// Serves STATFS.
pub fn statfs<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    let fs = call.session.fs.statfs(call.ino())?;
    call.out.statfs_out(&fs);
    Ok(Answer::Reply)
}

fn changes(request: &SetAttrIn) -> SetAttr {
    let given = |flag: u32| request.valid & flag != 0;
    let time = |flag, now, secs: u64, nanos| {
        let at = SetTime::At(timestamp(secs, nanos));
        given(flag).then_some(if given(now) { SetTime::Now } else { at })
    };
    SetAttr {
        mode: given(valid::MODE).then_some(request.mode & mode::PERM),
        uid: given(valid::UID).then_some(request.uid),
        gid: given(valid::GID).then_some(request.gid),
        size: given(valid::SIZE).then_some(request.size),
        atime: time(valid::ATIME, valid::ATIME_NOW, request.atime, request.atimensec),
        mtime: time(valid::MTIME, valid::MTIME_NOW, request.mtime, request.mtimensec),
        ctime: given(valid::CTIME).then_some(timestamp(request.ctime, request.ctimensec)),
        kill_suid: given(valid::KILL_SUIDGID | valid::UID | valid::GID),
    }
}

fn timestamp(secs: u64, nanos: u32) -> Timestamp {
    Timestamp { secs: secs.cast_signed(), nanos }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Reader;
    use proptest::prelude::*;

    fn request(valid: u32) -> SetAttrIn {
        let blank = SetAttrIn::decode(&mut Reader::new(&[0; 88])).unwrap();
        SetAttrIn {
            valid,
            size: 10,
            mode: 0o104_755,
            uid: 1,
            gid: 2,
            atime: 3,
            mtime: u64::MAX,
            mtimensec: 9,
            ..blank
        }
    }

    #[test]
    fn only_what_is_marked_is_changed() {
        assert_eq!(changes(&request(0)), SetAttr::default());
        let set = changes(&request(valid::MODE | valid::SIZE | valid::MTIME));
        let mtime = Some(SetTime::At(Timestamp { secs: -1, nanos: 9 }));
        assert_eq!(set, SetAttr { mode: Some(0o4755), size: Some(10), mtime, ..SetAttr::default() });
    }

    #[test]
    fn now_is_left_to_the_home() {
        let set = changes(&request(valid::ATIME | valid::ATIME_NOW | valid::MTIME_NOW));
        assert_eq!((set.atime, set.mtime), (Some(SetTime::Now), None));
    }

    #[test]
    fn a_new_owner_drops_set_id_bits() {
        assert!(changes(&request(valid::UID)).kill_suid && changes(&request(valid::GID)).kill_suid);
        assert!(changes(&request(valid::SIZE | valid::KILL_SUIDGID)).kill_suid);
        assert!(!changes(&request(valid::SIZE | valid::MODE)).kill_suid);
    }

    proptest! {
        #[test]
        fn unknown_bits_change_nothing(valid in any::<u32>()) {
            prop_assert_eq!(changes(&request(valid)), changes(&request(valid & 0xfff)));
        }
    }
}

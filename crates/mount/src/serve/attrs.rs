//! Attributes of inodes and of the file system.

use std::time::Instant;

use bivouac_types::{Errno, FsResult, SetAttr, SetTime, Timestamp, mode};

use super::{Answer, Call};
use crate::abi::flags::{ACCESS_EXECUTE, setattr as valid};
use crate::abi::{AccessIn, SetAttrIn, Validity};
use crate::caller;
use crate::fs::FileSystem;

/// GETATTR.
pub fn getattr<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    let (attr, validity) = match call.session.fs.glance(call.ino()) {
        Ok(attr) => (attr, call.attr_validity(&attr)),
        Err(error) if error.errno() == Errno::ENOENT => {
            let found = call.session.looked_up.gone(call.header.pid, call.ino(), Instant::now());
            (found.ok_or(error)?, Validity::default())
        }
        Err(error) => return Err(error),
    };
    call.out.attr_out(&attr, validity);
    Ok(Answer::Reply)
}

/// ACCESS: from mounts of a root that may do everything, where only programs must be marked as such. Other kernels
/// check permissions themselves.
pub fn access<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let wants_to_execute = AccessIn::decode(&mut call.input)?.mask & ACCESS_EXECUTE != 0;
    if wants_to_execute {
        let attr = call.session.fs.glance(call.ino())?;
        if attr.is_file() && attr.mode & mode::EXECUTE == 0 {
            return Err(Errno::EACCES.into());
        }
    }
    Ok(Answer::Reply)
}

/// SETATTR.
pub fn setattr<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let mut set = changes(&SetAttrIn::decode(&mut call.input)?);
    if (set.uid.is_some() || set.gid.is_some()) && set.mode.is_none() {
        set.mode = mode_of_a_stranger(&call)?;
    }
    let attr = call.session.fs.setattr(&call.ctx(), call.ino(), &set)?;
    if set.mode.is_some_and(|mode| mode & (mode::SETUID | mode::SETGID) != 0) {
        call.session.opens.may_have_gained_set_id();
    }
    let validity = call.attr_validity(&attr);
    call.out.attr_out(&attr, validity);
    Ok(Answer::Reply)
}

/// The mode that a change of owner or group leaves where it depends on who asks: set-group-id without execution by the
/// group stays for who is in that group, and for root.
fn mode_of_a_stranger<F: FileSystem>(call: &Call<'_, F>) -> FsResult<Option<u32>> {
    if call.header.uid == 0 {
        return Ok(None);
    }
    let attr = call.session.fs.glance(call.ino())?;
    let is_marked = attr.mode & (mode::SETGID | mode::XGRP) == mode::SETGID && !attr.is_dir();
    if !is_marked || attr.gid == call.header.gid || caller::groups(call.header.pid).contains(&attr.gid) {
        return Ok(None);
    }
    Ok(Some(attr.mode & mode::PERM & !(mode::SETUID | mode::SETGID)))
}

/// STATFS.
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

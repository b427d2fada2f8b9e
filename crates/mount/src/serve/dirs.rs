//! Listings of directories. A listing has no state here: a cookie says where to go on.

use bivouac_client::entry_hash;
use bivouac_types::{FsResult, mode};

use super::{Answer, Call};
use crate::abi::{Entry, ReadIn, Reply, Validity};
use crate::fs::{DirEntry, FileSystem};

/// Position behind `.`.
const BEHIND_SELF: u64 = 1;
/// Position behind `..`; the file system's own cookies begin above it.
const BEHIND_PARENT: u64 = 2;

/// Room that any entry fits into, in bytes. With less behind `.` and `..` nothing is asked for, for an
/// empty answer would mean the end.
const ROOM_MIN: usize = 512;

/// Serves OPENDIR: nothing to remember, and nothing for the kernel to cache.
pub fn opendir<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    call.out.open_out(0, 0);
    Ok(Answer::Reply)
}

/// Serves RELEASEDIR.
pub fn releasedir<F: FileSystem>(_call: Call<'_, F>) -> FsResult<Answer> {
    Ok(Answer::Reply)
}

/// Serves READDIR.
pub fn readdir<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    list(call, false, |out, entry, limit, _| out.dirent(&shown(entry), limit))
}

/// Serves READDIRPLUS: with attributes.
pub fn readdirplus<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    list(call, true, |out, entry, limit, validity| {
        out.direntplus(&shown(entry), entry.attr.as_ref(), validity, limit)
    })
}

fn shown(entry: &DirEntry) -> Entry<'_> {
    Entry { ino: entry.ino, next: entry.cookie, kind: entry.kind, name: &entry.name }
}

type AppendEntry = fn(&mut Reply, &DirEntry, usize, Validity) -> bool;

fn list<F: FileSystem>(mut call: Call<'_, F>, with_attrs: bool, put: AppendEntry) -> FsResult<Answer> {
    let request = ReadIn::decode(&mut call.input)?;
    // The size is a number from the device, and becomes the length of a request to the home.
    let limit = (request.size as usize).min(call.session.negotiated.max_write as usize);
    for entry in dots(&call, request.offset)? {
        if !put(call.out, &entry, limit, Validity::default()) {
            return Ok(Answer::Reply);
        }
    }
    // The file system is not told of the dots: it begins at its own first cookie.
    let cookie = if request.offset <= BEHIND_PARENT { 0 } else { request.offset };
    let used = call.out.as_bytes().len();
    let room = limit.saturating_sub(used);
    if used > 0 && room < ROOM_MIN {
        return Ok(Answer::Reply);
    }
    for entry in call.session.fs.readdir(call.ino(), cookie, room, with_attrs)? {
        let validity =
            entry.attr.as_ref().map_or(Validity::default(), |attr| call.validity(&entry.name, attr));
        // Only READDIRPLUS makes the kernel know a directory by this name.
        if with_attrs && entry.kind == mode::DIR {
            let key = (call.ino(), entry_hash(call.ino(), &entry.name));
            call.session.directory_names.listed(entry.ino, key, &entry.name);
        }
        if !put(call.out, &entry, limit, validity) {
            break;
        }
    }
    Ok(Answer::Reply)
}

/// Returns `.` and `..` as far as they are still to come.
fn dots<F: FileSystem>(call: &Call<'_, F>, offset: u64) -> FsResult<Vec<DirEntry>> {
    let mut entries = Vec::new();
    let dot =
        |ino, cookie, name: &[u8]| DirEntry { ino, kind: mode::DIR, cookie, name: name.into(), attr: None };
    if offset < BEHIND_SELF {
        entries.push(dot(call.ino(), BEHIND_SELF, b"."));
    }
    if offset < BEHIND_PARENT {
        entries.push(dot(call.session.fs.parent(call.ino())?, BEHIND_PARENT, b".."));
    }
    Ok(entries)
}

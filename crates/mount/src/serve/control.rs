//! Requests about the connection itself, and those that are not for us.

use std::sync::Arc;

use bivouac_client::{FileIdentity, IDENTIFY, IDENTITY_LEN};
use bivouac_types::{Errno, FsError, FsResult, put};

use super::{Answer, Call};
use crate::abi::{IoCtlIn, flags};
use crate::fs::FileSystem;
use crate::opens::Handle;

/// Serves INIT again: the daemon before died between keeping and sending the answer.
pub fn init<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    call.session.negotiated.encode(call.out);
    Ok(Answer::Reply)
}

/// Serves DESTROY: the file system is being unmounted; the device says so itself.
pub fn destroy<F: FileSystem>(_call: Call<'_, F>) -> FsResult<Answer> {
    Ok(Answer::Reply)
}

/// Serves FORGET: there is no table of inodes.
pub fn nothing<F: FileSystem>(_call: Call<'_, F>) -> FsResult<Answer> {
    Ok(Answer::Nothing)
}

/// Serves IOCTL: a small file to be made at once, or what says which file it is. Files under another contract than
/// coherent stay with the mount: what has not been sent is here, and so are the tokens of ranges. All files do while
/// races are detected: to those, the processes of a mount are one client.
pub fn ioctl<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = IoCtlIn::decode(&mut call.input)?;
    // Who asks is about to write the file by itself: what it was told so far is no longer on its way.
    call.session.cached_attrs.hears_of(call.ino(), Handle(request.fh));
    if put::is_number(request.cmd) {
        return put_file(call, &request);
    }
    let asked = request.cmd == IDENTIFY
        && request.flags & flags::IOCTL_UNRESTRICTED == 0
        && (request.in_size, request.out_size as usize) == (0, IDENTITY_LEN);
    let is_ours = || call.session.fs.is_for_mounts_only(call.ino()) || call.session.fs.detects_races();
    let is_for_others = asked && !is_ours();
    let formation = call.session.formation.as_ref().filter(|_| is_for_others);
    let identity = formation
        .and_then(|formation| FileIdentity { ino: call.ino(), formation: Arc::clone(formation) }.to_bytes());
    // ENOTTY is what any other file system says to this: the program goes on through the mount.
    let Some(identity) = identity else { return Err(FsError::new(Errno::ENOTTY)) };
    call.out.ioctl_out(&identity);
    Ok(Answer::Reply)
}

/// Makes a file in a directory. The kernel does not see it do so: it must not cache anything that is not so any more.
fn put_file<F: FileSystem>(mut call: Call<'_, F>, request: &IoCtlIn) -> FsResult<Answer> {
    let is_restricted =
        request.flags & flags::IOCTL_UNRESTRICTED == 0 && request.flags & flags::IOCTL_DIR != 0;
    let bytes = call.input.bytes(request.in_size)?;
    let file =
        put::NewFile::decode(bytes).filter(|_| is_restricted && request.out_size as usize >= put::MADE_LEN);
    let file = file.ok_or(FsError::new(Errno::ENOTTY))?;
    let dir = call.ino();
    let cached = "that names are not there is cached of the directory; make the file in steps";
    let making =
        call.session.negative_entries.make(dir).ok_or_else(|| FsError::with(Errno::EAGAIN, cached))?;
    let made = call.session.fs.put(&call.ctx(), dir, &file);
    // Whatever came of it.
    call.session.channel.forget_attributes(dir.0).map_err(|error| {
        FsError::with(Errno::EIO, format!("tell the kernel that a directory has changed: {error}"))
    })?;
    drop(making);
    let attr = made?;
    call.out.ioctl_out(&put::MadeFile { ino: attr.ino, ctime: attr.ctime }.to_bytes());
    Ok(Answer::Reply)
}

/// Answers requests that the kernel can do without.
pub fn unsupported<F: FileSystem>(_call: Call<'_, F>) -> FsResult<Answer> {
    Ok(Answer::Unsupported)
}

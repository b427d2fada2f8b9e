//! Requests about the connection itself, and those that are not for us.

use std::sync::Arc;

use bivouac_client::{FileIdentity, IDENTIFY, IDENTITY_LEN};
use bivouac_types::{Errno, FsError, FsResult};

use super::{Answer, Call};
use crate::abi::{IoCtlIn, flags};
use crate::fs::FileSystem;

/// INIT again: the daemon before died between keeping and sending the answer.
pub fn init<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    call.session.negotiated.encode(call.out);
    Ok(Answer::Reply)
}

/// DESTROY: the file system is being unmounted; the device says so itself.
pub fn destroy<F: FileSystem>(_call: Call<'_, F>) -> FsResult<Answer> {
    Ok(Answer::Reply)
}

/// FORGET: there is no table of inodes.
pub fn nothing<F: FileSystem>(_call: Call<'_, F>) -> FsResult<Answer> {
    Ok(Answer::Nothing)
}

/// IOCTL: only what says which file it is. Of a file whose writes are sent later that is nobody else's business: what
/// has not been sent is here.
pub fn ioctl<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = IoCtlIn::decode(&mut call.input)?;
    let asked = request.cmd == IDENTIFY
        && request.flags & (flags::IOCTL_UNRESTRICTED | flags::IOCTL_DIR) == 0
        && (request.in_size, request.out_size as usize) == (0, IDENTITY_LEN);
    let formation =
        call.session.formation.as_ref().filter(|_| asked && !call.session.fs.writes_behind(call.ino()));
    let identity = formation
        .and_then(|formation| FileIdentity { ino: call.ino(), formation: Arc::clone(formation) }.to_bytes());
    let Some(identity) = identity else { return Err(FsError::new(Errno::ENOTTY)) };
    call.out.ioctl_out(&identity);
    Ok(Answer::Reply)
}

/// What the kernel can do without.
pub fn unsupported<F: FileSystem>(_call: Call<'_, F>) -> FsResult<Answer> {
    Ok(Answer::Unsupported)
}

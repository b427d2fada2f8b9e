//! Requests about the connection itself, and those that are not for us.

use bivouac_types::{Errno, FsError, FsResult};

use super::{Answer, Call};
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

/// IOCTL.
pub fn ioctl<F: FileSystem>(_call: Call<'_, F>) -> FsResult<Answer> {
    Err(FsError::new(Errno::ENOTTY))
}

/// What the kernel can do without.
pub fn unsupported<F: FileSystem>(_call: Call<'_, F>) -> FsResult<Answer> {
    Ok(Answer::Unsupported)
}

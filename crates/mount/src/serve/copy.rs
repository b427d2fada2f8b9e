//! Copies within the mount.

use bivouac_types::{FsResult, Ino};

use super::data::{content_changed, drop_set_id_once};
use super::{Answer, Call};
use crate::abi::CopyFileRangeIn;
use crate::fs::{CopyJob, FileSystem};
use crate::opens::Handle;

/// Serves COPY_FILE_RANGE: the answer has 32 bits for the number of bytes.
pub fn copy_file_range<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    let (out, copied) = copy(call, u64::from(u32::MAX))?;
    out.u32(u32::try_from(copied).unwrap_or(u32::MAX));
    out.u32(0);
    Ok(Answer::Reply)
}

/// Serves COPY_FILE_RANGE_64.
pub fn copy_file_range_64<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    let (out, copied) = copy(call, u64::MAX)?;
    out.u64(copied);
    Ok(Answer::Reply)
}

fn copy<F: FileSystem>(mut call: Call<'_, F>, len_max: u64) -> FsResult<(&mut crate::abi::Reply, u64)> {
    let request = CopyFileRangeIn::decode(&mut call.input)?;
    let job = CopyJob {
        from: call.ino(),
        from_offset: request.off_in,
        to: Ino(request.nodeid_out),
        to_offset: request.off_out,
        len: request.len.min(len_max),
    };
    let handle = Handle(request.fh_out);
    // Before the bits are dropped: behind that nothing shows that the kernel knows an old mode.
    let may_have_set_id = call.session.opens.may_have_set_id(handle);
    // The kernel does not say here whether the caller may keep the bits.
    if call.header.uid != 0 {
        drop_set_id_once(&call, job.to, handle)?;
    }
    let copied = call.session.fs.copy(&call.ctx(), &job);
    if let Some(as_of) = may_have_set_id {
        // Whatever came of it: a copy that fails may have copied a part.
        content_changed(call.session, job.to, handle, as_of);
    }
    Ok((call.out, copied?))
}

//! Extended attributes.

use bivouac_types::{Errno, FsError, FsResult};

use super::{Answer, Call};
use crate::abi::{GetXattrIn, Reply, SetXattrExtIn, SetXattrIn, flags};
use crate::fs::FileSystem;

/// Serves SETXATTR.
pub fn setxattr<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = SetXattrIn::decode(&mut call.input)?;
    if call.session.negotiated.has(flags::init::SETXATTR_EXT) {
        // Without the capability the name comes here already.
        SetXattrExtIn::decode(&mut call.input)?;
    }
    let name = call.input.name()?;
    let value = call.input.bytes(request.size)?;
    call.session.fs.setxattr(&call.ctx(), call.ino(), name, value, request.flags)?;
    Ok(Answer::Reply)
}

/// Serves GETXATTR.
pub fn getxattr<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = GetXattrIn::decode(&mut call.input)?;
    let name = call.input.name()?;
    let value = call.session.fs.getxattr(call.ino(), name)?;
    put_sized(call.out, &value, request.size)
}

/// Serves LISTXATTR.
pub fn listxattr<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = GetXattrIn::decode(&mut call.input)?;
    let names = shown_to(call.header.uid, call.session.fs.listxattr(call.ino())?);
    put_sized(call.out, &names, request.size)
}

/// Returns the names that a user is shown. Those of `trusted.` are root's; the kernel refuses others their values, and
/// here their names are hidden.
fn shown_to(uid: u32, names: Vec<u8>) -> Vec<u8> {
    if uid == 0 {
        return names;
    }
    let each = names.split_inclusive(|byte| *byte == 0);
    each.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}

/// Serves REMOVEXATTR.
pub fn removexattr<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let name = call.input.name()?;
    call.session.fs.removexattr(&call.ctx(), call.ino(), name)?;
    Ok(Answer::Reply)
}

/// Replies with the bytes, or for a size of 0 with their number.
fn put_sized(out: &mut Reply, bytes: &[u8], size: u32) -> FsResult<Answer> {
    if size == 0 {
        out.u32(bytes.len() as u32);
        out.u32(0);
    } else if bytes.len() <= size as usize {
        out.raw(bytes);
    } else {
        return Err(FsError::new(Errno::ERANGE));
    }
    Ok(Answer::Reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_sees_names_of_trusted() {
        let names = b"user.a\0trusted.b\0user.c\0".to_vec();
        assert_eq!(shown_to(0, names.clone()), names);
        assert_eq!(shown_to(7, names), b"user.a\0user.c\0");
    }

    #[test]
    fn the_size_decides_what_is_answered() {
        let put = |size| {
            let mut reply = Reply::default();
            put_sized(&mut reply, b"value", size).map(|_| reply.as_bytes().to_vec()).map_err(|e| e.errno())
        };
        assert_eq!(put(0), Ok([5u32.to_ne_bytes(), [0; 4]].concat()));
        assert_eq!(put(5), Ok(b"value".to_vec()));
        assert_eq!(put(4), Err(Errno::ERANGE));
    }
}

//! Entries of directories.

use std::time::{Duration, Instant};

use bivouac_client::entry_hash;
use bivouac_types::{Attr, Errno, FsResult, Ino, mode};

use super::{Answer, Call, millis};
use crate::abi::{LinkIn, MkDirIn, MkNodIn, Rename2In, RenameIn, Validity};
use crate::fs::{FileSystem, NewInode};
use crate::negative_entries::Look;

/// `RENAME_EXCHANGE` of the kernel.
const RENAME_EXCHANGE: u32 = 2;

/// LOOKUP.
pub fn lookup<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let name = call.input.name()?;
    if name == b"." || name == b".." {
        return lookup_by_number(call, name);
    }
    let look = call.session.negative_entries.look();
    match call.session.fs.glance_at(call.ino(), name) {
        Ok(attr) => {
            let of = (call.ino(), entry_hash(call.ino(), name));
            call.session.looked_up.found(call.header.pid, of, &attr, Instant::now());
            entry(call, name, &attr)
        }
        Err(error) if error.errno() == Errno::ENOENT => absent(call, name, look),
        Err(error) => Err(error),
    }
}

/// LOOKUP of an inode itself, or of a directory's parent: how the kernel comes from a handle of a file
/// (`open_by_handle_at`) to an inode that it does not know any more. It asks nothing of the names.
fn lookup_by_number<F: FileSystem>(call: Call<'_, F>, name: &[u8]) -> FsResult<Answer> {
    let ino = if name == b"." { call.ino() } else { call.session.fs.parent(call.ino())? };
    let attr = call.session.fs.glance(ino)?;
    let validity = Validity { entry_ms: 0, ..call.attr_validity(&attr) };
    call.out.entry_out(&attr, validity);
    Ok(Answer::Reply)
}

/// READLINK.
pub fn readlink<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    let target = call.session.fs.readlink(call.ino())?;
    call.out.raw(&target);
    Ok(Answer::Reply)
}

/// SYMLINK.
pub fn symlink<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let name = call.input.name()?;
    let target = call.input.name()?;
    make(call, name, &NewInode { mode: mode::LINK | 0o777, rdev: 0, target })
}

/// MKNOD: files, fifos, sockets, devices. The kernel applied the umask, here as everywhere.
pub fn mknod<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = MkNodIn::decode(&mut call.input)?;
    let name = call.input.name()?;
    make(call, name, &NewInode { mode: request.mode, rdev: request.rdev, target: b"" })
}

/// MKDIR.
pub fn mkdir<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = MkDirIn::decode(&mut call.input)?;
    let name = call.input.name()?;
    make(call, name, &NewInode { mode: mode::DIR | (request.mode & mode::PERM), rdev: 0, target: b"" })
}

fn make<F: FileSystem>(call: Call<'_, F>, name: &[u8], new: &NewInode<'_>) -> FsResult<Answer> {
    let attr = call.session.fs.mknod(&call.ctx(), call.ino(), name, new)?;
    entry(call, name, &attr)
}

/// UNLINK.
pub fn unlink<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let name = call.input.name()?;
    call.session.fs.unlink(&call.ctx(), call.ino(), name)?;
    Ok(Answer::Reply)
}

/// RMDIR.
pub fn rmdir<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let name = call.input.name()?;
    call.session.fs.rmdir(&call.ctx(), call.ino(), name)?;
    Ok(Answer::Reply)
}

/// RENAME.
pub fn rename<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = RenameIn::decode(&mut call.input)?;
    move_entry(call, Ino(request.newdir), 0)
}

/// RENAME2: with flags.
pub fn rename2<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = Rename2In::decode(&mut call.input)?;
    move_entry(call, Ino(request.newdir), request.flags)
}

fn move_entry<F: FileSystem>(mut call: Call<'_, F>, new_parent: Ino, flags: u32) -> FsResult<Answer> {
    let name = call.input.name()?;
    let new_name = call.input.name()?;
    let (old, new) =
        ((call.ino(), entry_hash(call.ino(), name)), (new_parent, entry_hash(new_parent, new_name)));
    let both = [(old, new), (new, old)];
    let moves = if flags & RENAME_EXCHANGE == 0 { &both[..1] } else { &both };
    let _moving = call.session.cached_names.moving(moves);
    call.session.fs.rename(&call.ctx(), call.ino(), name, new_parent, new_name, flags)?;
    Ok(Answer::Reply)
}

/// LINK: the request is about the directory, the inode is an argument.
pub fn link<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = LinkIn::decode(&mut call.input)?;
    let name = call.input.name()?;
    let attr = call.session.fs.link(&call.ctx(), Ino(request.oldnodeid), call.ino(), name)?;
    entry(call, name, &attr)
}

fn entry<F: FileSystem>(call: Call<'_, F>, name: &[u8], attr: &Attr) -> FsResult<Answer> {
    let validity = call.validity(name, attr);
    call.out.entry_out(attr, validity);
    Ok(Answer::Reply)
}

/// That there is no such entry; the kernel may cache it as long as a lease runs.
fn absent<F: FileSystem>(call: Call<'_, F>, name: &[u8], look: Look) -> FsResult<Answer> {
    let lease = Duration::from_millis(call.entry_ms(name));
    let entry_ms = millis(call.session.negative_entries.absent(call.ino(), look, lease));
    let validity = Validity { entry_ms, attr_ms: 0 };
    if entry_ms == 0 {
        return Err(Errno::ENOENT.into());
    }
    call.out.no_entry_out(validity);
    Ok(Answer::Reply)
}

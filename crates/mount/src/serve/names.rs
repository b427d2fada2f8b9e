//! Entries of directories.

use std::time::{Duration, Instant};

use bivouac_client::entry_hash;
use bivouac_types::{Attr, Errno, FsResult, Ino, mode};

use super::{Answer, Call, millis};
use crate::abi::{LinkIn, MkDirIn, MkNodIn, Rename2In, RenameIn, Validity};
use crate::directory_names::DirectoryName;
use crate::fs::{FileSystem, NewInode};
use crate::negative_entries::Look;

/// `RENAME_EXCHANGE` of the kernel.
const RENAME_EXCHANGE: u32 = 2;

/// Longest time that a LOOKUP is repeated while others remove what it found.
const HOLD_MAX: Duration = Duration::from_secs(10);

/// Serves LOOKUP.
pub fn lookup<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let name = call.input.name()?;
    if name == b"." || name == b".." {
        return lookup_by_number(call, name);
    }
    // Taken before the look, so that a name that is made meanwhile is not cached as absent.
    let look = call.session.negative_entries.look();
    match call.session.fs.lookup_cached(call.ino(), name) {
        Ok(attr) => {
            let of = (call.ino(), entry_hash(call.ino(), name));
            // Only for those that were overtaken: an open for each LOOKUP would be a request for each.
            let attr = if call.session.held_lookups.looks_again(call.header.pid, of, Instant::now()) {
                match hold(&call, name, attr) {
                    Err(error) if error.errno() == Errno::ENOENT => return absent(call, name, look),
                    held => held?,
                }
            } else {
                attr
            };
            call.session.looked_up.found(call.header.pid, of, &attr, Instant::now());
            entry(call, name, &attr)
        }
        Err(error) if error.errno() == Errno::ENOENT => absent(call, name, look),
        Err(error) => Err(error),
    }
}

/// Opens the file that a name leads to, for a thread whose lookups were overtaken by changes of the name; see
/// [`crate::held_lookups`]. Returns the attributes of what it leads to by now.
fn hold<F: FileSystem>(call: &Call<'_, F>, name: &[u8], mut found: Attr) -> FsResult<Attr> {
    let (session, thread, begun) = (call.session, call.header.pid, Instant::now());
    while found.is_file() {
        match session.fs.open(&call.ctx(), found.ino, 0) {
            Ok(attr) => {
                for ino in session.held_lookups.hold(thread, attr.ino, Instant::now()) {
                    session.fs.close_open(ino, 0);
                }
                return Ok(attr);
            }
            Err(error) if error.errno() == Errno::ENOENT && begun.elapsed() < HOLD_MAX => {
                found = session.fs.lookup_cached(call.ino(), name)?;
            }
            // The program's next request gets the error.
            Err(_) => break,
        }
    }
    Ok(found)
}

/// Serves LOOKUP of an inode itself, or of a directory's parent: how the kernel comes from a handle of a file
/// (`open_by_handle_at`) to an inode that it does not know any more. It asks nothing of the names.
fn lookup_by_number<F: FileSystem>(call: Call<'_, F>, name: &[u8]) -> FsResult<Answer> {
    let ino = if name == b"." { call.ino() } else { call.session.fs.parent(call.ino())? };
    let attr = call.session.fs.getattr_cached(ino)?;
    let validity = Validity { entry_ms: 0, ..call.attr_validity(&attr) };
    call.out.entry_out(&attr, validity);
    Ok(Answer::Reply)
}

/// Serves READLINK.
pub fn readlink<F: FileSystem>(call: Call<'_, F>) -> FsResult<Answer> {
    let target = call.session.fs.readlink(call.ino())?;
    call.out.raw(&target);
    Ok(Answer::Reply)
}

/// Serves SYMLINK.
pub fn symlink<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let name = call.input.name()?;
    let target = call.input.name()?;
    make(call, name, &NewInode { mode: mode::LINK | 0o777, rdev: 0, target })
}

/// Serves MKNOD: files, fifos, sockets, devices. The kernel applied the umask, here as everywhere.
pub fn mknod<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = MkNodIn::decode(&mut call.input)?;
    let name = call.input.name()?;
    make(call, name, &NewInode { mode: request.mode, rdev: request.rdev, target: b"" })
}

/// Serves MKDIR.
pub fn mkdir<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = MkDirIn::decode(&mut call.input)?;
    let name = call.input.name()?;
    make(call, name, &NewInode { mode: mode::DIR | (request.mode & mode::PERM), rdev: 0, target: b"" })
}

fn make<F: FileSystem>(call: Call<'_, F>, name: &[u8], new: &NewInode<'_>) -> FsResult<Answer> {
    let attr = call.session.fs.mknod(&call.ctx(), call.ino(), name, new)?;
    entry(call, name, &attr)
}

/// Serves UNLINK.
pub fn unlink<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let name = call.input.name()?;
    call.session.fs.unlink(&call.ctx(), call.ino(), name)?;
    Ok(Answer::Reply)
}

/// Serves RMDIR.
pub fn rmdir<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let name = call.input.name()?;
    call.session.fs.rmdir(&call.ctx(), call.ino(), name)?;
    Ok(Answer::Reply)
}

/// Serves RENAME.
pub fn rename<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = RenameIn::decode(&mut call.input)?;
    move_entry(call, Ino(request.newdir), 0)
}

/// Serves RENAME2: with flags.
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
    let exchanges = flags & RENAME_EXCHANGE != 0;
    let moves = if exchanges { &both[..] } else { &both[..1] };
    // Kept over the rename: what is told of the old name in between would move to the new one.
    let _moving = call.session.cached_names.moving(moves);
    call.session.fs.rename(&call.ctx(), call.ino(), name, new_parent, new_name, flags)?;
    let (from, to) = (DirectoryName::new(old, name), DirectoryName::new(new, new_name));
    call.session.directory_names.renamed(&from, &to, exchanges);
    Ok(Answer::Reply)
}

/// Serves LINK: the request is about the directory, the inode is an argument.
pub fn link<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = LinkIn::decode(&mut call.input)?;
    let name = call.input.name()?;
    let attr = call.session.fs.link(&call.ctx(), Ino(request.oldnodeid), call.ino(), name)?;
    entry(call, name, &attr)
}

fn entry<F: FileSystem>(call: Call<'_, F>, name: &[u8], attr: &Attr) -> FsResult<Answer> {
    let key = (call.ino(), entry_hash(call.ino(), name));
    if !attr.is_dir() {
        call.session.directory_names.is_none(key);
    } else if let Some(old) = call.session.directory_names.looked_up(attr.ino, key, name) {
        call.session.forget_name(attr.ino, old);
    }
    let validity = call.validity(name, attr);
    call.out.entry_out(attr, validity);
    Ok(Answer::Reply)
}

/// Answers that there is no such entry, which the kernel may cache as long as a lease runs.
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

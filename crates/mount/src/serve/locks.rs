//! Locks of programs. A request that has to wait is answered later, by whoever learns that it has its lock.

use std::sync::Arc;

use bivouac_types::{Errno, FsError, FsResult};

use super::{Answer, Call};
use crate::abi::{FlushIn, InterruptIn, LkIn, UNIQUE_RESEND, flags};
use crate::fs::{FileLock, FileSystem, LockKind, LockMode, LockWaiting, Locked};
use crate::session::for_the_kernel;

/// Serves GETLK: only for ranges.
pub fn getlk<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let lock = decode(&mut call)?;
    let found = call.session.fs.test_lock(call.ino(), &lock)?;
    let found = found.unwrap_or(FileLock { mode: LockMode::Unlock, ..lock });
    let kind = match found.mode {
        LockMode::Read => flags::LOCK_READ,
        LockMode::Write => flags::LOCK_WRITE,
        LockMode::Unlock => flags::LOCK_NONE,
    };
    call.out.lock_out(found.start, found.end, kind, found.pid);
    Ok(Answer::Reply)
}

/// Serves SETLK: at once or not at all.
pub fn setlk<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let lock = decode(&mut call)?;
    call.session.fs.set_lock(call.ino(), &lock, None)?;
    Ok(Answer::Reply)
}

/// Serves SETLKW: a wait holds no thread.
pub fn setlkw<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let lock = decode(&mut call)?;
    let unique = call.header.unique;
    // Noted before it is asked for: if this daemon is killed, its successor has to answer.
    let parked = call.session.park(unique)?;
    let channel = Arc::clone(&call.session.channel);
    let answer = Box::new(move |outcome: FsResult<()>| {
        match outcome {
            Ok(()) => channel.reply(unique, &[]),
            Err(error) => channel.reply_error(unique, for_the_kernel(error.errno())),
        }
        drop(parked);
    });
    let waiting = LockWaiting { ticket: call.header.id(), answer };
    match call.session.fs.set_lock(call.ino(), &lock, Some(waiting))? {
        Locked::Done => Ok(Answer::Reply),
        Locked::Waiting => Ok(Answer::Nothing),
    }
}

/// Serves FLUSH: a descriptor is closed, and with it go the locks that its process has in ranges. What was written
/// behind is sent before others may lock them, and goes to site storage if it is to be there when `close` returns.
pub fn flush<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = FlushIn::decode(&mut call.input)?;
    let sent = call.session.fs.send_unsent(call.ino());
    call.session.fs.unlock_owner(call.ino(), request.lock_owner);
    // Unlocked whatever became of the content: nobody else unlocks for a process that has closed the file.
    sent.and_then(|()| call.session.fs.save_at_close(call.ino())).map(|()| Answer::Reply)
}

/// Serves INTERRUPT: a signal came for who waits. A wait for a lock ends for any, others for one that kills.
pub fn interrupt<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = InterruptIn::decode(&mut call.input)?;
    let id = request.unique & !UNIQUE_RESEND;
    call.session.fs.interrupt_lock(id);
    call.session.interrupts.interrupt(id);
    Ok(Answer::Nothing)
}

fn decode<F: FileSystem>(call: &mut Call<'_, F>) -> FsResult<FileLock> {
    let request = LkIn::decode(&mut call.input)?;
    let mode = match request.kind {
        flags::LOCK_READ => LockMode::Read,
        flags::LOCK_WRITE => LockMode::Write,
        flags::LOCK_NONE => LockMode::Unlock,
        _ => return Err(FsError::new(Errno::EINVAL)),
    };
    // The kernel's number of an open file description may come again before the old one's RELEASE has been served;
    // handles never do.
    let whole = request.lk_flags & flags::LOCK_WHOLE != 0;
    let (kind, owner) = if whole { (LockKind::Whole, request.fh) } else { (LockKind::Range, request.owner) };
    let (start, end) = (request.start, request.end);
    Ok(FileLock { kind, mode, owner, handle: request.fh, pid: request.pid, start, end })
}

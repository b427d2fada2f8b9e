//! Open files and their content.

use bivouac_client::entry_hash;
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, SetAttr, mode};
use rustix::fs::OFlags;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::attrs::mode_of_a_stranger;
use super::{Answer, Call};
use crate::abi::{
    CreateIn, FAllocateIn, FSyncIn, Header, LSeekIn, Opcode, OpenIn, ReadIn, ReleaseIn, Reply, Validity,
    WriteIn, flags,
};
use crate::background::Work;
use crate::channel::{Buffer, Channel};
use crate::fs::{FileSystem, NewInode, SeekKind};
use crate::opens::Handle;
use crate::page_cache::DirectWrite;
use crate::pipe::Pipe;
use crate::pool::about_to_block;
use crate::session::{Session, for_the_kernel, warn_of};

/// Flags of files that the kernel opens, but for laminated ones: its page cache holds mappings only, and writers of one
/// file do not wait for each other.
const OPENED: u32 = flags::opened::DIRECT_IO | flags::opened::PARALLEL_DIRECT_WRITES;

/// Returns the kernel's flags for a file that a program opened with `flags`. A request at each close is needed where a
/// process may have locked ranges or written to a mapping: for files opened for reading and writing, and for all once
/// ranges were locked through this mount. Also where writes are sent later, to report their outcome; where content may
/// have to be at site storage at the close; and where races are detected, which a close orders. The kernel reads ahead
/// in laminated files, and keeps their pages.
fn kernel_flags<F: FileSystem>(session: &Session<F>, attr: &Attr, flags: u32, handle: Handle) -> u32 {
    let (ino, access) = (attr.ino, OFlags::from_bits_retain(flags) & OFlags::RWMODE);
    let opened = match attr.is_laminated() && access == OFlags::RDONLY {
        true if session.laminated_pages.open(ino, attr.epoch, handle) => flags::opened::KEEP_CACHE,
        true => 0,
        false => OPENED,
    };
    let tells = || session.fs.writes_behind(ino) || session.fs.saved_at_close(ino);
    let orders = session.fs.locks_used() || session.fs.detects_races();
    let is_asked = access == OFlags::RDWR || orders || access != OFlags::RDONLY && tells();
    if is_asked { opened } else { opened | flags::opened::NOFLUSH }
}

/// Serves OPEN.
pub fn open<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = OpenIn::decode(&mut call.input)?;
    let attr = call.session.fs.open(&call.ctx(), call.ino(), request.flags)?;
    let handle = register(&call, &attr, request.flags, request.open_flags)?;
    if has(request.flags, OFlags::TRUNC) {
        // The truncation took set-id bits away, and the answer to OPEN has no attributes.
        forget_mode(call.session, call.ino());
    }
    call.out.open_out(handle.0, kernel_flags(call.session, &attr, request.flags, handle));
    Ok(Answer::Reply)
}

/// Serves CREATE: makes and opens in one step.
pub fn create<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = CreateIn::decode(&mut call.input)?;
    let name = call.input.name()?;
    let new = NewInode { mode: mode::FILE | (request.mode & mode::PERM), rdev: 0, target: b"" };
    let (exclusive, truncate) = (has(request.flags, OFlags::EXCL), has(request.flags, OFlags::TRUNC));
    let opened = call.session.fs.create(&call.ctx(), call.ino(), name, &new, exclusive, truncate)?;
    let open_flags = if opened.existed { request.open_flags } else { 0 };
    let handle = register(&call, &opened.attr, request.flags, open_flags)?;
    // A directory of that name may have been moved away by another mount.
    call.session.directory_names.is_none((call.ino(), entry_hash(call.ino(), name)));
    let of_attr = call.attr_validity_of(&opened.attr, Some(handle));
    let validity = Validity { entry_ms: call.entry_ms(name), ..of_attr };
    call.out.entry_out(&opened.attr, validity);
    call.out.open_out(handle.0, kernel_flags(call.session, &opened.attr, request.flags, handle));
    Ok(Answer::Reply)
}

/// Serves TMPFILE: makes a file without a name and opens it. The kernel sends a name that means nothing.
pub fn tmpfile<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = CreateIn::decode(&mut call.input)?;
    let new = NewInode { mode: mode::FILE | (request.mode & mode::PERM), rdev: 0, target: b"" };
    let linkable = !has(request.flags, OFlags::EXCL);
    let attr = call.session.fs.tmpfile(&call.ctx(), call.ino(), &new, linkable)?;
    let handle = register(&call, &attr, request.flags, 0)?;
    let validity = call.attr_validity_of(&attr, Some(handle));
    call.out.entry_out(&attr, validity);
    call.out.open_out(handle.0, kernel_flags(call.session, &attr, request.flags, handle));
    Ok(Answer::Reply)
}

/// Gives the open file a handle. The file system has registered the open; without a handle it is closed
/// again.
fn register<F: FileSystem>(call: &Call<'_, F>, attr: &Attr, flags: u32, open_flags: u32) -> FsResult<Handle> {
    let session = call.session;
    let opener = call.header.id();
    if let Some(handle) = call.header.is_resent().then(|| session.opens.opened_by(opener, attr.ino)).flatten()
    {
        // The killed daemon had come as far as this: its open is registered already, with this handle.
        session.fs.close_open(attr.ino, flags);
        return Ok(handle);
    }
    let set_id = attr.mode & (mode::SETUID | mode::SETGID) != 0;
    let drop_first = set_id && open_flags & flags::OPEN_KILL_SUIDGID != 0;
    let dropped = if drop_first { drop_set_id(call, attr.ino) } else { Ok(()) };
    let handle = dropped.and_then(|()| session.opens.insert(&session.state, attr.ino, flags, opener, set_id));
    if handle.is_err() {
        session.fs.close_open(attr.ino, flags);
    }
    handle
}

fn drop_set_id<F: FileSystem>(call: &Call<'_, F>, ino: Ino) -> FsResult<()> {
    let mode = mode_of_a_stranger(call, ino)?;
    call.session
        .fs
        .setattr(&call.ctx(), ino, &SetAttr { mode, kill_suid: true, ..SetAttr::default() })
        .map(drop)
}

/// Serves RELEASE: the last descriptor is closed.
pub fn release<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = ReleaseIn::decode(&mut call.input)?;
    call.session.cached_attrs.hears_of(call.ino(), Handle(request.fh));
    // Pages of mappings come after the last FLUSH. What cannot be sent now is said when the file is closed.
    if let Err(error) = call.session.fs.send_unsent(call.ino()) {
        log::debug!(why:% = error; "{} before its close", call.ino());
    }
    // Before the table, and whatever it says: a daemon that was killed in between does not know the handle any more.
    call.session.fs.unlock_handle(call.ino(), request.fh);
    call.session.laminated_pages.close(Handle(request.fh));
    if let Some((ino, flags)) = call.session.opens.remove(&call.session.state, Handle(request.fh))? {
        call.session.fs.close_open(ino, flags);
    }
    Ok(Answer::Reply)
}

/// Serves READ: the file system reads into the buffer from which the reply is sent.
pub fn read<F: FileSystem>(
    session: &Session<F>,
    header: &Header,
    request: &ReadIn,
    buffer: &mut Buffer,
) -> FsResult<Answer> {
    let into = buffer.payload_mut(request.size as usize).ok_or(FsError::new(Errno::EINVAL))?;
    let wanted = into.len();
    let len = session.fs.read(Ino(header.nodeid), request.offset, into)?;
    Ok(Answer::Payload(len.min(wanted)))
}

/// Serves READ where the content is in one file of this process: the kernel takes the reply from there. Returns `None`
/// if it was not sent so.
pub fn send<F: FileSystem>(
    session: &Session<F>,
    header: &Header,
    request: &ReadIn,
    pipe: &mut Option<Pipe>,
) -> Option<FsResult<Answer>> {
    let max = session.negotiated.max_write as usize;
    let mut send = |file: BorrowedFd<'_>, offset, len| {
        let Some(made) = pipe.take().or_else(|| Pipe::new(max).ok()) else { return false };
        // Looked at before anything is in the pipe: one that is empty still can be used again.
        let fits = made.takes(len);
        let sent = fits && session.channel.reply_from(header.unique, &made, (file, offset, len)).is_ok();
        // What is left in it after a failure goes with it.
        *pipe = (sent || !fits).then_some(made);
        sent
    };
    let sent = session.fs.send(Ino(header.nodeid), request.offset, request.size as usize, &mut send);
    let answer = |len| if len == 0 { Answer::Payload(0) } else { Answer::Sent };
    sent.map(|sent| sent.map(answer)).transpose()
}

/// Serves WRITE: the payload is where the kernel put it.
pub fn write<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = WriteIn::decode(&mut call.input)?;
    let data = call.input.bytes(request.size)?;
    let handle = Handle(request.fh);
    let may_have_set_id = call.session.opens.may_have_set_id(handle);
    if request.write_flags & flags::WRITE_KILL_SUIDGID != 0 {
        drop_set_id_once(&call, call.ino(), handle)?;
    }
    if request.write_flags & flags::WRITE_CACHE != 0 {
        let written = write_back(&call, request.offset, data);
        after_write(&call, handle, may_have_set_id);
        write_out(call.out, written?, request.size);
        return Ok(Answer::Reply);
    }
    let ino = call.ino();
    call.session.failed_writes.begin_write(call.header.pid);
    let append = has(request.flags, OFlags::APPEND);
    // An append goes there too, unless another node has appended as well.
    let end = request.offset.saturating_add(u64::from(request.size));
    let direct = call.session.page_cache.begin_direct(ino, request.offset..end);
    let written = call.session.fs.write(&call.ctx(), ino, request.offset, data, append);
    after_write(&call, handle, may_have_set_id);
    let len = match written {
        Ok(len) => len,
        Err(error) => return Ok(fail_direct(&call, direct, &request, error)),
    };
    // Where an append went the home knows: no part of this range is known to have new content.
    let may_be_stale = direct.applied(if append { 0 } else { len as u64 });
    write_out(call.out, len, request.size);
    if !may_be_stale {
        return Ok(Answer::Reply);
    }
    let (body, offset, dropped) =
        (call.out.as_bytes().to_vec(), request.offset, if append { 0 } else { len as u64 });
    answer_later(&call, move |channel, unique| {
        if let Err(error) = channel.drop_pages(ino.0, offset, dropped) {
            log::warn!(why:% = error; "the kernel may show old content of inode {ino} in mappings");
        }
        // Behind the notification: what that has the kernel write back must still leave the new bytes out.
        drop(direct);
        channel.reply(unique, &body);
    });
    Ok(Answer::Nothing)
}

/// Answers a direct write that failed, after the kernel has dropped its pages, since parts of the range may have new
/// content, and knows the real size; see [`crate::failed_writes`].
fn fail_direct<F: FileSystem>(
    call: &Call<'_, F>,
    direct: DirectWrite,
    request: &WriteIn,
    error: FsError,
) -> Answer {
    let (session, ino, len) = (call.session, call.ino(), u64::from(request.size));
    let size = match session.fs.getattr_cached(ino) {
        Ok(attr) => Some(attr.size),
        Err(unknown) => {
            log::debug!(why:% = unknown; "the size of inode {ino} after a write that failed");
            None
        }
    };
    let (failed_writes, thread) = (Arc::clone(&session.failed_writes), call.header.pid);
    // Before the answer, which the kernel's cut may follow at once.
    failed_writes.note(thread, ino, size);
    warn_of(&error, Opcode::Write, ino.0);
    // What the kernel writes back from now on is as new as what the failed write has left.
    let may_be_stale = direct.applied(0);
    let is_append = has(request.flags, OFlags::APPEND);
    let (offset, dropped) = (request.offset, if is_append { 0 } else { len });
    answer_later(call, move |channel, unique| {
        let pages = if may_be_stale { channel.drop_pages(ino.0, offset, dropped) } else { Ok(()) };
        // This drops all pages, too.
        let told = size.map_or(pages, |size| channel.raise_size(ino.0, size));
        if let Err(error) = told {
            log::warn!(why:% = error; "the kernel may show an old size or old content of inode {ino}");
        }
        drop(direct);
        failed_writes.answer(thread);
        channel.reply_error(unique, for_the_kernel(error.errno()));
    });
    Answer::Nothing
}

/// Makes another thread answer a request that may wait for requests not answered yet; without another thread, answers
/// it here.
fn answer_later<F: FileSystem>(call: &Call<'_, F>, answer: impl FnOnce(&Channel, u64) + Send + 'static) {
    let parked = call.session.park(call.header.unique);
    let is_parked = parked.is_ok();
    let (channel, unique) = (Arc::clone(&call.session.channel), call.header.unique);
    let work: Work = Box::new(move || {
        answer(&channel, unique);
        drop(parked);
    });
    if is_parked {
        call.session.in_background(work);
    } else {
        about_to_block();
        work();
    }
}

/// Writes what comes back from the page cache, which has its place already, but for what was replaced meanwhile.
/// Answers the length of all of it.
fn write_back<F: FileSystem>(call: &Call<'_, F>, offset: u64, data: &[u8]) -> FsResult<usize> {
    let end = offset.saturating_add(data.len() as u64);
    let back = call.session.page_cache.begin_write_back(call.ino(), offset..end);
    for part in back.parts() {
        let (from, to) = ((part.start - offset) as usize, (part.end - offset) as usize);
        let bytes = data.get(from..to).unwrap_or_default();
        let len = call.session.fs.write(&call.ctx(), call.ino(), part.start, bytes, false)?;
        if len < bytes.len() {
            return Ok(from + len);
        }
    }
    Ok(data.len())
}

fn after_write<F: FileSystem>(call: &Call<'_, F>, handle: Handle, may_have_set_id: Option<u64>) {
    if let Some(as_of) = may_have_set_id {
        content_changed(call.session, call.ino(), handle, as_of);
    }
}

/// Appends `fuse_write_out`.
fn write_out(out: &mut Reply, len: usize, requested: u32) {
    out.u32(u32::try_from(len).unwrap_or(u32::MAX).min(requested));
    out.u32(0);
}

/// Drops set-id bits, unless it is known that there are none: every write of an unprivileged process asks for this, so
/// it must cost nothing when there is nothing to drop. Bits that another node sets while the file is open here are not
/// seen.
pub fn drop_set_id_once<F: FileSystem>(call: &Call<'_, F>, ino: Ino, handle: Handle) -> FsResult<()> {
    let opens = &call.session.opens;
    let Some(as_of) = opens.may_have_set_id(handle) else { return Ok(()) };
    let attr = call.session.fs.getattr_cached(ino)?;
    if attr.mode & (mode::SETUID | mode::SETGID) != 0 {
        drop_set_id(call, ino)?;
    }
    opens.has_no_set_id(handle, as_of);
    Ok(())
}

/// Makes the kernel forget the mode of a file whose content was changed and that may have had set-id bits. With a
/// change go the bits: the kernel only expects times and size to be others, and would show what it knows of the mode to
/// whoever asks for nothing else (`stat -c %a`).
pub fn content_changed<F: FileSystem>(session: &Session<F>, ino: Ino, handle: Handle, as_of: u64) {
    forget_mode(session, ino);
    let has_none = |attr: &Attr| attr.mode & (mode::SETUID | mode::SETGID) == 0;
    // `drop_set_id_once` may have found out already, which spares the look at the mode.
    if session.opens.may_have_set_id(handle).is_some()
        && session.fs.getattr_cached(ino).is_ok_and(|a| has_none(&a))
    {
        session.opens.has_no_set_id(handle, as_of);
    }
}

/// Makes the kernel request the mode again when it needs it.
fn forget_mode<F: FileSystem>(session: &Session<F>, ino: Ino) {
    if let Err(error) = session.channel.forget_attributes(ino.0) {
        log::debug!(why:% = error; "the kernel may show an old mode of inode {ino} for a moment");
    }
}

/// Serves FSYNC and FSYNCDIR.
pub fn fsync<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = FSyncIn::decode(&mut call.input)?;
    call.session.fs.fsync(call.ino(), request.fsync_flags & flags::FSYNC_DATA_ONLY != 0)?;
    Ok(Answer::Reply)
}

/// Serves LSEEK: only for what the kernel cannot know, data and holes.
pub fn lseek<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = LSeekIn::decode(&mut call.input)?;
    let kind = match request.whence {
        flags::SEEK_DATA => SeekKind::Data,
        flags::SEEK_HOLE => SeekKind::Hole,
        _ => return Err(FsError::new(Errno::EINVAL)),
    };
    let offset = call.session.fs.seek(call.ino(), request.offset, kind)?;
    call.out.u64(offset);
    Ok(Answer::Reply)
}

/// Serves FALLOCATE.
pub fn fallocate<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = FAllocateIn::decode(&mut call.input)?;
    let may_have_set_id = call.session.opens.may_have_set_id(Handle(request.fh));
    let FAllocateIn { mode, offset, length, .. } = request;
    // The kernel does not say here whether the caller may keep the bits.
    if call.header.uid != 0 {
        drop_set_id_once(&call, call.ino(), Handle(request.fh))?;
    }
    let changed = call.session.fs.fallocate(&call.ctx(), call.ino(), mode, offset, length);
    if let Some(as_of) = may_have_set_id {
        content_changed(call.session, call.ino(), Handle(request.fh), as_of);
    }
    changed.map(|()| Answer::Reply)
}

fn has(flags: u32, flag: OFlags) -> bool {
    flags & flag.bits() != 0
}

//! Open files and their content.

use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, SetAttr, mode};
use rustix::fs::OFlags;
use std::os::fd::BorrowedFd;

use super::{Answer, Call};
use crate::abi::{
    CreateIn, FAllocateIn, FSyncIn, Header, LSeekIn, OpenIn, ReadIn, ReleaseIn, Validity, WriteIn, flags,
};
use crate::channel::Buffer;
use crate::fs::{FileSystem, NewInode, SeekKind};
use crate::opens::Handle;
use crate::pipe::Pipe;
use crate::session::Session;

/// How files are opened in the kernel: its page cache holds mappings only, and writers of one
/// file do not wait for each other.
const OPENED: u32 = flags::opened::DIRECT_IO | flags::opened::PARALLEL_DIRECT_WRITES;

/// How a file that a program opened with `flags` is opened in the kernel. A request at each close is needed where a
/// process may have locked ranges or written to a mapping: in files that it reads and writes, and everywhere once
/// ranges have been locked through this mount; where writes are sent later, to say what came of them; and in files whose
/// content may have to be at site storage then.
fn kernel_flags<F: FileSystem>(session: &Session<F>, ino: Ino, flags: u32) -> u32 {
    let access = OFlags::from_bits_retain(flags) & OFlags::RWMODE;
    let tells = || session.fs.writes_behind(ino) || session.fs.saved_at_close(ino);
    let is_asked = access == OFlags::RDWR || session.fs.locks_used() || access != OFlags::RDONLY && tells();
    if is_asked { OPENED } else { OPENED | flags::opened::NOFLUSH }
}

/// OPEN.
pub fn open<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = OpenIn::decode(&mut call.input)?;
    let attr = call.session.fs.open(&call.ctx(), call.ino(), request.flags)?;
    let handle = register(&call, &attr, request.flags, request.open_flags)?;
    if has(request.flags, OFlags::TRUNC) {
        forget_mode(call.session, call.ino());
    }
    call.out.open_out(handle.0, kernel_flags(call.session, attr.ino, request.flags));
    Ok(Answer::Reply)
}

/// CREATE: makes and opens in one step.
pub fn create<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = CreateIn::decode(&mut call.input)?;
    let name = call.input.name()?;
    let new = NewInode { mode: mode::FILE | (request.mode & mode::PERM), rdev: 0, target: b"" };
    let (exclusive, truncate) = (has(request.flags, OFlags::EXCL), has(request.flags, OFlags::TRUNC));
    let opened = call.session.fs.create(&call.ctx(), call.ino(), name, &new, exclusive, truncate)?;
    let open_flags = if opened.existed { request.open_flags } else { 0 };
    let handle = register(&call, &opened.attr, request.flags, open_flags)?;
    let of_attr = call.attr_validity_of(&opened.attr, Some(handle));
    let validity = Validity { entry_ms: call.entry_ms(name), ..of_attr };
    call.out.entry_out(&opened.attr, validity);
    call.out.open_out(handle.0, kernel_flags(call.session, opened.attr.ino, request.flags));
    Ok(Answer::Reply)
}

/// TMPFILE: makes a file without a name and opens it. The kernel sends a name that means nothing.
pub fn tmpfile<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = CreateIn::decode(&mut call.input)?;
    let new = NewInode { mode: mode::FILE | (request.mode & mode::PERM), rdev: 0, target: b"" };
    let linkable = !has(request.flags, OFlags::EXCL);
    let attr = call.session.fs.tmpfile(&call.ctx(), call.ino(), &new, linkable)?;
    let handle = register(&call, &attr, request.flags, 0)?;
    let validity = call.attr_validity_of(&attr, Some(handle));
    call.out.entry_out(&attr, validity);
    call.out.open_out(handle.0, kernel_flags(call.session, attr.ino, request.flags));
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
        session.fs.close(attr.ino);
        return Ok(handle);
    }
    let set_id = attr.mode & (mode::SETUID | mode::SETGID) != 0;
    let drop_first = set_id && open_flags & flags::OPEN_KILL_SUIDGID != 0;
    let dropped = if drop_first { drop_set_id(call, attr.ino) } else { Ok(()) };
    let handle = dropped.and_then(|()| session.opens.insert(&session.state, attr.ino, flags, opener, set_id));
    if handle.is_err() {
        session.fs.close(attr.ino);
    }
    handle
}

fn drop_set_id<F: FileSystem>(call: &Call<'_, F>, ino: Ino) -> FsResult<()> {
    call.session.fs.setattr(&call.ctx(), ino, &SetAttr { kill_suid: true, ..SetAttr::default() }).map(drop)
}

/// RELEASE: the last descriptor is closed.
pub fn release<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = ReleaseIn::decode(&mut call.input)?;
    call.session.cached_attrs.hears_of(call.ino(), Handle(request.fh));
    // Pages of mappings come after the last FLUSH. What cannot be sent now is said when the file is closed.
    if let Err(error) = call.session.fs.send_unsent(call.ino()) {
        log::debug!(why:% = error; "{} before its close", call.ino());
    }
    // Before the table, and whatever it says: a daemon that was killed in between does not know the handle any more.
    call.session.fs.unlock_handle(call.ino(), request.fh);
    if let Some(ino) = call.session.opens.remove(&call.session.state, Handle(request.fh))? {
        call.session.fs.close(ino);
    }
    Ok(Answer::Reply)
}

/// READ: the file system reads into the buffer from which the reply is sent.
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

/// READ, where the content is in one file of this process: the kernel takes the reply from there. `None` if it was not sent
/// so.
pub fn send<F: FileSystem>(
    session: &Session<F>,
    header: &Header,
    request: &ReadIn,
    pipe: &mut Option<Pipe>,
) -> Option<FsResult<Answer>> {
    let max = session.negotiated.max_write as usize;
    let mut send = |file: BorrowedFd<'_>, offset, len| {
        let Some(made) = pipe.take().or_else(|| Pipe::new(max).ok()) else { return false };
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

/// WRITE: the payload is where the kernel put it.
pub fn write<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = WriteIn::decode(&mut call.input)?;
    let data = call.input.bytes(request.size)?;
    let handle = Handle(request.fh);
    let may_have_set_id = call.session.opens.may_have_set_id(handle);
    if request.write_flags & flags::WRITE_KILL_SUIDGID != 0 {
        drop_set_id_once(&call, handle)?;
    }
    // What comes back from the page cache has its place already.
    let from_cache = request.write_flags & flags::WRITE_CACHE != 0;
    let append = has(request.flags, OFlags::APPEND) && !from_cache;
    let written = call.session.fs.write(&call.ctx(), call.ino(), request.offset, data, append);
    if let Some(as_of) = may_have_set_id {
        content_changed(call.session, call.ino(), handle, as_of);
    }
    let len = written?;
    call.out.u32(u32::try_from(len).unwrap_or(u32::MAX).min(request.size));
    call.out.u32(0);
    Ok(Answer::Reply)
}

/// Every write of an unprivileged process asks for this, so it must cost nothing when there is
/// nothing to drop. Bits that another node sets while the file is open here are not seen.
fn drop_set_id_once<F: FileSystem>(call: &Call<'_, F>, handle: Handle) -> FsResult<()> {
    let opens = &call.session.opens;
    let Some(as_of) = opens.may_have_set_id(handle) else { return Ok(()) };
    let attr = call.session.fs.glance(call.ino())?;
    if attr.mode & (mode::SETUID | mode::SETGID) != 0 {
        drop_set_id(call, call.ino())?;
    }
    opens.has_no_set_id(handle, as_of);
    Ok(())
}

/// The content of a file was changed that may have had set-id bits. With a change go the bits: the kernel only expects
/// times and size to be others, and would show what it knows of the mode to whoever asks for nothing else (`stat -c %a`).
pub fn content_changed<F: FileSystem>(session: &Session<F>, ino: Ino, handle: Handle, as_of: u64) {
    forget_mode(session, ino);
    let has_none = |attr: &Attr| attr.mode & (mode::SETUID | mode::SETGID) == 0;
    if session.opens.may_have_set_id(handle).is_some() && session.fs.glance(ino).is_ok_and(|a| has_none(&a)) {
        session.opens.has_no_set_id(handle, as_of);
    }
}

/// Has the kernel ask for the mode when it needs it next.
fn forget_mode<F: FileSystem>(session: &Session<F>, ino: Ino) {
    if let Err(error) = session.channel.forget_attributes(ino.0) {
        log::debug!(why:% = error; "the kernel may show an old mode of inode {ino} for a moment");
    }
}

/// FSYNC and FSYNCDIR.
pub fn fsync<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = FSyncIn::decode(&mut call.input)?;
    call.session.fs.fsync(call.ino(), request.fsync_flags & flags::FSYNC_DATA_ONLY != 0)?;
    Ok(Answer::Reply)
}

/// LSEEK: only for what the kernel cannot know, data and holes.
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

/// FALLOCATE.
pub fn fallocate<F: FileSystem>(mut call: Call<'_, F>) -> FsResult<Answer> {
    let request = FAllocateIn::decode(&mut call.input)?;
    let may_have_set_id = call.session.opens.may_have_set_id(Handle(request.fh));
    let FAllocateIn { mode, offset, length, .. } = request;
    let changed = call.session.fs.fallocate(&call.ctx(), call.ino(), mode, offset, length);
    if let Some(as_of) = may_have_set_id {
        content_changed(call.session, call.ino(), Handle(request.fh), as_of);
    }
    changed.map(|()| Answer::Reply)
}

fn has(flags: u32, flag: OFlags) -> bool {
    flags & flag.bits() != 0
}

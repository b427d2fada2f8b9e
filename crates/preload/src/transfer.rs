//! Reading and writing: a call of the program that is done here, or is the kernel's.
//!
//! The kernel has the file position, and everybody who shares it finds it there. A write first moves it, which gives it
//! its place as the kernel would, and then writes there; a read moves it afterwards.
#![allow(unsafe_code, reason = "buffers of the program are pointers")]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use bivouac_client::Client;
use bivouac_types::{Errno, FsResult};
use libc::{iovec, ssize_t};

use crate::adopt::{adopt, identify, look_at};
use crate::direct_file::DirectFile;
use crate::file::{CallRoute, DescriptionId, File, HeldDescription};
use crate::known::WRITTEN;
use crate::quiet::SignalBlock;
use crate::readable::is_readable;
use crate::report::{self, Call, MountReason};
use crate::serving::{self, ServedCall};
use crate::thread::CallGuard;
use crate::{errno, given_up, memory, real, settings, table};

/// Most bytes of one call, as in the kernel; what is more is left for the next.
const BYTES_MAX: usize = 0x7fff_f000;
/// Most pieces of one call that are put together here, and bytes of them.
const PIECES_MAX: usize = 64;
const GATHERED_MAX: usize = 256 << 10;
/// Bytes of a call up to which the reserve of memory is enough for copies of them.
const UNTRIED_MAX: usize = 512 << 10;
/// Bytes that the kernel makes one request of, at most.
const REQUEST_MAX: usize = 1 << 20;
/// Flags by which a write is not for us: the home chooses the place of an append, and what has to be durable is
/// synchronised by the kernel.
const KERNELS: c_int = libc::O_APPEND | libc::O_SYNC | libc::O_DSYNC;

/// The position that a call reads or writes at.
#[derive(Clone, Copy, Debug)]
pub enum CallPosition {
    /// At the description's position, which moves.
    Position,
    /// There.
    At(i64),
}

/// A call: what it is, on which descriptor, and where.
#[derive(Clone, Copy, Debug)]
pub struct DataCall {
    pub call: Call,
    pub fd: c_int,
    pub place: CallPosition,
}

/// Reason why a call is not done here, after it was looked at.
enum FallbackReason {
    Mount(MountReason),
    /// Not a formation's: nothing to be told.
    Alien,
    /// It failed, and the kernel would say the same.
    Failed(Errno),
}

impl From<MountReason> for FallbackReason {
    fn from(why: MountReason) -> FallbackReason {
        FallbackReason::Mount(why)
    }
}

/// Reads into the pieces; `None` if the kernel has to.
///
/// # Safety
/// The pieces are such that the kernel may write to them, or refuse to.
pub unsafe fn read(asked: DataCall, name: DescriptionId, pieces: &[iovec]) -> Option<ssize_t> {
    serve(asked, name, pieces, libc::O_WRONLY, |direct, at| {
        let client = direct.client()?;
        match pieces {
            // SAFETY: as the caller says; the client writes to them by system calls, and zeros.
            [piece] => client.read(direct.ino, at, unsafe { bytes_mut(piece) }),
            pieces => read_pieces(client, direct, at, pieces),
        }
    })
}

/// Writes the pieces; `None` if the kernel has to.
///
/// # Safety
/// The pieces are such that the kernel may read them, or refuse to.
pub unsafe fn write(asked: DataCall, name: DescriptionId, pieces: &[iovec]) -> Option<ssize_t> {
    serve(asked, name, pieces, libc::O_RDONLY, |direct, at| {
        let (client, ino) = (direct.client()?, direct.ino);
        if client.is_spread_out() && !pieces.iter().all(is_readable) {
            return Err(Errno::EFAULT.into());
        }
        let written = match pieces {
            // SAFETY: as the caller says; the client reads them by system calls, and where it can be done at all.
            [piece] => client.write_at(ino, at, unsafe { bytes(piece) }),
            pieces => client.write_at(ino, at, &gathered(pieces)),
        }?;
        direct.mark_mtime_dirty();
        Ok(written)
    })
}

fn serve(
    asked: DataCall,
    name: DescriptionId,
    pieces: &[iovec],
    forbidden: c_int,
    work: impl Fn(&DirectFile, u64) -> FsResult<usize>,
) -> Option<ssize_t> {
    given_up::close_given_up();
    let busy = CallGuard::enter().filter(|_| serving::is_open())?;
    let held = name.hold()?;
    let count = total(pieces)?;
    if held.flags() & libc::O_ACCMODE == forbidden
        || matches!(asked.place, CallPosition::At(at) if !u64::try_from(at).is_ok_and(|at| is_place(at, count)))
    {
        return None;
    }
    let writes = forbidden == libc::O_RDONLY;
    if writes && held.flags() & libc::O_APPEND != 0 {
        look_at_end(&held, asked.fd);
    }
    let outcome = prepare(busy, &held, asked, name, writes, count).and_then(|quiet| {
        if !are_few(pieces) {
            return Err(MountReason::Pieces.into());
        }
        let done = perform(&held, asked, writes, count, work);
        // A handler that waited may jump away: nothing may be left to be done then.
        drop(held);
        drop(quiet);
        done
    });
    match outcome {
        Ok(done) => {
            report::direct(asked.call, done);
            ssize_t::try_from(done).ok()
        }
        Err(FallbackReason::Failed(failure)) => {
            report::direct(asked.call, 0);
            errno::set(failure.code());
            Some(-1)
        }
        Err(FallbackReason::Mount(why)) => {
            report::mount(asked.call, count, why);
            None
        }
        Err(FallbackReason::Alien) => None,
    }
}

/// Returns whether so many bytes can be there at all. If not, it is the kernel's to say.
fn is_place(at: u64, count: usize) -> bool {
    at.checked_add(count as u64).is_some_and(|end| i64::try_from(end).is_ok())
}

/// Returns the number of bytes of all pieces; `None` for what is the kernel's to refuse, or nothing.
fn total(pieces: &[iovec]) -> Option<usize> {
    let sound = |piece: &iovec| !piece.iov_base.is_null() || piece.iov_len == 0;
    let count = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len))?;
    (count > 0 && count <= BYTES_MAX && pieces.iter().all(sound)).then_some(count)
}

/// Looks whether a call can be done here, and makes it so.
fn prepare(
    busy: CallGuard,
    held: &HeldDescription,
    asked: DataCall,
    name: DescriptionId,
    writes: bool,
    count: usize,
) -> Result<SignalBlock, FallbackReason> {
    match held.state() {
        CallRoute::Alien => {
            table::forget(asked.fd, name);
            return Err(FallbackReason::Alien);
        }
        CallRoute::New | CallRoute::Looking if !is_due(held, asked.fd, count)? => {
            return Err(MountReason::First.into());
        }
        CallRoute::Mount => return Err(MountReason::Mapped.into()),
        _ => {}
    }
    // Its position is the kernel's: others may move it at any moment.
    if matches!(asked.place, CallPosition::Position) && held.is_shared() {
        return Err(MountReason::Shared.into());
    }
    if writes && (flags_of(held, asked.fd) & KERNELS != 0 || settings::writes_are_limited()) {
        return Err(MountReason::Flags.into());
    }
    let quiet = SignalBlock::enter(busy).ok_or(MountReason::Signal)?;
    if count > UNTRIED_MAX && !memory::has(2 * count) {
        return Err(MountReason::Odd.into());
    }
    // Nothing is opened any more once all is being closed.
    let _call = ServedCall::begin().ok_or(MountReason::Odd)?;
    if held.begin_look() {
        held.end_look(catch_unwind(AssertUnwindSafe(|| adopt(asked.fd))).unwrap_or(Err(CallRoute::Mount)));
    }
    match held.state() {
        CallRoute::Direct => Ok(quiet),
        CallRoute::Alien => Err(FallbackReason::Alien),
        _ => Err(MountReason::Mapped.into()),
    }
}

/// Returns whether there were calls enough to look at the file. With a report, it is looked at from the first one.
fn is_due(held: &File, fd: c_int, count: usize) -> Result<bool, FallbackReason> {
    let (calls, bytes) = held.count(count);
    let due = calls >= settings::after_calls()
        || bytes >= settings::AFTER_BYTES
        || count as u64 > settings::LARGE_BYTES;
    if !due && !settings::reports() {
        // Whose file it is is not known; nothing would tell it either.
        return Err(FallbackReason::Alien);
    }
    if !due && calls == 0 && identify(fd) == Err(CallRoute::Alien) && held.begin_look() {
        held.end_look(Err(CallRoute::Alien));
        return Err(FallbackReason::Alien);
    }
    Ok(due)
}

/// Returns the flags of a description. Those that others have may change without our knowing.
fn flags_of(held: &File, fd: c_int) -> c_int {
    if held.is_shared() {
        // SAFETY: a question about a descriptor.
        unsafe { real::fcntl(fd, libc::F_GETFL, 0) }
    } else {
        held.flags()
    }
}

/// Makes the kernel look at the end of a file that it is about to append to: where the position is then, it knows by
/// the size that it has heard of.
fn look_at_end(held: &File, fd: c_int) {
    if !WRITTEN.has_any() || held.ino().is_some_and(|ino| !WRITTEN.has(0, ino)) {
        return;
    }
    if let Some(ino) = look_at(fd) {
        held.set_ino(ino);
    }
}

fn perform(
    held: &HeldDescription,
    asked: DataCall,
    writes: bool,
    count: usize,
    work: impl Fn(&DirectFile, u64) -> FsResult<usize>,
) -> Result<usize, FallbackReason> {
    let _call = ServedCall::begin().ok_or(MountReason::Odd)?;
    let direct = held.direct().ok_or(MountReason::Odd)?;
    let guarded = |at: u64| {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(direct, at)));
        let outcome = outcome.unwrap_or_else(|_| Err(Errno::EPROTO.into()));
        outcome.map_err(|error| judge(held, error.errno(), count))
    };
    match asked.place {
        CallPosition::At(at) => guarded(u64::try_from(at).map_err(|_| MountReason::Odd)?),
        CallPosition::Position => {
            let mut position = direct.position.lock();
            let at_position = AtPosition { fd: asked.fd, count };
            let end = if writes {
                at_position.write(guarded)
            } else if position.is_some_and(|at| is_within(direct, at, count)) {
                at_position.read_within(guarded)
            } else {
                at_position.read(guarded)
            };
            let (end, done) = end.inspect_err(|_| *position = None)?;
            *position = Some(end);
            Ok(done)
        }
    }
}

/// Returns whether a read is likely to find everything.
fn is_within(direct: &DirectFile, at: u64, count: usize) -> bool {
    let size = direct.client().ok().and_then(|client| client.homes.size_heard(direct.ino));
    at.checked_add(count as u64).is_some_and(|end| Some(end) <= size)
}

/// A call at the description's position, which the kernel has. Each says where the position is afterwards, and how much
/// was done.
#[derive(Clone, Copy)]
struct AtPosition {
    fd: c_int,
    count: usize,
}

type PositionedResult = Result<(u64, usize), FallbackReason>;

impl AtPosition {
    /// Moves the position behind what was read.
    fn read(self, work: impl Fn(u64) -> Result<usize, FallbackReason>) -> PositionedResult {
        let at = real::seek(self.fd, 0, libc::SEEK_CUR)
            .filter(|at| is_place(*at, self.count))
            .ok_or(MountReason::Odd)?;
        let read = work(at)?;
        let end = if read > 0 {
            real::seek(self.fd, read as i64, libc::SEEK_CUR).ok_or(MountReason::Odd)?
        } else {
            at
        };
        Ok((end, read))
    }

    /// The same with one system call less: the position is moved first, and back by what was not there.
    fn read_within(self, work: impl Fn(u64) -> Result<usize, FallbackReason>) -> PositionedResult {
        let (end, at) = self.take()?;
        let read = work(at).inspect_err(|_| self.give_back(end, at))?;
        if read == self.count {
            return Ok((end, read));
        }
        let less = read as i64 - self.count as i64;
        Ok((real::seek(self.fd, less, libc::SEEK_CUR).ok_or(MountReason::Odd)?, read))
    }

    /// Moves the position first: nobody else gets this place.
    fn write(self, work: impl Fn(u64) -> Result<usize, FallbackReason>) -> PositionedResult {
        let (end, at) = self.take()?;
        let written = work(at).inspect_err(|_| self.give_back(end, at))?;
        Ok((end, written))
    }

    /// Moves the position: where it is now, and where it was.
    fn take(self) -> Result<(u64, u64), FallbackReason> {
        let end = real::seek(self.fd, self.count as i64, libc::SEEK_CUR).ok_or(MountReason::Odd)?;
        Ok((end, end.checked_sub(self.count as u64).ok_or(MountReason::Odd)?))
    }

    /// Moves it back, unless somebody has taken the next place.
    fn give_back(self, end: u64, at: u64) {
        if real::seek(self.fd, 0, libc::SEEK_CUR) == Some(end) {
            real::seek(self.fd, at.cast_signed(), libc::SEEK_SET);
        }
    }
}

/// Classifies a failure for the call: some are its answer, all others are for the kernel to find out anew.
fn judge(held: &File, failure: Errno, count: usize) -> FallbackReason {
    match failure {
        // A part of it may have room.
        Errno::ENOSPC | Errno::EDQUOT if count > REQUEST_MAX => MountReason::Odd.into(),
        Errno::ENOSPC | Errno::EDQUOT | Errno::EIO => FallbackReason::Failed(failure),
        Errno::EFAULT | Errno::EFBIG => MountReason::Odd.into(),
        _ => {
            held.leave_to_mount();
            MountReason::Odd.into()
        }
    }
}

/// Reads in one, and parts it.
fn read_pieces(client: &Client, direct: &DirectFile, at: u64, pieces: &[iovec]) -> FsResult<usize> {
    let mut gathered = vec![0; pieces.iter().map(|piece| piece.iov_len).sum()];
    let read = client.read(direct.ino, at, &mut gathered)?;
    let mut rest = gathered.get(..read).unwrap_or_default();
    for piece in pieces {
        let (now, behind) = rest.split_at(piece.iov_len.min(rest.len()));
        // SAFETY: the program says that there is room for so many bytes.
        unsafe { bytes_mut(piece) }
            .get_mut(..now.len())
            .map(|into| into.copy_from_slice(now))
            .unwrap_or_default();
        rest = behind;
    }
    Ok(read)
}

fn gathered(pieces: &[iovec]) -> Vec<u8> {
    // SAFETY: the program says that there are so many bytes.
    pieces.iter().flat_map(|piece| unsafe { bytes(piece) }).copied().collect()
}

/// Returns whether a list of pieces can be done here: short ones are put together, so that they stay one request.
fn are_few(pieces: &[iovec]) -> bool {
    pieces.len() == 1
        || pieces.len() <= PIECES_MAX && total(pieces).is_some_and(|count| count <= GATHERED_MAX)
}

unsafe fn bytes(piece: &iovec) -> &[u8] {
    if piece.iov_len == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) }
}

#[allow(clippy::mut_from_ref, reason = "the piece is where the bytes are, not the bytes")]
unsafe fn bytes_mut(piece: &iovec) -> &mut [u8] {
    if piece.iov_len == 0 {
        return &mut [];
    }
    // SAFETY: as the caller says.
    unsafe { slice::from_raw_parts_mut(piece.iov_base.cast(), piece.iov_len) }
}

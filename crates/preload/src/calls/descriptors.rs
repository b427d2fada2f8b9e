//! Closing, duplicating and passing on descriptors, and mapping what they are.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{c_int, c_long, c_uint, c_void};

use libc::{msghdr, off_t, size_t, ssize_t};

use super::processes;
use crate::file::HeldDescription;
use crate::known::WRITTEN;
use crate::{adopt, errno, given_up, hidden, process, real, serving, table, thread};

/// Fails a call that names a descriptor of this library: to the program there is none.
fn not_yours() -> c_int {
    errno::set(libc::EBADF);
    -1
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if hidden::is(fd) {
        if !thread::is_busy() {
            return not_yours();
        }
        hidden::forget(fd);
    } else if !thread::is_vforked() && table::name(fd).is_some() {
        // First: from then on the number may be somebody else's.
        drop(table::remove(fd));
        given_up::close_given_up();
    }
    // SAFETY: as the caller says.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags.cast_unsigned() & libc::CLOSE_RANGE_UNSHARE != 0 {
        processes::unshares();
    }
    let closes = flags.cast_unsigned() & libc::CLOSE_RANGE_CLOEXEC == 0;
    if !closes || first > last {
        // SAFETY: as the caller says.
        return unsafe { real::close_range(first, last, flags) };
    }
    if !thread::is_vforked() {
        table::within(first, last).for_each(|fd| drop(table::remove(fd)));
        given_up::close_given_up();
    }
    let mut from = first;
    for own in hidden::within(first, last).chain([u32::MAX]) {
        let to = if own == u32::MAX { last } else { own.wrapping_sub(1) };
        if from <= to && own != 0 {
            // SAFETY: as the caller says.
            let closed = unsafe { real::close_range(from, to, flags) };
            if closed != 0 {
                return closed;
            }
        }
        from = own.wrapping_add(1);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(low: c_int) {
    // SAFETY: as the caller says. What goes wrong is not told by this function.
    let _ = unsafe { close_range(low.max(0).cast_unsigned(), u32::MAX, 0) };
}

/// Notes that the new descriptor is what the old one was.
fn duplicated(new: c_int, held: Option<HeldDescription>) -> c_int {
    if new >= 0 {
        table::set(new, held);
    }
    new
}

/// Takes hold of what is about to be duplicated. `Err` where the table is another process's. A thread whose handler
/// jumped out of a call may seem to be at one for ever: what it gets is nothing that is known.
fn source(fd: c_int) -> Result<Option<HeldDescription>, ()> {
    match thread::is_vforked() {
        true => Err(()),
        false => Ok(table::hold(fd).filter(|_| thread::is_idle())),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    if hidden::is(fd) {
        return not_yours();
    }
    let held = source(fd);
    // SAFETY: as the caller says.
    let new = unsafe { real::dup(fd) };
    held.map_or(new, |held| duplicated(new, held))
}

/// Replaces a descriptor by another; `replace` has the kernel do it.
pub(super) fn replaced(from: c_int, to: c_int, replace: impl FnOnce() -> c_int) -> c_int {
    if hidden::is(from) {
        return not_yours();
    }
    if hidden::is(to) {
        // As if somebody were just opening it: this library needs it, and tells no one to wait.
        errno::set(libc::EBUSY);
        return -1;
    }
    let Ok(held) = source(from) else { return replace() };
    if from == to {
        return replace();
    }
    drop(table::remove(to));
    let new = duplicated(replace(), held);
    given_up::close_given_up();
    new
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: as the caller says.
    replaced(from, to, || unsafe { real::dup2(from, to) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: as the caller says.
    replaced(from, to, || unsafe { real::dup3(from, to, flags) })
}

fn controlled(fd: c_int, command: c_int, control: impl FnOnce() -> c_int) -> c_int {
    match command {
        _ if hidden::is(fd) && !thread::is_busy() => not_yours(),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let held = source(fd);
            let new = control();
            held.map_or(new, |held| duplicated(new, held))
        }
        libc::F_SETFL => {
            let outcome = control();
            look_at_flags(fd);
            outcome
        }
        _ => control(),
    }
}

/// Looks at the flags of a description, which may be others now.
pub(super) fn look_at_flags(fd: c_int) {
    if let Some(held) = table::hold(fd) {
        let _errno = errno::ErrnoGuard::new();
        // SAFETY: a question about a descriptor.
        let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
        if flags >= 0 {
            held.set_flags(flags);
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: as the caller says. An argument that was not given is not used either.
    controlled(fd, command, || unsafe { real::fcntl(fd, command, argument) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: as above.
    controlled(fd, command, || unsafe { real::fcntl64(fd, command, argument) })
}

/// Returns whether a message carries descriptors to another process.
///
/// # Safety
/// What it names is there, as `sendmsg` asks.
unsafe fn carries(message: &msghdr) -> bool {
    // SAFETY: as the caller says; the pointers stay within what the message says is there.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = next.as_ref() {
            if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                return true;
            }
            next = libc::CMSG_NXTHDR(message, control);
        }
    }
    false
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller says that it is one, or NULL.
    if unsafe { message.as_ref().is_some_and(|message| carries(message)) } {
        process::share();
    }
    // SAFETY: as the caller says.
    unsafe { real::sendmsg(fd, message, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let length = if messages.is_null() { 0 } else { count as usize };
    // SAFETY: the caller says that there are so many.
    if unsafe { (0..length).any(|index| carries(&(*messages.add(index)).msg_hdr)) } {
        process::share();
    }
    // SAFETY: as the caller says.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}

/// Prepares for a mapping, also of what was not opened here: the same file may be open by a name as well.
pub(super) fn maps(fd: c_int, flags: c_int) {
    if fd >= 0
        && flags & libc::MAP_ANONYMOUS == 0
        && !thread::is_vforked()
        && (serving::is_open() || WRITTEN.has_any())
    {
        let _errno = errno::ErrnoGuard::new();
        adopt::leave_mapped_to_mount(fd);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mmap(
    at: *mut c_void,
    length: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    maps(fd, flags);
    // SAFETY: as the caller says.
    unsafe { real::mmap(at, length, access, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mmap64(
    at: *mut c_void,
    length: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    maps(fd, flags);
    // SAFETY: as the caller says.
    unsafe { real::mmap64(at, length, access, flags, fd, offset) }
}

//! Descriptors, and the files of volumes.
#![allow(unsafe_code, reason = "they are those of the C library, with what it promises")]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    reason = "they are those of the C library"
)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};

use libc::{size_t, ssize_t};

use super::sockets::{receive, send_parts};
use super::{PROCESSORS, fail, is_simulated, next, real};
use crate::chance::Chance;
use crate::net::Object;
use crate::sched::{self, Wait, kernel, point};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if let Some(kernel) = kernel() {
        if is_simulated(fd) {
            point();
            kernel.close(fd);
            kernel.look_at_io();
            return 0;
        }
        // Not closed again by a kill: the number may be another's by then.
        kernel.net.real.remove(&fd);
    }
    real(libc::SYS_close, [c_long::from(fd), 0, 0, 0, 0, 0]) as c_int
}

fn opened(fd: c_long) -> c_int {
    if fd >= 0
        && let Some(kernel) = kernel()
    {
        let process = kernel.process();
        kernel.net.real.insert(fd as c_int, process);
    }
    fd as c_int
}

/// What a file of the kernel's says that tells of the machine: how many of its threads want to run follows from the seed.
fn machine(path: &CStr, chance: &mut Chance) -> Option<String> {
    match path.to_bytes() {
        b"/proc/loadavg" => Some(format!("0.50 0.50 0.50 {}/80 1000\n", chance.within(1, 2 * PROCESSORS))),
        b"/sys/devices/system/cpu/online" => Some(format!("0-{}\n", PROCESSORS - 1)),
        _ => None,
    }
}

/// A real file with this text, to be read from its beginning.
fn file_of(text: &str) -> c_long {
    let fd = real(libc::SYS_memfd_create, [c"machine".as_ptr() as c_long, 0, 0, 0, 0, 0]);
    real(libc::SYS_pwrite64, [fd, text.as_ptr() as c_long, text.len() as c_long, 0, 0, 0]);
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    point();
    if let Some(kernel) = kernel()
        && let Some(text) = machine(unsafe { CStr::from_ptr(path) }, &mut kernel.chance)
    {
        return opened(file_of(&text));
    }
    opened(real(
        libc::SYS_openat,
        [c_long::from(dir), path as c_long, c_long::from(flags), c_long::from(mode), 0, 0],
    ))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    unsafe { openat64(dir, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    unsafe { openat64(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    unsafe { openat64(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    if let Some(kernel) = kernel().filter(|_| is_simulated(fd)) {
        let process = kernel.process();
        let Some(object) = kernel.net.descriptors.get(&fd).map(|descriptor| descriptor.object) else {
            return fail(libc::EBADF);
        };
        return match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => kernel.net.give(object, process),
            libc::F_GETFL => {
                let nonblocking = kernel.net.objects[object].settings.nonblocking;
                libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }
            }
            libc::F_SETFL => {
                kernel.net.objects[object].settings.nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
                0
            }
            _ => 0,
        };
    }
    let result = real(libc::SYS_fcntl, [c_long::from(fd), c_long::from(command), argument, 0, 0, 0]);
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { opened(result) } else { result as c_int }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    unsafe { fcntl(fd, command, argument) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: std::ffi::c_ulong, argument: c_long) -> c_int {
    if is_simulated(fd)
        && let Some(open) = kernel().and_then(|kernel| kernel.net.open(fd))
    {
        if request == libc::FIONBIO as std::ffi::c_ulong {
            // SAFETY: FIONBIO takes the address of a number.
            open.settings.nonblocking = unsafe { *(argument as *const c_int) } != 0;
        }
        return 0;
    }
    real(libc::SYS_ioctl, [c_long::from(fd), request as c_long, argument, 0, 0, 0]) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    if is_simulated(fd)
        && let Some(kernel) = kernel()
    {
        point();
        if let Some(Object::Counter(count)) = kernel.net.open(fd).map(|open| &mut open.object) {
            let value = std::mem::take(count);
            if value == 0 {
                return fail(libc::EAGAIN) as ssize_t;
            }
            unsafe { buffer.cast::<u64>().write_unaligned(value) };
            return 8;
        }
        let parts = libc::iovec { iov_base: buffer, iov_len: len };
        return receive(fd, &[parts], 0);
    }
    real(libc::SYS_read, [c_long::from(fd), buffer as c_long, len as c_long, 0, 0, 0]) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    if is_simulated(fd)
        && let Some(kernel) = kernel()
    {
        point();
        if let Some(Object::Counter(count)) = kernel.net.open(fd).map(|open| &mut open.object) {
            *count += unsafe { buffer.cast::<u64>().read_unaligned() };
            kernel.look_at_io();
            return 8;
        }
        let parts = libc::iovec { iov_base: buffer.cast_mut(), iov_len: len };
        return send_parts(fd, &[parts], 0);
    }
    real(libc::SYS_write, [c_long::from(fd), buffer as c_long, len as c_long, 0, 0, 0]) as ssize_t
}

/// What a disk may do instead of what it is asked for: an errno.
fn disk(fails: impl Fn(sched::Disk) -> u64, errno: c_int) -> Option<c_int> {
    point();
    let kernel = kernel()?;
    let disk = kernel.disk();
    if disk.slow > 0 && kernel.chance.one_in(disk.slow) {
        let time = kernel.chance.within(1_000_000, 300_000_000);
        sched::wait(kernel, Wait::Nothing, Some(time));
    }
    let one_in = fails(disk);
    (one_in > 0 && kernel.chance.one_in(one_in)).then_some(errno)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, buffer: *const c_void, len: size_t, offset: i64) -> ssize_t {
    if let Some(errno) =
        disk(|disk| disk.write_fails, libc::EIO).or_else(|| disk(|disk| disk.full, libc::ENOSPC))
    {
        return fail(errno) as ssize_t;
    }
    if kernel().is_some_and(|kernel| kernel.lies(sched::Lie::LostWrites, 20)) {
        return len as ssize_t;
    }
    let mut now = len;
    if let Some(kernel) = kernel()
        && len > 4096
        && kernel.chance.one_in(4)
    {
        // A kill between two pages leaves the first.
        now = 4096 - (offset as usize % 4096);
    }
    let part = |at: usize, len: usize| {
        let arguments =
            [c_long::from(fd), buffer as c_long + at as c_long, len as c_long, offset + at as c_long, 0, 0];
        real(libc::SYS_pwrite64, arguments)
    };
    let written = part(0, now);
    point();
    if written != now as c_long || now == len {
        return written as ssize_t;
    }
    match part(now, len - now) {
        rest if rest >= 0 => (written + rest) as ssize_t,
        _ => written as ssize_t,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev64(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
) -> ssize_t {
    if let Some(errno) =
        disk(|disk| disk.write_fails, libc::EIO).or_else(|| disk(|disk| disk.full, libc::ENOSPC))
    {
        return fail(errno) as ssize_t;
    }
    let arguments = [c_long::from(fd), parts as c_long, c_long::from(count), offset, 0, 0];
    let result = real(libc::SYS_pwritev, arguments) as ssize_t;
    point();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread64(fd: c_int, buffer: *mut c_void, len: size_t, offset: i64) -> ssize_t {
    disk(|_| 0, 0);
    real(libc::SYS_pread64, [c_long::from(fd), buffer as c_long, len as c_long, offset, 0, 0]) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv64(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
) -> ssize_t {
    disk(|_| 0, 0);
    real(libc::SYS_preadv, [c_long::from(fd), parts as c_long, c_long::from(count), offset, 0, 0]) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate64(fd: c_int, len: i64) -> c_int {
    if let Some(errno) = disk(|disk| disk.write_fails, libc::EIO) {
        return fail(errno);
    }
    real(libc::SYS_ftruncate, [c_long::from(fd), len, 0, 0, 0, 0]) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int {
    let full = |disk: sched::Disk| if mode & libc::FALLOC_FL_PUNCH_HOLE == 0 { disk.full } else { 0 };
    if let Some(errno) = disk(full, libc::ENOSPC) {
        return fail(errno);
    }
    real(libc::SYS_fallocate, [c_long::from(fd), c_long::from(mode), offset, len, 0, 0]) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(_fd: c_int) -> c_int {
    // On a volume in memory there is nothing to wait for.
    match disk(|disk| disk.sync_fails, libc::EIO) {
        Some(errno) => fail(errno),
        None => 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    unsafe { fsync(fd) }
}

/// The machine's other users must not show.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatvfs64(fd: c_int, to: *mut libc::statvfs64) -> c_int {
    let simulated = kernel().is_some();
    let Some(()) = Some(()).filter(|()| simulated) else {
        let statvfs: unsafe extern "C" fn(c_int, *mut libc::statvfs64) -> c_int =
            unsafe { std::mem::transmute(next(c"fstatvfs64")) };
        return unsafe { statvfs(fd, to) };
    };
    let mut space: libc::statvfs64 = unsafe { std::mem::zeroed() };
    (space.f_bsize, space.f_frsize, space.f_namemax) = (4096, 4096, 255);
    (space.f_blocks, space.f_bfree, space.f_bavail) = (1 << 22, 1 << 21, 1 << 21);
    (space.f_files, space.f_ffree, space.f_favail) = (1 << 20, 1 << 20, 1 << 20);
    unsafe { *to = space };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatvfs(fd: c_int, to: *mut libc::statvfs64) -> c_int {
    unsafe { fstatvfs64(fd, to) }
}

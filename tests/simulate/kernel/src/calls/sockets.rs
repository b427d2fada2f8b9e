//! Sockets.
#![allow(unsafe_code, reason = "they are those of the C library, with what it promises")]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    reason = "they are those of the C library"
)]

use std::ffi::{c_int, c_long, c_void};

use libc::{msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::{fail, is_simulated, real, settings};
use crate::net::{IN, OUT, Object, Place, Settings};
use crate::sched::{self, Kernel, Wait, kernel, point};

unsafe fn place(address: *const sockaddr) -> Option<Place> {
    let address = unsafe { address.cast::<libc::sockaddr_in>().as_ref() }?;
    let is_v4 = c_int::from(address.sin_family) == libc::AF_INET;
    is_v4.then(|| (u32::from_be(address.sin_addr.s_addr), u16::from_be(address.sin_port)))
}

unsafe fn put_place((ip, port): Place, address: *mut sockaddr, len: *mut socklen_t) {
    let mut value: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    value.sin_family = libc::AF_INET as libc::sa_family_t;
    (value.sin_addr.s_addr, value.sin_port) = (ip.to_be(), port.to_be());
    unsafe {
        address.cast::<libc::sockaddr_in>().write_unaligned(value);
        *len = size_of::<libc::sockaddr_in>() as socklen_t;
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    match kernel() {
        Some(kernel) => {
            let process = kernel.process();
            kernel.net.add(Object::Fresh { bound: None }, settings(kind), process)
        }
        None => {
            let arguments = [c_long::from(family), c_long::from(kind), c_long::from(protocol), 0, 0, 0];
            real(libc::SYS_socket, arguments) as c_int
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let Some(kernel) = kernel().filter(|_| is_simulated(fd)) else {
        return real(libc::SYS_bind, [c_long::from(fd), address as c_long, c_long::from(len), 0, 0, 0])
            as c_int;
    };
    let Some((ip, port)) = (unsafe { place(address) }) else { return fail(libc::EAFNOSUPPORT) };
    let port = if port == 0 { kernel.net.free_port() } else { port };
    if kernel.net.listener_at((ip, port)).is_some() {
        return fail(libc::EADDRINUSE);
    }
    if let Some(open) = kernel.net.open(fd) {
        open.object = Object::Fresh { bound: Some((ip, port)) };
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let Some(kernel) = kernel().filter(|_| is_simulated(fd)) else {
        return real(libc::SYS_listen, [c_long::from(fd), c_long::from(backlog), 0, 0, 0, 0]) as c_int;
    };
    let Some(open) = kernel.net.open(fd) else { return fail(libc::EBADF) };
    if let Object::Fresh { bound: Some(at) } = open.object {
        open.object = Object::Listener { at, backlog: Default::default() };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if !is_simulated(fd) || kernel().is_none() {
        let arguments = [c_long::from(fd), address as c_long, len as c_long, c_long::from(flags), 0, 0];
        return real(libc::SYS_accept4, arguments) as c_int;
    }
    point();
    loop {
        let Some(kernel) = kernel() else { return fail(libc::EBADF) };
        let process = kernel.process();
        let Some(open) = kernel.net.open(fd) else { return fail(libc::EBADF) };
        let nonblocking = open.settings.nonblocking;
        let Object::Listener { backlog, .. } = &mut open.object else { return fail(libc::EINVAL) };
        if let Some(conn) = backlog.pop_front() {
            if !address.is_null() {
                unsafe { put_place(kernel.net.place_of(conn, 0), address, len) };
            }
            return kernel.net.add(Object::Stream { conn, end: 1 }, settings(flags), process);
        }
        if nonblocking {
            return fail(libc::EAGAIN);
        }
        sched::wait(kernel, Wait::Io(vec![(fd, IN)]), None);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    unsafe { accept4(fd, address, len, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if !is_simulated(fd) || kernel().is_none() {
        let arguments = [c_long::from(fd), address as c_long, c_long::from(len), 0, 0, 0];
        return real(libc::SYS_connect, arguments) as c_int;
    }
    point();
    let Some(kernel) = kernel() else { return fail(libc::EBADF) };
    let Some(to) = (unsafe { place(address) }) else { return fail(libc::ENOENT) };
    let conn = kernel.connect(to);
    let Some(open) = kernel.net.open(fd) else { return fail(libc::EBADF) };
    open.object = Object::Stream { conn, end: 0 };
    if open.settings.nonblocking {
        return fail(libc::EINPROGRESS);
    }
    let time = Some(open.settings.send_ns).filter(|time| *time > 0);
    let came = sched::wait(kernel, Wait::Io(vec![(fd, OUT)]), time);
    match kernel.net.error_of(conn, 0) {
        Some(errno) => fail(errno),
        None if came && kernel.net.is_established(conn) => 0,
        None => fail(libc::EINPROGRESS),
    }
}

unsafe fn name(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, own: bool) -> Option<c_int> {
    let kernel = kernel().filter(|_| is_simulated(fd))?;
    let place = match kernel.net.open(fd).map(|open| &open.object) {
        Some(Object::Stream { conn, end }) => {
            let (conn, end) = (*conn, if own { *end } else { 1 - *end });
            kernel.net.place_of(conn, end)
        }
        Some(Object::Listener { at, .. }) if own => *at,
        Some(Object::Fresh { bound: Some(at) }) if own => *at,
        Some(Object::Fresh { bound: None }) if own => (0, 0),
        _ => return Some(fail(libc::ENOTCONN)),
    };
    unsafe { put_place(place, address, len) };
    Some(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    unsafe { name(fd, address, len, true) }.unwrap_or_else(|| {
        real(libc::SYS_getsockname, [c_long::from(fd), address as c_long, len as c_long, 0, 0, 0]) as c_int
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    unsafe { name(fd, address, len, false) }.unwrap_or_else(|| {
        real(libc::SYS_getpeername, [c_long::from(fd), address as c_long, len as c_long, 0, 0, 0]) as c_int
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Some(kernel) = kernel().filter(|_| is_simulated(fd)) else {
        let arguments = [
            c_long::from(fd),
            c_long::from(level),
            c_long::from(option),
            value as c_long,
            c_long::from(len),
            0,
        ];
        return real(libc::SYS_setsockopt, arguments) as c_int;
    };
    let Some(open) = kernel.net.open(fd) else { return fail(libc::EBADF) };
    if level == libc::SOL_SOCKET && matches!(option, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) {
        let time = unsafe { value.cast::<libc::timeval>().read_unaligned() };
        let time = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        let to = if option == libc::SO_RCVTIMEO {
            &mut open.settings.receive_ns
        } else {
            &mut open.settings.send_ns
        };
        *to = time;
        return 0;
    }
    // All others that are looked at are numbers.
    if len < 4 {
        return 0;
    }
    let number = u64::from(unsafe { value.cast::<u32>().read_unaligned() });
    let settings = &mut open.settings;
    match (level, option) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => settings.keeps_alive = number != 0,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => settings.idle_ns = number * 1_000_000_000,
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => settings.interval_ns = number * 1_000_000_000,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => settings.looks = number,
        _ => {}
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Some(kernel) = kernel().filter(|_| is_simulated(fd)) else {
        let arguments =
            [c_long::from(fd), c_long::from(level), c_long::from(option), value as c_long, len as c_long, 0];
        return real(libc::SYS_getsockopt, arguments) as c_int;
    };
    let Some(open) = kernel.net.open(fd) else { return fail(libc::EBADF) };
    let answer = match (level, option) {
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_INET,
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            c_int::from(matches!(open.object, Object::Listener { .. }))
        }
        _ => 0,
    };
    unsafe {
        value.cast::<c_int>().write_unaligned(answer);
        *len = 4;
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Some(kernel) = kernel().filter(|_| is_simulated(fd)) else {
        return real(libc::SYS_shutdown, [c_long::from(fd), c_long::from(how), 0, 0, 0, 0]) as c_int;
    };
    point();
    let Some(Object::Stream { conn, end }) = kernel.net.open(fd).map(|open| &open.object) else {
        return fail(libc::ENOTCONN);
    };
    let (conn, end) = (*conn, *end);
    kernel.shut(conn, end);
    kernel.look_at_io();
    0
}

fn total(parts: &[libc::iovec]) -> usize {
    parts.iter().map(|part| part.iov_len).sum()
}

fn stream(kernel: &mut Kernel, fd: c_int) -> Result<(usize, usize, Settings), c_int> {
    let Some(open) = kernel.net.open(fd) else { return Err(libc::EBADF) };
    match open.object {
        Object::Stream { conn, end } => Ok((conn, end, open.settings)),
        _ => Err(libc::ENOTCONN),
    }
}

pub(super) fn send_parts(fd: c_int, parts: &[libc::iovec], flags: c_int) -> ssize_t {
    point();
    loop {
        let Some(kernel) = kernel() else { return fail(libc::EBADF) as ssize_t };
        let (conn, end, settings) = match stream(kernel, fd) {
            Ok(stream) => stream,
            Err(errno) => return fail(errno) as ssize_t,
        };
        if kernel.net.error_of(conn, end).is_some() || kernel.net.is_shut(conn, end) {
            return fail(libc::EPIPE) as ssize_t;
        }
        let max = kernel.socket_bytes;
        let mut room = kernel.net.room(conn, end, max).min(total(parts));
        if room > 0 {
            if room > 1 && kernel.chance.one_in(16) {
                room = 1 + kernel.chance.below(room as u64 - 1) as usize;
            }
            let mut bytes = Vec::with_capacity(room);
            for part in parts {
                let len = part.iov_len.min(room - bytes.len());
                if len > 0 {
                    // SAFETY: the caller's buffers.
                    bytes.extend_from_slice(unsafe {
                        std::slice::from_raw_parts(part.iov_base.cast::<u8>(), len)
                    });
                }
            }
            kernel.send(conn, end, Some(bytes), false);
            return room as ssize_t;
        }
        if total(parts) == 0 {
            return 0;
        }
        if settings.nonblocking || flags & libc::MSG_DONTWAIT != 0 {
            return fail(libc::EAGAIN) as ssize_t;
        }
        // Room is looked at every so often: it is rare that there is none.
        let time = Some(1_000_000);
        sched::wait(kernel, Wait::Nothing, time);
    }
}

pub(super) fn receive(fd: c_int, parts: &[libc::iovec], flags: c_int) -> ssize_t {
    point();
    let wanted = total(parts);
    let mut got = Vec::new();
    loop {
        let Some(kernel) = kernel() else { return fail(libc::EBADF) as ssize_t };
        let (conn, end, settings) = match stream(kernel, fd) {
            Ok(stream) => stream,
            Err(errno) => return fail(errno) as ssize_t,
        };
        let (ready, ended) = kernel.net.readable(conn, end);
        let mut len = ready.min(wanted - got.len());
        let whole = flags & libc::MSG_WAITALL != 0;
        if len > 1 && !whole && kernel.chance.one_in(16) {
            len = 1 + kernel.chance.below(len as u64 - 1) as usize;
        }
        if flags & libc::MSG_PEEK != 0 {
            assert!(!whole, "a call that the simulated kernel does not have");
            got.extend(kernel.net.peek(conn, end, len));
        } else {
            got.extend(kernel.net.read(conn, end, len));
        }
        let is_enough = got.len() == wanted || !got.is_empty() && !whole;
        if is_enough || ended || kernel.net.error_of(conn, end).is_some() {
            break;
        }
        let stays = settings.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        let time = Some(settings.receive_ns).filter(|time| *time > 0);
        if stays || !sched::wait(kernel, Wait::Io(vec![(fd, IN)]), time) {
            if got.is_empty() {
                return fail(libc::EAGAIN) as ssize_t;
            }
            break;
        }
    }
    let Some(kernel) = kernel() else { return fail(libc::EBADF) as ssize_t };
    if got.is_empty()
        && wanted > 0
        && let Ok((conn, end, _)) = stream(kernel, fd)
        && !kernel.net.readable(conn, end).1
        && let Some(errno) = kernel.net.error_of(conn, end)
    {
        return fail(errno) as ssize_t;
    }
    let mut rest = got.as_slice();
    for part in parts {
        let (now, later) = rest.split_at(part.iov_len.min(rest.len()));
        if !now.is_empty() {
            // SAFETY: the caller's buffers.
            unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), now.len()) }
                .copy_from_slice(now);
        }
        rest = later;
    }
    got.len() as ssize_t
}

unsafe fn parts_of<'a>(message: *const msghdr) -> &'a [libc::iovec] {
    let message = unsafe { &*message };
    if message.msg_iovlen == 0 {
        return &[];
    }
    unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if is_simulated(fd) && kernel().is_some() {
        return send_parts(fd, unsafe { parts_of(message) }, flags);
    }
    real(libc::SYS_sendmsg, [c_long::from(fd), message as c_long, c_long::from(flags), 0, 0, 0]) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if is_simulated(fd) && kernel().is_some() {
        let result = receive(fd, unsafe { parts_of(message) }, flags);
        unsafe { ((*message).msg_controllen, (*message).msg_flags, (*message).msg_namelen) = (0, 0, 0) };
        return result;
    }
    real(libc::SYS_recvmsg, [c_long::from(fd), message as c_long, c_long::from(flags), 0, 0, 0]) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    if is_simulated(fd) && kernel().is_some() {
        return send_parts(fd, &[libc::iovec { iov_base: buffer.cast_mut(), iov_len: len }], flags);
    }
    let arguments = [c_long::from(fd), buffer as c_long, len as c_long, c_long::from(flags), 0, 0];
    real(libc::SYS_sendto, arguments) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    if is_simulated(fd) && kernel().is_some() {
        return receive(fd, &[libc::iovec { iov_base: buffer, iov_len: len }], flags);
    }
    let arguments = [c_long::from(fd), buffer as c_long, len as c_long, c_long::from(flags), 0, 0];
    real(libc::SYS_recvfrom, arguments) as ssize_t
}

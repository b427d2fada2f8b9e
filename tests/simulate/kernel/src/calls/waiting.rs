//! Waiting for descriptors.
#![allow(unsafe_code, reason = "they are those of the C library, with what it promises")]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    reason = "they are those of the C library"
)]

use std::ffi::{c_int, c_long, c_uint, c_void};

use libc::{epoll_event, pollfd, timespec};

use super::{fail, is_simulated, real, settings, span};
use crate::net::{Object, Settings, Watched};
use crate::sched::{self, Kernel, Wait, kernel, point};

unsafe fn poll_for(fds: *mut pollfd, count: usize, time: Option<u64>) -> c_int {
    point();
    let fds: &mut [pollfd] =
        if count == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(fds, count) } };
    let Some(kernel) = kernel() else { return 0 };
    let always = (libc::POLLHUP | libc::POLLERR) as u32;
    let mut look = |kernel: &Kernel| {
        let mut ready = 0;
        for polled in fds.iter_mut() {
            let events = polled.events as u32 | always;
            polled.revents =
                if is_simulated(polled.fd) { (kernel.net.readiness(polled.fd) & events) as i16 } else { 0 };
            ready += c_int::from(polled.revents != 0);
        }
        ready
    };
    let ready = look(kernel);
    if ready > 0 || time == Some(0) {
        return ready;
    }
    let wanted =
        fds.iter().filter(|p| is_simulated(p.fd)).map(|p| (p.fd, p.events as u32 | always)).collect();
    sched::wait(kernel, Wait::Io(wanted), time);
    let mut ready = 0;
    for polled in fds.iter_mut() {
        let events = polled.events as u32 | always;
        polled.revents =
            if is_simulated(polled.fd) { (kernel.net.readiness(polled.fd) & events) as i16 } else { 0 };
        ready += c_int::from(polled.revents != 0);
    }
    ready
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    if kernel().is_some() {
        let time = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
        return unsafe { poll_for(fds, count as usize, time) };
    }
    real(libc::SYS_poll, [fds as c_long, count as c_long, c_long::from(timeout), 0, 0, 0]) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: libc::nfds_t,
    time: *const timespec,
    mask: *const c_void,
) -> c_int {
    if kernel().is_some() {
        return unsafe { poll_for(fds, count as usize, span(time)) };
    }
    real(libc::SYS_ppoll, [fds as c_long, count as c_long, time as c_long, mask as c_long, 8, 0]) as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn eventfd(start: c_uint, flags: c_int) -> c_int {
    match kernel() {
        Some(kernel) => {
            let process = kernel.process();
            kernel.net.add(
                Object::Counter(u64::from(start)),
                Settings { nonblocking: true, ..settings(0) },
                process,
            )
        }
        None => real(libc::SYS_eventfd2, [c_long::from(start), c_long::from(flags), 0, 0, 0, 0]) as c_int,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn epoll_create1(flags: c_int) -> c_int {
    match kernel() {
        Some(kernel) => {
            let process = kernel.process();
            kernel.net.add(Object::Epoll(Vec::new()), Settings::default(), process)
        }
        None => real(libc::SYS_epoll_create1, [c_long::from(flags), 0, 0, 0, 0, 0]) as c_int,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(kernel) = kernel().filter(|_| is_simulated(epoll)) else {
        let arguments = [c_long::from(epoll), c_long::from(op), c_long::from(fd), event as c_long, 0, 0];
        return real(libc::SYS_epoll_ctl, arguments) as c_int;
    };
    point();
    let Some(object) = kernel.net.descriptors.get(&fd).map(|descriptor| descriptor.object) else {
        return fail(libc::EBADF);
    };
    let wanted = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    let Some(Object::Epoll(watched)) = kernel.net.open(epoll).map(|open| &mut open.object) else {
        return fail(libc::EINVAL);
    };
    let found = watched.iter().position(|entry| entry.fd == fd && entry.object == object);
    match (op, found, wanted) {
        (libc::EPOLL_CTL_ADD, None, Some((events, data))) => {
            watched.push(Watched { fd, object, data, events, armed: true });
        }
        (libc::EPOLL_CTL_ADD, Some(_), _) => return fail(libc::EEXIST),
        (libc::EPOLL_CTL_MOD, Some(at), Some((events, data))) => {
            watched[at] = Watched { fd, object, data, events, armed: true };
        }
        (libc::EPOLL_CTL_DEL, Some(at), _) => drop(watched.remove(at)),
        _ => return fail(libc::ENOENT),
    }
    kernel.look_at_io();
    0
}

unsafe fn epoll_for(epoll: c_int, events: *mut epoll_event, most: c_int, time: Option<u64>) -> c_int {
    point();
    let Some(kernel) = kernel() else { return 0 };
    for turn in 0..2 {
        let len = kernel.net.epoll_len(epoll).max(1);
        let mut count = 0;
        while count < most.max(1) {
            let from = kernel.chance.below(len as u64) as usize;
            let Some((ready, data)) = kernel.net.take_event(epoll, from) else { break };
            unsafe { events.add(count as usize).write_unaligned(epoll_event { events: ready, u64: data }) };
            count += 1;
            // One that is not disarmed would come again.
            if most > 1 {
                break;
            }
        }
        if count > 0 || turn == 1 || time == Some(0) {
            return count;
        }
        if !sched::wait(kernel, Wait::Epoll(epoll), time) {
            return 0;
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    if is_simulated(epoll) && kernel().is_some() {
        let time = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
        return unsafe { epoll_for(epoll, events, most, time) };
    }
    let arguments = [c_long::from(epoll), events as c_long, c_long::from(most), c_long::from(timeout), 0, 0];
    real(libc::SYS_epoll_wait, arguments) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    time: *const timespec,
    mask: *const c_void,
) -> c_int {
    if is_simulated(epoll) && kernel().is_some() {
        return unsafe { epoll_for(epoll, events, most, span(time)) };
    }
    let arguments =
        [c_long::from(epoll), events as c_long, c_long::from(most), time as c_long, mask as c_long, 8];
    real(libc::SYS_epoll_pwait2, arguments) as c_int
}

//! Threads, time, identity and random numbers.
#![allow(unsafe_code, reason = "they are those of the C library, with what it promises")]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    reason = "they are those of the C library"
)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::AtomicU32;

use libc::{size_t, ssize_t, timespec};

use super::{PROCESSORS, fail, next, raw, real, span};
use crate::sched::{self, Wait, kernel, point};

const MONOTONIC_BASE_NS: u64 = 1_000_000_000_000;
const REAL_BASE_NS: u64 = 1_700_000_000_000_000_000;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut timespec) -> c_int {
    point();
    let Some(kernel) = kernel() else {
        return real(libc::SYS_clock_gettime, [c_long::from(clock), time as c_long, 0, 0, 0, 0]) as c_int;
    };
    let base = if clock == libc::CLOCK_REALTIME { REAL_BASE_NS } else { MONOTONIC_BASE_NS };
    let now = base + kernel.now;
    unsafe {
        *time = timespec { tv_sec: (now / 1_000_000_000) as i64, tv_nsec: (now % 1_000_000_000) as i64 }
    };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    match kernel() {
        Some(kernel) => {
            let time = unsafe { span(time) };
            sched::wait(kernel, Wait::Nothing, time);
            0
        }
        None => real(libc::SYS_nanosleep, [time as c_long, left as c_long, 0, 0, 0, 0]) as c_int,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    match kernel() {
        Some(kernel) => {
            let mut time = unsafe { span(time) };
            if flags & libc::TIMER_ABSTIME != 0 {
                time = time.map(|time| time.saturating_sub(MONOTONIC_BASE_NS + kernel.now));
            }
            sched::wait(kernel, Wait::Nothing, time);
            0
        }
        None => {
            let arguments = [c_long::from(clock), c_long::from(flags), time as c_long, left as c_long, 0, 0];
            -raw::call(
                libc::SYS_clock_nanosleep,
                arguments[0],
                arguments[1],
                arguments[2],
                arguments[3],
                0,
                0,
            ) as c_int
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn sched_yield() -> c_int {
    match kernel() {
        Some(kernel) => {
            // Others go on, if there are any.
            let time = 1000 + kernel.chance.below(10_000);
            sched::wait(kernel, Wait::Nothing, Some(time));
            0
        }
        None => real(libc::SYS_sched_yield, [0; 6]) as c_int,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_getaffinity(pid: c_int, len: size_t, set: *mut libc::cpu_set_t) -> c_int {
    unsafe { set.cast::<u8>().write_bytes(0, len) };
    if kernel().is_none() {
        let arguments = [c_long::from(pid), len as c_long, set as c_long, 0, 0, 0];
        return real(libc::SYS_sched_getaffinity, arguments).min(0) as c_int;
    }
    (0..PROCESSORS as usize).for_each(|processor| unsafe { libc::CPU_SET(processor, &mut *set) });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn getpid() -> c_int {
    match kernel() {
        Some(kernel) => 1000 + kernel.process() as c_int,
        None => raw::call(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) as c_int,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    let Some(kernel) = kernel() else {
        let arguments = [buffer as c_long, len as c_long, c_long::from(flags), 0, 0, 0];
        return real(libc::SYS_getrandom, arguments) as ssize_t;
    };
    for at in 0..len {
        unsafe { buffer.cast::<u8>().add(at).write(kernel.chance.draw() as u8) };
    }
    len as ssize_t
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;
type Join = unsafe extern "C" fn(libc::pthread_t, *mut *mut c_void) -> c_int;
type Named = unsafe extern "C" fn(libc::pthread_t, *const c_char) -> c_int;

struct Begin {
    start: Start,
    argument: *mut c_void,
    number: usize,
    baton: *const AtomicU32,
}

/// Runs when all else of a thread has been dropped.
extern "C" fn ended(_: *mut c_void) {
    sched::leave();
}

fn end_key() -> libc::pthread_key_t {
    static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
    let key = KEY.load(std::sync::atomic::Ordering::Acquire);
    if key != u32::MAX {
        return key;
    }
    let mut key = 0;
    // SAFETY: only the thread with the baton comes here.
    unsafe { libc::pthread_key_create(&mut key, Some(ended as unsafe extern "C" fn(*mut c_void))) };
    KEY.store(key, std::sync::atomic::Ordering::Release);
    key
}

extern "C" fn trampoline(argument: *mut c_void) -> *mut c_void {
    // SAFETY: made by `pthread_create` below, for this thread.
    let begin = unsafe { Box::from_raw(argument.cast::<Begin>()) };
    let Begin { start, argument, number, baton } = *begin;
    // SAFETY: batons are never freed.
    sched::enter(number, unsafe { &*baton });
    // SAFETY: the key is there; its value only has to be something.
    unsafe { libc::pthread_setspecific(end_key(), std::ptr::without_provenance(1)) };
    start(argument)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let create: Create = unsafe { std::mem::transmute(next(c"pthread_create")) };
    point();
    let Some(number) = sched::adopt() else { return unsafe { create(thread, attributes, start, argument) } };
    end_key();
    let begin = Box::into_raw(Box::new(Begin { start, argument, number, baton: sched::baton_of(number) }));
    let result = unsafe { create(thread, attributes, trampoline, begin.cast()) };
    if result == 0 {
        sched::is_made(number, unsafe { *thread } as usize);
    } else {
        sched::disown(number);
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_join(thread: libc::pthread_t, value: *mut *mut c_void) -> c_int {
    sched::await_end(thread as usize);
    let join: Join = unsafe { std::mem::transmute(next(c"pthread_join")) };
    unsafe { join(thread, value) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setname_np(thread: libc::pthread_t, name: *const c_char) -> c_int {
    let text = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    sched::name_thread(thread as usize, &text);
    let named: Named = unsafe { std::mem::transmute(next(c"pthread_setname_np")) };
    unsafe { named(thread, name) }
}

/// The standard library waits by this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    n: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if n == libc::SYS_futex && kernel().is_some() {
        return unsafe { futex(a as usize, b as c_int, c as u32, d as *const timespec) };
    }
    if n == libc::SYS_getrandom && kernel().is_some() {
        return unsafe { getrandom(a as *mut c_void, b as usize, c as c_uint) } as c_long;
    }
    if n == libc::SYS_eventfd2 && kernel().is_some() {
        return c_long::from(super::waiting::eventfd(a as c_uint, b as c_int));
    }
    real(n, [a, b, c, d, e, f])
}

unsafe fn futex(address: usize, op: c_int, value: u32, time: *const timespec) -> c_long {
    point();
    let Some(kernel) = kernel() else { return 0 };
    let command = op & 127;
    match command {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            let mut time = unsafe { span(time) };
            if command == libc::FUTEX_WAIT_BITSET {
                let base =
                    if op & libc::FUTEX_CLOCK_REALTIME == 0 { MONOTONIC_BASE_NS } else { REAL_BASE_NS };
                time = time.map(|time| time.saturating_sub(base + kernel.now));
            }
            // SAFETY: the caller's word.
            let word = unsafe { &*(std::ptr::with_exposed_provenance::<AtomicU32>(address)) };
            if word.load(std::sync::atomic::Ordering::SeqCst) != value {
                return c_long::from(fail(libc::EAGAIN));
            }
            match sched::wait(kernel, Wait::Address("futex", address), time) {
                true => 0,
                false => c_long::from(fail(libc::ETIMEDOUT)),
            }
        }
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
            let mut woken = 0;
            while woken < value && sched::wake_one(address) {
                woken += 1;
            }
            c_long::from(woken)
        }
        _ => c_long::from(fail(libc::ENOSYS)),
    }
}

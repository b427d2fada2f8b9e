//! Calls of the C library, answered by the simulated kernel where a simulation runs, else by the real one.
#![allow(unsafe_code, reason = "they are those of the C library, with what it promises")]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    reason = "they are those of the C library"
)]

mod files;
mod sockets;
mod threads;
mod waiting;

use std::ffi::{CStr, c_int, c_long, c_void};

use libc::timespec;

use crate::net::{FIRST_FD, Settings};

/// Processors that the simulated machine has.
const PROCESSORS: u64 = 4;

/// The real kernel.
pub(crate) mod raw {
    use std::arch::asm;
    use std::ffi::{c_int, c_long};
    use std::sync::atomic::AtomicU32;

    pub fn call(n: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
        let result: c_long;
        // SAFETY: a system call; what it does with memory its caller answers for.
        unsafe {
            asm!("syscall", inlateout("rax") n => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
                in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        result
    }

    pub fn futex_wait(word: &AtomicU32, expected: u32) {
        let address = std::ptr::from_ref(word).addr() as c_long;
        call(libc::SYS_futex, address, 128, c_long::from(expected), 0, 0, 0);
    }

    pub fn futex_wake(word: &AtomicU32) {
        let address = std::ptr::from_ref(word).addr() as c_long;
        call(libc::SYS_futex, address, 129, 1, 0, 0, 0);
    }

    pub fn close(fd: c_int) {
        call(libc::SYS_close, c_long::from(fd), 0, 0, 0, 0, 0);
    }

    pub fn exit(code: c_int) -> ! {
        call(libc::SYS_exit_group, c_long::from(code), 0, 0, 0, 0, 0);
        loop {}
    }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the address is this thread's.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// As the C library: what is below zero becomes the errno.
fn outcome(result: c_long) -> c_long {
    if (-4095..0).contains(&result) { c_long::from(fail(-result as c_int)) } else { result }
}

fn real(n: c_long, arguments: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    outcome(raw::call(n, a, b, c, d, e, f))
}

fn is_simulated(fd: c_int) -> bool {
    fd >= FIRST_FD
}

/// A span of time, in nanoseconds.
unsafe fn span(time: *const timespec) -> Option<u64> {
    let time = unsafe { time.as_ref() }?;
    Some((time.tv_sec.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// The C library's own function of this name.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a look-up by name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// What the type of a new socket says of it.
fn settings(kind: c_int) -> Settings {
    Settings { nonblocking: kind & libc::SOCK_NONBLOCK != 0, ..Settings::default() }
}

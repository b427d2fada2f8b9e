//! Calls that restrict the process, and system calls by number.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{c_int, c_long, c_uint};

use libc::{pid_t, rlimit};

use super::{begin, descriptors, processes};
use crate::{hidden, names, pending, process, real, settings};

macro_rules! limits {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            // SAFETY: as the caller says.
            let outcome = unsafe { real::$name($($arg),*) };
            settings::look_at_limits();
            hidden::choose();
            outcome
        }
    )*};
}

limits! {
    setrlimit(resource: c_uint, limits: *const rlimit);
    setrlimit64(resource: c_uint, limits: *const rlimit);
    prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit);
    prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        // What this library needs may be forbidden from now on.
        pending::end();
    }
    // SAFETY: as the caller says. Arguments that were not given are not used either.
    unsafe { real::prctl(option, a, b, c, d) }
}

/// Stands for libc's `syscall`: the arguments are those of the system call. Calls that change the
/// table of descriptors have to be known.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: as the caller says; the kernel looks at as much of them.
    unsafe {
        match number {
            libc::SYS_close => return descriptors::close(a as c_int).into(),
            libc::SYS_close_range => {
                return descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into();
            }
            libc::SYS_dup => return descriptors::dup(a as c_int).into(),
            libc::SYS_fcntl => return descriptors::fcntl(a as c_int, b as c_int, c).into(),
            libc::SYS_dup3 => return descriptors::dup3(a as c_int, b as c_int, c as c_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => return descriptors::dup2(a as c_int, b as c_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork | libc::SYS_vfork => process::share(),
            libc::SYS_clone => processes::is_cloned(a as c_int),
            libc::SYS_clone3 => {
                let flags = (a as *const u64).as_ref().map_or(0, |flags| *flags);
                processes::is_cloned(flags as c_int);
            }
            libc::SYS_sendmsg | libc::SYS_sendmmsg => process::share(),
            libc::SYS_unshare => processes::parts_with(a as c_int),
            libc::SYS_setns | libc::SYS_setfsuid => names::stop(),
            libc::SYS_mmap => descriptors::maps(e as c_int, d as c_int),
            libc::SYS_execve | libc::SYS_execveat => processes::becomes_another(),
            libc::SYS_seccomp => pending::end(),
            libc::SYS_prctl if a == c_long::from(libc::PR_SET_SECCOMP) => pending::end(),
            libc::SYS_exit_group => begin::end(),
            _ => {}
        }
        real::syscall(number, a, b, c, d, e, f)
    }
}

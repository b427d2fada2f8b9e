//! New processes, and the end of this one. Whoever is forked or started may have the program's descriptions too. `fork`
//! itself tells by the handlers that [`process::watch`] leaves with libc.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::{FILE, pid_t, uid_t};

use super::begin;
use crate::{names, pending, process, real, thread};

macro_rules! sharing {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "they are libc's")]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
            process::share();
            // SAFETY: as the caller says. Arguments that were not given are not used either.
            unsafe { real::$name($($arg),*) }
        }
    )*};
}

sharing! {
    _Fork() -> pid_t;
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    posix_spawnp(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clone(
    function: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    thread: *mut c_void,
    child: *mut c_void,
) -> c_int {
    is_cloned(flags);
    // SAFETY: as the caller says. Arguments that were not given are not used either.
    unsafe { real::clone(function, stack, flags, argument, parent, thread, child) }
}

/// Prepares for a child with this memory, but descriptors of its own, which means others by their numbers.
pub(super) fn is_cloned(flags: c_int) {
    process::share();
    if flags & libc::CLONE_VM != 0 && flags & libc::CLONE_FILES == 0 {
        unshares();
    }
}

/// Handles a thread that gets descriptors of its own: their numbers are ambiguous from then on.
pub(super) fn unshares() {
    if !thread::is_vforked() {
        pending::cease();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    parts_with(flags);
    // SAFETY: numbers only.
    unsafe { real::unshare(flags) }
}

/// Notes that the thread is about to have something of its own.
pub(super) fn parts_with(flags: c_int) {
    if flags & libc::CLONE_FILES != 0 {
        unshares();
    }
    if flags & libc::CLONE_NEWUSER != 0 {
        names::stop();
    }
}

/// Names, and owners, may mean something else from now on.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setns(namespace: c_int, kind: c_int) -> c_int {
    names::stop();
    // SAFETY: numbers only.
    unsafe { real::setns(namespace, kind) }
}

/// A thread's rights to files are others than its effective user's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setfsuid(user: uid_t) -> c_int {
    names::stop();
    // SAFETY: a number.
    unsafe { real::setfsuid(user) }
}

/// Prepares for the program's becoming another one, unless that fails.
pub(super) fn becomes_another() {
    if !thread::is_vforked() {
        pending::end();
    }
}

macro_rules! becoming {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            becomes_another();
            // SAFETY: as the caller says.
            unsafe { real::$name($($arg),*) }
        }
    )*};
}

becoming! {
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char);
    execv(path: *const c_char, arguments: *const *const c_char);
    execvp(path: *const c_char, arguments: *const *const c_char);
    execvpe(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char);
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char);
    execveat(
        dir: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char,
        flags: c_int
    );
}

/// The same for those that take any number of arguments, which stay where they are: in registers, and on the stack.
#[cfg(target_arch = "x86_64")]
macro_rules! becoming_with_any {
    ($($name:ident)*) => {$(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> c_int {
            extern "C" fn begin() -> *const c_void {
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                becomes_another();
                real::address(NAME)
            }
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "call {begin}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                begin = sym begin,
            )
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
becoming_with_any! { execl execle execlp }

macro_rules! ending {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(code: c_int) -> ! {
            if !thread::is_vforked() {
                begin::end();
            }
            loop {
                // SAFETY: a number; it does not return.
                unsafe { real::_exit(code) };
            }
        }
    )*};
}

ending! { _exit _Exit }

/// The child of `vfork` runs in this thread's memory until it becomes another program or ends, and the parent waits. It
/// must not take the return address with it: libc's keeps it in a register, and so does this one.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "push rax",
        "call {share}",
        "pop rax",
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "mov rdi, rax",
        "jmp {done}",
        share = sym process_share,
        number = const libc::SYS_vfork,
        done = sym vforked,
    )
}

#[cfg(target_arch = "x86_64")]
extern "C" fn process_share() {
    process::share();
}

/// Runs in the child, and then in the parent: returns what `vfork` returns.
#[cfg(target_arch = "x86_64")]
extern "C" fn vforked(result: i64) -> pid_t {
    thread::set_vforked(result == 0);
    if result < 0 {
        crate::errno::set(-result as c_int);
        return -1;
    }
    result as pid_t
}

/// Elsewhere it is a `fork`, as POSIX allows.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vfork() -> pid_t {
    // SAFETY: as the caller says.
    unsafe { libc::fork() }
}

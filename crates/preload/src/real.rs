//! The functions of libc that this library stands in front of. They are called as libc has them, not as system calls:
//! a thread that waits in one can be cancelled.
#![allow(unsafe_code, reason = "functions of libc are found by name and called by pointer")]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, iovec, mode_t, msghdr, off_t, pid_t, rlimit, sigaction as action, size_t, ssize_t, stat as status,
    timespec, timeval, uid_t, utimbuf,
};

use crate::errno;

/// Returns a function of libc; NULL if this libc has none of that name.
fn find(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends with a NUL; the call has no other conditions.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(found, Ordering::Relaxed);
    found
}

/// A return type with the value of a function that this libc does not have: failure, with `ENOSYS` in `errno`.
trait MissingFunctionResult {
    fn absent() -> Self;
}

macro_rules! absent {
    ($($ty:ty: $value:expr;)*) => {$(
        impl MissingFunctionResult for $ty {
            fn absent() -> $ty {
                errno::set(libc::ENOSYS);
                $value
            }
        }
    )*};
}

absent! {
    c_int: -1;
    c_long: -1;
    ssize_t: -1;
    *mut FILE: std::ptr::null_mut();
    *mut c_void: libc::MAP_FAILED;
    Handler: libc::SIG_ERR;
    (): ();
}

/// A signal's handler.
pub type Handler = libc::sighandler_t;

macro_rules! real {
    ($($(#[$more:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {$(
        $(#[$more])*
        /// Calls libc's function.
        ///
        /// # Safety
        /// As libc's.
        #[allow(clippy::too_many_arguments, reason = "they are libc's")]
        pub unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            type Function = unsafe extern "C-unwind" fn($($ty),*) $(-> $ret)?;
            static PLACE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let found = find(&PLACE, NAME);
            if found.is_null() {
                return MissingFunctionResult::absent();
            }
            // SAFETY: libc's function of this name has this type.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
            // SAFETY: as the caller says.
            unsafe { function($($arg),*) }
        }
    )*};
}

real! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn creat(path: *const c_char, mode: mode_t) -> c_int;
    fn creat64(path: *const c_char, mode: mode_t) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn mkstemp(template: *mut c_char) -> c_int;
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int;

    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    fn pread(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) -> ssize_t;
    fn pwrite(fd: c_int, buffer: *const c_void, count: size_t, offset: off_t) -> ssize_t;
    fn readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    fn preadv(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn pwritev(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn preadv2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t) -> ssize_t;
    fn __pread_chk(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t, room: size_t) -> ssize_t;

    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn fclose(stream: *mut FILE) -> c_int;
    fn fcloseall() -> c_int;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn daemon(stay: c_int, keep: c_int) -> c_int;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn mmap(at: *mut c_void, length: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    fn mmap64(at: *mut c_void, length: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;

    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn splice(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, count: size_t, flags: c_uint
    ) -> ssize_t;
    fn copy_file_range(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, count: size_t, flags: c_uint
    ) -> ssize_t;

    fn fsync(fd: c_int) -> c_int;
    fn fdatasync(fd: c_int) -> c_int;
    fn stat(path: *const c_char, into: *mut status) -> c_int;
    fn stat64(path: *const c_char, into: *mut status) -> c_int;
    fn lstat(path: *const c_char, into: *mut status) -> c_int;
    fn lstat64(path: *const c_char, into: *mut status) -> c_int;
    fn fstat(fd: c_int, into: *mut status) -> c_int;
    fn fstat64(fd: c_int, into: *mut status) -> c_int;
    fn fstatat(dir: c_int, path: *const c_char, into: *mut status, flags: c_int) -> c_int;
    fn fstatat64(dir: c_int, path: *const c_char, into: *mut status, flags: c_int) -> c_int;
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int;
    fn __xstat(version: c_int, path: *const c_char, into: *mut status) -> c_int;
    fn __xstat64(version: c_int, path: *const c_char, into: *mut status) -> c_int;
    fn __lxstat(version: c_int, path: *const c_char, into: *mut status) -> c_int;
    fn __lxstat64(version: c_int, path: *const c_char, into: *mut status) -> c_int;
    fn __fxstat(version: c_int, fd: c_int, into: *mut status) -> c_int;
    fn __fxstat64(version: c_int, fd: c_int, into: *mut status) -> c_int;
    fn __fxstatat(version: c_int, dir: c_int, path: *const c_char, into: *mut status, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, dir: c_int, path: *const c_char, into: *mut status, flags: c_int) -> c_int;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int;
    fn utimes(path: *const c_char, times: *const timeval) -> c_int;
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int;
    fn futimes(fd: c_int, times: *const timeval) -> c_int;
    fn futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int;
    fn utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int;
    fn futimens(fd: c_int, times: *const timespec) -> c_int;

    fn sigaction(signal: c_int, new: *const action, old: *mut action) -> c_int;
    fn signal(signal: c_int, handler: Handler) -> Handler;
    fn bsd_signal(signal: c_int, handler: Handler) -> Handler;
    fn sysv_signal(signal: c_int, handler: Handler) -> Handler;
    fn __sysv_signal(signal: c_int, handler: Handler) -> Handler;
    fn ssignal(signal: c_int, handler: Handler) -> Handler;
    fn sigset(signal: c_int, handler: Handler) -> Handler;

    #[allow(non_snake_case, reason = "it is libc's")]
    fn _Fork() -> pid_t;
    fn clone(
        function: *mut c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_void,
        thread: *mut c_void, child: *mut c_void
    ) -> c_int;
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    fn posix_spawnp(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvp(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvpe(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn execveat(
        dir: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char,
        flags: c_int
    ) -> c_int;
    fn unshare(flags: c_int) -> c_int;
    fn setns(namespace: c_int, kind: c_int) -> c_int;
    fn setfsuid(user: uid_t) -> c_int;
    fn _exit(code: c_int);
    fn __cxa_at_quick_exit(function: extern "C" fn(), library: *mut c_void) -> c_int;
    fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int;
    fn setrlimit(resource: c_uint, limits: *const rlimit) -> c_int;
    fn setrlimit64(resource: c_uint, limits: *const rlimit) -> c_int;
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
}

/// Returns the address of a libc function that takes any number of arguments; if libc has none, that of one that fails.
pub fn address(name: &CStr) -> *const c_void {
    extern "C" fn none() -> c_int {
        MissingFunctionResult::absent()
    }
    // SAFETY: the name ends with a NUL; the call has no other conditions.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() { none as extern "C" fn() -> c_int as *const c_void } else { found }
}

/// Moves a file's position, or returns it: `lseek`, which this library leaves to the kernel.
pub fn seek(fd: c_int, by: i64, whence: c_int) -> Option<u64> {
    // SAFETY: numbers only.
    u64::try_from(unsafe { libc::lseek(fd, by, whence) }).ok()
}

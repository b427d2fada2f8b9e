//! Children of this process: also one that goes on with what this one has in memory, which takes a fraction of what the
//! start of a program does.
#![allow(unsafe_code, reason = "fork has no safe interface")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Child;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, waitpid};

use crate::polling::wait_readable;

/// First descriptor that is not a standard one.
const DESCRIPTORS_FIRST: libc::c_uint = 3;
/// Links of a directory besides those of what is in it.
const LINKS_OWN: u64 = 2;
/// Exit code of one that panicked.
const CODE_PANICKED: i32 = 101;

/// A child of this process.
#[derive(Debug)]
pub struct OwnChild(Pid);

/// Runs `act` in a child of this process, and ends that with the result as its exit code. Of all descriptors it has
/// only these two: its standard input, and its standard error. What `act` uses of this process is a copy, nothing of
/// which is dropped.
///
/// # Errors
/// What the system says; also when this process has other threads, which the child would not have.
pub(crate) fn fork(input: BorrowedFd<'_>, errors: &File, act: impl FnOnce() -> i32) -> io::Result<OwnChild> {
    let nothing = File::options().write(true).open("/dev/null")?;
    if let Some(child) = copy()? {
        return Ok(child);
    }
    let run = || keep_only(input, &nothing, errors).map_or(1, |()| act());
    // A panic must not unwind into the frames of the parent, of which the child has a copy.
    let code = catch_unwind(AssertUnwindSafe(run)).unwrap_or(CODE_PANICKED);
    // SAFETY: ends the process; what its parent has not written out yet is the parent's to write.
    unsafe { libc::_exit(code) }
}

/// Returns a child that has all that this process has, in memory and open. `None` in the child.
///
/// # Errors
/// What the system says; also when this process has other threads, which the child would not have.
pub(crate) fn copy() -> io::Result<Option<OwnChild>> {
    alone()?;
    // SAFETY: this is the only thread, so the child has all that it may find locked or half done.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        child => {
            let pid = Pid::from_raw(child).filter(|_| child > 0);
            pid.map(|pid| Some(OwnChild(pid))).ok_or_else(io::Error::last_os_error)
        }
    }
}

/// Goes on in a child of this process, in a session of its own: whoever ends this process, or its group, does not end
/// that one. `true` in the child; `false` in this process, once the child has ended.
///
/// # Errors
/// What the system says; also when this process has other threads, which the child would not have.
pub fn go_apart() -> io::Result<bool> {
    match copy()? {
        None => {
            rustix::process::setsid()?;
            Ok(true)
        }
        Some(child) => {
            child.wait();
            Ok(false)
        }
    }
}

fn alone() -> io::Result<()> {
    // Each thread is a directory there, and so a link of the one above.
    if std::fs::metadata("/proc/self/task")?.nlink() == LINKS_OWN + 1 {
        return Ok(());
    }
    Err(io::Error::other("a process with several threads cannot be forked"))
}

/// Leaves three descriptors open: those that began as these.
fn keep_only(input: BorrowedFd<'_>, output: &File, errors: &File) -> io::Result<()> {
    let standard = [input, output.as_fd(), errors.as_fd()];
    for (descriptor, number) in standard.into_iter().zip(0..) {
        // SAFETY: the standard descriptors belong to nobody, and a process of Rust always has them.
        if unsafe { libc::dup2(descriptor.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: whoever owned them is a copy that nothing uses any more.
    unsafe { close_others() }
}

/// Closes all descriptors that were inherited, except the standard ones. For a program that was just started and has
/// opened nothing: a process that stays after its command must not hold its caller's pipes, locks and files.
///
/// # Errors
/// What the system says.
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: called before anything is opened, so no descriptor belongs to anything in this process.
    unsafe { close_others() }
}

/// # Safety
/// Nobody may use a descriptor that is not a standard one any more.
unsafe fn close_others() -> io::Result<()> {
    // SAFETY: the call takes numbers alone; what it closes is the caller's to judge.
    match unsafe { libc::syscall(libc::SYS_close_range, DESCRIPTORS_FIRST, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl From<&Child> for OwnChild {
    fn from(child: &Child) -> OwnChild {
        OwnChild(Pid::from_child(child))
    }
}

impl OwnChild {
    /// Tells it to end in its own time.
    pub(crate) fn tell_to_end(&self) {
        let _gone_meanwhile = kill_process(self.0, Signal::TERM);
    }

    /// Returns a descriptor that becomes readable at its end.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn watch(&self) -> io::Result<OwnedFd> {
        Ok(rustix::process::pidfd_open(self.0, PidfdFlags::empty())?)
    }

    /// Waits for its end, `wait_ms` milliseconds at most: then it is killed.
    pub(crate) fn end_within(self, wait_ms: u64) {
        let end = self.watch();
        if !end.is_ok_and(|end| wait_readable(end.as_fd(), wait_ms)) {
            let _gone_meanwhile = kill_process(self.0, Signal::KILL);
        }
        self.wait();
    }

    /// Waits for its end.
    pub fn wait(self) {
        let _it_is_ours = retry_on_intr(|| waitpid(Some(self.0), WaitOptions::empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a test program always is. What is forked in earnest: crates/cli/tests/it/hosts.rs.
    #[test]
    fn a_process_with_threads_is_not_forked() {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let error = fork(null.as_fd(), &null, || 0).unwrap_err();
        assert!(error.to_string().contains("several threads"), "{error}");
    }
}

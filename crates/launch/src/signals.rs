//! Signals as something to poll for, with what the kernel knows of their sender.
#![allow(unsafe_code, reason = "signal masks and signalfd have no safe interface")]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::Signal;

/// Length of what the kernel writes per signal, in bytes.
const RECORD_LEN: usize = 128;
const _: () = assert!(size_of::<libc::signalfd_siginfo>() == RECORD_LEN);
/// Offsets of `ssi_signo` and `ssi_code` in it.
const SIGNO_AT: usize = 0;
const CODE_AT: usize = 8;
const _: () = assert!(CODE_AT + 4 <= RECORD_LEN);
/// `si_code` of a signal that the kernel itself sent, for instance for a key on the terminal.
const FROM_KERNEL: i32 = 0x80;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Its number.
    pub number: i32,
    /// True if the kernel sent it: to the whole foreground group of the terminal.
    pub from_terminal: bool,
}

/// The descriptor that the chosen signals of this process arrive at, instead of having their effect.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
}

impl Signals {
    /// Blocks the signals in this thread, and in those that it makes from now on, and opens the
    /// descriptor. Call it before the first thread is made. Programs inherit what is blocked, unless
    /// [`unblock_in`] prevents it.
    ///
    /// # Errors
    /// What the system says.
    pub fn catch(signals: &[Signal]) -> Result<Signals, Errno> {
        let set = set_of(signals);
        // SAFETY: the set was initialised by `set_of`; the old mask is not asked for.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(Errno::from_raw_os_error(failed));
        }
        // SAFETY: the set was initialised; -1 asks for a new descriptor.
        let raw = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if raw < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        // SAFETY: the call gave us this descriptor, and nobody else has it.
        Ok(Signals { descriptor: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// Returns the next signal that has arrived, without waiting.
    #[must_use]
    pub fn next(&self) -> Option<ReceivedSignal> {
        let mut record = [0u8; RECORD_LEN];
        let len = rustix::io::read(&self.descriptor, &mut record).ok()?;
        if len != RECORD_LEN {
            return None;
        }
        let word =
            |at: usize| i32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        Some(ReceivedSignal { number: word(SIGNO_AT), from_terminal: word(CODE_AT) == FROM_KERNEL })
    }
}

/// Lets a program begin with no signal blocked, whatever this process has caught.
pub fn unblock_in(command: &mut Command) {
    // SAFETY: between fork and exec only the one system call is made, on a set of the child's own.
    unsafe { command.pre_exec(unblock) };
}

/// Begins with no signal blocked, whatever the process has caught that started this one: this program does so itself
/// where it starts itself, and can then be started without a copy of the process that does.
///
/// # Errors
/// What the system says.
pub fn unblock() -> std::io::Result<()> {
    let none = set_of(&[]);
    // SAFETY: the set was initialised by `set_of`; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error)),
    }
}

/// Makes the kernel send a program SIGTERM when this process ends, in whatever way. Call it in the first thread: the
/// kernel reacts to the end of the thread that started the program.
pub fn end_with_us(command: &mut Command) {
    let us = rustix::process::getpid();
    // SAFETY: between fork and exec only two system calls are made, which touch no memory.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            // This process may have ended before the kernel knew.
            match rustix::process::getppid() == Some(us) {
                true => Ok(()),
                false => Err(std::io::ErrorKind::BrokenPipe.into()),
            }
        })
    };
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the pointer leads to space for a set, which the call initialises.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the line above.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: the set is initialised; an impossible number would be refused.
        unsafe { libc::sigaddset(&raw mut set, signal.as_raw()) };
    }
    set
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Sends a signal to the calling thread, and to no other.
    pub(crate) fn signal_this_thread(signal: Signal) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: plain system call without pointers.
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal.as_raw()) };
    }

    #[test]
    fn a_caught_signal_arrives_at_the_descriptor() {
        // A thread of its own, so that the mask does not reach other tests.
        let arrived = std::thread::spawn(|| {
            let signals = Signals::catch(&[Signal::WINCH]).unwrap();
            assert_eq!(signals.next(), None);
            signal_this_thread(Signal::WINCH);
            signals.next()
        });
        let expected = ReceivedSignal { number: libc::SIGWINCH, from_terminal: false };
        assert_eq!(arrived.join().unwrap(), Some(expected));
    }
}

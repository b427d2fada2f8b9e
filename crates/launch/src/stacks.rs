//! Stacks of all threads of this process: for the log of a daemon that stands still, before it is ended.
#![allow(unsafe_code, reason = "signals to single threads and their handlers have no safe interface")]

use std::backtrace::Backtrace;
use std::fmt::Write;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// The signal whose handler takes a thread's stack. Nobody else in a daemon uses it.
const SIGNAL: i32 = libc::SIGUSR2;
/// Time that a thread may take: one that holds what the handler needs never does it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Stack that the last thread that was asked has taken.
static TAKEN: AtomicPtr<Backtrace> = AtomicPtr::new(std::ptr::null_mut());
/// Changes with each stack that is taken.
static COUNT: AtomicU32 = AtomicU32::new(0);

extern "C" fn take(_: i32) {
    // It allocates, which a handler must not: a thread that was interrupted while it did so stands still from now on.
    // The process is about to be ended, and most threads that stand still do so in the kernel.
    let stack = Box::into_raw(Box::new(Backtrace::force_capture()));
    release(TAKEN.swap(stack, Ordering::AcqRel));
    COUNT.fetch_add(1, Ordering::AcqRel);
    // Who waits looks again by itself.
    let _ = futex::wake(&COUNT, futex::Flags::PRIVATE, 1);
}

fn release(stack: *mut Backtrace) -> Option<Box<Backtrace>> {
    // SAFETY: what is in `TAKEN` came from `Box::into_raw`, and whoever swaps it out is the only one that has it.
    (!stack.is_null()).then(|| unsafe { Box::from_raw(stack) })
}

/// Returns the name of each other thread of this process and where it is, as text. Threads are interrupted; call this
/// only in a process that will not go on.
#[must_use]
pub fn stacks_of_all_threads() -> String {
    let mut text = String::new();
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeroed is a valid `sigaction` with an empty mask; the handler has the type that flags without
    // `SA_SIGINFO` ask for, and stays for the life of the process.
    let failed = unsafe {
        (*action.as_mut_ptr()).sa_sigaction = take as extern "C" fn(i32) as usize;
        (*action.as_mut_ptr()).sa_flags = libc::SA_RESTART;
        libc::sigaction(SIGNAL, action.as_ptr(), std::ptr::null_mut())
    };
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return text };
    for thread in threads.flatten() {
        let Some(number) = thread.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if number == own || failed != 0 {
            continue;
        }
        let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        let stack = stack_of(number).map_or_else(|| "does not answer".to_owned(), |stack| stack.to_string());
        // Writing to a text cannot fail.
        let _ = writeln!(text, "thread {number} ({}):\n{stack}", name.trim());
    }
    text
}

fn stack_of(thread: i32) -> Option<Box<Backtrace>> {
    let (deadline, count) = (Instant::now() + PATIENCE, COUNT.load(Ordering::Acquire));
    let process = std::process::id() as i32;
    // SAFETY: a signal to a thread of this process by its number; the system refuses numbers that are none.
    if unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) } != 0 {
        return None;
    }
    while COUNT.load(Ordering::Acquire) == count {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let longest = futex::Timespec::try_from(left).ok();
        // Whatever woke it: it looks again.
        let _ = futex::wait(&COUNT, futex::Flags::PRIVATE, count, longest.as_ref());
    }
    release(TAKEN.swap(std::ptr::null_mut(), Ordering::AcqRel))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[inline(never)]
    fn stands_here(news: &mpsc::Receiver<()>) {
        let _ = news.recv();
        std::hint::black_box(news);
    }

    #[test]
    fn it_is_said_where_each_thread_stands() {
        let (end, news) = mpsc::channel::<()>();
        let (begun, ready) = mpsc::channel();
        let thread = std::thread::Builder::new().name("sleeper".to_owned());
        let thread = thread.spawn(move || {
            begun.send(()).unwrap();
            stands_here(&news);
        });
        ready.recv().unwrap();
        let text = stacks_of_all_threads();
        drop(end);
        thread.unwrap().join().unwrap();
        assert!(text.contains("(sleeper)") && text.contains("stands_here"), "{text}");
    }
}

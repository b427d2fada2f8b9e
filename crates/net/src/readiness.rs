//! Waiting for several sockets at a time.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::hook;

/// The events of a socket for which a request waits, with a deadline.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    socket: BorrowedFd<'a>,
    events: PollFlags,
    until: Instant,
}

impl<'a> Wait<'a> {
    /// Waits for these events of `socket`, at most until `until`.
    pub(crate) fn new(socket: &'a impl AsFd, events: PollFlags, until: Instant) -> Wait<'a> {
        Wait { socket: socket.as_fd(), events, until }
    }
}

/// Waits until a socket is ready or a deadline has passed, and returns for each of `waits` whether it can go on.
/// Without `may_wait` it polls once.
#[must_use]
pub fn await_any(waits: &[Wait<'_>], may_wait: bool) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> =
        waits.iter().map(|wait| PollFd::from_borrowed_fd(wait.socket, wait.events)).collect();
    // The hook has another thread go on with other requests; that is worth it only before a real wait.
    // Without a hook the first look would only cost a system call: the real wait returns at once if something is ready.
    if may_wait && !(hook::is_set() && poll_for(&mut polled, Duration::ZERO)) {
        hook::run();
        let until = waits.iter().map(|wait| wait.until).min();
        // Rounded up, so that the time has passed when the wait ends.
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        poll_for(&mut polled, left + Duration::from_millis(1));
    } else if !may_wait {
        poll_for(&mut polled, Duration::ZERO);
    }
    let now = Instant::now();
    let ready = |(polled, wait): (&PollFd<'_>, &Wait<'_>)| !polled.revents().is_empty() || wait.until <= now;
    polled.iter().zip(waits).map(ready).collect()
}

/// Polls for up to `time`; returns whether a socket is ready.
fn poll_for(polled: &mut [PollFd<'_>], time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match poll(polled, Timespec::try_from(left).ok().as_ref()) {
            Err(Errno::INTR) => {}
            Ok(ready) => return ready > 0,
            // The kernel has no memory for it: the caller tries all of them.
            Err(_) => {
                polled.iter_mut().for_each(PollFd::clear_revents);
                return false;
            }
        }
    }
}

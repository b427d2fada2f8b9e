//! Requests to end, and waiting that they can end.

use std::cell::Cell;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{BenchError, BenchResult};

/// Signals that were caught instead of ending the process, as long as this lives.
#[derive(Debug)]
pub struct Interrupts {
    arrivals: UnixStream,
    handlers: Vec<SigId>,
    arrived: Cell<bool>,
}

impl Interrupts {
    /// Catches Ctrl-C and the polite requests to end.
    ///
    /// # Errors
    /// When the system refuses handlers.
    pub fn catch() -> BenchResult<Interrupts> {
        Interrupts::of(&[SIGINT, SIGTERM, SIGHUP])
    }

    pub(crate) fn of(signals: &[i32]) -> BenchResult<Interrupts> {
        let refused = BenchError::system::<std::io::Error>;
        let (arrivals, told) = UnixStream::pair().map_err(refused("signals"))?;
        // Read without waiting, to see whether anything came; what is taken is remembered, as it comes once.
        arrivals.set_nonblocking(true).map_err(refused("signals"))?;
        let mut caught = Interrupts { arrivals, handlers: Vec::new(), arrived: Cell::new(false) };
        for signal in signals {
            let end = told.try_clone().map_err(refused("signals"))?;
            let handler = signal_hook::low_level::pipe::register(*signal, end).map_err(refused("signals"))?;
            caught.handlers.push(handler);
        }
        Ok(caught)
    }

    /// Fails if somebody asked to end.
    ///
    /// # Errors
    /// [`BenchError::interrupted`].
    pub fn check(&self) -> BenchResult<()> {
        if !self.arrived.get() {
            self.arrived.set((&self.arrivals).read(&mut [0; 1]).is_ok_and(|len| len > 0));
        }
        if self.arrived.get() { Err(BenchError::interrupted()) } else { Ok(()) }
    }

    /// Waits until something can be read, or `ms` have passed. Whether it can.
    ///
    /// # Errors
    /// [`BenchError::interrupted`].
    pub fn wait(&self, readable: BorrowedFd<'_>, ms: Option<u64>) -> BenchResult<bool> {
        // Looked at before waiting: what `check` took from the socket makes it readable no more.
        self.check()?;
        let timeout = ms.map(|ms| Timespec {
            tv_sec: i64::try_from(ms / 1000).unwrap_or(i64::MAX),
            tv_nsec: (ms % 1000 * 1_000_000) as i64,
        });
        let arrivals = self.arrivals.as_fd();
        let mut polled = [
            PollFd::from_borrowed_fd(readable, PollFlags::IN),
            PollFd::from_borrowed_fd(arrivals, PollFlags::IN),
        ];
        retry_on_intr(|| poll(&mut polled, timeout.as_ref())).map_err(BenchError::system("poll"))?;
        let [ready, _] = polled.map(|polled| !polled.revents().is_empty());
        self.check()?;
        Ok(ready)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use signal_hook::consts::SIGWINCH;
    use std::io::Write;

    #[test]
    fn a_signal_ends_every_wait_from_then_on() {
        let caught = Interrupts::of(&[SIGWINCH]).unwrap();
        assert_eq!(caught.check(), Ok(()));
        let (mut near, far) = UnixStream::pair().unwrap();
        assert_eq!(caught.wait(far.as_fd(), Some(0)), Ok(false));
        near.write_all(b"x").unwrap();
        assert_eq!(caught.wait(far.as_fd(), None), Ok(true));
        signal_hook::low_level::raise(SIGWINCH).unwrap();
        for _ in 0..2 {
            let error = caught.wait(far.as_fd(), None).unwrap_err();
            assert_eq!(error.kind(), Kind::Interrupted);
        }
    }
}

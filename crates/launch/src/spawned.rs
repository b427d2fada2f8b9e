//! A process that was started by this one, or by the one whose place this one has taken.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use bivouac_types::limits::NOTIFY_THREAD;
use rustix::process::{Pid, Signal};

use crate::job::describe;
use crate::polling::wait_readable;
use crate::process::{is_left_to, pidfd};

/// End of a process. Only the one that started it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEnd(pub Option<ExitStatus>);

/// A process, and what becomes readable at its end.
#[derive(Debug)]
pub struct Spawned {
    child: Child,
    end: OwnedFd,
}

impl AsFd for Spawned {
    /// Returns a descriptor that is readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl Spawned {
    /// Watches a process that this one has started; kills it if that is not possible.
    ///
    /// # Errors
    /// What the system says.
    pub fn watch(mut child: Child) -> io::Result<Spawned> {
        match pidfd(child.id()) {
            Ok(end) => Ok(Spawned { child, end }),
            Err(error) => {
                // Nobody would look after it.
                let _gone = child.kill().and_then(|()| child.wait());
                Err(error.into())
            }
        }
    }

    /// Returns its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns how it ended, `None` while it runs.
    pub fn look(&mut self) -> Option<ProcessEnd> {
        match self.child.try_wait() {
            Ok(status) => status.map(|status| ProcessEnd(Some(status))),
            // After a takeover it is a child of the former process, and cannot be waited for; its end can still be
            // seen.
            Err(_) => self.is_over().then_some(ProcessEnd(None)),
        }
    }

    /// Sends a signal to it and what is in its group, unless it has ended: its number may be another's then.
    pub fn signal_group(&self, signal: Signal) {
        let group = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group.filter(|_| !self.is_over()) {
            let _gone_meanwhile = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Returns whether nothing is left of it but threads that wait in the kernel for what its successor is to answer.
    pub fn waits_for_successor(&self) -> bool {
        is_left_to(self.id(), NOTIFY_THREAD)
    }

    /// Waits for its end, if it is this process's own.
    pub fn wait(&mut self) {
        let _reaped = self.child.wait();
    }

    fn is_over(&self) -> bool {
        wait_readable(self.end.as_fd(), 0)
    }
}

impl ProcessEnd {
    /// Returns its exit code, if it has one that is known.
    pub fn code(self) -> Option<i32> {
        self.0.and_then(|status| status.code())
    }

    /// Returns whether it may have been killed by a signal that cannot be caught.
    pub fn may_be_killed(self) -> bool {
        self.0.is_none_or(|status| status.signal() == Some(Signal::KILL.as_raw()))
    }
}

impl std::fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(status) => f.write_str(&describe(status)),
            None => f.write_str("ended, it is not known how: it was started by a process that was killed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn ends_are_described() {
        let end = |status: i32| ProcessEnd(Some(ExitStatus::from_raw(status)));
        assert_eq!(
            (end(9).to_string().as_str(), end(9).may_be_killed()),
            ("killed by signal 9 (SIGKILL)", true)
        );
        assert_eq!(
            (end(11).to_string().as_str(), end(11).may_be_killed()),
            ("killed by signal 11 (SIGSEGV)", false)
        );
        assert_eq!((end(3 << 8).to_string().as_str(), end(3 << 8).may_be_killed()), ("exit code 3", false));
        assert!(
            ProcessEnd(None).to_string().starts_with("ended, it is not known how")
                && ProcessEnd(None).may_be_killed()
        );
    }

    #[test]
    fn a_process_is_seen_to_end() {
        let mut spawned = Spawned::watch(Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap()).unwrap();
        assert!(wait_readable(spawned.as_fd(), 60_000));
        assert_eq!(spawned.look().and_then(ProcessEnd::code), Some(7));
        // Its group is nobody's any more.
        spawned.signal_group(Signal::KILL);
    }
}

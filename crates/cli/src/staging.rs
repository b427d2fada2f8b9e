//! Copies inputs into the formation and outputs out of it.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_launch::Signals;
use bivouac_stage::{CopyOptions, StageError, Summary, Transfer, copy_tree};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use crate::progress::Told;

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Into the formation.
    In,
    /// Out of it.
    Out,
}

/// Why not everything was copied.
#[derive(Debug, PartialEq, Eq)]
pub struct NotCopied {
    /// What was not, and why; one line or more.
    pub text: String,
    /// The signal that interrupted it, if one did.
    pub signal: Option<i32>,
}

/// Copies one thing after the other, each verified unless `verify` is off. Goes on after a failure, so that as
/// much as possible is copied; stops at a signal.
///
/// # Errors
/// Everything that was not copied.
pub fn copy_all(
    way: Way,
    transfers: &[Transfer],
    mount: &Path,
    verify: bool,
    signals: &Signals,
) -> Result<(), NotCopied> {
    let mut failures = Vec::new();
    for transfer in transfers {
        let (copied, signal) = interruptible(signals, |cancel| copy(way, transfer, mount, verify, cancel));
        if let Err(error) = copied {
            failures.push(format!("{}: {error}", name(way, transfer)));
        }
        if signal.is_some() {
            failures.push(format!("interrupted by signal {}", signal.unwrap_or_default()));
            return Err(NotCopied { text: failures.join("\n"), signal });
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(NotCopied { text: failures.join("\n"), signal: None }) }
}

fn copy(
    way: Way,
    transfer: &Transfer,
    mount: &Path,
    verify: bool,
    cancel: Arc<AtomicBool>,
) -> Result<Summary, StageError> {
    let prefix = if way == Way::In { "in" } else { "out" };
    let (src, dst) = match way {
        Way::In => (transfer.src.clone(), mount.join(&transfer.dst)),
        Way::Out => (mount.join(&transfer.src), transfer.dst.clone()),
    };
    let told = Told::begin(prefix, name(way, transfer));
    let options = CopyOptions { verify, cancel, ..CopyOptions::default() };
    let copied = copy_tree(&src, &dst, &options, &told).inspect_err(|_| told.clear())?;
    told.done(&copied, verify);
    Ok(copied)
}

/// What the user calls it.
fn name(way: Way, transfer: &Transfer) -> String {
    let Transfer { src, dst } = transfer;
    match way {
        Way::In => format!("{} to /{}", src.display(), dst.display()),
        Way::Out => format!("/{} to {}", src.display(), dst.display()),
    }
}

/// Does something that can be cancelled while looking out for a signal, which it answers.
fn interruptible<T>(signals: &Signals, work: impl FnOnce(Arc<AtomicBool>) -> T) -> (T, Option<i32>) {
    let cancel = Arc::new(AtomicBool::new(false));
    let Ok((working, done)) = UnixStream::pair() else { return (work(cancel), None) };
    std::thread::scope(|scope| {
        let watched = Arc::clone(&cancel);
        let watch = scope.spawn(move || {
            let signal = wait_for_either(signals, &done);
            watched.store(signal.is_some(), Ordering::Relaxed);
            signal
        });
        let result = work(cancel);
        drop(working);
        (result, watch.join().unwrap_or(None))
    })
}

/// Waits for a signal that asks to end, or for the other end of `done` to close.
fn wait_for_either(signals: &Signals, done: &UnixStream) -> Option<i32> {
    loop {
        let mut polled = [PollFd::new(signals, PollFlags::IN), PollFd::new(done, PollFlags::IN)];
        retry_on_intr(|| poll(&mut polled, None)).ok()?;
        let is_done = !polled[1].revents().is_empty();
        match std::iter::from_fn(|| signals.next()).find(|signal| bivouac_launch::asks_to_end(*signal)) {
            Some(signal) => return Some(signal.number),
            None if is_done => return None,
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(src: &Path, dst: &Path) -> Transfer {
        Transfer { src: src.to_owned(), dst: dst.to_owned() }
    }

    #[test]
    fn what_can_be_copied_is_and_the_rest_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let (mount, site) = (dir.path().join("mount"), dir.path().join("site"));
        std::fs::create_dir_all(mount.join("res")).unwrap();
        std::fs::create_dir(&site).unwrap();
        std::fs::write(mount.join("res/a"), "result").unwrap();
        let signals = Signals::catch(&[]).unwrap();
        let outputs =
            [transfer(Path::new("missing"), &site.join("x")), transfer(Path::new("res"), &site.join("res"))];
        let error = copy_all(Way::Out, &outputs, &mount, true, &signals).unwrap_err();
        assert!(error.text.starts_with("/missing to ") && error.text.contains("no such file"), "{error:?}");
        assert_eq!((error.text.lines().count(), error.signal), (1, None));
        assert_eq!(std::fs::read(site.join("res/a")).unwrap(), b"result");
        let inputs = [transfer(&site.join("res"), Path::new("in/again"))];
        copy_all(Way::In, &inputs, &mount, true, &signals).unwrap();
        assert_eq!(std::fs::read(mount.join("in/again/a")).unwrap(), b"result");
    }

    #[test]
    fn work_that_nobody_interrupts_ends_by_itself() {
        let signals = Signals::catch(&[]).unwrap();
        assert_eq!(interruptible(&signals, |cancel| cancel.load(Ordering::Relaxed)), (false, None));
    }
}

//! Locks: what is said to the kernel, and when.

use std::collections::BTreeMap;

use bivouac_mount::{FileLock, LockKind, LockMode, LockWaiting, Locked, Options};
use bivouac_types::{Errno, FsResult};

use crate::memory::{Memory, SEED};
use crate::socket::{HAS_RESEND, Kernel, UNIQUE_RESEND, long, longs, word, words};

const ALL: u64 = u64::MAX;
const GETLK: u32 = 31;
const SETLK: u32 = 32;
const SETLKW: u32 = 33;
const FLUSH: u32 = 25;
const RELEASE: u32 = 18;
const INTERRUPT: u32 = 36;
const EINTR: i32 = -4;
const EAGAIN: i32 = -11;
const READ: u32 = 0;
const WRITE: u32 = 1;
const NONE: u32 = 2;

/// One lock for everything, and who waits for it.
#[derive(Default)]
pub struct OneLock {
    holder: Option<FileLock>,
    waiting: BTreeMap<u64, (FileLock, LockWaiting)>,
}

impl OneLock {
    pub fn set(&mut self, lock: &FileLock, waiting: Option<LockWaiting>) -> FsResult<Locked> {
        if lock.mode == LockMode::Unlock {
            self.free_if(|held| (held.kind, held.owner) == (lock.kind, lock.owner));
            return Ok(Locked::Done);
        }
        match (&self.holder, waiting) {
            (None, _) => self.holder = Some(*lock),
            (Some(held), _) if held.owner == lock.owner => {}
            (Some(_), None) => return Err(Errno::EAGAIN.into()),
            (Some(_), Some(waiting)) => {
                self.waiting.insert(waiting.ticket, (*lock, waiting));
                return Ok(Locked::Waiting);
            }
        }
        Ok(Locked::Done)
    }

    pub fn holder(&self) -> Option<FileLock> {
        self.holder
    }

    pub fn interrupt(&mut self, ticket: u64) {
        if let Some((_, waiting)) = self.waiting.remove(&ticket) {
            (waiting.answer)(Err(Errno::EINTR.into()));
        }
    }

    /// Lets the next one in if what is locked is meant.
    pub fn free_if(&mut self, meant: impl Fn(&FileLock) -> bool) {
        if self.holder.is_none_or(|held| !meant(&held)) {
            return;
        }
        self.holder = None;
        if let Some((_, (lock, waiting))) = self.waiting.pop_first() {
            self.holder = Some(lock);
            (waiting.answer)(Ok(()));
        }
    }
}

/// One reader: a request is looked at after those before it.
fn in_order() -> Options {
    Options { readers_max: 1, ..Options::default() }
}

/// A `fuse_lk_in`.
fn lock(fh: u64, owner: u64, kind: u32, flags: u32) -> Vec<u8> {
    let mut body = Vec::new();
    longs(&mut body, &[fh, owner, 5, 9]);
    words(&mut body, &[kind, 4242, flags, 0]);
    body
}

fn interrupt(kernel: &mut Kernel, unique: u64) {
    kernel.send_as(unique | 1, INTERRUPT, 0, &unique.to_ne_bytes());
}

#[test]
fn a_thousand_that_wait_need_no_thread() {
    let options = Options { readers_max: 1, threads_max: 1, ..Options::default() };
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), options);
    assert_eq!(kernel.ask(SETLKW, SEED.0, &lock(1, 1, WRITE, 0)).error, 0);
    let waiting: Vec<u64> =
        (2..1002).map(|owner| kernel.send(SETLKW, SEED.0, &lock(1, owner, WRITE, 0))).collect();
    assert_eq!(kernel.ask(3, SEED.0, &[0; 16]).error, 0);
    assert_eq!(kernel.ask(SETLK, SEED.0, &lock(1, 2000, READ, 0)).error, EAGAIN);
    for (owner, unique) in (1..).zip(waiting) {
        let unlock = kernel.send(SETLK, SEED.0, &lock(1, owner, NONE, 0));
        let mut answers = [kernel.receive(), kernel.receive()];
        answers.sort_by_key(|answer| answer.unique);
        assert_eq!(answers.map(|answer| (answer.unique, answer.error)), [(unique, 0), (unlock, 0)]);
    }
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn a_wait_is_interrupted_and_nothing_else_is() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), in_order());
    assert_eq!(kernel.ask(SETLKW, SEED.0, &lock(1, 1, WRITE, 0)).error, 0);
    let waiting = kernel.send(SETLKW, SEED.0, &lock(1, 2, WRITE, 0));
    kernel.ask(3, SEED.0, &[0; 16]);
    interrupt(&mut kernel, 100);
    interrupt(&mut kernel, waiting);
    let answer = kernel.receive();
    assert_eq!((answer.unique, answer.error), (waiting, EINTR));
    // A request that is sent again keeps its mark in the answer, and is interrupted under its plain number.
    let again = waiting | UNIQUE_RESEND;
    kernel.send_as(again, SETLKW, SEED.0, &lock(1, 2, WRITE, 0));
    kernel.ask(3, SEED.0, &[0; 16]);
    interrupt(&mut kernel, again);
    let answer = kernel.receive();
    assert_eq!((answer.unique, answer.error), (again, EINTR));
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn what_is_in_the_way_is_shown() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let shown = |body: &[u8]| (long(body, 0), long(body, 8), word(body, 16), word(body, 20));
    assert_eq!(shown(&kernel.ask(GETLK, SEED.0, &lock(1, 2, READ, 0)).body).2, NONE);
    assert_eq!(kernel.ask(SETLK, SEED.0, &lock(1, 1, WRITE, 0)).error, 0);
    assert_eq!(shown(&kernel.ask(GETLK, SEED.0, &lock(1, 2, READ, 0)).body), (5, 9, WRITE, 4242));
    assert_eq!(kernel.ask(SETLK, SEED.0, &lock(1, 1, 7, 0)).error, -22);
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn closing_unlocks_what_it_should() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let mut open = Vec::new();
    words(&mut open, &[2, 0]);
    let fh = long(&kernel.ask(14, SEED.0, &open).body, 0);
    let flush = |owner: u64| {
        let mut body = Vec::new();
        longs(&mut body, &[fh, 0, owner]);
        body
    };
    let mut release = Vec::new();
    longs(&mut release, &[fh, 2 << 32, 7]);
    // A range goes with its process, not with another's.
    assert_eq!(kernel.ask(SETLK, SEED.0, &lock(fh, 1, WRITE, 0)).error, 0);
    assert_eq!(kernel.ask(FLUSH, SEED.0, &flush(2)).error, 0);
    assert!(daemon.fs.locks.lock().holder().is_some());
    assert_eq!(kernel.ask(FLUSH, SEED.0, &flush(1)).error, 0);
    assert!(daemon.fs.locks.lock().holder().is_none());
    // An flock goes with the open file, whose number is its owner's.
    assert_eq!(kernel.ask(SETLK, SEED.0, &lock(fh, 7, WRITE, 1)).error, 0);
    let held = daemon.fs.locks.lock().holder().unwrap();
    assert_eq!((held.kind, held.owner, held.handle), (LockKind::Whole, fh, fh));
    assert_eq!(kernel.ask(FLUSH, SEED.0, &flush(7)).error, 0);
    assert!(daemon.fs.locks.lock().holder().is_some());
    assert_eq!(kernel.ask(RELEASE, SEED.0, &release).error, 0);
    assert!(daemon.fs.locks.lock().holder().is_none());
    // The daemon before may have been killed between forgetting the open file and unlocking it.
    assert_eq!(kernel.ask(SETLK, SEED.0, &lock(fh, 7, WRITE, 1)).error, 0);
    assert_eq!(kernel.ask(RELEASE, SEED.0, &release).error, 0);
    assert!(daemon.fs.locks.lock().holder().is_none());
    kernel.unmount();
    daemon.ended().unwrap();
}

/// S106: the kernel does not wait for its RELEASE before `close` returns.
#[test]
fn a_lock_whose_file_is_closed_is_given_back_before_others_are_refused() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let mut open = Vec::new();
    words(&mut open, &[2, 0]);
    for _ in 0..50 {
        let fh = long(&kernel.ask(14, SEED.0, &open).body, 0);
        assert_eq!(kernel.ask(SETLK, SEED.0, &lock(fh, 7, WRITE, 1)).error, 0);
        let mut release = Vec::new();
        longs(&mut release, &[fh, 2 << 32, 7]);
        let closed = kernel.send(RELEASE, SEED.0, &release);
        let settle = daemon.fs.settle.lock().clone().unwrap();
        settle();
        assert!(daemon.fs.locks.lock().holder().is_none());
        assert_eq!(kernel.receive().unique, closed);
    }
    kernel.unmount();
    daemon.ended().unwrap();
}

/// S109.
#[test]
fn without_resending_a_wait_fails_instead_of_hanging() {
    let (mut kernel, first) = Kernel::started(ALL & !HAS_RESEND, Memory::new(), in_order());
    assert_eq!(kernel.ask(SETLKW, SEED.0, &lock(1, 1, WRITE, 0)).error, 0);
    let over = kernel.send(SETLKW, SEED.0, &lock(1, 2, WRITE, 0));
    kernel.ask(3, SEED.0, &[0; 16]);
    interrupt(&mut kernel, over);
    assert_eq!(kernel.receive().unique, over);
    let waiting = kernel.send(SETLKW, SEED.0, &lock(1, 3, WRITE, 0));
    let looked = kernel.send(3, SEED.0, &[0; 16]);
    assert_eq!(kernel.receive().unique, looked);
    let second = kernel.daemon(Memory::new(), Options::default());
    // The first daemon may not have noted yet that it has answered the look; a kernel ignores a second answer.
    let mut answer = kernel.receive();
    if answer.unique == looked {
        answer = kernel.receive();
    }
    assert_eq!((answer.unique, answer.error), (waiting, -5));
    assert_eq!(kernel.ask(3, SEED.0, &[0; 16]).error, 0);
    kernel.unmount();
    first.ended().unwrap();
    second.ended().unwrap();
}

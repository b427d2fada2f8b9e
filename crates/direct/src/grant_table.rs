//! The daemon's side of a grant table.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, rank};
use bivouac_types::limits::{DIRECT_GATES_MAX, DIRECT_SESSIONS_MAX};
use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, ftruncate, memfd_create};
use rustix::io::retry_on_intr;

use crate::gate::Gate;
use crate::invalidations::{Invalidations, PendingTimeCounters};
use crate::memory::Memory;
use crate::size::SizeGate;
use crate::{BOARD_LEN, GATE_LEN, SESSION_LEN, lock};

/// All sessions of a node.
#[derive(Debug)]
pub struct GrantTable {
    file: OwnedFd,
    memory: Arc<Memory>,
    /// Session at which the search for a free one begins. Locked while one is given, until its process has locked it.
    next: Mutex<u32>,
}

impl GrantTable {
    /// Returns a file in memory for a grant table.
    ///
    /// # Errors
    /// What the system says.
    pub fn make() -> io::Result<OwnedFd> {
        let file = memfd_create("bivouac-direct", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, BOARD_LEN as u64)?;
        Ok(file)
    }

    /// Makes an empty file a grant table; one that is a grant table stays as it is, with all that was told on it.
    ///
    /// # Errors
    /// What the system says; `InvalidInput` for a file that is neither.
    pub fn prepare(file: &OwnedFd) -> io::Result<()> {
        match rustix::fs::fstat(file)?.st_size {
            0 => Ok(ftruncate(file, BOARD_LEN as u64)?),
            len if len == BOARD_LEN as i64 => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Takes a grant table over.
    ///
    /// # Errors
    /// What the system says; `InvalidInput` for a file that is none.
    pub fn open(file: OwnedFd) -> io::Result<GrantTable> {
        if rustix::fs::fstat(&file)?.st_size != BOARD_LEN as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The locks of this daemon's own description would not be in its way.
        let file = reopened(&file)?;
        let memory = Arc::new(Memory::map(file.as_fd(), 0, BOARD_LEN)?);
        Ok(GrantTable { file, memory, next: Mutex::new(rank::GRANT_TABLE, 0) })
    }

    /// Returns whether the process of a session lives. When in doubt it does.
    #[must_use]
    pub fn lives(&self, session: u32) -> bool {
        lock::is_taken(self.file.as_fd(), session, 1).unwrap_or(true)
    }

    /// Closes all gates that an earlier daemon opened, and waits for those inside, `patience` at most for all of them.
    /// Returns those that did not leave in time, with their sessions: their processes live, but stand still.
    ///
    /// # Errors
    /// What the system says.
    pub fn close_all(&self, patience: Duration) -> io::Result<Vec<(u32, Gate)>> {
        // One call for all: a look at each session is one for each, and mostly there is none.
        if !lock::is_taken(self.file.as_fd(), 0, 0)? {
            return Ok(Vec::new());
        }
        let living = (0..DIRECT_SESSIONS_MAX).filter(|session| self.lives(*session));
        let gates: Vec<(u32, Gate)> = living
            .flat_map(|session| (0..DIRECT_GATES_MAX).map(move |gate| (session, gate)))
            .filter_map(|(session, gate)| Some((session, self.gate(session, gate)?)))
            .collect();
        // All before the first wait: meanwhile a process would enter those that are still open.
        gates.iter().for_each(|(_, gate)| gate.close());
        // One time for all: a process that stands still may be inside of many.
        let deadline = Instant::now() + patience;
        let left = || deadline.saturating_duration_since(Instant::now());
        let stuck = |(session, gate): &(u32, Gate)| !gate.drain(left(), || self.lives(*session));
        Ok(gates.into_iter().filter(stuck).collect())
    }

    /// Returns the gates for sizes that an earlier daemon lent and nobody has written down since, also of processes
    /// that are no more.
    ///
    /// # Errors
    /// What the system says.
    pub fn sizes(&self) -> io::Result<Vec<SizeGate>> {
        let (mut found, mut at) = (Vec::new(), 0);
        // To look at what nobody has used would take memory for it.
        while let Some(data) = next_data(self.file.as_fd(), at)? {
            let session = (data / SESSION_LEN as u64) as u32;
            let gates = (0..DIRECT_GATES_MAX).filter_map(|gate| self.gate(session, gate));
            found.extend(gates.filter_map(SizeGate::found));
            at = (u64::from(session) + 1) * SESSION_LEN as u64;
        }
        Ok(found)
    }

    /// Returns a session that nobody has, with a description of the grant table to lock it by; `None` when all are
    /// taken. It counts as free again if it is not locked by the time that all others have been given.
    ///
    /// # Errors
    /// What the system says.
    pub fn new_session(&self) -> io::Result<Option<(u32, OwnedFd)>> {
        let mut next = self.next.lock();
        for _ in 0..DIRECT_SESSIONS_MAX {
            let session = *next;
            *next = (session + 1) % DIRECT_SESSIONS_MAX;
            // The lock shows that a process lives, whatever its memory says; nobody has to notice how it died.
            if !lock::is_taken(self.file.as_fd(), session, 1)? {
                self.allocate(session)?;
                (0..DIRECT_GATES_MAX)
                    .filter_map(|gate| self.gate(session, gate))
                    .for_each(|gate| gate.reset());
                return Ok(Some((session, reopened(&self.file)?)));
            }
        }
        Ok(None)
    }

    /// Takes memory for a session: where there is none, that is an error here, and a signal for who touches it.
    fn allocate(&self, session: u32) -> io::Result<()> {
        let from = u64::from(session) * SESSION_LEN as u64;
        Ok(retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), from, SESSION_LEN as u64))?)
    }

    /// Returns the words by which who looks is called back.
    ///
    /// # Errors
    /// What the system says.
    pub fn invalidations(&self) -> io::Result<Invalidations> {
        Invalidations::of(self.file.as_fd())
    }

    /// Returns the counters of changes that the node's mounts have not told.
    ///
    /// # Errors
    /// What the system says.
    pub fn untold(&self) -> io::Result<PendingTimeCounters> {
        let untold = PendingTimeCounters::of(self.file.as_fd())?;
        untold.enable();
        Ok(untold)
    }

    /// Returns a gate with the grant that it is in use for; `None` for one that there is not.
    #[must_use]
    pub fn gate(&self, session: u32, gate: u32) -> Option<Gate> {
        if session >= DIRECT_SESSIONS_MAX || gate >= DIRECT_GATES_MAX {
            return None;
        }
        let first = session as usize * SESSION_LEN / size_of::<u32>();
        let turn_at = first + gate as usize * (GATE_LEN / size_of::<u32>()) + 1;
        let turn = self.memory.word(turn_at)?.load(std::sync::atomic::Ordering::Acquire);
        Gate::at(&self.memory, first, gate, turn)
    }
}

/// Returns the offset of the first data at or behind a place of the file.
fn next_data(file: BorrowedFd<'_>, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(found) => Ok(Some(found)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns a second open file description of the same file.
fn reopened(file: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(File::options().read(true).write(true).open(path)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Session;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LONG: Duration = Duration::from_secs(60);

    fn grants() -> GrantTable {
        GrantTable::open(GrantTable::make().unwrap()).unwrap()
    }

    fn session(grants: &GrantTable) -> Session {
        let (index, file) = grants.new_session().unwrap().unwrap();
        Session::take(file, index).unwrap()
    }

    /// A gate that is open, as the daemon and as the process see it.
    fn opened(grants: &GrantTable, session: &Session) -> (Gate, Gate) {
        let gate = grants.gate(session.index(), 3).unwrap();
        gate.close();
        let ours = gate.open_next();
        let theirs = session.gate(3, ours.turn()).unwrap();
        (ours, theirs)
    }

    #[test]
    fn sessions_are_different_and_live_as_long_as_they_are_held() {
        let grants = grants();
        let (a, b) = (session(&grants), session(&grants));
        assert_ne!(a.index(), b.index());
        let index = a.index();
        assert!(grants.lives(index) && grants.lives(b.index()));
        drop(a);
        assert!(!grants.lives(index) && grants.lives(b.index()));
        let again = grants.new_session().unwrap().unwrap().1;
        assert!(Session::take(again, b.index()).is_err(), "a session is one process's");
    }

    #[test]
    fn a_closed_gate_lets_nobody_in_and_waits_for_who_is_inside() {
        let grants = grants();
        let session = session(&grants);
        let (ours, theirs) = opened(&grants, &session);
        let pass = theirs.enter();
        assert!(pass.is_some());
        ours.close();
        assert!(theirs.enter().is_none() && !ours.is_empty());
        assert!(!ours.drain(Duration::ZERO, || true), "somebody is inside");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ours.drain(LONG, || true));
            drop(pass);
            assert!(waiting.join().unwrap());
        });
        assert!(ours.is_empty());
    }

    /// A close that came late looked at the turn, and then closed the next grant's gate.
    #[test]
    fn who_closes_a_grant_that_has_ended_leaves_the_next_one_open() {
        let grants = grants();
        let session = session(&grants);
        let (mut ours, _) = opened(&grants, &session);
        let (late, next) = std::sync::mpsc::sync_channel::<Gate>(0);
        std::thread::scope(|scope| {
            scope.spawn(move || next.iter().for_each(|gate| (0..200).for_each(|_| gate.close())));
            for _ in 0..2000 {
                late.send(ours.clone()).unwrap();
                ours.close();
                ours = ours.open_next();
                assert!((0..50).all(|_| ours.enter().is_some()), "closed by who meant another");
            }
            drop(late);
        });
    }

    #[test]
    fn who_is_inside_and_dies_is_not_waited_for() {
        let grants = grants();
        let session = session(&grants);
        let (ours, theirs) = opened(&grants, &session);
        std::mem::forget(theirs.enter());
        ours.close();
        let index = session.index();
        assert!(!ours.drain(Duration::from_millis(1), || grants.lives(index)));
        drop((session, theirs));
        assert!(ours.drain(LONG, || grants.lives(index)));
    }

    #[test]
    fn a_session_of_the_dead_is_new_for_the_next() {
        let grants = grants();
        let dead = session(&grants);
        let (_, theirs) = opened(&grants, &dead);
        std::mem::forget(theirs.enter());
        let index = dead.index();
        drop((dead, theirs));
        let others: Vec<Session> = (1..DIRECT_SESSIONS_MAX).map(|_| session(&grants)).collect();
        let next = session(&grants);
        assert_eq!((next.index(), others.len()), (index, DIRECT_SESSIONS_MAX as usize - 1));
        assert!(grants.new_session().unwrap().is_none(), "all are taken");
        assert!(grants.gate(index, 3).unwrap().is_empty(), "nobody is inside any more");
    }

    #[test]
    fn an_earlier_grant_does_not_enter_on_a_later_one() {
        let grants = grants();
        let session = session(&grants);
        let (ours, theirs) = opened(&grants, &session);
        theirs.close();
        assert!(ours.is_empty());
        let next = ours.open_next();
        assert!(theirs.enter().is_none(), "its turn is over");
        assert!(session.gate(3, next.turn()).unwrap().enter().is_some());
        theirs.close();
        ours.close();
        assert!(!next.is_empty(), "the old grant does not end the new one");
    }

    #[test]
    fn a_later_daemon_closes_what_an_earlier_one_opened() {
        let file = GrantTable::make().unwrap();
        let first = GrantTable::open(file.try_clone().unwrap()).unwrap();
        let session = session(&first);
        let (ours, theirs) = opened(&first, &session);
        ours.mark([1, 2, 3]);
        drop((ours, first));
        let second = GrantTable::open(file).unwrap();
        let pass = theirs.enter();
        let stuck = second.close_all(Duration::ZERO).unwrap();
        assert_eq!((stuck.len(), stuck[0].0, stuck[0].1.marked()), (1, session.index(), [1, 2, 3]));
        drop(pass);
        assert!(second.close_all(Duration::ZERO).unwrap().is_empty());
        assert!(theirs.enter().is_none());
    }

    #[test]
    #[should_panic(expected = "word 16 of a gate")]
    fn a_gate_has_no_words_of_its_neighbour() {
        let grants = grants();
        grants.gate(session(&grants).index(), 3).unwrap().word(16);
    }

    #[test]
    fn nobody_is_inside_while_the_daemon_works() {
        let grants = grants();
        let session = session(&grants);
        let inside = AtomicUsize::new(0);
        let (mut ours, theirs) = opened(&grants, &session);
        let turn = parking_lot::RwLock::new(theirs);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let gate = turn.read().clone();
                        if let Some(_pass) = gate.enter() {
                            inside.fetch_add(1, Ordering::Relaxed);
                            std::hint::spin_loop();
                            inside.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for _ in 0..2000 {
                ours.close();
                assert!(ours.drain(LONG, || true));
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                ours = ours.open_next();
                *turn.write() = session.gate(3, ours.turn()).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn what_is_no_grant_table_is_refused() {
        let file = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert!(GrantTable::open(file.try_clone().unwrap()).is_err());
        assert!(Session::take(file, 0).is_err());
        let grants = grants();
        assert!(grants.gate(DIRECT_SESSIONS_MAX, 0).is_none() && grants.gate(0, DIRECT_GATES_MAX).is_none());
        let session = session(&grants);
        assert!(session.gate(DIRECT_GATES_MAX, 0).is_none());
    }
}

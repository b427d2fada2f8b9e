//! A thread shared by all nodes of a process, which visits each when something is due for it: with a thread for each, a
//! process of a thousand nodes would have a thousand. Work in a visit must not wait for anything.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex, rank};

use crate::pulse::ActiveRequests;

const STACK: usize = 512 << 10;
/// Pause before work that has panicked is tried again.
const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(1);

/// The threads that nodes of one process share. The thread of each of them lives as long as a node needs it.
#[derive(Clone)]
pub struct Rounds {
    /// Background work.
    pub(crate) reaper: Arc<Round>,
    /// Visits for the membership protocol.
    pub(crate) members: Arc<Round>,
    /// Requests under way.
    pub(crate) pulse: Arc<ActiveRequests>,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds { reaper: Round::new("reaper"), members: Round::new("members"), pulse: Arc::default() }
    }
}

/// When a node is to be visited next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextVisit {
    /// At that time, or when called.
    At(Instant),
    /// When called.
    Called,
    /// Never.
    Never,
}

type Work = dyn Fn() -> NextVisit + Send + Sync;

/// A thread and the nodes that it visits.
pub(crate) struct Round {
    name: &'static str,
    state: Mutex<RoundState>,
    /// Signalled when something is due earlier than the thread waits for.
    news: Condvar,
    /// Signalled when a visit is over.
    left: Condvar,
}

#[derive(Default)]
struct RoundState {
    visited: HashMap<u64, Visited>,
    due: BTreeSet<(Instant, u64)>,
    last: u64,
    runs: bool,
    /// The node being visited, and the visiting thread.
    with: Option<(u64, ThreadId)>,
}

struct Visited {
    work: Arc<Work>,
    due: Option<Instant>,
}

/// A place in a round, given up when this is dropped.
pub(crate) struct RoundPlace {
    round: Arc<Round>,
    key: u64,
}

impl Round {
    fn new(name: &'static str) -> Arc<Round> {
        let (state, news, left) =
            (Mutex::new(rank::ROUNDS, RoundState::default()), Condvar::new(), Condvar::new());
        Arc::new(Round { name, state, news, left })
    }

    /// Adds a node: `work` is called when due, the first time at once.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn join(
        self: &Arc<Round>,
        work: impl Fn() -> NextVisit + Send + Sync + 'static,
    ) -> std::io::Result<RoundPlace> {
        let mut state = self.state.lock();
        if !state.runs {
            // Under the lock: a thread that is about to end for want of nodes has either seen this one or ended.
            let own = Arc::clone(self);
            let thread = std::thread::Builder::new().name(self.name.into()).stack_size(STACK);
            thread.spawn(move || own.run())?;
            state.runs = true;
        }
        state.last += 1;
        let key = state.last;
        state.visited.insert(key, Visited { work: Arc::new(work), due: None });
        state.set_due(key, Instant::now());
        drop(state);
        self.news.notify_one();
        Ok(RoundPlace { round: Arc::clone(self), key })
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.visited.is_empty() {
            match state.due.first().copied() {
                None => self.news.wait(&mut state),
                Some((moment, _)) if moment > Instant::now() => {
                    // Due, or called: what is first is looked at again.
                    let _ = self.news.wait_until(&mut state, moment);
                }
                Some((_, key)) => {
                    let Some(work) = state.begin(key) else { continue };
                    drop(state);
                    // What panics has said so. Others are to be looked after all the same, and so is it: without its
                    // chores a node that serves on would keep dead clients and garbage for good.
                    let next = catch_unwind(AssertUnwindSafe(|| work()))
                        .unwrap_or_else(|_| NextVisit::At(Instant::now() + PAUSE_AFTER_PANIC));
                    drop(work);
                    state = self.state.lock();
                    state.end(key, next);
                    self.left.notify_all();
                }
            }
        }
        // Under the lock under which nobody was found: whoever joins next starts another thread.
        state.runs = false;
    }
}

impl RoundState {
    /// Notes when something is due for a node, unless something is due for it earlier. Returns true if that is now the
    /// first of all.
    fn set_due(&mut self, key: u64, moment: Instant) -> bool {
        let Some(visited) = self.visited.get_mut(&key) else { return false };
        if visited.due.is_some_and(|due| due <= moment) {
            return false;
        }
        if let Some(later) = visited.due.replace(moment) {
            let was_due = self.due.remove(&(later, key));
            assert!(was_due, "visit {key} was due, and is not among those that are");
        }
        self.due.insert((moment, key));
        self.due.first().is_some_and(|(_, first)| *first == key)
    }

    fn begin(&mut self, key: u64) -> Option<Arc<Work>> {
        assert!(self.with.is_none(), "visit {key} begins during visit {:?}", self.with);
        self.due.pop_first();
        let visited = self.visited.get_mut(&key)?;
        visited.due = None;
        self.with = Some((key, std::thread::current().id()));
        Some(Arc::clone(&visited.work))
    }

    fn end(&mut self, key: u64, next: NextVisit) {
        let ended = self.with.take().map(|(visited, _)| visited);
        assert_eq!(ended, Some(key), "the visit that ends is another one than the visit that was begun");
        match next {
            NextVisit::At(moment) => drop(self.set_due(key, moment)),
            NextVisit::Called => {}
            NextVisit::Never => self.remove(key),
        }
    }

    fn remove(&mut self, key: u64) {
        if let Some(due) = self.visited.remove(&key).and_then(|visited| visited.due) {
            self.due.remove(&(due, key));
        }
    }
}

impl RoundPlace {
    /// Asks for a visit at `moment`, if none is due earlier.
    pub fn call_at(&self, moment: Instant) {
        if self.round.state.lock().set_due(self.key, moment) {
            self.round.news.notify_one();
        }
    }

    /// Asks for a visit now.
    pub fn call(&self) {
        self.call_at(Instant::now());
    }

    /// Waits until nothing is done for this node any more, nor will be.
    pub fn leave(&self) {
        let mut state = self.round.state.lock();
        state.remove(self.key);
        // A node may end during its own visit, if the visit holds it last: that does not wait for itself.
        let this = std::thread::current().id();
        let at_work =
            |state: &mut RoundState| state.with.is_some_and(|(key, by)| key == self.key && by != this);
        self.round.left.wait_while(&mut state, at_work);
        drop(state);
        self.round.news.notify_one();
    }
}

impl Drop for RoundPlace {
    fn drop(&mut self) {
        // The thread has to look as well, since it ends when nobody is left to be visited.
        self.round.state.lock().remove(self.key);
        self.round.news.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn each_is_visited_when_it_is_due() {
        let round = Round::new("test");
        let (said, heard) = channel();
        let join = |name: char| {
            let said = said.clone();
            let work = move || {
                said.send((name, Instant::now())).unwrap();
                NextVisit::Called
            };
            round.join(work).unwrap()
        };
        let (a, b) = (join('a'), join('b'));
        assert_eq!([(); 2].map(|()| heard.recv().unwrap().0), ['a', 'b'], "at first at once");
        // While somebody is visited, what becomes due for others waits.
        let (allow, allowed) = channel::<()>();
        let (begin, begun) = channel();
        let allowed = Mutex::new(rank::LEAF, allowed);
        let gate = round.join(move || {
            begin.send(()).unwrap();
            let _ended = allowed.lock().recv();
            NextVisit::Never
        });
        let gate = gate.unwrap();
        begun.recv().unwrap();
        let (later, soon) = (Instant::now() + Duration::from_millis(40), Instant::now());
        a.call_at(later);
        b.call_at(later + Duration::from_secs(1000));
        b.call_at(soon);
        allow.send(()).unwrap();
        assert_eq!(heard.recv().unwrap().0, 'b', "what is due first, not what was said first");
        let (name, visited) = heard.recv().unwrap();
        assert!(name == 'a' && visited >= later);
        drop(gate);
    }

    #[test]
    fn a_call_during_a_visit_is_not_lost() {
        let round = Round::new("test");
        let (said, heard) = channel();
        let (allow, allowed) = channel::<()>();
        let allowed = Mutex::new(rank::LEAF, allowed);
        let place = round.join(move || {
            said.send(()).unwrap();
            let _ended = allowed.lock().recv();
            NextVisit::Called
        });
        let place = place.unwrap();
        heard.recv().unwrap();
        place.call();
        allow.send(()).unwrap();
        heard.recv().unwrap();
        drop(allow);
        place.leave();
        assert!(heard.try_recv().is_err());
    }

    #[test]
    fn what_panics_is_visited_again_and_what_leaves_is_not() {
        let round = Round::new("test");
        let (said, heard) = channel();
        let (begins, begun) = channel();
        let bad = round.join(move || {
            begins.send(()).unwrap();
            panic!("on purpose")
        });
        let bad = bad.unwrap();
        let good = round.join(move || {
            said.send(()).unwrap();
            NextVisit::Called
        });
        let good = good.unwrap();
        heard.recv().unwrap();
        begun.recv().unwrap();
        bad.call();
        good.call();
        heard.recv().unwrap();
        begun.recv().unwrap();
        good.leave();
        good.call();
        assert!(heard.try_recv().is_err());
        drop((bad, good));
        // The thread has ended or is about to; who joins is visited in any case.
        let (said, heard) = channel();
        let again = round.join(move || {
            said.send(()).unwrap();
            NextVisit::Never
        });
        heard.recv().unwrap();
        drop(again);
    }
}

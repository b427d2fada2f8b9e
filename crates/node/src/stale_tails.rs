//! Files that may have bytes behind their end: written by a client that died before it told the new size. Before such
//! a file grows over a stretch that nobody wrote now, what is behind its end is cut off.
//!
//! A write within or right behind the size needs none of this: it covers what it uncovers. So what this
//! costs is one cut per file that a client had open when it went away, and only if holes are made in it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_ranks::Mutex;
use bivouac_types::{Ino, NodeId};

/// Files of this node that may have bytes behind their ends.
pub struct StaleTails {
    node: NodeId,
    /// Files of this node with a smaller counter are from an earlier daemon, whose marks are lost; 0 if no file was
    /// open then.
    old_below: u64,
    /// True if any file is marked; read without the lock.
    any: AtomicBool,
    state: Mutex<StaleTailsState>,
}

#[derive(Default)]
struct StaleTailsState {
    /// Files that a client had open which went away.
    marked: HashSet<Ino>,
    /// Files of an earlier daemon that were cut since.
    cut: HashSet<Ino>,
}

impl StaleTails {
    /// Creates the table: `first` is the first number that this daemon gives to a file, `had_opens` whether clients of
    /// an earlier one had files open.
    pub fn new(node: NodeId, first: u64, had_opens: bool) -> StaleTails {
        let old_below = if had_opens { first } else { 0 };
        StaleTails { node, old_below, any: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Notes that a client that had these open is gone, perhaps to come back.
    pub fn mark(&self, inos: Vec<Ino>) {
        if !inos.is_empty() {
            self.state.lock().marked.extend(inos);
            // Behind the mark, so that whoever sees this finds it.
            self.any.store(true, Ordering::Release);
        }
    }

    /// Returns true if there may be bytes behind the end of a file.
    pub fn may_have_tail(&self, ino: Ino) -> bool {
        // Counters of other nodes cannot be compared with this one's.
        let old = ino.counter() < self.old_below || (self.old_below > 0 && ino.allocator() != self.node);
        if !old && !self.any.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state.lock();
        state.marked.contains(&ino) || (old && !state.cut.contains(&ino))
    }

    /// Notes that the file was cut at its end, all over.
    pub fn cut(&self, ino: Ino) {
        if self.may_have_tail(ino) {
            let mut state = self.state.lock();
            state.marked.remove(&ino);
            if self.old_below > 0 {
                state.cut.insert(ino);
            }
        }
    }

    /// Forgets a file that is gone.
    pub fn forget(&self, ino: Ino) {
        if self.old_below > 0 || self.any.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            state.marked.remove(&ino);
            state.cut.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::Slot;

    fn ino(counter: u64) -> Ino {
        Ino::new(Slot(3), NodeId(1), counter)
    }

    #[test]
    fn files_of_clients_that_went_away_are_marked_until_they_are_cut() {
        let stale_tails = StaleTails::new(NodeId(1), 100, false);
        assert!(!stale_tails.may_have_tail(ino(5)));
        stale_tails.mark(vec![ino(5), ino(6)]);
        assert!(stale_tails.may_have_tail(ino(5)) && !stale_tails.may_have_tail(ino(7)));
        stale_tails.cut(ino(5));
        assert!(!stale_tails.may_have_tail(ino(5)) && stale_tails.may_have_tail(ino(6)));
        stale_tails.forget(ino(6));
        assert!(!stale_tails.may_have_tail(ino(6)));
    }

    #[test]
    fn after_a_restart_every_older_file_is_in_question_once() {
        let stale_tails = StaleTails::new(NodeId(1), 100, true);
        assert!(stale_tails.may_have_tail(ino(99)) && !stale_tails.may_have_tail(ino(100)));
        assert!(
            stale_tails.may_have_tail(Ino::new(Slot(3), NodeId(2), 5000)),
            "numbers of others say nothing"
        );
        stale_tails.cut(ino(99));
        assert!(!stale_tails.may_have_tail(ino(99)));
        stale_tails.mark(vec![ino(99)]);
        assert!(stale_tails.may_have_tail(ino(99)));
    }
}

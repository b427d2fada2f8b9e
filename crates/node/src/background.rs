//! The background work of a node: what the agenda of the reaper has, done one after the other.

use std::sync::{Arc, Weak};

use bivouac_types::{ClientId, Errno, FsError, FsResult};

use crate::absent_peers::take_blamed;
use crate::identity::SYSTEM;
use crate::namespace::{LOOKED_UP, decode};
use crate::node::Node;
use crate::peers::StepContext;
use crate::reaper::{Chores, Job};
use crate::record::orphan_key;
use crate::rounds::NextVisit;

/// Pieces of subfiles that get checksums before others have their turn.
const SUMS_PIECES: usize = 64;
const STACK: usize = 512 << 10;

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(STACK)
}

fn work(node: &Weak<Node>) -> NextVisit {
    let Some(node) = node.upgrade() else { return NextVisit::Never };
    let start_runner = || {
        let node = Arc::clone(&node);
        thread("runner").spawn(move || node.run_tasks())
    };
    loop {
        match node.reaper.next(node.sessions.next_expiry(), &start_runner) {
            Ok(chores) => node.do_chores(chores),
            Err(next) => return next,
        }
    }
}

impl Node {
    /// Begins the background work.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start_background(self: &Arc<Self>) -> std::io::Result<()> {
        let weak = Arc::downgrade(self);
        let place = self.rounds.reaper.join(move || work(&weak))?;
        self.reaper.begin(place);
        Ok(())
    }

    fn do_chores(&self, chores: Chores) {
        if chores.expired {
            self.end_expired();
        }
        self.forget_lookups(chores.delayed.into_iter());
        self.sweep_direct();
        if chores.compaction && self.records.has_shrunk() {
            // Before it is done, so that what shrinks meanwhile is given back the next time.
            self.records.note_given_back();
            if let Some(give_back) = self.hooks.shrunk.get() {
                give_back();
            }
        }
        if chores.compaction
            && self.records.wants_compaction()
            && let Err(error) = self.records.compact()
        {
            log::error!(why:% = error; "compaction of the records failed, the log goes on growing");
        }
    }

    /// Gives checksums to what waits for them, some of it at a time: there are few threads for all such work.
    fn settle_sums(&self) {
        for _ in 0..SUMS_PIECES {
            if !self.data.settle_sums() {
                return;
            }
        }
        self.reaper.add(Job::Sums);
    }

    /// Does what needs peers until there is nothing of that left.
    fn run_tasks(&self) {
        while let Some(task) = self.reaper.next_task() {
            let outcome = self.run(&task.job);
            match &outcome {
                Ok(()) => drop(self.away.is_here(self.id)),
                Err(error) if task.waited_for.is_none() => log::warn!(why:% = error; "{:?} waits", task.job),
                Err(error) => log::debug!(why:% = error; "{:?} still waits", task.job),
            }
            let waits_for = take_blamed().unwrap_or_else(|| {
                // It is this node itself that cannot: the pauses grow as for others.
                if outcome.is_err() {
                    self.away.is_silent(self.id);
                }
                take_blamed().unwrap_or(self.id)
            });
            self.reaper.conclude(&task, &outcome, waits_for, self.away.pause(waits_for));
        }
    }

    fn run(&self, job: &Job) -> FsResult<()> {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match job {
            Job::Garbage => self.collect_garbage(),
            Job::Pending(node) => self.remove_pending(*node),
            Job::Tell(dir) => self.tell_pending(*dir),
            Job::Spread(dir) => {
                self.spread(*dir);
                Ok(())
            }
            Job::Moves(ticket) => {
                let steps = StepContext { background: true, ..StepContext::question(SYSTEM) };
                self.unlock_moves(*ticket, steps)
            }
            Job::Alive(client) => {
                self.end_unless_alive(*client);
                Ok(())
            }
            Job::Partitions(node) if *node == self.id => self.ask_for_partitions(),
            Job::Partitions(node) => self.tell_partitions(*node),
            Job::Sums => {
                self.settle_sums();
                Ok(())
            }
            Job::Orphan(ino, client) => self.forget_orphan(*ino, *client),
            Job::Intent(slot, tx) => self.replay_intent(*slot, *tx),
        }));
        done.unwrap_or_else(|_| Err(FsError::with(Errno::EIO, "bug: it panicked")))
    }

    /// Looks for what an earlier daemon left, and for what it was about to remove.
    pub(crate) fn adopt_garbage(&self) {
        self.release_from_ended_sessions();
        self.reaper.delay(&self.orphans());
        self.nodes_pending().into_iter().for_each(|node| self.reaper.add(Job::Pending(node)));
        self.reaper.wake();
    }

    /// Inodes without names are not kept for clients whose sessions have ended: a kill may have come between that end
    /// and [`Node::release_orphans`].
    fn release_from_ended_sessions(&self) {
        // Before any request is served: whoever had a session then awaits reclaim.
        let known = self.sessions.awaiting();
        for ino in self.orphans() {
            let holders = self.records.read(ino.slot(), &orphan_key(ino), |bytes| {
                bytes.and_then(|bytes| decode::<Vec<ClientId>>(bytes, "orphan", ino).ok())
            });
            let ended = |client: &ClientId| *client != LOOKED_UP && !known.contains(client);
            holders.into_iter().flatten().filter(ended).for_each(|client| self.release_orphan(ino, client));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Ctx;
    use crate::step::Handle;
    use crate::testing::alone;
    use bivouac_types::{Ino, OpId, OpenId, mode};
    use bivouac_wire::{CloseRequest, Encode, MakeUnnamedRequest, op};

    /// A batch of closes ended at the first that failed, for which a full log was enough; and nobody tried again.
    #[test]
    fn each_close_of_a_batch_counts_and_what_fails_is_done_later() {
        let dir = tempfile::tempdir().unwrap();
        let (node, client) = (alone(dir.path()), ClientId(7));
        let make = |number: u64| {
            let ctx = Ctx { id: OpId(number), ..Ctx::of_node(client) };
            let (parent, open, mode) = (Ino::ROOT, OpenId(number), mode::FILE | 0o600);
            let request =
                MakeUnnamedRequest { parent, mode, uid: 0, gid: 0, near: None, open, linkable: false };
            (op::MakeUnnamed::handle(&node, &ctx, request).unwrap().attr.ino, open)
        };
        let (first, second) = (make(1), make(2));
        let put = |bytes: &[u8]| {
            let mut txn = node.records.txn(&[first.0.slot()]);
            txn.put(first.0.slot(), &orphan_key(first.0), bytes);
            txn.commit().unwrap();
        };
        put(b"no record");
        let close = CloseRequest { floor: OpenId(3), opens: vec![first, second], uses: Vec::new() };
        op::Close::handle(&node, &Ctx::of_node(client), close).unwrap();
        assert_eq!(node.inode(second.0).map(drop).unwrap_err().errno(), Errno::ENOENT);
        assert!(node.inode(first.0).is_ok());
        put(&vec![client].to_bytes());
        node.reaper.add_runner();
        node.run_tasks();
        assert_eq!(node.inode(first.0).map(drop).unwrap_err().errno(), Errno::ENOENT);
    }

    /// A kill between the end of a session and the removal of what was kept for it alone left that for ever.
    #[test]
    fn what_ended_sessions_had_open_is_not_kept_by_the_next_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let (node, ended, known) = (alone(dir.path()), ClientId(7), ClientId(8));
        let make = |number: u64, client: ClientId| {
            let ctx = Ctx { id: OpId(number), ..Ctx::of_node(client) };
            let (parent, open, mode) = (Ino::ROOT, OpenId(number), mode::FILE | 0o600);
            let request =
                MakeUnnamedRequest { parent, mode, uid: 0, gid: 0, near: None, open, linkable: false };
            op::MakeUnnamed::handle(&node, &ctx, request).unwrap().attr.ino
        };
        let [lost, kept] = [make(1, ended), make(2, known)];
        node.sessions.end(ended).forget(&node.records).unwrap();
        drop(node);
        let node = alone(dir.path());
        assert_eq!(node.inode(lost).map(drop).unwrap_err().errno(), Errno::ENOENT);
        assert!(node.inode(kept).is_ok());
    }
}

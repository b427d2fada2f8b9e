//! Resources lent to processes of this machine, each of which has a *direct session*: access to subfiles (grants), and
//! sizes of files (`sizes.rs`). Both are gates in memory that the process and this node share. All of them end with the
//! process, and with the last connection of its client, which is the process's own.
//!
//! Which accesses can be granted together is decided in the store; see docs/decisions/0017-local-direct-access.md.

mod sizes;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bivouac_direct::{Gate, GrantTable, PendingTimeCounters, SizeGate};
use bivouac_store::{Headroom, SubfileId};
use bivouac_types::{ClientId, FsResult, Ino, TargetIndex};

use crate::lending::Passage;
use crate::node::Node;

impl Node {
    /// Begins a direct session of a client, whose process may cache what it is told from then on.
    pub(crate) fn open_direct_session(&self, client: ClientId) -> FsResult<(u32, OwnedFd)> {
        let opened = self.lending.open_session(client)?;
        self.served
            .change(client, |served| served.cache = served.cache.take().or_else(|| self.lending.cache()));
        Ok(opened)
    }

    /// Ends what was lent to a process that has lost its last connection. It is waited for as long as it may show what
    /// it caches.
    pub(crate) fn end_direct_sessions(&self, client: ClientId) {
        if self.lending.forget(client) {
            self.served.change(client, |served| served.cache = None);
            self.reaper.wake();
        }
    }

    /// Takes no more for its volumes in memory than is left of that, from now on.
    pub fn shares_memory(&self, headroom: &Arc<dyn Headroom>) {
        self.data.share_memory(headroom);
    }

    /// Lets processes of this machine read and write subfiles themselves from now on. No gate of the grant table may be
    /// open; `stuck` are those with somebody inside nevertheless, and their sessions.
    ///
    /// # Errors
    /// When the grant table cannot be read.
    pub fn lend(&self, grants: GrantTable, stuck: Vec<(u32, Gate)>) -> std::io::Result<()> {
        let grants = Arc::new(grants);
        self.adopt_sizes(grants.sizes()?);
        // Who stands still in the middle of telling a size finds afterwards that nobody has heard it.
        let accesses = stuck.into_iter().filter(|(_, gate)| !SizeGate::is_one(gate));
        for (session, gate) in accesses {
            let [low, high, target] = gate.marked();
            let (ino, target) = (Ino(u64::from(low) | u64::from(high) << 32), TargetIndex(target));
            let holder = Passage::new(Arc::clone(&grants), session, gate);
            let adopted = self.subfile(ino, target).and_then(|id| Ok(self.data.adopt(id, holder)?));
            if let Err(error) = adopted {
                log::warn!(why:% = error; "inode {ino}: a process is in the middle of an access");
            }
        }
        // Last: from here on processes are granted access, and what others are in the middle of is known by then.
        let is_first = self.lending.grants.set(grants).is_ok();
        assert!(is_first, "{} has two grant tables", self.id);
        Ok(())
    }

    /// Returns the counters by which processes of this machine see that mounts of this node have times not sent yet.
    #[must_use]
    pub fn untold(&self) -> Option<Arc<PendingTimeCounters>> {
        let grants = self.lending.grants.get()?;
        let refused =
            |error: &std::io::Error| log::warn!(why:% = error; "processes look at names through mounts");
        grants.untold().inspect_err(refused).ok().map(Arc::new)
    }

    /// Takes note of what is not lent any more.
    pub(crate) fn sweep_direct(&self) {
        self.sweep_sizes();
        self.lending.sweep();
    }

    /// Takes back what writers of a volume were promised and have not used. Whether there was any writer.
    pub(crate) fn reclaim_direct(&self, volume: u16) -> bool {
        self.sweep_direct();
        let table = self.lending.table.lock();
        let ids: Vec<SubfileId> = table.by_file.keys().filter(|id| id.volume == volume).copied().collect();
        // The store locks subfiles, under which the table is never taken.
        drop(table);
        for id in &ids {
            if let Err(error) = self.data.revoke(*id) {
                log::warn!(error:%; "{error}");
            }
        }
        !ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;
    use bivouac_store::Access;
    use bivouac_types::limits::DIRECT_GATES_MAX;

    const A: ClientId = ClientId(7);
    const B: ClientId = ClientId(8);

    fn lending(dir: &std::path::Path) -> Arc<Node> {
        let node = alone(dir);
        node.lend(GrantTable::open(GrantTable::make().unwrap()).unwrap(), Vec::new()).unwrap();
        node
    }

    /// Each error kept a gate: after as many as a session has, its process had no direct access any more.
    #[test]
    fn a_grant_that_fails_takes_no_gate() {
        let dir = tempfile::tempdir().unwrap();
        let node = lending(dir.path());
        let (session, _file) = node.open_direct_session(A).unwrap();
        let nowhere = SubfileId { volume: 9, ino: Ino(5), target: TargetIndex(0) };
        for _ in 0..=DIRECT_GATES_MAX {
            assert!(node.lending.grant(A, session, nowhere, Access::Read, 0..1).is_err());
        }
        assert!(node.lending.gate(session, A).is_some());
    }

    /// A grant that its process did not live to see became another process's, and so did its gate.
    #[test]
    fn a_gate_stays_with_the_session_that_it_was_taken_for() {
        let dir = tempfile::tempdir().unwrap();
        let node = lending(dir.path());
        let (session, _file) = node.open_direct_session(A).unwrap();
        let taken = node.lending.gate(session, A).unwrap();
        node.end_direct_sessions(A);
        let mut table = node.lending.table.lock();
        for client in [B, A] {
            table.begin_session(session, client);
            assert!(!table.has_session(session, taken.serial));
            table.give_back(taken.serial, (session, taken.number));
            assert!(table.sessions[&session].free.is_empty());
        }
    }
}

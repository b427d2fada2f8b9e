//! Revocation of what a client holds at this node: with its last connection, and with its session. What is not here
//! ends by itself: leases run out, and requests under way end with their answers.

use std::ops::ControlFlow;

use bivouac_types::{ClientId, FsResult, NodeId};
use bivouac_wire::op;

use crate::identity::SYSTEM;
use crate::node::Node;
use crate::peers::StepContext;
use crate::reaper::Job;
use crate::record::done_prefix;
use crate::sessions::Exclusive;

impl Node {
    /// Ends what depends on a client's last connection: grants and lent sizes, which are of its process. The files that
    /// it has open are marked, since there may be bytes behind their ends. Its session goes on for a while.
    pub(crate) fn end_connection(&self, client: ClientId) {
        self.end_direct_sessions(client);
        // Before the grace time begins to run: with the session its opens go, which say what is to be marked.
        self.mark_tails(self.opens.of_client(client));
        self.sessions.disconnect(client);
        self.reaper.call();
    }

    /// Revokes what a client holds longer than a connection: locks, opens, watches.
    ///
    /// # Errors
    /// When that cannot be logged. What is left is taken when this is called again.
    fn end_session(&self, ending: &Exclusive<'_>) -> FsResult<()> {
        let client = ending.client();
        // First what has to be logged: where that fails nothing else has ended, and all of it is tried again.
        self.advisory.forget(&self.records, client, true)?;
        self.opens.remove_client(client);
        self.watches.set(client, &[]);
        self.replies.forget(client);
        self.races.iter().for_each(|races| races.client_gone(client));
        ending.forget(&self.records)
    }

    /// Ends the sessions that have expired.
    pub(crate) fn end_expired(&self) {
        while let Some(ending) = self.sessions.expire() {
            if self.advisory.node_of(ending.client()).is_some() {
                // Whether it is alive takes a question to its node; it stays gone until that is answered.
                self.reaper.add_once(Job::Alive(ending.client()));
                ending.put_off(3 * self.reaper.grace());
            } else {
                self.end_lost(ending);
            }
        }
    }

    /// Ends the session of a client that says that it ends.
    ///
    /// # Errors
    /// When that cannot be logged: the session ends later then.
    pub(crate) fn forget_client(&self, client: ClientId) -> FsResult<()> {
        let ending = self.sessions.end(client);
        let ended = self.end_session(&ending);
        ended.inspect_err(|_| self.sessions.cut_off(&[client]))?;
        self.drop_tokens(client);
        self.callbacks.leases.forget(client);
        self.release_orphans(client);
        Ok(())
    }

    /// Cuts off the mounts of a dead node, unless they are back before anybody misses what they have.
    pub(crate) fn cut_off_mounts(&self, node: NodeId) {
        self.sessions.cut_off(&self.sessions.of_node(self.map.formation, node));
        self.reaper.call();
    }

    /// Takes back that a node's mounts are cut off: it was taken for dead and is not, nor are those mounts that were
    /// connected all the time.
    pub(crate) fn reach_mounts(&self, node: NodeId) {
        self.sessions.reached(&self.sessions.of_node(self.map.formation, node));
    }

    /// Ends the session of a client that is gone. If it is connected after all, its connections are closed, so that it
    /// reclaims what it holds.
    fn end_lost(&self, ending: Exclusive<'_>) {
        let client = ending.client();
        if let Some(hang_up) = self.hooks.forgotten.get() {
            hang_up(client);
        }
        self.lose_tokens(client);
        if let Err(error) = self.end_session(&ending) {
            log::warn!(why:% = error; "the session of client {} ends later", client.0);
            return ending.put_off(self.reaper.grace());
        }
        // The client may come back from here on: what it opens then is not released below.
        drop(ending);
        // What it wrote last may belong to files that are gone.
        self.sweeper.request();
        self.release_orphans(client);
    }

    /// Ends the session of a client that has locks here, unless its node says that it is alive or it has reconnected.
    pub(crate) fn end_unless_alive(&self, client: ClientId) {
        if self.locks_are_alive(client) {
            self.sessions.postpone_expiry(client);
            self.reaper.call();
        } else if let Some(ending) = self.sessions.expire_now(client) {
            self.end_lost(ending);
        }
    }

    /// Returns true if a client that has locks here is alive, though it has sent nothing for long. The node that serves
    /// it is asked.
    fn locks_are_alive(&self, client: ClientId) -> bool {
        match self.advisory.node_of(client) {
            None => false,
            Some(node) if node == self.id => self.served.get(client).locks.is_some(),
            Some(node) => {
                let asked = self.step::<op::ServesClient>(node, StepContext::question(SYSTEM), 0, client);
                // Who watches decides who lives: this node alone may not reach it.
                asked.unwrap_or_else(|_| self.members.sees(node))
            }
        }
    }
}

impl Node {
    /// Removes the records of a client's completed operations: it will not retransmit any more.
    pub(crate) fn forget_outcomes(&self, client: ClientId) -> FsResult<()> {
        let prefix = done_prefix(client);
        // A transaction for each slot: one for all of them would keep every other change of the node waiting.
        for slot in self.own_slots() {
            let mut keys = Vec::new();
            self.records.scan(slot, &prefix, &prefix, |key, _| {
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            });
            if !keys.is_empty() {
                let mut txn = self.records.txn(&[slot]);
                keys.iter().for_each(|key| txn.delete(slot, key));
                txn.commit()?;
            }
        }
        Ok(())
    }
}

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
    /// A client lost its last connection, perhaps to come back: grants and lent sizes end, which are of its process,
    /// and files that it has open may have bytes behind their ends. The session goes on for a while.
    pub(crate) fn end_connection(&self, client: ClientId) {
        self.end_direct_sessions(client);
        self.mark_tails(self.opens.of_client(client));
        self.sessions.disconnect(client);
        self.reaper.call();
    }

    /// Takes back all that a client holds longer than a connection: locks, opens, watches.
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

    /// A node is dead, and so are its mounts, unless they are back before anybody misses what they have.
    pub(crate) fn cut_off_mounts(&self, node: NodeId) {
        self.sessions.cut_off(&self.sessions.of_node(self.map.formation, node));
        self.reaper.call();
    }

    /// A node that was taken for dead is not; nor are its mounts that are connected all the time.
    pub(crate) fn reach_mounts(&self, node: NodeId) {
        self.sessions.reached(&self.sessions.of_node(self.map.formation, node));
    }

    /// Ends the session of a client that is gone. One that is connected all the same has to say again what it has.
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
        drop(ending);
        // What it wrote last may belong to files that are gone.
        self.sweeper.request();
        self.release_orphans(client);
    }

    /// Ends the session of a client whose locks were looked after, unless it is alive, or came back meanwhile.
    pub(crate) fn end_unless_alive(&self, client: ClientId) {
        if self.locks_are_alive(client) {
            self.sessions.is_alive(client);
            self.reaper.call();
        } else if let Some(ending) = self.sessions.expire_now(client) {
            self.end_lost(ending);
        }
    }

    /// Whether a client has something locked here and is alive, only without anything to ask. The node that serves
    /// it says so.
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
    /// Nobody will ask again what came of a client's operations.
    pub(crate) fn forget_outcomes(&self, client: ClientId) -> FsResult<()> {
        let prefix = done_prefix(client);
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

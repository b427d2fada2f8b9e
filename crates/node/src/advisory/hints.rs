//! Tells clients that are served by other nodes that their requests have their locks. Whoever unlocks does not
//! wait for that: each node that is to be told has a thread of its own, which ends when it has been idle for a
//! while. What cannot be delivered is dropped, since clients ask again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bivouac_ranks::{Condvar, Mutex};
use bivouac_types::limits::LOCKS_PER_MESSAGE_MAX;
use bivouac_types::{ClientId, NodeId};
use bivouac_wire::{Encode, GrantedLocks, Op};

use crate::peers::{PeerRequest, Peers};

/// Time without news after which a thread ends.
const IDLE: Duration = Duration::from_secs(2);

/// Most notifications that wait for a node which does not answer.
const WAITING_MAX: usize = 16 * LOCKS_PER_MESSAGE_MAX;

/// Notifications of granted locks that remain to be sent.
pub struct Hints {
    id: NodeId,
    peers: Arc<dyn Peers>,
    /// Notifications by node. Each node that has an entry has a thread.
    outbox: Mutex<HashMap<NodeId, Vec<(ClientId, u64)>>>,
    news: Condvar,
}

impl Hints {
    pub fn new(id: NodeId, peers: Arc<dyn Peers>) -> Hints {
        Hints { id, peers, outbox: Mutex::default(), news: Condvar::new() }
    }

    /// Notifies a client, by way of `node`, that its request with this ticket was granted. Does not wait.
    pub fn send(self: &Arc<Self>, node: NodeId, client: ClientId, ticket: u64) {
        let mut outbox = self.outbox.lock();
        if let Some(waiting) = outbox.get_mut(&node) {
            if waiting.len() < WAITING_MAX {
                waiting.push((client, ticket));
            }
            self.news.notify_all();
            return;
        }
        let hints = Arc::clone(self);
        let builder = std::thread::Builder::new().name("lock-hints".into()).stack_size(256 << 10);
        match builder.spawn(move || hints.work(node)) {
            // Under the lock: the thread finds no entry before it is there, and would end.
            Ok(_) => drop(outbox.insert(node, vec![(client, ticket)])),
            Err(error) => log::warn!(why:% = error; "no thread to tell {node} of its locks; it asks again"),
        }
    }

    fn work(&self, node: NodeId) {
        while let Some(tickets) = self.next(node) {
            let body = GrantedLocks { tickets }.to_bytes();
            let request = PeerRequest::of_node(self.id, Op::LocksGranted, &body);
            if let Err(error) = self.peers.call(node, &request, &mut Vec::new()) {
                log::debug!(why:% = error; "{node} was not told of locks that it has");
            }
        }
    }

    /// Returns the next notifications for a node, [`LOCKS_PER_MESSAGE_MAX`] at most. Returns `None` after [`IDLE`]
    /// without news, and removes the node's entry: the thread ends.
    fn next(&self, node: NodeId) -> Option<Vec<(ClientId, u64)>> {
        let mut outbox = self.outbox.lock();
        loop {
            let waiting = outbox.get_mut(&node)?;
            if !waiting.is_empty() {
                let rest = waiting.split_off(waiting.len().min(LOCKS_PER_MESSAGE_MAX));
                return Some(std::mem::replace(waiting, rest));
            }
            let in_vain = self.news.wait_for(&mut outbox, IDLE).timed_out();
            // Under the lock: whoever sends next finds no entry, and starts another thread.
            if in_vain && outbox.get(&node).is_some_and(Vec::is_empty) {
                outbox.remove(&node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_for_a_node_than_it_may_be_told_soon() {
        let peers = Arc::new(crate::testing::NoPeers);
        let (hints, node) = (Arc::new(Hints::new(NodeId(0), peers)), NodeId(1));
        // As if its thread were waiting for it.
        hints.outbox.lock().insert(node, Vec::new());
        (0..2 * WAITING_MAX as u64).for_each(|ticket| hints.send(node, ClientId(5), ticket));
        assert_eq!(hints.outbox.lock()[&node].len(), WAITING_MAX);
    }
}

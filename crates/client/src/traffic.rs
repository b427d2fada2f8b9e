//! What calls of a thread have cost: messages, and bytes of content by where their seats are. Kept by thread, so that a
//! front end has the costs of each call, however many threads call at once, and no processor waits for another to count.

use std::cell::Cell;

use bivouac_layout::SeatRange;
use bivouac_types::{FsResult, NodeId};

use crate::client::Client;

/// Of one thread, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages to nodes.
    pub messages: u64,
    /// Bytes of content to or from seats of this machine, with a message or without.
    pub bytes_local: u64,
    /// Bytes of content to or from seats of other machines. What is sent again counts again.
    pub bytes_remote: u64,
}

thread_local! {
    static TRAFFIC: Cell<Traffic> = const { Cell::new(Traffic { messages: 0, bytes_local: 0, bytes_remote: 0 }) };
}

/// What calls of this thread have cost so far.
#[must_use]
pub fn traffic() -> Traffic {
    TRAFFIC.with(Cell::get)
}

fn count(change: impl FnOnce(&mut Traffic)) {
    TRAFFIC.with(|cell| {
        let mut traffic = cell.get();
        change(&mut traffic);
        cell.set(traffic);
    });
}

pub fn count_message() {
    count(|traffic| traffic.messages += 1);
}

impl Client {
    /// The node of a seat, to which content is about to go, or from which it comes.
    pub(crate) fn content_node(&self, range: &SeatRange) -> FsResult<NodeId> {
        let node = self.seat_node(range)?;
        self.count_content(node, range.len);
        Ok(node)
    }

    /// Counts content that is about to go to a node, or comes from it.
    pub(crate) fn count_content(&self, node: NodeId, len: u64) {
        let is_here = self.local == Some(node) || self.direct.is_here(node);
        count(|traffic| match is_here {
            true => traffic.bytes_local += len,
            false => traffic.bytes_remote += len,
        });
    }
}

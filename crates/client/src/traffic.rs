//! Costs of calls: messages, and bytes of content by the place of their targets. Counted by thread, so that a front end
//! has the costs of each call however many threads call at once, and no processor waits for another to count.

use std::cell::Cell;

/// Of one thread, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages to nodes.
    pub messages: u64,
    /// Bytes of content to or from targets of this machine, with a message or without.
    pub bytes_local: u64,
    /// Bytes of content to or from targets of other machines. What is sent again counts again.
    pub bytes_remote: u64,
}

thread_local! {
    static TRAFFIC: Cell<Traffic> = const { Cell::new(Traffic { messages: 0, bytes_local: 0, bytes_remote: 0 }) };
}

/// Returns what calls of this thread have cost so far.
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

/// Counts content to or from a target.
pub fn count_content(is_here: bool, len: u64) {
    count(|traffic| match is_here {
        true => traffic.bytes_local += len,
        false => traffic.bytes_remote += len,
    });
}

//! Space that is being freed is waited for by whoever would fail for want of it.
//!
//! What was removed is given back in the background, on order of the homes: a seat that finds its volume full knows of what
//! its own node is to remove, and not of the rest. So who is told that there is no space has all nodes remove at once what
//! nobody needs any more, and then tries again, once.

use std::sync::Arc;

use bivouac_types::{Errno, FsError, FsResult};
use bivouac_wire::op;

use crate::opens::closings::Closings;
use crate::ways::{Ways, when_here};

/// How long a node is waited for that does not answer, in milliseconds: what it has to remove is not worth more.
const WAIT_MS: u32 = 5000;

/// Makes room.
#[derive(Clone)]
pub struct Room {
    pub ways: Arc<Ways>,
    pub closings: Option<Arc<Closings>>,
}

impl Room {
    /// Does something that takes space, as [`when_here`].
    pub fn when_there_is<T>(&self, mut take: impl FnMut() -> FsResult<T>) -> FsResult<T> {
        let taken = when_here(&mut take);
        let is_full = |error: &FsError| matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT);
        if !taken.as_ref().is_err_and(is_full) {
            return taken;
        }
        self.make();
        when_here(take)
    }

    /// Has all nodes remove what nobody needs any more, also what this client has just closed.
    fn make(&self) {
        self.closings.iter().for_each(|closings| closings.send(None));
        let asked = self.ways.node_ids().filter_map(|node| {
            let transport = self.ways.transport(node).ok()?;
            let frame = self.ways.attempt(WAIT_MS);
            Some((node, bivouac_net::start::<op::MakeRoom>(transport, frame, &(), &[])))
        });
        for (node, asked) in asked.collect::<Vec<_>>() {
            if let Err(error) = asked.finish(&mut []) {
                log::info!(why:% = error; "{node} does not say that it has removed what nobody needs");
            }
        }
    }
}

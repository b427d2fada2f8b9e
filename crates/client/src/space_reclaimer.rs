//! Space that is being freed in the background is waited for by requests that would fail for want of it.
//!
//! Homes give back in the background what was removed. A target whose volume is full knows what its own node is to
//! remove, and not the rest. So a client that gets ENOSPC or EDQUOT has all nodes free what is removed now, and tries
//! once more.

use std::sync::Arc;

use bivouac_types::{Errno, FsError, FsResult};
use bivouac_wire::op;

use crate::connections::{Connections, retry_in_progress};
use crate::opens::closings::Closings;

/// Longest wait for a node that does not answer, in milliseconds.
const WAIT_MS: u32 = 5000;

/// Frees space on all nodes and retries.
#[derive(Clone)]
pub struct SpaceReclaimer {
    pub connections: Arc<Connections>,
    pub closings: Option<Arc<Closings>>,
}

impl SpaceReclaimer {
    /// Runs `take`, which needs space, as [`retry_in_progress`] does; if there is none, once more after all nodes have
    /// freed what is removed.
    pub fn retry_after_reclaim<T>(&self, mut take: impl FnMut() -> FsResult<T>) -> FsResult<T> {
        let taken = retry_in_progress(&mut take);
        let is_full = |error: &FsError| matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT);
        if !taken.as_ref().is_err_and(is_full) {
            return taken;
        }
        self.reclaim();
        retry_in_progress(take)
    }

    /// Asks all nodes to free removed files now, after sending them this client's latest closes.
    fn reclaim(&self) {
        // Without its names a file keeps its content until its last close is known.
        self.closings.iter().for_each(|closings| closings.send(None));
        let asked = self.connections.node_ids().filter_map(|node| {
            let transport = self.connections.transport(node).ok()?;
            let frame = self.connections.attempt(WAIT_MS);
            Some((node, bivouac_net::start::<op::MakeRoom>(transport, frame, &(), &[])))
        });
        // All at once: the program waits for the slowest, and not for the sum.
        for (node, asked) in asked.collect::<Vec<_>>() {
            if let Err(error) = asked.finish(&mut []) {
                log::info!(why:% = error; "{node} does not say that it has removed what nobody needs");
            }
        }
    }
}

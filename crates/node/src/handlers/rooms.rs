//! Room for names, attributes and what else records are.

use bivouac_types::{Errno, FsResult};

use crate::identity::is_peer;
use crate::node::{Node, RECORDS_VOLUME};
use crate::proxy::{Evicted, making_room};
use crate::session::Ctx;

impl Node {
    /// Does what adds records. If there is no room for them it is tried again: after garbage was removed, and, where it
    /// is their volume that is full, after content went that site storage has as well.
    pub(crate) fn with_room_for_names<T>(
        &self,
        ctx: &Ctx<'_>,
        mut add: impl FnMut() -> FsResult<T>,
    ) -> FsResult<T> {
        let is_full = |added: &FsResult<T>| added.as_ref().is_err_and(|e| e.errno() == Errno::ENOSPC);
        let mut added = add();
        // A step of somebody else's change is asked for again by whoever makes that.
        if !is_full(&added) || is_peer(ctx.client) {
            return added;
        }
        self.make_room();
        added = add();
        let mut is_flushed = false;
        // Content takes no memory for names.
        while is_full(&added) && !self.records.is_memory_full() {
            match self.evict(RECORDS_VOLUME) {
                Evicted::Some => added = add(),
                Evicted::Later => return Err(making_room()),
                Evicted::Nothing if self.flush_for_room(RECORDS_VOLUME) => return Err(making_room()),
                // Once more: what was being flushed at the first look may have become clean before the second.
                Evicted::Nothing if !is_flushed => is_flushed = true,
                Evicted::Nothing => break,
            }
        }
        added
    }
}

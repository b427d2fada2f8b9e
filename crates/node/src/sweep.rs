//! Subfiles whose file is gone: left by clients that wrote and died before they told the file's home, which so
//! had nothing to remove. They are found by asking the homes: after a start, when clients are given up,
//! and when a volume is full. In between nothing runs.
//!
//! *Unknown* is not *gone*. A home says "gone" only of numbers that it gave out itself (so one that lost its
//! records says it of none), and that have no record. A file's record is there before anybody can
//! write to it, and numbers are never used again: what is gone once is gone for good, whenever its subfile
//! was seen. A home that does not answer says nothing, and its files stay.

use std::collections::{HashMap, HashSet};

use bivouac_store::SubfileId;
use bivouac_types::{FsResult, Ino, NodeId};
use bivouac_wire::{Inodes, op};

use crate::identity::SYSTEM;
use crate::node::Node;
use crate::peers::StepContext;
use crate::record::{garbage_key, inode_key};
use crate::session::Ctx;
use crate::step::Handle;
use crate::sweeper::Sweep;

/// Inodes that one message asks about.
const BATCH: usize = 8192;

impl Sweep for Node {
    fn sweep(&self) {
        for volume in 0..self.data.usage().len() as u16 {
            let listed = match self.data.list_ids(volume) {
                Ok(listed) => listed,
                Err(error) => {
                    log::warn!(why:% = error; "unused subfiles are not looked for");
                    continue;
                }
            };
            let mut batches: HashMap<NodeId, Vec<SubfileId>> = HashMap::new();
            for id in listed {
                let Some(home) = self.map.home(id.ino) else { continue };
                let batch = batches.entry(home).or_default();
                batch.push(id);
                if batch.len() >= BATCH {
                    self.sweep_batch(home, &std::mem::take(batch));
                }
            }
            batches.into_iter().for_each(|(home, batch)| self.sweep_batch(home, &batch));
        }
    }
}

impl Node {
    fn sweep_batch(&self, home: NodeId, batch: &[SubfileId]) {
        if batch.is_empty() || self.sweeper.is_stopping() {
            return;
        }
        let mut inos: Vec<Ino> = batch.iter().map(|id| id.ino).collect();
        // Names of a volume come in any order.
        inos.sort_unstable();
        inos.dedup();
        let gone = match self.step::<op::WhichGone>(home, StepContext::question(SYSTEM), 0, Inodes { inos }) {
            Ok(gone) => gone.inos.into_iter().collect::<HashSet<Ino>>(),
            Err(error) => return log::info!(why:% = error; "files of {home} are not asked about"),
        };
        for id in batch.iter().filter(|id| gone.contains(&id.ino)) {
            match self.data.remove(*id) {
                Ok(removed) => {
                    // A process that has it open directly would keep its space.
                    self.lending.removed(*id);
                    log::info!("subfile of inode {} on target {} had no file: {removed}", id.ino, id.target.0)
                }
                Err(error) => log::warn!(why:% = error; "a subfile without a file stays"),
            }
        }
    }

    /// Makes room on a full volume: removes what nobody needs, and looks for more of it.
    pub(crate) fn make_room(&self) {
        self.remove_unused();
        self.sweeper.request_for_space();
    }

    fn is_gone(&self, ino: Ino) -> FsResult<bool> {
        self.check_slot(ino.slot())?;
        let is_mine = ino.allocator() == self.id && self.allocator.has_given(ino.counter());
        let has = |key: &[u8]| self.records.read(ino.slot(), key, |found| found.is_some());
        // Garbage is on its way already.
        Ok(is_mine && !has(&inode_key(ino)) && !has(&garbage_key(ino)))
    }
}

impl Handle for op::WhichGone {
    fn handle(node: &Node, _: &Ctx<'_>, request: Inodes) -> FsResult<Inodes> {
        let gone = request.inos.into_iter().filter_map(|ino| match node.is_gone(ino) {
            Ok(gone) => gone.then_some(Ok(ino)),
            Err(error) => Some(Err(error)),
        });
        Ok(Inodes { inos: gone.collect::<FsResult<_>>()? })
    }
}

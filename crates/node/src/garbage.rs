//! Subfiles that nobody needs any more: on this node, on peers, and on peers that are away.

use std::collections::{BTreeSet, HashMap};

use bivouac_types::{FsResult, Ino, NodeId, Slot, TargetIndex};
use bivouac_wire::{Encode, Subfiles, op};

use crate::identity::SYSTEM;
use crate::namespace::{LOOKED_UP, decode};
use crate::node::Node;
use crate::peers::StepContext;
use crate::reaper::Job;
use crate::record::{Garbage, garbage_key, pending_key, pending_node, pending_prefix, table};

/// Inodes whose subfiles are removed by one round of messages.
const BATCH: usize = 512;

/// A file's unused subfiles.
struct Piece {
    slot: Slot,
    ino: Ino,
    garbage: Garbage,
}

impl Node {
    /// Removes unused subfiles. What a peer does not remove now is recorded as pending for it, so that it does not hold
    /// up the rest.
    pub(crate) fn collect_garbage(&self) -> FsResult<()> {
        let outcomes: Vec<FsResult<()>> =
            self.numbers(b'G').chunks(BATCH).map(|batch| self.remove_batch(batch)).collect();
        outcomes.into_iter().collect()
    }

    /// Removes all unused subfiles of this node's files, also at peers and without the usual delay, before it returns.
    pub(crate) fn free_everywhere(&self) -> FsResult<()> {
        self.remove_unused();
        let collected = self.collect_garbage();
        // A job that failed for want of space on this node may succeed now.
        self.reaper.peer_is_back(self.id);
        collected
    }

    fn remove_batch(&self, batch: &[(Slot, u64)]) -> FsResult<()> {
        // Before the records are read: what is discarded after that stays for the next round.
        self.reaper.begin_removal(batch.iter().map(|(_, ino)| Ino(*ino)));
        let pieces = self.pieces(batch, |ino| garbage_key(ino).to_vec())?;
        let mut silent = BTreeSet::new();
        for (node, subfiles) in self.per_node(&pieces)? {
            if let Err(error) = self.remove_at(node, subfiles) {
                if node == self.id {
                    return Err(error);
                }
                silent.insert(node);
            }
        }
        let slots: Vec<Slot> = pieces.iter().map(|piece| piece.slot).collect();
        let mut change = self.change(&slots)?;
        for Piece { slot, ino, garbage } in &pieces {
            if self.reaper.is_discarded_again(*ino) {
                // A subfile may have been made since the removal: the record stays for the next round.
                continue;
            }
            change.touch(*ino);
            change.txn.delete(*slot, &garbage_key(*ino));
            for node in
                self.targets_by_node(garbage)?.into_iter().map(|(node, _)| node).collect::<BTreeSet<_>>()
            {
                if silent.contains(&node) {
                    change.txn.put(*slot, &pending_key(node, *ino), &garbage.to_bytes());
                }
            }
        }
        change.commit()?;
        // After the commit: a job that finds no record of what it is for ends at once.
        silent.into_iter().for_each(|node| self.reaper.add_once(Job::Pending(node)));
        Ok(())
    }

    /// Removes the subfiles that are recorded as pending for a peer.
    pub(crate) fn remove_pending(&self, node: NodeId) -> FsResult<()> {
        let mut pending = Vec::new();
        self.each_record(&pending_prefix(node), |slot, key, _| {
            pending.extend(pending_node(key).map(|(_, ino)| (slot, ino.0)));
        });
        for batch in pending.chunks(BATCH) {
            let pieces = self.pieces(batch, |ino| pending_key(node, ino).to_vec())?;
            let subfiles = self.per_node(&pieces)?.remove(&node).unwrap_or_default();
            self.remove_at(node, subfiles)?;
            let slots: Vec<Slot> = pieces.iter().map(|piece| piece.slot).collect();
            let mut change = self.change(&slots)?;
            pieces.iter().for_each(|piece| change.txn.delete(piece.slot, &pending_key(node, piece.ino)));
            change.commit()?;
        }
        Ok(())
    }

    /// Returns the peers with pending removals.
    pub(crate) fn nodes_pending(&self) -> BTreeSet<NodeId> {
        let mut nodes = BTreeSet::new();
        self.each_record(&table(b'W'), |_, key, _| nodes.extend(pending_node(key).map(|(node, _)| node)));
        nodes
    }

    /// Removes at once what is unused on this node, for space.
    pub(crate) fn remove_unused(&self) {
        self.forget_lookups(self.reaper.take_delayed().into_iter());
        self.remove_own_garbage();
    }

    /// Removes [`LOOKED_UP`] from the holders of replaced inodes: a client that had looked one up has opened it by now.
    pub(crate) fn forget_lookups(&self, inos: impl Iterator<Item = Ino>) {
        inos.for_each(|ino| self.release_orphan(ino, LOOKED_UP));
    }

    /// Removes unused subfiles on this node. Their records stay, since peers may have more of the same files.
    pub(crate) fn remove_own_garbage(&self) {
        for batch in self.numbers(b'G').chunks(BATCH) {
            let removed = self.pieces(batch, |ino| garbage_key(ino).to_vec()).and_then(|pieces| {
                let own = self.per_node(&pieces)?.remove(&self.id).unwrap_or_default();
                self.remove_at(self.id, own)
            });
            if let Err(error) = removed {
                log::warn!(why:% = error; "removal of unused subfiles waits");
            }
        }
    }

    fn remove_at(&self, node: NodeId, subfiles: Vec<(Ino, TargetIndex)>) -> FsResult<()> {
        let steps = StepContext { background: true, ..StepContext::question(SYSTEM) };
        self.step::<op::RemoveSubfiles>(node, steps, 0, Subfiles { subfiles })
    }

    /// Reads the records that still exist.
    fn pieces(&self, batch: &[(Slot, u64)], key: impl Fn(Ino) -> Vec<u8>) -> FsResult<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(batch.len());
        for (slot, ino) in batch {
            let ino = Ino(*ino);
            let bytes = self.records.read(*slot, &key(ino), |bytes| bytes.map(<[u8]>::to_vec));
            if let Some(bytes) = bytes {
                pieces.push(Piece { slot: *slot, ino, garbage: decode(&bytes, "garbage", ino)? });
            }
        }
        Ok(pieces)
    }

    fn per_node(&self, pieces: &[Piece]) -> FsResult<HashMap<NodeId, Vec<(Ino, TargetIndex)>>> {
        let mut per_node: HashMap<NodeId, Vec<(Ino, TargetIndex)>> = HashMap::new();
        for piece in pieces {
            for (node, target) in self.targets_by_node(&piece.garbage)? {
                per_node.entry(node).or_default().push((piece.ino, target));
            }
        }
        Ok(per_node)
    }

    fn targets_by_node(&self, garbage: &Garbage) -> FsResult<Vec<(NodeId, TargetIndex)>> {
        let place = |target| self.target_place(target).map(|place| (place.node, target));
        bivouac_layout::targets_of(&garbage.layout).map(place).collect()
    }
}

//! Subfiles that nobody needs any more: on this node, on peers, and on peers that are away.

use std::collections::{BTreeSet, HashMap};

use bivouac_types::{Errno, FsResult, Ino, NodeId, Slot, TargetIndex};
use bivouac_wire::{Encode, Subfiles, op};

use crate::identity::SYSTEM;
use crate::namespace::{LOOKED_UP, decode};
use crate::node::Node;
use crate::peers::StepContext;
use crate::reaper::Job;
use crate::record::{Garbage, garbage_key, pending_key, pending_node, pending_prefix, table};

/// Inodes whose subfiles are removed by one round of messages.
const BATCH: usize = 512;

/// A file's unused subfiles, and the nodes that have them.
struct Piece {
    slot: Slot,
    ino: Ino,
    garbage: Garbage,
    targets: Vec<(NodeId, TargetIndex)>,
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
        let before = self.last_discards(None, batch);
        let pieces = self.pieces(batch, |ino| garbage_key(ino).to_vec())?;
        let mut silent = BTreeSet::new();
        for (node, subfiles) in per_node(&pieces) {
            if let Err(error) = self.remove_at(node, subfiles) {
                if node == self.id {
                    return Err(error);
                }
                silent.insert(node);
            }
        }
        let slots: Vec<Slot> = pieces.iter().map(|piece| piece.slot).collect();
        let mut change = self.change(&slots)?;
        for Piece { slot, ino, garbage, targets } in &pieces {
            if self.reaper.last_discard(None, *ino) != before.get(ino).copied() {
                // A subfile may have been made since the removal: the record stays for the next round.
                continue;
            }
            change.touch(*ino);
            change.txn.delete(*slot, &garbage_key(*ino));
            self.reaper.forget_discards(None, *ino);
            let nodes: BTreeSet<NodeId> = targets.iter().map(|(node, _)| *node).collect();
            for node in nodes.intersection(&silent).copied() {
                let key = pending_key(node, *ino);
                // It may be about to be taken away with the subfiles of before: see `Node::remove_pending`.
                if change.txn.get(*slot, &key).is_some() {
                    self.reaper.discarded_again(Some(node), *ino);
                }
                change.txn.put(*slot, &key, &garbage.to_bytes());
            }
        }
        change.commit()?;
        // After the commit: a job that finds no record of what it is for ends at once.
        silent.into_iter().for_each(|node| self.reaper.add_once(Job::Pending(node)));
        Ok(())
    }

    /// Removes the subfiles that are recorded as pending for a peer.
    pub(crate) fn remove_pending(&self, node: NodeId) -> FsResult<()> {
        self.remove_pending_by(node, |subfiles| self.remove_at(node, subfiles))
    }

    fn remove_pending_by(
        &self,
        node: NodeId,
        remove: impl Fn(Vec<(Ino, TargetIndex)>) -> FsResult<()>,
    ) -> FsResult<()> {
        let mut pending = Vec::new();
        self.each_record(&pending_prefix(node), |slot, key, _| {
            pending.extend(pending_node(key).map(|(_, ino)| (slot, ino.0)));
        });
        for batch in pending.chunks(BATCH) {
            // Before the records are read, as for garbage.
            let before = self.last_discards(Some(node), batch);
            let pieces = self.pieces(batch, |ino| pending_key(node, ino).to_vec())?;
            let subfiles = per_node(&pieces).remove(&node).unwrap_or_default();
            remove(subfiles)?;
            let slots: Vec<Slot> = pieces.iter().map(|piece| piece.slot).collect();
            let mut change = self.change(&slots)?;
            let mut is_left = false;
            for piece in &pieces {
                if self.reaper.last_discard(Some(node), piece.ino) == before.get(&piece.ino).copied() {
                    change.txn.delete(piece.slot, &pending_key(node, piece.ino));
                    self.reaper.forget_discards(Some(node), piece.ino);
                } else {
                    is_left = true;
                }
            }
            change.commit()?;
            // After the commit: until then it would find the records that have just gone.
            if is_left {
                self.reaper.add_once(Job::Pending(node));
            }
        }
        Ok(())
    }

    /// Returns the numbers by which it is seen that something was discarded since ([`Reaper::last_discard`]).
    fn last_discards(&self, at: Option<NodeId>, batch: &[(Slot, u64)]) -> HashMap<Ino, u64> {
        let inos = batch.iter().map(|(_, ino)| Ino(*ino));
        inos.filter_map(|ino| Some((ino, self.reaper.last_discard(at, ino)?))).collect()
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
                let own = per_node(&pieces).remove(&self.id).unwrap_or_default();
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

    /// Reads the records that still exist. One that is damaged, or of a partition that nobody knows, stays as it is, and
    /// does not hold up the others of its batch.
    fn pieces(&self, batch: &[(Slot, u64)], key: impl Fn(Ino) -> Vec<u8>) -> FsResult<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(batch.len());
        for (slot, ino) in batch {
            let ino = Ino(*ino);
            let bytes = self.records.read(*slot, &key(ino), |bytes| bytes.map(<[u8]>::to_vec));
            let Some(bytes) = bytes else { continue };
            let placed = match decode::<Garbage>(&bytes, "garbage", ino) {
                Ok(garbage) => match self.targets_by_node(&garbage) {
                    // Known later, perhaps: the node that knows it does not answer.
                    Err(error) if error.errno() != Errno::ESTALE => return Err(error),
                    targets => targets.map(|targets| (targets, garbage)),
                },
                Err(error) => Err(error),
            };
            match placed {
                Ok((targets, garbage)) => pieces.push(Piece { slot: *slot, ino, garbage, targets }),
                Err(error) => log::warn!(why:% = error; "unused subfiles of inode {ino} stay"),
            }
        }
        Ok(pieces)
    }

    fn targets_by_node(&self, garbage: &Garbage) -> FsResult<Vec<(NodeId, TargetIndex)>> {
        let place = |target| self.target_place(target).map(|place| (place.node, target));
        bivouac_layout::targets_of(&garbage.layout).map(place).collect()
    }
}

fn per_node(pieces: &[Piece]) -> HashMap<NodeId, Vec<(Ino, TargetIndex)>> {
    let mut per_node: HashMap<NodeId, Vec<(Ino, TargetIndex)>> = HashMap::new();
    for piece in pieces {
        for (node, target) in &piece.targets {
            per_node.entry(*node).or_default().push((piece.ino, *target));
        }
    }
    per_node
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;
    use bivouac_types::{Layout, PartitionId};

    fn layout(partition: PartitionId) -> Layout {
        Layout { stripe: 4096, width: 1, base: TargetIndex::new(partition, 0), targets: 1 }
    }

    fn records(node: &Node, tag: u8) -> Vec<Ino> {
        let mut found = Vec::new();
        node.each_record(&table(tag), |_, key, _| {
            found.push(Ino(u64::from_be_bytes(*key.last_chunk().unwrap())))
        });
        found
    }

    /// One file of a partition that its home does not know kept the garbage of 511 others.
    #[test]
    fn what_cannot_be_placed_or_read_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let mut change = node.change(&[Slot(0)]).unwrap();
        for (ino, partition) in [(5, PartitionId::ROOT), (6, PartitionId(9)), (7, PartitionId::ROOT)] {
            change.discard_subfiles(Ino(ino), layout(partition));
        }
        change.txn.put(Slot(0), &garbage_key(Ino(8)), b"no record");
        change.commit().unwrap();
        node.collect_garbage().unwrap();
        assert_eq!(records(&node, b'G'), [Ino(6), Ino(8)]);
    }

    /// A removal that was recorded again while the peer made the one before was taken away with that.
    #[test]
    fn a_removal_that_is_recorded_again_stays_pending() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let (id, ino) = (node.id, Ino(5));
        let put = || {
            let mut change = node.change(&[Slot(0)]).unwrap();
            let garbage = Garbage { layout: layout(PartitionId::ROOT) };
            change.txn.put(Slot(0), &pending_key(id, ino), &garbage.to_bytes());
            change.commit().unwrap();
        };
        put();
        let is_first = std::cell::Cell::new(true);
        node.remove_pending_by(id, |subfiles| {
            assert_eq!(subfiles, [(ino, TargetIndex(0))]);
            if is_first.take() {
                node.reaper.discarded_again(Some(id), ino);
                put();
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(records(&node, b'W'), [ino]);
        node.remove_pending(id).unwrap();
        assert!(records(&node, b'W').is_empty());
    }
}

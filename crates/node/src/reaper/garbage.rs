//! Subfiles that nobody needs any more: on this node, on peers, and on peers that are away.

use std::collections::{BTreeSet, HashMap};

use bivouac_types::{FsResult, Ino, NodeId, SeatIndex, Slot};
use bivouac_wire::{Encode, Subfiles, op};

use super::Job;
use crate::dispatch::SYSTEM;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::Steps;
use crate::record::{Garbage, garbage_key, number_of_key, pending_key, pending_node, pending_prefix, table};

/// Files whose subfiles are removed by one round of messages.
const BATCH: usize = 512;

/// A file's unused subfiles.
struct Piece {
    slot: Slot,
    ino: Ino,
    garbage: Garbage,
}

impl Node {
    /// Removes unused subfiles. What a peer does not remove now is written down as pending by it, so that it does not
    /// hold up the rest.
    pub(super) fn collect_garbage(&self) -> FsResult<()> {
        let outcomes: Vec<FsResult<()>> =
            self.numbers(b'G').chunks(BATCH).map(|batch| self.remove_batch(batch)).collect();
        outcomes.into_iter().collect()
    }

    /// Removes, before it returns, what is unused of this node's files: also what would stay for a moment, and also at
    /// peers.
    pub(crate) fn free_everywhere(&self) -> FsResult<()> {
        self.reaper.collect(self);
        let collected = self.collect_garbage();
        // What found no space may find some now.
        self.reaper.peer_is_back(self.id);
        collected
    }

    fn remove_batch(&self, batch: &[(Slot, u64)]) -> FsResult<()> {
        {
            let mut again = self.reaper.discarded_again.lock();
            for (_, ino) in batch {
                again.remove(&Ino(*ino));
            }
        }
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
            if self.reaper.discarded_again.lock().contains(ino) {
                // Something of it may have been made behind its removal: the next round looks.
                continue;
            }
            change.touch(*ino);
            change.txn.delete(*slot, &garbage_key(*ino));
            for node in
                self.seats_by_node(garbage)?.into_iter().map(|(node, _)| node).collect::<BTreeSet<_>>()
            {
                if silent.contains(&node) {
                    change.txn.put(*slot, &pending_key(node, *ino), &garbage.to_bytes());
                }
            }
        }
        change.commit()?;
        silent.into_iter().for_each(|node| self.reaper.add_once(Job::Pending(node)));
        Ok(())
    }

    /// Removes what a peer owes.
    pub(super) fn remove_pending(&self, node: NodeId) -> FsResult<()> {
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

    /// Peers that owe something.
    pub(super) fn nodes_pending(&self) -> BTreeSet<NodeId> {
        let mut nodes = BTreeSet::new();
        self.each_record(&table(b'W'), |_, key, _| nodes.extend(pending_node(key).map(|(node, _)| node)));
        nodes
    }

    /// Frees what space can be freed without asking anybody.
    pub(super) fn remove_own_garbage(&self) {
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

    fn remove_at(&self, node: NodeId, subfiles: Vec<(Ino, SeatIndex)>) -> FsResult<()> {
        let steps = Steps { background: true, ..Steps::question(SYSTEM) };
        self.step::<op::RemoveSubfiles>(node, steps, 0, Subfiles { subfiles })
    }

    /// The records that are still there.
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

    fn per_node(&self, pieces: &[Piece]) -> FsResult<HashMap<NodeId, Vec<(Ino, SeatIndex)>>> {
        let mut per_node: HashMap<NodeId, Vec<(Ino, SeatIndex)>> = HashMap::new();
        for piece in pieces {
            for (node, seat) in self.seats_by_node(&piece.garbage)? {
                per_node.entry(node).or_default().push((piece.ino, seat));
            }
        }
        Ok(per_node)
    }

    fn seats_by_node(&self, garbage: &Garbage) -> FsResult<Vec<(NodeId, SeatIndex)>> {
        let place = |seat| self.seat_place(seat).map(|place| (place.node, seat));
        bivouac_layout::seats_of(&garbage.layout).map(place).collect()
    }

    /// Inodes without names that somebody had open when they lost the last.
    pub(crate) fn orphans(&self) -> Vec<Ino> {
        self.numbers(b'O').into_iter().map(|(_, ino)| Ino(ino)).collect()
    }

    /// Slot and number of every record of a table with such keys.
    pub(crate) fn numbers(&self, letter: u8) -> Vec<(Slot, u64)> {
        let mut found = Vec::new();
        self.each_record(&table(letter), |slot, key, _| {
            found.extend(number_of_key(key).map(|number| (slot, number)));
        });
        found
    }
}

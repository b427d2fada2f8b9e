//! Spreading a directory over all nodes, once, when it has grown large; and removing one that is spread.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bivouac_types::limits::{SHARD_BYTES_MAX, SPREAD_ENTRIES_MAX};
use bivouac_types::{Errno, FsError, FsResult, Ino, Name, NodeId, Slot};
use bivouac_wire::{
    Decode, DropShardRequest, Inherited, InstallShardRequest, RemoveDirRequest, SealRequest, ShardEntry,
    UpdateShardRequest, op,
};

use super::{Outcome, refused};
use crate::identity::SYSTEM;
use crate::intent_record::{Intent, LoggedIntent};
use crate::leases::Principal;
use crate::namespace::unless_absent;
use crate::node::Node;
use crate::peers::StepContext;
use crate::record::{Dentry, Inode, Shard, dentry_of_key, dentry_prefix, hashed_key, intent_key};
use crate::session::Ctx;
use crate::watch::ENTRIES_MOVE;
use bivouac_session::Item;

/// Bytes of an encoded entry besides its name.
const ENTRY_LEN: usize = 4 + 8 + 4;

/// A directory that was removed.
#[derive(Default)]
pub struct Removed {
    /// Its record; empty when it was gone before.
    pub record: Vec<u8>,
    /// True if its shards were sealed.
    closed: bool,
}

impl Removed {
    /// Returns true if it was spread, or may have been.
    pub fn may_have_shards(&self, steps: StepContext) -> bool {
        match Inode::from_bytes(&self.record) {
            // The step is repeated if its answer was lost, and finds no record then.
            _ if self.closed => true,
            Ok(inode) => inode.attr.is_spread(),
            Err(_) => steps.retry,
        }
    }
}

/// An entry on its way to its shard.
struct Moved {
    hash: u64,
    name: Vec<u8>,
    dentry: Dentry,
}

impl Node {
    /// Spreads a directory that has grown large, unless requests stay at work in it.
    pub(crate) fn spread(&self, dir: Ino) {
        let Some(_claim) = self.locks.claim(dir) else {
            log::info!("directory {dir} is in use and spreads later");
            return;
        };
        let attr = match self.inode(dir) {
            Ok(inode) => inode.attr,
            Err(_) => return,
        };
        if !attr.is_dir() || attr.is_spread() || attr.size > SPREAD_ENTRIES_MAX {
            return;
        }
        let ctx = Ctx::of_node(self.as_client());
        match self.carry_out(&ctx, dir.slot(), Intent::Spread(dir)) {
            Ok(()) => {
                self.users.forget(dir);
                log::info!("directory {dir} is spread over {} nodes", self.gathers.nodes.len());
            }
            Err(error) => {
                log::warn!(why:% = error; "directory {dir} stays where it is until it has grown further")
            }
        }
    }

    /// Installs the entries on their nodes, where nobody looks yet. Then, in one transaction, removes them here and
    /// marks the directory as spread.
    pub(super) fn finish_spread(
        &self,
        dir: Ino,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        let inherited = self.inode(dir)?.inherited();
        let mut parts = self.parts_of(dir)?;
        let own = parts.remove(&self.id).unwrap_or_default();
        for (node, entries) in &parts {
            self.install_shard(*node, dir, inherited, entries, steps)?;
        }
        // Leases of this node would not be recalled by the nodes that change the entries from now on.
        let _changing = {
            let _principal = Principal::on_behalf_of(SYSTEM);
            self.callbacks.begin(&[Item::Slot(dir.slot())])
        };
        // All of them, since the entries that stay here go to whichever slots their hashes say.
        let slots: Vec<Slot> = self.own_slots().collect();
        let mut change = self.change(&slots)?;
        let mut inode = change.inode(dir)?;
        change.touch(ENTRIES_MOVE);
        for entry in parts.values().flatten() {
            change.txn.delete(dir.slot(), &hashed_key(dir, entry.hash, &entry.name));
        }
        let mut shard = Shard::empty(inherited, steps.tx);
        for entry in &own {
            let (slot, key) = self.shard_place(dir, &Name::new(&entry.name)?)?;
            if slot != dir.slot() {
                change.txn.delete(dir.slot(), &key);
            }
            change.install(&mut shard, slot, &key, entry.dentry);
        }
        change.put_shard(self.shards.slot_of(dir), dir, &shard);
        // By this, all nodes know a directory that is spread.
        inode.attr.epoch = 1;
        change.put_inode(&inode);
        change.txn.delete(logged.slot, &intent_key(steps.tx));
        change.commit()?;
        Ok(Outcome::Done)
    }

    /// Returns the directory's entries by the nodes that are to have them; every node with slots is a key.
    fn parts_of(&self, dir: Ino) -> FsResult<BTreeMap<NodeId, Vec<Moved>>> {
        let mut parts: BTreeMap<NodeId, Vec<Moved>> =
            self.gathers.nodes.iter().map(|node| (*node, Vec::new())).collect();
        let (prefix, mut damaged) = (dentry_prefix(dir), false);
        self.records.scan(dir.slot(), &prefix, &prefix, |key, value| {
            let entry = dentry_of_key(key).zip(Dentry::from_bytes(value).ok());
            let Some(((hash, name), dentry)) = entry else {
                damaged = true;
                return ControlFlow::Break(());
            };
            let slot = bivouac_layout::slot_of_hash(hash, self.map.slot_count());
            if let Some(part) = self.map.slot_node(slot).and_then(|node| parts.get_mut(&node)) {
                part.push(Moved { hash, name: name.to_vec(), dentry });
            }
            ControlFlow::Continue(())
        });
        if damaged {
            return Err(FsError::with(
                Errno::EIO,
                format!("an entry of directory {dir} is damaged: run `bivouac fsck`"),
            ));
        }
        Ok(parts)
    }

    fn install_shard(
        &self,
        node: NodeId,
        dir: Ino,
        inherited: Inherited,
        entries: &[Moved],
        steps: StepContext,
    ) -> FsResult<()> {
        // In several messages, as a frame's body is bounded; the shard counts for nobody until all have come.
        let (mut rest, mut first) = (entries, true);
        // A node without entries gets an empty shard as well: it has to know what new entries inherit.
        while first || !rest.is_empty() {
            let mut room = SHARD_BYTES_MAX;
            let fits = |entry: &&Moved| {
                let len = ENTRY_LEN + entry.name.len();
                let fits = len <= room;
                room = room.saturating_sub(len);
                fits
            };
            let count = rest.iter().take_while(fits).count();
            let (now, later) = rest.split_at(count);
            let entry = |moved| {
                let Moved { name, dentry: Dentry { ino, kind }, .. }: &Moved = moved;
                ShardEntry { name, ino: *ino, kind: *kind }
            };
            let entries = now.iter().map(entry).collect();
            let request = InstallShardRequest { dir, tx: steps.tx, first, inherited, entries };
            self.step::<op::InstallShard>(node, steps, 0, request)?;
            (rest, first) = (later, false);
        }
        Ok(())
    }

    /// Removes what an attempt to spread has left on other nodes; the directory is as it was.
    pub(super) fn give_up_spreading(
        &self,
        dir: Ino,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        for node in self.gathers.nodes.iter().filter(|node| **node != self.id) {
            self.step::<op::DropShard>(*node, steps, 1, DropShardRequest { dir, tx: steps.tx })?;
        }
        let mut change = self.change(&[logged.slot])?;
        change.txn.delete(logged.slot, &intent_key(steps.tx));
        change.commit()?;
        Ok(Outcome::Done)
    }

    /// Tells every shard what new entries inherit. The change itself was committed with the intent.
    pub(super) fn finish_inherit(
        &self,
        dir: Ino,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        if let Some(inode) = unless_absent(self.inode(dir))? {
            let request = UpdateShardRequest { dir, inherited: inode.inherited() };
            for node in &self.gathers.nodes {
                self.step::<op::UpdateShard>(*node, steps, 0, request.clone())?;
            }
        }
        let change = self.change(&[logged.slot])?;
        self.clear(change, logged, steps, 0)
    }

    /// Removes an empty directory at its home. A spread one is sealed on all nodes first, so that no entry is made in
    /// it meanwhile; its shards stay sealed until they are dropped.
    pub(super) fn remove_dir_steps(
        &self,
        dir: Ino,
        aside: bool,
        steps: StepContext,
        number: u64,
    ) -> FsResult<FsResult<Removed>> {
        let home = self.home_of(dir)?;
        let remove = |sealed| {
            let request = RemoveDirRequest { ino: dir, sealed, aside };
            refused(self.step::<op::RemoveDir>(home, steps, number, request))
        };
        let mut closed = false;
        // The home refuses a spread directory with `EREMOTE`: only then all nodes have to be asked.
        let outcome = match remove(false)? {
            Err(error) if error.errno() == Errno::EREMOTE => {
                closed = true;
                let removed = match self.seal_shards(dir, steps)? {
                    Ok(()) => remove(true)?,
                    Err(error) => Err(error),
                };
                if removed.is_err() {
                    self.unseal_shards(dir, steps)?;
                }
                removed
            }
            outcome => outcome,
        };
        Ok(outcome.map(|removed| Removed { record: removed.record, closed }))
    }

    fn seal_shards(&self, dir: Ino, steps: StepContext) -> FsResult<FsResult<()>> {
        for node in &self.gathers.nodes {
            let request = SealRequest { dir, by: self.as_client(), tx: steps.tx };
            if let Err(error) = refused(self.step::<op::SealShard>(*node, steps, 0, request))? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    pub(super) fn unseal_shards(&self, dir: Ino, steps: StepContext) -> FsResult<()> {
        self.gathers.nodes.iter().try_for_each(|node| {
            let request = SealRequest { dir, by: self.as_client(), tx: steps.tx };
            self.step::<op::UnsealShard>(*node, steps, 0, request)
        })
    }

    /// Drops the shards of a directory that was removed.
    pub(super) fn drop_shards(&self, dir: Ino, steps: StepContext) -> FsResult<()> {
        self.gathers.nodes.iter().try_for_each(|node| {
            self.step::<op::DropShard>(*node, steps, 0, DropShardRequest { dir, tx: u64::MAX })
        })
    }
}

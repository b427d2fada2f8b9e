//! Steps for spread directories. They call nobody, and each may come twice.

use bivouac_types::{Errno, FsError, FsResult, Ino, Name, NodeId, Slot, mode};
use bivouac_wire::{
    DirChangedRequest, DropShardRequest, Encode, Inherited, InoOnly, InstallShardRequest, SealRequest,
    ShardState, UpdateShardRequest, op,
};

use crate::namespace::Change;
use crate::node::Node;
use crate::record::{Dentry, Inode, Shard, dentry_prefix, shard_key};
use crate::session::Ctx;
use crate::step::Handle;
use crate::watch::ENTRIES_MOVE;

impl Shard {
    /// Returns a shard without entries.
    pub(crate) fn empty(inherited: Inherited, tx: u64) -> Shard {
        Shard { inherited, entries: 0, subdirs: 0, version: 0, tx, sealed: None }
    }
}

impl Handle for op::InstallShard {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: InstallShardRequest<'_>) -> FsResult<()> {
        let book = node.shards.slot_of(request.dir);
        // All of this node's: entries are in whichever slots their hashes say.
        let slots = node.own_slots().collect::<Vec<Slot>>();
        let mut change = node.change(&slots)?;
        // A message of a driver that has given up and said so must not bring anything back.
        ctx.check_current()?;
        let mut shard = match change.shard(book, request.dir)? {
            // Changed since: the directory is spread, and this is a repetition that was under way for long.
            Some(shard) if shard.tx == request.tx && shard.version > 0 => return Ok(()),
            Some(shard) if shard.tx == request.tx => shard,
            Some(shard) if shard.tx > request.tx => return Err(Errno::ESTALE.into()),
            old if request.first => {
                old.iter().for_each(|_| change.drop_shard(node, request.dir));
                Shard::empty(request.inherited, request.tx)
            }
            _ => return Err(Errno::ESTALE.into()),
        };
        for entry in &request.entries {
            let (name, dentry) = (Name::new(entry.name)?, Dentry { ino: entry.ino, kind: entry.kind });
            let (slot, key) = node.shard_place(request.dir, &name)?;
            // There already if the message comes again because its answer was lost.
            if change.txn.get(slot, &key).is_none() {
                change.install(&mut shard, slot, &key, dentry);
            }
        }
        change.put_shard(book, request.dir, &shard);
        change.commit()
    }
}

impl Change<'_> {
    /// Makes an entry in a shard that has none of this name.
    pub(crate) fn install(&mut self, shard: &mut Shard, slot: Slot, key: &[u8], dentry: Dentry) {
        self.touch(ENTRIES_MOVE);
        self.txn.put(slot, key, &dentry.to_bytes());
        shard.entries += 1;
        shard.subdirs += u32::from(dentry.kind == mode::DIR);
    }
}

impl Handle for op::DropShard {
    fn handle(node: &Node, _: &Ctx<'_>, DropShardRequest { dir, tx }: DropShardRequest) -> FsResult<()> {
        node.drop_shard(dir, tx)
    }
}

impl Node {
    /// Removes this node's shard, unless it was made later than by intent `tx`.
    pub(crate) fn drop_shard(&self, dir: Ino, tx: u64) -> FsResult<()> {
        let book = self.shards.slot_of(dir);
        let slots = self.own_slots().collect::<Vec<Slot>>();
        let mut change = self.change(&slots)?;
        match change.shard(book, dir)? {
            None => return Ok(()),
            Some(shard) if shard.tx > tx => return Ok(()),
            Some(_) => {}
        }
        change.drop_shard(self, dir);
        change.commit()?;
        // Numbers of inodes are used once: the table would keep this one for ever.
        self.shards.asked(dir);
        Ok(())
    }
}

impl Change<'_> {
    fn drop_shard(&mut self, node: &Node, dir: Ino) {
        // The entries of a compact directory of this node are not the shard's.
        node.own_slots().filter(|slot| *slot != dir.slot()).for_each(|slot| self.drop_entries(slot, dir));
        self.touch(dir);
        self.txn.delete(node.shards.slot_of(dir), &shard_key(dir));
    }

    fn drop_entries(&mut self, slot: Slot, dir: Ino) {
        self.touch(ENTRIES_MOVE);
        let keys = self.keys_below(slot, &dentry_prefix(dir));
        keys.iter().for_each(|key| self.txn.delete(slot, key));
    }
}

impl Handle for op::SealShard {
    fn handle(node: &Node, ctx: &Ctx<'_>, SealRequest { dir, by, tx }: SealRequest) -> FsResult<()> {
        let book = node.shards.slot_of(dir);
        let mut change = node.change_at(&[book], &[])?;
        if ctx.step_done(&change.txn, book)? {
            // Opened again: a first try that was under way for long must not close it for ever.
            return Err(FsError::with(Errno::EAGAIN, format!("the attempt to remove {dir} is over")));
        }
        // Without a shard there is nothing to close: the directory is gone, and whoever seals it finds that out.
        let Some(mut shard) = change.shard(book, dir)? else { return Ok(()) };
        // Within the transaction that seals: no entry can be made in between.
        if shard.entries > 0 {
            return Err(Errno::ENOTEMPTY.into());
        }
        if shard.sealed.is_some_and(|sealed| sealed != (by, tx)) {
            return Err(FsError::with(Errno::EAGAIN, format!("directory {dir} is being removed: try again")));
        }
        shard.sealed = Some((by, tx));
        change.put_shard(book, dir, &shard);
        change.commit()
    }
}

impl Handle for op::UnsealShard {
    fn handle(node: &Node, ctx: &Ctx<'_>, SealRequest { dir, by, tx }: SealRequest) -> FsResult<()> {
        let book = node.shards.slot_of(dir);
        let mut change = node.change_at(&[book], &[])?;
        if ctx.step_done(&change.txn, book)? {
            return Ok(());
        }
        let Some(mut shard) = change.shard(book, dir)? else { return Ok(()) };
        if shard.sealed == Some((by, tx)) {
            shard.sealed = None;
            change.put_shard(book, dir, &shard);
        }
        // It has the number of the closing, which is over now.
        change.commit_for(ctx, book, 0)
    }
}

impl Handle for op::FoldShard {
    fn handle(node: &Node, _: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<ShardState> {
        node.shard_state(ino)
    }
}

impl Handle for op::DirChanged {
    fn handle(node: &Node, _: &Ctx<'_>, request: DirChangedRequest) -> FsResult<()> {
        node.dir_changed(request.dir, request.node, request.certain)
    }
}

impl Node {
    /// Notes that a shard of a directory whose home is this node has changed, or may have: then it is only asked.
    pub(crate) fn dir_changed(&self, dir: Ino, who: NodeId, certain: bool) -> FsResult<()> {
        // Attributes of a spread directory are cached as S37 says, and not by lease.
        let mut change = self.change_at(&[dir.slot()], &[])?;
        let Some(inode) = change.spread_dir(dir)? else { return Ok(()) };
        self.gathers.is_ahead(dir, who);
        if !certain {
            return Ok(());
        }
        change.touch_dir(inode);
        change.commit()
    }
}

impl Change<'_> {
    /// Returns a spread directory's inode; `None` if it is gone, or did not spread after all.
    pub(crate) fn spread_dir(&self, dir: Ino) -> FsResult<Option<Inode>> {
        match self.inode(dir) {
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            inode => Ok(Some(inode?).filter(|inode| inode.attr.is_spread())),
        }
    }

    /// Sets a directory's times, after a change of its entries.
    pub(crate) fn touch_dir(&mut self, mut inode: Inode) {
        (inode.attr.mtime, inode.attr.ctime) = (self.now, self.now);
        self.put_inode(&inode);
    }
}

impl Handle for op::UpdateShard {
    fn handle(
        node: &Node,
        ctx: &Ctx<'_>,
        UpdateShardRequest { dir, inherited }: UpdateShardRequest,
    ) -> FsResult<()> {
        let book = node.shards.slot_of(dir);
        let mut change = node.change_at(&[book], &[])?;
        if ctx.step_done(&change.txn, book)? {
            // What was said since counts.
            return Ok(());
        }
        let Some(mut shard) = change.shard(book, dir)? else { return Ok(()) };
        shard.inherited = inherited;
        change.put_shard(book, dir, &shard);
        change.commit_for(ctx, book, 0)
    }
}

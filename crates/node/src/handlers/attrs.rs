//! Looking at inodes and changing their attributes.

use bivouac_types::{Attr, Errno, FsResult, Ino, Name, SetAttr, SetTime, Timestamp, mode};
use bivouac_wire::{Blob, EntryName, Found, InoOnly, Seen, SetAttrRequest, op};

use crate::identity::is_peer;
use crate::intent_record::Intent;
use crate::locks::LockTarget;
use crate::node::Node;
use crate::reaper::Job;
use crate::record::{Dentry, Inode, target_key, without_set_id};
use crate::session::Ctx;
use crate::step::Handle;
use bivouac_layout::entry_hash;
use bivouac_session::Item;

impl Handle for op::Lookup {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: EntryName<'_>) -> FsResult<Found> {
        let name = Name::new(request.name)?;
        if is_peer(ctx.client) {
            node.bring_first_entries(request.parent)?;
        } else {
            node.bring_entries(request.parent)?;
        }
        node.note_user(ctx, request.parent);
        let (dentry, slot) = node.look_up(request.parent, &name)?;
        let item = Item::Name { slot, dir: request.parent, hash: entry_hash(request.parent, request.name) };
        match dentry {
            Some(dentry) => node.found(ctx, dentry, item),
            None => match node.lease(ctx, item) {
                0 => Err(Errno::ENOENT.into()),
                lease_ms => Ok(Found::absent(lease_ms)),
            },
        }
    }
}

impl Node {
    /// Notes that a client looks into a directory. One that is large spreads when somebody else than who fills it
    /// looks; what a process caches that is no mount is looked for on its own machine alone, and does not count.
    pub(super) fn note_user(&self, ctx: &Ctx<'_>, dir: Ino) {
        let is_mount = ctx.origin.mounted_through(self.map.formation).is_some();
        let is_cache = ctx.leased && !is_mount && self.served.get(ctx.origin).cache.is_some();
        if !is_cache && self.users.look(dir, ctx.origin) {
            self.reaper.add_once(Job::Spread(dir));
        }
    }

    /// Returns for how long a client may cache a reply about an item, in milliseconds. 0 for peers, and for clients
    /// that do not want leases.
    pub(super) fn lease(&self, ctx: &Ctx<'_>, item: Item) -> u32 {
        let caches = ctx.leased && !is_peer(ctx.client);
        if caches { self.callbacks.leases.look(ctx.origin, item, ctx.begun) } else { 0 }
    }

    /// Returns the attributes, and for how long they may be cached.
    pub(crate) fn seen(&self, ctx: &Ctx<'_>, attr: Attr) -> Seen {
        Seen { attr, lease_ms: self.lease(ctx, Item::Attrs(attr.ino)) }
    }

    /// Returns an entry with its attributes, if they are at hand.
    pub(crate) fn found(&self, ctx: &Ctx<'_>, dentry: Dentry, name: Item) -> FsResult<Found> {
        let at_hand = self.map.home(dentry.ino) == Some(self.id);
        if at_hand {
            self.settle_sizes_of(dentry.ino);
        }
        let attr = match self.inode(dentry.ino) {
            _ if !at_hand => None,
            // It went since its entry was read; who asks for it next learns that.
            Err(error) if error.errno() == Errno::ENOENT => None,
            // The attributes of a spread directory are gathered for who asks for them.
            found => Some(found?.attr).filter(|attr| !attr.is_spread()),
        };
        Ok(self.found_with(ctx, dentry, attr, name))
    }

    /// Returns an entry with these attributes.
    pub(crate) fn found_with(&self, ctx: &Ctx<'_>, dentry: Dentry, attr: Option<Attr>, name: Item) -> Found {
        let Dentry { ino, kind } = dentry;
        let lease_ms = self.lease(ctx, name);
        // Only its home recalls leases on attributes.
        let here = attr.is_some() && self.map.home(ino) == Some(self.id);
        let attr_lease_ms = if here { self.lease(ctx, Item::Attrs(ino)) } else { 0 };
        Found { ino, kind, attr, lease_ms, attr_lease_ms }
    }
}

impl Handle for op::GetAttr {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: InoOnly) -> FsResult<Seen> {
        node.settle_sizes_of(request.ino);
        Ok(node.seen(ctx, node.gathered(ctx, request.ino)?.attr))
    }
}

impl Handle for op::ReadLink {
    fn handle(node: &Node, _: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<Blob> {
        if node.inode(ino)?.attr.mode & mode::TYPE != mode::LINK {
            return Err(Errno::EINVAL.into());
        }
        let target = node.records.read(ino.slot(), &target_key(ino), |bytes| bytes.map(<[u8]>::to_vec));
        target.map(|bytes| Blob { bytes }).ok_or_else(|| Errno::ENOENT.into())
    }
}

impl Handle for op::Parent {
    fn handle(node: &Node, _: &Ctx<'_>, request: InoOnly) -> FsResult<Ino> {
        let inode = node.inode(request.ino)?;
        if inode.attr.is_dir() { Ok(inode.parent) } else { Err(Errno::ENOTDIR.into()) }
    }
}

impl Handle for op::SetAttr {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SetAttrRequest) -> FsResult<Seen> {
        let SetAttrRequest { ino, set } = request;
        // Where directories are sticky, a kernel goes by the owner that it has of an inode, also an old one, as long as
        // it shows its name.
        let all = [Item::Attrs(ino), Item::Slot(ino.slot())];
        let _quiet = node.callbacks.begin(if set.uid.is_some() { &all } else { &all[..1] });
        // First, as it may be refused; a retransmission finds that it was done, and sets the others again.
        let done = match set.size {
            Some(size) => node.resize_once(ctx, ino, size)?.1,
            None => 0,
        };
        let _dir = node.stay(ino)?;
        let mut change = node.change_of(ino)?;
        let mut inode = change.inode(ino)?;
        if inode.attr.is_spread() {
            // A size is locked for it, for which nobody waits within a transaction.
            drop(change);
            return node.set_spread(ctx, ino, |inode, now| apply(&mut inode.attr, &set, now));
        }
        apply(&mut inode.attr, &set, change.now);
        change.put_inode(&inode);
        change.commit_for(ctx, ino.slot(), done)?;
        Ok(node.seen(ctx, inode.attr))
    }
}

impl Node {
    /// Changes a spread directory's attributes. What its shards have done before does not count any more, and what
    /// new entries get from it, they are told.
    pub(super) fn set_spread(
        &self,
        ctx: &Ctx<'_>,
        dir: Ino,
        set: impl Fn(&mut Inode, Timestamp),
    ) -> FsResult<Seen> {
        let _size = self.locks.lock(LockTarget::Size(dir))?;
        // A shard that is found changed later would set the times anew, over those that are set here.
        self.gather(ctx.origin, dir)?;
        let changed = || {
            let mut change = self.change_of(dir)?;
            let mut inode = change.inode(dir)?;
            set(&mut inode, change.now);
            change.put_inode(&inode);
            Ok(change)
        };
        // What is inherited changes under the lock only.
        let mut after = self.inode(dir)?;
        let before = after.inherited();
        set(&mut after, self.clock.now());
        if after.inherited() == before {
            changed()?.commit_for(ctx, dir.slot(), 0)?;
        } else {
            self.carry_out_begun(ctx, dir.slot(), Intent::Inherit(dir), |_| changed())?;
        }
        Ok(self.seen(ctx, self.inode(dir)?.attr))
    }
}

fn apply(attr: &mut Attr, set: &SetAttr, now: Timestamp) {
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    if let Some(mode) = set.mode {
        attr.mode = attr.mode & mode::TYPE | mode & mode::PERM;
    }
    // Directories keep theirs: there the bit says what is passed on.
    if set.kill_suid && !attr.is_dir() {
        attr.mode = without_set_id(attr.mode);
    }
    attr.atime = set.atime.map_or(attr.atime, time);
    attr.mtime = set.mtime.map_or(attr.mtime, time);
    attr.ctime = set.ctime.unwrap_or(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_id_bits_go_as_the_kernel_drops_them() {
        assert_eq!(without_set_id(0o106_755), 0o100_755);
        assert_eq!(without_set_id(0o102_644), 0o102_644, "mandatory locking's mark stays");
        assert_eq!(without_set_id(0o104_711), 0o100_711);
    }
}

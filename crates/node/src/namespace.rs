//! Reading and changing the namespace's records: the only place that knows how an entry, its
//! directory and its inode depend on each other.

mod site_records;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use bivouac_store::Txn;
use bivouac_types::limits::{INVALIDATIONS_MAX, SPREAD_ENTRIES_MAX};
use bivouac_types::{
    BEING_WRITTEN, ClientId, Errno, FsError, FsResult, Ino, Layout, OpenId, PartitionId, Slot, SpreadAt,
    Timestamp, mode,
};
use bivouac_wire::{Decode, Encode};

use crate::identity::{SYSTEM, is_peer};
use crate::leases::{Changing, Principal};
use crate::node::Node;
use crate::reaper::Job;
use crate::record::{
    Garbage, Inode, folded_key, garbage_key, inode_key, orphan_key, site_prefix, table, target_key,
    unnamed_key, xattr_key,
};
use crate::session::Ctx;
use bivouac_session::Item;

/// Stands, among the holders of an orphaned inode, for clients that have looked its name up and may be about to open
/// it.
pub const LOOKED_UP: ClientId = SYSTEM;

/// Entries that a directory which could not spread has to grow by before the next attempt.
const SPREAD_TURN: u64 = 64;

/// Decodes a record; one that cannot be read is damage, not absence.
pub fn decode<'a, T: Decode<'a>>(bytes: &'a [u8], what: &str, ino: Ino) -> FsResult<T> {
    T::from_bytes(bytes)
        .map_err(|e| FsError::with(Errno::EIO, format!("{what} record of inode {ino} is damaged: {e}")))
}

/// Returns `None` for a record that is not there; one that cannot be read is an error still.
pub fn unless_absent<T>(record: FsResult<T>) -> FsResult<Option<T>> {
    match record {
        Err(error) if error.errno() == Errno::ENOENT => Ok(None),
        record => record.map(Some),
    }
}

impl Node {
    /// Returns the inode's record.
    ///
    /// # Errors
    /// `ENOENT` when there is none, `ESTALE` when it is not this node's to know.
    pub(crate) fn inode(&self, ino: Ino) -> FsResult<Inode> {
        self.check_slot(ino.slot())?;
        self.records.read(ino.slot(), &inode_key(ino), |bytes| self.told_inode(ino, bytes))
    }

    /// Decodes an inode's record, and adds the size that processes have raised in shared memory since it was written.
    /// The caller has the slot locked.
    pub(crate) fn told_inode(&self, ino: Ino, record: Option<&[u8]>) -> FsResult<Inode> {
        let mut inode: Inode =
            record.map_or(Err(Errno::ENOENT.into()), |bytes| decode(bytes, "inode", ino))?;
        let recorded = inode.attr;
        self.lending.add_to(&mut inode.attr);
        if inode.attr != recorded {
            // Whoever stores these attributes stores the version of the content with them.
            inode.attr.raise_data_version();
        }
        if inode.attr.is_file() && !inode.attr.is_laminated() && self.may_be_written(ino) {
            inode.attr.data_version |= BEING_WRITTEN;
        }
        Ok(inode)
    }

    /// Returns true if a client may write to the file without a message for each write: one that has reported a write
    /// and not closed the file since, one that the size is lent to, or any client while some still await reclaim.
    pub(crate) fn may_be_written(&self, ino: Ino) -> bool {
        self.opens.has_writer(ino) || self.lending.is_lent(ino) || !self.sessions.awaiting().is_empty()
    }

    /// Begins a change of records in these slots, and recalls the leases on everything in them. All slots must be this
    /// node's.
    pub(crate) fn change(&self, slots: &[Slot]) -> FsResult<Change<'_>> {
        self.change_at(slots, &slots.iter().copied().map(Item::Slot).collect::<Vec<_>>())
    }

    /// Recalls the leases on an inode's attributes but those of the client that the thread acts for: they are about to
    /// change. See [`Callbacks::begin`](crate::callbacks::Callbacks::begin).
    pub(crate) fn recall_other_attr_leases(&self, ino: Ino) -> Option<Changing<'_>> {
        self.callbacks.begin(&[Item::Attrs(ino)])
    }

    /// Recalls all leases on an inode's attributes, for a change that no client asked for: also the client whose
    /// request led to it may cache what was before.
    pub(crate) fn recall_attr_leases(&self, ino: Ino) -> Option<Changing<'_>> {
        let _principal = Principal::on_behalf_of(SYSTEM);
        self.recall_other_attr_leases(ino)
    }

    /// Notifies mounts that have a file open that it has become longer: their kernels end asynchronous reads at the
    /// size they know. Does nothing unless `by` is a mount. To be called before the reply, and without the size locked,
    /// since a kernel that is notified may wait for its programs' writes. Mounts that have made the file longer
    /// themselves are not notified, so that writers of one file do not wait for each other; nor is anybody if there are
    /// more than [`INVALIDATIONS_MAX`].
    pub(crate) fn has_grown(&self, by: ClientId, ino: Ino, size: u64) {
        let formation = self.map.formation;
        if by.mounted_through(formation).is_none() {
            return;
        }
        let mut others = self.opens.note_growth(ino, by);
        others.retain(|client| client.mounted_through(formation).is_some());
        if others.len() <= INVALIDATIONS_MAX {
            self.callbacks.tell_growth(&others, ino, size);
        }
    }

    /// Like [`Node::change`], for a change of an inode's attributes alone whose leases have been recalled.
    pub(crate) fn change_of(&self, ino: Ino) -> FsResult<Change<'_>> {
        self.check_slot(ino.slot())?;
        // Leases that were granted since the recall are waited for: with the size locked no kernel may be asked.
        let changing = self.callbacks.leases.change(&[Item::Attrs(ino)], &|_, _, _| None);
        Ok(Change::begun(self, changing, &[ino.slot()]))
    }

    /// Like [`Node::change`], where clients can have leases on these items only of all that changes.
    pub(crate) fn change_at(&self, slots: &[Slot], items: &[Item]) -> FsResult<Change<'_>> {
        slots.iter().try_for_each(|slot| self.check_slot(*slot))?;
        Ok(Change::begun(self, self.callbacks.begin(items), slots))
    }

    /// Returns true if this node has the slot.
    pub(crate) fn owns(&self, slot: Slot) -> bool {
        self.map.slot_node(slot) == Some(self.id)
    }

    /// Refuses a slot that is not this node's.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(crate) fn check_slot(&self, slot: Slot) -> FsResult<()> {
        match self.map.slot_node(slot) {
            Some(node) if node == self.id => Ok(()),
            Some(node) => Err(FsError::with(
                Errno::ESTALE,
                format!("slot {} belongs to {node}, not to {}: get the map again", slot.0, self.id),
            )),
            None => Err(FsError::with(Errno::ESTALE, format!("the formation has no slot {}", slot.0))),
        }
    }
}

/// A change in the making. Dropped without commit, nothing has happened.
pub struct Change<'a> {
    pub(crate) node: &'a Node,
    /// Refuses leases on what changes, until the change is committed or dropped.
    _changing: Option<Changing<'a>>,
    /// The transaction, for records that this module does not cover.
    pub txn: Txn<'a>,
    /// The time of the change.
    pub now: Timestamp,
    garbage: bool,
    files: i64,
    /// Inodes that lost their last name and stay for a moment.
    delayed: Vec<Ino>,
    /// Inodes that change, or that changed entries point to; only filled while a check watches for them.
    touched: Vec<Ino>,
    /// Spread directories whose shards here change. Their homes are notified.
    shards: Vec<Ino>,
    /// A directory that has grown so large that it should spread.
    grown: Option<Ino>,
    /// The error for clients, where the partition permits no such change.
    refusal: Option<FsError>,
    /// The error of a record that cannot be read, and that the change would replace.
    damage: Option<FsError>,
}

impl<'a> Change<'a> {
    /// Creates a change of records in these slots, whose leases have been recalled.
    pub(crate) fn begun(node: &'a Node, changing: Option<Changing<'a>>, slots: &[Slot]) -> Change<'a> {
        Change {
            node,
            _changing: changing,
            txn: node.records.txn(slots),
            now: node.clock.now(),
            garbage: false,
            files: 0,
            delayed: Vec::new(),
            touched: Vec::new(),
            shards: Vec::new(),
            grown: None,
            refusal: None,
            damage: None,
        }
    }
}

impl Change<'_> {
    /// Commits the change as this client's operation, with `value` as its result for retransmissions.
    ///
    /// # Errors
    /// As [`Change::check_for`].
    pub fn commit_for(mut self, ctx: &Ctx<'_>, slot: Slot, value: u64) -> FsResult<()> {
        self.check_for(ctx)?;
        ctx.remember(&mut self.txn, slot, value);
        self.commit()
    }

    /// Like [`Change::commit_for`], for an idempotent operation: no result is kept for retransmissions.
    pub fn commit_repeatable_for(mut self, ctx: &Ctx<'_>) -> FsResult<()> {
        self.check_for(ctx)?;
        self.commit()
    }

    /// Refuses the change to a client whose request was superseded, or that changes a read-only partition. Nodes are
    /// permitted the latter: they bring in what the source has.
    ///
    /// # Errors
    /// `EROFS`; `EIO`, which nobody reads.
    pub(crate) fn check_for(&mut self, ctx: &Ctx<'_>) -> FsResult<()> {
        ctx.check_current()?;
        let is_own = is_peer(ctx.client) || ctx.client == SYSTEM;
        self.refusal.take().filter(|_| !is_own).map_or(Ok(()), Err)
    }

    /// Records that names or attributes in a partition change, which its settings may refuse to clients.
    pub(crate) fn note_partition(&mut self, id: PartitionId) {
        if id != PartitionId::ROOT
            && let Some(partition) = self.node.partitions.get(id)
        {
            self.refusal = self.refusal.take().or(partition.settings.check_changes_permitted().err());
        }
    }

    /// Records that a partition gets a new inode, which its settings may refuse to clients.
    pub(crate) fn note_new(&mut self, id: PartitionId) {
        self.refusal = self.refusal.take().or(self.node.check_content_permitted(id).err());
    }

    /// Commits the change, and notifies the homes of spread directories whose shards changed.
    pub fn commit(mut self) -> FsResult<()> {
        let (node, shards) = (self.node, std::mem::take(&mut self.shards));
        self.commit_quietly()?;
        shards.into_iter().for_each(|dir| node.tell_home(Principal::for_whom(), dir));
        Ok(())
    }

    /// Like [`Change::commit_quietly`], as this client's operation, with `value` as its result for retransmissions.
    pub fn commit_quietly_for(mut self, ctx: &Ctx<'_>, slot: Slot, value: u64) -> FsResult<()> {
        ctx.check_current()?;
        ctx.remember(&mut self.txn, slot, value);
        self.commit_quietly()
    }

    /// Records that the change depends on a record that is damaged: its commit fails.
    pub(crate) fn note_damage(&mut self, error: FsError) {
        self.damage.get_or_insert(error);
    }

    /// Commits the change. The caller has to notify the homes of spread directories.
    pub fn commit_quietly(mut self) -> FsResult<()> {
        if let Some(damage) = self.damage.take() {
            return Err(damage);
        }
        if !self.touched.is_empty() {
            // Before the commit, while its slots are locked: see `Watches::touch`.
            self.node.watches.touch(&self.touched);
        }
        self.txn.commit()?;
        // After the commit: what is counted and scheduled here must be in the log.
        // A negative number wraps around, which adds up to the right sum.
        self.node.files.fetch_add(self.files as u64, Ordering::Relaxed);
        let records = &self.node.records;
        if self.garbage || records.wants_compaction() || records.has_shrunk() {
            self.node.reaper.wake();
        }
        self.node.reaper.delay(&self.delayed);
        if let Some(dir) = self.grown {
            self.node.reaper.add_once(Job::Spread(dir));
        }
        Ok(())
    }

    /// Records how many entries a directory has after the change, and has it spread where they are enough: fewer of
    /// them if several clients use it.
    pub(crate) fn note_size(&mut self, dir: Ino, entries: u64) {
        let (node, SpreadAt { shared, alone }) = (self.node, self.node.spread_at);
        // All entries move by one commit at the home, which limits them. A directory beyond that stays where it is.
        if node.map.nodes.len() == 1 || entries > SPREAD_ENTRIES_MAX {
            return;
        }
        if entries < shared {
            // Only users of large directories are remembered, so that the table stays small.
            return node.users.forget(dir);
        }
        let from =
            if shared < alone && node.users.change(dir, Principal::for_whom()) { shared } else { alone };
        // Tried again now and then, if it was not possible.
        if entries >= from && (entries - from).is_multiple_of(SPREAD_TURN) {
            self.grown = Some(dir);
        }
    }

    /// Records that this node's shard of a directory changes.
    pub(crate) fn note_shard(&mut self, dir: Ino) {
        if !self.shards.contains(&dir) {
            self.shards.push(dir);
        }
    }

    /// Records that an inode changes, for checks that watch it.
    pub fn touch(&mut self, ino: Ino) {
        if self.node.watches.is_active() {
            self.touched.push(ino);
        }
    }

    /// Like [`Node::inode`], with what the change has written.
    pub fn inode(&self, ino: Ino) -> FsResult<Inode> {
        self.node.told_inode(ino, self.txn.get(ino.slot(), &inode_key(ino)))
    }

    /// Writes an inode's record.
    pub fn put_inode(&mut self, inode: &Inode) {
        let (ino, mut record) = (inode.attr.ino, *inode);
        self.touch(ino);
        // A property of the moment, which is not stored: see `told_inode`.
        record.attr.data_version &= !BEING_WRITTEN;
        self.note_partition(inode.attr.layout.partition());
        self.txn.put(ino.slot(), &inode_key(ino), &record.to_bytes());
        self.note_changed(inode);
    }

    /// Writes a new inode.
    ///
    /// # Panics
    /// The inode number is in use.
    pub fn add_inode(&mut self, inode: &Inode) {
        let ino = inode.attr.ino;
        let is_free = self.txn.get(ino.slot(), &inode_key(ino)).is_none();
        assert!(is_free, "inode number {ino} is used twice");
        self.note_new(inode.attr.layout.partition());
        self.files += 1;
        self.put_inode(inode);
    }

    /// Writes a symbolic link's target.
    pub fn put_target(&mut self, ino: Ino, target: &[u8]) {
        self.txn.put(ino.slot(), &target_key(ino), target);
    }

    /// Changes an inode's link count by `delta`. An inode without links is removed at once, or when nobody has it open
    /// any more.
    pub fn adjust_links(&mut self, ino: Ino, delta: i32) -> FsResult<Inode> {
        let (inode, holders) = self.count_links(ino, delta)?;
        if let Some(holders) = holders {
            self.orphan(&inode, &holders);
        }
        Ok(inode)
    }

    /// Like [`Change::adjust_links`], for a name that leads to another inode from now on. An inode without links stays
    /// for a moment: a client may have looked its name up, and be about to open it.
    pub fn replace_link(&mut self, ino: Ino, delta: i32) -> FsResult<Inode> {
        let (inode, holders) = self.count_links(ino, delta)?;
        if let Some(mut holders) = holders {
            holders.push(LOOKED_UP);
            self.delayed.push(ino);
            self.orphan(&inode, &holders);
        }
        Ok(inode)
    }

    /// Changes an inode's link count. If none is left, returns the clients that may have it open as well, and has not
    /// written the inode yet.
    fn count_links(&mut self, ino: Ino, delta: i32) -> FsResult<(Inode, Option<Vec<ClientId>>)> {
        let mut inode = self.inode(ino)?;
        if delta > 0 && inode.attr.nlink == 0 {
            if self.txn.get(ino.slot(), &unnamed_key(ino)).is_none() {
                return Err(Errno::ENOENT.into());
            }
            // An unnamed inode that gets its first name is kept by that, no longer by its opens.
            self.txn.delete(ino.slot(), &orphan_key(ino));
        }
        let links = inode.attr.nlink.saturating_add_signed(delta);
        if delta > 0 && links > bivouac_types::limits::LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        inode.attr.nlink = links;
        inode.attr.ctime = self.now;
        if links > 0 {
            self.put_inode(&inode);
            return Ok((inode, None));
        }
        // In this order: a client that finishes its reclaim in between is among the holders then.
        let mut holders = self.node.sessions.awaiting();
        holders.extend(self.node.opens.holders(ino));
        holders.sort_unstable();
        holders.dedup();
        Ok((inode, Some(holders)))
    }

    /// Keeps an inode without links for the clients that may have it open; erases it if there are none.
    fn orphan(&mut self, inode: &Inode, holders: &[ClientId]) {
        let ino = inode.attr.ino;
        assert_eq!(inode.attr.nlink, 0, "inode {ino} has a name, and would be kept for its opens alone");
        if holders.is_empty() || !inode.attr.is_file() {
            return self.erase_inode(inode);
        }
        self.put_inode(inode);
        self.txn.put(ino.slot(), &orphan_key(ino), &holders.to_vec().to_bytes());
    }

    /// Removes an inode with its xattrs, link target and site records; its subfiles become garbage.
    pub fn erase_inode(&mut self, inode: &Inode) {
        let (ino, slot) = (inode.attr.ino, inode.attr.ino.slot());
        assert!(self.txn.get(slot, &inode_key(ino)).is_some(), "inode {ino} is erased, and is not there");
        self.touch(ino);
        let xattrs = self.keys_below(slot, &xattr_key(ino, b""));
        xattrs.iter().for_each(|key| self.txn.delete(slot, key));
        if inode.attr.mode & mode::TYPE == mode::LINK {
            self.txn.delete(slot, &target_key(ino));
        }
        if inode.attr.nlink == 0 && self.txn.get(slot, &orphan_key(ino)).is_some() {
            self.txn.delete(slot, &orphan_key(ino));
        }
        if inode.attr.is_spread() {
            self.txn.delete(slot, &folded_key(ino));
            self.node.gathers.forget(ino);
        }
        if inode.attr.is_file() && self.txn.get(slot, &unnamed_key(ino)).is_some() {
            self.txn.delete(slot, &unnamed_key(ino));
        }
        if self.node.is_bound(inode.attr.layout.partition()) {
            self.node.proxy.failing.forget(ino);
            if !self.is_told_of(inode) {
                let known = self.keys_below(slot, &site_prefix(ino));
                known.iter().for_each(|key| self.txn.delete(slot, key));
            }
        }
        self.txn.delete(slot, &inode_key(ino));
        self.files -= 1;
        // There may be bytes behind the end though the file is empty and was never cut.
        let rest = self.node.stale_tails.may_have_tail(ino);
        self.node.stale_tails.forget(ino);
        if inode.attr.is_file() && (inode.attr.size > 0 || inode.attr.epoch > 0 || rest) {
            // A file that was cut may have had another layout before.
            let Layout { targets, .. } = inode.attr.layout;
            let width = if inode.attr.epoch > 0 { targets } else { inode.attr.layout.width };
            self.discard_subfiles(ino, Layout { width, ..inode.attr.layout });
        }
    }

    /// Removes an inode's record alone; what belongs to it stays.
    pub fn hide_inode(&mut self, inode: &Inode) {
        let ino = inode.attr.ino;
        let is_there = self.txn.get(ino.slot(), &inode_key(ino)).is_some();
        assert!(is_there, "inode {ino} is set aside, and is not there");
        self.touch(ino);
        self.txn.delete(ino.slot(), &inode_key(ino));
        self.files -= 1;
    }

    /// Marks the subfiles of a removed inode as garbage.
    pub fn discard_subfiles(&mut self, ino: Ino, layout: Layout) {
        self.touch(ino);
        let key = garbage_key(ino);
        // The reaper may be removing these subfiles just now: it must not take the record away with the older ones.
        if self.txn.get(ino.slot(), &key).is_some() {
            self.node.reaper.discarded_again(None, ino);
        }
        self.txn.put(ino.slot(), &key, &Garbage { layout }.to_bytes());
        self.garbage = true;
    }

    /// Returns all keys in a slot with this prefix.
    pub(crate) fn keys_below(&self, slot: Slot, prefix: &[u8]) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        self.txn.scan(slot, prefix, prefix, |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        });
        keys
    }
}

impl Node {
    /// Counts the inodes of this node's slots, once at the start.
    pub(crate) fn count_files(&self) {
        let mut files = 0;
        self.each_record(&table(b'I'), |_, _, _| files += 1);
        self.files.store(files, Ordering::Relaxed);
    }

    /// Removes an open. An inode without links is released with its last open.
    pub(crate) fn close(&self, client: ClientId, ino: Ino, open: OpenId) {
        if self.opens.remove(ino, client, open) {
            self.release_orphan(ino, client);
        }
    }

    /// Like [`Node::forget_orphan`]. A failure to log is retried in the background until it succeeds: where a disk is
    /// full, this inode may be what fills it.
    pub(crate) fn release_orphan(&self, ino: Ino, client: ClientId) {
        match self.forget_orphan(ino, client) {
            Ok(()) => {}
            // A client may name any inode: nothing is kept for those that are not here.
            Err(error) if error.errno() == Errno::ESTALE => {
                log::debug!(why:% = error; "close of inode {ino}")
            }
            Err(error) => {
                log::warn!(why:% = error; "inode {ino} has no name and is removed later");
                self.reaper.add_once(Job::Orphan(ino, client));
            }
        }
    }

    /// Records that a client has an inode open, if that inode has no links.
    pub(crate) fn hold_orphan(&self, ino: Ino, client: ClientId) -> FsResult<()> {
        let Some((mut change, mut holders)) = self.orphan_change(ino)? else { return Ok(()) };
        if holders.contains(&client) {
            return Ok(());
        }
        holders.push(client);
        change.txn.put(ino.slot(), &orphan_key(ino), &holders.to_bytes());
        change.commit()
    }

    /// Begins a change of an orphaned inode's holders, and returns it with them; `None` if the inode has links.
    fn orphan_change(&self, ino: Ino) -> FsResult<Option<(Change<'_>, Vec<ClientId>)>> {
        let slot = ino.slot();
        self.check_slot(slot)?;
        // Looked for without a transaction first: nearly all inodes have a name, and closes are frequent.
        if !self.records.read(slot, &orphan_key(ino), |found| found.is_some()) {
            return Ok(None);
        }
        let change = self.change_at(&[slot], &[])?;
        let Some(bytes) = change.txn.get(slot, &orphan_key(ino)) else { return Ok(None) };
        let holders = decode(bytes, "orphan", ino)?;
        Ok(Some((change, holders)))
    }

    /// Removes a client from the holders of an inode without links, and erases the inode with the last of them. Clients
    /// that have not reclaimed since a restart count as holders.
    pub(crate) fn forget_orphan(&self, ino: Ino, client: ClientId) -> FsResult<()> {
        let Some((mut change, mut holders)) = self.orphan_change(ino)? else { return Ok(()) };
        holders.retain(|holder| *holder != client);
        if self.opens.is_held(ino, client) {
            // Opened again meanwhile: that client stays a holder.
            return Ok(());
        }
        // Opens in memory count, too: one that came after the last name went may not be in the record yet.
        if holders.is_empty() && !self.opens.is_open(ino) {
            let inode = change.inode(ino)?;
            change.erase_inode(&inode);
        } else {
            change.touch(ino);
            change.txn.put(ino.slot(), &orphan_key(ino), &holders.to_bytes());
        }
        change.commit()
    }
}

impl Node {
    /// Like [`Node::inode`], of a regular file.
    ///
    /// # Errors
    /// `EISDIR` and `EINVAL` for anything else.
    pub(crate) fn regular_file(&self, ino: Ino) -> FsResult<Inode> {
        let inode = self.inode(ino)?;
        match inode.attr.mode & mode::TYPE {
            mode::FILE => Ok(inode),
            mode::DIR => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Releases all inodes without links that a client was a holder of and does not have open.
    pub(crate) fn release_orphans(&self, client: ClientId) {
        for ino in self.orphans().into_iter().filter(|ino| !self.opens.is_held(*ino, client)) {
            self.release_orphan(ino, client);
        }
    }
}

#[cfg(test)]
mod tests {
    use bivouac_types::{OpId, SetAttr, TargetIndex};
    use bivouac_wire::{
        AppendRequest, EntryName, ExtendRequest, InoOnly, LinkRequest, MakeUnnamedRequest, OpenRequest,
        RenameRequest, SetAttrRequest, SetContractRequest, SetXattrRequest, UnlinkRequest, WriteRequest,
        XattrName, op,
    };

    use super::*;
    use crate::intent_record::{Intent, NewDir, OldEntry};
    use crate::step::Handle;
    use crate::testing::{alone, make_in_root, put_in_partition};

    const PARENT: Ino = Ino::ROOT;

    const CLIENT: ClientId = ClientId(7);

    /// Makes a file `f`, a directory `d` and a file `k`, and returns the first two.
    fn fill(node: &Node) -> [Ino; 2] {
        let mut made = Vec::new();
        for (number, (name, kind)) in
            [(&b"f"[..], mode::FILE), (b"d", mode::DIR), (b"k", mode::FILE)].iter().enumerate()
        {
            let ctx = Ctx { id: OpId(number as u64 + 1), ..Ctx::of_node(CLIENT) };
            made.push(op::Make::handle(node, &ctx, make_in_root(name, kind | 0o700, b"")).unwrap().found.ino);
        }
        let xattr = SetXattrRequest { ino: made[0], name: b"user.x", value: b"v", flags: 0 };
        op::SetXattr::handle(node, &Ctx { id: OpId(9), ..Ctx::of_node(CLIENT) }, xattr).unwrap();
        [made[0], made[1]]
    }

    /// Sends every request by which a client changes names, attributes or content, and returns the error of each.
    fn changes(node: &Node, [file, dir]: [Ino; 2], first: u64) -> Vec<(&'static str, Option<Errno>)> {
        let mut next = first;
        let mut ctx = || {
            next += 1;
            Ctx { id: OpId(next), ..Ctx::of_node(CLIENT) }
        };
        let mut found = Vec::new();
        let mut note = |what, error: Option<FsError>| found.push((what, error.map(|error| error.errno())));
        let make = |name, kind, target| make_in_root(name, kind | 0o700, target);
        note("file", op::Make::handle(node, &ctx(), make(b"g", mode::FILE, b"")).err());
        note("directory", op::Make::handle(node, &ctx(), make(b"e", mode::DIR, b"")).err());
        note("symlink", op::Make::handle(node, &ctx(), make(b"l", mode::LINK, b"f")).err());
        let (uid, gid, open, near) = (0, 0, OpenId(2), None);
        let unnamed =
            MakeUnnamedRequest { parent: PARENT, mode: mode::FILE, uid, gid, linkable: true, open, near };
        note("unnamed", op::MakeUnnamed::handle(node, &ctx(), unnamed).err());
        let link = LinkRequest { ino: file, parent: PARENT, name: b"h" };
        note("link", op::Link::handle(node, &ctx(), link).err());
        let (name, new_name, flags, expect): (&[u8], &[u8], _, _) = (b"f", b"i", 0, None);
        let rename = RenameRequest { parent: PARENT, name, new_parent: PARENT, new_name, flags, expect };
        note("rename", op::Rename::handle(node, &ctx(), rename).err());
        let set = |set| SetAttrRequest { ino: file, set };
        let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        note("mode", op::SetAttr::handle(node, &ctx(), set(chmod)).err());
        let truncate = SetAttr { size: Some(5), ..SetAttr::default() };
        note("size", op::SetAttr::handle(node, &ctx(), set(truncate)).err());
        let xattr = SetXattrRequest { ino: file, name: b"user.y", value: b"v", flags: 0 };
        note("xattr", op::SetXattr::handle(node, &ctx(), xattr).err());
        let xattr = XattrName { ino: file, name: b"user.x" };
        note("no xattr", op::RemoveXattr::handle(node, &ctx(), xattr).err());
        let layout =
            SetXattrRequest { ino: dir, name: b"user.bivouac.layout", value: b"stripe=8192", flags: 0 };
        note("layout", op::SetXattr::handle(node, &ctx(), layout).err());
        let contract = Some(bivouac_types::Contract::Session);
        let contract = SetContractRequest { ino: dir, contract, digest: None, flags: 0 };
        note("contract", op::SetContract::handle(node, &ctx(), contract).err());
        let attr = node.inode(file).unwrap().attr;
        let extend = ExtendRequest { ino: file, end: 100, epoch: attr.epoch };
        note("extend", op::Extend::handle(node, &ctx(), extend).err());
        note("touch", op::Touch::handle(node, &ctx(), InoOnly { ino: file }).err());
        let payload = [std::io::IoSlice::new(b"more")];
        let append = AppendRequest { ino: file, epoch: None, from: 0 };
        let appended = op::Append::handle(node, &Ctx { payload: &payload, ..ctx() }, append);
        note("append", appended.err());
        let (target, layout, offset) = (TargetIndex(attr.layout.base.0), attr.layout, 0);
        let write = WriteRequest { ino: file, target, layout, epoch: attr.epoch, offset };
        note("write", op::Write::handle(node, &Ctx { payload: &payload, ..ctx() }, write).err());
        let id = OpenId(4).for_access(true);
        let open = OpenRequest { ino: file, id, floor: OpenId(0), truncate: false };
        note("open", op::Open::handle(node, &ctx(), open).err());
        let unlink = UnlinkRequest { parent: PARENT, name: b"k", expect: None };
        note("unlink", op::Unlink::handle(node, &ctx(), unlink).err());
        note("rmdir", op::Rmdir::handle(node, &ctx(), EntryName { parent: PARENT, name: b"d" }).err());
        found
    }
    /// S823, for a client that does not ask whether it may: the node refuses.
    #[test]
    fn a_read_only_link_is_changed_by_no_request() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(&dir.path().join("plain"));
        let plain = changes(&node, fill(&node), 100);
        assert!(plain.iter().all(|(_, error)| error.is_none()), "{plain:?}");
        let node = alone(&dir.path().join("linked"));
        let link = "source=bivouac://h:1/far?key=k&read-only";
        put_in_partition(&node, 1, &format!("{link}\nwrite=never"));
        let inos = fill(&node);
        put_in_partition(&node, 2, link);
        let before = inos.map(|ino| node.inode(ino).unwrap());
        let refused = changes(&node, inos, 100);
        assert!(refused.iter().all(|(_, error)| *error == Some(Errno::EROFS)), "{refused:?}");
        assert_eq!(inos.map(|ino| node.inode(ino).unwrap()), before);
        assert_eq!(node.inode(PARENT).unwrap().attr.size, 3);
        // Those that need peers, before anything of them is written down.
        let client = Ctx { id: OpId(500), ..Ctx::of_node(CLIENT) };
        let old = |name: &[u8], ino| OldEntry { parent: PARENT, name: name.to_vec(), ino };
        let new = Inode { attr: bivouac_types::Attr { ino: Ino(77), ..before[1].attr }, ..before[1] };
        for intent in [
            Intent::MakeDir(NewDir { name: b"e".to_vec(), inode: new, site: None }),
            Intent::RemoveDir(old(b"d", inos[1])),
            Intent::Unlink(old(b"f", inos[0])),
            Intent::Link(old(b"h", inos[0])),
        ] {
            let what = format!("{intent:?}");
            let refused = node.carry_out(&client, PARENT.slot(), intent).map_err(|error| error.errno());
            assert_eq!(refused, Err(Errno::EROFS), "{what}");
        }
        assert_eq!(node.unfinished(), 0);
        // What the far side has is brought all the same.
        let gone = bivouac_types::Name::new(b"k").unwrap();
        node.remove_gone_there(PARENT, &gone, false, None).unwrap();
        assert_eq!(node.inode(PARENT).unwrap().attr.size, 2);
    }

    /// A link that is being removed is emptied, and takes nothing new that would go with it.
    #[test]
    fn a_detached_link_can_only_be_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        put_in_partition(&node, 1, "source=bivouac://h:1/far?key=k");
        let inos = fill(&node);
        put_in_partition(&node, 2, "source=bivouac://h:1/far?key=-");
        let outcomes = changes(&node, inos, 100);
        let is_refused =
            |what: &str| outcomes.iter().any(|(one, error)| *one == what && *error == Some(Errno::EROFS));
        for what in ["file", "directory", "symlink", "unnamed", "write", "open"] {
            assert!(is_refused(what), "{what}: {outcomes:?}");
        }
        for what in ["unlink", "rmdir"] {
            assert!(outcomes.contains(&(what, None)), "{what}: {outcomes:?}");
        }
    }
}

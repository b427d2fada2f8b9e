//! Handlers of steps on the peer lane. They ask no node, and each step may come twice. One over a superseded connection
//! is refused under the lock: its change may be over and undone, and nobody would undo the step again.

use bivouac_types::{Attr, Errno, ExpectedFile, FsError, FsResult, Ino, Name};
use bivouac_wire::{
    AdjustLinksRequest, Encode, InoOnly, InstallEntryRequest, PutInodeRequest, RemoveDirRequest, RemovedDir,
    SetParentRequest, op,
};

use super::rename::unexpected;
use crate::directory::EntryPlace;
use crate::locks::LockTarget;
use crate::namespace::{Change, decode, unless_absent};
use crate::node::Node;
use crate::proxy::not_listed;
use crate::record::{Dentry, Inode, SetAsideDir, aside_key};
use crate::session::Ctx;
use crate::step::Handle;
use bivouac_session::Item;

impl Handle for op::PutInode {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: PutInodeRequest<'_>) -> FsResult<()> {
        let inode: Inode = decode(request.record, "inode", request.ino)?;
        if inode.attr.ino != request.ino {
            return Err(Errno::EINVAL.into());
        }
        let mut change = node.change_at(&[request.ino.slot()], &[Item::Attrs(request.ino)])?;
        ctx.check_current()?;
        // A repeated step: no other inode ever gets this number.
        if unless_absent(change.inode(request.ino))?.is_some() {
            return Ok(());
        }
        change.txn.must_fit();
        change.add_inode(&inode);
        if let Some(file) = request.site {
            change.put_site_file(request.ino, &decode(file, "site storage", request.ino)?);
        }
        if !request.target.is_empty() {
            change.put_target(request.ino, request.target);
        }
        change.commit()
    }
}

impl Handle for op::DropInode {
    fn handle(node: &Node, _: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<()> {
        let mut change = node.change_at(&[ino.slot()], &[Item::Attrs(ino)])?;
        match unless_absent(change.inode(ino))? {
            // A directory that has entries was made in the end: this comes late.
            Some(inode) if inode.attr.size == 0 => {
                change.erase_inode(&inode);
                change.commit()
            }
            _ => Ok(()),
        }
    }
}

impl Handle for op::RemoveDir {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: RemoveDirRequest) -> FsResult<RemovedDir> {
        let RemoveDirRequest { ino, sealed, aside } = request;
        // Only of a directory whose names are all here is it known that it is empty.
        if node.is_unlisted(ino)? {
            return Err(not_listed(ino));
        }
        let mut change = node.change_at(&[ino.slot()], &[Item::Attrs(ino)])?;
        ctx.check_current()?;
        match change.aside(ino)? {
            Some(was) if aside && (was.driver, was.tx) == ctx.intent() => {
                return Ok(RemovedDir { record: was.inode.to_bytes() });
            }
            Some(_) => return Err(being_replaced(ino)),
            None => {}
        }
        // The first transmission of this step has removed it, and its answer was lost.
        if change.inode(ino).is_err_and(|error| error.errno() == Errno::ENOENT) {
            return Ok(RemovedDir { record: Vec::new() });
        }
        let removed =
            if aside { change.set_aside(ino, sealed, ctx)? } else { change.remove_dir(ino, sealed)? };
        change.commit()?;
        Ok(RemovedDir { record: removed.to_bytes() })
    }
}

impl Handle for op::RestoreDir {
    fn handle(node: &Node, ctx: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<()> {
        let mut change = node.change_at(&[ino.slot()], &[Item::Attrs(ino)])?;
        let Some(inode) = change.take_aside(ino, ctx)? else { return Ok(()) };
        change.add_inode(&inode);
        change.commit()?;
        // Reports of its shards were dropped meanwhile: all shards are asked anew.
        node.gathers.forget(ino);
        Ok(())
    }
}

impl Handle for op::DropDir {
    fn handle(node: &Node, ctx: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<()> {
        let mut change = node.change_at(&[ino.slot()], &[Item::Attrs(ino)])?;
        if let Some(inode) = change.take_aside(ino, ctx)? {
            // Put back first, so that everything that belongs to it is erased with it.
            change.add_inode(&inode);
            change.erase_inode(&inode);
        }
        change.commit()
    }
}

/// Returns the error for a request about a directory that a rename has set aside. The caller retries.
fn being_replaced(ino: Ino) -> FsError {
    FsError::with(Errno::EBUSY, format!("directory {ino} is being replaced"))
}

impl Change<'_> {
    /// Removes an empty directory's inode. Of a spread one, the shards must be `sealed`.
    ///
    /// # Errors
    /// `ENOTEMPTY`, `ENOTDIR`, `ENOENT`; `EREMOTE` for a spread one whose shards may have entries; `EBUSY` for one that
    /// a rename replaces just now.
    pub(crate) fn remove_dir(&mut self, ino: Ino, sealed: bool) -> FsResult<Inode> {
        let inode = self.removable_dir(ino, sealed)?;
        self.erase_inode(&inode);
        Ok(inode)
    }

    fn removable_dir(&self, ino: Ino, sealed: bool) -> FsResult<Inode> {
        // Its inode is hidden until the rename over it is finished or undone; its name is not free until then.
        if self.aside(ino)?.is_some() {
            return Err(being_replaced(ino));
        }
        let inode = self.inode(ino)?;
        match (inode.attr.is_dir(), inode.attr.is_spread()) {
            (false, _) => Err(Errno::ENOTDIR.into()),
            (_, true) if !sealed => Err(Errno::EREMOTE.into()),
            (_, false) if inode.attr.size > 0 => Err(Errno::ENOTEMPTY.into()),
            _ => Ok(inode),
        }
    }

    /// Removes an empty directory's inode in a way that can be undone: all that belongs to it stays.
    fn set_aside(&mut self, ino: Ino, sealed: bool, ctx: &Ctx<'_>) -> FsResult<Inode> {
        let inode = self.removable_dir(ino, sealed)?;
        let (driver, tx) = ctx.intent();
        self.hide_inode(&inode);
        self.txn.put(ino.slot(), &aside_key(ino), &SetAsideDir { driver, tx, inode }.to_bytes());
        Ok(inode)
    }

    fn aside(&self, ino: Ino) -> FsResult<Option<SetAsideDir>> {
        let bytes = self.txn.get(ino.slot(), &aside_key(ino));
        bytes.map(|bytes| decode(bytes, "directory", ino)).transpose()
    }

    /// Takes back a directory that this intent has set aside; `None` if it has not.
    fn take_aside(&mut self, ino: Ino, ctx: &Ctx<'_>) -> FsResult<Option<Inode>> {
        let aside = self.aside(ino)?.filter(|aside| (aside.driver, aside.tx) == ctx.intent());
        if aside.is_some() {
            self.txn.delete(ino.slot(), &aside_key(ino));
        }
        Ok(aside.map(|aside| aside.inode))
    }

    /// Updates an inode that was moved: a directory gets its new parent.
    pub(crate) fn moved_to(&mut self, ino: Ino, parent: Ino, name: &[u8], back: bool) -> FsResult<()> {
        if self.aside(ino)?.is_some() {
            return Err(being_replaced(ino));
        }
        let mut inode = self.inode(ino)?;
        inode.attr.ctime = self.now;
        if inode.attr.is_dir() {
            // It may have come to site storage since `check_movable`.
            self.leave_site(ino, back)?;
            inode.parent = parent;
        }
        self.put_inode(&inode);
        self.note_name(ino, parent, name)
    }
}

impl Handle for op::AdjustLinks {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: AdjustLinksRequest) -> FsResult<Attr> {
        let AdjustLinksRequest { ino, delta } = request;
        let mut change = node.change_at(&[ino.slot()], &[Item::Attrs(ino)])?;
        ctx.check_current()?;
        if ctx.step_done(&change.txn, ino.slot())? {
            // The inode is gone if the first transmission removed its last name; whoever asked for that needs no
            // attributes.
            return change.inode(ino).map(|inode| inode.attr);
        }
        // A directory has one name, which goes by `RemoveDir` alone: that checks that it is empty.
        if change.inode(ino)?.attr.is_dir() {
            return Err(Errno::EPERM.into());
        }
        // The name is on another node: a client may have looked it up there just before it went.
        let inode = change.replace_link(ino, delta)?;
        change.commit_for(ctx, ino.slot(), 0)?;
        Ok(inode.attr)
    }
}

impl Handle for op::InstallEntry {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: InstallEntryRequest<'_>) -> FsResult<()> {
        let (dir, name) = (request.parent, Name::new(request.name)?);
        // A name that is not here may be at site storage.
        if node.is_unlisted(dir)? {
            return Err(not_listed(dir));
        }
        // A step must not change what a request of this node is about to change, nor what a spreading is about to move.
        // It cannot wait, so it only tries the locks, and the driver tries again.
        // Requests of this node have these locks already, for the change that the step is part of.
        let own = ctx.client == node.as_client();
        let at_home = node.owns(dir.slot());
        let inside = (!own && at_home).then(|| node.locks.try_lock(LockTarget::Dir(dir)));
        let lock = (!own).then(|| node.locks.try_lock(Node::entry_target(dir, &name)));
        // Checked first: by the time of a retransmission the directory may have spread, or be gone.
        for slot in [dir.slot(), node.hashed_slot(dir, &name)] {
            if node.owns(slot) && ctx.step_done(&node.change_at(&[slot], &[])?.txn, slot)? {
                return Ok(());
            }
        }
        let place = node.place(dir, &name)?;
        let [slot, book] = place.slots();
        // A peer that asks for this notifies the home, unless the home is this node.
        let is_told = place.is_spread() && at_home;
        let home = if is_told { dir.slot() } else { slot };
        // The file that is replaced, if its content is a condition and its home is here.
        let checked = request.expect.filter(|ino| request.expect_version.is_some() && node.owns(ino.slot()));
        let slots = [slot, book, home, checked.map_or(slot, Ino::slot)];
        let mut change = node.change_at(&slots, &place.items())?;
        if ctx.step_done(&change.txn, slot)? {
            return Ok(());
        }
        ctx.check_current()?;
        // Only now: a step that was carried out before is answered without its locks.
        if matches!(lock, Some(None)) || matches!(inside, Some(None)) {
            return Err(FsError::with(Errno::EAGAIN, format!("entry '{name}' is being changed: try again")));
        }
        // Before the commit, so that the next change of this name finds the lease.
        node.callbacks.moves_to(ctx.origin, place.name_item());
        if let Some(ino) = checked {
            let expected = ExpectedFile { ino, data_version: request.expect_version };
            match change.inode(ino) {
                Ok(found) if expected.is_met_by(&found.attr) && !node.may_be_written(ino) => {}
                Ok(_) => return Err(unexpected()),
                Err(error) if error.errno() == Errno::ENOENT => return Err(unexpected()),
                Err(error) => return Err(error),
            }
        }
        change.txn.bound_growth();
        change.install_entry(&place, &name, &request)?;
        if let Some(inode) = if is_told { change.spread_dir(dir)? } else { None } {
            node.gathers.is_ahead(dir, node.id);
            change.touch_dir(inode);
        }
        // Quietly: a step asks no node, also not the home of a directory that is spread.
        change.commit_quietly_for(ctx, slot, 0)
    }
}

impl Change<'_> {
    fn install_entry(
        &mut self,
        place: &EntryPlace,
        name: &Name,
        request: &InstallEntryRequest<'_>,
    ) -> FsResult<()> {
        let mut parent = self.directory(place)?;
        if parent.partition() != request.partition {
            return Err(Errno::EXDEV.into());
        }
        let now = self.dentry(place)?;
        if now.map(|dentry| dentry.ino) != request.expect {
            return Err(FsError::with(
                Errno::EBUSY,
                format!("entry '{name}' was changed meanwhile: try again"),
            ));
        }
        let new = Dentry { ino: request.ino, kind: request.kind };
        match now {
            Some(old) => self.replace_entry(&mut parent, place, old, new),
            None => self.add_entry(&mut parent, place, new),
        }
        Ok(())
    }
}

impl Handle for op::SetParent {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SetParentRequest) -> FsResult<()> {
        let slot = request.ino.slot();
        let mut change = node.change_at(&[slot], &[Item::Attrs(request.ino)])?;
        ctx.check_current()?;
        if ctx.step_done(&change.txn, slot)? {
            return Ok(());
        }
        change.moved_to(request.ino, request.parent, &request.name, request.back)?;
        change.commit_for(ctx, slot, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::fd::AsFd;

    use super::*;
    use crate::testing::alone;
    use bivouac_net::{Generation, RequestOrigin};
    use bivouac_types::{ClientId, OpId, TargetIndex};
    use bivouac_wire::{FlushMark, MarkFlushRequest, SpaceKind, SpaceRequest, Whence, WriteRequest};

    const DIR: Ino = Ino(0x1234);

    fn kept_as(ino: Ino, node: &Node) -> Vec<u8> {
        let mut inode = node.inode(Ino::ROOT).unwrap();
        inode.attr.ino = ino;
        inode.to_bytes()
    }

    fn refused<T: std::fmt::Debug>(outcome: FsResult<T>) {
        assert_eq!(outcome.unwrap_err().errno(), Errno::EIO);
    }

    /// What waited for its turn on a node while its driver gave up.
    #[test]
    fn a_step_that_is_superseded_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let (socket, generation) = (std::io::stdin(), Generation::default());
        let peer = ClientId(ClientId::PEER_BIT | 3);
        let awaited = Ctx { client: peer, id: OpId(160), ..Ctx::of_node(peer) };
        let late = Ctx { connection: RequestOrigin::over(socket.as_fd(), &generation), ..awaited };
        generation.supersede();
        let record = kept_as(DIR, &node);
        let put = || PutInodeRequest { ino: DIR, record: &record, target: &[], site: None };
        refused(op::PutInode::handle(&node, &late, put()));
        assert!(node.inode(DIR).is_err());
        op::PutInode::handle(&node, &awaited, put()).unwrap();
        let remove = || RemoveDirRequest { ino: DIR, sealed: false, aside: true };
        op::RemoveDir::handle(&node, &awaited, remove()).unwrap();
        assert!(node.inode(DIR).is_err(), "it is set aside");
        op::RestoreDir::handle(&node, &awaited, InoOnly { ino: DIR }).unwrap();
        refused(op::RemoveDir::handle(&node, &late, remove()));
        refused(op::RemoveDir::handle(&node, &late, RemoveDirRequest { aside: false, ..remove() }));
        let to = SetParentRequest { ino: DIR, parent: Ino(5), name: b"there".to_vec(), back: false };
        refused(op::SetParent::handle(&node, &late, to));
        refused(op::AdjustLinks::handle(&node, &late, AdjustLinksRequest { ino: DIR, delta: 1 }));
        assert_eq!(node.inode(DIR).unwrap().to_bytes(), record);
    }

    /// Over a half-open connection: the repetition was carried out meanwhile, and the name was made anew.
    #[test]
    fn a_change_that_was_superseded_while_it_waited_for_its_entry_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let (socket, generation) = (std::io::stdin(), Generation::default());
        let client = Ctx::of_node(ClientId(7));
        let make = bivouac_wire::MakeRequest {
            parent: Ino::ROOT,
            name: b"f",
            mode: bivouac_types::mode::FILE | 0o600,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: b"",
            open: None,
            exclusive: true,
            near: None,
        };
        let made = op::Make::handle(&node, &Ctx { id: OpId(1), ..client }, make).unwrap().found.ino;
        let (parent, name) = (Ino::ROOT, Name::new(b"f").unwrap());
        let entry = || bivouac_wire::EntryName { parent, name: b"f" };
        let held = node.lock_entries(&[(parent, &name)]).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let connection = RequestOrigin::over(socket.as_fd(), &generation);
                let unlink = bivouac_wire::UnlinkRequest { parent, name: b"f", expect: None };
                op::Unlink::handle(&node, &Ctx { connection, ..client }, unlink)
            });
            generation.supersede();
            drop(held);
            refused(waits.join().unwrap());
        });
        let found = op::Lookup::handle(&node, &client, entry()).unwrap();
        assert_eq!(found.ino, made);
    }

    /// It would undo what its client has done since, or make a subfile of a file that is gone.
    #[test]
    fn a_write_that_is_superseded_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let (socket, generation) = (std::io::stdin(), Generation::default());
        let (ino, target, layout) = (DIR, TargetIndex(0), node.inode(Ino::ROOT).unwrap().attr.layout);
        let write = |ctx: &Ctx<'_>, bytes: &[u8]| {
            let request = WriteRequest { ino, target, layout, epoch: 0, offset: 0 };
            op::Write::handle(&node, &Ctx { payload: &[IoSlice::new(bytes)], ..*ctx }, request)
        };
        let awaited = Ctx::of_node(ClientId(7));
        let late = Ctx { connection: RequestOrigin::over(socket.as_fd(), &generation), ..awaited };
        assert!(write(&late, b"written by").unwrap().accepted, "it is current still");
        generation.supersede();
        assert!(write(&awaited, b"the second").unwrap().accepted);
        refused(write(&late, b"THE FIRST!"));
        for kind in [SpaceKind::Zero, SpaceKind::Punch, SpaceKind::Reserve] {
            let (epoch, offset, len, grow, ticket) = (0, 0, 5, 5, 1);
            let request = SpaceRequest { ino, target, layout, epoch, offset, len, grow, ticket, kind };
            refused(op::ChangeSpace::handle(&node, &late, request));
        }
        let whence = Whence { origin: None, limit: 0, layout, pin: 0 };
        for mark in [
            FlushMark::Begin,
            FlushMark::Done { epoch: 0, whence: whence.clone() },
            FlushMark::Failed,
            FlushMark::Close { epoch: 1, layout },
            FlushMark::Drop { epoch: 2, whence },
        ] {
            refused(op::MarkFlush::handle(&node, &late, MarkFlushRequest { ino, target, mark }));
        }
        let id = node.subfile(ino, target).unwrap();
        let mut found = [0; 10];
        node.data.read(id, 0, &mut [std::io::IoSliceMut::new(&mut found)]).unwrap();
        assert_eq!(&found, b"the second");
        assert!(node.data.remove(id).unwrap());
        refused(write(&late, b"THE FIRST!"));
        assert!(node.data.stat(id).unwrap().is_none());
    }

    /// It was taken for absent, and the number for used twice: a panic.
    #[test]
    fn an_inode_that_cannot_be_read_is_not_put_again() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let ino = Ino(77);
        let record = node.inode(Ino::ROOT).unwrap();
        let record = Inode { attr: Attr { ino, ..record.attr }, ..record }.to_bytes();
        let mut txn = node.records.txn(&[ino.slot()]);
        txn.put(ino.slot(), &crate::record::inode_key(ino), b"no record");
        txn.commit().unwrap();
        let put = PutInodeRequest { ino, record: &record, target: &[], site: None };
        let ctx = Ctx::of_node(node.as_client());
        let errno = |error: FsError| error.errno();
        assert_eq!(op::PutInode::handle(&node, &ctx, put).map_err(errno), Err(Errno::EIO));
        assert_eq!(op::DropInode::handle(&node, &ctx, InoOnly { ino }).map_err(errno), Err(Errno::EIO));
    }
}

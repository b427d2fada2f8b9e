//! `Link`: one more name for an inode.

use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, Name, mode};
use bivouac_wire::{LinkRequest, Seen, op};

use crate::directory::EntryPlace;
use crate::intent_record::{Intent, OldEntry};
use crate::node::Node;
use crate::record::Dentry;
use crate::session::Ctx;
use crate::step::Handle;
use bivouac_session::Item;

impl Handle for op::Link {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: LinkRequest<'_>) -> FsResult<Seen> {
        let name = Name::new(request.name)?;
        node.bring_entries(request.parent)?;
        let attr = node.with_room_for_names(ctx, || node.patiently(|| node.link(ctx, &request, &name)))?;
        Ok(node.seen(ctx, attr?))
    }
}

impl Node {
    /// Adds the name. The inner result is that of reading the inode's attributes behind it.
    fn link(&self, ctx: &Ctx<'_>, request: &LinkRequest<'_>, name: &Name) -> FsResult<FsResult<Attr>> {
        let _entry = self.lock_entries(&[(request.parent, name)])?;
        let is_done = self.entry_done_before(ctx, request.parent, name)?.is_some();
        if !is_done {
            self.link_locked(ctx, request, name)?;
        }
        // Still under the lock: once it is released, others may remove this name, and all others, and the inode with
        // it.
        Ok(match self.attr_of(ctx, request.ino) {
            Err(error) if is_done && error.errno() == Errno::ENOENT => Err(FsError::with(
                Errno::EIO,
                "the name was made, and others have removed it and the file since",
            )),
            attr => attr,
        })
    }

    fn link_locked(&self, ctx: &Ctx<'_>, request: &LinkRequest<'_>, name: &Name) -> FsResult<()> {
        let place = self.place(request.parent, name)?;
        if self.dentry(&place)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if self.map.home(request.ino) == Some(self.id) {
            return self.link_here(ctx, request.ino, (&place, request.name));
        }
        let new = OldEntry { parent: request.parent, name: request.name.to_vec(), ino: request.ino };
        self.carry_out(ctx, place.slot, Intent::Link(new))
    }

    /// Links in one transaction, where all records are this node's.
    fn link_here(&self, ctx: &Ctx<'_>, ino: Ino, (place, name): (&EntryPlace, &[u8])) -> FsResult<()> {
        let [slot, book] = place.slots();
        let items = [place.items(), vec![Item::Attrs(ino)]].concat();
        let mut change = self.change_at(&[slot, book, ino.slot()], &items)?;
        let mut parent = change.directory(place)?;
        if change.dentry(place)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if change.inode(ino)?.attr.is_dir() {
            return Err(Errno::EPERM.into());
        }
        if change.inode(ino)?.attr.layout.partition() != parent.partition() {
            return Err(Errno::EXDEV.into());
        }
        change.txn.must_fit();
        let inode = change.adjust_links(ino, 1)?;
        // Programs that make a file safe remove its first name next.
        change.note_name(ino, place.dir, name)?;
        change.add_entry(&mut parent, place, Dentry { ino, kind: inode.attr.mode & mode::TYPE });
        change.commit_for(ctx, slot, 0)
    }
}

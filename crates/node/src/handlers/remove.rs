//! `Unlink` and `Rmdir`.

use bivouac_types::{Errno, FsResult, Ino, Name, mode};
use bivouac_wire::{EntryName, op};

use crate::directory::Place;
use crate::dispatch::Handle;
use crate::intent::{Intent, OldEntry};
use crate::leases::Item;
use crate::node::Node;
use crate::record::Dentry;
use crate::session::Ctx;

impl Handle for op::Unlink {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: EntryName<'_>) -> FsResult<()> {
        node.remove(ctx, &request, false)
    }
}

impl Handle for op::Rmdir {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: EntryName<'_>) -> FsResult<()> {
        node.remove(ctx, &request, true)
    }
}

impl Node {
    fn remove(&self, ctx: &Ctx<'_>, request: &EntryName<'_>, want_dir: bool) -> FsResult<()> {
        let name = Name::new(request.name)?;
        self.bring_entries(request.parent)?;
        self.patiently(|| self.remove_once(ctx, request.parent, &name, want_dir))
    }

    fn remove_once(&self, ctx: &Ctx<'_>, parent: Ino, name: &Name, want_dir: bool) -> FsResult<()> {
        let _entry = self.lock_entries(&[(parent, name)])?;
        if self.entry_done_before(ctx, parent, name)?.is_some() {
            return Ok(());
        }
        let place = self.place(parent, name)?;
        let dentry = self.dentry(&place)?.ok_or(Errno::ENOENT)?;
        match (dentry.kind == mode::DIR, want_dir) {
            (true, false) => return Err(Errno::EISDIR.into()),
            (false, true) => return Err(Errno::ENOTDIR.into()),
            _ => {}
        }
        if self.map.home(dentry.ino) == Some(self.id) {
            if want_dir {
                self.bring_entries(dentry.ino)?;
            }
            match self.remove_here(ctx, &place, dentry) {
                // A spread directory: all nodes have a part of it.
                Err(error) if error.errno() == Errno::EREMOTE => {}
                outcome => return outcome,
            }
        }
        let old = OldEntry { parent, name: name.as_bytes().to_vec(), ino: dentry.ino };
        let intent = if want_dir { Intent::RemoveDir(old) } else { Intent::Unlink(old) };
        self.carry_out(ctx, place.slot, intent)
    }

    /// All records are this node's: one transaction.
    fn remove_here(&self, ctx: &Ctx<'_>, place: &Place, dentry: Dentry) -> FsResult<()> {
        let [slot, book] = place.slots();
        let items = [place.items(), vec![Item::Attrs(dentry.ino)]].concat();
        let mut change = self.change_at(&[slot, book, dentry.ino.slot()], &items)?;
        if change.dentry(place)? != Some(dentry) {
            return Err(Errno::EBUSY.into());
        }
        let mut parent = change.directory(place)?;
        if dentry.kind == mode::DIR {
            change.remove_dir(dentry.ino, false)?;
        } else {
            change.adjust_links(dentry.ino, -1)?;
        }
        change.remove_entry(&mut parent, place, dentry);
        change.commit_for(ctx, slot, 0)
    }
}

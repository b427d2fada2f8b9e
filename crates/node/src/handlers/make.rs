//! `Make`: a new entry with a new inode.

use bivouac_types::limits::SYMLINK_LEN_MAX;
use bivouac_types::{Errno, FsResult, Ino, Name, mode};
use bivouac_wire::{Found, Made, MakeRequest, op};

use crate::directory::EntryPlace;
use crate::intent_record::{Intent, NewDir};
use crate::node::Node;
use crate::record::{Dentry, Inode, SiteFile};
use crate::session::Ctx;
use crate::step::Handle;
use bivouac_session::Item;

impl Handle for op::Make {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: MakeRequest<'_>) -> FsResult<Made> {
        let name = Name::new(request.name)?;
        check(&request)?;
        node.bring_entries(request.parent)?;
        node.with_room_for_names(ctx, || node.patiently(|| node.make(ctx, &request, &name)))
    }
}

fn check(request: &MakeRequest<'_>) -> FsResult<()> {
    let kind = request.mode & mode::TYPE;
    if !mode::has_known_type(request.mode) || request.target.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    if request.target.len() > SYMLINK_LEN_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    // `ENOENT` for an empty target, as Linux has it.
    if (kind == mode::LINK) == request.target.is_empty() {
        return Err(if kind == mode::LINK { Errno::ENOENT } else { Errno::EINVAL }.into());
    }
    Ok(())
}

impl Node {
    fn make(&self, ctx: &Ctx<'_>, request: &MakeRequest<'_>, name: &Name) -> FsResult<Made> {
        let _entry = self.lock_entries(&[(request.parent, name)])?;
        if let Some(ino) = self.entry_done_before(ctx, request.parent, name)? {
            return self.made_before(ctx, Ino(ino), request);
        }
        let place = self.place(request.parent, name)?;
        if let Some(dentry) = self.dentry(&place)? {
            return self.existing(ctx, &place, dentry, request);
        }
        // Before the transaction that makes the inode: the client's record is written by one of its own.
        if request.open.is_some() {
            self.sessions.note(&self.records, ctx.client)?;
        }
        let inode = self.new_inode_at(&place, name, request)?;
        if self.map.home(inode.attr.ino) == Some(self.id) {
            self.make_here(ctx, request, &place, &inode)
        } else {
            self.make_there(ctx, &place, name, inode)
        }
    }

    /// Makes the entry and its inode in one transaction, where all records are this node's.
    pub(super) fn make_here(
        &self,
        ctx: &Ctx<'_>,
        request: &MakeRequest<'_>,
        place: &EntryPlace,
        inode: &Inode,
    ) -> FsResult<Made> {
        let ino = inode.attr.ino;
        let [slot, book] = place.slots();
        let items = [place.items(), vec![Item::Attrs(ino)]].concat();
        let mut change = self.change_at(&[slot, book, ino.slot()], &items)?;
        let mut parent = change.directory(place)?;
        if let Some(dentry) = change.dentry(place)? {
            drop(change);
            return self.existing(ctx, place, dentry, request);
        }
        if parent.partition() != inode.attr.layout.partition() {
            // The directory was empty, and has become the root of a partition meanwhile.
            return Err(Errno::EAGAIN.into());
        }
        let kind = inode.attr.mode & mode::TYPE;
        change.txn.must_fit();
        change.add_inode(inode);
        if kind == mode::LINK {
            change.put_target(ino, request.target);
        }
        change.note_name(ino, place.dir, request.name)?;
        change.add_entry(&mut parent, place, Dentry { ino, kind });
        // Registered before it can be seen: an unlink in between then leaves it alive.
        self.register_new(ctx, request, ino)?;
        if let Err(error) = change.commit_for(ctx, slot, ino.0) {
            if let Some(open) = request.open {
                self.opens.remove(ino, ctx.client, open);
            }
            return Err(error);
        }
        let found = self.found_with(ctx, Dentry { ino, kind }, Some(inode.attr), place.name_item());
        Ok(Made { found, existed: false })
    }

    /// Makes a directory whose inode belongs to a peer.
    fn make_there(&self, ctx: &Ctx<'_>, place: &EntryPlace, name: &Name, inode: Inode) -> FsResult<Made> {
        let is_bound = self.is_bound(inode.attr.layout.partition());
        let site = is_bound.then(|| SiteFile::named_here(place.dir, name.as_bytes()));
        let new = NewDir { name: name.as_bytes().to_vec(), inode, site };
        self.carry_out(ctx, place.slot, Intent::MakeDir(new))?;
        let dentry = Dentry { ino: inode.attr.ino, kind: mode::DIR };
        let found = self.found_with(ctx, dentry, Some(inode.attr), place.name_item());
        Ok(Made { found, existed: false })
    }

    /// Returns the answer for a name that is taken.
    fn existing(
        &self,
        ctx: &Ctx<'_>,
        place: &EntryPlace,
        dentry: Dentry,
        request: &MakeRequest<'_>,
    ) -> FsResult<Made> {
        if request.exclusive || request.mode & mode::TYPE != mode::FILE {
            return Err(Errno::EEXIST.into());
        }
        match dentry.kind {
            mode::DIR => Err(Errno::EISDIR.into()),
            _ => Ok(Made { found: self.found(ctx, dentry, place.name_item())?, existed: true }),
        }
    }

    /// Returns the answer to a request that was carried out before.
    fn made_before(&self, ctx: &Ctx<'_>, ino: Ino, request: &MakeRequest<'_>) -> FsResult<Made> {
        // Where it was made may have changed: nothing is promised.
        let dentry = Dentry { ino, kind: request.mode & mode::TYPE };
        let found = Found { lease_ms: 0, ..self.found(ctx, dentry, Item::Slot(ino.slot()))? };
        self.register_new(ctx, request, ino)?;
        if request.open.is_some() && request.mode & mode::TYPE == mode::FILE {
            // Its name may have gone again, while nobody was registered who has it open.
            self.hold_orphan(ino, ctx.client)?;
        }
        Ok(Made { found, existed: false })
    }

    fn register_new(&self, ctx: &Ctx<'_>, request: &MakeRequest<'_>, ino: Ino) -> FsResult<()> {
        match request.open {
            Some(open) if request.mode & mode::TYPE == mode::FILE => self.register_open(ctx, ino, open),
            _ => Ok(()),
        }
    }
}

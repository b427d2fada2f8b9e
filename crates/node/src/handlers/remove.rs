//! `Unlink` and `Rmdir`.

use bivouac_types::{Errno, ExpectedFile, FsResult, Ino, Name, mode};
use bivouac_wire::{EntryName, UnlinkRequest, op};

use crate::directory::EntryPlace;
use crate::intent_record::{Intent, OldEntry};
use crate::node::Node;
use crate::record::Dentry;
use crate::session::Ctx;
use crate::step::Handle;
use bivouac_session::Item;

/// A removal that a client asks for.
#[derive(Clone, Copy)]
struct Removal<'a> {
    parent: Ino,
    name: &'a Name,
    is_dir: bool,
    expect: Option<ExpectedFile>,
    /// True if its source has it no more: nothing is to be deleted there.
    is_gone_there: bool,
}

impl Handle for op::Unlink {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: UnlinkRequest<'_>) -> FsResult<()> {
        let UnlinkRequest { parent, name, expect } = request;
        node.remove(
            ctx,
            Removal { parent, name: &Name::new(name)?, is_dir: false, expect, is_gone_there: false },
        )
    }
}

impl Handle for op::Rmdir {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: EntryName<'_>) -> FsResult<()> {
        let EntryName { parent, name } = request;
        let name = &Name::new(name)?;
        node.remove(ctx, Removal { parent, name, is_dir: true, expect: None, is_gone_there: false })
    }
}

impl Node {
    fn remove(&self, ctx: &Ctx<'_>, removal: Removal<'_>) -> FsResult<()> {
        self.bring_entries(removal.parent)?;
        self.patiently(|| self.remove_once(ctx, removal))
    }

    /// Removes a name that is gone at the source. What was seen of it there is forgotten in the same transaction, so
    /// that no deletion follows it: what comes back under the name was deleted by nobody.
    pub(crate) fn remove_gone_there(
        &self,
        parent: Ino,
        name: &Name,
        is_dir: bool,
        expect: Option<ExpectedFile>,
    ) -> FsResult<()> {
        let ctx = Ctx::of_node(self.as_client());
        let removal = Removal { parent, name, is_dir, expect, is_gone_there: true };
        self.patiently(|| self.remove_once(&ctx, removal))
    }

    fn remove_once(&self, ctx: &Ctx<'_>, removal: Removal<'_>) -> FsResult<()> {
        let Removal { parent, name, is_dir: want_dir, expect, is_gone_there } = removal;
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
        if let Some(expected) = expect {
            self.check_expected(ctx, Some(dentry), &expected)?;
        }
        if is_gone_there && place.is_spread() {
            // Versions that were seen there are kept at the directory's home alone.
            return Err(Errno::EOPNOTSUPP.into());
        }
        if self.map.home(dentry.ino) == Some(self.id) {
            // A directory in front of site storage looks empty until its names are here.
            if want_dir {
                self.bring_entries(dentry.ino)?;
            }
            match self.remove_here(ctx, &place, dentry, removal) {
                // A spread directory: all nodes have a part of it.
                Err(error) if error.errno() == Errno::EREMOTE => {}
                outcome => return outcome,
            }
        }
        let old = OldEntry { parent, name: name.as_bytes().to_vec(), ino: dentry.ino };
        let intent = if want_dir { Intent::RemoveDir(old) } else { Intent::Unlink(old) };
        if !is_gone_there {
            return self.carry_out(ctx, place.slot, intent);
        }
        // Forgotten before: a removal that is finished by another one after a crash must not find it.
        let mut change = self.change_at(&[place.slot], &[])?;
        let seen = change.forget_seen(&place);
        change.commit()?;
        self.carry_out(ctx, place.slot, intent).inspect_err(|_| {
            let restored = self.change_at(&[place.slot], &[]).and_then(|mut change| {
                change.restore_seen(&place, &seen);
                change.commit()
            });
            if let Err(error) = restored {
                log::warn!(why:% = error; "what the source had under a name in inode {parent} is not known");
            }
        })
    }

    /// Removes in one transaction, where all records are this node's.
    fn remove_here(
        &self,
        ctx: &Ctx<'_>,
        place: &EntryPlace,
        dentry: Dentry,
        removal: Removal<'_>,
    ) -> FsResult<()> {
        let [slot, book] = place.slots();
        let items = [place.items(), vec![Item::Attrs(dentry.ino)]].concat();
        let mut change = self.change_at(&[slot, book, dentry.ino.slot()], &items)?;
        // Compared again under the locks of the slots: the name may lead elsewhere by now.
        if change.dentry(place)? != Some(dentry) {
            return Err(Errno::EBUSY.into());
        }
        if let Some(expected) = removal.expect {
            self.check_expected_in(&change, Some(dentry), &expected)?;
        }
        let mut parent = change.directory(place)?;
        if dentry.kind == mode::DIR {
            change.remove_dir(dentry.ino, false)?;
        } else {
            // Before the link is counted off, which may erase the record that has the names.
            change.note_name_gone(dentry.ino, place.dir, place.name())?;
            change.adjust_links(dentry.ino, -1)?;
        }
        if removal.is_gone_there {
            change.forget_seen(place);
        }
        change.remove_entry(&mut parent, place, dentry);
        change.commit_for(ctx, slot, 0)
    }
}

#[cfg(test)]
mod tests {
    use bivouac_types::{ClientId, OpId};

    use super::*;
    use crate::record::{removed_key, seen_by_key, seen_key};
    use crate::testing::{alone, make_in_root, put_in_partition};

    /// A program writes to the file when the request has looked at it, and has not removed it yet.
    #[test]
    fn a_file_that_is_written_after_it_was_looked_at_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let client = Ctx::of_node(ClientId(7));
        let (parent, name): (_, &[u8]) = (Ino::ROOT, b"f");
        let make = make_in_root(name, mode::FILE | 0o600, b"");
        let seen = op::Make::handle(&node, &Ctx { id: OpId(1), ..client }, make).unwrap().found;
        let (ino, name) = (seen.ino, Name::new(name).unwrap());
        let version = || Some(node.inode(ino).unwrap().attr.data_version);
        let expected = ExpectedFile { ino, data_version: version() };
        let place = node.place(parent, &name).unwrap();
        let dentry = node.dentry(&place).unwrap().unwrap();
        node.check_expected(&client, Some(dentry), &expected).unwrap();
        let mut change = node.change_at(&[ino.slot()], &[]).unwrap();
        let mut inode = change.inode(ino).unwrap();
        inode.attr.raise_data_version();
        change.put_inode(&inode);
        change.commit().unwrap();
        let remove = |id, expect| {
            let ctx = Ctx { id: OpId(id), ..client };
            let removal =
                Removal { parent, name: &name, is_dir: false, expect: Some(expect), is_gone_there: false };
            node.remove_here(&ctx, &place, dentry, removal).map_err(|error| error.errno())
        };
        assert_eq!(remove(2, expected), Err(Errno::ECANCELED));
        assert_eq!(node.dentry(&place).unwrap(), Some(dentry));
        assert_eq!(remove(3, ExpectedFile { data_version: version(), ..expected }), Ok(()));
        assert_eq!(node.dentry(&place).unwrap(), None);
    }

    /// What is gone at the source goes here, and nothing is deleted there for it; a fresh one of the name stays.
    #[test]
    fn what_is_gone_at_the_source_leaves_no_deletion() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let client = Ctx::of_node(ClientId(7));
        let parent = Ino::ROOT;
        let inos = [&b"gone"[..], b"deleted", b"fresh"].map(|name| {
            let make = make_in_root(name, mode::LINK | 0o777, b"x");
            let ctx = Ctx { id: OpId(u64::from(name[0])), ..client };
            op::Make::handle(&node, &ctx, make).unwrap().found.ino
        });
        let settings = format!("source={}\nmirror-deletes=yes", dir.path().display());
        put_in_partition(&node, 1, &settings);
        let is_there = |key: &[u8]| node.records.read(parent.slot(), key, |bytes| bytes.is_some());
        let try_remove = |number: usize, name: &[u8], expected: Ino, is_gone_there| {
            let (name, ino) = (Name::new(name).unwrap(), inos[number]);
            let (size, mtime, tag) = Default::default();
            let (seen, by) = (Some(bivouac_wire::SiteVersion { size, mtime, tag }), Some(ino));
            let note =
                bivouac_wire::NoteSeenRequest { dir: parent, name: name.as_bytes().to_vec(), seen, by };
            node.note_seen(&note).unwrap();
            let place = node.place(parent, &name).unwrap();
            let dentry = node.dentry(&place).unwrap().unwrap();
            let expect = Some(ExpectedFile { ino: expected, data_version: None });
            let removal = Removal { parent, name: &name, is_dir: false, expect, is_gone_there };
            let ctx = Ctx { id: OpId(1000 + number as u64), ..client };
            let removed = node.remove_here(&ctx, &place, dentry, removal).map_err(|error| error.errno());
            let keys =
                [seen_key, seen_by_key, removed_key].map(|key| is_there(&key(parent, name.as_bytes())));
            (removed, keys)
        };
        assert_eq!(try_remove(0, b"gone", inos[0], true), (Ok(()), [false, false, false]));
        assert_eq!(try_remove(1, b"deleted", inos[1], false), (Ok(()), [true, true, true]));
        assert_eq!(try_remove(2, b"fresh", inos[0], true), (Err(Errno::ECANCELED), [true, true, false]));
    }
}

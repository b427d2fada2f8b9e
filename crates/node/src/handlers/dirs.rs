//! `ReadDir` and `ListHashes`.

use std::ops::ControlFlow;

use bivouac_layout::slot_of_hash;
use bivouac_types::limits::{NAMES_KNOWN_MAX, READDIR_BYTES_MAX};
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, Slot};
use bivouac_wire::{Decode, DirEntry, DirPage, Hashes, InoOnly, ReadDirRequest, op};

use crate::node::Node;
use crate::record::{Dentry, dentry_from, dentry_of_key, dentry_prefix};
use crate::session::Ctx;
use crate::step::Handle;
use bivouac_session::Item;

/// Bytes of an encoded entry besides name and attributes.
const ENTRY_LEN: usize = 8 + 4 + 8 + 4 + 1;
/// Upper bound of encoded attributes, in bytes.
const ATTR_LEN: usize = size_of::<Attr>();

impl Handle for op::ReadDir {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ReadDirRequest) -> FsResult<DirPage> {
        if !request.here {
            node.bring_entries(request.ino)?;
        }
        node.note_user(ctx, request.ino);
        let filled = if request.shard { node.shard_page(&request)? } else { node.compact_page(&request)? };
        let Filling { mut page, is_whole, .. } = filled;
        if request.attrs {
            page.entries.iter_mut().for_each(|entry| entry.attr = node.attr_at_hand(entry));
            page.lease_ms = match request.each {
                // What was left out would be taken for not there.
                true if !is_whole => 0,
                true => node.lease_of_each(ctx, &request, &mut page.entries),
                false => node.lease_of_page(ctx, &request, &page.entries),
            };
        }
        Ok(page)
    }
}

impl Handle for op::ListHashes {
    fn handle(node: &Node, ctx: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<Hashes> {
        node.bring_entries(ino)?;
        let (mut hashes, mut all) = (Vec::new(), true);
        node.check_compact(ino)?;
        node.records.scan(ino.slot(), &dentry_prefix(ino), &dentry_prefix(ino), |key, _| {
            hashes.extend(dentry_of_key(key).map(|(hash, _)| hash));
            all = hashes.len() <= NAMES_KNOWN_MAX;
            if all { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        // As for a page: entries that moved away meanwhile are not taken for none.
        node.check_compact(ino)?;
        if !all {
            // A part of them would have clients take the other names for absent.
            hashes.clear();
        }
        Ok(Hashes { hashes, all, lease_ms: node.lease(ctx, Item::Whole(ino.slot())) })
    }
}

/// A page in the making.
struct Filling {
    page: DirPage,
    room: usize,
    each: usize,
    used: usize,
    /// False if an entry was left out as damaged.
    is_whole: bool,
}

impl Node {
    /// Returns the entries of a compact directory.
    fn compact_page(&self, request: &ReadDirRequest) -> FsResult<Filling> {
        self.check_compact(request.ino)?;
        let mut filling = Filling::new(request);
        self.entries(request, request.ino.slot(), &mut filling);
        // Looked at again afterwards: entries that moved away meanwhile are not taken for all.
        self.check_compact(request.ino)?;
        Ok(filling)
    }

    fn check_compact(&self, dir: Ino) -> FsResult<()> {
        let attr = self.inode(dir)?.attr;
        match (attr.is_dir(), attr.is_spread()) {
            (false, _) => Err(Errno::ENOTDIR.into()),
            (_, true) => {
                Err(FsError::with(Errno::EREMOTE, format!("directory {dir} is spread: ask every node")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the entries of a spread directory: from the cookie's slot on, as far as the slots are this node's.
    fn shard_page(&self, request: &ReadDirRequest) -> FsResult<Filling> {
        let first = slot_of_hash(request.cookie.saturating_add(1), self.map.slot_count());
        if !self.owns(first) {
            return Err(FsError::with(
                Errno::ESTALE,
                format!("cookie {} of directory {} is not this node's", request.cookie, request.ino),
            ));
        }
        let mut filling = Filling::new(request);
        let run = (first.0..self.map.slot_count()).map(Slot);
        for slot in run.take_while(|slot| self.owns(*slot)) {
            self.entries(request, slot, &mut filling);
            if !filling.page.end {
                break;
            }
        }
        Ok(filling)
    }

    fn entries(&self, request: &ReadDirRequest, slot: Slot, filling: &mut Filling) {
        let from = dentry_from(request.ino, request.cookie.saturating_add(1));
        self.records.scan(slot, &from, &dentry_prefix(request.ino), |key, value| {
            let (Some((cookie, name)), Ok(dentry)) = (dentry_of_key(key), Dentry::from_bytes(value)) else {
                log::error!("an entry of directory {} is damaged and left out", request.ino);
                filling.is_whole = false;
                return ControlFlow::Continue(());
            };
            filling.take(cookie, name, dentry)
        });
    }

    /// Returns for how long a client may cache entries and their attributes, in milliseconds.
    fn lease_of_page(&self, ctx: &Ctx<'_>, request: &ReadDirRequest, entries: &[DirEntry]) -> u32 {
        let of_entry = |entry: &DirEntry| match request.shard {
            true => slot_of_hash(entry.cookie, self.map.slot_count()),
            false => request.ino.slot(),
        };
        let with_attrs = entries.iter().filter(|entry| entry.attr.is_some());
        let mut slots: Vec<Slot> = with_attrs.flat_map(|entry| [of_entry(entry), entry.ino.slot()]).collect();
        slots.sort_unstable();
        slots.dedup();
        slots.into_iter().map(|slot| self.lease(ctx, Item::Slot(slot))).min().unwrap_or(0)
    }

    /// The same of the directory's attributes, and of each entry's; an entry of which there is none goes without.
    fn lease_of_each(&self, ctx: &Ctx<'_>, request: &ReadDirRequest, entries: &mut [DirEntry]) -> u32 {
        let mut lease_ms = self.lease(ctx, Item::Attrs(request.ino));
        if lease_ms == 0 {
            return 0;
        }
        for entry in entries.iter_mut().filter(|entry| entry.attr.is_some()) {
            match self.lease(ctx, Item::Attrs(entry.ino)) {
                // A client caches every entry that comes with attributes.
                0 => entry.attr = None,
                of_entry => lease_ms = lease_ms.min(of_entry),
            }
        }
        lease_ms
    }

    fn attr_at_hand(&self, entry: &DirEntry) -> Option<Attr> {
        let at_hand = self.map.home(entry.ino) == Some(self.id);
        let attr = if at_hand { Some(self.inode(entry.ino).ok()?.attr) } else { None };
        attr.filter(|attr| !attr.is_spread())
    }
}

impl Filling {
    fn new(request: &ReadDirRequest) -> Filling {
        let room = (request.max_bytes as usize).min(READDIR_BYTES_MAX);
        let each = ENTRY_LEN + if request.attrs { ATTR_LEN } else { 0 };
        Filling {
            page: DirPage { entries: Vec::new(), end: true, lease_ms: 0 },
            room,
            each,
            used: 0,
            is_whole: true,
        }
    }

    fn take(&mut self, cookie: u64, name: &[u8], Dentry { ino, kind }: Dentry) -> ControlFlow<()> {
        let entries = &mut self.page.entries;
        self.used += self.each + name.len();
        // Names with one hash have one cookie: they must not be torn apart.
        let torn = entries.last().is_some_and(|last: &DirEntry| last.cookie == cookie);
        if self.used > self.room && !entries.is_empty() && !torn {
            self.page.end = false;
            return ControlFlow::Break(());
        }
        entries.push(DirEntry { ino, kind, cookie, name: name.to_vec(), attr: None });
        ControlFlow::Continue(())
    }
}

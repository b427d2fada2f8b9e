//! What this node has that site storage lacks, and what was seen there.

use std::ops::ControlFlow;

use bivouac_types::{FsResult, Ino, Slot};
use bivouac_wire::{
    Decode, Dirty, DirtyPage, Encode, ListDirtyRequest, ListSeenRequest, NoteSeenRequest, SeenName, SeenPage,
    SiteVersion, op,
};

use super::marks::read_marks;
use crate::identity::SYSTEM;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::StepContext;
use crate::record::{SiteFile, ino_of_site_key, marks_of_key, seen_by_key, seen_key, table};

/// Most files or names in one reply.
const PAGE: usize = 2000;

impl Node {
    /// Returns a page of what is dirty behind a position.
    pub(crate) fn list_dirty(&self, request: &ListDirtyRequest) -> FsResult<DirtyPage> {
        let mut page = DirtyPage { files: Vec::new(), next: None };
        let first = request.after.as_ref().map_or(Slot(0), |(slot, _)| *slot);
        for slot in self.own_slots().filter(|slot| *slot >= first) {
            let after = request.after.as_ref().filter(|(at, _)| *at == slot).map(|(_, key)| key.as_slice());
            for letter in [b'H', b'Q'] {
                if self.dirty_of(slot, letter, after, &mut page)? {
                    return Ok(page);
                }
            }
        }
        Ok(page)
    }

    /// Adds what is dirty in one table of a slot to the page. Returns true if the page is full.
    fn dirty_of(&self, slot: Slot, letter: u8, after: Option<&[u8]>, page: &mut DirtyPage) -> FsResult<bool> {
        let prefix = table(letter);
        let from = match after {
            // The page before has ended in the table behind this one.
            Some(key) if key.first() > Some(&letter) => return Ok(false),
            Some(key) if key.first() == Some(&letter) => key,
            _ => &prefix[..],
        };
        let mut records = Vec::new();
        self.records.scan(slot, from, &prefix, |key, value| {
            if after != Some(key) {
                records.push((key.to_vec(), value.to_vec()));
            }
            if records.len() < PAGE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let is_full = records.len() == PAGE;
        page.next = records.last().filter(|_| is_full).map(|(key, _)| (slot, key.clone()));
        // Read outside of the scan, which holds the slot.
        for (key, value) in records {
            page.files.extend(self.dirty_in(&key, &value)?);
        }
        Ok(is_full)
    }

    fn dirty_in(&self, key: &[u8], value: &[u8]) -> FsResult<Option<Dirty>> {
        if let Some(ino) = ino_of_site_key(key).filter(|_| key.first() == Some(&b'H')) {
            let file: SiteFile = decode(value, "site storage", ino)?;
            // One without a name goes nowhere.
            let has_name = self.inode(ino).is_ok_and(|inode| inode.attr.nlink > 0);
            if !file.is_unsaved() || !has_name {
                return Ok(None);
            }
            // Where the home of a directory does not answer, it counts as one that is to go: then too much is told, and
            // nothing is thrown away.
            let is_temporary = self.is_temporary(&file).unwrap_or(false);
            let why = if is_temporary { String::new() } else { self.proxy.failing.reason(ino) };
            return Ok(Some(Dirty { ino, bytes: 0, why, is_temporary }));
        }
        let Some((ino, target, _)) = marks_of_key(key).filter(|_| key.first() == Some(&b'Q')) else {
            return Ok(None);
        };
        let stripes = read_marks(Some(value), ino)?.unsaved();
        let stripe = self.stripe_of(ino, target)?;
        let why = || self.proxy.failing.reason(ino);
        Ok((stripes > 0).then(|| Dirty { ino, bytes: stripes * stripe, why: why(), is_temporary: false }))
    }

    /// Returns the names that were seen at site storage in a directory.
    pub(crate) fn list_seen(&self, request: &ListSeenRequest) -> FsResult<SeenPage> {
        let ListSeenRequest { dir, after } = request;
        self.check_slot(dir.slot())?;
        let (prefix, from) = (seen_key(*dir, b""), seen_key(*dir, after));
        let mut page = SeenPage { names: Vec::new(), end: true };
        self.records.scan(dir.slot(), &from, &prefix, |key, value| {
            let name = key.get(prefix.len()..).unwrap_or_default();
            if name == after.as_slice() {
                return ControlFlow::Continue(());
            }
            if page.names.len() == PAGE {
                page.end = false;
                return ControlFlow::Break(());
            }
            // One that cannot be read is taken for never seen: nothing is overwritten then.
            if let Ok(seen) = SiteVersion::from_bytes(value) {
                page.names.push(SeenName { name: name.to_vec(), seen });
            }
            ControlFlow::Continue(())
        });
        Ok(page)
    }

    /// Asks a directory's home to record which version site storage has under a name, and which inode that is here;
    /// `None` for neither.
    pub(super) fn tell_seen(
        &self,
        dir: Ino,
        name: &[u8],
        seen: Option<SiteVersion>,
        by: Option<Ino>,
    ) -> FsResult<()> {
        let note = NoteSeenRequest { dir, name: name.to_vec(), seen, by };
        self.step::<op::NoteSeen>(self.home_of(dir)?, StepContext::question(SYSTEM), 0, note)
    }

    /// Takes down what site storage has under a name; without a name, that it has nothing of a directory that is gone
    /// here, or, with an inode, that a directory of this node is gone there.
    pub(crate) fn note_seen(&self, note: &NoteSeenRequest) -> FsResult<()> {
        let NoteSeenRequest { dir, name, seen, by } = note;
        self.check_slot(dir.slot())?;
        match by {
            _ if !name.is_empty() => {}
            Some(_) => {
                self.empty_gone_dir_later(*dir);
                return Ok(());
            }
            None => return self.forget_dir(*dir),
        }
        let (slot, key, by_key) = (dir.slot(), seen_key(*dir, name), seen_by_key(*dir, name));
        let mut txn = self.records.txn(&[slot]);
        match (seen, by) {
            (Some(seen), _) => txn.put(slot, &key, &seen.to_bytes()),
            (None, Some(_)) => {}
            (None, None) => txn.delete(slot, &key),
        }
        match by {
            Some(by) => txn.put(slot, &by_key, &by.to_bytes()),
            None => txn.delete(slot, &by_key),
        }
        self.commit_note(txn)
    }
}

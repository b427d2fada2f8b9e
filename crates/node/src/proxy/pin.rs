//! Files whose content stays however full their volumes are. The home counts how often a file was pinned and unpinned,
//! and tells the targets; of two numbers the greater is the newer, so what comes late takes nothing back.

use std::ops::ControlFlow;

use bivouac_layout::targets_of;
use bivouac_store::Txn;
use bivouac_types::{Errno, FsError, FsResult, Ino, Slot};
use bivouac_wire::{
    Decode, Encode, FlushMark, ListPinnedRequest, MarkFlushRequest, PinRequest, Pinned, PinnedPage, Whence,
    op,
};

use crate::identity::SYSTEM;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy_state::Part;
use crate::record::{SiteFile, SubfileOrigin, held_key, ino_of_site_key, site_key, table};

/// Most files in one reply, unless those of one slot are more.
const PAGE: usize = 2000;

impl SiteFile {
    fn is_pinned(&self) -> bool {
        self.pin % 2 == 1
    }
}

impl Node {
    /// Pins what is here of a file, or unpins it. What is not here is not brought.
    ///
    /// # Errors
    /// `EINVAL` for what is no file in front of site storage; `EIO` when a target was not told: it holds nevertheless
    /// where it was.
    pub(crate) fn pin(&self, request: &PinRequest) -> FsResult<()> {
        let PinRequest { ino, pin } = *request;
        let mut change = self.change(&[ino.slot()])?;
        let attr = change.inode(ino)?.attr;
        if !attr.is_file() || !self.is_bound(attr.layout.partition()) {
            let text = format!("inode {ino} is no file of a partition with a source: it is not pinned");
            return Err(FsError::with(Errno::EINVAL, text));
        }
        let mut file = change.site_file(ino)?.unwrap_or_else(SiteFile::new_here);
        if file.is_pinned() != pin {
            // Odd is pinned: the number says which of two requests is the later one, in whichever order they arrive.
            file.pin = file.pin.wrapping_add(1);
        }
        change.put_site_file(ino, &file);
        // First here: a number that its home has forgotten would be given to another request as well.
        change.commit()?;
        let whence = Whence { origin: file.origin, limit: file.limit, layout: attr.layout, pin: file.pin };
        let mark = FlushMark::Pin { epoch: attr.epoch, whence };
        for target in targets_of(&attr.layout) {
            let request = MarkFlushRequest { ino, target, mark: mark.clone() };
            let node = self.target_place(target)?.node;
            self.step::<op::MarkFlush>(node, StepContext::question(SYSTEM), 0, request)?;
        }
        Ok(())
    }

    /// Records at a target that a file was pinned or unpinned.
    pub(super) fn note_pin(&self, part: Part, epoch: u32, whence: Whence) -> FsResult<()> {
        // Who makes room has either ended, or finds it pinned.
        let _here = self.proxy.uses.stay();
        let (slot, key) = (self.part_slot(part.ino), held_key(part.ino, part.target));
        let mut txn = self.records.txn(&[slot]);
        let known = txn
            .get(slot, &key)
            .map(|bytes| decode::<SubfileOrigin>(bytes, "origin", part.ino))
            .transpose()?;
        let pin = whence.pin;
        let mut held = known.unwrap_or(SubfileOrigin { whence, epoch });
        held.whence.pin = held.whence.pin.max(pin);
        txn.put(slot, &key, &held.to_bytes());
        self.commit_note(txn)
    }

    /// Returns true if what is here of a subfile is pinned.
    pub(super) fn is_part_pinned(&self, part: Part) -> FsResult<bool> {
        Ok(self.stored_held(part)?.is_some_and(|held| held.whence.is_pinned()))
    }

    /// Returns the files of this node's that are pinned.
    pub(crate) fn list_pinned(&self, request: &ListPinnedRequest) -> FsResult<PinnedPage> {
        let mut page = PinnedPage { files: Vec::new(), next: None };
        let first = request.after.map_or(Slot(0), Ino::slot);
        for slot in self.own_slots().filter(|slot| *slot >= first) {
            let after = request.after.filter(|ino| ino.slot() == slot);
            let from = after.map_or_else(|| table(b'H').to_vec(), |ino| site_key(ino).to_vec());
            let mut found = Vec::new();
            self.records.scan(slot, &from, &table(b'H'), |key, value| {
                if let Some(ino) = ino_of_site_key(key).filter(|ino| Some(*ino) != after)
                    && SiteFile::from_bytes(value).is_ok_and(|file| file.is_pinned())
                {
                    found.push(ino);
                }
                if found.len() < PAGE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            let last = found.last().copied();
            let has_more = found.len() >= PAGE;
            // Read outside of the scan, which holds the slot. One without a name is about to go.
            let attrs = found.into_iter().filter_map(|ino| self.inode(ino).ok()).map(|inode| inode.attr);
            page.files.extend(attrs.filter(|attr| attr.nlink > 0).map(|attr| Pinned {
                ino: attr.ino,
                partition: attr.layout.partition(),
                bytes: attr.size,
            }));
            if has_more || page.files.len() >= PAGE {
                page.next = last;
                break;
            }
        }
        Ok(page)
    }
}

/// Returns an origin with the newest pin that the target has, so that an older request does not undo a newer pin.
pub fn keep_pin(txn: &Txn<'_>, slot: Slot, part: Part, held: SubfileOrigin) -> SubfileOrigin {
    let known = txn.get(slot, &held_key(part.ino, part.target)).map(SubfileOrigin::from_bytes);
    let pin = known.and_then(Result::ok).map_or(0, |known| known.whence.pin).max(held.whence.pin);
    SubfileOrigin { whence: Whence { pin, ..held.whence }, ..held }
}

//! A file that was changed at site storage and not here gets what it is there. First every target says that it has
//! nothing that site storage does not have, and refuses writers of the old epoch from then on; then each drops what it
//! has. If one has something, all stays as it was, but for the epoch.

use bivouac_layout::targets_of;
use bivouac_types::FsResult;
use bivouac_wire::{FlushMark, MarkFlushRequest, Whence, op};

use super::Outcome;
use crate::intent_record::{LoggedIntent, Renewal};
use crate::namespace::unless_absent;
use crate::node::Node;
use crate::peers::StepContext;

impl Node {
    /// Carries out the steps: every target closes; if all could, every target drops; then the record.
    pub(super) fn finish_renewal(
        &self,
        new: &Renewal,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        let (closed, dropped) = (new.epoch.wrapping_add(1), new.epoch.wrapping_add(2));
        let close = FlushMark::Close { epoch: closed, layout: new.layout };
        // The sum of all: where one target has something that is nowhere else, no other may drop its part.
        let is_unsaved = self.mark_targets(new, &close, steps)? > 0;
        let pin = self.site_file(new.ino)?.map_or(0, |file| file.pin);
        let (origin, limit) = (Some(new.origin.clone()), new.origin.seen.size);
        let whence = Whence { origin, limit, layout: new.layout, pin };
        if !is_unsaved {
            self.mark_targets(new, &FlushMark::Drop { epoch: dropped, whence: whence.clone() }, steps)?;
        }
        let mut change = self.change_of(new.ino)?;
        if let Some(mut inode) = unless_absent(change.inode(new.ino))? {
            let known = change.site_file(new.ino)?;
            inode.attr.epoch = if is_unsaved { closed } else { dropped };
            if !is_unsaved {
                inode.attr.size = new.origin.seen.size;
                inode.attr.holes = 0;
                (inode.attr.mtime, inode.attr.ctime) = (new.origin.seen.mtime, change.now);
                inode.attr.raise_data_version();
            // The mark goes below, and with it what says that content may have changed without the version.
            } else if self.stale_tails.may_have_tail(new.ino) {
                inode.attr.raise_data_version();
            }
            change.put_inode(&inode);
            if let Some(known) = known.filter(|_| !is_unsaved) {
                change.renew_site_file(new.ino, known, whence);
            }
        }
        let outcome = self.clear(change, logged, steps, 0)?;
        self.stale_tails.cut(new.ino);
        Ok(outcome)
    }

    /// Marks the subfiles at all targets. Returns the number of bytes that are not saved there.
    fn mark_targets(&self, new: &Renewal, mark: &FlushMark, steps: StepContext) -> FsResult<u64> {
        let mut unsaved = 0;
        for target in targets_of(&new.layout) {
            let request = MarkFlushRequest { ino: new.ino, target, mark: mark.clone() };
            let node = self.target_place(target)?.node;
            unsaved += self.step::<op::MarkFlush>(node, steps, 0, request)?;
        }
        Ok(unsaved)
    }
}

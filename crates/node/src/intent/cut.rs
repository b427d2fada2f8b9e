//! Making a file shorter: its size first, so that readers see the end; then its subfiles, which from
//! then on refuse writers of the old epoch; then the new epoch, which lets those writers go on.

use bivouac_layout::targets_of;
use bivouac_types::{Errno, FsResult, TargetIndex};
use bivouac_wire::{TrimRequest, op};

use super::Outcome;
use crate::intent_record::{Cut, LoggedIntent};
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::StepContext;

impl Node {
    /// Begins a cut: the size changes together with the intent.
    pub(super) fn begin_cut(&self, cut: &Cut) -> FsResult<Change<'_>> {
        let mut change = self.change_of(cut.ino)?;
        let mut inode = change.inode(cut.ino)?;
        // The size is locked since the intent was made of these attributes.
        let epoch = inode.attr.epoch;
        assert_eq!(
            cut.epoch,
            epoch.wrapping_add(1),
            "inode {} of epoch {epoch} is cut, and not to the next",
            cut.ino
        );
        inode.attr.size = cut.size;
        // Where the holes are is not known: there cannot be more of them than bytes.
        inode.attr.holes = inode.attr.holes.min(cut.size);
        inode.attr.mtime = change.now;
        inode.attr.ctime = change.now;
        inode.attr.raise_data_version();
        change.put_inode(&inode);
        Ok(change)
    }

    /// Carries out the steps of a cut: every subfile at its node; then the epoch.
    pub(super) fn finish_cut(
        &self,
        cut: &Cut,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        for (column, target) in targets_of(&cut.layout).enumerate() {
            self.trim(cut, column as u16, target, steps)?;
        }
        // Also those that only the new layout has: a file that was ever cut has a subfile on each of its targets, so
        // that a lost one is noticed.
        let added = |target: &TargetIndex| targets_of(&cut.layout).all(|old| old != *target);
        for target in targets_of(&cut.new_layout).filter(added) {
            self.trim(cut, 0, target, steps)?;
        }
        let mut change = self.change_of(cut.ino)?;
        match change.inode(cut.ino) {
            Ok(mut inode) => {
                inode.attr.epoch = cut.epoch;
                inode.attr.layout = cut.new_layout;
                inode.attr.contract = cut.contract;
                change.put_inode(&inode);
            }
            // It lost its last name meanwhile. The steps may have made subfiles anew behind those who removed them.
            Err(error) if error.errno() == Errno::ENOENT => {
                // All targets: another layout of before may have left a subfile on any of them.
                let width = cut.layout.targets;
                change.discard_subfiles(cut.ino, bivouac_types::Layout { width, ..cut.layout });
            }
            // A record that cannot be read is no reason to discard content.
            Err(error) => return Err(error),
        }
        let outcome = self.clear(change, logged, steps, 0)?;
        // Only now: a cut that is left unfinished may not have reached every target.
        self.stale_tails.cut(cut.ino);
        Ok(outcome)
    }

    /// Cuts a subfile. A target that the new layout does without keeps the old one in its header: the epoch there must
    /// go on refusing writers who know nothing of the new one.
    fn trim(&self, cut: &Cut, column: u16, target: TargetIndex, steps: StepContext) -> FsResult<()> {
        let kept = targets_of(&cut.new_layout).any(|kept| kept == target);
        let request = TrimRequest {
            ino: cut.ino,
            target,
            layout: if kept { cut.new_layout } else { cut.layout },
            epoch: cut.epoch,
            len: bivouac_layout::subfile_len(&cut.layout, column, cut.size),
        };
        let place = self.target_place(target)?;
        self.step::<op::Trim>(place.node, steps, 0, request)
    }
}

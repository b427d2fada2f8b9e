//! A file that was changed at site storage and not here gets what it is there. First every seat says that it has nothing
//! that site storage does not have, and refuses writers of the old epoch from then on; then each drops what it has. If one
//! has something, all stays as it was, but for the epoch.

use bivouac_layout::seats_of;
use bivouac_types::{FsResult, Ino, Layout};
use bivouac_wire::{FlushMark, MarkFlushRequest, Origin, Whence, codec_struct, op};

use super::{Logged, Outcome};
use crate::node::Node;
use crate::peers::Steps;

/// A file that is to get what it is at site storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The file.
    pub ino: Ino,
    /// Its epoch before; it rises by two.
    pub epoch: u32,
    /// Where its subfiles are.
    pub layout: Layout,
    /// What it is there.
    pub origin: Origin,
}
codec_struct!(Renewal { ino, epoch, layout, origin });

impl Node {
    /// Steps: every seat closes; if all could, every seat drops; then the record.
    pub(super) fn finish_renewal(&self, new: &Renewal, logged: &Logged, steps: Steps) -> FsResult<Outcome> {
        let (closed, dropped) = (new.epoch.wrapping_add(1), new.epoch.wrapping_add(2));
        let close = FlushMark::Close { epoch: closed, layout: new.layout };
        let is_unsaved = self.mark_seats(new, &close, steps)? > 0;
        let pin = self.site_file(new.ino)?.map_or(0, |file| file.pin);
        let (origin, limit) = (Some(new.origin.clone()), new.origin.seen.size);
        let whence = Whence { origin, limit, layout: new.layout, pin };
        if !is_unsaved {
            self.mark_seats(new, &FlushMark::Drop { epoch: dropped, whence: whence.clone() }, steps)?;
        }
        let mut change = self.change_of(new.ino)?;
        if let Ok(mut inode) = change.inode(new.ino) {
            let known = change.site_file(new.ino)?;
            inode.attr.epoch = if is_unsaved { closed } else { dropped };
            if !is_unsaved {
                inode.attr.size = new.origin.seen.size;
                inode.attr.holes = 0;
                (inode.attr.mtime, inode.attr.ctime) = (new.origin.seen.mtime, change.now);
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

    /// Bytes that are not saved, at all seats.
    fn mark_seats(&self, new: &Renewal, mark: &FlushMark, steps: Steps) -> FsResult<u64> {
        let mut unsaved = 0;
        for seat in seats_of(&new.layout) {
            let request = MarkFlushRequest { ino: new.ino, seat, mark: mark.clone() };
            let node = self.seat_place(seat)?.node;
            unsaved += self.step::<op::MarkFlush>(node, steps, 0, request)?;
        }
        Ok(unsaved)
    }
}

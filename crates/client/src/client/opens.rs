//! Opening, closing and locking: the home keeps a file alive while anybody has it open.

use std::collections::HashMap;

use bivouac_types::{Attr, ByteRange, Errno, FsResult, Ino, NodeId, OpenId, PartitionId, Refresh};
use bivouac_wire::{FileLock, LockMode, OpenRequest, op};

use super::{Client, O_TRUNC, OpCtx};
use crate::locks::{LockWaiting, Locked};
use crate::tokens::CallRange;

/// The access mode in the kernel's flags of an open.
const O_ACCMODE: u32 = 3;

/// Returns whether a file that is opened with these flags may be changed through that open.
fn is_for_writing(flags: u32) -> bool {
    flags & (O_ACCMODE | O_TRUNC) != 0
}

impl Client {
    /// Opens an inode; with `O_TRUNC` in `flags` cuts it to nothing first.
    ///
    /// # Errors
    /// `ENOENT`, `EIO`; `EROFS` for writing where it is laminated.
    pub fn open(&self, ctx: &OpCtx, ino: Ino, flags: u32) -> FsResult<Attr> {
        let (home, asked) = (self.connections.home(ino)?, self.homes.leases.now());
        self.opens.watch(home);
        let truncate = flags & O_TRUNC != 0;
        let _fenced = truncate.then(|| self.locks.guard(ino)).transpose()?;
        if !truncate && self.sessions.has_unsent(ino) && self.homes.may_be_bound(ino) {
            // Its home looks whether it has changed at site storage and not here.
            self.sessions.try_send_unsent(ino);
        }
        // A file that is empty loses nothing.
        let cuts = truncate && self.races.is_some() && self.homes.size_heard(ino) != Some(0);
        let opening = self.known.under_way.begin(is_for_writing(flags));
        let (id, floor) = (opening.id, self.known.under_way.floor());
        let request = OpenRequest { ino, truncate, id, floor };
        let change = || self.connections.change::<op::Open>(home, ctx, &request, &[]);
        let opened = match truncate {
            true => self.tokens.covered(CallRange::write(ino, ByteRange::ALL).of(ctx), |_| {
                self.sessions.cut_to_nothing(ino, change)
            }),
            false => change(),
        };
        // Also where the open failed: the truncation may have been carried out all the same.
        self.sessions.drop_copies(ino);
        let seen = opened?;
        self.known.add(ino, id);
        self.refreshed(ino, Refresh::Open);
        if cuts {
            self.changed_at_once(ino, ByteRange::ALL);
        }
        let attr = if truncate { self.homes.saw(asked, seen) } else { self.homes.looked(asked, seen) };
        if attr.layout.partition() != PartitionId::ROOT {
            // Nobody will close an open that failed.
            self.site.bring_opened(ino).inspect_err(|_| self.close_open(ino, flags))?;
        }
        Ok(attr)
    }

    /// Closes an open of a file that only one access was asked for.
    pub fn close(&self, ino: Ino) {
        self.close_open(ino, 0);
    }

    /// Closes an open with these flags. It does not fail: what was written behind is to be
    /// [sent](crate::Sessions::send_unsent) before.
    pub fn close_open(&self, ino: Ino, flags: u32) {
        if self.races.is_some() && self.known.is_open(ino) {
            self.closing(ino);
        }
        let is_late = self.sessions.has_unsent(ino);
        let sent = self.sessions.send_unsent(ino);
        // The program's own close came before: what it saved lacked these bytes.
        if is_late && sent.is_ok() {
            self.site.try_save_sent(ino);
        }
        if self.known.take_filled(ino) {
            self.content.count_holes(ino);
        }
        // What others are told of the file is good again when its home hears of this close.
        let is_writer = self.known.is_writer(ino) || self.content.has_size(ino);
        // From before the file is forgotten until its home has been told: times that are set wait for that.
        let update = self.known.mtime_updates.begin(ino);
        let Some((open, dirty)) = self.known.remove(ino, is_for_writing(flags)) else { return };
        if !self.known.is_open(ino) {
            self.tokens.close(ino);
            self.sessions.end(ino, sent);
            self.content.forget(ino);
        }
        let uses = if self.known.is_open(ino) { Vec::new() } else { self.opens.uses.end(ino) };
        let told = if dirty { self.homes.touch(ino) } else { Ok(()) };
        // Before the close is told: that may be later, and nobody needs to wait for it.
        drop(update);
        let closed = self.connections.home(ino).and_then(|home| {
            self.opens.tell(home, Some((ino, open)), uses)?;
            if is_writer {
                self.opens.send(Some(home));
            }
            Ok(())
        });
        for error in [told, closed].into_iter().filter_map(Result::err) {
            // Without a name and closed everywhere it is gone, times and all: nothing went wrong.
            if error.errno() != Errno::ENOENT {
                log::warn!(why:% = error; "close of inode {ino}");
            }
        }
    }

    /// Gives the size of a file back to its home, if it was lent: from then on its attributes are known to be those of
    /// what was written, until it is written again.
    pub fn return_size(&self, ino: Ino) {
        self.content.return_size(ino);
    }

    /// Tells the homes what an earlier process of this client had open and still has: the flags of each open, and how
    /// many there are alike. A home that cannot be reached now hears of it when the connection to it comes about.
    ///
    /// # Errors
    /// `ESTALE` for an inode of another formation.
    pub fn reassert_opens(&self, opens: &[(Ino, u32, u32)]) -> FsResult<()> {
        let mut per_node: HashMap<NodeId, Vec<(Ino, OpenId)>> = HashMap::new();
        // The own node hears of it also when there is nothing: the rest may be forgotten.
        per_node.extend(self.connections.local.map(|node| (node, Vec::new())));
        for (ino, flags, count) in opens {
            let opens = per_node.entry(self.connections.home(*ino)?).or_default();
            for _ in 0..*count {
                let opening = self.known.under_way.begin(is_for_writing(*flags));
                self.known.add(*ino, opening.id);
                opens.push((*ino, opening.id));
            }
        }
        // Before any node is waited for: what is opened from now on is in no list.
        let under_way = self.known.under_way.list();
        for (node, opens) in per_node {
            self.opens.watch(node);
            let told = self.opens.reassert(node, &under_way, opens).and_then(|()| self.locks.resume(node));
            if let Err(error) = told {
                log::warn!(why:% = error; "{node} has not heard yet what is open");
                self.locks.is_unsure_of(node);
            }
        }
        // Behind the lists: a home that was told knows that nothing was granted to this process.
        self.tokens.is_known_from_now_on();
        self.sessions.end_left(|ino| self.site.try_save_sent(ino));
        Ok(())
    }

    /// Returns true if the home has not been told yet that content changed.
    pub(super) fn has_unsent_times(&self, ino: Ino) -> bool {
        self.known.is_dirty(ino) || self.known.mtime_updates.has(ino) || self.sessions.has_unsent(ino)
    }

    /// Locks or unlocks a range, as [`crate::LockDesk::set`].
    ///
    /// # Errors
    /// `EAGAIN`, `ENOLCK`, `EINTR`, `EIO`.
    pub fn set_lock(&self, ino: Ino, lock: &FileLock, waiting: Option<LockWaiting>) -> FsResult<Locked> {
        // Who has the lock next sees what was written under it, and who gets it sees what others wrote.
        self.sessions.send_unsent(ino)?;
        // Before the home is asked to unlock: whoever locks next finds the report there.
        self.published(ino);
        let (fresh, refreshed) = (self.sessions.copies_of(ino), self.refreshed_later(ino));
        let waiting = waiting.map(|waiting| LockWaiting {
            answer: Box::new(move |outcome| {
                // Before the answer: the program reads at once, and must not find copies from before the lock.
                fresh();
                if outcome.is_ok() {
                    refreshed();
                }
                (waiting.answer)(outcome);
            }),
            ..waiting
        });
        let locked = self.locks.set(ino, lock, waiting)?;
        self.sessions.drop_copies(ino);
        if matches!(locked, Locked::Done) && lock.mode != LockMode::Unlock {
            self.refreshed(ino, Refresh::Lock);
        }
        Ok(locked)
    }

    /// Unlocks what a process that closed the file has locked of it in ranges.
    pub fn unlock_owner(&self, ino: Ino, owner: u64) {
        self.sessions.give_up_locked(ino);
        self.published(ino);
        self.locks.closed_by(ino, owner);
    }

    /// Unlocks what was locked through an open file whose last descriptor is closed.
    pub fn unlock_handle(&self, ino: Ino, handle: u64) {
        self.sessions.give_up_locked(ino);
        self.published(ino);
        self.locks.released(ino, handle);
    }
}

//! Moving directories from directory to directory: one at a time in the formation, since two at once could close a
//! loop.
//!
//! The home of the root keeps the lock, in its records, so that it outlives everybody: a node has it, for a *ticket*
//! of that node's. A change that is finished later keeps it until then. A node that was restarted gives back what
//! no change of it is left to give back. Tickets rise, so that a message that comes late does nothing.

use std::ops::ControlFlow;

use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino};
use bivouac_wire::{Decode, Encode, Ticket, codec_struct, op};

use crate::identity::SYSTEM;
use crate::locks::LockTarget;
use crate::namespace::{Change, decode};
use crate::node::Node;
use crate::peers::StepContext;
use crate::reaper::Job;
use crate::record::{moves_key, table};
use crate::session::Ctx;
use crate::step::Handle;

/// A node's last turn: `M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MoveTurn {
    ticket: u64,
    held: bool,
}
codec_struct!(MoveTurn { ticket, held });

impl Handle for op::LockRename {
    fn handle(node: &Node, ctx: &Ctx<'_>, Ticket { ticket }: Ticket) -> FsResult<()> {
        let mut change = node.change_at(&[Ino::ROOT.slot()], &[])?;
        if change.is_moving(ctx.client) {
            return Err(Errno::EBUSY.into());
        }
        match change.turn(ctx.client)? {
            Some(turn) if turn.ticket == ticket && turn.held => return Ok(()),
            Some(turn) if turn.ticket >= ticket => {
                return Err(FsError::with(Errno::ESTALE, "a turn was asked for behind its end"));
            }
            _ => change.put_turn(ctx.client, MoveTurn { ticket, held: true }),
        }
        change.commit()
    }
}

impl Handle for op::UnlockRename {
    fn handle(node: &Node, ctx: &Ctx<'_>, Ticket { ticket }: Ticket) -> FsResult<()> {
        let mut change = node.change_at(&[Ino::ROOT.slot()], &[])?;
        if change.turn(ctx.client)?.is_some_and(|turn| turn.ticket > ticket) {
            return Ok(());
        }
        // Also where there was no such turn: a request for it that comes late must find that it is over.
        change.put_turn(ctx.client, MoveTurn { ticket, held: false });
        change.commit()
    }
}

impl Change<'_> {
    fn turn(&self, client: ClientId) -> FsResult<Option<MoveTurn>> {
        let bytes = self.txn.get(Ino::ROOT.slot(), &moves_key(client));
        bytes.map(|bytes| decode(bytes, "turn", Ino::ROOT)).transpose()
    }

    fn put_turn(&mut self, client: ClientId, turn: MoveTurn) {
        self.txn.put(Ino::ROOT.slot(), &moves_key(client), &turn.to_bytes());
    }

    /// Returns true if another node has the turn at moving directories.
    fn is_moving(&self, client: ClientId) -> bool {
        let (own, mut others) = (moves_key(client), false);
        self.txn.scan(Ino::ROOT.slot(), &table(b'M'), &table(b'M'), |key, value| {
            // A damaged record counts as held: two nodes must not move directories at once.
            others |= key != own && MoveTurn::from_bytes(value).map_or(true, |turn| turn.held);
            ControlFlow::Continue(())
        });
        others
    }
}

impl Node {
    /// Runs `act` while nobody else moves a directory, and beyond it if `act` leaves a change to be finished later.
    pub(super) fn with_moves_lock<R>(&self, act: impl FnOnce(u64) -> FsResult<R>) -> FsResult<R> {
        // The keeper knows nodes only: the requests of one node take turns here.
        let turn = self.locks.lock(LockTarget::Moves)?;
        let ticket = self.allocator.next(&self.records)?;
        assert_ne!(ticket, 0, "an intent with this ticket would keep no turn");
        let outcome = self.take_moves_lock(ticket).and_then(|()| act(ticket));
        // Looked at before the lock is released: afterwards a change of another request may keep it.
        let is_left = self.locks.is_kept(LockTarget::Moves);
        // Others of this node need not wait for the keeper's answer: their tickets are higher, and stay held.
        drop(turn);
        if !is_left {
            self.give_moves_lock_back(ticket);
        }
        outcome
    }

    fn take_moves_lock(&self, ticket: u64) -> FsResult<()> {
        let keeper = self.home_of(Ino::ROOT)?;
        let mut pause = self.pause();
        loop {
            match self.step::<op::LockRename>(keeper, StepContext::question(SYSTEM), 0, Ticket { ticket }) {
                Err(error) if error.errno() == Errno::EBUSY && pause.wait() => {}
                outcome => return outcome,
            }
        }
    }

    /// Ends a turn; in the background if the keeper does not answer.
    pub(crate) fn give_moves_lock_back(&self, ticket: u64) {
        if let Err(error) = self.unlock_moves(ticket, StepContext::question(SYSTEM)) {
            log::warn!(why:% = error; "the lock for moving directories is given back later");
            self.reaper.add(Job::Moves(ticket));
        }
    }

    /// Tells the keeper that a turn, and all before it, is over.
    pub(crate) fn unlock_moves(&self, ticket: u64, steps: StepContext) -> FsResult<()> {
        self.step::<op::UnlockRename>(self.home_of(Ino::ROOT)?, steps, 0, Ticket { ticket })
    }

    /// Gives back the lock that a killed daemon may have had, if it left no change that needs it.
    pub(crate) fn adopt_moves_lock(&self) -> FsResult<()> {
        if !self.locks.is_kept(LockTarget::Moves) {
            self.reaper.add(Job::Moves(self.allocator.next(&self.records)?));
        }
        Ok(())
    }
}

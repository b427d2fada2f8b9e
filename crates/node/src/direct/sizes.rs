//! Sizes of files that are lent to processes of this machine: a process that makes a file longer tells so in shared
//! memory, and whoever looks at the file's record here sees what was told on top of it. See
//! docs/decisions/0003-file-size.md.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bivouac_direct::SizeGate;
use bivouac_types::limits::{DIRECT_DRAIN_MS, DIRECT_SIZES_MAX};
use bivouac_types::{BEING_WRITTEN, ClientId, FsResult, Ino};
use bivouac_wire::{Encode, SizeLease};

use crate::lending::{FreeGate, LoanHolder, NOT_LENT, SizeLoan};
use crate::locks::{Guard, LockTarget};
use crate::node::Node;
use crate::record::{Inode, inode_key};
use bivouac_session::Item;

impl Node {
    /// Lends the size of a file to a client's process, if that can be. The caller has the size locked.
    pub(crate) fn lend_size(&self, client: ClientId, session: u32, ino: Ino) -> FsResult<SizeLease> {
        // So that the attributes below have what loans that are over told: the new one counts from there.
        self.sweep_sizes_of(ino)?;
        // What is wrong with it, the message says that tells its size.
        let Ok(Inode { attr, .. }) = self.regular_file(ino) else { return Ok(NOT_LENT) };
        let is_full = self.lending.sizes_lent.load(Ordering::Relaxed) >= DIRECT_SIZES_MAX;
        if is_full || attr.is_laminated() || !self.opens.is_held(ino, client) {
            return Ok(NOT_LENT);
        }
        let Some(FreeGate { grants, serial, number, gate }) = self.lending.gate(session, client) else {
            return Ok(NOT_LENT);
        };
        // From now on it may change at any moment: nobody else gets a lease on it.
        self.callbacks.leases.begin(client, &[Item::Attrs(ino)], &|_, _, _| None);
        let gate = SizeGate::open(&gate, ino.0, attr.epoch, !self.stale_tails.may_have_tail(ino));
        let lent = SizeLease { lent: true, gate: number, turn: gate.turn(), epoch: attr.epoch };
        let holder = LoanHolder { client, session, serial, gate: number, grants };
        if !self.lending.add(ino, Some(&attr), gate, Some(holder)) {
            // Begun above; that of a loan which was made ends with the loan.
            self.callbacks.leases.end(client, &[Item::Attrs(ino)]);
            return Ok(NOT_LENT);
        }
        if self.stale_tails.may_have_tail(ino) {
            // Who was marked meanwhile may have found no loan to change.
            self.lending.forbid_holes(ino);
        }
        Ok(lent)
    }

    /// Locks the size of a file, and has it back from everybody whom it is lent to.
    pub(crate) fn lock_size(&self, ino: Ino) -> FsResult<Guard<'_>> {
        let guard = self.locks.lock(LockTarget::Size(ino))?;
        self.recall_size_lease(ino).map(|()| guard)
    }

    /// Recalls the size of a file from all processes that it is lent to. The caller holds the size lock.
    pub(crate) fn recall_size_lease(&self, ino: Ino) -> FsResult<()> {
        if self.lending.is_lent(ino) {
            for (gate, holder) in self.lending.close(ino) {
                // A process that is still inside finds the gate closed afterwards, and sends a message.
                let lives = || holder.as_ref().is_some_and(|holder| holder.grants.lives(holder.session));
                let _ = gate.drain(Duration::from_millis(DIRECT_DRAIN_MS), lives);
            }
            self.write_down(ino)?;
            self.end_loans(ino, |_| true);
        }
        Ok(())
    }

    /// Notes that there may be bytes behind the ends of these files: clients that had them open are gone, or could not
    /// write what they wanted to.
    pub(crate) fn mark_tails(&self, inos: Vec<Ino>) {
        self.stale_tails.mark(inos.clone());
        inos.into_iter().for_each(|ino| self.lending.forbid_holes(ino));
    }

    /// Takes note of sizes of a file that are not lent any more.
    pub(crate) fn sweep_sizes_of(&self, ino: Ino) -> FsResult<()> {
        if !self.lending.is_lent(ino) {
            return Ok(());
        }
        // As of before they are written down: who is over only then may have told something since.
        let over = self.lending.over(ino);
        if !over.is_empty() {
            self.write_down(ino)?;
            self.end_loans(ino, |loan| over.contains(&loan.number));
        }
        Ok(())
    }

    /// Takes note of sizes of a file that are not lent any more, before its attributes are told. If that cannot be
    /// done, the file is taken for one that is being written.
    pub(crate) fn settle_sizes_of(&self, ino: Ino) {
        if let Err(error) = self.sweep_sizes_of(ino) {
            log::warn!(why:% = error; "size of inode {ino} is not in its record yet");
        }
    }

    /// Writes down the lent sizes of all files.
    pub(crate) fn sweep_sizes(&self) {
        for ino in self.lending.inos(SizeLoan::is_over) {
            if let Err(error) = self.sweep_sizes_of(ino) {
                log::warn!(why:% = error; "size of inode {ino} is not in its record yet");
            }
        }
    }

    /// Writes down all that was told so far.
    pub(crate) fn write_down_sizes(&self) -> FsResult<()> {
        // All are tried: at the end of the node nobody comes back for those behind one that fails.
        let inos = self.lending.inos(|_| true).into_iter();
        let written: Vec<FsResult<()>> = inos.map(|ino| self.write_down(ino)).collect();
        written.into_iter().collect()
    }

    /// Takes over the sizes that an earlier daemon lent.
    pub(crate) fn adopt_sizes(&self, gates: Vec<SizeGate>) {
        for gate in gates {
            let ino = Ino(gate.file().0);
            let attr = self.inode(ino).ok().map(|inode| inode.attr);
            self.lending.add(ino, attr.as_ref(), gate, None);
        }
        self.sweep_sizes();
    }

    /// Writes down what was told of a file so far.
    fn write_down(&self, ino: Ino) -> FsResult<()> {
        let mut change = self.change_of(ino)?;
        let Some(record) = change.txn.get(ino.slot(), &inode_key(ino)) else { return Ok(()) };
        let mut told = self.told_inode(ino, Some(record))?;
        // The record never has this bit: compared with it, the two would always differ.
        told.attr.data_version &= !BEING_WRITTEN;
        if told.to_bytes() == record {
            return Ok(());
        }
        change.put_inode(&told);
        change.commit()
    }

    fn end_loans(&self, ino: Ino, is_over: impl Fn(&SizeLoan) -> bool) {
        let clients = self.lending.end_loans(ino, is_over);
        clients.into_iter().for_each(|client| self.callbacks.leases.end(client, &[Item::Attrs(ino)]));
    }
}

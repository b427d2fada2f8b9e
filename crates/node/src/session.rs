//! Exactly-once changes. A client whose answer was lost sends the request again with the same id and
//! the retry mark. The change's transaction also wrote which operation of which client channel it was,
//! as the slot tables of NFSv4.1 sessions do (RFC 8881, 2.10.6), so the second time is recognised.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::time::Instant;

use bivouac_net::Asker;
use bivouac_store::{Records, Txn};
use bivouac_types::{ClientId, Errno, FsError, FsResult, OpId, Slot};
use bivouac_wire::{Decode, Encode};

use crate::dispatch::SYSTEM;
use crate::node::Node;
use crate::peers::{STEPS_MAX, is_peer};
use crate::record::{Done, done_key, done_prefix};

/// Who asks, and what comes with the question besides the body.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    /// The client.
    pub client: ClientId,
    /// Its channel: one change at a time.
    pub channel: u16,
    /// The operation.
    pub id: OpId,
    /// Whether it may have been carried out before.
    pub retry: bool,
    /// Whether it keeps what it is told.
    pub leased: bool,
    /// When it was begun here, before anything was read or changed for it.
    pub begun: Instant,
    /// The client whose request this is part of: the client itself, or whom a peer asks for.
    pub origin: ClientId,
    /// Bytes to write.
    pub payload: &'a [IoSlice<'a>],
    /// Who waits for the answer.
    pub asker: Asker<'a>,
}

impl Ctx<'static> {
    /// A change that a node makes by itself.
    pub fn of_node(client: ClientId) -> Ctx<'static> {
        Ctx {
            client,
            channel: 0,
            id: OpId(0),
            retry: false,
            leased: false,
            begun: Instant::now(),
            origin: SYSTEM,
            payload: &[],
            asker: Asker::HERE,
        }
    }
}

impl Ctx<'_> {
    /// The intent that a step belongs to: its driver and its number.
    pub fn intent(&self) -> (ClientId, u64) {
        (self.client, self.id.0 / STEPS_MAX)
    }

    /// The request's key among the records of what was done. Steps have their number in their id.
    fn done_key(&self) -> [u8; 12] {
        let step = if is_peer(self.client) { (self.id.0 % STEPS_MAX) as u8 } else { 0 };
        done_key(self.client, self.channel, step)
    }

    /// Whether this step of a peer was carried out before: asked within the transaction that does it, and of
    /// the first try too, since it may arrive behind its own repetition.
    ///
    /// # Errors
    /// `ESTALE` for a step of an intent that is over.
    pub fn step_done(&self, txn: &Txn<'_>, slot: Slot) -> FsResult<bool> {
        let done = txn.get(slot, &self.done_key()).and_then(|bytes| Done::from_bytes(bytes).ok());
        match done {
            Some(done) if done.op > self.id.0 => {
                Err(FsError::with(Errno::ESTALE, "a step arrived after its change was over"))
            }
            done => Ok(done.is_some_and(|done| done.op == self.id.0)),
        }
    }

    /// To be called after any wait: a request that nobody waits for any more may have been overtaken by its own
    /// repetition, and by what its client did then.
    ///
    /// # Errors
    /// `EIO`, which nobody reads.
    pub fn check_awaited(&self) -> FsResult<()> {
        match self.asker.is_gone() {
            true => Err(FsError::with(Errno::EIO, "who asked for it is gone")),
            false => Ok(()),
        }
    }

    /// What this operation left when it was carried out before: its value, see [`Done`]. The caller holds the
    /// lock that a repetition of the operation takes too.
    ///
    /// # Errors
    /// `EIO` when nobody waits for the operation any more.
    pub fn done_before(&self, records: &Records, slot: Slot) -> FsResult<Option<u64>> {
        let prefix = done_prefix(self.client);
        self.done_among(|look| records.scan(slot, &prefix, &prefix, look))
    }

    /// As [`Ctx::done_before`], where the change's transaction is what keeps a repetition out.
    ///
    /// # Errors
    /// As there.
    pub fn done_in(&self, txn: &Txn<'_>, slot: Slot) -> FsResult<Option<u64>> {
        let prefix = done_prefix(self.client);
        self.done_among(|look| txn.scan(slot, &prefix, &prefix, look))
    }

    fn done_among(
        &self,
        scan: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>),
    ) -> FsResult<Option<u64>> {
        self.check_awaited()?;
        if !self.retry {
            return Ok(None);
        }
        let mut found = None;
        scan(&mut |_, value| match Done::from_bytes(value) {
            Ok(done) if done.op == self.id.0 => {
                found = Some(done.value);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        Ok(found)
    }

    /// Writes down, with the change itself, that the operation was carried out.
    pub fn remember(&self, txn: &mut Txn<'_>, slot: Slot, value: u64) {
        let done = Done { op: self.id.0, value };
        txn.put(slot, &self.done_key(), &done.to_bytes());
    }
}

impl Node {
    /// Nobody will ask again what came of a client's operations.
    pub(crate) fn forget_outcomes(&self, client: ClientId) -> FsResult<()> {
        let prefix = done_prefix(client);
        for slot in self.own_slots() {
            let mut keys = Vec::new();
            self.records.scan(slot, &prefix, &prefix, |key, _| {
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            });
            if !keys.is_empty() {
                let mut txn = self.records.txn(&[slot]);
                keys.iter().for_each(|key| txn.delete(slot, key));
                txn.commit()?;
            }
        }
        Ok(())
    }
}

//! Exactly-once changes of records: the rules are [`bivouac_session`]'s. A client whose answer was lost sends the
//! request again with the same id and the retry mark. The change's transaction also wrote which operation of which
//! client channel it was, so the retransmission is recognised. The original may still be under way then, over a
//! half-open connection: it is refused, since its connection's generation is superseded.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::time::Instant;

use bivouac_net::{Call, RequestOrigin};
use bivouac_session::{Verdict, judge_request, judge_step};
use bivouac_store::{Records, Txn};
use bivouac_types::{ClientId, Errno, FsError, FsResult, OpId, Slot};
use bivouac_wire::{Decode, DecodeError, Encode, Operation};

use crate::identity::{SYSTEM, is_peer};
use crate::peers::STEPS_MAX;
use crate::record::{CompletedOp, done_key, done_prefix};

// A step's number is one byte of its key.
const _: () = assert!(STEPS_MAX <= 1 << 8);

/// A request's context: its client, its identity, its connection and its payload.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    /// The sender, a client or a peer.
    pub client: ClientId,
    /// The sender's channel, on which one change is under way at a time.
    pub channel: u16,
    /// The operation's number on that channel.
    pub id: OpId,
    /// Set for a retransmission: the operation may have been carried out before.
    pub retry: bool,
    /// Set if the client wants a lease, to cache the reply.
    pub leased: bool,
    /// When it was begun here, before anything was read or changed for it.
    pub begun: Instant,
    /// The client that the request is made for: the sender itself, or the client that a peer acts for.
    pub origin: ClientId,
    /// Bytes to write.
    pub payload: &'a [IoSlice<'a>],
    /// The connection that the request came over.
    pub connection: RequestOrigin<'a>,
}

/// Returns the context of a request that is sent on behalf of `origin`.
pub fn context<'a>(call: &Call<'a>, origin: ClientId) -> Ctx<'a> {
    Ctx {
        client: call.frame.client,
        origin,
        channel: call.frame.channel,
        id: call.frame.id,
        retry: call.frame.flags.is_retry(),
        leased: call.frame.flags.wants_lease(),
        begun: Instant::now(),
        payload: call.payload,
        connection: call.connection,
    }
}

/// Returns the decoded request.
pub fn request<'a, O: Operation>(call: &Call<'a>) -> FsResult<O::Request<'a>> {
    O::Request::from_bytes(call.body)
        .map_err(|e| FsError::with(Errno::EPROTO, format!("request {} does not decode: {e}", O::OP.name())))
}

fn damaged(client: ClientId, error: &DecodeError) -> FsError {
    let text = format!("a record of what client {} has done is damaged: {error}", client.0);
    FsError::with(Errno::EIO, text)
}

fn superseded() -> FsError {
    FsError::with(Errno::EIO, "request superseded: its client has connected anew since")
}

impl Ctx<'static> {
    /// Returns a change that a node makes by itself.
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
            connection: RequestOrigin::LOCAL,
        }
    }
}

impl Ctx<'_> {
    /// Returns a copy of the request without its client's identity, for a change that is not the client's operation.
    pub fn for_nobody(&self) -> Self {
        Ctx { client: SYSTEM, channel: 0, id: OpId(0), ..*self }
    }

    /// Returns the intent that a step belongs to: its driver and its number.
    pub fn intent(&self) -> (ClientId, u64) {
        (self.client, self.id.0 / STEPS_MAX)
    }

    /// Returns the request's key among the records of what was done. Steps have their number in their id.
    fn done_key(&self) -> [u8; 12] {
        // A client has one change at a time on a channel, so that its last one is all that can come again.
        let step = if is_peer(self.client) { (self.id.0 % STEPS_MAX) as u8 } else { 0 };
        done_key(self.client, self.channel, step)
    }

    /// Returns true if this step of a peer was carried out before. To be called within the transaction that carries it
    /// out, and for the first transmission too, since that may arrive behind its own retransmission.
    ///
    /// # Errors
    /// `ESTALE` for a step of an intent that is over; `EIO` if that cannot be read.
    pub fn step_done(&self, txn: &Txn<'_>, slot: Slot) -> FsResult<bool> {
        let last = txn.get(slot, &self.done_key()).map(CompletedOp::from_bytes).transpose();
        let last = last.map_err(|error| damaged(self.client, &error))?;
        match judge_step(self.id.0, last.map(|last| last.op)) {
            Verdict::CarryOut => Ok(false),
            Verdict::Replay(_) => Ok(true),
            Verdict::Superseded => {
                Err(FsError::with(Errno::ESTALE, "a step arrived after its change was over"))
            }
        }
    }

    /// Refuses a request whose connection was superseded: its retransmission, and later operations of its client, may
    /// have overtaken it. To be called after any wait, under the lock that orders the request and its retransmission.
    ///
    /// # Errors
    /// `EIO`, which nobody reads.
    pub fn check_current(&self) -> FsResult<()> {
        if self.connection.is_superseded() { Err(superseded()) } else { Ok(()) }
    }

    /// Returns the value that this operation stored when it was carried out before (see [`CompletedOp`]), `None` if it
    /// was not. The caller holds the lock that a retransmission of the operation takes too.
    ///
    /// # Errors
    /// As [`Ctx::check_current`].
    pub fn done_before(&self, records: &Records, slot: Slot) -> FsResult<Option<u64>> {
        self.find_done(|prefix, look| records.scan(slot, prefix, prefix, look))
    }

    /// Like [`Ctx::done_before`], for a caller whose lock is the transaction that carries the operation out.
    ///
    /// # Errors
    /// As [`Ctx::done_before`].
    pub fn done_within(&self, txn: &Txn<'_>, slot: Slot) -> FsResult<Option<u64>> {
        self.find_done(|prefix, look| txn.scan(slot, prefix, prefix, look))
    }

    fn find_done(
        &self,
        scan: impl FnOnce(&[u8], &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>),
    ) -> FsResult<Option<u64>> {
        let mut damage = None;
        let find_outcome = || {
            let mut found = None;
            // On any channel: what a kernel sends again to a restarted mount comes over another one than before.
            scan(&done_prefix(self.client), &mut |_, value| match CompletedOp::from_bytes(value) {
                Ok(done) if done.op == self.id.0 => {
                    found = Some(done.value);
                    ControlFlow::Break(())
                }
                Ok(_) => ControlFlow::Continue(()),
                Err(error) => {
                    damage = Some(error);
                    ControlFlow::Continue(())
                }
            });
            found
        };
        let verdict = judge_request(self.connection.is_superseded(), self.retry, find_outcome);
        match (verdict, damage) {
            // It may be this operation's: carried out again, it would be so twice.
            (Verdict::CarryOut, Some(error)) => Err(damaged(self.client, &error)),
            (Verdict::CarryOut, None) => Ok(None),
            (Verdict::Replay(value), _) => Ok(Some(value)),
            (Verdict::Superseded, _) => Err(superseded()),
        }
    }

    /// Adds a record to the transaction that the operation was carried out: both are committed, or neither.
    pub fn remember(&self, txn: &mut Txn<'_>, slot: Slot, value: u64) {
        let done = CompletedOp { op: self.id.0, value };
        // It replaces the channel's last one, whose client has its reply: it would not have begun this one otherwise.
        txn.put(slot, &self.done_key(), &done.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;

    /// A record that cannot be read was as good as none: what it was of was carried out twice.
    #[test]
    fn what_may_have_been_done_is_not_done_again() {
        let dir = tempfile::tempdir().unwrap();
        let (node, slot) = (alone(dir.path()), Slot(0));
        let ctx = Ctx { id: OpId(9), retry: true, ..Ctx::of_node(ClientId(5)) };
        assert_eq!(ctx.done_before(&node.records, slot), Ok(None));
        let mut txn = node.records.txn(&[slot]);
        txn.put(slot, &ctx.done_key(), b"no record");
        txn.commit().unwrap();
        let errno = |error: FsError| error.errno();
        assert_eq!(ctx.done_before(&node.records, slot).map_err(errno), Err(Errno::EIO));
        assert_eq!(ctx.step_done(&node.records.txn(&[slot]), slot).map_err(errno), Err(Errno::EIO));
        let first = Ctx { retry: false, ..ctx };
        assert_eq!(first.done_before(&node.records, slot), Ok(None), "nothing is looked for");
    }
}

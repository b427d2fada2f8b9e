//! Operations, as a node carries them out itself or has a peer carry them out.

use bivouac_types::{Errno, FsError, FsResult, NodeId, OpId};
use bivouac_wire::{Encode, Operation};
use scopeguard::guard_on_unwind;

use crate::node::Node;
use crate::peers::{PeerRequest, STEPS_MAX, StepContext};
use crate::session::Ctx;

/// An operation that a node serves.
pub trait Handle: Operation {
    /// Serves one request.
    ///
    /// # Errors
    /// The error that the client gets instead of the reply.
    fn handle(node: &Node, ctx: &Ctx<'_>, request: Self::Request<'_>) -> FsResult<Self::Reply>;
}

impl Node {
    /// Carries out a step on the target, by a call if that is this node.
    ///
    /// # Errors
    /// The step's own, or `EIO` when the peer does not answer within the bounded time.
    pub(crate) fn step<O: Handle>(
        &self,
        target: NodeId,
        steps: StepContext,
        number: u64,
        request: O::Request<'_>,
    ) -> FsResult<O::Reply> {
        // The id of a step is that of its intent and its number: a higher one would be a step of the next intent.
        assert!(number < STEPS_MAX, "step {number} of a change that has {STEPS_MAX} at most");
        let id = OpId(steps.tx.wrapping_mul(STEPS_MAX) + number);
        let (client, channel, retry) = (self.as_client(), steps.channel, steps.retry);
        let origin = steps.origin;
        if target == self.id {
            let ctx = Ctx { channel, id, retry, origin, ..Ctx::of_node(client) };
            return O::handle(self, &ctx, request);
        }
        let body = request.to_bytes();
        let request =
            PeerRequest { op: O::OP, id, client, channel, retry, origin, body: &body, payload: &[] };
        // Background work must not hold a thread for the bounded time of clients: a silent peer gets short waits.
        let wait = if steps.background {
            // First: where this node's own mirror fails, no peer has been silent.
            self.peers.make_deferred_for(O::OP)?;
            Some(self.away.admit(target)?)
        } else {
            None
        };
        // Admitted and without an outcome, it would never be admitted again.
        let _end = guard_on_unwind((), |()| {
            if steps.background {
                self.away.is_silent(target);
            }
        });
        let outcome = self.peers.ask_within::<O>(wait, target, &request);
        match &outcome {
            Err(error) if !is_answer(error) => {
                if steps.background {
                    self.away.is_silent(target);
                }
            }
            _ => self.peer_answers(target),
        }
        outcome
    }

    /// Records that a peer answers, and releases the work that waited for it.
    pub(crate) fn peer_answers(&self, node: NodeId) {
        if self.away.is_here(node) {
            self.reaper.peer_is_back(node);
        }
    }
}

/// Returns whether an error may have come from the peer itself, rather than from the network.
fn is_answer(error: &FsError) -> bool {
    !matches!(error.errno(), Errno::EIO | Errno::ETIMEDOUT | Errno::ENOTCONN)
}

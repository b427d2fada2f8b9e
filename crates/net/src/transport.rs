//! The interface between callers and what carries their requests.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use bivouac_types::limits::{FRAME_BODY_MAX, FRAME_PAYLOAD_MAX};
use bivouac_wire::Frame;

use crate::readiness::Wait;
use crate::{Address, BrokenConnection, NetError, slices};

/// A request with the places where its bytes are. On a connection it is a frame (docs/protocol.md):
///
/// ```text
///  0       4         6        8            16         20            24       28        30    31      32
/// ┌───────┬─────────┬────────┬────────────┬──────────┬─────────────┬────────┬─────────┬─────┬───────┬───
/// │ magic │ version │ op     │ request id │ body     │ payload     │ status │ channel │kind,│ flags │ …
/// │ BVK1  │         │        │            │ length   │ length      │        │         │seal │       │
/// └───────┴─────────┴────────┴────────────┴──────────┴─────────────┴────────┴─────────┴─────┴───────┴───
///  32          40      44           48       56      60            64
///  ───────────┬───────┬────────────┬────────┬───────┬─────────────┬────────────┬─────────────┐
///   client id │ wait  │ seal's     │ origin │ fence │ crc of      │ body       │ payload     │
///             │ in ms │ value      │        │       │ bytes 0..60 │            │             │
///  ───────────┴───────┴────────────┴────────┴───────┴─────────────┴────────────┴─────────────┘
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The header; its lengths are those of `body` and `payload`.
    pub frame: Frame,
    /// Encoded body.
    pub body: &'a [u8],
    /// Raw payload.
    pub payload: &'a [IoSlice<'a>],
}

impl<'a> Request<'a> {
    /// Creates a request, and sets the lengths in its header. `frame.wait_ms` is how long to wait for the answer, in
    /// milliseconds; 0 leaves it to the transport.
    #[must_use]
    pub fn new(mut frame: Frame, body: &'a [u8], payload: &'a [IoSlice<'a>]) -> Request<'a> {
        frame.body_len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        frame.payload_len = u32::try_from(slices::total(payload)).unwrap_or(u32::MAX);
        Request { frame, body, payload }
    }

    pub(crate) fn check(&self) -> Result<(), NetError> {
        let (body, payload) = (self.frame.body_len as usize, self.frame.payload_len as usize);
        if body > FRAME_BODY_MAX {
            return Err(NetError::TooLong { bytes: body, limit: FRAME_BODY_MAX });
        }
        if payload > FRAME_PAYLOAD_MAX {
            return Err(NetError::TooLong { bytes: payload, limit: FRAME_PAYLOAD_MAX });
        }
        Ok(())
    }
}

/// Head of a reply, without its body and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// 0 or an errno.
    pub status: i32,
    /// Bytes that were put into the caller's buffers.
    pub payload_len: usize,
}

/// Carries requests to one destination. Several threads may use it at once.
pub trait Transport: Send + Sync {
    /// Sends a request, as far as that goes without waiting for the reply. Errors are returned by [`PendingReply::finish`],
    /// so that a caller can start requests to several peers and then finish all.
    fn start(&self, request: &Request<'_>) -> PendingReply<'_>;

    /// Like [`Transport::start`], but without waiting for the destination to take the request, where that is possible:
    /// the rest is sent by [`PendingReply::advance`]. For callers with several requests at a time.
    fn begin(&self, request: &Request<'_>) -> PendingReply<'_> {
        self.start(request)
    }

    /// Makes sure that the destination answers, and accepts the process that answers there as the one to talk to from
    /// now on.
    ///
    /// # Errors
    /// When no connection comes about within `wait`.
    fn connect(&self, wait: Duration) -> Result<(), NetError>;

    /// Returns true if requests still go to the server of this broken connection, not to a later one.
    fn leads_to(&self, broken: &BrokenConnection) -> bool {
        let _ = broken;
        true
    }

    /// Sends requests to this address from now on, if the node came there in a later epoch than to the present one;
    /// requests under way at the former address fail. Returns true if that is so.
    fn redirect(&self, epoch: u32, address: &Address) -> bool {
        let _ = (epoch, address);
        false
    }

    /// Returns the destination, for messages.
    fn address(&self) -> Address;

    /// Sends a request and waits for its answer; see [`PendingReply::finish`].
    ///
    /// # Errors
    /// As [`PendingReply::finish`].
    fn exchange(
        &self,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        self.start(request).finish(request, body, into)
    }
}

/// A request under way. Dropping it gives the reply up.
#[must_use = "the answer must be awaited"]
pub struct PendingReply<'t>(PendingState<'t>);

enum PendingState<'t> {
    Failed(NetError),
    // Not boxed: a request to a service of this process allocates nothing.
    Deferred(&'t dyn Transport),
    InFlight(Box<dyn InFlightRequest + 't>),
}

/// A request that a transport has begun. [`PendingReply`] calls these methods; the defaults are for a request that cannot
/// proceed in steps.
pub trait InFlightRequest {
    /// Like [`PendingReply::advance`].
    fn advance(&mut self, request: &Request<'_>, into: &mut [IoSliceMut<'_>]) -> bool {
        let _ = (request, into);
        true
    }

    /// Like [`PendingReply::is_sent`].
    fn is_sent(&self) -> bool {
        true
    }

    /// Like [`PendingReply::wait`].
    fn wait(&self) -> Option<Wait<'_>> {
        None
    }

    /// Like [`PendingReply::finish`].
    ///
    /// # Errors
    /// As [`PendingReply::finish`].
    fn finish(
        self: Box<Self>,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError>;
}

impl<'t> PendingReply<'t> {
    /// Creates a request that a transport has begun.
    pub fn new(in_flight: impl InFlightRequest + 't) -> PendingReply<'t> {
        PendingReply(PendingState::InFlight(Box::new(in_flight)))
    }

    /// Creates a request that `transport` carries out by [`Transport::exchange`] when it is finished. That must not be
    /// implemented by [`Transport::start`], as its default is.
    pub(crate) fn deferred(transport: &'t dyn Transport) -> PendingReply<'t> {
        PendingReply(PendingState::Deferred(transport))
    }

    /// Creates a request that could not be started.
    pub fn failed(error: NetError) -> PendingReply<'t> {
        PendingReply(PendingState::Failed(error))
    }

    /// Proceeds with a request that was [begun](Transport::begin), as far as that goes without waiting: sends what is
    /// left of `request`, and puts what has arrived of the reply into `into`, which must be the same in all calls.
    /// Returns true if there is nothing to do before [`PendingReply::finish`], as for a request that cannot proceed in
    /// steps.
    pub fn advance(&mut self, request: &Request<'_>, into: &mut [IoSliceMut<'_>]) -> bool {
        match &mut self.0 {
            PendingState::InFlight(in_flight) => in_flight.advance(request, into),
            PendingState::Failed(_) | PendingState::Deferred(_) => true,
        }
    }

    /// Returns true if all of the request has been sent.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        match &self.0 {
            PendingState::InFlight(in_flight) => in_flight.is_sent(),
            PendingState::Failed(_) | PendingState::Deferred(_) => true,
        }
    }

    /// Returns the event that it waits for; `None` if it need not wait.
    #[must_use]
    pub fn wait(&self) -> Option<Wait<'_>> {
        match &self.0 {
            PendingState::InFlight(in_flight) => in_flight.wait(),
            PendingState::Failed(_) | PendingState::Deferred(_) => None,
        }
    }

    /// Waits for the reply to `request`, which must be the one that was started. The reply's body replaces the content
    /// of `body`; its payload goes to the front of `into`, the rest of which has undefined content afterwards, as has
    /// all of it after an error.
    ///
    /// # Errors
    /// When no answer came; an errno in the answer is no error here.
    pub fn finish(
        self,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        match self.0 {
            PendingState::Failed(error) => Err(error),
            PendingState::Deferred(transport) => transport.exchange(request, body, into),
            PendingState::InFlight(in_flight) => in_flight.finish(request, body, into),
        }
    }
}

//! A transport that is a function call: the caller's thread runs the service.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use crate::service::{PayloadTarget, Reply, RequestOrigin, dispatch};
use crate::{Address, LaneKind, NetError, PendingReply, ReplyHead, Request, Service, Transport, slices};

/// Calls a service of the same process. The request runs when it is finished, in the caller's thread;
/// payloads are the caller's own slices. The service hears of no connection.
pub struct InProcess {
    service: Arc<dyn Service>,
    lane: LaneKind,
}

impl InProcess {
    /// Creates a transport whose requests go to `service` as if they came over `lane`.
    #[must_use]
    pub fn new(service: Arc<dyn Service>, lane: LaneKind) -> InProcess {
        InProcess { service, lane }
    }
}

impl Transport for InProcess {
    fn start(&self, _request: &Request<'_>) -> PendingReply<'_> {
        PendingReply::deferred(self)
    }

    fn connect(&self, _wait: Duration) -> Result<(), NetError> {
        Ok(())
    }

    fn address(&self) -> Address {
        Address::InProcess
    }

    fn exchange(
        &self,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        request.check()?;
        let parts: (&[u8], &[IoSlice<'_>]) = (request.body, request.payload);
        let mut target = InPlace(into);
        let mut reply = Reply::new(body, &mut target);
        let mut call =
            || dispatch(&*self.service, (self.lane, RequestOrigin::LOCAL), request.frame, parts, &mut reply);
        match self.lane {
            // Of another node, or as if it were: it would be in a thread of its own, with its own locks.
            LaneKind::Peer | LaneKind::Mirror => bivouac_ranks::on_behalf_of_peer(call),
            LaneKind::Client => call(),
        };
        Ok(ReplyHead { status: reply.status(), payload_len: reply.payload_len() })
    }
}

struct InPlace<'a, 'd>(&'a mut [IoSliceMut<'d>]);

impl PayloadTarget for InPlace<'_, '_> {
    fn with(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [IoSliceMut<'_>])) {
        if slices::total_mut(self.0) <= max_len {
            fill(self.0);
        } else {
            fill(&mut slices::window_mut(self.0, 0, max_len));
        }
    }
}

//! A transport that fails on demand, for tests of those who use transports.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use bivouac_types::Errno;
use bivouac_wire::Frame;
use parking_lot::{Condvar, Mutex};

use crate::{Address, InFlightRequest, NetError, PendingReply, ReplyHead, Request, Transport};

/// Fate of a request.
#[derive(Clone, Debug)]
pub enum InjectedFault {
    /// The connection breaks before the request is sent; the caller cannot know that it was not.
    DropBefore,
    /// The request is carried out, its answer is lost.
    DropAfter,
    /// No connection can be made.
    NoConnection,
    /// The request is answered with this error and not carried out.
    Fail(Errno),
    /// The request is not sent before the latch is open.
    Hold(HoldPoint),
}

/// A door that is closed until it is opened.
#[derive(Clone, Debug, Default)]
pub struct HoldPoint(Arc<(Mutex<LatchState>, Condvar)>);

#[derive(Debug, Default)]
struct LatchState {
    open: bool,
    waiting: usize,
}

impl HoldPoint {
    /// Lets everybody through, now and later.
    pub fn open(&self) {
        self.0.0.lock().open = true;
        self.0.1.notify_all();
    }

    /// Waits until the latch is open.
    pub fn pass(&self) {
        let mut state = self.0.0.lock();
        state.waiting += 1;
        self.0.1.notify_all();
        while !state.open {
            self.0.1.wait(&mut state);
        }
    }

    /// Waits until `count` callers have come to the latch, open or not.
    pub fn await_arrivals(&self, count: usize) {
        let mut state = self.0.0.lock();
        while state.waiting < count {
            self.0.1.wait(&mut state);
        }
    }
}

type Plan = dyn Fn(&Frame) -> Option<InjectedFault> + Send + Sync;

/// Decorates a transport with faults.
pub struct FailingTransport {
    inner: Arc<dyn Transport>,
    plan: Box<Plan>,
}

impl FailingTransport {
    /// Creates a transport for which `plan` decides what happens to every request; `None` is nothing.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Transport>,
        plan: impl Fn(&Frame) -> Option<InjectedFault> + Send + Sync + 'static,
    ) -> FailingTransport {
        FailingTransport { inner, plan: Box::new(plan) }
    }

    fn start_by<'t>(
        &'t self,
        request: &Request<'_>,
        start: impl Fn(&Request<'_>) -> PendingReply<'t>,
    ) -> PendingReply<'t> {
        match (self.plan)(&request.frame) {
            None => start(request),
            Some(InjectedFault::DropBefore) => PendingReply::failed(self.lost()),
            Some(InjectedFault::NoConnection) => {
                let cause = io::ErrorKind::ConnectionRefused.into();
                PendingReply::failed(NetError::Connect { address: self.address(), cause })
            }
            Some(InjectedFault::DropAfter) => {
                let pending = self.inner.start(request);
                PendingReply::new(LostReply { pending, error: self.lost() })
            }
            Some(InjectedFault::Fail(errno)) => PendingReply::new(ErrorReply(errno)),
            Some(InjectedFault::Hold(latch)) => PendingReply::new(HeldRequest { transport: self, latch }),
        }
    }

    fn lost(&self) -> NetError {
        NetError::Lost { address: self.address(), cause: io::ErrorKind::ConnectionReset.into() }
    }
}

impl Transport for FailingTransport {
    fn start(&self, request: &Request<'_>) -> PendingReply<'_> {
        self.start_by(request, |request| self.inner.start(request))
    }

    fn begin(&self, request: &Request<'_>) -> PendingReply<'_> {
        self.start_by(request, |request| self.inner.begin(request))
    }

    fn connect(&self, wait: Duration) -> Result<(), NetError> {
        self.inner.connect(wait)
    }

    fn address(&self) -> Address {
        self.inner.address()
    }
}

struct LostReply<'t> {
    pending: PendingReply<'t>,
    error: NetError,
}

impl InFlightRequest for LostReply<'_> {
    fn finish(
        self: Box<Self>,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        self.pending.finish(request, body, into).and(Err(self.error))
    }
}

struct ErrorReply(Errno);

impl InFlightRequest for ErrorReply {
    fn finish(
        self: Box<Self>,
        _request: &Request<'_>,
        body: &mut Vec<u8>,
        _into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        body.clear();
        Ok(ReplyHead { status: self.0.code(), payload_len: 0 })
    }
}

struct HeldRequest<'t> {
    transport: &'t FailingTransport,
    latch: HoldPoint,
}

impl InFlightRequest for HeldRequest<'_> {
    fn finish(
        self: Box<Self>,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        self.latch.pass();
        self.transport.inner.exchange(request, body, into)
    }
}

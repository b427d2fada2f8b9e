//! What a server does with a request, whoever carried it.

use std::io::{IoSlice, IoSliceMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bivouac_types::limits::{FRAME_BODY_MAX, FRAME_PAYLOAD_MAX};
use bivouac_types::{ClientId, Errno, FsError};
use bivouac_wire::{Encode, Frame, Lane, Op};

/// Longest text that explains an errno in a reply, in bytes.
pub(crate) const DETAIL_MAX: usize = 1024;

/// Answers requests. Implemented by the node.
pub trait Service: Send + Sync + 'static {
    /// Answers one request. Several threads call at once.
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>);

    /// A client's first connection has proven itself. Calls of this and [`Service::client_gone`] are
    /// serialised in the order of the events and hold up other handshakes: return soon.
    fn client_connected(&self, client: ClientId) {
        let _ = client;
    }

    /// A client's last connection is closed. Not called for those that [`crate::Server::stop`] closes.
    fn client_gone(&self, client: ClientId) {
        let _ = client;
    }
}

/// Who may connect to a listener, and so which operations it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneKind {
    /// Clients; handlers may call peers.
    Client,
    /// Peers; handlers call nobody.
    Peer,
}

/// A request as the service sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its header.
    pub frame: Frame,
    /// The operation that the header names.
    pub op: Op,
    /// The lane that carried it.
    pub lane: LaneKind,
    /// Its encoded body.
    pub body: &'a [u8],
    /// Its payload; together `frame.payload_len` bytes.
    pub payload: &'a [IoSlice<'a>],
}

/// The answer while the service makes it. Untouched, it is success with an empty body.
pub struct Reply<'a> {
    status: i32,
    body: &'a mut Vec<u8>,
    target: &'a mut dyn Target,
    payload_len: usize,
}

/// Where the payload of a reply goes.
pub(crate) trait Target {
    /// Gives buffers of at most `max_len` bytes to `fill`.
    fn with(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [IoSliceMut<'_>]));
}

impl<'a> Reply<'a> {
    pub(crate) fn new(body: &'a mut Vec<u8>, target: &'a mut dyn Target) -> Reply<'a> {
        body.clear();
        Reply { status: 0, body, target, payload_len: 0 }
    }

    /// The encoded body of the reply, to be appended to.
    pub fn body(&mut self) -> &mut Vec<u8> {
        self.body
    }

    /// Makes `value` the body.
    pub fn send(&mut self, value: &impl Encode) {
        self.body.clear();
        value.encode(self.body);
    }

    /// Turns the reply into an error: the errno as status, the explanation (cut to 1 KiB) as body.
    pub fn fail(&mut self, error: &FsError) {
        self.status = error.errno().code();
        self.payload_len = 0;
        self.body.clear();
        let detail = error.detail().unwrap_or_default();
        let end = (0..=DETAIL_MAX.min(detail.len())).rev().find(|at| detail.is_char_boundary(*at));
        self.body.extend_from_slice(detail.get(..end.unwrap_or(0)).unwrap_or_default().as_bytes());
    }

    /// Sends what `fill` puts at the front of the buffers that it is given; it answers how many bytes those
    /// were. The buffers have at most `max_len` bytes together, fewer if the caller has room for fewer, and
    /// hold undefined content. In process they are the caller's own.
    ///
    /// # Errors
    /// Those of `fill`; the payload is then empty.
    pub fn payload<E>(
        &mut self,
        max_len: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let (mut fill, mut outcome) = (Some(fill), Ok(0));
        self.payload_len = 0;
        self.target.with(max_len.min(FRAME_PAYLOAD_MAX), &mut |slices| {
            if let Some(fill) = fill.take() {
                let room: usize = slices.iter().map(|slice| slice.len()).sum();
                outcome = fill(slices).map(|len| len.min(room));
            }
        });
        if let Ok(len) = outcome {
            self.payload_len = len;
        }
        outcome
    }

    pub(crate) fn status(&self) -> i32 {
        self.status
    }

    pub(crate) fn payload_len(&self) -> usize {
        self.payload_len
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The service answered.
    Answered,
    /// The service panicked; the reply is `EIO`, and the connection is not to be trusted.
    Panicked,
}

/// Gives a request to the service if its lane may carry it. Every other request is answered with an error.
pub(crate) fn dispatch(
    service: &dyn Service,
    lane: LaneKind,
    frame: Frame,
    (body, payload): (&[u8], &[IoSlice<'_>]),
    reply: &mut Reply<'_>,
) -> Outcome {
    let op = match admitted(&frame, lane) {
        Ok(op) => op,
        Err(error) => {
            reply.fail(&error);
            return Outcome::Answered;
        }
    };
    let call = Call { frame, op, lane, body, payload };
    // A panicking handler is a bug; it must not take the other clients with it.
    if catch_unwind(AssertUnwindSafe(|| service.serve(&call, reply))).is_err() {
        log::error!("handler of {} panicked; its client gets an input/output error", op.name());
        reply.fail(&FsError::with(Errno::EIO, format!("the daemon failed while serving {}", op.name())));
        return Outcome::Panicked;
    }
    if reply.body.len() > FRAME_BODY_MAX {
        let text = format!("answer to {} has {} bytes, too long for a frame", op.name(), reply.body.len());
        reply.fail(&FsError::with(Errno::EIO, text));
    }
    Outcome::Answered
}

fn admitted(frame: &Frame, lane: LaneKind) -> Result<Op, FsError> {
    let op = Op::from_number(frame.op).ok_or_else(|| {
        let text = format!("operation {} is unknown; use one release of bivouac everywhere", frame.op);
        FsError::with(Errno::ENOSYS, text)
    })?;
    match (op.lane(), lane) {
        (Lane::Client, LaneKind::Peer) | (Lane::Peer, LaneKind::Client) => {
            Err(FsError::with(Errno::EPROTO, format!("{} does not belong on the {lane:?} lane", op.name())))
        }
        _ => Ok(op),
    }
}

//! Requests on the server's side, whatever carried them.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bivouac_types::limits::{FRAME_BODY_MAX, FRAME_PAYLOAD_MAX};
use bivouac_types::{ClientId, Errno, FsError};
use bivouac_wire::{Encode, Frame, Lane, Op};

use crate::{Generation, Introduction};

/// Longest text that explains an errno in a reply, in bytes.
pub(crate) const DETAIL_MAX: usize = 1024;

/// Answers requests. Implemented by the node.
pub trait Service: Send + Sync + 'static {
    /// Answers one request. Several threads call at once.
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>);

    /// Returns whether a client that has proven itself may connect. It may not if it means another daemon than this
    /// one, or is a daemon whose place another one has taken.
    fn admits(&self, introduction: &Introduction) -> bool {
        let _ = introduction;
        true
    }

    /// Notes that a client's first connection has proven itself. Calls of this and [`Service::client_gone`] are
    /// serialised in the order of the events and hold up other handshakes: return soon.
    fn client_connected(&self, client: ClientId) {
        let _ = client;
    }

    /// Notes that a request came with other bytes than it was sent with. It is not served; who sent it is told.
    fn request_damaged(&self, lane: LaneKind) {
        let _ = lane;
    }

    /// Notes that a client's last connection is closed. Not called for those that [`crate::Server::stop`] closes.
    fn client_gone(&self, client: ClientId) {
        let _ = client;
    }
}

/// Kind of a listener: the side that may connect, and so the operations that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneKind {
    /// Clients; handlers may call peers.
    Client,
    /// Peers; handlers call nobody.
    Peer,
    /// Peers that change replicas here; handlers wait for nobody. Where there is this lane, it lets in all peers.
    Mirror,
}

impl LaneKind {
    /// Returns the lane on which a node asks a peer for this.
    #[must_use]
    pub fn between_nodes(op: Op) -> LaneKind {
        if op.lane() == Lane::Mirror { LaneKind::Mirror } else { LaneKind::Peer }
    }
}

/// The connection that a reply goes to, or a caller in this process.
#[derive(Clone, Copy, Debug)]
pub struct RequestOrigin<'a>(Option<(BorrowedFd<'a>, &'a Generation)>);

impl<'a> RequestOrigin<'a> {
    /// A caller in this process, which waits as long as it lives.
    pub const LOCAL: RequestOrigin<'static> = RequestOrigin(None);

    /// Returns a connection of this generation.
    #[must_use]
    pub fn over(connection: BorrowedFd<'a>, generation: &'a Generation) -> RequestOrigin<'a> {
        RequestOrigin(Some((connection, generation)))
    }

    /// Returns the connection's descriptor and generation; none for a caller in this process.
    #[must_use]
    pub fn connection(&self) -> Option<(RawFd, &'a Generation)> {
        self.0.map(|(connection, generation)| (connection.as_raw_fd(), generation))
    }

    /// Returns whether descriptors can be sent along with the answer.
    #[must_use]
    pub fn takes_descriptors(&self) -> bool {
        let Some((connection, _)) = self.0 else { return false };
        rustix::net::sockopt::socket_domain(connection)
            .is_ok_and(|domain| domain == rustix::net::AddressFamily::UNIX)
    }

    /// Returns whether the client has connected anew since, and may have asked again and gone on from there: what it
    /// asked for over this connection must not happen any more. To be asked under the lock that orders the request and
    /// its repetition.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.0.is_some_and(|(_, generation)| generation.is_superseded())
    }
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
    /// The connection that carried it.
    pub connection: RequestOrigin<'a>,
}

/// The answer while the service makes it. Untouched, it is success with an empty body.
pub struct Reply<'a> {
    status: i32,
    body: &'a mut Vec<u8>,
    target: &'a mut dyn PayloadTarget,
    payload_len: usize,
    descriptor: Option<OwnedFd>,
    /// True if the connection is to be closed instead.
    is_abandoned: bool,
}

/// Destination of a reply's payload.
pub(crate) trait PayloadTarget {
    /// Gives buffers of at most `max_len` bytes to `fill`.
    fn with(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [IoSliceMut<'_>]));
}

impl<'a> Reply<'a> {
    pub(crate) fn new(body: &'a mut Vec<u8>, target: &'a mut dyn PayloadTarget) -> Reply<'a> {
        body.clear();
        Reply { status: 0, body, target, payload_len: 0, descriptor: None, is_abandoned: false }
    }

    /// Returns the encoded body of the reply, to be appended to.
    pub fn body(&mut self) -> &mut Vec<u8> {
        self.body
    }

    /// Makes `value` the body.
    pub fn send(&mut self, value: &impl Encode) {
        self.body.clear();
        value.encode(self.body);
    }

    /// Sends a descriptor along, where the connection [takes descriptors](RequestOrigin::takes_descriptors).
    pub fn descriptor(&mut self, descriptor: OwnedFd) {
        self.descriptor = Some(descriptor);
    }

    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        // A handler that fails after it has set one answers with an error, along with which nobody expects a
        // descriptor.
        self.descriptor.take().filter(|_| self.status == 0)
    }

    /// Turns the reply into an error: the errno as status, the explanation (cut to 1 KiB) as body.
    pub fn fail(&mut self, error: &FsError) {
        self.status = error.errno().code();
        self.payload_len = 0;
        self.body.clear();
        let detail = error.detail().unwrap_or_default();
        // The client reads it as text, so it is not cut within a character.
        let end = (0..=DETAIL_MAX.min(detail.len())).rev().find(|at| detail.is_char_boundary(*at));
        self.body.extend_from_slice(detail.get(..end.unwrap_or(0)).unwrap_or_default().as_bytes());
    }

    /// Closes the connection instead of answering, so that the client asks elsewhere: another daemon is the node by
    /// now, and this one cannot tell what came of the request. A caller in this process gets the error.
    pub fn abandon(&mut self, error: &FsError) {
        self.fail(error);
        self.is_abandoned = true;
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
                // The caller has room for no more; a handler that counts what it could not put there must not make
                // the frame longer than its bytes.
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

    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Returns the number of bytes of its payload.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }
}

/// Outcome of a request.
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
    (lane, connection): (LaneKind, RequestOrigin<'_>),
    frame: Frame,
    (body, payload): (&[u8], &[IoSlice<'_>]),
    reply: &mut Reply<'_>,
) -> Outcome {
    // A handler of the client lane may wait for peers. On the peer lane it would take a thread that another node
    // waits for, and nodes could wait for each other in a circle.
    let op = match admitted(&frame, lane) {
        Ok(op) => op,
        Err(error) => {
            reply.fail(&error);
            return Outcome::Answered;
        }
    };
    let call = Call { frame, op, lane, body, payload, connection };
    // A panicking handler is a bug; it must not take the other clients with it.
    let serve = || {
        let payload_len: usize = payload.iter().map(|part| part.len()).sum();
        // Handlers take lengths from the header and bytes from the slices.
        assert!(
            body.len() == frame.body_len as usize,
            "a body of {} bytes, not {}",
            body.len(),
            frame.body_len
        );
        assert!(payload_len == frame.payload_len as usize, "{payload_len} bytes, not {}", frame.payload_len);
        service.serve(&call, reply);
    };
    if catch_unwind(AssertUnwindSafe(serve)).is_err() {
        log::error!("handler of {} panicked; its client gets an input/output error", op.name());
        reply.fail(&FsError::with(Errno::EIO, format!("the daemon failed while serving {}", op.name())));
        return Outcome::Panicked;
    }
    // A client refuses such a frame and closes its connection; an errno tells it what happened.
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
    let belongs = match op.lane() {
        Lane::Client => lane == LaneKind::Client,
        Lane::Peer => lane == LaneKind::Peer,
        Lane::Mirror => lane == LaneKind::Mirror,
        Lane::Both => lane != LaneKind::Mirror,
    };
    let alien = || format!("{} does not belong on the {lane:?} lane", op.name());
    if belongs { Ok(op) } else { Err(FsError::with(Errno::EPROTO, alien())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::OpId;

    /// Room for a payload of the given length.
    struct Room(Vec<u8>);

    impl PayloadTarget for Room {
        fn with(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [IoSliceMut<'_>])) {
            let len = max_len.min(self.0.len());
            fill(&mut [IoSliceMut::new(&mut self.0[..len])]);
        }
    }

    struct Scripted(fn(&Call<'_>, &mut Reply<'_>));

    impl Service for Scripted {
        fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
            (self.0)(call, reply);
        }
    }

    /// Status, body, payload length and outcome of one request.
    fn run(op: u16, lane: LaneKind, script: fn(&Call<'_>, &mut Reply<'_>)) -> (i32, Vec<u8>, usize, Outcome) {
        let (mut body, mut room) = (b"left over".to_vec(), Room(vec![0; 10]));
        let mut reply = Reply::new(&mut body, &mut room);
        let frame = Frame::request(op, OpId(1), ClientId(1), 0);
        let source = (lane, RequestOrigin::LOCAL);
        let outcome = dispatch(&Scripted(script), source, frame, (&[], &[]), &mut reply);
        let (status, payload_len) = (reply.status(), reply.payload_len());
        (status, body, payload_len, outcome)
    }

    const PING: u16 = Op::Ping as u16;

    #[test]
    fn an_untouched_reply_is_an_empty_success() {
        assert_eq!(run(PING, LaneKind::Client, |_, _| {}), (0, vec![], 0, Outcome::Answered));
    }

    #[test]
    fn an_error_takes_body_and_payload_back() {
        let (status, body, payload_len, _) = run(PING, LaneKind::Client, |_, reply| {
            reply.send(&7u32);
            reply.payload(4, |_| Ok::<_, ()>(4)).unwrap();
            reply.fail(&FsError::with(Errno::ENOSPC, "volume full"));
        });
        assert_eq!((status, body.as_slice(), payload_len), (Errno::ENOSPC.code(), &b"volume full"[..], 0));
    }

    #[test]
    fn explanations_are_cut_between_characters() {
        let (_, body, ..) = run(PING, LaneKind::Client, |_, reply| {
            reply.fail(&FsError::with(Errno::EIO, format!("x{}", "é".repeat(600))));
        });
        assert_eq!(body.len(), DETAIL_MAX - 1);
        assert!(std::str::from_utf8(&body).is_ok());
    }

    #[test]
    fn a_payload_is_never_longer_than_its_room() {
        let (_, _, payload_len, _) = run(PING, LaneKind::Client, |_, reply| {
            assert_eq!(reply.payload(usize::MAX, |_| Ok::<_, ()>(1000)), Ok(10));
        });
        assert_eq!(payload_len, 10);
    }

    #[test]
    fn a_payload_that_failed_is_empty() {
        let (_, _, payload_len, _) = run(PING, LaneKind::Client, |_, reply| {
            reply.payload(4, |_| Ok::<_, u8>(4)).unwrap();
            assert_eq!(reply.payload(4, |_| Err(3u8)), Err(3));
        });
        assert_eq!(payload_len, 0);
    }

    #[test]
    fn a_body_that_fits_no_frame_is_an_error() {
        let (status, body, ..) = run(PING, LaneKind::Client, |_, reply| {
            reply.body().resize(FRAME_BODY_MAX + 1, 0);
        });
        assert_eq!(status, Errno::EIO.code());
        assert!(String::from_utf8(body).unwrap().contains("too long for a frame"));
    }

    #[test]
    fn a_panic_is_an_error() {
        let (status, body, _, outcome) = run(PING, LaneKind::Client, |_, reply| {
            reply.send(&7u32);
            panic!("a bug");
        });
        assert_eq!((status, outcome), (Errno::EIO.code(), Outcome::Panicked));
        assert!(String::from_utf8(body).unwrap().contains("Ping"));
    }

    #[test]
    fn each_operation_passes_on_its_lanes_only() {
        for op in Op::ALL {
            for lane in [LaneKind::Client, LaneKind::Peer, LaneKind::Mirror] {
                let belongs = match op.lane() {
                    Lane::Both => lane != LaneKind::Mirror,
                    Lane::Client => lane == LaneKind::Client,
                    Lane::Peer => lane == LaneKind::Peer,
                    Lane::Mirror => lane == LaneKind::Mirror,
                };
                let expected = if belongs { 0 } else { Errno::EPROTO.code() };
                assert_eq!(run(*op as u16, lane, |_, _| {}).0, expected, "{} on {lane:?}", op.name());
            }
        }
        for number in [0, 0xff01, u16::MAX] {
            assert_eq!(run(number, LaneKind::Client, |_, _| {}).0, Errno::ENOSYS.code());
        }
    }
}

//! A connection of a server: frames received in part, and replies sent in part.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use bivouac_ranks::{Mutex, rank};
use bivouac_types::limits::{FRAME_HEADER_LEN, HANDSHAKE_BODY_MAX};
use bivouac_types::{ClientId, Errno as FsErrno, FsError, OpId};
use bivouac_wire::{Frame, FrameChecksum, FrameError, FrameProtection, Kind, Seal, seal_of};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::buffers::Buffer;
use super::transfer::{Incoming, Outgoing, Pooled, TransferError, receive_over, send, send_along};
use super::{Hosted, Shared};
use crate::busy_poll::BusyPoll;
use crate::handshake::{self, HandshakeStep, ServerSide};
use crate::records::Channel;
use crate::service::{Outcome, Reply, RequestOrigin, dispatch};
use crate::{Generation, HandshakeRefusal, Introduction, LaneKind};

/// Bytes of one read: small requests with their payloads take one call, and little is to be copied at the front of a
/// large payload.
const SCRATCH_LEN: usize = 16 << 10;

/// Capacity for reply bodies that a thread keeps.
const BODY_LEN_MAX: usize = 64 << 10;

/// Buffers that a thread keeps from one connection to the next.
pub(super) struct Worker {
    scratch: Box<[u8]>,
    body: Vec<u8>,
}

impl Default for Worker {
    fn default() -> Worker {
        Worker { scratch: vec![0; SCRATCH_LEN].into_boxed_slice(), body: Vec::new() }
    }
}

/// Event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    Read,
    Write,
    Close,
}

/// An accepted socket. One thread at a time works on it: the one that got its event.
pub(super) struct Connection {
    key: u64,
    socket: OwnedFd,
    /// Protection of frames, once the client has authenticated.
    way: FrameProtection,
    /// The listener's service that accepted it.
    hosted: Arc<Hosted>,
    /// The client, once it has authenticated.
    proven: OnceLock<ProvenClient>,
    busy_poll: BusyPoll,
    state: Mutex<ConnectionState>,
}

/// A client that has authenticated.
struct ProvenClient {
    client: ClientId,
    /// Generation of the client's connections on this lane to which this one belongs.
    generation: Generation,
    lane: LaneKind,
}

struct ConnectionState {
    phase: Phase,
    // Encryption, if any, once the client has authenticated.
    channel: Option<Box<Channel>>,
    // Bytes received and not handled yet; never more than one read.
    inbox: Vec<u8>,
    // True if the inbox may hold whole frames, which were kept back because a reply was under way.
    held_back: bool,
    incoming: Option<Incoming>,
    outgoing: Option<Outgoing>,
    stalled: Option<u64>,
}

enum Phase {
    Shaking(Box<ServerSide>),
    Open(ClientId),
    // The last reply is being sent, then the connection ends.
    Ending(Option<ClientId>),
}

impl Phase {
    fn client(&self) -> Option<ClientId> {
        match self {
            Phase::Shaking(_) => None,
            Phase::Open(client) => Some(*client),
            Phase::Ending(client) => *client,
        }
    }
}

/// Connection, server and lane of a step.
struct Context<'a> {
    connection: &'a Connection,
    shared: &'a Shared,
    lane: LaneKind,
}

impl Connection {
    pub fn new(key: u64, socket: OwnedFd, hosted: Arc<Hosted>, handshake: ServerSide) -> Connection {
        let way = handshake.way();
        let state = ConnectionState {
            phase: Phase::Shaking(Box::new(handshake)),
            channel: None,
            inbox: Vec::new(),
            held_back: false,
            incoming: None,
            outgoing: None,
            stalled: None,
        };
        let state = Mutex::new(rank::CONNECTION, state);
        let (proven, busy_poll) = (OnceLock::new(), BusyPoll::default());
        Connection { key, socket, way, hosted, proven, busy_poll, state }
    }

    pub fn key(&self) -> u64 {
        self.key
    }

    /// Returns true if it is a connection of this client to this service.
    pub fn is_of(&self, hosted: &Arc<Hosted>, client: ClientId) -> bool {
        Arc::ptr_eq(&self.hosted, hosted) && self.proven.get().is_some_and(|own| own.client == client)
    }

    /// Returns the lane that the client asked for, once it has authenticated.
    pub fn lane(&self) -> Option<LaneKind> {
        self.proven.get().map(|proven| proven.lane)
    }

    /// Polls for a moment. Returns true if bytes, or the end of the stream, have arrived.
    pub fn has_more(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        self.busy_poll.look(|| rustix::net::recv(&self.socket, &mut [0; 1][..], flags) != Err(Errno::AGAIN))
    }

    /// Ends the stream for both sides.
    pub fn hang_up(&self) {
        // Fails only if the connection has ended already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Does everything that can be done without waiting; calls `proven` when the client has authenticated.
    pub fn advance(
        self: &Arc<Connection>,
        shared: &Shared,
        lane: LaneKind,
        worker: &mut Worker,
        proven: impl FnOnce(),
    ) -> Interest {
        let mut state = self.state.lock();
        if let Some(number) = state.stalled.take() {
            shared.stalled.remove(number);
        }
        let was_shaking = matches!(state.phase, Phase::Shaking(_));
        let context = Context { connection: self, shared, lane };
        let next = match state.advance(&context, worker) {
            Err(TransferError::Forged) => state.refuse_forged(&context),
            next => next,
        };
        let next = next.unwrap_or(Interest::Close);
        // Before the connection is given back: a deadline that passes later must not end one that has proven itself.
        if was_shaking && matches!(state.phase, Phase::Open(_)) {
            proven();
        }
        // A large reply must not keep its memory for the life of the thread.
        worker.body.shrink_to(BODY_LEN_MAX);
        let held = state.held_bytes();
        if next != Interest::Close && held > 0 {
            // Held until the client goes on. If too much is held by all connections, those that have waited longest are
            // closed.
            state.stalled = Some(shared.stalled.add(self, held));
        }
        next
    }

    /// Releases everything that the connection held.
    pub fn end(&self, shared: &Shared) {
        let mut state = self.state.lock();
        if let Some(number) = state.stalled.take() {
            shared.stalled.remove(number);
        }
        // Buffers are released now: another thread may hold the connection until it next looks at it.
        (state.incoming, state.outgoing) = (None, None);
        let client = state.phase.client();
        state.phase = Phase::Ending(None);
        // Without the lock: the service takes locks of its own.
        drop(state);
        if let Some(client) = client {
            self.hosted.clients.disconnected(client, &*self.hosted.service);
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ConnectionState {
    fn advance(&mut self, context: &Context<'_>, worker: &mut Worker) -> Result<Interest, TransferError> {
        loop {
            // The client reads replies in the order of its requests, so nothing is served while one waits to be sent.
            // This also bounds what a client that does not read makes the server hold.
            if !self.flush(context)? {
                return Ok(Interest::Write);
            }
            if self.incoming.is_none() {
                self.read_small(context, worker)?;
            }
            // Usually more of a long frame has arrived already; waiting for its event would wake another thread.
            if self.incoming.is_some() && self.fill(context)? {
                self.serve_incoming(context, worker)?;
            }
            if self.outgoing.is_some() {
                return Ok(Interest::Write);
            }
            // The socket does not report bytes that were received and decrypted already.
            if !self.channel.as_ref().is_some_and(|channel| channel.opening.is_ready()) {
                return Ok(Interest::Read);
            }
        }
    }

    /// Sends what is left of a reply. Returns true if nothing is left.
    fn flush(&mut self, context: &Context<'_>) -> Result<bool, TransferError> {
        if let Some(outgoing) = &mut self.outgoing {
            if !outgoing.send(&context.connection.socket, self.channel.as_deref_mut())? {
                return Ok(false);
            }
            self.outgoing = None;
        }
        if matches!(self.phase, Phase::Ending(_)) { Err(TransferError::Close) } else { Ok(true) }
    }

    /// Reads the rest of a frame that did not fit one read. Returns true if it is whole.
    fn fill(&mut self, context: &Context<'_>) -> Result<bool, TransferError> {
        let Some(incoming) = &mut self.incoming else { return Ok(false) };
        match incoming.receive(&context.connection.socket, self.channel.as_deref_mut()) {
            Ok(()) => Ok(incoming.is_whole()),
            Err(TransferError::Wait) => Ok(false),
            Err(hitch) => Err(hitch),
        }
    }

    fn serve_incoming(&mut self, context: &Context<'_>, worker: &mut Worker) -> Result<(), TransferError> {
        let Some(incoming) = self.incoming.take() else { return Ok(()) };
        if !incoming.is_sound() {
            return self.refuse_damaged(context, &incoming.frame);
        }
        let payload = incoming.payload.as_deref().unwrap_or_default();
        self.serve(context, incoming.frame, &incoming.body, payload, &mut worker.body)
    }

    /// Reads what has arrived, up to [`SCRATCH_LEN`] bytes, and serves every whole frame in it.
    fn read_small(&mut self, context: &Context<'_>, worker: &mut Worker) -> Result<(), TransferError> {
        let Worker { scratch, body } = worker;
        let mut len = self.inbox.len();
        // No more than one read was ever kept; bytes that do not fit would be lost in the middle of the stream.
        assert!(len <= scratch.len(), "{len} bytes were kept of a connection");
        scratch[..len].copy_from_slice(&self.inbox);
        // Nothing more is read while frames are kept back, so that these are never more than one read.
        if !self.held_back {
            let mut parts = [IoSliceMut::new(&mut scratch[len..])];
            match receive_over(&context.connection.socket, self.channel.as_deref_mut(), &mut parts) {
                Ok(received) => len += received,
                Err(TransferError::Wait) => return Ok(()),
                Err(hitch) => return Err(hitch),
            }
        }
        let rest = self.serve_whole(context, &scratch[..len], body)?;
        self.keep(context, rest)
    }

    /// Serves the whole frames at the front of `bytes`; returns what follows them.
    fn serve_whole<'b>(
        &mut self,
        context: &Context<'_>,
        bytes: &'b [u8],
        reply: &mut Vec<u8>,
    ) -> Result<&'b [u8], TransferError> {
        let mut rest = bytes;
        while self.outgoing.is_none()
            && let Some((header, behind)) = rest.split_first_chunk::<FRAME_HEADER_LEN>()
        {
            let frame = self.header(context, header)?;
            let (body_len, payload_len) = (frame.body_len as usize, frame.payload_len as usize);
            let Some((body, behind)) = behind.split_at_checked(body_len) else { break };
            let Some((payload, behind)) = behind.split_at_checked(payload_len) else { break };
            let (mut summing, was_open) = (FrameChecksum::default(), self.channel.is_none());
            if frame.seal.protection() == FrameProtection::Sum {
                summing.add(body);
                summing.add(payload);
            }
            if summing.fits(frame.seal) {
                self.serve(context, frame, body, payload, reply)?;
            } else {
                self.refuse_damaged(context, &frame)?;
            }
            if was_open && self.channel.is_some() && !behind.is_empty() {
                // A client encrypts only after it has seen this side's answer, which it has not yet.
                return Err(TransferError::Close);
            }
            rest = behind;
        }
        Ok(rest)
    }

    /// Keeps bytes for later: as a frame under way if its header is there.
    fn keep(&mut self, context: &Context<'_>, rest: &[u8]) -> Result<(), TransferError> {
        self.held_back = self.outgoing.is_some() && !rest.is_empty();
        let header = if self.held_back { None } else { rest.split_first_chunk::<FRAME_HEADER_LEN>() };
        let Some((header, behind)) = header else {
            // One that waits holds no memory for nothing.
            self.inbox = rest.to_vec();
            return Ok(());
        };
        let frame = self.header(context, header)?;
        self.inbox = Vec::new();
        self.incoming = Some(Incoming::new(frame, behind, &context.shared.buffers));
        Ok(())
    }

    /// Reads a header; strangers are allowed little.
    fn header(
        &mut self,
        context: &Context<'_>,
        bytes: &[u8; FRAME_HEADER_LEN],
    ) -> Result<Frame, TransferError> {
        let shaking = matches!(self.phase, Phase::Shaking(_));
        let frame = match Frame::from_bytes(bytes) {
            Ok(frame) => frame,
            // A program of another release is told so, and by whom: it would report a damaged connection otherwise.
            Err(FrameError::Version(theirs)) if shaking => {
                let refusal = handshake::refusal(HandshakeRefusal::Version { theirs });
                let _ = send(&context.connection.socket, &[IoSlice::new(&refusal)]);
                return Err(TransferError::Close);
            }
            Err(_) => return Err(TransferError::Close),
        };
        // Handshakes are summed up whatever carries them.
        if !shaking && frame.seal.protection() != context.connection.way
            || shaking && frame.seal.protection() != FrameProtection::Sum
        {
            return Err(TransferError::Close);
        }
        let too_long = frame.body_len as usize > HANDSHAKE_BODY_MAX || frame.payload_len > 0;
        if frame.kind != Kind::Request || shaking && too_long { Err(TransferError::Close) } else { Ok(frame) }
    }

    /// Like [`ConnectionState::refuse_damaged`], where even the request's header is unknown.
    fn refuse_forged(&mut self, context: &Context<'_>) -> Result<Interest, TransferError> {
        (self.incoming, self.outgoing) = (None, None);
        let client = self.phase.client().unwrap_or(ClientId(0));
        // Nothing of it can be believed, not even which request it was.
        self.refuse_damaged(context, &Frame::request(0, OpId(0), client, 0))?;
        Ok(Interest::Write)
    }

    /// Tells the asker that what it sent came with other bytes, and closes: another connection may take another way.
    fn refuse_damaged(&mut self, context: &Context<'_>, frame: &Frame) -> Result<(), TransferError> {
        let (client, op) = (frame.client.0, frame.op);
        log::warn!(
            "a request of client {client} (operation {op}) was damaged on the way, and is not carried out"
        );
        // Counted by the service: a cable that damages messages shows in the metrics before it costs anybody an
        // error.
        context.connection.hosted.service.request_damaged(context.lane);
        self.phase = Phase::Ending(self.phase.client());
        let seal = if self.channel.is_some() { Seal::Record } else { seal_of(&[], []) };
        self.send(context, Outgoing::message(Frame { seal, ..frame.damaged() }.to_bytes().to_vec()))?;
        if self.outgoing.is_some() { Ok(()) } else { Err(TransferError::Close) }
    }

    fn serve(
        &mut self,
        context: &Context<'_>,
        frame: Frame,
        body: &[u8],
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), TransferError> {
        match &mut self.phase {
            Phase::Shaking(handshake) => {
                let lane = handshake.lane();
                let service = &context.connection.hosted.service;
                let admits = |introduction: &Introduction| service.admits(introduction);
                let (auth, instance) = (&context.shared.auth, context.shared.instance);
                let step = handshake.take(auth, instance, admits, &frame, body);
                self.channel = handshake.channel().map(Box::new);
                self.shake(context, lane, step)
            }
            Phase::Open(client) => {
                let client = *client;
                self.answer(context, client, frame, (body, payload), reply)
            }
            Phase::Ending(_) => Err(TransferError::Close),
        }
    }

    fn shake(
        &mut self,
        context: &Context<'_>,
        lane: LaneKind,
        step: HandshakeStep,
    ) -> Result<(), TransferError> {
        let hosted = &context.connection.hosted;
        match step {
            HandshakeStep::Reply(message) => self.send(context, Outgoing::message(message)),
            HandshakeStep::Admit(message, Introduction { client, generation, epoch, .. }) => {
                // Before the client hears of its success, so before its first request, and before it repeats any.
                let number = (epoch, generation);
                let generation = hosted.clients.connected((client, lane), number, &*hosted.service);
                let proven = context.connection.proven.set(ProvenClient { client, generation, lane });
                assert!(proven.is_ok(), "a second handshake of client {}", client.0);
                self.phase = Phase::Open(client);
                self.send(context, Outgoing::message(message))
            }
            HandshakeStep::Refuse(message) => {
                self.phase = Phase::Ending(None);
                self.send(context, Outgoing::message(message))?;
                if self.outgoing.is_some() { Ok(()) } else { Err(TransferError::Close) }
            }
            HandshakeStep::Hang => Err(TransferError::Close),
        }
    }

    fn answer(
        &mut self,
        context: &Context<'_>,
        client: ClientId,
        frame: Frame,
        (body, payload): (&[u8], &[u8]),
        reply_body: &mut Vec<u8>,
    ) -> Result<(), TransferError> {
        let Some(ProvenClient { generation, lane, .. }) = context.connection.proven.get() else {
            return Err(TransferError::Close);
        };
        let mut target = Pooled { buffers: &context.shared.buffers, buffer: None };
        let mut reply = Reply::new(reply_body, &mut target);
        // Peers pass on what they do for clients, so that only on the client lane a connection is bound to one of them.
        let outcome = if *lane == LaneKind::Client && frame.client != client {
            let text = format!("request of client {} on a connection of client {}", frame.client.0, client.0);
            reply.fail(&FsError::with(FsErrno::EPROTO, text));
            Outcome::Answered
        } else {
            let slices = [IoSlice::new(payload)];
            let slices = if payload.is_empty() { &slices[..0] } else { &slices[..] };
            let origin = RequestOrigin::over(context.connection.as_fd(), generation);
            let source = (*lane, origin);
            dispatch(&*context.connection.hosted.service, source, frame, (body, slices), &mut reply)
        };
        if reply.is_abandoned() {
            return Err(TransferError::Close);
        }
        let (status, payload_len, descriptor) =
            (reply.status(), reply.payload_len(), reply.take_descriptor());
        // Asked after the service answered, since the generation may have ended while that waited.
        if status != 0 && generation.is_superseded() {
            // It may have been refused for that alone. Whoever still waits here asks again over another connection.
            return Err(TransferError::Close);
        }
        assert!(
            descriptor.is_none() || payload_len == 0,
            "a descriptor with a payload of {payload_len} bytes"
        );
        let mut head = frame.reply(status, reply_body.len() as u32, payload_len as u32);
        let payload = target.buffer.as_deref().and_then(|buffer| buffer.get(..payload_len));
        // The header announces it: an answer with less would take the next one's bytes.
        assert!(payload_len == payload.map_or(0, <[u8]>::len), "no payload of {payload_len} bytes");
        head.seal = context.connection.way.seal(reply_body, payload);
        let header = head.to_bytes();
        if outcome == Outcome::Panicked {
            // The client stays, so that `end` tells the service that its connection is gone.
            self.phase = Phase::Ending(Some(client));
        }
        match descriptor {
            Some(descriptor) => self.send_along(context, &[&header[..], reply_body].concat(), &descriptor)?,
            None => self.send_reply(context, &header, reply_body, target.buffer, payload_len)?,
        }
        if outcome == Outcome::Panicked && self.outgoing.is_none() {
            Err(TransferError::Close)
        } else {
            Ok(())
        }
    }

    /// Sends a short answer with a descriptor. An asker that has not read its earlier answers gets no other.
    fn send_along(
        &mut self,
        context: &Context<'_>,
        bytes: &[u8],
        descriptor: &OwnedFd,
    ) -> Result<(), TransferError> {
        // These bytes are not sealed; descriptors go over Unix sockets alone, which are not encrypted.
        assert!(self.channel.is_none(), "an answer in the clear on an encrypted connection");
        match send_along(&context.connection.socket, bytes, descriptor) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            _ => Err(TransferError::Close),
        }
    }

    /// Sends an answer as far as the socket takes it; copies header and body only if it takes less.
    fn send_reply(
        &mut self,
        context: &Context<'_>,
        header: &[u8],
        body: &[u8],
        payload: Option<Buffer>,
        payload_len: usize,
    ) -> Result<(), TransferError> {
        assert!(self.outgoing.is_none(), "an answer before the one that is being sent");
        if self.channel.is_some() {
            return self
                .send(context, Outgoing { head: [header, body].concat(), payload, payload_len, done: 0 });
        }
        let bytes = payload.as_deref().and_then(|payload| payload.get(..payload_len)).unwrap_or_default();
        let parts = [IoSlice::new(header), IoSlice::new(body), IoSlice::new(bytes)];
        let done = match send(&context.connection.socket, &parts) {
            Ok(sent) => sent,
            Err(TransferError::Wait) => 0,
            Err(hitch) => return Err(hitch),
        };
        if done < header.len() + body.len() + bytes.len() {
            let payload_len = bytes.len();
            self.outgoing = Some(Outgoing { head: [header, body].concat(), payload, payload_len, done });
        }
        Ok(())
    }

    fn send(&mut self, context: &Context<'_>, mut outgoing: Outgoing) -> Result<(), TransferError> {
        assert!(self.outgoing.is_none(), "a message before the one that is being sent");
        if !outgoing.send(&context.connection.socket, self.channel.as_deref_mut())? {
            self.outgoing = Some(outgoing);
        }
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        let len = |payload: &Option<Buffer>| payload.as_deref().map_or(0, <[u8]>::len);
        let incoming = self.incoming.as_ref().map_or(0, |i| i.body.capacity() + len(&i.payload));
        let outgoing = self.outgoing.as_ref().map_or(0, |o| o.head.capacity() + len(&o.payload));
        let opening = self.channel.as_ref().map_or(0, |channel| channel.opening.held_bytes());
        incoming + outgoing + opening + self.inbox.capacity()
    }
}

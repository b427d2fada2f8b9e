//! An authenticated connection of a client, with at most one request at a time.

mod opening;

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bivouac_types::OpId;
use bivouac_types::limits::FRAME_HEADER_LEN;
use bivouac_wire::{Frame, FrameChecksum, FrameError, FrameProtection, Kind};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::busy_poll::{BusyPoll, PollAttempt};
use crate::handshake::HandshakeError;
use crate::records::{Channel, Forged, RecordReadError, Sealing};
use crate::{Address, Damage, HandshakeRefusal, Identity, NetError, ReplyHead, Request, hook, slices};

/// Bytes that the first read of a reply without payload takes.
const FIRST_READ_LEN: usize = 4096;
/// Most buffers that the kernel takes in one call (`IOV_MAX`).
const SLICES_MAX: usize = 1024;
/// Bytes of a payload that are received before they are added to the checksum.
const SUM_LEN: usize = 256 << 10;

pub(crate) use self::opening::{Opened, Opening};

/// Way of waiting for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveMode {
    /// For the first bytes of a reply, with busy polling: they may arrive at any moment.
    BusyPolling,
    /// For all of the rest, which is under way.
    Whole,
    /// For a part of the rest.
    Some,
}

/// A connected socket whose peer is a server of the same formation.
pub(crate) struct Connection {
    /// Shared with threads that may shut it down.
    socket: Arc<OwnedFd>,
    address: Address,
    wait: Duration,
    instance: u64,
    generation: u64,
    is_proven: bool,
    /// Protection of frames, once the server has authenticated.
    way: FrameProtection,
    /// Encryption of frames, if there is any. One thread at a time works on a connection.
    channel: Option<Box<Mutex<Channel>>>,
    busy_poll: BusyPoll,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    /// Connects and authenticates, each within `wait`. `generation` is 0 for a connection that belongs to none.
    pub fn open(
        address: &Address,
        identity: &Identity,
        generation: u64,
        wait: Duration,
    ) -> Result<Connection, NetError> {
        Opening::begin(address, identity, None, generation, wait)?.complete(|_| ())
    }

    /// Returns a number that differs between runs of the server.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// Returns the number of its generation; see [`crate::Generation`].
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the socket, for uses other than requests.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Returns the time limit of each step without progress.
    pub fn patience(&self) -> Duration {
        self.wait
    }

    /// Sets the time limit of each later step without progress.
    pub fn set_wait(&mut self, wait: Duration) -> Result<(), NetError> {
        // To the kernel, zero means no limit.
        let wait = wait.max(Duration::from_millis(1));
        if wait == self.wait {
            return Ok(());
        }
        for id in [Timeout::Recv, Timeout::Send] {
            sockopt::set_socket_timeout(&self.socket, id, Some(wait))
                .map_err(|cause| NetError::System { what: "set a socket's timeout", cause: cause.into() })?;
        }
        self.wait = wait;
        Ok(())
    }

    /// Sends header, body and payload.
    pub fn send(&self, request: &Request<'_>) -> Result<(), NetError> {
        let header = self.header(request);
        let mut parts = Vec::with_capacity(request.payload.len() + 2);
        parts.extend([IoSlice::new(&header), IoSlice::new(request.body)]);
        parts.extend_from_slice(request.payload);
        let sent = match &self.channel {
            Some(channel) => self.send_records(&mut channel.lock().sealing, &mut parts),
            None => self.send_all(&mut parts),
        };
        sent.map_err(|error| self.last_word(request, error))
    }

    /// Returns the error of a connection that ended while a request was sent: the server's own reason, if a record did
    /// not open there.
    pub fn last_word(&self, request: &Request<'_>, error: NetError) -> NetError {
        let (mut header, mut have) = ([0; FRAME_HEADER_LEN], 0);
        // Only an encrypted connection is ended by the server for a damaged request before all of it has come:
        // elsewhere the seal is compared at the end.
        while self.channel.is_some() && have < FRAME_HEADER_LEN {
            match self.receive_now(&mut [IoSliceMut::new(&mut header[have..])]) {
                Ok(Some(came)) => have += came,
                Ok(None) | Err(_) => return error,
            }
        }
        match Frame::from_bytes(&header).map(|frame| self.check_reply(request, &frame, 0)) {
            Ok(Err(told @ NetError::Damaged { .. })) => told,
            _ => error,
        }
    }

    /// Sends all parts, each record as soon as it is sealed, so that the peer opens it meanwhile.
    fn send_records(&self, sealing: &mut Sealing, parts: &mut [IoSlice<'_>]) -> Result<(), NetError> {
        let mut rest = parts;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let taken = sealing.take(rest).map_err(|Forged| self.no_record())?;
            IoSlice::advance_slices(&mut rest, taken);
            while !sealing.pending().is_empty() {
                let sent = self.send_some(&[IoSlice::new(sealing.pending())])?;
                sealing.sent(sent);
            }
        }
        Ok(())
    }

    /// Returns the header of a request for this connection.
    pub fn header(&self, request: &Request<'_>) -> [u8; FRAME_HEADER_LEN] {
        assert!(
            request.body.len() == request.frame.body_len as usize,
            "a body of {} bytes",
            request.body.len()
        );
        let seal = self.way.seal(request.body, request.payload.iter().map(|part| &**part));
        Frame { seal, ..request.frame }.to_bytes()
    }

    fn send_all(&self, parts: &mut [IoSlice<'_>]) -> Result<(), NetError> {
        let mut rest = parts;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let sent = self.send_some(rest)?;
            IoSlice::advance_slices(&mut rest, sent);
        }
        Ok(())
    }

    fn send_some(&self, parts: &[IoSlice<'_>]) -> Result<usize, NetError> {
        let parts = parts.get(..SLICES_MAX).unwrap_or(parts);
        self.patiently(|wait| {
            let flags = if wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
            rustix::net::sendmsg(&self.socket, parts, &mut SendAncillaryBuffer::default(), flags)
        })
    }

    /// Sends what fits without waiting; `None` if nothing does. Encrypted bytes may be accepted before they are sent:
    /// see [`Connection::flush_now`].
    pub fn send_now(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, NetError> {
        let Some(channel) = &self.channel else { return self.send_bytes_now(parts) };
        let sealing = &mut channel.lock().sealing;
        // A record that is sealed has its number: nothing may be sealed behind it before it is gone.
        if !self.flush_records(sealing)? {
            return Ok(None);
        }
        let taken = sealing.take(parts).map_err(|Forged| self.no_record())?;
        self.flush_records(sealing)?;
        Ok(Some(taken))
    }

    /// Sends what was accepted and not sent, as far as that goes without waiting. Returns true if all of it is sent.
    pub fn flush_now(&self) -> Result<bool, NetError> {
        self.channel.as_ref().map_or(Ok(true), |channel| self.flush_records(&mut channel.lock().sealing))
    }

    fn flush_records(&self, sealing: &mut Sealing) -> Result<bool, NetError> {
        while !sealing.pending().is_empty() {
            match self.send_bytes_now(&[IoSlice::new(sealing.pending())])? {
                Some(sent) => sealing.sent(sent),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn send_bytes_now(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, NetError> {
        let (parts, flags) =
            (parts.get(..SLICES_MAX).unwrap_or(parts), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        self.now(|| rustix::net::sendmsg(&self.socket, parts, &mut SendAncillaryBuffer::default(), flags))
    }

    /// Reads what has arrived; `None` if nothing has.
    pub fn receive_now(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, NetError> {
        let Some(channel) = &self.channel else { return self.receive_bytes_now(parts) };
        let read = channel.lock().opening.read(parts, |into| {
            // "Nothing there" is not an error of the connection, but has to end the reading.
            self.receive_bytes_now(&mut [IoSliceMut::new(into)]).map_err(Some)?.ok_or(None)
        });
        match read {
            Ok(len) => Ok(Some(len)),
            Err(RecordReadError::Link(None)) => Ok(None),
            Err(RecordReadError::Link(Some(error))) => Err(error),
            Err(RecordReadError::Forged) => Err(self.damaged(Damage::Answer)),
        }
    }

    /// Returns true if decrypted bytes are left, which the socket does not report.
    pub fn holds_more(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.lock().opening.is_ready())
    }

    fn receive_bytes_now(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, NetError> {
        let count = parts.len().min(SLICES_MAX);
        let received = self.now(|| {
            let mut control = RecvAncillaryBuffer::default();
            rustix::net::recvmsg(&self.socket, &mut parts[..count], &mut control, RecvFlags::DONTWAIT)
        })?;
        match received {
            Some(message) if message.bytes == 0 => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            received => Ok(received.map(|message| message.bytes)),
        }
    }

    fn now<T>(&self, mut step: impl FnMut() -> rustix::io::Result<T>) -> Result<Option<T>, NetError> {
        loop {
            match step() {
                Ok(outcome) => return Ok(Some(outcome)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(cause) => return Err(self.lost(cause.into())),
            }
        }
    }

    /// Reads the reply to `request`.
    pub fn receive(
        &self,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        // With buffers for a payload it is received in place, at the price of moving the body out of the way; without,
        // one call reads header and body into a small buffer.
        let room = slices::total_mut(into);
        let (frame, early) =
            if room == 0 { self.receive_front(body)? } else { self.receive_scattered(into)? };
        self.check_reply(request, &frame, room)?;
        let early = if room == 0 { 0 } else { claim_body(&frame, early, body, into) };
        let (body_len, payload_len) = (frame.body_len as usize, frame.payload_len as usize);
        // One request at a time is under way, so bytes behind its reply belong to nothing.
        if early > payload_len || body.len() > body_len {
            return Err(self.alien("more bytes than its header announces"));
        }
        self.receive_rest(body, body_len)?;
        let mut summing = FrameChecksum::default();
        if self.way != FrameProtection::Sum {
            self.receive_payload(into, early..payload_len)?;
        } else {
            summing.add(body);
            self.receive_summed(into, early..payload_len, &mut summing)?;
        }
        self.check_seal(&frame, &summing)?;
        Ok(ReplyHead { status: frame.status, payload_len })
    }

    /// Checks that what came behind a header is what was sent.
    pub fn check_seal(&self, frame: &Frame, summing: &FrameChecksum) -> Result<(), NetError> {
        if frame.seal.protection() != self.way {
            return Err(self.alien("an answer that is not protected as agreed"));
        }
        if summing.fits(frame.seal) { Ok(()) } else { Err(self.damaged(Damage::Answer)) }
    }

    /// Checks that this is a reply to `request` that fits the buffers.
    pub fn check_reply(&self, request: &Request<'_>, frame: &Frame, room: usize) -> Result<(), NetError> {
        // One request at a time is under way, so a reply to another one means that the stream is out of step.
        let is_ours = frame.id == request.frame.id && frame.op == request.frame.op;
        // A record that does not open hides the id of its request.
        let is_nameless = self.way == FrameProtection::Record && (frame.op, frame.id) == (0, OpId(0));
        if (is_ours || is_nameless) && frame.kind == Kind::Damaged {
            return Err(self.damaged(Damage::Request));
        }
        if frame.kind != Kind::Reply || !is_ours {
            return Err(self.alien("an answer to another question"));
        }
        if frame.payload_len as usize > room {
            return Err(self.alien("a payload that is longer than asked for"));
        }
        Ok(())
    }

    /// Reads a header with what has arrived behind it, which can only be the front of the body.
    fn receive_front(&self, body: &mut Vec<u8>) -> Result<(Frame, usize), NetError> {
        let mut buffer = [0u8; FIRST_READ_LEN];
        let mut have = 0;
        while have < FRAME_HEADER_LEN {
            have +=
                self.receive_some(&mut [IoSliceMut::new(&mut buffer[have..])], ReceiveMode::BusyPolling)?;
        }
        let frame = self.decode(buffer.first_chunk())?;
        body.clear();
        body.extend_from_slice(&buffer[FRAME_HEADER_LEN..have]);
        Ok((frame, 0))
    }

    /// Reads a header, and what has arrived behind it into the front of `into`.
    fn receive_scattered(&self, into: &mut [IoSliceMut<'_>]) -> Result<(Frame, usize), NetError> {
        let mut header = [0u8; FRAME_HEADER_LEN];
        let mut have = 0;
        while have < FRAME_HEADER_LEN {
            let mut parts = Vec::with_capacity(into.len() + 1);
            parts.push(IoSliceMut::new(&mut header[have..]));
            parts.extend(into.iter_mut().map(|slice| IoSliceMut::new(slice)));
            have += self.receive_some(&mut parts, ReceiveMode::BusyPolling)?;
        }
        Ok((self.decode(Some(&header))?, have - FRAME_HEADER_LEN))
    }

    fn receive_rest(&self, body: &mut Vec<u8>, len: usize) -> Result<(), NetError> {
        let mut have = body.len();
        body.resize(len, 0);
        while have < len {
            have += self.receive_some(&mut [IoSliceMut::new(&mut body[have..])], ReceiveMode::Whole)?;
        }
        Ok(())
    }

    fn receive_payload(&self, into: &mut [IoSliceMut<'_>], wanted: Range<usize>) -> Result<(), NetError> {
        let mut have = wanted.start;
        while have < wanted.end {
            let mut parts = slices::window_mut(into, have, wanted.end - have);
            have += self.receive_some(&mut parts, ReceiveMode::Whole)?;
        }
        Ok(())
    }

    /// Like `receive_payload`, and adds `into` from its beginning to the checksum: in pieces, while they are in the
    /// processor's cache and the next ones are under way.
    fn receive_summed(
        &self,
        into: &mut [IoSliceMut<'_>],
        wanted: Range<usize>,
        summing: &mut FrameChecksum,
    ) -> Result<(), NetError> {
        let (mut have, len) = (0, wanted.end);
        while have < len {
            let end = len.min(have + SUM_LEN);
            // Bytes that came with the header are there already, and are summed with the rest of their piece.
            self.receive_payload(into, wanted.start.clamp(have, end)..end)?;
            slices::window_mut(into, have, end - have).iter().for_each(|part| summing.add(part));
            have = end;
        }
        Ok(())
    }

    fn receive_some(&self, parts: &mut [IoSliceMut<'_>], mode: ReceiveMode) -> Result<usize, NetError> {
        let Some(channel) = &self.channel else { return self.receive_bytes(parts, mode) };
        let receive = |into: &mut [u8]| {
            // A record has its own length: waiting for all that the caller wants would wait for records that were not
            // requested.
            let mode = if mode == ReceiveMode::Whole { ReceiveMode::Some } else { mode };
            self.receive_bytes(&mut [IoSliceMut::new(into)], mode)
        };
        channel.lock().opening.read(parts, receive).map_err(|error| match error {
            RecordReadError::Forged => self.damaged(Damage::Answer),
            RecordReadError::Link(error) => error,
        })
    }

    fn receive_bytes(&self, parts: &mut [IoSliceMut<'_>], mode: ReceiveMode) -> Result<usize, NetError> {
        let count = parts.len().min(SLICES_MAX);
        let flags = if mode == ReceiveMode::Whole { RecvFlags::WAITALL } else { RecvFlags::empty() };
        let step = |wait| {
            let flags = if wait { flags } else { flags | RecvFlags::DONTWAIT };
            let mut control = RecvAncillaryBuffer::default();
            rustix::net::recvmsg(&self.socket, &mut parts[..count], &mut control, flags)
        };
        let len =
            if mode == ReceiveMode::BusyPolling { self.busy_polling(step)? } else { self.patiently(step)? };
        if len.bytes == 0 { Err(self.lost(io::ErrorKind::UnexpectedEof.into())) } else { Ok(len.bytes) }
    }

    /// Makes a call that may wait, after the thread's hook if it really has to wait.
    fn patiently<T>(&self, step: impl FnMut(bool) -> rustix::io::Result<T>) -> Result<T, NetError> {
        self.watchfully(if hook::is_set() { Some(PollAttempt::default()) } else { None }, step)
    }

    /// Like [`Connection::patiently`], with busy polling first.
    fn busy_polling<T>(&self, step: impl FnMut(bool) -> rustix::io::Result<T>) -> Result<T, NetError> {
        self.watchfully(Some(self.busy_poll.begin()), step)
    }

    fn watchfully<T>(
        &self,
        mut watching: Option<PollAttempt>,
        mut step: impl FnMut(bool) -> rustix::io::Result<T>,
    ) -> Result<T, NetError> {
        loop {
            match step(watching.is_none()) {
                Ok(outcome) => {
                    watching.iter().for_each(|watching| self.busy_poll.saw(watching, true));
                    return Ok(outcome);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if watching.as_mut().is_some_and(PollAttempt::goes_on) => {}
                // Nothing came while polling: the next step waits in the kernel, and `EAGAIN` from that is its timeout.
                Err(Errno::AGAIN) => {
                    let Some(looked) = watching.take() else { return Err(self.timed_out()) };
                    self.busy_poll.saw(&looked, false);
                    hook::run();
                }
                Err(cause) => return Err(self.lost(cause.into())),
            }
        }
    }

    /// Decodes a header.
    pub fn decode(&self, header: Option<&[u8; FRAME_HEADER_LEN]>) -> Result<Frame, NetError> {
        let decoded = header.map_or(Err(FrameError::Magic), Frame::from_bytes);
        decoded.map_err(|error| match error {
            FrameError::Version(theirs) => self.refused(HandshakeRefusal::Version { theirs }),
            FrameError::Checksum => self.damaged(Damage::Answer),
            // An authenticated server sends nothing but frames. Before, it may be any server.
            FrameError::Magic if self.is_proven && self.address.is_sealed() => self.damaged(Damage::Answer),
            error => NetError::Protocol { address: self.address.clone(), what: error.to_string() },
        })
    }

    fn lost(&self, cause: io::Error) -> NetError {
        NetError::Lost { address: self.address.clone(), cause }
    }

    fn damaged(&self, what: Damage) -> NetError {
        NetError::Damaged { address: self.address.clone(), what, times: 1 }
    }

    /// Returns the error for a server that was silent for too long.
    pub fn timed_out(&self) -> NetError {
        let waited_ms = u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX);
        NetError::TimedOut { address: self.address.clone(), waited_ms }
    }

    /// Returns the error for a library that refuses to encrypt, for which there is no known reason.
    fn no_record(&self) -> NetError {
        NetError::System { what: "encrypt a message", cause: io::ErrorKind::Other.into() }
    }

    fn alien(&self, what: &str) -> NetError {
        NetError::Protocol { address: self.address.clone(), what: format!("it sent {what}") }
    }

    fn refused(&self, reason: HandshakeRefusal) -> NetError {
        NetError::Refused { address: self.address.clone(), reason }
    }

    fn untrusted(&self, error: &HandshakeError) -> NetError {
        match error {
            HandshakeError::Refused(reason) => self.refused(*reason),
            HandshakeError::Alien(what) => self.alien(what),
        }
    }
}

/// Turns an error of the handshake into one that says that no request was carried out.
fn unsent(error: NetError) -> NetError {
    match error {
        NetError::Lost { address, cause } => NetError::Connect { address, cause },
        NetError::Damaged { address, times, .. } => {
            NetError::Damaged { address, what: Damage::Request, times }
        }
        error => error,
    }
}

/// Moves the front of what arrived early from `into` to the body; returns how many bytes of the payload are there.
fn claim_body(frame: &Frame, early: usize, body: &mut Vec<u8>, into: &mut [IoSliceMut<'_>]) -> usize {
    body.clear();
    // Without a body all bytes are where they belong already.
    if frame.body_len == 0 {
        return early;
    }
    let mut bytes = Vec::with_capacity(early);
    slices::window_mut(into, 0, early).iter().for_each(|slice| bytes.extend_from_slice(slice));
    assert!(bytes.len() == early, "{} of {early} bytes came into the caller's buffers", bytes.len());
    let (front, rest) = bytes.split_at(early.min(frame.body_len as usize));
    body.extend_from_slice(front);
    let mut rest_left = rest;
    for slice in slices::window_mut(into, 0, rest.len()).iter_mut() {
        let (now, later) = rest_left.split_at(slice.len());
        slice.copy_from_slice(now);
        rest_left = later;
    }
    rest.len()
}

//! Bytes between a socket that never waits and a connection: frames that come in pieces, answers that go in
//! pieces.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bivouac_wire::{Frame, FrameChecksum, FrameProtection};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::buffers::{Buffer, Buffers};
use crate::records::{Channel, Forged, RecordReadError, Sealing};
use crate::service::PayloadTarget;

/// Reason why a transfer over a connection stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferError {
    /// The socket is not ready; it goes on after the next event.
    Wait,
    /// The connection is broken, or is to be closed.
    Close,
    /// A record is not the one that the other side sent next.
    Forged,
}

/// Reads what is there.
pub(super) fn receive(socket: &OwnedFd, parts: &mut [IoSliceMut<'_>]) -> Result<usize, TransferError> {
    loop {
        let mut control = RecvAncillaryBuffer::default();
        match rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::DONTWAIT) {
            Ok(message) if message.bytes > 0 => return Ok(message.bytes),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(TransferError::Wait),
            _ => return Err(TransferError::Close),
        }
    }
}

/// Reads what is there, and opens it where the connection is encrypted.
pub(super) fn receive_over(
    socket: &OwnedFd,
    channel: Option<&mut Channel>,
    parts: &mut [IoSliceMut<'_>],
) -> Result<usize, TransferError> {
    let Some(channel) = channel else { return receive(socket, parts) };
    let read = channel.opening.read(parts, |into| receive(socket, &mut [IoSliceMut::new(into)]));
    read.map_err(|error| match error {
        RecordReadError::Forged => TransferError::Forged,
        RecordReadError::Link(hitch) => hitch,
    })
}

/// Writes as much as fits.
pub(super) fn send(socket: &OwnedFd, parts: &[IoSlice<'_>]) -> Result<usize, TransferError> {
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
            Ok(sent) => return Ok(sent),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(TransferError::Wait),
            Err(_) => return Err(TransferError::Close),
        }
    }
}

/// Writes bytes with a descriptor.
pub(super) fn send_along(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptor: &OwnedFd,
) -> Result<usize, TransferError> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights = [descriptor.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&rights));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(sent) => return Ok(sent),
            Err(Errno::INTR) => {}
            Err(_) => return Err(TransferError::Close),
        }
    }
}

/// A frame whose header has come.
pub(super) struct Incoming {
    pub frame: Frame,
    pub body: Vec<u8>,
    pub payload: Option<Buffer>,
    have: usize,
    summing: FrameChecksum,
}

/// An answer that the socket did not take at once.
pub(super) struct Outgoing {
    pub head: Vec<u8>,
    pub payload: Option<Buffer>,
    pub payload_len: usize,
    pub done: usize,
}

impl Incoming {
    /// Creates a request that is being received; `front` is what came with the header.
    pub fn new(frame: Frame, front: &[u8], buffers: &Arc<Buffers>) -> Incoming {
        let (body_len, payload_len) = (frame.body_len as usize, frame.payload_len as usize);
        let (body_front, payload_front) = front.split_at(front.len().min(body_len));
        let mut body = body_front.to_vec();
        body.resize(body_len, 0);
        let payload = (payload_len > 0).then(|| {
            let mut payload = buffers.take(payload_len);
            if let Some(front) = payload.get_mut(..payload_front.len()) {
                front.copy_from_slice(payload_front);
            }
            payload
        });
        let mut incoming = Incoming { frame, body, payload, have: 0, summing: FrameChecksum::default() };
        incoming.add(front.len());
        incoming
    }

    /// Notes that so many bytes more have come, and sums them up while they are near.
    fn add(&mut self, came: usize) {
        let (from, end) = (self.have, self.have + came);
        self.have = end;
        // Bytes of the next frame would be taken for this one's.
        assert!(end <= self.len(), "{end} bytes of a frame of {}", self.len());
        if self.frame.seal.protection() != FrameProtection::Sum {
            return;
        }
        let (body_len, payload) = (self.body.len(), self.payload.as_deref().unwrap_or_default());
        self.summing.add(self.body.get(from.min(body_len)..end.min(body_len)).unwrap_or_default());
        let (from, end) = (from.saturating_sub(body_len), end.saturating_sub(body_len));
        self.summing.add(payload.get(from..end).unwrap_or_default());
    }

    /// Returns whether body and payload, once they are whole, are what was sent.
    pub fn is_sound(&self) -> bool {
        self.summing.fits(self.frame.seal)
    }

    /// Returns whether all of it has come.
    pub fn is_whole(&self) -> bool {
        self.have >= self.len()
    }

    /// Returns the number of bytes of body and payload.
    fn len(&self) -> usize {
        self.body.len() + self.payload.as_deref().map_or(0, <[u8]>::len)
    }

    /// Reads until it is whole or nothing more is there.
    pub fn receive(
        &mut self,
        socket: &OwnedFd,
        mut channel: Option<&mut Channel>,
    ) -> Result<(), TransferError> {
        while !self.is_whole() {
            let (body_len, payload) = (self.body.len(), self.payload.as_deref_mut().unwrap_or_default());
            let body = self.body.get_mut(self.have..).unwrap_or_default();
            let payload = payload.get_mut(self.have.saturating_sub(body_len)..).unwrap_or_default();
            let mut parts = [IoSliceMut::new(body), IoSliceMut::new(payload)];
            let came = receive_over(socket, channel.as_deref_mut(), &mut parts)?;
            self.add(came);
        }
        Ok(())
    }
}

impl Outgoing {
    /// Returns an answer without payload.
    pub fn message(head: Vec<u8>) -> Outgoing {
        Outgoing { head, payload: None, payload_len: 0, done: 0 }
    }

    /// Sends until all is gone (true) or the socket takes no more.
    pub fn send(
        &mut self,
        socket: &OwnedFd,
        mut channel: Option<&mut Channel>,
    ) -> Result<bool, TransferError> {
        let payload = self.payload.as_deref().and_then(|payload| payload.get(..self.payload_len));
        let payload = payload.unwrap_or_default();
        while self.done < self.head.len() + payload.len() {
            let head = self.head.get(self.done..).unwrap_or_default();
            let tail = payload.get(self.done.saturating_sub(self.head.len())..).unwrap_or_default();
            let parts = [IoSlice::new(head), IoSlice::new(tail)];
            let sent = match &mut channel {
                None => send(socket, &parts),
                // One record at a time: what is sealed has a number, and nothing may be sent before it.
                Some(channel) => match flush(socket, &mut channel.sealing)? {
                    true => channel.sealing.take(&parts).map_err(|Forged| TransferError::Close),
                    false => Err(TransferError::Wait),
                },
            };
            match sent {
                Ok(sent) => self.done += sent,
                Err(TransferError::Wait) => return Ok(false),
                Err(hitch) => return Err(hitch),
            }
            assert!(
                self.done <= self.head.len() + payload.len(),
                "{} bytes of an answer are sent",
                self.done
            );
        }
        channel.map_or(Ok(true), |channel| flush(socket, &mut channel.sealing))
    }
}

/// Sends what is sealed until all is gone (true) or the socket takes no more.
fn flush(socket: &OwnedFd, sealing: &mut Sealing) -> Result<bool, TransferError> {
    while !sealing.pending().is_empty() {
        match send(socket, &[IoSlice::new(sealing.pending())]) {
            Ok(sent) => sealing.sent(sent),
            Err(TransferError::Wait) => return Ok(false),
            Err(hitch) => return Err(hitch),
        }
    }
    Ok(true)
}

/// Puts a reply's payload into a pooled buffer.
pub(super) struct Pooled<'a> {
    pub buffers: &'a Arc<Buffers>,
    pub buffer: Option<Buffer>,
}

impl PayloadTarget for Pooled<'_> {
    fn with(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [IoSliceMut<'_>])) {
        let mut buffer = self.buffers.take(max_len);
        fill(&mut [IoSliceMut::new(&mut buffer)]);
        self.buffer = Some(buffer);
    }
}

//! Questions whose answers bring a descriptor: one connection over a Unix socket, used by one thread at a time.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bivouac_types::limits::FRAME_HEADER_LEN;
use bivouac_types::{ClientId, FsResult, OpId};
use bivouac_wire::{Encode, Frame, Kind, Operation};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::busy_poll::BusyPoll;
use crate::call::decode;
use crate::connection::Connection;
use crate::keep::kept;
use crate::{Address, Identity, NetError, ReplyHead, Request};

/// Room for answers at first, in bytes: descriptors come with short ones.
const ROOM: usize = FRAME_HEADER_LEN + 1024;

/// A proven connection to a node of this machine, of no [`crate::Generation`]: what is asked over it ends with it.
/// After an error it is not to be used any more.
pub struct Line {
    connection: Connection,
    address: Address,
    client: ClientId,
    /// Of the last answer.
    buffer: Vec<u8>,
    busy_poll: BusyPoll,
}

impl Line {
    /// Connects within `wait`, and waits as long for each answer.
    ///
    /// # Errors
    /// When nobody answers there, or somebody else.
    pub fn open(address: &Address, identity: &Identity, wait: Duration) -> Result<Line, NetError> {
        let connection = Connection::open(address, identity, 0, wait)?;
        let (address, client, buffer) = (address.clone(), identity.client, vec![0; ROOM]);
        Ok(Line { connection, address, client, buffer, busy_poll: BusyPoll::default() })
    }

    /// Asks; returns the answer and the descriptor that came with it.
    ///
    /// # Errors
    /// The errno and explanation that the other side sent; `EIO` when no valid answer came.
    pub fn ask<O: Operation>(&mut self, request: &O::Request<'_>) -> FsResult<(O::Reply, Option<OwnedFd>)> {
        let body = request.to_bytes();
        let request = Request::new(Frame::request(O::OP as u16, OpId(0), self.client, 0), &body, &[]);
        self.connection.send(&request)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let (frame, descriptor) = self.receive(&request, &mut buffer)?;
        let body = buffer.get(FRAME_HEADER_LEN..FRAME_HEADER_LEN + frame.body_len as usize);
        let head = ReplyHead { status: frame.status, payload_len: 0 };
        let reply = decode::<O>(head, body.unwrap_or_default());
        self.buffer = buffer;
        Ok((reply?.0, descriptor))
    }

    /// Returns the answer's header; its body is behind that in the buffer.
    fn receive(
        &self,
        request: &Request<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<(Frame, Option<OwnedFd>), NetError> {
        let (mut have, mut descriptor) = (0, None);
        self.busy_poll.look(|| self.has_input());
        loop {
            let (len, came) = self.receive_some(buffer.get_mut(have..).unwrap_or_default())?;
            have += len;
            // The kernel gives it with the first bytes that it was sent with, which need not be all of the answer.
            descriptor = descriptor.or(came);
            let Some((header, _)) = buffer.get(..have).and_then(<[u8]>::split_first_chunk) else {
                continue;
            };
            let frame = Frame::from_bytes(header).map_err(|error| self.alien(&error.to_string()))?;
            let expected =
                frame.kind == Kind::Reply && frame.op == request.frame.op && frame.payload_len == 0;
            if !expected {
                return Err(self.alien("an answer to another question"));
            }
            // The header was refused if this were beyond all bounds.
            let len = FRAME_HEADER_LEN + frame.body_len as usize;
            if have >= len {
                return Ok((frame, descriptor));
            }
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
        }
    }

    fn has_input(&self) -> bool {
        let mut socket = [PollFd::new(self.connection.socket(), PollFlags::IN)];
        poll(&mut socket, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn receive_some(&self, into: &mut [u8]) -> Result<(usize, Option<OwnedFd>), NetError> {
        let lost = |cause| NetError::Lost { address: self.address.clone(), cause };
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(into)];
            match recvmsg(self.connection.socket(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) if received.bytes > 0 => {
                    let rights = control.drain().find_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
                        _ => None,
                    });
                    return Ok((received.bytes, rights.map(kept)));
                }
                Ok(_) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                Err(Errno::INTR) => {}
                // The socket blocks: this is its timeout.
                Err(Errno::AGAIN) => return Err(self.connection.timed_out()),
                Err(cause) => return Err(lost(cause.into())),
            }
        }
    }

    fn alien(&self, what: &str) -> NetError {
        NetError::Protocol { address: self.address.clone(), what: format!("it sent {what}") }
    }
}

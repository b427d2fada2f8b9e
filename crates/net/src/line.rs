//! Questions whose answers bring a descriptor: one connection over a Unix socket, used by one thread at a time.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bivouac_types::limits::FRAME_HEADER_LEN;
use bivouac_types::{ClientId, FsResult, OpId};
use bivouac_wire::{Encode, Frame, Kind, Operation};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::call::decode;
use crate::connection::Connection;
use crate::keep::kept;
use crate::{Address, Identity, NetError, ReplyHead, Request};

/// Longest answer, in bytes: descriptors come with short ones.
const ANSWER_LEN_MAX: usize = 1024;

/// A proven connection to a node of this machine. After an error it is not to be used any more.
pub struct Line {
    connection: Connection,
    address: Address,
    client: ClientId,
}

impl Line {
    /// Connects within `wait`, and waits as long for each answer.
    ///
    /// # Errors
    /// When nobody answers there, or somebody else.
    pub fn open(address: &Address, identity: &Identity, wait: Duration) -> Result<Line, NetError> {
        let connection = Connection::open(address, identity, wait)?;
        Ok(Line { connection, address: address.clone(), client: identity.client })
    }

    /// Asks; returns the answer and the descriptor that came with it.
    ///
    /// # Errors
    /// The errno and explanation that the other side sent; `EIO` when no valid answer came.
    pub fn ask<O: Operation>(&self, request: &O::Request<'_>) -> FsResult<(O::Reply, Option<OwnedFd>)> {
        let body = request.to_bytes();
        let request = Request::new(Frame::request(O::OP as u16, OpId(0), self.client, 0), &body, &[]);
        self.connection.send(&request)?;
        let (frame, body, descriptor) = self.receive(&request)?;
        let (reply, _) = decode::<O>(ReplyHead { status: frame.status, payload_len: 0 }, &body)?;
        Ok((reply, descriptor))
    }

    fn receive(&self, request: &Request<'_>) -> Result<(Frame, Vec<u8>, Option<OwnedFd>), NetError> {
        let (mut buffer, mut have, mut descriptor) = ([0; FRAME_HEADER_LEN + ANSWER_LEN_MAX], 0, None);
        loop {
            let (len, came) = self.receive_some(buffer.get_mut(have..).unwrap_or_default())?;
            have += len;
            descriptor = descriptor.or(came);
            let Some((header, behind)) = buffer.get(..have).and_then(<[u8]>::split_first_chunk) else {
                continue;
            };
            let frame = Frame::from_bytes(header).map_err(|error| self.alien(&error.to_string()))?;
            let expected =
                frame.kind == Kind::Reply && frame.op == request.frame.op && frame.payload_len == 0;
            if !expected || frame.body_len as usize > ANSWER_LEN_MAX {
                return Err(self.alien("an answer to another question"));
            }
            match behind.get(..frame.body_len as usize) {
                Some(body) => return Ok((frame, body.to_vec(), descriptor)),
                None => continue,
            }
        }
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
                Err(cause) => return Err(lost(cause.into())),
            }
        }
    }

    fn alien(&self, what: &str) -> NetError {
        NetError::Protocol { address: self.address.clone(), what: format!("it sent {what}") }
    }
}

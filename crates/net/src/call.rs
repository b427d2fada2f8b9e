//! Operations instead of bytes.

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

use bivouac_types::{Errno, FsError, FsResult};
use bivouac_wire::{Decode, Encode, Frame, Operation};

use crate::{PendingReply, ReplyHead, Request, Transport, Wait};

/// Asks `transport` to carry out an operation whose reply has no payload. `frame` says who asks; its
/// operation and lengths are set here.
///
/// # Errors
/// The errno and explanation that the other side sent; `EIO` when no valid answer came.
pub fn call<O: Operation>(
    transport: &dyn Transport,
    frame: Frame,
    request: &O::Request<'_>,
    payload: &[IoSlice<'_>],
) -> FsResult<O::Reply> {
    call_into::<O>(transport, frame, request, payload, &mut []).map(|(reply, _)| reply)
}

/// Like [`call`], with buffers for the reply's payload; also returns how many bytes of them were filled.
///
/// # Errors
/// As [`call`].
pub fn call_into<O: Operation>(
    transport: &dyn Transport,
    frame: Frame,
    request: &O::Request<'_>,
    payload: &[IoSlice<'_>],
    into: &mut [IoSliceMut<'_>],
) -> FsResult<(O::Reply, usize)> {
    start::<O>(transport, frame, request, payload).finish(into)
}

/// Starts an operation; [`StartedCall::finish`] waits for its answer. Start on several transports, then finish
/// all: the requests are under way together.
pub fn start<'a, O: Operation>(
    transport: &'a dyn Transport,
    frame: Frame,
    request: &O::Request<'_>,
    payload: &'a [IoSlice<'a>],
) -> StartedCall<'a, O> {
    start_by(|request| transport.start(request), frame, request, payload)
}

/// Like [`start`], without waiting for the other side to take a payload: [`StartedCall::advance`] carries on. Begin on
/// several transports, then advance those that [`crate::await_any`] names.
pub fn begin<'a, O: Operation>(
    transport: &'a dyn Transport,
    frame: Frame,
    request: &O::Request<'_>,
    payload: &'a [IoSlice<'a>],
) -> StartedCall<'a, O> {
    start_by(|request| transport.begin(request), frame, request, payload)
}

fn start_by<'a, O: Operation>(
    start: impl FnOnce(&Request<'_>) -> PendingReply<'a>,
    frame: Frame,
    request: &O::Request<'_>,
    payload: &'a [IoSlice<'a>],
) -> StartedCall<'a, O> {
    let mut body = take_buffer();
    request.encode(&mut body);
    let request = Request::new(Frame { op: O::OP as u16, ..frame }, &body, payload);
    let (frame, pending) = (request.frame, start(&request));
    StartedCall { frame, body, payload, pending, operation: PhantomData }
}

/// An operation under way.
#[must_use = "the answer must be awaited"]
pub struct StartedCall<'a, O> {
    frame: Frame,
    body: Vec<u8>,
    payload: &'a [IoSlice<'a>],
    pending: PendingReply<'a>,
    operation: PhantomData<fn() -> O>,
}

impl<O: Operation> StartedCall<'_, O> {
    /// Carries on without waiting, with the buffers that [`StartedCall::finish`] will be given; see [`PendingReply::advance`].
    pub fn advance(&mut self, into: &mut [IoSliceMut<'_>]) -> bool {
        let request = Request { frame: self.frame, body: &self.body, payload: self.payload };
        self.pending.advance(&request, into)
    }

    /// Returns whether all of the request has been given away.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.pending.is_sent()
    }

    /// Returns the event that carries it on; `None` if it need not wait.
    #[must_use]
    pub fn wait(&self) -> Option<Wait<'_>> {
        self.pending.wait()
    }

    /// Waits for the answer; its payload goes to the front of `into`. Returns the reply and the number of
    /// bytes of payload.
    ///
    /// # Errors
    /// As [`call`].
    pub fn finish(self, into: &mut [IoSliceMut<'_>]) -> FsResult<(O::Reply, usize)> {
        let mut reply = take_buffer();
        let request = Request { frame: self.frame, body: &self.body, payload: self.payload };
        let outcome = self.pending.finish(&request, &mut reply, into).map_err(FsError::from);
        let decoded = outcome.and_then(|head| decode::<O>(head, &reply));
        give_buffer(reply);
        give_buffer(self.body);
        decoded
    }
}

pub(crate) fn decode<O: Operation>(head: ReplyHead, body: &[u8]) -> FsResult<(O::Reply, usize)> {
    if head.status != 0 {
        return Err(failure(head.status, body));
    }
    let reply = O::Reply::from_bytes(body).map_err(|error| {
        FsError::with(Errno::EIO, format!("answer to {} cannot be decoded: {error}", O::OP.name()))
    })?;
    Ok((reply, head.payload_len))
}

fn failure(status: i32, detail: &[u8]) -> FsError {
    let errno = Errno::from_code(status);
    if detail.is_empty() {
        FsError::new(errno)
    } else {
        FsError::with(errno, String::from_utf8_lossy(detail))
    }
}

/// Most buffers that a thread keeps for its next calls.
const BUFFERS_MAX: usize = 8;
/// Largest buffer that is kept, in bytes.
const BUFFER_LEN_MAX: usize = 1 << 14;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Returns a buffer. A thread that ends has none, and asks all the same: at the end of a program, what it has open is
/// closed.
fn take_buffer() -> Vec<u8> {
    BUFFERS.try_with(|buffers| buffers.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

fn give_buffer(mut buffer: Vec<u8>) {
    buffer.clear();
    let _ends = BUFFERS.try_with(|buffers| {
        let mut buffers = buffers.borrow_mut();
        // Most calls encode some dozens of bytes: a thread keeps a few small buffers, and gives large ones back.
        if buffers.len() < BUFFERS_MAX && buffer.capacity() <= BUFFER_LEN_MAX {
            buffers.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, InProcess, LaneKind, Reply, Service};
    use bivouac_types::{ClientId, OpId};
    use bivouac_wire::op;
    use std::sync::Arc;

    /// Answers every request with the same bytes.
    struct Fixed(i32, Vec<u8>);

    impl Service for Fixed {
        fn serve(&self, _call: &Call<'_>, reply: &mut Reply<'_>) {
            if self.0 != 0 {
                reply.fail(&FsError::with(Errno::from_code(self.0), String::from_utf8_lossy(&self.1)));
            } else {
                reply.body().extend_from_slice(&self.1);
            }
        }
    }

    fn parent(status: i32, body: &[u8]) -> FsResult<bivouac_types::Ino> {
        let transport = InProcess::new(Arc::new(Fixed(status, body.to_vec())), LaneKind::Client);
        let frame = Frame::request(0, OpId(1), ClientId(1), 0);
        let request = bivouac_wire::InoOnly { ino: bivouac_types::Ino(5) };
        call::<op::Parent>(&transport, frame, &request, &[])
    }

    #[test]
    fn replies_are_decoded() {
        assert_eq!(parent(0, &[9, 0, 0, 0, 0, 0, 0, 0]), Ok(bivouac_types::Ino(9)));
    }

    #[test]
    fn replies_that_cannot_be_decoded_are_errors() {
        for body in [&[1, 2, 3][..], &[0; 9], &[]] {
            let error = parent(0, body).unwrap_err();
            assert_eq!(error.errno(), Errno::EIO);
            assert!(error.to_string().contains("Parent"), "{error}");
        }
    }

    #[test]
    fn errors_come_with_their_explanation() {
        let error = parent(Errno::ESTALE.code(), b"directory was removed").unwrap_err();
        assert_eq!((error.errno(), error.detail()), (Errno::ESTALE, Some("directory was removed")));
        assert_eq!(parent(Errno::ESTALE.code(), b"").unwrap_err().detail(), None);
    }

    #[test]
    fn absurd_statuses_never_become_success() {
        assert_eq!(failure(-7, b"").errno(), Errno::EIO);
        assert_eq!(failure(i32::MAX, b"\xff").errno(), Errno::EIO);
    }
}

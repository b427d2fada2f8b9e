//! Bodies of answers, produced piece by piece on threads that may block: a piece is read while the one before it is
//! sent, and no thread waits for a client that reads slowly.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, Full};
use hyper::body::{Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::task::JoinHandle;

/// A body of an answer.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Source of the pieces of a body. It may block.
pub trait BodySource: Send + 'static {
    /// Returns the next piece.
    ///
    /// # Errors
    /// What ends the answer early, so that the client sees that it is not whole.
    fn produce(&mut self) -> io::Result<Bytes>;

    /// Returns whether there is no further piece.
    fn is_done(&self) -> bool;
}

enum PullState<P> {
    Idle(P),
    Busy(JoinHandle<(P, io::Result<Bytes>)>),
    Over,
}

/// A body, or the data of one, that a producer makes.
pub struct PulledBody<P: BodySource> {
    state: PullState<P>,
    first: Option<Bytes>,
    len: Option<u64>,
}

/// Returns a body of a few bytes.
#[must_use]
pub fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// Returns an answer without content.
#[must_use]
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Returns an answer with content of a type.
#[must_use]
pub fn typed(status: StatusCode, content_type: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(content.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns a body of a first piece and those of `producer`. `len` is the total length, if known.
#[must_use]
pub fn pull<P: BodySource + Unpin>(first: Option<Bytes>, producer: P, len: Option<u64>) -> Body {
    PulledBody { state: PullState::Idle(producer), first, len }.boxed_unsync()
}

/// The same without a first piece, as a stream.
#[must_use]
pub fn stream<P: BodySource + Unpin>(producer: P) -> BodyDataStream<PulledBody<P>> {
    BodyDataStream::new(PulledBody { state: PullState::Idle(producer), first: None, len: None })
}

impl<P: BodySource> PulledBody<P> {
    /// Starts the production of the next piece, if there is one.
    fn begin(&mut self) {
        self.state = match std::mem::replace(&mut self.state, PullState::Over) {
            PullState::Idle(mut producer) if !producer.is_done() => {
                PullState::Busy(tokio::task::spawn_blocking(move || {
                    let made = producer.produce();
                    (producer, made)
                }))
            }
            other => other,
        };
    }

    fn took(&mut self, piece: &Bytes) {
        if let Some(len) = &mut self.len {
            assert!(*len >= piece.len() as u64, "{} bytes where {len} are left of an answer", piece.len());
            *len = len.saturating_sub(piece.len() as u64);
        }
    }
}

impl<P: BodySource + Unpin> hyper::body::Body for PulledBody<P> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        // Before the first piece is given out: the next one is read while that is sent.
        if let PullState::Idle(_) = this.state {
            this.begin();
        }
        if let Some(first) = this.first.take() {
            this.took(&first);
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let PullState::Busy(task) = &mut this.state else { return Poll::Ready(None) };
        let done = match Pin::new(task).poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(done) => done,
        };
        // A task that panicked has taken the producer with it: polled again, the body is at its end.
        this.state = PullState::Over;
        let (producer, made) = match done {
            Ok(done) => done,
            Err(error) => return Poll::Ready(Some(Err(io::Error::other(error)))),
        };
        match made {
            Ok(piece) => {
                this.state = PullState::Idle(producer);
                this.begin();
                this.took(&piece);
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Err(error) => {
                log::warn!(why:% = error; "an answer ends early");
                // Kept until it is dropped: what it has open is closed on a thread that may block.
                this.state = PullState::Idle(producer);
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_over = match &self.state {
            PullState::Idle(producer) => producer.is_done(),
            PullState::Busy(_) => false,
            PullState::Over => true,
        };
        self.first.is_none() && is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.len.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl<P: BodySource> Drop for PulledBody<P> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, PullState::Over) {
            // The producer may hold open files, whose close is a request to a node.
            PullState::Idle(producer) => drop_where_it_may_block(producer),
            PullState::Busy(task) => drop_outcome(task),
            PullState::Over => {}
        }
    }
}

/// Drops what may block when it ends, as what closes a file, and not on a thread that others wait for.
pub fn drop_where_it_may_block(ends: impl Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn_blocking(move || drop(ends));
    }
}

/// The same with what comes of a task, which may be there already.
pub fn drop_outcome<T: Send + 'static>(task: JoinHandle<T>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        // The outcome may not be there yet, and nobody may wait for it here.
        runtime.spawn(async move { task.await.map(drop_where_it_may_block) });
    }
}

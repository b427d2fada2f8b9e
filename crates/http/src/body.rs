//! Bodies of answers, produced piece by piece on threads that may block: a piece is read while the one before it is sent,
//! and no thread waits for a client that reads slowly.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, Full};
use hyper::body::{Frame, SizeHint};
use tokio::task::JoinHandle;

/// A body of an answer.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// What makes a body's pieces. It may block.
pub trait Producer: Send + 'static {
    /// The next piece.
    ///
    /// # Errors
    /// What ends the answer early, so that the client sees that it is not whole.
    fn produce(&mut self) -> io::Result<Bytes>;

    /// Whether there is no other piece.
    fn is_done(&self) -> bool;
}

enum State<P> {
    Idle(P),
    Busy(JoinHandle<(P, io::Result<Bytes>)>),
    Over,
}

/// A body, or the data of one, that a producer makes.
pub struct Pull<P: Producer> {
    state: State<P>,
    first: Option<Bytes>,
    len: Option<u64>,
}

/// A few bytes.
#[must_use]
pub fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// What a producer makes, behind a first piece. `len` is how much that is in all, if that is known.
#[must_use]
pub fn pull<P: Producer + Unpin>(first: Option<Bytes>, producer: P, len: Option<u64>) -> Body {
    Pull { state: State::Idle(producer), first, len }.boxed_unsync()
}

/// The same without a first piece, as a stream.
#[must_use]
pub fn stream<P: Producer + Unpin>(producer: P) -> BodyDataStream<Pull<P>> {
    BodyDataStream::new(Pull { state: State::Idle(producer), first: None, len: None })
}

impl<P: Producer> Pull<P> {
    /// Has the next piece made, if there is one.
    fn begin(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Over) {
            State::Idle(mut producer) if !producer.is_done() => {
                State::Busy(tokio::task::spawn_blocking(move || {
                    let made = producer.produce();
                    (producer, made)
                }))
            }
            other => other,
        };
    }

    fn took(&mut self, piece: &Bytes) {
        if let Some(len) = &mut self.len {
            *len = len.saturating_sub(piece.len() as u64);
        }
    }
}

impl<P: Producer + Unpin> hyper::body::Body for Pull<P> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        if let State::Idle(_) = this.state {
            this.begin();
        }
        if let Some(first) = this.first.take() {
            this.took(&first);
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let State::Busy(task) = &mut this.state else { return Poll::Ready(None) };
        let done = match Pin::new(task).poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(done) => done,
        };
        this.state = State::Over;
        let (producer, made) = match done {
            Ok(done) => done,
            Err(error) => return Poll::Ready(Some(Err(io::Error::other(error)))),
        };
        match made {
            Ok(piece) => {
                this.state = State::Idle(producer);
                this.begin();
                this.took(&piece);
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Err(error) => {
                log::warn!(why:% = error; "an answer ends early");
                this.state = State::Idle(producer);
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_over = match &self.state {
            State::Idle(producer) => producer.is_done(),
            State::Busy(_) => false,
            State::Over => true,
        };
        self.first.is_none() && is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.len.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl<P: Producer> Drop for Pull<P> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Idle(producer) => drop_where_it_may_block(producer),
            State::Busy(task) => drop_outcome(task),
            State::Over => {}
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
        runtime.spawn(async move { task.await.map(drop_where_it_may_block) });
    }
}

//! Bytes of an upload on their way from a socket to threads that may block.

use std::time::Duration;

use bivouac_types::FsError;
use hyper::StatusCode;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::body::{drop_outcome, drop_where_it_may_block};
use crate::error_response::ErrorResponse;
use crate::load::Share;

/// Longest time that a client may send nothing in the middle of an upload.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Receiver of an upload's bytes.
pub trait Sink: Send + 'static {
    /// Takes the next piece. It may block.
    fn take(&mut self, bytes: &[u8]) -> Result<(), FsError>;
}

/// Pipe to a receiver that may block: one piece is written while the next one is received.
pub struct Pipe<S: Sink> {
    idle: Option<S>,
    busy: Option<JoinHandle<(S, Result<(), FsError>)>>,
    collected: Vec<u8>,
    share: Share,
}

impl<S: Sink> Pipe<S> {
    /// Creates a pipe into this sink.
    #[must_use]
    pub fn new(sink: S, share: Share) -> Pipe<S> {
        Pipe { idle: Some(sink), busy: None, collected: Vec::new(), share }
    }

    /// Takes some bytes.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), ErrorResponse> {
        self.collected.extend_from_slice(bytes);
        if self.collected.len() >= self.share.piece() { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), ErrorResponse> {
        let mut sink = self.settle().await?;
        assert!(self.busy.is_none(), "two pieces of an upload are written at once");
        let piece = std::mem::take(&mut self.collected);
        self.busy = Some(spawn_blocking(move || {
            let taken = sink.take(&piece);
            (sink, taken)
        }));
        Ok(())
    }

    async fn settle(&mut self) -> Result<S, ErrorResponse> {
        // Bytes would get into the file out of their order otherwise.
        assert!(self.idle.is_none() || self.busy.is_none(), "a sink takes one piece at a time");
        if let Some(sink) = self.idle.take() {
            return Ok(sink);
        }
        let over = || ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "the upload has failed");
        // With neither, the sink has gone with an earlier failure.
        let (sink, taken) = self.busy.take().ok_or_else(over)?.await?;
        match taken {
            Ok(()) => Ok(sink),
            Err(error) => {
                drop_where_it_may_block(sink);
                Err(error.into())
            }
        }
    }

    /// Ends the transfer and returns the receiver.
    pub async fn end(mut self) -> Result<S, ErrorResponse> {
        if !self.collected.is_empty() {
            self.flush().await?;
        }
        self.settle().await
    }
}

impl<S: Sink> Drop for Pipe<S> {
    fn drop(&mut self) {
        if let Some(sink) = self.idle.take() {
            drop_where_it_may_block(sink);
        }
        if let Some(task) = self.busy.take() {
            drop_outcome(task);
        }
    }
}

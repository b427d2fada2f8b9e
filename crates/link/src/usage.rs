//! Figures of a key at a gateway.

use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_source::SourceError;
use parking_lot::Mutex;

use crate::budget::Budget;
use crate::protocol::Usage;

/// Requests of one key that are carried out at the same time, at most, of 64 of all; and the content that they hold.
const REQUESTS_MAX: usize = 48;
const BYTES_MAX: usize = 256 << 20;

/// Counters of one key, and its part of the gateway.
pub struct KeyUsage {
    /// Bytes that its requests hold.
    pub held: Budget,
    /// Streams that are open.
    pub streams: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    requests: AtomicU64,
    errors: AtomicU64,
    last_error: Mutex<String>,
}

impl Default for KeyUsage {
    fn default() -> KeyUsage {
        let (streams, bytes_in, bytes_out, requests, errors, last_error) = Default::default();
        let held = Budget::new(REQUESTS_MAX, BYTES_MAX);
        KeyUsage { held, streams, bytes_in, bytes_out, requests, errors, last_error }
    }
}

impl KeyUsage {
    /// Counts a request with its content.
    pub fn note(&self, came: usize, sent: usize, failure: Option<&SourceError>) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes_in.fetch_add(came as u64, Ordering::Relaxed);
        self.bytes_out.fetch_add(sent as u64, Ordering::Relaxed);
        if let Some(failure) = failure {
            self.errors.fetch_add(1, Ordering::Relaxed);
            *self.last_error.lock() = failure.to_string();
        }
    }

    /// Returns the figures as of now.
    pub fn figures(&self) -> Usage {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            streams: of(&self.streams),
            bytes_in: of(&self.bytes_in),
            bytes_out: of(&self.bytes_out),
            requests: of(&self.requests),
            errors: of(&self.errors),
            last_error: self.last_error.lock().clone(),
        }
    }
}

//! Clients that go away while something is done for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_types::{Errno, FsResult};

/// A flag that ends work for a client which waits no more. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<AtomicBool>);

/// Sets the flag when it is dropped: it belongs to the task of the connection, which ends with that.
#[derive(Debug)]
pub struct CancelOnDrop(Cancellation);

impl Cancellation {
    /// Returns a guard that sets the flag when it is dropped.
    #[must_use]
    pub fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }

    /// Ends work for a client that has gone.
    ///
    /// # Errors
    /// `EINTR` once the flag is set.
    pub fn check_cancelled(&self) -> FsResult<()> {
        if self.0.load(Ordering::Relaxed) { Err(Errno::EINTR.into()) } else { Ok(()) }
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

//! Bounds of what a gateway holds.

use parking_lot::{Condvar, Mutex};

/// Bounds what is held at the same time.
pub struct Budget {
    state: Mutex<(usize, usize)>,
    freed: Condvar,
    requests_max: usize,
    bytes_max: usize,
}

impl Budget {
    /// Creates a budget of so many requests at a time, with so many bytes.
    pub fn new(requests_max: usize, bytes_max: usize) -> Budget {
        Budget { state: Mutex::new((0, 0)), freed: Condvar::new(), requests_max, bytes_max }
    }

    /// Waits until there is room; one that is larger than all of it gets it alone.
    pub fn take(&self, bytes: usize) {
        let mut state = self.state.lock();
        while state.0 > 0 && (state.0 >= self.requests_max || state.1 + bytes > self.bytes_max) {
            self.freed.wait(&mut state);
        }
        state.0 += 1;
        state.1 += bytes;
    }

    /// Gives back what was taken.
    pub fn give_back(&self, bytes: usize) {
        let mut state = self.state.lock();
        assert!(state.0 > 0 && state.1 >= bytes, "{bytes} bytes are given back that were not taken");
        state.0 -= 1;
        state.1 -= bytes;
        self.freed.notify_all();
    }
}

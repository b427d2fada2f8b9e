//! The thread that sweeps: it looks for subfiles without a file when that is asked for, and ends with it.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;

/// Minimum time between two sweeps for want of space.
const PAUSE: Duration = Duration::from_secs(10);

/// The node, as a sweep sees it.
pub trait Sweep: Send + Sync {
    /// Removes the subfiles of this node whose file is gone.
    fn sweep(&self);
}

/// Starts sweeps, one at a time, each in a thread that ends with it.
#[derive(Default)]
pub struct Sweeper {
    state: Arc<Mutex<SweeperState>>,
}

#[derive(Default)]
struct SweeperState {
    /// None before the node has started.
    target: Option<Weak<dyn Sweep>>,
    thread: Option<JoinHandle<()>>,
    /// The thread has not said that it ends.
    runs: bool,
    /// Set if another sweep has to follow this one.
    again: bool,
    last: Option<Instant>,
    stopping: bool,
}

impl Sweeper {
    /// Sets the node that sweeps are made for.
    pub fn start(&self, target: Weak<dyn Sweep>) {
        self.state.lock().target = Some(target);
    }

    /// Sweeps now, or once more when the one under way is over.
    pub fn request(&self) {
        let mut state = self.state.lock();
        // A thread that panicked has not said that it ends.
        if state.runs && state.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            state.again = true;
            return;
        }
        let Some(target) = state.target.clone().filter(|target| target.strong_count() > 0) else { return };
        if state.stopping {
            return;
        }
        state.last = Some(Instant::now());
        let shared = Arc::clone(&self.state);
        let builder = std::thread::Builder::new().name("sweep".into()).stack_size(512 << 10);
        match builder.spawn(move || run(&shared, &target)) {
            Ok(thread) => (state.runs, state.thread) = (true, Some(thread)),
            Err(error) => log::warn!(why:% = error; "unused subfiles are not looked for"),
        }
    }

    /// Requests a sweep for want of space, unless that was done a moment ago.
    pub fn request_for_space(&self) {
        let lately = self.state.lock().last.is_some_and(|last| last.elapsed() < PAUSE);
        if !lately {
            self.request();
        }
    }

    /// Ends what is under way.
    pub fn stop(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.stopping = true;
            state.thread.take()
        };
        // A thread that panicked has said so; there is nothing left to end.
        thread.map(JoinHandle::join);
    }

    /// Returns whether a running sweep has to end.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }
}

fn run(state: &Mutex<SweeperState>, target: &Weak<dyn Sweep>) {
    loop {
        let Some(target) = target.upgrade() else { return };
        target.sweep();
        let mut state = state.lock();
        if !std::mem::take(&mut state.again) {
            // Under the lock: who asks for a sweep from now on begins another thread.
            state.runs = false;
            return;
        }
    }
}

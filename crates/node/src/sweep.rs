//! Subfiles whose file is gone: left by clients that wrote and died before they told the file's home, which so
//! had nothing to remove. They are found by asking the homes: after a start, when clients are given up,
//! and when a volume is full. In between nothing runs.
//!
//! *Unknown* is not *gone*. A home says "gone" only of numbers that it gave out itself (so one that lost its
//! records says it of none), and that have no record. A file's record is there before anybody can
//! write to it, and numbers are never used again: what is gone once is gone for good, whenever its subfile
//! was seen. A home that does not answer says nothing, and its files stay.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_store::SubfileId;
use bivouac_types::{FsResult, Ino, NodeId};
use bivouac_wire::{Inodes, op};

use crate::dispatch::{Handle, SYSTEM};
use crate::node::Node;
use crate::peers::Steps;
use crate::record::{garbage_key, inode_key};
use crate::session::Ctx;

/// Inodes that one message asks about.
const BATCH: usize = 8192;
/// How long after a sweep for want of space another one is not worth its price.
const PAUSE: Duration = Duration::from_secs(10);

/// Starts sweeps, one at a time, each in a thread that ends with it.
#[derive(Default)]
pub struct Sweeper {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    node: Weak<Node>,
    thread: Option<JoinHandle<()>>,
    /// Whether to sweep once more when this one is over.
    again: bool,
    last: Option<Instant>,
    stopping: bool,
}

impl Sweeper {
    /// From now on sweeps can be started.
    pub fn start(&self, node: &Arc<Node>) {
        self.state.lock().node = Arc::downgrade(node);
    }

    /// Sweeps now, or once more when the one under way is over.
    pub fn request(&self) {
        let mut state = self.state.lock();
        if state.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            state.again = true;
            return;
        }
        let node = state.node.clone();
        if state.stopping || node.strong_count() == 0 {
            return;
        }
        state.last = Some(Instant::now());
        let builder = std::thread::Builder::new().name("sweep".into()).stack_size(512 << 10);
        match builder.spawn(move || work(&node)) {
            Ok(thread) => state.thread = Some(thread),
            Err(error) => log::warn!(why:% = error; "unused subfiles are not looked for"),
        }
    }

    /// The same, unless that was done a moment ago: for want of space.
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

    fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    fn take_again(&self) -> bool {
        std::mem::take(&mut self.state.lock().again)
    }
}

fn work(node: &Weak<Node>) {
    loop {
        let Some(strong) = node.upgrade() else { return };
        strong.sweep();
        if !strong.sweeper.take_again() {
            return;
        }
    }
}

impl Node {
    /// Removes this node's subfiles of files that are gone.
    fn sweep(&self) {
        for volume in 0..self.data.usage().len() as u16 {
            let listed = match self.data.list_ids(volume) {
                Ok(listed) => listed,
                Err(error) => {
                    log::warn!(why:% = error; "unused subfiles are not looked for");
                    continue;
                }
            };
            let mut batches: HashMap<NodeId, Vec<SubfileId>> = HashMap::new();
            for id in listed {
                let Some(home) = self.map.home(id.ino) else { continue };
                let batch = batches.entry(home).or_default();
                batch.push(id);
                if batch.len() >= BATCH {
                    self.sweep_batch(home, &std::mem::take(batch));
                }
            }
            batches.into_iter().for_each(|(home, batch)| self.sweep_batch(home, &batch));
        }
    }

    fn sweep_batch(&self, home: NodeId, batch: &[SubfileId]) {
        if batch.is_empty() || self.sweeper.is_stopping() {
            return;
        }
        let mut inos: Vec<Ino> = batch.iter().map(|id| id.ino).collect();
        inos.dedup();
        let gone = match self.step::<op::WhichGone>(home, Steps::question(SYSTEM), 0, Inodes { inos }) {
            Ok(gone) => gone.inos,
            Err(error) => return log::info!(why:% = error; "files of {home} are not asked about"),
        };
        for id in batch.iter().filter(|id| gone.contains(&id.ino)) {
            match self.data.remove(*id) {
                Ok(removed) => {
                    self.lending.removed(*id);
                    log::info!("subfile of inode {} on seat {} had no file: {removed}", id.ino, id.seat.0)
                }
                Err(error) => log::warn!(why:% = error; "a subfile without a file stays"),
            }
        }
    }

    /// A volume is full: removes what nobody needs, and looks for more of it.
    pub(crate) fn make_room(&self) {
        self.reaper.collect(self);
        self.sweeper.request_for_space();
    }

    fn is_gone(&self, ino: Ino) -> FsResult<bool> {
        self.check_slot(ino.slot())?;
        let is_mine = ino.allocator() == self.id && self.allocator.has_given(ino.counter());
        let has = |key: &[u8]| self.records.read(ino.slot(), key, |found| found.is_some());
        // Garbage is on its way already.
        Ok(is_mine && !has(&inode_key(ino)) && !has(&garbage_key(ino)))
    }
}

impl Handle for op::WhichGone {
    fn handle(node: &Node, _: &Ctx<'_>, request: Inodes) -> FsResult<Inodes> {
        let gone = request.inos.into_iter().filter_map(|ino| match node.is_gone(ino) {
            Ok(gone) => gone.then_some(Ok(ino)),
            Err(error) => Some(Err(error)),
        });
        Ok(Inodes { inos: gone.collect::<FsResult<_>>()? })
    }
}

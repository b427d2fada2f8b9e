//! Programs that are killed while the mount waits for another node in their name: the kernel lets them go as soon as
//! their request is answered, and no sooner.
//!
//! The kernel tells of any signal (INTERRUPT), once per request, and waits on. Only a signal that kills may end a wait,
//! as on other file systems over a network; so it is the system that is asked whether the thread is to end, then and,
//! if it is not, from time to time until its request is answered. The request of one that is killed gets EINTR, which
//! nobody sees. The work goes on behind it, under its number, and is done once or not at all as ever; what it would
//! have opened is closed again.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bivouac_client::OnDemandWorker;
use bivouac_types::Errno;
use parking_lot::Mutex;

use crate::abi::{Header, Opcode};
use crate::channel::Channel;
use crate::state::CHANNELS_PER_INCARNATION;

/// Time between two looks at threads that a signal came for.
const TICK: Duration = Duration::from_millis(20);
/// Most interrupts kept for requests that do not wait, or not yet.
const EARLY_MAX: usize = 256;
const STACK: usize = 128 << 10;

/// Says of a thread whether it is about to end.
pub type IsKilled = fn(u32) -> bool;

/// The requests of one mount that wait for other nodes.
pub struct Interrupts {
    /// By thread of the mount.
    waiting: Vec<Mutex<Option<Waiting>>>,
    early: Mutex<VecDeque<u64>>,
    channel: Arc<Channel>,
    is_killed: IsKilled,
    watcher: OnDemandWorker,
    watching: Mutex<Option<JoinHandle<()>>>,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    request: RequestKey,
    /// True if a signal came for its thread.
    interrupted: bool,
    /// True if it was answered in spite of that it is not done.
    given_up: bool,
}

/// The numbers of a request and the thread that sent it.
#[derive(Clone, Copy, Debug)]
struct RequestKey {
    id: u64,
    unique: u64,
    thread: u32,
}

/// The request that a thread serves: set before, taken when it waits for the first time.
#[derive(Clone, Debug, Default)]
pub struct CurrentRequest(Rc<Cell<Option<RequestKey>>>);

impl Interrupts {
    pub fn new(channel: Arc<Channel>, is_killed: IsKilled) -> Arc<Interrupts> {
        let waiting = (0..CHANNELS_PER_INCARNATION).map(|_| Mutex::default()).collect();
        let (early, watcher, watching) = (Mutex::default(), OnDemandWorker::default(), Mutex::default());
        Arc::new(Interrupts { waiting, early, channel, is_killed, watcher, watching })
    }

    /// Notes that a thread of the mount begins to serve a request.
    pub fn begin(&self, current: &CurrentRequest, header: &Header, op: Opcode) {
        let request = RequestKey { id: header.id(), unique: header.unique, thread: header.pid };
        // Only a number is noted here: most requests never wait, and are not to cost a lock.
        current.0.set(may_be_given_up(op).then_some(request));
    }

    /// Notes that it is about to wait for somebody.
    pub fn waits(self: &Arc<Self>, current: &CurrentRequest, thread: u16) {
        let (Some(request), Some(place)) = (current.0.take(), self.waiting.get(usize::from(thread))) else {
            return;
        };
        let former = place.lock().replace(Waiting { request, interrupted: false, given_up: false });
        assert!(former.is_none(), "thread {thread} waits for {request:?} and for {former:?}");
        // After the entry is made: an interrupt that is not in this set yet will find the entry.
        if self.early.lock().contains(&request.id) {
            self.interrupt_at(place, request.id);
        }
    }

    /// Ends the service of a request. Returns true if it was answered meanwhile, so that it must not be answered again.
    #[must_use]
    pub fn end(&self, current: &CurrentRequest, thread: u16, op: Opcode) -> bool {
        if current.0.take().is_some() || !may_be_given_up(op) {
            return false;
        }
        let waited = self.waiting.get(usize::from(thread)).and_then(|place| place.lock().take());
        waited.is_some_and(|waited| waited.given_up)
    }

    /// Interrupts the thread whose request has this number: a signal came for it.
    pub fn interrupt(self: &Arc<Self>, id: u64) {
        {
            let mut early = self.early.lock();
            if early.len() == EARLY_MAX {
                early.pop_front();
            }
            // Before the places are looked at: a request that begins to wait in between finds its number here.
            early.push_back(id);
        }
        self.waiting.iter().for_each(|place| self.interrupt_at(place, id));
    }

    fn interrupt_at(self: &Arc<Self>, place: &Mutex<Option<Waiting>>, id: u64) {
        let mut place = place.lock();
        let Some(waiting) = place.as_mut().filter(|waiting| waiting.request.id == id) else { return };
        waiting.interrupted = true;
        if !self.give_up_if_killed(waiting) {
            // Before the call: the watcher looks at all places under a lock of its own.
            drop(place);
            self.watch();
        }
    }

    /// Gives up a wait if its program was killed; under the lock of its place, so that it is not answered by whoever
    /// serves it at the same time.
    fn give_up_if_killed(&self, waiting: &mut Waiting) -> bool {
        if !waiting.given_up && (self.is_killed)(waiting.request.thread) {
            waiting.given_up = true;
            self.channel.reply_error(waiting.request.unique, Errno::EINTR);
        }
        waiting.given_up
    }

    /// Watches the threads that wait: the kernel tells of the first signal alone, and one that kills may come behind
    /// it.
    fn watch(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let look = move || {
            while let Some(interrupts) = weak.upgrade().filter(|interrupts| interrupts.watcher.next(TICK)) {
                interrupts.look();
            }
        };
        self.watcher.call(|| {
            let spawned = thread::Builder::new().name("mount-signals".into()).stack_size(STACK).spawn(look);
            let spawned = spawned.inspect_err(|error| {
                log::warn!(
                    why:% = error; "no thread to see who is killed: who waits for a node ends with its wait"
                );
            });
            let is_there = spawned.is_ok();
            *self.watching.lock() = spawned.ok();
            is_there
        });
    }

    fn look(&self) {
        let is_calm = |place: &Mutex<Option<Waiting>>| {
            let mut place = place.lock();
            let asked_for = place.as_mut().filter(|waiting| waiting.interrupted && !waiting.given_up);
            asked_for.is_none_or(|waiting| self.give_up_if_killed(waiting))
        };
        if self.waiting.iter().filter(|place| !is_calm(place)).count() == 0 {
            let is_left = |waiting: &Waiting| waiting.interrupted && !waiting.given_up;
            self.watcher
                .rest(|| !self.waiting.iter().any(|place| place.lock().as_ref().is_some_and(is_left)));
        }
    }

    /// Ends the watch, at the end of the mount.
    pub fn close(&self) {
        self.watcher.dismiss();
        let watching = self.watching.lock().take();
        // A thread that panicked has said so.
        watching.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Returns whether who asked may go before it is done. Not who locks: it would not give back what it does not know of.
/// The rest of these does not wait for a signal, or nobody waits for it.
fn may_be_given_up(op: Opcode) -> bool {
    let locks = matches!(op, Opcode::GetLk | Opcode::SetLk | Opcode::SetLkW);
    let ends = matches!(op, Opcode::Release | Opcode::ReleaseDir | Opcode::Init | Opcode::Destroy);
    op.expects_reply() && !locks && !ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::fs::File;
    use std::io::Read;
    use std::sync::atomic::{AtomicBool, Ordering};

    const THREAD: u32 = 77;

    fn started(is_killed: IsKilled) -> (Arc<Interrupts>, File) {
        let (ours, kernel) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Interrupts::new(Arc::new(Channel::new(ours)), is_killed), File::from(kernel))
    }

    fn header(unique: u64) -> Header {
        let mut bytes = [0; 40];
        bytes[..4].copy_from_slice(&40u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        bytes[32..36].copy_from_slice(&THREAD.to_ne_bytes());
        Header::split(&bytes).unwrap().0
    }

    /// Number and error of the next answer.
    fn answer(kernel: &mut File) -> (u64, i32) {
        let mut bytes = [0; 64];
        assert_eq!(kernel.read(&mut bytes).unwrap(), 16);
        let part = |at: usize| bytes[at..at + 8].try_into().unwrap();
        (u64::from_ne_bytes(part(8)), i32::from_ne_bytes(bytes[4..8].try_into().unwrap()))
    }

    /// S360.
    #[test]
    fn who_is_killed_is_answered_at_once_and_once() {
        let (interrupts, mut kernel) = started(|thread| thread == THREAD);
        let current = CurrentRequest::default();
        interrupts.begin(&current, &header(40), Opcode::Read);
        interrupts.waits(&current, 3);
        interrupts.waits(&current, 3);
        interrupts.interrupt(40);
        interrupts.interrupt(40);
        assert_eq!(answer(&mut kernel), (40, -4));
        assert!(interrupts.end(&current, 3, Opcode::Read));
        interrupts.begin(&current, &header(42), Opcode::Read);
        interrupts.waits(&current, 3);
        assert!(!interrupts.end(&current, 3, Opcode::Read), "of another request");
        drop(interrupts);
        assert_eq!(kernel.read(&mut [0; 64]).unwrap(), 0, "no second answer");
    }

    /// S360.
    #[test]
    fn an_interrupt_may_come_before_its_request_waits_and_after_its_end() {
        let (interrupts, mut kernel) = started(|thread| thread == THREAD);
        let current = CurrentRequest::default();
        interrupts.begin(&current, &header(40), Opcode::Write);
        interrupts.interrupt(40);
        assert!(!interrupts.end(&current, 0, Opcode::Write), "it had not to wait");
        interrupts.begin(&current, &header(42), Opcode::Write);
        interrupts.interrupt(42);
        interrupts.waits(&current, 0);
        assert_eq!(answer(&mut kernel), (42, -4));
        assert!(interrupts.end(&current, 0, Opcode::Write));
        interrupts.interrupt(42);
        for op in [Opcode::SetLk, Opcode::SetLkW, Opcode::Release] {
            interrupts.begin(&current, &header(44), op);
            interrupts.waits(&current, 0);
            interrupts.interrupt(44);
            assert!(!interrupts.end(&current, 0, op));
        }
    }

    static DIES: AtomicBool = AtomicBool::new(false);

    /// S361.
    #[test]
    fn other_signals_end_nothing_and_one_that_kills_is_seen_behind_them() {
        let (interrupts, mut kernel) = started(|_| DIES.load(Ordering::Acquire));
        let current = CurrentRequest::default();
        interrupts.begin(&current, &header(40), Opcode::Read);
        interrupts.waits(&current, 1);
        interrupts.interrupt(40);
        assert!(!interrupts.end(&current, 1, Opcode::Read));
        interrupts.begin(&current, &header(42), Opcode::Read);
        interrupts.waits(&current, 1);
        interrupts.interrupt(42);
        DIES.store(true, Ordering::Release);
        assert_eq!(answer(&mut kernel), (42, -4));
        assert!(interrupts.end(&current, 1, Opcode::Read));
        interrupts.close();
    }
}

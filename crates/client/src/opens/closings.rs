//! Closes that other nodes have yet to hear of: told together, and soon.
//!
//! Nobody waits for a home to hear that a file was closed, so closes are kept for a moment and sent as one message. A
//! home hears of them before it hears of anything that removes a name, because the content of a file without a name is
//! kept while it seems to be open. What cannot be told need not be: whoever comes back to a node, or is come back to,
//! says what is open ([`crate::opens::reassert`]), and what is closed is not among it. How files were used goes with
//! them; that is lost with a node that is away.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use bivouac_net::Transport;
use bivouac_types::limits::USES_PER_MESSAGE_MAX;
use bivouac_types::{ClientId, Ino, NodeId, OpenId};
use bivouac_wire::{CloseRequest, FileUseDelta, Frame, op};
use parking_lot::Mutex;

use crate::homes::known::KnownFiles;
use crate::on_demand_worker::OnDemandWorker;

/// Closes of one node that are sent without waiting for more.
const MANY: usize = 64;
/// Longest delay of a close.
const SOON: Duration = Duration::from_millis(10);
/// Wait for a node that does not answer, in milliseconds.
const WAIT_MS: u32 = 1000;
const STACK: usize = 128 << 10;

/// The closes of one client.
pub struct Closings(Arc<CloseBatcher>);

struct CloseBatcher {
    client: ClientId,
    known: Arc<KnownFiles>,
    nodes: Vec<(Arc<dyn Transport>, Queue)>,
    flusher: OnDemandWorker,
}

/// Closes that remain to be sent to a node.
#[derive(Default)]
struct Queue {
    unsent: Mutex<UnsentCloses>,
    /// Held while a batch is under way: a sender waits for the batch before, so that closes sent earlier have arrived
    /// when it returns.
    sending: Mutex<()>,
}

#[derive(Default)]
struct UnsentCloses {
    opens: Vec<(Ino, OpenId)>,
    uses: Vec<FileUseDelta>,
}

impl UnsentCloses {
    fn count(&self) -> usize {
        self.opens.len().max(self.uses.len())
    }
}

impl Closings {
    /// Creates the queues for a client of these nodes.
    pub fn new(client: ClientId, known: Arc<KnownFiles>, nodes: &[Arc<dyn Transport>]) -> Closings {
        let nodes = nodes.iter().map(|node| (Arc::clone(node), Queue::default())).collect();
        Closings(Arc::new(CloseBatcher { client, known, nodes, flusher: OnDemandWorker::default() }))
    }

    /// Queues the end of an open, if given, and uses of files, to be sent to a node soon.
    pub fn put(&self, node: NodeId, open: Option<(Ino, OpenId)>, uses: Vec<FileUseDelta>) {
        let Some((_, queue)) = self.0.nodes.get(usize::from(node.0)) else { return };
        let (before, now) = {
            let mut queue = queue.unsent.lock();
            let before = queue.count();
            queue.opens.extend(open);
            queue.uses.extend(uses);
            (before, queue.count())
        };
        if now >= MANY {
            self.0.send(node);
        } else if before == 0 && now > 0 {
            // The earlier entries have called the thread already, and are not sent without these.
            self.wake();
        }
    }

    /// Sends what is queued for a node, or for all, also what another thread is sending. On return, nodes that answer
    /// have got all closes queued before.
    pub fn send(&self, node: Option<NodeId>) {
        node.map_or_else(|| self.0.send_all(), |node| self.0.send(node));
    }

    /// Calls the thread that sends what is queued.
    fn wake(&self) {
        let batcher = Arc::downgrade(&self.0);
        let spawn = || {
            let flusher = thread::Builder::new().name("closes".into()).stack_size(STACK);
            let spawned = flusher.spawn(move || work(&batcher));
            spawned
                .inspect_err(|error| log::warn!(why:% = error; "no thread to tell of closed files"))
                .is_ok()
        };
        if !self.0.flusher.call(spawn) {
            self.0.send_all();
        }
    }
}

impl Drop for Closings {
    fn drop(&mut self) {
        self.0.flusher.dismiss();
    }
}

/// Sends what there is, until there has been nothing for a while.
fn work(batcher: &Weak<CloseBatcher>) {
    while let Some(batcher) = batcher.upgrade().filter(|batcher| batcher.flusher.next(SOON)) {
        // What is added from now on calls again.
        batcher.flusher.rest(|| true);
        batcher.send_all();
    }
}

impl CloseBatcher {
    fn send_all(&self) {
        (0..self.nodes.len()).for_each(|node| self.send(NodeId(node as u16)));
    }

    fn send(&self, node: NodeId) {
        let Some((transport, queue)) = self.nodes.get(usize::from(node.0)) else { return };
        // Before the queue is taken: an empty one does not say that what another thread took has arrived.
        let _turn = queue.sending.lock();
        let UnsentCloses { opens, mut uses } = std::mem::take(&mut *queue.unsent.lock());
        if opens.is_empty() && uses.is_empty() {
            return;
        }
        // Beyond that, a thousand threads have used one file: those are the less interesting ones.
        uses.truncate(USES_PER_MESSAGE_MAX);
        let request = CloseRequest { floor: self.known.under_way.floor(), opens, uses };
        // A number that no other message of this client has: one that comes twice is noted once.
        let id = CloseRequest::id(self.known.under_way.begin(false).id);
        let frame = Frame { wait_ms: WAIT_MS, ..Frame::request(0, id, self.client, 0) };
        if let Err(error) = bivouac_net::call::<op::Close>(&**transport, frame, &request, &[]) {
            log::info!(why:% = error; "{node} hears of {} closed files when it is back", request.opens.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_net::{Call, InProcess, LaneKind, Reply, Service};
    use bivouac_wire::Decode;
    use parking_lot::Condvar;
    use std::time::Instant;

    /// Remembers what it was told was closed.
    #[derive(Default)]
    struct Home {
        told: Mutex<Vec<Vec<(Ino, OpenId)>>>,
        news: Condvar,
    }

    impl Home {
        fn wait_for(&self, messages: usize) -> Vec<Vec<(Ino, OpenId)>> {
            let (mut told, begin) = (self.told.lock(), Instant::now());
            while told.len() < messages && begin.elapsed() < Duration::from_secs(30) {
                self.news.wait_for(&mut told, Duration::from_millis(100));
            }
            told.clone()
        }
    }

    struct Told(Arc<Home>);

    impl Service for Told {
        fn serve(&self, call: &Call<'_>, _reply: &mut Reply<'_>) {
            let request = CloseRequest::from_bytes(call.body).unwrap();
            self.0.told.lock().push(request.opens);
            self.0.news.notify_all();
        }
    }

    fn of_two_homes() -> (Closings, [Arc<Home>; 2]) {
        let homes = [Arc::<Home>::default(), Arc::default()];
        let way = |home: &Arc<Home>| -> Arc<dyn Transport> {
            Arc::new(InProcess::new(Arc::new(Told(Arc::clone(home))), LaneKind::Client))
        };
        let nodes = homes.each_ref().map(way);
        (Closings::new(ClientId(7), Arc::new(KnownFiles::new(0, None)), &nodes), homes)
    }

    fn open(number: u64) -> (Ino, OpenId) {
        (Ino(number), OpenId(number))
    }

    #[test]
    fn closes_are_told_soon_by_themselves() {
        let (closings, homes) = of_two_homes();
        closings.put(NodeId(0), Some((Ino(1), OpenId(1))), Vec::new());
        closings.put(NodeId(1), Some((Ino(2), OpenId(2))), Vec::new());
        assert_eq!(homes[0].wait_for(1), [[open(1)]]);
        assert_eq!(homes[1].wait_for(1), [[open(2)]]);
        closings.put(NodeId(1), Some((Ino(3), OpenId(3))), Vec::new());
        assert_eq!(homes[1].wait_for(2), [[open(2)], [open(3)]], "the thread goes on");
    }

    #[test]
    fn many_closes_go_together_and_none_is_lost() {
        let (closings, homes) = of_two_homes();
        let many: Vec<_> = (0..10 * MANY as u64).map(open).collect();
        many.iter().for_each(|(ino, open)| closings.put(NodeId(0), Some((*ino, *open)), Vec::new()));
        closings.send(Some(NodeId(0)));
        let told = homes[0].wait_for(10);
        assert!(told.iter().all(|opens| opens.len() <= MANY), "{told:?}");
        let mut opens = told.concat();
        opens.sort_unstable();
        assert_eq!(opens, many);
        assert!(homes[1].told.lock().is_empty());
    }

    /// A home that hears of closes late.
    struct Slow(bivouac_net::HoldPoint, Arc<Home>);

    impl Service for Slow {
        fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
            self.0.pass();
            Told(Arc::clone(&self.1)).serve(call, reply);
        }
    }

    /// An unlink found the file open, and so did whoever waited for its space.
    #[test]
    fn a_removal_waits_for_closes_that_are_on_their_way() {
        let (latch, home) = (bivouac_net::HoldPoint::default(), Arc::<Home>::default());
        let service = Arc::new(Slow(latch.clone(), Arc::clone(&home)));
        let way: Arc<dyn Transport> = Arc::new(InProcess::new(service, LaneKind::Client));
        let closings = Closings::new(ClientId(7), Arc::new(KnownFiles::new(0, None)), &[way]);
        closings.put(NodeId(0), Some(open(1)), Vec::new());
        thread::scope(|scope| {
            // By whichever thread, it is on its way.
            scope.spawn(|| closings.send(Some(NodeId(0))));
            latch.await_arrivals(1);
            let removal = scope.spawn(|| {
                closings.send(Some(NodeId(0)));
                home.told.lock().concat()
            });
            latch.open();
            assert_eq!(removal.join().unwrap(), [open(1)]);
        });
    }

    #[test]
    fn a_removal_comes_behind_the_closes_before_it() {
        let (closings, homes) = of_two_homes();
        closings.put(NodeId(1), Some((Ino(2), OpenId(2))), Vec::new());
        closings.send(Some(NodeId(1)));
        assert_eq!(homes[1].told.lock().concat(), [open(2)]);
        closings.send(None);
        drop(closings);
        assert_eq!(homes[1].told.lock().concat(), [open(2)], "each is told once");
    }
}

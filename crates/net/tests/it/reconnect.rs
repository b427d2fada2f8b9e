//! What a peer does when its node goes away and comes back.
#![allow(clippy::unwrap_used, reason = "test code outside of test functions")]

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::world::{World, auth, frame, identity, options, read_request, unanswered, write_request};
use bivouac_net::conformance::Memory;
use bivouac_net::{
    Call, DaemonId, FailingTransport, HoldPoint, InProcess, InjectedFault, Introduction, LaneKind, Listener,
    LivenessTable, NetError, Peer, PeerOptions, Reply, ServerOptions, Service, Transport, Watch, call,
    call_into, on_block, start,
};
use bivouac_types::{Errno, FsError, NodeId, OpId};
use bivouac_wire::{Frame, NewsList, Op, op};
use parking_lot::Mutex;

/// A service that is a node's daemon of one epoch, and refuses who means another.
struct OfEpoch {
    memory: Memory,
    epoch: u32,
    stalls: HoldPoint,
    has_successor: AtomicBool,
}

impl OfEpoch {
    fn new(epoch: u32, stalls: bool) -> Arc<OfEpoch> {
        let latch = HoldPoint::default();
        if !stalls {
            latch.open();
        }
        let has_successor = AtomicBool::new(false);
        Arc::new(OfEpoch { memory: Memory::default(), epoch, stalls: latch, has_successor })
    }
}

impl Service for OfEpoch {
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        self.stalls.pass();
        if self.has_successor.load(Ordering::Acquire) {
            return reply.abandon(&FsError::with(Errno::EIO, "superseded"));
        }
        self.memory.serve(call, reply);
    }

    fn admits(&self, introduction: &Introduction) -> bool {
        let is_meant = introduction.daemon == Some(DaemonId { node: NodeId(4), epoch: self.epoch });
        is_meant && !self.has_successor.load(Ordering::Acquire)
    }
}

fn listening(service: Arc<OfEpoch>) -> (bivouac_net::Server, bivouac_net::Address) {
    let listener = Listener::bind_tcp("127.0.0.1:0").unwrap();
    let address = listener.address().clone();
    let options = ServerOptions { stop_ms: 0, ..ServerOptions::default() };
    let listeners = vec![(listener, LaneKind::Client)];
    (bivouac_net::Server::start(listeners, service, auth(), options).unwrap(), address)
}

/// S810: what is under way at a daemon that will never answer is sent to its successor, once, with the mark, and behind
/// what the client reclaims there.
#[test]
fn a_node_that_moves_is_followed_also_by_what_is_under_way() {
    let (former, successor) = (OfEpoch::new(0, true), OfEpoch::new(3, false));
    let (_first, old) = listening(Arc::clone(&former));
    let (_second, new) = listening(Arc::clone(&successor));
    let peer = Arc::new(Peer::to(NodeId(4), old.clone(), identity(), PeerOptions::default()));
    peer.on_reconnect(|_, transport| {
        let reclaimed = call::<op::Ping>(transport, frame(77), &(), &[]);
        reclaimed.map(drop).map_err(|_| NetError::Closed { address: transport.address() })
    });
    let asker = Arc::clone(&peer);
    let under_way = std::thread::spawn(move || call::<op::Ping>(&*asker, frame(5), &(), &[]));
    former.stalls.await_arrivals(1);
    assert!(peer.redirect(3, &new));
    under_way.join().unwrap().unwrap();
    assert_eq!(ids_and_marks(&successor.memory), [(77, false), (5, true)]);
    // Older news changes nothing, and nobody means the former daemon any more.
    assert!(!peer.redirect(3, &old) && !peer.redirect(2, &old) && !peer.redirect(0, &old));
    call::<op::Ping>(&*peer, frame(6), &(), &[]).unwrap();
    assert_eq!(ids_and_marks(&successor.memory).last(), Some(&(6, false)));
    former.stalls.open();
}

/// S811: at an address where another daemon of the node is than the one that is meant, nobody is served.
#[test]
fn another_daemon_of_the_node_serves_nobody_who_means_its_successor() {
    let former = OfEpoch::new(0, false);
    let (_server, address) = listening(Arc::clone(&former));
    let options = PeerOptions { wait_ms: 200, ..PeerOptions::default() };
    let peer = Peer::to(NodeId(4), address, identity(), options).since(3);
    let looked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&looked);
    peer.on_away(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    // On a busy machine its time may be over before it is refused.
    while !call::<op::Ping>(&peer, frame(5), &(), &[])
        .unwrap_err()
        .to_string()
        .contains("has moved to another host")
    {
        assert!(Instant::now() < deadline, "it is not told of the successor");
    }
    assert!(former.memory.seen().is_empty() && looked.load(Ordering::Relaxed) > 0);
}

/// S811: a daemon that finds that it has a successor answers nothing; who asked it looks for the successor.
#[test]
fn a_daemon_that_has_a_successor_answers_nobody() {
    let (former, successor) = (OfEpoch::new(0, false), OfEpoch::new(3, false));
    let (_first, old) = listening(Arc::clone(&former));
    let (_second, new) = listening(Arc::clone(&successor));
    let peer = Arc::new(Peer::to(NodeId(4), old, identity(), PeerOptions::default()));
    call::<op::Ping>(&*peer, frame(1), &(), &[]).unwrap();
    let looking = Arc::downgrade(&peer);
    peer.on_away(move || {
        looking.upgrade().inspect(|peer| assert!(peer.redirect(3, &new) || peer.address() == new));
    });
    former.has_successor.store(true, Ordering::Release);
    call::<op::Ping>(&*peer, frame(2), &(), &[]).unwrap();
    assert_eq!(ids_and_marks(&former.memory), [(1, false)]);
    assert_eq!(ids_and_marks(&successor.memory), [(2, true)]);
}

/// A peer over a service in this process, with one fault per request in order, then none.
fn faulty(service: Arc<Memory>, faults: Vec<Option<InjectedFault>>, wait_ms: u64) -> Peer {
    let inner = Arc::new(InProcess::new(service, LaneKind::Client));
    let faults = Mutex::new(faults.into_iter());
    let transport = FailingTransport::new(inner, move |_| faults.lock().next().flatten());
    Peer::new(NodeId(4), Arc::new(transport), PeerOptions { wait_ms, ..PeerOptions::default() })
}

fn ids_and_marks(memory: &Memory) -> Vec<(u64, bool)> {
    memory.seen().iter().map(|frame| (frame.id.0, frame.flags.is_retry())).collect()
}

#[test]
fn a_lost_answer_is_asked_for_again_with_the_mark_and_the_same_id() {
    let memory = Arc::new(Memory::default());
    let peer = faulty(Arc::clone(&memory), vec![Some(InjectedFault::DropAfter)], 30_000);
    let written = call::<op::Write>(&peer, frame(5), &write_request(1), &[IoSlice::new(b"abc")]).unwrap();
    assert!(written.accepted);
    assert_eq!(ids_and_marks(&memory), [(5, false), (5, true)]);
    assert!(memory.seen().iter().all(|frame| frame.payload_len == 3));
}

#[test]
fn what_may_have_been_sent_is_marked_even_if_it_was_not() {
    let memory = Arc::new(Memory::default());
    let peer = faulty(Arc::clone(&memory), vec![Some(InjectedFault::DropBefore)], 30_000);
    call::<op::Ping>(&peer, frame(5), &(), &[]).unwrap();
    assert_eq!(ids_and_marks(&memory), [(5, true)]);
}

#[test]
fn what_was_certainly_not_sent_is_not_marked() {
    let memory = Arc::new(Memory::default());
    let faults = vec![Some(InjectedFault::NoConnection), Some(InjectedFault::NoConnection), None, None];
    let peer = faulty(Arc::clone(&memory), faults, 30_000);
    call::<op::Ping>(&peer, frame(5), &(), &[]).unwrap();
    call::<op::Ping>(&peer, frame(6), &(), &[]).unwrap();
    assert_eq!(ids_and_marks(&memory), [(5, false), (6, false)]);
}

#[test]
fn the_mark_stays_once_it_is_set() {
    let memory = Arc::new(Memory::default());
    let faults = vec![Some(InjectedFault::DropAfter), Some(InjectedFault::NoConnection)];
    let peer = faulty(Arc::clone(&memory), faults, 30_000);
    call::<op::Ping>(&peer, frame(5), &(), &[]).unwrap();
    assert_eq!(ids_and_marks(&memory), [(5, false), (5, true)]);
}

#[test]
fn an_errno_is_an_answer() {
    let memory = Arc::new(Memory::default());
    let peer = faulty(Arc::clone(&memory), vec![Some(InjectedFault::Fail(Errno::ENOSPC))], 30_000);
    let error = call::<op::Ping>(&peer, frame(5), &(), &[]).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC);
    assert!(memory.seen().is_empty());
}

#[test]
fn patience_ends_with_a_clear_error() {
    let inner = Arc::new(InProcess::new(Arc::new(Memory::default()), LaneKind::Client));
    let transport = FailingTransport::new(inner, |_| Some(InjectedFault::NoConnection));
    let peer =
        Peer::new(NodeId(4), Arc::new(transport), PeerOptions { wait_ms: 40, ..PeerOptions::default() });
    let error = call::<op::Ping>(&peer, frame(5), &(), &[]).unwrap_err();
    assert_eq!(error.errno(), Errno::EIO);
    let text = error.to_string();
    for part in ["node 4", "this process", "0.04 s", "cannot connect"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn nobody_waits_for_a_node_that_has_long_been_dead_but_who_asks_whether_it_is() {
    let (memory, liveness) = (Arc::new(Memory::default()), Arc::new(LivenessTable::new(5)));
    let inner = Arc::new(InProcess::new(Arc::clone(&memory) as Arc<dyn Service>, LaneKind::Peer));
    let peer =
        Peer::new(NodeId(4), inner, PeerOptions { wait_ms: 0, ..PeerOptions::default() }).heeding(&liveness);
    call::<op::Ping>(&peer, frame(1), &(), &[]).unwrap();
    liveness.set_dead(NodeId(4), true);
    let error = call::<op::Ping>(&peer, frame(2), &(), &[]).unwrap_err().to_string();
    assert!(error.contains("node 4 at") && error.contains("known to be dead for "), "{error}");
    let news = NewsList { news: Vec::new() };
    let own_patience = Frame { wait_ms: 1000, ..frame(3) };
    // Whatever this service makes of it, it arrives.
    let _ = call::<op::Probe>(&peer, own_patience, &news, &[]);
    liveness.set_dead(NodeId(4), false);
    call::<op::Ping>(&peer, frame(4), &(), &[]).unwrap();
    assert_eq!(ids_and_marks(&memory).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 4]);
}

#[test]
fn a_dead_node_is_waited_for_until_the_bounded_time_is_over() {
    let (memory, liveness) = (Arc::new(Memory::default()), Arc::new(LivenessTable::new(5)));
    let faults = vec![Some(InjectedFault::NoConnection), Some(InjectedFault::NoConnection)];
    let peer = faulty(Arc::clone(&memory), faults, 30_000).heeding(&liveness);
    liveness.set_dead(NodeId(4), true);
    call::<op::Ping>(&peer, frame(1), &(), &[]).unwrap();
    assert_eq!(ids_and_marks(&memory), [(1, false)]);
}

#[test]
fn the_request_may_set_its_own_patience() {
    let (_socket, address) = unanswered();
    let peer = Peer::to(NodeId(4), address.clone(), identity(), PeerOptions::default());
    let impatient = Frame { wait_ms: 30, ..frame(1) };
    let text = call::<op::Ping>(&peer, impatient, &(), &[]).unwrap_err().to_string();
    assert!(text.contains("waited 0.03 s") && text.contains(&address.to_string()), "{text}");
}

#[test]
fn closing_a_peer_ends_the_waiting() {
    let inner = Arc::new(InProcess::new(Arc::new(Memory::default()), LaneKind::Client));
    let latch = HoldPoint::default();
    let arrived = latch.clone();
    let transport = FailingTransport::new(inner, move |_| {
        latch.pass();
        Some(InjectedFault::NoConnection)
    });
    let peer = Peer::new(
        NodeId(4),
        Arc::new(transport),
        PeerOptions { wait_ms: 3_600_000, ..PeerOptions::default() },
    );
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| call::<op::Ping>(&peer, frame(5), &(), &[]));
        arrived.await_arrivals(1);
        peer.close();
        arrived.open();
        let text = waiting.join().unwrap().unwrap_err().to_string();
        assert!(text.contains("closed here"), "{text}");
    });
}

/// Counts reconnect callbacks and sends a request from each.
fn with_counter(peer: &Peer) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    peer.on_reconnect(move |node, transport| {
        assert_eq!(node, NodeId(4));
        counter.fetch_add(1, Ordering::SeqCst);
        call::<op::Ping>(transport, frame(1000), &(), &[]).unwrap();
        Ok(())
    });
    count
}

#[test]
fn the_callback_speaks_before_anything_else_is_sent() {
    let memory = Arc::new(Memory::default());
    let peer = faulty(Arc::clone(&memory), vec![None, Some(InjectedFault::DropAfter)], 30_000);
    let count = with_counter(&peer);
    call::<op::Ping>(&peer, frame(1), &(), &[]).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 0);
    call::<op::Ping>(&peer, frame(2), &(), &[]).unwrap();
    call::<op::Ping>(&peer, frame(3), &(), &[]).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert_eq!(ids_and_marks(&memory), [(1, false), (2, false), (1000, false), (2, true), (3, false)]);
}

#[test]
fn a_loss_that_many_requests_notice_is_one_loss() {
    let memory = Arc::new(Memory::default());
    let peer = faulty(Arc::clone(&memory), vec![Some(InjectedFault::DropAfter); 6], 30_000);
    let count = with_counter(&peer);
    let started: Vec<_> = (0..6).map(|id| start::<op::Ping>(&peer, frame(id), &(), &[])).collect();
    for ping in started {
        ping.finish(&mut []).unwrap();
    }
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_callback_that_fails_is_tried_again() {
    let memory = Arc::new(Memory::default());
    let peer = faulty(Arc::clone(&memory), vec![Some(InjectedFault::DropBefore)], 30_000);
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    peer.on_reconnect(move |_, transport| {
        if counter.fetch_add(1, Ordering::SeqCst) < 2 {
            let cause = std::io::ErrorKind::ConnectionReset.into();
            return Err(NetError::Lost { address: transport.address(), cause });
        }
        Ok(())
    });
    call::<op::Ping>(&peer, frame(1), &(), &[]).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[test]
fn a_restarted_daemon_is_told_first_although_nothing_was_lost() {
    let listener = Listener::bind_tcp("127.0.0.1:0").unwrap();
    let kept = listener.try_clone().unwrap();
    let (before, after) = (Arc::new(Memory::default()), Arc::new(Memory::default()));
    let world = World::on(listener, Arc::clone(&before) as Arc<dyn Service>, options());
    let peer = world.peer();
    let count = with_counter(&peer);
    call::<op::Ping>(&peer, frame(1), &(), &[]).unwrap();
    drop(world);
    let _world = World::on(kept, Arc::clone(&after) as Arc<dyn Service>, options());
    call::<op::Ping>(&peer, frame(2), &(), &[]).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert_eq!(ids_and_marks(&before), [(1, false)]);
    assert_eq!(ids_and_marks(&after), [(1000, false), (2, true)]);
}

#[test]
fn a_plain_transport_notices_another_daemon_at_the_address() {
    let listener = Listener::bind_tcp("127.0.0.1:0").unwrap();
    let kept = listener.try_clone().unwrap();
    let world = World::on(listener, Arc::new(Memory::default()), options());
    let transport = world.transport();
    let ping = |id| {
        let request = bivouac_net::Request::new(Frame { op: Op::Ping as u16, ..frame(id) }, &[], &[]);
        transport.exchange(&request, &mut Vec::new(), &mut [])
    };
    ping(1).unwrap();
    drop(world);
    let _world = World::on(kept, Arc::new(Memory::default()), options());
    assert!(matches!(ping(2), Err(NetError::Lost { .. })));
    assert!(matches!(ping(3), Err(NetError::Restarted { .. })));
    transport.connect(Duration::from_secs(20)).unwrap();
    ping(4).unwrap();
}

/// Refuses what is superseded once the latch has opened.
struct Refusing(Memory, HoldPoint);

impl Service for Refusing {
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        self.1.pass();
        if call.connection.is_superseded() {
            reply.fail(&Errno::EIO.into());
        } else {
            self.0.serve(call, reply);
        }
    }
}

/// Another request had lost its connection, and this one's was whole.
#[test]
fn what_is_refused_as_superseded_is_asked_again_over_another_connection() {
    let latch = HoldPoint::default();
    let service = Arc::new(Refusing(Memory::default(), latch.clone()));
    let world = World::new(Arc::clone(&service) as Arc<dyn Service>);
    let peer = world.peer();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| call::<op::Ping>(&peer, frame(5), &(), &[]));
        latch.await_arrivals(1);
        peer.connect(Duration::from_secs(20)).unwrap();
        latch.open();
        asking.join().unwrap().unwrap();
    });
    assert_eq!(ids_and_marks(&service.0), [(5, true)], "the first one was not carried out");
}

/// Holds writes until the latch opens; everything else as in memory.
struct Slow(Memory, HoldPoint);

impl Service for Slow {
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        if call.op == Op::Write && call.frame.id == OpId(66) {
            self.1.pass();
        }
        self.0.serve(call, reply);
    }
}

#[test]
fn a_daemon_killed_in_the_middle_is_asked_again_after_its_restart() {
    let listener = Listener::bind_tcp("127.0.0.1:0").unwrap();
    let kept = listener.try_clone().unwrap();
    let latch = HoldPoint::default();
    let first = Arc::new(Slow(Memory::default(), latch.clone()));
    let world = World::on(listener, first, ServerOptions { stop_ms: 10, ..options() });
    let peer = world.peer();
    std::thread::scope(|scope| {
        let writer = scope
            .spawn(|| call::<op::Write>(&peer, frame(66), &write_request(1), &[IoSlice::new(&[7; 100_000])]));
        latch.await_arrivals(1);
        // The handler never answers: the daemon ends under it.
        world.server.stop();
        drop(world);
        let second = Arc::new(Memory::default());
        let _world = World::on(kept, Arc::clone(&second) as Arc<dyn Service>, options());
        assert!(writer.join().unwrap().unwrap().accepted);
        assert_eq!(ids_and_marks(&second), [(66, true)]);
        let mut space = vec![0u8; 100_000];
        let request = read_request(1, 100_000);
        let mut into = [IoSliceMut::new(&mut space)];
        call_into::<op::Read>(&peer, frame(67), &request, &[], &mut into).unwrap();
        assert_eq!(space, vec![7; 100_000]);
        latch.open();
    });
}

#[test]
fn a_restart_is_noticed_while_nothing_is_asked() {
    let listener = Listener::bind_tcp("127.0.0.1:0").unwrap();
    let kept = listener.try_clone().unwrap();
    let world = World::on(listener, Arc::new(Memory::default()), options());
    let watch = Arc::new(Watch::new().unwrap());
    let address = world.address.clone();
    let peer = Peer::watched(NodeId(4), address, identity(), PeerOptions::default(), &watch);
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    peer.on_reconnect(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    call::<op::Ping>(&peer, frame(1), &(), &[]).unwrap();
    world.server.stop();
    drop(world);
    let broken = watch.next().unwrap();
    assert_eq!(broken.node, NodeId(4));
    let _world = World::on(kept, Arc::new(Memory::default()), options());
    let wait = Duration::from_secs(60);
    peer.revive(&broken, wait).unwrap();
    peer.revive(&broken, wait).unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 1, "once per restart");
    watch.close();
    assert_eq!(watch.next(), None);
}

#[test]
fn a_daemon_that_does_not_answer_is_given_up_in_time() {
    let latch = HoldPoint::default();
    let world = World::new(Arc::new(Slow(Memory::default(), latch.clone())));
    let peer = world.peer();
    // Its time is for the answer alone: the connection is there.
    call::<op::Ping>(&peer, frame(65), &(), &[]).unwrap();
    let impatient = Frame { wait_ms: 50, ..frame(66) };
    let error = call::<op::Write>(&peer, impatient, &write_request(1), &[]).unwrap_err();
    assert!(error.to_string().contains("did not answer within 50 ms"), "{error}");
    latch.open();
    call::<op::Ping>(&peer, frame(67), &(), &[]).unwrap();
}

#[test]
fn the_hook_runs_before_waiting_for_the_network_and_never_in_process() {
    let count = Rc::new(Cell::new(0));
    let counter = Rc::clone(&count);
    on_block(Some(Rc::new(move || counter.set(counter.get() + 1))));
    let local = Peer::new(
        NodeId(0),
        Arc::new(InProcess::new(Arc::new(Memory::default()), LaneKind::Client)),
        PeerOptions::default(),
    );
    call::<op::Ping>(&local, frame(1), &(), &[]).unwrap();
    assert_eq!(count.get(), 0);
    let latch = HoldPoint::default();
    let world = World::new(Arc::new(Slow(Memory::default(), latch.clone())));
    let peer = world.peer();
    call::<op::Ping>(&peer, frame(2), &(), &[]).unwrap();
    count.set(0);
    // The answer cannot be there before the hook has run, as it is the hook that lets the handler go on.
    on_block(Some(Rc::new({
        let (latch, counter) = (latch.clone(), Rc::clone(&count));
        move || {
            counter.set(counter.get() + 1);
            latch.open();
        }
    })));
    call::<op::Write>(&peer, frame(66), &write_request(1), &[]).unwrap();
    assert!(count.get() >= 1);
    on_block(None);
}

#[test]
fn wrong_secrets_are_not_waited_for() {
    let world = World::new(Arc::new(Memory::default()));
    let mut stranger = identity();
    stranger.auth.secret = bivouac_net::Secret::new([9; 32]);
    assert_ne!(stranger.auth.secret.expose(), auth().secret.expose());
    let peer = Peer::to(
        NodeId(4),
        world.address.clone(),
        stranger,
        PeerOptions { wait_ms: 3_600_000, ..PeerOptions::default() },
    );
    let error = call::<op::Ping>(&peer, frame(1), &(), &[]).unwrap_err();
    assert!(error.to_string().contains("secret file"), "{error}");
}

#[test]
fn a_request_that_was_given_up_counts_as_a_loss() {
    let memory = Arc::new(Memory::default());
    let world = World::new(Arc::clone(&memory) as Arc<dyn Service>);
    let peer = world.peer();
    let count = with_counter(&peer);
    call::<op::Ping>(&peer, frame(1), &(), &[]).unwrap();
    drop(start::<op::Ping>(&peer, frame(2), &(), &[]));
    call::<op::Ping>(&peer, frame(3), &(), &[]).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let ids: Vec<u64> = memory.seen().iter().map(|frame| frame.id.0).filter(|id| *id != 2).collect();
    assert_eq!(ids, [1, 1000, 3]);
}

#[test]
fn starting_does_not_wait_for_a_node_that_is_away() {
    let memory = Arc::new(Memory::default());
    let away = faulty(Arc::clone(&memory), vec![Some(InjectedFault::NoConnection)], 30_000);
    let latch = HoldPoint::default();
    let held = latch.clone();
    away.on_reconnect(move |_, _| {
        held.pass();
        Ok(())
    });
    let there = faulty(Arc::clone(&memory), Vec::new(), 30_000);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| call::<op::Ping>(&away, frame(1), &(), &[]));
        latch.await_arrivals(1);
        // The node is known to be away now, and somebody is busy with it.
        let (late, prompt) =
            (start::<op::Ping>(&away, frame(2), &(), &[]), start::<op::Ping>(&there, frame(3), &(), &[]));
        prompt.finish(&mut []).unwrap();
        assert_eq!(ids_and_marks(&memory), [(3, false)]);
        latch.open();
        late.finish(&mut []).unwrap();
        first.join().unwrap().unwrap();
    });
    assert_eq!(memory.seen().len(), 3);
}

//! The server under friends: load, slowness, panics, ends.
#![allow(clippy::unwrap_used, reason = "test code outside of test functions")]

use std::io::{IoSlice, IoSliceMut, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::world::{Raw, World, frame, is_hung_up, message, read_request, write_request};
use bivouac_net::conformance::{CLIENT, Memory};
use bivouac_net::{
    Call, Identity, LaneKind, Reply, ServerOptions, Service, SocketOptions, SocketTransport, Transport, call,
    call_into,
};
use bivouac_types::{ClientId, Errno, OpId};
use bivouac_wire::{Encode, Frame, Op, ReplicaOutcome, ReplicaSessionRequest, op};
use proptest::prelude::*;

fn request(op: Op, id: u64) -> Frame {
    Frame { op: op as u16, ..frame(id) }
}

fn ping(transport: &dyn Transport, client: u64, id: u64) {
    call::<op::Ping>(transport, Frame { client: ClientId(client), ..frame(id) }, &(), &[]).unwrap();
}

#[test]
fn frames_in_one_piece_are_answered_in_their_order() {
    let world = World::new(Arc::new(Memory::default()));
    let mut raw = Raw::new(&world.address, CLIENT);
    let many: Vec<u8> = (0..1000).flat_map(|id| message(request(Op::Ping, id), &[], &[])).collect();
    raw.0.write_all(&many).unwrap();
    for id in 0..1000 {
        let (frame, rest) = raw.receive();
        assert_eq!((frame.id, frame.status, rest.len()), (OpId(id), 0, 0));
    }
}

#[test]
fn a_frame_byte_by_byte_is_served_like_any_other() {
    let world = World::new(Arc::new(Memory::default()));
    let mut raw = Raw::new(&world.address, CLIENT);
    raw.0.set_nodelay(true).unwrap();
    for byte in message(request(Op::Write, 1), &write_request(3).to_bytes(), b"payload") {
        raw.0.write_all(&[byte]).unwrap();
    }
    assert_eq!(raw.receive().0.status, 0);
    raw.send(request(Op::Read, 2), &read_request(3, 100).to_bytes(), &[]);
    assert_eq!(raw.receive().1, b"\0\0\0\0payload", "the epoch, then the payload");
}

#[test]
fn who_does_not_read_answers_is_not_served_further_and_stops_nobody() {
    const READS: u64 = 40;
    const LEN: usize = 4 << 20;
    let memory = Arc::new(Memory::default());
    let world = World::new(Arc::clone(&memory) as Arc<_>);
    let content: Vec<u8> = (0..LEN).map(|at| (at % 255) as u8).collect();
    let friend = world.transport_as(5);
    let as_friend = Frame { client: ClientId(5), ..frame(1) };
    call::<op::Write>(&friend, as_friend, &write_request(3), &[IoSlice::new(&content)]).unwrap();
    let mut deaf: Vec<Raw> = (0..6).map(|_| Raw::new(&world.address, CLIENT)).collect();
    for raw in &mut deaf {
        for id in 0..READS {
            raw.send(request(Op::Read, id), &read_request(3, LEN as u32).to_bytes(), &[]);
        }
    }
    // More deaf connections than threads, and yet the friend is served.
    (0..20).for_each(|id| ping(&friend, 5, id));
    let served = memory.seen().iter().filter(|frame| frame.op == Op::Read as u16).count();
    assert!(served < 6 * READS as usize / 2, "{served} requests were served that nobody took the answer of");
    for raw in &mut deaf[..2] {
        for id in 0..READS {
            let (frame, rest) = raw.receive();
            assert_eq!((frame.id, frame.status), (OpId(id), 0));
            assert!(rest[4..] == content, "answer {id} has other bytes");
        }
    }
}

#[test]
fn sixty_four_clients_hammer() {
    let world = World::new(Arc::new(Memory::default()));
    std::thread::scope(|scope| {
        for client in 1000..1064u64 {
            let world = &world;
            scope.spawn(move || hammer(&world.transport_as(client), client));
        }
    });
}

fn hammer(transport: &dyn Transport, client: u64) {
    for round in 0..30u64 {
        let frame = Frame { client: ClientId(client), ..frame(round) };
        let bytes = vec![(client ^ round) as u8; 1 + (client * 37 + round * 911) as usize % 40_000];
        let (front, back) = bytes.split_at(bytes.len() / 2);
        let parts = [IoSlice::new(front), IoSlice::new(back)];
        call::<op::Write>(transport, frame, &write_request(client), &parts).unwrap();
        let mut space = vec![0u8; bytes.len()];
        let request = read_request(client, bytes.len() as u32);
        let mut into = [IoSliceMut::new(&mut space)];
        let (_, got) = call_into::<op::Read>(transport, frame, &request, &[], &mut into).unwrap();
        assert!(got == bytes.len() && space == bytes, "client {client} read other bytes in round {round}");
    }
}

/// Has a server wait for its threads for as long as a busy machine may take.
fn ends_late() -> ServerOptions {
    ServerOptions { stop_ms: 60_000, ..crate::world::options() }
}

#[test]
fn stopping_under_load_ends_every_thread() {
    let world = World::with(Arc::new(Memory::default()), ends_late());
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (started, all_started) = channel();
        for client in 0..8u64 {
            let (transport, started, stopped) = (world.transport_as(client), started.clone(), &stopped);
            scope.spawn(move || {
                let frame = Frame { client: ClientId(client), ..frame(1) };
                ping(&transport, client, 1);
                started.send(()).unwrap();
                while call::<op::Ping>(&transport, frame, &(), &[]).is_ok() {}
                assert!(stopped.load(Ordering::SeqCst), "a request failed before the end");
            });
        }
        (0..8).for_each(|_| all_started.recv().unwrap());
        stopped.store(true, Ordering::SeqCst);
        assert_eq!(world.server.stop(), 0);
    });
    assert_eq!(world.server.stop(), 0);
}

/// Panics when it is pinged on channel 13.
struct Clumsy;

impl Service for Clumsy {
    fn serve(&self, call: &Call<'_>, _reply: &mut Reply<'_>) {
        assert!(call.frame.channel != 13, "a handler's bug");
    }
}

#[test]
fn a_panic_is_an_error_of_one_request() {
    let world = World::new(Arc::new(Clumsy));
    let peer = world.peer();
    let mut raw = Raw::new(&world.address, CLIENT);
    for round in 0..5 {
        let error = call::<op::Ping>(&peer, Frame { channel: 13, ..frame(round) }, &(), &[]).unwrap_err();
        assert_eq!(error.errno(), Errno::EIO);
        call::<op::Ping>(&peer, frame(round), &(), &[]).unwrap();
    }
    raw.send(Frame { channel: 13, ..request(Op::Ping, 1) }, &[], &[]);
    assert_eq!(raw.receive().0.status, Errno::EIO.code());
    assert!(is_hung_up(&mut raw.0));
}

/// Panics where no request is at fault: when one of its clients comes.
struct Unwelcoming;

impl Service for Unwelcoming {
    fn serve(&self, _call: &Call<'_>, _reply: &mut Reply<'_>) {}

    fn client_connected(&self, client: ClientId) {
        assert!(client != ClientId(13), "a test");
    }
}

#[test]
fn a_panic_outside_of_handlers_costs_one_connection() {
    let world = World::new(Arc::new(Unwelcoming));
    // More of them than threads.
    for id in 0..2 * crate::world::options().threads_client as u64 {
        let frame = Frame { client: ClientId(13), ..frame(id) };
        call::<op::Ping>(&world.transport_as(13), frame, &(), &[]).unwrap_err();
    }
    ping(&world.transport_as(5), 5, 1);
}

/// Answers when as many requests are there at once.
struct Together(std::sync::Barrier);

impl Service for Together {
    fn serve(&self, _call: &Call<'_>, _reply: &mut Reply<'_>) {
        self.0.wait();
    }
}

#[test]
fn as_many_requests_wait_at_once_as_there_may_be_threads() {
    let threads = crate::world::options().threads_client;
    let world = World::with(Arc::new(Together(std::sync::Barrier::new(threads))), ends_late());
    // Twice: those that the first ones had started serve the next ones.
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for client in 0..threads as u64 {
                let transport = world.transport_as(client);
                scope.spawn(move || ping(&transport, client, 1));
            }
        });
    }
    assert_eq!(world.server.stop(), 0);
}

/// On channel 21 a request waits until one on channel 22 has come, and says so to its lane.
struct Waiting(std::sync::Barrier);

impl Service for Waiting {
    fn serve(&self, call: &Call<'_>, _reply: &mut Reply<'_>) {
        match call.frame.channel {
            21 => {
                bivouac_net::before_waiting();
                self.0.wait();
            }
            22 => drop(self.0.wait()),
            _ => {}
        }
    }
}

/// S390. Requests that wait for others took all threads of the lane, and nobody else was served.
#[test]
fn requests_that_wait_do_not_stop_the_lane() {
    let waiting = 3 * crate::world::options().threads_client;
    let world = World::with(Arc::new(Waiting(std::sync::Barrier::new(waiting + 1))), ends_late());
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for client in 0..waiting as u64 {
                let transport = world.transport_as(client);
                let waits = Frame { channel: 21, client: ClientId(client), ..frame(1) };
                scope.spawn(move || call::<op::Ping>(&transport, waits, &(), &[]).unwrap());
            }
            let (friend, client) = (world.transport_as(999), ClientId(999));
            (0..20).for_each(|id| ping(&friend, client.0, id));
            call::<op::Ping>(&friend, Frame { channel: 22, client, ..frame(30) }, &(), &[]).unwrap();
        });
    }
    assert_eq!(world.server.stop(), 0);
}

/// Tells the test who comes and goes.
struct Door(parking_lot::Mutex<Sender<(char, u64)>>);

impl Service for Door {
    fn serve(&self, _call: &Call<'_>, _reply: &mut Reply<'_>) {}
    fn client_connected(&self, client: ClientId) {
        self.0.lock().send(('+', client.0)).unwrap();
    }
    fn client_gone(&self, client: ClientId) {
        self.0.lock().send(('-', client.0)).unwrap();
    }
}

#[test]
fn the_service_hears_of_clients_not_of_connections() {
    let (sender, events): (_, Receiver<_>) = channel();
    let world = World::new(Arc::new(Door(parking_lot::Mutex::new(sender))));
    let next = || events.recv_timeout(Duration::from_secs(20)).unwrap();
    let (first, second, other) = (world.transport_as(1), world.transport_as(1), world.transport_as(2));
    ping(&first, 1, 1);
    ping(&second, 1, 2);
    ping(&other, 2, 3);
    assert_eq!((next(), next()), (('+', 1), ('+', 2)));
    assert_eq!(world.server.connections(), 3);
    drop(other);
    assert_eq!(next(), ('-', 2));
    drop((first, second));
    assert_eq!(next(), ('-', 1));
    assert!(events.try_recv().is_err());
    assert_eq!(world.server.connections(), 0);
}

#[test]
fn each_lane_serves_its_own_operations() {
    let world = World::new(Arc::new(Memory::default()));
    let identity = bivouac_net::Identity { lane: bivouac_net::LaneKind::Peer, ..crate::world::identity() };
    let options = bivouac_net::SocketOptions::default();
    let peer = bivouac_net::SocketTransport::new(world.peer_address.clone(), identity, options);
    let ino = bivouac_wire::InoOnly { ino: bivouac_types::Ino(1) };
    call::<op::Ping>(&peer, frame(1), &(), &[]).unwrap();
    // Known there, though this service does nothing with it.
    assert_eq!(call::<op::DropInode>(&peer, frame(2), &ino, &[]).unwrap_err().errno(), Errno::ENODATA);
    assert_eq!(call::<op::Touch>(&peer, frame(3), &ino, &[]).unwrap_err().errno(), Errno::EPROTO);
    let client = world.transport();
    assert_eq!(call::<op::DropInode>(&client, frame(4), &ino, &[]).unwrap_err().errno(), Errno::EPROTO);
    assert_eq!(call::<op::Touch>(&client, frame(5), &ino, &[]).unwrap_err().errno(), Errno::ENODATA);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn payloads_survive_any_cutting(
        cuts in proptest::collection::vec(0usize..30_000, 0..40),
        targets in proptest::collection::vec(0usize..30_000, 1..40),
        seed in any::<u8>(),
    ) {
        let world = World::new(Arc::new(Memory::default()));
        let transport = world.transport();
        let sources: Vec<Vec<u8>> =
            cuts.iter().enumerate().map(|(at, len)| vec![seed.wrapping_add(at as u8); *len]).collect();
        let whole = sources.concat();
        let parts: Vec<IoSlice<'_>> = sources.iter().map(|bytes| IoSlice::new(bytes)).collect();
        call::<op::Write>(&transport, frame(1), &write_request(1), &parts).unwrap();
        let mut spaces: Vec<Vec<u8>> = targets.iter().map(|len| vec![0; *len]).collect();
        let room: usize = targets.iter().sum();
        let mut into: Vec<IoSliceMut<'_>> = spaces.iter_mut().map(|space| IoSliceMut::new(space)).collect();
        let request = read_request(1, room as u32);
        let (_, got) = call_into::<op::Read>(&transport, frame(2), &request, &[], &mut into).unwrap();
        prop_assert_eq!(got, whole.len().min(room));
        prop_assert!(spaces.concat()[..got] == whole[..got]);
    }
}

/// A service of which a request on the peer lane waits for one on the mirror lane.
#[derive(Default)]
struct WaitsForReplicas {
    is_asked: AtomicBool,
    is_renewed: (parking_lot::Mutex<bool>, parking_lot::Condvar),
}

impl Service for WaitsForReplicas {
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        let (renewed, changed) = &self.is_renewed;
        match (call.op, call.lane) {
            (Op::ServesClient, LaneKind::Peer) => {
                self.is_asked.store(true, Ordering::SeqCst);
                changed.wait_while(&mut renewed.lock(), |renewed| !*renewed);
                reply.send(&true);
            }
            (Op::RenewReplica, LaneKind::Mirror) => {
                *renewed.lock() = true;
                changed.notify_all();
                reply.send(&ReplicaOutcome::Done);
            }
            (op, lane) => panic!("{op:?} on {lane:?}"),
        }
    }
}

#[test]
fn changes_of_replicas_are_served_while_the_only_thread_of_the_peer_lane_waits_for_one() {
    let service = Arc::new(WaitsForReplicas::default());
    let options = ServerOptions { threads_mirror: 1, ..crate::world::options() };
    let world = World::with(Arc::clone(&service) as Arc<_>, options);
    let on = |lane| {
        let identity = Identity { lane, ..crate::world::identity() };
        SocketTransport::new(world.peer_address.clone(), identity, SocketOptions::default())
    };
    let (peer, mirror) = (on(LaneKind::Peer), on(LaneKind::Mirror));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| call::<op::ServesClient>(&peer, frame(1), &CLIENT, &[]).unwrap());
        while !service.is_asked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let request = ReplicaSessionRequest { epoch: 1, session: 1, is_complete: false };
        for id in 2..20 {
            let renewed = call::<op::RenewReplica>(&mirror, frame(id), &request, &[]).unwrap();
            assert_eq!(renewed, ReplicaOutcome::Done);
        }
        assert!(asked.join().unwrap());
    });
    // Connections for replicas come to peers' listeners only, and nothing else is asked for over them.
    let identity = Identity { lane: LaneKind::Mirror, ..crate::world::identity() };
    let astray = SocketTransport::new(world.address.clone(), identity, SocketOptions::default());
    assert!(call::<op::Ping>(&astray, frame(1), &(), &[]).is_err());
    assert_eq!(call::<op::Ping>(&mirror, frame(30), &(), &[]).unwrap_err().errno(), Errno::EPROTO);
}

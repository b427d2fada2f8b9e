//! Bytes that are changed on the way: nobody takes them for what was sent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code outside of test functions")]

use std::collections::{HashMap, HashSet};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::world::{Raw, World, frame, identity, is_hung_up, read_request, write_request};
use bivouac_net::conformance::{CLIENT, Memory};
use bivouac_net::{
    Address, Call, Damage, LaneKind, Listener, NetError, Peer, PeerOptions, PendingReply, Reply, Request,
    Service, SocketOptions, SocketTransport, TamperingProxy, Transport, begin, call, call_into,
};
use bivouac_types::limits::FRAME_HEADER_LEN;
use bivouac_types::{Errno, NodeId};
use bivouac_wire::{Encode, Flags, Frame, Kind, Op, Seal, op};
use parking_lot::Mutex;

/// Remembers what was damaged.
#[derive(Default)]
struct Counted {
    memory: Memory,
    damaged: AtomicU32,
}

impl Service for Counted {
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        self.memory.serve(call, reply);
    }

    fn request_damaged(&self, lane: LaneKind) {
        assert_eq!(lane, LaneKind::Client);
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }
}

/// A server, what is between it and its clients, and how often that changed something.
struct Bad {
    service: Arc<Counted>,
    meddler: TamperingProxy,
    changes: Arc<AtomicU32>,
    _world: World,
}

impl Bad {
    /// Changes what `which` says: the frame, and how often the same (operation, id, direction) has come before.
    fn network(which: impl Fn(&Frame, u32) -> bool + Send + Sync + 'static) -> Bad {
        let service = Arc::new(Counted::default());
        let world = World::new(service.clone());
        let (changes, seen) = (Arc::new(AtomicU32::new(0)), Mutex::new(HashMap::new()));
        let changed = Arc::clone(&changes);
        let meddler = TamperingProxy::before(world.address.to_string(), move |frame, rest| {
            let mut seen = seen.lock();
            let times: &mut u32 = seen.entry((frame.op, frame.id, frame.kind as u8)).or_default();
            *times += 1;
            if which(frame, *times - 1)
                && let Some(byte) = rest.iter_mut().rev().nth(*times as usize % 3)
            {
                *byte ^= 1 << (*times % 8);
                changed.fetch_add(1, Ordering::Relaxed);
            }
        });
        Bad { service, meddler: meddler.unwrap(), changes, _world: world }
    }

    fn peer(&self) -> Peer {
        Peer::to(NodeId(4), self.meddler.address(), identity(), PeerOptions::default())
    }

    fn bare(&self) -> SocketTransport {
        SocketTransport::new(self.meddler.address(), identity(), SocketOptions::default())
    }

    fn changes(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    fn damaged(&self) -> u32 {
        self.service.damaged.load(Ordering::Relaxed)
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

const LENS: [usize; 5] = [1, 100, 16_000, 70_000, 1 << 20];

fn write(transport: &dyn Transport, id: u64, data: &[u8]) -> Result<(), Errno> {
    let request = write_request(id);
    let written = call::<op::Write>(transport, frame(id), &request, &[IoSlice::new(data)]);
    written.map(drop).map_err(|error| error.errno())
}

fn read(transport: &dyn Transport, id: u64, file: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let (front, back) = bytes.split_at_mut(len / 3);
    let mut into = [IoSliceMut::new(front), IoSliceMut::new(back)];
    let read = call_into::<op::Read>(transport, frame(id), &read_request(file, len as u32), &[], &mut into);
    let (_, read) = read.map_err(|error| error.errno())?;
    bytes.truncate(read);
    Ok(bytes)
}

/// S340.
#[test]
fn a_request_that_was_changed_is_not_carried_out_and_sent_again() {
    let bad =
        Bad::network(|frame, times| frame.kind == Kind::Request && frame.op == Op::Write as u16 && times < 2);
    let peer = bad.peer();
    for (number, len) in LENS.into_iter().enumerate() {
        let id = number as u64 + 1;
        write(&peer, id, &content(len)).unwrap();
        assert_eq!(read(&peer, id + 100, id, len).unwrap(), content(len));
    }
    let count = LENS.len() as u32;
    assert_eq!((bad.changes(), bad.damaged()), (2 * count, 2 * count), "each was noticed");
    let seen = bad.service.memory.seen();
    let writes: Vec<_> = seen.iter().filter(|frame| frame.op == Op::Write as u16).collect();
    assert_eq!(writes.len(), LENS.len(), "the service hears of what came whole");
    assert!(writes.iter().all(|frame| !frame.flags.is_retry()), "nothing had been carried out");
}

/// S341.
#[test]
fn an_answer_that_was_changed_is_asked_for_again() {
    let bad =
        Bad::network(|frame, times| frame.kind == Kind::Reply && frame.op == Op::Read as u16 && times < 2);
    let peer = bad.peer();
    for (number, len) in LENS.into_iter().enumerate() {
        let id = number as u64 + 1;
        write(&peer, id, &content(len)).unwrap();
        assert_eq!(read(&peer, id + 100, id, len).unwrap(), content(len));
    }
    let count = LENS.len() as u32;
    assert_eq!((bad.changes(), bad.damaged()), (2 * count, 0));
    let seen = bad.service.memory.seen();
    let told = seen.iter().filter(|frame| frame.flags.is_answer_damaged());
    assert_eq!(told.count() as u32, 2 * count, "the server is told");
    assert!(seen.iter().all(|frame| !frame.flags.is_answer_damaged() || frame.flags.is_retry()));
}

/// S342.
#[test]
fn what_is_changed_each_time_is_an_error_and_nothing_else() {
    let bad = Bad::network(|frame, _| frame.payload_len > 0);
    let peer = bad.peer();
    assert_eq!(write(&peer, 1, &content(5000)), Err(Errno::EIO));
    assert_eq!((bad.changes(), bad.damaged()), (8, 8));
    assert_eq!(read(&peer, 2, 1, 5000), Err(Errno::ENOENT), "nothing was written");
    let direct = bad._world.peer();
    write(&direct, 3, &content(300_000)).unwrap();
    let text = {
        let request = read_request(3, 300_000);
        let mut bytes = vec![0; 300_000];
        let into = &mut [IoSliceMut::new(&mut bytes)];
        call_into::<op::Read>(&peer, frame(4), &request, &[], into).unwrap_err().to_string()
    };
    assert!(text.contains("was damaged on the way, 8 times") && text.contains("an answer from"), "{text}");
}

/// S342.
#[test]
fn bodies_and_handshakes_are_compared_as_well() {
    // The second of everything that goes, whatever it is.
    let bad = Bad::network(|frame, times| frame.op != Op::Ping as u16 && times == 0);
    let peer = bad.peer();
    write(&peer, 1, &content(9000)).unwrap();
    assert_eq!(read(&peer, 2, 1, 9000).unwrap(), content(9000));
    assert!(bad.changes() >= 6, "Hello, Challenge, Proof, Welcome, Write, its answer: {}", bad.changes());
    let bodies = Bad::network(|frame, times| frame.kind == Kind::Request && frame.body_len > 0 && times == 0);
    call::<op::Parent>(&bodies.peer(), frame(3), &bivouac_wire::InoOnly { ino: bivouac_types::Ino(5) }, &[])
        .unwrap_err();
    assert!(bodies.damaged() >= 1);
}

/// S420: whatever byte of a header it is, of whatever is said.
#[test]
fn headers_that_were_changed_are_sent_again() {
    let service = Arc::new(Counted::default());
    let world = World::new(service.clone());
    let target = world.address.to_string();
    std::thread::scope(|scope| {
        for at in 0..FRAME_HEADER_LEN {
            let target = &target;
            scope.spawn(move || with_headers_changed_at(at, target));
        }
    });
    // An answer that came damaged may be one to what was carried out.
    let seen = service.memory.seen();
    let again = seen.iter().filter(|frame| frame.flags.is_answer_damaged());
    assert_eq!(again.filter(|frame| frame.flags.is_retry()).count(), 2 * FRAME_HEADER_LEN);
}

/// Changes one byte of the first frame of each kind: Hello, Challenge, Proof, Welcome, requests and answers.
fn with_headers_changed_at(at: usize, target: &str) {
    let (data, changes) = (content(300 + at), Arc::new(AtomicU32::new(0)));
    let (changed, seen) = (Arc::clone(&changes), Mutex::new(HashSet::new()));
    let meddler = TamperingProxy::between(target, move |unit, mut bytes| {
        if seen.lock().insert(unit.frame.map(|frame| (frame.op, frame.kind as u8))) {
            bytes[at] ^= 1 << (at % 8);
            changed.fetch_add(1, Ordering::Relaxed);
        }
        bytes.into()
    });
    let meddler = meddler.unwrap();
    let peer = Peer::to(NodeId(4), meddler.address(), identity(), PeerOptions::default());
    let id = at as u64 * 2 + 1;
    write(&peer, id, &data).unwrap_or_else(|errno| panic!("byte {at}: {errno}"));
    assert_eq!(read(&peer, id + 1, id, data.len()).unwrap(), data, "byte {at}");
    assert_eq!(changes.load(Ordering::Relaxed), 8, "byte {at}");
}

/// S341.
#[test]
fn several_at_once_are_compared_too() {
    let bad = Bad::network(|frame, times| frame.payload_len > 0 && times == 0);
    let peer = bad.peer();
    let data: Vec<Vec<u8>> = (0..4).map(|number| content(400_000 + number)).collect();
    let parts: Vec<[IoSlice<'_>; 1]> = data.iter().map(|data| [IoSlice::new(data)]).collect();
    let started: Vec<_> = (1..)
        .zip(&parts)
        .map(|(id, part)| begin::<op::Write>(&peer, frame(id), &write_request(id), part))
        .collect();
    for started in started {
        assert!(started.finish(&mut []).unwrap().0.accepted);
    }
    let asked = (1..=4).map(|id| begin::<op::Read>(&peer, frame(id + 10), &read_request(id, 500_000), &[]));
    for (started, data) in asked.collect::<Vec<_>>().into_iter().zip(&data) {
        let mut bytes = vec![0; 500_000];
        let (_, len) = started.finish(&mut [IoSliceMut::new(&mut bytes)]).unwrap();
        assert!(bytes[..len] == data[..]);
    }
    assert_eq!((bad.changes(), bad.damaged()), (8, 4));
}

/// Without anything that sends again, damage is an error by its name.
#[test]
fn a_bare_transport_says_which_side_was_damaged() {
    let bad = Bad::network(|frame, _| frame.kind == Kind::Request && frame.payload_len > 0);
    let body = write_request(1).to_bytes();
    let data = content(100);
    let payload = [IoSlice::new(&data)];
    let request = Request::new(Frame { op: Op::Write as u16, ..frame(1) }, &body, &payload);
    let error = bad.bare().exchange(&request, &mut Vec::new(), &mut []).unwrap_err();
    assert!(matches!(error, NetError::Damaged { what: Damage::Request, .. }), "{error}");
}

/// S340.
#[test]
fn over_tcp_nothing_comes_without_a_seal() {
    let service = Arc::new(Counted::default());
    let world = World::new(service.clone());
    let mut raw = Raw::new(&world.address, CLIENT);
    let ping = Frame::request(Op::Ping as u16, bivouac_types::OpId(1), CLIENT, 0);
    raw.send(ping, &[], &[]);
    assert_eq!((raw.receive().0.seal, service.memory.seen().len()), (Seal::Sum(0), 1));
    crate::world::say(&mut raw.0, &Frame { seal: Seal::None, ..ping }.to_bytes());
    assert!(is_hung_up(&mut raw.0));
    assert_eq!(service.memory.seen().len(), 1);
}

/// S343: on one machine nothing is between two processes but the kernel, and nothing is summed up.
#[test]
fn over_a_unix_socket_there_are_no_seals() {
    let dir = tempfile::tempdir().unwrap();
    let service = Arc::new(Memory::default());
    let listener = Listener::bind_unix(dir.path().join("s")).unwrap();
    let address = listener.address().clone();
    let _world = World::on(listener, service.clone(), crate::world::options());
    let transport = SocketTransport::new(address, identity(), SocketOptions::default());
    write(&transport, 1, &content(100_000)).unwrap();
    assert_eq!(read(&transport, 2, 1, 100_000).unwrap(), content(100_000));
    assert!(service.seen().iter().all(|frame| frame.seal == Seal::None && frame.flags == Flags::default()));
}

/// Says of the first requests that they came damaged, and remembers where their payload was.
struct Suspicious {
    inner: SocketTransport,
    places: Mutex<Vec<usize>>,
}

impl Transport for Suspicious {
    fn start(&self, request: &Request<'_>) -> PendingReply<'_> {
        let mut places = self.places.lock();
        places.extend(request.payload.iter().map(|part| part.as_ptr() as usize));
        if places.len() > 1 {
            return self.inner.start(request);
        }
        PendingReply::failed(NetError::Damaged { address: self.address(), what: Damage::Request, times: 1 })
    }

    fn connect(&self, wait: Duration) -> Result<(), NetError> {
        self.inner.connect(wait)
    }

    fn address(&self) -> Address {
        self.inner.address()
    }
}

/// S344: a program may go on changing its buffer while that is sent, and it fits no seal then.
#[test]
fn what_came_damaged_is_sent_again_from_memory_that_nobody_changes() {
    let world = World::new(Arc::new(Memory::default()));
    let transport = Arc::new(Suspicious { inner: world.transport(), places: Mutex::default() });
    let peer = Peer::new(NodeId(4), transport.clone(), PeerOptions::default());
    let data = content(50_000);
    write(&peer, 1, &data).unwrap();
    let places = transport.places.lock().clone();
    assert_eq!((places.len(), places[0]), (2, data.as_ptr() as usize));
    assert_ne!(places[1], places[0], "it is the caller's");
    assert_eq!(read(&world.transport(), 2, 1, 50_000).unwrap(), data);
}

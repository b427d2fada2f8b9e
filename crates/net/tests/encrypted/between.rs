//! Somebody in between who listens, changes, repeats, holds back, exchanges and cuts: nothing is read or changed.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::world::{World, auth, frame, identity, options, read_request, write_request};
use bivouac_net::conformance::Memory;
use bivouac_net::{
    Address, Auth, ForwardedUnit, HandshakeRefusal, Identity, Listener, NetError, Peer, PeerOptions, Request,
    Secret, SocketOptions, SocketTransport, TamperingProxy, Transport, Unit, begin, call, call_into,
};
use bivouac_types::{Errno, NodeId};
use bivouac_wire::{Encode, Frame, MAGIC, Op, Seal, VERSION, op, seal_of};
use parking_lot::Mutex;

/// A server, and what is between it and its clients.
struct Between {
    memory: Arc<Memory>,
    meddler: TamperingProxy,
    _world: World,
}

impl Between {
    fn with(meddle: impl Fn(&Unit, Vec<u8>) -> ForwardedUnit + Send + Sync + 'static) -> Between {
        let memory = Arc::new(Memory::default());
        let world = World::new(memory.clone());
        let meddler = TamperingProxy::between(world.address.to_string(), meddle).unwrap();
        Between { memory, meddler, _world: world }
    }

    fn peer(&self) -> Peer {
        Peer::to(NodeId(4), self.meddler.address(), identity(), PeerOptions::default())
    }

    /// How often each write was carried out, by its id.
    fn writes(&self) -> Vec<(u64, u32)> {
        let mut count = std::collections::BTreeMap::new();
        for frame in self.memory.seen().iter().filter(|frame| frame.op == Op::Write as u16) {
            assert_eq!(frame.seal, Seal::Record);
            *count.entry(frame.id.0).or_default() += 1;
        }
        count.into_iter().collect()
    }
}

fn write(transport: &dyn Transport, id: u64, data: &[u8]) -> Result<(), Errno> {
    let written = call::<op::Write>(transport, frame(id), &write_request(id), &[IoSlice::new(data)]);
    written.map(drop).map_err(|error| error.errno())
}

fn read(transport: &dyn Transport, id: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let (front, back) = bytes.split_at_mut(len / 3);
    let mut into = [IoSliceMut::new(front), IoSliceMut::new(back)];
    let request = read_request(id, len as u32);
    let outcome = call_into::<op::Read>(transport, frame(id + 1000), &request, &[], &mut into);
    let (_, read) = outcome.map_err(|error| error.errno())?;
    bytes.truncate(read);
    Ok(bytes)
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn holds(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// Everything that goes over the network while a file is written and read.
fn overheard(is_secure: bool, data: &[u8]) -> Vec<u8> {
    let auth = Auth { is_secure, ..auth() };
    let listener = Listener::bind_tcp("127.0.0.1:0").unwrap();
    let world = World::of(auth.clone(), listener, Arc::new(Memory::default()), options());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&heard);
    let meddler = TamperingProxy::between(world.address.to_string(), move |_, bytes| {
        ears.lock().extend_from_slice(&bytes);
        bytes.into()
    });
    let (meddler, identity) = (meddler.unwrap(), Identity { auth, ..identity() });
    let peer = Peer::to(NodeId(4), meddler.address(), identity, PeerOptions::default());
    write(&peer, 1, data).unwrap();
    assert_eq!(read(&peer, 1, data.len()).unwrap(), data);
    drop((peer, meddler, world));
    let heard = heard.lock().clone();
    assert!(heard.len() > 2 * data.len());
    heard
}

/// S421: no payload, no body and no header but those of the handshake.
#[test]
fn who_listens_learns_nothing() {
    let data = b"What nobody else is to know. ".repeat(9000);
    let clear = overheard(false, &data);
    assert!(holds(&clear, &data[..29]), "it is looked for as it should be");
    let start = [&MAGIC.to_le_bytes()[..], &VERSION.to_le_bytes()].concat();
    let frames = |bytes: &[u8]| bytes.windows(start.len()).filter(|window| *window == start).count();
    assert_eq!(frames(&clear), 8);
    let secret = overheard(true, &data);
    assert!(!holds(&secret, &data[..8]) && !holds(&secret, &write_request(1).to_bytes()));
    assert_eq!(frames(&secret), 3, "Hello, Challenge and Proof");
    assert!(!holds(&secret, auth().secret.expose()));
}

/// Changes the first record that goes the given way over each of the first connections.
fn with_records_changed(is_asked: bool, at: usize) {
    let changes = Arc::new(AtomicU32::new(0));
    let changed = Arc::clone(&changes);
    let between = Between::with(move |unit, mut bytes| {
        // The first record to the client is Welcome.
        let number = if is_asked { 2 } else { 2 - unit.connection.min(1) };
        if unit.is_asked == is_asked && unit.number == number && unit.connection < 3 {
            let at = at * (bytes.len() - 1) / 40;
            bytes[at] ^= 1 << (at % 8);
            changed.fetch_add(1, Ordering::Relaxed);
        }
        bytes.into()
    });
    let (peer, data) = (between.peer(), content(200_000));
    write(&peer, 1, &data).unwrap_or_else(|errno| panic!("{at}: {errno}"));
    assert!(read(&peer, 1, data.len()).unwrap() == data, "{at}");
    assert_eq!(changes.load(Ordering::Relaxed), 3);
    let carried_out = if is_asked { 1 } else { 2 };
    assert_eq!(between.writes(), [(1, carried_out)], "a request that was changed is not carried out");
    let seen = between.memory.seen();
    assert!(seen.iter().all(|frame| frame.flags.is_retry() == frame.flags.is_answer_damaged()));
}

/// S422.
#[test]
fn what_was_changed_is_sent_again() {
    std::thread::scope(|scope| {
        for at in 0..=40 {
            scope.spawn(move || with_records_changed(true, at));
            scope.spawn(move || with_records_changed(false, at));
        }
    });
}

/// S422.
#[test]
fn what_is_changed_each_time_is_an_error() {
    let hopeless = Arc::new(AtomicU32::new(0));
    let which = Arc::clone(&hopeless);
    let between = Between::with(move |unit, mut bytes| {
        let is_long = unit.frame.is_none() && bytes.len() > 1000;
        if is_long && which.load(Ordering::Relaxed) == 1 + u32::from(unit.is_asked) {
            bytes[500] ^= 4;
        }
        bytes.into()
    });
    let (peer, data) = (between.peer(), content(70_000));
    hopeless.store(2, Ordering::Relaxed);
    assert_eq!(write(&peer, 1, &data), Err(Errno::EIO));
    assert_eq!(between.writes(), []);
    hopeless.store(0, Ordering::Relaxed);
    write(&peer, 2, &data).unwrap();
    hopeless.store(1, Ordering::Relaxed);
    assert_eq!(read(&peer, 2, data.len()), Err(Errno::EIO));
    hopeless.store(0, Ordering::Relaxed);
    assert_eq!(read(&peer, 2, data.len()).unwrap(), data);
}

/// What somebody in between does with one of several records of a request, once.
#[derive(Clone, Copy, Debug)]
enum Trick {
    Repeat,
    Leave,
    Exchange,
    Cut,
}

/// S423: whichever record it is of a request that has five.
#[test]
fn records_that_are_repeated_left_out_or_exchanged_are_refused() {
    for trick in [Trick::Repeat, Trick::Leave, Trick::Exchange, Trick::Cut] {
        // Behind the last one nothing comes that would show that it is missing: that is silence, as in a cut.
        for which in 2..6 {
            let held = Mutex::new(Vec::new());
            let between = Between::with(move |unit, bytes| {
                let is_meant = unit.is_asked && unit.connection == 0;
                match trick {
                    _ if !is_meant => bytes.into(),
                    Trick::Exchange if unit.number == which + 1 => {
                        [bytes, std::mem::take(&mut *held.lock())].concat().into()
                    }
                    _ if unit.number != which => bytes.into(),
                    Trick::Repeat => [&bytes[..], &bytes].concat().into(),
                    Trick::Leave => ForwardedUnit::default(),
                    Trick::Exchange => {
                        *held.lock() = bytes;
                        ForwardedUnit::default()
                    }
                    Trick::Cut => ForwardedUnit { bytes: bytes[..bytes.len() / 2].to_vec(), ends: true },
                }
            });
            let (peer, data) = (between.peer(), content(300_000));
            write(&peer, 1, &data).unwrap_or_else(|errno| panic!("{trick:?} {which}: {errno}"));
            assert!(read(&peer, 1, data.len()).unwrap() == data, "{trick:?} {which}");
            assert_eq!(between.writes(), [(1, 1)], "{trick:?} {which}");
        }
    }
}

/// S423: a whole request that is said again, on its own connection or another one, is not heard again.
#[test]
fn a_request_that_was_recorded_is_not_carried_out_again() {
    for elsewhere in [false, true] {
        let recorded = Mutex::new(Vec::new());
        let between = Between::with(move |unit, bytes| {
            let is_request = unit.is_asked && unit.frame.is_none();
            let mut recorded = recorded.lock();
            match unit.number {
                2 if is_request && recorded.is_empty() => {
                    recorded.clone_from(&bytes);
                    let ends = elsewhere;
                    ForwardedUnit { bytes, ends }
                }
                2 | 3 if is_request && unit.connection < 2 => [&recorded[..], &bytes].concat().into(),
                _ => bytes.into(),
            }
        });
        let peer = between.peer();
        // Cut off behind the request, the answer is lost, and it is asked for again.
        let first = write(&peer, 1, b"first");
        assert_eq!(first, Ok(()));
        write(&peer, 2, b"second").unwrap();
        assert_eq!(read(&peer, 1, 5).unwrap(), b"first");
        let carried_out: u32 = between.writes().iter().map(|(_, times)| times).sum();
        let seen = between.memory.seen();
        let asked_again = seen.iter().filter(|frame| frame.op == Op::Write as u16 && frame.flags.is_retry());
        // Not more often than it was asked for; the first time the connection may have ended before it was served.
        let asked = 2 + asked_again.count();
        assert!(
            (2..=asked).contains(&(carried_out as usize)),
            "elsewhere: {elsewhere}, {carried_out} of {asked}"
        );
    }
}

/// What a client hears that does not get in.
fn refusal(address: &Address, auth: Auth) -> HandshakeRefusal {
    let transport =
        SocketTransport::new(address.clone(), Identity { auth, ..identity() }, SocketOptions::default());
    let request = Request::new(Frame { op: Op::Ping as u16, ..frame(1) }, &[], &[]);
    match transport.exchange(&request, &mut Vec::new(), &mut []) {
        Err(NetError::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

/// S424.
#[test]
fn only_who_knows_the_secret_and_encrypts_gets_in() {
    let memory = Arc::new(Memory::default());
    let world = World::new(memory.clone());
    let wrong = Auth { secret: Secret::new([9; 32]), ..auth() };
    assert_eq!(refusal(&world.address, wrong), HandshakeRefusal::Secret);
    let open = Auth { is_secure: false, ..auth() };
    assert_eq!(refusal(&world.address, open.clone()), HandshakeRefusal::Way);
    let listener = Listener::bind_tcp("127.0.0.1:0").unwrap();
    let other = World::of(open, listener, memory.clone(), options());
    assert_eq!(refusal(&other.address, auth()), HandshakeRefusal::Way);
    assert_eq!(memory.seen(), []);
}

/// S424: neither side can be talked into less than it was told to do.
#[test]
fn nobody_in_between_turns_encryption_off() {
    let memory = Arc::new(Memory::default());
    for is_encrypting in [true, false] {
        let listener = Listener::bind_tcp("127.0.0.1:0").unwrap();
        let other =
            World::of(Auth { is_secure: is_encrypting, ..auth() }, listener, memory.clone(), options());
        let meddler = TamperingProxy::between(other.address.to_string(), |unit, mut bytes| {
            if unit.number == 0 && unit.is_asked {
                bytes[64 + 17] = 1;
                mend(&mut bytes);
            }
            bytes.into()
        });
        // A server that does not encrypt answers, and its proof is about another conversation.
        let expected = if is_encrypting { HandshakeRefusal::Way } else { HandshakeRefusal::Secret };
        assert_eq!(refusal(&meddler.unwrap().address(), auth()), expected);
    }
    assert_eq!(memory.seen(), []);
}

/// Makes the sums of a frame right again.
fn mend(bytes: &mut [u8]) {
    let mut frame = Frame::from_bytes(bytes.first_chunk().unwrap()).unwrap();
    frame.seal = seal_of(&bytes[64..], []);
    bytes[..64].copy_from_slice(&frame.to_bytes());
}

/// S422: several at a time, by one thread.
#[test]
fn what_is_carried_on_in_steps_is_encrypted_too() {
    let turn = AtomicUsize::new(0);
    let between = Between::with(move |unit, mut bytes| {
        if unit.frame.is_none() && bytes.len() > 1000 && turn.fetch_add(1, Ordering::Relaxed) % 23 == 5 {
            bytes[900] ^= 1;
        }
        bytes.into()
    });
    let peer = between.peer();
    let data: Vec<Vec<u8>> = (0..4).map(|number| content(400_000 + number)).collect();
    let parts: Vec<[IoSlice<'_>; 1]> = data.iter().map(|data| [IoSlice::new(data)]).collect();
    let started: Vec<_> = (1..)
        .zip(&parts)
        .map(|(id, part)| begin::<op::Write>(&peer, frame(id), &write_request(id), part))
        .collect();
    for started in started {
        assert!(started.finish(&mut []).unwrap().0.accepted);
    }
    let requests: Vec<_> = (1..=4).map(|id| (id, read_request(id, 500_000))).collect();
    let asked = requests.iter().map(|(id, request)| begin::<op::Read>(&peer, frame(id + 10), request, &[]));
    for (started, data) in asked.collect::<Vec<_>>().into_iter().zip(&data) {
        let mut bytes = vec![0; 500_000];
        let (_, len) = started.finish(&mut [IoSliceMut::new(&mut bytes)]).unwrap();
        assert!(bytes[..len] == data[..]);
    }
}

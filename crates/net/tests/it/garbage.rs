//! Strangers on the ports: the server serves on.
#![allow(clippy::unwrap_used, reason = "test code outside of test functions")]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use crate::odd_servers::receive;
use crate::world::{World, auth, frame, identity, is_hung_up, message, options, say};
use bivouac_net::conformance::{CLIENT, Memory};
use bivouac_net::{
    HandshakeRefusal, Identity, LaneKind, NetError, Request, Secret, ServerOptions, SocketOptions,
    SocketTransport, Transport, call,
};
use bivouac_types::limits::HANDSHAKES_MAX;
use bivouac_types::{ClientId, FormationId, OpId};
use bivouac_wire::{Frame, Op, Seal, VERSION, op};

/// Number of the first message of a handshake.
const HELLO: u16 = 0xff01;

fn serves_on(world: &World) {
    call::<op::Ping>(&world.transport(), frame(1), &(), &[]).unwrap();
}

/// Bytes that look random and are the same in every run.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(step).collect()
}

fn hello() -> Vec<u8> {
    let body = [&auth().formation.0[..], &[0, 1], &[0; 12], &[0xff; 2], &[0; 4], &[3; 32], &[0; 32]].concat();
    message(Frame::request(HELLO, OpId(0), CLIENT, 0), &body, &[])
}

#[test]
fn random_bytes_end_the_connection() {
    let memory = Arc::new(Memory::default());
    let world = World::new(Arc::clone(&memory) as Arc<_>);
    for (len, seed) in [(64, 1), (65, 2), (1000, 3), (100_000, 4), (1 << 20, 5)] {
        let mut stranger = world.stranger();
        say(&mut stranger, &noise(len, seed));
        assert!(is_hung_up(&mut stranger), "{len} bytes of noise");
        serves_on(&world);
    }
    assert_eq!(memory.seen().len(), 5);
}

#[test]
fn damaged_headers_end_the_connection() {
    let world = World::new(Arc::new(Memory::default()));
    for at in (0..64).filter(|at| ![4, 5].contains(at)) {
        let mut bytes = hello();
        bytes[at] ^= 0x40;
        let mut stranger = world.stranger();
        say(&mut stranger, &bytes);
        assert!(is_hung_up(&mut stranger), "damage at {at}");
    }
    serves_on(&world);
}

#[test]
fn strangers_may_not_announce_long_frames() {
    let world = World::new(Arc::new(Memory::default()));
    for (body_len, payload_len) in [(257, 0), (1 << 18, 0), (49, 1), (0, 1 << 23), (u32::MAX, u32::MAX)] {
        let frame = Frame::request(HELLO, OpId(0), CLIENT, 0);
        let frame = Frame { body_len, payload_len, seal: Seal::Sum(0), ..frame };
        let mut stranger = world.stranger();
        say(&mut stranger, &frame.to_bytes());
        assert!(is_hung_up(&mut stranger), "lengths {body_len} and {payload_len}");
    }
    serves_on(&world);
}

#[test]
fn requests_before_the_proof_are_not_served() {
    let memory = Arc::new(Memory::default());
    let world = World::new(Arc::clone(&memory) as Arc<_>);
    let ping = message(Frame::request(Op::Ping as u16, OpId(1), CLIENT, 0), &[], &[]);
    let mut stranger = world.stranger();
    say(&mut stranger, &ping);
    assert!(is_hung_up(&mut stranger));
    let mut stranger = world.stranger();
    say(&mut stranger, &[&hello()[..], &ping[..]].concat());
    assert!(is_hung_up(&mut stranger));
    assert!(memory.seen().is_empty());
}

#[test]
fn half_a_handshake_holds_nobody_up_and_can_be_finished_later() {
    let world = World::new(Arc::new(Memory::default()));
    let bytes = hello();
    let cuts = [1, 63, 64, 65, 112];
    let mut strangers: Vec<_> = cuts
        .iter()
        .map(|cut| {
            let mut stranger = world.stranger();
            stranger.write_all(&bytes[..*cut]).unwrap();
            stranger
        })
        .collect();
    serves_on(&world);
    for (cut, stranger) in cuts.iter().zip(&mut strangers) {
        stranger.write_all(&bytes[*cut..]).unwrap();
        let mut challenge = [0u8; 160];
        stranger.read_exact(&mut challenge).unwrap();
        let frame = Frame::from_bytes(challenge.first_chunk().unwrap()).unwrap();
        assert_eq!((frame.op, frame.status, frame.body_len), (HELLO, 0, 96));
    }
}

#[test]
fn a_thousand_idle_strangers_do_not_keep_friends_out() {
    let world = World::new(Arc::new(Memory::default()));
    let mut strangers: Vec<_> = (0..1000).map(|_| world.stranger()).collect();
    serves_on(&world);
    // The oldest went for the newer ones.
    let surplus = strangers.len() - HANDSHAKES_MAX;
    for stranger in strangers.iter_mut().take(surplus) {
        assert!(is_hung_up(stranger));
    }
    serves_on(&world);
}

#[test]
fn who_does_not_prove_itself_in_time_is_hung_up_on() {
    let service = Arc::new(Memory::default());
    let world = World::with(service, ServerOptions { handshake_ms: 30, ..options() });
    let (mut silent, mut slow) = (world.stranger(), world.stranger());
    slow.write_all(&hello()[..10]).unwrap();
    assert!(is_hung_up(&mut silent) && is_hung_up(&mut slow));
    // One that is as slow, on a busy machine, tries again.
    call::<op::Ping>(&world.peer(), frame(1), &(), &[]).unwrap();
}

#[test]
fn another_version_is_named_on_both_sides() {
    let world = World::new(Arc::new(Memory::default()));
    let mut bytes = hello();
    crate::world::speak_version(&mut bytes, VERSION + 1);
    let mut stranger = world.stranger();
    say(&mut stranger, &bytes);
    let mut answer = [0u8; 64];
    stranger.read_exact(&mut answer).unwrap();
    let frame = Frame::from_bytes(&answer).unwrap();
    assert_eq!((frame.op, frame.status), (HELLO, bivouac_types::Errno::EPROTO.code()));
    assert!(is_hung_up(&mut stranger));
}

#[test]
fn a_server_of_another_version_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = bivouac_net::Address::tcp(listener.local_addr().unwrap().to_string());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // All of it: what is unread when the stream is closed resets it, and the reply may be lost with that.
        receive(&mut stream);
        let mut reply = Frame::request(HELLO, OpId(0), CLIENT, 0).reply(71, 0, 0).to_bytes();
        crate::world::speak_version(&mut reply, VERSION + 1);
        stream.write_all(&reply).unwrap();
    });
    let error = refused(&SocketTransport::new(address, identity(), SocketOptions::default()));
    server.join().unwrap();
    let NetError::Refused { reason: HandshakeRefusal::Version { theirs }, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(theirs, VERSION + 1);
    assert!(error.to_string().contains(&format!("version {theirs}")), "{error}");
}

fn refused(transport: &SocketTransport) -> NetError {
    let request = Request::new(Frame { op: Op::Ping as u16, ..frame(1) }, &[], &[]);
    transport.exchange(&request, &mut Vec::new(), &mut []).unwrap_err()
}

#[test]
fn wrong_secret_formation_and_lane_are_told_apart() {
    let world = World::new(Arc::new(Memory::default()));
    let mut wrong_secret = auth();
    wrong_secret.secret = Secret::new([9; 32]);
    let mut wrong_formation = auth();
    wrong_formation.formation = FormationId([9; 16]);
    let cases = [
        (Identity { auth: wrong_secret, ..identity() }, HandshakeRefusal::Secret),
        (Identity { auth: wrong_formation, ..identity() }, HandshakeRefusal::Formation),
        (Identity { lane: LaneKind::Peer, ..identity() }, HandshakeRefusal::Lane),
    ];
    for (identity, expected) in cases {
        let transport = SocketTransport::new(world.address.clone(), identity, SocketOptions::default());
        match refused(&transport) {
            NetError::Refused { reason, .. } => assert_eq!(reason, expected),
            other => panic!("{other}"),
        }
    }
    serves_on(&world);
}

#[test]
fn something_else_at_the_address_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = bivouac_net::Address::tcp(listener.local_addr().unwrap().to_string());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(4)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let transport = SocketTransport::new(address, identity(), SocketOptions::default());
    let error = refused(&transport);
    drop(transport);
    server.join().unwrap();
    assert!(error.to_string().contains("not a bivouac frame"), "{error}");
}

#[test]
fn a_proven_client_that_talks_nonsense_loses_only_its_connection() {
    let world = World::new(Arc::new(Memory::default()));
    let friend = world.transport_as(5);
    let ping = Frame { op: Op::Ping as u16, client: ClientId(5), ..frame(1) };
    call::<op::Ping>(&friend, ping, &(), &[]).unwrap();
    // Another client's number is not accepted on this connection.
    let error = call::<op::Ping>(&friend, frame(2), &(), &[]).unwrap_err();
    assert_eq!(error.errno(), bivouac_types::Errno::EPROTO);
    call::<op::Ping>(&friend, ping, &(), &[]).unwrap();
    assert_eq!(world.server.connections(), 1);
}

//! A server in this process with everything that a test needs to talk to it.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code outside of test functions")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bivouac_net::conformance::CLIENT;
use bivouac_net::{
    Address, Auth, Identity, LaneKind, Listener, Peer, PeerOptions, Secret, Server, ServerOptions, Service,
    SocketOptions, SocketTransport,
};
use bivouac_types::{ClientId, FormationId, Ino, Layout, NodeId, OpId, TargetIndex};
use bivouac_wire::{Frame, ReadRequest, Seal, WriteRequest, seal_of};
use hmac::{Hmac, KeyInit, Mac};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sha2::Sha256;

pub struct World {
    pub server: Server,
    pub address: Address,
    pub peer_address: Address,
}

pub fn auth() -> Auth {
    // What is run over encrypted connections as well is of another program.
    let is_secure = module_path!().starts_with("encrypted");
    Auth { formation: FormationId([1; 16]), secret: Secret::new([2; 32]), is_secure }
}

pub fn identity() -> Identity {
    Identity { auth: auth(), client: CLIENT, lane: LaneKind::Client, epoch: 0 }
}

pub fn frame(id: u64) -> Frame {
    Frame::request(0, OpId(id), CLIENT, 1)
}

pub fn options() -> ServerOptions {
    ServerOptions { threads_client: 3, threads_peer: 1, ..ServerOptions::default() }
}

impl World {
    pub fn new(service: Arc<dyn Service>) -> World {
        World::with(service, options())
    }

    pub fn with(service: Arc<dyn Service>, options: ServerOptions) -> World {
        World::on(Listener::bind_tcp("127.0.0.1:0").unwrap(), service, options)
    }

    pub fn on(listener: Listener, service: Arc<dyn Service>, options: ServerOptions) -> World {
        World::of(auth(), listener, service, options)
    }

    pub fn of(auth: Auth, listener: Listener, service: Arc<dyn Service>, options: ServerOptions) -> World {
        let peers = Listener::bind_tcp("127.0.0.1:0").unwrap();
        let (address, peer_address) = (listener.address().clone(), peers.address().clone());
        let listeners = vec![(listener, LaneKind::Client), (peers, LaneKind::Peer)];
        let server = Server::start(listeners, service, auth, options).unwrap();
        World { server, address, peer_address }
    }

    pub fn transport(&self) -> SocketTransport {
        SocketTransport::new(self.address.clone(), identity(), SocketOptions::default())
    }

    pub fn transport_as(&self, client: u64) -> SocketTransport {
        let identity = Identity { client: ClientId(client), ..identity() };
        SocketTransport::new(self.address.clone(), identity, SocketOptions::default())
    }

    pub fn peer(&self) -> Peer {
        Peer::to(NodeId(4), self.address.clone(), identity(), PeerOptions::default())
    }

    /// A bare connection that has said nothing yet.
    pub fn stranger(&self) -> TcpStream {
        connect(&self.address)
    }
}

/// An address at which nobody listens, nor begins to as long as the socket is there, which has its port.
pub fn unanswered() -> (OwnedFd, Address) {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    (socket, Address::tcp(address.to_string()))
}

pub fn connect(address: &Address) -> TcpStream {
    let Address::Tcp(address) = address else { panic!("{address} is not TCP") };
    let stream = TcpStream::connect(address).unwrap();
    // A test must fail rather than hang.
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Whether the other side ends the connection; what it says before that is thrown away.
pub fn is_hung_up(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

pub fn say(stream: &mut TcpStream, bytes: &[u8]) {
    // The server may have hung up already; that is what the tests look at.
    let _ = stream.write_all(bytes);
}

/// A proven connection whose bytes the test writes and reads itself. Its handshake is a second
/// implementation of the one in docs/protocol.md.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn new(address: &Address, client: ClientId) -> Raw {
        let mut raw = Raw(connect(address));
        let nonce = [5; 32];
        let mut hello = auth().formation.0.to_vec();
        hello.extend([0, 1]);
        // Of no generation, from no node, for whoever answers.
        let generation = [&[0; 12][..], &[0xff; 2], &[0; 4]].concat();
        hello.extend(&generation);
        hello.extend_from_slice(&nonce);
        hello.extend([0; 32]);
        raw.send(Frame::request(0xff01, OpId(0), client, 0), &hello, &[]);
        let (frame, challenge) = raw.receive();
        assert_eq!((frame.status, challenge.len()), (0, 96));
        let server_nonce: [u8; 32] = challenge[..32].try_into().unwrap();
        let label: &[u8] = b"bivouac-client-2";
        let (of, keys) = (auth().formation.0, [0; 64]);
        let about: [&[u8]; 6] = [label, &of, &[0], &client.0.to_le_bytes(), &[1], &generation];
        let about = [&about.concat()[..], &nonce, &server_nonce, &keys].concat();
        let mut mac = Hmac::<Sha256>::new_from_slice(auth().secret.expose()).unwrap();
        mac.update(&about);
        let proof: [u8; 32] = mac.finalize().into_bytes().into();
        raw.send(Frame::request(0xff02, OpId(0), client, 0), &proof, &[]);
        assert_eq!(raw.receive().0.status, 0);
        raw
    }

    pub fn send(&mut self, frame: Frame, body: &[u8], payload: &[u8]) {
        self.0.write_all(&message(frame, body, payload)).unwrap();
    }

    /// Header, and body and payload together.
    pub fn receive(&mut self) -> (Frame, Vec<u8>) {
        let mut header = [0u8; 64];
        self.0.read_exact(&mut header).unwrap();
        let frame = Frame::from_bytes(&header).unwrap();
        let mut rest = vec![0u8; frame.body_len as usize + frame.payload_len as usize];
        self.0.read_exact(&mut rest).unwrap();
        (frame, rest)
    }
}

pub fn message(mut frame: Frame, body: &[u8], payload: &[u8]) -> Vec<u8> {
    (frame.body_len, frame.payload_len) = (body.len() as u32, payload.len() as u32);
    frame.seal = seal_of(body, [payload]);
    [&frame.to_bytes()[..], body, payload].concat()
}

/// Makes a frame's header one of another version of the protocol.
pub fn speak_version(frame: &mut [u8], version: u16) {
    frame[4..6].copy_from_slice(&version.to_le_bytes());
    let Seal::Sum(sum) = seal_of(&frame[..60], []) else { panic!() };
    frame[60..64].copy_from_slice(&sum.to_le_bytes());
}

pub fn write_request(ino: u64) -> WriteRequest {
    let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
    WriteRequest { ino: Ino(ino), target: TargetIndex(0), layout, epoch: 0, offset: 0 }
}

pub fn read_request(ino: u64, len: u32) -> ReadRequest {
    ReadRequest { ino: Ino(ino), target: TargetIndex(0), offset: 0, len }
}

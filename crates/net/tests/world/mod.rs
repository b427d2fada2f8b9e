//! A server in this process with everything that a test needs to talk to it.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use bivouac_net::conformance::CLIENT;
use bivouac_net::{
    Address, Auth, Identity, LaneKind, Listener, Peer, PeerOptions, Secret, Server, ServerOptions, Service,
    SocketOptions, SocketTransport,
};
use bivouac_types::{ClientId, FormationId, NodeId, OpId};
use bivouac_wire::Frame;

pub struct World {
    pub server: Server,
    pub address: Address,
    pub peer_address: Address,
}

pub fn auth() -> Auth {
    Auth { formation: FormationId([1; 16]), secret: Secret::new([2; 32]) }
}

pub fn identity() -> Identity {
    Identity { auth: auth(), client: CLIENT, lane: LaneKind::Client }
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
        let peers = Listener::bind_tcp("127.0.0.1:0").unwrap();
        let (address, peer_address) = (listener.address().clone(), peers.address().clone());
        let listeners = vec![(listener, LaneKind::Client), (peers, LaneKind::Peer)];
        let server = Server::start(listeners, service, auth(), options).unwrap();
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

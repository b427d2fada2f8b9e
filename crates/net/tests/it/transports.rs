//! The conformance suite on every transport.

use std::sync::Arc;

use crate::world::{World, auth, identity, options};
use bivouac_net::{
    FailingTransport, InProcess, LaneKind, Listener, Peer, PeerOptions, Server, Service, SocketOptions,
    SocketTransport, Transport, conformance,
};
use bivouac_types::NodeId;

#[test]
fn tcp() {
    conformance::transport(|service| {
        let world = World::new(service);
        (Arc::new(world.transport()) as Arc<dyn Transport>, world)
    })
    .unwrap();
}

#[test]
fn unix() {
    conformance::transport(|service| {
        let directory = tempfile::tempdir().unwrap();
        let listener = Listener::bind_unix(directory.path().join("s")).unwrap();
        let address = listener.address().clone();
        let server = Server::start(vec![(listener, LaneKind::Client)], service, auth(), options()).unwrap();
        let transport = SocketTransport::new(address, identity(), SocketOptions::default());
        (Arc::new(transport) as Arc<dyn Transport>, (server, directory))
    })
    .unwrap();
}

fn in_process(service: Arc<dyn Service>) -> Arc<dyn Transport> {
    Arc::new(InProcess::new(service, LaneKind::Client))
}

#[test]
fn same_process() {
    conformance::transport(|service| (in_process(service), ())).unwrap();
}

#[test]
fn peer_over_tcp() {
    conformance::transport(|service| {
        let world = World::new(service);
        (Arc::new(world.peer()) as Arc<dyn Transport>, world)
    })
    .unwrap();
}

#[test]
fn peer_in_process() {
    conformance::transport(|service| {
        let peer = Peer::new(NodeId(0), in_process(service), PeerOptions::default());
        (Arc::new(peer) as Arc<dyn Transport>, ())
    })
    .unwrap();
}

#[test]
fn failing_without_faults() {
    conformance::transport(|service| {
        (Arc::new(FailingTransport::new(in_process(service), |_| None)) as Arc<dyn Transport>, ())
    })
    .unwrap();
}

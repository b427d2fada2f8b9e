//! Where servers listen, and what users read when that does not work.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use crate::world::{World, auth, frame, identity, options};
use bivouac_net::conformance::Memory;
use bivouac_net::{Address, LaneKind, Listener, Server, SocketOptions, SocketTransport, call};
use bivouac_wire::op;

#[test]
fn a_port_in_use_is_named_with_the_remedy() {
    let first = Listener::bind_tcp("127.0.0.1:0").unwrap();
    let Address::Tcp(address) = first.address() else { panic!("not TCP") };
    let text = Listener::bind_tcp(address).unwrap_err().to_string();
    assert!(text.contains(address) && text.contains("another process listens there"), "{text}");
}

#[test]
fn an_address_that_makes_no_sense_is_named() {
    let text = Listener::bind_tcp("nonsense").unwrap_err().to_string();
    assert!(text.contains("nonsense") && text.contains("host:port"), "{text}");
}

#[test]
fn a_unix_socket_is_private() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let _listener = Listener::bind_unix(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_stale_unix_socket_is_replaced_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    drop(Listener::bind_unix(&path).unwrap());
    assert!(path.exists());
    let live = Listener::bind_unix(&path).unwrap();
    let text = Listener::bind_unix(&path).unwrap_err().to_string();
    assert!(text.contains("another process listens there"), "{text}");
    drop(live);
    Listener::bind_unix(&path).unwrap();
}

#[test]
fn a_file_in_the_way_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    std::fs::write(&path, "precious").unwrap();
    let text = Listener::bind_unix(&path).unwrap_err().to_string();
    assert!(text.contains("not a socket"), "{text}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn an_inherited_socket_serves_like_an_own_one() {
    let original = Listener::bind_tcp("127.0.0.1:0").unwrap();
    let inherited = Listener::from_fd(original.try_clone().unwrap().into_fd()).unwrap();
    assert_eq!(inherited.address(), original.address());
    let world = World::on(inherited, Arc::new(Memory::default()), options());
    call::<op::Ping>(&world.transport(), frame(1), &(), &[]).unwrap();
}

#[test]
fn an_inherited_unix_socket_knows_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let original = Listener::bind_unix(directory.path().join("s")).unwrap();
    let address = original.address().clone();
    let inherited = Listener::from_fd(original.into_fd()).unwrap();
    assert_eq!(inherited.address(), &address);
    let listeners = vec![(inherited, LaneKind::Client)];
    let server = Server::start(listeners, Arc::new(Memory::default()), auth(), options()).unwrap();
    let transport = SocketTransport::new(address, identity(), SocketOptions::default());
    call::<op::Ping>(&transport, frame(1), &(), &[]).unwrap();
    assert_eq!(server.connections(), 1);
}

#[test]
fn what_is_not_a_listening_socket_is_not_inherited() {
    let file = tempfile::tempfile().unwrap();
    assert!(Listener::from_fd(file.into()).is_err());
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let text = Listener::from_fd(one.into()).unwrap_err().to_string();
    assert!(text.contains("not a listening stream socket"), "{text}");
}

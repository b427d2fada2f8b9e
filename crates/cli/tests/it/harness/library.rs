//! A program with the library, and its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bivouac_client::{Client, ClientOptions, NewInode, OpCtx, SetAttr};
use bivouac_launch::StateDir;
use bivouac_net::{Auth, Secret};
use bivouac_types::limits::PAGE_POOL_DEFAULT;
use bivouac_types::{ClientId, Ino, NodeId, mode};
use bivouac_wire::FormationMap;

/// A client as a program with the library has it.
pub fn library(dir: &std::path::Path) -> Client {
    client(dir, Client::nearby)
}

/// The same on a machine without a node: everything is messages over TCP.
pub fn far_library(dir: &std::path::Path) -> Client {
    far_library_over(dir, |_| {})
}

/// The same over a network of which `change` says where it leads to nodes.
pub fn far_library_over(dir: &std::path::Path, change: impl FnOnce(&mut FormationMap)) -> Client {
    client(dir, |mut map, auth, options| {
        change(Arc::make_mut(&mut map));
        Client::new(map, auth, None, options)
    })
}

fn client(
    dir: &std::path::Path,
    make: impl FnOnce(Arc<FormationMap>, &Auth, &ClientOptions) -> Client,
) -> Client {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let dir = StateDir::at(dir.to_owned());
    let map = dir.read().unwrap().unwrap().map().unwrap();
    let secret = Secret::new(dir.secret().unwrap());
    let auth = Auth { formation: map.formation, secret, is_secure: map.is_secure };
    let id = u64::from(std::process::id()) << 20 | NEXT.fetch_add(1, Ordering::Relaxed);
    let options = ClientOptions {
        id: ClientId(id),
        wait: Duration::from_secs(30),
        near: None,
        incarnation: 0,
        page_pool: PAGE_POOL_DEFAULT,
    };
    make(Arc::new(map), &auth, &options)
}

/// An operation of its own.
pub fn ctx(client: &Client) -> OpCtx {
    client.new_op(0, 0, 0)
}

/// A new file, open.
pub fn create(client: &Client, name: &str) -> Ino {
    let new = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: &[] };
    client.create(&ctx(client), Ino::ROOT, name.as_bytes(), &new, true, false).unwrap().attr.ino
}

/// The file that another client made, open.
pub fn open(client: &Client, ino: Ino) {
    client.open(&ctx(client), ino, 0).unwrap();
}

/// Writes all of it.
pub fn write(client: &Client, ino: Ino, offset: usize, data: &[u8]) {
    assert_eq!(client.write(&ctx(client), ino, offset as u64, data, false).unwrap(), data.len());
}

/// What is there, at most `len` bytes.
pub fn read(client: &Client, ino: Ino, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let read = client.read(ino, offset as u64, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

/// Gives the file a size.
pub fn cut(client: &Client, ino: Ino, size: u64) {
    client.setattr(&ctx(client), ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// How often a node served an operation.
pub fn served(client: &Client, operation: &str) -> u64 {
    let operations = client.nodes().status(NodeId(0)).unwrap().operations;
    operations.iter().find(|count| count.name == operation).map_or(0, |count| count.client)
}

/// Messages of these kinds that clients have sent to all nodes.
pub fn messages(client: &Client, kinds: &[&str]) -> u64 {
    let nodes = 0..client.map().nodes.len() as u16;
    let counts = nodes.flat_map(|node| client.nodes().status(NodeId(node)).unwrap().operations);
    counts.filter(|count| kinds.contains(&count.name.as_str())).map(|count| count.client).sum()
}

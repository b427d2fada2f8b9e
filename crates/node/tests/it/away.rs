//! Background work while a node does not answer.

use std::sync::atomic::Ordering;

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, NewInode};
use bivouac_types::{Ino, NodeId, mode};
use bivouac_wire::Op;

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
const HELD: NodeId = NodeId(2);

/// A file in the root with all its bytes on one node.
fn file_on(client: &Client, node: u16, name: &str, len: usize) -> Ino {
    let ino = client.create(&op(client), Ino::ROOT, name.as_bytes(), &FILE, true, false).unwrap().attr.ino;
    let layout = format!("width=1 base={node}");
    client.setxattr(&op(client), ino, b"user.bivouac.layout", layout.as_bytes(), 0).unwrap();
    client.write(&op(client), ino, 0, &vec![7; len], false).unwrap();
    client.close(ino);
    ino
}

fn unlink(client: &Client, name: &str) {
    client.unlink(&op(client), Ino::ROOT, name.as_bytes()).unwrap();
}

#[test]
fn garbage_of_one_node_does_not_wait_for_another() {
    let formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    for i in 0..3 {
        file_on(client, 2, &format!("held{i}"), 10_000);
    }
    for i in 0..3 {
        file_on(client, 1, &format!("other{i}"), 10_000);
    }
    formation.switchboard.hold(HELD);
    for i in 0..3 {
        unlink(client, &format!("held{i}"));
        unlink(client, &format!("other{i}"));
    }
    wait_until("all of the other's space is free", || formation.nodes[1].usage() == 0);
    assert!(formation.nodes[2].usage() > 0);
    formation.switchboard.release();
    wait_until("the space of the node that was away is free", || formation.nodes[2].usage() == 0);
}

#[test]
fn what_a_node_owes_is_remembered_over_a_restart() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    file_on(client, 2, "held", 10_000);
    // The second is removed by the same pass, or behind the first.
    file_on(client, 1, "other", 10_000);
    formation.switchboard.hold(HELD);
    unlink(client, "held");
    unlink(client, "other");
    wait_until("the other's space is free", || formation.nodes[1].usage() == 0);
    assert!(formation.nodes[2].usage() > 0);
    // From here on it may also find out by itself what is left over on its volume.
    formation.restart();
    formation.switchboard.release();
    wait_until("the space of the node that was away is free", || formation.nodes[2].usage() == 0);
}

#[test]
fn a_full_volume_is_not_full_because_another_node_is_away() {
    let formation = Formation::with_capacity(3, 4096, 1 << 20);
    let client = &formation.clients[0];
    file_on(client, 2, "held", 10_000);
    file_on(client, 0, "big", 900_000);
    formation.switchboard.hold(HELD);
    unlink(client, "held");
    unlink(client, "big");
    file_on(client, 0, "next", 900_000);
    formation.switchboard.release();
}

#[test]
fn changes_of_one_node_do_not_wait_for_another() {
    let formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    // The same name leads to the same slot again.
    let name_on = |tag: &str, node: u16| {
        let home = |name: &String| {
            let ino = client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR).unwrap().ino;
            client.rmdir(&op(client), Ino::ROOT, name.as_bytes()).unwrap();
            ino.slot().0 % 3
        };
        (0..).map(|i| format!("{tag}{i}")).find(|name| home(name) == node).unwrap()
    };
    let (held, other) = (name_on("held", 2), name_on("other", 1));
    formation.switchboard.hold(HELD);
    for name in [&held, &other] {
        formation.switchboard.lose_request.store(Op::PutInode as u32, Ordering::SeqCst);
        client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR).unwrap_err();
    }
    let is_there = |name: &String| {
        let entries = client.readdir(Ino::ROOT, 0, 60_000, false).unwrap();
        entries.iter().any(|entry| entry.name == name.as_bytes())
    };
    wait_until("the other directory is made", || is_there(&other));
    assert!(!is_there(&held));
    formation.switchboard.release();
    wait_until("the first is made too", || is_there(&held));
}

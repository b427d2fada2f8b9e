//! Two moves of directories at once could close a loop: whatever is killed or lost, they do not.

use std::sync::atomic::Ordering;

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, NewInode};
use bivouac_node::{PeerRequest, Peers};
use bivouac_types::{ClientId, Errno, Ino, NodeId, OpId, mode};
use bivouac_wire::{Encode, InoOnly, Op, RemoveDirRequest, Ticket};

const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
/// Home of the directory that is moved first; it does not answer in the background for a while.
const HELD: NodeId = NodeId(0);

/// A directory whose home is `node`.
fn dir_on(client: &Client, parent: Ino, node: u16, tag: &str) -> (Vec<u8>, Ino) {
    let names = (0..).map(|i| format!("{tag}{i}").into_bytes());
    let mut made = names.map(|name| {
        let ino = client.mknod(&op(client), parent, &name, &DIR).unwrap().ino;
        (name, ino)
    });
    made.find(|(_, ino)| ino.slot().0 % 3 == node).unwrap()
}

fn is_below_root(client: &Client, mut ino: Ino) -> bool {
    (0..10).any(|_| {
        ino = client.parent(ino).unwrap();
        ino == Ino::ROOT
    })
}

/// One node moves `a` into `b`, and is not done; another one moves `b` into `a`.
fn two_moves_that_would_close_a_loop(restart: bool) {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let ((_, p), (_, q)) = (dir_on(client, Ino::ROOT, 1, "p"), dir_on(client, Ino::ROOT, 2, "q"));
    let ((a_name, a), (b_name, b)) = (dir_on(client, p, 0, "a"), dir_on(client, q, 0, "b"));
    formation.switchboard.hold(HELD);
    formation.switchboard.lose_request.store(Op::SetParent as u32, Ordering::SeqCst);
    let first = client.rename(&op(client), p, &a_name, b, b"a", 0).unwrap_err();
    assert_eq!(first.errno(), Errno::EIO);
    if restart {
        formation.restart();
    }
    let switchboard = formation.switchboard.clone();
    let second = std::thread::scope(|scope| {
        let client = &formation.clients[1];
        let second = scope.spawn(|| client.rename(&op(client), q, &b_name, a, b"b", 0));
        // It can only wait, or be wrong; either is seen below, whichever comes first here.
        wait_until("it asks for its turn", || second.is_finished() || switchboard.asked(Op::LockRename) > 3);
        switchboard.release();
        second.join().unwrap()
    });
    assert_eq!(second.unwrap_err().errno(), Errno::EINVAL);
    let client = &formation.clients[2];
    assert_eq!(client.lookup(b, b"a").unwrap().ino, a);
    assert!(is_below_root(client, a) && is_below_root(client, b));
    wait_until("the lock is free", || client.rename(&op(client), b, b"a", p, b"back", 0).is_ok());
}

#[test]
fn a_move_that_is_finished_later_keeps_others_waiting() {
    two_moves_that_would_close_a_loop(false);
}

#[test]
fn so_it_does_when_all_nodes_were_restarted() {
    two_moves_that_would_close_a_loop(true);
}

#[test]
fn a_turn_that_a_killed_node_had_ends_with_its_restart() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let ((_, p), (_, q)) = (dir_on(client, Ino::ROOT, 1, "p"), dir_on(client, Ino::ROOT, 2, "q"));
    let (name, _) = dir_on(client, q, 0, "d");
    // Node 1 has its turn and dies.
    let turn = |ticket: u64, op| {
        let (client, origin, body) = (ClientId(1 << 63 | 1), ClientId(0), Ticket { ticket }.to_bytes());
        let (id, body) = (OpId(0), &body);
        let request = PeerRequest { op, id, client, channel: 0, retry: false, origin, body, payload: &[] };
        formation.switchboard.call(NodeId(0), &request, &mut Vec::new()).map_err(|e| e.errno())
    };
    turn(2, Op::LockRename).unwrap();
    turn(2, Op::LockRename).unwrap();
    turn(1, Op::UnlockRename).unwrap();
    assert_eq!(turn(1, Op::LockRename).unwrap_err(), Errno::ESTALE, "it comes late");
    formation.restart();
    let client = &formation.clients[0];
    client.rename(&op(client), q, &name, p, &name, 0).unwrap();
}

/// A rename over an empty directory is killed when it has set that aside: what was there comes back with all that
/// belongs to it, for that rename alone.
#[test]
fn a_directory_that_was_set_aside_comes_back_after_a_restart() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let (name, ino) = dir_on(client, Ino::ROOT, 1, "d");
    client.setxattr(&op(client), ino, b"user.k", b"value", 0).unwrap();
    let switchboard = formation.switchboard.clone();
    let step = |op, tx: u64, body: &[u8]| {
        let (client, origin, id) = (ClientId(1 << 63), ClientId(0), OpId(tx * 16));
        let request = PeerRequest { op, id, client, channel: 0, retry: false, origin, body, payload: &[] };
        switchboard.call(NodeId(1), &request, &mut Vec::new()).map_err(|e| e.errno())
    };
    let aside = RemoveDirRequest { ino, sealed: false, aside: true }.to_bytes();
    let only = InoOnly { ino }.to_bytes();
    step(Op::RemoveDir, 900, &aside).unwrap();
    assert_eq!(client.getattr(ino).unwrap_err().errno(), Errno::ENOENT);
    formation.restart();
    step(Op::RemoveDir, 900, &aside).unwrap();
    assert_eq!(step(Op::RemoveDir, 901, &aside).unwrap_err(), Errno::EBUSY, "another rename");
    step(Op::RestoreDir, 901, &only).unwrap();
    step(Op::DropDir, 901, &only).unwrap();
    let client = &formation.clients[0];
    assert_eq!(client.getattr(ino).unwrap_err().errno(), Errno::ENOENT);
    step(Op::RestoreDir, 900, &only).unwrap();
    step(Op::RestoreDir, 900, &only).unwrap();
    assert_eq!(client.lookup(Ino::ROOT, &name).unwrap().ino, ino);
    assert_eq!(client.getxattr(ino, b"user.k").unwrap(), b"value");
    step(Op::RemoveDir, 902, &aside).unwrap();
    step(Op::DropDir, 902, &only).unwrap();
    assert_eq!(client.getattr(ino).unwrap_err().errno(), Errno::ENOENT);
}

/// Who renames a directory that is being replaced waits for the end of that: it is done, or all is as it was.
#[test]
fn a_rename_over_a_directory_ends_before_the_next_of_the_same_name() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let ((_, p), (_, q)) = (dir_on(client, Ino::ROOT, 1, "p"), dir_on(client, Ino::ROOT, 2, "q"));
    let ((from, moved), (to, replaced)) = (dir_on(client, p, 0, "from"), dir_on(client, q, 0, "to"));
    formation.switchboard.lose_reply.store(Op::RemoveDir as u32, Ordering::SeqCst);
    let first = client.rename(&op(client), p, &from, q, &to, 0).unwrap_err();
    assert_eq!(first.errno(), Errno::EIO);
    formation.restart();
    let client = &formation.clients[0];
    client.rename(&op(client), q, &to, q, b"away", 0).unwrap();
    wait_until("it is finished", || formation.nodes.iter().all(|node| node.unfinished() == 0));
    let (away, gone) = (client.lookup(q, b"away").unwrap().ino, client.getattr(replaced).is_err());
    let from = client.lookup(p, &from).map(|attr| attr.ino).map_err(|error| error.errno());
    let (done, undone) = ((moved, true, Err(Errno::ENOENT)), (replaced, false, Ok(moved)));
    assert!([done, undone].contains(&(away, gone, from)), "{away} {gone} {from:?}");
}

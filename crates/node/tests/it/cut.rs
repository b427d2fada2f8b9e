//! A network that is cut in two: each side goes on with what it has, and nothing is changed twice or by halves.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, NewInode};
use bivouac_net::{InProcess, LaneKind, call};
use bivouac_types::{ClientId, Errno, Ino, Liveness, NodeId, OpId, mode};
use bivouac_wire::{Frame, op as wire_op};

const NODES: u16 = 4;
/// Longer than nodes are silent for on a busy machine: who stands still for longer is dead to the others.
const DEAD_AFTER: Duration = Duration::from_secs(2);
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };

/// What a node caches: its epoch, and who is dead.
fn belief(formation: &Formation, node: u16) -> (u64, BTreeSet<u16>) {
    let status = formation.clients[0].nodes().status(NodeId(node)).unwrap();
    let dead = status.silent.iter().filter(|silent| silent.liveness == Liveness::Dead);
    (status.epoch, dead.map(|silent| silent.node.0).collect())
}

/// Directories whose home, and that of their entries, is each of the nodes.
fn dirs(client: &Client) -> Vec<Ino> {
    let mut dirs = vec![None; usize::from(NODES)];
    for number in 0.. {
        let name = format!("dir{number}");
        let ino = client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR).unwrap().ino;
        dirs[usize::from(ino.slot().0 % NODES)].get_or_insert(ino);
        if dirs.iter().all(Option::is_some) {
            break;
        }
    }
    dirs.into_iter().map(Option::unwrap).collect()
}

/// Whether a node does what a mount of another began under a lock, with this token.
fn does(formation: &Formation, node: u16, mount_of: u16, fence: u32) -> bool {
    let service = formation.nodes[usize::from(node)].clone();
    let client = ClientId::of_mount(formation.map().formation, NodeId(mount_of), 1);
    let frame = Frame { fence, ..Frame::request(0, OpId(1), client, 0) };
    match call::<wire_op::Ping>(&InProcess::new(service, LaneKind::Client), frame, &(), &[]) {
        Ok(()) => true,
        Err(error) => {
            assert!(
                error.errno() == Errno::EIO && error.to_string().contains("begun under a lock"),
                "{error}"
            );
            false
        }
    }
}

/// S82.
#[test]
fn what_was_begun_under_a_lock_before_its_node_was_dead_is_refused_by_all() {
    let formation = Formation::watching(3, DEAD_AFTER);
    assert!(does(&formation, 0, 2, 1) && does(&formation, 0, 2, 0));
    *formation.switchboard.beyond.write() = vec![NodeId(2)];
    wait_until("it is dead to the others", || {
        (0..2).all(|node| belief(&formation, node).1 == BTreeSet::from([2]))
    });
    assert!(!does(&formation, 0, 2, 1) && !does(&formation, 1, 2, 9), "nothing under locks of the dead");
    assert!(does(&formation, 0, 2, 0) && does(&formation, 0, 1, 1), "others go on");
    formation.switchboard.beyond.write().clear();
    wait_until("it is back", || (0..3).all(|node| belief(&formation, node).1.is_empty()));
    assert!(!does(&formation, 0, 2, 1) && !does(&formation, 1, 2, 1), "what was begun before is late");
    assert!(does(&formation, 0, 2, 9), "what begins now is not");
}

/// S83.
#[test]
fn both_sides_of_a_cut_change_only_what_is_theirs_and_agree_when_it_is_healed() {
    let formation = Formation::watching(NODES, DEAD_AFTER);
    let client = &formation.clients[0];
    let dirs = dirs(client);
    *formation.switchboard.beyond.write() = vec![NodeId(2), NodeId(3)];
    wait_until("each side takes the other for dead", || {
        let sides = (0..NODES).map(|node| belief(&formation, node).1);
        sides.eq([[2, 3], [2, 3], [0, 1], [0, 1]].map(BTreeSet::from))
    });
    // A directory whose inode belongs on the other side lives with its entry instead.
    let mut made: Vec<(Ino, String)> = Vec::new();
    for (side, dir) in dirs.iter().enumerate() {
        for number in 0..16 {
            let name = format!("new{side}-{number}");
            if client.mknod(&op(client), *dir, name.as_bytes(), &DIR).is_ok() {
                made.push((*dir, name));
            }
        }
    }
    assert!(made.len() >= 8, "{} of 64 were made", made.len());
    formation.switchboard.beyond.write().clear();
    wait_until("all agree that all live", || {
        let beliefs: BTreeSet<_> = (0..NODES).map(|node| belief(&formation, node)).collect();
        beliefs.len() == 1 && beliefs.iter().all(|(epoch, dead)| *epoch > 1 && dead.is_empty())
    });
    for (dir, name) in &made {
        client.lookup(*dir, name.as_bytes()).unwrap();
    }
    // Whatever is there is whole: entry and inode. What was begun and not acknowledged is made by and by.
    wait_until("nothing is left unfinished", || {
        let whole = |dir: &Ino| {
            let entries = client.readdir(*dir, 0, 1 << 16, false).unwrap();
            entries.iter().all(|entry| client.lookup(*dir, &entry.name).is_ok())
        };
        let again = |dir: &Ino| client.mknod(&op(client), *dir, b"after", &DIR).is_ok();
        dirs.iter().all(|dir| whole(dir) && (again(dir) || client.lookup(*dir, b"after").is_ok()))
    });
}

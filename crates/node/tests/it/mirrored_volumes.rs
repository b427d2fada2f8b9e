//! Nodes whose volumes are mirrored: their replicas are theirs, and whoever was replaced serves nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::formation::{Formation, op, read, wait_until, write};
use bivouac_client::{Client, NewInode};
use bivouac_types::{Errno, Ino, NodeId, mode};
use bivouac_wire::{Op, SealedReplica};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o700, rdev: 0, target: &[] };

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + seed * 7 + at / 251) % 256) as u8).collect()
}

/// Makes files of several stripes, in a directory of their own.
fn fill(client: &Client, dir: &[u8], files: usize) {
    let dir = client.mknod(&op(client), Ino::ROOT, dir, &DIR).unwrap().ino;
    for file in 0..files {
        let name = format!("f{file}");
        let ino = client.create(&op(client), dir, name.as_bytes(), &FILE, true, false).unwrap().attr.ino;
        write(client, ino, 0, &pattern(30_000 + file, file));
        client.close(ino);
    }
}

fn check(client: &Client, dir: &[u8], files: usize) {
    let dir = client.lookup(Ino::ROOT, dir).unwrap().ino;
    for file in 0..files {
        let attr = client.lookup(dir, format!("f{file}").as_bytes()).unwrap();
        assert_eq!(attr.size, 30_000 + file as u64);
        assert!(read(client, attr.ino, 0, 40_000) == pattern(30_000 + file, file), "f{file}");
    }
}

fn complete(formation: &Formation) {
    wait_until("all replicas are complete", || {
        formation.nodes.iter().all(|node| node.mirror_status().unwrap().is_complete)
    });
}

/// Seals the replicas of node 0, which node 1 has.
fn seal(formation: &Formation, epoch: u32) -> SealedReplica {
    let ask = || formation.nodes[1].seal_replica(NodeId(0), epoch).unwrap();
    wait_until("the lease of the old primary is over", || ask().wait_ms == 0);
    ask()
}

/// Has node 0 begin from its replica, as a daemon on the host of node 1 would.
fn take_over(formation: &mut Formation, sealed: &SealedReplica) {
    formation.stop();
    let own = formation.volume(0);
    std::fs::remove_dir_all(&own).unwrap();
    std::fs::rename(&sealed.volumes[0], &own).unwrap();
    formation.start();
}

/// S800, S801.
#[test]
fn a_replica_is_the_node() {
    let mut formation = Formation::mirrored(2);
    fill(&formation.clients[0], b"early", 20);
    complete(&formation);
    fill(&formation.clients[1], b"late", 20);
    let sealed = seal(&formation, 2);
    assert_eq!(sealed.volumes.len(), 1);
    take_over(&mut formation, &sealed);
    let client = &formation.clients[1];
    check(client, b"early", 20);
    check(client, b"late", 20);
    assert_eq!(formation.nodes[0].mirror_status().unwrap().epoch, 2);
    // It goes on alone until somebody tells it who its backup is.
    fill(client, b"alone", 5);
    assert_eq!(formation.nodes[0].mirror_status().unwrap().backup, None);
    formation.nodes[0].set_backup(3, Some(NodeId(1))).unwrap();
    complete(&formation);
    fill(client, b"again", 5);
    let sealed = seal(&formation, 4);
    take_over(&mut formation, &sealed);
    for dir in [&b"early"[..], b"late"] {
        check(&formation.clients[0], dir, 20);
    }
    check(&formation.clients[0], b"alone", 5);
    check(&formation.clients[0], b"again", 5);
}

/// S802.
#[test]
fn who_was_replaced_tells_and_changes_nothing() {
    let formation = Formation::mirrored(2);
    let client = &formation.clients[0];
    fill(client, b"d", 4);
    complete(&formation);
    seal(&formation, 2);
    let client = formation.client_as(1, 77);
    let refused = |outcome: Errno| outcome == Errno::EIO;
    // The root directory's home is node 0.
    assert!(refused(client.lookup(Ino::ROOT, b"d").unwrap_err().errno()));
    assert!(refused(client.mknod(&op(&client), Ino::ROOT, b"new", &DIR).unwrap_err().errno()));
    let error = formation.nodes[1].seal_replica(NodeId(0), 1).unwrap_err();
    assert_eq!(error.errno(), Errno::ESTALE);
}

/// S804, S805.
#[test]
fn a_backup_comes_and_goes_while_files_are_written() {
    let mut formation = Formation::mirrored(3);
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let client = &formation.clients[2];
            let mut round = 0;
            while !stop.load(Ordering::Acquire) {
                fill(client, format!("d{round}").as_bytes(), 6);
                round += 1;
            }
            round
        });
        for (epoch, backup) in [(2, Some(2)), (3, None), (4, Some(1))] {
            formation.nodes[0].set_backup(epoch, backup.map(NodeId)).unwrap();
            let is_done = || {
                let status = formation.nodes[0].mirror_status().unwrap();
                status.is_complete || status.backup.is_none()
            };
            wait_until("the backup is another one", is_done);
        }
        stop.store(true, Ordering::Release);
        writer.join().unwrap()
    });
    complete(&formation);
    let check_all = |formation: &Formation| {
        (0..rounds).for_each(|round| check(&formation.clients[1], format!("d{round}").as_bytes(), 6));
    };
    check_all(&formation);
    let sealed = seal(&formation, 5);
    take_over(&mut formation, &sealed);
    check_all(&formation);
}

#[test]
fn a_restart_makes_replicas_that_are_complete_again() {
    let mut formation = Formation::mirrored(2);
    fill(&formation.clients[0], b"d", 10);
    complete(&formation);
    for round in 0..3 {
        formation.restart();
        complete(&formation);
        fill(&formation.clients[1], format!("d{round}").as_bytes(), 3);
    }
    let sealed = seal(&formation, 2);
    take_over(&mut formation, &sealed);
    check(&formation.clients[1], b"d", 10);
    check(&formation.clients[1], b"d2", 3);
}

#[test]
fn a_replica_that_nobody_sealed_is_not_started_from() {
    let mut formation = Formation::mirrored(2);
    complete(&formation);
    formation.stop();
    let replica = formation.volume(1).join("replica-00000-00000");
    let error = bivouac_store::read_mirror_note(&replica).unwrap().unwrap();
    assert!(matches!(error.role, bivouac_store::MirrorRole::Replica { epoch, .. } if epoch.is_complete));
    let own = formation.volume(0);
    std::fs::remove_dir_all(&own).unwrap();
    std::fs::rename(&replica, &own).unwrap();
    let refusal = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| formation.start()));
    let text = refusal.unwrap_err();
    let text = text.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("not sealed"), "{text}");
}

/// S809.
#[test]
fn a_replica_takes_space_of_its_backup() {
    let formation = Formation::mirrored(2);
    complete(&formation);
    let used = || formation.nodes[1].usage();
    let client = &formation.clients[0];
    let before = used();
    let ino = client.create(&op(client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    write(client, ino, 0, &[7; 1 << 20]);
    // Half of the stripes are its own, the others replicas of node 0's.
    assert!(used() - before >= 1 << 20, "{} bytes", used() - before);
    client.close(ino);
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    wait_until("the space is free again", || used() < before + (1 << 18));
}

/// S807.
#[test]
fn without_protection_nothing_is_sent() {
    let formation = Formation::new(2, 4096);
    fill(&formation.clients[0], b"d", 3);
    for op in [Op::BeginReplica, Op::ApplyChanges, Op::RenewReplica] {
        assert_eq!(formation.switchboard.asked(op), 0);
    }
    assert_eq!(formation.nodes[0].mirror_status(), None);
    assert_eq!(formation.nodes[0].set_backup(2, None).unwrap_err().errno(), Errno::EOPNOTSUPP);
    assert!(!formation.volume(0).join("bivouac-mirror").exists());
}

/// S800: what a request costs in messages to backups. Records of one request go with one message, and where content is
/// written, with that.
#[test]
fn requests_cost_backups_few_messages() {
    const FILES: usize = 20;
    let formation = Formation::mirrored(2);
    complete(&formation);
    let client = &formation.clients[0];
    let name = |prefix: &str, file: usize| format!("{prefix}{file}").into_bytes();
    let of_each = |act: &dyn Fn(usize)| {
        let before = formation.switchboard.asked(Op::ApplyChanges);
        (0..FILES).for_each(act);
        let asked = formation.switchboard.asked(Op::ApplyChanges) - before;
        // Space for logs and tables is taken ahead, now and then.
        (f64::from(asked) / FILES as f64).floor() as u32
    };
    // Of each volume all 256 directories, which are made once.
    fill(client, b"before", 300);
    let files = std::cell::RefCell::new(Vec::new());
    let make = |file| {
        let made = client.create(&op(client), Ino::ROOT, &name("a", file), &FILE, true, false).unwrap();
        files.borrow_mut().push(made.attr.ino);
    };
    assert_eq!(of_each(&make), 1);
    // The subfile with its header, the content with the table's slot, the size; three more for checksums, on a disk.
    let new = of_each(&|file| write(client, files.borrow()[file], 0, &pattern(3901, file)));
    assert!([3, 6].contains(&new), "{new}");
    (0..FILES).for_each(|file| write(client, files.borrow()[file], 7, b"over"));
    let rename = |file| {
        client.rename(&op(client), Ino::ROOT, &name("a", file), Ino::ROOT, &name("b", file), 0).unwrap();
    };
    assert_eq!(of_each(&rename), 1);
    let look = |file| assert!(client.lookup(Ino::ROOT, &name("b", file)).is_ok());
    assert_eq!(of_each(&look), 0);
    for (file, ino) in files.borrow().iter().enumerate() {
        let content = read(client, *ino, 0, 4000);
        assert!(content[7..11] == *b"over" && content[11..] == pattern(3901, file)[11..]);
        client.close(*ino);
    }
}

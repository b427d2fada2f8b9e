//! Sending beside the programs: what was written behind arrives although its program says nothing more.

use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::formation::{Formation, op, read, wait_until, write};
use bivouac_client::{Client, FileLock, LOCK_END_MAX, LockKind, LockMode, NewInode};
use bivouac_net::{FailingTransport, HoldPoint, InjectedFault, Transport};
use bivouac_types::{Errno, Ino, TargetIndex, mode};
use bivouac_wire::Op;

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o700, rdev: 0, target: &[] };

/// A client that has threads, as that of a mount.
fn threaded(client: Client) -> Arc<Client> {
    let client = Arc::new(client);
    client.sessions.write_back();
    client
}

/// A file under the session contract on all targets, which the client has open.
fn file(formation: &Formation, client: &Client) -> Ino {
    let dir = client.mknod(&op(client), Ino::ROOT, b"s", &DIR).unwrap().ino;
    let targets = (0..formation.map.target_count()).map(|target| TargetIndex(u32::from(target))).collect();
    client.partitions.make(&op(client), dir, targets, "contract=session".parse().unwrap()).unwrap();
    client.create(&op(client), dir, b"file", &FILE, true, false).unwrap().attr.ino
}

fn has_sent_all(client: &Client) -> bool {
    client.sessions.status().unsent_bytes == 0
}

/// S255.
#[test]
fn what_rests_arrives_without_any_further_call() {
    let formation = Formation::new(2, 4096);
    let client = threaded(formation.client_as(0, 70));
    let ino = file(&formation, &client);
    // Nobody else has it open, so nothing is kept of what was read before.
    let other = &formation.clients[1];
    for turn in 0..3 {
        write(&client, ino, turn * 10_000, &[turn as u8 + 1; 10_000]);
        wait_until("it arrives", || read(other, ino, turn * 10_000, 10_000) == [turn as u8 + 1; 10_000]);
        wait_until("and is known to have", || has_sent_all(&client));
    }
    assert_eq!(read(&client, ino, 9_999, 2), [1, 2]);
    client.close(ino);
}

/// S255: also while it is written to all the time.
#[test]
fn what_does_not_rest_arrives_all_the_same() {
    let formation = Formation::new(2, 4096);
    let client = threaded(formation.client_as(0, 70));
    let ino = file(&formation, &client);
    let other = &formation.clients[1];
    write(&client, ino, 0, b"first");
    wait_until("it arrives", || {
        write(&client, ino, 100_000, &[7; 10]);
        read(other, ino, 0, 5) == b"first"
    });
    client.close(ino);
    assert_eq!(read(other, ino, 100_000, 100), [7; 10]);
}

/// S255, S202: told by the next call that may fail, and tried again without one.
#[test]
fn what_cannot_be_sent_is_told_and_tried_again() {
    let formation = Formation::with_capacity(1, 4096, 6 << 20);
    let client = threaded(formation.client_as(0, 70));
    let ino = file(&formation, &client);
    let ballast = client.create(&op(&client), Ino::ROOT, b"ballast", &FILE, true, false).unwrap().attr.ino;
    write(&client, ballast, 0, &vec![1; 5 << 20]);
    let piece = [2; 100_000];
    for turn in 0..30 {
        // A quick machine accepts all of it before it finds out that there is no room.
        if let Err(error) = client.write(&op(&client), ino, turn * 100_000, &piece, false) {
            assert_eq!(error.errno(), Errno::ENOSPC);
        }
    }
    let accepted = client.getattr(ino).unwrap().size as usize;
    let mut told = Ok(0);
    wait_until("a writer is told", || {
        told = client.write(&op(&client), ino, 0, &[3; 10], false);
        told.is_err()
    });
    assert_eq!(told.unwrap_err().errno(), Errno::ENOSPC);
    assert_eq!(client.fsync(ino, false).unwrap_err().errno(), Errno::ENOSPC);
    let seen = read(&client, ino, 0, accepted);
    client.unlink(&op(&client), Ino::ROOT, b"ballast").unwrap();
    client.close(ballast);
    wait_until("it is sent once there is room", || has_sent_all(&client));
    assert_eq!(client.sessions.status().dropped_bytes, 0);
    assert!(read(&formation.clients[0], ino, 0, accepted) == seen);
    write(&client, ino, 5, b"on it goes");
    client.fsync(ino, false).unwrap();
    client.close(ino);
}

/// S205: also what an earlier process had acknowledged, of files that are still open.
#[test]
fn the_next_process_sends_what_is_still_open_without_being_asked() {
    let formation = Formation::new(2, 4096);
    let memory = tempfile::tempfile().unwrap();
    let kept = || {
        let client = formation.client_as(0, 70);
        client.sessions.keep(memory.try_clone().unwrap(), 4096).unwrap();
        client
    };
    let client = kept();
    let ino = file(&formation, &client);
    write(&client, ino, 1000, &[1; 100_000]);
    // A kill: it had no time to send anything.
    drop(client);
    let client = threaded(kept());
    client.reassert_opens(&[(ino, 2, 1)]).unwrap();
    wait_until("it arrives", || read(&formation.clients[1], ino, 1000, 100_000) == [1; 100_000]);
    client.close(ino);
    let _: File = memory;
}

/// A client whose writes wait at the latch that `gate` has then.
fn gated(formation: &Formation, gate: &Arc<parking_lot::Mutex<Option<HoldPoint>>>) -> Arc<Client> {
    let wrap = |inner: Arc<dyn Transport>| -> Arc<dyn Transport> {
        let gate = Arc::clone(gate);
        Arc::new(FailingTransport::new(inner, move |frame| {
            let is_write = frame.op == Op::Write as u16;
            is_write.then(|| gate.lock().clone()).flatten().map(InjectedFault::Hold)
        }))
    };
    threaded(formation.client_through(0, wrap))
}

/// S206: what is under way when its lock is given up does not come behind what the next holder writes.
#[test]
fn what_is_on_its_way_arrives_before_its_lock_is_somebody_elses() {
    let formation = Formation::new(1, 4096);
    let (gate, latch) = (Arc::default(), HoldPoint::default());
    let client = gated(&formation, &gate);
    let other = formation.client_as(0, 71);
    let ino = file(&formation, &client);
    let lock = |owner| FileLock {
        kind: LockKind::Range,
        mode: LockMode::Write,
        owner,
        handle: 1,
        pid: 1,
        start: 0,
        end: LOCK_END_MAX,
    };
    client.set_lock(ino, &lock(1), None).unwrap();
    *gate.lock() = Some(latch.clone());
    write(&client, ino, 0, &[1; 4000]);
    latch.await_arrivals(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let opened = latch.clone();
            bivouac_net::on_block(Some(Rc::new(move || opened.open())));
            client.unlock_owner(ino, 1);
        });
    });
    other.open(&op(&other), ino, 0).unwrap();
    other.set_lock(ino, &lock(2), None).unwrap();
    write(&other, ino, 0, &[2; 4000]);
    other.fsync(ino, false).unwrap();
    latch.open();
    client.close(ino);
    assert!(read(&formation.clients[0], ino, 0, 4000) == [2; 4000], "of the next holder");
}

/// S255: one file that cannot be sent does not keep others.
#[test]
fn files_do_not_wait_for_each_other() {
    let formation = Formation::new(1, 4096);
    let (gate, latch) = (Arc::default(), HoldPoint::default());
    let client = gated(&formation, &gate);
    let stuck = file(&formation, &client);
    let dir = client.lookup(Ino::ROOT, b"s").unwrap().ino;
    let free = client.create(&op(&client), dir, b"free", &FILE, true, false).unwrap().attr.ino;
    *gate.lock() = Some(latch.clone());
    write(&client, stuck, 0, &[1; 4000]);
    latch.await_arrivals(1);
    *gate.lock() = None;
    write(&client, free, 0, &[2; 4000]);
    wait_until("it arrives", || read(&formation.clients[0], free, 0, 4000) == [2; 4000]);
    latch.open();
    wait_until("so does the other", || has_sent_all(&client));
    client.close(stuck);
    client.close(free);
}

/// S203: a program that goes on writing and one thread that sends lose nothing, and nothing twice.
#[test]
fn writers_and_senders_side_by_side_lose_nothing() {
    let formation = Formation::new(2, 16_384);
    let client = threaded(formation.client_as(0, 70));
    let ino = file(&formation, &client);
    const LEN: usize = 24 << 20;
    let (ends, turns) = (AtomicBool::new(false), AtomicU32::new(0));
    let byte = |at: usize| (at / 777) as u8;
    std::thread::scope(|scope| {
        scopeguard::defer! { ends.store(true, Ordering::Relaxed) }
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                client.sessions.send_unsent(ino).unwrap();
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
        for at in (0..LEN).step_by(7770) {
            let piece: Vec<u8> = (at..(at + 7770).min(LEN)).map(byte).collect();
            write(&client, ino, at, &piece);
        }
    });
    client.fsync(ino, false).unwrap();
    let whole = read(&formation.clients[1], ino, 0, LEN + 10);
    assert!(whole.len() == LEN && (0..LEN).all(|at| whole[at] == byte(at)));
    client.close(ino);
    assert_eq!((client.sessions.status().used_bytes, client.sessions.status().unsent_bytes), (0, 0));
}

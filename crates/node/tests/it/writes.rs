//! What becomes of writes, cuts and copies of which some part fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::formation::{Formation, op, read, write};
use bivouac_client::{Client, CopyJob, NewInode, SetAttr};
use bivouac_net::{FailingTransport, InjectedFault, Transport};
use bivouac_types::limits::TRANSFER_MAX;
use bivouac_types::{Errno, FsError, Ino, TargetIndex, mode};
use bivouac_wire::{Frame, Op};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o700, rdev: 0, target: &[] };
const STRIPE: usize = 4096;

fn make(client: &Client, name: &[u8]) -> Ino {
    client.create(&op(client), Ino::ROOT, name, &FILE, true, false).unwrap().attr.ino
}

/// A file under the session contract on two targets, which nobody has open.
fn session_file(client: &Client) -> Ino {
    let dir = client.mknod(&op(client), Ino::ROOT, b"s", &DIR).unwrap().ino;
    let targets = vec![TargetIndex(0), TargetIndex(1)];
    client.partitions.make(&op(client), dir, targets, "contract=session".parse().unwrap()).unwrap();
    client.mknod(&op(client), dir, b"file", &FILE).unwrap().ino
}

fn cut(size: usize) -> SetAttr {
    SetAttr { size: Some(size as u64), ..SetAttr::default() }
}

/// A client of which some operations fail: `next` says which, and how.
fn failing(formation: &Formation, next: &Arc<parking_lot::Mutex<Vec<(Op, InjectedFault)>>>) -> Client {
    formation.client_through(1, |inner| -> Arc<dyn Transport> {
        let next = Arc::clone(next);
        let plan = move |frame: &Frame| {
            let next = next.lock();
            next.iter().find(|(op, _)| *op as u16 == frame.op).map(|(_, fault)| fault.clone())
        };
        Arc::new(FailingTransport::new(inner, plan))
    })
}

/// S6, S10: also where all targets have it, and it is the home that fails.
#[test]
fn what_a_home_has_not_taken_down_does_not_come_up_in_a_hole() {
    let formation = Formation::new(3, STRIPE as u32);
    let next = Arc::default();
    let (client, other) = (failing(&formation, &next), &formation.clients[0]);
    let data = vec![9; 5 << 20];
    let [one, large, list, before, behind] = [b"a", b"b", b"c", b"d", b"e"].map(|name| make(&client, name));
    write(&client, before, 0, &[1; 10]);
    *next.lock() = vec![
        (Op::Extend, InjectedFault::Fail(Errno::ENOSPC)),
        (Op::ExtendOver, InjectedFault::Fail(Errno::EIO)),
    ];
    let full = |written: Result<(), FsError>, errno| {
        assert_eq!(written.unwrap_err().errno(), errno);
    };
    full(client.write_at(one, 0, &data[..50_000]).map(drop), Errno::ENOSPC);
    full(client.write_at(large, 0, &data).map(drop), Errno::ENOSPC);
    full(client.write_list(list, &[(0, &data[..100]), (100, &data[..STRIPE])]), Errno::ENOSPC);
    full(client.write_at(before, 5, &data[..50_000]).map(drop), Errno::ENOSPC);
    full(client.write_at(behind, 1000, &data[..50_000]).map(drop), Errno::EIO);
    next.lock().clear();
    for ino in [one, large, list, before, behind] {
        let size = other.getattr(ino).unwrap().size as usize;
        assert_eq!(size, if ino == before { 10 } else { 0 });
        other.open(&op(other), ino, 0).unwrap();
        write(other, ino, 6 << 20, b"x");
        let seen = read(other, ino, 10, 6 << 20);
        assert!(seen[..(6 << 20) - 10].iter().all(|byte| *byte == 0), "bytes of a write that failed");
        other.close(ino);
        client.close(ino);
    }
}

/// S657.
#[test]
fn a_time_that_could_not_be_told_is_told_by_the_close() {
    let formation = Formation::new(2, STRIPE as u32);
    let next = Arc::default();
    let client = failing(&formation, &next);
    let ino = make(&client, b"file");
    write(&client, ino, 0, &[1; 100]);
    let told = || (0..2).map(|node| formation.served(node, Op::Touch)).sum::<u64>();
    // The first is told at once, and so are others on a busy machine, if a second has passed; one is told later.
    let before = loop {
        let before = told();
        write(&client, ino, 0, &[2; 100]);
        if told() == before {
            break before;
        }
    };
    *next.lock() = vec![(Op::Touch, InjectedFault::Fail(Errno::EIO))];
    assert_eq!(client.getattr(ino).unwrap_err().errno(), Errno::EIO);
    next.lock().clear();
    client.close(ino);
    assert_eq!(told(), before + 1);
}

/// S656.
#[test]
fn no_copy_outlives_a_change_that_failed() {
    let formation = Formation::new(2, STRIPE as u32);
    let ino = session_file(&formation.clients[0]);
    let next: Arc<parking_lot::Mutex<Vec<_>>> = Arc::default();
    let client = failing(&formation, &next);
    let fill = |byte: u8| {
        write(&client, ino, 0, &[byte; 20_000]);
        client.fsync(ino, false).unwrap();
        assert!(read(&client, ino, 0, 20_000) == [byte; 20_000]);
    };
    client.open(&op(&client), ino, 0).unwrap();
    fill(1);
    *next.lock() = vec![(Op::SetAttr, InjectedFault::DropAfter)];
    client.setattr(&op(&client), ino, &cut(10)).unwrap_err();
    assert_eq!(read(&client, ino, 0, 20_000), [1; 10], "it was cut, and nobody said so");
    next.lock().clear();
    fill(2);
    *next.lock() = vec![(Op::Open, InjectedFault::DropAfter)];
    client.open(&op(&client), ino, 0o1000).unwrap_err();
    assert!(read(&client, ino, 0, 20_000).is_empty());
    next.lock().clear();
    fill(3);
    *next.lock() = vec![(Op::ChangeSpace, InjectedFault::DropAfter)];
    client.fallocate(&op(&client), ino, 3, 0, 4 * STRIPE as u64).unwrap_err();
    assert!(read(&client, ino, 0, 4 * STRIPE).iter().all(|byte| *byte == 0));
}

/// S202: reading is not disturbed, by lists neither.
#[test]
fn lists_are_read_where_what_was_written_cannot_be_sent() {
    let formation = Formation::new(2, STRIPE as u32);
    let ino = session_file(&formation.clients[0]);
    let next: Arc<parking_lot::Mutex<Vec<_>>> = Arc::default();
    let client = failing(&formation, &next);
    client.open(&op(&client), ino, 0).unwrap();
    write(&client, ino, 0, &[1; 10_000]);
    client.fsync(ino, false).unwrap();
    *next.lock() = vec![(Op::Write, InjectedFault::Fail(Errno::ENOSPC))];
    write(&client, ino, 5000, &[2; 10_000]);
    let mut buffers = [[0xee; 100]; 4];
    let offsets = [0, 4950, 14_950, 20_000];
    let mut wanted: Vec<(u64, &mut [u8])> =
        offsets.into_iter().zip(buffers.iter_mut().map(|buffer| &mut buffer[..])).collect();
    assert_eq!(client.read_list(ino, &mut wanted).unwrap(), [100, 100, 50, 0]);
    assert_eq!((buffers[0], &buffers[2][..50]), ([1; 100], &[2; 50][..]));
    assert_eq!((&buffers[1][..50], &buffers[1][50..]), (&[1; 50][..], &[2; 50][..]));
    let list = client.write_list(ino, &[(0, b"x"), (9, b"y")]).unwrap_err();
    assert_eq!(list.errno(), Errno::ENOSPC, "who writes is told");
}

/// S27: what a copy does to holes is counted when the file is closed.
#[test]
fn copies_into_holes_and_of_holes_are_counted() {
    let formation = Formation::new(2, STRIPE as u32);
    let client = &formation.clients[0];
    let [full, sparse, punched] = [b"a", b"b", b"c"].map(|name| make(client, name));
    for ino in [full, sparse, punched] {
        client.setxattr(&op(client), ino, b"user.bivouac.layout", b"width=1 base=1", 0).unwrap();
    }
    let len = 64 * STRIPE as u64;
    let holes = |ino: Ino| client.getattr(ino).unwrap().holes;
    [full, punched].iter().for_each(|ino| write(client, *ino, 0, &vec![5; len as usize]));
    client.setattr(&op(client), sparse, &cut(len as usize)).unwrap();
    client.close(sparse);
    client.open(&op(client), sparse, 0).unwrap();
    assert_eq!((holes(full), holes(sparse), holes(punched)), (0, len, 0));
    for (from, to) in [(sparse, punched), (full, sparse)] {
        let copy = CopyJob { from, from_offset: 0, to, to_offset: 0, len };
        assert_eq!(client.copy(&op(client), &copy).unwrap(), len);
    }
    assert!((0..2).map(|node| formation.served(node, Op::CopyRange)).sum::<u64>() > 0);
    [sparse, punched].iter().for_each(|ino| client.close(*ino));
    assert_eq!((holes(sparse), holes(punched)), (0, len));
}

/// A try that finds no room is made again without a cut in between, which would have to be waited for.
#[test]
fn a_write_that_finds_room_at_the_second_try_cuts_nothing() {
    let formation = Formation::new(2, STRIPE as u32);
    let turn = Arc::new(AtomicU32::new(0));
    let client = formation.client_through(1, |inner| -> Arc<dyn Transport> {
        let turn = Arc::clone(&turn);
        let plan = move |frame: &Frame| {
            let fails = frame.op == Op::Write as u16 && turn.fetch_add(1, Ordering::SeqCst) == 1;
            fails.then_some(InjectedFault::Fail(Errno::ENOSPC))
        };
        Arc::new(FailingTransport::new(inner, plan))
    });
    let ino = make(&client, b"file");
    let data: Vec<u8> = (0..9 * STRIPE).map(|at| (at % 251) as u8).collect();
    assert_eq!(client.write_at(ino, 3, &data).unwrap(), data.len());
    assert!(read(&formation.clients[0], ino, 3, data.len()) == data);
    assert_eq!(client.getattr(ino).unwrap().epoch, 0);
    assert_eq!((0..2).map(|node| formation.served(node, Op::CutTail)).sum::<u64>(), 0);
}

/// A client whose request number `nth` of this kind finds no space. Before the client sends anything again another
/// client fills `replaced` stripes, from the first, with threes.
fn overtaken_by(formation: &Formation, ino: Ino, (kind, nth): (Op, u32), replaced: usize) -> Client {
    let other = Arc::new(formation.client_as(0, 50));
    other.open(&op(&other), ino, 0).unwrap();
    let (turn, is_done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let client = formation.client_through(1, |inner| -> Arc<dyn Transport> {
        let (other, turn, is_done) = (Arc::clone(&other), Arc::clone(&turn), Arc::clone(&is_done));
        let plan = move |frame: &Frame| {
            if frame.op == Op::MakeRoom as u16 && !is_done.swap(true, Ordering::SeqCst) {
                write(&other, ino, 0, &vec![3; replaced * STRIPE]);
            }
            let fails = frame.op == kind as u16 && turn.fetch_add(1, Ordering::SeqCst) == nth;
            fails.then_some(InjectedFault::Fail(Errno::ENOSPC))
        };
        Arc::new(FailingTransport::new(inner, plan))
    });
    client.open(&op(&client), ino, 0).unwrap();
    client
}

/// A file of four stripes of ones on two targets.
fn ones(formation: &Formation, name: &[u8]) -> Ino {
    let ino = make(&formation.clients[0], name);
    write(&formation.clients[0], ino, 0, &[1; 4 * STRIPE]);
    ino
}

/// S363: what is made again is only what has not been done: another client's write, which is acknowledged, stays.
#[test]
fn what_a_target_has_taken_is_not_written_again() {
    let formation = Formation::new(2, STRIPE as u32);
    type Change = fn(&Client, Ino, Ino);
    let changes: [(&str, Change); 5] = [
        ("a write", |client, ino, _| write(client, ino, 0, &[2; 2 * STRIPE])),
        ("a list", |client, ino, _| {
            client.write_list(ino, &[(0, &[2; 10]), (100, &[2; 10]), (STRIPE as u64, &[2; 10])]).unwrap()
        }),
        ("a hole", |client, ino, _| client.fallocate(&op(client), ino, 3, 0, 2 * STRIPE as u64).unwrap()),
        ("zeros", |client, ino, _| client.fallocate(&op(client), ino, 17, 0, 2 * STRIPE as u64).unwrap()),
        ("a copy", |client, ino, from| {
            let copy = CopyJob { from, from_offset: 0, to: ino, to_offset: 0, len: 2 * STRIPE as u64 };
            assert_eq!(client.copy(&op(client), &copy).unwrap(), copy.len);
        }),
    ];
    for (what, change) in changes {
        let (ino, from) =
            (ones(&formation, what.as_bytes()), ones(&formation, format!("from {what}").as_bytes()));
        let client = overtaken_by(&formation, ino, (Op::Touch, 0), 2);
        client.open(&op(&client), from, 0).unwrap();
        change(&client, ino, from);
        let content = read(&formation.clients[0], ino, 0, 4 * STRIPE);
        assert!(content[..2 * STRIPE].iter().all(|byte| *byte == 3), "{what}: {}", content[0]);
        assert!(content[2 * STRIPE..].iter().all(|byte| *byte == 1), "{what}");
    }
}

/// S363: of several targets those alone are asked again that had no space, for long writes as well.
#[test]
fn targets_that_had_space_are_not_asked_again() {
    let formation = Formation::new(2, STRIPE as u32);
    for (name, stripes) in [(b"short", 2), (b"large", 2 * TRANSFER_MAX / STRIPE)] {
        let ino = ones(&formation, name);
        write(&formation.clients[0], ino, 0, &vec![1; stripes * STRIPE]);
        let client = overtaken_by(&formation, ino, (Op::Write, 1), stripes);
        write(&client, ino, 0, &vec![2; stripes * STRIPE]);
        let content = read(&formation.clients[0], ino, 0, stripes * STRIPE);
        let ours = content.iter().filter(|byte| **byte == 2).count();
        let theirs = content.iter().filter(|byte| **byte == 3).count();
        assert_eq!(ours + theirs, content.len());
        assert!(ours > 0 && theirs > 0, "{ours} bytes were written again, {theirs} were not");
    }
}

/// S363: of a list that finds no space in its middle, the places in front of that are not written again.
#[test]
fn places_of_a_list_that_are_written_are_not_written_again() {
    let formation = Formation::with_capacity(2, STRIPE as u32, 1 << 20);
    let ino = ones(&formation, b"list");
    let client = overtaken_by(&formation, ino, (Op::Touch, u32::MAX), 1);
    let data = vec![2; TRANSFER_MAX - 2 * STRIPE];
    let places = [(0, &data[..2 * STRIPE]), (64 * STRIPE as u64, &data[2 * STRIPE..])];
    let error = client.write_list(ino, &places).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
    let content = read(&formation.clients[0], ino, 0, 2 * STRIPE);
    assert!(content[..STRIPE].iter().all(|byte| *byte == 3), "{}", content[0]);
    assert!(content[STRIPE..].iter().all(|byte| *byte == 2));
}

//! What becomes of writes, cuts and copies of which some part fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::formation::{Formation, op, read, write};
use bivouac_client::{Client, NewInode};
use bivouac_net::{FailingTransport, Fault, Transport};
use bivouac_types::{Errno, FsError, Ino, mode};
use bivouac_wire::{Frame, Op};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
const STRIPE: usize = 4096;

fn make(client: &Client, name: &[u8]) -> Ino {
    client.create(&op(client), Ino::ROOT, name, &FILE, true, false).unwrap().attr.ino
}

/// A client of which some operations fail: `next` says which, and how.
fn failing(formation: &Formation, next: &Arc<parking_lot::Mutex<Vec<(Op, Fault)>>>) -> Client {
    formation.client_through(1, |inner| -> Arc<dyn Transport> {
        let next = Arc::clone(next);
        let plan = move |frame: &Frame| {
            let next = next.lock();
            next.iter().find(|(op, _)| *op as u16 == frame.op).map(|(_, fault)| fault.clone())
        };
        Arc::new(FailingTransport::new(inner, plan))
    })
}

/// S6, S10: also where all seats have it, and it is the home that fails.
#[test]
fn what_a_home_has_not_taken_down_does_not_come_up_in_a_hole() {
    let formation = Formation::new(3, STRIPE as u32);
    let next = Arc::default();
    let (client, other) = (failing(&formation, &next), &formation.clients[0]);
    let data = vec![9; 5 << 20];
    let [one, large, list, before, behind] = [b"a", b"b", b"c", b"d", b"e"].map(|name| make(&client, name));
    write(&client, before, 0, &[1; 10]);
    *next.lock() = vec![(Op::Extend, Fault::Fail(Errno::ENOSPC)), (Op::ExtendOver, Fault::Fail(Errno::EIO))];
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

/// A try that finds no room is made again without a cut in between, which would have to be waited for.
#[test]
fn a_write_that_finds_room_at_the_second_try_cuts_nothing() {
    let formation = Formation::new(2, STRIPE as u32);
    let turn = Arc::new(AtomicU32::new(0));
    let client = formation.client_through(1, |inner| -> Arc<dyn Transport> {
        let turn = Arc::clone(&turn);
        let plan = move |frame: &Frame| {
            let fails = frame.op == Op::Write as u16 && turn.fetch_add(1, Ordering::SeqCst) == 1;
            fails.then_some(Fault::Fail(Errno::ENOSPC))
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

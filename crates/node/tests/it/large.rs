//! Large calls: messages to several targets under way together, and what comes in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::formation::{Formation, op as context};
use bivouac_client::{Client, NewInode, SetAttr};
use bivouac_net::{FailingTransport, InjectedFault, Peer, PeerOptions, Transport};
use bivouac_types::{Errno, Ino, NodeId, mode};
use bivouac_wire::{Frame, Op};

const STRIPE: usize = 256 << 10;
/// Six messages of 1 MiB to each of three targets, and then some.
const LEN: usize = (19 << 20) + 4321;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 253) as u8 ^ (at >> 13) as u8).collect()
}

fn file(client: &Client, name: &[u8]) -> Ino {
    let new = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
    client.create(&context(client), Ino::ROOT, name, &new, true, false).unwrap().attr.ino
}

fn cut(client: &Client, ino: Ino, size: usize) {
    let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
    client.setattr(&context(client), ino, &set).unwrap();
}

/// What is in the file, at most `len` bytes.
fn content(client: &Client, ino: Ino, len: usize) -> Vec<u8> {
    let mut seen = vec![0xee; len];
    let read = client.read(ino, 0, &mut seen).unwrap();
    seen.truncate(read);
    seen
}

/// A client that asks `plan` what happens to its messages with this operation, numbered from 0.
fn client(
    formation: &Formation,
    op: Op,
    plan: impl Fn(u32) -> Option<InjectedFault> + Send + Sync + 'static,
) -> Client {
    let (turn, plan) = (Arc::new(AtomicU32::new(0)), Arc::new(plan));
    formation.client_through(2, |inner| {
        let (turn, plan) = (turn.clone(), plan.clone());
        let decide = move |frame: &Frame| {
            (frame.op == op as u16).then(|| plan(turn.fetch_add(1, Ordering::SeqCst))).flatten()
        };
        let failing: Arc<dyn Transport> = Arc::new(FailingTransport::new(inner, decide));
        Arc::new(Peer::new(NodeId(0), failing, PeerOptions::default()))
    })
}

/// S10, S274: what is in front of what failed belongs to the file, what is behind it does not come up later.
#[test]
fn a_large_write_that_fails_in_its_middle_makes_no_file_longer() {
    let formation = Formation::new(3, STRIPE as u32);
    let other = &formation.clients[0];
    let data = bytes(LEN);
    for failing in [0, 1, 4, 8] {
        let client = client(&formation, Op::Write, move |turn| {
            // Also of the second try, when all nodes have removed what nobody needs.
            (turn >= failing).then_some(InjectedFault::Fail(Errno::ENOSPC))
        });
        let ino = file(&client, &[b'a' + failing as u8]);
        client.write_at(ino, 0, &[1; 100]).map(drop).unwrap_or_default();
        let before = if failing == 0 { 0 } else { 100 };
        if failing > 0 {
            let error = client.write_at(ino, 50, &data).unwrap_err();
            assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
        }
        let size = other.getattr(ino).unwrap().size as usize;
        assert_eq!(size, before, "message {failing}");
        other.open(&context(other), ino, 0).unwrap();
        let seen = content(other, ino, LEN + 100);
        assert_eq!(seen.len(), size);
        // Nothing of it is behind the end.
        cut(other, ino, LEN + 100);
        assert!(content(other, ino, LEN + 100)[size..].iter().all(|byte| *byte == 0), "message {failing}");
        other.close(ino);
        client.close(ino);
    }
}

/// S274: every answer is awaited, also behind a failure.
#[test]
fn nothing_is_written_any_more_when_a_failed_call_has_returned() {
    let formation = Formation::new(3, STRIPE as u32);
    let begun = Arc::new(AtomicU32::new(0));
    let count = begun.clone();
    let client = client(&formation, Op::Write, move |turn| {
        count.fetch_add(1, Ordering::SeqCst);
        (turn == 3).then_some(InjectedFault::Fail(Errno::EIO))
    });
    let ino = file(&client, b"file");
    assert_eq!(client.write_at(ino, 0, &bytes(LEN)).unwrap_err().errno(), Errno::EIO);
    let served = || {
        let all = formation.clients[1..2]
            .iter()
            .flat_map(|client| (0..3).map(|node| client.nodes().status(NodeId(node))));
        let operations = all.flat_map(|status| status.unwrap().operations);
        operations.filter(|count| count.name == "Write").map(|count| count.client).sum::<u64>()
    };
    assert_eq!(u64::from(begun.load(Ordering::SeqCst)), served() + 1, "all but the one that failed");
    // No more than a window was begun behind it.
    assert!(begun.load(Ordering::SeqCst) <= 3 + 3 * 3, "{begun:?}");
}

#[test]
fn a_large_write_that_a_cut_overtakes_in_its_middle_is_written_again() {
    let formation = Formation::new(3, STRIPE as u32);
    let data = bytes(LEN);
    for (number, size) in [(2, 10), (5, 5 << 20), (9, 0)] {
        let cutter = formation.client_as(1, 700 + u64::from(number));
        let ino = file(&formation.clients[0], &[b'a' + number as u8]);
        formation.clients[0].write_at(ino, 0, &[1; 1000]).unwrap();
        let client = client(&formation, Op::Write, move |turn| {
            if turn == number {
                cut(&cutter, ino, size);
            }
            None
        });
        client.open(&context(&client), ino, 0).unwrap();
        assert_eq!(client.write_at(ino, 100, &data).unwrap(), LEN);
        let seen = content(&formation.clients[0], ino, LEN + 1000);
        assert_eq!((seen.len(), seen[..10.min(size)].iter().all(|byte| *byte == 1)), (LEN + 100, true));
        assert!(seen[100..] == data[..], "cut to {size} before message {number}");
    }
}

/// However many cuts there are.
#[test]
fn cuts_without_end_do_not_keep_a_large_write_from_its_own() {
    let formation = Formation::new(2, STRIPE as u32);
    let ino = file(&formation.clients[0], b"file");
    formation.clients[0].write_at(ino, 0, &[1; 1000]).unwrap();
    let cutter = formation.client_as(1, 700);
    // More often than once per stretch, not more often than once per request.
    let client = client(&formation, Op::Write, move |turn| {
        if turn.is_multiple_of(7) {
            // It gets longer first, so that there is something to cut.
            cut(&cutter, ino, 1000);
            cut(&cutter, ino, 10);
        }
        None
    });
    client.open(&context(&client), ino, 0).unwrap();
    let len = 60 << 20;
    assert_eq!(client.write_at(ino, 0, &bytes(len)).unwrap(), len);
}

#[test]
fn a_large_read_ends_at_the_end_and_has_zeros_for_holes() {
    let formation = Formation::new(3, STRIPE as u32);
    let (client, other) = (&formation.clients[0], &formation.clients[1]);
    let ino = file(client, b"file");
    let data = bytes(LEN);
    // Two stripes, a hole of several rows, and the rest.
    client.write_at(ino, 0, &data[..2 * STRIPE]).unwrap();
    client.write_at(ino, 11 << 20, &data[11 << 20..]).unwrap();
    let mut expected = data.clone();
    expected[2 * STRIPE..11 << 20].fill(0);
    other.open(&context(other), ino, 0).unwrap();
    for (offset, room) in
        [(0, LEN), (0, 3 * LEN), (77, LEN), (LEN - (5 << 20), 40 << 20), (LEN, 5 << 20), (2 * LEN, 5 << 20)]
    {
        let mut seen = vec![0xee; room];
        let read = other.read(ino, offset as u64, &mut seen).unwrap();
        assert_eq!(read, LEN.saturating_sub(offset).min(room), "from {offset}");
        assert!(seen[..read] == expected[offset.min(LEN)..][..read], "from {offset}");
    }
    // A file that ends in a hole.
    cut(client, ino, 3 * LEN);
    let seen = content(other, ino, 4 * LEN);
    assert!(
        seen.len() == 3 * LEN && seen[..LEN] == expected[..] && seen[LEN..].iter().all(|byte| *byte == 0)
    );
}

#[test]
fn a_large_read_that_a_cut_overtakes_sees_one_size_or_the_other() {
    let formation = Formation::new(3, STRIPE as u32);
    let data = bytes(LEN);
    for (number, size) in [(1, 10), (4, 5 << 20), (8, (6 << 20) + 1)] {
        let cutter = formation.client_as(1, 700 + u64::from(number));
        let ino = file(&formation.clients[0], &[b'a' + number as u8]);
        formation.clients[0].write_at(ino, 0, &data).unwrap();
        let client = client(&formation, Op::Read, move |turn| {
            if turn == number {
                cut(&cutter, ino, size);
            }
            None
        });
        client.open(&context(&client), ino, 0).unwrap();
        let seen = content(&client, ino, LEN);
        assert!(seen.len() == size && seen == data[..size], "cut to {size}: {} bytes", seen.len());
    }
}

/// Lost requests and answers, in the middle and at the end.
#[test]
fn a_large_call_that_loses_messages_is_whole() {
    let formation = Formation::new(3, STRIPE as u32);
    let data = bytes(LEN);
    let lose = |turn: u32| match turn % 5 {
        1 => Some(InjectedFault::DropBefore),
        3 => Some(InjectedFault::DropAfter),
        _ => None,
    };
    let writer = client(&formation, Op::Write, lose);
    let ino = file(&writer, b"file");
    assert_eq!(writer.write_at(ino, 12_345, &data).unwrap(), LEN);
    let reader = client(&formation, Op::Read, lose);
    reader.open(&context(&reader), ino, 0).unwrap();
    let seen = content(&reader, ino, 2 * LEN);
    assert!(
        seen.len() == LEN + 12_345
            && seen[12_345..] == data[..]
            && seen[..12_345].iter().all(|byte| *byte == 0)
    );
}

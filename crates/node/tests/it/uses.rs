//! How files were used is told with their closes, and costs no message of its own.

use bivouac_client::{Caller, NewInode, UseTable, on_behalf_of};
use bivouac_types::{Ino, NodeId, mode};

use crate::formation::{Formation, op, wait_until};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };

fn table(formation: &Formation) -> UseTable {
    formation.clients[0].nodes().list_uses(NodeId(0)).unwrap()
}

fn closes(formation: &Formation) -> u64 {
    let operations = formation.clients[0].nodes().status(NodeId(0)).unwrap().operations;
    operations.into_iter().filter(|count| count.name == "Close").map(|count| count.client).sum()
}

#[test]
fn what_was_done_is_told_with_the_close() {
    let formation = Formation::new(1, 4096);
    let client = &formation.clients[0];
    let ino = client.create(&op(client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    client.open(&op(client), ino, 0).unwrap();
    for i in 0..100_u64 {
        client.write(&op(client), ino, i * 1000, &[7; 1000], false).unwrap();
    }
    client.write(&op(client), ino, 0, &[8; 500], true).unwrap();
    let mut back = vec![0; 1000];
    on_behalf_of(4711, |thread| Caller { pid: thread, program: b"reader".to_vec() });
    for i in (0..10).rev() {
        assert_eq!(client.read(ino, i * 10_000, &mut back).unwrap(), 1000);
    }
    client.close(ino);
    assert_eq!(table(&formation).files, [], "it is still open");
    let before = closes(&formation);
    client.close(ino);
    wait_until("told", || table(&formation).files.len() == 1);
    assert_eq!(closes(&formation), before + 1);
    let told = table(&formation);
    let file = &told.files[0];
    assert_eq!(
        (file.ino, file.parent, file.stripe, file.users.len(), file.mounted),
        (ino, Ino::ROOT, 4096, 2, 0)
    );
    let (reads, writes) = (file.pattern.reads, file.pattern.writes);
    assert_eq!((writes.ops, writes.bytes, writes.sequential, writes.off_page), (101, 100_500, 101, 99));
    // 1000 bytes at a time reach over the end of a page of 4096 a quarter of the time.
    assert_eq!((writes.sizes[0..2].to_vec(), writes.crossing), (vec![0, 101], 24));
    assert_eq!((reads.ops, reads.bytes, reads.strided, reads.random()), (10, 10_000, 8, 1));
    assert!(writes.spent_ns > 0 && file.first_ms <= file.last_ms && file.last_ms <= told.uptime_ms);
    let reader = told.processes.iter().find(|process| process.pid == 4711).unwrap();
    assert_eq!(
        (&reader.program.0[..], reader.pattern.reads.ops, reader.pattern.writes.ops),
        (&b"reader"[..], 10, 0)
    );
    let history = formation.clients[0].nodes().list_history(NodeId(0), false, u64::MAX).unwrap().history;
    assert_eq!(history.timeline().total().written, 100_500);
    assert_eq!(history.minutes.iter().map(|slot| slot.bin.written).sum::<u64>(), 100_500);
}

#[test]
fn what_is_open_is_told_when_somebody_asks_for_it() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[1];
    let inos = [&b"a"[..], b"b", b"c", b"d"]
        .map(|name| client.create(&op(client), Ino::ROOT, name, &FILE, true, false).unwrap().attr.ino);
    for ino in inos {
        client.write(&op(client), ino, 0, &[1; 10], false).unwrap();
    }
    client.tell_uses();
    let seen = || {
        let of = |node| formation.clients[0].nodes().list_uses(NodeId(node)).unwrap().files;
        let mut seen: Vec<(Ino, u64)> =
            [of(0), of(1)].concat().iter().map(|file| (file.ino, file.pattern.writes.bytes)).collect();
        seen.sort_unstable();
        seen
    };
    let mut expected = inos.map(|ino| (ino, 10)).to_vec();
    expected.sort_unstable();
    wait_until("told", || seen().len() == inos.len());
    assert_eq!(seen(), expected);
    inos.iter().for_each(|ino| client.close(*ino));
    client.leave();
    assert_eq!(seen(), expected, "each is told once");
}

#[test]
fn files_that_are_gone_are_told_of() {
    let formation = Formation::new(1, 4096);
    let client = &formation.clients[0];
    let ino = client.create(&op(client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    client.write(&op(client), ino, 0, &[1; 10], false).unwrap();
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    client.close(ino);
    wait_until("told", || table(&formation).files.len() == 1);
    assert_eq!(table(&formation).files[0].pattern.writes.bytes, 10);
}

//! Data versions: every write raises that of its file, and a rename may go by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::formation::{Formation, op, read, wait_until, write};
use bivouac_client::{Attr, Client, NewInode, SetAttr};
use bivouac_net::{FailingTransport, InjectedFault, Peer, PeerOptions, Transport};
use bivouac_types::{Errno, ExpectedFile, Ino, NodeId, Timestamp, mode};
use bivouac_wire::{Frame, Op};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o700, rdev: 0, target: &[] };

/// Makes a file with content, which nobody has open.
fn put(client: &Client, dir: Ino, name: &[u8], content: &[u8]) -> Attr {
    let ino = client.create(&op(client), dir, name, &FILE, true, false).unwrap().attr.ino;
    write(client, ino, 0, content);
    client.close(ino);
    client.getattr(ino).unwrap()
}

fn expected(attr: &Attr) -> ExpectedFile {
    ExpectedFile { ino: attr.ino, data_version: Some(attr.data_version) }
}

/// S668. Whatever the times of the file are, and however soon one write follows the other.
#[test]
fn every_write_within_the_size_is_another_version() {
    let formation = Formation::new(2, 4096);
    let (writer, reader) = (&formation.clients[0], &formation.clients[1]);
    for name in [b"a", b"b"] {
        let first = put(writer, Ino::ROOT, name, b"0123456789");
        let ino = first.ino;
        let look = || reader.getattr(ino).unwrap();
        assert!(!look().is_being_written() && look().data_version == first.data_version);
        reader.open(&op(reader), ino, 0).unwrap();
        writer.open(&op(writer), ino, 0).unwrap();
        assert!(!look().is_being_written(), "nobody has written");
        let mut versions = vec![first.data_version];
        for round in 0..3 {
            write(writer, ino, 0, &[round; 4]);
            // The home hears of the first of these, and not of the others before the close.
            write(writer, ino, 4, &[round; 4]);
            assert!(look().is_being_written());
            let other = reader.lookup(Ino::ROOT, name).unwrap();
            assert!(other.is_being_written() && !expected(&other).is_met_by(&look()));
            writer.close(ino);
            let now = look();
            assert!(!now.is_being_written() && expected(&now).is_met_by(&look()));
            versions.push(now.data_version);
            writer.open(&op(writer), ino, 0).unwrap();
        }
        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
        // Neither times nor names are content.
        let mtime = Some(bivouac_types::SetTime::At(Timestamp { secs: 1, nanos: 0 }));
        let set = SetAttr { mtime, mode: Some(0o640), ..SetAttr::default() };
        writer.setattr(&op(writer), ino, &set).unwrap();
        writer.link(&op(writer), ino, Ino::ROOT, &[name[0], b'2']).unwrap();
        assert_eq!(Some(&look().data_version), versions.last());
        // Whatever else changes content.
        let cut = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        writer.setattr(&op(writer), ino, &cut(5)).unwrap();
        versions.push(look().data_version);
        writer.setattr(&op(writer), ino, &cut(50)).unwrap();
        versions.push(look().data_version);
        write(writer, ino, 50, b"more");
        versions.push(look().data_version);
        assert_eq!(writer.write(&op(writer), ino, 0, b"end", true).unwrap(), 3);
        versions.push(look().data_version);
        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
    }
}

/// S668. A client that is gone writes no more, and one that has yet to say what it has open may be writing.
#[test]
fn a_file_is_being_written_no_longer_than_its_writer_lives() {
    let mut formation = Formation::new(1, 4096);
    let ino = {
        let (writer, reader) = (formation.client_as(0, 50), &formation.clients[0]);
        let ino = put(&writer, Ino::ROOT, b"f", b"0123456789").ino;
        writer.open(&op(&writer), ino, 0).unwrap();
        write(&writer, ino, 0, b"x");
        assert!(reader.getattr(ino).unwrap().is_being_written());
        ino
    };
    formation.restart_as_the_same_clients();
    let (reader, writer) = (&formation.clients[0], formation.client_as(0, 50));
    assert!(reader.getattr(ino).unwrap().is_being_written(), "it may have the file open");
    writer.reassert_opens(&[]).unwrap();
    reader.reassert_opens(&[]).unwrap();
    assert!(!reader.getattr(ino).unwrap().is_being_written());
}

/// Makes a directory with two files, `one` and `two`, which is spread over the nodes if `spread`.
fn directory_of_two(formation: &Formation, spread: bool) -> Ino {
    let (client, other) = (&formation.clients[0], &formation.clients[1]);
    let dir = client.mknod(&op(client), Ino::ROOT, b"d", &DIR).unwrap().ino;
    put(client, dir, b"one", b"1");
    put(client, dir, b"two", b"2");
    other.readdir(dir, 0, 1 << 16, true).unwrap();
    wait_until("it is spread", || !spread || client.getattr(dir).unwrap().is_spread());
    dir
}

/// S669. What is replaced is the file that was seen, with the content that it had; wherever names and files are.
#[test]
fn a_rename_that_expects_a_content_replaces_no_other() {
    for spread in [false, true] {
        let formation = if spread { Formation::spreading(3) } else { Formation::new(3, 4096) };
        let (client, other) = (&formation.clients[0], &formation.clients[1]);
        let dir = directory_of_two(&formation, spread);
        for number in 0..24 {
            let (new, old) = (format!("new{number}").into_bytes(), format!("old{number}").into_bytes());
            let mut seen = put(other, dir, &old, b"seen");
            // The file's home is not always the node of its name.
            if number % 3 == 0 {
                let moved = format!("moved{number}").into_bytes();
                other.rename(&op(other), dir, &old, dir, &moved, 0).unwrap();
                other.rename(&op(other), dir, &moved, dir, &old, 0).unwrap();
                seen = client.getattr(seen.ino).unwrap();
            }
            let ours = put(client, dir, &new, b"ours");
            let over = |expected| {
                let moved = client.rename_over(&op(client), (dir, &new), (dir, &old), expected);
                let [new, old] = [&new, &old].map(|name| client.lookup(dir, name).map(|attr| attr.ino).ok());
                (moved.map_err(|error| error.errno()), new, old)
            };
            let refused = (Err(Errno::ECANCELED), Some(ours.ino), Some(seen.ino));
            assert_eq!(over(ExpectedFile { ino: ours.ino, data_version: None }), refused);
            other.open(&op(other), seen.ino, 0).unwrap();
            write(other, seen.ino, 0, b"SEEN");
            assert_eq!(over(expected(&seen)), refused, "it is being written");
            other.close(seen.ino);
            assert_eq!(over(expected(&seen)), refused, "it was written");
            let now = client.getattr(seen.ino).unwrap();
            assert_eq!(over(expected(&now)), (Ok(()), None, Some(ours.ino)));
            assert_eq!(read(other, ours.ino, 0, 10), b"ours");
            assert_eq!(over(expected(&ours)).0, Err(Errno::ENOENT), "there is nothing to move");
        }
        let absent = client.rename_over(
            &op(client),
            (dir, b"one"),
            (dir, b"none"),
            expected(&put(client, dir, b"x", b"")),
        );
        assert_eq!(absent.unwrap_err().errno(), Errno::ECANCELED);
        let flags = client.rename(&op(client), dir, b"one", dir, b"two", 1).unwrap_err();
        assert_eq!(flags.errno(), Errno::EEXIST, "as before");
    }
}

/// S669. What is removed is the file that was seen, with the content that it had; wherever names and files are.
#[test]
fn an_unlink_that_expects_a_content_removes_no_other() {
    for spread in [false, true] {
        let formation = if spread { Formation::spreading(3) } else { Formation::new(3, 4096) };
        let (client, other) = (&formation.clients[0], &formation.clients[1]);
        let dir = directory_of_two(&formation, spread);
        for number in 0..24 {
            let name = format!("old{number}").into_bytes();
            let mut seen = put(other, dir, &name, b"seen");
            // The file's home is not always the node of its name.
            if number % 3 == 0 {
                let moved = format!("moved{number}").into_bytes();
                other.rename(&op(other), dir, &name, dir, &moved, 0).unwrap();
                other.rename(&op(other), dir, &moved, dir, &name, 0).unwrap();
                seen = client.getattr(seen.ino).unwrap();
            }
            let remove = |expected| {
                let removed = client.unlink_expected(&op(client), dir, &name, expected);
                let left = client.lookup(dir, &name).map(|attr| attr.ino).ok();
                (removed.map_err(|error| error.errno()), left)
            };
            let refused = (Err(Errno::ECANCELED), Some(seen.ino));
            assert_eq!(remove(ExpectedFile { ino: dir, data_version: None }), refused);
            other.open(&op(other), seen.ino, 0).unwrap();
            write(other, seen.ino, 0, b"SEEN");
            assert_eq!(remove(expected(&seen)), refused, "it is being written");
            if number % 2 == 0 {
                let any = ExpectedFile { ino: seen.ino, data_version: None };
                assert_eq!(remove(any), (Ok(()), None), "its content does not count");
                other.close(seen.ino);
                continue;
            }
            other.close(seen.ino);
            assert_eq!(remove(expected(&seen)), refused, "it was written");
            assert_eq!(read(client, seen.ino, 0, 10), b"SEEN");
            let now = client.getattr(seen.ino).unwrap();
            assert_eq!(remove(expected(&now)), (Ok(()), None));
            assert_eq!(remove(expected(&now)).0, Err(Errno::ENOENT));
        }
        let is_dir =
            client.unlink_expected(&op(client), Ino::ROOT, b"d", expected(&client.getattr(dir).unwrap()));
        assert_eq!(is_dir.unwrap_err().errno(), Errno::EISDIR);
    }
}

/// S669. Of two contents that follow each other at once, the second is never removed by who has seen the first.
#[test]
fn unlinks_that_expect_a_content_take_what_was_seen() {
    const ROUNDS: u8 = 60;
    let formation = Formation::new(3, 4096);
    let (remover, writer) = (&formation.clients[0], &formation.clients[1]);
    let dir = remover.mknod(&op(remover), Ino::ROOT, b"d", &DIR).unwrap().ino;
    let last = 2 * ROUNDS;
    let removed = std::thread::scope(|scope| {
        let removing = scope.spawn(|| {
            let mut removed = Vec::new();
            while removed.last() != Some(&last) {
                let Ok(seen) = remover.lookup(dir, b"f") else { continue };
                let mut content = [0];
                if !remover.read(seen.ino, 0, &mut content).is_ok_and(|read| read == 1) {
                    continue;
                }
                match remover.unlink_expected(&op(remover), dir, b"f", expected(&seen)) {
                    Ok(()) => removed.push(content[0]),
                    Err(error) => {
                        let is_other =
                            matches!(error.errno(), Errno::ECANCELED | Errno::ENOENT | Errno::EBUSY);
                        assert!(is_other, "{error}");
                    }
                }
            }
            removed
        });
        for round in 1..=ROUNDS {
            put_over(writer, dir, 2 * round - 1);
            put_over(writer, dir, 2 * round);
            wait_until("it is removed", || writer.lookup(dir, b"f").is_err());
        }
        removing.join().unwrap()
    });
    let second: Vec<u8> = removed.iter().copied().filter(|content| content % 2 == 0).collect();
    assert_eq!(second, (1..=ROUNDS).map(|round| 2 * round).collect::<Vec<_>>(), "{removed:?}");
}

/// Replaces `f` by a file with another content.
fn put_over(client: &Client, dir: Ino, content: u8) {
    put(client, dir, b"new", &[content]);
    client.rename(&op(client), dir, b"new", dir, b"f", 0).unwrap();
}

/// S669. It is done once, however often its answers are lost.
#[test]
fn a_rename_that_expects_a_content_is_done_once() {
    let formation = Formation::new(2, 4096);
    let turn = Arc::new(AtomicU32::new(0));
    let client = formation.client_through(0, |inner| -> Arc<dyn Transport> {
        let turn = Arc::clone(&turn);
        let is_first = move |frame: &Frame| {
            frame.op == Op::Rename as u16 && turn.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
        };
        let failing = Arc::new(FailingTransport::new(inner, move |frame: &Frame| {
            is_first(frame).then_some(InjectedFault::DropAfter)
        }));
        Arc::new(Peer::new(NodeId(0), failing, PeerOptions::default()))
    });
    let mut seen = put(&client, Ino::ROOT, b"f", b"0");
    for round in 1..10_u8 {
        let new = put(&client, Ino::ROOT, b"new", &[round]);
        client.rename_over(&op(&client), (Ino::ROOT, b"new"), (Ino::ROOT, b"f"), expected(&seen)).unwrap();
        assert_eq!(client.lookup(Ino::ROOT, b"new").unwrap_err().errno(), Errno::ENOENT);
        seen = client.lookup(Ino::ROOT, b"f").unwrap();
        assert_eq!(seen.ino, new.ino);
    }
    assert!(turn.load(Ordering::SeqCst) >= 18, "answers were lost");
}

/// S669. Of those who all count on, nobody's step is lost.
#[test]
fn renames_that_expect_a_content_are_in_order() {
    const STEPS: u64 = 20;
    for spread in [false, true] {
        let formation = if spread { Formation::spreading(3) } else { Formation::new(3, 4096) };
        let client = &formation.clients[0];
        let dir = client.mknod(&op(client), Ino::ROOT, b"d", &DIR).unwrap().ino;
        put(client, dir, b"count", &0_u64.to_le_bytes());
        let count = |client: &Client| {
            let attr = client.lookup(dir, b"count").ok()?;
            let mut bytes = [0; 8];
            // What is replaced meanwhile may be gone before it is read.
            (client.read(attr.ino, 0, &mut bytes).ok()? == 8).then(|| (attr, u64::from_le_bytes(bytes)))
        };
        std::thread::scope(|scope| {
            for (number, client) in formation.clients.iter().enumerate() {
                scope.spawn(move || {
                    let name = format!("beside{number}").into_bytes();
                    let mut done = 0;
                    while done < STEPS {
                        let Some((seen, before)) = count(client) else { continue };
                        put(client, dir, &name, &(before + 1).to_le_bytes());
                        let target: (Ino, &[u8]) = (dir, b"count");
                        match client.rename_over(&op(client), (dir, &name), target, expected(&seen)) {
                            Ok(()) => done += 1,
                            Err(error) => {
                                assert!(matches!(error.errno(), Errno::ECANCELED | Errno::EBUSY), "{error}");
                                client.unlink(&op(client), dir, &name).unwrap();
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(count(client).unwrap().1, 3 * STEPS);
    }
}

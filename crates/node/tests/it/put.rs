//! Whole small files by one message.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::formation::{Formation, Switchboard, op, read};
use bivouac_client::{Client, NewInode, OpCtx};
use bivouac_types::limits::PUT_LEN_MAX;
use bivouac_types::put::NewFile;
use bivouac_types::{Errno, FsResult, Ino, SetAttr, Timestamp, mode};
use bivouac_wire::Op;

const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o700, rdev: 0, target: b"" };
const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o640, rdev: 0, target: b"" };
const MTIME: Timestamp = Timestamp { secs: 1_234, nanos: 5 };

fn file<'a>(name: &'a str, content: &'a [u8]) -> NewFile<'a> {
    NewFile { name: name.as_bytes(), mode: 0o640, mtime: MTIME, content }
}

fn dir(client: &Client, name: &str) -> Ino {
    client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR).unwrap().ino
}

fn refusal<T: std::fmt::Debug>(outcome: FsResult<T>) -> Errno {
    outcome.unwrap_err().errno()
}

/// S267.
#[test]
fn a_file_is_whole_with_one_message_of_its_maker() {
    let formation = Formation::new(4, 4096);
    let (client, other) = (&formation.clients[0], &formation.clients[1]);
    let dir = dir(client, "d");
    let home = usize::from(formation.map.home(dir).unwrap().0);
    let longest = [b'l'; PUT_LEN_MAX];
    let contents: [&[u8]; 4] = [b"", b"content", &longest[..4096], &longest];
    let before = [Op::Make, Op::Extend, Op::SetAttr].map(|op| formation.served(home, op));
    for (number, content) in contents.into_iter().enumerate() {
        let name = format!("f{number}");
        let made = client.put(&client.new_op(0, 0, 7), dir, &file(&name, content)).unwrap();
        assert_eq!((made.size, made.mtime, made.mode), (content.len() as u64, MTIME, mode::FILE | 0o640));
        let seen = other.lookup(dir, name.as_bytes()).unwrap();
        assert_eq!((seen.ino, seen.size, seen.mtime, seen.ctime), (made.ino, made.size, MTIME, made.ctime));
        assert_eq!((seen.uid, seen.gid, seen.nlink, seen.holes), (0, 7, 1, 0));
        assert_eq!(read(other, made.ino, 0, PUT_LEN_MAX + 1), content);
    }
    assert_eq!(formation.served(home, Op::Put), 4);
    assert_eq!([Op::Make, Op::Extend, Op::SetAttr].map(|op| formation.served(home, op)), before);
}

/// S267.
#[test]
fn where_it_is_not_for_the_asking_user_nothing_is_made() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let dir = dir(client, "d");
    let put = |uid, name: &str| client.put(&client.new_op(0, uid, 0), dir, &file(name, b"x"));
    let set = |mode| client.setattr(&op(client), dir, &SetAttr { mode: Some(mode), ..SetAttr::default() });
    assert_eq!(refusal(put(1000, "f")), Errno::EACCES, "somebody else's directory");
    set(0o500).unwrap();
    assert_eq!(refusal(put(0, "f")), Errno::EACCES, "a read-only directory");
    set(0o2700).unwrap();
    assert_eq!(refusal(put(0, "f")), Errno::EOPNOTSUPP, "a directory that passes on its group");
    set(0o700).unwrap();
    assert_eq!(refusal(client.lookup(dir, b"f")), Errno::ENOENT);
    put(0, "f").unwrap();
    assert_eq!(refusal(put(0, "f")), Errno::EEXIST);
    let wrong = NewFile { mode: 0o4755, ..file("g", b"") };
    assert_eq!(refusal(client.put(&op(client), dir, &wrong)), Errno::EINVAL);
    let long = [0; PUT_LEN_MAX + 1];
    assert_eq!(refusal(client.put(&op(client), dir, &file("g", &long))), Errno::EINVAL);
    assert_eq!(refusal(client.put(&op(client), Ino(0x1234), &file("g", b""))), Errno::ENOENT);
    let f = client.lookup(dir, b"f").unwrap().ino;
    assert_eq!(refusal(client.put(&op(client), f, &file("g", b""))), Errno::ENOTDIR);
}

/// S268.
#[test]
fn one_that_is_sent_again_is_made_once_and_completed() {
    let mut formation = Formation::new(2, 4096);
    let (made, dir) = {
        let client = &formation.clients[0];
        let dir = dir(client, "d");
        let made = op(client);
        let first = client.put(&made, dir, &file("f", b"content")).unwrap();
        let again = client.put(&OpCtx { retry: true, ..made }, dir, &file("f", b"content")).unwrap();
        assert_eq!((first.ino, first.ctime), (again.ino, again.ctime));
        // As far as a daemon that was killed had come.
        let begun = client.new_op(1, 0, 0);
        let half = client.mknod(&begun, dir, b"half", &FILE).unwrap();
        let whole = client.put(&OpCtx { retry: true, ..begun }, dir, &file("half", b"content")).unwrap();
        assert_eq!((whole.ino, whole.mtime), (half.ino, MTIME));
        assert_eq!(read(client, half.ino, 0, 9), b"content");
        // Somebody writes to the file before it is sent again.
        client.open(&client.new_op(2, 0, 0), first.ino, 0).unwrap();
        crate::formation::write(client, first.ino, 7, b" and more");
        let late = client.put(&OpCtx { retry: true, ..made }, dir, &file("f", b"content"));
        assert_eq!(refusal(late), Errno::EIO);
        assert_eq!(read(client, first.ino, 0, 99), b"content and more");
        client.close(first.ino);
        (made, dir)
    };
    formation.restart_as_the_same_clients();
    let client = &formation.clients[0];
    assert_eq!(client.lookup(dir, b"half").unwrap().mtime, MTIME);
    let late = client.put(&OpCtx { retry: true, ..made }, dir, &file("f", b"content"));
    assert_eq!(refusal(late), Errno::EIO, "it is remembered over a restart");
}

/// S268.
#[test]
fn what_a_failed_one_left_does_not_come_up() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let dir = dir(client, "d");
    let content = [b'x'; 3 * 4096];
    // Each stripe on another target than the one before: in some of these files one is written before another one is lost.
    for name in ["a", "b", "c", "d", "e", "f"] {
        formation.switchboard.lose_request.store(u32::from(Op::Write as u16), Ordering::Relaxed);
        assert_eq!(refusal(client.put(&op(client), dir, &file(name, &content))), Errno::EIO);
        let attr = client.lookup(dir, name.as_bytes()).unwrap();
        assert_eq!(attr.size, 0);
        let longer = SetAttr { size: Some(5 * 4096), ..SetAttr::default() };
        client.setattr(&op(client), attr.ino, &longer).unwrap();
        assert!(read(client, attr.ino, 0, 5 * 4096) == vec![0; 5 * 4096], "{name}");
        client.unlink(&op(client), dir, name.as_bytes()).unwrap();
        client.put(&op(client), dir, &file(name, &content)).unwrap();
        let attr = client.lookup(dir, name.as_bytes()).unwrap();
        assert_eq!(read(client, attr.ino, 0, 5 * 4096), content);
    }
}

/// S268, S363. It was answered with EEXIST, by the name that it had itself made.
#[test]
fn one_whose_content_did_not_fit_at_first_is_completed() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let dir = dir(client, "d");
    let content = [b'x'; 2 * 4096];
    // The node tries again once it has made room, and the client when all nodes have: on any target of the other node.
    for (times, name) in [(1, "node"), (2, "client"), (9, "nobody")] {
        refuse_writes(&formation.switchboard, times);
        let put = client.put(&op(client), dir, &file(name, &content));
        *formation.switchboard.refuse.lock() = None;
        *formation.switchboard.before.lock() = None;
        if times == 9 {
            assert_eq!(refusal(put), Errno::ENOSPC);
        } else {
            assert_eq!(read(client, put.unwrap().ino, 0, 3 * 4096), content);
        }
    }
}

/// Other nodes have no space for so many writes.
fn refuse_writes(switchboard: &Arc<Switchboard>, times: u32) {
    let at = Arc::clone(switchboard);
    let act = move || match times {
        0 => *at.refuse.lock() = None,
        _ => refuse_writes(&at, times - 1),
    };
    *switchboard.refuse.lock() = Some((Op::Write as u16, Errno::ENOSPC));
    *switchboard.before.lock() = Some((Op::Write as u16, Box::new(act)));
}

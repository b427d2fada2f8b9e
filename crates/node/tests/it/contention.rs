//! Requests and steps that meet at the worst moment, and answers that are lost. Each was a bug once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::formation::{Formation, first_page, op, wait_until};
use bivouac_client::{Client, NewInode};
use bivouac_node::{PeerRequest, Peers};
use bivouac_types::{ClientId, Errno, Ino, NodeId, OpId, SetAttr, mode};
use bivouac_wire::subfile::SubfileHeader;
use bivouac_wire::{AdjustLinksRequest, Encode, Op};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };

/// A directory below the root whose home is `node`.
fn dir_on(formation: &Formation, node: u16, tag: &str) -> Ino {
    let (client, nodes) = (&formation.clients[0], formation.nodes.len() as u16);
    let make =
        |i: u32| client.mknod(&op(client), Ino::ROOT, format!("{tag}{i}").as_bytes(), &DIR).unwrap().ino;
    (0..).map(make).find(|ino| ino.slot().0 % nodes == node).unwrap()
}

fn file(client: &Client, dir: Ino, name: &[u8], data: &[u8]) -> Ino {
    let ino = client.create(&op(client), dir, name, &FILE, true, false).unwrap().attr.ino;
    client.write(&op(client), ino, 0, data, false).unwrap();
    client.close(ino);
    ino
}

fn content(client: &Client, dir: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let attr = client.lookup(dir, name).map_err(|error| error.errno())?;
    let mut bytes = vec![0; attr.size as usize];
    let len = client.read(attr.ino, 0, &mut bytes).map_err(|error| error.errno())?;
    bytes.truncate(len);
    Ok(bytes)
}

/// S43.
#[test]
fn a_rename_over_a_file_is_replayed_once() {
    for lost in [Op::AdjustLinks, Op::InstallEntry] {
        let formation = Formation::new(3, 4096);
        let (p, q) = (dir_on(&formation, 0, "p"), dir_on(&formation, 1, "q"));
        let client = &formation.clients[0];
        file(client, p, b"x", b"new");
        file(client, q, b"y", b"old");
        formation.switchboard.lose_reply.store(lost as u32, Ordering::SeqCst);
        let first = client.rename(&op(client), p, b"x", q, b"y", 0).unwrap_err();
        assert_eq!(first.errno(), Errno::EIO);
        // The lock on the entry makes this wait for the replay.
        assert_eq!(client.unlink(&op(client), p, b"x").unwrap_err().errno(), Errno::ENOENT);
        assert_eq!(content(client, q, b"y"), Ok(b"new".to_vec()));
        assert_eq!(client.lookup(q, b"y").unwrap().nlink, 1);
    }
}

/// S47.
#[test]
fn two_renames_that_meet_at_one_entry_lose_nothing() {
    let formation = Arc::new(Formation::new(3, 4096));
    let (p, q, s) = (dir_on(&formation, 0, "p"), dir_on(&formation, 1, "q"), dir_on(&formation, 2, "s"));
    let client = &formation.clients[0];
    file(client, p, b"x", b"AAA");
    file(client, s, b"z", b"ZZZ");
    let other = Arc::clone(&formation);
    let (say, heard) = std::sync::mpsc::channel();
    let meet = move || {
        std::thread::spawn(move || {
            let client = &other.clients[2];
            say.send(client.rename(&op(client), s, b"z", p, b"x", 0)).unwrap();
        });
    };
    *formation.switchboard.before.lock() = Some((Op::InstallEntry as u16, Box::new(meet)));
    client.rename(&op(client), p, b"x", q, b"y", 0).unwrap();
    heard.recv().unwrap().unwrap();
    assert_eq!(content(client, q, b"y"), Ok(b"AAA".to_vec()));
    assert_eq!(content(client, p, b"x"), Ok(b"ZZZ".to_vec()));
    assert_eq!(content(client, s, b"z"), Err(Errno::ENOENT));
}

/// S10.
#[test]
fn a_failed_write_leaves_nothing_behind() {
    let formation = Formation::with_capacity(2, 4096, 1 << 20);
    let client = &formation.clients[0];
    let big = client.create(&op(client), Ino::ROOT, b"big", &FILE, true, false).unwrap().attr.ino;
    client.setxattr(&op(client), big, b"user.bivouac.layout", b"width=1 base=0", 0).unwrap();
    let mut at = 0;
    while client.write(&op(client), big, at, &[1; 4096], false).is_ok() {
        at += 4096;
    }
    let before = formation.nodes[1].usage();
    let ino = client.create(&op(client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    let refused = client.write(&op(client), ino, 0, &[7; 65_536], false).unwrap_err();
    assert_eq!((refused.errno(), client.getattr(ino).unwrap().size), (Errno::ENOSPC, 0));
    let set = SetAttr { size: Some(65_536), ..SetAttr::default() };
    client.setattr(&op(client), ino, &set).unwrap();
    let mut back = vec![9; 65_536];
    assert_eq!(client.read(ino, 0, &mut back).unwrap(), 65_536);
    assert!(back.iter().all(|byte| *byte == 0), "bytes of the failed write came up");
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    client.close(ino);
    wait_until("the space is free again", || formation.nodes[1].usage() <= before);
}

#[test]
fn a_new_layout_is_in_the_headers_and_leaves_no_subfiles() {
    let formation = Formation::new(4, 4096);
    let client = &formation.clients[0];
    let ino = client.create(&op(client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    client.setxattr(&op(client), ino, b"user.bivouac.layout", b"stripe=64k width=1", 0).unwrap();
    client.write(&op(client), ino, 0, &[7; 300_000], false).unwrap();
    let attr = client.getattr(ino).unwrap();
    for target in client.content.targets(&attr).unwrap() {
        let header = SubfileHeader::from_bytes(&first_page(&target.subfile.path)).unwrap();
        assert_eq!(header.layout, attr.layout);
    }
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    client.close(ino);
    wait_until("no subfile is left", || formation.nodes.iter().all(|node| node.usage() == 0));
}

#[test]
fn a_reader_that_knew_another_layout_learns_the_new_one() {
    let formation = Formation::new(2, 4096);
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    let ino = a.create(&op(a), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    a.write(&op(a), ino, 0, &[1; 65_536], false).unwrap();
    b.open(&op(b), ino, 0).unwrap();
    a.setattr(&op(a), ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    a.setxattr(&op(a), ino, b"user.bivouac.layout", b"stripe=8192", 0).unwrap();
    let data: Vec<u8> = (0..65_536u32).map(|i| (i / 4096) as u8 + 10).collect();
    a.write(&op(a), ino, 0, &data, false).unwrap();
    let mut back = vec![0; 65_536];
    assert_eq!(b.read(ino, 0, &mut back).unwrap(), 65_536);
    assert!(back == data, "{:?}", back.iter().step_by(4096).collect::<Vec<_>>());
}

#[test]
fn a_file_with_data_gets_another_layout_that_survives_a_restart() {
    let mut formation = Formation::new(4, 4096);
    let data: Vec<u8> = (0..100_000u32).map(|i| (i % 253) as u8).collect();
    let ino = {
        let client = &formation.clients[0];
        let ino = client.create(&op(client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
        client.write(&op(client), ino, 0, &[1; 100_000], false).unwrap();
        client.setattr(&op(client), ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        client.setxattr(&op(client), ino, b"user.bivouac.layout", b"width=2", 0).unwrap();
        client.write(&op(client), ino, 0, &data, false).unwrap();
        ino
    };
    formation.restart_as_the_same_clients();
    let client = &formation.clients[2];
    let mut back = vec![0; 100_000];
    assert_eq!(client.read(ino, 0, &mut back).unwrap(), 100_000);
    assert!(back == data);
    // Who asks for anything has nothing open but what it said before.
    formation.clients[0].getattr(Ino::ROOT).unwrap();
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    wait_until("no subfile is left", || formation.nodes.iter().all(|node| node.usage() == 0));
}

#[test]
fn a_writer_that_knew_another_layout_writes_by_the_new_one() {
    let formation = Formation::new(4, 4096);
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    let ino = a.create(&op(a), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    a.write(&op(a), ino, 0, &[1; 65_536], false).unwrap();
    b.open(&op(b), ino, 0).unwrap();
    a.setattr(&op(a), ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    a.setxattr(&op(a), ino, b"user.bivouac.layout", b"width=1", 0).unwrap();
    for at in (0..65_536).step_by(4096) {
        b.write(&op(b), ino, at, &[7; 4096], false).unwrap();
    }
    let mut back = vec![0; 65_536];
    assert_eq!(a.read(ino, 0, &mut back).unwrap(), 65_536);
    assert!(back.iter().all(|byte| *byte == 7));
}

#[test]
fn a_step_that_arrives_behind_its_repetition_counts_once() {
    let formation = Formation::new(2, 4096);
    let (client, dir) = (&formation.clients[0], dir_on(&formation, 1, "d"));
    let ino = file(client, dir, b"f", b"x");
    for i in 0..3 {
        client.link(&op(client), ino, dir, format!("l{i}").as_bytes()).unwrap();
    }
    let body = AdjustLinksRequest { ino, delta: -1 }.to_bytes();
    let step = |id, retry| {
        let (client, origin) = (ClientId(1 << 63), ClientId(0));
        let op = Op::AdjustLinks;
        let request =
            PeerRequest { op, id: OpId(id), client, channel: 9, retry, origin, body: &body, payload: &[] };
        formation.switchboard.call(NodeId(1), &request, &mut Vec::new())
    };
    step(1 << 30, true).unwrap();
    step(1 << 30, false).unwrap();
    assert_eq!(client.getattr(ino).unwrap().nlink, 3);
    assert_eq!(step((1 << 30) - 16, false).unwrap_err().errno(), Errno::ESTALE, "its change is over");
    assert_eq!(client.getattr(ino).unwrap().nlink, 3);
}

/// S23, S76.
#[test]
fn who_had_a_file_open_is_remembered_over_a_restart_of_its_home() {
    let mut formation = Formation::new(2, 4096);
    let ino = {
        let client = &formation.clients[0];
        let ino = client.create(&op(client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
        client.write(&op(client), ino, 0, &[5; 5000], false).unwrap();
        formation.clients[1].open(&op(client), ino, 0).unwrap();
        client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
        ino
    };
    formation.restart_as_the_same_clients();
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    a.reassert_opens(&[]).unwrap();
    let mut back = vec![0; 5000];
    assert_eq!(a.read(ino, 0, &mut back).unwrap(), 5000, "b has not been heard of yet");
    b.reassert_opens(&[(ino, 2, 1)]).unwrap();
    assert_eq!(b.read(ino, 0, &mut back).unwrap(), 5000);
    b.close(ino);
    assert_eq!(b.getattr(ino).unwrap_err().errno(), Errno::ENOENT);
}

#[test]
fn a_file_that_loses_its_name_before_its_holder_is_heard_again_stays() {
    let mut formation = Formation::new(2, 4096);
    let inos = [&b"f"[..], b"g"].map(|name| {
        let client = &formation.clients[0];
        let ino = client.create(&op(client), Ino::ROOT, name, &FILE, true, false).unwrap().attr.ino;
        client.write(&op(client), ino, 0, &[5; 5000], false).unwrap();
        formation.clients[1].open(&op(client), ino, 0).unwrap();
        ino
    });
    formation.restart_as_the_same_clients();
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    a.reassert_opens(&[]).unwrap();
    a.unlink(&op(a), Ino::ROOT, b"f").unwrap();
    a.unlink(&op(a), Ino::ROOT, b"g").unwrap();
    b.reassert_opens(&[(inos[0], 2, 1)]).unwrap();
    let mut back = vec![0; 5000];
    assert_eq!(b.read(inos[0], 0, &mut back).unwrap(), 5000);
    assert_eq!(b.getattr(inos[1]).unwrap_err().errno(), Errno::ENOENT, "nobody has it open any more");
    b.close(inos[0]);
    assert_eq!(b.getattr(inos[0]).unwrap_err().errno(), Errno::ENOENT);
}

/// A file that loses its last name while it is cut, so that a step of the cut makes a subfile anew behind the first
/// removal; and that removal is over after the cut is.
#[test]
fn what_a_cut_makes_behind_a_removal_goes_too() {
    let formation = Arc::new(Formation::new(2, 4096));
    let client = &formation.clients[0];
    let dir = dir_on(&formation, 0, "p");
    let before = formation.nodes[1].usage();
    let ino = file(client, dir, b"f", &[1; 16_384]);
    let (say_removed, removed) = std::sync::mpsc::channel();
    let (say_cut, cut) = std::sync::mpsc::channel();
    let other = Arc::clone(&formation);
    let unlink = move || {
        let client = &other.clients[1];
        client.unlink(&op(client), dir, b"f").unwrap();
        removed.recv().unwrap();
    };
    let wait = move || {
        say_removed.send(()).unwrap();
        cut.recv().unwrap();
    };
    *formation.switchboard.after.lock() = Some((Op::RemoveSubfiles as u16, Box::new(wait)));
    *formation.switchboard.before.lock() = Some((Op::Trim as u16, Box::new(unlink)));
    let set = SetAttr { size: Some(5), ..SetAttr::default() };
    assert_eq!(client.setattr(&op(client), ino, &set).unwrap_err().errno(), Errno::ENOENT);
    say_cut.send(()).unwrap();
    wait_until("nothing of the file is left", || formation.nodes[1].usage() <= before);
}

//! Room for names: memory of a node and the volume that its records are on.

use std::fs;

use bivouac_client::Client;
use bivouac_types::{Errno, FsResult, Ino, NodeId, SetAttr};

use crate::at_site::{Camp, DIR, FILE, bytes};
use crate::formation::{Formation, op, read, wait_until, write};

const BOUND: u64 = 1 << 20;

/// A formation of which each node has so much more memory for names than it takes now.
fn bounded(nodes: u16) -> Formation {
    let formation = Formation::new(nodes, 4096);
    formation.nodes.iter().for_each(|node| node.bound_names(BOUND, None, || ()));
    formation
}

fn name(count: usize) -> Vec<u8> {
    format!("name {count:0200}").into_bytes()
}

/// Makes entries until one is refused for want of room; how many there are.
fn fill(mut make: impl FnMut(usize) -> FsResult<()>) -> usize {
    let refused = (0..100_000).find_map(|count| make(count).err().map(|error| (count, error)));
    let (count, error) = refused.unwrap();
    assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
    count
}

fn create(client: &Client, count: usize) -> FsResult<()> {
    client.mknod(&op(client), Ino::ROOT, &name(count), &FILE).map(drop)
}

fn names_bytes(formation: &Formation, node: u16) -> (u64, u64) {
    let status = formation.clients[0].nodes().status(NodeId(node)).unwrap();
    (status.names_bytes, status.names_max_bytes)
}

/// S440, S441, S443: what makes names is refused; what removes, cuts and writes goes on, and what was removed can be made
/// again.
#[test]
fn names_are_refused_when_their_memory_is_taken_and_nothing_else_is() {
    let formation = bounded(1);
    let a = &formation.clients[0];
    let kept = a.create(&op(a), Ino::ROOT, b"kept", &FILE, true, false).unwrap().attr.ino;
    a.setxattr(&op(a), kept, b"user.note", &[7; 3000], 0).unwrap();
    write(a, kept, 0, &[1; 9000]);
    let before = a.homes.statfs(Ino::ROOT).unwrap();
    let full = fill(|count| create(a, count));
    assert!(full > 1000, "{full} names");
    let (taken, max) = names_bytes(&formation, 0);
    assert!(max == BOUND && taken <= max && taken > max / 10 * 9, "{taken} of {max}");
    let after = a.homes.statfs(Ino::ROOT).unwrap();
    assert!(after.files_free < 200 && before.files_free > after.files_free, "{after:?}");
    assert_eq!(after.files, before.files + full as u64);
    let is_refused = |outcome: FsResult<()>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
        assert!(error.to_string().contains("--names-memory"), "{error}");
    };
    is_refused(a.mknod(&op(a), Ino::ROOT, &[b'd'; 200], &DIR).map(drop));
    is_refused(a.link(&op(a), kept, Ino::ROOT, &[b'l'; 200]).map(drop));
    is_refused(a.setxattr(&op(a), kept, b"user.more", &[7; 60_000], 0));
    is_refused(a.setxattr(&op(a), kept, b"user.note", &[7; 9000], 0));
    // Nothing of that needs more than there was.
    write(a, kept, 5000, &[2; 9000]);
    a.setxattr(&op(a), kept, b"user.note", &[8; 2000], 0).unwrap();
    a.setattr(&op(a), kept, &SetAttr { size: Some(6000), mode: Some(0o600), ..SetAttr::default() }).unwrap();
    a.rename(&op(a), Ino::ROOT, b"kept", Ino::ROOT, b"had", 0).unwrap();
    assert_eq!(read(a, kept, 4999, 3000), [&[1][..], &[2; 1000]].concat());
    a.removexattr(&op(a), kept, b"user.note").unwrap();
    (0..full).for_each(|count| a.unlink(&op(a), Ino::ROOT, &name(count)).unwrap());
    wait_until("there is room again", || create(a, 0).is_ok());
    (1..full).for_each(|count| create(a, count).unwrap());
}

/// S442: names may become a little longer when no more can be made, not for ever.
#[test]
fn names_that_become_longer_are_refused_in_the_end() {
    let formation = bounded(1);
    let a = &formation.clients[0];
    let short = |count: usize| format!("{count}").into_bytes();
    let full = fill(|count| a.mknod(&op(a), Ino::ROOT, &short(count), &FILE).map(drop));
    let longer = |count: usize| a.rename(&op(a), Ino::ROOT, &short(count), Ino::ROOT, &name(count), 0);
    let renamed = fill(longer);
    assert!(renamed > 3 && renamed < full, "{renamed} of {full}");
    let (taken, max) = names_bytes(&formation, 0);
    assert!(taken <= max, "{taken} of {max}");
    // Both are as they were.
    assert!(a.lookup(Ino::ROOT, &short(renamed)).is_ok());
    assert_eq!(a.lookup(Ino::ROOT, &name(renamed)).unwrap_err().errno(), Errno::ENOENT);
    (0..renamed).for_each(|count| {
        a.rename(&op(a), Ino::ROOT, &name(count), Ino::ROOT, &short(count), 0).unwrap();
    });
}

/// S441: a change over two nodes is refused as a whole, and is not finished some day; moving is, too.
#[test]
fn a_full_node_refuses_what_another_one_begins() {
    let mut formation = Formation::new(2, 4096);
    formation.nodes[1].bound_names(BOUND, None, || ());
    let a = &formation.clients[0];
    let is_on = |ino: Ino, node: u16| formation.map().home(ino) == Some(NodeId(node));
    let dirs = (0..40).map(|count| a.mknod(&op(a), Ino::ROOT, &name(count), &DIR).unwrap().ino);
    let dirs: Vec<Ino> = dirs.collect();
    let there = *dirs.iter().find(|ino| is_on(**ino, 1)).unwrap();
    let here = *dirs.iter().find(|ino| is_on(**ino, 0)).unwrap();
    fill(|count| a.mknod(&op(a), there, &name(count), &FILE).map(drop));
    fill(|count| {
        a.rename(&op(a), there, format!("name {count:0200}").as_bytes(), there, &[b'r'; 255], 0).and_then(
            |()| {
                a.rename(
                    &op(a),
                    there,
                    &[b'r'; 255],
                    there,
                    format!("longer name {count:0240}").as_bytes(),
                    0,
                )
            },
        )
    });
    let made = (100..200).map(|count| a.mknod(&op(a), here, &name(count), &DIR).map(|attr| attr.ino));
    let refused: Vec<_> = made.filter_map(Result::err).collect();
    assert!(!refused.is_empty() && refused.iter().all(|error| error.errno() == Errno::ENOSPC), "{refused:?}");
    a.mknod(&op(a), here, b"moved", &FILE).unwrap();
    let moved = a.rename(&op(a), here, b"moved", there, &[b'm'; 250], 0);
    assert_eq!(moved.unwrap_err().errno(), Errno::ENOSPC);
    a.lookup(here, b"moved").unwrap();
    assert!(formation.nodes.iter().all(|node| node.unfinished() == 0), "nothing is left to be done");
    let names = |client: &Client| {
        let list = client.readdir(here, 0, 1 << 20, false).unwrap();
        list.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
    };
    let before = names(a);
    assert_eq!(before.iter().filter(|name| name.starts_with(b"name")).count(), 100 - refused.len());
    // Also where the bound is even less than what there is.
    formation.restart();
    formation.nodes.iter().for_each(|node| node.bound_names(1000, None, || ()));
    let a = &formation.clients[0];
    assert_eq!(names(a), before);
    assert_eq!(create(a, 7777).unwrap_err().errno(), Errno::ENOSPC);
    a.unlink(&op(a), here, b"moved").unwrap();
}

/// S444: content that site storage has as well goes for names, as it does for content.
#[test]
fn names_ask_for_room_on_a_full_volume() {
    const LARGE: usize = 8 << 20;
    let fill = |site: &std::path::Path| fs::write(site.join("large"), bytes(LARGE, 2)).unwrap();
    let camp = Camp::of(Formation::with_capacity(1, 4096, 6 << 20), fill);
    let client = camp.client(0);
    assert!(camp.read(0, "large").unwrap() == bytes(LARGE, 2), "the volume is full of it");
    let made = client.create(&op(client), Ino::ROOT, b"own", &FILE, true, false).unwrap().attr.ino;
    for count in 0..24 {
        let name = format!("user.{count}");
        client.setxattr(&op(client), made, name.as_bytes(), &bytes(60_000, count), 0).unwrap();
    }
    for count in 0..24 {
        let name = format!("user.{count}");
        assert!(client.getxattr(made, name.as_bytes()).unwrap() == bytes(60_000, count));
    }
    assert!(camp.read(0, "large").unwrap() == bytes(LARGE, 2));
}

/// S165: also where single reads, and more so several at once, ask for more than there is room for.
#[test]
fn what_does_not_fit_at_once_is_read_all_the_same() {
    const LARGE: usize = 8 << 20;
    let names = ["one", "other"];
    let content = |name: &str| bytes(LARGE, name.len() as u8);
    let fill = |site: &std::path::Path| {
        names.iter().for_each(|name| fs::write(site.join(name), content(name)).unwrap());
    };
    let camp = Camp::of(Formation::with_capacity(1, 4096, 3 << 20), fill);
    std::thread::scope(|scope| {
        for name in names.iter().chain(&names) {
            let (camp, content) = (&camp, &content);
            scope.spawn(move || assert!(camp.read(0, name).unwrap() == content(name), "{name}"));
        }
    });
}

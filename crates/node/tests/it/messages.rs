//! What calls cost in messages, counted by the nodes, is what docs/performance/messages.md says: whatever the number of
//! nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, NewInode};
use bivouac_types::{Ino, NodeId, SetAttr, mode};

const PAGE: &str = include_str!("../../../../docs/performance/messages.md");
const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
const LINK: NewInode<'static> = NewInode { mode: mode::LINK | 0o777, rdev: 0, target: b"target" };
/// Bytes of a small file.
const SMALL: usize = 3901;
/// Sizes of formations.
const NODES: [u16; 4] = [1, 2, 4, 16];
/// Removal of subfiles happens in the background, at any time.
const BACKGROUND: &str = "RemoveSubfiles";

/// What is about to be counted.
type Act<'c> = Box<dyn FnOnce() + 'c>;
/// Prepares a call in a directory of its own.
type Prepare = for<'c> fn(&'c Client, Ino) -> Act<'c>;

/// The calls of the table, by its words.
const CALLS: [(&str, Prepare); 20] = [
    ("look up a name", |c, dir| {
        let ino = made(c, dir, b"f", &[]);
        Box::new(move || assert_eq!(c.lookup(dir, b"f").unwrap().ino, ino))
    }),
    ("look up a name that is not there", |c, dir| Box::new(move || drop(c.lookup(dir, b"f").unwrap_err()))),
    ("stat", |c, dir| {
        let ino = made(c, dir, b"f", b"x");
        Box::new(move || assert_eq!(c.getattr(ino).unwrap().size, 1))
    }),
    ("create and open", |c, dir| {
        Box::new(move || assert!(!c.create(&op(c), dir, b"f", &FILE, true, false).unwrap().existed))
    }),
    ("open", |c, dir| {
        let ino = made(c, dir, b"f", b"x");
        Box::new(move || assert_eq!(c.open(&op(c), ino, 0).unwrap().ino, ino))
    }),
    ("close", |c, dir| {
        let ino = opened(c, dir, b"");
        Box::new(move || c.close(ino))
    }),
    ("write 3,901 bytes behind the end", |c, dir| {
        let ino = opened(c, dir, b"");
        Box::new(move || assert_eq!(c.write(&op(c), ino, 0, &[7; SMALL], false).unwrap(), SMALL))
    }),
    ("read 3,901 bytes of an open file", |c, dir| {
        let ino = opened(c, dir, &[7; SMALL]);
        Box::new(move || {
            let mut back = [0; SMALL];
            assert_eq!(c.read(ino, 0, &mut back).unwrap(), SMALL);
            assert_eq!(back, [7; SMALL]);
        })
    }),
    ("append 3,901 bytes", |c, dir| {
        let ino = opened(c, dir, b"");
        Box::new(move || assert_eq!(c.write(&op(c), ino, 0, &[7; SMALL], true).unwrap(), SMALL))
    }),
    ("chmod, chown, utimensat", |c, dir| {
        let ino = made(c, dir, b"f", b"x");
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        Box::new(move || assert!(c.setattr(&op(c), ino, &set).unwrap().is_file()))
    }),
    ("fsync of a small file", |c, dir| {
        let ino = opened(c, dir, &[7; SMALL]);
        Box::new(move || c.fsync(ino, false).unwrap())
    }),
    ("truncate, shorter", |c, dir| {
        let ino = opened(c, dir, &[7; SMALL]);
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        Box::new(move || assert_eq!(c.setattr(&op(c), ino, &set).unwrap().size, 0))
    }),
    ("unlink", |c, dir| {
        made(c, dir, b"f", b"x");
        Box::new(move || c.unlink(&op(c), dir, b"f").unwrap())
    }),
    ("rename within a directory", |c, dir| {
        made(c, dir, b"f", b"x");
        made(c, dir, b"g", b"y");
        Box::new(move || c.rename(&op(c), dir, b"f", dir, b"g", 0).unwrap())
    }),
    ("link within a directory", |c, dir| {
        let ino = made(c, dir, b"f", b"x");
        Box::new(move || assert_eq!(c.link(&op(c), ino, dir, b"g").unwrap().nlink, 2))
    }),
    ("symlink, mknod", |c, dir| {
        Box::new(move || assert_eq!(c.mknod(&op(c), dir, b"l", &LINK).unwrap().size, 6))
    }),
    ("readlink", |c, dir| {
        let ino = c.mknod(&op(c), dir, b"l", &LINK).unwrap().ino;
        Box::new(move || assert_eq!(c.readlink(ino).unwrap(), b"target"))
    }),
    ("mkdir", |c, dir| Box::new(move || assert!(c.mknod(&op(c), dir, b"d", &DIR).unwrap().is_dir()))),
    ("rmdir", |c, dir| {
        c.mknod(&op(c), dir, b"d", &DIR).unwrap();
        Box::new(move || c.rmdir(&op(c), dir, b"d").unwrap())
    }),
    ("list 100 names", |c, dir| {
        for i in 0..100 {
            made(c, dir, format!("f{i}").as_bytes(), &[]);
        }
        Box::new(move || assert_eq!(c.readdir(dir, 0, 1 << 18, false).unwrap().len(), 100))
    }),
];

/// A closed file with this content.
fn made(client: &Client, dir: Ino, name: &[u8], content: &[u8]) -> Ino {
    let ino = client.create(&op(client), dir, name, &FILE, true, false).unwrap().attr.ino;
    if !content.is_empty() {
        client.write(&op(client), ino, 0, content, false).unwrap();
    }
    client.close(ino);
    ino
}

/// An open file with this content.
fn opened(client: &Client, dir: Ino, content: &[u8]) -> Ino {
    let ino = made(client, dir, b"f", content);
    client.open(&op(client), ino, 0).unwrap().ino
}

/// Messages by node, operation and kind: of clients, of peers, to peers.
type Counts = BTreeMap<(u16, String), [u64; 3]>;

fn counts(client: &Client) -> Counts {
    let mut counts = Counts::new();
    for id in 0..client.map().nodes.len() as u16 {
        for count in client.nodes().status(NodeId(id)).unwrap().operations {
            counts.insert((id, count.name), [count.client, count.peer, count.calls]);
        }
    }
    counts
}

/// What was counted since.
fn since(before: &Counts, now: Counts) -> Counts {
    let none = [0; 3];
    let mut grown: Counts = now
        .into_iter()
        .map(|(key, now)| {
            let before = before.get(&key).unwrap_or(&none);
            let [a, b, c] = [0, 1, 2].map(|i| now[i] - before[i]);
            (key, [a, b, c])
        })
        .collect();
    grown.retain(|(_, op), counts| *counts != none && op != "Status");
    grown
}

/// Sums over all nodes of one kind of count.
fn sums(counts: &Counts, kind: usize) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for ((_, op), counts) in counts.iter().filter(|(_, counts)| counts[kind] > 0) {
        *sums.entry(op.clone()).or_default() += counts[kind];
    }
    sums
}

/// Least and most messages of an operation that a cell allows: `Write 1, Extend 1`, `PutInode 0–1`, `Trim targets − 1`.
type Allowed = BTreeMap<String, (u64, u64)>;

fn allowed(cell: &str, nodes: u64) -> Allowed {
    let number = |text: &str| match text {
        // A target on each node.
        "nodes" | "targets" => nodes,
        "nodes − 1" | "targets − 1" => nodes - 1,
        text => text.parse().unwrap(),
    };
    let one = |part: &str| {
        let (op, count) = part.split_once(' ').unwrap();
        let (least, most) = count.split_once('–').unwrap_or((count, count));
        // There is nobody else to ask in a formation of one node.
        let most = if least != most && nodes == 1 { 0 } else { number(most) };
        (op.to_owned(), (number(least), most))
    };
    cell.split(", ").filter(|part| *part != "–").map(one).collect()
}

/// The cells of a row of the table: client lane and peer lane.
fn row(call: &str) -> [&'static str; 2] {
    let line = PAGE.lines().find(|line| line.starts_with(&format!("| {call} | ")));
    let line = line.unwrap_or_else(|| panic!("the page should have a row for: {call}"));
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    [cells[2], cells[3]]
}

fn check(call: &str, lane: &str, counted: &BTreeMap<String, u64>, allowed: &Allowed) {
    let within = |(op, (least, most)): (&String, &(u64, u64))| {
        let count = counted.get(op).copied().unwrap_or(0);
        assert!(
            (*least..=*most).contains(&count),
            "{call}: {count} {op} on the {lane} lane, not {least}–{most}"
        );
    };
    allowed.iter().for_each(within);
    let known = |op: &&String| !allowed.contains_key(*op);
    let others: Vec<&String> = counted.keys().filter(known).collect();
    assert!(others.is_empty(), "{call}: also {others:?} on the {lane} lane");
}

/// A directory whose home is this node.
fn directory_of(client: &Client, node: u16, name: &str) -> Ino {
    let mut tries =
        (0..).map(|i| client.mknod(&op(client), Ino::ROOT, format!("{name}-{i}").as_bytes(), &DIR).unwrap());
    tries.find(|attr| client.map().home(attr.ino) == Some(NodeId(node))).unwrap().ino
}

#[test]
fn calls_cost_what_the_page_says_whatever_the_number_of_nodes() {
    for nodes in NODES {
        let formation = Formation::new(nodes, 1 << 20);
        let client = &formation.clients[0];
        for (call, prepare) in CALLS {
            let [of_clients, of_peers] = row(call).map(|cell| allowed(cell, u64::from(nodes)));
            for home in BTreeSet::from([0, nodes - 1]) {
                let dir = directory_of(client, home, &format!("{call}-{home}"));
                let act = prepare(client, dir);
                let before = counts(client);
                act();
                let mut counted = since(&before, counts(client));
                counted.retain(|(_, op), _| op != BACKGROUND);
                check(call, "client", &sums(&counted, 0), &of_clients);
                check(call, "peer", &sums(&counted, 1), &of_peers);
                assert_eq!(sums(&counted, 1), sums(&counted, 2), "{call}: what one asks another serves");
            }
        }
    }
}

#[test]
fn names_of_a_small_directory_are_one_nodes_business() {
    let formation = Formation::new(16, 1 << 20);
    let client = &formation.clients[3];
    let names = ["look up a name", "create and open", "open", "close", "stat", "unlink", "list 100 names"];
    let more = ["rename within a directory", "link within a directory", "symlink, mknod", "readlink"];
    let all: Vec<&str> = names.into_iter().chain(more).collect();
    for (call, prepare) in CALLS.iter().filter(|(call, _)| all.contains(call)) {
        let dir = directory_of(client, 7, call);
        let act = prepare(client, dir);
        let before = counts(client);
        act();
        let mut counted = since(&before, counts(client));
        counted.retain(|(_, op), _| op != BACKGROUND);
        let asked: BTreeSet<u16> = counted.keys().map(|(node, _)| *node).collect();
        assert_eq!(asked, BTreeSet::from([7]), "{call}");
    }
    assert_eq!(all.len(), CALLS.iter().filter(|(call, _)| all.contains(call)).count());
}

#[test]
fn what_asks_all_nodes_is_named() {
    for nodes in NODES {
        let formation = Formation::new(nodes, 1 << 20);
        let client = &formation.clients[0];
        let before = counts(client);
        client.homes.statfs(bivouac_types::Ino::ROOT).unwrap();
        let counted = since(&before, counts(client));
        check("statfs", "client", &sums(&counted, 0), &allowed(row("statfs")[0], u64::from(nodes)));
        let ino = made(client, Ino::ROOT, b"f", &[7; SMALL]);
        let before = counts(client);
        client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
        assert_eq!(client.getattr(ino).unwrap_err().errno(), bivouac_types::Errno::ENOENT);
        let told = allowed(row("space of removed files, in the background")[1], u64::from(nodes));
        wait_until("all targets have heard", || {
            let counted = since(&before, counts(client));
            sums(&counted, 1).get(BACKGROUND).copied().unwrap_or(0) == told[BACKGROUND].1
        });
    }
}

/// Waits until nodes have nothing more to say to each other of changes that seem to be made.
fn settled(formation: &Formation) {
    wait_until("every change is finished", || formation.nodes.iter().all(|node| node.unfinished() == 0));
}

/// Calls on names, by the words of the table.
const NAMES: [&str; 6] =
    ["look up a name", "look up a name that is not there", "create and open", "open", "close", "unlink"];

#[test]
fn names_of_a_spread_directory_cost_the_same() {
    // S38.
    for nodes in [2, 4, 16] {
        let formation = Formation::spreading(nodes);
        let client = &formation.clients[0];
        for (call, prepare) in CALLS.iter().filter(|(call, _)| NAMES.contains(call)) {
            let dir = client.mknod(&op(client), Ino::ROOT, call.as_bytes(), &DIR).unwrap().ino;
            made(client, dir, b"0", &[]);
            made(client, dir, b"1", &[]);
            wait_until("the directory is spread", || client.getattr(dir).unwrap().is_spread());
            settled(&formation);
            // Now the client knows.
            client.lookup(dir, b"0").unwrap();
            let act = prepare(client, dir);
            let before = counts(client);
            act();
            let mut counted = since(&before, counts(client));
            counted.retain(|(_, op), _| op != BACKGROUND);
            let [of_clients, _] = row(call).map(|cell| allowed(cell, u64::from(nodes)));
            check(call, "client", &sums(&counted, 0), &of_clients);
            // The home hears of the first change after somebody looked.
            let told = Allowed::from([("DirChanged".to_owned(), (0, 1))]);
            check(call, "peer", &sums(&counted, 1), &told);
        }
    }
}

#[test]
fn listing_a_spread_directory_asks_every_node() {
    // S38.
    for nodes in [2, 4, 16] {
        let formation = Formation::spreading(nodes);
        let client = &formation.clients[0];
        let dir = client.mknod(&op(client), Ino::ROOT, b"d", &DIR).unwrap().ino;
        (0..400).for_each(|i| assert!(made(client, dir, format!("f{i}").as_bytes(), &[]).0 > 0));
        wait_until("the directory is spread", || client.getattr(dir).unwrap().is_spread());
        settled(&formation);
        let before = counts(client);
        let (mut names, mut cookie) = (0, 0);
        loop {
            let page = client.readdir(dir, cookie, 1 << 18, false).unwrap();
            let Some(last) = page.last() else { break };
            (names, cookie) = (names + page.len(), last.cookie);
        }
        assert_eq!(names, 400);
        let counted = since(&before, counts(client));
        let of_clients = || counted.iter().filter(|(_, counts)| counts[0] > 0);
        let asked: BTreeSet<u16> = of_clients().map(|((node, _), _)| *node).collect();
        assert_eq!(asked.len(), usize::from(nodes));
        assert!(of_clients().all(|((_, op), _)| op == "ReadDir"));
    }
}

#[test]
fn every_row_of_the_table_is_counted() {
    let rows = PAGE.lines().skip_while(|line| !line.starts_with("| call | client lane |")).skip(2);
    let rows: BTreeSet<&str> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('|').nth(1).unwrap().trim())
        .collect();
    let apart = ["statfs", "space of removed files, in the background"];
    let counted = CALLS.iter().map(|(call, _)| *call).chain(apart).collect();
    assert_eq!(rows, counted);
}

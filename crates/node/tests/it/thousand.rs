//! A thousand nodes: maps, hashing, striping and restarts as with few.

use std::collections::BTreeSet;

use crate::formation::{Formation, op};
use bivouac_client::NewInode;
use bivouac_types::{Ino, mode};

const NODES: u16 = 1000;
const STRIPE: usize = 4096;
const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };

fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at / STRIPE * 31 + at * 7 + seed) as u8).collect()
}

fn read(formation: &Formation, client: usize, path: &str, len: usize) -> Vec<u8> {
    let client = &formation.clients[client];
    let attr = client.resolve(path.as_bytes()).unwrap();
    assert_eq!(attr.size, len as u64, "{path}");
    let mut back = vec![0; len];
    assert_eq!(client.read(attr.ino, 0, &mut back).unwrap(), len);
    back
}

#[test]
fn a_thousand_nodes_keep_what_they_are_given() {
    let mut formation = Formation::new(NODES, STRIPE as u32);
    let mut homes = BTreeSet::new();
    for number in 0..200 {
        let client = &formation.clients[number % 64];
        let name = format!("d{number}");
        let dir = client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR).unwrap();
        let file = client.create(&op(client), dir.ino, b"f", &FILE, true, false).unwrap().attr;
        client.write(&op(client), file.ino, 0, &content(3 * STRIPE, number), false).unwrap();
        let slot = usize::from(file.ino.slot().0);
        homes.insert(formation.map().slots[slot % formation.map().slots.len()]);
    }
    assert!(homes.len() > 150, "200 directories are spread over {} nodes", homes.len());

    let (a, whole) = (&formation.clients[0], content(NODES as usize * STRIPE + 10, 7));
    let file = a.create(&op(a), Ino::ROOT, b"whole", &FILE, true, false).unwrap().attr;
    assert_eq!(file.layout.targets, NODES);
    a.write(&op(a), file.ino, 0, &whole, false).unwrap();
    assert!(formation.nodes.iter().all(|node| node.usage() > 0), "every node has a part");
    assert_eq!(read(&formation, 63, "whole", whole.len()), whole);

    // From node to node, each by an intent.
    for number in 0..100 {
        let client = &formation.clients[(number + 1) % 64];
        let (from, to) = (format!("d{number}"), format!("d{}", 199 - number));
        let [from, to] = [from, to].map(|name| client.lookup(Ino::ROOT, name.as_bytes()).unwrap().ino);
        client.rename(&op(client), from, b"f", to, b"g", 0).unwrap();
    }
    formation.restart();
    assert_eq!(read(&formation, 1, "whole", whole.len()), whole);
    for number in 0..100 {
        let moved = format!("d{}/g", 199 - number);
        assert_eq!(read(&formation, number % 64, &moved, 3 * STRIPE), content(3 * STRIPE, number), "{moved}");
    }
    assert_eq!(formation.files(), 1 + 200 + 200 + 1);
}

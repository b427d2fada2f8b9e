//! Files that stay however full the volumes are.

use std::fs;
use std::path::Path;

use crate::at_site::{Camp, FILE, bind_with, bytes};
use crate::formation::{Formation, op};
use bivouac_types::{Errno, Ino};
use tempfile::TempDir;

const KEPT: usize = 3 << 20;
const LARGE: usize = 8 << 20;

fn fill(site: &Path) {
    fs::write(site.join("keep"), bytes(KEPT, 1)).unwrap();
    fs::write(site.join("one"), bytes(LARGE, 2)).unwrap();
    fs::write(site.join("two"), bytes(LARGE, 3)).unwrap();
}

/// Two nodes with volumes of 6 MiB.
fn small(settings: &str) -> Camp {
    let (formation, site) = (Formation::with_capacity(2, 4096, 6 << 20), TempDir::new().unwrap());
    fill(site.path());
    let partition = bind_with(&formation, "part", site.path(), settings).unwrap();
    Camp { formation, partition, site }
}

/// Reads more than fits, twice.
fn sweep(camp: &Camp) {
    for turn in 0..2 {
        for (name, seed) in [("one", 2), ("two", 3)] {
            assert!(camp.read(turn, name).unwrap() == bytes(LARGE, seed), "{name} {turn}");
        }
    }
}

/// Whoever had to bring it again would find nothing.
fn check_is_here(camp: &Camp, name: &str, expected: &[u8]) {
    let there = fs::read(camp.at(name)).unwrap();
    fs::remove_file(camp.at(name)).unwrap();
    assert!(camp.read(1, name).unwrap() == expected, "{name}");
    // Put back as another file: whether it is noticed is not what this is about.
    fs::write(camp.at(name), there).unwrap();
}

/// S245: beside what is read and written, dirty or flushed, over restarts of all nodes.
#[test]
fn what_is_pinned_stays_beside_what_fills_the_volumes() {
    let mut camp = small("");
    let keep = camp.ino(0, "keep").unwrap();
    camp.client(0).site.pin(keep, true).unwrap();
    camp.client(0).site.bring_file(keep).unwrap();
    sweep(&camp);
    check_is_here(&camp, "keep", &bytes(KEPT, 1));
    camp.formation.restart();
    assert!(camp.client(1).site.is_pinned(keep).unwrap());
    sweep(&camp);
    // What is written in it goes to the source, and stays as well.
    let mut expected = bytes(KEPT, 1);
    expected[100..103].copy_from_slice(b"new");
    camp.client(1).write(&op(camp.client(1)), keep, 100, b"new", false).unwrap();
    assert_eq!(camp.flush(0, true), []);
    assert!(fs::read(camp.at("keep")).unwrap() == expected);
    camp.write(0, "more", &bytes(14 << 20, 4));
    assert!(camp.read(1, "more").unwrap() == bytes(14 << 20, 4));
    check_is_here(&camp, "keep", &expected);
    let pinned: Vec<_> =
        camp.client(1).site.pinned().unwrap().iter().map(|file| (file.ino, file.bytes)).collect();
    assert_eq!(pinned, [(keep, KEPT as u64)]);
}

/// S245: afterwards it makes room as everything else does.
#[test]
fn what_is_not_pinned_any_more_makes_room_again() {
    let camp = small("");
    let client = camp.client(0);
    let one = camp.ino(0, "one").unwrap();
    client.site.pin(one, true).unwrap();
    client.site.bring_file(one).unwrap();
    let two = camp.ino(0, "two").unwrap();
    assert_eq!(client.site.bring_file(two).unwrap_err().errno(), Errno::ENOSPC);
    assert!(camp.read(1, "one").unwrap() == bytes(LARGE, 2));
    client.site.pin(one, false).unwrap();
    assert!(!client.site.is_pinned(one).unwrap());
    client.site.bring_file(two).unwrap();
    sweep(&camp);
    let dir = client.site.pin(camp.partition.dir, true).unwrap_err();
    assert!(dir.errno() == Errno::EINVAL && dir.to_string().contains("no file of a partition"), "{dir}");
}

/// S247.
#[test]
fn a_pin_goes_with_the_file_and_not_with_its_name() {
    let camp = small("");
    let (client, dir) = (camp.client(0), camp.partition.dir);
    let keep = camp.ino(0, "keep").unwrap();
    client.site.pin(keep, true).unwrap();
    client.site.bring_file(keep).unwrap();
    client.rename(&op(client), dir, b"keep", dir, b"kept", 0).unwrap();
    sweep(&camp);
    assert!(client.site.is_pinned(camp.ino(1, "kept").unwrap()).unwrap());
    fs::remove_file(camp.at("keep")).unwrap();
    assert!(camp.read(1, "kept").unwrap() == bytes(KEPT, 1));
    // Another file in its place is another file.
    let other = camp.write(1, "other", b"other");
    client.rename(&op(client), dir, b"other", dir, b"kept", 0).unwrap();
    assert!(!client.site.is_pinned(other).unwrap());
    assert_eq!(client.site.pinned().unwrap(), []);
}

/// S248: what is there already, what is made, and what gets such a name; and who says otherwise by hand is heard.
#[test]
fn a_rule_pins_by_name() {
    let camp = small("rule=keep*: pin=yes\n");
    let (client, dir) = (camp.client(0), camp.partition.dir);
    let keep = camp.ino(0, "keep").unwrap();
    assert!(
        client.site.is_pinned(keep).unwrap() && !client.site.is_pinned(camp.ino(0, "one").unwrap()).unwrap()
    );
    assert!(camp.read(0, "keep").unwrap() == bytes(KEPT, 1));
    sweep(&camp);
    check_is_here(&camp, "keep", &bytes(KEPT, 1));
    let made = camp.write(1, "keep-new", &bytes(200_000, 5));
    let moved = camp.write(0, "temporary", &bytes(200_000, 6));
    client.rename(&op(client), dir, b"temporary", dir, b"keep-moved", 0).unwrap();
    assert_eq!(camp.flush(0, true), []);
    assert!(client.site.is_pinned(made).unwrap() && client.site.is_pinned(moved).unwrap());
    sweep(&camp);
    check_is_here(&camp, "keep-new", &bytes(200_000, 5));
    check_is_here(&camp, "keep-moved", &bytes(200_000, 6));
    client.site.pin(made, false).unwrap();
    client.rename(&op(client), dir, b"keep-new", dir, b"keep-newer", 0).unwrap();
    assert!(!client.site.is_pinned(made).unwrap());
}

/// S249: what is new there comes when it is read, and stays.
#[test]
fn what_is_pinned_and_has_changed_at_the_source_stays_as_it_is_there() {
    let camp = small("");
    let keep = camp.ino(0, "keep").unwrap();
    camp.client(0).site.pin(keep, true).unwrap();
    camp.client(0).site.bring_file(keep).unwrap();
    fs::write(camp.at("keep"), bytes(KEPT + 5, 9)).unwrap();
    let client = camp.client(1);
    client.open(&op(client), keep, 0).unwrap();
    assert!(camp.read(1, "keep").unwrap() == bytes(KEPT + 5, 9));
    sweep(&camp);
    check_is_here(&camp, "keep", &bytes(KEPT + 5, 9));
}

/// S245: the files of one directory, more than one answer has, the first of which has no name any more.
#[test]
fn all_that_is_pinned_is_listed() {
    let camp = small("");
    let (client, dir) = (camp.client(0), camp.ino(0, "").unwrap());
    let make = |i: usize| {
        let name = format!("f{i}");
        let ino = client.create(&op(client), dir, name.as_bytes(), &FILE, true, false).unwrap().attr.ino;
        client.site.pin(ino, true).unwrap();
        ino
    };
    let mut made: Vec<Ino> = (0..2100).map(make).collect();
    made.sort_unstable();
    let first = made.remove(0);
    let names = (0..2100).map(|i| format!("f{i}"));
    let name = names.into_iter().find(|name| camp.ino(0, name).unwrap() == first).unwrap();
    client.unlink(&op(client), dir, name.as_bytes()).unwrap();
    let mut listed: Vec<Ino> = client.site.pinned().unwrap().into_iter().map(|pinned| pinned.ino).collect();
    listed.sort_unstable();
    assert!(listed == made, "{} of {}", listed.len(), made.len());
}

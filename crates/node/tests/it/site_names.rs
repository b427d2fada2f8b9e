//! Files in front of site storage that lose their names to others: what only the source has of them is not replaced
//! there before it is here.

use std::fs;
use std::path::Path;

use crate::at_site::{Camp, DIR, FILE, STRIPE, bytes, with_settings};
use crate::formation::{Formation, op};
use bivouac_client::TreeEntry;
use bivouac_types::{Errno, Ino};

const LEN: usize = 5 * STRIPE + 77;

fn three(site: &Path) {
    for (name, seed) in [("one", 1), ("two", 2), ("three", 3)] {
        fs::write(site.join(name), bytes(LEN, seed)).unwrap();
    }
}

/// As a flush does that has found out where things belong, and then somebody renames them.
#[test]
fn what_was_renamed_before_it_was_put_is_put_under_its_new_name() {
    let camp = with_settings("mirror-deletes=yes", |_| {});
    let (client, dir) = (camp.client(1), camp.partition.dir);
    client.mknod(&op(client), dir, b"d", &DIR).unwrap();
    for path in ["file", "d/below"] {
        camp.write(1, path, path.as_bytes());
    }
    let found = |name: &str| {
        let attr = client.lookup(dir, name.as_bytes()).unwrap();
        TreeEntry { attr, dir, path: name.as_bytes().to_vec() }
    };
    let (file, d) = (found("file"), found("d"));
    for (from, to) in [("file", "file2"), ("d", "d2")] {
        client.rename(&op(client), dir, from.as_bytes(), dir, to.as_bytes(), 0).unwrap();
    }
    client.site.flush_open(&d).unwrap();
    client.site.flush(&file, None, false).unwrap();
    assert!(!camp.is_saved());
    assert_eq!(camp.flush(0, false), []);
    assert!(camp.is_saved());
    client.site.mirror(camp.partition.id, b"").unwrap();
    camp.check_same(2);
}

/// Flushes one file alone, as by `bivouac flush PATH` or when its time has come.
fn flush_one(camp: &Camp, name: &str, force: bool) {
    let (client, dir) = (camp.client(1), camp.partition.dir);
    let attr = client.lookup(dir, name.as_bytes()).unwrap();
    let seen = client.site.seen_names(dir).unwrap().get(name.as_bytes()).cloned();
    let found = TreeEntry { attr, dir, path: name.as_bytes().to_vec() };
    client.site.flush(&found, seen, force).unwrap();
    assert!(fs::read(camp.at(name)).unwrap() == camp.read(1, name).unwrap(), "{name} is there");
}

fn rename(camp: &Camp, from: &str, to: &str, flags: u32) {
    let (client, dir) = (camp.client(0), camp.partition.dir);
    client.rename(&op(client), dir, from.as_bytes(), dir, to.as_bytes(), flags).unwrap();
}

/// All that a file is, through another node than it was written through, and after all is at the source.
fn check(camp: &mut Camp, files: &[(&str, u8)]) {
    let is = |camp: &Camp, node: usize| {
        for (name, seed) in files {
            assert!(camp.read(node, name).unwrap() == bytes(LEN, *seed), "{name}");
        }
    };
    is(camp, 2);
    camp.formation.restart();
    is(camp, 3);
    assert_eq!(camp.flush(0, false), []);
    assert!(camp.is_saved());
    for (name, seed) in files {
        assert!(fs::read(camp.at(name)).unwrap() == bytes(LEN, *seed), "{name} at the source");
    }
    is(camp, 1);
}

/// S511.
#[test]
fn a_file_keeps_its_content_when_another_takes_its_old_name() {
    for force in [false, true] {
        let mut camp = Camp::new(three);
        rename(&camp, "one", "moved", 0);
        camp.write(0, "one", &bytes(LEN, 9));
        flush_one(&camp, "one", force);
        // Several in a row, as logs are rotated.
        rename(&camp, "one", "second", 0);
        camp.write(3, "one", &bytes(LEN, 10));
        flush_one(&camp, "one", force);
        check(&mut camp, &[("moved", 1), ("second", 9), ("one", 10), ("two", 2)]);
    }
}

/// S511.
#[test]
fn files_that_exchange_their_names_keep_their_content() {
    const EXCHANGE: u32 = 2;
    let mut camp = Camp::new(three);
    rename(&camp, "one", "two", EXCHANGE);
    flush_one(&camp, "one", false);
    check(&mut camp, &[("one", 2), ("two", 1)]);
    // In a circle, all at the same time.
    rename(&camp, "one", "aside", 0);
    rename(&camp, "two", "one", 0);
    rename(&camp, "three", "two", 0);
    rename(&camp, "aside", "three", 0);
    std::thread::scope(|scope| {
        for name in ["one", "two", "three"] {
            let camp = &camp;
            scope.spawn(move || flush_one(camp, name, false));
        }
    });
    check(&mut camp, &[("one", 1), ("two", 3), ("three", 2)]);
}

/// S511.
#[test]
fn a_file_with_another_name_or_none_keeps_its_content() {
    let camp = Camp::new(three);
    let (client, dir) = (camp.client(0), camp.partition.dir);
    let [one, two] = ["one", "two"].map(|name| camp.ino(0, name).unwrap());
    client.link(&op(client), one, dir, b"linked").unwrap();
    client.unlink(&op(client), dir, b"one").unwrap();
    client.open(&op(client), two, 0).unwrap();
    camp.write(0, "fresh", &bytes(LEN, 9));
    rename(&camp, "fresh", "two", 0);
    camp.write(0, "one", &bytes(LEN, 10));
    for name in ["one", "two"] {
        flush_one(&camp, name, false);
    }
    let content = |ino: Ino| {
        let mut content = vec![0; LEN + 10];
        let len = client.read(ino, 0, &mut content).unwrap();
        content.truncate(len);
        content
    };
    assert!(content(two) == bytes(LEN, 2), "open without a name");
    client.close(two);
    client.open(&op(client), one, 0).unwrap();
    assert!(content(one) == bytes(LEN, 1), "by its other name");
    client.close(one);
    assert_eq!(camp.flush(0, false), []);
    assert!(fs::read(camp.at("linked")).unwrap() == bytes(LEN, 1));
}

/// S511.
#[test]
fn what_does_not_fit_is_not_replaced_before_it_is_elsewhere() {
    const LARGE: usize = 8 << 20;
    let fill = |site: &Path| fs::write(site.join("one"), bytes(LARGE, 1)).unwrap();
    let camp = Camp::of(Formation::with_capacity(2, 4096, 3 << 20), fill);
    let (client, dir) = (camp.client(1), camp.partition.dir);
    rename(&camp, "one", "moved", 0);
    let made = client.create(&op(client), dir, b"one", &FILE, false, true).unwrap().attr;
    client.write(&op(client), made.ino, 0, b"new", false).unwrap();
    client.close(made.ino);
    let found = TreeEntry { attr: client.getattr(made.ino).unwrap(), dir, path: b"one".to_vec() };
    let seen = client.site.seen_names(dir).unwrap().get(&b"one"[..]).cloned();
    // Room may be made by flushing what was brought so far, since that has another name now.
    if let Err(refused) = client.site.flush(&found, seen, true) {
        assert_eq!(refused.errno(), Errno::ENOSPC, "{refused}");
        assert!(refused.to_string().contains("'one' at the source has content of inode"), "{refused}");
        assert!(fs::read(camp.at("one")).unwrap() == bytes(LARGE, 1));
    }
    assert!(camp.read(0, "moved").unwrap() == bytes(LARGE, 1));
    camp.flush(0, false);
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(fs::read(camp.at("one")).unwrap(), b"new");
    assert!(fs::read(camp.at("moved")).unwrap() == bytes(LARGE, 1));
}

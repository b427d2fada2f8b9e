//! Partitions that stand in front of site storage: a directory tree, with real nodes and volumes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::at_site::{Camp, DIR, FILE, STRIPE, bind, bytes, tree, with_settings};
use crate::formation::{Formation, op};
use bivouac_client::{NewInode, SeekKind, TreeEntry};
use bivouac_types::{Errno, Ino, NodeId, SetAttr, SetTime, TargetIndex, Timestamp, mode};
use bivouac_wire::Op;

/// S160.
#[test]
fn the_tree_of_the_source_is_there_on_every_node() {
    let camp = Camp::new(tree);
    assert!(camp.is_saved(), "nothing is new");
    for node in [3, 0, 1, 2] {
        camp.check_same(node);
    }
    let top = camp.ino(2, "top").unwrap();
    assert_eq!(camp.client(2).getxattr(top, b"user.note").unwrap(), b"hello");
    assert!(camp.is_saved(), "reading changes nothing");
    assert_eq!(camp.ino(1, "a/none").unwrap_err().errno(), Errno::ENOENT);
}

/// S161.
#[test]
fn each_byte_is_brought_once() {
    let mut camp = Camp::new(tree);
    let large = bytes(10 * STRIPE + 77, 2);
    std::thread::scope(|scope| {
        for node in 0..4 {
            let (camp, large) = (&camp, &large);
            scope.spawn(move || assert!(camp.read(node, "a/large").unwrap() == *large));
        }
    });
    // Whoever brought it again would find nothing.
    fs::remove_file(camp.at("a/large")).unwrap();
    assert!(camp.read(3, "a/large").unwrap() == large);
    camp.formation.restart();
    assert!(camp.read(1, "a/large").unwrap() == large);
    let listed = camp.client(0).readdir(camp.ino(0, "a").unwrap(), 0, 1 << 20, false).unwrap();
    assert_eq!(listed.len(), 3, "directories are listed once");
}

/// S162.
#[test]
fn what_is_written_comes_back_to_the_source() {
    let mut camp = Camp::new(tree);
    camp.write(1, "top", &bytes(3 * STRIPE, 9));
    camp.write(2, "a/new", &bytes(7 * STRIPE + 5, 10));
    let client = camp.client(3);
    let dir = client.mknod(&op(client), camp.ino(3, "a").unwrap(), b"made", &DIR).unwrap().ino;
    camp.write(3, "a/made/file", b"x");
    let link = NewInode { mode: mode::LINK | 0o777, rdev: 0, target: b"file" };
    client.mknod(&op(client), dir, b"link", &link).unwrap();
    // Within what is at the source only.
    let large = camp.ino(0, "a/large").unwrap();
    camp.client(0).write(&op(camp.client(0)), large, STRIPE as u64 + 10, b"changed", false).unwrap();
    camp.client(0).write(&op(camp.client(0)), large, 0, b"appended", true).unwrap();
    let time = SetTime::At(Timestamp { secs: 1_000_000_000, nanos: 5 });
    let set = SetAttr { mode: Some(0o600), mtime: Some(time), ..SetAttr::default() };
    let deep = camp.ino(0, "a/b/c/deep").unwrap();
    camp.client(0).setattr(&op(camp.client(0)), deep, &set).unwrap();
    assert!(!camp.is_saved());
    camp.formation.restart();
    assert!(!camp.is_saved(), "what is dirty is so after a restart");
    assert_eq!(camp.flush(2, false), []);
    let mut expected = bytes(10 * STRIPE + 77, 2);
    expected[STRIPE + 10..STRIPE + 17].copy_from_slice(b"changed");
    expected.extend_from_slice(b"appended");
    assert!(fs::read(camp.at("a/large")).unwrap() == expected);
    assert!(camp.is_saved());
    camp.check_same(1);
    assert_eq!(camp.flush(1, false), []);
    assert_eq!(fs::metadata(camp.at("a/b/c/deep")).unwrap().mtime_nsec(), 5);
}

#[test]
fn a_file_that_was_cut_does_not_get_its_old_end_back() {
    let camp = Camp::new(tree);
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    let cut = (2 * STRIPE + 100) as u64;
    client.setattr(&op(client), large, &SetAttr { size: Some(cut), ..SetAttr::default() }).unwrap();
    client.write(&op(client), large, 5 * STRIPE as u64, b"end", false).unwrap();
    let mut expected = bytes(10 * STRIPE + 77, 2);
    expected.truncate(cut as usize);
    expected.resize(5 * STRIPE, 0);
    expected.extend_from_slice(b"end");
    assert!(camp.read(2, "a/large").unwrap() == expected);
    assert_eq!(camp.flush(0, false), []);
    assert!(fs::read(camp.at("a/large")).unwrap() == expected);
}

#[test]
fn a_file_that_was_cut_and_has_grown_again_is_flushed_with_its_zeros() {
    let camp = Camp::new(tree);
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    let size = client.getattr(large).unwrap().size;
    for size in [100, size] {
        client.setattr(&op(client), large, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    }
    assert_eq!(camp.flush(0, false), []);
    let mut expected = bytes(100, 2);
    expected.resize(size as usize, 0);
    assert!(fs::read(camp.at("a/large")).unwrap() == expected);
    camp.check_same(3);
}

/// S165.
#[test]
fn what_is_at_the_source_makes_room_and_what_is_not_stays() {
    const LARGE: usize = 8 << 20;
    let fill = |site: &Path| {
        fs::write(site.join("one"), bytes(LARGE, 1)).unwrap();
        fs::write(site.join("two"), bytes(LARGE, 2)).unwrap();
    };
    let mut camp = Camp::of(Formation::with_capacity(2, 4096, 6 << 20), fill);
    camp.write(0, "mine", &bytes(512 << 10, 3));
    for turn in 0..2 {
        for (name, seed) in [("one", 1), ("two", 2)] {
            assert!(camp.read(turn, name).unwrap() == bytes(LARGE, seed), "{name} {turn}");
        }
        assert!(camp.read(turn, "mine").unwrap() == bytes(512 << 10, 3));
    }
    // More that is nowhere else than there is room for: it is flushed on the way.
    camp.write(0, "more", &bytes(14 << 20, 4));
    assert!(camp.read(1, "more").unwrap() == bytes(14 << 20, 4));
    assert_eq!(camp.flush(0, false), []);
    camp.formation.restart();
    // What was written here, and is there by now, makes room as well, and comes back.
    for name in ["one", "two", "mine", "one"] {
        assert!(camp.read(1, name).unwrap() == fs::read(camp.at(name)).unwrap(), "{name}");
    }
    camp.check_same(0);
    assert!(camp.is_saved());
}

/// S170.
#[test]
fn a_file_that_has_changed_at_the_source_is_new_when_it_is_opened() {
    let camp = Camp::new(tree);
    let large = camp.ino(0, "a/large").unwrap();
    assert!(camp.read(0, "a/large").unwrap() == bytes(10 * STRIPE + 77, 2));
    let client = camp.client(1);
    for (turn, len) in [(0, 4 * STRIPE + 9), (1, 12 * STRIPE), (2, 0)] {
        fs::write(camp.at("a/large"), bytes(len, 50 + turn)).unwrap();
        let attr = client.open(&op(client), large, 0).unwrap();
        assert_eq!(attr.size, len as u64);
        assert!(camp.read(2, "a/large").unwrap() == bytes(len, 50 + turn), "{turn}");
        camp.check_same_at(3, "a/large");
        client.close(large);
        assert!(camp.is_saved(), "what comes from there is not dirty");
    }
    // What is written afterwards goes onto what is there now.
    camp.client(3).write(&op(camp.client(3)), large, 5, b"ours", false).unwrap();
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(fs::read(camp.at("a/large")).unwrap(), b"\0\0\0\0\0ours");
}

/// S170, S650: who has it open may have been promised that its size stays.
#[test]
fn a_file_that_has_grown_at_the_source_has_grown_for_all_who_have_it_open() {
    const LEN: usize = 100;
    let camp = Camp::new(|site| fs::write(site.join("log"), bytes(LEN, 1)).unwrap());
    let (ino, reader, opener) = (camp.ino(0, "log").unwrap(), camp.client(1), camp.client(2));
    reader.open(&op(reader), ino, 0).unwrap();
    assert_eq!(camp.read(1, "log").unwrap(), bytes(LEN, 1));
    for turn in 2..6 {
        let (end, content) = ((turn - 1) * LEN, bytes(turn * LEN, turn as u8));
        assert_eq!(
            reader.read(ino, end as u64, &mut [0; LEN]).unwrap(),
            0,
            "it is promised that it ends here"
        );
        fs::write(camp.at("log"), &content).unwrap();
        opener.open(&op(opener), ino, 0).unwrap();
        let mut back = vec![0; LEN];
        assert_eq!(reader.read(ino, end as u64, &mut back).unwrap(), LEN, "turn {turn}");
        assert_eq!(back, content[end..]);
        opener.close(ino);
    }
}

/// S170: what was written here is not given up for what is there.
#[test]
fn a_file_that_has_changed_on_both_sides_is_kept_on_both() {
    let camp = Camp::new(tree);
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    client.write(&op(client), large, 2 * STRIPE as u64, b"ours", false).unwrap();
    assert!(camp.read(0, "a/large").is_ok(), "all of it is here");
    fs::write(camp.at("a/large"), "theirs").unwrap();
    client.open(&op(client), large, 0).unwrap();
    let mut expected = bytes(10 * STRIPE + 77, 2);
    expected[2 * STRIPE..2 * STRIPE + 4].copy_from_slice(b"ours");
    assert!(camp.read(2, "a/large").unwrap() == expected);
    client.close(large);
    let failed = camp.flush(0, false);
    assert!(failed.iter().any(|(_, errno, _)| *errno == Errno::ESTALE), "{failed:?}");
    assert_eq!(fs::read(camp.at("a/large")).unwrap(), b"theirs");
}

/// S171.
#[test]
fn a_write_through_is_at_the_source_when_it_is_acknowledged() {
    let camp = with_settings("write=on-flush\nrule=*.log: write=through", tree);
    let client = camp.client(2);
    let a = camp.ino(2, "a").unwrap();
    let new = client.mknod(&op(client), a, b"deep", &DIR).unwrap().ino;
    let made = client.create(&op(client), new, b"x.log", &FILE, false, false).unwrap().attr.ino;
    client.write(&op(client), made, 0, b"first", false).unwrap();
    assert_eq!(fs::read(camp.at("a/deep/x.log")).unwrap(), b"first");
    client.write(&op(client), made, 0, b" and second", true).unwrap();
    client.write(&op(client), made, 0, b"F", false).unwrap();
    assert_eq!(fs::read(camp.at("a/deep/x.log")).unwrap(), b"First and second");
    client.setattr(&op(client), made, &SetAttr { size: Some(5), ..SetAttr::default() }).unwrap();
    assert_eq!(fs::read(camp.at("a/deep/x.log")).unwrap(), b"First");
    // Theirs is not overwritten, and the writer hears of it.
    fs::write(camp.at("a/deep/x.log"), "theirs").unwrap();
    let refused = client.write(&op(client), made, 0, b"ours", false).unwrap_err();
    assert_eq!(refused.errno(), Errno::ESTALE);
    client.close(made);
    assert_eq!(fs::read(camp.at("a/deep/x.log")).unwrap(), b"theirs");
    // Others wait for a flush.
    camp.write(1, "a/other", b"x");
    assert!(!camp.at("a/other").exists());
}

/// S172.
#[test]
fn what_was_closed_is_at_the_source_also_under_another_name() {
    let camp = with_settings("write=on-close\nfsync=source", tree);
    let client = camp.client(3);
    let made = client.create(&op(client), camp.partition.dir, b"part", &FILE, false, false).unwrap().attr.ino;
    client.write(&op(client), made, 0, &bytes(3 * STRIPE + 1, 7), false).unwrap();
    assert!(!camp.at("part").exists());
    client.fsync(made, true).unwrap();
    assert!(fs::read(camp.at("part")).unwrap() == bytes(3 * STRIPE + 1, 7), "as fsync=source says");
    client.write(&op(client), made, 10, b"more", false).unwrap();
    client.site.save_at_close(made).unwrap();
    client.close(made);
    assert_eq!(&fs::read(camp.at("part")).unwrap()[10..14], b"more");
    client.rename(&op(client), camp.partition.dir, b"part", camp.partition.dir, b"whole", 0).unwrap();
    assert_eq!(&fs::read(camp.at("whole")).unwrap()[10..14], b"more");
}

/// S173.
#[test]
fn what_was_written_waits_for_its_time_or_its_amount() {
    let mut camp = with_settings("write=delayed=1h/256k", tree);
    camp.write(0, "early", b"x");
    camp.write(1, "large", &bytes(20 * STRIPE, 3));
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed().as_secs() < 60, "{what}");
            std::thread::yield_now();
        }
    };
    // A node that has much begins at once, perhaps in the middle of the write; then the rest waits for its time.
    until("much waits", &|| camp.at("large").exists());
    let client = camp.client(0);
    let partition = client.partitions.now(camp.partition.id).unwrap();
    let mut settings = partition.settings.clone();
    settings.assign("write", "delayed=10ms").unwrap();
    client.partitions.set(&op(client), partition.id, partition.version, settings).unwrap();
    camp.write(2, "late", b"y");
    until("it is old", &|| fs::read(camp.at("late")).is_ok_and(|found| found == b"y"));
    // Also what an earlier daemon has left.
    camp.formation.restart();
    until("it is old", &|| fs::read(camp.at("early")).is_ok_and(|found| found == b"x"));
    until("all is there", &|| camp.is_saved());
    assert!(fs::read(camp.at("large")).unwrap() == bytes(20 * STRIPE, 3));
}

/// S161: the policy `on-open`.
#[test]
fn a_file_is_brought_as_a_whole_when_it_is_opened() {
    let camp = with_settings("rule=large: read=on-open", tree);
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    client.open(&op(client), large, 0).unwrap();
    fs::remove_file(camp.at("a/large")).unwrap();
    assert!(camp.read(0, "a/large").unwrap() == bytes(10 * STRIPE + 77, 2));
    client.close(large);
}

/// S179: a directory whose owner may not write into it gets its files, and then its mode.
#[test]
fn a_closed_directory_is_open_only_until_its_files_are_there() {
    let mut camp = Camp::new(tree);
    let client = camp.client(1);
    let new = client.mknod(&op(client), camp.partition.dir, b"new", &DIR).unwrap().ino;
    camp.write(2, "new/file", b"x");
    camp.write(2, "a/other", b"y");
    let closed = SetAttr { mode: Some(0o555), ..SetAttr::default() };
    camp.client(1).setattr(&op(camp.client(1)), new, &closed).unwrap();
    let dir = TreeEntry {
        attr: camp.client(1).getattr(new).unwrap(),
        dir: camp.partition.dir,
        path: b"new".to_vec(),
    };
    let mode_of = |camp: &Camp, name: &str| fs::metadata(camp.at(name)).unwrap().mode() & 0o7777;
    camp.client(0).site.flush_open(&dir).unwrap();
    assert_eq!(mode_of(&camp, "new"), 0o755);
    camp.formation.restart();
    assert!(!camp.is_saved(), "who was killed in between has something left to do");
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(mode_of(&camp, "new"), 0o555);
    assert!(camp.is_saved());
    camp.check_same(3);
    // One that has not changed here keeps the mode that it has got there.
    fs::set_permissions(camp.at("new"), fs::Permissions::from_mode(0o700)).unwrap();
    let file = camp.ino(1, "new/file").unwrap();
    camp.client(1).write(&op(camp.client(1)), file, 0, b"changed", false).unwrap();
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(mode_of(&camp, "new"), 0o700);
    assert_eq!(fs::read(camp.at("new/file")).unwrap(), b"changed");
}

/// S163.
#[test]
fn what_has_changed_at_the_source_is_not_overwritten() {
    let camp = Camp::new(tree);
    camp.write(0, "top", b"ours");
    camp.write(0, "new", b"ours too");
    fs::write(camp.at("top"), "theirs").unwrap();
    fs::write(camp.at("new"), "theirs too").unwrap();
    let failed = camp.flush(0, false);
    let paths: Vec<_> = failed.iter().map(|(path, errno, _)| (path.as_str(), *errno)).collect();
    assert_eq!(paths.len(), 2, "{failed:?}");
    assert!(paths.contains(&("top", Errno::ESTALE)) && paths.contains(&("new", Errno::ESTALE)), "{failed:?}");
    assert!(failed[0].2.contains("both are kept") && failed[0].2.contains("--force"), "{failed:?}");
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"theirs");
    assert_eq!(camp.read(1, "top").unwrap(), b"ours");
    assert!(!camp.is_saved());
    assert_eq!(camp.flush(0, true), []);
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"ours");
    assert!(camp.is_saved());
    assert!(
        fs::read_dir(camp.site.path())
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with(".bivouac") })
    );
}

#[test]
fn what_has_changed_at_the_source_is_not_mixed_with_what_was_brought() {
    let camp = Camp::new(tree);
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    client.read(large, 0, &mut [0; 10]).unwrap();
    fs::write(camp.at("a/large"), bytes(10 * STRIPE + 77, 3)).unwrap();
    let refused = client.read(large, 4 * STRIPE as u64, &mut [0; 10]).unwrap_err();
    assert_eq!(refused.errno(), Errno::ESTALE);
    assert!(refused.to_string().contains("a/large") && refused.to_string().contains("changed"), "{refused}");
}

#[test]
fn a_source_that_vanishes_takes_nothing_with_it() {
    let camp = Camp::new(tree);
    camp.write(0, "top", b"ours");
    assert!(!camp.read(0, "a/b/c/deep").unwrap().is_empty());
    let away = camp.site.path().with_extension("away");
    fs::rename(camp.site.path(), &away).unwrap();
    let failed = camp.flush(0, false);
    assert!(!failed.is_empty() && failed.iter().all(|(_, errno, _)| *errno == Errno::EIO), "{failed:?}");
    assert!(failed[0].2.contains("still mounted"), "{failed:?}");
    // An empty directory in its place is not taken for it.
    fs::create_dir(camp.site.path()).unwrap();
    assert!(!camp.flush(0, false).is_empty());
    assert_eq!(camp.read(3, "top").unwrap(), b"ours");
    assert_eq!(camp.read(3, "a/b/c/deep").unwrap(), bytes(STRIPE, 3));
    assert_eq!(fs::read_dir(camp.site.path()).unwrap().count(), 0);
    fs::remove_dir(camp.site.path()).unwrap();
    fs::rename(&away, camp.site.path()).unwrap();
    assert_eq!(camp.flush(0, false), []);
    assert!(camp.is_saved());
    camp.check_same(2);
}

#[test]
fn after_a_restart_another_directory_in_the_place_of_the_source_is_not_taken_for_it() {
    let mut camp = Camp::new(tree);
    camp.write(0, "top", b"ours");
    camp.read(0, "a/large").unwrap();
    let away = camp.site.path().with_extension("away");
    fs::rename(camp.site.path(), &away).unwrap();
    fs::create_dir(camp.site.path()).unwrap();
    camp.formation.restart();
    assert!(!camp.flush(0, false).is_empty());
    assert_eq!(fs::read_dir(camp.site.path()).unwrap().count(), 0);
    fs::remove_dir(camp.site.path()).unwrap();
    fs::rename(&away, camp.site.path()).unwrap();
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"ours");
}

#[test]
fn renames_and_removals() {
    let camp = Camp::new(tree);
    let (client, dir) = (camp.client(1), camp.partition.dir);
    // Written beside and renamed over, as editors do.
    camp.write(1, "top.tmp", b"edited");
    client.rename(&op(client), dir, b"top.tmp", dir, b"top", 0).unwrap();
    // Renamed before anything of it was brought.
    let a = camp.ino(1, "a").unwrap();
    client.rename(&op(client), a, b"large", dir, b"moved", 0).unwrap();
    let refused = client.rename(&op(client), dir, b"a", dir, b"z", 0).unwrap_err();
    assert_eq!(refused.errno(), Errno::EXDEV, "a directory of the source stays where it is");
    let fresh = client.mknod(&op(client), dir, b"fresh", &DIR).unwrap().ino;
    client.rename(&op(client), dir, b"fresh", a, b"fresher", 0).unwrap();
    client.unlink(&op(client), dir, b"nothing").unwrap();
    let _ = fresh;
    assert_eq!(camp.flush(1, false), []);
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"edited");
    assert!(fs::read(camp.at("moved")).unwrap() == bytes(10 * STRIPE + 77, 2));
    assert!(camp.at("a/fresher").is_dir());
    assert!(camp.at("nothing").exists() && camp.at("a/large").exists(), "removals stay here");
    assert!(camp.is_saved());
    let gone = client.lookup(dir, b"nothing").unwrap_err();
    assert_eq!(gone.errno(), Errno::ENOENT, "and what was removed does not come back");
}

#[test]
fn directories_that_nobody_looked_into_are_not_empty() {
    let camp = Camp::new(tree);
    let (client, dir) = (camp.client(2), camp.partition.dir);
    assert_eq!(client.rmdir(&op(client), dir, b"a").unwrap_err().errno(), Errno::ENOTEMPTY);
    let b = camp.ino(2, "a").unwrap();
    for _ in 0..2 {
        // On the peer lane nobody looks at the source: refused until somebody has looked into it.
        let refused = client.rmdir(&op(client), b, b"b").unwrap_err().errno();
        assert!([Errno::ENOTEMPTY, Errno::EBUSY].contains(&refused), "{refused:?}");
    }
    assert_eq!(camp.read(0, "a/b/c/deep").unwrap(), bytes(STRIPE, 3));
}

#[test]
fn holes_of_what_is_not_here_are_not_taken_for_holes() {
    let camp = Camp::new(|site| {
        let file = fs::File::create(site.join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"data", 9 * STRIPE as u64).unwrap();
        file.set_len(20 * STRIPE as u64).unwrap();
    });
    let (client, ino) = (camp.client(0), camp.ino(0, "sparse").unwrap());
    assert_eq!(client.seek(ino, 0, SeekKind::Data).unwrap(), 0, "what is not here counts as data");
    assert_eq!(camp.read(0, "sparse").unwrap(), fs::read(camp.at("sparse")).unwrap());
    let at = client.seek(ino, 0, SeekKind::Data).unwrap();
    assert!(at > 0 && at <= 9 * STRIPE as u64, "{at}");
    let targets = client.content.targets(&client.getattr(ino).unwrap()).unwrap();
    let allocated: u64 = targets.iter().map(|target| target.subfile.allocated).sum();
    assert!(allocated < 4 * STRIPE as u64, "{allocated}");
    client.write(&op(client), ino, 19 * STRIPE as u64, b"more", false).unwrap();
    assert_eq!(camp.flush(0, false), []);
    assert!(fs::metadata(camp.at("sparse")).unwrap().blocks() * 512 < 4 * STRIPE as u64);
    camp.check_same(3);
}

#[test]
fn a_source_that_takes_nothing_is_reported_and_the_data_stays() {
    let camp = Camp::new(tree);
    let long = "n".repeat(255);
    camp.write(0, &long, b"as long as names may be");
    camp.write(0, "top", &bytes(STRIPE, 4));
    // Somebody has made a directory of the name.
    camp.write(0, "clash", b"a file");
    fs::create_dir(camp.at("clash")).unwrap();
    let failed = camp.flush(0, false);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].0, "clash");
    assert!(fs::read(camp.at(&long)).unwrap() == b"as long as names may be");
    assert_eq!(camp.read(2, "clash").unwrap(), b"a file");
    assert!(!camp.is_saved());
}

/// S262: of each target more than it puts before it syncs and compares the first of it.
#[test]
fn a_large_file_is_compared_while_it_is_put() {
    let camp = Camp::new(tree);
    let content = bytes(72 << 20, 9);
    camp.write(0, "a/huge", &content);
    assert_eq!(camp.flush(1, false), []);
    assert!(fs::read(camp.at("a/huge")).unwrap() == content);
    assert!(camp.is_saved());
    camp.check_same(2);
}

#[test]
fn what_is_written_during_a_flush_stays_dirty() {
    let camp = Camp::new(tree);
    let ino = camp.write(0, "top", &bytes(40 * STRIPE, 4));
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| camp.flush(0, false));
        let client = camp.client(1);
        for turn in 0..50 {
            client.write(&op(client), ino, turn * STRIPE as u64, &[turn as u8; 100], false).unwrap();
        }
        assert_eq!(flushing.join().unwrap(), []);
    });
    assert_eq!(camp.flush(0, false), []);
    assert!(camp.is_saved());
    camp.check_same(2);
}

/// S510.
#[test]
fn names_of_one_file_at_the_source_are_files_of_their_own() {
    let camp = Camp::new(|site| {
        fs::write(site.join("one"), bytes(2 * STRIPE, 1)).unwrap();
        fs::hard_link(site.join("one"), site.join("two")).unwrap();
    });
    assert_ne!(camp.ino(0, "one").unwrap(), camp.ino(0, "two").unwrap());
    camp.write(1, "one", b"changed");
    assert!(camp.read(2, "two").unwrap() == bytes(2 * STRIPE, 1));
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(fs::read(camp.at("one")).unwrap(), b"changed");
    assert!(fs::read(camp.at("two")).unwrap() == bytes(2 * STRIPE, 1), "the other name keeps what it had");
    assert!(camp.read(3, "two").unwrap() == bytes(2 * STRIPE, 1));
}

#[test]
fn two_formations_share_a_source_without_mixing_their_files() {
    let (camp, other) = (Camp::new(tree), Formation::new(2, 4096));
    let second = bind(&other, "x", camp.site.path()).unwrap();
    let client = &other.clients[1];
    let top = client.lookup(second.dir, b"top").unwrap();
    camp.write(0, "top", b"of the first");
    client.write(&op(client), top.ino, 0, b"of the second", false).unwrap();
    assert_eq!(camp.flush(0, false), []);
    let found = TreeEntry { attr: client.getattr(top.ino).unwrap(), dir: second.dir, path: b"top".to_vec() };
    assert_eq!(client.site.flush(&found, None, false).unwrap_err().errno(), Errno::ESTALE);
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"of the first");
    client.site.flush(&found, None, true).unwrap();
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"of the second");
}

#[test]
fn many_readers_on_many_nodes_ask_the_source_once() {
    let camp = Camp::new(tree);
    let ino = camp.ino(0, "a/large").unwrap();
    std::thread::scope(|scope| {
        for reader in 0..16 {
            let client = camp.client(reader % 4);
            scope.spawn(move || {
                let mut into = vec![0; 10 * STRIPE];
                assert_eq!(client.read(ino, 0, &mut into).unwrap(), into.len());
                assert!(into == bytes(10 * STRIPE + 77, 2)[..10 * STRIPE]);
            });
        }
    });
    let asked: u64 = (0..4).map(|node| camp.formation.served(node, Op::FindOrigin)).sum();
    assert!(asked <= 4 * 16, "{asked}");
    let subfiles: u64 =
        (0..4).map(|node| camp.client(0).nodes().status(NodeId(node)).unwrap().volumes[0].used_bytes).sum();
    assert!(subfiles < 12 * STRIPE as u64 + 4 * 4096, "{subfiles}");
}

#[test]
fn an_append_on_another_node_keeps_what_is_at_the_source() {
    let camp = Camp::new(|site| fs::write(site.join("log"), bytes(5 * STRIPE + 9, 7)).unwrap());
    let (client, ino) = (camp.client(0), camp.ino(0, "log").unwrap());
    let mut expected = bytes(5 * STRIPE + 9, 7);
    for turn in 0..4 {
        let line = bytes(STRIPE / 2, turn);
        client.write(&op(client), ino, 0, &line, true).unwrap();
        expected.extend_from_slice(&line);
    }
    assert!(camp.read(3, "log").unwrap() == expected);
    assert_eq!(camp.flush(0, false), []);
    assert!(fs::read(camp.at("log")).unwrap() == expected);
}

#[test]
fn what_cannot_be_served_is_refused_when_the_partition_is_made() {
    let formation = Formation::new(1, 4096);
    let client = &formation.clients[0];
    let dir = client.mknod(&op(client), Ino::ROOT, b"p", &DIR).unwrap().ino;
    let make = |settings: &str| {
        let targets = vec![TargetIndex(0)];
        client.partitions.make(&op(client), dir, targets, settings.parse().unwrap()).unwrap_err()
    };
    assert_eq!(make("source=/no/such/place").errno(), Errno::ENOENT);
    let refused = make("source=s3://bucket/prefix");
    assert_eq!(refused.errno(), Errno::EACCES);
    assert!(refused.to_string().contains("no credentials"), "{refused}");
    for policy in ["write=through", "write=on-close", "write=delayed", "read=at-start", "read=on-open"] {
        let refused = make(policy);
        assert!(refused.errno() == Errno::EINVAL && refused.to_string().contains("source"), "{refused}");
    }
}

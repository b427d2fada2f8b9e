//! What site storage may do to a partition in front of it: change in the middle, belong to others as well, take no long
//! names, come when there is no room.

use std::fs;
use std::path::Path;
use std::sync::Barrier;

use crate::at_site::{Camp, DIR, FILE, STRIPE, bind, bytes, tree};
use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, Partition, TreeEntry};
use bivouac_net::{InProcess, LaneKind, Request, Transport};
use bivouac_types::{ClientId, Errno, FsResult, Ino, OpId};
use bivouac_wire::{Decode, Encode, FlushRequest, FlushState, Frame, Op};

/// Temporary names below a directory.
fn temporaries(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".bivouac")).collect()
}

fn errnos(failed: &[(String, Errno, String)]) -> Vec<(&str, Errno)> {
    failed.iter().map(|(path, errno, _)| (path.as_str(), *errno)).collect()
}

/// S163: what is put there while a flush is under way is not overwritten, whether there was something before or not.
#[test]
fn what_changes_there_during_a_flush_is_kept_on_both_sides() {
    for (name, before) in [("top", true), ("new", false)] {
        let camp = Camp::new(tree);
        camp.write(0, name, &bytes(3 * STRIPE, 7));
        assert_eq!(camp.at(name).exists(), before);
        // After the look at the beginning, and before the file takes its place.
        let place = camp.at(name);
        let change = Box::new(move || fs::write(place, "theirs").unwrap());
        *camp.formation.switchboard.after.lock() = Some((Op::FlushParts as u16, change));
        let failed = camp.flush(0, false);
        assert_eq!(errnos(&failed), [(name, Errno::ESTALE)], "{failed:?}");
        assert!(failed[0].2.contains(name) && failed[0].2.contains("both are kept"), "{failed:?}");
        assert_eq!(fs::read(camp.at(name)).unwrap(), b"theirs");
        assert!(camp.read(2, name).unwrap() == bytes(3 * STRIPE, 7));
        assert!(!camp.is_saved());
        assert_eq!(temporaries(camp.site.path()), [""; 0]);
        assert_eq!(camp.flush(1, true), []);
        assert!(fs::read(camp.at(name)).unwrap() == bytes(3 * STRIPE, 7));
        assert!(camp.is_saved());
    }
}

/// A target that has not heard of the end of a flush takes what is written then for its own, not for the source's.
#[test]
fn what_is_written_after_a_flush_whose_end_was_not_heard_is_not_replaced_by_older_bytes() {
    for hears_of_limit in [false, true] {
        let camp = Camp::new(tree);
        let mut expected = bytes(8 * STRIPE, 7);
        let ino = camp.write(0, "new", &expected);
        let switchboard = std::sync::Arc::clone(&camp.formation.switchboard);
        let lose = Box::new(move || {
            switchboard.lose_request.store(Op::MarkFlush as u32, std::sync::atomic::Ordering::SeqCst);
        });
        *camp.formation.switchboard.after.lock() = Some((Op::FlushParts as u16, lose));
        assert_eq!(camp.flush(0, false), []);
        assert!(fs::read(camp.at("new")).unwrap() == expected);
        assert_eq!(camp.formation.switchboard.lose_request.load(std::sync::atomic::Ordering::SeqCst), 0);
        let client = camp.client(1);
        for stripe in 0..8 {
            client
                .write(&op(client), ino, (stripe * STRIPE) as u64, &[stripe as u8 + 1; 100], false)
                .unwrap();
            expected[stripe * STRIPE..][..100].fill(stripe as u8 + 1);
        }
        if hears_of_limit {
            client.site.bring_file(ino).unwrap();
        }
        assert!(camp.read(2, "new").unwrap() == expected);
        assert_eq!(camp.flush(0, false), []);
        assert!(fs::read(camp.at("new")).unwrap() == expected, "{hears_of_limit}");
        assert!(camp.read(3, "new").unwrap() == expected);
        assert!(camp.is_saved());
    }
}

/// A flush whose asker went away is over all the same.
#[test]
fn a_flush_that_nobody_asks_for_again_hides_no_change_at_the_source() {
    let camp = Camp::new(tree);
    let (ino, client) = (camp.write(0, "top", &bytes(3 * STRIPE, 4)), camp.client(1));
    let (go_on, wait) = std::sync::mpsc::channel();
    let hold = Box::new(move || wait.recv().unwrap());
    *camp.formation.switchboard.before.lock() = Some((Op::FlushParts as u16, hold));
    let home = camp.formation.map().home(ino).unwrap();
    let seen = client.site.seen_names(camp.partition.dir).unwrap().get(&b"top"[..]).cloned();
    let (dir, path, force, open) = (camp.partition.dir, b"top".to_vec(), false, false);
    let request = FlushRequest { ino, dir, path, seen, force, open, job: 0 };
    let transport = InProcess::new(camp.formation.nodes[usize::from(home.0)].clone(), LaneKind::Client);
    let frame = Frame::request(Op::Flush as u16, OpId(1), ClientId(77), 0);
    let mut reply = Vec::new();
    let body = request.to_bytes();
    transport.exchange(&Request::new(frame, &body, &[]), &mut reply, &mut []).unwrap();
    assert!(!FlushState::from_bytes(&reply).unwrap().done, "its asker goes away meanwhile");
    go_on.send(()).unwrap();
    wait_until("it is flushed", || camp.is_saved());
    fs::write(camp.at("top"), "another").unwrap();
    client.open(&op(client), ino, 0).unwrap();
    client.close(ino);
    assert!(camp.read(2, "top").unwrap() == b"another");
}

/// A stripe that was never here goes from the old file to the new one: it must be of the file that was seen.
#[test]
fn a_flush_does_not_mix_in_what_has_changed_there() {
    let camp = Camp::new(tree);
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    client.write(&op(client), large, 0, b"ours", false).unwrap();
    let theirs = bytes(10 * STRIPE + 77, 99);
    fs::write(camp.at("a/large"), &theirs).unwrap();
    assert_eq!(errnos(&camp.flush(0, false)), [("a/large", Errno::ESTALE)]);
    assert!(fs::read(camp.at("a/large")).unwrap() == theirs);
    assert_eq!(temporaries(&camp.at("a")), [""; 0]);
    let mut ours = vec![0; 4];
    client.read(large, 0, &mut ours).unwrap();
    assert_eq!(ours, b"ours");
}

/// A name that is too long for the source, which the formation has no trouble with.
#[test]
fn a_path_that_is_too_long_for_the_source_stays_here_and_is_named() {
    let camp = Camp::new(tree);
    let part = "d".repeat(250);
    let (client, mut dir) = (camp.client(0), camp.partition.dir);
    let mut path = String::new();
    for _ in 0..17 {
        dir = client.mknod(&op(client), dir, part.as_bytes(), &DIR).unwrap().ino;
        path = if path.is_empty() { part.clone() } else { format!("{path}/{part}") };
    }
    let file = format!("{path}/file");
    camp.write(1, &file, b"deep");
    camp.write(1, "top", b"not deep");
    let failed = camp.flush(0, false);
    assert!(failed.iter().all(|(_, errno, _)| *errno == Errno::ENAMETOOLONG), "{failed:?}");
    let text = &failed.iter().find(|(path, ..)| *path == file).unwrap().2;
    assert!(text.len() < 1000 && text.ends_with("name too long (ENAMETOOLONG)"), "{text}");
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"not deep", "others are flushed");
    assert_eq!(camp.read(3, &file).unwrap(), b"deep");
    assert!(!camp.is_saved());
    // Under a name that it takes, it is taken.
    let short = camp.partition.dir;
    client.rename(&op(client), dir, b"file", short, b"file", 0).unwrap();
    client
        .rmdir(&op(client), camp.ino(0, path.rsplit_once('/').unwrap().0).unwrap(), part.as_bytes())
        .unwrap();
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(fs::read(camp.at("file")).unwrap(), b"deep");
    assert!(camp.is_saved());
}

/// Another formation in front of the same directory.
struct Other {
    formation: Formation,
    partition: Partition,
}

impl Other {
    fn new(site: &Path) -> Other {
        let formation = Formation::new(2, 4096);
        let partition = bind(&formation, "other", site).unwrap();
        Other { formation, partition }
    }

    fn client(&self) -> &Client {
        &self.formation.clients[1]
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let (client, dir) = (self.client(), self.partition.dir);
        let file = crate::at_site::FILE;
        let made = client.create(&op(client), dir, name.as_bytes(), &file, false, true).unwrap();
        client.write(&op(client), made.attr.ino, 0, bytes, false).unwrap();
        client.close(made.attr.ino);
    }

    fn flush(&self, name: &str, force: bool) -> FsResult<()> {
        let (client, dir) = (self.client(), self.partition.dir);
        let attr = client.lookup(dir, name.as_bytes())?;
        let seen = client.site.seen_names(dir)?.get(name.as_bytes()).cloned();
        client.site.flush(&TreeEntry { attr, dir, path: name.into() }, seen, force).map(drop)
    }
}

/// Two jobs on one source: of what both write one whole version is there, and who came second knows.
#[test]
fn of_two_formations_that_flush_one_file_at_the_same_time_one_is_told() {
    let camp = Camp::new(|site| {
        (0..6).for_each(|file| fs::write(site.join(format!("old{file}")), "old").unwrap());
    });
    let other = Other::new(camp.site.path());
    let (ours, theirs) = (bytes(2 * STRIPE + 1, 1), bytes(3 * STRIPE + 5, 2));
    let names: Vec<String> = (0..12).map(|file| format!("{}{file}", ["old", "new"][file / 6])).collect();
    for name in &names {
        camp.write(0, name, &ours);
        other.write(name, &theirs);
    }
    camp.write(1, "mine", b"of the first");
    other.write("yours", b"of the second");
    let start = Barrier::new(2);
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            start.wait();
            camp.flush(0, false)
        });
        start.wait();
        let second: Vec<_> = names.iter().map(|name| other.flush(name, false)).collect();
        (first.join().unwrap(), second)
    });
    for (name, second) in names.iter().zip(&second) {
        let refused = first.iter().find(|(path, ..)| path == name).map(|(_, errno, _)| *errno);
        let there = fs::read(camp.at(name)).unwrap();
        match (refused, second.as_ref().err().map(|error| error.errno())) {
            (Some(Errno::ESTALE), None) => assert!(there == theirs, "{name}"),
            (None, Some(Errno::ESTALE)) => assert!(there == ours, "{name}"),
            outcome => panic!("{name}: {outcome:?}"),
        }
        assert!(camp.read(1, name).unwrap() == ours, "who was refused has its own");
    }
    other.flush("yours", false).unwrap();
    assert_eq!(fs::read(camp.at("mine")).unwrap(), b"of the first");
    assert_eq!(fs::read(camp.at("yours")).unwrap(), b"of the second");
    assert_eq!(temporaries(camp.site.path()), [""; 0]);
    assert_eq!(camp.flush(0, true), []);
    assert!(names.iter().all(|name| fs::read(camp.at(name)).unwrap() == ours));
}

/// S165: room runs out in the middle of a file that is brought, and what takes the room cannot go.
#[test]
fn a_volume_that_fills_in_the_middle_of_a_fetch_harms_nothing() {
    const LARGE: usize = 6 << 20;
    let fill = |site: &Path| {
        fs::write(site.join("mine"), "as it was").unwrap();
        fs::write(site.join("large"), bytes(LARGE, 2)).unwrap();
    };
    let camp = Camp::of(Formation::with_capacity(2, 4096, 6 << 20), fill);
    // Most of both volumes, for good: somebody else has changed it there.
    let mine = bytes(10 << 20, 3);
    camp.write(0, "mine", &mine);
    fs::write(camp.at("mine"), "theirs").unwrap();
    assert_eq!(errnos(&camp.flush(0, false)), [("mine", Errno::ESTALE)]);
    let (client, large) = (camp.client(1), camp.ino(1, "large").unwrap());
    let refused = client.site.bring_file(large).map(|()| camp.read(1, "large").map(drop));
    // Either it did not fit, or what was brought first went again for what came last.
    match refused {
        Err(error) => assert_eq!(error.errno(), Errno::ENOSPC, "{error}"),
        Ok(read) => read.unwrap(),
    }
    let mut whole = vec![0; LARGE];
    let read = client.read(large, 0, &mut whole);
    assert!(
        matches!(&read, Err(error) if error.errno() == Errno::ENOSPC) || whole == bytes(LARGE, 2),
        "{read:?}"
    );
    assert!(camp.read(0, "mine").unwrap() == mine, "what is only here is here");
    assert_eq!(fs::read(camp.at("mine")).unwrap(), b"theirs");
    for at in (0..LARGE).step_by(3 * STRIPE) {
        let mut part = vec![0; 100];
        client.read(large, at as u64, &mut part).unwrap();
        assert!(part == bytes(LARGE, 2)[at..at + 100], "piece by piece there is room for it");
    }
    assert_eq!(camp.flush(0, true), []);
    assert!(camp.read(1, "large").unwrap() == bytes(LARGE, 2));
    assert!(camp.read(0, "mine").unwrap() == mine);
    assert!(fs::read(camp.at("mine")).unwrap() == mine);
    assert!(camp.is_saved());
}

/// S165: what takes the room is of no source, so nothing that is flushed makes any.
#[test]
fn what_does_not_fit_beside_files_of_no_source_is_refused() {
    let camp = Camp::of(Formation::with_capacity(2, 4096, 6 << 20), |_| {});
    let client = camp.client(0);
    let fill = client.create(&op(client), Ino::ROOT, b"fill", &FILE, true, false).unwrap().attr.ino;
    let mut written = 0;
    // With few writes: what their records take of the room is given back later.
    for block in [bytes(1 << 16, 1), bytes(4096, 1)] {
        while let Ok(len) = client.write(&op(client), fill, written, &block, false) {
            written += len as u64;
        }
    }
    let dir = camp.ino(0, "").unwrap();
    let made = client.create(&op(client), dir, b"late", &FILE, true, false).unwrap().attr.ino;
    let refused = client.write(&op(client), made, 0, &bytes(400 << 10, 2), false).unwrap_err();
    assert_eq!(refused.errno(), Errno::ENOSPC, "{refused}");
    client.close(made);
    client.unlink(&op(client), Ino::ROOT, b"fill").unwrap();
    client.close(fill);
    camp.write(0, "late", &bytes(400 << 10, 2));
    assert_eq!(camp.flush(0, false), []);
    camp.check_same_at(1, "late");
}

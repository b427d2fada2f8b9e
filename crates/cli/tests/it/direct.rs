//! Local direct access: processes that read and write subfiles themselves, against everything that must not
//! meet their accesses.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::harness::library::{create, ctx, cut, library, open, read, served, write};
use crate::harness::random::Random;
use crate::harness::{Camp, signal, wait_until};
use bivouac_client::{Client, NewInode, SetAttr};
use bivouac_types::{Errno, Ino, mode};
use rustix::process::Signal;

const STRIPE: usize = 64 << 10;
/// Of the process that the test which kills starts.
const CHILD_OF: &str = "BIVOUAC_TEST_DIRECT_CHILD";

fn camp(nodes: &str) -> Option<Camp> {
    Camp::start(&["--nodes", nodes, "--stripe", "64k", "--deaths-max", "99/1ms"])
}

#[test]
fn what_is_read_and_written_directly_is_what_everybody_sees() {
    let Some(camp) = camp("3") else { return };
    let (client, other) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&client, "file");
    let (mut random, mut model) = (Random::new(7), vec![0; 40 * STRIPE]);
    for _ in 0..400 {
        let offset = random.below(model.len() - 3 * STRIPE);
        let len = 1 + random.below(3 * STRIPE);
        let data = random.bytes(len);
        write(&client, ino, offset, &data);
        model[offset..offset + len].copy_from_slice(&data);
        let from = random.below(model.len() - STRIPE);
        let seen = read(&client, ino, from, STRIPE);
        assert_eq!(seen, model[from..from + seen.len()]);
    }
    assert!(served(&client, "GrantDirect") > 0);
    assert!(served(&client, "Write") < 200, "{} of 400 writes were messages", served(&client, "Write"));
    let size = client.getattr(ino).unwrap().size as usize;
    assert_eq!(fs::read(camp.mount().join("file")).unwrap(), model[..size]);
    open(&other, ino);
    assert_eq!(read(&other, ino, 0, model.len()), model[..size]);
    // The mount's own writes are seen by who had access before.
    let file = fs::OpenOptions::new().write(true).open(camp.mount().join("file")).unwrap();
    file.write_all_at(b"by the mount", 100).unwrap();
    assert_eq!(read(&client, ino, 100, 12), b"by the mount");
    for client in [&client, &other] {
        client.close(ino);
    }
    drop((client, other, file));
    camp.down();
}

/// S3, S4 and S120.
#[test]
fn nobody_sees_half_of_a_write() {
    let Some(camp) = camp("1") else { return };
    let clients: Vec<Client> = (0..3).map(|_| library(&camp.dir())).collect();
    let ino = create(&clients[0], "file");
    write(&clients[0], ino, 0, &[0; STRIPE]);
    clients[1..].iter().for_each(|client| open(client, ino));
    let mounted = fs::File::open(camp.mount().join("file")).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (writers, reader) = clients.split_at(2);
        let (done, reader) = (&done, &reader[0]);
        scope.spawn(move || {
            scopeguard::defer! { done.store(true, Ordering::Relaxed) }
            let uniform = |bytes: &[u8]| bytes.len() == STRIPE && bytes.iter().all(|byte| *byte == bytes[0]);
            let mut through_mount = vec![0; STRIPE];
            for turn in 0..3000 {
                assert!(uniform(&read(reader, ino, 0, STRIPE)), "torn for another process");
                assert!(uniform(&read(&writers[0], ino, 0, STRIPE)), "torn in the same process");
                if turn % 100 == 0 {
                    mounted.read_exact_at(&mut through_mount, 0).unwrap();
                    assert!(uniform(&through_mount), "torn through the mount");
                }
            }
        });
        for (client, start) in writers.iter().zip([0u8, 128]) {
            scope.spawn(move || {
                for turn in (0..100u8).cycle() {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    write(client, ino, 0, &[start + turn; STRIPE]);
                }
            });
        }
    });
    clients.iter().for_each(|client| client.close(ino));
}

#[test]
fn a_cut_takes_everything_behind_it_and_nothing_that_comes_after() {
    let Some(camp) = camp("2") else { return };
    let (writer, cutter) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&writer, "file");
    open(&cutter, ino);
    // What the writer wrote last, and how often: every write is of one byte value over six stripes.
    let turn = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scopeguard::defer! { done.store(true, Ordering::Relaxed) }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let next = turn.load(Ordering::Relaxed) + 1;
                write(&writer, ino, 0, &[1 + (next % 200) as u8; 6 * STRIPE]);
                turn.store(next, Ordering::Relaxed);
                // No cut was finished after this write began that it did not survive or come after.
            }
        });
        for round in 0..60 {
            wait_until("the writer writes", || turn.load(Ordering::Relaxed) > round);
            cut(&cutter, ino, (round as u64 % 5) * STRIPE as u64 / 2);
        }
    });
    write(&writer, ino, 0, &[250; 6 * STRIPE]);
    assert_eq!(read(&cutter, ino, 0, 7 * STRIPE), [250; 6 * STRIPE], "a later write is whole");
    cut(&cutter, ino, 100);
    cut(&cutter, ino, 6 * STRIPE as u64);
    let seen = read(&writer, ino, 0, 6 * STRIPE);
    assert!(seen[..100].iter().all(|byte| *byte == 250) && seen[100..].iter().all(|byte| *byte == 0));
    write(&writer, ino, 2 * STRIPE, b"after the cut");
    assert_eq!(read(&cutter, ino, 2 * STRIPE, 13), b"after the cut");
    [writer, cutter].iter().for_each(|client| client.close(ino));
}

#[test]
fn what_was_written_survives_kills_of_the_daemon() {
    let Some(camp) = camp("2") else { return };
    let client = library(&camp.dir());
    let ino = create(&client, "file");
    let (mut random, mut model) = (Random::new(11), vec![0; 16 * STRIPE]);
    write(&client, ino, 0, &model);
    for round in 0..6 {
        for _ in 0..50 {
            let offset = random.below(model.len() - STRIPE);
            let len = 1 + random.below(STRIPE);
            let data = random.bytes(len);
            write(&client, ino, offset, &data);
            model[offset..offset + len].copy_from_slice(&data);
        }
        if round < 5 {
            camp.kill_node(round % 2);
        }
        assert_eq!(read(&client, ino, 0, model.len()), model, "round {round}");
    }
    assert_eq!(fs::read(camp.mount().join("file")).unwrap(), model);
    client.close(ino);
    drop(client);
    camp.down();
}

#[test]
fn writers_in_several_processes_fill_one_file() {
    let Some(camp) = camp("1") else { return };
    let clients: Vec<Client> = (0..3).map(|_| library(&camp.dir())).collect();
    let ino = create(&clients[0], "file");
    clients[1..].iter().for_each(|client| open(client, ino));
    let expected: Vec<u8> = (0..90 * 5000usize).map(|at| (at / 5000 % 251) as u8).collect();
    std::thread::scope(|scope| {
        for (rank, client) in clients.iter().enumerate() {
            let expected = &expected;
            scope.spawn(move || {
                for block in (rank..90).step_by(3) {
                    write(client, ino, block * 5000, &expected[block * 5000..][..5000]);
                }
            });
        }
    });
    assert_eq!(fs::read(camp.mount().join("file")).unwrap(), expected);
    clients.iter().for_each(|client| assert_eq!(read(client, ino, 0, expected.len()), expected));
    clients.iter().for_each(|client| client.close(ino));
}

/// Not a test: the process that the next ones kill and stop. It writes for ever.
#[test]
fn a_process_that_writes_for_ever() {
    let Ok(dir) = std::env::var(CHILD_OF) else { return };
    let client = library(dir.as_ref());
    let ino = client.resolve(b"file").unwrap().ino;
    open(&client, ino);
    for turn in (1..=200u8).cycle() {
        write(&client, ino, 0, &[turn; STRIPE]);
    }
}

fn child(camp: &Camp) -> Child {
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(this);
    command.args(["--exact", "direct::a_process_that_writes_for_ever"]).env(CHILD_OF, camp.dir());
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

#[test]
fn a_killed_process_is_in_nobody_s_way() {
    let Some(camp) = camp("1") else { return };
    let client = library(&camp.dir());
    let ino = create(&client, "file");
    write(&client, ino, 0, &[0; STRIPE]);
    for _ in 0..8 {
        let before = served(&client, "GrantDirect");
        let mut child = child(&camp);
        wait_until("the process writes by itself", || served(&client, "GrantDirect") > before);
        child.kill().unwrap();
        child.wait().unwrap();
        // In the middle of a write or not: all of it is there or nothing. Nobody is held up.
        assert_eq!(read(&client, ino, 0, STRIPE).len(), STRIPE);
        // A last message may have been on its way.
        wait_until("it is over", || {
            write(&client, ino, 0, &[250; STRIPE]);
            let seen = fs::read(camp.mount().join("file")).unwrap();
            assert!(seen.iter().all(|byte| *byte == seen[0]) && seen.len() == STRIPE);
            seen[0] == 250
        });
    }
    client.close(ino);
    let used = || camp.status()["nodes"][0]["volumes"][0]["used_bytes"].as_u64().unwrap();
    wait_until("what they were promised is free again", || used() < 1 << 20);
}

#[test]
fn a_stopped_process_holds_up_its_file_for_a_bounded_time_and_loses_nothing() {
    let Some(camp) = camp("1") else { return };
    let client = library(&camp.dir());
    let ino = create(&client, "file");
    write(&client, ino, 0, &[0; STRIPE]);
    let before = served(&client, "GrantDirect");
    let mut child = child(&camp);
    let pid = u64::from(child.id());
    wait_until("the process writes by itself", || served(&client, "GrantDirect") > before);
    signal(pid, Signal::STOP);
    // Either it stood outside, and the cut is made, or inside, and it is refused until the process goes on.
    let cut_to = SetAttr { size: Some(10), ..SetAttr::default() };
    let outcome = client.setattr(&ctx(&client), ino, &cut_to);
    if let Err(error) = outcome {
        assert_eq!(error.errno(), Errno::EIO, "{error}");
    }
    // Another file is not concerned.
    let other = create(&client, "other");
    write(&client, other, 0, b"free");
    assert_eq!(read(&client, other, 0, 9), b"free");
    signal(pid, Signal::CONT);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the cut is made", || client.setattr(&ctx(&client), ino, &cut_to).is_ok());
    assert!(client.getattr(ino).unwrap().size <= STRIPE as u64);
    cut(&client, ino, 0);
    cut(&client, ino, STRIPE as u64);
    assert_eq!(read(&client, ino, 0, STRIPE), [0; STRIPE], "nothing comes back");
    [ino, other].iter().for_each(|ino| client.close(*ino));
}

#[test]
fn a_full_volume_refuses_the_write_that_does_not_fit() {
    let dir = tempfile::Builder::new().prefix("bvk").tempdir().unwrap();
    let volume = format!("{}:8m", dir.path().display());
    let Some(camp) = Camp::start(&["--volume", &volume, "--stripe", "64k"]) else { return };
    let client = library(&camp.dir());
    let (a, b) = (create(&client, "a"), create(&client, "b"));
    let chunk: Vec<u8> = Random::new(3).bytes(48_000);
    let mut sizes = [0; 2];
    let mut full = false;
    while !full {
        for (ino, size) in [a, b].into_iter().zip(&mut sizes) {
            match client.write(&ctx(&client), ino, *size as u64, &chunk, false) {
                Ok(_) => *size += chunk.len(),
                Err(error) => {
                    assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
                    full = true;
                }
            }
        }
    }
    let total: usize = sizes.iter().sum();
    // A part of the volume is kept for records.
    let kept = (8 << 20) / 16;
    assert!(
        total > (8 << 20) - kept - 4 * 65_536 && total <= (8 << 20) - kept,
        "{total} bytes fitted into 8 MiB"
    );
    for (ino, size) in [a, b].into_iter().zip(sizes) {
        let content = read(&client, ino, 0, size + chunk.len());
        assert_eq!(content.len(), size);
        assert!(content.chunks(chunk.len()).all(|part| part == chunk));
        client.close(ino);
    }
    client.unlink(&ctx(&client), Ino::ROOT, b"a").unwrap();
    let again = create(&client, "c");
    write(&client, again, 0, &chunk);
    write(&client, again, chunk.len(), &chunk);
    client.close(again);
    drop(client);
    camp.down();
}

#[test]
fn names_get_the_room_that_writers_were_promised_and_do_not_use() {
    let dir = tempfile::Builder::new().prefix("bvk").tempdir().unwrap();
    let volume = format!("{}:4m", dir.path().display());
    let Some(camp) = Camp::start(&["--volume", &volume, "--stripe", "64k"]) else { return };
    let client = library(&camp.dir());
    // Each has a window of an eighth of what the others left.
    let files: Vec<Ino> = (0..30).map(|i| create(&client, &format!("f{i}"))).collect();
    for (ino, at) in files.iter().flat_map(|ino| [(ino, 0), (ino, 10)]) {
        write(&client, *ino, at, b"0123456789");
    }
    let target = vec![b'x'; 4000];
    let link = NewInode { mode: mode::LINK | 0o777, rdev: 0, target: &target };
    let make = |i: usize| client.mknod(&ctx(&client), Ino::ROOT, format!("l{i}").as_bytes(), &link);
    let made = (0..2000).take_while(|i| match make(*i) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
            false
        }
    });
    let made = made.count();
    assert!(made > 600 && made < 1000, "{made} links with 4 KB each fitted beside 240 KB in 4 MiB");
    files.iter().for_each(|ino| client.close(*ino));
    drop(client);
    camp.down();
}

/// S13, S17, S19, S27.
#[test]
fn space_changes_beside_a_process_that_writes() {
    const PUNCH: u32 = 3;
    const ZERO: u32 = 16;
    let Some(camp) = Camp::start(&["--stripe", "64k"]) else { return };
    let (writer, other) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&writer, "f");
    open(&other, ino);
    write(&writer, ino, 0, &vec![1; 2 * STRIPE]);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        // Writes all of the first stripe, again and again, and looks at what it wrote.
        let writes = threads.spawn(|| {
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let content = vec![round as u8; STRIPE];
                write(&writer, ino, 0, &content);
                assert_eq!(read(&writer, ino, 0, STRIPE), content, "in round {round}");
                rounds.store(round, Ordering::Relaxed);
            }
            round as u8
        });
        let end = 2 * STRIPE as u64;
        scopeguard::defer! { stop.store(true, Ordering::Relaxed) }
        for turn in 0..30u64 {
            let seen = rounds.load(Ordering::Relaxed);
            wait_until("more was written", || rounds.load(Ordering::Relaxed) > seen);
            let mode = if turn % 2 == 0 { PUNCH } else { ZERO };
            other.fallocate(&ctx(&other), ino, mode, STRIPE as u64, STRIPE as u64).unwrap();
            assert_eq!(read(&other, ino, STRIPE, STRIPE), [0; STRIPE], "in turn {turn}");
            let hole = other.seek(ino, 0, bivouac_client::SeekKind::Hole).unwrap();
            // A page that was written and is zeroed may stay data.
            let first = if mode == PUNCH { STRIPE } else { STRIPE + 4096 } as u64;
            assert!((STRIPE as u64..=first).contains(&hole), "the hole is at {hole} in turn {turn}");
            other.fallocate(&ctx(&other), ino, 0, end, 4096 * (turn + 1)).unwrap();
            write(&other, ino, STRIPE, &[9; 100]);
        }
        stop.store(true, Ordering::Relaxed);
        let last = writes.join().unwrap();
        assert_eq!(read(&other, ino, 0, STRIPE), vec![last; STRIPE]);
    });
    assert_eq!(other.getattr(ino).unwrap().size, (2 * STRIPE + 30 * 4096) as u64);
    other.fallocate(&ctx(&other), ino, PUNCH, STRIPE as u64, STRIPE as u64).unwrap();
    [&writer, &other].iter().for_each(|client| client.close(ino));
    assert_eq!(other.getattr(ino).unwrap().holes, STRIPE as u64, "what is reserved is no hole");
    drop((writer, other));
    camp.down();
}

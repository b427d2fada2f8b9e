//! Sizes of files that processes make longer by themselves, as everybody else sees them.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::harness::library::{create, ctx, cut, library, open, read, served, write};
use crate::harness::{Camp, signal, wait_until};
use bivouac_client::{Client, SetAttr};
use bivouac_types::{Ino, Timestamp};
use rustix::process::Signal;

const BLOCK: usize = 4096;
/// Of the process that the test which kills starts: the formation's directory, and where to say how far it is.
const CHILD_OF: &str = "BIVOUAC_TEST_SIZES_CHILD";
const CHILD_SAYS: &str = "BIVOUAC_TEST_SIZES_SAYS";

fn camp(nodes: &str) -> Option<Camp> {
    Camp::start(&["--nodes", nodes, "--stripe", "64k", "--deaths-max", "99/1ms"])
}

fn block(number: usize) -> [u8; BLOCK] {
    [1 + (number % 250) as u8; BLOCK]
}

/// Makes a file longer by some blocks.
fn grow(client: &Client, ino: Ino, blocks: std::ops::Range<usize>) {
    blocks.for_each(|number| write(client, ino, number * BLOCK, &block(number)));
}

fn size(client: &Client, ino: Ino) -> usize {
    client.getattr(ino).unwrap().size as usize
}

/// S1, S2, S20 and S32.
#[test]
fn a_size_that_is_lent_is_seen_at_once_by_everybody() {
    let Some(camp) = camp("2") else { return };
    let (writer, other) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&writer, "file");
    open(&other, ino);
    let path = camp.mount().join("file");
    // The kernel believes what it is told for as long as nobody may change it.
    fs::metadata(&path).unwrap();
    let mut last = Timestamp::default();
    for number in 0..200 {
        write(&writer, ino, number * BLOCK, &block(number));
        let end = (number + 1) * BLOCK;
        let seen = fs::metadata(&path).unwrap();
        assert_eq!((size(&other, ino), seen.len() as usize), (end, end));
        assert_eq!(read(&other, ino, number * BLOCK, 2 * BLOCK), block(number));
        let told = other.getattr(ino).unwrap().mtime;
        assert!(told > last, "each growth has its time");
        assert_eq!((seen.mtime(), seen.mtime_nsec()), (told.secs, i64::from(told.nanos)));
        last = told;
    }
    let extends: u64 = [0, 1].map(|node| served_by(&writer, node, "Extend")).iter().sum();
    assert!(extends < 10, "{extends} of 200 growths were messages");
    writer.close(ino);
    assert_eq!(size(&other, ino), 200 * BLOCK);
    other.close(ino);
    drop((writer, other));
    camp.down();
}

fn served_by(client: &Client, node: u16, operation: &str) -> u64 {
    let operations = client.nodes().status(bivouac_types::NodeId(node)).unwrap().operations;
    operations.iter().find(|count| count.name == operation).map_or(0, |count| count.client)
}

/// S30, S34.
#[test]
fn what_is_set_is_not_undone_by_what_was_told_before() {
    let Some(camp) = camp("1") else { return };
    let (writer, other) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&writer, "file");
    grow(&writer, ino, 0..20);
    let time = Timestamp { secs: 1_000_000, nanos: 7 };
    let set =
        SetAttr { mtime: Some(bivouac_types::SetTime::At(time)), mode: Some(0o4755), ..SetAttr::default() };
    other.setattr(&ctx(&other), ino, &set).unwrap();
    let attr = other.getattr(ino).unwrap();
    assert_eq!((attr.mtime, attr.mode & 0o7777, attr.size as usize), (time, 0o4755, 20 * BLOCK));
    grow(&writer, ino, 20..21);
    let attr = other.getattr(ino).unwrap();
    assert!(attr.mtime > time && attr.mode & 0o7777 == 0o755, "a growth after that counts");
    writer.close(ino);
    assert_eq!(other.getattr(ino).unwrap().size as usize, 21 * BLOCK);
}

/// S1, S2.
#[test]
fn what_was_told_survives_kills_of_the_daemon() {
    let Some(camp) = camp("1") else { return };
    let (writer, other) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&writer, "file");
    let mut blocks = 0;
    for round in 0..3 {
        wait_until("its size is lent", || {
            grow(&writer, ino, blocks..blocks + 1);
            blocks += 1;
            served(&other, "LendSize") > 0
        });
        grow(&writer, ino, blocks..blocks + 10);
        blocks += 10;
        camp.kill_node(0);
        assert_eq!(size(&other, ino), blocks * BLOCK, "round {round}");
    }
    let content = fs::read(camp.mount().join("file")).unwrap();
    assert!(content.chunks(BLOCK).enumerate().all(|(number, bytes)| bytes == block(number)));
    writer.close(ino);
    drop((writer, other));
    camp.down();
}

/// Not a test: the process that the next one kills. It makes a file longer for ever, and says how far it is.
#[test]
fn a_process_that_makes_a_file_longer() {
    let (Some(dir), Some(says)) = (std::env::var_os(CHILD_OF), std::env::var_os(CHILD_SAYS)) else { return };
    let client = library(Path::new(&dir));
    let ino = client.resolve(b"file").unwrap().ino;
    open(&client, ino);
    let says = fs::OpenOptions::new().write(true).open(PathBuf::from(says)).unwrap();
    for number in 0..100_000 {
        write(&client, ino, number * BLOCK, &block(number));
        says.write_all_at(&(number + 1).to_le_bytes(), 0).unwrap();
    }
}

/// S2.
#[test]
fn what_a_killed_process_told_survives_it_and_the_daemon() {
    let Some(camp) = camp("1") else { return };
    let client = library(&camp.dir());
    let says = tempfile::NamedTempFile::new().unwrap();
    let said = || fs::read(says.path()).unwrap().try_into().map_or(0, usize::from_le_bytes);
    for daemon_too in [false, true, true] {
        let ino = create(&client, "file");
        client.close(ino);
        says.as_file().set_len(0).unwrap();
        let before = served(&client, "LendSize");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "sizes::a_process_that_makes_a_file_longer"])
            .stdout(std::process::Stdio::null());
        let mut child = command.env(CHILD_OF, camp.dir()).env(CHILD_SAYS, says.path()).spawn().unwrap();
        wait_until("it tells sizes by itself", || served(&client, "LendSize") > before && said() > 100);
        if daemon_too {
            // The daemon first: it never hears that the process is gone.
            let pid = camp.node_pid(0);
            signal(pid, Signal::STOP);
            child.kill().unwrap();
            child.wait().unwrap();
            signal(pid, Signal::KILL);
        } else {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let (told, seen) = (said() * BLOCK, size(&client, ino));
        assert!(seen == told || seen == told + BLOCK, "{told} bytes were written, {seen} are seen");
        let content = fs::read(camp.mount().join("file")).unwrap();
        assert_eq!(content.len(), seen);
        assert!(content.chunks(BLOCK).enumerate().all(|(number, bytes)| bytes == block(number)));
        client.unlink(&ctx(&client), Ino::ROOT, b"file").unwrap();
    }
    drop(client);
    camp.down();
}

/// S7, S9.
#[test]
fn a_cut_is_between_growths() {
    let Some(camp) = camp("1") else { return };
    let (writer, cutter) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&writer, "file");
    open(&cutter, ino);
    let (blocks, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut last = 0;
    std::thread::scope(|threads| {
        let writes = threads.spawn(|| {
            // Again from the start now and then: a cut leaves room for more of them.
            for number in 0..usize::MAX {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                write(&writer, ino, number % 64 * BLOCK, &block(number));
                blocks.store(number + 1, Ordering::Release);
            }
        });
        for _ in 0..40 {
            let before = blocks.load(Ordering::Acquire);
            wait_until("more is written", || blocks.load(Ordering::Acquire) > before + 20);
            let before = blocks.load(Ordering::Acquire);
            cut(&cutter, ino, 0);
            let content = read(&cutter, ino, 0, 64 * BLOCK);
            last = blocks.load(Ordering::Acquire) + 1;
            // What there is, is zeros or was written by the writes that were not finished before the cut.
            for (place, bytes) in content.chunks(BLOCK).enumerate() {
                let mut later = (before..last).filter(|number| number % 64 == place);
                let is_zeros = bytes.iter().all(|byte| *byte == 0);
                assert!(
                    is_zeros || later.any(|number| bytes == &block(number)[..bytes.len()]),
                    "{place} came back"
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
        writes.join().unwrap();
    });
    let total = blocks.load(Ordering::Acquire);
    let content = read(&cutter, ino, 0, 64 * BLOCK);
    for number in (last + 1..total).rev().take(64) {
        assert_eq!(content[number % 64 * BLOCK..][..BLOCK], block(number), "write {number} is lost");
    }
    [&writer, &cutter].iter().for_each(|client| client.close(ino));
    drop((writer, cutter));
    camp.down();
}

/// S5.
#[test]
fn an_append_goes_behind_what_was_told() {
    let Some(camp) = camp("1") else { return };
    let (writer, other) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&writer, "file");
    open(&other, ino);
    let mut expected = Vec::new();
    for round in 0..20u8 {
        for part in 0..5u8 {
            let bytes = [round, part, 1, 2, 3];
            write(&writer, ino, expected.len(), &bytes);
            expected.extend(bytes);
        }
        other.write(&ctx(&other), ino, 0, b"append", true).unwrap();
        expected.extend(b"append");
        // A second process that makes the same file longer.
        for part in 0..5u8 {
            write(&other, ino, expected.len(), &[round, part]);
            expected.extend([round, part]);
        }
        // Who has not heard of it finds the end by looking.
        assert_eq!(size(&writer, ino), expected.len());
    }
    assert_eq!(fs::read(camp.mount().join("file")).unwrap(), expected);
    [&writer, &other].iter().for_each(|client| client.close(ino));
    assert_eq!(read(&library(&camp.dir()), ino, 0, expected.len() + 1), expected);
    drop((writer, other));
    camp.down();
}

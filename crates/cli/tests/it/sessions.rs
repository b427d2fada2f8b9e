//! The session contract on real formations: what is written behind arrives, over kills and full volumes, and costs few
//! messages.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crate::harness::random::Random;
use crate::harness::{Camp, wait_until};

/// A formation with mounts through all nodes, and in it a partition with the session contract over these nodes.
fn camp_with(arguments: &[&str], targets_on: &str) -> Option<Camp> {
    let camp = Camp::start_each(arguments)?;
    let dir = camp.mount().join("s");
    let create =
        ["partition", "create", dir.to_str().unwrap(), "--contract", "session", "--nodes", targets_on];
    camp.place().run(&[&create[..], &["--stripe", "64k"]].concat()).succeeds();
    Some(camp)
}

fn at(camp: &Camp, mount: usize, name: &str) -> PathBuf {
    camp.mounts()[mount].join("s").join(name)
}

fn both() -> OpenOptions {
    OpenOptions::new().read(true).write(true).clone()
}

/// How often the nodes were asked for this.
fn count(camp: &Camp, op: &str) -> u64 {
    let status = camp.status();
    let of = |node: &serde_json::Value| {
        let ops = node["operations"].as_array().unwrap();
        ops.iter().filter(|one| one["name"] == op).map(|one| one["client"].as_u64().unwrap()).sum::<u64>()
    };
    status["nodes"].as_array().unwrap().iter().map(of).sum()
}

/// S200, S201.
#[test]
fn what_was_closed_or_synced_is_seen_by_who_opens_then() {
    let Some(camp) = camp_with(&["--nodes", "2"], "1,0") else { return };
    let content = Random::new(1).bytes(300_000);
    let mut file = File::create(at(&camp, 0, "f")).unwrap();
    for (turn, piece) in content.chunks(4096).enumerate() {
        file.write_all(piece).unwrap();
        assert_eq!(file.stream_position().unwrap(), (turn * 4096 + piece.len()) as u64);
    }
    assert_eq!(file.metadata().unwrap().len(), content.len() as u64, "the writer sees its own size");
    let mut again = File::open(at(&camp, 0, "f")).unwrap();
    let mut seen = vec![0; content.len()];
    again.read_exact(&mut seen).unwrap();
    assert!(seen == content, "so does every program of the mount");
    file.sync_all().unwrap();
    assert!(std::fs::read(at(&camp, 1, "f")).unwrap() == content, "after fsync");
    file.write_all_at(b"changed", 70_000).unwrap();
    let mut changed = content.clone();
    changed[70_000..70_007].copy_from_slice(b"changed");
    drop(file);
    // What is open keeps its copies; what is opened now does not.
    assert!(std::fs::read(at(&camp, 1, "f")).unwrap() == changed, "after close");
    let names = |mount: usize| std::fs::metadata(at(&camp, mount, "f")).unwrap();
    assert_eq!((names(0).len(), names(0).mtime_nsec()), (names(1).len(), names(1).mtime_nsec()));
    camp.down();
}

/// S208.
#[test]
fn two_nodes_write_into_one_page_and_lose_nothing() {
    let Some(camp) = camp_with(&["--nodes", "2"], "0,1") else { return };
    let mut files: Vec<File> = Vec::new();
    for mount in 0..2 {
        files.push(both().create(true).truncate(false).open(at(&camp, mount, "f")).unwrap());
    }
    let content = Random::new(2).bytes(200_000);
    for (turn, piece) in content.chunks(100).enumerate() {
        files[turn % 2].write_all_at(piece, turn as u64 * 100).unwrap();
    }
    drop(files);
    for mount in 0..2 {
        assert!(std::fs::read(at(&camp, mount, "f")).unwrap() == content);
    }
    camp.down();
}

/// S209, S201.
#[test]
fn mappings_and_calls_of_one_mount_agree() {
    let Some(camp) = camp_with(&["--nodes", "2"], "1,0") else { return };
    let script = "import mmap, os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)\n\
        os.ftruncate(fd, 300000)\n\
        m = mmap.mmap(fd, 300000)\n\
        for turn in range(200):\n\
        \x20   at = turn * 1499\n\
        \x20   os.pwrite(fd, b'call', at)\n\
        \x20   assert m[at:at + 4] == b'call', turn\n\
        \x20   m[at + 10:at + 13] = b'map'\n\
        \x20   assert os.pread(fd, 13, at) == b'call' + bytes(6) + b'map', turn\n\
        m.close()\n\
        os.close(fd)\n";
    let mut python = Command::new("python3");
    let Ok(said) = python.args(["-c", script]).arg(at(&camp, 0, "f")).output() else {
        println!("skipped: python3 is not installed");
        return;
    };
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let seen = std::fs::read(at(&camp, 1, "f")).unwrap();
    for turn in 0..200 {
        let at = turn * 1499;
        assert_eq!(seen[at..at + 13], *b"call\0\0\0\0\0\0map", "{turn}");
    }
    camp.down();
}

/// S204: a message costs more than the bytes in it.
#[test]
fn small_calls_at_a_remote_target_are_few_messages() {
    let Some(camp) = camp_with(&["--nodes", "2"], "1,") else { return };
    const LEN: usize = 64 << 20;
    let block: Vec<u8> = Random::new(3).bytes(1 << 20);
    let mut file = File::create(at(&camp, 0, "f")).unwrap();
    let writes = count(&camp, "Write") + count(&camp, "AccessList");
    let begun = Instant::now();
    for _ in 0..LEN >> 20 {
        block.chunks(4096).for_each(|piece| file.write_all(piece).unwrap());
    }
    drop(file);
    // What rests for 50 ms goes by itself: how often that can be depends on how long the writes take.
    let rests = begun.elapsed().as_millis() as u64 / 50;
    let writes = count(&camp, "Write") + count(&camp, "AccessList") - writes;
    assert!(writes <= LEN as u64 / 4096 / 32 + rests, "{writes} messages for {} writes", LEN / 4096);
    let reads = count(&camp, "Read");
    let mut file = File::open(at(&camp, 0, "f")).unwrap();
    let mut piece = [0; 4096];
    for turn in 0..LEN / 4096 {
        file.read_exact(&mut piece).unwrap();
        let start = turn * 4096 % block.len();
        assert!(piece == block[start..start + 4096], "at {turn}");
    }
    let sequential = count(&camp, "Read") - reads;
    assert!(sequential <= 64, "{sequential} messages for {} reads", LEN / 4096);
    let (reads, lists) = (count(&camp, "Read"), count(&camp, "AccessList"));
    let mut piece = vec![0; 64 << 10];
    for turn in 0..LEN / (8 * piece.len()) {
        file.seek(SeekFrom::Start((turn * 8 * piece.len()) as u64)).unwrap();
        file.read_exact(&mut piece).unwrap();
        let start = turn * 8 * piece.len() % block.len();
        assert!(piece == block[start..start + piece.len()]);
    }
    let strided = count(&camp, "Read") - reads + count(&camp, "AccessList") - lists;
    assert!(strided <= 24, "{strided} messages for {} reads", LEN / (8 * piece.len()));
    camp.down();
}

/// S203: bytes, not time.
#[test]
fn the_pool_keeps_to_its_size() {
    let Some(camp) = camp_with(&["--nodes", "2", "--page-pool", "4m"], "1,") else { return };
    let content = Random::new(4).bytes(3 << 20);
    let mut files: Vec<File> = (0..8)
        .map(|index| both().create_new(true).open(at(&camp, 0, &format!("f{index}"))).unwrap())
        .collect();
    for piece in 0..content.len() / 4096 {
        for (index, file) in files.iter_mut().enumerate() {
            let from = (piece * 4096 + index * 8192) % content.len();
            file.write_all(&content[from..from + 4096]).unwrap();
        }
        if piece % 64 == 0 {
            let pool = camp.status()["nodes"][0]["page_pool"].clone();
            assert_eq!(pool["size_bytes"], 4 << 20);
            assert!(pool["used_bytes"].as_u64().unwrap() <= 4 << 20, "{pool}");
            assert!(pool["unsent_bytes"].as_u64() <= pool["used_bytes"].as_u64(), "{pool}");
        }
    }
    drop(files);
    for index in 0..8 {
        let mut expected = content.clone();
        expected.rotate_left(index * 8192);
        assert!(std::fs::read(at(&camp, 1, &format!("f{index}"))).unwrap() == expected, "file {index}");
    }
    wait_until("nobody has them open", || {
        let pool = camp.status()["nodes"][0]["page_pool"].clone();
        pool["unsent_bytes"] == 0 && pool["used_bytes"] == 0
    });
    camp.down();
}

/// S205.
#[test]
fn a_kill_of_any_daemon_loses_nothing_that_was_written_behind() {
    let Some(camp) = camp_with(&["--nodes", "2", "--deaths-max", "1000/1ms"], "1,0") else { return };
    let (content, ends) = (Random::new(5).bytes(6 << 20), AtomicBool::new(false));
    // Calls that have returned. Daemons that live for less than a call takes keep it from ever returning.
    let calls = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scopeguard::defer! { ends.store(true, Ordering::Relaxed) }
        scope.spawn(|| {
            let mut turn = 0;
            while !ends.load(Ordering::Relaxed) {
                let before = calls.load(Ordering::Relaxed);
                camp.kill_node(turn % 2);
                turn += 1;
                while calls.load(Ordering::Relaxed) == before && !ends.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        });
        for round in 0..4 {
            let file = both().create(true).truncate(false).open(at(&camp, 0, "f")).unwrap();
            for (turn, piece) in content.chunks(1000).enumerate() {
                if turn % 4 == round {
                    file.write_all_at(piece, turn as u64 * 1000).unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            }
            let mut seen = vec![0; 1000];
            file.read_exact_at(&mut seen, round as u64 * 1000).unwrap();
            assert!(seen == content[round * 1000..][..1000]);
            drop(file);
            calls.fetch_add(1, Ordering::Relaxed);
        }
    });
    for mount in 0..2 {
        assert!(std::fs::read(at(&camp, mount, "f")).unwrap() == content, "through mount {mount}");
    }
    // Nobody tells the program either if nothing was sent before the kill.
    let file = File::create(at(&camp, 0, "kept")).unwrap();
    file.write_all_at(b"acknowledged", 3).unwrap();
    camp.kill_node(0);
    drop(file);
    assert_eq!(std::fs::read(at(&camp, 1, "kept")).unwrap(), b"\0\0\0acknowledged");
    camp.down();
}

/// Threads of a daemon that send what was written behind.
fn senders(pid: u64) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")));
    names.filter(|name| name.as_ref().is_ok_and(|name| name == "send\n")).count()
}

/// S255, S205: of a program that waits, over a kill of its daemon; and nobody is there to be woken when all has
/// arrived.
#[test]
fn what_was_written_arrives_while_its_program_waits() {
    let Some(camp) = camp_with(&["--nodes", "2"], "1,") else { return };
    let script = "exec 3>\"$1\"; printf behind >&3; read go; printf ' and more' >&3; echo written; cat";
    let mut program = Command::new("sh");
    program.args(["-c", script, "sh"]).arg(at(&camp, 0, "f"));
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let there = |content: &[u8]| std::fs::read(at(&camp, 1, "f")).is_ok_and(|seen| seen == content);
    wait_until("it arrives", || there(b"behind"));
    wait_until("the mount knows", || camp.status()["nodes"][0]["page_pool"]["unsent_bytes"] == 0);
    assert_eq!(camp.status()["nodes"][0]["page_pool"]["sent_bytes"], 6);
    wait_until("its thread has ended", || senders(camp.node_pid(0)) == 0);
    let mut input = program.stdin.take().unwrap();
    input.write_all(b"go\n").unwrap();
    let mut said = [0; 8];
    program.stdout.take().unwrap().read_exact(&mut said).unwrap();
    camp.kill_node(0);
    wait_until("the next daemon sends it", || there(b"behind and more"));
    drop(input);
    assert!(program.wait().unwrap().success());
    camp.down();
}

/// S202.
#[test]
fn a_full_volume_is_said_at_fsync_and_close_and_nothing_is_forgotten() {
    let volumes = tempfile::Builder::new().prefix("bvk").tempdir().unwrap();
    let volume = format!("{}:6m", volumes.path().display());
    let Some(camp) = camp_with(&["--nodes", "1", "--volume", &volume], "0,") else { return };
    std::fs::write(camp.mount().join("ballast"), Random::new(6).bytes(4 << 20)).unwrap();
    let mut content = Random::new(7).bytes(3 << 20);
    let mut file = both().create_new(true).open(at(&camp, 0, "f")).unwrap();
    let full =
        |outcome: std::io::Result<()>| outcome.is_err_and(|error| error.kind() == ErrorKind::StorageFull);
    let accepted = content.chunks(4096).take_while(|piece| match file.write(piece) {
        Ok(len) => len == piece.len(),
        // What is sent beside the program has found it out already.
        Err(error) => !full(Err(error)),
    });
    let accepted = accepted.count() * 4096;
    content.truncate(accepted);
    assert!(full(file.sync_all()), "it is told");
    assert!(full(file.sync_all()), "as long as it is so");
    assert!(!overwrites(&at(&camp, 0, "f")), "by write as well, which is not accepted then");
    let mut seen = vec![0; content.len()];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == content, "what was accepted can still be read");
    std::fs::remove_file(camp.mount().join("ballast")).unwrap();
    wait_until("there is room again", || file.sync_all().is_ok());
    drop(file);
    assert!(overwrites(&at(&camp, 0, "f")));
    content[..4096].fill(0);
    assert!(std::fs::read(at(&camp, 0, "f")).unwrap() == content, "and arrives once there is room");
    camp.down();
}

/// Whether a program that writes a block over the beginning of a file, and closes it, is told that all went well.
fn overwrites(path: &Path) -> bool {
    let (from, to) = ("if=/dev/zero", format!("of={}", path.display()));
    let said = Command::new("dd").args([from, &to, "bs=4096", "count=1", "conv=notrunc"]).output().unwrap();
    said.status.success()
}

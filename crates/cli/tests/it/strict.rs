//! Files under the strict contract: calls of several mounts and programs with the library, over several stripes and
//! nodes, are seen whole, in the order in which they finish, also while daemons are killed.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::library::{cut, library, messages, open, read, write};
use crate::harness::random::Random;
use crate::harness::{Camp, signal, wait_until, wait_within};
use bivouac_client::Client;
use bivouac_types::Ino;
use rustix::process::Signal;

/// Bytes of a region: several stripes, and no round number of them.
const REGION: usize = 5 * 4096 + 123;
const REGIONS: usize = 4;
/// How long programs go on through kills.
const KILLS: usize = 8;
/// What tokens cost in messages.
const TOKENS: [&str; 3] = ["TakeTokens", "ReturnTokens", "ReclaimTokens"];

fn camp(nodes: usize) -> Option<Camp> {
    let nodes = nodes.to_string();
    let camp = Camp::start_each(&["--nodes", &nodes, "--stripe", "4k", "--deaths-max", "99/1ms"])?;
    let dir = camp.mount().join("strict");
    std::fs::create_dir(&dir).unwrap();
    camp.place().ok(&[
        "partition",
        "create",
        dir.to_str().unwrap(),
        "--contract",
        "strict",
        "--stripe",
        "4k",
    ]);
    Some(camp)
}

fn opened(mount: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(mount.join("strict/file")).unwrap()
}

/// What a region has, each of whose bytes tells the version: whole, or it is torn.
fn filled(version: u64) -> Vec<u8> {
    version.to_le_bytes().into_iter().cycle().take(REGION).collect()
}

fn version_of(bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == filled(version), "a region is torn at version {version}");
    version
}

/// The regions of a file. Each has one writer, so that it is known what a reader has to see: `written` is the version
/// that its writer has finished, `begun` the one that it has begun.
struct Regions {
    written: [AtomicU64; REGIONS],
    begun: [AtomicU64; REGIONS],
    stop: AtomicBool,
}

impl Regions {
    fn new(file: &File) -> Regions {
        (0..REGIONS).for_each(|at| file.write_all_at(&filled(1), (at * REGION) as u64).unwrap());
        let ones = || [const { AtomicU64::new(1) }; REGIONS];
        Regions { written: ones(), begun: ones(), stop: AtomicBool::new(false) }
    }

    fn write(&self, at: usize, write: impl Fn(&[u8], u64)) {
        let version = self.written[at].load(Ordering::SeqCst) + 1;
        self.begun[at].store(version, Ordering::SeqCst);
        write(&filled(version), (at * REGION) as u64);
        self.written[at].store(version, Ordering::SeqCst);
    }

    /// Reads some regions by one call: each whole, and not older than it was when the call began.
    fn read(&self, regions: std::ops::Range<usize>, read: impl Fn(&mut [u8], u64)) {
        let before: Vec<u64> = regions.clone().map(|at| self.written[at].load(Ordering::SeqCst)).collect();
        let mut bytes = vec![0; REGION * regions.len()];
        read(&mut bytes, (regions.start * REGION) as u64);
        for ((at, before), bytes) in regions.zip(before).zip(bytes.chunks(REGION)) {
            let (version, begun) = (version_of(bytes), self.begun[at].load(Ordering::SeqCst));
            assert!((before..=begun).contains(&version), "region {at}: {before} <= {version} <= {begun}");
        }
    }

    /// Writers and readers through all mounts, until they are stopped.
    fn exercise<'scope, 'env>(
        &'env self,
        scope: &'scope std::thread::Scope<'scope, 'env>,
        camp: &'env Camp,
        seed: u64,
    ) {
        let mounts = camp.mounts();
        for at in 0..REGIONS {
            scope.spawn(move || {
                let file = opened(&mounts[at % mounts.len()]);
                while !self.stop.load(Ordering::SeqCst) {
                    self.write(at, |data, offset| file.write_all_at(data, offset).unwrap());
                }
            });
            scope.spawn(move || {
                let (file, mut random) =
                    (opened(&mounts[(at + 1) % mounts.len()]), Random::new(seed + at as u64));
                while !self.stop.load(Ordering::SeqCst) {
                    let first = random.below(REGIONS);
                    let last = (first + 1 + random.below(2)).min(REGIONS);
                    self.read(first..last, |into, offset| file.read_exact_at(into, offset).unwrap());
                }
            });
        }
    }

    fn sum(&self) -> u64 {
        self.written.iter().map(|version| version.load(Ordering::SeqCst)).sum()
    }
}

/// S740, S741, S743.
#[test]
fn calls_of_all_mounts_are_seen_whole_and_in_order() {
    let Some(camp) = camp(3) else { return };
    std::fs::write(camp.mount().join("strict/file"), []).unwrap();
    let regions = Regions::new(&opened(camp.mount()));
    let seed = Random::seed();
    std::thread::scope(|scope| {
        scopeguard::defer! { regions.stop.store(true, Ordering::SeqCst) }
        regions.exercise(scope, &camp, seed);
        let begun = regions.sum();
        wait_until("writers have come far", || regions.sum() > begun + 400);
    });
    camp.down();
}

/// S744: daemons of homes, holders and targets are killed while calls are under way.
#[test]
fn kills_tear_no_call() {
    let Some(camp) = camp(3) else { return };
    std::fs::write(camp.mount().join("strict/file"), []).unwrap();
    let regions = Regions::new(&opened(camp.mount()));
    let mut random = Random::new(Random::seed());
    std::thread::scope(|scope| {
        scopeguard::defer! { regions.stop.store(true, Ordering::SeqCst) }
        regions.exercise(scope, &camp, 7);
        for kill in 0..KILLS {
            let begun = regions.sum();
            camp.kill_node(random.below(3));
            // Also those behind what the killed daemon had go on.
            wait_within(Duration::from_secs(60), "all go on", || regions.sum() > begun + 40 + kill as u64);
        }
    });
    camp.down();
}

/// S741, S742: whoever appends, cuts and writes in whole does so one after the other.
#[test]
fn appends_and_truncations_are_calls_like_others() {
    let Some(camp) = camp(2) else { return };
    let path = |mount: &Path| mount.join("strict/file");
    std::fs::write(path(camp.mount()), []).unwrap();
    let left = AtomicU64::new(200);
    std::thread::scope(|scope| {
        for (number, mount) in camp.mounts().iter().enumerate() {
            let left = &left;
            scope.spawn(move || {
                let file = OpenOptions::new().append(true).open(path(mount)).unwrap();
                while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                    let record = [b'a' + number as u8; 10_000];
                    assert_eq!(std::io::Write::write(&mut &file, &record).unwrap(), record.len());
                }
            });
        }
        scope.spawn(|| {
            let file = opened(&camp.mounts()[1]);
            while left.load(Ordering::SeqCst) > 0 {
                let mut bytes = vec![0; 4 << 20];
                let len = file.read_at(&mut bytes[..1 << 20], 0).unwrap();
                assert_eq!(len % 10_000, if len == 1 << 20 { (1 << 20) % 10_000 } else { 0 });
                for record in bytes[..len].chunks(10_000) {
                    assert!(record.iter().all(|byte| byte == &record[0]), "an append is torn");
                }
                file.set_len(0).unwrap();
            }
        });
    });
    camp.down();
}

/// S741, S743: threads of one program with the library take their turns with each other and with mounts, call by call.
#[test]
fn threads_of_a_program_with_the_library_take_their_turns() {
    let Some(camp) = camp(2) else { return };
    let path = camp.mount().join("strict/file");
    std::fs::write(&path, []).unwrap();
    let regions = Regions::new(&opened(camp.mount()));
    let program: Client = library(&camp.dir());
    let ino = Ino(std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap()));
    open(&program, ino);
    std::thread::scope(|scope| {
        let (regions, program) = (&regions, &program);
        scopeguard::defer! { regions.stop.store(true, Ordering::SeqCst) }
        for at in 0..REGIONS {
            scope.spawn(move || {
                while !regions.stop.load(Ordering::SeqCst) {
                    regions.write(at, |data, offset| write(program, ino, offset as usize, data));
                }
            });
            let file = opened(&camp.mounts()[at % 2]);
            scope.spawn(move || {
                while !regions.stop.load(Ordering::SeqCst) {
                    let first = at.min(REGIONS - 2);
                    regions.read(first..first + 2, |into, offset| file.read_exact_at(into, offset).unwrap());
                    regions.read(at..at + 1, |into, offset| {
                        into.copy_from_slice(&read(program, ino, offset as usize, into.len()));
                    });
                }
            });
        }
        let begun = regions.sum();
        wait_until("all have come far", || regions.sum() > begun + 400);
    });
    program.close(ino);
    drop(program);
    camp.down();
}

/// S743, S745: programs with the library take their turn with mounts, and a lone client asks once.
#[test]
fn a_lone_client_takes_tokens_once() {
    let Some(camp) = camp(2) else { return };
    let path = camp.mount().join("strict/file");
    let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
    let program: Client = library(&camp.dir());
    let before = messages(&program, &TOKENS);
    for at in 0..50 {
        file.write_all_at(&[at as u8; 9000], at * 7000).unwrap();
        let mut back = [0; 9000];
        file.read_exact_at(&mut back, at * 7000).unwrap();
        assert_eq!(back, [at as u8; 9000]);
    }
    let taken = messages(&program, &TOKENS);
    assert!(taken <= before + 1, "{} messages of a lone client", taken - before);
    // A program with the library needs what the mount has kept, and gives it back after each call.
    let ino = Ino(std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()));
    open(&program, ino);
    write(&program, ino, 3, &[200; 20_000]);
    assert_eq!(read(&program, ino, 3, 20_000), [200; 20_000]);
    let mut back = [0; 20_000];
    file.read_exact_at(&mut back, 3).unwrap();
    assert_eq!(back, [200; 20_000]);
    program.close(ino);
    drop((program, file));
    camp.down();
}

/// S746: what a mount has read of other nodes it reads again without a message, in order and in steps, until somebody
/// writes it: then it reads that.
#[test]
fn copies_are_read_until_somebody_writes() {
    let Some(camp) = camp(3) else { return };
    let path = |mount: &Path| mount.join("strict/file");
    let len = 4 << 20;
    let mut content = Random::new(9).bytes(len);
    std::fs::write(path(camp.mount()), &content).unwrap();
    let program: Client = library(&camp.dir());
    let (writer, reader) = (opened(camp.mount()), opened(&camp.mounts()[1]));
    let read = |content: &[u8], at: usize, len: usize| {
        let mut into = vec![0; len];
        reader.read_exact_at(&mut into, at as u64).unwrap();
        assert!(into == content[at..at + len], "{len} bytes at {at}");
    };
    let pieces = || (0..len / 4096).map(|piece| piece * 4096);
    let cost = |read: &dyn Fn()| {
        let before = messages(&program, &["Read", "AccessList"]);
        read();
        messages(&program, &["Read", "AccessList"]) - before
    };
    let first = cost(&|| pieces().for_each(|at| read(&content, at, 4096)));
    assert!(first <= 60, "{first} messages for 1,024 reads of three targets");
    let again = cost(&|| pieces().for_each(|at| read(&content, at, 4096)));
    assert_eq!(again, 0, "messages for what has been read before");
    // Another client writes here and there: exactly there copies are dropped.
    for turn in 0..40 {
        let at = turn * 99_991;
        let new = [turn as u8; 13];
        writer.write_all_at(&new, at as u64).unwrap();
        content[at..at + 13].copy_from_slice(&new);
        read(&content, at.saturating_sub(3000), 9000);
    }
    pieces().for_each(|at| read(&content, at, 4096));
    // In steps, by another client that has read nothing yet.
    let strided = opened(&camp.mounts()[2]);
    let cost = cost(&|| {
        for turn in 0..64 {
            let (at, mut into) = (turn << 16, vec![0; 8192]);
            strided.read_exact_at(&mut into, at as u64).unwrap();
            assert!(into == content[at..at + 8192], "at {at}");
        }
    });
    assert!(cost <= 40, "{cost} messages for 64 reads in steps");
    let pool = camp.status()["nodes"][1]["page_pool"].clone();
    assert!(pool["hits"].as_u64().unwrap() > 1000 && pool["unsent_bytes"] == 0, "{pool}");
    drop((writer, reader, strided));
    let used = || camp.status()["nodes"][1]["page_pool"]["used_bytes"].as_u64();
    wait_until("nobody has it open", || used() == Some(0));
    drop(program);
    camp.down();
}

/// S746, S733: copies do not outlive what changes content without tokens: a cut of a file that its client has closed,
/// and another contract.
#[test]
fn copies_do_not_outlive_cuts_and_contracts() {
    let Some(camp) = camp(3) else { return };
    let path = |mount: &Path| mount.join("strict/file");
    let content = Random::new(10).bytes(256 << 10);
    std::fs::write(path(camp.mount()), &content).unwrap();
    let reader = opened(&camp.mounts()[1]);
    let read = || read_in_pieces(&reader, content.len());
    assert!(read() == content && read() == content);
    let writer = || OpenOptions::new().write(true).open(path(camp.mount())).unwrap();
    let program: Client = library(&camp.dir());
    let ino = Ino(std::os::unix::fs::MetadataExt::ino(&reader.metadata().unwrap()));
    cut(&program, ino, 100_000);
    cut(&program, ino, content.len() as u64);
    let mut expected = content.clone();
    expected[100_000..].fill(0);
    assert!(read() == expected && read() == expected, "what was cut off is shown");
    let set = |word: &str| {
        camp.place().ok(&["contract", "set", word, path(camp.mount()).to_str().unwrap()]);
    };
    for turn in 0..6 {
        set(if turn % 2 == 0 { "coherent" } else { "strict" });
        for at in [0, 70_000, 200_000] {
            writer().write_all_at(&[turn; 5], at).unwrap();
            expected[at as usize..at as usize + 5].fill(turn);
        }
        assert!(read() == expected && read() == expected, "what was written in turn {turn} is not shown");
    }
    drop((reader, program));
    camp.down();
}

/// The front of a file, read in pieces as small as pages.
fn read_in_pieces(file: &File, len: usize) -> Vec<u8> {
    let mut into = vec![0; len];
    for (turn, piece) in into.chunks_mut(4096).enumerate() {
        file.read_exact_at(piece, turn as u64 * 4096).unwrap();
    }
    into
}

/// S746: a mount that stood still, and lost its tokens meanwhile, shows nothing that it has read before.
#[test]
fn who_stood_still_shows_no_copies() {
    let options = ["--nodes", "3", "--wait", "6s", "--deaths-max", "99/1ms"];
    let Some(camp) = Camp::start_each(&options) else { return };
    let dir = camp.mount().join("strict");
    let create = ["partition", "create", dir.to_str().unwrap(), "--contract", "strict", "--nodes", "0,"];
    camp.place().ok(&create);
    let path = |mount: &Path| mount.join("strict/file");
    let content = Random::new(11).bytes(256 << 10);
    std::fs::write(path(camp.mount()), &content).unwrap();
    let writer = opened(camp.mount());
    let ino = Ino(std::os::unix::fs::MetadataExt::ino(&writer.metadata().unwrap()));
    // Neither the file's home nor its target stands still.
    let home = library(&camp.dir()).map().home(ino).unwrap();
    let still = if home.0 == 1 { 2 } else { 1 };
    let reader = opened(&camp.mounts()[still]);
    let read = || read_in_pieces(&reader, content.len());
    assert!(read() == content && read() == content);
    let pid = camp.node_pid(still);
    signal(pid, Signal::STOP);
    let mut expected = content.clone();
    {
        scopeguard::defer! { signal(pid, Signal::CONT) }
        for at in [5000, 100_000, 260_000] {
            writer.write_all_at(&[7; 100], at).unwrap();
            expected[at as usize..at as usize + 100].fill(7);
        }
    }
    assert!(read() == expected, "what was read before is shown");
    drop((writer, reader));
    camp.down();
}

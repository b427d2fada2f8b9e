//! Creates, look-ups and listings on records as a node keeps them, for our store and three embedded libraries.
//!
//! `cargo run --release [DIR]` runs every engine in a process of its own, in turn, several times, in a directory below
//! DIR (default /dev/shm), and prints a table of medians. What is acknowledged survives `kill -9` in all of them; nothing is
//! made to survive the host, which on tmpfs nothing could.

mod engines;
mod records;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use engines::Engine;
use records::{CREATES, DIRS, Rng, create, dentry_key_of, entries_prefix, inode_key_of};

const ROUNDS: usize = 3;
const LOOKUPS: u64 = 400_000;
/// Entries and inodes, and the directories.
const RECORDS: f64 = (2 * CREATES + DIRS) as f64;
const NAMES: [&str; 4] = ["bivouac", "redb", "fjall", "lmdb"];
/// CPU is that of all threads of the process: what others do on the machine does not count.
const COLUMNS: [&str; 8] = [
    "creates/s",
    "CPU per create, µs",
    "CPU per look-up, µs",
    "CPU per listed entry, µs",
    "open again, s",
    "CPU of that, s",
    "memory, bytes per record",
    "disk, bytes per record",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [flag, engine, dir] if flag == "--one" => one(engine, Path::new(dir)),
        [flag, engine, dir] if flag == "--again" => again(engine, Path::new(dir)),
        [dir] => all(Path::new(dir)),
        _ => all(Path::new("/dev/shm")),
    }
}

/// Every engine in turn, again and again; the medians.
fn all(base: &Path) {
    let mut seen = vec![vec![Vec::new(); COLUMNS.len()]; NAMES.len()];
    for round in 0..ROUNDS {
        for (engine, name) in NAMES.iter().enumerate() {
            let dir = base.join(format!("bivouac-records-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let text = ["--one", "--again"].map(|step| said(step, name, &dir)).join(" ");
            std::fs::remove_dir_all(&dir).unwrap();
            eprintln!("round {round} {name}: {}", text.trim());
            for (column, figure) in text.split_whitespace().enumerate() {
                seen[engine][column].push(figure.parse::<f64>().unwrap());
            }
        }
    }
    println!("| engine | {} |\n|---|{}", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
    for (name, columns) in NAMES.iter().zip(&mut seen) {
        let medians = columns.iter_mut().map(|figures| {
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        });
        let cells: Vec<String> = medians.map(|m| if m < 100.0 { format!("{m:.2}") } else { format!("{m:.0}") }).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
}

/// The creates of one engine.
fn one(name: &str, dir: &Path) {
    let engine = engines::open(name, dir);
    let made = Spent::during(|| (0..CREATES).for_each(|number| engine.commit(&create(number))));
    println!("{} {}", CREATES as f64 / made.wall, made.cpu * 1e6 / CREATES as f64);
    // Without a goodbye to the engine, as a kill would.
    std::process::abort();
}

/// What a process of its own says: what creates leave of the heap would hide what the records need.
fn said(step: &str, name: &str, dir: &Path) -> String {
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).arg(step).arg(name).arg(dir).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert!(!text.is_empty(), "{step} {name}: {}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The same engine opened again.
fn again(name: &str, dir: &Path) {
    let anonymous = rss_anon();
    let mut engine = None;
    let opened = Spent::during(|| {
        let opened = engine.insert(engines::open(name, dir));
        assert!(opened.get(&dentry_key_of(CREATES - 1)).is_some());
    });
    let memory = rss_anon().saturating_sub(anonymous) as f64 / RECORDS;
    let engine = engine.unwrap();
    let looked = Spent::during(|| lookups(&*engine)).cpu * 1e6 / LOOKUPS as f64;
    let listed = Spent::during(|| listings(&*engine)).cpu * 1e6 / CREATES as f64;
    let disk = disk_bytes(dir) as f64 / RECORDS;
    println!("{looked} {listed} {} {} {memory} {disk}", opened.wall, opened.cpu);
}

/// What something took, in seconds.
struct Spent {
    wall: f64,
    cpu: f64,
}

impl Spent {
    fn during(act: impl FnOnce()) -> Spent {
        let (began, cpu) = (Instant::now(), cpu_seconds());
        act();
        Spent { wall: began.elapsed().as_secs_f64(), cpu: cpu_seconds() - cpu }
    }
}

/// An entry and its inode each.
fn lookups(engine: &dyn Engine) {
    let mut rng = Rng(1);
    for _ in 0..LOOKUPS {
        let number = rng.below(CREATES);
        assert!(engine.get(&dentry_key_of(number)).is_some() && engine.get(&inode_key_of(number)).is_some());
    }
}

fn listings(engine: &dyn Engine) {
    let mut listed = 0;
    for dir in 0..DIRS {
        listed += engine.scan(&entries_prefix(dir));
    }
    assert_eq!(listed, CREATES, "every entry is listed once");
}

/// Memory of this process that is not the cache of files.
fn rss_anon() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split_whitespace().collect();
    // Ticks of a hundredth of a second, in user and in system mode.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.metadata().unwrap() {
            meta if meta.is_dir() => disk_bytes(&entry.path()),
            meta => meta.blocks() * 512,
        })
        .sum()
}

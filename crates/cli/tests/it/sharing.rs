//! What a finished operation did is seen by the very next system call through another node.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::harness::random::Random;
use crate::harness::{Camp, DEADLINE, wait_until, wait_within};
use bivouac_types::limits::LEASE_QUIET_MS;

/// Tests that look at what happens within milliseconds do not run beside each other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Mounts that take turns.
struct Turns<'a> {
    mounts: &'a [PathBuf],
    next: AtomicUsize,
}

impl Turns<'_> {
    fn next(&self) -> &Path {
        &self.mounts[self.next.fetch_add(1, Ordering::Relaxed) % self.mounts.len()]
    }

    /// Looks through every mount.
    fn all(&self, what: &str, holds: impl Fn(&Path) -> bool) {
        for mount in self.mounts {
            assert!(holds(mount), "{what}, through {}", mount.display());
        }
    }
}

/// The life of a file and of a directory, every step through the next mount and looked at through all.
fn live(turns: &Turns<'_>, round: usize, random: &mut Random) {
    let (a, b) = (format!("a{round}"), format!("other/b{round}"));
    turns.all("not made yet", |mount| is_absent(&mount.join(&a)));
    let len = random.below(20_000);
    let mut content = random.bytes(len);
    fs::write(turns.next().join(&a), &content).unwrap();
    turns.all("written", |mount| fs::read(mount.join(&a)).unwrap() == content);
    turns.all("listed", |mount| names(mount).contains(&a));
    let more = random.bytes(100 + len / 2);
    append(&turns.next().join(&a), &more);
    content.extend(more);
    turns.all("longer", |mount| fs::metadata(mount.join(&a)).unwrap().len() == content.len() as u64);
    let at = random.below(content.len());
    let patch = random.bytes((content.len() - at).min(5000));
    File::options().write(true).open(turns.next().join(&a)).unwrap().write_all_at(&patch, at as u64).unwrap();
    content[at..at + patch.len()].copy_from_slice(&patch);
    turns.all("overwritten", |mount| fs::read(mount.join(&a)).unwrap() == content);
    let mount = turns.next();
    fs::rename(mount.join(&a), mount.join(&b)).unwrap();
    turns.all("gone from here", |mount| is_absent(&mount.join(&a)) && !names(mount).contains(&a));
    turns.all("moved there", |mount| fs::read(mount.join(&b)).unwrap() == content);
    fs::set_permissions(turns.next().join(&b), fs::Permissions::from_mode(0o640)).unwrap();
    turns.all("chmod", |mount| mode(&mount.join(&b)) == 0o640);
    File::options().write(true).open(turns.next().join(&b)).unwrap().set_len(50).unwrap();
    turns.all("cut", |mount| fs::read(mount.join(&b)).unwrap() == content[..50]);
    let mount = turns.next();
    fs::hard_link(mount.join(&b), mount.join(&a)).unwrap();
    turns.all("two names", |mount| fs::metadata(mount.join(&b)).unwrap().nlink() == 2);
    fs::remove_file(turns.next().join(&b)).unwrap();
    turns.all("one name", |mount| is_absent(&mount.join(&b)));
    turns.all("the other", |mount| fs::metadata(mount.join(&a)).unwrap().nlink() == 1);
    fs::remove_file(turns.next().join(&a)).unwrap();
    turns.all("none", |mount| is_absent(&mount.join(&a)));
    fs::create_dir(turns.next().join(&a)).unwrap();
    turns.all("a directory", |mount| names(&mount.join(&a)).is_empty());
    fs::remove_dir(turns.next().join(&a)).unwrap();
    turns.all("no directory", |mount| is_absent(&mount.join(&a)));
}

fn live_often(nodes: &str, rounds: usize) {
    let _alone = alone();
    let Some(camp) = Camp::start_each(&["--nodes", nodes, "--stripe", "4k"]) else { return };
    let turns = Turns { mounts: camp.mounts(), next: AtomicUsize::new(0) };
    fs::create_dir(turns.next().join("other")).unwrap();
    let mut random = Random::new(11);
    (0..rounds).for_each(|round| live(&turns, round, &mut random));
    camp.down();
}

/// S1, S9, S20.
#[test]
fn two_nodes_see_each_step_of_each_other() {
    live_often("2", 150);
}

#[test]
fn four_nodes_see_each_step_of_each_other() {
    live_often("4", 100);
}

/// Threads at different mounts pass a number on; whoever has it increments it in a file.
#[test]
fn a_counter_that_goes_round_is_never_wrong() {
    let _alone = alone();
    let Some(camp) = Camp::start_each(&["--nodes", "4"]) else { return };
    fs::write(camp.mount().join("counter"), 0u64.to_le_bytes()).unwrap();
    let (turn, rounds) = (AtomicUsize::new(0), 4 * 500);
    let play = |player: usize, mount: &Path| {
        let file = File::options().read(true).write(true).open(mount.join("counter")).unwrap();
        let mut now = turn.load(Ordering::Acquire);
        while now < rounds {
            if now % 4 == player {
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, 0).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), now as u64, "before turn {now}");
                file.write_all_at(&(now as u64 + 1).to_le_bytes(), 0).unwrap();
                turn.store(now + 1, Ordering::Release);
            }
            std::hint::spin_loop();
            std::thread::yield_now();
            now = turn.load(Ordering::Acquire);
        }
    };
    std::thread::scope(|scope| {
        for (player, mount) in camp.mounts().iter().enumerate() {
            scope.spawn(move || play(player, mount));
        }
    });
    assert_eq!(fs::read(camp.mount().join("counter")).unwrap(), (rounds as u64).to_le_bytes());
    camp.down();
}

/// A name that is replaced all the time is always there, whole.
/// S41.
#[test]
fn a_name_that_is_replaced_is_never_missing() {
    let _alone = alone();
    let Some(camp) = Camp::start_each(&["--nodes", "4", "--stripe", "4k"]) else { return };
    let (stop, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    let page = |value: u64| value.to_le_bytes().repeat(500);
    fs::write(camp.mount().join("target"), page(0)).unwrap();
    let look = |mount: &Path| {
        while !stop.load(Ordering::Relaxed) {
            let content = fs::read(mount.join("target")).unwrap();
            assert!(content.len() == 4000 && content.chunks(8).all(|chunk| *chunk == content[..8]));
            assert_eq!(fs::metadata(mount.join("target")).unwrap().len(), 4000);
            // Opened for writing, as by a program that would make it if it were not there.
            drop(
                OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(mount.join("target"))
                    .unwrap(),
            );
            seen.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        scopeguard::defer! { stop.store(true, Ordering::Relaxed) }
        let lookers: Vec<_> =
            camp.mounts()[1..].iter().map(|mount| scope.spawn(move || look(mount))).collect();
        for value in 1..800 {
            let mount = &camp.mounts()[value % 2 * 2];
            fs::write(mount.join("new"), page(value as u64)).unwrap();
            fs::rename(mount.join("new"), mount.join("target")).unwrap();
            if lookers.iter().any(|looker| looker.is_finished()) {
                break;
            }
        }
    });
    assert!(seen.load(Ordering::Relaxed) > 100, "somebody looked");
    camp.down();
}

/// Something that one node changes while another one has it cached.
struct Case {
    name: &'static str,
    /// What there is before.
    prepare: fn(&Path),
    change: fn(&Path),
    /// How it looks before and after the change.
    look: fn(&Path) -> Look,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Old,
    New,
    Neither,
}

fn look(old: bool, new: bool) -> Look {
    match (old, new) {
        (true, false) => Look::Old,
        (false, true) => Look::New,
        _ => Look::Neither,
    }
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn nothing(_: &Path) {}

fn file(dir: &Path) {
    fs::write(dir.join("f"), "12345").unwrap();
}

const CASES: &[Case] = &[
    Case {
        name: "a name that was absent is made",
        prepare: nothing,
        change: |d| fs::write(d.join("f"), "x").unwrap(),
        look: |d| look(is_absent(&d.join("f")), d.join("f").is_file()),
    },
    Case {
        name: "a name goes",
        prepare: file,
        change: |d| fs::remove_file(d.join("f")).unwrap(),
        look: |d| look(d.join("f").is_file(), is_absent(&d.join("f"))),
    },
    Case {
        name: "a name moves to another directory",
        prepare: |d| {
            file(d);
            fs::create_dir(d.join("sub")).unwrap();
        },
        change: |d| fs::rename(d.join("f"), d.join("sub/g")).unwrap(),
        look: |d| {
            let (old, new) = (is_absent(&d.join("f")), is_absent(&d.join("sub/g")));
            look(!old && new, old && !new)
        },
    },
    Case {
        name: "a file grows by an append",
        prepare: file,
        change: |d| append(&d.join("f"), b"67890"),
        look: |d| look(len(&d.join("f")) == 5, len(&d.join("f")) == 10),
    },
    Case {
        name: "a file grows by a write",
        prepare: file,
        change: |d| File::options().write(true).open(d.join("f")).unwrap().write_all_at(b"9", 9999).unwrap(),
        look: |d| look(len(&d.join("f")) == 5, len(&d.join("f")) == 10_000),
    },
    Case {
        name: "a file is cut by opening it",
        prepare: file,
        change: |d| drop(File::create(d.join("f")).unwrap()),
        look: |d| look(len(&d.join("f")) == 5, len(&d.join("f")) == 0),
    },
    Case {
        name: "permissions change",
        prepare: |d| {
            file(d);
            fs::set_permissions(d.join("f"), fs::Permissions::from_mode(0o600)).unwrap();
        },
        change: |d| fs::set_permissions(d.join("f"), fs::Permissions::from_mode(0o444)).unwrap(),
        look: |d| look(mode(&d.join("f")) == 0o600, mode(&d.join("f")) == 0o444),
    },
    Case {
        name: "a file is replaced by another",
        prepare: |d| {
            file(d);
            fs::write(d.join("g"), "another").unwrap();
        },
        change: |d| fs::rename(d.join("g"), d.join("f")).unwrap(),
        look: |d| look(len(&d.join("f")) == 5, len(&d.join("f")) == 7 && is_absent(&d.join("g"))),
    },
    Case {
        name: "a file gets one more name",
        prepare: |d| {
            file(d);
            fs::create_dir(d.join("sub")).unwrap();
        },
        change: |d| fs::hard_link(d.join("f"), d.join("sub/g")).unwrap(),
        look: |d| {
            let links = fs::metadata(d.join("f")).unwrap().nlink();
            look(links == 1, links == 2)
        },
    },
    Case {
        name: "a listing gets one more name",
        prepare: file,
        change: |d| fs::create_dir(d.join("g")).unwrap(),
        look: |d| {
            let (names, links) = (names(d).join(" "), fs::metadata(d).unwrap().nlink());
            look(names == "f" && links == 2, names == "f g" && links == 3)
        },
    },
    Case {
        name: "a directory is replaced by a file",
        prepare: |d| fs::create_dir(d.join("f")).unwrap(),
        change: |d| {
            fs::remove_dir(d.join("f")).unwrap();
            fs::write(d.join("f"), "x").unwrap();
        },
        look: |d| look(d.join("f").is_dir(), d.join("f").is_file()),
    },
    Case {
        name: "a symbolic link leads elsewhere",
        prepare: |d| symlink("old", d.join("f")).unwrap(),
        change: |d| {
            fs::remove_file(d.join("f")).unwrap();
            symlink("new", d.join("f")).unwrap();
        },
        look: |d| {
            let target = fs::read_link(d.join("f")).unwrap_or_default();
            look(target == Path::new("old"), target == Path::new("new"))
        },
    },
];

/// Lookups and questions for attributes that the nodes were asked, by their own count.
fn questions(camp: &Camp) -> u64 {
    let status = camp.status();
    let nodes = status["nodes"].as_array().unwrap();
    let operations = nodes.iter().flat_map(|node| node["operations"].as_array().unwrap());
    let asked = operations.filter(|op| op["name"] == "Lookup" || op["name"] == "GetAttr");
    asked.map(|op| op["client"].as_u64().unwrap()).sum()
}

/// Has the other node change something that this one has cached; the first look after that must show it.
fn change_what_is_cached(case: &Case, turn: &Mutex<()>) {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    for (round, (changer, looker)) in [(0, 1), (1, 0), (0, 1)].into_iter().enumerate() {
        let dir = format!("d{round}");
        let (at, from) = (camp.mounts()[changer].join(&dir), camp.mounts()[looker].join(&dir));
        fs::create_dir(&at).unwrap();
        (case.prepare)(&at);
        // Nobody gets leases for so long after a change.
        std::thread::park_timeout(Duration::from_millis(LEASE_QUIET_MS));
        // The cases take turns, of which each may need several.
        wait_within(DEADLINE * 10, "the node caches", || {
            let _turn = turn.lock();
            let before = questions(&camp);
            (0..30).for_each(|_| assert_eq!((case.look)(&from), Look::Old));
            // Without leases each look asks several times; with them, reading and listing still ask once.
            questions(&camp) - before < 45
        });
        let _turn = turn.lock();
        look_while_it_changes(case, &at, &from);
    }
    camp.down();
}

fn look_while_it_changes(case: &Case, at: &Path, from: &Path) {
    let (warm, changed) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scopeguard::defer! { changed.store(true, Ordering::Release) }
        let looker = scope.spawn(|| {
            let mut looks = 0;
            loop {
                let after = changed.load(Ordering::Acquire);
                let look = (case.look)(from);
                looks += 1;
                warm.store(looks > 20, Ordering::Release);
                if after {
                    return look;
                }
            }
        });
        wait_until("it is looked at", || warm.load(Ordering::Acquire) || looker.is_finished());
        (case.change)(at);
        changed.store(true, Ordering::Release);
        assert_eq!(looker.join().unwrap(), Look::New, "{}: {}", case.name, from.display());
    });
}

/// S20, S62.
#[test]
fn what_is_cached_is_never_older_than_the_last_change() {
    let _alone = alone();
    let turn = Mutex::new(());
    std::thread::scope(|scope| {
        for case in CASES {
            std::thread::Builder::new()
                .name(case.name.into())
                .spawn_scoped(scope, || change_what_is_cached(case, &turn))
                .unwrap();
        }
    });
}

//! Partitions in front of a directory tree, as users have them: commands, mounts, killed daemons.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::random::Random;
use crate::harness::{Camp, assert_contains, is_alive, signal, wait_until};
use rustix::process::Signal;
use tempfile::TempDir;

/// A formation with a partition in front of a directory.
struct Proxied {
    camp: Camp,
    site: TempDir,
}

impl Proxied {
    fn start(arguments: &[&str], fill: impl FnOnce(&Path)) -> Option<Proxied> {
        let camp = Camp::start_each(arguments)?;
        let site = TempDir::new().unwrap();
        fill(site.path());
        let proxied = Proxied { camp, site };
        proxied.bind(proxied.site.path());
        Some(proxied)
    }

    fn bind(&self, site: &Path) {
        self.bind_with(site, &[]);
    }

    fn bind_with(&self, site: &Path, more: &[&str]) {
        let part = self.part(0);
        let arguments = ["partition", "create", part.to_str().unwrap(), "--stripe", "64k", "--source"];
        self.camp.place().run(&[&arguments[..], &[site.to_str().unwrap()], more].concat()).succeeds();
    }

    fn part(&self, node: usize) -> PathBuf {
        self.camp.mounts()[node].join("part")
    }

    fn flush(&self, more: &[&str]) -> crate::harness::Said {
        let part = self.part(0);
        self.camp.place().run(&[&["flush", part.to_str().unwrap()], more].concat())
    }

    /// Waits until `status` shows all of this: what some nodes do not answer in time is left out.
    fn wait_until_shown(&self, parts: &[&str]) {
        wait_until(&format!("status shows {parts:?}"), || {
            let shown = self.camp.run("status", &[]).out;
            parts.iter().all(|part| shown.contains(part))
        });
    }

    fn down(self) {
        self.camp.run("fsck", &[]).succeeds();
        self.camp.down();
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 250 + seed * 13) as u8).collect()
}

fn diff(one: &Path, other: &Path) -> String {
    let said = Command::new("diff").arg("-r").arg(one).arg(other).output().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr)
}

/// Also for mounts that have used the partition under another policy.
#[test]
fn a_policy_that_is_set_counts_from_then_on() {
    let Some(proxied) = Proxied::start(&["--nodes", "2"], |_| {}) else { return };
    let parts = [proxied.part(0), proxied.part(1)];
    parts
        .iter()
        .enumerate()
        .for_each(|(node, part)| fs::write(part.join(format!("before{node}")), "x").unwrap());
    let set = ["partition", "set", parts[0].to_str().unwrap(), "--write", "on-close"];
    proxied.camp.place().run(&set).succeeds();
    for (node, part) in parts.iter().enumerate() {
        let mut count = 0;
        // What a mount knows is a second old at most.
        wait_until("what is closed is at the source", || {
            count += 1;
            let name = format!("after{node}.{count}");
            fs::write(part.join(&name), "x").unwrap();
            proxied.site.path().join(&name).exists()
        });
    }
    proxied.flush(&[]).succeeds();
    proxied.down();
}

/// S164.
#[test]
fn down_waits_for_what_is_not_at_the_source() {
    let fill = |site: &Path| fs::write(site.join("input"), bytes(300_000, 1)).unwrap();
    let Some(proxied) = Proxied::start(&["--nodes", "3"], fill) else { return };
    assert!(fs::read(proxied.part(2).join("input")).unwrap() == bytes(300_000, 1));
    fs::create_dir(proxied.part(1).join("out")).unwrap();
    fs::write(proxied.part(1).join("out/result"), bytes(200_000, 2)).unwrap();
    fs::write(proxied.part(1).join("input"), b"mine").unwrap();
    fs::write(proxied.site.path().join("input"), b"theirs").unwrap();
    let refused = proxied.camp.run("down", &["--yes"]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("/part/input") && refused.err.contains("--discard"), "{}", refused.err);
    assert!(refused.err.contains("both are kept"), "{}", refused.err);
    // Everybody goes on.
    fs::write(proxied.part(2).join("out/result"), bytes(100_000, 3)).unwrap();
    proxied.flush(&["--force"]).succeeds();
    assert_eq!(diff(&proxied.part(0), proxied.site.path()), "");
    fs::write(proxied.part(1).join("out/last"), bytes(200_000, 4)).unwrap();
    let site = proxied.site.path().to_owned();
    let Proxied { camp, site: _kept } = proxied;
    camp.down();
    assert!(fs::read(site.join("out/last")).unwrap() == bytes(200_000, 4), "down flushes");
}

fn keeps_what_is_written_until_down(proxied: Proxied) {
    let file = proxied.part(1).join("log");
    let writer = std::thread::spawn(move || {
        let mut log = fs::File::create(file).unwrap();
        let mut written = 0;
        while log.write_all(&[b'x'; 100]).is_ok() {
            written += 100;
        }
        written
    });
    wait_until("it writes", || fs::metadata(proxied.part(0).join("log")).is_ok_and(|log| log.len() > 50_000));
    let Proxied { camp, site } = proxied;
    camp.down();
    let written = writer.join().unwrap();
    let kept = fs::metadata(site.path().join("log")).unwrap().len();
    assert!(kept >= written, "{written} were written, {kept} are kept");
}

/// S164: everything that a program was told to be written is at the source afterwards.
#[test]
fn nothing_is_written_between_the_look_and_the_end() {
    let Some(proxied) = Proxied::start(&["--nodes", "2"], |_| {}) else { return };
    keeps_what_is_written_until_down(proxied);
}

/// A partition under the session contract, with more settings.
fn with_sessions(nodes: &str, more: &[&str]) -> Option<Proxied> {
    let (camp, site) = (Camp::start_each(&["--nodes", nodes])?, TempDir::new().unwrap());
    fs::write(site.path().join("old"), bytes(300_000, 1)).unwrap();
    let proxied = Proxied { camp, site };
    proxied.bind_with(proxied.site.path(), &[&["--contract", "session"], more].concat());
    Some(proxied)
}

/// S256, S257, S260.
#[test]
fn what_is_written_behind_reaches_the_source() {
    let Some(proxied) = with_sessions("2", &["--write", "on-close", "--rule", "*.log: write=through"]) else {
        return;
    };
    let (content, at) = (Random::new(3).bytes(400_000), |name: &str| proxied.site.path().join(name));
    let mut new = fs::File::create(proxied.part(1).join("new")).unwrap();
    content.chunks(1000).for_each(|piece| new.write_all(piece).unwrap());
    drop(new);
    assert!(fs::read(at("new")).unwrap() == content, "close says that it is there");
    assert!(fs::read(proxied.part(0).join("new")).unwrap() == content);
    let mut log = fs::File::create(proxied.part(0).join("x.log")).unwrap();
    log.write_all(b"line\n").unwrap();
    log.sync_all().unwrap();
    assert_eq!(fs::read(at("x.log")).unwrap(), b"line\n");
    // Of a file that is open, a flush finds what its program was told to be written.
    let old = fs::OpenOptions::new().write(true).open(proxied.part(1).join("old")).unwrap();
    old.write_all_at(&content[..1000], 70_000).unwrap();
    proxied.flush(&[]).succeeds();
    let mut expected = bytes(300_000, 1);
    expected[70_000..71_000].copy_from_slice(&content[..1000]);
    assert!(fs::read(at("old")).unwrap() == expected);
    // Over kills of the daemon that has it.
    old.write_all_at(&content[..1000], 140_000).unwrap();
    proxied.camp.kill_node(1);
    expected[140_000..141_000].copy_from_slice(&content[..1000]);
    drop(old);
    wait_until("it is there", || fs::read(at("old")).unwrap() == expected);
    drop(log);
    proxied.down();
}

/// S164, S260: under the session contract, too, everything that a program was told to be written is at the source
/// afterwards.
#[test]
fn nothing_is_written_behind_between_the_look_and_the_end() {
    let Some(proxied) = with_sessions("2", &[]) else { return };
    keeps_what_is_written_until_down(proxied);
}

#[test]
fn after_a_kill_of_everything_the_data_is_kept_until_it_is_discarded() {
    let Some(proxied) = Proxied::start(&["--nodes", "2"], |_| {}) else { return };
    fs::write(proxied.part(0).join("only-here"), "x").unwrap();
    proxied.camp.kill_all();
    let refused = proxied.camp.run("down", &["--yes"]);
    assert!(refused.code != 0 && refused.err.contains("--discard"), "{}", refused.err);
    assert_eq!(proxied.camp.run("down", &["--discard"]).code, 0);
}

#[test]
fn killed_daemons_lose_nothing_on_the_way_to_the_source() {
    let fill = |site: &Path| {
        fs::create_dir(site.join("in")).unwrap();
        (0..8).for_each(|file| fs::write(site.join(format!("in/{file}")), bytes(400_000, file)).unwrap());
    };
    let arguments = ["--nodes", "3", "--deaths-max", "1000/1s"];
    let Some(proxied) = Proxied::start(&arguments, fill) else { return };
    let mut random = Random::new(7);
    for turn in 0..6 {
        std::thread::scope(|scope| {
            let part = proxied.part(turn % 3);
            let work = scope.spawn(move || {
                for file in 0..8 {
                    let read = fs::read(part.join(format!("in/{file}"))).unwrap();
                    assert!(
                        read == bytes(400_000, if file < turn { file + 100 } else { file }),
                        "{turn} {file}"
                    );
                }
                fs::write(part.join(format!("in/{turn}")), bytes(400_000, turn + 100)).unwrap();
                fs::write(part.join(format!("new{turn}")), bytes(150_000, turn)).unwrap();
            });
            proxied.camp.kill_node(random.below(3));
            work.join().unwrap();
            let flush = scope.spawn(|| proxied.flush(&[]));
            proxied.camp.kill_node(random.below(3));
            flush.join().unwrap();
        });
    }
    wait_until("all is flushed", || proxied.flush(&[]).code == 0);
    assert_eq!(diff(&proxied.part(1), proxied.site.path()), "");
    for turn in 0..6 {
        assert!(
            fs::read(proxied.site.path().join(format!("in/{turn}"))).unwrap() == bytes(400_000, turn + 100)
        );
    }
    proxied.down();
}

/// A small file system in memory, mounted; `None` where this user may not.
fn small_file_system(dir: &Path) -> Option<()> {
    let said = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(dir).output().ok()?;
    if !said.status.success() {
        println!("skipped: mounting a small file system needs privileges");
    }
    said.status.success().then_some(())
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        // It may have been unmounted already.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// A formation whose partition stands in front of a small file system.
fn on_small_source(arguments: &[&str]) -> Option<(Proxied, Unmount)> {
    let camp = Camp::start_each(arguments)?;
    let site = TempDir::new().unwrap();
    if small_file_system(site.path()).is_none() {
        camp.down();
        return None;
    }
    let unmount = Unmount(site.path().to_owned());
    let proxied = Proxied { camp, site };
    proxied.bind(proxied.site.path());
    Some((proxied, unmount))
}

#[test]
fn a_full_source_and_one_that_is_unmounted_leave_the_data_here() {
    let Some((proxied, _unmount)) = on_small_source(&["--nodes", "2"]) else { return };
    fs::write(proxied.part(0).join("small"), bytes(100_000, 1)).unwrap();
    fs::write(proxied.part(0).join("large"), bytes(3_000_000, 2)).unwrap();
    proxied.flush(&[]).fails(1, &["large: not flushed", "no space left (ENOSPC)"]);
    // It fits, but found the source full if the large one, which goes there at the same time, was faster.
    let small = proxied.part(0).join("small");
    proxied.camp.place().run(&["flush", small.to_str().unwrap()]).succeeds();
    assert!(fs::read(proxied.site.path().join("small")).unwrap() == bytes(100_000, 1));
    assert_eq!(fs::read_dir(proxied.site.path()).unwrap().count(), 1, "what was begun is gone");
    assert!(fs::read(proxied.part(1).join("large")).unwrap() == bytes(3_000_000, 2));
    fs::write(proxied.part(0).join("large"), bytes(300_000, 3)).unwrap();
    let unmounted = Command::new("umount").arg("-l").arg(proxied.site.path()).status().unwrap();
    assert!(unmounted.success());
    proxied.flush(&[]).fails(1, &["mount the file system again"]);
    assert_eq!(fs::read_dir(proxied.site.path()).unwrap().count(), 0);
    assert!(fs::read(proxied.part(1).join("large")).unwrap() == bytes(300_000, 3));
    assert_eq!(proxied.camp.run("down", &["--discard"]).code, 0);
}

#[test]
fn files_may_be_larger_than_the_volume_together_and_alone() {
    let lent = TempDir::new().unwrap();
    let volume = format!("{}:24m", lent.path().display());
    let fill = |site: &Path| {
        fs::write(site.join("large"), bytes(40_000_000, 1)).unwrap();
        fs::write(site.join("small"), bytes(100_000, 2)).unwrap();
    };
    let arguments = ["--nodes", "1", "--volume", &volume];
    let Some(proxied) = Proxied::start(&arguments, fill) else { return };
    assert!(fs::read(proxied.part(0).join("large")).unwrap() == bytes(40_000_000, 1));
    // What is written is flushed when its room is needed.
    for file in 0..4 {
        fs::write(proxied.part(0).join(format!("mine{file}")), bytes(10_000_000, file)).unwrap();
    }
    for file in 0..4 {
        assert!(fs::read(proxied.part(0).join(format!("mine{file}"))).unwrap() == bytes(10_000_000, file));
    }
    fs::remove_file(proxied.part(0).join("large")).unwrap();
    assert!(fs::read(proxied.part(0).join("small")).unwrap() == bytes(100_000, 2));
    assert!(proxied.site.path().join("large").exists(), "what is removed here stays there");
    proxied.flush(&[]);
    proxied.down();
}

/// S165: a source that takes nothing leaves what was written where it is, and the writer hears that the volume is full.
#[test]
fn what_cannot_be_flushed_stays_on_a_full_volume() {
    let lent = TempDir::new().unwrap();
    let volume = format!("{}:24m", lent.path().display());
    let Some((proxied, _unmount)) = on_small_source(&["--nodes", "1", "--volume", &volume]) else { return };
    fs::write(proxied.part(0).join("first"), bytes(10_000_000, 1)).unwrap();
    let refused = fs::write(proxied.part(0).join("second"), bytes(20_000_000, 2)).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{refused}");
    assert!(fs::read(proxied.part(0).join("first")).unwrap() == bytes(10_000_000, 1));
    proxied.wait_until_shown(&["first", "no space left (ENOSPC)"]);
    // There is room again, and it goes on by itself.
    let larger =
        Command::new("mount").args(["-o", "remount,size=64m"]).arg(proxied.site.path()).status().unwrap();
    assert!(larger.success());
    wait_until("there is room", || fs::write(proxied.part(0).join("second"), bytes(20_000_000, 2)).is_ok());
    assert_eq!(proxied.flush(&[]).code, 0);
    assert_eq!(diff(&proxied.part(0), proxied.site.path()), "");
    proxied.camp.down();
}

/// S171, S172: for programs, over mounts, with killed daemons in between.
#[test]
fn policies_hold_for_programs() {
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--deaths-max", "1000/1s"]) else { return };
    let site = TempDir::new().unwrap();
    fs::write(site.path().join("early"), bytes(500_000, 9)).unwrap();
    let proxied = Proxied { camp, site };
    let rules = [
        "--write",
        "on-close",
        "--rule",
        "*.log: write=through",
        "--read",
        "at-start",
        "--rule",
        "*.tmp: write=on-flush",
    ];
    proxied.bind_with(proxied.site.path(), &rules);
    let there = |name: &str| fs::read(proxied.site.path().join(name));
    fs::remove_file(proxied.site.path().join("early")).unwrap();
    assert!(fs::read(proxied.part(2).join("early")).unwrap() == bytes(500_000, 9), "all came at the start");
    for turn in 0..3 {
        let name = format!("sub{turn}/result");
        fs::create_dir(proxied.part(turn).join(format!("sub{turn}"))).unwrap();
        let mut file = fs::File::create(proxied.part(turn).join(&name)).unwrap();
        file.write_all(&bytes(200_000, turn)).unwrap();
        // Whoever serves the mount does not know any more what was written. Whether some of it is there already is
        // chance: a program that another test starts meanwhile closes what it has inherited.
        proxied.camp.kill_node(turn);
        file.write_all(b"end").unwrap();
        drop(file);
        assert!(there(&name).unwrap() == [bytes(200_000, turn), b"end".to_vec()].concat(), "{turn}");
    }
    let mut log = fs::File::create(proxied.part(1).join("a.log")).unwrap();
    log.write_all(b"one").unwrap();
    assert_eq!(there("a.log").unwrap(), b"one");
    fs::write(proxied.part(1).join("b.tmp"), "x").unwrap();
    assert!(there("b.tmp").is_err(), "waits for a flush");
    // Both keep theirs; the program hears of it when it closes.
    fs::write(proxied.site.path().join("sub0/result"), "theirs").unwrap();
    let closed = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "exec dd if=/dev/zero of={} bs=10 count=1 conv=notrunc",
            proxied.part(0).join("sub1/result").display()
        ))
        .output()
        .unwrap();
    assert!(closed.status.success(), "{closed:?}");
    assert_eq!(there("sub1/result").unwrap()[..10], [0; 10]);
    proxied.wait_until_shown(&["not at their source: "]);
    drop(log);
    proxied.camp.down();
}

/// S161: also where content goes from the subfile to the kernel without a copy.
#[test]
fn the_beginning_is_brought_when_the_end_is_here() {
    let fill = |site: &Path| fs::write(site.join("large"), bytes(8 << 20, 1)).unwrap();
    let Some(proxied) = Proxied::start(&["--nodes", "1"], fill) else { return };
    let file = fs::File::open(proxied.part(0).join("large")).unwrap();
    let mut end = vec![0; 100];
    file.read_exact_at(&mut end, (8 << 20) - 100).unwrap();
    assert!(end == bytes(8 << 20, 1)[(8 << 20) - 100..]);
    assert!(fs::read(proxied.part(0).join("large")).unwrap() == bytes(8 << 20, 1));
    proxied.down();
}

/// P9: kill -9 of all daemons at once. What was written stays to be flushed, and nothing comes a second time.
#[test]
fn after_a_kill_of_all_daemons_what_is_dirty_is_flushed_and_nothing_is_fetched_again() {
    let fill = |site: &Path| {
        fs::write(site.join("input"), bytes(500_000, 1)).unwrap();
        fs::write(site.join("partly"), bytes(500_000, 2)).unwrap();
    };
    let arguments = ["--nodes", "3", "--deaths-max", "1000/1s"];
    let Some(proxied) = Proxied::start(&arguments, fill) else { return };
    assert!(fs::read(proxied.part(1).join("input")).unwrap() == bytes(500_000, 1));
    let partly = fs::File::options().write(true).open(proxied.part(2).join("partly")).unwrap();
    partly.write_all_at(b"changed", 100_000).unwrap();
    drop(partly);
    fs::create_dir(proxied.part(0).join("out")).unwrap();
    fs::write(proxied.part(0).join("out/new"), bytes(300_000, 3)).unwrap();
    for _ in 0..2 {
        let pids: Vec<u64> = (0..3).map(|node| proxied.camp.node_pid(node)).collect();
        pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
        wait_until("all daemons are gone", || pids.iter().all(|pid| !is_alive(*pid)));
    }
    // Whoever fetched it again would find nothing.
    fs::remove_file(proxied.site.path().join("input")).unwrap();
    for node in 0..3 {
        assert!(fs::read(proxied.part(node).join("input")).unwrap() == bytes(500_000, 1), "{node}");
    }
    proxied.wait_until_shown(&["not at their source"]);
    proxied.flush(&[]).succeeds();
    let mut expected = bytes(500_000, 2);
    expected[100_000..100_007].copy_from_slice(b"changed");
    assert!(fs::read(proxied.site.path().join("partly")).unwrap() == expected);
    assert!(fs::read(proxied.site.path().join("out/new")).unwrap() == bytes(300_000, 3));
    assert!(!proxied.site.path().join("input").exists(), "what was only read is not written");
    proxied.down();
}

/// Two jobs on one source: each brings its own there, and of what both have written the second is told.
#[test]
fn two_formations_on_one_source_keep_what_both_have_written() {
    let fill = |site: &Path| fs::write(site.join("both"), "old").unwrap();
    let Some(first) = Proxied::start(&["--nodes", "2"], fill) else { return };
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let second = Proxied { camp, site: TempDir::new().unwrap() };
    second.bind(first.site.path());
    for (job, seed) in [(&first, 1), (&second, 2)] {
        fs::create_dir(job.part(0).join("shared")).unwrap();
        fs::write(job.part(1).join(format!("shared/of-{seed}")), bytes(200_000, seed)).unwrap();
        fs::write(job.part(1).join("both"), bytes(150_000, seed)).unwrap();
    }
    let said = std::thread::scope(|scope| {
        let flushing = [scope.spawn(|| first.flush(&[])), scope.spawn(|| second.flush(&[]))];
        flushing.map(|flushing| flushing.join().unwrap())
    });
    let codes = [said[0].code, said[1].code];
    assert!(codes == [0, 1] || codes == [1, 0], "{said:?}");
    let (winner, loser, seed) = if codes[0] == 0 { (&first, &second, 1) } else { (&second, &first, 2) };
    let refusal = &said[2 - seed].err;
    assert!(refusal.contains("both: ") && refusal.contains("both are kept"), "{refusal}");
    let there = |name: &str| fs::read(first.site.path().join(name)).unwrap();
    assert!(there("both") == bytes(150_000, seed));
    assert!(fs::read(loser.part(0).join("both")).unwrap() == bytes(150_000, 3 - seed));
    assert!((1..3).all(|seed| there(&format!("shared/of-{seed}")) == bytes(200_000, seed)));
    let refused = loser.camp.run("down", &["--yes"]);
    assert!(refused.code != 0 && refused.err.contains("/part/both"), "{}", refused.err);
    assert_eq!(winner.flush(&[]).code, 0);
    assert_eq!(loser.flush(&["--force"]).code, 0);
    assert!(there("both") == bytes(150_000, 3 - seed));
    first.down();
    second.down();
}

/// S177: a directory takes the place of a file that was renamed, by the first flush, and by the age of what is in it.
#[test]
fn a_directory_gets_the_name_of_a_renamed_file() {
    let fill = |site: &Path| {
        ["flushed", "delayed"].iter().for_each(|name| fs::write(site.join(name), bytes(300_000, 1)).unwrap());
    };
    let Some(camp) = Camp::start_each(&["--nodes", "3"]) else { return };
    let site = TempDir::new().unwrap();
    fill(site.path());
    let proxied = Proxied { camp, site };
    proxied.bind_with(proxied.site.path(), &["--mirror-deletes"]);
    let (part, site) = (proxied.part(0), proxied.site.path().to_owned());
    let replace = |name: &str| {
        fs::rename(part.join(name), part.join(format!("{name} before"))).unwrap();
        fs::create_dir(part.join(name)).unwrap();
        fs::write(part.join(name).join("f"), name).unwrap();
    };
    replace("flushed");
    proxied.flush(&[]).succeeds();
    assert_eq!(fs::read(site.join("flushed/f")).unwrap(), b"flushed");
    assert!(fs::read(site.join("flushed before")).unwrap() == bytes(300_000, 1));
    let name = proxied.camp.name();
    proxied.camp.place().ok(&["partition", "set", "--name", name, "/part", "--write", "delayed=100ms"]);
    replace("delayed");
    let is_there = || fs::read(site.join("delayed/f")).is_ok_and(|content| content == b"delayed");
    wait_until("it is there by itself", is_there);
    // The deletion that had to wait takes nothing that has the name now.
    proxied.flush(&[]).succeeds();
    assert!(is_there() && fs::read(site.join("delayed before")).unwrap() == bytes(300_000, 1));
    proxied.down();
}

/// S177: a flush waits a moment for the close of a file that was deleted, which arrives after the call.
#[test]
fn a_flush_does_not_take_a_file_that_is_being_closed_for_an_open_one() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let proxied = Proxied { camp, site: TempDir::new().unwrap() };
    proxied.bind_with(proxied.site.path(), &["--mirror-deletes"]);
    // A close may be late by more than a flush waits.
    let is_flushed_at_first = |round: usize| {
        let file = proxied.part(0).join(format!("f{round}"));
        fs::write(&file, "content").unwrap();
        proxied.flush(&[]).succeeds();
        let held = File::open(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let closing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(700));
            drop(held);
        });
        let flushed = proxied.flush(&[]);
        closing.join().unwrap();
        flushed.code == 0 && !proxied.site.path().join(format!("f{round}")).exists()
    };
    assert!((0..10).any(is_flushed_at_first));
    // One that stays open is told.
    let file = proxied.part(0).join("held");
    fs::write(&file, "content").unwrap();
    proxied.flush(&[]).succeeds();
    let held = File::open(&file).unwrap();
    fs::remove_file(&file).unwrap();
    proxied.flush(&[]).fails(1, &["it is open"]);
    drop(held);
    wait_until("it is deleted", || proxied.flush(&[]).code == 0);
    proxied.down();
}

/// S174 to S178, for programs: over mounts, with killed daemons, and `down`, which waits for deletions as well.
#[test]
fn deletions_go_to_the_source_where_it_is_said() {
    let fill = |site: &Path| {
        fs::create_dir_all(site.join("old/deep")).unwrap();
        (0..4)
            .for_each(|file| fs::write(site.join(format!("old/deep/{file}")), bytes(100_000, file)).unwrap());
        ["theirs", "renamed", "kept"].iter().for_each(|name| fs::write(site.join(name), name).unwrap());
    };
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--deaths-max", "1000/1s"]) else { return };
    let site = TempDir::new().unwrap();
    fill(site.path());
    let proxied = Proxied { camp, site };
    proxied.bind_with(proxied.site.path(), &["--mirror-deletes"]);
    let there = |name: &str| proxied.site.path().join(name).exists();
    proxied
        .camp
        .place()
        .run(&["partition", "show", proxied.part(0).to_str().unwrap()])
        .prints(&["mirror-deletes", "yes"]);
    fs::remove_dir_all(proxied.part(1).join("old")).unwrap();
    fs::remove_file(proxied.part(2).join("theirs")).unwrap();
    fs::rename(proxied.part(0).join("renamed"), proxied.part(0).join("new name")).unwrap();
    for node in 0..3 {
        proxied.camp.kill_node(node);
    }
    // Each is back.
    assert!((0..3).all(|node| is_alive(proxied.camp.node_pid(node))));
    proxied.wait_until_shown(&["still at their source: 8 deleted names"]);
    assert!(there("old/deep/3"));
    fs::write(proxied.site.path().join("theirs"), "changed there").unwrap();
    let away = proxied.site.path().with_extension("away");
    fs::rename(proxied.site.path(), &away).unwrap();
    let refused = proxied.camp.run("down", &["--yes"]);
    assert!(
        refused.code != 0 && refused.err.contains("8 deletions not made at the source"),
        "{}",
        refused.err
    );
    assert_contains(
        &refused.err,
        &["/part/old/deep/0\n", " and 9 others: ", "no such file or directory (ENOENT)"],
    );
    fs::rename(&away, proxied.site.path()).unwrap();
    proxied
        .flush(&[])
        .succeeds()
        .tells(&["part/theirs: deleted here, and stays at the source"])
        .prints(&["deleted 7"]);
    assert_eq!(fs::read(proxied.site.path().join("theirs")).unwrap(), b"changed there");
    assert!(!there("old") && !there("renamed") && there("kept"));
    assert_eq!(fs::read(proxied.site.path().join("new name")).unwrap(), b"renamed");
    // `down` makes those that nobody has flushed.
    fs::remove_file(proxied.part(1).join("kept")).unwrap();
    let site = proxied.site.path().to_owned();
    let Proxied { camp, site: _kept } = proxied;
    assert_eq!(camp.run("fsck", &[]).code, 0);
    camp.down();
    assert!(!site.join("kept").exists() && site.join("new name").exists());
}

#[test]
fn run_flushes_at_its_end_only_what_is_there_to_be_flushed() {
    let Some(camp) = Camp::start(&["--nodes", "1"]) else { return };
    camp.place().run(&["flush", camp.mount().to_str().unwrap()]).fails(1, &["no partition with a source"]);
    camp.down();
}

/// A file with three names, of which two are removed, each in its own order, and one that is renamed over.
fn link_and_remove(dir: &Path) {
    let orders = [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]];
    for (number, order) in orders.into_iter().enumerate() {
        let top = dir.join(number.to_string());
        // One of the names is in another directory, whose home may be another node.
        fs::create_dir_all(top.join("below")).unwrap();
        let names = [top.join("a"), top.join("below/b"), top.join("c")];
        fs::write(&names[0], bytes(100_000, number)).unwrap();
        names[1..].iter().for_each(|name| fs::hard_link(&names[0], name).unwrap());
        order.iter().for_each(|name| fs::remove_file(&names[*name]).unwrap());
        let left = &names[3 - order[0] - order[1]];
        let file = fs::OpenOptions::new().write(true).open(left).unwrap();
        file.write_all_at(b"through the name that is left", 500).unwrap();
    }
    // All names that a file has get what was written last, whichever it was written through.
    let top = dir.join("several");
    fs::create_dir_all(top.join("below")).unwrap();
    fs::write(top.join("a"), bytes(100_000, 6)).unwrap();
    for name in ["b", "below/c"] {
        fs::hard_link(top.join("a"), top.join(name)).unwrap();
        fs::OpenOptions::new().append(true).open(top.join("a")).unwrap().write_all(b"more").unwrap();
    }
    let top = dir.join("renamed");
    fs::create_dir(&top).unwrap();
    fs::write(top.join("a"), bytes(100_000, 7)).unwrap();
    for name in ["b", "c"] {
        fs::hard_link(top.join("a"), top.join(name)).unwrap();
    }
    fs::rename(top.join("b"), top.join("d")).unwrap();
    fs::write(top.join("other"), bytes(70_000, 8)).unwrap();
    for name in ["c", "d"] {
        fs::write(top.join("other"), bytes(70_000, 8)).unwrap();
        fs::rename(top.join("other"), top.join(name)).unwrap();
    }
    fs::OpenOptions::new().append(true).open(top.join("a")).unwrap().write_all(b"more").unwrap();
}

/// S162, S172, S510: of a file that has or had several names, its data goes to the source under those that are left.
#[test]
fn data_reaches_the_source_under_the_names_that_are_left() {
    for policy in ["on-close", "on-flush", "delayed=200ms"] {
        let Some(camp) = Camp::start_each(&["--nodes", "3"]) else { return };
        let proxied = Proxied { camp, site: TempDir::new().unwrap() };
        proxied.bind_with(proxied.site.path(), &["--write", policy, "--mirror-deletes"]);
        link_and_remove(&proxied.part(1));
        let is_there = || diff(&proxied.part(2), proxied.site.path()).is_empty();
        if policy == "on-flush" {
            proxied.flush(&[]).succeeds();
            assert_eq!(diff(&proxied.part(2), proxied.site.path()), "");
        } else {
            // By the formation itself, which deletes last what was needed until then.
            wait_until("all is sent", is_there);
        }
        let left = proxied.flush(&[]);
        assert_eq!(left.code, 0, "{policy}: {}", left.err);
        assert_eq!(diff(&proxied.part(0), proxied.site.path()), "", "{policy}, flushed");
        proxied.down();
    }
}

//! `run --out-every`: what is complete is at the target as a whole while the command runs, whatever is killed, full or
//! being written meanwhile.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::random::Random;
use crate::harness::{Camp, Place, Said, assert_contains, can_mount, is_alive, said, signal, wait_until};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::Signal;
use serde_json::Value;

/// Content that a copy at 1 MiB/s takes long for.
const LONG: usize = 8 << 20;
/// Longest pause between two changes of what is never at rest: below what `--out-every 1s` takes for rest.
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// A run whose command waits until it is told its exit code; the test writes in its place.
struct Running {
    place: Place,
    site: tempfile::TempDir,
    name: String,
    mount: PathBuf,
    child: Option<Child>,
}

impl Running {
    /// Copies `ckpt` to `out`, by default at the site.
    fn start(options: &[&str], out: Option<&Path>) -> Running {
        let (place, site, name) = (Place::new(), tempfile::tempdir().unwrap(), Place::unique_name());
        let target = out.map_or_else(|| site.path().join("ckpt"), Path::to_owned);
        let output = format!("ckpt:{}", target.display());
        let script = format!(
            "cd '{}' && echo \"$BIVOUAC\" >flag.new && mv flag.new flag && until [ -e stop ]; do sleep 0.02; done; trap '' TERM; : >ended; exit $(cat stop)",
            site.path().display()
        );
        let mut all = vec!["run", "--name", &name, "--out", &output];
        all.extend(options);
        all.extend(["--", "sh", "-c", &script]);
        // Whoever runs the tests may have had signals ignored, as nohup does.
        let plain = place.command(&all);
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        for (name, _) in plain.get_envs().filter(|(_, value)| value.is_none()) {
            command.env_remove(name);
        }
        let err = File::create(site.path().join("err")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(err).spawn().unwrap();
        let mut running = Running { place, site, name, mount: PathBuf::new(), child: Some(child) };
        let flag = running.site.path().join("flag");
        wait_until("the command runs", || flag.exists());
        running.mount = fs::read_to_string(flag).unwrap().trim().into();
        running
    }

    fn pid(&self) -> u64 {
        u64::from(self.child.as_ref().unwrap().id())
    }

    /// A path below the output, in the formation.
    fn inside(&self, path: &str) -> PathBuf {
        self.mount.join("ckpt").join(path)
    }

    /// Writes a file. A set that is not there yet comes with it as a whole: an empty one is complete, too.
    fn write(&self, path: &str, content: &[u8]) {
        let file = |path: &Path| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        match path.split_once('/') {
            Some((set, below)) if !set.ends_with(".tmp") && !self.inside(set).exists() => {
                let unfinished = format!("{set}.tmp");
                file(&self.inside(&unfinished).join(below));
                self.finish(&unfinished, set);
            }
            _ => file(&self.inside(path)),
        }
    }

    /// Gives a set that is made under a name that is not copied its own.
    fn finish(&self, unfinished: &str, set: &str) {
        fs::rename(self.inside(unfinished), self.inside(set)).unwrap();
    }

    /// A path below the output's target.
    fn out(&self, path: &str) -> PathBuf {
        self.site.path().join("ckpt").join(path)
    }

    /// What is said so far.
    fn err(&self) -> String {
        fs::read_to_string(self.site.path().join("err")).unwrap()
    }

    /// Waits until a round has been that began after this call.
    fn a_round_later(&self, marker: &str) {
        self.write(marker, b"marker");
        self.wait_for(marker, b"marker");
    }

    fn wait_for(&self, path: &str, content: &[u8]) {
        wait_until(path, || fs::read(self.out(path)).is_ok_and(|found| found == content));
    }

    fn stop(&self, code: i32) {
        fs::write(self.site.path().join("stop.new"), code.to_string()).unwrap();
        fs::rename(self.site.path().join("stop.new"), self.site.path().join("stop")).unwrap();
    }

    /// Waits for its end.
    fn end(&mut self) -> Said {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        Said { err: self.err(), ..said(&output) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().unwrap();
            child.wait().unwrap();
            self.place.purge(&self.name);
        }
    }
}

/// What copies have left unfinished in a directory.
fn temporary(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.contains(".bivouac-")).collect()
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    Random::new(seed).bytes(len)
}

/// Both files of a set as they are in one and the same directory; `None` if another one took its place meanwhile.
fn pair_of(set: &Path) -> Option<(Vec<u8>, Vec<u8>)> {
    let dir = File::open(set).ok()?;
    let read = |name: &str| fs::read(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())).ok();
    Some((read("a")?, read("b")?))
}

/// S720, S721, S724.
#[test]
fn complete_sets_come_out_while_the_command_runs() {
    if !can_mount() {
        return;
    }
    let mut running = Running::start(&["--nodes", "2", "--out-every", "1s"], None);
    let large = bytes(1, 5 << 20);
    running.write("c1.tmp/a", &large);
    running.write("c1.tmp/sub/b", b"two");
    fs::set_permissions(running.inside(""), fs::Permissions::from_mode(0o750)).unwrap();
    running.finish("c1.tmp", "c1");
    std::os::unix::fs::symlink("c1", running.inside("latest")).unwrap();
    running.wait_for("latest/sub/b", b"two");
    assert_eq!(fs::read(running.out("c1/a")).unwrap(), large);
    assert_eq!(fs::read_link(running.out("latest")).unwrap(), Path::new("c1"));
    assert_eq!(fs::metadata(running.out("")).unwrap().permissions().mode() & 0o7777, 0o750);

    // What a process has open for writing is not complete, however long nothing is written; nor is what changes all the
    // time.
    running.write("open.tmp/b", b"finished");
    let mut half = File::create(running.inside("open.tmp/a")).unwrap();
    half.write_all(b"half").unwrap();
    running.finish("open.tmp", "open");
    let (writes, was_at_rest) = (AtomicBool::new(true), AtomicBool::new(false));
    let is_copied = std::thread::scope(|scope| {
        let (writes, was_at_rest, inside) = (&writes, &was_at_rest, running.inside("busy"));
        scope.spawn(move || {
            let mut written = Instant::now();
            for number in 0_u64.. {
                fs::write(&inside, number.to_string()).unwrap();
                // A writer that gets no processor changes nothing.
                was_at_rest.fetch_or(written.elapsed() > PAUSE_MAX, Ordering::Relaxed);
                written = Instant::now();
                if !writes.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::park_timeout(Duration::from_millis(20));
            }
        });
        running.a_round_later("m1");
        running.a_round_later("m2");
        let is_copied = ["open", "busy"].map(|set| running.out(set).exists());
        writes.store(false, Ordering::Relaxed);
        is_copied
    });
    let was_at_rest = was_at_rest.into_inner();
    assert!(!is_copied[0] && (!is_copied[1] || was_at_rest), "{is_copied:?}");
    let last = fs::read(running.inside("busy")).unwrap();
    running.wait_for("busy", &last);
    assert!(!running.out("open").exists());
    half.write_all(b" and half").unwrap();
    drop(half);
    running.wait_for("open/a", b"half and half");
    assert_eq!(fs::read(running.out("open/b")).unwrap(), b"finished");

    // The rest comes out in the end, and what is out already is not copied again.
    running.write(".hidden", b"h");
    running.write("c9.tmp/a", b"t");
    fs::remove_dir_all(running.inside("c1")).unwrap();
    running.a_round_later("m3");
    assert!(!running.out(".hidden").exists() && !running.out("c9.tmp").exists());
    assert_eq!(fs::read(running.out("c1/a")).unwrap(), large, "what was rotated away stays");
    running.write("last/a", b"at the end");
    running.stop(0);
    let ended = running.end().succeeds();
    for (path, content) in [(".hidden", "h"), ("c9.tmp/a", "t"), ("last/a", "at the end"), ("m3", "marker")] {
        assert_eq!(fs::read(running.out(path)).unwrap(), content.as_bytes(), "{path}");
    }
    assert_eq!(ended.err.matches("/ckpt/open to ").count(), 1, "{}", ended.err);
    assert!(ended.err.contains("2 files, 5 MiB, verified"), "{}", ended.err);
    // One of them again where it was at rest for a moment.
    let is_told = ended.err.contains("--out-every: 8 sets copied out");
    assert!(is_told || was_at_rest, "{}", ended.err);
    assert!(ended.err.contains("ckpt: 2 files, 2 B in"), "only the rest: {}", ended.err);
    assert!(
        !ended.err.contains("deleted in the formation"),
        "of what is rotated nothing is said: {}",
        ended.err
    );
    assert!(temporary(&running.out("")).is_empty() && running.place.is_empty());
}

/// S722.
#[test]
fn a_set_that_is_written_again_takes_the_place_of_the_old_one_as_a_whole() {
    if !can_mount() {
        return;
    }
    let mut running = Running::start(&["--out-every", "1s"], None);
    let version = |number: u64| bytes(number, 300_000);
    let write = |number: u64| {
        fs::create_dir_all(running.inside("a_set")).unwrap();
        // Open at the same time: a set of which one is new and the other old is never complete.
        let files = ["a", "b"].map(|name| File::create(running.inside("a_set").join(name)).unwrap());
        files.iter().for_each(|mut file| file.write_all(&version(number)).unwrap());
    };
    write(1);
    running.wait_for("a_set/b", &version(1));
    for number in [2, 3] {
        write(number);
        wait_until("the set is there anew", || {
            let Some((a, b)) = pair_of(&running.out("a_set")) else { return false };
            assert!(a == b, "a mixture of old and new");
            a == version(number)
        });
    }
    // What somebody put there is not thrown away, and said once.
    fs::write(running.out("a_set/notes"), "mine").unwrap();
    write(4);
    running.a_round_later("m1");
    running.a_round_later("m2");
    assert_eq!(pair_of(&running.out("a_set")), Some((version(3), version(3))));
    let err = running.err();
    assert_eq!(err.matches("a_set/notes: is in the way").count(), 1, "{err}");
    fs::remove_file(running.out("a_set/notes")).unwrap();
    running.wait_for("a_set/b", &version(4));
    assert_eq!(pair_of(&running.out("a_set")), Some((version(4), version(4))));
    running.stop(0);
    running.end().fails(0, &["failed, last by"]);
    assert!(temporary(&running.out("")).is_empty() && running.place.is_empty());
}

/// One set that is out, and one of which the copy has begun and takes long.
fn in_the_middle(options: &[&str]) -> Running {
    let all = [&["--out-every", "1s", "--limit", "1m"], options].concat();
    let running = Running::start(&all, None);
    running.write("c1/a", b"first");
    running.wait_for("c1/a", b"first");
    running.write("c2/a", &bytes(2, LONG));
    wait_until("its copy has begun", || !temporary(&running.out("")).is_empty());
    assert!(!running.out("c2").exists());
    running
}

/// S721, S722.
#[test]
fn a_set_that_is_begun_anew_while_another_one_is_copied_stays_as_it_is_at_the_target() {
    if !can_mount() {
        return;
    }
    let mut running = Running::start(&["--out-every", "1s", "--limit", "1m"], None);
    let write = |path: &str, content: &[u8]| {
        fs::create_dir_all(running.inside(path).parent().unwrap()).unwrap();
        let mut file = File::create(running.inside(path)).unwrap();
        file.write_all(content).unwrap();
        file
    };
    drop((write("c1/a", b"one"), write("c1/b", b"one")));
    running.wait_for("c1/b", b"one");
    // All of one round, the newest of which takes long, and the oldest of which says that the round is over.
    drop((
        write("m", b"marker"),
        write("c1/a", b"two"),
        write("c1/b", b"two"),
        write("c2/a", &bytes(2, LONG)),
    ));
    wait_until("the copy of c2 has begun", || !temporary(&running.out("")).is_empty());
    fs::remove_dir_all(running.inside("c1")).unwrap();
    let mut next = write("c1/a", b"thr");
    running.wait_for("m", b"marker");
    let mut pair = None;
    wait_until("c1 is there", || {
        pair = pair_of(&running.out("c1"));
        pair.is_some()
    });
    let (a, b) = pair.unwrap();
    assert!(a == b && a != b"thr", "{:?}", String::from_utf8_lossy(&a));
    next.write_all(b"ee").unwrap();
    drop((next, write("c1/b", b"three")));
    running.wait_for("c1/b", b"three");
    assert_eq!(fs::read(running.out("c1/a")).unwrap(), b"three");
    running.stop(0);
    running.end().succeeds();
    assert!(temporary(&running.out("")).is_empty() && running.place.is_empty());
}

/// S722.
#[test]
fn a_kill_of_run_leaves_what_was_put_in_place() {
    if !can_mount() {
        return;
    }
    let mut running = in_the_middle(&[]);
    signal(running.pid(), Signal::KILL);
    assert_eq!(running.end().code, 137);
    wait_until("the formation is gone", || running.place.is_empty());
    assert_eq!(fs::read(running.out("c1/a")).unwrap(), b"first");
    assert!(!running.out("c2").exists() && temporary(&running.out("")).is_empty());

    // With --out-always what was not out is kept, and can be had.
    let mut running = in_the_middle(&["--out-always"]);
    let (dir, pid) = (running.place.formation_dir(&running.name), running.pid());
    signal(pid, Signal::KILL);
    assert_eq!(running.end().code, 137);
    wait_until("it is dead", || !is_alive(pid));
    let status = running.place.run(&["stage", "status", "--name", &running.name, "--json"]);
    let jobs: Vec<Value> = serde_json::from_str(&status.out).unwrap();
    let states: Vec<_> = jobs.iter().map(|job| job["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["done", "interrupted"], "{}", status.err);
    running.place.run(&["stage", "resume", "--name", &running.name, "2"]).succeeds();
    assert!(fs::read(running.out("c2/a")).unwrap() == bytes(2, LONG));
    assert!(temporary(&running.out("")).is_empty() && dir.exists());
    assert_eq!(running.place.run(&["down", "--name", &running.name, "--discard"]).code, 0);
    assert!(running.place.is_empty());
}

/// S725.
#[test]
fn a_request_to_end_lets_the_set_under_way_arrive_and_a_second_one_does_not() {
    if !can_mount() {
        return;
    }
    let mut running = in_the_middle(&[]);
    signal(running.pid(), Signal::TERM);
    let ended = running.end().fails(143, &[]);
    assert!(fs::read(running.out("c2/a")).unwrap() == bytes(2, LONG));
    assert_contains(&ended.err, &["2 sets copied out", "see --out-always"]);
    assert!(temporary(&running.out("")).is_empty() && running.place.is_empty());

    let mut running = in_the_middle(&[]);
    running.stop(3);
    // The command has ended, or is about to; the copy goes on, until it is told to end.
    wait_until("the command ends", || running.site.path().join("ended").exists());
    wait_until("it ends", || {
        signal(running.pid(), Signal::TERM);
        running.child.as_mut().unwrap().try_wait().unwrap().is_some()
    });
    let ended = running.end().fails(3, &[]);
    assert_eq!(fs::read(running.out("c1/a")).unwrap(), b"first");
    assert!(!running.out("c2").exists() && temporary(&running.out("")).is_empty(), "{}", ended.err);
    assert!(running.place.is_empty());
}

/// S725.
#[test]
fn a_command_that_fails_in_the_middle_of_a_set_spoils_none_that_is_out() {
    if !can_mount() {
        return;
    }
    for always in [false, true] {
        let options: &[&str] = if always { &["--out-always"] } else { &[] };
        let mut running = Running::start(&[&["--out-every", "1s"], options].concat(), None);
        running.write("c1/a", b"whole");
        running.write("c1/b", b"whole");
        running.wait_for("c1/b", b"whole");
        let mut torn = File::create(running.inside("c1/a")).unwrap();
        torn.write_all(b"to").unwrap();
        fs::create_dir(running.inside("c2")).unwrap();
        let mut new = File::create(running.inside("c2/a")).unwrap();
        new.write_all(b"ne").unwrap();
        running.stop(3);
        let ended = running.end();
        drop((torn, new));
        assert_eq!(ended.code, 3, "{}", ended.err);
        assert_eq!(pair_of(&running.out("c1")), Some((b"whole".to_vec(), b"whole".to_vec())));
        assert_eq!(
            ended.err.contains("/ckpt/c1: was changed since it was copied out"),
            always,
            "{}",
            ended.err
        );
        let new = fs::read(running.out("c2/a")).ok();
        assert_eq!(new.as_deref(), always.then_some(b"ne".as_slice()));
        assert!(running.place.is_empty());
    }
}

/// S723, S724.
#[test]
fn a_target_that_is_full_or_away_is_said_once_and_tried_again() {
    let volume = Place::memory();
    let Some(site) = Camp::start(&["--volume", &format!("{}:24m", volume.path().display())]) else { return };
    let filler = site.mount().join("filler");
    fs::write(&filler, bytes(5, 16 << 20)).unwrap();
    let target = site.mount().join("ckpt");
    let mut running = Running::start(&["--out-every", "1s"], Some(&target));
    let large = bytes(6, 12 << 20);
    running.write("small", b"s");
    wait_until("the small one is out", || target.join("small").exists());
    running.write("large", &large);
    wait_until("it is said", || running.err().contains("tries again"));
    let is_out = |name: &str, content: &[u8]| fs::read(target.join(name)).is_ok_and(|found| found == content);
    for number in [7, 8] {
        running.write("small", &[number]);
        wait_until("a small one is out", || is_out("small", &[number]));
    }
    assert!(!target.join("large").exists());
    let err = running.err();
    assert!(err.contains("/ckpt/large to ") && err.contains("does not fit"), "{err}");
    assert_eq!(err.matches("tries again").count(), 1, "{err}");
    fs::remove_file(&filler).unwrap();
    wait_until("the large one is out", || is_out("large", &large));
    // What is in the way of the whole target.
    fs::rename(&target, site.mount().join("aside")).unwrap();
    fs::write(&target, "in the way").unwrap();
    running.write("more", b"m");
    wait_until("that is said, too", || running.err().matches("tries again").count() == 2);
    // At once: a round in between would make the target anew.
    let aside = site.mount().join("aside");
    renameat_with(CWD, &aside, CWD, &target, RenameFlags::EXCHANGE).unwrap();
    fs::remove_file(aside).unwrap();
    wait_until("it is out", || is_out("more", b"m"));
    running.stop(0);
    running.end().fails(0, &["failed, last by /ckpt/more to "]);
    assert!(temporary(&target).is_empty() && running.place.is_empty());
    site.down();
}

#[test]
fn sets_come_out_after_a_daemon_was_killed() {
    if !can_mount() {
        return;
    }
    let mut running = Running::start(&["--nodes", "2", "--out-every", "1s"], None);
    running.write("c1/a", &bytes(1, 3 << 20));
    running.wait_for("c1/a", &bytes(1, 3 << 20));
    let status: Value =
        serde_json::from_str(&running.place.ok(&["status", "--name", &running.name, "--json"])).unwrap();
    let pid = status["nodes"][1]["pid"].as_u64().unwrap();
    signal(pid, Signal::KILL);
    wait_until("the killed daemon is gone", || !is_alive(pid));
    running.write("c2/a", &bytes(2, 3 << 20));
    running.wait_for("c2/a", &bytes(2, 3 << 20));
    assert_eq!(fs::read(running.out("c1/a")).unwrap(), bytes(1, 3 << 20));
    running.stop(0);
    running.end().succeeds();
    assert!(running.place.is_empty());
}

#[test]
fn rounds_that_make_no_sense_are_refused_before_anything_starts() {
    let place = Place::new();
    for (options, says) in [
        (vec!["--out-every", "0s", "--out", "a:b"], "is too short; write 1000ms or more"),
        (vec!["--out-every", "10", "--out", "a:b"], "has no unit; write 10s"),
        (vec!["--out-every", "10m"], "--out <SRC:DST>"),
        (
            vec!["--out-every", "1h", "--ttl", "1h", "--out", "a:b"],
            "is not less than the life time (--ttl 3600s)",
        ),
    ] {
        let said = place.run(&[&["run"], options.as_slice(), &["--", "true"]].concat());
        assert!(said.code == 2 && said.err.contains(says), "{options:?}: {}", said.err);
    }
    assert!(place.is_empty());
}

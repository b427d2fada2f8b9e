//! A formation in a job whose memory is limited by a control group. Only root can make one: otherwise the tests are
//! skipped, and say so.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Camp, Place, can_mount, wait_until};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 400 * MIB;

/// A control group of a test's own, below ours.
struct Group(PathBuf);

impl Group {
    /// Of version 1 where memory is controlled by that, else of version 2.
    fn make() -> Option<Group> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("bivouac-test-{}-{number}", std::process::id());
        let made = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].into_iter().find_map(|top| {
            let dir = Path::new(top).join(&name);
            fs::create_dir(&dir).ok()?;
            let limited = ["memory.limit_in_bytes", "memory.max"]
                .into_iter()
                .any(|file| fs::write(dir.join(file), LIMIT.to_string()).is_ok());
            let group = Group(dir);
            limited.then_some(group)
        });
        if made.is_none() {
            println!("skipped: no control group for memory can be made here");
        }
        made
    }

    /// A command as a shell says it, that begins in the group.
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo $$ > {}/cgroup.procs && {script}", self.0.display())]);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait_until("the control group is empty", || fs::remove_dir(&self.0).is_ok() || !self.0.exists());
    }
}

/// A formation whose processes are all in a group, and what `status` says of it.
struct Job {
    camp: Camp,
    group: Group,
}

impl Job {
    fn start(arguments: &[&str]) -> Option<Job> {
        if !can_mount() {
            return None;
        }
        let group = Group::make()?;
        let mut place = Place::new();
        place.set_control_group(&group.0);
        let camp = Camp::start_in(place, arguments);
        Some(Job { camp, group })
    }

    fn capacity(&self) -> u64 {
        self.camp.status()["nodes"][0]["volumes"][0]["capacity_bytes"].as_u64().unwrap()
    }

    /// Writes files of 1 MiB until the formation is full; how many there are.
    fn fill(&self, name: &str) -> u64 {
        for number in 0..LIMIT / MIB * 2 {
            let path = self.camp.mount().join(format!("{name}{number}"));
            let written = fs::File::create(&path).and_then(|mut file| file.write_all(&block(number)));
            if let Err(error) = written {
                assert_eq!(error.raw_os_error(), Some(28), "{error}");
                return number;
            }
        }
        panic!("never full");
    }

    fn check(&self, name: &str, count: u64) {
        for number in 0..count {
            let content = fs::read(self.camp.mount().join(format!("{name}{number}"))).unwrap();
            assert!(content == block(number), "{name}{number}");
        }
    }

    fn deaths(&self) -> u64 {
        self.camp.status()["nodes"][0]["deaths"].as_u64().unwrap()
    }

    /// Has a process of the job take more memory than there is; it is killed for that.
    fn take_too_much(&self) {
        let script = "head -c 900000000 /dev/zero | tail -c 900000000 > /dev/null";
        assert!(self.group.command(script).status().is_ok());
    }
}

fn block(number: u64) -> Vec<u8> {
    vec![number as u8 ^ 0x5a; MIB as usize]
}

/// S326, P13.
#[test]
fn what_is_offered_is_what_the_job_has_left() {
    let Some(job) = Job::start(&[]) else { return };
    assert!(job.capacity() <= LIMIT / 2, "{}", job.capacity());
    let count = job.fill("a");
    assert!(count >= 64, "{count} MiB of {LIMIT}");
    job.check("a", count);
    assert_eq!(job.deaths(), 0);
    job.camp.down();
}

/// S327, P13.
#[test]
fn what_others_take_is_not_there() {
    let dir = tempfile::Builder::new().prefix("bvk").tempdir_in("/dev/shm").unwrap();
    let volume = format!("{}:1g", dir.path().join("v").display());
    fs::create_dir(dir.path().join("v")).unwrap();
    let Some(job) = Job::start(&["--volume", &volume]) else { return };
    // More is asked for than the job has: the rest is refused, not taken.
    let other = dir.path().join("other");
    let take = format!("head -c {} /dev/zero > {}", LIMIT / 4, other.display());
    assert!(job.group.command(&take).status().unwrap().success());
    let count = job.fill("b");
    assert!(count < (LIMIT - LIMIT / 4) / MIB, "{count}");
    job.check("b", count);
    assert_eq!(job.deaths(), 0, "{:?}", job.camp.status()["nodes"]);
    // What is given back can be used.
    fs::remove_file(&other).unwrap();
    let more = job.fill("c");
    assert!(more >= 50, "{more} MiB after {count}");
    job.check("b", count);
    assert_eq!(job.deaths(), 0);
    job.camp.down();
}

/// S328.
#[test]
fn deaths_for_want_of_memory_are_named_and_not_counted() {
    let Some(job) = Job::start(&[]) else { return };
    fs::write(job.camp.mount().join("kept"), block(7)).unwrap();
    // One more than is tolerated within a minute.
    for turn in 1..=6 {
        let pid = job.camp.node_pid(0);
        // The kernel takes this one first.
        fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").unwrap();
        job.take_too_much();
        let mut node = serde_json::Value::Null;
        wait_until("the daemon was killed, and another one serves", || {
            node = job.camp.status()["nodes"][0].clone();
            node["deaths"].as_u64().unwrap() >= turn && node["state"] == "ready"
        });
        let message = node["message"].as_str().unwrap();
        assert!(message.contains("killed for want of memory (control group"), "{node}");
        assert!(message.contains("may use 400 MiB"), "{node}");
    }
    job.camp.node_pid(0);
    assert!(fs::read(job.camp.mount().join("kept")).unwrap() == block(7));
    job.camp.down();
}

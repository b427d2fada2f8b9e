//! A daemon that is killed in the middle, and the one that goes on.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use bivouac_mount::{Mount, Options, unmount};

use crate::attached::Bare;
use crate::memory::{Memory, SEED, SEED_NAME};

const STATE: &str = "BIVOUAC_TEST_MOUNT_STATE";
const AT_WORK: &str = "a write is in flight";

/// Body of the daemon that is killed: the device is its standard input. A write never ends in it.
#[test]
#[ignore = "the child process of another test"]
fn doomed_daemon() {
    let state = std::env::var(STATE).unwrap();
    let state = OpenOptions::new().read(true).write(true).open(state).unwrap();
    let device = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let fs = Memory::with_gate(|operation, _| {
        if operation == "write" {
            eprintln!("{AT_WORK}");
            loop {
                thread::park();
            }
        }
    });
    Mount::new(Arc::new(fs), device, state, Options::default()).unwrap().run().unwrap();
    panic!("the doomed daemon was to be killed");
}

fn child(bare: &Bare, body: &str) -> Child {
    let state = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&bare.state));
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", body, "--ignored", "--nocapture"])
        .env(STATE, state)
        .stdin(bare.device.try_clone().unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn kill_once_at_work(mut daemon: Child) {
    let mut lines = BufReader::new(daemon.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == AT_WORK));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

fn open_and_write(dir: &Path) -> (File, thread::JoinHandle<usize>) {
    let path = dir.join(SEED_NAME);
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let writer = file.try_clone().unwrap();
    (file, thread::spawn(move || writer.write_at(b"written twice, done once", 4).unwrap()))
}

#[test]
fn a_killed_daemon_is_replaced_under_open_files_and_unanswered_requests() {
    let Some(bare) = Bare::new() else { return };
    let daemon = child(&bare, "resumed::doomed_daemon");
    let (file, writer) = open_and_write(bare.dir.path());
    kill_once_at_work(daemon);

    let attached = bare.serve(Memory::new(), Options::default());
    assert_eq!(writer.join().unwrap(), 24);
    assert_eq!(attached.fs.reasserted(), [(SEED, 2, 1)]);
    let mutations = attached.fs.mutations();
    let (_, write) = mutations.iter().find(|(name, _)| *name == "write").unwrap();
    assert!(write.retry && write.id.0 < 1 << 63, "{write:?}");
    let mut content = [0; 24];
    file.read_exact_at(&mut content, 4).unwrap();
    assert_eq!(&content, b"written twice, done once");
    fs::write(attached.path("new"), "and life goes on").unwrap();
    assert_eq!(fs::read_to_string(attached.path("new")).unwrap(), "and life goes on");
    drop(file);
    let fs = Arc::clone(&attached.fs);
    attached.end();
    assert_eq!(fs.opens(), []);
}

/// Body of a daemon that may be killed at any time: the device is its standard input.
#[test]
#[ignore = "the child process of another test"]
fn mortal_daemon() {
    let state = OpenOptions::new().read(true).write(true).open(std::env::var(STATE).unwrap()).unwrap();
    let device = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    Mount::new(Arc::new(Memory::new()), device, state, Options::default()).unwrap().run().unwrap();
}

#[test]
fn programs_notice_nothing_of_daemons_that_are_killed_one_after_another_under_load() {
    const PROGRAMS: usize = 4;
    const KILLS: usize = 20;
    let Some(bare) = Bare::new() else { return };
    let (path, is_over) = (bare.dir.path().join(SEED_NAME), AtomicBool::new(false));
    let (tell, answers) = channel();
    let ask = |tell: Sender<()>| {
        while !is_over.load(Ordering::Acquire) {
            assert!(fs::metadata(&path).unwrap().is_file());
            assert_eq!(fs::read(&path).unwrap(), b"");
            tell.send(()).unwrap();
        }
    };
    thread::scope(|scope| {
        scopeguard::defer! { is_over.store(true, Ordering::Release) }
        let programs: Vec<_> = (0..PROGRAMS)
            .map(|_| {
                let tell = tell.clone();
                scope.spawn(move || ask(tell))
            })
            .collect();
        // Who fails says so by its silence.
        drop(tell);
        let mut daemon = child(&bare, "resumed::mortal_daemon");
        for kill in 0..KILLS {
            // Others come after other numbers of answers, so that each kill finds something else under way.
            (0..20 + kill * 37 % 101).for_each(|_| answers.recv().unwrap());
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            while answers.try_recv().is_ok() {}
            daemon = child(&bare, "resumed::mortal_daemon");
        }
        is_over.store(true, Ordering::Release);
        programs.into_iter().for_each(|program| program.join().unwrap());
        unmount(bare.dir.path()).unwrap();
        assert!(daemon.wait().unwrap().success());
    });
}

#[test]
fn the_state_of_another_mount_is_refused() {
    let Some(bare) = Bare::new() else { return };
    let first = Options { identity: 1, ..Options::default() };
    let mount = |identity| {
        let device = bare.device.try_clone().unwrap();
        let state = bare.state.try_clone().unwrap();
        Mount::new(Arc::new(Memory::new()), device, state, Options { identity, ..first.clone() })
    };
    assert!(mount(1).is_ok());
    assert!(mount(2).err().unwrap().to_string().contains("that of another mount; unmount"));
    unmount(bare.dir.path()).unwrap();
}

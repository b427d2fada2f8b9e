//! What the kernel asks of a mount besides reading and writing: programs that are killed while a node does not answer,
//! and handles of files that it does not know any more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{Camp, signal, try_to_signal, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// A daemon that stands still; it goes on when this is dropped.
struct Stopped(u64);

impl Drop for Stopped {
    fn drop(&mut self) {
        try_to_signal(self.0, Signal::CONT);
    }
}

/// A directory whose home is the second node, and in whose files all is there.
fn dir_of_the_other(camp: &Camp, prefix: &str) -> PathBuf {
    for number in 0.. {
        let dir = camp.mount().join(format!("{prefix}{number}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("f"), "content").unwrap();
        let said = camp.place().run(&["explain", "--json", dir.join("f").to_str().unwrap()]);
        let told: Value = serde_json::from_str(&said.out).unwrap();
        if told["home"] == 1 && told["targets"].as_array().unwrap().iter().all(|target| target["node"] == 1) {
            // What is open may be read without a message to its home.
            wait_until("all is closed", || has_nothing_open(camp));
            return dir;
        }
    }
    unreachable!("numbers do not end")
}

fn has_nothing_open(camp: &Camp) -> bool {
    camp.run("status", &[]).out.contains(" 0 open\n")
}

fn has_python() -> bool {
    let has = Command::new("python3").arg("-V").output().is_ok();
    if !has {
        println!("skipped: python3 is not installed");
    }
    has
}

/// Starts a program in a directory. It says on its standard output when it is about to do what it is for.
fn program(dir: &Path, script: &str) -> Child {
    let begin = "import os, sys, signal\ndef go(): os.write(1, b'!')\n";
    let mut command = Command::new("python3");
    command.args(["-c", &format!("{begin}{script}")]).current_dir(dir).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

/// Waits until the program is in the middle of a request that its mount has read.
fn wait_until_it_waits(child: &mut Child) {
    use std::io::Read;
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let place = format!("/proc/{}/wchan", child.id());
    wait_until("it waits for the file system", || {
        let place = fs::read_to_string(&place).unwrap_or_default();
        place.contains("request_wait_answer") || place.contains("fuse")
    });
}

const PROGRAMS: &[(&str, &str)] = &[
    ("read", "fd = os.open('f', os.O_RDONLY); input_ready()\nos.read(fd, 10)"),
    ("write", "fd = os.open('f', os.O_WRONLY); input_ready()\nos.write(fd, b'CONTENT')"),
    ("stat", "input_ready()\nos.stat('f')"),
    ("open", "input_ready()\nos.open('f', os.O_RDWR)"),
    ("create", "input_ready()\nos.open('made', os.O_RDWR | os.O_CREAT)"),
    ("rename", "input_ready()\nos.rename('f', 'to')"),
    ("statvfs", "input_ready()\nos.statvfs('.')"),
];

/// S360, S361: whatever it waits for, a program that is killed ends, and what it did is done or not.
#[test]
fn a_killed_program_does_not_wait_for_a_node_that_stands_still() {
    let options = ["--nodes", "2", "--width", "1", "--wait", "1000s"];
    let Some(camp) = has_python().then(|| Camp::start(&options)).flatten() else { return };
    let dirs: Vec<PathBuf> = PROGRAMS.iter().map(|(what, _)| dir_of_the_other(&camp, what)).collect();
    // Each opens what it needs, and then waits to be told that the node stands still.
    let ready = "def input_ready():\n  go(); signal.sigwait([signal.SIGUSR1]); go()\n\
                 signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n";
    let mut children: Vec<Child> = PROGRAMS
        .iter()
        .zip(&dirs)
        .map(|((_, script), dir)| {
            let mut child = program(dir, &format!("{ready}{script}"));
            use std::io::Read;
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            child
        })
        .collect();
    let stopped = Stopped(camp.node_pid(1));
    signal(stopped.0, Signal::STOP);
    for child in &mut children {
        signal(u64::from(child.id()), Signal::USR1);
        wait_until_it_waits(child);
    }
    for (child, (what, _)) in children.iter_mut().zip(PROGRAMS) {
        signal(u64::from(child.id()), Signal::KILL);
        wait_until(&format!("it ends in the middle of {what}"), || child.try_wait().unwrap().is_some());
    }
    drop(stopped);
    assert_eq!(fs::read(dirs[0].join("f")).unwrap(), b"content");
    let written = fs::read(dirs[1].join("f")).unwrap();
    assert!(written == b"content" || written == b"CONTENT", "{written:?}");
    let names: Vec<bool> = ["f", "to"].iter().map(|name| dirs[5].join(name).exists()).collect();
    assert!(names == [true, false] || names == [false, true], "{names:?}");
    // Nothing stays open for who is gone: what is removed is given back.
    dirs.iter().for_each(|dir| fs::remove_dir_all(dir).unwrap());
    wait_until("all is closed", || has_nothing_open(&camp));
    camp.down();
}

/// S361: a signal with a handler is delivered behind the call, which does not fail for it; one that kills and comes
/// behind it is noticed all the same.
#[test]
fn a_signal_with_a_handler_does_not_end_a_call_and_a_later_kill_does() {
    let options = ["--nodes", "2", "--width", "1", "--wait", "1000s"];
    let Some(camp) = has_python().then(|| Camp::start(&options)).flatten() else { return };
    let dir = dir_of_the_other(&camp, "d");
    // Not begun again by the interpreter: a call that fails with EINTR would show.
    let script = "import ctypes\n\
        libc = ctypes.CDLL(None, use_errno=True); buffer = ctypes.create_string_buffer(20)\n\
        signal.signal(signal.SIGALRM, lambda *_: os.write(2, b''))\n\
        signal.siginterrupt(signal.SIGALRM, True)\n\
        fd = os.open('f', os.O_RDONLY); go(); signal.sigwait([signal.SIGUSR1]); go()\n\
        n = libc.read(fd, buffer, 20); assert n == 7, (n, ctypes.get_errno())\n\
        assert buffer.value == b'content'";
    let masked = format!("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n{script}");
    let mut children = [program(&dir, &masked), program(&dir, &masked)];
    for child in &mut children {
        use std::io::Read;
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }
    let stopped = Stopped(camp.node_pid(1));
    signal(stopped.0, Signal::STOP);
    for child in &mut children {
        signal(u64::from(child.id()), Signal::USR1);
        wait_until_it_waits(child);
        signal(u64::from(child.id()), Signal::ALARM);
    }
    let [lives, killed] = &mut children;
    signal(u64::from(killed.id()), Signal::KILL);
    wait_until("the killed one ends", || killed.try_wait().unwrap().is_some());
    assert_eq!(lives.try_wait().unwrap(), None, "the other one waits on");
    drop(stopped);
    assert!(lives.wait().unwrap().success());
    camp.down();
}

const HANDLES: &str = r#"
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def handle(path):
    known = ctypes.create_string_buffer(8 + 128); struct.pack_into("I", known, 0, 128); of = ctypes.c_int()
    assert libc.name_to_handle_at(-100, path.encode(), known, ctypes.byref(of), 0) == 0, ctypes.get_errno()
    return known
def opened(known): return libc.open_by_handle_at(mount, known, os.O_RDONLY)
mount = os.open(".", os.O_RDONLY)
os.makedirs("a/b/c"); open("a/b/c/x", "w").write("hello")
paths = ["a/b/c/x", "a/b/c", "a"]; handles = [handle(path) for path in paths]
for rounds in range(3):
    open("/proc/sys/vm/drop_caches", "w").write("2\n")
    for path, known in zip(paths, handles):
        fd = opened(known); assert fd >= 0, (path, os.strerror(ctypes.get_errno()))
        assert os.fstat(fd).st_ino == os.stat(path).st_ino, path
        if path.endswith("x"): assert os.read(fd, 9) == b"hello"
        elif rounds == 0: assert os.listdir(fd) == [{"a/b/c": "x", "a": "b"}[path]], path
        os.close(fd)
os.rename("a/b/c", "moved"); open("/proc/sys/vm/drop_caches", "w").write("2\n")
fd = opened(handles[0]); assert os.read(fd, 9) == b"hello"; os.close(fd)
os.unlink("moved/x"); open("/proc/sys/vm/drop_caches", "w").write("2\n")
assert opened(handles[0]) == -1 and ctypes.get_errno() == 116, ctypes.get_errno()
"#;

/// S362: through a mount that did not make the file, too.
#[test]
fn handles_of_files_outlive_what_the_kernel_knows_of_them() {
    if !rustix::process::geteuid().is_root() || !has_python() {
        return println!("skipped: it takes root and python3");
    }
    let Some(camp) = Camp::start_each(&["--nodes", "3"]) else { return };
    for mount in camp.mounts() {
        let mut command = Command::new("python3");
        let output = command.args(["-c", HANDLES]).current_dir(mount).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::remove_dir_all(mount.join("a")).unwrap();
        fs::remove_dir_all(mount.join("moved")).unwrap();
    }
    camp.down();
}

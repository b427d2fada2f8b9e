//! What mappings show beside direct writes, under the real kernel.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use bivouac_mount::Options;

use crate::attached::Bare;
use crate::memory::{Memory, SEED};

const LEN: usize = 16384;

/// A program that has mapped a file, and answers what is asked of it line by line.
struct Mapper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Mapper {
    fn new(path: &std::path::Path) -> Option<Mapper> {
        let script = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
shared = mmap.mmap(fd, 0)
for line in sys.stdin:
    word, at, text = line.split()
    at = int(at)
    if word == 'store':
        shared[at:at + len(text)] = text.encode()
    if word == 'sync':
        shared.flush()
    print(shared[at:at + len(text)].decode(), flush=True)
";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                eprintln!("skipped: python3: {error}");
                return None;
            }
        };
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Some(Mapper { child, input, output })
    }

    /// Has it do something at an offset with a text, or as many bytes; what the mapping shows there then.
    fn ask(&mut self, word: &str, at: usize, text: &str) -> String {
        writeln!(self.input, "{word} {at} {text}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

/// A write of the file `seed` that the file system does not carry out until the test says so.
struct HeldWrite {
    /// Set to hold the next write.
    holds: Arc<AtomicBool>,
    arrivals: mpsc::Receiver<()>,
    release: mpsc::Sender<()>,
}

impl HeldWrite {
    fn of_seed() -> (Memory, HeldWrite) {
        let (arrived, arrivals) = mpsc::channel();
        let (release, gate) = mpsc::channel::<()>();
        let (holds, gate) = (Arc::new(AtomicBool::new(false)), Mutex::new(gate));
        let held = Arc::clone(&holds);
        let memory = Memory::with_gate(move |operation, ino| {
            if operation == "write" && ino == SEED && held.swap(false, Ordering::SeqCst) {
                arrived.send(()).unwrap();
                gate.lock().unwrap().recv().unwrap();
            }
        });
        (memory, HeldWrite { holds, arrivals, release })
    }
}

/// S14: the kernel drops the pages before it sends the write, and a fault before that is served brings the old content
/// back.
#[test]
fn a_page_that_is_read_while_a_write_is_under_way_is_dropped_again() {
    let Some(bare) = Bare::new() else { return };
    let (memory, next) = HeldWrite::of_seed();
    let at = bare.serve(memory, Options { readers_max: 2, ..Options::default() });
    let path = at.path("seed");
    fs::write(&path, vec![b'.'; LEN]).unwrap();
    let Some(mut mapper) = Mapper::new(&path) else { return };
    assert_eq!(mapper.ask("look", 10, "new"), "...");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for (old, new) in [("...", b"new"), ("new", b"NEW")] {
        next.holds.store(true, Ordering::SeqCst);
        let writer = file.try_clone().unwrap();
        let writer = thread::spawn(move || writer.write_all_at(new, 10).unwrap());
        next.arrivals.recv().unwrap();
        assert_eq!(mapper.ask("look", 10, "new"), old, "it is not written yet");
        assert_eq!(mapper.ask("store", 20, "stored"), "stored");
        next.release.send(()).unwrap();
        writer.join().unwrap();
        assert_eq!(mapper.ask("look", 10, "new").as_bytes(), new);
        assert_eq!(mapper.ask("look", 20, "stored"), "stored", "what was stored beside it");
        mapper.ask("sync", 0, ".");
        let content = fs::read(&path).unwrap();
        assert_eq!((&content[10..13], &content[20..26]), (&new[..], &b"stored"[..]));
        assert_eq!(mapper.ask("store", 20, "......"), "......");
        // What the kernel writes back before the next write is not the write that is held.
        mapper.ask("sync", 0, ".");
    }
    mapper.end();
    drop(file);
    at.end();
}

/// S10: of a write that fails some bytes may be there, and a fault before that brings the old content back.
#[test]
fn a_page_that_is_read_while_a_write_is_about_to_fail_is_dropped_again() {
    let Some(bare) = Bare::new() else { return };
    let (memory, next) = HeldWrite::of_seed();
    let at = bare.serve(memory, Options { readers_max: 2, ..Options::default() });
    let path = at.path("seed");
    fs::write(&path, vec![b'.'; LEN]).unwrap();
    let Some(mut mapper) = Mapper::new(&path) else { return };
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(mapper.ask("look", 10, "halfhalf"), "........");
    at.fs.fails_half.store(true, Ordering::Relaxed);
    next.holds.store(true, Ordering::SeqCst);
    let writer = thread::spawn(move || file.write_all_at(b"halfhalf", 10).unwrap_err());
    next.arrivals.recv().unwrap();
    assert_eq!(mapper.ask("look", 10, "halfhalf"), "........", "it is not written yet");
    next.release.send(()).unwrap();
    assert_eq!(writer.join().unwrap().raw_os_error(), Some(5));
    assert_eq!(mapper.ask("look", 10, "halfhalf"), "half....");
    mapper.end();
    at.end();
}

/// S14: cells of several processes side by side in each page, by turns stored through a mapping and written.
#[test]
fn mappings_and_writes_of_several_processes_lose_nothing() {
    let Some(bare) = Bare::new() else { return };
    let at = bare.serve(Memory::new(), Options::default());
    let path = at.path("seed");
    fs::write(&path, vec![b'.'; LEN]).unwrap();
    let script = "
import mmap, os, random, sys
path, k = sys.argv[1], int(sys.argv[2])
turns, fd, mine = random.Random(k), os.open(path, os.O_RDWR), {}
shared = mmap.mmap(fd, 0)
for step in range(1500):
    at, value = turns.randrange(len(shared) // 256) * 256 + k * 64, bytes([33 + step % 90]) * 64
    if step % 2:
        shared[at:at + 64] = value
    else:
        os.pwrite(fd, value, at)
    assert os.pread(fd, 64, at) == value, ('read', step)
    assert shared[at:at + 64] == value, ('mapping', step)
    mine[at] = value
shared.flush()
assert all(os.pread(fd, 64, at) == value for at, value in mine.items()), 'lost'
";
    let start = |k: usize| Command::new("python3").args(["-c", script]).arg(&path).arg(k.to_string()).spawn();
    let Ok(children) = (0..4).map(start).collect::<Result<Vec<_>, _>>() else {
        eprintln!("skipped: no python3");
        return;
    };
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    at.end();
}

//! Asynchronous direct I/O, under the real kernel, of a file that other mounts make longer.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use bivouac_mount::{FileSystem, OpCtx};
use bivouac_types::OpId;

use crate::attached::Attached;
use crate::memory::SEED;

const OTHER: OpCtx = OpCtx { id: OpId(1 << 40), channel: 9, retry: false, uid: 0, gid: 0, pid: 0 };
const LEN: usize = 10_000;

/// Has libaio read or write so many bytes at an offset of an open file; what it says: a length or a negative errno. `None`
/// where that cannot be.
fn submitted(file: &fs::File, op: &str, at: u64, len: usize) -> Option<i64> {
    let script = "
import ctypes, platform, struct, sys
numbers = {'x86_64': (206, 209, 208), 'aarch64': (0, 2, 4)}.get(platform.machine())
if numbers is None:
    sys.exit()
setup, submit, events = numbers
libc = ctypes.CDLL(None, use_errno=True)
context = ctypes.c_ulong(0)
if libc.syscall(setup, 1, ctypes.byref(context)) != 0:
    sys.exit()
op, at, size = ['read', 'write'].index(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
buffer = ctypes.create_string_buffer(size)
block = struct.pack('<QIIHhIQQqQII', 0, 0, 0, op, 0, 0, ctypes.addressof(buffer), size, at, 0, 0, 0)
block = ctypes.create_string_buffer(block)
assert libc.syscall(submit, context, ctypes.c_long(1), (ctypes.c_void_p * 1)(ctypes.addressof(block))) == 1
event = ctypes.create_string_buffer(32)
assert libc.syscall(events, context, ctypes.c_long(1), ctypes.c_long(1), event, None) == 1
print(struct.unpack('<QQqq', event.raw)[2])
";
    let mut command = Command::new("python3");
    command.args(["-c", script, op, &at.to_string(), &len.to_string()]);
    let output = match command.stdin(file.try_clone().unwrap()).stderr(Stdio::inherit()).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: python3: {error}");
            return None;
        }
    };
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap().trim_end().parse().ok();
    if said.is_none() {
        eprintln!("skipped: no asynchronous I/O here");
    }
    said
}

fn open(path: &Path) -> fs::File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// S1. The kernel ends the read at the size that it knows, and asks nobody.
#[test]
fn what_another_mount_has_appended_is_read_asynchronously_once_that_is_told() {
    let Some(at) = Attached::new() else { return };
    let file = open(&at.path("seed"));
    for round in 1..=3 {
        at.fs.write(&OTHER, SEED, 0, &vec![round as u8; round * LEN], false).unwrap();
        at.mount.has_grown(SEED, (round * LEN) as u64);
        let last = ((round - 1) * LEN) as u64;
        let Some(said) = submitted(&file, "read", last, LEN) else { return };
        assert_eq!(said, LEN as i64, "round {round}");
        let mut content = vec![0; LEN];
        file.read_exact_at(&mut content, last).unwrap();
        assert!(content.iter().all(|byte| usize::from(*byte) == round));
    }
    assert_eq!(file.metadata().unwrap().len(), 3 * LEN as u64);
    // Nothing is told that the kernel knows better.
    at.mount.has_grown(SEED, 1);
    assert_eq!(file.metadata().unwrap().len(), 3 * LEN as u64);
    drop(file);
    at.end();
}

/// S6. The kernel cuts the file to the size that it knows after such a write, and knows nothing of what others wrote.
#[test]
fn an_asynchronous_write_that_fails_cuts_nothing_off_that_others_wrote() {
    let Some(at) = Attached::new() else { return };
    let file = open(&at.path("seed"));
    at.fs.write(&OTHER, SEED, 0, &vec![7; LEN], false).unwrap();
    let Some(said) = submitted(&file, "write", 1 << 30, 4096) else { return };
    assert_eq!(said, -27, "EFBIG");
    let mut content = vec![0; LEN];
    assert_eq!(at.fs.read(SEED, 0, &mut content), Ok(LEN));
    assert!(content.iter().all(|byte| *byte == 7));
    assert!(at.fs.mutations().iter().all(|(operation, _)| *operation != "setattr"));
    // A program that cuts the file itself does so, also right behind a write that failed.
    assert!(file.write_all_at(&[1], 1 << 30).is_err());
    file.write_all_at(&[1; 10], LEN as u64).unwrap();
    file.set_len(LEN as u64).unwrap();
    assert_eq!(at.fs.getattr_cached(SEED).unwrap().size, LEN as u64);
    assert!(file.write_all_at(&[1], 1 << 30).is_err());
    file.set_len(10).unwrap();
    assert_eq!(at.fs.getattr_cached(SEED).unwrap().size, 10);
    drop(file);
    at.end();
}

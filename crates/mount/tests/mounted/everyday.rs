//! What programs do every day, under the real kernel.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};

use bivouac_mount::{FileSystem, OpCtx, Options};
use bivouac_types::{Ino, OpId};

use crate::attached::{Attached, Bare};
use crate::memory::{Memory, SEED};

const DIR: &str = "dir";
const FILE: &str = "file";

#[test]
fn files_are_written_read_cut_and_removed() {
    let Some(at) = Attached::new() else { return };
    let path = at.path("file");
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    fs::write(&path, &data).unwrap();
    assert!(fs::read(&path).unwrap() == data);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"xyz", 1_000_001).unwrap();
    let mut part = [0; 5];
    file.read_exact_at(&mut part, 1_000_000).unwrap();
    assert_eq!(part, [data[1_000_000], b'x', b'y', b'z', data[1_000_004]]);
    file.set_len(10).unwrap();
    assert_eq!((file.metadata().unwrap().len(), fs::read(&path).unwrap().len()), (10, 10));
    file.sync_all().unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_millis(12_345)).unwrap();
    let seen = fs::metadata(&path).unwrap();
    assert_eq!((seen.mtime(), seen.mtime_nsec()), (12, 345_000_000));
    fs::remove_file(&path).unwrap();
    assert_eq!(file.read_at(&mut part, 0).unwrap(), 5, "an open file outlives its name");
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
    at.end();
}

/// S42: whatever others do between the kernel's look-up and its next request.
#[test]
fn what_is_replaced_as_often_as_it_is_looked_up_is_never_missing() {
    let fs: Arc<OnceLock<Weak<Memory>>> = Arc::default();
    let (replaced, inner) = (Arc::new(AtomicU64::new(0)), Arc::clone(&fs));
    let counted = Arc::clone(&replaced);
    let gate = move |_: &str, ino: Ino| {
        let names = [DIR, FILE];
        if let Some(fs) = inner.get().and_then(Weak::upgrade)
            && let Some(name) = names.iter().find(|name| fs.leads_to(name) == Some(ino))
        {
            fs.replace(name);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    };
    let Some(at) = Bare::new().map(|bare| bare.serve(Memory::with_gate(gate), Options::default())) else {
        return;
    };
    fs::create_dir(at.path(DIR)).unwrap();
    fs::write(at.path(FILE), "").unwrap();
    fs.set(Arc::downgrade(&at.fs)).unwrap();
    for round in 1..=10 {
        let (dir, file) = (fs::metadata(at.path(DIR)).unwrap(), fs::metadata(at.path(FILE)).unwrap());
        assert!(dir.is_dir() && file.is_file());
        assert_eq!((dir.nlink(), file.nlink()), (0, 0), "round {round}: it was there, and is gone");
        assert_eq!(replaced.load(Ordering::Relaxed), 4 * round, "each twice");
    }
    let missing = fs::metadata(at.path("nowhere")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    at.end();
}

/// S42: others remove a file and make it again each time before it is opened by its number; the second time that it is
/// looked up it stays until it is open.
#[test]
fn a_file_that_is_replaced_twice_before_it_is_opened_is_opened() {
    let fs: Arc<OnceLock<Weak<Memory>>> = Arc::default();
    let looks = Arc::new(AtomicU64::new(0));
    let (of_gate, counted) = (Arc::clone(&fs), Arc::clone(&looks));
    let gate = move |operation: &str, _: Ino| {
        if operation == "open to append"
            && let Some(fs) = of_gate.get().and_then(Weak::upgrade)
        {
            // What was found is gone, unless somebody has it open.
            counted.fetch_add(1, Ordering::Relaxed);
            fs.replace(FILE);
        }
    };
    let Some(at) = Bare::new().map(|bare| bare.serve(Memory::with_gate(gate), Options::default())) else {
        return;
    };
    fs::write(at.path(FILE), "").unwrap();
    fs.set(Arc::downgrade(&at.fs)).unwrap();
    for round in 0..20 {
        let file = OpenOptions::new().append(true).create(true).open(at.path(FILE));
        assert!(file.is_ok(), "round {round}: {file:?}");
    }
    assert!(looks.load(Ordering::Relaxed) >= 20);
    let fs = Arc::clone(&at.fs);
    at.end();
    assert_eq!(fs.opens(), [], "nothing is held any more");
}

/// S20: what has become of it since it was looked up, nobody knows.
#[test]
fn what_is_gone_is_not_described_as_it_was() {
    let Some(at) = Attached::new() else { return };
    fs::create_dir(at.path(DIR)).unwrap();
    fs::write(at.path(FILE), "").unwrap();
    for name in [DIR, FILE] {
        let found = rustix::fs::open(at.path(name), OFlags::PATH, Mode::empty()).unwrap();
        at.fs.replace(name);
        assert_eq!(rustix::fs::fstat(&found).unwrap_err(), rustix::io::Errno::STALE, "{name}");
        assert_eq!(rustix::fs::fstat(&found).unwrap_err(), rustix::io::Errno::STALE, "{name}");
    }
    at.end();
}

#[test]
fn appends_go_to_the_end_whoever_wrote_before() {
    let Some(at) = Attached::new() else { return };
    let open = || OpenOptions::new().append(true).create(true).open(at.path("log")).unwrap();
    let (mut one, mut two) = (open(), open());
    for _ in 0..50 {
        one.write_all(b"one ").unwrap();
        two.write_all(b"two ").unwrap();
    }
    assert_eq!(fs::read_to_string(at.path("log")).unwrap(), "one two ".repeat(50));
    drop((one, two));
    at.end();
}

#[test]
fn exclusive_creation_and_truncation_do_what_they_say() {
    let Some(at) = Attached::new() else { return };
    fs::write(at.path("file"), "content").unwrap();
    let again = OpenOptions::new().write(true).create_new(true).open(at.path("file")).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    drop(OpenOptions::new().write(true).truncate(true).open(at.path("file")).unwrap());
    assert_eq!(fs::metadata(at.path("file")).unwrap().len(), 0);
    at.end();
}

#[test]
fn names_are_moved_linked_and_exchanged() {
    let Some(at) = Attached::new() else { return };
    fs::create_dir_all(at.path("a/b")).unwrap();
    fs::write(at.path("a/one"), "1").unwrap();
    fs::write(at.path("two"), "2").unwrap();
    fs::rename(at.path("a/one"), at.path("a/b/moved")).unwrap();
    fs::hard_link(at.path("a/b/moved"), at.path("linked")).unwrap();
    assert_eq!(fs::metadata(at.path("linked")).unwrap().nlink(), 2);
    symlink("a/b/moved", at.path("symbolic")).unwrap();
    assert_eq!(fs::read_to_string(at.path("symbolic")).unwrap(), "1");
    assert_eq!(fs::read_link(at.path("symbolic")).unwrap().to_str(), Some("a/b/moved"));
    let root = File::open(at.path("")).unwrap();
    rustix::fs::renameat_with(&root, "two", &root, "linked", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(at.path("linked")).unwrap(), "2");
    let refused = rustix::fs::renameat_with(&root, "two", &root, "linked", RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    assert_eq!(fs::remove_dir(at.path("a")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir_all(at.path("a")).unwrap();
    assert!(!at.path("a").exists());
    drop(root);
    at.end();
}

/// S22.
/// S92: the kernel has one name for a directory, and moves it only while no program renames between directories.
#[test]
fn a_directory_that_others_moved_is_found_during_a_rename() {
    let Some(bare) = Bare::new() else { return };
    let (arrived, arrivals) = mpsc::channel();
    let (release, gate) = mpsc::channel::<()>();
    let (held, gate) = (Arc::new(AtomicU64::new(0)), Mutex::new(gate));
    let from = Arc::clone(&held);
    let memory = Memory::with_gate(move |operation, ino| {
        if operation == "rename" && ino.0 == from.load(Ordering::SeqCst) {
            arrived.send(()).unwrap();
            gate.lock().unwrap().recv().unwrap();
        }
    });
    let at = bare.serve(memory, Options { readers_max: 2, ..Options::default() });
    for name in ["a", "b", "x", "y", "a/dir"] {
        fs::create_dir(at.path(name)).unwrap();
    }
    for name in ["x/file", "a/dir/inner"] {
        fs::write(at.path(name), name).unwrap();
    }
    let ino = |name: &str| Ino(fs::metadata(at.path(name)).unwrap().ino());
    let (a, b) = (ino("a"), ino("b"));
    assert_eq!(fs::read(at.path("a/dir/inner")).unwrap(), b"a/dir/inner");
    held.store(ino("x").0, Ordering::SeqCst);
    let (source, target) = (at.path("x/file"), at.path("y/file"));
    let renamer = std::thread::spawn(move || fs::rename(source, target));
    arrivals.recv().unwrap();
    let ctx = OpCtx { id: OpId(1), channel: 0, retry: false, uid: 0, gid: 0, pid: 0 };
    for (from, to, name) in [(a, b, "b"), (b, a, "a")] {
        at.fs.rename(&ctx, from, b"dir", to, b"dir", 0).unwrap();
        let inner = at.path(name).join("dir/inner");
        assert_eq!(fs::read(inner).map_err(|error| error.kind()), Ok(b"a/dir/inner".to_vec()));
    }
    release.send(()).unwrap();
    renamer.join().unwrap().unwrap();
    at.end();
}

#[test]
fn a_listing_of_10_000_entries_survives_deletions() {
    const COUNT: usize = 10_000;
    let Some(at) = Attached::new() else { return };
    let dir = at.path("many");
    fs::create_dir(&dir).unwrap();
    let name = |n: usize| format!("entry-{n:05}");
    for n in 0..COUNT {
        File::create(dir.join(name(n))).unwrap();
    }
    let mut seen = BTreeSet::new();
    for (position, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_file());
        assert!(seen.insert(entry.file_name().into_string().unwrap()), "an entry came twice");
        if position % 2 == 0 {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert_eq!(seen, (0..COUNT).map(name).collect());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), COUNT / 2);
    at.end();
}

#[test]
fn extended_attributes_are_kept() {
    let Some(at) = Attached::new() else { return };
    let path = at.path("seed");
    rustix::fs::setxattr(&path, "user.colour", b"green", XattrFlags::empty()).unwrap();
    let mut value = [0; 64];
    let len = rustix::fs::getxattr(&path, "user.colour", &mut value).unwrap();
    assert_eq!(&value[..len], b"green");
    assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut [0; 2]), Err(rustix::io::Errno::RANGE));
    let len = rustix::fs::listxattr(&path, &mut value).unwrap();
    assert_eq!(&value[..len], b"user.colour\0");
    rustix::fs::removexattr(&path, "user.colour").unwrap();
    assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut value), Err(rustix::io::Errno::NODATA));
    at.end();
}

#[test]
fn files_without_names_get_one_or_go() {
    let Some(at) = Attached::new() else { return };
    let (flags, mode) = (OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600));
    let file = File::from(rustix::fs::open(at.path(""), flags, mode).unwrap());
    file.write_all_at(b"content", 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, &name, CWD, at.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(file);
    assert_eq!(std::fs::read(at.path("named")).unwrap(), b"content");
    at.end();
}

#[test]
fn ranges_are_copied_by_the_file_system() {
    let Some(at) = Attached::new() else { return };
    std::fs::write(at.path("from"), "0123456789").unwrap();
    let (from, to) = (File::open(at.path("from")).unwrap(), File::create_new(at.path("to")).unwrap());
    let (mut off_in, mut off_out) = (2, 5);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut off_in), &to, Some(&mut off_out), 100).unwrap();
    assert_eq!((copied, off_in, off_out), (8, 10, 13));
    assert_eq!(std::fs::read(at.path("to")).unwrap(), b"\0\0\0\0\x0023456789");
    assert!(at.fs.mutations().iter().any(|(operation, _)| *operation == "copy"));
    drop((from, to));
    at.end();
}

#[test]
fn space_holes_and_reservations_are_shown() {
    let Some(at) = Attached::new() else { return };
    let fs = rustix::fs::statvfs(at.path("")).unwrap();
    assert_eq!((fs.f_bsize, fs.f_blocks, fs.f_bavail, fs.f_namemax), (4096, 1000, 600, 255));
    let mut file = File::options().read(true).write(true).open(at.path("seed")).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100).unwrap();
    file.write_all_at(b"data", 50).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)), Ok(50));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(50)), Ok(54));
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 100);
    let mut rest = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 100);
    drop(file);
    at.end();
}

#[test]
fn a_copy_made_by_the_kernel_is_whole() {
    let Some(at) = Attached::new() else { return };
    let data: Vec<u8> = (0..700_000u32).map(|n| (n % 241) as u8).collect();
    fs::write(at.path("from"), &data).unwrap();
    assert_eq!(fs::copy(at.path("from"), at.path("to")).unwrap(), 700_000);
    assert!(fs::read(at.path("to")).unwrap() == data);
    at.end();
}

/// Runs a script, or says why not.
fn python(script: &str, argument: &std::path::Path) -> Option<String> {
    match Command::new("python3").args(["-c", script]).arg(argument).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            eprintln!("skipped: python3: {error}");
            None
        }
    }
}

/// S14, S15.
#[test]
fn shared_mappings_and_calls_see_each_other() {
    let Some(at) = Attached::new() else { return };
    fs::write(at.path("mapped"), vec![b'.'; 8192]).unwrap();
    let script = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
shared = mmap.mmap(fd, 8192)
shared[4095:4098] = b'abc'
print(os.pread(fd, 3, 4095).decode())
os.pwrite(fd, b'xyz', 10)
print(shared[9:14].decode())
shared.flush()
shared.close()
";
    let Some(output) = python(script, &at.path("mapped")) else { return };
    assert_eq!(output, "abc\n.xyz.\n");
    let content = fs::read(at.path("mapped")).unwrap();
    assert_eq!((&content[9..14], &content[4094..4099], content.len()), (&b".xyz."[..], &b".abc."[..], 8192));
    at.end();
}

#[test]
fn sqlite_works_with_a_write_ahead_log() {
    let Some(at) = Attached::new() else { return };
    let script = "
import sqlite3, sys
one = sqlite3.connect(sys.argv[1])
print(one.execute('pragma journal_mode=wal').fetchone()[0])
one.execute('create table t (n integer)')
one.executemany('insert into t values (?)', [(n,) for n in range(1000)])
one.commit()
two = sqlite3.connect(sys.argv[1])
print(two.execute('select count(*), sum(n) from t').fetchone())
";
    let Some(output) = python(script, &at.path("db")) else { return };
    assert_eq!(output, "wal\n(1000, 499500)\n");
    at.end();
}

fn can_be_another_user() -> bool {
    let tried = Command::new("true").uid(65_534).gid(65_534).status();
    if let Err(error) = &tried {
        eprintln!("skipped: nobody can be another user here: {error}");
    }
    tried.is_ok() && rustix::process::geteuid().is_root()
}

/// S30.
#[test]
fn a_write_by_another_user_drops_set_id_bits() {
    let Some(at) = Attached::new() else { return };
    if !can_be_another_user() {
        return;
    }
    fs::set_permissions(at.path(""), Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(at.path("seed").parent().unwrap(), Permissions::from_mode(0o777)).unwrap();
    let mode = || fs::metadata(at.path("seed")).unwrap().mode() & 0o7777;
    for script in ["echo x >> \"$0\"", "echo x > \"$0\""] {
        fs::set_permissions(at.path("seed"), Permissions::from_mode(0o6777)).unwrap();
        fs::write(at.path("seed"), "by root").unwrap();
        assert_eq!(mode(), 0o6777, "root keeps them");
        let path = at.path("seed");
        let status =
            Command::new("sh").args(["-c", script]).arg(&path).uid(65_534).gid(65_534).status().unwrap();
        assert!(status.success());
        assert_eq!(mode(), 0o777, "{script}");
    }
    at.end();
}

/// S30: what is done to a file by somebody who is not in its group.
#[test]
fn set_group_id_without_execution_goes_with_changes_by_others() {
    let Some(at) = Attached::new() else { return };
    if !can_be_another_user() {
        return;
    }
    let path = at.path("seed");
    fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o777)).unwrap();
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    let acts = ["os.pwrite(f, b'y', 0)", "os.ftruncate(f, 100)", "os.posix_fallocate(f, 0, 30000)"];
    for (before, after) in [(0o2666, 0o666), (0o6666, 0o666), (0o2676, 0o676)] {
        for act in acts {
            fs::write(&path, [b'x'; 20_000]).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            let script = format!("import os, sys; f = os.open(sys.argv[1], os.O_RDWR); {act}");
            let mut command = Command::new("python3");
            let Ok(status) = command.args(["-c", &script]).arg(&path).uid(65_534).gid(65_534).status() else {
                eprintln!("skipped: no python3");
                return;
            };
            assert!(status.success());
            assert_eq!(mode(), after, "{act} on {before:o}");
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            let status = command.gid(0).status().unwrap();
            assert!(status.success());
            let kept = if before & 0o010 == 0 { before & !0o4000 } else { after };
            assert_eq!(mode(), kept, "{act} on {before:o} by a member");
        }
    }
    at.end();
}

/// S29.
#[test]
fn permissions_are_checked_by_the_kernel() {
    let Some(at) = Attached::new() else { return };
    if !can_be_another_user() {
        return;
    }
    fs::write(at.path("secret"), "x").unwrap();
    fs::set_permissions(at.path("secret"), Permissions::from_mode(0o600)).unwrap();
    let status = Command::new("cat").arg(at.path("secret")).uid(65_534).gid(65_534).output().unwrap();
    assert!(!status.status.success());
    assert!(String::from_utf8_lossy(&status.stderr).contains("Permission denied"));
    at.end();
}

/// S12.
#[test]
fn a_write_is_one_request_and_closing_is_passed_on() {
    let Some(at) = Attached::new() else { return };
    let file = OpenOptions::new().write(true).open(at.path("seed")).unwrap();
    for n in 0..10 {
        file.write_all_at(b"x", n).unwrap();
    }
    assert_eq!(at.fs.opens(), [(SEED, 1)]);
    drop(file);
    let counts = at.mount.stats();
    let of = |name: &str| counts.iter().find(|c| c.operation == name).map_or(0, |c| c.requests);
    assert_eq!((of("Open"), of("Write"), of("GetXattr")), (1, 10, 0), "{counts:?}");
    let fs = Arc::clone(&at.fs);
    at.end();
    assert_eq!(fs.opens(), []);
}

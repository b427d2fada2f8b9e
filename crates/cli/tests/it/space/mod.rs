//! Space of files under the real kernel: what programs reserve, free, skip and copy, through several mounts, compared
//! with a file on tmpfs; and daemons that are killed meanwhile.

mod mapping;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::harness::random::Random;
use crate::harness::{Camp, wait_until};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

const PAGE: u64 = 4096;
/// How many random steps the comparison takes.
const STEPS: usize = 1500;
const SIZE_MAX: usize = 300_000;

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(KEEP);

fn camp(more: &[&str]) -> Option<(Camp, tempfile::TempDir)> {
    let beside = tempfile::Builder::new().prefix("bvk").tempdir_in("/dev/shm").unwrap();
    let arguments = [&["--nodes", "3", "--stripe", "16k", "--deaths-max", "1000000/1ms"], more].concat();
    Camp::start_each(&arguments).map(|camp| (camp, beside))
}

/// Runs a script that must succeed; `$A` to `$C` are the mounts, `$T` is a directory elsewhere.
fn run(camp: &Camp, beside: &Path, program: &str, script: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.args([if program == "sh" { "-euxc" } else { "-c" }, script]).stdin(Stdio::null());
    command.env("T", beside).env("LC_ALL", "C");
    for (name, mount) in ["A", "B", "C"].iter().zip(camp.mounts()) {
        command.env(name, mount);
    }
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed (scripts/setup test installs it)");
            return None;
        }
        output => output.unwrap(),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{script}\n{}{}", text(&output.stdout), text(&output.stderr));
    Some(text(&output.stdout))
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// S13, S18, S19, S27, S36.
#[test]
fn tools_reserve_space_and_keep_holes() {
    let Some((camp, beside)) = camp(&[]) else { return };
    let script = r#"
        fallocate -l 1m $A/f; test $(stat -c %s $B/f) = 1048576; test $(stat -c %b $C/f) -ge 2048
        fallocate -n -l 3m $A/f; test $(stat -c %s $B/f) = 1048576
        head -c 300000 /dev/urandom > $T/r; cp $T/r $A/g; cp $T/r $T/g
        fallocate -p -o 5000 -l 100000 $A/g; fallocate -z -o 200000 -l 300000 $A/g
        fallocate -p -o 5000 -l 100000 $T/g; dd if=/dev/zero of=$T/g bs=1000 seek=200 count=300 conv=notrunc status=none
        cmp $T/g $B/g; test $(stat -c %b $B/g) -lt $(( $(stat -c %s $B/g) / 512 ))
        ! fallocate -c -o 0 -l 16384 $A/g 2> $T/err; grep -qi 'not supported' $T/err
        ! fallocate -i -o 0 -l 16384 $A/g 2> /dev/null
        head -c 300000 /dev/zero > $A/z; fallocate -d $A/z; cmp -n 300000 /dev/zero $B/z; test $(stat -c %b $C/z) = 0
        truncate -s 50m $A/s; test $(stat -c %b $B/s) = 0
        dd if=$T/r of=$A/s bs=10000 seek=2000 conv=notrunc status=none
        dd if=$T/r of=$T/s bs=10000 seek=2000 status=none; truncate -s 50m $T/s
        test $(du -k $B/s | cut -f1) -lt 1000
        for how in auto always; do
            cp --sparse=$how $B/s $T/s.$how; cmp $T/s $T/s.$how; test $(du -k $T/s.$how | cut -f1) -lt 1000
            cp --sparse=$how $B/s $C/s.$how; cmp $T/s $A/s.$how; test $(du -k $A/s.$how | cut -f1) -lt 1000
        done
        tar -C $C -Scf $T/t.tar s; test $(stat -c %s $T/t.tar) -lt 1000000
        mkdir $B/x; tar -C $B/x -Sxf $T/t.tar; cmp $T/s $A/x/s; test $(du -k $C/x/s | cut -f1) -lt 1000
        dd if=$T/s of=$A/d bs=64k conv=sparse status=none; cmp $T/s $C/d; test $(du -k $B/d | cut -f1) -lt 1000
        rm -r $A/* && test -z "$(ls $B)""#;
    run(&camp, beside.path(), "sh", script);
    camp.down();
}

/// S24, S363: what was just removed is no reason to refuse what follows.
#[test]
fn space_that_is_being_freed_is_waited_for() {
    let volumes = tempfile::Builder::new().prefix("bvv").tempdir_in("/dev/shm").unwrap();
    let volume = format!("{}:40m", volumes.path().display());
    let Some((camp, beside)) = camp(&["--volume", &volume]) else { return };
    let script = r#"
import ctypes, os
name = os.environ["A"] + "/f"
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
for mode in [0, 16] * 10:
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    assert libc.fallocate(fd, mode, 0, 64 << 20) == 0, (mode, os.strerror(ctypes.get_errno()))
    os.close(fd); os.unlink(name)
for flags in [0, os.O_APPEND] * 2:
    fd = os.open(name, os.O_RDWR | os.O_CREAT | flags)
    for _ in range(64): assert os.write(fd, bytes(1 << 20)) == 1 << 20
    os.close(fd); os.unlink(name)
"#;
    run(&camp, beside.path(), "python3", script);
    camp.down();
}

/// S13, S14, S17, S18, S19, S36.
#[test]
fn python_programs_use_space_as_elsewhere() {
    let Some((camp, beside)) = camp(&[]) else { return };
    let script = r#"
import ctypes, errno, mmap, os
a, b, c, t = (os.environ[name] for name in "ABCT")
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, offset, length) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")
def refused(number, f, *args):
    try: f(*args)
    except OSError as e: assert e.errno == number, e
    else: raise AssertionError("not refused")
fd = os.open(a + "/f", os.O_RDWR | os.O_CREAT)
other = os.open(b + "/f", os.O_RDWR)
os.posix_fallocate(fd, 0, 100000)
assert os.fstat(other).st_size == 100000 and os.pread(other, 200000, 0) == bytes(100000)
fallocate(fd, 1, 0, 500000); assert os.fstat(other).st_size == 100000
for mode in (2, 8, 0x20, 0x40): refused(errno.EOPNOTSUPP, fallocate, fd, mode, 0, 16384)
refused(errno.EINVAL, fallocate, fd, 0, 0, 0)
refused(errno.EFBIG, fallocate, fd, 0, 2**62, 2**62)
os.ftruncate(fd, 0); os.ftruncate(other, 400000)
assert os.lseek(fd, 0, os.SEEK_HOLE) == 0
refused(errno.ENXIO, os.lseek, fd, 0, os.SEEK_DATA)
os.pwrite(other, b"x" * 20000, 102400)
assert os.lseek(fd, 0, os.SEEK_DATA) == 102400
assert os.lseek(fd, 110000, os.SEEK_DATA) == 110000
assert 122400 <= os.lseek(fd, 110000, os.SEEK_HOLE) <= 122880
refused(errno.ENXIO, os.lseek, fd, 130000, os.SEEK_DATA)
refused(errno.ENXIO, os.lseek, fd, 400000, os.SEEK_HOLE)
# Mappings over holes, and holes made under mappings.
shared, private = mmap.mmap(fd, 400000), mmap.mmap(fd, 400000, flags=mmap.MAP_PRIVATE)
assert shared[200000:300000] == bytes(100000) and shared[102400:102500] == b"x" * 100
shared[250000:250005] = b"there"; shared.flush()
assert os.pread(other, 7, 249999) == b"\0there\0"
private[102400:102405] = b"own__"
fallocate(fd, 3, 98304, 32768)
assert shared[102400:102500] == bytes(100) and private[102400:102405] == b"own__"
assert os.pread(other, 20000, 102400) == bytes(20000)
private[300000] = 7; assert os.pread(fd, 1, 300000) == b"\0"
fallocate(fd, 0x10, 240000, 20000); assert shared[250000:250005] == bytes(5)
# sendfile over data and holes, to and from.
os.pwrite(fd, b"data", 350000)
out = os.open(t + "/out", os.O_RDWR | os.O_CREAT); done = 0
while done < 400000: done += os.sendfile(out, other, done, 400000 - done)
assert os.pread(out, 400000, 0) == os.pread(fd, 400000, 0)
back = os.open(c + "/back", os.O_RDWR | os.O_CREAT)
while os.lseek(back, 0, os.SEEK_CUR) < 400000: os.sendfile(back, out, os.lseek(back, 0, os.SEEK_CUR), 400000)
assert open(a + "/back", "rb").read() == os.pread(out, 400000, 0)
done = 0
copy = os.open(a + "/copy", os.O_RDWR | os.O_CREAT)
while done < 400000: done += os.copy_file_range(fd, copy, 400000, done, done)
assert open(b + "/copy", "rb").read() == os.pread(out, 400000, 0)
assert os.stat(b + "/copy").st_blocks < 200, os.stat(b + "/copy")
assert os.copy_file_range(fd, copy, 10, 400000, 0) == 0
"#;
    run(&camp, beside.path(), "python3", script);
    camp.down();
}

fn unnamed(dir: &Path, more: OFlags) -> Result<File, Errno> {
    rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | more, Mode::from_raw_mode(0o600)).map(File::from)
}

fn give_name(file: &File, path: &Path) -> Result<(), Errno> {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, &name, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Bytes of data on all volumes, waiting until all nodes answer.
fn used(camp: &Camp) -> u64 {
    let mut used = None;
    wait_until("all nodes answer", || {
        let status = camp.status();
        let nodes = status["nodes"].as_array().unwrap().iter();
        used = nodes.map(|node| node["volumes"][0]["used_bytes"].as_u64()).sum::<Option<u64>>();
        used.is_some()
    });
    used.unwrap()
}

/// S39.
#[test]
fn files_without_names_outlive_daemons_and_get_one_or_go() {
    let Some((camp, _beside)) = camp(&[]) else { return };
    let (a, b) = (&camp.mounts()[0], &camp.mounts()[1]);
    fs::create_dir(a.join("dir")).unwrap();
    let content = Random::new(4).bytes(100_000);
    let files: Vec<File> =
        ["", "dir"].iter().map(|dir| unnamed(&a.join(dir), OFlags::empty()).unwrap()).collect();
    let exclusive = unnamed(a, OFlags::EXCL).unwrap();
    files.iter().for_each(|file| file.write_all_at(&content, 0).unwrap());
    assert_eq!(fs::read_dir(b).unwrap().count(), 1);
    for node in 0..3 {
        camp.kill_node(node);
        files.iter().for_each(|file| file.write_all_at(&content, 7).unwrap());
    }
    assert_eq!(give_name(&exclusive, &a.join("no")), Err(Errno::NOENT));
    assert_eq!(give_name(&files[0], &a.join("dir")), Err(Errno::EXIST));
    give_name(&files[0], &a.join("named")).unwrap();
    give_name(&files[1], &a.join("dir/named")).unwrap();
    drop((files, exclusive));
    for name in ["named", "dir/named"] {
        let read = fs::read(b.join(name)).unwrap();
        assert!(read[..7] == content[..7] && read[7..] == content);
        assert_eq!(fs::metadata(b.join(name)).unwrap().nlink(), 1);
    }
    let lost = unnamed(a, OFlags::empty()).unwrap();
    lost.write_all_at(&content, 0).unwrap();
    drop(lost);
    fs::remove_dir_all(b.join("dir")).unwrap();
    fs::remove_file(b.join("named")).unwrap();
    wait_until("all space is free", || used(&camp) == 0);
    camp.down();
}

/// One random step on a file, the same on each of the two; what both said must agree.
struct Twins {
    random: Random,
    ours: [File; 2],
    theirs: File,
    turn: usize,
    log: Vec<String>,
}

impl Twins {
    fn below(&mut self, end: usize) -> u64 {
        let at = self.random.below(end) as u64;
        if self.random.below(2) == 0 { at / PAGE * PAGE } else { at }
    }

    fn both<T: PartialEq + std::fmt::Debug>(&mut self, what: String, act: impl Fn(&File) -> T) {
        self.log.push(format!("{} {what}", self.turn));
        let (ours, theirs) = (act(&self.ours[self.turn]), act(&self.theirs));
        assert_eq!(ours, theirs, "{}", self.log.join("\n"));
    }

    fn step(&mut self) {
        self.turn = self.random.below(2);
        let (at, len) = (self.below(SIZE_MAX), self.below(SIZE_MAX / 5) + 1);
        match self.random.below(12) {
            0..=2 => {
                let bytes = self.random.bytes(len as usize);
                self.both(format!("write {at} {len}"), |file| file.write_at(&bytes, at).unwrap());
            }
            3 => {
                let bytes = self.random.bytes(len as usize % 5000 + 1);
                let end = self.theirs.metadata().unwrap().len();
                self.both(format!("append {}", bytes.len()), |file| append(file, &bytes));
                assert_eq!(self.theirs.metadata().unwrap().len(), end + bytes.len() as u64);
            }
            4 => self.both(format!("cut {at}"), |file| file.set_len(at).unwrap()),
            5 | 6 => {
                self.both(format!("punch {at} {len}"), |file| rustix::fs::fallocate(file, PUNCH, at, len))
            }
            7 => self.zero(at, len, true),
            8 => self.zero(at, len, false),
            9 => {
                let mode = if len % 2 == 0 { KEEP } else { FallocateFlags::empty() };
                self.both(format!("reserve {at} {len} {mode:?}"), |file| {
                    rustix::fs::fallocate(file, mode, at, len)
                });
            }
            10 => self.map(at, len),
            _ => self.copy(at, len),
        }
        self.compare();
    }

    /// tmpfs cannot: there, zeros are written as far as the file goes.
    fn zero(&mut self, at: u64, len: u64, keep: bool) {
        self.log.push(format!("{} zero {at} {len} {keep}", self.turn));
        let mode = FallocateFlags::ZERO_RANGE | if keep { KEEP } else { FallocateFlags::empty() };
        rustix::fs::fallocate(&self.ours[self.turn], mode, at, len).unwrap();
        let size = self.theirs.metadata().unwrap().len();
        let end = if keep { size.min(at + len) } else { at + len };
        self.theirs.write_all_at(&vec![0; end.saturating_sub(at) as usize], at).unwrap();
    }

    /// A store through a shared mapping, written back at once; only whole pages below the end belong to this mount.
    fn map(&mut self, at: u64, len: u64) {
        let size = self.theirs.metadata().unwrap().len();
        let (at, len) = (at / PAGE * PAGE, (len % 9 + 1) * PAGE);
        if at + len > size {
            return;
        }
        let byte = self.random.bytes(1)[0];
        self.both(format!("map {at} {len}"), |file| mapping::store(file, at, len as usize, byte));
    }

    fn copy(&mut self, at: u64, len: u64) {
        let to = self.below(SIZE_MAX);
        if at < to + len && to < at + len {
            return;
        }
        self.both(format!("copy {at} {to} {len}"), |file| {
            let (mut from, mut into, mut done) = (at, to, 0);
            while done < len as usize {
                let left = len as usize - done;
                match rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut into), left) {
                    Ok(0) => break,
                    Ok(copied) => done += copied,
                    Err(error) => return Err(error),
                }
            }
            Ok(done)
        });
    }

    fn compare(&mut self) {
        let other = &self.ours[1 - self.turn];
        let read = |file: &File| {
            let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let (ours, theirs) = (read(other), read(&self.theirs));
        let differs = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        assert!(ours == theirs, "{} {} {differs:?}\n{}", ours.len(), theirs.len(), self.log.join("\n"));
        let data = rustix::fs::seek(other, SeekFrom::Data(0)).unwrap_or(theirs.len() as u64);
        assert!(theirs[..data as usize].iter().all(|byte| *byte == 0), "{}", self.log.join("\n"));
    }
}

fn append(file: &File, bytes: &[u8]) -> usize {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = File::options().append(true).open(path).unwrap();
    std::io::Write::write(&mut &file, bytes).unwrap()
}

#[test]
fn random_steps_through_two_mounts_are_those_of_a_file_on_tmpfs() {
    let Some((camp, beside)) = camp(&[]) else { return };
    let ours = [0, 1].map(|mount| open(&camp.mounts()[mount].join("f")));
    let theirs = open(&beside.path().join("f"));
    let mut twins = Twins { random: Random::new(Random::seed()), ours, theirs, turn: 0, log: Vec::new() };
    for _ in 0..STEPS {
        twins.step();
    }
    camp.down();
}

/// S17.
#[test]
fn reserved_space_is_there_when_the_volumes_are_full() {
    let beside = tempfile::Builder::new().prefix("bvk").tempdir_in("/dev/shm").unwrap();
    let volume = format!("{}:4m", beside.path().display());
    let Some((camp, _beside)) = camp(&["--volume", &volume]) else { return };
    let (reserved, filler) =
        (open(&camp.mounts()[0].join("reserved")), open(&camp.mounts()[1].join("filler")));
    rustix::fs::fallocate(&reserved, FallocateFlags::empty(), 0, 5 << 20).unwrap();
    let before = used(&camp);
    let much = rustix::fs::fallocate(&filler, FallocateFlags::empty(), 0, 9 << 20);
    assert_eq!((much, used(&camp)), (Err(Errno::NOSPC), before));
    let mut at = 0;
    while filler.write_at(&[1; 65_536], at).is_ok_and(|count| count == 65_536) {
        at += 65_536;
        assert!(at < 64 << 20, "it is never full");
    }
    let content = Random::new(9).bytes(5 << 20);
    reserved.write_all_at(&content, 0).unwrap();
    camp.kill_node(1);
    reserved.write_all_at(&content, 0).unwrap();
    assert!(fs::read(camp.mounts()[2].join("reserved")).unwrap() == content);
    rustix::fs::fallocate(&reserved, PUNCH, 0, 3 << 20).unwrap();
    filler.write_all_at(&[2; 2 << 20], at).unwrap();
    camp.down();
}

/// S17, S19, S39, S70.
#[test]
fn daemons_that_are_killed_meanwhile_lose_and_revive_nothing() {
    let Some((camp, _beside)) = camp(&[]) else { return };
    let (stop, steps) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    let work = |mount: usize| {
        let path = camp.mounts()[mount].join(format!("f{mount}"));
        let (file, mut model) = (open(&path), vec![0u8; 40 * PAGE as usize]);
        let mut random = Random::new(mount as u64 + 1);
        file.write_all_at(&model, 0).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let at = random.below(model.len() - 20_000);
            let len = random.below(20_000) + 1;
            let (range, byte) = (at..at + len, random.bytes(1)[0]);
            match random.below(5) {
                0 => {
                    file.write_all_at(&vec![byte; len], at as u64).unwrap();
                    model[range].fill(byte);
                }
                1 => {
                    rustix::fs::fallocate(&file, PUNCH, at as u64, len as u64).unwrap();
                    model[range].fill(0);
                }
                2 => {
                    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, at as u64, len as u64).unwrap();
                    model[range].fill(0);
                }
                3 => rustix::fs::fallocate(&file, FallocateFlags::empty(), at as u64, len as u64).unwrap(),
                _ => {
                    let (dir, name) = (&camp.mounts()[mount], path.with_extension("named"));
                    let unnamed = unnamed(dir, OFlags::empty()).unwrap();
                    unnamed.write_all_at(&vec![byte; len], 0).unwrap();
                    give_name(&unnamed, &name).unwrap();
                    drop(unnamed);
                    assert_eq!(fs::read(&name).unwrap(), vec![byte; len]);
                    fs::remove_file(&name).unwrap();
                }
            }
            steps[mount].fetch_add(1, Ordering::Relaxed);
        }
        (path, model)
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        scopeguard::defer! { stop.store(true, Ordering::Relaxed) }
        let work = &work;
        let workers: Vec<_> = (0..2).map(|mount| scope.spawn(move || work(mount))).collect();
        for kill in 0..15 {
            let before = steps.each_ref().map(|steps| steps.load(Ordering::Relaxed));
            wait_until("the work goes on", || {
                steps.iter().zip(before).all(|(now, before)| now.load(Ordering::Relaxed) > before + 3)
            });
            camp.kill_node(kill % 3);
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for (path, model) in done {
        let name = path.file_name().unwrap();
        let mut bytes = Vec::new();
        File::open(camp.mounts()[2].join(name)).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes == model, "{}", path.display());
    }
    camp.down();
}

//! Everyday programs, unmodified, on the mounts of a formation of four nodes. What they make through one node is
//! checked through another.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::Camp;
use crate::harness::random::Random;

/// Four nodes and a place beside them; nothing if one of the tools is missing.
fn camp(tools: &[&str]) -> Option<(Camp, tempfile::TempDir)> {
    let paths: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap()).collect();
    let is_there = |tool: &str| paths.iter().any(|path| path.join(tool).is_file());
    if let Some(missing) = tools.iter().find(|tool| !is_there(tool)) {
        println!("skipped: {missing} is not installed (scripts/setup test installs it)");
        return None;
    }
    let camp = Camp::start_each(&["--nodes", "4", "--stripe", "64k"])?;
    Some((camp, tempfile::Builder::new().prefix("bvk").tempdir().unwrap()))
}

/// Runs a shell script that must succeed; `$A` to `$D` are the mounts, `$T` is a directory elsewhere.
fn sh(camp: &Camp, beside: &Path, script: &str) -> String {
    let output = shell(camp, beside, script).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{script}\n{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn shell(camp: &Camp, beside: &Path, script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).env("T", beside).env("HOME", beside).env("LC_ALL", "C");
    command.env_remove("PYTHONDONTWRITEBYTECODE").env_remove("PYTHONPYCACHEPREFIX");
    for (name, mount) in ["A", "B", "C", "D"].iter().zip(camp.mounts()) {
        command.env(name, mount);
    }
    command
}

/// A tree with something of everything.
fn make_tree(dir: &Path) {
    let mut random = Random::new(3);
    for d in 0..12 {
        let sub = dir.join(format!("d{d}/deeper"));
        fs::create_dir_all(&sub).unwrap();
        for f in 0..15 {
            let len = if f == 0 { 300_000 } else { random.below(5000) };
            let path = sub.parent().unwrap().join(format!("file {f}"));
            fs::write(&path, random.bytes(len)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600 | (f as u32 & 0o77))).unwrap();
        }
        fs::hard_link(dir.join(format!("d{d}/file 1")), sub.join("hard")).unwrap();
        symlink("../file 2", sub.join("soft")).unwrap();
        symlink("nowhere", sub.join("dangling")).unwrap();
    }
    fs::write(dir.join("empty"), "").unwrap();
    fs::create_dir(dir.join("empty dir")).unwrap();
    fs::write(dir.join(OsString::from_vec(b"not \xff utf-8 \n".to_vec())), "odd").unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.set_len(3_000_000).unwrap();
    sparse.write_all_at(b"in the middle", 1_500_000).unwrap();
}

/// Both trees have the same names, contents, permissions, times, targets and numbers of links.
fn assert_same(a: &Path, b: &Path) {
    let (x, y) = (fs::symlink_metadata(a).unwrap(), fs::symlink_metadata(b).unwrap());
    assert_eq!(x.mode(), y.mode(), "{}", b.display());
    if x.is_dir() {
        let names = |dir: &Path| {
            let mut names: Vec<OsString> =
                fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(a), names(b), "{}", b.display());
        return names(a).iter().for_each(|name| assert_same(&a.join(name), &b.join(name)));
    }
    assert_eq!((x.mtime(), x.mtime_nsec()), (y.mtime(), y.mtime_nsec()), "{}", b.display());
    assert_eq!((x.len(), x.nlink()), (y.len(), y.nlink()), "{}", b.display());
    if x.is_symlink() {
        assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap());
    } else {
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "content of {}", b.display());
    }
}

#[test]
fn cp_find_and_rm() {
    let Some((camp, beside)) = camp(&["cp", "find", "rm", "diff"]) else { return };
    let tree = beside.path().join("tree");
    make_tree(&tree);
    sh(&camp, beside.path(), "cp -a $T/tree $A/tree");
    assert_same(&tree, &camp.mounts()[1].join("tree"));
    sh(&camp, beside.path(), "cp -a $B/tree $B/again; diff -r --no-dereference $T/tree $C/again");
    let count = |script: &str| sh(&camp, beside.path(), script).trim().parse::<u32>().unwrap();
    assert_eq!(count("find $T/tree | wc -l"), count("find $D/tree | wc -l"));
    assert_eq!(count("find $C/tree -type l | wc -l"), 24);
    assert_eq!(count("find $C/tree -name 'file 1' -links 2 | wc -l"), 12);
    assert_eq!(count("find $D/again -type f -size +200k | wc -l"), 13);
    sh(&camp, beside.path(), "rm -rf $C/again; find $D/tree -name hard -delete; mv $A/tree $A/moved");
    assert_eq!(count("ls -A $B | wc -l"), 1);
    assert_eq!(count("find $B/moved -name 'file 1' -links 1 | wc -l"), 12);
    sh(
        &camp,
        beside.path(),
        "rm -rf $B/moved; rmdir $A/moved 2>/dev/null && exit 1; test -z \"$(ls -A $D)\"",
    );
    camp.down();
}

#[test]
fn tar_and_rsync() {
    let Some((camp, beside)) = camp(&["tar", "rsync"]) else { return };
    let tree = beside.path().join("tree");
    make_tree(&tree);
    sh(
        &camp,
        beside.path(),
        "tar -C $T --format=posix -cf $A/t.tar tree; mkdir $B/x; tar -C $B/x -xpf $C/t.tar",
    );
    assert_same(&tree, &camp.mounts()[3].join("x/tree"));
    sh(
        &camp,
        beside.path(),
        "tar -C $D/x --format=posix -czf $T/back.tgz tree; mkdir $T/back; tar -C $T/back -xpzf $T/back.tgz",
    );
    assert_same(&tree, &beside.path().join("back/tree"));
    sh(&camp, beside.path(), "rsync -aH $T/tree $A/r; rsync -aH --delete $B/r/tree/ $C/s");
    assert_same(&tree, &camp.mounts()[3].join("s"));
    let left = sh(&camp, beside.path(), "rsync -aHi --dry-run --delete $T/tree/ $D/s");
    assert_eq!(left, "", "nothing is left to do");
    sh(&camp, beside.path(), "echo more >> \"$T/tree/d1/file 1\"; rm $T/tree/empty; touch $T/tree/new");
    sh(
        &camp,
        beside.path(),
        "rsync -aH --inplace --delete $T/tree/ $B/s; diff -r --no-dereference $T/tree $C/s",
    );
    camp.down();
}

#[test]
fn git() {
    let Some((camp, beside)) = camp(&["git"]) else { return };
    let identity = "git config --global user.name t; git config --global user.email t@example.org; \
                    git config --global init.defaultBranch main";
    sh(&camp, beside.path(), identity);
    let history = "mkdir $T/o; cd $T/o; git init -q; for i in 1 2 3 4 5 6 7 8; do mkdir -p d$i; \
                   for j in 1 2 3 4 5; do seq $i $((i * j * 40)) > d$i/f$j; done; git add .; git commit -qm c$i; done";
    sh(&camp, beside.path(), history);
    sh(
        &camp,
        beside.path(),
        "git clone -q $T/o $A/c; git -C $B/c fsck --full --strict; diff -r -x .git $T/o $C/c",
    );
    let work = "cd $C/c; git checkout -qb work; echo x >> d1/f1; git mv d2/f1 d3/moved; git rm -q d4/f2; \
                git commit -qam changed; git -C $D/c gc -q --prune=now; git -C $A/c fsck --full --strict; \
                test -z \"$(git -C $B/c status --porcelain)\"; git -C $B/c log --oneline | wc -l";
    assert_eq!(sh(&camp, beside.path(), work).trim(), "9");
    sh(
        &camp,
        beside.path(),
        "git clone -q $D/c $B/again; git -C $C/again checkout -q main; diff -r -x .git $T/o $A/again",
    );
    sh(
        &camp,
        beside.path(),
        "cd $A/c; git stash list; git worktree add -q $B/w main; git -C $C/w status --porcelain",
    );
    camp.down();
}

#[test]
fn make_and_gcc() {
    let Some((camp, beside)) = camp(&["make", "gcc"]) else { return };
    let dir = camp.mount().join("project");
    fs::create_dir(&dir).unwrap();
    let units = 12;
    for unit in 0..units {
        let text = format!("#include \"all.h\"\nint f{unit}(int x) {{ return x * {unit} + N; }}\n");
        fs::write(dir.join(format!("u{unit}.c")), text).unwrap();
    }
    let declared: String = (0..units).map(|unit| format!("int f{unit}(int);\n")).collect();
    fs::write(dir.join("all.h"), format!("#define N 1\n{declared}")).unwrap();
    let sum: String = (0..units).map(|unit| format!("+ f{unit}(10)")).collect();
    let main = format!(
        "#include <stdio.h>\n#include \"all.h\"\nint main(void) {{ printf(\"%d\\n\", 0 {sum}); return 0; }}\n"
    );
    fs::write(dir.join("main.c"), main).unwrap();
    let makefile = "O := $(patsubst %.c,%.o,$(wildcard u*.c))\nprog: main.o libu.a\n\tgcc -o $@ $^\n\
                    libu.a: $O\n\tar rcs $@ $^\n%.o: %.c all.h\n\tgcc -O1 -g -c -o $@ $<\n";
    fs::write(dir.join("Makefile"), makefile).unwrap();
    sh(&camp, beside.path(), "make -s -j4 -C $B/project");
    assert_eq!(sh(&camp, beside.path(), "$C/project/prog").trim(), "672");
    let again = sh(&camp, beside.path(), "make -C $D/project");
    assert!(again.contains("is up to date"), "{again}");
    fs::write(camp.mounts()[2].join("project/all.h"), format!("#define N 2\n{declared}")).unwrap();
    sh(&camp, beside.path(), "make -s -j4 -C $A/project");
    assert_eq!(sh(&camp, beside.path(), "cd $D/project && ./prog").trim(), "684");
    camp.down();
}

#[test]
fn python() {
    let Some((camp, beside)) = camp(&["python3"]) else { return };
    let script = r#"
import importlib, mmap, os, shutil, sys, tempfile
a, b, c, d = (os.environ[m] for m in "ABCD")
os.makedirs(a + "/lib/pkg")
for i in range(20):
    open(f"{a}/lib/pkg/m{i}.py", "w").write(f"value = {i}\n")
open(a + "/lib/pkg/__init__.py", "w").close()
sys.path.insert(0, b + "/lib")
assert sum(importlib.import_module(f"pkg.m{i}").value for i in range(20)) == 190
assert len(os.listdir(c + "/lib/pkg/__pycache__")) == 21
with tempfile.TemporaryDirectory(dir=a) as t, tempfile.NamedTemporaryFile(dir=b) as f, tempfile.TemporaryFile(dir=c) as g:
    f.write(b"named"); f.flush()
    g.write(b"no name"); g.seek(0); assert g.read() == b"no name"
    assert open(d + "/" + os.path.basename(f.name), "rb").read() == b"named"
    shutil.copytree(c + "/lib", t + "/copy"); assert os.path.exists(d + "/" + os.path.basename(t) + "/copy/pkg/m7.py")
assert os.listdir(d) == ["lib"], os.listdir(d)
with open(a + "/new", "w") as f: f.write("new")
os.replace(a + "/new", a + "/lib/pkg/m0.py")
assert open(b + "/lib/pkg/m0.py").read() == "new"
os.mkfifo(a + "/fifo"); assert os.path.exists(b + "/fifo")
assert os.listxattr(a + "/lib") == []
assert os.getxattr(a + "/lib", "user.bivouac.layout").startswith(b"stripe=65536 ")
os.setxattr(a + "/lib", "user.k", b"v" * 3000); assert os.getxattr(d + "/lib", "user.k") == b"v" * 3000
os.utime(c + "/lib", ns=(1, 2)); assert os.stat(a + "/lib").st_mtime_ns == 2
with open(a + "/big", "wb") as f: f.truncate(1 << 20)
with open(a + "/big", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
    m[5:10] = b"hello"; m[700000:700005] = b"there"; m.flush()
    with open(a + "/big", "r+b") as same: same.seek(700001); assert same.read(4) == b"here"
with open(b + "/big", "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
    assert (m[5:10], m[700000:700005], m[10]) == (b"hello", b"there", 0)
try:
    import sqlite3
except ImportError:
    sqlite3 = None
if sqlite3:
    with sqlite3.connect(a + "/lib/db", timeout=30) as db:
        db.execute("pragma journal_mode=wal"); db.execute("create table t(n)")
        db.executemany("insert into t values(?)", ((n,) for n in range(1000)))
    db.close()
    with sqlite3.connect(b + "/lib/db") as db:
        assert db.execute("select sum(n) from t").fetchone() == (499500,)
    db.close()
shutil.rmtree(d + "/lib"); assert sorted(os.listdir(a)) == ["big", "fifo"]
"#;
    fs::write(beside.path().join("s.py"), script).unwrap();
    sh(&camp, beside.path(), "python3 $T/s.py");
    camp.down();
}

/// Locks hold within one mount, so one database has writers in one mount at a time; another mount sees all that
/// was committed once the last connection of the first is closed.
#[test]
fn sqlite() {
    let Some((camp, beside)) = camp(&["sqlite3"]) else { return };
    sh(
        &camp,
        beside.path(),
        "sqlite3 $A/db 'pragma journal_mode=wal; create table t(who, n, unique(who, n));'",
    );
    let writer = "for i in $(seq 40); do echo \"insert into t values('$W', $i), ('$W', -$i), ('$W', $i + 1000);\"; \
                  done | sqlite3 -cmd '.timeout 300000' $A/db";
    let spawn = |who: &str| shell(&camp, beside.path(), writer).env("W", who).spawn().unwrap();
    let mut writers: Vec<_> = ["x", "y", "z"].into_iter().map(spawn).collect();
    writers.iter_mut().for_each(|writer| assert!(writer.wait().unwrap().success()));
    for mount in ["B", "C", "D"] {
        let script = format!("sqlite3 ${mount}/db 'pragma integrity_check; select count(*) from t;'");
        assert_eq!(sh(&camp, beside.path(), &script), "ok\n360\n", "through {mount}");
    }
    sh(
        &camp,
        beside.path(),
        "sqlite3 $C/db 'pragma journal_mode=delete; delete from t where who = \"x\"; vacuum;'",
    );
    assert_eq!(
        sh(&camp, beside.path(), "sqlite3 $D/db 'pragma integrity_check; select count(*) from t;'"),
        "ok\n240\n"
    );
    camp.down();
}

#[test]
fn dd_and_sparse_files() {
    let Some((camp, beside)) = camp(&["dd", "cmp", "truncate"]) else { return };
    let script = "head -c 5000000 /dev/urandom > $T/r; dd if=$T/r of=$A/f bs=4096 status=none conv=fsync; cmp $T/r $B/f; \
                  dd if=$C/f of=$T/g bs=1M status=none; cmp $T/r $T/g; \
                  dd if=$T/r of=$D/f bs=1000 seek=100 skip=7 count=50 conv=notrunc status=none; \
                  dd if=$T/r of=$T/g bs=1000 seek=100 skip=7 count=50 conv=notrunc status=none; cmp $T/g $A/f; \
                  truncate -s 20G $B/s; echo end | dd of=$C/s bs=1 seek=21474836475 conv=notrunc status=none; stat -c %s $D/s";
    assert_eq!(sh(&camp, beside.path(), script).trim(), "21474836480");
    let sparse = File::open(camp.mounts()[3].join("s")).unwrap();
    let mut bytes = [1; 8192];
    sparse.read_exact_at(&mut bytes, 10 << 30).unwrap();
    assert_eq!(bytes, [0; 8192]);
    let read = sparse.read_at(&mut bytes, 21_474_836_470).unwrap();
    assert_eq!(&bytes[..read], b"\0\0\0\0\0end\n\0");
    camp.down();
}

#[test]
fn fio_verifies() {
    let Some((camp, beside)) = camp(&["fio"]) else { return };
    let job = "cd $T; fio --name=v --rw=randwrite --size=8m --bs=16k --numjobs=2 --verify=crc32c --minimal";
    for (write, verify, engine) in [("A", "B", "psync"), ("C", "D", "mmap"), ("B", "A", "sync")] {
        let write = format!("{job} --directory=${write} --ioengine={engine} --do_verify=0 --end_fsync=1");
        assert_ne!(sh(&camp, beside.path(), &write), "");
        let verify = format!("{job} --directory=${verify} --ioengine=psync --verify_only=1 --verify_fatal=1");
        assert_ne!(sh(&camp, beside.path(), &verify), "");
        sh(&camp, beside.path(), "rm $D/v.*");
    }
    camp.down();
}

/// S5.
#[test]
fn many_append_through_all_nodes() {
    let Some((camp, beside)) = camp(&["sh"]) else { return };
    let script = "for i in $(seq 100); do echo \"$W $i $PAD\" >> $M/log; done";
    let spawn = |worker: usize| {
        let mut command = shell(&camp, beside.path(), script);
        command.env("W", worker.to_string()).env("PAD", "x".repeat(worker * 97));
        command.env("M", &camp.mounts()[worker % 4]).spawn().unwrap()
    };
    let mut workers: Vec<_> = (0..8).map(spawn).collect();
    workers.iter_mut().for_each(|worker| assert!(worker.wait().unwrap().success()));
    let text = fs::read_to_string(camp.mounts()[2].join("log")).unwrap();
    let mut next = [1; 8];
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let worker: usize = words[0].parse().unwrap();
        assert_eq!((words[1], words[2].len()), (next[worker].to_string().as_str(), worker * 97), "{line}");
        next[worker] += 1;
    }
    assert_eq!(next, [101; 8]);
    camp.down();
}

#[test]
fn long_and_odd_names() {
    let Some((camp, _)) = camp(&["sh"]) else { return };
    let (a, b) = (&camp.mounts()[0], &camp.mounts()[1]);
    let longest = OsString::from_vec(vec![0xfe; 255]);
    fs::write(a.join(&longest), "longest").unwrap();
    assert_eq!(fs::read(b.join(&longest)).unwrap(), b"longest");
    let error = fs::write(a.join(OsString::from_vec(vec![b'x'; 256])), "").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidFilename);
    for byte in (1..=255u8).filter(|byte| ![b'/', b'.'].contains(byte)) {
        fs::write(a.join(OsString::from_vec(vec![byte])), [byte]).unwrap();
        assert_eq!(fs::read(b.join(OsString::from_vec(vec![byte]))).unwrap(), [byte]);
    }
    assert_eq!(fs::read_dir(b).unwrap().count(), 254);
    // 4,095 bytes is the longest path that the system takes.
    let mut path = a.join("deep");
    fs::create_dir(&path).unwrap();
    while path.as_os_str().len() < 4095 - 210 {
        path.push("d".repeat(199));
        fs::create_dir(&path).unwrap();
    }
    path.push("f".repeat(4095 - path.as_os_str().len() - 1));
    assert_eq!(path.as_os_str().len(), 4095);
    fs::write(&path, "deep").unwrap();
    assert_eq!(fs::read(b.join(path.strip_prefix(a).unwrap())).unwrap(), b"deep");
    fs::remove_dir_all(camp.mounts()[2].join("deep")).unwrap();
    assert!(!path.exists());
    let target = "t".repeat(4095);
    symlink(&target, a.join("link")).unwrap();
    assert_eq!(fs::read_link(b.join("link")).unwrap().as_os_str().len(), 4095);
    camp.down();
}

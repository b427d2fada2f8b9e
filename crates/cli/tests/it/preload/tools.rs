//! Programs that everybody has, with the preload and without it: the results are the same.

use std::path::{Path, PathBuf};

use crate::harness::Camp;
use crate::preload::programs::{Way, command, succeed};

/// What is done in an empty directory `$1` with the inputs `$2`.
const JOB: &str = r#"
set -eu
export TZ=UTC LC_ALL=C GIT_AUTHOR_DATE=@1000000000 GIT_COMMITTER_DATE=@1000000000 HOME="$1"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
cd "$1"
has() { command -v "$1" >/dev/null 2>&1; }

# copies, archives
cp -r "$2" copied
dd if="$2/numbers" of=dd.out bs=777 status=none
dd if=dd.out of=dd.some bs=1000 skip=5 seek=7 count=300 status=none
dd if="$2/words" of=dd.out bs=512 seek=3 conv=notrunc status=none
tar cf a.tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner copied
mkdir untarred
tar xf a.tar -C untarred
gzip -nk a.tar
gzip -dc a.tar.gz | cmp - a.tar

# a shell's redirections
exec 5>shell.out
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo "line $i" >&5; done
(echo from a subshell >&5; sh -c 'echo from a command >&5')
{ echo one; echo two >&2; cat /etc/hostname >/dev/null; echo three; } >both.out 2>&1
echo more >>both.out
exec 5>&-
while read -r number rest; do [ "$number" = 100 ] && break; done <"$2/numbers"
{ read -r first; head -n 2; } <"$2/numbers" >heads.out
seq 1 20000 | sort -n | tee sorted.out | tail -n 1 >last.out
sort -R --random-source="$2/numbers" "$2/words" | sort >words.out
cat "$2/words" "$2/numbers" >cat.out
cat <"$2/words" >>cat.out
sed -i 's/1/one/g' sorted.out
split -b 10000 cat.out part.
cat part.* | cmp - cat.out
found=$(find . -type f -newer "$2/none" | wc -l)
echo "$found" >found.out
head -c 100000 "$2/numbers" >truncated.out
truncate -s 5000 truncated.out
install -m 600 "$2/words" installed

if has git; then
    git init -q -b main repository
    cd repository
    cp -r ../copied/. .
    git add . && git commit -qm first
    seq 1 3000 >numbers && git add . && git commit -qm second
    git gc -q && git fsck --no-progress
    git rev-parse HEAD HEAD~1 >../git.out
    git checkout -q -b old HEAD~1 && cmp numbers "$2/numbers"
    git clone -q . ../cloned
    cd ..
    rm -rf repository cloned
fi
if has sqlite3; then
    for mode in delete wal; do
        sqlite3 database "PRAGMA journal_mode=$mode; CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b TEXT);
            BEGIN; WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<3000)
            INSERT INTO t(b) SELECT 'row ' || i FROM n; COMMIT; DELETE FROM t WHERE a%3=0; PRAGMA integrity_check;"
        sqlite3 database "SELECT count(*), sum(length(b)), max(a) FROM t" >>sqlite.out
    done
    rm -f database*
fi
if has python3; then
    python3 - "$2" <<'END'
import os, subprocess, sys, tempfile
source = sys.argv[1]
with open('python.out', 'wb', buffering=0) as out:
    for i in range(200):
        out.write(b'%d\n' % i)
    subprocess.run(['echo', 'from a child'], stdout=out, check=True)
    out.write(b'end\n')
with open('python.out', 'r+b') as out:
    out.seek(10)
    out.write(b'!' * 20)
    out.truncate(900)
fd = os.open('python.out', os.O_RDWR)
for i in range(50):
    os.pwrite(fd, b'%02d' % i, 2 * i)
    assert os.pread(fd, 2, 2 * i) == b'%02d' % i
if os.fork() == 0:
    os.lseek(fd, 0, os.SEEK_END)
    os.write(fd, b'child')
    os._exit(0)
os.wait()
os.write(fd, b'parent')
os.close(fd)
with open(source + '/numbers', 'rb') as numbers, open('python.copy', 'wb') as copy:
    while chunk := numbers.read(1000):
        copy.write(chunk)
END
    cmp python.copy "$2/numbers"
fi
"#;

fn inputs(dir: &Path) {
    std::fs::write(dir.join("none"), "").unwrap();
    let numbers: String = (1..40_000).map(|number| format!("{number} of many\n")).collect();
    std::fs::write(dir.join("numbers"), numbers).unwrap();
    let words: String =
        (0..5000u64).map(|number| format!("{:x}\n", number.wrapping_mul(2_654_435_761))).collect();
    std::fs::write(dir.join("words"), words).unwrap();
    std::fs::create_dir_all(dir.join("more/deep")).unwrap();
    for number in 0..40 {
        std::fs::write(dir.join(format!("more/deep/{number}")), "x".repeat(number * 300)).unwrap();
    }
    let times = std::fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    std::fs::File::options().write(true).open(dir.join("none")).unwrap().set_times(times).unwrap();
}

/// Path, mode and content of everything below a directory.
fn everything(dir: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    use std::os::unix::fs::PermissionsExt;
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            let content = if metadata.is_file() { std::fs::read(entry.path()).unwrap() } else { Vec::new() };
            if metadata.is_dir() {
                dirs.push(entry.path());
            }
            let path = entry.path().strip_prefix(dir).unwrap().to_owned();
            found.push((path, metadata.permissions().mode(), content));
        }
    }
    found.sort();
    found
}

/// S130, S134.
#[test]
fn tools_do_with_it_what_they_do_without_it() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let (dir, local) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    inputs(dir.path());
    let run = |shell: &str, place: &Path, way: Way| {
        std::fs::create_dir_all(place).unwrap();
        let arguments = ["-c", JOB, "job"].map(std::ffi::OsStr::new);
        let mut job = command(shell, way);
        job.args(arguments).arg(place).arg(dir.path());
        // Reports would be in what the commands redirect.
        let output = job.env_remove("BIVOUAC_REPORT").output().unwrap();
        assert_eq!(succeed(&output).1, "", "{way:?}");
        everything(place)
    };
    let expected = run("bash", local.path(), Way::Plain);
    assert!(expected.len() > 120, "{}", expected.len());
    for way in [Way::Usual, Way::AtOnce] {
        let found = run("bash", &camp.mount().join(format!("{way:?}")), way);
        let names =
            |all: &[(PathBuf, u32, Vec<u8>)]| -> Vec<_> { all.iter().map(|file| file.0.clone()).collect() };
        assert_eq!(names(&found), names(&expected), "{way:?}");
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found == expected, "{way:?}: {} differs", found.0.display());
        }
    }
    camp.down();
}

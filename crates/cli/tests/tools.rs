//! Unmodified tools on a formation of four nodes: what one does below the mount of a node is checked below
//! the mount of another.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Camp, Place, can_mount};

/// Four nodes, each with a mount, and the directory that holds the mount points.
fn camp() -> Option<(Camp, tempfile::TempDir)> {
    if !can_mount() {
        return None;
    }
    let parent = tempfile::tempdir().unwrap();
    let each = parent.path().to_str().unwrap();
    let camp = Camp::start_in(Place::new(), &["--nodes", "4", "--mount-each", each, "--stripe", "64k"]);
    Some((camp, parent))
}

/// Runs a script with the mounts as $M0 to $M3; what it printed.
fn shell(camp: &Camp, script: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(&camp.mounts()[0]);
    for (i, mount) in camp.mounts().iter().enumerate() {
        command.env(format!("M{i}"), mount);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", "/nonexistent");
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}\nfailed: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Whether a tool is there; says so if not.
fn has(tool: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir: PathBuf| dir.join(tool).exists());
    if !found {
        println!("skipped a part: no {tool} on this machine");
    }
    found
}

/// A tree of real files to work on: the sources of this project.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn trees_are_copied_packed_and_removed() {
    let Some((camp, _parent)) = camp() else { return };
    let script = format!(
        "cp -a {src} copy && diff -r {src} $M1/copy
         tar cf tree.tar copy && mkdir $M2/un && tar xf $M3/tree.tar -C $M2/un && diff -r copy $M1/un/copy
         find $M3/copy -type f | wc -l; find {src} -type f | wc -l
         rm -rf $M1/copy && [ ! -e copy ] && [ ! -e $M3/copy ]",
        src = sources().display()
    );
    let counts = shell(&camp, &script);
    let counts: Vec<&str> = counts.split_whitespace().collect();
    assert_eq!(counts[0], counts[1]);
    if has("rsync") {
        let src = sources();
        let script = "rsync -a SRC/ synced && rsync -a --delete --itemize-changes SRC/ $M1/synced";
        assert_eq!(shell(&camp, &script.replace("SRC", src.to_str().unwrap())), "", "nothing is left to do");
    }
    camp.down();
}

#[test]
fn git_keeps_a_repository() {
    let Some((camp, _parent)) = camp() else { return };
    if !has("git") {
        return;
    }
    let script = "
        git init -q repo && cd repo && git config user.name a && git config user.email a@b
        for i in $(seq 200); do echo line $i > f$i; done
        git add -A && git commit -qm first
        for i in $(seq 1 7 200); do echo more >> f$i; done && git commit -qam second
        git gc -q && git fsck --strict 2>&1
        git clone -q $M1/repo $M2/clone && cd $M3/clone && git log --oneline | wc -l && git status --short";
    assert_eq!(shell(&camp, script).split_whitespace().last(), Some("2"));
    assert_eq!(shell(&camp, "diff -r --exclude=.git $M0/repo $M2/clone && echo same"), "same\n");
    camp.down();
}

#[test]
fn programs_are_built_and_run() {
    let Some((camp, _parent)) = camp() else { return };
    if !has("make") || !has("cc") {
        return;
    }
    let script = r#"
        mkdir p && cd p
        for i in $(seq 8); do echo "int f$i(void){return $i;}" > f$i.c; done
        { for i in $(seq 8); do echo "int f$i(void);"; done
          echo '#include <stdio.h>'
          echo 'int main(void){printf("%d\n", f1()+f2()+f3()+f4()+f5()+f6()+f7()+f8());return 0;}'; } > main.c
        printf 'prog: main.o %s\n\t$(CC) -o $@ $^\n' "$(seq -f f%g.o -s ' ' 8)" > Makefile
        make -s -j4 && ./prog && $M3/p/prog
        make -q && echo fresh; touch $M2/p/f3.c; make -q || echo stale"#;
    assert_eq!(shell(&camp, script), "36\n36\nfresh\nstale\n");
    camp.down();
}

#[test]
fn databases_and_mappings_work() {
    let Some((camp, _parent)) = camp() else { return };
    if has("sqlite3") {
        let script = r#"
            sqlite3 t.db "pragma journal_mode=wal; create table t(a integer, b integer);"
            for w in 1 2; do sqlite3 -cmd ".timeout 60000" t.db "with recursive c(x) as (select 1 union all
                select x+1 from c where x<5000) insert into t select x, $w from c;" & done; wait
            sqlite3 t.db "select count(*), sum(a) from t; pragma integrity_check; pragma wal_checkpoint(truncate);" | head -2
            sqlite3 $M2/t.db "select count(distinct b) from t""#;
        assert_eq!(shell(&camp, script), "wal\n10000|25005000\nok\n2\n");
    }
    if has("python3") {
        let script = r#"python3 - <<'P'
import mmap, os, tempfile, shutil
m0, m1 = os.environ["M0"], os.environ["M1"]
with open(m0 + "/mapped", "w+b") as f:
    f.truncate(300000)
    m = mmap.mmap(f.fileno(), 300000)
    m[100:104] = b"abcd"; m[299990:299995] = b"12345"; m.flush(); m.close()
with open(m1 + "/mapped", "rb") as f:
    b = f.read(); assert len(b) == 300000 and b[100:104] == b"abcd" and b[299990:299995] == b"12345"
t = tempfile.TemporaryFile(dir=m0); t.write(b"x" * 100000); t.seek(0); assert len(t.read()) == 100000
shutil.copytree(os.path.dirname(os.__file__) + "/json", m0 + "/json"); import sys; sys.path.insert(0, m1)
import json; assert json.loads(json.dumps([1])) == [1]; print("ok")
P"#;
        assert_eq!(shell(&camp, script), "ok\n");
    }
    camp.down();
}

#[test]
fn names_links_and_holes_are_kept() {
    let Some((camp, _parent)) = camp() else { return };
    let script = r#"
        long=$(printf 'n%.0s' $(seq 255)); echo l > $long; cat $M1/$long
        touch ${long}x 2>/dev/null && echo bug || echo too long
        touch $'\xff\xfe' && ls $M1 | grep -c $'\xff\xfe' -a
        echo a > one; ln one two; ln -s one three; stat -c %h $M2/one; readlink $M2/three; cat $M2/three
        mkdir -p d/e; mv d/e $M0/moved; [ -d $M3/moved ]; rmdir $M3/moved d
        truncate -s 5M sparse; printf end >> sparse; stat -c %s $M1/sparse; tail -c 3 $M2/sparse; echo
        head -c 1M $M3/sparse | tr -d '\0' | wc -c
        mkfifo pipe; (echo through > pipe &); cat pipe
        chmod 640 one; stat -c %a $M1/two; touch -d '2001-02-03 04:05:06.789 UTC' one; TZ=UTC stat -c %y $M2/one"#;
    let expected =
        "l\ntoo long\n1\n2\none\na\n5242883\nend\n0\nthrough\n640\n2001-02-03 04:05:06.789000000 +0000\n";
    assert_eq!(shell(&camp, script), expected);
    camp.down();
}

#[test]
fn appends_of_many_processes_through_all_nodes_do_not_mix() {
    let Some((camp, _parent)) = camp() else { return };
    let script = r#"
        for m in $M0 $M1 $M2 $M3; do
            (for i in $(seq 100); do echo "$m $i ....................................." >> $m/log; done) &
        done; wait
        wc -l < log; sort -u log | wc -l; for m in $M0 $M1 $M2 $M3; do grep -c "^$m " $M1/log; done"#;
    assert_eq!(shell(&camp, script), "400\n400\n100\n100\n100\n100\n");
    camp.down();
}

#[test]
fn blocks_written_at_random_are_verified() {
    let Some((camp, _parent)) = camp() else { return };
    let script = r#"
        dd if=/dev/urandom of=big bs=1M count=24 status=none
        for m in $M1 $M2 $M3; do sha256sum < $m/big; done | sort -u | wc -l
        dd if=/dev/zero of=$M2/big bs=4k seek=1000 count=10 conv=notrunc status=none
        cmp -n 40960 -i 4096000:0 $M3/big /dev/zero && echo zeros"#;
    assert_eq!(shell(&camp, script), "1\nzeros\n");
    if has("fio") {
        let script = "fio --name=v --filename=$M1/fio --rw=randrw --bs=4k-64k --size=16m --verify=crc32c \
                      --verify_fatal=1 --numjobs=1 --output-format=terse >/dev/null && echo verified";
        assert_eq!(shell(&camp, script), "verified\n");
    }
    camp.down();
}

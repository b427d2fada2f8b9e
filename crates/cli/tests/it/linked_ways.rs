//! Programs that use a directory of another formation, and commands about links.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Camp, wait_until};
use crate::linked::{Linked, diff};

const KEY: &[&str] = &["--path", "/data"];

/// Runs a script with the directory of the link as working directory, and as `$1` that at the far side.
fn script(linked: &Linked, text: &str) {
    let said = Command::new("sh")
        .args(["-ec", text, "sh"])
        .arg(linked.there(""))
        .current_dir(linked.here(""))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs(["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"].map(|name| (name, "tester")))
        .envs(["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"].map(|name| (name, "tester@example.org")))
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{text}\n{out}{err}");
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|said| said.status.success())
}

/// S821, with programs that make files under other names first, and link them.
#[test]
fn a_repository_is_used_through_a_link() {
    if !has("git") {
        return;
    }
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    let linked = linked.added();
    script(
        &linked,
        "git init -q one && cd one && mkdir d && echo 1 > d/f && git add . && git commit -qm one
         cd .. && git clone -q one two && cd two && echo 2 >> d/f && git commit -qam two && git push -q origin HEAD:other
         test -z \"$(git status --porcelain)\" && git fsck
         git -C \"$1\"/two log --format=%s | tr '\\n' ' ' | grep -qx 'two one '
         git -C \"$1\"/one log --format=%s other | tr '\\n' ' ' | grep -qx 'two one '
         git -C \"$1\"/one fsck && diff -r . \"$1\"/two",
    );
    linked.end();
}

/// S821: what is made without a close is at the far side as well.
#[test]
fn names_and_attributes_go_at_once() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    let linked = linked.added();
    script(
        &linked,
        "mkdir -p a/b && test -d \"$1\"/a/b
         ln -s b a/l && test \"$(readlink \"$1\"/a/l)\" = b
         echo x > f && ln f a/g && cat \"$1\"/a/g && rm f && echo y >> a/g && test \"$(cat \"$1\"/a/g)\" = \"$(printf 'x\\ny')\"
         test ! -e \"$1\"/f
         chmod 640 a/g && touch -d 2001-02-03 a/g && test \"$(stat -c %a%Y \"$1\"/a/g)\" = \"$(stat -c %a%Y a/g)\"
         mv a/g a/h && cat \"$1\"/a/h && test ! -e \"$1\"/a/g
         rm -r a && until test ! -e \"$1\"/a; do sleep 0.01; done",
    );
    linked.end();
}

/// S822: attributes that change alone at the far side.
#[test]
fn attributes_of_the_far_side_are_seen() {
    let Some(linked) = Linked::start(&[], &[], KEY) else { return };
    fs::write(linked.there("f"), "content").unwrap();
    fs::create_dir(linked.there("d")).unwrap();
    let linked = linked.added();
    assert_eq!(fs::read(linked.here("f")).unwrap(), b"content");
    let perm = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let set =
        |name: &str, perm| fs::set_permissions(linked.there(name), PermissionsExt::from_mode(perm)).unwrap();
    set("f", 0o604);
    set("d", 0o711);
    wait_until("they are shown", || {
        let _opened = fs::read(linked.here("f")).unwrap();
        perm(&linked.here("f")) == 0o604 && perm(&linked.here("d")) == 0o711
    });
    // The next write does not send those from before.
    fs::write(linked.here("f"), "changed").unwrap();
    assert_eq!(
        (fs::read(linked.there("f")).unwrap(), perm(&linked.there("f"))),
        (b"changed".to_vec(), 0o604)
    );
    linked.end();
}

/// S821: builds, archives, databases and copies.
#[test]
fn programs_work_through_a_link() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    let linked = linked.added();
    let source = tempfile::tempdir().unwrap();
    for number in 0..6 {
        fs::write(
            source.path().join(format!("f{number}.c")),
            format!("int f{number}(void){{return {number};}}\n"),
        )
        .unwrap();
    }
    fs::write(
        source.path().join("Makefile"),
        "lib.a: $(patsubst %.c,%.o,$(sort $(wildcard *.c)))\n\tar rcs $@ $^\n%.o: %.c\n\tcat $< $< > $@\n",
    )
    .unwrap();
    let source = source.path().to_str().unwrap().to_owned();
    script(
        &linked,
        &format!("mkdir in && tar -C {source} -cf - . | tar -C in -xf - && diff -r {source} \"$1\"/in"),
    );
    script(&linked, &format!("tar -cf in.tar -C in . && tar -df \"$1\"/in.tar -C {source}"));
    if has("make") {
        script(
            &linked,
            "cd in && make -j3 && make | grep -q 'up to date' && cd .. && diff -r in \"$1\"/in && ar t \"$1\"/in/lib.a | grep -q f5.o",
        );
    }
    if has("sqlite3") {
        script(
            &linked,
            "sqlite3 db 'create table t(a); insert into t values(1),(2)' && sqlite3 db 'update t set a = a + 1'
             test \"$(sqlite3 \"$1\"/db 'select sum(a) from t')\" = 5",
        );
    }
    if has("python3") {
        script(
            &linked,
            "python3 -c \"
import mmap, os, shutil, tempfile
os.makedirs('py/a')
open('py/a/x', 'w').write('x' * 100000)
shutil.copytree('py/a', 'py/b')
os.replace('py/b/x', 'py/b/y')
with open('py/b/y', 'r+b') as file:
    with mmap.mmap(file.fileno(), 0) as mapped:
        mapped[5:10] = b'hello'
with open('py/b/y', 'ab') as file:
    file.write(b'tail')
os.truncate('py/a/x', 10)
with tempfile.NamedTemporaryFile(dir='py') as file:
    file.write(b'1')
\" && diff -r py \"$1\"/py && test \"$(head -c10 \"$1\"/py/b/y)\" = xxxxxhello && test \"$(tail -c4 \"$1\"/py/b/y)\" = tail",
        );
    }
    // A file of a formation, and out of it again.
    let one = format!("{source}/f1.c");
    let staged =
        linked.near.place().run(&["stage", "in", "--name", linked.near.name(), &one, "/far/staged.c"]);
    assert_eq!(staged.code, 0, "{}", staged.err);
    assert_eq!(fs::read(linked.there("staged.c")).unwrap(), fs::read(&one).unwrap());
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("in");
    let staged = linked.near.place().run(&[
        "stage",
        "out",
        "--name",
        linked.near.name(),
        "/far/in",
        out.to_str().unwrap(),
    ]);
    assert_eq!(staged.code, 0, "{}", staged.err);
    script(&linked, &format!("diff -r {} \"$1\"/in", out.display()));
    linked.end();
}

/// S821: both sides have changed a file, one of them while the link was down.
#[test]
fn both_contents_of_a_conflict_are_kept() {
    let Some(linked) = Linked::start(&[], &[], KEY) else { return };
    fs::write(linked.there("f"), "first").unwrap();
    let linked = linked.added();
    let path = linked.here("").to_str().unwrap().to_owned();
    let policy = ["partition", "set", "--name", linked.near.name(), "/far", "--write", "on-flush"];
    linked.near.place().ok(&policy);
    assert_eq!(fs::read(linked.here("f")).unwrap(), b"first");
    fs::write(linked.here("f"), "from here").unwrap();
    fs::write(linked.there("f"), "from there, and longer").unwrap();
    let refused = linked.near.place().run(&["flush", &path]);
    assert!(refused.code == 1 && refused.err.contains("both are kept"), "{}{}", refused.out, refused.err);
    assert_eq!(fs::read(linked.here("f")).unwrap(), b"from here");
    assert_eq!(fs::read(linked.there("f")).unwrap(), b"from there, and longer");
    linked.near.place().ok(&["flush", "--force", &path]);
    assert_eq!(fs::read(linked.there("f")).unwrap(), b"from here");
    linked.end();
}

/// S831: what is not at the other side keeps a link, and so do partitions below it; nothing is deleted there.
#[test]
fn a_link_is_not_removed_with_what_only_it_has() {
    let Some(linked) = Linked::start(&[], &[], KEY) else { return };
    fs::write(linked.there("f"), "first").unwrap();
    let linked = linked.added();
    fs::create_dir(linked.here("below")).unwrap();
    let partition = ["partition", "create", "--name", linked.near.name(), "/far/below"];
    linked.near.place().ok(&partition);
    let refused = linked.link(&["remove", "far"]);
    assert!(refused.code == 1 && refused.err.contains("a partition of its own"), "{}", refused.err);
    linked.near.place().ok(&["partition", "remove", "--name", linked.near.name(), "/far/below"]);
    let policy = ["partition", "set", "--name", linked.near.name(), "/far", "--write", "on-flush"];
    linked.near.place().ok(&policy);
    fs::write(linked.here("only-here"), "content").unwrap();
    linked.relay.cut();
    let refused = linked.link(&["remove", "far"]);
    assert!(
        refused.code == 1 && refused.err.contains("not at the other side"),
        "{}{}",
        refused.out,
        refused.err
    );
    assert_eq!(fs::read(linked.here("only-here")).unwrap(), b"content");
    linked.relay.heal();
    wait_until("it is sent, and the link removed", || linked.link(&["remove", "far"]).code == 0);
    assert!(!linked.here("").exists());
    assert_eq!(fs::read(linked.there("only-here")).unwrap(), b"content");
    assert_eq!(fs::read(linked.there("f")).unwrap(), b"first");
    linked.end();
}

/// A running formation begins to serve links, and both sides show it.
#[test]
fn links_are_served_and_shown() {
    let Some(far) = Camp::start(&[]) else { return };
    let listen = ["link", "listen", "--name", far.name(), "127.0.0.1:0"];
    let said = far.place().ok(&listen);
    assert!(said.contains("serves links at 127.0.0.1:"), "{said}");
    let again = far.place().run(&listen);
    assert!(again.code == 1 && again.err.contains("are served already"), "{}", again.err);
    let address = far.status()["gateway"]["address"].as_str().unwrap().to_owned();
    let key = far.place().path().join("far.key");
    far.place().ok(&["key", "create", "--name", far.name(), "--link", "--key-file", key.to_str().unwrap()]);
    fs::write(far.mount().join("f"), "content").unwrap();
    let Some(near) = Camp::start(&[]) else { return };
    let add = ["link", "add", "--name", near.name(), "far", &address, "--key-file", key.to_str().unwrap()];
    near.place().ok(&add);
    assert_eq!(fs::read(near.mount().join("far/f")).unwrap(), b"content");
    let (mut gateway, mut link) = (Value::Null, Value::Null);
    wait_until("both sides show that they are connected", || {
        (gateway, link) = (far.status()["gateway"].clone(), near.status()["links"][0].clone());
        gateway["keys"][0]["connections"].as_u64() > Some(0) && link["nodes_up"] == 1
    });
    assert_eq!(gateway["state"], "ready");
    let keys = gateway["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 1, "{gateway}");
    let shown = far.run("status", &[]).out;
    assert!(shown.contains(&format!("gateway of links at {address}: ready, ")), "{shown}");
    assert!(shown.contains(keys[0]["id"].as_str().unwrap()), "{shown}");
    assert_eq!(link["name"], "far", "{link}");
    let shown = near.place().ok(&["link", "show", "--name", near.name(), "far"]);
    assert!(shown.contains("nodes        connected, "), "{shown}");
    // After the gateway was killed it is there again, at the same address.
    let pid = gateway["pid"].as_u64().unwrap();
    crate::harness::signal(pid, rustix::process::Signal::KILL);
    fs::write(near.mount().join("far/g"), "other").unwrap();
    let flush = || near.place().run(&["flush", near.mount().join("far").to_str().unwrap()]);
    wait_until("it is sent", || flush().code == 0);
    assert_eq!(fs::read(far.mount().join("g")).unwrap(), b"other");
    near.down();
    far.down();
}

/// S831: with `--discard` what is not there is thrown away, also while the other side is not to be reached.
#[test]
fn a_link_is_removed_without_the_other_side() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    fs::write(linked.there("f"), "first").unwrap();
    let linked = linked.added();
    let policy = ["partition", "set", "--name", linked.near.name(), "/far", "--write", "on-flush"];
    linked.near.place().ok(&policy);
    assert_eq!(fs::read(linked.here("f")).unwrap(), b"first");
    fs::write(linked.here("f"), "changed here").unwrap();
    fs::create_dir(linked.here("dir")).unwrap();
    fs::write(linked.here("dir/only-here"), "content").unwrap();
    linked.relay.cut();
    let removed = linked.link(&["remove", "far", "--discard"]);
    assert_eq!(removed.code, 0, "{}{}", removed.out, removed.err);
    assert!(!linked.here("").exists());
    linked.relay.heal();
    assert_eq!(fs::read(linked.there("f")).unwrap(), b"first");
    assert_eq!(fs::read_dir(linked.there("")).unwrap().count(), 1, "nothing was sent");
    // The name is free.
    let linked = linked.added();
    assert_eq!(fs::read(linked.here("f")).unwrap(), b"first");
    linked.end();
}

/// S831: programs go on while a link is removed, and what they were told to be closed is at the other side.
#[test]
fn nothing_that_is_written_while_a_link_is_removed_is_lost() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    let linked = linked.added();
    let top = linked.here("");
    let writer = std::thread::spawn(move || {
        let mut written = 0;
        while fs::write(top.join(written.to_string()), format!("content {written}")).is_ok() {
            written += 1;
        }
        written
    });
    wait_until("it writes", || linked.there("5").exists());
    wait_until("the link is removed", || linked.link(&["remove", "far"]).code == 0);
    let written = writer.join().unwrap();
    for number in 0..written {
        let kept = fs::read_to_string(linked.there(&number.to_string())).unwrap_or_default();
        assert_eq!(kept, format!("content {number}"), "{number} of {written}");
    }
    linked.end();
}

/// S822: names that go, in large numbers, in use and not, and names that become something else.
#[test]
fn names_become_what_they_are_at_the_far_side() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    fs::create_dir(linked.there("many")).unwrap();
    for number in 0..150 {
        fs::write(linked.there(&format!("many/{number}")), "x").unwrap();
    }
    fs::create_dir_all(linked.there("dir/below")).unwrap();
    fs::write(linked.there("dir/below/f"), "deep").unwrap();
    for name in ["file", "held", "mine"] {
        fs::write(linked.there(name), name).unwrap();
    }
    std::os::unix::fs::symlink("file", linked.there("link")).unwrap();
    let linked = linked.added();
    let policy = ["partition", "set", "--name", linked.near.name(), "/far", "--write", "on-flush"];
    linked.near.place().ok(&policy);
    assert_eq!(diff(&linked.here(""), &linked.there("")), "");
    let held = fs::File::open(linked.here("held")).unwrap();
    fs::write(linked.here("mine"), "changed here").unwrap();
    fs::remove_dir_all(linked.there("many")).unwrap();
    fs::create_dir(linked.there("many")).unwrap();
    fs::remove_dir_all(linked.there("dir")).unwrap();
    fs::write(linked.there("dir"), "a file now").unwrap();
    fs::remove_file(linked.there("file")).unwrap();
    fs::create_dir(linked.there("file")).unwrap();
    fs::write(linked.there("file/f"), "in a directory now").unwrap();
    fs::remove_file(linked.there("link")).unwrap();
    std::os::unix::fs::symlink("dir", linked.there("link")).unwrap();
    fs::remove_file(linked.there("held")).unwrap();
    fs::remove_file(linked.there("mine")).unwrap();
    let is_known = || {
        let _ = fs::read_dir(linked.here("")).map(Iterator::count);
        fs::read_link(linked.here("link")).is_ok_and(|target| target == Path::new("dir"))
            && fs::read(linked.here("file/f")).is_ok_and(|content| content == b"in a directory now")
            && fs::read_dir(linked.here("many")).is_ok_and(|entries| entries.count() == 0)
    };
    wait_until("what has changed is seen", is_known);
    wait_until("a directory has become a file", || {
        let _ = fs::read_dir(linked.here("")).map(Iterator::count);
        fs::read(linked.here("dir")).is_ok_and(|content| content == b"a file now")
    });
    assert_eq!(fs::read(linked.here("mine")).unwrap(), b"changed here", "it is nowhere else");
    assert_eq!(fs::read(linked.here("held")).unwrap(), b"held", "it is in use");
    drop(held);
    wait_until("it goes when nobody uses it", || {
        let _ = fs::read_dir(linked.here("")).map(Iterator::count);
        !linked.here("held").exists()
    });
    linked.near.place().ok(&["flush", "--force", linked.here("").to_str().unwrap()]);
    assert_eq!(diff(&linked.here(""), &linked.there("")), "");
    linked.end();
}

/// S822: an extended attribute of the far side goes here when it goes there, also the last one.
#[test]
fn extended_attributes_that_go_at_the_far_side_go_here() {
    let Some(linked) = Linked::start(&[], &[], KEY) else { return };
    fs::write(linked.there("f"), "content").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(linked.there("f"), "user.a", b"far", flags).unwrap();
    let linked = linked.added();
    let here = || {
        let mut value = [0; 16];
        rustix::fs::getxattr(linked.here("f"), "user.a", &mut value[..]).map(|len| value[..len].to_vec())
    };
    assert_eq!(here(), Ok(b"far".to_vec()));
    rustix::fs::removexattr(linked.there("f"), "user.a").unwrap();
    wait_until("it is gone", || {
        let _ = fs::read_dir(linked.here("")).map(Iterator::count);
        here() == Err(rustix::io::Errno::NODATA)
    });
    linked.end();
}

/// S828: what is not at a far side that is gone keeps the formation, and is named soon; without any of that it ends
/// soon.
#[test]
fn a_formation_goes_down_soon_when_the_far_side_is_gone() {
    /// Each file of many would wait for as long as a request does, 30 s, eight at a time, and twice.
    const SOON: Duration = Duration::from_secs(100);
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    for number in 0..60 {
        fs::create_dir(linked.there(&format!("d{number}"))).unwrap();
        fs::write(linked.there(&format!("d{number}/f")), "first").unwrap();
    }
    let linked = linked.added();
    assert_eq!(diff(&linked.here(""), &linked.there("")), "");
    let policy = ["partition", "set", "--name", linked.near.name(), "/far", "--write", "on-flush"];
    linked.near.place().ok(&policy);
    for number in 0..60 {
        let file = linked.here(&format!("d{number}/f"));
        if number % 2 == 0 { fs::write(file, "changed").unwrap() } else { fs::remove_file(file).unwrap() }
    }
    linked.relay.cut();
    let begun = Instant::now();
    let refused = linked.near.run("down", &["--yes"]);
    let took = begun.elapsed();
    let parts =
        ["files not at the source:\n", "30 deletions not made", "is down", "bivouac flush", "--discard"];
    refused.fails(3, &parts);
    assert!(took < SOON, "{took:?}");
    linked.relay.heal();
    let flushed = || linked.near.place().run(&["flush", linked.here("").to_str().unwrap()]);
    wait_until("all is there", || flushed().code == 0);
    linked.relay.cut();
    let Linked { near, far, .. } = linked;
    let begun = Instant::now();
    near.down();
    let took = begun.elapsed();
    assert!(took < SOON, "{took:?}");
    assert_eq!(fs::read(far.mount().join("data/d0/f")).unwrap(), b"changed");
    far.down();
}

/// S177, S822: a directory takes the place of a file that was deleted and is still open, at once and by a flush.
#[test]
fn a_directory_gets_the_name_of_a_deleted_file_that_is_open() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    let content = "content that is fetched late".repeat(20_000).into_bytes();
    for name in ["at-once", "flushed"] {
        fs::write(linked.there(name), &content).unwrap();
    }
    let linked = linked.added();
    let is_still_read = |mut held: fs::File| {
        let mut read = Vec::new();
        held.read_to_end(&mut read).unwrap();
        assert!(read == content, "{} bytes", read.len());
    };
    let held = fs::File::open(linked.here("at-once")).unwrap();
    fs::remove_file(linked.here("at-once")).unwrap();
    fs::create_dir(linked.here("at-once")).unwrap();
    fs::write(linked.here("at-once/f"), "below").unwrap();
    assert_eq!(fs::read(linked.there("at-once/f")).unwrap(), b"below");
    is_still_read(held);
    let policy = ["partition", "set", "--name", linked.near.name(), "/far", "--write", "on-flush"];
    linked.near.place().ok(&policy);
    let held = fs::File::open(linked.here("flushed")).unwrap();
    fs::remove_file(linked.here("flushed")).unwrap();
    fs::create_dir(linked.here("flushed")).unwrap();
    fs::write(linked.here("flushed/f"), "below").unwrap();
    linked.near.place().ok(&["flush", linked.here("").to_str().unwrap()]);
    assert_eq!(fs::read(linked.there("flushed/f")).unwrap(), b"below");
    is_still_read(held);
    // The deletions that had to wait do not take what has the names now.
    linked.near.place().ok(&["flush", linked.here("").to_str().unwrap()]);
    for name in ["at-once/f", "flushed/f"] {
        assert_eq!(fs::read(linked.there(name)).unwrap(), b"below", "{name}");
    }
    assert_eq!(diff(&linked.here(""), &linked.there("")), "");
    linked.end();
}

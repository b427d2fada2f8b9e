//! What others may try: with mount points, mounts, links of a job, sources. Where root plays the other one, the test is
//! skipped, and says so, for an ordinary user.

use std::fs::{Permissions, create_dir, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Camp, DEADLINE, Place, can_mount, text, wait_until, wait_within};

/// A user who is not us.
const OTHER: u32 = 4242;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root can play another user, or mount something else");
    }
    is_root
}

fn mount(arguments: &[&str]) {
    assert!(Command::new("mount").args(arguments).status().unwrap().success(), "{arguments:?}");
}

/// Unmounts what a test has mounted, also when it fails.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _not_there_any_more = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// A place beside a formation's, seen by all.
fn beside() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bvk").tempdir().unwrap()
}

/// S320, P2.
#[test]
fn a_mount_point_that_others_could_replace_is_refused() {
    if !can_mount() || !is_root() {
        return;
    }
    let (place, dir) = (Place::new(), beside());
    set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
    let at = |name: &str| dir.path().join(name);
    let [open, around, theirs, link, own] = ["open", "around", "theirs", "link", "own"].map(at);
    [&open, &around, &theirs, &own].into_iter().for_each(|dir| create_dir(dir).unwrap());
    create_dir(around.join("below")).unwrap();
    [&open, &around].into_iter().for_each(|dir| set_permissions(dir, Permissions::from_mode(0o777)).unwrap());
    chown(&theirs, Some(OTHER), Some(OTHER)).unwrap();
    symlink(&own, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
    for (at, says) in [
        (open, "may be written by all users"),
        (around.join("below"), "may be written by all users"),
        (theirs, "belongs to user 4242, who could replace it"),
        (link, "belongs to user 4242, who could replace it"),
    ] {
        let said = place.run(&["up", "--name", &Place::unique_name(), "--mount", text(&at)]);
        assert_eq!((said.code, said.err.contains(says)), (1, true), "{}: {said:?}", at.display());
        assert!(said.err.contains("name a directory of your own") && place.is_empty(), "{said:?}");
    }
    Camp::start_in(place, &["--mount", text(&own)]).down();
}

/// S321, P5.
#[test]
fn status_says_when_a_mount_is_not_at_its_place_any_more() {
    if !is_root() {
        return;
    }
    let Some(camp) = Camp::start(&[]) else { return };
    let trouble = |number: usize| camp.status()["mounts"][number]["trouble"].as_str().map(str::to_owned);
    assert_eq!(trouble(0), None);
    let held = std::fs::File::create(camp.mount().join("file")).unwrap();
    let cover = Unmount(camp.mount().to_owned());
    mount(&["-t", "tmpfs", "covers-it", text(camp.mount())]);
    wait_until("the cover is seen", || trouble(0).is_some_and(|text| text.contains("(covers-it)")));
    assert!(camp.run("status", &[]).out.contains("what is written there goes elsewhere"));
    drop(cover);
    wait_until("it is well again", || trouble(0).is_none());
    // A file that is open keeps the mount alive that nobody finds any more.
    assert!(Command::new("umount").arg("-l").arg(camp.mount()).status().unwrap().success());
    wait_until("the loss is seen", || trouble(0).is_some_and(|text| text.contains("was taken away")));
    drop(held);
    wait_until("it is over", || camp.status()["mounts"].as_array().unwrap().is_empty());
    camp.down();
}

/// S322, P5.
#[test]
fn nothing_is_mounted_over_a_mount_and_none_of_others_is_taken_away() {
    if !is_root() {
        return;
    }
    let Some(camp) = Camp::start(&[]) else { return };
    let dir = beside();
    let theirs = dir.path().join("theirs");
    create_dir(&theirs).unwrap();
    let _end = Unmount(theirs.clone());
    mount(&["-t", "tmpfs", "someones", text(&theirs)]);
    let others = Camp::start_in(Place::new(), &[]);
    for (at, source) in [
        (theirs.as_path(), "someones".to_owned()),
        (camp.mount(), format!("bivouac:{}", camp.name())),
        (others.mount(), format!("bivouac:{}", others.name())),
    ] {
        camp.run("mount", &[text(at)]).fails(1, &[&format!("has a mount already ({source})")]);
    }

    camp.place().run(&["unmount", text(&theirs)]).fails(1, &["is a mount of something else (someones)"]);
    // Somebody's mount on top of ours stays, with its content, and is named.
    let more = dir.path().join("more");
    create_dir(&more).unwrap();
    assert_eq!(camp.run("mount", &[text(&more)]).code, 0);
    let _end = (Unmount(more.clone()), Unmount(more.clone()));
    mount(&["-t", "tmpfs", "on-it", text(&more)]);
    std::fs::write(more.join("thesis"), "x").unwrap();
    let said = camp.run("down", &["--yes"]);
    assert!(said.err.contains("more is left: another mount (on-it) is on it"), "{said:?}");
    assert_eq!((said.code, std::fs::read(more.join("thesis")).unwrap()), (1, b"x".to_vec()));
    assert!(said.out.contains("left: 0 processes, 1 mounts"), "{said:?}");
    others.down();
}

/// S322.
#[test]
fn a_formation_of_the_same_name_keeps_its_mount() {
    let Some(camp) = Camp::start(&[]) else { return };
    let other = Place::new();
    let name = camp.name().to_owned();
    assert_eq!(other.run(&["up", "--name", &name]).code, 0);
    other.run(&["down", "--name", &name, "--yes"]).succeeds().prints(&["nothing left"]);
    std::fs::write(camp.mount().join("file"), "still here").unwrap();
    assert_eq!(std::fs::read(camp.mount().join("file")).unwrap(), b"still here");
    camp.down();
}

/// S323, P12.
#[test]
fn links_of_a_job_do_not_lead_copies_out_of_the_formation() {
    let Some(camp) = Camp::start(&[]) else { return };
    let dir = beside();
    let at = |name: &str| dir.path().join(name);
    create_dir(at("secrets")).unwrap();
    std::fs::write(at("secrets/shadow"), "secret").unwrap();
    std::fs::write(at("input"), "input").unwrap();
    let inside = |name: &str| camp.mount().join(name);
    create_dir(inside("run-7")).unwrap();
    std::fs::write(inside("run-7/result"), "result").unwrap();
    symlink(at("secrets"), inside("link")).unwrap();
    symlink(at("secrets/shadow"), inside("file-link")).unwrap();
    symlink("run-7", inside("latest")).unwrap();
    symlink(inside("run-7"), inside("absolute")).unwrap();
    let stage = |arguments: &[&str]| {
        let all: Vec<&str> = ["stage", arguments[0], "--name", camp.name()]
            .into_iter()
            .chain(arguments[1..].iter().copied())
            .collect();
        camp.place().run(&all)
    };
    // What is written stays inside.
    for to in ["link/input", "link", "file-link"] {
        let said = stage(&["in", text(&at("input")), to]);
        assert!(said.code == 1 && said.err.contains("leads out of the formation"), "{to}: {said:?}");
    }
    assert_eq!(std::fs::read_dir(at("secrets")).unwrap().count(), 1);
    assert_eq!(std::fs::read(at("secrets/shadow")).unwrap(), b"secret");
    assert_eq!(stage(&["in", text(&at("input")), "latest/input"]).code, 0);
    assert_eq!(std::fs::read(inside("run-7/input")).unwrap(), b"input");
    // What is read, too: the link itself comes out, as it would from below.
    stage(&["out", "link/shadow", text(&at("stolen"))]).fails(1, &["leads out of the formation"]);
    for (name, target) in [("link", at("secrets")), ("file-link", at("secrets/shadow"))] {
        let out = at(&format!("out-{name}"));
        assert_eq!(stage(&["out", name, text(&out)]).code, 0);
        assert_eq!(std::fs::read_link(&out).unwrap(), target);
    }
    for name in ["latest", "absolute"] {
        let out = at(&format!("out-{name}"));
        assert_eq!(stage(&["out", name, text(&out)]).code, 0);
        assert_eq!(std::fs::read(out.join("result")).unwrap(), b"result");
    }
    assert!(!at("stolen").exists());
}

/// S323.
#[test]
fn run_copies_no_file_of_others_out() {
    if !can_mount() {
        return;
    }
    let (place, dir) = (Place::new(), beside());
    let (secret, out) = (dir.path().join("shadow"), dir.path().join("out"));
    std::fs::write(&secret, "secret").unwrap();
    let script = format!("ln -s {} $BIVOUAC/link", text(&secret));
    let transfer = format!("link:{}", text(&out));
    place.run(&["run", "--out", &transfer, "--", "sh", "-c", &script]).succeeds();
    assert_eq!(std::fs::read_link(&out).unwrap(), secret);
}

/// S324.
#[test]
fn a_formation_does_not_stand_in_front_of_its_own_mount() {
    let Some(camp) = Camp::start(&[]) else { return };
    let dir = beside();
    let around = camp.mount().parent().unwrap();
    for source in [camp.mount(), &camp.mount().join("in/it"), around] {
        let create = ["partition", "create", "--name", camp.name(), "--source", text(source), "part"];
        camp.place().run(&create).fails(1, &["would wait for itself"]);
    }
    let create = ["partition", "create", "--name", camp.name(), "--source", text(dir.path()), "part"];
    assert_eq!(camp.place().run(&create).code, 0);
    create_dir(dir.path().join("m")).unwrap();
    camp.run("mount", &[text(&dir.path().join("m"))]).fails(1, &["would wait for itself"]);
    camp.down();
}

/// Waits until a thread of a daemon waits in a mount, and goes on waiting: or has looked long enough. Whether it comes
/// to that depends on which of its threads gets there first; most times it does.
fn wait_until_it_waits_for_itself(daemon: u64) {
    const LOOKS: usize = 2000;
    const IN_A_ROW: usize = 100;
    let (mut looks, mut in_a_row) = (0, 0);
    wait_within(DEADLINE * 5, "somebody has looked long enough", || {
        let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap().flatten();
        let place =
            |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
        let waits = tasks.map(place).any(|place| place == "request_wait_answer");
        in_a_row = if waits { in_a_row + 1 } else { 0 };
        looks += 1;
        in_a_row >= IN_A_ROW || looks >= LOOKS
    });
    println!("it {} for itself", if in_a_row >= IN_A_ROW { "waits" } else { "does not wait" });
}

/// S325, P14.
#[test]
fn a_daemon_that_waits_for_itself_is_ended() {
    ends_what_waits_for_itself(false);
}

/// S325, P14.
#[test]
fn it_is_ended_also_without_a_supervisor() {
    ends_what_waits_for_itself(true);
}

fn ends_what_waits_for_itself(is_without_supervisor: bool) {
    if !is_root() {
        return;
    }
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let dir = beside();
    create_dir(dir.path().join("loop")).unwrap();
    let create =
        ["partition", "create", "--name", camp.name(), "--nodes", "0,", "--source", text(dir.path()), "part"];
    assert_eq!(camp.place().run(&create).code, 0);
    for number in 0..20 {
        create_dir(camp.mount().join(format!("d{number}"))).unwrap();
    }
    // What no check sees: it comes to be inside the source later.
    let _end = Unmount(dir.path().join("loop"));
    mount(&["--bind", text(camp.mount()), text(&dir.path().join("loop"))]);
    let mut walker = Command::new("ls");
    walker.arg("-lR").arg(camp.mount().join("part/loop"));
    walker.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut walker = walker.spawn().unwrap();
    let daemons = [camp.node_pid(0), camp.node_pid(1)];
    wait_until_it_waits_for_itself(daemons[0]);
    if is_without_supervisor {
        camp.kill_supervisor();
    }
    let said = camp.run("down", &["--discard"]);
    let _ended_already = walker.kill();
    walker.wait().unwrap();
    assert!(said.code == 0 && said.out.contains("nothing left"), "{said:?}");
    assert!(!daemons.iter().any(|daemon| crate::harness::is_alive(*daemon)));
}

/// S320, P3.
#[test]
fn hosts_mount_below_a_directory_of_the_user() {
    if !can_mount() || !is_root() {
        return;
    }
    let (place, name) = (Place::new(), Place::unique_name());
    create_dir(place.path().join("a")).unwrap();
    let launch = format!("XDG_RUNTIME_DIR={}/{{host}} exec {{args}}", text(place.path()));
    let said = place.run(&["up", "--name", &name, "--hosts", "a", "--launch", &launch]).succeeds();
    let at = PathBuf::from(format!("/tmp/bivouac-0/{name}+mount"));
    assert!(said.out.contains(text(&at)), "{said:?}");
    std::fs::write(at.join("file"), "x").unwrap();
    assert_eq!(at.parent().unwrap().metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    let said = place.run(&["down", "--name", &name, "--yes"]);
    assert!(said.code == 0 && said.out.contains("nothing left") && !at.exists(), "{said:?}");
}

//! Two formations of which one has a directory of the other one: commands, programs, kills and cuts.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Camp, Said, try_to_signal, wait_until};
use crate::relay::Relay;

/// Two formations, and a key of the far one.
pub struct Linked {
    pub near: Camp,
    pub far: Camp,
    pub relay: Relay,
    pub key: PathBuf,
    pub key_id: String,
}

fn state(camp: &Camp) -> Value {
    serde_json::from_slice(&fs::read(camp.dir().join("state.json")).unwrap()).unwrap()
}

fn gateway_pid(camp: &Camp) -> Option<u64> {
    state(camp)["gateway"]["process"]["pid"].as_u64()
}

fn gateway_address(camp: &Camp) -> SocketAddr {
    state(camp)["gateway"]["address"].as_str().unwrap().parse().unwrap()
}

/// Makes a key and answers its id.
fn make_key(camp: &Camp, file: &Path, more: &[&str]) -> String {
    let ids = || -> Vec<String> {
        let said = camp.place().ok(&["key", "list", "--name", camp.name(), "--json"]);
        let keys: Value = serde_json::from_str(&said).unwrap();
        keys.as_array().unwrap().iter().map(|key| key["id"].as_str().unwrap().to_owned()).collect()
    };
    let before = ids();
    let file = file.to_str().unwrap();
    let make = ["key", "create", "--name", camp.name(), "--link", "--key-file", file];
    camp.place().ok(&[&make[..], more].concat());
    ids().into_iter().find(|id| !before.contains(id)).unwrap()
}

impl Linked {
    pub fn start(near: &[&str], far: &[&str], key: &[&str]) -> Option<Linked> {
        let far = Camp::start(&[&["--link-listen", "127.0.0.1:0"], far].concat())?;
        fs::create_dir(far.mount().join("data")).unwrap();
        let near = Camp::start(near)?;
        let key_file = far.place().path().join("far.key");
        let key_id = make_key(&far, &key_file, key);
        let relay = Relay::to(gateway_address(&far));
        Some(Linked { near, far, relay, key: key_file, key_id })
    }

    pub fn link(&self, arguments: &[&str]) -> Said {
        let (command, rest) = arguments.split_first().unwrap();
        self.near.place().run(&[&["link", command, "--name", self.near.name()], rest].concat())
    }

    pub fn add(&self) -> Said {
        let address = self.relay.address().to_string();
        self.link(&["add", "far", &address, "--key-file", self.key.to_str().unwrap()])
    }

    /// With the link in place.
    pub fn added(self) -> Linked {
        let said = self.add();
        assert_eq!(said.code, 0, "{}", said.err);
        self
    }

    pub fn here(&self, path: &str) -> PathBuf {
        self.near.mount().join("far").join(path)
    }

    pub fn there(&self, path: &str) -> PathBuf {
        self.far.mount().join("data").join(path)
    }

    pub fn end(self) {
        for camp in [self.near, self.far] {
            let said = camp.run("fsck", &[]);
            assert_eq!(said.code, 0, "{}{}", said.out, said.err);
            camp.down();
        }
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 250 + seed * 13) as u8).collect()
}

pub fn diff(one: &Path, other: &Path) -> String {
    let said = Command::new("diff").arg("-r").arg(one).arg(other).output().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr)
}

/// A tree of small files and directories.
fn fill(top: &Path, count: usize) {
    for number in 0..count {
        let dir = top.join(format!("d{}/e{}", number % 7, number % 3));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{number}")), bytes(number * 97 % 9000, number)).unwrap();
    }
    fs::write(top.join("large"), bytes(5 << 20, 1)).unwrap();
    fs::create_dir(top.join("empty")).unwrap();
    std::os::unix::fs::symlink("d0/e0", top.join("link")).unwrap();
}

/// S820, S821, S822.
#[test]
fn a_directory_of_another_formation_is_used_as_an_own_one() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &["--nodes", "2"], &["--path", "/data"]) else {
        return;
    };
    fill(&linked.there(""), 60);
    let linked = linked.added();
    assert_eq!(diff(&linked.there(""), &linked.here("")), "");
    // The other way round: what is closed here is there.
    fs::create_dir(linked.here("back")).unwrap();
    fill(&linked.here("back"), 40);
    linked.near.place().ok(&["flush", linked.here("").to_str().unwrap()]);
    assert_eq!(diff(&linked.here("back"), &linked.there("back")), "");
    // Close to open, both ways.
    fs::write(linked.here("d0/e0/f0"), "from here").unwrap();
    assert_eq!(fs::read(linked.there("d0/e0/f0")).unwrap(), b"from here");
    fs::write(linked.there("d1/e1/f1"), "from there, and longer").unwrap();
    assert_eq!(fs::read(linked.here("d1/e1/f1")).unwrap(), b"from there, and longer");
    // Names come, change and go within their time.
    fs::write(linked.there("new"), "new").unwrap();
    fs::create_dir_all(linked.there("deep/er")).unwrap();
    wait_until("new names are here", || linked.here("new").exists() && linked.here("deep/er").exists());
    assert_eq!(fs::read(linked.here("new")).unwrap(), b"new");
    fs::remove_file(linked.there("new")).unwrap();
    fs::remove_dir_all(linked.there("deep")).unwrap();
    fs::remove_dir_all(linked.there("d2")).unwrap();
    wait_until("what is gone there is gone here", || {
        !linked.here("new").exists() && !linked.here("deep").exists() && !linked.here("d2").exists()
    });
    fs::remove_file(linked.here("large")).unwrap();
    wait_until("what is gone here is gone there", || !linked.there("large").exists());
    // S510: each name is a file of its own there, and has what was written through any of them.
    fs::write(linked.here("one"), "first").unwrap();
    fs::hard_link(linked.here("one"), linked.here("other")).unwrap();
    fs::write(linked.here("one"), "second").unwrap();
    for name in ["one", "other"] {
        assert_eq!(fs::read(linked.there(name)).unwrap(), b"second", "{name}");
    }
    fs::rename(linked.here("d3/e0/f3"), linked.here("renamed")).unwrap();
    let shown = linked.link(&["show", "far", "--json"]);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!((shown["far_path"].as_str(), shown["read_only"].as_bool()), (Some("/data"), Some(false)));
    assert!(shown["bytes_fetched"].as_u64().unwrap() > 5 << 20, "{shown}");
    assert!(linked.link(&["list"]).out.contains("far  /far  "), "{}", linked.link(&["list"]).out);
    // S831: the link goes, and nothing with it.
    let before: Vec<_> =
        fs::read_dir(linked.there("")).unwrap().map(|one| one.unwrap().file_name()).collect();
    let removed = linked.link(&["remove", "far"]);
    assert_eq!(removed.code, 0, "{}", removed.err);
    assert!(!linked.here("").exists());
    wait_until("its connections are closed", || {
        let gateway = linked.far.status()["gateway"].clone();
        linked.near.status()["links"].as_array().is_none_or(Vec::is_empty)
            && gateway["keys"][0]["connections"] == 0
    });
    let after: Vec<_> = fs::read_dir(linked.there("")).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert!(before.iter().all(|name| after.contains(name) || name == "d3"), "{before:?} {after:?}");
    assert_eq!(fs::read(linked.there("d0/e0/f0")).unwrap(), b"from here");
    linked.end();
}

/// S823, S824, S825.
#[test]
fn a_link_is_what_its_key_permits() {
    let near = ["--nodes", "3"];
    let Some(linked) = Linked::start(&near, &[], &["--path", "/data", "--read-only"]) else { return };
    fs::write(linked.there("f"), "content").unwrap();
    let wrong = linked.near.place().path().join("wrong");
    fs::write(&wrong, "no key").unwrap();
    let address = linked.relay.address().to_string();
    let refused = linked.link(&["add", "far", &address, "--key-file", wrong.to_str().unwrap()]);
    assert!(refused.code == 1 && refused.err.contains("is no key of a link"), "{}", refused.err);
    let linked = linked.added();
    let again = linked.add();
    assert!(again.code == 1 && again.err.contains("there is one"), "{}", again.err);
    assert_eq!(fs::read(linked.here("f")).unwrap(), b"content");
    let refused = [
        fs::write(linked.here("f"), "mine"),
        fs::write(linked.here("new"), "mine"),
        fs::create_dir(linked.here("dir")),
        fs::rename(linked.here("f"), linked.here("g")),
        fs::hard_link(linked.here("f"), linked.here("g")),
        fs::remove_file(linked.here("f")),
        std::os::unix::fs::symlink("f", linked.here("l")),
        fs::set_permissions(linked.here("f"), fs::Permissions::from_mode(0o600)),
        fs::File::options().append(true).open(linked.here("f")).map(drop),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        let refused = refused.expect_err(&format!("change {number}"));
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem, "change {number}");
    }
    assert_eq!(fs::read_dir(linked.here("")).unwrap().count(), 1);
    assert_eq!(fs::read(linked.there("f")).unwrap(), b"content");
    // A revoked key ends the link.
    fs::write(linked.there("later"), "later").unwrap();
    linked.far.place().ok(&["key", "revoke", "--name", linked.far.name(), &linked.key_id]);
    assert!(fs::read(linked.here("later")).is_err());
    let shown = linked.link(&["show", "far"]);
    assert!(shown.code == 1 && shown.out.contains("was revoked"), "{}{}", shown.out, shown.err);
    let removed = linked.link(&["remove", "far", "--discard"]);
    assert_eq!(removed.code, 0, "{}", removed.err);
    assert_eq!(fs::read(linked.there("f")).unwrap(), b"content");
    linked.end();
}

/// S826.
#[test]
fn formations_that_link_each_other_are_found_out() {
    let both = ["--link-listen", "127.0.0.1:0"];
    let Some(linked) = Linked::start(&both, &[], &[]) else { return };
    let linked = linked.added();
    let back = linked.near.place().path().join("back.key");
    make_key(&linked.near, &back, &[]);
    let address = gateway_address(&linked.near).to_string();
    let (name, key) = (linked.far.name(), back.to_str().unwrap());
    let refused =
        linked.far.place().run(&["link", "add", "--name", name, "back", &address, "--key-file", key]);
    assert!(refused.code == 1 && refused.err.contains("in a circle"), "{}", refused.err);
    let itself = linked.near.place().run(&[
        "link",
        "add",
        "--name",
        linked.near.name(),
        "self",
        &address,
        "--key-file",
        key,
    ]);
    assert!(itself.code == 1 && itself.err.contains("that it is in"), "{}", itself.err);
    linked.end();
}

/// S827: daemons and the gateway are killed while both sides are used.
#[test]
fn nothing_is_lost_when_gateway_and_daemons_are_killed() {
    let Some(linked) =
        Linked::start(&["--deaths-max", "100/60s"], &["--deaths-max", "100/60s"], &["--path", "/data"])
    else {
        return;
    };
    let linked = linked.added();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..9 {
                std::thread::sleep(Duration::from_millis(400));
                match round % 3 {
                    0 => {
                        gateway_pid(&linked.far).into_iter().for_each(|pid| try_to_signal(pid, Signal::KILL))
                    }
                    1 => kill_daemon(&linked.near),
                    _ => kill_daemon(&linked.far),
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let mut round = 0;
        while !is_over.load(Ordering::Relaxed) || round < 20 {
            round += 1;
            let (name, content) = (format!("f{}", round % 5), bytes(round * 7919 % 300_000, round));
            fs::write(linked.here(&name), &content).unwrap();
            assert!(fs::read(linked.here(&name)).unwrap() == content, "round {round}");
        }
    });
    let flushed = || linked.near.place().run(&["flush", linked.here("").to_str().unwrap()]);
    wait_until("all is there", || flushed().code == 0);
    assert_eq!(diff(&linked.here(""), &linked.there("")), "");
    linked.end();
}

/// Kills a node's daemon, if there is one: the one that the state names may have been killed before.
fn kill_daemon(camp: &Camp) {
    if let Some(pid) = state(camp)["nodes"][0]["process"]["pid"].as_u64() {
        try_to_signal(pid, Signal::KILL);
    }
}

/// S828: without the other side.
#[test]
fn what_is_here_is_served_while_the_link_is_down() {
    let Some(linked) = Linked::start(&[], &[], &["--path", "/data"]) else { return };
    fs::write(linked.there("here"), bytes(300_000, 1)).unwrap();
    fs::write(linked.there("not-here"), bytes(300_000, 2)).unwrap();
    let linked = linked.added();
    assert!(fs::read(linked.here("here")).unwrap() == bytes(300_000, 1));
    assert!(linked.here("not-here").exists());
    linked.relay.cut();
    assert!(fs::read(linked.here("here")).unwrap() == bytes(300_000, 1));
    let unsent = fs::write(linked.here("here"), b"written while it is down");
    assert!(unsent.as_ref().is_ok() || unsent.is_err_and(|error| error.kind() != ErrorKind::NotFound));
    assert_eq!(fs::read(linked.here("here")).unwrap(), b"written while it is down");
    let refused = linked.near.run("down", &["--yes"]);
    assert_ne!(refused.code, 0, "{}", refused.err);
    linked.relay.heal();
    let flushed = || linked.near.place().run(&["flush", linked.here("").to_str().unwrap()]);
    wait_until("it is sent", || flushed().code == 0);
    assert_eq!(fs::read(linked.there("here")).unwrap(), b"written while it is down");
    assert!(fs::read(linked.here("not-here")).unwrap() == bytes(300_000, 2));
    linked.end();
}

/// S830: no room at the other side.
#[test]
fn a_full_far_side_is_told() {
    let volume = tempfile::tempdir().unwrap();
    let small = format!("{}:64m", volume.path().display());
    let Some(linked) = Linked::start(&[], &["--volume", &small], &["--path", "/data"]) else { return };
    let linked = linked.added();
    fs::write(linked.here("large"), vec![7; 100 << 20]).unwrap();
    let flushed = linked.near.place().run(&["flush", linked.here("").to_str().unwrap()]);
    assert!(flushed.code == 1 && flushed.err.contains("space"), "{}{}", flushed.out, flushed.err);
    // A process that another test forked may have closed its copy of the file while it was short.
    let there = fs::metadata(linked.there("large")).map(|found| found.len());
    assert!(there.as_ref().map_or(true, |len| *len < 64 << 20), "{there:?} {}", flushed.err);
    fs::remove_file(linked.here("large")).unwrap();
    fs::write(linked.here("small"), "small").unwrap();
    assert_eq!(fs::read(linked.there("small")).unwrap(), b"small");
    linked.end();
}

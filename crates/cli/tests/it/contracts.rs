//! Contracts of single files and directories, with the command and the attribute that users have.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{XattrFlags, fsetxattr, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use serde_json::Value;

use crate::harness::{Camp, Said, assert_contains, copy_program, said, text, wait_until};

const NAME: &str = "user.bivouac.contract";

/// What the attribute says.
fn shown(path: &Path) -> String {
    let mut value = [0; 64];
    let len = getxattr(path, NAME, &mut value).unwrap();
    String::from_utf8(value[..len].to_vec()).unwrap()
}

fn set(path: &Path, contract: &str) -> Result<(), Errno> {
    setxattr(path, NAME, contract.as_bytes(), XattrFlags::empty())
}

fn contract(camp: &Camp, arguments: &[&str]) -> Said {
    camp.place().run(&[&["contract"], arguments].concat())
}

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {} {}", said.out, said.err))
}

/// S730, S731, S732.
#[test]
fn a_contract_is_chosen_shown_and_inherited() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--stripe", "4k"]) else { return };
    let at = |name: &str| camp.mount().join(name);
    let other = |name: &str| camp.mounts()[1].join(name);
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("before"), "content").unwrap();
    assert_eq!(
        (shown(&at("dir")), shown(&at("before"))),
        ("coherent partition".into(), "coherent partition".into())
    );
    let said = contract(&camp, &["set", "strict", text(&at("dir")), text(&at("before"))]);
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, "", ""));
    fs::create_dir(other("dir/below")).unwrap();
    fs::write(other("dir/below/file"), "content").unwrap();
    for name in ["dir", "dir/below", "dir/below/file", "before"] {
        assert_eq!((shown(&at(name)), shown(&other(name))), ("strict".into(), "strict".into()), "{name}");
    }
    let said = contract(&camp, &["show", text(&at("dir")), text(&at("dir/below/file")), text(camp.mount())]);
    let dir = text(camp.mount());
    let expected = format!(
        "{dir}/dir: strict (its own, for what is made in it)\n{dir}/dir/below/file: strict (its own)\n{dir}: coherent (its \
         partition's, for what is made in it)\n"
    );
    assert_eq!((said.code, said.out), (0, expected), "{}", said.err);
    let one = &json(&contract(&camp, &["show", "--json", text(&at("before"))]));
    let one = one.as_array().unwrap_or_else(|| one["items"].as_array().unwrap())[0].clone();
    assert_eq!((&one["contract"], &one["from"]), (&Value::from("strict"), &Value::from("own")));
    let said = camp.place().ok(&["explain", text(&at("before"))]);
    assert!(said.contains("\ncontract: strict, its own; bivouac contract set changes it\n"), "{said}");
    let said = camp.place().ok(&["explain", text(camp.mount())]);
    assert!(said.contains("\ncontract of what is made in it: coherent, its partition's;"), "{said}");
    // Wherever it goes.
    fs::rename(at("dir/below/file"), at("moved")).unwrap();
    fs::hard_link(at("moved"), at("also")).unwrap();
    assert_eq!((shown(&at("moved")), shown(&other("also"))), ("strict".into(), "strict".into()));
    // By the attribute, also of what is open; it is not listed.
    set(&at("dir"), "session").unwrap();
    fs::write(at("dir/new"), "content").unwrap();
    assert_eq!(shown(&other("dir/new")), "session");
    let file = File::create(at("open")).unwrap();
    fsetxattr(&file, NAME, b"strict", XattrFlags::empty()).unwrap();
    assert_eq!(shown(&other("open")), "strict");
    removexattr(at("open"), NAME).unwrap();
    assert_eq!(shown(&other("open")), "coherent partition");
    let mut names = [0_u8; 64];
    assert_eq!(listxattr(at("open"), &mut names).unwrap(), 0);
    camp.down();
}

/// S790, S791: rules of a partition give new files and directories a contract; explanations say from where.
#[test]
fn rules_give_new_files_a_contract() {
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--spread-at", "20"]) else { return };
    let part = camp.mount().join("part");
    let refused = |rule: &str| {
        let said = camp.place().run(&["partition", "create", text(&part), "--rule", rule]).fails(2, &[]);
        said.err
    };
    assert!(
        refused("*.db: contract=loose").contains("contract 'loose' is none of coherent, session, strict")
    );
    assert!(refused("[: contract=strict").contains("pattern '[' has a bracket or brace that is not closed"));
    assert!(refused("a/*.db: contract=strict").contains("contract= goes by names"));
    let rules = [
        "--rule",
        "*.db: contract=strict",
        "--rule",
        "ckpt*/**: contract=session",
        "--rule",
        "*.d?: stripe=8k",
    ];
    camp.place().ok(&[&["partition", "create", text(&part)], &rules[..]].concat());
    for said in [
        camp.place().ok(&["partition", "show", text(&part)]),
        camp.place().ok(&["partition", "list", "--json"]),
    ] {
        assert_contains(&said, &["*.db: contract=strict", "ckpt*/**: contract=session"]);
    }
    let at = |name: &str| camp.mounts()[1].join("part").join(name);
    for dir in ["ckpt1", "other", "other/ckpt1", "own"] {
        fs::create_dir(at(dir)).unwrap();
    }
    assert_eq!(contract(&camp, &["set", "coherent", text(&at("own"))]).code, 0);
    for name in ["a.db", "a.txt", "ckpt1/a.db", "ckpt1/a.txt", "other/a.db", "other/ckpt1/a.txt", "own/a.db"]
    {
        fs::write(at(name), "content").unwrap();
    }
    let expected = [
        ("a.db", "strict"),
        ("a.txt", "coherent partition"),
        ("ckpt1", "session"),
        // Of a directory with a contract of its own, the rules do not matter.
        ("ckpt1/a.db", "session"),
        ("ckpt1/a.txt", "session"),
        ("other", "coherent partition"),
        ("other/a.db", "strict"),
        ("other/ckpt1", "coherent partition"),
        ("other/ckpt1/a.txt", "coherent partition"),
        ("own/a.db", "coherent"),
    ];
    for (name, contract) in expected {
        assert_eq!(shown(&camp.mount().join("part").join(name)), contract, "{name}");
    }
    // Wherever they go, and whatever they are called then.
    fs::rename(at("a.db"), at("b.txt")).unwrap();
    fs::rename(at("a.txt"), at("b.db")).unwrap();
    assert_eq!((shown(&at("b.txt")), shown(&at("b.db"))), ("strict".into(), "coherent partition".into()));
    let said = camp.place().ok(&["explain", text(&at("b.db"))]);
    assert!(said.contains("\ncontract: coherent, its partition's;"), "{said}");
    let new = "\ncontract of a new file of this name: strict, by the rule '*.db: contract=strict' of its partition\n";
    assert!(said.contains(new), "{said}");
    let said = camp.place().ok(&["explain", text(&at("own/a.db"))]);
    assert!(said.contains("\ncontract of a new file of this name: coherent, from its directory\n"), "{said}");
    // Other rules hold for what is made from then on, also on the nodes of a large directory.
    for number in 0..60 {
        fs::write(at(&format!("other/{number}")), "").unwrap();
    }
    camp.place().ok(&["partition", "set", text(&part), "--rule", "*.txt: contract=strict"]);
    let made_anew = |name: String| {
        let name = at(&name);
        let _ = fs::remove_file(&name);
        fs::write(&name, "").unwrap();
        shown(&name)
    };
    // The directory may spread just then, to a node that does not know it yet.
    wait_until("all nodes know it", || {
        (0..20).all(|number| made_anew(format!("other/{number}.txt")) == "strict")
            && made_anew("other/new.db".into()) == "coherent partition"
    });
    assert_eq!(shown(&at("other/a.db")), "strict");
    camp.down();
}

/// S793: who has tokens of a strict file, and who waits for some.
#[test]
fn explanations_show_the_tokens_of_strict_files() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let path = camp.mount().join("file");
    fs::write(&path, "content").unwrap();
    assert!(!camp.place().ok(&["explain", text(&path)]).contains("tokens"));
    set(&path, "strict").unwrap();
    assert!(camp.place().ok(&["explain", text(&path)]).contains("\ntokens: none;"));
    let files: Vec<File> = camp
        .mounts()
        .iter()
        .map(|mount| OpenOptions::new().write(true).open(mount.join("file")).unwrap())
        .collect();
    files[0].write_all_at(b"first", 0).unwrap();
    files[1].write_all_at(b"second", 100).unwrap();
    let said = camp.place().ok(&["explain", text(&path)]);
    assert!(said.contains(" of clients; 0 requests wait\n"), "{said}");
    assert!(said.contains("mount of node 0") && said.contains("mount of node 1"), "{said}");
    let explained: Value =
        serde_json::from_str(&camp.place().ok(&["explain", "--json", text(&path)])).unwrap();
    let held = explained["tokens"]["held"].as_array().unwrap();
    let has = |node: u64, byte: u64| {
        held.iter().any(|one| {
            one["node"] == node
                && one["mode"] == "write"
                && one["start"].as_u64().unwrap() <= byte
                && one["end"].as_u64().is_none_or(|end| byte < end)
        })
    };
    assert!(has(0, 0) && has(1, 100) && !has(1, 0) && !has(0, 100), "{held:?}");
    drop(files);
    wait_until("tokens are given back", || {
        camp.place().ok(&["explain", text(&path)]).contains("\ntokens: none;")
    });
    camp.down();
}

/// S730: the flags of the attribute ask whether a file has one of its own.
#[test]
fn flags_of_the_attribute_ask_for_a_contract_of_its_own() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let path = camp.mount().join("file");
    fs::write(&path, "content").unwrap();
    let with = |contract: &str, flags| setxattr(&path, NAME, contract.as_bytes(), flags);
    assert_eq!(with("strict", XattrFlags::REPLACE), Err(Errno::NODATA));
    with("strict", XattrFlags::CREATE).unwrap();
    assert_eq!(with("coherent", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(with("strict", XattrFlags::CREATE), Err(Errno::EXIST));
    with("coherent", XattrFlags::REPLACE).unwrap();
    assert_eq!(shown(&path), "coherent");
    assert_eq!(set(&path, "strict partition"), Err(Errno::INVAL));
    assert_eq!(shown(&path), "coherent");
    set(&path, "partition").unwrap();
    assert_eq!(with("strict", XattrFlags::REPLACE), Err(Errno::NODATA));
    camp.down();
}

/// S731.
#[test]
fn a_large_directory_gives_its_contract_on_every_node() {
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--spread-at", "20"]) else { return };
    let dir = camp.mount().join("dir");
    fs::create_dir(&dir).unwrap();
    (0..60).for_each(|number| fs::write(dir.join(format!("old{number}")), "").unwrap());
    let spread =
        |node: &Value| node["operations"].as_array().unwrap().iter().any(|op| op["name"] == "InstallShard");
    wait_until("it is spread", || camp.status()["nodes"].as_array().unwrap().iter().any(spread));
    for word in ["strict", "session", "partition"] {
        assert_eq!(contract(&camp, &["set", word, text(&dir)]).code, 0);
        for (index, mount) in camp.mounts().iter().cycle().take(60).enumerate() {
            let name = format!("{word}{index}");
            fs::write(mount.join("dir").join(&name), "").unwrap();
            let expected = if word == "partition" { "coherent partition" } else { word };
            assert_eq!(shown(&dir.join(&name)), expected, "{name}");
        }
    }
    camp.down();
}

/// S732, S736: of a tree; what cannot be set, and other partitions, are named.
#[test]
fn a_tree_is_set_as_far_as_it_can_be() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let at = |name: &str| camp.mount().join(name);
    fs::create_dir_all(at("tree/a/b")).unwrap();
    for name in ["tree/one", "tree/a/two", "tree/a/b/three"] {
        fs::write(at(name), "content").unwrap();
    }
    std::os::unix::fs::symlink("one", at("tree/link")).unwrap();
    let part = at("tree/part");
    camp.place().ok(&["partition", "create", text(&part), "--contract", "strict"]);
    fs::write(part.join("file"), "content").unwrap();
    // A close reaches the home after `close` has returned.
    wait_until("all is closed", || camp.status()["totals"]["open_files"] == 0);
    let held = File::open(camp.mounts()[1].join("tree/a/two")).unwrap();
    let said = contract(&camp, &["set", "--recursive", "session", text(&at("tree"))]).fails(1, &[]);
    assert_eq!(said.out, format!("{}: session for 5 files and directories\n", text(&at("tree"))));
    assert!(said.err.contains("tree/part: is left out, as another partition; name it"), "{}", said.err);
    assert!(said.err.contains("tree/a/two: is open: a change to session"), "{}", said.err);
    for name in ["tree", "tree/one", "tree/a", "tree/a/b", "tree/a/b/three"] {
        assert_eq!(shown(&at(name)), "session", "{name}");
    }
    assert_eq!(
        (shown(&at("tree/a/two")), shown(&part)),
        ("coherent partition".into(), "strict partition".into())
    );
    assert_eq!(shown(&part.join("file")), "strict partition");
    drop(held);
    wait_until("it is closed", || contract(&camp, &["set", "-R", "session", text(&at("tree/a"))]).code == 0);
    camp.down();
}

/// S735, S737.
#[test]
fn refusals_name_object_cause_and_remedy() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let file = camp.mount().join("file");
    fs::write(&file, "content").unwrap();
    let refused = |arguments: &[&str], code: i32, says: &str| {
        let said = contract(&camp, arguments);
        assert!(said.code == code && said.err.contains(says), "{arguments:?}: {} {}", said.code, said.err);
    };
    refused(&["set", "strict", "/etc/passwd"], 1, "/etc/passwd: is not in a formation; mounted are: ");
    refused(&["show", "/etc/passwd"], 1, "/etc/passwd: is not in a formation; mounted are: ");
    refused(
        &["set", "loose", text(&file)],
        2,
        "contract 'loose' is none of coherent, session, strict, laminated, partition",
    );
    let none = camp.mount().join("none");
    refused(&["set", "strict", text(&none)], 1, "none: no such file or directory (ENOENT)");
    refused(&["show", text(&file), text(&none)], 1, "none: no such file or directory (ENOENT)");
    let pipe = camp.mount().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(&["show", text(&pipe)], 1, "pipe: has no contract: only regular files and directories have one");
    refused(
        &["set", "strict", text(&pipe)],
        1,
        "pipe: has no contract: only regular files and directories have one",
    );
    assert_eq!(set(&file, "loose"), Err(Errno::INVAL));
    // Of a file that is open elsewhere.
    let held = File::open(camp.mounts()[1].join("file")).unwrap();
    refused(
        &["set", "session", text(&file)],
        1,
        "file: is open: a change to session needs it closed everywhere",
    );
    assert_eq!(set(&file, "session"), Err(Errno::BUSY));
    set(&file, "strict").unwrap();
    set(&file, "coherent").unwrap();
    drop(held);
    wait_until("it is closed", || set(&file, "session").is_ok());
    // For a fifth of a second, in which a busy machine may not come to the close.
    wait_until("a close is waited for", || {
        let held = OpenOptions::new().append(true).open(&file).unwrap();
        set(&file, "strict").unwrap();
        refused(
            &["set", "session", text(&file)],
            1,
            "file: is open: a change to session needs it closed everywhere",
        );
        drop(held);
        contract(&camp, &["set", "session", text(&file)]);
        shown(&file) == "session"
    });
    camp.down();
}

/// S736.
#[test]
fn only_the_owner_and_root_choose() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can become others");
    }
    let place = tempfile::Builder::new().prefix("bvk").tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (mount, program) = (place.path().join("mnt"), place.path().join("program"));
    copy_program(Path::new(env!("CARGO_BIN_EXE_bivouac")), &program);
    fs::create_dir(&mount).unwrap();
    let Some(camp) = Camp::start(&["--mount", text(&mount), "--allow-other"]) else { return };
    for (name, owner) in [("mine", 65_534), ("theirs", 0)] {
        fs::write(mount.join(name), "content").unwrap();
        fs::set_permissions(mount.join(name), fs::Permissions::from_mode(0o666)).unwrap();
        chown(mount.join(name), Some(owner), Some(owner)).unwrap();
    }
    let run = |name: &str| {
        let mut command = Command::new(&program);
        command
            .args(["contract", "set", "strict"])
            .arg(mount.join(name))
            .uid(65_534)
            .gid(65_534)
            .current_dir("/");
        said(&command.output().unwrap())
    };
    let show = |name: &str| {
        let mut command = Command::new(&program);
        command.args(["contract", "show"]).arg(mount.join(name)).uid(65_534).gid(65_534).current_dir("/");
        said(&command.output().unwrap())
    };
    fs::set_permissions(mount.join("theirs"), fs::Permissions::from_mode(0o622)).unwrap();
    show("theirs").fails(1, &["theirs: you may not read it: chmod u+r first"]);
    let (mine, theirs) = (run("mine"), run("theirs"));
    assert_eq!((mine.code, shown(&mount.join("mine"))), (0, "strict".into()), "{}", mine.err);
    assert_eq!((theirs.code, shown(&mount.join("theirs"))), (1, "coherent partition".into()));
    assert!(theirs.err.contains("theirs: only its owner and root may choose its contract"), "{}", theirs.err);
    set(&mount.join("mine"), "coherent").unwrap();
    camp.down();
}

/// S733, S734: no write of any mount is lost to changes, over a kill of a daemon.
#[test]
fn changes_lose_no_write_over_a_kill() {
    const LEN: usize = 30_000;
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--stripe", "4k"]) else { return };
    let path = camp.mount().join("file");
    File::create(&path).unwrap();
    let stop = AtomicBool::new(false);
    let write_on = |index: usize, mount: &Path| {
        let file = OpenOptions::new().read(true).write(true).open(mount.join("file")).unwrap();
        let (mut round, mut back) = (0_u64, vec![0; LEN]);
        loop {
            round += 1;
            let bytes = vec![round as u8; LEN];
            file.write_all_at(&bytes, (index * LEN) as u64).unwrap();
            file.read_exact_at(&mut back, (index * LEN) as u64).unwrap();
            assert!(back == bytes, "round {round} of mount {index}");
            if stop.load(Ordering::Relaxed) {
                return round;
            }
        }
    };
    let write_on = &write_on;
    let rounds: Vec<u64> = std::thread::scope(|scope| {
        let mounts = camp.mounts().iter().enumerate();
        let writing: Vec<_> =
            mounts.map(|(index, mount)| scope.spawn(move || write_on(index, mount))).collect();
        for turn in 0..30 {
            if turn % 10 == 5 {
                camp.kill_node(turn / 10);
            }
            let word = if turn % 2 == 0 { "strict" } else { "coherent" };
            // With a daemon away it is not known whether it was done.
            wait_until("it is changed", || set(&path, word).is_ok());
            assert_eq!(shown(&path), word, "turn {turn}");
        }
        stop.store(true, Ordering::Relaxed);
        writing.into_iter().map(|writing| writing.join().unwrap()).collect()
    });
    let content: Vec<u8> = rounds.iter().flat_map(|round| vec![*round as u8; LEN]).collect();
    for mount in camp.mounts() {
        assert!(fs::read(mount.join("file")).unwrap() == content, "{}", mount.display());
    }
    let times = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.mtime(), meta.mtime_nsec(), meta.len())
    };
    // A close reaches the home after `close` has returned, and may move the times.
    wait_until("all is closed", || camp.status()["totals"]["open_files"] == 0);
    let before = times(&path);
    set(&path, "strict").unwrap();
    for node in 0..3 {
        camp.kill_node(node);
    }
    wait_until("it is shown again", || getxattr(&path, NAME, &mut [0_u8; 64]).is_ok());
    assert_eq!((shown(&path), times(&path)), ("strict".into(), before));
    camp.place().ok(&["fsck", "--name", camp.name()]);
    camp.down();
}

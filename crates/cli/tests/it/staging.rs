//! `bivouac stage`: what goes in and comes out is whole, whatever is killed, full or interrupted meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::harness::random::Random;
use crate::harness::{Camp, Place, Said, can_mount, events, signal, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Rounds of the loop that kills; more by the environment.
const ROUNDS: usize = 12;

/// Everything about a tree that a copy keeps, also which names are of one file.
fn describe(root: &Path) -> BTreeMap<String, String> {
    let (mut found, mut inodes) = (BTreeMap::new(), BTreeMap::<_, Vec<String>>::new());
    let mut next = vec![root.to_owned()];
    while let Some(path) = next.pop() {
        let meta = path.symlink_metadata().unwrap();
        let content = match () {
            () if meta.is_file() => format!("{:?}", sum(&fs::read(&path).unwrap())),
            () if meta.is_symlink() => format!("{:?}", fs::read_link(&path).unwrap()),
            () => String::new(),
        };
        if meta.is_dir() {
            next.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let times = (meta.mtime(), meta.mtime_nsec());
        inodes.entry((meta.dev(), meta.ino())).or_default().push(name.clone());
        found.insert(
            name,
            format!("{:o} {times:?} {} {content}", meta.mode(), if meta.is_dir() { 0 } else { meta.len() }),
        );
    }
    for mut names in inodes.into_values().filter(|names| names.len() > 1) {
        names.sort_unstable();
        for name in &names {
            found.entry(name.clone()).or_default().push_str(&format!(" is {}", names[0]));
        }
    }
    found
}

/// Length and a sum that notices what moves; from a library that is fast in every build.
fn sum(bytes: &[u8]) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    (bytes.len(), hasher.finish())
}

fn same(got: &Path, expected: &Path) {
    equal(&describe(got), &describe(expected));
}

/// A tree but for the attributes of directories: those that existed keep their own.
fn without_dirs(root: &Path) -> BTreeMap<String, String> {
    let mut all = describe(root);
    all.retain(|_, line| !line.starts_with('4'));
    all
}

fn equal(got: &BTreeMap<String, String>, expected: &BTreeMap<String, String>) {
    let differ: Vec<_> =
        got.keys().chain(expected.keys()).filter(|name| got.get(*name) != expected.get(*name)).collect();
    let shown: Vec<_> =
        differ.iter().take(3).map(|name| (name, got.get(*name), expected.get(*name))).collect();
    assert!(differ.is_empty(), "{} differ: {shown:?}", differ.len());
}

/// Small files in some directories, a file of two parts, links.
fn make_tree(root: &Path) {
    let mut random = Random::new(7);
    for number in 0..120 {
        let dir = root.join(format!("d{}", number % 5));
        fs::create_dir_all(&dir).unwrap();
        let len = random.below(9000);
        fs::write(dir.join(format!("f{number}")), random.bytes(len)).unwrap();
    }
    fs::write(root.join("large"), random.bytes(1 << 20).repeat(18)).unwrap();
    fs::hard_link(root.join("d1/f1"), root.join("d2/again")).unwrap();
    std::os::unix::fs::symlink("d1/f1", root.join("link")).unwrap();
    fs::set_permissions(root.join("d3/f3"), fs::Permissions::from_mode(0o400)).unwrap();
}

/// Several names of many files, small and large, in several directories.
fn make_links(root: &Path) {
    for number in 0..30 {
        let file = root.join(format!("d{}/f{number}", number % 5));
        for dir in 0..=number % 4 {
            fs::hard_link(&file, root.join(format!("d{dir}/again{number}"))).unwrap();
        }
    }
    fs::hard_link(root.join("large"), root.join("d4/large too")).unwrap();
}

/// In memory, so that nothing waits for a disk.
fn site() -> tempfile::TempDir {
    let place = ["/dev/shm", "/tmp"].into_iter().find(|place| Path::new(place).is_dir()).unwrap();
    tempfile::Builder::new().prefix("bvk").tempdir_in(place).unwrap()
}

fn stage(camp: &Camp, arguments: &[&str]) -> Said {
    let mut all = vec!["stage", arguments[0], "--name", camp.name()];
    all.extend(&arguments[1..]);
    camp.place().run(&all)
}

fn start(camp: &Camp, arguments: &[&str]) -> Child {
    let mut all = vec!["stage", arguments[0], "--name", camp.name()];
    all.extend(&arguments[1..]);
    camp.place().command(&all).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn jobs(camp: &Camp) -> Vec<Value> {
    serde_json::from_str(&stage(camp, &["status", "--json"]).out).unwrap()
}

/// What is temporary below a directory; looks only at names.
fn temporary(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![root.to_owned()];
    while let Some(path) = next.pop() {
        if path.to_string_lossy().contains(".bivouac-") {
            found.push(path);
        } else if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            next.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

// S180.
#[test]
fn a_tree_goes_in_and_comes_out_through_all_nodes() {
    let Some(camp) = Camp::start_each(&["--nodes", "3"]) else { return };
    let site = site();
    make_tree(&site.path().join("src"));
    let (src, out) = (site.path().join("src"), site.path().join("new/out"));

    stage(&camp, &["in", src.to_str().unwrap(), "/deep/data", "--verify", "--limit", "2g"]).succeeds();
    for mount in camp.mounts() {
        same(&mount.join("deep/data"), &src);
        let blocks = fs::metadata(mount.join("deep/data/large")).unwrap().blocks();
        assert_eq!(blocks * 512, 18 << 20, "pieces that came out of order left no holes");
    }
    let manifest = site.path().join("manifest");
    let inside = camp.mounts()[1].join("deep/data");
    let said = stage(
        &camp,
        &[
            "out",
            inside.to_str().unwrap(),
            out.to_str().unwrap(),
            "--json",
            "--manifest",
            manifest.to_str().unwrap(),
        ],
    )
    .succeeds();
    same(&out, &src);
    let events = events("stage", &said.out);
    let ended = events.iter().find(|event| event["event"] == "ended").unwrap();
    assert_eq!((&ended["files"], &ended["ok"]), (&Value::from(121), &Value::from(true)));
    assert_eq!(events.last().unwrap()["state"], "done");
    let dry = stage(&camp, &["out", inside.to_str().unwrap(), "elsewhere", "--json", "--dry-run"]);
    assert_eq!(crate::harness::events("stage", &dry.out)[0]["files"], 121);
    assert_eq!(
        fs::read_to_string(manifest).unwrap().lines().filter(|line| line.starts_with("done\t")).count(),
        129
    );
    stage(&camp, &["in", src.to_str().unwrap(), out.join("d1").to_str().unwrap(), "into"]).succeeds();
    same(&camp.mount().join("into/src"), &src);
    same(&camp.mount().join("into/d1"), &src.join("d1"));
    assert!(jobs(&camp).iter().all(|job| job["state"] == "done"));
    stage(&camp, &["resume", "1"]).fails(1, &["job 1 is done"]);
    assert!(stage(&camp, &["cancel", "9"]).err.contains("job 9 is not known"));
    assert_eq!(stage(&camp, &["in", "x", "../y"]).code, 2);
    for (way, paths) in [("in", ["s3://bucket/run", "data"]), ("out", ["deep/data", "s3://bucket/run"])] {
        stage(&camp, &[way, paths[0], paths[1]]).fails(2, &["partition create"]);
    }
    camp.down();
}

/// The file of a name, wherever it is below a directory.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let mut entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.find_map(|path| match path.is_dir() {
        true => find(&path, name),
        false => path.ends_with(name).then_some(path),
    })
}

// S350, S351: a bit that changes on a volume changes no time.
#[test]
fn what_was_damaged_since_it_was_staged_does_not_come_out_as_verified() {
    let (volume, site) = (site(), site());
    let Some(camp) = Camp::start(&["--nodes", "1", "--volume", volume.path().to_str().unwrap()]) else {
        return;
    };
    let src = site.path().join("src");
    fs::create_dir(&src).unwrap();
    for (name, len) in [("small", 9_000), ("large", 9 << 20), ("sound", 70_000)] {
        fs::write(src.join(name), Random::new(len).bytes(len as usize)).unwrap();
    }
    let out = |dst: &str, more: &[&str]| {
        let dst = site.path().join(dst);
        stage(&camp, &[&["out", "data", dst.to_str().unwrap()], more].concat())
    };

    stage(&camp, &["in", src.to_str().unwrap(), "/data"]).succeeds().tells(&["3 files", ", verified"]);
    assert!(out("sound", &[]).err.contains(", verified"));
    for name in ["small", "large"] {
        let ino = fs::metadata(camp.mount().join("data").join(name)).unwrap().ino();
        let subfile = find(volume.path(), &format!("{ino:016x}-0000")).unwrap();
        let mut bytes = fs::read(&subfile).unwrap();
        bytes[4096 + 5000] ^= 16;
        let file = fs::File::options().write(true).open(&subfile).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes[9096..9097], 9096).unwrap();
    }
    let said = out("damaged", &[]);
    assert_ne!(said.code, 0);
    assert!(said.err.contains("2 not copied") && said.err.contains("holds other bytes"), "{}", said.err);
    assert!(!said.err.contains(", verified"), "{}", said.err);
    let there: Vec<bool> =
        ["small", "large", "sound"].map(|name| site.path().join("damaged").join(name).exists()).to_vec();
    assert_eq!(there, [false, false, true]);
    let said = out("all", &["--no-verify"]).succeeds().tells(&["copied without comparing"]);
    assert!(!said.err.contains("verified"), "{}", said.err);
    camp.run("down", &["--discard"]);
}

/// How many files were made at once, over all nodes.
fn puts(camp: &Camp) -> u64 {
    let status = camp.status();
    let operations = |node: &Value| node["operations"].as_array().unwrap().clone();
    let all = status["nodes"].as_array().unwrap().iter().flat_map(operations);
    all.filter(|op| op["name"] == "Put").map(|op| op["client"].as_u64().unwrap()).sum()
}

/// S267, S269: what nobody looks into is made with a request per small file, and is what the steps make.
#[test]
fn small_files_of_a_new_tree_are_made_by_one_request_each() {
    let Some(camp) = Camp::start_each(&["--nodes", "3"]) else { return };
    let site = site();
    make_tree(&site.path().join("src"));
    let src = site.path().join("src");
    // A mount that has just begun makes files in steps for a moment, so the second copy is the one that is counted.
    for name in ["first", "second"] {
        let before = puts(&camp);
        stage(&camp, &["in", src.to_str().unwrap(), name]).succeeds();
        camp.mounts().iter().for_each(|mount| same(&mount.join(name), &src));
        let mut made = without_dirs(&camp.mount().join(name));
        made.retain(|_, line| line.starts_with("10"));
        assert_eq!(made.len(), 122);
        assert!(name == "first" || puts(&camp) - before == 120, "{}", puts(&camp) - before);
    }
    // Into a directory that is there they are made in steps; the manifest's marks are right for both.
    fs::remove_file(camp.mount().join("second/d1/f6")).unwrap();
    let before = puts(&camp);
    let said = stage(&camp, &["in", src.to_str().unwrap(), "second"]);
    assert_eq!((said.code, puts(&camp) - before), (0, 0), "{}", said.err);
    equal(&without_dirs(&camp.mount().join("second")), &without_dirs(&src));
    let out = site.path().join("out");
    stage(&camp, &["out", "first", out.to_str().unwrap(), "--changed-since", "in"]).succeeds();
    assert_eq!(
        without_dirs(&out).into_keys().collect::<Vec<_>>(),
        Vec::<String>::new(),
        "nothing has changed"
    );
    camp.down();
}

/// Kills copies in and out at random moments, resumes them or begins anew, and compares.
#[test]
fn a_copy_that_is_killed_at_any_moment_is_resumed_or_cancelled_without_a_trace() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let rounds =
        std::env::var("BIVOUAC_STAGE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let (site, mut random) = (site(), Random::new(Random::seed()));
    let src = site.path().join("src");
    make_tree(&src);
    make_links(&src);
    let begun = Instant::now();
    stage(&camp, &["in", src.to_str().unwrap(), "data"]).succeeds();
    let whole_us = begun.elapsed().as_micros() as usize;
    let (out, expected) = (site.path().join("out"), without_dirs(&src));
    for round in 0..rounds {
        let into_formation = random.once_in(2);
        let (from, to, parent) = if into_formation {
            (src.to_str().unwrap(), "copy", camp.mount().to_owned())
        } else {
            ("data", out.to_str().unwrap(), site.path().to_owned())
        };
        let at = if into_formation { camp.mount().join("copy") } else { out.clone() };
        // Over an older copy every other time.
        if random.once_in(2) {
            fs::create_dir_all(at.join("d1")).unwrap();
            fs::write(at.join("d1/f1"), "old").unwrap();
        }
        let existed = at.exists();
        let mut child = start(&camp, &[if into_formation { "in" } else { "out" }, from, to]);
        kill_after(&mut child, random.below(whole_us));
        while let Some(job) = jobs(&camp).into_iter().find(|job| job["state"] != "done") {
            assert!(
                existed || !at.exists() || without_dirs(&at) == without_dirs(&src),
                "round {round}: {job}"
            );
            let id = job["job"].to_string();
            match random.below(4) {
                0 => {
                    stage(&camp, &["cancel", &id]).succeeds();
                    assert_eq!(temporary(&parent), Vec::<PathBuf>::new());
                }
                1 => kill_after(&mut start(&camp, &["resume", &id]), random.below(whole_us)),
                _ => {
                    let said = stage(&camp, &["resume", &id]);
                    assert_eq!(said.code, 0, "round {round}: {}", said.err);
                }
            }
        }
        // What was cancelled, or killed before it was written down, is done anew.
        if !at.exists() || existed {
            stage(&camp, &[if into_formation { "in" } else { "out" }, from, to]).succeeds();
        }
        equal(&without_dirs(&at), &expected);
        assert_eq!(temporary(&parent), Vec::<PathBuf>::new(), "round {round}");
        fs::remove_dir_all(&at).unwrap();
    }
    camp.down();
}

fn kill_after(child: &mut Child, us: usize) {
    std::thread::sleep(Duration::from_micros(us as u64));
    let _it_may_have_ended = child.kill();
    child.wait().unwrap();
}

#[test]
fn a_daemon_that_is_killed_while_a_tree_goes_in_and_out_costs_nothing() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--deaths-max", "99/1ms"]) else { return };
    let site = site();
    let (src, out) = (site.path().join("src"), site.path().join("out"));
    make_tree(&src);
    for arguments in [["in", src.to_str().unwrap(), "data"], ["out", "data", out.to_str().unwrap()]] {
        let mut child = start(&camp, &arguments);
        for node in [1, 0, 1] {
            camp.kill_node(node);
            camp.node_pid(node);
        }
        let status = child.wait().unwrap();
        let job = jobs(&camp).pop().unwrap();
        assert_eq!((status.code(), &job["state"]), (Some(0), &Value::from("done")), "{job}");
    }
    same(&out, &src);
    camp.down();
}

// S181, S184, S190.
#[test]
fn a_signal_ends_it_and_leaves_it_to_be_resumed() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let site = site();
    let src = site.path().join("src");
    make_tree(&src);
    let mut child = start(&camp, &["in", src.to_str().unwrap(), "data", "--limit", "1m"]);
    wait_until("it copies", || !temporary(camp.mount()).is_empty());
    assert_eq!(jobs(&camp)[0]["state"], "running");
    assert!(stage(&camp, &["resume", "1"]).err.contains("is running"));
    camp.run("down", &["--yes"]).fails(3, &["job 1 (in ", "is running"]);
    signal(child.id().into(), Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let job = &jobs(&camp)[0];
    assert_eq!(job["state"], "interrupted");
    assert_eq!((&job["transfers"][0]["src"], &job["transfers"][0]["dst"]), (&json!(src), &json!("/data")));
    assert!(!camp.mount().join("data").exists(), "what is half-written has no name");
    let text = stage(&camp, &["status", "1"]).out;
    assert!(text.contains("interrupted") && text.contains("to /data"), "{text}");
    assert_eq!(stage(&camp, &["cancel", "1"]).code, 0);
    assert_eq!(temporary(camp.mount()), Vec::<PathBuf>::new());
    camp.down();
}

/// S376.
#[test]
fn what_does_not_fit_is_refused_and_follows_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let volume = format!("{}:40m", dir.path().display());
    let Some(camp) = Camp::start(&["--nodes", "1", "--volume", &volume]) else { return };
    let site = site();
    let src = site.path().join("src");
    make_tree(&src);
    fs::write(camp.mount().join("ballast"), vec![1; 28 << 20]).unwrap();
    stage(&camp, &["in", src.to_str().unwrap(), "data"]).fails(1, &["does not fit", "bivouac stage resume"]);
    assert!(!camp.mount().join("data").exists(), "nothing was begun");
    assert_eq!(jobs(&camp)[0]["state"], "incomplete");
    fs::remove_file(camp.mount().join("ballast")).unwrap();
    wait_until("there is room again", || stage(&camp, &["resume", "1"]).code == 0);
    same(&camp.mount().join("data"), &src);
    camp.down();
}

// S189.
#[test]
fn down_refuses_what_was_promised_and_is_not_out() {
    if !can_mount() {
        return;
    }
    let site = site();
    let kept = site.path().join("kept");
    let promise = format!("res:{}", kept.display());
    let camp = Camp::start_in(Place::new(), &["--out", &promise]);
    fs::create_dir(camp.mount().join("res")).unwrap();
    fs::write(camp.mount().join("res/a"), "one").unwrap();
    camp.run("down", &["--yes"]).fails(3, &["/res/a", "--discard"]);
    assert_eq!(stage(&camp, &["out"]).code, 0);
    assert_eq!(fs::read_to_string(kept.join("a")).unwrap(), "one");
    fs::write(camp.mount().join("res/a"), "two").unwrap();
    camp.run("down", &["--yes"]).fails(3, &["1 not copied out:\n  /res/a"]);
    assert_eq!(stage(&camp, &["out"]).code, 0);
    assert_eq!(fs::read_to_string(kept.join("a")).unwrap(), "two");
    camp.down();
}

#[test]
fn promises_of_what_was_never_made_are_kept() {
    if !can_mount() {
        return;
    }
    let site = site();
    let [made, never] = ["made", "never"].map(|name| format!("{name}:{}", site.path().join(name).display()));
    let camp = Camp::start_in(Place::new(), &["--out", &never, "--out", &made]);
    let said = stage(&camp, &["out"]);
    assert!(
        said.code == 0 && said.err.matches("is not there, so there is nothing to copy").count() == 2,
        "{said:?}"
    );
    fs::write(camp.mount().join("made"), "one").unwrap();
    stage(&camp, &["out"]).succeeds().tells(&["/never to "]);
    assert_eq!(fs::read_to_string(site.path().join("made")).unwrap(), "one");
    assert!(!site.path().join("never").exists());
    camp.down();
}

#[test]
fn what_is_discarded_leaves_nothing_at_the_target() {
    let Some(camp) = Camp::start(&[]) else { return };
    let site = site();
    make_tree(&camp.mount().join("data"));
    let mut child =
        start(&camp, &["out", "data", site.path().join("out").to_str().unwrap(), "--limit", "1m"]);
    wait_until("it has begun", || !temporary(site.path()).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    camp.run("down", &["--yes"]).fails(3, &["job 1 (out /data to", "is interrupted"]);
    camp.run("down", &["--discard"]).succeeds();
    assert_eq!(fs::read_dir(site.path()).unwrap().count(), 0);
    assert!(camp.place().is_empty());
}

// S188.
#[test]
fn only_what_changed_goes_out() {
    let Some(camp) = Camp::start_each(&["--nodes", "3"]) else { return };
    let site = site();
    let src = site.path().join("src");
    make_tree(&src);
    assert_eq!(stage(&camp, &["in", src.to_str().unwrap(), "data"]).code, 0);
    let [one, two, three] = [0, 1, 2].map(|node| camp.mounts()[node].join("data"));
    let len = fs::metadata(one.join("d0/f5")).unwrap().len();
    fs::write(one.join("d0/f5"), vec![1; len as usize]).unwrap();
    overwrite_in_place(&two.join("large"));
    fs::rename(three.join("d4"), three.join("moved")).unwrap();
    fs::remove_file(two.join("d3/f8")).unwrap();
    fs::write(one.join("d2/again"), "by its other name").unwrap();
    camp.kill_node(1);
    camp.node_pid(1);
    let out = site.path().join("out");
    let said =
        stage(&camp, &["out", "--changed-since", "in", "data", out.to_str().unwrap(), "--json"]).succeeds();
    let ended: Value = said
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|event| event["event"] == "ended")
        .unwrap();
    assert!(ended["deleted"].as_array().unwrap().contains(&"d3/f8".into()), "{ended}");
    let got: Vec<_> =
        describe(&out).into_keys().filter(|name| !name.starts_with("moved/") && name.contains('f')).collect();
    assert_eq!(got, ["d0/f5", "d1/f1"], "{ended}");
    assert_eq!(describe(&out).keys().filter(|name| name.starts_with("moved/")).count(), 24);
    assert!(fs::read(out.join("large")).unwrap() == fs::read(one.join("large")).unwrap());
    assert_eq!(fs::read_to_string(out.join("d1/f1")).unwrap(), "by its other name");
    let none =
        stage(&camp, &["out", "--changed-since", "@99999999999", "data", out.to_str().unwrap(), "--json"]);
    assert!(none.code == 0 && none.out.contains("\"files\":0"), "{}{}", none.out, none.err);
    camp.down();
}

fn overwrite_in_place(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"changed", 12_345).unwrap();
}

#[test]
fn run_copies_out_what_the_command_changed() {
    if !can_mount() {
        return;
    }
    let (place, site) = (Place::new(), site());
    let src = site.path().join("src");
    make_tree(&src);
    let run = |more: &[&str], out: &str| {
        let name = Place::unique_name();
        let input = format!("{}:data", src.display());
        let output = format!("data:{}", site.path().join(out).display());
        let mut all = vec!["run", "--name", &name, "--in", &input, "--out", &output];
        all.extend(more);
        all.extend([
            "--",
            "sh",
            "-c",
            "echo new > $BIVOUAC/data/d1/result; echo more >> $BIVOUAC/data/d0/f5",
        ]);
        place.run(&all).succeeds()
    };
    let before = describe(&src);
    run(&[], "elsewhere");
    let whole = describe(&site.path().join("elsewhere"));
    assert_eq!(whole.len(), before.len() + 1, "nothing was there yet");
    let inode = |name: &str| fs::metadata(src.join(name)).unwrap().ino();
    let untouched = inode("d2/f2");
    run(&[], "src").tells(&["2 files", "unchanged"]);
    assert_eq!(fs::read_to_string(src.join("d1/result")).unwrap(), "new\n");
    assert_eq!(inode("d2/f2"), untouched);
    run(&["--out-all"], "all");
    assert_eq!(describe(&site.path().join("all")).len(), whole.len());
}

/// S450: the second one waits for the first, and finds what that has made.
#[test]
fn two_that_copy_one_tree_to_one_place_at_once_both_succeed() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let site = site();
    make_tree(&site.path().join("src"));
    let src = site.path().join("src");
    for (way, rounds) in [("in", 3), ("out", 2)] {
        for round in 0..rounds {
            let (inside, outside) = (format!("data{round}"), site.path().join(format!("out{round}")));
            let operands = match way {
                "in" => [src.to_str().unwrap(), &inside],
                _ => [inside.as_str(), outside.to_str().unwrap()],
            };
            let arguments = [way, operands[0], operands[1], "--limit", "60m"];
            let mut others: Vec<Child> = (0..3).map(|_| start(&camp, &arguments)).collect();
            stage(&camp, &arguments).succeeds();
            others.iter_mut().for_each(|other| assert!(other.wait().unwrap().success()));
            let copy = if way == "in" { camp.mount().join(&inside) } else { outside };
            // Times of directories are those of what was made in them again.
            equal(&without_dirs(&copy), &without_dirs(&src));
            assert!(temporary(&copy).is_empty());
        }
    }
    assert!(jobs(&camp).iter().all(|job| job["state"] == "done"));
    // One that goes on with what it has begun is waited for, too, and who waits can be told to end.
    let mut first = start(&camp, &["in", src.to_str().unwrap(), "slow", "--limit", "1m"]);
    wait_until("it copies", || !temporary(camp.mount()).is_empty());
    let mut second = start(&camp, &["in", src.to_str().unwrap(), "slow/below", "--limit", "1m"]);
    wait_until("the second waits", || {
        jobs(&camp).iter().filter(|job| job["state"] == "running").count() == 2
    });
    for child in [&mut second, &mut first] {
        signal(u64::from(child.id()), Signal::TERM);
        assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    }
    assert_eq!(camp.run("down", &["--discard"]).code, 0);
}

/// S451.
#[test]
fn what_never_was_and_could_not_be_copied_out_is_no_debt() {
    let Some(camp) = Camp::start(&[]) else { return };
    let site = site();
    let out = site.path().join("out");
    stage(&camp, &["out", "never", out.to_str().unwrap()]).fails(1, &["never"]);
    fs::write(camp.mount().join("there"), "one").unwrap();
    stage(&camp, &["out", "there", "/proc/no/such/place"]).fails(1, &[]);
    let kept = camp.run("down", &["--yes"]);
    assert!(
        kept.code == 3 && kept.err.contains("out /there") && !kept.err.contains("/never"),
        "{}",
        kept.err
    );
    fs::remove_file(camp.mount().join("there")).unwrap();
    camp.run("down", &["--yes"]).succeeds();
    assert!(!out.exists() && camp.place().is_empty());
}

fn down(camp: &Camp) -> Child {
    let arguments = ["down", "--name", camp.name(), "--yes"];
    camp.place().command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// S449: whoever has begun to take it down is waited for.
#[test]
fn a_formation_is_taken_down_by_one_at_a_time() {
    use std::io::{BufRead, BufReader};
    let Some(camp) = Camp::start(&[]) else { return };
    // As another command that has begun, and is killed.
    let other = fs::File::open(camp.dir()).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut children = [down(&camp), down(&camp)];
    for child in &mut children {
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(said.any(|line| line.contains("another command takes it down; waiting for that")));
    }
    assert_eq!(camp.state(), "running");
    drop(other);
    let mut said: Vec<String> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        })
        .collect();
    said.sort_by_key(|text| text.contains("another command took it down"));
    assert!(said[0].contains("nothing left") && said[1].contains("another command took it down"), "{said:?}");
    assert!(camp.place().is_empty());
}

/// S449.
#[test]
fn several_that_take_a_formation_down_at_once_do_not_fail() {
    if !can_mount() {
        return;
    }
    for _ in 0..4 {
        let camp = Camp::start_in(Place::new(), &["--nodes", "2"]);
        fs::write(camp.mount().join("f"), "content").unwrap();
        let children: Vec<Child> = (0..4).map(|_| down(&camp)).collect();
        let outputs = children.into_iter().map(|child| child.wait_with_output().unwrap());
        let said: Vec<String> = outputs
            .map(|output| {
                let text =
                    [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).join("");
                // One that begins when all is over finds nothing.
                assert!(output.status.success() || text.contains("is not running"), "{text}");
                text
            })
            .collect();
        assert_eq!(said.iter().filter(|text| text.contains("nothing left")).count(), 1, "{said:?}");
        assert!(camp.place().is_empty());
    }
}

//! Formations come up, are seen, and go down without a trace.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use crate::harness::{Camp, Place, can_mount, wait_until};

#[test]
fn a_formation_comes_up_stores_files_and_leaves_nothing() {
    let Some(camp) = Camp::start(&[]) else { return };
    fs::create_dir(camp.mount().join("d")).unwrap();
    fs::write(camp.mount().join("d/f"), "content").unwrap();
    assert_eq!(fs::read(camp.mount().join("d/f")).unwrap(), b"content");
    let status = camp.status();
    assert_eq!((&status["state"], &status["name"]), (&"running".into(), &camp.name().into()));
    assert_eq!(status["mounts"][0]["dir"], camp.mount().to_str().unwrap());
    assert_eq!(status["totals"]["files"], 3);
    let volume = status["nodes"][0]["volumes"][0].clone();
    assert_eq!(volume["kind"], "memory");
    assert!(volume["used_bytes"].as_u64().unwrap() > 0);
    let path = volume["path"].as_str().unwrap().to_owned();
    assert!(Path::new(&path).exists());
    camp.down();
    assert!(!Path::new(&path).exists() && !Path::new(&path).parent().unwrap().exists());
}

/// As `9>lock` in a script, or the pipe of a job server: they end with the command that they were given to.
#[test]
fn what_stays_behind_holds_nothing_of_its_caller() {
    if !can_mount() {
        return;
    }
    let (mut reader, writer) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty()).unwrap();
    let camp = Camp::start_in(Place::new(), &["--nodes", "2"]);
    drop(writer);
    // Whoever else had the other end would keep this from ending.
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    camp.down();
}

#[test]
fn nodes_share_files_through_their_own_mounts() {
    if !can_mount() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let each = parent.path().to_str().unwrap();
    let camp = Camp::start_in(Place::new(), &["--nodes", "3", "--mount-each", each, "--stripe", "4k"]);
    assert_eq!(camp.mounts().len(), 3);
    let content: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    for (writer, mount) in camp.mounts().iter().enumerate() {
        let name = format!("f{writer}");
        fs::write(mount.join(&name), &content).unwrap();
        for reader in camp.mounts() {
            assert_eq!(fs::read(reader.join(&name)).unwrap(), content);
        }
    }
    let status = camp.status();
    let nodes: Vec<u64> =
        status["mounts"].as_array().unwrap().iter().map(|m| m["node"].as_u64().unwrap()).collect();
    assert_eq!(nodes, [0, 1, 2]);
    assert!(
        status["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["volumes"][0]["used_bytes"].as_u64() > Some(0))
    );
    camp.down();
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0, "mount points that were made are removed");
}

#[test]
fn volumes_of_ones_own_are_used_and_emptied() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let volumes = [format!("{}:64m", a.path().display()), b.path().display().to_string()];
    let arguments =
        ["--no-mount", "--nodes", "2", "--volume", &volumes[0], "--volume", &volumes[1], "--width", "3"];
    let camp = Camp::start_in(Place::new(), &arguments);
    assert!(a.path().join("n1/bivouac-volume").exists() && b.path().join("n0/bivouac-volume").exists());
    let status = camp.status();
    assert_eq!(status["nodes"][1]["volumes"][0]["capacity_bytes"], 64 << 20);
    assert_eq!((&status["width"], status["mounts"].as_array().unwrap().len()), (&3.into(), 0));
    camp.down();
    assert_eq!(fs::read_dir(a.path()).unwrap().count() + fs::read_dir(b.path()).unwrap().count(), 0);
}

#[test]
fn one_node_takes_the_directory_itself_and_leaves_it_there() {
    let volume = tempfile::tempdir().unwrap();
    let camp = Camp::start_in(Place::new(), &["--no-mount", "--volume", volume.path().to_str().unwrap()]);
    assert!(volume.path().join("bivouac-volume").exists());
    camp.down();
    assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 0);
}

#[test]
fn thirty_two_daemons() {
    let memory = Place::memory();
    let volume = format!("{}:8m", memory.path().display());
    let camp = Camp::start_in(Place::new(), &["--no-mount", "--nodes", "32", "--volume", &volume]);
    let status = camp.status();
    assert_eq!(status["state"], "running");
    assert_eq!(status["nodes"].as_array().unwrap().len(), 32);
    camp.down();
}

#[test]
fn everything_is_for_this_user_only() {
    use std::os::unix::fs::PermissionsExt;
    let Some(camp) = Camp::start(&[]) else { return };
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&camp.dir()), 0o700);
    for entry in fs::read_dir(camp.dir()).unwrap().map(Result::unwrap) {
        if entry.file_name() != "mnt" {
            assert_eq!(mode(&entry.path()) & 0o177, 0, "{entry:?}");
        }
    }
    let status = camp.status();
    let volume = Path::new(status["nodes"][0]["volumes"][0]["path"].as_str().unwrap());
    assert_eq!((mode(volume), mode(volume.parent().unwrap())), (0o700, 0o700));
    camp.down();
}

#[test]
fn a_mount_is_added_and_taken_away() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let second = tempfile::tempdir().unwrap();
    let place = second.path().to_str().unwrap();
    let said = camp.run("mount", &["--node", "1", place]);
    assert_eq!((said.code, said.out.trim()), (0, place), "{}", said.err);
    fs::write(second.path().join("x"), "1").unwrap();
    assert_eq!(fs::read(camp.mount().join("x")).unwrap(), b"1");
    camp.run("mount", &[place]).fails(1, &["has a mount already"]);
    let open = fs::File::open(second.path().join("x")).unwrap();
    let busy = camp.place().run(&["unmount", place]);
    let pid = std::process::id().to_string();
    assert!(busy.code == 1 && busy.err.contains("is in use by") && busy.err.contains(&pid), "{}", busy.err);
    drop(open);
    // A process that another test is just starting has it open for a moment as well.
    wait_until("nobody uses it", || camp.place().run(&["unmount", place]).code == 0);
    assert_eq!(fs::read_dir(second.path()).unwrap().count(), 0);
    wait_until("the mount is forgotten", || camp.status()["mounts"].as_array().unwrap().len() == 1);
    camp.run("mount", &["--node", "7", place]).tells(&["there is no node 7; nodes are 0 to 1"]);
    assert_eq!(
        fs::read_dir(second.path()).unwrap().count(),
        0,
        "what could not be served is unmounted again"
    );
    camp.down();
}

#[test]
fn a_file_is_explained() {
    let Some(camp) = Camp::start(&["--nodes", "3", "--stripe", "4k", "--width", "2"]) else { return };
    let path = camp.mount().join("f");
    fs::write(&path, vec![7; 10_000]).unwrap();
    let said =
        camp.place().run(&["explain", "--json", "--offset", "4096", path.to_str().unwrap()]).succeeds();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (&json["size"], &json["stripe_bytes"], &json["width"]),
        (&10_000.into(), &4096.into(), &2.into())
    );
    let targets = json["targets"].as_array().unwrap();
    let lens: Vec<u64> = targets.iter().map(|target| target["data_bytes"].as_u64().unwrap()).collect();
    assert_eq!(lens, [4096 + 1808, 4096]);
    for target in targets {
        let subfile = fs::read(target["subfile"].as_str().unwrap()).unwrap();
        assert!(subfile.starts_with(b"BVKSUBF1"));
        assert!(subfile[4096..].iter().all(|byte| *byte == 7));
    }
    assert_eq!(json["byte"]["target"], targets[1]["target"]);
    let text = camp.place().run(&["explain", path.to_str().unwrap()]).out;
    assert!(text.contains("stripe k = offset div 4096") && text.contains("5904 of 5904"), "{text}");
    let text = camp.place().run(&["explain", camp.mount().to_str().unwrap()]).out;
    assert!(text.contains("directory of formation") && text.contains("over 2 of 3 targets"), "{text}");
    camp.down();
}

#[test]
fn down_takes_a_mount_from_those_who_use_it_and_says_so() {
    let Some(camp) = Camp::start(&[]) else { return };
    let mut file = fs::File::create(camp.mount().join("x")).unwrap();
    camp.run("down", &["--yes"])
        .succeeds()
        .tells(&["was in use by", &std::process::id().to_string()])
        .prints(&["nothing left"]);
    assert!(file.write_all(b"x").is_err());
}

#[test]
fn down_works_from_inside_the_mount() {
    let Some(camp) = Camp::start(&[]) else { return };
    let inside = camp
        .place()
        .command(&["down", "--name", camp.name(), "--yes"])
        .current_dir(camp.mount())
        .output()
        .unwrap();
    assert!(inside.status.success());
    assert_eq!(String::from_utf8(inside.stderr).unwrap(), "", "nobody else is in the way");
    assert!(camp.place().is_empty());
}

/// S681: a promise that is kept in another mount namespace is looked at there, and a mount point without its mount
/// never is.
#[test]
fn down_looks_at_promises_where_the_mount_is() {
    if !can_mount() {
        return;
    }
    let (place, name) = (Place::new(), Place::unique_name());
    let kept = place.path().join("kept");
    let promise = format!("r:{}", kept.display());
    let ours = place.command(&["up", "--name", &name, "--out", &promise]);
    let mut apart = Command::new("unshare");
    apart.arg("-m").arg(ours.get_program()).args(ours.get_args());
    apart.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let up = apart.output().unwrap();
    if !up.status.success() {
        return println!("skipped: {}", String::from_utf8_lossy(&up.stderr));
    }
    let write = ["exec", "--name", &name, "--", "sh", "-c", "echo precious > \"$BIVOUAC/r\""];
    place.ok(&write);
    let mount_point = place.formation_dir(&name).join("mnt");
    assert_eq!(fs::read_dir(&mount_point).unwrap().count(), 0, "nothing is written beside the mount");
    place.run(&["down", "--yes", "--name", &name]).fails(3, &["/r to "]);
    place.ok(&["stage", "out", "--name", &name]);
    assert_eq!(fs::read(&kept).unwrap(), b"precious\n");
    assert_eq!(place.run(&["down", "--yes", "--name", &name]).code, 0);
    assert!(place.is_empty());
}

/// S649: processes are known by their starts, which a time namespace shows otherwise.
#[test]
fn a_formation_is_what_it_is_from_another_time_namespace() {
    let Some(camp) = Camp::start(&[]) else { return };
    fs::write(camp.mount().join("x"), "here").unwrap();
    let elsewhere = |arguments: &[&str]| {
        let ours = camp.place().command(arguments);
        let mut command = Command::new("unshare");
        command.args(["-T", "--boottime", "100000", "--monotonic", "50000"]);
        command.arg(ours.get_program()).args(ours.get_args());
        command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let Some(looked) = elsewhere(&["status", "--name", camp.name()]).output().ok() else { return };
    let said = String::from_utf8_lossy(&looked.stderr).into_owned();
    if said.contains("unshare") {
        return eprintln!("not tried: {said}");
    }
    let shown = String::from_utf8_lossy(&looked.stdout).into_owned();
    assert!(looked.status.success() && shown.contains(": running"), "{shown}{said}");
    let down = elsewhere(&["down", "--yes", "--name", camp.name()]).output().unwrap();
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert!(camp.place().is_empty());
}

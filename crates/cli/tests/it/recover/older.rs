//! Volumes that are put back from an older copy, beside others as they are now.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::recover::dead::{Dead, bytes};

fn copy(from: &Path, to: &Path) {
    let said = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(said.unwrap().success());
}

/// Overwrites files in place, so that pieces of old and new fit together.
fn overwrite(dead: &mut Dead, seed: usize) {
    for (path, len) in [("one", 10), ("deep/two", 30_010), ("deep/er/three", 60_010)] {
        dead.write(path, bytes(len, seed));
    }
}

/// S593.
#[test]
fn a_volume_from_an_older_copy_is_refused_and_taken_only_if_that_is_said() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k", "--checksum", "on"]) else {
        return;
    };
    dead.fill();
    dead.kill();
    let copies = tempfile::tempdir().unwrap();
    let volume = |node: &str| dead.disk.path().join(node);
    let volumes: Vec<PathBuf> = ["n0", "n1"].map(volume).into();
    volumes.iter().for_each(|volume| copy(volume, copies.path()));
    dead.recover(&[]);
    overwrite(&mut dead, 100);
    dead.kill();
    let aside = dead.disk.path().join("aside");
    for node in ["n0", "n1"] {
        let (there, other) = (dead.disk.path().join(node), if node == "n0" { "n1" } else { "n0" });
        fs::rename(&there, &aside).unwrap();
        copy(&copies.path().join(node), dead.disk.path());
        let before = dead.on_disk();
        let said = dead.run(&[dead.camp.name()]);
        let number = &node[1..];
        let says =
            format!("volume 0 of node {number} ({}) is from an older copy: volume 0 of", there.display());
        assert!(said.code == 1 && said.err.contains(&says), "{}", said.err);
        let newer = dead.disk.path().join(other);
        let says = format!("({}) was recovered once since", newer.display());
        assert!(said.err.contains(&says) && said.err.contains("--with-older"), "{}", said.err);
        assert_eq!(dead.on_disk(), before);
        fs::remove_dir_all(&there).unwrap();
        fs::rename(&aside, &there).unwrap();
    }
    // As they were, nothing is lost.
    dead.recover(&[]);
    dead.check();
    dead.kill();
    // All of one moment are an older formation, and whole.
    for node in ["n0", "n1"] {
        fs::remove_dir_all(dead.disk.path().join(node)).unwrap();
        copy(&copies.path().join(node), dead.disk.path());
    }
    dead.recover(&[]);
    assert_eq!(fs::read(dead.mount().join("deep/two")).unwrap(), bytes(30_010, 1));
    overwrite(&mut dead, 200);
    dead.kill();
    // Whoever says so takes what there is.
    fs::remove_dir_all(dead.disk.path().join("n1")).unwrap();
    copy(&copies.path().join("n1"), dead.disk.path());
    assert_eq!(dead.run(&[dead.camp.name()]).code, 1);
    dead.recover(&["--with-older"]);
    dead.kill();
    dead.recover(&[]);
    dead.down();
}

//! Coherence: what a finished call did through one node, the very next call through another sees. Leases
//! let the kernel believe what it was told; these tests would notice if it believed too long.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use harness::{Camp, Place, can_mount};

fn camp(nodes: &str) -> Option<(Camp, tempfile::TempDir)> {
    if !can_mount() {
        return None;
    }
    let parent = tempfile::tempdir().unwrap();
    let each = parent.path().to_str().unwrap();
    let camp = Camp::start_in(Place::new(), &["--nodes", nodes, "--mount-each", each, "--stripe", "4k"]);
    Some((camp, parent))
}

/// Two mounts that change roles from turn to turn, so that each has just believed what the other changes.
fn turns(camp: &Camp, count: usize, mut turn: impl FnMut(usize, &Path, &Path)) {
    let mounts: &[PathBuf] = camp.mounts();
    for i in 0..count {
        turn(i, &mounts[i % mounts.len()], &mounts[(i + 1) % mounts.len()]);
    }
}

#[test]
fn names_come_and_go_for_all_at_once() {
    let Some((camp, _parent)) = camp("2") else { return };
    turns(&camp, 300, |i, here, there| {
        let name = format!("f{}", i % 7);
        assert_eq!(fs::metadata(there.join(&name)).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(here.join(&name), b"x").unwrap();
        assert_eq!(fs::metadata(there.join(&name)).unwrap().len(), 1);
        fs::rename(there.join(&name), there.join("moved")).unwrap();
        assert_eq!(fs::metadata(here.join(&name)).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read(here.join("moved")).unwrap(), b"x");
        fs::remove_file(here.join("moved")).unwrap();
        assert_eq!(fs::metadata(there.join("moved")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read_dir(there).unwrap().count(), 0);
    });
    camp.down();
}

#[test]
fn attributes_and_content_are_those_of_the_last_call() {
    let Some((camp, _parent)) = camp("4") else { return };
    let first = camp.mounts()[0].join("f");
    fs::write(&first, b"").unwrap();
    turns(&camp, 400, |i, here, there| {
        let (here, there) = (here.join("f"), there.join("f"));
        let before = fs::metadata(&there).unwrap().len();
        let mut file = File::options().append(true).open(&here).unwrap();
        file.write_all(format!("{i:05}\n").as_bytes()).unwrap();
        assert_eq!(fs::metadata(&there).unwrap().len(), before + 6, "turn {i}");
        let mut tail = [0; 6];
        File::open(&there).unwrap().read_exact_at(&mut tail, before).unwrap();
        assert_eq!(tail, format!("{i:05}\n").as_bytes());
        let mode = 0o600 | (i as u32 % 2) << 5;
        fs::set_permissions(&here, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&there).unwrap().mode() & 0o777, mode, "turn {i}");
        if i % 50 == 49 {
            File::options().write(true).open(&here).unwrap().set_len(3).unwrap();
            assert_eq!(fs::read(&there).unwrap().len(), 3);
        }
    });
    camp.down();
}

#[test]
fn directories_are_the_same_for_all() {
    let Some((camp, _parent)) = camp("4") else { return };
    turns(&camp, 200, |i, here, there| {
        let (dir, sub) = (format!("d{i}"), format!("d{i}/sub"));
        fs::create_dir_all(here.join(&sub)).unwrap();
        assert_eq!(fs::metadata(there.join(&dir)).unwrap().nlink(), 3);
        fs::write(there.join(&sub).join("f"), b"deep").unwrap();
        assert_eq!(fs::remove_dir(here.join(&sub)).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        fs::rename(here.join(&sub), here.join(format!("up{i}"))).unwrap();
        assert_eq!(fs::read(there.join(format!("up{i}/f"))).unwrap(), b"deep");
        assert_eq!(fs::metadata(there.join(&dir)).unwrap().nlink(), 2);
        fs::remove_dir_all(there.join(format!("up{i}"))).unwrap();
        fs::remove_dir(here.join(&dir)).unwrap();
        assert_eq!(fs::metadata(there.join(&dir)).unwrap_err().kind(), ErrorKind::NotFound);
    });
    camp.down();
}

#[test]
fn an_unlinked_file_lives_on_every_node_that_has_it_open() {
    let Some((camp, _parent)) = camp("2") else { return };
    let (a, b) = (camp.mounts()[0].join("f"), camp.mounts()[1].join("f"));
    fs::write(&a, vec![7; 50_000]).unwrap();
    let open = File::open(&b).unwrap();
    fs::remove_file(&a).unwrap();
    assert!(!b.exists());
    fs::write(&a, b"another").unwrap();
    let mut bytes = vec![0; 50_000];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read(&b).unwrap(), b"another");
    drop(open);
    camp.down();
}

#[test]
fn writers_of_different_bytes_of_one_page_do_not_harm_each_other() {
    let Some((camp, _parent)) = camp("4") else { return };
    let mounts = camp.mounts();
    fs::write(mounts[0].join("f"), vec![0; 8192]).unwrap();
    std::thread::scope(|scope| {
        for (who, mount) in mounts.iter().enumerate() {
            scope.spawn(move || {
                let file = File::options().write(true).open(mount.join("f")).unwrap();
                for at in (who..8192).step_by(mounts.len()) {
                    file.write_all_at(&[who as u8 + 1], at as u64).unwrap();
                }
            });
        }
    });
    let bytes = fs::read(mounts[3].join("f")).unwrap();
    let expected: Vec<u8> = (0..8192).map(|at| (at % mounts.len()) as u8 + 1).collect();
    assert!(bytes == expected);
    camp.down();
}

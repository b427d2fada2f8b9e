//! Names and attributes that a process caches which is no mount, against everything that changes them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_client::{Attr, Client};
use bivouac_types::{Errno, Ino, SetAttr};

use crate::harness::library::{create, ctx, library, served, write};
use crate::harness::random::Random;
use crate::harness::{Camp, wait_until};

/// What the process sees without asking: nothing if it has to ask.
fn cached(client: &Client, path: &str) -> Option<Result<Attr, Errno>> {
    let found = client.find_cached(Ino::ROOT, path.as_bytes(), false)?;
    Some(found.map_err(|error| error.errno()))
}

/// Has the process cache what is there.
fn have_cached(client: &Client, path: &str) {
    let what = format!("{path} is cached");
    wait_until(&what, || {
        let _asked = client.find_cached(Ino::ROOT, path.as_bytes(), true);
        cached(client, path).is_some()
    });
}

fn found(client: &Client, path: &str) -> Result<Attr, Errno> {
    client.find_beneath(Ino::ROOT, path.as_bytes(), true).map_err(|error| error.errno())
}

/// What is seen of a path, whichever way, is what is there.
fn check(looks: &Client, other: &Client, path: &str, why: &str) {
    let before = cached(looks, path);
    let there = found(other, path);
    assert!(before.is_none_or(|before| before == there), "{path} behind {why}: {before:?}, there {there:?}");
    if let Some(asked) = looks.find_cached(Ino::ROOT, path.as_bytes(), true) {
        assert_eq!(asked.map_err(|error| error.errno()), there, "{path} asked behind {why}");
    }
}

/// S665.
#[test]
fn who_caches_names_sees_every_change_at_once() {
    let Some(camp) = Camp::start(&["--nodes", "3", "--stripe", "64k"]) else { return };
    let (looks, other, mount) = (library(&camp.dir()), library(&camp.dir()), camp.mount());
    fs::create_dir_all(mount.join("a/b")).unwrap();
    let changes = [
        "written longer",
        "cut",
        "chmod",
        "renamed over",
        "removed",
        "moved away",
        "below a directory moved",
        "by itself",
        "by another",
    ];
    let paths: Vec<String> = (0..changes.len()).map(|file| format!("/a/b/file{file}")).collect();
    let mut random = Random::new(11);
    for round in 0..4 {
        for path in &paths {
            fs::write(mount.join(&path[1..]), random.bytes(1000)).unwrap();
        }
        for (path, change) in paths.iter().zip(changes) {
            have_cached(&looks, path);
            let at = mount.join(&path[1..]);
            match change {
                "written longer" => fs::write(&at, random.bytes(3000 + round)).unwrap(),
                "cut" => fs::File::options().write(true).open(&at).unwrap().set_len(7).unwrap(),
                "chmod" => fs::set_permissions(&at, fs::Permissions::from_mode(0o640)).unwrap(),
                "renamed over" => {
                    fs::write(mount.join("new"), random.bytes(500 + round)).unwrap();
                    fs::rename(mount.join("new"), &at).unwrap();
                }
                "removed" => fs::remove_file(&at).unwrap(),
                "moved away" => fs::rename(&at, mount.join("away")).unwrap(),
                "below a directory moved" => {
                    fs::rename(mount.join("a/b"), mount.join("a/c")).unwrap();
                    check(&looks, &other, path, change);
                    fs::rename(mount.join("a/c"), mount.join("a/b")).unwrap();
                }
                "by itself" => {
                    let ino = found(&looks, path).unwrap().ino;
                    let set = SetAttr { size: Some(3), ..SetAttr::default() };
                    looks.setattr(&ctx(&looks), ino, &set).unwrap();
                }
                _ => {
                    let dir = found(&other, "/a/b").unwrap().ino;
                    other.unlink(&ctx(&other), dir, path.rsplit('/').next().unwrap().as_bytes()).unwrap();
                }
            }
            check(&looks, &other, path, change);
        }
    }
    drop((looks, other));
    camp.down();
}

/// S665. Of what is looked at again and again, nothing is asked but when the lease is over.
#[test]
fn what_is_cached_takes_no_message() {
    let Some(camp) = Camp::start(&["--nodes", "1"]) else { return };
    let looks = library(&camp.dir());
    fs::write(camp.mount().join("file"), "1").unwrap();
    let path = "/file";
    // A process that is kept from running for longer than a lease asks.
    wait_until("a hundred looks take no message", || {
        have_cached(&looks, path);
        let before = served(&looks, "Lookup");
        let all_cached = (0..100).all(|_| cached(&looks, path).is_some_and(|found| found.unwrap().size == 1));
        all_cached && served(&looks, "Lookup") == before
    });
    assert!(cached(&looks, "/none").is_none() && cached(&looks, "/file/").is_none());
    let asked = looks.find_cached(Ino::ROOT, b"/none", true).unwrap();
    assert_eq!(asked.unwrap_err().errno(), Errno::ENOENT);
    drop(looks);
    camp.down();
}

/// S665. What a daemon allowed that was killed, the next one waits for.
#[test]
fn what_is_cached_is_right_across_kills() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--deaths-max", "99/1ms"]) else { return };
    let (looks, other) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&other, "file");
    let path = "/file";
    for round in 1..=6 {
        let is_done = AtomicBool::new(false);
        have_cached(&looks, path);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                camp.kill_node(round % 2);
                is_done.store(true, Ordering::Release);
            });
            // The size is read before it is known whether the write is over, and never goes back.
            write(&other, ino, 0, &vec![1; round * 100]);
            let seen = cached(&looks, path);
            assert!(seen.is_none_or(|seen| seen.unwrap().size == round as u64 * 100), "{seen:?}");
        });
        assert!(is_done.load(Ordering::Acquire));
        check(&looks, &other, path, "a kill");
    }
    other.close(ino);
    drop((looks, other));
    camp.down();
}

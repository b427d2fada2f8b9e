//! Names and attributes that a process caches which is no mount, against everything that changes them.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_client::{Attr, Client, Looker};
use bivouac_types::{Errno, Ino, NodeId, SetAttr};

use crate::harness::library::{create, ctx, library, messages, served, write};
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
    // A close reaches the home after `close` has returned, and may move the times between two looks.
    let first = found(other, path);
    let before = cached(looks, path);
    let then = found(other, path);
    let is_there = before.is_none_or(|before| before == first || before == then);
    assert!(is_there, "{path} behind {why}: {before:?}, there {first:?}, {then:?}");
    if let Some(asked) = looks.find_cached(Ino::ROOT, path.as_bytes(), true) {
        let (asked, last) = (asked.map_err(|error| error.errno()), found(other, path));
        assert!(
            asked == then || asked == last,
            "{path} asked behind {why}: {asked:?}, there {then:?}, {last:?}"
        );
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
    let mut asked = None;
    wait_until("a name that is not there is asked for", || {
        asked = looks.find_cached(Ino::ROOT, b"/none", true);
        asked.is_some()
    });
    assert_eq!(asked.unwrap().unwrap_err().errno(), Errno::ENOENT);
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

/// What the process sees in the place of its mount's kernel; nothing if that is the kernel's to say.
fn as_kernel(client: &Client, path: &str) -> Option<Result<Attr, Errno>> {
    let looker = Looker { node: NodeId(0), follow: false, may_search: &|_| true };
    let found = client.find_as_kernel(Ino::ROOT, path.as_bytes(), &looker)?;
    Some(found.map_err(|error| error.errno()))
}

/// Has the process know that these 200 files are there, and others are not, without a message.
fn have_whole(client: &Client) {
    wait_until("four hundred looks take no message", || {
        let look = |name: &str, file: u32| as_kernel(client, &format!("/many/{name}{file}"));
        let _asked = (0..200).map(|file| look("file", file)).filter(Option::is_some).count();
        let kinds = ["Lookup", "GetAttr", "ReadDir"];
        let before = messages(client, &kinds);
        let is_known = |file| {
            look("file", file).is_some_and(|found| found.is_ok())
                && look("none", file) == Some(Err(Errno::ENOENT))
        };
        (0..200).all(is_known) && messages(client, &kinds) == before
    });
}

/// S667. Where names of a directory are asked for again and again all of them are known, and that there are no others.
#[test]
fn a_directory_that_is_asked_much_is_known_whole() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let (looks, dir) = (library(&camp.dir()), camp.mount().join("many"));
    fs::create_dir(&dir).unwrap();
    (0..200).for_each(|file| fs::write(dir.join(format!("file{file}")), "1").unwrap());
    let is_there = |name: &str, there: bool| {
        let path = format!("/many/{name}");
        for found in [cached(&looks, &path), as_kernel(&looks, &path)] {
            assert!(found.is_none_or(|found| found.is_ok() == there), "{name} is there: {there}");
        }
    };
    for round in 0..3 {
        have_whole(&looks);
        let new = format!("new{round}");
        fs::write(dir.join(&new), "22").unwrap();
        is_there(&new, true);
        fs::remove_file(dir.join(&new)).unwrap();
        is_there(&new, false);
        have_whole(&looks);
        fs::rename(dir.join("file7"), dir.join("moved")).unwrap();
        is_there("moved", true);
        is_there("file7", false);
        fs::rename(dir.join("moved"), dir.join("file7")).unwrap();
        is_there("moved", false);
        is_there("file7", true);
        have_whole(&looks);
        fs::write(dir.join("file9"), vec![b'x'; 100 + round]).unwrap();
        let seen = as_kernel(&looks, "/many/file9");
        assert!(seen.is_none_or(|seen| seen.unwrap().size == 100 + round as u64));
    }
    drop(looks);
    camp.down();
}

/// S32, S667. A mount's kernel shows when a file was written also before its home has heard.
#[test]
fn a_time_that_was_not_told_is_the_kernels_to_show() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let (looks, path) = (library(&camp.dir()), camp.mount().join("written"));
    fs::write(&path, vec![0; 100]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    wait_until("there is a time that was not told", || {
        let is_seen = as_kernel(&looks, "/written").is_some();
        (0..2).for_each(|_| file.write_all_at(b"x", 0).unwrap());
        is_seen && as_kernel(&looks, "/written").is_none()
    });
    // The kernel asks its mount, which tells.
    let shown = fs::metadata(&path).unwrap().modified().unwrap();
    let mut seen = None;
    wait_until("it is told", || {
        seen = as_kernel(&looks, "/written").map(|seen| seen.unwrap().mtime);
        seen.is_some()
    });
    let since = shown.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(
        seen.map(|time| (time.secs as u64, time.nanos)),
        Some((since.as_secs(), since.subsec_nanos()))
    );
    drop((file, looks));
    camp.down();
}

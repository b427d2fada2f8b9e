//! Pools in archives that are buckets: S652 to S655.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::harness::{Place, Said, can_mount, signal, wait_until};
use bivouac_objects::{ACCESS_KEY, Fault, SECRET_KEY, Server, What};
use rustix::fs::{AtFlags, CWD, FileType, Timespec, Timestamps, XattrFlags};
use rustix::process::Signal;
use serde_json::Value;

/// Larger than a part.
const PARTS: usize = (9 << 20) + 3;
const TO: &str = "s3://bucket/cold";

struct Site {
    place: Place,
    server: Server,
    base: PathBuf,
}

impl Site {
    /// A pool with a directory of its own, and a store.
    fn new() -> Site {
        let (mut place, server) = (Place::with_pools(), Server::start());
        place.set("AWS_ACCESS_KEY_ID", ACCESS_KEY);
        place.set("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
        place.set("AWS_ENDPOINT_URL_S3", &server.endpoint());
        let base = place.path().join("base");
        std::fs::create_dir(&base).unwrap();
        let site = Site { place, server, base };
        site.create("mesh");
        site
    }

    fn create(&self, name: &str) {
        self.place.ok(&["pool", "create", name, "--base", self.base.to_str().unwrap()]);
    }

    fn dir(&self) -> PathBuf {
        self.base.join("0-mesh-1")
    }

    /// Little of everything.
    fn fill(&self) -> PathBuf {
        let dir = self.dir();
        std::fs::create_dir(dir.join("d")).unwrap();
        std::fs::write(dir.join("d/a"), "a").unwrap();
        std::fs::hard_link(dir.join("d/a"), dir.join("again")).unwrap();
        symlink("nowhere", dir.join("link")).unwrap();
        dir
    }

    fn archive(&self, more: &[&str]) -> Said {
        self.place.run(&[&["pool", "archive", "mesh", "--to", TO][..], more].concat())
    }

    fn restore(&self) -> Said {
        self.place.run(&["pool", "restore", "mesh"])
    }

    fn shown(&self) -> Value {
        serde_json::from_str(&self.place.ok(&["pool", "show", "mesh", "--json"])).unwrap()
    }

    fn database(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.place.path().join("pools.sqlite")).unwrap()
    }

    fn location(&self) -> String {
        self.database()
            .query_row("SELECT location FROM pool WHERE name = 'mesh'", [], |row| row.get(0))
            .unwrap()
    }

    /// What is where pools are.
    fn beside(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.base).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Requests of a method, or any if it is empty, go wrong from the given one on.
    fn fault(&self, method: &'static str, after: usize, times: usize, what: &What) {
        self.server.fail_after(Fault { method, within: "", after, times, what: what.clone() });
    }

    /// Runs a command and kills it at a request, if it comes that far.
    fn kill(&self, arguments: &[&str], method: &'static str, at: usize, what: &What) -> bool {
        self.fault(method, at, 1, what);
        let mut command = self.place.command(arguments);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut ended = None;
        wait_until("it is held, or ends", || {
            ended = child.try_wait().unwrap();
            ended.is_some() || self.server.held() > 0
        });
        child.kill().unwrap();
        child.wait().unwrap();
        self.server.heal();
        ended.is_none()
    }

    fn has_no_uploads(&self) -> bool {
        self.server.contents().uploads.is_empty()
    }
}

fn nothing_comes_back(site: &Site, says: &str) {
    site.restore().fails(1, &[says]);
    assert_eq!((site.beside(), site.location().as_str()), (vec![], "archive"));
}

/// Everything of a tree that an archive keeps.
fn described(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let mut content = Vec::new();
        if meta.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if meta.is_symlink() {
            content = std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
        } else if meta.is_file() {
            content = std::fs::read(&path).unwrap();
        }
        let mut names = vec![0; 65_536];
        let len = rustix::fs::llistxattr(&path, &mut names[..]).unwrap_or(0);
        let names = names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
        let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = names
            .map(|name| {
                let mut value = vec![0; 65_536];
                let len = rustix::fs::getxattr(&path, OsStr::from_bytes(name), &mut value[..]).unwrap();
                (name.to_vec(), value[..len].to_vec())
            })
            .collect();
        xattrs.sort();
        // Compared as it is, but not shown.
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let links = if meta.is_dir() { 0 } else { meta.nlink() };
        let text = format!(
            "{:o} {}:{} {}.{} {links} {xattrs:?} {} {:x}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            content.len(),
            hasher.finish()
        );
        found.insert(path.strip_prefix(root).unwrap().to_owned(), text);
    }
    found
}

/// A tree with everything that is odd.
fn fill_oddly(dir: &Path) {
    std::fs::create_dir_all(dir.join("deep \u{e9}/empty")).unwrap();
    std::fs::write(dir.join("deep \u{e9}/line\nbreak"), vec![7; 300_000]).unwrap();
    std::fs::write(dir.join(OsStr::from_bytes(b"no text \xff\xfe")), "x").unwrap();
    std::fs::write(dir.join("a\\x2eb%2e?c#d+"), "").unwrap();
    std::fs::write(dir.join("run"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(dir.join("run"), PermissionsExt::from_mode(0o4750)).unwrap();
    std::fs::hard_link(dir.join("run"), dir.join("deep \u{e9}/run too")).unwrap();
    symlink(OsStr::from_bytes(b"../nowhere \xff"), dir.join("deep \u{e9}/link")).unwrap();
    rustix::fs::mknodat(CWD, dir.join("pipe"), FileType::Fifo, 0o640.into(), 0).unwrap();
    std::fs::write(dir.join("parts"), (0..PARTS).map(|at| (at * 7 + at / 251) as u8).collect::<Vec<u8>>())
        .unwrap();
    let _where_there_are_any =
        rustix::fs::setxattr(dir.join("run"), "user.\u{e9}", b"\0\xff\n", XattrFlags::empty());
    let _where_there_are_any = rustix::fs::setxattr(dir, "user.large", &[9; 3000], XattrFlags::empty());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.join("parts"), Some(12), Some(34)).unwrap();
    }
    for (path, secs) in [
        ("deep \u{e9}/link", 1),
        ("run", 2),
        ("deep \u{e9}/empty", -4),
        ("deep \u{e9}", 5),
        ("pipe", 6),
        ("", 7),
    ] {
        let time = Timespec { tv_sec: secs, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, dir.join(path), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// S652: everything of a pool that a directory as an archive keeps comes back from a bucket; commands say where it is.
#[test]
fn a_pool_goes_into_a_bucket_and_comes_back() {
    let site = Site::new();
    let dir = site.dir();
    fill_oddly(&dir);
    let before = described(&dir);
    site.archive(&["--free"]).succeeds().prints(&[" in 5 files: s3://bucket/cold/0-mesh-1/"]);
    assert!(!dir.exists() && site.has_no_uploads());
    let shown = site.shown();
    let place = shown["archive"].as_str().unwrap().to_owned();
    assert!(place.starts_with("s3://bucket/cold/0-mesh-1/") && shown["location"] == "archive", "{shown}");
    assert!(site.place.ok(&["pool", "show", "mesh"]).contains(&format!("{place}, as of ")));
    assert!(site.place.ok(&["pool", "list"]).contains(&format!("{place} (archive)")));
    assert!(site.place.ok(&["pool", "list", "--json"]).contains(&place));
    assert!(site.place.ok(&["pool", "history", "mesh"]).contains(&place));
    let name = Place::unique_name();
    let mut refused = vec![vec!["pool", "path", "mesh"], vec!["pool", "archive", "mesh", "--to", TO]];
    if can_mount() {
        refused.push(vec!["up", "--name", &name, "--pool", "mesh"]);
    }
    for arguments in refused {
        site.place.run(&arguments).fails(1, &["bivouac pool restore mesh", &place]);
    }
    let beside = site.base.join("0-mesh-1.restored");
    std::fs::write(&beside, "").unwrap();
    site.restore().fails(1, &["is in the way"]);
    std::fs::remove_file(&beside).unwrap();
    // What a command has left that was killed before it gave a whole tree its name.
    std::fs::create_dir_all(beside.join("0-mesh-1/empty")).unwrap();
    std::fs::write(beside.join("0-mesh-1/run"), "of before").unwrap();
    site.restore().succeeds().prints(&["is on site storage again"]);
    assert_eq!((described(&dir), site.location()), (before.clone(), "both".to_owned()));
    assert_eq!(site.beside(), ["0-mesh-1"]);
    // The same content is the same copy, and nothing is sent; it goes into a directory as well, and another bucket's URL.
    let sent = (site.server.count("PUT", ""), site.server.count("POST", ""));
    assert_eq!(site.archive(&[]).code, 0);
    assert_eq!((site.server.count("PUT", ""), site.server.count("POST", "")), sent);
    let slow = site.place.path().join("slow");
    std::fs::create_dir(&slow).unwrap();
    site.place.ok(&["pool", "archive", "mesh", "--to", slow.to_str().unwrap(), "--free"]);
    site.place.ok(&["pool", "restore", "mesh"]);
    assert_eq!(described(&dir), before);
    let elsewhere = format!("s3://bucket/far/?endpoint={}&region=here", site.server.endpoint());
    site.place.ok(&["pool", "archive", "mesh", "--to", &elsewhere, "--free"]);
    assert!(
        site.shown()["archive"]
            .as_str()
            .unwrap()
            .ends_with(&format!("?endpoint={}&region=here", site.server.endpoint()))
    );
    site.place.ok(&["pool", "restore", "mesh"]);
    assert_eq!(described(&dir), before);
    // At its end its directory goes, and what is in buckets stays.
    site.place.ok(&["pool", "release", "mesh"]);
    let db = site.database();
    db.execute("UPDATE rule SET value = 0 WHERE name = 'grace-days'", []).unwrap();
    let kept = site.server.contents().objects.len();
    site.place.ok(&["pool", "expire"]);
    let said = site.place.ok(&["pool", "expire"]);
    assert!(said.contains("its copy in the archive stays: s3://bucket/far/0-mesh-1/"), "{said}");
    assert!(!dir.exists() && site.server.contents().objects.len() == kept);
}

/// S653: killed at any request, before the store has done it and after, `archive` leaves the pool on site storage and
/// `restore` in its archive, whole; each is done by asking again, and nothing is left beside.
#[test]
fn ways_into_a_bucket_and_back_are_whole_whenever_they_are_killed() {
    let site = Site::new();
    let dir = site.fill();
    std::fs::write(dir.join("parts"), vec![3; PARTS]).unwrap();
    let before = described(&dir);
    // What only asks is the same after it was done.
    for (method, what) in [("", What::Hold), ("PUT", What::HoldDone), ("POST", What::HoldDone)] {
        for at in 0.. {
            site.server.contents().objects.clear();
            let is_killed = site.kill(&["pool", "archive", "mesh", "--to", TO, "--free"], method, at, &what);
            if !is_killed {
                break;
            }
            assert_ne!(site.location(), "archive", "{method} {at}");
            assert_eq!(described(&dir), before, "{method} {at}");
            let said = site.archive(&["--free"]);
            assert!(said.code == 0 && !dir.exists() && site.has_no_uploads(), "{method} {at}: {said:?}");
            let said = site.restore();
            assert_eq!((said.code, described(&dir)), (0, before.clone()), "{method} {at}: {said:?}");
        }
        assert_eq!(site.location(), "archive");
        assert_eq!((site.restore().code, described(&dir)), (0, before.clone()));
    }
    for at in 0.. {
        assert_eq!(site.archive(&["--free"]).code, 0);
        let is_killed = site.kill(&["pool", "restore", "mesh"], "", at, &What::Hold);
        if is_killed {
            assert!(site.location() == "archive" && !dir.exists(), "{at}");
            let said = site.restore();
            assert_eq!(said.code, 0, "{at}: {said:?}");
        }
        assert_eq!((site.location(), described(&dir)), ("both".to_owned(), before.clone()), "{at}");
        assert_eq!(site.beside(), ["0-mesh-1"], "{at}");
        if !is_killed {
            break;
        }
    }
}

/// S653: a signal ends a command between two requests; it leaves no unfinished upload, and the next one goes on.
#[test]
fn who_is_interrupted_leaves_what_is_whole() {
    let site = Site::new();
    // One file, so that one thread puts it, and another one waits for signals until one comes.
    let dir = site.dir();
    std::fs::write(dir.join("parts"), vec![3; PARTS]).unwrap();
    let before = described(&dir);
    site.server.fail("PUT", "partNumber", 1, What::HoldDone);
    let archive = ["pool", "archive", "mesh", "--to", TO, "--free"];
    let child = site.place.command(&archive).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it is held", || site.server.held() > 0);
    signal(child.id().into(), Signal::TERM);
    wait_until("it is told", || {
        std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count() == 1
    });
    site.server.heal();
    crate::harness::said(&child.wait_with_output().unwrap()).fails(1, &["(SIGTERM)"]);
    assert!(site.has_no_uploads() && described(&dir) == before && site.location() == "site");
    assert_eq!(site.archive(&["--free"]).code, 0);
    assert_eq!((site.restore().code, described(&dir)), (0, before));
}

/// S654: from whatever request on all are refused or answered with garbage, the pool is where it was, and that is said.
#[test]
fn a_store_that_fails_costs_nothing() {
    let site = Site::new();
    let dir = site.fill();
    let before = described(&dir);
    for (what, says) in [
        (What::Refuse(403, "AccessDenied"), "access denied"),
        (What::Refuse(404, "NoSuchBucket"), ""),
        (What::Refuse(507, "XMinioStorageFull"), "the store is full"),
        (What::Refuse(200, "Garbage"), ""),
    ] {
        for after in 0.. {
            site.server.contents().objects.clear();
            site.fault("", after, usize::MAX, &what);
            let said = site.archive(&["--free"]);
            site.server.heal();
            if said.code == 0 {
                break;
            }
            let is_named = said.err.contains(says) && said.err.contains("s3://bucket/cold/0-mesh-1/");
            assert!(said.code == 1 && is_named, "{what:?} {after}: {said:?}");
            assert_eq!(
                (described(&dir), site.location().as_str()),
                (before.clone(), "site"),
                "{what:?} {after}"
            );
            assert!(site.has_no_uploads(), "{what:?} {after}");
        }
        for after in 0.. {
            site.fault("", after, usize::MAX, &what);
            let said = site.restore();
            site.server.heal();
            if said.code == 0 {
                break;
            }
            let is_named = said.err.contains(says) && said.err.contains("s3://bucket/cold/0-mesh-1/");
            assert!(said.code == 1 && is_named, "{what:?} {after}: {said:?}");
            assert_eq!((site.beside(), site.location().as_str()), (vec![], "archive"), "{what:?} {after}");
        }
        assert_eq!(described(&dir), before, "{what:?}");
        // For the next round: nothing is known of an archive.
        let db = site.database();
        db.execute("UPDATE pool SET location = 'site', archive = NULL, archive_digest = NULL", []).unwrap();
    }
}

/// S654: what passes is tried again, whichever request it is: nobody notices.
#[test]
fn what_passes_is_not_noticed() {
    let site = Site::new();
    let dir = site.fill();
    std::fs::write(dir.join("parts"), vec![3; PARTS]).unwrap();
    let before = described(&dir);
    let slow = What::Refuse(503, "SlowDown");
    for (method, what) in [("", slow), ("PUT", What::Forget), ("POST", What::Forget)] {
        for after in 0.. {
            site.server.contents().objects.clear();
            let asked = site.server.count(method, "");
            site.fault(method, after, 1, &what);
            let said = site.archive(&[]);
            assert!(said.code == 0 && site.has_no_uploads(), "{method} {after}: {said:?}");
            site.server.heal();
            if site.server.count(method, "") <= asked + after {
                break;
            }
        }
    }
    for after in 0..12 {
        assert_eq!(site.archive(&["--free"]).code, 0);
        site.fault("", after, 1, &What::Drop);
        let said = site.restore();
        site.server.heal();
        assert_eq!((said.code, described(&dir)), (0, before.clone()), "{after}: {said:?}");
    }
}

/// S655: of two commands for one pool one works; those of others do not notice. A pool that changes on the way stays,
/// and nothing of it is left in the bucket.
#[test]
fn one_command_at_a_time_works_on_a_pool() {
    let site = Site::new();
    let dir = site.fill();
    site.create("other");
    std::fs::write(site.base.join("0-other-2/b"), "b").unwrap();
    let held = |arguments: &[&str], meanwhile: &dyn Fn()| {
        site.server.fail("", "0-mesh-1", 1, What::Hold);
        let child =
            site.place.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("it is held", || site.server.held() > 0);
        meanwhile();
        site.server.heal();
        crate::harness::said(&child.wait_with_output().unwrap())
    };
    let archive = ["pool", "archive", "mesh", "--to", TO, "--free"];
    held(&archive, &|| std::fs::write(dir.join("new"), "x").unwrap())
        .fails(1, &["was changed while it was archived"]);
    assert!(dir.join("new").exists() && site.location() == "site");
    assert_eq!(site.server.contents().objects.keys().collect::<Vec<_>>(), [""; 0]);
    let before = described(&dir);
    let refused = |arguments: &[&str]| {
        site.place.run(arguments).fails(1, &["another command copies it; wait for that"]);
    };
    let said = held(&archive, &|| {
        refused(&archive);
        site.place.ok(&["pool", "archive", "other", "--to", TO, "--free"]);
    });
    assert!(said.code == 0 && !dir.exists(), "{said:?}");
    let said = held(&["pool", "restore", "mesh"], &|| {
        refused(&["pool", "restore", "mesh"]);
        site.place.ok(&["pool", "restore", "other"]);
    });
    assert_eq!((said.code, described(&dir)), (0, before), "{said:?}");
    assert_eq!(std::fs::read_to_string(site.base.join("0-other-2/b")).unwrap(), "b");
    assert_eq!(site.beside(), ["0-mesh-1", "0-other-2"]);
    // What was begun with other contents is swept.
    let far = ["pool", "archive", "mesh", "--to", "s3://bucket/far"];
    assert!(site.kill(&far, "", 10, &What::Hold));
    let keys = || -> Vec<String> {
        let contents = site.server.contents();
        contents
            .objects
            .keys()
            .filter_map(|key| Some(key.strip_prefix("far/0-mesh-1/")?.to_owned()))
            .collect()
    };
    let left = keys();
    assert!(!left.is_empty());
    std::fs::write(dir.join("new"), "more").unwrap();
    site.place.ok(&far);
    assert!(keys().iter().all(|key| !left.contains(key)) && keys().len() > 2, "{left:?} {:?}", keys());
}

/// S652, S654: what is damaged does not come back and is not replaced; places that are none are refused before anything
/// is asked, and so is what no object can be.
#[test]
fn what_cannot_be_archived_or_brought_back_is_named() {
    let mut site = Site::new();
    let dir = site.fill();
    for (to, code, says) in [
        ("s3:///x", 2, "names no bucket"),
        ("s3://bucket/x?key=secret", 2, "'key=secret' is none of endpoint=URL"),
        ("s3://bucket/../x", 2, "is no path"),
        ("s3://b%/x", 2, "is no name of a bucket"),
        ("file:///tmp", 2, "is no bucket; write s3://BUCKET/PREFIX"),
        ("s3://bucket/x?endpoint=ftp://h", 2, "its endpoint is no URL"),
        ("s3://nowhere/x", 1, "there is no such bucket: make it"),
    ] {
        let said = site.place.run(&["pool", "archive", "mesh", "--to", to, "--free"]);
        assert!(said.code == code && said.err.contains(says), "{to}: {said:?}");
    }
    let odd = dir.join("x".repeat(250)).join("y".repeat(250)).join("z".repeat(250));
    std::fs::create_dir_all(&odd).unwrap();
    std::fs::write(odd.join("n".repeat(250)), "x").unwrap();
    let said = site.archive(&["--free"]);
    assert!(
        said.code == 1 && said.err.contains("is a key of ") && site.server.contents().objects.is_empty(),
        "{said:?}"
    );
    std::fs::remove_dir_all(dir.join("x".repeat(250))).unwrap();
    rustix::fs::mknodat(CWD, dir.join("socket"), FileType::Socket, 0o600.into(), 0).unwrap();
    site.archive(&["--free"]).fails(1, &["socket: is a socket, of which there is no copy"]);
    std::fs::remove_file(dir.join("socket")).unwrap();
    assert_eq!(site.server.count("PUT", ""), 0);
    // A byte that nobody has written, here or there.
    site.place.ok(&["pool", "archive", "mesh", "--to", TO]);
    let key = site.server.contents().objects.keys().find(|key| key.ends_with("/again")).unwrap().clone();
    let whole = site.server.object(&key).unwrap();
    let time = std::fs::metadata(dir.join("d/a")).unwrap().modified().unwrap();
    let damage = |text: &str| {
        std::fs::write(dir.join("d/a"), text).unwrap();
        std::fs::File::options().write(true).open(dir.join("d/a")).unwrap().set_modified(time).unwrap();
    };
    damage("b");
    site.archive(&["--free"]).fails(1, &["again: has other contents", "one of both is damaged"]);
    assert!(dir.exists() && site.server.object(&key).unwrap().bytes == whole.bytes);
    damage("a");
    let before = described(&dir);
    assert_eq!(site.archive(&["--free"]).code, 0);
    site.server.put(&key, b"b", &[]);
    nothing_comes_back(&site, "/again: has other bytes than were put there");
    site.server.put(&key, b"", &[]);
    nothing_comes_back(&site, "/again: is 0 bytes, not 1");
    site.server.contents().objects.remove(&key);
    nothing_comes_back(&site, "/again: there is no such object");
    site.server.put(&key, b"a", &[]);
    let db = site.database();
    let noted: String = db.query_row("SELECT archive_digest FROM pool", [], |row| row.get(0)).unwrap();
    db.execute("UPDATE pool SET archive_digest = 'other'", []).unwrap();
    nothing_comes_back(&site, "does not hold any more what was archived");
    db.execute("UPDATE pool SET archive_digest = ?1", [noted]).unwrap();
    site.server.stop();
    nothing_comes_back(&site, "connection refused: is the store running?");
    site.server.serve();
    site.place.set("AWS_SECRET_ACCESS_KEY", "wrong");
    site.restore().fails(1, &["the secret does not fit the key"]);
    site.place.set("AWS_SECRET_ACCESS_KEY", "");
    site.restore().fails(1, &["no credentials"]);
    site.place.set("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    assert_eq!((site.restore().code, described(&dir)), (0, before));
}

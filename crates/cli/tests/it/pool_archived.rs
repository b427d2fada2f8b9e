//! Pools in archives: S452.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::harness::{Place, can_mount};
use serde_json::Value;

struct Site {
    place: Place,
    archive: PathBuf,
}

impl Site {
    /// A pool with a directory of its own, and an archive.
    fn new() -> Site {
        let place = Place::with_pools();
        let (base, archive) = (place.path().join("base"), place.path().join("slow archive"));
        std::fs::create_dir(&base).unwrap();
        std::fs::create_dir(&archive).unwrap();
        place.ok(&["pool", "create", "mesh", "--base", base.to_str().unwrap()]);
        Site { place, archive }
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(self.place.ok(&["pool", "path", "mesh"]).trim_end())
    }

    fn fill(&self) -> PathBuf {
        let dir = self.path();
        std::fs::create_dir(dir.join("deep é")).unwrap();
        std::fs::write(dir.join("deep é/line\nbreak"), vec![7; 300_000]).unwrap();
        std::fs::write(dir.join("run"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(dir.join("run"), PermissionsExt::from_mode(0o750)).unwrap();
        symlink("run", dir.join("link")).unwrap();
        std::fs::create_dir(dir.join("empty")).unwrap();
        dir
    }

    fn archive(&self, more: &[&str]) -> crate::harness::Said {
        let to = self.archive.to_str().unwrap();
        self.place.run(&[&["pool", "archive", "mesh", "--to", to][..], more].concat())
    }

    fn shown(&self) -> Value {
        serde_json::from_str(&self.place.ok(&["pool", "show", "mesh", "--json"])).unwrap()
    }

    fn copies(&self) -> Vec<PathBuf> {
        let mut copies: Vec<PathBuf> =
            std::fs::read_dir(&self.archive).unwrap().map(|entry| entry.unwrap().path()).collect();
        copies.sort();
        copies
    }
}

fn is_filled(dir: &Path) {
    assert_eq!(std::fs::read(dir.join("deep é/line\nbreak")).unwrap(), vec![7; 300_000]);
    assert_eq!(std::fs::metadata(dir.join("run")).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(std::fs::read_link(dir.join("link")).unwrap(), Path::new("run"));
    assert!(dir.join("empty").is_dir());
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 4);
}

/// S452: a pool goes into an archive and comes back; where it is there alone, nothing uses it, and how to get it back
/// is said.
#[test]
fn a_pool_goes_into_an_archive_and_comes_back() {
    let site = Site::new();
    let dir = site.fill();
    site.archive(&[]).succeeds().prints(&["is archived, 293 KiB in 2 files"]);
    let copies = site.copies();
    assert_eq!((copies.len(), site.shown()["location"].as_str()), (1, Some("both")));
    is_filled(&copies[0]);
    // The same content is the same copy, another one is another.
    std::fs::create_dir(site.archive.join("0-mesh-1-0123456789abcdef.new")).unwrap();
    assert_eq!((site.archive(&[]).code, site.copies()), (0, copies.clone()));
    // A byte that nobody has written: the copy in the archive is not replaced by it.
    let run = std::fs::metadata(dir.join("run")).unwrap().modified().unwrap();
    let damage = |text: &str| {
        std::fs::write(dir.join("run"), text).unwrap();
        std::fs::File::options().write(true).open(dir.join("run")).unwrap().set_modified(run).unwrap();
    };
    damage("#!/bin/si\n");
    site.archive(&["--free"]).fails(1, &["one of both is damaged"]);
    assert!(dir.exists() && site.copies() == copies);
    is_filled(&copies[0]);
    damage("#!/bin/sh\n");
    std::fs::write(dir.join("more"), "x").unwrap();
    assert_eq!((site.archive(&[]).code, site.copies().len()), (0, 2));
    std::fs::remove_file(dir.join("more")).unwrap();
    site.archive(&["--free"]).succeeds().prints(&["bivouac pool restore mesh"]);
    assert!(!dir.exists() && site.shown()["location"] == "archive");
    site.archive(&["--free"]).succeeds().prints(&["is in its archive alone"]);
    assert!(site.place.ok(&["pool", "show", "mesh"]).contains("; only there"));
    let name = Place::unique_name();
    let mut refused = vec![
        vec!["pool", "path", "mesh"],
        vec!["pool", "count", "mesh"],
        vec!["pool", "archive", "mesh", "--to", "/"],
    ];
    if can_mount() {
        refused.push(vec!["up", "--name", &name, "--pool", "mesh"]);
    }
    for arguments in refused {
        let said = site.place.run(&arguments);
        let has_remedy = said.err.contains("bivouac pool restore mesh") && said.err.contains("slow archive");
        assert!(said.code == 1 && has_remedy, "{arguments:?}: {said:?}");
    }
    // Somebody has changed the archive: nothing of it comes back.
    let (file, content) = (copies[0].join("run"), "#!/bin/sh\n");
    std::fs::write(&file, "#!/bin/si\n").unwrap();
    site.place.run(&["pool", "restore", "mesh"]).fails(1, &["does not hold any more what was archived"]);
    assert_eq!(std::fs::read_dir(dir.parent().unwrap()).unwrap().count(), 0);
    std::fs::write(&file, content).unwrap();
    let back = site.place.ok(&["pool", "restore", "mesh"]);
    assert!(back.contains("is on site storage again"), "{back}");
    is_filled(&site.path());
    assert_eq!((site.path(), site.shown()["location"].as_str()), (dir.clone(), Some("both")));
    // At its end its directory goes, and the archive stays.
    site.place.ok(&["pool", "release", "mesh"]);
    let db = rusqlite::Connection::open(site.place.path().join("pools.sqlite")).unwrap();
    db.execute("UPDATE rule SET value = 0 WHERE name = 'grace-days'", []).unwrap();
    site.place.ok(&["pool", "expire"]);
    assert!(site.place.ok(&["pool", "expire"]).contains("its copy in the archive stays: "));
    assert!(!dir.exists());
    is_filled(&copies[0]);
}

/// S452: killed at any time, `archive` and `restore` leave a pool that is whole on site storage or in its archive, and
/// are done by asking again; nothing is left beside.
#[test]
fn ways_into_an_archive_and_back_are_whole_whenever_they_are_killed() {
    let site = Site::new();
    let dir = site.fill();
    let kill = |arguments: &[&str], round: u32| {
        let mut child = site.place.command(arguments).stdout(std::process::Stdio::null()).spawn().unwrap();
        // A different point of its life each time.
        (0..round * 60_000).for_each(|step| _ = std::hint::black_box(step));
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let to = site.archive.to_str().unwrap();
    for round in 0..12 {
        kill(&["pool", "archive", "mesh", "--to", to, "--free"], round);
        if site.shown()["location"] == "archive" {
            is_filled(&site.copies()[0]);
        } else {
            is_filled(&dir);
            site.archive(&["--free"]).succeeds();
        }
        kill(&["pool", "restore", "mesh"], round);
        if site.shown()["location"] == "archive" {
            site.place.ok(&["pool", "restore", "mesh"]);
        }
        is_filled(&site.path());
        let beside: Vec<_> =
            std::fs::read_dir(dir.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(beside, std::slice::from_ref(&dir), "round {round}");
        assert_eq!(site.archive(&[]).code, 0);
        assert_eq!(site.copies().len(), 1, "round {round}: {:?}", site.copies());
    }
}

/// S452: data that was there before its pool stays, and so does what a formation has; what is no archive is refused.
#[test]
fn what_is_not_to_be_given_up_stays() {
    let site = Site::new();
    let (dir, data) = (site.fill(), site.place.path().join("data"));
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("a"), "1").unwrap();
    site.place.ok(&["pool", "create", "theirs", "--from", data.to_str().unwrap()]);
    let to = site.archive.to_str().unwrap();
    site.place
        .run(&["pool", "archive", "theirs", "--to", to, "--free"])
        .fails(1, &["was there before the pool"]);
    assert_eq!(std::fs::read_to_string(data.join("a")).unwrap(), "1");
    if can_mount() {
        let name = Place::unique_name();
        site.place.ok(&["up", "--name", &name, "--pool", "mesh:rw", "--no-mount"]);
        site.archive(&["--free"]).fails(1, &["is attached to formation"]);
        is_filled(&dir);
        site.place.ok(&["down", "--name", &name, "--yes"]);
    }
    for (to, code, says) in [
        ("/does/not/exist", 1, "--to /does/not/exist: "),
        ("gopher://bucket/archive", 2, "'gopher' is none of file, s3"),
        (dir.to_str().unwrap(), 1, "an archive in the pool itself is none"),
    ] {
        let said = site.place.run(&["pool", "archive", "mesh", "--to", to]);
        assert!(said.code == code && said.err.contains(says), "{to}: {said:?}");
    }
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("socket"), rustix::fs::FileType::Socket, 0o600.into(), 0)
        .unwrap();
    site.archive(&["--free"]).fails(1, &["no whole copy"]);
    assert!(dir.join("socket").exists() && site.shown()["location"] != "archive");
}

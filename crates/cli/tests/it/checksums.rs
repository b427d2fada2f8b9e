//! Checksums at rest, with real daemons: a bit that flips on a volume is an error, is named, and is found.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::harness::library::{create, library, open, read, write};
use crate::harness::{Camp, assert_contains, wait_until};
use bivouac_types::limits::SUMMED_DATA_AT;
use serde_json::Value;

const STRIPE: u64 = 64 << 10;

struct Disk {
    camp: Camp,
    dir: tempfile::TempDir,
}

impl Disk {
    fn start(nodes: &str, checksum: &str) -> Option<Disk> {
        Disk::start_with(nodes, checksum, &[])
    }

    fn start_with(nodes: &str, checksum: &str, more: &[&str]) -> Option<Disk> {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().display().to_string();
        let arguments = ["--nodes", nodes, "--stripe", "64k", "--volume", &volume, "--checksum", checksum];
        let camp = Camp::start(&[&arguments[..], &["--deaths-max", "99/1ms"], more].concat())?;
        Some(Disk { camp, dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.camp.mount().join(name)
    }

    /// Where a byte of a file is: the local file, and the place in it.
    fn place_of(&self, name: &str, offset: u64) -> (PathBuf, u64) {
        let path = self.path(name);
        let offset = offset.to_string();
        let said = self.camp.place().run(&["explain", "--json", "--offset", &offset, path.to_str().unwrap()]);
        let json: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err));
        let target = json["targets"]
            .as_array()
            .unwrap()
            .iter()
            .find(|target| target["target"] == json["byte"]["target"]);
        let subfile = target.unwrap()["subfile"].as_str().unwrap();
        (PathBuf::from(subfile), json["byte"]["local_file_offset"].as_u64().unwrap())
    }

    /// Flips a bit as a disk would, past everybody.
    fn flip(&self, name: &str, offset: u64) {
        let (subfile, at) = self.place_of(name, offset);
        assert!(at >= SUMMED_DATA_AT);
        flip_at(&subfile, at);
    }

    fn run(&self, arguments: &[&str]) -> crate::harness::Said {
        self.camp.place().run(arguments)
    }

    fn scrub(&self, path: &Path) -> (i32, Value) {
        let said = self.run(&["scrub", "--json", path.to_str().unwrap()]);
        let last = said.out.lines().last().unwrap_or_else(|| panic!("{}", said.err));
        (said.code, serde_json::from_str(last).unwrap())
    }
}

fn flip_at(subfile: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(subfile).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed * 7) as u8).collect()
}

fn is_refused(error: std::io::Error) {
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
}

/// S393, S394, S400, S401 and S402.
#[test]
fn a_bit_that_flips_on_a_disk_is_refused_named_and_found() {
    let Some(disk) = Disk::start("2", "on") else { return };
    let content = pattern(40 * STRIPE as usize, 1);
    fs::create_dir(disk.path("deep")).unwrap();
    fs::write(disk.path("deep/file"), &content).unwrap();
    fs::write(disk.path("other"), &content).unwrap();
    // One wrong byte on each node: where the mount's own node has it, and where it does not.
    let wrong = [3 * STRIPE + 5000, 4 * STRIPE + 70];
    wrong.iter().for_each(|at| disk.flip("deep/file", *at));
    let file = File::open(disk.path("deep/file")).unwrap();
    for at in wrong {
        let mut byte = [0];
        is_refused(file.read_exact_at(&mut byte, at).unwrap_err());
        is_refused(file.read_exact_at(&mut [0; 100], at - 50).unwrap_err());
        // What is large goes another way through the mount.
        let mut large = vec![0; 1 << 20];
        is_refused(file.read_exact_at(&mut large, at / STRIPE * STRIPE).unwrap_err());
        let mut beside = [0; 4096];
        file.read_exact_at(&mut beside, at / 4096 * 4096 + 4096).unwrap();
        assert_eq!(beside, content[(at / 4096 * 4096 + 4096) as usize..][..4096]);
    }
    assert!(fs::copy(disk.path("deep/file"), disk.path("copy")).is_err(), "nor is it copied as good");
    assert_eq!(fs::read(disk.path("other")).unwrap(), content);

    let mut shown = String::new();
    wait_until("both nodes say what is wrong", || {
        shown = disk.run(&["status", "--name", disk.camp.name()]).out;
        shown.contains("/deep/file: bytes")
    });
    assert_contains(&shown, &["bivouac scrub"]);
    let json = disk.camp.status();
    for node in json["nodes"].as_array().unwrap() {
        assert_eq!(node["damage"]["wrong_bytes"], 4096);
        assert!(node["damage"]["refused"].as_u64().unwrap() > 0);
        assert_eq!(node["volumes"][0]["checksum"], true);
    }
    disk.run(&["fsck", disk.camp.name()]).fails(4, &[]).prints(&["/deep/file: bytes"]);

    // What nobody has read is found by looking.
    disk.flip("other", 7 * STRIPE);
    let said =
        disk.run(&["scrub", "--name", disk.camp.name()]).fails(1, &[]).prints(&["/deep/file", "/other"]);
    assert!(said.out.ends_with("12 KiB are wrong\n"), "{}", said.out);
    let (code, json) = disk.scrub(&disk.path("other"));
    assert_eq!(
        (code, &json["wrong"][0]["path"], json["wrong"].as_array().unwrap().len()),
        (1, &"/other".into(), 1)
    );
    assert_eq!(json["wrong"][0]["from"], 7 * STRIPE);
    disk.run(&["fsck", "--scrub", disk.camp.name()]).fails(4, &[]).prints(&["wrong-content"]);

    // Written anew it is sound, and a file that is removed is no trouble.
    let file = File::options().write(true).open(disk.path("deep/file")).unwrap();
    is_refused(file.write_all_at(b"part", wrong[0]).unwrap_err());
    wrong.iter().for_each(|at| {
        let block = (at / 4096 * 4096) as usize;
        file.write_all_at(&content[block..block + 4096], block as u64).unwrap();
    });
    fs::remove_file(disk.path("other")).unwrap();
    assert_eq!(fs::read(disk.path("deep/file")).unwrap(), content);
    // What is removed goes in the background.
    wait_until("nothing is wrong any more", || disk.scrub(disk.camp.mount()).0 == 0);
    let (code, json) = disk.scrub(disk.camp.mount());
    assert_eq!((code, json["wrong"].as_array().unwrap().len()), (0, 0), "{json}");
    assert!(json["compared_bytes"].as_u64().unwrap() >= content.len() as u64);
    disk.run(&["fsck", "--scrub", disk.camp.name()]).succeeds();
    disk.camp.down();
}

/// S400: of a formation that was killed whole.
#[test]
fn the_volumes_of_a_dead_formation_are_compared_too() {
    let Some(disk) = Disk::start("1", "on") else { return };
    let content = pattern(3 * STRIPE as usize, 1);
    fs::write(disk.path("file"), &content).unwrap();
    let (subfile, at) = disk.place_of("file", STRIPE + 9);
    disk.camp.kill_all();
    let volumes = disk.dir.path().display().to_string();
    disk.run(&["fsck", "--offline", "--scrub", &volumes]).succeeds();
    flip_at(&subfile, at);
    disk.run(&["fsck", "--offline", "--scrub", &volumes])
        .fails(4, &[])
        .prints(&["/file: bytes 65536 to 69632"]);
    let rebuilt = tempfile::tempdir().unwrap();
    let out = rebuilt.path().join("out").display().to_string();
    disk.run(&["fsck", "--from-subfiles", "--out", &out, &volumes])
        .fails(4, &[])
        .prints(&["bytes 65536 to 69632 are wrong by their checksums"]);

    // Recovered, it is as it was: refused where it is wrong, and nowhere else.
    disk.run(&["recover", disk.camp.name()]).succeeds();
    let file = File::open(disk.path("file")).unwrap();
    is_refused(file.read_exact_at(&mut [0], STRIPE).unwrap_err());
    let mut first = vec![0; STRIPE as usize];
    file.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(first, content[..STRIPE as usize]);
    drop(file);
    disk.camp.down();
}

/// S395.
#[test]
fn disks_have_checksums_and_memory_has_none_unless_asked() {
    let kinds = |checksum: &str, dir: &Path| {
        let volume = dir.display().to_string();
        let camp = Camp::start(&["--nodes", "1", "--volume", &volume, "--checksum", checksum])?;
        let volume = camp.status()["nodes"][0]["volumes"][0].clone();
        camp.down();
        Some((volume["kind"].as_str().unwrap().to_owned(), volume["checksum"].as_bool().unwrap()))
    };
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let Some(found) = kinds("auto", memory.path()) else { return };
    assert_eq!(found, ("memory".into(), false));
    assert_eq!(kinds("on", memory.path()), Some(("memory".into(), true)));
    let disk = tempfile::tempdir().unwrap();
    let (kind, summed) = kinds("auto", disk.path()).unwrap();
    assert_eq!(summed, kind == "disk");
    assert_eq!(kinds("off", disk.path()).map(|(_, summed)| summed), Some(false));
    crate::harness::Place::new()
        .run(&["up", "--checksum", "perhaps"])
        .fails(2, &["none of auto, on and off"]);
}

/// S398 and S399: daemons are killed while programs write through the mount and by themselves.
#[test]
fn killed_daemons_leave_no_good_block_wrong() {
    let Some(disk) = Disk::start("2", "on") else { return };
    let client = library(&disk.camp.dir());
    let direct = create(&client, "direct");
    let mounted = File::create(disk.path("mounted")).unwrap();
    for round in 0..4 {
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                for step in 0..200 {
                    let at = (step * 7919 + round * 31) % (30 * STRIPE as usize);
                    write(&client, direct, at, &pattern(5000, step));
                    mounted.write_all_at(&pattern(5000, step), at as u64).unwrap();
                }
            });
            disk.camp.kill_node(round % 2);
            writing.join().unwrap();
        });
    }
    let size = client.getattr(direct).unwrap().size as usize;
    let seen = read(&client, direct, 0, size);
    assert!(fs::read(disk.path("direct")).unwrap() == seen);
    assert_eq!(fs::read(disk.path("mounted")).unwrap().len(), seen.len());
    client.close(direct);
    drop((client, mounted));
    // Nobody has them any more: all of it gets sums, and then all of it is compared.
    wait_until("everything has checksums", || {
        let (code, json) = disk.scrub(disk.camp.mount());
        assert_eq!(code, 0, "{json}");
        json["skipped_bytes"] == 0 && json["settled_bytes"] == 0
    });
    disk.flip("direct", 100);
    let (code, json) = disk.scrub(disk.camp.mount());
    assert_eq!((code, &json["wrong"][0]["path"]), (1, &"/direct".into()), "{json}");
    disk.camp.down();
}

/// S393, S399: what others are served is compared, and who reads itself ends with the first damage that is known.
#[test]
fn no_block_is_served_that_was_not_compared() {
    let Some(disk) = Disk::start_with("1", "on", &["--http", "0", "--http-plain"]) else { return };
    let server = crate::http::served(&disk.camp);
    let content = pattern(5 * STRIPE as usize, 1);
    for name in ["served", "read"] {
        fs::write(disk.path(name), &content).unwrap();
    }
    // Often enough that a program is lent the file.
    let client = library(&disk.camp.dir());
    let ino = client.find(b"read", true).unwrap().ino;
    open(&client, ino);
    for _ in 0..8 {
        assert!(server.get("/served") == content);
        assert!(read(&client, ino, 0, content.len()) == content);
    }
    let at = 3 * STRIPE + 5000;
    // Nobody but the server has read it since.
    disk.flip("served", at);
    let request = format!(
        "GET /served HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
        server.key
    );
    for _ in 0..3 {
        let reply = crate::http::raw(&server.address, request.as_bytes()).unwrap();
        assert!(reply.body.len() < content.len(), "{}", reply.status);
        assert!(reply.status != 200 || content.starts_with(&reply.body), "what came is right");
    }
    disk.flip("read", at);
    is_refused(fs::read(disk.path("read")).map(drop).unwrap_err());
    for _ in 0..3 {
        assert_eq!(client.read(ino, at, &mut [0; 100]).unwrap_err().errno().code(), 5);
        assert!(read(&client, ino, 0, STRIPE as usize) == content[..STRIPE as usize]);
    }
    client.close(ino);
    drop(client);
    disk.camp.down();
}

/// S403.
#[test]
fn a_wrong_block_is_never_flushed_as_good() {
    let Some(disk) = Disk::start("1", "on") else { return };
    let site = tempfile::tempdir().unwrap();
    let (part, source) = (disk.path("part"), site.path().to_str().unwrap().to_owned());
    let part = part.to_str().unwrap();
    disk.run(&["partition", "create", part, "--stripe", "64k", "--source", &source]).succeeds();
    fs::write(disk.path("part/good"), pattern(200_000, 1)).unwrap();
    fs::write(disk.path("part/bad"), pattern(200_000, 2)).unwrap();
    disk.flip("part/bad", 70_000);
    let said = disk.run(&["flush", part]);
    assert_ne!(said.code, 0);
    assert!(said.err.contains("bad") && said.err.contains("checksum"), "{}", said.err);
    assert!(fs::read(site.path().join("good")).unwrap() == pattern(200_000, 1));
    assert!(!site.path().join("bad").exists());
    is_refused(fs::read(disk.path("part/bad")).unwrap_err());
    fs::write(disk.path("part/bad"), pattern(200_000, 3)).unwrap();
    disk.run(&["flush", part]).succeeds();
    assert!(fs::read(site.path().join("bad")).unwrap() == pattern(200_000, 3));
    disk.camp.down();
}

//! Trees in an object store, with a server that is real.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bivouac_objects::{ACCESS_KEY, BUCKET, Fault, SECRET_KEY, Server, Storm, Upload, What};
use bivouac_source::{Environment, S3Location, S3Source};
use bivouac_stage::archive::{Archive, ArchiveError, sweep};
use bivouac_stage::{CopyOptions, NoProgress, copy_tree};

use crate::trees::{describe, one_of_everything, set_xattr, xattr};

const NAME: &str = "0123456789abcdef";
/// Larger than one part, and not by whole blocks.
const PARTS: usize = (17 << 20) + 5;

fn at(server: &Server) -> S3Source {
    let here = Environment::read(|name| match name {
        "AWS_ACCESS_KEY_ID" => Some(ACCESS_KEY.to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some(SECRET_KEY.to_owned()),
        _ => None,
    });
    let (bucket, prefix) = (BUCKET.to_owned(), "cold/0-mesh-1/".to_owned());
    let place = S3Location { bucket, prefix, endpoint: Some(server.endpoint()), region: None };
    S3Source::open(&place, &here).unwrap().with_pause(Duration::from_millis(2))
}

fn key(name: &str) -> String {
    format!("cold/0-mesh-1/{NAME}/{name}")
}

fn options() -> CopyOptions {
    CopyOptions::default()
}

/// A tree, a server, and what is archived into it.
struct Site {
    dir: tempfile::TempDir,
    server: Server,
    store: S3Source,
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + at / 251 + seed) % 255) as u8).collect()
}

impl Site {
    fn new() -> Site {
        let (dir, server) = (tempfile::tempdir().unwrap(), Server::start());
        let store = at(&server);
        fs::create_dir_all(dir.path().join("src/d")).unwrap();
        fs::write(dir.path().join("src/small"), "small").unwrap();
        fs::write(dir.path().join("src/empty"), "").unwrap();
        fs::write(dir.path().join("src/d/parts"), bytes(PARTS, 1)).unwrap();
        Site { dir, server, store }
    }

    fn src(&self) -> PathBuf {
        self.dir.path().join("src")
    }

    fn put(&self) -> Result<(), ArchiveError> {
        Archive::new(&self.store, NAME).put(&self.src(), &options())?.commit()
    }

    fn fetch(&self) -> Result<(), ArchiveError> {
        let (archive, to) = (Archive::new(&self.store, NAME), self.dir.path().join("back"));
        let fetched = archive.fetch(&archive.manifest()?, &to, &options());
        if fetched.is_err() {
            let left: Vec<_> =
                fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["src"], "nothing is left");
        }
        fetched.map(drop)
    }

    fn comes_back(&self) {
        self.fetch().unwrap();
        let back = self.dir.path().join("back");
        assert_eq!(describe(&back), describe(&self.src()));
        bivouac_stage::remove_tree(&back).unwrap();
    }

    /// Nothing that costs money and that nobody sees.
    fn has_no_uploads(&self) -> bool {
        self.server.contents().uploads.is_empty()
    }

    fn keys(&self) -> Vec<String> {
        self.server.contents().objects.keys().cloned().collect()
    }

    fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut content = self.server.object(&key(name)).unwrap().bytes.to_vec();
        change(&mut content);
        self.server.put(&key(name), &content, &[]);
    }
}

fn said<T>(outcome: Result<T, ArchiveError>) -> String {
    outcome.err().map(|error| error.to_string()).unwrap_or_default()
}

/// Everything that a copy into a directory keeps comes back from a bucket; the digest is the same, too.
#[test]
fn a_tree_comes_back_as_it_was() {
    let site = Site::new();
    let (src, back) = (site.src(), site.dir.path().join("back"));
    fs::remove_dir_all(&src).unwrap();
    one_of_everything(&src);
    let odd = src.join(OsStr::from_bytes(b"not text \xff\xfe\n"));
    let has_xattrs = set_xattr(&odd, "user.\u{e9}\t", b"value\0\xff\n") && set_xattr(&src, "user.root", b"");
    set_xattr(&src.join("deep/er"), "user.large", &[7; 3000]);
    fs::write(src.join("a\\x2e b%2e?c#d+\u{20ac}"), bytes(3 << 20, 2)).unwrap();
    fs::write(src.join("more"), "x").unwrap();
    fs::write(src.join("#end\tx"), "").unwrap();
    if rustix::process::geteuid().is_root() {
        chown(src.join("more"), Some(12), Some(34)).unwrap();
        std::os::unix::fs::lchown(src.join("deep/link"), Some(56), Some(78)).unwrap();
        chown(src.join("deep/er"), Some(12), Some(0)).unwrap();
        fs::set_permissions(src.join("more"), fs::Permissions::from_mode(0o6000)).unwrap();
    }
    let time = fs::metadata(&src).unwrap().modified().unwrap();
    fs::File::open(&src).unwrap().set_modified(time).unwrap();
    let before = describe(&src);
    let archive = Archive::new(&site.store, NAME);
    let draft = archive.put(&src, &options()).unwrap();
    let summary = draft.summary();
    assert!(archive.manifest().unwrap_err().to_string().contains("was never completed"));
    draft.commit().unwrap();
    let manifest = archive.manifest().unwrap();
    assert_eq!(archive.fetch(&manifest, &back, &options()).unwrap(), summary);
    assert_eq!((describe(&back), describe(&src)), (before.clone(), before));
    let (there, here) = (
        |path: &str| fs::symlink_metadata(back.join(path)).unwrap(),
        |path: &str| fs::symlink_metadata(src.join(path)).unwrap(),
    );
    for path in ["", "more", "deep/link", "deep/er", "pipe", "plain", "deep/script"] {
        let of = |meta: fs::Metadata| (meta.uid(), meta.gid(), meta.mode());
        assert_eq!(of(there(path)), of(here(path)), "{path}");
    }
    assert_eq!(there("plain").ino(), there("deep/er/again").ino(), "still one file");
    assert!(there("large").blocks() <= here("large").blocks() + 512, "holes come back");
    if has_xattrs {
        let odd = back.join(OsStr::from_bytes(b"not text \xff\xfe\n"));
        assert_eq!(xattr(&odd, "user.\u{e9}\t").unwrap(), b"value\0\xff\n");
        assert_eq!(xattr(&back, "user.root").unwrap(), b"");
        assert_eq!(xattr(&back.join("deep/er"), "user.large").unwrap(), [7; 3000]);
    }
    let copied = copy_tree(&src, &site.dir.path().join("copy"), &options(), &NoProgress).unwrap();
    assert_eq!((copied.digest, copied.files, copied.bytes), (summary.digest, summary.files, summary.bytes));
    assert!(site.has_no_uploads());
    // Others find files under their names.
    assert_eq!(site.server.object(&key("deep/er/again")).unwrap().bytes[..], b"plain text"[..]);
    assert_eq!(site.server.object(&key("not text \\xff\\xfe\\n")).unwrap().bytes[..], b"odd name"[..]);
    assert_eq!(site.server.object(&key("deep/script")).unwrap().metadata["mode"], 0o104_751.to_string());
}

/// A name or an object that cannot be there is refused before anything is put.
#[test]
fn what_no_copy_can_hold_is_refused_before_anything_is_put() {
    let site = Site::new();
    let long = ["n".repeat(240), "o".repeat(240), "p".repeat(240), "q".repeat(240)].join("/");
    fs::create_dir_all(site.src().join(&long)).unwrap();
    site.put().unwrap();
    site.comes_back();
    fs::write(site.src().join(&long).join("and a last name that is longer than names are as a rule"), "x")
        .unwrap();
    let asked = site.server.count("", "");
    let refused = said(site.put());
    assert!(refused.contains("is a key of ") && refused.contains("stores take 1024"), "{refused}");
    fs::remove_file(site.src().join(&long).join("and a last name that is longer than names are as a rule"))
        .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(site.src().join("d/socket")).unwrap();
    let refused = said(site.put());
    assert!(refused.contains("d/socket: is a socket") && refused.contains("move it away"), "{refused}");
    assert_eq!(site.server.count("", ""), asked, "nothing was even asked");
}

/// What is there already is compared and not put again; what is not as it should be is.
#[test]
fn a_copy_is_gone_on_with() {
    let site = Site::new();
    site.server.fail("PUT", "partNumber=2", usize::MAX, What::Refuse(403, "AccessDenied"));
    let refused = said(site.put());
    assert!(refused.contains("d/parts: access denied"), "{refused}");
    assert!(site.has_no_uploads() && site.server.object(&key("d/parts")).is_none());
    site.server.heal();
    let what = What::Refuse(403, "AccessDenied");
    site.server.fail_after(Fault { method: "PUT", within: ".manifest?", after: 1, times: 1, what });
    assert!(said(site.put()).contains(".manifest: access denied"));
    let count = || ["/small?", "/empty?", "partNumber"].map(|within| site.server.count("PUT", within));
    let before = count();
    site.damage("small", |content| content[0] ^= 1);
    site.server.contents().objects.remove(&key("d/parts"));
    // Of a command that was killed.
    let begun = Upload { key: key("d/parts"), metadata: Default::default(), parts: Default::default() };
    site.server.contents().uploads.insert("left".to_owned(), begun);
    site.put().unwrap();
    assert!(site.has_no_uploads());
    assert_eq!(count(), [before[0] + 1, before[1], before[2] + 3], "what differs is put again, and no other");
    site.comes_back();
    let puts = (site.server.count("PUT", ""), site.server.count("POST", ""));
    site.put().unwrap();
    assert_eq!((site.server.count("PUT", ""), site.server.count("POST", "")), puts, "all is there");
    fs::set_permissions(site.src().join("small"), fs::Permissions::from_mode(0o604)).unwrap();
    site.put().unwrap();
    assert_eq!(site.server.count("PUT", ""), puts.0 + 1, "only the manifest");
    site.comes_back();
}

/// A whole copy is not replaced by other bytes, and repaired with its own.
#[test]
fn whole_copies_stay_what_they_are() {
    let site = Site::new();
    site.put().unwrap();
    let whole = site.server.object(&key("small")).unwrap().bytes.clone();
    fs::write(site.src().join("small"), "smell").unwrap();
    assert!(matches!(site.put(), Err(ArchiveError::Differs(path)) if path.ends_with("small")));
    assert_eq!(site.server.object(&key("small")).unwrap().bytes, whole);
    site.damage("small", |content| content[2] ^= 4);
    assert_eq!(site.server.object(&key("small")).unwrap().bytes[..], b"smell"[..]);
    assert!(matches!(site.put(), Err(ArchiveError::Differs(_))), "both are damaged, and in the same way");
    fs::write(site.src().join("small"), "small").unwrap();
    site.put().unwrap();
    assert_eq!(site.server.object(&key("small")).unwrap().bytes, whole);
    site.comes_back();
}

type Damage<'a> = Box<dyn Fn() + 'a>;

/// Altered, cut, removed and invented objects and manifests: named, and nothing comes back.
#[test]
fn damaged_copies_do_not_come_back() {
    let site = Site::new();
    site.put().unwrap();
    let sound = site.server.contents().objects.clone();
    let manifest = format!("cold/0-mesh-1/{NAME}.manifest");
    let text = String::from_utf8(sound[&manifest].bytes.to_vec()).unwrap();
    let again = |text: &str| {
        let body = text.trim_end_matches('\n').rsplit_once('\n').unwrap().0.to_owned() + "\n";
        let digest = blake3::hash(body.as_bytes()).to_hex();
        format!("{body}#end\t{digest}\n")
    };
    let cases: [(&str, Damage<'_>); 14] = [
        ("small: has other bytes", Box::new(|| site.damage("small", |content| content[0] ^= 1))),
        ("small: is 4 bytes, not 5", Box::new(|| site.damage("small", |content| content.truncate(4)))),
        ("empty: is 1 bytes, not 0", Box::new(|| site.damage("empty", |content| content.push(0)))),
        ("d/parts: has other bytes", Box::new(|| site.damage("d/parts", |content| content[PARTS - 1] ^= 1))),
        (
            "d/parts: there is no such object",
            Box::new(|| drop(site.server.contents().objects.remove(&key("d/parts")))),
        ),
        (
            "manifest: is not there any more",
            Box::new(|| drop(site.server.contents().objects.remove(&manifest))),
        ),
        (
            "does not fit the digest",
            Box::new(|| site.server.put(&manifest, &text.as_bytes()[..text.len() - 9], &[])),
        ),
        (
            "does not fit the digest",
            Box::new(|| site.server.put(&manifest, text.replace("0644", "0666").as_bytes(), &[])),
        ),
        ("it is no manifest", Box::new(|| site.server.put(&manifest, b"", &[]))),
        ("it is no text", Box::new(|| site.server.put(&manifest, b"\xff", &[]))),
        ("use a later one", Box::new(|| site.server.put(&manifest, b"#bivouac-archive 2\nwhatever\n", &[]))),
        (
            "wrong object",
            Box::new(|| {
                site.server.put(
                    &manifest,
                    again(&text.replace("\td/parts\t", "\td/../../x\t")).as_bytes(),
                    &[],
                )
            }),
        ),
        (
            "wrong object",
            Box::new(|| {
                site.server.put(&manifest, again(&text.replace("\td\t\n", "\te\t\n")).as_bytes(), &[])
            }),
        ),
        (
            "wrong line 2",
            Box::new(|| {
                site.server.put(&manifest, again(&text.replacen("done\td\t", "gone\td\t", 1)).as_bytes(), &[])
            }),
        ),
    ];
    for (says, damage) in cases {
        damage();
        let refused = said(site.fetch());
        assert!(
            refused.contains(says) && refused.contains("s3://bucket/cold/0-mesh-1/"),
            "{says}: {refused}"
        );
        site.server.contents().objects.clone_from(&sound);
    }
    site.comes_back();
}

/// A store that answers other bytes than it was given is found out before there is a copy.
#[test]
fn what_reads_back_differently_is_no_copy() {
    for (method, within, what) in [
        ("GET", "/small?", What::Alter),
        ("GET", "/d/parts?", What::Alter),
        ("GET", "/d/parts?", What::Rename),
        ("GET", "/d/parts?", What::Refuse(200, "Garbage")),
        ("PUT", "/small?", What::Refuse(507, "XMinioStorageFull")),
        ("POST", "uploads", What::Refuse(200, "Garbage")),
        ("POST", "uploadId", What::Refuse(200, "QuotaExceeded")),
        ("PUT", ".manifest?", What::Refuse(404, "NoSuchBucket")),
        ("GET", ".manifest?", What::Alter),
    ] {
        let site = Site::new();
        site.server.fail(method, within, usize::MAX, what.clone());
        let refused = said(site.put());
        assert!(refused.contains("s3://bucket/cold/0-mesh-1/"), "{method} {within} {what:?}: {refused}");
        assert!(site.has_no_uploads(), "{method} {within} {what:?}");
        site.server.heal();
        site.put().unwrap();
        site.comes_back();
    }
}

/// Whatever goes wrong for a while, in the end all of it is there, and nothing else.
#[test]
fn storms_pass() {
    for seed in 0..6 {
        let site = Site::new();
        site.server.storm(Storm { seed, one_in: 4, lies: true });
        let mut outcomes = (0..50).map(|_| site.put().is_ok());
        let _one_may_do_it = outcomes.any(|is_done| is_done);
        site.server.heal();
        site.put().unwrap();
        site.server.storm(Storm { seed, one_in: 4, lies: true });
        let back = site.dir.path().join("back");
        let mut fetched = (0..50).map(|_| site.fetch().is_ok());
        if fetched.any(|is_done| is_done) {
            assert_eq!(describe(&back), describe(&site.src()));
            fs::remove_dir_all(&back).unwrap();
        }
        site.server.heal();
        site.comes_back();
        let mut keys = site.keys();
        keys.retain(|key| !key.contains(&format!("/{NAME}")));
        assert_eq!(keys, [""; 0]);
        // Uploads whose names were lost with the answer are thrown away as well.
        site.put().unwrap();
        assert!(site.has_no_uploads(), "seed {seed}");
    }
}

/// Of two commands that put the same copy, and of one that puts it and one that sweeps, the later one wins, and the
/// earlier one has not made a copy.
#[test]
fn who_lost_a_copy_has_not_made_one() {
    let site = Site::new();
    let archive = Archive::new(&site.store, NAME);
    let first = archive.put(&site.src(), &options()).unwrap();
    let second = archive.put(&site.src(), &options()).unwrap();
    let lost = said(first.commit());
    assert!(lost.contains("replaced or removed meanwhile"), "{lost}");
    second.commit().unwrap();
    site.comes_back();
    let other = Archive::new(&site.store, "fedcba9876543210");
    let unfinished = other.put(&site.src(), &options()).unwrap();
    sweep(&site.store, "fedcba9876543210", |_| true).unwrap();
    assert!(site.server.object("cold/0-mesh-1/fedcba9876543210/small").is_some(), "not that one");
    sweep(&site.store, NAME, |name| name != "fedcba9876543210").unwrap();
    assert!(
        site.server.object("cold/0-mesh-1/fedcba9876543210/small").is_some(),
        "nor what is no copy's name"
    );
    sweep(&site.store, NAME, |_| true).unwrap();
    assert!(site.keys().iter().all(|key| key.contains(NAME)), "{:?}", site.keys());
    let lost = said(unfinished.commit());
    assert!(lost.contains("replaced or removed meanwhile"), "{lost}");
    // Also while it is being removed.
    let unfinished = other.put(&site.src(), &options()).unwrap();
    site.server.fail("DELETE", "fedcba9876543210/small", 1, What::Hold);
    std::thread::scope(|scope| {
        let sweeping = scope.spawn(|| sweep(&site.store, NAME, |_| true));
        while site.server.held() == 0 && !sweeping.is_finished() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        assert!(said(unfinished.commit()).contains("replaced or removed meanwhile"));
        site.server.heal();
        sweeping.join().unwrap().unwrap();
    });
    assert!(site.keys().iter().all(|key| key.contains(NAME)), "{:?}", site.keys());
    let draft = other.put(&site.src(), &options()).unwrap();
    draft.discard().unwrap();
    assert!(site.keys().iter().all(|key| key.contains(NAME)), "{:?}", site.keys());
    site.comes_back();
}

/// Killed between any two requests, sweeping is finished by the next command.
#[test]
fn sweeping_is_finished_by_the_next_command() {
    let site = Site::new();
    site.put().unwrap();
    let other = Archive::new(&site.store, "fedcba9876543210");
    for after in 0.. {
        drop(other.put(&site.src(), &options()).unwrap());
        let what = What::Refuse(403, "AccessDenied");
        site.server.fail_after(Fault { method: "", within: "", after, times: usize::MAX, what });
        let is_done = sweep(&site.store, NAME, |_| true).is_ok();
        site.server.heal();
        sweep(&site.store, NAME, |_| true).unwrap();
        assert!(site.keys().iter().all(|key| key.contains(NAME)), "{after}: {:?}", site.keys());
        if is_done {
            break;
        }
    }
    site.comes_back();
}

/// A file that changes on the way is no part of a copy, and who is told to stop stops.
#[test]
fn what_changes_meanwhile_is_named() {
    let site = Site::new();
    for (method, within) in [("PUT", "partNumber=1"), ("PUT", "partNumber=4"), ("GET", "/d/parts?")] {
        site.server.fail(method, within, 1, What::Hold);
        std::thread::scope(|scope| {
            let putting = scope.spawn(|| said(site.put()));
            while site.server.held() == 0 && !putting.is_finished() {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            fs::write(site.src().join("d/parts"), bytes(PARTS, 3)).unwrap();
            site.server.heal();
            let refused = putting.join().unwrap();
            assert!(refused.contains("d/parts: changed while it was copied"), "{within}: {refused}");
        });
        assert!(site.has_no_uploads());
    }
    let opts = options();
    opts.cancel.store(true, Ordering::Relaxed);
    assert!(matches!(Archive::new(&site.store, NAME).put(&site.src(), &opts), Err(ArchiveError::Cancelled)));
    site.put().unwrap();
    let archive = Archive::new(&site.store, NAME);
    let manifest = archive.manifest().unwrap();
    let stopped = archive.fetch(&manifest, &site.dir.path().join("back"), &opts);
    assert!(matches!(stopped, Err(ArchiveError::Cancelled)) && !site.dir.path().join("back").exists());
    site.comes_back();
}

/// Stores that know no conditions of writes, name no contents, or send all of a file keep archives as well.
#[test]
fn poorer_stores_keep_archives() {
    let site = Site::new();
    site.server.contents().is_old = true;
    site.server.contents().page = 1;
    site.put().unwrap();
    site.comes_back();
    let site = Site::new();
    site.server.contents().ignores_ranges = true;
    let refused = said(site.put());
    assert!(
        refused.contains("d/parts: ") && refused.contains("another range than was asked for"),
        "{refused}"
    );
    fs::remove_file(site.src().join("d/parts")).unwrap();
    site.put().unwrap();
    site.comes_back();
}

/// Where uploads are seen only by their whole keys, or not at all, a command throws away its own, and of one that was
/// killed those that can be seen.
#[test]
fn uploads_are_thrown_away_where_few_are_seen() {
    let site = Site::new();
    site.server.contents().shows_uploads_by_key = true;
    site.server.fail("PUT", "partNumber=2", usize::MAX, What::Refuse(403, "AccessDenied"));
    site.put().unwrap_err();
    assert!(site.has_no_uploads());
    site.server.heal();
    let begun = Upload { key: key("d/parts"), metadata: Default::default(), parts: Default::default() };
    site.server.contents().uploads.insert("left".to_owned(), begun);
    site.put().unwrap();
    assert!(site.has_no_uploads());
    site.server.fail("GET", "uploads", usize::MAX, What::Refuse(403, "AccessDenied"));
    site.put().unwrap();
    site.comes_back();
}

/// A full file system on the way back: named, and nothing is left of it.
#[test]
fn a_full_file_system_on_the_way_back_is_named() {
    let test = "archived::a_full_file_system_on_the_way_back_is_named";
    if !crate::trees::in_own_mounts(test) {
        return;
    }
    let site = Site::new();
    site.put().unwrap();
    let small = site.dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let _mounted = crate::trees::Mounted::new(&["-t", "tmpfs", "-o", "size=4m", "tmpfs"], &small);
    let archive = Archive::new(&site.store, NAME);
    let refused = said(archive.fetch(&archive.manifest().unwrap(), &small.join("back"), &options()));
    assert!(refused.contains("d/parts: could not write: no space left (ENOSPC); free space"), "{refused}");
    assert_eq!(fs::read_dir(&small).unwrap().count(), 0);
}

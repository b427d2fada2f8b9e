//! What a copy keeps and counts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is test code")]

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::trees::{copy, describe, incomplete, names, one_of_everything, set_xattr, xattr};
use bivouac_stage::{CopyOptions, Progress, Skipped, Totals, copy_tree};

struct Dirs {
    _dir: tempfile::TempDir,
    src: PathBuf,
    dst: PathBuf,
}

fn dirs() -> Dirs {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(&src).unwrap();
    Dirs { _dir: dir, src, dst }
}

#[test]
fn a_new_tree_equals_its_source_in_everything() {
    let d = dirs();
    one_of_everything(&d.src);
    let summary = copy(&d.src, &d.dst).unwrap();
    assert_eq!(describe(&d.dst), describe(&d.src));
    assert_eq!((summary.files, summary.dirs, summary.links), (5, 4, 1));
    assert_eq!((summary.hard_links, summary.fifos), (1, 1));
    assert_eq!(summary.bytes, (130 << 20) + 12_345 + 10 + 10 + 8);
    assert_eq!(summary.skipped, []);
    assert_eq!(names(d.src.parent().unwrap()).iter().filter(|name| name.contains("bivouac-")).count(), 0);
    let inode = |path: &str| fs::metadata(d.dst.join(path)).unwrap().ino();
    assert_eq!(inode("plain"), inode("deep/er/again"));
}

#[test]
fn holes_stay_holes() {
    let d = dirs();
    one_of_everything(&d.src);
    copy(&d.src, &d.dst).unwrap();
    let blocks = fs::metadata(d.dst.join("large")).unwrap().blocks();
    assert!(blocks * 512 < 2 << 20, "{blocks} blocks for four short pieces of data");
}

#[test]
fn a_tree_that_exists_is_merged_and_loses_nothing() {
    let d = dirs();
    one_of_everything(&d.src);
    fs::create_dir_all(d.dst.join("deep/own")).unwrap();
    fs::write(d.dst.join("deep/own/file"), "stays").unwrap();
    fs::write(d.dst.join("plain"), "old").unwrap();
    fs::write(d.dst.join("deep/link"), "a file where a link comes").unwrap();
    let before = describe(&d.dst);
    let summary = copy(&d.src, &d.dst).unwrap();
    assert_eq!((summary.files, summary.dirs, summary.hard_links), (5, 2, 1));

    let (mut expected, after) = (describe(&d.src), describe(&d.dst));
    for own in ["deep/own", "deep/own/file"] {
        expected.insert(own.into(), before[own.as_bytes()].clone());
    }
    // Directories that existed keep their mode.
    for (name, line) in expected.iter().filter(|(name, _)| !matches!(&name[..], b"" | b"deep")) {
        assert_eq!(after.get(name), Some(line), "{}", name.escape_ascii());
    }
    assert_eq!(after.len(), expected.len());
    let times = |root: &Path| {
        ["", "deep"]
            .map(|name| fs::metadata(root.join(name)).map(|meta| (meta.mtime(), meta.mtime_nsec())).unwrap())
    };
    assert_eq!(times(&d.dst), times(&d.src));
    let second = copy(&d.src, &d.dst).unwrap();
    assert_eq!(times(&d.dst), times(&d.src), "also if nothing has changed");
    assert_eq!((second.files, second.dirs, second.digest), (5, 0, summary.digest));
    assert_eq!(describe(&d.dst).len(), after.len());
}

#[test]
fn a_file_gets_the_name_and_the_parents_that_are_asked_for() {
    let d = dirs();
    let file = d.src.join("file");
    fs::write(&file, "contents").unwrap();
    let to = d.dst.join("a/b/copy");
    assert_eq!(copy(&file, &to).unwrap().files, 1);
    assert_eq!(fs::read_to_string(&to).unwrap(), "contents");
    fs::write(&file, "newer").unwrap();
    copy(&file, &to).unwrap();
    assert_eq!(fs::read_to_string(&to).unwrap(), "newer");
    assert_eq!(names(&d.dst), ["", "a", "a/b", "a/b/copy"]);
}

#[test]
fn links_that_the_user_names_are_followed() {
    let d = dirs();
    fs::write(d.src.join("file"), "contents").unwrap();
    fs::create_dir(&d.dst).unwrap();
    let (from, to) = (d.src.with_file_name("from"), d.src.with_file_name("to"));
    symlink(&d.src, &from).unwrap();
    symlink(&d.dst, &to).unwrap();
    assert_eq!(copy(&from, &to).unwrap().files, 1);
    assert_eq!(fs::read_to_string(d.dst.join("file")).unwrap(), "contents");
    assert!(to.is_symlink());
}

#[test]
fn without_overwriting_what_exists_is_listed_and_stays() {
    let d = dirs();
    fs::write(d.src.join("both"), "new").unwrap();
    fs::write(d.src.join("only"), "new").unwrap();
    symlink("x", d.src.join("link")).unwrap();
    fs::create_dir(&d.dst).unwrap();
    fs::write(d.dst.join("both"), "old").unwrap();
    symlink("y", d.dst.join("link")).unwrap();
    let opts = CopyOptions { overwrite: false, ..CopyOptions::default() };
    let (summary, failures) = incomplete(copy_tree(&d.src, &d.dst, &opts, &bivouac_stage::NoProgress));
    assert_eq!(summary.files, 1);
    assert_eq!(
        failures.iter().map(|f| f.path.clone()).collect::<Vec<_>>(),
        [d.dst.join("both"), d.dst.join("link")]
    );
    assert!(failures[0].to_string().ends_with("file exists (EEXIST); move it away or allow overwriting"));
    assert_eq!(fs::read_to_string(d.dst.join("both")).unwrap(), "old");
    assert_eq!(fs::read_link(d.dst.join("link")).unwrap(), Path::new("y"));
}

#[test]
fn kinds_that_contradict_each_other_are_failures_and_harm_nothing() {
    let d = dirs();
    fs::create_dir_all(d.src.join("dir/inner")).unwrap();
    fs::write(d.src.join("dir/inner/file"), "x").unwrap();
    fs::write(d.src.join("file"), "x").unwrap();
    fs::create_dir_all(d.dst.join("file/kept")).unwrap();
    fs::write(d.dst.join("dir"), "kept").unwrap();
    let (summary, failures) = incomplete(copy(&d.src, &d.dst));
    assert_eq!((summary.files, summary.dirs), (0, 0));
    let texts: Vec<_> = failures.iter().map(ToString::to_string).collect();
    assert!(texts[0].contains("dst/dir: could not make it and what is in it: not a directory"), "{texts:?}");
    assert!(texts[1].contains("dst/file: could not make it: is a directory"), "{texts:?}");
    assert_eq!(names(&d.dst), ["", "dir", "file", "file/kept"]);
}

#[test]
fn attributes_are_kept_but_for_our_own() {
    let d = dirs();
    for path in [d.src.clone(), d.src.join("file")] {
        if path != d.src {
            fs::write(&path, "x").unwrap();
        }
        if !set_xattr(&path, "user.origin", b"beam 7\0binary") {
            return eprintln!("no user attributes here");
        }
        set_xattr(&path, "user.empty", b"");
        set_xattr(&path, "user.bivouac.layout", b"stripe=4096");
    }
    copy(&d.src, &d.dst).unwrap();
    for path in [d.dst.clone(), d.dst.join("file")] {
        assert_eq!(xattr(&path, "user.origin").as_deref(), Some(&b"beam 7\0binary"[..]));
        assert_eq!(xattr(&path, "user.empty").as_deref(), Some(&b""[..]));
        assert_eq!(xattr(&path, "user.bivouac.layout"), None);
    }
}

#[test]
fn sockets_are_skipped_by_name() {
    let d = dirs();
    let _socket = std::os::unix::net::UnixListener::bind(d.src.join("socket")).unwrap();
    let summary = copy(&d.src, &d.dst).unwrap();
    assert_eq!(summary.skipped, [Skipped { path: d.src.join("socket"), what: "socket".into() }]);
    assert_eq!(names(&d.dst), [""]);
}

#[test]
fn the_digest_depends_on_names_kinds_and_contents_only() {
    let digest = |make: &dyn Fn(&Path)| {
        let d = dirs();
        fs::write(d.src.join("file"), "contents").unwrap();
        make(&d.src);
        copy(&d.src, &d.dst).unwrap().digest
    };
    let plain = digest(&|_| ());
    assert_eq!(
        digest(&|src| fs::set_permissions(src, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap()),
        plain
    );
    assert_ne!(digest(&|src| fs::write(src.join("file"), "Contents").unwrap()), plain);
    assert_ne!(digest(&|src| fs::rename(src.join("file"), src.join("elif")).unwrap()), plain);
    assert_ne!(digest(&|src| fs::create_dir(src.join("more")).unwrap()), plain);
}

#[derive(Default)]
struct Recorder {
    found: Mutex<Vec<Totals>>,
    sums: Mutex<(u64, u64)>,
    files: Mutex<Vec<PathBuf>>,
}

impl Progress for Recorder {
    fn found(&self, totals: Totals) {
        self.found.lock().unwrap().push(totals);
    }
    fn copied(&self, bytes: u64) {
        self.sums.lock().unwrap().0 += bytes;
    }
    fn verified(&self, bytes: u64) {
        self.sums.lock().unwrap().1 += bytes;
    }
    fn file_done(&self, path: &Path) {
        self.files.lock().unwrap().push(path.to_owned());
    }
}

#[test]
fn progress_adds_up_to_what_was_found() {
    let d = dirs();
    one_of_everything(&d.src);
    let recorder = Recorder::default();
    let summary = copy_tree(&d.src, &d.dst, &CopyOptions::default(), &recorder).unwrap();
    let totals = Totals { files: summary.files, bytes: summary.bytes };
    assert_eq!(*recorder.found.lock().unwrap(), [totals]);
    assert_eq!(*recorder.sums.lock().unwrap(), (summary.bytes, summary.bytes));
    let files = recorder.files.lock().unwrap();
    assert_eq!(files.len(), 5);
    assert!(files.contains(&"deep/script".into()) && files.contains(&"large".into()));
}

#[test]
fn unverified_copies_are_copies_too() {
    let d = dirs();
    one_of_everything(&d.src);
    let recorder = Recorder::default();
    let opts = CopyOptions { verify: false, jobs: 1, ..CopyOptions::default() };
    copy_tree(&d.src, &d.dst, &opts, &recorder).unwrap();
    assert_eq!(describe(&d.dst), describe(&d.src));
    assert_eq!(recorder.sums.lock().unwrap().1, 0);
}

#[test]
fn many_small_files_arrive() {
    let d = dirs();
    for number in 0..1000 {
        let dir = d.src.join(format!("d{}", number % 17));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{number}")), vec![number as u8; number * 7]).unwrap();
    }
    assert_eq!(copy(&d.src, &d.dst).unwrap().files, 1000);
    assert_eq!(describe(&d.dst), describe(&d.src));
}

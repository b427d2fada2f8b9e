//! What a copy does when something is in its way: the rest goes on, the cause is named, nothing
//! temporary stays, nothing is lost.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is test code")]

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::trees::{Mounted, as_ordinary_user, copy, describe, in_own_mounts, incomplete, large, names};
use bivouac_stage::{Cause, CopyOptions, Progress, RestartedFile, StageError, copy_tree};
use bivouac_types::Errno;

fn dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("src")).unwrap();
    dir
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Does something once, when the first bytes were copied or verified.
struct Once<F: FnMut() + Send> {
    when_verifying: bool,
    run: Mutex<Option<F>>,
}

fn once<F: FnMut() + Send>(when_verifying: bool, run: F) -> Once<F> {
    Once { when_verifying, run: Mutex::new(Some(run)) }
}

impl<F: FnMut() + Send> Once<F> {
    fn now(&self) {
        if let Some(mut run) = self.run.lock().unwrap().take() {
            run();
        }
    }
}

impl<F: FnMut() + Send> Progress for Once<F> {
    fn copied(&self, _bytes: u64) {
        if !self.when_verifying {
            self.now();
        }
    }
    fn verified(&self, _bytes: u64) {
        if self.when_verifying {
            self.now();
        }
    }
}

#[test]
fn what_cannot_be_read_is_listed_and_the_rest_arrives() {
    if !as_ordinary_user("faults::what_cannot_be_read_is_listed_and_the_rest_arrives") {
        return;
    }
    let dir = dir();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(src.join("closed")).unwrap();
    for name in ["a", "secret", "z", "closed/file"] {
        fs::write(src.join(name), name).unwrap();
    }
    fs::hard_link(src.join("secret"), src.join("secret2")).unwrap();
    mode(&src.join("secret"), 0);
    mode(&src.join("closed"), 0);
    let (summary, failures) = incomplete(copy(&src, &dst));
    mode(&src.join("closed"), 0o700);
    assert_eq!(summary.files, 2);
    let paths: Vec<_> = failures.iter().map(|f| (f.path.clone(), f.errno())).collect();
    assert_eq!(
        paths,
        [
            (src.join("closed"), Some(Errno::EACCES)),
            (src.join("secret"), Some(Errno::EACCES)),
            (src.join("secret2"), None),
        ]
    );
    mode(&dst.join("closed"), 0o700);
    assert_eq!(names(&dst), ["", "a", "closed", "z"]);
}

#[test]
fn a_target_that_may_not_be_written_is_named() {
    if !as_ordinary_user("faults::a_target_that_may_not_be_written_is_named") {
        return;
    }
    let dir = dir();
    let (src, site) = (dir.path().join("src"), dir.path().join("site"));
    fs::create_dir_all(site.join("there/locked")).unwrap();
    fs::create_dir(src.join("locked")).unwrap();
    fs::write(src.join("free"), "x").unwrap();
    fs::write(src.join("locked/file"), "x").unwrap();
    mode(&site.join("there/locked"), 0o555);
    let (summary, failures) = incomplete(copy(&src, &site.join("there")));
    assert_eq!(summary.files, 1);
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].path, site.join("there/locked/file"));
    assert_eq!(failures[0].errno(), Some(Errno::EACCES));

    mode(&site, 0o555);
    let outcome = copy(&src, &site.join("new/er"));
    mode(&site, 0o755);
    let Err(StageError::Root(failure)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((failure.path.clone(), failure.errno()), (site.join("new"), Some(Errno::EACCES)));
    assert_eq!(names(&site), ["", "there", "there/free", "there/locked"]);
}

#[test]
fn read_only_directories_are_copied_by_their_owner() {
    if !as_ordinary_user("faults::read_only_directories_are_copied_by_their_owner") {
        return;
    }
    let dir = dir();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(src.join("sealed")).unwrap();
    fs::write(src.join("sealed/file"), "x").unwrap();
    mode(&src.join("sealed"), 0o555);
    mode(&src, 0o555);
    copy(&src, &dst).unwrap();
    assert_eq!(describe(&dst), describe(&src));
    for path in [&src, &dst] {
        mode(path, 0o700);
        mode(&path.join("sealed"), 0o700);
    }
}

#[test]
fn a_full_target_is_named_for_each_file_and_holds_what_fits() {
    if !in_own_mounts("faults::a_full_target_is_named_for_each_file_and_holds_what_fits") {
        return;
    }
    let dir = dir();
    let (src, small) = (dir.path().join("src"), dir.path().join("small"));
    fs::create_dir(&small).unwrap();
    let mounted = Mounted::new(&["-t", "tmpfs", "-o", "size=1m", "none"], &small);
    fs::write(src.join("fits"), "small").unwrap();
    fs::write(src.join("huge"), vec![7; 9 << 20]).unwrap();
    for target in [small.join("new"), small.join("new")] {
        let (summary, failures) = incomplete(copy(&src, &target));
        assert_eq!(summary.files, 1);
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].path, target.join("huge"));
        assert_eq!(failures[0].errno(), Some(Errno::ENOSPC));
        assert_eq!(names(&target), ["", "fits"]);
    }
    assert_eq!(names(&small), ["", "new", "new/fits"]);
    drop(mounted);
}

// S303.
#[test]
fn where_hard_links_do_not_reach_files_are_copied_once() {
    if !in_own_mounts("faults::where_hard_links_do_not_reach_files_are_copied_once") {
        return;
    }
    let dir = dir();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    fs::create_dir(src.join("sub")).unwrap();
    fs::write(src.join("first"), "contents").unwrap();
    fs::hard_link(src.join("first"), src.join("second")).unwrap();
    for name in ["third", "fourth", "fifth"] {
        fs::hard_link(src.join("first"), src.join("sub").join(name)).unwrap();
    }
    fs::create_dir(src.join("tub")).unwrap();
    fs::hard_link(src.join("first"), src.join("tub/sixth")).unwrap();
    fs::hard_link(src.join("first"), src.join("zeroth")).unwrap();
    fs::hard_link(src.join("first"), dir.path().join("outside")).unwrap();
    let elsewhere = ["sub", "tub"].map(|name| dst.join(name));
    elsewhere.iter().for_each(|at| fs::create_dir_all(at).unwrap());
    let mounted = elsewhere.each_ref().map(|at| Mounted::new(&["-t", "tmpfs", "none"], at));
    // Again: what is there already is replaced.
    for _ in 0..2 {
        let summary = copy(&src, &dst).unwrap();
        assert_eq!((summary.files, summary.hard_links), (3, 4));
        let links = |name: &str, links| {
            assert_eq!(fs::read_to_string(dst.join(name)).unwrap(), "contents", "{name}");
            assert_eq!(fs::metadata(dst.join(name)).unwrap().nlink(), links, "{name}");
        };
        for name in ["first", "second", "zeroth", "sub/third", "sub/fourth", "sub/fifth"] {
            links(name, 3);
        }
        links("tub/sixth", 1);
        assert!(names(&dst).iter().all(|name| !name.contains(".bivouac-")), "{:?}", names(&dst));
    }
    drop(mounted);
}

#[test]
fn a_name_that_the_target_cannot_have_is_named() {
    let dir = dir();
    let file = dir.path().join("src/file");
    fs::write(&file, "x").unwrap();
    let long = dir.path().join("n".repeat(256));
    for outcome in [copy(&file, &long), copy(&dir.path().join("src"), &long)] {
        let Err(StageError::Root(failure)) = outcome else { panic!("{outcome:?}") };
        assert_eq!((failure.path.clone(), failure.errno()), (long.clone(), Some(Errno::ENAMETOOLONG)));
        assert!(failure.to_string().ends_with("shorten the name"));
    }
    let longest = dir.path().join("n".repeat(255));
    copy(&file, &longest).unwrap();
    copy(&dir.path().join("src"), &dir.path().join("m".repeat(255))).unwrap();
    assert_eq!(fs::read_to_string(longest).unwrap(), "x");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

/// Does something whenever bytes were copied.
struct Always<F: Fn(usize) + Sync> {
    run: F,
    count: AtomicUsize,
}

impl<F: Fn(usize) + Sync> Progress for Always<F> {
    fn copied(&self, _bytes: u64) {
        (self.run)(self.count.fetch_add(1, Ordering::Relaxed));
    }
}

/// Copies a tree in which `change` is made to `victim` whenever a part of it was copied: it is not copied; and one in which
/// it is made once: the changed file is.
fn changed_while_copied(size: u64, change: impl Fn(&Path, usize) + Send + Sync) {
    for existing in [false, true] {
        let dir = dir();
        let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
        let victim = src.join("victim");
        large(&victim, size);
        if existing {
            fs::create_dir(&dst).unwrap();
            fs::write(dst.join("victim"), "old").unwrap();
        }
        let hook = Always { run: |count| change(&victim, count), count: AtomicUsize::new(0) };
        let opts = CopyOptions { jobs: 2, ..CopyOptions::default() };
        let (_, failures) = incomplete(copy_tree(&src, &dst, &opts, &hook));
        assert_eq!(failures.len(), 1);
        assert!(matches!(failures[0].cause, Cause::Changed), "{failures:?}");
        assert_eq!(failures[0].path, victim.canonicalize().unwrap());
        if existing {
            assert_eq!(fs::read_to_string(dst.join("victim")).unwrap(), "old");
        }
        assert_eq!(fs::read_dir(&dst).unwrap().count(), usize::from(existing));

        large(&victim, size);
        copy_tree(&src, &dst, &opts, &once(false, || change(&victim, 0))).unwrap();
        assert_eq!(describe(&dst).get(&b"victim"[..]), describe(&src).get(&b"victim"[..]));
        assert_eq!(fs::read_dir(&dst).unwrap().count(), 1);
    }
}

/// Adds up what is told, and changes a file once.
struct Sums<F: FnMut() + Send> {
    change: Once<F>,
    copied: AtomicU64,
    verified: AtomicU64,
    anew: AtomicUsize,
}

impl<F: FnMut() + Send> Progress for Sums<F> {
    fn copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed);
        self.change.copied(bytes);
    }
    fn verified(&self, bytes: u64) {
        self.verified.fetch_add(bytes, Ordering::Relaxed);
        self.change.verified(bytes);
    }
    fn restarted(&self, told: RestartedFile) {
        self.copied.fetch_sub(told.copied, Ordering::Relaxed);
        self.verified.fetch_sub(told.verified, Ordering::Relaxed);
        self.anew.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_file_that_is_copied_anew_counts_once() {
    for when_verifying in [false, true] {
        let dir = dir();
        let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
        let victim = src.join("victim");
        large(&victim, 9 << 20);
        let change = once(when_verifying, || {
            OpenOptions::new().append(true).open(&victim).unwrap().write_all(b"more").unwrap();
        });
        let sums = Sums { change, copied: 0.into(), verified: 0.into(), anew: 0.into() };
        copy_tree(&src, &dst, &CopyOptions { jobs: 2, ..CopyOptions::default() }, &sums).unwrap();
        let told = [&sums.copied, &sums.verified].map(|sum| sum.load(Ordering::Relaxed));
        let len = fs::metadata(&victim).unwrap().len();
        assert_eq!((told, sums.anew.load(Ordering::Relaxed)), ([len; 2], 1));
    }
}

// S182.
#[test]
fn a_source_that_changes_is_tried_again_and_then_fails_by_name() {
    for size in [9 << 20, 900_000] {
        changed_while_copied(size, |victim, _| {
            OpenOptions::new().append(true).open(victim).unwrap().write_all(b"more").unwrap();
        });
    }
    changed_while_copied(70 << 20, |victim, count| {
        let file = OpenOptions::new().write(true).open(victim).unwrap();
        file.set_len((40 << 20) + count as u64).unwrap();
    });
    changed_while_copied(9 << 20, |victim, count| {
        let other = victim.with_file_name(format!("../other{count}"));
        fs::write(&other, vec![7; 5 << 20]).unwrap();
        fs::rename(other, victim).unwrap();
    });
}

#[test]
fn bytes_that_the_target_changed_are_noticed() {
    let dir = dir();
    let (src, dst) = (dir.path().join("src/file"), dir.path().join("dst"));
    fs::write(&src, vec![1; 150 << 20]).unwrap();
    let spoil = || {
        let temporary = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let found =
            temporary.filter(|path| path.display().to_string().contains(".bivouac-")).collect::<Vec<_>>();
        let file = OpenOptions::new().write(true).open(&found[0]).unwrap();
        file.write_all_at(b"!", (149 << 20) + 5).unwrap();
    };
    let opts = CopyOptions { jobs: 1, ..CopyOptions::default() };
    let (_, failures) = incomplete(copy_tree(&src, &dst, &opts, &once(true, spoil)));
    assert!(matches!(failures[0].cause, Cause::Differs { offset } if offset == 148 << 20), "{failures:?}");
    assert_eq!(failures[0].path, dst);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn cancelling_leaves_nothing_temporary() {
    for verifying in [false, true] {
        for existing in [false, true] {
            let dir = dir();
            let (src, dst) = (dir.path().join("src"), dir.path().join("made/dst"));
            (0..50).for_each(|number| fs::write(src.join(format!("small{number}")), "x").unwrap());
            large(&src.join("large"), 300 << 20);
            if existing {
                fs::create_dir_all(&dst).unwrap();
            }
            let opts = CopyOptions { jobs: 2, ..CopyOptions::default() };
            let cancel = once(verifying, || opts.cancel.store(true, Ordering::Relaxed));
            let outcome = copy_tree(&src, &dst, &opts, &cancel);
            assert!(matches!(outcome, Err(StageError::Cancelled)), "{outcome:?}");
            let left = names(dir.path());
            assert!(left.iter().all(|name| !name.contains(".bivouac-")), "{left:?}");
            assert_eq!(dst.exists(), existing);
            assert_eq!(left.contains(&"made".to_owned()), existing);
            assert_eq!(fs::read_dir(&src).unwrap().count(), 51);
        }
    }
}

#[test]
fn a_cancelled_copy_does_not_begin() {
    let dir = dir();
    let opts = CopyOptions::default();
    opts.cancel.store(true, Ordering::Relaxed);
    let outcome =
        copy_tree(&dir.path().join("src"), &dir.path().join("dst"), &opts, &bivouac_stage::NoProgress);
    assert!(matches!(outcome, Err(StageError::Cancelled)));
    assert_eq!(names(dir.path()), ["", "src"]);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let dir = dir();
    let (src, file) = (dir.path().join("src"), dir.path().join("src/file"));
    fs::write(&file, "x").unwrap();
    let refusal = |src: PathBuf, dst: PathBuf| match copy(&src, &dst) {
        Err(StageError::Root(failure)) => failure.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refusal(src.clone(), src.join("a/b")).contains("would be inside it"));
    assert!(refusal(src.clone(), src.clone()).contains("is the source"));
    assert!(refusal(file.clone(), file.clone()).contains("is the source"));
    assert!(refusal(file.clone(), src.clone()).contains("is a directory; name the file"));
    assert!(refusal(src.clone(), file.clone()).contains("is inside the source"));
    assert!(refusal(dir.path().join("no"), src.clone()).contains("no such file"));
    assert!(refusal("/dev/null".into(), src.join("null")).contains("is a socket or a device"));
    fs::write(dir.path().join("other"), "x").unwrap();
    assert!(refusal(src.clone(), dir.path().join("other")).contains("is not a directory"));
    assert_eq!(names(dir.path()), ["", "other", "src", "src/file"]);
}

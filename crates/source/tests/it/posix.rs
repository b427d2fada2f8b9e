//! A directory tree as a source, and the decorators around it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bivouac_source::{
    Attrs, CachedFd, Cause, FailingSource, LimitedSource, PosixSource, Precondition, PutOutcome, Source,
    SourceResult, TEMPORARY, Upload, conformance,
};
use tempfile::TempDir;

fn made() -> (PosixSource, TempDir) {
    let dir = TempDir::new().unwrap();
    (PosixSource::open(dir.path()).unwrap(), dir)
}

#[test]
fn a_tree_conforms() {
    conformance::source(made);
}

/// Asked for several things at once.
fn slow() -> (PosixSource, TempDir) {
    let (source, dir) = made();
    (source.with_parallel_requests(), dir)
}

#[test]
fn a_slow_tree_conforms() {
    conformance::source(slow);
}

#[test]
fn a_limited_and_a_failing_source_conform() {
    conformance::source(|| {
        let (source, dir) = made();
        let limited = LimitedSource::new(source, 1 << 40, Duration::from_micros(10));
        (FailingSource::new(limited), dir)
    });
}

fn put(source: &dyn Source, path: &[u8], content: &[u8]) -> SourceResult<PutOutcome> {
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    let upload = source.begin(path, content.len() as u64, &attrs)?;
    let piece = source.put(&upload, 0, content)?;
    source.verify(&upload, std::slice::from_ref(&piece))?;
    source.commit(&upload, &[piece], &attrs, &Precondition::Anything)
}

#[test]
fn links_lead_nowhere_out_of_the_tree() {
    let (source, dir) = made();
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("secret"), "s").unwrap();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), dir.path().join("file")).unwrap();
    assert!(source.list(b"out").is_err() && source.stat(b"out/secret").is_err());
    assert!(put(&source, b"out/new", b"x").is_err());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    let link = source.stat(b"file").unwrap();
    assert_eq!(source.read(b"file", &link.version, 0, &mut [0; 9]).unwrap_err().cause(), Cause::WrongKind);
}

#[test]
fn sparse_files_stay_sparse() {
    let (source, dir) = made();
    let mut content = vec![0; 8 << 20];
    content[5 << 20] = 1;
    put(&source, b"sparse", &content).unwrap();
    let path = dir.path().join("sparse");
    assert_eq!(fs::read(&path).unwrap(), content);
    assert!(fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20);
}

/// Each further way to it would be a request to the storage.
#[test]
fn an_upload_is_opened_once() {
    let (source, dir) = made();
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    let upload = source.begin(b"f", 3, &attrs).unwrap();
    fs::rename(dir.path().join(&upload.token), dir.path().join("aside")).unwrap();
    let piece = source.put(&upload, 0, b"abc").unwrap();
    source.verify(&upload, std::slice::from_ref(&piece)).unwrap();
    assert_eq!(fs::read(dir.path().join("aside")).unwrap(), b"abc");
    // Nothing but its name leads to its place, and others know it only by that.
    let refused = source.commit(&upload, &[piece], &attrs, &Precondition::Absent).unwrap_err();
    assert_eq!(refused.cause(), Cause::Changed, "{refused}");
    let known = Upload { opened: CachedFd::default(), ..upload };
    assert_eq!(source.put(&known, 0, b"abc").unwrap_err().cause(), Cause::NotFound);
}

#[test]
fn what_is_half_done_is_not_listed_and_what_is_damaged_not_taken() {
    let (source, dir) = made();
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    let upload = source.begin(b"f", 3, &attrs).unwrap();
    let piece = source.put(&upload, 0, b"abc").unwrap();
    assert!(upload.token.starts_with(TEMPORARY));
    assert_eq!(source.list(b"").unwrap(), []);
    fs::write(dir.path().join(&upload.token), "abX").unwrap();
    let refused = source.verify(&upload, &[piece]).unwrap_err();
    assert!(refused.to_string().contains("read back differently"), "{refused}");
    fs::write(dir.path().join(&upload.token), "ab").unwrap();
    let refused = source.commit(&upload, &[], &attrs, &Precondition::Absent).unwrap_err();
    assert!(refused.to_string().contains("is 2 bytes"), "{refused}");
    assert!(!dir.path().join("f").exists());
}

/// S261: also when the source is asked for other things meanwhile.
#[test]
fn another_directory_in_the_place_of_the_root_is_not_taken_for_it() {
    for is_slow in [false, true] {
        let around = TempDir::new().unwrap();
        let (root, away) = (around.path().join("root"), around.path().join("away"));
        fs::create_dir(&root).unwrap();
        let source = PosixSource::open(&root).unwrap();
        let source = if is_slow { source.with_parallel_requests() } else { source };
        let attrs = Attrs { perm: 0o700, ..Attrs::default() };
        let begun = source.begin(b"f", 0, &attrs).unwrap();
        fs::rename(&root, &away).unwrap();
        assert_eq!(source.check().unwrap_err().cause(), Cause::Lost);
        fs::create_dir(&root).unwrap();
        let cause = |outcome: SourceResult<PutOutcome>| outcome.unwrap_err().cause();
        assert_eq!(source.check().unwrap_err().cause(), Cause::Lost);
        assert_eq!(cause(put(&source, b"g", b"x")), Cause::Lost);
        assert_eq!(cause(source.commit(&begun, &[], &attrs, &Precondition::Absent)), Cause::Lost);
        assert_eq!(cause(source.put_open_dir(b"d", &attrs)), Cause::Lost);
        assert_eq!(cause(source.put_dir_times(b"d", &attrs)), Cause::Lost);
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        // What was begun while the root was looked at has gone again, and nothing has taken a place.
        source.abort(&begun).unwrap();
        let files = fs::read_dir(&away).unwrap().map(|entry| entry.unwrap());
        assert_eq!(files.filter(|entry| entry.file_type().unwrap().is_file()).count(), 0);
        fs::remove_dir(&root).unwrap();
        fs::rename(&away, &root).unwrap();
        put(&source, b"f", b"x").unwrap();
    }
}

#[test]
fn a_name_that_is_not_taken_leaves_nothing_beside() {
    for (source, dir) in [made(), slow()] {
        let refused = source.begin(&[b'n'; 300], 3, &Attrs::default()).unwrap_err();
        assert_eq!(refused.cause(), Cause::BadName);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn an_upload_is_for_its_owner_alone_until_it_has_the_permissions_of_its_file() {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for (source, dir) in [made(), slow()] {
        let mode_of = |name: &str| fs::metadata(dir.path().join(name)).unwrap().mode() & 0o7777;
        let xattrs = vec![(b"user.note".to_vec(), b"value".to_vec())];
        let ours = Attrs { uid, gid, ..Attrs::default() };
        let noted = Attrs { perm: 0o640, xattrs: xattrs.clone(), ..ours.clone() };
        let modes = [0o644, 0o4755, 0o444].map(|perm| Attrs { perm, ..ours.clone() });
        for attrs in modes.into_iter().chain([noted]) {
            let upload = source.begin(b"f", 1, &attrs).unwrap();
            assert_eq!(mode_of(&upload.token), 0o600, "{attrs:?}");
            let piece = source.put(&upload, 0, b"x").unwrap();
            source.verify(&upload, std::slice::from_ref(&piece)).unwrap();
            let kept = source.commit(&upload, &[piece], &attrs, &Precondition::Anything).unwrap();
            let there = source.stat(b"f").unwrap();
            assert_eq!((there.attrs.perm, there.version, kept.lost), (attrs.perm, kept.version, vec![]));
            assert_eq!((there.attrs.xattrs, there.attrs.mtime), (attrs.xattrs, attrs.mtime));
        }
    }
}

/// S263.
#[test]
fn a_directory_that_is_made_for_more_has_all_but_its_times() {
    for (source, dir) in [made(), slow()] {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let time = bivouac_types::Timestamp { secs: 1_000, nanos: 5 };
        let attrs = Attrs { perm: 0o1775, uid, gid, mtime: time, atime: time, ..Attrs::default() };
        let plain = Attrs { perm: 0o755, ..attrs.clone() };
        let meta = |name: &str| fs::metadata(dir.path().join(name)).unwrap();
        for (name, attrs) in [("sticky", &attrs), ("plain", &plain)] {
            let kept = source.put_open_dir(name.as_bytes(), attrs).unwrap();
            assert_eq!(kept.version.tag, source.stat(name.as_bytes()).unwrap().version.tag);
            assert_eq!(meta(name).mode() & 0o7777, attrs.perm);
            fs::write(dir.path().join(name).join("file"), "").unwrap();
            let kept = source.put_dir_times(name.as_bytes(), attrs).unwrap();
            assert_eq!((meta(name).mtime(), meta(name).mtime_nsec()), (1_000, 5));
            assert_eq!(kept.version, source.stat(name.as_bytes()).unwrap().version);
        }
        // What it has got there stays; one that has gone there is made again as it is here.
        fs::set_permissions(dir.path().join("plain"), fs::Permissions::from_mode(0o700)).unwrap();
        source.put_open_dir(b"sticky", &plain).unwrap();
        source.put_dir_times(b"plain", &plain).unwrap();
        source.put_dir_times(b"gone", &attrs).unwrap();
        let modes = ["sticky", "plain", "gone"].map(|name| meta(name).mode() & 0o7777);
        assert_eq!(modes, [0o755, 0o700, 0o1775]);
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(source.put_dir_times(b"file", &plain).unwrap_err().cause(), Cause::WrongKind);
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_does_not_hang() {
    let (source, dir) = made();
    let old = put(&source, b"f", b"x").unwrap();
    fs::remove_file(dir.path().join("f")).unwrap();
    let path = dir.path().join("f");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    assert!(source.read(b"f", &old.version, 0, &mut [0; 1]).is_err());
    assert_eq!(source.stat(b"f").unwrap().kind, bivouac_types::mode::FIFO);
}

#[test]
fn modes_and_attributes_are_those_of_the_file() {
    let (source, dir) = made();
    put(&source, b"f", b"x").unwrap();
    let path: &Path = &dir.path().join("f");
    fs::set_permissions(path, fs::Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(source.stat(b"f").unwrap().attrs.perm, 0o4751);
    fs::hard_link(path, dir.path().join("g")).unwrap();
    assert_eq!(source.stat(b"g").unwrap().links, 2);
}

#[test]
fn a_limited_source_takes_its_time() {
    let (source, _dir) = made();
    let limited = LimitedSource::new(source, 100 << 20, Duration::ZERO);
    let begun = Instant::now();
    put(&limited, b"f", &vec![1; 10 << 20]).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(99), "10 MiB at 100 MiB/s take a tenth of a second");
}

#[test]
fn a_failing_source_fails_when_told_and_counts() {
    let (source, _dir) = made();
    let failing = FailingSource::new(source);
    let kept = put(&failing, b"f", b"content").unwrap();
    failing.fail(1, Cause::Full);
    assert_eq!(failing.read(b"f", &kept.version, 0, &mut [0; 4]), Ok(4));
    assert_eq!(put(&failing, b"g", b"x").unwrap_err().cause(), Cause::Full);
    failing.heal();
    assert_eq!(failing.bytes_read(), 4);
    put(&failing, b"g", b"x").unwrap();
}

/// What somebody else puts in a file's place, again and again until all is over: how large each was, and what went.
fn others(dir: &Path, is_over: &AtomicBool) -> (Vec<u64>, Vec<u64>) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let (mine, place) = (dir.join("mine"), dir.join("f"));
    let (mut put, mut gone) = (Vec::new(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        let size = 2 * put.len() as u64 + 2;
        fs::File::create(&mine).unwrap().set_len(size).unwrap();
        renameat_with(CWD, &mine, CWD, &place, RenameFlags::EXCHANGE).unwrap();
        put.push(size);
        gone.push(fs::metadata(&mine).unwrap().len());
        fs::remove_file(&mine).unwrap();
    }
    (put, gone)
}

/// S163: also in the moment between the look and the change. Each version is known by its size.
#[test]
fn what_takes_a_file_s_place_in_the_last_moment_is_not_overwritten() {
    const ROUNDS: u64 = 2000;
    let (source, dir) = slow();
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    fs::write(dir.path().join("f"), "").unwrap();
    let (mut gone, mut written, is_over) = (HashSet::new(), Vec::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scopeguard::defer! { is_over.store(true, Ordering::Relaxed) }
        let others = scope.spawn(|| others(dir.path(), &is_over));
        for size in (0..ROUNDS).map(|round| 2 * round + 1) {
            let upload = source.begin(b"f", size, &attrs).unwrap();
            let seen = source.stat(b"f").unwrap().version;
            match source.commit(&upload, &[], &attrs, &Precondition::Version(seen.clone())) {
                Ok(_) => {
                    gone.insert(seen.size);
                    written.push(size);
                }
                Err(error) => {
                    assert_eq!(error.cause(), Cause::Changed, "{error}");
                    source.abort(&upload).unwrap();
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let (put, went) = others.join().unwrap();
        written.extend(put);
        gone.extend(went);
    });
    // What is still there, also what could not get its place back.
    gone.extend(fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()));
    let unseen: Vec<u64> = written.into_iter().filter(|size| !gone.contains(size)).collect();
    assert_eq!(unseen, [0; 0], "these went without having been seen");
}

#[test]
fn who_was_killed_while_taking_a_place_goes_on_or_gives_it_back() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    let (source, dir) = made();
    let at = |name: &str| dir.path().join(name);
    for (is_placed, is_as_seen) in [(false, true), (true, true), (true, false)] {
        fs::write(at("f"), "seen").unwrap();
        let seen = source.stat(b"f").unwrap().version;
        let upload = source.begin(b"f", 4, &attrs).unwrap();
        source.put(&upload, 0, b"ours").unwrap();
        if !is_as_seen {
            fs::write(at("f"), "theirs").unwrap();
        }
        if is_placed {
            renameat_with(CWD, at(&upload.token), CWD, at("f"), RenameFlags::EXCHANGE).unwrap();
        }
        let resumed = source.resume(&upload, &Precondition::Version(seen)).unwrap();
        let expected = match (is_placed, is_as_seen) {
            (true, true) => "ours",
            (true, false) => "theirs",
            _ => "seen",
        };
        assert_eq!(fs::read(at("f")).unwrap(), expected.as_bytes());
        assert_eq!(resumed.is_some(), is_placed && is_as_seen, "{expected}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stays beside");
    }
}

/// Neither at once nor after a kill between the exchange and its completion.
#[test]
fn a_directory_is_not_displaced_by_a_file() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    let (source, dir) = made();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/theirs"), "theirs").unwrap();
    let expect = Precondition::Version(source.stat(b"d").unwrap().version);
    let begin = || {
        let upload = source.begin(b"d", 4, &attrs).unwrap();
        source.put(&upload, 0, b"ours").unwrap();
        upload
    };
    let upload = begin();
    let error = source.commit(&upload, &[], &attrs, &expect).unwrap_err();
    assert_eq!(error.cause(), Cause::WrongKind, "{error}");
    source.abort(&upload).unwrap();
    let upload = begin();
    renameat_with(CWD, at(&upload.token), CWD, at("d"), RenameFlags::EXCHANGE).unwrap();
    assert!(source.resume(&upload, &expect).unwrap().is_none());
    assert_eq!(fs::read(at("d/theirs")).unwrap(), b"theirs");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stays beside");
}

#[test]
fn what_has_come_under_the_name_of_an_upload_is_not_thrown_away_with_it() {
    let (source, dir) = made();
    let upload = source.begin(b"f", 1, &Attrs::default()).unwrap();
    fs::write(dir.path().join("theirs"), "theirs").unwrap();
    fs::rename(dir.path().join("theirs"), dir.path().join(&upload.token)).unwrap();
    source.abort(&upload).unwrap();
    assert_eq!(fs::read(dir.path().join(&upload.token)).unwrap(), b"theirs");
}

/// A file that nobody but its maker knows of stays where it is found; what is written down is thrown away.
#[test]
fn what_was_left_by_a_kill_goes_and_nothing_of_others() {
    let (source, dir) = made();
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    let theirs = source.begin(b"f", 3, &attrs).unwrap();
    let planned = source.plan(b"f", 3).unwrap();
    // Killed before it was written down that it has been started.
    source.start(planned.clone(), &attrs).unwrap();
    let link = source.plan(b"l", 2).unwrap();
    source.start_link(link.clone(), b"to").unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    for left in [planned, link] {
        assert_eq!(source.resume(&left, &Precondition::Absent).unwrap(), None);
    }
    let there: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(there, [theirs.token.as_str()]);
}

/// Killed between putting aside and removing.
#[test]
fn a_removal_that_was_cut_off_is_finished_or_taken_back() {
    let (source, dir) = made();
    let put_aside = |bytes: &str| {
        fs::write(dir.path().join("f"), bytes).unwrap();
        let version = source.stat(b"f").unwrap().version;
        let aside = format!("{TEMPORARY}gone-{:016x}", xxhash_rust::xxh3::xxh3_64(b"f"));
        fs::rename(dir.path().join("f"), dir.path().join(aside)).unwrap();
        version
    };
    let version = put_aside("seen");
    source.finish_removal(b"f", &version).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let other = put_aside("another");
    let refused = source.finish_removal(b"f", &version).unwrap_err();
    assert_eq!((refused.cause(), source.stat(b"f").unwrap().version), (Cause::Changed, other));
    source.finish_removal(b"f", &version).unwrap();
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"another");
}

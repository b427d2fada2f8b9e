//! Jobs: what an interruption leaves, what resuming does, what cancelling removes, what changed since.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is test code")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::trees::{Mounted, describe, in_own_mounts, names, one_of_everything};
use bivouac_stage::jobs::{
    ChangeFilter, Direction, JobOutcome, JobSpec, JobState, Jobs, LockedJob, RunOptions,
};
use bivouac_stage::{Line, NoProgress, ObjectOutcome, Progress, StageError, Summary, Totals, Transfer};
use bivouac_types::Errno;

/// A directory that stands for a mounted formation, one for site storage, and the jobs.
struct Site {
    dir: tempfile::TempDir,
    jobs: Jobs,
}

fn site() -> Site {
    // Memory: a disk would have to be waited for, with all that others write to it.
    let place = ["/dev/shm", "/tmp"].into_iter().find(|place| Path::new(place).is_dir()).unwrap();
    let dir = tempfile::Builder::new().prefix("bvk").tempdir_in(place).unwrap();
    let root = dir.path().canonicalize().unwrap();
    fs::create_dir(root.join("mount")).unwrap();
    fs::create_dir(root.join("src")).unwrap();
    Site { jobs: Jobs::at(root.join("jobs")), dir }
}

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn conditions(&self) -> RunOptions {
        RunOptions { mounts: vec![self.path("mount")], checks_room: true, cancel: Arc::default() }
    }

    /// `src` into the formation as `dst`.
    fn order_in(&self, dst: &str) -> JobSpec {
        JobSpec::new(Direction::In, vec![Transfer { src: self.path("src"), dst: dst.into() }])
    }

    /// `src` of the formation out to `dst`.
    fn order_out(&self, src: &str, dst: &str) -> JobSpec {
        JobSpec::new(Direction::Out, vec![Transfer { src: src.into(), dst: self.path(dst) }])
    }

    fn run(&self, order: JobSpec) -> JobOutcome {
        self.jobs.create(order).unwrap().run(&self.conditions(), &NoProgress).unwrap()
    }

    /// A job that nobody works on.
    fn take(&self, number: u64) -> LockedJob {
        at_rest(|| self.jobs.take(number).unwrap())
    }

    /// How a job that nobody works on ended.
    fn stage(&self, number: u64) -> JobState {
        let find = || self.jobs.list().into_iter().find(|job| job.number == number).unwrap().stage;
        at_rest(|| Some(find()).filter(|stage| *stage != JobState::Running))
    }
}

/// What there is when nobody holds a job's lock. The processes that other tests start hold it for a moment, until they
/// are the programs that they are to be.
fn at_rest<T>(mut find: impl FnMut() -> Option<T>) -> T {
    loop {
        match find() {
            Some(found) => return found,
            None => std::thread::yield_now(),
        }
    }
}

fn complete(ended: JobOutcome) -> Summary {
    assert!(ended.is_complete(), "{ended:?}");
    ended.transfers.into_iter().next().unwrap().1.unwrap()
}

/// Sets the flag when so much was copied, as `counts` counts what was copied at once, in bytes.
struct StopAt {
    cancel: Arc<AtomicBool>,
    left: AtomicU64,
    counts: fn(u64) -> u64,
}

impl Progress for StopAt {
    fn copied(&self, bytes: u64) {
        let (before, more) = (self.left.load(Ordering::Relaxed), (self.counts)(bytes));
        self.left.store(before.saturating_sub(more), Ordering::Relaxed);
        self.cancel.fetch_or(before <= more, Ordering::Relaxed);
    }
}

/// Works on a job until so many bytes were copied.
fn interrupt(site: &Site, held: LockedJob, bytes: u64) {
    interrupt_by(site, held, bytes, |bytes| bytes);
}

/// Works on a job until so much was copied.
fn interrupt_by(site: &Site, held: LockedJob, much: u64, counts: fn(u64) -> u64) {
    let conditions = site.conditions();
    let stop = StopAt { cancel: Arc::clone(&conditions.cancel), left: much.into(), counts };
    let ended = held.run(&conditions, &stop).unwrap();
    assert!(ended.is_cancelled() && !ended.is_complete(), "{ended:?}");
}

/// Counts what is read at the source.
#[derive(Default)]
struct Count {
    already: AtomicU64,
    copied: AtomicU64,
}

impl Progress for Count {
    fn already(&self, totals: Totals) {
        self.already.fetch_add(totals.bytes, Ordering::Relaxed);
    }
    fn copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// That two trees are equal, but for the named objects.
fn same(got: &Path, expected: &Path, but: &[&str]) {
    let [mut got, mut expected] = [got, expected].map(describe);
    for name in but {
        got.remove(name.as_bytes());
        expected.remove(name.as_bytes());
    }
    let names = got.keys().chain(expected.keys());
    let differ: Vec<_> = names.filter(|name| got.get(*name) != expected.get(*name)).collect();
    let shown: Vec<_> = differ
        .iter()
        .take(3)
        .map(|n| (n.escape_ascii().to_string(), got.get(*n), expected.get(*n)))
        .collect();
    assert!(differ.is_empty(), "{} differ: {shown:?}", differ.len());
}

/// 500 small files in 7 directories, and a file of 2 parts.
fn many(root: &Path) {
    for number in 0..500 {
        let dir = root.join(format!("d{}", number % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{number}")), vec![number as u8; 3000 + number]).unwrap();
    }
    fs::write(root.join("large"), vec![9; 18 << 20]).unwrap();
}

fn temporary_path(root: &Path) -> Vec<String> {
    names(root).into_iter().filter(|name| name.contains(".bivouac-")).collect()
}

// S180.
#[test]
fn a_job_of_a_formation_that_is_gone_brings_nothing_back() {
    let site = site();
    let gone = site.path("formation");
    let failed = Jobs::at(gone.join("stage")).create(site.order_in("a")).map(|_| ()).unwrap_err();
    assert!(failed.to_string().contains("(ENOENT)"), "{failed}");
    assert!(!gone.exists());
}

#[test]
fn a_job_copies_everything_and_its_manifest_says_so() {
    let site = site();
    one_of_everything(&site.path("src"));
    let mut order = site.order_in("a/data");
    order.manifest = Some(site.path("manifest"));
    let summary = complete(site.run(order));
    same(&site.path("mount/a/data"), &site.path("src"), &[]);
    assert_eq!(summary.files, 5);
    assert_eq!(site.stage(1), JobState::Done);
    let text = fs::read_to_string(site.path("manifest")).unwrap();
    assert!(
        text.starts_with("#bivouac-manifest\t1\n#state\tkind") && text.ends_with("#end\tdone\n"),
        "{text}"
    );
    let lines: Vec<Line> = text.lines().filter_map(Line::decode).collect();
    assert_eq!(lines.len(), describe(&site.path("src")).len());
    for line in lines {
        let at = bivouac_below(&site.path("mount/a/data"), &line.name);
        let meta = at.symlink_metadata().unwrap();
        assert_eq!(line.state, ObjectOutcome::Done);
        assert_eq!(
            (line.mtime, meta.mode() & 0o7777),
            ((meta.mtime(), meta.mtime_nsec()), line.mode),
            "{at:?}"
        );
        if meta.is_file() {
            assert_eq!(
                line.digest,
                Some(blake3::hash(&fs::read(&at).unwrap())),
                "b3sum can check it: {at:?}"
            );
            assert_eq!(line.size, meta.len());
        }
    }
}

fn bivouac_below(root: &Path, name: &Path) -> PathBuf {
    if name.as_os_str().is_empty() { root.to_owned() } else { root.join(name) }
}

// S181, S184.
#[test]
fn resuming_does_only_what_is_missing() {
    for existing in [false, true] {
        let site = site();
        many(&site.path("src"));
        if existing {
            fs::create_dir_all(site.path("mount/data/d1")).unwrap();
            fs::write(site.path("mount/data/d1/own"), "stays").unwrap();
        }
        interrupt(&site, site.jobs.create(site.order_in("data")).unwrap(), 14 << 20);
        assert_eq!(site.stage(1), JobState::Interrupted);
        assert_eq!(site.path("mount/data").exists(), existing, "nothing half-written has its name");
        let count = Count::default();
        let ended = site.take(1).run(&site.conditions(), &count).unwrap();
        let summary = complete(ended);
        assert_eq!(summary.files, 501);
        let [already, copied] = [&count.already, &count.copied].map(|sum| sum.load(Ordering::Relaxed));
        let total: u64 = (0..500).map(|number| 3000 + number).sum::<u64>() + (18 << 20);
        assert_eq!(already + copied, total);
        assert_eq!(summary.already.bytes, already);
        same(&site.path("mount/data"), &site.path("src"), if existing { &["", "d1", "d1/own"] } else { &[] });
        assert_eq!(site.path("mount/data/d1/own").exists(), existing);
        assert_eq!(temporary_path(&site.path("mount")), [""; 0]);
        assert_eq!(site.stage(1), JobState::Done);
    }
}

/// Another job has made the target meanwhile, or the source of what was begun is gone: no draft is left of a job that is done.
#[test]
fn a_job_that_is_done_leaves_no_draft() {
    let site = site();
    many(&site.path("src"));
    interrupt(&site, site.jobs.create(site.order_in("data")).unwrap(), 14 << 20);
    complete(site.run(site.order_in("data")));
    assert!(!temporary_path(&site.path("mount")).is_empty());
    complete(site.take(1).run(&site.conditions(), &NoProgress).unwrap());
    assert_eq!(temporary_path(&site.path("mount")), [""; 0]);
    same(&site.path("mount/data"), &site.path("src"), &[]);

    fs::write(site.path("src/late"), vec![7; 96 << 20]).unwrap();
    interrupt(&site, site.jobs.create(site.order_in("data")).unwrap(), 30 << 20);
    assert!(
        temporary_path(&site.path("mount")).iter().any(|name| name.contains(".late.")),
        "the directory was there"
    );
    fs::remove_file(site.path("src/late")).unwrap();
    complete(site.take(3).run(&site.conditions(), &NoProgress).unwrap());
    assert_eq!(temporary_path(&site.path("mount")), [""; 0]);
    assert_eq!(site.stage(3), JobState::Done);
}

/// Changes one byte of a file, which keeps its number and size.
fn damage(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1000).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 1000).unwrap();
}

// S350.
#[test]
fn what_was_copied_before_is_compared_as_well() {
    for verify in [true, false] {
        let site = site();
        many(&site.path("src"));
        fs::create_dir_all(site.path("mount/data/d1")).unwrap();
        fs::create_dir_all(site.path("mount/data/d2")).unwrap();
        let mut order = site.order_in("data");
        order.verify = verify;
        // Small files alone: on a busy machine the large one may be copied before any of them.
        interrupt_by(&site, site.jobs.create(order).unwrap(), 300, |bytes| u64::from(bytes < 9000));
        let done = fs::read_to_string(site.path("jobs/1/log")).unwrap();
        let small = done.lines().filter_map(Line::decode).filter(|line| line.size > 1000 && line.size < 9000);
        let damaged: Vec<Line> = small.step_by(40).collect();
        assert!(!damaged.is_empty(), "files are in place: {}", done.lines().count());
        damaged.iter().for_each(|line| damage(&site.path("mount/data").join(&line.name)));
        let summary = complete(site.take(1).run(&site.conditions(), &NoProgress).unwrap());
        assert_eq!((summary.files, summary.verified), (501, if verify { 501 } else { 0 }));
        let differs = |line: &&Line| {
            fs::read(site.path("mount/data").join(&line.name)).unwrap()
                != fs::read(site.path("src").join(&line.name)).unwrap()
        };
        assert_eq!(damaged.iter().filter(differs).count(), if verify { 0 } else { damaged.len() });
    }
}

// S351.
#[test]
fn what_is_not_what_was_staged_does_not_go_out() {
    let site = site();
    many(&site.path("src"));
    fs::hard_link(site.path("src/d1/f1"), site.path("src/d3/link")).unwrap();
    complete(site.run(site.order_in("data")));
    // A bit that changes by itself leaves the time as it is; here what is written down is changed instead.
    let log = site.path("jobs/1/log");
    let altered: Vec<String> = ["d1/f1", "d2/f2", "large"].map(str::to_owned).to_vec();
    let wrong = |line: &str| {
        let Some(known) = Line::decode(line) else { return line.to_owned() };
        let is_meant =
            altered.iter().any(|name| Path::new(name) == known.name) || known.name.ends_with("link");
        let digest = if is_meant { Some(blake3::hash(b"other")) } else { known.digest };
        Line { digest, ..known }.encode().trim_end_matches('\n').to_owned()
    };
    let text: Vec<String> = fs::read_to_string(&log).unwrap().lines().map(wrong).collect();
    fs::write(&log, text.join("\n") + "\n").unwrap();
    let out = |verify, dst: &str| {
        let mut order = site.order_out("data", dst);
        order.verify = verify;
        site.run(order)
    };
    let failed = |ended: &JobOutcome| -> Vec<String> {
        let Err(StageError::Incomplete { failures, .. }) = &ended.transfers[0].1 else { return Vec::new() };
        assert!(
            failures.iter().all(
                |f| f.to_string().contains("holds other bytes") || f.to_string().contains("another name")
            )
        );
        failures
            .iter()
            .map(|f| f.path.strip_prefix(site.path("mount/data")).unwrap().display().to_string())
            .collect()
    };
    let ended = out(true, "out");
    let (kept, mut names) = (failed(&ended), altered.clone());
    names.insert(1, "d3/link".to_owned());
    names.sort();
    assert_eq!(kept, names);
    assert!(
        names.iter().all(|name| !site.path("out").join(name).exists()) && site.path("out/d4/f4").exists()
    );
    // Who wants them all the same gets them; and what was written to since is another file.
    assert_eq!(complete(out(false, "all")).verified, 0);
    for name in &altered {
        fs::write(site.path("mount/data").join(name), "new").unwrap();
    }
    let summary = complete(out(true, "new"));
    assert_eq!(
        (summary.verified, fs::read(site.path("new/d2/f2")).unwrap()),
        (summary.files, b"new".to_vec())
    );
}

#[test]
fn parts_of_a_large_file_are_not_read_twice_at_the_source_unless_it_or_they_changed() {
    for change in ["nothing", "source", "target"] {
        let site = site();
        fs::write(site.path("src/large"), (0..30).map(|n| vec![n; 1 << 20]).collect::<Vec<_>>().concat())
            .unwrap();
        let mut order = site.order_out("large", "kept");
        fs::rename(site.path("src/large"), site.path("mount/large")).unwrap();
        order.jobs = 1;
        interrupt(&site, site.jobs.create(order).unwrap(), 20 << 20);
        let left = temporary_path(&site.path(""));
        assert_eq!(left.len(), 1, "{left:?}");
        let known = site.jobs.list().remove(0);
        let (found, piece) = (Totals { files: 1, bytes: 30 << 20 }, Totals { files: 0, bytes: 16 << 20 });
        assert_eq!((known.found, known.done), (found, piece), "one piece is whole");
        match change {
            "source" => {
                use std::os::unix::fs::FileExt;
                let file = OpenOptions::new().write(true).open(site.path("mount/large")).unwrap();
                file.write_all_at(b"changed", 5).unwrap();
            }
            "target" => {
                use std::os::unix::fs::FileExt;
                let file = OpenOptions::new().write(true).open(site.path(&left[0])).unwrap();
                file.write_all_at(b"damaged", 5 << 20).unwrap();
            }
            _ => {}
        }
        let count = Count::default();
        let summary = complete(site.take(1).run(&site.conditions(), &count).unwrap());
        let already = match change {
            "source" => 0,
            "target" => 12 << 20,
            _ => 16 << 20,
        };
        assert_eq!((summary.files, summary.bytes), (1, 30 << 20));
        assert_eq!(summary.already, Totals { files: 0, bytes: already }, "{change}");
        let [before, copied] = [&count.already, &count.copied].map(|sum| sum.load(Ordering::Relaxed));
        assert_eq!((before, copied), (already, (30 << 20) - already), "{change}");
        assert_eq!(site.jobs.list().remove(0).done, found);
        assert!(
            fs::read(site.path("kept")).unwrap() == fs::read(site.path("mount/large")).unwrap(),
            "{change}"
        );
        assert_eq!(temporary_path(&site.path("")), [""; 0]);
    }
}

// S185, S186.
#[test]
fn cancelling_removes_what_is_unfinished_and_keeps_what_is_complete() {
    for existing in [false, true] {
        let site = site();
        many(&site.path("mount"));
        // So large that it is never done when the job stops, however many pieces are under way just then.
        fs::write(site.path("mount/large"), vec![9; 96 << 20]).unwrap();
        if existing {
            fs::create_dir_all(site.path("out/there")).unwrap();
        }
        interrupt(&site, site.jobs.create(site.order_out("", "out/there")).unwrap(), 14 << 20);
        let left = temporary_path(&site.path("out"));
        assert!(!left.is_empty());
        let held = site.take(1);
        assert!(site.jobs.take(1).unwrap().is_none(), "two do not work on one job");
        assert!(held.cancel(None).unwrap() > 0);
        assert_eq!(site.path("out").exists(), existing);
        assert!(site.jobs.list().is_empty());
        if existing {
            assert_eq!(temporary_path(&site.path("out")), [""; 0]);
            let there = names(&site.path("mount"));
            assert!(names(&site.path("out/there")).iter().all(|name| there.contains(name)));
        }
        assert_eq!(describe(&site.path("mount")).len(), 509, "the source is as it was");
    }
}

// S183.
#[test]
fn the_number_of_a_cancelled_job_is_not_given_again() {
    let site = site();
    for number in [1, 2] {
        let held = site.jobs.create(site.order_in("in")).unwrap();
        assert_eq!(held.number, number);
        held.cancel(Some(&site.path("mount"))).unwrap();
    }
    fs::create_dir(site.path("jobs/7")).unwrap();
    assert_eq!(
        site.jobs.create(site.order_in("in")).unwrap().number,
        8,
        "one that was begun and not written down"
    );
}

#[test]
fn a_job_that_cannot_be_read_is_not_taken_for_none() {
    let site = site();
    let numbers = || site.jobs.unreadable().iter().map(|(number, _)| *number).collect::<Vec<_>>();
    for _ in 0..2 {
        drop(site.jobs.create(site.order_out("a", "b")).unwrap());
    }
    fs::create_dir(site.path("jobs/3")).unwrap();
    assert_eq!(numbers(), [0; 0], "one without an order has done nothing");
    fs::write(site.path("jobs/2/order"), "damaged").unwrap();
    assert_eq!(numbers(), [2]);
}

#[test]
fn a_full_target_keeps_what_fits_and_the_rest_follows() {
    if !in_own_mounts("jobs::a_full_target_keeps_what_fits_and_the_rest_follows") {
        return;
    }
    let site = site();
    many(&site.path("mount"));
    fs::create_dir(site.path("small")).unwrap();
    let mounted = Mounted::new(&["-t", "tmpfs", "-o", "size=12m", "none"], &site.path("small"));
    // Others take the room that there was when it began.
    let unchecked = RunOptions { checks_room: false, ..site.conditions() };
    let ended =
        site.jobs.create(site.order_out("", "small/out")).unwrap().run(&unchecked, &NoProgress).unwrap();
    assert!(!ended.is_complete() && !ended.is_cancelled());
    let Err(StageError::Incomplete { failures, .. }) = &ended.transfers[0].1 else { panic!("{ended:?}") };
    assert!(failures.iter().all(|failure| failure.errno() == Some(Errno::ENOSPC)));
    let failed = failures.len();
    let text = fs::read_to_string(&ended.manifest).unwrap();
    assert!(text.contains("failed\t-") && text.contains("ENOSPC") && text.ends_with("#end\tincomplete\n"));
    assert_eq!(site.stage(1), JobState::Incomplete);
    let more = std::process::Command::new("mount")
        .args(["-o", "remount,size=400m"])
        .arg(site.path("small"))
        .status();
    assert!(more.unwrap().success());
    let summary = complete(site.take(1).run(&site.conditions(), &NoProgress).unwrap());
    assert_eq!((summary.files, summary.already.files), (501, 501 - failed as u64));
    same(&site.path("small/out"), &site.path("mount"), &[]);
    drop(mounted);
}

#[test]
fn a_read_only_target_is_named_and_nothing_is_begun() {
    if !in_own_mounts("jobs::a_read_only_target_is_named_and_nothing_is_begun") {
        return;
    }
    let site = site();
    fs::write(site.path("mount/file"), "x").unwrap();
    fs::create_dir(site.path("sealed")).unwrap();
    let mounted = Mounted::new(&["-t", "tmpfs", "-o", "ro", "none"], &site.path("sealed"));
    let ended = site.run(site.order_out("file", "sealed/deep/file"));
    let Err(StageError::Root(failure)) = &ended.transfers[0].1 else { panic!("{ended:?}") };
    assert_eq!(failure.errno(), Some(Errno::EROFS));
    assert!(failure.to_string().contains("mounted read-only"));
    drop(mounted);
    complete(site.take(1).run(&site.conditions(), &NoProgress).unwrap());
    assert_eq!(fs::read_to_string(site.path("sealed/deep/file")).unwrap(), "x");
}

/// Takes the target's file system away when the first bytes were copied.
struct Unmount(PathBuf, AtomicBool);

impl Progress for Unmount {
    fn copied(&self, _bytes: u64) {
        if !self.1.swap(true, Ordering::Relaxed) {
            let status = std::process::Command::new("umount").arg("-l").arg(&self.0).status().unwrap();
            assert!(status.success());
        }
    }
}

// S187.
#[test]
fn a_target_that_vanishes_is_noticed_and_nothing_goes_below_its_mount_point() {
    if !in_own_mounts("jobs::a_target_that_vanishes_is_noticed_and_nothing_goes_below_its_mount_point") {
        return;
    }
    for existing in [false, true] {
        let site = site();
        many(&site.path("mount"));
        for dir in ["site", "backing"] {
            fs::create_dir(site.path(dir)).unwrap();
        }
        let backing = Mounted::new(&["-t", "tmpfs", "none"], &site.path("backing"));
        let bind = |site: &Site| {
            let from = site.path("backing");
            Mounted::new(&["--bind", from.to_str().unwrap()], &site.path("site"))
        };
        let dst = if existing { "site" } else { "site/new" };
        let _gone = bind(&site);
        let held = site.jobs.create(site.order_out("", dst)).unwrap();
        let ended =
            held.run(&site.conditions(), &Unmount(site.path("site"), AtomicBool::new(false))).unwrap();
        assert!(!ended.is_complete(), "{ended:?}");
        drop(held);
        assert_eq!(fs::read_dir(site.path("site")).unwrap().count(), 0, "below the mount point");
        assert_eq!(site.stage(1), JobState::Incomplete);
        let again = bind(&site);
        complete(site.take(1).run(&site.conditions(), &NoProgress).unwrap());
        same(&site.path(dst), &site.path("mount"), if existing { &[""] } else { &[] });
        drop((again, backing));
    }
}

// S190.
#[test]
fn two_jobs_on_one_source_do_not_disturb_each_other() {
    let site = site();
    many(&site.path("src"));
    let run = |dst: &'static str| complete(site.run(site.order_in(dst))).files;
    let files = std::thread::scope(|scope| {
        let jobs = ["one", "two", "one-more"].map(|dst| scope.spawn(move || run(dst)));
        jobs.map(|job| job.join().unwrap())
    });
    assert_eq!(files, [501; 3]);
    for dst in ["one", "two", "one-more"] {
        same(&site.path("mount").join(dst), &site.path("src"), &[]);
    }
    assert_eq!(temporary_path(&site.path("mount")), [""; 0]);
}

#[test]
fn several_ways_to_the_formation_show_the_same_tree() {
    if !in_own_mounts("jobs::several_ways_to_the_formation_show_the_same_tree") {
        return;
    }
    let site = site();
    many(&site.path("src"));
    fs::create_dir(site.path("second")).unwrap();
    let from = site.path("mount");
    let second = Mounted::new(&["--bind", from.to_str().unwrap()], &site.path("second"));
    let conditions = RunOptions {
        mounts: vec![site.path("mount"), site.path("second")],
        checks_room: true,
        cancel: Arc::default(),
    };
    for dst in ["new", "other/new"] {
        let held = site.jobs.create(site.order_in(dst)).unwrap();
        complete(held.run(&conditions, &NoProgress).unwrap());
        same(&site.path("mount").join(dst), &site.path("src"), &[]);
    }
    drop(second);
}

#[test]
fn what_is_excluded_or_not_included_stays() {
    let site = site();
    many(&site.path("src"));
    fs::create_dir_all(site.path("src/empty/deep")).unwrap();
    let mut order = site.order_in("part");
    (order.include, order.exclude) = (vec!["f1*".into()], vec!["d3".into(), "*9".into()]);
    let summary = complete(site.run(order));
    let numbers = (0..500).filter(|n| n.to_string().starts_with('1') && n % 7 != 3 && n % 10 != 9);
    assert_eq!(summary.files, numbers.count() as u64);
    let found = names(&site.path("mount/part"));
    assert!(
        found.contains(&"d1/f15".into()) && !found.contains(&"d3".into()) && !found.contains(&"empty".into())
    );
    let mut order = site.order_in("rest");
    order.exclude = vec!["/d0/**".into()];
    complete(site.run(order));
    assert!(names(&site.path("mount/rest")).contains(&"empty/deep".into()));
    assert_eq!(fs::read_dir(site.path("mount/rest/d0")).unwrap().count(), 0);
}

// S186, S188.
#[test]
fn only_what_changed_since_it_was_staged_in_goes_out() {
    let site = site();
    many(&site.path("src"));
    fs::hard_link(site.path("src/d1/f1"), site.path("src/d2/again")).unwrap();
    complete(site.run(site.order_in("data")));
    let inside = |path: &str| site.path("mount/data").join(path);
    let mut order = site.order_out("data", "nothing");
    order.changed = ChangeFilter::SinceIn;
    let summary = complete(site.run(order));
    assert_eq!((summary.files, summary.unchanged), (0, 502));

    let written = fs::metadata(inside("d0/f7")).unwrap();
    fs::write(inside("d0/f7"), vec![1; written.len() as usize]).unwrap();
    OpenOptions::new()
        .write(true)
        .open(inside("d0/f7"))
        .unwrap()
        .set_modified(written.modified().unwrap())
        .unwrap();
    fs::set_permissions(inside("d0/f14"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(inside("d4"), inside("moved")).unwrap();
    fs::remove_file(inside("d3/f10")).unwrap();
    fs::create_dir_all(inside("new/empty")).unwrap();
    fs::write(inside("d6/new"), "new").unwrap();
    for (from, to) in [("d5", "x"), ("d6", "d5"), ("x", "d6")] {
        fs::rename(inside(from), inside(to)).unwrap();
    }
    fs::create_dir_all(site.path("kept/d3")).unwrap();
    fs::write(site.path("kept/d3/f10"), "the target's").unwrap();

    let mut order = site.order_out("data", "kept");
    order.changed = ChangeFilter::SinceIn;
    let summary = complete(site.run(order));
    let names = names(&site.path("kept"));
    let d = |n: usize| (0..500).filter(|number| number % 7 == n).count();
    let files = 2 + d(4) + 1 + d(5) + d(6);
    assert_eq!(summary.files as usize, files, "two changed, all below three directories that moved, one new");
    for (name, there) in [
        ("d0/f7", true),
        ("d0/f14", true),
        ("d0/f21", false),
        ("new/empty", true),
        ("d5/new", true),
        ("d1", false),
    ] {
        assert_eq!(names.contains(&name.to_owned()), there, "{name}");
    }
    let deleted: Vec<_> = summary.deleted.iter().filter(|path| !path.starts_with("d4")).collect();
    assert!(deleted.contains(&&PathBuf::from("d3/f10")), "{deleted:?}");
    assert_eq!(fs::read_to_string(site.path("kept/d3/f10")).unwrap(), "the target's");
    let inside = describe(&site.path("mount/data"));
    for (name, line) in describe(&site.path("kept")) {
        if !["", "d3", "d3/f10"].map(str::as_bytes).contains(&&name[..]) {
            assert_eq!(inside.get(&name), Some(&line), "{}", name.escape_ascii());
        }
    }
}

// S188.
#[test]
fn what_the_place_it_goes_to_has_not_goes_out() {
    let site = site();
    fs::create_dir(site.path("src/d")).unwrap();
    fs::write(site.path("src/d/a"), "a").unwrap();
    fs::write(site.path("src/b"), "b").unwrap();
    complete(site.run(site.order_in("data")));
    let out = |src: &str, dst: &str| {
        let mut order = site.order_out(src, dst);
        order.changed = ChangeFilter::SinceStaged;
        let summary = complete(site.run(order));
        (summary.files, summary.unchanged)
    };
    assert_eq!(out("data", "src"), (0, 2), "it came from there");
    assert_eq!(out("data/d", "src/d"), (0, 1), "so did a part of it");
    assert_eq!(out("data/d", "src"), (1, 0), "not from there");
    assert_eq!(out("data/b", "copy"), (1, 0), "a file under a new name");
    assert_eq!(fs::read_to_string(site.path("copy")).unwrap(), "b");
    assert_eq!(out("data", "elsewhere"), (2, 0));
    assert_eq!(out("data", "elsewhere"), (0, 2), "it was staged out to there");
    fs::write(site.path("mount/data/b"), "new").unwrap();
    assert_eq!(out("data", "src"), (1, 1));
    assert_eq!(fs::read_to_string(site.path("src/b")).unwrap(), "new");
}

#[test]
fn what_was_promised_is_listed_until_it_is_out() {
    let site = site();
    let promise = Transfer { src: "res".into(), dst: site.path("kept") };
    site.jobs.promise(std::slice::from_ref(&promise)).unwrap();
    site.jobs.promise(std::slice::from_ref(&promise)).unwrap();
    assert_eq!(site.jobs.promises().unwrap(), [promise]);
    let left = || site.jobs.unstaged(&site.path("mount")).unwrap().into_iter().flat_map(|left| left.paths);
    assert_eq!(left().count(), 0, "there is nothing yet");
    fs::create_dir(site.path("mount/res")).unwrap();
    fs::write(site.path("mount/res/a"), "1").unwrap();
    assert_eq!(left().collect::<Vec<_>>(), [PathBuf::from("res"), "res/a".into()]);
    complete(site.run(site.order_out("res", "elsewhere")));
    assert_eq!(left().count(), 2, "it is not where it was promised");
    let out = || {
        let mut order = site.order_out("res", "kept");
        order.changed = ChangeFilter::SinceStaged;
        complete(site.run(order)).files
    };
    assert_eq!(out(), 1);
    assert_eq!(left().count(), 0);
    fs::write(site.path("mount/res/a"), "2").unwrap();
    fs::write(site.path("mount/res/b"), "3").unwrap();
    assert_eq!(left().count(), 2);
    assert_eq!(out(), 2);
    assert_eq!((left().count(), fs::read_to_string(site.path("kept/a")).unwrap().as_str()), (0, "2"));
    fs::write(site.path("jobs/promises"), "damaged").unwrap();
    assert!(site.jobs.unstaged(&site.path("mount")).is_err(), "what cannot be read is not nothing");
}

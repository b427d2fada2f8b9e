//! Which call changes which times, of the object and of the directories that it is in.

use rustix::fs::{AtFlags, OFlags, RenameFlags, Stat, XattrFlags};
use rustix::io::Errno;

use crate::case::{Case, Expect, Outcome, case, holds, root_case, same};
use crate::env::{ANN, Env};
use crate::sys;

/// Access, modification, change: whether each of them is later than before.
type Later = (bool, bool, bool);

const NONE: Later = (false, false, false);
const CHANGE: Later = (false, false, true);
const CONTENT: Later = (false, true, true);

/// A call and what it changes: of `one/x`, of `one`, of `two`.
struct Call {
    name: &'static str,
    run: fn(&Env) -> Outcome,
    x: Later,
    one: Later,
    two: Later,
}

const fn call(name: &'static str, run: fn(&Env) -> Outcome, x: Later, one: Later, two: Later) -> Call {
    Call { name, run, x, one, two }
}

const CALLS: &[Call] = &[
    call("stat", |env| sys::lstat(&env.at("one/x")).map(drop).must("stat"), NONE, NONE, NONE),
    call("open_rdonly", |env| open(env, OFlags::RDONLY), NONE, NONE, NONE),
    call("open_wronly", |env| open(env, OFlags::WRONLY), NONE, NONE, NONE),
    call("open_creat_existing", |env| open(env, OFlags::WRONLY | OFlags::CREATE), NONE, NONE, NONE),
    call("open_trunc", |env| open(env, OFlags::WRONLY | OFlags::TRUNC), CONTENT, NONE, NONE),
    call("write", |env| write(env, OFlags::WRONLY, 5), CONTENT, NONE, NONE),
    call("overwrite", |env| write(env, OFlags::WRONLY, 0), CONTENT, NONE, NONE),
    call("append", |env| write(env, OFlags::WRONLY | OFlags::APPEND, 0), CONTENT, NONE, NONE),
    call("write_of_nothing", write_nothing, NONE, NONE, NONE),
    call("truncate_shorter", |env| sys::truncate(&env.at("one/x"), 2).must("truncate"), CONTENT, NONE, NONE),
    call("truncate_longer", |env| sys::truncate(&env.at("one/x"), 9).must("truncate"), CONTENT, NONE, NONE),
    call("truncate_same", |env| sys::truncate(&env.at("one/x"), 5).must("truncate"), CONTENT, NONE, NONE),
    call("chmod", |env| sys::chmod(&env.at("one/x"), 0o600).must("chmod"), CHANGE, NONE, NONE),
    call("chown_of_nothing", chown_nothing, CHANGE, NONE, NONE),
    call("setxattr", setxattr, CHANGE, NONE, NONE),
    call("removexattr", removexattr, CHANGE, NONE, NONE),
    call(
        "getxattr",
        |env| sys::getxattr(&env.at("one/x"), "user.x").map(drop).must("getxattr"),
        NONE,
        NONE,
        NONE,
    ),
    call("link", link, CHANGE, NONE, CONTENT),
    call("unlink_other_name", unlink_other, CHANGE, CONTENT, NONE),
    call("rename_elsewhere_and_back", rename_and_back, CHANGE, CONTENT, CONTENT),
    call("creat", |env| sys::put(&env.at("two/new"), b"").must("make"), NONE, NONE, CONTENT),
    call("mkdir", |env| sys::mkdir(&env.at("two/new"), 0o755).must("mkdir"), NONE, NONE, CONTENT),
    call("rmdir", |env| rustix::fs::rmdir(env.at("one/sub")).must("rmdir"), NONE, CONTENT, NONE),
    call("symlink", |env| rustix::fs::symlink("x", env.at("two/new")).must("symlink"), NONE, NONE, CONTENT),
    call("mkfifo", |env| sys::Kind::Fifo.make(&env.at("two/new"), 0o600).must("mkfifo"), NONE, NONE, CONTENT),
    call("mkdir_eexist", refused_mkdir, NONE, NONE, NONE),
    call("rename_enoent", refused_rename, NONE, NONE, NONE),
    call("unlink_eisdir", refused_unlink, NONE, NONE, NONE),
    call(
        "utimensat_omit_both",
        |env| utimens_at(env, sys::at_time(0, OMIT), sys::at_time(0, OMIT)),
        NONE,
        NONE,
        NONE,
    ),
    call(
        "utimensat_now_both",
        |env| utimens_at(env, sys::at_time(0, NOW), sys::at_time(0, NOW)),
        ALL,
        NONE,
        NONE,
    ),
    call(
        "utimensat_now_atime",
        |env| utimens_at(env, sys::at_time(0, NOW), sys::at_time(0, OMIT)),
        ATIME,
        NONE,
        NONE,
    ),
    call(
        "utimensat_now_mtime",
        |env| utimens_at(env, sys::at_time(0, OMIT), sys::at_time(0, NOW)),
        CONTENT,
        NONE,
        NONE,
    ),
    call("fsync", fsync, NONE, NONE, NONE),
];

const ALL: Later = (true, true, true);
const ATIME: Later = (true, false, true);
/// `UTIME_NOW` and `UTIME_OMIT`.
const NOW: i64 = (1 << 30) - 1;
const OMIT: i64 = (1 << 30) - 2;

fn open(env: &Env, flags: OFlags) -> Outcome {
    sys::open(&env.at("one/x"), flags, 0o644).map(drop).must("open")
}

fn write(env: &Env, flags: OFlags, at: u64) -> Outcome {
    let file = sys::open(&env.at("one/x"), flags, 0).must("open")?;
    sys::write_all_at(&file, b"abc", at).must("write")
}

fn write_nothing(env: &Env) -> Outcome {
    let file = sys::open(&env.at("one/x"), OFlags::WRONLY, 0).must("open")?;
    rustix::io::pwrite(&file, b"", 0).map(drop).must("write")
}

fn chown_nothing(env: &Env) -> Outcome {
    sys::chown(&env.at("one/x"), Some(0), Some(0), AtFlags::empty()).must("chown")
}

fn setxattr(env: &Env) -> Outcome {
    sys::setxattr(&env.at("one/x"), "user.y", b"y", XattrFlags::empty()).must("setxattr")
}

fn removexattr(env: &Env) -> Outcome {
    rustix::fs::lremovexattr(env.at("one/x"), "user.x").must("removexattr")
}

fn link(env: &Env) -> Outcome {
    let (from, to) = env.pair("one/x", "two/new");
    rustix::fs::link(from, to).must("link")
}

fn unlink_other(env: &Env) -> Outcome {
    rustix::fs::unlink(env.at("one/x2")).must("unlink")
}

fn rename_and_back(env: &Env) -> Outcome {
    let (from, to) = env.pair("one/x", "two/new");
    sys::rename(&from, &to, RenameFlags::empty()).must("rename")?;
    let (from, to) = env.pair("two/new", "one/x");
    sys::rename(&from, &to, RenameFlags::empty()).must("rename back")
}

fn refused_mkdir(env: &Env) -> Outcome {
    sys::mkdir(&env.at("one/x"), 0o755).fails(Errno::EXIST, "mkdir")
}

fn refused_rename(env: &Env) -> Outcome {
    let (from, to) = env.pair("one/none", "two/new");
    sys::rename(&from, &to, RenameFlags::empty()).fails(Errno::NOENT, "rename")
}

fn refused_unlink(env: &Env) -> Outcome {
    rustix::fs::unlink(env.at("one/sub")).fails(Errno::ISDIR, "unlink")
}

fn utimens_at(env: &Env, atime: rustix::fs::Timespec, mtime: rustix::fs::Timespec) -> Outcome {
    sys::utimens(&env.at("one/x"), atime, mtime).must("utimensat")
}

fn fsync(env: &Env) -> Outcome {
    let file = sys::open(&env.at("one/x"), OFlags::RDONLY, 0).must("open")?;
    rustix::fs::fsync(&file).must("fsync")
}

fn stat(env: &Env, name: &str) -> Result<Stat, String> {
    sys::lstat(&env.at(name)).must("lstat")
}

fn later(before: &Stat, after: &Stat) -> Later {
    let times = |s: &Stat| {
        let nanos = |secs: i64, nanos: i64| i128::from(secs) * 1_000_000_000 + i128::from(nanos);
        (
            nanos(s.st_atime, s.st_atime_nsec as i64),
            nanos(s.st_mtime, s.st_mtime_nsec as i64),
            nanos(s.st_ctime, s.st_ctime_nsec as i64),
        )
    };
    let (before, after) = (times(before), times(after));
    (after.0 > before.0, after.1 > before.1, after.2 > before.2)
}

fn prepare(env: &Env) -> Outcome {
    for dir in ["one", "two", "one/sub"] {
        sys::mkdir(&env.at(dir), 0o755).must("mkdir")?;
    }
    sys::put(&env.at("one/x"), b"12345").must("file")?;
    sys::setxattr(&env.at("one/x"), "user.x", b"x", XattrFlags::empty()).must("setxattr")?;
    let (x, y) = env.pair("one/x", "one/x2");
    rustix::fs::link(x, y).must("link")
}

// S31, S32.
fn changed(env: &Env, call: &Call) -> Outcome {
    prepare(env)?;
    let before = [stat(env, "one/x")?, stat(env, "one")?, stat(env, "two")?];
    sys::tick();
    (call.run)(env)?;
    let after = [stat(env, "one/x")?, stat(env, "one")?, stat(env, "two")?];
    for (n, (what, wanted)) in
        [("file", call.x), ("its directory", call.one), ("the other", call.two)].iter().enumerate()
    {
        same(&format!("{what}: atime, mtime, ctime later"), later(&before[n], &after[n]), *wanted)?;
    }
    Ok(())
}

fn read_changes_atime(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"12345").must("file")?;
    // Older than mtime: then also `relatime` tells it.
    sys::utimens(&env.at("x"), sys::at_time(1000, 0), sys::at_time(2000, 0)).must("utimensat")?;
    sys::get(&env.at("x")).must("read")?;
    holds("atime is later", stat(env, "x")?.st_atime > 1000)
}

// S35.
fn renamed(env: &Env, dirs: (&str, &str), make: fn(&std::path::Path) -> rustix::io::Result<()>) -> Outcome {
    for dir in ["one", "two"] {
        sys::mkdir(&env.at(dir), 0o755).must("mkdir")?;
    }
    let (from, to) = (format!("{}/a", dirs.0), format!("{}/b", dirs.1));
    make(&env.at(&from)).must("make")?;
    let before = stat(env, &from)?;
    sys::tick();
    let (old, new) = env.pair(&from, &to);
    sys::rename(&old, &new, RenameFlags::empty()).must("rename")?;
    same("atime, mtime, ctime later", later(&before, &stat(env, &to)?), CHANGE)
}

fn range(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"").must("file")?;
    for (secs, nanos) in
        [(-1, 0), (0, 0), (1, 999_999_999), (i64::from(i32::MAX), 5), (1 << 31, 0), (1 << 33, 123_456_789)]
    {
        sys::utimens(&env.at("x"), sys::at_time(secs, nanos), sys::at_time(secs, nanos)).must("utimensat")?;
        let seen = stat(env, "x")?;
        same("atime", (seen.st_atime, seen.st_atime_nsec as i64), (secs, nanos))?;
        same("mtime", (seen.st_mtime, seen.st_mtime_nsec as i64), (secs, nanos))?;
    }
    utimens_refused(env)
}

fn utimens_refused(env: &Env) -> Outcome {
    let bad = sys::at_time(0, 1_000_000_000);
    sys::utimens(&env.at("x"), bad, sys::at_time(0, 0)).fails(Errno::INVAL, "a billion nanoseconds")?;
    sys::utimens(&env.at("x"), sys::at_time(0, 0), sys::at_time(0, -1))
        .fails(Errno::INVAL, "negative nanoseconds")
}

fn users(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"").must("file")?;
    sys::chmod(&env.at("x"), 0o666).must("chmod")?;
    let path = env.at("x");
    let (now, then) = (sys::at_time(0, NOW), sys::at_time(1, 0));
    env.as_user(ANN, || sys::utimens(&path, now, now))?.must("now, by who may write")?;
    env.as_user(ANN, || sys::utimens(&path, then, then))?.fails(Errno::PERM, "a time, by who may write")?;
    env.as_user(ANN, || sys::utimens(&path, now, sys::at_time(0, OMIT)))?
        .fails(Errno::PERM, "half of it now")?;
    sys::chmod(&env.at("x"), 0o644).must("chmod")?;
    let path = env.at("x");
    env.as_user(ANN, || sys::utimens(&path, now, now))?.fails(Errno::ACCESS, "now, by who may not write")?;
    sys::chown(&env.at("x"), Some(ANN.id), None, AtFlags::empty()).must("chown")?;
    let path = env.at("x");
    env.as_user(ANN, || sys::utimens(&path, then, then))?.must("a time, by the owner")?;
    same("mtime", stat(env, "x")?.st_mtime, 1)
}

/// Cases of times.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> =
        CALLS.iter().map(|c| case(format!("times/{}", c.name), |env| changed(env, c))).collect();
    let file = |path: &std::path::Path| sys::put(path, b"");
    let dir = |path: &std::path::Path| sys::mkdir(path, 0o755);
    cases.extend([
        case("times/read", read_changes_atime),
        case("times/rename_file_here", move |env| renamed(env, ("one", "one"), file)),
        case("times/rename_file_elsewhere", move |env| renamed(env, ("one", "two"), file)),
        case("times/rename_dir_here", move |env| renamed(env, ("one", "one"), dir)),
        case("times/rename_dir_elsewhere", move |env| renamed(env, ("one", "two"), dir)),
        case("utimensat/range", range),
        root_case("utimensat/users", users),
    ]);
    cases
}

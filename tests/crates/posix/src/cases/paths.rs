//! How each call that takes a path refuses paths that lead nowhere.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::{Errno, Result};

use crate::case::{Case, Expect, Outcome, case, root_case};
use crate::env::{ANN, Env};
use crate::sys::{self, Kind};

/// A call with the path in question and a directory in which other names may be used.
struct Call {
    name: &'static str,
    /// Whether the last name must be there already.
    takes_existing: bool,
    run: fn(&Path, &Path) -> Result<()>,
}

const fn existing(name: &'static str, run: fn(&Path, &Path) -> Result<()>) -> Call {
    Call { name, takes_existing: true, run }
}

const fn new(name: &'static str, run: fn(&Path, &Path) -> Result<()>) -> Call {
    Call { name, takes_existing: false, run }
}

const CALLS: &[Call] = &[
    existing("open", |_, path| sys::open(path, OFlags::RDONLY, 0).map(drop)),
    existing("opendir", |_, path| sys::open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0).map(drop)),
    existing("stat", |_, path| rustix::fs::stat(path).map(drop)),
    existing("lstat", |_, path| sys::lstat(path).map(drop)),
    existing("statfs", |_, path| rustix::fs::statfs(path).map(drop)),
    existing("access", |_, path| rustix::fs::access(path, Access::EXISTS)),
    existing("chmod", |_, path| sys::chmod(path, 0o700)),
    existing("chown", |_, path| sys::chown(path, None, None, AtFlags::empty())),
    existing("lchown", |_, path| sys::chown(path, None, None, AtFlags::SYMLINK_NOFOLLOW)),
    existing("truncate", |_, path| sys::truncate(path, 0)),
    existing("utimensat", |_, path| sys::utimens(path, sys::at_time(1, 2), sys::at_time(3, 4))),
    existing("readlink", |_, path| rustix::fs::readlink(path, Vec::new()).map(drop)),
    existing("unlink", |_, path| rustix::fs::unlink(path)),
    existing("rmdir", |_, path| rustix::fs::rmdir(path)),
    existing("getxattr", |_, path| sys::getxattr(path, "user.x").map(drop)),
    existing("setxattr", |_, path| sys::setxattr(path, "user.x", b"x", XattrFlags::empty())),
    existing("listxattr", |_, path| sys::listxattr(path).map(drop)),
    existing("removexattr", |_, path| rustix::fs::lremovexattr(path, "user.x")),
    existing("rename_from", |dir, path| sys::rename(path, &dir.join("to"), RenameFlags::empty())),
    existing("exchange_from", |dir, path| sys::rename(path, &dir.join("file"), RenameFlags::EXCHANGE)),
    existing("exchange_with", |dir, path| sys::rename(&dir.join("file"), path, RenameFlags::EXCHANGE)),
    existing("link_from", |dir, path| rustix::fs::link(path, dir.join("to"))),
    new("creat", |_, path| sys::open(path, OFlags::WRONLY | OFlags::CREATE, 0o600).map(drop)),
    new("open_excl", |_, path| {
        sys::open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600).map(drop)
    }),
    new("mkdir", |_, path| sys::mkdir(path, 0o700)),
    new("mkfifo", |_, path| Kind::Fifo.make(path, 0o600)),
    new("mknod", |_, path| Kind::Socket.make(path, 0o600)),
    new("symlink", |_, path| rustix::fs::symlink("to", path)),
    new("link_to", |dir, path| rustix::fs::link(dir.join("file"), path)),
    new("rename_to", |dir, path| sys::rename(&dir.join("file"), path, RenameFlags::empty())),
    new("rename_noreplace_to", |dir, path| sys::rename(&dir.join("file"), path, RenameFlags::NOREPLACE)),
];

/// A path that cannot be, and how it is refused.
struct Bad {
    name: &'static str,
    path: fn(&Path) -> PathBuf,
    errno: Errno,
}

const BAD: &[Bad] = &[
    Bad { name: "enoent_component", path: |dir| dir.join("none/x"), errno: Errno::NOENT },
    Bad { name: "enotdir_component", path: |dir| dir.join("file/x"), errno: Errno::NOTDIR },
    Bad { name: "enotdir_fifo_component", path: |dir| dir.join("fifo/x"), errno: Errno::NOTDIR },
    Bad { name: "enoent_dangling_component", path: |dir| dir.join("dangling/x"), errno: Errno::NOENT },
    Bad { name: "eloop_component", path: |dir| dir.join("loop/x"), errno: Errno::LOOP },
    Bad { name: "enametoolong_name", path: |dir| dir.join("n".repeat(256)), errno: Errno::NAMETOOLONG },
    Bad {
        name: "enametoolong_component",
        path: |dir| dir.join("n".repeat(256)).join("x"),
        errno: Errno::NAMETOOLONG,
    },
    Bad { name: "enametoolong_path", path: too_long, errno: Errno::NAMETOOLONG },
    Bad { name: "enoent_empty", path: |_| PathBuf::new(), errno: Errno::NOENT },
];

/// A path of 4,096 bytes, the NUL behind it not counted; with it, one too many.
fn too_long(dir: &Path) -> PathBuf {
    let mut path = dir.as_os_str().to_owned();
    while path.len() < 4094 {
        path.push("/.");
    }
    path.push("/x");
    path.into()
}

/// What the bad paths lead through.
fn prepare(env: &Env) -> Outcome {
    sys::put(&env.at("file"), b"x").must("file")?;
    Kind::Fifo.make(&env.at("fifo"), 0o644).must("fifo")?;
    rustix::fs::symlink("nowhere", env.at("dangling")).must("symlink")?;
    rustix::fs::symlink("pool", env.at("loop")).must("symlink")?;
    rustix::fs::symlink("loop", env.at("pool")).must("symlink")
}

fn refused(env: &Env, call: &Call, bad: &Bad) -> Outcome {
    prepare(env)?;
    let dir = env.dir();
    (call.run)(dir, &(bad.path)(dir)).fails(bad.errno, call.name)
}

fn absent(env: &Env, call: &Call) -> Outcome {
    prepare(env)?;
    let dir = env.dir();
    (call.run)(dir, &dir.join("none")).fails(Errno::NOENT, call.name)
}

/// A directory that may not be searched hides what is in it, whatever that is.
fn unsearchable(env: &Env, call: &Call) -> Outcome {
    prepare(env)?;
    sys::chmod(env.dir(), 0o777).must("chmod")?;
    sys::mkdir(&env.at("closed"), 0o700).must("mkdir")?;
    let dir = env.dir();
    env.as_user(ANN, || (call.run)(dir, &dir.join("closed/x")))?.fails(Errno::ACCESS, call.name)
}

/// The longest name that can be is not refused for its length.
fn longest(env: &Env, call: &Call) -> Outcome {
    prepare(env)?;
    let dir = env.dir();
    let outcome = (call.run)(dir, &dir.join("n".repeat(255)));
    if call.takes_existing { outcome.fails(Errno::NOENT, call.name) } else { outcome.must(call.name) }
}

/// Cases of all calls with all bad paths.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for call in CALLS {
        for bad in BAD {
            cases.push(case(format!("{}/{}", call.name, bad.name), |env| refused(env, call, bad)));
        }
        if call.takes_existing {
            cases.push(case(format!("{}/enoent", call.name), |env| absent(env, call)));
        }
        cases.push(case(format!("{}/name_of_255_bytes", call.name), |env| longest(env, call)));
        cases.push(root_case(format!("{}/eacces_search", call.name), |env| unsearchable(env, call)));
    }
    cases
}

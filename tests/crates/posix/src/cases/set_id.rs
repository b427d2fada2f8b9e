//! Set-user-id and set-group-id bits: what keeps them, and what makes them go.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags};
use rustix::io::{Errno, Result};

use crate::case::{Case, Expect, Outcome, root_case, same};
use crate::env::{ANN, BOB, CAL, Env, User};
use crate::sys::{self, mode_of};

type Change = fn(&Path) -> Result<()>;

const CHANGES: &[(&str, Change)] = &[
    ("write", |path| sys::write_all_at(&sys::open(path, OFlags::WRONLY, 0)?, b"xy", 5)),
    ("overwrite", |path| sys::write_all_at(&sys::open(path, OFlags::WRONLY, 0)?, b"xy", 0)),
    ("append", |path| sys::write_all_at(&sys::open(path, OFlags::WRONLY | OFlags::APPEND, 0)?, b"xy", 0)),
    ("truncate_shorter", |path| sys::truncate(path, 2)),
    ("truncate_longer", |path| sys::truncate(path, 20)),
    ("open_trunc", |path| sys::open(path, OFlags::WRONLY | OFlags::TRUNC, 0).map(drop)),
];

fn prepare(env: &Env, mode: u32) -> Outcome {
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    sys::put(&env.at("x"), b"12345").must("file")?;
    sys::chown(&env.at("x"), Some(ANN.id), Some(ANN.id), AtFlags::empty()).must("chown")?;
    sys::chmod(&env.at("x"), mode).must("chmod")
}

/// Asks for the mode alone, as `stat -c %a` does: the file system need not be asked for the rest.
fn mode_alone(env: &Env) -> std::result::Result<u32, String> {
    let seen = rustix::fs::statx(CWD, env.at("x"), AtFlags::empty(), StatxFlags::MODE).must("statx")?;
    Ok(u32::from(seen.stx_mode) & 0o7777)
}

/// Who asks for the mode alone is shown no bits that went, also right behind the change.
// S30.
fn shown_without(env: &Env, user: User, change: Change) -> Outcome {
    prepare(env, 0o6777)?;
    let path = env.at("x");
    for _ in 0..3 {
        same("mode before", mode_alone(env)?, 0o6777)?;
    }
    env.as_user(user, || change(&path))?.must("change")?;
    same("mode alone", mode_alone(env)?, 0o777)
}

fn mode(env: &Env) -> std::result::Result<u32, String> {
    Ok(mode_of(&sys::lstat(&env.at("x")).must("lstat")?))
}

// S30.
fn goes(env: &Env, user: User, before: u32, after: u32, change: Change) -> Outcome {
    prepare(env, before)?;
    let path = env.at("x");
    env.as_user(user, || change(&path))?.must("change")?;
    same("mode", mode(env)?, after)
}

fn chown_drops(env: &Env) -> Outcome {
    for (before, after) in [(0o6755, 0o755), (0o6711, 0o711), (0o2745, 0o2745), (0o4644, 0o644)] {
        prepare(env, before)?;
        let path = env.at("x");
        // To a group that it has, by the owner: bob's it is not, ann's it is.
        env.as_user(ANN, || sys::chown(&path, None, Some(ANN.id), AtFlags::empty()))?.must("chown")?;
        same("mode", mode(env)?, after)?;
        sys::chmod(&env.at("x"), before).must("chmod")?;
        sys::chown(&env.at("x"), Some(BOB.id), Some(BOB.id), AtFlags::empty()).must("chown by root")?;
        same("mode, by root", mode(env)?, after)?;
    }
    Ok(())
}

fn dirs_keep(env: &Env) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    sys::chmod(&env.at("d"), 0o6775).must("chmod")?;
    sys::chown(&env.at("d"), Some(ANN.id), Some(ANN.id), AtFlags::empty()).must("chown")?;
    same("mode", mode_of(&sys::lstat(&env.at("d")).must("lstat")?), 0o6775)?;
    sys::put(&env.at("d/x"), b"").must("file")?;
    same("mode", mode_of(&sys::lstat(&env.at("d")).must("lstat")?), 0o6775)
}

/// Who is not in the group of the file does not set its set-group-id bit.
fn chmod_outside_group(env: &Env) -> Outcome {
    prepare(env, 0o755)?;
    sys::chown(&env.at("x"), None, Some(BOB.id), AtFlags::empty()).must("chown")?;
    let path = env.at("x");
    env.as_user(ANN, || sys::chmod(&path, 0o6755))?.must("chmod")?;
    same("mode", mode(env)?, 0o4755)?;
    sys::chown(&env.at("x"), None, Some(ANN.id), AtFlags::empty()).must("chown")?;
    let path = env.at("x");
    env.as_user(ANN, || sys::chmod(&path, 0o6755))?.must("chmod")?;
    same("mode in the group", mode(env)?, 0o6755)
}

/// A new file in a set-group-id directory of a group that its maker is not in.
// S29.
fn create_outside_group(env: &Env) -> Outcome {
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    sys::chown(&env.at("d"), None, Some(BOB.id), AtFlags::empty()).must("chown")?;
    sys::chmod(&env.at("d"), 0o2777).must("chmod")?;
    let path = env.at("d/x");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    env.as_user(ANN, || sys::open(&path, flags, 0o2775).map(drop))?.must("create")?;
    let seen = sys::lstat(&env.at("d/x")).must("lstat")?;
    same("group and mode", (seen.st_gid, mode_of(&seen)), (BOB.id, 0o775))?;
    let path = env.at("d/y");
    env.as_user(ANN, || sys::mkdir(&path, 0o775))?.must("mkdir")?;
    let seen = sys::lstat(&env.at("d/y")).must("lstat")?;
    same("group and mode of a directory", (seen.st_gid, mode_of(&seen)), (BOB.id, 0o2775))
}

fn chmod_refused(env: &Env) -> Outcome {
    prepare(env, 0o755)?;
    let path = env.at("x");
    env.as_user(BOB, || sys::chmod(&path, 0o4755))?.fails(Errno::PERM, "chmod by another")?;
    same("mode", mode(env)?, 0o755)
}

/// A file's bits survive what does not change its content.
fn kept(env: &Env) -> Outcome {
    prepare(env, 0o6777)?;
    let path = env.at("x");
    env.as_user(CAL, || sys::get(&path).map(drop))?.must("read")?;
    env.as_user(CAL, || sys::open(&path, OFlags::WRONLY, 0).map(drop))?.must("open to write")?;
    let (x, y) = env.pair("x", "y");
    rustix::fs::link(&x, &y).must("link")?;
    rustix::fs::rename(&y, y.with_file_name("z")).must("rename")?;
    sys::utimens(&env.at("x"), sys::at_time(1, 1), sys::at_time(1, 1)).must("utimensat")?;
    same("mode", mode(env)?, 0o6777)
}

/// Cases of set-id bits.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        root_case("set_id/chown_drops", chown_drops),
        root_case("set_id/dirs_keep", dirs_keep),
        root_case("set_id/chmod_outside_group", chmod_outside_group),
        root_case("set_id/create_outside_group", create_outside_group),
        root_case("set_id/eperm_chmod", chmod_refused),
        root_case("set_id/kept", kept),
    ];
    for (name, change) in CHANGES {
        for (who, user) in [("owner", ANN), ("group", CAL), ("other", BOB)] {
            cases.push(root_case(format!("set_id/{name}_by_{who}"), move |env| {
                goes(env, user, 0o6777, 0o777, *change)
            }));
        }
        cases.push(root_case(format!("set_id/{name}_shown"), move |env| shown_without(env, ANN, *change)));
        // Without execution by the group, the bit meant locking, and stays for who is in the group.
        cases.push(root_case(format!("set_id/{name}_setuid_only"), move |env| {
            goes(env, ANN, 0o4766, 0o766, *change)
        }));
    }
    cases
}

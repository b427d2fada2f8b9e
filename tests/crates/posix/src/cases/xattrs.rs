//! Extended attributes.

use rustix::fs::{AtFlags, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::case::{Case, Expect, Outcome, case, holds, root_case, same};
use crate::env::{ANN, Env};
use crate::sys::{self, Kind, getxattr, listxattr, setxattr};

const ANY: XattrFlags = XattrFlags::empty();

fn file(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"").must("file")
}

fn life(env: &Env) -> Outcome {
    file(env)?;
    getxattr(&env.at("x"), "user.a").fails(Errno::NODATA, "before")?;
    setxattr(&env.at("x"), "user.a", b"one", ANY).must("set")?;
    same("value", getxattr(&env.at("x"), "user.a").must("get")?, b"one".to_vec())?;
    setxattr(&env.at("x"), "user.a", b"another", ANY).must("set again")?;
    same("value", getxattr(&env.at("x"), "user.a").must("get")?, b"another".to_vec())?;
    setxattr(&env.at("x"), "user.b", b"", ANY).must("set an empty one")?;
    same("empty value", getxattr(&env.at("x"), "user.b").must("get")?, vec![])?;
    same("list", listxattr(&env.at("x")).must("list")?, vec!["user.a".into(), "user.b".into()])?;
    rustix::fs::removexattr(env.at("x"), "user.a").must("remove")?;
    rustix::fs::removexattr(env.at("x"), "user.a").fails(Errno::NODATA, "remove again")?;
    same("list", listxattr(&env.at("x")).must("list")?, vec!["user.b".into()])
}

fn flags(env: &Env) -> Outcome {
    file(env)?;
    setxattr(&env.at("x"), "user.a", b"1", XattrFlags::REPLACE).fails(Errno::NODATA, "replace nothing")?;
    setxattr(&env.at("x"), "user.a", b"1", XattrFlags::CREATE).must("create")?;
    setxattr(&env.at("x"), "user.a", b"2", XattrFlags::CREATE).fails(Errno::EXIST, "create again")?;
    setxattr(&env.at("x"), "user.a", b"3", XattrFlags::REPLACE).must("replace")?;
    same("value", getxattr(&env.at("x"), "user.a").must("get")?, b"3".to_vec())?;
    let unknown = XattrFlags::from_bits_retain(4);
    setxattr(&env.at("x"), "user.a", b"4", unknown).fails(Errno::INVAL, "an unknown flag")
}

fn sizes(env: &Env) -> Outcome {
    file(env)?;
    setxattr(&env.at("x"), "user.a", b"12345", ANY).must("set")?;
    same("size", rustix::fs::lgetxattr_query(env.at("x"), "user.a").must("ask for the size")?, 5)?;
    rustix::fs::lgetxattr(env.at("x"), "user.a", &mut [0u8; 4]).fails(Errno::RANGE, "too small for it")?;
    rustix::fs::llistxattr(env.at("x"), &mut [0u8; 3]).fails(Errno::RANGE, "too small for the list")?;
    same("exactly", rustix::fs::lgetxattr(env.at("x"), "user.a", &mut [0u8; 5]).must("get")?, 5)
}

// S50.
fn names(env: &Env) -> Outcome {
    file(env)?;
    let longest = format!("user.{}", "n".repeat(250));
    setxattr(&env.at("x"), &longest, b"long", ANY).must("a name of 255 bytes")?;
    same("value", getxattr(&env.at("x"), &longest).must("get")?, b"long".to_vec())?;
    setxattr(&env.at("x"), &format!("{longest}n"), b"", ANY).fails(Errno::RANGE, "a name of 256 bytes")?;
    setxattr(&env.at("x"), "user.", b"", ANY).fails(Errno::INVAL, "only a prefix")?;
    setxattr(&env.at("x"), "", b"", ANY).fails(Errno::RANGE, "no name")?;
    setxattr(&env.at("x"), "plain", b"", ANY).fails(Errno::OPNOTSUPP, "no prefix")?;
    setxattr(&env.at("x"), "other.name", b"", ANY).fails(Errno::OPNOTSUPP, "an unknown prefix")
}

// S50.
fn too_big(env: &Env) -> Outcome {
    file(env)?;
    setxattr(&env.at("x"), "user.a", &vec![0; 65_537], ANY).fails(Errno::TOOBIG, "more than 64 KiB")?;
    same("list", listxattr(&env.at("x")).must("list")?, vec![])
}

fn binary(env: &Env) -> Outcome {
    file(env)?;
    let value: Vec<u8> = (0..=255).collect();
    setxattr(&env.at("x"), "user.a", &value, ANY).must("set")?;
    same("value", getxattr(&env.at("x"), "user.a").must("get")?, value)
}

fn many(env: &Env) -> Outcome {
    file(env)?;
    let name = |n: usize| format!("user.n{n:02}");
    for n in 0..40 {
        setxattr(&env.at("x"), &name(n), name(n).as_bytes(), ANY).must("set")?;
    }
    same("list", listxattr(&env.at("x")).must("list")?, (0..40).map(name).collect())?;
    for n in 0..40 {
        same("value", getxattr(&env.at("x"), &name(n)).must("get")?, name(n).into_bytes())?;
    }
    Ok(())
}

fn of_names(env: &Env) -> Outcome {
    file(env)?;
    setxattr(&env.at("x"), "user.a", b"kept", ANY).must("set")?;
    let (x, y) = env.pair("x", "y");
    rustix::fs::link(x, y).must("link")?;
    same("by another name", getxattr(&env.at("y"), "user.a").must("get")?, b"kept".to_vec())?;
    let (y, z) = env.pair("y", "z");
    rustix::fs::rename(y, z).must("rename")?;
    same("renamed", getxattr(&env.at("z"), "user.a").must("get")?, b"kept".to_vec())?;
    rustix::fs::unlink(env.at("x")).must("unlink")?;
    sys::put(&env.at("x"), b"").must("make again")?;
    same("a new file has none", listxattr(&env.at("x")).must("list")?, vec![])
}

fn of_dirs(env: &Env) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    setxattr(&env.at("d"), "user.a", b"of a directory", ANY).must("set")?;
    same("value", getxattr(&env.at("d"), "user.a").must("get")?, b"of a directory".to_vec())?;
    sys::mkdir(&env.at("d/e"), 0o755).must("mkdir")?;
    same("not passed on", listxattr(&env.at("d/e")).must("list")?, vec![])
}

/// Only files and directories have attributes of users.
fn of_others(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o777).must("make")?;
    setxattr(&env.at("x"), "user.a", b"", ANY).fails(Errno::PERM, "set")?;
    getxattr(&env.at("x"), "user.a").fails(Errno::NODATA, "get")?;
    same("list", listxattr(&env.at("x")).must("list")?, vec![])
}

fn followed(env: &Env) -> Outcome {
    file(env)?;
    rustix::fs::symlink("x", env.at("l")).must("symlink")?;
    rustix::fs::setxattr(env.at("l"), "user.a", b"through", ANY).must("set through a link")?;
    same("value", getxattr(&env.at("x"), "user.a").must("get")?, b"through".to_vec())
}

fn by_descriptor(env: &Env) -> Outcome {
    file(env)?;
    let file = sys::open(&env.at("x"), OFlags::RDONLY, 0).must("open")?;
    rustix::fs::fsetxattr(&file, "user.a", b"value", ANY).must("fsetxattr")?;
    same("value", getxattr(&env.at("x"), "user.a").must("get")?, b"value".to_vec())?;
    rustix::fs::fremovexattr(&file, "user.a").must("fremovexattr")?;
    getxattr(&env.at("x"), "user.a").fails(Errno::NODATA, "get")
}

fn permissions(env: &Env) -> Outcome {
    file(env)?;
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    setxattr(&env.at("x"), "user.a", b"roots", ANY).must("set")?;
    let path = env.at("x");
    env.as_user(ANN, || setxattr(&path, "user.a", b"", ANY))?.fails(Errno::ACCESS, "set without writing")?;
    let read = env.as_user(ANN, || getxattr(&path, "user.a"))?.must("get with reading")?;
    same("value", read, b"roots".to_vec())?;
    sys::chmod(&env.at("x"), 0o600).must("chmod")?;
    let path = env.at("x");
    env.as_user(ANN, || getxattr(&path, "user.a"))?.fails(Errno::ACCESS, "get without reading")?;
    sys::chown(&env.at("x"), Some(ANN.id), None, AtFlags::empty()).must("chown")?;
    let path = env.at("x");
    env.as_user(ANN, || setxattr(&path, "user.a", b"anns", ANY))?.must("set by the owner")
}

/// `trusted.` is root's; others do not even see it.
fn trusted(env: &Env) -> Outcome {
    file(env)?;
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    sys::chmod(&env.at("x"), 0o666).must("chmod")?;
    setxattr(&env.at("x"), "trusted.a", b"roots", ANY).must("set by root")?;
    same("value", getxattr(&env.at("x"), "trusted.a").must("get")?, b"roots".to_vec())?;
    let path = env.at("x");
    env.as_user(ANN, || setxattr(&path, "trusted.a", b"", ANY))?.fails(Errno::PERM, "set")?;
    env.as_user(ANN, || getxattr(&path, "trusted.a"))?.fails(Errno::NODATA, "get")
}

fn trusted_is_hidden(env: &Env) -> Outcome {
    file(env)?;
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    setxattr(&env.at("x"), "trusted.a", b"roots", ANY).must("set by root")?;
    let path = env.at("x");
    let names = env.as_user(ANN, || listxattr(&path))?.must("list")?;
    holds("the list has no name of trusted", names.is_empty())
}

/// Cases of extended attributes.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("xattr/life", life),
        case("xattr/flags", flags),
        case("xattr/sizes", sizes),
        case("xattr/names", names),
        case("xattr/e2big", too_big),
        case("xattr/binary", binary),
        case("xattr/many", many),
        case("xattr/of_names", of_names),
        case("xattr/of_dirs", of_dirs),
        case("xattr/followed", followed),
        case("xattr/by_descriptor", by_descriptor),
        root_case("xattr/permissions", permissions),
        root_case("xattr/trusted", trusted),
        root_case("xattr/trusted_is_hidden", trusted_is_hidden),
    ];
    for kind in [Kind::Link, Kind::Fifo, Kind::Socket] {
        cases.push(case(format!("xattr/eperm_{}", kind.name()), move |env| of_others(env, kind)));
    }
    cases
}

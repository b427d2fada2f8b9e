//! Hard and symbolic links, and limits of paths.

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;

use crate::case::{Case, Expect, Outcome, case, holds, root_case, same};
use crate::env::{ANN, Env};
use crate::sys;

fn across_directories(env: &Env) -> Outcome {
    for dir in ["a", "b", "a/c"] {
        sys::mkdir(&env.at(dir), 0o755).must("mkdir")?;
    }
    sys::put(&env.at("a/x"), b"one").must("file")?;
    for to in ["b/x", "a/c/y", "z"] {
        let (from, to) = env.pair("a/x", to);
        rustix::fs::link(from, to).must("link")?;
    }
    sys::put(&env.at("z"), b"changed by another name").must("write")?;
    for name in ["a/x", "b/x", "a/c/y", "z"] {
        same("content", sys::get(&env.at(name)).must("read")?, b"changed by another name".to_vec())?;
        same("links", sys::links_of(&sys::lstat(&env.at(name)).must("lstat")?), 4)?;
    }
    for (left, name) in [(3, "a/x"), (2, "z"), (1, "b/x")] {
        rustix::fs::unlink(env.at(name)).must("unlink")?;
        same("links", sys::links_of(&sys::lstat(&env.at("a/c/y")).must("lstat")?), left)?;
    }
    Ok(())
}

fn mode_is_shared(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"").must("file")?;
    let (x, y) = env.pair("x", "y");
    rustix::fs::link(x, y).must("link")?;
    sys::chmod(&env.at("x"), 0o611).must("chmod")?;
    same("mode", sys::mode_of(&sys::lstat(&env.at("y")).must("lstat")?), 0o611)
}

fn to_a_symlink(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"").must("file")?;
    rustix::fs::symlink("x", env.at("l")).must("symlink")?;
    let (l, m) = env.pair("l", "m");
    rustix::fs::link(l, m).must("link")?;
    holds("link makes a name for the link", rustix::fs::readlink(env.at("m"), Vec::new()).is_ok())?;
    let (l, n) = env.pair("l", "n");
    rustix::fs::linkat(CWD, l, CWD, n, AtFlags::SYMLINK_FOLLOW).must("linkat")?;
    same("links of the file", sys::links_of(&sys::lstat(&env.at("x")).must("lstat")?), 2)
}

fn eacces_parents(env: &Env) -> Outcome {
    sys::chmod(env.dir(), 0o777).must("chmod")?;
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    let mine = env.at("mine");
    env.as_user(ANN, || sys::put(&mine, b""))?.must("file")?;
    let (from, to) = env.pair("mine", "d/x");
    env.as_user(ANN, || rustix::fs::link(&from, &to))?.fails(Errno::ACCESS, "link")
}

fn targets(env: &Env) -> Outcome {
    let long = "t/".repeat(2047) + "t";
    for (n, target) in ["x", "/nowhere", "../..", "with space\n", long.as_str()].into_iter().enumerate() {
        let name = format!("l{n}");
        rustix::fs::symlink(target, env.at(&name)).must("symlink")?;
        let found = rustix::fs::readlink(env.at(&name), Vec::new()).must("readlink")?;
        holds("target", found.to_bytes() == target.as_bytes())?;
        same("size", sys::lstat(&env.at(&name)).must("lstat")?.st_size, target.len() as i64)?;
    }
    rustix::fs::symlink("", env.at("empty")).fails(Errno::NOENT, "an empty target")?;
    rustix::fs::symlink("t".repeat(4096), env.at("long")).fails(Errno::NAMETOOLONG, "a target too long")
}

fn not_a_link(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"").must("file")?;
    rustix::fs::readlink(env.at("x"), Vec::new()).fails(Errno::INVAL, "readlink of a file")?;
    rustix::fs::readlink(env.dir(), Vec::new()).fails(Errno::INVAL, "readlink of a directory")
}

fn chain(env: &Env) -> Outcome {
    sys::put(&env.at("l0"), b"end").must("file")?;
    for n in 1..=41 {
        rustix::fs::symlink(format!("l{}", n - 1), env.at(&format!("l{n}"))).must("symlink")?;
    }
    same("40 links", sys::get(&env.at("l40")).must("read")?, b"end".to_vec())?;
    sys::get(&env.at("l41")).fails(Errno::LOOP, "41 links")
}

fn through_directories(env: &Env) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    rustix::fs::symlink("d", env.at("l")).must("symlink")?;
    sys::put(&env.at("l/x"), b"inside").must("file")?;
    same("by directory", sys::get(&env.at("d/x")).must("read")?, b"inside".to_vec())?;
    same("listing", sys::list(&env.at("l/")).must("list")?, vec!["x".to_owned()])?;
    rustix::fs::rmdir(env.at("l")).fails(Errno::NOTDIR, "rmdir of the link")?;
    rustix::fs::unlink(env.at("l")).must("unlink of the link")?;
    same("the directory stays", sys::list(&env.at("d")).must("list")?, vec!["x".to_owned()])
}

fn odd_names(env: &Env) -> Outcome {
    let names =
        ["-", "...", " ", "a\\b", "newline\n", "tab\t", "\u{1}", "ÄÖ", "*?[", ".hidden", "a:b", "\"'"];
    for name in names {
        sys::put(&env.at(name), name.as_bytes()).must("file")?;
    }
    for name in names {
        same("content", sys::get(&env.at(name)).must("read")?, name.as_bytes().to_vec())?;
    }
    let mut wanted: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    wanted.sort();
    same("listing", sys::list(env.dir()).must("list")?, wanted)
}

/// A tree deeper than a path can be long, made and removed step by step.
fn deeper_than_a_path(env: &Env) -> Outcome {
    let name = "d".repeat(200);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut dirs = vec![sys::open(env.dir(), flags, 0).must("open")?];
    while dirs.len() < 30 {
        let last = dirs.last().ok_or("no directory")?;
        rustix::fs::mkdirat(last, &name, 0o755.into()).must("mkdirat")?;
        let next = rustix::fs::openat(last, &name, flags, 0.into()).must("openat")?;
        dirs.push(next);
    }
    while let Some(dir) = dirs.pop() {
        if let Some(parent) = dirs.last() {
            drop(dir);
            rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR).must("unlinkat")?;
        }
    }
    same("listing", sys::list(env.dir()).must("list")?, vec![])
}

/// Cases of links and names.
pub fn cases() -> Vec<Case> {
    vec![
        case("link/across_directories", across_directories),
        case("link/mode_is_shared", mode_is_shared),
        case("link/to_a_symlink", to_a_symlink),
        root_case("link/eacces_parents", eacces_parents),
        case("symlink/targets", targets),
        case("symlink/through_directories", through_directories),
        case("symlink/chain", chain),
        case("readlink/einval", not_a_link),
        case("names/odd", odd_names),
        case("names/deeper_than_a_path", deeper_than_a_path),
    ]
}

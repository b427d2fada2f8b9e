//! Truncation, by name and by descriptor.

use rustix::fs::OFlags;
use rustix::io::{Errno, Result};

use crate::case::{Case, Expect, Outcome, case, holds, root_case, same};
use crate::env::{ANN, Env};
use crate::sys::{self, Kind};

type Cut = fn(&Env, u64) -> Result<()>;

fn by_name(env: &Env, len: u64) -> Result<()> {
    sys::truncate(&env.at("x"), len)
}

fn by_descriptor(env: &Env, len: u64) -> Result<()> {
    rustix::fs::ftruncate(sys::open(&env.at("x"), OFlags::WRONLY, 0)?, len)
}

const WAYS: [(&str, Cut); 2] = [("truncate", by_name), ("ftruncate", by_descriptor)];

// S7, S8.
fn shorter_and_longer(env: &Env, cut: Cut) -> Outcome {
    let mut wanted: Vec<u8> = (0..3_000_000u32).map(|n| (n % 249) as u8 + 1).collect();
    sys::put(&env.at("x"), &wanted).must("file")?;
    for len in [2_999_999, 1 << 20, (1 << 20) + 1, 5000, 5_000_000, 4096, 4097, 0, 1, 100_000] {
        cut(env, len as u64).must("truncate")?;
        wanted.resize(len, 0);
        same("size", sys::lstat(&env.at("x")).must("lstat")?.st_size, len as i64)?;
        holds("content", sys::get(&env.at("x")).must("read")? == wanted)?;
    }
    Ok(())
}

fn refused(env: &Env, cut: Cut) -> Outcome {
    sys::put(&env.at("x"), b"12345").must("file")?;
    cut(env, u64::MAX >> 1).fails(Errno::FBIG, "the longest").or_else(|_| {
        // What may be as long as that, may.
        same("size", sys::lstat(&env.at("x")).must("lstat")?.st_size, i64::MAX)
    })
}

fn old_content_is_gone(env: &Env, cut: Cut) -> Outcome {
    sys::put(&env.at("x"), &[b'x'; 20_000]).must("file")?;
    cut(env, 100).must("truncate")?;
    let file = sys::open(&env.at("x"), OFlags::WRONLY, 0).must("open")?;
    sys::write_all_at(&file, b"end", 20_000).must("write")?;
    let content = sys::get(&env.at("x")).must("read")?;
    holds("zeros in between", content[100..20_000].iter().all(|byte| *byte == 0))?;
    same("end", &content[20_000..], b"end")
}

fn kinds(env: &Env) -> Outcome {
    Kind::Dir.make(&env.at("d"), 0o755).must("make")?;
    Kind::Fifo.make(&env.at("f"), 0o644).must("make")?;
    sys::truncate(&env.at("d"), 0).fails(Errno::ISDIR, "a directory")?;
    sys::truncate(&env.at("f"), 0).fails(Errno::INVAL, "a fifo")?;
    sys::truncate(&env.at("none"), 0).fails(Errno::NOENT, "nothing")?;
    sys::put(&env.at("x"), b"12345").must("file")?;
    rustix::fs::symlink("x", env.at("l")).must("symlink")?;
    sys::truncate(&env.at("l"), 2).must("through a link")?;
    same("content", sys::get(&env.at("x")).must("read")?, b"12".to_vec())
}

fn needs_permission(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"12345").must("file")?;
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    let path = env.at("x");
    env.as_user(ANN, || sys::truncate(&path, 0))?.fails(Errno::ACCESS, "truncate")?;
    sys::chmod(&env.at("x"), 0o646).must("chmod")?;
    let path = env.at("x");
    env.as_user(ANN, || sys::truncate(&path, 2))?.must("truncate")?;
    same("content", sys::get(&env.at("x")).must("read")?, b"12".to_vec())
}

/// Permission is asked for when the file is opened, not when it is cut.
fn keeps_permission(env: &Env) -> Outcome {
    let file = sys::open(&env.at("x"), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, 0o000).must("open")?;
    sys::write_all_at(&file, b"12345", 0).must("write")?;
    rustix::fs::ftruncate(&file, 3).must("ftruncate")?;
    same("size", sys::lstat(&env.at("x")).must("lstat")?.st_size, 3)
}

/// Cases of truncation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (call, cut) in WAYS {
        cases.push(case(format!("{call}/shorter_and_longer"), move |env| shorter_and_longer(env, cut)));
        cases.push(case(format!("{call}/efbig_or_done"), move |env| refused(env, cut)));
        cases.push(case(format!("{call}/old_content_is_gone"), move |env| old_content_is_gone(env, cut)));
    }
    cases.extend([
        case("truncate/kinds", kinds),
        case("ftruncate/keeps_permission", keeps_permission),
        root_case("truncate/eacces", needs_permission),
    ]);
    cases
}

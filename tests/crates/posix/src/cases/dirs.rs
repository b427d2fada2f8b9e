//! Directories: listings and their cookies, links, removal.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, RawDir, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::case::{Case, Expect, Outcome, case, holds, same};
use crate::env::Env;
use crate::sys;

/// One entry of a listing: name, and where to go on behind it.
type Place = (String, u64);

fn open_dir(env: &Env) -> Result<OwnedFd, String> {
    sys::open(env.dir(), OFlags::RDONLY | OFlags::DIRECTORY, 0).must("open")
}

/// Entries from the directory's position on, in pieces as small as they can be, so that listings go on often.
fn rest(dir: &OwnedFd) -> Result<Vec<Place>, String> {
    let mut buffer = [MaybeUninit::uninit(); 512];
    let (mut places, mut entries) = (Vec::new(), RawDir::new(dir, &mut buffer));
    while let Some(entry) = entries.next() {
        let entry = entry.must("getdents")?;
        places.push((entry.file_name().to_string_lossy().into_owned(), entry.next_entry_cookie()));
    }
    Ok(places)
}

fn from(dir: &OwnedFd, cookie: u64) -> Result<Vec<Place>, String> {
    rustix::fs::seek(dir, SeekFrom::Start(cookie)).must("seek")?;
    rest(dir)
}

fn names(places: &[Place]) -> Vec<String> {
    places.iter().map(|(name, _)| name.clone()).filter(|name| name != "." && name != "..").collect()
}

fn fill(env: &Env, count: usize) -> Outcome {
    (0..count).try_for_each(|n| sys::put(&env.at(&format!("entry-{n:04}")), b"").must("file"))
}

fn all(count: usize) -> BTreeSet<String> {
    (0..count).map(|n| format!("entry-{n:04}")).collect()
}

fn complete(env: &Env) -> Outcome {
    fill(env, 300)?;
    let places = rest(&open_dir(env)?)?;
    same("number of entries, with the dots", places.len(), 302)?;
    same("names", names(&places).into_iter().collect(), all(300))
}

fn empty(env: &Env) -> Outcome {
    let places = rest(&open_dir(env)?)?;
    let found: BTreeSet<String> = places.into_iter().map(|(name, _)| name).collect();
    same("only the dots", found, [".".to_owned(), "..".to_owned()].into())
}

/// Each cookie, of whichever mount, leads to what came behind it, in the same order.
// S22.
fn cookies(env: &Env) -> Outcome {
    fill(env, 60)?;
    let places = rest(&open_dir(env)?)?;
    for (n, (_, cookie)) in places.iter().enumerate() {
        same("what comes behind", names(&from(&open_dir(env)?, *cookie)?), names(&places[n + 1..]))?;
    }
    let dir = open_dir(env)?;
    rest(&dir)?;
    same("rewound", names(&from(&dir, 0)?), names(&places))
}

/// What is there all the time is listed once, whatever comes and goes meanwhile.
fn while_it_changes(env: &Env) -> Outcome {
    fill(env, 200)?;
    let dir = open_dir(env)?;
    let mut buffer = [MaybeUninit::uninit(); 512];
    let mut entries = RawDir::new(&dir, &mut buffer);
    let mut found = Vec::new();
    let mut turn = 0;
    while let Some(entry) = entries.next() {
        let name = entry.must("getdents")?.file_name().to_string_lossy().into_owned();
        if name.starts_with("entry-") {
            found.push(name);
        }
        sys::put(&env.at(&format!("more-{turn:04}")), b"").must("make")?;
        if turn % 2 == 1 {
            rustix::fs::unlink(env.at(&format!("more-{:04}", turn - 1))).must("unlink")?;
        }
        turn += 1;
        if turn > 2000 {
            return Err("the listing does not end".into());
        }
    }
    same("each once", found.len(), 200)?;
    same("all of them", found.into_iter().collect(), all(200))
}

/// Entries that are removed as they are listed: what `rm -r` does.
fn while_it_is_emptied(env: &Env) -> Outcome {
    fill(env, 200)?;
    let dir = open_dir(env)?;
    let mut buffer = [MaybeUninit::uninit(); 512];
    let mut entries = RawDir::new(&dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let name = entry.must("getdents")?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            rustix::fs::unlink(env.at(&name)).must("unlink")?;
        }
    }
    same("left", sys::list(env.dir()).must("list")?, vec![])
}

// S25.
fn links_of_directories(env: &Env) -> Outcome {
    let links = |name: &str| Ok::<_, String>(sys::links_of(&sys::lstat(&env.at(name)).must("lstat")?));
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    same("alone", links("d")?, 2)?;
    for n in 0..5 {
        sys::mkdir(&env.at(&format!("d/{n}")), 0o755).must("mkdir")?;
        same("one more", links("d")?, 3 + n)?;
    }
    sys::put(&env.at("d/file"), b"").must("file")?;
    same("files do not count", links("d")?, 7)?;
    for n in 0..5 {
        rustix::fs::rmdir(env.at(&format!("d/{n}"))).must("rmdir")?;
        same("one less", links("d")?, 6 - n)?;
    }
    Ok(())
}

fn not_empty(env: &Env) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    for inside in ["file", "sub"] {
        let path = env.at(&format!("d/{inside}"));
        if inside == "sub" { sys::mkdir(&path, 0o755) } else { sys::put(&path, b"") }.must("make")?;
        rustix::fs::rmdir(env.at("d")).fails(Errno::NOTEMPTY, "rmdir")?;
        let path = env.at(&format!("d/{inside}"));
        if inside == "sub" { rustix::fs::rmdir(path) } else { rustix::fs::unlink(path) }.must("remove")?;
    }
    rustix::fs::rmdir(env.at("d")).must("rmdir of what is empty again")
}

fn dots(env: &Env) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    sys::mkdir(&env.at("d/e"), 0o755).must("mkdir")?;
    let ino = |name: &str| Ok::<_, String>(sys::lstat(&env.at(name)).must("lstat")?.st_ino);
    same(".", ino("d/.")?, ino("d")?)?;
    same("..", ino("d/e/..")?, ino("d")?)?;
    same("both", ino("d/e/.././e/.")?, ino("d/e")?)?;
    let dir = sys::open(&env.at("d/e"), OFlags::RDONLY, 0).must("open")?;
    for entry in rustix::fs::Dir::new(dir).must("opendir")? {
        let entry = entry.must("readdir")?;
        if entry.file_name().to_bytes() == b".." {
            same("the number listed for ..", entry.ino(), ino("d")?)?;
        }
    }
    Ok(())
}

fn statx_agrees(env: &Env) -> Outcome {
    use rustix::fs::{AtFlags, CWD, statx};
    sys::put(&env.at("x"), b"12345").must("file")?;
    sys::tick();
    sys::chmod(&env.at("x"), 0o640).must("chmod")?;
    let by_stat = sys::lstat(&env.at("x")).must("lstat")?;
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let by_statx = statx(CWD, env.at("x"), flags, StatxFlags::BASIC_STATS).must("statx")?;
    same("number", by_statx.stx_ino, by_stat.st_ino)?;
    same("size", by_statx.stx_size as i64, by_stat.st_size)?;
    same("mode", u32::from(by_statx.stx_mode), by_stat.st_mode)?;
    same("links", u64::from(by_statx.stx_nlink), sys::links_of(&by_stat))?;
    same(
        "ctime",
        (by_statx.stx_ctime.tv_sec, by_statx.stx_ctime.tv_nsec),
        (by_stat.st_ctime, by_stat.st_ctime_nsec as u32),
    )?;
    let forced = AtFlags::STATX_FORCE_SYNC;
    let again = statx(CWD, env.at("x"), forced, StatxFlags::BASIC_STATS).must("statx, asked anew")?;
    same("ctime again", again.stx_ctime.tv_nsec, by_statx.stx_ctime.tv_nsec)
}

fn space(env: &Env) -> Outcome {
    let fs = rustix::fs::statvfs(env.dir()).must("statvfs")?;
    same("longest name", fs.f_namemax, 255)?;
    holds("units of space", fs.f_frsize.is_power_of_two() && fs.f_bsize.is_power_of_two())?;
    holds("free space is part of all space", fs.f_bavail <= fs.f_bfree && fs.f_bfree <= fs.f_blocks)
}

fn big(env: &Env) -> Outcome {
    fill(env, 2000)?;
    for n in (0..2000).step_by(3) {
        rustix::fs::unlink(env.at(&format!("entry-{n:04}"))).must("unlink")?;
    }
    let wanted: BTreeSet<String> =
        all(2000).into_iter().enumerate().filter(|(n, _)| n % 3 != 0).map(|e| e.1).collect();
    same("what is left", sys::list(env.dir()).must("list")?.into_iter().collect(), wanted)
}

/// Cases of directories.
pub fn cases() -> Vec<Case> {
    vec![
        case("readdir/complete", complete),
        case("readdir/empty", empty),
        case("readdir/cookies", cookies),
        case("readdir/while_it_changes", while_it_changes),
        case("readdir/while_it_is_emptied", while_it_is_emptied),
        case("readdir/2000_entries", big),
        case("mkdir/links", links_of_directories),
        case("rmdir/enotempty", not_empty),
        case("dots/lead_where_they_should", dots),
        case("statx/agrees_with_stat", statx_agrees),
        case("statvfs/makes_sense", space),
    ]
}

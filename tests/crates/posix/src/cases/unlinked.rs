//! Files and directories that are open and have no name any more.

use rustix::fs::{AtFlags, CWD, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::case::{Case, Expect, Outcome, case, holds, same};
use crate::env::Env;
use crate::sys::{self, mode_of};

/// An open file whose name was removed through the next mount.
fn orphan(env: &Env) -> Result<std::os::fd::OwnedFd, String> {
    let file = sys::open(&env.at("x"), OFlags::RDWR | OFlags::CREATE, 0o644).must("open")?;
    sys::write_all_at(&file, b"before", 0).must("write")?;
    rustix::fs::unlink(env.at("x")).must("unlink")?;
    holds("the name is absent", sys::is_absent(&env.at("x")))?;
    Ok(file)
}

// S23.
fn content(env: &Env) -> Outcome {
    let file = orphan(env)?;
    sys::write_all_at(&file, b" and after", 6).must("write")?;
    same("content", sys::read_at(&file, 0, 100).must("read")?, b"before and after".to_vec())?;
    rustix::fs::ftruncate(&file, 3).must("ftruncate")?;
    rustix::fs::ftruncate(&file, 5).must("ftruncate")?;
    same("cut", sys::read_at(&file, 0, 100).must("read")?, b"bef\0\0".to_vec())?;
    rustix::fs::fsync(&file).must("fsync")
}

fn attributes(env: &Env) -> Outcome {
    let file = orphan(env)?;
    let seen = rustix::fs::fstat(&file).must("fstat")?;
    same("links and size", (sys::links_of(&seen), seen.st_size), (0, 6))?;
    rustix::fs::fchmod(&file, 0o600.into()).must("fchmod")?;
    same("mode", mode_of(&rustix::fs::fstat(&file).must("fstat")?), 0o600)?;
    let times =
        rustix::fs::Timestamps { last_access: sys::at_time(10, 1), last_modification: sys::at_time(20, 2) };
    rustix::fs::futimens(&file, &times).must("futimens")?;
    let seen = rustix::fs::fstat(&file).must("fstat")?;
    same("times", (seen.st_atime, seen.st_mtime), (10, 20))
}

fn xattrs(env: &Env) -> Outcome {
    let file = orphan(env)?;
    rustix::fs::fsetxattr(&file, "user.x", b"value", XattrFlags::empty()).must("fsetxattr")?;
    let mut value = [0; 10];
    same("length", rustix::fs::fgetxattr(&file, "user.x", &mut value).must("fgetxattr")?, 5)?;
    same("value", &value[..5], b"value")
}

fn not_linked_again(env: &Env) -> Outcome {
    // A descriptor and a new name of one mount.
    let env = &Env::new(vec![env.dir().to_owned()]);
    let file = orphan(env)?;
    rustix::fs::linkat(&file, "", CWD, env.at("y"), AtFlags::EMPTY_PATH).fails(Errno::NOENT, "linkat")?;
    holds("no new name", sys::is_absent(&env.at("y")))
}

fn made_again(env: &Env) -> Outcome {
    let file = orphan(env)?;
    sys::put(&env.at("x"), b"another").must("file")?;
    same("the old one", sys::read_at(&file, 0, 100).must("read")?, b"before".to_vec())?;
    same("the new one", sys::get(&env.at("x")).must("read")?, b"another".to_vec())?;
    let (old, new) = (rustix::fs::fstat(&file).must("fstat")?, sys::lstat(&env.at("x")).must("lstat")?);
    holds("two inodes", old.st_ino != new.st_ino)
}

fn one_of_two_names(env: &Env) -> Outcome {
    let file = sys::open(&env.at("x"), OFlags::RDWR | OFlags::CREATE, 0o644).must("open")?;
    let (x, y) = env.pair("x", "y");
    rustix::fs::link(x, y).must("link")?;
    rustix::fs::unlink(env.at("x")).must("unlink")?;
    sys::write_all_at(&file, b"still", 0).must("write")?;
    same("links", sys::links_of(&rustix::fs::fstat(&file).must("fstat")?), 1)?;
    same("by the other name", sys::get(&env.at("y")).must("read")?, b"still".to_vec())
}

fn removed_directory(env: &Env) -> Result<std::os::fd::OwnedFd, String> {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    let dir = sys::open(&env.at("d"), OFlags::RDONLY | OFlags::DIRECTORY, 0).must("open")?;
    rustix::fs::rmdir(env.at("d")).must("rmdir")?;
    Ok(dir)
}

// S91.
fn directory(env: &Env) -> Outcome {
    let dir = removed_directory(env)?;
    same("links", sys::links_of(&rustix::fs::fstat(&dir).must("fstat")?), 0)?;
    let made = rustix::fs::openat(&dir, "x", OFlags::WRONLY | OFlags::CREATE, 0o644.into());
    made.fails(Errno::NOENT, "creating in it")?;
    rustix::fs::mkdirat(&dir, "x", 0o755.into()).fails(Errno::NOENT, "mkdir in it")?;
    rustix::fs::statat(&dir, "x", AtFlags::empty()).fails(Errno::NOENT, "looking up in it")
}

/// Whatever is said about a removed directory, nothing can be made in it.
fn directory_refuses(env: &Env) -> Outcome {
    let dir = removed_directory(env)?;
    let made = rustix::fs::openat(&dir, "x", OFlags::WRONLY | OFlags::CREATE, 0o644.into()).map(drop);
    let makes = [made, rustix::fs::mkdirat(&dir, "x", 0o755.into()), rustix::fs::symlinkat("to", &dir, "y")];
    holds(
        "everything is refused",
        makes.iter().all(|made| matches!(made, Err(Errno::NOENT | Errno::STALE))),
    )?;
    sys::mkdir(&env.at("d"), 0o755).must("mkdir of the same name")?;
    same("the new one is empty", sys::list(&env.at("d")).must("list")?, vec![])
}

fn working_directory(env: &Env) -> Outcome {
    let before = sys::open(".".as_ref(), OFlags::RDONLY | OFlags::DIRECTORY, 0).must("open")?;
    let outcome = in_removed_directory(env);
    rustix::process::fchdir(&before).must("fchdir")?;
    outcome
}

fn in_removed_directory(env: &Env) -> Outcome {
    let path = env.at("d");
    sys::mkdir(&path, 0o755).must("mkdir")?;
    rustix::process::chdir(&path).must("chdir")?;
    let here = rustix::process::getcwd(Vec::new()).must("getcwd")?;
    let wanted = path.canonicalize().map_err(|error| format!("canonicalize: {error}"))?;
    same("getcwd", here.to_string_lossy().into_owned(), wanted.to_string_lossy().into_owned())?;
    sys::put("x".as_ref(), b"relative").must("file")?;
    same("by its whole path", sys::get(&env.at("d/x")).must("read")?, b"relative".to_vec())?;
    rustix::fs::unlink("x").must("unlink")?;
    rustix::fs::rmdir(&path).must("rmdir")?;
    rustix::process::getcwd(Vec::new()).fails(Errno::NOENT, "getcwd")?;
    same("links", sys::links_of(&rustix::fs::stat(".").must("stat")?), 0)?;
    sys::put("x".as_ref(), b"").fails(Errno::NOENT, "creating in it")
}

fn moved_working_directory(env: &Env) -> Outcome {
    let before = sys::open(".".as_ref(), OFlags::RDONLY | OFlags::DIRECTORY, 0).must("open")?;
    let here = Env::new(vec![env.dir().to_owned()]);
    sys::mkdir(&here.at("d"), 0o755).must("mkdir")?;
    rustix::process::chdir(here.at("d")).must("chdir")?;
    let renamed = rustix::fs::rename(here.at("d"), here.at("e")).must("rename");
    let found = rustix::process::getcwd(Vec::new()).must("getcwd");
    rustix::process::fchdir(&before).must("fchdir")?;
    renamed?;
    holds("getcwd follows", found?.to_bytes().ends_with(b"/e"))
}

/// Cases of what has no name.
pub fn cases() -> Vec<Case> {
    vec![
        case("unlinked/content", content),
        case("unlinked/attributes", attributes),
        case("unlinked/xattrs", xattrs),
        case("unlinked/enoent_linkat", not_linked_again),
        case("unlinked/made_again", made_again),
        case("unlinked/one_of_two_names", one_of_two_names),
        case("unlinked/directory", directory),
        case("unlinked/directory_refuses", directory_refuses),
        case("getcwd/of_a_removed_directory", working_directory),
        case("getcwd/of_a_moved_directory", moved_working_directory),
    ]
}

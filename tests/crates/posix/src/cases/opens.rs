//! What opening does, by flags and kinds.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::case::{Case, Expect, Outcome, case, holds, same};
use crate::env::Env;
use crate::sys::{self, Kind, mode_of};

const R: OFlags = OFlags::RDONLY;
const W: OFlags = OFlags::WRONLY;
const RW: OFlags = OFlags::RDWR;

/// What is at the name, the flags, and how it is refused.
struct Refusal {
    name: &'static str,
    there: Option<Kind>,
    flags: OFlags,
    errno: Errno,
}

const REFUSALS: &[Refusal] = &[
    Refusal { name: "enoent_rdwr", there: None, flags: RW, errno: Errno::NOENT },
    Refusal { name: "enoent_trunc", there: None, flags: W.union(OFlags::TRUNC), errno: Errno::NOENT },
    Refusal { name: "eisdir_write", there: Some(Kind::Dir), flags: W, errno: Errno::ISDIR },
    Refusal { name: "eisdir_rdwr", there: Some(Kind::Dir), flags: RW, errno: Errno::ISDIR },
    Refusal {
        name: "eisdir_trunc",
        there: Some(Kind::Dir),
        flags: W.union(OFlags::TRUNC),
        errno: Errno::ISDIR,
    },
    Refusal {
        name: "eisdir_creat",
        there: Some(Kind::Dir),
        flags: R.union(OFlags::CREATE),
        errno: Errno::ISDIR,
    },
    Refusal {
        name: "eexist_file",
        there: Some(Kind::File),
        flags: RW.union(OFlags::CREATE).union(OFlags::EXCL),
        errno: Errno::EXIST,
    },
    Refusal {
        name: "eexist_dir",
        there: Some(Kind::Dir),
        flags: RW.union(OFlags::CREATE).union(OFlags::EXCL),
        errno: Errno::EXIST,
    },
    Refusal {
        name: "eexist_dangling_symlink",
        there: Some(Kind::Link),
        flags: RW.union(OFlags::CREATE).union(OFlags::EXCL),
        errno: Errno::EXIST,
    },
    Refusal {
        name: "eexist_fifo",
        there: Some(Kind::Fifo),
        flags: RW.union(OFlags::CREATE).union(OFlags::EXCL),
        errno: Errno::EXIST,
    },
    Refusal {
        name: "enotdir_directory_file",
        there: Some(Kind::File),
        flags: R.union(OFlags::DIRECTORY),
        errno: Errno::NOTDIR,
    },
    Refusal {
        name: "enotdir_directory_fifo",
        there: Some(Kind::Fifo),
        flags: R.union(OFlags::DIRECTORY),
        errno: Errno::NOTDIR,
    },
    Refusal { name: "enoent_dangling_symlink", there: Some(Kind::Link), flags: R, errno: Errno::NOENT },
    Refusal {
        name: "eloop_nofollow",
        there: Some(Kind::Link),
        flags: R.union(OFlags::NOFOLLOW),
        errno: Errno::LOOP,
    },
    Refusal {
        name: "enotdir_nofollow_directory",
        there: Some(Kind::Link),
        flags: R.union(OFlags::NOFOLLOW).union(OFlags::DIRECTORY),
        errno: Errno::NOTDIR,
    },
    Refusal {
        name: "enxio_fifo_without_reader",
        there: Some(Kind::Fifo),
        flags: W.union(OFlags::NONBLOCK),
        errno: Errno::NXIO,
    },
    Refusal { name: "enxio_socket", there: Some(Kind::Socket), flags: R, errno: Errno::NXIO },
];

fn refused(env: &Env, refusal: &Refusal) -> Outcome {
    if let Some(kind) = refusal.there {
        kind.make(&env.at("x"), 0o755).must("make")?;
    }
    sys::open(&env.at("x"), refusal.flags, 0o644).fails(refusal.errno, "open")?;
    same("what is there", sys::lstat(&env.at("x")).is_ok(), refusal.there.is_some())
}

fn created_mode(env: &Env) -> Outcome {
    for mode in [0o000, 0o444, 0o600, 0o4755, 0o2711, 0o1777] {
        let name = format!("m{mode:o}");
        // With no permission at all, who makes it may write it all the same.
        let file = sys::open(&env.at(&name), RW | OFlags::CREATE | OFlags::EXCL, mode).must("open")?;
        sys::write_all_at(&file, b"x", 0).must("write")?;
        let seen = sys::lstat(&env.at(&name)).must("lstat")?;
        let wanted = if mode & 0o6000 == 0 || seen.st_uid == 0 { mode } else { mode & 0o1777 };
        holds("mode", mode_of(&seen) & 0o1777 == wanted & 0o1777)?;
        same("size", seen.st_size, 1)?;
    }
    Ok(())
}

fn creates_through_symlink(env: &Env) -> Outcome {
    rustix::fs::symlink("target", env.at("link")).must("symlink")?;
    sys::put(&env.at("link"), b"through").must("create through a dangling link")?;
    same("target", sys::get(&env.at("target")).must("read")?, b"through".to_vec())?;
    same("by link", sys::get(&env.at("link")).must("read")?, b"through".to_vec())
}

fn truncates(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"content").must("file")?;
    drop(sys::open(&env.at("x"), W | OFlags::CREATE, 0o644).must("open without O_TRUNC")?);
    same("size", sys::lstat(&env.at("x")).must("lstat")?.st_size, 7)?;
    drop(sys::open(&env.at("x"), W | OFlags::TRUNC, 0).must("open with O_TRUNC")?);
    same("size", sys::lstat(&env.at("x")).must("lstat")?.st_size, 0)
}

fn appends(env: &Env) -> Outcome {
    let one = sys::open(&env.at("x"), W | OFlags::CREATE | OFlags::APPEND, 0o644).must("open")?;
    let other = sys::open(&env.at("x"), W | OFlags::APPEND, 0).must("open")?;
    for (file, text) in [(&one, "a"), (&other, "bb"), (&one, "ccc"), (&other, "d")] {
        rustix::io::write(file, text.as_bytes()).must("write")?;
    }
    same("content", sys::get(&env.at("x")).must("read")?, b"abbcccd".to_vec())?;
    // Linux appends also where a place is named.
    rustix::io::pwrite(&one, b"e", 0).must("pwrite")?;
    same("content", sys::get(&env.at("x")).must("read")?, b"abbcccde".to_vec())
}

fn ebadf(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"content").must("file")?;
    let reader = sys::open(&env.at("x"), R, 0).must("open")?;
    let writer = sys::open(&env.at("x"), W, 0).must("open")?;
    rustix::io::write(&reader, b"x").fails(Errno::BADF, "write")?;
    rustix::io::pwrite(&reader, b"x", 0).fails(Errno::BADF, "pwrite")?;
    rustix::io::read(&writer, &mut [0u8; 1]).fails(Errno::BADF, "read")?;
    rustix::fs::ftruncate(&reader, 0).fails(Errno::INVAL, "ftruncate")?;
    same("content", sys::get(&env.at("x")).must("read")?, b"content".to_vec())
}

fn etxtbsy(env: &Env) -> Outcome {
    with_running(env, |env| {
        sys::open(&env.at("prog"), W, 0).fails(Errno::TXTBSY, "open to write")?;
        sys::open(&env.at("prog"), RW | OFlags::TRUNC, 0).fails(Errno::TXTBSY, "open to cut")?;
        sys::truncate(&env.at("prog"), 0).fails(Errno::TXTBSY, "truncate")
    })
}

// S90.
fn etxtbsy_rdonly_trunc(env: &Env) -> Outcome {
    with_running(env, |env| {
        let size = sys::lstat(&env.at("prog")).must("lstat")?.st_size;
        let opened = sys::open(&env.at("prog"), R | OFlags::TRUNC, 0);
        same("size", sys::lstat(&env.at("prog")).must("lstat")?.st_size, size)?;
        opened.fails(Errno::TXTBSY, "open to read and cut")
    })
}

/// Runs something while a program runs whose file is `prog`; only this host knows that it runs.
fn with_running(env: &Env, act: impl Fn(&Env) -> Outcome) -> Outcome {
    let path = env.at("prog");
    let env = Env::new(vec![path.parent().map(Into::into).unwrap_or_default()]);
    let program = ["/usr/bin/sleep", "/bin/sleep"].into_iter().find_map(|path| std::fs::read(path).ok());
    sys::put(&path, &program.ok_or("there is no sleep to copy")?).must("copy")?;
    sys::chmod(&path, 0o755).must("chmod")?;
    let started = std::process::Command::new(&path).arg("600").spawn();
    let mut running = started.map_err(|error| format!("running a program: {error}"))?;
    let outcome = act(&env);
    let (killed, waited) = (running.kill(), running.wait());
    outcome?;
    killed.and(waited.map(drop)).map_err(|error| format!("ending the program: {error}"))
}

fn positions(env: &Env) -> Outcome {
    use rustix::fs::{SeekFrom, seek};
    sys::put(&env.at("x"), b"0123456789").must("file")?;
    let file = sys::open(&env.at("x"), RW, 0).must("open")?;
    let read = |file: &OwnedFd, len: usize| {
        let mut bytes = vec![0; len];
        let len = rustix::io::read(file, bytes.as_mut_slice()).must("read")?;
        bytes.truncate(len);
        Ok::<_, String>(bytes)
    };
    same("first", read(&file, 3)?, b"012".to_vec())?;
    same("next", read(&file, 3)?, b"345".to_vec())?;
    same("from the end", seek(&file, SeekFrom::End(-2)).must("seek")?, 8)?;
    same("last", read(&file, 9)?, b"89".to_vec())?;
    same("end", read(&file, 9)?, vec![])?;
    seek(&file, SeekFrom::End(-11)).fails(Errno::INVAL, "seek before the start")?;
    same("behind the end", seek(&file, SeekFrom::Start(20)).must("seek")?, 20)?;
    same("nothing there", read(&file, 1)?, vec![])?;
    rustix::io::write(&file, b"x").must("write")?;
    let mut wanted = b"0123456789".to_vec();
    wanted.resize(20, 0);
    wanted.push(b'x');
    same("content", sys::get(&env.at("x")).must("read")?, wanted)
}

fn duplicated(env: &Env) -> Outcome {
    let file = sys::open(&env.at("x"), RW | OFlags::CREATE, 0o644).must("open")?;
    let other = rustix::io::dup(&file).must("dup")?;
    rustix::io::write(&file, b"ab").must("write")?;
    rustix::io::write(&other, b"cd").must("write")?;
    drop(file);
    rustix::io::write(&other, b"ef").must("write after the first is closed")?;
    same("content", sys::get(&env.at("x")).must("read")?, b"abcdef".to_vec())
}

/// Cases of opening.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> =
        REFUSALS.iter().map(|r| case(format!("open/{}", r.name), |env| refused(env, r))).collect();
    cases.extend([
        case("open/created_mode", created_mode),
        case("open/creates_through_symlink", creates_through_symlink),
        case("open/trunc", truncates),
        case("open/append", appends),
        case("open/ebadf", ebadf),
        case("open/etxtbsy", etxtbsy),
        case("open/etxtbsy_rdonly_trunc", etxtbsy_rdonly_trunc),
        case("open/positions", positions),
        case("open/duplicated", duplicated),
    ]);
    cases
}

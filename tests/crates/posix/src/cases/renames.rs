//! Renames: everything over everything, and what else there is to them.

use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::case::{Case, Expect, Outcome, case, holds, root_case, same};
use crate::env::{ANN, BOB, Env};
use crate::sys::{self, Kind};

/// How long a kernel may take to learn that a directory was moved.
const LEARNT_IN_MAX: Duration = Duration::from_secs(10);

/// What may be at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Nothing,
    One(Kind),
    FullDir,
}

impl There {
    const ALL: [There; 6] = [
        There::Nothing,
        There::One(Kind::File),
        There::One(Kind::Link),
        There::One(Kind::Fifo),
        There::One(Kind::Dir),
        There::FullDir,
    ];

    fn name(self) -> &'static str {
        match self {
            There::Nothing => "nothing",
            There::One(kind) => kind.name(),
            There::FullDir => "full_dir",
        }
    }

    fn is_dir(self) -> bool {
        matches!(self, There::FullDir | There::One(Kind::Dir))
    }

    fn make(self, env: &Env, name: &str) -> Outcome {
        match self {
            There::Nothing => Ok(()),
            There::One(kind) => kind.make(&env.at(name), 0o755).must("make"),
            There::FullDir => {
                sys::mkdir(&env.at(name), 0o755).must("mkdir")?;
                sys::put(&env.at(&format!("{name}/inside")), b"x").must("file")
            }
        }
    }
}

/// What POSIX and Linux say of it.
fn verdict(from: There, to: There, flags: RenameFlags) -> Option<Errno> {
    let there = to != There::Nothing;
    if flags == RenameFlags::EXCHANGE {
        return (from == There::Nothing || !there).then_some(Errno::NOENT);
    }
    match () {
        () if from == There::Nothing => Some(Errno::NOENT),
        () if !there => None,
        () if flags == RenameFlags::NOREPLACE => Some(Errno::EXIST),
        () if from.is_dir() && !to.is_dir() => Some(Errno::NOTDIR),
        () if !from.is_dir() && to.is_dir() => Some(Errno::ISDIR),
        () if to == There::FullDir => Some(Errno::NOTEMPTY),
        () => None,
    }
}

/// What is at a name through the next mount, if anything. S92: a kernel that has to learn there that a directory was moved
/// may say ESTALE while it renames something else, which other parts of the table do.
fn seen(env: &Env, name: &str) -> Result<Option<Stat>, String> {
    let path = env.at(name);
    let until = Instant::now() + LEARNT_IN_MAX;
    loop {
        match sys::lstat(&path) {
            Err(Errno::STALE) if Instant::now() < until => std::thread::yield_now(),
            Err(Errno::NOENT) => return Ok(None),
            outcome => return outcome.must("lstat").map(Some),
        }
    }
}

/// The inode at a name; 0 for none.
fn ino(env: &Env, name: &str) -> Result<u64, String> {
    Ok(seen(env, name)?.map_or(0, |seen| seen.st_ino))
}

fn links(env: &Env, name: &str) -> Result<u64, String> {
    Ok(seen(env, name)?.map_or(0, |seen| sys::links_of(&seen)))
}

// S45, S46.
fn over(env: &Env, from: There, to: There, flags: RenameFlags, dirs: (&str, &str)) -> Outcome {
    sys::mkdir(&env.at("one"), 0o755).must("mkdir")?;
    sys::mkdir(&env.at("two"), 0o755).must("mkdir")?;
    let (a, b) = (format!("{}/a", dirs.0), format!("{}/b", dirs.1));
    from.make(env, &a)?;
    to.make(env, &b)?;
    let before = (ino(env, &a)?, ino(env, &b)?);
    let (old, new) = env.pair(&a, &b);
    let outcome = sys::rename(&old, &new, flags);
    let after = match verdict(from, to, flags) {
        Some(errno) => {
            outcome.fails(errno, "rename")?;
            before
        }
        None => {
            outcome.must("rename")?;
            if flags == RenameFlags::EXCHANGE { (before.1, before.0) } else { (0, before.0) }
        }
    };
    same("inodes at the two names", (ino(env, &a)?, ino(env, &b)?), after)?;
    counted(env, dirs, (&a, &b))
}

/// Links of directories and listings agree with what is there.
fn counted(env: &Env, dirs: (&str, &str), names: (&str, &str)) -> Outcome {
    for dir in ["one", "two"] {
        let (mut subdirs, mut listed) = (0, Vec::new());
        for (at, name) in [(dirs.0, names.0), (dirs.1, names.1)] {
            if let Some(seen) = seen(env, name)?.filter(|_| at == dir) {
                subdirs += u64::from(rustix::fs::FileType::from_raw_mode(seen.st_mode).is_dir());
                listed.push(name.trim_start_matches("one/").trim_start_matches("two/").to_owned());
            }
        }
        same("links of a directory", links(env, dir)?, 2 + subdirs)?;
        same("listing", sys::list(&env.at(dir)).must("list")?, listed)?;
    }
    Ok(())
}

fn onto_itself(env: &Env) -> Outcome {
    sys::put(&env.at("a"), b"x").must("file")?;
    let (a, b) = env.pair("a", "b");
    rustix::fs::link(&a, &b).must("link")?;
    sys::rename(&a, &b, RenameFlags::empty()).must("rename to another name of the same file")?;
    let (a, same_a) = env.pair("a", "a");
    sys::rename(&a, &same_a, RenameFlags::empty()).must("rename to the same name")?;
    same("both names stay", sys::list(env.dir()).must("list")?, vec!["a".into(), "b".into()])?;
    same("links", links(env, "a")?, 2)
}

// S44.
fn into_itself(env: &Env) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    sys::mkdir(&env.at("d/e"), 0o755).must("mkdir")?;
    sys::mkdir(&env.at("d/e/f"), 0o755).must("mkdir")?;
    for to in ["d/x", "d/e/x", "d/e/f/x"] {
        let (from, to) = env.pair("d", to);
        sys::rename(&from, &to, RenameFlags::empty()).fails(Errno::INVAL, "rename below itself")?;
    }
    let (from, to) = env.pair("d", "d/e");
    sys::rename(&from, &to, RenameFlags::EXCHANGE).fails(Errno::INVAL, "exchange with what is below")?;
    let (from, to) = env.pair("d/e", "d");
    sys::rename(&from, &to, RenameFlags::EXCHANGE).fails(Errno::INVAL, "exchange with what is above")?;
    sys::rename(&from, &to, RenameFlags::empty()).fails(Errno::NOTEMPTY, "rename over what is above")
}

fn dots(env: &Env) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    sys::mkdir(&env.at("d/e"), 0o755).must("mkdir")?;
    for name in ["d/.", "d/e/.."] {
        let (from, to) = env.pair(name, "x");
        sys::rename(&from, &to, RenameFlags::empty()).fails(Errno::BUSY, "rename of a dot")?;
        let (from, to) = env.pair("d/e", name);
        sys::rename(&from, &to, RenameFlags::empty()).fails(Errno::BUSY, "rename to a dot")?;
    }
    rustix::fs::rmdir(env.at("d/.")).fails(Errno::INVAL, "rmdir of .")?;
    rustix::fs::rmdir(env.at("d/e/..")).fails(Errno::NOTEMPTY, "rmdir of ..")
}

fn flags_together(env: &Env) -> Outcome {
    sys::put(&env.at("a"), b"x").must("file")?;
    sys::put(&env.at("b"), b"x").must("file")?;
    let (a, b) = env.pair("a", "b");
    let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    sys::rename(&a, &b, both).fails(Errno::INVAL, "both flags")?;
    sys::rename(&a, &b, RenameFlags::from_bits_retain(1 << 20)).fails(Errno::INVAL, "an unknown flag")
}

fn parent_follows(env: &Env) -> Outcome {
    for dir in ["one", "two", "one/d", "one/d/e"] {
        sys::mkdir(&env.at(dir), 0o755).must("mkdir")?;
    }
    sys::put(&env.at("one/d/e/f"), b"deep").must("file")?;
    let two = ino(env, "two")?;
    let (from, to) = env.pair("one/d", "two/d");
    sys::rename(&from, &to, RenameFlags::empty()).must("rename")?;
    same("..", ino(env, "two/d/..")?, two)?;
    same(".. of ..", ino(env, "two/d/e/../..")?, two)?;
    same("what is below", sys::get(&env.at("two/d/e/f")).must("read")?, b"deep".to_vec())?;
    same("links", (links(env, "one")?, links(env, "two")?), (2, 3))
}

fn replaced_lives_while_open(env: &Env) -> Outcome {
    use rustix::fs::OFlags;
    sys::put(&env.at("a"), b"new").must("file")?;
    sys::put(&env.at("b"), b"old").must("file")?;
    let old = sys::open(&env.at("b"), OFlags::RDWR, 0).must("open")?;
    let (a, b) = env.pair("a", "b");
    sys::rename(&a, &b, RenameFlags::empty()).must("rename")?;
    same("by name", sys::get(&env.at("b")).must("read")?, b"new".to_vec())?;
    same("by descriptor", sys::read_at(&old, 0, 10).must("read")?, b"old".to_vec())?;
    same("links", sys::links_of(&rustix::fs::fstat(&old).must("fstat")?), 0)
}

fn trailing_slash(env: &Env) -> Outcome {
    sys::put(&env.at("file"), b"x").must("file")?;
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    let (from, to) = env.pair("file", "new/");
    sys::rename(&from, &to, RenameFlags::empty()).fails(Errno::NOTDIR, "a file to a name with a slash")?;
    let (from, to) = env.pair("file/", "new");
    sys::rename(&from, &to, RenameFlags::empty()).fails(Errno::NOTDIR, "a file with a slash")?;
    let (from, to) = env.pair("d/", "e/");
    sys::rename(&from, &to, RenameFlags::empty()).must("a directory to a name with a slash")?;
    rustix::fs::unlink(env.at("file/")).fails(Errno::NOTDIR, "unlink with a slash")?;
    sys::mkdir(&env.at("f/"), 0o755).must("mkdir with a slash")
}

/// Moving a directory to another parent changes its `..`: one must be allowed to write it.
fn eacces_moved_dir(env: &Env) -> Outcome {
    sys::chmod(env.dir(), 0o777).must("chmod")?;
    sys::mkdir(&env.at("one"), 0o777).must("mkdir")?;
    sys::mkdir(&env.at("two"), 0o777).must("mkdir")?;
    sys::mkdir(&env.at("one/d"), 0o755).must("mkdir")?;
    let (from, to) = env.pair("one/d", "two/d");
    env.as_user(ANN, || sys::rename(&from, &to, RenameFlags::empty()))?.fails(Errno::ACCESS, "rename")?;
    let (from, to) = env.pair("one/d", "one/e");
    env.as_user(ANN, || sys::rename(&from, &to, RenameFlags::empty()))?.must("rename in place")
}

/// In a sticky directory only the owners of the entry or of the directory may replace or move it.
fn sticky(env: &Env) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    sys::chmod(&env.at("d"), 0o1777).must("chmod")?;
    for (name, owner) in [("anns", ANN), ("bobs", BOB)] {
        sys::put(&env.at(&format!("d/{name}")), b"x").must("file")?;
        let path = env.at(&format!("d/{name}"));
        sys::chown(&path, Some(owner.id), Some(owner.id), AtFlags::empty()).must("chown")?;
    }
    let (anns, bobs) = env.pair("d/anns", "d/bobs");
    let (moved, none) = (env.at("d/moved"), RenameFlags::empty());
    env.as_user(ANN, || sys::rename(&bobs, &bobs.with_file_name("x"), none))?
        .fails(Errno::PERM, "another's")?;
    env.as_user(ANN, || sys::rename(&anns, &bobs, none))?.fails(Errno::PERM, "over another's")?;
    env.as_user(ANN, || sys::rename(&anns, &bobs, RenameFlags::EXCHANGE))?.fails(Errno::PERM, "exchange")?;
    env.as_user(ANN, || sys::rename(&anns, &anns.with_file_name("moved"), none))?.must("one's own")?;
    holds("it is there", sys::lstat(&moved).is_ok())
}

const FLAGS: [(&str, RenameFlags); 3] = [
    ("rename", RenameFlags::empty()),
    ("rename_noreplace", RenameFlags::NOREPLACE),
    ("rename_exchange", RenameFlags::EXCHANGE),
];

/// Cases of renames.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("rename/onto_itself", onto_itself),
        case("rename/einval_into_itself", into_itself),
        case("rename/ebusy_dots", dots),
        case("rename/einval_flags", flags_together),
        case("rename/parent_follows", parent_follows),
        case("rename/replaced_lives_while_open", replaced_lives_while_open),
        case("rename/trailing_slash", trailing_slash),
        root_case("rename/eacces_moved_dir", eacces_moved_dir),
        root_case("rename/eperm_sticky", sticky),
    ];
    for (call, flags) in FLAGS {
        for (place, dirs) in [("here", ("one", "one")), ("elsewhere", ("one", "two"))] {
            for from in There::ALL {
                for to in There::ALL {
                    let name = format!("{call}/{}_over_{}_{place}", from.name(), to.name());
                    cases.push(case(name, move |env| over(env, from, to, flags, dirs)));
                }
            }
        }
    }
    cases
}

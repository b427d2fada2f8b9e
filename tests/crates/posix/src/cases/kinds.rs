//! What holds for files of every kind.

use rustix::fs::{AtFlags, FileType, RenameFlags, Stat};
use rustix::io::Errno;

use crate::case::{Case, Expect, Outcome, case, holds, root_case, same};
use crate::env::{ANN, BOB, Env};
use crate::sys::{self, Kind, mode_of};

/// What of an inode does not change with its names.
fn identity(stat: &Stat) -> (u64, u32, u32, u32, u64, i64, i64) {
    (stat.st_ino, stat.st_mode, stat.st_uid, stat.st_gid, stat.st_rdev, stat.st_size, stat.st_mtime)
}

type Act = fn(&Env, Kind) -> Outcome;

const FOR_EACH: &[(&str, Act)] = &[
    ("made_with_its_type_and_mode", made),
    ("umask_is_applied", masked),
    ("eexist", taken),
    ("listed_with_its_type", listed),
    ("linked", linked),
    ("renamed_as_it_is", renamed),
    ("removed", removed),
    ("chmod", chmod),
    ("utimensat", utimens),
    ("open_nofollow_or_path", opened_as_path),
];

const WITH_USERS: &[(&str, Act)] = &[
    ("belongs_to_who_made_it", owned),
    ("chown_by_root", chown),
    ("chown_drops_set_id", chown_drops_set_id),
    ("eperm_chown_by_another", not_chowned),
    ("eperm_chmod_by_another", not_chmodded),
    ("eacces_make_in_anothers_dir", not_made),
    ("eacces_remove_from_anothers_dir", not_removed),
    ("setgid_dir_gives_its_group", inherits_group),
];

fn made(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o754).must("make")?;
    let seen = sys::lstat(&env.at("x")).must("lstat")?;
    same("type", FileType::from_raw_mode(seen.st_mode), kind.file_type())?;
    let links = if kind == Kind::Dir { 2 } else { 1 };
    same("links", sys::links_of(&seen), links)?;
    same("device", seen.st_rdev, kind.device())?;
    let (mode, size) = if kind == Kind::Link { (0o777, "nowhere".len() as i64) } else { (0o754, 0) };
    same("mode", mode_of(&seen), mode)?;
    holds("size", kind == Kind::Dir || seen.st_size == size)?;
    let times = [seen.st_atime, seen.st_mtime, seen.st_ctime];
    holds("the three times are of its making", times.iter().all(|time| (time - times[2]).abs() <= 1))
}

fn masked(env: &Env, kind: Kind) -> Outcome {
    let before = rustix::process::umask(0o027.into());
    let outcome = kind.make(&env.at("x"), 0o777);
    rustix::process::umask(before);
    outcome.must("make")?;
    let mode = if kind == Kind::Link { 0o777 } else { 0o750 };
    same("mode", mode_of(&sys::lstat(&env.at("x")).must("lstat")?), mode)
}

fn taken(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o600).must("make")?;
    for other in Kind::ALL.into_iter().filter(|other| *other == kind || !other.is_device()) {
        other.make(&env.at("x"), 0o600).fails(Errno::EXIST, other.name())?;
    }
    Kind::File.make(&env.at("file"), 0o600).must("make")?;
    let (file, x) = env.pair("file", "x");
    rustix::fs::link(file, x).fails(Errno::EXIST, "link")
}

fn listed(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o600).must("make")?;
    let dir = sys::open(env.dir(), rustix::fs::OFlags::RDONLY, 0).must("open")?;
    for entry in rustix::fs::Dir::new(dir).must("opendir")? {
        let entry = entry.must("readdir")?;
        if entry.file_name().to_bytes() == b"x" {
            same("number", entry.ino(), sys::lstat(&env.at("x")).must("lstat")?.st_ino)?;
            return same("type", entry.file_type(), kind.file_type());
        }
    }
    Err("is not listed".into())
}

fn linked(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o640).must("make")?;
    let (x, y) = env.pair("x", "y");
    if kind == Kind::Dir {
        return rustix::fs::link(x, y).fails(Errno::PERM, "link");
    }
    rustix::fs::link(x, y).must("link")?;
    let (x, y) = (sys::lstat(&env.at("x")).must("lstat")?, sys::lstat(&env.at("y")).must("lstat")?);
    same("one inode", identity(&x), identity(&y))?;
    same("links", (sys::links_of(&x), sys::links_of(&y)), (2, 2))?;
    rustix::fs::unlink(env.at("x")).must("unlink")?;
    same("links left", sys::links_of(&sys::lstat(&env.at("y")).must("lstat")?), 1)
}

fn renamed(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o751).must("make")?;
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    let before = sys::lstat(&env.at("x")).must("lstat")?;
    let (x, y) = env.pair("x", "y");
    sys::rename(&x, &y, RenameFlags::empty()).must("rename")?;
    holds("the old name is absent", sys::is_absent(&env.at("x")))?;
    let (y, z) = env.pair("y", "d/z");
    sys::rename(&y, &z, RenameFlags::empty()).must("rename into a directory")?;
    holds("the old name is absent", sys::is_absent(&env.at("y")))?;
    same("as before", identity(&sys::lstat(&env.at("d/z")).must("lstat")?), identity(&before))
}

fn removed(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o700).must("make")?;
    if kind == Kind::Dir {
        rustix::fs::unlink(env.at("x")).fails(Errno::ISDIR, "unlink")?;
        rustix::fs::rmdir(env.at("x")).must("rmdir")?;
    } else {
        rustix::fs::rmdir(env.at("x")).fails(Errno::NOTDIR, "rmdir")?;
        rustix::fs::unlink(env.at("x")).must("unlink")?;
    }
    holds("absent", sys::is_absent(&env.at("x")))?;
    same("listing", sys::list(env.dir()).must("list")?, vec![])?;
    kind.make(&env.at("x"), 0o700).must("make again")
}

fn chmod(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o700).must("make")?;
    if kind == Kind::Link {
        // Through it, there is nothing.
        return sys::chmod(&env.at("x"), 0o600).fails(Errno::NOENT, "chmod");
    }
    for mode in [0o000, 0o421, 0o1644, 0o777] {
        sys::chmod(&env.at("x"), mode).must("chmod")?;
        let seen = sys::lstat(&env.at("x")).must("lstat")?;
        same("mode", mode_of(&seen), mode)?;
        same("type", FileType::from_raw_mode(seen.st_mode), kind.file_type())?;
    }
    Ok(())
}

fn utimens(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o700).must("make")?;
    sys::utimens(&env.at("x"), sys::at_time(1_000, 1), sys::at_time(2_000_000_000, 999_999_999))
        .must("utimens")?;
    let seen = sys::lstat(&env.at("x")).must("lstat")?;
    same("atime", (seen.st_atime, seen.st_atime_nsec as i64), (1_000, 1))?;
    same("mtime", (seen.st_mtime, seen.st_mtime_nsec as i64), (2_000_000_000, 999_999_999))
}

fn opened_as_path(env: &Env, kind: Kind) -> Outcome {
    use rustix::fs::OFlags;
    kind.make(&env.at("x"), 0o700).must("make")?;
    let by_path = sys::open(&env.at("x"), OFlags::PATH | OFlags::NOFOLLOW, 0).must("open with O_PATH")?;
    let (seen, named) = (rustix::fs::fstat(&by_path).must("fstat")?, sys::lstat(&env.at("x")).must("lstat")?);
    same("the same inode", identity(&seen), identity(&named))?;
    rustix::io::read(&by_path, &mut [0u8; 1]).fails(Errno::BADF, "read")
}

fn owned(env: &Env, kind: Kind) -> Outcome {
    sys::chmod(env.dir(), 0o777).must("chmod")?;
    let path = env.at("x");
    let made = env.as_user(ANN, || kind.make(&path, 0o700))?;
    if kind.is_device() {
        return made.fails(Errno::PERM, "mknod by an ordinary user");
    }
    made.must("make")?;
    let seen = sys::lstat(&env.at("x")).must("lstat")?;
    same("owner and group", (seen.st_uid, seen.st_gid), (ANN.id, ANN.id))
}

fn chown(env: &Env, kind: Kind) -> Outcome {
    let both = (ANN.id, BOB.id);
    kind.make(&env.at("x"), 0o700).must("make")?;
    let owners = |env: &Env| sys::lstat(&env.at("x")).map(|seen| (seen.st_uid, seen.st_gid)).must("lstat");
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    sys::chown(&env.at("x"), Some(both.0), None, flags).must("chown of the owner")?;
    same("only the owner", owners(env)?, (both.0, 0))?;
    sys::chown(&env.at("x"), None, Some(both.1), flags).must("chown of the group")?;
    same("the group too", owners(env)?, both)?;
    sys::chown(&env.at("x"), None, None, flags).must("chown of nothing")?;
    same("as before", owners(env)?, both)
}

/// A directory keeps its bits, a symbolic link has none. Without execution by the group, the second bit stays for who
/// may set it: root, and who is in the file's group.
// S30.
fn chown_drops_set_id(env: &Env, kind: Kind) -> Outcome {
    if kind == Kind::Link {
        return Ok(());
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    kind.make(&env.at("x"), 0o700).must("make")?;
    let root_s = [(0o6755, 0o755), (0o6711, 0o711), (0o2745, 0o2745), (0o4644, 0o644), (0o6644, 0o2644)];
    let others = [(0o6755, 0o755), (0o6711, 0o711), (0o2745, 0o745), (0o4644, 0o644), (0o6644, 0o644)];
    for (by, table) in [("root", root_s), ("the owner", root_s), ("an owner outside of the group", others)] {
        for (before, after) in table {
            let group = if by.ends_with("the group") { BOB.id } else { ANN.id };
            sys::chown(&env.at("x"), Some(ANN.id), Some(group), flags).must("chown")?;
            sys::chmod(&env.at("x"), before).must("chmod")?;
            let path = env.at("x");
            let chown = || sys::chown(&path, None, Some(ANN.id), flags);
            let done = if by == "root" { chown() } else { env.as_user(ANN, chown)? };
            done.must(by)?;
            let after = if kind == Kind::Dir { before } else { after };
            let seen = mode_of(&sys::lstat(&env.at("x")).must("lstat")?);
            same(&format!("mode that was {before:o}, by {by}"), seen, after)?;
        }
    }
    Ok(())
}

fn not_chowned(env: &Env, kind: Kind) -> Outcome {
    kind.make(&env.at("x"), 0o777).must("make")?;
    let path = env.at("x");
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    env.as_user(ANN, || sys::chown(&path, Some(ANN.id), None, flags))?.fails(Errno::PERM, "chown")?;
    sys::chown(&env.at("x"), Some(ANN.id), Some(ANN.id), flags).must("chown")?;
    let path = env.at("x");
    env.as_user(ANN, || sys::chown(&path, Some(BOB.id), None, flags))?
        .fails(Errno::PERM, "giving it away")?;
    let path = env.at("x");
    env.as_user(ANN, || sys::chown(&path, None, Some(BOB.id), flags))?
        .fails(Errno::PERM, "a group that is not the owner's")
}

fn not_chmodded(env: &Env, kind: Kind) -> Outcome {
    if kind == Kind::Link {
        return Ok(());
    }
    kind.make(&env.at("x"), 0o777).must("make")?;
    let path = env.at("x");
    env.as_user(BOB, || sys::chmod(&path, 0o700))?.fails(Errno::PERM, "chmod")?;
    same("mode", mode_of(&sys::lstat(&env.at("x")).must("lstat")?), 0o777)
}

fn not_made(env: &Env, kind: Kind) -> Outcome {
    if kind.is_device() {
        return Ok(());
    }
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    let path = env.at("d/x");
    env.as_user(ANN, || kind.make(&path, 0o700))?.fails(Errno::ACCESS, "make")?;
    sys::chmod(&env.at("d"), 0o777).must("chmod")?;
    let path = env.at("d/x");
    env.as_user(ANN, || kind.make(&path, 0o700))?.must("make where it may")
}

fn not_removed(env: &Env, kind: Kind) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    kind.make(&env.at("d/x"), 0o777).must("make")?;
    let remove = |path: &std::path::Path| match kind {
        Kind::Dir => rustix::fs::rmdir(path),
        _ => rustix::fs::unlink(path),
    };
    let path = env.at("d/x");
    env.as_user(ANN, || remove(&path))?.fails(Errno::ACCESS, "remove")?;
    sys::chmod(&env.at("d"), 0o777).must("chmod")?;
    let path = env.at("d/x");
    env.as_user(ANN, || remove(&path))?.must("remove where it may")
}

fn inherits_group(env: &Env, kind: Kind) -> Outcome {
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    sys::chown(&env.at("d"), None, Some(BOB.id), AtFlags::empty()).must("chown")?;
    sys::chmod(&env.at("d"), 0o2777).must("chmod")?;
    kind.make(&env.at("d/x"), 0o700).must("make")?;
    let seen = sys::lstat(&env.at("d/x")).must("lstat")?;
    same("owner and group", (seen.st_uid, seen.st_gid), (0, BOB.id))?;
    same("the bit goes on to directories", seen.st_mode & 0o2000 != 0, kind == Kind::Dir)
}

/// Cases of every kind.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in Kind::ALL {
        let whose = |needs_root: bool, name: &str, act: Act| {
            let name = format!("{}/{name}", kind.name());
            let run = move |env: &Env| act(env, kind);
            if needs_root { root_case(name, run) } else { case(name, run) }
        };
        cases.extend(FOR_EACH.iter().map(|(name, act)| whose(kind.is_device(), name, *act)));
        cases.extend(WITH_USERS.iter().map(|(name, act)| whose(true, name, *act)));
    }
    cases
}

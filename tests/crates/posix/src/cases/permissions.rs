//! Who may do what: every class of user with every combination of bits.

use rustix::fs::{Access, AtFlags, CWD, OFlags};
use rustix::io::{Errno, Result};

use crate::case::{Case, Expect, Outcome, root_case, same};
use crate::env::{ANN, BOB, CAL, Env, User};
use crate::sys;

/// A class of users, who stands for it, and where its bits are.
const CLASSES: [(&str, User, u32); 3] = [("owner", ANN, 6), ("group", CAL, 3), ("other", BOB, 0)];

/// A file or directory of ann's whose bits allow this class `bits`, and everybody else the contrary.
fn only(env: &Env, name: &str, shift: u32, bits: u32) -> Outcome {
    let everything = 0o777 & !(7 << shift);
    let contrary = if bits == 0 { everything } else { 0 };
    sys::chown(&env.at(name), Some(ANN.id), Some(ANN.id), AtFlags::empty()).must("chown")?;
    sys::chmod(&env.at(name), bits << shift | contrary).must("chmod")
}

fn allowed(outcome: Result<()>, may: bool, what: &str) -> Outcome {
    if may { outcome.must(what) } else { outcome.fails(Errno::ACCESS, what) }
}

// S29.
fn file(env: &Env, class: (&str, User, u32), bits: u32) -> Outcome {
    let (_, user, shift) = class;
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    sys::put(&env.at("x"), b"12345").must("file")?;
    only(env, "x", shift, bits)?;
    let (r, w, x) = (bits & 4 != 0, bits & 2 != 0, bits & 1 != 0);
    let path = env.at("x");
    let open = |flags| env.as_user(user, || sys::open(&path, flags, 0).map(drop));
    allowed(open(OFlags::RDONLY)?, r, "open to read")?;
    allowed(open(OFlags::WRONLY)?, w, "open to write")?;
    allowed(open(OFlags::RDWR)?, r && w, "open to read and write")?;
    allowed(open(OFlags::WRONLY | OFlags::APPEND)?, w, "open to append")?;
    let path = env.at("x");
    for (name, access, may) in
        [("read", Access::READ_OK, r), ("write", Access::WRITE_OK, w), ("execute", Access::EXEC_OK, x)]
    {
        // By its real and by its effective user, which are the same.
        for flags in [AtFlags::empty(), AtFlags::EACCESS] {
            let asked = env.as_user(user, || rustix::fs::accessat(CWD, &path, access, flags))?;
            allowed(asked, may, name)?;
        }
    }
    let both = Access::READ_OK | Access::WRITE_OK;
    allowed(env.as_user(user, || rustix::fs::access(&path, both))?, r && w, "both")?;
    allowed(env.as_user(user, || sys::truncate(&path, 3))?, w, "truncate")
}

fn dir(env: &Env, class: (&str, User, u32), bits: u32) -> Outcome {
    let (_, user, shift) = class;
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    sys::put(&env.at("d/inside"), b"12345").must("file")?;
    sys::put(&env.at("d/gone"), b"").must("file")?;
    only(env, "d", shift, bits)?;
    let (r, w, x) = (bits & 4 != 0, bits & 2 != 0, bits & 1 != 0);
    let path = env.at("d");
    let as_user = |act: &(dyn Fn() -> Result<()> + Sync)| env.as_user(user, act);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    allowed(as_user(&|| sys::list(&path).map(drop))?, r, "list")?;
    allowed(as_user(&|| sys::open(&path, flags, 0).map(drop))?, r, "open")?;
    allowed(as_user(&|| sys::lstat(&path.join("inside")).map(drop))?, x, "look at what is inside")?;
    allowed(as_user(&|| sys::get(&path.join("inside")).map(drop))?, x, "read what is inside")?;
    allowed(as_user(&|| sys::put(&path.join("new"), b""))?, w && x, "make")?;
    allowed(as_user(&|| sys::mkdir(&path.join("newer"), 0o755))?, w && x, "mkdir")?;
    if w || !x {
        // Otherwise there is nothing of one's own to link to, and for another's the kernel has rules of its own.
        allowed(as_user(&|| rustix::fs::link(path.join("new"), path.join("linked")))?, w && x, "link")?;
    }
    allowed(as_user(&|| rustix::fs::rename(path.join("inside"), path.join("y")))?, w && x, "rename")?;
    allowed(as_user(&|| rustix::fs::unlink(path.join("gone")))?, w && x, "unlink")?;
    same("what is there", sys::list(&env.at("d")).must("list")?.len(), if w && x { 4 } else { 2 })
}

/// Root reads and writes everything; executes only what somebody may execute.
fn root(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"12345").must("file")?;
    sys::chown(&env.at("x"), Some(ANN.id), Some(ANN.id), AtFlags::empty()).must("chown")?;
    sys::chmod(&env.at("x"), 0).must("chmod")?;
    sys::open(&env.at("x"), OFlags::RDWR, 0).must("open")?;
    let asked = |access| rustix::fs::access(env.at("x"), access);
    asked(Access::READ_OK | Access::WRITE_OK).must("read and write")?;
    asked(Access::EXEC_OK).fails(Errno::ACCESS, "execute")?;
    sys::chmod(&env.at("x"), 0o001).must("chmod")?;
    rustix::fs::access(env.at("x"), Access::EXEC_OK).must("execute what others may")
}

/// In a sticky directory only the owner of the entry, or of the directory, removes it.
fn sticky(env: &Env) -> Outcome {
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    sys::mkdir(&env.at("d"), 0o755).must("mkdir")?;
    sys::chown(&env.at("d"), Some(CAL.id), None, AtFlags::empty()).must("chown")?;
    sys::chmod(&env.at("d"), 0o1777).must("chmod")?;
    for (n, (user, may)) in [(BOB, false), (ANN, true), (CAL, true)].into_iter().enumerate() {
        let (file, dir) = (format!("d/f{n}"), format!("d/d{n}"));
        sys::put(&env.at(&file), b"").must("file")?;
        sys::mkdir(&env.at(&dir), 0o777).must("mkdir")?;
        for name in [&file, &dir] {
            sys::chown(&env.at(name), Some(ANN.id), Some(ANN.id), AtFlags::empty()).must("chown")?;
        }
        let (file, dir) = (env.at(&file), env.at(&dir));
        let gone = env.as_user(user, || rustix::fs::unlink(&file))?;
        if may { gone.must("unlink") } else { gone.fails(Errno::PERM, "unlink") }?;
        let gone = env.as_user(user, || rustix::fs::rmdir(&dir))?;
        if may { gone.must("rmdir") } else { gone.fails(Errno::PERM, "rmdir") }?;
    }
    Ok(())
}

/// A permission that was taken away is gone at once, through every mount; what is open stays open.
fn withdrawn(env: &Env) -> Outcome {
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    sys::put(&env.at("x"), b"12345").must("file")?;
    for _ in 0..4 {
        sys::chmod(&env.at("x"), 0o644).must("chmod")?;
        let path = env.at("x");
        let file = env.as_user(ANN, || sys::open(&path, OFlags::RDONLY, 0))?.must("open")?;
        sys::chmod(&env.at("x"), 0o600).must("chmod")?;
        let path = env.at("x");
        env.as_user(ANN, || sys::open(&path, OFlags::RDONLY, 0))?.fails(Errno::ACCESS, "open again")?;
        same("what is open", sys::read_at(&file, 0, 9).must("read")?, b"12345".to_vec())?;
    }
    Ok(())
}

/// The owner of a file loses it with a chown, and the group's members gain it.
fn given_away(env: &Env) -> Outcome {
    sys::chmod(env.dir(), 0o755).must("chmod")?;
    sys::put(&env.at("x"), b"12345").must("file")?;
    sys::chmod(&env.at("x"), 0o640).must("chmod")?;
    let may = |user: User| {
        let path = env.at("x");
        env.as_user(user, || sys::open(&path, OFlags::RDONLY, 0).map(drop))
    };
    may(CAL)?.fails(Errno::ACCESS, "not yet in its group")?;
    sys::chown(&env.at("x"), Some(BOB.id), Some(ANN.id), AtFlags::empty()).must("chown")?;
    may(CAL)?.must("by a further group")?;
    may(BOB)?.must("by the owner")?;
    sys::chown(&env.at("x"), Some(ANN.id), Some(BOB.id), AtFlags::empty()).must("chown")?;
    may(CAL)?.fails(Errno::ACCESS, "no longer in its group")?;
    may(ANN)?.must("by the new owner")
}

/// Cases of permissions.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        root_case("permissions/root", root),
        root_case("permissions/sticky", sticky),
        root_case("permissions/withdrawn", withdrawn),
        root_case("permissions/given_away", given_away),
    ];
    for class in CLASSES {
        for bits in 0..8 {
            let name = |what: &str| format!("permissions/{what}_{}_{bits}", class.0);
            cases.push(root_case(name("file"), move |env| file(env, class, bits)));
            cases.push(root_case(name("dir"), move |env| dir(env, class, bits)));
        }
    }
    cases
}

//! Where a case runs, and as whom.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Gid, Uid};

/// The directory of a case, as seen through each mount.
#[derive(Debug)]
pub struct Env {
    dirs: Vec<PathBuf>,
    turn: AtomicUsize,
}

/// A user besides root: number of user and group, and further groups.
#[derive(Clone, Copy, Debug)]
pub struct User {
    /// Number of the user and of its group.
    pub id: u32,
    /// Further groups.
    pub groups: &'static [u32],
}

/// An ordinary user.
pub const ANN: User = User { id: 1001, groups: &[] };
/// Another one.
pub const BOB: User = User { id: 1002, groups: &[] };
/// One who is in ann's group as well.
pub const CAL: User = User { id: 1003, groups: &[1001] };

impl Env {
    /// A case's directory under its paths.
    #[must_use]
    pub fn new(dirs: Vec<PathBuf>) -> Env {
        Env { dirs, turn: AtomicUsize::new(0) }
    }

    /// The directory through the next mount.
    pub fn dir(&self) -> &Path {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.dirs.get(turn % self.dirs.len().max(1)).map_or(Path::new("."), PathBuf::as_path)
    }

    /// A name in it, through the next mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Two names in it through one mount, the next: what takes two paths does not go from one mount to another.
    pub fn pair(&self, one: &str, other: &str) -> (PathBuf, PathBuf) {
        let dir = self.dir();
        (dir.join(one), dir.join(other))
    }

    /// Runs something as another user, in a thread of its own: to the kernel, a thread has its own credentials.
    pub fn as_user<T: Send>(&self, user: User, act: impl FnOnce() -> T + Send) -> Result<T, String> {
        let run = || {
            become_user(user).map_err(|errno| format!("becoming user {}: {errno:?}", user.id))?;
            Ok(act())
        };
        std::thread::scope(|scope| {
            scope.spawn(run).join().unwrap_or_else(|_| Err("the thread of another user panicked".into()))
        })
    }
}

fn become_user(user: User) -> rustix::io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let (uid, gid) = (Uid::from_raw(user.id), Gid::from_raw(user.id));
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

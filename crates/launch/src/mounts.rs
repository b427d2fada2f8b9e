//! The mounts of this machine, as the kernel lists them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use bivouac_types::mount_table::FORMATION_SOURCE;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::environment::Environment;
use crate::mount_table::{MountEntry, Table};
use crate::name::FormationName;
use crate::process::users_of;
use crate::{Kind, LaunchError, LaunchResult};

/// Programs that unmount for users who may not.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// Attempts at a mount that is busy, but with nobody; each time all processes are looked at.
const BUSY_LOOKS: usize = 100;

/// Time that a mount may take to say that it is dead; one that lives may take for ever.
const DEAD_WAIT: Duration = Duration::from_millis(500);

/// Returns the source that the mounts of a formation show.
#[must_use]
pub fn source_of(name: &FormationName) -> String {
    format!("{FORMATION_SOURCE}{name}")
}

/// Returns all mounts of formations, the latest last.
#[must_use]
pub fn mounted() -> Vec<MountEntry> {
    Table::here().formations().cloned().collect()
}

/// Returns the mount of a formation that a path without symbolic links is in; none for one that is on another file
/// system, which is mounted in the formation or over it. The path need not exist.
#[must_use]
pub fn mount_of(path: &Path) -> Option<MountEntry> {
    let there = path.ancestors().find_map(|above| std::fs::symlink_metadata(above).ok())?;
    let (major, minor) = (rustix::fs::major(there.dev()), rustix::fs::minor(there.dev()));
    let holds = |entry: &MountEntry| path.starts_with(&entry.dir) && (major, minor) == (0, entry.connection);
    mounted().into_iter().filter(holds).max_by_key(|entry| entry.dir.as_os_str().len())
}

/// Outcome of an unmount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It was unmounted.
    Cleanly,
    /// It was detached from the tree, but these processes still use it.
    Detached(Vec<(u32, String)>),
}

/// Action for a mount that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBusy {
    /// Refuse, and say who uses it.
    Refuse,
    /// Take it out of the tree all the same.
    Detach,
}

/// Takes a mount out of the tree. `dead` says that nobody serves it, so that nothing waits for an answer.
///
/// # Errors
/// Who uses it, when that is a reason to refuse; otherwise what the system refused.
pub fn unmount(here: &Environment, dir: &Path, when_busy: WhenBusy, dead: bool) -> LaunchResult<Unmounted> {
    let plain = UnmountFlags::NOFOLLOW;
    // What waits for a dead one fails in any case, so nobody has to leave it first.
    let first = if dead { plain | UnmountFlags::FORCE | UnmountFlags::DETACH } else { plain };
    // Without a look at who uses it: that reads every process of the machine, and mostly nobody does.
    let mut result = rustix::mount::unmount(dir, first);
    // A process that ends, or that is about to begin, holds what it had open or inherited for a moment, and is not
    // found any more when it is looked for.
    for _ in 0..BUSY_LOOKS {
        if result != Err(Errno::BUSY) || !users_of(dir).is_empty() {
            break;
        }
        result = rustix::mount::unmount(dir, first);
    }
    match (result, when_busy) {
        (Ok(()), _) => Ok(Unmounted::Cleanly),
        (Err(Errno::BUSY), WhenBusy::Refuse) => Err(busy(dir, &users_of(dir))),
        (Err(Errno::BUSY), WhenBusy::Detach) => {
            let users = users_of(dir);
            let detached = rustix::mount::unmount(dir, plain | UnmountFlags::DETACH);
            detached.map_err(|e| LaunchError::path(dir, "unmount it", e))?;
            Ok(Unmounted::Detached(users))
        }
        // Not root: the helper of fuse3 has the right to unmount what the same user mounted.
        (Err(Errno::PERM | Errno::ACCESS), _) => unmount_with_helper(here, dir, when_busy),
        (Err(Errno::INVAL | Errno::NOENT), _) => {
            let remedy = "bivouac status shows the mounts";
            Err(LaunchError::new(Kind::Refused, dir.display(), "is not mounted here", remedy))
        }
        (Err(error), _) => Err(LaunchError::path(dir, "unmount it", error)),
    }
}

fn unmount_with_helper(here: &Environment, dir: &Path, when_busy: WhenBusy) -> LaunchResult<Unmounted> {
    let helper = HELPERS.iter().find_map(|name| here.find_program(name)).ok_or_else(|| {
        let cause = "may not be unmounted by this user, and fusermount3 is not installed";
        LaunchError::new(Kind::Refused, dir.display(), cause, "install fuse3, or ask the administrator")
    })?;
    // Before the helper runs: what is detached is at no path where it could be looked for.
    let users = users_of(dir);
    let lazily = when_busy == WhenBusy::Detach;
    let mut command = Command::new(&helper);
    command.arg("-u").arg("-q").args(lazily.then_some("-z")).arg("--").arg(dir);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| LaunchError::path(&helper, "run it", e))?;
    match output.status.success() {
        true if lazily && !users.is_empty() => Ok(Unmounted::Detached(users)),
        true => Ok(Unmounted::Cleanly),
        false if !users.is_empty() => Err(busy(dir, &users)),
        false => {
            let cause = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(LaunchError::new(Kind::Refused, dir.display(), cause, "see the helper's message"))
        }
    }
}

/// Returns whether the kernel says that a mount's connection is gone for good. Waits 500 ms for an answer at most.
#[must_use]
pub fn is_dead(dir: &Path) -> bool {
    let (sender, answer) = mpsc::channel();
    let dir = dir.to_owned();
    // One that lives and does not answer holds this thread, not the command.
    let asking = move || sender.send(rustix::fs::statfs(&dir).map(drop));
    // Without a thread, as at a limit of processes, it is not known to be dead; `thread::spawn` would panic.
    std::thread::Builder::new().spawn(asking).is_ok()
        && answer.recv_timeout(DEAD_WAIT) == Ok(Err(Errno::NOTCONN))
}

/// Processes as a list for a message.
#[must_use]
pub fn list_users(users: &[(u32, String)]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> =
        users.iter().take(SHOWN).map(|(pid, name)| format!("{name} ({pid})")).collect();
    if users.len() > SHOWN {
        text.push(format!("and {} more", users.len() - SHOWN));
    }
    // Another user’s processes are not listed with their files, so an empty list is no proof that nobody is there.
    if text.is_empty() { "a process that this user may not see".into() } else { text.join(", ") }
}

fn busy(dir: &Path, users: &[(u32, String)]) -> LaunchError {
    let cause = format!("is in use by {}", list_users(users));
    LaunchError::new(Kind::Refused, dir.display(), cause, "end them, or leave the directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_the_way_is_listed() {
        let users: Vec<(u32, String)> = (1..=10).map(|pid| (pid, "sh".into())).collect();
        assert_eq!(list_users(&users[..2]), "sh (1), sh (2)");
        assert!(list_users(&users).ends_with("sh (8), and 2 more"));
        assert!(list_users(&[]).contains("may not see"));
    }

    #[test]
    fn what_is_not_mounted_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let here = crate::environment::tests::environment(None);
        let refused = unmount(&here, dir.path(), WhenBusy::Refuse, false).unwrap_err();
        assert!(refused.to_string().starts_with(&dir.path().display().to_string()), "{refused}");
        assert_eq!(mount_of(dir.path()), None);
    }
}

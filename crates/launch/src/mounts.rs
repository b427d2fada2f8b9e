//! The mounts of this machine, as the kernel lists them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::environment::Environment;
use crate::name::FormationName;
use crate::process::users_of;
use crate::{Kind, LaunchError, LaunchResult};

/// File system type of a formation's mounts.
pub const FS_TYPE: &str = "fuse.bivouac";
/// Programs that unmount for users who may not.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// How often a mount that is busy, but with nobody, is tried again; each time all processes are looked at.
const BUSY_LOOKS: usize = 100;

/// How long a mount may take to say that it is dead; one that lives may take for ever.
const DEAD_WAIT: Duration = Duration::from_millis(500);

/// A mount of a formation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is.
    pub dir: PathBuf,
    /// What it shows as its source; see [`source_of`].
    pub source: String,
    /// The user who may use it.
    pub user: Option<u32>,
}

/// What the mounts of a formation show as their source.
#[must_use]
pub fn source_of(name: &FormationName) -> String {
    format!("bivouac:{name}")
}

/// All mounts of formations, the latest last.
#[must_use]
pub fn mounted() -> Vec<MountEntry> {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// As [`mounted`], as a process sees it, each with the kernel's number for it.
pub(crate) fn mounted_for(pid: u32) -> Vec<(u64, MountEntry)> {
    let text = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let number =
        |line: &[u8]| std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?.parse().ok();
    text.split(|byte| *byte == b'\n').filter_map(|line| Some((number(line)?, parse_line(line)?))).collect()
}

/// The mount of a formation that a path is in.
#[must_use]
pub fn mount_of(path: &Path) -> Option<MountEntry> {
    let containing = mounted().into_iter().filter(|entry| path.starts_with(&entry.dir));
    containing.max_by_key(|entry| entry.dir.as_os_str().len())
}

/// How an unmount went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It is gone.
    Cleanly,
    /// It is gone from the tree, but these processes still use it.
    Detached(Vec<(u32, String)>),
}

/// What to do about a mount that is in use.
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
    let first = if dead { plain | UnmountFlags::FORCE | UnmountFlags::DETACH } else { plain };
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

/// Whether the kernel says that a mount's connection is gone for good.
pub(crate) fn is_dead(dir: &Path) -> bool {
    let (sender, answer) = mpsc::channel();
    let dir = dir.to_owned();
    // One that lives and does not answer holds this thread, not the command.
    std::thread::spawn(move || sender.send(rustix::fs::statfs(&dir).map(drop)));
    answer.recv_timeout(DEAD_WAIT) == Ok(Err(Errno::NOTCONN))
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
    if text.is_empty() { "a process that this user may not see".into() } else { text.join(", ") }
}

fn busy(dir: &Path, users: &[(u32, String)]) -> LaunchError {
    let cause = format!("is in use by {}", list_users(users));
    LaunchError::new(Kind::Refused, dir.display(), cause, "end them, or leave the directory")
}

/// A mount out of a line of mountinfo; `None` for other file systems.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dir = PathBuf::from(OsString::from_vec(unescape(fields.get(4)?)));
    let rest = fields.iter().position(|field| *field == b"-")?;
    let kind = fields.get(rest + 1)?;
    if *kind != FS_TYPE.as_bytes() {
        return None;
    }
    let source = String::from_utf8_lossy(&unescape(fields.get(rest + 2)?)).into_owned();
    let options = String::from_utf8_lossy(fields.get(rest + 3)?).into_owned();
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(MountEntry { dir, source, user })
}

/// Undoes the kernel's escapes: a backslash and three octal digits.
pub(crate) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, tail)) = rest.split_first() {
        let escaped = match (byte, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        out.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = br"64 29 0:54 / /run/user/1/b\040c rw,nosuid shared:3 master:1 - fuse.bivouac bivouac:x rw,user_id=7,group_id=7";
        let entry = MountEntry { dir: "/run/user/1/b c".into(), source: "bivouac:x".into(), user: Some(7) };
        assert_eq!(parse_line(line), Some(entry));
        assert_eq!(parse_line(b"64 29 0:54 / / rw - ext4 /dev/sda rw"), None);
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"1 2 3 4 5 -"), None);
        assert_eq!(source_of(&"x".parse().unwrap()), "bivouac:x");
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape(br"a\040b\134\011\08\"), b"a b\\\t\\08\\");
    }

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

    proptest! {
        #[test]
        fn any_line_is_a_mount_or_none(line: Vec<u8>) {
            let _ = parse_line(&line);
            prop_assert!(unescape(&line).len() <= line.len());
        }
    }
}

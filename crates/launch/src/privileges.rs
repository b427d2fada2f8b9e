//! Rights of this user to mount: as root, through the helper of fuse3, or in namespaces of their own.
#![allow(unsafe_code, reason = "leaving a namespace has no safe interface")]

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::environment::Environment;
use crate::{Kind, LaunchError, LaunchResult};

/// Bit of the capability to mount in the kernel's list.
const CAP_SYS_ADMIN: u32 = 21;

/// Way in which this process can mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountWay {
    /// With the system call.
    Direct,
    /// Through the set-user-id helper, this program.
    Helper(PathBuf),
    /// Not at all, except in namespaces of its own; see [`enter_namespaces`].
    Namespaces,
}

impl MountWay {
    /// Returns the best way that there is. `helpers` are names of the helper, the better one first.
    #[must_use]
    pub fn choose(here: &Environment, helpers: &[&str]) -> MountWay {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        if may_mount(&status) {
            return MountWay::Direct;
        }
        let helper = helpers.iter().find_map(|name| here.find_program(name));
        helper.map_or(MountWay::Namespaces, MountWay::Helper)
    }
}

/// Returns the refusal for a user who may not mount, and has no helper.
#[must_use]
pub fn cannot_mount() -> LaunchError {
    let remedy = "install fuse3, use `bivouac run` (it needs no helper), or give --no-mount";
    LaunchError::new(
        Kind::Refused,
        "mounting",
        "needs fusermount3 for an ordinary user, and it is not installed",
        remedy,
    )
}

/// Moves this process into a user and a mount namespace of its own, where it may mount; its user stays the
/// same. To be called while it has only one thread.
///
/// # Errors
/// When the system does not allow it to ordinary users.
pub fn enter_namespaces() -> LaunchResult<()> {
    let refused = |e: std::io::Error| {
        let object = "a user namespace (fusermount3 is not installed either)";
        let remedy = "install fuse3, or have the administrator allow user namespaces (sysctl user.max_user_namespaces, \
                      kernel.apparmor_restrict_unprivileged_userns)";
        LaunchError::new(Kind::Refused, object, e, remedy)
    };
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // Together: the mount namespace belongs to the user namespace then, which gives the right to mount in it.
    // SAFETY: the table of descriptors stays shared; nothing that other threads rely on is parted.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }.map_err(|e| refused(e.into()))?;
    // The kernel demands it of who maps a group without privileges.
    std::fs::write("/proc/self/setgroups", "deny").map_err(refused)?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(refused)?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(refused)?;
    // Mounts that are made here must not show in the namespace that this is a copy of.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|e| refused(e.into()))
}

/// Runs a helper to its end, with a socket as its standard input. Its messages go to standard error.
///
/// # Errors
/// When it cannot be started.
pub fn run_helper(
    program: &Path,
    arguments: &[OsString],
    environment: (&str, &str),
    input: OwnedFd,
) -> LaunchResult<()> {
    let mut command = Command::new(program);
    command.args(arguments).env(environment.0, environment.1).stdin(input).stdout(Stdio::null());
    command.status().map(|_| ()).map_err(|e| LaunchError::path(program, "run it", e))
}

fn may_mount(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_SYS_ADMIN & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;

    #[test]
    fn the_capability_decides() {
        assert!(may_mount("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(may_mount("CapEff:\t0000000000200000\n"));
        assert!(!may_mount("CapEff:\t0000000000000000\n"));
        assert!(!may_mount("CapEff:\tx\n") && !may_mount(""));
    }

    #[test]
    fn without_capability_a_helper_is_looked_for() {
        let way = MountWay::choose(&environment(None), &["no-such-helper", "sh"]);
        assert!(
            way == MountWay::Direct || matches!(&way, MountWay::Helper(path) if path.ends_with("sh")),
            "{way:?}"
        );
        let refusal = cannot_mount().to_string();
        assert!(refusal.contains("install fuse3") && refusal.contains("--no-mount"), "{refusal}");
    }

    #[test]
    fn a_helper_gets_arguments_and_environment() {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let script = "printf '%s %s' \"$1\" \"$VARIABLE\" >&0".to_owned();
        let arguments = ["-c".into(), script.into(), "sh".into(), "argument".into()];
        run_helper(Path::new("/bin/sh"), &arguments, ("VARIABLE", "value"), there.into()).unwrap();
        assert_eq!(std::io::read_to_string(here).unwrap(), "argument value");
        assert!(run_helper(Path::new("/nonexistent"), &[], ("A", "b"), memory()).is_err());
    }

    fn memory() -> OwnedFd {
        crate::packets::to_memory(&0).unwrap()
    }
}

//! Puts the file system into the directory tree, and takes it out.

pub mod fusermount;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bivouac_types::mount_table::FORMATION_FS_TYPE;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{geteuid, getgid, getuid};
use rustix::thread::{CapabilitySet, capabilities};

const DEVICE: &str = "/dev/fuse";

/// Options of a mount towards the system.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// The formation's name: the source in `/proc/mounts`.
    pub source: String,
    /// True if other users may enter. Permission bits are checked in any case.
    pub allow_other: bool,
    /// True if most content is on other machines. Otherwise reads are limited to what fits a pipe.
    pub remote: bool,
}

/// Reason why the file system is not in the tree.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no FUSE device.
    #[error("/dev/fuse is missing; load the module (modprobe fuse), or give the container the device")]
    NoDevice,
    /// The device may not be opened.
    #[error("/dev/fuse may not be opened: {0}; the container or the administrator must allow it")]
    DeviceRefused(io::Error),
    /// The mount point is not there.
    #[error("mount point {0} does not exist; create the directory first")]
    Missing(PathBuf),
    /// The mount point is not a directory.
    #[error("mount point {0} is not a directory; name one")]
    NotADirectory(PathBuf),
    /// The mount point has entries, which would be hidden.
    #[error("mount point {0} is not empty; name an empty directory")]
    NotEmpty(PathBuf),
    /// A mount is there whose daemon is gone.
    #[error("mount point {0} holds a dead mount; remove it with: fusermount3 -u -z {0} (or umount -l {0})")]
    Stale(PathBuf),
    /// The user may not mount.
    #[error("no permission to mount at {0}; install fuse3 (fusermount3), or run in a user namespace")]
    NotPermitted(PathBuf),
    /// Nothing is mounted there.
    #[error("{0} is not a mount point")]
    NotMounted(PathBuf),
    /// The helper did not mount.
    #[error("fusermount3 did not mount {0}; its message says why, or use --no-mount")]
    HelperFailed(PathBuf),
    /// Anything else.
    #[error("{0}: {1}")]
    Other(PathBuf, io::Error),
}

/// Mounts at `dir` with the mount system call, for root and for the root of a user namespace, and
/// answers the device. Set-id programs and device nodes in it have no effect.
///
/// # Errors
/// `NotPermitted` where [`fusermount`] may still succeed; otherwise what is wrong, and the remedy.
pub fn mount_fuse(dir: &Path, options: &AttachOptions) -> Result<OwnedFd, AttachError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place =
        rustix::fs::open(dir, flags, Mode::empty()).map_err(|error| mount_point_error(dir, error.into()))?;
    mount_fuse_at(place.as_fd(), dir, options)
}

/// Like [`mount_fuse`], at an open directory, whatever is at its path `dir` meanwhile.
pub fn mount_fuse_at(
    place: BorrowedFd<'_>,
    dir: &Path,
    options: &AttachOptions,
) -> Result<OwnedFd, AttachError> {
    check_mount_point(dir)?;
    let at = format!("/proc/self/fd/{}", place.as_raw_fd());
    let device = open_device()?;
    let data = mount_data(&device, options, may_do_everything());
    let data = CString::new(data).map_err(|_| AttachError::Other(dir.into(), Errno::INVAL.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    match rustix::mount::mount(options.source.as_str(), at, FORMATION_FS_TYPE, flags, data.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM | Errno::ACCESS) => Err(AttachError::NotPermitted(dir.into())),
        Err(error) => Err(AttachError::Other(dir.into(), error.into())),
    }
}

/// Unmounts `dir`; where files are still open, they keep working until they are closed.
///
/// # Errors
/// `NotMounted`, `NotPermitted` (then [`fusermount::unmount_arguments`] may help), or what the system says.
pub fn unmount(dir: &Path) -> Result<(), AttachError> {
    let flags = UnmountFlags::NOFOLLOW;
    let result = match rustix::mount::unmount(dir, flags) {
        // Not detached at once: a plain unmount is over when it returns.
        Err(Errno::BUSY) => rustix::mount::unmount(dir, flags | UnmountFlags::DETACH),
        other => other,
    };
    result.map_err(|error| match error {
        Errno::INVAL | Errno::NOENT => AttachError::NotMounted(dir.into()),
        Errno::PERM | Errno::ACCESS => AttachError::NotPermitted(dir.into()),
        other => AttachError::Other(dir.into(), other.into()),
    })
}

/// Checks that `dir` is an empty directory without a dead mount on it.
///
/// # Errors
/// Which of these it is not.
pub fn check_mount_point(dir: &Path) -> Result<(), AttachError> {
    let seen = fs::metadata(dir).map_err(|error| mount_point_error(dir, error))?;
    if !seen.is_dir() {
        return Err(AttachError::NotADirectory(dir.into()));
    }
    let mut entries = fs::read_dir(dir).map_err(|error| mount_point_error(dir, error))?;
    if entries.next().is_some() { Err(AttachError::NotEmpty(dir.into())) } else { Ok(()) }
}

fn mount_point_error(dir: &Path, error: io::Error) -> AttachError {
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => AttachError::Missing(dir.into()),
        Some(Errno::NOTDIR) => AttachError::NotADirectory(dir.into()),
        // What a FUSE mount says whose device nobody has open any more.
        Some(Errno::NOTCONN | Errno::CONNABORTED) => AttachError::Stale(dir.into()),
        _ => AttachError::Other(dir.into(), error),
    }
}

fn open_device() -> Result<OwnedFd, AttachError> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => AttachError::NoDevice,
        other => AttachError::DeviceRefused(other.into()),
    })
}

/// Returns whether permission bits are nothing to this process.
fn may_do_everything() -> bool {
    let able = |sets: rustix::thread::CapabilitySets| sets.effective.contains(CapabilitySet::DAC_OVERRIDE);
    geteuid().is_root() && capabilities(None).is_ok_and(able)
}

/// Returns the data of the `mount` call. The kernel looks up owner and mode of a directory at each step of a path, and
/// asks for them again after each change in it, to check permissions. Where only somebody enters whom they do not bind,
/// it is spared that.
fn mount_data(device: &OwnedFd, options: &AttachOptions, may_do_everything: bool) -> String {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    if options.allow_other || !may_do_everything {
        data.push_str(",default_permissions");
    }
    data.push_str(&max_read(options));
    if options.allow_other {
        data.push_str(",allow_other");
    }
    data
}

/// Returns the option that bounds reads, if they need one.
fn max_read(options: &AttachOptions) -> String {
    let bytes = if options.remote { None } else { crate::pipe::read_max() };
    bytes.map_or(String::new(), |bytes| format!(",max_read={bytes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_must_be_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_mount_point(dir.path()).is_ok());
        let file = dir.path().join("file");
        fs::write(&file, b"x").unwrap();
        let refusal = |path: &Path| check_mount_point(path).unwrap_err().to_string();
        assert!(refusal(dir.path()).contains("is not empty; name an empty directory"));
        assert!(refusal(&file).contains("is not a directory"));
        assert!(refusal(&file.join("below")).contains("is not a directory"));
        assert!(refusal(&dir.path().join("none")).contains("does not exist; create"));
    }

    #[test]
    fn a_dead_mount_is_told_with_its_remedy() {
        let error = mount_point_error(Path::new("/mnt/x"), Errno::NOTCONN.into());
        assert!(error.to_string().contains("fusermount3 -u -z /mnt/x"), "{error}");
    }

    #[test]
    fn what_is_not_mounted_cannot_be_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let error = unmount(dir.path()).unwrap_err();
        assert!(matches!(error, AttachError::NotMounted(_) | AttachError::NotPermitted(_)), "{error}");
    }

    #[test]
    fn the_mount_options_name_the_device_and_the_user() {
        let device = crate::create_state().unwrap();
        let data = |allow_other, may_do_everything| {
            let options = AttachOptions { source: "camp".into(), allow_other, remote: false };
            mount_data(&device, &options, may_do_everything)
        };
        assert!(data(true, false).starts_with(&format!("fd={},rootmode=40000,user_id=", device.as_raw_fd())));
        assert!(data(true, true).contains(",default_permissions,"), "others are bound");
        assert!(data(false, false).contains(",default_permissions"));
        assert!(!data(false, true).contains("default_permissions"));
        let remote = AttachOptions { source: "camp".into(), allow_other: false, remote: true };
        assert!(!mount_data(&device, &remote, false).contains("max_read"));
    }
}

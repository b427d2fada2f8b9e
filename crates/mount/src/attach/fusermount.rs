//! Mounting for users who may not: through the set-user-id helper of fuse3. This module prepares the
//! call and receives the device; whoever may start processes starts the helper in between:
//!
//! ```text
//! let (arguments, call) = fusermount::prepare(dir, &options)?;
//! // start PROGRAMS[0] (or the next one that exists) with `arguments`, standard input
//! // `call.helper_end`, and ENVIRONMENT set; then
//! let device = fusermount::receive_device(&call.our_end, dir)?;
//! ```

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use super::{AttachError, AttachOptions, check_mount_point, max_read};

/// Names of the helper, the better one first.
pub const PROGRAMS: [&str; 2] = ["fusermount3", "fusermount"];
/// Variable and value that tell the helper to send the device over its standard input, a socket.
pub const ENVIRONMENT: (&str, &str) = ("_FUSE_COMMFD", "0");

/// The socket over which the device comes.
#[derive(Debug)]
pub struct Call {
    /// Standard input of the helper. To be closed here once the helper runs.
    pub helper_end: OwnedFd,
    /// For [`receive_device`].
    pub our_end: OwnedFd,
}

/// Checks the mount point and prepares the arguments and the socket of the helper.
///
/// # Errors
/// What is wrong with the mount point, or that there is no socket.
pub fn prepare(dir: &Path, options: &AttachOptions) -> Result<(Vec<OsString>, Call), AttachError> {
    check_mount_point(dir)?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (our_end, helper_end) = pair.map_err(|error| AttachError::Other(dir.into(), error.into()))?;
    Ok((mount_arguments(dir, options), Call { helper_end, our_end }))
}

/// Waits for the device that the helper opened and mounted. Answers when the helper ends.
///
/// # Errors
/// `HelperFailed` when it ended without sending one.
pub fn receive_device(our_end: &OwnedFd, dir: &Path) -> Result<OwnedFd, AttachError> {
    match receive_descriptor(our_end) {
        Ok(Some(device)) => Ok(device),
        Ok(None) => Err(AttachError::HelperFailed(dir.into())),
        Err(error) => Err(AttachError::Other(dir.into(), error)),
    }
}

/// Arguments that make the helper unmount `dir`, for users who may not.
#[must_use]
pub fn unmount_arguments(dir: &Path) -> Vec<OsString> {
    vec!["-u".into(), "-q".into(), "-z".into(), "--".into(), dir.into()]
}

fn mount_arguments(dir: &Path, options: &AttachOptions) -> Vec<OsString> {
    let allow_other = if options.allow_other { ",allow_other" } else { "" };
    // The helper parts its options at commas.
    let source = options.source.replace([',', '\\'], "_");
    let max_read = max_read(options);
    let list =
        format!("nosuid,nodev,default_permissions{max_read},subtype=bivouac,fsname={source}{allow_other}");
    vec!["-o".into(), list.into(), "--".into(), dir.into()]
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    // One byte comes with the descriptor; without any the helper has ended, and its message is on standard error.
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::fs::File;
    use std::io::{IoSlice, Read, Seek, Write};
    use std::os::fd::AsFd;

    fn options() -> AttachOptions {
        AttachOptions { source: "camp,rw".into(), allow_other: false, remote: false }
    }

    #[test]
    fn the_device_comes_over_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let (arguments, call) = prepare(dir.path(), &options()).unwrap();
        assert_eq!(arguments.last().unwrap(), dir.path());
        assert!(arguments.iter().any(|a| a.to_string_lossy().ends_with("subtype=bivouac,fsname=camp_rw")));
        let mut sent = tempfile::tempfile().unwrap();
        sent.write_all(b"device").unwrap();
        let fds = [sent.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&call.helper_end, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()).unwrap();
        let mut received = File::from(receive_device(&call.our_end, dir.path()).unwrap());
        received.rewind().unwrap();
        let mut content = String::new();
        received.read_to_string(&mut content).unwrap();
        assert_eq!(content, "device");
    }

    #[test]
    fn a_helper_that_ends_without_a_device_is_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let (_, call) = prepare(dir.path(), &options()).unwrap();
        drop(call.helper_end);
        let error = receive_device(&call.our_end, dir.path()).unwrap_err();
        assert!(error.to_string().contains("did not mount"), "{error}");
    }

    #[test]
    fn a_bad_mount_point_needs_no_helper() {
        assert!(matches!(prepare(Path::new("/nonexistent/x"), &options()), Err(AttachError::Missing(_))));
        assert_eq!(unmount_arguments(Path::new("/m")).len(), 5);
    }
}

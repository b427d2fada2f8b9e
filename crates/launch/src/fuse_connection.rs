//! The kernel's end of a mount: what ends the wait of a process that waits for itself there. No signal ends the wait
//! for a request that somebody has taken up.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Directory in which the kernel shows connections, each with a file that ends it. It belongs to the user who mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// The notification that makes the kernel send again requests that were read and not answered (Linux 6.9).
const NOTIFY_RESEND: i32 = 7;
/// Room for the largest request: the kernel takes no reader with less than it agreed on.
const REQUEST_MAX: usize = 8 << 20;
/// Length of what is in front of a request, in bytes: length u32, operation u32, number u64, and more.
const HEADER_LEN: usize = 40;
/// Operations that expect no answer: FORGET, INTERRUPT, BATCH_FORGET.
const WITHOUT_ANSWER: [u32; 3] = [2, 36, 42];

/// Makes the kernel fail everything that waits for a mount, and everything later. Returns false where the kernel's list
/// of connections is not mounted.
pub(crate) fn abort(connection: u32) -> bool {
    let Some(file) = control(connection) else { return false };
    let ended = std::fs::write(&file, "1");
    ended.inspect_err(|error| log::warn!(why:% = error; "{}", file.display())).is_ok()
}

/// Refuses everything by the device, whose owner needs no list and no right: everything that waits, and everything
/// later, is taken up and refused, in a thread of its own, until the mount or this process is over.
pub(crate) fn refuse_all(device: OwnedFd) {
    let refuse = move || {
        let device = File::from(device);
        // What nobody has taken up is refused in any case.
        let _kernel_is_older = send(&device, 0, NOTIFY_RESEND);
        let mut request = vec![0; REQUEST_MAX];
        loop {
            match (&device).read(&mut request).map(|len| len.min(request.len())) {
                Ok(len) if len >= HEADER_LEN => refuse_one(&device, &request),
                // NOENT: the request was interrupted before it was read; there are others.
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::NOENT)) => {}
                Ok(_) | Err(_) => return,
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("refuse".into()).spawn(refuse) {
        log::error!(why:% = error; "there is no thread to refuse what waits for a mount");
    }
}

fn refuse_one(device: &File, request: &[u8]) {
    let operation = request.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    let number = request.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
    if let (Some(operation), Some(number)) = (operation, number)
        && !WITHOUT_ANSWER.contains(&operation)
    {
        // That nobody waits any more is as well.
        let _taken_back = send(device, number, -Errno::IO.raw_os_error());
    }
}

fn send(device: &File, number: u64, error: i32) -> rustix::io::Result<usize> {
    let mut header = Vec::with_capacity(16);
    header.extend(16u32.to_ne_bytes());
    header.extend(error.to_ne_bytes());
    header.extend(number.to_ne_bytes());
    rustix::io::writev(device, &[IoSlice::new(&header)])
}

fn control(connection: u32) -> Option<PathBuf> {
    let file = Path::new(CONNECTIONS).join(connection.to_string()).join("abort");
    (connection != 0 && file.exists()).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Write;

    #[test]
    fn what_is_not_there_is_not_ended() {
        assert!(!abort(0) && !abort(u32::MAX));
    }

    #[test]
    fn everything_that_expects_an_answer_is_refused() {
        let (ours, kernel) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut kernel = File::from(kernel);
        refuse_all(ours);
        let answer = |error: i32, number: u64| {
            [&16u32.to_ne_bytes()[..], &error.to_ne_bytes(), &number.to_ne_bytes()].concat()
        };
        let read = |kernel: &mut File| {
            let mut bytes = [0; 64];
            let len = kernel.read(&mut bytes).unwrap();
            bytes[..len].to_vec()
        };
        assert_eq!(read(&mut kernel), answer(NOTIFY_RESEND, 0));
        for (operation, number) in [(2u32, 10u64), (15, 12), (42, 14), (3, 16)] {
            let mut request = [0; HEADER_LEN];
            request[4..8].copy_from_slice(&operation.to_ne_bytes());
            request[8..16].copy_from_slice(&number.to_ne_bytes());
            kernel.write_all(&request).unwrap();
        }
        assert_eq!((read(&mut kernel), read(&mut kernel)), (answer(-5, 12), answer(-5, 16)));
    }

    /// Mounts a device at a directory and agrees with the kernel; `None` where that is not possible.
    fn mounted(dir: &Path) -> Option<File> {
        let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let data =
            format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&device));
        let (data, flags) = (std::ffi::CString::new(data).unwrap(), rustix::mount::MountFlags::empty());
        rustix::mount::mount("none", dir, "fuse.test", flags, data.as_c_str()).ok()?;
        let number = receive(&device);
        // Version 7.31, nothing wished for.
        let mut agreed = [0u8; 80];
        agreed[..4].copy_from_slice(&80u32.to_ne_bytes());
        agreed[8..16].copy_from_slice(&number.to_ne_bytes());
        agreed[16..20].copy_from_slice(&7u32.to_ne_bytes());
        agreed[20..24].copy_from_slice(&31u32.to_ne_bytes());
        agreed[36..40].copy_from_slice(&4096u32.to_ne_bytes());
        (&device).write_all(&agreed).unwrap();
        Some(device)
    }

    /// Takes up a request; its number.
    fn receive(mut device: &File) -> u64 {
        let mut request = vec![0; 1 << 20];
        let read = device.read(&mut request).unwrap();
        assert!(read >= 40, "a request has a header");
        u64::from_ne_bytes(request[8..16].try_into().unwrap())
    }

    /// S325: a request that was taken up and is not answered holds whoever waits for it, signals or not.
    #[test]
    fn who_waits_in_a_mount_that_nobody_serves_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = mounted(dir.path()) else {
            return println!("skipped: nothing can be mounted here");
        };
        let mut waits = std::process::Command::new("stat").arg(dir.path().join("x")).spawn().unwrap();
        receive(&device);
        waits.kill().unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", waits.id())).unwrap_or_default();
        while !stat().contains(") D ") {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        refuse_all(device.try_clone().unwrap().into());
        waits.wait().unwrap();
        rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

//! A bare FUSE file system in memory: what a mount could cost at least. One thread, one copy where a call is as large as a
//! block, and nothing of what a real one must do. It is the limit that the mount is measured beside, and no more.

mod files;
pub mod wire;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::Serialize;

use self::files::Files;
use self::wire::{Request, header};
use crate::member_protocol::{MemberMessage, MemberTask};
use crate::team::Member;
use crate::{BenchError, BenchResult, Host};

/// Its name in tables.
pub const BARE_FUSE: &str = "bare FUSE";
/// Header of a request and arguments of a write, in bytes: what is in front of a write's data.
const HEAD: usize = 80;

/// The part of a process that serves a bare file system at this directory.
#[derive(Debug, Serialize)]
pub struct BareFuseTask(PathBuf);

impl MemberTask for BareFuseTask {
    const KIND: &'static str = "BareFuse";
}

/// A bare file system that a process of its own serves; taken out of the tree with this value.
pub struct BareFuse {
    dir: PathBuf,
    _server: Member,
}

impl BareFuse {
    /// Mounts one at an empty directory.
    ///
    /// # Errors
    /// Where this user may not mount.
    pub fn at(host: &Host<'_>, dir: &Path) -> BenchResult<BareFuse> {
        let mut server = Member::start(host, &BareFuseTask(dir.to_owned()))?;
        match server.hear(host)? {
            MemberMessage::Serving => Ok(BareFuse { dir: dir.to_owned(), _server: server }),
            _ => Err(BenchError::refused(BARE_FUSE, "did not say that it serves")),
        }
    }
}

impl Drop for BareFuse {
    fn drop(&mut self) {
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        if let Err(error) = unmount(&self.dir, flags) {
            log::error!(why:% = error; "{}: is not unmounted", self.dir.display());
        }
    }
}

/// Does the part of the process that serves: mounts, says so, serves until it is unmounted.
pub fn serve(dir: &Path, ready: impl FnOnce() -> BenchResult<()>) -> BenchResult<()> {
    let device = attach(dir)?;
    // Mounted by now: whoever looks at it waits until requests are taken.
    ready()?;
    let mut files = Files::default();
    let (mut head, mut block) = (vec![0; HEAD], files.block());
    let mut out = Vec::new();
    while let Some(len) = receive(&device, &mut head, &mut block)? {
        let Some(request) = Request::of(&head, &block, len) else { continue };
        out.clear();
        let outcome = files.serve(&request, &mut out);
        if request.expects_reply() {
            answer(&device, &request, outcome.map(drop), &out, &files)?;
        }
        if let Ok(Some(taken)) = outcome {
            // The data stay where they came, and the next request comes elsewhere.
            files.keep(taken, &mut block);
        }
    }
    Ok(())
}

/// Mounts at a directory; what is asked there is read from the descriptor.
///
/// # Errors
/// Where this user may not mount.
pub fn attach(dir: &Path) -> BenchResult<OwnedFd> {
    let refused = |what: &'static str| BenchError::system::<Errno>(what);
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(refused("/dev/fuse"))?;
    let user = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let data = format!("fd={},rootmode=40000,user_id={},group_id={}", device.as_raw_fd(), user.0, user.1);
    let data = std::ffi::CString::new(data).map_err(|_| BenchError::refused(BARE_FUSE, "has no options"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("bivouac-bench", dir, "fuse.bivouac-bench", flags, data.as_c_str()).map_err(refused("mount"))?;
    Ok(device)
}

/// The next request, its beginning into `head` and the rest into `block`: its length. `None` when it is unmounted.
pub fn receive(device: &OwnedFd, head: &mut [u8], block: &mut [u8]) -> BenchResult<Option<usize>> {
    loop {
        let parts = &mut [IoSliceMut::new(head), IoSliceMut::new(block)];
        match rustix::io::readv(device.as_fd(), parts) {
            Ok(len) => return Ok(Some(len)),
            Err(Errno::NODEV) => return Ok(None),
            // ENOENT: whoever asked was interrupted before this was read, and there is no request.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(error) => return Err(BenchError::system("/dev/fuse")(error)),
        }
    }
}

fn answer(
    device: &OwnedFd,
    request: &Request<'_>,
    outcome: Result<(), Errno>,
    out: &[u8],
    files: &Files,
) -> BenchResult<()> {
    let data = if outcome.is_ok() { files.data(request) } else { &[] };
    let len = if outcome.is_ok() { out.len() + data.len() } else { 0 };
    let head = header(request.unique, outcome.err(), len);
    let parts = [IoSlice::new(&head), IoSlice::new(out), IoSlice::new(data)];
    tell(device, if len == 0 { &parts[..1] } else { &parts[..] })
}

/// Answers with these parts of a message.
pub fn tell(device: &OwnedFd, parts: &[IoSlice<'_>]) -> BenchResult<()> {
    match rustix::io::writev(device.as_fd(), parts) {
        // Who asked is gone, or the whole file system.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
        Err(error) => Err(BenchError::system("/dev/fuse")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::wire::BLOCK;
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let (sender, serving) = std::sync::mpsc::channel();
        let server = std::thread::spawn({
            let path = path.clone();
            move || {
                serve(&path, || {
                    sender.send(()).unwrap();
                    Ok(())
                })
            }
        });
        if serving.recv().is_err() {
            assert!(server.join().unwrap().is_err(), "who may not mount is told");
            return;
        }
        let sub = path.join("sub");
        std::fs::create_dir(&sub).unwrap();
        let mut options = std::fs::File::options();
        let file = options.create_new(true).read(true).write(true).open(sub.join("f")).unwrap();
        let content: Vec<u8> = (0..3 * BLOCK + 5000).map(|at| (at * 7 % 251) as u8).collect();
        for (at, part) in content.chunks(BLOCK).enumerate() {
            file.write_all_at(part, (at * BLOCK) as u64).unwrap();
        }
        file.write_all_at(b"across", BLOCK as u64 - 3).unwrap();
        let mut expected = content;
        expected[BLOCK - 3..BLOCK + 3].copy_from_slice(b"across");
        assert_eq!(std::fs::read(sub.join("f")).unwrap(), expected);
        let mut part = vec![0; 4096];
        file.read_exact_at(&mut part, BLOCK as u64 - 4096).unwrap();
        assert_eq!(part, expected[BLOCK - 4096..BLOCK]);
        drop(file);
        let small = options.open(sub.join("small")).unwrap();
        small.write_all_at(b"seldom", 10).unwrap();
        assert_eq!(std::fs::read(sub.join("small")).unwrap(), b"\0\0\0\0\0\0\0\0\0\0seldom");
        small.write_all_at(b"large", BLOCK as u64).unwrap();
        let grown = std::fs::read(sub.join("small")).unwrap();
        assert_eq!(
            (grown.len(), &grown[10..16], &grown[BLOCK..]),
            (BLOCK + 5, &b"seldom"[..], &b"large"[..])
        );
        drop(small);
        std::fs::remove_file(sub.join("small")).unwrap();
        let many = path.join("many");
        std::fs::create_dir(&many).unwrap();
        (0..1000).for_each(|i| std::fs::write(many.join(format!("file-{i}")), b"").unwrap());
        assert_eq!(std::fs::read_dir(&many).unwrap().count(), 1000);
        std::fs::remove_dir_all(&many).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(&sub).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["f"]);
        std::fs::remove_dir_all(&sub).unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        unmount(&path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH).unwrap();
        server.join().unwrap().unwrap();
    }
}

//! A directory that is as slow as site storage: an in-memory file system whose answers take a while. Each request takes
//! a delay at least, and the bytes of all pass one behind the other at a rate. Whoever works in it, a program or a
//! daemon that brings files there, pays the same.
//!
//! Programs write past the page cache, with a request per call; names and attributes may be cached for a second. What is
//! read again has just been written by the same machine, so it costs nothing unless that is wanted.

mod answers;
mod serve;
mod throttle;
mod tree;

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use self::answers::Answers;
use self::serve::{COUNTS, Site};
use self::throttle::{Cost, Throttle};
use crate::fuse::wire::{BLOCK, Request};
use crate::fuse::{attach, receive, tell};
use crate::member_protocol::{MemberMessage, MemberTask};
use crate::team::Member;
use crate::{BenchError, BenchResult, Host};

pub use serve::Counts;

/// Room for a request without its data, in bytes.
const HEAD: usize = 4096;

/// Settings of a slow directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slowness {
    /// An empty directory to mount it at.
    pub dir: PathBuf,
    /// Least time of each request, in milliseconds.
    pub delay_ms: u32,
    /// Bytes per second of all requests together; 0 is no limit.
    pub rate: u64,
    /// True if reading costs what writing does.
    pub pays_for_reads: bool,
}

impl MemberTask for Slowness {
    const KIND: &'static str = "SlowDir";
}

/// A slow directory that a process of its own serves; taken out of the tree with this value.
pub struct SlowDir {
    dir: PathBuf,
    _server: Member,
}

impl SlowDir {
    /// Mounts one.
    ///
    /// # Errors
    /// Where this user may not mount.
    pub fn at(host: &Host<'_>, slowness: Slowness) -> BenchResult<SlowDir> {
        let dir = slowness.dir.clone();
        let mut server = Member::start(host, &slowness)?;
        match server.hear(host) {
            Ok(MemberMessage::Serving) => Ok(SlowDir { dir, _server: server }),
            Ok(_) => Err(BenchError::refused("the slow source", "did not say that it serves")),
            Err(error) if error.kind() == crate::Kind::Interrupted => Err(error),
            Err(error) => {
                let cause = format_args!("cannot be mounted: {error}");
                let remedy = "it needs /dev/fuse and root; or measure a directory that is slow by itself, with --source";
                Err(BenchError::usage("the slow source", cause, remedy))
            }
        }
    }

    /// Its location.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Requests to it so far.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn counts(&self) -> BenchResult<Counts> {
        let path = self.dir.join(COUNTS);
        let text = std::fs::read(&path).map_err(BenchError::system(path.display()))?;
        serde_json::from_slice(&text).map_err(|error| BenchError::refused(path.display(), error))
    }
}

impl Drop for SlowDir {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
            log::error!(why:% = error; "{}: is not unmounted", self.dir.display());
        }
    }
}

/// Does the part of the process that serves: mounts, says so, serves until it is unmounted.
pub fn serve(slowness: &Slowness, ready: impl FnOnce() -> BenchResult<()>) -> BenchResult<()> {
    let device = attach(&slowness.dir)?;
    ready()?;
    let answers = Answers::default();
    std::thread::scope(|scope| {
        // One thread takes requests, and another answers: delays of several overlap, as at a site.
        let later = scope.spawn(|| {
            while let Some(answer) = answers.next() {
                tell(&device, &[IoSlice::new(&answer)])?;
            }
            Ok(())
        });
        let asked = take_requests(slowness, &device, &answers);
        answers.end();
        let told = later.join().unwrap_or_else(|_| Err(BenchError::refused("the slow source", "broke")));
        asked.and(told)
    })
}

/// Does at once what is asked, and has it answered when its time has come.
fn take_requests(slowness: &Slowness, device: &OwnedFd, answers: &Answers) -> BenchResult<()> {
    let delay = Duration::from_millis(u64::from(slowness.delay_ms));
    let mut throttle = Throttle::new(delay, slowness.rate, Instant::now());
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut site = Site::new(owner, slowness.pays_for_reads);
    let mut message = vec![0; HEAD + BLOCK];
    while let Some(len) = receive(device, &mut message, &mut [])? {
        let Some(request) = message.get(..len).and_then(Request::whole) else { continue };
        match site.serve(&request) {
            Some((answer, Cost::Free)) => tell(device, &[IoSlice::new(&answer)])?,
            Some((answer, cost)) => answers.put(throttle.over(Instant::now(), cost), answer),
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

    /// Does something in a slow directory; nothing where this user may not mount.
    fn in_a_slow_dir(pays_for_reads: bool, work: impl FnOnce(&SlowDir)) {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().to_owned();
        let slowness = Slowness { dir: dir.clone(), delay_ms: 1, rate: 0, pays_for_reads };
        let (sender, serving) = std::sync::mpsc::channel();
        let ready = move || {
            sender.send(()).unwrap();
            Ok(())
        };
        let server = std::thread::spawn(move || serve(&slowness, ready));
        if serving.recv().is_err() {
            assert!(server.join().unwrap().is_err(), "who may not mount is told");
            return;
        }
        let shell = crate::Host { own: "/bin/true".into(), ..crate::tests::host() };
        let server_of_none =
            Member::start(&shell, &Slowness { dir: "/d".into(), delay_ms: 0, rate: 0, pays_for_reads })
                .unwrap();
        let slow = SlowDir { dir, _server: server_of_none };
        work(&slow);
        drop(slow);
        server.join().unwrap().unwrap();
    }

    #[test]
    fn it_is_a_file_system_of_directories_and_files() {
        in_a_slow_dir(true, |slow| {
            let dir = slow.path().join("a");
            fs::create_dir(&dir).unwrap();
            let file = fs::File::create_new(dir.join("making")).unwrap();
            file.set_len(3_000_000).unwrap();
            let content: Vec<u8> = (0..2_500_000).map(|at| (at * 7 % 251) as u8).collect();
            file.write_all_at(&content, 300_000).unwrap();
            file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
            file.set_modified(time).unwrap();
            file.sync_all().unwrap();
            fs::write(dir.join("made"), b"old").unwrap();
            fs::rename(dir.join("making"), dir.join("made")).unwrap();
            let meta = fs::metadata(dir.join("made")).unwrap();
            assert_eq!((meta.len(), meta.mode(), meta.modified().unwrap()), (3_000_000, 0o100_640, time));
            let read = fs::read(dir.join("made")).unwrap();
            assert!(read[..300_000].iter().chain(&read[2_800_000..]).all(|byte| *byte == 0));
            assert!(read[300_000..2_800_000] == content);
            (0..300).for_each(|number| fs::write(dir.join(format!("file-{number:0>200}")), b"x").unwrap());
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 301);
            fs::remove_dir_all(&dir).unwrap();
            assert_eq!(fs::read_dir(slow.path()).unwrap().count(), 0, "the counts are not listed");
        });
    }

    #[test]
    fn what_is_asked_is_counted() {
        in_a_slow_dir(false, |slow| {
            let file = fs::File::create(slow.path().join("f")).unwrap();
            file.set_len(1000).unwrap();
            let before = slow.counts().unwrap();
            (0..5).for_each(|piece| file.write_all_at(&[7; 100], piece * 200).unwrap());
            let asked = slow.counts().unwrap().since(&before);
            assert_eq!((asked.requests["write"], asked.written), (5, 500));
            file.sync_all().unwrap();
            let asked = slow.counts().unwrap().since(&before);
            assert_eq!((asked.requests["fsync"], asked.total()), (1, 6), "{asked:?}");
        });
    }
}

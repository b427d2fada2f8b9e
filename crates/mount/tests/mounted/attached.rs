//! A mount under the real kernel, for as long as a value lives.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bivouac_mount::{
    AttachError, AttachOptions, Mount, MountError, Options, create_state, fusermount, mount_fuse, unmount,
};
use tempfile::TempDir;

use crate::memory::Memory;

pub struct Attached {
    dir: TempDir,
    pub fs: Arc<Memory>,
    pub mount: Arc<Mount<Memory>>,
    server: Option<JoinHandle<Result<(), MountError>>>,
}

/// What was mounted, not yet served.
pub struct Bare {
    pub dir: TempDir,
    pub device: OwnedFd,
    pub state: File,
}

pub fn options() -> AttachOptions {
    AttachOptions { source: "test".into(), allow_other: true, remote: false }
}

impl Bare {
    /// Mounts, or says why this machine cannot.
    pub fn new() -> Option<Bare> {
        let dir = tempfile::tempdir().unwrap();
        match mount_fuse(dir.path(), &options()) {
            Ok(device) => Some(Bare { dir, device, state: File::from(create_state().unwrap()) }),
            Err(
                error
                @ (AttachError::NoDevice | AttachError::DeviceRefused(_) | AttachError::NotPermitted(_)),
            ) => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Serves it in this process.
    pub fn serve(self, fs: Memory, options: Options) -> Attached {
        let fs = Arc::new(fs);
        let mount = Arc::new(Mount::new(Arc::clone(&fs), self.device, self.state, options).unwrap());
        let runner = Arc::clone(&mount);
        let server = Some(thread::spawn(move || runner.run()));
        Attached { dir: self.dir, fs, mount, server }
    }
}

impl Attached {
    pub fn new() -> Option<Attached> {
        Bare::new().map(|bare| bare.serve(Memory::new(), Options::default()))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Unmounts and waits for the server to end.
    pub fn end(mut self) {
        match unmount(self.dir.path()) {
            Err(AttachError::NotPermitted(dir)) => unmount_with_helper(&dir),
            other => other.unwrap(),
        }
        self.server.take().unwrap().join().unwrap().unwrap();
        assert_eq!(self.dir.path().read_dir().unwrap().count(), 0);
    }
}

fn unmount_with_helper(dir: &Path) {
    let arguments = fusermount::unmount_arguments(dir);
    assert!(Command::new(fusermount::PROGRAMS[0]).args(arguments).status().unwrap().success());
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.server.is_some() {
            let _ = unmount(self.dir.path());
        }
    }
}

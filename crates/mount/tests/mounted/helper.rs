//! Mounting through fusermount3.

use std::fs::{self, File, OpenOptions};
use std::process::Command;

use bivouac_mount::{AttachOptions, Options, create_state, fusermount};

use crate::attached::Bare;
use crate::memory::Memory;

#[test]
fn the_helper_mounts_and_hands_over_the_device() {
    let dir = tempfile::tempdir().unwrap();
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        return eprintln!("skipped: /dev/fuse: {error}");
    }
    let options = AttachOptions { source: "helped".into(), allow_other: false, remote: false };
    let (arguments, call) = fusermount::prepare(dir.path(), &options).unwrap();
    let (variable, value) = fusermount::ENVIRONMENT;
    let mut command = Command::new(fusermount::PROGRAMS[0]);
    let spawned = command.args(arguments).env(variable, value).stdin(call.helper_end).spawn();
    drop(command);
    let mut helper = match spawned {
        Ok(helper) => helper,
        Err(error) => return eprintln!("skipped: {}: {error}", fusermount::PROGRAMS[0]),
    };
    let device = fusermount::receive_device(&call.our_end, dir.path());
    assert!(helper.wait().unwrap().success());
    let bare = Bare { dir, device: device.unwrap(), state: File::from(create_state().unwrap()) };
    let attached = bare.serve(Memory::new(), Options::default());
    fs::write(attached.path("file"), "content").unwrap();
    assert_eq!(fs::read_to_string(attached.path("file")).unwrap(), "content");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let path = attached.path("");
    let line =
        mounts.lines().find(|line| line.contains(path.to_str().unwrap().trim_end_matches('/'))).unwrap();
    assert!(line.starts_with("helped ") && line.contains(" fuse.bivouac "), "{line}");
    attached.end();
}

//! Trees for tests: made, described so that two can be compared, and processes with fewer rights.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is test code")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bivouac_stage::{CopyOptions, Failure, NoProgress, StageError, Summary, copy_tree};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};

/// Everything about an object that a copy keeps, as text.
pub fn describe(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    for entry in walkdir::WalkDir::new(root) {
        let entry = entry.unwrap();
        let path = entry.path().strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        let meta = entry.metadata().unwrap();
        let content = match () {
            () if meta.is_file() => blake3::hash(&fs::read(entry.path()).unwrap()).to_hex().to_string(),
            () if meta.is_symlink() => format!("-> {:?}", fs::read_link(entry.path()).unwrap()),
            () => String::new(),
        };
        let nlink = if meta.is_file() { meta.nlink() } else { 0 };
        let line = format!(
            "mode {:o} mtime {}.{:09} nlink {nlink} {content}",
            meta.mode(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        found.insert(path, line);
    }
    found
}

/// Names in a directory tree, temporary ones included.
pub fn names(root: &Path) -> Vec<String> {
    describe(root).into_keys().map(|name| name.escape_ascii().to_string()).collect()
}

/// A tree with one of everything that a copy keeps.
pub fn one_of_everything(root: &Path) {
    fs::create_dir_all(root.join("deep/er/empty")).unwrap();
    fs::write(root.join("plain"), "plain text").unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::write(root.join("deep/script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("deep/script"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(root.join("plain"), root.join("deep/er/again")).unwrap();
    std::os::unix::fs::symlink("../nowhere", root.join("deep/link")).unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"not text \xff\xfe\n")), "odd name").unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(CWD, root.join("pipe"), fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    large(&root.join("large"), (130 << 20) + 12_345);
    fs::set_permissions(root.join("large"), fs::Permissions::from_mode(0o444)).unwrap();
    for (path, secs) in [("plain", 1), ("deep/link", 2), ("deep/er", 3), ("deep", -4), ("pipe", 5), ("", 6)] {
        let time = Timespec { tv_sec: secs, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, root.join(path), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// A large file, mostly holes, with data on both sides of block and part boundaries.
pub fn large(path: &Path, size: u64) {
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (at, byte) in [(0, 1u8), ((4 << 20) - 100, 2), ((64 << 20) - 3000, 3), (size - 200, 4)] {
        file.write_all_at(&[byte; 200], at).unwrap();
    }
}

/// Whether the file system takes user attributes; sets one.
pub fn set_xattr(path: &Path, name: &str, value: &[u8]) -> bool {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).is_ok()
}

pub fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 65_536];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

pub fn copy(src: &Path, dst: &Path) -> Result<Summary, StageError> {
    copy_tree(src, dst, &CopyOptions { jobs: 3, ..CopyOptions::default() }, &NoProgress)
}

/// The failures of a copy that must be incomplete.
pub fn incomplete(outcome: Result<Summary, StageError>) -> (Summary, Vec<Failure>) {
    match outcome {
        Err(StageError::Incomplete { summary, failures }) => (*summary, failures),
        other => panic!("not incomplete: {other:?}"),
    }
}

/// Runs the calling test, by its whole name, again as a user without rights if it runs as root. Returns whether the body
/// shall run here.
pub fn as_ordinary_user(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        return true;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("test");
    // By another process: a program that any process, forked meanwhile by another test, has open for writing cannot be run.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    let mut command = Command::new(program);
    command.uid(65_534).gid(65_534).current_dir("/").env_remove("TMPDIR");
    passes(command, test);
    false
}

/// Runs the calling test again in a mount namespace of its own. Returns whether the body shall run here,
/// which may then mount; a machine that gives no namespaces runs it nowhere.
pub fn in_own_mounts(test: &str) -> bool {
    const INSIDE: &str = "BIVOUAC_TEST_OWN_MOUNTS";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let flags: &[&str] = if rustix::process::geteuid().is_root() { &["-m"] } else { &["-r", "-m"] };
    if !Command::new("unshare").args(flags).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("{test}: no mount namespaces here");
        return false;
    }
    let mut command = Command::new("unshare");
    command.args(flags).arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
    passes(command, test);
    false
}

/// A mount that goes away again.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn new(arguments: &[&str], at: &Path) -> Mounted {
        let status = Command::new("mount").args(arguments).arg(at).status().unwrap();
        assert!(status.success(), "mount {arguments:?} {}", at.display());
        Mounted(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn passes(mut command: Command, test: &str) {
    let output = command.args(["--exact", test, "--nocapture"]).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

//! The descriptors of a process, as the kernel lists them.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::mount_table::{MountEntry, Table};
use crate::mounts::source_of;
use crate::{FormationName, Kind, LaunchError, LaunchResult};

/// An open descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its number.
    pub number: u32,
    /// The file that it leads to, as the process names it.
    pub target: PathBuf,
    /// Way in which it was opened: `O_` flags, as Linux numbers them.
    pub flags: u32,
    /// The mount of a formation that it is in.
    pub mount: Option<MountEntry>,
    /// A path to the same file, whatever has become of its name.
    pub way: PathBuf,
}

/// Files that a process uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Its program's name.
    pub program: String,
    /// In the order of their numbers.
    pub descriptors: Vec<Descriptor>,
    /// Files that it has mapped, its libraries among them.
    pub mapped: Vec<PathBuf>,
}

/// Returns the files of a process.
///
/// # Errors
/// When there is no such process, or it is another user's.
pub fn files_of(pid: u32) -> LaunchResult<Files> {
    let root = PathBuf::from(format!("/proc/{pid}"));
    let refused = |error: std::io::Error| {
        let gone = error.raw_os_error() == Some(Errno::NOENT.raw_os_error());
        let (cause, remedy) = match gone {
            true => ("is not there".to_owned(), "look at its number: pgrep -a NAME"),
            false => (error.to_string(), "only its own user and root may look at its files"),
        };
        LaunchError::new(Kind::Refused, format_args!("process {pid}"), cause, remedy)
    };
    let listed = std::fs::read_dir(root.join("fd")).map_err(refused)?;
    let mounts = mounted_for(pid);
    let mut descriptors: Vec<Descriptor> =
        listed.flatten().filter_map(|entry| descriptor(&root, &entry.path(), &mounts)).collect();
    descriptors.sort_by_key(|descriptor| descriptor.number);
    let program = std::fs::read_to_string(root.join("comm")).unwrap_or_default().trim().to_owned();
    let maps = std::fs::read(root.join("maps")).unwrap_or_default();
    let mut mapped: Vec<PathBuf> = maps.split(|byte| *byte == b'\n').filter_map(mapped_file).collect();
    // A library has several lines, one behind the other.
    mapped.dedup();
    Ok(Files { program, descriptors, mapped })
}

/// Returns the inode numbers of files in the mounts of a formation that processes of this host have open for writing,
/// or mapped so, as far as this user may look at them. Asks the kernel alone, and no daemon.
#[must_use]
pub fn inodes_written_to(name: &FormationName) -> HashSet<u64> {
    let source = source_of(name);
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: u32| {
        let mut mounts = mounted_for(pid);
        mounts.retain(|entry| entry.source == source);
        if mounts.is_empty() {
            return Vec::new();
        }
        let root = PathBuf::from(format!("/proc/{pid}"));
        let listed = std::fs::read_dir(root.join("fd")).into_iter().flatten().flatten();
        let mut found: Vec<u64> =
            listed.filter_map(|entry| writes_to(&root, entry.file_name().to_str()?, &mounts)).collect();
        let maps = std::fs::read(root.join("maps")).unwrap_or_default();
        found.extend(maps.split(|byte| *byte == b'\n').filter_map(|line| mapped_for_writing(line, &mounts)));
        found
    };
    pids.flat_map(of).collect()
}

/// Returns the mounts of formations that a process sees.
fn mounted_for(pid: u32) -> Vec<MountEntry> {
    Table::of(pid).formations().cloned().collect()
}

/// Returns the inode that a descriptor writes to, if it does, in one of these mounts.
fn writes_to(root: &Path, name: &str, mounts: &[MountEntry]) -> Option<u64> {
    let info = std::fs::read_to_string(root.join("fdinfo").join(name)).ok()?;
    let field = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let number: u64 = field("mnt_id:")?.parse().ok()?;
    let flags = OFlags::from_bits_retain(u32::from_str_radix(field("flags:")?, 8).ok()?);
    let is_written = flags.intersects(OFlags::WRONLY | OFlags::RDWR) && !flags.contains(OFlags::PATH);
    if !is_written || !mounts.iter().any(|entry| entry.id == number) {
        return None;
    }
    // Kernels before 5.14 do not say it: the file is asked itself.
    let asked = || std::fs::metadata(root.join("fd").join(name)).ok().map(|seen| seen.ino());
    field("ino:").and_then(|ino| ino.parse().ok()).or_else(asked)
}

/// Returns the inode of a line of /proc/PID/maps, if it is one of these mounts', and what is stored there gets into the
/// file.
fn mapped_for_writing(line: &[u8], mounts: &[MountEntry]) -> Option<u64> {
    let text = String::from_utf8_lossy(line);
    let mut fields = text.split_ascii_whitespace().skip(1);
    let (perms, _offset, device) = (fields.next()?, fields.next()?, fields.next()?);
    // FUSE has no block device, so its major number is 0.
    let connection = device.strip_prefix("00:").and_then(|minor| u32::from_str_radix(minor, 16).ok())?;
    let is_ours = mounts.iter().any(|entry| entry.connection == connection);
    let ino = fields.next()?.parse().ok()?;
    // What is stored in a private mapping (`p`) never gets there.
    (is_ours && perms.as_bytes().get(1) == Some(&b'w') && perms.ends_with('s')).then_some(ino)
}

/// `None` if it was closed meanwhile.
fn descriptor(root: &Path, way: &Path, mounts: &[MountEntry]) -> Option<Descriptor> {
    let name = way.file_name()?.to_str()?;
    let info = std::fs::read_to_string(root.join("fdinfo").join(name)).ok()?;
    let field = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let number: u64 = field("mnt_id:")?.parse().ok()?;
    Some(Descriptor {
        number: name.parse().ok()?,
        target: std::fs::read_link(way).ok()?,
        flags: u32::from_str_radix(field("flags:")?, 8).ok()?,
        mount: mounts.iter().find(|entry| entry.id == number).cloned(),
        way: way.to_owned(),
    })
}

/// Returns the path of a line of /proc/PID/maps: its sixth column, which may have spaces.
fn mapped_file(line: &[u8]) -> Option<PathBuf> {
    let start = line.iter().position(|byte| *byte == b'/')?;
    line.get(start..).map(|path| PathBuf::from(OsStr::from_bytes(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_process_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("a b");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let files = files_of(std::process::id()).unwrap();
        let number = file.as_raw_fd().cast_unsigned();
        let found = files.descriptors.iter().find(|descriptor| descriptor.number == number).unwrap();
        assert_eq!((&found.target, &found.mount), (&path, &None));
        assert_ne!(found.flags & rustix::fs::OFlags::APPEND.bits(), 0, "{found:?}");
        std::fs::remove_file(&path).unwrap();
        assert!(std::fs::metadata(&found.way).is_ok(), "found without its name");
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        assert!(files.mapped.contains(&program), "{:?}", files.mapped);
    }

    #[test]
    fn a_process_that_is_not_there_is_said() {
        let error = files_of(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("process 4294967295: is not there; look at its number"), "{error}");
    }

    #[test]
    fn what_is_stored_in_a_mapping_counts_as_written() {
        let mounts = [Table::parse(b"9 1 0:47 / /m rw - fuse.bivouac bivouac:x rw")
            .formations()
            .next()
            .unwrap()
            .clone()];
        let of = |line: &str| mapped_for_writing(line.as_bytes(), &mounts);
        assert_eq!(of("7f00-7f01 rw-s 00000000 00:2f 4711    /m/a b"), Some(4711));
        assert_eq!(of("7f00-7f01 r--s 00000000 00:2f 4711    /m/a"), None, "only read");
        assert_eq!(of("7f00-7f01 rw-p 00000000 00:2f 4711    /m/a"), None, "its own copy");
        assert_eq!(of("7f00-7f01 rw-s 00000000 00:30 4711    /n/a"), None, "elsewhere");
        assert_eq!((of(""), of("7f00-7f01 rw-p 00000000 00:00 0 [heap]")), (None, None));
    }

    #[test]
    fn paths_are_taken_out_of_maps() {
        let line = b"7f00-7f01 r--p 00000000 fe:00 42    /tmp/a b (deleted)";
        assert_eq!(mapped_file(line), Some("/tmp/a b (deleted)".into()));
        assert_eq!(mapped_file(b"7f00-7f01 rw-p 00000000 00:00 0    [heap]"), None);
        assert_eq!(mapped_file(b""), None);
    }
}

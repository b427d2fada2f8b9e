//! System calls in the form in which the cases need them.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, XattrFlags, makedev,
};
use rustix::io::{Errno, Result};
use rustix::process::{Gid, Uid};

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link that leads nowhere.
    Link,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    Char,
    /// A block device.
    Block,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 7] =
        [Kind::File, Kind::Dir, Kind::Link, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block];

    /// Its name in the names of cases.
    pub fn name(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Dir => "dir",
            Kind::Link => "symlink",
            Kind::Fifo => "fifo",
            Kind::Socket => "socket",
            Kind::Char => "char",
            Kind::Block => "block",
        }
    }

    /// Whether only root can make one.
    pub fn is_device(self) -> bool {
        matches!(self, Kind::Char | Kind::Block)
    }

    /// Its type for the kernel.
    pub fn file_type(self) -> FileType {
        match self {
            Kind::File => FileType::RegularFile,
            Kind::Dir => FileType::Directory,
            Kind::Link => FileType::Symlink,
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::Char => FileType::CharacterDevice,
            Kind::Block => FileType::BlockDevice,
        }
    }

    /// Makes one.
    pub fn make(self, path: &Path, mode: u32) -> Result<()> {
        match self {
            Kind::Dir => mkdir(path, mode),
            Kind::Link => rustix::fs::symlink("nowhere", path),
            _ => rustix::fs::mknodat(CWD, path, self.file_type(), Mode::from(mode), self.device()),
        }
    }

    /// The device number that [`Kind::make`] gives it.
    pub fn device(self) -> u64 {
        if self.is_device() { makedev(1, 7) } else { 0 }
    }
}

/// `open`.
pub fn open(path: &Path, flags: OFlags, mode: u32) -> Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from(mode))
}

/// Makes a file with this content.
pub fn put(path: &Path, content: &[u8]) -> Result<()> {
    let file = open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC, 0o644)?;
    write_all_at(&file, content, 0)
}

/// Writes all of it.
pub fn write_all_at(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        let len = rustix::io::pwrite(file, bytes, at)?;
        bytes = bytes.get(len..).unwrap_or_default();
        at += len as u64;
    }
    Ok(())
}

/// Content of a file.
pub fn get(path: &Path) -> Result<Vec<u8>> {
    let file = open(path, OFlags::RDONLY, 0)?;
    let len = rustix::fs::fstat(&file)?.st_size.max(0).cast_unsigned() as usize;
    read_at(&file, 0, len + 1)
}

/// At most `len` bytes from `at` on.
pub fn read_at(file: &OwnedFd, at: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, at + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// `mkdir`.
pub fn mkdir(path: &Path, mode: u32) -> Result<()> {
    rustix::fs::mkdir(path, Mode::from(mode))
}

/// `chmod`.
pub fn chmod(path: &Path, mode: u32) -> Result<()> {
    rustix::fs::chmod(path, Mode::from(mode))
}

/// `chown`, or with `NOFOLLOW` `lchown`; `None` leaves as it is.
pub fn chown(path: &Path, uid: Option<u32>, gid: Option<u32>, flags: AtFlags) -> Result<()> {
    rustix::fs::chownat(CWD, path, uid.map(Uid::from_raw), gid.map(Gid::from_raw), flags)
}

/// `truncate`. By its name, not through a descriptor.
pub fn truncate(path: &Path, len: u64) -> Result<()> {
    // The standard library opens the file; only the system call itself goes by the name.
    crate::mapping::truncate(path, len)
}

/// `lstat`.
pub fn lstat(path: &Path) -> Result<Stat> {
    rustix::fs::lstat(path)
}

/// Whether a name is absent.
pub fn is_absent(path: &Path) -> bool {
    lstat(path).is_err_and(|errno| errno == Errno::NOENT)
}

/// Permission bits with set-id and sticky bits.
pub fn mode_of(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

/// Number of names, for a directory of directories.
#[allow(clippy::unnecessary_cast, reason = "how wide it is differs between machines")]
pub fn links_of(stat: &Stat) -> u64 {
    stat.st_nlink as u64
}

/// `rename` with flags.
pub fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<()> {
    if flags.is_empty() {
        return rustix::fs::rename(from, to);
    }
    rustix::fs::renameat_with(CWD, from, CWD, to, flags)
}

/// `setxattr`, not following links.
pub fn setxattr(path: &Path, name: &str, value: &[u8], flags: XattrFlags) -> Result<()> {
    rustix::fs::lsetxattr(path, name, value, flags)
}

/// `getxattr`, not following links.
pub fn getxattr(path: &Path, name: &str) -> Result<Vec<u8>> {
    let mut value = vec![0; 70_000];
    let len = rustix::fs::lgetxattr(path, name, value.as_mut_slice())?;
    value.truncate(len);
    Ok(value)
}

/// `listxattr`, not following links; names in order, without those of security modules.
pub fn listxattr(path: &Path) -> Result<Vec<String>> {
    let mut list = vec![0; 70_000];
    let len = rustix::fs::llistxattr(path, list.as_mut_slice())?;
    let names = list.get(..len).unwrap_or_default().split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with("security.")).collect();
    names.sort();
    Ok(names)
}

/// A time.
pub fn at_time(secs: i64, nanos: i64) -> Timespec {
    Timespec { tv_sec: secs, tv_nsec: nanos as _ }
}

/// `utimensat`, not following links.
pub fn utimens(path: &Path, atime: Timespec, mtime: Timespec) -> Result<()> {
    let times = Timestamps { last_access: atime, last_modification: mtime };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
}

/// Names in a directory, in order, without `.` and `..`.
pub fn list(path: &Path) -> Result<Vec<String>> {
    let dir = open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Waits until a time that is given to a file now is later than all given before: the kernel's own file systems take
/// the time of the last tick.
pub fn tick() {
    use rustix::time::{ClockId, clock_gettime};
    let coarse = || clock_gettime(ClockId::RealtimeCoarse);
    let before = coarse();
    while coarse() == before {
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
}

//! What may be done to the tree.

use crate::random::Random;
use crate::sys::Kind;

/// A path of up to three names out of a few, so that operations meet.
#[derive(Clone, PartialEq, Eq)]
pub struct Path(pub Vec<u8>);

impl std::ops::Deref for Path {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// As it is written: `p("a/b")`.
impl std::fmt::Debug for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p({:?})", text(&self.0))
    }
}

/// A path as text: its names with slashes in between.
pub fn text(path: &[u8]) -> String {
    path.iter().map(|name| char::from(*name).to_string()).collect::<Vec<_>>().join("/")
}

/// What is done; the last number is the mount through which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The call.
    pub call: Call,
    /// The mount.
    pub mount: usize,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `open` with `O_CREAT` and `O_EXCL`.
    Create(Path, u32),
    /// `mkdir`.
    Mkdir(Path, u32),
    /// `symlink` with a target below the link's directory.
    Symlink(Path, Path),
    /// `mknod` of a fifo or a socket.
    Mknod(Path, Kind),
    /// `link`.
    Link(Path, Path),
    /// `unlink`.
    Unlink(Path),
    /// `rmdir`.
    Rmdir(Path),
    /// `rename`, without flags.
    Rename(Path, Path),
    /// `rename` with `RENAME_NOREPLACE`.
    Noreplace(Path, Path),
    /// `rename` with `RENAME_EXCHANGE`.
    Exchange(Path, Path),
    /// `chmod`.
    Chmod(Path, u32),
    /// `utimensat` of a link itself: seconds.
    Times(Path, i64),
    /// `truncate`.
    Truncate(Path, u64),
    /// Opens, writes at a place, closes.
    Write(Path, u64, usize, u8),
    /// Opens with `O_APPEND`, writes, closes.
    Append(Path, usize, u8),
    /// Opens with `O_TRUNC`.
    Empty(Path),
    /// `setxattr` with flags of the kernel: name, value, flags.
    SetXattr(Path, u8, usize, u32),
    /// `removexattr`.
    RemoveXattr(Path, u8),
    /// `readlink`.
    Readlink(Path),
    /// Opens a file and keeps it, in place of what was kept under this number.
    Keep(usize, Path),
    /// Writes to a kept file.
    KeptWrite(usize, u64, usize, u8),
    /// `ftruncate` of a kept file.
    KeptTruncate(usize, u64),
    /// `fchmod` of a kept file.
    KeptChmod(usize, u32),
    /// Closes it.
    Close(usize),
}

/// How many files may be kept open.
pub const KEPT: usize = 3;
const MODES: [u32; 5] = [0o700, 0o755, 0o750, 0o777, 0o711];

impl Operation {
    /// The two paths of a rename, of whatever kind.
    pub fn renamed(&self) -> Option<(&Path, &Path)> {
        match &self.call {
            Call::Rename(from, to) | Call::Noreplace(from, to) | Call::Exchange(from, to) => Some((from, to)),
            _ => None,
        }
    }

    /// A random one.
    pub fn random(random: &mut Random, mounts: usize) -> Operation {
        let mount = random.below(mounts as u64) as usize;
        let (a, b) = (path(random, 3), path(random, 3));
        let mode = MODES[random.below(MODES.len() as u64) as usize];
        let call = match random.below(100) {
            0..12 => Call::Create(a, mode),
            12..26 => Call::Mkdir(a, mode),
            26..31 => Call::Symlink(a, path(random, 2)),
            31..34 => Call::Mknod(a, if mode == 0o700 { Kind::Socket } else { Kind::Fifo }),
            34..39 => Call::Link(a, b),
            39..44 => Call::Unlink(a),
            44..48 => Call::Rmdir(a),
            48..60 => Call::Rename(a, b),
            60..63 => Call::Noreplace(a, b),
            63..66 => Call::Exchange(a, b),
            66..69 => Call::Chmod(a, mode),
            69..71 => Call::Times(a, random.below(1 << 33).cast_signed()),
            other => data(random, other, a),
        };
        Operation { call, mount }
    }
}

/// Calls on content and attributes.
fn data(random: &mut Random, choice: u64, path: Path) -> Call {
    let (at, len, fill) =
        (random.below(20_000), 1 + random.below(9000) as usize, 1 + random.below(255) as u8);
    let (kept, name) = (random.below(KEPT as u64) as usize, random.below(3) as u8);
    match choice {
        71..74 => Call::Truncate(path, at),
        74..79 => Call::Write(path, at, len, fill),
        79..82 => Call::Append(path, len, fill),
        82 => Call::Empty(path),
        83..87 => Call::SetXattr(path, name, len % 200, random.below(3) as u32),
        87..89 => Call::RemoveXattr(path, name),
        89 => Call::Readlink(path),
        90..94 => Call::Keep(kept, path),
        94..96 => Call::KeptWrite(kept, at, len, fill),
        96 => Call::KeptTruncate(kept, at),
        97 => Call::KeptChmod(kept, MODES[fill as usize % MODES.len()]),
        _ => Call::Close(kept),
    }
}

fn path(random: &mut Random, longest: u64) -> Path {
    let len = 1 + random.below(longest);
    Path((0..len).map(|_| b"abc"[random.below(3) as usize]).collect())
}

//! A volume that fails on demand, around any other.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_types::Errno;

use super::{Entry, FileStat, OpenMode, Space, Volume, VolumeFile, VolumeKind, system_error};

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Opening a file that must exist.
    Open,
    /// Opening a file that may be made.
    Create,
    /// Giving a file another name.
    Rename,
    /// Removing a file.
    Remove,
    /// Making a directory.
    MakeDir,
    /// Listing a directory.
    List,
    /// Syncing a directory.
    SyncDir,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Cutting or extending.
    SetLen,
    /// Giving a range bytes.
    Allocate,
    /// Making a hole.
    Punch,
    /// Asking for the size.
    Stat,
    /// Syncing a file.
    Sync,
}

/// One operation on a [`FailingVolume`].
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// Number of operations before it.
    pub number: u64,
    /// Its kind.
    pub kind: OperationKind,
    /// The file or directory, by the name that it was opened with.
    pub name: &'a str,
}

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeFault {
    /// It is carried out.
    Pass,
    /// It fails, without effect.
    Fail(Errno),
    /// A read or write handles at most this many bytes; anything else is done.
    Short(usize),
}

/// A volume whose operations fail when a function says so.
#[derive(Debug)]
pub struct FailingVolume {
    inner: Arc<dyn Volume>,
    faults: Arc<Faults>,
}

struct Faults {
    count: AtomicU64,
    #[allow(clippy::type_complexity, reason = "named once, here")]
    decide: Box<dyn Fn(&Operation<'_>) -> VolumeFault + Send + Sync>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faults(after {} operations)", self.count.load(Ordering::Relaxed))
    }
}

impl Faults {
    fn decide(&self, kind: OperationKind, name: &str) -> io::Result<usize> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        match (self.decide)(&Operation { number, kind, name }) {
            VolumeFault::Pass => Ok(usize::MAX),
            VolumeFault::Fail(errno) => Err(system_error(errno)),
            VolumeFault::Short(bytes) => Ok(bytes),
        }
    }
}

impl FailingVolume {
    /// Creates a volume that asks `decide` before everything it does.
    pub fn new(
        inner: Arc<dyn Volume>,
        decide: impl Fn(&Operation<'_>) -> VolumeFault + Send + Sync + 'static,
    ) -> Self {
        let faults = Faults { count: AtomicU64::new(0), decide: Box::new(decide) };
        FailingVolume { inner, faults: Arc::new(faults) }
    }

    /// Returns a volume whose operation number `n` (from 0) fails, and no other.
    pub fn nth(inner: Arc<dyn Volume>, n: u64, errno: Errno) -> Self {
        FailingVolume::new(
            inner,
            move |op| if op.number == n { VolumeFault::Fail(errno) } else { VolumeFault::Pass },
        )
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.faults.count.load(Ordering::Relaxed)
    }
}

impl Volume for FailingVolume {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn kind(&self) -> VolumeKind {
        self.inner.kind()
    }

    fn space(&self) -> io::Result<Space> {
        self.inner.space()
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn VolumeFile>> {
        let kind = if mode == OpenMode::Existing { OperationKind::Open } else { OperationKind::Create };
        self.faults.decide(kind, name)?;
        let (inner, faults) = (self.inner.open(name, mode)?, self.faults.clone());
        Ok(Arc::new(FailingFile { inner, faults, name: name.to_owned() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.faults.decide(OperationKind::Rename, from)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.faults.decide(OperationKind::Remove, name)?;
        self.inner.remove(name)
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.faults.decide(OperationKind::MakeDir, name)?;
        self.inner.make_dir(name)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        self.faults.decide(OperationKind::List, dir)?;
        self.inner.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.faults.decide(OperationKind::SyncDir, dir)?;
        self.inner.sync_dir(dir)
    }
}

#[derive(Debug)]
struct FailingFile {
    inner: Arc<dyn VolumeFile>,
    faults: Arc<Faults>,
    name: String,
}

impl VolumeFile for FailingFile {
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let mut max = self.faults.decide(OperationKind::Read, &self.name)?;
        let mut cut = Vec::new();
        for buf in bufs {
            let count = buf.len().min(max);
            max -= count;
            cut.push(IoSliceMut::new(&mut buf[..count]));
        }
        self.inner.read_vectored_at(&mut cut, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut max = self.faults.decide(OperationKind::Write, &self.name)?;
        let mut cut = Vec::new();
        for buf in bufs {
            let count = buf.len().min(max);
            max -= count;
            cut.push(IoSlice::new(&buf[..count]));
        }
        self.inner.write_vectored_at(&cut, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.decide(OperationKind::SetLen, &self.name)?;
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.faults.decide(OperationKind::Stat, &self.name)?;
        self.inner.stat()
    }

    fn next_data(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        self.faults.decide(OperationKind::Stat, &self.name)?;
        self.inner.next_data(from)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.faults.decide(OperationKind::Allocate, &self.name)?;
        self.inner.allocate(range)
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.faults.decide(OperationKind::Allocate, &self.name)?;
        self.inner.grow(len)
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.faults.decide(OperationKind::Punch, &self.name)?;
        self.inner.punch(range)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.decide(OperationKind::Sync, &self.name)?;
        self.inner.sync()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemVolume;

    #[test]
    fn without_faults_it_is_a_volume() {
        crate::conformance::volume(|| {
            Arc::new(FailingVolume::new(Arc::new(MemVolume::default()), |_| VolumeFault::Pass))
        });
    }

    #[test]
    fn the_nth_operation_fails_and_does_nothing() {
        let volume = FailingVolume::nth(Arc::new(MemVolume::default()), 1, Errno::EIO);
        let file = volume.open("f", OpenMode::Create).unwrap();
        let error = file.write_vectored_at(&[IoSlice::new(b"abc")], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EIO.code()));
        assert_eq!(file.stat().unwrap().len, 0);
        assert_eq!(file.write_vectored_at(&[IoSlice::new(b"abc")], 0).unwrap(), 3);
        assert_eq!(volume.operations(), 4);
    }

    #[test]
    fn a_short_write_is_short() {
        let volume = FailingVolume::new(Arc::new(MemVolume::default()), |_| VolumeFault::Short(2));
        let file = volume.open("f", OpenMode::Create).unwrap();
        assert_eq!(file.write_vectored_at(&[IoSlice::new(b"a"), IoSlice::new(b"bc")], 0).unwrap(), 2);
        let mut out = [0u8; 3];
        assert_eq!(file.read_vectored_at(&mut [IoSliceMut::new(&mut out)], 0).unwrap(), 2);
        assert_eq!(&out, b"ab\0");
    }
}

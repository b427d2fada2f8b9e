//! A subfile that this process reads and writes itself.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bivouac_direct::{Gate, ReadOnlyPages, Session, WritablePages};
use bivouac_types::limits::SUMMED_DATA_AT;
use bivouac_types::{NodeId, TMPFS_MAGIC};
use bivouac_wire::{Grant, Window};
use parking_lot::RwLock;
use rustix::io::{Errno, ReadWriteFlags};

use super::AccessKind;

/// Most buffers in one call (`IOV_MAX`).
const SLICES_MAX: usize = 1024;

/// Reason why an access was not made directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectError {
    /// The grant has ended; another one may be granted.
    Over,
    /// The window ends before the access does.
    Outside,
    /// The system refused; a message gets the error.
    Refused,
}

/// A granted subfile.
#[derive(Debug)]
pub struct Handle {
    node: NodeId,
    file: OwnedFd,
    number: u32,
    gate: Gate,
    /// Its lock shows the daemon that this process is alive.
    session: Arc<Session>,
    epoch: u32,
    /// Offset of data in the file.
    data_at: u64,
    in_memory: bool,
    reads: bool,
    from: AtomicU64,
    to: AtomicU64,
    /// Orders threads of this process: a read sees all of a write or nothing.
    threads: RwLock<()>,
    _counted: Counted,
}

/// Counts handles, each of which is an open file of the program.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a handle is closed that was not counted");
    }
}

impl Handle {
    /// Creates the handle of a grant; `None` if no descriptor came with it, because the process has too many files
    /// open.
    pub fn new(
        node: NodeId,
        session: Arc<Session>,
        grant: &Grant,
        file: Option<OwnedFd>,
        count: &Arc<AtomicUsize>,
    ) -> Option<Handle> {
        let gate = session.gate(grant.gate, grant.turn)?;
        let Some(file) = file else {
            // The daemon must not wait for a process that cannot use its grant.
            gate.close();
            return None;
        };
        let in_memory = rustix::fs::fstatfs(&file).is_ok_and(|fs| fs.f_type as u64 == TMPFS_MAGIC);
        Some(Handle {
            node,
            file,
            in_memory,
            number: grant.gate,
            gate,
            session,
            epoch: grant.epoch,
            data_at: grant.data_at,
            reads: grant.reads,
            from: AtomicU64::new(grant.from),
            to: AtomicU64::new(grant.to),
            threads: RwLock::new(()),
            _counted: Counted::new(count),
        })
    }

    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns number and turn of its gate.
    pub fn gate(&self) -> (u32, u32) {
        (self.number, self.gate.turn())
    }

    pub fn session(&self) -> u32 {
        self.session.index()
    }

    /// Returns the subfile's epoch, which does not change while the grant lasts.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns true if the grant had not ended when last looked at, and is this process's, not that of one that forked
    /// it.
    pub fn is_open(&self) -> bool {
        self.session.is_own() && !self.gate.is_closed()
    }

    pub fn allows(&self, wish: AccessKind) -> bool {
        match wish {
            AccessKind::Read => self.reads,
            AccessKind::Write => self.to.load(Ordering::Relaxed) > 0,
        }
    }

    /// Returns true if the blocks that it reads have checksums, which it does not compare.
    pub fn is_summed(&self) -> bool {
        self.data_at >= SUMMED_DATA_AT
    }

    /// Returns the handle for writing only.
    pub fn without_reads(self) -> Handle {
        let mut handle = self;
        handle.reads = false;
        handle
    }

    /// Widens the window. It only grows, and all of it may be written, so that its ends need not be read together.
    pub fn set_window(&self, window: &Window) {
        self.from.fetch_min(window.from, Ordering::Relaxed);
        self.to.fetch_max(window.to, Ordering::Relaxed);
    }

    /// Closes the gate, and waits for the threads inside.
    pub fn retire(&self) {
        self.gate.close();
        // Threads that entered before the gate was closed hold it for reading or writing until they leave.
        drop(self.threads.write());
    }

    /// Reads data from `offset` on; returns the number of bytes, less than wanted at the end of the subfile.
    pub fn read(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, DirectError> {
        let _with_others = self.threads.read();
        self.read_inside(offset, into)
    }

    /// Like [`Handle::read`], without waiting for a disk or another thread. Returns `None` if it would have to, or
    /// fewer bytes than there are.
    pub fn read_at_once(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        let _with_others = self.threads.try_read()?;
        let mut into = [IoSliceMut::new(into)];
        if self.in_memory {
            return self.read_inside(offset, &mut into).ok();
        }
        let _inside = self.gate.enter()?;
        let at = self.data_at.saturating_add(offset);
        // Pages that are not in memory are EAGAIN then, and the caller takes another way.
        rustix::io::preadv2(&self.file, &mut into, at, ReadWriteFlags::NOWAIT).ok()
    }

    fn read_inside(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, DirectError> {
        let _inside = self.gate.enter().ok_or(DirectError::Over)?;
        let (mut rest, mut done) = (into, 0);
        // Without empty parts in front: 0 bytes read into those would look like the end.
        IoSliceMut::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let count = rest.len().min(SLICES_MAX);
            let at = self.data_at.saturating_add(offset) + done as u64;
            match rustix::io::preadv(&self.file, &mut rest[..count], at) {
                Ok(0) => break,
                Ok(read) => {
                    done += read;
                    IoSliceMut::advance_slices(&mut rest, read);
                }
                Err(Errno::INTR) => {}
                Err(_) => return Err(DirectError::Refused),
            }
        }
        Ok(done)
    }

    /// Shows a range of the data of a subfile in memory, in place. `Refused` if it cannot be mapped.
    pub fn show(
        &self,
        wish: AccessKind,
        offset: u64,
        len: u64,
        show: &mut dyn FnMut(*mut [u8]),
    ) -> Result<(), DirectError> {
        let (file, at) = (self.file.as_fd(), self.data_at.saturating_add(offset));
        if wish == AccessKind::Write {
            return self.write_within(offset, len, || {
                show(WritablePages::map(file, at, len).map_err(|_| DirectError::Refused)?.bytes());
                Ok(())
            });
        }
        // A grant to read excludes writers: nobody writes meanwhile.
        let _with_others = self.threads.read();
        let _inside = self.gate.enter().ok_or(DirectError::Over)?;
        show(ReadOnlyPages::map(file, at, len).ok().flatten().ok_or(DirectError::Refused)?.bytes());
        Ok(())
    }

    /// Writes all of the data at `offset`. On failure parts may have been written.
    pub fn write(&self, offset: u64, len: u64, data: &mut [IoSlice<'_>]) -> Result<(), DirectError> {
        self.write_within(offset, len, || {
            let (mut rest, mut at) = (data, self.data_at.saturating_add(offset));
            IoSlice::advance_slices(&mut rest, 0);
            while !rest.is_empty() {
                let count = rest.len().min(SLICES_MAX);
                match rustix::io::pwritev(&self.file, &rest[..count], at) {
                    Ok(0) => return Err(DirectError::Refused),
                    Ok(written) => {
                        at += written as u64;
                        IoSlice::advance_slices(&mut rest, written);
                    }
                    Err(Errno::INTR) => {}
                    Err(_) => return Err(DirectError::Refused),
                }
            }
            Ok(())
        })
    }

    /// Returns true if the subfile is in memory, so that it can be mapped.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Writes places, each with its offset, within `len` bytes from `offset` on, where each page has a part of one. On
    /// failure parts may have been written.
    pub fn write_mapped<'d>(
        &self,
        offset: u64,
        len: u64,
        places: impl Iterator<Item = (u64, &'d [u8])>,
    ) -> Result<(), DirectError> {
        self.write_within(offset, len, || {
            let start = self.data_at.saturating_add(offset);
            let mapped =
                WritablePages::map(self.file.as_fd(), start, len).map_err(|_| DirectError::Refused)?;
            for (at, bytes) in places {
                let put = at.checked_sub(offset).is_some_and(|at| mapped.put(at as usize, bytes));
                put.then_some(()).ok_or(DirectError::Refused)?;
            }
            Ok(())
        })
    }

    /// Calls `write` within window and gate, with no other thread inside.
    fn write_within(
        &self,
        offset: u64,
        len: u64,
        write: impl FnOnce() -> Result<(), DirectError>,
    ) -> Result<(), DirectError> {
        let end = offset.checked_add(len).ok_or(DirectError::Refused)?;
        // Before the gate: a thread that waits inside would make the daemon wait for it, too.
        let _alone = self.threads.write();
        let _inside = self.gate.enter().ok_or(DirectError::Over)?;
        if offset < self.from.load(Ordering::Relaxed) || end > self.to.load(Ordering::Relaxed) {
            return Err(DirectError::Outside);
        }
        // Before the first byte, so that the mark is there also if this process is killed while it writes.
        self.gate.mark_written(offset, len);
        write()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child the gate is the parent's.
        if self.session.is_own() {
            self.gate.close();
        }
    }
}

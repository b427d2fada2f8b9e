//! A volume all of whose changes a mirror makes.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bivouac_ranks::{Mutex, RwLock, rank};
use bivouac_types::Errno;
use bivouac_wire::VolumeChange;

use super::deferred::may_defer;
use super::part::FileKey;
use super::primary::{ChangeOrder, MirroredVolumes, Part};
use crate::volume::transfer::write_all_at;
use crate::volume::{check_name, system_error};
use crate::{Entry, FileStat, OpenMode, Places, Space, Volume, VolumeFile, VolumeKind};

/// Most bytes of one write; longer ones are made in parts.
const WRITE_MAX: usize = 4 << 20;
/// Bytes that files with deferred writes are given ahead of them: when such a write is made, its caller has gone on,
/// and hears of no missing space.
const AHEAD: u64 = 64 << 10;
/// Names from which on those that nobody has open are forgotten.
const FORGET_AT: usize = 1024;

/// The name that a file has now; none once it is removed. Held for writing by who changes names, and by who copies.
#[derive(Debug)]
pub(super) struct FileName {
    pub name: RwLock<Option<String>>,
    number: u32,
    /// True once writes of it have been deferred.
    has_deferred: AtomicBool,
    /// End of what was allocated for them,
    allocated: AtomicU64,
    /// and when, as [`MirroredVolumes::allocated_in`] counts.
    allocated_in: AtomicU64,
}

/// Files of mirrored volumes, by name, as long as somebody has them open.
#[derive(Debug)]
pub(super) struct MirroredFiles {
    names: Mutex<(HashMap<FileKey, Weak<FileName>>, usize)>,
    next: AtomicU32,
}

impl Default for MirroredFiles {
    fn default() -> MirroredFiles {
        let names = (HashMap::new(), FORGET_AT);
        MirroredFiles { names: Mutex::new(rank::MIRRORED_FILES, names), next: AtomicU32::new(0) }
    }
}

impl MirroredFiles {
    /// Returns the file of this name.
    pub fn entry(&self, volume: u16, name: &str) -> Arc<FileName> {
        let mut table = self.names.lock();
        let (names, forget_at) = &mut *table;
        // The limit grows with what is left, so that looking through all names stays rare.
        if names.len() >= *forget_at {
            names.retain(|_, known| known.strong_count() > 0);
            *forget_at = (names.len() * 2).max(FORGET_AT);
        }
        let key = (volume, name.to_owned());
        if let Some(known) = names.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = RwLock::numbered(rank::MIRRORED_FILE, number, Some(name.to_owned()));
        let (has_deferred, allocated) = (AtomicBool::new(false), AtomicU64::new(0));
        let allocated_in = AtomicU64::new(0);
        let new = Arc::new(FileName { name, number, has_deferred, allocated, allocated_in });
        names.insert(key, Arc::downgrade(&new));
        new
    }

    fn rename(&self, volume: u16, from: &str, to: &str, file: &Arc<FileName>) {
        let names = &mut self.names.lock().0;
        names.remove(&(volume, from.to_owned()));
        names.insert((volume, to.to_owned()), Arc::downgrade(file));
    }

    fn remove(&self, volume: u16, name: &str) {
        self.names.lock().0.remove(&(volume, name.to_owned()));
    }
}

/// Returns the volumes of a mirror, as its node uses them.
#[must_use]
pub fn mirrored_volumes(mirror: &Arc<MirroredVolumes>) -> Vec<Arc<dyn Volume>> {
    let volume = |index| Arc::new(MirroredVolume::new(mirror, index)) as Arc<dyn Volume>;
    (0..mirror.volume_count()).map(volume).collect()
}

#[derive(Debug)]
struct MirroredVolume {
    mirror: Arc<MirroredVolumes>,
    index: u16,
    inner: Arc<dyn Volume>,
    /// True once the file system has refused to make holes.
    refuses_holes: Arc<AtomicBool>,
}

impl MirroredVolume {
    fn new(mirror: &Arc<MirroredVolumes>, index: u16) -> MirroredVolume {
        let (inner, refuses_holes) = (Arc::clone(mirror.volume(index)), Arc::default());
        MirroredVolume { mirror: Arc::clone(mirror), index, inner, refuses_holes }
    }

    fn file(&self, inner: Arc<dyn VolumeFile>, name: Arc<FileName>) -> Arc<dyn VolumeFile> {
        let (mirror, refuses_holes) = (Arc::clone(&self.mirror), Arc::clone(&self.refuses_holes));
        Arc::new(MirroredFile { mirror, volume: self.index, inner, name, refuses_holes })
    }

    /// Does something with a name that nobody else changes meanwhile.
    fn with_name<R>(&self, name: &str, act: impl FnOnce(&Arc<FileName>, &mut Option<String>) -> R) -> R {
        loop {
            let entry = self.mirror.files.entry(self.index, name);
            let mut named = entry.name.write();
            // Another may have removed or renamed the file while this waited: then the name is another file's.
            if named.as_deref() == Some(name) {
                return act(&entry, &mut named);
            }
        }
    }

    /// Makes a file with this content, unless it is there.
    fn create(&self, name: &str, mode: OpenMode, content: &[u8]) -> io::Result<Arc<dyn VolumeFile>> {
        self.with_name(name, |entry, _| {
            match self.inner.open(name, OpenMode::Existing) {
                Ok(_) if mode == OpenMode::CreateNew => return Err(system_error(Errno::EEXIST)),
                Ok(file) => return Ok(self.file(file, Arc::clone(entry))),
                Err(error) if !is_missing(&error) && mode == OpenMode::CreateNew => {
                    return Err(system_error(Errno::EEXIST));
                }
                Err(error) if !is_missing(&error) => return Err(error),
                Err(_) => {}
            }
            self.check_parent(name)?;
            let made = OnceCell::new();
            let mut create = || -> io::Result<()> {
                // What was made is not made again.
                let _ = made.set(self.inner.open(name, OpenMode::CreateNew)?);
                Ok(())
            };
            let payload = [IoSlice::new(content)];
            let mut fill = || made.get().map_or(Ok(()), |file| write_all_at(&**file, &payload, 0));
            let change = VolumeChange::Create { name: name.to_owned() };
            let mut parts = vec![Part { volume: self.index, change, payload: &[], local: &mut create }];
            if !content.is_empty() {
                let Ok(len) = u32::try_from(content.len()) else { return Err(system_error(Errno::EINVAL)) };
                let change = VolumeChange::Write { name: name.to_owned(), extents: vec![(0, len)] };
                parts.push(Part { volume: self.index, change, payload: &payload, local: &mut fill });
            }
            // Together, so that a new subfile costs one round trip, and is not left without its header between two.
            self.mirror.change_all(ChangeOrder::Free, parts)?;
            let made = made.into_inner().ok_or_else(|| system_error(Errno::EIO))?;
            Ok(self.file(made, Arc::clone(entry)))
        })
    }

    /// Checks that the parent exists, so that a change which would fail here is not begun at the backup.
    fn check_parent(&self, name: &str) -> io::Result<()> {
        name.split_once('/').map_or(Ok(()), |(dir, _)| has_dir(&*self.inner, dir))
    }
}

impl Volume for MirroredVolume {
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
        check_name(name)?;
        if mode == OpenMode::CreateNew {
            return self.create(name, mode, &[]);
        }
        loop {
            let entry = self.mirror.files.entry(self.index, name);
            let named = entry.name.read();
            // Renamed or removed before it was locked.
            if named.as_deref() != Some(name) {
                continue;
            }
            match self.inner.open(name, OpenMode::Existing) {
                // Made below: that takes the name for writing, which is locked for reading here.
                Err(error) if mode == OpenMode::Create && is_missing(&error) => break,
                file => {
                    let file = file?;
                    drop(named);
                    return Ok(self.file(file, entry));
                }
            }
        }
        self.create(name, mode, &[])
    }

    fn create_filled(&self, name: &str, content: &[u8]) -> io::Result<Arc<dyn VolumeFile>> {
        check_name(name)?;
        self.create(name, OpenMode::CreateNew, content)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        if from == to {
            return self.inner.open(from, OpenMode::Existing).map(drop);
        }
        loop {
            let files = &self.mirror.files;
            let (old, new) = (files.entry(self.index, from), files.entry(self.index, to));
            // In the order of their numbers: two opposite renames must not wait for each other.
            let is_older = old.number < new.number;
            let (first, second) = if is_older { (&old, &new) } else { (&new, &old) };
            let (mut first, mut second) = (first.name.write(), second.name.write());
            let (of_old, of_new) =
                if is_older { (&mut first, &mut second) } else { (&mut second, &mut first) };
            // Renamed or removed before it was locked: the names stand for something else, which is looked up.
            if of_old.as_deref() != Some(from) || of_new.as_deref() != Some(to) {
                continue;
            }
            // What would fail here is found out before the backup does it, where it would succeed.
            self.inner.open(from, OpenMode::Existing)?;
            self.check_parent(to)?;
            match self.inner.open(to, OpenMode::Existing) {
                Err(error) if !is_missing(&error) => return Err(error),
                _ => {}
            }
            let change = VolumeChange::Rename { from: from.to_owned(), to: to.to_owned() };
            self.mirror.change((self.index, ChangeOrder::BehindDeferred), change, &[], &mut || {
                self.inner.rename(from, to)
            })?;
            (**of_old, **of_new) = (Some(to.to_owned()), None);
            files.rename(self.index, from, to, &old);
            return Ok(());
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        self.with_name(name, |_, named| {
            self.inner.open(name, OpenMode::Existing)?;
            let change = VolumeChange::Remove { name: name.to_owned() };
            self.mirror.change((self.index, ChangeOrder::BehindDeferred), change, &[], &mut || {
                self.inner.remove(name)
            })?;
            *named = None;
            self.mirror.files.remove(self.index, name);
            Ok(())
        })
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        self.with_name(name, |_, _| {
            if has_dir(&*self.inner, name).is_ok() || self.inner.open(name, OpenMode::Existing).is_ok() {
                return Err(system_error(Errno::EEXIST));
            }
            self.check_parent(name)?;
            let change = VolumeChange::MakeDir { name: name.to_owned() };
            self.mirror
                .change((self.index, ChangeOrder::Free), change, &[], &mut || self.inner.make_dir(name))
        })
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        self.inner.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        // What fails here is not begun at the backup.
        self.inner.sync_dir(dir)?;
        let change = VolumeChange::SyncDir { name: dir.to_owned() };
        self.mirror.change((self.index, ChangeOrder::Free), change, &[], &mut || Ok(()))
    }
}

/// Refuses a directory that is not there, without listing one that is.
fn has_dir(volume: &dyn Volume, dir: &str) -> io::Result<()> {
    match volume.open(dir, OpenMode::Existing) {
        // A directory cannot be opened for writing.
        Err(error) if error.raw_os_error() == Some(Errno::EISDIR.code()) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(system_error(Errno::ENOTDIR)),
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOENT.code())
}

#[derive(Debug)]
struct MirroredFile {
    mirror: Arc<MirroredVolumes>,
    volume: u16,
    inner: Arc<dyn VolumeFile>,
    name: Arc<FileName>,
    refuses_holes: Arc<AtomicBool>,
}

impl MirroredFile {
    /// Makes a change of the file under the name that it has; of one that was removed, only here.
    fn change(
        &self,
        change: impl FnOnce(String) -> VolumeChange,
        payload: &[IoSlice<'_>],
        mut local: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let name = self.name.name.read();
        match &*name {
            None => local(),
            Some(name) => {
                let change = change(name.clone());
                let order = self.order_of(&change);
                self.mirror.change((self.volume, order), change, payload, &mut local)
            }
        }
    }

    /// Returns the order of a change: removals of content go behind the records that say so, and writes behind deferred
    /// ones of their file.
    fn order_of(&self, change: &VolumeChange) -> ChangeOrder {
        let has_deferred = self.name.has_deferred.load(Ordering::Acquire);
        match change {
            VolumeChange::SetLen { .. } | VolumeChange::Punch { .. } => ChangeOrder::BehindDeferred,
            VolumeChange::Allocate { .. } => ChangeOrder::Free,
            _ if has_deferred => ChangeOrder::BehindDeferred,
            _ => ChangeOrder::Free,
        }
    }

    /// Makes deferred writes before something is asked of the file here.
    fn make_deferred(&self) -> io::Result<()> {
        if self.name.has_deferred.load(Ordering::Acquire) { self.mirror.make_deferred() } else { Ok(()) }
    }

    /// Gives the file bytes up to `end` and some behind it, at both nodes, unless it has them. Returns whether it has.
    fn has_allocated(&self, start: u64, end: u64) -> bool {
        // Read before the allocation: a session that begins meanwhile has it made again.
        let now = self.mirror.allocated_in.load(Ordering::Acquire);
        let counts = self.name.allocated_in.load(Ordering::Acquire) == now;
        if counts && end <= self.name.allocated.load(Ordering::Acquire) {
            return true;
        }
        let ahead = end.saturating_add(AHEAD);
        // Whatever is wrong, a write that is not deferred says so, or needs less.
        let is_allocated = self.allocate(start..ahead).is_ok();
        if is_allocated && counts {
            self.name.allocated.fetch_max(ahead, Ordering::AcqRel);
        } else if is_allocated {
            self.name.allocated.store(ahead, Ordering::Release);
            self.name.allocated_in.store(now, Ordering::Release);
        }
        is_allocated
    }
}

/// Returns the first slices, as far as they are within a number of bytes.
fn front<'a>(bufs: &'a [IoSlice<'a>], max: usize) -> Vec<IoSlice<'a>> {
    let mut left = max;
    let mut cut = Vec::with_capacity(bufs.len());
    for buf in bufs.iter().filter(|buf| !buf.is_empty()) {
        let count = buf.len().min(left);
        if count == 0 {
            break;
        }
        left -= count;
        cut.push(IoSlice::new(&buf[..count]));
    }
    cut
}

impl VolumeFile for MirroredFile {
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.make_deferred()?;
        self.inner.read_vectored_at(bufs, offset)
    }

    fn write_deferred(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let defers = may_defer() && self.mirror.defers() && bytes.len() as u64 <= AHEAD;
        if !defers || !self.has_allocated(offset, offset + bytes.len() as u64) {
            return write_all_at(self, &[IoSlice::new(bytes)], offset);
        }
        let name = self.name.name.read();
        let Some(name) = name.as_deref() else {
            return write_all_at(&*self.inner, &[IoSlice::new(bytes)], offset);
        };
        self.name.has_deferred.store(true, Ordering::Release);
        self.mirror.defer((self.volume, name), (&self.inner, &self.name), offset, bytes);
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let part = front(bufs, WRITE_MAX);
        let count: usize = part.iter().map(|buf| buf.len()).sum();
        if count == 0 {
            return Ok(0);
        }
        let Ok(len) = u32::try_from(count) else { return Err(system_error(Errno::EINVAL)) };
        let change = |name| VolumeChange::Write { name, extents: vec![(offset, len)] };
        self.change(change, &part, || write_all_at(&*self.inner, &part, offset))?;
        Ok(count)
    }

    fn write_places(&self, base: u64, places: &Places<'_>) -> io::Result<()> {
        if places.len() > WRITE_MAX as u64 {
            return crate::volume::transfer::write_each(self, base, places);
        }
        let extents = places.extents().iter().map(|(offset, len)| (base + offset, *len)).collect();
        let change = |name| VolumeChange::Write { name, extents };
        self.change(change, places.bytes(), || self.inner.write_places(base, places))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // What is allocated behind the end goes.
        self.name.allocated.store(0, Ordering::Release);
        self.change(|name| VolumeChange::SetLen { name, len }, &[], || self.inner.set_len(len))
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.make_deferred()?;
        self.inner.stat()
    }

    fn next_data(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        self.make_deferred()?;
        self.inner.next_data(from)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        // Content stays, so either side may have it first; and only here it shows whether this can be done.
        self.inner.allocate(range.clone())?;
        let change = |name| VolumeChange::Allocate { name, start: range.start, end: range.end };
        self.change(change, &[], || Ok(()))
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.change(|name| VolumeChange::Grow { name, len }, &[], || self.inner.grow(len))
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        if self.refuses_holes.load(Ordering::Relaxed) {
            return Err(system_error(Errno::EOPNOTSUPP));
        }
        let change = |name| VolumeChange::Punch { name, start: range.start, end: range.end };
        let punched = self.change(change, &[], || self.inner.punch(range.clone()));
        if punched.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::EOPNOTSUPP.code())) {
            self.refuses_holes.store(true, Ordering::Relaxed);
        }
        punched
    }

    fn sync(&self) -> io::Result<()> {
        self.make_deferred()?;
        self.inner.sync()?;
        self.change(|name| VolumeChange::Sync { name }, &[], || Ok(()))
    }

    // No descriptor: who writes by one would write past the mirror, and who reads by one would read without its
    // lease.
}

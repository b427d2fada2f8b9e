//! The pages of a client: bounded, and given to whichever file needs them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bivouac_types::Ino;
use parking_lot::{Mutex, RwLock};

use super::arena::{Arena, PAGE};
use super::file::CachedFile;

/// Pages in use from which on their memory is given back once none is.
const MANY: u32 = 64;

/// Files with pages, and the pages that have none.
#[derive(Debug)]
pub struct Pool {
    /// Memory of the pages.
    pub arena: Arena,
    files: RwLock<HashMap<Ino, Arc<CachedFile>>>,
    slots: Mutex<Slots>,
    unsent: AtomicI64,
    /// Statistics.
    pub counts: Counts,
}

/// Statistics of a pool.
#[derive(Debug, Default)]
pub struct Counts {
    /// Reads that found all they wanted.
    pub hits: AtomicU64,
    /// Reads that did not.
    pub misses: AtomicU64,
    /// Bytes that were written behind and have arrived.
    pub sent: AtomicU64,
    /// Bytes that could not be sent and were dropped after their program had been told.
    pub dropped: AtomicU64,
}

#[derive(Debug)]
struct Slots {
    free: Vec<u32>,
    /// By slot: whose it is.
    owners: Vec<Option<Ino>>,
    hand: usize,
    /// Most pages that were in use since memory was last given back.
    high: u32,
}

impl Pool {
    /// Creates one of at most so many bytes, for this process alone.
    ///
    /// # Errors
    /// What the system says.
    pub fn anonymous(bytes: u64) -> io::Result<Pool> {
        Ok(Pool::over(Arena::anonymous(pages(bytes))?))
    }

    /// Creates one in a file that outlives the process, from `base` on, with what an earlier process left.
    ///
    /// # Errors
    /// What the system says; `InvalidData` where something else is.
    pub fn kept(file: File, base: u64, bytes: u64) -> io::Result<Pool> {
        let (arena, left) = Arena::open(file, base, pages(bytes))?;
        let pool = Pool::over(arena);
        let mut slots = pool.slots.lock();
        for left in left {
            slots.free.retain(|slot| *slot != left.slot);
            if let Some(owner) = slots.owners.get_mut(left.slot as usize) {
                *owner = Some(left.ino);
            }
            pool.unsent.fetch_add(left.unsent.bytes().cast_signed(), Ordering::Relaxed);
            pool.file(left.ino).state.lock().adopt(left.slot, left.page, left.unsent);
        }
        drop(slots);
        Ok(pool)
    }

    fn over(arena: Arena) -> Pool {
        let pages = arena.pages();
        let slots =
            Slots { free: (0..pages).rev().collect(), owners: vec![None; pages as usize], hand: 0, high: 0 };
        let (files, unsent, counts) = Default::default();
        Pool { arena, files, slots: Mutex::new(slots), unsent, counts }
    }

    /// Returns the size of its pages, in bytes.
    pub fn size(&self) -> u64 {
        u64::from(self.arena.pages()) * PAGE
    }

    /// Returns the number of bytes of its pages that are in use.
    pub fn in_use(&self) -> u64 {
        self.size() - self.slots.lock().free.len() as u64 * PAGE
    }

    /// Returns the number of bytes that were written and not sent.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Acquire).cast_unsigned()
    }

    /// Adjusts the number of unsent bytes. The caller has held the lock on the file's state since before the change.
    pub fn count_unsent(&self, more: i64) {
        let before = self.unsent.fetch_add(more, Ordering::AcqRel);
        // While it is 0 no file is looked at: unsent bytes would not be sent before another client reads them.
        assert!(before + more >= 0, "{before} unsent bytes become {more} more");
    }

    /// Returns a file that may have pages.
    pub fn file(&self, ino: Ino) -> Arc<CachedFile> {
        if let Some(file) = self.files.read().get(&ino) {
            return Arc::clone(file);
        }
        Arc::clone(self.files.write().entry(ino).or_insert_with(|| Arc::new(CachedFile::new(ino))))
    }

    /// Returns a file that has pages.
    pub fn find(&self, ino: Ino) -> Option<Arc<CachedFile>> {
        self.files.read().get(&ino).map(Arc::clone)
    }

    /// Returns all files that have pages.
    pub fn files(&self) -> Vec<Arc<CachedFile>> {
        self.files.read().values().map(Arc::clone).collect()
    }

    /// Returns free slots, which the file is going to use, without waiting for anything to be sent: as many as wanted,
    /// or none.
    pub fn obtain(&self, ino: Ino, wanted: usize) -> Option<Vec<u32>> {
        if wanted == 0 {
            return Some(Vec::new());
        }
        // Twice around: the first look at a page only takes note that it was used.
        for _ in 0..2 * self.arena.pages() {
            if let Some(slots) = self.slots.lock().take(ino, wanted) {
                return Some(slots);
            }
            // Slots and file are not locked together: whoever has a file's lock may give slots back.
            let (slot, owner) = self.slots.lock().turn();
            let Some(file) = owner.and_then(|ino| self.find(ino)) else { continue };
            // The page goes, and then its slot is free: the other way round somebody might use it already.
            if file.state.lock().evict(slot) {
                self.give_back([slot]);
            }
        }
        self.slots.lock().take(ino, wanted)
    }

    /// Takes back slots that are free again.
    pub fn give_back(&self, slots: impl IntoIterator<Item = u32>) {
        let mut all = self.slots.lock();
        for slot in slots {
            if let Some(owner) = all.owners.get_mut(slot as usize) {
                // Free twice, it would become two files' page.
                assert!(owner.take().is_some(), "page {slot} of the pool is given back twice");
                all.free.push(slot);
            }
        }
        if all.free.len() == all.owners.len() && all.high > MANY {
            all.high = 0;
            self.arena.give_back();
        }
    }

    /// Returns the file with most unsent bytes: who needs room sends those.
    pub fn fullest(&self) -> Option<Arc<CachedFile>> {
        let unsent = |file: &Arc<CachedFile>| (file.state.lock().unsent(), Arc::clone(file));
        let fullest = self.files().iter().map(unsent).max_by_key(|(unsent, _)| *unsent);
        fullest.filter(|(unsent, _)| *unsent > 0).map(|(_, file)| file)
    }

    /// Drops copies of a range of a file's content.
    pub fn drop_copies(&self, ino: Ino, range: Range<u64>) {
        if let Some(file) = self.find(ino) {
            let slots = file.state.lock().drop_copies(range);
            self.give_back(slots);
        }
    }

    /// Drops all of a file; how many bytes of it had not been sent.
    pub fn discard(&self, file: &CachedFile) -> u64 {
        let mut state = file.state.lock();
        let unsent = state.unsent();
        let slots = state.drop_all();
        for (slot, had_unsent) in &slots {
            if *had_unsent && let Err(error) = self.arena.note(*slot, file.ino, 0, &Default::default()) {
                log::warn!(why:% = error; "inode {}: a page of the pool cannot be noted as dropped", file.ino);
            }
        }
        self.count_unsent(-unsent.cast_signed());
        self.give_back(slots.into_iter().map(|(slot, _)| slot));
        unsent
    }

    /// Drops a file that nobody has open any more, and that is marked so; returns how many bytes of it had not been
    /// sent.
    pub fn forget(&self, file: &CachedFile) -> u64 {
        let mut files = self.files.write();
        // Another close may have forgotten it, and a later open have begun anew.
        if files.get(&file.ino).is_some_and(|known| std::ptr::eq(&raw const **known, file)) {
            files.remove(&file.ino);
        }
        drop(files);
        self.discard(file)
    }
}

impl Slots {
    fn take(&mut self, ino: Ino, wanted: usize) -> Option<Vec<u32>> {
        let from = self.free.len().checked_sub(wanted)?;
        let slots = self.free.split_off(from);
        for slot in &slots {
            if let Some(owner) = self.owners.get_mut(*slot as usize) {
                let former = owner.replace(ino);
                assert!(former.is_none(), "page {slot} is given to inode {ino}, and is that of {former:?}");
            }
        }
        assert!(
            self.free.len() <= self.owners.len(),
            "{} of {} pages are free",
            self.free.len(),
            self.owners.len()
        );
        self.high = self.high.max((self.owners.len() - self.free.len()) as u32);
        Some(slots)
    }

    fn turn(&mut self) -> (u32, Option<Ino>) {
        self.hand = (self.hand + 1) % self.owners.len().max(1);
        (self.hand as u32, self.owners.get(self.hand).copied().flatten())
    }
}

fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes / PAGE).unwrap_or(u32::MAX)
}

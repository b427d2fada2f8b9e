//! The pages of one file.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;

use bivouac_types::{FsError, Ino};
use parking_lot::{Condvar, Mutex};

use super::ahead::Streams;
use super::arena::{Arena, PAGE, SPANS_MAX};
use super::spans::Spans;

/// A file that has pages.
#[derive(Debug)]
pub struct CachedFile {
    /// The file.
    pub ino: Ino,
    /// Its pages.
    pub state: Mutex<Pages>,
    /// Rung when nothing is being sent any more.
    pub sent: Condvar,
}

/// Pages of a file, and what is known of its readers.
#[derive(Debug, Default)]
pub struct Pages {
    pages: BTreeMap<u64, Page>,
    /// Numbers of the pages, by their slots: eviction looks for one page after the other.
    numbers: HashMap<u32, u64>,
    /// Streams of its readers.
    pub streams: Streams,
    /// Set while a thread sends what was written.
    pub is_sending: bool,
    /// Count of times that pages were dropped: a read that began before the latest must not be kept.
    pub drops: u64,
    /// Reads from the targets that are under way: what was written here meanwhile stays.
    pub reads: u32,
    /// Bytes were given up that a program had written, while the file was open.
    pub has_lost: bool,
    /// Set once nobody has the file open any more.
    pub is_over: bool,
    /// Set if a background thread is to send what was written.
    pub is_listed: bool,
    /// And soon.
    pub is_urged: bool,
    /// Count of writes.
    pub writes: u64,
    /// Why pages could not be sent the last time; nothing if they could.
    pub failure: Option<FsError>,
    unsent: u64,
}

/// A page. All bytes that are unsent are also valid.
#[derive(Debug)]
pub struct Page {
    /// Index of the page in the arena.
    pub slot: u32,
    valid: Spans,
    unsent: Spans,
    /// Count of writes to it.
    version: u64,
    /// Set if it was used since eviction last looked at it.
    used: bool,
}

/// Bytes that are to be sent.
#[derive(Debug, Default)]
pub struct Batch {
    /// Offsets in the file, and ranges of `bytes`.
    pub places: Vec<(u64, Range<usize>)>,
    /// All of them, one behind the other.
    pub bytes: Vec<u8>,
    taken: Vec<(u64, u64, Range<u32>)>,
}

impl CachedFile {
    /// Creates one without pages.
    pub fn new(ino: Ino) -> CachedFile {
        CachedFile { ino, state: Mutex::default(), sent: Condvar::new() }
    }
}

/// Returns the page numbers of a range, each with the part of the range that is in it.
pub fn pages_of(range: Range<u64>) -> impl Iterator<Item = (u64, Range<u32>)> {
    numbers_of(&range).map(move |page| (page, part_of(&range, page)))
}

fn numbers_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE).max(range.start / PAGE)
}

/// Returns the part of a range that is in one of its pages.
fn part_of(range: &Range<u64>, page: u64) -> Range<u32> {
    let at = page * PAGE;
    let part = range.start.max(at) - at..range.end.min(at.saturating_add(PAGE)) - at;
    part.start as u32..part.end as u32
}

impl Pages {
    /// Returns how many new pages a range needs.
    pub fn missing(&self, range: Range<u64>) -> usize {
        pages_of(range).filter(|(page, _)| !self.pages.contains_key(page)).count()
    }

    /// Returns true if its pages can note one more range of unsent bytes each.
    pub fn takes(&self, range: Range<u64>) -> bool {
        pages_of(range)
            .all(|(page, _)| self.pages.get(&page).is_none_or(|page| page.unsent.count() < SPANS_MAX))
    }

    /// Returns the number of bytes that were written and not sent.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Returns true if any of a range's bytes were written and not sent.
    pub fn has_unsent(&self, range: Range<u64>) -> bool {
        let has = |(page, part): (u64, Range<u32>)| {
            self.pages.get(&page).is_some_and(|page| page.unsent.within(part).next().is_some())
        };
        self.unsent > 0 && pages_of(range).any(has)
    }

    /// Writes: the bytes are in memory that outlives the process where that was asked for. Slots for new pages are
    /// taken from `free`.
    pub fn write(
        &mut self,
        arena: &Arena,
        ino: Ino,
        offset: u64,
        data: &[u8],
        free: &mut Vec<u32>,
    ) -> io::Result<()> {
        self.writes += 1;
        let mut rest = data;
        for (number, part) in pages_of(offset..offset + data.len() as u64) {
            let (piece, behind) = rest.split_at((part.end - part.start) as usize);
            rest = behind;
            let Some(page) = page((&mut self.pages, &mut self.numbers), number, free) else {
                return Err(io::ErrorKind::StorageFull.into());
            };
            // Before the note: a kill in between leaves bytes that nothing names, and were not acknowledged.
            arena.write(page.slot, part.start, piece)?;
            page.valid.add(part.clone());
            // A batch that is on its way has the bytes from before: `arrived` sees that by the version.
            page.version += 1;
            page.used = true;
            let old = page.unsent.bytes();
            page.unsent.add(part);
            assert!(
                page.unsent.bytes() >= old,
                "page {number} of inode {ino} has fewer unsent bytes than before a write"
            );
            self.unsent += page.unsent.bytes() - old;
            arena.note(page.slot, ino, number, &page.unsent)?;
        }
        assert!(rest.is_empty(), "{} bytes of a write at {offset} of inode {ino} are in no page", rest.len());
        Ok(())
    }

    /// Takes in what was read, where nothing is known yet.
    pub fn take_in(
        &mut self,
        arena: &Arena,
        offset: u64,
        data: &[u8],
        free: &mut Vec<u32>,
    ) -> io::Result<()> {
        for (number, part) in pages_of(offset..offset + data.len() as u64) {
            let Some(page) = page((&mut self.pages, &mut self.numbers), number, free) else { return Ok(()) };
            page.used = true;
            // Only the gaps: what is valid here may be newer than what was read.
            for gap in page.valid.gaps(part).iter() {
                let start = (number * PAGE + u64::from(gap.start) - offset) as usize;
                let piece = data.get(start..start + (gap.end - gap.start) as usize).unwrap_or_default();
                arena.write(page.slot, gap.start, piece)?;
                page.valid.add(gap);
            }
        }
        Ok(())
    }

    /// Reads what is there, from the beginning up to the first byte that is not; how many bytes that is.
    pub fn read(&mut self, arena: &Arena, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        for (number, part) in pages_of(offset..offset + into.len() as u64) {
            let Some(page) = self.pages.get_mut(&number) else { break };
            page.used = true;
            let end = page.valid.reach(part.start).min(part.end);
            let len = (end - part.start) as usize;
            arena.read(page.slot, part.start, into.get_mut(done..done + len).unwrap_or_default())?;
            done += len;
            if end < part.end {
                break;
            }
        }
        Ok(done)
    }

    /// Returns the end of what was written and not sent, 0 if nothing is.
    pub fn unsent_end(&self) -> u64 {
        let has = |(number, page): (&u64, &Page)| {
            page.unsent.iter().last().map(|span| number * PAGE + u64::from(span.end))
        };
        if self.unsent == 0 { 0 } else { self.pages.iter().rev().find_map(has).unwrap_or(0) }
    }

    /// Puts what is here over what was read elsewhere.
    pub fn overlay(&self, arena: &Arena, offset: u64, into: &mut [u8]) -> io::Result<()> {
        for (number, part) in pages_of(offset..offset + into.len() as u64) {
            let Some(page) = self.pages.get(&number) else { continue };
            for span in page.valid.within(part) {
                let start = (number * PAGE + u64::from(span.start) - offset) as usize;
                let len = (span.end - span.start) as usize;
                arena.read(page.slot, span.start, into.get_mut(start..start + len).unwrap_or_default())?;
            }
        }
        Ok(())
    }

    /// Returns the next bytes to be sent of these pages: at most so many bytes, and so many places. The page behind
    /// them; `None` if there are none.
    pub fn batch(
        &self,
        arena: &Arena,
        range: Range<u64>,
        (bytes_max, places_max): (usize, usize),
        batch: &mut Batch,
    ) -> io::Result<Option<u64>> {
        batch.places.clear();
        batch.bytes.clear();
        batch.taken.clear();
        let mut next = None;
        for (number, page) in self.pages.range(range).filter(|(_, page)| !page.unsent.is_empty()) {
            let more = page.unsent.bytes() as usize;
            let full =
                batch.bytes.len() + more > bytes_max || batch.places.len() + page.unsent.count() > places_max;
            // One page at least, however little is allowed: else nothing would ever be sent.
            if full && next.is_some() {
                break;
            }
            for span in page.unsent.iter() {
                batch.push(arena, *number, page, span)?;
            }
            next = Some(number + 1);
        }
        Ok(next)
    }

    /// Notes that these bytes have arrived; what was written meanwhile has yet to be sent.
    pub fn arrived(&mut self, arena: &Arena, ino: Ino, batch: &Batch) {
        // A page that was written since has another version: its newer bytes have yet to be sent.
        for (number, version, span) in &batch.taken {
            let Some(page) = self.pages.get_mut(number).filter(|page| page.version == *version) else {
                continue;
            };
            let old = page.unsent.bytes();
            page.unsent.remove(span.clone());
            let sent = old - page.unsent.bytes();
            assert!(sent <= self.unsent, "inode {ino}: {sent} of {} unsent bytes have arrived", self.unsent);
            self.unsent -= sent;
            // If that fails they are sent once more by the next process: nobody else may have written them since.
            if let Err(error) = arena.note(page.slot, ino, *number, &page.unsent) {
                log::warn!(why:% = error; "inode {ino}: a page of the pool cannot be noted as sent");
            }
        }
    }

    /// Takes over a page that an earlier process left.
    pub fn adopt(&mut self, slot: u32, number: u64, unsent: Spans) {
        self.unsent += unsent.bytes();
        self.numbers.insert(slot, number);
        let page = Page { slot, valid: unsent.clone(), unsent, version: 1, used: true };
        if let Some(former) = self.pages.insert(number, page) {
            self.numbers.remove(&former.slot);
        }
    }

    /// Drops what of a range is only a copy; the slots that are free then.
    pub fn drop_copies(&mut self, range: Range<u64>) -> Vec<u32> {
        self.drops += 1;
        let mut freed = Vec::new();
        for (number, page) in self.pages.range_mut(numbers_of(&range)) {
            page.valid.remove(part_of(&range, *number));
            // What was written here and not sent is no copy of anything.
            page.unsent.iter().for_each(|span| page.valid.add(span));
            freed.extend(page.valid.is_empty().then_some((*number, page.slot)));
        }
        for (number, slot) in &freed {
            self.pages.remove(number);
            self.numbers.remove(slot);
        }
        freed.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Drops everything, sent or not; the slots, each with whether it had unsent bytes.
    pub fn drop_all(&mut self) -> Vec<(u32, bool)> {
        self.drops += 1;
        self.unsent = 0;
        self.numbers.clear();
        std::mem::take(&mut self.pages)
            .into_values()
            .map(|page| (page.slot, !page.unsent.is_empty()))
            .collect()
    }

    /// Drops the page in a slot if it is a copy that was not used since the last look.
    pub fn evict(&mut self, slot: u32) -> bool {
        let Some(number) = self.numbers.get(&slot).copied() else { return false };
        let Some(page) = self.pages.get_mut(&number) else { return false };
        assert_eq!(page.slot, slot, "page {number} is in another slot than is known of it");
        // A read under way has not seen those bytes, and counts on the page to lay them over it.
        let was_written = page.version > 0;
        if std::mem::take(&mut page.used) || !page.unsent.is_empty() || (was_written && self.reads > 0) {
            return false;
        }
        self.pages.remove(&number);
        self.numbers.remove(&slot);
        // What was read before this client wrote it must not come in again.
        self.drops += u64::from(was_written);
        true
    }
}

/// Returns a page, in a slot of `free` if it is new; `None` if there is none.
fn page<'a>(
    (pages, numbers): (&'a mut BTreeMap<u64, Page>, &mut HashMap<u32, u64>),
    number: u64,
    free: &mut Vec<u32>,
) -> Option<&'a mut Page> {
    match pages.entry(number) {
        Entry::Occupied(entry) => Some(entry.into_mut()),
        Entry::Vacant(entry) => {
            let slot = free.pop()?;
            let former = numbers.insert(slot, number);
            assert!(former.is_none(), "slot {slot} has two pages of a file");
            let (valid, unsent) = Default::default();
            Some(entry.insert(Page { slot, valid, unsent, version: 0, used: true }))
        }
    }
}

impl Batch {
    fn push(&mut self, arena: &Arena, number: u64, page: &Page, span: Range<u32>) -> io::Result<()> {
        let (start, offset) = (self.bytes.len(), number * PAGE + u64::from(span.start));
        let end = start + (span.end - span.start) as usize;
        self.bytes.resize(end, 0);
        arena.read(page.slot, span.start, self.bytes.get_mut(start..).unwrap_or_default())?;
        match self.places.last_mut() {
            Some((first, bytes)) if *first + bytes.len() as u64 == offset => bytes.end = end,
            _ => self.places.push((offset, start..end)),
        }
        self.taken.push((number, page.version, span));
        Ok(())
    }
}

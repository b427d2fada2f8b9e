//! Memory of a pool's pages: a memory file. That of a mount is kept by the supervisor, so that the next daemon finds
//! what a killed one had not sent.
//!
//! ```text
//! 0      magic "bvpages1", page size (u32), number of pages (u32), zeros
//! 4096   per page 128 bytes: inode (u64), number in the file (u64), count (u32), count ranges of unsent
//!        bytes, each its start (u16) and length - 1 (u16); zeros
//! …      the pages, each 64 KiB, from the next multiple of 4096 on
//! ```
//! The bytes are written before the ranges that name them, and ranges are taken out after the bytes have arrived, so
//! that at any moment the file names all bytes that were acknowledged and not sent, and such alone. Each of both is one
//! write into one page of memory, which a kill does not cut in two.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use bivouac_types::Ino;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use super::spans::Spans;

/// Bytes of a page.
pub const PAGE: u64 = 64 << 10;
/// Most ranges of unsent bytes in one page.
pub const SPANS_MAX: usize = (NOTE_LEN - NOTE_HEAD) / 4;

const MAGIC: [u8; 8] = *b"bvpages1";
const NOTES_AT: u64 = 4096;
const NOTE_LEN: usize = 128;
const NOTE_HEAD: usize = 20;
// A note lies within one page of memory.
const _: () = assert!(4096 % NOTE_LEN == 0);

/// A file of pages.
#[derive(Debug)]
pub struct Arena {
    file: File,
    base: u64,
    pages: u32,
}

/// Unsent bytes of a page that an earlier process left.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftoverPage {
    /// Index of the page in the arena.
    pub slot: u32,
    /// Its file.
    pub ino: Ino,
    /// Its number in the file.
    pub page: u64,
    /// Bytes that have not been sent.
    pub unsent: Spans,
}

impl Arena {
    /// Creates one for this process alone.
    ///
    /// # Errors
    /// What the system says.
    pub fn anonymous(pages: u32) -> io::Result<Arena> {
        let file = File::from(memfd_create("bivouac-pages", MemfdFlags::CLOEXEC)?);
        Ok(Arena { file, base: 0, pages })
    }

    /// Opens one that begins at `base` of a file. If it was used before, it has as many pages as then; returns those
    /// with unsent bytes.
    ///
    /// # Errors
    /// What the system says; `InvalidData` where something else is.
    pub fn open(file: File, base: u64, pages: u32) -> io::Result<(Arena, Vec<LeftoverPage>)> {
        let mut arena = Arena { file, base, pages };
        if arena.file.metadata()?.len() <= base {
            let mut head = [0; 16];
            head[..8].copy_from_slice(&MAGIC);
            head[8..12].copy_from_slice(&(PAGE as u32).to_le_bytes());
            head[12..].copy_from_slice(&pages.to_le_bytes());
            arena.file.write_all_at(&head, base)?;
            return Ok((arena, Vec::new()));
        }
        let mut head = [0; 16];
        arena.file.read_exact_at(&mut head, base)?;
        if head[..8] != MAGIC || word(&head, 8) != PAGE as u32 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "these are no pages of this version"));
        }
        arena.pages = word(&head, 12);
        let left = arena.left()?;
        Ok((arena, left))
    }

    /// Returns its number of pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Reads bytes of a page.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self, slot: u32, at: u32, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, self.place_of(slot, at, into.len()))
    }

    /// Writes bytes of a page.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, slot: u32, at: u32, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.place_of(slot, at, data.len()))
    }

    /// Notes which bytes of a page have not been sent, at most [`SPANS_MAX`] ranges.
    ///
    /// # Errors
    /// What the system says.
    pub fn note(&self, slot: u32, ino: Ino, page: u64, unsent: &Spans) -> io::Result<()> {
        // Those beyond would be lost with the process, although they were acknowledged.
        assert!(
            unsent.count() <= SPANS_MAX,
            "page {page} of inode {ino} has {} unsent ranges",
            unsent.count()
        );
        let mut note = [0; NOTE_LEN];
        note[..8].copy_from_slice(&ino.0.to_le_bytes());
        note[8..16].copy_from_slice(&page.to_le_bytes());
        note[16..20].copy_from_slice(&(unsent.count() as u32).to_le_bytes());
        for (place, span) in note[NOTE_HEAD..].chunks_exact_mut(4).zip(unsent.iter()) {
            place[..2].copy_from_slice(&(span.start as u16).to_le_bytes());
            place[2..].copy_from_slice(&((span.end - span.start - 1) as u16).to_le_bytes());
        }
        self.file.write_all_at(&note, self.note_at(slot))
    }

    /// Gives the memory of all pages back. None may be in use.
    pub fn give_back(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let freed = fallocate(&self.file, flags, self.place(0), u64::from(self.pages) * PAGE);
        if let Err(error) = freed {
            log::debug!(why:% = error; "the memory of the page pool is not given back");
        }
    }

    fn left(&self) -> io::Result<Vec<LeftoverPage>> {
        let len = self.file.metadata()?.len().saturating_sub(self.base + NOTES_AT);
        let mut notes = vec![0; (u64::from(self.pages) * NOTE_LEN as u64).min(len) as usize];
        self.file.read_exact_at(&mut notes, self.base + NOTES_AT)?;
        let notes = (0..).zip(notes.as_chunks::<NOTE_LEN>().0).filter(|(_, note)| word(*note, 16) > 0);
        notes.map(|(slot, note)| decode(slot, note)).collect()
    }

    fn place_of(&self, slot: u32, at: u32, len: usize) -> u64 {
        // What is behind it is another file's.
        assert!(slot < self.pages, "page {slot} of a pool of {} is used", self.pages);
        assert!(u64::from(at) + len as u64 <= PAGE, "{len} bytes at {at} of page {slot} reach behind it");
        self.place(slot) + u64::from(at)
    }

    fn note_at(&self, slot: u32) -> u64 {
        assert!(slot < self.pages, "page {slot} of a pool of {} is noted", self.pages);
        self.base + NOTES_AT + u64::from(slot) * NOTE_LEN as u64
    }

    fn place(&self, slot: u32) -> u64 {
        let notes = (u64::from(self.pages) * NOTE_LEN as u64).next_multiple_of(4096);
        self.base + NOTES_AT + notes + u64::from(slot) * PAGE
    }
}

fn decode(slot: u32, note: &[u8; NOTE_LEN]) -> io::Result<LeftoverPage> {
    let damaged =
        || io::Error::new(io::ErrorKind::InvalidData, format!("page {slot} of the pool is damaged"));
    let count = word(note, 16) as usize;
    let ranges = note[NOTE_HEAD..].as_chunks::<4>().0.get(..count).ok_or_else(damaged)?;
    let mut unsent = Spans::default();
    for [a, b, c, d] in ranges {
        let start = u32::from(u16::from_le_bytes([*a, *b]));
        let end = start + u32::from(u16::from_le_bytes([*c, *d])) + 1;
        let range: Range<u32> = start..end;
        if u64::from(end) > PAGE {
            return Err(damaged());
        }
        unsent.add(range);
    }
    Ok(LeftoverPage { slot, ino: Ino(long(note, 0)), page: long(note, 8), unsent })
}

/// Returns the 32 bits at `at`, which the caller keeps within the record.
fn word(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_le_bytes(part.copied().unwrap_or_default())
}

/// Returns the 64 bits at `at`, which the caller keeps within the record.
fn long(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_le_bytes(part.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory() -> File {
        File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap())
    }

    fn spans(ranges: &[Range<u32>]) -> Spans {
        let mut spans = Spans::default();
        ranges.iter().for_each(|range| spans.add(range.clone()));
        spans
    }

    /// S205.
    #[test]
    fn the_next_process_finds_what_was_not_sent() {
        let file = memory();
        let (arena, left) = Arena::open(file.try_clone().unwrap(), 1 << 20, 40).unwrap();
        assert_eq!((left, arena.pages()), (Vec::new(), 40));
        let unsent = spans(&[0..3, 100..PAGE as u32]);
        arena.write(7, 100, b"content").unwrap();
        arena.note(7, Ino(9), 5, &unsent).unwrap();
        arena.note(8, Ino(9), 6, &unsent).unwrap();
        arena.note(8, Ino(9), 6, &Spans::default()).unwrap();
        let (arena, left) = Arena::open(file.try_clone().unwrap(), 1 << 20, 50).unwrap();
        assert_eq!(left, [LeftoverPage { slot: 7, ino: Ino(9), page: 5, unsent }]);
        assert_eq!(arena.pages(), 40, "pages stay where they are");
        let mut bytes = [0; 7];
        arena.read(7, 100, &mut bytes).unwrap();
        assert_eq!(&bytes, b"content");
        file.write_all_at(b"something", 1 << 20).unwrap();
        assert!(Arena::open(file, 1 << 20, 40).is_err());
    }

    proptest! {
        #[test]
        fn any_note_is_one_or_refused(bytes in proptest::collection::vec(any::<u8>(), NOTE_LEN), count in 0u32..40) {
            let file = memory();
            drop(Arena::open(file.try_clone().unwrap(), 0, 4).unwrap());
            file.write_all_at(&bytes, NOTES_AT + NOTE_LEN as u64).unwrap();
            file.write_all_at(&count.to_le_bytes(), NOTES_AT + NOTE_LEN as u64 + 16).unwrap();
            match Arena::open(file, 0, 4) {
                Ok((_, left)) => {
                    prop_assert_eq!(left.len(), usize::from(count > 0));
                    prop_assert!(left.iter().all(|left| left.unsent.iter().all(|span| u64::from(span.end) <= PAGE)));
                }
                Err(error) => prop_assert_eq!(error.kind(), io::ErrorKind::InvalidData),
            }
        }
    }
}

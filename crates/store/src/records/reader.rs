//! Reading a log or snapshot from front to back, telling a torn end from damage.

use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::correct::flipped_bit;
use super::format::{FileHeader, FileKind, HEAD_LEN, HEADER_LEN, Head, HeaderError, OLDEST, Origin, VERSION};
use super::sift::is_unwritten;
use crate::crc::crc32c;
use crate::volume::transfer::read_full_at;
use crate::{StoreError, StoreResult, VolumeFile};

/// Bytes read at once.
const WINDOW_LEN: u64 = 1 << 20;

/// Next item of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextEntry<'a> {
    /// The body of the next entry.
    Entry(&'a [u8]),
    /// The clean end.
    End,
    /// The rest of an entry that was never finished.
    Torn,
}

/// A file being read.
pub(super) struct EntryReader {
    file: Arc<dyn VolumeFile>,
    path: PathBuf,
    len: u64,
    header: FileHeader,
    at: u64,
    sequence: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl EntryReader {
    /// Reads and checks the header.
    pub(super) fn open(
        file: Arc<dyn VolumeFile>,
        path: &Path,
        kind: FileKind,
        origin: Origin,
    ) -> StoreResult<EntryReader> {
        let len = file.stat().map_err(StoreError::io(format!("{}: stat", path.display())))?.len;
        let mut bytes = [0u8; HEADER_LEN];
        let count = read_full_at(&*file, &mut [IoSliceMut::new(&mut bytes)], 0, len)
            .map_err(StoreError::io(format!("{}: read", path.display())))?;
        let header = check_header(bytes.get(..count).unwrap_or_default(), path, kind, origin)?;
        let (at, path) = (HEADER_LEN as u64, path.to_owned());
        Ok(EntryReader { file, path, len, header, at, sequence: 0, window: Vec::new(), window_at: 0 })
    }

    pub(super) fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Returns the offset of what comes next.
    pub(super) fn offset(&self) -> u64 {
        self.at
    }

    /// Returns the length of the file, in bytes.
    pub(super) fn file_len(&self) -> u64 {
        self.len
    }

    /// Returns the sequence of the last entry that was read.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Says which entry was the last one before this file.
    pub(super) fn continue_after(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    /// Returns the next entry, whose sequence must follow the last one.
    pub(super) fn next(&mut self) -> StoreResult<NextEntry<'_>> {
        if self.at >= self.len {
            return Ok(NextEntry::End);
        }
        let Some(head) = self.head()? else {
            // The length may be part of the damage, so what is behind the head is looked at whatever it says.
            let behind_head = self.at.saturating_add(HEAD_LEN as u64);
            return self.torn_or(behind_head, "wrong checksum of an entry's head");
        };
        let body_at = self.at + HEAD_LEN as u64;
        let end = body_at + u64::from(head.len);
        // No zeros behind it, and less than it says: the write stopped in the middle.
        if end > self.len {
            return Ok(NextEntry::Torn);
        }
        if crc32c(self.load(body_at, u64::from(head.len))?) != head.body_crc {
            return self.torn_body(body_at, end, head.body_crc);
        }
        // Checksums cannot tell that a whole entry is gone, or that a file was put back from an older copy:
        // sequences do.
        if Some(head.sequence) != self.sequence.checked_add(1) {
            let cause =
                format!("entry {} follows entry {}: commits are missing", head.sequence, self.sequence);
            return Err(self.damaged(cause));
        }
        (self.at, self.sequence) = (end, head.sequence);
        Ok(NextEntry::Entry(self.load(body_at, u64::from(head.len))?))
    }

    pub(super) fn file(&self) -> &Arc<dyn VolumeFile> {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error for damage at an offset.
    pub(super) fn damaged_at(&self, offset: u64, cause: impl Into<String>) -> StoreError {
        StoreError::Corrupt { path: self.path.clone(), offset, cause: cause.into() }
    }

    fn damaged(&self, cause: impl Into<String>) -> StoreError {
        self.damaged_at(self.at, cause)
    }

    fn head(&mut self) -> StoreResult<Option<Head>> {
        let generation = self.header.generation;
        let (at, left) = (self.at, self.len - self.at);
        let bytes = self.load(at, left.min(HEAD_LEN as u64))?;
        Ok(bytes.first_chunk().and_then(|bytes| Head::from_bytes(bytes, generation)))
    }

    /// Judges a body that does not fit to its checksum: it is torn if its end was never written. One that is whole is
    /// not, whatever its place: somebody was told that it is done.
    fn torn_body(&mut self, from: u64, end: u64, crc: u32) -> StoreResult<NextEntry<'_>> {
        const CAUSE: &str = "wrong checksum of an entry";
        let body = self.load(from, end - from)?;
        // A body that one flipped bit explains was written whole, and may have been acknowledged.
        if !is_unwritten(body) || flipped_bit(body, crc).is_some() {
            return Err(self.damaged(CAUSE));
        }
        self.torn_or(end, CAUSE)
    }

    /// Returns that the log is torn, when only zeros, or nothing, are in the file from `from` on; fails with damage
    /// otherwise.
    fn torn_or(&mut self, from: u64, cause: &'static str) -> StoreResult<NextEntry<'_>> {
        let mut at = from;
        while at < self.len {
            let count = (self.len - at).min(WINDOW_LEN);
            if self.load(at, count)?.iter().any(|byte| *byte != 0) {
                return Err(self.damaged(cause));
            }
            at += count;
        }
        Ok(NextEntry::Torn)
    }

    /// Returns the bytes of the file; the caller has made sure that they are within its length.
    fn load(&mut self, at: u64, count: u64) -> StoreResult<&[u8]> {
        assert!(at.checked_add(count).is_some_and(|end| end <= self.len), "bytes behind the end of a file");
        let window_end = self.window_at + self.window.len() as u64;
        if at < self.window_at || at + count > window_end {
            // From `at` on, so that a body that is longer than the window is in one piece.
            self.fill(at, count.max(WINDOW_LEN).min(self.len - at))?;
        }
        let start = (at - self.window_at) as usize;
        let bytes = self.window.get(start..start + count as usize);
        bytes.ok_or_else(|| self.damaged("file became shorter while it was read"))
    }

    fn fill(&mut self, at: u64, count: u64) -> StoreResult<()> {
        self.window.resize(count as usize, 0);
        let bufs = &mut [IoSliceMut::new(&mut self.window)];
        let count = read_full_at(&*self.file, bufs, at, self.len)
            .map_err(StoreError::io(format!("{}: read", self.path.display())))?;
        self.window.truncate(count);
        self.window_at = at;
        Ok(())
    }
}

fn check_header(bytes: &[u8], path: &Path, kind: FileKind, origin: Origin) -> StoreResult<FileHeader> {
    let header = parse_header(bytes, path, kind)?;
    let path = path.to_owned();
    if header.origin.formation != origin.formation {
        let (found, expected) = (header.origin.formation, origin.formation);
        return Err(StoreError::WrongFormation { path, found, expected });
    }
    if header.origin != origin {
        let (found, expected) = (header.origin, origin);
        let cause = format!(
            "records of {} for {} slots, opened by {} for {} slots",
            found.node, found.slots, expected.node, expected.slots
        );
        return Err(StoreError::Corrupt { path, offset: 0, cause });
    }
    Ok(header)
}

/// Returns the node, formation and slots that a file was written for.
pub(super) fn origin(file: &dyn VolumeFile, path: &Path, kind: FileKind) -> StoreResult<Origin> {
    let mut bytes = [0u8; HEADER_LEN];
    let count = read_full_at(file, &mut [IoSliceMut::new(&mut bytes)], 0, HEADER_LEN as u64)
        .map_err(StoreError::io(format!("{}: read", path.display())))?;
    Ok(parse_header(bytes.get(..count).unwrap_or_default(), path, kind)?.origin)
}

fn parse_header(bytes: &[u8], path: &Path, kind: FileKind) -> StoreResult<FileHeader> {
    let path = path.to_owned();
    FileHeader::from_bytes(bytes, kind).map_err(|error| match error {
        HeaderError::Newer(found) => StoreError::NewerFormat { path, found, supported: VERSION },
        HeaderError::Older(found) => StoreError::OlderFormat { path, found, oldest: OLDEST },
        HeaderError::Damaged(cause) => StoreError::Corrupt { path, offset: 0, cause: cause.to_owned() },
    })
}

//! Transfer of contents to and from objects, piece by piece, with the hashes of their blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use bivouac_source::{
    Attrs, Piece, Precondition, S3Source, Source as _, SourceResult, Version, for_each_parallel,
};
use blake3::Hash;

use super::ArchiveError;
use crate::blocks::{BLOCK, BlockHash, block_hash, file_digest};
use crate::error::{Cause, Failure};
use crate::options::CopyOptions;

/// Concurrent requests: latency dominates.
const REQUESTS: usize = 16;
/// Upper limit of pieces in memory, in bytes.
const MEMORY: u64 = 512 << 20;

/// A readable source of content.
pub trait ContentSource: Sync {
    /// Fills `into` from `offset`; fails if fewer bytes are there.
    ///
    /// # Errors
    /// That there are fewer, or what the system says.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ArchiveError>;

    /// Returns the error of content that has changed.
    fn changed(&self) -> ArchiveError;
}

/// Content in memory.
pub struct MemoryBytes<'a>(pub &'a [u8]);

/// Content of a file.
pub struct OpenFile<'a> {
    pub file: &'a File,
    pub path: &'a Path,
}

impl ContentSource for MemoryBytes<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ArchiveError> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or_else(|| self.changed())?);
        Ok(())
    }

    fn changed(&self) -> ArchiveError {
        ArchiveError::Damaged("a text in memory has changed".to_owned())
    }
}

impl ContentSource for OpenFile<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ArchiveError> {
        self.file.read_exact_at(into, offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.changed(),
            _ => ArchiveError::Local(Failure::io("read", self.path, error)),
        })
    }

    fn changed(&self) -> ArchiveError {
        ArchiveError::Local(Failure::new(self.path, Cause::Changed))
    }
}

/// Content with the hashes of its blocks, as far as they have been read.
pub struct Content<'a> {
    bytes: &'a dyn ContentSource,
    size: u64,
    blocks: Vec<OnceLock<BlockHash>>,
}

impl<'a> Content<'a> {
    pub fn new(bytes: &'a dyn ContentSource, size: u64) -> Content<'a> {
        Content { bytes, size, blocks: (0..size.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect() }
    }

    /// Returns the digest if every block has been read.
    fn digest(&self) -> Option<Hash> {
        let values =
            self.blocks.iter().map(|value| value.get().copied()).collect::<Option<Vec<BlockHash>>>()?;
        Some(file_digest(&values))
    }

    /// Returns whether a piece has the block hashes of earlier reads, and records those of blocks read for the first
    /// time.
    fn matches_known_hashes(&self, offset: u64, piece: &[u8]) -> bool {
        assert!(offset.is_multiple_of(BLOCK), "a piece does not begin at a block");
        let first = (offset / BLOCK) as usize;
        let blocks = self.blocks.get(first..).unwrap_or_default();
        values(offset, piece, self.size)
            .zip(blocks)
            .all(|(value, block)| *block.get_or_init(|| value) == value)
    }

    /// Reads a piece, and fails if it differs from an earlier read of it.
    fn piece(&self, offset: u64, len: usize) -> Result<Vec<u8>, ArchiveError> {
        let mut piece = vec![0; len];
        self.bytes.read(offset, &mut piece)?;
        if self.matches_known_hashes(offset, &piece) { Ok(piece) } else { Err(self.bytes.changed()) }
    }

    /// Returns the digest; reads what has not been read yet.
    pub fn full_digest(&self, store: &S3Source, opts: &CopyOptions) -> Result<Hash, ArchiveError> {
        if self.digest().is_none() {
            Pieces::of(store, self.size).each(opts, |offset, len| self.piece(offset, len).map(drop))?;
        }
        self.digest().ok_or_else(|| self.bytes.changed())
    }

    /// Returns whether an object has the same content. The content itself is read first, so that the object's bytes are
    /// compared with it and do not define it.
    pub fn is_at(
        &self,
        store: &S3Source,
        path: &[u8],
        version: &Version,
        opts: &CopyOptions,
    ) -> Result<bool, ArchiveError> {
        if version.size != self.size {
            return Ok(false);
        }
        // Fixes the hashes of the content before the object's bytes are compared with them.
        self.full_digest(store, opts)?;
        let differs = AtomicBool::new(false);
        Pieces::of(store, self.size).each(opts, |offset, len| {
            if !differs.load(Ordering::Relaxed) {
                let mut piece = vec![0; len];
                read_piece(store, path, version, offset, &mut piece)?;
                differs.fetch_or(!self.matches_known_hashes(offset, &piece), Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(!differs.into_inner())
    }

    /// Writes the content to an object, reads the object back and compares.
    pub fn put(
        &self,
        store: &S3Source,
        path: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
        opts: &CopyOptions,
    ) -> Result<(), ArchiveError> {
        let pieces = Pieces::of(store, self.size);
        let version = if pieces.count() > 1 {
            self.put_in_parts(store, path, attrs, expect, opts)?
        } else {
            let all = self.piece(0, usize::try_from(self.size).unwrap_or(usize::MAX))?;
            store.put_file(path, &all, attrs, expect)?.version
        };
        // Read back by the version that the store answered: what another command has put there since proves nothing.
        if version.size == self.size && self.is_at(store, path, &version, opts)? {
            return Ok(());
        }
        let text = "reads back differently than it was written; check the store";
        Err(ArchiveError::Damaged(format!("{}: {text}", store.object(path))))
    }

    fn put_in_parts(
        &self,
        store: &S3Source,
        path: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
        opts: &CopyOptions,
    ) -> Result<Version, ArchiveError> {
        let upload = store.begin(path, self.size, attrs)?;
        let put: Mutex<Vec<Piece>> = Mutex::default();
        let sent = Pieces::of(store, self.size).each(opts, |offset, len| {
            let piece = store.put(&upload, offset, &self.piece(offset, len)?)?;
            put.lock().unwrap_or_else(PoisonError::into_inner).push(piece);
            Ok(())
        });
        let committed = sent.and_then(|()| {
            let mut put = put.into_inner().unwrap_or_else(PoisonError::into_inner);
            put.sort_by_key(|piece| piece.offset);
            assert_eq!(put.len() as u64, Pieces::of(store, self.size).count(), "an upload lacks pieces");
            Ok(store.commit(&upload, &put, attrs, expect)?.version)
        });
        if committed.is_err() {
            // Best effort: the first failure is the one to report.
            let _as_far_as_it_goes = store.abort(&upload);
        }
        committed
    }
}

/// Returns the hashes of the blocks of a piece.
pub fn values(offset: u64, piece: &[u8], size: u64) -> impl Iterator<Item = BlockHash> {
    let blocks = piece.chunks(BLOCK as usize).enumerate();
    blocks.map(move |(number, block)| block_hash(block, offset + number as u64 * BLOCK, size <= BLOCK))
}

/// The pieces that content is transferred in: whole blocks, at least as large as the store's smallest part.
#[derive(Clone, Copy)]
pub struct Pieces {
    size: u64,
    len: u64,
}

impl Pieces {
    pub fn of(store: &S3Source, size: u64) -> Pieces {
        // Whole blocks, so that no block's hash has to be put together from two pieces.
        let len = store.piece_size(size).unwrap_or(BLOCK).next_multiple_of(BLOCK);
        assert!(len > 0, "{size} bytes in pieces of none");
        Pieces { size, len }
    }

    pub fn count(self) -> u64 {
        self.size.div_ceil(self.len)
    }

    /// Returns whether they keep all concurrent requests busy.
    fn are_many(self) -> bool {
        self.count() >= REQUESTS as u64
    }

    /// Calls `work` for each piece, in parallel if there are many.
    pub fn each(
        self,
        opts: &CopyOptions,
        work: impl Fn(u64, usize) -> Result<(), ArchiveError> + Sync,
    ) -> Result<(), ArchiveError> {
        // Large pieces: their number is bounded by memory, not by requests.
        let at_once = if self.are_many() { (MEMORY / self.len) as usize } else { 1 };
        each(self.count(), at_once, opts, |number| {
            let offset = number * self.len;
            work(offset, usize::try_from(self.len.min(self.size - offset)).unwrap_or(usize::MAX))
        })
    }
}

/// Calls `work` for each file: large ones one after the other, with parallel pieces; then small ones in parallel.
pub fn each_file<T: Sync>(
    store: &S3Source,
    files: &[T],
    size_of: impl Fn(&T) -> u64,
    opts: &CopyOptions,
    work: impl Fn(&T) -> Result<(), ArchiveError> + Sync,
) -> Result<(), ArchiveError> {
    let (large, small): (Vec<&T>, Vec<&T>) =
        files.iter().partition(|file| Pieces::of(store, size_of(file)).are_many());
    // Pieces of one large file keep all requests busy, so large files are not transferred in parallel.
    for (some, at_once) in [(large, 1), (small, REQUESTS)] {
        each(some.len() as u64, at_once, opts, |number| {
            some.get(number as usize).map_or(Ok(()), |file| work(file))
        })?;
    }
    Ok(())
}

/// Calls `work` for each number with bounded parallelism. The first failure ends it.
fn each(
    count: u64,
    at_once: usize,
    opts: &CopyOptions,
    work: impl Fn(u64) -> Result<(), ArchiveError> + Sync,
) -> Result<(), ArchiveError> {
    for_each_parallel(count, at_once.min(REQUESTS), |number| {
        if opts.cancelled() { Err(ArchiveError::Cancelled) } else { work(number) }
    })
}

/// Reads a range of an object that still has `version`.
pub fn read_piece(
    store: &S3Source,
    path: &[u8],
    version: &Version,
    offset: u64,
    piece: &mut [u8],
) -> SourceResult<()> {
    if !piece.is_empty() {
        let read = store.read(path, version, offset, piece)?;
        assert_eq!(read, piece.len(), "a range within an object was read in part");
    }
    Ok(())
}

/// Reads a whole object that still has `version`.
pub fn read(store: &S3Source, path: &[u8], version: &Version) -> SourceResult<Vec<u8>> {
    let mut bytes = Vec::new();
    // The buffer grows with the data, because the size is the store's claim.
    while (bytes.len() as u64) < version.size {
        let at = bytes.len();
        let left = version.size - at as u64;
        bytes.resize(at + usize::try_from(left.min(8 << 20)).unwrap_or(0), 0);
        read_piece(store, path, version, at as u64, bytes.get_mut(at..).unwrap_or_default())?;
    }
    Ok(bytes)
}

//! Contents on their way to an object and back, piece by piece, with the digests of their blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use bivouac_source::{Attrs, Expect, Piece, S3Source, Source as _, SourceResult, Version, for_each_at_once};
use blake3::Hash;

use super::ArchiveError;
use crate::blocks::{BLOCK, Value, file_digest, value_of};
use crate::{Cause, CopyOptions, Failure};

/// Requests at a time: most of the time is that of their answers.
const REQUESTS: usize = 16;
/// Bytes of pieces that are in memory at a time.
const MEMORY: u64 = 512 << 20;

/// Where bytes come from.
pub trait Bytes: Sync {
    /// All bytes from `offset` on, as many as fit.
    ///
    /// # Errors
    /// That there are fewer, or what the system says.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ArchiveError>;

    /// That they are not what they were.
    fn changed(&self) -> ArchiveError;
}

/// Those in memory.
pub struct Text<'a>(pub &'a [u8]);

/// Those of a file.
pub struct OpenFile<'a> {
    pub file: &'a File,
    pub path: &'a Path,
}

impl Bytes for Text<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ArchiveError> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or_else(|| self.changed())?);
        Ok(())
    }

    fn changed(&self) -> ArchiveError {
        ArchiveError::Damaged("a text in memory has changed".to_owned())
    }
}

impl Bytes for OpenFile<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ArchiveError> {
        self.file.read_exact_at(into, offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.changed(),
            _ => ArchiveError::Here(Failure::io("read", self.path, error)),
        })
    }

    fn changed(&self) -> ArchiveError {
        ArchiveError::Here(Failure::new(self.path, Cause::Changed))
    }
}

/// Bytes with the values of their blocks, as far as they have been seen.
pub struct Content<'a> {
    bytes: &'a dyn Bytes,
    size: u64,
    blocks: Vec<OnceLock<Value>>,
}

impl<'a> Content<'a> {
    pub fn new(bytes: &'a dyn Bytes, size: u64) -> Content<'a> {
        Content { bytes, size, blocks: (0..size.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect() }
    }

    /// The digest, once all has been seen.
    fn digest(&self) -> Option<Hash> {
        let values = self.blocks.iter().map(|value| value.get().copied()).collect::<Option<Vec<Value>>>()?;
        Some(file_digest(&values))
    }

    /// Whether a piece has the values that were seen of it before.
    fn is_seen(&self, offset: u64, piece: &[u8]) -> bool {
        let first = (offset / BLOCK) as usize;
        let blocks = self.blocks.get(first..).unwrap_or_default();
        values(offset, piece, self.size)
            .zip(blocks)
            .all(|(value, block)| *block.get_or_init(|| value) == value)
    }

    /// Reads a piece. That it is what was seen of it before.
    fn piece(&self, offset: u64, len: usize) -> Result<Vec<u8>, ArchiveError> {
        let mut piece = vec![0; len];
        self.bytes.read(offset, &mut piece)?;
        if self.is_seen(offset, &piece) { Ok(piece) } else { Err(self.bytes.changed()) }
    }

    /// Gets to know the digest, if need be by reading all.
    pub fn look(&self, store: &S3Source, opts: &CopyOptions) -> Result<Hash, ArchiveError> {
        if self.digest().is_none() {
            Pieces::of(store, self.size).each(opts, |offset, len| self.piece(offset, len).map(drop))?;
        }
        self.digest().ok_or_else(|| self.bytes.changed())
    }

    /// Whether an object has the same content. Its bytes are not taken for what this has.
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
        self.look(store, opts)?;
        let differs = AtomicBool::new(false);
        Pieces::of(store, self.size).each(opts, |offset, len| {
            if !differs.load(Ordering::Relaxed) {
                let mut piece = vec![0; len];
                read_piece(store, path, version, offset, &mut piece)?;
                differs.fetch_or(!self.is_seen(offset, &piece), Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(!differs.into_inner())
    }

    /// Puts it in the place of an object, reads that again and compares it.
    pub fn put(
        &self,
        store: &S3Source,
        path: &[u8],
        attrs: &Attrs,
        expect: &Expect,
        opts: &CopyOptions,
    ) -> Result<(), ArchiveError> {
        let pieces = Pieces::of(store, self.size);
        let version = if pieces.count() > 1 {
            self.put_in_parts(store, path, attrs, expect, opts)?
        } else {
            let all = self.piece(0, usize::try_from(self.size).unwrap_or(usize::MAX))?;
            store.put_file(path, &all, attrs, expect)?.version
        };
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
        expect: &Expect,
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
            Ok(store.commit(&upload, &put, attrs, expect)?.version)
        });
        if committed.is_err() {
            // The first failure is the one that is told.
            let _as_far_as_it_goes = store.abort(&upload);
        }
        committed
    }
}

/// The values of the blocks of a piece.
pub fn values(offset: u64, piece: &[u8], size: u64) -> impl Iterator<Item = Value> {
    let blocks = piece.chunks(BLOCK as usize).enumerate();
    blocks.map(move |(number, block)| value_of(block, offset + number as u64 * BLOCK, size <= BLOCK))
}

/// The pieces that content is moved in: whole blocks, and no smaller than the store's parts.
#[derive(Clone, Copy)]
pub struct Pieces {
    size: u64,
    len: u64,
}

impl Pieces {
    pub fn of(store: &S3Source, size: u64) -> Pieces {
        Pieces { size, len: store.piece_size(size).unwrap_or(BLOCK).next_multiple_of(BLOCK) }
    }

    pub fn count(self) -> u64 {
        self.size.div_ceil(self.len)
    }

    /// Whether they are enough to keep all requests busy.
    fn are_many(self) -> bool {
        self.count() >= REQUESTS as u64
    }

    /// Does the same with each, with many of large content at a time.
    pub fn each(
        self,
        opts: &CopyOptions,
        work: impl Fn(u64, usize) -> Result<(), ArchiveError> + Sync,
    ) -> Result<(), ArchiveError> {
        let at_once = if self.are_many() { (MEMORY / self.len) as usize } else { 1 };
        each(self.count(), at_once, opts, |number| {
            let offset = number * self.len;
            work(offset, usize::try_from(self.len.min(self.size - offset)).unwrap_or(usize::MAX))
        })
    }
}

/// Does the same with each file: first with large ones, whose pieces are moved many at a time, then with many small ones
/// at a time.
pub fn each_file<T: Sync>(
    store: &S3Source,
    files: &[T],
    size_of: impl Fn(&T) -> u64,
    opts: &CopyOptions,
    work: impl Fn(&T) -> Result<(), ArchiveError> + Sync,
) -> Result<(), ArchiveError> {
    let (large, small): (Vec<&T>, Vec<&T>) =
        files.iter().partition(|file| Pieces::of(store, size_of(file)).are_many());
    for (some, at_once) in [(large, 1), (small, REQUESTS)] {
        each(some.len() as u64, at_once, opts, |number| {
            some.get(number as usize).map_or(Ok(()), |file| work(file))
        })?;
    }
    Ok(())
}

/// Does the same for each number, as many at once as there may be requests. The first failure ends it.
fn each(
    count: u64,
    at_once: usize,
    opts: &CopyOptions,
    work: impl Fn(u64) -> Result<(), ArchiveError> + Sync,
) -> Result<(), ArchiveError> {
    for_each_at_once(count, at_once.min(REQUESTS), |number| {
        if opts.cancelled() { Err(ArchiveError::Cancelled) } else { work(number) }
    })
}

/// Fills from an object as it was seen.
pub fn read_piece(
    store: &S3Source,
    path: &[u8],
    version: &Version,
    offset: u64,
    piece: &mut [u8],
) -> SourceResult<()> {
    if !piece.is_empty() {
        store.read(path, version, offset, piece)?;
    }
    Ok(())
}

/// All of an object.
pub fn read(store: &S3Source, path: &[u8], version: &Version) -> SourceResult<Vec<u8>> {
    let mut bytes = Vec::new();
    // Grows with what really comes, whatever size the store says.
    while (bytes.len() as u64) < version.size {
        let at = bytes.len();
        let left = version.size - at as u64;
        bytes.resize(at + usize::try_from(left.min(8 << 20)).unwrap_or(0), 0);
        read_piece(store, path, version, at as u64, bytes.get_mut(at..).unwrap_or_default())?;
    }
    Ok(bytes)
}

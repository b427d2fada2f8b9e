//! A source that refuses changes.

use std::time::Duration;

use crate::{
    Attrs, Cause, Entry, Listing, Meta, Piece, Precondition, PutOutcome, Source, SourceError, SourceResult,
    Upload, Version,
};

/// A wrapper that refuses every change to site storage.
pub struct ReadOnlySource(pub Box<dyn Source>);

fn refused<T>() -> SourceResult<T> {
    // The caller sees EROFS, as on a file system that is mounted read-only.
    let text = "the source is only read (write=never): copy it elsewhere, or attach the pool with :rw";
    Err(SourceError::new(Cause::ReadOnly, text))
}

impl Source for ReadOnlySource {
    fn check(&self) -> SourceResult<()> {
        self.0.check()
    }

    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        self.0.list(dir)
    }

    fn names_valid_for(&self) -> Option<Duration> {
        self.0.names_valid_for()
    }

    fn list_changed(&self, dir: &[u8], known: Option<u128>) -> SourceResult<Option<Listing>> {
        self.0.list_changed(dir, known)
    }

    fn pieces_under_way(&self, piece_len: u64) -> Option<usize> {
        self.0.pieces_under_way(piece_len)
    }

    fn stat(&self, path: &[u8]) -> SourceResult<Meta> {
        self.0.stat(path)
    }

    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize> {
        self.0.read(path, version, offset, into)
    }

    fn plan(&self, _: &[u8], _: u64) -> SourceResult<Upload> {
        refused()
    }

    fn start(&self, _: Upload, _: &Attrs) -> SourceResult<Upload> {
        refused()
    }

    fn piece_size(&self, size: u64) -> Option<u64> {
        self.0.piece_size(size)
    }

    fn put(&self, _: &Upload, _: u64, _: &[u8]) -> SourceResult<Piece> {
        refused()
    }

    fn verifies_for_all(&self) -> bool {
        self.0.verifies_for_all()
    }

    fn verify(&self, _: &Upload, _: &[Piece]) -> SourceResult<()> {
        refused()
    }

    fn commit(&self, _: &Upload, _: &[Piece], _: &Attrs, _: &Precondition) -> SourceResult<PutOutcome> {
        refused()
    }

    /// Discards an upload that was started before the source became read-only: that is permitted.
    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        self.0.abort(upload)
    }

    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        self.0.is_made_by(found, tag)
    }

    fn resume(&self, _: &Upload, _: &Precondition) -> SourceResult<Option<Version>> {
        refused()
    }

    fn put_dir(&self, _: &[u8], _: &Attrs) -> SourceResult<PutOutcome> {
        refused()
    }

    fn put_open_dir(&self, _: &[u8], _: &Attrs) -> SourceResult<PutOutcome> {
        refused()
    }

    fn put_dir_times(&self, _: &[u8], _: &Attrs) -> SourceResult<PutOutcome> {
        refused()
    }

    fn start_link(&self, _: Upload, _: &[u8]) -> SourceResult<Upload> {
        refused()
    }

    fn put_link(&self, _: &Upload, _: &[u8], _: &Attrs, _: &Precondition) -> SourceResult<PutOutcome> {
        refused()
    }

    fn set_attrs(&self, _: &[u8], _: &Version, _: &Attrs) -> SourceResult<PutOutcome> {
        refused()
    }

    fn has_attrs_applied(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
        self.0.has_attrs_applied(found, was, attrs)
    }

    fn remove(&self, _: &[u8], _: Option<&Version>) -> SourceResult<()> {
        refused()
    }
}

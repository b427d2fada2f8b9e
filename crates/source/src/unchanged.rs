//! A source that is only read.

use crate::{
    Attrs, Cause, Entry, Expect, Kept, Meta, Piece, Source, SourceError, SourceResult, Upload, Version,
};

/// Site storage of which nothing is changed, whoever asks for it.
pub struct UnchangedSource(pub Box<dyn Source>);

fn refused<T>() -> SourceResult<T> {
    let text = "the source is only read (write=never): copy it elsewhere, or attach the pool with :rw";
    Err(SourceError::new(Cause::ReadOnly, text))
}

impl Source for UnchangedSource {
    fn check(&self) -> SourceResult<()> {
        self.0.check()
    }

    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        self.0.list(dir)
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

    fn verify(&self, _: &Upload, _: &[Piece]) -> SourceResult<()> {
        refused()
    }

    fn commit(&self, _: &Upload, _: &[Piece], _: &Attrs, _: &Expect) -> SourceResult<Kept> {
        refused()
    }

    /// What was begun before it was only read may end.
    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        self.0.abort(upload)
    }

    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        self.0.is_made_by(found, tag)
    }

    fn resume(&self, _: &Upload, _: &Expect) -> SourceResult<Option<Version>> {
        refused()
    }

    fn put_dir(&self, _: &[u8], _: &Attrs) -> SourceResult<Kept> {
        refused()
    }

    fn put_open_dir(&self, _: &[u8], _: &Attrs) -> SourceResult<Kept> {
        refused()
    }

    fn put_dir_times(&self, _: &[u8], _: &Attrs) -> SourceResult<Kept> {
        refused()
    }

    fn start_link(&self, _: Upload, _: &[u8]) -> SourceResult<Upload> {
        refused()
    }

    fn put_link(&self, _: &Upload, _: &[u8], _: &Attrs, _: &Expect) -> SourceResult<Kept> {
        refused()
    }

    fn set_attrs(&self, _: &[u8], _: &Version, _: &Attrs) -> SourceResult<Kept> {
        refused()
    }

    fn is_given(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
        self.0.is_given(found, was, attrs)
    }

    fn remove(&self, _: &[u8], _: Option<&Version>) -> SourceResult<()> {
        refused()
    }
}

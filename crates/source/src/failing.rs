//! A source with injected failures and operation counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::{
    Attrs, Cause, Entry, Listing, Meta, Piece, Precondition, PutOutcome, Source, SourceError, SourceResult,
    Upload, Version,
};

/// A wrapper around a source for tests.
pub struct FailingSource<S> {
    inner: S,
    /// The number of operations that still succeed, and the cause that all later ones fail with.
    fault: Mutex<Option<(u64, Cause)>>,
    read: AtomicU64,
}

impl<S: Source> FailingSource<S> {
    /// Wraps a source; no failure is injected yet.
    pub fn new(inner: S) -> FailingSource<S> {
        FailingSource { inner, fault: Mutex::new(None), read: AtomicU64::new(0) }
    }

    /// Makes every operation fail after `after` more have succeeded.
    pub fn fail(&self, after: u64, cause: Cause) {
        *self.fault.lock() = Some((after, cause));
    }

    /// Ends the injection of failures.
    pub fn heal(&self) {
        *self.fault.lock() = None;
    }

    /// Returns the number of bytes read.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    fn pass(&self) -> SourceResult<&S> {
        match &mut *self.fault.lock() {
            Some((0, cause)) => Err(SourceError::new(*cause, format!("made to fail: {cause:?}"))),
            Some((left, _)) => {
                *left -= 1;
                Ok(&self.inner)
            }
            None => Ok(&self.inner),
        }
    }
}

impl<S: Source> Source for FailingSource<S> {
    fn check(&self) -> SourceResult<()> {
        self.pass()?.check()
    }

    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        self.pass()?.list(dir)
    }

    fn names_valid_for(&self) -> Option<Duration> {
        self.inner.names_valid_for()
    }

    fn list_changed(&self, dir: &[u8], known: Option<u128>) -> SourceResult<Option<Listing>> {
        self.pass()?.list_changed(dir, known)
    }

    fn pieces_under_way(&self, piece_len: u64) -> Option<usize> {
        self.inner.pieces_under_way(piece_len)
    }

    fn whole_len_max(&self) -> u64 {
        self.inner.whole_len_max()
    }

    fn plan_whole(&self, path: &[u8], data: &[u8]) -> SourceResult<Upload> {
        self.inner.plan_whole(path, data)
    }

    fn put_whole(
        &self,
        plan: &Upload,
        data: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.pass()?.put_whole(plan, data, attrs, expect)
    }

    fn stat(&self, path: &[u8]) -> SourceResult<Meta> {
        self.pass()?.stat(path)
    }

    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize> {
        let len = self.pass()?.read(path, version, offset, into)?;
        self.read.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }

    fn plan(&self, path: &[u8], size: u64) -> SourceResult<Upload> {
        self.inner.plan(path, size)
    }

    fn start(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload> {
        self.pass()?.start(plan, attrs)
    }

    fn piece_size(&self, size: u64) -> Option<u64> {
        self.inner.piece_size(size)
    }

    fn put(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        self.pass()?.put(upload, offset, data)
    }

    fn verifies_for_all(&self) -> bool {
        self.inner.verifies_for_all()
    }

    fn verify(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        self.pass()?.verify(upload, pieces)
    }

    fn commit(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.pass()?.commit(upload, pieces, attrs, expect)
    }

    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        self.pass()?.abort(upload)
    }

    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        self.inner.is_made_by(found, tag)
    }

    fn resume(&self, upload: &Upload, expect: &Precondition) -> SourceResult<Option<Version>> {
        self.pass()?.resume(upload, expect)
    }

    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.pass()?.put_dir(path, attrs)
    }

    fn put_open_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.pass()?.put_open_dir(path, attrs)
    }

    fn put_dir_times(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.pass()?.put_dir_times(path, attrs)
    }

    fn start_link(&self, plan: Upload, target: &[u8]) -> SourceResult<Upload> {
        self.pass()?.start_link(plan, target)
    }

    fn put_link(
        &self,
        link: &Upload,
        target: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.pass()?.put_link(link, target, attrs, expect)
    }

    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.pass()?.set_attrs(path, version, attrs)
    }

    fn has_attrs_applied(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
        self.inner.has_attrs_applied(found, was, attrs)
    }

    fn finish_removal(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        self.pass()?.finish_removal(path, version)
    }

    fn remove(&self, path: &[u8], version: Option<&Version>) -> SourceResult<()> {
        self.pass()?.remove(path, version)
    }
}

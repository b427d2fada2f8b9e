//! A source that is no faster than it may be: to protect site storage, and to test against a slow one.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::{Attrs, Entry, Expect, Kept, Meta, Piece, Source, SourceResult, Upload, Version};

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// A source with a limited rate and a time that each operation takes at least.
pub struct LimitedSource<S> {
    inner: S,
    /// Bytes per second, both ways together; 0 is no limit.
    rate: u64,
    each: Duration,
    /// When the next byte may move.
    free_at: Mutex<Instant>,
    never: Condvar,
}

impl<S: Source> LimitedSource<S> {
    /// Limits a source to `rate` bytes per second (0: none), each operation taking `each` at least.
    pub fn new(inner: S, rate: u64, each: Duration) -> LimitedSource<S> {
        LimitedSource { inner, rate, each, free_at: Mutex::new(Instant::now()), never: Condvar::new() }
    }

    /// Waits until an operation that moves so many bytes is over.
    fn pay(&self, bytes: u64) {
        let begun = Instant::now();
        let mut free_at = self.free_at.lock();
        let moving = bytes.saturating_mul(NANOS).checked_div(self.rate).unwrap_or(0);
        let moved = (*free_at).max(begun) + Duration::from_nanos(moving);
        *free_at = moved;
        let over = moved.max(begun + self.each);
        // Nobody tells: it is about the time alone. Others pay meanwhile.
        while !self.never.wait_until(&mut free_at, over).timed_out() {}
    }
}

impl<S: Source> Source for LimitedSource<S> {
    fn check(&self) -> SourceResult<()> {
        self.inner.check()
    }

    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        self.pay(0);
        self.inner.list(dir)
    }

    fn stat(&self, path: &[u8]) -> SourceResult<Meta> {
        self.pay(0);
        self.inner.stat(path)
    }

    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize> {
        self.pay(into.len() as u64);
        self.inner.read(path, version, offset, into)
    }

    fn plan(&self, path: &[u8], size: u64) -> SourceResult<Upload> {
        self.inner.plan(path, size)
    }

    fn start(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload> {
        self.pay(0);
        self.inner.start(plan, attrs)
    }

    fn piece_size(&self, size: u64) -> Option<u64> {
        self.inner.piece_size(size)
    }

    fn put(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        self.pay(data.len() as u64);
        self.inner.put(upload, offset, data)
    }

    fn verify(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        self.pay(0);
        self.inner.verify(upload, pieces)
    }

    fn commit(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Expect,
    ) -> SourceResult<Kept> {
        self.pay(0);
        self.inner.commit(upload, pieces, attrs, expect)
    }

    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        self.pay(0);
        self.inner.abort(upload)
    }

    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        self.inner.is_made_by(found, tag)
    }

    fn resume(&self, upload: &Upload, expect: &Expect) -> SourceResult<Option<Version>> {
        self.pay(0);
        self.inner.resume(upload, expect)
    }

    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<Kept> {
        self.pay(0);
        self.inner.put_dir(path, attrs)
    }

    fn put_open_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<Kept> {
        self.pay(0);
        self.inner.put_open_dir(path, attrs)
    }

    fn put_dir_times(&self, path: &[u8], attrs: &Attrs) -> SourceResult<Kept> {
        self.pay(0);
        self.inner.put_dir_times(path, attrs)
    }

    fn start_link(&self, plan: Upload, target: &[u8]) -> SourceResult<Upload> {
        self.pay(0);
        self.inner.start_link(plan, target)
    }

    fn put_link(&self, link: &Upload, target: &[u8], attrs: &Attrs, expect: &Expect) -> SourceResult<Kept> {
        self.pay(0);
        self.inner.put_link(link, target, attrs, expect)
    }

    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<Kept> {
        self.pay(0);
        self.inner.set_attrs(path, version, attrs)
    }

    fn is_given(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
        self.inner.is_given(found, was, attrs)
    }

    fn finish_removal(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        self.pay(0);
        self.inner.finish_removal(path, version)
    }

    fn remove(&self, path: &[u8], version: Option<&Version>) -> SourceResult<()> {
        self.pay(0);
        self.inner.remove(path, version)
    }
}

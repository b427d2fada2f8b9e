//! A source with limited bandwidth: it protects site storage, and stands for slow storage in tests.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::{
    Attrs, Entry, Listing, Meta, Piece, Precondition, PutOutcome, Source, SourceResult, Upload, Version,
};

/// Nanoseconds per second.
const NANOS: u64 = 1_000_000_000;

/// A wrapper that limits the byte rate and sets a minimum duration of each operation.
pub struct LimitedSource<S> {
    inner: S,
    /// Bytes per second, reads and writes together; 0 is no limit.
    rate: u64,
    each: Duration,
    /// Time at which the budget allows the next byte.
    free_at: Mutex<Instant>,
    never: Condvar,
}

impl<S: Source> LimitedSource<S> {
    /// Wraps a source with a limit of `rate` bytes per second (0: none) and a minimum duration `each` per operation.
    pub fn new(inner: S, rate: u64, each: Duration) -> LimitedSource<S> {
        LimitedSource { inner, rate, each, free_at: Mutex::new(Instant::now()), never: Condvar::new() }
    }

    /// Blocks until the rate limit allows an operation that moves `bytes`.
    fn throttle(&self, bytes: u64) {
        let begun = Instant::now();
        let mut free_at = self.free_at.lock();
        let moving = bytes.saturating_mul(NANOS).checked_div(self.rate).unwrap_or(0);
        let moved = (*free_at).max(begun) + Duration::from_nanos(moving);
        // Reserved under the lock before the wait, so that concurrent operations queue up instead of sharing one
        // budget.
        *free_at = moved;
        // The duration is not reserved: it stands for latency, which concurrent operations wait for together.
        let over = moved.max(begun + self.each);
        // The condition variable is never notified: it only releases the lock while this thread sleeps, so that other
        // operations can reserve their share meanwhile.
        while !self.never.wait_until(&mut free_at, over).timed_out() {}
    }
}

impl<S: Source> Source for LimitedSource<S> {
    fn check(&self) -> SourceResult<()> {
        self.inner.check()
    }

    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        self.throttle(0);
        self.inner.list(dir)
    }

    fn names_valid_for(&self) -> Option<Duration> {
        self.inner.names_valid_for()
    }

    fn list_changed(&self, dir: &[u8], known: Option<u128>) -> SourceResult<Option<Listing>> {
        self.throttle(0);
        self.inner.list_changed(dir, known)
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
        self.throttle(data.len() as u64);
        self.inner.put_whole(plan, data, attrs, expect)
    }

    fn stat(&self, path: &[u8]) -> SourceResult<Meta> {
        self.throttle(0);
        self.inner.stat(path)
    }

    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize> {
        self.throttle(into.len() as u64);
        self.inner.read(path, version, offset, into)
    }

    fn plan(&self, path: &[u8], size: u64) -> SourceResult<Upload> {
        self.inner.plan(path, size)
    }

    fn start(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload> {
        self.throttle(0);
        self.inner.start(plan, attrs)
    }

    fn piece_size(&self, size: u64) -> Option<u64> {
        self.inner.piece_size(size)
    }

    fn put(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        self.throttle(data.len() as u64);
        self.inner.put(upload, offset, data)
    }

    fn verifies_for_all(&self) -> bool {
        self.inner.verifies_for_all()
    }

    fn verify(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        self.throttle(0);
        self.inner.verify(upload, pieces)
    }

    fn commit(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.throttle(0);
        self.inner.commit(upload, pieces, attrs, expect)
    }

    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        self.throttle(0);
        self.inner.abort(upload)
    }

    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        self.inner.is_made_by(found, tag)
    }

    fn resume(&self, upload: &Upload, expect: &Precondition) -> SourceResult<Option<Version>> {
        self.throttle(0);
        self.inner.resume(upload, expect)
    }

    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.throttle(0);
        self.inner.put_dir(path, attrs)
    }

    fn put_open_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.throttle(0);
        self.inner.put_open_dir(path, attrs)
    }

    fn put_dir_times(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.throttle(0);
        self.inner.put_dir_times(path, attrs)
    }

    fn start_link(&self, plan: Upload, target: &[u8]) -> SourceResult<Upload> {
        self.throttle(0);
        self.inner.start_link(plan, target)
    }

    fn put_link(
        &self,
        link: &Upload,
        target: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.throttle(0);
        self.inner.put_link(link, target, attrs, expect)
    }

    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.throttle(0);
        self.inner.set_attrs(path, version, attrs)
    }

    fn has_attrs_applied(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
        self.inner.has_attrs_applied(found, was, attrs)
    }

    fn finish_removal(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        self.throttle(0);
        self.inner.finish_removal(path, version)
    }

    fn remove(&self, path: &[u8], version: Option<&Version>) -> SourceResult<()> {
        self.throttle(0);
        self.inner.remove(path, version)
    }
}

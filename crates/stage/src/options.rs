//! Options of a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mount_views::MountViews;
use crate::rate_limit::Limiter;
use crate::select::PathFilter;

/// Options of a copy.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// Worker threads; 0 for one per processor, at least 4 and at most 32, because they mostly wait for storage.
    pub jobs: usize,
    /// True to read back what was written and compare it, and to compare unchanged sources with their known digests.
    pub verify: bool,
    /// True to replace existing files; otherwise they are failures.
    pub overwrite: bool,
    /// The side that is in a formation.
    pub side: FormationSide,
    /// True to refuse what certainly does not fit before anything is written.
    pub checks_room: bool,
    /// Selection of objects.
    pub select: PathFilter,
    /// Rate limit; shared by all copies that hold it.
    pub limit: Option<Arc<Limiter>>,
    /// Mounts of the formation.
    pub views: MountViews,
    /// Cancels the copy when set, from any thread or signal handler.
    pub cancel: Arc<AtomicBool>,
}

/// The side of a copy that is in a formation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormationSide {
    /// Neither side.
    Neither,
    /// The target: acknowledged writes need no sync.
    Target,
    /// The source.
    Source,
}

impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions {
            jobs: 0,
            verify: true,
            overwrite: true,
            side: FormationSide::Neither,
            checks_room: false,
            select: PathFilter::default(),
            limit: None,
            views: MountViews::default(),
            cancel: Arc::default(),
        }
    }
}

impl CopyOptions {
    /// Returns whether the copy is cancelled.
    pub(crate) fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
            || self.limit.as_ref().is_some_and(|limit| limit.ended().is_some())
    }

    /// Blocks until the rate limit admits `bytes`.
    pub(crate) fn wait_for(&self, bytes: u64) {
        if let Some(limit) = &self.limit {
            limit.take(bytes, &self.cancel);
        }
    }

    /// Returns the number of worker threads.
    pub(crate) fn threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(4, usize::from);
        if self.jobs == 0 { processors().clamp(4, 32) } else { self.jobs }
    }
}

//! State in memory between a node's volumes and site storage: which stripes are in use, what is being brought, what is
//! being flushed or queued. The operations are in `proxy`.

mod deletions;
mod fence;
mod flush_failures;
mod flush_jobs;
mod flush_queue;
mod link_access;
mod placements;
mod relists;
mod sites;
mod stale;
mod stripe_use;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use bivouac_ranks::{Condvar, Mutex, rank};
use bivouac_types::{Ino, TargetIndex};

use deletions::DeletionQueue;
use fence::ChangesFence;
use flush_failures::FlushFailures;
use flush_queue::FlushQueue;
use placements::RecentPlacements;
use stale::SuspectOrigins;
use stripe_use::StripeUse;

pub use deletions::{DELETION_PAUSE_MIN, MirrorDeletions};
pub use flush_jobs::{FlushEnd, FlushJob, FlushJobs, JobKind};
pub use flush_queue::{QueuedFlush, QueuedFlushEnd};
pub use link_access::LinkAccess;
pub use relists::{RelistNeed, Relists};
pub use sites::{Site, Sites, SourceDecorator};
pub use stripe_use::{PresentStripes, WritePass};

/// A subfile of a file in front of site storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The file.
    pub ino: Ino,
    /// The target that holds it.
    pub target: TargetIndex,
}

/// The tables of a node between its volumes and site storage.
pub struct Proxy {
    pub sites: Sites,
    pub uses: StripeUse,
    pub fence: ChangesFence,
    /// Stripes that are being brought.
    pub bringing: Mutex<HashSet<(Part, u64)>>,
    pub brought: Condvar,
    /// Of those, stripes that nobody waits for yet.
    pub ahead: AtomicUsize,
    /// Directories whose names change at the source.
    pub relists: Relists,
    /// Directories whose entries are being made.
    pub listing: Mutex<HashSet<Ino>>,
    pub listed: Condvar,
    /// Files that are being flushed.
    pub jobs: FlushJobs,
    /// Files whose content is being brought, since others take their places there.
    pub owning: FlushJobs,
    pub flusher: Arc<FlushQueue>,
    pub mirror: Arc<DeletionQueue>,
    /// Files that are looked at there.
    pub looking: AtomicUsize,
    pub failing: FlushFailures,
    pub placements: RecentPlacements,
    pub stale: SuspectOrigins,
}

impl Default for Proxy {
    fn default() -> Proxy {
        let (sites, uses, fence, bringing, brought, listing, listed) = Default::default();
        let (flusher, mirror, looking, failing, stale) = Default::default();
        let (ahead, relists, placements) = Default::default();
        let [jobs, owning] = [(); 2].map(|()| Mutex::new(rank::FLUSH_JOBS, HashMap::new()));
        Proxy {
            sites,
            uses,
            fence,
            bringing,
            brought,
            ahead,
            relists,
            listing,
            listed,
            jobs,
            owning,
            flusher,
            mirror,
            looking,
            placements,
            failing,
            stale,
        }
    }
}

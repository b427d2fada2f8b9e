//! Partitions that stand in front of site storage. The home of a directory makes its entries when somebody first
//! looks into it; the node of a seat brings a stripe when somebody first reads or writes it; a flush writes a
//! file beside its target, every node its own stripes, and the home puts it in its place.
//!
//! What is kept: of each inode what site storage has of it (`SiteFile`, at its home), of each subfile whence its
//! content comes (`Held`) and which stripes are here or written (`marks.rs`), at its seat. All of it is logged before
//! it is acted upon, so a restarted daemon brings nothing twice and forgets nothing that was written.

mod acts;
mod bring;
mod dirty;
mod entries;
mod evict;
mod fence;
mod flush;
mod flusher;
mod former;
mod here;
mod marks;
mod mirror;
mod parts;
mod pin;
mod refresh;
mod sites;
mod stale;
mod status;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};

use bivouac_ranks::{Condvar, Mutex, rank};
use bivouac_store::Txn;
use bivouac_types::{FsResult, Ino};

use crate::node::Node;
use evict::Uses;
use fence::Fence;
use flush::Jobs;
use flusher::Flusher;
use here::Failing;
use marks::Part;
use mirror::Mirror;
use sites::Sites;
use stale::Stale;

pub use bring::{is_making_room, making_room};
pub use entries::not_listed;
pub use evict::Evicted;
pub use flush::{PEER_WAIT, WAIT};
pub use sites::{Around, check_stripes, open};

/// What a node does between its volumes and site storage.
pub struct Proxy {
    sites: Sites,
    uses: Uses,
    fence: Fence,
    /// Stripes that are being brought.
    bringing: Mutex<HashSet<(Part, u64)>>,
    brought: Condvar,
    /// Directories whose entries are being made.
    listing: Mutex<HashSet<Ino>>,
    listed: Condvar,
    /// Files that are being flushed.
    jobs: Jobs,
    /// Files whose content is being brought, since others take their places there.
    owning: Jobs,
    flusher: Arc<Flusher>,
    mirror: Arc<Mirror>,
    /// Files that are looked at there.
    looking: AtomicUsize,
    failing: Failing,
    stale: Stale,
    node: OnceLock<Weak<Node>>,
}

impl Node {
    /// Makes a change of what is kept about subfiles and names last.
    fn commit_note(&self, txn: Txn<'_>) -> FsResult<()> {
        txn.commit()?;
        if self.records.wants_compaction() {
            self.reaper.wake();
        }
        Ok(())
    }
}

impl Default for Proxy {
    fn default() -> Proxy {
        let (sites, uses, fence, bringing, brought, listing, listed) = Default::default();
        let (flusher, mirror, looking, failing, stale, node) = Default::default();
        let [jobs, owning] = [(); 2].map(|()| Mutex::new(rank::FLUSH_JOBS, HashMap::new()));
        Proxy {
            sites,
            uses,
            fence,
            bringing,
            brought,
            listing,
            listed,
            jobs,
            owning,
            flusher,
            mirror,
            looking,
            failing,
            stale,
            node,
        }
    }
}

impl Proxy {
    /// Background work keeps the node no longer than others do.
    pub fn serve(&self, node: &Arc<Node>) {
        // Only the first start counts.
        let _ = self.node.set(Arc::downgrade(node));
        node.resume_acts();
        node.resume_flushes();
        node.resume_mirror();
    }
}

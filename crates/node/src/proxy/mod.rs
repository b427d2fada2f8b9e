//! Partitions that stand in front of site storage. The home of a directory makes its entries when somebody first
//! looks into it; the node of a target brings a stripe when somebody first reads or writes it; a flush writes a
//! temporary file at site storage, every node its own stripes, and the home puts it in its place.
//!
//! What is kept: of each inode what site storage has of it (`SiteFile`, at its home), of each subfile whence its
//! content comes (`SubfileOrigin`) and which stripes are here or written (`marks.rs`), at its target. All of it is
//! logged before it is acted upon, so a restarted daemon brings nothing twice and forgets nothing that was written.

mod acts;
mod attrs;
mod bring;
mod dirty;
mod entries;
mod evict;
mod flush;
mod flusher;
mod former;
mod here;
mod marks;
mod mirror;
mod parts;
mod pin;
mod refresh;
mod relist;
mod sites;
mod status;

use bivouac_store::Txn;
use bivouac_types::FsResult;

use crate::node::Node;

pub use bring::{is_making_room, making_room};
pub use entries::not_listed;
pub use evict::Evicted;
pub use flush::{PEER_WAIT, WAIT};
pub use sites::{check_stripes, open};

impl Node {
    /// Goes on with what an earlier daemon left half done between its volumes and site storage.
    pub(crate) fn resume_site_work(&self) {
        self.resume_acts();
        self.resume_flushes();
        self.resume_mirror();
    }

    /// Makes a change of what is kept about subfiles and names last.
    fn commit_note(&self, txn: Txn<'_>) -> FsResult<()> {
        txn.commit()?;
        if self.records.wants_compaction() {
            self.reaper.wake();
        }
        Ok(())
    }
}

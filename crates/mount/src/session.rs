//! State of a mount that all threads share, and helpers for several requests.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bivouac_client::FormationPlace;
use bivouac_ranks::Mutex;
use bivouac_types::{Errno, FsError, FsResult, Ino};

use crate::abi::{Negotiated, Opcode, flags};
use crate::background::{Background, Work};
use crate::cached_attrs::CachedAttrs;
use crate::cached_names::CachedNames;
use crate::channel::Channel;
use crate::directory_names::{DirectoryName, DirectoryNames};
use crate::failed_writes::FailedWrites;
use crate::fs::FileSystem;
use crate::held_lookups::HeldLookups;
use crate::interrupts::Interrupts;
use crate::laminated_pages::LaminatedPages;
use crate::looked_up::LookedUp;
use crate::negative_entries::NegativeEntries;
use crate::opens::Opens;
use crate::page_cache::PageCache;
use crate::parked::{Parked, ParkedNote};
use crate::pool::about_to_block;
use crate::releases::Releases;
use crate::state::MountState;
use crate::stats::Stats;

/// Longest time for which the answer to a LOOKUP waits until the kernel has forgotten an old name: it may be that the
/// kernel waits for this answer first.
const FORGET_WAIT: Duration = Duration::from_millis(20);

/// State of a mount that all threads share.
pub struct Session<F> {
    pub fs: Arc<F>,
    pub channel: Arc<Channel>,
    pub state: MountState,
    pub opens: Opens,
    pub negative_entries: NegativeEntries,
    pub cached_attrs: Arc<CachedAttrs>,
    pub cached_names: Arc<CachedNames>,
    pub looked_up: LookedUp,
    pub held_lookups: HeldLookups,
    pub directory_names: DirectoryNames,
    pub releases: Releases,
    pub page_cache: Arc<PageCache>,
    pub laminated_pages: LaminatedPages,
    pub failed_writes: Arc<FailedWrites>,
    pub background: Arc<Background>,
    pub negotiated: Negotiated,
    pub stats: Arc<Stats>,
    pub parked: Arc<Parked>,
    pub interrupts: Arc<Interrupts>,
    pub formation: Option<Arc<FormationPlace>>,
    pub failure: Mutex<Option<io::Error>>,
}

impl<F: FileSystem> Session<F> {
    /// Notes that a request is being served, where the kernel cannot resend unanswered requests: the next daemon has to
    /// fail them. Returns true if it was noted.
    pub fn note_in_flight(&self, channel: u16, unique: u64) -> bool {
        let needed = !self.negotiated.has(flags::init::HAS_RESEND);
        if needed && let Err(error) = self.state.set_in_flight(channel, unique) {
            // It is served all the same: the note is of use only if this daemon is killed before the answer.
            log::warn!(why:% = error; "the state of the mount cannot be written");
        }
        needed
    }

    /// Notes a request that is answered by another thread later, where the next incarnation must know it as
    /// above.
    ///
    /// # Errors
    /// `ENOLCK` when there are too many of them.
    pub fn park(&self, unique: u64) -> FsResult<Option<ParkedNote>> {
        if self.negotiated.has(flags::init::HAS_RESEND) {
            return Ok(None);
        }
        self.parked.park(unique).map(Some)
    }

    /// Passes work that may wait for requests not answered yet to another thread; without another thread, does it here.
    pub fn in_background(&self, work: Work) {
        if let Err(work) = self.background.submit(work) {
            about_to_block();
            work();
        }
    }

    /// Makes the kernel forget the name of a directory, and waits [`FORGET_WAIT`] at most for that.
    pub fn forget_name(&self, ino: Ino, old: DirectoryName) {
        let (done, is_done) = mpsc::channel();
        let (channel, forgotten) = (Arc::clone(&self.channel), old.clone());
        let forget = Box::new(move || {
            if let Err(error) = channel.forget_name(forgotten.parent.0, &forgotten.name) {
                log::debug!(why:% = error; "an old name of a directory stays in the kernel");
            }
            // The receiver may have given up.
            let _ = done.send(());
        });
        if self.background.submit(forget).is_ok() {
            about_to_block();
            if is_done.recv_timeout(FORGET_WAIT).is_ok() {
                return;
            }
        }
        // The kernel moves the name by itself, or says ESTALE and looks once more.
        self.directory_names.stays(ino, old);
    }

    /// Waits until the closes that the kernel has queued are served.
    pub fn settle_releases(&self) {
        about_to_block();
        self.releases.settle(|| self.channel.has_request());
    }
}

/// Returns the error as the kernel gets it: a single `ENOSYS` would make it stop asking for good.
pub fn for_the_kernel(errno: Errno) -> Errno {
    if errno == Errno::ENOSYS { Errno::EOPNOTSUPP } else { errno }
}

/// Errors that say something about the formation rather than about the request.
pub fn warn_of(error: &FsError, op: Opcode, nodeid: u64) {
    // ENOENT, EACCES and the like are answers to programs, of which a log would have one for each.
    let grave = matches!(error.errno(), Errno::EIO | Errno::ETIMEDOUT | Errno::ENOTCONN | Errno::EPROTO);
    if grave {
        log::warn!(why:% = error; "{} of inode {nodeid:016x}", op.name());
    }
}

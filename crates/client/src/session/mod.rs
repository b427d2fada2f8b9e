//! The page pool of a client, and what the contracts do with it. Under the *session* contract what is written is sent
//! later, in large messages, and what is read is read ahead; others see it after close or fsync, and who opens a file
//! later sees that: docs/decisions/0021-session-contract.md. Under the *strict* contract pages are copies of what
//! tokens cover, and writes are sent at once: docs/decisions/0144-pages-under-tokens.md.
//!
//! Everything but reading and writing begins by sending what was written, so only these two know of pages. In a mount's
//! daemon threads send it beside the programs, too ([`writeback`]).

mod ahead;
mod arena;
mod file;
mod hold;
mod pool;
mod reading;
mod spans;
mod writeback;
mod writing;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bivouac_types::limits::{PAGE_POOL_MAX, PAGE_POOL_MIN};
use bivouac_types::{ByteRange, Contract, Errno, FsError, FsResult, Ino};
use bivouac_wire::PoolStatus;

use crate::content::Content;
use crate::homes::Homes;
use crate::homes::known::{KnownFile, KnownFiles};
use crate::homes::partitions::Partitions;
use crate::locks::LockDesk;
use crate::tokens::{Access, TokenTable};
use file::CachedFile;
use hold::Holds;
use pool::Pool;
use writeback::Writeback;
use writing::Sending;

/// Length from which on a read or a write is a message that is large enough, in bytes.
const LARGE: usize = 512 << 10;

/// The pages of a client, once there are any; none if they cannot be had.
type SharedPool = Arc<OnceLock<Option<Arc<Pool>>>>;

/// The pages of files, read and written by the contract of each.
pub struct Sessions {
    content: Arc<Content>,
    homes: Arc<Homes>,
    known: Arc<KnownFiles>,
    partitions: Arc<Partitions>,
    locks: Arc<LockDesk>,
    tokens: Arc<TokenTable>,
    pool: SharedPool,
    /// Size of the pool, in bytes.
    size: u64,
    /// Threads that send what rests, where threads may be started.
    beside: OnceLock<Writeback>,
    holds: Holds,
}

impl Sessions {
    /// Creates the sessions of a client with at most so many bytes of pages, within the limits of pools.
    pub(crate) fn new(
        content: Arc<Content>,
        locks: Arc<LockDesk>,
        tokens: Arc<TokenTable>,
        size: u64,
    ) -> Sessions {
        let (pool, (beside, holds)) = (SharedPool::default(), Default::default());
        let (known, size) = (Arc::clone(&content.known), size.clamp(PAGE_POOL_MIN, PAGE_POOL_MAX));
        let (homes, partitions) = (Arc::clone(&content.homes), Arc::clone(&content.partitions));
        let pages = Arc::clone(&pool);
        tokens.keep_copies(Box::new(move |ino, range| {
            if let Some(Some(pool)) = pages.get() {
                pool.drop_copies(ino, range.start..range.end);
            }
        }));
        Sessions { content, homes, known, partitions, locks, tokens, pool, size, beside, holds }
    }

    /// Keeps the page pool in a file that outlives this process, from `base` on, and takes up what an earlier process
    /// left there. Before anything is read or written.
    ///
    /// # Errors
    /// What the system says; `InvalidData` where something else is.
    pub fn keep(&self, file: File, base: u64) -> io::Result<()> {
        let pool = Pool::kept(file, base, self.size)?;
        match self.pool.set(Some(Arc::new(pool))) {
            Ok(()) => Ok(()),
            Err(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a page pool already")),
        }
    }

    /// Returns the state of the page pool.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        let Some(pool) = self.pool() else {
            return PoolStatus { size_bytes: self.size, ..PoolStatus::default() };
        };
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PoolStatus {
            size_bytes: pool.size(),
            used_bytes: pool.in_use(),
            unsent_bytes: pool.unsent(),
            hits: count(&pool.counts.hits),
            misses: count(&pool.counts.misses),
            sent_bytes: count(&pool.counts.sent),
            dropped_bytes: count(&pool.counts.dropped),
        }
    }

    /// Returns true if writes to an open file may be sent later, so that their outcome has to be reported at close.
    #[must_use]
    pub fn writes_behind(&self, ino: Ino) -> bool {
        let contract = |known: KnownFile| self.partitions.contract(&known).unwrap_or(Contract::Session);
        self.known.get(ino).is_some_and(|known| contract(known) == Contract::Session)
    }

    /// Returns true if programs with the preload leave an open file to mounts: under any contract but coherent.
    #[must_use]
    pub fn is_for_mounts_only(&self, ino: Ino) -> bool {
        self.known.get(ino).is_some_and(|known| self.partitions.contract(&known) != Ok(Contract::Coherent))
    }

    /// Returns the pool, if pages of this file belong there, and the contract by which they do.
    fn pool_for(&self, ino: Ino) -> FsResult<Option<(&Arc<Pool>, Contract)>> {
        let known = match self.known.get(ino) {
            Some(known) => known,
            None if self.known.is_open(ino) => self.homes.know(ino)?,
            // Nobody would be told at close what came of it.
            None => return Ok(None),
        };
        let contract = self.partitions.contract(&known)?;
        // Written behind while its contract changed.
        if contract != Contract::Session && self.has_unsent(ino) {
            self.send_unsent(ino)?;
        }
        let is_paged = match contract {
            Contract::Session => true,
            Contract::Strict => self.keeps_copies(ino, &known)?,
            Contract::Coherent | Contract::Laminated => false,
        };
        if !is_paged {
            return Ok(None);
        }
        let make = || {
            let made = Pool::anonymous(self.size);
            made.inspect_err(|error| log::warn!(why:% = error; "no page pool, nothing is written behind"))
                .ok()
        };
        // Made at the first use, as most clients have no such files.
        let pool = self.pool.get_or_init(|| make().map(Arc::new));
        Ok(pool.as_ref().map(|pool| (pool, contract)))
    }

    /// Returns whether copies of a strict file are kept. In front of site storage content comes and goes without
    /// tokens, and what is all on this node gains nothing.
    fn keeps_copies(&self, ino: Ino, known: &KnownFile) -> FsResult<bool> {
        Ok(self.tokens.keeps() && !self.content.is_all_here(known)? && !self.homes.may_be_bound(ino))
    }

    /// Confirms that the tokens by which pages were read still count, before the pages are shown: by the home's lease,
    /// or by asking it.
    fn confirm(&self, file: Access) -> FsResult<()> {
        let known = self.homes.know_up_to(file.ino, u64::MAX)?;
        self.content.checked(&file, known).map(drop)
    }

    fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.get().and_then(Option::as_ref)
    }

    /// Returns a file that has pages, and where they are.
    fn paged(&self, ino: Ino) -> Option<(&Arc<Pool>, Arc<CachedFile>)> {
        self.pool().and_then(|pool| Some((pool, pool.find(ino)?)))
    }

    /// Returns true if anything of this file was written and not sent.
    pub(crate) fn has_unsent(&self, ino: Ino) -> bool {
        self.pool().is_some_and(|pool| {
            pool.unsent() > 0 && pool.find(ino).is_some_and(|file| file.state.lock().unsent() > 0)
        })
    }

    /// Returns the end of what could not be sent yet, 0 if nothing is left.
    pub(crate) fn unsent_end(&self, ino: Ino) -> u64 {
        let file = self.pool().filter(|pool| pool.unsent() > 0).and_then(|pool| pool.find(ino));
        file.map_or(0, |file| file.state.lock().unsent_end())
    }

    /// Drops all copies of a file, so that this client sees what others have published before.
    pub(crate) fn drop_copies(&self, ino: Ino) {
        self.drop_range(ino, ByteRange::ALL);
    }

    fn drop_range(&self, ino: Ino, range: ByteRange) {
        if let Some(pool) = self.pool() {
            pool.drop_copies(ino, range.start..range.end);
        }
    }

    /// Like [`Sessions::drop_copies`], as a function to call where this client is not at hand.
    pub(crate) fn copies_of(&self, ino: Ino) -> impl FnOnce() + Send + 'static {
        let pool = self.pool().map(Arc::clone);
        move || pool.iter().for_each(|pool| pool.drop_copies(ino, 0..u64::MAX))
    }

    /// Changes content without pages: what was written before comes first, and no copy outlives it, also if it fails,
    /// perhaps halfway.
    pub(crate) fn past_pages<T>(&self, ino: Ino, change: impl FnOnce() -> FsResult<T>) -> FsResult<T> {
        self.send_unsent(ino)?;
        // Copies go behind the change: a read meanwhile would bring the old bytes in again.
        let done = change();
        self.drop_copies(ino);
        done
    }

    /// Like [`Sessions::past_pages`], for a truncation to 0. What was written before and could not be sent is discarded
    /// if that succeeds, and kept if it fails.
    pub(crate) fn cut_to_nothing<T>(&self, ino: Ino, cut: impl FnOnce() -> FsResult<T>) -> FsResult<T> {
        let Some((pool, file)) = self.paged(ino).filter(|_| self.send_unsent(ino).is_err()) else {
            return self.past_pages(ino, cut);
        };
        // Nobody sends pages meanwhile: sent behind the truncation they would reappear.
        let _sending = Sending::begin(&file);
        let done = cut();
        match done {
            Ok(_) => drop(pool.discard(&file)),
            Err(_) => self.drop_copies(ino),
        }
        done
    }

    /// Gives up what could not be sent of a file of which something locked may be unlocked now: it must not arrive
    /// behind what the next holder writes.
    pub(crate) fn give_up_locked(&self, ino: Ino) {
        if let Some((pool, file)) = self.paged(ino)
            && file.state.lock().unsent() > 0
            && self.locks.concerns(ino)
        {
            let _sending = Sending::begin(&file);
            // What others have written meanwhile has not failed.
            if file.state.lock().failure.is_some() {
                self.give_up(pool, &file, &FsError::with(Errno::EIO, "a lock of it is given back"));
            }
        }
    }

    /// Gives up what could not be sent while the file is open: every call that could say so says so from now on. Nobody
    /// may be sending it: what is under way would come behind what others write.
    fn give_up(&self, pool: &Pool, file: &CachedFile, why: &FsError) {
        let lost = pool.discard(file);
        if lost > 0 {
            file.state.lock().has_lost = true;
            pool.counts.dropped.fetch_add(lost, Ordering::Relaxed);
            log::error!(why:% = why; "inode {}: {lost} bytes that could not be written are lost", file.ino);
        }
    }

    /// Ends the cache of a file that nobody has open any more; `sent` is the outcome of sending what was written. What
    /// could not be sent is given up: its program got an error at close.
    pub(crate) fn end(&self, ino: Ino, sent: FsResult<()>) {
        let Some((pool, file)) = self.paged(ino) else { return };
        let lost = {
            let _sending = Sending::begin(&file);
            {
                let mut state = file.state.lock();
                // Opened again meanwhile: what is written since belongs to that open.
                if self.known.is_open(ino) {
                    return;
                }
                state.is_over = true;
            }
            pool.forget(&file)
        };
        if lost == 0 {
            return;
        }
        pool.counts.dropped.fetch_add(lost, Ordering::Relaxed);
        match sent {
            // Without a name and closed everywhere, nobody misses it.
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => {
                log::error!(
                    why:% = error; "inode {ino}: {lost} bytes that could not be written before it was closed are lost"
                );
            }
            Ok(()) => log::error!("inode {ino}: {lost} bytes that were written while it was closed are lost"),
        }
    }

    /// Sends what an earlier process left of files that nobody has open any more; calls `sent` for each that succeeds.
    pub(crate) fn end_left(&self, sent: impl Fn(Ino)) {
        let Some(pool) = self.pool() else { return };
        for file in pool.files().iter().filter(|file| !self.known.is_open(file.ino)) {
            let outcome = self.send_pages(pool, file);
            if outcome.is_ok() {
                sent(file.ino);
            }
            self.end(file.ino, outcome);
        }
        self.list_all(pool);
    }
}

fn broken(error: &io::Error) -> FsError {
    FsError::from_io(error, "the page pool")
}

//! The *session* contract: what is written is sent later, in large messages, and what is read is read ahead; others see it
//! after close or fsync, and who opens a file later sees that. Why it is right: docs/decisions/0021-session-contract.md.
//!
//! Everything but reading and writing begins by sending what was written, so only these two know of pages.

mod ahead;
mod arena;
mod file;
mod pool;
mod spans;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bivouac_types::limits::{FILE_SIZE_MAX, LIST_EXTENTS_MAX, PAGE_POOL_MAX, PAGE_POOL_MIN, TRANSFER_MAX};
use bivouac_types::{Contract, Errno, FsError, FsResult, Ino, Layout, PartitionId};
use bivouac_wire::PoolStatus;

use crate::client::{Client, OpCtx};
use crate::data::OVERTAKEN_MAX;
use ahead::Ahead;
use arena::PAGE;
use file::{Batch, CachedFile, pages_of};
use pool::Pool;

/// Reads and writes of so many bytes are messages that are large enough.
const LARGE: usize = 512 << 10;
/// Unsent bytes of one file from which on who writes sends them first: as many as one message may carry.
const SEND_AT: u64 = TRANSFER_MAX as u64;

/// The pool of a client, once it has one.
#[derive(Default)]
pub struct Sessions {
    pool: OnceLock<Option<Arc<Pool>>>,
    /// Most bytes of its pages.
    size: u64,
}

impl Sessions {
    /// For a pool of at most so many bytes, within the limits of pools.
    pub fn new(size: u64) -> Sessions {
        Sessions { pool: OnceLock::new(), size: size.clamp(PAGE_POOL_MIN, PAGE_POOL_MAX) }
    }
}

/// Somebody sends pages of a file; nobody else does until this is over.
struct Sending<'a>(&'a CachedFile);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_sending = false;
        self.0.sent.notify_all();
    }
}

impl Client {
    /// Keeps the page pool in a file that outlives this process, from `base` on, and takes up what an earlier process
    /// left there. Before anything is read or written.
    ///
    /// # Errors
    /// What the system says; `InvalidData` where something else is.
    pub fn keep_pages(&self, file: File, base: u64) -> io::Result<()> {
        let pool = Pool::kept(file, base, self.sessions.size)?;
        match self.sessions.pool.set(Some(Arc::new(pool))) {
            Ok(()) => Ok(()),
            Err(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a page pool already")),
        }
    }

    /// What the page pool has and did.
    #[must_use]
    pub fn page_pool(&self) -> PoolStatus {
        let Some(pool) = self.pool() else {
            return PoolStatus { size_bytes: self.sessions.size, ..PoolStatus::default() };
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

    /// Whether writes to an open file may be sent later, so that its program must hear at close what came of them.
    #[must_use]
    pub fn writes_behind(&self, ino: Ino) -> bool {
        self.known.get(ino).is_some_and(|known| self.is_session(&known.layout).unwrap_or(true))
    }

    fn is_session(&self, layout: &Layout) -> FsResult<bool> {
        let id = layout.partition();
        if id == PartitionId::ROOT {
            return Ok(false);
        }
        let partition = self.partition(id)?;
        Ok(partition.is_some_and(|partition| partition.settings.contract == Contract::Session))
    }

    /// The pool, if the pages of this file belong there.
    fn pool_for(&self, ino: Ino) -> FsResult<Option<&Arc<Pool>>> {
        let known = match self.known.get(ino) {
            Some(known) => known,
            None if self.known.is_open(ino) => self.know(ino)?,
            // Nobody would be told at close what came of it.
            None => return Ok(None),
        };
        if !self.is_session(&known.layout)? {
            return Ok(None);
        }
        let make = || {
            let made = Pool::anonymous(self.sessions.size);
            made.inspect_err(|error| log::warn!("no page pool: {error}; nothing is written behind")).ok()
        };
        Ok(self.sessions.pool.get_or_init(|| make().map(Arc::new)).as_ref())
    }

    fn pool(&self) -> Option<&Arc<Pool>> {
        self.sessions.pool.get().and_then(Option::as_ref)
    }

    /// Whether anything of this file has been written and not sent.
    pub(crate) fn has_unsent(&self, ino: Ino) -> bool {
        self.pool().is_some_and(|pool| {
            pool.unsent() > 0 && pool.find(ino).is_some_and(|file| file.state.lock().unsent() > 0)
        })
    }

    /// Where what could not be sent yet ends.
    pub(crate) fn unsent_end(&self, ino: Ino) -> u64 {
        let file = self.pool().filter(|pool| pool.unsent() > 0).and_then(|pool| pool.find(ino));
        file.map_or(0, |file| file.state.lock().unsent_end())
    }

    /// Reads into `into`; fewer bytes than fit only at the end of the file. Holes read as zeros.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` when a node cannot be reached.
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let Some(pool) = self.pool_for(ino)? else { return self.read_through(ino, offset, into) };
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > FILE_SIZE_MAX) {
            return self.read_through(ino, offset, into);
        }
        let file = pool.file(ino);
        if into.len() >= LARGE {
            return self.read_fresh(pool, &file, offset, into);
        }
        let mut state = file.state.lock();
        let done = state.read(&pool.arena, offset, into).map_err(|error| broken(&error))?;
        let ahead = state.streams.note(offset, into.len() as u64, done < into.len());
        drop(state);
        if done == into.len() {
            pool.counts.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(done);
        }
        pool.counts.misses.fetch_add(1, Ordering::Relaxed);
        let rest = into.get_mut(done..).unwrap_or_default();
        let read = match ahead {
            Ahead::Nothing => self.read_fresh(pool, &file, offset + done as u64, rest),
            Ahead::Run(window) => {
                self.read_run(pool, &file, offset + done as u64, window - done as u64, rest)
            }
            Ahead::Places(step, count) if done == 0 => {
                self.read_places(pool, &file, offset, (step, count), rest)
            }
            Ahead::Places(..) => self.read_fresh(pool, &file, offset + done as u64, rest),
        };
        Ok(done + read?)
    }

    /// Whether a read has to be served from pages, or is better.
    pub(crate) fn prefers_pages(&self, ino: Ino, len: usize) -> FsResult<bool> {
        let Some(pool) = self.pool_for(ino)? else { return Ok(false) };
        Ok(len < LARGE || pool.find(ino).is_some_and(|file| file.state.lock().unsent() > 0))
    }

    /// Reads from the seats, with what was written here, sent or not.
    fn read_fresh(&self, pool: &Pool, file: &CachedFile, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        for _ in 0..OVERTAKEN_MAX {
            let (drops, end) = {
                let mut state = file.state.lock();
                state.reads += 1;
                (state.drops, state.unsent_end())
            };
            let read = self.read_through(file.ino, offset, into);
            let mut state = file.state.lock();
            state.reads -= 1;
            let read = read?;
            // The file may be longer than its home knows.
            let len = (end.saturating_sub(offset).min(into.len() as u64) as usize).max(read);
            into.get_mut(read..len).unwrap_or_default().fill(0);
            if state.drops == drops {
                state
                    .overlay(&pool.arena, offset, into.get_mut(..len).unwrap_or_default())
                    .map_err(|e| broken(&e))?;
                return Ok(len);
            }
            // What was written here and sent meanwhile may be missing.
        }
        Err(FsError::with(
            Errno::EIO,
            format!("read of inode {} was overtaken {OVERTAKEN_MAX} times", file.ino),
        ))
    }

    /// As [`Client::read_fresh`], and keeps what is behind it.
    fn read_run(
        &self,
        pool: &Pool,
        file: &CachedFile,
        offset: u64,
        window: u64,
        into: &mut [u8],
    ) -> FsResult<usize> {
        let end = offset.saturating_add(window.min(pool.size() / 4)).min(FILE_SIZE_MAX);
        // Windows end with pages: the next one begins with a new page.
        let end = (end - end % PAGE).max(offset + into.len() as u64);
        let Some(mut free) = pool.obtain(file.ino, pages_of(offset..end).count()) else {
            return self.read_fresh(pool, file, offset, into);
        };
        let drops = file.state.lock().drops;
        let mut bytes = vec![0; (end - offset) as usize];
        let read = self.read_fresh(pool, file, offset, &mut bytes);
        if let Ok(read) = read {
            let mut state = file.state.lock();
            if state.drops == drops && !state.is_over {
                let bytes = bytes.get(..read).unwrap_or_default();
                let kept = state.take_in(&pool.arena, offset, bytes, &mut free);
                kept.unwrap_or_else(|error| log::debug!("what was read ahead is not kept: {error}"));
            }
        }
        pool.give_back(free);
        let len = read?.min(into.len());
        into.get_mut(..len).unwrap_or_default().copy_from_slice(bytes.get(..len).unwrap_or_default());
        Ok(len)
    }

    /// As [`Client::read_fresh`], and keeps the places that are as far from each other.
    fn read_places(
        &self,
        pool: &Pool,
        file: &CachedFile,
        offset: u64,
        (step, count): (i64, u64),
        into: &mut [u8],
    ) -> FsResult<usize> {
        let len = into.len() as u64;
        let count = count.min(pool.size() / 4 / len.max(1)).clamp(1, LIST_EXTENTS_MAX as u64);
        let place = |turn: u64| offset.checked_add_signed(step.checked_mul(turn.cast_signed())?);
        let starts: Vec<u64> = (0..count)
            .map_while(place)
            .take_while(|start| start.checked_add(len).is_some_and(|end| end <= FILE_SIZE_MAX))
            .collect();
        let wanted = starts.iter().map(|start| pages_of(*start..start + len).count()).sum();
        let Some(mut free) = pool.obtain(file.ino, wanted) else {
            return self.read_fresh(pool, file, offset, into);
        };
        let drops = file.state.lock().drops;
        let mut bytes = vec![0; starts.len() * into.len()];
        let mut places: Vec<(u64, &mut [u8])> =
            starts.iter().copied().zip(bytes.chunks_mut(into.len().max(1))).collect();
        let read = self.read_list_through(file.ino, &mut places);
        if let Ok(lens) = &read {
            let mut state = file.state.lock();
            if state.drops == drops && !state.is_over {
                for ((start, bytes), len) in places.iter().zip(lens) {
                    let bytes = bytes.get(..*len).unwrap_or_default();
                    let kept = state.take_in(&pool.arena, *start, bytes, &mut free);
                    kept.unwrap_or_else(|error| log::debug!("what was read ahead is not kept: {error}"));
                }
            }
        }
        pool.give_back(free);
        read?;
        let mut state = file.state.lock();
        match state.read(&pool.arena, offset, into).map_err(|error| broken(&error))? {
            len if len == into.len() => Ok(len),
            _ => {
                drop(state);
                self.read_fresh(pool, file, offset, into)
            }
        }
    }

    /// Writes `data`: all of it, or an error. With `append` the home decides where, and `offset` is not used.
    ///
    /// # Errors
    /// `ENOSPC` when a volume is full, `EFBIG`, `ENOENT`, `EIO`. Parts may have been written. Under the session contract
    /// an error may be about what was written before, which is kept.
    pub fn write(&self, ctx: &OpCtx, ino: Ino, offset: u64, data: &[u8], append: bool) -> FsResult<usize> {
        let _fenced = self.locks.guard(ino)?;
        if !append {
            return self.write_at(ino, offset, data);
        }
        // The home says where it goes: behind what was written before.
        self.send_unsent(ino)?;
        self.write_append(ctx, ino, data)
    }

    /// Writes `data` at `offset`: all of it, or an error. Done twice it is the same, so it needs no identity.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_at(&self, ino: Ino, offset: u64, data: &[u8]) -> FsResult<usize> {
        let Some(pool) = self.pool_for(ino)? else { return self.write_through(ino, offset, data) };
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
        let range = offset..end.ok_or(Errno::EFBIG)?;
        let file = pool.file(ino);
        let (unsent, has_lost) = {
            let state = file.state.lock();
            (state.unsent(), state.has_lost)
        };
        if unsent >= SEND_AT || has_lost {
            self.send_pages(pool, &file)?;
        }
        if data.len() < LARGE && self.write_behind(pool, &file, range.clone(), data)? {
            return Ok(data.len());
        }
        self.send_if(pool, &file, range.clone())?;
        let written = self.write_through(ino, offset, data);
        file.state.lock().drop_range(range);
        written
    }

    /// Writes to pages; whether there was room.
    fn write_behind(&self, pool: &Pool, file: &CachedFile, range: Range<u64>, data: &[u8]) -> FsResult<bool> {
        loop {
            let (missing, takes) = {
                let state = file.state.lock();
                (state.missing(range.clone()), state.takes(range.clone()))
            };
            if !takes {
                self.send_pages(pool, file)?;
            }
            let Some(mut free) = pool.obtain(file.ino, missing) else {
                // Everything is unsent: who wants room makes it.
                let Some(fullest) = pool.fullest() else { return Ok(false) };
                self.send_pages(pool, &fullest)?;
                continue;
            };
            let mut state = file.state.lock();
            // Others may have been quicker.
            let fits = state.missing(range.clone()) <= free.len() && state.takes(range.clone());
            if !fits && !state.is_over {
                drop(state);
                pool.give_back(free);
                continue;
            }
            let before = state.unsent();
            let over = state.is_over;
            let written =
                if over { Ok(()) } else { state.write(&pool.arena, file.ino, range.start, data, &mut free) };
            pool.count_unsent(state.unsent().cast_signed() - before.cast_signed());
            drop(state);
            pool.give_back(free);
            let failed =
                written.inspect_err(|error| log::warn!("the page pool takes nothing: {error}")).is_err();
            return Ok(!over && !failed);
        }
    }

    /// Sends what was written to a file, if any of it lies in a range.
    fn send_if(&self, pool: &Pool, file: &CachedFile, range: Range<u64>) -> FsResult<()> {
        if file.state.lock().has_unsent(range) { self.send_pages(pool, file) } else { Ok(()) }
    }

    /// Sends what was written to a file up to now. What cannot be sent is kept.
    fn send_pages(&self, pool: &Pool, file: &CachedFile) -> FsResult<()> {
        let mut state = file.state.lock();
        if state.is_sending {
            bivouac_net::before_waiting();
            file.sent.wait_while(&mut state, |state| state.is_sending);
        }
        if state.has_lost {
            return Err(given_up(file.ino));
        }
        if state.unsent() == 0 {
            return Ok(());
        }
        state.is_sending = true;
        drop(state);
        let _sending = Sending(file);
        let _fenced = match self.locks.guard(file.ino) {
            Err(error) if self.locks.has_lost(file.ino) => {
                // It belongs to whoever has the lock now.
                self.give_up(pool, file, &error);
                return Err(error);
            }
            fenced => fenced?,
        };
        let (mut batch, mut from) = (Batch::default(), 0);
        loop {
            let limits = (TRANSFER_MAX, LIST_EXTENTS_MAX);
            let next = file.state.lock().batch(&pool.arena, from, limits, &mut batch);
            let Some(next) = next.map_err(|error| broken(&error))? else { return Ok(()) };
            self.send_batch(file.ino, &batch)?;
            let mut state = file.state.lock();
            let before = state.unsent();
            state.arrived(&pool.arena, file.ino, &batch);
            pool.count_unsent(state.unsent().cast_signed() - before.cast_signed());
            pool.counts.sent.fetch_add(batch.bytes.len() as u64, Ordering::Relaxed);
            from = next;
        }
    }

    /// One message per seat, whatever the number of places.
    fn send_batch(&self, ino: Ino, batch: &Batch) -> FsResult<()> {
        let bytes = |range: &Range<usize>| batch.bytes.get(range.clone()).unwrap_or_default();
        match batch.places.as_slice() {
            [(offset, range)] => self.write_through(ino, *offset, bytes(range)).map(drop),
            places => {
                let places: Vec<(u64, &[u8])> =
                    places.iter().map(|(offset, range)| (*offset, bytes(range))).collect();
                self.write_list_through(ino, &places)
            }
        }
    }

    /// Sends what was written to this file and has not been sent, for others to see it.
    ///
    /// # Errors
    /// As [`Client::write`]; what cannot be sent is kept, and tried again by the next call.
    pub fn send_unsent(&self, ino: Ino) -> FsResult<()> {
        match self.pool().and_then(|pool| Some((pool, pool.find(ino)?))) {
            Some((pool, file)) => self.send_pages(pool, &file),
            None => Ok(()),
        }
    }

    /// Sends what was written to this file; what cannot be sent shows up at the next call that may fail.
    pub(crate) fn try_send_unsent(&self, ino: Ino) {
        if let Err(error) = self.send_unsent(ino) {
            log::debug!("inode {ino}: what was written is not sent yet: {error}");
        }
    }

    /// From now on this client sees what others have made visible before.
    pub(crate) fn drop_copies(&self, ino: Ino) {
        if let Some(pool) = self.pool() {
            pool.drop_copies(ino);
        }
    }

    /// As [`Client::drop_copies`], for when this client cannot be named.
    pub(crate) fn copies_of(&self, ino: Ino) -> impl FnOnce() + Send + 'static {
        let pool = self.pool().map(Arc::clone);
        move || pool.iter().for_each(|pool| pool.drop_copies(ino))
    }

    /// The file is being cut to nothing: what was written before is not wanted any more.
    pub(crate) fn before_cut_to_nothing(&self, ino: Ino) {
        if let Some(pool) = self.pool()
            && self.send_unsent(ino).is_err()
            && let Some(file) = pool.find(ino)
        {
            pool.discard(&file);
        }
    }

    /// Something that is locked of the file may be unlocked now whatever comes: what could not be sent before must not
    /// arrive behind what the next holder writes.
    pub(crate) fn give_up_locked(&self, ino: Ino) {
        if let Some((pool, file)) = self.pool().and_then(|pool| Some((pool, pool.find(ino)?)))
            && file.state.lock().unsent() > 0
            && self.locks.concerns(ino)
        {
            self.give_up(pool, &file, &FsError::with(Errno::EIO, "a lock of it is given back"));
        }
    }

    /// Gives up what could not be sent while the file is open: every call that could say so says so from now on.
    fn give_up(&self, pool: &Pool, file: &CachedFile, why: &FsError) {
        let lost = pool.discard(file);
        if lost > 0 {
            file.state.lock().has_lost = true;
            pool.counts.dropped.fetch_add(lost, Ordering::Relaxed);
            log::error!("inode {}: {lost} bytes that could not be written are lost: {why}", file.ino);
        }
    }

    /// Nobody has the file open any more; `sent` is what came of sending what was written. What could not be sent is
    /// given up: who closed it was told.
    pub(crate) fn end_session(&self, ino: Ino, sent: FsResult<()>) {
        let Some((pool, file)) = self.pool().and_then(|pool| Some((pool, pool.find(ino)?))) else { return };
        let lost = pool.forget(&file);
        if lost == 0 {
            return;
        }
        pool.counts.dropped.fetch_add(lost, Ordering::Relaxed);
        match sent {
            // Without a name and closed everywhere, nobody misses it.
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => {
                log::error!(
                    "inode {ino}: {lost} bytes that could not be written before it was closed are lost: {error}"
                );
            }
            Ok(()) => log::error!("inode {ino}: {lost} bytes that were written while it was closed are lost"),
        }
    }

    /// What an earlier process left of files that nobody has open any more.
    pub(crate) fn end_sessions_left(&self) {
        let Some(pool) = self.pool() else { return };
        for file in pool.files().iter().filter(|file| !self.known.is_open(file.ino)) {
            self.end_session(file.ino, self.send_pages(pool, file));
        }
    }

    /// Sends everything, at the end of the client.
    pub fn send_all(&self) {
        let Some(pool) = self.pool() else { return };
        pool.files().iter().for_each(|file| self.try_send_unsent(file.ino));
    }
}

fn broken(error: &io::Error) -> FsError {
    FsError::from_io(error, "the page pool")
}

fn given_up(ino: Ino) -> FsError {
    let text = format!(
        "bytes that were written to inode {ino} before are lost; close the file and write them again"
    );
    FsError::with(Errno::EIO, text)
}

//! Writes of the session contract: to pages, which are sent in large messages.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bivouac_types::limits::{FILE_SIZE_MAX, LIST_EXTENTS_MAX, TRANSFER_MAX};
use bivouac_types::{ByteRange, Contract, Errno, FsError, FsResult, Ino};
use parking_lot::MutexGuard;

use super::arena::PAGE;
use super::file::{Batch, CachedFile};
use super::pool::Pool;
use super::{LARGE, Sessions, broken};
use crate::tokens::Access;

/// Unsent bytes of a file at which a writer sends them first: as many as one message may carry.
pub const SEND_AT: u64 = TRANSFER_MAX as u64;

/// Most bytes of one message in front of site storage, where space for all of them may have to be made.
const AT_ONCE_BOUND: usize = 1 << 20;

/// Exclusive right to send pages of a file, or to drop them.
pub struct Sending<'a>(&'a CachedFile);

impl<'a> Sending<'a> {
    /// Waits until no other thread sends.
    pub fn begin(file: &'a CachedFile) -> Sending<'a> {
        let mut state = file.state.lock();
        if state.is_sending {
            // Not under the lock: it may start a thread.
            MutexGuard::unlocked(&mut state, bivouac_net::before_waiting);
            file.sent.wait_while(&mut state, |state| state.is_sending);
        }
        assert!(!state.is_sending, "two threads are about to send pages of inode {}", file.ino);
        state.is_sending = true;
        Sending(file)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let was_sending = std::mem::take(&mut self.0.state.lock().is_sending);
        // Pages sent by two threads would arrive in any order.
        assert!(was_sending, "pages of inode {} were sent by two threads", self.0.ino);
        self.0.sent.notify_all();
    }
}

impl Sessions {
    /// Writes `data` at `offset`: all of it, or an error, which may be about earlier writes.
    pub(crate) fn write(&self, target: Access, offset: u64, data: &[u8]) -> FsResult<()> {
        let ino = target.ino;
        let Some((pool, Contract::Session)) = self.pool_for(ino)? else {
            // Not the session contract: what is acknowledged has arrived. Copies read before that are dropped.
            let written = self.content.write(target, offset, data);
            self.drop_range(ino, ByteRange::at(offset, data.len() as u64));
            return written;
        };
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
        let range = offset..end.ok_or(Errno::EFBIG)?;
        let file = pool.file(ino);
        if self.must_send(pool, &file) {
            self.send_pages(pool, &file)?;
        }
        if data.len() < LARGE && self.write_behind(pool, &file, range.clone(), data)? {
            return Ok(());
        }
        // Unsent older bytes of the range would be sent later, over the newer ones.
        if file.state.lock().has_unsent(range.clone()) {
            self.send_pages(pool, &file)?;
        }
        let written = self.content.write(target, offset, data);
        pool.drop_copies(ino, range);
        written
    }

    /// Returns true if the writer has to send what was written before.
    fn must_send(&self, pool: &Pool, file: &CachedFile) -> bool {
        let mut state = file.state.lock();
        if state.has_lost || state.failure.is_some() {
            return true;
        }
        match self.beside.get() {
            Some(beside) if state.unsent() < (pool.size() / 4).max(SEND_AT) => {
                if state.unsent() >= SEND_AT && !std::mem::replace(&mut state.is_urged, true) {
                    beside.urge(file.ino);
                }
                false
            }
            _ => state.unsent() >= SEND_AT,
        }
    }

    /// Writes to pages. Returns false if there is no space, or the file may not be written behind now.
    fn write_behind(&self, pool: &Pool, file: &CachedFile, range: Range<u64>, data: &[u8]) -> FsResult<bool> {
        loop {
            let (missing, takes) = {
                let state = file.state.lock();
                (state.missing(range.clone()), state.takes(range.clone()))
            };
            // A note has room for so many ranges: a sent page needs none.
            if !takes {
                self.send_pages(pool, file)?;
            }
            let Some(mut free) = pool.obtain(file.ino, missing) else {
                // Everything is unsent: the writer that needs space makes it.
                let Some(fullest) = pool.fullest() else { return Ok(false) };
                match self.send_pages(pool, &fullest) {
                    Err(error) if fullest.ino == file.ino => return Err(error),
                    // The error is for the writers of that file.
                    Err(_) => return Ok(false),
                    Ok(()) => continue,
                }
            };
            // Before the file's lock, under which nobody waits for a flush to begin.
            let allowed = self.holds.allow(|| self.homes.may_be_bound(file.ino));
            let mut state = file.state.lock();
            // Others may have been quicker.
            let fits = state.missing(range.clone()) <= free.len() && state.takes(range.clone());
            if !fits && !state.is_over {
                drop(state);
                pool.give_back(free);
                continue;
            }
            let may = !state.is_over && allowed.is_some();
            let before = state.unsent();
            let written =
                if may { state.write(&pool.arena, file.ino, range.start, data, &mut free) } else { Ok(()) };
            pool.count_unsent(state.unsent().cast_signed() - before.cast_signed());
            if let Some(beside) = self.beside.get() {
                beside.add(file, &mut state);
            }
            drop(state);
            pool.give_back(free);
            let failed = written
                .inspect_err(|error| log::warn!(why:% = error; "the page pool takes nothing"))
                .is_err();
            return Ok(may && !failed);
        }
    }

    /// Sends what was written to a file up to now. What cannot be sent is kept.
    pub(super) fn send_pages(&self, pool: &Pool, file: &CachedFile) -> FsResult<()> {
        self.send_down_to(pool, file, 0)
    }

    /// Like [`Sessions::send_pages`], until no more than `keep` bytes are left.
    pub(super) fn send_down_to(&self, pool: &Pool, file: &CachedFile, keep: u64) -> FsResult<()> {
        let _sending = Sending::begin(file);
        let end = {
            let mut state = file.state.lock();
            if state.has_lost {
                return Err(given_up(file.ino));
            }
            if state.unsent() == 0 {
                state.failure = None;
                return Ok(());
            }
            // As of now: what is written meanwhile would keep this thread for as long as the writer goes on.
            state.unsent_end().div_ceil(PAGE)
        };
        let sent = self.send_claimed(pool, file, end, keep);
        // While nobody else sends: it is the failure of the last attempt.
        file.state.lock().failure = sent.as_ref().err().cloned();
        sent
    }

    /// Sends the pages in front of `end`; nobody else does meanwhile.
    fn send_claimed(&self, pool: &Pool, file: &CachedFile, end: u64, keep: u64) -> FsResult<()> {
        let _fenced = match self.locks.guard(file.ino) {
            Err(error) if self.locks.has_lost(file.ino) => {
                // It belongs to whoever has the lock now.
                self.give_up(pool, file, &error);
                return Err(error);
            }
            fenced => fenced?,
        };
        let (mut batch, mut from) = (Batch::default(), 0);
        let bytes_max = if self.homes.may_be_bound(file.ino) { AT_ONCE_BOUND } else { TRANSFER_MAX };
        loop {
            let limits = (bytes_max, LIST_EXTENTS_MAX);
            let next = {
                let state = file.state.lock();
                if state.unsent() <= keep {
                    return Ok(());
                }
                state.batch(&pool.arena, from..end, limits, &mut batch)
            };
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

    /// Sends a batch, with one message per target whatever the number of places.
    fn send_batch(&self, ino: Ino, batch: &Batch) -> FsResult<()> {
        let bytes = |range: &Range<usize>| batch.bytes.get(range.clone()).unwrap_or_default();
        match batch.places.as_slice() {
            [(offset, range)] => self.content.write(ino, *offset, bytes(range)),
            places => {
                let places: Vec<(u64, &[u8])> =
                    places.iter().map(|(offset, range)| (*offset, bytes(range))).collect();
                self.content.write_list(ino, &places)
            }
        }
    }

    /// Sends what was written to this file and has not been sent, for others to see it.
    ///
    /// # Errors
    /// As [`crate::Client::write`]; what cannot be sent is kept, and tried again by the next call.
    pub fn send_unsent(&self, ino: Ino) -> FsResult<()> {
        self.paged(ino).map_or(Ok(()), |(pool, file)| self.send_pages(pool, &file))
    }

    /// Sends what was written to this file; what cannot be sent shows up at the next call that may fail.
    pub(crate) fn try_send_unsent(&self, ino: Ino) {
        if let Err(error) = self.send_unsent(ino) {
            log::debug!(why:% = error; "inode {ino}: what was written is not sent yet");
        }
    }

    /// Sends everything, at the end of the client.
    pub fn send_all(&self) {
        let Some(pool) = self.pool() else { return };
        pool.files().iter().for_each(|file| self.try_send_unsent(file.ino));
    }
}

fn given_up(ino: Ino) -> FsError {
    let text = format!(
        "bytes that were written to inode {ino} before are lost; close the file and write them again"
    );
    FsError::with(Errno::EIO, text)
}

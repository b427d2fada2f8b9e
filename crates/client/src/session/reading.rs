//! Reads of the session contract: from pages, and more than was asked for where that is a habit.

use bivouac_types::limits::{FILE_SIZE_MAX, LIST_EXTENTS_MAX};
use bivouac_types::{FsResult, Ino};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ahead::Ahead;
use super::arena::PAGE;
use super::file::{CachedFile, pages_of};
use super::pool::Pool;
use super::{LARGE, Sessions, broken};
use crate::content::direct::Wish;
use crate::content::publish::{OVERTAKEN_MAX, overtaken};
use crate::content::shown::Show;

/// What takes longer is not tried again without what is read ahead.
const PATIENCE: Duration = Duration::from_secs(5);

impl Sessions {
    /// Reads into `into`; fewer bytes than fit only at the end of the file. Holes read as zeros.
    pub(crate) fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let Some(pool) = self.pool_for(ino)? else { return self.content.read(ino, offset, into) };
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > FILE_SIZE_MAX) {
            return self.content.read(ino, offset, into);
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
        let (at, begun) = (offset + done as u64, Instant::now());
        let read = match ahead {
            Ahead::Run(window) => self.read_run(pool, &file, at, window - done as u64, rest),
            Ahead::Places(step, count) if done == 0 => self.read_places(pool, &file, at, (step, count), rest),
            Ahead::Nothing | Ahead::Places(..) => self.read_fresh(pool, &file, at, rest),
        };
        match read {
            // What was not asked for may be what cannot be had.
            Err(_) if ahead != Ahead::Nothing && begun.elapsed() < PATIENCE => {
                self.read_fresh(pool, &file, at, rest).map(|read| done + read)
            }
            read => Ok(done + read?),
        }
    }

    /// Whether a read has to be served from pages, or is better.
    pub(crate) fn prefers_pages(&self, ino: Ino, len: usize) -> FsResult<bool> {
        let Some(pool) = self.pool_for(ino)? else { return Ok(false) };
        Ok(len < LARGE || pool.find(ino).is_some_and(|file| file.state.lock().unsent() > 0))
    }

    /// Reads several places of a file; how many bytes of each.
    pub(crate) fn read_list(&self, ino: Ino, places: &mut [(u64, &mut [u8])]) -> FsResult<Vec<usize>> {
        match self.send_unsent(ino) {
            Ok(()) => self.content.read_list(ino, places),
            // Who reads is not told of what cannot be sent, and sees it all the same.
            Err(_) => places.iter_mut().map(|(at, into)| self.read(ino, *at, into)).collect(),
        }
    }

    /// Shows a range of a file where it lies, if pages have no part in that.
    pub(crate) fn show(
        &self,
        ino: Ino,
        wish: Wish,
        offset: u64,
        len: u64,
        show: &mut Show<'_>,
    ) -> FsResult<Option<usize>> {
        if self.pool_for(ino)?.is_some() { Ok(None) } else { self.content.show(ino, wish, offset, len, show) }
    }

    /// Reads from the seats, with what was written here, sent or not.
    fn read_fresh(&self, pool: &Pool, file: &CachedFile, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        for _ in 0..OVERTAKEN_MAX {
            let (drops, end) = {
                let mut state = file.state.lock();
                state.reads += 1;
                (state.drops, state.unsent_end())
            };
            let read = self.content.read(file.ino, offset, into);
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
        Err(overtaken(file.ino))
    }

    /// As [`Sessions::read_fresh`], and keeps what is behind it.
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
        let Some(free) = pool.obtain(file.ino, pages_of(offset..end).count()) else {
            return self.read_fresh(pool, file, offset, into);
        };
        let drops = file.state.lock().drops;
        let mut bytes = vec![0; (end - offset) as usize];
        let read = self.read_fresh(pool, file, offset, &mut bytes);
        let kept = read.as_ref().ok().map(|read| (offset, bytes.get(..*read).unwrap_or_default()));
        keep(pool, file, drops, free, kept);
        let len = read?.min(into.len());
        into.get_mut(..len).unwrap_or_default().copy_from_slice(bytes.get(..len).unwrap_or_default());
        Ok(len)
    }

    /// As [`Sessions::read_fresh`], and keeps the places that are as far from each other.
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
        let Some(free) = pool.obtain(file.ino, wanted) else {
            return self.read_fresh(pool, file, offset, into);
        };
        let drops = file.state.lock().drops;
        let mut bytes = vec![0; starts.len() * into.len()];
        let mut places: Vec<(u64, &mut [u8])> =
            starts.iter().copied().zip(bytes.chunks_mut(into.len().max(1))).collect();
        let read = self.content.read_list(file.ino, &mut places);
        let kept = places.iter().zip(read.iter().flatten());
        let kept = kept.map(|((start, bytes), len)| (*start, bytes.get(..*len).unwrap_or_default()));
        keep(pool, file, drops, free, kept);
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
}

/// Keeps what was read, with slots for it, unless something was dropped since.
fn keep<'b>(
    pool: &Pool,
    file: &CachedFile,
    drops: u64,
    mut free: Vec<u32>,
    read: impl IntoIterator<Item = (u64, &'b [u8])>,
) {
    let mut state = file.state.lock();
    if state.drops == drops && !state.is_over {
        for (start, bytes) in read {
            let kept = state.take_in(&pool.arena, start, bytes, &mut free);
            kept.unwrap_or_else(|error| log::debug!(why:% = error; "what was read ahead is not kept"));
        }
    }
    drop(state);
    pool.give_back(free);
}

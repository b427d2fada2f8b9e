//! Reads from pages, and of more than was asked for where that is a habit.

use bivouac_types::limits::{FILE_SIZE_MAX, LIST_EXTENTS_MAX};
use bivouac_types::{Contract, Errno, FsResult, Ino};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ahead::ReadAhead;
use super::arena::PAGE;
use super::file::{CachedFile, pages_of};
use super::pool::Pool;
use super::{LARGE, Sessions, broken};
use crate::content::direct::AccessKind;
use crate::content::publish::{OVERTAKEN_MAX, overtaken};
use crate::content::shown::ShowFn;
use crate::tokens::Access;

/// Time after which a failed read is not tried again without readahead.
const PATIENCE: Duration = Duration::from_secs(5);

/// A file that is read by pages, and by what right.
struct Paged<'a> {
    pool: &'a Pool,
    file: Arc<CachedFile>,
    access: Access,
    contract: Contract,
}

impl Paged<'_> {
    fn is_strict(&self) -> bool {
        self.contract == Contract::Strict
    }
}

impl Sessions {
    /// Reads into `into`; fewer bytes than fit only at the end of the file. Holes read as zeros.
    pub(crate) fn read(&self, file: Access, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let is_possible = offset.checked_add(into.len() as u64).is_some_and(|end| end <= FILE_SIZE_MAX);
        let Some((pool, contract)) = self.pool_for(file.ino)?.filter(|_| is_possible) else {
            return self.content.read(file, offset, into);
        };
        let paged = Paged { pool, file: pool.file(file.ino), access: file, contract };
        // Without tokens it was opened, or became strict, since the call began.
        // A long read is a message that is large enough; copies of it would only push others out.
        if into.len() >= LARGE || (paged.is_strict() && file.epoch().is_none()) {
            return self.read_fresh(&paged, offset, into);
        }
        let mut state = paged.file.state.lock();
        let done = state.read(&pool.arena, offset, into).map_err(|error| broken(&error))?;
        let ahead = state.streams.note(offset, into.len() as u64, done < into.len());
        drop(state);
        if done > 0 && paged.is_strict() {
            self.confirm(file)?;
        }
        if done == into.len() {
            pool.counts.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(done);
        }
        pool.counts.misses.fetch_add(1, Ordering::Relaxed);
        let rest = into.get_mut(done..).unwrap_or_default();
        let (at, begun) = (offset + done as u64, Instant::now());
        let read = match ahead {
            ReadAhead::Run(window) => self.read_run(&paged, at, window - done as u64, rest),
            ReadAhead::Places(step, count) if done == 0 => self.read_places(&paged, at, (step, count), rest),
            ReadAhead::Nothing | ReadAhead::Places(..) => self.read_fresh(&paged, at, rest),
        };
        match read {
            // Begun again with other tokens.
            Err(error) if error.errno() == Errno::ERESTART => Err(error),
            // What was not asked for may be what cannot be had.
            Err(_) if ahead != ReadAhead::Nothing && begun.elapsed() < PATIENCE => {
                self.read_fresh(&paged, at, rest).map(|read| done + read)
            }
            read => Ok(done + read?),
        }
    }

    /// Returns true if a read has to be served from pages, or is faster so.
    pub(crate) fn prefers_pages(&self, ino: Ino, len: usize) -> FsResult<bool> {
        let Some((pool, _)) = self.pool_for(ino)? else { return Ok(false) };
        Ok(len < LARGE || pool.find(ino).is_some_and(|file| file.state.lock().unsent() > 0))
    }

    /// Reads several places of a file; how many bytes of each.
    pub(crate) fn read_list(&self, file: Access, places: &mut [(u64, &mut [u8])]) -> FsResult<Vec<usize>> {
        match self.send_unsent(file.ino) {
            Ok(()) => self.content.read_list(file, places),
            // Who reads is not told of what cannot be sent, and sees it all the same.
            Err(_) => places.iter_mut().map(|(at, into)| self.read(file, *at, into)).collect(),
        }
    }

    /// Shows a range of a file where it lies, if pages have no part in that.
    pub(crate) fn show(
        &self,
        file: Access,
        wish: AccessKind,
        offset: u64,
        len: u64,
        show: &mut ShowFn<'_>,
    ) -> FsResult<Option<usize>> {
        let is_paged = self.pool_for(file.ino)?.is_some();
        if is_paged { Ok(None) } else { self.content.show(file, wish, offset, len, show) }
    }

    /// Reads from the targets, with what was written here, sent or not.
    fn read_fresh(&self, paged: &Paged<'_>, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let Paged { pool, file, access, .. } = paged;
        if paged.is_strict() {
            return self.content.read(*access, offset, into);
        }
        for _ in 0..OVERTAKEN_MAX {
            let (drops, end) = {
                let mut state = file.state.lock();
                // From now on pages that were written stay, to be laid over what is read.
                state.reads += 1;
                (state.drops, state.unsent_end())
            };
            let read = self.content.read(file.ino, offset, into);
            let mut state = file.state.lock();
            assert!(state.reads > 0, "a read of inode {} ends that has not begun", file.ino);
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

    /// Like [`Sessions::read_fresh`], and keeps what follows up to the window.
    fn read_run(&self, paged: &Paged<'_>, offset: u64, window: u64, into: &mut [u8]) -> FsResult<usize> {
        let Paged { pool, file, .. } = paged;
        let end = offset.saturating_add(window.min(pool.size() / 4)).min(FILE_SIZE_MAX);
        // Windows end with pages: the next one begins with a new page.
        let end = (end - end % PAGE).max(offset + into.len() as u64);
        let Some(free) = pool.obtain(file.ino, pages_of(offset..end).count()) else {
            return self.read_fresh(paged, offset, into);
        };
        let drops = file.state.lock().drops;
        let end = self.keepable_to(paged, offset..end);
        if end < offset + into.len() as u64 {
            pool.give_back(free);
            return self.read_fresh(paged, offset, into);
        }
        let mut bytes = vec![0; (end - offset) as usize];
        let read = self.read_fresh(paged, offset, &mut bytes);
        let kept = read.as_ref().ok().map(|read| (offset, bytes.get(..*read).unwrap_or_default()));
        keep(pool, file, drops, free, kept);
        let len = read?.min(into.len());
        into.get_mut(..len).unwrap_or_default().copy_from_slice(bytes.get(..len).unwrap_or_default());
        Ok(len)
    }

    /// Like [`Sessions::read_fresh`], and keeps further places at the same distance.
    fn read_places(
        &self,
        paged: &Paged<'_>,
        offset: u64,
        (step, count): (i64, u64),
        into: &mut [u8],
    ) -> FsResult<usize> {
        let Paged { pool, file, access, .. } = paged;
        let len = into.len() as u64;
        // A guess about further reads may take a quarter of the pool, no more.
        let count = count.min(pool.size() / 4 / len.max(1)).clamp(1, LIST_EXTENTS_MAX as u64);
        let place = |turn: u64| offset.checked_add_signed(step.checked_mul(turn.cast_signed())?);
        let mut starts: Vec<u64> = (0..count)
            .map_while(place)
            .take_while(|start| start.checked_add(len).is_some_and(|end| end <= FILE_SIZE_MAX))
            .collect();
        let wanted = starts.iter().map(|start| pages_of(*start..start + len).count()).sum();
        let Some(free) = pool.obtain(file.ino, wanted) else {
            return self.read_fresh(paged, offset, into);
        };
        // Counted before the read: what is dropped while it is under way must not be kept.
        let drops = file.state.lock().drops;
        starts.retain(|start| self.keepable_to(paged, *start..start + len) == start + len);
        if starts.first() != Some(&offset) {
            pool.give_back(free);
            return self.read_fresh(paged, offset, into);
        }
        let mut bytes = vec![0; starts.len() * into.len()];
        let mut places: Vec<(u64, &mut [u8])> =
            starts.iter().copied().zip(bytes.chunks_mut(into.len().max(1))).collect();
        let source = if paged.is_strict() { *access } else { file.ino.into() };
        let read = self.content.read_list(source, &mut places);
        // Nothing where it failed, so that the slots are given back all the same.
        let kept = places.iter().zip(read.iter().flatten());
        let kept = kept.map(|((start, bytes), len)| (*start, bytes.get(..*len).unwrap_or_default()));
        keep(pool, file, drops, free, kept);
        read?;
        let mut state = file.state.lock();
        match state.read(&pool.arena, offset, into).map_err(|error| broken(&error))? {
            len if len == into.len() => Ok(len),
            _ => {
                // Some of it was dropped meanwhile.
                drop(state);
                self.read_fresh(paged, offset, into)
            }
        }
    }

    /// Returns the end of the bytes of a range of which copies may be kept, if they are read from now on.
    fn keepable_to(&self, paged: &Paged<'_>, range: Range<u64>) -> u64 {
        if paged.is_strict() { self.tokens.covered_to(paged.file.ino, range) } else { range.end }
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

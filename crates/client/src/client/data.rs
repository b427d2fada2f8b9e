//! Calls on content: locks fence them, what was written behind goes first, and site storage has what its policy says
//! before they return.

use bivouac_record::AccessPosition;
use bivouac_types::limits::FILE_SIZE_MAX;
use bivouac_types::{ByteRange, Errno, FsResult, Ino, RaceEvent, Refresh};
use bivouac_wire::op;

use super::{Client, OpCtx};
use crate::content::copy::{COPY_MAX, CopyJob};
use crate::content::data::Appending;
use crate::content::direct::AccessKind;
use crate::content::local::SendPart;
use crate::content::shown::ShowFn;
use crate::content::space::SeekKind;
use crate::opens::uses::CallTimer;
use crate::tokens::{Access, CallRange};

/// Modes of the kernel's `fallocate` that change content: `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE`.
const CHANGES_CONTENT: u32 = 0x02 | 0x10;

impl Client {
    /// Reads into `into`; fewer bytes than fit only at the end of the file. Holes read as zeros.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` when a node cannot be reached.
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let begun = CallTimer::now(into.len());
        let range = ByteRange::at(offset, into.len() as u64);
        let len = self
            .tokens
            .covered(CallRange::read(ino, range), |file| self.sessions.read(file, offset, into))?;
        self.opens.used(ino, false, [(AccessPosition::At(offset), len)], &begun);
        self.accessed(ino, false, [(offset, len)]);
        Ok(len)
    }

    /// Like [`Client::read`], of an open file of the root partition, where that takes no message and no waiting for a
    /// disk or another thread: the range is in one subfile, for which there is a grant. Returns `None` otherwise, and
    /// has read nothing.
    #[must_use]
    pub fn read_granted(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Option<()> {
        if self.detects_races() {
            // A report of the access may have to be sent.
            return None;
        }
        let begun = CallTimer::now(into.len());
        self.content.read_granted(ino, offset, into)?;
        self.opens.used_at_once(ino, (AccessPosition::At(offset), into.len()), &begun);
        Some(())
    }

    /// Reads several places of a file, each into its buffer; answers how many bytes each got, less than its length
    /// only at the end of the file. Each place is read for itself, as by [`Client::read`].
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn read_list(&self, ino: Ino, places: &mut [(u64, &mut [u8])]) -> FsResult<Vec<usize>> {
        let begun = CallTimer::now(places.iter().map(|(_, into)| into.len()).sum());
        let range = span(places.iter().map(|(at, into)| (*at, into.len())));
        let counts =
            self.tokens.covered(CallRange::read(ino, range), |file| self.sessions.read_list(file, places))?;
        let read = places.iter().zip(&counts).map(|((at, _), len)| (AccessPosition::At(*at), *len));
        self.opens.used(ino, false, read, &begun);
        self.accessed(ino, false, places.iter().map(|(at, _)| *at).zip(counts.iter().copied()));
        Ok(counts)
    }

    /// Shows a range of an open file where it lies in memory of this machine, stretch by stretch, to be read or
    /// written. How many bytes were; `None` if not all can be shown now: then all has to be read or written otherwise.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it is not in memory of this machine; else as [`Client::read`] and [`Client::write`].
    pub fn show(
        &self,
        ino: Ino,
        wish: AccessKind,
        offset: u64,
        len: usize,
        show: &mut ShowFn<'_>,
    ) -> FsResult<Option<usize>> {
        let (begun, is_write) = (CallTimer::now(len), wish == AccessKind::Write);
        if is_write && self.tokens.is_strict(ino) {
            // Others would see what was written before it turns out that not all can be shown.
            return Ok(None);
        }
        // For all of the call: each of its messages carries the token of the moment when it began.
        let _fenced = is_write.then(|| self.locks.guard(ino)).transpose()?;
        let range = ByteRange::at(offset, len as u64);
        let call = if is_write { CallRange::write(ino, range) } else { CallRange::read(ino, range) };
        let moved =
            self.tokens.covered(call, |file| self.sessions.show(file, wish, offset, len as u64, show))?;
        if let Some(len) = moved {
            if is_write {
                self.site.save_written(ino)?;
            }
            self.opens.used(ino, is_write, [(AccessPosition::At(offset), len)], &begun);
            self.accessed(ino, is_write, [(offset, len)]);
        }
        Ok(moved)
    }

    /// From now on reads every block that has a checksum through its daemon, which compares the checksum, instead of
    /// directly: for programs that serve what they read to others. It costs a message for each read of such a file.
    pub fn compare_reads(&self) {
        self.content.compare_reads();
    }

    /// Like [`Client::read`], for content that one target of this process's node has: `send` sends it from there.
    /// Returns the number of bytes, fewer than `len` only at the end of the file; with 0, `send` was not called.
    /// Returns `None` if the content has to be read instead.
    pub fn send(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        send: &mut SendPart<'_>,
    ) -> FsResult<Option<usize>> {
        let begun = CallTimer::now(len);
        if self.sessions.prefers_pages(ino, len)? {
            return Ok(None);
        }
        let range = ByteRange::at(offset, len as u64);
        let sent = self
            .tokens
            .covered(CallRange::read(ino, range), |file| self.content.send(file, offset, len, send))?;
        if let Some(len) = sent {
            self.opens.used(ino, false, [(AccessPosition::At(offset), len)], &begun);
            self.accessed(ino, false, [(offset, len)]);
        }
        Ok(sent)
    }

    /// Writes `data`: all of it, or an error. With `append` the home decides where, and `offset` is not used.
    ///
    /// # Errors
    /// `ENOSPC` when a volume is full, `EFBIG`, `ENOENT`, `EIO`. Parts may have been written. Under the session
    /// contract an error may be about what was written before, which is kept.
    pub fn write(&self, ctx: &OpCtx, ino: Ino, offset: u64, data: &[u8], append: bool) -> FsResult<usize> {
        let _fenced = self.locks.guard(ino)?;
        if !append {
            let call = CallRange::write(ino, ByteRange::at(offset, data.len() as u64)).of(ctx);
            return self.write_covered(call, offset, data);
        }
        let (begun, len) = (CallTimer::now(data.len()), data.len());
        let mut appended = Appending::default();
        // The home says where it goes: behind what was written before.
        self.tokens.covered_behind(ctx, ino, |file, from| {
            self.sessions.past_pages(ino, || self.content.append(ctx, (file, from), data, &mut appended))
        })?;
        self.site.save_written(ino)?;
        self.opens.used(ino, true, [(AccessPosition::End, len)], &begun);
        Ok(len)
    }

    /// Writes `data` at `offset`: all of it, or an error. Done twice it is the same, so it needs no identity.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_at(&self, ino: Ino, offset: u64, data: &[u8]) -> FsResult<usize> {
        self.write_covered(CallRange::write(ino, ByteRange::at(offset, data.len() as u64)), offset, data)
    }

    fn write_covered(&self, call: CallRange, offset: u64, data: &[u8]) -> FsResult<usize> {
        let (begun, len, ino) = (CallTimer::now(data.len()), data.len(), call.ino);
        self.tokens.covered(call, |file| self.sessions.write(file, offset, data))?;
        self.site.save_written(ino)?;
        self.opens.used(ino, true, [(AccessPosition::At(offset), len)], &begun);
        self.accessed(ino, true, [(offset, len)]);
        Ok(len)
    }

    /// Writes several places of a file: all of them, or an error. Each is written for itself, as by
    /// [`Client::write`], in no particular order; where they overlap, any of them wins.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_list(&self, ino: Ino, places: &[(u64, &[u8])]) -> FsResult<()> {
        let begun = CallTimer::now(places.iter().map(|(_, data)| data.len()).sum());
        let _fenced = self.locks.guard(ino)?;
        let range = span(places.iter().map(|(at, data)| (*at, data.len())));
        self.tokens.covered(CallRange::write(ino, range), |file| {
            self.sessions.past_pages(ino, || self.content.write_list(file, places))
        })?;
        self.site.save_written(ino)?;
        let written = places.iter().map(|(at, data)| (AccessPosition::At(*at), data.len()));
        self.opens.used(ino, true, written, &begun);
        self.accessed(ino, true, places.iter().map(|(at, data)| (*at, data.len())));
        Ok(())
    }

    /// Copies a range between files, or within one where it does not overlap itself. The number of bytes copied: fewer
    /// where the read file ends, or where it was cut meanwhile; holes stay holes.
    ///
    /// # Errors
    /// As [`Client::read`] and [`Client::write`], if nothing was copied.
    pub fn copy(&self, ctx: &OpCtx, copy: &CopyJob) -> FsResult<u64> {
        let _fenced = self.locks.guard(copy.to)?;
        let end = copy.to_offset.checked_add(copy.len.min(COPY_MAX)).ok_or(Errno::EFBIG)?;
        if end > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        // Targets copy what they have: what is unsent here would be missing in the copy.
        self.sessions.send_unsent(copy.from)?;
        let copied = self.covered_copy(ctx, copy, end)?;
        let len = usize::try_from(copied).unwrap_or(usize::MAX);
        self.accessed(copy.from, false, [(copy.from_offset, len)]);
        self.accessed(copy.to, true, [(copy.to_offset, len)]);
        self.site.save_written(copy.to).map(|()| copied)
    }

    /// Copies with both ranges covered.
    fn covered_copy(&self, ctx: &OpCtx, copy: &CopyJob, end: u64) -> FsResult<u64> {
        let len = end - copy.to_offset;
        let (from, to) = (ByteRange::at(copy.from_offset, len), ByteRange::at(copy.to_offset, len));
        let (read, write) = (CallRange::read(copy.from, from), CallRange::write(copy.to, to).of(ctx));
        let copied = |from: Access, to: Access| {
            self.sessions.past_pages(copy.to, || self.content.copy(copy, (from, to)))
        };
        if copy.from == copy.to {
            // One call has one range.
            let range = from.hull(&to);
            return self.tokens.covered(CallRange { range, ..write }, |file| copied(file, file));
        }
        self.tokens.covered_both([read, write], copied)
    }

    /// Reserves, frees or zeroes a range; `mode` is the kernel's.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for modes that move content; `ENOSPC`, `EDQUOT`: what was reserved is given back; `EFBIG`,
    /// `EINVAL`, `ENOENT`, `EIO`.
    pub fn fallocate(&self, ctx: &OpCtx, ino: Ino, mode: u32, offset: u64, len: u64) -> FsResult<()> {
        let _fenced = self.locks.guard(ino)?;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let call = CallRange::write(ino, ByteRange { start: offset, end }).of(ctx);
        self.tokens.covered(call, |file| {
            self.sessions.past_pages(ino, || self.content.fallocate(ctx, file, mode, offset..end))
        })?;
        self.content.count_holes(ino);
        // A reservation changes no byte that another client could read.
        if mode & CHANGES_CONTENT != 0 {
            self.changed_at_once(ino, ByteRange { start: offset, end });
        }
        self.site.save_changed(ino)
    }

    /// Returns where data or the next hole begins, at or behind `offset`. Behind the end there is a hole.
    ///
    /// # Errors
    /// `ENXIO` behind the end, or where no data follows; `ENOENT`, `EIO`.
    pub fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> FsResult<u64> {
        self.sessions.send_unsent(ino)?;
        self.content.seek(ino, offset, kind)
    }

    /// Makes an open file longer by `len` bytes, a hole, and answers where they begin: whoever claims, once each.
    /// Of no bytes, the size.
    ///
    /// # Errors
    /// `EFBIG`, `ENOENT`, `EIO`.
    pub fn claim(&self, ctx: &OpCtx, ino: Ino, len: u64) -> FsResult<u64> {
        self.sessions.send_unsent(ino)?;
        self.content.claim(ctx, ino, len)
    }

    /// Makes content and records durable on their volumes.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached or a volume fails.
    pub fn fsync(&self, ino: Ino, _data_only: bool) -> FsResult<()> {
        self.sessions.send_unsent(ino)?;
        let attr = self.homes.attr(ino)?;
        // Before the records are synced: the number of holes is one of them.
        if self.known.take_filled(ino) {
            self.content.count_holes(ino);
        }
        if attr.is_file() {
            self.content.sync(&attr)?;
        }
        // Behind the content: a size that survives a power failure must not be that of bytes that do not.
        self.connections.ask::<op::SyncRecords>(self.connections.home(ino)?, &())?;
        if attr.is_file() {
            self.report([RaceEvent::Publish(ino), RaceEvent::Refresh(ino, Refresh::Sync)]);
        }
        if attr.is_file() { self.site.save_synced(ino) } else { Ok(()) }
    }

    /// Returns true if some nodes are reached over a network. Bytes sent there are checksummed, so this process reads
    /// them, not only the kernel: an invalid buffer of a program would end the process, instead of being an error.
    #[must_use]
    pub fn is_spread_out(&self) -> bool {
        self.connections.is_spread_out()
    }
}

/// Returns the range from the start of the first of some places to the end of the last.
fn span(places: impl IntoIterator<Item = (u64, usize)>) -> ByteRange {
    let ranges = places.into_iter().map(|(at, len)| ByteRange::at(at, len as u64));
    ranges.reduce(|one, other| one.hull(&other)).unwrap_or(ByteRange::at(0, 0))
}

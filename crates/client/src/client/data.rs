//! Calls on content: locks fence them, what was written behind goes first, and site storage has what its policy says before
//! they return.

use bivouac_record::Place;
use bivouac_types::limits::FILE_SIZE_MAX;
use bivouac_types::{Errno, FsResult, Ino};
use bivouac_wire::op;

use super::{Client, OpCtx, SeekKind};
use crate::content::copy::{COPY_MAX, CopyJob};
use crate::content::direct::Wish;
use crate::content::local::SendPart;
use crate::content::shown::Show;
use crate::opens::uses::Begun;

impl Client {
    /// Reads into `into`; fewer bytes than fit only at the end of the file. Holes read as zeros.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` when a node cannot be reached.
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let begun = Begun::now(into.len());
        let len = self.sessions.read(ino, offset, into)?;
        self.opens.used(ino, false, [(Place::At(offset), len)], &begun);
        Ok(len)
    }

    /// As [`Client::read`], of a file that is open and of the root partition, as far as that takes no message and no waiting
    /// for a disk or another thread: what is in one subfile, for which there is a grant. Otherwise `None`.
    #[must_use]
    pub fn read_granted(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Option<()> {
        let begun = Begun::now(into.len());
        self.content.read_granted(ino, offset, into)?;
        self.opens.used_at_once(ino, (Place::At(offset), into.len()), &begun);
        Some(())
    }

    /// Reads several places of a file, each into its buffer; answers how many bytes each got, less than its length
    /// only at the end of the file. Each place is read for itself, as by [`Client::read`].
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn read_list(&self, ino: Ino, places: &mut [(u64, &mut [u8])]) -> FsResult<Vec<usize>> {
        let begun = Begun::now(places.iter().map(|(_, into)| into.len()).sum());
        let counts = self.sessions.read_list(ino, places)?;
        let read = places.iter().zip(&counts).map(|((at, _), len)| (Place::At(*at), *len));
        self.opens.used(ino, false, read, &begun);
        Ok(counts)
    }

    /// Shows a range of an open file where it lies in memory of this machine, stretch by stretch, to be read or written.
    /// How many bytes were; `None` if not all can be shown now: then all has to be read or written otherwise.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it is not in memory of this machine; else as [`Client::read`] and [`Client::write`].
    pub fn show(
        &self,
        ino: Ino,
        wish: Wish,
        offset: u64,
        len: usize,
        show: &mut Show<'_>,
    ) -> FsResult<Option<usize>> {
        let (begun, is_write) = (Begun::now(len), wish == Wish::Write);
        let _fenced = is_write.then(|| self.locks.guard(ino)).transpose()?;
        let moved = self.sessions.show(ino, wish, offset, len as u64, show)?;
        if let Some(len) = moved {
            if is_write {
                self.site.save_written(ino)?;
            }
            self.opens.used(ino, is_write, [(Place::At(offset), len)], &begun);
        }
        Ok(moved)
    }

    /// As [`Client::read`], for what is in one place of this process's node: has `send` send it from there. `None` if
    /// it has to be read, otherwise the number of bytes, fewer than wanted only at the end of the file; where there are
    /// none, none were sent.
    pub fn send(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        send: &mut SendPart<'_>,
    ) -> FsResult<Option<usize>> {
        let begun = Begun::now(len);
        if self.sessions.prefers_pages(ino, len)? {
            return Ok(None);
        }
        let sent = self.content.send(ino, offset, len, send)?;
        if let Some(len) = sent {
            self.opens.used(ino, false, [(Place::At(offset), len)], &begun);
        }
        Ok(sent)
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
        let (begun, len) = (Begun::now(data.len()), data.len());
        // The home says where it goes: behind what was written before.
        self.sessions.past_pages(ino, || self.content.append(ctx, ino, data))?;
        self.site.save_written(ino)?;
        self.opens.used(ino, true, [(Place::End, len)], &begun);
        Ok(len)
    }

    /// Writes `data` at `offset`: all of it, or an error. Done twice it is the same, so it needs no identity.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_at(&self, ino: Ino, offset: u64, data: &[u8]) -> FsResult<usize> {
        let (begun, len) = (Begun::now(data.len()), data.len());
        self.sessions.write(ino, offset, data)?;
        self.site.save_written(ino)?;
        self.opens.used(ino, true, [(Place::At(offset), len)], &begun);
        Ok(len)
    }

    /// Writes several places of a file: all of them, or an error. Each is written for itself, as by
    /// [`Client::write`], in no particular order; where they overlap, any of them wins.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_list(&self, ino: Ino, places: &[(u64, &[u8])]) -> FsResult<()> {
        let begun = Begun::now(places.iter().map(|(_, data)| data.len()).sum());
        let _fenced = self.locks.guard(ino)?;
        self.sessions.past_pages(ino, || self.content.write_list(ino, places))?;
        self.site.save_written(ino)?;
        let written = places.iter().map(|(at, data)| (Place::At(*at), data.len()));
        self.opens.used(ino, true, written, &begun);
        Ok(())
    }

    /// Copies a range between files, or within one where it does not overlap itself. The number of bytes copied: fewer
    /// where the read file ends, or where it was cut meanwhile; holes stay holes.
    ///
    /// # Errors
    /// As [`Client::read`] and [`Client::write`], if nothing was copied.
    pub fn copy(&self, _ctx: &OpCtx, copy: &CopyJob) -> FsResult<u64> {
        let _fenced = self.locks.guard(copy.to)?;
        let end = copy.to_offset.checked_add(copy.len.min(COPY_MAX)).ok_or(Errno::EFBIG)?;
        if end > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        self.sessions.send_unsent(copy.from)?;
        let copied = self.sessions.past_pages(copy.to, || self.content.copy(copy))?;
        self.site.save_written(copy.to).map(|()| copied)
    }

    /// Reserves, frees or zeroes a range; `mode` is the kernel's.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for modes that move content; `ENOSPC`, `EDQUOT`: what was reserved is given back; `EFBIG`, `EINVAL`,
    /// `ENOENT`, `EIO`.
    pub fn fallocate(&self, ctx: &OpCtx, ino: Ino, mode: u32, offset: u64, len: u64) -> FsResult<()> {
        let _fenced = self.locks.guard(ino)?;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        self.sessions.past_pages(ino, || self.content.fallocate(ctx, ino, mode, offset..end))?;
        self.content.count_holes(ino);
        self.site.save_changed(ino)
    }

    /// Where data or the next hole begins, at or behind `offset`. Behind the end there is a hole.
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
        if self.known.take_filled(ino) {
            self.content.count_holes(ino);
        }
        if attr.is_file() {
            self.content.sync(&attr)?;
        }
        self.ways.ask::<op::SyncRecords>(self.ways.home(ino)?, &())?;
        if attr.is_file() { self.site.save_synced(ino) } else { Ok(()) }
    }

    /// Whether some nodes are reached over a network. Bytes for those are summed up, so read by this process and not only by
    /// the kernel: a buffer that is not there would be no error but its end.
    #[must_use]
    pub fn is_spread_out(&self) -> bool {
        self.ways.is_spread_out()
    }
}

//! The subfiles of one node over its volumes. What a subfile is, and what its header says, is in
//! docs/format.md.

mod awaited;
mod cache;
mod damage;
mod files;
mod holders;
mod lent;
mod names;
mod offline;
mod ranges;
mod room;
mod scan;
mod space;
mod spec;
mod subfile;
mod summed;
mod sums;
mod sync;
mod table;
#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use bivouac_types::limits::{FILE_SIZE_MAX, SUBFILE_HEADER_LEN, SUM_BLOCK, SUMMED_DATA_AT};
use bivouac_types::{Checksum, FormationId, NodeId, PartitionId};

pub use awaited::ChangeCondition;
pub use damage::{Scrubbed, WrongPart};
pub use holders::{Access, DirectClient, Granted, MARK_WORDS, Written};
pub use lent::{PartUsage, VolumeConfig, VolumeUsage};
pub use offline::Subfiles;
pub use room::{Headroom, RecordsRoom, ReplicaRoom};
pub use scan::ListedSubfile;
pub use space::SpaceChange;
pub use spec::{SubfileId, SubfileSpec, SubfileStat};

use self::cache::{Cache, SubfileHandle};
use self::damage::Damage;
use self::lent::LentVolume;
use self::room::SpaceAccount;
use self::subfile::{AccessError, OpenSubfile};
use self::sync::SyncFailures;
use crate::{DirVolume, Places, StoreError, StoreResult, Volume, VolumeFile, VolumeIdentity, VolumeKind};

/// Settings of a [`DataStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// Most subfiles that are kept open without being in use.
    pub handles_max: usize,
    /// Volumes on which blocks of new subfiles get checksums.
    pub checksum: Checksum,
}

impl Default for DataOptions {
    fn default() -> DataOptions {
        DataOptions { handles_max: 4096, checksum: Checksum::Off }
    }
}

/// The descriptor of a subfile, for a process that is to read and write it directly. While it lives, the
/// subfile stays open.
#[derive(Clone, Debug)]
pub struct LocalFile {
    file: Arc<dyn VolumeFile>,
    data_at: u64,
    _place: Arc<SubfileHandle>,
}

impl LocalFile {
    /// Returns the descriptor; `None` on a volume in memory.
    #[must_use]
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }

    /// Returns the offset of data in the file, in bytes.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.data_at
    }
}

/// The subfiles of one node. Operations on one subfile are atomic against each other: a read sees all or nothing of a
/// write.
///
/// Locks are taken in this order: a subfile's, then the cache's.
#[derive(Debug)]
pub struct DataStore {
    volumes: Vec<LentVolume>,
    formation: FormationId,
    cache: Cache,
    damage: Damage,
    sync_failures: SyncFailures,
}

/// Opens the directories that a node lends, each with its capacity.
///
/// # Errors
/// As [`DirVolume::open`].
pub fn open_volumes(
    volumes: &[VolumeConfig],
    formation: FormationId,
    node: NodeId,
) -> StoreResult<Vec<(Arc<dyn Volume>, u64)>> {
    let open = |(index, config): (u16, &VolumeConfig)| {
        let identity = VolumeIdentity { formation, node, index };
        let volume = DirVolume::open(&config.path, identity, config.create)?;
        Ok((Arc::new(volume) as Arc<dyn Volume>, config.capacity))
    };
    (0..=u16::MAX).zip(volumes).map(open).collect()
}

impl DataStore {
    /// Opens the volumes of a node and counts what is on them.
    ///
    /// # Errors
    /// As [`DirVolume::open`]; `Io`.
    pub fn open(
        volumes: &[VolumeConfig],
        formation: FormationId,
        node: NodeId,
        options: &DataOptions,
    ) -> StoreResult<DataStore> {
        DataStore::with_volumes(open_volumes(volumes, formation, node)?, formation, options)
    }

    /// Creates a store on open volumes, each with its capacity in bytes (0 for the file system's).
    ///
    /// # Errors
    /// `Io`.
    pub fn with_volumes(
        volumes: Vec<(Arc<dyn Volume>, u64)>,
        formation: FormationId,
        options: &DataOptions,
    ) -> StoreResult<DataStore> {
        let lent = |(index, (volume, capacity)): (u16, (Arc<dyn Volume>, u64))| {
            LentVolume::new(volume, index, capacity, options.checksum)
        };
        let volumes: Vec<LentVolume> = (0..=u16::MAX).zip(volumes).map(lent).collect::<StoreResult<_>>()?;
        volumes.iter().try_for_each(scan::take_stock)?;
        let cache = Cache::new(options.handles_max);
        let (damage, sync_failures) = (Damage::default(), SyncFailures::default());
        Ok(DataStore { volumes, formation, cache, damage, sync_failures })
    }

    /// Returns a volume, for the records on it.
    ///
    /// # Errors
    /// `NoVolume`.
    pub fn volume(&self, index: u16) -> StoreResult<Arc<dyn Volume>> {
        self.lent(index).map(|lent| lent.volume.clone())
    }

    /// Limits volumes in memory to the shared headroom.
    pub fn share_memory(&self, headroom: &Arc<dyn Headroom>) {
        let in_memory = self.volumes.iter().filter(|lent| lent.volume.kind() == VolumeKind::Memory);
        in_memory.for_each(|lent| lent.room.share(headroom));
    }

    /// Returns the part of a volume's capacity that records on it take.
    ///
    /// # Errors
    /// `NoVolume`.
    pub fn records_room(&self, index: u16) -> StoreResult<RecordsRoom> {
        let lent = self.lent(index)?;
        Ok(RecordsRoom { room: lent.room.clone(), path: lent.volume.path().to_owned() })
    }

    /// Returns the directories of the volumes, with their space for replicas of other nodes' volumes.
    #[must_use]
    pub fn replica_rooms(&self) -> Vec<(PathBuf, ReplicaRoom)> {
        let room = |lent: &LentVolume| (lent.volume.path().to_owned(), ReplicaRoom(Arc::clone(&lent.room)));
        self.volumes.iter().map(room).collect()
    }

    /// Reads from `offset` of the data on; returns the number of bytes, less than wanted only at the end of the
    /// subfile, and the subfile's epoch; both 0 if there is none. Holes are zeros. The slices may be advanced.
    ///
    /// # Errors
    /// `NoVolume`, `Corrupt` and the like for a damaged header, `WrongBlock`, `Io`.
    pub fn read(&self, id: SubfileId, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> StoreResult<(usize, u32)> {
        let place = self.place(id)?;
        let read = |open: &OpenSubfile, bufs: &mut [IoSliceMut<'_>]| {
            if offset > open.len_max() {
                return Ok((0, 0));
            }
            let read = open.read(offset, bufs).map_err(|error| self.damaged(id, open, "read", error))?;
            Ok((read, open.epoch()))
        };
        // Readers share the lock; only a subfile that processes write directly, or that is not open, takes it alone.
        if let Some(open) = place.state.read().as_ref().filter(|open| !open.holders.may_write()) {
            return read(open, bufs);
        }
        let mut state = place.state.write();
        match self.opened(id, &mut state)? {
            Some(open) if open.holders.may_write() => {
                self.interrupt(id, open)?;
                read(open, bufs)
            }
            Some(open) => read(open, bufs),
            None => Ok((0, 0)),
        }
    }

    /// Calls `send` with the descriptor of a subfile and the offset in it of this range of data, if the subfile is
    /// open, has all of the range, and is of an epoch not above `epoch`. No writer is in it meanwhile. Returns what
    /// `send` returns; false if it was not called, which includes subfiles with checksums.
    ///
    /// # Errors
    /// `NoVolume`.
    pub fn send_part(
        &self,
        id: SubfileId,
        epoch: u32,
        range: &Range<u64>,
        send: impl FnOnce(BorrowedFd<'_>, u64) -> bool,
    ) -> StoreResult<bool> {
        let place = self.place(id)?;
        let state = place.state.read();
        let there = |open: &&OpenSubfile| {
            // The kernel sends these bytes without this process reading them, so they cannot be compared with a
            // checksum.
            let is_plain = !open.is_summed() && !open.holders.may_write();
            is_plain && open.epoch() <= epoch && range.end <= open.len()
        };
        let Some(open) = state.as_ref().filter(there) else { return Ok(false) };
        Ok(open.file().as_fd().is_some_and(|file| send(file, open.data_at() + range.start)))
    }

    /// Writes at `offset` of the data, making the subfile if there is none; returns the subfile's epoch.
    ///
    /// # Errors
    /// Nothing is written: `StaleEpoch` if `epoch` is below the subfile's; `NoSpace`, `TooLarge`, `BadLayout`;
    /// `WrongBlock` if a part of a damaged block would be written. After `Io`, old data may be overwritten in part, but
    /// the length is as before, unless other processes write to the subfile directly.
    pub fn write(
        &self,
        id: SubfileId,
        spec: &SubfileSpec<'_>,
        epoch: u32,
        offset: u64,
        bufs: &[IoSlice<'_>],
    ) -> StoreResult<u32> {
        self.write_awaited(id, spec, (epoch, offset), bufs, ChangeCondition::ALWAYS)
    }

    /// Like [`DataStore::write`], if the change is still awaited when the subfile is locked.
    ///
    /// # Errors
    /// As [`DataStore::write`]; `NotAwaited`: nothing is written.
    pub fn write_awaited(
        &self,
        id: SubfileId,
        spec: &SubfileSpec<'_>,
        (epoch, offset): (u32, u64),
        bufs: &[IoSlice<'_>],
        awaited: ChangeCondition<'_>,
    ) -> StoreResult<u32> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let end = self.end_of(id, offset, len as u64)?;
        let way = |open: &mut OpenSubfile, room: &SpaceAccount, is_beside: bool| match is_beside {
            true => open.write_within(offset, bufs),
            false => open.write(room, offset, bufs, end),
        };
        self.write_by((id, spec, epoch), &(offset..end), awaited, way)
    }

    /// Like [`DataStore::write_awaited`], for several places at once, of which each page from the first to the last has
    /// a part.
    ///
    /// # Errors
    /// As [`DataStore::write_awaited`]; where something was overwritten in part, it may be any of the places.
    pub fn write_places(
        &self,
        id: SubfileId,
        spec: &SubfileSpec<'_>,
        epoch: u32,
        places: &Places<'_>,
        awaited: ChangeCondition<'_>,
    ) -> StoreResult<u32> {
        let span = places.span();
        self.end_of(id, span.start, span.end - span.start)?;
        let way = |open: &mut OpenSubfile, room: &SpaceAccount, is_beside: bool| match is_beside {
            true => open.write_places_within(places),
            false => open.write_places(room, places),
        };
        self.write_by((id, spec, epoch), &span, awaited, way)
    }

    /// Writes within a range of the data by `write`, which is told whether processes write beside it.
    fn write_by(
        &self,
        (id, spec, epoch): (SubfileId, &SubfileSpec<'_>, u32),
        range: &Range<u64>,
        awaited: ChangeCondition<'_>,
        write: impl FnOnce(&mut OpenSubfile, &SpaceAccount, bool) -> Result<(), AccessError>,
    ) -> StoreResult<u32> {
        if range.is_empty() {
            return Ok(epoch);
        }
        let place = self.place(id)?;
        let room = &*self.room(id)?;
        let mut state = place.state.write();
        // Under the lock, not before it: while this thread waited, the client may have gone, and its successor may have
        // written.
        awaited.check()?;
        let made = self.opened(id, &mut state)?.is_none();
        if made {
            self.reserve_new(id, range.start, range.end)?;
            self.make(id, spec, epoch, &mut state)?;
        }
        let Some(open) = state.as_mut() else { return Err(self.lost(id)) };
        // The file was truncated since the client read its size: its bytes would reappear when the file grows.
        if epoch < open.epoch() {
            return Err(StoreError::StaleEpoch { current: open.epoch() });
        }
        let is_beside = self.write_beside(id, open, range)?;
        let written = write(open, room, is_beside);
        let epoch = open.epoch();
        if written.is_ok() {
            self.note_written(id, open, range);
        }
        if made && written.is_err() {
            // A subfile that cannot be removed is empty, which does no harm.
            let _ = self.discard(id, &mut state);
        }
        written.map(|()| epoch).map_err(|error| self.access_error(id, "write", error))
    }

    /// Truncates data to at most `len_max` bytes, and refuses writes of older epochs from now on. Makes a subfile
    /// without data if there is none, whatever the capacity. An epoch that is not above the subfile's changes nothing.
    ///
    /// # Errors
    /// `BadLayout`, `Corrupt` and the like, `Io`: the cut can be repeated.
    pub fn trim(&self, id: SubfileId, spec: &SubfileSpec<'_>, epoch: u32, len_max: u64) -> StoreResult<()> {
        let place = self.place(id)?;
        let room = &*self.room(id)?;
        let mut state = place.state.write();
        let opened = match self.opened(id, &mut state) {
            // A missing subfile has nothing to keep.
            Err(StoreError::LostSubfile { .. }) if len_max == 0 => None,
            opened => opened?,
        };
        match opened {
            None => {
                // Beyond the limit too: truncation is how space is freed.
                room.correct(0, SUBFILE_HEADER_LEN);
                self.make(id, spec, epoch, &mut state)
            }
            // A retransmitted truncation, or one that a later one has overtaken.
            Some(open) if epoch <= open.epoch() => Ok(()),
            Some(open) => {
                // A subfile that is shorter than known would be extended by zeros instead.
                if len_max > 0 {
                    self.check_len(id, open)?;
                }
                // As the subfile is, not as the volume makes new ones: the setting may have changed since.
                let header = spec.header(id, self.formation, epoch, open.is_summed())?;
                self.end_holders(id, open)?;
                open.trim(room, &header, len_max).map_err(|error| self.io_error(id, "cut", error))?;
                self.note_written(id, open, &(len_max..u64::MAX));
                Ok(())
            }
        }
    }

    /// Removes a subfile; returns true if there was one.
    ///
    /// # Errors
    /// `NoVolume`, `Io`.
    pub fn remove(&self, id: SubfileId) -> StoreResult<bool> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        // One that is open has a sound header, and may have holders that must not write to a file without a name.
        if let Some(open) = state.as_mut() {
            self.end_holders(id, open)?;
            return self.discard(id, &mut state).map(|()| true);
        }
        let Some(file) = self.open_file(id)? else {
            // The file may be missing while its slot in the table stays: reads of it would be errors for ever.
            let forgotten = self.lent(id.volume)?.table.remove(id);
            return forgotten.map_err(|error| self.io_error(id, "note removal", error)).map(|_| false);
        };
        // A damaged header must not prevent removal, so the file is opened without a check, and must not stay open.
        let open = OpenSubfile::occupying(file).map_err(|error| self.io_error(id, "stat", error))?;
        self.discard(id, &mut Some(open)).map(|()| true)
    }

    /// Returns the length, bytes and place of a subfile.
    ///
    /// # Errors
    /// `NoVolume`, `Corrupt` and the like, `Io`.
    pub fn stat(&self, id: SubfileId) -> StoreResult<Option<SubfileStat>> {
        let place = self.place(id)?;
        let lent = self.lent(id.volume)?;
        let mut state = place.state.write();
        let Some(open) = self.opened(id, &mut state)? else { return Ok(None) };
        open.refresh(&*self.room(id)?);
        let path = lent.volume.path().join(names::name_of(id));
        let allocated = open.occupied().map_err(|error| self.io_error(id, "stat", error))?;
        let front = open.front().map_err(|error| self.io_error(id, "stat", error))?;
        let (len, data_at, epoch) = (open.len(), open.data_at(), open.epoch());
        Ok(Some(SubfileStat { len, allocated, front, data_at, epoch, path }))
    }

    /// Returns all subfiles of a volume, read from the volume itself. What is made or removed meanwhile may be in it or
    /// not.
    ///
    /// # Errors
    /// `NoVolume`, `Io`. A damaged subfile is an item with an error in it.
    pub fn list(&self, volume: u16) -> StoreResult<impl Iterator<Item = ListedSubfile>> {
        scan::SubfileWalk::begin(&*self.lent(volume)?.volume, volume, self.formation)
    }

    /// Returns the names of all subfiles of a volume, whatever is in them, and of those that are known not to be there
    /// any more.
    ///
    /// # Errors
    /// `NoVolume`, `Io`.
    pub fn list_ids(&self, volume: u16) -> StoreResult<impl Iterator<Item = SubfileId>> {
        let lent = self.lent(volume)?;
        Ok(scan::ids(&*lent.volume, volume)?.chain(lent.table.lost()))
    }

    /// Returns some subfiles of a volume behind `after`, in the order of directory, file and target, at least one if
    /// there are any; and true if they were the last. Subfiles that were made and are missing are `LostSubfile`.
    /// Otherwise as [`DataStore::list`].
    ///
    /// # Errors
    /// `NoVolume`, `Io`.
    pub fn list_page(
        &self,
        volume: u16,
        after: Option<SubfileId>,
        max: usize,
    ) -> StoreResult<(Vec<ListedSubfile>, bool)> {
        let lent = self.lent(volume)?;
        let is_lost = |id| self.is_lost(id).unwrap_or(false);
        let table = Some((&lent.table, &is_lost as &dyn Fn(SubfileId) -> bool));
        scan::page((&*lent.volume, volume, self.formation), table, after, max)
    }

    /// Returns whether a subfile was made and is not there any more.
    fn is_lost(&self, id: SubfileId) -> StoreResult<bool> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        Ok(matches!(self.opened(id, &mut state), Err(StoreError::LostSubfile { .. })))
    }

    /// Returns the state of all volumes, in order.
    #[must_use]
    pub fn usage(&self) -> Vec<VolumeUsage> {
        self.volumes.iter().map(LentVolume::usage).collect()
    }

    /// Returns a partition's share of a volume.
    ///
    /// # Errors
    /// `NoVolume`.
    pub fn part_usage(&self, volume: u16, partition: PartitionId) -> StoreResult<PartUsage> {
        self.lent(volume).map(|lent| lent.part_usage(partition))
    }

    /// Limits what a partition may take of a volume, in bytes; none is what the volume has. What it has taken, it
    /// keeps.
    ///
    /// # Errors
    /// `NoVolume`.
    pub fn limit_part(&self, volume: u16, partition: PartitionId, limit: Option<u64>) -> StoreResult<()> {
        self.lent(volume).map(|lent| lent.room_of(partition).set_limit(limit))
    }

    /// Returns the account that a subfile takes its bytes from.
    fn room(&self, id: SubfileId) -> StoreResult<Arc<SpaceAccount>> {
        self.lent(id.volume).map(|lent| lent.room_of(id.target.partition()))
    }

    /// Notes that whole blocks in this range of data are right now, or gone.
    fn note_written(&self, id: SubfileId, open: &OpenSubfile, data: &Range<u64>) {
        if open.is_summed() && self.damage.is_wrong(id) {
            self.damage.forget(id, data.start.div_ceil(SUM_BLOCK)..data.end / SUM_BLOCK);
        }
        self.damage.expect(id, open);
        self.sync_failures.rewritten(id, data);
    }

    /// Returns the end of a write to a subfile, if it can be there.
    fn end_of(&self, id: SubfileId, offset: u64, len: u64) -> StoreResult<u64> {
        let is_summed = self.lent(id.volume)?.sums;
        end_of(offset, len, if is_summed { SUMMED_DATA_AT } else { SUBFILE_HEADER_LEN })
    }

    fn lent(&self, index: u16) -> StoreResult<&LentVolume> {
        self.volumes.get(usize::from(index)).ok_or(StoreError::NoVolume { index })
    }
}

fn end_of(offset: u64, len: u64, data_at: u64) -> StoreResult<u64> {
    let max = FILE_SIZE_MAX - data_at;
    let end = offset.saturating_add(len);
    let what = "end of a write to a subfile";
    if end <= max { Ok(end) } else { Err(StoreError::TooLarge { what, len: end, max }) }
}

//! The subfiles of one node over its volumes. What a subfile is, and what its header says, is in
//! docs/format.md.

mod cache;
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
#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bivouac_types::limits::{FILE_SIZE_MAX, SUBFILE_HEADER_LEN};
use bivouac_types::{FormationId, NodeId, PartitionId};

pub use holders::{Access, Granted, Holder};
pub use lent::{PartUsage, VolumeConfig, VolumeUsage};
pub use offline::Subfiles;
pub use room::{Headroom, RecordsRoom};
pub use scan::ListedSubfile;
pub use space::SpaceChange;
pub use spec::{SubfileId, SubfileSpec, SubfileStat};

use self::cache::{Cache, Place};
use self::lent::Lent;
use self::room::Room;
use self::subfile::OpenSubfile;
use crate::{DirVolume, StoreError, StoreResult, Volume, VolumeFile, VolumeIdentity, VolumeKind};

/// Settings of a [`DataStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// Most subfiles that are kept open without being in use.
    pub handles_max: usize,
}

impl Default for DataOptions {
    fn default() -> DataOptions {
        DataOptions { handles_max: 4096 }
    }
}

/// The descriptor of a subfile, for a process that is to read and write it directly. While it lives, the
/// subfile stays open.
#[derive(Clone, Debug)]
pub struct LocalFile {
    file: Arc<dyn VolumeFile>,
    _place: Arc<Place>,
}

impl LocalFile {
    /// The descriptor; `None` on a volume in memory.
    #[must_use]
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }

    /// Where data begins in the file, in bytes.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        SUBFILE_HEADER_LEN
    }
}

/// The subfiles of one node. Operations on one subfile are atomic against each other: a read sees all or
/// nothing of a write.
///
/// Locks are taken in this order: a subfile's, then the cache's.
#[derive(Debug)]
pub struct DataStore {
    volumes: Vec<Lent>,
    formation: FormationId,
    cache: Cache,
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
        let open = |(index, config): (u16, &VolumeConfig)| {
            let identity = VolumeIdentity { formation, node, index };
            let volume = DirVolume::open(&config.path, identity, config.create)?;
            Ok((Arc::new(volume) as Arc<dyn Volume>, config.capacity))
        };
        let opened: StoreResult<Vec<_>> = (0..=u16::MAX).zip(volumes).map(open).collect();
        DataStore::with_volumes(opened?, formation, options)
    }

    /// A store on volumes that are open, each with its capacity in bytes (0: what is there).
    ///
    /// # Errors
    /// `Io`.
    pub fn with_volumes(
        volumes: Vec<(Arc<dyn Volume>, u64)>,
        formation: FormationId,
        options: &DataOptions,
    ) -> StoreResult<DataStore> {
        let volumes: Vec<Lent> =
            volumes.into_iter().map(|(volume, capacity)| Lent::new(volume, capacity)).collect();
        volumes.iter().try_for_each(scan::take_stock)?;
        Ok(DataStore { volumes, formation, cache: Cache::new(options.handles_max) })
    }

    /// A volume, for the records that are kept on it.
    ///
    /// # Errors
    /// `NoVolume`.
    pub fn volume(&self, index: u16) -> StoreResult<Arc<dyn Volume>> {
        self.lent(index).map(|lent| lent.volume.clone())
    }

    /// From now on volumes in memory take no more than is left of that.
    pub fn share_memory(&self, headroom: &Arc<dyn Headroom>) {
        let in_memory = self.volumes.iter().filter(|lent| lent.volume.kind() == VolumeKind::Memory);
        in_memory.for_each(|lent| lent.room.share(headroom));
    }

    /// The part of a volume's capacity that records kept on it take.
    ///
    /// # Errors
    /// `NoVolume`.
    pub fn records_room(&self, index: u16) -> StoreResult<RecordsRoom> {
        let lent = self.lent(index)?;
        Ok(RecordsRoom { room: lent.room.clone(), path: lent.volume.path().to_owned() })
    }

    /// Reads from `offset` of the data on; returns the number of bytes, less than wanted only at the end of the
    /// subfile, and the subfile's epoch; both 0 if there is none. Holes are zeros. The slices may be advanced.
    ///
    /// # Errors
    /// `NoVolume`, `Corrupt` and the like for a damaged header, `Io`.
    pub fn read(&self, id: SubfileId, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> StoreResult<(usize, u32)> {
        if offset > FILE_SIZE_MAX - SUBFILE_HEADER_LEN {
            return Ok((0, 0));
        }
        let place = self.place(id)?;
        let read = |open: &OpenSubfile, bufs: &mut [IoSliceMut<'_>]| {
            let read = open.read(offset, bufs).map_err(|error| self.io_error(id, "read", error))?;
            Ok((read, open.epoch()))
        };
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

    /// Has `send` do something with the descriptor of a subfile, and the offset in it, of this range of data, if the subfile is
    /// open, has all of it, and is of an epoch that is not above `epoch`. Nobody writes to it meanwhile. What `send` says,
    /// or `false`.
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
            !open.holders.may_write() && open.epoch() <= epoch && range.end <= open.len()
        };
        let Some(open) = state.as_ref().filter(there) else { return Ok(false) };
        Ok(open.file().as_fd().is_some_and(|file| send(file, SUBFILE_HEADER_LEN + range.start)))
    }

    /// Writes at `offset` of the data, making the subfile if there is none; returns the subfile's epoch.
    ///
    /// # Errors
    /// `StaleEpoch` if `epoch` is below the subfile's; `NoSpace` if it does not fit, `TooLarge`, `BadLayout`: nothing is
    /// written. `Io`: what was there may be overwritten in part, but the length is as before.
    pub fn write(
        &self,
        id: SubfileId,
        spec: &SubfileSpec<'_>,
        epoch: u32,
        offset: u64,
        bufs: &[IoSlice<'_>],
    ) -> StoreResult<u32> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let end = end_of(offset, len as u64)?;
        if len == 0 {
            return Ok(epoch);
        }
        let place = self.place(id)?;
        let room = &*self.room(id)?;
        let mut state = place.state.write();
        let made = self.opened(id, &mut state)?.is_none();
        if made {
            self.reserve_new(id, offset, end)?;
            self.make(id, spec, epoch, &mut state)?;
        }
        let Some(open) = state.as_mut() else { return Ok(epoch) };
        if epoch < open.epoch() {
            return Err(StoreError::StaleEpoch { current: open.epoch() });
        }
        self.interrupt(id, open)?;
        let written = open.write(room, offset, bufs, end);
        let epoch = open.epoch();
        if made && written.is_err() {
            // What cannot be removed is an empty subfile, which does no harm.
            let _ = self.discard(id, &mut state);
        }
        written.map(|()| epoch).map_err(|error| self.write_error(id, error))
    }

    /// Cuts the data to at most `len_max` bytes and refuses writes of older epochs from now on; makes a
    /// subfile without data if there is none, whatever the capacity. An epoch that is not above the subfile's
    /// changes nothing.
    ///
    /// # Errors
    /// `BadLayout`, `Corrupt` and the like, `Io`: the cut can be repeated.
    pub fn trim(&self, id: SubfileId, spec: &SubfileSpec<'_>, epoch: u32, len_max: u64) -> StoreResult<()> {
        let place = self.place(id)?;
        let room = &*self.room(id)?;
        let mut state = place.state.write();
        match self.opened(id, &mut state)? {
            None => {
                // Beyond the limit too: a file must be cut to make room.
                room.correct(0, SUBFILE_HEADER_LEN);
                self.make(id, spec, epoch, &mut state)
            }
            Some(open) if epoch <= open.epoch() => Ok(()),
            Some(open) => {
                let header = spec.header(id, self.formation, epoch)?;
                self.end_holders(id, open)?;
                open.trim(room, &header, len_max).map_err(|error| self.io_error(id, "cut", error))
            }
        }
    }

    /// Removes a subfile; whether there was one.
    ///
    /// # Errors
    /// `NoVolume`, `Io`.
    pub fn remove(&self, id: SubfileId) -> StoreResult<bool> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        if let Some(open) = state.as_mut() {
            self.end_holders(id, open)?;
            return self.discard(id, &mut state).map(|()| true);
        }
        let Some(file) = self.open_file(id)? else { return Ok(false) };
        // Its header need not be sound for it to be removed; so what is opened here must not stay open.
        let open = OpenSubfile::existing(file, 0).map_err(|error| self.io_error(id, "stat", error))?;
        self.discard(id, &mut Some(open)).map(|()| true)
    }

    /// Length, bytes and place of a subfile.
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
        Ok(Some(SubfileStat { len: open.len(), allocated, epoch: open.epoch(), path }))
    }

    /// Makes a subfile's bytes outlive the host, as far as its volume does. One that is not there needs nothing.
    ///
    /// # Errors
    /// `NoVolume`, `Corrupt` and the like, `Io`.
    pub fn sync(&self, id: SubfileId) -> StoreResult<()> {
        let place = self.place(id)?;
        let file = self.opened(id, &mut place.state.write())?.map(|open| open.file().clone());
        let Some(file) = file else { return Ok(()) };
        let volume = &self.lent(id.volume)?.volume;
        let synced = file.sync().and_then(|()| volume.sync_dir(&names::dir_of(id)));
        synced.map_err(|error| self.io_error(id, "sync", error))
    }

    /// All subfiles of a volume, read from the volume itself. What is made or removed meanwhile may be in it or not.
    ///
    /// # Errors
    /// `NoVolume`, `Io`. A damaged subfile is an item with an error in it.
    pub fn list(&self, volume: u16) -> StoreResult<impl Iterator<Item = ListedSubfile>> {
        scan::Walk::begin(&*self.lent(volume)?.volume, volume, self.formation)
    }

    /// The names of all subfiles of a volume, whatever is in them.
    ///
    /// # Errors
    /// `NoVolume`, `Io`.
    pub fn list_ids(&self, volume: u16) -> StoreResult<impl Iterator<Item = SubfileId>> {
        scan::ids(&*self.lent(volume)?.volume, volume)
    }

    /// Some subfiles of a volume behind `after`, in the order of directory, file and seat, at least one if there are
    /// any; and whether they were the last. As [`DataStore::list`] otherwise.
    ///
    /// # Errors
    /// `NoVolume`, `Io`.
    pub fn list_page(
        &self,
        volume: u16,
        after: Option<SubfileId>,
        max: usize,
    ) -> StoreResult<(Vec<ListedSubfile>, bool)> {
        scan::page(&*self.lent(volume)?.volume, volume, self.formation, after, max)
    }

    /// State of all volumes, in order.
    #[must_use]
    pub fn usage(&self) -> Vec<VolumeUsage> {
        self.volumes.iter().map(Lent::usage).collect()
    }

    /// What a partition has of a volume.
    ///
    /// # Errors
    /// `NoVolume`.
    pub fn part_usage(&self, volume: u16, partition: PartitionId) -> StoreResult<PartUsage> {
        self.lent(volume).map(|lent| lent.part_usage(partition))
    }

    /// Limits what a partition may take of a volume, in bytes; none is what the volume has. What it has taken, it keeps.
    ///
    /// # Errors
    /// `NoVolume`.
    pub fn limit_part(&self, volume: u16, partition: PartitionId, limit: Option<u64>) -> StoreResult<()> {
        self.lent(volume).map(|lent| lent.room_of(partition).set_limit(limit))
    }

    /// What a subfile takes its bytes from.
    fn room(&self, id: SubfileId) -> StoreResult<Arc<Room>> {
        self.lent(id.volume).map(|lent| lent.room_of(id.seat.partition()))
    }

    fn lent(&self, index: u16) -> StoreResult<&Lent> {
        self.volumes.get(usize::from(index)).ok_or(StoreError::NoVolume { index })
    }
}

fn end_of(offset: u64, len: u64) -> StoreResult<u64> {
    let max = FILE_SIZE_MAX - SUBFILE_HEADER_LEN;
    let end = offset.saturating_add(len);
    let what = "end of a write to a subfile";
    if end <= max { Ok(end) } else { Err(StoreError::TooLarge { what, len: end, max }) }
}

//! The open files of a mount. A file handle is a slot's number and generation, so that a handle of
//! the past never closes the file of the present.

use bivouac_ranks::{Mutex, rank};
use bivouac_types::{Errno, FsError, FsResult, Ino};
use rustix::fs::OFlags;

use crate::state::{MountState, SLOTS_MAX, Slot, StateError};

/// Value of `fh` towards the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub u64);

impl Handle {
    fn new(index: u32, generation: u32) -> Handle {
        Handle(u64::from(generation) << 32 | u64::from(index))
    }

    fn index(self) -> u32 {
        self.0 as u32
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Open files, in memory and in the state.
#[derive(Debug)]
pub struct Opens {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Per slot: the count of [`Opens::may_have_gained_set_id`] up to which the file is known to
    /// have no set-id bits.
    clean_until: Vec<u64>,
    set_id_changes: u64,
}

impl Opens {
    /// Takes up the open files of an earlier incarnation.
    ///
    /// # Errors
    /// When the state makes no sense.
    pub fn load(state: &MountState) -> Result<Opens, StateError> {
        let slots = state.read_slots()?;
        let free = (0..).zip(&slots).filter(|(_, slot)| !slot.in_use).map(|(index, _)| index).collect();
        let clean_until = vec![0; slots.len()];
        Ok(Opens { table: Mutex::new(rank::LEAF, Table { slots, free, clean_until, set_id_changes: 1 }) })
    }

    /// Notes an open file, in the state too, before the kernel learns of it.
    ///
    /// # Errors
    /// `EMFILE` when the table is full, `EIO` when the state cannot be written.
    pub fn insert(
        &self,
        state: &MountState,
        ino: Ino,
        flags: u32,
        opener: u64,
        set_id: bool,
    ) -> FsResult<Handle> {
        let (index, slot) = self.table.lock().take_free(ino, flags, opener, set_id)?;
        match state.write_slot(index, &slot) {
            Ok(()) => Ok(Handle::new(index, slot.generation)),
            Err(error) => {
                self.table.lock().free_again(index);
                Err(FsError::from_io(&error, "state of the mount"))
            }
        }
    }

    /// Returns the handle that the request with this number got from an earlier incarnation.
    #[must_use]
    pub fn opened_by(&self, opener: u64, ino: Ino) -> Option<Handle> {
        let table = self.table.lock();
        // All of them are looked through: only what is sent again after a kill comes by here.
        let mut slots = (0..).zip(&table.slots);
        let found = slots.find(|(_, slot)| slot.in_use && slot.opener == opener && slot.ino == ino.0);
        found.map(|(index, slot)| Handle::new(index, slot.generation))
    }

    /// Forgets an open file; returns its inode and flags. `None` for a handle that is not open.
    ///
    /// # Errors
    /// `EIO` when the state cannot be written.
    pub fn remove(&self, state: &MountState, handle: Handle) -> FsResult<Option<(Ino, u32)>> {
        // The slot is closed here and is free below: in between nobody finds it, neither as open nor as free.
        let Some(slot) = self.table.lock().close(handle) else { return Ok(None) };
        // Before the slot is free: the record of another open in it must not be overwritten by this one.
        let written = state.write_slot(handle.index(), &Slot { in_use: false, ..slot });
        self.table.lock().free.push(handle.index());
        written.map_err(|error| FsError::from_io(&error, "state of the mount"))?;
        Ok(Some((Ino(slot.ino), slot.flags)))
    }

    /// Returns the number of opens of each inode, by what the flags say of changes: access mode and O_TRUNC.
    #[must_use]
    pub fn counts(&self) -> Vec<(Ino, u32, u32)> {
        let access = |slot: &Slot| (Ino(slot.ino), slot.flags & OFlags::RWMODE.union(OFlags::TRUNC).bits());
        let mut opens: Vec<(Ino, u32)> =
            self.table.lock().slots.iter().filter(|slot| slot.in_use).map(access).collect();
        opens.sort_unstable();
        let count = |run: &[(Ino, u32)]| {
            let (ino, flags) = *run.first()?;
            Some((ino, flags, run.len() as u32))
        };
        opens.chunk_by(|a, b| a == b).filter_map(count).collect()
    }

    /// Returns, if the file may have set-id bits that a write must drop, the number to give to
    /// [`Opens::has_no_set_id`] once it has none.
    #[must_use]
    pub fn may_have_set_id(&self, handle: Handle) -> Option<u64> {
        let table = self.table.lock();
        let clean_until = table.clean_until.get(handle.index() as usize).copied().unwrap_or(0);
        (clean_until < table.set_id_changes).then_some(table.set_id_changes)
    }

    /// Notes that the file has no set-id bits, as of the given count of changes.
    pub fn has_no_set_id(&self, handle: Handle, as_of: u64) {
        if let Some(clean_until) = self.table.lock().clean_until.get_mut(handle.index() as usize) {
            *clean_until = (*clean_until).max(as_of);
        }
    }

    /// Notes that some file got set-id bits.
    pub fn may_have_gained_set_id(&self) {
        self.table.lock().set_id_changes += 1;
    }
}

impl Table {
    fn take_free(&mut self, ino: Ino, flags: u32, opener: u64, set_id: bool) -> FsResult<(u32, Slot)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        // A new open knows of no bits up to now, whatever the one before it in this slot knew.
        let clean_until = if set_id { 0 } else { self.set_id_changes };
        let at = index as usize;
        assert_eq!(self.slots.len(), self.clean_until.len(), "each slot has its note about set-id bits");
        let (Some(slot), Some(clean)) = (self.slots.get_mut(at), self.clean_until.get_mut(at)) else {
            return Err(FsError::new(Errno::EIO));
        };
        assert!(!slot.in_use, "slot {index} is free and in use");
        *clean = clean_until;
        *slot = Slot { ino: ino.0, opener, flags, in_use: true, generation: slot.generation.wrapping_add(1) };
        Ok((index, *slot))
    }

    fn grow(&mut self) -> FsResult<u32> {
        let index = self.slots.len();
        if index >= SLOTS_MAX {
            return Err(FsError::with(Errno::EMFILE, format!("{SLOTS_MAX} files are open in this mount")));
        }
        self.slots.push(Slot::default());
        self.clean_until.push(0);
        Ok(index as u32)
    }

    fn close(&mut self, handle: Handle) -> Option<Slot> {
        let slot = self.slots.get_mut(handle.index() as usize)?;
        if !slot.in_use || slot.generation != handle.generation() {
            return None;
        }
        slot.in_use = false;
        Some(*slot)
    }

    fn free_again(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            assert!(slot.in_use, "slot {index} is given back twice");
            slot.in_use = false;
        }
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::create_state;
    use std::fs::File;

    fn fresh() -> (File, MountState, Opens) {
        let file = File::from(create_state().unwrap());
        let state = MountState::open(file.try_clone().unwrap(), 1).unwrap();
        let opens = Opens::load(&state).unwrap();
        (file, state, opens)
    }

    #[test]
    fn a_handle_of_the_past_closes_nothing() {
        let (_, state, opens) = fresh();
        let old = opens.insert(&state, Ino(50), 0, 2, false).unwrap();
        assert_eq!(opens.remove(&state, old), Ok(Some((Ino(50), 0))));
        let new = opens.insert(&state, Ino(60), 0, 4, false).unwrap();
        assert_eq!(old.index(), new.index());
        assert_eq!(opens.remove(&state, old), Ok(None));
        assert_eq!(opens.remove(&state, Handle(u64::MAX)), Ok(None));
        assert_eq!(opens.remove(&state, new), Ok(Some((Ino(60), 0))));
    }

    #[test]
    fn the_next_incarnation_knows_what_is_open() {
        let (file, state, opens) = fresh();
        let first = opens.insert(&state, Ino(50), 2, 2, false).unwrap();
        let second = opens.insert(&state, Ino(60), 0, 4, false).unwrap();
        opens.insert(&state, Ino(50), 0, 6, false).unwrap();
        opens.insert(&state, Ino(50), OFlags::APPEND.bits(), 12, false).unwrap();
        assert_eq!(opens.remove(&state, second), Ok(Some((Ino(60), 0))));
        let state = MountState::open(file, 1).unwrap();
        let resumed = Opens::load(&state).unwrap();
        assert_eq!(resumed.counts(), [(Ino(50), 0, 2), (Ino(50), 2, 1)]);
        assert_eq!((resumed.opened_by(2, Ino(50)), resumed.opened_by(4, Ino(60))), (Some(first), None));
        assert_eq!(resumed.insert(&state, Ino(70), 0, 8, false).unwrap().index(), second.index());
        assert_eq!(resumed.insert(&state, Ino(70), 0, 10, false).unwrap().index(), 4);
    }

    #[test]
    fn a_truncation_at_the_open_counts_as_writing() {
        let (_, state, opens) = fresh();
        let truncating = (OFlags::RDONLY | OFlags::TRUNC | OFlags::NOFOLLOW).bits();
        opens.insert(&state, Ino(50), truncating, 2, false).unwrap();
        assert_eq!(opens.counts(), [(Ino(50), OFlags::TRUNC.bits(), 1)]);
    }

    #[test]
    fn set_id_bits_are_asked_for_once() {
        let (_, state, opens) = fresh();
        let plain = opens.insert(&state, Ino(50), 0, 2, false).unwrap();
        let set_id = opens.insert(&state, Ino(60), 0, 4, true).unwrap();
        assert_eq!(opens.may_have_set_id(plain), None);
        let as_of = opens.may_have_set_id(set_id).unwrap();
        opens.has_no_set_id(set_id, as_of);
        assert_eq!(opens.may_have_set_id(set_id), None);
        opens.may_have_gained_set_id();
        assert!(opens.may_have_set_id(plain).is_some() && opens.may_have_set_id(set_id).is_some());
    }
}

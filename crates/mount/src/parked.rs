//! Requests that wait without a thread, noted in the state of the mount for kernels that cannot send unanswered
//! requests again: the next incarnation fails them, as it does those that threads were serving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_ranks::{Mutex, rank};
use bivouac_types::{Errno, FsError, FsResult};

use crate::state::{PARKED_MAX, ParkedRecords};

/// The places for such notes.
#[derive(Debug)]
pub struct Parked {
    notes: ParkedRecords,
    free: Mutex<Vec<u16>>,
    /// Notes stay when their places are dropped: the device has failed.
    keeps: AtomicBool,
}

/// A note; dropping it takes it away, see [`Parked::keep`].
#[derive(Debug)]
pub struct ParkedNote {
    parked: Arc<Parked>,
    index: u16,
}

impl Parked {
    /// Creates the table, all of whose places are free.
    #[must_use]
    pub fn new(notes: ParkedRecords) -> Parked {
        Parked {
            notes,
            free: Mutex::new(rank::LEAF, (0..PARKED_MAX).rev().collect()),
            keeps: AtomicBool::new(false),
        }
    }

    /// Notes a request.
    ///
    /// # Errors
    /// `ENOLCK` when no place is free, `EIO` when the state cannot be written.
    pub fn park(self: &Arc<Self>, unique: u64) -> FsResult<ParkedNote> {
        let index = self.free.lock().pop().ok_or_else(|| {
            let text = format!("{PARKED_MAX} requests for locks wait, the most before Linux 6.9");
            FsError::with(Errno::ENOLCK, text)
        })?;
        let place = ParkedNote { parked: Arc::clone(self), index };
        // Behind the note's making, which gives the place back should this fail.
        let noted = self.notes.set(index, unique);
        noted.map_err(|error| FsError::from_io(&error, "state of the mount"))?;
        Ok(place)
    }

    /// Keeps what is noted now, since the device has failed: it stays, whatever becomes of the places. Requests that
    /// are given up unanswered are left to the next incarnation; that the kernel is answered a second time does no
    /// harm.
    pub fn keep(&self) {
        self.keeps.store(true, Ordering::Release);
    }
}

impl Drop for ParkedNote {
    fn drop(&mut self) {
        if self.parked.keeps.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = self.parked.notes.set(self.index, 0) {
            log::warn!(why:% = error; "the state of the mount cannot be written");
        }
        self.parked.free.lock().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{MountState, create_state};
    use std::fs::File;

    #[test]
    fn what_is_parked_is_known_to_the_next_incarnation() {
        let file = File::from(create_state().unwrap());
        let state = MountState::open(file.try_clone().unwrap(), 1).unwrap();
        let parked = Arc::new(Parked::new(state.notes().unwrap()));
        state.set_in_flight(3, 40).unwrap();
        let places: Vec<ParkedNote> = [2, 4, 6].map(|unique| parked.park(unique).unwrap()).into();
        places.into_iter().skip(1).for_each(std::mem::forget);
        let state = MountState::open(file, 1).unwrap();
        assert_eq!(state.take_in_flight().unwrap(), [40, 4, 6]);
        assert!(state.take_in_flight().unwrap().is_empty());
        assert!(state.read_slots().unwrap().is_empty());
    }

    #[test]
    fn what_is_given_up_after_the_device_has_failed_is_known_to_the_next_incarnation() {
        let state = MountState::open(File::from(create_state().unwrap()), 1).unwrap();
        let parked = Arc::new(Parked::new(state.notes().unwrap()));
        let [answered, given_up] = [2, 4].map(|unique| parked.park(unique).unwrap());
        drop(answered);
        parked.keep();
        drop(given_up);
        assert_eq!(state.take_in_flight().unwrap(), [4]);
    }

    #[test]
    fn there_are_so_many_places_and_no_more() {
        let state = MountState::open(File::from(create_state().unwrap()), 1).unwrap();
        let parked = Arc::new(Parked::new(state.notes().unwrap()));
        let places: Vec<ParkedNote> =
            (0..u64::from(PARKED_MAX)).map(|unique| parked.park(unique).unwrap()).collect();
        assert_eq!(parked.park(9).unwrap_err().errno(), Errno::ENOLCK);
        drop(places);
        assert!(parked.park(9).is_ok());
    }
}

//! Requests that wait without a thread, noted in the state of the mount for kernels that cannot send unanswered
//! requests again: the next incarnation fails them, as it does those that threads were serving.

use std::sync::Arc;

use bivouac_ranks::{Mutex, rank};
use bivouac_types::{Errno, FsError, FsResult};

use crate::state::{Notes, PARKED_MAX};

/// The places for such notes.
#[derive(Debug)]
pub struct Parked {
    notes: Notes,
    free: Mutex<Vec<u16>>,
}

/// A note; dropping it takes it away.
#[derive(Debug)]
pub struct Place {
    parked: Arc<Parked>,
    index: u16,
}

impl Parked {
    /// All places are free.
    #[must_use]
    pub fn new(notes: Notes) -> Parked {
        Parked { notes, free: Mutex::new(rank::LEAF, (0..PARKED_MAX).rev().collect()) }
    }

    /// Notes a request.
    ///
    /// # Errors
    /// `ENOLCK` when no place is free, `EIO` when the state cannot be written.
    pub fn park(self: &Arc<Self>, unique: u64) -> FsResult<Place> {
        let index = self.free.lock().pop().ok_or_else(|| {
            let text = format!("{PARKED_MAX} requests for locks wait, the most before Linux 6.9");
            FsError::with(Errno::ENOLCK, text)
        })?;
        let place = Place { parked: Arc::clone(self), index };
        let noted = self.notes.set(index, unique);
        noted.map_err(|error| FsError::from_io(&error, "state of the mount"))?;
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.parked.notes.set(self.index, 0) {
            log::warn!(why:% = error; "the state of the mount cannot be written");
        }
        self.parked.free.lock().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{State, create_state};
    use std::fs::File;

    #[test]
    fn what_is_parked_is_known_to_the_next_incarnation() {
        let file = File::from(create_state().unwrap());
        let state = State::open(file.try_clone().unwrap(), 1).unwrap();
        let parked = Arc::new(Parked::new(state.notes().unwrap()));
        state.set_in_flight(3, 40).unwrap();
        let places: Vec<Place> = [2, 4, 6].map(|unique| parked.park(unique).unwrap()).into();
        places.into_iter().skip(1).for_each(std::mem::forget);
        let state = State::open(file, 1).unwrap();
        assert_eq!(state.take_in_flight().unwrap(), [40, 4, 6]);
        assert!(state.take_in_flight().unwrap().is_empty());
        assert!(state.read_slots().unwrap().is_empty());
    }

    #[test]
    fn there_are_so_many_places_and_no_more() {
        let state = State::open(File::from(create_state().unwrap()), 1).unwrap();
        let parked = Arc::new(Parked::new(state.notes().unwrap()));
        let places: Vec<Place> =
            (0..u64::from(PARKED_MAX)).map(|unique| parked.park(unique).unwrap()).collect();
        assert_eq!(parked.park(9).unwrap_err().errno(), Errno::ENOLCK);
        drop(places);
        assert!(parked.park(9).is_ok());
    }
}

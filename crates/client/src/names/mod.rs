//! What this client knows of names and does not have to ask for, and making names and removing them with that in mind.

pub mod entries;
pub mod glimpse;
pub mod whole;

use std::sync::Arc;

use bivouac_types::SeatIndex;

use crate::homes::Homes;
use crate::room::Room;
use crate::ways::Ways;
use entries::EntryCache;
use glimpse::Glimpses;
use whole::WholeDirs;

/// What is known of names.
pub struct Names {
    ways: Arc<Ways>,
    homes: Arc<Homes>,
    pub room: Room,
    /// Seats of the near node.
    near: Vec<SeatIndex>,
    pub whole: WholeDirs,
    pub glimpses: Glimpses,
    /// In a process that is no node.
    pub entries: Option<EntryCache>,
}

impl Names {
    pub fn new(
        ways: Arc<Ways>,
        homes: Arc<Homes>,
        room: Room,
        near: Vec<SeatIndex>,
        entries: Option<EntryCache>,
    ) -> Names {
        let (whole, glimpses) = Default::default();
        Names { ways, homes, room, near, whole, glimpses, entries }
    }

    /// A seat of the near node; files take turns.
    pub fn near_seat(&self) -> Option<SeatIndex> {
        let turn = self.ways.asked() as usize;
        self.near.get(turn.checked_rem(self.near.len())?).copied()
    }
}

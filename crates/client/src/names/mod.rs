//! Names that need not be asked for, and changes of names that keep this up to date.

pub mod entries;
pub mod spread_dir_cache;
pub mod whole;

use std::sync::Arc;

use bivouac_types::TargetIndex;

use crate::connections::Connections;
use crate::homes::Homes;
use crate::space_reclaimer::SpaceReclaimer;
use entries::EntryCache;
use spread_dir_cache::SpreadDirCache;
use whole::WholeDirs;

/// Known names.
pub struct Names {
    connections: Arc<Connections>,
    homes: Arc<Homes>,
    pub reclaimer: SpaceReclaimer,
    /// Targets of the nearest node.
    near: Vec<TargetIndex>,
    pub whole: WholeDirs,
    pub spread_dirs: SpreadDirCache,
    /// In a process that is not a node.
    pub entries: Option<EntryCache>,
}

impl Names {
    pub fn new(
        connections: Arc<Connections>,
        homes: Arc<Homes>,
        reclaimer: SpaceReclaimer,
        near: Vec<TargetIndex>,
        entries: Option<EntryCache>,
    ) -> Names {
        let (whole, spread_dirs) = Default::default();
        Names { connections, homes, reclaimer, near, whole, spread_dirs, entries }
    }

    /// Returns a target of the near node; files take turns.
    pub fn near_target(&self) -> Option<TargetIndex> {
        // The number of requests so far is a turn that costs no counter.
        let turn = self.connections.asked() as usize;
        self.near.get(turn.checked_rem(self.near.len())?).copied()
    }
}

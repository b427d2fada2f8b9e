//! Shards of spread directories: those of this node, and what it knows of the shards of directories whose home it is.
//! How the two follow each other: `gather.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bivouac_ranks::{Mutex, rank};
use bivouac_types::{Ino, NodeId, Slot};
use bivouac_wire::{FormationMap, ShardState};

/// Returns the slot of the record of a directory's shard on the node that has the slots `own`: the same one always,
/// another one for other directories, so that they do not wait for each other.
#[must_use]
pub fn shard_slot(own: &[Slot], dir: Ino) -> Slot {
    let number = (dir.0 ^ dir.0 >> 32) as usize;
    own.get(number % own.len().max(1)).copied().unwrap_or(Slot(0))
}

/// The shards of this node: where they are counted, and whose homes know that they are ahead.
pub struct Shards {
    /// This node's slots.
    own: Vec<Slot>,
    told: Mutex<ReportedDirs>,
}

/// Directories whose homes know that this node has changed its shard.
#[derive(Default)]
struct ReportedDirs {
    /// Directories whose home was told: `None`; is being told: which time.
    dirs: HashMap<Ino, Option<u64>>,
    times: u64,
}

impl Shards {
    pub fn new(own: Vec<Slot>) -> Shards {
        Shards { own, told: Mutex::default() }
    }

    /// Returns the slot of the record of a directory's shard.
    pub fn slot_of(&self, dir: Ino) -> Slot {
        shard_slot(&self.own, dir)
    }

    /// Begins a report to the home, if one is due. Returns its number.
    pub fn begin(&self, dir: Ino) -> Option<u64> {
        let mut told = self.told.lock();
        if told.dirs.get(&dir) == Some(&None) {
            return None;
        }
        told.times += 1;
        let time = told.times;
        // Also over an earlier one that is under way, which then does not count as told when it ends.
        told.dirs.insert(dir, Some(time));
        Some(time)
    }

    /// Notes that the home was told, unless it has asked since.
    pub fn end(&self, dir: Ino, time: u64) {
        let mut told = self.told.lock();
        assert!(time <= told.times, "report {time} of directory {dir} ends, and {} were begun", told.times);
        if let Some(state) = told.dirs.get_mut(&dir)
            && *state == Some(time)
        {
            *state = None;
        }
    }

    /// Notes that the home has asked: the next change is told.
    pub fn asked(&self, dir: Ino) {
        self.told.lock().dirs.remove(&dir);
    }
}

/// State of the shards of all directories whose home this node is.
pub struct GatheredShards {
    dirs: Mutex<HashMap<Ino, Arc<Gather>>>,
    /// The nodes that have shards: all that have slots.
    pub nodes: Vec<NodeId>,
}

/// The questions to the shards of one directory, and what they said.
pub struct Gather {
    /// Rounds of questions so far, the one under way included.
    pub begun: AtomicU64,
    /// The last round that has ended; held while shards are asked.
    pub turn: Mutex<u64>,
    pub known: Mutex<KnownShards>,
}

/// State of the shards of one directory at its home.
pub struct KnownShards {
    /// Shards that are ahead of what is known.
    pub dirty: BTreeSet<NodeId>,
    pub shards: BTreeMap<NodeId, ShardState>,
}

impl GatheredShards {
    pub fn new(map: &FormationMap) -> GatheredShards {
        let nodes: BTreeSet<NodeId> = map.slots.iter().copied().collect();
        GatheredShards { dirs: Mutex::default(), nodes: nodes.into_iter().collect() }
    }

    /// Returns what is known of a directory's shards. If none was asked for since the start, all of them are dirty.
    pub fn of(&self, dir: Ino) -> Arc<Gather> {
        let new = || {
            let known = KnownShards { dirty: self.nodes.iter().copied().collect(), shards: BTreeMap::new() };
            Arc::new(Gather {
                begun: AtomicU64::new(0),
                turn: Mutex::new(rank::GATHER_TURN, 0),
                known: Mutex::new(rank::LEAF, known),
            })
        };
        // All dirty at first: the shards' reports to an earlier daemon are not known here.
        Arc::clone(self.dirs.lock().entry(dir).or_insert_with(new))
    }

    /// Notes that a shard is ahead of what the home knows.
    pub fn is_ahead(&self, dir: Ino, node: NodeId) {
        self.of(dir).known.lock().dirty.insert(node);
    }

    /// Forgets a directory that is gone.
    pub fn forget(&self, dir: Ino) {
        self.dirs.lock().remove(&dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_after_a_question_is_told() {
        let (shards, dir) = (Shards::new(vec![Slot(3), Slot(9)]), Ino(77));
        let time = shards.begin(dir).unwrap();
        shards.end(dir, time);
        assert_eq!(shards.begin(dir), None, "told");
        shards.asked(dir);
        assert!(shards.begin(dir).is_some());
    }

    #[test]
    fn who_meets_a_telling_under_way_tells_too() {
        let (shards, dir) = (Shards::new(vec![Slot(0)]), Ino(77));
        let first = shards.begin(dir).unwrap();
        let second = shards.begin(dir).unwrap();
        assert!(second > first);
        shards.end(dir, first);
        assert!(shards.begin(dir).is_some(), "the second is still under way");
    }

    #[test]
    fn a_telling_that_was_overtaken_by_a_question_does_not_count() {
        let (shards, dir) = (Shards::new(vec![Slot(0)]), Ino(77));
        let time = shards.begin(dir).unwrap();
        shards.asked(dir);
        shards.end(dir, time);
        assert!(shards.begin(dir).is_some());
    }
}

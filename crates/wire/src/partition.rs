//! Partitions as nodes and clients know them.

use std::collections::HashMap;
use std::sync::Arc;

use bivouac_types::limits::{PARTITION_TEXT_MAX, TARGETS_MAX};
use bivouac_types::{Ino, Layout, PartitionId, PartitionSettings, TargetIndex};

use crate::{Decode, DecodeError, Encode, FormationMap, Reader, TargetEntry};

/// Stage of a partition's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionState {
    /// Its directory does not belong to it yet.
    Making,
    /// In use.
    Live,
    /// Removed, or never completed. Its targets stay known, as remains of its files may exist.
    Removed,
}

/// A partition. Its number, directory and targets never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number.
    pub id: PartitionId,
    /// Raised by every change of its settings.
    pub version: u32,
    /// Its stage.
    pub state: PartitionState,
    /// The directory that is its root.
    pub dir: Ino,
    /// The partition that the directory was in.
    pub outer: PartitionId,
    /// Its targets in their order, as targets of the root partition.
    pub targets: Vec<TargetIndex>,
    /// Its settings.
    pub settings: PartitionSettings,
}

impl Partition {
    /// Checks that it can be in a formation with this map.
    ///
    /// # Errors
    /// A sentence that names the target or setting, and what is allowed.
    pub fn check(&self, map: &FormationMap) -> Result<(), String> {
        let (targets, all) = (&self.targets, map.target_count());
        if targets.is_empty() || targets.len() > TARGETS_MAX {
            return Err(format!("a partition has 1 to {TARGETS_MAX} targets, not {}", targets.len()));
        }
        if let Some(alien) = targets.iter().find(|target| map.target(**target).is_none()) {
            return Err(format!("target {alien} is not among the {all} of the formation"));
        }
        let mut sorted = targets.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("target {} is named twice", twice[0]));
        }
        if usize::from(self.settings.width) > targets.len() {
            return Err(format!("width {} is more than its {} targets", self.settings.width, targets.len()));
        }
        match self.settings.to_string().len() {
            len if len > PARTITION_TEXT_MAX => {
                Err(format!("its settings have {len} bytes, more than {PARTITION_TEXT_MAX}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of its targets.
    #[must_use]
    pub fn target_count(&self) -> u16 {
        self.targets.len() as u16
    }

    /// Returns the layout of new files, unless their directory has another one.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let targets = self.target_count();
        let width = if self.settings.width == 0 { targets } else { self.settings.width };
        Layout { stripe: self.settings.stripe, width, base: TargetIndex::new(self.id, 0), targets }
    }

    /// Returns its targets with their nodes and volumes, without those that the map lacks.
    #[must_use]
    pub fn places(&self, map: &FormationMap) -> Vec<TargetEntry> {
        self.targets.iter().filter_map(|target| map.target(*target)).collect()
    }

    /// Returns the limit of its bytes on one target: an even part of its capacity.
    #[must_use]
    pub fn target_capacity(&self) -> Option<u64> {
        // Each node enforces its part alone: sharing what is left would cost a message per growing write.
        self.settings.capacity.map(|bytes| bytes.div_ceil(self.targets.len().max(1) as u64))
    }
}

/// Partitions by number, for finding out where their targets are.
#[derive(Clone, Debug, Default)]
pub struct PartitionTable {
    known: HashMap<PartitionId, (Arc<Partition>, Arc<[TargetEntry]>)>,
}

impl PartitionTable {
    /// Takes in what is known of a partition, unless more is known already. Whether it was news.
    pub fn learn(&mut self, map: &FormationMap, partition: Partition) -> bool {
        // Messages come in any order, and twice: what is older, or less far, than what is known changes nothing.
        let rank = |known: &Partition| (known.version, known.state as u8);
        let id = partition.id;
        if self.known.get(&id).is_some_and(|(known, _)| rank(known) >= rank(&partition)) {
            return false;
        }
        let places = partition.places(map).into();
        self.known.insert(id, (Arc::new(partition), places));
        true
    }

    /// Returns a partition.
    #[must_use]
    pub fn get(&self, id: PartitionId) -> Option<&Arc<Partition>> {
        self.known.get(&id).map(|(partition, _)| partition)
    }

    /// Returns the places of a partition's targets, in their order.
    #[must_use]
    pub fn places(&self, id: PartitionId) -> Option<&Arc<[TargetEntry]>> {
        self.known.get(&id).map(|(_, places)| places)
    }

    /// Returns the node and volume of a target; `None` if its partition is not known, or has no such target.
    #[must_use]
    pub fn target(&self, map: &FormationMap, target: TargetIndex) -> Option<TargetEntry> {
        match target.partition() {
            PartitionId::ROOT => map.target(target),
            id => self.places(id)?.get(usize::from(target.position())).copied(),
        }
    }

    /// Returns whether none is known besides the root partition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns all known partitions, by number.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Partition>> {
        let mut all: Vec<_> = self.known.values().map(|(partition, _)| Arc::clone(partition)).collect();
        all.sort_unstable_by_key(|partition| partition.id);
        all
    }
}

codec_enum!(PartitionState, "state of a partition" { Making = 0, Live = 1, Removed = 2 });

/// Encoded as text, so that a release with more settings can read it.
impl Encode for PartitionSettings {
    fn encode(&self, out: &mut Vec<u8>) {
        self.to_string().encode(out);
    }
}

impl Decode<'_> for PartitionSettings {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        String::decode(input)?.parse().map_err(|_| DecodeError::Invalid("settings of a partition"))
    }
}

crate::codec_struct!(Partition { id, version, state, dir, outer, targets, settings });

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{FormationId, NodeId};
    use proptest::prelude::*;

    fn map() -> FormationMap {
        let entry = |volume| TargetEntry { node: NodeId(volume), volume };
        FormationMap {
            version: 1,
            formation: FormationId([0; 16]),
            name: String::new(),
            slots: vec![NodeId(0)],
            nodes: Vec::new(),
            targets: (0..4).map(entry).collect(),
            stripe: 4096,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: Vec::new(),
        }
    }

    fn sample() -> Partition {
        let settings: PartitionSettings = "stripe=64k\nwidth=2\ncapacity=10\n".parse().unwrap();
        let (id, outer) = (PartitionId(3), PartitionId::ROOT);
        let targets = [2, 0, 3].map(TargetIndex).to_vec();
        Partition { id, version: 1, state: PartitionState::Live, dir: Ino(77), outer, targets, settings }
    }

    #[test]
    fn a_partition_travels_and_says_how_files_are_laid_out() {
        assert_eq!(Partition::from_bytes(&sample().to_bytes()), Ok(sample()));
        let layout = sample().layout();
        assert_eq!((layout.check(), layout.partition(), layout.width), (Ok(()), PartitionId(3), 2));
        assert_eq!((sample().check(&map()), sample().target_capacity()), (Ok(()), Some(4)));
    }

    #[test]
    fn a_partition_that_cannot_be_is_refused_by_name() {
        let refusal = |change: &dyn Fn(&mut Partition)| {
            let mut partition = sample();
            change(&mut partition);
            partition.check(&map()).unwrap_err()
        };
        assert!(refusal(&|p| p.targets.clear()).contains("not 0"));
        assert!(refusal(&|p| p.targets.push(TargetIndex(4))).contains("target 4 is not among the 4"));
        assert!(refusal(&|p| p.targets.push(TargetIndex(2))).contains("target 2 is named twice"));
        assert!(refusal(&|p| p.settings.width = 4).contains("width 4"));
    }

    #[test]
    fn targets_are_found_by_partition_and_position() {
        let (mut table, map) = (PartitionTable::default(), map());
        assert!(table.learn(&map, sample()));
        assert!(!table.learn(&map, sample()));
        let node = |target| table.target(&map, target).map(|entry| entry.node.0);
        let of = |position| TargetIndex::new(PartitionId(3), position);
        assert_eq!([0, 1, 2, 3].map(|position| node(of(position))), [Some(2), Some(0), Some(3), None]);
        assert_eq!((node(TargetIndex(1)), node(TargetIndex::new(PartitionId(4), 0))), (Some(1), None));
        let gone = Partition { state: PartitionState::Removed, ..sample() };
        assert!(table.learn(&map, gone) && !table.learn(&map, sample()));
        assert_eq!(table.get(PartitionId(3)).map(|p| p.state), Some(PartitionState::Removed));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Partition::from_bytes(&bytes);
        }
    }
}

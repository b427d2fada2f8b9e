//! Messages about partitions.

use bivouac_types::{Ino, Layout, PartitionId, PartitionSettings, Placement, TargetIndex};

use crate::Partition;

/// Change of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionChange {
    /// Make it, with an empty directory as its root.
    Make {
        /// The directory.
        dir: Ino,
        /// Its targets, as targets of the root partition.
        targets: Vec<TargetIndex>,
        /// Its settings.
        settings: PartitionSettings,
    },
    /// Change its settings; what cannot be changed stays.
    Set {
        /// The partition.
        id: PartitionId,
        /// Version of the settings that these are made from.
        version: u32,
        /// The settings.
        settings: PartitionSettings,
    },
    /// Remove it, after its directory.
    Remove {
        /// The partition.
        id: PartitionId,
    },
}

codec_enum!(PartitionChange, "change of a partition" {
    Make { dir, targets, settings } = 0,
    Set { id, version, settings } = 1,
    Remove { id } = 2,
});

owned! {
    /// Selection of partitions.
    ListPartitionsRequest {
        /// This one, or all with a number above `after`.
        only: Option<PartitionId>,
        /// The partition to continue after, unless `only` is given.
        after: PartitionId,
    }
    /// Partitions in the order of their numbers.
    PartitionList {
        /// The partitions.
        partitions: Vec<Partition>,
        /// True if none follows.
        end: bool,
    }
    /// An empty directory that is to belong to a partition.
    BindDirectoryRequest {
        /// The directory.
        dir: Ino,
        /// The partition that it is in.
        outer: PartitionId,
        /// Layout of new files; names the partition that it is to be in.
        layout: Layout,
        /// Choice of targets; without it, that and the rest are left to the partition.
        placement: Option<Placement>,
    }
    /// Selection of the space to report.
    StatFsRequest {
        /// Of the volumes if it is the root partition, otherwise of its part of them.
        partition: PartitionId,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, Encode};
    use proptest::prelude::*;

    #[test]
    fn changes_travel() {
        let settings = PartitionSettings::default();
        let (id, targets) = (PartitionId(3), vec![TargetIndex(1)]);
        for change in [
            PartitionChange::Make { dir: Ino(5), targets, settings: settings.clone() },
            PartitionChange::Set { id, version: 4, settings },
            PartitionChange::Remove { id },
        ] {
            assert_eq!(PartitionChange::from_bytes(&change.to_bytes()), Ok(change));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = PartitionChange::from_bytes(&bytes);
            let _ = PartitionList::from_bytes(&bytes);
            let _ = BindDirectoryRequest::from_bytes(&bytes);
        }
    }
}

//! Messages about partitions.

use bivouac_types::{Ino, Layout, PartitionId, PartitionSettings, Placement, TargetIndex};

use crate::Partition;

/// What becomes of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionChange {
    /// It is made, with an empty directory as its root.
    Make {
        /// The directory.
        dir: Ino,
        /// Its targets, as targets of the root partition.
        targets: Vec<TargetIndex>,
        /// What it is told.
        settings: PartitionSettings,
    },
    /// It gets other settings; what cannot be changed is as before.
    Set {
        /// Which one.
        id: PartitionId,
        /// Version of the settings that these are made from.
        version: u32,
        /// The settings.
        settings: PartitionSettings,
    },
    /// It is gone, with its directory.
    Remove {
        /// Which one.
        id: PartitionId,
    },
}

codec_enum!(PartitionChange, "change of a partition" {
    Make { dir, targets, settings } = 0,
    Set { id, version, settings } = 1,
    Remove { id } = 2,
});

owned! {
    /// Which partitions to tell of.
    ListPartitionsRequest {
        /// This one, or all with a number above `after`.
        only: Option<PartitionId>,
        /// As above.
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
        /// What new files get; names the partition that it is to be in.
        layout: Layout,
        /// How their targets are chosen; none leaves that and the rest to the partition.
        placement: Option<Placement>,
    }
    /// Whose space to tell.
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

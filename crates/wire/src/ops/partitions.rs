//! Messages about partitions.

use bivouac_types::{Ino, Layout, PartitionId, PartitionSettings, Placement, SeatIndex};

use crate::{Decode, DecodeError, Encode, Partition, Reader, codec_struct};

/// What becomes of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionChange {
    /// It is made, with an empty directory as its root.
    Make {
        /// The directory.
        dir: Ino,
        /// Its seats, as seats of the root partition.
        seats: Vec<SeatIndex>,
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

impl Encode for PartitionChange {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            PartitionChange::Make { dir, seats, settings } => {
                out.push(0);
                ((*dir, seats.clone()), settings.clone()).encode(out);
            }
            PartitionChange::Set { id, version, settings } => {
                out.push(1);
                ((*id, *version), settings.clone()).encode(out);
            }
            PartitionChange::Remove { id } => {
                out.push(2);
                id.encode(out);
            }
        }
    }
}

impl Decode<'_> for PartitionChange {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            0 => {
                let ((dir, seats), settings) = Decode::decode(input)?;
                Ok(PartitionChange::Make { dir, seats, settings })
            }
            1 => {
                let ((id, version), settings) = Decode::decode(input)?;
                Ok(PartitionChange::Set { id, version, settings })
            }
            2 => Ok(PartitionChange::Remove { id: Decode::decode(input)? }),
            _ => Err(DecodeError::Invalid("change of a partition")),
        }
    }
}

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
        /// Whether none follows.
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
        /// How their seats are chosen; none leaves that and the rest to the partition.
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
    use proptest::prelude::*;

    #[test]
    fn changes_travel() {
        let settings = PartitionSettings::default();
        let (id, seats) = (PartitionId(3), vec![SeatIndex(1)]);
        for change in [
            PartitionChange::Make { dir: Ino(5), seats, settings: settings.clone() },
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

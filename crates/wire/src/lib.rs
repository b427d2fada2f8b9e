//! Messages and formats: pure bytes. Frames and operations that travel between processes, the
//! map, and the header of a subfile. Decoders return errors on any input. The byte formats are
//! described in docs/protocol.md and docs/format.md.

pub mod codec;
mod frame;
mod map;
mod ops;
mod partition;
pub mod rendezvous;
mod seal;
mod status;
pub mod subfile;

pub use codec::{Decode, DecodeError, Encode, Reader};
pub use frame::{Flags, Frame, FrameError, Kind, MAGIC, VERSION};
pub use map::{FormationMap, NodeEntry, SeatEntry};
pub use ops::*;
pub use partition::{Partition, PartitionState, PartitionTable};
pub use seal::{Seal, Summing, Way, seal_of};
pub use status::{
    DamageStatus, NodeStatus, OpCount, PoolStatus, Silent, TIME_RANGES, Times, VolumeStatus, WrongBytes,
};

//! Messages and formats: pure bytes. Frames and operations that travel between processes, the
//! map, and the header of a subfile. Decoders return errors on any input. The byte formats are
//! described in docs/protocol.md and docs/format.md.

#[macro_use]
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
pub use map::{FormationMap, MirrorEntry, NodeEntry, TargetEntry};
pub use ops::*;
pub use partition::{Partition, PartitionState, PartitionTable};
pub use seal::{FrameChecksum, FrameProtection, Seal, seal_of};
pub use status::{
    DamageStatus, LinkStatus, NodeStatus, OpCount, PoolStatus, TIME_RANGES, Times, UnresponsiveNode,
    VolumeStatus, WrongBytes,
};

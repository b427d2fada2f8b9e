//! The base of the house: identifiers, ranges, the one errno table, named limits and the
//! small options that every layer shares. Nothing here does I/O.

#[macro_use]
mod worded;

mod attr;
mod checksum;
mod contract;
mod error;
pub mod hex;
mod ids;
mod key_id;
mod layout;
pub mod limits;
mod liveness;
mod magic;
mod markup;
pub mod mount_table;
mod name;
mod named;
mod partition;
mod printable;
pub mod put;
mod race;
mod signals;
mod spread;
pub mod table;
mod temporary_name;
mod time;
mod token;
pub mod units;
pub mod words;

pub use attr::{Attr, BEING_WRITTEN, ExpectedFile, SetAttr, SetTime, StatFs, check_changeable, mode};
pub use checksum::Checksum;
pub use contract::{CONTRACT_XATTR, DIGEST_XATTR, format_contract, parse_contract, read_contract};
pub use error::{Errno, FsError, FsResult};
pub use ids::{ClientId, FormationId, Ino, NodeId, OpId, OpenId, PartitionId, Slot, TargetIndex};
pub use key_id::{KEY_ID_CHARS, KEY_ID_LEN, KEY_ID_START};
pub use layout::{Layout, Placement, check_stripe};
pub use liveness::{Liveness, MembershipUpdate, epoch_of};
pub use magic::TMPFS_MAGIC;
pub use markup::escape_markup;
pub use name::Name;
pub use named::named;
pub use partition::{
    Contract, FsyncPolicy, Glob, KEYS as PARTITION_KEYS, Laminate, MasterHash, MirrorDeletes,
    PartitionSettings, Pin, ReadPolicy, Rule, SettingError, Site, Source, VolumeKind, WritePolicy,
};
pub use printable::{printable, printable_lines};
pub use race::{
    FileAccess, OrderedBy, POINT_XATTR, Race, RaceAccess, RaceCounts, RaceEvent, RaceProcess, Refresh,
    SyncObject, parse_point,
};
pub use signals::{code_of_signal, format_signal};
pub use spread::SpreadAt;
pub use temporary_name::{is_temporary_copy, is_temporary_name};
pub use time::Timestamp;
pub use token::{ByteRange, TokenMode};

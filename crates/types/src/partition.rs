//! Settings of a partition: layout of new files, contract, and when data moves between the nodes and site storage. One
//! vocabulary, the *keys*, for the command line, formation files, records and messages.

mod choices;
mod glob;
mod policy;
mod rule;
mod settings;
mod source;

pub use choices::{Contract, FsyncPolicy, Laminate, MasterHash, MirrorDeletes, Pin, VolumeKind};
pub use glob::Glob;
pub use policy::{ReadPolicy, WritePolicy};
pub use rule::Rule;
pub use settings::{KEYS, PartitionSettings, SettingError};
pub use source::{Site, Source};

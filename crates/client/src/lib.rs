//! What every front end calls: the formation as a file system. Blocking, without a runtime; all
//! methods may be called from many threads.
//!
//! The contract is *coherent* unless a partition says otherwise: no data is cached here, and what a finished write wrote,
//! every later read sees, through whichever node. Under the *session* contract there are pages. See docs/semantics.md.

mod attendant;
mod client;
mod closings;
mod copy;
mod data;
mod direct;
mod entries;
mod glimpse;
mod identity;
mod inspect;
mod join;
mod known;
mod leases;
mod lists;
mod local;
mod locks;
mod member;
mod names;
mod opens;
mod partitions;
mod paths;
mod publish;
mod put;
mod removals;
mod room;
mod saving;
mod scrub;
mod session;
mod site;
mod space;
mod spread;
mod stream;
mod traffic;
mod under_way;
mod uses;
mod watch;
mod ways;
mod whole;
mod xattrs;

pub use attendant::Attendant;
pub use bivouac_layout::entry_hash;
pub use bivouac_net::{BusyPoll, keep_sockets, looking_max, on_block};
pub use bivouac_types::{Attr, SetAttr, SetTime, StatFs};
pub use bivouac_wire::{
    DamageStatus, DirEntry, Dirty, FenceRequest, FileUse, HistoryTable, NodeStatus, OpCount, Partition,
    PartitionState, Pinned, PoolStatus, ProcessUse, Removal, SeatEntry, Silent, SiteVersion, SubfileState,
    TIME_RANGES, Times, UseTable, VolumeStatus,
};
pub use bivouac_wire::{FileLock, LOCK_END_MAX, LockKind, LockMode, LockWait};
pub use client::{Client, ClientOptions, LocalNode, NewInode, OpCtx, Opened, SeekKind};
pub use copy::CopyJob;
pub use identity::{FileIdentity, FormationPlace, IDENTIFY, IDENTITY_LEN};
pub use inspect::SeatReport;
pub use join::forked;
pub use local::{LocalFiles, SendPart};
pub use locks::{LockAnswer, LockDesk, LockWaiting, Locked};
pub use member::{Change, Member};
pub use paths::Place;
pub use removals::Removals;
pub use site::{FlushPlan, Flushed, Found, SeenNames, Unsaved};
pub use traffic::{Traffic, traffic};
pub use uses::{Caller, on_behalf_of};

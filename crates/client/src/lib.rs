//! What every front end calls: the formation as a file system. Blocking, without a runtime; all
//! methods may be called from many threads.
//!
//! The contract is *coherent* unless a partition says otherwise: no data is cached here, and what a finished write wrote,
//! every later read sees, through whichever node. Under the *session* contract there are pages. See docs/semantics.md.

mod attendant;
mod client;
mod content;
mod homes;
mod identity;
mod locks;
mod names;
mod nodes;
mod opens;
mod room;
mod session;
mod site;
mod traffic;
mod ways;

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
pub use client::join::forked;
pub use client::member::{Change, Member};
pub use client::paths::Place;
pub use client::{Client, ClientOptions, LocalNode, NewInode, OpCtx, Opened, SeekKind};
pub use content::Content;
pub use content::copy::CopyJob;
pub use content::direct::Wish;
pub use content::local::{LocalFiles, SendPart};
pub use content::shown::Show;
pub use homes::Homes;
pub use homes::partitions::Partitions;
pub use identity::{FileIdentity, FormationPlace, IDENTIFY, IDENTITY_LEN};
pub use locks::{LockAnswer, LockDesk, LockWaiting, Locked};
pub use names::entries::Looker;
pub use nodes::{Nodes, SeatReport};
pub use opens::uses::{Caller, on_behalf_of};
pub use session::Sessions;
pub use site::removals::Removals;
pub use site::{FlushPlan, Flushed, Found, SeenNames, Site, Unsaved};
pub use traffic::{Traffic, traffic};

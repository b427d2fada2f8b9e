//! The formation as a file system, for all front ends. Calls block, without a runtime, and may come from many threads.
//!
//! Layers, lowest first: `operation`, `options`, `fencing_token`, `traffic`; `connections` to the nodes; what is at
//! homes (`homes`, `locks`, `nodes`, `site`) and what is open (`opens`); `races`, which reports accesses;
//! `space_reclaimer`; bytes at targets (`content`) and names (`names`); pages of session and strict files (`session`);
//! `client`, the calls of programs; and `flush`, which makes many of them.
//!
//! The contract is *coherent* unless a file, its directory or partition says otherwise: no data is cached here, and
//! what a finished write wrote, every later read sees, through whichever node. Pages are kept of *session* files, and
//! of *strict* ones as far as tokens reach. See docs/semantics.

mod at_once;
mod client;
mod connections;
mod content;
mod fencing_token;
mod flush;
mod homes;
mod identity;
mod locks;
mod moved_nodes;
mod names;
mod nodes;
mod on_demand_worker;
mod opens;
mod operation;
mod options;
mod races;
mod session;
mod site;
mod space_reclaimer;
mod tokens;
mod traffic;

pub use bivouac_layout::entry_hash;
pub use bivouac_net::{BusyPoll, keep_sockets, looking_max, on_block};
pub use bivouac_types::{Attr, SetAttr, SetTime, StatFs};
pub use bivouac_wire::{
    DamageStatus, DirEntry, Dirty, FenceRequest, FileUse, HistoryTable, LinkStatus, NodeStatus, OpCount,
    Partition, PartitionState, Pinned, PoolStatus, ProcessUse, RacePage, Removal, SiteVersion, SubfileState,
    TIME_RANGES, TargetEntry, Times, UnresponsiveNode, UseTable, VolumeStatus,
};
pub use bivouac_wire::{FileLock, LOCK_END_MAX, LockKind, LockMode, LockWait};
pub use client::join::forked;
pub use client::member::{Change, Member};
pub use client::paths::ParentAndName;
pub use client::{Client, LocalNode, NewInode, NodePlaces, Opened};
pub use content::Content;
pub use content::copy::CopyJob;
pub use content::direct::AccessKind;
pub use content::local::{LocalFiles, SendPart};
pub use content::shown::ShowFn;
pub use content::space::SeekKind;
pub use flush::{FlushOptions, FlushOutcome, FlushTarget, flush_target};
pub use homes::Homes;
pub use homes::partitions::Partitions;
pub use identity::{FileIdentity, FormationPlace, IDENTIFY, IDENTITY_LEN};
pub use locks::{LockAnswer, LockDesk, LockWaiting, Locked, SettleLocks};
pub use names::entries::Looker;
pub use nodes::{Nodes, TargetReport};
pub use on_demand_worker::OnDemandWorker;
pub use opens::uses::{Caller, on_behalf_of};
pub use operation::OpCtx;
pub use options::ClientOptions;
pub use session::Sessions;
pub use site::removals::Removals;
pub use site::{FlushPlan, Flushed, SeenNames, Site, TreeEntry, Unsaved};
pub use tokens::Tokens;
pub use traffic::{Traffic, traffic};

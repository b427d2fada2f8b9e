//! What every front end calls: the formation as a file system. Blocking, without a runtime; all
//! methods may be called from many threads.
//!
//! The contract is *coherent*: no data is cached here, and what a finished write wrote, every later
//! read sees, through whichever node. See docs/semantics.md.

mod client;
mod copy;
mod data;
mod direct;
mod glimpse;
mod inspect;
mod join;
mod known;
mod leases;
mod lists;
mod locks;
mod names;
mod opens;
mod paths;
mod space;
mod spread;
mod under_way;
mod watch;
mod xattrs;

pub use bivouac_net::on_block;
pub use bivouac_types::{Attr, SetAttr, SetTime, StatFs};
pub use bivouac_wire::{DirEntry, NodeStatus, OpCount, SeatEntry, SubfileState, VolumeStatus};
pub use bivouac_wire::{FileLock, LOCK_END_MAX, LockKind, LockMode, LockWait};
pub use client::{Client, ClientOptions, LocalNode, NewInode, OpCtx, Opened, SeekKind};
pub use copy::CopyJob;
pub use inspect::SeatReport;
pub use join::forked;
pub use locks::{LockAnswer, LockDesk, LockWaiting, Locked};
pub use paths::Place;

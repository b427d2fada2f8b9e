//! A formation in the kernel's directory tree: the FUSE front end.
//!
//! [`mount_fuse`] (or [`fusermount`]) puts the file system into the tree and gives the device;
//! [`Mount`] serves the device until it is unmounted. The transport is ours: a mount goes on
//! after its daemon was killed and started again (see [`create_state`]), every request is served in
//! the thread that read it, and node ids are inode numbers, so there is no table of inodes.
//!
//! Layers, from the lowest; a module uses those of its own line and of the lines above it:
//! - the kernel's interface (`abi`), what the mount needs of a file system (`fs`), and what is kept of requests and of
//!   the kernel's caches
//! - `session`: what all threads share
//! - `serve`: the operations
//! - `worker`: the threads
//! - `mount`, which starts and ends them

mod abi;
mod attach;
mod background;
mod cached_attrs;
mod cached_names;
mod caller;
mod channel;
mod directory_names;
mod failed_writes;
mod fs;
mod handover;
mod held_lookups;
mod interrupts;
mod known_size;
mod laminated_pages;
mod looked_up;
mod mount;
mod negative_entries;
mod opens;
mod options;
mod page_cache;
mod parked;
mod pipe;
mod pool;
mod releases;
mod serve;
mod session;
mod state;
mod stats;
mod worker;

pub use attach::{
    AttachError, AttachOptions, check_mount_point, fusermount, mount_fuse, mount_fuse_at, unmount,
};
pub use fs::*;
pub use mount::{Mount, MountError};
pub use options::Options;
pub use pool::about_to_block;
pub use state::{PAGES_AT, StateError, create_state, incarnations};
pub use stats::Count;

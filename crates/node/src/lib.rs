//! One daemon's server side: namespace, data and opens of the slots and seats that the map gives
//! this node. It answers frames ([`bivouac_net::Service`]); who carries them is not its business.
//!
//! - A handler is one file under `handlers/`, named after its operation.
//! - Handlers of peer steps call nobody (see [`bivouac_wire::Lane`]), so that nodes never wait in a circle, but for what
//!   mounts cache (`callbacks.rs`): who is asked that waits for nobody.
//! - Every change is one [`bivouac_store::Txn`]; what needs several nodes is an intent (`intent.rs`):
//!   logged first, made of idempotent steps, replayed after a restart.

mod advisory;
mod alloc;
mod away;
mod callbacks;
mod clock;
mod counters;
mod direct;
mod directory;
mod dispatch;
mod ended;
#[cfg(test)]
mod fuzzed;
mod gather;
mod handlers;
mod intent;
mod leases;
mod locks;
mod membership;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod namespace;
mod node;
mod opens;
mod partitions;
mod peers;
mod proxy;
mod pulse;
mod reaper;
pub mod record;
mod recorder;
mod rounds;
mod served;
mod session;
mod sessions;
mod stale_tails;
mod sweep;
mod users;
mod uses;
mod watch;

pub use clock::{Clock, SystemClock};
pub use directory::{entry_slot, shard_slot};
pub use handlers::check::{record_page, subfile_facts};
pub use intent::{Concerns, concerns};
pub use node::{Node, NodeConfig, Past};
pub use peers::{NetPeers, PeerRequest, Peers};
pub use proxy::Around;
pub use pulse::{Patience, watch};
pub use rounds::Rounds;
pub use served::{Cache, LockClient, PagePool, Served};
pub use watch::ENTRIES_MOVE;

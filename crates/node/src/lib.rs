//! One daemon's server side: namespace, data and opens of the slots and targets that the map gives
//! this node. It answers frames ([`bivouac_net::Service`]); who carries them is not its business.
//!
//! - A handler is one file under `handlers/`, named after its operation.
//! - Handlers of peer steps call nobody (see [`bivouac_wire::Lane`]), so that nodes never wait in a circle, but for
//!   what mounts cache (`callbacks.rs`): who is asked that waits for nobody.
//! - Every change is one [`bivouac_store::Txn`]; what needs several nodes is an intent (`intent.rs`):
//!   logged first, made of idempotent steps, replayed after a restart.
//!
//! Layers, from the lowest; a module uses those of its own line and of the lines above it, also through methods of
//! [`Node`]:
//! - records and identities: `record`, `identity`, `session`, `clock`, `counters`
//! - tables, each a type with what it needs: locks, leases, opens, sessions, partitions, shards, intents, agenda of
//!   background work (`reaper`), membership, sweeper, mirror (`mirror_link`) and replicas of others, what is lent
//!   (`lending`), what is between volumes and site storage (`proxy_state`)
//! - `node`: [`Node`], which is those tables and no more
//! - `step`: an operation here or at a peer; `placement`, `shard_reports`, `write_behind`
//! - `namespace`, then `directory`: changes of records, in one transaction each
//! - what changes records: `gather`, `garbage`, `sweep`, `direct`, `session_end`, `new_inode`
//! - `intent`: changes over several nodes; then `proxy`: site storage
//! - `handlers`, and `dispatch`, which calls them; `background`; `standstill`; `startup`, which puts a node together

mod absent_peers;
mod advisory;
mod alloc;
mod at_once;
mod background;
mod callbacks;
mod clock;
mod counters;
mod direct;
mod directory;
mod dispatch;
mod ended;
#[cfg(test)]
mod fuzzed;
mod garbage;
mod gather;
mod handlers;
mod identity;
mod intent;
mod intent_record;
mod intent_scope;
mod leases;
mod lending;
mod locks;
mod membership;
mod mirror_link;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod namespace;
mod new_inode;
mod node;
mod opens;
mod partitions;
mod peers;
mod placement;
mod proxy;
mod proxy_state;
mod pulse;
mod races;
mod reaper;
pub mod record;
mod recorder;
mod replicas;
mod reply_cache;
mod rounds;
mod served;
mod session;
mod session_end;
mod sessions;
mod shard_reports;
mod shards;
mod stale_tails;
mod standstill;
mod startup;
mod step;
mod sweep;
mod sweeper;
#[cfg(test)]
mod testing;
mod tokens;
mod users;
mod uses;
mod watch;
mod write_behind;

pub use clock::{Clock, SystemClock};
pub use directory::entry_slot;
pub use handlers::check::{record_page, subfile_facts};
pub use intent_scope::{IntentScope, concerns};
pub use node::Node;
pub use peers::{Connector, NetPeers, PeerRequest, Peers};
pub use proxy_state::SourceDecorator;
pub use pulse::StandstillLimits;
pub use rounds::Rounds;
pub use served::{Cache, LockClient, PagePool, ServedClient, TokenHolder};
pub use shards::shard_slot;
pub use standstill::watch;
pub use startup::{NodeConfig, RecoveryHistory};
pub use watch::ENTRIES_MOVE;

//! Brings a formation up on this machine, keeps it up, and takes it down without a trace.
//!
//! - [`start()`] makes the formation's directory ([`StateDir`]), plans it ([`FormationRequest`] to [`FormationState`]) and starts
//!   the supervisor ([`supervise`]), which owns everything that must outlive a daemon: listeners, and the
//!   FUSE devices of mounts. It starts one daemon per node, and again when one dies ([`restarts`]).
//! - Daemons take over what they need by [`handover`]; commands ask the supervisor by [`control`].
//! - [`take_down`] ends all of that, and looks that nothing is left.
//! - [`recover`] starts a formation again of which no process lives, on its volumes.
//! - [`find_leftovers`] finds what a crash left, for `bivouac reap`.
//! - [`run_command`] is the user's command under `bivouac run`.
//!
//! Layers, from the lowest; a module uses those of its own line and of the lines above it:
//! - values and files: [`clock`](mod@clock), [`polling`], [`parallel_map`], [`hex`], [`packets`], names, options, errors
//! - this machine: [`mod@environment`], processes and their ends ([`forked`], [`spawned`]), signals, memory, mounts
//! - what a formation writes down: [`FormationState`], its directory ([`StateDir`]), [`recovery_notes`] on volumes
//! - what it has outside of its directory: memory directories, grant tables, other runtime directories, look-up by name
//! - what its processes tell each other: [`control`], [`handover`], HTTP, [`standby`], [`purpose`]
//! - [`plan()`] and [`first_map()`]: from wishes to a state and a map
//! - the supervisor, taking down, what could be recovered
//! - what commands call: [`start`](mod@start), [`recovery`], [`find_leftovers`]
//!
//! A formation over several hosts has a part on each of them, which is much like a formation here. What keeps the parts
//! together is a crate above this one, which takes single steps: those of [`start`](mod@start) and [`recovery`], and
//! what the supervisor is made of as well ([`forked`], [`standby`], [`purpose`], [`spawned`], [`Callers`]).

mod adopted;
mod amount;
mod clock;
pub mod control;
pub mod descriptors;
mod environment;
mod error;
mod feeding;
mod first_map;
pub mod forked;
mod fuse_connection;
mod given_back;
mod grant_tables;
mod guarded;
pub mod handover;
pub mod hex;
mod http;
mod http_options;
mod job;
mod log_events;
mod log_files;
mod lookup;
mod memory;
mod memory_groups;
mod memory_root;
pub mod mount_table;
pub mod mount_views;
pub mod mounts;
mod name;
mod owner_note;
pub mod packets;
mod parallel;
mod phases;
mod plan;
pub mod polling;
mod privileges;
mod process;
mod protection;
pub mod purpose;
mod random;
mod reach;
mod reap;
mod recoverable;
pub mod recovery;
pub mod recovery_notes;
mod replica_notes;
pub mod restarts;
mod runtime_dirs;
mod said;
mod signals;
pub mod spawned;
mod stacks;
pub mod standby;
pub mod start;
mod state;
mod state_dir;
mod supervisor;
mod teardown;
pub mod text;
mod unmounting;
mod volumes;

pub use adopted::{AdoptedNode, Adoption};
pub use amount::Amount;
pub use clock::{left_ms, unix_ms};
pub use environment::{Batch, EnclosingFormation, Environment, make_mount_point, remove_around};
pub use error::{CODE_KEEP, Kind, LaunchError, LaunchResult};
pub use feeding::feed;
pub use first_map::first_map;
pub use forked::close_inherited;
pub use given_back::give_memory_back;
pub use guarded::{Guarded, guarded, guarded_parent};
pub use http::{HttpHandover, HttpNews};
pub use http_options::{HttpAddress, HttpDomain, HttpWish};
pub use job::{
    CAUGHT, CODE_NOT_EXECUTABLE, CODE_NOT_FOUND, CommandEnd, asks_to_end, become_command, check_command,
    run_command,
};
pub use log_events::{Event, LogFormat, for_people};
pub use log_files::LogFile;
pub use memory::{MemoryGauge, available_memory, memory_share, tightest_memory};
pub use name::{FormationName, NAME_LEN_MAX};
pub use parallel::parallel_map;
pub use phases::{Phase, Phases, in_words, table};
pub use plan::{FormationRequest, NAMES_MEMORY_MIN, NODES_HERE_MAX, NODES_IN_PROCESS_MAX, plan};
pub use privileges::{MountWay, cannot_mount, enter_namespaces, run_helper};
pub use process::{ProcessId, users_of};
pub use protection::Protection;
pub use purpose::inherit;
pub use random::random_bytes;
pub use reach::{Domains, HostAccess, Launcher, Network};
pub use reap::{Leftover, Leftovers, find_leftovers};
pub use recoverable::{Recoverable, recoverable};
pub use recovery::{Recovery, WholeFormation, discard, recover, whole};
pub use replica_notes::complete_replicas;
pub use restarts::RestartLimit;
pub use runtime_dirs::other_bases;
pub use said::{hear, output_of};
pub use signals::{ReceivedSignal, Signals, unblock, unblock_in};
pub use stacks::stacks_of_all_threads;
pub use standby::settled;
pub use start::{ReadyFormation, raise_descriptor_limit, start, supervise};
pub use state::{
    Arrival, ArrivalStage, Departure, DepartureStage, FormationState, GatewayState, HostLife, HostState,
    HttpState, KeeperGroup, KeeperPlace, MountState, MoveStage, NodeLife, NodeMove, NodeState, PartState,
    RELEASE, STATE_VERSION, Stage, VolumeState,
};
pub use state_dir::{Claim, SECRET_LEN, StateDir, TeardownLock};
pub use supervisor::{Callers, DaemonProgram, PartBegins, Report, Supervisor};
pub use teardown::{LeftoverCounts, leave, refuse_kept, remove_leftovers, take_down};
pub use unmounting::{mounts_in_use, overlapping, unmount_part};
pub use volumes::{LendableDir, VOLUME_BYTES_MIN, VolumeArg, parse_volume};

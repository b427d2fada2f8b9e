//! Brings a formation up on this machine, keeps it up, and takes it down without a trace.
//!
//! - [`start()`] makes the formation's directory ([`StateDir`]), plans it ([`Wishes`] to [`State`]) and starts the
//!   supervisor ([`supervise`]), which owns everything that must outlive a daemon: listeners, and the
//!   FUSE devices of mounts. It starts one daemon per node, and again when one dies ([`restarts`]).
//! - Daemons take over what they need by [`handover`]; commands ask the supervisor by [`control`].
//! - [`take_down`] ends all of that, and looks that nothing is left.
//! - [`recover`] starts a formation again of which no process lives, on its volumes.
//! - [`find_leftovers`] finds what a crash left, for `bivouac reap`.
//! - [`run_command`] is the user's command under `bivouac run`.
//!
//! A formation over several hosts has a part on each of them, which is much like a formation here. What keeps the parts
//! together is a crate above this one, which takes single steps: those of [`start`](mod@start) and [`recovery`], and what
//! the supervisor is made of as well ([`forked`], [`standby`], [`purpose`], [`spawned`], [`Callers`]).

pub mod control;
pub mod descriptors;
mod environment;
mod error;
mod feeding;
pub mod forked;
mod fuse_connection;
mod given_back;
mod grant_tables;
mod guarded;
pub mod handover;
pub mod hex;
mod http;
mod job;
mod log_events;
mod memory;
mod memory_groups;
mod memory_root;
pub mod mount_table;
pub mod mounts;
mod name;
pub mod packets;
mod phases;
mod places;
mod plan;
mod privileges;
mod process;
pub mod purpose;
mod random;
mod reach;
mod reap;
pub mod recovery;
pub mod restarts;
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

pub use environment::{Batch, Environment, make_mount_point, remove_around};
pub use error::{CODE_KEEP, Kind, LaunchError, LaunchResult};
pub use feeding::feed;
pub use forked::close_inherited;
pub use given_back::give_memory_back;
pub use guarded::{Guarded, guarded, guarded_parent};
pub use http::{HttpAddress, HttpDomain, HttpHandover, HttpState, HttpWish};
pub use job::{CAUGHT, CODE_NOT_EXECUTABLE, CODE_NOT_FOUND, Ended, asks_to_end, become_command, run_command};
pub use log_events::{Event, LogFormat, for_people};
pub use memory::{MemoryGauge, available_memory, memory_share};
pub use name::{FormationName, NAME_LEN_MAX};
pub use phases::{Phase, Phases, in_words, table};
pub use places::other_bases;
pub use plan::{NAMES_MEMORY_MIN, NODES_HERE_MAX, NODES_IN_PROCESS_MAX, Wishes, first_map, plan};
pub use privileges::{MountWay, cannot_mount, enter_namespaces, run_helper};
pub use process::{ProcessId, users_of};
pub use purpose::{inherit, left_ms, unix_ms};
pub use random::random_bytes;
pub use reach::{Domains, Launcher, Network, Reach};
pub use reap::{Left, Leftovers, find_leftovers};
pub use recovery::{Amount, Recoverable, Recovery, Whole, discard, recover, recoverable, whole};
pub use restarts::Tolerance;
pub use said::{hear, output_of};
pub use signals::{Arrived, Signals, unblock, unblock_in};
pub use stacks::stacks_of_all_threads;
pub use standby::settled;
pub use start::{Started, raise_descriptor_limit, start, supervise};
pub use state::{
    HostLife, HostState, MountState, NodeLife, NodeState, PartState, RELEASE, STATE_VERSION, Stage, State,
    VolumeState,
};
pub use state_dir::{Claim, Ending, SECRET_LEN, StateDir};
pub use supervisor::{Callers, DaemonProgram, PartBegins, Report, Supervisor};
pub use teardown::{Remains, leave, refuse_kept, remove_leftovers, take_down};
pub use unmounting::overlapping;
pub use volumes::{Place, VOLUME_BYTES_MIN, VolumeArg, parse_volume};

//! Brings a formation up, on this machine or over several hosts, keeps it up, and takes it down without a trace.
//!
//! - [`start`] makes the formation's directory ([`StateDir`]), plans it ([`Wishes`] to [`State`]) and starts the
//!   supervisor ([`supervise`]), which owns everything that must outlive a daemon: listeners, and the
//!   FUSE devices of mounts. It starts one daemon per node, and again when one dies ([`restarts`]).
//! - Daemons take over what they need by [`handover`]; commands ask the supervisor by [`control`].
//! - [`take_down`] ends all of that, and looks that nothing is left.
//! - [`hosts`] does the same over several hosts, each of which has a supervisor.
//! - [`recover`] starts a formation again of which no process lives, on its volumes.
//! - [`find_leftovers`] finds what a crash left, for `bivouac reap`.
//! - [`run_command`] is the user's command under `bivouac run`.
//!
//! This is the only crate that starts processes.

pub mod control;
pub mod descriptors;
mod environment;
mod error;
mod feeding;
mod forked;
mod fuse_connection;
mod given_back;
mod grant_tables;
mod guarded;
pub mod handover;
pub mod hex;
pub mod hosts;
mod http;
mod inquiry;
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
mod purpose;
mod random;
mod reap;
mod recovery;
pub mod restarts;
mod signals;
mod spawned;
mod stacks;
mod standby;
mod start;
mod state;
mod state_dir;
mod supervisor;
mod teardown;
mod text;
mod unmounting;
mod volumes;

pub use environment::{Batch, Environment};
pub use error::{CODE_KEEP, Kind, LaunchError, LaunchResult};
pub use feeding::feed;
pub use forked::close_inherited;
pub use given_back::give_memory_back;
pub use guarded::{Guarded, guarded, guarded_parent};
pub use http::{HttpAddress, HttpDomain, HttpHandover, HttpState, HttpWish};
pub use inquiry::{Answers, Heard, Inquiry, Live, answer_lines, ask_hosts, output_of, write_answer};
pub use job::{CAUGHT, CODE_NOT_EXECUTABLE, CODE_NOT_FOUND, Ended, asks_to_end, become_command, run_command};
pub use log_events::{Event, LogFormat};
pub use memory::{MemoryGauge, available_memory, memory_share};
pub use name::{FormationName, NAME_LEN_MAX};
pub use phases::{Phase, Phases, table};
pub use places::other_bases;
pub use plan::{NAMES_MEMORY_MIN, NODES_HERE_MAX, NODES_IN_PROCESS_MAX, Wishes};
pub use privileges::{MountWay, cannot_mount, enter_namespaces, run_helper};
pub use process::{ProcessId, users_of};
pub use purpose::{inherit, left_ms, unix_ms};
pub use random::random_bytes;
pub use reap::{Left, Leftovers, find_leftovers};
pub use recovery::{Amount, Recoverable, Recovery, Whole, discard, recover, recoverable, whole};
pub use restarts::Tolerance;
pub use signals::{Arrived, Signals, unblock};
pub use stacks::stacks_of_all_threads;
pub use standby::settled;
pub use start::{Started, raise_descriptor_limit, start, supervise};
pub use state::{
    Domains, HostLife, HostState, MountState, NodeLife, NodeState, PartState, RELEASE, Reach, STATE_VERSION,
    Stage, State, VolumeState,
};
pub use state_dir::{Claim, Ending, SECRET_LEN, StateDir};
pub use supervisor::{DaemonProgram, Report, Supervisor};
pub use teardown::{Remains, remove_leftovers, take_down};
pub use unmounting::overlapping;
pub use volumes::{Place, VOLUME_BYTES_MIN, VolumeArg, parse_volume};

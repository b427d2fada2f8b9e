//! Brings a formation up on this machine, keeps it up, and takes it down without a trace.
//!
//! - [`start`] makes the formation's directory ([`StateDir`]), plans it ([`Wishes`] to [`State`]) and starts the
//!   supervisor ([`supervise`]), which owns everything that must outlive a daemon: listeners, and the
//!   FUSE devices of mounts. It starts one daemon per node, and again when one dies ([`restarts`]).
//! - Daemons take over what they need by [`handover`]; commands ask the supervisor by [`control`].
//! - [`take_down`] ends all of that, and looks that nothing is left.
//! - [`run_command`] is the user's command under `bivouac run`.
//!
//! This is the only crate that starts processes.

pub mod control;
mod error;
pub mod handover;
pub mod hex;
mod job;
mod memory;
pub mod mounts;
mod name;
pub mod packets;
mod phases;
mod plan;
mod privileges;
mod process;
mod random;
pub mod restarts;
mod signals;
mod start;
mod state;
mod state_dir;
mod supervisor;
mod surroundings;
mod teardown;
mod volumes;

pub use error::{Kind, LaunchError, LaunchResult};
pub use job::{CAUGHT, CODE_NOT_EXECUTABLE, CODE_NOT_FOUND, Ended, asks_to_end, run_command};
pub use memory::available_memory;
pub use name::{FormationName, NAME_LEN_MAX};
pub use phases::{Phase, Phases, table};
pub use plan::{NODES_HERE_MAX, Wishes};
pub use privileges::{MountWay, cannot_mount, enter_namespaces, run_helper};
pub use process::{ProcessId, users_of};
pub use random::random_bytes;
pub use restarts::Tolerance;
pub use signals::{Arrived, Signals};
pub use start::{Started, start, supervise};
pub use state::{MountState, NodeLife, NodeState, RELEASE, STATE_VERSION, Stage, State, VolumeState};
pub use state_dir::{Claim, SECRET_LEN, StateDir};
pub use supervisor::{DaemonProgram, Report, Supervisor};
pub use surroundings::Surroundings;
pub use teardown::{Remains, remove_leftovers, take_down};
pub use volumes::{Place, VOLUME_BYTES_MIN, VolumeArg, parse_volume};

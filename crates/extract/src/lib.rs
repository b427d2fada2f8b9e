//! Description of a machine, from its own files and programs.
//!
//! Each kind of knowledge (processors, disks, …) has a list of [sources](Source), tried in order: the first that knows
//! something is taken, and the map says which it was. A new source is a file in `sources/` and a line in
//! [`look`](crate::host)'s lists. Sources read through a [`Machine`]: the real one, below a directory of choice; what a
//! machine said earlier ([`RecordedAnswers`]); or the real one while all it says is written down ([`Recorder`]).

mod look;
mod machine;
mod names;
mod record;
mod sources;

pub use look::{host, interfaces, networks, places, slurm_network};
pub use machine::{FileSystemSpace, LocalMachine, Machine};
pub use names::hosts_of_list;
pub use record::{RecordedAnswers, Recorder};

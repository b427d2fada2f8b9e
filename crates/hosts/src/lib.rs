//! A formation over several hosts, each of which has a supervisor as a formation on one machine has.
//!
//! [`start_hosts`] starts the keeper ([`keep`]), a process beside the user's command on the host where that runs. The
//! keeper has a launcher start [`join`] on every host, with a ticket that says where to report and a one-time secret.
//! Each host opens its ports and reports; when all are there, the keeper makes the map and sends it, and each host's
//! supervisor starts its daemons. The connections stay: over them the keeper has mounts made, looks how everyone is,
//! and takes everything down. See docs/decisions/0028-hosts.md.
//!
//! Where volumes are mirrored, hosts vote on each decision of the keeper, and elect another one when its host is lost
//! (`consensus`, `voting`). See docs/decisions/0143-keepers-of-several-hosts.md.
//!
//! [`ask_hosts`] has the same launchers run this program on all hosts, once, for what it says.

mod agent;
mod candidates;
mod consensus;
mod contact;
mod down;
mod election_times;
mod elsewhere;
mod grow;
mod inquiry;
mod inventory;
mod keeper;
mod launcher;
mod list;
mod meeting;
mod moves;
mod network;
mod node_reports;
mod own_part;
mod part_start;
mod reachable;
mod resume;
mod shrink;
mod start;
mod ticket;
mod voting;

pub use agent::{JoinOptions, Mounter, join};
pub use down::{LeftOnHosts, look_at_hosts, take_down_hosts};
pub use elsewhere::look_elsewhere;
pub use grow::{JoiningHost, check_arrival, grow_hosts};
pub use inquiry::{AnswerStream, Answers, HostAnswer, Inquiry, answer_lines, ask_hosts, write_answer};
pub use keeper::keep;
pub use launcher::hosts_of_job;
pub use list::{HOSTS_MAX, HostArg, hosts_of, parse_hosts, read_hostfile, read_nodefile, same_host};
pub use meeting::{Rendezvous, RendezvousAddress, which_host};
pub use network::local_addresses;
pub use own_part::attend;
pub use reachable::has_program;
pub use shrink::{check_departure, copies_of_departure, shrink_hosts};
pub use start::{HostsWishes, start_hosts};

#[cfg(test)]
mod tests {
    use bivouac_launch::{Batch, EnclosingFormation, Environment};

    /// This machine, outside of any job.
    pub(crate) fn environment() -> Environment {
        Environment {
            runtime_dir: None,
            search_path: Some("/nonexistent:/bin:/usr/bin".into()),
            log_level: None,
            state_home: None,
            uid: rustix::process::geteuid().as_raw(),
            host: "h".into(),
            program: "/bin/false".into(),
            batch: Batch::default(),
            around: EnclosingFormation::default(),
        }
    }
}

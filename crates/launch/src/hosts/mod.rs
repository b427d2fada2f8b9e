//! A formation over several hosts.
//!
//! [`start_hosts`] starts the keeper ([`keep`]), a process beside the user's command on the host where that runs. The keeper has a
//! [`Launcher`] start [`join`] on every host, with a ticket that says where to report and a one-time secret. Each
//! host opens its ports and reports; when all are there, the keeper makes the map and sends it, and each host's
//! supervisor starts its daemons. The connections stay: over them the keeper has mounts made, looks how everyone is, and takes
//! everything down. See docs/decisions/0028-hosts.md.

mod agent;
mod contact;
mod down;
mod inventory;
mod keeper;
mod launcher;
mod list;
mod meet;
mod network;
mod resume;
mod start;
mod ticket;

pub use agent::{JoinOptions, Mounter, join};
pub use down::{LeftOnHosts, look_at_hosts, take_down_hosts};
pub use keeper::keep;
pub use launcher::Launcher;
pub(crate) use launcher::inquiry_calls;
pub use list::{HOSTS_MAX, HostArg, parse_hosts, read_hostfile, read_nodefile};
pub use meet::{Meeting, MeetingPlace, attend, which_host};
pub use network::{Network, local_addresses};
pub use start::{HostsWishes, start_hosts};
pub(crate) use ticket::Ticket;

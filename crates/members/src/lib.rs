//! Failure detection between nodes: events in, commands out; time and randomness are arguments.
//!
//! The protocol is SWIM (Das, Gupta, Motivala, "SWIM: Scalable Weakly-consistent Infection-style Process Group
//! Membership Protocol", DSN 2002): every node probes one other per period, all in turn; one that does not answer is
//! probed through others, then suspected, and taken for dead unless it says in time that it lives. Whatever is sent
//! carries news. So the traffic of a node does not depend on how many there are. Three things are different:
//!
//! - Nodes come back: who hears that it is dead says so with a higher incarnation, and one that is dead is probed now
//!   and then, so that a healed cut is noticed from either side.
//! - Deaths and returns do not wait for the next probe: who first hears of one tells a few others at once.
//! - A node that was slow itself blames nobody: it makes its own limits longer, as in Dadgar, Phillips, Currey,
//!   "Lifeguard: Local Health Awareness for More Accurate Failure Detection" (DSN-W 2018), and one that stood still
//!   for a while first lets as much time pass again.

mod gossip;
mod machine;
mod options;
mod random;

pub use machine::{Command, Event, Members};
pub use options::Options;

//! Map of a set of machines: their parts, and what joins them.
//!
//! - [`Map`] has [hosts](Host) and [networks](Network). What is not known is `None`, never a guess.
//! - [`merge`] makes one map of those of single hosts; [`diff`] says what changed between two.
//! - [`IdleResources`] has the unused resources of a host: its capacity less its load.
//! - [`bandwidth`] is what a network carries between two hosts, and between two halves of all.
//! - [`rounds`] says who sends to whom when that is measured, and [`LinkJudgement`] what the figures say of the links.
//! - [`common`] is the fastest network that hosts have in common.
//! - [`domains`] are the switches of hosts, and [`spread_over`] an order in which neighbours do not fail together.
//! - [`nearest`] is the part of a machine that a daemon is to run on.
//! - [`dot`] and [`svg`] draw it.
//!
//! No I/O, no clock: reading machines is the business of `extract`.

mod addresses;
mod available;
mod bandwidth;
mod bisection;
mod bits;
mod capacity;
mod diff;
mod domains;
mod draw;
mod flow;
mod host;
mod judge;
mod load;
mod measured;
mod merge;
mod nearest;
mod network;
mod paths;
mod rounds;

pub use addresses::{Address, common, fastest_first};
pub use available::{IdleDisk, IdleInterface, IdleMount, IdleResources};
pub use bandwidth::{Bandwidth, Pair};
pub use bisection::{Bisection, EXACT_HOSTS_MAX};
pub use bits::BandwidthRange;
pub use capacity::{bandwidth, between_halves};
pub use diff::{Change, diff};
pub use domains::{domains, spread_over};
pub use draw::{dot, svg};
pub use flow::Graph;
pub use host::{
    Cache, Device, DeviceKind, Disk, DiskKind, Host, Interface, InterfaceKind, Memory, Mount, MountKind,
    NumaNode, Part, Processors, SCHEMA, Socket,
};
pub use judge::{LinkJudgement, MeasuredFlows, SLOW_BELOW, best};
pub use load::{DiskLoad, InterfaceLoad, Load, MountLoad};
pub use measured::{
    BisectionMeasurement, Direction, Measured, MeasuredHost, SlowLink, SlowLinkLocation, Transfer,
};
pub use merge::{is_same_host, merge};
pub use nearest::{NumaPlacement, listed, nearest};
pub use network::{Link, LinkEnd, Map, Network, NetworkSwitch};
pub use paths::switch_of;
pub use rounds::{rounds, spread};

//! What a set of machines is made of and what joins them, as one map.
//!
//! - [`Map`] has [hosts](Host) and [networks](Network). What is not known is `None`, never a guess.
//! - [`merge`] makes one map of those of single hosts; [`diff`] says what changed between two.
//! - [`available`] is what is left of a host: what it has, less what is used.
//! - [`bandwidth`] is what a network carries between two hosts, and between two halves of all.
//! - [`rounds`] says who sends to whom when that is measured, and [`Judge`] what the figures say of the links.
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
pub use available::{Available, DiskLeft, InterfaceLeft, MountLeft, available};
pub use bandwidth::{Bandwidth, Bits, Pair, bandwidth, between_halves};
pub use bisection::{Bisection, EXACT_HOSTS_MAX};
pub use diff::{Change, diff};
pub use domains::{domains, spread_over};
pub use draw::{dot, svg};
pub use flow::Graph;
pub use host::{
    Cache, Device, DeviceKind, Disk, DiskKind, Host, Interface, InterfaceKind, Memory, Mount, MountKind,
    NumaNode, Part, Processors, SCHEMA, Socket,
};
pub use judge::{Flows, Judge, SLOW_BELOW, best};
pub use load::{DiskLoad, InterfaceLoad, Load, MountLoad};
pub use measured::{Direction, Measured, MeasuredHost, Place, SlowLink, Together, Transfer};
pub use merge::{is_same_host, merge};
pub use nearest::{Nearest, listed, nearest};
pub use network::{End, Link, Map, Network, Switch};
pub use paths::switch_of;
pub use rounds::{rounds, spread};

//! Detection of races: conflicting accesses of two clients, of which one is a write, that no operation of the clients
//! orders. [`Detector`] takes the events of all clients, each client's in its order, and lists the pairs that are not
//! ordered under every model of consistency.
//!
//! # How it works
//! Each client has a vector clock ([`Clock`]). Its own component counts *intervals*: a release (of a name, a file, a
//! point) merges the client's clock into the object's and begins the next interval, an acquire merges the object's
//! clock into the client's. An access of interval `i` of client B happens before what client A does now if A's clock
//! has at least `i` for B. An operation that publishes a file also marks the client's accesses to it with its interval,
//! and one that refreshes a file keeps a copy of the client's clock. So each pair is compared under four models, by
//! those of Wang, Mohror and Snir, "Formal Definitions and Performance Comparison of Consistency Models for Parallel
//! File Systems" (TPDS 2024), and VerifyIO (IPDPS 2025):
//!
//! | model | the earlier access is ordered before the later one if |
//! |---|---|
//! | posix | its interval is known to the later client at the access |
//! | commit | the interval in which it was published is |
//! | session | that interval was known at the later client's last open or lock of the file |
//! | MPI-IO | that interval was known at the later client's last open, lock or sync of the file |
//!
//! Of each byte, the last read and the last write of each client are kept: an earlier one is ordered wherever the last
//! one is. Memory is bounded; what is left out is counted, and makes fewer races, never more.

mod clock;
mod detector;
mod file;
mod reporter;

pub use clock::Clock;
pub use detector::{Detector, Limits};
pub use reporter::Reporter;

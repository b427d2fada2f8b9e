//! All integration tests of the crate, in one binary: it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod at_site;
mod away;
mod basics;
mod contention;
mod contracts;
mod cut;
mod formation;
mod half_open;
mod invalidation;
mod laminated;
mod large;
mod lists;
mod locks;
mod messages;
mod mirror;
mod mirrored_volumes;
mod model;
mod moved_nodes;
mod moves;
mod objects;
mod objects_fail;
mod opens;
mod partitions;
mod pins;
mod put;
mod rooms;
mod sessions;
mod site;
mod site_cuts;
mod site_faults;
mod site_kills;
mod site_model;
mod site_names;
mod site_sessions;
mod space;
mod spread;
mod thousand;
mod uses;
mod versions;
mod whole;
mod writeback;
mod writes;

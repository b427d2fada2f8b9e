//! The handlers, by topic.

mod attrs;
mod basic;
pub mod data;
mod dirs;
mod link;
mod locks;
mod make;
mod open;
mod remove;
mod rename;
mod shards;
mod size;
mod steps;
mod xattrs;

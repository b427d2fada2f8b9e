//! The handlers, by topic.

mod attrs;
mod basic;
pub mod check;
pub mod data;
pub mod direct;
mod dirs;
mod link;
pub mod list;
mod locks;
mod make;
mod moves;
mod open;
mod remove;
mod rename;
mod shards;
mod size;
mod space;
mod steps;
mod unnamed;
mod xattrs;

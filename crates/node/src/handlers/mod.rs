//! The handlers, by topic.

mod attrs;
mod basic;
pub mod check;
pub mod data;
pub mod direct;
mod dirs;
mod layout;
mod link;
pub mod list;
mod locks;
mod make;
mod members;
mod moves;
mod open;
mod partitions;
mod put;
mod remove;
mod rename;
mod rooms;
mod shards;
mod site;
mod size;
mod space;
mod steps;
mod unnamed;
mod xattrs;

pub use attrs::without_set_id;

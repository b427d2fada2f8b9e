//! A table of small cases of what POSIX and Linux say about file systems, each run in a directory of its own: on one
//! mount, or with its calls going through several mounts of one file system in turn, so that every change is
//! made on one node and looked at on another. And two exercises at random, compared with a model in memory: [`fsx`] of one
//! file, [`tree`] of names and everything else.

#![warn(missing_docs)]

mod case;
pub mod cases;
mod env;
pub mod excludes;
pub mod fsx;
mod mapping;
mod random;
pub mod runner;
mod shrink;
mod sys;
pub mod tree;

pub use case::{Case, Outcome};
pub use env::Env;

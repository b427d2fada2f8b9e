//! The functions that programs call. Each goes to libc's of the same name, and does before and after it what concerns
//! us. The first thing that each looks at says whether that is anything, and costs a few instructions.

mod attributes;
mod begin;
mod copies;
mod data;
mod descriptors;
mod limits;
mod mpi;
mod names;
mod opening;
mod processes;
mod signals;
mod streams;

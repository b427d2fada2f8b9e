//! An object store in memory that speaks S3 over HTTP, for tests: with signatures, conditions, uploads in parts,
//! listings by pages, and faults on purpose.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what only tests use fails by panicking")]

mod contents;
mod faults;
mod protocol;
mod server;

pub use contents::{Contents, Object, Upload};
pub use faults::{Fault, Storm, What};
pub use server::{ACCESS_KEY, BUCKET, SECRET_KEY, Server};

//! Links between formations: a formation as site storage of another one.
//!
//! - [`Gateway`] serves the [`Source`](bivouac_source::Source) calls of other formations below exported paths of a
//!   mount.
//! - [`LinkSource`] is such a formation seen from here, a source as directory trees and object stores are.
//! - [`LinkKey`]: what a key file holds, by which both sides prove themselves; [`KeyTable`] is what a gateway looks
//!   keys up in.
//! - `protocol` has the messages between the two, `docs/protocol.md` their bytes.
//!
//! This crate names no files: the gateway's are named by the source below it.

mod budget;
mod caches;
mod export;
pub mod fuzzed;
mod gateway;
mod key;
mod protocol;
mod round_trip;
mod sessions;
mod source;
mod stream;
mod usage;
mod validate;
mod workers;

pub use gateway::{ConnectionLimits, Gateway, GatewayOptions, Grant, KeyTable, MountPlace, OutgoingLink};
pub use key::{LinkKey, OWN_KEY_ID, key_id_of, key_number};
pub use protocol::{KeyFigures, Usage, VERSION};
pub use source::{FarSide, LinkFigures, LinkSource, LinkTarget, asker_of};

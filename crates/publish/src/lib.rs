//! Published data sets: what is in them, where it can be had, and how it is fetched.
//!
//! - A [`Manifest`] says names, sizes, digests and places of files, and who published them. It is written as RO-Crate
//!   1.1 ([`ro_crate`]) and Metalink 4 ([`metalink`]); both are pure, and take bytes of strangers.
//! - A [`Catalogue`] keeps such entries in a directory, a bucket or at a web server.
//! - [`fetch()`] gets files in pieces from all that have them. A name appears when its bytes are those that were said.
//!
//! See docs/publishing.md.

mod cache;
mod catalogue;
mod digest;
mod error;
mod fetch;
mod freeze;
mod holder;
mod known;
mod manifest;
pub mod metalink;
mod names;
mod place;
mod plain;
pub mod ro_crate;
mod shelf;
mod space;
mod target;
mod trust;
mod web;

pub use cache::Cache;
pub use catalogue::{Catalogue, CatalogueListing, new_id};
pub use digest::{Digest, piece_len};
pub use error::{Cause, PublishError, PublishResult};
pub use fetch::{FetchObserver, FetchRequest, FetchResult, WantedFile, fetch};
pub use freeze::{ScanResult, Skipped, compare, freeze};
pub use holder::{Access, Readers};
pub use known::{CachedEntry, EntryRef, FRESH_S, KNOWN_MAX};
pub use manifest::{DataSetFile, DatasetLocation, Kind, Manifest};
pub use names::check as check_name;
pub use place::{Location, encoded};
pub use plain::{UrlContent, fetch_plain, look};
pub use target::{is_dir, split};
pub use web::{Answer, RequestOptions, Web, origin_of};

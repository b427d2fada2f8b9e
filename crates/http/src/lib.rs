//! A formation's files over HTTP, in a process of its own: it is a client of the formation as any other, with direct
//! access to what is on its host. The runtime waits for sockets; whatever asks the formation does so on threads that
//! may block, and what is at hand is sent without ([`at_once`]).
//!
//! A request shows a key ([`keys`]) and names a path ([`RequestPath`]); the formation is a [`Tree`], in which nothing
//! leads out of what the key is for. See docs/http.md.
//!
//! Layers, from the lowest; a module uses those of its own line and of the lines above it, also through methods of
//! [`Tree`]:
//! - requests and answers: `request_path`, `query`, `conditions`, `ranges`, `dav_headers`, `host`, `origin`; `body`,
//!   `xml`,
//!   `error_response`, `json_entry`, `content_type`; `at_once`, `cancellation`
//! - what requests share: `keys`, `digests`, `load`, `open_files`, `name_locks`, `upload_claims`, `upload_pipe`
//! - `tree`: [`Tree`], which is the formation and those
//! - what is done in it: `dead_properties`, `open_file`, `tree_state`, `removal`; then `placing`, `uploads`; then
//!   `copying`, `locks`
//! - what hosts know of each other (`announce`) and of published entries (`known`)
//! - front ends, which use none of each other: `files`, `dav`, `s3`, `page`
//! - `service`: what a request is for; then `server`: connections, with `timeout_stream` and `certificate`

pub mod announce;
mod at_once;
mod body;
mod cancellation;
mod certificate;
mod conditions;
mod content_type;
mod copying;
mod dav;
mod dav_headers;
mod dead_properties;
mod digests;
mod error_response;
mod files;
#[cfg(test)]
mod fuzzed;
mod host;
mod json_entry;
pub mod keys;
pub mod known;
mod load;
mod locks;
mod name_locks;
mod open_file;
mod open_files;
mod origin;
mod page;
mod placing;
mod query;
mod ranges;
mod removal;
mod request_path;
mod s3;
mod server;
mod service;
mod timeout_stream;
mod tree;
mod tree_state;
mod upload_claims;
mod upload_pipe;
mod uploads;
mod xml;

pub use certificate::{check as check_certificate, fingerprint, make as make_certificate};
pub use page::{ExplainRequest, MakeView, PLACE as PAGE, Page, PageView, PathExplainer, Views};
pub use request_path::RequestPath;
pub use server::{Options, serve};
pub use service::Route;

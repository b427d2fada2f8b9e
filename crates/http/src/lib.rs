//! A formation's files over HTTP, in a process of its own: it is a client of the formation as any other, with direct
//! access to what is on its host. The runtime waits for sockets; whatever asks the formation does so on threads that may
//! block, and what is at hand is sent without ([`at_once`]).
//!
//! Who asks shows a key ([`keys`]); what for is a path ([`Target`]); the formation is a [`Tree`], in which nothing leads out
//! of what the key is for. See docs/http.md.

pub mod announce;
mod at_once;
mod body;
mod certificate;
mod conditions;
mod dav;
mod digests;
mod entries;
#[cfg(test)]
mod fuzzed;
mod host;
pub mod keys;
pub mod known;
mod listing;
mod load;
mod metalink;
mod open_files;
mod origin;
mod page;
mod patient;
mod placing;
mod ranges;
mod reading;
mod refusal;
mod s3;
mod server;
mod service;
mod target;
mod tree;
mod trees;
mod uploads;
mod writing;

use std::net::TcpListener;

use bivouac_client::Member;

pub use certificate::{check as check_certificate, fingerprint, make as make_certificate};
pub use page::{Explain, Explained, MakeView, PLACE as PAGE, View, Views};
pub use server::serve;
pub use service::{Page, Route};
pub use target::Target;

/// What a server is.
pub struct Options {
    /// Where it listens.
    pub listener: TcpListener,
    /// Its part in the formation.
    pub member: Member,
    /// The formation's secret.
    pub secret: [u8; keys::SECRET_LEN],
    /// Certificate and private key; without them what is sent can be read by others.
    pub pem: Option<String>,
    /// What others call this host, when it listens at all of its addresses.
    pub host: String,
    /// The domain whose names have a bucket of S3 in front.
    pub domain: Option<String>,
    /// The nodes of this host.
    pub nodes: Vec<u16>,
    /// Pages that are not files.
    pub routes: Vec<Route>,
    /// What the page for browsers shows.
    pub views: Views,
}

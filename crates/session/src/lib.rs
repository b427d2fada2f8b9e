//! Sessions: what a node knows of a client, and what of that both have to agree on. Machines without clocks, locks or
//! messages of their own: time is an argument, the caller has the lock, and `node` and `client` send what follows.
//! The terms are those of NFSv4.1 (RFC 8881, sections 2.10 and 8 to 10).
//!
//! | part | at a node | at a client |
//! |---|---|---|
//! | the session: connected, gone, awaiting reclaim, ended | [`ClientTable`] | – |
//! | connections, of which only the newest count | [`NewestGeneration`] | numbers that rise, in `net` |
//! | a change of records that may arrive twice | [`judge_request`], [`judge_step`] | marks each request but the first |
//! | a change of content that may arrive twice | [`ClientReplies`] | the same number, over whichever connection |
//! | opens and closes | [`OpenTable`] | [`OpenNumbers`] |
//! | leases on attributes and names | [`SlotLeases`], [`Contenders`] | – |
//!
//! Range tokens, one more kind of lease, are machines of both sides in the crate `tokens`.
//!
//! # Why a request is carried out once
//! A request can arrive at a node several times: the client sends it again when it did not get the answer, and the
//! first transmission may still be under way over a connection that only the node believes in. Two facts decide, both
//! looked at under the lock that orders the change:
//! - Before a client sends anything again it connects anew, in a newer *generation*, and the node supersedes the former
//!   ones before it answers that. So a request of a superseded generation was asked again, or given up: it is refused.
//! - Of the newest generation, a request without the mark is the first of its kind; one with the mark is looked for among
//!   what was carried out.

mod clients;
mod connections;
mod leases;
mod numbers;
mod opens;
mod replies;
mod requests;

pub use clients::{ClientTable, FloorOrder, ReclaimedOpens, Work};
pub use connections::{GenerationMatch, NewestGeneration};
pub use leases::{ChangesAtPlace, Contenders, Item, LeaseHolder, SlotLeases};
pub use numbers::{OpenNumbers, OpensUnderWay};
pub use opens::OpenTable;
pub use replies::{ClientReplies, Connection, KnownReply};
pub use requests::{Verdict, judge_request, judge_step};

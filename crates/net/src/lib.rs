//! Frames between processes: blocking, without a runtime. The bytes are in docs/protocol.md.
//!
//! - Asking: a [`Transport`] carries one [`Request`] at a time ([`SocketTransport`] over TCP or a Unix
//!   socket, [`InProcess`] as a function call); [`Peer`] adds bounded waiting and resending; [`call`],
//!   [`call_into`], [`start`] and [`begin`] (with [`await_any`], for many at a time) speak in operations instead of
//!   bytes. For those who are known to be dead ([`LivenessTable`]) nobody waits any more.
//! - Answering: a [`Server`] gives the frames that arrive on its [`Listener`]s to a [`Service`].
//! - Both sides prove with [`Auth`] that they know the formation's secret before the first request.
//! - Both ways at any time: a [`Link`] carries [`Message`]s between supervisors.
//! - To other formations: an encrypted connection in two halves, [`SealedReader`] and [`SealedWriter`].
//! - Over TCP each side compares what comes with its seal, or opens it; what was damaged is sent again, a few times.
//! - Faults for tests: [`FailingTransport`], and a network that changes bytes, [`TamperingProxy`]; what every transport
//!   must do: [`conformance`].

mod address;
mod auth;
mod busy_poll;
mod call;
pub mod conformance;
mod connect;
mod connection;
mod error;
mod failing;
mod generation;
mod handshake;
mod hook;
mod in_process;
mod keep;
mod line;
mod link;
mod listener;
mod liveness;
mod meddling;
mod peer;
mod processors;
mod readiness;
mod records;
mod retransmission;
mod sealed;
mod server;
mod service;
mod slices;
mod socket;
mod steps;
mod transport;
mod watch;

pub use address::Address;
pub use auth::{Auth, DaemonId, Identity, Introduction, Secret};
pub use busy_poll::BusyPoll;
pub use call::{StartedCall, begin, call, call_into, start};
pub use error::{Damage, HandshakeRefusal, NetError};
pub use failing::{FailingTransport, HoldPoint, InjectedFault};
pub use generation::Generation;
pub use hook::{before_waiting, on_block, pause};
pub use in_process::InProcess;
pub use keep::keep_sockets;
pub use line::Line;
pub use link::{Link, Message};
pub use listener::Listener;
pub use liveness::LivenessTable;
pub use meddling::{ForwardedUnit, TamperingProxy, Unit};
pub use peer::{OnReconnect, Peer, PeerOptions};
pub use processors::looking_max;
pub use readiness::{Wait, await_any};
pub use sealed::{SealedEnd, SealedReader, SealedWriter, accept_sealed, connect_sealed};
pub use server::{Server, ServerOptions, ServiceListeners};
pub use service::{Call, LaneKind, Reply, RequestOrigin, Service};
pub use socket::{SocketOptions, SocketTransport};
pub use transport::{InFlightRequest, PendingReply, ReplyHead, Request, Transport};
pub use watch::{BrokenConnection, Watch};

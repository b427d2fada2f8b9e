//! Errors between two processes.

use std::io;

use bivouac_types::{Errno, FsError, NodeId};
use bivouac_wire::VERSION;

use crate::Address;

/// Reason why an exchange failed. A reply with an errno is not such an error: it was carried well.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No connection could be made; the request was not sent.
    #[error("cannot connect to {address}: {cause}; is the daemon running there?")]
    Connect {
        /// Address that was tried.
        address: Address,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The connection broke; the request may have been carried out.
    #[error("connection to {address} was lost: {cause}")]
    Lost {
        /// To whom.
        address: Address,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Another process answered than before; the request was not sent.
    #[error("the daemon at {address} was restarted")]
    Restarted {
        /// Address of the other side.
        address: Address,
    },
    /// The bytes of a request, or of its answer, were changed on the way.
    #[error("{what} {address} was damaged on the way, {times} times; look for a bad cable, card or switch")]
    Damaged {
        /// Between here and where.
        address: Address,
        /// The damaged message, seen from here.
        what: Damage,
        /// Number of times so far.
        times: u32,
    },
    /// No reply in time; the request may have been carried out.
    #[error("{address} did not answer within {waited_ms} ms")]
    TimedOut {
        /// Address of the silent side.
        address: Address,
        /// Time waited, in milliseconds.
        waited_ms: u64,
    },
    /// A node stayed away for as long as the caller was willing to wait.
    #[error("{node} at {address} cannot be reached, waited {waited_s} s: {cause}; see `bivouac status`")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// Its address.
        address: Address,
        /// Time waited, in seconds.
        waited_s: f32,
        /// The last error.
        cause: Box<NetError>,
    },
    /// The node is known to be dead, for so long.
    #[error("it is known to be dead for {dead_s} s")]
    Dead {
        /// For how long, in seconds.
        dead_s: u64,
        /// True if the request may have been carried out before.
        sent: bool,
    },
    /// The other side does not want us, or we do not trust it.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// Address of the refusing side.
        address: Address,
        /// Its reason.
        reason: HandshakeRefusal,
    },
    /// The other side sent bytes that make no sense.
    #[error("{address} does not keep to the protocol: {what}")]
    Protocol {
        /// Address of the other side.
        address: Address,
        /// The violation.
        what: String,
    },
    /// Body or payload above the limit; nothing was sent.
    #[error("request of {bytes} bytes is above the limit of {limit}; split it")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most that fits, in bytes.
        limit: usize,
    },
    /// The peer was closed on this side.
    #[error("connection to {address} was closed here")]
    Closed {
        /// To whom.
        address: Address,
    },
    /// A listener could not be made.
    #[error("cannot listen on {address}: {cause}; {remedy}")]
    Listen {
        /// Address to listen on.
        address: Address,
        /// The kernel's error.
        cause: io::Error,
        /// Action that helps.
        remedy: &'static str,
    },
    /// The system refused something that is not tied to a peer.
    #[error("cannot {what}: {cause}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl NetError {
    /// Returns whether the request may have reached the other side.
    #[must_use]
    pub fn maybe_sent(&self) -> bool {
        match self {
            NetError::Lost { .. } | NetError::TimedOut { .. } | NetError::Protocol { .. } => true,
            NetError::Unreachable { cause, .. } => cause.maybe_sent(),
            NetError::Dead { sent, .. } => *sent,
            NetError::Damaged { what, .. } => *what == Damage::Answer,
            _ => false,
        }
    }

    /// Returns whether a later attempt may succeed.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        let passes = matches!(
            self,
            NetError::Connect { .. }
                | NetError::Lost { .. }
                | NetError::Restarted { .. }
                | NetError::Damaged { .. }
                | NetError::Refused { reason: HandshakeRefusal::Moved, .. }
        );
        // With `EFAULT` the caller's buffer is as bad at the next attempt.
        passes && !self.is_fault()
    }

    /// Returns whether this process has no descriptors left.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        use rustix::io::Errno;
        let NetError::Connect { cause, .. } = self else { return false };
        matches!(Errno::from_io_error(cause), Some(Errno::MFILE | Errno::NFILE))
    }

    /// Returns whether nobody listens there, or somebody who does not know us.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        match self {
            NetError::Connect { cause, .. } | NetError::Lost { cause, .. } => {
                cause.kind() == io::ErrorKind::ConnectionRefused
            }
            NetError::Refused { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the other side has closed the connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let NetError::Lost { cause, .. } = self else { return false };
        cause.kind() == io::ErrorKind::UnexpectedEof
    }

    /// Returns whether the node's socket is not there any more: its supervisor keeps that until the formation is taken
    /// down.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let NetError::Connect { address: Address::Unix(_), cause } = self else { return false };
        cause.kind() == io::ErrorKind::NotFound
    }

    /// Returns whether the caller's buffer cannot be read or written.
    fn is_fault(&self) -> bool {
        let NetError::Lost { cause, .. } = self else { return false };
        rustix::io::Errno::from_io_error(cause) == Some(rustix::io::Errno::FAULT)
    }
}

impl From<NetError> for FsError {
    fn from(error: NetError) -> FsError {
        let errno = match &error {
            error if error.is_fault() => Errno::EFAULT,
            error if error.is_starved() => Errno::EMFILE,
            error if error.is_gone() => Errno::ENOTCONN,
            _ => Errno::EIO,
        };
        let cause = if error.is_fault() {
            "the buffer is not there, or cannot be written to".to_owned()
        } else {
            error.to_string()
        };
        FsError::with(errno, cause)
    }
}

/// Message that came with other bytes than it was sent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The question: it was not carried out.
    #[error("a request to")]
    Request,
    /// The answer.
    #[error("an answer from")]
    Answer,
}

/// Reason why a handshake ended without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeRefusal {
    /// Secrets differ.
    #[error("it does not have our secret; use the secret file of the formation that runs there")]
    Secret,
    /// Formations differ.
    #[error("it belongs to another formation; use the address and the map of the running formation")]
    Formation,
    /// Versions differ.
    #[error("it speaks protocol version {theirs}, this is {VERSION}; use one release of bivouac everywhere")]
    Version {
        /// Its version; 0 if it did not say.
        theirs: u16,
    },
    /// Lanes differ.
    #[error("it listens there for the other kind of caller (client and peer ports are mixed up in the map)")]
    Lane,
    /// Another user's process.
    #[error("it serves only processes of its own user; run as the user who started the formation")]
    User,
    /// One side encrypts, the other does not.
    #[error("one of the two encrypts and the other does not; use the map of the formation that runs there")]
    Way,
    /// Another daemon serves the node now, or another node is at the address; or the client is a former daemon of a
    /// node.
    #[error("the node has moved to another host; this is not its present daemon")]
    Moved,
    /// Some other reason.
    #[error("it answered the handshake with error {status}")]
    Other {
        /// The errno that it sent.
        status: i32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        Address::tcp("h:1")
    }

    #[test]
    fn unreachable_names_node_address_and_time() {
        let cause = NetError::Connect { address: address(), cause: io::ErrorKind::ConnectionRefused.into() };
        let error = NetError::Unreachable {
            node: NodeId(3),
            address: address(),
            waited_s: 30.0,
            cause: Box::new(cause),
        };
        let text = FsError::from(error).to_string();
        for part in ["node 3", "h:1", "30 s", "connection refused"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn only_what_was_sent_may_have_been_carried_out() {
        let lost = NetError::Lost { address: address(), cause: io::ErrorKind::ConnectionReset.into() };
        assert!(lost.maybe_sent() && lost.is_passing());
        let fault = NetError::Lost { address: address(), cause: rustix::io::Errno::FAULT.into() };
        assert!(fault.maybe_sent() && !fault.is_passing(), "the same buffer will not be better later");
        assert_eq!(FsError::from(fault).errno(), Errno::EFAULT);
        let starved = NetError::Connect { address: address(), cause: rustix::io::Errno::MFILE.into() };
        assert!(starved.is_starved() && !starved.maybe_sent());
        assert_eq!(FsError::from(starved).errno(), Errno::EMFILE);
        let gone = NetError::Connect { address: Address::unix("/n"), cause: io::ErrorKind::NotFound.into() };
        assert!(gone.is_gone() && FsError::from(gone).errno() == Errno::ENOTCONN);
        let other = NetError::Connect { address: address(), cause: io::ErrorKind::NotFound.into() };
        assert!(!other.is_gone(), "a host that has no name may get one");
        let damaged = |what| NetError::Damaged { address: address(), what, times: 1 };
        assert!(damaged(Damage::Answer).maybe_sent() && !damaged(Damage::Request).maybe_sent());
        assert!(damaged(Damage::Answer).is_passing() && damaged(Damage::Request).is_passing());
        assert_eq!(FsError::from(damaged(Damage::Request)).errno(), Errno::EIO);
        let restarted = NetError::Restarted { address: address() };
        assert!(!restarted.maybe_sent() && restarted.is_passing());
        let refused = NetError::Refused { address: address(), reason: HandshakeRefusal::Secret };
        assert!(!refused.maybe_sent() && !refused.is_passing());
        let moved = NetError::Refused { address: address(), reason: HandshakeRefusal::Moved };
        assert!(!moved.maybe_sent() && moved.is_passing(), "a newer map says where the node is");
    }
}

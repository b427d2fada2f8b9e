//! Messages between the command and the hosts that it measures between, on an encrypted connection per host.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use bivouac_net::{Link, Message};
use bivouac_sysmap::{Address, Map};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The only number of a message: what it is its text says.
const TEXT: u16 = 1;

/// The answer of a host over the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub struct StationAnswer {
    /// Its map.
    pub map: Map,
    /// Its address.
    pub station: StationAddress,
}

/// Address at which a host takes orders. It goes over the launcher only, which is the user's own, so nobody else knows
/// the secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StationAddress {
    /// Its addresses, the best first.
    pub addresses: Vec<Address>,
    /// The port for orders.
    pub port: u16,
    /// The port for what is sent to measure.
    pub data_port: u16,
    /// Names the station in the handshake, hexadecimal.
    pub id: String,
    /// Proves both sides to each other, hexadecimal.
    pub secret: String,
    /// Reason why it takes no orders, if it does not.
    pub trouble: Option<String>,
}

/// A transfer to make or to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferOrder {
    /// Beginning of its connections, so that no other is taken for one.
    pub key: String,
    /// Number of connections.
    pub streams: usize,
    /// Duration.
    pub ms: u64,
}

/// An order to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeasureOrder {
    /// Take a transfer; answered by [`Reply::Ready`] and, when it is over, by [`Reply::Received`].
    Receive(TransferOrder),
    /// Make a transfer to this address; answered by [`Reply::Sent`].
    Send(SocketAddr, TransferOrder),
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Ready for connections.
    Ready,
    /// Bits per second that arrived.
    Received(Result<u64, String>),
    /// Sending is complete.
    Sent(Result<(), String>),
}

/// One side of such a connection.
pub struct MeasuredConnection {
    link: Link,
    heard: VecDeque<Message>,
}

impl std::fmt::Debug for MeasuredConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeasuredConnection").field("to", self.link.address()).finish_non_exhaustive()
    }
}

impl MeasuredConnection {
    /// Creates a connection over a link.
    pub fn over(link: Link) -> MeasuredConnection {
        MeasuredConnection { link, heard: VecDeque::new() }
    }

    /// Waits until then for the other side to prove that it knows the secret; returns whether it has.
    ///
    /// # Errors
    /// That it does not know it, or is gone.
    pub fn await_proof(&mut self, until: Instant) -> Result<bool, String> {
        while !self.link.is_proven() && Instant::now() < until {
            self.wait(until)?;
        }
        Ok(self.link.is_proven())
    }

    /// Says something.
    ///
    /// # Errors
    /// That the connection is lost.
    pub fn say<T: Serialize>(&mut self, what: &T) -> Result<(), String> {
        let body = serde_json::to_vec(what).map_err(|e| e.to_string())?;
        self.link.send(&Message { op: TEXT, body, payload: Vec::new() }).map_err(|e| e.to_string())
    }

    /// Returns the other side's next message; nothing if there is none until then.
    ///
    /// # Errors
    /// That the connection is lost, or what came makes no sense.
    pub fn hear<T: DeserializeOwned>(&mut self, until: Instant) -> Result<Option<T>, String> {
        loop {
            if let Some(message) = self.heard.pop_front() {
                let text = serde_json::from_slice(&message.body);
                return text.map(Some).map_err(|e| format!("says what makes no sense: {e}"));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            self.wait(until)?;
        }
    }

    /// Waits until a message arrives, or queued bytes can be sent.
    fn wait(&mut self, until: Instant) -> Result<(), String> {
        // Before waiting: an order that is still queued here has no answer.
        self.link.flush().map_err(|e| e.to_string())?;
        let flags = if self.link.wants_to_send() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|e| e.to_string())?;
        match poll(&mut [PollFd::new(&self.link, flags)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        self.heard.extend(self.link.receive().map_err(|e| e.to_string())?);
        Ok(())
    }
}

//! A connection that is being made: connecting and shaking hands, without waiting, so that one thread can make many.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use bivouac_types::limits::{FRAME_HEADER_LEN, HANDSHAKE_BODY_MAX};
use bivouac_wire::{Frame, FrameChecksum, Kind};
use parking_lot::Mutex;
use rustix::event::PollFlags;

use super::{Connection, FIRST_READ_LEN, unsent};
use crate::busy_poll::BusyPoll;
use crate::connect::{begin_to_ask, connect, is_own_end};
use crate::handshake::ClientSide;
use crate::keep::kept;
use crate::readiness::{Wait, await_any};
use crate::{Address, DaemonId, Damage, Identity, NetError};

/// Longest wait for one attempt to connect.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// A connection that is being made.
pub(crate) struct Opening {
    connection: Connection,
    client: ClientSide,
    /// Addresses of the host that have not been tried.
    others: IntoIter<SocketAddr>,
    is_connected: bool,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    moved: Instant,
}

/// Result of a step.
pub(crate) enum Opened {
    /// It is established.
    Connection(Connection),
    /// It waits for the other side.
    NotYet(Box<Opening>),
    /// It waits, on another socket than before.
    Elsewhere(Box<Opening>),
}

impl Opening {
    /// Begins to connect, as one connection of a generation. Each step that comes then takes `wait` at most.
    pub fn begin(
        address: &Address,
        identity: &Identity,
        daemon: Option<DaemonId>,
        generation: u64,
        wait: Duration,
    ) -> Result<Box<Opening>, NetError> {
        let failed = |cause| NetError::Connect { address: address.clone(), cause };
        let mut others = match address {
            Address::Tcp(host_port) => host_port.to_socket_addrs().map_err(failed)?,
            Address::Unix(_) | Address::InProcess => Vec::new().into_iter(),
        };
        let socket = match address {
            Address::Tcp(_) => first_of(&mut others),
            // On this machine nobody is far away.
            Address::Unix(_) | Address::InProcess => connect(address, wait.min(CONNECT_MAX)).map(kept),
        };
        let mut connection = Connection {
            socket: Arc::new(socket.map_err(failed)?),
            address: address.clone(),
            wait: Duration::ZERO,
            instance: 0,
            generation,
            is_proven: false,
            way: identity.auth.way(!address.is_sealed()),
            channel: None,
            busy_poll: BusyPoll::default(),
        };
        connection.set_wait(wait)?;
        let client = ClientSide::new(identity, daemon, generation, !address.is_sealed())?;
        let outgoing = client.hello();
        let (incoming, moved) = (Vec::new(), Instant::now());
        Ok(Box::new(Opening { connection, client, others, is_connected: false, outgoing, incoming, moved }))
    }

    /// Returns its socket, for others to shut down.
    pub fn socket(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.connection.socket)
    }

    /// Returns its destination.
    pub fn address(&self) -> &Address {
        &self.connection.address
    }

    /// Carries it on until it is made; tells of other sockets that it gets.
    pub fn complete(self: Box<Self>, tell: impl Fn(Weak<OwnedFd>)) -> Result<Connection, NetError> {
        let mut opening = self;
        loop {
            match opening.advance()? {
                Opened::Connection(connection) => return Ok(connection),
                Opened::NotYet(waits) => opening = waits,
                Opened::Elsewhere(waits) => {
                    tell(waits.socket());
                    opening = waits;
                }
            }
            let _it_is_the_only_one = await_any(&[opening.wait()], true);
        }
    }

    /// Returns the event that carries it on.
    pub fn wait(&self) -> Wait<'_> {
        let events = if self.outgoing.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        Wait::new(&self.connection, events, self.moved + self.patience())
    }

    /// Goes on as far as that goes without waiting.
    pub fn advance(mut self: Box<Self>) -> Result<Opened, NetError> {
        match self.shake_hands().map_err(unsent) {
            Ok(true) => Ok(Opened::Connection(self.connection)),
            Ok(false) if self.moved.elapsed() < self.patience() => Ok(Opened::NotYet(self)),
            Ok(false) if self.is_connected => Err(self.connection.timed_out()),
            Ok(false) => self.connect_elsewhere(io::ErrorKind::TimedOut.into()),
            Err(NetError::Connect { cause, .. }) if !self.is_connected => self.connect_elsewhere(cause),
            Err(error) => Err(error),
        }
    }

    fn patience(&self) -> Duration {
        if self.is_connected { self.connection.wait } else { self.connection.wait.min(CONNECT_MAX) }
    }

    /// Tries the host's next address, if there is one.
    fn connect_elsewhere(mut self: Box<Self>, cause: io::Error) -> Result<Opened, NetError> {
        let (address, wait) = (self.connection.address.clone(), self.connection.wait);
        if self.others.len() == 0 {
            return Err(NetError::Connect { address, cause });
        }
        let socket = first_of(&mut self.others).map_err(|cause| NetError::Connect { address, cause })?;
        // Zero, so that `set_wait` sets the timeouts of the new socket as well.
        (self.connection.socket, self.connection.wait) = (Arc::new(socket), Duration::ZERO);
        self.connection.set_wait(wait)?;
        self.moved = Instant::now();
        Ok(Opened::Elsewhere(self))
    }

    /// Returns whether all has been said and heard.
    fn shake_hands(&mut self) -> Result<bool, NetError> {
        loop {
            let Some((frame, body)) = (if self.say()? { self.hear()? } else { None }) else {
                return Ok(false);
            };
            let connection = &mut self.connection;
            if self.client.has_proven() {
                let welcomed = ClientSide::welcomed(&frame, &body);
                connection.instance = welcomed.map_err(|error| connection.untrusted(&error))?;
                connection.is_proven = true;
                return Ok(true);
            }
            let proof = self.client.prove(&frame, &body);
            self.outgoing = proof.map_err(|error| connection.untrusted(&error))?;
            // What is heard from now on is encrypted. A refusal is not, and counts for damage: anybody could have sent
            // it.
            let channel = self.client.channel().map_err(|error| connection.untrusted(&error))?;
            connection.channel = channel.map(|channel| Box::new(Mutex::new(channel)));
        }
    }

    /// Sends what is to be said, as it is; whether all of it is gone.
    fn say(&mut self) -> Result<bool, NetError> {
        while !self.outgoing.is_empty() {
            let Some(sent) = self.connection.send_bytes_now(&[IoSlice::new(&self.outgoing)])? else {
                return Ok(false);
            };
            // Asking a dead port of this host can connect a socket to itself, which then takes the port.
            let lost = |cause| self.connection.lost(cause);
            if !self.is_connected && is_own_end(&self.connection.socket).map_err(lost)? {
                return Err(self.connection.lost(io::ErrorKind::ConnectionRefused.into()));
            }
            self.outgoing.drain(..sent);
            (self.is_connected, self.moved) = (true, Instant::now());
        }
        Ok(true)
    }

    /// Returns the answer, once all of it is there.
    fn hear(&mut self) -> Result<Option<(Frame, Vec<u8>)>, NetError> {
        let mut room = [0; FIRST_READ_LEN];
        loop {
            if let Some(frame) = self.incoming.first_chunk::<FRAME_HEADER_LEN>() {
                let frame = self.connection.decode(Some(frame))?;
                let (len, have) = (frame.body_len as usize, self.incoming.len() - FRAME_HEADER_LEN);
                // The server says nothing more before it is answered, so what is longer comes from another program.
                if len > HANDSHAKE_BODY_MAX || have > len {
                    return Err(self.connection.alien("a handshake that is too long"));
                }
                if have == len {
                    let body = self.incoming.split_off(FRAME_HEADER_LEN);
                    self.incoming.clear();
                    return self.whole(frame, body).map(Some);
                }
            }
            let Some(came) = self.connection.receive_now(&mut [IoSliceMut::new(&mut room)])? else {
                return Ok(None);
            };
            self.incoming.extend_from_slice(room.get(..came).unwrap_or_default());
            self.moved = Instant::now();
        }
    }

    fn whole(&self, frame: Frame, body: Vec<u8>) -> Result<(Frame, Vec<u8>), NetError> {
        let mut summing = FrameChecksum::default();
        summing.add(&body);
        if frame.kind == Kind::Damaged || !summing.fits(frame.seal) {
            // The next attempt shakes hands anew.
            return Err(self.connection.damaged(Damage::Request));
        }
        Ok((frame, body))
    }
}

/// Returns a socket that is on its way to the first of some addresses that can be tried.
fn first_of(targets: &mut IntoIter<SocketAddr>) -> io::Result<OwnedFd> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "host has no address");
    for target in targets {
        match begin_to_ask(target) {
            Ok(socket) => return Ok(kept(socket)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

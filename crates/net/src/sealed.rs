//! An encrypted connection in two halves, each for a thread that may wait: how a formation reaches another one.
//!
//! The handshake is that of every connection; here the field for the formation names the secret, so that the side that
//! accepts can have many, and the asking side needs to be nobody of its formation.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_types::FormationId;
use bivouac_types::limits::{FRAME_HEADER_LEN, HANDSHAKE_BODY_MAX};
use bivouac_wire::{Decode, Frame, FrameError, FrameProtection};
use rustix::net::{RecvFlags, SendFlags, sockopt};

use crate::connect::connect;
use crate::handshake::{HELLO, HandshakeStep, ServerSide, refusal};
use crate::link::{is_whole, shake_hands};
use crate::records::{Channel, Forged, Opening, RecordReadError, Sealing};
use crate::{Address, Auth, HandshakeRefusal, Identity, LaneKind, NetError, auth, retransmission};

/// Longest time in which a side takes nothing before the connection ends.
const SEND_WAIT: Duration = Duration::from_secs(60);
/// Error for bytes that are not those that were sent.
const DAMAGED: &str = "a record was damaged on the way, or forged";

/// The receiving half.
pub struct SealedReader {
    socket: Arc<OwnedFd>,
    opening: Opening,
    deadline: Option<Instant>,
}

/// The sending half.
pub struct SealedWriter {
    socket: Arc<OwnedFd>,
    sealing: Sealing,
    sealed: Vec<u8>,
}

/// Ends a connection, from any thread.
#[derive(Clone)]
pub struct SealedEnd(Arc<OwnedFd>);

impl SealedEnd {
    /// Ends both directions: whoever waits for one gets an error.
    pub fn cut(&self) {
        // It may have ended before.
        let _ended = rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Both);
    }
}

impl SealedReader {
    /// Sets the time at which reads fail, however many bytes arrive until then; with `None` they wait for ever.
    ///
    /// # Errors
    /// That of the system.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        if self.deadline.is_some() && deadline.is_none() {
            // The last timeout of the deadline before would end reads that may take any time now.
            sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, None)?;
        }
        self.deadline = deadline;
        Ok(())
    }

    /// Fills `into`.
    ///
    /// # Errors
    /// The end of the connection, or of the time; `InvalidData` for a record that does not open.
    pub fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        let mut have = 0;
        while let Some(rest) = into.get_mut(have..).filter(|rest| !rest.is_empty()) {
            let (socket, deadline) = (&self.socket, self.deadline);
            let receive = |room: &mut [u8]| loop {
                // Anew for each read: the deadline bounds all of them together.
                if let Some(deadline) = deadline {
                    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(left_until(deadline)?))?;
                }
                match rustix::net::recv(socket, &mut *room, RecvFlags::empty()) {
                    Ok((0, _)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                    Ok((len, _)) => return Ok(len),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            };
            have += match self.opening.read(&mut [IoSliceMut::new(rest)], receive) {
                Ok(len) => len,
                Err(RecordReadError::Link(error)) => return Err(error),
                Err(RecordReadError::Forged) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, DAMAGED));
                }
            };
        }
        Ok(())
    }
}

impl SealedWriter {
    /// Sends all parts, one behind the other.
    ///
    /// # Errors
    /// The end of the connection, or a side that takes nothing. Nothing can be sent afterwards.
    pub fn write_all(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.write(parts, None)
    }

    /// Like [`SealedWriter::write_all`], ending at `deadline` however slowly the other side takes the bytes. For
    /// writers of which all writes have one.
    ///
    /// # Errors
    /// As [`SealedWriter::write_all`].
    pub fn write_until(&mut self, parts: &[&[u8]], deadline: Instant) -> io::Result<()> {
        self.write(parts, Some(deadline))
    }

    fn write(&mut self, parts: &[&[u8]], deadline: Option<Instant>) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = slices.as_mut_slice();
        // Without empty parts in front: a record of none of their bytes would be sealed for ever.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            self.sealed.clear();
            let taken = self
                .sealing
                .seal(rest, &mut self.sealed)
                .map_err(|Forged| io::Error::other("a record cannot be encrypted"))?;
            IoSlice::advance_slices(&mut rest, taken);
            let mut left = self.sealed.as_slice();
            while !left.is_empty() {
                if let Some(deadline) = deadline {
                    let wait = Some(left_until(deadline)?);
                    sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Send, wait)?;
                }
                match rustix::net::send(&self.socket, left, SendFlags::NOSIGNAL) {
                    Ok(sent) => left = left.get(sent..).unwrap_or_default(),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Returns a handle that ends the connection.
    #[must_use]
    pub fn end(&self) -> SealedEnd {
        SealedEnd(Arc::clone(&self.socket))
    }
}

/// Connects, and proves that this side knows the secret; each step takes `wait` at most.
///
/// # Errors
/// That nobody answers there, or that the other side does not know the secret or speaks another version.
pub fn connect_sealed(
    address: &Address,
    identity: &Identity,
    wait: Duration,
) -> Result<(SealedReader, SealedWriter), NetError> {
    let socket =
        connect(address, wait).map_err(|cause| NetError::Connect { address: address.clone(), cause })?;
    set_timeouts(&socket, Some(wait), wait)?;
    let (_, channel) = shake_hands(&socket, address, identity)?;
    let not_encrypted =
        || NetError::Protocol { address: address.clone(), what: "it is not encrypted".into() };
    halves(socket, channel.ok_or_else(not_encrypted)?)
}

/// Admits a client that has connected and knows the secret that it names; all steps together take `wait` at most.
/// Returns the name of the secret, too. `auth_of` has the secrets by their names.
///
/// # Errors
/// That it does not prove that it knows the secret, or the end of the connection.
pub fn accept_sealed(
    socket: TcpStream,
    auth_of: impl Fn(FormationId) -> Auth,
    wait: Duration,
) -> Result<(SealedReader, SealedWriter, FormationId), NetError> {
    let from = socket.peer_addr().map_or_else(|_| "(gone)".to_owned(), |from| from.to_string());
    let address = Address::tcp(from);
    let failed = |cause: rustix::io::Errno| NetError::System { what: "set up a socket", cause: cause.into() };
    let lost = |cause| NetError::Lost { address: address.clone(), cause };
    let refused = |reason| NetError::Refused { address: address.clone(), reason };
    let alien = |what: &str| NetError::Protocol { address: address.clone(), what: what.into() };
    sockopt::set_tcp_nodelay(&socket, true).map_err(failed)?;
    retransmission::bound_retransmission(&socket);
    retransmission::enable_keepalive(&socket);
    let mut stream = Bounded { socket: &socket, deadline: Instant::now() + wait };
    let mut handshake = ServerSide::new(LaneKind::Client, FrameProtection::Record, auth::nonce()?);
    let mut name: Option<Auth> = None;
    loop {
        let mut header = [0; FRAME_HEADER_LEN];
        stream.read_exact(&mut header).map_err(lost)?;
        let frame = match Frame::from_bytes(&header) {
            Ok(frame) => frame,
            Err(FrameError::Version(theirs)) => {
                let reason = HandshakeRefusal::Version { theirs };
                // So that it can say so where it was started; it may be gone.
                let _told = stream.write_all(&refusal(reason));
                return Err(refused(reason));
            }
            Err(error) => return Err(alien(&error.to_string())),
        };
        // Before anything is kept for it.
        if frame.body_len as usize > HANDSHAKE_BODY_MAX || frame.payload_len > 0 {
            return Err(alien("a handshake that is too long"));
        }
        let mut body = vec![0; frame.body_len as usize];
        stream.read_exact(&mut body).map_err(lost)?;
        if !is_whole(&frame, &body, FrameProtection::Sum) {
            return Err(alien("a handshake was damaged on the way"));
        }
        if frame.op == HELLO
            && let Some(named) = body.first_chunk::<16>()
            && let Ok(named) = FormationId::from_bytes(named)
        {
            // An unknown name has a secret too, one that nobody has: a stranger cannot find out which names there are.
            name = Some(auth_of(named));
        }
        let Some(auth) = &name else { return Err(alien("something else than a handshake")) };
        match handshake.take(auth, 0, |_| true, &frame, &body) {
            HandshakeStep::Reply(answer) => stream.write_all(&answer).map_err(lost)?,
            HandshakeStep::Admit(answer, ..) => {
                let channel = handshake.channel().ok_or_else(|| alien("it is not encrypted"))?;
                let deadline = stream.deadline;
                let (reader, mut writer) = halves(socket.into(), channel)?;
                writer.write_until(&[&answer], deadline).map_err(lost)?;
                set_timeouts(&writer.socket, None, SEND_WAIT)?;
                return Ok((reader, writer, auth.formation));
            }
            HandshakeStep::Refuse(answer) => {
                let _told = stream.write_all(&answer);
                let _ended = socket.shutdown(Shutdown::Write);
                return Err(refused(HandshakeRefusal::Secret));
            }
            HandshakeStep::Hang => return Err(alien("something else than a handshake")),
        }
    }
}

/// A socket whose reads and writes all end at one time, however little at a time comes or is taken.
struct Bounded<'a> {
    socket: &'a TcpStream,
    deadline: Instant,
}

impl Read for Bounded<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left_until(self.deadline)?))?;
        self.socket.read(into)
    }
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left_until(self.deadline)?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the time that is left; an error if there is none. Timeouts of sockets are of whole microseconds, and 0 is
/// for ever.
fn left_until(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        left if left.is_zero() => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left.max(Duration::from_millis(1))),
    }
}

fn halves(socket: OwnedFd, channel: Channel) -> Result<(SealedReader, SealedWriter), NetError> {
    // Answers may take their time; keepalive finds a connection over which none will come.
    set_timeouts(&socket, None, SEND_WAIT)?;
    let socket = Arc::new(socket);
    let Channel { sealing, opening } = channel;
    let writer = SealedWriter { socket: Arc::clone(&socket), sealing, sealed: Vec::new() };
    Ok((SealedReader { socket, opening, deadline: None }, writer))
}

fn set_timeouts(socket: impl AsFd, receive: Option<Duration>, send: Duration) -> Result<(), NetError> {
    let set = |which, wait| {
        sockopt::set_socket_timeout(&socket, which, wait)
            .map_err(|cause| NetError::System { what: "set a socket's timeout", cause: cause.into() })
    };
    set(sockopt::Timeout::Recv, receive)?;
    set(sockopt::Timeout::Send, Some(send))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use bivouac_types::ClientId;

    use super::*;
    use crate::Secret;

    const WAIT: Duration = Duration::from_secs(20);

    fn auth_of(name: FormationId) -> Auth {
        Auth { formation: name, secret: Secret::new([name.0[0]; 32]), is_secure: true }
    }

    fn identity(name: u8, secret: u8) -> Identity {
        let auth =
            Auth { formation: FormationId([name; 16]), secret: Secret::new([secret; 32]), is_secure: true };
        Identity { auth, client: ClientId(1), lane: LaneKind::Client, epoch: 0 }
    }

    #[test]
    fn both_halves_carry_what_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::tcp(listener.local_addr().unwrap().to_string());
        let sent: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        let served = std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let (mut reader, mut writer, name) = accept_sealed(socket, auth_of, WAIT).unwrap();
            let mut got = vec![0; 1_000_000];
            reader.read_exact(&mut got).unwrap();
            writer.write_all(&[b"so ", b"", b"be it"]).unwrap();
            (name, got)
        });
        let (mut reader, mut writer) = connect_sealed(&address, &identity(7, 7), WAIT).unwrap();
        writer.write_all(&[&sent[..10], &sent[10..]]).unwrap();
        let mut answer = [0; 8];
        reader.read_exact(&mut answer).unwrap();
        let (name, got) = served.join().unwrap();
        assert_eq!((&answer, name), (b"so be it", FormationId([7; 16])));
        assert!(got == sent, "other bytes came than were sent");
        writer.end().cut();
        assert!(reader.read_exact(&mut answer).is_err());
    }

    #[test]
    fn a_wrong_secret_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::tcp(listener.local_addr().unwrap().to_string());
        let served = std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            accept_sealed(socket, auth_of, WAIT).map(drop)
        });
        let refused = connect_sealed(&address, &identity(7, 8), WAIT).map(drop).unwrap_err();
        assert!(matches!(refused, NetError::Refused { reason: HandshakeRefusal::Secret, .. }), "{refused}");
        assert!(served.join().unwrap().is_err());
    }
}

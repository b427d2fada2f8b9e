//! A connection on which both sides speak when they want, after they have proven themselves: how the supervisors of
//! a formation's hosts come together.
//!
//! It never waits, except in [`Link::connect`] ([`Link::reach`] does not): whoever owns it polls its descriptor, and
//! calls [`Link::receive`] and [`Link::flush`]. Before the other side is proven it takes no more memory than a
//! handshake's frame.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bivouac_types::limits::{FRAME_BODY_MAX, FRAME_HEADER_LEN, FRAME_PAYLOAD_MAX, HANDSHAKE_BODY_MAX};
use bivouac_types::{ClientId, OpId};
use bivouac_wire::{Frame, FrameChecksum, FrameError, FrameProtection, Kind};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use crate::connect::{begin_to_connect, connect};
use crate::handshake::{ClientSide, HandshakeError, HandshakeStep, ServerSide, refusal};
use crate::records::{Channel, Forged, Opening, RecordReadError};
use crate::{Address, Auth, HandshakeRefusal, Identity, LaneKind, NetError, auth};

/// Bytes that one call reads.
const READ_LEN: usize = 1 << 16;
/// Silence after which the kernel asks whether the other side lives.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(3600);
/// Error for bytes that are not those that were sent.
const DAMAGED: &str = "a message was damaged on the way: look for a bad cable, card or switch";
/// Most bytes queued for a side that does not take them.
const OUTGOING_MAX: usize = 4 * FRAME_PAYLOAD_MAX;

/// A message between the two sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its operation; see docs/protocol.md.
    pub op: u16,
    /// Its encoded body.
    pub body: Vec<u8>,
    /// Its raw payload.
    pub payload: Vec<u8>,
}

/// One side of such a connection.
pub struct Link {
    socket: OwnedFd,
    address: Address,
    stage: Stage,
    /// Protection of messages, after the handshake.
    way: FrameProtection,
    /// Encryption of messages, if there is any.
    channel: Option<Box<Channel>>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

enum Stage {
    /// We ask, and the other side has not proven itself.
    Asking(Box<ClientSide>),
    /// The other side has not proven itself.
    Proving(Box<ServerSide>, Auth),
    /// The other side has authenticated; with the bytes that hide a secret.
    Proven([u8; 32]),
}

impl Link {
    /// Takes the next connection of a listener. The other side has proven nothing yet.
    ///
    /// # Errors
    /// What the system says; `WouldBlock` where a non-blocking listener has none.
    pub fn accept(listener: &TcpListener, auth: &Auth) -> Result<Link, NetError> {
        let failed = |cause| NetError::System { what: "accept a connection", cause };
        let (socket, from) = listener.accept().map_err(failed)?;
        let way = auth.way(false);
        let handshake = Box::new(ServerSide::new(LaneKind::Peer, way, auth::nonce()?));
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let stage = Stage::Proving(handshake, auth.clone());
        Link::over(socket.into(), Address::tcp(from.to_string()), stage, way)
    }

    /// Connects to a listener, and proves who we are; each step takes `wait` at most.
    ///
    /// # Errors
    /// That nobody answers there, or not the one whom we look for.
    pub fn connect(address: &Address, identity: &Identity, wait: Duration) -> Result<Link, NetError> {
        let connected = connect(address, wait);
        let socket = connected.map_err(|cause| NetError::Connect { address: address.clone(), cause })?;
        for id in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            let limited = sockopt::set_socket_timeout(&socket, id, Some(wait));
            limited
                .map_err(|cause| NetError::System { what: "set a socket's timeout", cause: cause.into() })?;
        }
        let (pad, channel) = shake_hands(&socket, address, identity)?;
        let link = Link::over(socket, address.clone(), Stage::Proven(pad), identity.auth.way(false))?;
        Ok(Link { channel: channel.map(Box::new), ..link })
    }

    /// Begins to connect to a listener and to prove who we are, without waiting: [`Link::is_proven`] once that is done,
    /// an error of [`Link::flush`] or [`Link::receive`] if it cannot be done.
    ///
    /// # Errors
    /// That there is no way there, or what the system says.
    pub fn reach(address: SocketAddr, identity: &Identity) -> Result<Link, NetError> {
        let to = Address::tcp(address.to_string());
        let socket =
            begin_to_connect(address).map_err(|cause| NetError::Connect { address: to.clone(), cause })?;
        let client = Box::new(ClientSide::new(identity, None, 0, false)?);
        let outgoing = client.hello();
        let link = Link::over(socket, to, Stage::Asking(client), identity.auth.way(false))?;
        Ok(Link { outgoing, ..link })
    }

    fn over(socket: OwnedFd, address: Address, stage: Stage, way: FrameProtection) -> Result<Link, NetError> {
        let failed = |cause: Errno| NetError::System { what: "set up a socket", cause: cause.into() };
        rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
        sockopt::set_tcp_nodelay(&socket, true).map_err(failed)?;
        // Whoever owns it speaks from time to time, and knows better than the kernel how long silence may last.
        sockopt::set_tcp_user_timeout(&socket, 0).map_err(failed)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE).map_err(failed)?;
        sockopt::set_socket_keepalive(&socket, true).map_err(failed)?;
        Ok(Link { socket, address, stage, way, channel: None, incoming: Vec::new(), outgoing: Vec::new() })
    }

    /// Returns the other side's address, for messages.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns this host's address from which the other side is reached.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        let address = rustix::net::getsockname(&self.socket).ok()?;
        SocketAddr::try_from(address).ok().map(|address| address.ip().to_canonical())
    }

    /// Returns the other side's address, to reach it again.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        let address = rustix::net::getpeername(&self.socket).ok()??;
        SocketAddr::try_from(address).ok()
    }

    /// Returns whether the other side has proven that it knows the secret.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        matches!(self.stage, Stage::Proven(_))
    }

    /// Hides a secret from who listens on the wire, or shows it again. To be used for one secret only; all
    /// zeros before the other side is proven.
    #[must_use]
    pub fn seal(&self, secret: &[u8; 32]) -> [u8; 32] {
        let Stage::Proven(pad) = &self.stage else { return [0; 32] };
        let mut sealed = *secret;
        sealed.iter_mut().zip(pad).for_each(|(byte, pad)| *byte ^= pad);
        sealed
    }

    /// Returns whether there is something to send that [`Link::flush`] could not.
    #[must_use]
    pub fn wants_to_send(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends a message, or as much of it as goes without waiting.
    ///
    /// # Errors
    /// That the connection broke, the message is too long, or the other side takes nothing.
    pub fn send(&mut self, message: &Message) -> Result<(), NetError> {
        let Message { op, body, payload } = message;
        for (bytes, limit) in [(body.len(), FRAME_BODY_MAX), (payload.len(), FRAME_PAYLOAD_MAX)] {
            if bytes > limit {
                return Err(NetError::TooLong { bytes, limit });
            }
        }
        // The other side does not read. To keep on adding would make its trouble this side’s.
        if self.outgoing.len() > OUTGOING_MAX {
            return Err(self.lost(io::ErrorKind::TimedOut.into()));
        }
        let mut frame = Frame::request(*op, OpId(0), ClientId(0), 0);
        (frame.body_len, frame.payload_len) = (body.len() as u32, payload.len() as u32);
        frame.seal = self.way.seal(body, [payload.as_slice()]);
        self.put(&[&frame.to_bytes(), body, payload])?;
        self.flush()
    }

    /// Puts bytes behind those that wait to be sent; encrypted, once that was agreed.
    fn put(&mut self, parts: &[&[u8]]) -> Result<(), NetError> {
        let Some(channel) = &mut self.channel else {
            parts.iter().for_each(|part| self.outgoing.extend_from_slice(part));
            return Ok(());
        };
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = slices.as_mut_slice();
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let taken = channel.sealing.seal(rest, &mut self.outgoing).map_err(|Forged| {
                NetError::System { what: "encrypt a message", cause: io::ErrorKind::Other.into() }
            })?;
            IoSlice::advance_slices(&mut rest, taken);
        }
        Ok(())
    }

    /// Sends what waits to be sent, as far as that goes without waiting.
    ///
    /// # Errors
    /// That the connection broke.
    pub fn flush(&mut self) -> Result<(), NetError> {
        while !self.outgoing.is_empty() {
            match rustix::net::send(&self.socket, &self.outgoing, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(self.lost(error.into())),
            }
        }
        Ok(())
    }

    /// Receives the messages that have come, without waiting.
    ///
    /// # Errors
    /// That the connection broke or was closed, that the other side does not know the secret, or says what makes no
    /// sense.
    pub fn receive(&mut self) -> Result<Vec<Message>, NetError> {
        let mut messages = Vec::new();
        loop {
            while let Some((frame, rest)) = self.next_frame()? {
                self.take(&frame, rest, &mut messages)?;
            }
            match self.receive_some() {
                Ok(()) => {}
                Err(RecordReadError::Link(Some(Errno::AGAIN))) => return Ok(messages),
                // What it said before it closed is heard first.
                Err(_) if !messages.is_empty() => return Ok(messages),
                Err(RecordReadError::Link(Some(error))) => return Err(self.lost(error.into())),
                Err(RecordReadError::Link(None)) => {
                    return Err(self.lost(io::ErrorKind::UnexpectedEof.into()));
                }
                Err(RecordReadError::Forged) => return Err(self.alien(DAMAGED)),
            }
        }
    }

    /// Takes what is there; [`None`] for an error is the end of the connection.
    fn receive_some(&mut self) -> Result<(), RecordReadError<Option<Errno>>> {
        let mut buffer = vec![0; READ_LEN];
        let socket = &self.socket;
        let receive = |into: &mut [u8]| loop {
            match rustix::net::recv(socket, &mut *into, RecvFlags::empty()) {
                Ok((0, _)) => return Err(None),
                Ok((len, _)) => return Ok(len),
                Err(Errno::INTR) => {}
                Err(error) => return Err(Some(error)),
            }
        };
        let len = match &mut self.channel {
            Some(channel) => channel.opening.read(&mut [IoSliceMut::new(&mut buffer)], receive)?,
            None => receive(&mut buffer).map_err(RecordReadError::Link)?,
        };
        self.incoming.extend_from_slice(buffer.get(..len).unwrap_or_default());
        Ok(())
    }

    /// Returns the next whole frame with what follows its header; `None` while it is not all there.
    fn next_frame(&mut self) -> Result<Option<(Frame, Vec<u8>)>, NetError> {
        let Some(header) = self.incoming.first_chunk::<FRAME_HEADER_LEN>() else { return Ok(None) };
        let frame = Frame::from_bytes(header).map_err(|error| self.not_ours(error))?;
        let (body, payload) = (frame.body_len as usize, frame.payload_len as usize);
        // Before anything is kept for it: whoever has not proven itself must not make this side hold more than a
        // handshake.
        if !self.is_proven() && (body > HANDSHAKE_BODY_MAX || payload > 0) {
            return Err(self.alien("a handshake that is too long"));
        }
        let len = FRAME_HEADER_LEN + body + payload;
        if self.incoming.len() < len {
            return Ok(None);
        }
        let rest: Vec<u8> = self.incoming.drain(..len).skip(FRAME_HEADER_LEN).collect();
        // Handshakes are summed whatever carries them: neither side knows yet whether the other one encrypts.
        let way = if self.is_proven() { self.way } else { FrameProtection::Sum };
        if !is_whole(&frame, &rest, way) {
            return Err(self.alien(DAMAGED));
        }
        Ok(Some((frame, rest)))
    }

    fn take(
        &mut self,
        frame: &Frame,
        mut rest: Vec<u8>,
        messages: &mut Vec<Message>,
    ) -> Result<(), NetError> {
        let len = frame.body_len as usize + frame.payload_len as usize;
        assert!(rest.len() == len, "{} bytes of a message of {len}", rest.len());
        if self.is_proven() {
            let payload = rest.split_off(frame.body_len as usize);
            messages.push(Message { op: frame.op, body: rest, payload });
            return Ok(());
        }
        let (handshake, auth) = match &mut self.stage {
            Stage::Proving(handshake, auth) => (handshake, auth),
            _ => return self.take_answer(frame, &rest),
        };
        match handshake.take(auth, 0, |_| true, frame, &rest) {
            HandshakeStep::Reply(answer) => self.outgoing.extend(answer),
            HandshakeStep::Admit(answer, ..) => {
                // Welcome is the first encrypted message, so the channel is set up before it is put into the queue.
                let (pad, channel) = (handshake.pad(auth).unwrap_or_default(), handshake.channel());
                self.encrypt(channel)?;
                self.put(&[&answer])?;
                self.stage = Stage::Proven(pad);
            }
            HandshakeStep::Refuse(answer) => {
                self.outgoing.extend(answer);
                let _it_may_be_gone = self.flush();
                return Err(self.refused(HandshakeRefusal::Secret));
            }
            HandshakeStep::Hang => return Err(self.alien("something else than a handshake")),
        }
        self.flush()
    }

    /// Takes the asking side's next step.
    fn take_answer(&mut self, frame: &Frame, body: &[u8]) -> Result<(), NetError> {
        let failed = handshake_failed(&self.address);
        let Stage::Asking(client) = &mut self.stage else { return Ok(()) };
        if client.has_proven() {
            ClientSide::welcomed(frame, body).map_err(&failed)?;
            self.stage = Stage::Proven(client.pad());
            return Ok(());
        }
        let proof = client.prove(frame, body).map_err(&failed)?;
        let channel = client.channel().map_err(&failed)?;
        // In this order: the proof itself is sent in the clear, as the server has no keys before it.
        self.put(&[&proof])?;
        self.encrypt(channel)?;
        self.flush()
    }

    /// Encrypts everything from now on, if that was agreed. No encrypted bytes can have arrived yet: the other side
    /// waits.
    fn encrypt(&mut self, channel: Option<Channel>) -> Result<(), NetError> {
        if channel.is_some() && !self.incoming.is_empty() {
            return Err(self.alien("something else than a handshake"));
        }
        self.channel = channel.map(Box::new);
        Ok(())
    }

    /// Answers what speaks another version, so that it can say so where it was started.
    fn not_ours(&mut self, error: FrameError) -> NetError {
        let FrameError::Version(theirs) = error else { return self.alien(&error.to_string()) };
        let reason = HandshakeRefusal::Version { theirs };
        if matches!(self.stage, Stage::Proving(..)) {
            self.outgoing.extend(refusal(reason));
            let _it_may_be_gone = self.flush();
        }
        self.refused(reason)
    }

    fn refused(&self, reason: HandshakeRefusal) -> NetError {
        NetError::Refused { address: self.address.clone(), reason }
    }

    fn alien(&self, what: &str) -> NetError {
        NetError::Protocol { address: self.address.clone(), what: what.into() }
    }

    fn lost(&self, cause: io::Error) -> NetError {
        NetError::Lost { address: self.address.clone(), cause }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns whether a frame is protected as agreed, and what follows its header is what was sent.
pub(crate) fn is_whole(frame: &Frame, rest: &[u8], way: FrameProtection) -> bool {
    let mut summing = FrameChecksum::default();
    if way == FrameProtection::Sum {
        summing.add(rest);
    }
    frame.seal.protection() == way && summing.fits(frame.seal)
}

/// Does the asking side's handshake, waiting for each answer. Returns the bytes that hide a secret on this connection,
/// and what encrypts it.
pub(crate) fn shake_hands(
    socket: &OwnedFd,
    address: &Address,
    identity: &Identity,
) -> Result<([u8; 32], Option<Channel>), NetError> {
    let failed = handshake_failed(address);
    let mut client = ClientSide::new(identity, None, 0, false)?;
    let (frame, challenge) = exchange(socket, address, &client.hello(), None)?;
    let proof = client.prove(&frame, &challenge).map_err(&failed)?;
    let mut channel = client.channel().map_err(&failed)?;
    let (frame, welcome) = exchange(socket, address, &proof, channel.as_mut())?;
    ClientSide::welcomed(&frame, &welcome).map_err(&failed)?;
    Ok((client.pad(), channel))
}

fn handshake_failed(address: &Address) -> impl Fn(HandshakeError) -> NetError + use<> {
    let address = address.clone();
    move |error| match error {
        HandshakeError::Refused(reason) => NetError::Refused { address: address.clone(), reason },
        HandshakeError::Alien(what) => NetError::Protocol { address: address.clone(), what: what.into() },
    }
}

/// Says something, and reads exactly the answer, through the channel if there is one already.
fn exchange(
    socket: &OwnedFd,
    address: &Address,
    message: &[u8],
    mut channel: Option<&mut Channel>,
) -> Result<(Frame, Vec<u8>), NetError> {
    let lost = |cause: io::Error| match cause.kind() {
        io::ErrorKind::WouldBlock => NetError::TimedOut { address: address.clone(), waited_ms: 0 },
        _ => NetError::Lost { address: address.clone(), cause },
    };
    let alien = |what: String| NetError::Protocol { address: address.clone(), what };
    let mut stream = TcpStream::from(socket.try_clone().map_err(lost)?);
    stream.write_all(message).map_err(lost)?;
    let mut read = |into: &mut [u8]| match &mut channel {
        None => stream.read_exact(into).map_err(lost),
        Some(channel) => read_opened(&mut channel.opening, &mut stream, into).map_err(|error| match error {
            RecordReadError::Forged => alien(DAMAGED.into()),
            RecordReadError::Link(cause) => lost(cause),
        }),
    };
    let mut header = [0; FRAME_HEADER_LEN];
    read(&mut header)?;
    let frame = Frame::from_bytes(&header).map_err(|error| match error {
        FrameError::Version(theirs) => {
            NetError::Refused { address: address.clone(), reason: HandshakeRefusal::Version { theirs } }
        }
        error => alien(error.to_string()),
    })?;
    let len = frame.body_len as usize;
    if len > HANDSHAKE_BODY_MAX || frame.payload_len > 0 || frame.kind != Kind::Reply {
        return Err(alien("something else than a handshake".into()));
    }
    let mut body = vec![0; len];
    read(&mut body)?;
    // Whatever a connection's frames are protected with follows from the handshake: its own have a plain sum.
    if is_whole(&frame, &body, FrameProtection::Sum) { Ok((frame, body)) } else { Err(alien(DAMAGED.into())) }
}

/// Fills `into` with what is opened, and takes nothing from the stream that is behind it.
fn read_opened(
    opening: &mut Opening,
    stream: &mut TcpStream,
    into: &mut [u8],
) -> Result<(), RecordReadError<io::Error>> {
    // What follows the handshake belongs to the owner of the connection, who reads the socket itself.
    opening.read_nothing_ahead(true);
    let mut have = 0;
    while let Some(rest) = into.get_mut(have..).filter(|rest| !rest.is_empty()) {
        have += opening.read(&mut [IoSliceMut::new(rest)], |room| match stream.read(room) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            read => read,
        })?;
    }
    opening.read_nothing_ahead(false);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;
    use bivouac_types::FormationId;
    use bivouac_wire::{Seal, VERSION, seal_of};
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

    const WAIT: Duration = Duration::from_secs(20);

    fn auth(secret: u8) -> Auth {
        Auth { formation: FormationId([7; 16]), secret: Secret::new([secret; 32]), is_secure: secret > 10 }
    }

    fn listener() -> (TcpListener, Address) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::tcp(listener.local_addr().unwrap().to_string());
        (listener, address)
    }

    fn connect_with(address: Address, secret: u8) -> std::thread::JoinHandle<Result<Link, NetError>> {
        let identity = Identity { auth: auth(secret), client: ClientId(5), lane: LaneKind::Peer, epoch: 0 };
        std::thread::spawn(move || Link::connect(&address, &identity, WAIT))
    }

    fn next(link: &mut Link) -> Result<Message, NetError> {
        loop {
            let mut messages = link.receive()?;
            if !messages.is_empty() {
                return Ok(messages.remove(0));
            }
            wait(link);
        }
    }

    fn wait(link: &Link) {
        let events = if link.wants_to_send() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        poll(&mut [PollFd::new(link, events)], None).unwrap();
    }

    /// Secrets of a formation that does not encrypt, and of one that does.
    const BOTH: [u8; 2] = [1, 11];

    /// Both sides of a proven connection.
    fn pair(secret: u8) -> (Link, Link) {
        let (listener, address) = listener();
        let other = connect_with(address, secret);
        let mut link = Link::accept(&listener, &auth(secret)).unwrap();
        while !link.is_proven() {
            wait(&link);
            assert_eq!(link.receive().unwrap(), []);
        }
        (link, other.join().unwrap().unwrap())
    }

    #[test]
    fn both_sides_speak_when_they_want() {
        BOTH.into_iter().for_each(both_sides_speak);
    }

    fn both_sides_speak(secret: u8) {
        let (mut here, mut there) = pair(secret);
        let say = |op, text: &str| Message { op, body: text.into(), payload: vec![7; 100_000] };
        there.send(&say(82, "a")).unwrap();
        there.send(&say(85, "b")).unwrap();
        here.send(&say(83, "c")).unwrap();
        assert_eq!(next(&mut here).unwrap(), say(82, "a"));
        assert_eq!(next(&mut there).unwrap(), say(83, "c"));
        let long = Message { payload: vec![1; FRAME_PAYLOAD_MAX], ..say(84, "") };
        here.send(&long).unwrap();
        let reader = std::thread::spawn(move || next(&mut there).unwrap());
        while here.wants_to_send() {
            poll(&mut [PollFd::new(&here, PollFlags::OUT)], None).unwrap();
            here.flush().unwrap();
        }
        assert_eq!(reader.join().unwrap(), long);
        let long = Message { payload: vec![1; FRAME_PAYLOAD_MAX + 1], ..long };
        assert!(matches!(here.send(&long), Err(NetError::TooLong { .. })));
    }

    /// Both sides of a connection, neither of which waits: what came of the asking one.
    fn meet(listener: &TcpListener, asks: u8, answers: u8) -> (Result<Link, NetError>, Option<Link>) {
        let identity = Identity { auth: auth(asks), client: ClientId(0), lane: LaneKind::Peer, epoch: 0 };
        let mut asking = Link::reach(listener.local_addr().unwrap(), &identity).unwrap();
        assert!(asking.wants_to_send() && !asking.is_proven());
        asking.flush().unwrap();
        let mut asked = Link::accept(listener, &auth(answers)).unwrap();
        loop {
            let both = [&asking, &asked].map(|link| {
                let events =
                    if link.wants_to_send() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                (link.as_fd().try_clone_to_owned().unwrap(), events)
            });
            poll(&mut both.each_ref().map(|(fd, events)| PollFd::new(fd, *events)), None).unwrap();
            // It may be gone: then the asking side knows why.
            let answered = asked.flush().and_then(|()| asked.receive());
            match asking.flush().and_then(|()| asking.receive()) {
                Err(error) => return (Err(error), None),
                Ok(said) => assert_eq!(said, []),
            }
            if asking.is_proven() && asked.is_proven() {
                return (Ok(asking), answered.is_ok().then_some(asked));
            }
        }
    }

    #[test]
    fn one_that_does_not_wait_proves_itself_too() {
        BOTH.into_iter().for_each(one_that_does_not_wait);
    }

    fn one_that_does_not_wait(secret: u8) {
        let (listener, _) = listener();
        let (asking, asked) = meet(&listener, secret, secret);
        let (mut asking, mut asked) = (asking.unwrap(), asked.unwrap());
        assert_eq!(asking.peer(), listener.local_addr().ok());
        assert_eq!(asked.seal(&asking.seal(&[9; 32])), [9; 32]);
        let message = Message { op: 200, body: vec![1], payload: vec![] };
        asking.send(&message).unwrap();
        assert_eq!(next(&mut asked).unwrap(), message);
        asked.send(&message).unwrap();
        assert_eq!(next(&mut asking).unwrap(), message);
        let refused = meet(&listener, secret + 1, secret).0.err().unwrap();
        assert!(matches!(refused, NetError::Refused { reason: HandshakeRefusal::Secret, .. }), "{refused}");
    }

    #[test]
    fn one_that_does_not_wait_hears_that_nobody_is_there() {
        // The socket has the port as long as it is there.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let at = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
        let identity = Identity { auth: auth(1), client: ClientId(0), lane: LaneKind::Peer, epoch: 0 };
        let failed = Link::reach(at, &identity).and_then(|mut link| {
            wait(&link);
            link.flush()
        });
        assert!(failed.unwrap_err().is_refused());
    }

    #[test]
    fn what_was_said_before_the_end_is_heard() {
        for secret in BOTH {
            let (mut here, mut there) = pair(secret);
            there.send(&Message { op: 85, body: vec![1], payload: vec![] }).unwrap();
            drop(there);
            assert_eq!(next(&mut here).unwrap().body, [1]);
            assert!(matches!(next(&mut here), Err(NetError::Lost { .. })));
        }
    }

    /// S425: what supervisors of hosts say to each other is what nobody else reads or changes, either.
    #[test]
    fn what_supervisors_say_is_encrypted() {
        for (change, is_secure) in [(false, true), (true, true), (false, false)] {
            let (listener, address) = listener();
            let heard = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
            let ears = std::sync::Arc::clone(&heard);
            let meddler = crate::TamperingProxy::between(address.to_string(), move |unit, mut bytes| {
                ears.lock().extend_from_slice(&bytes);
                let last = bytes.len() - 1;
                bytes[last] ^= u8::from(change && unit.is_asked && unit.number == 2);
                bytes.into()
            });
            let meddler = meddler.unwrap();
            let secret = BOTH[usize::from(is_secure)];
            let other = connect_with(meddler.address(), secret);
            let mut here = Link::accept(&listener, &auth(secret)).unwrap();
            while !here.is_proven() {
                wait(&here);
                assert_eq!(here.receive().unwrap(), []);
            }
            let mut there = other.join().unwrap().unwrap();
            there.send(&Message { op: 82, body: b"names and addresses".to_vec(), payload: vec![] }).unwrap();
            let came = next(&mut here);
            let heard = heard.lock().windows(19).any(|window| window == b"names and addresses");
            assert_eq!((came.is_ok(), heard), (!change, !is_secure), "{came:?}");
            assert!(!change || came.unwrap_err().to_string().contains("damaged on the way"));
        }
    }

    /// S424.
    #[test]
    fn supervisors_do_not_meet_where_only_one_encrypts() {
        for (asks, answers) in [(1, 11), (11, 1)] {
            let (listener, _) = listener();
            let refused = meet(&listener, asks, answers).0.err().unwrap();
            assert!(matches!(refused, NetError::Refused { reason: HandshakeRefusal::Way, .. }), "{refused}");
        }
    }

    #[test]
    fn a_secret_is_hidden_and_shown_again() {
        for secret in BOTH {
            let (here, there) = pair(secret);
            let sealed = here.seal(&[9; 32]);
            assert_ne!(sealed, [9; 32]);
            assert_eq!(there.seal(&sealed), [9; 32]);
            let (other, _) = pair(secret);
            assert_ne!(other.seal(&[9; 32]), sealed);
        }
    }

    #[test]
    fn who_does_not_know_the_secret_is_told_and_gets_nowhere() {
        let (listener, address) = listener();
        let stranger = connect_with(address, 2);
        let mut link = Link::accept(&listener, &auth(1)).unwrap();
        // It does not believe our proof either, and says no more.
        let error = loop {
            wait(&link);
            if let Err(error) = link.receive() {
                break error;
            }
        };
        assert!(!link.is_proven() && matches!(error, NetError::Lost { .. }), "{error}");
        assert_eq!(link.seal(&[9; 32]), [0; 32]);
        let refused = stranger.join().unwrap().err().unwrap();
        assert!(matches!(refused, NetError::Refused { reason: HandshakeRefusal::Secret, .. }), "{refused}");
    }

    #[test]
    fn another_version_is_said_on_both_sides() {
        let (listener, address) = listener();
        let Address::Tcp(to) = address else { panic!() };
        let mut stranger = TcpStream::connect(to).unwrap();
        let mut link = Link::accept(&listener, &auth(1)).unwrap();
        let mut frame = Frame::request(0xff01, OpId(0), ClientId(0), 0).to_bytes();
        let theirs = VERSION + 1;
        frame[4..6].copy_from_slice(&theirs.to_le_bytes());
        let sum = seal_of(&frame[..60], []);
        let Seal::Sum(sum) = sum else { panic!() };
        frame[60..].copy_from_slice(&sum.to_le_bytes());
        stranger.write_all(&frame).unwrap();
        wait(&link);
        let error = link.receive().unwrap_err();
        let is_said = matches!(error, NetError::Refused { reason: HandshakeRefusal::Version { theirs: said }, .. } if said == theirs);
        assert!(is_said, "{error}");
        drop(link);
        let mut answer = Vec::new();
        let _reset = stranger.read_to_end(&mut answer);
        assert_eq!(&answer[..4], b"BVK1");
    }

    #[test]
    fn garbage_costs_its_sender_the_connection_and_us_no_memory() {
        let mut long = Frame::request(0xff01, OpId(0), ClientId(0), 0);
        long.body_len = FRAME_BODY_MAX as u32;
        let mut early = Frame::request(84, OpId(0), ClientId(0), 0);
        early.body_len = 0;
        for garbage in
            [vec![0; 64], b"GET / HTTP/1.1\r\n".repeat(8), long.to_bytes().into(), early.to_bytes().into()]
        {
            let (listener, address) = listener();
            let Address::Tcp(to) = address else { panic!() };
            let mut stranger = TcpStream::connect(to).unwrap();
            let mut link = Link::accept(&listener, &auth(1)).unwrap();
            stranger.write_all(&garbage).unwrap();
            wait(&link);
            let error = link.receive().unwrap_err();
            assert!(matches!(error, NetError::Protocol { .. }), "{error}");
            assert!(link.incoming.capacity() <= 2 * READ_LEN);
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_are_an_error_or_nothing(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600)) {
            let (listener, address) = listener();
            let Address::Tcp(to) = address else { panic!() };
            let mut stranger = TcpStream::connect(to).unwrap();
            let mut link = Link::accept(&listener, &auth(1)).unwrap();
            stranger.write_all(&bytes).unwrap();
            drop(stranger);
            while link.receive().is_ok_and(|messages| messages.is_empty()) {
                wait(&link);
            }
            proptest::prop_assert!(!link.is_proven());
        }
    }
}

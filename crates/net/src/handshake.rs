//! The first four frames of a connection: both sides prove that they know the secret.
//!
//! ```text
//! client → Hello     request 0xff01   formation [16] lane u8 way u8 generation u64 epoch u32
//!                                     node u16 node's epoch u32 nonce [32] key [32]
//!                                     client id in the header
//! server → Challenge its reply        nonce [32] key [32] proof [32]                      or a status and no body
//! client → Proof     request 0xff02   proof [32]
//! server → Welcome   its reply        instance u64                                        or a status and no body
//! ```
//! The server proves itself first; its proof covers the client's nonce, so it tells an asker nothing. The way in which
//! all that follows is protected is not a matter of negotiation: both know it, and both prove that they do. Where it is
//! encrypted, that begins with Welcome.

use bivouac_types::limits::FRAME_HEADER_LEN;
use bivouac_types::{ClientId, Errno, FormationId, NodeId, OpId};
use bivouac_wire::{Decode, DecodeError, Encode, Frame, FrameProtection, Kind, seal_of};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;

use crate::auth::{self, HandshakeRole, KEY_LEN, NODE_ANY, NONCE_LEN, PROOF_LEN, Transcript, lane_byte};
use crate::records::Channel;
use crate::{Auth, DaemonId, HandshakeRefusal, Identity, Introduction, LaneKind, NetError, Secret};

/// Operation number of Hello and Challenge.
pub(crate) const HELLO: u16 = 0xff01;
/// Operation number of Proof and Welcome.
pub(crate) const PROOF: u16 = 0xff02;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hello {
    formation: FormationId,
    lane: u8,
    way: u8,
    generation: u64,
    epoch: u32,
    node: u16,
    node_epoch: u32,
    nonce: [u8; NONCE_LEN],
    key: [u8; KEY_LEN],
}
bivouac_wire::codec_struct!(Hello { formation, lane, way, generation, epoch, node, node_epoch, nonce, key });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Challenge {
    nonce: [u8; NONCE_LEN],
    key: [u8; KEY_LEN],
    proof: [u8; PROOF_LEN],
}
bivouac_wire::codec_struct!(Challenge { nonce, key, proof });

/// A side's key pair for one connection, whose private half goes with it.
struct KeyPair {
    private: Option<EphemeralPrivateKey>,
    public: [u8; KEY_LEN],
}

impl KeyPair {
    /// Draws a key pair; none, and zeros for it, where nothing is encrypted.
    fn draw(way: FrameProtection) -> Result<KeyPair, NetError> {
        if way != FrameProtection::Record {
            return Ok(KeyPair { private: None, public: [0; KEY_LEN] });
        }
        let pair = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new())
            .and_then(|private| private.compute_public_key().map(|public| (private, public)));
        let (private, public) = pair.map_err(|_| no_keys())?;
        let public = public.as_ref().first_chunk().copied().ok_or_else(no_keys)?;
        Ok(KeyPair { private: Some(private), public })
    }

    /// Returns the encryption of the connection for `side`, if there is any. Fails where the other side's key is none.
    fn channel(
        &mut self,
        transcript: &Transcript,
        secret: &Secret,
        side: HandshakeRole,
    ) -> Result<Option<Channel>, HandshakeError> {
        // Taken: with the same keys again, two channels would number different records alike.
        let Some(private) = self.private.take() else { return Ok(None) };
        let (theirs, other) = match side {
            HandshakeRole::Client => (transcript.server_key, HandshakeRole::Server),
            HandshakeRole::Server => (transcript.client_key, HandshakeRole::Client),
        };
        let theirs = UnparsedPublicKey::new(&X25519, theirs);
        let chains = agree_ephemeral(private, &theirs, |agreed| {
            Some((transcript.chain(secret, agreed, side)?, transcript.chain(secret, agreed, other)?))
        });
        let channel = chains.ok().flatten().and_then(|(ours, theirs)| Channel::new(ours, theirs));
        channel.map(Some).ok_or(HandshakeError::Alien("a key that is none"))
    }
}

fn no_keys() -> NetError {
    NetError::System { what: "draw keys", cause: std::io::ErrorKind::Other.into() }
}

/// The client's half: bytes in, bytes out.
pub(crate) struct ClientSide {
    identity: Identity,
    daemon: Option<DaemonId>,
    generation: u64,
    way: FrameProtection,
    nonce: [u8; NONCE_LEN],
    keys: KeyPair,
    transcript: Option<Transcript>,
}

impl ClientSide {
    /// Draws the nonce and the keys of a connection of this generation; 0 for one that belongs to none. No other daemon
    /// than `daemon`, if that is given, accepts it.
    pub fn new(
        identity: &Identity,
        daemon: Option<DaemonId>,
        generation: u64,
        is_of_one_machine: bool,
    ) -> Result<ClientSide, NetError> {
        let way = identity.auth.way(is_of_one_machine);
        ClientSide::with_nonce(identity, daemon, generation, way, auth::nonce()?)
    }

    fn with_nonce(
        identity: &Identity,
        daemon: Option<DaemonId>,
        generation: u64,
        way: FrameProtection,
        nonce: [u8; NONCE_LEN],
    ) -> Result<ClientSide, NetError> {
        let keys = KeyPair::draw(way)?;
        Ok(ClientSide { identity: identity.clone(), daemon, generation, way, nonce, keys, transcript: None })
    }

    /// Returns the first message.
    pub fn hello(&self) -> Vec<u8> {
        let Identity { auth, client, lane, epoch } = &self.identity;
        let (node, node_epoch) = self.daemon.map_or((NODE_ANY, 0), |daemon| (daemon.node.0, daemon.epoch));
        let hello = Hello {
            formation: auth.formation,
            lane: lane_byte(*lane),
            way: self.way as u8,
            generation: self.generation,
            epoch: *epoch,
            node,
            node_epoch,
            nonce: self.nonce,
            key: self.keys.public,
        };
        message(Frame::request(HELLO, OpId(0), *client, 0), &hello.to_bytes())
    }

    /// Returns the answer to the server's challenge.
    pub fn prove(&mut self, reply: &Frame, body: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        expect(reply, HELLO)?;
        let challenge = Challenge::from_bytes(body)?;
        let Identity { auth, client, lane, epoch } = &self.identity;
        let transcript = Transcript {
            formation: auth.formation,
            lane: *lane,
            client: *client,
            generation: self.generation,
            epoch: *epoch,
            daemon: self.daemon,
            way: self.way,
            client_nonce: self.nonce,
            server_nonce: challenge.nonce,
            client_key: self.keys.public,
            server_key: challenge.key,
        };
        // Before the client says anything that only a member could know: a stranger at the address learns nothing
        // from it.
        if !transcript.verify(&auth.secret, HandshakeRole::Server, &challenge.proof) {
            return Err(HandshakeError::Refused(HandshakeRefusal::Secret));
        }
        self.transcript = Some(transcript);
        let proof = transcript.prove(&auth.secret, HandshakeRole::Client);
        Ok(message(Frame::request(PROOF, OpId(0), *client, 0), &proof.to_bytes()))
    }

    /// Returns whether the server's challenge has been believed.
    pub fn has_proven(&self) -> bool {
        self.transcript.is_some()
    }

    /// Returns the encryption of all that follows the proof, if there is any; to be taken once.
    pub fn channel(&mut self) -> Result<Option<Channel>, HandshakeError> {
        let Some(transcript) = &self.transcript else { return Ok(None) };
        self.keys.channel(transcript, &self.identity.auth.secret, HandshakeRole::Client)
    }

    /// Returns the pad that hides a secret on this connection, once the server's challenge has been verified; see
    /// [`Transcript::pad`].
    pub fn pad(&self) -> [u8; PROOF_LEN] {
        let transcript = self.transcript.as_ref();
        transcript.map(|transcript| transcript.pad(&self.identity.auth.secret)).unwrap_or_default()
    }

    /// Reads the last message: the number that tells this run of the server from others.
    pub fn welcomed(reply: &Frame, body: &[u8]) -> Result<u64, HandshakeError> {
        expect(reply, PROOF)?;
        Ok(u64::from_bytes(body)?)
    }
}

fn expect(reply: &Frame, op: u16) -> Result<(), HandshakeError> {
    if reply.kind != Kind::Reply || reply.op != op || reply.payload_len != 0 {
        return Err(HandshakeError::Alien("another frame where the handshake was expected"));
    }
    match reply.status {
        0 => Ok(()),
        status => Err(HandshakeError::Refused(reason(status))),
    }
}

/// Reason why a handshake failed on the client's side.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandshakeError {
    Refused(HandshakeRefusal),
    Alien(&'static str),
}

impl From<DecodeError> for HandshakeError {
    fn from(_: DecodeError) -> HandshakeError {
        HandshakeError::Alien("a handshake that cannot be decoded")
    }
}

/// The server's half, one value per connection.
pub(crate) struct ServerSide {
    lane: LaneKind,
    way: FrameProtection,
    nonce: [u8; NONCE_LEN],
    state: ServerState,
    channel: Option<Channel>,
}

enum ServerState {
    Fresh,
    Challenged(Box<(Transcript, KeyPair)>),
}

/// Next action of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandshakeStep {
    /// Send this and wait for more.
    Reply(Vec<u8>),
    /// Send this; the client is who it says, and the connection is for this service.
    Admit(Vec<u8>, Introduction),
    /// Send this and close.
    Refuse(Vec<u8>),
    /// Close without a word: this is no client of ours.
    Hang,
}

impl ServerSide {
    /// Frames come the given way once the client has proven itself. `nonce` must be random.
    pub fn new(lane: LaneKind, way: FrameProtection, nonce: [u8; NONCE_LEN]) -> ServerSide {
        ServerSide { lane, way, nonce, state: ServerState::Fresh, channel: None }
    }

    /// Returns the way in which frames come and go after the handshake.
    pub fn way(&self) -> FrameProtection {
        self.way
    }

    /// Returns the lane that the client asks for, once it has; that of the listener before.
    pub fn lane(&self) -> LaneKind {
        self.lane
    }

    /// Takes a frame from the client. `instance` tells this run of the server from others; `admits` is whether the
    /// service takes a client that proves itself.
    pub fn take(
        &mut self,
        auth: &Auth,
        instance: u64,
        admits: impl Fn(&Introduction) -> bool,
        frame: &Frame,
        body: &[u8],
    ) -> HandshakeStep {
        if frame.kind != Kind::Request || frame.payload_len != 0 {
            return HandshakeStep::Hang;
        }
        match (&mut self.state, frame.op) {
            (ServerState::Fresh, HELLO) => self.challenge(auth, admits, frame, body),
            (ServerState::Challenged(known), PROOF) => {
                let (transcript, keys) = &mut **known;
                let step = admit(transcript, auth, instance, admits, frame, body);
                if !matches!(step, HandshakeStep::Admit(..)) {
                    return step;
                }
                // Not before the proof: it costs as much as hundreds of messages.
                match keys.channel(transcript, &auth.secret, HandshakeRole::Server) {
                    Ok(channel) => self.channel = channel,
                    Err(_) => return HandshakeStep::Hang,
                }
                step
            }
            // A proof without a challenge, or a second Hello, which would draw keys as often as a stranger likes.
            _ => HandshakeStep::Hang,
        }
    }

    /// Returns the encryption of Welcome and all that follows, if there is any; to be taken once the client is
    /// admitted.
    pub fn channel(&mut self) -> Option<Channel> {
        self.channel.take()
    }

    /// Returns the pad that hides a secret on this connection, once the client was challenged; see [`Transcript::pad`].
    pub fn pad(&self, auth: &Auth) -> Option<[u8; PROOF_LEN]> {
        match &self.state {
            ServerState::Fresh => None,
            ServerState::Challenged(known) => Some(known.0.pad(&auth.secret)),
        }
    }

    fn challenge(
        &mut self,
        auth: &Auth,
        admits: impl Fn(&Introduction) -> bool,
        frame: &Frame,
        body: &[u8],
    ) -> HandshakeStep {
        let Ok(hello) = Hello::from_bytes(body) else { return HandshakeStep::Hang };
        // Said before any proof: an address that another formation has taken over is a mistake, and no attack, and
        // its user needs to know which.
        if hello.formation != auth.formation {
            return refuse(frame, HandshakeRefusal::Formation);
        }
        match hello.lane {
            lane if lane == lane_byte(self.lane) => {}
            lane if lane == lane_byte(LaneKind::Mirror) && self.lane == LaneKind::Peer => {
                self.lane = LaneKind::Mirror;
            }
            _ => return refuse(frame, HandshakeRefusal::Lane),
        }
        if hello.way != self.way as u8 {
            return refuse(frame, HandshakeRefusal::Way);
        }
        let Ok(keys) = KeyPair::draw(self.way) else { return HandshakeStep::Hang };
        let transcript = Transcript {
            formation: auth.formation,
            lane: self.lane,
            client: frame.client,
            generation: hello.generation,
            epoch: hello.epoch,
            daemon: (hello.node != NODE_ANY)
                .then_some(DaemonId { node: NodeId(hello.node), epoch: hello.node_epoch }),
            way: self.way,
            client_nonce: hello.nonce,
            server_nonce: self.nonce,
            client_key: hello.key,
            server_key: keys.public,
        };
        // As above. Behind the proof, a refusal could not be told from damage where frames are encrypted.
        if !admits(&transcript.introduction()) {
            return refuse(frame, HandshakeRefusal::Moved);
        }
        let proof = transcript.prove(&auth.secret, HandshakeRole::Server);
        let challenge = Challenge { nonce: self.nonce, key: keys.public, proof };
        self.state = ServerState::Challenged(Box::new((transcript, keys)));
        HandshakeStep::Reply(message(reply(frame), &challenge.to_bytes()))
    }
}

fn admit(
    transcript: &Transcript,
    auth: &Auth,
    instance: u64,
    admits: impl Fn(&Introduction) -> bool,
    frame: &Frame,
    body: &[u8],
) -> HandshakeStep {
    let Ok(proof) = <[u8; PROOF_LEN]>::from_bytes(body) else { return HandshakeStep::Hang };
    if !transcript.verify(&auth.secret, HandshakeRole::Client, &proof) {
        return refuse(frame, HandshakeRefusal::Secret);
    }
    let introduction = transcript.introduction();
    // A newer map may have come since Hello: the next attempt is told.
    if !admits(&introduction) {
        return HandshakeStep::Hang;
    }
    HandshakeStep::Admit(message(reply(frame), &instance.to_bytes()), introduction)
}

/// Returns the refusal of a client of another protocol version, or of another user.
pub(crate) fn refusal(reason: HandshakeRefusal) -> Vec<u8> {
    let hello = Frame::request(HELLO, OpId(0), ClientId(0), 0);
    message(Frame { status: status(reason), ..reply(&hello) }, &[])
}

fn refuse(frame: &Frame, reason: HandshakeRefusal) -> HandshakeStep {
    HandshakeStep::Refuse(message(Frame { status: status(reason), ..reply(frame) }, &[]))
}

fn reply(frame: &Frame) -> Frame {
    frame.reply(0, 0, 0)
}

fn status(reason: HandshakeRefusal) -> i32 {
    match reason {
        HandshakeRefusal::Secret => Errno::EACCES.code(),
        HandshakeRefusal::Formation => Errno::ESTALE.code(),
        HandshakeRefusal::Version { .. } => Errno::EPROTO.code(),
        HandshakeRefusal::Lane => Errno::ENXIO.code(),
        HandshakeRefusal::User => Errno::EPERM.code(),
        HandshakeRefusal::Way => Errno::EOPNOTSUPP.code(),
        HandshakeRefusal::Moved => Errno::EXDEV.code(),
        HandshakeRefusal::Other { status } => status,
    }
}

fn reason(code: i32) -> HandshakeRefusal {
    let version = HandshakeRefusal::Version { theirs: 0 };
    let known = [
        HandshakeRefusal::Secret,
        HandshakeRefusal::Formation,
        version,
        HandshakeRefusal::Lane,
        HandshakeRefusal::User,
        HandshakeRefusal::Way,
        HandshakeRefusal::Moved,
    ];
    known
        .into_iter()
        .find(|reason| status(*reason) == code)
        .unwrap_or(HandshakeRefusal::Other { status: code })
}

/// Returns a message, sealed whatever carries it: it is short, and comes before either side knows the other.
fn message(mut frame: Frame, body: &[u8]) -> Vec<u8> {
    frame.body_len = body.len() as u32;
    frame.seal = seal_of(body, []);
    let mut bytes = Vec::with_capacity(FRAME_HEADER_LEN + body.len());
    bytes.extend_from_slice(&frame.to_bytes());
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;
    use proptest::prelude::*;

    fn identity() -> Identity {
        let mut secret = [0; 32];
        secret.iter_mut().zip(0..).for_each(|(byte, value)| *byte = value);
        let mut formation = [0; 16];
        formation.iter_mut().zip(0xf0..=0xff).for_each(|(byte, value)| *byte = value);
        let auth = Auth { formation: FormationId(formation), secret: Secret::new(secret), is_secure: false };
        Identity { auth, client: ClientId(0x1122_3344_5566_7788), lane: LaneKind::Client, epoch: 0x0c0d }
    }

    fn plain(identity: &Identity, nonce: u8) -> ClientSide {
        let daemon = Some(DaemonId { node: NodeId(0x0e0f), epoch: 0x0304 });
        ClientSide::with_nonce(identity, daemon, 0x0a0b, FrameProtection::Sum, [nonce; 32]).unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn split(message: &[u8]) -> (Frame, &[u8]) {
        let (header, body) = message.split_first_chunk().unwrap();
        let frame = Frame::from_bytes(header).unwrap();
        assert_eq!(frame.body_len as usize, body.len());
        (frame, body)
    }

    fn take(server: &mut ServerSide, message: &[u8]) -> HandshakeStep {
        let (frame, body) = split(message);
        server.take(&identity().auth, 0x0102, |_| true, &frame, body)
    }

    #[test]
    fn golden_vectors() {
        let identity = identity();
        let mut client = plain(&identity, 0xc1);
        let mut server = ServerSide::new(LaneKind::Client, FrameProtection::Sum, [0x51; 32]);
        let hello = client.hello();
        assert_eq!(&hello[..8], b"BVK1\x0c\x00\x01\xff");
        assert_eq!(&hello[32..40], &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        let expected = format!(
            "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff00010b0a0000000000000d0c00000f0e04030000{}{}",
            "c1".repeat(32),
            "00".repeat(32)
        );
        assert_eq!(hex(&hello[64..]), expected);
        let HandshakeStep::Reply(challenge) = take(&mut server, &hello) else { panic!("no challenge") };
        let (frame, body) = split(&challenge);
        let expected = format!("{}{}{SERVER_PROOF}", "51".repeat(32), "00".repeat(32));
        assert_eq!((frame.kind, frame.op, frame.status, hex(body)), (Kind::Reply, HELLO, 0, expected));
        let proof = client.prove(&frame, body).unwrap();
        let (_, body) = split(&proof);
        assert_eq!(hex(body), CLIENT_PROOF);
        let HandshakeStep::Admit(welcome, admitted) = take(&mut server, &proof) else {
            panic!("not admitted")
        };
        let (frame, body) = split(&welcome);
        let introduction = Introduction {
            client: identity.client,
            generation: 0x0a0b,
            epoch: 0x0c0d,
            daemon: Some(DaemonId { node: NodeId(0x0e0f), epoch: 0x0304 }),
        };
        assert_eq!((admitted, hex(body).as_str()), (introduction, "0201000000000000"));
        assert_eq!(ClientSide::welcomed(&frame, body), Ok(0x0102));
    }

    /// Computed with Python's `hmac` module.
    const SERVER_PROOF: &str = "677ee3e1af764b0b5a06b115608701d8cc38950b513a622dff364408a67d4400";
    const CLIENT_PROOF: &str = "e23bb0ce6b2c5eac9f96e13d8f694c97dbe69dfb4fc77d3e8c6b7ebe5c01bb29";

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let mut other = identity();
        other.auth.formation = FormationId([0; 16]);
        let mut peer = identity();
        peer.lane = LaneKind::Peer;
        for (identity, refusal) in [(other, HandshakeRefusal::Formation), (peer, HandshakeRefusal::Lane)] {
            let mut client = plain(&identity, 1);
            let mut server = ServerSide::new(LaneKind::Client, FrameProtection::Sum, [2; 32]);
            let HandshakeStep::Refuse(answer) = take(&mut server, &client.hello()) else {
                panic!("not refused")
            };
            let (frame, body) = split(&answer);
            let error = client.prove(&frame, body).unwrap_err();
            assert_eq!(error, HandshakeError::Refused(refusal));
        }
    }

    #[test]
    fn neither_side_trusts_another_secret() {
        let mut other = identity();
        other.auth.secret = Secret::new([9; 32]);
        let (honest, stranger) = (identity(), other);
        let mut server = ServerSide::new(LaneKind::Client, FrameProtection::Sum, [2; 32]);
        let mut client = plain(&stranger, 1);
        let HandshakeStep::Reply(challenge) = take(&mut server, &client.hello()) else {
            panic!("no challenge")
        };
        let (frame, body) = split(&challenge);
        assert_eq!(client.prove(&frame, body), Err(HandshakeError::Refused(HandshakeRefusal::Secret)));
        // A client that goes on regardless gets nowhere.
        let forged = message(Frame::request(PROOF, OpId(0), honest.client, 0), &[7; PROOF_LEN]);
        let HandshakeStep::Refuse(answer) = take(&mut server, &forged) else { panic!("not refused") };
        assert_eq!(split(&answer).0.status, Errno::EACCES.code());
    }

    /// Both sides of a handshake that encrypts, as far as the change lets it come.
    fn agree(change: impl Fn(&mut Vec<u8>, &mut Vec<u8>)) -> Result<(Channel, Channel), HandshakeError> {
        let mut identity = identity();
        identity.auth.is_secure = true;
        let mut client =
            ClientSide::new(&identity, Some(DaemonId { node: NodeId(3), epoch: 1 }), 7, false).unwrap();
        let mut server = ServerSide::new(LaneKind::Client, FrameProtection::Record, [2; 32]);
        let (hello, way) = (client.hello(), client.way);
        assert_eq!(way, FrameProtection::Record);
        let (frame, body) = split(&hello);
        let mut body = body.to_vec();
        change(&mut body, &mut Vec::new());
        let (HandshakeStep::Reply(challenge) | HandshakeStep::Refuse(challenge)) =
            server.take(&identity.auth, 1, |_| true, &frame, &body)
        else {
            panic!("no answer")
        };
        let (frame, body) = split(&challenge);
        let mut body = body.to_vec();
        change(&mut Vec::new(), &mut body);
        let proof = client.prove(&frame, &body)?;
        let HandshakeStep::Admit(..) = take(&mut server, &proof) else { panic!("not admitted") };
        Ok((client.channel()?.unwrap(), server.channel().unwrap()))
    }

    /// S424: whatever somebody in between changes of ways, nonces and keys.
    #[test]
    fn both_sides_have_the_same_keys_or_none() {
        let (mut client, mut server) = agree(|_, _| ()).unwrap();
        let mut record = Vec::new();
        client.sealing.seal(&[std::io::IoSlice::new(b"hello")], &mut record).unwrap();
        let mut came = [0; 5];
        let read = server.opening.read(&mut [std::io::IoSliceMut::new(&mut came)], |into| {
            into[..record.len()].copy_from_slice(&record);
            Ok::<_, ()>(record.len())
        });
        assert_eq!((read, &came), (Ok(5), b"hello"));
        let (again, _) = agree(|_, _| ()).unwrap();
        let mut other = again;
        let mut same = Vec::new();
        other.sealing.seal(&[std::io::IoSlice::new(b"hello")], &mut same).unwrap();
        assert_ne!(same, record, "keys are drawn anew");
        let refused = |outcome: Result<_, _>| outcome.err().unwrap();
        let downgraded = agree(|hello, _| hello.iter_mut().skip(17).take(1).for_each(|way| *way = 1));
        assert_eq!(refused(downgraded), HandshakeError::Refused(HandshakeRefusal::Way));
        for at in 18..100 {
            let changed = agree(|hello, _| hello.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1));
            assert_eq!(refused(changed), HandshakeError::Refused(HandshakeRefusal::Secret), "hello {at}");
        }
        for at in 0..96 {
            let changed = agree(|_, answer| answer.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1));
            assert_eq!(refused(changed), HandshakeError::Refused(HandshakeRefusal::Secret), "challenge {at}");
        }
    }

    #[test]
    fn a_daemon_refuses_who_means_another() {
        let identity = identity();
        let mut client = plain(&identity, 1);
        let mut server = ServerSide::new(LaneKind::Client, FrameProtection::Sum, [2; 32]);
        let later =
            |introduction: &Introduction| introduction.daemon.is_some_and(|daemon| daemon.epoch > 0x0304);
        let hello = client.hello();
        let (frame, body) = split(&hello);
        let HandshakeStep::Refuse(answer) = server.take(&identity.auth, 1, later, &frame, body) else {
            panic!("not refused")
        };
        let (frame, body) = split(&answer);
        assert_eq!(client.prove(&frame, body), Err(HandshakeError::Refused(HandshakeRefusal::Moved)));
        // One that has moved since Hello says nothing more.
        let mut server = ServerSide::new(LaneKind::Client, FrameProtection::Sum, [2; 32]);
        let HandshakeStep::Reply(challenge) = take(&mut server, &hello) else { panic!("no challenge") };
        let (frame, body) = split(&challenge);
        let proof = client.prove(&frame, body).unwrap();
        let (frame, body) = split(&proof);
        assert_eq!(server.take(&identity.auth, 1, later, &frame, body), HandshakeStep::Hang);
    }

    #[test]
    fn steps_out_of_order_end_the_connection() {
        let identity = identity();
        let proof = message(Frame::request(PROOF, OpId(0), identity.client, 0), &[0; PROOF_LEN]);
        let ping = message(Frame::request(1, OpId(0), identity.client, 0), &[]);
        for first in [proof, ping] {
            assert_eq!(
                take(&mut ServerSide::new(LaneKind::Client, FrameProtection::Sum, [2; 32]), &first),
                HandshakeStep::Hang
            );
        }
        let hello = plain(&identity, 1).hello();
        let mut server = ServerSide::new(LaneKind::Client, FrameProtection::Sum, [2; 32]);
        assert!(matches!(take(&mut server, &hello), HandshakeStep::Reply(_)));
        assert_eq!(take(&mut server, &hello), HandshakeStep::Hang);
    }

    #[test]
    fn every_reason_survives_the_wire() {
        let reasons = [
            HandshakeRefusal::Secret,
            HandshakeRefusal::Formation,
            HandshakeRefusal::Lane,
            HandshakeRefusal::User,
            HandshakeRefusal::Way,
        ];
        for expected in reasons
            .into_iter()
            .chain([HandshakeRefusal::Moved])
            .chain([HandshakeRefusal::Other { status: 5 }])
        {
            assert_eq!(reason(status(expected)), expected);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(op in 0xff00u16..0xff04, body in proptest::collection::vec(any::<u8>(), 0..130)) {
            let identity = identity();
            let frame = Frame::request(op, OpId(0), ClientId(1), 0);
            let mut server = ServerSide::new(LaneKind::Client, FrameProtection::Sum, [2; 32]);
            let step = server.take(&identity.auth, 1, |_| true, &frame, &body);
            prop_assert!(!matches!(step, HandshakeStep::Admit(..)));
            let mut client = plain(&identity, 1);
            prop_assert!(client.prove(&frame.reply(0, 0, 0), &body).is_err());
        }
    }
}

//! The first four frames of a connection: both sides prove that they know the secret.
//!
//! ```text
//! client → Hello     request 0xff01   formation [16] lane u8 nonce [32]   client id in the header
//! server → Challenge its reply        nonce [32] proof [32]               or a status and no body
//! client → Proof     request 0xff02   proof [32]
//! server → Welcome   its reply        instance u64                        or a status and no body
//! ```
//! The server proves itself first; its proof covers the client's nonce, so it tells an asker nothing.

use bivouac_types::limits::FRAME_HEADER_LEN;
use bivouac_types::{ClientId, Errno, FormationId, OpId};
use bivouac_wire::{Decode, DecodeError, Encode, Frame, Kind, seal_of};

use crate::auth::{NONCE_LEN, PROOF_LEN, Side, Transcript, lane_byte};
use crate::{Auth, Identity, LaneKind, Refusal};

/// Operation number of Hello and Challenge.
pub(crate) const HELLO: u16 = 0xff01;
/// Operation number of Proof and Welcome.
pub(crate) const PROOF: u16 = 0xff02;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hello {
    formation: FormationId,
    lane: u8,
    nonce: [u8; NONCE_LEN],
}
bivouac_wire::codec_struct!(Hello { formation, lane, nonce });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Challenge {
    nonce: [u8; NONCE_LEN],
    proof: [u8; PROOF_LEN],
}
bivouac_wire::codec_struct!(Challenge { nonce, proof });

/// The client's half: bytes in, bytes out.
pub(crate) struct ClientSide<'a> {
    identity: &'a Identity,
    nonce: [u8; NONCE_LEN],
}

impl<'a> ClientSide<'a> {
    /// `nonce` must be random.
    pub fn new(identity: &'a Identity, nonce: [u8; NONCE_LEN]) -> ClientSide<'a> {
        ClientSide { identity, nonce }
    }

    /// The first message.
    pub fn hello(&self) -> Vec<u8> {
        let Identity { auth, client, lane } = self.identity;
        let hello = Hello { formation: auth.formation, lane: lane_byte(*lane), nonce: self.nonce };
        message(Frame::request(HELLO, OpId(0), *client, 0), &hello.to_bytes())
    }

    /// The answer to the server's challenge.
    pub fn prove(&self, reply: &Frame, body: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        expect(reply, HELLO)?;
        let challenge = Challenge::from_bytes(body)?;
        let Identity { auth, client, .. } = self.identity;
        let transcript = self.transcript(challenge.nonce);
        if !transcript.verify(&auth.secret, Side::Server, &challenge.proof) {
            return Err(HandshakeError::Refused(Refusal::Secret));
        }
        let proof = transcript.prove(&auth.secret, Side::Client);
        Ok(message(Frame::request(PROOF, OpId(0), *client, 0), &proof.to_bytes()))
    }

    /// What hides a secret on this connection, once the server's challenge has been believed; see [`Transcript::pad`].
    pub fn pad(&self, challenge: &[u8]) -> Result<[u8; PROOF_LEN], HandshakeError> {
        let challenge = Challenge::from_bytes(challenge)?;
        Ok(self.transcript(challenge.nonce).pad(&self.identity.auth.secret))
    }

    fn transcript(&self, server_nonce: [u8; NONCE_LEN]) -> Transcript {
        let Identity { auth, client, lane } = self.identity;
        let (formation, client_nonce) = (auth.formation, self.nonce);
        Transcript { formation, lane: *lane, client: *client, client_nonce, server_nonce }
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

/// Why a handshake failed on the client's side.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandshakeError {
    Refused(Refusal),
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
    nonce: [u8; NONCE_LEN],
    state: ServerState,
}

enum ServerState {
    Fresh,
    Challenged(Transcript),
}

/// What the server does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send this and wait for more.
    Reply(Vec<u8>),
    /// Send this; the client is who it says.
    Admit(Vec<u8>, ClientId),
    /// Send this and close.
    Refuse(Vec<u8>),
    /// Close without a word: this is no client of ours.
    Hang,
}

impl ServerSide {
    /// `nonce` must be random.
    pub fn new(lane: LaneKind, nonce: [u8; NONCE_LEN]) -> ServerSide {
        ServerSide { lane, nonce, state: ServerState::Fresh }
    }

    /// Takes a frame from the client. `instance` tells this run of the server from others.
    pub fn take(&mut self, auth: &Auth, instance: u64, frame: &Frame, body: &[u8]) -> Step {
        if frame.kind != Kind::Request || frame.payload_len != 0 {
            return Step::Hang;
        }
        match (&self.state, frame.op) {
            (ServerState::Fresh, HELLO) => self.challenge(auth, frame, body),
            (ServerState::Challenged(transcript), PROOF) => admit(transcript, auth, instance, frame, body),
            _ => Step::Hang,
        }
    }

    /// What hides a secret on this connection, once the client was challenged; see [`Transcript::pad`].
    pub fn pad(&self, auth: &Auth) -> Option<[u8; PROOF_LEN]> {
        match &self.state {
            ServerState::Fresh => None,
            ServerState::Challenged(transcript) => Some(transcript.pad(&auth.secret)),
        }
    }

    fn challenge(&mut self, auth: &Auth, frame: &Frame, body: &[u8]) -> Step {
        let Ok(hello) = Hello::from_bytes(body) else { return Step::Hang };
        if hello.formation != auth.formation {
            return refuse(frame, Refusal::Formation);
        }
        if hello.lane != lane_byte(self.lane) {
            return refuse(frame, Refusal::Lane);
        }
        let transcript = Transcript {
            formation: auth.formation,
            lane: self.lane,
            client: frame.client,
            client_nonce: hello.nonce,
            server_nonce: self.nonce,
        };
        let proof = transcript.prove(&auth.secret, Side::Server);
        self.state = ServerState::Challenged(transcript);
        Step::Reply(message(reply(frame), &Challenge { nonce: self.nonce, proof }.to_bytes()))
    }
}

fn admit(transcript: &Transcript, auth: &Auth, instance: u64, frame: &Frame, body: &[u8]) -> Step {
    let Ok(proof) = <[u8; PROOF_LEN]>::from_bytes(body) else { return Step::Hang };
    if !transcript.verify(&auth.secret, Side::Client, &proof) {
        return refuse(frame, Refusal::Secret);
    }
    Step::Admit(message(reply(frame), &instance.to_bytes()), transcript.client)
}

/// What a client of another protocol version, or another user's, is told.
pub(crate) fn refusal(reason: Refusal) -> Vec<u8> {
    let hello = Frame::request(HELLO, OpId(0), ClientId(0), 0);
    message(Frame { status: status(reason), ..reply(&hello) }, &[])
}

fn refuse(frame: &Frame, reason: Refusal) -> Step {
    Step::Refuse(message(Frame { status: status(reason), ..reply(frame) }, &[]))
}

fn reply(frame: &Frame) -> Frame {
    frame.reply(0, 0, 0)
}

fn status(reason: Refusal) -> i32 {
    match reason {
        Refusal::Secret => Errno::EACCES.code(),
        Refusal::Formation => Errno::ESTALE.code(),
        Refusal::Version { .. } => Errno::EPROTO.code(),
        Refusal::Lane => Errno::ENXIO.code(),
        Refusal::User => Errno::EPERM.code(),
        Refusal::Other { status } => status,
    }
}

fn reason(code: i32) -> Refusal {
    let known =
        [Refusal::Secret, Refusal::Formation, Refusal::Version { theirs: 0 }, Refusal::Lane, Refusal::User];
    known.into_iter().find(|reason| status(*reason) == code).unwrap_or(Refusal::Other { status: code })
}

/// Sealed whatever carries it: it is short, and comes before either side knows the other.
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
        let auth = Auth { formation: FormationId(formation), secret: Secret::new(secret) };
        Identity { auth, client: ClientId(0x1122_3344_5566_7788), lane: LaneKind::Client }
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

    fn take(server: &mut ServerSide, message: &[u8]) -> Step {
        let (frame, body) = split(message);
        server.take(&identity().auth, 0x0102, &frame, body)
    }

    #[test]
    fn golden_vectors() {
        let identity = identity();
        let client = ClientSide::new(&identity, [0xc1; 32]);
        let mut server = ServerSide::new(LaneKind::Client, [0x51; 32]);
        let hello = client.hello();
        assert_eq!(&hello[..8], b"BVK1\x02\x00\x01\xff");
        assert_eq!(&hello[32..40], &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        let expected = format!("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff00{}", "c1".repeat(32));
        assert_eq!(hex(&hello[64..]), expected);
        let Step::Reply(challenge) = take(&mut server, &hello) else { panic!("no challenge") };
        let (frame, body) = split(&challenge);
        let expected = format!("{}{SERVER_PROOF}", "51".repeat(32));
        assert_eq!((frame.kind, frame.op, frame.status, hex(body)), (Kind::Reply, HELLO, 0, expected));
        let proof = client.prove(&frame, body).unwrap();
        let (_, body) = split(&proof);
        assert_eq!(hex(body), CLIENT_PROOF);
        let Step::Admit(welcome, client) = take(&mut server, &proof) else { panic!("not admitted") };
        let (frame, body) = split(&welcome);
        assert_eq!((client, hex(body).as_str()), (identity.client, "0201000000000000"));
        assert_eq!(ClientSide::welcomed(&frame, body), Ok(0x0102));
    }

    /// Computed with Python's `hmac` module.
    const SERVER_PROOF: &str = "db0a25788cb723249b6e8cfd04180a4a4419adac93a9b3cc2bb0d4b8a6f5c782";
    const CLIENT_PROOF: &str = "8d1903426eca7709f42dca3895858f623f188c82c2271f256efb882874e66a6c";

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let mut other = identity();
        other.auth.formation = FormationId([0; 16]);
        let mut peer = identity();
        peer.lane = LaneKind::Peer;
        for (identity, refusal) in [(other, Refusal::Formation), (peer, Refusal::Lane)] {
            let client = ClientSide::new(&identity, [1; 32]);
            let mut server = ServerSide::new(LaneKind::Client, [2; 32]);
            let Step::Refuse(answer) = take(&mut server, &client.hello()) else { panic!("not refused") };
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
        let mut server = ServerSide::new(LaneKind::Client, [2; 32]);
        let client = ClientSide::new(&stranger, [1; 32]);
        let Step::Reply(challenge) = take(&mut server, &client.hello()) else { panic!("no challenge") };
        let (frame, body) = split(&challenge);
        assert_eq!(client.prove(&frame, body), Err(HandshakeError::Refused(Refusal::Secret)));
        // A client that goes on regardless gets nowhere.
        let forged = message(Frame::request(PROOF, OpId(0), honest.client, 0), &[7; PROOF_LEN]);
        let Step::Refuse(answer) = take(&mut server, &forged) else { panic!("not refused") };
        assert_eq!(split(&answer).0.status, Errno::EACCES.code());
    }

    #[test]
    fn steps_out_of_order_end_the_connection() {
        let identity = identity();
        let proof = message(Frame::request(PROOF, OpId(0), identity.client, 0), &[0; PROOF_LEN]);
        let ping = message(Frame::request(1, OpId(0), identity.client, 0), &[]);
        for first in [proof, ping] {
            assert_eq!(take(&mut ServerSide::new(LaneKind::Client, [2; 32]), &first), Step::Hang);
        }
        let hello = ClientSide::new(&identity, [1; 32]).hello();
        let mut server = ServerSide::new(LaneKind::Client, [2; 32]);
        assert!(matches!(take(&mut server, &hello), Step::Reply(_)));
        assert_eq!(take(&mut server, &hello), Step::Hang);
    }

    #[test]
    fn every_reason_survives_the_wire() {
        let reasons = [Refusal::Secret, Refusal::Formation, Refusal::Lane, Refusal::User];
        for expected in reasons.into_iter().chain([Refusal::Other { status: 5 }]) {
            assert_eq!(reason(status(expected)), expected);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(op in 0xff00u16..0xff04, body in proptest::collection::vec(any::<u8>(), 0..120)) {
            let identity = identity();
            let frame = Frame::request(op, OpId(0), ClientId(1), 0);
            let mut server = ServerSide::new(LaneKind::Client, [2; 32]);
            let step = server.take(&identity.auth, 1, &frame, &body);
            prop_assert!(!matches!(step, Step::Admit(..)));
            let client = ClientSide::new(&identity, [1; 32]);
            prop_assert!(client.prove(&frame.reply(0, 0, 0), &body).is_err());
        }
    }
}

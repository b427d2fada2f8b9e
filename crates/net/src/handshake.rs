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
use bivouac_wire::{Decode, DecodeError, Encode, Frame, Kind};

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
        let Identity { auth, client, lane } = self.identity;
        let transcript = Transcript {
            formation: auth.formation,
            lane: *lane,
            client: *client,
            client_nonce: self.nonce,
            server_nonce: challenge.nonce,
        };
        if !transcript.verify(&auth.secret, Side::Server, &challenge.proof) {
            return Err(HandshakeError::Refused(Refusal::Secret));
        }
        let proof = transcript.prove(&auth.secret, Side::Client);
        Ok(message(Frame::request(PROOF, OpId(0), *client, 0), &proof.to_bytes()))
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

fn message(mut frame: Frame, body: &[u8]) -> Vec<u8> {
    frame.body_len = body.len() as u32;
    let mut bytes = Vec::with_capacity(FRAME_HEADER_LEN + body.len());
    bytes.extend_from_slice(&frame.to_bytes());
    bytes.extend_from_slice(body);
    bytes
}

//! The formation's secret and the proofs that both sides make from it.

use std::fmt;
use std::io;

use bivouac_types::{ClientId, FormationId, NodeId};
use bivouac_wire::FrameProtection;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::records::CHAIN_LEN;
use crate::{LaneKind, NetError};

/// Length of a secret, in bytes.
pub(crate) const SECRET_LEN: usize = 32;
/// Length of a nonce, in bytes.
pub(crate) const NONCE_LEN: usize = 32;
/// Length of a public key, in bytes.
pub(crate) const KEY_LEN: usize = 32;
/// Length of a proof, in bytes.
pub(crate) const PROOF_LEN: usize = 32;

/// Label of the secret by which a host comes back to its formation.
const RESUME: &[u8] = b"bivouac-resume-1";

/// Label of a pad, instead of a proof.
const SEALED: &[u8] = b"bivouac-sealed-1";

/// Secret that all processes of a formation know and nobody else. Never printed.
#[derive(Clone)]
pub struct Secret([u8; SECRET_LEN]);

impl Secret {
    /// Creates a secret from its bytes.
    #[must_use]
    pub fn new(bytes: [u8; SECRET_LEN]) -> Secret {
        Secret(bytes)
    }

    /// Returns the secret by which hosts come back to the one that keeps them together: HMAC-SHA256 of this one. No
    /// proof made with it is good at a node, nor the other way round.
    #[must_use]
    pub fn to_resume(&self) -> Secret {
        // HMAC takes keys of any length.
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).map(|mac| mac.chain_update(RESUME));
        Secret(mac.map(|mac| mac.finalize().into_bytes().into()).unwrap_or_default())
    }

    /// Returns its bytes, for writing the secret file.
    #[must_use]
    pub fn expose(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Node of a handshake that is for whoever answers.
pub(crate) const NODE_ANY: u16 = u16::MAX;

/// Credentials of a process of a formation.
#[derive(Clone, Debug)]
pub struct Auth {
    /// The formation.
    pub formation: FormationId,
    /// Its secret.
    pub secret: Secret,
    /// True if all that leaves a machine is encrypted.
    pub is_secure: bool,
}

impl Auth {
    /// Returns the protection of frames on a connection, after its handshake.
    pub(crate) fn way(&self, is_of_one_machine: bool) -> FrameProtection {
        match (is_of_one_machine, self.is_secure) {
            (true, _) => FrameProtection::None,
            (false, true) => FrameProtection::Record,
            (false, false) => FrameProtection::Sum,
        }
    }
}

/// Identity under which a transport connects.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The formation.
    pub auth: Auth,
    /// The client; for a node that calls its peers, the node's own client id.
    pub client: ClientId,
    /// The kind of listener at the other end.
    pub lane: LaneKind,
    /// Epoch of the daemon, for a node that calls its peers; 0 for others.
    pub epoch: u32,
}

/// A daemon of a node, told from those that the node had on other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaemonId {
    /// The node.
    pub node: NodeId,
    /// Epoch in which the node came to its host, as [`bivouac_wire::NodeEntry`] has it.
    pub epoch: u32,
}

/// A client that has proven itself, and the daemon that it connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The client.
    pub client: ClientId,
    /// Number of the connection's generation; 0 for none.
    pub generation: u64,
    /// Epoch of the client's daemon, if the client is a node; 0 of others.
    pub epoch: u32,
    /// The daemon that the connection is for; `None` for whoever answers.
    pub daemon: Option<DaemonId>,
}

/// Author of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeRole {
    Server,
    Client,
}

impl HandshakeRole {
    fn label(self) -> &'static [u8] {
        match self {
            HandshakeRole::Server => b"bivouac-server-2",
            HandshakeRole::Client => b"bivouac-client-2",
        }
    }
}

/// Subject of a proof: both sides' nonces and the purpose of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transcript {
    pub formation: FormationId,
    pub lane: LaneKind,
    pub client: ClientId,
    /// Of the connection; 0 for none.
    pub generation: u64,
    /// Epochs of the client, and of the daemon that it connects to.
    pub epoch: u32,
    pub daemon: Option<DaemonId>,
    pub way: FrameProtection,
    pub client_nonce: [u8; NONCE_LEN],
    pub server_nonce: [u8; NONCE_LEN],
    /// Public keys for this connection only; zeros where nothing is encrypted.
    pub client_key: [u8; KEY_LEN],
    pub server_key: [u8; KEY_LEN],
}

impl Transcript {
    /// Returns the client, and the daemon that it connects to.
    pub fn introduction(&self) -> Introduction {
        let Transcript { client, generation, epoch, daemon, .. } = *self;
        Introduction { client, generation, epoch, daemon }
    }

    /// Returns the HMAC-SHA256 (RFC 2104) over label, formation, lane, client, way, generation, epoch, daemon, and both
    /// sides' nonces and keys.
    pub fn prove(&self, secret: &Secret, side: HandshakeRole) -> [u8; PROOF_LEN] {
        self.mac(secret, side).map(|mac| mac.finalize().into_bytes().into()).unwrap_or_default()
    }

    /// Returns whether the other side made this proof; takes the same time for every wrong one.
    pub fn verify(&self, secret: &Secret, side: HandshakeRole, proof: &[u8; PROOF_LEN]) -> bool {
        self.mac(secret, side).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }

    /// Returns the bytes that only the two sides of this connection know, to hide one secret with: never the same
    /// twice, as both nonces are in them.
    pub fn pad(&self, secret: &Secret) -> [u8; SECRET_LEN] {
        let mac = self.labelled(secret, SEALED);
        mac.map(|mac| mac.finalize().into_bytes().into()).unwrap_or_default()
    }

    fn mac(&self, secret: &Secret, side: HandshakeRole) -> Option<Hmac<Sha256>> {
        self.labelled(secret, side.label())
    }

    // `None` never happens: HMAC takes keys of any length.
    fn labelled(&self, secret: &Secret, label: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose()).ok()?;
        mac.update(label);
        mac.update(&self.formation.0);
        mac.update(&[lane_byte(self.lane)]);
        mac.update(&self.client.0.to_le_bytes());
        mac.update(&[self.way as u8]);
        mac.update(&self.generation.to_le_bytes());
        mac.update(&self.epoch.to_le_bytes());
        // All that Hello says is under the proof: whoever changes a byte of it on the way is refused as one without the
        // secret.
        let (node, epoch) = self.daemon.map_or((NODE_ANY, 0), |daemon| (daemon.node.0, daemon.epoch));
        mac.update(&node.to_le_bytes());
        mac.update(&epoch.to_le_bytes());
        for part in [&self.client_nonce, &self.server_nonce, &self.client_key, &self.server_key] {
            mac.update(part);
        }
        Some(mac)
    }

    /// Returns the source of the keys of one side's records: HKDF (RFC 5869) of what both made of their keys and of the
    /// secret. So it takes the secret to take part, and one of the private keys, which nobody keeps, to read.
    pub fn chain(&self, secret: &Secret, agreed: &[u8], side: HandshakeRole) -> Option<[u8; CHAIN_LEN]> {
        let nonces = [self.client_nonce, self.server_nonce].concat();
        let extracted = Hmac::<Sha256>::new_from_slice(&nonces).ok()?;
        let extracted = extracted.chain_update(agreed).chain_update(secret.expose()).finalize().into_bytes();
        let label: &[u8] = match side {
            HandshakeRole::Server => b"bivouac-server-records-1",
            HandshakeRole::Client => b"bivouac-client-records-1",
        };
        let expanded = self.labelled(&Secret(extracted.into()), label)?.chain_update([1]);
        Some(expanded.finalize().into_bytes().into())
    }
}

/// Returns a lane as the handshake writes it.
pub(crate) fn lane_byte(lane: LaneKind) -> u8 {
    match lane {
        LaneKind::Client => 0,
        LaneKind::Peer => 1,
        LaneKind::Mirror => 2,
    }
}

/// Returns random bytes that no other connection has.
pub(crate) fn nonce() -> Result<[u8; NONCE_LEN], NetError> {
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce).map_err(|error| {
        let cause = error.raw_os_error().map_or(io::ErrorKind::Other.into(), io::Error::from_raw_os_error);
        NetError::System { what: "draw random bytes", cause }
    })?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        Transcript {
            formation: FormationId([7; 16]),
            lane: LaneKind::Peer,
            client: ClientId(9),
            generation: 10,
            epoch: 11,
            daemon: Some(DaemonId { node: NodeId(12), epoch: 13 }),
            way: FrameProtection::Record,
            client_nonce: [1; 32],
            server_nonce: [2; 32],
            client_key: [3; 32],
            server_key: [4; 32],
        }
    }

    #[test]
    fn a_proof_binds_every_part() {
        let (secret, original) = (Secret::new([5; 32]), transcript());
        let proof = original.prove(&secret, HandshakeRole::Client);
        assert!(original.verify(&secret, HandshakeRole::Client, &proof));
        assert!(!original.verify(&secret, HandshakeRole::Server, &proof));
        assert!(!original.verify(&Secret::new([6; 32]), HandshakeRole::Client, &proof));
        let others = [
            Transcript { formation: FormationId([8; 16]), ..original },
            Transcript { lane: LaneKind::Client, ..original },
            Transcript { client: ClientId(8), ..original },
            Transcript { generation: 11, ..original },
            Transcript { epoch: 12, ..original },
            Transcript { daemon: None, ..original },
            Transcript { daemon: Some(DaemonId { node: NodeId(12), epoch: 14 }), ..original },
            Transcript { client_nonce: [3; 32], ..original },
            Transcript { server_nonce: [3; 32], ..original },
            Transcript { way: FrameProtection::Sum, ..original },
            Transcript { client_key: [5; 32], ..original },
            Transcript { server_key: [5; 32], ..original },
        ];
        assert!(others.iter().all(|other| !other.verify(&secret, HandshakeRole::Client, &proof)));
        let pads: std::collections::BTreeSet<_> =
            others.iter().chain([&original]).map(|transcript| transcript.pad(&secret)).collect();
        assert_eq!(pads.len(), others.len() + 1);
        assert!(!pads.contains(&proof));
        let chains: std::collections::BTreeSet<_> = others
            .iter()
            .chain([&original])
            .flat_map(|transcript| {
                [HandshakeRole::Client, HandshakeRole::Server]
                    .map(|side| transcript.chain(&secret, &[6; 32], side))
            })
            .chain([original.chain(&Secret::new([6; 32]), &[6; 32], HandshakeRole::Client)])
            .chain([original.chain(&secret, &[7; 32], HandshakeRole::Client)])
            .collect();
        assert_eq!(chains.len(), 2 * (others.len() + 1) + 2);
    }

    /// Computed with Python's `hmac` module.
    #[test]
    fn keys_follow_from_secret_and_agreement() {
        let chain = transcript().chain(&Secret::new([5; 32]), &[6; 32], HandshakeRole::Client).unwrap();
        let hex: String = chain.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "09de171c5cf98af71176b1fd0f21510988a22953f239f8aac1c0fd6ccfa164b9");
    }

    /// Computed with Python's `hmac` module.
    #[test]
    fn another_secret_follows_from_one() {
        let hex: String =
            Secret::new([5; 32]).to_resume().0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "c564fe35f55d0b7e310ca68b4cec5a7868d758fe9950f86b0e51a341adfc7261");
    }

    #[test]
    fn a_secret_does_not_print_itself() {
        let auth =
            Auth { formation: FormationId([0; 16]), secret: Secret::new([0xab; 32]), is_secure: false };
        let text = format!("{auth:?}");
        assert!(text.contains("Secret(…)") && !text.contains("171") && !text.contains("ab"), "{text}");
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }
}

//! What tests of several modules need.

use bivouac_types::{ClientId, FsResult, NodeId, OpId, Slot};
use bivouac_wire::{Decode, DecodeError, Encode};

use crate::intent_record::{Intent, LoggedIntent};
use crate::node::Node;

/// Reads an intent's record as a restarted daemon does, and writes it again.
pub fn reread(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    LoggedIntent::from_bytes(bytes).map(|logged| logged.to_bytes())
}

/// The record of an intent.
pub fn logged(intent: Intent) -> Vec<u8> {
    LoggedIntent { slot: Slot(0), intent, client: ClientId(5), channel: 6, op: OpId(7), steps_channel: 8 }
        .to_bytes()
}
/// Peers that nobody asks.
struct NoPeers;

impl crate::peers::Peers for NoPeers {
    fn call_within(
        &self,
        _: std::time::Duration,
        node: NodeId,
        _: &crate::peers::PeerRequest<'_>,
        _: &mut Vec<u8>,
    ) -> FsResult<()> {
        panic!("{node} is asked")
    }
}

/// A node that is alone, on a volume below a directory.
pub fn alone(dir: &std::path::Path) -> std::sync::Arc<Node> {
    let entry = bivouac_wire::NodeEntry {
        host: "n0".to_owned(),
        client_address: String::new(),
        peer_address: String::new(),
        unix_path: String::new(),
        epoch: 0,
    };
    let map = bivouac_wire::FormationMap {
        version: 1,
        formation: bivouac_types::FormationId([3; 16]),
        name: "alone".into(),
        slots: vec![NodeId(0); 2],
        nodes: vec![entry],
        targets: vec![bivouac_wire::TargetEntry { node: NodeId(0), volume: 0 }],
        stripe: 4096,
        width: 0,
        is_secure: false,
        detects_races: false,
        mirrors: Vec::new(),
    };
    let volume = bivouac_store::VolumeConfig { path: dir.join("volume"), capacity: 0, create: true };
    let config = crate::NodeConfig {
        rounds: crate::Rounds::default(),
        map: std::sync::Arc::new(map),
        id: NodeId(0),
        volumes: vec![volume],
        handles_max: 64,
        checksum: bivouac_types::Checksum::Off,
        owner: (0, 0),
        grace: std::time::Duration::from_secs(30),
        spread_at: bivouac_types::SpreadAt::default(),
        dead_after: None,
        past: crate::RecoveryHistory::default(),
        recorded: None,
        switches: Vec::new(),
        liveness: std::sync::Arc::new(bivouac_net::LivenessTable::new(1)),
        objects: bivouac_source::Environment::default(),
        secret: [0; 32],
        around: None,
    };
    Node::open(config, std::sync::Arc::new(NoPeers), std::sync::Arc::new(crate::SystemClock)).unwrap().0
}

//! Helpers for tests of several modules.

use bivouac_types::{ClientId, FsResult, Ino, NodeId, OpId, PartitionId, Slot, TargetIndex, Timestamp, mode};
use bivouac_wire::{Decode, DecodeError, Encode, MakeRequest, Partition, PartitionState, SiteVersion};

use crate::intent_record::{Intent, LoggedIntent};
use crate::node::Node;
use crate::record::SiteFile;

/// Reads an intent's record as a restarted daemon does, and writes it again.
pub fn reread(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    LoggedIntent::from_bytes(bytes).map(|logged| logged.to_bytes())
}

/// Returns the record of an intent.
pub fn logged(intent: Intent) -> Vec<u8> {
    LoggedIntent { slot: Slot(0), intent, client: ClientId(5), channel: 6, op: OpId(7), steps_channel: 8 }
        .to_bytes()
}
/// Peers that nobody asks.
pub struct NoPeers;

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

/// Returns a node that is alone, on a volume below a directory.
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

/// Makes the root directory of such a node that of a partition, of which the node gets `version`.
pub fn put_in_partition(node: &Node, version: u32, settings: &str) -> PartitionId {
    let (id, dir, outer) = (PartitionId(1), Ino::ROOT, PartitionId::ROOT);
    let targets = vec![TargetIndex::new(outer, 0)];
    let settings = settings.parse().unwrap();
    node.learn(Partition { id, version, state: PartitionState::Live, dir, outer, targets, settings });
    let mut change = node.change_at(&[dir.slot()], &[]).unwrap();
    let mut inode = change.inode(dir).unwrap();
    inode.attr.layout.base = TargetIndex::new(id, 0);
    // Its entries are those that are here: no node lists the source.
    let seen = SiteVersion { size: 0, mtime: Timestamp::default(), tag: String::new() };
    let listed = SiteFile { listed: true, ..SiteFile::brought((dir, b""), Vec::new(), seen, true) };
    change.put_site_file(dir, &listed);
    change.put_inode(&inode);
    change.commit().unwrap();
    id
}

/// Returns a request that makes an entry of the root directory.
pub fn make_in_root<'a>(name: &'a [u8], mode: u32, target: &'a [u8]) -> MakeRequest<'a> {
    let (parent, open, near) = (Ino::ROOT, None, None);
    assert_eq!(mode & mode::TYPE == mode::LINK, !target.is_empty());
    MakeRequest { parent, name, mode, uid: 0, gid: 0, rdev: 0, target, open, exclusive: true, near }
}

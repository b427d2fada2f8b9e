//! Nodes that have moved to another host, as those see it that have not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_net::{DaemonId, Introduction, Service};
use bivouac_types::{ClientId, NodeId};
use bivouac_wire::FormationMap;

use crate::formation::Formation;

/// The map in which node 1 has moved, in epoch 3.
fn moved(map: &FormationMap) -> Arc<FormationMap> {
    let mut map = FormationMap { version: map.version + 1, ..map.clone() };
    map.nodes[1].client_address = "127.0.0.1:9".into();
    map.nodes[1].epoch = 3;
    Arc::new(map)
}

fn introduction(client: u64, epoch: u32, daemon: Option<(u16, u32)>) -> Introduction {
    let daemon = daemon.map(|(node, epoch)| DaemonId { node: NodeId(node), epoch });
    Introduction { client: ClientId(client), generation: 1, epoch, daemon }
}

/// S811.
#[test]
fn the_former_daemon_of_a_node_is_admitted_nowhere() {
    let formation = Formation::new(3, 4096);
    let node = Arc::clone(&formation.nodes[0]);
    let peer = ClientId::PEER_BIT | 1;
    assert!(node.admits(&introduction(peer, 0, Some((0, 0)))));
    let hung_up = Arc::<AtomicU64>::default();
    let told = Arc::clone(&hung_up);
    node.on_forgotten(move |client| told.store(client.0, Ordering::Release));
    let map = moved(formation.map());
    assert!(node.take_map(&map));
    // What it has sent before is not carried out either.
    assert_eq!(hung_up.load(Ordering::Acquire), peer);
    assert!(!node.admits(&introduction(peer, 0, Some((0, 0)))));
    assert!(!node.admits(&introduction(peer, 2, Some((0, 0)))));
    assert!(node.admits(&introduction(peer, 3, Some((0, 0)))));
    assert!(node.admits(&introduction(peer, 4, Some((0, 0)))), "its map is newer than this node's");
    // Others are who they were.
    assert!(node.admits(&introduction(ClientId::PEER_BIT | 2, 0, Some((0, 0)))));
    assert!(node.admits(&introduction(77, 0, None)) && node.admits(&introduction(77, 0, Some((0, 0)))));
    // Who means another node, or another daemon of this one, is somewhere else.
    assert!(
        !node.admits(&introduction(77, 0, Some((1, 0)))) && !node.admits(&introduction(77, 0, Some((0, 1))))
    );
}

/// S812.
#[test]
fn a_node_gives_out_the_newest_map_and_never_an_older_one() {
    let formation = Formation::new(3, 4096);
    let node = Arc::clone(&formation.nodes[0]);
    let map = moved(formation.map());
    assert!(node.take_map(&map) && !node.take_map(&map));
    assert!(!node.take_map(formation.map()), "it is older");
    let mut other = FormationMap { version: map.version + 1, ..(*map).clone() };
    other.slots.reverse();
    assert!(!node.take_map(&Arc::new(other)), "slots do not move");
    assert_eq!(*node.newest_map(), *map);
    let client = formation.client(0);
    assert_eq!(client.map().version + 1, map.version);
    assert!(client.take_map(&map) && !client.take_map(&map));
}

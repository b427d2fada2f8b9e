//! The map that a formation begins with.

use bivouac_layout::slot_to_node;
use bivouac_sysmap::spread_over;
use bivouac_types::limits::SLOTS_DEFAULT;
use bivouac_types::{FormationId, NodeId, Slot};
use bivouac_wire::{FormationMap, NodeEntry, TargetEntry};

use crate::state::{FormationState, NodeState};

/// Returns the map of a formation whose addresses are known: every node has as many slots as any other; targets go
/// round over the nodes, volume by volume, so that neighbours among the targets are on different nodes, and behind
/// different switches where those are known.
#[must_use]
pub fn first_map(state: &FormationState, formation: FormationId) -> FormationMap {
    let count = state.nodes.len() as u16;
    let entry = |node: &NodeState| NodeEntry {
        host: node.host.clone(),
        client_address: node.client_address.clone(),
        peer_address: node.peer_address.clone(),
        unix_path: node.unix_path.display().to_string(),
        epoch: 0,
    };
    let volumes = state.nodes.iter().map(|node| node.volumes.len()).max().unwrap_or(0);
    // Neighbouring stripes of a file lie on neighbouring targets, so these are to fail, and to be busy,
    // independently.
    let nodes = in_turns(state);
    let targets = (0..volumes).flat_map(|volume| {
        let having = nodes.iter().filter(move |node| volume < node.volumes.len());
        having.map(move |node| TargetEntry { node: NodeId(node.id), volume: volume as u16 })
    });
    let targets: Vec<TargetEntry> = targets.collect();
    // A volume without a target would stay empty, one with two would fill twice as fast as the others.
    let volumes: usize = state.nodes.iter().map(|node| node.volumes.len()).sum();
    assert!(targets.len() == volumes, "{} targets on {volumes} volumes", targets.len());
    let hosts: Vec<&str> = state.nodes.iter().map(|node| node.host.as_str()).collect();
    FormationMap {
        version: 1,
        formation,
        name: state.name.to_string(),
        slots: (0..SLOTS_DEFAULT).map(|slot| slot_to_node(Slot(slot), SLOTS_DEFAULT, count)).collect(),
        nodes: state.nodes.iter().map(entry).collect(),
        targets,
        stripe: state.stripe,
        width: state.width,
        is_secure: state.secure,
        detects_races: state.detect_races,
        mirrors: state.protect.mirrors(&hosts),
    }
}

/// Returns the nodes in the order in which they get targets: as they are numbered, unless it is known what fails
/// together.
fn in_turns(state: &FormationState) -> Vec<&NodeState> {
    let Some(domains) = state.domains() else { return state.nodes.iter().collect() };
    let domains: Vec<_> = state.nodes.iter().map(|node| domains.switch_of(&node.host)).collect();
    spread_over(&domains).into_iter().filter_map(|node| state.nodes.get(node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex::to_hex;
    use crate::state::NodeLife;
    use crate::state::tests::sample;
    use bivouac_types::limits::DEAD_AFTER_MS_DEFAULT;
    use bivouac_wire::Encode;

    #[test]
    fn a_node_that_moved_to_another_host_is_not_lost() {
        let mut state = sample();
        let failed = NodeState { id: 1, life: NodeLife::Failed, ..state.nodes[0].clone() };
        state.nodes.push(failed.clone());
        let mut map = first_map(&state, FormationId([7; 16]));
        let lost = |state: &FormationState| state.lost().collect::<Vec<u16>>();
        assert_eq!((lost(&state), state.has_here(1)), (vec![1], true), "no map is known");
        state.map = to_hex(&map.to_bytes());
        assert_eq!((lost(&state), state.has_here(1)), (vec![1], true));
        map.nodes[1].epoch = 3;
        state.map = to_hex(&map.to_bytes());
        assert_eq!((lost(&state), state.has_here(1)), (vec![], false), "it has moved");
        state.nodes.push(NodeState { epoch: 3, life: NodeLife::Ready, ..failed });
        assert_eq!((lost(&state), state.has_here(1)), (vec![], true), "it has come back");
        state.nodes[2].life = NodeLife::Failed;
        assert_eq!(lost(&state), [1]);
    }

    #[test]
    fn nodes_watch_each_other_over_several_hosts_or_when_told_to() {
        let mut state = sample();
        state.nodes.push(NodeState { id: 1, life: NodeLife::Failed, ..state.nodes[0].clone() });
        let of = |state: &FormationState| first_map(state, FormationId([7; 16]));
        state.map = crate::hex::to_hex(&of(&state).to_bytes());
        state.lost_elsewhere = vec![2];
        assert_eq!((state.watching_ms(), state.lost().collect::<Vec<_>>()), (None, vec![1, 2]));
        state.nodes.pop();
        assert_eq!(state.watching_ms(), Some(DEAD_AFTER_MS_DEFAULT), "others are elsewhere");
        state.dead_after_ms = Some(700);
        assert_eq!(state.watching_ms(), Some(700));
    }

    /// S539.
    #[test]
    fn targets_take_turns_between_switches_where_these_are_known() {
        let mut state = sample();
        let first = state.nodes[0].clone();
        state.nodes = (0..4).map(|id| NodeState { id, host: format!("n{id}"), ..first.clone() }).collect();
        let order = |state: &FormationState| -> Vec<u16> {
            first_map(state, FormationId([0; 16])).targets.iter().map(|target| target.node.0).collect()
        };
        assert_eq!(order(&state)[..4], [0, 1, 2, 3]);
        let of = [("n0", "a"), ("n1", "a"), ("n2", "b"), ("n3", "b")];
        let of = of.map(|(host, switch)| (host.to_owned(), switch.to_owned())).into();
        state.reach = Some(crate::reach::HostAccess {
            launcher: crate::reach::Launcher::Ssh,
            program: String::new(),
            send: None,
            network: None,
            silence_ms: 1000,
            domains: Some(crate::reach::Domains { source: "test".into(), of }),
        });
        assert_eq!(order(&state)[..4], [0, 2, 1, 3]);
        let map = first_map(&state, FormationId([0; 16]));
        assert_eq!(
            map.nodes.iter().map(|node| node.host.as_str()).collect::<Vec<_>>(),
            ["n0", "n1", "n2", "n3"]
        );
    }

    #[test]
    fn a_thousand_nodes_have_a_slot_and_a_target_each() {
        let mut state = sample();
        let one = state.nodes[0].clone();
        state.nodes = (0..1000).map(|id| NodeState { id, ..one.clone() }).collect();
        let map = first_map(&state, FormationId([7; 16]));
        assert_eq!(map.check(), Ok(()));
        let mut slots = vec![0; 1000];
        map.slots.iter().for_each(|node| slots[usize::from(node.0)] += 1);
        assert!(slots.iter().all(|count| (1..=2).contains(count)), "{slots:?}");
        assert_eq!(slots.iter().sum::<u16>(), SLOTS_DEFAULT);
        assert!(map.targets.iter().enumerate().all(|(target, of)| usize::from(of.node.0) == target));
        let bytes = bivouac_wire::Encode::to_bytes(&map);
        assert_eq!(<FormationMap as bivouac_wire::Decode>::from_bytes(&bytes), Ok(map));
    }

    #[test]
    fn slots_and_targets_are_spread_over_the_nodes() {
        let mut state = sample();
        let volumes = vec![state.nodes[0].volumes[0].clone(); 2];
        let node = |id| NodeState { id, volumes: volumes.clone(), ..state.nodes[0].clone() };
        state.nodes = vec![node(0), node(1), node(2)];
        let map = first_map(&state, FormationId([7; 16]));
        assert_eq!(map.check(), Ok(()));
        let slots = |node| map.slots.iter().filter(|holder| holder.0 == node).count();
        assert_eq!([slots(0), slots(1), slots(2)].map(|count| count / 10), [34; 3]);
        assert_eq!(map.slots[0], NodeId(0));
        let targets: Vec<(u16, u16)> =
            map.targets.iter().map(|target| (target.node.0, target.volume)).collect();
        assert_eq!(targets, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);
        assert_eq!((map.stripe, map.name.as_str()), (1 << 20, "sample"));
    }
}

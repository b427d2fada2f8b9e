//! Hosts that join a running formation while others work, and what may come in between. Hosts are directories, as in
//! `hosts.rs`.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::harness::library::{create, far_library, library, read, write};
use crate::harness::{Said, can_mount, is_alive, said, signal, wait_until, wait_within};
use crate::hosts::Hosts;
use crate::moved::{
    BLOCK, Load, MOVE_MAX, at, check_goes_on, first_keeper, lose, lost, map, part, processes,
};
use bivouac_launch::{ArrivalStage, FormationState, HostLife, NodeLife, StateDir};
use bivouac_store::{MirrorRole, read_mirror_note, replica_dir_name};
use bivouac_types::NodeId;
use rustix::process::Signal;
use serde_json::Value;

/// Options of a formation in which a host that is slow for some seconds is not lost.
const PROTECTED: [&str; 6] = ["--protect", "replicas=2", "--dead-after", "5s", "--stripe", "4096"];

/// A protected formation, once there are two of everything; directories for hosts that are to join are there.
fn protected(hosts: &str) -> Hosts {
    let formation = Hosts::new();
    ["d", "e"].iter().for_each(|host| std::fs::create_dir(formation.runtime(host)).unwrap());
    formation.up(hosts, "", &PROTECTED).succeeds();
    wait_within(MOVE_MAX, "all replicas are complete", || is_mirrored(&formation));
    formation
}

fn grow(formation: &Hosts, arguments: &[&str]) -> Said {
    formation.place.run(&[&["grow", "--name", &formation.name], arguments].concat())
}

/// A command that has hosts join, and waits.
fn start_grow(formation: &Hosts, hosts: &str) -> Child {
    let mut command =
        formation.place.command(&["grow", "--name", &formation.name, "--hosts", hosts, "--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait_for(command: Child) -> Said {
    said(&command.wait_with_output().unwrap())
}

/// The whole, as the keeper on the host that started it has written it down.
fn whole(formation: &Hosts) -> FormationState {
    let dir = formation.place.path().join(format!("bivouac/{}+hosts", formation.name));
    StateDir::at(dir).read().unwrap().unwrap()
}

fn status(formation: &Hosts) -> Value {
    let said = formation.place.run(&["status", "--name", &formation.name, "--json"]);
    serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"))
}

/// The parts of the hosts that are up, by the whole.
fn parts(formation: &Hosts) -> Vec<(String, FormationState)> {
    let up = whole(formation).hosts.into_iter().filter(|host| host.life == HostLife::Up);
    let part = |name: String| {
        let state = StateDir::at(part(formation, &name)).read().ok()??;
        Some((name, state))
    };
    up.filter_map(|host| part(host.name)).collect()
}

/// Returns whether every node with content has a complete replica on another host, by the map of the whole.
fn is_mirrored(formation: &Hosts) -> bool {
    let state = whole(formation);
    let (Some(map), parts) = (state.map(), parts(formation)) else { return false };
    let host_of = |node: u16| state.nodes[usize::from(node)].host.clone();
    (0u16..).zip(&map.mirrors).filter(|(node, _)| map.has_content(NodeId(*node))).all(|(node, entry)| {
        let Some(backup) = entry.backup.filter(|backup| host_of(backup.0) != host_of(node)) else {
            return false;
        };
        let there = parts.iter().filter(|(name, _)| *name == host_of(backup.0));
        let nodes = there.flat_map(|(_, part)| &part.nodes).filter(|known| known.id == backup.0);
        let mut volumes = nodes.flat_map(|known| &known.volumes).map(|volume| volume.path.clone());
        volumes.any(|volume: PathBuf| {
            let note = read_mirror_note(&volume.join(replica_dir_name(NodeId(node), 0))).ok().flatten();
            matches!(
                note.map(|note| note.role),
                Some(MirrorRole::Replica { epoch, .. }) if epoch.is_complete && epoch.epoch == entry.epoch
            )
        })
    })
}

/// The names of the hosts that nodes with content run on, by node.
fn places(formation: &Hosts) -> Vec<String> {
    let state = whole(formation);
    let map = state.map().unwrap();
    let with_content = state.nodes.iter().filter(|node| map.has_content(NodeId(node.id)));
    with_content.map(|node| node.host.clone()).collect()
}

/// The formation is taken down, and nothing is left on hosts that were not lost.
fn take_down(formation: &Hosts, lost: &[&str]) {
    let said = formation.down();
    assert!(said.out.contains("nothing left: 0 processes"), "{said:?}");
    for host in ["a", "b", "c", "d", "e"] {
        let is_left = formation.runtime(host).join("bivouac").exists();
        if lost.contains(&host) && is_left {
            // It is taken away there, when the host is back.
            at(formation, host, &["down", "--discard"]).succeeds();
        } else {
            assert!(!is_left, "host {host}");
        }
    }
}

/// S850, S852, S856: programs work on all hosts, also on the one that has joined, which is lost afterwards.
#[test]
fn a_host_joins_while_programs_work_and_is_lost() {
    let formation = protected("a,b,c");
    let client = far_library(&part(&formation, "a"));
    let before = create(&client, "before");
    let text: Vec<u8> = (0..20 * BLOCK).map(|at| (at / 100 * 23 + at) as u8).collect();
    write(&client, before, 0, &text);
    let load = Load::start(&formation, &["a", "c"]);
    load.wait_for_turns();
    grow(&formation, &["--hosts", "d"]).succeeds().prints(&["host d: has joined\n"]);
    load.wait_for_turns();
    let joined = far_library(&part(&formation, "d"));
    assert_eq!(read(&joined, before, 0, text.len()), text);
    let made = create(&joined, "made");
    write(&joined, made, 0, b"on the host that has joined");
    assert_eq!(read(&client, made, 0, 100), b"on the host that has joined");
    let report = status(&formation);
    assert_eq!(report["state"], "running", "{report}");
    assert_eq!((&report["hosts"][3]["name"], &report["hosts"][3]["state"]), (&"d".into(), &"up".into()));
    assert_eq!((&report["nodes"][3]["host"], &report["nodes"][3]["state"]), (&"d".into(), &"ready".into()));
    assert_eq!(places(&formation), ["a", "b", "c"], "all is even");
    // The same again changes nothing.
    let version = map(&formation, "a").version;
    grow(&formation, &["--hosts", "d", "--json"]).succeeds().prints(&["\"state\":\"joined\""]);
    assert_eq!(map(&formation, "a").version, version);
    // Of a node that is lost, the one that has joined may have the replica.
    lose(&formation, "b");
    wait_within(MOVE_MAX, "its node has moved", || {
        let node = &whole(&formation).nodes[1];
        node.host != "b" && node.life == NodeLife::Ready
    });
    wait_within(MOVE_MAX, "all replicas are complete", || is_mirrored(&formation));
    drop(joined);
    lose(&formation, "d");
    wait_within(MOVE_MAX, "all goes on elsewhere", || {
        whole(&formation).hosts[3].life == HostLife::Lost && is_mirrored(&formation)
    });
    load.end();
    assert_eq!(read(&client, before, 0, text.len()), text);
    assert_eq!(read(&client, made, 0, 100), b"on the host that has joined");
    assert_eq!(lost(&formation).code, 0);
    let report = status(&formation);
    assert_eq!(report["nodes"].as_array().unwrap().len(), 3, "{report}");
    drop(client);
    take_down(&formation, &["b", "d"]);
}

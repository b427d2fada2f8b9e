//! Hosts that join a running formation while others work, and what may come in between. Hosts are directories, as in
//! `hosts.rs`.

use std::path::PathBuf;
use std::process::Child;

use crate::harness::library::{create, far_library, read, write};
use crate::harness::{Said, can_mount, said, signal, wait_for_standby_of, wait_within};
use crate::hosts::Hosts;
use crate::moved::{
    BLOCK, Load, MOVE_MAX, at, check_goes_on, first_keeper, keepers_host, lose, lost, map, part, take_down,
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
    protected_behind(hosts, |_| String::new(), &[])
}

/// The same, where the launcher does this before it starts a host's part.
fn protected_behind(hosts: &str, before: impl Fn(&Hosts) -> String, options: &[&str]) -> Hosts {
    let formation = Hosts::new();
    ["d", "e"].iter().for_each(|host| std::fs::create_dir(formation.runtime(host)).unwrap());
    let before = before(&formation);
    formation.up(hosts, &before, &[&PROTECTED[..], options].concat()).succeeds();
    wait_within(MOVE_MAX, "all replicas are complete", || is_mirrored(&formation));
    formation
}

fn wait_for(command: Child) -> Said {
    said(&command.wait_with_output().unwrap())
}

/// The parts of the hosts that are up, by the whole.
fn parts(formation: &Hosts) -> Vec<(String, FormationState)> {
    let up = formation.whole().hosts.into_iter().filter(|host| host.life == HostLife::Up);
    let part = |name: String| {
        let state = StateDir::at(part(formation, &name)).read().ok()??;
        Some((name, state))
    };
    up.filter_map(|host| part(host.name)).collect()
}

/// Returns whether every node with content has a complete replica on another host, by the map of the whole.
fn is_mirrored(formation: &Hosts) -> bool {
    let state = formation.whole();
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
    let state = formation.whole();
    let map = state.map().unwrap();
    let with_content = state.nodes.iter().filter(|node| map.has_content(NodeId(node.id)));
    with_content.map(|node| node.host.clone()).collect()
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
    formation.change("grow", &["--hosts", "d"]).succeeds().prints(&["host d: has joined\n"]);
    load.wait_for_turns();
    let joined = far_library(&part(&formation, "d"));
    assert_eq!(read(&joined, before, 0, text.len()), text);
    let made = create(&joined, "made");
    write(&joined, made, 0, b"on the host that has joined");
    assert_eq!(read(&client, made, 0, 100), b"on the host that has joined");
    if can_mount() {
        let dir = formation.place.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let text = dir.display().to_string();
        at(&formation, "d", &["mount", &text]).succeeds();
        assert_eq!(std::fs::read(dir.join("made")).unwrap(), b"on the host that has joined");
        std::fs::write(dir.join("mounted"), "by its mount").unwrap();
        let file = client.resolve(b"mounted").unwrap();
        assert_eq!(read(&client, file.ino, 0, 100), b"by its mount");
        let mut unmount = formation.place.command(&["unmount", &text]);
        said(&unmount.env("XDG_RUNTIME_DIR", formation.runtime("d")).output().unwrap()).succeeds();
    }
    let report = formation.status();
    assert_eq!(report["state"], "running", "{report}");
    assert_eq!((&report["hosts"][3]["name"], &report["hosts"][3]["state"]), (&"d".into(), &"up".into()));
    assert_eq!((&report["nodes"][3]["host"], &report["nodes"][3]["state"]), (&"d".into(), &"ready".into()));
    assert_eq!(places(&formation), ["a", "b", "c"], "all is even");
    // The same again changes nothing.
    let version = map(&formation, "a").version;
    formation.change("grow", &["--hosts", "d", "--json"]).succeeds().prints(&["\"state\":\"joined\""]);
    assert_eq!(map(&formation, "a").version, version);
    // Of a node that is lost, the one that has joined may have the replica.
    lose(&formation, "b");
    wait_within(MOVE_MAX, "its node has moved", || {
        let node = &formation.whole().nodes[1];
        node.host != "b" && node.life == NodeLife::Ready
    });
    wait_within(MOVE_MAX, "all replicas are complete", || is_mirrored(&formation));
    drop(joined);
    lose(&formation, "d");
    wait_within(MOVE_MAX, "all goes on elsewhere", || {
        formation.whole().hosts[3].life == HostLife::Lost && is_mirrored(&formation)
    });
    load.end();
    assert_eq!(read(&client, before, 0, text.len()), text);
    assert_eq!(read(&client, made, 0, 100), b"on the host that has joined");
    assert_eq!(lost(&formation).code, 0);
    let report = formation.status();
    assert_eq!(report["nodes"].as_array().unwrap().len(), 3, "{report}");
    drop(client);
    take_down(&formation, &["b", "d"]);
}

/// Begins the arrival of host d at a formation over `a:2,b,c`, which waits in the middle of the move of a node there, as
/// its supervisor stands still.
fn begin_to_balance(formation: &Hosts) -> (Child, u64) {
    let command = formation.start_change("grow", "d");
    let balances = || formation.whole().arrivals.iter().any(|known| known.stage == ArrivalStage::Balancing);
    wait_within(MOVE_MAX, "the host is up", balances);
    let state = StateDir::at(part(formation, "d")).read().unwrap().unwrap();
    let supervisor = u64::from(state.supervisor.unwrap().pid);
    wait_for_standby_of(supervisor);
    signal(supervisor, Signal::STOP);
    let moves = || formation.whole().moves.iter().any(|m| m.node == 1 && m.is_planned);
    wait_within(MOVE_MAX, "the move is decided", moves);
    (command, supervisor)
}

/// S851, S852: of two nodes on a host one moves to the host that joins, under load. What it had is removed where it was.
#[test]
fn a_node_moves_to_the_host_that_joins() {
    let formation = protected("a:2,b,c");
    let client = far_library(&part(&formation, "b"));
    let before = create(&client, "before");
    let text: Vec<u8> = (0..20 * BLOCK).map(|at| (at / 100 * 29 + at) as u8).collect();
    write(&client, before, 0, &text);
    let volume =
        StateDir::at(part(&formation, "a")).read().unwrap().unwrap().nodes[1].volumes[0].path.clone();
    assert!(volume.exists());
    let load = Load::start(&formation, &["b", "c"]);
    load.wait_for_turns();
    formation
        .change("grow", &["--hosts", "d"])
        .succeeds()
        .tells(&["node 1 is copied to host d", "node 1 moves to host d"])
        .prints(&["host d: has joined\n"]);
    assert_eq!(places(&formation), ["a", "d", "b", "c"]);
    assert!(is_mirrored(&formation));
    load.end();
    assert_eq!(read(&client, before, 0, text.len()), text);
    wait_within(MOVE_MAX, "its former volume is removed", || !volume.exists());
    for host in ["a", "b", "d"] {
        let said = at(&formation, host, &["status", "--json"]);
        let report: Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(report["state"], "running", "{host}: {report}");
    }
    // One node each, and all of them mirrored: any host may be lost.
    lose(&formation, "d");
    wait_within(MOVE_MAX, "its node has moved", || {
        let node = &formation.whole().nodes[1];
        node.host != "d" && node.life == NodeLife::Ready
    });
    assert_eq!(read(&client, before, 0, text.len()), text);
    assert_eq!(lost(&formation).code, 0);
    drop(client);
    take_down(&formation, &["d"]);
}

/// S855: the host of a node that has moved elsewhere is one of the formation again, under its name.
#[test]
fn a_host_that_was_lost_joins_again() {
    let formation = protected("a,b,c");
    let client = far_library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    lose(&formation, "b");
    wait_within(MOVE_MAX, "its node has moved", || {
        let node = &formation.whole().nodes[1];
        node.host != "b" && node.life == NodeLife::Ready
    });
    formation.change("grow", &["--hosts", "b"]).succeeds().prints(&["host b: has joined\n"]);
    let mut places = places(&formation);
    places.sort_unstable();
    assert_eq!(places, ["a", "b", "c"], "a node has moved to it");
    let report = formation.status();
    assert_eq!((&report["state"], report["hosts"].as_array().unwrap().len()), (&"running".into(), 3));
    check_goes_on(&client, file);
    // It leaves, and joins once more.
    let shrink = |host| formation.place.run(&["shrink", "--name", &formation.name, "--hosts", host]);
    shrink("b").succeeds().prints(&["host b: has left\n"]);
    assert!(!formation.runtime("b").join("bivouac").exists());
    formation.change("grow", &["--hosts", "b"]).succeeds();
    assert!(is_mirrored(&formation));
    assert_eq!(read(&client, file, 0, 8 * BLOCK), [2; 8 * BLOCK]);
    assert_eq!(lost(&formation).code, 0);
    drop(client);
    take_down(&formation, &[]);
}

/// S851: of two hosts one is lost, and what is left is protected again by one that joins.
#[test]
fn a_host_that_joins_ends_that_nodes_go_alone() {
    let formation = protected("a,b");
    let client = far_library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    lose(&formation, "b");
    wait_within(MOVE_MAX, "its node has moved", || {
        let node = &formation.whole().nodes[1];
        node.host == "a" && node.life == NodeLife::Ready
    });
    assert!(map(&formation, "a").mirrors.iter().all(|mirror| mirror.backup.is_none()));
    formation.change("grow", &["--hosts", "d"]).succeeds().prints(&["host d: has joined\n"]);
    assert_eq!(places(&formation), ["a", "d"]);
    assert!(is_mirrored(&formation));
    check_goes_on(&client, file);
    lose(&formation, "d");
    wait_within(MOVE_MAX, "its node has moved back", || {
        let node = &formation.whole().nodes[1];
        node.host == "a" && node.life == NodeLife::Ready
    });
    assert_eq!(read(&client, file, 0, 8 * BLOCK), [2; 8 * BLOCK]);
    assert_eq!(lost(&formation).code, 0);
    drop(client);
    take_down(&formation, &["b", "d"]);
}

/// S854: the arrival is in what the keeper writes down, and its standby goes on.
#[test]
fn a_keeper_that_is_killed_while_nodes_move_is_followed_by_its_standby() {
    let formation = protected("a:2,b,c");
    let client = far_library(&part(&formation, "b"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    let keeper = formation.keeper_with_standby();
    let (command, stopped) = begin_to_balance(&formation);
    formation.kill_keeper(keeper);
    signal(stopped, Signal::CONT);
    wait_for(command).succeeds().prints(&["\"state\":\"joined\""]);
    assert_eq!(places(&formation), ["a", "d", "b", "c"]);
    check_goes_on(&client, file);
    drop(client);
    take_down(&formation, &[]);
}

/// S854: hosts that have joined come back to a keeper that decides alone, and that never heard them report.
#[test]
fn hosts_that_have_joined_come_back_to_a_keeper_without_voters() {
    let formation = protected("a:2,b:2");
    let client = far_library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    formation.change("grow", &["--hosts", "d,e"]).succeeds();
    let voters = formation.whole().keepers.map(|group| group.voters);
    assert!(voters.is_none_or(|voters| voters.is_empty()), "nobody votes");
    formation.kill_keeper(formation.keeper_with_standby());
    // Each is looked at, so that it has to have a connection.
    let all_answer = || {
        let report = formation.status();
        let up = |host: &Value| host["state"] == "up" && host["message"].is_null();
        report["state"] == "running" && report["hosts"].as_array().unwrap().iter().all(up)
    };
    wait_within(MOVE_MAX, "all hosts are back", all_answer);
    // It asks each of them what it has: one that was refused, and has ended, would be lost.
    formation.change("grow", &["--hosts", "d,e"]).succeeds();
    for host in ["d", "e"] {
        assert!(part(&formation, host).exists(), "host {host}");
    }
    check_goes_on(&client, file);
    assert_eq!(lost(&formation).code, 0);
    drop(client);
    take_down(&formation, &[]);
}

/// S854: a host that was just called is called again.
#[test]
fn a_keeper_that_is_killed_while_a_host_is_called_is_followed_by_its_standby() {
    let wait = |formation: &Hosts| {
        let go = formation.place.path().join("go");
        format!("while [ {{host}} = d ] && [ ! -e {} ]; do sleep 0.1; done;", go.display())
    };
    let formation = protected_behind("a,b,c", wait, &[]);
    let keeper = formation.keeper_with_standby();
    let command = formation.start_change("grow", "d");
    wait_within(MOVE_MAX, "the host is called", || !formation.whole().arrivals.is_empty());
    formation.kill_keeper(keeper);
    assert_eq!(formation.whole().arrivals[0].stage, ArrivalStage::Calling);
    std::fs::write(formation.place.path().join("go"), "").unwrap();
    wait_for(command).succeeds().prints(&["\"state\":\"joined\""]);
    let client = far_library(&part(&formation, "d"));
    let file = create(&client, "x");
    write(&client, file, 0, b"content");
    assert_eq!(read(&client, file, 0, 100), b"content");
    drop(client);
    take_down(&formation, &[]);
}

/// S853, S854: what was to move there stays.
#[test]
fn the_loss_of_the_host_that_joins_leaves_all_as_it_was() {
    let formation = protected("a:2,b,c");
    let client = far_library(&part(&formation, "b"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    let (command, _stopped) = begin_to_balance(&formation);
    lose(&formation, "d");
    wait_for(command).fails(1, &[]).prints(&["\"state\":\"lost\""]);
    wait_within(MOVE_MAX, "all is mirrored elsewhere", || is_mirrored(&formation));
    assert_eq!(places(&formation), ["a", "a", "b", "c"]);
    check_goes_on(&client, file);
    assert_eq!(lost(&formation).code, 0);
    assert!(formation.whole().map().unwrap().is_withdrawn(NodeId(4)));
    // It joins when it is back.
    formation.change("grow", &["--hosts", "d"]).succeeds();
    assert_eq!(places(&formation), ["a", "d", "b", "c"]);
    assert_eq!(read(&client, file, 0, 8 * BLOCK), [2; 8 * BLOCK]);
    drop(client);
    take_down(&formation, &[]);
}

/// S850, S854: asked for on a host that is only a part, and done by an elected keeper.
#[test]
fn an_elected_keeper_has_hosts_join() {
    let formation = protected("a,b,c");
    let client = far_library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    let killed = first_keeper(&formation);
    killed.iter().for_each(|pid| signal(*pid, Signal::STOP));
    killed.iter().for_each(|pid| signal(*pid, Signal::KILL));
    const HOSTS: [&str; 3] = ["a", "b", "c"];
    let keeper = || {
        keepers_host(&formation, &HOSTS)
            .filter(|host| at(&formation, host, &["status", "--json"]).out.contains("\"state\": \"running\""))
    };
    wait_within(MOVE_MAX, "a keeper is elected", || keeper().is_some());
    let keeper = keeper().unwrap();
    let other = HOSTS.into_iter().find(|host| *host != keeper).unwrap();
    at(&formation, other, &["grow", "--hosts", "d,e"])
        .succeeds()
        .prints(&["host d: has joined\n", "host e: has joined\n"]);
    let joined = far_library(&part(&formation, "e"));
    check_goes_on(&joined, file);
    drop(joined);
    // Commands work there as anywhere.
    let said = at(&formation, "e", &["status", "--json"]);
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&report["state"], report["hosts"].as_array().unwrap().len()), (&"running".into(), 5));
    drop(client);
    let said = at(&formation, "d", &["down", "--yes"]);
    assert!(said.out.contains("nothing left: 0 processes"), "{said:?}");
    for host in ["a", "b", "c", "d", "e"] {
        assert!(!formation.runtime(host).join("bivouac").join(&formation.name).exists(), "host {host}");
    }
}

/// S853: with the reason; nothing of it is left.
#[test]
fn a_host_that_does_not_come_up_is_given_up() {
    let trouble = |_: &Hosts| {
        "if [ {host} = d ]; then echo no room for it >&2; exit 3; fi; [ {host} = e ] && exec sleep 600;"
            .into()
    };
    let formation = protected_behind("a,b,c", trouble, &["--start-timeout", "15s"]);
    formation
        .change("grow", &["--hosts", "d"])
        .fails(1, &["host d: does not join: no room for it (exit code 3)"]);
    formation
        .change("grow", &["--hosts", "e", "--timeout", "1s"])
        .fails(1, &["has not joined within 1 s; it goes on joining", "wait for it again: bivouac grow"]);
    formation
        .change("grow", &["--hosts", "e"])
        .fails(1, &["host e: does not join: did not come up within 15 s"]);
    let report = formation.status();
    assert_eq!((&report["state"], report["hosts"].as_array().unwrap().len()), (&"running".into(), 3));
    assert_eq!(map(&formation, "a").nodes.len(), 3);
    take_down(&formation, &[]);
}

/// S857.
#[test]
fn what_cannot_join_is_refused_and_changes_nothing() {
    let formation = protected("a,b,c");
    let version = map(&formation, "a").version;
    formation
        .change("grow", &["--hosts", "d,b"])
        .fails(1, &["host b: is up already, as one of the first hosts"]);
    formation.change("grow", &["--hosts", "d:2"]).fails(2, &["--hosts d:2: a host joins with one node"]);
    formation.change("grow", &["--hosts", "d,d"]).fails(2, &["host 'd': is given twice"]);
    formation.change("grow", &["--hosts", "n["]).fails(2, &["its brackets make no sense"]);
    let said = at(&formation, "c", &["grow", "--hosts", "b", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&said.out).unwrap()["error"]["code"], 1);
    assert!(formation.whole().arrivals.is_empty());
    assert_eq!((map(&formation, "a").version, formation.whole().hosts.len()), (version, 3));
    take_down(&formation, &[]);
    formation.change("grow", &["--hosts", "d"]).fails(1, &[]);
    let formation = Hosts::new();
    formation.up("a,b", "", &[]).succeeds();
    formation
        .change("grow", &["--hosts", "c"])
        .fails(1, &["is not protected, so no host can join it", "--protect"]);
    drop(formation);
    let formation = Hosts::new();
    formation.up("a:2,b:2", "", &[&PROTECTED[..], &["--in-process"]].concat()).succeeds();
    formation.change("grow", &["--hosts", "c"]).fails(1, &["share processes", "without --in-process"]);
    drop(formation);
    let formation = Hosts::new();
    formation.place.run(&["up", "--name", &formation.name, "--no-mount"]).succeeds();
    formation.change("grow", &["--hosts", "c"]).fails(1, &["is on this host alone, so no host can join it"]);
}

//! A host that leaves in order while others work, and what may come in between. Hosts are directories, as in
//! `hosts.rs`.

use std::process::Child;

use crate::harness::library::{create, far_library, read, write};
use crate::harness::{Said, can_mount, is_alive, said, signal, wait_for_standby_of, wait_until, wait_within};
use crate::hosts::Hosts;
use crate::moved::{
    BLOCK, Load, MOVE_MAX, at, backup_host, check_goes_on, first_keeper, in_sync, is_moved, keepers_host,
    lose, lost, map, part, processes, protected_by, take_down,
};
use bivouac_launch::{HostLife, StateDir};
use bivouac_net::{
    Address, Auth, DaemonId, Identity, LaneKind, Secret, SocketOptions, SocketTransport, call,
};
use bivouac_types::{ClientId, NodeId, OpId};
use bivouac_wire::{Frame, SealReplicaRequest, op};
use rustix::process::Signal;
use serde_json::Value;

fn wait_for(shrink: Child) -> Said {
    said(&shrink.wait_with_output().unwrap())
}

/// The daemon of the first node of a host.
fn daemon(formation: &Hosts, host: &str) -> u64 {
    let state = StateDir::at(part(formation, host)).read().unwrap().unwrap();
    u64::from(state.nodes[0].process.unwrap().pid)
}

/// Three hosts, none of which is taken for lost while it only stands still for some seconds.
fn protected() -> Hosts {
    protected_by("a,b,c", "5s")
}

/// Begins a departure of host b that waits in the middle of the move of its node to host c, whose supervisor stands
/// still.
fn begin_to_leave(formation: &Hosts) -> (Child, u64) {
    assert_eq!(backup_host(formation, 1), "c", "the next one");
    let state = StateDir::at(part(formation, "c")).read().unwrap().unwrap();
    // It takes no order to seal.
    let supervisor = u64::from(state.supervisor.unwrap().pid);
    wait_for_standby_of(supervisor);
    signal(supervisor, Signal::STOP);
    let command = formation.start_change("shrink", "b");
    wait_within(MOVE_MAX, "the move is decided", || formation.whole().moves.iter().any(|m| m.node == 1));
    (command, supervisor)
}

/// S840, S844, S845: programs on other hosts go on, nothing is lost, nothing is left there, and the loss of another
/// host behind it costs nothing either.
#[test]
fn a_host_leaves_while_programs_work() {
    let formation = protected();
    let client = far_library(&part(&formation, "a"));
    let before = create(&client, "before");
    let text: Vec<u8> = (0..20 * BLOCK).map(|at| (at / 100 * 19 + at) as u8).collect();
    write(&client, before, 0, &text);
    let load = Load::start(&formation, &["a", "c"]);
    load.wait_for_turns();
    let (supervisor, mut gone) = processes(&formation, "b");
    gone.push(supervisor);
    formation
        .change("shrink", &["--hosts", "b"])
        .succeeds()
        .tells(&["node 0 is copied to host c", "node 1 moves to host c"])
        .prints(&["host b: has left\n"]);
    // What is left has two of everything at once, and host b has nothing.
    assert!(in_sync(&formation, "a"));
    assert!(!formation.runtime("b").join("bivouac").exists());
    wait_until("its processes have ended", || !gone.iter().any(|pid| is_alive(*pid)));
    load.end();
    assert_eq!(read(&client, before, 0, text.len()), text);
    let report = formation.status();
    assert_eq!(
        (&report["state"], &report["hosts"][1]["state"]),
        (&"running".into(), &"left".into()),
        "{report}"
    );
    assert_eq!(report["nodes"][1]["host"], "c");
    let said = lost(&formation);
    let lost_report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (said.code, &lost_report["left"][0], &lost_report["hosts"]),
        (0, &"b".into(), &Value::from(Vec::<Value>::new()))
    );
    let text_of_loss = formation.place.run(&["status", "--name", &formation.name, "--lost"]).out;
    assert!(text_of_loss.contains("host b has left\n") && text_of_loss.contains("nothing is lost for good"));
    // Two are left, and stay: one alone protects nothing.
    formation.change("shrink", &["--hosts", "c"]).fails(1, &["only host a would be left"]);
    formation.change("shrink", &["--hosts", "b"]).fails(1, &["host b: has left already"]);
    write(&client, before, BLOCK, &[7; BLOCK]);
    lose(&formation, "c");
    wait_within(MOVE_MAX, "all is on one host", || {
        formation
            .whole()
            .nodes
            .iter()
            .all(|node| node.host == "a" && node.life == bivouac_launch::NodeLife::Ready)
    });
    let expected = [&text[..BLOCK], &[7; BLOCK], &text[2 * BLOCK..]].concat();
    assert_eq!(read(&client, before, 0, text.len()), expected);
    assert_eq!(lost(&formation).code, 0);
    drop(client);
    take_down(&formation, &["c"]);
}

/// S842: the departure is in what the keeper writes down; its standby goes on, and so does the command that waits.
#[test]
fn a_keeper_that_is_killed_while_a_host_leaves_is_followed_by_its_standby() {
    let formation = protected();
    let client = far_library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    let keeper = formation.keeper_with_standby();
    let (command, stopped) = begin_to_leave(&formation);
    formation.kill_keeper(keeper);
    signal(stopped, Signal::CONT);
    let said = wait_for(command).succeeds();
    let last: Value = serde_json::from_str(said.out.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["event"], &last["host"], &last["state"]),
        (&"ended".into(), &"b".into(), &"left".into())
    );
    check_goes_on(&client, file);
    drop(client);
    take_down(&formation, &["b"]);
}

/// S842, S843: of another host's keeper; asked for on a host that is only a part.
#[test]
fn a_host_leaves_an_elected_keeper() {
    let formation = protected();
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
    let mut others = HOSTS.into_iter().filter(|host| *host != keeper);
    let (leaving, other) = (others.next().unwrap(), others.next().unwrap());
    at(&formation, other, &["shrink", "--hosts", keeper])
        .fails(1, &["the keeper of formation", "runs there"]);
    at(&formation, other, &["shrink", "--hosts", leaving]).succeeds().prints(&["has left\n"]);
    assert!(!formation.runtime(leaving).join("bivouac").exists());
    let client = far_library(&part(&formation, other));
    assert_eq!(read(&client, file, 0, 8 * BLOCK), [1; 8 * BLOCK]);
    drop(client);
    let said = at(&formation, other, &["down", "--yes"]);
    assert!(said.out.contains("nothing left: 0 processes"), "{said:?}");
}

/// S843.
#[test]
fn the_loss_of_the_host_that_leaves_is_one_as_any_other() {
    let formation = protected();
    let client = far_library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 16 * BLOCK]);
    let (command, stopped) = begin_to_leave(&formation);
    lose(&formation, "b");
    let is_lost = || formation.whole().hosts[1].life == HostLife::Lost;
    wait_within(MOVE_MAX, "the keeper takes it for lost", is_lost);
    signal(stopped, Signal::CONT);
    wait_for(command).fails(1, &[]).prints(&["\"state\":\"lost\"", "its nodes go on elsewhere"]);
    wait_within(MOVE_MAX, "its node has moved", || is_moved(&formation, "a", 1));
    assert_eq!(read(&client, file, 0, 16 * BLOCK), [1; 16 * BLOCK]);
    assert_eq!(lost(&formation).code, 0);
    wait_within(MOVE_MAX, "there are two of everything again", || in_sync(&formation, "a"));
    drop(client);
    take_down(&formation, &["b"]);
}

/// S842, S843: the loss comes first, and one host alone would be left.
#[test]
fn a_host_stays_where_another_one_is_lost_meanwhile() {
    let formation = protected();
    let client = far_library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 16 * BLOCK]);
    let (command, _stopped) = begin_to_leave(&formation);
    lose(&formation, "c");
    wait_for(command)
        .fails(1, &[])
        .prints(&["\"state\":\"given-up\"", "fewer than two hosts that serve would be left"]);
    wait_within(MOVE_MAX, "its node has moved", || is_moved(&formation, "a", 2));
    assert_eq!(read(&client, file, 0, 16 * BLOCK), [1; 16 * BLOCK]);
    wait_within(MOVE_MAX, "there are two of everything again", || in_sync(&formation, "a"));
    write(&client, file, BLOCK, &[2; BLOCK]);
    lose(&formation, "b");
    wait_within(MOVE_MAX, "its node has moved", || is_moved(&formation, "a", 1));
    assert_eq!(read(&client, file, 0, 3 * BLOCK), [[1; BLOCK], [2; BLOCK], [1; BLOCK]].concat());
    drop(client);
    take_down(&formation, &["b", "c"]);
}

/// S843: the host that a node was to move to has sealed its replicas, and is lost before anybody hears of it.
#[test]
fn a_node_that_was_sealed_in_vain_goes_on_where_it_is() {
    let formation = protected();
    let client = far_library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 16 * BLOCK]);
    let (command, _stopped) = begin_to_leave(&formation);
    let epoch = formation.whole().moves[0].epoch;
    // As the supervisor would have its daemon do it.
    let map = map(&formation, "c");
    let secret = StateDir::at(part(&formation, "c")).secret().unwrap();
    let auth = Auth { formation: map.formation, secret: Secret::new(secret), is_secure: map.is_secure };
    let identity = Identity { auth, client: ClientId(77), lane: LaneKind::Client, epoch: 0 };
    let address = Address::tcp(map.nodes[2].client_address.clone());
    let transport = SocketTransport::new(address, identity, SocketOptions::default());
    let transport = transport.of_daemon(DaemonId { node: NodeId(2), epoch: 0 });
    let request = SealReplicaRequest { node: NodeId(1), epoch };
    let frame = Frame::request(0, OpId(1), ClientId(77), 0);
    call::<op::SealReplica>(&transport, frame, &request, &[]).unwrap();
    let former = daemon(&formation, "b");
    let log = part(&formation, "b").join("n1.log");
    wait_within(MOVE_MAX, "the daemon knows that it was sealed", || {
        std::fs::read_to_string(&log).unwrap().contains("this one serves nothing any more")
    });
    lose(&formation, "c");
    wait_for(command).fails(1, &[]).prints(&["\"state\":\"given-up\""]);
    wait_within(MOVE_MAX, "its daemon was started again", || !is_alive(former) && in_sync(&formation, "a"));
    assert_eq!(read(&client, file, 0, 16 * BLOCK), [1; 16 * BLOCK]);
    write(&client, file, 0, &[2; 16 * BLOCK]);
    assert_eq!(read(&client, file, 0, 16 * BLOCK), [2; 16 * BLOCK]);
    let report = formation.status();
    assert_eq!(
        (&report["nodes"][1]["host"], &report["nodes"][1]["moved_in_epoch"]),
        (&"b".into(), &0.into())
    );
    drop(client);
    take_down(&formation, &["c"]);
}

/// S840, S842: whoever waits no longer changes nothing, and the same command waits again.
#[test]
fn a_departure_goes_on_without_who_asked_for_it() {
    let formation = protected();
    let (mut command, stopped) = begin_to_leave(&formation);
    let late = formation.change("shrink", &["--hosts", "b", "--timeout", "1s"]);
    late.fails(1, &["has not left within 1 s; it goes on leaving", "wait for it again: bivouac shrink"]);
    signal(u64::from(command.id()), Signal::INT);
    assert_eq!(command.wait().unwrap().code(), Some(1));
    wait_for(command).tells(&["it goes on leaving"]);
    let text = formation.place.run(&["status", "--name", &formation.name]).out;
    assert!(text.contains("host b is leaving: node 1 moves to host c"), "{text}");
    let again = formation.start_change("shrink", "b");
    signal(stopped, Signal::CONT);
    wait_for(again).succeeds();
    take_down(&formation, &["b"]);
}

/// S841.
#[test]
fn what_cannot_leave_is_refused_and_changes_nothing() {
    let formation = protected();
    formation
        .change("shrink", &["--hosts", "b,z"])
        .fails(2, &["--hosts z: formation", "has no such host", "a, b, c"]);
    formation.change("shrink", &["--hosts", "b,c"]).fails(1, &["only host a would be left", "bivouac down"]);
    formation.change("shrink", &["--hosts", "a,b,c"]).fails(1, &["no host would be left"]);
    let said = at(&formation, "c", &["shrink", "--hosts", "z", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&said.out).unwrap()["error"]["code"], 2);
    if can_mount() {
        let dir = formation.place.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let text = dir.display().to_string();
        at(&formation, "b", &["mount", &text]).succeeds();
        std::fs::write(dir.join("x"), "content").unwrap();
        let open = std::fs::File::open(dir.join("x")).unwrap();
        let busy = format!("host b: {text} is in use by ");
        formation.change("shrink", &["--hosts", "b"]).fails(1, &[&busy, "--force"]);
        assert!(formation.whole().departures.is_empty());
        drop(open);
        // What is closed is no hindrance, and arrives. A process that another test starts just now may have inherited
        // it.
        wait_within(MOVE_MAX, "it leaves", || formation.change("shrink", &["--hosts", "b"]).code == 0);
        let client = far_library(&part(&formation, "a"));
        let file = client.resolve(b"x").unwrap();
        assert_eq!(read(&client, file.ino, 0, 100), b"content");
        take_down(&formation, &["b"]);
        return;
    }
    assert!(formation.whole().departures.is_empty());
    take_down(&formation, &[]);
}

/// S841: without protection, on one host, and where the keeper is.
#[test]
fn only_hosts_of_protected_formations_leave() {
    let formation = Hosts::new();
    // The first host is the one where the command runs.
    std::fs::remove_dir(formation.runtime("a")).unwrap();
    std::os::unix::fs::symlink(".", formation.runtime("a")).unwrap();
    formation.up("a,b,c", "", &[]).succeeds();
    formation.change("shrink", &["--hosts", "b"]).fails(1, &["is not protected", "--protect replicas=2"]);
    formation.down().succeeds();
    formation.up("a,b,c", "", &["--protect", "replicas=2", "--dead-after", "2s"]).succeeds();
    formation
        .change("shrink", &["--hosts", "a"])
        .fails(1, &["host a: the keeper of formation", "runs there", "bivouac down"]);
    formation.down().succeeds();
    formation.place.run(&["up", "--name", &formation.name, "--nodes", "2", "--no-mount"]).succeeds();
    formation.change("shrink", &["--hosts", "a"]).fails(1, &["is on this host alone"]);
}

/// S840: taken away from those who use it.
#[test]
fn a_busy_mount_is_taken_away_by_force() {
    if !can_mount() {
        return;
    }
    let formation = protected();
    let dir = formation.place.path().join("mnt");
    std::fs::create_dir(&dir).unwrap();
    at(&formation, "b", &["mount", &dir.display().to_string()]).succeeds();
    std::fs::write(dir.join("x"), "content").unwrap();
    let open = std::fs::File::open(dir.join("x")).unwrap();
    formation.change("shrink", &["--hosts", "b", "--force"]).succeeds();
    drop(open);
    let client = far_library(&part(&formation, "c"));
    let file = client.resolve(b"x").unwrap();
    assert_eq!(read(&client, file.ino, 0, 100), b"content");
    drop(client);
    take_down(&formation, &["b"]);
}

//! A host that is lost while others work: its node goes on at the host of its backup. Hosts are directories, as in
//! `hosts.rs`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::harness::library::{create, far_library, library, open, read, write};
use crate::harness::{
    Said, is_alive, kill_with_standby, signal, try_to_signal, wait_for_standby_of, wait_until, wait_within,
};
use crate::hosts::Hosts;
use bivouac_client::Client;
use bivouac_launch::{CODE_KEEP, StateDir};
use bivouac_monitor::status::{StatusReport, look, look_here};
use bivouac_net::{
    Address, Auth, DaemonId, Identity, LaneKind, Secret, SocketOptions, SocketTransport, call,
};
use bivouac_store::{MirrorRole, read_mirror_note, replica_dir_name};
use bivouac_types::{ClientId, Ino, NodeId, OpId, PartitionId};
use bivouac_wire::{FormationMap, Frame, StatFsRequest, op};
use rustix::process::Signal;
use serde_json::Value;

/// Time that a move may take here, where one machine plays all hosts.
pub const MOVE_MAX: Duration = Duration::from_secs(60);
pub const BLOCK: usize = 4096;

fn protected(hosts: &str) -> Hosts {
    protected_by(hosts, "2s")
}

/// A protected formation with this `--dead-after`, once there are two of everything.
pub fn protected_by(hosts: &str, dead_after: &str) -> Hosts {
    let formation = Hosts::new();
    let options = ["--protect", "replicas=2", "--dead-after", dead_after, "--stripe", "4096"];
    let said = formation.up(hosts, "", &options);
    assert_eq!(said.code, 0, "{said:?}");
    wait_within(MOVE_MAX, "all replicas are in sync", || in_sync(&formation, "a"));
    formation
}

/// Asserts that a file of eight blocks has what was written before, and takes what is written now.
pub fn check_goes_on(client: &Client, file: Ino) {
    assert_eq!(read(client, file, 0, 8 * BLOCK), [1; 8 * BLOCK]);
    write(client, file, 0, &[2; 8 * BLOCK]);
    assert_eq!(read(client, file, 0, 8 * BLOCK), [2; 8 * BLOCK]);
}

/// Returns whether every node has a replica with all that it has, by the map of a host that lives.
pub fn in_sync(formation: &Hosts, living: &str) -> bool {
    let map = map(formation, living);
    (0u16..).map(NodeId).zip(&map.mirrors).all(|(node, entry)| {
        let Some(backup) = entry.backup else { return false };
        let hosts = ["a", "b", "c"].into_iter().filter(|host| part(formation, host).exists());
        let states = hosts.filter_map(|host| StateDir::at(part(formation, host)).read().unwrap());
        let volumes: Vec<PathBuf> = states
            .flat_map(|state| state.nodes)
            .filter(|known| known.id == backup.0)
            .flat_map(|known| known.volumes)
            .map(|volume| volume.path)
            .collect();
        volumes.iter().any(|volume| {
            let note = read_mirror_note(&volume.join(replica_dir_name(node, 0))).unwrap();
            matches!(note.map(|note| note.role), Some(MirrorRole::Replica { epoch, .. }) if epoch.is_complete)
        })
    })
}

pub fn lost(formation: &Hosts) -> Said {
    formation.place.run(&["status", "--name", &formation.name, "--lost", "--json"])
}

pub fn lost_node(formation: &Hosts, node: u16) -> Value {
    // Nothing is said while another keeper takes over.
    let Ok(report) = serde_json::from_str::<Value>(&lost(formation).out) else { return Value::Null };
    let nodes = report["nodes"].as_array().unwrap();
    nodes.iter().find(|lost| lost["node"] == node).cloned().unwrap_or_default()
}

pub fn part(formation: &Hosts, host: &str) -> PathBuf {
    formation.runtime(host).join("bivouac").join(&formation.name)
}

pub fn map(formation: &Hosts, host: &str) -> FormationMap {
    StateDir::at(part(formation, host)).read().unwrap().unwrap().map().unwrap()
}

/// The host that has the replicas of a node.
pub fn backup_host(formation: &Hosts, node: u16) -> &'static str {
    let (backup, _) = map(formation, "a").mirror(NodeId(node)).unwrap();
    ["a", "b", "c"][usize::from(backup.0)]
}

/// The supervisor of a host's part, and its agent and daemons.
pub fn processes(formation: &Hosts, host: &str) -> (u64, Vec<u64>) {
    let state = StateDir::at(part(formation, host)).read().unwrap().unwrap();
    let agent = u64::from(state.owner.unwrap().pid);
    let daemons = state.nodes.iter().filter_map(|node| node.process).map(|process| u64::from(process.pid));
    // The agent first, so that nobody is told anything.
    (u64::from(state.supervisor.unwrap().pid), [agent].into_iter().chain(daemons).collect())
}

pub fn lose(formation: &Hosts, host: &str) {
    lose_with(formation, host, None);
}

/// Kills all processes of a host, and the keeper if that is on it.
fn lose_with(formation: &Hosts, host: &str, keeper: Option<u64>) {
    let (supervisor, others) = processes(formation, host);
    let with_standbys: Vec<u64> = keeper.into_iter().chain([supervisor]).collect();
    // Stopped first: none of them notices the end of another one.
    others.iter().chain(&with_standbys).for_each(|pid| try_to_signal(*pid, Signal::STOP));
    with_standbys.into_iter().for_each(kill_with_standby);
    others.iter().for_each(|pid| try_to_signal(*pid, Signal::KILL));
    wait_until("the host is gone", || !others.iter().any(|pid| is_alive(*pid)));
}

pub fn wait_for_move(formation: &Hosts, node: u16, to: &str) {
    let is_there = |moved: Value| moved["state"] == "moved" && moved["to"] == to;
    wait_within(MOVE_MAX, "the node has moved", || is_there(lost_node(formation, node)));
}

/// Content of a block that tells file, block and turn.
pub fn content(file: usize, block: usize, turn: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| (file * 131 + block * 31 + turn * 7 + at / 64) as u8).collect()
}

/// What each host serves at `/metrics` is of its own nodes, while `status` is of all on every host.
#[test]
fn each_host_counts_its_own_nodes() {
    let formation = protected("a,b,c");
    let nodes = |report: &StatusReport| report.nodes.iter().map(|node| node.id).collect::<Vec<_>>();
    let mut counted = Vec::new();
    for host in ["a", "b", "c"] {
        let dir = StateDir::at(part(&formation, host));
        wait_until("the host has learned of the others", || nodes(&look(&dir).unwrap()) == [0, 1, 2]);
        counted.extend(nodes(&look_here(&dir).unwrap()));
    }
    assert_eq!(counted, [0, 1, 2]);
    formation.down();
}

/// Programs that write and read files without a pause, each its own, over all nodes.
pub struct Load {
    ends: Arc<AtomicBool>,
    turns: Vec<Arc<AtomicUsize>>,
    programs: Vec<JoinHandle<()>>,
}

impl Load {
    const BLOCKS: usize = 12;

    /// One program for each of these hosts.
    pub fn start(formation: &Hosts, hosts: &[&str]) -> Load {
        let ends = Arc::<AtomicBool>::default();
        let (mut turns, mut programs) = (Vec::new(), Vec::new());
        for (number, host) in hosts.iter().enumerate() {
            let client = if number == 0 {
                library(&part(formation, host))
            } else {
                far_library(&part(formation, host))
            };
            let (turn, end) = (Arc::<AtomicUsize>::default(), Arc::clone(&ends));
            turns.push(Arc::clone(&turn));
            programs.push(std::thread::spawn(move || {
                let file = create(&client, &format!("load{number}"));
                while !end.load(Ordering::Acquire) {
                    let now = turn.load(Ordering::Acquire);
                    for block in 0..Load::BLOCKS {
                        write(&client, file, block * BLOCK, &content(number, block, now));
                    }
                    for block in 0..Load::BLOCKS {
                        assert_eq!(
                            read(&client, file, block * BLOCK, BLOCK),
                            content(number, block, now),
                            "turn {now}"
                        );
                    }
                    // Names, which other nodes have than the content.
                    let name = format!("name{number}-{now}");
                    let made = create(&client, &name);
                    write(&client, made, 0, name.as_bytes());
                    assert_eq!(read(&client, made, 0, 100), name.as_bytes());
                    turn.store(now + 1, Ordering::Release);
                }
            }));
        }
        Load { ends, turns, programs }
    }

    /// Each of them has gone on for some turns from now.
    pub fn wait_for_turns(&self) {
        let before: Vec<usize> = self.turns.iter().map(|turn| turn.load(Ordering::Acquire)).collect();
        wait_within(MOVE_MAX, "all programs go on", || {
            let all = self.turns.iter().zip(&before).zip(&self.programs);
            all.into_iter().all(|((turn, before), program)| {
                assert!(!program.is_finished(), "a program has failed");
                turn.load(Ordering::Acquire) > before + 2
            })
        });
    }

    pub fn end(self) {
        self.wait_for_turns();
        self.ends.store(true, Ordering::Release);
        self.programs.into_iter().for_each(|program| program.join().unwrap());
    }
}

/// The formation is taken down, and nothing is left on the hosts that were not lost.
pub fn take_down(formation: &Hosts, lost: &[&str]) {
    let said = formation.down();
    // Without any host there is nobody who says so.
    let says = if lost.len() < 3 { "nothing left: 0 processes" } else { "no host says what it has" };
    assert!(said.out.contains(says), "{said:?}");
    for host in ["a", "b", "c", "d", "e"].into_iter().filter(|host| !lost.contains(host)) {
        assert!(!formation.runtime(host).join("bivouac").exists(), "host {host}");
    }
    // What a lost host has is taken away there, when it is back.
    for host in lost.iter().filter(|host| formation.runtime(host).join("bivouac").exists()) {
        let mut down = formation.place.command(&["down", "--name", &formation.name, "--discard"]);
        let said = down.env("XDG_RUNTIME_DIR", formation.runtime(host)).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }
}

/// S813, S810.
#[test]
fn programs_go_on_when_a_host_is_lost() {
    let formation = protected("a,b,c");
    let to = backup_host(&formation, 1);
    let reader = library(&part(&formation, "a"));
    let before = create(&reader, "before");
    let text: Vec<u8> = (0..20 * BLOCK).map(|at| (at / 100 * 17 + at) as u8).collect();
    write(&reader, before, 0, &text);
    let other = far_library(&part(&formation, "c"));
    open(&other, before);
    let load = Load::start(&formation, &["a", "c"]);
    load.wait_for_turns();
    lose(&formation, "b");
    wait_for_move(&formation, 1, to);
    load.end();
    // What was open before is open still, and what was written is there.
    assert_eq!(read(&other, before, 0, text.len()), text);
    write(&other, before, 5, b"after");
    assert_eq!(read(&reader, before, 3, 9), [&text[3..5], b"after", &text[10..12]].concat());
    // A program that starts now finds everything.
    let late = far_library(&part(&formation, to));
    open(&late, before);
    assert_eq!(read(&late, before, 10, 1000), text[10..1010]);
    let said = lost(&formation);
    assert_eq!(said.code, 0, "{said:?}");
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&report["for_good"], &report["hosts"][0]["name"]), (&Value::Bool(false), &Value::from("b")));
    let text = formation.place.run(&["status", "--name", &formation.name, "--lost"]).out;
    assert!(
        text.contains(&format!("node 1 moved from host b to {to}"))
            && text.contains("nothing is lost for good")
    );
    let status = formation.place.run(&["status", "--name", &formation.name, "--json"]);
    let status: Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!((&status["nodes"][1]["host"], &status["nodes"][1]["state"]), (&to.into(), &"ready".into()));
    assert!(status["nodes"][1]["moved_in_epoch"].as_u64().unwrap() > 0);
    // What replicas take of volumes is in no subfile.
    let said = formation.place.run(&["fsck", &formation.name]);
    let mut found = said.out.lines().filter(|line| line.starts_with("left") || line.starts_with("repaired"));
    assert!(found.all(|line| line.contains("accounting")) && [0, 4].contains(&said.code), "{said:?}");
    drop((reader, other, late));
    take_down(&formation, &["b"]);
}

/// S813: a node that has moved has another backup after a while, and moves again.
#[test]
fn hosts_may_be_lost_one_after_the_other() {
    let formation = protected("a,b,c");
    let to = backup_host(&formation, 1);
    assert_eq!(to, "c", "the next one");
    let client = far_library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 16 * BLOCK]);
    lose(&formation, "b");
    wait_for_move(&formation, 1, "c");
    write(&client, file, BLOCK, &[2; 4 * BLOCK]);
    wait_within(MOVE_MAX, "there are two of everything again", || in_sync(&formation, "a"));
    write(&client, file, 3 * BLOCK, &[3; 4 * BLOCK]);
    lose(&formation, "c");
    for node in [1, 2] {
        wait_for_move(&formation, node, "a");
    }
    let expected = [[1; BLOCK].as_slice(), &[2; 2 * BLOCK], &[3; 4 * BLOCK], &[1; 9 * BLOCK]].concat();
    assert_eq!(read(&client, file, 0, 16 * BLOCK), expected);
    assert_eq!(lost(&formation).code, 0);
    let created = create(&client, "later");
    write(&client, created, 0, b"later");
    assert_eq!(read(&client, created, 0, 10), b"later");
    drop(client);
    take_down(&formation, &["b", "c"]);
}

/// S811: a host that is only cut off neither serves nor acknowledges anything once its node has moved, and goes when it
/// is back.
#[test]
fn a_host_that_was_cut_off_does_not_serve_any_more() {
    let formation = protected("a,b,c");
    let to = backup_host(&formation, 1);
    let client = library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    let former = map(&formation, "b");
    let secret = StateDir::at(part(&formation, "a")).secret().unwrap();
    // What any node answers that serves, by the address of then.
    let auth = Auth { formation: former.formation, secret: Secret::new(secret), is_secure: former.is_secure };
    let identity = Identity { auth, client: ClientId(77), lane: LaneKind::Client, epoch: 0 };
    let options = SocketOptions { wait_ms: 2000, ..SocketOptions::default() };
    let address = Address::tcp(former.nodes[1].client_address.clone());
    let transport = SocketTransport::new(address, identity, options);
    let transport = transport.of_daemon(DaemonId { node: NodeId(1), epoch: 0 });
    let ask = |number: u64| {
        let request = StatFsRequest { partition: PartitionId::ROOT };
        call::<op::StatFs>(&transport, Frame::request(0, OpId(number), ClientId(77), 0), &request, &[])
    };
    wait_until("it serves", || ask(1).is_ok());
    let (supervisor, others) = processes(&formation, "b");
    let with_standby = [others[0], wait_for_standby_of(supervisor), supervisor];
    let stopped: Vec<u64> = with_standby.into_iter().chain(others.into_iter().skip(1)).collect();
    // The standby may be replaced just then.
    stopped.iter().for_each(|pid| try_to_signal(*pid, Signal::STOP));
    wait_for_move(&formation, 1, to);
    write(&client, file, 0, &[2; 8 * BLOCK]);
    // Those that go on first may end others.
    stopped.iter().for_each(|pid| try_to_signal(*pid, Signal::CONT));
    for number in 0..20 {
        let answer = ask(number + 2);
        assert!(answer.is_err(), "it serves: {answer:?}");
    }
    wait_within(MOVE_MAX, "it has taken its part down", || !stopped.iter().any(|pid| is_alive(*pid)));
    assert_eq!(read(&client, file, 0, 8 * BLOCK), [2; 8 * BLOCK]);
    drop(client);
    take_down(&formation, &["b"]);
}

/// S814.
#[test]
fn a_keeper_that_is_killed_in_the_middle_of_a_move_is_followed_by_its_standby() {
    let formation = protected("a,b,c");
    let to = backup_host(&formation, 1);
    let client = library(&part(&formation, "a"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    let keeper = formation.keeper_with_standby();
    // The backup's daemon does not answer, so the move waits.
    let state = StateDir::at(part(&formation, to)).read().unwrap().unwrap();
    let daemon = u64::from(state.nodes[0].process.unwrap().pid);
    signal(daemon, Signal::STOP);
    lose(&formation, "b");
    let dir = StateDir::at(formation.place.path().join(format!("bivouac/{}+hosts", formation.name)));
    wait_within(MOVE_MAX, "it is decided", || !dir.read().unwrap().unwrap().moves.is_empty());
    formation.kill_keeper(keeper);
    try_to_signal(daemon, Signal::CONT);
    wait_for_move(&formation, 1, to);
    check_goes_on(&client, file);
    drop(client);
    take_down(&formation, &["b"]);
}

/// S815.
#[test]
fn without_replicas_a_lost_host_is_lost_for_good() {
    let formation = Hosts::new();
    assert_eq!(formation.up("a,b", "", &[]).code, 0);
    let said = lost(&formation);
    assert_eq!((said.code, said.out.contains("\"for_good\": false")), (0, true), "{said:?}");
    lose(&formation, "b");
    wait_within(MOVE_MAX, "the host is given up", || lost(&formation).code == 1);
    let node = lost_node(&formation, 1);
    assert_eq!((&node["state"], &node["from"]), (&"lost".into(), &"b".into()), "{node}");
    let text = formation.place.run(&["status", "--name", &formation.name, "--lost"]).out;
    assert!(text.contains("node 1 of host b is lost for good"), "{text}");
    take_down(&formation, &["b"]);
}

/// Runs a command on a host.
pub fn at(formation: &Hosts, host: &str, arguments: &[&str]) -> Said {
    let mut command = formation.place.command(&[arguments, &["--name", &formation.name]].concat());
    crate::harness::said(&command.env("XDG_RUNTIME_DIR", formation.runtime(host)).output().unwrap())
}

/// The host that an elected keeper runs on.
pub fn keepers_host(formation: &Hosts, hosts: &[&'static str]) -> Option<&'static str> {
    let keeps = |host: &&str| {
        let dir = formation.runtime(host).join(format!("bivouac/{}+hosts", formation.name));
        let state = StateDir::at(dir).read().unwrap();
        state.and_then(|state| state.supervisor).is_some_and(|keeper| keeper.is_alive())
    };
    hosts.iter().copied().find(keeps)
}

pub fn is_moved(formation: &Hosts, living: &str, node: u16) -> bool {
    let said = at(formation, living, &["status", "--lost", "--json"]);
    let Ok(report) = serde_json::from_str::<Value>(&said.out) else { return false };
    let nodes = report["nodes"].as_array().unwrap();
    nodes.iter().any(|lost| lost["node"] == node && lost["state"] == "moved")
}

/// The first keeper and the copy of it that waits.
pub fn first_keeper(formation: &Hosts) -> Vec<u64> {
    // Others can succeed it once they were told.
    let told = || ["b", "c"].iter().all(|host| !StateDir::at(part(formation, host)).keepers().is_empty());
    wait_within(MOVE_MAX, "others can be the keeper", told);
    let keeper = formation.keeper();
    vec![keeper, wait_for_standby_of(keeper)]
}

/// S817, S819: the keeper's host is lost as any other; then another one.
#[test]
fn the_host_of_the_keeper_may_be_lost() {
    let formation = protected("a,b,c");
    let client = library(&part(&formation, "b"));
    let before = create(&client, "before");
    let text: Vec<u8> = (0..20 * BLOCK).map(|at| (at / 100 * 13 + at) as u8).collect();
    write(&client, before, 0, &text);
    let load = Load::start(&formation, &["b", "c"]);
    load.wait_for_turns();
    let keeper = first_keeper(&formation)[0];
    lose_with(&formation, "a", Some(keeper));
    wait_within(MOVE_MAX, "its node has moved", || {
        ["b", "c"].iter().all(|host| is_moved(&formation, host, 0))
    });
    load.end();
    assert_eq!(read(&client, before, 0, text.len()), text);
    let keeper = keepers_host(&formation, &["b", "c"]).unwrap();
    let other = if keeper == "b" { "c" } else { "b" };
    wait_until("the host is shown as lost, and its node serves", || {
        let said = at(&formation, other, &["status", "--json"]);
        let status: Value = serde_json::from_str(&said.out).unwrap_or_default();
        status["hosts"][0]["state"] == "lost" && status["nodes"][0]["state"] == "ready"
    });
    // Two hosts are left: the keeper decides alone from now on.
    wait_within(MOVE_MAX, "there are two of everything again", || in_sync(&formation, keeper));
    let client = library(&part(&formation, keeper));
    write(&client, before, BLOCK, &[7; BLOCK]);
    lose(&formation, other);
    wait_within(MOVE_MAX, "all is on one host", || {
        ["0", "1", "2"].iter().all(|node| {
            let node: u16 = node.parse().unwrap();
            let own = ["a", "b", "c"][usize::from(node)] == keeper;
            own || is_moved(&formation, keeper, node)
        })
    });
    let expected = [&text[..BLOCK], &[7; BLOCK], &text[2 * BLOCK..]].concat();
    assert_eq!(read(&client, before, 0, text.len()), expected);
    drop(client);
    let said = at(&formation, keeper, &["down", "--yes"]);
    assert!(said.out.contains("nothing left: 0 processes"), "{said:?}");
    assert!(!formation.runtime(keeper).join("bivouac").exists());
    take_down(&formation, &["a", "b", "c"]);
}

/// The keeper on one of the hosts, once all hosts follow it and none of its predecessors.
fn elected_keeper(formation: &Hosts, former: u64) -> (u64, &'static str) {
    const HOSTS: [&str; 3] = ["a", "b", "c"];
    let (mut keeper, mut found) = (0, "");
    wait_within(MOVE_MAX, "a keeper is elected", || {
        let Some(host) = keepers_host(formation, &HOSTS) else { return false };
        let dir = formation.runtime(host).join(format!("bivouac/{}+hosts", formation.name));
        let Some(state) = StateDir::at(dir).read().unwrap() else { return false };
        let term = u64::from(state.keepers.map_or(0, |group| group.term));
        (keeper, found) = (state.supervisor.map_or(0, |process| process.pid.into()), host);
        let follow = HOSTS.iter().all(|host| map(formation, host).version >> 32 >= term);
        follow && keeper != former
    });
    // It is complete then.
    wait_for_standby_of(keeper);
    (keeper, found)
}

/// S817, S819: three hosts have a keeper again as often as it is killed, and in the end nothing of any is left.
#[test]
fn a_host_is_elected_again_after_its_keeper_has_ended() {
    let formation = protected("a,b,c");
    let client = library(&part(&formation, "b"));
    let file = create(&client, "x");
    let mut killed = first_keeper(&formation)[0];
    let mut elected = Vec::new();
    for turn in 0..4 {
        kill_with_standby(killed);
        let (keeper, host) = elected_keeper(&formation, killed);
        elected.push(host);
        killed = keeper;
        write(&client, file, 0, &[turn; 8 * BLOCK]);
        assert_eq!(read(&client, file, 0, 8 * BLOCK), [turn; 8 * BLOCK]);
    }
    // Of three hosts, one has been it twice.
    let other = ["a", "b", "c"].into_iter().find(|host| *host != elected[3]).unwrap();
    drop(client);
    let said = at(&formation, other, &["down", "--yes"]);
    assert!(said.out.contains("nothing left: 0 processes"), "{said:?}");
    for host in ["a", "b", "c"] {
        assert!(!formation.runtime(host).join("bivouac").exists(), "host {host}, keepers {elected:?}");
    }
}

/// S189, S817: where no host is left that could elect another keeper, the present one says what is lost.
#[test]
fn a_keeper_whose_hosts_have_all_ended_says_what_is_lost() {
    let formation = Hosts::new();
    let options = ["--protect", "replicas=2", "--dead-after", "2s", "--out", "results:/tmp/never"];
    formation.up("a,b,c", "", &options).succeeds();
    let keeper = first_keeper(&formation)[0];
    // On a host that does not know what was promised it is not taken for done.
    at(&formation, "b", &["down", "--yes"]).fails(CODE_KEEP.into(), &["/results to /tmp/never"]);
    let agents = ["a", "b", "c"].map(|host| {
        let state = StateDir::at(part(&formation, host)).read().unwrap().unwrap();
        u64::from(state.owner.unwrap().pid)
    });
    agents.iter().for_each(|agent| signal(*agent, Signal::TERM));
    wait_within(MOVE_MAX, "the keeper has ended", || !is_alive(keeper));
    let file = formation.place.path().join(format!("bivouac-{}.txt", formation.name));
    let said = std::fs::read_to_string(file).unwrap();
    assert!(said.contains("none of its hosts is left") && said.contains("/results to /tmp/never"), "{said}");
    wait_until("nothing is left on any host", || {
        ["a", "b", "c"].iter().all(|host| !formation.runtime(host).join("bivouac").exists())
    });
}

/// Without three hosts nobody is elected, so nothing listens for votes.
#[test]
fn two_hosts_do_not_vote() {
    let formation = protected("a,b");
    let listening = |host: &str| {
        let state = StateDir::at(part(&formation, host)).read().unwrap().unwrap();
        let agent = state.owner.unwrap().pid;
        let links = std::fs::read_dir(format!("/proc/{agent}/fd")).unwrap();
        let sockets = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
        let sockets: Vec<String> = sockets.map(|link| link.to_string_lossy().into_owned()).collect();
        let listeners = std::fs::read_to_string(format!("/proc/{agent}/net/tcp")).unwrap();
        let listeners = listeners.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        let inodes = listeners.filter_map(|line| line.split_whitespace().nth(9));
        inodes.filter(|inode| sockets.iter().any(|socket| *socket == format!("socket:[{inode}]"))).count()
    };
    // The daemons' listeners are the supervisor's.
    assert_eq!([listening("a"), listening("b")], [0, 0]);
    take_down(&formation, &[]);
}

/// S818, S819: a keeper that stood still until another one was elected changes nothing, and ends.
#[test]
fn a_keeper_that_was_deposed_changes_nothing() {
    let formation = protected("a,b,c");
    let client = library(&part(&formation, "b"));
    let file = create(&client, "x");
    write(&client, file, 0, &[1; 8 * BLOCK]);
    let former = first_keeper(&formation);
    // The standby may be replaced just then.
    former.iter().for_each(|pid| try_to_signal(*pid, Signal::STOP));
    wait_within(MOVE_MAX, "another one is elected", || {
        keepers_host(&formation, &["a", "b", "c"]).is_some_and(|host| {
            at(&formation, host, &["status", "--json"]).out.contains("\"state\": \"running\"")
        })
    });
    let keeper = keepers_host(&formation, &["a", "b", "c"]).unwrap();
    wait_within(MOVE_MAX, "all have its map", || {
        ["a", "b", "c"].iter().all(|host| map(&formation, host).version >> 32 > 0)
    });
    let maps = ["a", "b", "c"].map(|host| map(&formation, host));
    former.iter().for_each(|pid| try_to_signal(*pid, Signal::CONT));
    wait_within(MOVE_MAX, "it has ended", || !former.iter().any(|pid| is_alive(*pid)));
    assert!(!formation.place.path().join(format!("bivouac/{}+hosts", formation.name)).exists());
    write(&client, file, 0, &[2; 4 * BLOCK]);
    assert_eq!(read(&client, file, 0, 8 * BLOCK), [[2; 4 * BLOCK], [1; 4 * BLOCK]].concat());
    assert_eq!(["a", "b", "c"].map(|host| map(&formation, host)), maps);
    assert_eq!(keepers_host(&formation, &["a", "b", "c"]), Some(keeper));
    drop(client);
    let other = if keeper == "b" { "c" } else { "b" };
    let said = at(&formation, other, &["down", "--yes"]);
    assert!(said.out.contains("nothing left: 0 processes"), "{said:?}");
    for host in ["a", "b", "c"] {
        assert!(!formation.runtime(host).join("bivouac").exists(), "host {host}");
    }
}

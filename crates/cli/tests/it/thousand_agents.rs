//! A thousand hosts meet: a real keeper, a launcher that reaches all of them at once, and agents that are connections
//! of this process. They say what agents say; what is behind them is not there.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::harness::{DEADLINE, Place, said, wait_until, wait_within, write_program};
use bivouac_net::{Address, Auth, Identity, LaneKind, Link, Message, Secret};
use bivouac_types::{ClientId, FormationId, NodeId};
use bivouac_wire::rendezvous::{
    BEGIN, FormationStart, JOIN, Join, JoinNode, JoinVolume, ORDER, Order, REPORT, Report,
};
use bivouac_wire::{Decode, Encode, FormationMap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

const HOSTS: usize = 1000;
/// Descriptors of this process besides its agents.
const DESCRIPTORS_BESIDES: u64 = 100;

/// `srun` as the keeper sees it: it keeps the ticket, and lives as long as its input.
const SRUN: &str =
    "#!/bin/sh\nhead -n1 > \"$TICKET.part\" && mv \"$TICKET.part\" \"$TICKET\"\nexec cat > /dev/null\n";

/// A host's agent.
struct Agent {
    link: Link,
    begin: Option<FormationStart>,
    is_down: bool,
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn addresses(host: usize) -> (String, String) {
    let at = |port: u16| format!("127.{}.{}.1:{port}", 1 + host / 250, 1 + host % 250);
    (at(7001), at(7002))
}

fn join(ticket: &Value, host: usize) -> Join {
    let (client_address, peer_address) = addresses(host);
    let volume = JoinVolume { path: "/local".into(), kind: "disk".into(), capacity_bytes: 1 << 30 };
    Join {
        release: ticket["release"].as_str().unwrap().into(),
        host: format!("n{}", host + 1),
        machine: format!("n{}.example", host + 1),
        now_unix_ms: std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64,
        directory: "/run/x".into(),
        trouble: None,
        nodes: vec![JoinNode { client_address, peer_address, volumes: vec![volume] }],
    }
}

fn say(link: &mut Link, op: u16, body: Vec<u8>) {
    link.send(&Message { op, body, payload: Vec::new() }).unwrap();
}

impl Agent {
    fn report_in(ticket: &Value, host: usize) -> Agent {
        let auth = Auth {
            formation: FormationId(bytes(&ticket["formation"]).try_into().unwrap()),
            secret: Secret::new(bytes(&ticket["secret"]).try_into().unwrap()),
            is_secure: false,
        };
        let identity = Identity { auth, client: ClientId(0), lane: LaneKind::Peer, epoch: 0 };
        let address = Address::tcp(ticket["addresses"][0].as_str().unwrap());
        let mut link = Link::connect(&address, &identity, Duration::from_secs(60)).unwrap();
        say(&mut link, JOIN, join(ticket, host).to_bytes());
        Agent { link, begin: None, is_down: false }
    }

    /// Does what it is told; the map, when it gets it.
    fn obey(&mut self) -> Option<Vec<u8>> {
        let mut map = None;
        for message in self.link.receive().unwrap_or_else(|error| panic!("not let in: {error}")) {
            match message.op {
                BEGIN => {
                    self.begin = Some(FormationStart::from_bytes(&message.body).unwrap());
                    map = Some(message.payload);
                    say(&mut self.link, REPORT, Report::Ready { steps: vec![] }.to_bytes());
                }
                ORDER => match Order::from_bytes(&message.body).unwrap() {
                    Order::Live => say(&mut self.link, REPORT, Report::Alive.to_bytes()),
                    Order::Down => {
                        say(&mut self.link, REPORT, Report::Down { left: [0; 4], trouble: None }.to_bytes());
                        self.is_down = true;
                    }
                    order => panic!("{order:?} was not to come"),
                },
                _ => panic!("refused: {:?}", Report::from_bytes(&message.body)),
            }
        }
        map
    }
}

/// Lets agents do what they are told until all have what they wait for.
fn attend(
    agents: &mut [Agent],
    mut heard: impl FnMut(usize, Option<Vec<u8>>, &mut Agent),
    done: impl Fn(&Agent) -> bool,
) {
    wait_within(DEADLINE * 5, "all agents have been told", || {
        let waiting: Vec<usize> = (0..agents.len()).filter(|agent| !done(&agents[*agent])).collect();
        let mut polled: Vec<_> =
            waiting.iter().map(|agent| PollFd::new(&agents[*agent].link, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut polled, Some(&timeout)).unwrap();
        let ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        for (agent, _) in waiting.iter().zip(ready).filter(|(_, ready)| *ready) {
            let map = agents[*agent].obey();
            heard(*agent, map, &mut agents[*agent]);
        }
        agents.iter().all(&done)
    });
}

fn write_srun(place: &Place) -> std::path::PathBuf {
    let programs = place.path().join("programs");
    std::fs::create_dir(&programs).unwrap();
    write_program(&programs.join("srun"), SRUN);
    programs
}

fn ticket_at(path: &Path) -> Value {
    wait_until("the launcher has the ticket", || path.exists());
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(text.trim().strip_prefix("bivouac-ticket ").unwrap()).unwrap()
}

#[test]
fn a_thousand_agents_meet_and_part() {
    let limit = raised_limit();
    if limit.is_some_and(|limit| limit < HOSTS as u64 + DESCRIPTORS_BESIDES) {
        return println!("skipped: at most {limit:?} open files");
    }
    let mut place = Place::new();
    let programs = write_srun(&place);
    let ticket = place.path().join("ticket");
    place.set("TICKET", ticket.to_str().unwrap());
    place.set("PATH", &format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
    let name = Place::unique_name();
    let hosts = format!("n[1-{HOSTS}]");
    let up = place
        .command(&["up", "--name", &name, "--hosts", &hosts, "--launch", "slurm", "--no-mount"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let ticket = ticket_at(&ticket);
    let mut agents: Vec<Agent> = (0..HOSTS).map(|host| Agent::report_in(&ticket, host)).collect();

    let mut secrets = BTreeSet::new();
    let mut maps = BTreeSet::new();
    let heard = |host: usize, map: Option<Vec<u8>>, agent: &mut Agent| {
        let (Some(map), Some(begin)) = (map, &agent.begin) else { return };
        assert_eq!(usize::from(begin.first_node), host, "nodes are numbered as hosts are named");
        assert_eq!(begin.reach, [addresses((host + 1) % HOSTS).0], "everyone looks at the next");
        secrets.insert(agent.link.seal(&begin.sealed_secret));
        maps.insert(map);
    };
    attend(&mut agents, heard, |agent| agent.begin.is_some());
    said(&up.wait_with_output().unwrap()).succeeds();
    assert_eq!((secrets.len(), maps.len()), (1, 1), "all have the same");
    let map = FormationMap::from_bytes(maps.first().unwrap()).unwrap();
    assert_eq!((map.check(), map.nodes.len(), map.target_count()), (Ok(()), HOSTS, HOSTS as u16));
    for (host, node) in map.nodes.iter().enumerate() {
        assert_eq!((node.client_address.clone(), node.peer_address.clone()), addresses(host));
        assert!(map.slots.contains(&NodeId(host as u16)), "n{} has a slot", host + 1);
    }

    let down = place
        .command(&["down", "--name", &name, "--yes"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    attend(&mut agents, |_, _, _| {}, |agent| agent.is_down);
    crate::harness::said(&down.wait_with_output().unwrap())
        .prints(&["nothing left: 0 processes, 0 mounts, 0 files, 0 sockets"]);
    assert!(place.is_empty());
}

/// The limit of open files, raised as far as it goes.
fn raised_limit() -> Option<u64> {
    bivouac_launch::raise_descriptor_limit();
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

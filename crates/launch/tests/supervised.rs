//! The supervisor with daemons that only pretend: this test program itself, started as [`pretended_daemon`].
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bivouac_launch::control::{Request, ask};
use bivouac_launch::handover::{FromNode, Handover, SealOutcome, SupervisorMessage};
use bivouac_launch::polling::wait_readable;
use bivouac_launch::{
    AdoptedNode, Adoption, DaemonProgram, FormationState, LaunchResult, NodeLife, NodeState, PartBegins,
    PartState, ProcessId, Report, RestartLimit, STATE_VERSION, Signals, Stage, StateDir, Supervisor,
    VolumeState, first_map, packets,
};
use bivouac_types::{FormationId, SpreadAt};
use bivouac_wire::{Encode, FormationMap};
use rustix::process::Signal;

const DEADLINE: Duration = Duration::from_secs(60);
const WAIT_MS: u64 = 60_000;

/// Not a test: the daemon. What it does is the name of its volume.
#[test]
#[ignore = "started by the tests below"]
fn pretended_daemon() {
    let (handover, start) = Handover::from_stdin().unwrap();
    match start.config.nodes[0].volumes[0].path.to_str().unwrap() {
        "fails" => handover.tell(&FromNode::Failed { message: "the volume is full".into() }),
        "dies" => {
            writeln!(std::io::stderr(), "last words").unwrap();
            std::process::exit(3);
        }
        behaviour => {
            assert_eq!(start.config.secret().unwrap(), [5; 32]);
            assert!((1..3).contains(&start.config.map().unwrap().nodes.len()));
            handover.tell(&FromNode::Ready { phases: vec![] });
            while let Some(told) = handover.next().unwrap() {
                let mount = match told {
                    SupervisorMessage::Serve(mount) => mount,
                    SupervisorMessage::Seal { node, epoch, .. } => {
                        let outcome =
                            if epoch < 9 { Ok(vec![behaviour.into()]) } else { Err("incomplete".into()) };
                        handover
                            .tell(&FromNode::Sealed { sealed: SealOutcome { node: node.0, epoch, outcome } });
                        continue;
                    }
                    _ => continue,
                };
                // One byte more for every daemon that served it.
                let memory = File::from(mount.memory);
                memory.write_all_at(b"x", memory.metadata().unwrap().len()).unwrap();
                handover.tell(&FromNode::Serving { mount: mount.mount });
                if behaviour == "unmounts" {
                    handover.tell(&FromNode::Ended { mount: mount.mount, message: None });
                }
            }
        }
    }
}

/// A supervisor in a thread, and what its `up` holds.
struct Supervised {
    dir: StateDir,
    report: OwnedFd,
    thread: JoinHandle<LaunchResult<()>>,
    _place: tempfile::TempDir,
    _tables: Tables,
}

/// The grant tables of a formation that nobody takes down.
struct Tables(String);

impl Drop for Tables {
    fn drop(&mut self) {
        let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let is_own = |name: &str| name.contains(&format!("-grants-{}-", self.0));
        for file in files.filter(|file| file.file_name().to_str().is_some_and(is_own)) {
            // Whoever looks for leftovers just then may have removed it.
            match std::fs::remove_file(file.path()) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
                _ => {}
            }
        }
    }
}

impl Supervised {
    /// A supervisor of one daemon that behaves in this way.
    fn begin(behaviour: &str) -> Supervised {
        Supervised::begin_that_bears(RestartLimit::default(), behaviour)
    }

    fn begin_that_bears(tolerance: RestartLimit, behaviour: &str) -> Supervised {
        Supervised::begin_with(|dir| FormationState { tolerance, ..state(behaviour, dir.node_socket(0)) })
    }

    fn begin_with(state: impl FnOnce(&StateDir) -> FormationState) -> Supervised {
        let place = tempfile::tempdir().unwrap();
        let dir = StateDir::at(place.path().into());
        let state = state(&dir);
        dir.write(&state).unwrap();
        std::fs::write(place.path().join("secret"), [5; 32]).unwrap();
        let (report, theirs) = packets::pair().unwrap();
        let lock = packets::to_memory(&0).unwrap();
        let arguments = ["--ignored", "--exact", "pretended_daemon"].map(Into::into).to_vec();
        let program = DaemonProgram { program: "/proc/self/exe".into(), arguments };
        let its_dir = dir.clone();
        let thread = std::thread::spawn(move || {
            let signals = Signals::catch(&[]).unwrap();
            Supervisor::new(its_dir, lock, theirs, signals, program)?.run().map(drop)
        });
        Supervised { dir, report, thread, _place: place, _tables: Tables(state.formation) }
    }

    fn report(&self) -> Report {
        assert!(wait_readable(self.report.as_fd(), WAIT_MS));
        packets::receive(&self.report).unwrap().unwrap().0
    }

    fn state(&self) -> FormationState {
        self.dir.read().unwrap().unwrap()
    }

    fn ask(&self, request: &Request) -> LaunchResult<()> {
        ask(&self.dir, request, &[], WAIT_MS)
    }

    /// Asks for a mount, with a memory of which the test keeps a copy.
    fn mount(&self, node: u16, memory: &OwnedFd) -> LaunchResult<()> {
        let request = Request::Mount { node, dir: "/m".into(), own_dir: true, connection: 0 };
        ask(&self.dir, &request, &[memory.as_fd(), memory.as_fd()], WAIT_MS)
    }

    /// The process of the daemon, once it serves and is not `other`.
    fn daemon(&self, other: Option<ProcessId>) -> ProcessId {
        let mut found = None;
        self.wait_until(|state| {
            let node = &state.nodes[0];
            found = node.process.filter(|process| node.life == NodeLife::Ready && Some(*process) != other);
            found.is_some()
        });
        found.unwrap()
    }

    fn wait_until(&self, mut holds: impl FnMut(&FormationState) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(&self.state()) {
            assert!(Instant::now() < deadline, "{:?}", self.state());
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    fn end(self) -> FormationState {
        self.thread.join().unwrap().unwrap();
        let state = self.dir.read().unwrap().unwrap();
        assert_eq!(state.stage, Stage::Stopping);
        assert!(state.nodes.iter().all(|node| node.process.is_none()));
        state
    }

    fn stop(self) -> FormationState {
        self.ask(&Request::Stop).unwrap();
        self.end()
    }
}

fn state(behaviour: &str, unix_path: PathBuf) -> FormationState {
    let volume = VolumeState {
        path: behaviour.into(),
        kind: "memory".into(),
        capacity_bytes: 1 << 20,
        own_dir: false,
    };
    let node = NodeState {
        id: 0,
        host: "h".into(),
        process: None,
        life: NodeLife::Starting,
        message: None,
        deaths: 0,
        client_address: String::new(),
        peer_address: String::new(),
        unix_path,
        epoch: 0,
        volumes: vec![volume],
    };
    FormationState {
        version: STATE_VERSION,
        release: env!("CARGO_PKG_VERSION").into(),
        name: "x".parse().unwrap(),
        formation: bivouac_launch::hex::to_hex(&bivouac_launch::random_bytes::<16>().unwrap()),
        created_unix_ms: 1,
        stage: Stage::Starting,
        supervisor: None,
        keep: None,
        sources: None,
        message: None,
        before: None,
        owner: None,
        dead_after_ms: None,
        ends_unix_ms: None,
        wait_ms: 1000,
        tolerance: Default::default(),
        port: 0,
        in_process: false,
        secure: false,
        detect_races: false,
        protect: bivouac_launch::Protection::None,
        http: None,
        gateway: None,
        stripe: 4096,
        width: 0,
        spread_at: SpreadAt::default(),
        checksum: bivouac_types::Checksum::default(),
        page_pool: 64 << 20,
        names_memory: u64::MAX,
        numa: true,
        log_format: bivouac_launch::LogFormat::default(),
        map: String::new(),
        nodes: vec![node],
        lost_elsewhere: vec![],
        own_dirs: vec![],
        mounts: vec![],
        part: None,
        kept_on: None,
        hosts: vec![],
        moves: Vec::new(),
        departures: Vec::new(),
        arrivals: Vec::new(),
        keeper_host: None,
        keepers: None,
        reach: None,
        recoveries: 0,
        recovering: false,
    }
}

fn length(memory: &OwnedFd) -> u64 {
    File::from(memory.try_clone().unwrap()).metadata().unwrap().len()
}

#[test]
fn a_daemon_serves_dies_and_its_successor_takes_everything_over() {
    let supervised = Supervised::begin("serves");
    let Report::Ready { phases } = supervised.report() else { panic!() };
    assert_eq!(
        phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(),
        ["bind", "spawn", "daemons"]
    );
    let before = supervised.state();
    assert_eq!((before.stage, before.nodes[0].life), (Stage::Running, NodeLife::Ready));
    let memory = packets::to_memory(&1).unwrap();
    supervised.mount(0, &memory).unwrap();
    assert_eq!(length(&memory), 2);
    let first = supervised.daemon(None);
    first.signal(Signal::KILL);
    let second = supervised.daemon(Some(first));
    let deadline = Instant::now() + DEADLINE;
    while length(&memory) < 3 && Instant::now() < deadline {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    assert_eq!(length(&memory), 3, "the successor serves the mount");
    let after = supervised.state();
    assert_eq!(after.nodes[0].client_address, before.nodes[0].client_address);
    assert_eq!(
        (after.nodes[0].deaths, after.nodes[0].message.as_deref()),
        (1, Some("killed by signal 9 (SIGKILL)"))
    );
    let last = supervised.stop();
    assert!(!second.is_alive());
    assert_eq!((last.nodes[0].life, last.own_dirs), (NodeLife::Stopped, vec![PathBuf::from("/m")]));
}

/// A part of a formation of two nodes, on this host node 0; with the map.
fn part() -> (Supervised, FormationMap) {
    let bind = std::net::Ipv4Addr::LOCALHOST.into();
    let part = PartState { bind, started_from: "here".into(), leaves_volumes: false };
    let begun = Supervised::begin_with(|dir| FormationState {
        part: Some(part),
        ..state("serves", dir.node_socket(0))
    });
    assert!(matches!(begun.report(), Report::Bound { .. }));
    let mut whole = begun.state();
    let other = NodeState { id: 1, host: "other".into(), ..whole.nodes[0].clone() };
    whole.nodes.push(other);
    let map = first_map(&whole, FormationId([7; 16]));
    let hex = bivouac_launch::hex::to_hex;
    let begins = PartBegins { first_node: 0, secret: hex(&[5; 32]), map: hex(&map.to_bytes()) };
    let memory = packets::to_memory(&begins).unwrap();
    packets::send(&begun.report, &"begin", &[memory.as_fd()]).unwrap();
    assert!(matches!(begun.report(), Report::Ready { .. }));
    (begun, map)
}

fn tell_map(supervised: &Supervised, map: &FormationMap) -> LaunchResult<()> {
    let memory = packets::to_memory(&map.to_bytes()).unwrap();
    ask(&supervised.dir, &Request::Map, &[memory.as_fd()], WAIT_MS)
}

/// The map with a node where it was taken over.
fn with_adopted(map: &FormationMap, adopted: &AdoptedNode) -> FormationMap {
    let mut map = FormationMap { version: map.version + 1, ..map.clone() };
    let entry = &mut map.nodes[usize::from(adopted.node)];
    entry.client_address.clone_from(&adopted.client_address);
    entry.peer_address.clone_from(&adopted.peer_address);
    entry.epoch = adopted.epoch;
    map
}

/// S813.
#[test]
fn a_node_of_another_host_is_started_when_the_map_has_it_here() {
    let (supervised, map) = part();
    let adopt = |epoch| {
        let adoption = Adoption { node: 1, backup: 0, epoch, volumes: vec![("memory".into(), 1 << 20)] };
        supervised.ask(&Request::Adopt { adoption })
    };
    // Replicas that cannot be used are no volumes.
    adopt(9).unwrap();
    let message = "incomplete".into();
    assert_eq!(supervised.report(), Report::NotAdopted { node: 1, epoch: 9, message });
    adopt(2).unwrap();
    let Report::Adopted { adopted } = supervised.report() else { panic!() };
    assert_eq!(
        (adopted.node, adopted.epoch, adopted.volumes.as_slice()),
        (1, 2, &[PathBuf::from("serves")][..])
    );
    assert!(adopted.unix_path.exists() && adopted.client_address != adopted.peer_address);
    let state = supervised.state();
    assert_eq!(
        (state.nodes[1].life, state.nodes[1].process),
        (NodeLife::Starting, None),
        "it waits for the map"
    );
    // The answer may have been lost: it is the same again.
    adopt(2).unwrap();
    assert_eq!(supervised.report(), Report::Adopted { adopted: adopted.clone() });
    assert!(adopt(1).unwrap_err().to_string().contains("node 1 is here already, in epoch 2"));
    let newer = with_adopted(&map, &adopted);
    tell_map(&supervised, &newer).unwrap();
    assert_eq!(supervised.report(), Report::Serves);
    let mut daemon = None;
    supervised.wait_until(|state| {
        daemon = state.nodes[1].process.filter(|_| state.nodes[1].life == NodeLife::Ready);
        daemon.is_some()
    });
    // From then on it is one of this host's: started again, and ended with the others.
    daemon.unwrap().signal(Signal::KILL);
    assert_eq!(supervised.report(), Report::Serves);
    let known = std::fs::read(supervised.dir.path().join("map")).unwrap();
    assert_eq!(known, newer.to_bytes());
    // Older news changes nothing.
    tell_map(&supervised, &map).unwrap();
    assert_eq!(supervised.state().map(), Some(newer));
    let last = supervised.stop();
    assert!(last.nodes.iter().all(|node| node.life == NodeLife::Stopped), "{last:?}");
}

/// S840: a node comes back to a host that it has moved away from.
#[test]
fn a_node_that_has_moved_away_may_come_back() {
    let (supervised, map) = part();
    let adopt = |epoch| {
        let adoption = Adoption { node: 1, backup: 0, epoch, volumes: vec![("memory".into(), 1 << 20)] };
        supervised.ask(&Request::Adopt { adoption })
    };
    adopt(2).unwrap();
    let Report::Adopted { adopted } = supervised.report() else { panic!() };
    // A move that was given up before its daemon began: the next one is in a later epoch.
    adopt(4).unwrap();
    let Report::Adopted { adopted: again } = supervised.report() else { panic!() };
    assert_eq!((adopted.epoch, again.epoch), (2, 4));
    let here = with_adopted(&map, &again);
    tell_map(&supervised, &here).unwrap();
    assert_eq!(supervised.report(), Report::Serves);
    let is_ready = |state: &FormationState, epoch| {
        let node = state.index_of(1).map(|index| &state.nodes[index]);
        node.is_some_and(|node| node.epoch == epoch && node.life == NodeLife::Ready)
    };
    supervised.wait_until(|state| is_ready(state, 4));
    assert!(adopt(6).unwrap_err().to_string().contains("node 1 is here already, in epoch 4"));
    let mut away = FormationMap { version: here.version + 1, ..here };
    (away.nodes[1].client_address, away.nodes[1].epoch) = ("10.0.0.9:1".into(), 6);
    tell_map(&supervised, &away).unwrap();
    // Asked again until its former daemon has ended.
    supervised.wait_until(|_| adopt(8).is_ok());
    let Report::Adopted { adopted: back } = supervised.report() else { panic!() };
    assert_eq!((back.node, back.epoch), (1, 8));
    tell_map(&supervised, &with_adopted(&away, &back)).unwrap();
    assert_eq!(supervised.report(), Report::Serves);
    supervised.wait_until(|state| is_ready(state, 8));
    supervised.stop();
}

/// S811.
#[test]
fn a_daemon_whose_node_has_moved_elsewhere_ends_and_is_not_started_again() {
    let (supervised, map) = part();
    let daemon = supervised.daemon(None);
    let mut newer = FormationMap { version: map.version + 1, ..map };
    newer.nodes[0].client_address = "10.0.0.9:1".into();
    newer.nodes[0].epoch = 4;
    tell_map(&supervised, &newer).unwrap();
    supervised.wait_until(|state| state.nodes[0].life == NodeLife::Failed && !daemon.is_alive());
    let state = supervised.state();
    assert!(state.nodes[0].message.as_deref().unwrap().contains("has moved to another host"), "{state:?}");
    supervised.stop();
}

#[test]
fn a_daemon_that_cannot_serve_is_quoted_and_not_tried_again() {
    let supervised = Supervised::begin("fails");
    assert_eq!(supervised.report(), Report::Failed { message: "node 0: the volume is full".into() });
    let state = supervised.end();
    assert_eq!((state.message.as_deref(), state.nodes[0].deaths), (Some("node 0: the volume is full"), 1));
}

#[test]
fn the_last_words_of_a_daemon_that_says_nothing_are_quoted() {
    let supervised = Supervised::begin("dies");
    let message = "node 0: exit code 3; its log ends with: last words".into();
    assert_eq!(supervised.report(), Report::Failed { message });
    supervised.end();
}

#[test]
fn it_ends_with_the_command_that_starts_it() {
    let supervised = Supervised::begin("serves");
    rustix::net::shutdown(&supervised.report, rustix::net::Shutdown::Both).unwrap();
    // Either it was not ready yet, and ends by itself; or it was, and has to be told.
    if supervised.state().stage == Stage::Running {
        let _may_be_gone = supervised.ask(&Request::Stop);
    }
    let deadline = Instant::now() + DEADLINE;
    while !supervised.thread.is_finished() && Instant::now() < deadline {
        let _may_be_gone = ask(&supervised.dir, &Request::Keep { reason: None }, &[], 10);
        if supervised.state().stage == Stage::Running {
            let _may_be_gone = supervised.ask(&Request::Stop);
        }
    }
    supervised.end();
}

#[test]
fn after_too_many_deaths_it_gives_up_and_lets_go_of_the_mounts() {
    let supervised = Supervised::begin("serves");
    supervised.report();
    let memory = packets::to_memory(&1).unwrap();
    supervised.mount(0, &memory).unwrap();
    let mut last = None;
    for _ in 0..5 {
        let daemon = supervised.daemon(last);
        daemon.signal(Signal::KILL);
        last = Some(daemon);
    }
    supervised.wait_until(|state| state.nodes[0].life == NodeLife::Failed);
    let state = supervised.state();
    assert!(state.nodes[0].message.as_deref().unwrap().starts_with("died 5 times within 60 s"), "{state:?}");
    let refused = supervised.mount(0, &memory).unwrap_err().to_string();
    assert!(refused.contains("node 0 has failed"), "{refused}");
    supervised.stop();
}

/// S310. Also where no process can be made: that passes as well.
#[test]
fn a_daemon_that_cannot_be_started_is_tried_for_as_long_as_that_lasts() {
    let supervised = Supervised::begin_that_bears("2/60s".parse().unwrap(), "serves");
    supervised.report();
    let first = supervised.daemon(None);
    let log = supervised.dir.node_log(0);
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    first.signal(Signal::KILL);
    let says = |node: &NodeState| node.message.as_ref().is_some_and(|text| text.contains("n0.log"));
    supervised.wait_until(|state| state.nodes[0].life == NodeLife::Restarting && says(&state.nodes[0]));
    std::fs::remove_dir(&log).unwrap();
    supervised.daemon(Some(first));
    supervised.stop();
}

/// What is asked for is not said to be done before it is written down, and written down later if it must be.
#[test]
fn what_cannot_be_written_down_is_refused() {
    let supervised = Supervised::begin("serves");
    supervised.report();
    supervised.daemon(None);
    let beside = supervised.dir.path().join("state.json.tmp");
    std::fs::create_dir(&beside).unwrap();
    let keep = Request::Keep { reason: Some("results".into()) };
    let sources = Request::Sources { which: Some("1".into()) };
    for request in [&keep, &sources, &Request::Leave { ttl_ms: None }] {
        let refused = supervised.ask(request).unwrap_err().to_string();
        assert!(refused.contains("cannot be written down"), "{refused}");
    }
    let first = supervised.daemon(None);
    first.signal(Signal::KILL);
    std::fs::remove_dir(&beside).unwrap();
    supervised.daemon(Some(first));
    assert_eq!((supervised.state().keep, supervised.state().sources), (None, None));
    supervised.ask(&keep).unwrap();
    assert_eq!(supervised.state().keep.as_deref(), Some("results"));
    supervised.ask(&Request::Keep { reason: None }).unwrap();
    supervised.stop();
}

#[test]
fn requests_that_make_no_sense_are_refused_and_do_no_harm() {
    let supervised = Supervised::begin("serves");
    supervised.report();
    let memory = packets::to_memory(&1).unwrap();
    let refused = supervised.mount(9, &memory).unwrap_err().to_string();
    assert_eq!(refused, "there is no node 9; nodes are 0 to 0");
    let bare = Request::Mount { node: 0, dir: "/m".into(), own_dir: false, connection: 0 };
    assert_eq!(supervised.ask(&bare).unwrap_err().to_string(), "a mount comes with two descriptors");
    assert_eq!(supervised.state().mounts, []);
    supervised.ask(&Request::Keep { reason: Some("results".into()) }).unwrap();
    supervised.wait_until(|state| state.keep.as_deref() == Some("results"));
    supervised.ask(&Request::Keep { reason: None }).unwrap();
    supervised.wait_until(|state| state.keep.is_none());
    supervised.stop();
}

#[test]
fn a_mount_that_ends_is_forgotten() {
    let supervised = Supervised::begin("unmounts");
    supervised.report();
    supervised.mount(0, &packets::to_memory(&1).unwrap()).unwrap();
    supervised.wait_until(|state| state.mounts.is_empty());
    let daemon = supervised.daemon(None);
    daemon.signal(Signal::KILL);
    supervised.daemon(Some(daemon));
    assert_eq!(supervised.stop().mounts, []);
}

#[test]
fn without_a_state_there_is_nothing_to_supervise() {
    let place = tempfile::tempdir().unwrap();
    let (_report, theirs) = packets::pair().unwrap();
    let program = DaemonProgram { program: "/bin/false".into(), arguments: vec![] };
    let signals = std::thread::spawn(|| Signals::catch(&[]).unwrap()).join().unwrap();
    let lock = packets::to_memory(&0).unwrap();
    let made = Supervisor::new(StateDir::at(place.path().into()), lock, theirs, signals, program);
    assert!(made.unwrap_err().to_string().contains("holds no formation; start one with: bivouac up"));
}

//! Strangers at the doors of real daemons, while programs work on the mounts: they go on unhurt.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::random::Random;
use crate::harness::{Camp, rss_kib, wait_until};
use bivouac_net::{
    Address, HandshakeRefusal, Identity, LaneKind, NetError, Request, Secret, SocketOptions, SocketTransport,
    Transport, call,
};
use bivouac_types::{ClientId, FormationId, OpId};
use bivouac_wire::{Frame, Lane, Op, Seal, op, seal_of};
use rustix::process::{Gid, Resource, Uid, getrlimit};
use serde_json::Value;

/// Number of the first message of a handshake.
const HELLO: u16 = 0xff01;
/// What a daemon may need under such treatment, in KiB; a debug build, with a mount and all its threads.
const RSS_KIB_MAX: u64 = 120 << 10;

/// A door of a daemon, and what is behind it.
#[derive(Clone, Debug)]
enum Door {
    Tcp(String),
    Unix(PathBuf),
}

/// What is at a door.
trait Line: Read + Write + Send {}
impl Line for TcpStream {}
impl Line for UnixStream {}

impl Door {
    fn knock(&self) -> Box<dyn Line> {
        let patience = Some(Duration::from_secs(60));
        match self {
            Door::Tcp(address) => {
                let line = TcpStream::connect(address).unwrap();
                line.set_read_timeout(patience).unwrap();
                line.set_write_timeout(patience).unwrap();
                Box::new(line)
            }
            Door::Unix(path) => {
                let line = UnixStream::connect(path).unwrap();
                line.set_read_timeout(patience).unwrap();
                line.set_write_timeout(patience).unwrap();
                Box::new(line)
            }
        }
    }
}

/// The client lane, the peer lane and the Unix socket of every node.
fn doors(camp: &Camp) -> Vec<Door> {
    let status = camp.status();
    let nodes = status["nodes"].as_array().unwrap();
    let addresses = nodes.iter().flat_map(|node| node["addresses"].as_array().unwrap());
    let door = |address: &Value| match address.as_str().unwrap() {
        path if path.starts_with('/') => Door::Unix(path.into()),
        address => Door::Tcp(address.into()),
    };
    addresses.map(door).collect()
}

/// Whether the daemon hangs up; also when it is told more than it wants to hear.
fn hangs_up(line: &mut dyn Line, bytes: &[u8]) -> bool {
    let _it_may_have_hung_up_already = line.write_all(bytes);
    let _ = line.flush();
    match line.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
    }
}

fn hello(camp: &Camp) -> Vec<u8> {
    let body =
        [&camp.auth().formation.0[..], &[0, 1], &[0; 12], &[0xff; 2], &[0; 4], &[3; 32], &[0; 32]].concat();
    sealed(Frame { body_len: 100, ..Frame::request(HELLO, OpId(0), ClientId(7), 0) }, &body)
}

/// A message as it goes over any connection.
fn sealed(frame: Frame, body: &[u8]) -> Vec<u8> {
    [&Frame { seal: seal_of(body, []), ..frame }.to_bytes()[..], body].concat()
}

/// Lets `disturb` do its worst while programs work on all mounts; then everything is as it was.
fn undisturbed(camp: &Camp, disturb: impl FnOnce(&Watched<'_>)) {
    let pids = [camp.node_pid(0), camp.node_pid(1)];
    let watched = Watched { stop: AtomicBool::new(false), done: AtomicU64::new(0), pids: &pids };
    std::thread::scope(|scope| {
        for mount in camp.mounts() {
            scope.spawn(|| watched.work(mount));
        }
        let _stops = StopsWork(&watched.stop);
        watched.progresses();
        disturb(&watched);
        watched.progresses();
    });
    assert_eq!([camp.node_pid(0), camp.node_pid(1)], pids, "no daemon died");
    assert_eq!(camp.status()["nodes"][0]["deaths"], 0);
}

struct Watched<'a> {
    stop: AtomicBool,
    done: AtomicU64,
    pids: &'a [u64],
}

struct StopsWork<'a>(&'a AtomicBool);

impl Drop for StopsWork<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Watched<'_> {
    fn work(&self, mount: &Path) {
        let mut random = Random::new(mount.as_os_str().len() as u64);
        let file = mount.join(format!("work-{}", mount.file_name().unwrap().to_string_lossy()));
        while !self.stop.load(Ordering::Relaxed) {
            let len = random.below(50_000);
            let content = random.bytes(len);
            fs::write(&file, &content).unwrap();
            assert!(fs::read(&file).unwrap() == content);
            fs::remove_file(&file).unwrap();
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until both programs got on.
    fn progresses(&self) {
        let goal = self.done.load(Ordering::Relaxed) + 20;
        wait_until("programs get on", || self.done.load(Ordering::Relaxed) >= goal);
        for pid in self.pids {
            let kib = rss_kib(*pid);
            assert!(kib < RSS_KIB_MAX, "a daemon has {kib} KiB");
        }
    }
}

fn camp() -> Option<Camp> {
    Camp::start_each(&["--nodes", "2", "--stripe", "16k"])
}

#[test]
fn nonsense_ends_only_its_connection() {
    let Some(camp) = camp() else { return };
    let (doors, hello) = (doors(&camp), hello(&camp));
    undisturbed(&camp, |watched| {
        let mut random = Random::new(1);
        for door in &doors {
            for len in [64, 65, 200, 5000, 300_000] {
                assert!(hangs_up(&mut *door.knock(), &random.bytes(len)), "{len} bytes at {door:?}");
            }
            for _ in 0..60 {
                let mut bytes = hello.clone();
                let at = random.below(64);
                bytes[at] = random.next() as u8;
                let _some_changes_are_harmless = door.knock().write_all(&bytes);
            }
            for (body_len, payload_len) in
                [(u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX), (1 << 18, 1 << 23)]
            {
                let frame = Frame::request(HELLO, OpId(0), ClientId(7), 0);
                let frame = Frame { body_len, payload_len, seal: Seal::Sum(0), ..frame };
                assert!(
                    hangs_up(&mut *door.knock(), &frame.to_bytes()),
                    "{body_len} {payload_len} at {door:?}"
                );
            }
            for op in 0..60 {
                let frame = Frame::request(op, OpId(1), ClientId(7), 0);
                assert!(hangs_up(&mut *door.knock(), &sealed(frame, &[])), "operation {op} at {door:?}");
            }
            let mut other = hello.clone();
            other[4] = 9;
            assert!(hangs_up(&mut *door.knock(), &other), "another version");
            watched.progresses();
        }
    });
    camp.down();
}

#[test]
fn half_handshakes_and_a_thousand_idle_connections_hold_nobody_up() {
    let Some(camp) = camp() else { return };
    if getrlimit(Resource::Nofile).current.is_some_and(|files| files < 4500) {
        return println!("skipped: this process may not open 4,500 files (ulimit -n)");
    }
    let (doors, hello, auth) = (doors(&camp), hello(&camp), camp.auth());
    undisturbed(&camp, |watched| {
        let mut random = Random::new(2);
        let mut half: Vec<Box<dyn Line>> = Vec::new();
        for door in &doors[..3] {
            for idle in 0..1000 {
                let mut line = door.knock();
                if idle % 2 == 0 {
                    let _ = line.write_all(&hello[..random.below(hello.len())]);
                }
                half.push(line);
            }
            watched.progresses();
        }
        // Friends come in.
        let Door::Tcp(address) = &doors[0] else { panic!("{doors:?}") };
        let identity = Identity { auth, client: ClientId(99), lane: LaneKind::Client, epoch: 0 };
        let friend = SocketTransport::new(Address::tcp(address), identity, SocketOptions::default());
        call::<op::Ping>(&friend, Frame::request(0, OpId(1), ClientId(99), 0), &(), &[]).unwrap();
        assert_eq!(camp.state(), "running");
        half.truncate(1500);
        watched.progresses();
    });
    camp.down();
}

#[test]
fn a_client_with_the_secret_that_talks_nonsense_gets_errors() {
    let Some(camp) = camp() else { return };
    let (doors, auth) = (doors(&camp), camp.auth());
    undisturbed(&camp, |watched| {
        let mut random = Random::new(3);
        for (door, lane) in doors[..2].iter().zip([LaneKind::Client, LaneKind::Peer]) {
            let Door::Tcp(address) = door else { panic!("{doors:?}") };
            let client = ClientId(99);
            let identity = Identity { auth: auth.clone(), client, lane, epoch: 0 };
            let friend = SocketTransport::new(Address::tcp(address), identity, SocketOptions::default());
            let own = if lane == LaneKind::Client { Lane::Client } else { Lane::Peer };
            let served = |op: &&Op| [own, Lane::Both].contains(&op.lane());
            let others = |op: &&Op| ![Op::Shutdown, Op::LockRename].contains(op);
            for op in Op::ALL.iter().filter(served).filter(others) {
                for len in [0, 1, 8, 30, 100, 3000] {
                    let body = random.bytes(len);
                    let mut frame = Frame::request(*op as u16, OpId(random.next()), client, 0);
                    frame.origin = client;
                    let request = Request::new(frame, &body, &[]);
                    let _any_answer = friend.exchange(&request, &mut Vec::new(), &mut []).unwrap();
                }
            }
            watched.progresses();
        }
    });
    camp.down();
}

#[test]
fn the_supervisor_does_not_listen_to_nonsense() {
    let Some(camp) = camp() else { return };
    let supervisor = camp.supervisor_pid();
    let mut random = Random::new(4);
    for len in [0, 1, 100, 10_000] {
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.unwrap();
        let path = rustix::net::SocketAddrUnix::new(camp.dir().join("control")).unwrap();
        rustix::net::connect(&socket, &path).unwrap();
        let _it_may_hang_up =
            rustix::net::send(&socket, &random.bytes(len), rustix::net::SendFlags::NOSIGNAL);
    }
    let more = camp.place().path().join("more");
    fs::create_dir(&more).unwrap();
    camp.run("mount", &["--node", "1", more.to_str().unwrap()]).succeeds();
    fs::write(more.join("f"), "x").unwrap();
    assert_eq!(fs::read(camp.mount().join("f")).unwrap(), b"x");
    assert_eq!(camp.supervisor_pid(), supervisor);
    camp.down();
}

#[test]
fn without_the_secret_nobody_comes_in() {
    let Some(camp) = camp() else { return };
    let mut wrong = camp.auth();
    wrong.secret = Secret::new([9; 32]);
    let mut other = camp.auth();
    other.formation = FormationId([9; 16]);
    let cases = [(wrong, HandshakeRefusal::Secret), (other, HandshakeRefusal::Formation)];
    for door in doors(&camp) {
        let address = match &door {
            Door::Tcp(address) => Address::tcp(address),
            Door::Unix(path) => Address::unix(path),
        };
        for (auth, expected) in cases.clone() {
            let identity = Identity { auth, client: ClientId(99), lane: LaneKind::Client, epoch: 0 };
            let stranger = SocketTransport::new(address.clone(), identity, SocketOptions::default());
            let request = Request::new(Frame::request(Op::Ping as u16, OpId(1), ClientId(99), 0), &[], &[]);
            match stranger.exchange(&request, &mut Vec::new(), &mut []).unwrap_err() {
                NetError::Refused { reason: HandshakeRefusal::Lane, .. } => {
                    assert!(matches!(door, Door::Tcp(_)))
                }
                NetError::Refused { reason, .. } => assert_eq!(reason, expected, "{door:?}"),
                error => panic!("{error}"),
            }
        }
    }
    fs::write(camp.dir().join("secret"), [9; 32]).unwrap();
    let said = camp.run("status", &[]);
    assert!(said.err.contains("secret") || said.out.contains("secret"), "{}{}", said.out, said.err);
    camp.down();
}

#[test]
fn another_users_process_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: without root there is no second user");
    }
    let Some(camp) = camp() else { return };
    let doors = doors(&camp);
    let Door::Unix(path) = &doors[2] else { panic!("{doors:?}") };
    assert_eq!(as_other_user(path), Err(ErrorKind::PermissionDenied), "the directories are closed");
    // Even where directories and socket are open to everybody.
    let set_all = |mode| {
        for path in path.ancestors().take_while(|open| open.starts_with(camp.place().path())) {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set_all(0o777);
    let answer = as_other_user(path);
    set_all(0o700);
    let answer = answer.unwrap();
    let frame = Frame::from_bytes(answer.first_chunk().unwrap()).unwrap();
    assert!(frame.op == HELLO && frame.status != 0, "{frame:?}");
    assert_eq!(camp.state(), "running");
    camp.down();
}

/// What a daemon says to a process of another user.
fn as_other_user(path: &Path) -> Result<Vec<u8>, ErrorKind> {
    let talk = || {
        // Of this thread only.
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(Gid::from_raw(1), Gid::from_raw(1), Gid::from_raw(1)).unwrap();
        rustix::thread::set_thread_res_uid(Uid::from_raw(1), Uid::from_raw(1), Uid::from_raw(1)).unwrap();
        let mut line = UnixStream::connect(path).map_err(|error| error.kind())?;
        let mut said = Vec::new();
        line.read_to_end(&mut said).map_err(|error| error.kind())?;
        Ok(said)
    };
    std::thread::scope(|scope| scope.spawn(talk).join().unwrap())
}

//! More clients, questions and open files than there should be: daemons stay small, and serve others meanwhile.

use std::fs;
use std::io::IoSliceMut;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::harness::{Camp, rss_kib, wait_until};
use bivouac_net::{
    Address, Auth, Identity, LaneKind, SocketOptions, SocketTransport, StartedCall, call, start,
};
use bivouac_types::limits::OPENS_MAX;
use bivouac_types::{ClientId, Errno, FsResult, Ino, OpId, OpenId, TargetIndex};
use bivouac_wire::{CloseRequest, Frame, InoOnly, OpenRequest, Operation, ReadRequest, ReassertRequest, op};
use rustix::fs::{XattrFlags, setxattr};

/// Bytes of the file that is read: what one answer carries.
const LEN: usize = 4 << 20;
/// What a daemon may need, in KiB: 256 MiB of answers that nobody fetches, the opens of its limit, and itself, as
/// a debug build with a mount.
const RSS_KIB_MAX: u64 = (256 + 160 + 120) << 10;
/// Files that flooding clients leave open.
const OPENS: u64 = 2000;

/// One client of the first node.
struct Flood {
    id: ClientId,
    transport: SocketTransport,
}

impl Flood {
    fn new(id: u64, address: &str, auth: &Auth) -> Flood {
        let identity =
            Identity { auth: auth.clone(), client: ClientId(id), lane: LaneKind::Client, epoch: 0 };
        let transport = SocketTransport::new(Address::tcp(address), identity, SocketOptions::default());
        Flood { id: ClientId(id), transport }
    }

    fn frame(&self) -> Frame {
        Frame::request(0, OpId(1), self.id, 0)
    }

    fn ask<O: Operation>(&self, request: &O::Request<'_>) -> FsResult<O::Reply> {
        call::<O>(&self.transport, self.frame(), request, &[])
    }

    fn reassert(&self, first: bool, last: bool, opens: Vec<(Ino, OpenId)>) -> FsResult<()> {
        self.ask::<op::Reassert>(&ReassertRequest {
            first,
            last,
            floor: OpenId(u64::MAX),
            under_way: Vec::new(),
            next: OpenId(u64::MAX),
            opens,
        })
    }

    fn start<O: Operation>(&self, request: &O::Request<'_>) -> StartedCall<'_, O> {
        start::<O>(&self.transport, self.frame(), request, &[])
    }
}

/// Programs at a mount while others flood a daemon.
struct Program {
    stop: AtomicBool,
    rounds: AtomicU64,
}

impl Program {
    fn work(&self, mount: &Path) {
        let path = mount.join("program");
        while !self.stop.load(Ordering::Relaxed) {
            let round = self.rounds.load(Ordering::Relaxed).to_string();
            fs::write(&path, &round).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), round);
            fs::remove_file(&path).unwrap();
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn goes_on(&self, pid: u64) {
        let before = self.rounds.load(Ordering::Relaxed);
        wait_until("programs go on", || self.rounds.load(Ordering::Relaxed) > before + 3);
        let kib = rss_kib(pid);
        assert!(kib < RSS_KIB_MAX, "the daemon has {} MiB", kib >> 10);
    }
}

/// Lets `flood` do its worst to node 0 while a program works through node 1.
fn undisturbed(flood: impl FnOnce(&dyn Fn(u64) -> Flood, Ino, &dyn Fn())) {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let file = camp.mount().join("file");
    fs::write(&file, "").unwrap();
    setxattr(&file, "user.bivouac.layout", b"width=1 base=0", XattrFlags::empty()).unwrap();
    fs::write(&file, vec![7; LEN]).unwrap();
    let ino = Ino(fs::metadata(&file).unwrap().ino());
    let (pid, auth) = (camp.node_pid(0), camp.auth());
    let address = camp.status()["nodes"][0]["addresses"][0].as_str().unwrap().to_string();
    let program = Program { stop: AtomicBool::new(false), rounds: AtomicU64::new(0) };
    std::thread::scope(|scope| {
        scope.spawn(|| program.work(&camp.mounts()[1]));
        scopeguard::defer! { program.stop.store(true, Ordering::Relaxed) }
        flood(&|id| Flood::new(id, &address, &auth), ino, &|| program.goes_on(pid));
    });
    assert_eq!((camp.node_pid(0), &camp.status()["nodes"][0]["deaths"]), (pid, &0.into()));
    camp.down();
}

#[test]
fn answers_that_nobody_fetches_are_not_kept_for_ever() {
    undisturbed(|client, ino, goes_on| {
        let floods: Vec<Flood> = (0..300).map(|i| client(1000 + i)).collect();
        let request = ReadRequest { ino, target: TargetIndex(0), offset: 0, len: LEN as u32 };
        let mut started: Vec<_> = floods.iter().map(|flood| flood.start::<op::Read>(&request)).collect();
        goes_on();
        // Of who has waited longest one was hung up on, mostly the first; who came last has an answer.
        let mut bytes = vec![0; LEN];
        let (_, len) = started.pop().unwrap().finish(&mut [IoSliceMut::new(&mut bytes)]).unwrap();
        assert!(len == LEN && bytes.iter().all(|byte| *byte == 7));
        let hung_up = started.drain(..).find_map(|one| one.finish(&mut [IoSliceMut::new(&mut bytes)]).err());
        assert_eq!(hung_up.map(|error| error.errno()), Some(Errno::EIO));
        drop(started);
        goes_on();
    });
}

#[test]
fn many_questions_of_many_clients_are_all_answered() {
    undisturbed(|client, ino, goes_on| {
        let floods: Vec<Flood> = (0..40).map(|i| client(1000 + i)).collect();
        let each = floods.iter().cycle().take(floods.len() * 25);
        let started: Vec<_> = each.map(|flood| flood.start::<op::GetAttr>(&InoOnly { ino })).collect();
        goes_on();
        for started in started {
            assert_eq!(started.finish(&mut []).unwrap().0.attr.size, LEN as u64);
        }
    });
}

#[test]
fn more_open_files_than_there_may_be_are_refused() {
    undisturbed(|client, ino, goes_on| {
        let floods: Vec<Flood> = (0..20).map(|i| client(1000 + i)).collect();
        for flood in &floods {
            for id in 1..=OPENS {
                let (id, floor) = (OpenId(id), OpenId(id));
                flood.ask::<op::Open>(&OpenRequest { ino, truncate: false, id, floor }).unwrap();
            }
            let opens = (1..=OPENS / 2).map(|id| (ino, OpenId(id))).collect();
            flood
                .ask::<op::Close>(&CloseRequest { floor: OpenId(OPENS + 1), opens, uses: Vec::new() })
                .unwrap();
        }
        goes_on();
        let batch = |at: u64| (0..8192).map(|i| (ino, OpenId(at * 8192 + i))).collect::<Vec<_>>();
        let greedy = &floods[0];
        let refusal = (0..).find_map(|at| greedy.reassert(at == 0, false, batch(at)).err().map(|e| (at, e)));
        let (at, error) = refusal.unwrap();
        assert_eq!((at, error.errno()), (OPENS_MAX / 8192, Errno::EMFILE));
        goes_on();
        for flood in &floods {
            flood.reassert(true, true, Vec::new()).unwrap();
        }
        goes_on();
    });
}

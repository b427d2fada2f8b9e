//! Changes of a file's own attributes, while clients may believe what they were told of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod formation;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_client::{Client, NewInode};
use bivouac_node::Believer;
use bivouac_types::{ClientId, FormationId, Ino, NodeId, mode};
use bivouac_wire::Op;
use formation::{Formation, op, write};
use parking_lot::Mutex;

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };

/// A kernel that does what it is asked, or cannot tell.
#[derive(Default)]
struct Kernel {
    asked: Mutex<Vec<Ino>>,
    /// Whether it cannot tell.
    is_busy: AtomicBool,
}

impl Believer for Kernel {
    fn disbelieve(&self, ino: Ino) -> bool {
        self.asked.lock().push(ino);
        !self.is_busy.load(Ordering::Relaxed)
    }
}

/// A mount of a node.
struct Mounted {
    client: Client,
    kernel: Arc<Kernel>,
    made: Mutex<u32>,
}

impl Mounted {
    fn new(formation: &Formation, node: u16) -> Mounted {
        let id = ClientId::of_mount(formation.map.formation, NodeId(node), 7);
        let (client, kernel) = (formation.client_as(usize::from(node), id.0 - 1), Arc::<Kernel>::default());
        formation.nodes[usize::from(node)].is_believed_through(id, Some(kernel.clone()));
        Mounted { client, kernel, made: Mutex::default() }
    }

    /// Makes a directory at a node, and a file in it: both may be believed from then on.
    fn make(&self, formation: &Formation, node: u16) -> (Ino, Ino) {
        loop {
            *self.made.lock() += 1;
            let name = format!("d{}", self.made.lock());
            let dir = self.client.mknod(&op(&self.client), Ino::ROOT, name.as_bytes(), &DIR).unwrap().ino;
            if formation.map.home(dir) == Some(NodeId(node)) {
                return (dir, self.client.mknod(&op(&self.client), dir, b"f", &FILE).unwrap().ino);
            }
        }
    }
}

fn waits(formation: &Formation) -> u64 {
    formation.nodes.iter().map(|node| node.lease_waits()).sum()
}

/// A program writes a file that it makes longer.
fn write_first(client: &Client, ino: Ino) {
    client.open(&op(client), ino, 0).unwrap();
    write(client, ino, 0, &[1; 5000]);
    client.close(ino);
}

/// S271.
#[test]
fn a_first_write_does_not_wait_for_who_can_do_without_believing_its_size() {
    for home in [0, 1] {
        let formation = Formation::new(2, 4096);
        let (mounted, program) = (Mounted::new(&formation, 0), formation.client(1));
        // On a busy machine a lease may be over before it is in the way.
        while mounted.kernel.asked.lock().is_empty() {
            let (_, ino) = mounted.make(&formation, home);
            write_first(&program, ino);
            assert!(mounted.kernel.asked.lock().iter().all(|asked| *asked == ino));
            assert_eq!((waits(&formation), mounted.client.getattr(ino).unwrap().size), (0, 5000));
        }
        assert_eq!(formation.switchboard.asked(Op::Disbelieve) > 0, home == 1);
    }
}

/// S62, S271.
#[test]
fn who_cannot_tell_or_is_not_heard_of_is_waited_for() {
    for home in [0, 1] {
        let formation = Formation::new(2, 4096);
        let (busy, away, program) =
            (Mounted::new(&formation, 0), Mounted::new(&formation, 1), formation.client(1));
        busy.kernel.is_busy.store(true, Ordering::Relaxed);
        let id = ClientId::of_mount(formation.map.formation, NodeId(1), 7);
        formation.nodes[1].is_believed_through(id, None);
        while waits(&formation) == 0 {
            let (_, ino) = busy.make(&formation, home);
            away.client.getattr(ino).unwrap();
            write_first(&program, ino);
            assert!([&busy, &away].iter().all(|mounted| mounted.client.lease(ino).is_zero()));
        }
    }
}

/// S271.
#[test]
fn an_answer_that_is_lost_is_no_answer() {
    let formation = Formation::new(2, 4096);
    let (mounted, program) = (Mounted::new(&formation, 0), formation.client(1));
    while formation.switchboard.asked(Op::Disbelieve) == 0 {
        let (_, ino) = mounted.make(&formation, 1);
        formation.switchboard.lose_reply.store(Op::Disbelieve as u32, Ordering::SeqCst);
        write_first(&program, ino);
        assert!(mounted.client.lease(ino).is_zero());
    }
    assert_eq!(mounted.kernel.asked.lock().len(), 1);
}

/// S271.
#[test]
fn a_node_that_does_not_answer_is_waited_for_no_longer_than_its_mounts() {
    let formation = Formation::new(2, 4096);
    let (mounted, program) = (Mounted::new(&formation, 0), formation.client(1));
    while waits(&formation) == 0 {
        let (_, ino) = mounted.make(&formation, 1);
        formation.switchboard.hold(NodeId(0));
        write_first(&program, ino);
        formation.switchboard.release();
        assert!(mounted.client.lease(ino).is_zero() && mounted.kernel.asked.lock().is_empty());
    }
}

/// S20, S61.
#[test]
fn names_beside_the_file_may_be_believed_and_are_waited_for() {
    let formation = Formation::new(1, 4096);
    let (mounted, program) = (Mounted::new(&formation, 0), formation.client(0));
    while mounted.kernel.asked.lock().is_empty() {
        let (dir, ino) = mounted.make(&formation, 0);
        write_first(&program, ino);
        program.unlink(&op(&program), dir, b"f").unwrap();
        assert!(mounted.client.lease(dir).is_zero(), "it would believe that the name is there");
    }
}

/// What is in no client's hands says no, and breaks nothing.
#[test]
fn made_up_clients_are_nobody() {
    let mount = |node| ClientId::of_mount(FormationId([3; 16]), NodeId(node), 1);
    for client in [ClientId(u64::MAX >> 1), ClientId(5000), mount(0), mount(900), mount(u16::MAX)] {
        let formation = Formation::new(2, 4096);
        let looker = formation.client_as(0, client.0 - 1);
        let ino = looker.mknod(&op(&looker), Ino::ROOT, b"f", &FILE).unwrap().ino;
        write_first(&formation.client(1), ino);
        assert!(looker.lease(ino).is_zero() && formation.switchboard.asked(Op::Disbelieve) == 0);
    }
}

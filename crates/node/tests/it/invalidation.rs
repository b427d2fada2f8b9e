//! Changes of a file's own attributes, while clients may cache what they were told of them.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::at_site::Camp;
use crate::formation::{Formation, op, write};
use bivouac_client::{Client, NewInode, OpCtx};
use bivouac_net::{FailingTransport, HoldPoint, InjectedFault, Peer, PeerOptions, Transport};
use bivouac_node::Cache;
use bivouac_types::limits::LEASE_MS;
use bivouac_types::{ClientId, Errno, FormationId, Ino, NodeId, SetAttr, mode};
use bivouac_wire::{Frame, Invalidation, Op};
use parking_lot::Mutex;

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };

/// A kernel that does what it is asked, or cannot tell.
#[derive(Default)]
struct Kernel {
    asked: Mutex<Vec<Invalidation>>,
    /// Files that have grown, and their sizes.
    grown: Mutex<Vec<(Ino, u64)>>,
    /// Whether it cannot tell.
    is_busy: AtomicBool,
}

impl Cache for Kernel {
    fn invalidate(&self, what: &[Invalidation]) -> Duration {
        self.asked.lock().extend_from_slice(what);
        if self.is_busy.load(Ordering::Relaxed) { Duration::from_millis(LEASE_MS) } else { Duration::ZERO }
    }

    fn has_grown(&self, ino: Ino, size: u64) {
        self.grown.lock().push((ino, size));
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
        formation.nodes[usize::from(node)].serve(id, |served| served.cache = Some(kernel.clone()));
        Mounted { client, kernel, made: Mutex::default() }
    }

    /// Makes a directory at a node, and a file in it: both may be cached from then on.
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

fn attrs_of(ino: Ino) -> Invalidation {
    Invalidation { ino, name: None }
}

fn name_of(dir: Ino, name: &[u8]) -> Invalidation {
    Invalidation { ino: dir, name: Some(bivouac_layout::entry_hash(dir, name)) }
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
            assert!(mounted.kernel.asked.lock().iter().all(|asked| *asked == attrs_of(ino)));
            assert_eq!((waits(&formation), mounted.client.getattr(ino).unwrap().size), (0, 5000));
        }
        assert_eq!(formation.switchboard.asked(Op::Invalidate) > 0, home == 1);
    }
}

/// G49. Each is told before the call returns by which the file has grown.
#[test]
fn mounts_that_have_a_file_open_are_told_when_it_grows_through_another_one() {
    for home in [0, 1, 2] {
        let formation = Formation::new(3, 4096);
        let mounts = [0, 1, 2].map(|node| Mounted::new(&formation, node));
        let [writer, reader, other] = &mounts;
        let (_, ino) = writer.make(&formation, home);
        let told = || mounts.each_ref().map(|mount| std::mem::take(&mut *mount.kernel.grown.lock()));
        let open = |mount: &Mounted| mount.client.open(&op(&mount.client), ino, 0).unwrap();
        let append = |mount: &Mounted, len| {
            mount.client.write(&op(&mount.client), ino, 0, &vec![1; len], true).unwrap()
        };
        let resize = |mount: &Mounted, size| {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            mount.client.setattr(&op(&mount.client), ino, &set).unwrap();
        };
        open(writer);
        write(&writer.client, ino, 0, &[1; 5000]);
        assert_eq!(told(), [vec![], vec![], vec![]], "nobody else has it open");
        open(reader);
        write(&writer.client, ino, 5000, &[1; 10]);
        assert_eq!(told(), [vec![], vec![(ino, 5010)], vec![]]);
        write(&writer.client, ino, 0, &[1; 5010]);
        assert_eq!(told(), [vec![], vec![], vec![]], "it has not grown");
        open(other);
        append(writer, 10);
        assert_eq!(told(), [vec![], vec![(ino, 5020)], vec![(ino, 5020)]]);
        resize(writer, 6000);
        resize(writer, 5500);
        assert_eq!(told(), [vec![], vec![(ino, 6000)], vec![(ino, 6000)]]);
        write(&other.client, ino, 9000, &[1; 10]);
        assert_eq!(told(), [vec![], vec![(ino, 9010)], vec![]], "not who makes it longer, too");
        let program = formation.client(1);
        write_at_end(&program, ino);
        assert_eq!(told(), [vec![], vec![], vec![]], "not what is not seen by a kernel");
    }
}

/// S1. The first try may be superseded, or its node be killed, before it has told anybody.
#[test]
fn mounts_are_told_of_growth_that_a_repetition_finds_done() {
    let formation = Formation::new(2, 4096);
    let id = ClientId::of_mount(formation.map.formation, NodeId(0), 7);
    let lost: Arc<Mutex<Option<Op>>> = Arc::default();
    let client = formation.client_over(0, id.0 - 1, |inner| -> Arc<dyn Transport> {
        let lost = Arc::clone(&lost);
        let plan = move |frame: &Frame| {
            lost.lock().take_if(|op| *op as u16 == frame.op).map(|_| InjectedFault::DropAfter)
        };
        let failing = Arc::new(FailingTransport::new(inner, plan));
        Arc::new(Peer::new(NodeId(0), failing, PeerOptions::default()))
    });
    let reader = Mounted::new(&formation, 1);
    let ino = client.create(&op(&client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    reader.client.open(&op(&reader.client), ino, 0).unwrap();
    let resize = |size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        client.setattr(&op(&client), ino, &set).unwrap();
    };
    let told_of = |op, act: &dyn Fn()| {
        *lost.lock() = Some(op);
        act();
        assert_eq!(*lost.lock(), None, "its answer is lost");
        std::mem::take(&mut *reader.kernel.grown.lock())
    };
    assert_eq!(told_of(Op::Extend, &|| write(&client, ino, 0, &[1; 10])), [(ino, 10); 2]);
    assert_eq!(told_of(Op::ExtendOver, &|| write(&client, ino, 50, &[1; 10])), [(ino, 60); 2]);
    let append = || assert_eq!(client.write(&op(&client), ino, 0, &[1; 10], true), Ok(10));
    let claim = || assert_eq!(client.claim(&op(&client), ino, 10), Ok(70));
    assert_eq!(told_of(Op::Append, &append), [(ino, 70); 2]);
    assert_eq!(told_of(Op::Claim, &claim), [(ino, 80); 2]);
    assert_eq!(told_of(Op::SetAttr, &|| resize(90)), [(ino, 90); 2]);
    assert_eq!(told_of(Op::SetAttr, &|| resize(20)), [], "it is shorter");
}

/// A program makes a file longer.
fn write_at_end(client: &Client, ino: Ino) {
    client.open(&op(client), ino, 0).unwrap();
    client.write(&op(client), ino, 0, &[1; 10], true).unwrap();
    client.close(ino);
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
        formation.nodes[1].serve(id, |served| served.cache = None);
        while waits(&formation) == 0 {
            let (_, ino) = busy.make(&formation, home);
            away.client.getattr(ino).unwrap();
            write_first(&program, ino);
        }
    }
}

/// It would be waited for until its leases are over.
#[test]
fn who_has_left_is_neither_asked_nor_waited_for() {
    for home in [0, 1] {
        let formation = Formation::new(2, 4096);
        let (mounted, program) = (Mounted::new(&formation, 0), formation.client(1));
        let (_, ino) = mounted.make(&formation, home);
        mounted.client.leave();
        let id = ClientId::of_mount(formation.map.formation, NodeId(0), 7);
        formation.nodes[0].serve(id, |served| served.cache = None);
        write_first(&program, ino);
        assert_eq!((waits(&formation), mounted.kernel.asked.lock().len()), (0, 0));
        assert_eq!(program.getattr(ino).unwrap().size, 5000);
    }
}

/// S271.
#[test]
fn an_answer_that_is_lost_is_no_answer() {
    let formation = Formation::new(2, 4096);
    let (mounted, program) = (Mounted::new(&formation, 0), formation.client(1));
    while formation.switchboard.asked(Op::Invalidate) == 0 {
        let (_, ino) = mounted.make(&formation, 1);
        formation.switchboard.lose_reply.store(Op::Invalidate as u32, Ordering::SeqCst);
        write_first(&program, ino);
    }
    assert_eq!(mounted.kernel.asked.lock().len(), 1);
    assert_eq!(waits(&formation), 1);
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
        assert!(mounted.kernel.asked.lock().is_empty());
    }
}

/// S60, S379. A change of a name asks who was told of it, or of its directory's attributes, and of nothing else.
#[test]
fn changes_of_names_do_not_wait_for_who_does_not_cache_them() {
    for home in [0, 1] {
        let formation = Formation::new(2, 4096);
        let (mounted, program) = (Mounted::new(&formation, 0), formation.client(1));
        let mut turn = 0;
        while turn < 5 || mounted.kernel.asked.lock().is_empty() {
            turn += 1;
            let (dir, ino) = mounted.make(&formation, home);
            mounted.client.lookup(dir, b"f").unwrap();
            assert_eq!(mounted.client.lookup(dir, b"absent").map_err(|e| e.errno()), Err(Errno::ENOENT));
            mounted.client.getattr(dir).unwrap();
            let leases = [mounted.client.lease(dir), mounted.client.entry_lease(dir, b"absent")];
            mounted.kernel.asked.lock().clear();
            program.mknod(&op(&program), dir, b"other", &FILE).unwrap();
            let asked = std::mem::take(&mut *mounted.kernel.asked.lock());
            assert!(
                asked.is_empty() || asked == [attrs_of(dir)],
                "it was told nothing of the name: {asked:?}"
            );
            program.mknod(&op(&program), dir, b"absent", &FILE).unwrap();
            program.unlink(&op(&program), dir, b"f").unwrap();
            let asked = mounted.kernel.asked.lock().clone();
            let known = [name_of(dir, b"absent"), name_of(dir, b"f"), attrs_of(ino), attrs_of(dir)];
            assert!(asked.iter().all(|one| known.contains(one)), "{asked:?}");
            // On a busy machine leases may be over before they are in the way.
            if leases.iter().all(|lease| *lease > Duration::from_millis(70)) && asked.is_empty() {
                continue;
            }
        }
        assert_eq!(waits(&formation), 0);
        assert!(home == 0 || formation.switchboard.asked(Op::Invalidate) > 0);
    }
}

/// S20, S61.
#[test]
fn names_beside_the_file_may_be_cached_and_are_asked_for() {
    let formation = Formation::new(1, 4096);
    let (mounted, program) = (Mounted::new(&formation, 0), formation.client(0));
    let of_name = |dir| name_of(dir, b"f");
    loop {
        let (dir, ino) = mounted.make(&formation, 0);
        write_first(&program, ino);
        program.unlink(&op(&program), dir, b"f").unwrap();
        let asked = std::mem::take(&mut *mounted.kernel.asked.lock());
        if asked.contains(&of_name(dir)) {
            break;
        }
    }
    assert_eq!(waits(&formation), 0);
}

/// S20, S60. The kernel of who renames moves what it knows of the old name, and would show the new one for as long.
#[test]
fn who_renames_is_asked_about_the_names_that_it_has_made() {
    const TRIES: usize = 100;
    for (home, new_home, exchanges) in (0..8).map(|case| (case & 1, case >> 1 & 1, case >> 2 == 1)) {
        let formation = Formation::new(2, 4096);
        let (mounted, program) = (Mounted::new(&formation, 0), formation.client(1));
        // On a busy machine a lease may be over before it is in the way.
        let is_asked = (0..TRIES).any(|_| {
            let ((dir, _), (new_dir, _)) =
                (mounted.make(&formation, home), mounted.make(&formation, new_home));
            program.mknod(&op(&program), dir, b"old", &FILE).unwrap();
            if exchanges {
                program.mknod(&op(&program), new_dir, b"new", &FILE).unwrap();
            }
            let flags = if exchanges { 2 } else { 0 };
            mounted.client.rename(&op(&mounted.client), dir, b"old", new_dir, b"new", flags).unwrap();
            let mut made = vec![(new_dir, &b"new"[..])];
            made.extend(exchanges.then_some((dir, &b"old"[..])));
            mounted.kernel.asked.lock().clear();
            made.iter().for_each(|(dir, name)| program.unlink(&op(&program), *dir, name).unwrap());
            let asked = mounted.kernel.asked.lock().clone();
            made.iter().all(|(dir, name)| asked.contains(&name_of(*dir, name)))
        });
        assert!(is_asked, "homes {home} and {new_home}, exchange: {exchanges}");
    }
}

/// S650. What somebody has read of a write, all read from then on, also through the client that still waits to hear that
/// the write is done.
#[test]
fn what_was_read_by_one_is_read_by_all_while_it_is_being_written() {
    const NEW: &[u8] = b"new";
    let formation = Formation::new(2, 4096);
    let (turn, latch) = (Arc::new(AtomicU32::new(0)), HoldPoint::default());
    let client = formation.client_through(0, |inner| -> Arc<dyn Transport> {
        let (turn, latch) = (Arc::clone(&turn), latch.clone());
        let plan = move |frame: &Frame| match frame.op == Op::Extend as u16 {
            true if turn.fetch_add(1, Ordering::SeqCst) == 0 => Some(InjectedFault::DropAfter),
            true => Some(InjectedFault::Hold(latch.clone())),
            false => None,
        };
        let failing = Arc::new(FailingTransport::new(inner, plan));
        Arc::new(Peer::new(NodeId(0), failing, PeerOptions::default()))
    });
    let ino = client.create(&op(&client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    let read = |client: &Client| {
        let mut back = vec![0; 100];
        let len = client.read(ino, 0, &mut back).unwrap();
        back[..len].to_vec()
    };
    assert_eq!(client.getattr(ino).unwrap().size, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| write(&client, ino, 0, NEW));
        latch.await_arrivals(1);
        let seen = [read(&formation.clients[1]), read(&client)];
        latch.open();
        assert_eq!(seen, [NEW, NEW]);
    });
    assert_eq!(read(&client), NEW);
}

/// S20. A directory has its entries' number and its time of there once somebody looks into it.
#[test]
fn who_was_told_of_a_directory_is_asked_before_it_is_listed_at_its_source() {
    const DIRS: usize = 20;
    let name = |number| format!("d{number}");
    let camp = Camp::new(|site| {
        (0..DIRS).for_each(|number| fs::create_dir_all(site.join(name(number)).join("inner")).unwrap());
    });
    let (mounted, program) = (Mounted::new(&camp.formation, 1), camp.client(2));
    // On a busy machine a lease may be over before it is in the way.
    let is_asked = (0..DIRS).any(|number| {
        let dir = camp.ino(0, &name(number)).unwrap();
        let before = mounted.client.getattr(dir).unwrap();
        program.readdir(dir, 0, 4096, false).unwrap();
        assert_eq!((before.nlink, mounted.client.getattr(dir).unwrap().nlink), (2, 3));
        mounted.kernel.asked.lock().contains(&attrs_of(dir))
    });
    assert!(is_asked);
}

/// A kernel that is asked while something else happens.
#[derive(Default)]
struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Cache for Meanwhile {
    fn invalidate(&self, _: &[Invalidation]) -> Duration {
        let act = self.0.lock().take();
        act.into_iter().for_each(|act| std::thread::spawn(act).join().unwrap());
        Duration::ZERO
    }
}

/// A request is done, and its client killed before it hears of that, while its repetition waits for who caches what it changes.
#[test]
fn a_first_try_that_is_done_while_its_repetition_waits_is_found() {
    const NAME: &[u8] = b"user.a";
    const CREATE: u32 = 1;
    let formation = Formation::new(1, 4096);
    let id = ClientId::of_mount(formation.map.formation, NodeId(0), 7);
    let (looker, kernel) = (formation.client_as(0, id.0 - 1), Arc::<Meanwhile>::default());
    formation.nodes[0].serve(id, |served| served.cache = Some(kernel.clone()));
    let program = Arc::new(formation.client(0));
    let change = |removes: bool| {
        move |client: &Client, ctx: &OpCtx, ino: Ino| match removes {
            true => client.removexattr(ctx, ino, NAME),
            false => client.setxattr(ctx, ino, NAME, b"value", CREATE),
        }
    };
    for (number, removes) in (0..).zip([false, true].into_iter().cycle()) {
        let name = format!("f{number}");
        let ino = looker.mknod(&op(&looker), Ino::ROOT, name.as_bytes(), &FILE).unwrap().ino;
        if removes {
            change(false)(&looker, &op(&looker), ino).unwrap();
        }
        looker.getattr(ino).unwrap();
        let (first, same, act) = (op(&program), Arc::clone(&program), change(removes));
        *kernel.0.lock() = Some(Box::new(move || act(&same, &first, ino).unwrap()));
        act(&program, &OpCtx { retry: true, ..first }, ino).unwrap();
        assert_eq!(program.getxattr(ino, NAME).is_err(), removes);
        // On a busy machine a lease may be over before it is in the way.
        let happened = kernel.0.lock().take().is_none();
        if happened && removes {
            break;
        }
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
        assert_eq!(formation.switchboard.asked(Op::Invalidate), 0);
    }
}

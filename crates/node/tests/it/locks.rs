//! Locks of programs, over several nodes: who has which, who waits, and what of it outlives a daemon.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::formation::{Formation, op};
use bivouac_client::{
    Client, FileLock, LOCK_END_MAX, LockDesk, LockKind, LockMode, LockWait, LockWaiting, Locked, NewInode,
};
use bivouac_net::{FailingTransport, HoldPoint, InjectedFault, Transport};
use bivouac_node::LockClient;
use bivouac_types::{ClientId, Errno, FsResult, Ino, mode};
use bivouac_wire::{Frame, Op};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Told(Arc<LockDesk>);

impl LockClient for Told {
    fn granted(&self, tickets: &[u64]) {
        self.0.granted(tickets);
    }

    fn waits(&self, owners: &[u64]) -> Vec<LockWait> {
        self.0.waits(owners)
    }

    fn look_again(&self, ticket: u64) {
        self.0.look_again(ticket);
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn doubt(&self) {}
}

/// Files whose homes are the nodes in their order, open through every client.
fn files(formation: &Formation) -> Vec<Ino> {
    let (client, nodes) = (&formation.clients[0], formation.nodes.len() as u16);
    let make = |node: u16| {
        let dirs = (0..).map(|i: u32| format!("{node}-{i}"));
        let mut dirs =
            dirs.map(|name| client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR).unwrap().ino);
        let dir = dirs.find(|ino| ino.slot().0 % nodes == node).unwrap();
        client.mknod(&op(client), dir, b"f", &FILE).unwrap().ino
    };
    let files: Vec<Ino> = (0..nodes).map(make).collect();
    for client in &formation.clients {
        files.iter().for_each(|ino| assert_eq!(client.open(&op(client), *ino, 0).unwrap().ino, *ino));
    }
    files
}

/// Has the nodes tell the clients what they wait for.
fn connect(formation: &Formation) {
    for (at, (node, client)) in formation.nodes.iter().zip(&formation.clients).enumerate() {
        node.serve(ClientId(at as u64 + 1), |served| {
            served.locks = Some(Arc::new(Told(client.locks.clone())))
        });
    }
}

fn range(mode: LockMode, owner: u64, start: u64, end: u64) -> FileLock {
    let pid = owner as u32;
    FileLock { kind: LockKind::Range, mode, owner, handle: owner, pid, start, end }
}

fn all(mode: LockMode, owner: u64) -> FileLock {
    range(mode, owner, 0, LOCK_END_MAX)
}

fn attempt(client: &Client, ino: Ino, lock: &FileLock) -> Result<Locked, Errno> {
    client.set_lock(ino, lock, None).map_err(|error| error.errno())
}

/// Asks for a lock; what tells the outcome.
fn wait(client: &Client, ino: Ino, lock: &FileLock, ticket: u64) -> Receiver<FsResult<()>> {
    let (sender, outcome) = channel();
    let answer = sender.clone();
    let waiting =
        LockWaiting { ticket, answer: Box::new(move |outcome| answer.send(outcome).unwrap_or_default()) };
    match client.set_lock(ino, lock, Some(waiting)) {
        Ok(Locked::Waiting) => {}
        Ok(Locked::Done) => sender.send(Ok(())).unwrap(),
        Err(error) => sender.send(Err(error)).unwrap(),
    }
    outcome
}

fn outcome(of: &Receiver<FsResult<()>>) -> Result<(), Errno> {
    of.recv_timeout(PATIENCE).unwrap().map_err(|error| error.errno())
}

/// Mode of each byte by file and (client, owner).
type Oracle = BTreeMap<(Ino, usize, u64), [Option<bool>; 16]>;

fn in_the_way(oracle: &Oracle, (ino, client): (Ino, usize), lock: &FileLock) -> bool {
    let others =
        oracle.iter().filter(|((file, at, owner), _)| *file == ino && (*at, *owner) != (client, lock.owner));
    let mut bytes = others.flat_map(|(_, bytes)| &bytes[lock.start as usize..=lock.end as usize]);
    bytes.any(|byte| byte.is_some_and(|write| write || lock.mode == LockMode::Write))
}

/// S101.
#[test]
fn locks_are_those_of_a_model_also_over_restarts() {
    let mut formation = Formation::new(3, 4096);
    let files = files(&formation);
    let (mut oracle, mut state) = (Oracle::new(), 88_172_645_463_325_252_u64);
    let mut random = |below: u64| {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for step in 0..3000 {
        if step % 500 == 499 {
            formation.restart_as_the_same_clients();
            let opens: Vec<(Ino, u32, u32)> = files.iter().map(|ino| (*ino, 2, 1)).collect();
            formation.clients.iter().for_each(|client| client.reassert_opens(&opens).unwrap());
        }
        let (at, ino) = (random(3) as usize, files[random(3) as usize]);
        let (owner, start, end) = (1 + random(2), random(16), random(16));
        let mode = [LockMode::Read, LockMode::Write, LockMode::Unlock][random(3) as usize];
        let lock = range(mode, owner, start.min(end), start.max(end));
        let client = &formation.clients[at];
        if random(40) == 0 {
            client.unlock_owner(ino, owner);
            oracle.remove(&(ino, at, owner));
            continue;
        }
        let conflicts = in_the_way(&oracle, (ino, at), &lock);
        assert_eq!(client.locks.test(ino, &FileLock { mode: LockMode::Write, ..lock }).unwrap().is_some(), {
            in_the_way(&oracle, (ino, at), &FileLock { mode: LockMode::Write, ..lock })
        });
        if mode != LockMode::Unlock && conflicts {
            assert_eq!(attempt(client, ino, &lock), Err(Errno::EAGAIN));
            continue;
        }
        assert_eq!(attempt(client, ino, &lock), Ok(Locked::Done));
        let bytes = oracle.entry((ino, at, owner)).or_default();
        let value = (mode != LockMode::Unlock).then_some(mode == LockMode::Write);
        bytes[lock.start as usize..=lock.end as usize].fill(value);
    }
}

#[test]
fn who_waits_is_told_through_its_node() {
    let formation = Formation::new(3, 4096);
    connect(&formation);
    for ino in files(&formation) {
        let clients = &formation.clients;
        assert_eq!(attempt(&clients[0], ino, &all(LockMode::Write, 1)), Ok(Locked::Done));
        let waits = [
            wait(&clients[1], ino, &all(LockMode::Write, 1), 7),
            wait(&clients[2], ino, &all(LockMode::Read, 1), 7),
        ];
        clients[0].set_lock(ino, &all(LockMode::Unlock, 1), None).unwrap();
        assert_eq!(outcome(&waits[0]), Ok(()));
        assert_eq!(attempt(&clients[0], ino, &all(LockMode::Read, 1)), Err(Errno::EAGAIN));
        clients[1].unlock_handle(ino, 1);
        assert_eq!(outcome(&waits[1]), Ok(()));
    }
}

/// S103: a kernel says of a close only after it, and does not wait for what it says.
#[test]
fn who_is_refused_has_the_holder_close_first_what_its_programs_have_closed() {
    let formation = Formation::new(3, 4096);
    connect(&formation);
    for ino in files(&formation) {
        for (holder, other) in [(0, 1), (1, 0), (2, 2)] {
            let (desk, other) = (formation.clients[holder].locks.clone(), &formation.clients[other]);
            let held = all(LockMode::Write, 1);
            assert_eq!(attempt(&formation.clients[holder], ino, &held), Ok(Locked::Done));
            assert_eq!(attempt(other, ino, &all(LockMode::Read, 2)), Err(Errno::EAGAIN), "it is not closed");
            let closes = Arc::downgrade(&desk);
            // By a thread of its own, as a mount serves closes: whoever answers a peer asks nobody itself.
            desk.settle_with(Arc::new(move || {
                let desk = closes.upgrade().unwrap();
                std::thread::spawn(move || desk.released(ino, 1)).join().unwrap();
            }));
            assert_eq!(attempt(other, ino, &all(LockMode::Write, 2)), Ok(Locked::Done), "{holder} {ino}");
            other.unlock_handle(ino, 2);
            assert_eq!(attempt(&formation.clients[holder], ino, &held), Ok(Locked::Done));
            assert_eq!(other.locks.test(ino, &all(LockMode::Read, 2)).unwrap(), None);
            desk.settle_with(Arc::new(|| ()));
        }
    }
}

#[test]
fn what_is_not_told_is_found_out() {
    let formation = Formation::new(2, 4096);
    // Nobody is connected: hints go nowhere.
    let ino = files(&formation)[0];
    let clients = &formation.clients;
    attempt(&clients[0], ino, &all(LockMode::Write, 1)).unwrap();
    let waits = wait(&clients[1], ino, &all(LockMode::Write, 1), 7);
    clients[0].set_lock(ino, &all(LockMode::Unlock, 1), None).unwrap();
    assert_eq!(outcome(&waits), Ok(()));
}

#[test]
fn a_wait_that_is_taken_back_is_not_granted() {
    let formation = Formation::new(2, 4096);
    connect(&formation);
    let ino = files(&formation)[1];
    let clients = &formation.clients;
    attempt(&clients[0], ino, &all(LockMode::Write, 1)).unwrap();
    let waits = wait(&clients[1], ino, &all(LockMode::Write, 1), 7);
    clients[1].locks.interrupt(7);
    assert_eq!(outcome(&waits), Err(Errno::EINTR));
    clients[1].locks.interrupt(8);
    assert_eq!(outcome(&wait(&clients[1], ino, &all(LockMode::Write, 1), 8)), Err(Errno::EINTR));
    clients[0].unlock_owner(ino, 1);
    assert_eq!(attempt(&clients[0], ino, &all(LockMode::Write, 2)), Ok(Locked::Done));
}

#[test]
fn a_client_that_ends_leaves_nothing() {
    let formation = Formation::new(2, 4096);
    connect(&formation);
    let files = files(&formation);
    let clients = &formation.clients;
    for ino in &files {
        attempt(&clients[0], *ino, &range(LockMode::Write, 1, 0, 9)).unwrap();
        attempt(&clients[1], *ino, &range(LockMode::Write, 1, 10, 19)).unwrap();
    }
    let never = wait(&clients[1], files[0], &all(LockMode::Write, 1), 7);
    let waits = wait(&clients[0], files[1], &all(LockMode::Write, 1), 7);
    clients[1].locks.close();
    assert_eq!(outcome(&waits), Ok(()));
    assert!(never.recv().is_err(), "it is dropped without an answer");
    clients[0].unlock_owner(files[0], 1);
    assert_eq!(attempt(&clients[0], files[0], &all(LockMode::Write, 3)), Ok(Locked::Done));
    let late = wait(&clients[1], files[0], &all(LockMode::Write, 1), 8);
    assert_eq!(outcome(&late), Err(Errno::ENOTCONN));
}

/// A client of node 1 whose requests meet faults.
fn faulty(
    formation: &Formation,
    plan: impl Fn(&Frame) -> Option<InjectedFault> + Send + Sync + Clone + 'static,
) -> Client {
    formation.client_through(1, |inner| -> Arc<dyn Transport> {
        Arc::new(FailingTransport::new(inner, plan.clone()))
    })
}

#[test]
fn asking_again_late_does_not_lock_again() {
    let formation = Formation::new(2, 4096);
    connect(&formation);
    let ino = files(&formation)[0];
    let (asked, latch) = (Arc::new(AtomicU32::new(0)), HoldPoint::default());
    let hold = latch.clone();
    let client = faulty(&formation, move |frame| {
        let second = frame.op == Op::SetLock as u16 && asked.fetch_add(1, Ordering::SeqCst) == 1;
        second.then(|| InjectedFault::Hold(hold.clone()))
    });
    formation.nodes[1].serve(ClientId(1), |served| served.locks = Some(Arc::new(Told(client.locks.clone()))));
    let other = &formation.clients[0];
    attempt(other, ino, &all(LockMode::Write, 1)).unwrap();
    let waits = wait(&client, ino, &all(LockMode::Write, 1), 7);
    // The client asks again; before that arrives it is told that it has its lock.
    latch.await_arrivals(1);
    other.unlock_owner(ino, 1);
    assert!(waits.recv_timeout(Duration::from_millis(300)).is_err(), "what is under way comes first");
    latch.open();
    assert_eq!(outcome(&waits), Ok(()));
    client.set_lock(ino, &all(LockMode::Unlock, 1), None).unwrap();
    for _ in 0..20 {
        assert_eq!(attempt(other, ino, &all(LockMode::Write, 1)), Ok(Locked::Done));
        other.set_lock(ino, &all(LockMode::Unlock, 1), None).unwrap();
    }
}

/// S106.
#[test]
fn a_wait_that_could_not_be_taken_back_ends_with_its_program() {
    let formation = Formation::new(2, 4096);
    connect(&formation);
    let ino = files(&formation)[0];
    let away = Arc::new(AtomicU32::new(0));
    let is_away = Arc::clone(&away);
    let client = faulty(&formation, move |_| {
        (is_away.load(Ordering::SeqCst) == 1).then_some(InjectedFault::Fail(Errno::EIO))
    });
    formation.nodes[1].serve(ClientId(1), |served| served.locks = Some(Arc::new(Told(client.locks.clone()))));
    let other = &formation.clients[0];
    let closings: [fn(&Client, Ino); 2] =
        [|client, ino| client.unlock_owner(ino, 5), |client, ino| client.unlock_handle(ino, 5)];
    for (ticket, close) in (7..).zip(closings) {
        attempt(other, ino, &all(LockMode::Write, 1)).unwrap();
        let waits = wait(&client, ino, &all(LockMode::Write, 5), ticket);
        away.store(1, Ordering::SeqCst);
        client.locks.interrupt(ticket);
        assert_eq!(outcome(&waits), Err(Errno::EINTR));
        close(&client, ino);
        away.store(0, Ordering::SeqCst);
        // Who asks under the same owner first has the program's end told.
        assert_eq!(attempt(&client, ino, &all(LockMode::Read, 5)), Err(Errno::EAGAIN));
        other.unlock_owner(ino, 1);
        assert_eq!(outcome(&wait(other, ino, &all(LockMode::Write, 2), 50 + ticket)), Ok(()));
        other.unlock_owner(ino, 2);
    }
}

/// S111.
#[test]
fn what_could_not_be_unlocked_is_unlocked_later_and_nothing_newer() {
    let formation = Formation::new(2, 4096);
    connect(&formation);
    let ino = files(&formation)[0];
    let away = Arc::new(AtomicU32::new(0));
    let is_away = Arc::clone(&away);
    let client = faulty(&formation, move |_| {
        (is_away.load(Ordering::SeqCst) == 1).then_some(InjectedFault::Fail(Errno::EIO))
    });
    let other = &formation.clients[0];
    attempt(&client, ino, &all(LockMode::Write, 1)).unwrap();
    away.store(1, Ordering::SeqCst);
    client.unlock_owner(ino, 1);
    assert_eq!(attempt(&client, ino, &all(LockMode::Write, 1)), Err(Errno::EIO));
    assert_eq!(attempt(other, ino, &all(LockMode::Write, 1)), Err(Errno::EAGAIN));
    away.store(0, Ordering::SeqCst);
    assert_eq!(outcome(&wait(other, ino, &all(LockMode::Write, 1), 7)), Ok(()), "told a second later");
    other.unlock_owner(ino, 1);
    // An owner that locks anew before that does not lose the new lock to it.
    attempt(&client, ino, &all(LockMode::Write, 1)).unwrap();
    away.store(1, Ordering::SeqCst);
    client.unlock_owner(ino, 1);
    away.store(0, Ordering::SeqCst);
    assert_eq!(attempt(&client, ino, &all(LockMode::Write, 1)), Ok(Locked::Done));
    let waits = wait(other, ino, &all(LockMode::Read, 1), 8);
    assert!(waits.recv_timeout(Duration::from_millis(1500)).is_err());
}

#[test]
fn what_an_earlier_process_waited_for_is_forgotten_and_what_it_has_is_not() {
    let formation = Formation::new(2, 4096);
    let files = files(&formation);
    let ino = files[0];
    let (earlier, other) = (&formation.clients[1], &formation.clients[0]);
    attempt(earlier, ino, &range(LockMode::Write, 1, 0, 9)).unwrap();
    attempt(earlier, files[1], &range(LockMode::Read, 4, 0, 9)).unwrap();
    attempt(other, ino, &range(LockMode::Write, 1, 10, 19)).unwrap();
    // A process of this client that waits, and is killed: nobody hears of it any more.
    let killed = Arc::new(AtomicU32::new(0));
    let is_killed = Arc::clone(&killed);
    let dead = faulty(&formation, move |_| {
        (is_killed.load(Ordering::SeqCst) == 1).then_some(InjectedFault::Fail(Errno::EIO))
    });
    let waits = wait(&dead, ino, &range(LockMode::Write, 2, 10, 19), 7);
    killed.store(1, Ordering::SeqCst);
    assert_eq!(outcome(&waits), Err(Errno::EIO));
    let next = formation.client(1);
    next.reassert_opens(&[(ino, 2, 1), (files[1], 2, 1)]).unwrap();
    other.unlock_owner(ino, 1);
    assert_eq!(attempt(other, ino, &range(LockMode::Write, 1, 10, 19)), Ok(Locked::Done));
    assert_eq!(attempt(other, ino, &range(LockMode::Read, 1, 5, 5)), Err(Errno::EAGAIN));
    // Closing unlocks what the earlier process had locked.
    next.unlock_owner(ino, 1);
    next.unlock_handle(files[1], 4);
    assert_eq!(attempt(other, ino, &all(LockMode::Write, 1)), Ok(Locked::Done));
    assert_eq!(attempt(other, files[1], &all(LockMode::Write, 1)), Ok(Locked::Done));
}

/// A list of many locks is told in pages.
#[test]
fn a_lock_is_not_passed_over_because_an_earlier_one_ends() {
    use bivouac_types::limits::LOCKS_PER_MESSAGE_MAX;
    let formation = Formation::new(2, 4096);
    let ino = files(&formation)[0];
    let (earlier, other) = (formation.client(1), &formation.clients[0]);
    let owners = LOCKS_PER_MESSAGE_MAX as u64 + 8;
    for owner in 0..owners {
        attempt(&earlier, ino, &range(LockMode::Write, owner, owner, owner)).unwrap();
    }
    let asked = Arc::new(AtomicU32::new(0));
    let (count, earlier) = (Arc::clone(&asked), Arc::new(earlier));
    // Before each page but the first one lock in front of it ends.
    let next = faulty(&formation, move |frame| {
        if frame.op == Op::ListLocks as u16 {
            let before = count.fetch_add(1, Ordering::SeqCst);
            (before > 0).then(|| earlier.unlock_owner(ino, u64::from(before)));
        }
        None
    });
    next.reassert_opens(&[(ino, 2, 1)]).unwrap();
    assert!(asked.load(Ordering::SeqCst) > 1);
    (100..owners).for_each(|owner| next.unlock_owner(ino, owner));
    assert_eq!(attempt(other, ino, &range(LockMode::Write, 1, 100, owners)), Ok(Locked::Done));
}

/// Has the home of a file drop all that client 1 has locked, which that does not hear of.
fn drop_behind_its_back(formation: &Formation, ino: Ino) {
    let twin = formation.client(1);
    twin.reassert_opens(&[(ino, 2, 1)]).unwrap();
    twin.locks.close();
}

/// S82.
#[test]
fn a_new_lock_does_not_hide_that_older_ones_were_lost() {
    let formation = Formation::new(2, 4096);
    connect(&formation);
    let ino = files(&formation)[0];
    let (client, other) = (&formation.clients[1], &formation.clients[0]);
    let write = |client: &Client| client.write(&op(client), ino, 0, b"bytes", false).map_err(|e| e.errno());
    let close = |client: &Client, owner| client.unlock_owner(ino, owner);
    // Of the same program, and of another: the second also waits for it.
    for (ticket, owner) in [(7, 1), (8, 2)] {
        attempt(client, ino, &range(LockMode::Write, 1, 0, 9)).unwrap();
        assert_eq!(write(client), Ok(5));
        drop_behind_its_back(&formation, ino);
        attempt(other, ino, &range(LockMode::Write, 1, 0, 29)).unwrap();
        assert_eq!(attempt(client, ino, &range(LockMode::Write, owner, 20, 29)), Err(Errno::EIO));
        let waits = wait(client, ino, &range(LockMode::Write, owner, 20, 29), ticket);
        assert_eq!(outcome(&waits), Err(Errno::EIO));
        close(other, 1);
        assert_eq!(write(client), Err(Errno::EIO));
        assert_eq!(attempt(client, ino, &range(LockMode::Write, owner, 20, 29)), Err(Errno::EIO));
        // Until who had locked it has closed it.
        close(client, 2);
        close(client, 1);
        assert_eq!(attempt(client, ino, &range(LockMode::Write, owner, 20, 29)), Ok(Locked::Done));
        assert_eq!(write(client), Ok(5));
        close(client, owner);
    }
}

/// S82.
#[test]
fn what_was_unlocked_is_not_lost() {
    let formation = Formation::new(2, 4096);
    connect(&formation);
    let ino = files(&formation)[0];
    let client = &formation.clients[1];
    attempt(client, ino, &range(LockMode::Write, 1, 0, 9)).unwrap();
    attempt(client, ino, &range(LockMode::Unlock, 1, 0, 9)).unwrap();
    client.locks.doubt();
    assert_eq!(client.write(&op(client), ino, 0, b"bytes", false), Ok(5));
    attempt(client, ino, &range(LockMode::Write, 2, 0, 9)).unwrap();
    attempt(client, ino, &range(LockMode::Unlock, 2, 5, 9)).unwrap();
    drop_behind_its_back(&formation, ino);
    client.locks.doubt();
    let refused = client.write(&op(client), ino, 0, b"bytes", false).unwrap_err();
    assert_eq!(refused.errno(), Errno::EIO);
}

/// S82: an open that cuts is a truncation.
#[test]
fn what_is_lost_is_not_cut_by_an_open() {
    const O_TRUNC: u32 = 0o1000;
    let formation = Formation::new(2, 4096);
    let ino = files(&formation)[0];
    // The same client, whose numbers come before those of the one that goes on.
    let (twin, client) = (formation.client(1), formation.client(1));
    client.open(&op(&client), ino, 0).unwrap();
    attempt(&client, ino, &range(LockMode::Write, 1, 0, 9)).unwrap();
    client.write(&op(&client), ino, 0, b"bytes", false).unwrap();
    twin.reassert_opens(&[(ino, 2, 1)]).unwrap();
    twin.locks.close();
    client.locks.doubt();
    let refused = client.open(&op(&client), ino, O_TRUNC).unwrap_err();
    assert!(refused.errno() == Errno::EIO && refused.to_string().contains("lock"), "{refused}");
    assert_eq!(formation.clients[0].getattr(ino).unwrap().size, 5);
    client.open(&op(&client), ino, 0).unwrap();
    client.unlock_owner(ino, 1);
    assert_eq!(client.open(&op(&client), ino, O_TRUNC).map(|attr| attr.size), Ok(0));
}

/// S112.
#[test]
fn there_is_a_limit_and_whole_ranges_can_always_be_given_back() {
    use bivouac_types::limits::LOCKS_PER_FILE_MAX;
    let formation = Formation::new(1, 4096);
    let ino = files(&formation)[0];
    let client = &formation.clients[0];
    for at in 0..LOCKS_PER_FILE_MAX as u64 {
        attempt(client, ino, &range(LockMode::Write, 1, at * 2, at * 2)).unwrap();
    }
    let further = LOCKS_PER_FILE_MAX as u64 * 2;
    assert_eq!(attempt(client, ino, &range(LockMode::Write, 1, further, further)), Err(Errno::ENOLCK));
    assert_eq!(attempt(client, ino, &range(LockMode::Write, 1, 1, 1)), Ok(Locked::Done), "it joins two");
    assert_eq!(attempt(client, ino, &all(LockMode::Unlock, 1)), Ok(Locked::Done));
    assert_eq!(attempt(client, ino, &range(LockMode::Write, 1, further, further)), Ok(Locked::Done));
}

#[test]
fn absurd_ranges_and_files_are_refused() {
    let formation = Formation::new(1, 4096);
    let ino = files(&formation)[0];
    let client = &formation.clients[0];
    assert_eq!(attempt(client, ino, &range(LockMode::Write, 1, 5, 4)), Err(Errno::EINVAL));
    assert_eq!(attempt(client, ino, &range(LockMode::Write, 1, 0, u64::MAX)), Err(Errno::EINVAL));
    let nothing = Ino(ino.0 + 1000);
    assert_eq!(attempt(client, nothing, &all(LockMode::Write, 1)), Err(Errno::ENOENT));
}

/// S111.
#[test]
fn a_home_that_is_gone_fails_all_that_wait_for_it_together() {
    let formation = Formation::new(2, 4096);
    let ino = files(&formation)[0];
    let (gone, asked) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (is_gone, count) = (Arc::clone(&gone), Arc::clone(&asked));
    let client = faulty(&formation, move |_| {
        let gone = is_gone.load(Ordering::SeqCst) == 1;
        count.fetch_add(u32::from(gone), Ordering::SeqCst);
        gone.then_some(InjectedFault::Fail(Errno::EIO))
    });
    attempt(&formation.clients[0], ino, &all(LockMode::Write, 1)).unwrap();
    let waits: Vec<_> =
        (10..60).map(|ticket| wait(&client, ino, &all(LockMode::Write, ticket), ticket)).collect();
    gone.store(1, Ordering::SeqCst);
    assert!(waits.iter().all(|wait| outcome(wait) == Err(Errno::EIO)));
    assert!(asked.load(Ordering::SeqCst) < 10, "one asks, and then whether the home lives");
}

//! The session contract, with clients in one process: what each may see, and what comes of what it wrote.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::formation::{Formation, op, read, write};
use bivouac_client::{
    Client, CopyJob, FileLock, LOCK_END_MAX, LockKind, LockMode, NewInode, SeekKind, SetAttr,
};
use bivouac_net::{FailingTransport, InjectedFault, Transport};
use bivouac_types::limits::PAGE_POOL_MIN;
use bivouac_types::{Attr, Errno, FsError, Ino, TargetIndex, mode};
use bivouac_wire::{Frame, Op};
use proptest::prelude::*;

const O_TRUNC: u32 = 0o1000;
const UNIT: usize = 5000;
const UNITS: usize = 1300;
const LEN: usize = UNIT * UNITS;

/// A directory under the session contract.
fn directory(formation: &Formation, name: &str, targets: &[u32]) -> Ino {
    let client = &formation.clients[0];
    let new = NewInode { mode: mode::DIR | 0o700, rdev: 0, target: &[] };
    let dir = client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &new).unwrap().ino;
    let targets = targets.iter().map(|target| TargetIndex(*target)).collect();
    client.partitions.make(&op(client), dir, targets, "contract=session".parse().unwrap()).unwrap();
    dir
}

/// A file in it, which client 0 has open.
fn file(formation: &Formation, dir: Ino) -> Ino {
    let client = &formation.clients[0];
    let new = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
    client.create(&op(client), dir, b"file", &new, true, false).unwrap().attr.ino
}

fn open(client: &Client, ino: Ino) {
    client.open(&op(client), ino, 0).unwrap();
}

fn cut(client: &Client, ino: Ino, size: usize) {
    client.setattr(&op(client), ino, &SetAttr { size: Some(size as u64), ..SetAttr::default() }).unwrap();
}

/// One step of a client.
#[derive(Clone, Debug)]
enum Step {
    /// Writes these of its units.
    Write(usize, usize),
    Read(usize, usize),
    /// Reads one piece behind the other: more than is asked for is read then.
    Scan(usize),
    Sync,
    /// Closes and opens again, or the other way round.
    Reopen(bool),
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let what = prop_oneof![
        4 => (0..UNITS / 3, 1usize..40).prop_map(|(unit, count)| Step::Write(unit, count)),
        3 => (0..12usize, 1usize..12).prop_map(|(unit, count)| Step::Write(unit, count)),
        4 => (0..LEN, 1usize..30_000).prop_map(|(at, len)| Step::Read(at, len)),
        2 => (0..LEN, 1usize..900_000).prop_map(|(at, len)| Step::Read(at, len)),
        3 => (0..LEN / 40).prop_map(Step::Scan),
        2 => Just(Step::Sync),
        2 => any::<bool>().prop_map(Step::Reopen),
    ];
    (0usize..3, what)
}

/// What clients have written: each unit by one of them.
struct Model {
    /// By unit: all contents it has had.
    history: Vec<Vec<u8>>,
    /// By unit: which of them was the last before its writer made them visible.
    visible: Vec<usize>,
    /// By client, and unit: which of them it has to see at least.
    due: Vec<Vec<usize>>,
}

impl Model {
    fn write(&mut self, client: usize, unit: usize) -> u8 {
        let value = (self.history[unit].len() * 3 + unit % 3) as u8;
        self.history[unit].push(value);
        self.due[client][unit] = self.history[unit].len() - 1;
        value
    }

    fn publish(&mut self, client: usize) {
        for unit in (client..UNITS).step_by(3) {
            self.visible[unit] = self.history[unit].len() - 1;
        }
    }

    fn refresh(&mut self, client: usize) {
        for unit in 0..UNITS {
            self.due[client][unit] = self.due[client][unit].max(self.visible[unit]);
        }
    }

    fn check(&self, client: usize, at: usize, seen: &[u8]) {
        let mut rest = seen;
        while !rest.is_empty() {
            let offset = at + seen.len() - rest.len();
            let unit = offset / UNIT;
            let (piece, behind) = rest.split_at(rest.len().min((unit + 1) * UNIT - offset));
            let allowed = &self.history[unit][self.due[client][unit]..];
            // Parts of a write may be seen without the rest of it.
            for run in piece.chunk_by(|a, b| a == b) {
                let byte = run[0];
                assert!(
                    allowed.contains(&byte),
                    "client {client} sees {byte} in {unit}, not one of {allowed:?}"
                );
            }
            rest = behind;
        }
    }
}

fn look(client: &Client, ino: Ino, model: &Model, index: usize, at: usize, len: usize) {
    let seen = read(client, ino, at, len);
    assert_eq!(seen.len(), len.min(LEN - at));
    model.check(index, at, &seen);
}

fn run(steps: &[(usize, Step)]) {
    let formation = Formation::new(3, 16_384);
    let ino = file(&formation, directory(&formation, "s", &[2, 0, 1]));
    cut(&formation.clients[0], ino, LEN);
    formation.clients[1..].iter().for_each(|client| open(client, ino));
    let mut model =
        Model { history: vec![vec![0]; UNITS], visible: vec![0; UNITS], due: vec![vec![0; UNITS]; 3] };
    for (index, step) in steps {
        let client = &formation.clients[*index];
        match *step {
            Step::Write(first, count) => {
                for unit in (first * 3 + index..UNITS).step_by(3).take(count) {
                    let value = model.write(*index, unit);
                    write(client, ino, unit * UNIT, &[value; UNIT]);
                }
            }
            Step::Read(at, len) => look(client, ino, &model, *index, at, len),
            Step::Scan(at) => {
                (at..LEN).step_by(3000).take(20).for_each(|at| look(client, ino, &model, *index, at, 3000));
            }
            Step::Sync => {
                client.fsync(ino, false).unwrap();
                model.publish(*index);
            }
            Step::Reopen(first_closes) => {
                if first_closes {
                    client.close(ino);
                    open(client, ino);
                } else {
                    open(client, ino);
                    client.close(ino);
                }
                model.publish(*index);
                model.refresh(*index);
            }
        }
        let pool = client.sessions.status();
        assert!(pool.used_bytes <= PAGE_POOL_MIN && pool.unsent_bytes <= pool.used_bytes, "{pool:?}");
    }
    for (index, client) in formation.clients.iter().enumerate() {
        client.close(ino);
        model.publish(index);
        let pool = client.sessions.status();
        assert_eq!((pool.used_bytes, pool.unsent_bytes), (0, 0), "{pool:?}");
    }
    for (index, client) in formation.clients.iter().enumerate() {
        open(client, ino);
        model.refresh(index);
        model.check(index, 0, &read(client, ino, 0, LEN));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, ..ProptestConfig::default() })]
    /// S200, S201, S203, S208: each byte is one of those that the contract allows.
    #[test]
    fn clients_see_what_the_contract_allows(steps in proptest::collection::vec(step(), 1..100)) {
        run(&steps);
    }
}

/// S200.
#[test]
fn who_opens_sees_what_was_closed_whatever_copies_there_are() {
    let formation = Formation::new(2, 16_384);
    let ino = file(&formation, directory(&formation, "s", &[0, 1]));
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    cut(a, ino, LEN);
    let scan = |client: &Client| -> Vec<u8> {
        (0..100).flat_map(|turn| read(client, ino, turn * 3000, 3000)).collect()
    };
    assert_eq!(scan(a), [0; 300_000]);
    open(b, ino);
    write(b, ino, 100_000, &[1; 100]);
    b.close(ino);
    open(a, ino);
    assert_eq!(scan(a)[99_990..100_110], [&[0; 10][..], &[1; 100], &[0; 10]].concat());
}

/// S204, S208.
#[test]
fn readers_and_writers_side_by_side_lose_nothing() {
    let formation = Formation::new(3, 16_384);
    let ino = file(&formation, directory(&formation, "s", &[0, 1, 2]));
    cut(&formation.clients[0], ino, LEN);
    let client = &formation.clients[0];
    std::thread::scope(|scope| {
        for writer in 0..3 {
            scope.spawn(move || {
                for round in 1..4u8 {
                    for unit in (writer..UNITS).step_by(3) {
                        write(client, ino, unit * UNIT, &[round; UNIT]);
                        let at = (unit * 7 + 3) % UNITS / 3 * 3 + writer;
                        let unit_seen = read(client, ino, at.min(UNITS - 1) * UNIT, 10);
                        let own = at < UNITS && (at <= unit || round > 1);
                        let least = if at <= unit { round } else { round - 1 };
                        assert!(
                            !own || unit_seen.iter().all(|byte| *byte == least),
                            "{at} of {unit}: {unit_seen:?}"
                        );
                    }
                    client.fsync(ino, false).unwrap();
                }
            });
        }
    });
    client.close(ino);
    open(&formation.clients[1], ino);
    assert!(read(&formation.clients[1], ino, 0, LEN).iter().all(|byte| *byte == 3));
}

/// S207, S210.
#[test]
fn everything_else_comes_after_what_was_written() {
    let formation = Formation::new(2, 4096);
    let dir = directory(&formation, "s", &[1, 0]);
    let ino = file(&formation, dir);
    let client = &formation.clients[0];
    write(client, ino, 0, &[1; 10_000]);
    assert_eq!(client.getattr(ino).unwrap().size, 10_000);
    write(client, ino, 20_000, &[2; 1000]);
    assert_eq!(client.lookup(dir, b"file").unwrap().size, 21_000);
    assert_eq!(client.write(&op(client), ino, 0, &[3; 500], true).unwrap(), 500);
    assert_eq!(read(client, ino, 20_900, 1000), [&[2; 100][..], &[3; 500]].concat(), "appended behind it");
    write(client, ino, 21_400, &[4; 100]);
    cut(client, ino, 5000);
    assert_eq!(read(client, ino, 4990, 100), [1; 10]);
    cut(client, ino, 6000);
    assert_eq!(
        read(client, ino, 4990, 2000),
        [&[1; 10][..], &[0; 1000]].concat(),
        "what was cut off is gone"
    );
    write(client, ino, 0, &[5; 6000]);
    client.fallocate(&op(client), ino, 3, 1000, 1000).unwrap();
    assert_eq!(read(client, ino, 990, 1020), [&[5; 10][..], &[0; 1000], &[5; 10]].concat());
    write(client, ino, 100_000, &[6; 10]);
    assert_eq!(client.seek(ino, 50_000, SeekKind::Data).unwrap() / 4096, 100_000 / 4096);
    write(client, ino, 0, &[7; 3000]);
    let copy = CopyJob { from: ino, from_offset: 0, to: ino, to_offset: 3000, len: 3000 };
    assert_eq!(client.copy(&op(client), &copy).unwrap(), 3000);
    assert_eq!(read(client, ino, 0, 6000), [7; 6000]);
    write(client, ino, 0, &[8; 100]);
    client.write_list(ino, &[(50, &[9; 100]), (4000, &[9; 10])]).unwrap();
    assert_eq!(read(client, ino, 0, 200), [&[8; 50][..], &[9; 100], &[7; 50]].concat());
    write(client, ino, 0, &[10; 10]);
    let (mut first, mut second) = ([0; 20], [0; 20]);
    client.read_list(ino, &mut [(0, &mut first), (3995, &mut second)]).unwrap();
    assert_eq!((first[..10].to_vec(), second[5..15].to_vec()), (vec![10; 10], vec![9; 10]));
    // Cut to nothing by opening: what was written before is gone.
    write(client, ino, 0, &[11; 10]);
    client.open(&op(client), ino, 0o1000).unwrap();
    assert_eq!(read(client, ino, 0, 10), [0; 0]);
    // A file without a name.
    write(client, ino, 5, &[12; 5]);
    client.unlink(&op(client), dir, b"file").unwrap();
    assert_eq!(read(client, ino, 0, 20), [0, 0, 0, 0, 0, 12, 12, 12, 12, 12]);
    client.fsync(ino, false).unwrap();
    client.close(ino);
    client.close(ino);
    assert_eq!(client.sessions.status().dropped_bytes, 0);
}

fn lock(owner: u64, mode: LockMode) -> FileLock {
    FileLock { kind: LockKind::Range, mode, owner, handle: owner, pid: 1, start: 0, end: LOCK_END_MAX }
}

/// S206.
#[test]
fn who_gets_a_lock_sees_what_was_written_under_it() {
    let formation = Formation::new(2, 4096);
    let ino = file(&formation, directory(&formation, "s", &[1, 0]));
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    cut(a, ino, 10_000);
    open(b, ino);
    (0..4).for_each(|turn| drop(read(b, ino, turn * 1000, 1000)));
    a.set_lock(ino, &lock(1, LockMode::Write), None).unwrap();
    write(a, ino, 0, &[1; 5000]);
    assert_eq!(b.set_lock(ino, &lock(2, LockMode::Write), None).unwrap_err().errno(), Errno::EAGAIN);
    a.set_lock(ino, &lock(1, LockMode::Unlock), None).unwrap();
    b.set_lock(ino, &lock(2, LockMode::Write), None).unwrap();
    assert_eq!(read(b, ino, 0, 5000), [1; 5000]);
}

/// S205.
#[test]
fn the_next_process_sends_what_was_acknowledged() {
    let formation = Formation::new(2, 4096);
    let dir = directory(&formation, "s", &[1, 0]);
    let memory = tempfile::tempfile().unwrap();
    let process = |memory: &File| {
        let client = formation.client_as(0, 900);
        client.sessions.keep(memory.try_clone().unwrap(), 4096).unwrap();
        client
    };
    let client = process(&memory);
    let new = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
    let make = |name: &[u8]| client.create(&op(&client), dir, name, &new, true, false).unwrap().attr.ino;
    let (ino, closed) = (make(b"a"), make(b"b"));
    write(&client, ino, 1000, &[1; 100_000]);
    write(&client, ino, 70_000, &[2; 10]);
    write(&client, closed, 5, &[3; 10]);
    // A kill: nothing is said to anybody.
    drop(client);
    let client = process(&memory);
    assert_eq!(client.sessions.status().unsent_bytes, 100_010);
    client.reassert_opens(&[(ino, 2, 1)]).unwrap();
    assert_eq!(client.sessions.status().unsent_bytes, 100_000, "what nobody has open is sent at once");
    assert_eq!(read(&client, ino, 69_995, 20), [&[1; 5][..], &[2; 10], &[1; 5]].concat());
    assert_eq!(client.getattr(ino).unwrap().size, 101_000);
    write(&client, ino, 0, &[4; 10]);
    client.fsync(ino, false).unwrap();
    let other = &formation.clients[1];
    open(other, ino);
    assert_eq!(read(other, ino, 995, 10), [&[0; 5][..], &[1; 5]].concat());
    open(other, closed);
    assert_eq!(read(other, closed, 0, 20), [&[0; 5][..], &[3; 10]].concat());
    client.close(ino);
    drop(client);
    assert_eq!(process(&memory).sessions.status().used_bytes, 0);
}

/// S202.
#[test]
fn what_finds_no_space_is_kept_until_the_last_close() {
    let formation = Formation::with_capacity(1, 4096, 6 << 20);
    let dir = directory(&formation, "s", &[0]);
    let client = &formation.clients[0];
    let ino = file(&formation, dir);
    let new = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
    let ballast = client.create(&op(client), Ino::ROOT, b"ballast", &new, true, false).unwrap().attr.ino;
    write(client, ballast, 0, &vec![1; 5 << 20]);
    let no_space = |outcome: Result<(), FsError>| {
        assert_eq!(outcome.unwrap_err().errno(), Errno::ENOSPC);
    };
    (0..30).for_each(|turn| write(client, ino, turn * 100_000, &[2; 100_000]));
    no_space(client.fsync(ino, false));
    no_space(client.sessions.send_unsent(ino));
    assert_eq!(read(client, ino, 0, 3_000_000), vec![2; 3_000_000]);
    assert_eq!(client.getattr(ino).unwrap().size, 3_000_000, "who only looks is not told");
    // A writer that does not stop is told before the pool is full.
    let mut next = 30;
    let told = loop {
        match client.write(&op(client), ino, next * 100_000, &[3; 100_000], false) {
            Ok(_) => next += 1,
            Err(error) => break error,
        }
        assert!(next < 100, "it is never told");
    };
    assert_eq!(told.errno(), Errno::ENOSPC);
    assert!(client.sessions.status().used_bytes <= PAGE_POOL_MIN);
    client.unlink(&op(client), Ino::ROOT, b"ballast").unwrap();
    client.close(ballast);
    crate::formation::wait_until("there is room", || client.fsync(ino, false).is_ok());
    assert_eq!(client.sessions.status().dropped_bytes, 0);
    let size = client.getattr(ino).unwrap().size;
    assert_eq!(size, next * 100_000);
    // Given up with the last close, and counted.
    let rest = vec![4; 400_000];
    (0..9).for_each(|turn| write(client, ino, (next as usize + turn * 4) * 100_000, &rest));
    no_space(client.sessions.send_unsent(ino));
    client.close(ino);
    let pool = client.sessions.status();
    assert!(pool.dropped_bytes > 0 && pool.used_bytes == 0, "{pool:?}");
}

/// S202. What is cut to nothing need not be sent before, but it is not gone before it is cut.
#[test]
fn what_could_not_be_sent_is_kept_where_a_cut_to_nothing_fails() {
    let formation = Formation::new(2, 4096);
    let dir = directory(&formation, "s", &[0, 1]);
    let ino = file(&formation, dir);
    let refused = Arc::new(AtomicBool::new(false));
    let is_refused = Arc::clone(&refused);
    let changes = [Op::Write, Op::SetAttr, Op::Open].map(|op| op as u16);
    let client = formation.client_through(1, |inner| -> Arc<dyn Transport> {
        let is_refused = Arc::clone(&is_refused);
        let plan = move |frame: &Frame| {
            let refuses = is_refused.load(Ordering::Relaxed) && changes.contains(&frame.op);
            refuses.then_some(InjectedFault::Fail(Errno::EIO))
        };
        Arc::new(FailingTransport::new(inner, plan))
    });
    let nothing = SetAttr { size: Some(0), ..SetAttr::default() };
    open(&client, ino);
    write(&client, ino, 0, &[1; 20_000]);
    refused.store(true, Ordering::Relaxed);
    let eio = |outcome: Result<Attr, FsError>| assert_eq!(outcome.unwrap_err().errno(), Errno::EIO);
    eio(client.setattr(&op(&client), ino, &nothing));
    eio(client.open(&op(&client), ino, O_TRUNC));
    assert!(read(&client, ino, 0, 20_000) == [1; 20_000]);
    refused.store(false, Ordering::Relaxed);
    client.fsync(ino, false).unwrap();
    assert!(read(&formation.clients[0], ino, 0, 20_000) == [1; 20_000]);
    // One that succeeds leaves nothing to be sent.
    for turn in 0..2 {
        write(&client, ino, 0, &[2; 9000]);
        match turn {
            0 => client.setattr(&op(&client), ino, &nothing).unwrap(),
            _ => client.open(&op(&client), ino, O_TRUNC).unwrap(),
        };
        client.fsync(ino, false).unwrap();
        assert_eq!(client.getattr(ino).unwrap().size, 0);
    }
}

/// S206.
#[test]
fn what_cannot_be_sent_does_not_come_behind_the_next_holder() {
    let formation = Formation::with_capacity(1, 4096, 6 << 20);
    let dir = directory(&formation, "s", &[0]);
    let (client, other) = (&formation.clients[0], formation.client_as(0, 70));
    let ino = file(&formation, dir);
    let new = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
    let ballast = client.create(&op(client), Ino::ROOT, b"ballast", &new, true, false).unwrap().attr.ino;
    write(client, ballast, 0, &vec![1; 5 << 20]);
    client.set_lock(ino, &lock(1, LockMode::Write), None).unwrap();
    (0..30).for_each(|turn| write(client, ino, turn * 100_000, &[2; 100_000]));
    // Asked to give it back it says why it does not; a close has no choice.
    let refused = client.set_lock(ino, &lock(1, LockMode::Unlock), None).unwrap_err();
    assert_eq!(refused.errno(), Errno::ENOSPC);
    assert!(client.sessions.send_unsent(ino).is_err());
    client.unlock_owner(ino, 1);
    let pool = client.sessions.status();
    assert!(pool.dropped_bytes > 0 && pool.unsent_bytes == 0, "{pool:?}");
    let eio = |outcome: Result<usize, FsError>| assert_eq!(outcome.unwrap_err().errno(), Errno::EIO);
    eio(client.fsync(ino, false).map(|()| 0));
    eio(client.write(&op(client), ino, 0, &[3; 10], false));
    open(&other, ino);
    other.set_lock(ino, &lock(2, LockMode::Write), None).unwrap();
    client.close(ino);
    open(client, ino);
    write(client, ino, 0, &[4; 10]);
    client.fsync(ino, false).unwrap();
}

/// S201. What this client has read before an append of its own may have been elsewhere since.
#[test]
fn a_client_sees_its_own_append_also_where_others_have_cut() {
    let formation = Formation::new(2, 4096);
    let dir = directory(&formation, "s", &[0, 1]);
    let ino = file(&formation, dir);
    let [one, other] = [&formation.clients[0], &formation.clients[1]];
    write(one, ino, 0, &[1; 20_000]);
    one.fsync(ino, false).unwrap();
    assert!(read(one, ino, 0, 20_000) == [1; 20_000]);
    open(other, ino);
    cut(other, ino, 0);
    one.write(&op(one), ino, 0, &[2; 9000], true).unwrap();
    assert!(read(one, ino, 0, 9000) == [2; 9000]);
}

/// Closing a file gives up what could not be sent, not what another program writes meanwhile.
#[test]
fn a_close_beside_a_writer_with_a_lock_loses_nothing() {
    let formation = Formation::new(2, 4096);
    let ino = file(&formation, directory(&formation, "s", &[0, 1]));
    let client = &formation.clients[0];
    client.set_lock(ino, &lock(1, LockMode::Write), None).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scopeguard::defer! { over.store(true, Ordering::Relaxed) }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                client.sessions.send_unsent(ino).unwrap();
                client.unlock_owner(ino, 2);
            }
        });
        for turn in 0..2000usize {
            write(client, ino, turn * 100, &[turn as u8; 100]);
        }
    });
    client.fsync(ino, false).unwrap();
    let seen = read(&formation.clients[1], ino, 0, 200_000);
    assert!(seen.chunks(100).enumerate().all(|(turn, bytes)| bytes == [turn as u8; 100]));
}

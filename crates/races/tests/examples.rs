//! Programs whose verdicts are published with VerifyIO, for each model of consistency, and programs of every day.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use bivouac_races::{Detector, Limits, Reporter};
use bivouac_types::{
    ByteRange, ClientId, Contract, FileAccess, Ino, OrderedBy, Race, RaceEvent, RaceProcess, Refresh,
    SyncObject,
};

const FILE: Ino = Ino(9);
const FLAG: SyncObject = SyncObject::Name(Ino::ROOT, 5);

/// Programs of as many ranks, a step at a time.
struct Program {
    detector: Detector,
    barriers: u64,
}

impl Program {
    fn new() -> Program {
        Program { detector: Detector::new(Limits::default()), barriers: 0 }
    }

    fn does(&mut self, rank: u32, event: RaceEvent) -> &mut Program {
        let reporter = Reporter { client: ClientId(rank.into()), host: format!("h{rank}"), node: None };
        let process = RaceProcess { pid: 100 + rank, rank: Some(rank), program: b"app".to_vec() };
        self.detector.report(&reporter, &[process], &[event]);
        self
    }

    fn accesses(&mut self, rank: u32, is_write: bool, range: ByteRange) -> &mut Program {
        let (is_in_stripe, is_session, process, first_ms, last_ms) = (true, false, 0, 1, 1);
        let access =
            FileAccess { ino: FILE, range, is_write, is_in_stripe, is_session, process, first_ms, last_ms };
        self.does(rank, RaceEvent::Access(access))
    }

    fn writes(&mut self, rank: u32) -> &mut Program {
        self.accesses(rank, true, ByteRange::at(0, 8))
    }

    fn reads(&mut self, rank: u32) -> &mut Program {
        self.accesses(rank, false, ByteRange::at(0, 8))
    }

    fn opens(&mut self, rank: u32) -> &mut Program {
        self.does(rank, RaceEvent::Refresh(FILE, Refresh::Open))
    }

    fn closes(&mut self, rank: u32) -> &mut Program {
        self.does(rank, RaceEvent::Close(FILE))
    }

    fn syncs(&mut self, rank: u32) -> &mut Program {
        self.does(rank, RaceEvent::Publish(FILE)).does(rank, RaceEvent::Refresh(FILE, Refresh::Sync))
    }

    fn barrier(&mut self) -> &mut Program {
        self.barriers += 1;
        let point = SyncObject::Point(self.barriers);
        (0..2).for_each(|rank| _ = self.does(rank, RaceEvent::Release(point)));
        (0..2).for_each(|rank| _ = self.does(rank, RaceEvent::Acquire(point)));
        self
    }

    fn races(&self) -> &[Race] {
        self.detector.races()
    }

    /// Returns whether each model orders all pairs: posix, commit, session, MPI-IO.
    fn verdicts(&self) -> [bool; 4] {
        let all = |ordered: fn(&OrderedBy) -> bool| self.races().iter().all(|race| ordered(&race.ordered));
        [all(|by| by.posix), all(|by| by.commit), all(|by| by.session), all(|by| by.mpi_io)]
    }

    fn weakest(&self) -> Contract {
        let contracts: Vec<Contract> = self.races().iter().map(Race::weakest_contract).collect();
        [Contract::Strict, Contract::Coherent]
            .into_iter()
            .find(|contract| contracts.contains(contract))
            .unwrap_or(Contract::Session)
    }
}

fn both_open() -> Program {
    let mut program = Program::new();
    program.opens(0).opens(1);
    program
}

/// HDF5's `shapesame`, PnetCDF's tests that close and open again: right under every model.
#[test]
fn close_barrier_open() {
    let mut program = Program::new();
    program.opens(0).writes(0).closes(0).barrier().opens(1).reads(1);
    assert_eq!((program.verdicts(), program.weakest()), ([true; 4], Contract::Session));
    assert_eq!(program.detector.counts().conflicts, 0, "what was closed everywhere is not kept");
}

/// The same where the file is never closed by all.
#[test]
fn close_barrier_open_of_a_file_that_stays_open() {
    let mut program = both_open();
    program.writes(0).closes(0).barrier().opens(1).reads(1);
    assert_eq!((program.verdicts(), program.races().len()), ([true; 4], 0));
    assert_eq!(program.detector.counts().conflicts, 1);
}

/// NetCDF's `parallel5`, PnetCDF's `flexible`: data is written and read back by another rank behind a barrier (or a
/// collective call) alone. POSIX orders that, no other model does.
#[test]
fn a_barrier_alone() {
    let mut program = both_open();
    program.writes(0).barrier().reads(1);
    assert_eq!(program.verdicts(), [true, false, false, false]);
    assert_eq!(program.weakest(), Contract::Coherent);
}

/// The construct of MPI-IO: sync, barrier, sync.
#[test]
fn sync_barrier_sync() {
    let mut program = both_open();
    program.writes(0).syncs(0).barrier().syncs(1).reads(1);
    assert_eq!(program.verdicts(), [true, true, false, true]);
    assert_eq!(program.weakest(), Contract::Coherent);
}

/// UnifyFS's rule: the writer commits, and the reader comes behind a barrier.
#[test]
fn commit_and_barrier() {
    let mut program = both_open();
    program.writes(0).does(0, RaceEvent::Publish(FILE)).barrier().reads(1);
    assert_eq!(program.verdicts(), [true, true, false, false]);
    assert_eq!(program.weakest(), Contract::Coherent);
}

/// The writer syncs behind the barrier: too late.
#[test]
fn barrier_before_the_commit() {
    let mut program = both_open();
    program.writes(0).barrier().does(0, RaceEvent::Publish(FILE)).reads(1);
    assert_eq!(program.verdicts(), [true, false, false, false]);
}

/// PnetCDF's `null_args` and `test_erange`: all ranks write the same variable at once. No model orders that.
#[test]
fn all_ranks_write_the_same() {
    let mut program = both_open();
    program.writes(0).writes(1).barrier();
    assert_eq!(program.verdicts(), [false; 4]);
    let [race] = program.races() else { panic!("{:?}", program.races()) };
    assert_eq!((race.range, race.count, race.is_race()), (ByteRange::at(0, 8), 1, true));
    let sides = [&race.first, &race.second].map(|side| (side.process.pid, side.host.as_str(), side.is_write));
    assert_eq!(sides, [(100, "h0", true), (101, "h1", true)]);
}

/// Ranks that write side by side, and readers together, conflict with nothing.
#[test]
fn disjoint_writes_and_common_reads() {
    let mut program = both_open();
    program.accesses(0, true, ByteRange::at(0, 8)).accesses(1, true, ByteRange::at(8, 8));
    program.accesses(0, false, ByteRange::at(100, 8)).accesses(1, false, ByteRange::at(100, 8));
    assert_eq!((program.races().len(), program.detector.counts().conflicts), (0, 0));
}

/// A file that is written and closed, and a flag that is made then: whoever sees the flag and opens the file is right
/// under session; whoever has the file open is under coherent.
#[test]
fn a_flag_orders_across_files() {
    let mut program = Program::new();
    program.opens(0).opens(2).writes(0).closes(0).does(0, RaceEvent::Release(FLAG));
    program.does(1, RaceEvent::Acquire(FLAG)).opens(1).reads(1);
    assert_eq!(program.races(), []);
    program.does(2, RaceEvent::Acquire(FLAG)).reads(2);
    assert_eq!(program.verdicts(), [true, true, false, false]);
}

/// Locks order what is done under them, under every model; what is done beside them is a race.
#[test]
fn locks_order_what_is_under_them() {
    let mut program = both_open();
    for rank in [0, 1, 0, 1] {
        program.does(rank, RaceEvent::Publish(FILE)).does(rank, RaceEvent::Refresh(FILE, Refresh::Lock));
        program.reads(rank).writes(rank).does(rank, RaceEvent::Publish(FILE));
    }
    assert_eq!(program.races(), []);
    program.writes(0);
    assert_eq!(program.verdicts(), [false; 4]);
}

/// The same pair again and again is one line.
#[test]
fn pairs_of_the_same_processes_are_counted_together() {
    let mut program = both_open();
    for at in 0..10 {
        program.accesses(0, true, ByteRange::at(at * 100, 10)).accesses(
            1,
            false,
            ByteRange::at(at * 100 + 5, 10),
        );
    }
    let [race] = program.races() else { panic!("{:?}", program.races()) };
    assert_eq!((race.range, race.count), (ByteRange { start: 5, end: 910 }, 10));
}

/// What is gone published all it had, and its number is another client's.
#[test]
fn a_client_that_is_gone_closes_its_files() {
    let limits = Limits { clients: 2, ..Limits::default() };
    let mut program = Program { detector: Detector::new(limits), ..Program::new() };
    program.opens(0).opens(1).writes(0);
    program.detector.client_gone(ClientId(0));
    program.opens(1).reads(1);
    assert_eq!(program.races(), []);
    // The number is in use as long as accesses of it are kept.
    program.closes(1).closes(1);
    program.opens(3).writes(3);
    program.opens(1).reads(1);
    assert_eq!(program.verdicts(), [false; 4], "what is known of the earlier client orders nothing");
    assert!(program.detector.counts().is_complete());
    program.opens(4).writes(4);
    assert_eq!(program.detector.counts().shared_clients, 1);
}

/// Who got its number seemed to have last opened the file when the client before did: races were made up.
#[test]
fn a_client_that_is_gone_has_opened_nothing_for_the_next_one() {
    let limits = Limits { clients: 2, ..Limits::default() };
    let mut program = Program { detector: Detector::new(limits), ..Program::new() };
    program.opens(1).opens(0);
    program.detector.client_gone(ClientId(0));
    program.writes(1).syncs(1);
    // Its open was not seen, and is taken for one that has just been made.
    program.does(3, RaceEvent::Acquire(SyncObject::Name(Ino::ROOT, 1))).syncs(3).reads(3);
    assert_eq!(program.races(), []);
}

/// Names that are merged for lack of memory order what they did, also once they are known again.
#[test]
fn merged_names_order_what_they_did() {
    let limits = Limits { words: 1000, ..Limits::default() };
    let mut program = Program { detector: Detector::new(limits), ..Program::new() };
    let name = |at| SyncObject::Name(Ino::ROOT, at);
    program.opens(0).opens(1).writes(0).does(0, RaceEvent::Release(name(0)));
    let mut at = 0;
    while program.detector.counts().merged == 0 {
        at += 1;
        program.does(0, RaceEvent::Release(name(at)));
    }
    program.does(2, RaceEvent::Release(name(0))).does(1, RaceEvent::Acquire(name(0))).reads(1);
    assert_eq!(program.verdicts(), [true, false, false, false]);
    assert_eq!((program.races().len(), program.detector.counts().forgotten), (1, 0));
}

/// What does not fit is counted.
#[test]
fn memory_is_bounded() {
    let limits = Limits { words: 4000, races: 3, ..Limits::default() };
    let mut program = Program { detector: Detector::new(limits), ..Program::new() };
    program.opens(0).opens(1);
    for at in 0..1000 {
        program.accesses(0, true, ByteRange::at(at * 100, 10));
        program.does(0, RaceEvent::Release(SyncObject::Name(Ino::ROOT, at)));
    }
    let counts = program.detector.counts();
    assert!(counts.forgotten > 0 && counts.merged > 0 && !counts.is_complete(), "{counts:?}");
    for rank in 10..20 {
        program.opens(rank).writes(rank);
    }
    assert_eq!(program.races().len(), 3);
    assert!(program.detector.counts().unlisted > 0);
}

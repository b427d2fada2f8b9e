//! Processes that read and write subfiles themselves.

use super::*;
use crate::{Access, DirectClient, Granted};
use bivouac_types::limits::{DIRECT_CALM_MS, DIRECT_TURNS_MAX};
use parking_lot::Mutex;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const HEADER: u64 = SUBFILE_HEADER_LEN;
const PAGE: u64 = 4096;

/// A process with one access at a time.
#[derive(Debug, Default)]
struct Process {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    inside: bool,
}

impl DirectClient for Process {
    fn close(&self) {
        self.state.lock().closed = true;
    }

    fn drain(&self, _: Duration) -> bool {
        !self.state.lock().inside
    }

    fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.closed && !state.inside
    }
}

impl Process {
    fn new() -> Arc<Process> {
        Arc::default()
    }

    fn is_open(&self) -> bool {
        !self.state.lock().closed
    }

    fn set_inside(&self, inside: bool) {
        self.state.lock().inside = inside;
    }
}

fn disk_store(capacity: u64) -> (tempfile::TempDir, DataStore) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let config = VolumeConfig { path: dir.path().to_owned(), capacity, create: false };
    let store = DataStore::open(&[config], FORMATION, NodeId(0), &DataOptions::default()).unwrap();
    (dir, store)
}

fn grant(
    store: &DataStore,
    access: Access,
    range: std::ops::Range<u64>,
    process: &Arc<Process>,
) -> Option<Granted> {
    let holder: Arc<dyn DirectClient> = process.clone();
    store.grant(id(1), access, range, &holder).unwrap()
}

fn file(granted: &Granted) -> std::fs::File {
    std::fs::File::from(granted.file.as_fd().unwrap().as_fd().try_clone_to_owned().unwrap())
}

#[test]
fn what_a_process_writes_is_read_by_others_once_it_has_ended() {
    let (_dir, store) = disk_store(0);
    let process = Process::new();
    assert!(grant(&store, Access::Write, 0..10, &process).is_none(), "there is no subfile");
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let granted = grant(&store, Access::Write, 0..10, &process).unwrap();
    assert!(granted.reads && granted.window.start == 0 && granted.window.end >= 10);
    file(&granted).write_all_at(b"direct", HEADER + 3).unwrap();
    assert!(process.is_open());
    assert_eq!(read(&store, id(1), 0, 99), b"abcdirect");
    assert!(!process.is_open(), "a read must not see half of a write");
    assert!(grant(&store, Access::Read, 0..1, &Process::new()).is_some(), "it was the first time");
    assert_eq!(used(&store), occupied(&store));
}

#[test]
fn those_who_meet_too_often_are_served_by_the_daemon_for_a_while() {
    let (_dir, store) = disk_store(0);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let begun = std::time::Instant::now();
    let mut last = Process::new();
    let turns = (0..).take_while(|turn| {
        let access = if turn % 2 == 0 { Access::Write } else { Access::Read };
        let next = Process::new();
        let granted = grant(&store, access, 0..3, &next);
        assert!(granted.is_none() || *turn == 0 || !last.is_open(), "a reader and a writer at the same time");
        last = next;
        granted.is_some()
    });
    // The first one has met nobody. Who stands still between two turns has more of them.
    let (turns, calm) = (turns.count(), Duration::from_millis(DIRECT_CALM_MS));
    let max = DIRECT_TURNS_MAX as usize;
    assert!(turns == max || turns > max && begun.elapsed() >= calm, "{turns} turns");
    while grant(&store, Access::Read, 0..3, &Process::new()).is_none() {
        std::thread::yield_now();
    }
    assert!(begun.elapsed() >= calm, "the daemon serves alone for so long");
}

#[test]
fn who_has_gone_by_itself_keeps_nobody_waiting() {
    let (_dir, store) = disk_store(0);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    for _ in 0..3 {
        let process = Process::new();
        let granted = grant(&store, Access::Write, 0..10, &process).expect("nobody else is there");
        file(&granted).write_all_at(b"direct", HEADER + 3).unwrap();
        process.close();
        // What the next process does first is a message.
        write(&store, id(1), 0, 0, b"abc").unwrap();
        assert_eq!(read(&store, id(1), 0, 99), b"abcdirect");
        assert_eq!(used(&store), occupied(&store));
    }
}

#[test]
fn readers_go_together_and_end_for_a_writer() {
    let (_dir, store) = disk_store(0);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let (a, b) = (Process::new(), Process::new());
    for process in [&a, &b] {
        let granted = grant(&store, Access::Read, 0..3, process).unwrap();
        assert!(granted.reads && granted.window.is_empty());
    }
    assert_eq!(read(&store, id(1), 0, 9), b"abc");
    assert!(a.is_open() && b.is_open(), "the daemon reads too");
    write(&store, id(1), 0, 0, b"x").unwrap();
    assert!(!a.is_open() && !b.is_open());
}

#[test]
fn writers_go_together_but_do_not_read() {
    let (_dir, store) = disk_store(0);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let (a, b) = (Process::new(), Process::new());
    assert!(grant(&store, Access::Write, 0..3, &a).unwrap().reads, "who is alone reads and writes");
    let second = grant(&store, Access::Write, 5000..6000, &b).unwrap();
    assert!(!second.reads && !a.is_open());
    let a = Process::new();
    assert!(!grant(&store, Access::Write, 0..3, &a).unwrap().reads);
    assert!(b.is_open());
    assert!(grant(&store, Access::Read, 0..3, &Process::new()).unwrap().reads);
    assert!(!a.is_open() && !b.is_open(), "nobody reads beside them");
}

#[test]
fn writes_of_the_daemon_go_on_beside_processes_that_only_write() {
    let (_dir, store) = disk_store(0);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let (alone, b) = (Process::new(), Process::new());
    assert!(grant(&store, Access::Write, 0..3, &alone).unwrap().reads);
    write(&store, id(1), 0, 3, b"def").unwrap();
    assert!(!alone.is_open(), "it might read half of a write");
    let [first, second] = [Process::new(), b].map(|process| {
        let granted = grant(&store, Access::Write, 0..9, &process).expect("nobody has to be calm");
        assert!(!granted.reads, "several write, so the next one need not end for the one after it");
        (process, granted)
    });
    for at in 0..100 {
        write(&store, id(1), 0, 2 * at * PAGE, &[1; PAGE as usize]).unwrap();
        file(&second.1).write_all_at(&[2; PAGE as usize], HEADER + (2 * at + 1) * PAGE).unwrap();
    }
    let behind = second.1.window.end + 5 * PAGE;
    write(&store, id(1), 0, behind, &[3; 10]).unwrap();
    assert!(first.0.is_open() && second.0.is_open(), "also behind what the two may write to");
    assert!(used(&store) > occupied(&store), "a window is counted");
    let content = read(&store, id(1), 0, 200 * PAGE as usize);
    assert!(!first.0.is_open() && !second.0.is_open(), "a read must not see half of a write");
    let is_whole = |(at, page): (usize, &[u8])| page.iter().all(|byte| usize::from(*byte) == 1 + at % 2);
    assert!(content.chunks(PAGE as usize).enumerate().all(is_whole));
    assert_eq!(read(&store, id(1), behind, 99), [3; 10]);
    assert_eq!(used(&store), occupied(&store));
    assert!(grant(&store, Access::Write, 0..9, &Process::new()).unwrap().reads, "no others write any more");
}

#[test]
fn a_write_that_finds_no_room_beside_processes_has_them_give_back_theirs() {
    let (_dir, store) = disk_store(HEADER + 8 * PAGE);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    grant(&store, Access::Write, 0..PAGE, &Process::new()).unwrap();
    let writer = Process::new();
    let granted = grant(&store, Access::Write, 0..PAGE, &writer).unwrap();
    let far = 20 * PAGE;
    assert!(granted.window.end <= far);
    write(&store, id(1), 0, far, &[7; 6 * PAGE as usize]).unwrap();
    assert!(!writer.is_open());
    assert_eq!(write(&store, id(1), 0, 2 * far, &[7; 2 * PAGE as usize]).unwrap_err().errno(), Errno::ENOSPC);
    assert_eq!(read(&store, id(1), far, 6 * PAGE as usize), [7; 6 * PAGE as usize]);
    assert_eq!((used(&store), read(&store, id(1), 0, 3)), (occupied(&store), b"abc".to_vec()));
}

#[test]
fn blocks_with_checksums_are_written_by_one_at_a_time() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let config = VolumeConfig { path: dir.path().to_owned(), capacity: 0, create: false };
    let options = DataOptions { checksum: Checksum::On, ..DataOptions::default() };
    let store = DataStore::open(&[config], FORMATION, NodeId(0), &options).unwrap();
    write(&store, id(1), 0, 0, b"abc").unwrap();
    grant(&store, Access::Write, 0..PAGE, &Process::new()).unwrap();
    let writer = Process::new();
    let granted = grant(&store, Access::Write, 0..PAGE, &writer).unwrap();
    file(&granted).write_all_at(b"direct", granted.file.data_offset() + 3).unwrap();
    write(&store, id(1), 0, 9, b"xyz").unwrap();
    assert!(!writer.is_open());
    assert_eq!(read(&store, id(1), 0, 99), b"abcdirectxyz");
}

#[test]
fn no_write_crosses_a_cut() {
    let (_dir, store) = disk_store(0);
    write(&store, id(1), 0, 0, &[1; 100]).unwrap();
    let process = Process::new();
    let granted = grant(&store, Access::Write, 0..100, &process).unwrap();
    assert_eq!(granted.epoch, 0);
    process.set_inside(true);
    let error = store.trim(id(1), &SPEC, 1, 10).unwrap_err();
    assert_eq!(error.errno(), Errno::EIO);
    assert!(error.to_string().contains("stands still"), "{error}");
    file(&granted).write_all_at(&[2; 100], HEADER).unwrap();
    process.set_inside(false);
    store.trim(id(1), &SPEC, 1, 10).unwrap();
    assert_eq!(read(&store, id(1), 0, 200), [2; 10], "the write came before the cut");
    let again = grant(&store, Access::Write, 0..100, &Process::new()).unwrap();
    assert_eq!(again.epoch, 1, "a cut does not keep processes out");
}

#[test]
fn a_window_is_counted_before_it_is_written_and_given_back_after() {
    let (_dir, store) = disk_store(64 << 20);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let process = Process::new();
    let granted = grant(&store, Access::Write, 0..PAGE, &process).unwrap();
    let window = granted.window.clone();
    assert!(window.end > 1 << 20, "some room ahead: {window:?}");
    assert_eq!(used(&store), HEADER + window.end, "all of it is counted");
    file(&granted).write_all_at(&[7; 10_000], HEADER).unwrap();
    let holder: Arc<dyn DirectClient> = process.clone();
    let wider = store.widen(id(1), window.end..window.end + 1, &holder).unwrap().unwrap();
    assert!(wider.start == 0 && wider.end > window.end);
    assert_eq!(used(&store), HEADER + wider.end);
    process.close();
    assert!(store.widen(id(1), 0..1, &holder).unwrap().is_some(), "nothing was ended by the daemon yet");
    store.release(id(1)).unwrap();
    assert!(store.widen(id(1), 0..1, &holder).unwrap().is_none(), "it is over");
    assert_eq!((used(&store), occupied(&store)), (HEADER + 3 * PAGE, HEADER + 3 * PAGE));
}

#[test]
fn a_full_volume_grants_what_is_left_and_no_more() {
    let (_dir, store) = disk_store(HEADER + 8 * PAGE);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let process = Process::new();
    let granted = grant(&store, Access::Write, 0..4 * PAGE, &process).unwrap();
    assert!(granted.window.end >= 4 * PAGE && granted.window.end <= 8 * PAGE);
    let holder: Arc<dyn DirectClient> = process.clone();
    assert!(store.widen(id(1), 7 * PAGE..8 * PAGE, &holder).unwrap().is_some());
    assert!(store.widen(id(1), 8 * PAGE..8 * PAGE + 1, &holder).unwrap().is_none());
    let refused = write(&store, id(2), 0, 0, b"x").unwrap_err();
    assert_eq!(refused.errno(), Errno::ENOSPC);
    store.revoke(id(1)).unwrap();
    assert!(!process.is_open());
    write(&store, id(2), 0, 0, b"x").unwrap();
    assert_eq!(used(&store), occupied(&store));
}

#[test]
fn a_sparse_subfile_grants_a_window_around_the_write() {
    let (_dir, store) = disk_store(256 << 20);
    let far = 200u64 << 30;
    write(&store, id(1), 0, far, b"end").unwrap();
    let granted = grant(&store, Access::Write, far / 2..far / 2 + 10, &Process::new()).unwrap();
    assert!(granted.window.start > 0 && granted.window.start <= far / 2, "{:?}", granted.window);
    assert!(granted.window.end >= far / 2 + 10);
    assert!(used(&store) < 256 << 20);
    store.revoke(id(1)).unwrap();
    assert_eq!(used(&store), occupied(&store));
}

#[test]
fn removal_ends_all_and_gives_everything_back() {
    let (_dir, store) = disk_store(0);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let process = Process::new();
    let granted = grant(&store, Access::Write, 0..3, &process).unwrap();
    assert!(store.remove(id(1)).unwrap());
    assert!(!process.is_open());
    file(&granted).write_all_at(b"late", HEADER).unwrap();
    assert_eq!((used(&store), read(&store, id(1), 0, 9)), (0, Vec::new()));
}

#[test]
fn an_access_of_an_earlier_daemon_s_is_waited_for() {
    let (_dir, store) = disk_store(0);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let process = Process::new();
    process.set_inside(true);
    store.adopt(id(1), process.clone()).unwrap();
    let read = |store: &DataStore| store.read(id(1), 0, &mut [IoSliceMut::new(&mut [0; 3])]);
    assert!(read(&store).unwrap_err().to_string().contains("stands still"));
    process.set_inside(false);
    assert_eq!(read(&store).unwrap().0, 3);
}

#[test]
fn a_volume_in_memory_grants_nothing() {
    let volume = memory();
    let store = store_on(&volume, 0, 8);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    assert!(grant(&store, Access::Write, 0..3, &Process::new()).is_none());
    assert_eq!(used(&store), occupied(&store));
}

fn change(offset: u64, len: u64, grow: u64, ticket: u64) -> SpaceChange<'static> {
    SpaceChange { epoch: 0, offset, len, grow, ticket, awaited: ChangeCondition::ALWAYS }
}

/// A subfile with one written page, and a process that may write to it.
fn written_to(capacity: u64) -> (tempfile::TempDir, DataStore, Arc<Process>, std::fs::File) {
    let (dir, store) = disk_store(capacity);
    write(&store, id(1), 0, 0, &[1; 4096]).unwrap();
    let process = Process::new();
    let file = file(&grant(&store, Access::Write, 0..3 * PAGE, &process).unwrap());
    (dir, store, process, file)
}

#[test]
fn changes_of_space_end_all_grants_and_count_what_was_written() {
    type Change = fn(&DataStore) -> StoreResult<u32>;
    let changes: [(Change, u64); 3] = [
        (|store| store.reserve(id(1), &SPEC, &change(2 * PAGE, 2 * PAGE, 0, 1)), 5),
        (|store| store.zero(id(1), &SPEC, &change(PAGE, 3 * PAGE, 4 * PAGE, 1)), 5),
        (|store| store.punch(id(1), &change(PAGE, PAGE, 0, 1)), 3),
    ];
    for (act, pages) in changes {
        let (_dir, store, process, file) = written_to(64 << 20);
        file.write_all_at(&[2; 2 * 4096], HEADER + PAGE).unwrap();
        process.set_inside(true);
        assert!(act(&store).unwrap_err().to_string().contains("stands still"));
        process.set_inside(false);
        act(&store).unwrap();
        assert!(!process.is_open());
        assert_eq!((used(&store), occupied(&store)), (pages * PAGE, pages * PAGE));
    }
}

#[test]
fn what_was_written_directly_into_a_reservation_is_not_taken_back() {
    let (_dir, store) = disk_store(64 << 20);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    store.reserve(id(1), &SPEC, &change(0, 4 * PAGE, 4 * PAGE, 7)).unwrap();
    let granted = grant(&store, Access::Write, 0..3 * PAGE, &Process::new()).unwrap();
    file(&granted).write_all_at(&[5; 4096], HEADER + 50).unwrap();
    store.take_back(id(1), 7).unwrap();
    let expected = [&b"abc"[..], &[0; 47], &[5; 4096]].concat();
    assert_eq!(read(&store, id(1), 0, expected.len()), expected);
    assert_eq!(used(&store), occupied(&store));
}

#[test]
fn a_window_counts_reserved_pages_once() {
    let (_dir, store) = disk_store(HEADER + 8 * PAGE);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    store.reserve(id(1), &SPEC, &change(PAGE, 7 * PAGE, 0, 7)).unwrap();
    assert_eq!(used(&store), HEADER + 8 * PAGE);
    let granted = grant(&store, Access::Write, 0..8 * PAGE, &Process::new()).unwrap();
    assert_eq!(granted.window.end, 8 * PAGE, "what is reserved may be written on a full volume");
    assert_eq!(used(&store), HEADER + 8 * PAGE);
    file(&granted).write_all_at(&[5; 8 * 4096], HEADER).unwrap();
    store.revoke(id(1)).unwrap();
    assert_eq!((used(&store), occupied(&store)), (HEADER + 8 * PAGE, HEADER + 8 * PAGE));
}

#[test]
fn holes_are_those_of_the_file_and_not_of_the_window() {
    let (_dir, store, process, file) = written_to(64 << 20);
    file.write_all_at(&[2; 4096], HEADER + 3 * PAGE).unwrap();
    let stat = store.stat(id(1)).unwrap().unwrap();
    assert_eq!((stat.len, stat.allocated), (4 * PAGE, HEADER + 2 * PAGE));
    assert!(process.is_open() && used(&store) > stat.allocated, "the window is still promised");
    let (data, _) = store.next_data(id(1), PAGE).unwrap();
    assert_eq!(data, Some(3 * PAGE..4 * PAGE));
    assert!(!process.is_open(), "a write under way has made half of its data");
    assert_eq!(used(&store), occupied(&store));
    let reader = Process::new();
    grant(&store, Access::Read, 0..1, &reader).unwrap();
    store.next_data(id(1), 0).unwrap();
    assert!(reader.is_open());
}

/// A hole in front of what is reserved behind the end makes the sums right by chance.
#[test]
fn what_was_left_with_a_hole_is_measured_on() {
    let (_dir, store, _process, file) = written_to(64 << 20);
    file.write_all_at(&[2; 4096], HEADER + 2 * PAGE).unwrap();
    store.reserve(id(1), &SPEC, &change(4 * PAGE, PAGE, 0, 7)).unwrap();
    grant(&store, Access::Write, 0..PAGE, &Process::new()).unwrap();
    store.revoke(id(1)).unwrap();
    write(&store, id(1), 0, PAGE, &[3; 4096]).unwrap();
    assert_eq!((used(&store), occupied(&store)), (HEADER + 4 * PAGE, HEADER + 4 * PAGE));
}

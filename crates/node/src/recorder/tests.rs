use super::*;
use crate::counters::ServedRequest;
use bivouac_types::OpenId;
use bivouac_wire::Op;
use proptest::prelude::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

fn file() -> OwnedFd {
    Memory::make("recorder").unwrap()
}

fn open(file: &OwnedFd) -> Recorder {
    Recorder::open(Some(file.try_clone().unwrap())).unwrap()
}

fn serve(counters: &Counters, op: Op, count: u64) {
    for _ in 0..count {
        counters.add(op, false);
        let took = Duration::from_micros(3);
        counters.served(&ServedRequest { op, from_peer: false, took, received: 10, sent: 1 });
    }
}

fn bin(written: u64) -> Bin {
    Bin { written, ..Bin::default() }
}

fn slots(slots: &[HistoryInterval]) -> Vec<(u64, u64)> {
    slots.iter().map(|slot| (slot.at_ms, slot.bin.written)).collect()
}

#[test]
fn counters_go_on_and_what_was_not_answered_is_told_apart() {
    let file = file();
    let counters = open(&file).counters();
    serve(&counters, Op::Write, 5);
    counters.add(Op::Write, false);
    counters.add_call(Op::Trim);
    counters.add_damage(true);
    let next = open(&file).counters();
    let list = next.list();
    let write = list.iter().find(|count| count.name == "Write").unwrap();
    let counts = (write.client, write.client_times.count(), write.cut_off, write.received_bytes);
    assert_eq!(counts, (6, 5, 1, 50));
    assert_eq!((list.len(), next.damaged().unwrap().peer), (2, 1));
    serve(&next, Op::Write, 1);
    assert_eq!(next.total(), Bin { read: 6, written: 60, ops: 6, spent_ns: 18_000 });
}

#[test]
fn seconds_are_written_by_who_comes_in_the_next_also_in_the_next_daemon() {
    let file = file();
    let recorder = open(&file);
    let (counters, start) = (recorder.counters(), recorder.started);
    let at = |second: u64| start + Duration::from_secs(second);
    recorder.tick(at(1), &counters);
    serve(&counters, Op::Write, 2);
    serve(&counters, Op::Status, 7);
    recorder.tick(at(1), &counters);
    assert_eq!(slots(&recorder.served(u64::MAX, &counters).seconds), [(1000, 20)], "of the present second");
    recorder.tick(at(5), &counters);
    serve(&counters, Op::Write, 3);
    drop((recorder, counters));
    let next = open(&file);
    let counters = next.counters();
    let history = next.served(u64::MAX, &counters);
    assert_eq!(
        (slots(&history.seconds), slots(&history.minutes)),
        (vec![(1000, 20), (5000, 30)], vec![(0, 50)])
    );
    next.tick(next.started + Duration::from_secs(100), &counters);
    serve(&counters, Op::Write, 1);
    let history = next.served(u64::MAX, &counters);
    let minutes: u64 = history.minutes.iter().map(|slot| slot.bin.written).sum();
    assert_eq!((history.seconds.len(), minutes), (3, 60));
    assert!(next.now_ms() >= 5000, "time goes on, {} ms", next.now_ms());
}

#[test]
fn messages_that_come_again_are_known_also_to_the_next_daemon() {
    let file = file();
    let recorder = open(&file);
    let id = |number| CloseRequest::id(OpenId(number));
    assert!(!recorder.hears(ClientId(1), id(2)) && !recorder.hears(ClientId(1), id(3)));
    let next = open(&file);
    assert!(next.hears(ClientId(1), id(2)) && next.hears(ClientId(1), id(3)));
    assert!(!next.hears(ClientId(2), id(2)));
    assert!(!next.hears(ClientId(2), OpId(7)) && !next.hears(ClientId(2), OpId(7)));
}

#[test]
fn a_life_is_known_by_minutes_which_become_longer() {
    let recorder = open(&file());
    let mut ring = recorder.use_rows().ring;
    let minute = |minute: u64| minute * MINUTE..minute * MINUTE;
    const MINUTE: u64 = 60_000;
    (0..1440).for_each(|at| ring.add(minute(at), bin(1)));
    assert_eq!(ring.list(0, u64::MAX).minutes.len(), 1440);
    ring.add(minute(1440), bin(5));
    let mut again = recorder.use_rows().ring;
    for ring in [&ring, &again] {
        let history = ring.list(0, u64::MAX);
        assert_eq!(
            (history.minute_ms, history.minutes.len(), ring.total(u64::MAX)),
            (2 * MINUTE, 721, bin(1445))
        );
        assert_eq!(slots(&history.minutes)[719..], [(1438 * MINUTE, 2), (1440 * MINUTE, 5)]);
        let half_an_hour_ago = (1440 - 30) * MINUTE;
        assert!(history.seconds.iter().all(|slot| slot.at_ms > half_an_hour_ago), "{:?}", history.seconds);
        assert_eq!(ring.list(1440 * MINUTE, u64::MAX).minutes.len(), 1);
    }
    again.add(minute(4 * 1440), bin(1));
    assert_eq!((again.list(0, u64::MAX).minute_ms, again.total(u64::MAX)), (8 * MINUTE, bin(1446)));
}

/// Double words of the row's two copies, as they are in the file.
fn copies(file: &File, first: usize, words: usize) -> Vec<u8> {
    let mut bytes = vec![0; words * 8];
    file.read_exact_at(&mut bytes, first as u64 * 8).unwrap();
    bytes
}

proptest! {
    /// A kill leaves any part of what was written last; what was before is there, and that something is lost is told.
    #[test]
    fn a_row_that_was_being_written_is_as_it_was_before(
        rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..360), 1..6),
        last in prop::collection::vec(any::<u8>(), 1..360),
        written in 0..48_usize,
    ) {
        let memory = file();
        let recorder = open(&memory);
        let (row, words) = (3, 48);
        let first = PROCESSES_AT + 2 * row * words;
        let raw = File::from(memory.try_clone().unwrap());
        let table = recorder.use_rows().processes;
        rows.iter().for_each(|content| assert!(table.write(row, content)));
        let before = copies(&raw, first, 2 * words);
        assert!(table.write(row, &last));
        let after = copies(&raw, first, 2 * words);
        let copy = usize::from(before[..words * 8] == after[..words * 8]) * words * 8;
        // As words are stored one after the other: all of the old copy but its check, or parts of the new one.
        let mut torn = before.clone();
        torn[copy + 16..copy + 24].fill(0);
        torn[copy + 24..copy + 24 + written.min(45) * 8]
            .copy_from_slice(&after[copy + 24..copy + 24 + written.min(45) * 8]);
        raw.write_all_at(&torn, first as u64 * 8).unwrap();
        let next = open(&memory);
        let told = next.use_rows().processes.read(row);
        prop_assert_eq!(&told, rows.last().unwrap());
        let is_there = torn[copy..copy + words * 8].iter().any(|byte| *byte != 0);
        prop_assert_eq!(next.torn(), u64::from(is_there));
        prop_assert!(next.use_rows().processes.write(row, &last));
        prop_assert_eq!(next.use_rows().processes.read(row), last);
        prop_assert_eq!(next.torn(), u64::from(is_there), "once");
    }

    /// Whatever is in the memory: nothing panics, and nothing grows.
    #[test]
    fn any_bytes_are_borne(places in prop::collection::vec((0..LEN / 8, any::<u64>()), 0..200), header: bool) {
        let memory = file();
        drop(open(&memory));
        let raw = File::from(memory.try_clone().unwrap());
        for (place, value) in places.into_iter().filter(|(place, _)| header || *place >= HEADER) {
            raw.write_all_at(&value.to_ne_bytes(), place as u64 * 8).unwrap();
        }
        let recorder = open(&memory);
        let (counters, uses) = (recorder.counters(), crate::uses::UsageTable::open(&recorder));
        recorder.tick(recorder.started + Duration::from_secs(1), &counters);
        let table = uses.list(recorder.now_ms(), recorder.torn());
        prop_assert!(table.files.len() <= USES_FILES_MAX && table.processes.len() <= USES_PROCESSES_MAX);
        let (_, _) = (counters.list(), recorder.served(u64::MAX, &counters));
        prop_assert!(uses.history(0, u64::MAX).seconds.len() <= 1800);
    }
}

#[test]
fn what_is_no_memory_of_this_version_is_begun_anew() {
    let memory = file();
    let counters = open(&memory).counters();
    serve(&counters, Op::Write, 5);
    drop(counters);
    let raw = File::from(memory.try_clone().unwrap());
    raw.write_all_at(&2_u64.to_ne_bytes(), 8).unwrap();
    assert_eq!(open(&memory).counters().list(), []);
    let short = file();
    File::from(short.try_clone().unwrap()).set_len(100).unwrap();
    assert_eq!(open(&short).counters().list(), []);
    assert_eq!(File::from(short).metadata().unwrap().len(), 100, "it is left alone");
}

//! Random programs against an oracle, which has the whole graph of what happens before what.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use bivouac_races::{Detector, Limits, Reporter};
use bivouac_types::{ByteRange, ClientId, FileAccess, Ino, RaceEvent, RaceProcess, Refresh, SyncObject};
use proptest::prelude::*;

const CLIENTS: usize = 4;
const FILES: u64 = 2;
const BYTES: u64 = 6;

/// An event and its client; accesses of a file that is not open are left out.
fn event() -> impl Strategy<Value = (usize, RaceEvent)> {
    let ino = (1..=FILES).prop_map(Ino);
    let access = (ino.clone(), 0..BYTES, 1..3u64, any::<bool>()).prop_map(|(ino, at, len, is_write)| {
        let (is_in_stripe, is_session, process, first_ms, last_ms) = (true, false, 0, 0, 0);
        let range = ByteRange::at(at, len);
        RaceEvent::Access(FileAccess {
            ino,
            range,
            is_write,
            is_in_stripe,
            is_session,
            process,
            first_ms,
            last_ms,
        })
    });
    let object = (0..3u64).prop_map(|at| match at {
        0 => SyncObject::Names(Ino::ROOT),
        at => SyncObject::Name(Ino::ROOT, at),
    });
    let refresh = prop_oneof![2 => Just(Refresh::Open), 1 => Just(Refresh::Lock), 1 => Just(Refresh::Sync)];
    let event = prop_oneof![
        6 => access,
        2 => object.clone().prop_map(RaceEvent::Release),
        2 => object.prop_map(RaceEvent::Acquire),
        2 => ino.clone().prop_map(RaceEvent::Publish),
        4 => (ino.clone(), refresh).prop_map(|(ino, by)| RaceEvent::Refresh(ino, by)),
        2 => ino.prop_map(RaceEvent::Close),
    ];
    (0..CLIENTS, event)
}

/// The events that a client can have: what is not open is not accessed, locked, synced or closed.
fn possible(events: Vec<(usize, RaceEvent)>) -> Vec<(usize, RaceEvent)> {
    let mut opens = [[0_u32; FILES as usize + 1]; CLIENTS];
    let is_possible = |(client, event): &(usize, RaceEvent)| {
        let opens = &mut opens[*client];
        match event {
            RaceEvent::Access(FileAccess { ino, .. })
            | RaceEvent::Publish(ino)
            | RaceEvent::Refresh(ino, Refresh::Lock | Refresh::Sync) => opens[ino.0 as usize] > 0,
            RaceEvent::Refresh(ino, Refresh::Open) => {
                opens[ino.0 as usize] += 1;
                true
            }
            RaceEvent::Close(ino) => {
                let was_open = opens[ino.0 as usize] > 0;
                opens[ino.0 as usize] -= u32::from(was_open);
                was_open
            }
            RaceEvent::Release(_) | RaceEvent::Acquire(_) => true,
        }
    };
    events.into_iter().filter(is_possible).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Object {
    File(Ino),
    Other(SyncObject),
}

fn released(event: &RaceEvent) -> Option<Object> {
    match event {
        RaceEvent::Release(object) => Some(Object::Other(*object)),
        RaceEvent::Publish(ino) | RaceEvent::Close(ino) => Some(Object::File(*ino)),
        _ => None,
    }
}

fn acquired(event: &RaceEvent) -> Option<Object> {
    match event {
        RaceEvent::Acquire(object) => Some(Object::Other(*object)),
        RaceEvent::Refresh(ino, _) => Some(Object::File(*ino)),
        _ => None,
    }
}

/// For each event, the events that it happens before: the transitive closure of the order of each client, and of
/// releases and the acquires after them.
fn closure(events: &[(usize, RaceEvent)]) -> Vec<Vec<bool>> {
    let count = events.len();
    let mut before = vec![vec![false; count]; count];
    for from in (0..count).rev() {
        for to in from + 1..count {
            let is_own = events[from].0 == events[to].0;
            let object = released(&events[from].1);
            if is_own || object.is_some() && object == acquired(&events[to].1) {
                before[from][to] = true;
                let later = before[to].clone();
                before[from].iter_mut().zip(later).for_each(|(known, more)| *known |= more);
            }
        }
    }
    before
}

/// Pairs of accesses, by position, that the session model leaves unordered, and which models order them: of each byte,
/// with the last access of a client of each kind.
fn oracle(events: &[(usize, RaceEvent)]) -> BTreeSet<(usize, usize, [bool; 4])> {
    let before = closure(events);
    let mut found = BTreeSet::new();
    for (second, (client, event)) in events.iter().enumerate() {
        let RaceEvent::Access(new) = event else { continue };
        for other in (0..CLIENTS).filter(|other| other != client) {
            for is_write in [false, true].into_iter().filter(|is_write| *is_write || new.is_write) {
                for byte in new.range.start..new.range.end {
                    let is_last = |(by, event): &(usize, RaceEvent)| {
                        matches!(event, RaceEvent::Access(old) if *by == other && old.is_write == is_write
                            && old.ino == new.ino && old.range.covers(&ByteRange::at(byte, 1)))
                    };
                    let Some(first) = events[..second].iter().rposition(is_last) else { continue };
                    let publishes = |(by, event): &(usize, RaceEvent)| {
                        *by == other
                            && matches!(event, RaceEvent::Publish(ino) | RaceEvent::Close(ino) if *ino == new.ino)
                    };
                    let published = (first..second).find(|at| publishes(&events[*at]));
                    let refreshed = |all: bool| {
                        let refreshes = |(by, event): &(usize, RaceEvent)| {
                            by == client
                                && matches!(event, RaceEvent::Refresh(ino, kind)
                                    if *ino == new.ino && (all || *kind != Refresh::Sync))
                        };
                        events[..second].iter().rposition(refreshes).unwrap()
                    };
                    let is_before = |at: Option<usize>, to: usize| at.is_some_and(|at| before[at][to]);
                    let ordered = [
                        before[first][second],
                        is_before(published, second),
                        is_before(published, refreshed(false)),
                        is_before(published, refreshed(true)),
                    ];
                    if !ordered[2] {
                        found.insert((first, second, ordered));
                    }
                }
            }
        }
    }
    found
}

/// What the detector finds; each access is of a process of its own, so that it is known which it was.
fn detected(events: &[(usize, RaceEvent)]) -> BTreeSet<(usize, usize, [bool; 4])> {
    let mut detector = Detector::new(Limits { races: 1 << 20, ..Limits::default() });
    for (at, (client, event)) in events.iter().enumerate() {
        let reporter = Reporter { client: ClientId(*client as u64), host: String::new(), node: None };
        let process = RaceProcess { pid: at as u32, ..RaceProcess::default() };
        detector.report(&reporter, &[process], std::slice::from_ref(event));
    }
    let pair = |race: &bivouac_types::Race| {
        let (one, other) = (race.first.process.pid as usize, race.second.process.pid as usize);
        let by = race.ordered;
        (one.min(other), one.max(other), [by.posix, by.commit, by.session, by.mpi_io])
    };
    assert!(detector.counts().is_complete());
    detector.races().iter().map(pair).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_same_pairs_as_the_whole_graph(events in prop::collection::vec(event(), 0..60)) {
        let events = possible(events);
        prop_assert_eq!(detected(&events), oracle(&events), "{:#?}", events);
    }
}

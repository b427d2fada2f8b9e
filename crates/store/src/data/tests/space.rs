//! Reserved space, holes and zeros, against bytes and what is occupied.

use super::*;
use proptest::prelude::*;

const PAGE: u64 = 4096;

fn change(epoch: u32, offset: u64, len: u64, grow: u64, ticket: u64) -> SpaceChange<'static> {
    SpaceChange { epoch, offset, len, grow, ticket, awaited: ChangeCondition::ALWAYS }
}

fn reserve(store: &DataStore, ino: u64, offset: u64, len: u64, ticket: u64) -> StoreResult<u32> {
    store.reserve(id(ino), &SPEC, &change(0, offset, len, 0, ticket))
}

fn punch(store: &DataStore, ino: u64, offset: u64, len: u64) {
    store.punch(id(ino), &change(0, offset, len, 0, 0)).unwrap();
}

#[test]
fn what_is_reserved_can_be_written_on_a_full_volume() {
    let volume = memory();
    let store = store_on(&volume, 10 * PAGE, 10);
    reserve(&store, 1, 100 * PAGE, 4 * PAGE, 1).unwrap();
    assert_eq!((used(&store), occupied(&store)), (5 * PAGE, 5 * PAGE));
    write(&store, id(2), 0, 0, &[2; 4 * 4096]).unwrap();
    assert!(write(&store, id(2), 0, 4 * PAGE, b"x").is_err(), "it is full");
    write(&store, id(1), 0, 100 * PAGE + 5, &[1; 4096]).unwrap();
    drop(store);
    // Also when nobody remembers any more what was reserved.
    let store = store_on(&volume, 10 * PAGE, 10);
    write(&store, id(1), 0, 102 * PAGE, &[3; 8192]).unwrap();
    let error = write(&store, id(1), 0, 103 * PAGE, &[3; 8192]).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC);
    assert_eq!(read(&store, id(1), 102 * PAGE, 9000), [3; 8192]);
    assert_eq!((used(&store), occupied(&store)), (10 * PAGE, 10 * PAGE));
}

#[test]
fn what_cannot_be_reserved_leaves_nothing() {
    let store = store_on(&memory(), 6 * PAGE, 10);
    write(&store, id(1), 0, 0, &[1; 4096]).unwrap();
    for len in [6 * PAGE, 4 * PAGE + 1, 1 << 40] {
        assert_eq!(reserve(&store, 1, PAGE, len, 1).unwrap_err().errno(), Errno::ENOSPC);
        assert_eq!(reserve(&store, 2, 0, len, 1).unwrap_err().errno(), Errno::ENOSPC);
    }
    assert_eq!((used(&store), store.list(0).unwrap().count()), (2 * PAGE, 1));
    reserve(&store, 1, 0, 5 * PAGE, 1).unwrap();
    assert_eq!(store.stat(id(1)).unwrap().unwrap().len, 4096, "the length stays");
}

#[test]
fn a_file_system_that_fills_up_below_us_leaves_nothing_either() {
    let volume: Arc<dyn Volume> = Arc::new(MemVolume::new(6 * PAGE));
    let store = store_on(&volume, 0, 10);
    write(&store, id(1), 0, 2 * PAGE, &[1; 4096]).unwrap();
    assert_eq!(reserve(&store, 1, 0, 9 * PAGE, 1).unwrap_err().errno(), Errno::ENOSPC);
    assert_eq!((used(&store), occupied(&store)), (2 * PAGE, 2 * PAGE));
    reserve(&store, 1, 0, 4 * PAGE, 1).unwrap();
}

#[test]
fn a_reservation_is_taken_back_but_for_what_was_used() {
    let store = store_on(&memory(), 0, 10);
    reserve(&store, 1, 0, 8 * PAGE, 7).unwrap();
    write(&store, id(1), 0, 2 * PAGE + 1, b"here").unwrap();
    reserve(&store, 1, 5 * PAGE, PAGE, 8).unwrap();
    store.take_back(id(1), 9).unwrap();
    store.take_back(id(1), 7).unwrap();
    assert_eq!(used(&store), 3 * PAGE, "header, what was written, what was reserved again");
    assert_eq!(read(&store, id(1), 2 * PAGE, 9), b"\0here");
    reserve(&store, 2, 0, PAGE, 7).unwrap();
    store.take_back(id(2), 7).unwrap();
    assert_eq!(store.stat(id(2)).unwrap(), None, "a subfile that was made for it goes with it");
    reserve(&store, 2, 0, PAGE, 8).unwrap();
    store.trim(id(2), &SPEC, 1, 0).unwrap();
    store.take_back(id(2), 8).unwrap();
    assert_eq!(store.stat(id(2)).unwrap().unwrap().epoch, 1, "not if it has been cut since");
}

#[test]
fn a_cut_gives_back_what_was_reserved_behind_the_end() {
    let store = store_on(&memory(), 0, 10);
    write(&store, id(1), 0, 0, &[1; 8192]).unwrap();
    reserve(&store, 1, 0, 50 * PAGE, 1).unwrap();
    store.trim(id(1), &SPEC, 1, 100 * PAGE).unwrap();
    assert_eq!((used(&store), occupied(&store)), (3 * PAGE, 3 * PAGE));
    assert_eq!(read(&store, id(1), 0, 9999), [1; 8192]);
}

#[test]
fn older_epochs_change_nothing() {
    let store = store_on(&memory(), 0, 10);
    write(&store, id(1), 0, 0, &[1; 8192]).unwrap();
    store.trim(id(1), &SPEC, 5, 8192).unwrap();
    let old = change(4, 0, 4096, 9999, 1);
    for outcome in
        [store.punch(id(1), &old), store.zero(id(1), &SPEC, &old), store.reserve(id(1), &SPEC, &old)]
    {
        assert!(matches!(outcome, Err(StoreError::StaleEpoch { current: 5 })));
    }
    assert_eq!(read(&store, id(1), 0, 9999), [1; 8192]);
    assert_eq!(store.punch(id(2), &old).unwrap(), 4, "where nothing is there is nothing to do");
}

#[test]
fn holes_are_found() {
    let store = store_on(&memory(), 0, 10);
    write(&store, id(1), 0, 0, &[1; 8 * 4096]).unwrap();
    punch(&store, 1, PAGE, 2 * PAGE);
    assert_eq!(used(&store), 7 * PAGE);
    let next = |offset| store.next_data(id(1), offset).unwrap().0;
    assert_eq!((next(0), next(PAGE + 7)), (Some(0..PAGE), Some(3 * PAGE..8 * PAGE)));
    assert_eq!((next(8 * PAGE), store.next_data(id(9), 0).unwrap()), (None, (None, 0)));
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, len: usize },
    Reserve { offset: u64, len: u64, grow: bool, back: bool },
    Punch { offset: u64, len: u64 },
    Zero { offset: u64, len: u64, grow: bool },
    Trim { len_max: u64 },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let at = || prop_oneof![0u64..60_000, (0u64..15).prop_map(|page| page * PAGE)];
    let len = || prop_oneof![1u64..20_000, (1u64..5).prop_map(|page| page * PAGE)];
    prop_oneof![
        3 => (at(), len()).prop_map(|(offset, len)| Step::Write { offset, len: len as usize }),
        3 => (at(), len(), any::<bool>(), prop::bool::weighted(0.3))
            .prop_map(|(offset, len, grow, back)| Step::Reserve { offset, len, grow, back }),
        3 => (at(), len()).prop_map(|(offset, len)| Step::Punch { offset, len }),
        2 => (at(), len(), any::<bool>()).prop_map(|(offset, len, grow)| Step::Zero { offset, len, grow }),
        1 => at().prop_map(|len_max| Step::Trim { len_max }),
        1 => Just(Step::Reopen),
    ]
}

/// Bytes, and which pages must have room.
#[derive(Default)]
struct Model {
    exists: bool,
    bytes: Vec<u8>,
    backed: std::collections::BTreeSet<u64>,
    epoch: u32,
    /// True if the store has forgotten what was reserved.
    reopened: bool,
    /// Bytes that the file system takes for itself, without saying so.
    slack: u64,
}

impl Model {
    fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        let (start, end) = (offset as usize, ((offset + len) as usize).min(self.bytes.len()));
        if start < end {
            self.bytes[start..end].fill(byte);
        }
    }

    fn grow(&mut self, len: u64) {
        let len = self.bytes.len().max(len as usize);
        self.bytes.resize(len, 0);
    }

    fn back(&mut self, offset: u64, len: u64) {
        self.exists = true;
        self.backed.extend(offset / PAGE..(offset + len).div_ceil(PAGE));
    }
}

fn carry_out(store: &DataStore, model: &mut Model, step: &Step, ticket: u64) {
    let with = |model: &Model, offset, len, grow: bool| {
        change(model.epoch, offset, len, if grow { offset + len } else { 0 }, ticket)
    };
    match *step {
        Step::Write { offset, len } => {
            let byte = ticket as u8 | 1;
            if write(store, id(1), model.epoch, offset, &vec![byte; len]).is_ok() {
                model.grow(offset + len as u64);
                model.fill(offset, len as u64, byte);
                model.back(offset, len as u64);
            } else {
                let mut pages = offset / PAGE..(offset + len as u64).div_ceil(PAGE);
                assert!(
                    model.slack > 0 || !pages.all(|page| model.backed.contains(&page)),
                    "what is reserved can be written"
                );
            }
        }
        Step::Reserve { offset, len, grow, back } => {
            let change = with(model, offset, len, grow);
            let before = (model.exists, used(store));
            if store.reserve(id(1), &SPEC, &change).is_err() {
                assert!(used(store) <= before.1 + model.slack, "nothing is left of what did not fit");
            } else if back {
                store.take_back(id(1), ticket).unwrap();
                let after = (store.stat(id(1)).unwrap().is_some(), used(store));
                assert!(after == before || model.reopened || model.slack > 0, "{before:?} {after:?}");
                model.exists = after.0;
            } else {
                model.grow(change.grow);
                model.back(offset, len);
            }
        }
        Step::Punch { offset, len } => {
            store.punch(id(1), &with(model, offset, len, false)).unwrap();
            model.fill(offset, len, 0);
            model.backed.retain(|page| page * PAGE < offset || (page + 1) * PAGE > offset + len);
        }
        Step::Zero { offset, len, grow } => {
            let change = with(model, offset, len, grow);
            if store.zero(id(1), &SPEC, &change).is_ok() {
                model.grow(change.grow);
                model.fill(offset, len, 0);
                model.back(offset, len);
            }
        }
        Step::Trim { len_max } => {
            model.epoch += 1;
            store.trim(id(1), &SPEC, model.epoch, len_max).unwrap();
            model.exists = true;
            model.bytes.truncate(len_max as usize);
            let pages = (model.bytes.len() as u64).div_ceil(PAGE);
            model.backed.retain(|page| *page < pages);
        }
        Step::Reopen => model.reopened = true,
    }
}

fn run(volume: &Arc<dyn Volume>, capacity: u64, slack: u64, steps: &[Step]) {
    let mut store = store_on(volume, capacity, 2);
    let mut model = Model { slack, ..Model::default() };
    for (ticket, step) in steps.iter().enumerate() {
        if matches!(step, Step::Reopen) {
            store = store_on(volume, capacity, 2);
        }
        carry_out(&store, &mut model, step, ticket as u64);
        assert_eq!(used(&store), occupied(&store), "after {step:?}");
        assert!(used(&store) <= capacity.max(PAGE) + slack, "after {step:?}");
        assert!(occupied(&store) >= model.backed.len() as u64 * PAGE, "after {step:?}");
        let mut bytes = read(&store, id(1), 0, 100_000);
        let rest = bytes.split_off(bytes.len().min(model.bytes.len()));
        assert_eq!(bytes, model.bytes, "after {step:?}");
        assert!(rest.iter().all(|byte| *byte == 0), "what was taken back leaves zeros at most");
        model.grow((bytes.len() + rest.len()) as u64);
        for at in (0..model.bytes.len() as u64).step_by(1000) {
            let (data, _) = store.next_data(id(1), at).unwrap();
            let hole = at as usize..data.map_or(model.bytes.len(), |data| data.start as usize);
            assert!(model.bytes[hole].iter().all(|byte| *byte == 0), "data is no hole, after {step:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn space_is_bytes_and_pages(steps in proptest::collection::vec(step(), 0..30), pages in 2u64..25) {
        run(&memory(), pages * PAGE, 0, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(25))]
    #[test]
    fn so_it_is_where_temporary_files_are(steps in proptest::collection::vec(step(), 0..20), pages in 2u64..25) {
        let dir = tempfile::tempdir().unwrap();
        let identity = VolumeIdentity { formation: FORMATION, node: NodeId(0), index: 0 };
        let volume: Arc<dyn Volume> = Arc::new(DirVolume::open(dir.path(), identity, false).unwrap());
        run(&volume, pages * PAGE, 8 * PAGE, &steps);
    }

    #[test]
    fn so_it_is_on_tmpfs(steps in proptest::collection::vec(step(), 0..20), pages in 2u64..25) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let identity = VolumeIdentity { formation: FORMATION, node: NodeId(0), index: 0 };
        let volume: Arc<dyn Volume> = Arc::new(DirVolume::open(dir.path(), identity, false).unwrap());
        run(&volume, pages * PAGE, 0, &steps);
    }
}

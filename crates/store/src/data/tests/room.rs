//! Capacity: what does not fit is refused before anything is harmed.

use super::*;
use crate::{FailingVolume, Operation, OperationKind, VolumeFault};

const PAGE: u64 = 4096;

#[test]
fn what_does_not_fit_changes_nothing() {
    let volume = memory();
    let store = store_on(&volume, 4 * PAGE, 10);
    write(&store, id(1), 0, 0, &[1; 5000]).unwrap();
    assert_eq!(used(&store), 3 * PAGE);
    let error = write(&store, id(1), 0, 5000, &[2; 9000]).unwrap_err();
    assert!(matches!(error, StoreError::NoSpace { needed: 8192, free: 4096, .. }), "{error}");
    assert_eq!(read(&store, id(1), 0, 20_000), [1; 5000]);
    let error = write(&store, id(2), 0, 0, b"x").unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC);
    assert_eq!(store.list(0).unwrap().count(), 1, "no empty subfile is left");
    write(&store, id(1), 0, 5000, &[3; 3192]).unwrap();
    write(&store, id(1), 0, 8192, &[4; 4096]).unwrap();
    write(&store, id(1), 0, 0, &[5; 12_288]).unwrap();
    assert_eq!(used(&store), 4 * PAGE);
    assert_eq!(store.usage()[0].capacity, 4 * PAGE);
}

#[test]
fn cuts_and_removals_make_room() {
    let store = store_on(&memory(), 4 * PAGE, 10);
    write(&store, id(1), 0, 0, &[1; 12_288]).unwrap();
    assert!(write(&store, id(2), 0, 0, b"x").is_err());
    store.trim(id(1), &SPEC, 1, 4096).unwrap();
    write(&store, id(2), 0, 0, b"x").unwrap();
    assert!(store.remove(id(1)).unwrap());
    assert_eq!(used(&store), 2 * PAGE);
}

#[test]
fn a_cut_needs_no_room() {
    let store = store_on(&memory(), 2 * PAGE, 10);
    write(&store, id(1), 0, 0, b"x").unwrap();
    store.trim(id(2), &SPEC, 1, 0).unwrap();
    assert_eq!(used(&store), 3 * PAGE);
    assert!(write(&store, id(2), 1, 0, b"x").is_err());
}

#[test]
fn a_hole_needs_no_room_and_filling_it_does() {
    let store = store_on(&memory(), 4 * PAGE, 10);
    write(&store, id(1), 0, 100 * PAGE, b"x").unwrap();
    assert_eq!(used(&store), 2 * PAGE);
    write(&store, id(1), 0, 50 * PAGE, b"y").unwrap();
    write(&store, id(1), 0, 60 * PAGE + 5, b"z").unwrap();
    assert_eq!(used(&store), 4 * PAGE);
    write(&store, id(1), 0, 60 * PAGE, &[1; 4096]).unwrap();
    write(&store, id(1), 0, 100 * PAGE, &[2; 4096]).unwrap();
    let error = write(&store, id(1), 0, 60 * PAGE, &[3; 4097]).unwrap_err();
    assert!(matches!(error, StoreError::NoSpace { needed: PAGE, free: 0, .. }), "{error}");
    assert_eq!(read(&store, id(1), 60 * PAGE, 4097), [&[1; 4096][..], &[0]].concat());
}

#[test]
fn capacity_holds_over_a_restart() {
    let volume = memory();
    let store = store_on(&volume, 0, 10);
    write(&store, id(1), 0, 0, &[1; 4096]).unwrap();
    write(&store, id(2), 0, 8 * PAGE, &[1; 4096]).unwrap();
    drop(store);
    let store = store_on(&volume, 4 * PAGE, 10);
    assert_eq!((used(&store), store.usage()[0].files), (4 * PAGE, 2));
    assert!(write(&store, id(1), 0, 4096, b"x").is_err());
    write(&store, id(1), 0, 0, &[2; 4096]).unwrap();
}

#[test]
fn a_file_system_that_is_full_below_us_harms_nothing_else() {
    // One page is the table's.
    let volume: Arc<dyn Volume> = Arc::new(MemVolume::new(7 * PAGE));
    let store = store_on(&volume, 0, 10);
    write(&store, id(1), 0, 0, &[1; 5000]).unwrap();
    assert_eq!(write(&store, id(1), 0, 5000, &[2; 40_000]).unwrap_err().errno(), Errno::ENOSPC);
    assert_eq!(read(&store, id(1), 0, 50_000), [1; 5000]);
    assert_eq!(write(&store, id(2), 0, 0, &[3; 40_000]).unwrap_err().errno(), Errno::ENOSPC);
    assert_eq!(store.stat(id(2)).unwrap(), None);
    assert_eq!((used(&store), occupied(&store)), (3 * PAGE, 3 * PAGE));
    write(&store, id(2), 0, 0, &[3; 8192]).unwrap();
    assert_eq!(used(&store), 6 * PAGE);
    assert_eq!(write(&store, id(3), 0, 0, b"x").unwrap_err().errno(), Errno::ENOSPC);
    assert_eq!(store.list(0).unwrap().count(), 2);
    assert_eq!(store.usage()[0].capacity, 6 * PAGE);
}

#[test]
fn a_quota_of_the_file_system_below_says_so_and_harms_nothing() {
    let inner: Arc<dyn Volume> = Arc::new(MemVolume::default());
    write(&store_on(&inner, 0, 10), id(1), 0, 0, &[1; 5000]).unwrap();
    let refuse = |op: &Operation<'_>| match op.kind {
        OperationKind::Write | OperationKind::Allocate => VolumeFault::Fail(Errno::EDQUOT),
        _ => VolumeFault::Pass,
    };
    let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(inner.clone(), refuse));
    let store = store_on(&volume, 0, 10);
    let (len, grow, awaited) = (20_000, 20_000, ChangeCondition::ALWAYS);
    let change = SpaceChange { epoch: 0, offset: 0, len, grow, ticket: 1, awaited };
    let errors = [
        write(&store, id(1), 0, 0, &[2; 9000]).unwrap_err(),
        write(&store, id(2), 0, 0, &[2; 9000]).unwrap_err(),
        store.reserve(id(1), &SPEC, &change).unwrap_err(),
        store.zero(id(1), &SPEC, &change).unwrap_err(),
    ];
    assert!(errors.iter().all(|error| error.errno() == Errno::EDQUOT && error.is_full()), "{errors:?}");
    assert_eq!(read(&store, id(1), 0, 50_000), [1; 5000]);
    assert_eq!((used(&store), occupied(&store)), (3 * PAGE, 3 * PAGE));
    assert_eq!(store.list(0).unwrap().count(), 1);
}

#[test]
fn many_threads_never_take_more_than_there_is() {
    let store = store_on(&memory(), 100 * PAGE, 10);
    let written: u64 = std::thread::scope(|scope| {
        let fill = |ino: u64| {
            let store = &store;
            move || {
                (0..60u64).filter(|page| write(store, id(ino), 0, page * PAGE, &[1; 4096]).is_ok()).count()
            }
        };
        let threads: Vec<_> = (1..5).map(|ino| scope.spawn(fill(ino))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap() as u64).sum()
    });
    assert!(used(&store) <= 100 * PAGE);
    assert_eq!(used(&store), occupied(&store));
    assert_eq!(used(&store), (written + store.usage()[0].files) * PAGE);
}

//! Epochs, limits and refusals.

use super::*;
use crate::{FailingVolume, OperationKind, VolumeFault};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_write_that_a_cut_has_overtaken_is_refused() {
    let store = store_on(&memory(), 0, 10);
    assert_eq!(write(&store, id(1), 4, 0, b"abcdef").unwrap(), 4);
    store.trim(id(1), &SPEC, 5, 3).unwrap();
    let error = write(&store, id(1), 4, 0, b"late").unwrap_err();
    assert!(matches!(error, StoreError::StaleEpoch { current: 5 }), "{error}");
    assert_eq!(read(&store, id(1), 0, 9), b"abc");
    assert_eq!(write(&store, id(1), 6, 3, b"X").unwrap(), 5, "a newer one is not");
}

#[test]
fn a_repeated_cut_spares_what_was_written_after_it() {
    let store = store_on(&memory(), 0, 10);
    write(&store, id(1), 0, 0, b"abcdef").unwrap();
    store.trim(id(1), &SPEC, 2, 2).unwrap();
    write(&store, id(1), 2, 2, b"new").unwrap();
    store.trim(id(1), &SPEC, 2, 2).unwrap();
    store.trim(id(1), &SPEC, 1, 0).unwrap();
    assert_eq!(read(&store, id(1), 0, 9), b"abnew");
    store.trim(id(1), &SPEC, 3, 100).unwrap();
    assert_eq!(read(&store, id(1), 0, 9), b"abnew", "a cut never extends");
}

#[test]
fn a_cut_of_nothing_is_remembered_over_a_restart() {
    let volume = memory();
    let store = store_on(&volume, 0, 10);
    store.trim(id(1), &SPEC, 9, 0).unwrap();
    drop(store);
    let store = store_on(&volume, 0, 10);
    let error = write(&store, id(1), 8, 0, b"late").unwrap_err();
    assert!(matches!(error, StoreError::StaleEpoch { current: 9 }), "{error}");
    assert_eq!(store.stat(id(1)).unwrap().map(|stat| (stat.len, stat.allocated)), Some((0, 4096)));
}

#[test]
fn what_is_cut_off_never_comes_back() {
    let store = store_on(&memory(), 0, 10);
    write(&store, id(1), 0, 0, &[7; 10_000]).unwrap();
    store.trim(id(1), &SPEC, 1, 10).unwrap();
    write(&store, id(1), 1, 20, b"x").unwrap();
    assert_eq!(read(&store, id(1), 0, 30), [&[7u8; 10][..], &[0; 10], b"x"].concat());
}

#[test]
fn what_is_not_there_is_empty() {
    let store = store_on(&memory(), 0, 10);
    assert_eq!(read(&store, id(1), 0, 10), b"");
    assert_eq!(store.stat(id(1)).unwrap(), None);
    assert!(!store.remove(id(1)).unwrap());
    store.sync(id(1)).unwrap();
    assert_eq!(write(&store, id(1), 3, 5, b"").unwrap(), 3);
    assert_eq!(store.list(0).unwrap().count(), 0);
    let elsewhere = SubfileId { volume: 1, ..id(1) };
    assert!(matches!(write(&store, elsewhere, 0, 0, b"x"), Err(StoreError::NoVolume { index: 1 })));
    assert!(matches!(store.list(9).map(Iterator::count), Err(StoreError::NoVolume { index: 9 })));
}

#[test]
fn offsets_have_an_end() {
    let store = store_on(&memory(), 0, 10);
    let last = i64::MAX as u64 - 4096;
    for offset in [u64::MAX, i64::MAX as u64, last] {
        let error = write(&store, id(1), 0, offset, b"xy").unwrap_err();
        assert_eq!(error.errno(), Errno::EFBIG, "{offset}");
        assert_eq!(read(&store, id(1), offset, 9), b"");
    }
    assert_eq!(store.list(0).unwrap().count(), 0);
    write(&store, id(1), 0, last - 2, b"xy").unwrap();
    assert_eq!(read(&store, id(1), last - 3, 9), b"\0xy");
    assert_eq!(used(&store), 8192);
}

#[test]
fn an_impossible_layout_makes_no_subfile() {
    let store = store_on(&memory(), 0, 10);
    let refusal = |id: SubfileId, spec: &SubfileSpec<'_>| {
        store.write(id, spec, 0, 0, &[IoSlice::new(b"x")]).unwrap_err().to_string()
    };
    let narrow = Layout { width: 0, ..LAYOUT };
    assert!(refusal(id(1), &SubfileSpec { layout: narrow, ..SPEC }).contains("width 0"));
    assert!(refusal(id(1), &SubfileSpec { targets: &TARGETS[..2], ..SPEC }).contains("of which 2 exist"));
    let target = SubfileId { target: TargetIndex(1), ..id(1) };
    assert!(refusal(target, &SPEC).contains("nothing on target 1"));
    assert_eq!((store.list(0).unwrap().count(), used(&store)), (0, 0));
}

#[test]
fn too_many_descriptors_close_those_that_are_not_in_use() {
    let inner = memory();
    let exhausted = Arc::new(AtomicBool::new(false));
    let is_exhausted = exhausted.clone();
    let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(inner, move |op| {
        let opens = matches!(op.kind, OperationKind::Open | OperationKind::Create);
        let fails = opens && is_exhausted.swap(false, Ordering::Relaxed);
        if fails { VolumeFault::Fail(Errno::EMFILE) } else { VolumeFault::Pass }
    }));
    let store = store_on(&volume, 0, 1000);
    touch(&store, 1..50);
    assert_eq!(store.cache.len(), 49);
    exhausted.store(true, Ordering::Relaxed);
    write(&store, id(50), 0, 0, b"y").unwrap();
    assert_eq!(store.cache.len(), 1);
    assert_eq!(read(&store, id(50), 0, 9), b"y");
    assert_eq!(read(&store, id(7), 0, 9), b"x");
}

#[test]
fn volumes_are_opened_by_their_paths() {
    let dir = tempfile::tempdir().unwrap();
    let config = |name: &str, capacity| VolumeConfig { path: dir.path().join(name), capacity, create: true };
    let configs = [config("a", 0), config("b", 1 << 20)];
    let open = || DataStore::open(&configs, FORMATION, NodeId(0), &DataOptions::default());
    let store = open().unwrap();
    let second = SubfileId { volume: 1, ino: Ino(0x1_0000_002f), target: TargetIndex(3) };
    write(&store, second, 0, 0, b"abc").unwrap();
    let usage = store.usage();
    assert_eq!((usage[0].files, usage[0].used, usage[1].files, usage[1].used), (0, 0, 1, 8192));
    assert_eq!(usage[1].capacity, 1 << 20);
    assert!(usage[0].capacity > 1 << 20);
    let path = store.stat(second).unwrap().unwrap().path;
    assert_eq!(path, dir.path().join("b/2f/000000010000002f-0003"));
    assert_eq!(std::fs::read(&path).unwrap()[4096..], *b"abc");
    assert!(open().is_err(), "in use");
    drop(store);
    assert_eq!(read(&open().unwrap(), second, 1, 9), b"bc");
}

#[test]
fn the_rest_of_a_subfile_that_could_not_be_made_does_no_harm() {
    let inner = memory();
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(inner.clone(), move |op| match op.kind {
        OperationKind::Write if is_broken.load(Ordering::Relaxed) && op.number % 2 == 0 => {
            VolumeFault::Short(100)
        }
        OperationKind::Write | OperationKind::Remove if is_broken.load(Ordering::Relaxed) => {
            VolumeFault::Fail(Errno::EIO)
        }
        _ => VolumeFault::Pass,
    }));
    let store = store_on(&volume, 0, 10);
    for _ in 0..4 {
        assert_eq!(write(&store, id(1), 0, 0, b"abc").unwrap_err().errno(), Errno::EIO);
        assert_eq!(read(&store, id(1), 0, 9), b"");
        assert_eq!((used(&store), store.usage()[0].files), (0, 0));
    }
    assert_eq!(inner.list("01").unwrap().len(), 1, "what could not be removed is there");
    broken.store(false, Ordering::Relaxed);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    assert_eq!(read(&store, id(1), 0, 9), b"abc");
    assert_eq!(used(&store), occupied(&store));
}

#[test]
fn what_others_cut_off_is_missed_without_checksums_too() {
    for cut in [0, 100, 4096, 5000] {
        let volume = memory();
        let store = store_on(&volume, 0, 8);
        write(&store, id(1), 0, 0, &[1; 10_000]).unwrap();
        volume.open(&names::name_of(id(1)), crate::OpenMode::Existing).unwrap().set_len(cut).unwrap();
        let mut bytes = [0; 20_000];
        let error = store.read(id(1), 0, &mut [IoSliceMut::new(&mut bytes)]).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { offset, .. } if offset == cut), "{error}");
        assert_eq!(error.errno(), Errno::EIO);
        assert!(store.trim(id(1), &SPEC, 1, 9_000).is_err(), "it would be zeros");
        store.trim(id(1), &SPEC, 1, 0).unwrap();
        write(&store, id(1), 1, 0, b"anew").unwrap();
        assert_eq!(read(&store, id(1), 0, 9), b"anew");
    }
}

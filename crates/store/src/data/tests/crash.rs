//! The process is killed after every single change of the volume.

use super::*;
use crate::{CrashLoss, CrashVolume, FailingVolume};

#[test]
fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let volume = Arc::new(CrashVolume::default());
    let as_volume: Arc<dyn Volume> = volume.clone();
    // Nothing is acknowledged before there is a store.
    let mut acknowledged = vec![(0, [None, None], 0)];
    let store = store_on(&as_volume, 0, 1);
    let note = |acknowledged: &mut Vec<_>, contents: [Option<&[u8]>; 2], epoch: u32| {
        acknowledged.push((volume.steps(), contents.map(|bytes| bytes.map(<[u8]>::to_vec)), epoch));
    };
    note(&mut acknowledged, [None, None], 0);
    write(&store, id(1), 0, 0, b"abcdef").unwrap();
    note(&mut acknowledged, [Some(b"abcdef"), None], 0);
    write(&store, id(2), 0, 0, b"other").unwrap();
    note(&mut acknowledged, [Some(b"abcdef"), Some(b"other")], 0);
    store.trim(id(1), &SPEC, 3, 2).unwrap();
    note(&mut acknowledged, [Some(b"ab"), Some(b"other")], 3);
    write(&store, id(1), 3, 4, b"X").unwrap();
    note(&mut acknowledged, [Some(b"ab\0\0X"), Some(b"other")], 3);
    store.remove(id(2)).unwrap();
    note(&mut acknowledged, [Some(b"ab\0\0X"), None], 3);
    for steps in 0..=volume.steps() {
        let crashed: Arc<dyn Volume> = Arc::new(volume.after(steps, CrashLoss::Nothing).unwrap());
        let store = store_on(&crashed, 0, 10);
        let (_, before, epoch) = acknowledged.iter().rfind(|(step, ..)| *step <= steps).unwrap();
        let after =
            acknowledged.iter().find(|(step, ..)| *step > steps).map_or(before, |(_, after, _)| after);
        for (ino, (before, after)) in (1..).zip(before.iter().zip(after)) {
            let now = read(&store, id(ino), 0, 20);
            let is = |state: &Option<Vec<u8>>| now == state.clone().unwrap_or_default();
            assert!(is(before) || is(after), "inode {ino} after {steps} changes: {now:?}");
        }
        assert!(store.stat(id(1)).unwrap().is_none_or(|stat| stat.epoch >= *epoch));
        assert_eq!(used(&store), occupied(&store));
        assert_eq!(store.usage()[0].lost, 0, "after {steps} changes");
        assert!(store.list(0).unwrap().all(|listed| listed.header.is_ok()));
        write(&store, id(1), 3, 0, b"again").unwrap();
        assert_eq!(read(&store, id(1), 0, 5), b"again");
    }
}

#[test]
fn whichever_operation_fails_the_books_are_right() {
    for n in 0..80 {
        let inner = memory();
        let volume: Arc<dyn Volume> = Arc::new(FailingVolume::nth(inner.clone(), n, Errno::EIO));
        let options = DataOptions { handles_max: 1, ..DataOptions::default() };
        let Ok(store) = DataStore::with_volumes(vec![(volume, 0)], FORMATION, &options) else { continue };
        let mut expected = [Vec::new(), Vec::new()];
        for (i, ino) in [1u64, 2, 1, 2, 1].into_iter().enumerate() {
            let bytes = vec![i as u8 + 1; 3000 * (i + 1)];
            if write(&store, id(ino), 0, 0, &bytes).is_ok() {
                let old: &mut Vec<u8> = &mut expected[ino as usize - 1];
                old.resize(old.len().max(bytes.len()), 0);
                old[..bytes.len()].copy_from_slice(&bytes);
            }
        }
        let _ = store.trim(id(1), &SPEC, 0, 0);
        drop(store);
        let store = store_on(&inner, 0, 10);
        for (ino, bytes) in (1..).zip(&expected) {
            assert!(read(&store, id(ino), 0, 50_000) == *bytes, "operation {n}, inode {ino}");
        }
        assert_eq!(used(&store), occupied(&store));
        assert_eq!(store.usage()[0].lost, 0, "operation {n}");
    }
}

//! Syncs that fail.

use super::*;
use crate::{FailingVolume, OperationKind, VolumeFault};
use std::sync::atomic::{AtomicBool, Ordering};

/// A volume whose next sync of a subfile, or of a directory, fails once, as Linux reports a writeback error.
fn failing_once(errno: Errno, kind: OperationKind) -> (Arc<dyn Volume>, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let is_next = Arc::clone(&fails);
    let volume = FailingVolume::new(memory(), move |op| {
        let is_it = op.kind == kind && is_next.swap(false, Ordering::Relaxed);
        if is_it { VolumeFault::Fail(errno) } else { VolumeFault::Pass }
    });
    (Arc::new(volume), fails)
}

fn is_unsynced(outcome: StoreResult<()>) -> bool {
    match outcome {
        Err(error @ StoreError::NotSynced { .. }) => {
            assert_eq!(error.errno(), Errno::EIO);
            true
        }
        Err(error) => panic!("{error}"),
        Ok(()) => false,
    }
}

/// S690.
#[test]
fn a_sync_that_failed_fails_until_all_is_written_anew() {
    for errno in [Errno::EIO, Errno::ENOSPC] {
        let (volume, fails) = failing_once(errno, OperationKind::Sync);
        // One handle: the next subfile closes this one.
        let store = store_on(&volume, 0, 1);
        write(&store, id(1), 0, 0, &[1; 10_000]).unwrap();
        write(&store, id(2), 0, 0, b"another").unwrap();
        fails.store(true, Ordering::Relaxed);
        assert_eq!(store.sync(id(1)).unwrap_err().errno(), errno);
        assert!(is_unsynced(store.sync(id(1))), "whoever asks next");
        store.sync(id(2)).unwrap();
        assert!(is_unsynced(store.sync(id(1))), "also after it was closed");
        write(&store, id(1), 0, 100, &[2; 9_900]).unwrap();
        assert!(is_unsynced(store.sync(id(1))), "100 bytes may be lost yet");
        write(&store, id(1), 0, 0, &[3; 100]).unwrap();
        store.sync(id(1)).unwrap();
        store.sync(id(1)).unwrap();
        assert_eq!(read(&store, id(1), 90, 20), [[3; 10], [2; 10]].concat());
    }
}

/// S690.
#[test]
fn a_failed_sync_ends_with_what_it_was_about() {
    let (volume, fails) = failing_once(Errno::EIO, OperationKind::Sync);
    let store = summed_on(&volume, 0, 8);
    let fail = |ino: u64| {
        write(&store, id(ino), 0, 0, &[1; 10_000]).unwrap();
        fails.store(true, Ordering::Relaxed);
        assert!(store.sync(id(ino)).is_err() && is_unsynced(store.sync(id(ino))));
    };
    fail(1);
    store.trim(id(1), &SPEC, 1, 5).unwrap();
    assert!(is_unsynced(store.sync(id(1))), "5 bytes of it are left");
    store.trim(id(1), &SPEC, 2, 0).unwrap();
    store.sync(id(1)).unwrap();
    fail(2);
    assert!(store.remove(id(2)).unwrap());
    store.sync(id(2)).unwrap();
    fail(3);
    write(&store, id(3), 0, 0, &[2; 20_000]).unwrap();
    fails.store(true, Ordering::Relaxed);
    assert_eq!(store.sync(id(3)).unwrap_err().errno(), Errno::EIO, "what is written anew may fail, too");
    assert!(is_unsynced(store.sync(id(3))));
}

/// S690.
#[test]
fn a_directory_that_could_not_be_synced_stays_so() {
    let (volume, fails) = failing_once(Errno::EIO, OperationKind::SyncDir);
    let store = store_on(&volume, 0, 8);
    touch(&store, 1..3);
    fails.store(true, Ordering::Relaxed);
    assert_eq!(store.sync(id(1)).unwrap_err().errno(), Errno::EIO);
    write(&store, id(1), 0, 0, b"anew").unwrap();
    assert!(is_unsynced(store.sync(id(1))), "its name may be lost");
    store.sync(id(2)).unwrap();
    touch(&store, 257..258);
    assert!(is_unsynced(store.sync(id(257))), "it is in the same directory");
}

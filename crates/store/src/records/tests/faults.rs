//! Volumes that are full, or fail.

use super::*;
use crate::{CrashLoss, CrashVolume, FailingVolume, OperationKind, VolumeFault};
use bivouac_types::Errno;
use std::sync::atomic::AtomicBool;

fn is_log_write(kind: OperationKind, name: &str) -> bool {
    kind == OperationKind::Write && name.contains("log")
}

#[test]
fn a_full_volume_refuses_the_commit_and_nothing_else() {
    let inner = memory();
    let full = Arc::new(AtomicBool::new(false));
    let short = Arc::new(AtomicBool::new(false));
    let (is_full, is_short) = (full.clone(), short.clone());
    let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(inner.clone(), move |op| {
        match is_log_write(op.kind, op.name) && is_full.load(Ordering::Relaxed) {
            // The first write of a commit is short, the rest does not fit.
            true if !is_short.swap(true, Ordering::Relaxed) => VolumeFault::Short(25),
            true => VolumeFault::Fail(Errno::ENOSPC),
            false => VolumeFault::Pass,
        }
    }));
    let (records, _) = open(&volume, 2).unwrap();
    let commits = workload(4);
    commit(&records, &commits[0]).unwrap();
    let before = content(&records);
    let stats = records.stats();
    full.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        short.store(false, Ordering::Relaxed);
        assert_eq!(commit(&records, &commits[1]).unwrap_err().errno(), Errno::ENOSPC);
        assert_eq!((content(&records), records.stats()), (before.clone(), stats));
        let log = &inner.list("records").unwrap()[0];
        assert_eq!(log.stat.len, stats.disk_bytes, "the log is cut back");
    }
    full.store(false, Ordering::Relaxed);
    commit(&records, &commits[2]).unwrap();
    let after = content(&records);
    drop(records);
    let (records, recovery) = open(&inner, 2).unwrap();
    assert_eq!((content(&records), recovery.commits), (after, 2));
}

#[test]
fn nothing_is_written_behind_half_an_entry() {
    let inner = memory();
    let broken = Arc::new(AtomicBool::new(false));
    let is_broken = broken.clone();
    let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(inner.clone(), move |op| {
        match (is_broken.load(Ordering::Relaxed), op.kind) {
            (true, OperationKind::Write) if op.number % 2 == 0 => VolumeFault::Short(21),
            (true, OperationKind::Write | OperationKind::SetLen) => VolumeFault::Fail(Errno::EIO),
            _ => VolumeFault::Pass,
        }
    }));
    let (records, _) = open(&volume, 2).unwrap();
    let commits = workload(3);
    commit(&records, &commits[0]).unwrap();
    let before = content(&records);
    broken.store(true, Ordering::Relaxed);
    for _ in 0..4 {
        assert_eq!(commit(&records, &commits[1]).unwrap_err().errno(), Errno::EIO);
        assert!(records.compact().is_err());
        assert_eq!(content(&records), before);
        let (recovered, _) = open(&inner, 2).unwrap();
        assert_eq!(content(&recovered), before, "what a kill would leave now");
    }
    broken.store(false, Ordering::Relaxed);
    commit(&records, &commits[2]).unwrap();
    assert_eq!(content(&open(&inner, 2).unwrap().0), content(&records));
}

/// Commits and compactions on a volume whose `n`-th operation fails; the model of what was acknowledged, and
/// whether the fault was met.
fn run_with_fault(inner: &Arc<dyn Volume>, n: u64, errno: Errno) -> (Model, bool) {
    let volume = Arc::new(FailingVolume::nth(inner.clone(), n, errno));
    let as_volume: Arc<dyn Volume> = volume.clone();
    let mut model: Model = vec![BTreeMap::new(); 2];
    let Ok((records, _)) = open(&as_volume, 2) else { return (model, true) };
    for (i, changes) in workload(14).iter().enumerate() {
        if commit(&records, changes).is_ok() {
            commit_to_model(&mut model, changes);
        }
        assert_eq!(content(&records), model, "operation {n} failed with {errno}");
        if i % 4 == 3 {
            let _ = records.compact();
        }
    }
    (model, volume.operations() > n)
}

#[test]
fn whichever_operation_fails_what_was_acknowledged_is_there() {
    for errno in [Errno::EIO, Errno::ENOSPC] {
        for n in 0.. {
            let inner = memory();
            let (model, met) = run_with_fault(&inner, n, errno);
            let (records, recovery) = open(&inner, 2).unwrap();
            assert_eq!(content(&records), model, "operation {n} failed with {errno}");
            assert_eq!(recovery.torn_bytes, 0);
            if !met {
                assert!(n > 50, "the run has {n} operations");
                break;
            }
        }
    }
}

#[test]
fn a_compaction_that_failed_is_not_tried_again_at_once() {
    let inner = memory();
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(inner, move |op| {
        let fails = is_broken.load(Ordering::Relaxed) && op.name.contains("snapshot");
        if fails { VolumeFault::Fail(Errno::ENOSPC) } else { VolumeFault::Pass }
    }));
    let options = RecordsOptions { slots: 2, compact_log_bytes_min: 500, compact_percent: 100 };
    broken.store(false, Ordering::Relaxed);
    let (records, _) = Records::open(volume, FORMATION, NODE, options).unwrap();
    broken.store(true, Ordering::Relaxed);
    let fill = || {
        let mut count = 0;
        while !records.wants_compaction() {
            commit(&records, &vec![(0, b"k".to_vec(), Some(vec![1; 50]))]).unwrap();
            count += 1;
        }
        count
    };
    assert!(fill() > 3);
    assert_eq!(records.compact().unwrap_err().errno(), Errno::ENOSPC);
    assert!(!records.wants_compaction());
    assert!(fill() > 0);
    broken.store(false, Ordering::Relaxed);
    assert_eq!(records.compact().unwrap(), Compaction::Done { records: 1 });
    assert!(!records.wants_compaction());
    assert!(records.stats().disk_bytes < 500);
}

/// A volume whose next sync of a log fails once, as Linux reports a writeback error, and whose snapshots cannot be
/// written as long as the second flag says so.
fn failing_log(inner: Arc<dyn Volume>) -> (Arc<dyn Volume>, Arc<AtomicBool>, Arc<AtomicBool>) {
    let (once, snapshots) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_next, are_broken) = (Arc::clone(&once), Arc::clone(&snapshots));
    let volume = FailingVolume::new(inner, move |op| {
        let is_log = op.kind == OperationKind::Sync && op.name.contains("log");
        let is_snapshot = op.kind == OperationKind::Write && op.name.contains("snapshot");
        match (is_log && is_next.swap(false, Ordering::Relaxed), is_snapshot) {
            (true, _) => VolumeFault::Fail(Errno::EIO),
            (_, true) if are_broken.load(Ordering::Relaxed) => VolumeFault::Fail(Errno::ENOSPC),
            _ => VolumeFault::Pass,
        }
    });
    (Arc::new(volume), once, snapshots)
}

/// The records after a loss of power at this moment.
fn after_power_loss(volume: &CrashVolume) -> Model {
    let crashed = volume.after(volume.steps(), CrashLoss::Unsynced).unwrap();
    content(&open(&(Arc::new(crashed) as Arc<dyn Volume>), 2).unwrap().0)
}

#[test]
fn what_a_log_cannot_keep_a_snapshot_keeps() {
    let inner = Arc::new(CrashVolume::default());
    let (volume, fails, _) = failing_log(inner.clone());
    let (records, _) = open(&volume, 2).unwrap();
    for changes in workload(5) {
        commit(&records, &changes).unwrap();
    }
    fails.store(true, Ordering::Relaxed);
    records.sync().unwrap();
    assert_eq!(after_power_loss(&inner), content(&records));
    commit(&records, &workload(6)[5]).unwrap();
    records.sync().unwrap();
    assert_eq!(after_power_loss(&inner), content(&records));
}

#[test]
fn an_error_that_compaction_has_met_is_not_forgotten() {
    let inner = Arc::new(CrashVolume::default());
    let (volume, fails, is_full) = failing_log(inner.clone());
    let (records, _) = open(&volume, 2).unwrap();
    for changes in workload(5) {
        commit(&records, &changes).unwrap();
    }
    is_full.store(true, Ordering::Relaxed);
    fails.store(true, Ordering::Relaxed);
    assert_eq!(records.compact().unwrap_err().errno(), Errno::ENOSPC);
    for _ in 0..3 {
        let error = records.sync().unwrap_err();
        assert!(matches!(error, StoreError::NotSynced { .. }) && error.errno() == Errno::EIO, "{error}");
    }
    is_full.store(false, Ordering::Relaxed);
    records.compact().unwrap();
    assert_eq!(after_power_loss(&inner), content(&records));
    commit(&records, &workload(6)[5]).unwrap();
    records.sync().unwrap();
    assert_eq!(after_power_loss(&inner), content(&records));
}

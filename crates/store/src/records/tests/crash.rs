//! The world stops after every single change, with every kind of loss.

use super::*;
use crate::{CrashLoss, CrashVolume, FailingVolume, OperationKind, VolumeFault};
use std::sync::{OnceLock, Weak};

/// The state after each number of commits.
fn states(commits: &[Commit]) -> Vec<Model> {
    let mut model: Model = vec![BTreeMap::new(); 2];
    let mut states = vec![model.clone()];
    for changes in commits {
        commit_to_model(&mut model, changes);
        states.push(model.clone());
    }
    states
}

/// Opens what a crash left; the number of commits that are there. They must be there as a whole.
fn recovered(volume: CrashVolume, states: &[Model]) -> (Arc<dyn Volume>, usize) {
    let volume: Arc<dyn Volume> = Arc::new(volume);
    let (records, _) = open(&volume, 2).unwrap();
    let commits = records.stats().commits as usize;
    assert_eq!(content(&records), states[commits]);
    (volume, commits)
}

struct Run {
    volume: Arc<CrashVolume>,
    states: Vec<Model>,
    /// Changes of the volume after each acknowledged commit, and after each sync.
    acknowledged: Vec<usize>,
    synced: Vec<(usize, usize)>,
}

/// Commits with a compaction and a sync now and then, and one restart.
fn run() -> Run {
    let volume = Arc::new(CrashVolume::default());
    let as_volume: Arc<dyn Volume> = volume.clone();
    let (mut acknowledged, mut synced) = (Vec::new(), Vec::new());
    let states = run_on(&as_volume, |event| match event {
        Event::Acknowledged => acknowledged.push(volume.steps()),
        Event::Synced(commits) => synced.push((volume.steps(), commits)),
    });
    Run { volume, states, acknowledged, synced }
}

/// A change that has become safe.
enum Event {
    Acknowledged,
    Synced(usize),
}

/// The same on any volume, telling what becomes safe; the state after each number of commits.
fn run_on(volume: &Arc<dyn Volume>, mut tell: impl FnMut(Event)) -> Vec<Model> {
    let commits = workload(24);
    let mut records = open(volume, 2).unwrap().0;
    for (i, changes) in commits.iter().enumerate() {
        commit(&records, changes).unwrap();
        tell(Event::Acknowledged);
        match i {
            5 | 12 | 13 => assert_ne!(records.compact().unwrap(), Compaction::Busy),
            8 => records.sync().unwrap(),
            17 => records = open(volume, 2).unwrap().0,
            _ => continue,
        }
        if i != 17 {
            tell(Event::Synced(i + 1));
        }
    }
    states(&commits)
}

impl Run {
    fn acknowledged(&self, steps: usize) -> usize {
        self.acknowledged.iter().filter(|step| **step <= steps).count()
    }

    fn synced(&self, steps: usize) -> usize {
        self.synced.iter().filter(|(step, _)| *step <= steps).map(|(_, commits)| *commits).max().unwrap_or(0)
    }
}

/// Every kind of change that [`run`] makes, with the names of the files: the kills of the tests below come after each.
#[test]
fn the_run_takes_every_step_that_there_is() {
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let noted = seen.clone();
    let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(Arc::new(CrashVolume::default()), move |op| {
        noted.lock().push((op.kind, op.name.to_owned()));
        VolumeFault::Pass
    }));
    run_on(&volume, |_| {});
    let seen = seen.lock();
    let generation = |kind: &str, number: u64| format!("records/{kind}-{number:016x}");
    for (kind, name) in [
        (OperationKind::MakeDir, "records".to_owned()),
        (OperationKind::Create, "records/log.tmp".into()),
        (OperationKind::Write, "records/log.tmp".into()),
        (OperationKind::Sync, "records/log.tmp".into()),
        (OperationKind::Rename, "records/log.tmp".into()),
        (OperationKind::Create, "records/snapshot.tmp".into()),
        (OperationKind::Write, "records/snapshot.tmp".into()),
        (OperationKind::Sync, "records/snapshot.tmp".into()),
        (OperationKind::Rename, "records/snapshot.tmp".into()),
        (OperationKind::SyncDir, "records".into()),
        (OperationKind::Remove, generation("log", 1)),
        (OperationKind::Remove, generation("log", 3)),
        (OperationKind::Remove, generation("snapshot", 2)),
        (OperationKind::Remove, generation("snapshot", 3)),
    ] {
        assert!(seen.contains(&(kind, name.clone())), "{kind:?} of {name} is not in the run");
    }
}

#[test]
fn a_kill_after_any_change_loses_nothing_acknowledged() {
    let run = run();
    for steps in 0..=run.volume.steps() {
        let (_, commits) = recovered(run.volume.after(steps, CrashLoss::Nothing).unwrap(), &run.states);
        assert_eq!(commits, run.acknowledged(steps), "after {steps} changes");
    }
}

#[test]
fn a_torn_write_is_dropped_and_the_log_goes_on() {
    let run = run();
    for steps in 0..run.volume.steps() {
        for bytes in [1, 3, 19, 20, 21, 30] {
            let crashed = run.volume.after(steps, CrashLoss::Torn(bytes)).unwrap();
            let (volume, commits) = recovered(crashed, &run.states);
            let expected = run.acknowledged(steps);
            let whole = commits == expected + 1 && run.acknowledged(steps + 1) == commits;
            assert!(commits == expected || whole, "after {steps} changes and {bytes} bytes: {commits}");
            let (records, recovery) = open(&volume, 2).unwrap();
            assert_eq!(recovery.torn_bytes, 0, "the rest is gone");
            commit(&records, &vec![(1, b"new".to_vec(), Some(b"value".to_vec()))]).unwrap();
            drop(records);
            let (records, _) = open(&volume, 2).unwrap();
            assert_eq!(
                records.read(Slot(1), b"new", |value| value.map(<[u8]>::to_vec)),
                Some(b"value".to_vec())
            );
            assert_eq!(records.stats().commits, commits as u64 + 1);
        }
    }
}

#[test]
fn a_dead_host_loses_only_the_last_commits_that_were_not_synced() {
    let run = run();
    for steps in 0..=run.volume.steps() {
        let (_, commits) = recovered(run.volume.after(steps, CrashLoss::Unsynced).unwrap(), &run.states);
        let (least, most) = (run.synced(steps), run.acknowledged(steps));
        assert!((least..=most).contains(&commits), "after {steps} changes: {least} <= {commits} <= {most}");
    }
}

#[test]
fn a_crash_during_recovery_is_a_crash_like_any_other() {
    let run = run();
    for steps in 0..run.volume.steps() {
        let crashed = run.volume.after(steps, CrashLoss::Torn(21)).unwrap();
        let before = crashed.steps();
        let volume = Arc::new(crashed);
        let as_volume: Arc<dyn Volume> = volume.clone();
        let commits = open(&as_volume, 2).unwrap().0.stats().commits as usize;
        for again in before..=volume.steps() {
            assert_eq!(recovered(volume.after(again, CrashLoss::Nothing).unwrap(), &run.states).1, commits);
        }
    }
}

#[test]
fn commits_of_many_threads_are_whole_wherever_the_host_stops_during_compaction() {
    let volume = Arc::new(CrashVolume::default());
    let as_volume: Arc<dyn Volume> = volume.clone();
    let (records, _) = open(&as_volume, 8).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let records = &records;
            scope.spawn(move || {
                for i in 0..120u32 {
                    let value = Some(i.to_be_bytes().to_vec());
                    let other = (i % 7) as u16 + 1;
                    commit(records, &vec![(0, vec![thread], value.clone()), (other, vec![thread], value)])
                        .unwrap();
                }
            });
        }
        scope.spawn(|| (0..8).for_each(|_| assert_ne!(records.compact().unwrap(), Compaction::Busy)));
    });
    for steps in (0..=volume.steps()).step_by(3) {
        for loss in [CrashLoss::Nothing, CrashLoss::Unsynced, CrashLoss::Torn(25)] {
            let crashed: Arc<dyn Volume> = Arc::new(volume.after(steps, loss).unwrap());
            let records = open(&crashed, 8).unwrap().0;
            let mut sum = 0;
            for thread in 0..3u8 {
                let number = |slot: u16| {
                    records.read(Slot(slot), &[thread], |value| {
                        value.map(|value| u32::from_be_bytes(value.try_into().unwrap()))
                    })
                };
                let newest = (1..8).filter_map(number).max();
                assert_eq!(number(0), newest, "thread {thread} after {steps} changes, {loss:?}");
                let done = newest.map_or(0, |i| i + 1);
                sum += u64::from(done);
                let expected = |slot: u32| (0..done).rev().find(|i| i % 7 + 1 == slot);
                assert!(
                    (1..8).all(|slot| number(slot as u16) == expected(slot)),
                    "every slot has its last one"
                );
            }
            assert_eq!(records.stats().commits, sum);
        }
    }
}

/// Commits, and syncs if told, whenever a compaction makes its log or writes its snapshot.
struct Intruder {
    records: OnceLock<Weak<Records>>,
    commits: Mutex<Vec<Commit>>,
}

impl Intruder {
    fn intrude(&self, sync: bool) {
        let Some(records) = self.records.get().and_then(Weak::upgrade) else { return };
        let value = Some(self.commits.lock().len().to_le_bytes().to_vec());
        let changes = vec![(0, b"pair".to_vec(), value.clone()), (1, b"pair".to_vec(), value)];
        commit(&records, &changes).unwrap();
        self.commits.lock().push(changes);
        if sync {
            records.sync().unwrap();
        }
    }
}

#[test]
fn commits_at_the_worst_moments_of_a_compaction_are_whole_on_a_dead_host() {
    for sync in [false, true] {
        // Slot 0 fills a piece of the snapshot, so that pieces are written before slot 1 is copied.
        let first = vec![(0, b"big".to_vec(), Some(vec![1; 300_000]))];
        let intruder = Arc::new(Intruder {
            records: OnceLock::new(),
            commits: Mutex::new(rank::LEAF, vec![first.clone()]),
        });
        let crashing = Arc::new(CrashVolume::default());
        let inside = intruder.clone();
        let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(crashing.clone(), move |op| {
            match (op.kind, op.name) {
                (OperationKind::Create, "records/log.tmp") => inside.intrude(false),
                (OperationKind::Write, "records/snapshot.tmp") => inside.intrude(sync),
                _ => {}
            }
            VolumeFault::Pass
        }));
        let records = Arc::new(open(&volume, 2).unwrap().0);
        commit(&records, &first).unwrap();
        records.sync().unwrap();
        let begun = crashing.steps();
        intruder.records.set(Arc::downgrade(&records)).unwrap();
        records.compact().unwrap();
        let states = states(&intruder.commits.lock());
        assert!(states.len() > 4);
        for steps in begun..=crashing.steps() {
            assert!(recovered(crashing.after(steps, CrashLoss::Unsynced).unwrap(), &states).1 >= 1);
        }
    }
}

//! Random operations against an ordered map.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Commit(Commit),
    Abort(Commit),
    Compact,
    Reopen,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0u8..3, 0..4)
}

fn changes() -> impl Strategy<Value = Commit> {
    let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
    proptest::collection::vec((0u16..4, key(), value), 0..6)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => changes().prop_map(Step::Commit),
        2 => changes().prop_map(Step::Abort),
        1 => Just(Step::Compact),
        1 => Just(Step::Reopen),
    ]
}

fn scanned(model: &BTreeMap<Vec<u8>, Vec<u8>>, from: &[u8], prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let wanted = |(key, _): &(&Vec<u8>, &Vec<u8>)| key.as_slice() >= from && key.starts_with(prefix);
    model.iter().filter(wanted).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Does the changes in a transaction, and looks at them through it all the while.
fn check_txn(records: &Records, model: &Model, changes: &Commit, look: &(Vec<u8>, Vec<u8>)) -> Model {
    let mut expected = model.clone();
    let mut txn = records.txn(&[Slot(3), Slot(0), Slot(2), Slot(1), Slot(0)]);
    for change in changes {
        match &change.2 {
            Some(value) => txn.put(Slot(change.0), &change.1, value),
            None => txn.delete(Slot(change.0), &change.1),
        }
        commit_to_model(&mut expected, std::slice::from_ref(change).to_vec().as_ref());
        let map = &expected[usize::from(change.0)];
        assert_eq!(txn.get(Slot(change.0), &change.1), map.get(&change.1).map(Vec::as_slice));
        let mut seen = Vec::new();
        txn.scan(Slot(change.0), &look.0, &look.1, |key, value| {
            seen.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        });
        assert_eq!(seen, scanned(map, &look.0, &look.1));
    }
    assert_eq!(txn.is_empty(), changes.is_empty());
    expected
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn records_are_an_ordered_map(steps in proptest::collection::vec(step(), 0..40), look in (key(), key())) {
        let volume = memory();
        let mut records = open(&volume, 4).unwrap().0;
        let mut model: Model = vec![BTreeMap::new(); 4];
        for step in &steps {
            match step {
                Step::Commit(changes) => {
                    let expected = check_txn(&records, &model, changes, &look);
                    commit(&records, changes).unwrap();
                    model = expected;
                }
                Step::Abort(changes) => {
                    check_txn(&records, &model, changes, &look);
                }
                Step::Compact => {
                    let count = model.iter().map(|map| map.len() as u64).sum();
                    prop_assert_eq!(records.compact().unwrap(), Compaction::Done { records: count });
                }
                Step::Reopen => {
                    drop(records);
                    let (again, recovery) = open(&volume, 4).unwrap();
                    prop_assert_eq!(recovery.records, again.stats().records);
                    records = again;
                }
            }
            prop_assert_eq!(&content(&records), &model);
            let stats = records.stats();
            prop_assert_eq!(stats.records, model.iter().map(|map| map.len() as u64).sum::<u64>());
            let bytes = model.iter().flatten().map(|(key, value)| (key.len() + value.len()) as u64);
            prop_assert_eq!(stats.bytes, bytes.sum::<u64>());
            let files = volume.list("records").unwrap();
            prop_assert_eq!(stats.disk_bytes, files.iter().map(|file| file.stat.len).sum::<u64>());
        }
    }
}

#[test]
fn many_records_survive_a_compaction_in_chunks() {
    let volume = memory();
    let (records, _) = open(&volume, 2).unwrap();
    let mut expected: Model = vec![BTreeMap::new(); 2];
    for i in 0..3000u32 {
        let changes =
            vec![((i % 2) as u16, i.to_be_bytes().to_vec(), Some(vec![i as u8; (i % 300) as usize]))];
        commit(&records, &changes).unwrap();
        commit_to_model(&mut expected, &changes);
    }
    records.compact().unwrap();
    commit(&records, &vec![(0, vec![9], Some(vec![9]))]).unwrap();
    expected[0].insert(vec![9], vec![9]);
    drop(records);
    let (records, recovery) = open(&volume, 2).unwrap();
    assert_eq!(content(&records), expected);
    assert_eq!((recovery.snapshot_records, recovery.commits, recovery.records), (3000, 1, 3001));
    assert_eq!(records.stats().commits, 3001);
}

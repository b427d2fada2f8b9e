//! Rules of transactions and options.

use super::*;

#[test]
fn a_transaction_that_breaks_a_rule_changes_nothing() {
    let (records, _) = open(&memory(), 4).unwrap();
    let mut txn = records.txn(&[Slot(1), Slot(9)]);
    txn.put(Slot(1), b"a", b"1");
    txn.put(Slot(2), b"b", b"2");
    assert!(matches!(txn.commit(), Err(StoreError::BadSlot { slot: 2, .. })));

    let mut txn = records.txn(&[Slot(1)]);
    txn.put(Slot(1), b"a", b"1");
    assert_eq!(txn.get(Slot(0), b"a"), None);
    assert!(matches!(txn.commit(), Err(StoreError::BadSlot { slot: 0, .. })));

    let mut txn = records.txn(&[Slot(1)]);
    txn.put(Slot(1), &vec![0; 70_000], b"1");
    assert!(matches!(txn.commit(), Err(StoreError::TooLarge { what: "key of a record", len: 70_000, .. })));

    let mut txn = records.txn(&[Slot(1)]);
    txn.put(Slot(1), b"a", &vec![0; (1 << 24) + 1]);
    assert!(matches!(txn.commit(), Err(StoreError::TooLarge { what: "value of a record", .. })));
    assert_eq!(records.stats().records, 0);
}

#[test]
fn a_snapshot_that_lacks_records_gets_no_name() {
    let volume = memory();
    let (records, _) = open(&volume, 4).unwrap();
    workload(20).iter().for_each(|changes| commit(&records, changes).unwrap());
    let before = content(&records);
    // As if one were in no slot.
    records.totals.records.fetch_add(1, Ordering::Relaxed);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| records.compact())).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.starts_with("snapshot has "), "{message}");
    assert!(volume.list(log::DIR).unwrap().iter().all(|entry| !entry.name.starts_with("snapshot-")));
    assert_eq!(content(&open(&volume, 4).unwrap().0), before, "the logs have all of it");
}

#[test]
fn a_commit_has_a_longest_length() {
    let (records, _) = open(&memory(), 1).unwrap();
    let value = vec![0; 1 << 24];
    let mut txn = records.txn(&[Slot(0)]);
    (0..4u8).for_each(|i| txn.put(Slot(0), &[i], &value));
    assert!(matches!(txn.commit(), Err(StoreError::TooLarge { what: "commit", .. })));
    let mut txn = records.txn(&[Slot(0)]);
    (0..3u8).for_each(|i| txn.put(Slot(0), &[i], &value));
    txn.commit().unwrap();
    assert_eq!(records.compact().unwrap(), Compaction::Done { records: 3 });
}

#[test]
fn the_largest_record_comes_back() {
    let volume = memory();
    let (records, _) = open(&volume, 1).unwrap();
    let (key, value) = (vec![1; 65_535], vec![2; 1 << 24]);
    commit(
        &records,
        &vec![(0, key.clone(), Some(value.clone())), (0, b"a".to_vec(), Some(vec![3; 200_000]))],
    )
    .unwrap();
    for compacted in [false, true] {
        if compacted {
            records.compact().unwrap();
        }
        let (again, _) = open(&volume, 1).unwrap();
        assert!(again.read(Slot(0), &key, |found| found == Some(&value)));
    }
}

#[test]
fn a_slot_that_there_is_not_has_nothing() {
    let (records, _) = open(&memory(), 4).unwrap();
    assert_eq!(records.read(Slot(4), b"a", |value| value.map(<[u8]>::len)), None);
    records.scan(Slot(4095), b"", b"", |_, _| panic!("no record can be here"));
}

#[test]
fn a_scan_stops_when_told() {
    let (records, _) = open(&memory(), 1).unwrap();
    let put = |key: &[u8]| (0, key.to_vec(), Some(b"v".to_vec()));
    commit(&records, &vec![put(b"a1"), put(b"a2"), put(b"a3"), put(b"b")]).unwrap();
    let mut seen = Vec::new();
    records.scan(Slot(0), b"a2", b"a", |key, _| {
        seen.push(key.to_vec());
        if key == b"a3" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(seen, [b"a2", b"a3"]);
}

#[test]
fn a_commit_without_changes_writes_nothing() {
    let (records, _) = open(&memory(), 1).unwrap();
    let before = records.stats();
    records.txn(&[Slot(0)]).commit().unwrap();
    records.txn(&[]).commit().unwrap();
    assert_eq!(records.stats(), before);
}

#[test]
fn records_stay_with_their_formation_node_and_number_of_slots() {
    let volume = memory();
    drop(open(&volume, 4).unwrap());
    let refusal =
        |formation, node, slots| Records::open(volume.clone(), formation, node, options(slots)).unwrap_err();
    assert!(matches!(refusal(FormationId([9; 16]), NODE, 4), StoreError::WrongFormation { .. }));
    let error = refusal(FORMATION, NODE, 8);
    assert!(error.to_string().contains("of node 5 for 4 slots, opened by node 5 for 8 slots"), "{error}");
    assert!(refusal(FORMATION, NodeId(1), 4).to_string().contains("opened by node 1"));
    for slots in [0, 3, 8192] {
        assert!(matches!(refusal(FORMATION, NODE, slots), StoreError::TooLarge { .. }), "{slots}");
    }
}

#[test]
fn two_threads_do_not_compact_at_once() {
    let (records, _) = open(&memory(), 1).unwrap();
    let alone = records.compacting.lock();
    assert_eq!(records.compact().unwrap(), Compaction::Busy);
    drop(alone);
    assert_eq!(records.compact().unwrap(), Compaction::Done { records: 0 });
}

#[test]
fn transactions_on_overlapping_slots_wait_for_each_other() {
    let (records, _) = open(&memory(), 4).unwrap();
    let add_one = |slots: [u16; 2]| {
        let slots = slots.map(Slot);
        let mut txn = records.txn(&slots);
        for slot in slots {
            let value = txn.get(slot, b"n").map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
            txn.put(slot, b"n", &(value + 1).to_le_bytes());
        }
        txn.commit().unwrap();
    };
    std::thread::scope(|scope| {
        for slots in [[0, 1], [1, 0], [1, 2], [3, 0]] {
            scope.spawn(move || (0..200).for_each(|_| add_one(slots)));
        }
    });
    let count =
        |slot| records.read(Slot(slot), b"n", |value| u64::from_le_bytes(value.unwrap().try_into().unwrap()));
    assert_eq!([0, 1, 2, 3].map(count), [600, 600, 200, 200]);
}

/// S440: what adds is refused, what replaces by less and what removes is not; and nothing keeps records from being read
/// back.
#[test]
fn memory_is_bounded_and_given_back() {
    let volume = memory();
    let (records, _) = open(&volume, 2).unwrap();
    records.bound_memory(64 << 10, None);
    let put = |key: &[u8], len: usize, bounded: bool| {
        let mut txn = records.txn(&[Slot(0), Slot(1)]);
        if bounded {
            txn.must_fit();
        }
        txn.put(Slot(1), key, &vec![7; len]);
        txn.put(Slot(0), b"written by all", b"always the same");
        txn.commit()
    };
    let refused = (0u32..).find(|count| put(&count.to_le_bytes(), 1000, true).is_err()).unwrap();
    assert_eq!(refused, 58);
    let full = records.stats();
    assert!(full.memory <= full.memory_max && full.memory_max == 64 << 10, "{full:?}");
    assert!(matches!(put(b"more", 4000, true), Err(StoreError::NamesFull { .. })));
    assert_eq!(records.stats(), full, "a refusal changes nothing");
    put(&0u32.to_le_bytes(), 1000, true).unwrap();
    put(&0u32.to_le_bytes(), 10, true).unwrap();
    put(b"what was begun", 100_000, false).unwrap();
    drop(records);
    let (records, _) = open(&volume, 2).unwrap();
    let before = records.stats().memory;
    assert!(before > 100_000);
    records.bound_memory(64 << 10, None);
    let mut txn = records.txn(&[Slot(1)]);
    txn.must_fit();
    txn.delete(Slot(1), b"what was begun");
    txn.commit().unwrap();
    assert!(records.stats().memory < before - 100_000);
    let mut txn = records.txn(&[Slot(1)]);
    txn.must_fit();
    txn.put(Slot(1), b"more", &[1; 100]);
    txn.commit().unwrap();
}

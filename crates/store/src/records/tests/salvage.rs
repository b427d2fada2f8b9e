//! S310, S311: what is sound in damaged records is found again, and nothing that was never there.

use super::damage::{LOG, LOG_2, SNAPSHOT_2, compacted, small_log, volume_with};
use super::*;
use crate::OpenMode;
use crate::volume::transfer::read_all;
use proptest::prelude::*;

/// Salvages, opens, and says what is there.
fn salvaged(files: &[(&str, &[u8])]) -> (Salvage, Model) {
    let volume = volume_with(files);
    let report = Records::salvage(&volume, FORMATION, NODE, 2).unwrap();
    let (records, _) = open(&volume, 2).unwrap();
    for (name, bytes) in files {
        let kept = name.replace("records/", "records/damaged-");
        let file = volume.open(&kept, OpenMode::Existing).unwrap();
        assert_eq!(read_all(&*file).unwrap(), *bytes, "{kept}");
    }
    // It takes commits, and has them when it is opened again.
    commit(&records, &vec![(1, b"new".to_vec(), Some(b"value".to_vec()))]).unwrap();
    drop(records);
    let (records, _) = open(&volume, 2).unwrap();
    let mut model = content(&records);
    assert_eq!(model[1].remove(&b"new"[..]), Some(b"value".to_vec()));
    (report, model)
}

/// Ranges of the entries of a log.
fn entries(log: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    let mut at = 64;
    while at < log.len() {
        let end = at + 20 + u32::from_le_bytes(log[at..at + 4].try_into().unwrap()) as usize;
        found.push(at..end);
        at = end;
    }
    found
}

#[test]
fn one_flipped_bit_anywhere_in_a_log_stops_the_start_and_takes_nothing() {
    let (log, states) = small_log();
    for at in 0..log.len() {
        for bit in 0..8 {
            let mut bytes = log.clone();
            bytes[at] ^= 1 << bit;
            assert!(open(&volume_with(&[(LOG, &bytes)]), 2).is_err(), "byte {at}, bit {bit}");
            let (report, found) = salvaged(&[(LOG, &bytes)]);
            assert_eq!(found, states[6], "byte {at}, bit {bit}: {report:?}");
            assert!(report.corrected == 1 && !report.has_loss(), "byte {at}, bit {bit}: {report:?}");
        }
    }
}

#[test]
fn one_flipped_bit_anywhere_in_a_snapshot_takes_nothing() {
    let (snapshot, log, states) = compacted();
    for at in 0..snapshot.len() {
        let mut bytes = snapshot.clone();
        bytes[at] ^= 0x10;
        let (report, found) = salvaged(&[(SNAPSHOT_2, &bytes), (LOG_2, &log)]);
        assert_eq!(found, states[8], "byte {at}: {report:?}");
        assert!(report.corrected == 1 && !report.has_loss(), "byte {at}: {report:?}");
    }
}

#[test]
fn a_lost_snapshot_leaves_what_the_log_has_and_is_said() {
    let (snapshot, log, states) = compacted();
    let (report, found) = salvaged(&[(SNAPSHOT_2, &vec![0xaa; snapshot.len()]), (LOG_2, &log)]);
    assert!(report.has_loss() && report.commits == 2, "{report:?}");
    let keys = |model: &Model| model[0].keys().cloned().collect::<Vec<_>>();
    assert!(!found[0].is_empty());
    for key in keys(&found) {
        assert_eq!(found[0][&key], states[8][0][&key]);
    }
}

#[test]
fn a_missing_log_is_said() {
    let (snapshot, _, states) = compacted();
    let (report, found) = salvaged(&[(SNAPSHOT_2, &snapshot)]);
    assert!(report.has_loss() && report.damage[0].path.ends_with(LOG_2), "{report:?}");
    assert_eq!(found, states[6]);
}

#[test]
fn an_entry_within_the_value_of_a_lost_one_is_no_entry() {
    let volume = memory();
    let (records, _) = open(&volume, 2).unwrap();
    let read = || read_all(&*volume.open(LOG, OpenMode::Existing).unwrap()).unwrap();
    commit(&records, &vec![(0, b"k".to_vec(), Some(b"old".to_vec()))]).unwrap();
    let copy = read()[64..].to_vec();
    commit(&records, &vec![(0, b"k".to_vec(), Some(b"new".to_vec()))]).unwrap();
    let start = read().len();
    commit(&records, &vec![(1, b"copy".to_vec(), Some([&[1; 50][..], &copy].concat()))]).unwrap();
    commit(&records, &vec![(1, b"last".to_vec(), Some(b"1".to_vec()))]).unwrap();
    let mut bytes = read();
    bytes[start..start + 4].fill(0xff);
    let (report, found) = salvaged(&[(LOG, &bytes)]);
    assert_eq!(found[0][&b"k"[..]], b"new", "the copy is older: {report:?}");
    assert_eq!(found[1].keys().collect::<Vec<_>>(), [b"last"]);
    assert_eq!((report.commits, report.lost_commits), (3, 1));
}

#[test]
fn records_of_another_formation_are_refused() {
    let (log, _) = small_log();
    let volume = volume_with(&[(LOG, &log)]);
    let error = Records::salvage(&volume, FormationId([9; 16]), NODE, 2).unwrap_err();
    assert!(matches!(error, StoreError::WrongFormation { .. }), "{error}");
}

proptest! {
    /// Whatever happens to a stretch of a log: all entries that it does not touch are used in their order, and no
    /// other. Of which one bit is flipped is used, too, unless it is right behind a lost one: then nothing says where
    /// it begins.
    #[test]
    fn what_damage_does_not_touch_is_used(
        at in any::<prop::sample::Index>(),
        garbage in prop_oneof![
            prop::collection::vec(any::<u8>(), 1..200),
            (1usize..200).prop_map(|len| vec![0; len]),
        ],
    ) {
        let (log, _) = small_log();
        let mut bytes = log.clone();
        let at = at.index(log.len());
        let end = (at + garbage.len()).min(log.len());
        bytes[at..end].copy_from_slice(&garbage[..end - at]);
        let flips = |range: &std::ops::Range<usize>| -> u32 {
            range.clone().map(|i| (bytes[i] ^ log[i]).count_ones()).sum()
        };
        let mut models: [Model; 2] = [vec![BTreeMap::new(); 2], vec![BTreeMap::new(); 2]];
        let mut behind_lost = false;
        for (range, changes) in entries(&log).iter().zip(workload(6)) {
            let flips = flips(range);
            if flips <= 1 {
                commit_to_model(&mut models[0], &changes);
            }
            if flips == 0 || flips == 1 && !behind_lost {
                commit_to_model(&mut models[1], &changes);
            }
            behind_lost = flips > 1;
        }
        let (report, found) = salvaged(&[(LOG, &bytes)]);
        prop_assert!(models.contains(&found), "{:?} {:?}", found, report);
    }

    /// Any bytes at all are salvaged without a panic.
    #[test]
    fn any_file_can_be_looked_through(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (report, found) = salvaged(&[(LOG, &bytes)]);
        prop_assert_eq!(found, vec![BTreeMap::new(); 2], "{:?}", report);
    }
}

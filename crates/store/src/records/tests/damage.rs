//! Bytes that nobody wrote: an error that names the place, never wrong records, never a panic.

use super::*;
use crate::volume::transfer::{read_all, write_all_at};
use crate::{MemVolume, OpenMode};
use std::io::IoSlice;

pub(super) const LOG: &str = "records/log-0000000000000001";

/// A log of some commits, its bytes, and the state after each number of commits.
pub(super) fn small_log() -> (Vec<u8>, Vec<Model>) {
    let volume = memory();
    let (records, _) = open(&volume, 2).unwrap();
    let mut model: Model = vec![BTreeMap::new(); 2];
    let mut states = vec![model.clone()];
    for changes in workload(6) {
        commit(&records, &changes).unwrap();
        commit_to_model(&mut model, &changes);
        states.push(model.clone());
    }
    let file = volume.open(LOG, OpenMode::Existing).unwrap();
    (read_all(&*file).unwrap(), states)
}

pub(super) fn volume_with(files: &[(&str, &[u8])]) -> Arc<dyn Volume> {
    let volume = MemVolume::default();
    volume.make_dir("records").unwrap();
    for (name, bytes) in files {
        let file = volume.open(name, OpenMode::Create).unwrap();
        write_all_at(&*file, &[IoSlice::new(bytes)], 0).unwrap();
    }
    Arc::new(volume)
}

/// Opens; the number of commits, whose state must be right, or the error.
fn outcome(files: &[(&str, &[u8])], states: &[Model]) -> Result<usize, StoreError> {
    let (records, _) = open(&volume_with(files), 2)?;
    let commits = records.stats().commits as usize;
    assert_eq!(content(&records), states[commits]);
    Ok(commits)
}

#[test]
fn damage_at_any_byte_of_a_log_is_an_error_or_drops_the_last_commit() {
    let (log, states) = small_log();
    let last_entry = log.len() - 20 - 2 * (9 + 2 + 5);
    for at in 0..log.len() {
        for change in [1u8, 0x80, 0xff, log[at]] {
            let mut bytes = log.clone();
            bytes[at] ^= change;
            if bytes == log {
                continue;
            }
            match outcome(&[(LOG, &bytes)], &states) {
                Ok(commits) => assert!(commits == 5 && at >= last_entry, "byte {at}: {commits} commits"),
                Err(StoreError::Corrupt { path, offset, .. }) => {
                    assert!(path.ends_with(LOG) && offset <= at as u64, "byte {at}, reported {offset}");
                }
                Err(StoreError::NewerFormat { .. }) => assert!((8..10).contains(&at)),
                Err(StoreError::WrongFormation { .. }) => {
                    panic!("a damaged header is not another formation's")
                }
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
    }
}

#[test]
fn a_log_of_any_length_is_its_whole_commits() {
    let (log, states) = small_log();
    for len in 0..log.len() {
        match outcome(&[(LOG, &log[..len])], &states) {
            Ok(commits) => assert!(len >= 64 && commits < 6),
            Err(error) => assert!(len < 64 && matches!(error, StoreError::Corrupt { .. }), "{len}: {error}"),
        }
    }
}

#[test]
fn zeros_behind_the_last_commit_are_dropped() {
    let (mut log, states) = small_log();
    for zeros in [1, 19, 20, 21, 5000] {
        log.truncate(small_log().0.len());
        log.resize(log.len() + zeros, 0);
        assert_eq!(outcome(&[(LOG, &log)], &states).unwrap(), 6, "{zeros}");
    }
}

#[test]
fn bytes_behind_the_last_commit_are_an_error() {
    let (mut log, states) = small_log();
    let end = log.len() as u64;
    log.extend_from_slice(&[0xaa; 40]);
    let error = outcome(&[(LOG, &log)], &states).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { offset, .. } if offset == end), "{error}");
}

#[test]
fn a_commit_that_vanished_from_the_middle_is_missed() {
    let (log, states) = small_log();
    let first = 64 + 20 + u32::from_le_bytes(log[64..68].try_into().unwrap()) as usize;
    let without = [&log[..64], &log[first..]].concat();
    let error = outcome(&[(LOG, &without)], &states).unwrap_err();
    assert!(error.to_string().contains("commits are missing"), "{error}");
}

/// A snapshot and the log behind it.
pub(super) fn compacted() -> (Vec<u8>, Vec<u8>, Vec<Model>) {
    let volume = memory();
    let (records, _) = open(&volume, 2).unwrap();
    let mut model: Model = vec![BTreeMap::new(); 2];
    let mut states = vec![model.clone()];
    for (i, changes) in workload(8).iter().enumerate() {
        commit(&records, changes).unwrap();
        commit_to_model(&mut model, changes);
        states.push(model.clone());
        if i == 5 {
            records.compact().unwrap();
        }
    }
    let read = |name: &str| read_all(&*volume.open(name, OpenMode::Existing).unwrap()).unwrap();
    (read("records/snapshot-0000000000000002"), read("records/log-0000000000000002"), states)
}

pub(super) const SNAPSHOT_2: &str = "records/snapshot-0000000000000002";
pub(super) const LOG_2: &str = "records/log-0000000000000002";

#[test]
fn damage_at_any_byte_of_a_snapshot_is_an_error() {
    let (snapshot, log, states) = compacted();
    assert_eq!(outcome(&[(SNAPSHOT_2, &snapshot), (LOG_2, &log)], &states).unwrap(), 8);
    for at in 0..snapshot.len() {
        let mut bytes = snapshot.clone();
        bytes[at] ^= 0x40;
        assert!(outcome(&[(SNAPSHOT_2, &bytes), (LOG_2, &log)], &states).is_err(), "byte {at}");
        let cut = &snapshot[..at];
        assert!(outcome(&[(SNAPSHOT_2, cut), (LOG_2, &log)], &states).is_err(), "length {at}");
    }
    let longer = [&snapshot[..], &[0; 9]].concat();
    assert!(outcome(&[(SNAPSHOT_2, &longer), (LOG_2, &log)], &states).is_err());
}

#[test]
fn a_missing_file_is_named() {
    let (snapshot, log, states) = compacted();
    for (files, missing) in [
        (vec![(SNAPSHOT_2, &snapshot[..])], LOG_2),
        (vec![(LOG_2, &log[..])], LOG),
        (vec![(SNAPSHOT_2, &snapshot[..]), ("records/log-0000000000000003", &log[..])], LOG_2),
    ] {
        let error = outcome(&files, &states).unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt { path, .. } if path.ends_with(missing)), "{error}");
        assert!(error.to_string().contains("missing"), "{error}");
    }
}

#[test]
fn a_log_under_another_name_is_refused() {
    let (log, states) = small_log();
    let files: &[(&str, &[u8])] = &[(LOG, &log), ("records/log-0000000000000002", &log)];
    let error = outcome(files, &states).unwrap_err();
    assert!(error.to_string().contains("generation 1"), "{error}");
}

#[test]
fn an_unfinished_commit_before_more_commits_is_damage() {
    let volume = memory();
    let (records, _) = open(&volume, 2).unwrap();
    commit(&records, &workload(1)[0]).unwrap();
    let log = volume.open(LOG, OpenMode::Existing).unwrap();
    let end = log.stat().unwrap().len;
    drop(records.compact());
    commit(&records, &workload(1)[0]).unwrap();
    let later = read_all(&*volume.open(LOG_2, OpenMode::Existing).unwrap()).unwrap();
    let mut torn = read_all(&*log).unwrap();
    torn.extend_from_slice(&[7; 10]);
    let volume = volume_with(&[(LOG, &torn), (LOG_2, &later)]);
    let error = open(&volume, 2).unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt { path, offset, .. } if path.ends_with(LOG) && *offset == end),
        "{error}"
    );
}

#[test]
fn unknown_files_are_left_alone() {
    let volume =
        volume_with(&[("records/notes", b"mine"), ("records/log.tmp", b"x"), ("records/snapshot.tmp", b"")]);
    let (records, _) = open(&volume, 2).unwrap();
    records.compact().unwrap();
    let mut names: Vec<String> =
        volume.list("records").unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, ["log-0000000000000002", "notes", "snapshot-0000000000000002"]);
}

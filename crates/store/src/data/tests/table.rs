//! Subfiles that vanish without anybody having removed them.

use super::*;
use crate::volume::subfile_table::{TABLE_NAME, empty_table};
use crate::{DirVolume, OpenMode};

fn name(ino: u64) -> String {
    super::super::names::name_of(id(ino))
}

fn refusal(store: &DataStore, ino: u64) -> StoreError {
    store.read(id(ino), 0, &mut [IoSliceMut::new(&mut [0; 10])]).unwrap_err()
}

fn lost_of(store: &DataStore) -> Vec<u64> {
    let (mut lost, mut after) = (Vec::new(), None);
    loop {
        let (page, end) = store.list_page(0, after, 3).unwrap();
        after = page.last().map(|listed| listed.id);
        let is_lost = |one: &ListedSubfile| matches!(one.header, Err(StoreError::LostSubfile { .. }));
        lost.extend(page.iter().filter(|one| is_lost(one)).map(|one| one.id.ino.0));
        if end {
            return lost;
        }
    }
}

#[test]
fn what_vanished_while_the_formation_was_down_is_not_read_as_zeros() {
    let volume = memory();
    let store = store_on(&volume, 0, 1);
    touch(&store, 1..8);
    touch(&store, 0x101..0x103);
    drop(store);
    for gone in [2, 7, 0x102] {
        volume.remove(&name(gone)).unwrap();
    }
    let store = store_on(&volume, 0, 10);
    assert_eq!(store.usage()[0].lost, 3);
    assert_eq!(lost_of(&store), [2, 0x102, 7]);
    for gone in [2, 7, 0x102] {
        let error = refusal(&store, gone);
        assert_eq!(error.errno(), Errno::EIO);
        let text = error.to_string();
        assert!(text.contains("(memory)") && text.contains(&name(gone)), "{text}");
        assert_eq!(write(&store, id(gone), 0, 100, b"x").unwrap_err().errno(), Errno::EIO);
        assert_eq!(store.trim(id(gone), &SPEC, 1, 1).unwrap_err().errno(), Errno::EIO);
        assert_eq!(store.stat(id(gone)).unwrap_err().errno(), Errno::EIO);
    }
    assert_eq!((read(&store, id(1), 0, 9), read(&store, id(0x101), 0, 9)), (b"x".to_vec(), b"x".to_vec()));
    assert_eq!(read(&store, id(9), 0, 9), b"", "what was never made is a hole");
    assert!(
        store.list_ids(0).unwrap().any(|known| known == id(2)),
        "what is looked for in vain can be removed"
    );
    // Nothing of it stays, so it is as good as any.
    store.trim(id(2), &SPEC, 1, 0).unwrap();
    write(&store, id(2), 1, 0, b"new").unwrap();
    assert!(!store.remove(id(7)).unwrap());
    drop(store);
    let store = store_on(&volume, 0, 10);
    assert_eq!((read(&store, id(2), 0, 9), read(&store, id(7), 0, 9)), (b"new".to_vec(), vec![]));
    assert_eq!((store.usage()[0].lost, lost_of(&store)), (1, vec![0x102]));
}

#[test]
fn what_vanishes_under_a_daemon_is_told_when_it_is_looked_for() {
    let volume = memory();
    let store = store_on(&volume, 0, 1);
    touch(&store, 1..6);
    for gone in [2, 3] {
        volume.remove(&name(gone)).unwrap();
    }
    assert_eq!(store.usage()[0].lost, 0);
    assert_eq!(refusal(&store, 2).errno(), Errno::EIO);
    assert_eq!((store.usage()[0].lost, lost_of(&store), store.usage()[0].lost), (1, vec![2, 3], 2));
}

#[test]
fn removed_subfiles_leave_their_slots_to_others() {
    let volume = memory();
    let store = store_on(&volume, 0, 10);
    touch(&store, 1..100);
    let len = || volume.open(TABLE_NAME, OpenMode::Existing).unwrap().stat().unwrap().len;
    let before = len();
    for ino in 1..50 {
        store.remove(id(ino)).unwrap();
    }
    touch(&store, 200..249);
    assert_eq!(len(), before);
    drop(store);
    let store = store_on(&volume, 0, 10);
    touch(&store, 300..301);
    assert_eq!((store.usage()[0].lost, len()), (0, before + 16));
    (1..50).for_each(|ino| assert_eq!(read(&store, id(ino), 0, 1), b""));
    (50..100).chain(200..249).for_each(|ino| assert_eq!(read(&store, id(ino), 0, 1), b"x"));
}

#[test]
fn the_worked_example_of_the_format_document() {
    let volume = memory();
    let store = store_on(&volume, 0, 10);
    let id = SubfileId { volume: 0, ino: Ino(0x0001_0000_0000_002f), target: TargetIndex(2) };
    write(&store, id, 0, 0, b"x").unwrap();
    let mut bytes = [0; 80];
    let table = volume.open(TABLE_NAME, OpenMode::Existing).unwrap();
    assert_eq!(table.read_vectored_at(&mut [IoSliceMut::new(&mut bytes)], 0).unwrap(), 80);
    assert_eq!(&bytes[..10], b"BVKTABL1\x01\0");
    assert_eq!(bytes[..64], empty_table());
    assert_eq!(&bytes[64..76], b"\x2f\0\0\0\0\0\x01\0\x02\0\0\0");
    assert_eq!(bytes[76..80], crate::crc::crc32c(&bytes[64..76]).to_le_bytes());
}

#[test]
fn damaged_slots_are_nobody_s_and_a_damaged_table_is_refused() {
    let volume = memory();
    let store = store_on(&volume, 0, 10);
    touch(&store, 1..4);
    drop(store);
    let table = volume.open(TABLE_NAME, OpenMode::Existing).unwrap();
    let damage = |at: u64, bytes: &[u8]| table.write_vectored_at(&[IoSlice::new(bytes)], at).unwrap();
    damage(64 + 16 + 3, b"!");
    volume.remove(&name(2)).unwrap();
    let store = store_on(&volume, 0, 10);
    assert_eq!((store.usage()[0].lost, read(&store, id(2), 0, 1)), (0, vec![]));
    drop(store);
    damage(20, b"!");
    let volumes = vec![(volume.clone(), 0)];
    let error = DataStore::with_volumes(volumes, FORMATION, &DataOptions::default()).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

fn open(dir: &std::path::Path) -> StoreResult<DataStore> {
    let config = VolumeConfig { path: dir.to_owned(), capacity: 0, create: false };
    DataStore::open(&[config], FORMATION, NodeId(0), &DataOptions::default())
}

#[test]
fn a_volume_without_its_table_is_refused_until_that_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    touch(&open(dir.path()).unwrap(), 1..4);
    std::fs::remove_file(dir.path().join(TABLE_NAME)).unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(matches!(error, StoreError::NoTable { .. }), "{error}");
    let (volume, _) = DirVolume::open_existing(dir.path()).unwrap();
    assert!(matches!(volume.check_table(), Err(StoreError::NoTable { .. })));
    volume.renew_table().unwrap();
    volume.check_table().unwrap();
    drop(volume);
    drop(open(dir.path()).unwrap());
    std::fs::remove_file(dir.path().join(name(2))).unwrap();
    assert_eq!(lost_of(&open(dir.path()).unwrap()), [2]);
}

/// Version 1 of the identity has no table.
#[test]
fn a_volume_of_an_older_release_gets_a_table() {
    let dir = tempfile::tempdir().unwrap();
    touch(&open(dir.path()).unwrap(), 1..4);
    std::fs::remove_file(dir.path().join(TABLE_NAME)).unwrap();
    let path = dir.path().join(crate::IDENTITY_NAME);
    let mut identity = std::fs::read(&path).unwrap();
    identity[8] = 1;
    let crc = crate::crc::crc32c(&identity[..60]);
    identity[60..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, identity).unwrap();
    DirVolume::open_existing(dir.path()).unwrap().0.check_table().unwrap();
    drop(open(dir.path()).unwrap());
    std::fs::remove_file(dir.path().join(name(3))).unwrap();
    assert_eq!(lost_of(&open(dir.path()).unwrap()), [3]);
    assert_eq!(std::fs::read(&path).unwrap()[8], 2);
}

//! Headers on a volume: damage is told by name, and files are put together from headers alone.

use super::*;
use crate::volume::transfer::write_all_at;
use crate::{FailingVolume, OpenMode, OperationKind, VolumeFault};
use bivouac_layout::{file_offset, locate};
use bivouac_wire::subfile::SubfileHeader;

fn damage(volume: &Arc<dyn Volume>, id: SubfileId, offset: u64, bytes: &[u8]) {
    let file = volume.open(&names::name_of(id), OpenMode::Existing).unwrap();
    write_all_at(&*file, &[IoSlice::new(bytes)], offset).unwrap();
}

#[test]
fn a_damaged_header_is_an_error_for_this_subfile_only() {
    let volume = memory();
    let store = store_on(&volume, 0, 10);
    write(&store, id(1), 0, 0, b"one").unwrap();
    write(&store, id(2), 0, 0, b"two").unwrap();
    drop(store);
    damage(&volume, id(1), 33, &[0xff]);
    let store = store_on(&volume, 0, 10);
    let mut out = [0u8; 4];
    let error = store.read(id(1), 0, &mut [IoSliceMut::new(&mut out)]).unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt { path, .. } if path.ends_with("01/0000000000000001-0000")),
        "{error}"
    );
    assert_eq!(error.errno(), Errno::EIO);
    assert!(write(&store, id(1), 0, 0, b"x").is_err());
    assert!(store.trim(id(1), &SPEC, 5, 0).is_err());
    assert_eq!(read(&store, id(2), 0, 9), b"two");
    let broken: Vec<SubfileId> =
        store.list(0).unwrap().filter(|listed| listed.header.is_err()).map(|listed| listed.id).collect();
    assert_eq!(broken, [id(1)]);
    assert!(store.remove(id(1)).unwrap(), "it can be removed");
    assert_eq!((store.list(0).unwrap().count(), used(&store)), (1, 8192));
}

#[test]
fn a_removal_that_failed_makes_no_damaged_subfile_sound() {
    let inner = memory();
    write(&store_on(&inner, 0, 10), id(1), 0, 0, b"one").unwrap();
    damage(&inner, id(1), 33, &[0xff]);
    let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(inner, |op| match op.kind {
        OperationKind::Remove => VolumeFault::Fail(Errno::EIO),
        _ => VolumeFault::Pass,
    }));
    let store = store_on(&volume, 0, 10);
    assert!(store.remove(id(1)).is_err());
    assert!(store.stat(id(1)).is_err());
    assert_eq!((used(&store), store.usage()[0].files), (8192, 1));
}

#[test]
fn headers_of_other_files_and_formations_are_told() {
    let volume = memory();
    let store = store_on(&volume, 0, 10);
    write(&store, id(1), 0, 0, b"one").unwrap();
    volume.rename("01/0000000000000001-0000", "01/0000000000000101-0000").unwrap();
    let error = store_on(&volume, 0, 10).stat(id(0x101)).unwrap_err();
    assert!(error.to_string().contains("header is of inode 0000000000000001 target 0"), "{error}");
    let other = FormationId([9; 16]);
    let store = DataStore::with_volumes(vec![(volume, 0)], other, &DataOptions::default()).unwrap();
    let error = store.stat(id(0x101)).unwrap_err();
    assert!(matches!(error, StoreError::WrongFormation { found: FORMATION, .. }), "{error}");
}

#[test]
fn what_is_not_a_subfile_is_left_alone() {
    let volume = memory();
    volume.make_dir("01").unwrap();
    volume.make_dir("zz").unwrap();
    for name in ["01/notes", "01/0000000000000002-0000", "zz/0000000000000001-0000", "top"] {
        volume.open(name, OpenMode::Create).unwrap();
    }
    let store = store_on(&volume, 0, 10);
    assert_eq!((store.list(0).unwrap().count(), store.usage()[0].files, used(&store)), (0, 0, 0));
    assert!(volume.open("01/notes", OpenMode::Existing).is_ok());
}

#[test]
fn a_new_header_says_everything() {
    let volume = memory();
    let store = store_on(&volume, 0, 10);
    write(&store, id(0x2f), 6, 0, b"x").unwrap();
    let header = store.list(0).unwrap().next().unwrap().header.unwrap();
    let expected = SubfileHeader {
        formation: FORMATION,
        ino: Ino(0x2f),
        target: TargetIndex(0),
        layout: LAYOUT,
        placement: Placement::Striped,
        trim_epoch: 6,
        places: vec![TARGETS[2], TARGETS[3], TARGETS[0]],
        sums: false,
    };
    assert_eq!(header, expected);
}

#[test]
fn a_file_is_put_together_from_subfiles_alone() {
    let stores = [store_on(&memory(), 0, 10), store_on(&memory(), 0, 10)];
    let content: Vec<u8> = (0..100_000u32).map(|i| (i * 7 / 5) as u8).collect();
    for (stripe, bytes) in content.chunks(LAYOUT.stripe as usize).enumerate() {
        let place = locate(&LAYOUT, stripe as u64 * u64::from(LAYOUT.stripe));
        let store = &stores[(place.target.0 % 2) as usize];
        let id = SubfileId { volume: 0, ino: Ino(77), target: place.target };
        write(store, id, 0, place.subfile_offset, bytes).unwrap();
    }
    let mut rebuilt = vec![0u8; content.len()];
    for (store, listed) in
        stores.iter().flat_map(|store| store.list(0).unwrap().map(move |found| (store, found)))
    {
        let header = listed.header.unwrap();
        let bytes = read(store, listed.id, 0, listed.len as usize);
        for (at, byte) in bytes.iter().enumerate() {
            let offset = file_offset(&header.layout, header.column().unwrap(), at as u64).unwrap();
            rebuilt[offset as usize] = *byte;
        }
    }
    assert!(rebuilt == content);
}

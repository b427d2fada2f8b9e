//! Several at once.

use super::*;
use std::os::unix::fs::FileExt;

fn tmpfs_store() -> (tempfile::TempDir, DataStore) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let config = VolumeConfig { path: dir.path().to_owned(), capacity: 0, create: false };
    let store = DataStore::open(&[config], FORMATION, NodeId(0), &DataOptions { handles_max: 1 }).unwrap();
    (dir, store)
}

#[test]
fn a_read_never_sees_half_of_a_write() {
    const LEN: usize = 64 * 1024;
    let (_dir, store) = tmpfs_store();
    write(&store, id(1), 0, 0, &[0; LEN]).unwrap();
    std::thread::scope(|scope| {
        for fill in 1..3u8 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..150 {
                    write(store, id(1), 0, 0, &[fill; LEN]).unwrap();
                }
            });
        }
        let store = &store;
        scope.spawn(move || {
            for _ in 0..300 {
                let bytes = read(store, id(1), 0, LEN);
                assert!(bytes.len() == LEN && bytes.iter().all(|byte| *byte == bytes[0]), "torn");
            }
        });
        // Makes the cache close and open files meanwhile.
        scope.spawn(move || (0..8).for_each(|_| touch(store, 2..40)));
    });
    assert_eq!(used(&store), occupied(&store));
}

#[test]
fn making_and_removing_race_without_loss() {
    let (_dir, store) = tmpfs_store();
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..200 {
                    write(store, id(1), 0, 0, &[thread; 100]).unwrap();
                    let bytes = read(store, id(1), 0, 200);
                    assert!(bytes.is_empty() || bytes.len() == 100);
                    store.remove(id(1)).unwrap();
                }
            });
        }
    });
    assert_eq!((used(&store), store.usage()[0].files, store.list(0).unwrap().count()), (0, 0, 0));
}

#[test]
fn what_is_written_to_the_descriptor_directly_is_seen_and_counted() {
    let (_dir, store) = tmpfs_store();
    write(&store, id(1), 0, 0, b"abc").unwrap();
    let local = store.local_file(id(1)).unwrap().unwrap();
    let file = std::fs::File::from(local.as_fd().unwrap().try_clone_to_owned().unwrap());
    file.write_all_at(&[b'z'; 10_000], local.data_offset() + 1).unwrap();
    // The place stays, however many others come and go.
    touch(&store, 2..100);
    assert_eq!(read(&store, id(1), 0, 20_000), [&b"a"[..], &[b'z'; 10_000]].concat());
    let stat = store.stat(id(1)).unwrap().unwrap();
    assert_eq!((stat.len, stat.allocated), (10_001, 16_384));
    assert_eq!(used(&store), occupied(&store));
    store.trim(id(1), &SPEC, 1, 2).unwrap();
    assert_eq!(read(&store, id(1), 0, 9), b"az");
    file.write_all_at(&[b'y'; 9000], local.data_offset()).unwrap();
    drop(local);
    (2..100).for_each(|ino| assert!(store.remove(id(ino)).unwrap()));
    assert!(store.cache.len() <= 2, "its place is gone");
    assert_eq!(used(&store), occupied(&store));
}

#[test]
fn memory_has_no_descriptor() {
    let store = store_on(&memory(), 0, 1);
    write(&store, id(1), 0, 0, b"abc").unwrap();
    assert!(store.local_file(id(1)).unwrap().unwrap().as_fd().is_none());
}

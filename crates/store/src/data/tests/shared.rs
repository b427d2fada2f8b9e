//! Several at once.

use super::*;

fn tmpfs_store() -> (tempfile::TempDir, DataStore) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let config = VolumeConfig { path: dir.path().to_owned(), capacity: 0, create: false };
    let store = DataStore::open(
        &[config],
        FORMATION,
        NodeId(0),
        &DataOptions { handles_max: 1, ..DataOptions::default() },
    )
    .unwrap();
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

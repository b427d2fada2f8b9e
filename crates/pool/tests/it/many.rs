//! Several who change one database, a full disk, older files, and files that are no databases.

use bivouac_pool::{Caller, ChangeOrigin, NewPool, PoolRef, Pools, StorageLimits};

use crate::databases::{postgres, sqlite};

fn new(name: &str) -> NewPool {
    NewPool {
        name: name.parse().unwrap(),
        gid: 1,
        title: "x".repeat(4000),
        days: Some(1),
        source: Some(b"/data".to_vec()),
        bytes: None,
        files: None,
        reminder: None,
    }
}

/// S329: of several who make a pool of one name at the same time one does; all changes of different pools are done.
#[test]
fn several_change_one_database() {
    let me = Caller { uid: 1000, gids: vec![] };
    let work = |url: &str, worker: usize| {
        let (url, me) = (url.to_owned(), me.clone());
        move || {
            // Each opens a database that another may be making.
            let mut pools = Pools::at(&url).unwrap();
            let change = ChangeOrigin { who: &me, now_s: 0, request: None };
            let none = |_| panic!("nothing is to be made");
            for round in 0..5 {
                pools.create(&change, &new(&format!("p{worker}-{round}")), none).unwrap();
            }
            usize::from(pools.create(&change, &new("one"), none).is_ok())
        }
    };
    for database in [sqlite(), postgres()] {
        let start = |worker| std::thread::spawn(work(&database.url, worker));
        let workers: Vec<_> = (0..4).map(start).collect();
        let won: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert_eq!(won, 1, "{}", database.url);
        assert_eq!(database.open().list(&me, true).unwrap().len(), 21);
    }
}

/// S329: what is no database, or of a newer version, is refused and stays as it is.
#[test]
fn what_is_no_database_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notes.txt");
    std::fs::write(&file, "notes, not a database\n".repeat(100)).unwrap();
    let refused = Pools::open(&file).unwrap_err().to_string();
    assert!(refused.contains("notes.txt") && refused.contains("not a database of pools"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "notes, not a database\n".repeat(100));
    let missing = Pools::open(&dir.path().join("none/p.sqlite")).unwrap_err().to_string();
    assert!(missing.contains("--db"), "{missing}");
    let newer = dir.path().join("newer.sqlite");
    drop(Pools::open(&newer).unwrap());
    let mut bytes = std::fs::read(&newer).unwrap();
    // The version is at byte 60 of a database of SQLite.
    bytes[63] = 99;
    std::fs::write(&newer, bytes).unwrap();
    let refused = Pools::open(&newer).unwrap_err().to_string();
    assert!(refused.contains("version 99") && refused.contains("newer bivouac"), "{refused}");
}

/// S329: on a full disk a change is refused and nothing of it is there.
#[test]
fn a_full_disk_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=200k", "pools", at]).output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        eprintln!("skipped: only root can mount a small disk");
        return;
    }
    let full = || {
        let mut pools = Pools::open(&dir.path().join("p.sqlite")).unwrap();
        let me = Caller { uid: 1000, gids: vec![] };
        let change = ChangeOrigin { who: &me, now_s: 0, request: None };
        let mut made = 0;
        let refused = loop {
            match pools.create(&change, &new(&format!("p{made}")), |_| panic!("nothing is to be made")) {
                Ok(_) => made += 1,
                Err(refused) => break refused.to_string(),
            }
        };
        let meant: PoolRef = format!("p{made}").parse().unwrap();
        let is_absent = pools.find(&me, &meant).is_err();
        (made, refused, is_absent, pools.list(&me, true).unwrap().len())
    };
    let ended = std::panic::catch_unwind(full);
    let unmounted = std::process::Command::new("umount").arg(at).status().unwrap();
    let (made, refused, is_absent, listed) = ended.unwrap();
    assert!(unmounted.success() && made > 3 && is_absent && listed == made, "{made} {listed} {refused}");
    assert!(refused.contains("full") && refused.contains("nothing was changed"), "{refused}");
}

/// S431: a database of the release before gets what it lacks, and keeps what it has.
#[test]
fn an_older_database_gets_slots() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.sqlite");
    let older = rusqlite::Connection::open(&file).unwrap();
    older.execute_batch(include_str!("version-1.sql")).unwrap();
    drop(older);
    let mut pools = Pools::open(&file).unwrap();
    let me = Caller { uid: 1000, gids: vec![] };
    assert_eq!(pools.list(&me, true).unwrap()[0].name, "kept");
    let limits = StorageLimits { bandwidth: 1000, user_percent: 50, file_bytes: 100 };
    pools.set_storage(&ChangeOrigin { who: &me, now_s: 0, request: None }, &limits).unwrap();
    assert_eq!(pools.storage().unwrap(), limits);
    assert_eq!(pools.slots(&me, 0, true).unwrap(), []);
}

//! Several who change one database, a full disk, and files that are no databases.

use bivouac_pool::{Change, New, PoolRef, Pools, Who};

fn new(name: &str) -> New {
    New {
        name: name.parse().unwrap(),
        gid: 1,
        title: "x".repeat(4000),
        days: Some(1),
        source: Some(b"/data".to_vec()),
        bytes: None,
        files: None,
    }
}

/// S329: of several who make a pool of one name at the same time one does; all changes of different pools are done.
#[test]
fn several_change_one_database() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.sqlite");
    let me = Who { uid: 1000, gids: vec![] };
    let work = |worker: usize| {
        let (file, me) = (file.clone(), me.clone());
        move || {
            // Each opens a database that another may be making.
            let mut pools = Pools::open(&file).unwrap();
            let change = Change { who: &me, now_s: 0, request: None };
            let none = |_| panic!("nothing is to be made");
            for round in 0..5 {
                pools.create(&change, &new(&format!("p{worker}-{round}")), none).unwrap();
            }
            usize::from(pools.create(&change, &new("one"), none).is_ok())
        }
    };
    let workers: Vec<_> = (0..4).map(|worker| std::thread::spawn(work(worker))).collect();
    let won: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    assert_eq!(won, 1);
    assert_eq!(Pools::open(&file).unwrap().list(&me, true).unwrap().len(), 21);
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
        let me = Who { uid: 1000, gids: vec![] };
        let change = Change { who: &me, now_s: 0, request: None };
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

//! What only a server can do: S436.

use bivouac_pool::{Caller, ChangeOrigin, Location, NewPool, Pools};

use crate::server::Server;

fn me() -> Caller {
    Caller { uid: 1000, gids: vec![] }
}

fn new(name: &str) -> NewPool {
    NewPool {
        name: name.parse().unwrap(),
        gid: 1,
        title: String::new(),
        days: Some(1),
        source: Some(b"/data".to_vec()),
        bytes: None,
        files: None,
        reminder: None,
    }
}

fn make(pools: &mut Pools, name: &str) -> Result<i64, String> {
    let me = me();
    let change = ChangeOrigin { who: &me, now_s: 0, request: Some(name) };
    let made = pools.create(&change, &new(name), |_| panic!("nothing is to be made"));
    made.map(|pool| pool.id).map_err(|error| error.to_string())
}

/// S436: what was acknowledged is there when a server was killed; what was not can be asked for again, and is done
/// once. The same command goes on with the server that comes back.
#[test]
fn a_killed_server_keeps_what_it_acknowledged() {
    let Some(mut server) = Server::start() else { return };
    server.make("site");
    let mut pools = Pools::at(&server.url("site")).unwrap();
    let mut made = 0;
    for round in 0..3 {
        let (acknowledged, acknowledges) = std::sync::mpsc::channel();
        let before = made;
        std::thread::scope(|scope| {
            let working = &mut pools;
            let worker = scope.spawn(move || {
                for number in before.. {
                    match make(working, &format!("p{number}")) {
                        Ok(_) => _ = acknowledged.send(()),
                        Err(error) => return (number, error),
                    }
                }
                unreachable!("it is killed")
            });
            for _ in 0..5 {
                acknowledges.recv().unwrap();
            }
            server.kill();
            let error;
            (made, error) = worker.join().unwrap();
            assert!(error.contains("database site of ") && error.contains("--request"), "{error}");
        });
        server.start_again();
        let there = Pools::at(&server.url("site")).unwrap().list(&me(), true).unwrap().len();
        assert!(there == made || there == made + 1, "round {round}: {made} acknowledged, {there} there");
        let again = (make(&mut pools, &format!("p{made}")), make(&mut pools, &format!("p{made}")));
        assert!(again.0.is_ok() && again.0 == again.1, "{again:?}");
        made += 1;
        assert_eq!(pools.list(&me(), true).unwrap().len(), made);
    }
}

/// S436: a connection that its server ended between two changes is made anew, without a word.
#[test]
fn a_connection_that_was_ended_is_made_anew() {
    let Some(server) = Server::start() else { return };
    server.make("site");
    let mut pools = Pools::at(&server.url("site")).unwrap();
    let mut other = server.client("postgres");
    for number in 1..=3 {
        assert_eq!(make(&mut pools, &format!("p{number}")), Ok(number));
        let ended = other
            .query(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = 'site'",
                &[],
            )
            .unwrap();
        assert!(ended.len() == 1 && ended[0].get::<_, bool>(0), "{ended:?}");
    }
    assert_eq!(pools.list(&me(), true).unwrap().len(), 3);
}

/// S436: tables of something else, and of a newer version, are refused and left as they are; rights are the server's.
#[test]
fn what_is_not_for_pools_is_left_alone() {
    let Some(server) = Server::start() else { return };
    for name in ["theirs", "newer", "ours"] {
        server.make(name);
    }
    let refused = |name: &str, url: &str, parts: &[&str]| {
        let said = Pools::at(url).unwrap_err().to_string();
        assert!(parts.iter().all(|part| said.contains(part)), "{name}: {said}");
    };
    let mut theirs = server.client("theirs");
    theirs.batch_execute("CREATE TABLE pool (water BIGINT); INSERT INTO pool VALUES (7)").unwrap();
    refused("theirs", &server.url("theirs"), &["already exists", "tables of something else"]);
    let kept: i64 = theirs.query_one("SELECT water FROM pool", &[]).unwrap().get(0);
    assert_eq!(kept, 7);
    assert!(theirs.query("SELECT 1 FROM pg_class WHERE relname = 'event'", &[]).unwrap().is_empty());

    drop(Pools::at(&server.url("newer")).unwrap());
    server.client("newer").batch_execute("UPDATE bivouac_version SET version = 99").unwrap();
    refused("newer", &server.url("newer"), &["version 99", "newer bivouac"]);
    refused("missing", &server.url("missing"), &["does not exist", "createdb"]);
    refused(
        "no server",
        "postgres://me:secret@%2Fnowhere/site",
        &["database site of /nowhere", "server runs"],
    );
    for wrong in
        ["postgres://me:secret@h:port/site", "postgres://me:secret@h/site?no=1", "mysql://me:secret@h/x"]
    {
        let said = Pools::at(wrong).unwrap_err().to_string();
        assert!(said.contains("--db") && !said.contains("secret"), "{said}");
    }

    // Its owner makes the tables and gives others what they need.
    let mut pools = Pools::at(&server.url("ours")).unwrap();
    assert!(pools.is_ruled_by_role().unwrap());
    server.client("ours").batch_execute("CREATE ROLE guest LOGIN").unwrap();
    let guest = server.url("ours").replace("tester@", "guest@");
    refused("guest", &guest, &["permission denied", "grant you its tables"]);
    let grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO guest";
    server.client("ours").batch_execute(grant).unwrap();
    let mut of_guest = Pools::at(&guest).unwrap();
    assert!(!of_guest.is_ruled_by_role().unwrap());
    make(&mut of_guest, "mesh").unwrap();
    assert_eq!(pools.list(&me(), false).unwrap()[0].name, "mesh");
    make(&mut pools, "more").unwrap();
}

/// S431, S436: a database of the release before gets what it lacks from its owner's command, once, and keeps what it
/// has.
#[test]
fn an_older_database_at_a_server_gets_what_it_lacks() {
    let Some(server) = Server::start() else { return };
    server.make("site");
    make(&mut Pools::at(&server.url("site")).unwrap(), "kept").unwrap();
    let older = "DROP TABLE pool_version; UPDATE bivouac_version SET version = 3;
        ALTER TABLE pool DROP COLUMN remind_days, DROP COLUMN mail, DROP COLUMN reminded_s, DROP COLUMN reminding_s,
        DROP COLUMN location, DROP COLUMN archive, DROP COLUMN archive_digest, DROP COLUMN archived_s;
        CREATE ROLE guest LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO guest;
        ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO guest";
    server.client("site").batch_execute(older).unwrap();
    let guest = server.url("site").replace("tester@", "guest@");
    let refused = Pools::at(&guest).unwrap_err().to_string();
    assert!(refused.contains("permission denied") && refused.contains("its owner"), "{refused}");
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| Pools::at(&server.url("site")).unwrap())));
    });
    let mut pools = Pools::at(&guest).unwrap();
    let kept = pools.list(&me(), false).unwrap();
    assert_eq!((kept.len(), kept[0].name.as_str(), kept[0].location), (1, "kept", Location::Site));
    assert_eq!(pools.versions(&kept[0]).unwrap(), []);
    assert_eq!(make(&mut pools, "more"), Ok(2));
}

/// S436: who stands still in a change does not keep others waiting for ever: it is undone, and says so.
#[test]
fn a_change_that_stands_still_is_undone() {
    let Some(server) = Server::start() else { return };
    server.make("site");
    // Sooner than in use, for the test.
    let hasty = server.url("site") + "?options=-c%20idle_in_transaction_session_timeout%3D100";
    let (stands, others) = std::sync::mpsc::channel();
    let (goes_on, told) = std::sync::mpsc::channel();
    let stopped = std::thread::spawn(move || {
        loop {
            // On a busy machine it may be undone before it stands still.
            let Ok(mut pools) = Pools::at(&hasty) else { continue };
            let (me, mut is_begun) = (me(), false);
            let change = ChangeOrigin { who: &me, now_s: 0, request: None };
            let made = pools.create(&change, &NewPool { source: None, ..new("stopped") }, |id| {
                is_begun = true;
                stands.send(()).unwrap();
                told.recv().unwrap();
                Ok((b"/made".to_vec(), id.unsigned_abs()))
            });
            let error = made.unwrap_err().to_string();
            if is_begun {
                return error;
            }
        }
    });
    others.recv().unwrap();
    let mut pools = Pools::at(&server.url("site")).unwrap();
    assert_eq!(make(&mut pools, "mesh"), Ok(1));
    goes_on.send(()).unwrap();
    let error = stopped.join().unwrap();
    assert!(error.contains("stopped for too long") || error.contains("--request"), "{error}");
    let names: Vec<String> = pools.list(&me(), true).unwrap().into_iter().map(|pool| pool.name).collect();
    assert_eq!(names, ["mesh"]);
}

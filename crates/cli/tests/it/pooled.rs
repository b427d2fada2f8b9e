//! `bivouac pool`, with a real database, real directories and kills.

use crate::database_server::Server;
use crate::harness::{Place, can_mount};
use serde_json::Value;

/// S335: a pool of data that is there: found, shown, its path printed; gone data is said.
#[test]
fn a_pool_of_data_that_is_there() {
    let place = Place::with_pools();
    let data = place.path().join("odd 'name é");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("a"), "12345").unwrap();
    let from = data.to_str().unwrap();
    place.ok(&["pool", "create", "mesh", "--from", from, "--title", "wing\u{1b}[31m", "--days", "3"]);
    assert_eq!(place.ok(&["pool", "path", "mesh"]).trim_end(), from);
    assert!(place.ok(&["pool", "find", "WING"]).contains("mesh  live"));
    let shown: Value = serde_json::from_str(&place.ok(&["pool", "show", "mesh", "--json"])).unwrap();
    assert_eq!(
        (&shown["bytes"], &shown["files"], &shown["state_now"]),
        (&5.into(), &1.into(), &"live".into())
    );
    assert!(!place.ok(&["pool", "list"]).contains('\u{1b}'));
    std::fs::remove_dir_all(&data).unwrap();
    place.run(&["pool", "path", "mesh"]).fails(1, &["is gone; put it back"]);
    place.ok(&["pool", "release", "mesh"]);
    assert!(place.ok(&["pool", "history", "mesh"]).contains("release"));
    place.run(&["pool", "path", "mesh"]).tells(&["bivouac pool restore mesh"]);
}

/// S335: killed at any time, `create` has made the pool with its directory, or it makes it when it is asked again.
#[test]
fn create_is_whole_whenever_it_is_killed() {
    let place = Place::with_pools();
    let base = place.path().join("base");
    std::fs::create_dir(&base).unwrap();
    let arguments = ["pool", "create", "out", "--base", base.to_str().unwrap(), "--request", "once"];
    for round in 0..20_u32 {
        let mut child = place.command(&arguments).spawn().unwrap();
        // A different point of its life each time: it is busy for a few milliseconds.
        (0..round * 40_000).for_each(|step| _ = std::hint::black_box(step));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    place.ok(&arguments);
    let path = place.ok(&["pool", "path", "out"]);
    let there: Vec<_> = std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(there, [std::path::PathBuf::from(path.trim_end())]);
    let all: Value = serde_json::from_str(&place.ok(&["pool", "list", "--json"])).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 1);
}

/// S336: a formation has pools under their names; what is written in one goes to its source, and it counts as attached
/// as long as the formation is there.
#[test]
fn a_formation_has_pools() {
    if !can_mount() {
        return;
    }
    let place = Place::with_pools();
    for name in ["mesh", "out"] {
        let dir = place.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("a"), name).unwrap();
        place.ok(&["pool", "create", name, "--from", dir.to_str().unwrap()]);
    }
    let name = Place::unique_name();
    place.ok(&["up", "--name", &name, "--pool", "mesh", "--pool", "out:rw"]);
    let path = place.ok(&["pool", "path", "out"]);
    let inside = std::path::Path::new(path.trim_end());
    assert!(inside.ends_with("pools/out") && !inside.starts_with(place.path().join("out")), "{path}");
    assert_eq!(std::fs::read_to_string(inside.join("a")).unwrap(), "out");
    std::fs::write(inside.join("result"), "42").unwrap();
    place.run(&["pool", "release", "out"]).fails(1, &["is attached to formation"]);
    place.ok(&["flush", inside.to_str().unwrap()]);
    // Nothing gets into the one that is only read, whoever asks.
    let read_only = inside.with_file_name("mesh");
    std::fs::write(read_only.join("a"), "changed").unwrap();
    std::fs::write(read_only.join("b"), "new").unwrap();
    std::fs::create_dir(read_only.join("d")).unwrap();
    let flushed = place.run(&["flush", read_only.to_str().unwrap()]);
    assert!(flushed.code != 0 && flushed.err.contains("only read"), "{}{}", flushed.out, flushed.err);
    let down = place.run(&["down", "--name", &name, "--yes"]);
    assert!(
        down.code != 0 && down.err.contains("only read") && down.err.contains("--discard"),
        "{}",
        down.err
    );
    assert_eq!(std::fs::read_to_string(read_only.join("b")).unwrap(), "new");
    place.ok(&["down", "--name", &name, "--discard"]);
    let there: Vec<_> = std::fs::read_dir(place.path().join("mesh")).unwrap().collect();
    assert_eq!(there.len(), 1);
    assert_eq!(std::fs::read_to_string(place.path().join("mesh/a")).unwrap(), "mesh");
    assert_eq!(std::fs::read_to_string(place.path().join("out/result")).unwrap(), "42");
    place.ok(&["pool", "release", "out"]);
    place.run(&["up", "--name", &name, "--pool", "out"]).fails(1, &["is released"]);
}

fn private(dir: &std::path::Path) {
    std::fs::create_dir(dir).unwrap();
    std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
}

/// S317: what a formation has stays attached for a command that cannot see it, as from a job with a `/tmp` of its own, until somebody
/// who knows says otherwise.
#[test]
fn a_formation_that_cannot_be_seen_is_not_taken_for_dead() {
    if !can_mount() {
        return;
    }
    let mut place = Place::with_pools();
    let (data, run, away) = (place.path().join("data"), place.path().join("run"), place.path().join("away"));
    private(&run);
    place.set("XDG_RUNTIME_DIR", run.to_str().unwrap());
    std::fs::create_dir(&data).unwrap();
    place.ok(&["pool", "create", "out", "--from", data.to_str().unwrap()]);
    let name = Place::unique_name();
    place.ok(&["up", "--name", &name, "--pool", "out:rw", "--no-mount"]);
    // The path of the runtime directory leads to another one, as in another namespace.
    std::fs::rename(&run, &away).unwrap();
    for with_formations in [false, true] {
        if with_formations {
            private(&run);
            place.ok(&["up", "--name", "another", "--no-mount"]);
        }
        let refused = place.run(&["pool", "release", "out"]);
        assert!(refused.err.contains("is attached to formation"), "{with_formations}: {}", refused.err);
    }
    place.ok(&["down", "--name", "another", "--yes"]);
    std::fs::remove_dir_all(&run).unwrap();
    std::fs::rename(&away, &run).unwrap();
    place.run(&["pool", "detach", "out"]).fails(1, &["take it down: bivouac down --name"]);
    std::fs::rename(&run, &away).unwrap();
    place.run(&["pool", "detach", "out", "--formation", "another"]).fails(1, &["no such formation has it"]);
    assert!(place.ok(&["pool", "detach", "out"]).contains("no longer attached to formation"));
    place.ok(&["pool", "release", "out"]);
    assert!(place.ok(&["pool", "list"]).contains("out#1  released"));
    std::fs::rename(&away, &run).unwrap();
    place.ok(&["down", "--name", &name, "--yes"]);
}

/// S319: whatever the database says, `expire` removes only a directory that was made for a pool of its caller.
#[test]
fn a_forged_removal_takes_nothing() {
    let place = Place::with_pools();
    let (base, mine) = (place.path().join("base"), place.path().join("thesis"));
    for dir in [&base, &mine] {
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join("data"), "content").unwrap();
    }
    place.ok(&["pool", "create", "out", "--base", base.to_str().unwrap()]);
    let made = std::path::PathBuf::from(place.ok(&["pool", "path", "out"]).trim_end());
    std::fs::write(made.join("result"), "42").unwrap();
    std::os::unix::fs::symlink(&mine, made.join("link")).unwrap();
    std::fs::create_dir_all(made.join("deep/er")).unwrap();
    let inode =
        |path: &std::path::Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
    let db = rusqlite::Connection::open(place.path().join("pools.sqlite")).unwrap();
    let aside = base.join("aside");
    std::os::unix::fs::symlink(&base, &aside).unwrap();
    let through_a_link = aside.join(made.file_name().unwrap());
    for path in [&mine, &through_a_link] {
        db.execute(
            "UPDATE pool SET state = 'removing', source = ?1, inode = ?2",
            rusqlite::params![path.to_str().unwrap().as_bytes(), inode(path).cast_signed()],
        )
        .unwrap();
        place.run(&["pool", "expire"]).fails(1, &[]).prints(&["nothing is removed"]);
    }
    assert_eq!(std::fs::read_to_string(made.join("result")).unwrap(), "42");
    db.execute("UPDATE pool SET source = ?1", [made.to_str().unwrap().as_bytes()]).unwrap();
    place.ok(&["pool", "expire"]);
    assert!(!made.exists());
    assert_eq!(std::fs::read_to_string(mine.join("data")).unwrap(), "content", "behind a link");
    assert_eq!(std::fs::read_to_string(base.join("data")).unwrap(), "content");
}

/// S436: what names no database is refused by exit code 2; what is said of a server has no password in it.
#[test]
fn what_names_no_database_is_refused() {
    let place = Place::new();
    for (url, code, says) in [
        ("mysql://me:secret@h/site", 2, "--db is no database of pools; name a file"),
        ("sqlite://", 2, "--db names no file"),
        ("postgres://me:secret@h:port/site", 2, "--db is no URL of a server"),
        ("postgres://me:secret@%2Fnowhere/site", 1, "database site of /nowhere: "),
    ] {
        let said = place.run(&["pool", "list", "--db", url]);
        assert!(said.code == code && said.err.contains(says), "{url}: {} {}", said.code, said.err);
        assert!(!said.err.contains("secret"), "{}", said.err);
    }
}

/// S439: what the environment says of servers counts, and what it says wrongly is refused.
#[test]
fn the_environment_says_how_servers_are_reached() {
    let mut place = Place::new();
    place.set("PGSSLMODE", "trusting");
    place
        .run(&["pool", "list", "--db", "postgres://db.example/site"])
        .fails(2, &["PGSSLMODE has an sslmode other than disable"]);
    let mut place = Place::new();
    place.set("PGSSLMODE", "verify-full");
    place
        .run(&["pool", "list", "--db", "postgres://db.example/site"])
        .fails(1, &[".postgresql/root.crt: is not there"]);
    let missing = place.path().join("no.pem");
    place.set("PGSSLROOTCERT", missing.to_str().unwrap());
    place.run(&["pool", "list", "--db", "postgres://db.example/site"]).fails(1, &["no.pem: "]);
}

/// S332: a clock that is not that of the database's server removes nothing.
#[test]
fn a_clock_that_is_not_the_servers_removes_nothing() {
    let Some(server) = Server::start() else { return };
    server.make("site");
    let url = server.url("site");
    let place = Place::with_pools_at(&url);
    let base = place.path().join("base");
    std::fs::create_dir(&base).unwrap();
    place.ok(&["pool", "create", "out", "--base", base.to_str().unwrap()]);
    place.ok(&["pool", "release", "out"]);
    let orders = "UPDATE rule SET value = 0 WHERE name = 'grace-days'; CREATE SCHEMA other; \
                  CREATE FUNCTION other.clock_timestamp() RETURNS timestamptz LANGUAGE sql \
                  AS $f$SELECT now() - interval '20 days'$f$";
    server.client("site").batch_execute(orders).unwrap();
    let behind = format!("{url}?options=-c%20search_path%3Dother%2Cpublic%2Cpg_catalog");
    for _ in 0..3 {
        place.run(&["pool", "expire", "--db", &behind]).fails(1, &["s ahead of that of database site"]);
    }
    assert_eq!(std::fs::read_dir(&base).unwrap().count(), 1);
    place.ok(&["pool", "expire"]);
    place.ok(&["pool", "expire"]);
    assert_eq!(std::fs::read_dir(&base).unwrap().count(), 0);
}

/// S335, S336, S436: pools at a server, with a formation in front.
#[test]
fn a_server_has_the_pools_of_a_site() {
    let Some(server) = Server::start() else { return };
    server.make("site");
    let place = Place::with_pools_at(&server.url("site"));
    let base = place.path().join("base");
    std::fs::create_dir(&base).unwrap();
    let (base, title) = (base.to_str().unwrap(), "wing 'n \"tail\" $1 ?1 é");
    let create = ["pool", "create", "out", "--base", base, "--title", title, "--request", "once"];
    place.ok(&create);
    place.ok(&create);
    assert!(place.ok(&["pool", "find", "$1 ?1"]).contains("out   live"));
    let shown: Value = serde_json::from_str(&place.ok(&["pool", "show", "out", "--json"])).unwrap();
    assert_eq!(shown["title"], title);
    let name = Place::unique_name();
    if can_mount() {
        place.ok(&["up", "--name", &name, "--pool", "out:rw"]);
        let path = place.ok(&["pool", "path", "out"]);
        std::fs::write(std::path::Path::new(path.trim_end()).join("result"), "42").unwrap();
        assert!(place.run(&["pool", "release", "out"]).err.contains("is attached to formation"));
        place.ok(&["down", "--name", &name, "--yes"]);
        let path = place.ok(&["pool", "path", "out"]);
        assert!(path.starts_with(base), "{path}");
        let result = std::path::Path::new(path.trim_end()).join("result");
        assert_eq!(std::fs::read_to_string(result).unwrap(), "42");
    }
    place.ok(&["pool", "release", "out"]);
    let days = "UPDATE rule SET value = 0 WHERE name = 'grace-days'";
    server.client("site").batch_execute(days).unwrap();
    place.ok(&["pool", "expire"]);
    place.ok(&["pool", "expire"]);
    assert_eq!(std::fs::read_dir(base).unwrap().count(), 0);
    assert!(place.ok(&["pool", "list", "--all"]).contains("removed"));
}

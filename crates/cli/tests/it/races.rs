//! Races between programs on two nodes, found while they run, and programs that are right.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{FlockOperation, XattrFlags, flock, setxattr};
use serde_json::Value;

use crate::harness::library::{library, open, read};
use crate::harness::{Camp, Said, wait_until};
use bivouac_types::Ino;

fn camp(arguments: &[&str]) -> Option<Camp> {
    Camp::start_each(&[&["--nodes", "2", "--stripe", "4k", "--detect-races"], arguments].concat())
}

fn races(camp: &Camp) -> (i32, Value) {
    let said = camp.run("races", &["--json"]);
    let value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    (said.code, value)
}

fn is_silent(camp: &Camp, weakest: &str) {
    let (code, found) = races(camp);
    assert_eq!((code, &found["weakest_contract"]), (0, &Value::from(weakest)), "{found:#}");
    assert_eq!(found["complete"], true, "{found:#}");
    let are_races = found["races"].as_array().unwrap().iter().any(|race| race["race"] == true);
    assert!(!are_races, "{found:#}");
    assert!(camp.run("races", &[]).out.starts_with("no races among "));
}

fn opened(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// A shell that has a file open as its descriptor 3, and does what it is told.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn with(path: &Path, rank: &str) -> Shell {
        let script = r#"exec 3<>"$1"; echo opened; while read -r line; do eval "$line"; echo done; done"#;
        let mut child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(path)
            .env("PMI_RANK", rank)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut shell = Shell { child, input, output: BufReader::new(output) };
        assert_eq!(shell.line(), "opened\n");
        shell
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn does(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
        assert_eq!(self.line(), "done\n", "{line}");
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

/// S770, S771, S772.
#[test]
fn writes_of_two_nodes_that_nothing_orders_are_found() {
    let Some(camp) = camp(&[]) else { return };
    std::fs::create_dir(camp.mount().join("dir")).unwrap();
    std::fs::write(camp.mount().join("dir/file"), "0123456789").unwrap();
    let mut shells = [0, 1].map(|at| Shell::with(&camp.mounts()[at].join("dir/file"), &at.to_string()));
    let pids = shells.each_ref().map(|shell| shell.child.id());
    shells[0].does("printf hello >&3");
    shells[1].does("printf hi >&3");
    shells.into_iter().for_each(Shell::end);
    let (code, found) = races(&camp);
    let [race] = found["races"].as_array().unwrap().as_slice() else { panic!("{found:#}") };
    assert_eq!((code, &found["complete"]), (1, &Value::from(true)), "{found:#}");
    assert_eq!((&race["path"], &race["race"]), (&Value::from("/dir/file"), &Value::from(true)));
    assert_eq!((&race["from"], &race["to"], &race["pairs"]), (&0.into(), &2.into(), &1.into()));
    for model in ["posix", "commit", "session", "mpi_io"] {
        assert_eq!(race["ordered_by"][model], false, "{model}");
    }
    // Both calls stay in a stripe, where they are atomic.
    assert_eq!(race["weakest_contract"], "coherent");
    let host = camp.status()["nodes"][0]["host"].clone();
    let mut sides = race["accesses"].as_array().unwrap().clone();
    sides.sort_by_key(|side| side["node"].as_u64());
    for (at, (side, len)) in sides.iter().zip([5, 2]).enumerate() {
        let expected = (&Value::from(at), &Value::from(pids[at]), &Value::from(at), &Value::from("sh"));
        assert_eq!((&side["node"], &side["pid"], &side["rank"], &side["program"]), expected, "{race:#}");
        assert_eq!((&side["write"], &side["from"], &side["to"]), (&true.into(), &0.into(), &len.into()));
        assert_eq!(side["host"], host);
        let (first, last) = (side["first_unix_ms"].as_u64().unwrap(), side["last_unix_ms"].as_u64().unwrap());
        assert!(found["since_unix_ms"].as_u64().unwrap() <= first && first <= last, "{found:#}");
    }
    let said = camp.run("races", &[]);
    assert!(
        said.out.starts_with("/dir/file: bytes 0 to 1: unordered; right under coherent\n"),
        "{}",
        said.out
    );
    assert!(said.out.contains(&format!("by process {} (sh, rank 1) on ", pids[1])), "{}", said.out);
    // Of a path.
    let below = |path: &str| camp.place().run(&["races", camp.mounts()[1].join(path).to_str().unwrap()]).code;
    std::fs::write(camp.mount().join("other"), "").unwrap();
    assert_eq!((below("dir"), below("dir/file"), below("other")), (1, 1, 0));
    camp.down();
}

/// S771: a read beside a write; calls over several stripes are whole under strict alone.
#[test]
fn what_is_torn_needs_the_strict_contract() {
    let Some(camp) = camp(&[]) else { return };
    std::fs::write(camp.mount().join("file"), [0; 64 << 10]).unwrap();
    let [one, other] = [0, 1].map(|at| opened(&camp.mounts()[at].join("file")));
    one.write_all_at(&[1; 32 << 10], 4096).unwrap();
    other.read_exact_at(&mut [0; 8192], 8192).unwrap();
    // Both are still open.
    let (code, found) = races(&camp);
    drop((one, other));
    let race = &found["races"][0];
    assert_eq!((code, &found["weakest_contract"]), (1, &Value::from("strict")), "{found:#}");
    assert_eq!((&race["from"], &race["to"]), (&8192.into(), &16384.into()), "{found:#}");
    camp.down();
}

/// S773: closes and opens, also of another file; O_TRUNC; a file that is made.
#[test]
fn close_and_open_order() {
    let Some(camp) = camp(&[]) else { return };
    let [one, other] = [0, 1].map(|at| camp.mounts()[at].clone());
    for round in 0..3 {
        std::fs::write(one.join("file"), vec![round; 10_000]).unwrap();
        assert_eq!(std::fs::read(other.join("file")).unwrap(), vec![round; 10_000]);
        std::fs::write(other.join("file"), vec![round + 10; 10_000]).unwrap();
        assert_eq!(std::fs::read(one.join("file")).unwrap(), vec![round + 10; 10_000]);
    }
    // Somebody else has it open all the time, and reads nothing.
    let _idle = opened(&one.join("file"));
    std::fs::write(one.join("file"), vec![7; 10_000]).unwrap();
    assert_eq!(std::fs::read(other.join("file")).unwrap(), vec![7; 10_000]);
    is_silent(&camp, "session");
    camp.down();
}

/// S774: what is synced and told by a name is ordered, and a reader that has the file open sees it under coherent
/// alone.
#[test]
fn a_sync_and_a_name_need_the_coherent_contract() {
    let Some(camp) = camp(&[]) else { return };
    let [one, other] = [0, 1].map(|at| camp.mounts()[at].clone());
    std::fs::write(one.join("file"), [0; 8192]).unwrap();
    let (writer, reader) = (opened(&one.join("file")), opened(&other.join("file")));
    writer.write_all_at(&[1; 8192], 0).unwrap();
    writer.sync_all().unwrap();
    std::fs::create_dir(one.join("flag")).unwrap();
    wait_until("the flag is there", || other.join("flag").exists());
    let mut bytes = [0; 8192];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [1; 8192]);
    is_silent(&camp, "coherent");
    let (_, found) = races(&camp);
    let by = &found["races"][0]["ordered_by"];
    assert_eq!((&by["posix"], &by["commit"]), (&true.into(), &true.into()), "{found:#}");
    assert_eq!((&by["session"], &by["mpi_io"]), (&false.into(), &false.into()), "{found:#}");
    let said = camp.run("races", &["--all"]);
    assert!(
        said.out.starts_with("/file: bytes 0 to 8191: ordered, but not by a close and an open; "),
        "{said:?}"
    );
    // Under the session contract the same is a race.
    drop((writer, reader));
    let (first, second) = (one.join("late"), other.join("late"));
    std::fs::write(&first, [0; 100]).unwrap();
    camp.place().ok(&["contract", "set", "session", first.to_str().unwrap()]);
    let (writer, reader) = (opened(&first), opened(&second));
    writer.write_all_at(&[1; 100], 0).unwrap();
    writer.sync_all().unwrap();
    std::fs::rename(one.join("flag"), one.join("flag2")).unwrap();
    wait_until("the flag has moved", || other.join("flag2").exists());
    reader.read_exact_at(&mut [0; 100], 0).unwrap();
    assert_eq!(races(&camp).0, 1);
    drop((writer, reader));
    camp.down();
}

/// S779: a barrier that programs tell of. VerifyIO's examples, between two nodes: a barrier alone, sync, barrier and
/// sync, and none.
#[test]
fn points_order_what_programs_order_themselves() {
    let Some(camp) = camp(&[]) else { return };
    let mounts = camp.mounts();
    let tell = |mount: &Path, text: String| {
        setxattr(mount, "user.bivouac.point", text.as_bytes(), XattrFlags::empty())
    };
    let barrier = |number: u32| {
        for word in ["reach", "pass"] {
            mounts.iter().for_each(|mount| tell(mount, format!("{word} {number}")).unwrap());
        }
    };
    let files = |name: &str| {
        std::fs::write(camp.mount().join(name), [0; 100]).unwrap();
        [0, 1].map(|at| opened(&mounts[at].join(name)))
    };
    let [writer, reader] = files("barrier");
    writer.write_all_at(&[1; 10], 0).unwrap();
    barrier(1);
    reader.read_exact_at(&mut [0; 10], 0).unwrap();
    let [synced, also] = files("sync");
    synced.write_all_at(&[1; 10], 0).unwrap();
    synced.sync_all().unwrap();
    barrier(2);
    also.sync_all().unwrap();
    also.read_exact_at(&mut [0; 10], 0).unwrap();
    let [one, other] = files("none");
    one.write_all_at(&[1; 10], 0).unwrap();
    other.write_all_at(&[1; 10], 0).unwrap();
    drop((writer, reader, synced, also, one, other));
    let (code, found) = races(&camp);
    let models = |path: &str| {
        let race = found["races"].as_array().unwrap().iter().find(|race| race["path"] == path).unwrap();
        ["posix", "commit", "session", "mpi_io"].map(|model| race["ordered_by"][model].as_bool().unwrap())
    };
    assert_eq!(code, 1, "{found:#}");
    assert_eq!(models("/barrier"), [true, false, false, false], "{found:#}");
    assert_eq!(models("/sync"), [true, true, false, true], "{found:#}");
    assert_eq!(models("/none"), [false; 4], "{found:#}");
    assert_eq!(tell(camp.mount(), "leave 7".into()), Err(rustix::io::Errno::INVAL));
    camp.down();
}

/// S773: locks of whole files and of ranges, and files that are locks.
#[test]
fn locks_order() {
    let Some(camp) = camp(&[]) else { return };
    std::fs::write(camp.mount().join("file"), [0; 8]).unwrap();
    let add = |mount: &Path, times: u64| {
        let file = opened(&mount.join("file"));
        for _ in 0..times {
            flock(&file, FlockOperation::LockExclusive).unwrap();
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0).unwrap();
            file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0).unwrap();
            flock(&file, FlockOperation::Unlock).unwrap();
        }
    };
    std::thread::scope(|scope| {
        camp.mounts().iter().for_each(|mount| _ = scope.spawn(|| add(mount, 50)));
    });
    assert_eq!(std::fs::read(camp.mount().join("file")).unwrap(), 100_u64.to_le_bytes());
    // A file that is made by one at a time.
    let append = |mount: &Path, times: usize| {
        let file = opened(&mount.join("file"));
        for at in 0..times {
            let lock = mount.join("lock");
            wait_until("the lock is free", || File::create_new(&lock).is_ok());
            file.write_all_at(&[at as u8; 16], 100).unwrap();
            std::fs::remove_file(&lock).unwrap();
        }
    };
    std::thread::scope(|scope| {
        camp.mounts().iter().for_each(|mount| _ = scope.spawn(|| append(mount, 20)));
    });
    is_silent(&camp, "coherent");
    camp.down();
}

/// S773: SQLite, whose processes lock, and a tree that is made on one node and used on the other.
#[test]
fn programs_that_are_right_are_silent() {
    let Some(camp) = camp(&[]) else { return };
    let [one, other] = [0, 1].map(|at| camp.mounts()[at].clone());
    let connect = |mount: &Path| {
        let connection = rusqlite::Connection::open(mount.join("data.sqlite")).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        connection
    };
    let count = |connection: &rusqlite::Connection| -> u32 {
        connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    };
    connect(&one).execute("CREATE TABLE t (who INTEGER, at INTEGER)", []).unwrap();
    // SQLite reads the header without a lock when it opens, and nothing orders that before the first write of the
    // other client but a lock in between.
    let connections = [connect(&one), connect(&other)];
    assert_eq!(connections.each_ref().map(count), [0, 0]);
    let insert = |who: u32, connection: rusqlite::Connection| {
        for at in 0..15 {
            connection.execute("INSERT INTO t VALUES (?1, ?2)", [who, at]).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for (who, connection) in (0..).zip(connections) {
            scope.spawn(move || insert(who, connection));
        }
    });
    assert_eq!(count(&connect(&one)), 30);
    let script = "set -e; cd \"$1\"; mkdir -p tree/a tree/b; for i in 1 2 3 4 5 6; do seq $i 2000 > tree/a/$i; sort -r tree/a/$i > \
                  tree/b/$i.tmp; mv tree/b/$i.tmp tree/b/$i; done; tar cf tree.tar tree; cd \"$2\"; mkdir new; tar xf \
                  tree.tar -C new; diff -r tree new/tree; cat new/tree/b/* | wc -l > count; cd \"$1\"; rm -r new; cat count";
    let ran = Command::new("sh").args(["-c", script, "sh"]).arg(&one).arg(&other).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    is_silent(&camp, "session");
    camp.down();
}

/// S775.
#[test]
fn programs_with_the_library_are_clients_of_their_own() {
    let Some(camp) = camp(&[]) else { return };
    std::fs::write(camp.mount().join("file"), [0; 100]).unwrap();
    let client = library(&camp.dir());
    let ino: Ino = client.resolve(b"file").unwrap().ino;
    open(&client, ino);
    let file = opened(&camp.mounts()[1].join("file"));
    file.write_all_at(&[1; 10], 50).unwrap();
    assert_eq!(read(&client, ino, 55, 10), [&[1; 5][..], &[0; 5]].concat());
    client.close(ino);
    client.leave();
    let (code, found) = races(&camp);
    let race = &found["races"][0];
    assert_eq!((code, &race["from"], &race["to"]), (1, &55.into(), &60.into()), "{found:#}");
    let of_library = race["accesses"].as_array().unwrap().iter().find(|side| side["node"].is_null()).unwrap();
    assert_eq!((&of_library["write"], &of_library["pid"]), (&false.into(), &std::process::id().into()));
    camp.down();
}

/// S776: a formation that detects no races sends no message for it, and says so.
#[test]
fn nothing_is_reported_where_nothing_is_detected() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    std::fs::write(camp.mount().join("file"), "content").unwrap();
    assert_eq!(std::fs::read(camp.mounts()[1].join("file")).unwrap(), b"content");
    let said = camp.run("races", &[]);
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    assert!(said.err.contains("detects no races: start the formation with --detect-races"), "{}", said.err);
    let reports =
        |node: &Value| node["operations"].as_array().unwrap().iter().any(|op| op["name"] == "ReportAccesses");
    assert!(!camp.status()["nodes"].as_array().unwrap().iter().any(reports));
    camp.down();
}

/// S777: what was found is lost with the daemon that found it, and the list says so; so are reports of a daemon's
/// mounts.
#[test]
fn a_list_after_a_kill_is_not_complete() {
    let Some(camp) = camp(&["--deaths-max", "99/1ms"]) else { return };
    std::fs::write(camp.mount().join("file"), [0; 100]).unwrap();
    is_silent(&camp, "session");
    camp.kill_node(1);
    std::fs::write(camp.mounts()[1].join("file"), [1; 100]).unwrap();

    camp.run("races", &[]).fails(2, &[]).prints(&["not complete: reports of clients were lost 1 time, and"]);
    camp.kill_node(0);
    camp.node_pid(0);
    let (code, found) = races(&camp);
    assert_eq!((code, &found["complete"]), (2, &Value::from(false)), "{found:#}");
    camp.run("races", &[]).prints(&["not complete: the daemon that detects races was started again at "]);
    // It goes on.
    let [one, other] = [0, 1].map(|at| opened(&camp.mounts()[at].join("file")));
    one.write_all_at(&[1; 10], 0).unwrap();
    other.write_all_at(&[1; 10], 5).unwrap();
    drop((one, other));
    assert_eq!(races(&camp).0, 1);
    camp.down();
}

/// S778.
#[test]
fn a_run_says_at_its_end_what_was_found() {
    if !crate::harness::can_mount() {
        return;
    }
    let place = crate::harness::Place::new();
    let Said { code, err, .. } =
        place.run(&["run", "--detect-races", "--", "sh", "-c", "echo x > $BIVOUAC/f; cat $BIVOUAC/f"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("bivouac: races:\nno races among 2 accesses\n"), "{err}");
}

//! WebDAV and S3, where what is moved, copied or removed is changed by somebody else at the same time.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::dav::{EXCLUSIVE, locked};
use crate::harness::{Camp, signal, wait_until};
use crate::http::{SERVED, Server, served};
use crate::http_attacked::by_s3;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn moved(server: &Server, from: &str, to: &str) -> u16 {
    server.status("MOVE", from, &[("Destination", to)], b"")
}

/// S641.
#[test]
fn nothing_is_moved_onto_itself_by_way_of_a_link() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    fs::create_dir_all(mount.join("d/sub")).unwrap();
    fs::write(mount.join("d/f"), b"kept").unwrap();
    fs::write(mount.join("d/sub/g"), b"kept").unwrap();
    std::os::unix::fs::symlink("d", mount.join("l")).unwrap();
    for method in ["MOVE", "COPY"] {
        for (from, to) in [("/l/f", "/d/f"), ("/d/f", "/l/f"), ("/l/sub", "/d/sub"), ("/d/sub", "/l/sub")] {
            assert_eq!(server.status(method, from, &[("Destination", to)], b""), 403, "{method} {from} {to}");
        }
    }
    assert_eq!(fs::read(mount.join("d/f")).unwrap(), b"kept");
    assert_eq!(fs::read(mount.join("d/sub/g")).unwrap(), b"kept");
    assert_eq!(names(&mount.join("d")), ["f", "sub"]);
    fs::hard_link(mount.join("d/f"), mount.join("d/two")).unwrap();
    assert_eq!(moved(&server, "/l/two", "/d/f"), 204, "two names of one file");
    assert_eq!(names(&mount.join("d")), ["f", "sub"]);
    camp.down();
}

/// S641: `a` goes over the directory `b` while something else comes to be `a`.
#[test]
fn what_comes_where_something_went_is_not_removed_with_what_was_replaced() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    for round in 0..150 {
        let text = format!("round {round}");
        for name in ["a", "b", "x"] {
            fs::create_dir(mount.join(name)).unwrap();
            fs::write(mount.join(name).join(name), &text).unwrap();
        }
        let (to_b, to_a) = thread::scope(|scope| {
            let to_b = scope.spawn(|| moved(&server, "/a", "/b"));
            let to_a = scope.spawn(|| moved(&server, "/x", "/a"));
            (to_b.join().unwrap(), to_a.join().unwrap())
        });
        assert!(matches!(to_a, 201 | 204), "{text}: {to_a}");
        // Where x replaced a first, it is x that went to b.
        let at = |name: &str| fs::read_to_string(mount.join(name)).is_ok_and(|read| read == text);
        assert!(at("a/x") || at("b/x"), "{text}: x is lost: {to_b} {to_a}");
        assert_eq!(to_b, 204, "{text}");
        assert!(at("b/a") || at("b/x"), "{text}: {to_a}");
        for name in names(mount) {
            fs::remove_dir_all(mount.join(name)).unwrap();
        }
    }
    camp.down();
}

/// S641: between partitions a move is a copy, and a file may be put again as long as that takes.
#[test]
fn what_is_put_while_it_moves_between_partitions_is_not_lost() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let part = mount.join("part");
    camp.place().run(&["partition", "create", part.to_str().unwrap(), "--stripe", "8k"]).succeeds();
    fs::write(part.join("still"), vec![5; 100_000]).unwrap();
    fs::create_dir_all(part.join("tree/in")).unwrap();
    fs::write(part.join("tree/in/f"), b"in it").unwrap();
    assert_eq!(moved(&server, "/part/still", "/still"), 201);
    assert_eq!(moved(&server, "/part/tree", "/tree"), 201);
    assert_eq!(fs::read(mount.join("still")).unwrap(), vec![5; 100_000]);
    assert_eq!(fs::read(mount.join("tree/in/f")).unwrap(), b"in it");
    assert_eq!(names(&part), Vec::<String>::new());

    for (dir, name) in [("", "f"), ("t/", "t/f")] {
        fs::create_dir_all(part.join(dir)).unwrap();
        fs::write(part.join(name), vec![1; 24_000_000]).unwrap();
        let (source, to) = (format!("/part/{name}"), format!("/{}", name.split('/').next().unwrap()));
        let from = format!("/part{to}");
        let is_over = AtomicBool::new(false);
        let (status, last) = thread::scope(|scope| {
            let putting = scope.spawn(|| {
                let mut last = None;
                for number in 0.. {
                    let text = format!("put {number}");
                    if matches!(server.status("PUT", &source, &[], text.as_bytes()), 201 | 204) {
                        last = Some(text);
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                last
            });
            let status = moved(&server, &from, &to);
            is_over.store(true, Ordering::Relaxed);
            (status, putting.join().unwrap())
        });
        let short = |path| fs::read_to_string(path).ok().filter(|read| read.len() < 100);
        let there = [part.join(name), mount.join(name)].map(short);
        match last {
            Some(last) => {
                assert!(
                    there.iter().flatten().any(|read| *read == last),
                    "{name}: {status}, {last}: {there:?}"
                );
            }
            // All had moved before anything was put.
            None => {
                let is_there = |path| fs::read(path).is_ok_and(|read| read == vec![1; 24_000_000]);
                assert!([part.join(name), mount.join(name)].into_iter().any(is_there), "{name}: {status}");
            }
        }
        let hidden = |dir: &Path| names(dir).iter().any(|name| name.starts_with(".bivouac-"));
        assert!(!hidden(mount) && !hidden(&part), "{name}: {status}: {:?} {:?}", names(mount), names(&part));
    }
    camp.down();
}

/// S642.
#[test]
fn a_tree_goes_though_others_remove_what_is_in_it() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    for round in 0..3 {
        let deep = mount.join("d/e");
        fs::create_dir_all(&deep).unwrap();
        for at in 0..1200 {
            fs::write(mount.join(format!("d/{at}")), b"").unwrap();
            fs::write(deep.join(format!("{at}")), b"").unwrap();
        }
        let status = thread::scope(|scope| {
            for dir in [mount.join("d"), deep.clone()] {
                scope.spawn(move || {
                    (0..1200).rev().for_each(|at| drop(fs::remove_file(dir.join(format!("{at}")))));
                });
            }
            server.status("DELETE", "/d/", &[], b"")
        });
        assert_eq!((status, mount.join("d").exists()), (204, false), "round {round}");
    }
    camp.down();
}

/// S305: `If-Match` holds for a DELETE of what is no directory, whatever depth it names.
#[test]
fn a_file_that_was_put_again_is_not_removed_by_its_old_tag() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    for round in 0..250 {
        assert_eq!(server.status("PUT", "/f", &[], b"first"), 201);
        let tag = server.ask("HEAD", "/f", &[], b"").header("etag").to_owned();
        let headers = [("If-Match", tag.as_str()), ("Depth", "infinity")];
        let (put, deleted) = thread::scope(|scope| {
            let put = scope.spawn(|| server.status("PUT", "/f", &[], b"second"));
            let deleted = scope.spawn(|| server.status("DELETE", "/f", &headers, b""));
            (put.join().unwrap(), deleted.join().unwrap())
        });
        assert!(matches!(put, 201 | 204) && matches!(deleted, 204 | 412), "round {round}: {put} {deleted}");
        assert_eq!(fs::read(mount.join("f")).unwrap(), b"second", "round {round}: {put} {deleted}");
        fs::remove_file(mount.join("f")).unwrap();
    }
    camp.down();
}

/// S640: whoever has a lock has it, also against what began before.
#[test]
fn locks_count_that_are_given_while_something_is_copied_or_put() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    fs::create_dir(mount.join("many")).unwrap();
    for at in 0..1500 {
        fs::write(mount.join(format!("many/{at}")), b"x").unwrap();
    }
    let is_locked_first = |to: &String| {
        let path = format!("/{to}");
        let headers = [("Destination", path.as_str())];
        let (locked, copied) = thread::scope(|scope| {
            let copying = scope.spawn(|| server.status("COPY", "/many", &headers, b""));
            wait_until("the copy has begun", || {
                copying.is_finished() || names(mount).iter().any(|name| name.starts_with(".bivouac-put-"))
            });
            (server.status("LOCK", &path, &[], EXCLUSIVE), copying.join().unwrap())
        });
        // Where nothing is, a lock makes a file; on a busy machine all may be copied before it comes.
        if locked == 201 {
            assert_eq!(copied, 423);
            return true;
        }
        assert_eq!((locked, copied), (200, 201));
        fs::remove_dir_all(mount.join(to)).unwrap();
        false
    };
    let copy = (0..20).map(|turn| format!("copy{turn}")).find(is_locked_first).expect("a lock comes first");
    assert_eq!(names(mount), [copy.as_str(), "many"], "what was copied is gone");
    assert!(mount.join(&copy).is_file());

    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: curl is not installed");
        camp.down();
        return;
    }
    assert_eq!(by_s3(&server, "PUT", "/bucket", "").0, 200);
    let body = camp.place().path().join("body");
    fs::write(&body, vec![b'x'; 600_000]).unwrap();
    let (id, _) = server.key.split_once('.').unwrap();
    let mut putting = Command::new("curl")
        .args(["-sS", "--aws-sigv4", "aws:amz:us-east-1:s3", "-w", "%{http_code}", "--limit-rate", "100k"])
        .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "-T", body.to_str().unwrap()])
        .args(["-o", "/dev/null", "-u", &format!("{id}:{}", server.key)])
        .arg(format!("http://{}/bucket/dir/key", server.address))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the upload has begun", || {
        assert!(putting.try_wait().unwrap().is_none(), "it is under way");
        mount.join("bucket/dir").exists()
    });
    // It stands still meanwhile, so that it does not end.
    signal(u64::from(putting.id()), Signal::STOP);
    locked(&server, "/bucket/dir/key", &[], EXCLUSIVE);
    assert!(putting.try_wait().unwrap().is_none(), "it is still under way");
    signal(u64::from(putting.id()), Signal::CONT);
    let said = putting.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "409");
    assert_eq!(fs::read(mount.join("bucket/dir/key")).unwrap(), b"");

    // Nor are directories made in one that is locked.
    fs::create_dir(mount.join("bucket/shut")).unwrap();
    locked(&server, "/bucket/shut", &[("Depth", "0")], EXCLUSIVE);
    for key in ["/bucket/shut/new/deeper/key", "/bucket/shut/new/deeper/"] {
        assert_eq!(by_s3(&server, "PUT", key, "").0, 409, "{key}");
    }
    assert_eq!(names(&mount.join("bucket/shut")), Vec::<String>::new());
    assert_eq!(by_s3(&server, "PUT", "/bucket/free/new/key", "").0, 200);
    camp.down();
}

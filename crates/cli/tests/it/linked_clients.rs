//! Each kind of client through a link: the preload, the library, HTTP, S3, `stage` and `get`; what is made under temporary
//! names on the way; and files that are put there again and again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::harness::library::{library, open};
use crate::harness::wait_until;
use crate::http::{SERVED, Server, served};
use crate::http_attacked::by_s3;
use crate::library as capi;
use crate::linked::{Linked, diff};
use crate::preload::programs::{self, Way};

const KEY: &[&str] = &["--path", "/data"];

fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 11 + at / 253 + seed * 17) as u8).collect()
}

/// A pair whose near side serves HTTP, linked.
fn served_pair() -> Option<(Linked, Server)> {
    let linked = Linked::start(SERVED, &[], KEY)?.added();
    let server = served(&linked.near);
    Some((linked, server))
}

fn assert_same(linked: &Linked) {
    assert_eq!(diff(&linked.here(""), &linked.there("")), "");
}

/// S130, S821: unchanged programs with the preload.
#[test]
fn the_preload_writes_and_reads_through_a_link() {
    let Some(linked) = Linked::start(&["--nodes", "2", "--stripe", "64k"], &[], KEY) else { return };
    let linked = linked.added();
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = programs::build("calls", dir.path()) else { return };
    for way in [Way::Usual, Way::AtOnce] {
        let (said, _) =
            programs::succeed(&programs::command(&program, way).arg(linked.here("")).output().unwrap());
        assert_eq!(said, "well\n", "{way:?}");
    }
    let bytes = content(1_000_000, 1);
    fs::write(linked.there("read"), &bytes).unwrap();
    fs::write(dir.path().join("written"), content(700_000, 2)).unwrap();
    let copy = |from: &Path, to: &Path| {
        let mut run = programs::command("cp", Way::AtOnce);
        programs::succeed(&run.arg(from).arg(to).output().unwrap());
    };
    wait_until("the name is here", || linked.here("read").exists());
    copy(&linked.here("read"), &dir.path().join("read"));
    assert!(fs::read(dir.path().join("read")).unwrap() == bytes);
    copy(&dir.path().join("written"), &linked.here("written"));
    assert!(fs::read(linked.there("written")).unwrap() == content(700_000, 2));
    assert_same(&linked);
    linked.end();
}

/// S792, S821: all of the C library's calls, and lists of pieces of a file of which nothing is here yet.
#[test]
fn the_library_writes_and_reads_through_a_link() {
    let Some(linked) = Linked::start(&["--nodes", "3", "--stripe", "16k"], &[], KEY) else { return };
    let bytes = content(3_000_000, 3);
    fs::write(linked.there("list-read"), &bytes).unwrap();
    let linked = linked.added();
    let dir = tempfile::tempdir().unwrap();
    let flags = capi::shared();
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["-DTOP=\"far/\""]).collect();
    if let Some(program) = capi::build("tests/calls.c", dir.path(), &flags) {
        fs::create_dir(linked.here("d")).unwrap();
        symlink("../list", linked.here("d/link")).unwrap();
        symlink("loop", linked.here("d/loop")).unwrap();
        symlink("/etc", linked.here("d/out")).unwrap();
        let mut run = capi::program(program);
        let said = capi::succeed(&run.arg(linked.near.dir()).arg(linked.near.mount()).output().unwrap());
        assert_eq!(said, "all as the header says\n");
        fs::remove_file(linked.here("d/loop")).unwrap();
    }
    let client = library(&linked.near.dir());
    let root = client.lookup(bivouac_types::Ino::ROOT, b"far").unwrap().ino;
    let ino = client.lookup(root, b"list-read").unwrap().ino;
    open(&client, ino);
    let mut pieces = vec![[0u8; 4096]; 500];
    let mut places: Vec<(u64, &mut [u8])> =
        pieces.iter_mut().enumerate().map(|(at, piece)| (at as u64 * 5_923, &mut piece[..])).collect();
    let read = client.read_list(ino, &mut places).unwrap();
    for (at, (piece, len)) in pieces.iter().zip(read).enumerate() {
        assert!(piece[..len] == bytes[at * 5_923..][..len] && len == 4096, "piece {at}: {len}");
    }
    let written = content(4096, 4);
    let places: Vec<(u64, &[u8])> = (0..300).map(|at| (at * 9_001, &written[..])).collect();
    client.write_list(ino, &places).unwrap();
    client.site.save_at_close(ino).unwrap();
    client.leave();
    let mut expected = bytes;
    for at in 0..300 {
        expected[at * 9_001..][..4096].copy_from_slice(&written);
    }
    assert!(fs::read(linked.there("list-read")).unwrap() == expected);
    assert_same(&linked);
    linked.end();
}

/// S821, with WebDAV: trees are copied and moved whole, also over others.
#[test]
fn http_serves_what_is_behind_a_link() {
    let Some((linked, server)) = served_pair() else { return };
    let status = |method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| {
        server.ask(method, path, headers, body).status
    };
    let bytes = content(700_000, 5);
    fs::write(linked.there("there"), &bytes).unwrap();
    wait_until("the name is here", || linked.here("there").exists());
    assert!(server.ask("GET", "/far/there", &[], b"").body == bytes);
    let part = server.ask("GET", "/far/there", &[("Range", "bytes=300000-300099")], b"");
    assert_eq!((part.status, part.body), (206, bytes[300_000..300_100].to_vec()));
    assert_eq!(status("PUT", "/far/put", &[], &bytes), 201);
    assert!(fs::read(linked.there("put")).unwrap() == bytes);
    for dir in ["/far/one", "/far/one/sub", "/far/one/empty"] {
        assert_eq!(status("MKCOL", dir, &[], b""), 201);
    }
    assert_eq!(status("PUT", "/far/one/f", &[], &content(200_000, 6)), 201);
    assert_eq!(status("PUT", "/far/one/sub/g", &[], b"below"), 201);
    let listed = server.ask("PROPFIND", "/far/one/", &[("Depth", "1")], b"").text();
    assert!(
        ["/far/one/f", "/far/one/sub/", "/far/one/empty/"].iter().all(|name| listed.contains(name)),
        "{listed}"
    );
    let to = |name: &str| format!("http://{}/far/{name}", server.address);
    let copied = |name: &str| {
        assert_eq!(fs::read(linked.there(name).join("sub/g")).unwrap(), b"below", "{name}");
        assert!(fs::read(linked.there(name).join("f")).unwrap() == content(200_000, 6), "{name}");
        assert!(linked.there(name).join("empty").is_dir(), "{name}");
    };
    for (method, from, name, expected) in [
        ("COPY", "/far/one", "two", 201),
        ("MOVE", "/far/one", "three", 201),
        ("COPY", "/far/two", "three", 204),
        ("MOVE", "/far/two", "three", 204),
        ("MOVE", "/far/put", "moved", 201),
    ] {
        let said = server.ask(method, from, &[("Destination", &to(name))], b"");
        assert_eq!(said.status, expected, "{method} {from} {name}: {}", said.text());
        if from.ends_with("put") {
            assert!(fs::read(linked.there(name)).unwrap() == bytes)
        } else {
            copied(name)
        }
    }
    wait_until("what was moved is there no more", || {
        ["one", "two", "put"].iter().all(|name| !linked.there(name).exists())
    });
    let parts = [("Content-Range", "bytes 0-5/11"), ("Content-Range", "bytes 6-10/11")];
    assert_eq!(status("PUT", "/far/parts?upload=e1", &parts[..1], b"hello,"), 308);
    assert_eq!(status("PUT", "/far/parts?upload=e1", &parts[1..], b"world"), 201);
    assert_eq!(fs::read(linked.there("parts")).unwrap(), b"hello,world");
    assert_eq!(status("DELETE", "/far/three/", &[], b""), 204);
    wait_until("what was deleted is there no more", || !linked.there("three").exists());
    assert_same(&linked);
    linked.end();
}

/// S821: objects, and uploads in parts, whose parts are no files of the far side.
#[test]
fn s3_serves_what_is_behind_a_link() {
    if Command::new("curl").arg("--version").output().is_err() {
        return println!("skipped: curl is not installed");
    }
    let Some((linked, server)) = served_pair() else { return };
    let s3 = |method: &str, path: &str, body: &str| {
        let (status, said) = by_s3(&server, method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {said}");
        said
    };
    s3("PUT", "/far/dir/one", "content of one");
    assert_eq!(fs::read(linked.there("dir/one")).unwrap(), b"content of one");
    fs::write(linked.there("dir/there"), "from there").unwrap();
    wait_until("the name is here", || linked.here("dir/there").exists());
    assert_eq!(s3("GET", "/far/dir/there", ""), "from there");
    let listed = s3("GET", "/far?list-type=2", "");
    assert!(listed.contains("<Key>dir/one</Key>") && listed.contains("<Key>dir/there</Key>"), "{listed}");
    let begun = s3("POST", "/far/dir/parts?uploads=", "");
    let id = begun.split("<UploadId>").nth(1).and_then(|rest| rest.split('<').next()).unwrap();
    let mut body = String::from("<CompleteMultipartUpload>");
    let first = linked.near.place().path().join("part");
    fs::write(&first, content(5 << 20, 9)).unwrap();
    for (part, content) in [(1, format!("@{}", first.display())), (2, "the end".to_owned())] {
        s3("PUT", &format!("/far/dir/parts?partNumber={part}&uploadId={id}"), &content);
        body += &format!("<Part><PartNumber>{part}</PartNumber></Part>");
    }
    assert!(linked.here(".bivouac-uploads").exists() && !linked.there(".bivouac-uploads").exists());
    s3("POST", &format!("/far/dir/parts?uploadId={id}"), &(body + "</CompleteMultipartUpload>"));
    assert!(fs::read(linked.there("dir/parts")).unwrap() == [&content(5 << 20, 9)[..], b"the end"].concat());
    s3("DELETE", "/far/dir/one", "");
    wait_until("it is there no more", || !linked.there("dir/one").exists());
    let flushed = linked.near.place().run(&["flush", linked.here("").to_str().unwrap()]);
    assert_eq!(flushed.code, 0, "{}", flushed.err);
    assert!(!linked.there(".bivouac-uploads").exists());
    linked.end();
}

/// S821: trees are staged into a link and out of it, and URLs fetched.
#[test]
fn trees_are_staged_and_urls_fetched_through_a_link() {
    let Some((linked, server)) = served_pair() else { return };
    let site = tempfile::tempdir().unwrap();
    let tree = site.path().join("tree");
    for number in 0..20 {
        let dir = tree.join(format!("d{}/e", number % 3));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(number.to_string()), content(number * 9_000, number)).unwrap();
    }
    fs::create_dir(tree.join("empty")).unwrap();
    symlink("d0", tree.join("link")).unwrap();
    let name = linked.near.name();
    let stage = |way: &str, from: &str, to: &str| {
        linked.near.place().run(&["stage", way, "--name", name, from, to]).succeeds();
    };
    stage("in", tree.to_str().unwrap(), "far/in");
    assert_eq!(diff(&tree, &linked.there("in")), "");
    // Once more, into what is there.
    fs::write(tree.join("d0/e/0"), "changed").unwrap();
    stage("in", tree.to_str().unwrap(), "far/in");
    assert_eq!(diff(&tree, &linked.there("in")), "");
    let file = tree.join("d1/e/1");
    stage("in", file.to_str().unwrap(), "far/file");
    assert!(fs::read(linked.there("file")).unwrap() == content(9_000, 1));
    fs::create_dir_all(linked.there("made/there")).unwrap();
    fs::write(linked.there("made/there/f"), content(300_000, 7)).unwrap();
    wait_until("the names are here", || linked.here("made/there/f").exists());
    let out = site.path().join("out");
    stage("out", "far/made", out.to_str().unwrap());
    assert_eq!(diff(&out, &linked.there("made")), "");

    let key = site.path().join("key");
    fs::write(&key, format!("{}\n", server.key)).unwrap();
    let url = format!("http://{}/far/made/there/f", server.address);
    for to in [site.path().join("got"), linked.here("got")] {
        let get = ["get", "--key-file", key.to_str().unwrap(), &url, to.to_str().unwrap()];
        linked.near.place().run(&get).succeeds();
        assert!(fs::read(&to).unwrap() == content(300_000, 7));
    }
    assert_same(&linked);
    linked.end();
}

/// S832: what has a temporary name, or is below one, goes when it gets another name, and is not missed before.
#[test]
fn temporary_names_stay_on_their_side() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    let linked = linked.added();
    let temporary = [".bivouac-tree", ".bivouac-tree/sub", ".tree.bivouac-0123456789ab"];
    temporary.iter().for_each(|dir| fs::create_dir(linked.here(dir)).unwrap());
    fs::write(linked.here(".bivouac-tree/sub/f"), content(200_000, 8)).unwrap();
    fs::write(linked.here(".f.bivouac-0123456789ab"), "a file").unwrap();
    fs::write(linked.here("g"), "another file").unwrap();
    let flush = || linked.near.place().run(&["flush", linked.here("").to_str().unwrap()]);
    assert_eq!((flush().code, fs::read_dir(linked.there("")).unwrap().count()), (0, 1), "{}", flush().err);
    // A file goes at once, a directory with the next flush.
    fs::rename(linked.here(".f.bivouac-0123456789ab"), linked.here("f")).unwrap();
    assert_eq!(fs::read(linked.there("f")).unwrap(), b"a file");
    fs::rename(linked.here(".bivouac-tree"), linked.here("tree")).unwrap();
    let said = flush();
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(fs::read(linked.there("tree/sub/f")).unwrap() == content(200_000, 8));
    // Nothing but what has a temporary name keeps the formation from its end.
    fs::write(linked.here(".tree.bivouac-0123456789ab/h"), "unfinished").unwrap();
    linked.end();
}

/// S263, S821: an exchange that is refused leaves both directories what they were: they go there by their names.
#[test]
fn a_refused_exchange_changes_nothing() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    let linked = linked.added();
    for number in 0..8 {
        let (new, old) = (linked.here(&format!(".bivouac-{number}")), linked.here(&format!("old{number}")));
        [&new, &old].iter().for_each(|dir| fs::create_dir(dir).unwrap());
        fs::write(old.join("f"), "old").unwrap();
        let refused = renameat_with(CWD, &new, CWD, &old, RenameFlags::EXCHANGE);
        assert_eq!(refused, Err(rustix::io::Errno::XDEV));
        fs::remove_dir(new).unwrap();
        fs::remove_dir_all(old).unwrap();
    }
    wait_until("they are gone there, too", || fs::read_dir(linked.there("")).unwrap().count() == 0);
    linked.end();
}

/// S510, S821: the name that a file got last is removed, and nothing is written to the file any more.
#[test]
fn a_hard_link_that_is_removed_goes_at_the_far_side() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    let linked = linked.added();
    for number in 0..4 {
        let [first, last] = ["first", "last"].map(|name| format!("{name}{number}"));
        fs::write(linked.here(&first), content(100_000, number)).unwrap();
        fs::hard_link(linked.here(&first), linked.here(&last)).unwrap();
        assert!(fs::read(linked.there(&last)).unwrap() == content(100_000, number));
        fs::remove_file(linked.here(&last)).unwrap();
        wait_until("it is there no more", || !linked.there(&last).exists());
        assert!(fs::read(linked.there(&first)).unwrap() == content(100_000, number));
    }
    assert_same(&linked);
    linked.end();
}

/// S821, S822: a listing that was under way while a file was put there is not taken for a change of the far side.
#[test]
fn own_writes_are_no_changes_of_the_far_side() {
    let Some(linked) = Linked::start(&["--nodes", "2"], &[], KEY) else { return };
    let linked = linked.added();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (linked, is_over) = (&linked, &is_over);
        let write = move |name: &str| {
            let (mut round, file) = (0, linked.here(name));
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                fs::write(&file, content(20_000 + round % 7, round)).unwrap();
            }
            assert!(fs::read(linked.there(name)).unwrap() == content(20_000 + round % 7, round), "{name}");
        };
        for name in ["a", "b", "c"] {
            scope.spawn(move || write(name));
        }
        // Each is seen by a listing that began after it was made.
        for name in ["first", "second"] {
            fs::write(linked.there(name), name).unwrap();
            wait_until("the name is here", || {
                // The others may be beside it in the same request.
                fs::read_dir(linked.here("")).unwrap().flatten().any(|entry| entry.file_name() == *name)
            });
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_same(&linked);
    linked.end();
}

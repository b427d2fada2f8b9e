//! Data sets that are published and fetched: real formations and servers, real catalogues, killed processes; and servers
//! that do not do what they should.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bivouac_objects::{ACCESS_KEY, SECRET_KEY};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{
    Camp, Place, Said, assert_contains, can_mount, events, is_alive, said, signal, text, wait_until,
    wait_within,
};

const SERVED: &[&str] = &["--nodes", "2", "--stripe", "64k", "--http", "0"];

fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 250 + seed * 13) as u8).collect()
}

/// A place whose commands remember what they have fetched in it alone.
fn place() -> Place {
    let mut place = Place::new();
    let cache = place.path().join("cache").display().to_string();
    place.set("XDG_CACHE_HOME", &cache);
    place.set("USER", "ada");
    place
}

fn camp(arguments: &[&str]) -> Option<Camp> {
    can_mount().then(|| Camp::start_in(place(), arguments))
}

/// A tree with a file of several pieces, a small one and an empty one.
fn tree(at: &Path, seed: usize) {
    fs::create_dir_all(at.join("d/ä b")).unwrap();
    fs::write(at.join("d/ä b/large"), content((5 << 20) + 7, seed)).unwrap();
    fs::write(at.join("small <ok>"), format!("small {seed}")).unwrap();
    fs::write(at.join("empty"), "").unwrap();
}

fn same(a: &Path, b: &Path) {
    for name in ["d/ä b/large", "small <ok>", "empty"] {
        assert!(fs::read(a.join(name)).unwrap() == fs::read(b.join(name)).unwrap(), "{name}");
    }
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!((names(a), names(&a.join("d/ä b"))), (names(b), names(&b.join("d/ä b"))), "and nothing else");
}

/// Publishes, and answers the entry's name.
fn publish(place: &Place, path: &Path, catalogue: &str, more: &[&str]) -> String {
    let all = ["publish", text(path), "--title", "Wing, fine mesh", "--to", catalogue];
    let said = place.run(&[&all, more].concat()).succeeds();
    let id = said.out.trim().to_owned();
    assert_eq!(said.out, format!("{id}\n"), "alone on its line");
    id
}

/// The last line of JSON.
fn ended(said: &Said) -> Value {
    events("get", &said.out).pop().unwrap_or_else(|| panic!("{}", said.err))
}

/// S560, S561, S562: from the formation, and when it is gone from site storage, by the entry alone.
#[test]
fn a_data_set_outlives_its_formation() {
    let Some(camp) = camp(SERVED) else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (source, catalogue) = (camp.mount().join("results"), at("catalogue"));
    tree(&source, 1);
    std::os::unix::fs::symlink("empty", source.join("link")).unwrap();
    tree(&at("site"), 1);
    fs::create_dir(&catalogue).unwrap();
    let site = at("site");
    let more = ["--words", "cfd", "--licence", "CC-BY-4.0", "--expires", "30d", "--site", text(&site)];
    let id = publish(camp.place(), &source, text(&catalogue), &more);
    fs::remove_file(source.join("link")).unwrap();

    let found = camp.place().run(&["find", "WING", "cfd", "--json", "--in", text(&catalogue)]);
    let found: Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!(
        (&found[0]["entry"], &found[0]["files"], &found[0]["licence"]),
        (&id.as_str().into(), &3.into(), &"CC-BY-4.0".into())
    );
    assert!(found[0]["who"].as_str().unwrap().starts_with("ada@"));
    assert!(camp.place().run(&["find", "boat", "--in", text(&catalogue)]).out.contains("nothing found"));

    // By all who have it, with a key that is gone afterwards.
    let got =
        camp.place().run(&["get", &id, text(&at("one")), "--in", text(&catalogue), "--json"]).succeeds();
    same(&source, &at("one"));
    let parts = ended(&got)["parts"].as_object().unwrap().clone();
    assert!(parts.len() == 2 && parts.keys().any(|holder| holder.starts_with("formation ")), "{parts:?}");
    assert_eq!(camp.run("key", &["list"]).out, "");

    // What the formation has by now is something else: it is named, and the others go on.
    let mut changed = content((5 << 20) + 7, 1);
    changed.iter_mut().for_each(|byte| *byte ^= 1);
    fs::write(source.join("d/ä b/large"), changed).unwrap();
    let got =
        camp.place().run(&["get", text(&catalogue.join(&id)), text(&at("two")), "--no-cache"]).succeeds();
    same(&at("site"), &at("two"));
    assert_contains(&got.err, &["left out: formation ", "wrong bytes of d/ä b/large"]);

    let (name, runtime) = (camp.name().to_owned(), camp.place().path().to_owned());
    let down = camp.run("down", &["--discard"]);
    assert_eq!(down.code, 0, "{} {name} {}", down.err, runtime.display());
    camp.place().run(&["get", text(&catalogue.join(&id)), text(&at("three")), "--no-cache"]).succeeds();
    same(&at("site"), &at("three"));

    // What was fetched before is the nearest holder, and the catalogue need not be there.
    fs::rename(at("site"), at("away")).unwrap();
    fs::rename(&catalogue, at("elsewhere")).unwrap();
    let got =
        camp.place().run(&["get", &id, text(&at("four")), "--in", text(&catalogue), "--json"]).succeeds();
    same(&at("three"), &at("four"));
    assert_eq!(ended(&got)["parts"].as_object().unwrap().keys().collect::<Vec<_>>(), ["fetched before"]);
    fs::rename(at("elsewhere"), &catalogue).unwrap();

    camp.place().run(&["unpublish", &id, "--in", text(&catalogue)]).succeeds();
    assert_eq!(fs::read_dir(&catalogue).unwrap().count(), 0);
    for command in ["unpublish", "get"] {
        camp.place().run(&[command, &id, "--in", text(&catalogue)]).fails(1, &["has no entry"]);
    }
}

/// S560: what changes while it is read is named, and there is no entry; nor is there one that nobody could fetch.
#[test]
fn what_cannot_be_had_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let (place, catalogue) = (place(), dir.path().join("catalogue"));
    fs::create_dir(&catalogue).unwrap();
    tree(&dir.path().join("a"), 1);
    tree(&dir.path().join("b"), 2);
    let path = |name: &str| dir.path().join(name);
    let all = |name: &str, more: &[&str]| {
        let path = path(name);
        let arguments = ["publish", text(&path), "--title", "x", "--to", text(&catalogue)];
        place.run(&[&arguments, more].concat())
    };
    let other = path("b");
    for (name, more, says) in [
        ("a", &["--site", text(&other)][..], "has other bytes"),
        ("a", &["--site", "/none"], "/none"),
        ("a", &["--site", "ftp://x/y"], "'ftp' is none of"),
        ("a", &["--site", "http://ada:secret@127.0.0.1:1/x"], "a password or a query"),
        ("a", &["--words", "a\nb"], "control characters"),
        ("none", &[], "no such file or directory (ENOENT)"),
        ("catalogue", &[], "has no files"),
    ] {
        let said = all(name, more);
        assert!(said.code != 0 && said.err.contains(says), "{}", said.err);
    }
    assert_eq!(fs::read_dir(&catalogue).unwrap().count(), 0);
    let Some(camp) = camp(&["--nodes", "1"]) else { return };
    fs::write(camp.mount().join("f"), "x").unwrap();
    let file = camp.mount().join("f");
    camp.place()
        .run(&["publish", text(&file), "--title", "x", "--to", text(&catalogue)])
        .fails(1, &["start the formation with --http"]);
    assert_eq!(fs::read_dir(&catalogue).unwrap().count(), 0);
    camp.down();
}

/// S561: time is over for who looks, and a file is published as a file.
#[test]
fn entries_expire() {
    let dir = tempfile::tempdir().unwrap();
    let (place, catalogue) = (place(), dir.path().join("catalogue"));
    fs::create_dir(&catalogue).unwrap();
    fs::write(dir.path().join("f"), "content").unwrap();
    let id = publish(&place, &dir.path().join("f"), text(&catalogue), &["--expires", "0s"]);
    let dst = dir.path().join("g");
    assert!(place.run(&["find", "--in", text(&catalogue)]).out.contains("nothing found"));
    assert!(place.run(&["find", "--expired", "--in", text(&catalogue)]).out.contains("expired"));
    place.run(&["get", &id, text(&dst), "--in", text(&catalogue)]).fails(1, &["ask ada@"]);
    let said = place.run(&["get", &id, text(&dst), "--in", text(&catalogue), "--expired"]);
    assert_eq!((said.code, fs::read(&dst).unwrap()), (0, b"content".to_vec()), "{}", said.err);
    // What is there and differs stays.
    fs::write(&dst, "mine").unwrap();
    place.run(&["get", &id, text(&dst), "--in", text(&catalogue), "--expired"]).fails(1, &["--force"]);
    assert_eq!(fs::read(&dst).unwrap(), b"mine");
}

/// S561, S562: buckets as catalogue and as site storage.
#[test]
fn buckets_have_entries_and_files() {
    let server = bivouac_objects::Server::start();
    let (mut place, dir) = (place(), tempfile::tempdir().unwrap());
    place.set("AWS_ACCESS_KEY_ID", ACCESS_KEY);
    place.set("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    place.set("AWS_ENDPOINT_URL_S3", &server.endpoint());
    let source = dir.path().join("results");
    tree(&source, 1);
    server.put("data/results/d/ä b/large", &fs::read(source.join("d/ä b/large")).unwrap(), &[]);
    server.put("data/results/small <ok>", b"small 1", &[]);
    server.put("data/results/empty", b"", &[]);
    let id = publish(&place, &source, "s3://bucket/all sets", &["--site", "s3://bucket/data/results"]);
    fs::rename(&source, dir.path().join("away")).unwrap();
    let found = place.run(&["find", "wing", "--in", "s3://bucket/all sets"]);
    assert!(found.out.contains(&id), "{}{}", found.out, found.err);
    let dst = dir.path().join("dst");
    place.run(&["get", &id, text(&dst), "--in", "s3://bucket/all sets"]).succeeds();
    same(&dir.path().join("away"), &dst);
    let entry = format!("s3://bucket/all sets/{id}");
    let again = dir.path().join("again");
    place.run(&["get", &entry, text(&again), "--no-cache"]).succeeds();
    same(&dst, &again);
    assert_eq!(place.run(&["unpublish", &id, "--in", "s3://bucket/all sets"]).code, 0);
    assert!(place.run(&["find", "--in", "s3://bucket/all sets"]).out.contains("nothing found"));
}

/// S561, S566: a web server as catalogue, here that of a formation; keys and links.
#[test]
fn web_servers_have_entries_and_links_end() {
    let Some(camp) = camp(SERVED) else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = camp.mount().join("results");
    tree(&source, 1);
    fs::create_dir(camp.mount().join("sets")).unwrap();
    let server = format!("https://{}", camp.status()["http"]["address"].as_str().unwrap());
    let catalogue = format!("{server}/sets");
    let id = publish(camp.place(), &source, &catalogue, &[]);
    assert!(camp.place().run(&["find", "wing", "--in", &catalogue]).out.contains(&id));
    let entry = format!("{catalogue}/{id}/");
    let dst = dir.path().join("dst");
    camp.place().run(&["get", &entry, text(&dst), "--no-cache"]).succeeds();
    same(&source, &dst);
    // A file by its URL, and by a link that anybody can use who knows the certificate.
    let file = dir.path().join("file");
    camp.place()
        .run(&["get", &format!("{server}/results/d/ä b/large"), text(&file), "--no-cache"])
        .succeeds();
    assert!(fs::read(&file).unwrap() == fs::read(source.join("d/ä b/large")).unwrap());
    let shared = source.join("d/ä b/large");
    let said = camp.place().run(&["share", text(&shared), "--expires", "1h"]).succeeds();
    let link = said.out.trim().to_owned();
    let fingerprint = said.err.split("SHA-256 ").nth(1).unwrap().split(')').next().unwrap();
    let (stranger, to) = (place(), dir.path().join("linked"));
    let got = stranger.run(&["get", &link, text(&to), "--fingerprint", fingerprint]).succeeds();
    assert!(fs::read(&to).unwrap() == fs::read(&file).unwrap());
    let secret = link.split(['.', '@']).nth(1).unwrap();
    assert!(!got.err.contains(secret), "{}", got.err);
    let wrong = fingerprint.replace('A', "B").replace('0', "1");
    let other = dir.path().join("other");
    let got = stranger.run(&["get", &link, text(&other), "--fingerprint", &wrong]);
    assert!(got.code == 1 && !got.err.contains(secret), "{}", got.err);
    let key = link.split("link:").nth(1).unwrap().split('.').next().unwrap().to_owned();
    assert_eq!(camp.place().run(&["key", "revoke", "--name", camp.name(), &key]).code, 0);
    let got = stranger.run(&["get", &link, text(&other), "--fingerprint", fingerprint]);
    assert!(got.code == 1 && got.err.contains("401") && !other.exists(), "{}", got.err);
    camp.place().run(&["unpublish", &id, "--in", &catalogue]).succeeds();
    assert_eq!(fs::read_dir(camp.mount().join("sets")).unwrap().count(), 0);
    camp.down();
}

/// Somebody else on this host, or on another one: without this user's formations and without what was fetched before.
fn stranger(camp: &Camp, arguments: &[&str], near: &str) -> Said {
    let elsewhere = camp.place().path().join("elsewhere");
    fs::create_dir_all(&elsewhere).unwrap();
    let mut command = camp.place().command(arguments);
    command.env("XDG_RUNTIME_DIR", &elsewhere).env("XDG_CACHE_HOME", elsewhere.join("cache"));
    said(&command.env("BIVOUAC_NEAR", near).output().unwrap())
}

/// S567: who is near by answers for entries while the catalogue does not, for what is true and for as long as it may.
#[test]
fn formations_near_by_answer_for_entries() {
    let Some(camp) = camp(crate::http::SERVED) else { return };
    let server = crate::http::served(&camp);
    let [site, catalogue, away] = ["site", "catalogue", "away"].map(|name| camp.place().path().join(name));
    let results = camp.mount().join("results");
    tree(&results, 1);
    tree(&site, 1);
    fs::create_dir(&catalogue).unwrap();
    let id = publish(camp.place(), &results, text(&catalogue), &["--site", text(&site)]);
    fs::rename(&catalogue, &away).unwrap();
    let from = |said: &Said| -> Value { serde_json::from_str(said.out.lines().next().unwrap()).unwrap() };
    // This user's formation, by whoever published it.
    let got = camp.place().path().join("got");
    let said = camp.place().run(&["get", &id, text(&got), "--in", text(&catalogue), "--json"]);
    assert_eq!(
        (said.code, &from(&said)["from"]),
        (0, &Value::from(format!("formation {}", camp.name()))),
        "{}",
        said.err
    );
    same(&results, &got);
    camp.place()
        .run(&["find", "wing", "--in", text(&catalogue)])
        .succeeds()
        .tells(&["near by"])
        .prints(&[&id]);
    let known = camp.place().run(&["find", "wing", "--known", "--in", text(&catalogue)]);
    assert!(known.code == 0 && known.out.contains(&id) && known.err.is_empty(), "{}", known.err);
    let other = text(&away).replace("away", "other");
    let none = camp.place().run(&["find", "--known", "--in", &other]);
    assert_eq!((none.code, none.out.as_str()), (0, "nothing found\n"));
    camp.place()
        .run(&["get", &id, text(&got), "--in", text(&catalogue), "--no-cache"])
        .fails(1, &["has no entry"]);
    // Somebody else with a key, by its server.
    let read = crate::http::key(&camp, &["--read-only"]);
    let near = format!("http://x:{read}@{}/", server.address);
    let copy = camp.place().path().join("copy");
    let said = stranger(&camp, &["get", &id, text(&copy), "--in", text(&catalogue), "--json"], &near);
    assert_eq!(
        (said.code, &from(&said)["from"]),
        (0, &Value::from(format!("http://{}", server.address))),
        "{}",
        said.err
    );
    same(&results, &copy);
    stranger(&camp, &["find", "mesh", "--known", "--in", text(&catalogue)], &near).succeeds().prints(&[&id]);
    // Who may ask, and what for.
    let query = format!("catalogue={}&id={id}", text(&catalogue).replace('/', "%2F"));
    let entry = format!("/.bivouac-published/entry.json?{query}");
    assert_eq!(server.status("GET", &entry, &[], b""), 200);
    assert_eq!(server.ask_as("BVKx.y", "GET", &entry, &[], b"").status, 401);
    let bound = crate::http::key(&camp, &["--path", "/results"]);
    assert_eq!(server.ask_as(&bound, "GET", &entry, &[], b"").status, 403);
    for method in ["PUT", "DELETE", "MKCOL", "POST"] {
        assert_eq!(server.status(method, &entry, &[], b"x"), 405, "{method}");
    }
    assert_eq!(server.status("GET", &entry, &[("Sec-Fetch-Site", "cross-site")], b""), 403);
    for (wrong, status) in [
        ("entry.json", 400),
        ("entry.json?catalogue=%2F", 400),
        ("entry.json?catalogue=%ff&id=x", 400),
        ("entry.json?catalogue=%2F&id=..%2F..%2Fresults", 404),
        ("entry.json?catalogue=%2F&id=%00", 404),
        (&format!("entry.json?catalogue=%2F&id={}", "x".repeat(5000)), 404),
        ("find.json", 400),
        ("", 400),
        ("other?catalogue=%2F", 404),
    ] {
        assert_eq!(
            server.status("GET", &format!("/.bivouac-published/{wrong}"), &[], b""),
            status,
            "{wrong}"
        );
    }
    // The metalink of a file has the places of what was published with the same content, for keys of the whole.
    let site_server = Odd::start(Box::new(|head, _| match range(head) {
        Some(_) => Some(part(b"small 1", head)),
        None => Some(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nsmall 1".to_vec()),
    }));
    let elsewhere = site_server.url("/copy");
    fs::create_dir(&other).unwrap();
    let _also = publish(camp.place(), &results.join("small <ok>"), &other, &["--site", &elsewhere]);
    let described = server.get("/results/small%20%3Cok%3E?metalink");
    let described = String::from_utf8(described).unwrap();
    assert!(described.contains(&format!(">{elsewhere}</url>")), "{described}");
    assert!(described.contains(&server.address) && !described.contains("file://"), "{described}");
    let less = server.ask_as(&bound, "GET", "/results/small%20%3Cok%3E?metalink", &[], b"").text();
    assert!(less.contains(&server.address) && !less.contains(&elsewhere), "{less}");
    fs::write(results.join("small <ok>"), "other").unwrap();
    let changed = String::from_utf8(server.get("/results/small%20%3Cok%3E?metalink")).unwrap();
    assert!(!changed.contains(&elsewhere), "{changed}");
    fs::write(results.join("small <ok>"), "small 1").unwrap();
    // What is damaged, changed or too old is not told.
    let kept =
        fs::read_dir(camp.mount().join(".bivouac-published")).unwrap().map(|entry| entry.unwrap().path());
    let kept = { kept }.find(|path| text(path).ends_with(&id)).unwrap();
    let good = fs::read(&kept).unwrap();
    let changed = String::from_utf8(good.clone()).unwrap().replace("file:///", "file:///x");
    for bad in [changed.as_bytes(), b"{", b"", good.get(..good.len() / 2).unwrap()] {
        fs::write(&kept, bad).unwrap();
        assert_eq!(server.status("GET", &entry, &[], b""), 404);
    }
    fs::write(&kept, &good).unwrap();
    assert_eq!(server.status("GET", &entry, &[], b""), 200);
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3601);
    fs::File::options().write(true).open(&kept).unwrap().set_modified(long_ago).unwrap();
    assert_eq!(server.status("GET", &entry, &[], b""), 404);
    // The catalogue is asked, and what it has is known anew; what it has not any more is forgotten.
    fs::rename(&away, &catalogue).unwrap();
    let elsewhere = camp.place().path().join("fresh");
    let mut command =
        camp.place().command(&["get", &id, text(&elsewhere), "--in", text(&catalogue), "--json"]);
    let said = crate::harness::said(&command.env("XDG_CACHE_HOME", &elsewhere).output().unwrap());
    assert_eq!((said.code, from(&said)["from"].as_str()), (0, Some(text(&catalogue))), "{}", said.err);
    assert_eq!(server.status("GET", &entry, &[], b""), 200);
    camp.place().run(&["unpublish", &id, "--in", text(&catalogue)]).succeeds();
    assert_eq!(server.status("GET", &entry, &[], b""), 404);
    // One that ends is told until then.
    let id = publish(camp.place(), &results, text(&catalogue), &["--expires", "2s"]);
    let query = format!("catalogue={}&id={id}", text(&catalogue).replace('/', "%2F"));
    let entry = format!("/.bivouac-published/entry.json?{query}");
    wait_until("its end", || server.status("GET", &entry, &[], b"") == 404);
    let known = camp.place().run(&["find", "--known", "--in", text(&catalogue)]);
    assert_eq!((known.code, known.out.as_str()), (0, "nothing found\n"), "{}", known.err);
}

/// S563: servers and daemons are killed while they are asked, and come back.
#[test]
fn a_download_outlives_kills() {
    let Some(camp) = camp(SERVED) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, dst) = (dir.path().join("catalogue"), dir.path().join("dst"));
    fs::create_dir(&catalogue).unwrap();
    let bytes = content(48 << 20, 3);
    fs::write(camp.mount().join("f"), &bytes).unwrap();
    let id = publish(camp.place(), &camp.mount().join("f"), text(&catalogue), &[]);
    let entry = catalogue.join(&id);
    let mut getting = camp
        .place()
        .command(&["get", text(&entry), text(&dst), "--no-cache", "--jobs", "2"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let server = camp.status()["http"]["pid"].as_u64().unwrap();
    signal(server, Signal::KILL);
    camp.kill_node(1);
    wait_until("the killed server is gone", || !is_alive(server));
    let mut said = String::new();
    BufReader::new(getting.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(getting.wait().unwrap().success(), "{said}");
    assert!(fs::read(&dst).unwrap() == bytes);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left beside it");
    camp.down();
}

/// A server that answers as it is told: the head of a request, and how many there were before.
struct Odd {
    address: String,
    asked: Arc<AtomicUsize>,
}

type Answer = dyn Fn(&str, usize) -> Option<Vec<u8>> + Send + Sync;

impl Odd {
    fn start(answer: Box<Answer>) -> Odd {
        Odd::begin(answer, false)
    }

    /// One that keeps connections open behind its answers.
    fn holding(answer: Box<Answer>) -> Odd {
        Odd::begin(answer, true)
    }

    fn begin(answer: Box<Answer>, holds: bool) -> Odd {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap().to_string(), Arc::new(AtomicUsize::new(0)));
        let (answer, counter) = (Arc::new(answer), Arc::clone(&asked));
        // Those who get no answer wait for one.
        let held = Arc::new(Mutex::new(Vec::new()));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, counter, held) = (Arc::clone(&answer), Arc::clone(&counter), Arc::clone(&held));
                std::thread::spawn(move || serve((stream, holds), &**answer, &counter, &held));
            }
        });
        Odd { address, asked }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn serve(
    (stream, holds): (TcpStream, bool),
    answer: &Answer,
    counter: &AtomicUsize,
    held: &Mutex<Vec<TcpStream>>,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if lines.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    match answer(&head, counter.fetch_add(1, Ordering::SeqCst)) {
        Some(bytes) => {
            let _who_asked_may_be_gone = (&stream).write_all(&bytes);
            if holds {
                // Whoever was promised more waits for it.
                held.lock().unwrap().push(stream);
            }
        }
        None => held.lock().unwrap().push(stream),
    }
}

/// The range that a request asks for.
fn range(head: &str) -> Option<(usize, usize)> {
    let line =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned))?;
    let (from, to) = line.split_once('-')?;
    Some((from.parse().ok()?, to.trim().parse::<usize>().ok()? + 1))
}

fn part(bytes: &[u8], head: &str) -> Vec<u8> {
    let (from, to) = range(head).unwrap();
    let begin = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        to - 1,
        bytes.len(),
        to - from
    );
    [begin.as_bytes(), &bytes[from..to]].concat()
}

/// A metalink of bytes at URLs.
fn metalink(dir: &Path, name: &str, bytes: &[u8], urls: &[String]) -> PathBuf {
    let hex = |bytes: &[u8]| bivouac_publish::Digest::of(bytes).hex();
    let pieces: String = bytes.chunks(1 << 20).map(|piece| format!("<hash>{}</hash>", hex(piece))).collect();
    let urls: String = urls.iter().map(|url| format!("<url>{url}</url>")).collect();
    let text = format!(
        "<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\"><file name=\"{name}\"><size>{}</size>\
         <hash type=\"sha-256\">{}</hash><pieces type=\"sha-256\" length=\"1048576\">{pieces}</pieces>{urls}</file></metalink>",
        bytes.len(),
        hex(bytes)
    );
    let path = dir.join("x.meta4");
    fs::write(&path, text).unwrap();
    path
}

/// S563: what came before a kill is not fetched again.
#[test]
fn a_killed_download_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (place, bytes) = (place(), Arc::new(content(8 << 20, 5)));
    let served = Arc::clone(&bytes);
    // Five pieces come; whoever asks for another waits, until the first process is dead.
    let server = Odd::start(Box::new(move |head, before| (before != 5).then(|| part(&served, head))));
    let path = metalink(dir.path(), "f", &bytes, &[server.url("/f")]);
    let dst = dir.path().join("dst");
    let arguments = ["get", text(&path), text(&dst), "--json", "--jobs", "1", "--no-cache"];
    let mut getting = place.command(&arguments).stdout(Stdio::null()).spawn().unwrap();
    wait_until("six pieces were asked for", || server.asked() == 6);
    getting.kill().unwrap();
    getting.wait().unwrap();
    assert!(!dst.exists());
    let again = place.run(&arguments).succeeds();
    assert!(fs::read(&dst).unwrap() == *bytes);
    assert_eq!((ended(&again)["bytes_moved"].as_u64(), server.asked()), (Some(3 << 20), 9));
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// A holder that stops in the middle of a piece keeps nobody who wants to leave; what came is not fetched again.
#[test]
fn who_waits_for_a_holder_that_hangs_can_leave_at_once_or_be_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (place, bytes) = (place(), Arc::new(content(8 << 20, 6)));
    let (served, lets_go) = (Arc::clone(&bytes), Arc::new(AtomicUsize::new(0)));
    let is_over = Arc::clone(&lets_go);
    // Three pieces come, of others the half.
    let server = Odd::holding(Box::new(move |head, before| {
        let whole = part(&served, head);
        let cut = before >= 3 && is_over.load(Ordering::SeqCst) == 0;
        Some(if cut { whole[..whole.len() / 2].to_vec() } else { whole })
    }));
    let dst = dir.path().join("dst");
    let path = metalink(dir.path(), "f", &bytes, &[server.url("/f")]);
    let arguments = ["get", text(&path), text(&dst), "--json", "--jobs", "1", "--no-cache"];
    for (how, asked) in [(Signal::INT, 4), (Signal::KILL, 5), (Signal::TERM, 6)] {
        let mut getting =
            place.command(&arguments).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        wait_until("half a piece has come", || server.asked() == asked);
        signal(u64::from(getting.id()), how);
        // The holder would be waited for for 30 s, and then asked again.
        let mut ended = None;
        wait_within(Duration::from_secs(15), "it has ended", || {
            ended = getting.try_wait().unwrap();
            ended.is_some()
        });
        let ended = ended.unwrap();
        if how != Signal::KILL {
            let mut said = String::new();
            std::io::Read::read_to_string(&mut getting.stderr.take().unwrap(), &mut said).unwrap();
            assert_eq!(ended.code(), Some(128 + how.as_raw()), "{said}");
            assert!(said.contains("the same command goes on"), "{said}");
        }
        assert!(!dst.exists());
    }
    lets_go.store(1, Ordering::SeqCst);
    let again = place.run(&arguments).succeeds();
    assert!(fs::read(&dst).unwrap() == *bytes);
    assert_eq!(ended(&again)["bytes_moved"].as_u64(), Some(5 << 20));
}

/// S565: servers and entries that mean harm.
#[test]
fn hostile_servers_and_entries_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let (place, bytes) = (place(), Arc::new(content(3 << 20, 5)));
    let served = Arc::clone(&bytes);
    let answer = move |head: &str, _| {
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let moved = |to: &str| {
            Some(
                format!(
                    "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                .into_bytes(),
            )
        };
        match path.as_str() {
            "/good" => Some(part(&served, head)),
            "/wrong" => Some(part(&vec![0; served.len()], head)),
            "/short" => Some(part(&served[1..], head)),
            "/file" => moved("file:///etc/passwd"),
            "/round" => moved("/round"),
            "/all" => Some(
                [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", served.len()).as_bytes(), &served]
                    .concat(),
            ),
            "/lies" => Some(b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\nConnection: close\r\n\r\n0123456789".to_vec()),
            "/noise" => Some(vec![0xff; 100]),
            _ => Some(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()),
        }
    };
    // Each bad one is a server of its own: the good one is left.
    let bad = ["/wrong", "/short", "/file", "/round", "/all", "/lies", "/none"];
    let odd = |path: &str| {
        let answer = answer.clone();
        (Odd::start(Box::new(answer)), path.to_owned())
    };
    let servers: Vec<(Odd, String)> = bad.iter().chain(&["/good"]).map(|path| odd(path)).collect();
    let urls: Vec<String> = servers.iter().map(|(server, path)| server.url(path)).collect();
    let path = metalink(dir.path(), "f", &bytes, &urls);
    let dst = dir.path().join("dst");
    let got = place.run(&["get", text(&path), text(&dst), "--no-cache"]).succeeds();
    assert!(fs::read(&dst).unwrap() == *bytes);
    assert!(got.err.contains("wrong bytes of dst") && got.err.contains("file:///etc/passwd"), "{}", got.err);

    // One alone gets nothing done, and says why.
    let noise = odd("/noise");
    for (server, path) in servers.iter().take(bad.len()).chain([&noise]) {
        let link = metalink(dir.path(), "f", &bytes, &[server.url(path)]);
        let out = dir.path().join("out");
        let got = place.run(&["get", text(&link), text(&out), "--no-cache"]);
        assert!(got.code == 1 && got.err.contains("nobody has it any more"), "{path}: {}", got.err);
        assert!(!out.exists());
    }
    // By its own URL, too.
    for path in ["/file", "/round", "/none"] {
        let got = place.run(&["get", &noise.0.url(path), text(&dir.path().join("out"))]);
        assert!(got.code == 1 && !dir.path().join("out").exists(), "{path}: {}", got.err);
    }

    // Names and links that lead out of the target.
    let (target, outside) = (dir.path().join("target"), dir.path().join("outside"));
    fs::create_dir(&target).unwrap();
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, target.join("sub")).unwrap();
    let good = urls.last().unwrap().clone();
    for name in ["../outside/f", "/tmp/bivouac-hostile", "a/../../f", "sub/f", "", ".f.bivouac-00", "a&#10;b"]
    {
        let link = metalink(dir.path(), name, &bytes, std::slice::from_ref(&good));
        let got = place.run(&["get", text(&link), &format!("{}/", text(&target)), "--no-cache"]);
        assert!(got.code == 1, "{name}: {}", got.err);
    }
    assert_eq!((fs::read_dir(&outside).unwrap().count(), fs::read_dir(&target).unwrap().count()), (0, 1));
    let link = metalink(dir.path(), ".profile", &bytes, std::slice::from_ref(&good));
    let output = place.command(&["get", text(&link)]).current_dir(&outside).output().unwrap();
    assert_eq!((output.status.code(), fs::read_dir(&outside).unwrap().count()), (Some(2), 0));
    assert!(!Path::new("/tmp/bivouac-hostile").exists());
}

/// S565: a key is shown to no server that only an entry calls one of a formation.
#[test]
fn entries_get_no_keys() {
    let (place, dir) = (place(), tempfile::tempdir().unwrap());
    let at = |name: &str| dir.path().join(name);
    let heads = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&heads);
    let server = Odd::start(Box::new(move |head, _| {
        heard.lock().unwrap().push_str(head);
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\ncontent";
        Some(text.as_bytes().to_vec())
    }));
    fs::create_dir(at("catalogue")).unwrap();
    fs::write(at("f"), "content").unwrap();
    fs::write(at("key"), "BVKSECRET.secret\n").unwrap();
    let id = publish(&place, &at("f"), text(&at("catalogue")), &["--site", &server.url("/f")]);
    fs::remove_file(at("f")).unwrap();
    let described = at("catalogue").join(&id).join("ro-crate-metadata.json");
    let changed = fs::read_to_string(&described).unwrap();
    let changed =
        changed.replace("\"site storage\"", "\"formation x\", \"identifier\": \"00\", \"sha256\": \"00\"");
    assert!(changed.contains("formation x"));
    fs::write(&described, changed).unwrap();
    let (key, dst) = (at("key"), at("dst"));
    let entry = at("catalogue").join(&id);
    let said = place.run(&["get", text(&entry), text(&dst), "--key-file", text(&key), "--no-cache"]);
    assert_eq!((said.code, fs::read(&dst).unwrap()), (0, b"content".to_vec()), "{}", said.err);
    let seen = heads.lock().unwrap().to_lowercase();
    let is_silent = !seen.contains("authorization") && !seen.contains("secret");
    assert!(seen.contains("get /f") && is_silent, "{seen}");
    // The server that the user names is shown it.
    place.run(&["get", &server.url("/f"), text(&at("other")), "--key-file", text(&key)]).succeeds();
    assert!(heads.lock().unwrap().contains("Bearer BVKSECRET.secret"));
}

/// S562: what a server says no digests of comes as it is, and is said not to be compared.
#[test]
fn plain_urls_are_fetched_too() {
    let dir = tempfile::tempdir().unwrap();
    let answer = |head: &str, _| {
        let body = if head.starts_with("HEAD") { "" } else { "content" };
        Some(format!("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n{body}").into_bytes())
    };
    let (place, server) = (place(), Odd::start(Box::new(answer)));
    let dst = dir.path().join("dst");
    place
        .run(&["get", &server.url("/a/b%20c?x"), &format!("{}/", text(&dst))])
        .fails(0, &["nothing was compared"]);
    assert_eq!(fs::read(dst.join("b c")).unwrap(), b"content");
    place.run(&["get", &server.url("/a/b%20c?x"), &format!("{}/", text(&dst))]).fails(1, &["--force"]);
}

/// S560: other clients take the metalink that is in an entry.
#[test]
fn aria2_takes_the_metalink() {
    let has_aria2 = Command::new("aria2c").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has_aria2 {
        println!("skipped: aria2c is not installed");
        return;
    }
    let Some(camp) = camp(&["--nodes", "2", "--stripe", "64k", "--http", "0", "--http-plain"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (source, catalogue) = (camp.mount().join("results"), dir.path().join("catalogue"));
    tree(&source, 1);
    fs::create_dir(&catalogue).unwrap();
    let id = publish(camp.place(), &source, text(&catalogue), &[]);
    let key = crate::http::key(&camp, &["--read-only"]);
    let dst = dir.path().join("dst");
    let link = catalogue.join(&id).join(format!("{id}.meta4"));
    let output = Command::new("aria2c")
        .args(["--no-conf", "-q", "--check-integrity=true", "-d", text(&dst)])
        .arg(format!("--header=Authorization: Bearer {key}"))
        .arg(format!("--metalink-file={}", text(&link)))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    same(&source, &dst);
    camp.down();
}

//! An object store as a source, with a server that is real: it checks signatures, parts and digests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use bivouac_objects::{ACCESS_KEY, Fault, SECRET_KEY, Server, What};
use bivouac_source::{
    Attrs, Cause, Environment, Piece, Precondition, PutOutcome, S3Location, S3Source, Source, SourceResult,
    Upload, Version, conformance,
};
use bivouac_types::{Timestamp, mode};

/// Part of an upload that is larger than one.
const PART: usize = 8 << 20;

fn environment(id: &str, secret: &str) -> Environment {
    Environment::read(|name| match name {
        "AWS_ACCESS_KEY_ID" => Some(id.to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some(secret.to_owned()),
        _ => None,
    })
}

fn place(endpoint: String, prefix: &str) -> S3Location {
    let (bucket, prefix) = (bivouac_objects::BUCKET.to_owned(), prefix.to_owned());
    S3Location { bucket, prefix, endpoint: Some(endpoint), region: None }
}

fn at(endpoint: String) -> S3Source {
    let source = S3Source::open(&place(endpoint, "p/q/"), &environment(ACCESS_KEY, SECRET_KEY)).unwrap();
    source.with_pause(Duration::from_millis(5))
}

/// A source and its server, which ends with it.
fn served() -> (S3Source, Server) {
    let server = Server::start();
    (at(server.endpoint()), server)
}

fn attrs() -> Attrs {
    let time = Timestamp { secs: 77, nanos: 123_456_789 };
    Attrs { perm: 0o640, uid: 12, gid: 34, mtime: time, atime: time, xattrs: Vec::new() }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + at / 251) % 255) as u8).collect()
}

fn fill(source: &dyn Source, upload: &Upload, content: &[u8]) -> SourceResult<Vec<Piece>> {
    let size = source.piece_size(content.len() as u64).unwrap() as usize;
    let parts = content.chunks(size).enumerate();
    parts.map(|(number, part)| source.put(upload, (number * size) as u64, part)).collect()
}

fn write(
    source: &dyn Source,
    path: &[u8],
    content: &[u8],
    expect: &Precondition,
) -> SourceResult<PutOutcome> {
    let upload = source.begin(path, content.len() as u64, &attrs())?;
    let pieces = fill(source, &upload, content)?;
    source.verify(&upload, &pieces)?;
    source.commit(&upload, &pieces, &attrs(), expect)
}

fn read(source: &dyn Source, path: &[u8]) -> SourceResult<Vec<u8>> {
    let meta = source.stat(path)?;
    let mut content = vec![0; meta.version.size as usize];
    let len = source.read(path, &meta.version, 0, &mut content)?;
    assert_eq!(len, content.len());
    Ok(content)
}

fn cause<T>(outcome: SourceResult<T>) -> Option<Cause> {
    outcome.err().map(|error| error.cause())
}

fn said<T>(outcome: SourceResult<T>) -> String {
    outcome.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn a_store_conforms() {
    conformance::source(served);
}

#[test]
fn stores_without_conditions_and_pages_of_one_key_conform() {
    conformance::source(|| {
        let served = served();
        served.1.contents().is_old = true;
        served.1.contents().page = 1;
        served
    });
}

#[test]
fn objects_are_what_other_tools_expect() {
    let served = served();
    let link = Attrs { perm: 0o777, ..attrs() };
    served.0.put_dir(b"d", &Attrs { perm: 0o750, ..attrs() }).unwrap();
    write(&served.0, b"d/f", b"content", &Precondition::Absent).unwrap();
    let made = served.0.start_link(served.0.plan(b"d/l", 8).unwrap(), b"../there").unwrap();
    served.0.put_link(&made, b"../there", &link, &Precondition::Absent).unwrap();
    let file = served.1.object("p/q/d/f").unwrap();
    let meta = |object: &bivouac_objects::Object, name: &str| object.metadata[name].clone();
    assert_eq!((&file.bytes[..], meta(&file, "mode")), (&b"content"[..], 0o100_640.to_string()));
    assert_eq!((meta(&file, "uid"), meta(&file, "gid")), ("12".to_owned(), "34".to_owned()));
    assert_eq!(meta(&file, "mtime"), "77.123456789");
    let link = served.1.object("p/q/d/l").unwrap();
    assert_eq!((&link.bytes[..], meta(&link, "mode")), (&b"../there"[..], 0o120_777.to_string()));
    let dir = served.1.object("p/q/d/").unwrap();
    assert_eq!((dir.bytes.len(), meta(&dir, "mode")), (0, 0o040_750.to_string()));
    assert_eq!(dir.content_type.as_deref(), Some("application/x-directory"));
}

#[test]
fn objects_of_others_are_files_and_directories() {
    let served = served();
    served.1.put("p/q/plain", b"x", &[]);
    served.1.put("p/q/a/b/deep", b"y", &[("mode", "33261"), ("colour", "red")]);
    served.1.put("p/q/both", b"z", &[]);
    served.1.put("p/q/both/f", b"z", &[]);
    served.1.put("p/q/odd//name", b"z", &[]);
    served.1.put("p/elsewhere", b"z", &[]);
    let mut found: Vec<_> = served
        .0
        .list(b"")
        .unwrap()
        .into_iter()
        .map(|e| (String::from_utf8(e.name).unwrap(), e.meta.kind))
        .collect();
    found.sort();
    let expected =
        [("a", mode::DIR), ("both", 0), ("both", mode::DIR), ("odd", mode::DIR), ("plain", mode::FILE)];
    assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)));
    assert_eq!(served.0.list(b"odd").unwrap()[0].meta.kind, 0, "a name of nothing is of no kind");
    assert_eq!(served.0.stat(b"a").unwrap().kind, mode::DIR);
    let deep = served.0.stat(b"a/b/deep").unwrap();
    assert_eq!((deep.attrs.perm, deep.version.size), (0o755, 1));
    let given = Attrs { perm: 0o600, ..attrs() };
    served.0.set_attrs(b"a/b/deep", &deep.version, &given).unwrap();
    let object = served.1.object("p/q/a/b/deep").unwrap();
    assert_eq!((&object.bytes[..], object.metadata["colour"].as_str()), (&b"y"[..], "red"));
    assert_eq!(cause(served.0.list(b"plain")), Some(Cause::WrongKind));
    assert_eq!(cause(write(&served.0, b"a", b"x", &Precondition::Anything)), Some(Cause::Changed));
}

#[test]
fn more_keys_than_a_page_has_are_listed() {
    let served = served();
    for number in 0..2103 {
        served.1.put(&format!("p/q/many/f{number:05}"), b"", &[]);
        if number % 100 == 0 {
            served.1.put(&format!("p/q/many/e{number:05}/x"), b"", &[]);
        }
    }
    let listed = served.0.list(b"many").unwrap();
    assert_eq!(listed.len(), 2103 + 22);
    assert_eq!(listed.iter().filter(|entry| entry.meta.is_dir()).count(), 22);
    let names: std::collections::HashSet<_> = listed.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), 2125);
    assert_eq!(served.1.count("GET", "continuation-token"), 2);
}

#[test]
fn parts_are_put_by_many_at_the_same_time() {
    let served = served();
    let content = bytes(3 * PART + 5);
    let upload = served.0.begin(b"large", content.len() as u64, &attrs()).unwrap();
    let others: Vec<_> = (0..2).map(|_| at(served.1.endpoint())).collect();
    let put = |source: &S3Source, number: usize| {
        let part = &content[number * PART..content.len().min((number + 1) * PART)];
        source.put(&Upload { tag: String::new(), ..upload.clone() }, (number * PART) as u64, part).unwrap()
    };
    let pieces = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number| (number, &others[number % 2]))
            .map(|(n, s)| scope.spawn(move || put(s, n)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(served.1.object("p/q/large").is_none(), "nobody sees it before its commit");
    let later = Attrs { mtime: Timestamp { secs: 99, nanos: 0 }, ..attrs() };
    let short = served.0.commit(&upload, &pieces[..3], &later, &Precondition::Absent);
    assert!(said(short).contains("parts from byte"));
    let twice = [&pieces[..], &pieces[3..]].concat();
    let repeated = served.0.commit(&upload, &twice, &later, &Precondition::Absent);
    assert!(said(repeated).contains("parts from byte"), "a part more than the file has");
    let kept = served.0.commit(&upload, &pieces, &later, &Precondition::Absent).unwrap();
    let meta = served.0.stat(b"large").unwrap();
    assert_eq!(
        (meta.version.clone(), meta.attrs.mtime.secs),
        (kept.version, 99),
        "attributes as of the commit"
    );
    assert!(served.0.is_made_by(&meta.version, &upload.tag));
    assert!(read(&served.0, b"large").unwrap() == content);
    let small = served.0.put(&upload, 0, &content[..PART / 2]).unwrap_err();
    assert_eq!(small.cause(), Cause::Unsupported);
    assert!(small.to_string().contains("use larger stripes"), "{small}");
    assert!(served.1.contents().uploads.is_empty());
}

#[test]
fn changes_at_the_store_are_noticed() {
    let served = served();
    let old = write(&served.0, b"f", b"first", &Precondition::Absent).unwrap().version;
    served.1.put("p/q/f", b"other", &[]);
    assert_eq!(cause(served.0.read(b"f", &old, 0, &mut [0; 5])), Some(Cause::Changed));
    assert_eq!(
        cause(write(&served.0, b"f", b"mine", &Precondition::Version(old.clone()))),
        Some(Cause::Changed)
    );
    assert_eq!(cause(served.0.remove(b"f", Some(&old))), Some(Cause::Changed));
    assert_eq!(&served.1.object("p/q/f").unwrap().bytes[..], b"other");
}

#[test]
fn what_changes_between_look_and_write_is_not_overwritten() {
    let served = served();
    let upload = served.0.begin(b"f", 3, &attrs()).unwrap();
    let pieces = fill(&served.0, &upload, b"abc").unwrap();
    // As if nobody had been there when it was looked at.
    served.1.put("p/q/f", b"other", &[]);
    served.1.fail("HEAD", "/f?", 1, What::Refuse(404, "NoSuchKey"));
    let outcome = served.0.commit(&upload, &pieces, &attrs(), &Precondition::Absent);
    assert_eq!(cause(outcome), Some(Cause::Changed));
    assert_eq!(&served.1.object("p/q/f").unwrap().bytes[..], b"other");
    served.0.abort(&upload).unwrap();
    assert!(served.1.contents().uploads.is_empty());
}

#[test]
fn small_files_take_one_request_to_write() {
    let (source, server) = served();
    let kept = source.put_file(b"d/f", b"content", &attrs(), &Precondition::Absent).unwrap();
    assert_eq!((server.count("PUT", "p/q/d/f"), server.count("POST", "")), (1, 0));
    let meta = source.stat(b"d/f").unwrap();
    assert_eq!((&meta.version, &meta.attrs, meta.kind), (&kept.version, &attrs(), mode::FILE));
    assert_eq!(read(&source, b"d/f").unwrap(), b"content");
    assert_eq!(cause(source.put_file(b"d/f", b"", &attrs(), &Precondition::Absent)), Some(Cause::Changed));
    let asked = server.count("", "");
    source.put_file(b"g", b"", &attrs(), &Precondition::Anything).unwrap();
    assert_eq!(server.count("", "") - asked, 2, "to write it, and to see how it looks");
    server.fail("PUT", "d/f", 1, What::Forget);
    source.put_file(b"d/f", b"", &attrs(), &Precondition::Version(kept.version)).unwrap();
    assert_eq!(source.stat(b"d/f").unwrap().version.size, 0);
}

#[test]
fn what_others_have_begun_is_found_and_thrown_away() {
    let (source, server) = served();
    server.contents().page = 1;
    for path in [&b"d/f"[..], b"d/f", b"d/f2", b"d/deep \xe2\x82\xac/f", b"dd"] {
        source.begin(path, 9, &attrs()).unwrap();
    }
    let left = || {
        let mut left: Vec<String> =
            server.contents().uploads.values().map(|upload| upload.key.clone()).collect();
        left.sort();
        left
    };
    source.abort_unfinished_uploads(b"d/f").unwrap();
    assert_eq!(left(), ["p/q/d/deep \u{20ac}/f", "p/q/d/f2", "p/q/dd"]);
    server.put("p/q/d/", b"", &[]);
    server.put("p/q/d/odd//name", b"x", &[]);
    server.put("p/q/d/f", b"x", &[]);
    server.put("p/q/d2", b"x", &[]);
    source.clear(b"d").unwrap();
    assert_eq!(left(), ["p/q/dd"]);
    assert_eq!(server.contents().objects.keys().collect::<Vec<_>>(), ["p/q/d2"]);
    source.clear(b"d").unwrap();
    assert_eq!(cause(source.clear(b"")), Some(Cause::Unsupported));
    for (status, code) in [(501, "NotImplemented"), (403, "AccessDenied")] {
        server.fail("GET", "uploads", 1, What::Refuse(status, code));
        source.abort_unfinished_uploads(b"dd").unwrap();
    }
    assert_eq!(left(), ["p/q/dd"], "who may not see uploads leaves them");
    server.fail("GET", "uploads", 1, What::Cut(20));
    server.fail("GET", "uploads", 1, What::Refuse(200, "NoList"));
    assert!(said(source.abort_unfinished_uploads(b"dd")).contains("something else than a list of uploads"));
}

#[test]
fn lost_answers_are_found_out_about() {
    let served = served();
    for (name, content) in [(&b"whole"[..], &b"abc"[..]), (b"nothing", b"")] {
        served.1.fail("POST", "uploadId", 1, What::Forget);
        served.1.fail("PUT", "/nothing?", 1, What::Forget);
        let kept = write(&served.0, name, content, &Precondition::Absent).unwrap();
        assert_eq!(served.0.stat(name).unwrap().version, kept.version);
        served.1.heal();
    }
    served.1.fail("PUT", "/link?", 1, What::Forget);
    let made = served.0.start_link(served.0.plan(b"link", 2).unwrap(), b"to").unwrap();
    served.0.put_link(&made, b"to", &attrs(), &Precondition::Absent).unwrap();
    assert_eq!(served.0.stat(b"link").unwrap().target, b"to");
}

#[test]
fn what_passes_is_tried_again_and_not_for_ever() {
    let served = served();
    served.1.fail("PUT", "partNumber", 2, What::Refuse(503, "SlowDown"));
    served.1.fail("POST", "uploads", 1, What::Drop);
    served.1.fail("GET", "list-type", 1, What::Cut(40));
    write(&served.0, b"f", b"content", &Precondition::Absent).unwrap();
    assert_eq!(served.1.count("PUT", "partNumber"), 3);
    served.1.fail("GET", "/f?", 1, What::Cut(3));
    assert_eq!(read(&served.0, b"f").unwrap(), b"content");
    served.1.fail("GET", "list-type", usize::MAX, What::Refuse(503, "SlowDown"));
    let refused = served.0.list(b"").unwrap_err();
    assert_eq!(refused.cause(), Cause::Lost);
    assert!(refused.to_string().contains("try again later (SlowDown)"), "{refused}");
}

#[test]
fn many_may_wait_at_the_same_time() {
    let (source, server) = served();
    write(&source, b"f", b"content", &Precondition::Absent).unwrap();
    let many = 4;
    server.fail("HEAD", "", many, What::Refuse(503, "SlowDown"));
    std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..many).map(|_| scope.spawn(|| source.stat(b"f").unwrap().version.size)).collect();
        asking.into_iter().for_each(|asking| assert_eq!(asking.join().unwrap(), 7));
    });
}

#[test]
fn refusals_that_come_before_the_body_is_sent_are_heard() {
    let (source, server) = served();
    let upload = source.begin(b"f", 3 * PART as u64, &attrs()).unwrap();
    server.fail("PUT", "partNumber", usize::MAX, What::Refuse(507, "QuotaExceeded"));
    let refused = source.put(&upload, 0, &bytes(PART)).unwrap_err();
    assert!(refused.cause() == Cause::Full && refused.to_string().contains("QuotaExceeded"), "{refused}");
    server.heal();
    server.fail("PUT", "partNumber", 1, What::Drop);
    let piece = source.put(&upload, 0, &bytes(PART)).unwrap();
    assert_eq!(piece.len, PART as u64);
}

#[test]
fn what_a_cut_answer_has_brought_is_not_asked_for_again() {
    let served = served();
    let content = bytes(3 << 20);
    write(&served.0, b"f", &content, &Precondition::Absent).unwrap();
    served.1.fail("GET", "/f?", 2, What::Cut(1 << 20));
    assert!(read(&served.0, b"f").unwrap() == content);
    assert_eq!(served.1.count("GET", "/f?"), 3);
}

#[test]
fn another_version_is_not_taken_for_the_one_that_was_seen() {
    let served = served();
    let seen = write(&served.0, b"f", b"content", &Precondition::Absent).unwrap().version;
    served.1.fail("GET", "/f?", 1, What::Rename);
    assert_eq!(cause(served.0.read(b"f", &seen, 0, &mut [0; 7])), Some(Cause::Changed));
    served.1.contents().ignores_ranges = true;
    let mut into = [0; 3];
    assert!(said(served.0.read(b"f", &seen, 2, &mut into)).contains("another range"));
    assert_eq!(served.0.read(b"f", &seen, 0, &mut into), Ok(3));
    assert_eq!(&into, b"con");
}

#[test]
fn stores_without_names_for_content_are_told_by_size_and_time() {
    let served = served();
    served.1.put("p/q/f", b"content", &[]);
    served.1.contents().has_no_tags = true;
    let meta = served.0.stat(b"f").unwrap();
    assert!(meta.version.tag.is_empty() && meta.version.mtime.secs > 0);
    assert_eq!(read(&served.0, b"f").unwrap(), b"content");
    served.1.put("p/q/f", b"longer than that", &[]);
    assert_eq!(cause(served.0.read(b"f", &meta.version, 0, &mut [0; 7])), Some(Cause::Changed));
}

#[test]
fn a_server_that_dies_is_lost_and_found_again() {
    let mut served = served();
    let content = bytes(2 * PART);
    let seen = write(&served.0, b"f", &content, &Precondition::Absent).unwrap().version;
    let upload = served.0.begin(b"g", content.len() as u64, &attrs()).unwrap();
    let first = served.0.put(&upload, 0, &content[..PART]).unwrap();
    served.1.stop();
    let lost = served.0.read(b"f", &seen, 5, &mut [0; 100]).unwrap_err();
    assert_eq!(lost.cause(), Cause::Lost);
    assert!(lost.to_string().contains("is the store running?"), "{lost}");
    assert_eq!(cause(served.0.put(&upload, PART as u64, &content[PART..])), Some(Cause::Lost));
    assert_eq!(cause(served.0.list(b"")), Some(Cause::Lost));
    served.1.serve();
    assert!(read(&served.0, b"f").unwrap() == content);
    let second = served.0.put(&upload, PART as u64, &content[PART..]).unwrap();
    served.0.commit(&upload, &[first, second], &attrs(), &Precondition::Absent).unwrap();
    assert!(read(&served.0, b"g").unwrap() == content);
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_body_is_waited_for() {
    let mut served = served();
    let content = bytes(PART);
    write(&served.0, b"f", &content, &Precondition::Absent).unwrap();
    let meta = served.0.stat(b"f").unwrap();
    served.1.fail_after(Fault {
        method: "GET",
        within: "/f?",
        after: 0,
        times: 1,
        what: What::Cut(PART / 2),
    });
    let (source, server) = (&served.0, &mut served.1);
    let mut into = vec![0; PART];
    let read = std::thread::scope(|scope| {
        let reading = scope.spawn(|| source.read(b"f", &meta.version, 0, &mut into));
        server.stop();
        server.serve();
        reading.join().unwrap()
    });
    assert_eq!(read, Ok(PART));
    assert!(into == content);
}

#[test]
fn refusals_say_what_to_do_and_no_secrets() {
    let server = Server::start();
    let place = place(server.endpoint(), "");
    let none = S3Source::open(&place, &Environment::default()).err().unwrap();
    assert_eq!(none.cause(), Cause::Denied);
    assert!(none.to_string().contains("no credentials: set AWS_ACCESS_KEY_ID"), "{none}");
    let open = |id: &str, secret: &str| S3Source::open(&place, &environment(id, secret)).unwrap();
    let wrong = open(ACCESS_KEY, "another-secret").check().unwrap_err();
    assert_eq!(wrong.cause(), Cause::Denied);
    assert!(wrong.to_string().contains("check AWS_SECRET_ACCESS_KEY"), "{wrong}");
    let good = open(ACCESS_KEY, SECRET_KEY);
    let bucket = S3Location { bucket: "nobodys".to_owned(), ..place.clone() };
    let missing = S3Source::open(&bucket, &environment(ACCESS_KEY, SECRET_KEY)).unwrap().check().unwrap_err();
    assert_eq!(missing.cause(), Cause::Lost);
    assert!(missing.to_string().contains("s3://nobodys/: there is no such bucket"), "{missing}");
    server.fail("GET", "list-type", 1, What::Refuse(403, "AccessDenied"));
    let denied = good.list(b"").unwrap_err();
    assert!(denied.to_string().contains("lack the permission (AccessDenied)"), "{denied}");
    for error in [none, wrong, missing, denied] {
        let text = format!("{error} {error:?}");
        assert!(!text.contains(SECRET_KEY) && !text.contains("another-secret"), "{text}");
        assert!(!text.contains("Signature="), "{text}");
    }
}

#[test]
fn hosts_that_are_not_there_are_named() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = at(format!("http://{port}")).check().unwrap_err();
    assert_eq!(refused.cause(), Cause::Lost);
    assert!(refused.to_string().contains(&format!("{port}: connection refused")), "{refused}");
    let unknown = at("http://no-such-host.invalid".to_owned()).check().unwrap_err();
    assert!(unknown.to_string().contains("no host no-such-host.invalid"), "{unknown}");
}

/// A server that says this to whoever asks, whatever it is.
fn saying(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 8192]);
                let _ = stream.write_all(&answer);
            });
        }
    });
    format!("http://{address}")
}

fn http(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[test]
fn garbage_is_refused() {
    let many = format!("<ListBucketResult>{}</ListBucketResult>", "<Contents/>".repeat(300_000));
    let page = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>\
                <Contents><Key>p/q/f</Key></Contents></ListBucketResult>";
    let foreign = "<ListBucketResult><Contents><Key>../../etc/passwd</Key></Contents></ListBucketResult>";
    let tag = format!("etag: \"{}\"\r\n", "e".repeat(5000));
    let answers = [
        b"\x00\xff\xfenonsense".to_vec(),
        b"HTTP/1.1 999 \r\n\r\n".to_vec(),
        http("", b"<html>Login</html>"),
        http("", b"<ListBucketResult><Contents><Key>"),
        http("", &bytes(3000)),
        http("", many.as_bytes()),
        http("", &b"<a>".repeat(3 << 20)),
        http("", page.as_bytes()),
        http("", foreign.as_bytes()),
        http(&tag, b""),
        b"HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n".to_vec(),
        b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 9-0/99999999999999999999\r\ncontent-length: 9\r\n\r\n"
            .to_vec(),
    ];
    let seen = Version { size: 1 << 40, mtime: Timestamp::default(), tag: "\"tag\"".to_owned() };
    std::thread::scope(|scope| {
        for answer in answers {
            let seen = &seen;
            scope.spawn(move || {
                let source = at(saying(answer));
                assert!(source.list(b"d").is_err());
                assert!(source.stat(b"f").is_err());
                assert!(source.read(b"f", seen, 5, &mut [0; 10]).is_err());
                assert!(source.begin(b"f", 5, &attrs()).is_err());
                let (token, tag) = ("t".to_owned(), "t".to_owned());
                let upload = Upload { path: b"f".to_vec(), size: 1, token, tag, ..Upload::default() };
                let piece = Piece { offset: 0, len: 1, tag: "t".to_owned() };
                assert!(source.commit(&upload, &[piece], &attrs(), &Precondition::Anything).is_err());
            });
        }
    });
}

#[test]
fn renewed_credentials_are_read_from_their_file() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials");
    let profile = |secret: &str| {
        format!("[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n")
    };
    std::fs::write(&file, profile("expired")).unwrap();
    let variables: HashMap<_, _> = [("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap())].into();
    let here = Environment::read(|name| variables.get(name).map(|value| (*value).to_owned()));
    let source = S3Source::open(&place(server.endpoint(), ""), &here).unwrap();
    assert_eq!(cause(source.check()), Some(Cause::Denied));
    std::fs::write(&file, profile(SECRET_KEY)).unwrap();
    source.check().unwrap();
}

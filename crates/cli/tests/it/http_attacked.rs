//! Files over HTTP, by clients that disturb each other or the server.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::process::{Resource, Signal, getrlimit};

use crate::harness::{Camp, rss_kib, signal, wait_until};
use crate::http::{Reply, SERVED, Server, key, parse, raw, served};

/// A PUT whose upload has begun, and whose body is still to come.
struct Begun(TcpStream);

impl Begun {
    fn new(server: &Server, path: &str, headers: &[(&str, &str)], len: usize) -> Begun {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut head = format!("PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n", server.key);
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        head.push_str(&format!("Connection: close\r\nExpect: 100-continue\r\nContent-Length: {len}\r\n\r\n"));
        stream.write_all(head.as_bytes()).unwrap();
        // The server says so when it begins to read.
        let mut said = [0; 25];
        stream.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"HTTP/1.1 100 Continue\r\n\r\n", "{path}");
        Begun(stream)
    }

    fn end(mut self, body: &[u8]) -> Reply {
        self.0.write_all(body).unwrap();
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes).unwrap();
        parse(&bytes).unwrap()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// S305, S306.
#[test]
fn uploads_in_parts_are_not_mixed() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let other = key(&camp, &[]);
    let put = |key: &str, id: &str, range: &str, body: &[u8]| {
        server.ask_as(key, "PUT", &format!("/f?upload={id}"), &[("Content-Range", range)], body)
    };
    let part = |id: &str, range: &str, body: &[u8]| put(&server.key, id, range, body).status;
    let file = || std::fs::read(mount.join("f")).unwrap();
    // Two of the same size at the same time, and one of another key by the same name.
    assert_eq!(part("one", "bytes 0-4/10", b"aaaaa"), 308);
    assert_eq!(part("two", "bytes 0-4/10", b"bbbbb"), 308);
    assert_eq!(put(&other, "one", "bytes */10", b"").header("range"), "");
    assert_eq!(part("one", "bytes 5-9/10", b"AAAAA"), 201);
    assert_eq!(file(), b"aaaaaAAAAA");
    assert_eq!(part("two", "bytes 5-9/10", b"BBBBB"), 204);
    assert_eq!(file(), b"bbbbbBBBBB");
    // Begun anew, nothing is left of what was sent before.
    assert_eq!(part("new", "bytes 0-8/10", b"old old o"), 308);
    let again = put(&server.key, "new", "bytes 0-1/10", b"ne");
    assert_eq!((again.status, again.header("range")), (308, "bytes=0-1"));
    assert_eq!(part("new", "bytes 8-9/10", b"xx"), 416);
    assert_eq!(part("new", "bytes 2-9/10", b"w content"), 400, "too long");
    assert_eq!(part("new", "bytes 2-9/10", b"w conten"), 204);
    assert_eq!(file(), b"new conten");
    // A request that hangs has the upload no more when another one comes for it.
    let path = "/f?upload=hang";
    let hangs = Begun::new(&server, path, &[("Content-Range", "bytes 0-9/10")], 10);
    assert_eq!(part("hang", "bytes 0-9/10", b"the second"), 204);
    assert_eq!(hangs.end(b"hangs long").status, 409);
    assert_eq!(file(), b"the second");
    // It takes the place of a file as that is.
    std::fs::set_permissions(mount.join("f"), Permissions::from_mode(0o640)).unwrap();
    assert_eq!(part("mode", "bytes 0-4/10", b"01234"), 308);
    let begun = names(mount).into_iter().find(|name| name.starts_with(".bivouac-part-")).unwrap();
    let mode = |name: &str| std::fs::metadata(mount.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&begun), 0o600);
    // What is not whole is nobody's.
    assert_eq!(server.status("GET", &format!("/{begun}"), &[], b""), 400);
    assert!(!server.ask("GET", "/?json", &[], b"").text().contains("bivouac-part"));
    assert!(!server.ask("GET", "/", &[], b"").text().contains("bivouac-part"));
    assert_eq!(part("mode", "bytes 5-9/10", b"56789"), 204);
    assert_eq!((file(), mode("f")), (b"0123456789".to_vec(), 0o640));
    // Given up.
    assert_eq!(part("gone", "bytes 0-4/10", b"01234"), 308);
    assert_eq!(names(mount).len(), 2);
    assert_eq!(server.status("DELETE", "/f?upload=gone", &[], b""), 204);
    assert_eq!(server.status("DELETE", "/f?upload=gone", &[], b""), 404);
    assert_eq!(names(mount), ["f"]);
    // What makes no sense leaves the file as it is.
    for (path, range) in [
        ("/f", "bytes 0-0/1"),
        ("/f?upload=", "bytes 0-0/1"),
        ("/f?upload=a/b", "bytes 0-0/1"),
        ("/f?upload=empty", "bytes */0"),
    ] {
        let body: &[u8] = if range.contains('*') { b"" } else { b"x" };
        assert_eq!(server.status("PUT", path, &[("Content-Range", range)], body), 400, "{path} {range}");
    }
    assert_eq!(server.status("PUT", "/f?upload=a", &[], b"x"), 400);
    assert_eq!(server.status("PUT", "/f/", &[], b"x"), 409);
    assert_eq!(file(), b"0123456789");
    camp.down();
}

/// S308.
#[test]
fn conditions_hold_when_the_name_changes_hands() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let range = ("Content-Range", "bytes 0-3/4");
    let late = "Fri, 31 Dec 9999 23:59:59 GMT";
    for (name, headers) in
        [("whole", vec![("If-None-Match", "*")]), ("part?upload=a", vec![("If-None-Match", "*"), range])]
    {
        let plain = name.split('?').next().unwrap();
        let begun = Begun::new(&server, &format!("/{name}"), &headers, 4);
        std::fs::write(mount.join(plain), b"theirs").unwrap();
        assert_eq!(begun.end(b"ours").status, 412, "{name}");
        assert_eq!(std::fs::read(mount.join(plain)).unwrap(), b"theirs");
    }
    for (name, parts) in [("f", false), ("g?upload=a", true)] {
        let plain = name.split('?').next().unwrap();
        let file = mount.join(plain);
        for by_date in [false, true] {
            for gone in [false, true] {
                std::fs::write(&file, b"seen").unwrap();
                camp.wait_until_closed();
                let tag = server.ask("HEAD", &format!("/{plain}"), &[], b"").header("etag").to_owned();
                let condition =
                    if by_date { ("If-Unmodified-Since", late) } else { ("If-Match", tag.as_str()) };
                let headers: Vec<_> = [condition].into_iter().chain(parts.then_some(range)).collect();
                let begun = Begun::new(&server, &format!("/{name}"), &headers, 4);
                std::fs::remove_file(&file).unwrap();
                if !gone {
                    std::fs::write(&file, b"another's").unwrap();
                }
                assert_eq!(begun.end(b"ours").status, 412, "{name} {condition:?} {gone}");
                assert_eq!(std::fs::read(&file).ok(), (!gone).then(|| b"another's".to_vec()));
                // As it was seen, it is replaced.
                std::fs::write(&file, b"seen").unwrap();
                camp.wait_until_closed();
                let tag = server.ask("HEAD", &format!("/{plain}"), &[], b"").header("etag").to_owned();
                let condition =
                    if by_date { ("If-Unmodified-Since", late) } else { ("If-Match", tag.as_str()) };
                let headers: Vec<_> = [condition].into_iter().chain(parts.then_some(range)).collect();
                assert_eq!(server.status("PUT", &format!("/{name}"), &headers, b"ours"), 204);
                assert_eq!(std::fs::read(&file).unwrap(), b"ours");
            }
        }
    }
    let left: Vec<String> = names(mount).into_iter().filter(|name| name.contains("put")).collect();
    assert_eq!(left, [""; 0]);
    camp.down();
}

/// How often a name changed: by links, removals and renames.
fn name_changes(camp: &Camp) -> [u64; 3] {
    let status = camp.status();
    let operations =
        || status["nodes"].as_array().unwrap().iter().flat_map(|node| node["operations"].as_array().unwrap());
    ["Link", "Unlink", "Rename"].map(|name| {
        operations().filter(|op| op["name"] == name).map(|op| op["client"].as_u64().unwrap()).sum()
    })
}

/// S305: a server that is killed between two steps would leave the part under two names, or another file under the
/// part's.
#[test]
fn a_part_gets_its_name_in_one_step() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let range = ("Content-Range", "bytes 0-3/4");
    let put = |condition: Option<(&str, &str)>| {
        let before = name_changes(&camp);
        let headers: Vec<_> = condition.into_iter().chain([range]).collect();
        let status = server.status("PUT", "/f?upload=a", &headers, b"ours");
        let after = name_changes(&camp);
        (status, [0, 1, 2].map(|op| after[op] - before[op]))
    };
    assert_eq!(put(Some(("If-None-Match", "*"))), (201, [0, 0, 1]));
    assert_eq!(put(None), (204, [0, 0, 1]));
    let tag = server.ask("HEAD", "/f", &[], b"").header("etag").to_owned();
    assert_eq!(put(Some(("If-Match", &tag))), (204, [0, 0, 1]));
    assert_eq!(put(Some(("If-Match", "*"))), (204, [0, 0, 1]));
    // A whole file has a second name until then, and what is refused never has the name.
    let tag = server.ask("HEAD", "/f", &[], b"").header("etag").to_owned();
    let before = name_changes(&camp);
    assert_eq!(server.status("PUT", "/f", &[("If-Match", &tag)], b"ours"), 204);
    let after = name_changes(&camp);
    assert_eq!([0, 1, 2].map(|op| after[op] - before[op]), [1, 0, 1]);
    assert_eq!(names(mount), ["f"]);
    camp.down();
}

/// S668: a program writes within the size, at once again, and gives the file its time of before.
#[test]
fn validators_change_with_every_write() {
    use std::os::unix::fs::FileExt as _;
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, file) = (served(&camp), camp.mount().join("f"));
    std::fs::write(&file, b"0000000000").unwrap();
    let wants = ("Want-Repr-Digest", "sha-256=1");
    let look = || {
        let head = server.ask("HEAD", "/f", &[wants], b"");
        (head.header("etag").to_owned(), head.header("repr-digest").to_owned())
    };
    let (mut tags, mut digests) = (vec![], vec![]);
    let mut see = |what: &str| {
        let (tag, digest) = look();
        assert!(!tags.contains(&tag) && !digests.contains(&digest), "{what}: {tag} {digest}");
        tags.push(tag.clone());
        digests.push(digest);
        tag
    };
    camp.wait_until_closed();
    let first = see("at first");
    assert_eq!(server.status("GET", "/f", &[("If-None-Match", &first)], b""), 304);
    let open = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    let mut seen = first;
    for (round, byte) in (b'1'..b'6').enumerate() {
        open.write_all_at(&[byte; 10], 0).unwrap();
        assert_eq!(server.status("PUT", "/f", &[("If-Match", &seen)], b"lost update"), 412, "{round}");
        let got = server.ask("GET", "/f", &[("If-None-Match", &seen)], b"");
        assert_eq!((got.status, got.body), (200, vec![byte; 10]), "{round}");
        seen = see("while it is open");
    }
    let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
    drop(open);
    for byte in b'6'..b'9' {
        let open = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        open.write_all_at(&[byte; 10], 0).unwrap();
        open.set_modified(modified).unwrap();
        drop(open);
        camp.wait_until_closed();
        let seen = see("with the same time");
        assert_eq!(server.status("GET", "/f", &[("If-None-Match", &seen)], b""), 304);
        assert_eq!(server.status("GET", "/f", &[("If-Match", &seen)], b""), 200);
    }
    camp.down();
}

/// S308: writers that all believe to replace what they have seen: each that is told so has, and none is lost.
#[test]
fn of_writers_at_the_same_time_one_replaces_what_all_have_seen() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    for round in 0..10 {
        std::fs::write(mount.join("f"), format!("round {round}")).unwrap();
        camp.wait_until_closed();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let tag = server.ask("HEAD", "/f", &[], b"").header("etag").to_owned();
        let mut seen = std::collections::BTreeSet::new();
        let done: Vec<(usize, u16)> = std::thread::scope(|scope| {
            scopeguard::defer! { is_over.store(true, std::sync::atomic::Ordering::Relaxed) }
            let reading = scope.spawn(|| {
                let mut seen = std::collections::BTreeSet::new();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    seen.insert(std::fs::read_to_string(mount.join("f")).unwrap());
                }
                seen
            });
            let put = |writer: usize| {
                let (server, tag) = (&server, tag.as_str());
                move || {
                    (writer, server.status("PUT", "/f", &[("If-Match", tag)], writer.to_string().as_bytes()))
                }
            };
            let all: Vec<_> = (0..8).map(|writer| scope.spawn(put(writer))).collect();
            let done = all.into_iter().map(|one| one.join().unwrap()).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            seen = reading.join().unwrap();
            done
        });
        let won: Vec<usize> =
            done.iter().filter(|(_, status)| *status == 204).map(|(writer, _)| *writer).collect();
        assert_eq!(won.len(), 1, "{done:?}");
        assert!(done.iter().all(|(_, status)| matches!(status, 204 | 412)), "{done:?}");
        // A kernel may show the name a little longer (G10).
        wait_until("the mount shows what won", || {
            std::fs::read_to_string(mount.join("f")).is_ok_and(|content| content == won[0].to_string())
        });
        // What was refused is never there, not even for a moment.
        let may_be = [format!("round {round}"), won[0].to_string()];
        assert!(seen.iter().all(|content| may_be.contains(content)), "{seen:?}");
    }
    assert_eq!(names(mount), ["f"]);
    camp.down();
}

/// S307, S313.
#[test]
fn nothing_is_collected_of_who_has_no_key() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    let id = server.key.split_once('.').unwrap().0;
    let form = "POST /bucket?X-Amz-Signature=x HTTP/1.1\r\nHost: x\r\n";
    for kind in ["multipart/form-data; boundary=x", "Multipart/Form-Data; boundary=x"] {
        let request = format!("{form}Content-Type: {kind}\r\nContent-Length: 9000000000000\r\n\r\n--x\r\n");
        assert_eq!(raw(&server.address, request.as_bytes()).unwrap().status, 403);
    }
    // The file of a form without a signature is not waited for.
    let file = "--x\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n--x\r\nContent-Disposition: form-data; \
                name=\"file\"; filename=\"f\"\r\n\r\nbegins";
    for (length, expected) in [(60_000_000, 403), (67_108_865, 413)] {
        let head = "POST /bucket HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
        let kind = "Content-Type: multipart/form-data; boundary=x\r\n";
        let request = format!("{head}{kind}Content-Length: {length}\r\n\r\n{file}");
        let reply = raw(&server.address, request.as_bytes()).unwrap();
        assert_eq!(reply.status, expected, "{}", reply.text());
    }
    // Whoever knows the id of a key can claim a signature.
    let now = Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]).output().unwrap();
    let now = String::from_utf8(now.stdout).unwrap();
    let (now, day) = (now.trim(), now.get(..8).unwrap());
    let signed = |method: &str, path: &str, length: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-amz-date: {now}\r\n\
             x-amz-content-sha256: {}\r\nAuthorization: AWS4-HMAC-SHA256 Credential={id}/{day}/us-east-1/s3/\
             aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={}\r\n{length}\r\n\r\n",
            "0".repeat(64),
            "0".repeat(64)
        );
        head.into_bytes()
    };
    let status = |request: &[u8]| raw(&server.address, request).unwrap().status;
    assert_eq!(status(&signed("PUT", "/b/k", "Content-Length: 67108865")), 413);
    assert_eq!(status(&signed("POST", "/b?delete", "Content-Length: 8388609")), 413);
    // By chunks nobody says beforehand how much comes; that the signature is wrong is seen before that.
    let mut endless = signed("POST", "/bucket?delete", "Transfer-Encoding: chunked");
    for _ in 0..9 {
        endless.extend_from_slice(b"100000\r\n");
        endless.extend(std::iter::repeat_n(b'x', 1 << 20));
        endless.extend_from_slice(b"\r\n");
    }
    if let Some(reply) = raw(&server.address, &endless) {
        assert_eq!(reply.status, 403, "{}", reply.text());
    }
    let small =
        raw(&server.address, &[signed("PUT", "/bucket/k", "Content-Length: 1"), b"x".to_vec()].concat());
    let small = small.unwrap();
    assert_eq!(small.status, 403, "{}", small.text());
    // Whatever is answered does nothing in a browser.
    std::fs::write(camp.mount().join("f.html"), "<script>").unwrap();
    let mut replies = vec![small];
    for path in ["/f.html", "/", "/none", "/f.html?metalink", "/.."] {
        replies.push(server.ask("GET", path, &[], b""));
    }
    replies.push(raw(&server.address, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap());
    for reply in replies {
        assert_eq!(reply.header("x-content-type-options"), "nosniff", "{}", reply.status);
        assert!(reply.header("content-security-policy").starts_with("sandbox;"), "{}", reply.status);
    }
    assert_eq!(camp.status()["http"]["deaths"], 0);
    camp.down();
}

/// S315.
#[test]
fn who_wants_digests_of_large_files_keeps_nobody_waiting() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    // Nothing but a hole, of which the digest takes minutes.
    std::fs::File::create(mount.join("large")).unwrap().set_len(1 << 40).unwrap();
    std::fs::write(mount.join("small"), b"content").unwrap();
    let ask = |number: usize| {
        let (path, wants) = match number % 3 {
            0 => ("/large?metalink", ""),
            1 => ("/large", "Want-Repr-Digest: sha-256=1\r\n"),
            _ => ("/large", "Want-Content-Digest: sha-256=1\r\n"),
        };
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let auth = format!("Authorization: Bearer {}\r\n", server.key);
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n{auth}{wants}\r\n").as_bytes()).unwrap();
        stream
    };
    let waiting: Vec<TcpStream> = (0..100).map(ask).collect();
    for _ in 0..100 {
        assert_eq!(server.get("/small"), b"content");
    }
    // When they have gone, digests are to be had again.
    drop(waiting);
    let head = server.ask("HEAD", "/small", &[("Want-Repr-Digest", "sha-256=1")], b"");
    assert!(head.header("repr-digest").starts_with("sha-256=:"));
    camp.down();
}

/// S307: as many as it serves at a time, who send and take nothing, or little.
#[test]
fn ten_thousand_connections_cost_little_and_keep_nobody_waiting() {
    const ALL: usize = 10_000;
    if getrlimit(Resource::Nofile).current.is_some_and(|files| files < ALL as u64 + 1000) {
        println!("skipped: fewer than {} open files are allowed", ALL + 1000);
        return;
    }
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    std::fs::File::create(mount.join("large")).unwrap().set_len(1 << 40).unwrap();
    std::fs::write(mount.join("small"), b"content").unwrap();
    let pid = camp.status()["http"]["pid"].as_u64().unwrap();
    let auth = format!("Host: x\r\nAuthorization: Bearer {}\r\n", server.key);
    let connect = |number: usize| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let request = match number % 4 {
            0 => String::new(),
            1 => "GET /small HTTP/1.1\r\nHost".to_owned(),
            2 => format!("PUT /up{number} HTTP/1.1\r\n{auth}Content-Length: 1000000\r\n\r\nx"),
            _ => format!("GET /large HTTP/1.1\r\n{auth}\r\n"),
        };
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let mut all = Vec::new();
    for number in 0..ALL {
        all.push(connect(number));
        if number % 500 == 0 {
            assert_eq!(server.get("/small"), b"content");
        }
    }
    for turn in 0..20 {
        assert_eq!(server.get("/small"), b"content");
        assert_eq!(server.status("PUT", "/whole", &[], b"new"), if turn == 0 { 201 } else { 204 });
    }
    // 2,500 that take nothing have their pieces, and all have some tens of KiB.
    let resident = rss_kib(pid) >> 10;
    assert!(resident < 1024, "{resident} MiB");
    drop(all);
    assert_eq!(server.get("/small"), b"content");
    let mut left = names(mount);
    left.retain(|name| name != "large" && name != "small");
    assert_eq!(left, ["whole"]);
    assert_eq!(camp.status()["http"]["deaths"], 0);
    camp.down();
}

/// S307. What ends with a transfer may have to ask a node, which may be slow; others are answered meanwhile.
#[test]
fn who_hangs_up_keeps_nobody_waiting() {
    const EACH: u64 = 8 << 20;
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    let mut uploads: Vec<Begun> =
        (0..8).map(|at| Begun::new(&server, &format!("/up{at}"), &[], 90_000_000)).collect();
    for upload in &mut uploads {
        upload.0.write_all(&vec![7; EACH as usize]).unwrap();
    }
    let used = || camp.status()["totals"]["used_bytes"].as_u64().unwrap();
    wait_until("all of it is written", || used() > 7 * EACH);
    let node = camp.node_pid(0);
    signal(node, Signal::STOP);
    drop(uploads);
    let asked = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answers: Vec<_> = (0..200).map(|_| raw(&server.address, asked).map(|reply| reply.status)).collect();
    signal(node, Signal::CONT);
    assert!(answers.iter().all(|status| *status == Some(401)), "{answers:?}");
    camp.down();
}

/// S643. As many as that were all that could be collected at the same time.
#[test]
fn bodies_that_do_not_come_keep_nobody_from_webdav() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    let reader = key(&camp, &["--read-only"]);
    let slow: Vec<TcpStream> = (0..80)
        .map(|at| {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            let head = format!("LOCK /f{at} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {reader}\r\n");
            stream.write_all(format!("{head}Content-Length: 10\r\n\r\n<").as_bytes()).unwrap();
            stream
        })
        .collect();
    let all: &[u8] = b"<propfind xmlns='DAV:'><allprop/></propfind>";
    for body in [all, b""] {
        assert_eq!(server.status("PROPFIND", "/", &[("Depth", "0")], body), 207);
    }
    for mut stream in slow {
        // None was answered before those that asked for something.
        stream.set_nonblocking(true).unwrap();
        let nothing_yet = stream.read(&mut [0; 1]).unwrap_err();
        assert_eq!(nothing_yet.kind(), std::io::ErrorKind::WouldBlock);
    }
    camp.down();
}

/// S314.
#[test]
fn times_of_files_are_anything() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let file = mount.join("f");
    let set = |tv_sec: i64| {
        let time = Timespec { tv_sec, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
    };
    std::fs::write(&file, b"first").unwrap();
    camp.wait_until_closed();
    for (time, date) in [
        (-1, "Thu, 01 Jan 1970 00:00:00 GMT"),
        (253_402_300_800, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (1 << 40, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
    ] {
        set(time);
        let head = server.ask("HEAD", "/f", &[], b"");
        assert_eq!((head.status, head.header("last-modified")), (200, date), "{time}");
        assert!(server.ask("GET", "/", &[], b"").text().contains(date));
        assert_eq!(server.status("GET", "/?json", &[], b""), 200);
        assert_eq!(server.status("GET", "/f", &[("If-Modified-Since", date)], b""), 304);
    }
    // Other content of the same length, with the time of before: another state.
    let tag = server.ask("HEAD", "/f", &[], b"").header("etag").to_owned();
    std::fs::write(&file, b"other").unwrap();
    camp.wait_until_closed();
    set(784_111_777);
    assert_ne!(server.ask("HEAD", "/f", &[], b"").header("etag"), tag);
    assert_eq!(server.ask("GET", "/f", &[("If-None-Match", &tag)], b"").body, b"other");
    camp.down();
}

/// Asks by S3, signed by curl: the status, and what came.
pub fn by_s3(server: &Server, method: &str, path: &str, body: &str) -> (u16, String) {
    let (id, _) = server.key.split_once('.').unwrap();
    let output = Command::new("curl")
        .args(["-sS", "--aws-sigv4", "aws:amz:us-east-1:s3", "-w", "\n%{http_code}", "-X", method])
        .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "--data-binary", body])
        .args(["-u", &format!("{id}:{}", server.key), &format!("http://{}{path}", server.address)])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let (text, status) = said.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), text.to_owned())
}

/// Many send the same request to put parts together, as clients do whose answers are late. What is put behind the
/// first answer is replaced by none of them, and what is removed stays so.
#[test]
fn parts_are_put_together_once() {
    const SENT: usize = 6;
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: curl is not installed");
        return;
    }
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    assert_eq!(by_s3(&server, "PUT", "/bucket", "").0, 200);
    let file = camp.mount().join("bucket/f");
    let body = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>";
    for round in 0..8 {
        let (status, text) = by_s3(&server, "POST", "/bucket/f?uploads=", "");
        assert_eq!(status, 200, "{text}");
        let id = text.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap().to_owned();
        assert_eq!(by_s3(&server, "PUT", &format!("/bucket/f?partNumber=1&uploadId={id}"), "parts").0, 200);
        let (answers, answered) = std::sync::mpsc::channel();
        let later = format!("later {round}");
        std::thread::scope(|scope| {
            for _ in 0..SENT {
                let (answers, id, server) = (answers.clone(), &id, &server);
                scope.spawn(move || {
                    answers.send(by_s3(server, "POST", &format!("/bucket/f?uploadId={id}"), body)).unwrap();
                });
            }
            let (status, text) = answered.recv().unwrap();
            assert!(status == 200 && text.contains("CompleteMultipartUploadResult"), "{text}");
            if round % 2 == 0 {
                assert_eq!(server.status("PUT", "/bucket/f", &[], later.as_bytes()), 204);
            } else {
                assert_eq!(server.status("DELETE", "/bucket/f", &[], b""), 204);
            }
            for (status, text) in (1..SENT).map(|_| answered.recv().unwrap()) {
                assert!(status == 200 || (status == 404 && text.contains("NoSuchUpload")), "{status} {text}");
            }
        });
        let found = std::fs::read_to_string(&file).ok();
        assert_eq!(found, (round % 2 == 0).then_some(later), "round {round}");
        let left = names(&camp.mount().join("bucket"));
        assert!(left.iter().all(|name| name == "f"), "{left:?}");
    }
    camp.down();
}

/// Directories are made one in the other, not each from the top, and there are not any number of them.
#[test]
fn keys_cost_no_more_than_their_levels() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: curl is not installed");
        return;
    }
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    assert_eq!(by_s3(&server, "PUT", "/bucket", "").0, 200);
    let requests = || {
        let status = camp.status();
        let nodes = status["nodes"].as_array().unwrap().iter();
        let all = nodes.flat_map(|node| node["operations"].as_array().unwrap().clone());
        let count = |key: &'static str| move |operation: &serde_json::Value| operation[key].as_u64().unwrap();
        all.map(|operation| count("client")(&operation) + count("peer")(&operation)).sum::<u64>()
    };
    let put = |top: &str, levels: usize| {
        let (key, before) = (format!("/bucket/{top}{}/f", "/d".repeat(levels - 1)), requests());
        assert_eq!(by_s3(&server, "PUT", &key, top).0, 200);
        assert_eq!(std::fs::read(camp.mount().join(&key[1..])).unwrap(), top.as_bytes());
        requests() - before
    };
    let (few, many) = (put("few", 50), put("many", 200));
    assert!(many < 7 * few, "{few} requests for 50 levels, {many} for 200");
    let links = camp.mount().join("bucket/many");
    std::os::unix::fs::symlink("many/d", camp.mount().join("bucket/link")).unwrap();
    assert_eq!(by_s3(&server, "PUT", "/bucket/link/new/d/f", "behind a link").0, 200);
    assert_eq!(std::fs::read(links.join("d/new/d/f")).unwrap(), b"behind a link");
    let deep = format!("/bucket/deep{}/f", "/d".repeat(300));
    for (method, path) in [("PUT", deep.clone()), ("POST", format!("{deep}?uploads="))] {
        let (status, text) = by_s3(&server, method, &path, "x");
        assert!(status == 400 && text.contains("<Code>KeyTooLongError</Code>"), "{method}: {status} {text}");
    }
    assert!(!camp.mount().join("bucket/deep").exists(), "nothing is made of it");
    camp.down();
}

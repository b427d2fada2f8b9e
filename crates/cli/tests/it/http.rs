//! Files over HTTP, as a client sees them that writes its requests itself; others are in tests/http.

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::library::{library, served as served_by_node};
use crate::harness::{Camp, Place, Said, is_alive, signal, wait_until};

pub const SERVED: &[&str] = &["--nodes", "2", "--stripe", "64k", "--http", "0", "--http-plain"];

pub struct Server {
    pub address: String,
    pub key: String,
}

/// An answer.
pub struct Reply {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body without the marks of its chunks. It panics if the last chunk is missing.
    pub fn content(&self) -> Vec<u8> {
        if self.header("transfer-encoding") != "chunked" {
            return self.body.clone();
        }
        let (mut rest, mut content) = (self.body.as_slice(), Vec::new());
        loop {
            let end = rest.windows(2).position(|pair| pair == b"\r\n").unwrap();
            let len = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
            let (chunk, behind) = rest[end + 2..].split_at(len);
            if len == 0 {
                return content;
            }
            content.extend_from_slice(chunk);
            rest = &behind[2..];
        }
    }
}

fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 251) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

/// A key, from the last line of what makes it.
pub fn key(camp: &Camp, arguments: &[&str]) -> String {
    let mut all = vec!["key", "create", "--name", camp.name()];
    all.extend(arguments);
    let said = camp.place().run(&all).succeeds();
    let key = said.out.lines().last().unwrap().to_owned();
    assert_eq!(said.out, format!("{key}\n"), "alone on its line");
    key
}

pub fn served(camp: &Camp) -> Server {
    let address = camp.status()["http"]["address"].as_str().unwrap().to_owned();
    Server { address, key: key(camp, &[]) }
}

pub fn parse(bytes: &[u8]) -> Option<Reply> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers =
        lines.filter_map(|line| line.split_once(": ")).map(|(n, v)| (n.to_lowercase(), v.to_owned()));
    Some(Reply { status, headers: headers.collect(), body: bytes[end + 4..].to_vec() })
}

/// Sends bytes as they are, and reads until the server closes.
pub fn raw(address: &str, request: &[u8]) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // What refuses a request may not read all of it.
    let _sent = stream.write_all(request);
    let mut bytes = Vec::new();
    let _reset = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

impl Server {
    pub fn ask_as(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        request.push_str(&format!("Authorization: Bearer {key}\r\nContent-Length: {}\r\n", body.len()));
        headers.iter().for_each(|(name, value)| request.push_str(&format!("{name}: {value}\r\n")));
        let mut bytes = format!("{request}\r\n").into_bytes();
        bytes.extend_from_slice(body);
        let reply = raw(&self.address, &bytes).unwrap_or_else(|| panic!("no answer to {method} {path}"));
        let said = reply.headers.get("content-length").and_then(|len| len.parse::<usize>().ok());
        assert!(method == "HEAD" || reply.status == 304 || said.is_none_or(|len| len == reply.body.len()));
        reply
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.ask_as(&self.key, method, path, headers, body)
    }

    pub fn status(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
        self.ask(method, path, headers, body).status
    }

    pub fn get(&self, path: &str) -> Vec<u8> {
        let reply = self.ask("GET", path, &[], b"");
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.body
    }
}

/// S352.
#[test]
fn files_are_at_their_paths() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let bytes = content(3_000_001, 1);
    std::fs::create_dir(mount.join("a b")).unwrap();
    std::fs::write(mount.join("a b/ä.bin"), &bytes).unwrap();
    camp.wait_until_closed();
    let path = "/a%20b/%C3%A4.bin";
    assert!(server.get(path) == bytes);
    let head = server.ask("HEAD", path, &[("Want-Repr-Digest", "sha-256=1")], b"");
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, "3000001", 0));
    assert!(head.header("repr-digest").starts_with("sha-256=:"));
    assert_eq!(head.header("bivouac-layout"), "stripe=65536; nodes=0,1; here=0,1");
    for (range, from, to) in [("0-9", 0, 10), ("65530-65545", 65530, 65546), ("-7", 2_999_994, 3_000_001)] {
        let part = server.ask("GET", path, &[("Range", &format!("bytes={range}"))], b"");
        assert_eq!((part.status, part.body.as_slice()), (206, &bytes[from..to]));
        assert_eq!(part.header("content-range"), format!("bytes {from}-{}/3000001", to - 1));
    }
    let parts = server.ask("GET", path, &[("Range", "bytes=1-2,1000000-2200000")], b"");
    let boundary = parts.header("content-type").split_once("boundary=").unwrap().1.to_owned();
    assert_eq!(parts.status, 206);
    let second = b"Content-Range: bytes 1000000-2200000/3000001\r\n\r\n";
    let at = parts.body.windows(second.len()).position(|window| window == second).unwrap() + second.len();
    assert!(parts.body[at..at + 1_200_001] == bytes[1_000_000..2_200_001]);
    assert_eq!(parts.body[at + 1_200_001..], *format!("\r\n--{boundary}--\r\n").as_bytes());
    assert_eq!(server.status("GET", path, &[("Range", "bytes=3000001-")], b""), 416);

    let tag = head.header("etag").to_owned();
    assert_eq!(server.status("GET", path, &[("If-None-Match", &tag)], b""), 304);
    assert_eq!(server.status("GET", path, &[("If-Match", "\"x\"")], b""), 412);
    assert_eq!(server.status("GET", path, &[("If-Modified-Since", head.header("last-modified"))], b""), 304);
    let other = server.ask("GET", path, &[("Range", "bytes=0-0"), ("If-Range", "\"x\"")], b"");
    assert_eq!((other.status, other.body.len()), (200, bytes.len()));
    assert_eq!(server.ask("GET", path, &[("Range", "bytes=0-0"), ("If-Range", &tag)], b"").status, 206);

    let moved = server.ask("GET", "/a%20b", &[], b"");
    assert_eq!((moved.status, moved.header("location")), (301, "/a%20b/"));
    let listed = server.ask("GET", "/a%20b/", &[("Accept", "application/json")], b"");
    let unchunked = listed.text();
    let json = &unchunked[unchunked.find('[').unwrap()..=unchunked.rfind(']').unwrap()];
    let entries: Value = serde_json::from_str(json).unwrap();
    assert_eq!((&entries[0]["name"], &entries[0]["size"]), (&"ä.bin".into(), &3_000_001.into()));
    assert!(server.ask("GET", "/", &[], b"").text().contains("<a href=\"./a%20b/\">a b/</a>"));
    let metalink = server.ask("GET", &format!("{path}?metalink"), &[], b"").text();
    assert!(
        metalink.contains("<size>3000001</size>") && metalink.matches("<hash>").count() == 3,
        "{metalink}"
    );
    assert!(metalink.contains(&format!("http://{}{path}</url>", server.address)), "{metalink}");
    assert_eq!(server.status("GET", "/none", &[], b""), 404);
    assert_eq!(server.status("POST", path, &[], b""), 405);
    camp.down();
}

/// S353.
#[test]
fn what_is_put_is_there_whole_or_not_at_all() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let (bytes, other) = (content(2_500_000, 2), content(100_000, 3));
    assert_eq!(server.status("PUT", "/f", &[], &bytes), 201);
    assert!(std::fs::read(mount.join("f")).unwrap() == bytes);
    assert_eq!(server.status("PUT", "/f", &[], &other), 204);
    assert!(std::fs::read(mount.join("f")).unwrap() == other);
    // Conditions, digests, and what cannot be.
    let tag = server.ask("HEAD", "/f", &[], b"").header("etag").to_owned();
    assert_eq!(server.status("PUT", "/f", &[("If-None-Match", "*")], b"no"), 412);
    assert_eq!(server.status("PUT", "/f", &[("If-Match", "\"x\"")], b"no"), 412);
    let wrong = "sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:";
    assert_eq!(server.status("PUT", "/f", &[("Repr-Digest", wrong)], b"no"), 400);
    assert_eq!(server.status("PUT", "/f", &[("Content-Encoding", "gzip")], b"no"), 415);
    assert!(std::fs::read(mount.join("f")).unwrap() == other);
    assert_eq!(server.status("PUT", "/f", &[("If-Match", &tag)], b"yes"), 204);
    let right = "sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:";
    assert_eq!(
        server.status("PUT", "/new", &[("If-None-Match", "*"), ("Content-Digest", right)], b"abc"),
        201
    );
    assert_eq!(std::fs::read(mount.join("f")).unwrap(), b"yes");
    assert_eq!(server.status("PUT", "/none/f", &[], b"x"), 409);
    assert_eq!(server.status("MKCOL", "/d", &[], b""), 201);
    assert_eq!(
        (server.status("MKCOL", "/d", &[], b""), server.status("MKCOL", "/x/d", &[], b"")),
        (405, 409)
    );
    assert_eq!((server.status("PUT", "/d", &[], b"x"), server.status("PUT", "/d/", &[], b"x")), (409, 409));
    assert_eq!(server.status("PUT", "/d/f", &[], b"in it"), 201);
    assert_eq!(
        (server.status("DELETE", "/d", &[], b""), server.status("DELETE", "/d/f", &[], b"")),
        (409, 204)
    );
    assert_eq!(
        (server.status("DELETE", "/d/", &[], b""), server.status("DELETE", "/d", &[], b"")),
        (204, 404)
    );

    // A client that breaks off, and a server that is killed, in the middle of it.
    let begin = |len: usize| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let head = format!(
            "PUT /f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {len}\r\n\r\n",
            server.key
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&bytes).unwrap();
        stream
    };
    drop(begin(bytes.len() + 1));
    let stream = begin(bytes.len() + 1);
    let pid = camp.status()["http"]["pid"].as_u64().unwrap();
    signal(pid, Signal::KILL);
    wait_until("the killed server is gone", || !is_alive(pid));
    drop(stream);
    assert_eq!(server.get("/f"), b"yes", "by the next server");
    assert_eq!(camp.status()["http"]["deaths"], 1);
    let mut names: Vec<_> = std::fs::read_dir(mount).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["f", "new"], "nothing is left of them");
    camp.down();
}

/// S354.
#[test]
fn an_upload_goes_on_where_it_was_broken_off() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let bytes = content(3_000_000, 4);
    let part =
        |range: &str, body: &[u8]| server.ask("PUT", "/up?upload=a1", &[("Content-Range", range)], body);
    let none = part("bytes */3000000", b"");
    assert_eq!((none.status, none.header("range")), (308, ""));
    let first = part("bytes 0-1499999/3000000", &bytes[..1_500_000]);
    assert_eq!((first.status, first.header("range")), (308, "bytes=0-1499999"));
    assert!(!mount.join("up").exists());
    assert_eq!(part("bytes 1600000-1600000/3000000", b"x").status, 416, "a gap");
    assert_eq!(part("bytes 1500000-1500001/3000000", b"xyz").status, 400, "too long");
    // Killed and gone on with.
    let pid = camp.status()["http"]["pid"].as_u64().unwrap();
    signal(pid, Signal::KILL);
    wait_until("the killed server is gone", || !is_alive(pid));
    let so_far = part("bytes */3000000", b"");
    assert_eq!(so_far.status, 308);
    let last: usize = so_far.header("range").strip_prefix("bytes=0-").unwrap().parse().unwrap();
    assert!((1_499_999..1_500_002).contains(&last));
    assert_eq!(camp.mount().read_dir().unwrap().count(), 1);
    let rest = part("bytes 1500000-2999999/3000000", &bytes[1_500_000..]);
    assert_eq!(rest.status, 201, "{}", rest.text());
    assert!(std::fs::read(mount.join("up")).unwrap() == bytes);
    assert_eq!(std::fs::read_dir(mount).unwrap().count(), 1);
    assert_eq!(part("bytes 5-4/10", b"").status, 400);
    camp.down();
}

/// What is asked for again is not opened again, and is seen as it is: changed, replaced, removed.
#[test]
fn a_small_file_that_many_ask_for_is_opened_once() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let get = || server.ask("GET", "/f", &[], b"");
    std::fs::write(mount.join("f"), b"first").unwrap();
    assert_eq!(get().body, b"first");
    let client = library(&camp.dir());
    // A machine that is slow for a second, or for a tenth, has it opened, or the key looked up, anew.
    wait_until("fifty requests open it and look the key up less often, and where it is once at most", || {
        let before = ["Lookup", "Open", "GetXattr"].map(|op| served_by_node(&client, op));
        for round in 0..50 {
            assert_eq!(get().body, b"first", "{round}");
        }
        let after = ["Lookup", "Open", "GetXattr"].map(|op| served_by_node(&client, op));
        after[1] - before[1] < 25 && after[2] - before[2] < 50 && after[0] - before[0] <= 50
    });
    std::fs::write(mount.join("f"), b"longer than before").unwrap();
    assert_eq!(get().body, b"longer than before");
    std::fs::write(mount.join("g"), b"another").unwrap();
    std::fs::rename(mount.join("g"), mount.join("f")).unwrap();
    assert_eq!(get().body, b"another");
    std::fs::remove_file(mount.join("f")).unwrap();
    assert_eq!(get().status, 404);
    wait_until("what was removed is closed", || camp.status()["totals"]["open_files"] == 0);
    camp.down();
}

/// S665. Answers that take no message, and changes of what they are of.
#[test]
fn what_is_sent_without_asking_is_never_an_old_one() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, client, file) = (served(&camp), library(&camp.dir()), camp.mount().join("d/f"));
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "0").unwrap();
    for round in 1..=8 {
        let before = (round - 1).to_string();
        wait_until("some of the requests for one file take no message", || {
            let asked = served_by_node(&client, "Lookup");
            (0..20).for_each(|_| assert_eq!(server.get("/d/f"), before.as_bytes()));
            // Of two names each.
            served_by_node(&client, "Lookup") - asked < 30
        });
        let now = round.to_string();
        match round % 4 {
            0 => std::fs::write(&file, &now).unwrap(),
            1 => {
                std::fs::write(file.with_extension("new"), &now).unwrap();
                std::fs::rename(file.with_extension("new"), &file).unwrap();
            }
            2 => assert_eq!(server.status("PUT", "/d/f", &[], now.as_bytes()), 204),
            _ => {
                std::fs::rename(file.parent().unwrap(), camp.mount().join("e")).unwrap();
                assert_eq!(server.ask("GET", "/d/f", &[], b"").status, 404);
                std::fs::create_dir(file.parent().unwrap()).unwrap();
                std::fs::write(&file, &now).unwrap();
                std::fs::remove_dir_all(camp.mount().join("e")).unwrap();
            }
        }
        assert_eq!(server.get("/d/f"), now.as_bytes());
    }
    camp.down();
}

/// S355.
#[test]
fn only_who_has_a_key_gets_in_and_only_as_far_as_it_says() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    std::fs::create_dir_all(mount.join("in/deep")).unwrap();
    std::fs::write(mount.join("in/f"), b"inside").unwrap();
    std::fs::write(mount.join("out"), b"outside").unwrap();
    std::os::unix::fs::symlink("f", mount.join("in/near")).unwrap();
    std::os::unix::fs::symlink("../out", mount.join("in/up")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", mount.join("in/host")).unwrap();
    std::os::unix::fs::symlink("..", mount.join("in/dir")).unwrap();
    let scoped = key(&camp, &["--path", "/in"]);
    let reader = key(&camp, &["--path", "in/", "--read-only"]);
    let of = |key: &str, method: &str, path: &str| server.ask_as(key, method, path, &[], b"new").status;
    assert_eq!(server.ask_as(&scoped, "GET", "/in/near", &[], b"").body, b"inside");
    for key in [&scoped, &reader] {
        for path in ["/out", "/", "/in/up", "/in/host", "/in/dir/out", "/in2", "/inf"] {
            assert_eq!(of(key, "GET", path), 403, "{path}");
            assert_eq!(of(key, "PUT", path), 403, "{path}");
        }
    }
    assert_eq!(server.status("GET", "/in/up", &[], b""), 200, "the whole formation's key");
    assert_eq!(server.status("GET", "/in/host", &[], b""), 403, "nothing of the host");
    for method in ["PUT", "DELETE", "MKCOL"] {
        assert_eq!(of(&reader, method, "/in/f"), 403);
    }
    assert_eq!((of(&scoped, "PUT", "/in/f"), of(&scoped, "DELETE", "/in")), (204, 403));
    assert_eq!(std::fs::read(mount.join("in/f")).unwrap(), b"new");
    // A link is removed and not what it leads to.
    assert_eq!((of(&scoped, "DELETE", "/in/host"), of(&scoped, "DELETE", "/in/dir")), (204, 204));
    // The password of anybody; nobody; a key of another formation; revoked; expired.
    let encoded = base64_of(&format!("me:{}", server.key));
    let basic = format!(
        "GET /out HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {encoded}\r\n\r\n"
    );
    assert_eq!(raw(&server.address, basic.as_bytes()).unwrap().body, b"outside");
    let nobody = raw(&server.address, b"GET /out HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!((nobody.status, nobody.text().contains("outside")), (401, false));
    let (id, secret) = scoped.split_once('.').unwrap();
    for wrong in [
        id,
        secret,
        &format!("{id}.{}", "A".repeat(secret.len())),
        &format!("{}.{secret}", &server.key[..20]),
    ] {
        assert_eq!(of(wrong, "GET", "/in/f"), 401);
    }
    assert_eq!(camp.place().run(&["key", "revoke", "--name", camp.name(), id]).code, 0);
    assert_eq!(of(&scoped, "GET", "/in/f"), 401);
    assert_eq!(camp.place().run(&["key", "revoke", "--name", camp.name(), id]).code, 1);
    let short = key(&camp, &["--expires", "1s"]);
    wait_until("the key expires", || of(&short, "GET", "/in/f") == 401);
    // It says what there is, and the keys are nowhere.
    let listed: Value =
        serde_json::from_str(&camp.place().run(&["key", "list", "--name", camp.name(), "--json"]).out)
            .unwrap();
    let of_short =
        listed.as_array().unwrap().iter().find(|key| short.starts_with(key["id"].as_str().unwrap()));
    assert_eq!((listed.as_array().unwrap().len(), &of_short.unwrap()["expired"]), (3, &true.into()));
    for entry in std::fs::read_dir(camp.dir()).unwrap().flatten().filter(|e| e.file_type().unwrap().is_file())
    {
        let kept = String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned();
        assert!(
            ![&server.key, &scoped, &short].iter().any(|key| kept.contains(key.split_once('.').unwrap().1))
        );
    }
    camp.down();
}

fn base64_of(text: &str) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in text.as_bytes().chunks(3) {
        let bits =
            (0..3).fold(0_usize, |bits, at| bits << 8 | usize::from(three.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let letter = char::from(LETTERS[bits >> (18 - 6 * at) & 63]);
            out.push(if at <= three.len() { letter } else { '=' });
        }
    }
    out
}

/// S356.
#[test]
fn hostile_requests_are_refused_and_harm_nobody() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    assert_eq!(server.status("PUT", "/f", &[], b"content"), 201);
    for path in ["/../f", "/%2e%2e/f", "/x%2ff", "/f%00", "/.", "//..//f", "/%2e%2e%2fetc/passwd"] {
        assert_eq!(server.status("GET", path, &[], b""), 400, "{path}");
    }
    let auth = format!("Host: x\r\nAuthorization: Bearer {}\r\n", server.key);
    let status = |request: String| raw(&server.address, request.as_bytes()).map(|reply| reply.status);
    let huge = "x".repeat(100_000);
    assert_eq!(status(format!("GET /f HTTP/1.1\r\n{auth}X: {huge}\r\n\r\n")), Some(431));
    let many = "X: y\r\n".repeat(1000);
    assert_eq!(status(format!("GET /f HTTP/1.1\r\n{auth}{many}\r\n\r\n")), Some(431));
    assert_eq!(status("\u{0}\u{1}nonsense\r\n\r\n".into()), Some(400));
    // One host, as RFC 9112 has it (3.2).
    let bearer = format!("Authorization: Bearer {}\r\nConnection: close\r\n", server.key);
    for (head, wanted) in [
        ("GET /f HTTP/1.1\r\n", 400),
        ("GET /f HTTP/1.1\r\nHost: x\r\nHost: x\r\n", 400),
        ("GET /f HTTP/1.1\r\nHost: x\r\nhost: y\r\n", 400),
        ("GET /f HTTP/1.1\r\nHost: x/y\r\n", 400),
        ("GET /f HTTP/1.1\r\nHost: a b\r\n", 400),
        ("GET /f HTTP/1.0\r\nHost: u@x\r\n", 400),
        ("PUT /g HTTP/1.1\r\nContent-Length: 0\r\n", 400),
        ("GET /f HTTP/1.1\r\nHost: [::1]:80\r\n", 200),
        ("GET /f HTTP/1.1\r\nHost:\r\n", 200),
        ("GET /f HTTP/1.0\r\n", 200),
    ] {
        assert_eq!(status(format!("{head}{bearer}\r\n")), Some(wanted), "{head}");
    }
    assert_eq!(server.status("GET", "/g", &[], b""), 404);
    // A second request inside of the first one's body, for whom one header counts and not the other: the connection
    // ends.
    let inner = format!("DELETE /f HTTP/1.1\r\n{auth}\r\n");
    for (first, second) in [
        (format!("Content-Length: {}", inner.len() + 5), "Transfer-Encoding: chunked".to_owned()),
        ("Transfer-Encoding: chunked".to_owned(), format!("Content-Length: {}", inner.len() + 5)),
        ("Content-Length: 5".to_owned(), "Content-Length: 0".to_owned()),
        ("Transfer-Encoding: xchunked".to_owned(), "Content-Length: 5".to_owned()),
        ("Transfer-Encoding : chunked".to_owned(), "Content-Length: 5".to_owned()),
    ] {
        let smuggled = format!("PUT /g HTTP/1.1\r\n{auth}{first}\r\n{second}\r\n\r\n0\r\n\r\n{inner}");
        let reply = raw(&server.address, smuggled.as_bytes()).unwrap();
        assert!(matches!(reply.status, 400 | 201 | 204), "{first}, {second}: {}", reply.status);
        assert!(!reply.text().contains("HTTP/1.1"), "{first}, {second}: {}", reply.text());
    }
    assert_eq!(server.get("/f"), b"content");
    // Thousands who say nothing, or half a request, keep nobody else from being served.
    let mut silent = Vec::new();
    for turn in 0..2000 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        if turn % 2 == 0 {
            stream.write_all(b"GET /f HTTP/1.1\r\nHost").unwrap();
        }
        silent.push(stream);
    }
    assert_eq!(server.get("/f"), b"content");
    // They are not kept for ever. It answers what it has of them, or closes.
    let first = silent.first_mut().unwrap();
    first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let closed = first.read_to_end(&mut Vec::new()).err();
    assert!(closed.as_ref().is_none_or(|error| error.kind() == ErrorKind::ConnectionReset), "{closed:?}");
    assert_eq!(camp.status()["http"]["deaths"], 0);
    camp.down();
}

/// S357.
#[test]
fn daemons_that_are_killed_break_no_download() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, bytes) = (served(&camp), content(40_000_000, 5));
    std::fs::write(camp.mount().join("f"), &bytes).unwrap();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "GET /f HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
        server.key
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut got = vec![0; 1_000_000];
    stream.read_exact(&mut got).unwrap();
    camp.kill_node(0);
    camp.kill_node(1);
    stream.read_to_end(&mut got).unwrap();
    assert!(parse(&got).unwrap().body == bytes);
    assert_eq!(server.status("PUT", "/g", &[], b"after"), 201);
    assert_eq!(std::fs::read(camp.mount().join("g")).unwrap(), b"after");
    camp.down();
}

#[test]
fn a_server_that_cannot_be_is_said_at_once() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let address = camp.status()["http"]["address"].as_str().unwrap().to_owned();
    let taken = camp.place().run(&["up", "--name", "second", "--http", &address, "--no-mount"]);
    assert_ne!(taken.code, 0);
    assert!(taken.err.contains(&format!("--http {address}: ")), "{}", taken.err);
    let open =
        camp.place().run(&["up", "--name", "third", "--http", "0.0.0.0:0", "--http-plain", "--no-mount"]);
    assert!(open.code == 2 && open.err.contains("--http-plain: without TLS"), "{}", open.err);
    camp.down();
}

/// The SHA-256 of the certificate that a server says it has.
fn fingerprint(said: &Said) -> &str {
    let text = [&said.out, &said.err].into_iter().find(|text| text.contains("SHA-256 ")).unwrap();
    text.split("SHA-256 ").nth(1).unwrap().split(')').next().unwrap()
}

/// S385.
#[test]
fn a_certificate_of_ones_own_is_served() {
    let place = Place::new();
    let up = |name: &str, pem: &str| {
        place.run(&["up", "--no-mount", "--name", name, "--http", "0", "--http-certificate", pem])
    };
    let (made, own) = (Place::unique_name(), Place::unique_name());
    let first = place.run(&["up", "--no-mount", "--name", &made, "--http", "0"]);
    let text = ["http.pem", "http.key"]
        .map(|file| std::fs::read_to_string(place.formation_dir(&made).join(file)).unwrap());
    assert!(!text[0].contains("PRIVATE"), "clients are pointed to it");
    let pem = place.path().join("both.pem").display().to_string();
    std::fs::write(&pem, text.concat()).unwrap();
    let second = up(&own, &pem);
    assert_eq!((first.code, second.code), (0, 0), "{}", second.err);
    assert_eq!(fingerprint(&first), fingerprint(&second));
    assert!(!place.formation_dir(&own).join("http.pem").exists(), "none was made");
    let damaged = place.path().join("damaged.pem");
    let text = std::fs::read_to_string(&pem).unwrap();
    // Without the private key.
    std::fs::write(&damaged, &text[..text.rfind("-----BEGIN").unwrap()]).unwrap();
    for wrong in [damaged.display().to_string(), place.path().join("none").display().to_string()] {
        let refused = up(&Place::unique_name(), &wrong);
        assert!(refused.code == 1 && refused.err.contains(&wrong), "{}: {}", refused.code, refused.err);
    }
    for file in [damaged, pem.into()] {
        std::fs::remove_file(file).unwrap();
    }
    for name in [made, own] {
        assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
    }
    assert!(place.is_empty());
}

/// A directory as an archive, unpacked by tar, is the directory.
#[test]
fn a_directory_is_downloaded_as_an_archive() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    let top = camp.mount().join("run 1");
    let deep = top.join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    for (name, len) in [("empty", 0), ("record", 512), ("odd", 700_001), ("large", 3_000_000)] {
        fs::write(top.join(name), vec![name.len() as u8; len]).unwrap();
    }
    fs::write(deep.join("deep"), "deep").unwrap();
    std::os::unix::fs::symlink("odd", top.join("link")).unwrap();
    let reply = server.ask("GET", "/run%201/?tar", &[], b"");
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/x-tar"));
    assert_eq!(reply.header("content-disposition"), "attachment; filename*=UTF-8''run%201.tar");
    let place = camp.place().path().join("unpacked");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("a.tar"), reply.content()).unwrap();
    let tar = Command::new("tar").args(["xf", "a.tar"]).current_dir(&place).output().unwrap();
    assert!(tar.status.success() && tar.stderr.is_empty(), "{}", String::from_utf8_lossy(&tar.stderr));
    let same = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .arg(&top)
        .arg(place.join("run 1"))
        .output()
        .unwrap();
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
    let bound = key(&camp, &["--path", "/run 1/link"]);
    assert_eq!(server.ask_as(&bound, "GET", "/run%201/?tar", &[], b"").status, 403);
    // Who only asks what it would be gets the same head, and nothing behind it.
    let head = server.ask("HEAD", "/run%201/?tar", &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    for name in ["content-type", "content-disposition", "cache-control"] {
        assert_eq!(head.header(name), reply.header(name), "{name}");
    }
    assert!(!head.headers.contains_key("content-length"), "nobody knows its length before");
}

//! WebDAV, as a file manager sees it that writes its requests itself; litmus, rclone and others are in tests/http.

use rustix::process::Signal;

use crate::harness::{Camp, assert_contains, is_alive, signal, wait_until};
use crate::hosts::Hosts;
use crate::http::{Reply, SERVED, Server, key, served};
use crate::http_attacked::by_s3;

pub const EXCLUSIVE: &[u8] =
    b"<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/>\
    </D:locktype><D:owner><D:href>me</D:href></D:owner></D:lockinfo>";
const SHARED: &[u8] =
    b"<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:shared/></D:lockscope><D:locktype><D:write/>\
    </D:locktype></D:lockinfo>";

/// A lock's token.
pub fn locked(server: &Server, path: &str, headers: &[(&str, &str)], body: &[u8]) -> String {
    let reply = server.ask("LOCK", path, headers, body);
    assert!(matches!(reply.status, 200 | 201), "{path}: {} {}", reply.status, reply.text());
    let token = reply.header("lock-token").trim_start_matches('<').trim_end_matches('>').to_owned();
    assert!(reply.text().contains(&format!("<D:href>{token}</D:href>")), "{}", reply.text());
    token
}

/// What comes by chunks, put together.
pub fn whole(reply: &Reply) -> String {
    if reply.header("transfer-encoding") != "chunked" {
        return reply.text();
    }
    let (mut left, mut all) = (reply.body.as_slice(), Vec::new());
    loop {
        let end = left.windows(2).position(|window| window == b"\r\n").unwrap();
        let len = usize::from_str_radix(std::str::from_utf8(&left[..end]).unwrap(), 16).unwrap();
        if len == 0 {
            return String::from_utf8(all).unwrap();
        }
        all.extend_from_slice(&left[end + 2..end + 2 + len]);
        left = &left[end + len + 4..];
    }
}

/// An answer is XML.
fn xml(reply: &Reply) -> String {
    let text = whole(reply);
    assert!(roxmltree::Document::parse(&text).is_ok(), "{text}");
    assert_eq!(reply.header("content-type"), "application/xml; charset=utf-8");
    text
}

fn kill_server(camp: &Camp) {
    let mut pid = 0;
    wait_until("there is a server", || {
        pid = camp.status()["http"]["pid"].as_u64().unwrap_or_default();
        pid != 0 && is_alive(pid)
    });
    signal(pid, Signal::KILL);
    wait_until("the killed server is gone", || !is_alive(pid));
}

/// S640.
#[test]
fn what_is_locked_changes_who_has_the_token() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    std::fs::create_dir_all(mount.join("d/e")).unwrap();
    std::fs::write(mount.join("d/f"), b"first").unwrap();
    std::fs::write(mount.join("g"), b"other").unwrap();
    let token = locked(&server, "/d/f", &[("Timeout", "Second-600")], EXCLUSIVE);
    let to_f = [("Destination", "/d/f")];
    let away = [("Destination", "/h")];
    for (method, path, headers) in [
        ("PUT", "/d/f", &[][..]),
        ("DELETE", "/d/f", &[]),
        ("DELETE", "/d/", &[]),
        ("MOVE", "/d/f", &away),
        ("MOVE", "/d", &away),
        ("MOVE", "/g", &to_f),
        ("COPY", "/g", &to_f),
        ("PROPPATCH", "/d/f", &[]),
        ("LOCK", "/d/f", &[]),
        ("LOCK", "/d", &[]),
    ] {
        let body: &[u8] = match method {
            "LOCK" => SHARED,
            "PROPPATCH" => {
                b"<propertyupdate xmlns='DAV:'><remove><prop><a/></prop></remove></propertyupdate>"
            }
            "PUT" => b"second",
            _ => b"",
        };
        let reply = server.ask(method, path, headers, body);
        assert_eq!(reply.status, 423, "{method} {path}: {}", reply.text());
        assert!(xml(&reply).contains("<D:href>/d/f</D:href>"), "{}", reply.text());
    }
    assert_eq!(server.get("/d/f"), b"first");
    assert_eq!(server.status("PUT", "/d/new", &[], b"x"), 201, "beside it all is free");
    assert_eq!(server.status("COPY", "/d/f", &[("Destination", "/copy")], b""), 201);
    assert_eq!(server.status("PUT", "/copy", &[], b"free"), 204, "a copy is not locked");

    // By whose key it is counts, too; and a condition that does not hold changes nothing.
    let with = format!("(<{token}>)");
    let other = key(&camp, &[]);
    assert_eq!(server.ask_as(&other, "PUT", "/d/f", &[("If", &with)], b"second").status, 423);
    assert_eq!(server.status("PUT", "/d/f", &[("If", "(<urn:uuid:x>)")], b"second"), 412);
    assert_eq!(server.status("PUT", "/d/f", &[("If", "(Not <DAV:no-lock>)")], b"second"), 423);
    assert_eq!(server.status("PUT", "/d/f", &[("If", "(")], b"second"), 400);
    assert_eq!(server.get("/d/f"), b"first");

    // A lock outlives the server.
    kill_server(&camp);
    assert_eq!(server.status("PUT", "/d/f", &[], b"second"), 423);
    assert_eq!(server.status("PUT", "/d/f", &[("If", &with)], b"second"), 204);
    let tag = server.ask("HEAD", "/d/f", &[], b"").header("etag").to_owned();
    let both = format!("(<{token}> [\"x\"])(<{token}> [{tag}])");
    assert_eq!(server.status("PUT", "/d/f", &[("If", &both)], b"third"), 204);
    assert_eq!(server.status("PUT", "/d/f", &[("If", &both)], b"fourth"), 412, "the tag is another");
    let tagged = format!("</d/f> (<{token}>)");
    assert_eq!(
        server.status("MOVE", "/g", &[("Destination", "/d/f"), ("If", &tagged)], b""),
        204,
        "as one saves"
    );
    assert_eq!(server.get("/d/f"), b"other");
    assert_eq!(server.status("PUT", "/d/f", &[], b"fifth"), 423, "it is still locked");
    let longer = server.ask("LOCK", "/d/f", &[("If", &with), ("Timeout", "Second-900")], b"");
    assert_eq!((longer.status, xml(&longer).contains("<D:timeout>Second-")), (200, true));
    assert_eq!(server.status("UNLOCK", "/d/f", &[("Lock-Token", "<urn:uuid:x>")], b""), 409);
    assert_eq!(server.status("UNLOCK", "/d/f", &[("Lock-Token", &format!("<{token}>"))], b""), 204);
    assert_eq!(server.status("PUT", "/d/f", &[], b"sixth"), 204);

    // A directory keeps its entries, and with all below it everything.
    let shallow = locked(&server, "/d", &[("Depth", "0")], EXCLUSIVE);
    assert_eq!(server.status("PUT", "/d/f", &[], b"seventh"), 204);
    assert_eq!(
        (server.status("PUT", "/d/n", &[], b"x"), server.status("MKCOL", "/d/m", &[], b"")),
        (423, 423)
    );
    let with = format!("</d> (<{shallow}>)");
    assert_eq!(server.status("MKCOL", "/d/m", &[("If", &with)], b""), 201);
    assert_eq!(server.status("UNLOCK", "/d", &[("Lock-Token", &format!("<{shallow}>"))], b""), 204);
    let deep = locked(&server, "/d", &[("Depth", "infinity")], SHARED);
    let second = locked(&server, "/d/f", &[], SHARED);
    assert_eq!(server.status("LOCK", "/d/e", &[], EXCLUSIVE), 423);
    for token in [&deep, &second] {
        assert_eq!(server.status("PUT", "/d/f", &[("If", &format!("</d/f> (<{token}>)"))], b"x"), 204);
    }
    assert_eq!(server.status("DELETE", "/d/", &[("If", &format!("</d> (<{deep}>)"))], b""), 204);
    assert_eq!(server.status("PUT", "/d", &[], b"a file by now"), 201, "locks end with what they were of");

    // What is locked where nothing is, is made; and a lock ends by itself.
    let short = locked(&server, "/new", &[("Timeout", "Second-1")], EXCLUSIVE);
    assert_eq!(std::fs::read(mount.join("new")).unwrap(), b"");
    wait_until("the lock has ended", || server.status("PUT", "/new", &[], b"x") == 204);
    assert_eq!(server.status("UNLOCK", "/new", &[("Lock-Token", &format!("<{short}>"))], b""), 409);
    assert_eq!(server.status("LOCK", "/none/f", &[], EXCLUSIVE), 409);
    camp.down();
}

/// S640: who locks at one host has it locked at all.
#[test]
fn locks_count_at_the_servers_of_all_hosts() {
    let hosts = Hosts::new();
    let servers = hosts.served("a,b");
    let [a, b] = servers.as_slice() else { panic!("{} servers", servers.len()) };
    assert_eq!(a.status("PUT", "/f", &[], b"first"), 201);
    let token = locked(a, "/f", &[], EXCLUSIVE);
    assert_eq!((b.status("PUT", "/f", &[], b"second"), b.status("LOCK", "/f", &[], EXCLUSIVE)), (423, 423));
    assert!(xml(&b.ask("PROPFIND", "/f", &[("Depth", "0")], b"")).contains(&token));
    assert_eq!(b.status("PUT", "/f", &[("If", &format!("(<{token}>)"))], b"second"), 204);
    assert_eq!(a.get("/f"), b"second");
    assert_eq!(b.status("UNLOCK", "/f", &[("Lock-Token", &format!("<{token}>"))], b""), 204);

    // Of all who want it at the same time, at either server, one has it; and none of the others' locks is lost.
    for round in 0..5 {
        let path = format!("/wanted{round}");
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let ask = |at: usize| {
                let (server, path) = ([a, b][at % 2], path.clone());
                scope.spawn(move || {
                    assert_eq!(server.status("LOCK", &format!("{path}-{at}"), &[], EXCLUSIVE), 201);
                    server.status("LOCK", &path, &[], EXCLUSIVE)
                })
            };
            let all: Vec<_> = (0..6).map(ask).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(statuses.iter().filter(|status| **status != 423).count(), 1, "{statuses:?}");
        for at in 0..6 {
            assert_eq!(b.status("PUT", &format!("{path}-{at}"), &[], b"x"), 423, "{at}");
        }
    }
    hosts.down().succeeds();
}

/// S641.
#[test]
fn copies_and_moves_are_there_whole_or_not_at_all() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let big: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
    std::fs::create_dir_all(mount.join("d/deep/er")).unwrap();
    std::fs::write(mount.join("d/deep/er/big"), &big).unwrap();
    std::fs::write(mount.join("d/a b&ä"), b"named").unwrap();
    std::os::unix::fs::symlink("deep", mount.join("d/link")).unwrap();
    std::os::unix::fs::symlink("/etc", mount.join("d/out")).unwrap();
    std::fs::write(mount.join("f"), b"file").unwrap();
    let to = |path: &str, overwrite: &str, method: &str, from: &str| {
        server.status(method, from, &[("Destination", path), ("Overwrite", overwrite)], b"")
    };
    let is_d = |name: &str| {
        let at = mount.join(name);
        std::fs::read(at.join("deep/er/big")).is_ok_and(|read| read == big)
            && std::fs::read(at.join("a b&ä")).unwrap() == b"named"
            && std::fs::read_link(at.join("link")).unwrap().as_os_str() == "deep"
            && std::fs::read_link(at.join("out")).unwrap().as_os_str() == "/etc"
    };
    assert_eq!(to(&format!("http://{}/copy/", server.address), "T", "COPY", "/d/"), 201);
    assert!(is_d("copy") && is_d("d"));
    assert_eq!(server.status("COPY", "/d", &[("Destination", "/alone"), ("Depth", "0")], b""), 201);
    assert_eq!(std::fs::read_dir(mount.join("alone")).unwrap().count(), 0);
    for (method, from, path, status) in [
        ("COPY", "/f", "/copy", 412),
        ("MOVE", "/f", "/copy", 412),
        ("MOVE", "/d", "/f", 412),
        ("COPY", "/d", "/none/d", 409),
        ("MOVE", "/f", "/f/g", 403),
        ("MOVE", "/f", "/d/a%20b%26%C3%A4/g", 409),
        ("MOVE", "/f", "/f", 403),
        ("MOVE", "/d", "/d/deep/d", 403),
        ("COPY", "/d", "/d/deep/d", 403),
        ("MOVE", "/d/deep", "/d", 403),
        ("MOVE", "/none", "/x", 404),
        ("COPY", "/none", "/x", 404),
        ("MOVE", "/f", "http://elsewhere/f", 502),
        ("MOVE", "/f", "/a%2fb", 400),
        ("MOVE", "/f", "/../f2", 400),
        ("MOVE", "/f", "/a%00", 400),
        ("MOVE", "/f", "/.bivouac-put-1", 400),
        ("MOVE", "/f", "f2", 400),
        ("MOVE", "/", "/x", 403),
    ] {
        assert_eq!(to(path, "F", method, from), status, "{method} {from} {path}");
    }
    assert_eq!(server.status("MOVE", "/f", &[], b""), 400);
    assert_eq!(server.status("MOVE", "/d", &[("Destination", "/x"), ("Depth", "0")], b""), 400);
    assert!(is_d("copy") && is_d("d"));

    // What is replaced is replaced by all of the other, of whatever kind it was.
    std::fs::write(mount.join("copy/only here"), b"x").unwrap();
    assert_eq!(to("/copy", "T", "COPY", "/d"), 204);
    assert!(is_d("copy") && !mount.join("copy/only here").exists());
    assert_eq!(to("/copy", "T", "COPY", "/f"), 204);
    assert_eq!(std::fs::read(mount.join("copy")).unwrap(), b"file");
    assert_eq!(to("/copy", "T", "MOVE", "/d"), 204);
    assert!(is_d("copy") && !mount.join("d").exists());
    assert_eq!(to("/copy", "T", "MOVE", "/f"), 204);
    assert_eq!(std::fs::read(mount.join("copy")).unwrap(), b"file");
    std::fs::write(mount.join("g"), b"new").unwrap();
    assert_eq!(to("/copy", "T", "MOVE", "/g"), 204);
    assert_eq!(std::fs::read(mount.join("copy")).unwrap(), b"new");
    std::fs::hard_link(mount.join("copy"), mount.join("same")).unwrap();
    assert_eq!(to("/copy", "T", "MOVE", "/same"), 204, "two names of one file");
    let mut names: Vec<_> =
        std::fs::read_dir(mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["alone", "copy"], "nothing else is left");
    camp.down();
}

/// S641, S355.
#[test]
fn a_key_moves_nothing_out_of_its_path() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    std::fs::create_dir_all(mount.join("in/dir")).unwrap();
    std::fs::write(mount.join("in/f"), b"inside").unwrap();
    std::fs::write(mount.join("out"), b"outside").unwrap();
    std::os::unix::fs::symlink("../out", mount.join("in/up")).unwrap();
    std::os::unix::fs::symlink("..", mount.join("in/top")).unwrap();
    let scoped = key(&camp, &["--path", "/in"]);
    let reader = key(&camp, &["--path", "/in", "--read-only"]);
    locked(&server, "/out", &[], EXCLUSIVE);
    let of = |key: &str, method: &str, path: &str, to: &str, body: &[u8]| {
        server.ask_as(key, method, path, &[("Destination", to), ("Depth", "0")], body).status
    };
    for (method, from, to) in [
        ("COPY", "/in/f", "/f"),
        ("MOVE", "/in/f", "/f"),
        ("COPY", "/out", "/in/g"),
        ("COPY", "/in/up", "/in/g"),
        ("COPY", "/in/f", "/in/top/g"),
        ("COPY", "/in/top/out", "/in/g"),
        ("PROPFIND", "/", ""),
        ("PROPFIND", "/in/up", ""),
        ("PROPFIND", "/in/top/", ""),
        ("LOCK", "/out", ""),
        ("LOCK", "/in/up", ""),
        ("UNLOCK", "/out", ""),
        ("DELETE", "/out", ""),
        ("PUT", "/out", ""),
    ] {
        let body = if method == "LOCK" { EXCLUSIVE } else { b"" };
        let status = match method {
            "UNLOCK" => server.ask_as(&scoped, method, from, &[("Lock-Token", "<x>")], body).status,
            "MOVE" => server.ask_as(&scoped, method, from, &[("Destination", to)], body).status,
            _ => of(&scoped, method, from, to, body),
        };
        assert_eq!(status, 403, "{method} {from} {to}");
    }
    let patch = b"<propertyupdate xmlns='DAV:'><set><prop><a xmlns='urn:x'/></prop></set></propertyupdate>";
    for (method, body) in [("COPY", &b""[..]), ("LOCK", EXCLUSIVE), ("PROPPATCH", patch)] {
        assert_eq!(of(&reader, method, "/in/f", "/in/g", body), 403, "{method}");
    }
    assert_eq!(server.ask_as(&reader, "MOVE", "/in/f", &[("Destination", "/in/g")], b"").status, 403);
    assert_eq!(server.ask_as("none", "PROPFIND", "/in", &[("Depth", "0")], b"").status, 401);
    let listed = server.ask_as(&scoped, "PROPFIND", "/in", &[("Depth", "1")], b"");
    let text = xml(&listed);
    assert!(listed.status == 207 && text.contains("<D:href>/in/dir/</D:href>"), "{text}");
    assert!(text.contains("<D:href>/in/up</D:href>") && !text.contains("<D:getcontentlength>7<"), "{text}");
    // A link is moved, and not what it leads to.
    assert_eq!(server.ask_as(&scoped, "MOVE", "/in/up", &[("Destination", "/in/dir/up")], b"").status, 201);
    assert_eq!(std::fs::read_link(mount.join("in/dir/up")).unwrap().as_os_str(), "../out");
    assert_eq!(server.ask_as(&scoped, "DELETE", "/in/top/", &[], b"").status, 204);
    assert_eq!(std::fs::read(mount.join("out")).unwrap(), b"outside");
    camp.down();
}

/// S644.
#[test]
fn properties_are_those_of_the_file_and_those_that_it_was_given() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    std::fs::create_dir(mount.join("d")).unwrap();
    std::fs::write(mount.join("d/<ä> &.txt"), b"12345").unwrap();
    camp.wait_until_closed();
    let find = |path: &str, depth: &str, body: &str| {
        let reply = server.ask("PROPFIND", path, &[("Depth", depth)], body.as_bytes());
        assert_eq!(reply.status, 207, "{path}: {}", reply.text());
        xml(&reply)
    };
    let file = "/d/%3C%C3%A4%3E%20%26.txt";
    let all = find("/d", "1", "");
    let head = server.ask("HEAD", file, &[], b"");
    for said in [
        "<D:href>/d/</D:href>".to_owned(),
        format!("<D:href>{file}</D:href>"),
        "<D:resourcetype><D:collection/></D:resourcetype>".into(),
        "<D:displayname>&lt;ä&gt; &amp;.txt</D:displayname>".into(),
        "<D:getcontentlength>5</D:getcontentlength>".into(),
        "<D:getcontenttype>text/plain; charset=utf-8</D:getcontenttype>".into(),
        format!("<D:getetag>{}</D:getetag>", head.header("etag").replace('"', "&quot;")),
        format!("<D:getlastmodified>{}</D:getlastmodified>", head.header("last-modified")),
        "<D:creationdate>2".into(),
        "<D:supportedlock><D:lockentry>".into(),
    ] {
        assert!(all.contains(&said), "{said} in {all}");
    }
    assert!(!all.contains("quota"), "{all}");
    for wrong in [&[][..], &[("Depth", "infinity")]] {
        let refused = server.ask("PROPFIND", "/", wrong, b"");
        assert_eq!((refused.status, xml(&refused).contains("propfind-finite-depth")), (403, true));
    }
    let some = find(
        "/d",
        "0",
        "<propfind xmlns='DAV:'><prop><quota-available-bytes/><quota-used-bytes/><none/></prop></propfind>",
    );
    assert!(some.contains("<D:quota-available-bytes>") && some.contains("<D:quota-used-bytes>"), "{some}");
    assert_contains(&some, &["<none xmlns=\"DAV:\"/></D:prop><D:status>HTTP/1.1 404 Not Found</D:status>"]);
    assert_eq!(server.status("PROPFIND", "/none", &[("Depth", "0")], b""), 404);

    // What it was given is in the mount, too, and goes with it.
    let patch = |body: &str| server.ask("PROPPATCH", file, &[], body.as_bytes());
    let set = "<propertyupdate xmlns='DAV:'><set><prop><who xmlns='urn:x'>ada &amp; bob</who></prop></set></propertyupdate>";
    let reply = patch(set);
    assert!(reply.status == 207 && xml(&reply).contains("HTTP/1.1 200 OK"), "{}", reply.text());
    let value = "<who xmlns=\"urn:x\">ada &amp; bob</who>";
    let given = "<propfind xmlns='DAV:'><prop><who xmlns='urn:x'/></prop></propfind>";
    assert!(find(file, "0", given).contains(value));
    assert!(find(file, "0", "").contains(value));
    assert!(
        find(file, "0", "<propfind xmlns='DAV:'><propname/></propfind>").contains("<who xmlns=\"urn:x\"/>")
    );
    let protected =
        "<propertyupdate xmlns='DAV:'><set><prop><getetag>x</getetag><b/></prop></set></propertyupdate>";
    let refused = xml(&patch(protected));
    assert!(refused.contains("403 Forbidden") && refused.contains("424 Failed Dependency"), "{refused}");
    assert!(!find(file, "0", "").contains("<b xmlns"));
    let large = format!(
        "<propertyupdate xmlns='DAV:'><set><prop><l>{}</l></prop></set></propertyupdate>",
        "x".repeat(60_000)
    );
    assert!(xml(&patch(&large)).contains("200 OK"));
    let second = large.replace("<l>", "<m>").replace("</l>", "</m>");
    assert!(xml(&patch(&second)).contains("507 Insufficient Storage"));
    assert!(
        xml(&patch("<propertyupdate xmlns='DAV:'><remove><prop><l/></prop></remove></propertyupdate>"))
            .contains("200 OK")
    );
    assert_eq!(server.status("PUT", file, &[], b"new content"), 204);
    assert!(find(file, "0", "").contains(value), "another content");
    assert_eq!(server.status("COPY", file, &[("Destination", "/copy")], b""), 201);
    assert_eq!(server.status("MOVE", file, &[("Destination", "/moved")], b""), 201);
    for path in ["/copy", "/moved"] {
        assert!(find(path, "0", given).contains(value), "{path}");
    }
    camp.down();
}

/// S642, S643.
#[test]
fn directories_go_with_all_that_is_in_them_when_their_path_ends_in_a_slash() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    std::fs::create_dir_all(mount.join("d/e/f")).unwrap();
    std::fs::write(mount.join("d/e/x"), b"x").unwrap();
    std::fs::write(mount.join("kept"), b"kept").unwrap();
    std::os::unix::fs::symlink("../kept", mount.join("d/e/link")).unwrap();
    for at in 0..2500 {
        std::fs::write(mount.join(format!("d/e/f/{at}")), b"").unwrap();
    }
    let many = server.ask(
        "PROPFIND",
        "/d/e/f/",
        &[("Depth", "1")],
        b"<propfind xmlns='DAV:'><prop><resourcetype/></prop></propfind>",
    );
    assert_eq!(whole(&many).matches("<D:response>").count(), 2501);
    assert_eq!(server.status("DELETE", "/d", &[], b""), 409, "without the slash only an empty one");
    assert_eq!(server.status("DELETE", "/d/", &[("Depth", "0")], b""), 409);
    assert!(mount.join("d/e/f/2499").exists());
    assert_eq!(server.status("DELETE", "/d/", &[], b""), 204);
    assert!(!mount.join("d").exists() && mount.join("kept").exists());
    assert_eq!(server.status("DELETE", "/kept/", &[], b""), 404, "a file is no directory");
    assert_eq!(server.status("MKCOL", "/m", &[], b"<x/>"), 415);
    assert_eq!(server.status("PROPFIND", "/", &[("Depth", "0")], &vec![b' '; 70_000]), 413);
    let bomb = b"<!DOCTYPE x [<!ENTITY a 'aaaa'>]><propfind xmlns='DAV:'><prop>&a;</prop></propfind>";
    assert_eq!(server.status("PROPFIND", "/", &[("Depth", "0")], bomb), 400);
    let options = server.ask("OPTIONS", "/", &[], b"");
    assert_eq!((options.status, options.header("dav")), (200, "1, 2"));
    assert!(options.header("allow").contains("PROPFIND") && options.header("allow").contains("UNLOCK"));
    camp.down();
}

/// S641: as editors save, with the server killed in the middle of it.
#[test]
fn a_killed_server_leaves_the_old_file_or_the_new_one() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let version = |number: u8| vec![number; 200_000];
    std::fs::write(mount.join("doc"), version(0)).unwrap();
    std::fs::create_dir(mount.join("tree")).unwrap();
    std::fs::write(mount.join("tree/f"), version(0)).unwrap();
    let ask = |method: &str, path: &str, headers: &str, body: &[u8]| {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(&server.address).ok()?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\
             {headers}\r\n",
            server.address,
            server.key,
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body).ok()?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).ok()?;
        crate::http::parse(&bytes).map(|reply| reply.status)
    };
    for round in 1..=3 {
        std::thread::scope(|scope| {
            let saving = scope.spawn(|| {
                let mut saved = 0;
                for number in 0..60_u8 {
                    let content = version(number);
                    let put = ask("PUT", "/doc.new", "", &content);
                    let moved = ask("MOVE", "/doc.new", "Destination: /doc\r\n", b"");
                    ask("MKCOL", "/tree.new", "", b"");
                    ask("PUT", "/tree.new/f", "", &content);
                    let tree = ask("MOVE", "/tree.new/", "Destination: /tree/\r\n", b"");
                    let is_done =
                        [put, moved, tree].iter().all(|status| status.is_some_and(|status| status < 300));
                    saved += usize::from(is_done);
                }
                saved
            });
            kill_server(&camp);
            assert!(saving.join().unwrap() > 0, "the next server goes on");
        });
        for name in ["doc", "tree/f"] {
            let read = std::fs::read(mount.join(name)).unwrap();
            assert!(
                read.len() == 200_000 && read.iter().all(|byte| *byte == read[0]),
                "{name}, round {round}"
            );
        }
    }
    camp.down();
}

/// A PUT whose conditions were looked at, and whose body is still to come: the server asks for it then.
struct Begun(std::net::TcpStream);

impl Begun {
    fn new(server: &Server, path: &str, headers: &str, len: usize) -> Begun {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: {len}\r\n\
             Expect: 100-continue\r\n{headers}\r\n",
            server.address, server.key
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut said = [0; 25];
        stream.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"HTTP/1.1 100 Continue\r\n\r\n");
        Begun(stream)
    }

    fn end(mut self, body: &[u8]) -> u16 {
        use std::io::{Read as _, Write as _};
        self.0.write_all(body).unwrap();
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes).unwrap();
        crate::http::parse(&bytes).unwrap().status
    }
}

fn give(server: &Server, path: &str, value: &str) {
    let body = format!(
        "<propertyupdate xmlns='DAV:'><set><prop><who xmlns='urn:x'>{value}</who></prop></set></propertyupdate>"
    );
    let reply = server.ask("PROPPATCH", path, &[], body.as_bytes());
    assert!(reply.status == 207 && xml(&reply).contains("HTTP/1.1 200 OK"), "{}", reply.text());
}

fn has(server: &Server, path: &str, value: &str) -> bool {
    let said = xml(&server.ask("PROPFIND", path, &[("Depth", "0")], b""));
    said.contains(&format!("<who xmlns=\"urn:x\">{value}</who>"))
}

/// S644: what is replaced is what has the name at the end.
#[test]
fn what_a_file_was_given_stays_when_it_is_replaced_several_times() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    assert_eq!(server.status("PUT", "/f", &[], b"first"), 201);
    give(&server, "/f", "ada");
    let slow = Begun::new(&server, "/f", "", 4);
    assert_eq!(server.status("PUT", "/f", &[], b"second"), 204);
    assert!(has(&server, "/f", "ada"));
    assert_eq!(slow.end(b"slow"), 204);
    assert_eq!(server.get("/f"), b"slow");
    assert!(has(&server, "/f", "ada"), "of the one between");

    let slow = Begun::new(&server, "/f", "", 4);
    give(&server, "/f", "bob");
    assert_eq!(slow.end(b"more"), 204);
    assert!(has(&server, "/f", "bob"), "what was given meanwhile");

    // A file that comes in parts, and one where nothing was when it began.
    let part = [("Content-Range", "bytes 0-1/4")];
    assert_eq!(server.status("PUT", "/f?upload=u", &part, b"pa"), 308);
    give(&server, "/f", "eve");
    assert_eq!(server.status("PUT", "/f?upload=u", &[("Content-Range", "bytes 2-3/4")], b"rt"), 204);
    assert_eq!(server.get("/f"), b"part");
    assert!(has(&server, "/f", "eve"));
    let slow = Begun::new(&server, "/new", "", 4);
    assert_eq!(server.status("PUT", "/new", &[], b"fast"), 201);
    give(&server, "/new", "mal");
    assert_eq!(slow.end(b"slow"), 204);
    assert!(has(&server, "/new", "mal"));

    // An object, by a client that signs.
    if std::process::Command::new("curl").arg("--version").output().is_ok() {
        assert_eq!(by_s3(&server, "PUT", "/bucket", "").0, 200);
        assert_eq!(by_s3(&server, "PUT", "/bucket/o", "first").0, 200);
        give(&server, "/bucket/o", "zoe");
        assert_eq!(by_s3(&server, "PUT", "/bucket/o", "object").0, 200);
        assert_eq!(server.get("/bucket/o"), b"object");
        assert!(has(&server, "/bucket/o", "zoe"), "of an object");
    }

    // All that is acknowledged stays, however many change it at once.
    for round in 0..20 {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(server.status("PUT", "/f", &[], b"again"), 204));
            }
            scope.spawn(|| give(&server, "/f", &round.to_string()));
        });
        assert!(has(&server, "/f", &round.to_string()), "round {round}");
    }
    camp.down();
}

/// S640: a tag in `If` holds when the file gets its name, as one in `If-Match` does.
#[test]
fn of_all_who_change_the_file_that_they_have_seen_one_does() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    assert_eq!(server.status("PUT", "/f", &[], b"first"), 201);
    for round in 0..10 {
        let tag = server.ask("HEAD", "/f", &[], b"").header("etag").to_owned();
        let wanted = format!("([{tag}])");
        let all: Vec<Begun> =
            (0..8).map(|_| Begun::new(&server, "/f", &format!("If: {wanted}\r\n"), 1)).collect();
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let ends: Vec<_> = all.into_iter().map(|one| scope.spawn(move || one.end(b"x"))).collect();
            ends.into_iter().map(|end| end.join().unwrap()).collect()
        });
        assert_eq!(statuses.iter().filter(|status| **status == 204).count(), 1, "{round}: {statuses:?}");
        assert!(statuses.iter().all(|status| matches!(status, 204 | 412)), "{statuses:?}");
    }
    camp.down();
}

/// S640: a lock of what is not there any more is in nobody's way.
#[test]
fn a_lock_of_what_a_program_has_removed_is_none() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let other = key(&camp, &[]);
    let ask = |method: &str, path: &str, body: &[u8]| server.ask_as(&other, method, path, &[], body).status;
    std::fs::create_dir(mount.join("d")).unwrap();
    for path in ["/new", "/again"] {
        locked(&server, path, &[], EXCLUSIVE);
        assert_eq!((ask("PUT", path, b"x"), ask("LOCK", path, SHARED)), (423, 423));
        std::fs::remove_file(mount.join(&path[1..])).unwrap();
    }
    locked(&server, "/d", &[], EXCLUSIVE);
    locked(&server, "/kept", &[], EXCLUSIVE);
    assert_eq!(ask("PUT", "/d/f", b"x"), 423);
    std::fs::remove_dir(mount.join("d")).unwrap();
    assert_eq!(ask("PUT", "/new", b"x"), 201);
    assert_eq!(ask("LOCK", "/again", SHARED), 201);
    assert_eq!(ask("MKCOL", "/d", b""), 201);
    assert_eq!(ask("PUT", "/d/f", b"x"), 201);
    assert_eq!((ask("PUT", "/kept", b"x"), ask("PUT", "/again", b"x")), (423, 423), "those are there");
    camp.down();
}

/// S640.
#[test]
fn a_key_leaves_room_for_locks_of_others() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    std::fs::create_dir(mount.join("in")).unwrap();
    let scoped = key(&camp, &["--path", "/in"]);
    let large = String::from_utf8_lossy(EXCLUSIVE).replace("me", &"o".repeat(900)).into_bytes();
    let statuses: Vec<u16> =
        (0..60).map(|at| server.ask_as(&scoped, "LOCK", &format!("/in/{at}"), &[], &large).status).collect();
    assert!(statuses.contains(&201) && statuses.last() == Some(&507), "{statuses:?}");
    let refused = statuses.iter().position(|status| *status == 507).unwrap();
    assert!(!mount.join(format!("in/{refused}")).exists(), "and nothing is made");
    for at in 0..5 {
        assert_eq!(server.status("LOCK", &format!("/{at}"), &[], &large), 201);
    }
    camp.down();
}

/// S642: what is removed for nobody stays.
#[test]
fn a_delete_ends_with_the_client_that_waits_for_it() {
    use std::io::Write as _;
    let Some(camp) = Camp::start(SERVED) else { return };
    let (server, mount) = (served(&camp), camp.mount());
    let count = || {
        let dirs = std::fs::read_dir(mount.join("d")).ok().into_iter().flatten();
        let files = |dir: std::io::Result<std::fs::DirEntry>| std::fs::read_dir(dir.ok()?.path()).ok();
        dirs.filter_map(files).map(Iterator::count).sum::<usize>()
    };
    let (address, key) = (&server.address, &server.key);
    let request = format!("DELETE /d/ HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\r\n");
    let leaves_some = || {
        // Waits for one that is not over.
        let _there_or_not = server.status("DELETE", "/d/", &[], b"");
        for dir in 0..5 {
            std::fs::create_dir_all(mount.join(format!("d/{dir}"))).unwrap();
            for file in 0..1000 {
                std::fs::write(mount.join(format!("d/{dir}/{file}")), b"").unwrap();
            }
        }
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        wait_until("it has begun", || count() < 5000);
        drop(stream);
        // While it goes on there are fewer again and again.
        let (mut before, mut same) = (0, 0);
        wait_until("it has ended", || {
            let now = count();
            same = if now == std::mem::replace(&mut before, now) { same + 1 } else { 0 };
            same == 20
        });
        before > 0
    };
    // On a busy machine all may be removed before the client has hung up, and before the server has noticed.
    assert!((0..5).any(|_| leaves_some()), "all is removed");
    assert_eq!(server.status("DELETE", "/d/", &[], b""), 204);
    assert!(!mount.join("d").exists());
    camp.down();
}

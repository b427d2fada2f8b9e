//! The page for browsers: as a client sees it that writes its requests itself, and in a real browser.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::browser::Browser;
use crate::harness::{Camp, Place, wait_until};
use crate::http::{SERVED, Server, key, raw, served};

const PAGE: &str = "/.bivouac-page/";
/// Names that would do something if they were taken for anything but names.
const HOSTILE: [&str; 5] = [
    "<img src=x onerror=alert(1)>",
    "\"><script>alert(2)</script>",
    "javascript:alert(3)",
    "%2e%2e%2fx?y#z&amp;",
    "line\nbreak\u{202e}gnp.exe",
];

fn part(name: &str) -> String {
    format!("{PAGE}{name}")
}

fn json_of(server: &Server, key: &str, name: &str) -> Value {
    let reply = server.ask_as(key, "GET", &part(name), &[], b"");
    assert_eq!(reply.status, 200, "{name}: {}", reply.text());
    assert_eq!(reply.header("content-type"), "application/json", "{name}");
    serde_json::from_slice(&reply.body).unwrap()
}

/// S487.
#[test]
fn the_page_is_of_the_server_alone_and_runs_nothing_else() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    let page = server.ask("GET", PAGE, &[], b"");
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").to_owned();
    let nonce = policy.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
    for said in [
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.contains(said), "{said}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    let text = page.text();
    let marked = format!("src=\"main.js\" nonce=\"{nonce}\"");
    assert!(text.contains(&marked) && text.matches("<script").count() == 1, "{text}");
    assert_ne!(
        server.ask("GET", PAGE, &[], b"").header("content-security-policy"),
        policy,
        "a mark of its own"
    );
    for (name, kind) in
        [("main.js", "text/javascript; charset=utf-8"), ("page.css", "text/css; charset=utf-8")]
    {
        let reply = server.ask("GET", &part(name), &[], b"");
        assert_eq!((reply.status, reply.header("content-type")), (200, kind), "{name}");
        assert!(reply.header("content-security-policy").starts_with("sandbox;"), "{name}");
        assert_eq!(reply.header("cross-origin-resource-policy"), "same-origin", "{name}");
    }
    // A file of that name, as the mount can make it, is not in its way.
    fs::create_dir(camp.mount().join(".bivouac-page")).unwrap();
    fs::write(camp.mount().join(".bivouac-page/main.js"), "alert(4)").unwrap();
    assert!(!server.ask("GET", &part("main.js"), &[], b"").text().contains("alert"));
    let moved = server.ask("GET", "/.bivouac-page", &[], b"");
    assert_eq!((moved.status, moved.header("location")), (301, PAGE));
    assert_eq!(server.status("GET", &part("nothing"), &[], b""), 404);
    for method in ["PUT", "DELETE", "MKCOL", "POST"] {
        assert_eq!(server.status(method, &part("main.js"), &[], b"x"), 405, "{method}");
    }
}

/// S487. What is shown is what the commands say.
#[test]
fn what_the_page_shows_is_what_the_commands_say() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    let file = camp.mount().join("a b.bin");
    fs::write(&file, vec![7; 300_000]).unwrap();
    let mut command: Value =
        serde_json::from_str(&camp.place().run(&["explain", "--json", file.to_str().unwrap()]).out).unwrap();
    let mut shown = json_of(&server, &server.key, "explain.json?path=%2Fa%2520b.bin");
    assert_eq!((&shown["kind"], &shown["targets"][0]["node"]), (&json!("file"), &json!(0)));
    for explained in [&mut command, &mut shown] {
        // Who has no mount is served by no daemon of one.
        let fields = explained.as_object_mut().unwrap();
        fields.remove("path");
        fields.remove("mounted_through");
        explained["targets"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .for_each(|target| target["way"] = Value::Null);
    }
    assert_eq!(shown, command);
    let status = json_of(&server, &server.key, "status.json");
    assert_eq!(status["nodes"][1]["volumes"][0]["path"], camp.status()["nodes"][1]["volumes"][0]["path"]);
    assert_eq!(json_of(&server, &server.key, "stage.json"), json!([]));
    let report = json_of(&server, &server.key, "report.json");
    assert!(report["files"].as_array().unwrap().iter().any(|file| file["path"] == "/a b.bin"), "{report}");
    let page = server.ask("GET", &part("report.html"), &[], b"");
    assert!(
        page.text().contains("/a b.bin") && page.header("content-security-policy").starts_with("sandbox;")
    );
    // Each interval once, and the bytes that went in it.
    let mut rates: Vec<Value> = Vec::new();
    wait_until("two intervals, and what was written in one of them", || {
        fs::write(camp.mount().join("more"), vec![1; 100_000]).unwrap();
        let since = rates.last().map_or(0, |last| last["unix_ms"].as_u64().unwrap());
        let told = json_of(&server, &server.key, &format!("top.json?since={since}"));
        assert_eq!(told["every_ms"], 1000);
        rates.extend(told["rates"].as_array().unwrap().iter().cloned());
        rates.len() >= 2 && rates.iter().any(|at| at["total"]["requests"].as_f64().unwrap() > 0.0)
    });
    let ends: Vec<u64> = rates.iter().map(|at| at["unix_ms"].as_u64().unwrap()).collect();
    assert!(ends.is_sorted_by(|a, b| a < b), "{ends:?}");
    assert_eq!(rates[0]["nodes"].as_array().unwrap().len(), 2);
}

/// S488.
#[test]
fn a_key_sees_what_it_is_for() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    for name in ["in/deep", "out"] {
        fs::create_dir_all(camp.mount().join(name)).unwrap();
    }
    for name in ["in/deep/Run7.h5", "in/run8.h5", "out/run9.h5"] {
        fs::write(camp.mount().join(name), name).unwrap();
    }
    let refused = raw(
        &server.address,
        format!("GET {PAGE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
    );
    assert_eq!(refused.unwrap().status, 401);
    assert_eq!(server.ask_as("BVKx.y", "GET", &part("main.js"), &[], b"").status, 401);
    let bound = key(&camp, &["--path", "/in", "--read-only"]);
    assert_eq!(server.ask_as(&bound, "GET", PAGE, &[], b"").status, 200);
    let known = json_of(&server, &bound, "key.json");
    assert_eq!(
        known,
        json!({"formation": camp.name(), "path": "/in/", "href": "/in/", "whole": false, "read_only": true, "expires": null, "shares": true})
    );
    for name in ["status.json", "top.json", "stage.json", "report.json", "report.html"] {
        assert_eq!(server.ask_as(&bound, "GET", &part(name), &[], b"").status, 403, "{name}");
    }
    let found = json_of(&server, &bound, "find.json?dir=%2Fin%2F&words=run");
    let paths: Vec<&str> =
        found["found"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!((paths, &found["complete"]), (vec!["/in/run8.h5", "/in/deep/Run7.h5"], &json!(true)));
    for outside in [
        "find.json?dir=%2F&words=run",
        "explain.json?path=%2Fout%2Frun9.h5",
        "find.json?dir=%2Fout&words=run",
    ] {
        assert_eq!(server.ask_as(&bound, "GET", &part(outside), &[], b"").status, 403, "{outside}");
    }
    // Where a file is it may know, but not the places on the nodes.
    let explained = json_of(&server, &bound, "explain.json?path=%2Fin%2Frun8.h5");
    assert_eq!((&explained["size"], &explained["targets"][0]["subfile"]), (&json!(10), &Value::Null));
    assert_eq!(server.ask_as(&bound, "DELETE", "/in/run8.h5", &[], b"").status, 403);
    for wrong in ["find.json", "find.json?dir=%2F", "find.json?dir=%2F..%2F&words=a", "explain.json?path=x"] {
        assert_eq!(server.status("GET", &part(wrong), &[], b""), 400, "{wrong}");
    }
}

fn shared(server: &Server, key: &str, path: &str, seconds: u64) -> (u16, Value) {
    let part = part(&format!("shares.json?path={path}&seconds={seconds}"));
    let reply = server.ask_as(key, "PUT", &part, &[], b"");
    (reply.status, serde_json::from_slice(&reply.body).unwrap_or_else(|_| reply.text().into()))
}

/// A link reads what it is for, until it or the key that made it ends, and makes no others.
#[test]
fn a_shared_link_reads_one_thing_for_a_while() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    fs::create_dir_all(camp.mount().join("in/deep")).unwrap();
    for name in ["in/a b", "in/deep/c", "out"] {
        fs::write(camp.mount().join(name), name).unwrap();
    }
    std::os::unix::fs::symlink("../out", camp.mount().join("in/link")).unwrap();
    let bound = key(&camp, &["--path", "/in", "--expires", "1h"]);
    let (status, made) = shared(&server, &bound, "%2Fin%2Fa%2520b", 600);
    assert_eq!((status, &made["path"], &made["href"]), (200, &json!("/in/a b"), &json!("/in/a%20b")));
    let end = made["expires"].as_u64().unwrap();
    assert_eq!(end - made["created"].as_u64().unwrap(), 600);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (link, id) = (text(&made["key"]), text(&made["id"]));
    let status_of = |key: &str, method: &str, path: &str| server.ask_as(key, method, path, &[], b"x").status;
    assert_eq!(server.ask_as(&link, "GET", "/in/a%20b", &[], b"").body, b"in/a b");
    for (method, path) in [
        ("GET", "/in/deep/c"),
        ("GET", "/in/"),
        ("GET", "/out"),
        ("PUT", "/in/a%20b"),
        ("DELETE", "/in/a%20b"),
    ] {
        assert_eq!(status_of(&link, method, path), 403, "{method} {path}");
    }
    let known = json_of(&server, &link, "key.json");
    assert_eq!(
        (&known["read_only"], &known["shares"], &known["expires"]),
        (&json!(true), &json!(false), &json!(end))
    );
    assert_eq!(shared(&server, &link, "%2Fin%2Fa%2520b", 600).0, 403, "a link makes no links");
    assert_eq!(json_of(&server, &link, "shares.json"), json!({"shares": []}));
    // Nothing outside of the key's path, nothing that is not there, and nothing for ever; never longer than the key
    // itself.
    for (path, seconds, status) in [
        ("%2Fout", 600, 403),
        ("%2Fin%2Flink", 600, 400),
        ("%2Fin%2Fnone", 600, 404),
        ("%2F", 600, 400),
        ("%2Fin", 5, 400),
        ("%2Fin", 400 * 24 * 3600, 400),
    ] {
        assert_eq!(shared(&server, &bound, path, seconds).0, status, "{path} {seconds}");
    }
    let (_, long) = shared(&server, &bound, "%2Fin%2Fdeep%2F", 24 * 3600);
    assert_eq!(long["expires"], json_of(&server, &bound, "key.json")["expires"]);
    let deep = text(&long["key"]);
    assert_eq!((status_of(&deep, "GET", "/in/deep/c"), status_of(&deep, "GET", "/in/a%20b")), (200, 403));
    // What a directory on the way is replaced by leads a link nowhere else.
    let (way, aside) = (camp.mount().join("in/deep"), camp.mount().join("in/aside"));
    fs::create_dir_all(camp.mount().join("other")).unwrap();
    fs::write(camp.mount().join("other/c"), "not shared").unwrap();
    fs::rename(&way, &aside).unwrap();
    std::os::unix::fs::symlink("../other", &way).unwrap();
    assert!(status_of(&deep, "GET", "/in/deep/c") >= 400);
    fs::remove_file(&way).unwrap();
    fs::rename(&aside, &way).unwrap();
    assert_eq!(status_of(&deep, "GET", "/in/deep/c"), 200);
    // They are listed for the key that made them, and ended by it alone.
    let listed = json_of(&server, &bound, "shares.json");
    let ids: Vec<&str> =
        listed["shares"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [id.as_str(), long["id"].as_str().unwrap()]);
    assert_eq!(json_of(&server, &server.key, "shares.json"), json!({"shares": []}));
    let ended = |key: &str, id: &str| {
        server.ask_as(key, "DELETE", &part(&format!("shares.json?id={id}")), &[], b"").status
    };
    assert_eq!((ended(&server.key, &id), ended(&link, &id), ended(&bound, "BVK")), (404, 404, 404));
    assert_eq!(ended(&bound, &id), 200);
    assert_eq!(status_of(&link, "GET", "/in/a%20b"), 401);
    // A page of another place makes none.
    let elsewhere = [("Origin", "https://example.org")];
    let path = part("shares.json?path=%2Fin&seconds=600");
    assert_eq!(server.ask_as(&bound, "PUT", &path, &elsewhere, b"").status, 403);
    // With the key that made it a link ends, too.
    let revoked = bound.split('.').next().unwrap();
    assert_eq!(camp.place().run(&["key", "revoke", "--name", camp.name(), revoked]).code, 0);
    assert_eq!(status_of(&deep, "GET", "/in/deep/c"), 401);
    camp.down();
}

/// S489.
#[test]
fn pages_of_other_places_change_nothing() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    fs::write(camp.mount().join("kept"), "kept").unwrap();
    let own = format!("http://{}", server.address);
    let mut next_port = server.address.clone();
    next_port.push('1');
    let elsewhere = format!("http://{next_port}");
    for headers in [
        vec![("Origin", "https://example.org")],
        vec![("Origin", "null")],
        vec![("Origin", elsewhere.as_str())],
        vec![("Sec-Fetch-Site", "cross-site")],
        vec![("Sec-Fetch-Site", "same-site"), ("Origin", own.as_str())],
    ] {
        for method in ["PUT", "DELETE", "MKCOL"] {
            assert_eq!(server.status(method, "/kept", &headers, b"other"), 403, "{method} {headers:?}");
        }
        assert_eq!(server.status("GET", &part("status.json"), &headers, b""), 403, "{headers:?}");
    }
    assert_eq!(fs::read(camp.mount().join("kept")).unwrap(), b"kept");
    let ours = [("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin")];
    assert_eq!(server.status("PUT", "/kept", &ours, b"changed"), 204);
    assert_eq!(fs::read(camp.mount().join("kept")).unwrap(), b"changed");
    // Whoever follows a link to the page comes from elsewhere.
    assert_eq!(server.status("GET", PAGE, &[("Sec-Fetch-Site", "cross-site")], b""), 200);
}

fn open(browser: &mut Browser, server: &Server, key: &str, view: &str) {
    browser.open(&format!("http://me:{key}@{}{PAGE}{view}", server.address));
    browser.wait_for("document.querySelector('h1')?.textContent");
}

fn go(browser: &mut Browser, view: &str) {
    browser.value(&format!("location.hash = {}", json!(view)));
}

/// Kept where somebody wants to look at them.
fn picture(browser: &mut Browser, name: &str) {
    let picture = browser.picture();
    assert!(picture.starts_with(b"\x89PNG"), "{name}");
    if let Some(dir) = std::env::var_os("BIVOUAC_PICTURES") {
        fs::write(Path::new(&dir).join(format!("{name}.png")), picture).unwrap();
    }
}

/// Nothing is wider than the screen, but what says so and can be moved.
fn fits(browser: &mut Browser, name: &str) {
    let wide = browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert_eq!(wide, 0, "{name} is too wide");
}

/// Everything that can be used has a name, and every picture says what it shows.
fn has_names(browser: &mut Browser, view: &str) {
    let text = browser.text();
    for wrong in ["[object", "undefined", "NaN", "null"] {
        assert!(!text.contains(wrong), "{view} shows {wrong}: {text}");
    }
    let nameless = browser.value(
        "[...document.querySelectorAll('a,button,input,meter,progress,iframe,canvas,[role=img],[role=region]')]
            .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.title || e.labels?.length))
            .map((e) => e.outerHTML.slice(0, 120))",
    );
    assert_eq!(nameless, json!([]), "{view}");
}

/// S487. The figures of a formation at work, in the light, in the dark and on a telephone; pictures say what they show.
#[test]
fn a_browser_shows_the_formation() {
    let Some(camp) = Camp::start(&["--nodes", "4", "--stripe", "64k", "--http", "0", "--http-plain"]) else {
        return;
    };
    let Some(mut browser) = Browser::start(camp.place()) else { return };
    let server = served(&camp);
    fs::create_dir(camp.mount().join("runs")).unwrap();
    for number in 0..12 {
        fs::write(camp.mount().join(format!("runs/run {number}.h5")), vec![1; 70_000 * number]).unwrap();
    }
    let outside = camp.place().path().join("site");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("staged"), vec![3; 500_000]).unwrap();
    let said =
        camp.place().run(&["stage", "in", "--name", camp.name(), outside.to_str().unwrap(), "/from-site"]);
    assert_eq!(said.code, 0, "{}", said.err);
    let part = camp.mount().join("part");
    let arguments = ["partition", "create", part.to_str().unwrap(), "--source", outside.to_str().unwrap()];
    camp.place().run(&arguments).succeeds();
    fs::write(camp.mount().join("part/new"), vec![4; 100_000]).unwrap();
    browser.screen(1100, 900, "light");
    open(&mut browser, &server, &server.key, "");
    wait_until("figures of what is written", || {
        fs::write(camp.mount().join("busy"), vec![2; 2_000_000]).unwrap();
        let text = browser.text();
        text.contains("Half within") && text.contains("Volumes") && text.contains("Write")
    });
    let label = "document.querySelector('canvas').getAttribute('aria-label')";
    assert!(browser.value(label).as_str().unwrap().starts_with("Load of 4 nodes since 30 s ago."));
    // The heat map without a mouse.
    browser.value("document.querySelector('canvas').focus()");
    for key in ["ArrowLeft", "ArrowDown", "ArrowDown"] {
        browser.press(key);
    }
    let cell = browser.value("document.getElementById('heat-says').textContent");
    assert!(cell.as_str().unwrap().starts_with("Node 2 on "), "{cell}");
    for view in ["overview", "files=/runs/", "where=/runs/run%2011.h5", "activity", "report"] {
        go(&mut browser, view);
        browser.wait_for(match view {
            "overview" => "document.querySelector('meter')",
            "files=/runs/" => "document.body.innerText.includes('run 11.h5')",
            "activity" => "document.body.innerText.includes('not at their sources') && document.querySelector('progress') && document.querySelector('svg')",
            "report" => "document.getElementById('says').textContent === 'The report is there.'",
            _ => "document.querySelectorAll('.stripes li').length === 12",
        });
        if view == "activity" {
            let text = browser.text();
            for said in ["done", "100 %", "488 KiB of 488 KiB", "→ /from-site", "1 name and about"] {
                assert!(text.contains(said), "{said}: {text}");
            }
        }
        has_names(&mut browser, view);
        let name = view.split('=').next().unwrap();
        for (width, scheme) in [(1100, "light"), (1100, "dark"), (360, "light"), (360, "dark")] {
            browser.screen(width, 900, scheme);
            fits(&mut browser, view);
            picture(&mut browser, &format!("{name}-{width}-{scheme}"));
        }
        browser.screen(1100, 900, "light");
    }
    let paper = |browser: &mut Browser| browser.value("getComputedStyle(document.body).backgroundColor");
    let light = paper(&mut browser);
    browser.screen(1100, 900, "dark");
    assert_ne!(paper(&mut browser), light);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// A file is shared, its link copied and opened by somebody else, and ended, by keyboard.
#[test]
fn a_browser_shares_a_file() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let Some(mut browser) = Browser::start(camp.place()) else { return };
    let server = served(&camp);
    fs::create_dir(camp.mount().join("in")).unwrap();
    for name in ["in/a \"b\".txt", "in/c.txt"] {
        fs::write(camp.mount().join(name), format!("content of {name}")).unwrap();
    }
    browser.screen(1100, 900, "light");
    open(&mut browser, &server, &server.key, "#files=/in/");
    let button = "[...document.querySelectorAll('button')].find((b) => b.ariaLabel === 'Share a \"b\".txt')";
    browser.wait_for(button);
    browser.value(&format!("{button}.focus()"));
    browser.press("Enter");
    browser.wait_for("document.querySelector('dialog[open] select')");
    assert!(browser.text().contains("can read it, without a key, and change nothing"), "{}", browser.text());
    has_names(&mut browser, "share");
    picture(&mut browser, "share-ask");
    browser.value("document.querySelector('dialog button.main').focus()");
    browser.press("Enter");
    browser.wait_for("document.querySelector('dialog input[readonly]')");
    let link = browser.value("document.activeElement.value");
    let link = link.as_str().unwrap().to_owned();
    assert!(link.starts_with("http://link:BVK") && link.ends_with("/in/a%20%22b%22.txt"), "{link}");
    let text = browser.text();
    for said in ["Good until", "bivouac key revoke --name", "is known on this machine alone"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    has_names(&mut browser, "share");
    for (width, scheme) in [(1100, "light"), (1100, "dark"), (360, "light"), (360, "dark")] {
        browser.screen(width, 900, scheme);
        fits(&mut browser, "share");
        picture(&mut browser, &format!("share-{width}-{scheme}"));
    }
    browser.screen(1100, 900, "light");
    browser.press("Tab");
    browser.press("Enter");
    browser.wait_for("document.querySelector('dialog [role=status]').textContent");
    browser.press("Escape");
    browser.wait_for("!document.querySelector('dialog')");
    assert_eq!(browser.value(&format!("document.activeElement === {button}")), true, "the focus goes back");
    // Somebody else, without the key.
    let elsewhere = Place::new();
    let Some(mut other) = Browser::start(&elsewhere) else { return };
    other.open(&link);
    wait_until("the file", || other.text().contains("content of in/a"));
    let page = link.replace("/in/a%20%22b%22.txt", PAGE);
    other.open(&page);
    wait_until("the page", || other.text().contains("Download"));
    assert!(!other.text().contains("Share") && !other.text().contains("c.txt"), "{}", other.text());
    drop(other);
    browser.value("[...document.querySelectorAll('summary')].at(-1).click()");
    let end = "document.querySelector('button[aria-label^=\"End the link to\"]')";
    browser.wait_for(end);
    picture(&mut browser, "links");
    browser.value(&format!("{end}.focus()"));
    browser.press("Enter");
    browser.wait_for("document.querySelector('dialog[open]')");
    browser.press("Tab");
    browser.press("Enter");
    browser.wait_for(&format!("!{end}"));
    let ended = link.split("link:").nth(1).unwrap().split('@').next().unwrap();
    assert_eq!(server.ask_as(ended, "GET", "/in/a%20%22b%22.txt", &[], b"").status, 401);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// S487. S488. Names are names, whatever is in them; files come and go without a mouse.
#[test]
fn a_browser_brings_and_takes_files() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let Some(mut browser) = Browser::start(camp.place()) else { return };
    let server = served(&camp);
    for name in HOSTILE {
        fs::write(camp.mount().join(name.replace('/', "∕")), name).unwrap();
    }
    fs::create_dir(camp.mount().join("in")).unwrap();
    browser.screen(1100, 900, "light");
    open(&mut browser, &server, &server.key, "#files");
    browser.wait_for("document.querySelectorAll('tbody tr').length === 6");
    assert_eq!(browser.value("document.querySelectorAll('main img, main script').length"), 0);
    picture(&mut browser, "hostile");
    // Each name leads to its file.
    let read = browser.value(
        "Promise.all([...document.querySelectorAll('tbody th a[download]')].map(async (a) => [a.textContent, await (await fetch(a.href)).text()]))",
    );
    let read = read.as_array().unwrap();
    assert_eq!(read.len(), HOSTILE.len());
    for pair in read {
        let shown = pair[0].as_str().unwrap().replace('∕', "/");
        // What cannot be seen, or turns the text round, has its number.
        assert_eq!(
            shown.replace("⟨U+000A⟩", "\n").replace("⟨U+202E⟩", "\u{202e}"),
            pair[1].as_str().unwrap()
        );
        assert!(!shown.contains(['\n', '\u{202e}']), "{shown:?}");
    }
    // Upload, and again: nothing is replaced that nobody wants to be.
    let local = camp.place().path().join("up 1.bin");
    fs::write(&local, vec![5; 1_500_000]).unwrap();
    browser.choose("#uploaded", &[&local]);
    browser.wait_for("document.getElementById('says').textContent === 'up 1.bin is uploaded.' && !document.getElementById('uploaded').value");
    assert!(fs::read(camp.mount().join("up 1.bin")).unwrap() == vec![5; 1_500_000]);
    fs::write(&local, "second").unwrap();
    for (keys, len) in [(vec!["Escape"], 1_500_000), (vec!["Tab", "Enter"], 6)] {
        browser.choose("#uploaded", &[&local]);
        browser.wait_for("document.querySelector('dialog[open]')");
        keys.into_iter().for_each(|key| browser.press(key));
        browser.wait_for("!document.querySelector('dialog') && !document.querySelector('.going') && !document.getElementById('uploaded').value");
        assert_eq!(fs::metadata(camp.mount().join("up 1.bin")).unwrap().len(), len);
    }
    // A directory by keyboard, and its end.
    browser.value("document.querySelector('main details').open = true");
    browser.value("document.querySelector('input[type=text]').focus()");
    browser.types("<b>new</b>".replace('/', "").as_str());
    browser.press("Enter");
    wait_until("the directory", || camp.mount().join("<b>new<b>").is_dir());
    browser.wait_for("document.body.innerText.includes('<b>new<b>/')");
    browser.value("document.querySelector('button[aria-label=\"Delete <b>new<b>\"]').focus()");
    browser.press("Enter");
    browser.wait_for("document.querySelector('dialog[open]')");
    browser.press("Tab");
    browser.press("Enter");
    wait_until("no directory", || !camp.mount().join("<b>new<b>").exists());
    // Sorted by size, the largest first; a second press turns it round.
    let first = "document.querySelector('tbody th a[download]').textContent";
    for (size, turn) in [(1_500_000, "descending"), (0, "ascending")] {
        fs::write(camp.mount().join("by-size"), vec![6; size]).unwrap();
        go(&mut browser, "overview");
        browser.wait_for("document.querySelector('canvas')");
        go(&mut browser, "files");
        browser.wait_for("document.body.innerText.includes('by-size')");
        browser.value("document.querySelector('[data-sort=Size]').click()");
        if turn == "ascending" {
            browser.value("document.querySelector('[data-sort=Size]').click()");
        }
        browser.wait_for(&format!("document.querySelector('th[aria-sort={turn}]')"));
        assert_eq!(browser.value(first), "by-size", "{turn}");
    }
    // Several entries are selected and deleted together; what is not selected stays.
    for name in ["by-size", "up 1.bin"] {
        browser.value(&format!("document.querySelector('input[aria-label=\"Select {name}\"]').click()"));
    }
    assert!(browser.text().contains("2 selected"), "{}", browser.text());
    browser.value("[...document.querySelectorAll('button.bad')].find((b) => b.textContent === 'Delete' && !b.ariaLabel).click()");
    browser.wait_for("document.querySelector('dialog[open]')");
    browser.press("Tab");
    browser.press("Enter");
    browser.wait_for("document.getElementById('says').textContent === '2 of 2 entries are deleted.'");
    assert!(!camp.mount().join("by-size").exists() && !camp.mount().join("up 1.bin").exists());
    assert!(camp.mount().join("in").is_dir());
    // Search.
    fs::write(camp.mount().join("in/needle.txt"), "x").unwrap();
    browser.value("document.querySelector('input[type=search]').focus()");
    browser.types("NEEDLE txt");
    browser.press("Enter");
    browser.wait_for("document.body.innerText.includes('/in/needle.txt')");
    // A key for a directory that only reads has that, and nothing to change it with. The browser knows it from here on.
    let bound = key(&camp, &["--path", "/in", "--read-only"]);
    drop(browser);
    let Some(mut browser) = Browser::start(camp.place()) else { return };
    open(&mut browser, &server, &bound, "#overview");
    browser.wait_for("document.body.innerText.includes('needle.txt')");
    let text = browser.text();
    assert!(
        text.contains("Your key reads /in/.") && !text.contains("Overview") && !text.contains("Upload"),
        "{text}"
    );
    assert_eq!(browser.value("document.querySelectorAll('main button.bad').length"), 0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

//! Versions of pools, and reminders of their ends, with a real database, directories, a formation, and a program for
//! mail.

use std::path::{Path, PathBuf};

use crate::harness::{Place, can_mount, write_program};
use serde_json::Value;

fn place() -> Place {
    let mut place = Place::with_pools();
    place.set("SLURM_JOB_ID", "");
    place
}

fn forge(place: &Place, order: &str) {
    let file = rusqlite::Connection::open(place.path().join("pools.sqlite")).unwrap();
    assert!(file.execute(order, []).unwrap() > 0);
}

fn versions(place: &Place, pool: &str) -> Vec<Value> {
    let shown: Value = serde_json::from_str(&place.ok(&["pool", "show", pool, "--json"])).unwrap();
    shown["versions"].as_array().unwrap().clone()
}

fn said(version: &Value) -> (String, i64, i64, i64) {
    let number = |key: &str| version[key].as_i64().unwrap();
    (version["what"].as_str().unwrap().to_owned(), number("added"), number("changed"), number("removed"))
}

/// S447: what a formation leaves in a pool, and what is counted there later, are versions; what changes nothing is
/// none.
#[test]
fn what_a_formation_leaves_is_a_version() {
    if !can_mount() {
        return;
    }
    let mut place = place();
    place.set("SLURM_JOB_ID", "4711");
    let dir = place.path().join("odd 'name é");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("a"), "1").unwrap();
    std::fs::write(dir.join("line\nbreak"), "2").unwrap();
    let from = dir.to_str().unwrap().to_owned();
    let create = ["pool", "create", "out", "--from", &from, "--request", "once"];
    place.ok(&create);
    place.ok(&create);
    assert_eq!(versions(&place, "out").len(), 1);
    let name = Place::unique_name();
    place.ok(&["up", "--name", &name, "--pool", "out:rw"]);
    let inside = PathBuf::from(place.ok(&["pool", "path", "out"]).trim_end());
    std::fs::write(inside.join("a"), "changed").unwrap();
    std::fs::create_dir(inside.join("new")).unwrap();
    std::fs::write(inside.join("new/r"), "42").unwrap();
    place.ok(&["down", "--name", &name, "--yes"]);
    let all = versions(&place, "out");
    assert_eq!(said(&all[0]), ("create".into(), 2, 0, 0));
    assert_eq!(said(&all[1]), (format!("drain of {name}"), 1, 1, 0));
    assert_eq!(
        (&all[1]["job"], &all[1]["files"], &all[1]["bytes"]),
        (&"slurm:4711".into(), &3.into(), &10.into())
    );
    // A job that only reads leaves none, and `run` notes what its command wrote.
    place.ok(&["run", "--pool", "out", "--", "true"]);
    assert_eq!(versions(&place, "out").len(), 2);
    place.ok(&["run", "--pool", "out:rw", "--", "sh", "-c", "echo more > $BIVOUAC/pools/out/more"]);
    let all = versions(&place, "out");
    assert!(
        all.len() == 3 && said(&all[2]).0.starts_with("drain of run-") && said(&all[2]).1 == 1,
        "{all:?}"
    );
    std::fs::remove_file(dir.join("line\nbreak")).unwrap();
    place.ok(&["pool", "count", "out"]);
    place.ok(&["pool", "count", "out"]);
    let all = versions(&place, "out");
    assert_eq!((all.len(), said(&all[3])), (4, ("count".into(), 0, 0, 1)));
    let text = place.ok(&["pool", "show", "out"]);
    let line = text.lines().find(|line| line.contains("drain of") && line.contains("slurm:4711")).unwrap();
    assert!(line.contains("added") && line.contains("in 3 files") || line.contains("in 4 files"), "{line}");
    assert!(place.ok(&["pool", "history", "out"]).contains("4: count"));
}

/// S447: killed at any time, a count is a version whole or not at all, and once when it is asked again.
#[test]
fn a_killed_count_is_one_version() {
    let place = place();
    let dir = place.path().join("data");
    std::fs::create_dir(&dir).unwrap();
    place.ok(&["pool", "create", "out", "--from", dir.to_str().unwrap()]);
    for round in 0..10_u32 {
        std::fs::write(dir.join(round.to_string()), "x").unwrap();
        let mut child = place.command(&["pool", "count", "out"]).spawn().unwrap();
        (0..round * 80_000).for_each(|step| _ = std::hint::black_box(step));
        child.kill().unwrap();
        child.wait().unwrap();
        place.ok(&["pool", "count", "out"]);
        let all = versions(&place, "out");
        assert_eq!(all.len(), round as usize + 1, "{all:?}");
        assert_eq!(said(&all[round as usize]), ("count".into(), 1, 0, 0));
    }
}

/// A program that notes its arguments and what it reads, and then ends with what a file says.
fn sendmail(place: &Place) -> PathBuf {
    let (program, dir) = (place.path().join("send mail"), place.path().join("sent"));
    std::fs::create_dir(&dir).unwrap();
    let script = format!(
        "#!/bin/sh\ncd '{}' || exit 9\nprintf '%s\\n' \"$@\" > args\ncat > mail\necho x >> count\n[ ! -e fails ] || {{ echo no way >&2; exit 75; }}\n",
        dir.display()
    );
    write_program(&program, &script);
    program
}

fn sent(place: &Place, name: &str) -> String {
    std::fs::read_to_string(place.path().join("sent").join(name)).unwrap_or_default()
}

/// S448: one mail for each end, by the program that is named, to the one address, with no more headers than there are
/// to be.
#[test]
fn reminders_are_sent_once_and_hold_what_users_write() {
    let place = place();
    let dir = place.path().join("data");
    std::fs::create_dir(&dir).unwrap();
    let program = sendmail(&place);
    let (from, program) = (dir.to_str().unwrap().to_owned(), program.to_str().unwrap().to_owned());
    let title = "wing\nBcc: everybody@site.example\n.\n$(touch pwned) `touch pwned`";
    let create = ["pool", "create", "mesh", "--from", &from, "--days", "5", "--title", title];
    place.ok(&[&create[..], &["--remind", "7", "--mail", "me@site.example"]].concat());
    let remind = |more: &[&str]| place.run(&[&["pool", "remind", "--sendmail", &program][..], more].concat());
    remind(&["--dry-run"]).succeeds().prints(&["me@site.example would be reminded"]);
    assert_eq!(sent(&place, "count"), "");
    std::fs::write(place.path().join("sent/fails"), "").unwrap();
    remind(&[]).fails(1, &["no way", "is not reminded"]);
    std::fs::remove_file(place.path().join("sent/fails")).unwrap();
    assert!(remind(&[]).out.contains("is reminded of its end"));
    assert_eq!((remind(&[]).out.as_str(), sent(&place, "count").as_str()), ("", "x\nx\n"));
    assert_eq!(sent(&place, "args"), "-i\n--\nme@site.example\n");
    let mail = sent(&place, "mail");
    let (head, body) = mail.split_once("\n\n").unwrap();
    assert!(
        head.lines().all(|line| !line.starts_with("Bcc")) && head.contains("Subject: Pool mesh ends at "),
        "{mail}"
    );
    assert!(
        body.contains("bivouac pool extend mesh")
            && body.contains("wing\u{fffd}Bcc: everybody@site.example\u{fffd}.\u{fffd}$(touch"),
        "{mail}"
    );
    assert!(!dir.join("pwned").exists() && !place.path().join("sent/pwned").exists());
    assert!(place.ok(&["pool", "history", "mesh"]).contains("remind"));
    assert!(place.ok(&["pool", "show", "mesh"]).contains("me@site.example, 7 days before"));
    for bad in ["-oQ/tmp@x", "a@x,b@y", "a@x\nBcc: b@y", "a b@x", "nobody"] {
        let mail = format!("--mail={bad}");
        let refused = place.run(&["pool", "reminder", "mesh", "--remind", "3", &mail]);
        assert!(refused.code == 2 && refused.err.contains("no address for mail"), "{bad}: {refused:?}");
    }
    // Whoever may write the database can write anything there: it goes nowhere.
    forge(&place, "UPDATE pool SET mail = '-X/tmp/log me@x', reminded_s = NULL");
    remind(&[]).fails(1, &["no address for mail"]);
    assert_eq!(sent(&place, "count"), "x\nx\n");
    place.ok(&["pool", "reminder", "mesh", "--none"]);
    assert_eq!((remind(&[]).code, remind(&["-n"]).out.as_str()), (0, ""));
    assert_eq!(place.run(&["pool", "reminder", "mesh"]).code, 2);
    let missing = ["pool", "reminder", "mesh", "--remind", "6", "--mail", "me@x"];
    place.ok(&missing);
    place.run(&["pool", "remind", "--sendmail", "/does/not/exist"]).fails(1, &["/does/not/exist"]);
}

/// S448: the entry of a calendar has the end, an alarm, and nothing that users write but as text.
#[test]
fn the_end_of_a_pool_is_an_entry_of_a_calendar() {
    let place = place();
    let dir = place.path().join("data");
    std::fs::create_dir(&dir).unwrap();
    let from = dir.to_str().unwrap();
    let title = format!("a;b,c\\d\nEND:VEVENT\n{}", "é".repeat(100));
    let create =
        ["pool", "create", "mesh", "--from", from, "--title", &title, "--remind", "2", "--mail", "me@x"];
    place.ok(&create);
    forge(&place, "UPDATE pool SET expires_s = 1764072000, created_s = 1764000000");
    let text = place.ok(&["pool", "ical", "mesh"]);
    assert!(text.ends_with("END:VCALENDAR\r\n") && text.split("\r\n").all(|line| line.len() <= 75), "{text}");
    let whole = text.replace("\r\n ", "");
    let lines: Vec<&str> = whole.split_terminator("\r\n").collect();
    assert!(!whole.replace("\r\n", "").contains(['\r', '\n']), "{whole}");
    for line in [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "DTSTART:20251125T120000Z",
        "TRIGGER:-P2D",
        "SUMMARY:bivouac pool mesh ends",
    ] {
        assert!(lines.contains(&line), "{line}: {whole}");
    }
    assert_eq!(lines.iter().filter(|line| **line == "END:VEVENT").count(), 1);
    let described = lines.iter().find(|line| line.starts_with("DESCRIPTION:a")).unwrap();
    assert!(described.starts_with("DESCRIPTION:a\\;b\\,c\\\\d\\nEND:VEVENT\\né"), "{described}");
    assert!(Path::new(from).exists());
}

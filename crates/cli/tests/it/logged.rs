//! Logs as events with fields, of all processes of a formation.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Camp, Place, wait_until};
use crate::hosts::Hosts;

const FIELDS: [&str; 10] =
    ["time", "level", "host", "process", "pid", "node", "where", "what", "why", "remedy"];

/// What is in a log: every line an event with all fields.
fn events(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{}: {line}", log.display()));
        let fields: Vec<&str> = event.as_object().unwrap().keys().map(String::as_str).collect();
        let (known, wanted) = (BTreeSet::from_iter(fields), BTreeSet::from(FIELDS));
        assert_eq!(known, wanted, "{line}");
        assert!(!event["host"].as_str().unwrap().is_empty() && event["pid"].as_u64().unwrap() > 0, "{line}");
        assert!(!event["what"].as_str().unwrap().is_empty() && event["where"].as_str().is_some(), "{line}");
        event
    };
    text.lines().map(event).collect()
}

fn of<'a>(events: &'a [Value], process: &str) -> &'a Value {
    let event = events.last().unwrap();
    assert!(events.iter().all(|event| event["process"] == process), "{process}: {events:?}");
    event
}

fn formation() -> Camp {
    let mut place = Place::new();
    place.set("BIVOUAC_LOG", "debug");
    place.set("BIVOUAC_LOG_FORMAT", "json");
    Camp::start_in(place, &["--no-mount", "--nodes", "2", "--http", "0"])
}

/// S646.
#[test]
fn each_process_writes_events_with_all_fields() {
    let camp = formation();
    let address = camp.status()["http"]["address"].as_str().unwrap().to_owned();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"this is no TLS\r\n\r\n").unwrap();
    let _closed = stream.read_to_end(&mut Vec::new());
    let killed = camp.kill_node(1);
    camp.node_pid(1);
    let log = |name: &str| camp.dir().join(format!("{name}.log"));
    let is_complaint = |event: &&Value| event["what"] == "a client could not agree on TLS";
    wait_until("the server complains", || events(&log("http")).iter().any(|event| is_complaint(&event)));
    let daemons = [0, 1].map(|node| events(&log(&format!("n{node}"))));
    for (node, events) in daemons.iter().enumerate() {
        assert_eq!(of(events, "daemon")["node"], node);
    }
    let pids: BTreeSet<u64> = daemons[1].iter().map(|event| event["pid"].as_u64().unwrap()).collect();
    assert!(pids.len() == 2 && pids.contains(&killed), "{pids:?}");
    let of_http = events(&log("http"));
    of(&of_http, "http");
    let refused = of_http.iter().find(is_complaint).unwrap();
    assert!(refused["why"].is_string() && refused["node"].is_null(), "{refused}");
    let supervisor = events(&log("supervisor"));
    assert!(of(&supervisor, "supervisor")["pid"].as_u64() == Some(camp.supervisor_pid()));
    let death = supervisor.iter().find(|event| event["what"] == "the daemon of node 1 ended").unwrap();
    assert!(
        death["level"] == "warn" && death["why"].as_str().unwrap().contains("killed by signal 9"),
        "{death}"
    );
    assert!(death["remedy"].is_null(), "{death}");
    assert!(!death["why"].as_str().unwrap().contains('{'), "the end of its log is told in words: {death}");
    camp.down();
}

#[test]
fn people_read_them_as_ever_and_programs_with_their_fields() {
    let camp = formation();
    camp.kill_node(1);
    camp.node_pid(1);
    let told = |arguments: &[&str]| {
        let said = camp.run("logs", arguments).succeeds();
        said.out
    };
    let plain = told(&[]);
    assert!(plain.lines().all(|line| line.contains("Z ") && !line.contains('{')), "{plain}");
    assert!(
        plain.lines().any(|line| line.starts_with("supervisor")
            && line.contains(" WARN  ")
            && line.contains(": the daemon of node 1 ended: ")),
        "{plain}"
    );
    let json = |arguments: &[&str]| -> Vec<Value> {
        told(arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let severe = json(&["--json", "--level", "warn"]);
    assert!(
        !severe.is_empty()
            && severe.iter().all(|event| event["level"] == "warn" || event["level"] == "error")
    );
    let death = severe.iter().find(|event| event["what"] == "the daemon of node 1 ended").unwrap();
    assert_eq!((&death["by"], &death["process"]), (&"supervisor".into(), &"supervisor".into()));
    assert!(death["text"].as_str().unwrap().starts_with("the daemon of node 1 ended: killed"), "{death}");
    assert!(json(&["--json", "--node", "0"]).iter().all(|event| event["by"] == "n0" && event["node"] == 0));
    camp.place()
        .run(&["up", "--log-format", "xml", "--no-mount"])
        .fails(2, &["'xml' is none of plain and json"]);
    camp.down();
}

#[test]
fn also_over_hosts_and_what_their_parts_say_when_they_fail_is_for_people() {
    let hosts = Hosts::new();
    hosts.up("a,b", "", &["--log-format", "json"]).succeeds();
    let keeper = events(&hosts.place.path().join(format!("bivouac/{}+hosts/supervisor.log", hosts.name)));
    assert!(of(&keeper, "keeper")["node"].is_null());
    for (node, host) in ["a", "b"].into_iter().enumerate() {
        let dir = hosts.runtime(host).join("bivouac").join(&hosts.name);
        assert_eq!(of(&events(&dir.join(format!("n{node}.log"))), "daemon")["node"], node);
        of(&events(&dir.join("supervisor.log")), "supervisor");
    }
    assert_eq!(hosts.down().code, 0);
    // What an agent says when it cannot do its part is an event to its launcher, and words to who started it.
    let failed = hosts.up("a", "", &["--log-format", "json", "--volume", "/proc/no-such-place"]);
    assert!(failed.code != 0 && failed.err.contains("/proc/no-such-place"), "{}", failed.err);
    assert!(!failed.err.contains("{\"time\""), "{}", failed.err);
}

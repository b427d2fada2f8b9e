//! `bivouac system`, on this machine, on others that are played by directories, and from what machines said earlier.

use std::path::{Path, PathBuf};

use crate::harness::Place;
use serde_json::Value;

fn record(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../extract/tests/records/{name}.record"))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// S520, S527.
#[test]
fn this_machine_is_shown_in_every_form() {
    let place = Place::new();
    let said = place.run(&["system", "--here", "--json", "--load", "10ms"]).succeeds();
    let map = json(&said.out);
    assert_eq!(map["schema"], "bivouac-system/1");
    let host = &map["hosts"][0];
    assert!(host["memory"]["total_bytes"].as_u64().unwrap() > 1 << 20);
    assert!(host["load"]["over_ms"].as_u64().unwrap() >= 10 && host["available"]["memory_bytes"].is_u64());
    assert!(host["mounts"].as_array().unwrap().iter().any(|mount| mount["path"] == "/"));

    let table = place.run(&["system", "--here", "--load", "0s"]);
    assert!(table.out.starts_with("HOST") && table.out.contains("MOUNT"), "{}", table.out);
    let yaml = place.run(&["system", "--here", "--format", "yaml", "--load", "0s"]);
    let yaml: Value = yaml_serde::from_str(&yaml.out).unwrap();
    assert_eq!(yaml["hosts"][0]["memory"], host["memory"]);
    assert!(yaml["hosts"][0]["load"].is_null());
    let xml = place.run(&["system", "--here", "--format", "xml", "--load", "0s"]);
    let xml = roxmltree::Document::parse(&xml.out).unwrap();
    let total = xml.descendants().find(|node| node.has_tag_name("total_bytes")).unwrap();
    assert_eq!(total.text().unwrap(), host["memory"]["total_bytes"].to_string());
    let dot = place.run(&["system", "--here", "--format", "dot", "--load", "0s"]);
    assert!(dot.out.starts_with("graph system {") && dot.out.trim_end().ends_with('}'), "{}", dot.out);
    let svg = place.run(&["system", "--here", "--format", "svg", "--load", "0s"]);
    assert!(roxmltree::Document::parse(&svg.out).unwrap().root_element().has_tag_name("svg"));
}

/// S524, S528: in one round over the launcher; who does not answer is named, and the others are shown.
#[test]
fn hosts_are_asked_in_one_round_and_merged() {
    let place = Place::new();
    let counted = place.path().join("started");
    let launch = format!(
        "echo x >>{}; case {{host}} in c) echo no route to host >&2; exit 255;; esac; echo welcome; exec {{args}}",
        counted.display()
    );
    let said =
        place.run(&["system", "--hosts", "a,b,c", "--launch", &launch, "--json", "--load", "0s"]).succeeds();
    let map = json(&said.out);
    let names: Vec<&str> =
        map["hosts"].as_array().unwrap().iter().map(|h| h["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(map["notes"], serde_json::json!(["host c: no route to host"]));
    assert!(said.err.contains("not known: host c: no route to host"), "{}", said.err);
    assert_eq!(std::fs::read_to_string(&counted).unwrap(), "x\nx\nx\n", "each host once");

    place
        .run(&["system", "--hosts", "c", "--launch", &launch])
        .fails(1, &["no host answered", "no route to host"]);
    place
        .run(&[
            "system",
            "--hosts",
            "d",
            "--launch",
            "exec sleep 1000; {host} {args}",
            "--answer-timeout",
            "50ms",
        ])
        .fails(1, &["host d: took too long"]);
}

/// S524: the hosts of a formation that this host has no part of.
#[test]
fn the_hosts_of_a_formation_are_asked() {
    let place = Place::new();
    let name = Place::unique_name();
    for host in ["a", "b"] {
        std::fs::create_dir(place.path().join(host)).unwrap();
    }
    let launch = format!("XDG_RUNTIME_DIR={}/{{host}} exec {{args}}", place.path().display());
    let up = place.run(&["up", "--name", &name, "--hosts", "a,b", "--launch", &launch, "--no-mount"]);
    let said = place.run(&["system", "--name", &name, "--launch", &launch, "--query", "$.hosts[*].name"]);
    let down = place.run(&["down", "--name", &name, "--yes"]);
    assert_eq!((up.code, down.code), (0, 0), "{} {}", up.err, down.err);
    assert_eq!((said.code, said.out.as_str()), (0, "\"a\"\n\"b\"\n"), "{}", said.err);
}

/// S525, S526, S527: from records of machines and tools.
#[test]
fn what_machines_said_earlier_is_mapped_queried_compared_and_drawn() {
    let place = Place::new();
    let dir = place.path().to_owned();
    for name in ["n1", "n2", "n3", "n4"] {
        std::fs::copy(record("gpu001"), dir.join(format!("{name}.record"))).unwrap();
    }
    let fabric = record("ibnetdiscover");
    let files: Vec<PathBuf> = (1..=4).map(|n| dir.join(format!("n{n}.record"))).chain([fabric]).collect();
    let from: Vec<&str> = files.iter().flat_map(|file| ["--from", file.to_str().unwrap()]).collect();
    let with = |more: &[&str]| {
        let arguments: Vec<&str> = ["system"].iter().chain(&from).chain(more).copied().collect();
        place.run(&arguments)
    };
    with(&[]).succeeds().prints(&[
        "network infiniband (ibnetdiscover): 3 switches, 7 links",
        "between two halves of 4 hosts: 100 Gbit/s (exact",
    ]);
    let names = with(&["--query", "$.hosts[?@.memory.total_bytes > 1000000].name"]);
    assert_eq!(names.out, "\"n1\"\n\"n2\"\n\"n3\"\n\"n4\"\n", "{}", names.err);
    let lustre = with(&["--query", "$.hosts[0].mounts[?@.product == 'Lustre'].path"]);
    assert_eq!(lustre.out, "\"/scratch\"\n");
    let none = with(&["--query", "$.hosts[?@.name == 'n9'].name"]);
    assert_eq!((none.code, none.out.as_str()), (1, ""), "as grep has it");
    assert!(none.err.contains("nothing in the map is of that kind"), "{}", none.err);
    let wrong = with(&["--query", "hosts"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (2, ""));
    assert!(wrong.err.contains("is no JSONPath") && wrong.err.contains("$.hosts"), "{}", wrong.err);
    with(&["--format", "dot"]).prints(&["MF0;leaf1", "100 Gbit/s"]);
    let svg = with(&["--format", "svg"]);
    let drawn = roxmltree::Document::parse(&svg.out).unwrap();
    assert_eq!(
        drawn.descendants().filter(|node| node.has_tag_name("line")).count(),
        10,
        "links side by side are one line"
    );

    // The same again is the same; with less memory it is not.
    let old = dir.join("old.json");
    let map = with(&["--json"]).out;
    std::fs::write(&old, &map).unwrap();
    let old = old.to_str().unwrap();
    assert_eq!(with(&["--diff", old]).out, "nothing has changed\n");
    let text = std::fs::read_to_string(&files[1]).unwrap();
    std::fs::write(&files[1], text.replace("|MemTotal:       791243088 kB", "|MemTotal:       691243088 kB"))
        .unwrap();
    let said = with(&["--diff", old]);
    assert_eq!(said.out, "~ hosts.n2.memory.total_bytes: 810232922112 -> 707832922112\n", "{}", said.err);
    let said = json(&with(&["--diff", old, "--json"]).out);
    assert_eq!(said[0]["path"], "hosts.n2.memory.total_bytes");
    // A map is read as a map, too.
    let again = place.run(&["system", "--from", old, "--json"]);
    assert_eq!(json(&again.out), json(&map));
}

/// S527.
#[test]
fn what_a_machine_says_can_be_written_down_and_other_roots_read() {
    let place = Place::new();
    let path = place.path().join("here.record");
    let path = path.to_str().unwrap();
    let said = place.run(&["system", "--record", path, "--json", "--load", "10ms"]).succeeds();
    let again = place.run(&["system", "--from", path, "--json"]);
    let (first, second) = (json(&said.out), json(&again.out));
    for part in ["processors", "memory", "disks", "mounts", "interfaces", "load", "available"] {
        assert_eq!(first["hosts"][0][part], second["hosts"][0][part], "{part}");
    }
    let root = place.path().join("root");
    std::fs::create_dir_all(root.join("proc")).unwrap();
    std::fs::write(root.join("proc/meminfo"), "MemTotal: 1024 kB\n").unwrap();
    let said = place.run(&["system", "--root", root.to_str().unwrap(), "--json"]);
    let host = &json(&said.out)["hosts"][0];
    assert_eq!(host["memory"]["total_bytes"], 1_048_576);
    assert!(host["processors"].is_null() && host["disks"].as_array().unwrap().is_empty());

    for (content, says) in
        [("x", "begins with bivouac-record/1"), ("{}", "is no map"), ("{\"schema\": 1", "is no map")]
    {
        std::fs::write(path, content).unwrap();
        let said = place.run(&["system", "--from", path]);
        assert!(said.code == 1 && said.err.contains(says), "{content}: {}", said.err);
    }
    place.run(&["system", "--from", "/does/not/exist"]).fails(1, &["check its path"]);
}

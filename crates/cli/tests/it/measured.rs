//! `bivouac system --measure` between hosts that are played by directories; what slow links do is tried on virtual
//! hosts (tests/cluster/run measured), where links can be made slow.

use std::process::Stdio;

use crate::harness::{Place, is_alive, wait_until};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// S536: every two hosts meet, in both directions, and all at once in the end.
#[test]
fn what_flows_between_hosts_is_measured_in_both_directions() {
    let place = Place::new();
    let launch = "case {host} in d) echo no route to host >&2; exit 255;; esac; exec {args}";
    let said = place.run(&[
        "system",
        "--measure",
        "--hosts",
        "a,b,c,d",
        "--launch",
        launch,
        "--json",
        "--load",
        "0s",
    ]);
    // These share one machine, so what flows is anything.
    assert!([0, 4].contains(&said.code), "{}", said.err);
    let map = json(&said.out);
    let measured = &map["measured"];
    assert_eq!((&measured["rounds"], &measured["rounds_of_all"]), (&3.into(), &3.into()), "{}", said.err);
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for transfer in measured["transfers"].as_array().unwrap() {
        assert!(transfer["bits"].as_u64().unwrap() > 0, "{transfer}");
        pairs.push((transfer["from"].as_str().unwrap(), transfer["to"].as_str().unwrap()));
    }
    assert_eq!(pairs, [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")]);
    let together = &measured["together"];
    assert_eq!((&together["half"], &together["other_half"]), (&json("[\"a\"]"), &json("[\"b\"]")));
    assert!(together["there_bits"].as_u64().unwrap() > 0 && together["back_bits"].as_u64().unwrap() > 0);
    assert!(
        map["notes"].as_array().unwrap().contains(&"host d: no route to host".into()),
        "{}",
        map["notes"]
    );
    assert_eq!(said.code == 4, !measured["slow"].as_array().unwrap().is_empty());
}

/// S535.
#[test]
fn who_cannot_be_measured_is_said() {
    let place = Place::new();
    let launch = "case {host} in b) echo no route to host >&2; exit 255;; esac; exec {args}";
    let said = place.run(&["system", "--measure", "--hosts", "a,b", "--launch", launch]);
    assert_eq!((said.code, said.out.as_str()), (1, ""), "{}", said.err);
    assert!(said.err.contains("only one host takes part, and it takes two"), "{}", said.err);
    assert!(said.err.contains("host b: no route to host"), "{}", said.err);
    let said = place
        .run(&["system", "--measure", "--hosts", "a,c", "--launch", launch, "--network", "203.0.113.0/24"])
        .fails(1, &[]);
    let says = "host c: --network 203.0.113.0/24: no address of this host is of it";
    assert!(said.err.contains("no host takes part") && said.err.contains(says), "{}", said.err);
    // Never answers, and is not waited for longer than it was asked for.
    let slow = "case {host} in b) exec sleep 100000;; esac; exec {args}";
    let said =
        place.run(&["system", "--measure", "--hosts", "a,b", "--launch", slow, "--answer-timeout", "3s"]);
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("host b: did not answer within 3 s"), "{}", said.err);
    for wrong in [&["system", "--measure", "--hosts", "a"][..], &["system", "--measure", "--here"]] {
        assert_eq!(place.run(wrong).code, 2, "{wrong:?}");
    }
}

/// S535: stations end with the command, however that ends.
#[test]
fn nothing_stays_on_the_hosts_when_the_command_is_killed() {
    let place = Place::new();
    let pids = place.path().join("pids");
    // `exec` keeps the number.
    let launch = format!("echo $$ >>{}; exec {{args}}; {{host}}", pids.display());
    let arguments =
        ["system", "--measure", "--hosts", "a,b,c", "--launch", &launch, "--measure-time", "600s"];
    let mut command = place.command(&arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = || -> Vec<u64> {
        let text = std::fs::read_to_string(&pids).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    wait_until("all hosts are started", || started().len() == 3);
    // Each is connected with the command once it has a third descriptor that is a connection: its two listeners and
    // that one.
    let sockets = |pid: u64| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    };
    wait_until("all are connected", || started().iter().all(|pid| sockets(*pid) >= 3));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("none is left", || started().iter().all(|pid| !is_alive(*pid)));
}

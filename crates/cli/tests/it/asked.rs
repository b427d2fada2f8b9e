//! What people ask and are asked: before something is removed, of logs, of names in lists of processes, of numbers.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Camp, Place, Said, answered_status, assert_contains, documented, said, wait_until};
use serde_json::Value;

/// S370: without a mount `BIVOUAC` would be empty, and `rm -rf $BIVOUAC/*` about the root.
#[test]
fn a_command_without_a_mount_is_refused_unless_it_says_so() {
    let camp = Camp::start_in(Place::new(), &["--no-mount"]);
    let refused = camp.run("exec", &["--", "sh", "-c", "echo ran"]);
    assert_eq!((refused.code, refused.out.as_str()), (125, ""), "{}", refused.err);
    assert_contains(&refused.err, &["is not mounted on this host", "--no-mount"]);
    let said = camp.run("exec", &["--no-mount", "--", "sh", "-c", "echo ${BIVOUAC-unset} $BIVOUAC_NAME"]);
    assert_eq!((said.code, said.out), (0, format!("unset {}\n", camp.name())), "{}", said.err);
    camp.down();
}

/// The command with a terminal of its own, on which this is typed.
fn on_a_terminal(camp: &Camp, command: &str, typed: &str) -> Said {
    let line = format!("{} {command} --name {}", env!("CARGO_BIN_EXE_bivouac"), camp.name());
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("XDG_RUNTIME_DIR", camp.place().path());
    let mut child =
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    said(&child.wait_with_output().unwrap())
}

/// The command with a pipe as its standard input.
fn piped(camp: &Camp, command: &str, typed: &str) -> Said {
    let mut command = camp.place().command(&[command, "--name", camp.name()]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may have ended without reading it.
    let _gone = child.stdin.take().unwrap().write_all(typed.as_bytes());
    said(&child.wait_with_output().unwrap())
}

/// What programs are told has a version, is described, and has mounts in one shape; failures are JSON, too.
#[test]
fn what_programs_read_is_documented_and_has_a_version() {
    let page = include_str!("../../../../docs/json.md");
    let place = Place::new();
    if !crate::harness::can_mount() {
        return;
    }
    let read = |arguments: &[&str]| serde_json::from_str::<Value>(&place.ok(arguments)).unwrap();
    let up = read(&["up", "camp", "--nodes", "2", "--json"]);
    let status = answered_status(|| place.run(&["status", "camp", "--json"]));
    // Formations of other tests are in the list, too.
    let all = read(&["list", "--json"]);
    let listed = all.as_array().unwrap().iter().find(|one| one["directory"] == up["directory"]).unwrap();
    let mount = &status["mounts"][0];
    assert_eq!((&up["mounts"][0], &listed["mounts"][0]), (mount, mount));
    assert_eq!((&mount["node"], mount["dir"].is_string()), (&0.into(), true));
    let capacity = &status["totals"]["capacity_bytes"];
    assert_eq!((&up["capacity_bytes"], &up["nodes"]), (capacity, &2.into()));
    std::fs::write(Path::new(mount["dir"].as_str().unwrap()).join("f"), "x").unwrap();
    let explained = read(&["explain", &format!("{}/f", mount["dir"].as_str().unwrap()), "--json"]);
    let doctor = serde_json::from_str::<Value>(&place.run(&["doctor", "--json"]).out).unwrap();
    let all = [
        ("up", &up),
        ("status", &status),
        ("doctor", &doctor),
        ("list", listed),
        ("explain PATH", &explained),
    ];
    for (command, document) in all {
        let known = documented(command);
        for field in document.as_object().unwrap().keys().filter(|field| *field != "schema") {
            let is_known = known.contains(field) || command == "explain PATH" && page.contains('…');
            assert!(is_known, "{command}: {field} is not in docs/json.md: {known:?}");
        }
        assert_eq!(document.get("schema").is_some(), command != "list", "{command}");
    }
    place.ok(&["down", "camp", "--yes"]);
    for (arguments, code) in [
        (&["status", "camp", "--json"][..], 1),
        (&["explain", "/nonexistent", "--json"], 1),
        (&["up", "--nodes", "0", "--json"], 2),
        (&["status", "--wotch", "--json"], 2),
    ] {
        let said = place.run(arguments);
        let told: Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(
            (said.code, &told["error"]["code"], &told["schema"]),
            (code, &code.into(), &1.into()),
            "{said:?}"
        );
        let message = told["error"]["message"].as_str().unwrap();
        assert!(said.err.contains(message.lines().next().unwrap()), "{said:?}");
    }
    assert_eq!(place.run(&["status", "camp"]).out, "", "people read standard error");
}

/// S371: `down` says what goes, and asks on a terminal.
#[test]
fn down_says_what_it_removes_and_asks_on_a_terminal() {
    let Some(camp) = Camp::start(&[]) else { return };
    for number in 0..40 {
        std::fs::write(camp.mount().join(format!("f{number}")), [7; 1000]).unwrap();
    }
    // A node that is kept from running for a while cannot be asked what it has.
    wait_until("it is said what goes", || {
        let said = on_a_terminal(&camp, "down", "n\n").fails(1, &[]).prints(&["removes ", "[y/N]"]);
        said.out.contains("removes 40 files and directories")
    });
    assert_eq!(std::fs::read(camp.mount().join("f39")).unwrap(), [7; 1000]);
    on_a_terminal(&camp, "down", "y\n").succeeds().prints(&["nothing left"]);
    assert!(camp.place().is_empty());

    let Some(camp) = Camp::start(&[]) else { return };
    std::fs::write(camp.mount().join("f"), "x").unwrap();
    // What standard input has is no answer: nobody knows what it is meant for.
    for typed in ["", "n\n", "y\n"] {
        wait_until("it is said what goes", || {
            let remedy = format!("down --name {} --yes", camp.name());
            let said = piped(&camp, "down", typed).fails(1, &["removes ", &remedy]);
            said.err.contains("removes 1 file or directory")
        });
    }
    assert_eq!(std::fs::read(camp.mount().join("f")).unwrap(), b"x");
    camp.down();
    let Some(camp) = Camp::start(&[]) else { return };
    let mut told = String::new();
    wait_until("it is seen that nothing goes", || {
        let said = camp.place().run(&["down", camp.name()]);
        told = said.out;
        said.code == 0
    });
    assert!(told.contains("nothing left"), "an empty one: {told}");
    let Some(camp) = Camp::start(&[]) else { return };
    std::fs::write(camp.mount().join("f"), "x").unwrap();
    let told = on_a_terminal(&camp, "down --yes", "");
    assert!(told.code == 0 && !told.out.contains("[y/N]"), "{}", told.out);
}

/// S372: logs of all processes, by time, and what is added to them.
#[test]
fn logs_are_shown_and_followed() {
    let camp = Camp::start_in(Place::new(), &["--no-mount", "--nodes", "2"]);
    let all = camp.run("logs", &[]).succeeds();
    for who in ["n0          2", "n1          2", "supervisor  2"] {
        assert!(all.out.lines().any(|line| line.starts_with(who)), "{who}: {}", all.out);
    }
    let times: Vec<&str> = all.out.lines().filter_map(|line| line.get(12..36)).collect();
    assert!(times.is_sorted(), "{times:?}");
    let one = camp.run("logs", &["--node", "1"]);
    assert!(
        one.out.lines().count() > 0 && one.out.lines().all(|line| line.starts_with("n1  ")),
        "{}",
        one.out
    );
    assert_eq!(camp.run("logs", &["-n", "1"]).out.lines().count(), 1);
    camp.run("logs", &["--node", "7"]).fails(1, &["node 7: has no log"]);

    let mut follow = camp.place().command(&["logs", "--name", camp.name(), "--follow", "-n", "1"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    // What is written before it has looked is not shown, and it may be slow to begin: then there was nothing to wait
    // for.
    assert!(lines.next().is_some_and(|line| !line.unwrap().is_empty()), "it looks");
    let killed = camp.kill_node(1);
    let found = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.starts_with("supervisor") && line.contains("node 1"));
    assert!(found.is_some(), "the death of {killed}");
    camp.down();
    let rest = lines.map(Result::unwrap).last();
    assert!(follow.wait().unwrap().success(), "it ends with the formation: {rest:?}");
}

/// S373: every process of a formation is called as the program is.
#[test]
fn processes_are_named_as_the_program_is() {
    let camp = Camp::start_in(Place::new(), &["--no-mount", "--nodes", "2"]);
    for pid in [camp.supervisor_pid(), camp.node_pid(0), camp.node_pid(1)] {
        let read = |what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap();
        assert_eq!(read("comm"), b"bivouac\n");
        assert!(read("cmdline").starts_with(b"bivouac\0"), "{pid}");
    }
    camp.down();
}

/// S374: a directory that was lent has the mode that it had.
#[test]
fn a_volume_is_left_with_the_mode_that_it_had() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o2775)).unwrap();
    let volume = format!("{}:64m", dir.path().display());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let camp = Camp::start_in(Place::new(), &["--no-mount", "--volume", &volume]);
    assert_eq!(mode(dir.path()), 0o700);
    camp.down();
    assert_eq!((mode(dir.path()), std::fs::read_dir(dir.path()).unwrap().count()), (0o2775, 0));
}

/// S375: what `status` shows it says by its exit code, too.
#[test]
fn status_says_by_its_exit_code_how_a_formation_is() {
    let camp = Camp::start_in(Place::new(), &["--no-mount", "--nodes", "2", "--deaths-max", "1/60s"]);
    wait_until("all nodes answer", || camp.run("status", &[]).code == 0);
    let mut watched = camp.place().command(&["status", "--name", camp.name(), "--watch=100ms", "--json"]);
    let mut watching = watched.stdout(Stdio::piped()).spawn().unwrap();
    let mut looks = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    let state =
        |line: String| serde_json::from_str::<Value>(&line).unwrap()["state"].as_str().unwrap().to_owned();
    assert!(looks.by_ref().map(state).any(|state| state == "running"));
    camp.kill_node(1);
    wait_until("the node is given up", || camp.status()["given_up"] == true);
    assert_eq!(camp.run("status", &[]).code, 5);
    assert!(looks.by_ref().map(state).any(|state| state == "degraded"));
    assert_eq!(camp.run("down", &["--yes"]).code, 0);
    assert_eq!(camp.run("status", &[]).code, 1);
    // Read to its end: it would wait for ever to write into a pipe that is full.
    let last = looks.last();
    assert!(watching.wait().unwrap().code().is_some(), "it ends with the formation: {last:?}");
}

/// S376: what does not fit is refused before a byte is written, and a dry run writes nothing.
#[test]
fn staging_says_first_what_it_would_do_and_whether_it_fits() {
    let Some(camp) = Camp::start(&[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/a"), [1; 5000]).unwrap();
    std::fs::write(dir.path().join("src/b.tmp"), "x").unwrap();
    let src = dir.path().join("src").display().to_string();
    let stage = |arguments: &[&str]| {
        let mut all = vec!["stage", "in", "--name", camp.name()];
        all.extend(arguments);
        camp.place().run(&all)
    };
    let dry = stage(&["-n", "--exclude", "*.tmp", &src, "/in"]).succeeds();
    assert!(
        dry.out.contains("src/a\n") && !dry.out.contains("b.tmp") && dry.out.contains("would copy 1 file, "),
        "{}",
        dry.out
    );
    assert!(!camp.mount().join("in").exists());
    assert_eq!(camp.place().run(&["stage", "status", "--name", camp.name()]).out, "no jobs\n");
    let quiet = stage(&["-q", &src, "/in"]);
    assert_eq!((quiet.code, quiet.out.as_str(), quiet.err.as_str()), (0, "", ""));
    assert_eq!(std::fs::read(camp.mount().join("in/a")).unwrap(), [1; 5000]);
    stage(&["-v", &src, "/again"]).tells(&["in a\n", "in b.tmp\n"]);
    camp.down();
}

/// S376: by real bytes, more than a formation has.
#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let lent = tempfile::tempdir().unwrap();
    let volume = format!("{}:16m", lent.path().display());
    let Some(camp) = Camp::start(&["--volume", &volume]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("large");
    std::fs::write(&src, vec![7; 20 << 20]).unwrap();
    camp.place()
        .run(&["stage", "in", "--name", camp.name(), src.to_str().unwrap(), "/large"])
        .fails(1, &["does not fit: 20 MiB are to be written"]);
    assert_eq!(std::fs::read_dir(camp.mount()).unwrap().count(), 0);
    camp.down();
}

/// S377: an argument that makes no sense is said in the same style as all else.
#[test]
fn arguments_that_make_no_sense_are_refused_in_words() {
    let place = Place::new();
    let said = place.run(&["up", "--nodes", "100000"]);
    assert!(said.code == 2 && said.err.starts_with("bivouac: "), "{}", said.err);
    assert!(said.err.contains("100000 is too many; at most 256"), "{}", said.err);
    place.run(&["stage", "in", "--help"]).succeeds().prints(&["Examples:\n  bivouac stage in "]);
}

/// What a checker of metrics says, if there is one on this machine.
fn checked_by_promtool(metrics: &str) -> Option<Said> {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().ok()?;
    child.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    Some(said(&child.wait_with_output().unwrap()))
}

/// S364: metrics are what `status` shows, in the forms that others read, also of nodes that are gone.
#[test]
fn metrics_say_what_status_says() {
    let camp = Camp::start_in(Place::new(), &["--no-mount", "--nodes", "2", "--deaths-max", "1/60s"]);
    let metrics = |form: &str| camp.run("metrics", &["--format", form]);
    let labels = format!("formation=\"{}\",node=\"1\",host=", camp.name());
    let value = |text: &str, name: &str| -> f64 {
        let start = format!("{name}{{{labels}");
        let line =
            text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    // A node that is kept from running for a while does not answer in time.
    let answered = |form: &str| {
        let mut answer = None;
        wait_until("node 1 answers", || {
            let said = metrics(form).succeeds();
            answer = Some(said).filter(|said| value(&said.out, "bivouac_node_up") > 0.0);
            answer.is_some()
        });
        answer.unwrap()
    };
    let open = answered("openmetrics");
    assert_eq!(value(&open.out, "bivouac_node_up").to_bits(), 1.0_f64.to_bits());
    assert!(open.out.ends_with("\n# EOF\n") && open.out.contains("# UNIT bivouac_volume_used_bytes bytes\n"));
    let files = camp.status()["nodes"][1]["files"].as_f64().unwrap();
    assert_eq!(value(&open.out, "bivouac_node_files").to_bits(), files.to_bits());
    let text = answered("prometheus").out;
    assert!(value(&text, "bivouac_requests_total") >= 1.0);
    if let Some(checked) = checked_by_promtool(&text) {
        assert_eq!((checked.code, checked.out.as_str(), checked.err.as_str()), (0, "", ""), "{text}");
    }
    camp.kill_node(1);
    wait_until("the node is given up", || camp.status()["given_up"] == true);
    let after = metrics("openmetrics");
    assert_eq!((after.code, value(&after.out, "bivouac_node_up")), (0, 0.0), "{}", after.err);
    assert!(value(&after.out, "bivouac_node_deaths_total") >= 1.0);
    assert!(after.out.contains("state=\"degraded\"} 1\n"), "{}", after.out);
    assert_eq!(camp.run("down", &["--yes"]).code, 0);
    assert_eq!(camp.run("metrics", &[]).code, 1);
}

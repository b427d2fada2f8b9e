//! `bivouac run`: the main job.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Place, Said, can_mount, is_alive, kill_with_standby, signal, wait_until};
use rustix::process::Signal;

/// Runs a shell script on a formation of its own.
fn run(place: &Place, options: &[&str], script: &str) -> Said {
    let name = Place::unique_name();
    let mut all = vec!["run", "--name", &name];
    all.extend(options);
    all.extend(["--", "sh", "-c", script]);
    place.run(&all)
}

fn pair(a: &Path, b: &str) -> String {
    format!("{}:{b}", a.display())
}

#[test]
fn inputs_go_in_and_outputs_come_out() {
    if !can_mount() {
        return;
    }
    let (place, site) = (Place::new(), tempfile::tempdir().unwrap());
    fs::create_dir_all(site.path().join("data/sub")).unwrap();
    fs::write(site.path().join("data/sub/a"), "one\n").unwrap();
    fs::write(site.path().join("single"), "two\n").unwrap();
    let input = site.path().join("data").display().to_string();
    let single = pair(&site.path().join("single"), "other/name");
    let results = format!("results:{}", site.path().join("kept/results").display());
    let unchanged = format!("data:{}", site.path().join("again").display());
    let options = ["--nodes", "2", "--in", &input, "--in", &single, "--out", &results, "--out", &unchanged];
    let script = "cd \"$BIVOUAC\" && mkdir results && cat data/sub/a other/name > results/both && echo said";
    let said = run(&place, &options, script);
    assert_eq!((said.code, said.out.as_str()), (0, "said\n"), "{}", said.err);
    assert_eq!(fs::read(site.path().join("kept/results/both")).unwrap(), b"one\ntwo\n");
    assert_eq!(fs::read(site.path().join("again/sub/a")).unwrap(), b"one\n", "unchanged, but not there yet");
    assert!(said.err.contains("1 file, 8 B") && said.err.contains("verified"), "{}", said.err);
    assert!(place.is_empty());
}

#[test]
fn the_exit_code_is_the_commands() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    assert_eq!(run(&place, &[], "exit 42").code, 42);
    let killed = run(&place, &[], "kill -KILL $$");
    assert_eq!(killed.code, 137);
    assert!(killed.err.contains("the command was killed by signal 9 (SIGKILL)"), "{}", killed.err);
    assert_eq!(
        run(&place, &[], "test \"$BIVOUAC_NAME\" && test -d \"$BIVOUAC\" && test -r \"$BIVOUAC_DIR/map\"")
            .code,
        0
    );
    let missing = place.run(&["run", "--", "/nonexistent/command"]);
    assert!(missing.code == 127 && missing.err.contains("was not found"), "{}", missing.err);
    let alien = place.run(&["run", "--", "/etc/passwd"]);
    assert!(alien.code == 126 && alien.err.contains("cannot be executed"), "{}", alien.err);
    assert!(place.is_empty());
}

#[test]
fn a_failed_command_leaves_no_outputs_unless_told_to() {
    if !can_mount() {
        return;
    }
    let (place, site) = (Place::new(), tempfile::tempdir().unwrap());
    let out = format!("f:{}", site.path().join("f").display());
    let script = "echo half > \"$BIVOUAC/f\"; exit 3";
    let said = run(&place, &["--out", &out], script);
    assert!(said.code == 3 && said.err.contains("are not copied out (see --out-always)"), "{}", said.err);
    assert!(!site.path().join("f").exists());
    assert_eq!(run(&place, &["--out", &out, "--out-always", "--no-verify"], script).code, 3);
    assert_eq!(fs::read(site.path().join("f")).unwrap(), b"half\n");
    assert!(place.is_empty());
}

#[test]
fn outputs_that_are_missing_fail_it_and_the_data_stays() {
    if !can_mount() {
        return;
    }
    let (place, site) = (Place::new(), tempfile::tempdir().unwrap());
    let outs = ["a", "missing"].map(|name| format!("{name}:{}", site.path().join(name).display()));
    let said = run(&place, &["--out", &outs[1], "--out", &outs[0]], "echo data > \"$BIVOUAC/a\"");
    assert_eq!(said.code, 121, "{}", said.err);
    assert!(said.err.contains("/missing to") && said.err.contains("the data is kept"), "{}", said.err);
    assert_eq!(fs::read(site.path().join("a")).unwrap(), b"data\n", "what can come out does");
    let status: serde_json::Value = serde_json::from_str(&place.run(&["status", "--json"]).out).unwrap();
    assert!(status["keep"].as_str().unwrap().contains("/missing"), "{status}");
    let mount = Path::new(status["mounts"][0]["dir"].as_str().unwrap());
    assert_eq!(fs::read(mount.join("a")).unwrap(), b"data\n");
    let refused = place.run(&["down"]);
    assert!(refused.code == 3 && refused.err.contains("--discard"), "{}", refused.err);
    assert_eq!(place.run(&["down", "--discard"]).code, 0);
    assert!(place.is_empty());
}

#[test]
fn outputs_that_come_out_later_need_not_be_discarded() {
    if !can_mount() {
        return;
    }
    let (place, site) = (Place::new(), tempfile::tempdir().unwrap());
    fs::write(site.path().join("in_the_way"), "").unwrap();
    let out = format!("a:{}", site.path().join("in_the_way/a").display());
    assert_eq!(run(&place, &["--out", &out], "echo data > \"$BIVOUAC/a\"").code, 121);
    assert_eq!(place.run(&["stage", "resume", "1"]).code, 1);
    assert_eq!(place.run(&["down"]).code, 3);
    fs::remove_file(site.path().join("in_the_way")).unwrap();
    let said = place.run(&["stage", "resume", "1"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(fs::read(site.path().join("in_the_way/a")).unwrap(), b"data\n");
    let said = place.run(&["down"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(place.is_empty());
}

#[test]
fn a_kept_formation_that_is_killed_is_not_thrown_away() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let name = Place::unique_name();
    let out = "missing:/nonexistent/x";
    assert_eq!(place.run(&["run", "--name", &name, "--out", out, "--", "true"]).code, 121);
    let status: serde_json::Value = serde_json::from_str(&place.run(&["status", "--json"]).out).unwrap();
    let [supervisor, node] = [&status["supervisor"], &status["nodes"][0]].map(|p| p["pid"].as_u64().unwrap());
    kill_with_standby(supervisor);
    signal(node, Signal::KILL);
    wait_until("all are gone", || !is_alive(node));
    let said = place.run(&["up", "--name", &name]);
    assert!(said.code == 3 && said.err.contains("its data was to be kept"), "{}", said.err);
}

#[test]
fn keep_leaves_the_formation_running() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let said = run(&place, &["--keep"], "echo x > \"$BIVOUAC/x\"");
    assert!(said.code == 0 && said.err.contains("is left running"), "{}", said.err);
    assert_eq!(place.run(&["status"]).code, 0);
    assert_eq!(place.run(&["down"]).code, 0, "it is not marked");
}

#[test]
fn inputs_that_are_missing_start_nothing() {
    let place = Place::new();
    let said = run(&place, &["--in", "/nonexistent/input"], "true");
    assert!(said.code == 120 && said.err.contains("/nonexistent/input"), "{}", said.err);
    assert!(place.is_empty());
}

#[test]
fn a_formation_that_does_not_start_is_125() {
    let place = Place::new();
    let said = run(&place, &["--volume", "/nonexistent/volume"], "true");
    assert!(said.code == 125 && said.err.contains("is missing; create the directory first"), "{}", said.err);
    assert_eq!(run(&place, &["--nodes", "0"], "true").code, 2);
    assert!(place.is_empty());
}

/// Starts a script that calls `runs` when it is ready, signals `bivouac run`, and answers the exit code.
fn interrupt(script: &str, with: Signal, out: &str) -> i32 {
    let place = Place::new();
    let flag = place.path().join("runs");
    let script = format!("runs() {{ touch '{}'; }}; {script}", flag.display());
    let name = Place::unique_name();
    let arguments = ["run", "--name", &name, "--out", out, "--", "sh", "-c", &script];
    let plain = place.command(&arguments);
    // Whoever runs the tests may have had signals ignored, as nohup does.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP,INT,QUIT,TERM,USR1").arg(plain.get_program()).args(plain.get_args());
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the command runs", || flag.exists());
    signal(u64::from(child.id()), with);
    let code = child.wait().unwrap().code().unwrap();
    assert!(place.is_empty(), "everything is removed");
    code
}

#[test]
fn signals_are_passed_on_and_clean_up_in_the_same_way() {
    if !can_mount() {
        return;
    }
    let out = "x:/nonexistent/x";
    assert_eq!(interrupt("runs; exec sleep 1000", Signal::TERM, out), 143);
    assert_eq!(interrupt("runs; exec sleep 1000", Signal::INT, out), 130);
    assert_eq!(interrupt("runs; exec sleep 1000", Signal::HUP, out), 129);
    assert_eq!(
        interrupt("trap 'kill $!; exit 5' USR1; sleep 1000 & runs; wait $!; exit 9", Signal::USR1, out),
        5
    );
}

#[test]
fn the_command_may_finish_its_work_after_a_signal() {
    if !can_mount() {
        return;
    }
    let site = tempfile::tempdir().unwrap();
    let out = format!("x:{}", site.path().join("x").display());
    let script = "trap 'kill $!; echo saved > \"$BIVOUAC/x\"; exit 0' TERM; sleep 1000 & runs; wait $!";
    assert_eq!(interrupt(script, Signal::TERM, &out), 0);
    assert_eq!(fs::read(site.path().join("x")).unwrap(), b"saved\n");
}

/// Who reads what is said may go at any time; data comes out all the same.
#[test]
fn nobody_has_to_listen() {
    if !can_mount() {
        return;
    }
    let (place, site) = (Place::new(), tempfile::tempdir().unwrap());
    let out = format!("x:{}", site.path().join("x").display());
    let name = Place::unique_name();
    let script = "echo content > \"$BIVOUAC/x\"";
    let arguments = ["run", "--name", &name, "--out", &out, "--", "sh", "-c", script];
    let mut child = place.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read(site.path().join("x")).unwrap(), b"content\n");
    for told in [&["completions", "bash"][..], &["man"], &["status", "--help"]] {
        let mut child = place.command(told).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let said = child.wait_with_output().unwrap();
        assert_eq!((said.status.code(), said.stderr.as_slice()), (Some(0), &b""[..]), "{told:?}");
    }
    let camp = place.run(&["up", "--name", &name, "--no-mount"]);
    assert_eq!(camp.code, 0, "{}", camp.err);
    let mut status =
        place.command(&["status"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(status.stdout.take());
    let said = status.wait_with_output().unwrap();
    assert_eq!((said.status.code(), said.stderr.as_slice()), (Some(0), &b""[..]));
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let said = place.command(&["status"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(
        said.status.code() == Some(1) && text.contains("standard output: no space left (ENOSPC)"),
        "{text}"
    );
    assert_eq!(place.run(&["down", "--name", &name]).code, 0);
    assert!(place.is_empty());
}

#[test]
fn exec_becomes_a_command_on_a_formation_that_runs() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let none = place.run(&["exec", "--", "true"]);
    assert!(none.code == 125 && none.err.contains("no formation is running"), "{}", none.err);
    let name = Place::unique_name();
    let up = place.run(&["up", "--name", &name, "--nodes", "2", "--json"]);
    let up: serde_json::Value = serde_json::from_str(&up.out).unwrap();
    let mount = up["mounts"][0].as_str().unwrap();

    let exec = |options: &[&str], script: &str| {
        let mut all = vec!["exec"];
        all.extend(options);
        all.extend(["--", "sh", "-c", script]);
        place.run(&all)
    };
    let said =
        exec(&[], "echo $BIVOUAC $BIVOUAC_NAME; test -r $BIVOUAC_DIR/map && mkdir $BIVOUAC/sub && exit 42");
    assert_eq!((said.code, said.out), (42, format!("{mount} {name}\n")), "{}", said.err);
    assert_eq!(exec(&["--cd"], "pwd").out, format!("{mount}\n"));
    for below in ["--cd=sub", "--cd=/sub"] {
        assert_eq!(exec(&[below], "pwd").out, format!("{mount}/sub\n"));
    }
    let said = exec(&["--cd=none"], "true");
    assert!(
        said.code == 125 && said.err.contains("/none: ") && said.err.contains("counts from"),
        "{}",
        said.err
    );
    let said = exec(&["--name", "another"], "true");
    assert!(said.code == 125 && said.err.contains("another is not running"), "{}", said.err);
    assert_eq!(exec(&[], "kill -KILL $$").code, 137);
    let missing = place.run(&["exec", "--", "/nonexistent/command"]);
    assert!(missing.code == 127 && missing.err.contains("was not found"), "{}", missing.err);
    let alien = place.run(&["exec", "--", "/etc/passwd"]);
    assert!(alien.code == 126 && alien.err.contains("cannot be executed"), "{}", alien.err);
    assert_eq!(place.run(&["exec"]).code, 2);
    assert_eq!(place.run(&["down"]).code, 0);
    assert!(place.is_empty());
}

#[test]
fn exec_below_another_command_is_on_the_same_formation() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let other = Place::unique_name();
    assert_eq!(place.run(&["up", "--name", &other, "--no-mount"]).code, 0);
    let exec = format!("{} exec", env!("CARGO_BIN_EXE_bivouac"));
    let script = format!(
        "echo $BIVOUAC_NAME; {exec} --cd -- sh -c 'echo $BIVOUAC_NAME; test $PWD = $BIVOUAC && echo there'; \
         {exec} --name {other} --no-mount -- sh -c 'echo $BIVOUAC_NAME ${{BIVOUAC-not mounted}}'; {exec} --name {other} --cd -- true; echo $?; \
         BIVOUAC_DIR=/stale {exec} -- sh -c 'echo $BIVOUAC_NAME'"
    );
    let said = run(&place, &[], &script);
    let lines: Vec<&str> = said.out.lines().collect();
    let name = lines[0];
    let expected = [name, name, "there", &format!("{other} not mounted"), "125", name];
    assert!(name != other && lines == expected, "{lines:?} {}", said.err);
    assert!(said.err.contains(&format!("mount it: bivouac mount --name {other}")), "{}", said.err);
    assert_eq!(place.run(&["down"]).code, 0);
    assert!(place.is_empty());
}

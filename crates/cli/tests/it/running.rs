//! `bivouac run`: the main job.

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

/// A job means its own formation, also where `default` runs beside it; names may be written without `--name`.
#[test]
fn commands_in_a_job_mean_its_formation() {
    let Some(place) = Place::mountable() else { return };
    let bivouac = env!("CARGO_BIN_EXE_bivouac");
    let mine = place.path().join("mine");
    place.ok(&["up", "--no-mount"]);
    place.ok(&["up", "other", "--mount", mine.to_str().unwrap()]);
    assert_eq!(place.ok(&["path", "other"]), format!("{}\n", mine.display()));
    assert!(place.ok(&["status", "other"]).starts_with("formation other: running"));
    assert!(place.ok(&["status"]).starts_with("formation default: running"));
    place.run(&["path"]).fails(1, &["bivouac mount --name default"]);
    let script = format!("{bivouac} status | head -n 1; {bivouac} path; echo $BIVOUAC");
    let said = place.ok(&["run", "--name", "job", "--", "sh", "-c", &script]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "formation job: running");
    assert_eq!(lines[1], lines[2]);
    let said = place.ok(&["exec", "--name", "other", "--", "sh", "-c", &script]);
    assert_eq!(said.lines().next(), Some("formation other: running"));
    // One that is gone means no other.
    let gone = place.command(&["down", "--yes"]).env("BIVOUAC_NAME", "gone").output().unwrap();
    crate::harness::said(&gone).fails(1, &["BIVOUAC_NAME names it"]);
    assert!(place.ok(&["down", "other"]).contains("nothing left"));
    assert!(!mine.exists(), "it was made for the mount");
    place.ok(&["down", "default"]);
    // Two jobs on one host have two formations.
    let in_job = |job: &str, arguments: &[&str]| {
        let said = place.command(arguments).env("SLURM_JOB_ID", job).output().unwrap();
        crate::harness::said(&said)
    };
    for job in ["7", "8"] {
        in_job(job, &["up", "--no-mount"]).succeeds().prints(&[&format!("formation job-{job} is up")]);
    }
    for job in ["7", "8"] {
        assert!(in_job(job, &["down"]).out.contains(&format!("formation job-{job} is down")));
    }
    assert!(place.is_empty());
}

#[test]
fn inputs_go_in_and_outputs_come_out() {
    let Some((place, site)) = Place::with_site() else { return };
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
    let Some(place) = Place::mountable() else { return };
    assert_eq!(run(&place, &[], "exit 42").code, 42);
    run(&place, &[], "kill -KILL $$").fails(137, &["the command was killed by signal 9 (SIGKILL)"]);
    assert_eq!(
        run(&place, &[], "test \"$BIVOUAC_NAME\" && test -d \"$BIVOUAC\" && test -r \"$BIVOUAC_DIR/map\"")
            .code,
        0
    );
    place.run(&["run", "--", "/nonexistent/command"]).fails(127, &["was not found"]);
    place.run(&["run", "--", "/etc/passwd"]).fails(126, &["cannot be executed"]);
    assert!(place.is_empty());
}

/// The second would replace the first, and the formation with the first is gone.
#[test]
fn two_outputs_with_one_target_are_refused_before_anything_is_started() {
    let place = Place::new();
    let script = "touch \"$0.ran\"";
    let said = run(&place, &["--out", "a:same", "--out", "b:./same"], script);
    said.fails(125, &["a and b have one target, ./same", "give each a target of its own"]);
    let said = run(&place, &["--in", "/etc/hosts:f", "--in", "/etc/passwd:f"], script);
    said.fails(120, &["/etc/hosts and /etc/passwd have one target, f"]);
    assert!(place.is_empty());
}

#[test]
fn a_failed_command_leaves_no_outputs_unless_told_to() {
    let Some((place, site)) = Place::with_site() else { return };
    let out = format!("f:{}", site.path().join("f").display());
    let script = "echo half > \"$BIVOUAC/f\"; exit 3";
    run(&place, &["--out", &out], script).fails(3, &["are not copied out (see --out-always)"]);
    assert!(!site.path().join("f").exists());
    assert_eq!(run(&place, &["--out", &out, "--out-always", "--no-verify"], script).code, 3);
    assert_eq!(fs::read(site.path().join("f")).unwrap(), b"half\n");
    assert!(place.is_empty());
}

#[test]
fn outputs_that_are_missing_fail_it_and_the_data_stays() {
    let Some((place, site)) = Place::with_site() else { return };
    let outs = ["a", "missing"].map(|name| format!("{name}:{}", site.path().join(name).display()));
    run(&place, &["--out", &outs[1], "--out", &outs[0]], "echo data > \"$BIVOUAC/a\"")
        .fails(121, &["/missing to", "the data is kept"]);
    assert_eq!(fs::read(site.path().join("a")).unwrap(), b"data\n", "what can come out does");
    let status: serde_json::Value = serde_json::from_str(&place.run(&["status", "--json"]).out).unwrap();
    assert!(status["keep"].as_str().unwrap().contains("/missing"), "{status}");
    let mount = Path::new(status["mounts"][0]["dir"].as_str().unwrap());
    assert_eq!(fs::read(mount.join("a")).unwrap(), b"data\n");
    place.run(&["down", "--yes"]).fails(3, &["--discard"]);
    assert_eq!(place.run(&["down", "--discard"]).code, 0);
    assert!(place.is_empty());
}

/// The job of a run whose outputs are all missing is what can still bring its data out: it and its number stay.
#[test]
fn a_kept_result_keeps_its_job_and_its_number() {
    let Some((place, site)) = Place::with_site() else { return };
    let out = format!("nope:{}", site.path().join("r2").display());
    assert_eq!(run(&place, &["--out", &out], "echo precious > \"$BIVOUAC/r\"").code, 121);
    let jobs = || {
        let status: serde_json::Value =
            serde_json::from_str(&place.run(&["stage", "status", "--json"]).out).unwrap();
        let jobs = status.as_array().unwrap().iter();
        jobs.map(|job| job["job"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    // As the supervisor does, too, when the process has ended that the formation was made for.
    assert_eq!(place.run(&["down", "--yes"]).code, 3);
    assert_eq!(jobs(), [1]);
    place.run(&["stage", "resume", "1"]).fails(1, &["no such file"]);
    let other = site.path().join("other").display().to_string();
    assert_eq!(place.run(&["stage", "out", "r", &other]).code, 0);
    assert_eq!(jobs(), [1, 2]);
    place.run(&["down", "--yes"]).fails(3, &["job 1: outputs were not copied out"]);
    // Another job does not end what a cancelled one was kept for.
    assert_eq!(place.run(&["stage", "cancel", "1"]).code, 0);
    assert_eq!(place.run(&["stage", "out", "r", &other]).code, 0);
    assert_eq!(jobs(), [2, 3]);
    assert_eq!(place.run(&["down", "--yes"]).code, 3);
    assert_eq!(place.run(&["down", "--discard"]).code, 0);
    assert!(place.is_empty());
}

#[test]
fn outputs_that_come_out_later_need_not_be_discarded() {
    let Some((place, site)) = Place::with_site() else { return };
    let out = format!("a:{}", site.path().join("in_the_way/a").display());
    let script = format!("touch '{}'; echo data > \"$BIVOUAC/a\"", site.path().join("in_the_way").display());
    assert_eq!(run(&place, &["--out", &out], &script).code, 121);
    assert_eq!(place.run(&["stage", "resume", "1"]).code, 1);
    assert_eq!(place.run(&["down", "--yes"]).code, 3);
    fs::remove_file(site.path().join("in_the_way")).unwrap();
    place.run(&["stage", "resume", "1"]).succeeds();
    assert_eq!(fs::read(site.path().join("in_the_way/a")).unwrap(), b"data\n");
    place.run(&["down", "--yes"]).succeeds();
    assert!(place.is_empty());
}

#[test]
fn a_kept_formation_that_is_killed_is_not_thrown_away() {
    let Some(place) = Place::mountable() else { return };
    let name = Place::unique_name();
    let out = format!("missing:{}", place.path().join("x").display());
    assert_eq!(place.run(&["run", "--name", &name, "--out", &out, "--", "true"]).code, 121);
    let status: serde_json::Value = serde_json::from_str(&place.run(&["status", "--json"]).out).unwrap();
    let [supervisor, node] = [&status["supervisor"], &status["nodes"][0]].map(|p| p["pid"].as_u64().unwrap());
    kill_with_standby(supervisor);
    signal(node, Signal::KILL);
    wait_until("all are gone", || !is_alive(node));
    place.run(&["up", "--name", &name]).fails(3, &["its data was to be kept"]);
}

#[test]
fn what_cannot_work_is_said_before_anything_is_copied() {
    let (place, site) = (Place::new(), tempfile::tempdir().unwrap());
    let (input, ran) = (site.path().join("in"), site.path().join("ran"));
    fs::write(&input, vec![1; 1 << 20]).unwrap();
    fs::write(site.path().join("file"), "").unwrap();
    let input = input.display().to_string();
    let script = format!("touch '{}'", ran.display());
    for target in ["file/x", "file/"] {
        let out = format!("x:{}", site.path().join(target).display());
        let said = run(&place, &["--in", &input, "--out", &out], &script)
            .fails(125, &["is not a directory; the command was not started"]);
        assert!(!said.err.contains(" in "), "{}", said.err);
    }
    for (command, code, why) in [
        ("no-such-command", 127, "was not found"),
        ("./none", 127, "was not found"),
        ("/etc/passwd", 126, "cannot be executed"),
    ] {
        let said = place.run(&["run", "--in", &input, "--", command]);
        assert!(said.code == code && said.err.contains(why) && !said.err.contains(" in "), "{}", said.err);
    }
    assert!(!ran.exists() && place.is_empty());
}

#[test]
fn a_slash_at_the_end_means_the_directory() {
    let Some((place, site)) = Place::with_site() else { return };
    fs::write(site.path().join("f"), "content").unwrap();
    fs::create_dir(site.path().join("od")).unwrap();
    let (input, output) =
        (pair(&site.path().join("f"), "sub/"), format!("x:{}/", site.path().join("od").display()));
    run(&place, &["--in", &input, "--out", &output], "cp \"$BIVOUAC/sub/f\" \"$BIVOUAC/x\"").succeeds();
    assert_eq!(fs::read(site.path().join("od/x")).unwrap(), b"content");
    assert!(place.is_empty());
}

#[test]
fn keep_leaves_the_formation_running() {
    let Some(place) = Place::mountable() else { return };
    run(&place, &["--keep"], "echo x > \"$BIVOUAC/x\"").fails(0, &["is left running"]);
    assert_eq!(place.run(&["status"]).code, 0);
    assert_eq!(place.run(&["down", "--yes"]).code, 0, "it is not marked");
}

#[test]
fn inputs_that_are_missing_start_nothing() {
    let place = Place::new();
    run(&place, &["--in", "/nonexistent/input"], "true").fails(120, &["/nonexistent/input"]);
    assert!(place.is_empty());
}

#[test]
fn a_formation_that_does_not_start_is_125() {
    let place = Place::new();
    run(&place, &["--volume", "/nonexistent/volume"], "true")
        .fails(125, &["is missing; create the directory first"]);
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
    let site = tempfile::tempdir().unwrap();
    let out = format!("x:{}", site.path().join("x").display());
    let out = out.as_str();
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
    let Some((place, site)) = Place::with_site() else { return };
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
    place.run(&["up", "--name", &name, "--no-mount"]).succeeds();
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
    assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
    assert!(place.is_empty());
}

#[test]
fn exec_becomes_a_command_on_a_formation_that_runs() {
    let Some(place) = Place::mountable() else { return };
    place.run(&["exec", "--", "true"]).fails(125, &["no formation is running"]);
    let name = Place::unique_name();
    let up = place.run(&["up", "--name", &name, "--nodes", "2", "--json"]);
    let up: serde_json::Value = serde_json::from_str(&up.out).unwrap();
    let mount = up["mounts"][0]["dir"].as_str().unwrap();

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
    exec(&["--cd=none"], "true").fails(125, &["/none: ", "counts from"]);
    exec(&["--name", "another"], "true").fails(125, &["another is not running"]);
    assert_eq!(exec(&[], "kill -KILL $$").code, 137);
    place.run(&["exec", "--", "/nonexistent/command"]).fails(127, &["was not found"]);
    place.run(&["exec", "--", "/etc/passwd"]).fails(126, &["cannot be executed"]);
    assert_eq!(place.run(&["exec"]).code, 2);
    assert_eq!(place.run(&["down", "--yes"]).code, 0);
    assert!(place.is_empty());
}

#[test]
fn exec_below_another_command_is_on_the_same_formation() {
    let Some(place) = Place::mountable() else { return };
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
    assert_eq!(place.run(&["down", "--yes"]).code, 0);
    assert!(place.is_empty());
}

//! Nothing survives its purpose: formations end with their time, with the process that they were made for, and what
//! a crash leaves is removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::harness::{
    Camp, Place, assert_contains, is_alive, kill_with_standby, reaping, signal, wait_until,
};
use rustix::process::Signal;

/// A process that a formation can be made for; killed with this value at the latest.
pub struct Owner(Child);

impl Owner {
    pub fn new() -> Owner {
        Owner(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    pub fn pid(&self) -> String {
        self.0.id().to_string()
    }

    pub fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped_already = self.0.wait();
    }
}

/// Everything that shows that a formation is there: its processes, mounts, volumes.
pub struct Traces {
    pids: Vec<u64>,
    paths: Vec<PathBuf>,
}

impl Traces {
    pub fn of(camp: &Camp) -> Traces {
        let status = camp.status();
        let nodes = status["nodes"].as_array().unwrap();
        let pids = nodes.iter().map(|node| &node["pid"]).chain([&status["supervisor"]["pid"]]);
        let volumes = nodes.iter().map(|node| node["volumes"][0]["path"].as_str().unwrap().into());
        Traces { pids: pids.map(|pid| pid.as_u64().unwrap()).collect(), paths: volumes.collect() }
    }

    fn kill(&self) {
        // The supervisor first, so that it starts nothing again.
        let (supervisor, nodes) = self.pids.split_last().unwrap();
        kill_with_standby(*supervisor);
        nodes.iter().for_each(|pid| signal(*pid, Signal::KILL));
        wait_until("all are gone", || !self.pids.iter().any(|pid| is_alive(*pid)));
    }

    pub fn gone(&self, place: &Place) -> bool {
        place.is_empty()
            && !self.pids.iter().any(|pid| is_alive(*pid))
            && !self.paths.iter().any(|path| path.exists() || path.parent().unwrap().exists())
            && mounts_below(place.path()) == 0
    }
}

fn mounts_below(dir: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains(dir.to_str().unwrap())).count()
}

/// S77.
#[test]
fn a_formation_ends_when_its_time_is_over() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--ttl", "20s"]) else { return };
    fs::write(camp.mount().join("f"), "x").unwrap();
    let (status, traces) = (camp.run("status", &[]), Traces::of(&camp));
    assert!(status.out.contains("\nends in "), "{}", status.out);
    wait_until("nothing is left", || traces.gone(camp.place()));
    assert_eq!(camp.run("status", &[]).code, 1);
}

#[test]
fn what_was_promised_and_is_out_keeps_no_formation() {
    let target = tempfile::tempdir().unwrap();
    let target = target.path().join("f").display().to_string();
    let mut owner = Owner::new();
    let Some(camp) = Camp::start(&["--owner", &owner.pid(), "--out", &format!("f:{target}")]) else { return };
    fs::write(camp.mount().join("f"), "out").unwrap();
    camp.place().run(&["stage", "out", "--name", camp.name(), "/f", &target]).succeeds();
    let traces = Traces::of(&camp);
    owner.end();
    wait_until("nothing is left", || traces.gone(camp.place()));
    assert_eq!(fs::read(&target).unwrap(), b"out");
}

#[test]
fn a_formation_ends_with_its_owner() {
    let mut owner = Owner::new();
    let Some(camp) = Camp::start(&["--owner", &owner.pid()]) else { return };
    let traces = Traces::of(&camp);
    assert!(camp.run("status", &[]).out.contains(&format!("\nends with process {}\n", owner.pid())));
    // Who works in it does not keep it.
    let _file = fs::File::create(camp.mount().join("open")).unwrap();
    owner.end();
    wait_until("nothing is left", || traces.gone(camp.place()));
}

#[test]
fn an_owner_has_to_live() {
    Place::new()
        .run(&["up", "--no-mount", "--owner", "4000000"])
        .fails(2, &["--owner 4000000: there is no such process"]);
}

/// S74, S77.
#[test]
fn a_formation_ends_with_its_owner_also_without_its_supervisor() {
    let mut owner = Owner::new();
    let Some(camp) = Camp::start(&["--nodes", "3", "--owner", &owner.pid()]) else { return };
    let traces = Traces::of(&camp);
    camp.kill_supervisor();
    fs::write(camp.mount().join("f"), "the daemons serve on").unwrap();
    // Whichever of them looks after the end, another one does when it is gone.
    signal(traces.pids[0], Signal::KILL);
    signal(traces.pids[1], Signal::KILL);
    owner.end();
    wait_until("nothing is left", || traces.gone(camp.place()));
}

/// `run` with a command that says its number and then does not end.
fn endless_run(place: &Place, options: &[&str]) -> (Child, u64, String) {
    let (name, said) = (Place::unique_name(), place.path().join("pid"));
    let script = format!("echo $$ > {0}.tmp && mv {0}.tmp {0}; exec sleep 1000", said.display());
    let all = [&["run", "--name", &name], options, &["--", "sh", "-c", &script]].concat();
    let run = place.command(&all).spawn().unwrap();
    wait_until("the command runs", || said.exists());
    let pid = fs::read_to_string(&said).unwrap().trim().parse().unwrap();
    (run, pid, name)
}

#[test]
fn a_killed_run_leaves_nothing() {
    let Some(place) = Place::mountable() else { return };
    let (mut run, command, _) = endless_run(&place, &[]);
    run.kill().unwrap();
    run.wait().unwrap();
    wait_until("nothing is left", || place.is_empty() && !is_alive(command));
    assert_eq!(mounts_below(place.path()), 0);
}

#[test]
fn a_killed_run_whose_outputs_are_owed_keeps_them() {
    let Some(place) = Place::mountable() else { return };
    let target = place.path().join("result");
    let output = format!("result:{}", target.display());
    let (mut run, command, name) = endless_run(&place, &["--out", &output, "--out-always"]);
    run.kill().unwrap();
    run.wait().unwrap();
    wait_until("its command is told to end", || !is_alive(command));
    let status = || place.run(&["status", "--name", &name]);
    wait_until("it is said why it stays", || {
        status().out.contains("the process that it was made for has ended, but its data is kept")
    });
    place.run(&["down", "--name", &name, "--yes"]).fails(3, &["outputs were not yet copied out"]);
    assert_eq!(place.run(&["down", "--name", &name, "--discard"]).code, 0);
    assert!(place.is_empty());
}

#[test]
fn a_command_that_takes_longer_than_its_formation_lives_is_told_to_end() {
    let Some(place) = Place::mountable() else { return };
    let said = place.run(&["run", "--ttl", "10s", "--", "sleep", "1000"]);
    assert_eq!(said.code, 128 + Signal::TERM.as_raw(), "{}", said.err);
    assert!(said.err.contains("the life time (--ttl) was over"), "{}", said.err);
    assert!(place.is_empty());
}

#[test]
fn what_a_run_leaves_running_ends_in_time() {
    let Some(place) = Place::mountable() else { return };
    let name = Place::unique_name();
    place.run(&["run", "--name", &name, "--ttl", "20s", "--keep", "--", "true"]).succeeds();
    wait_until("it outlives the command that made it", || place.run(&["status", "--name", &name]).code == 0);
    wait_until("nothing is left", || place.is_empty());
}

/// S78.
#[test]
fn what_a_crash_left_is_named_and_removed() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let (place, _alone) = (camp.place(), reaping());
    let said = place.run(&["reap"]);
    assert_eq!((said.code, said.out.contains(camp.name())), (0, false), "it lives: {}", said.out);
    let traces = Traces::of(&camp);
    traces.kill();
    let named = format!("formation {}: ", camp.name());
    let said = place.run(&["reap", "--dry-run"]);
    assert!(said.out.contains(&format!("would remove {named}")), "{}", said.out);
    assert!(!traces.gone(place), "only named");
    place.run(&["reap"]).succeeds().prints(&[&format!("removed {named}")]);
    assert!(traces.gone(place));
}

#[test]
fn memory_and_mounts_whose_state_is_lost_are_removed() {
    let Some(camp) = Camp::start(&[]) else { return };
    let traces = Traces::of(&camp);
    let mount = camp.place().path().join("elsewhere");
    fs::create_dir(&mount).unwrap();
    assert_eq!(camp.run("mount", &[mount.to_str().unwrap()]).code, 0);
    let _alone = reaping();
    traces.kill();
    // As when a runtime directory goes at log-out.
    rustix::mount::unmount(camp.mount(), rustix::mount::UnmountFlags::DETACH).unwrap();
    fs::remove_dir_all(camp.dir()).unwrap();
    let said = camp.place().run(&["reap"]);
    let root = traces.paths[0].parent().unwrap();
    assert_contains(&said.out, &[&format!("removed memory of a dead formation: {}", root.display())]);
    assert!(said.out.contains(&format!("removed dead mount: {}", mount.display())), "{}", said.out);
    assert!(traces.gone(camp.place()));
}

#[test]
fn data_that_is_to_be_kept_is_only_named() {
    let Some(place) = Place::mountable() else { return };
    let name = Place::unique_name();
    let out = format!("missing:{}", place.path().join("x").display());
    place.run(&["run", "--name", &name, "--out", &out, "--", "true"]).fails(121, &[]);
    let status: serde_json::Value =
        serde_json::from_str(&place.run(&["status", "--name", &name, "--json"]).out).unwrap();
    let [supervisor, node] = [&status["supervisor"], &status["nodes"][0]].map(|p| p["pid"].as_u64().unwrap());
    kill_with_standby(supervisor);
    signal(node, Signal::KILL);
    wait_until("all are gone", || !is_alive(node));
    let _alone = reaping();
    let said = place.run(&["reap"]);
    let named =
        format!("left formation {name}: holds data that is nowhere else: job 1: outputs were not copied out");
    assert!(said.code == 0 && said.out.contains(&named), "{}{}", said.out, said.err);
    assert!(!place.is_empty());
}

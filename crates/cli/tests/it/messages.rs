//! What is said when something cannot work: object, cause, remedy; and nothing is left.

use std::net::TcpListener;

use crate::harness::{Camp, Place, said, signal, wait_until};
use rustix::process::Signal;

#[test]
fn refusals_name_object_cause_and_remedy_and_leave_nothing() {
    let place = Place::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let (dir, file) = (dir.path().to_str().unwrap(), file.to_str().unwrap());
    let (small, huge) = (format!("{dir}:1k"), format!("{dir}:8000p"));
    for (arguments, code, says) in [
        (&["--nodes", "0"][..], 2, "--nodes 0: a formation needs a node; write --nodes 1 or more"),
        (&["--nodes", "5000"], 2, "one machine plays at most 256 nodes"),
        (&["--stripe", "5"], 2, "stripe size 5 is not within 4096 and 1073741824 bytes"),
        (&["--stripe", "4097"], 2, "not a multiple of 4096"),
        (&["--stripe", "8t"], 2, "is not within"),
        (&["--width", "2"], 2, "--width 2: there are only 1 targets"),
        (&["--volume", "/nonexistent"], 1, "volume /nonexistent: is missing; create the directory first"),
        (&["--volume", file], 1, "is not a directory; name a directory"),
        (&["--volume", &small], 1, "1 KiB is too small; give at least 4 MiB"),
        (&["--volume", &huge], 1, "are free there; give a smaller capacity"),
        (&["--volume", dir], 1, "holds 'file', which is not bivouac's"),
        (&["--volume", dir, "--volume", dir], 2, "is given twice"),
    ] {
        let name = Place::unique_name();
        let mut all = vec!["up", "--no-mount", "--name", &name];
        all.extend(arguments);
        let said = place.run(&all);
        assert_eq!(said.code, code, "{arguments:?}: {}", said.err);
        assert!(said.err.contains(says) && said.err.starts_with("bivouac: "), "{arguments:?}: {}", said.err);
        assert!(place.is_empty(), "{arguments:?}");
    }
    assert_eq!(std::fs::read(file).unwrap(), b"x");
}

#[test]
fn names_with_strange_characters_are_refused() {
    let place = Place::new();
    for name in ["a/b", "", "..", "ä", "a b", &"x".repeat(65)] {
        let said = place.run(&["up", "--name", name]);
        assert!(said.code == 2 && said.err.contains("--name"), "{name}: {}", said.err);
    }
    assert!(place.is_empty());
}

#[test]
fn mount_points_that_cannot_be_used_are_refused() {
    let Some(place) = Place::mountable() else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    let file = dir.path().join("file").display().to_string();
    for (point, says) in [
        (dir.path().to_str().unwrap(), "is not empty; name an empty directory"),
        (&file, "is not a directory"),
        ("/nonexistent/place", "/nonexistent: could not go there: no such file or directory (ENOENT)"),
    ] {
        place.run(&["up", "--name", &Place::unique_name(), "--mount", point]).fails(1, &[says]);
        assert!(place.is_empty());
    }
}

#[test]
fn a_port_in_use_is_said() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    place
        .run(&["up", "--no-mount", "--name", &Place::unique_name(), "--port", &port])
        .fails(1, &["address already in use (EADDRINUSE)", &port, "choose another port"]);
    assert!(place.is_empty());
}

#[test]
fn a_start_that_takes_too_long_is_undone() {
    let (place, memory) = (Place::new(), Place::memory());
    let arguments = [
        "up",
        "--no-mount",
        "--nodes",
        "64",
        "--volume",
        &format!("{}:4m", memory.path().display()),
        "--start-timeout",
        "100ms",
        "--name",
        &Place::unique_name(),
    ];
    let said = place.run(&arguments).fails(1, &["took longer than 0.1 s"]);
    assert!(said.err.contains("--start-timeout") && place.is_empty());
}

#[test]
fn a_start_that_is_interrupted_is_undone() {
    let (place, memory, name) = (Place::new(), Place::memory(), Place::unique_name());
    let volume = format!("{}:4m", memory.path().display());
    let mut up = place
        .command(&["up", "--no-mount", "--nodes", "128", "--volume", &volume, "--name", &name])
        .spawn()
        .unwrap();
    let log = place.formation_dir(&name).join("n0.log");
    wait_until("the first daemon is started", || log.exists());
    signal(u64::from(up.id()), Signal::INT);
    let code = up.wait().unwrap().code().unwrap();
    // The signal can come too late; then there is a formation, as was asked for.
    if code == 0 {
        assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
    }
    assert!(place.is_empty());
}

#[test]
fn a_name_that_is_taken_is_said() {
    let camp = Camp::start_in(Place::new(), &["--no-mount"]);
    camp.run("up", &[]).fails(1, &["is running already", &format!("bivouac down --name {}", camp.name())]);
    camp.down();
}

#[test]
fn another_release_and_an_unreadable_secret_are_said() {
    let camp = Camp::start_in(Place::new(), &["--no-mount"]);
    let secret = camp.dir().join("secret");
    let bytes = std::fs::read(&secret).unwrap();
    assert_eq!(bytes.len(), 32);
    std::fs::remove_file(&secret).unwrap();
    camp.run("status", &[]).fails(1, &["secret", "user who started"]);
    std::fs::write(&secret, &bytes).unwrap();
    let path = camp.dir().join("state.json");
    let state = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, state.replace("\"version\": 1", "\"version\": 99")).unwrap();
    camp.run("status", &[]).fails(1, &["state version 99", "use that release"]);
    std::fs::write(&path, state).unwrap();
    camp.down();
}

#[test]
fn the_wrong_secret_is_refused() {
    let camp = Camp::start_in(Place::new(), &["--no-mount"]);
    let secret = camp.dir().join("secret");
    let bytes = std::fs::read(&secret).unwrap();
    std::fs::write(&secret, [0; 32]).unwrap();
    let said = camp.run("status", &["--json"]);
    let status: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(status["nodes"][0]["state"], "unreachable", "{status}");
    std::fs::write(&secret, bytes).unwrap();
    wait_until("it answers again", || camp.state() == "running");
    camp.down();
}

#[test]
fn nothing_running_and_several_running_are_said() {
    let place = Place::new();
    for command in ["status", "down"] {
        place.run(&[command]).fails(1, &["no formation is running; start one with: bivouac up"]);
    }
    place.run(&["status", "--name", "x"]).fails(1, &["formation x is not running"]);
    let names = [Place::unique_name(), Place::unique_name()];
    for name in &names {
        assert_eq!(place.run(&["up", "--no-mount", "--name", name]).code, 0);
    }
    let said = place.run(&["status"]);
    assert!(said.code == 2 && names.iter().all(|name| said.err.contains(name)), "{}", said.err);
    assert_eq!(place.run(&["down", "--name", &names[0]]).code, 0);
    assert_eq!(place.run(&["status"]).code, 0, "the only one is taken");
    assert_eq!(place.run(&["down", "--yes"]).code, 0);
}

#[test]
fn a_path_outside_of_formations_cannot_be_explained() {
    Place::new().run(&["explain", "/etc/passwd"]).fails(1, &["/etc/passwd: is not in a formation"]);
}

#[test]
fn daemons_are_not_commands() {
    let place = Place::new();
    for arguments in [&["node"][..], &["supervise", "/tmp"]] {
        place.run(arguments).fails(2, &["bivouac up"]);
    }
}

/// What a shell offers behind these words.
fn offered(place: &Place, words: &str) -> Vec<String> {
    let script = format!(
        "PATH=\"$(dirname \"$BIVOUAC_BINARY\"):$PATH\"; source <(bivouac completions bash); compopt() {{ :; }}
         COMP_WORDS=({words} \"\"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
         _bivouac bivouac \"\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut bash = place.command(&[]);
    let binary = bash.get_program().to_owned();
    let environment: Vec<_> =
        bash.get_envs().map(|(key, value)| (key.to_owned(), value.map(ToOwned::to_owned))).collect();
    bash = std::process::Command::new("bash");
    bash.args(["-c", &script]).env("BIVOUAC_BINARY", binary);
    for (key, value) in environment {
        match value {
            Some(value) => bash.env(key, value),
            None => bash.env_remove(key),
        };
    }
    let out = said(&bash.output().unwrap());
    assert_eq!(out.err, "", "{words}");
    out.out.lines().map(str::to_owned).filter(|word| !word.is_empty()).collect()
}

/// The words but names of formations of other tests, whose memory is left where their state was lost.
fn without_others(mut words: Vec<String>, own: &[String]) -> Vec<String> {
    let is_of_a_test = |word: &str| {
        let numbers = word.strip_prefix('t').and_then(|rest| rest.split_once('-'));
        numbers.is_some_and(|(pid, count)| {
            [pid, count].iter().all(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        })
    };
    words.retain(|word| own.contains(word) || !is_of_a_test(word));
    words
}

#[test]
fn a_shell_offers_formations_and_what_else_a_value_can_be() {
    let place = Place::new();
    let none = without_others(offered(&place, "bivouac down --name"), &[]);
    assert_eq!(none, [""; 0], "there is none, and no file instead");
    let mut names = [Place::unique_name(), Place::unique_name()];
    names.sort();
    for name in &names {
        assert_eq!(place.run(&["up", "--no-mount", "--name", name]).code, 0);
    }
    let listed = place.run(&["list", "--names"]).out.lines().map(str::to_owned).collect();
    assert_eq!(without_others(listed, &names), names);
    for words in ["bivouac down --name", "bivouac stage status --name"] {
        assert_eq!(without_others(offered(&place, words), &names), names, "{words}");
    }
    assert_eq!(offered(&place, "bivouac up --name"), [""; 0], "it is a new one");
    assert_eq!(offered(&place, "bivouac up --checksum"), ["auto", "on", "off"]);
    assert_eq!(offered(&place, "bivouac up --stripe"), [""; 0]);
    for name in &names {
        assert_eq!(place.run(&["down", "--name", name, "--yes"]).code, 0);
    }
}

#[test]
fn a_value_behind_a_space_is_pointed_out() {
    Place::new().run(&["status", "--watch", "1s"]).fails(2, &["'1s' found; write --watch=1s\n"]);
}

#[test]
fn help_version_manual_and_completions_are_there() {
    let place = Place::new();
    let version = place.run(&["--version"]).out;
    assert_eq!(version.trim(), format!("bivouac {}", env!("CARGO_PKG_VERSION")));
    let help = place.run(&["run", "--help"]).out;
    assert!(help.contains("--out-always") && help.contains("121 if the"), "{help}");
    assert!(place.run(&["completions", "bash"]).out.contains("_bivouac"));
    assert!(place.run(&["man"]).out.contains(".TH bivouac"));
    assert_eq!(place.run(&[]).code, 2);
}

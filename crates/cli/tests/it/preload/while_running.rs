//! What else happens while a program runs: others read and write, daemons die.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use crate::harness::{Camp, wait_until};
use crate::preload::programs::{Way, build, calls, command, succeed};

/// S137: content is whole, and the program notices a pause at most.
#[test]
fn daemons_may_be_killed() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build("steady", dir.path()) else { return };
    let mut run = command(&program, Way::AtOnce);
    let mut child = run.arg(camp.mount()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "begun");
    for node in [1, 0, 1] {
        camp.kill_node(node);
        camp.node_pid(node);
    }
    std::fs::write(camp.mount().join("stop"), "").unwrap();
    let turns: u64 = said.next().unwrap().unwrap().parse().unwrap();
    let (_, report) = succeed(&child.wait_with_output().unwrap());
    assert!(turns >= 192 && calls(&report, "write").0 > 100, "{turns} turns: {report}");
    camp.down();
}

/// S137: a formation that has been taken down is not waited for.
#[test]
fn what_is_down_is_not_connected() {
    let script = "import os, sys\n\
        fd = os.open(sys.argv[1] + '/a', os.O_RDWR | os.O_CREAT)\n\
        for turn in range(20): os.pwrite(fd, b'x' * 50000, turn * 50000)\n\
        print('begun', flush=True)\n\
        sys.stdin.readline()\n\
        def told(call):\n    \
            try: return call()\n    \
            except OSError as error: return error.errno\n\
        print(told(lambda: os.pwrite(fd, b'y', 2000000)), told(lambda: os.pread(fd, 1, 0)), told(lambda: os.close(fd)))\n";
    let mut answers = Vec::new();
    for way in [Way::Plain, Way::AtOnce] {
        let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "16k", "--wait", "5s"]) else { return };
        let mut run = command("python3", way);
        run.args(["-c", script]).arg(camp.mount()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = run.stderr(Stdio::piped()).spawn() else {
            println!("skipped: python3 is not installed");
            return;
        };
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "begun");
        camp.down();
        drop(child.stdin.take());
        answers.push(said.next().unwrap().unwrap());
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(answers, ["107 107 107"; 2]);
}

/// S1, S2, S130: what a program writes with the preload is read by others at once, and the other way round.
#[test]
fn others_see_each_call_when_it_has_returned() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--stripe", "64k"]) else { return };
    if !std::process::Command::new("python3").arg("-V").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 is not installed");
        return;
    }
    let script = "import os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDWR)\n\
        for line in sys.stdin:\n    \
            what, at, count = line.split()\n    \
            if what == 'w':\n        os.pwrite(fd, bytes([int(at) % 251]) * int(count), int(at))\n    \
            print(os.pread(fd, int(count), int(at)).hex() if what == 'r' else os.fstat(fd).st_size, flush=True)\n";
    let [here, there] = [0, 1].map(|node| camp.mounts()[node].join("seen"));
    let other = std::fs::File::options().read(true).write(true).create_new(true).open(&there).unwrap();
    let mut run = command("python3", Way::AtOnce);
    run.args(["-c", script]).arg(&here).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut asks = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut ask = |what: &str, at: u64, count: usize| {
        use std::io::Write;
        writeln!(asks, "{what} {at} {count}").unwrap();
        answers.next().unwrap().unwrap()
    };
    let mut size = 0;
    for turn in 0..60u64 {
        let (at, count) = (turn * 7919 % 200_000, 1 + (turn as usize * 997) % 9000);
        size = size.max(at + count as u64);
        if turn % 2 == 0 {
            assert_eq!(ask("w", at, count), size.to_string());
        } else {
            other.write_all_at(&vec![(at % 251) as u8; count], at).unwrap();
        }
        let expected = vec![(at % 251) as u8; count];
        let mut found = vec![0; count];
        other.read_exact_at(&mut found, at).unwrap();
        assert!(found == expected, "turn {turn}");
        let hex: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(ask("r", at, count) == hex, "turn {turn}");
        assert_eq!(other.metadata().unwrap().len(), size);
        if turn % 20 == 19 {
            size = at + 10;
            other.set_len(size).unwrap();
            assert_eq!(ask("s", 0, 0), size.to_string());
        }
    }
    drop(asks);
    let (_, report) = succeed(&child.wait_with_output().unwrap());
    assert!(calls(&report, "pwrite").0 >= 25 && calls(&report, "pread").0 >= 50, "{report}");
    camp.down();
}

/// S138: when a program has ended, nobody has its files open any more, and nothing of its client is left.
#[test]
fn nothing_is_left_of_a_program_that_has_ended() {
    // Who is taken for gone for its silence is so after a longer time than this test takes.
    let Some(camp) = Camp::start(&["--nodes", "1", "--wait", "10m"]) else { return };
    let file = camp.mount().join("a");
    let mut dd = command("dd", Way::AtOnce);
    dd.arg("if=/dev/zero").arg(format!("of={}", file.display())).args(["bs=10000", "count=30"]);
    let (_, report) = succeed(&dd.output().unwrap());
    assert_eq!(calls(&report, "write").0, 30, "{report}");
    wait_until("all files are closed", || camp.status()["totals"]["open_files"] == 0);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 300_000);
    // One that leaves the closing to its end.
    let dir = tempfile::tempdir().unwrap();
    let Some(odd) = build("odd", dir.path()) else { return };
    succeed(&command(odd, Way::AtOnce).arg(camp.mount()).arg("left").output().unwrap());
    wait_until("all files are closed", || camp.status()["totals"]["open_files"] == 0);
    camp.down();
}

/// Which path each descriptor takes is told from outside, with and without the library.
#[test]
fn the_path_of_each_descriptor_is_explained() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let script = "import os, sys\n\
        f = os.open(sys.argv[1] + '/f', os.O_RDWR | os.O_CREAT)\n\
        a = os.open(sys.argv[1] + '/a', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
        print(f, a, flush=True)\n\
        for line in sys.stdin:\n    \
            for turn in range(40): os.pwrite(f, b'x' * 4096, turn * 4096)\n    \
            print(line, end='', flush=True)\n";
    for way in [Way::Plain, Way::AtOnce] {
        let mut run = command("python3", way);
        run.args(["-c", script]).arg(camp.mount()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = run.stderr(Stdio::null()).spawn() else {
            println!("skipped: python3 is not installed");
            return;
        };
        let mut says = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = says.next().unwrap().unwrap();
        let [f, a]: [&str; 2] = said.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let pid = child.id().to_string();
        let explained = || {
            let json = camp.place().run(&["explain", "--json", "--pid", &pid]).succeeds();
            serde_json::from_str::<serde_json::Value>(&json.out).unwrap()
        };
        let mut json = serde_json::Value::Null;
        // A node that is slow to answer is not asked again for a second.
        wait_until("the program has written, and has found its way", || {
            writeln!(child.stdin.as_ref().unwrap(), "write").unwrap();
            assert_eq!(says.next().unwrap().unwrap(), "write");
            json = explained();
            json["files"].as_array().unwrap().iter().all(|file| file["calls"] != "soon")
        });
        let with = way == Way::AtOnce;
        assert_eq!((&json["program"], &json["has_preload"]), (&"python3".into(), &with.into()));
        let files = json["files"].as_array().unwrap();
        let of = |number: &str| {
            files.iter().find(|file| file["descriptor"].as_u64() == number.parse().ok()).unwrap()
        };
        assert_eq!(of(f)["path"], camp.mount().join("f").to_str().unwrap());
        assert_eq!((&of(f)["formation"], &of(f)["mounted_through"]), (&camp.name().into(), &0.into()));
        assert_eq!(of(f)["calls"], if with { "direct" } else { "mount" }, "{json}");
        assert_eq!(of(f)["own_targets"].as_array().unwrap().len(), if with { 2 } else { 0 }, "{json}");
        assert_eq!(of(a)["calls"], "mount");
        let text = camp.place().run(&["explain", "--pid", &pid]).out;
        assert!(text.contains("O_APPEND") && text.contains("FD  OPENED TO"), "{text}");
        assert_eq!(text.contains("by itself: it has 2 of 2 subfiles open"), with, "{text}");
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    // Not this process: other tests have files open in it.
    let mut idle = command("cat", Way::Plain).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let none = camp.place().run(&["explain", "--pid", &idle.id().to_string()]);
    drop(idle.stdin.take());
    assert!(idle.wait().unwrap().success());
    assert!(none.out.contains("it has no file of a formation open"), "{}{}", none.out, none.err);
    camp.place().run(&["explain", "--pid", "4194304"]).fails(1, &["process 4194304: is not there"]);
    assert_eq!(camp.place().run(&["explain"]).code, 2);
    camp.down();
}

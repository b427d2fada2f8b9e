//! The preload: unchanged programs on real formations, with it and without it.

mod leases;
pub mod programs;
mod tools;
mod while_running;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::harness::random::Random;
use crate::harness::{Camp, can_mount};
use programs::{Way, build, calls, command, library, succeed};

const WAYS: [Way; 3] = [Way::Plain, Way::Usual, Way::AtOnce];

/// Runs all tests of a program on a formation, in all ways; what it reported when all was to be direct.
fn all_well(name: &str) -> Option<String> {
    let camp = Camp::start(&["--nodes", "2", "--stripe", "64k"])?;
    let dir = tempfile::tempdir().unwrap();
    let program = build(name, dir.path())?;
    let mut report = String::new();
    for way in WAYS {
        let (said, told) = succeed(&command(&program, way).arg(camp.mount()).output().unwrap());
        assert_eq!(said, "well\n", "{way:?}");
        report = told;
    }
    camp.down();
    Some(report)
}

/// S130, S131, S132, S133, S135.
#[test]
fn calls_are_as_on_any_file_system() {
    let Some(report) = all_well("calls") else { return };
    for name in ["read", "pread", "readv", "preadv", "write", "pwrite", "writev", "pwritev"] {
        assert!(calls(&report, name).0 > 0, "{name}: {report}");
    }
}

/// S667: what is at a name, behind changes of all kinds, and while what is cached is leased.
#[test]
fn names_are_as_the_kernel_says() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build("names", dir.path()) else { return };
    for way in WAYS {
        let seed = Random::seed();
        let output = command(&program, way).arg(camp.mount()).env("SEED", seed.to_string()).output().unwrap();
        let (said, report) = succeed(&output);
        assert_eq!(said, "well\n");
        assert!(
            way != Way::AtOnce || calls(&report, "stat").0 > 0 && calls(&report, "access").0 > 0,
            "{report}"
        );
    }
    camp.down();
}

/// S346: nodes that the program does not find on this machine are reached over the network, by which what it writes is summed up.
#[test]
fn calls_over_a_network_are_as_on_any_file_system() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build("calls", dir.path()) else { return };
    let map = bivouac_launch::StateDir::at(camp.dir()).read().unwrap().unwrap().map().unwrap();
    let hidden = map.nodes.iter().map(|node| format!("mount --bind /dev/null {} && ", node.unix_path));
    let script = hidden.collect::<String>() + "exec \"$0\" \"$@\"";
    for way in WAYS {
        let mut apart = command("unshare", way);
        apart.args(["-m", "sh", "-c", &script]).arg(&program).arg(camp.mount());
        let output = apart.output().unwrap();
        if String::from_utf8_lossy(&output.stderr).contains("unshare failed") {
            return println!("skipped: no mount namespaces of one's own");
        }
        let (said, report) = succeed(&output);
        assert_eq!(said, "well\n", "{way:?}");
        assert!(way == Way::Plain || calls(&report, "pwrite").0 > 0, "{report}");
    }
    camp.down();
}

/// S130, S133, S134, S138, S277: descriptors in other hands, calls by number, copies by the kernel.
#[test]
fn odd_calls_are_as_on_any_file_system() {
    let Some(report) = all_well("odd") else { return };
    assert!(calls(&report, "pwrite").0 > 100 && calls(&report, "read").1 > 0, "{report}");
}

/// S130: a program that has used up its memory, and copes with that.
#[test]
fn without_memory_calls_are_the_kernels() {
    let Some(report) = all_well("memory") else { return };
    assert!(calls(&report, "pread").0 > 0, "{report}");
}

/// S277: what another node wrote is copied once this one has looked at the size, and opened the file.
#[test]
fn copies_by_the_kernel_have_what_was_looked_at() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--stripe", "16k"]) else { return };
    let [here, there] = [0, 1].map(|node| camp.mounts()[node].join("copied"));
    std::fs::write(&here, vec![b'a'; 10_000]).unwrap();
    let spliced = |file: &std::fs::File, at: u64, count: usize| {
        let (from, to) = std::io::pipe().unwrap();
        let mut at = at;
        let done =
            rustix::pipe::splice(file, Some(&mut at), &to, None, count, rustix::pipe::SpliceFlags::empty());
        drop(to);
        let bytes = std::io::read_to_string(from).unwrap();
        assert_eq!(done, Ok(bytes.len()));
        bytes
    };
    let other = std::fs::File::options().write(true).open(there).unwrap();
    let file = std::fs::File::open(&here).unwrap();
    assert_eq!(spliced(&file, 0, 4), "aaaa");
    for turn in 0..10u64 {
        let byte = b'b' + turn as u8;
        other.write_all_at(&[byte; 4], 0).unwrap();
        other.write_all_at(&[byte; 4], 20_000 + 10 * turn).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 20_004 + 10 * turn);
        let again = std::fs::File::open(&here).unwrap();
        let expected = String::from_utf8(vec![byte; 4]).unwrap();
        assert_eq!(spliced(&again, 0, 4), expected);
        assert_eq!(spliced(&again, 20_000 + 10 * turn, 9), expected);
    }
    camp.down();
}

/// S130: a write that has room for a part of itself writes that.
#[test]
fn what_is_left_of_a_volume_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let volume = format!("{}:24m", dir.path().display());
    let Some(camp) = Camp::start(&["--nodes", "2", "--volume", &volume]) else { return };
    let script = "import os, sys\n\
        f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n\
        for turn in range(20): os.pwrite(f, b'x', 0)\n\
        data = bytes(range(256)) * (60 << 12)\n\
        done = os.write(f, data)\n\
        assert os.fstat(f).st_size == os.lseek(f, 0, 1) == done\n\
        assert os.pread(f, done + 1, 0) == data[:done]\n\
        print(0 < done < len(data))\n\
        os.unlink(sys.argv[1])\n";
    for way in WAYS {
        let mut run = command("python3", way);
        let Ok(output) = run.args(["-c", script]).arg(camp.mount().join("full")).output() else {
            println!("skipped: python3 is not installed");
            return;
        };
        assert_eq!(succeed(&output).0, "True\n", "{way:?}");
    }
    camp.down();
}

/// S134, S136.
#[test]
fn processes_threads_signals_and_streams_are_as_everywhere() {
    let Some(report) = all_well("processes") else { return };
    assert!(calls(&report, "write").0 > 1000 && calls(&report, "pwrite").0 > 1000, "{report}");
    assert!(report.contains("position shared with other processes"), "{report}");
}

/// S1, S2, S130: one file, through the preload and around it, below the mounts of two nodes.
#[test]
fn both_paths_lead_to_one_file() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--stripe", "16k"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build("mix", dir.path()) else { return };
    for (seed, way) in [("11", Way::AtOnce), ("12", Way::Usual)] {
        let mut run = command(&program, way);
        run.args(["1500", seed]).args(camp.mounts().iter().map(|mount| mount.join("mixed")));
        let (said, report) = succeed(&run.output().unwrap());
        assert_eq!(said, "well\n");
        assert!(calls(&report, "pwrite").0 > 50 && calls(&report, "read").0 > 50, "{report}");
    }
    camp.down();
}

/// S211, S738.
#[test]
fn files_under_another_contract_than_coherent_are_the_mounts() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let dir = camp.mount().join("s");
    let create = ["partition", "create", dir.to_str().unwrap(), "--contract", "session"];
    assert_eq!(camp.place().run(&create).code, 0);
    let to = format!("of={}", dir.join("f").display());
    let mut run = command(Path::new("/bin/dd"), Way::AtOnce);
    let (_, report) = succeed(&run.args(["if=/dev/zero", &to, "bs=4096", "count=100"]).output().unwrap());
    let (direct, mount) = calls(&report, "write");
    assert!(direct == 0 && mount >= 100, "{report}");
    assert_eq!(std::fs::read(dir.join("f")).unwrap(), vec![0; 409_600]);
    // One by one, and by the directory.
    for contract in ["strict", "session", "coherent"] {
        let dir = camp.mount().join(contract);
        std::fs::create_dir(&dir).unwrap();
        camp.place().ok(&["contract", "set", contract, dir.to_str().unwrap()]);
        let to = format!("of={}", dir.join("f").display());
        let mut run = command(Path::new("/bin/dd"), Way::AtOnce);
        let (_, report) = succeed(&run.args(["if=/dev/zero", &to, "bs=4096", "count=100"]).output().unwrap());
        let (direct, mount) = calls(&report, "write");
        assert_eq!((direct > 0, mount >= 100), (contract == "coherent", contract != "coherent"), "{report}");
    }
    camp.down();
}

/// S775: all programs of a mount are one client to who detects races.
#[test]
fn files_are_the_mounts_while_races_are_detected() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--detect-races"]) else { return };
    let to = format!("of={}", camp.mount().join("f").display());
    let mut run = command(Path::new("/bin/dd"), Way::AtOnce);
    let (_, report) = succeed(&run.args(["if=/dev/zero", &to, "bs=4096", "count=100"]).output().unwrap());
    let (direct, mount) = calls(&report, "write");
    assert!(direct == 0 && mount >= 100, "{report}");
    let said = camp.run("races", &["--json"]);
    let found: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert!(found["accesses"].as_u64().unwrap() > 0 && said.code == 0, "{found:#}");
    camp.down();
}

/// S274: what is longer than a request is worth a look at once.
#[test]
fn a_large_first_call_is_direct() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    for (size, expected) in [("4M", (0, 1)), ("5M", (1, 0))] {
        let to = format!("of={}", camp.mount().join(size).display());
        let mut run = command(Path::new("/bin/dd"), Way::Usual);
        let (_, report) =
            succeed(&run.args(["if=/dev/zero", &to, &format!("bs={size}"), "count=1"]).output().unwrap());
        assert_eq!(calls(&report, "write"), expected, "{size}: {report}");
    }
    assert_eq!(std::fs::read(camp.mount().join("5M")).unwrap(), vec![0; 5 << 20]);
    camp.down();
}

fn run_prints(preload: &[&str]) -> Option<(String, String)> {
    if !can_mount() {
        return None;
    }
    let place = crate::harness::Place::new();
    let name = crate::harness::Place::unique_name();
    let mut arguments = vec!["run", "--name", &name];
    arguments.extend(preload);
    let script = "echo \"$LD_PRELOAD\"; head -c 3000000 /dev/zero > $BIVOUAC/a; \
        dd if=$BIVOUAC/a of=$BIVOUAC/b bs=4096 status=none; cmp $BIVOUAC/a $BIVOUAC/b; stat -c %s $BIVOUAC/b";
    arguments.extend(["--", "sh", "-c", script]);
    Some(succeed(&place.command(&arguments).env("BIVOUAC_REPORT", "1").output().unwrap()))
}

#[test]
fn a_command_that_is_run_is_accelerated_unless_told_not_to() {
    let path = library().display().to_string();
    for options in [&[][..], &["--preload", &path]] {
        let Some((said, report)) = run_prints(options) else { return };
        assert_eq!(said, format!("{}\n3000000\n", library().canonicalize().unwrap().display()));
        let (direct, mount) = calls(&report, "write");
        assert!(direct > 700 && mount > 0, "{report}");
    }
    let Some((said, report)) = run_prints(&["--no-preload"]) else { return };
    assert_eq!((said.as_str(), report.as_str()), ("\n3000000\n", ""));
}

#[test]
fn a_command_of_exec_is_accelerated_unless_told_not_to() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let written = |options: &[&str], file: &str| {
        let script = format!("dd if=/dev/zero of=$BIVOUAC/{file} bs=4096 count=100 status=none");
        let mut all = vec!["exec", "--name", camp.name()];
        all.extend(options);
        all.extend(["--", "sh", "-c", &script]);
        let (_, report) = succeed(&camp.place().command(&all).env("BIVOUAC_REPORT", "1").output().unwrap());
        assert_eq!(std::fs::read(camp.mount().join(file)).unwrap(), vec![0; 409_600]);
        report
    };
    let path = library().display().to_string();
    for options in [&[][..], &["--preload", &path]] {
        let (direct, mount) = calls(&written(options, "a"), "write");
        assert!(direct > 50 && mount > 0, "{direct} {mount}");
    }
    assert_eq!(written(&["--no-preload"], "b"), "");
    camp.down();
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let place = crate::harness::Place::new();
    place
        .run(&["run", "--preload", "/none/x.so", "--", "true"])
        .fails(2, &["--preload /none/x.so", "libbivouac_preload.so"]);
}

#[test]
fn what_is_installed_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install-preload");
    let installed = Command::new(script).arg(library().parent().unwrap()).arg(dir.path()).output().unwrap();
    succeed(&installed);
    let installed = dir.path().join("lib/libbivouac_preload.so");
    let (said, _) = succeed(&Command::new("echo").arg("x").env("LD_PRELOAD", installed).output().unwrap());
    assert_eq!(said, "x\n");
}

/// What a library defines, as `nm` lists it.
fn defined(library: &Path) -> Option<Vec<String>> {
    let Ok(listed) = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output() else {
        println!("skipped: there is no nm");
        return None;
    };
    let (listed, _) = succeed(&listed);
    let name = |line: &str| Some(line.rsplit(' ').next()?.split('@').next()?.to_owned());
    Some(listed.lines().filter_map(name).collect())
}

/// Programs find these names before libc's, and before those of MPI's files: they must be such, and no others.
#[test]
fn only_names_of_libc_and_of_files_of_mpi_are_defined() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("libc.so"));
    let (Some(ours), Some(theirs)) = (defined(library()), libc.and_then(|libc| defined(Path::new(libc))))
    else {
        return;
    };
    assert!(ours.len() > 50, "{ours:?}");
    for name in ours {
        let is_mpi = name.strip_prefix('P').unwrap_or(&name).starts_with("MPI_File_");
        assert!(is_mpi || theirs.contains(&name), "{name}");
    }
}

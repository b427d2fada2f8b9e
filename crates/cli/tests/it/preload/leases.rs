//! Promises to mounts, and programs that change files by themselves.

use std::fs::{File, metadata};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::harness::Camp;
use crate::preload::programs::{Way, calls, command, succeed};

/// What the nodes say of an operation, all together: requests of clients, and to peers.
fn count(camp: &Camp, operation: &str) -> (u64, u64) {
    let status = camp.status();
    let nodes = status["nodes"].as_array().unwrap();
    let rows = nodes.iter().flat_map(|node| node["operations"].as_array().unwrap());
    let rows = rows.filter(|row| row["name"] == operation);
    rows.fold((0, 0), |sum, row| {
        (sum.0 + row["client"].as_u64().unwrap(), sum.1 + row["calls"].as_u64().unwrap())
    })
}

/// S271: also where the file's home is another node than the mount's.
#[test]
fn a_programs_first_write_does_not_wait_for_its_mount() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let mut turn = 0_u64;
    while turn < 8 || count(&camp, "Invalidate").1 == 0 {
        turn += 1;
        let dir = camp.mount().join(format!("d{turn}"));
        std::fs::create_dir(&dir).unwrap();
        let to = format!("of={}", dir.join("f").display());
        let mut dd = command("/bin/dd", Way::AtOnce);
        let said = dd.args(["if=/dev/zero", &to, "bs=4096", "count=20"]).output().unwrap();
        assert!(calls(&succeed(&said).1, "write").0 >= 20);
        assert_eq!(metadata(dir.join("f")).unwrap().len(), 81_920);
        // Who opens it has heard its size: no answer is on its way.
        drop(File::open(dir.join("f")).unwrap());
    }
    // A lease that ends while its holder is asked, or before a busy machine lets it answer, is waited for.
    let (waits, _) = count(&camp, "LeaseWait");
    assert!(waits * 4 <= turn, "{waits} waits in {turn} turns");
    camp.down();
}

/// S1, S20, S62, S271.
#[test]
fn what_a_kernel_was_told_before_is_not_believed_behind_a_write() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let script = "import os, sys\n\
        for line in sys.stdin:\n    \
            size, path = line.split()\n    \
            fd = os.open(path, os.O_WRONLY)\n    \
            for at in range(8): os.pwrite(fd, b'x' * int(size), at * int(size))\n    \
            print(at, flush=True)\n    \
            sys.stdin.readline()\n    \
            os.close(fd)\n";
    let mut run = command("python3", Way::AtOnce);
    run.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = run.spawn() else {
        println!("skipped: python3 is not installed");
        return;
    };
    let mut asks = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut turn = 0;
    while turn < 40 || count(&camp, "Invalidate").1 == 0 {
        turn += 1;
        // A directory of its own has a slot of its own, in which nothing was changed by others.
        let (here, there) =
            (camp.mounts()[0].join(format!("e{turn}")), camp.mounts()[1].join(format!("e{turn}")));
        std::fs::create_dir(&here).unwrap();
        let files = [here.join("f"), there.join("f")];
        drop(File::create_new(&files[0]).unwrap());
        let looked = if turn % 3 == 0 { &files[..] } else { &files[..1] };
        (0..5).for_each(|_| looked.iter().for_each(|file| assert_eq!(metadata(file).unwrap().len(), 0)));
        writeln!(asks, "{turn} {}", files[0].display()).unwrap();
        assert_eq!(answers.next().unwrap().unwrap(), "7");
        let sizes = files.each_ref().map(|file| metadata(file).unwrap().len());
        assert_eq!(sizes, [8 * turn; 2], "turn {turn}");
        writeln!(asks).unwrap();
    }
    drop(asks);
    let (_, report) = succeed(&child.wait_with_output().unwrap());
    assert!(calls(&report, "pwrite").0 >= 300, "{report}");
    camp.down();
}
